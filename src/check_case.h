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
    bool any_dim, any_dtype; /* D, dtype were not given */
} GridWants;
void ag_check_grid(CaseList *out, const GridWants *w);
void ag_check_case_name(char *out, size_t n, const Case *c, const Spec *spec);

/* One tensor of a case. */
typedef struct CaseTensor {
    HostTensor view;
    unsigned char *flat; /* the whole buffer */
    size_t bytes, at;    /* of it; where element 0 is */
    int64_t dim[4];
} CaseTensor;
enum { CASE_TENSORS = 5 };
typedef struct CaseData {
    CaseTensor t[CASE_TENSORS]; /* q, k, v, o, lse */
    HostCall call;
} CaseData;
/* Strides of a tensor whose dim is set, size of the buffer and where in it the tensor lies; index: q, k, v, o, lse.  The buffer is not made. */
void ag_check_place(CaseTensor *t, DType type, TensorLayout layout, int index);
/* Sizes, tensors and scalars of a case; inputs are seeded random numbers rounded to the spec's type.  false: out of memory. */
bool ag_check_data(CaseData *out, const Case *c, const Spec *spec, uint64_t seed);
void ag_check_data_free(CaseData *d);
/* Fills both outputs and what lies around them. */
void ag_check_poison(CaseData *d, const Spec *spec);
/* Whether nothing outside of the outputs was written since ag_check_poison.  Destroys the outputs. */
bool ag_check_surroundings(CaseData *d);
#endif
