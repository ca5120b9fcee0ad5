/* compare.c: whether O and LSE of a call are as close to the reference as the correctness contract asks.
 *
 * Limit of an element of O:  2 * (largest naive error in its row)  +  half an ulp of the row's largest output  +  1e-6; the factors are those of the
 * kernel's numerics class.
 * The first term is the contract.  The second is there because any kernel rounds O to the storage type once, which costs half an ulp, while the naive
 * computation may be exact by luck (equal probabilities, a row with one key); it is taken at the row's largest value because the error of a probability
 * moves every channel of the row.  The third covers float arithmetic on outputs near zero.  Under a stale maximum (classes "-lazy8", "-spec40" and "-spec14") the dominating weight is
 * no longer exactly 1 but is rounded to the storage type like the others: half an ulp more.  So it is where scores themselves are weights and are divided by
 * their sum, which has them unrounded (class "-sum").  Where the results of
 * blocks of keys are merged (class "-parts") each has been rounded before: their share in a row adds up to 1, so half an ulp of the row again.
 *
 * Of a program every branch's result is rounded to the storage type before `output` combines them.  The naive computation does that too, but again may be exact
 * by luck; so the second term has a second part, by how much `output` moves if each branch is off by half an ulp of its row's largest value (ag_reference_spread):
 * about half an ulp of the largest |gate * branch|, whatever is left of their sum.
 *
 * A selection may differ from the reference where blocks are about equally important.  Kernels compute an importance in fp32 from products of the storage type:
 * a score of magnitude S over D channels is off by about S sqrt(D) 2^-24, for S up to 40 and D up to 256 by 4e-5, and a probability by that part of itself; the
 * sum over heads and pooled keys has no terms of other signs.  A plain product has terms of both, about sqrt(D) times their sum, and loses as much to
 * cancellation.  1e-4 of the row's largest importance covers both.  With the tanh of class "-tanh11" scores capped at 50 are off by 50 2^-11.
 *
 * LSE is within 1e-4 of its own size, or within 2^-11 where the scores' tanh is only as good as that (class "-tanh11"). The naive O has scores rounded to the storage
 * type, which covers as much in most rows; but it may be exact by luck, and so O is allowed, too, what scores that are off by 50 2^-11 move it (ag_reference_sway). */
#include "host.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double absolute_floor = 1e-6;

/* Half the distance between neighbouring values of type t at magnitude x: mantissa bits without the leading one, least exponent. */
double ag_half_ulp(DType t, double x) {
    static const struct { int bits, emin; } format[] = {[DT_F16] = {10, -14}, [DT_BF16] = {7, -126}, [DT_F32] = {23, -126}};
    int e = x > 0 && isfinite(x) ? ilogb(x) : format[t].emin;
    if (e < format[t].emin) e = format[t].emin;
    return ldexp(1, e - format[t].bits - 1);
}

/* Infinite unless got is near enough to be measured: equal infinities and two NaNs count as 0. */
static double error_of(double got, double want) {
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (got == want) return 0;
    double e = fabs(got - want);
    return isnan(e) ? INFINITY : e;
}

/* e against its limit, as one number that orders failures. */
static double badness(double e, double limit) { return e == 0 ? 0 : e / limit; }

typedef struct Worst {
    double o, lse; /* badness */
    int64_t lse_at[3];
} Worst;

ErrorBound ag_error_bound(const char *numerics) {
    bool stale = strstr(numerics, "-lazy") || strstr(numerics, "-spec") || strstr(numerics, "-sum"), parts = strstr(numerics, "-parts"),
         tanh11 = strstr(numerics, "-tanh11");
    return (ErrorBound){.naive = 2,
                        .half_ulps = 1 + stale + parts,
                        .lse = tanh11 ? 0x1p-11 : 1e-4,
                        .picks = tanh11 ? 50 * 0x1p-11 : 1e-4,
                        .scores = tanh11 ? 50 * 0x1p-11 : 0};
}

static void compare_row(Comparison *c, Worst *w, const HostCall *call, ErrorBound bound, const int64_t at[3], int64_t Dv, double spread,
                        const double *o, const double *naive) {
    double largest = 0, naive_error = 0;
    for (int64_t d = 0; d < Dv; d++) {
        double e = error_of(naive[d], o[d]);
        if (isfinite(o[d])) largest = fmax(largest, fabs(o[d]));
        if (isfinite(e)) naive_error = fmax(naive_error, e);
    }
    double limit = bound.naive * naive_error + bound.half_ulps * (ag_half_ulp(call->o.type, largest) + spread) + absolute_floor;
    for (int64_t d = 0; d < Dv; d++) {
        double e = error_of(ag_host_get(&call->o, at[0], at[1], at[2], d), o[d]);
        c->unwritten += ag_is_poison(&call->o, at[0], at[1], at[2], d);
        if (badness(e, limit) <= w->o) continue;
        w->o = badness(e, limit);
        c->o_err = e;
        c->o_limit = limit;
        c->b = at[0], c->h = at[1], c->q = at[2], c->d = d;
    }
}

static void compare_lse(Comparison *c, Worst *w, const HostCall *call, const int64_t at[3], double want, double tolerance) {
    double e = error_of(ag_host_get(&call->lse, at[0], at[1], at[2], 0), want) / (isfinite(want) ? fmax(1, fabs(want)) : 1);
    c->unwritten += ag_is_poison(&call->lse, at[0], at[1], at[2], 0);
    if (badness(e, tolerance) <= w->lse) return;
    w->lse = badness(e, tolerance);
    c->lse_err = e;
    for (int i = 0; i < 3; i++) w->lse_at[i] = at[i];
}

static void describe(Comparison *c, const Worst *w, const HostCall *call, const double *o, const double *lse, int64_t Dv) {
    const int64_t *size = call->size;
    if (c->unwritten) {
        snprintf(c->text, sizeof c->text, "%" PRId64 " output elements were never written", c->unwritten);
    } else if (!(w->o <= 1)) {
        double got = ag_host_get(&call->o, c->b, c->h, c->q, c->d), want = o[((c->b * size[SZ_HQ] + c->h) * size[SZ_SQ] + c->q) * Dv + c->d];
        snprintf(c->text, sizeof c->text,
                 "o[b %" PRId64 ", h %" PRId64 ", q %" PRId64 ", d %" PRId64 "] is %.6g, should be %.6g: error %.3g, limit %.3g", c->b, c->h, c->q,
                 c->d, got, want, c->o_err, c->o_limit);
    } else if (!(w->lse <= 1)) {
        const int64_t *at = w->lse_at;
        double got = ag_host_get(&call->lse, at[0], at[1], at[2], 0), want = lse[(at[0] * size[SZ_HQ] + at[1]) * size[SZ_SQ] + at[2]];
        snprintf(c->text, sizeof c->text, "lse[b %" PRId64 ", h %" PRId64 ", q %" PRId64 "] is %.8g, should be %.8g: relative error %.3g, limit %.3g",
                 at[0], at[1], at[2], got, want, c->lse_err, c->lse_limit);
    }
    c->ok = !c->text[0];
}

void ag_compare_value(Comparison *c, HostCall *call, RowValue value, const double *want, double limit) {
    const HostTensor *t = ag_host_row(call, value);
    const int64_t *size = call->size, n = size[SZ_B] * size[SZ_HQ] * size[SZ_SQ];
    for (int64_t row = 0; c->ok && t->data && row < n; row++) {
        int64_t q = row % size[SZ_SQ], h = row / size[SZ_SQ] % size[SZ_HQ], b = row / size[SZ_SQ] / size[SZ_HQ];
        double got = ag_host_get(t, b, h, q, 0), e = error_of(got, want[row]) / (isfinite(want[row]) ? fmax(1, fabs(want[row])) : 1);
        if (e <= limit) continue;
        c->ok = false;
        c->unwritten += ag_is_poison(t, b, h, q, 0);
        snprintf(c->text, sizeof c->text,
                 "%s[b %" PRId64 ", h %" PRId64 ", q %" PRId64 "] is %.8g%s, should be %.8g: relative error %.3g, limit %.3g",
                 ag_row_value_name[value], b, h, q, got, c->unwritten ? " as before the launch" : "", want[row], e, limit);
    }
}

Comparison ag_compare(const Spec *spec, const HostCall *call, ErrorBound bound, const double *o, const double *lse, const double *naive_o) {
    Comparison c = {.lse_limit = bound.lse};
    Worst w = {.o = -1, .lse = -1};
    const int64_t *size = call->size, Dv = spec->Dv;
    for (int64_t b = 0; b < size[SZ_B]; b++)
        for (int64_t h = 0; h < size[SZ_HQ]; h++)
            for (int64_t q = 0; q < size[SZ_SQ]; q++) {
                int64_t at[3] = {b, h, q}, row = (b * size[SZ_HQ] + h) * size[SZ_SQ] + q;
                compare_row(&c, &w, call, bound, at, Dv, bound.spread ? bound.spread[row] : 0, o + row * Dv, naive_o + row * Dv);
                if (call->lse.data) compare_lse(&c, &w, call, at, lse[row], bound.lse);
            }
    describe(&c, &w, call, o, lse, Dv);
    return c;
}
