/* check_case.h: the cases of `attngen check` (check_grid.c) and their tensors (check_tensor.c). */
#ifndef AG_CHECK_CASE_H
#define AG_CHECK_CASE_H

#include "check.h"
#include "host.h"

/* How the tensors lie in memory.  All are views into larger buffers full of NaN. */
typedef enum TensorLayout {
    LAY_PLAIN,     /* [b, h, s, d], contiguous */
    LAY_TAIL,      /* rows of NaN after the last token of every head */
    LAY_BSHD,      /* [b, s, h, d] */
    LAY_PITCH,     /* NaN between rows */
    LAY_STEP,      /* every second element */
    LAY_BROADCAST, /* one K and V for all batches and heads: strides 0 */
    LAY_REVERSED,  /* inputs: rows from last to first, stride negative */
    LAY_ODD,       /* base address not a multiple of 16 bytes */
    LAY_COUNT
} TensorLayout;
extern const char *const ag_layout_name[LAY_COUNT]; /* check_grid.c */

typedef struct Case {
    int B, Hkv, group, Sq, Sk;
    int64_t offset;
    TensorLayout layout;
    bool large;    /* logits of +-120 */
    int64_t param; /* value of every int parameter; 0: its default */
    bool no_lse;
    int D, Dv, dtype; /* 0: as the options say, else the default */
} Case;

typedef struct CaseList {
    Case *item; /* malloc'ed */
    int n, cap;
    bool oom;
} CaseList;

/* What of a spec decides which cases make sense. */
typedef struct GridWants {
    bool full;
    int group;               /* Hq / Hkv pinned by the spec; 0: any */
    bool int_params;         /* it has int parameters that are bound at launch */
    bool parts;              /* the batch has parts: an even one, of both */
    bool any_dim, any_dtype; /* D, dtype were not given */
    bool
        program; /* it has branches; then keys of a block, rows of a pooled block and their stride, and for how many keys a selection has to choose */
    int block, pool, stride, choice;
} GridWants;
void ag_check_grid(CaseList *out, const GridWants *w);
void ag_check_case_name(char *out, size_t n, const Case *c, const Spec *spec);

/* One tensor of a case. */
typedef struct CaseTensor {
    HostTensor view;
    unsigned char *flat;         /* the whole buffer */
    size_t bytes, at;            /* of it; where element 0 is */
    int64_t dim[INPUT_MAX_DIMS]; /* 1 behind the last */
} CaseTensor;
enum { CASE_TENSORS = 4 + ROWV_COUNT, CASE_MOST = CASE_TENSORS + SPEC_MAX_INPUTS };
typedef struct CaseData {
    CaseTensor t[CASE_MOST]; /* q, k, v, o, lse and other values of a row, inputs */
    int n;
    HostCall call;
} CaseData;
/* Strides of a tensor whose dim is set, size of the buffer and where in it the tensor lies; index: as in CaseData.  The buffer is not made. */
void ag_check_place(CaseTensor *t, DType type, TensorLayout layout, int index);
/* The same for an input of the spec, of any rank. */
void ag_check_place_input(CaseTensor *t, DType type, TensorLayout layout, int rank);
/* Makes one of sizes `size`: seeded numbers in the layout.  hostile: lists have blocks that do not exist, in any order; else they are ascending, of different
 * blocks up to the query's own.  t->flat is malloc'ed.  false: out of memory. */
bool ag_check_input(CaseTensor *t, const Spec *spec, int input, const int64_t size[SZ_COUNT], TensorLayout layout, uint64_t seed, bool hostile);
DType ag_input_type(const Spec *spec, int input); /* of its elements */
/* Sizes, tensors and scalars of a case; inputs are seeded random numbers rounded to the spec's type.  false: out of memory. */
bool ag_check_data(CaseData *out, const Case *c, const Spec *spec, uint64_t seed);
void ag_check_data_free(CaseData *d);
/* Fills both outputs and what lies around them. */
void ag_check_poison(CaseData *d, const Spec *spec);
/* Whether nothing outside of the outputs was written since ag_check_poison.  Destroys the outputs. */
bool ag_check_surroundings(CaseData *d);

/* ---- check_rows.c: rows of q and of k as the prologue makes them, contiguous; none of those that it leaves as they are */
typedef struct MadeRows {
    size_t bytes[2];
    double *want[2]; /* exactly */
    void *got[2];    /* by the kernel */
    void *used[2];   /* what the rest of the program is judged by; at first the exact ones, rounded */
} MadeRows;
bool ag_rows_init(MadeRows *r, const Spec *spec, const HostCall *call); /* false: out of memory; ag_rows_free works then too */
void ag_rows_free(MadeRows *r);
void ag_rows_use(const MadeRows *r, const Spec *spec, HostCall *call); /* those in `used` stand for q and k */
/* Whether what the kernel made is the exact value rounded once, but for what fp32 leaves.  If not, text has one line. */
bool ag_rows_judge(const MadeRows *r, const Spec *spec, const HostCall *call, char *text, size_t n);

/* ---- check_select.c: the selections of a program */
typedef struct Selections {
    int n;                                /* spec->nderive */
    size_t len[SPEC_MAX_DERIVES];         /* elements of each; 0: no selection */
    int32_t *want[SPEC_MAX_DERIVES];      /* by the reference */
    int32_t *got[SPEC_MAX_DERIVES];       /* by the kernel, contiguous */
    int32_t *used[SPEC_MAX_DERIVES];      /* what the rest of the program is judged by; at first what the reference selects */
    double *importance[SPEC_MAX_DERIVES]; /* as of ag_reference_select */
} Selections;
/* Computes the first and the last of them.  false: out of memory; ag_selections_free works then too. */
bool ag_selections_init(Selections *s, const Spec *spec, const HostCall *call);
void ag_selections_free(Selections *s);
/* Whether what the kernel selected is ascending and complete, and of the most important blocks up to `tolerance` in parts of the row's largest
 * importance.  If not, text has one line. */
bool ag_selections_judge(const Selections *s, const Spec *spec, const HostCall *call, double tolerance, char *text, size_t n);
#endif
