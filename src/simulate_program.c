/* simulate_program.c: the kernels of a program one after the other on the simulator, with its buffers in host memory. */
#include <stdlib.h>
#include <string.h>

#include "program.h"

static int64_t extent(const ProgramMeta *m, const int64_t *size, const TensorMeta *t, int dim) {
    if (t->dim[dim] == META_CONSTANT) return t->constant[dim];
    return t->dim[dim] < META_SIZES ? size[t->dim[dim]] : ag_formula(&m->derived[t->dim[dim] - META_SIZES], size);
}

static DType type_of(const Spec *s, int tensor) {
    int derive = tensor - ag_program_derive(s, 0);
    if (tensor >= ag_program_part_lse(s, 0)) return DT_F32;
    if (tensor >= ag_program_part(s, 0)) return s->dtype;
    if (tensor >= ag_program_chunks(s, 0)) return DT_I32;
    if (tensor >= ag_program_lse(s, 0)) return DT_F32;
    return derive >= 0 && derive < s->nderive && s->derive[derive].kind == DERIVE_SELECT ? DT_I32 : s->dtype;
}

/* Room for a buffer, full of NaN, or of -1. */
static bool make_buffer(ProgramBuffers *p, const Compilation *c, const int64_t *size, int tensor) {
    const TensorMeta *t = &c->meta.tensor[tensor];
    HostTensor *h = &p->tensor[tensor];
    int64_t n = 1;
    h->type = type_of(c->fn.spec, tensor);
    for (int dim = t->rank - 1; dim >= 0; dim--) {
        h->stride[dim] = n;
        if (__builtin_mul_overflow(n, extent(&c->meta, size, t, dim), &n)) return false;
    }
    if (__builtin_mul_overflow(n, (int64_t)ag_dtype_bytes(h->type), &n)) return false;
    h->data = p->memory[tensor] = malloc((size_t)n + 1);
    if (h->data) memset(h->data, 0xFF, (size_t)n);
    return h->data != NULL;
}

static bool make_tensors(ProgramBuffers *p, const Compilation *c, const HostCall *call) {
    const HostTensor five[TEN_COUNT] = {[TEN_Q] = call->q, [TEN_K] = call->k, [TEN_V] = call->v, [TEN_O] = call->o, [TEN_LSE] = call->lse};
    memset(p, 0, sizeof *p);
    memcpy(p->tensor, five, sizeof five);
    for (int i = 0; i < c->fn.spec->ninput; i++) p->tensor[ag_program_input(i)] = call->input[i];
    for (int i = 0; i < (int)c->meta.ntensor; i++)
        if (c->meta.tensor[i].buffer && !make_buffer(p, c, call->size, i)) return false;
    return true;
}

void ag_program_buffers_free(ProgramBuffers *p) {
    for (int i = 0; i < META_TENSORS; i++) free(p->memory[i]);
}

static HostTensor tensor_of(const ProgramBuffers *p, const Kernel *k, int i) {
    return i < k->ntensor && k->tensor[i].program >= 0 ? p->tensor[k->tensor[i].program] : (HostTensor){0};
}

/* The call as kernel k has it: its own tensors, and its own keys. */
static HostCall call_of(const ProgramBuffers *p, const Compilation *c, int part, const HostCall *call) {
    const Kernel *k = c->part[part].kernel;
    uint8_t keys = c->meta.kernel[part].keys;
    HostCall own = *call;
    own.q = tensor_of(p, k, TEN_Q);
    own.k = tensor_of(p, k, TEN_K);
    own.v = tensor_of(p, k, TEN_V);
    own.o = tensor_of(p, k, TEN_O);
    own.lse = tensor_of(p, k, TEN_LSE);
    for (int i = 0; i < HOST_MORE; i++) own.more[i] = tensor_of(p, k, TEN_COUNT + i);
    if (keys >= META_SIZES) own.size[SZ_SK] = ag_formula(&c->meta.derived[keys - META_SIZES], call->size);
    return own;
}

bool ag_simulate_program(const Compilation *c, const HostCall *call, ProgramBuffers *buffers, Buf *message) {
    bool ok = make_tensors(buffers, c, call);
    for (int i = 0; ok && i < c->npart; i++) {
        HostCall own = call_of(buffers, c, i, call);
        ok = ag_simulate(c->part[i].kernel, &own, message);
    }
    return ok;
}
