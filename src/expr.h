/* expr.h: the two halves of ag_expr_read: text to tree (expr.c), names and types (expr_type.c). */
#ifndef AG_EXPR_H
#define AG_EXPR_H

#include "input.h"

/* Parses the text of a scalar node into an untyped tree: names are OP_VAL leaves, names with subscripts OP_LOAD, calls have their op.  Reports the first error; NULL then. */
Ast *ag_expr_parse(Diag *d, const Doc *text);

/* What an expression may name, and what it should be; filled in by ag_expr_type. */
typedef struct ExprUse {
    Type want;                 /* T_BOOL: a mask, s is refused; T_FLOAT: a score, or the output; T_NONE: any type */
    bool output;               /* branches and d have a value; s and k have none */
    bool weigh;                /* a factor of weights: dot(r, k) is the product of an input with the keys */
    RowsOf rows;               /* of a prologue: d has a value, and the axes of these rows; s has none */
    int nlet;                  /* spec->let[0 .. nlet) are visible, the others come later; at nlet is the one being defined */
    int depth;                 /* out: as in Let */
    bool uses_score, uses_key; /* out */
    Scalar constant;           /* out */
    uint32_t inputs, branches; /* out: bit by index of those named here, not through lets; also after errors */
} ExprUse;
/* Resolves names and types the tree in place, promoting int to float; reports every error.  NULL after errors. */
Ast *ag_expr_type(Diag *d, const Spec *spec, Ast *e, ExprUse *use);

/* ---- refused.c: what belongs to variants without a kernel of one pass */
typedef enum RefusedAs { REFUSED_NORMALIZER, REFUSED_FUNCTION, REFUSED_SUBSCRIPT } RefusedAs;
const char *ag_refused(RefusedAs as, Str name); /* the reason; NULL: nothing is known of it */

int ag_spec_find_part(const Spec *s, Str name);                    /* spec_batch.c: index of a part of the batch; -1 */
void ag_spec_resolve_part(Arena *a, const Spec *s, int i, Ast *e); /* spec_batch.c: makes the name e what it stands for */
bool ag_expr_is_reserved(Str name);                                /* an axis, size, function or keyword of the language */
Op ag_expr_function(Str name);                                     /* OP_COUNT if there is none */
extern const char *const ag_expr_keyword[];                        /* NULL-terminated */
#endif
