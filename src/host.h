/* host.h: one attention call on host memory; what the reference, the naive computation, the simulator and the checks share. */
#ifndef AG_HOST_H
#define AG_HOST_H

#include "input.h"

/* A tensor in host memory: element (i0, i1, ...) is at data + sum(i * stride) elements of `type`; dims as in attngen.h, or as the spec declares them. */
typedef struct HostTensor {
    void *data;
    int64_t stride[INPUT_MAX_DIMS];
    DType type;
} HostTensor;
/* An element of a tensor of up to 4 dims as a number; bool gives 0 or 1. */
double ag_host_get(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
void ag_host_set(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double x); /* rounds to nearest even */
/* Goes over the indices of a tensor in C order: false where there is none, or no further one. */
static inline bool ag_first_index(int64_t *at, const int64_t *dim, int rank) {
    bool any = true;
    for (int i = 0; i < rank; i++) at[i] = 0, any &= dim[i] > 0;
    return any;
}
static inline bool ag_next_index(int64_t *at, const int64_t *dim, int rank) {
    for (int i = rank - 1; i >= 0; i--) {
        if (++at[i] < dim[i]) return true;
        at[i] = 0;
    }
    return false;
}
/* One of a tensor of any rank: index[0 .. rank). */
double ag_host_get_at(const HostTensor *t, const int64_t *index, int rank);
void ag_host_set_at(const HostTensor *t, const int64_t *index, int rank, double x);
int64_t ag_host_get_int(const HostTensor *t, const int64_t *index, int rank); /* i32 i64 u8 bool, all bits */
float ag_round_to(DType t, float x);                                          /* x as stored in t */

enum { HOST_SCALARS = 32, HOST_MORE = 19 };
typedef struct HostCall {
    int64_t size[SZ_COUNT];
    HostTensor q, k, v, o;
    HostTensor lse, max, mean_weight; /* values of a row; data may be NULL */
    double scalar[HOST_SCALARS];      /* values of spec->param, by index */
    HostTensor input[SPEC_MAX_INPUTS];
    HostTensor more[HOST_MORE];             /* for the simulator: the kernel's own tensors behind the first TEN_COUNT */
    bool prepared;                          /* q and k are as the prologue of the spec leaves them */
    const int32_t *picks[SPEC_MAX_DERIVES]; /* NULL: computed; else what a SELECT is taken to be: [B, Hkv or Hq, Sq, count], contiguous */
} HostCall;

static inline HostTensor *ag_host_row(HostCall *c, RowValue v) { return v == ROWV_LSE ? &c->lse : v == ROWV_MAX ? &c->max : &c->mean_weight; }

/* ---- reference.c: the maths in double, straight from the syntax tree; shares nothing with the passes.
 * o: [B, Hq, Sq, Dv], lse: [B, Hq, Sq] (natural log, -inf for a row that sees no key), both contiguous.  false: out of memory. */
bool ag_reference(const Spec *spec, const HostCall *call, double *o, double *lse);
/* And the other values of a row, [B, Hq, Sq] each; any of value[] may be NULL. */
bool ag_reference_values(const Spec *spec, const HostCall *call, double *o, double *const value[ROWV_COUNT]);
/* The same computed as a plain program would in the storage type: scores, probabilities and output rounded to it, fp32 in between, softmax in fp32.
 * Its error is the yardstick of DESIGN's tolerance. */
bool ag_naive(const Spec *spec, const HostCall *call, double *o, double *lse);
/* Whether query row `q` (index, not position) of (b, h) may see key k: the mask of the spec, evaluated in double. */
bool ag_visible(const Spec *spec, const HostCall *call, int64_t b, int64_t h, int64_t q, int64_t k);
/* Evaluates a typed expression at one point; s is the scaled score. */
Scalar ag_ast_eval(const Spec *spec, const HostCall *call, const Ast *e, int64_t b, int64_t h, int64_t qpos, int64_t k, double s);

/* What norms over the channels of a row have to know of it, and what has been found out of them. */
typedef struct HostRow {
    const double *branch[SPEC_MAX_BRANCHES]; /* what each branch gives: [Dv] */
    int n;                                   /* norms that are known */
    struct {
        const Ast *e;
        double mean, inverse; /* what is taken off; what is multiplied by then */
    } norm[SPEC_MAX_NORMS];
} HostRow;

/* Where an expression is evaluated. */
typedef struct HostPoint {
    int64_t b, h, q, k, d; /* q: a position */
    double s;              /* the scaled score */
    int64_t Sk;            /* keys of the branch that the expression belongs to */
    const double *branch;  /* what each branch gives at (b, h, q, d); for `output` */
    const double *mean;    /* the mean weight of each branch for the query; likewise */
    const double *key;     /* row k of the keys, [D]; for `weigh` */
    HostRow *row;          /* likewise; NULL where there are no norms */
} HostPoint;
Scalar ag_ast_eval_at(const Spec *spec, const HostCall *call, const Ast *e, const HostPoint *at);

/* ---- reference_prologue.c: the call with q and k as the prologue of the spec makes them, if that is not done yet; ag_reference and ag_naive begin with it.
 * false: out of memory.  *out is to be freed whatever is returned. */
typedef struct PreparedCall {
    HostCall call;
    void *memory[2];
} PreparedCall;
void ag_reference_rows(const Spec *spec, const HostCall *call, bool of_k, double *out); /* those rows, contiguous, not rounded */
bool ag_prepare_call(const Spec *spec, const HostCall *call, PreparedCall *out);
void ag_prepared_free(PreparedCall *p);

/* By how much an element of a row of O moves at most, to first order, if each score is off by up to 1 nat: the largest, over channels, of the sum over the keys of p |v - o|.
 * o [B, Hq, Sq, Dv], sway [B, Hq, Sq].  For softmax without branches and factors of weights.  false: out of memory. */
bool ag_reference_sway(const Spec *spec, const HostCall *call, double *o, double *sway);

/* ---- reference_program.c: the same for specs with branches; ag_reference and ag_naive come here.
 * With several branches lse is 0: there is no such thing. */
bool ag_reference_program(const Spec *spec, const HostCall *call, double *o, double *lse);
/* And, [B, Hq, Sq], by how much `output` of a row moves at most if each branch's result is off by half an ulp of its largest element, as its rounding to the
 * storage type may be. */
bool ag_reference_spread(const Spec *spec, const HostCall *call, double *o, double *lse, double *spread);
bool ag_naive_program(const Spec *spec, const HostCall *call, double *o, double *lse); /* selects as the reference does: by exact importance */
/* The blocks that derive `derive`, a SELECT, gives, whatever call->picks says: picks [B, Hkv or Hq, Sq, count]; and what they were chosen by:
 * importance [B, Hkv or Hq, Sq, ag_block_count], -inf for blocks that cannot be selected and inf for those that always are; may be NULL.
 * false: out of memory. */
bool ag_reference_select(const Spec *spec, const HostCall *call, int derive, int32_t *picks, double *importance);
/* A pool as it is stored: out [B, Hkv, ag_pool_count, ag_source_cols], rounded to the storage type. */
void ag_reference_pool(const Spec *spec, const HostCall *call, int derive, double *out);

/* ---- compare.c: DESIGN's tolerance */
/* How far O may be off, by numerics class: `naive` times the naive error, and `half_ulps` of the row's largest output; LSE relatively by `lse`. */
typedef struct ErrorBound {
    double naive, half_ulps, lse;
    double picks;  /* by how much, in parts of the row's largest importance, a selection may prefer a block that matters less */
    double scores; /* by how much scores may be off, nats */
    const double *
        spread; /* [B, Hq, Sq], of a program: see ag_reference_spread; of another where scores may be off: `scores` times ag_reference_sway; `half_ulps` times that is allowed
                             besides; NULL: nothing */
} ErrorBound;
double ag_half_ulp(DType t, double x);           /* half the distance between neighbouring values of a float type at magnitude x */
ErrorBound ag_error_bound(const char *numerics); /* of a class such as "f32acc-ex2-n64-lazy8" */

typedef struct Comparison {
    bool ok;
    double o_err, o_limit, lse_err, lse_limit; /* worst absolute error of o and its limit there; worst relative error of lse */
    int64_t b, h, q, d;                        /* where o is worst against its limit */
    int64_t unwritten;                         /* elements that still hold the poison */
    char text[256];                            /* one line: what is wrong, where; "" if ok */
} Comparison;
/* Compares a value of a row that the call has with the reference; `limit` is of its relative error, as that of the LSE.  Leaves c as it is unless c is ok and this
 * is not. */
struct Comparison;
void ag_compare_value(struct Comparison *c, HostCall *call, RowValue value, const double *want, double limit);
/* Compares call->o and call->lse with the reference. */
Comparison ag_compare(const Spec *spec, const HostCall *call, ErrorBound bound, const double *o, const double *lse, const double *naive_o);
void ag_poison(const Spec *spec, const HostCall *call); /* fills o and the values of rows with a NaN pattern that no computation yields */
bool ag_is_poison(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
#endif
