/* check_tensor.c: seeded random tensors in awkward places. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"

enum { MARGIN = 64, TAIL_ROWS = 5, PITCH = 8 }; /* elements before and after; rows after the last token; elements after each row */
enum { NAN_BYTE = 0xFF };                       /* repeated: a NaN in f16, bf16 and f32 */
enum { AT_Q, AT_K, AT_V, AT_O, AT_LSE };

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

void ag_check_place(CaseTensor *t, DType type, TensorLayout layout, int index) {
    t->view.type = type;
    size_t e = (size_t)ag_dtype_bytes(type);
    int64_t span = lay_out(t, layout, index < AT_O, index == AT_K || index == AT_V);
    int64_t first = MARGIN + (layout == LAY_ODD) + (t->view.stride[2] < 0 && t->dim[2] > 0 ? -t->view.stride[2] * (t->dim[2] - 1) : 0);
    t->bytes = (size_t)(span + 2 * MARGIN + 1) * e;
    t->at = (size_t)first * e;
}

static bool make(CaseTensor *t, DType type, TensorLayout layout, int index) {
    ag_check_place(t, type, layout, index);
    t->flat = malloc(t->bytes);
    if (!t->flat) return false;
    memset(t->flat, NAN_BYTE, t->bytes);
    t->view.data = t->flat + t->at;
    return true;
}

#define EACH_ELEMENT(t)                                                                                                                              \
    for (int64_t i0 = 0; i0 < (t)->dim[0]; i0++)                                                                                                     \
        for (int64_t i1 = 0; i1 < (t)->dim[1]; i1++)                                                                                                 \
            for (int64_t i2 = 0; i2 < (t)->dim[2]; i2++)                                                                                             \
                for (int64_t i3 = 0; i3 < (t)->dim[3]; i3++)

static void randomise(CaseTensor *t, Random *r, double scale) { EACH_ELEMENT(t) ag_host_set(&t->view, i0, i1, i2, i3, scale * normal(r)); }

static void set_scalars(HostCall *call, const Spec *spec, int64_t param) {
    for (int i = 0; i < spec->nparam && i < HOST_SCALARS; i++) {
        const Param *p = &spec->param[i];
        const Scalar *v = &p->value;
        call->scalar[i] = v->type == T_FLOAT ? v->u.f : v->type == T_INT ? (double)v->u.i : v->u.b;
        if (param && p->type == T_INT && !p->bound) call->scalar[i] = (double)param;
    }
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
    const int64_t *z = d->call.size;
    const int64_t dim[CASE_TENSORS][4] = {{z[SZ_B], z[SZ_HQ], z[SZ_SQ], spec->D},
                                          {z[SZ_B], z[SZ_HKV], z[SZ_SK], spec->D},
                                          {z[SZ_B], z[SZ_HKV], z[SZ_SK], spec->Dv},
                                          {z[SZ_B], z[SZ_HQ], z[SZ_SQ], spec->Dv},
                                          {z[SZ_B], z[SZ_HQ], z[SZ_SQ], 1}};
    Random r = {.state = seed};
    for (int i = 0; i < CASE_TENSORS; i++) {
        memcpy(d->t[i].dim, dim[i], sizeof dim[i]);
        if (!make(&d->t[i], i == AT_LSE ? DT_F32 : spec->dtype, c->layout, i)) return false;
        if (i < AT_O) randomise(&d->t[i], &r, i == AT_Q && c->large ? 40.0 : 1.0); /* scores have the deviation of q: 3 of them are 120 */
    }
    d->call.q = d->t[AT_Q].view;
    d->call.k = d->t[AT_K].view;
    d->call.v = d->t[AT_V].view;
    d->call.o = d->t[AT_O].view;
    d->call.lse = d->t[AT_LSE].view;
    if (c->no_lse) d->call.lse.data = NULL;
    return true;
}

void ag_check_data_free(CaseData *d) {
    for (int i = 0; i < CASE_TENSORS; i++) free(d->t[i].flat);
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
    bool o = untouched_around(&d->t[AT_O]), lse = untouched_around(&d->t[AT_LSE]);
    return o && lse;
}
