/* law.h: what is known of values without computing them (law.c); shared by the Math IR's passes. */
#ifndef AG_LAW_H
#define AG_LAW_H

#include "math_ir.h"

/* Axes along which a kernel computes many values per row: what varies with none of them is worth computing apart. */
#define AXES_INNER (1 << AX_K | 1 << AX_D)
/* Axes of a row of queries. */
#define AXES_ROW (1 << AX_B | 1 << AX_H | 1 << AX_Q)

/* Whether r, a float, is a finite number > 0 whatever the inputs.  p: a pool over spec's parameters. */
bool ag_positive(const Spec *spec, const Nodes *p, Ref r);
/* A condition such that r is -inf, or 0, wherever it is false; 0: none is known.  New nodes go into p. */
Ref ag_neg_inf_unless(const Spec *spec, Nodes *p, Ref r);
Ref ag_zero_unless(const Spec *spec, Nodes *p, Ref r);
/* The opposite of a comparison of ints: LT for GE, ...; OP_COUNT for other operations. */
Op ag_opposite(Op compare);
#endif
