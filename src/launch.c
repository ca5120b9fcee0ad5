/* launch.c: from named arguments to the argument struct of a kernel.  No allocation, no lock, no look at the environment. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "jit.h"
#include "op.h"

#define LL(x) ((long long)(x))

/* Positions and their distances are computed in 32 bits: with these limits every position is below AG_POSITION_LIMIT and every distance within 2^30, and the
 * compiler relies on that. */
enum { MAX_LENGTH = 1 << 29, MAX_OFFSET = 1 << 29, MAX_POSITION = 1 << 29 };

/* A persistent block counts tiles in 32 bits, and past the last one by at most as many as there are blocks. */
enum { MAX_TILES = INT32_MAX - (1 << 20) };

enum { PIECE = 16 /* bytes moved at once */ };

/* Letters of the axes behind the sizes, as specs and attngen.h write them. */
static const char axis_letter[SZ_COUNT] = {
    [SZ_B] = 'b', [SZ_HQ] = 'h', [SZ_HKV] = 'g', [SZ_SQ] = 'q', [SZ_SK] = 'k', [SZ_OFF] = '?', [SZ_D] = 'd', [SZ_DV] = 'd'};

/* ---- sizes */

static attngen_status check_heads(const ProgramMeta *m, const int64_t *size, Err *e) {
    int64_t hq = size[SZ_HQ], hkv = size[SZ_HKV];
    if (hkv ? hq % hkv != 0 : hq != 0) {
        return ag_err(e, ATTNGEN_E_INVALID_ARG, "Hq is %lld and Hkv is %lld: Hq must be a multiple of Hkv", LL(hq), LL(hkv));
    }
    if (m->group && hq != (int64_t)m->group * hkv) {
        return ag_err(e, ATTNGEN_E_INVALID_ARG, "Hq is %lld and Hkv is %lld: %s is compiled for %u query heads per KV head, so Hq must be %lld",
                      LL(hq), LL(hkv), m->spec, m->group, LL(m->group * hkv));
    }
    return ATTNGEN_OK;
}

static attngen_status check_positions(const int64_t *size, Err *e) {
    int64_t off = size[SZ_OFF];
    if (off < -MAX_OFFSET || off > MAX_OFFSET) {
        return ag_err(e, ATTNGEN_E_INVALID_ARG, "off is %lld: must be from -%d to %d", LL(off), MAX_OFFSET, MAX_OFFSET);
    }
    if (off + size[SZ_SQ] > MAX_POSITION) {
        return ag_err(e, ATTNGEN_E_INVALID_ARG, "off is %lld and Sq is %lld: their sum must be at most %d", LL(off), LL(size[SZ_SQ]), MAX_POSITION);
    }
    return ATTNGEN_OK;
}

static int64_t blocks_of(const ProgramMeta *m, const KernelMeta *k, const int64_t *size) {
    int64_t own[META_SIZES];
    memcpy(own, size, sizeof own);
    if (k->keys >= META_SIZES) own[SZ_SK] = ag_formula(&m->derived[k->keys - META_SIZES], size);
    return ag_formula(&k->blocks, own);
}

/* Extents that follow from the sizes: kernels count in 32 bits. */
static attngen_status check_derived(const ProgramMeta *m, const int64_t *size, Err *e) {
    for (uint32_t i = 0; i < m->ntensor; i++) {
        const TensorMeta *t = &m->tensor[i];
        for (int dim = 0; dim < t->rank; dim++) {
            if (t->dim[dim] < META_SIZES || t->dim[dim] == META_CONSTANT) continue;
            int64_t x = ag_formula(&m->derived[t->dim[dim] - META_SIZES], size);
            if (x > INT32_MAX)
                return ag_err(e, ATTNGEN_E_INVALID_ARG,
                              "%s would have %lld elements in dim %d with Sq %lld, Sk %lld: the most that it can have is %d", t->name, LL(x), dim,
                              LL(size[SZ_SQ]), LL(size[SZ_SK]), INT32_MAX);
        }
    }
    return ATTNGEN_OK;
}

attngen_status ag_sizes_check(const ProgramMeta *m, const int64_t *size, Err *e) {
    static const struct {
        uint8_t size;
        int max;
    } row[] = {{SZ_B, INT32_MAX}, {SZ_HQ, INT32_MAX}, {SZ_HKV, INT32_MAX}, {SZ_SQ, MAX_LENGTH}, {SZ_SK, MAX_LENGTH}};
    for (int i = 0; i < LEN(row); i++) {
        int64_t x = size[row[i].size];
        if (x >= 0 && x <= row[i].max) continue;
        return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s is %lld: must be from 0 to %d", ag_size_name[row[i].size], LL(x), row[i].max);
    }
    if (size[SZ_D] != m->D || size[SZ_DV] != m->Dv) {
        return ag_err(e, ATTNGEN_E_INVALID_ARG, "D is %lld and Dv is %lld: %s is compiled for %d and %d", LL(size[SZ_D]), LL(size[SZ_DV]), m->spec,
                      m->D, m->Dv);
    }
    attngen_status s = check_positions(size, e);
    if (s == ATTNGEN_OK) s = check_heads(m, size, e);
    if (s == ATTNGEN_OK) s = check_derived(m, size, e);
    for (uint32_t i = 0; s == ATTNGEN_OK && i < m->nkernel; i++) {
        int64_t blocks = blocks_of(m, &m->kernel[i], size);
        if (blocks >= 0 && blocks <= (m->kernel[i].per_sm ? MAX_TILES : INT32_MAX)) continue;
        if (m->kernel[i].per_sm)
            s = ag_err(e, ATTNGEN_E_INVALID_ARG, "%s would have %lld tiles with B %lld, Hq %lld, Sq %lld: the most that it can have is %d",
                       m->kernel[i].name, LL(blocks), LL(size[SZ_B]), LL(size[SZ_HQ]), LL(size[SZ_SQ]), MAX_TILES);
        else
            s = ag_err(e, ATTNGEN_E_INVALID_ARG, "%s would need %lld blocks with B %lld, Hq %lld, Sq %lld: the most that a launch can have is %d",
                       m->kernel[i].name, LL(blocks), LL(size[SZ_B]), LL(size[SZ_HQ]), LL(size[SZ_SQ]), INT32_MAX);
    }
    return s;
}

/* ---- names and values */

static int find_tensor(const ProgramMeta *m, const char *name) {
    for (uint32_t i = 0; i < m->ntensor; i++) {
        if (!m->tensor[i].buffer && !strcmp(m->tensor[i].name, name)) return (int)i;
    }
    return -1;
}

static int find_scalar(const ProgramMeta *m, const char *name) {
    for (uint32_t i = 0; i < m->nscalar; i++) {
        if (!strcmp(m->scalar[i].name, name)) return (int)i;
    }
    return -1;
}

static attngen_status unknown_name(const ProgramMeta *m, const char *name, Err *e) {
    char known[1024] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < m->ntensor + m->nscalar && n < sizeof known; i++) {
        const char *k = i < m->ntensor ? m->tensor[i].name : m->scalar[i - m->ntensor].name;
        if (i < m->ntensor && m->tensor[i].buffer) continue;
        n += (size_t)snprintf(known + n, sizeof known - n, " %s", k);
    }
    return ag_err(e, ATTNGEN_E_INVALID_ARG, "unknown argument '%.64s': %s takes%s", name, m->spec, known);
}

static attngen_status set_scalar(BoundArgs *b, int i, const attngen_arg *a, Err *e) {
    const ScalarMeta *s = &b->meta->scalar[i];
    double x = a->scalar;
    if (a->data) return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s is a scalar: its data must be null", s->name);
    if (!isfinite(x)) return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s is %g: must be finite", s->name, x);
    if (s->positive && x <= 0) return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s is %g: must be greater than 0", s->name, x);
    if (s->bound) return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s was bound to %g when the program was compiled", s->name, s->deflt);
    if (s->is_int && (x != floor(x) || fabs(x) > PARAM_INT_MAX)) {
        return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s is %.17g: must be a whole number from -%d to %d", s->name, x, PARAM_INT_MAX, PARAM_INT_MAX);
    }
    if (!s->is_int && !isfinite((float)x)) return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s is %g: beyond the range of float", s->name, x);
    /* kernels multiply it with log2(e) and a row's maximum: far from where that underflows or overflows */
    if (s->positive && !(x >= 0x1p-100 && x <= 0x1p100))
        return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s is %g: must be from 2^-100 to 2^100", s->name, x);
    b->scalar[i] = x;
    return ATTNGEN_OK;
}

/* required: a bit for each tensor that must be there. */
static attngen_status set_args(BoundArgs *b, const attngen_arg *args, size_t nargs, uint64_t required, Err *e) {
    uint64_t tensors = 0, scalars = 0; /* bit per one that is given */
    if (nargs && !args) return ag_err(e, ATTNGEN_E_INVALID_ARG, "args is null and nargs is %zu", nargs);
    for (size_t i = 0; i < nargs; i++) {
        const attngen_arg *a = &args[i];
        if (!a->name) return ag_err(e, ATTNGEN_E_INVALID_ARG, "argument %zu has no name", i);
        int t = find_tensor(b->meta, a->name), s = t < 0 ? find_scalar(b->meta, a->name) : -1;
        if (t < 0 && s < 0) return unknown_name(b->meta, a->name, e);
        uint64_t bit = (uint64_t)1 << (t >= 0 ? t : s), *given = t >= 0 ? &tensors : &scalars;
        if (*given & bit) return ag_err(e, ATTNGEN_E_INVALID_ARG, "argument '%s' is given twice", a->name);
        *given |= bit;
        attngen_status st = s >= 0 ? set_scalar(b, s, a, e) : ATTNGEN_OK;
        if (st != ATTNGEN_OK) return st;
        if (t < 0) continue;
        b->data[t] = a->data;
        memcpy(b->stride[t], a->stride, sizeof b->stride[t]);
    }
    for (uint32_t t = 0; t < b->meta->ntensor; t++) {
        if (~tensors & required & (uint64_t)1 << t) return ag_err(e, ATTNGEN_E_INVALID_ARG, "argument '%s' is missing", b->meta->tensor[t].name);
    }
    return ATTNGEN_OK;
}

/* ---- tensors */

static int64_t extent(const BoundArgs *b, const TensorMeta *t, int dim) {
    return t->dim[dim] == META_CONSTANT ? t->constant[dim] : b->size[t->dim[dim]];
}
/* The axis of a dim, or its number for one that is none. */
static char letter(const TensorMeta *t, int dim) { return t->dim[dim] < SZ_COUNT ? axis_letter[t->dim[dim]] : (char)('0' + dim); }

static bool is_empty(const BoundArgs *b, const TensorMeta *t) {
    for (int i = 0; i < t->rank; i++) {
        if (extent(b, t, i) == 0) return true;
    }
    return false;
}

/* The bytes between the first and the last element must be an int64. */
static bool reach_fits(const BoundArgs *b, int i) {
    const TensorMeta *t = &b->meta->tensor[i];
    int64_t reach = 0, step;
    for (int k = 0; k < t->rank; k++) {
        int64_t n = extent(b, t, k) - 1, stride = b->stride[i][k];
        if (n <= 0) continue;
        if (stride == INT64_MIN || __builtin_mul_overflow(n, stride < 0 ? -stride : stride, &step)) return false;
        if (__builtin_add_overflow(reach, step, &reach)) return false;
    }
    return !__builtin_mul_overflow(reach, (int64_t)t->elem_bytes, &step);
}

static int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Whether x * s = y * r for some 0 < x < n and 0 < y < m, where (n - 1) * s and (m - 1) * r are in range. */
static bool coincide(int64_t s, int64_t n, int64_t r, int64_t m) {
    if (s - r >= (m - 1) * r || r - s >= (n - 1) * s) return false; /* one dim lies within a step of the other: every sane tensor */
    int64_t g = gcd(s, r);
    return r / g < n && s / g < m;
}

/* Overlap that two dims alone make; the usual mistake is a broadcast output (stride 0). */
static attngen_status check_overlap(const BoundArgs *b, int i, Err *e) {
    const TensorMeta *t = &b->meta->tensor[i];
    for (int p = 0; p < t->rank; p++) {
        int64_t n = extent(b, t, p), s = b->stride[i][p];
        if (n > 1 && s == 0) {
            return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s: stride of %c is 0 with extent %lld: the elements of an output must not coincide", t->name,
                          letter(t, p), LL(n));
        }
        for (int q = p + 1; q < t->rank; q++) {
            int64_t m = extent(b, t, q), r = b->stride[i][q];
            if (n <= 1 || m <= 1 || !coincide(llabs(s), n, llabs(r), m)) continue;
            return ag_err(e, ATTNGEN_E_INVALID_ARG,
                          "%s: strides %lld of %c and %lld of %c with extents %lld and %lld: the elements of an output must not coincide", t->name,
                          LL(s), letter(t, p), LL(r), letter(t, q), LL(n), LL(m));
        }
    }
    return ATTNGEN_OK;
}

static attngen_status check_tensor(const BoundArgs *b, int i, Err *e) {
    const TensorMeta *t = &b->meta->tensor[i];
    if (t->buffer || is_empty(b, t) || (!b->data[i] && t->optional)) return ATTNGEN_OK;
    if (!b->data[i]) return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s: data is null", t->name);
    if ((uintptr_t)b->data[i] % t->elem_bytes) return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s: data is not aligned to %d bytes", t->name, t->elem_bytes);
    if (!reach_fits(b, i)) return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s: its strides reach beyond 2^63 bytes", t->name);
    return t->output ? check_overlap(b, i, e) : ATTNGEN_OK;
}

/* ---- the workspace: a counter for each persistent kernel, then buffers */

enum { PLACE_ALIGN = 256, COUNTER_BYTES = 4 };

static void set_sizes(int64_t *out, const ProgramMeta *m, const int64_t *sizes) {
    memcpy(out, sizes, sizeof(int64_t) * META_SIZES);
    for (uint32_t i = 0; i < m->nderived; i++) out[META_SIZES + i] = ag_formula(&m->derived[i], sizes);
}

/* One kernel's counter takes 4 bytes, so that a program of one kernel needs no more. */
int64_t ag_workspace_counters(const ProgramMeta *m) {
    int64_t n = 0;
    for (uint32_t i = 0; i < m->nkernel; i++) n += m->kernel[i].counter;
    return n * COUNTER_BYTES;
}

static int64_t aligned(int64_t n) { return n > INT64_MAX - PLACE_ALIGN ? INT64_MAX : (n + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN; }

/* Where the buffer behind `at` bytes ends; saturates. */
static int64_t end_of(const BoundArgs *b, const TensorMeta *t, int64_t at) {
    int64_t n = t->elem_bytes;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(n, extent(b, t, i), &n)) return INT64_MAX;
    return __builtin_add_overflow(at, n, &n) ? INT64_MAX : n;
}

/* data of each buffer: its place, in bytes.  Returns the bytes of all.  Those with elements begin behind the room of any counters, so that calls of one
 * program, whose kernels may have counters or not, can take turns with one workspace. */
static int64_t lay_out_buffers(BoundArgs *b) {
    int64_t top = ag_workspace_counters(b->meta);
    for (uint32_t i = 0; i < b->meta->ntensor; i++) {
        const TensorMeta *t = &b->meta->tensor[i];
        if (!t->buffer) continue;
        if (!is_empty(b, t)) top = aligned(top > 0 ? top : 1);
        b->data[i] = (void *)(uintptr_t)top;
        int64_t stride = 1;
        for (int place = t->rank - 1; place >= 0; place--) {
            int dim = t->rows_first && (place == 1 || place == 2) ? 3 - place : place;
            b->stride[i][dim] = stride;
            if (__builtin_mul_overflow(stride, extent(b, t, dim), &stride)) stride = INT64_MAX;
        }
        top = end_of(b, t, top);
    }
    return top;
}

int64_t ag_workspace_bytes(const ProgramMeta *m, const int64_t *sizes) {
    BoundArgs b = {.meta = m};
    set_sizes(b.size, m, sizes);
    return lay_out_buffers(&b);
}

int64_t ag_tensor_extent(const ProgramMeta *m, const int64_t *sizes, int tensor, int dim) {
    BoundArgs b = {.meta = m};
    set_sizes(b.size, m, sizes);
    return extent(&b, &m->tensor[tensor], dim);
}

int64_t ag_workspace_place(const ProgramMeta *m, const int64_t *sizes, int tensor) {
    BoundArgs b = {.meta = m};
    set_sizes(b.size, m, sizes);
    lay_out_buffers(&b);
    return (int64_t)(uintptr_t)b.data[tensor];
}

void ag_args_place(BoundArgs *b, void *workspace) {
    b->workspace = workspace;
    for (uint32_t i = 0; i < b->meta->ntensor; i++)
        if (b->meta->tensor[i].buffer) b->data[i] = (char *)workspace + (uintptr_t)b->data[i];
}

void ag_kernel_sizes(const BoundArgs *b, const KernelMeta *k, int64_t sizes[META_SIZES]) {
    memcpy(sizes, b->size, sizeof(int64_t) * META_SIZES);
    sizes[SZ_SK] = b->size[k->keys];
}

int64_t ag_kernel_chunk(const BoundArgs *b, const KernelMeta *k) {
    int64_t n = k->chunk ? b->size[k->chunk] : b->size[SZ_SQ];
    return n < 1 ? 1 : n;
}

/* The same for the launch whose first query is row `first`: its queries are all that there are, and their positions as they were. */
static void launch_sizes(const BoundArgs *b, const KernelMeta *k, int64_t first, int64_t sizes[META_SIZES]) {
    ag_kernel_sizes(b, k, sizes);
    int64_t left = sizes[SZ_SQ] - first, chunk = ag_kernel_chunk(b, k);
    sizes[SZ_SQ] = left < chunk ? left : chunk;
    sizes[SZ_OFF] += first;
}

/* ---- 16-byte pieces */

typedef enum Reason { MOVES_IN_PIECES, BAD_BASE, BAD_EXTENT, BAD_LAST_STRIDE, BAD_STRIDE } Reason;

/* Why tensor i cannot be moved by 16-byte pieces along its last dim; *dim is where. */
static Reason why_not(const BoundArgs *b, int i, int *dim) {
    const TensorMeta *t = &b->meta->tensor[i];
    int last = t->rank - 1, per_piece = PIECE / t->elem_bytes;
    *dim = last;
    if ((uintptr_t)b->data[i] % PIECE) return BAD_BASE;
    if (extent(b, t, last) % per_piece) return BAD_EXTENT;
    if (extent(b, t, last) > 1 && b->stride[i][last] != 1) return BAD_LAST_STRIDE;
    for (*dim = 0; *dim < last; ++*dim) {
        if (extent(b, t, *dim) > 1 && b->stride[i][*dim] % per_piece) return BAD_STRIDE;
    }
    return MOVES_IN_PIECES;
}

/* Tensors with rows; others (lse) always go by elements. */
static bool has_rows(const BoundArgs *b, int i) { return b->meta->tensor[i].rank == 4 && (b->data[i] || b->meta->tensor[i].buffer); }

static bool is_mapped(const ProgramMeta *m, int i) {
    for (uint32_t k = 0; k < m->ntmap; k++) {
        if (m->tmap[k].tensor == i) return true;
    }
    return false;
}

/* Is it worth a note if its rows go by elements?  Of captured tensors only those with a row for each key or query are moved by rows, and those whose elements are moved in
 * tiles. */
static bool is_worth_a_note(const BoundArgs *b, int i) {
    const TensorMeta *t = &b->meta->tensor[i];
    return ((has_rows(b, i) && ag_has_channels(t)) || is_mapped(b->meta, i)) && !is_empty(b, t);
}

bool ag_has_channels(const TensorMeta *t) { return t->rank == 4 && !t->buffer && (t->dim[3] == SZ_D || t->dim[3] == SZ_DV); }

/* Whether the parts of the batch make it up. */
static attngen_status check_parts(const BoundArgs *b, Err *e) {
    int64_t rest = b->size[SZ_B];
    for (uint32_t i = 0; i < b->meta->nscalar; i++) {
        const ScalarMeta *s = &b->meta->scalar[i];
        int64_t n = (int64_t)b->scalar[i];
        if (!s->part) continue;
        if (n < 1 || rest % n)
            return ag_err(e, ATTNGEN_E_INVALID_ARG, "%s is %lld: B = %lld is no multiple of the sizes of its parts", s->name, LL(n),
                          LL(b->size[SZ_B]));
        rest /= n;
    }
    return ATTNGEN_OK;
}

/* The tensors that a launch must have. */
static uint64_t required(const ProgramMeta *m) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < m->ntensor; i++)
        if (!m->tensor[i].optional && !m->tensor[i].buffer) bits |= (uint64_t)1 << i;
    return bits;
}

/* seen: a bit for each tensor that is looked at. */
static attngen_status bind(BoundArgs *b, const ProgramMeta *m, const int64_t *sizes, const attngen_arg *args, size_t nargs, uint64_t needed,
                           uint64_t seen, Err *e) {
    memset(b, 0, sizeof *b);
    b->meta = m;
    set_sizes(b->size, m, sizes);
    for (uint32_t i = 0; i < m->nscalar; i++) b->scalar[i] = m->scalar[i].deflt;
    attngen_status s = set_args(b, args, nargs, needed, e);
    if (s == ATTNGEN_OK) s = check_parts(b, e);
    lay_out_buffers(b);
    for (int i = 0; s == ATTNGEN_OK && i < (int)m->ntensor; i++) {
        int dim;
        if (!(seen >> i & 1)) continue;
        s = check_tensor(b, i, e);
        bool elements = b->data[i] && b->meta->tensor[i].rank >= 1 && !b->meta->tensor[i].output; /* of captured tensors */
        if ((has_rows(b, i) || elements) && why_not(b, i, &dim) == MOVES_IN_PIECES) b->vec |= (uint64_t)1 << i;
    }
    return s;
}

attngen_status ag_args_bind(BoundArgs *b, const ProgramMeta *m, const int64_t *sizes, const attngen_arg *args, size_t nargs, Err *e) {
    return bind(b, m, sizes, args, nargs, required(m), ~(uint64_t)0, e);
}

attngen_status ag_args_bind_some(BoundArgs *b, const ProgramMeta *m, const int64_t *sizes, const attngen_arg *args, size_t nargs, uint64_t tensors,
                                 Err *e) {
    return bind(b, m, sizes, args, nargs, tensors, tensors, e);
}

/* ---- tensor maps */

/* Its elements are copied: a dim of stride 0 is repeated then. */
static bool is_of_elements(const ProgramMeta *m, int i) {
    for (uint32_t k = 0; k < m->ntmap; k++) {
        if (m->tmap[k].tensor == i) return m->tmap[k].box_cols > 0;
    }
    return false;
}

/* Whether anything is moved through the map of tensor i: without queries nothing is, and of a tensor without elements nothing. */
static bool is_moved(const BoundArgs *b, int i) {
    bool nothing = b->size[SZ_B] == 0 || b->size[SZ_HQ] == 0 || b->size[SZ_SQ] == 0;
    return !nothing && !is_empty(b, &b->meta->tensor[i]) && (b->data[i] || b->meta->tensor[i].buffer);
}

/* The largest stride in a tensor map is below 2^40 bytes. */
static int64_t most_stride(const TensorMeta *t) { return (((int64_t)1 << 40) - PIECE) / t->elem_bytes; }

enum { BAD_ROW = -3, MAPPED = -2, BAD_DATA = -1 };

/* Why no tensor map describes tensor i: BAD_DATA, BAD_ROW (a store of a row that is no whole number of pieces writes past its end), or the dim whose stride is to blame; MAPPED if one does.  Extents need no check: they are below 2^32. */
static int why_no_map(const BoundArgs *b, int i) {
    const TensorMeta *t = &b->meta->tensor[i];
    int last = t->rank - 1, per_piece = PIECE / t->elem_bytes;
    if (!is_moved(b, i)) return MAPPED;
    if ((uintptr_t)b->data[i] % PIECE) return BAD_DATA;
    if (t->output && extent(b, t, last) % per_piece) return BAD_ROW;
    bool repeats = is_of_elements(b->meta, i);
    for (int dim = last; dim >= 0; dim--) {
        int64_t s = b->stride[i][dim];
        if (extent(b, t, dim) != 1 && (dim == last ? s != 1 : s < !repeats || s > most_stride(t) || s % per_piece != 0)) return dim;
    }
    return MAPPED;
}

static bool mappable(const BoundArgs *b, bool elements) {
    for (uint32_t i = 0; i < b->meta->ntmap; i++) {
        if ((elements || !b->meta->tmap[i].box_cols) && why_no_map(b, b->meta->tmap[i].tensor) != MAPPED) return false;
    }
    return true;
}
bool ag_args_mappable(const BoundArgs *b) { return mappable(b, true); }
bool ag_args_rows_mappable(const BoundArgs *b) { return mappable(b, false); }

/* The tensor whose first row stands in for one without elements: a kernel fetches a tile even where there are no keys, so the map must be a legal one; what it
 * brings counts for nothing.  (It may be o, which nobody has written yet.) */
static int stand_in(const BoundArgs *b, int i) {
    for (uint32_t k = 0; !is_moved(b, i) && k < b->meta->ntmap; k++)
        if (is_moved(b, b->meta->tmap[k].tensor)) return b->meta->tmap[k].tensor;
    return i;
}

static void set_tmap(TmapArgs *out, const BoundArgs *b, const TmapMeta *m) {
    int i = m->tensor, from = stand_in(b, i);
    const TensorMeta *t = &b->meta->tensor[from];
    int last = t->rank - 1;
    int64_t row = (extent(b, t, last) * t->elem_bytes + PIECE - 1) / PIECE * PIECE; /* a legal stride for a dim of extent 1, where any is right */
    if (!is_moved(b, from)) return;
    out->data = b->data[from];
    out->box_rows = m->box_rows;
    out->panels = m->panels;
    out->box_cols = m->box_cols;
    out->pack = m->pack;
    out->dtype = (uint32_t)b->meta->dtype;
    for (int k = 0; k < 4; k++) out->dim[k] = (uint64_t)(k <= last && (from == i || k == 0) ? extent(b, t, last - k) : 1);
    for (int k = 0; k < 3; k++) out->stride[k] = (uint64_t)(out->dim[k + 1] > 1 ? b->stride[from][last - 1 - k] * t->elem_bytes : row);
}

/* The maps of this thread's last launch; at first and after a failure none, which are zeros. */
static _Thread_local struct {
    TmapArgs args[META_TMAPS];
    _Alignas(64) char map[META_TMAPS][TMAP_BYTES];
} last_maps;

_Static_assert(sizeof(TmapArgs) == 80, "TmapArgs has padding: it is compared as bytes");

/* Writes the maps into the argument struct of k. */
static attngen_status pack_maps(Loaded *l, const BoundArgs *b, int device, const KernelMeta *k, char *params, Err *e) {
    TmapArgs args[META_TMAPS] = {0};
    attngen_status s = ATTNGEN_OK;
    for (uint32_t i = 0; i < b->meta->ntmap; i++) set_tmap(&args[i], b, &b->meta->tmap[i]);
    if (memcmp(args, last_maps.args, sizeof args)) {
        s = ag_driver_tmaps(l, device, (int)b->meta->ntmap, args, last_maps.map, e);
        if (s == ATTNGEN_OK)
            memcpy(last_maps.args, args, sizeof args);
        else
            memset(&last_maps, 0, sizeof last_maps);
    }
    for (uint32_t i = 0; s == ATTNGEN_OK && i < k->nslot; i++) {
        if (k->slot[i].kind == SLOT_TMAP) memcpy(params + k->slot[i].offset, last_maps.map[k->slot[i].index], TMAP_BYTES);
    }
    return s;
}

/* ---- notes */

/* Why tensor i has no map; "" if it has one, or needs none. */
static void explain_map(const BoundArgs *b, int i, char *out, size_t n) {
    const TensorMeta *t = &b->meta->tensor[i];
    int dim = is_mapped(b->meta, i) ? why_no_map(b, i) : MAPPED, per_piece = PIECE / t->elem_bytes;
    out[0] = 0;
    if (dim == MAPPED) return;
    if (dim == BAD_DATA)
        snprintf(out, n, "%s: data is %d bytes past a multiple of %d, TMA takes 0", t->name, (int)((uintptr_t)b->data[i] % PIECE), PIECE);
    else if (dim == BAD_ROW)
        snprintf(out, n, "%s: extent of %c is %lld, TMA stores multiples of %d", t->name, letter(t, t->rank - 1), LL(extent(b, t, t->rank - 1)),
                 per_piece);
    else if (dim == t->rank - 1)
        snprintf(out, n, "%s: stride of %c is %lld, TMA takes 1", t->name, letter(t, dim), LL(b->stride[i][dim]));
    else
        snprintf(out, n, "%s: stride of %c is %lld, TMA takes multiples of %d from %d to %lld", t->name, letter(t, dim), LL(b->stride[i][dim]),
                 per_piece, is_of_elements(b->meta, i) ? 0 : per_piece, LL(most_stride(t)));
}

/* Why tensor i does not go by 16-byte pieces; "" if it does, or goes by TMA. */
static void explain_tensor(const BoundArgs *b, int i, char *out, size_t n) {
    const TensorMeta *t = &b->meta->tensor[i];
    const char *what = t->output ? "stores" : "loads";
    int dim, per_piece = PIECE / t->elem_bytes;
    long long stride, ext;
    Reason why = why_not(b, i, &dim);
    out[0] = 0;
    if (is_mapped(b->meta, i) || why == MOVES_IN_PIECES) return;
    stride = LL(b->stride[i][dim]);
    ext = LL(extent(b, t, dim));
    switch (why) {
    case BAD_BASE: snprintf(out, n, "%s: element-wise %s, data is not aligned to %d bytes", t->name, what, PIECE); break;
    case BAD_EXTENT:
        snprintf(out, n, "%s: element-wise %s, extent of %c is %lld, no multiple of %d", t->name, what, letter(t, dim), ext, per_piece);
        break;
    case BAD_LAST_STRIDE: snprintf(out, n, "%s: element-wise %s, stride of %c is %lld", t->name, what, letter(t, dim), stride); break;
    default:
        snprintf(out, n, "%s: element-wise %s, stride of %c is %lld, no multiple of %d", t->name, what, letter(t, dim), stride, per_piece);
        break;
    }
}

/* What `explain` has to say of every tensor with rows. */
static void explain_all(const BoundArgs *b, void (*explain)(const BoundArgs *, int, char *, size_t), char *buf, size_t n) {
    char one[256];
    size_t used = 0;
    if (!n) return;
    buf[0] = 0;
    for (int i = 0; i < (int)b->meta->ntensor && used < n; i++) {
        if (!is_worth_a_note(b, i)) continue;
        explain(b, i, one, sizeof one);
        if (one[0]) used += (size_t)snprintf(buf + used, n - used, "%s%s", used ? "; " : "", one);
    }
}

void ag_args_explain(const BoundArgs *b, char *buf, size_t n) { explain_all(b, explain_tensor, buf, n); }
void ag_args_unmapped(const BoundArgs *b, char *buf, size_t n) { explain_all(b, explain_map, buf, n); }

void ag_args_way(const BoundArgs *b, int i, char *buf, size_t n) {
    const TensorMeta *t = &b->meta->tensor[i];
    bool rows = is_worth_a_note(b, i), mapped = is_mapped(b->meta, i);
    buf[0] = 0;
    if (rows) explain_map(b, i, buf, n);
    if (rows && !buf[0]) explain_tensor(b, i, buf, n);
    if (!buf[0])
        snprintf(buf, n, "%s: %s", t->name, is_empty(b, t) ? "no elements" : mapped ? "TMA" : rows ? "16-byte pieces" : "element by element");
}

/* ---- the argument struct */

static uint32_t pieces(const BoundArgs *b, const KernelMeta *k) {
    uint32_t bits = 0;
    for (int i = 0; i < META_KERNEL_TENSORS; i++)
        if (k->tensor[i] != META_NO_TENSOR && b->vec >> k->tensor[i] & 1) bits |= 1u << i;
    return bits;
}

/* Counters lie in the order of their kernels. */
static void write_counter(const BoundArgs *b, const KernelMeta *k, char *at) {
    char *counter = b->workspace;
    for (const KernelMeta *x = b->meta->kernel; x < k; x++) counter += x->counter ? COUNTER_BYTES : 0;
    memcpy(at, &counter, sizeof counter);
}

#define LOG2E 1.44269504f

/* Element 0 of tensor i for that launch. */
static void *data_from(const BoundArgs *b, int i, int64_t first) {
    const TensorMeta *t = &b->meta->tensor[i];
    char *data = b->data[i];
    for (int dim = 0; dim < t->rank && data; dim++)
        if (t->dim[dim] == SZ_SQ) data += first * b->stride[i][dim] * t->elem_bytes;
    return data;
}

void ag_args_pack(const BoundArgs *b, const KernelMeta *k, int64_t first, void *params) {
    int64_t sizes[META_SIZES];
    launch_sizes(b, k, first, sizes);
    memset(params, 0, k->param_bytes);
    for (uint32_t i = 0; i < k->nslot; i++) {
        const Slot *s = &k->slot[i];
        char *at = (char *)params + s->offset;
        int tensor = s->kind == SLOT_POINTER || s->kind == SLOT_STRIDE ? k->tensor[s->index] : META_NO_TENSOR;
        bool none = tensor == META_NO_TENSOR;
        int32_t i32;
        float f32;
        void *data;
        switch ((SlotKind)s->kind) {
        case SLOT_POINTER:
            data = none ? NULL : data_from(b, tensor, first);
            memcpy(at, &data, sizeof data);
            break;
        case SLOT_STRIDE:
            if (!none) memcpy(at, &b->stride[tensor][s->dim], sizeof(int64_t));
            break;
        case SLOT_SIZE: i32 = (int32_t)sizes[s->index], memcpy(at, &i32, sizeof i32); break;
        case SLOT_FLOAT: f32 = (float)b->scalar[s->index], memcpy(at, &f32, sizeof f32); break;
        case SLOT_LOG2E: f32 = (float)b->scalar[s->index] * LOG2E, memcpy(at, &f32, sizeof f32); break;
        case SLOT_INT: i32 = (int32_t)b->scalar[s->index], memcpy(at, &i32, sizeof i32); break;
        case SLOT_TMAP: break;
        case SLOT_WORKSPACE: write_counter(b, k, at); break;
        case SLOT_VEC: i32 = (int32_t)pieces(b, k), memcpy(at, &i32, sizeof i32); break;
        }
    }
}

static bool has_maps(const KernelMeta *k) {
    for (uint32_t i = 0; i < k->nslot; i++)
        if (k->slot[i].kind == SLOT_TMAP) return true;
    return false;
}

static attngen_status launch_one(Loaded *l, const BoundArgs *b, int device, void *stream, int i, int64_t first, Err *e) {
    _Alignas(64) char params[META_PARAM_BYTES];
    const KernelMeta *k = &b->meta->kernel[i];
    attngen_status s = ATTNGEN_OK;
    int64_t sizes[META_SIZES];
    launch_sizes(b, k, first, sizes);
    int64_t blocks = ag_formula(&k->blocks, sizes);
    if (blocks <= 0) return ATTNGEN_OK;
    ag_args_pack(b, k, first, params);
    if (has_maps(k)) s = pack_maps(l, b, device, k, params, e);
    return s == ATTNGEN_OK ? ag_driver_launch(l, device, i, (uint32_t)blocks, params, stream, e) : s;
}

static bool is_in(LaunchPart part, const KernelMeta *k) { return part == LAUNCH_ALL || (part == LAUNCH_MASK) == (k->mask != 0); }

attngen_status ag_launch(Loaded *l, const BoundArgs *b, LaunchPart part, int device, void *stream, Err *e) {
    attngen_status s = ATTNGEN_OK;
    const KernelMeta *kernel = b->meta->kernel;
    for (int i = 0, end, n = (int)b->meta->nkernel; i < n; i = end) {
        for (end = i + 1; kernel[i].chunk && end < n && kernel[end].chunk == kernel[i].chunk; end++) continue;
        int64_t first = 0;
        do {
            for (int k = i; s == ATTNGEN_OK && k < end; k++)
                if (is_in(part, &kernel[k])) s = launch_one(l, b, device, stream, k, first, e);
            first += ag_kernel_chunk(b, &kernel[i]);
        } while (s == ATTNGEN_OK && first < b->size[SZ_SQ]);
    }
    return s;
}
