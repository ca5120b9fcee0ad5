/* reference_prologue.c: the rows of q and k as `prologue` makes them, in double precision, rounded to the storage type once at the end.
 *
 *   scale       x[d] * factor
 *   rms_norm    x[d] / sqrt(mean of x^2 + eps) * weight[d]                                        (Zhang and Sennrich 2019)
 *   rope        (x, y) of a pair i at position p -> (x cos a - y sin a, y cos a + x sin a), a = p theta^(-2i / channels)   (Su et al. 2021) */
#include "reference.h"

#include <math.h>
#include <stdlib.h>

static double at_channel(const Spec *spec, const HostCall *call, const Ast *e, const HostPoint *row, int64_t d) {
    HostPoint at = *row;
    at.d = d;
    return ag_ast_eval_at(spec, call, e, &at).u.f;
}

static void normalise(const Spec *spec, const HostCall *call, const RowStep *s, const HostPoint *row, double *x) {
    double squares = 0;
    for (int d = 0; d < spec->D; d++) squares += x[d] * x[d];
    double factor = 1 / sqrt(squares / spec->D + s->eps.x);
    for (int d = 0; d < spec->D; d++) x[d] *= s->factor ? factor * at_channel(spec, call, s->factor, row, d) : factor;
}

static void rotate(const Spec *spec, const HostCall *call, const RowStep *s, const HostPoint *row, double *x) {
    int pairs = s->channels.n / 2;
    double position = (double)ag_ast_eval_at(spec, call, s->position, row).u.i;
    for (int i = 0; i < pairs; i++) {
        double angle = position * pow(s->theta.x, -2.0 * i / s->channels.n), c = cos(angle), n = sin(angle);
        if (s->value[0]) c = at_channel(spec, call, s->value[0], row, i), n = at_channel(spec, call, s->value[1], row, i);
        double *first = &x[s->interleaved ? 2 * i : i], *second = &x[s->interleaved ? 2 * i + 1 : i + pairs];
        double a = *first, b = *second;
        *first = a * c - b * n;
        *second = b * c + a * n;
    }
}

static void transform(const Spec *spec, const HostCall *call, const Prologue *p, const HostPoint *row, double *x) {
    for (int i = 0; i < p->n; i++) {
        const RowStep *s = &p->step[i];
        if (s->kind == STEP_NORM) normalise(spec, call, s, row, x);
        if (s->kind == STEP_ROPE) rotate(spec, call, s, row, x);
        for (int d = 0; s->kind == STEP_SCALE && d < spec->D; d++) x[d] *= at_channel(spec, call, s->factor, row, d);
    }
}

void ag_reference_rows(const Spec *spec, const HostCall *call, bool of_k, double *out) {
    const HostTensor *in = of_k ? &call->k : &call->q;
    const int64_t *size = call->size, heads = size[of_k ? SZ_HKV : SZ_HQ], rows = size[of_k ? SZ_SK : SZ_SQ];
    int64_t group = size[SZ_HKV] > 0 ? size[SZ_HQ] / size[SZ_HKV] : 1;
    for (int64_t b = 0; b < size[SZ_B]; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t row = 0; row < rows; row++, out += spec->D) {
                HostPoint at = {.b = b, .h = of_k ? h * group : h, .q = row + size[SZ_OFF], .k = row, .Sk = size[SZ_SK]};
                for (int64_t d = 0; d < spec->D; d++) out[d] = ag_host_get(in, b, h, row, d);
                transform(spec, call, &spec->prologue[of_k], &at, out);
            }
}

/* The rows of q or of k, contiguous and rounded. */
static bool make_rows(const Spec *spec, const HostCall *call, bool of_k, HostTensor *out) {
    int64_t heads = call->size[of_k ? SZ_HKV : SZ_HQ], rows = call->size[of_k ? SZ_SK : SZ_SQ], D = spec->D, n = call->size[SZ_B] * heads * rows * D;
    double *x = malloc((size_t)n * sizeof *x + 1);
    *out = (HostTensor){.type = spec->dtype, .stride = {heads * rows * D, rows * D, D, 1}};
    out->data = malloc((size_t)(n * ag_dtype_bytes(spec->dtype)) + 1);
    bool ok = x && out->data;
    if (ok) ag_reference_rows(spec, call, of_k, x);
    for (int64_t i = 0; ok && i < n; i++) ag_host_set(out, 0, 0, 0, i, x[i]);
    free(x);
    return ok;
}

bool ag_prepare_call(const Spec *spec, const HostCall *call, PreparedCall *out) {
    bool ok = true;
    *out = (PreparedCall){.call = *call};
    out->call.prepared = true;
    for (int of_k = 0; of_k < 2; of_k++) {
        HostTensor *rows = of_k ? &out->call.k : &out->call.q;
        if (call->prepared || !spec->prologue[of_k].n) continue;
        ok = make_rows(spec, call, of_k, rows) && ok;
        out->memory[of_k] = rows->data;
    }
    return ok;
}

void ag_prepared_free(PreparedCall *p) {
    free(p->memory[0]);
    free(p->memory[1]);
}
