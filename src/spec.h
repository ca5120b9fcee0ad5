/* spec.h: what the readers of a spec's sections share: spec.c (fields, names), spec_inputs.c, spec_derive.c, spec_branches.c. */
#ifndef AG_SPEC_H
#define AG_SPEC_H

#include "expr.h"

typedef struct Reader {
    Diag *d;
    Spec *spec;
    const Doc *root;
    const Doc *select[SPEC_MAX_DERIVES];        /* of those that select: the name of what they select by */
    const Doc *branch[SPEC_MAX_BRANCHES];       /* their maps, NULL if they are none */
    uint32_t read, in_output;                   /* bit per input: read in an expression; of those, in `output` */
    uint32_t in_keys, in_values, in_lists;      /* bit per input: read as keys, values; as lists, counts or weights */
    uint32_t in_queries;                        /* bit per input: read as queries */
    uint32_t derive_used, selected, branch_out; /* bit per derive and per branch */
} Reader;

/* ---- spec.c */
/* Whether `key` may name something that the spec defines, `what` in words; reports otherwise. */
bool ag_spec_check_name(Reader *r, const Doc *key);
bool ag_spec_scalar(Reader *r, const Doc *x, const char *what, const char *expected); /* whether x is a scalar; reports otherwise */
bool ag_spec_map(Reader *r, const Doc *x, const char *what, const char *example);     /* whether x is a map; reports otherwise */
/* A literal from min to max, or an int parameter with such a value, which is fixed at compile time by this. */
bool ag_spec_fixed(Reader *r, const Doc *x, const char *what, int min, int max, Fixed *out);
Ast *ag_spec_expression(Reader *r, const Doc *x, const char *what, ExprUse *use); /* NULL after errors; notes the inputs that are read */
Ast *ag_spec_weigh(Reader *r, const Doc *x, const char *what);                    /* a factor of weights; NULL after errors */
/* Reports x, which should be one of `names` (NULL-terminated), `expected` in words. */
void ag_spec_unknown(Reader *r, const Doc *x, const char *what, const char *expected, const char *const *names);
const Doc *ag_spec_key(const Doc *map, const char *key); /* the key itself, for its place; NULL if absent */

/* ---- spec_inputs.c */
void ag_spec_inputs(Reader *r, const Doc *x);
int ag_spec_find_input(const Spec *s, Str name);                /* -1 if there is none */
bool ag_spec_is_dims(const Input *x, const Axis *axis, int n);  /* whether its first n dims are these axes */
const char *ag_spec_type_text(const Reader *r, const Input *x); /* "i32 [b, h, q, 8]", as it was found */
/* of type dtype, [b, g, k, d] or for queries [b, h, q, d]; reports otherwise */
bool ag_spec_input_is_rows(Reader *r, const Doc *x, const char *what, int i, bool queries);
void ag_spec_inputs_finish(Reader *r); /* D or Dv, and what is never used */

/* ---- spec_derive.c */
void ag_spec_derive(Reader *r, const Doc *x);
int ag_spec_find_derive(const Spec *s, Str name);
bool ag_spec_block(Reader *r, const Doc *x, const char *what, Fixed *out); /* keys per block: a multiple of 16 up to 256 */
void ag_spec_derive_finish(Reader *r);                                     /* what selects by what, once branches have names; what is never used */

/* ---- spec_prologue.c */
void ag_spec_prologue(Reader *r, const Doc *x);

/* ---- spec_batch.c */
void ag_spec_batch(Reader *r, const Doc *x);

/* ---- spec_dot.c */
void ag_spec_dots_finish(Reader *r);

/* ---- spec_branches.c */
void ag_spec_branches(Reader *r, const Doc *x);
int ag_spec_find_branch(const Spec *s, Str name);
void ag_spec_branch_expressions(Reader *r); /* once lets have been read */
void ag_spec_output(Reader *r, const Doc *x);
void ag_spec_branches_finish(Reader *r);
#endif
