/* check.h: `attngen check`: one spec under one schedule, over a grid of shapes, against the double-precision reference.
 * The grid, the data and the comparison are in check.c; the command line only prints. */
#ifndef AG_CHECK_H
#define AG_CHECK_H

#include <stdbool.h>

#include "attngen.h"

/* AUTO: on the GPU where there are one and NVRTC; YES: an error if not. */
typedef enum CheckGpu { CHECK_GPU_AUTO, CHECK_GPU_NO, CHECK_GPU_YES } CheckGpu;

typedef struct CheckCase {
    const char *name;  /* e.g. "B1 H2/1 S65x129 offset 3": shape and what is special about it */
    const char *where; /* "simulator" or "gpu" */
    bool ok;
    bool portable;    /* on the GPU the program's companion ran, as no tensor map describes the tensors */
    const char *text; /* one line: what is wrong, or a figure worth showing; "" if nothing */
    double seconds;
    int index, total; /* index counts from 0; total is known from the first call on */
} CheckCase;

typedef struct CheckOptions {
    attngen_source spec;
    const attngen_source *schedule; /* NULL: the shipped one that fits */
    const attngen_dim *dims;
    size_t ndims;
    uint64_t seed;    /* of the random tensors */
    bool full;        /* the whole grid of the correctness contract instead of the quick one */
    const char *only; /* only the cases whose name contains this text; NULL: all */
    CheckGpu gpu;
    /* May be NULL.  begin is called before each case, with ok, text and seconds empty; done after it. */
    void (*begin)(void *payload, const CheckCase *c);
    void (*done)(void *payload, const CheckCase *c);
    void *payload;
} CheckOptions;

typedef struct CheckReport {
    int passed, failed, portable; /* portable: of all those */
    char program[160];            /* spec, schedule, arch, dims: "causal under mma_d128 for sm_90, D 128, bf16" */
    char device[160];             /* name of the GPU that ran the cases, "" if none did */
    double seconds;
} CheckReport;

/* ATTNGEN_OK: every case passed.  ATTNGEN_E_CHECK: some failed (each was reported to done).  Else the spec, the schedule or the machine: attngen_errmsg. */
attngen_status ag_check(attngen_context *ctx, const CheckOptions *opt, CheckReport *report);

/* visible.c: the share of the B*Hq*Sq*Sk query-key pairs that the spec's mask lets through, from up to 64 query rows at even distances; `set` are
 * scalars given at launch.  Of a spec with branches the sum over them: of listed blocks as many keys as a full list has and the mask lets through.  A mask
 * that reads captured tensors counts as if it hid nothing.  Counts the arithmetic that a kernel has to do. */
attngen_status ag_visible_share(double *out, const attngen_source *spec, const attngen_dim *dims, size_t ndims, const attngen_shape *shape,
                                const attngen_arg *set, size_t nset);
#endif
