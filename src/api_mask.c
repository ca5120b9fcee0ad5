/* api_mask.c: the mask of a call apart from its launches: the tile map is made once and holds for every launch under the same mask, as in the layers of a model. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

/* What the kernels that make the map read: a bit for each tensor and scalar of the program. */
typedef struct Reads {
    uint64_t tensors, scalars;
} Reads;
static Reads reads_of(const ProgramMeta *m) {
    Reads r = {0, 0};
    for (uint32_t i = 0; i < m->nkernel; i++) {
        const KernelMeta *k = &m->kernel[i];
        for (uint32_t s = 0; k->mask && s < k->nslot; s++) {
            const Slot *x = &k->slot[s];
            bool scalar = x->kind == SLOT_FLOAT || x->kind == SLOT_INT || x->kind == SLOT_LOG2E;
            int tensor = x->kind == SLOT_POINTER ? k->tensor[x->index] : META_NO_TENSOR;
            if (scalar && !m->scalar[x->index].bound) r.scalars |= (uint64_t)1 << x->index;
            if (tensor != META_NO_TENSOR && !m->tensor[tensor].buffer) r.tensors |= (uint64_t)1 << tensor;
        }
    }
    return r;
}

attngen_status attngen_mask_make(attngen_mask **out, const attngen_call *call, const attngen_arg *args, size_t nargs, void *workspace,
                                 size_t workspace_bytes, void *stream) {
    BoundArgs b;
    Err e;
    if (!out) return ag_launch_fail(ATTNGEN_E_INVALID_ARG, "out is NULL");
    *out = NULL;
    attngen_status s = ag_call_check(call, workspace, workspace_bytes);
    if (s != ATTNGEN_OK) return s;
    const Runner runner = ag_call_runner(call, NULL);
    const ProgramMeta *m = &runner.program->lowered->meta;
    Reads reads = reads_of(m);
    s = ag_args_bind_some(&b, m, call->size, args, nargs, reads.tensors, &e);
    if (s != ATTNGEN_OK) return ag_launch_fail(s, "%s", e.text);
    ag_args_place(&b, workspace);
    s = ag_launch(runner.loaded, &b, LAUNCH_MASK, call->device, stream, &e);
    if (s != ATTNGEN_OK) return ag_launch_fail(s, "%s", e.text);
    attngen_mask *mask = malloc(sizeof *mask);
    if (!mask) return ag_launch_fail(ATTNGEN_E_NOMEM, "out of memory");
    *mask = (attngen_mask){call, runner, workspace, workspace_bytes, reads.tensors, reads.scalars, b};
    *out = mask;
    return ATTNGEN_OK;
}

void attngen_mask_free(attngen_mask *mask) { free(mask); }

/* ---- arguments of a launch under the mask */

typedef struct Args {
    attngen_arg a[META_TENSORS + META_SCALARS];
    size_t n;
} Args;

static const attngen_arg *given(const attngen_arg *args, size_t nargs, const char *name) {
    for (size_t i = 0; i < nargs; i++)
        if (args[i].name && strcmp(args[i].name, name) == 0) return &args[i];
    return NULL;
}

/* Tensor i of the mask is what the launch has, or is not among what it has. */
static attngen_status add_tensor(Args *all, const attngen_mask *mask, int i, const attngen_arg *args, size_t nargs) {
    const TensorMeta *t = &mask->b.meta->tensor[i];
    const attngen_arg *a = given(args, nargs, t->name);
    attngen_arg own = {.name = t->name, .data = mask->b.data[i]};
    memcpy(own.stride, mask->b.stride[i], sizeof own.stride);
    if (!a) {
        all->a[all->n++] = own;
        return ATTNGEN_OK;
    }
    bool same = a->data == own.data && memcmp(a->stride, own.stride, t->rank * sizeof own.stride[0]) == 0;
    if (same) return ATTNGEN_OK;
    return ag_launch_fail(ATTNGEN_E_INVALID_ARG, "%s is not the tensor that the mask was made of: leave it out, or make a mask of this one", t->name);
}

static attngen_status add_scalar(Args *all, const attngen_mask *mask, int i, const attngen_arg *args, size_t nargs) {
    const char *name = mask->b.meta->scalar[i].name;
    const attngen_arg *a = given(args, nargs, name);
    if (!a) all->a[all->n++] = (attngen_arg){.name = name, .scalar = mask->b.scalar[i]};
    if (!a || a->scalar == mask->b.scalar[i]) return ATTNGEN_OK;
    return ag_launch_fail(ATTNGEN_E_INVALID_ARG, "%s is %g, and the mask was made for %g: leave it out, or make a mask for this one", name, a->scalar,
                          mask->b.scalar[i]);
}

attngen_status attngen_mask_launch(const attngen_mask *mask, const attngen_arg *args, size_t nargs, void *stream) {
    Args all;
    attngen_status s = ATTNGEN_OK;
    if (!mask) return ag_launch_fail(ATTNGEN_E_INVALID_ARG, "mask is NULL");
    if (nargs && !args) return ag_launch_fail(ATTNGEN_E_INVALID_ARG, "args is null and nargs is %zu", nargs);
    if (nargs > META_TENSORS) return ag_launch_fail(ATTNGEN_E_INVALID_ARG, "nargs is %zu: no program takes so many", nargs);
    all.n = 0;
    for (; all.n < nargs; all.n++) all.a[all.n] = args[all.n];
    for (int i = 0; s == ATTNGEN_OK && i < (int)mask->b.meta->ntensor; i++)
        if (mask->tensors >> i & 1) s = add_tensor(&all, mask, i, args, nargs);
    for (int i = 0; s == ATTNGEN_OK && i < (int)mask->b.meta->nscalar; i++)
        if (mask->scalars >> i & 1) s = add_scalar(&all, mask, i, args, nargs);
    return s == ATTNGEN_OK ? ag_call_launch(mask->call, &mask->runner, all.a, all.n, LAUNCH_REST, mask->workspace, mask->bytes, stream) : s;
}
