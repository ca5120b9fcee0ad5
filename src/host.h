/* host.h: one attention call on host memory; what the reference, the naive computation, the simulator and the checks share. */
#ifndef AG_HOST_H
#define AG_HOST_H

#include "input.h"

/* A tensor in host memory: element (i0, i1, i2, i3) is at data + sum(i * stride) elements of `type`; dims as in attngen.h. */
typedef struct HostTensor {
    void *data;
    int64_t stride[4];
    DType type;
} HostTensor;
double ag_host_get(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
void ag_host_set(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double x); /* rounds to nearest even */
float ag_round_to(DType t, float x);                                                             /* x as stored in t */

enum { HOST_SCALARS = 32 };
typedef struct HostCall {
    int64_t size[SZ_COUNT];
    HostTensor q, k, v, o, lse;  /* lse.data may be NULL */
    double scalar[HOST_SCALARS]; /* values of spec->param, by index */
} HostCall;

/* ---- reference.c: the maths in double, straight from the syntax tree; shares nothing with the passes.
 * o: [B, Hq, Sq, Dv], lse: [B, Hq, Sq] (natural log, -inf for a row that sees no key), both contiguous.  false: out of memory. */
bool ag_reference(const Spec *spec, const HostCall *call, double *o, double *lse);
/* The same computed as a plain program would in the storage type: scores, probabilities and output rounded to it, fp32 in between, softmax in fp32.
 * Its error is the yardstick of DESIGN's tolerance. */
bool ag_naive(const Spec *spec, const HostCall *call, double *o, double *lse);
/* Whether query row `q` (index, not position) of (b, h) may see key k: the mask of the spec, evaluated in double. */
bool ag_visible(const Spec *spec, const HostCall *call, int64_t b, int64_t h, int64_t q, int64_t k);
/* Evaluates a typed expression at one point; s is the scaled score. */
Scalar ag_ast_eval(const Spec *spec, const HostCall *call, const Ast *e, int64_t b, int64_t h, int64_t qpos, int64_t k, double s);

/* ---- compare.c: DESIGN's tolerance */
/* How far O may be off, by numerics class: `naive` times the naive error, and `half_ulps` of the row's largest output; LSE relatively by `lse`. */
typedef struct ErrorBound {
    double naive, half_ulps, lse;
} ErrorBound;
ErrorBound ag_error_bound(const char *numerics); /* of a class such as "f32acc-ex2-n64-lazy8" */

typedef struct Comparison {
    bool ok;
    double o_err, o_limit, lse_err, lse_limit; /* worst absolute error of o and its limit there; worst relative error of lse */
    int64_t b, h, q, d;                        /* where o is worst against its limit */
    int64_t unwritten;                         /* elements that still hold the poison */
    char text[256];                            /* one line: what is wrong, where; "" if ok */
} Comparison;
/* Compares call->o and call->lse with the reference. */
Comparison ag_compare(const Spec *spec, const HostCall *call, ErrorBound bound, const double *o, const double *lse, const double *naive_o);
void ag_poison(const Spec *spec, const HostCall *call); /* fills o and lse with a NaN pattern that no computation yields */
bool ag_is_poison(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
#endif
