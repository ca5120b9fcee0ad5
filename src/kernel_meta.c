/* kernel_meta.c: Tile IR -> what the runtime needs to launch the kernel. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "program.h"

static void set_name(char out[META_NAME], Str name) { snprintf(out, META_NAME, "%.*s", STRF(name)); }

/* Appends node r in postfix; the launch formula uses sizes, constants and a few ops only. */
static int formula(const Kernel *k, Ref r, Formula *f, int n) {
    static const struct {
        Op op;
        FormulaOp f;
    } of[] = {{OP_ADD, FO_ADD}, {OP_SUB, FO_SUB}, {OP_MUL, FO_MUL}, {OP_CEILDIV, FO_CEILDIV}, {OP_MIN, FO_MIN}, {OP_MAX, FO_MAX}};
    const Node *x = &k->nodes.n[r];
    if (x->op == OP_CONST || x->op == OP_SIZE) {
        assert(n + 3 < LEN(f->op));
        f->op[n++] = x->op == OP_CONST ? FO_CONST : FO_SIZE;
        f->op[n++] = x->op == OP_CONST ? (int32_t)x->value.u.i : x->index;
        return n;
    }
    n = formula(k, x->arg[1], f, formula(k, x->arg[0], f, n));
    for (int i = 0; i < LEN(of); i++)
        if (of[i].op == x->op) {
            assert(n + 1 < LEN(f->op));
            f->op[n++] = (int32_t)of[i].f;
            return n;
        }
    assert(0 && "an op that launch formulas do not have");
    return n;
}

/* ---- tensors of the program */

static void set_tensor(TensorMeta *m, Str name, DType type, int rank) {
    *m = (TensorMeta){.rank = (uint8_t)rank, .elem_bytes = (uint8_t)ag_dtype_bytes(type)};
    set_name(m->name, name);
}
static void set_constant(TensorMeta *m, int dim, int64_t n) {
    m->dim[dim] = META_CONSTANT;
    m->constant[dim] = (int32_t)n;
}
static void set_dims(TensorMeta *m, Size d0, Size d1, Size d2) {
    m->dim[0] = (uint8_t)d0;
    m->dim[1] = (uint8_t)d1;
    m->dim[2] = (uint8_t)d2;
}

/* The size that `f` computes, which may be there already. */
static uint8_t derived(ProgramMeta *m, const Formula *f) {
    for (uint32_t i = 0; i < m->nderived; i++)
        if (memcmp(&m->derived[i], f, sizeof *f) == 0) return (uint8_t)(META_SIZES + i);
    assert(m->nderived < META_DERIVED);
    m->derived[m->nderived] = *f;
    return (uint8_t)(META_SIZES + m->nderived++);
}

/* Rows of a pool: see ag_pool_count. */
static uint8_t pooled_rows(ProgramMeta *m, const Derive *x) {
    Formula all = {{FO_SIZE, SZ_SK, FO_CONST, x->stride.n, FO_CEILDIV}},
            whole = {{FO_SIZE, SZ_SK, FO_CONST, x->size.n - 1, FO_SUB, FO_CONST, x->stride.n, FO_CEILDIV, FO_CONST, 0, FO_MAX}};
    return derived(m, x->partial ? &all : &whole);
}

static uint8_t rows_of_lists(ProgramMeta *m, int per) {
    Formula f = {{FO_SIZE, SZ_SQ, FO_CONST, per, FO_CEILDIV}};
    return per == 1 ? SZ_SQ : derived(m, &f);
}

static void set_input(ProgramMeta *m, TensorMeta *t, const Spec *spec, const Input *x) {
    static const Size of_axis[AX_COUNT] = {[AX_B] = SZ_B, [AX_H] = SZ_HQ, [AX_G] = SZ_HKV, [AX_Q] = SZ_SQ, [AX_K] = SZ_SK, [AX_D] = SZ_D};
    set_tensor(t, x->name, x->storage ? spec->dtype : x->type, x->rank);
    for (int i = 0; i < x->rank; i++) {
        const Dim *d = &x->dim[i];
        if (d->kind == DIM_CONST)
            set_constant(t, i, d->n.n);
        else if (d->axis == AX_Q)
            t->dim[i] = rows_of_lists(m, x->per);
        else
            t->dim[i] = (uint8_t)(d->axis == AX_D && x->values ? SZ_DV : of_axis[d->axis]);
    }
}

static void set_derive(ProgramMeta *m, TensorMeta *t, const Spec *spec, const Derive *x) {
    bool pool = x->kind == DERIVE_POOL;
    set_tensor(t, x->name, pool ? spec->dtype : DT_I32, 4);
    set_dims(t, SZ_B, !pool && x->per_head ? SZ_HQ : SZ_HKV, SZ_SQ);
    if (pool) t->dim[2] = pooled_rows(m, x);
    set_constant(t, 3, pool ? ag_source_cols(spec, x->source) : x->count.n);
}

/* Appends `op n` to a formula that has ended. */
static Formula with(Formula f, FormulaOp op, int32_t n) {
    int at = 0;
    while (f.op[at] != FO_END) at += f.op[at] == FO_CONST || f.op[at] == FO_SIZE ? 2 : 1;
    assert(at + 3 <= LEN(f.op));
    f.op[at] = FO_CONST, f.op[at + 1] = n, f.op[at + 2] = (int32_t)op;
    return f;
}

/* Queries of a launch of the kernels that visit a branch block by block. */
static Formula chunk_of(Kernel *const *kernel, int n, const Spec *spec, int branch) {
    Formula f = {{FO_SIZE, SZ_SQ}};
    for (int i = 0; i < n; i++) {
        const Kernel *k = kernel[i];
        if (k->kind != KERNEL_GATHER || k->tensor[TEN_O].program != ag_program_part(spec, branch) || !k->chunk) continue;
        f = (Formula){{0}};
        formula(k, k->chunk, &f, 0);
    }
    return f;
}

/* The buffers of the inverted lists of a branch, and of what their entries give; of one without lists for each query they have no elements. */
static void set_inversion(ProgramMeta *m, Arena *a, const Spec *spec, int branch, Formula chunk) {
    const Branch *b = &spec->branch[branch];
    TensorMeta *chunks = &m->tensor[ag_program_chunks(spec, branch)], *first = &m->tensor[ag_program_first(spec, branch)];
    TensorMeta *entry = &m->tensor[ag_program_entry(spec, branch)];
    set_tensor(chunks, ag_fmt(a, "chunks of %.*s", STRF(b->name)), DT_I32, 1);
    set_tensor(first, ag_fmt(a, "first of %.*s", STRF(b->name)), DT_I32, 1);
    set_tensor(entry, ag_fmt(a, "entry of %.*s", STRF(b->name)), DT_I32, 1);
    TensorMeta *part = &m->tensor[ag_program_part(spec, branch)], *lse = &m->tensor[ag_program_part_lse(spec, branch)];
    set_tensor(part, ag_fmt(a, "parts of %.*s", STRF(b->name)), spec->dtype, 1);
    set_tensor(lse, ag_fmt(a, "LSEs of parts of %.*s", STRF(b->name)), DT_F32, 1);
    chunks->dim[0] = first->dim[0] = entry->dim[0] = part->dim[0] = lse->dim[0] = META_CONSTANT;
    if (b->blocks.kind == FROM_NONE || b->per.n != 1) return;
    Formula columns = {{FO_SIZE, SZ_SK, FO_CONST, b->block.n, FO_CEILDIV, FO_CONST, 1, FO_ADD}},
            entries = with(chunk, FO_MUL, ag_list_slots(spec, b)), chunk_count = with(chunk, FO_CEILDIV, INVERT_CHUNK);
    Size heads = b->per_head ? SZ_HQ : SZ_HKV;
    chunks->rank = 4;
    first->rank = entry->rank = 3;
    set_dims(chunks, SZ_B, heads, SZ_SQ);
    set_dims(first, SZ_B, heads, SZ_SQ);
    set_dims(entry, SZ_B, heads, SZ_SQ);
    chunks->dim[2] = derived(m, &chunk_count);
    chunks->dim[3] = first->dim[2] = derived(m, &columns);
    entry->dim[2] = derived(m, &entries);
    part->rank = 4;
    lse->rank = 3;
    set_dims(part, SZ_B, SZ_HQ, SZ_SQ);
    set_dims(lse, SZ_B, SZ_HQ, SZ_SQ);
    part->dim[2] = lse->dim[2] = entry->dim[2];
    part->dim[3] = SZ_DV;
    part->rows_first = lse->rows_first = 1; /* the heads of an entry are written together */
}

/* The map of key tiles that kernel k makes. */
static void set_tiles(ProgramMeta *m, const Kernel *k) {
    int number = k->tensor[k->tiles].program;
    TensorMeta *t = &m->tensor[number];
    Formula all = {{0}};
    formula(k, k->tensor[k->tiles].extent[0], &all, 0);
    set_tensor(t, STR("tiles"), DT_I32, 1);
    t->dim[0] = derived(m, &all);
    t->buffer = 1;
    if (number >= (int)m->ntensor) m->ntensor = (uint32_t)number + 1;
}

/* What the kernels of a program hand on to each other. */
static void set_branch_tensors(ProgramMeta *m, const Spec *spec, const Kernel *k, Kernel *const *kernel, int n) {
    for (int i = 0; i < spec->nderive; i++) set_derive(m, &m->tensor[ag_program_derive(spec, i)], spec, &spec->derive[i]);
    for (int i = 0; i < spec->nbranch; i++) {
        if (i > 0) {
            m->tensor[ag_program_result(spec, i)] = m->tensor[TEN_O];
            set_name(m->tensor[ag_program_result(spec, i)].name, spec->branch[i].name);
        }
        TensorMeta *lse = &m->tensor[ag_program_lse(spec, i)];
        *lse = m->tensor[TEN_LSE];
        set_name(lse->name, ag_fmt(k->arena, "lse of %.*s", STRF(spec->branch[i].name)));
        TensorMeta *mean = &m->tensor[ag_program_mean(spec, i)];
        *mean = m->tensor[TEN_MEAN];
        set_name(mean->name, ag_fmt(k->arena, "mean weight of %.*s", STRF(spec->branch[i].name)));
        set_inversion(m, k->arena, spec, i, chunk_of(kernel, n, spec, i));
    }
    for (uint32_t i = (uint32_t)ag_program_input(spec->ninput); i < m->ntensor; i++) m->tensor[i].buffer = 1;
}

static void set_tensors(ProgramMeta *m, const Spec *spec, const Kernel *k, Kernel *const *kernel, int n) {
    for (int i = 0; i < TEN_COUNT; i++) {
        const KernelTensor *t = &k->tensor[i];
        set_tensor(&m->tensor[i], ag_str(t->name), t->type, t->rank);
        m->tensor[i].optional = t->optional;
        m->tensor[i].output = t->output;
        set_dims(&m->tensor[i], SZ_B, t->heads, t->rows);
        m->tensor[i].dim[3] = i == TEN_V || i == TEN_O ? SZ_DV : SZ_D;
    }
    m->ntensor = (uint32_t)ag_program_count(spec);
    for (int i = 0; i < spec->ninput; i++) set_input(m, &m->tensor[ag_program_input(i)], spec, &spec->input[i]);
    for (int of_k = 0; of_k < 2 && ag_has_prologue(spec); of_k++) {
        TensorMeta *rows = &m->tensor[ag_program_rows(spec, of_k ? ROWS_K : ROWS_Q)];
        *rows = m->tensor[of_k ? TEN_K : TEN_Q];
        set_name(rows->name, ag_str(of_k ? "rows of k" : "rows of q"));
        set_constant(rows, 3, spec->D + ag_dot_channels(spec));
        rows->buffer = 1;
    }
    if (spec->nbranch) set_branch_tensors(m, spec, k, kernel, n);
    for (int i = 0; i < n; i++)
        if (kernel[i]->kind == KERNEL_CLASSIFY) set_tiles(m, kernel[i]);
}

/* What no kernel takes is no argument, or has no room in the workspace. */
static void drop_unused(ProgramMeta *m, const Spec *spec) {
    for (uint32_t i = spec->nbranch ? 0 : TEN_LSE; i < m->ntensor; i++) {
        bool used = false;
        for (uint32_t k = 0; k < m->nkernel; k++) used |= memchr(m->kernel[k].tensor, (int)i, META_KERNEL_TENSORS) != NULL;
        if (used) continue;
        m->tensor[i].buffer = 1;
        m->tensor[i].optional = m->tensor[i].output = m->tensor[i].rows_first = 0;
        m->tensor[i].rank = 1;
        set_constant(&m->tensor[i], 0, 0);
    }
}

static void set_scalars(ProgramMeta *out, const Spec *spec) {
    out->nscalar = (uint32_t)spec->nparam;
    for (int i = 0; i < spec->nparam; i++) {
        const Param *p = &spec->param[i];
        ScalarMeta *m = &out->scalar[i];
        set_name(m->name, p->name);
        m->is_int = p->type == T_INT;
        m->positive = p->positive;
        m->part = p->part;
        m->bound = p->bound;
        m->deflt = p->type == T_FLOAT ? p->value.u.f : (double)p->value.u.i;
    }
}

/* ---- kernels */

static uint8_t keys_of(ProgramMeta *m, const Kernel *k) { return k->pool ? pooled_rows(m, k->pool) : SZ_SK; }

static void set_kernel(ProgramMeta *out, KernelMeta *m, const Kernel *k) {
    set_name(m->name, k->name);
    m->threads = (uint32_t)k->threads;
    m->shared_bytes = (uint32_t)k->shared_bytes;
    m->param_bytes = (uint32_t)k->param_bytes;
    m->nslot = (uint32_t)k->nslot;
    m->per_sm = k->persistent ? (uint32_t)k->per_sm : 0;
    m->keys = keys_of(out, k);
    m->counter = k->counter;
    m->mask = k->kind == KERNEL_CLASSIFY;
    if (k->chunk) {
        Formula chunk = {{0}};
        formula(k, k->chunk, &chunk, 0);
        m->chunk = derived(out, &chunk);
    }
    formula(k, k->blocks, &m->blocks, 0);
    memset(m->tensor, META_NO_TENSOR, sizeof m->tensor);
    for (int i = 0; i < k->ntensor; i++)
        if (k->tensor[i].used && k->tensor[i].program >= 0) m->tensor[i] = (uint8_t)k->tensor[i].program;
    memcpy(m->slot, k->slot, sizeof k->slot);
    for (int i = 0; i < k->nslot; i++)
        if (m->slot[i].kind == SLOT_TMAP) m->slot[i].index = (uint16_t)(m->slot[i].index + out->ntmap);
    for (int i = 0; i < k->ntmap; i++) {
        assert(out->ntmap < META_TMAPS);
        TmapMeta *t = &out->tmap[out->ntmap++];
        *t = k->tmap[i];
        t->tensor = (uint8_t)k->tensor[t->tensor].program;
    }
}

void ag_program_meta(ProgramMeta *out, const Spec *spec, Kernel *const *kernel, int n) {
    memset(out, 0, sizeof *out);
    set_name(out->spec, spec->name);
    snprintf(out->arch, sizeof out->arch, "%s", kernel[0]->target->name);
    out->group = (uint32_t)spec->group;
    out->D = spec->D;
    out->Dv = spec->Dv;
    out->dtype = spec->dtype == DT_F16 ? ATTNGEN_F16 : ATTNGEN_BF16;
    const Kernel *first = kernel[0];
    for (int i = 0; i < n && first->kind != KERNEL_ATTEND; i++) first = kernel[i];
    set_tensors(out, spec, first, kernel, n);
    set_scalars(out, spec);
    assert(n <= META_KERNELS);
    for (int i = 0; i < n; i++) set_kernel(out, &out->kernel[out->nkernel++], kernel[i]);
    drop_unused(out, spec);
}
