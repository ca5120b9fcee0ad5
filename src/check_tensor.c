/* check_tensor.c: seeded random tensors in awkward places. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"

enum { MARGIN = 64, TAIL_ROWS = 5, PITCH = 8 }; /* elements before and after; rows after the last token; elements after each row */
enum { NAN_BYTE = 0xFF };                       /* repeated: a NaN in f16, bf16 and f32 */
enum { AT_Q, AT_K, AT_V, AT_O, AT_ROW /* in the order of RowValue */ };

/* ---- random numbers: splitmix64, Box-Muller */

typedef struct Random {
    uint64_t state;
    double spare;
    bool has_spare;
} Random;

static uint64_t next(Random *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double uniform(Random *r) { return ((double)(next(r) >> 11) + 0.5) * 0x1p-53; } /* in (0, 1) */

static double normal(Random *r) {
    r->has_spare = !r->has_spare;
    if (!r->has_spare) return r->spare;
    double radius = sqrt(-2 * log(uniform(r))), angle = 6.283185307179586 * uniform(r);
    r->spare = radius * sin(angle);
    return radius * cos(angle);
}

/* ---- layouts */

/* Elements from the first to past the last of the view, and its strides. */
static int64_t lay_out(CaseTensor *t, TensorLayout layout, bool input, bool keys) {
    const int64_t *n = t->dim;
    int64_t *s = t->view.stride, step = layout == LAY_STEP ? 2 : 1, row = n[3] * step + (layout == LAY_PITCH ? PITCH : 0);
    int64_t rows = n[2] + (layout == LAY_TAIL ? TAIL_ROWS : 0);
    s[3] = step;
    s[2] = row;
    s[1] = rows * row;
    s[0] = n[1] * s[1];
    int64_t span = n[0] * s[0];
    if (layout == LAY_BSHD) s[2] = n[1] * row, s[1] = row;
    if (layout == LAY_BROADCAST && keys) s[0] = s[1] = 0;
    if (layout == LAY_REVERSED && input) s[2] = -row;
    return span;
}

/* `copies` of it lie behind one another. */
static void place(CaseTensor *t, DType type, TensorLayout layout, bool input, bool broadcast, int64_t copies) {
    t->view.type = type;
    size_t e = (size_t)ag_dtype_bytes(type);
    int64_t span = lay_out(t, layout, input, broadcast);
    int64_t first = MARGIN + (layout == LAY_ODD) + (t->view.stride[2] < 0 && t->dim[2] > 0 ? -t->view.stride[2] * (t->dim[2] - 1) : 0);
    t->bytes = (size_t)(span * copies + 2 * MARGIN + 1) * e;
    t->at = (size_t)first * e;
}

void ag_check_place(CaseTensor *t, DType type, TensorLayout layout, int index) {
    place(t, type, layout, index < AT_O, index == AT_K || index == AT_V, 1);
}

void ag_check_place_input(CaseTensor *t, DType type, TensorLayout layout, int rank) {
    CaseTensor last = {.dim = {1, 1, 1, 1}}; /* the last dims as the last ones of four; those before are outside of them */
    int outer = rank > 4 ? rank - 4 : 0;
    int64_t copies = 1;
    for (int i = outer; i < rank; i++) last.dim[4 - rank + i] = t->dim[i];
    for (int i = 0; i < outer; i++) copies *= t->dim[i];
    place(&last, type, layout, true, rank == 4, copies);
    memset(t->view.stride, 0, sizeof t->view.stride);
    for (int i = outer; i < rank; i++) t->view.stride[i] = last.view.stride[4 - rank + i];
    int64_t step = (int64_t)(last.bytes / (size_t)ag_dtype_bytes(type)) - 2 * MARGIN - 1; /* of all copies */
    for (int i = 0; i < outer; i++) t->view.stride[i] = step /= t->dim[i] ? t->dim[i] : 1;
    t->view.type = type;
    t->bytes = last.bytes;
    t->at = last.at;
}

/* Memory for a tensor that is placed, full of `around`. */
static bool make(CaseTensor *t, int around) {
    t->flat = malloc(t->bytes);
    if (!t->flat) return false;
    memset(t->flat, around, t->bytes);
    t->view.data = t->flat + t->at;
    return true;
}

#define EACH_ELEMENT(t)                                                                                                                              \
    for (int64_t i0 = 0; i0 < (t)->dim[0]; i0++)                                                                                                     \
        for (int64_t i1 = 0; i1 < (t)->dim[1]; i1++)                                                                                                 \
            for (int64_t i2 = 0; i2 < (t)->dim[2]; i2++)                                                                                             \
                for (int64_t i3 = 0; i3 < (t)->dim[3]; i3++)

static void randomise(CaseTensor *t, Random *r, double scale) { EACH_ELEMENT(t) ag_host_set(&t->view, i0, i1, i2, i3, scale * normal(r)); }

/* ---- inputs of the spec */

DType ag_input_type(const Spec *spec, int input) { return spec->input[input].storage ? spec->dtype : spec->input[input].type; }

/* What an input is for. */
typedef struct Use {
    const Branch *list;   /* whose blocks it lists; NULL */
    const Branch *counts; /* of whose lists it counts the entries; NULL */
    bool weights;         /* of a pool */
} Use;

static Use use_of(const Spec *spec, int input) {
    Use u = {0};
    for (int i = 0; i < spec->nbranch; i++) {
        const Branch *b = &spec->branch[i];
        if (b->blocks.kind != FROM_INPUT) continue;
        if (b->blocks.index == input) u.list = b;
        if (b->counts == input) u.counts = b;
    }
    for (int i = 0; i < spec->nderive; i++) u.weights |= spec->derive[i].kind == DERIVE_POOL && spec->derive[i].weights == input;
    return u;
}

static int64_t below(Random *r, int64_t n) { return n > 0 ? (int64_t)(next(r) % (uint64_t)n) : 0; }

/* An entry of a block list: mostly a block, in any order and more than once; or none, or one that does not exist. */
static int64_t list_entry(Random *r, int64_t blocks) {
    int64_t kind = below(r, 16);
    if (kind == 0) return -1;
    if (kind == 1) return below(r, 2) ? blocks + below(r, 3) : INT32_MAX - below(r, 2);
    if (kind == 2 && below(r, 4) == 0) return INT32_MIN + below(r, 2);
    return blocks > 0 ? below(r, blocks) : 0;
}

/* Entry i of a list of n: one block out of each of n equal parts of those up to the query's own. */
static int64_t sane_entry(Random *r, const Branch *list, const int64_t *size, int64_t row, int64_t i, int64_t n) {
    int64_t own = ((row + 1) * list->per.n - 1 + size[SZ_OFF]) / list->block.n + 1, blocks = ag_block_count(&list->block, size[SZ_SK]);
    if (own < blocks) blocks = own > 1 ? own : 1;
    if (n >= blocks) return i < blocks ? i : -1;
    int64_t from = i * blocks / n, to = (i + 1) * blocks / n;
    return from + below(r, to - from);
}

/* Ints as they come: numbers of documents and entries of small tables; or with `far` also positions of all keys and beyond, and what no dim has. */
static int64_t any_int(const int64_t *size, Random *r, bool far) {
    enum { FAR = 1 << 24 };
    int64_t kind = far ? below(r, 16) : 15;
    if (kind == 0) return below(r, 2) ? FAR : -FAR;
    return kind < 8 ? below(r, size[SZ_SK] + 6) - 3 : below(r, 12) - 3;
}

static double number(DType type, const int64_t *size, Random *r, bool far) {
    switch (type) {
    case DT_BOOL: return (double)below(r, 2);
    case DT_U8: return (double)below(r, far ? 256 : 8);
    case DT_I32: return (double)any_int(size, r, far);
    case DT_I64: return (double)(any_int(size, r, far) + (below(r, 4) == 0 ? (int64_t)1 << 33 : 0)); /* the low 32 bits count */
    default: return normal(r);
    }
}

/* For a launch whose time is taken.  Ints: 8 documents one after the other where the last dim is positions, else lengths.  Floats by batch and head alone: slopes. */
static double sane_number(DType type, const Input *in, const int64_t *size, const int64_t *at, Random *r) {
    const Dim *last = in->rank > 0 ? &in->dim[in->rank - 1] : NULL;
    bool positions = last && last->kind == DIM_AXIS && (last->axis == AX_Q || last->axis == AX_K);
    bool slopes = true;
    for (int i = 0; i < in->rank; i++) slopes &= in->dim[i].kind == DIM_AXIS && in->dim[i].axis < AX_Q;
    if (type == DT_BOOL) return 1;
    if (type < DT_I32) return slopes ? exp2(-8 * uniform(r)) : normal(r);
    return positions ? (double)(at[in->rank - 1] * 8 / size[last->axis == AX_Q ? SZ_SQ : SZ_SK]) : (double)below(r, size[SZ_SK] + 1);
}

static double plain_number(CaseTensor *t, const Input *in, const int64_t *size, const int64_t *at, Random *r, bool hostile, bool far) {
    return hostile ? number(t->view.type, size, r, far) : sane_number(t->view.type, in, size, at, r);
}

static void fill_input(CaseTensor *t, const Spec *spec, int input, const Use *u, const int64_t *size, Random *r, bool hostile) {
    int64_t blocks = u->list ? ag_block_count(&u->list->block, size[SZ_SK]) : 0, entries = t->dim[3];
    bool far = hostile && !u->list && !u->counts && !u->weights && below(r, 2);
    if (u->counts) entries = ag_input_extent(spec, u->counts->blocks.index, 3, size);
    int64_t at[INPUT_MAX_DIMS];
    for (bool more = ag_first_index(at, t->dim, INPUT_MAX_DIMS); more; more = ag_next_index(at, t->dim, INPUT_MAX_DIMS)) {
        double x;
        if (u->list)
            x = (double)(hostile ? list_entry(r, blocks) : sane_entry(r, u->list, size, at[2], at[3], entries));
        else if (u->counts)
            x = (double)(!hostile ? entries : below(r, 8) == 0 ? -below(r, 3) : below(r, entries + 2));
        else
            x = u->weights ? 0.25 + fabs(normal(r)) : plain_number(t, &spec->input[input], size, at, r, hostile, far);
        ag_host_set_at(&t->view, at, INPUT_MAX_DIMS, x);
    }
}

/* Around lists lies block 0, which a stray read would add; around other ints -1. */
bool ag_check_input(CaseTensor *t, const Spec *spec, int input, const int64_t size[SZ_COUNT], TensorLayout layout, uint64_t seed, bool hostile) {
    int rank = spec->input[input].rank;
    Use u = use_of(spec, input);
    Random r = {.state = seed};
    for (int i = 0; i < INPUT_MAX_DIMS; i++) t->dim[i] = i < rank ? ag_input_extent(spec, input, i, size) : 1;
    ag_check_place_input(t, ag_input_type(spec, input), layout, rank);
    if (!make(t, u.list ? 0 : NAN_BYTE)) return false;
    fill_input(t, spec, input, &u, size, &r, hostile);
    return true;
}

/* ---- the call */

static void set_scalars(HostCall *call, const Spec *spec, int64_t param) {
    for (int i = 0; i < spec->nparam && i < HOST_SCALARS; i++) {
        const Param *p = &spec->param[i];
        const Scalar *v = &p->value;
        call->scalar[i] = v->type == T_FLOAT ? v->u.f : v->type == T_INT ? (double)v->u.i : v->u.b;
        if (param && p->type == T_INT && !p->bound && !p->part) call->scalar[i] = (double)param;
    }
}

/* Sizes of the parts of the batch: the last one is half of B, so that with an even B both it and the first have several. */
static void set_parts(HostCall *call, const Spec *spec, int64_t B) {
    const Param *last = spec->nbatch > 1 ? &spec->param[spec->batch[spec->nbatch - 1].param] : NULL;
    if (last && !last->bound) call->scalar[spec->batch[spec->nbatch - 1].param] = (double)(B > 1 && B % 2 == 0 ? B / 2 : 1);
}

static void set_sizes(HostCall *call, const Case *c, const Spec *spec) {
    const int64_t size[SZ_COUNT] = {[SZ_B] = c->B,      [SZ_HQ] = c->Hkv * c->group,
                                    [SZ_HKV] = c->Hkv,  [SZ_SQ] = c->Sq,
                                    [SZ_SK] = c->Sk,    [SZ_D] = spec->D,
                                    [SZ_DV] = spec->Dv, [SZ_OFF] = c->offset == ATTNGEN_ALIGN_END ? c->Sk - c->Sq : c->offset};
    memcpy(call->size, size, sizeof size);
}

bool ag_check_data(CaseData *d, const Case *c, const Spec *spec, uint64_t seed) {
    memset(d, 0, sizeof *d);
    set_sizes(&d->call, c, spec);
    set_scalars(&d->call, spec, c->param);
    set_parts(&d->call, spec, c->B);
    const int64_t *z = d->call.size;
    const int64_t dim[CASE_TENSORS][4] = {{z[SZ_B], z[SZ_HQ], z[SZ_SQ], spec->D},   {z[SZ_B], z[SZ_HKV], z[SZ_SK], spec->D},
                                          {z[SZ_B], z[SZ_HKV], z[SZ_SK], spec->Dv}, {z[SZ_B], z[SZ_HQ], z[SZ_SQ], spec->Dv},
                                          {z[SZ_B], z[SZ_HQ], z[SZ_SQ], 1},         {z[SZ_B], z[SZ_HQ], z[SZ_SQ], 1},
                                          {z[SZ_B], z[SZ_HQ], z[SZ_SQ], 1}};
    Random r = {.state = seed};
    for (int i = 0; i < CASE_TENSORS; i++) {
        memcpy(d->t[i].dim, dim[i], sizeof dim[i]);
        ag_check_place(&d->t[i], i >= AT_ROW ? DT_F32 : spec->dtype, c->layout, i);
        if (!make(&d->t[i], NAN_BYTE)) return false;
        if (i < AT_O) randomise(&d->t[i], &r, i == AT_Q && c->large ? 40.0 : 1.0); /* scores have the deviation of q: 3 of them are 120 */
    }
    d->call.q = d->t[AT_Q].view;
    d->call.k = d->t[AT_K].view;
    d->call.v = d->t[AT_V].view;
    d->call.o = d->t[AT_O].view;
    for (int i = 0; i < ROWV_COUNT; i++) {
        HostTensor *row = ag_host_row(&d->call, (RowValue)i);
        *row = d->t[AT_ROW + i].view;
        if (c->no_lse || !ag_puts_out(spec, (RowValue)i)) row->data = NULL;
    }
    d->n = CASE_TENSORS;
    for (int i = 0; i < spec->ninput; i++) {
        CaseTensor *t = &d->t[d->n++];
        if (!ag_check_input(t, spec, i, d->call.size, c->layout, next(&r), true)) return false;
        d->call.input[i] = t->view;
    }
    return true;
}

void ag_check_data_free(CaseData *d) {
    for (int i = 0; i < CASE_MOST; i++) free(d->t[i].flat);
}

void ag_check_poison(CaseData *d, const Spec *spec) {
    for (int i = AT_O; i < CASE_TENSORS; i++) memset(d->t[i].flat, NAN_BYTE, d->t[i].bytes);
    ag_poison(spec, &d->call);
}

static bool untouched_around(CaseTensor *t) {
    size_t e = (size_t)ag_dtype_bytes(t->view.type);
    const int64_t *s = t->view.stride;
    EACH_ELEMENT(t) memset((unsigned char *)t->view.data + (i0 * s[0] + i1 * s[1] + i2 * s[2] + i3 * s[3]) * (int64_t)e, NAN_BYTE, e);
    for (size_t i = 0; i < t->bytes; i++)
        if (t->flat[i] != NAN_BYTE) return false;
    return true;
}

bool ag_check_surroundings(CaseData *d) {
    bool all = true;
    for (int i = AT_O; i < CASE_TENSORS; i++) all &= untouched_around(&d->t[i]);
    return all;
}
