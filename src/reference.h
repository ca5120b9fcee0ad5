/* reference.h: one query row of an attention, shared by reference.c (plain specs) and reference_program.c (specs with branches). */
#ifndef AG_REFERENCE_H
#define AG_REFERENCE_H

#include "host.h"

/* One query row at work, and contiguous copies of the keys and values of its (b, g). */
typedef struct Row {
    const Spec *spec;
    const HostCall *call;
    const Ast *score, *mask, *weigh; /* of the spec or of a branch */
    int64_t b, h, q, D, Dv, Sk;
    double *query, *key, *value; /* [D], [Sk, D], [Sk, Dv] */
    int64_t n, *seen;            /* the keys that the row sees, n of them */
    double *x;                   /* [n]: their scores, then their probabilities */
    double *o, *lse;             /* out: [Dv], one */
    double max, mean;            /* out: the largest score; the mean of `weigh` */
} Row;
typedef void RowFunction(Row *);

void ag_row_seen(Row *r, const bool *in); /* fills n and seen: keys that the mask lets through and, unless it is NULL, in[] has */
void ag_row_exact(Row *r);                /* in double */
void ag_row_naive(Row *r);                /* scores, probabilities and output in the storage type, sums and softmax in float */
double ag_row_dot(const double *x, const double *y, int64_t n);
int64_t ag_kv_head(const HostCall *call, int64_t h);
#endif
