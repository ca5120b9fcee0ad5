/* check_rows.c: whether the rows that a prologue's kernels have made are right; attention is then judged by them, so that one of them that rounds to the other side
 * does not look like an error of it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"

/* Of the row's largest value: what fp32 and the fast sine and cosine leave. */
static const double ROW_ERROR = 0x1p-17;

static int64_t heads_of(const HostCall *call, int of_k) { return call->size[of_k ? SZ_HKV : SZ_HQ]; }
static int64_t rows_of(const HostCall *call, int of_k) { return call->size[of_k ? SZ_SK : SZ_SQ]; }

/* Channels of a row: those that are judged, and behind them those of dots, by which attention is judged. */
static int64_t width(const Spec *spec) { return spec->D + ag_dot_channels(spec); }

static HostTensor view(const Spec *spec, const HostCall *call, int of_k, void *data) {
    int64_t rows = rows_of(call, of_k), D = width(spec);
    return (HostTensor){.data = data, .type = spec->dtype, .stride = {heads_of(call, of_k) * rows * D, rows * D, D, 1}};
}

bool ag_rows_init(MadeRows *r, const Spec *spec, const HostCall *call) {
    memset(r, 0, sizeof *r);
    for (int of_k = 0; of_k < 2; of_k++) {
        if (!ag_makes_rows(spec, of_k)) continue;
        size_t all = (size_t)(call->size[SZ_B] * heads_of(call, of_k) * rows_of(call, of_k)), n = all * (size_t)spec->D;
        r->bytes[of_k] = all * (size_t)width(spec) * (size_t)ag_dtype_bytes(spec->dtype);
        r->got[of_k] = calloc(r->bytes[of_k] + 1, 1);
        r->used[of_k] = calloc(r->bytes[of_k] + 1, 1);
        r->want[of_k] = calloc(n + 1, sizeof *r->want[of_k]);
        if (!r->got[of_k] || !r->used[of_k] || !r->want[of_k]) return false;
        ag_reference_rows(spec, call, of_k, r->want[of_k]);
        HostTensor used = view(spec, call, of_k, r->used[of_k]);
        for (size_t i = 0; i < n; i++) ag_host_set(&used, 0, 0, (int64_t)i / spec->D, (int64_t)i % spec->D, r->want[of_k][i]);
    }
    return true;
}

void ag_rows_free(MadeRows *r) {
    for (int of_k = 0; of_k < 2; of_k++) {
        free(r->got[of_k]);
        free(r->used[of_k]);
        free(r->want[of_k]);
    }
}

void ag_rows_use(const MadeRows *r, const Spec *spec, HostCall *call) {
    for (int of_k = 0; of_k < 2; of_k++)
        if (r->used[of_k]) *(of_k ? &call->k : &call->q) = view(spec, call, of_k, r->used[of_k]);
    call->prepared = true;
}

/* The first element of a row that is off. */
static int64_t find_wrong(const Spec *spec, const double *want, const HostTensor *got, int64_t row) {
    double largest = 0;
    for (int64_t d = 0; d < spec->D; d++)
        if (isfinite(want[d])) largest = fmax(largest, fabs(want[d]));
    for (int64_t d = 0; d < spec->D; d++) {
        double x = ag_host_get(got, 0, 0, row, d), limit = ag_half_ulp(spec->dtype, fabs(want[d])) + ROW_ERROR * largest;
        if (!(fabs(x - want[d]) <= limit) && !(isnan(x) && isnan(want[d]))) return d;
    }
    return -1;
}

bool ag_rows_judge(const MadeRows *r, const Spec *spec, const HostCall *call, char *text, size_t n) {
    for (int of_k = 0; of_k < 2; of_k++) {
        if (!r->bytes[of_k]) continue;
        HostTensor got = view(spec, call, of_k, r->got[of_k]);
        int64_t heads = heads_of(call, of_k), rows = rows_of(call, of_k), all = call->size[SZ_B] * heads * rows;
        for (int64_t i = 0; i < all; i++) {
            int64_t d = find_wrong(spec, r->want[of_k] + i * spec->D, &got, i);
            if (d < 0) continue;
            snprintf(text, n, "rows of %s[b %lld, h %lld, row %lld, d %lld]: %.6g, should be %.6g", of_k ? "k" : "q", (long long)(i / rows / heads),
                     (long long)(i / rows % heads), (long long)(i % rows), (long long)d, ag_host_get(&got, 0, 0, i, d),
                     r->want[of_k][i * spec->D + d]);
            return false;
        }
    }
    return true;
}
