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
    if (!s->nbranch && tensor == ag_program_tiles(s, 0)) return DT_I32;
    if (tensor >= ag_program_rows(s, ROWS_Q)) return s->dtype;
    if (tensor >= ag_program_part_lse(s, 0)) return DT_F32; /* and mean weights */
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
    const HostTensor first[TEN_COUNT] = {[TEN_Q] = call->q,
                                         [TEN_K] = call->k,
                                         [TEN_V] = call->v,
                                         [TEN_O] = call->o,
                                         [TEN_LSE] = call->lse,
                                         [TEN_MAX] = call->max,
                                         [TEN_MEAN] = call->mean_weight};
    memset(p, 0, sizeof *p);
    memcpy(p->tensor, first, sizeof first);
    for (int i = 0; i < c->fn.spec->ninput; i++) p->tensor[ag_program_input(i)] = call->input[i];
    for (int i = 0; i < (int)c->meta.ntensor; i++)
        if (c->meta.tensor[i].buffer && !make_buffer(p, c, call->size, i)) return false;
    return true;
}

void ag_program_buffers_free(ProgramBuffers *p) {
    for (int i = 0; i < META_TENSORS; i++) free(p->memory[i]);
}

/* Queries of one launch of a kernel. */
static int64_t chunk_of(const Compilation *c, int part, const HostCall *call) {
    uint8_t chunk = c->meta.kernel[part].chunk;
    int64_t n = chunk ? ag_formula(&c->meta.derived[chunk - META_SIZES], call->size) : call->size[SZ_SQ];
    return n < 1 ? 1 : n;
}

/* The tensor from query `first` on. */
static HostTensor from_query(HostTensor x, const TensorMeta *t, int64_t first) {
    for (int dim = 0; dim < t->rank && x.data; dim++)
        if (t->dim[dim] == SZ_SQ) x.data = (char *)x.data + first * x.stride[dim] * ag_dtype_bytes(x.type);
    return x;
}

/* The call as kernel k has it in the launch whose first query is `first`: its own tensors, its own keys, and the queries of that launch. */
static HostCall call_of(const ProgramBuffers *p, const Compilation *c, int part, const HostCall *call, int64_t first) {
    const Kernel *k = c->part[part].kernel;
    uint8_t keys = c->meta.kernel[part].keys;
    HostCall own = *call;
    HostTensor *const its[TEN_COUNT] = {[TEN_Q] = &own.q,
                                        [TEN_K] = &own.k,
                                        [TEN_V] = &own.v,
                                        [TEN_O] = &own.o,
                                        [TEN_LSE] = &own.lse,
                                        [TEN_MAX] = &own.max,
                                        [TEN_MEAN] = &own.mean_weight};
    for (int i = 0; i < TEN_COUNT + HOST_MORE; i++) {
        int tensor = i < k->ntensor ? k->tensor[i].program : -1;
        *(i < TEN_COUNT ? its[i] : &own.more[i - TEN_COUNT]) =
            tensor < 0 ? (HostTensor){0} : from_query(p->tensor[tensor], &c->meta.tensor[tensor], first);
    }
    int64_t left = call->size[SZ_SQ] - first, chunk = chunk_of(c, part, call);
    own.size[SZ_SQ] = left < chunk ? left : chunk;
    own.size[SZ_OFF] += first;
    if (keys >= META_SIZES) own.size[SZ_SK] = ag_formula(&c->meta.derived[keys - META_SIZES], call->size);
    return own;
}

bool ag_simulate_program(const Compilation *c, const HostCall *call, ProgramBuffers *buffers, Buf *message) {
    bool ok = make_tensors(buffers, c, call);
    const KernelMeta *kernel = c->meta.kernel;
    for (int i = 0, end; i < c->npart; i = end) {
        for (end = i + 1; kernel[i].chunk && end < c->npart && kernel[end].chunk == kernel[i].chunk; end++) continue;
        int64_t first = 0;
        do {
            for (int k = i; ok && k < end; k++) {
                HostCall own = call_of(buffers, c, k, call, first);
                ok = ag_simulate(c->part[k].kernel, &own, message);
            }
            first += chunk_of(c, i, call);
        } while (ok && first < call->size[SZ_SQ]);
    }
    return ok;
}
