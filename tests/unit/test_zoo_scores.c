/* Scores of shipped specs against the formulas of their sources, written here by themselves in double, at many points and on random captured tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "with_schedule.h"

/* A query and a key; q, k are positions, row is the query's row. */
typedef struct Point {
    const Spec *spec;
    const HostCall *call;
    int64_t b, h, q, k, row;
    double s;
} Point;

/* An element of a captured tensor; 0 outside of it. */
static double at(const Point *p, const char *name, int n, const int64_t *index) {
    for (int i = 0; i < p->spec->ninput; i++) {
        const Input *in = &p->spec->input[i];
        int64_t where[4];
        if (!ag_str_is(in->name, name)) continue;
        assert_int_equal(in->rank, n);
        for (int d = 0; d < n; d++) {
            int64_t extent = ag_input_extent(p->spec, i, d, p->call->size);
            where[d] = extent == 1 ? 0 : index[d];
            if (where[d] < 0 || where[d] >= extent) return 0;
        }
        return ag_dtype_value(in->type) == T_FLOAT ? ag_host_get_at(&p->call->input[i], where, n)
                                                   : (double)ag_host_get_int(&p->call->input[i], where, n);
    }
    fail_msg("no input %s", name);
    return 0;
}
#define AT(name, ...) at(p, name, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

static double distance(const Point *p) { return (double)(p->q - p->k); }

static double alibi(const Point *p) { return p->s + AT("slope", p->h) * (double)(p->k - p->q); }
static double alibi_both(const Point *p) { return p->s - AT("slope", p->h) * fabs(distance(p)); }

/* Slopes 2^(-8 (h + 1) / H). */
static double alibi_formula(const Point *p) {
    return p->s + pow(2, -8.0 * (double)(p->h + 1) / (double)p->call->size[SZ_HQ]) * (double)(p->k - p->q);
}

/* _relative_position_bucket of T5: 32 buckets, distances up to 128; relative is the key's position less the query's. */
static int64_t t5_bucket(int64_t relative, bool both, int64_t buckets) {
    int64_t bucket = 0, n = relative;
    if (both) {
        buckets /= 2;
        if (relative > 0) bucket += buckets;
        n = llabs(relative);
    } else
        n = relative < 0 ? -relative : 0;
    int64_t exact = buckets / 2, far = n;
    if (n >= exact) {
        far = exact + (int64_t)(log((double)n / (double)exact) / log(128.0 / (double)exact) * (double)(buckets - exact) + 1e-9);
        if (far > buckets - 1) far = buckets - 1;
    }
    return bucket + (n < exact ? n : far);
}
static double t5_bias(const Point *p) { return p->q < p->k ? NAN : p->s + AT("table", p->h, t5_bucket(p->k - p->q, false, 32)); }
static double t5_encoder(const Point *p) { return p->s + AT("table", p->h, t5_bucket(p->k - p->q, true, 32)); }

static double kerple(const Point *p) { return p->q < p->k ? NAN : p->s - AT("r1", p->h) * log1p(AT("r2", p->h) * distance(p)); }
static double kerple_power(const Point *p) {
    return p->q < p->k ? NAN : p->s - (p->q == p->k ? 0 : AT("r1", p->h) * pow(distance(p), AT("r2", p->h)));
}
static double sandwich(const Point *p) { return p->s + AT("table", p->q - p->k) * (double)p->call->size[SZ_HQ] / (8.0 * (double)(p->h + 1)); }
static double fire(const Point *p) {
    double c = 1, L = 512, x = log(c * distance(p) + 1) / log(c * fmax(L, (double)p->q) + 1), y = AT("b2", p->h);
    for (int n = 0; n < 8; n++) y += AT("w2", p->h, n) * fmax(0, AT("w1", n) * x + AT("b1", n));
    return p->q < p->k ? NAN : p->s + y;
}

/* Queries and keys are both multiplied by 0.1 ln(factor) + 1. */
static double yarn(const Point *p) { return p->s * pow(0.1 * log(4.0) + 1, 2); }
static double ssmax(const Point *p) { return p->q < 0 ? NAN : p->s * AT("rate", p->h) * log((double)(p->q + 1)); }
static double forgetting(const Point *p) { return p->s + AT("gate", p->b, p->h, p->q) - AT("gate", p->b, p->h, p->k); }
static double softcap(const Point *p) { return 20 * tanh(p->s / 20); }
static double gemma2(const Point *p) { return 50 * tanh(p->s / 50); }
static double swin(const Point *p) { return p->s + AT("table", (int64_t)AT("index", p->row, p->k), p->h) + AT("shift", p->b % 64, p->row, p->k); }
static double decomposed(const Point *p) { return p->s + AT("by_row", p->b, p->h, p->row, p->k / 64) + AT("by_col", p->b, p->h, p->row, p->k % 64); }
static double spatial(const Point *p) { return p->s + AT("table", p->h, (int64_t)AT("hops", p->b, p->row, p->k)); }

/* The mean over the edges of the path, of which 5 count, of an embedding by place and kind. */
static double graphormer(const Point *p) {
    int64_t hop = (int64_t)AT("hops", p->b, p->row, p->k), kinds = (int64_t)AT("kind", p->b, p->row, p->k), path = hop < 0 ? 0 : hop > 5 ? 5 : hop;
    double sum = 0;
    for (int64_t n = 0; n < path; n++) sum += AT("edges", n, p->h, kinds >> (5 * n) & 31);
    return p->s + AT("table", p->h, hop) + sum / (double)(path > 1 ? path : 1);
}

/* log of how many patterns hold the pair. */
static double longnet(const Point *p) {
    int n = 0;
    for (int64_t rate = 1; rate <= 4; rate *= 2)
        n += p->q / (2048 * rate) == p->k / (2048 * rate) && p->q % rate == p->h % rate && p->k % rate == p->h % rate;
    return n ? p->s + log(n) : NAN;
}
static double score_bias(const Point *p) { return p->s + AT("bias", p->b, p->h, p->row, p->k); }

/* NAN: hidden there, or not defined. */
static const struct {
    const char *spec;
    double (*formula)(const Point *);
} zoo[] = {{"alibi", alibi},
           {"alibi_both", alibi_both},
           {"alibi_formula", alibi_formula},
           {"t5_bias", t5_bias},
           {"t5_encoder", t5_encoder},
           {"kerple", kerple},
           {"kerple_power", kerple_power},
           {"sandwich", sandwich},
           {"fire", fire},
           {"yarn", yarn},
           {"ssmax", ssmax},
           {"forgetting", forgetting},
           {"softcap", softcap},
           {"gemma2", gemma2},
           {"swin", swin},
           {"graphormer", graphormer},
           {"graphormer_spatial", spatial},
           {"decomposed_bias", decomposed},
           {"longnet", longnet},
           {"score_bias", score_bias}};

static void check_spec(const char *name, double (*formula)(const Point *)) {
    attngen_source source;
    assert_int_equal(attngen_shipped_spec(&source, name), ATTNGEN_OK);
    Compilation *c = ag_compile_text(&source, NULL, "sm_80", NULL, 0, "lower");
    must_compile(c);
    const Case shape = {.B = 2, .Hkv = 2, .group = 2, .Sq = 150, .Sk = 260, .offset = ATTNGEN_ALIGN_END};
    CaseData d;
    int compared = 0;
    assert_true(ag_check_data(&d, &shape, c->fn.spec, 3));
    for (int i = 0; i < 4000; i++) {
        Point p = {.spec = c->fn.spec, .call = &d.call, .b = i % 2, .h = i / 2 % 4, .row = i * 7 % 150, .k = i * 13 % 260, .s = i % 31 / 4.0 - 3};
        p.q = p.row + d.call.size[SZ_OFF];
        double want = formula(&p), got = ag_ast_eval(c->fn.spec, &d.call, c->fn.spec->score, p.b, p.h, p.q, p.k, p.s).u.f;
        if (isnan(want)) continue;
        compared++;
        if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
            fail_msg("%s at b %d, h %d, q %d, k %d, s %g: %.12g, the source says %.12g", name, (int)p.b, (int)p.h, (int)p.q, (int)p.k, p.s, got,
                     want);
    }
    assert_true(compared > 1000);
    ag_check_data_free(&d);
    ag_compilation_free(c);
}

static void test_scores(void **state) {
    (void)state;
    for (int i = 0; i < LEN(zoo); i++) check_spec(zoo[i].spec, zoo[i].formula);
}

/* Each says in a line what it is. */
static void test_docs(void **state) {
    (void)state;
    attngen_source s;
    for (size_t i = 0; attngen_shipped_spec_name(i); i++) {
        assert_int_equal(attngen_shipped_spec(&s, attngen_shipped_spec_name(i)), ATTNGEN_OK);
        Compilation *c = ag_compile_text(&s, NULL, "sm_80", NULL, 0, "lower");
        assert_non_null(c);
        if (!c->fn.spec || c->fn.spec->doc.n < 20) fail_msg("%s has no doc", attngen_shipped_spec_name(i));
        if (!ag_str_is(c->fn.spec->name, attngen_shipped_spec_name(i))) fail_msg("%s has another name in its file", attngen_shipped_spec_name(i));
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scores), cmocka_unit_test(test_docs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
