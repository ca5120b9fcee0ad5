/* meta.c: launch formulas, and the check that makes metadata from a file safe to use. */
#include <string.h>

#include "jit.h"
#include "op.h"

static int64_t sat_add(int64_t a, int64_t b) {
    int64_t r;
    return __builtin_add_overflow(a, b, &r) ? (a < 0 ? INT64_MIN : INT64_MAX) : r;
}

static int64_t sat_sub(int64_t a, int64_t b) {
    int64_t r;
    return __builtin_sub_overflow(a, b, &r) ? (a < 0 ? INT64_MIN : INT64_MAX) : r;
}

static int64_t sat_mul(int64_t a, int64_t b) {
    int64_t r;
    return __builtin_mul_overflow(a, b, &r) ? ((a < 0) != (b < 0) ? INT64_MIN : INT64_MAX) : r;
}

static int64_t ceil_div(int64_t a, int64_t b) { return b <= 0 ? INT64_MAX : a / b + (a % b > 0); }

static int64_t apply(int32_t op, int64_t a, int64_t b) {
    switch (op) {
    case FO_ADD: return sat_add(a, b);
    case FO_SUB: return sat_sub(a, b);
    case FO_MUL: return sat_mul(a, b);
    case FO_CEILDIV: return ceil_div(a, b);
    case FO_MIN: return a < b ? a : b;
    default: return a > b ? a : b; /* FO_MAX */
    }
}

int64_t ag_formula(const Formula *f, const int64_t *sizes) {
    int64_t stack[LEN(f->op)];
    int n = 0;
    for (int i = 0; i < LEN(f->op) && f->op[i] != FO_END; i++) {
        int32_t op = f->op[i];
        if (op == FO_CONST || op == FO_SIZE) {
            if (++i == LEN(f->op)) return INT64_MAX;
            int32_t x = f->op[i];
            if (op == FO_SIZE && (x < 0 || x >= SZ_COUNT)) return INT64_MAX;
            stack[n++] = op == FO_SIZE ? sizes[x] : x;
        } else {
            if (op < 0 || op > FO_MAX || n < 2) return INT64_MAX;
            n--;
            stack[n - 1] = apply(op, stack[n - 1], stack[n]);
        }
    }
    return n == 1 ? stack[0] : INT64_MAX;
}

static bool name_valid(const char *s, size_t n) { return memchr(s, 0, n) && s[0]; }

static bool tensor_valid(const ProgramMeta *m, const TensorMeta *t) {
    bool ok = name_valid(t->name, sizeof t->name) && t->rank <= ATTNGEN_MOST_DIMS;
    ok = ok && (t->elem_bytes == 1 || t->elem_bytes == 2 || t->elem_bytes == 4 || t->elem_bytes == 8);
    ok = ok && (!t->rows_first || t->rank >= 3);
    for (int i = 0; ok && i < t->rank; i++) ok = t->dim[i] == META_CONSTANT ? t->constant[i] >= 0 : t->dim[i] < META_SIZES + m->nderived;
    return ok;
}

/* TMA's boxes have at most 256 rows. */
static bool tmap_valid(const ProgramMeta *m, const TmapMeta *t) {
    bool ok = t->tensor < m->ntensor && t->box_rows >= 1 && t->box_rows <= 256 && t->panels <= 4 && t->pack >= 1 && t->box_rows % t->pack == 0 &&
              (m->dtype == ATTNGEN_F16 || m->dtype == ATTNGEN_BF16);
    ok = ok && t->box_cols <= 256 && (!t->box_cols || (t->pack == 1 && !t->panels));
    return ok && (t->box_cols ? m->tensor[t->tensor].rank >= 1 : m->tensor[t->tensor].rank == 4) && m->tensor[t->tensor].elem_bytes == 2;
}

static bool slot_valid(const ProgramMeta *m, const Slot *s, uint32_t param_bytes) {
    static const struct {
        uint8_t bytes, align;
    } kind[] = {[SLOT_POINTER] = {8, 8}, [SLOT_STRIDE] = {8, 8},         [SLOT_SIZE] = {4, 4},      [SLOT_FLOAT] = {4, 4}, [SLOT_INT] = {4, 4},
                [SLOT_VEC] = {4, 4},     [SLOT_TMAP] = {TMAP_BYTES, 64}, [SLOT_WORKSPACE] = {8, 8}, [SLOT_LOG2E] = {4, 4}};
    if (s->kind >= LEN(kind) || s->offset % kind[s->kind].align || (uint32_t)s->offset + kind[s->kind].bytes > param_bytes) return false;
    switch (s->kind) {
    case SLOT_POINTER: return s->index < META_KERNEL_TENSORS;
    case SLOT_STRIDE: return s->index < META_KERNEL_TENSORS && s->dim < 4;
    case SLOT_SIZE: return s->index < SZ_COUNT;
    case SLOT_FLOAT:
    case SLOT_LOG2E: return s->index < m->nscalar && !m->scalar[s->index].is_int;
    case SLOT_INT: return s->index < m->nscalar && m->scalar[s->index].is_int;
    case SLOT_TMAP: return s->index < m->ntmap;
    default: return true; /* SLOT_VEC, SLOT_WORKSPACE */
    }
}

static bool kernel_valid(const ProgramMeta *m, const KernelMeta *k) {
    bool ok = name_valid(k->name, sizeof k->name) && k->threads >= 1 && k->threads <= META_THREADS;
    ok = ok && k->shared_bytes <= INT32_MAX && k->param_bytes >= 1 && k->param_bytes <= META_PARAM_BYTES && k->nslot <= META_SLOTS;
    ok = ok && (k->keys == SZ_SK || (k->keys >= META_SIZES && k->keys < META_SIZES + m->nderived));
    ok = ok && (!k->chunk || (k->chunk >= META_SIZES && k->chunk < META_SIZES + m->nderived));
    for (uint32_t i = 0; ok && i < META_KERNEL_TENSORS; i++) ok = k->tensor[i] < m->ntensor || k->tensor[i] == META_NO_TENSOR;
    for (uint32_t i = 0; ok && i < k->nslot; i++) ok = slot_valid(m, &k->slot[i], k->param_bytes);
    return ok;
}

bool ag_meta_valid(const ProgramMeta *m) {
    bool ok = m->nkernel >= 1 && m->nkernel <= META_KERNELS && m->ntensor <= META_TENSORS && m->nscalar <= META_SCALARS;
    ok = ok && m->ntmap <= META_TMAPS && m->nderived <= META_DERIVED && name_valid(m->spec, sizeof m->spec) && name_valid(m->arch, sizeof m->arch);
    for (uint32_t i = 0; ok && i < m->ntensor; i++) ok = tensor_valid(m, &m->tensor[i]);
    for (uint32_t i = 0; ok && i < m->nscalar; i++) ok = name_valid(m->scalar[i].name, sizeof m->scalar[i].name);
    for (uint32_t i = 0; ok && i < m->ntmap; i++) ok = tmap_valid(m, &m->tmap[i]);
    for (uint32_t i = 0; ok && i < m->nkernel; i++) ok = kernel_valid(m, &m->kernel[i]);
    return ok;
}
