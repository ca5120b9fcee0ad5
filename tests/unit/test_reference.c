/* Host tensors, the double-precision reference, the naive computation and the comparison: against answers known in closed form. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "host.h"
#include "with_diag.h"

/* ---- formats */

static double stored(DType t, double x) {
    uint32_t room = 0;
    HostTensor h = {&room, {1, 1, 1, 1}, t};
    ag_host_set(&h, 0, 0, 0, 0, x);
    return ag_host_get(&h, 0, 0, 0, 0);
}

static void test_formats_every_value(void **state) {
    (void)state;
    static const DType types[] = {DT_F16, DT_BF16};
    for (int t = 0; t < LEN(types); t++)
        for (uint32_t u = 0; u < 65536; u++) {
            uint16_t bits = (uint16_t)u;
            HostTensor h = {&bits, {1, 1, 1, 1}, types[t]};
            double x = ag_host_get(&h, 0, 0, 0, 0);
            ag_host_set(&h, 0, 0, 0, 0, x);
            assert_int_equal(bits, isnan(x) ? 0x7FFF : u);
            if (!isnan(x)) assert_true((double)ag_round_to(types[t], (float)x) == x);
        }
}

static void test_formats_rounding(void **state) {
    (void)state;
    static const struct {
        DType type;
        double x, want;
    } c[] = {
        {DT_BF16, 1 + 0x1p-8, 1},                    /* tie, to even */
        {DT_BF16, 1 + 0x3p-8, 1 + 0x2p-7},           /* tie, to even */
        {DT_BF16, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7}, /* just above a tie, lost if it went through float */
        {DT_BF16, 1 + 0x3p-8 - 0x1p-40, 1 + 0x1p-7}, /* just below */
        {DT_BF16, -(1 + 0x1p-8 + 0x1p-40), -(1 + 0x1p-7)},
        {DT_BF16, 3.4e38, INFINITY},
        {DT_BF16, 1e300, INFINITY},
        {DT_BF16, -1e300, -INFINITY},
        {DT_F16, 1 + 0x1p-11, 1},
        {DT_F16, 1 + 0x1p-11 + 0x1p-50, 1 + 0x1p-10},
        {DT_F16, 65504, 65504},
        {DT_F16, 65519.99, 65504},
        {DT_F16, 65520, INFINITY},
        {DT_F16, 0x1p-24, 0x1p-24}, /* least subnormal */
        {DT_F16, 0x1p-25, 0},       /* tie, to even */
        {DT_F16, 0x3p-25, 0x2p-24},
        {DT_F16, 0x1p-25 + 0x1p-60, 0x1p-24},
        {DT_F16, 1e-300, 0},
        {DT_F16, 0x1.ff8p-15, 0x1.ff8p-15}, /* a subnormal with all bits set */
        {DT_F16, 0x1.ffcp-15, 0x1p-14},     /* rounds up to the least normal */
        {DT_F32, 1 + 0x1p-30, 1},
    };
    for (int i = 0; i < LEN(c); i++)
        if (stored(c[i].type, c[i].x) != c[i].want) fail_msg("row %d: %a gives %a, not %a", i, c[i].x, stored(c[i].type, c[i].x), c[i].want);
}

/* ---- a call with tensors in float; values are set before use, and O and LSE start as poison */

enum { ROOM = 4096 };
typedef struct Case {
    HostCall call;
    float q[ROOM], k[ROOM], v[ROOM];
    uint32_t o[ROOM], lse[ROOM];
    double ref_o[ROOM], ref_lse[ROOM], naive_o[ROOM], naive_lse[ROOM];
    const Spec *spec;
    void (*use)(struct Case *);
} Case;

typedef struct Sizes {
    int64_t B, Hq, Hkv, Sq, Sk, D, Dv;
} Sizes;

static HostTensor contiguous(void *data, DType t, int64_t heads, int64_t rows, int64_t cols) {
    return (HostTensor){data, {heads * rows * cols, rows * cols, cols, 1}, t};
}

static Case *new_case(Sizes n) {
    Case *c = calloc(1, sizeof *c);
    assert_true(n.B * n.Hq * n.Sq * n.D <= ROOM && n.B * n.Hkv * n.Sk * n.D <= ROOM && n.B * n.Hkv * n.Sk * n.Dv <= ROOM &&
                n.B * n.Hq * n.Sq * n.Dv <= ROOM);
    c->call = (HostCall){
        .size = {n.B, n.Hq, n.Hkv, n.Sq, n.Sk, n.Sk - n.Sq, n.D, n.Dv},
        .q = contiguous(c->q, DT_F32, n.Hq, n.Sq, n.D),
        .k = contiguous(c->k, DT_F32, n.Hkv, n.Sk, n.D),
        .v = contiguous(c->v, DT_F32, n.Hkv, n.Sk, n.Dv),
        .o = contiguous(c->o, DT_BF16, n.Hq, n.Sq, n.Dv),
        .lse = contiguous(c->lse, DT_F32, n.Hq, n.Sq, 1),
    };
    return c;
}

static uint32_t random_state = 1;
/* In -1 .. 1, a multiple of 1/64, so that 16-bit formats hold it. */
static float random_value(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)((int)((random_state >> 9) % 129) - 64) / 64;
}

static void randomise(Case *c) {
    for (int i = 0; i < ROOM; i++) c->q[i] = random_value(), c->k[i] = random_value(), c->v[i] = random_value();
}

static void run_case(Diag *d, uint16_t file, void *payload) {
    Case *c = payload;
    attngen_dim dims[] = {{"D", (double)c->call.size[SZ_D]}, {"Dv", (double)c->call.size[SZ_DV]}};
    Spec *spec = ag_spec_read(d, file, dims, 2);
    if (!spec) return;
    for (int i = 0; i < spec->nparam; i++) {
        const Scalar *v = &spec->param[i].value;
        c->call.scalar[i] = v->type == T_INT ? (double)v->u.i : v->u.f;
    }
    c->spec = spec;
    ag_poison(spec, &c->call);
    assert_true(ag_reference(spec, &c->call, c->ref_o, c->ref_lse));
    assert_true(ag_naive(spec, &c->call, c->naive_o, c->naive_lse));
    if (c->use) c->use(c);
}

static void run_spec(Case *c, const char *spec) {
    char *report = report_of(ag_str(spec), run_case, c, NULL);
    assert_string_equal(report, "");
    free(report);
}

static void expect_near(double got, double want, double tolerance) {
    if (got != want && !(fabs(got - want) <= tolerance)) fail_msg("%.17g is not %.17g", got, want);
}

static double *o_row(Case *c, int64_t b, int64_t h, int64_t q) {
    const int64_t *n = c->call.size;
    return c->ref_o + ((b * n[SZ_HQ] + h) * n[SZ_SQ] + q) * n[SZ_DV];
}
static double lse_of(Case *c, int64_t b, int64_t h, int64_t q) { return c->ref_lse[(b * c->call.size[SZ_HQ] + h) * c->call.size[SZ_SQ] + q]; }

/* ---- the reference */

static void test_uniform_is_the_mean(void **state) {
    (void)state;
    Case *c = new_case((Sizes){2, 1, 1, 3, 5, 4, 2});
    randomise(c);
    memset(c->q, 0, sizeof c->q);
    run_spec(c, "attention: a");
    for (int64_t b = 0; b < 2; b++)
        for (int64_t q = 0; q < 3; q++) {
            expect_near(lse_of(c, b, 0, q), log(5), 1e-15);
            for (int64_t d = 0; d < 2; d++) {
                double mean = 0;
                for (int64_t k = 0; k < 5; k++) mean += (double)c->v[(b * 5 + k) * 2 + d] / 5;
                expect_near(o_row(c, b, 0, q)[d], mean, 1e-15);
            }
        }
    free(c);
}

static void test_one_hot_selects(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 4, 4, 4, 3});
    randomise(c);
    for (int i = 0; i < 16; i++) c->q[i] = c->k[i] = i / 4 == i % 4 ? 100 : 0;
    run_spec(c, "attention: a\nscale: 0.25");
    for (int64_t q = 0; q < 4; q++) {
        expect_near(lse_of(c, 0, 0, q), 2500, 1e-12);
        for (int64_t d = 0; d < 3; d++) expect_near(o_row(c, 0, 0, q)[d], (double)c->v[q * 3 + d], 1e-15);
    }
    free(c);
}

/* Two keys with scores x and y: weights sigmoid(x - y) and sigmoid(y - x). */
static void test_scale_score_and_params(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 1, 2, 1, 1});
    c->q[0] = 2, c->k[0] = 3, c->k[1] = -1, c->v[0] = 10, c->v[1] = 20;
    run_spec(c, "attention: a\nparams: {cap: 1.5}\nscale: 0.5\nscore: cap * tanh(s / cap) + k / 4\n");
    double x = 1.5 * tanh(3 / 1.5), y = 1.5 * tanh(-1 / 1.5) + 0.25;
    expect_near(o_row(c, 0, 0, 0)[0], (10 * exp(x) + 20 * exp(y)) / (exp(x) + exp(y)), 1e-13);
    expect_near(lse_of(c, 0, 0, 0), log(exp(x) + exp(y)), 1e-14);
    free(c);
}

static void test_causal_first_row(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 2, 2, 6, 6, 4, 4});
    randomise(c);
    run_spec(c, "attention: a\nscale: 1.0\nmask: k <= q\n");
    for (int64_t h = 0; h < 2; h++) {
        double s = 0;
        for (int64_t d = 0; d < 4; d++) {
            expect_near(o_row(c, 0, h, 0)[d], (double)c->v[h * 24 + d], 1e-15);
            s += (double)c->q[h * 24 + d] * (double)c->k[h * 24 + d];
        }
        expect_near(lse_of(c, 0, h, 0), s, 1e-15);
    }
    free(c);
}

/* Sq 5, Sk 2: the last query is aligned with the last key, so queries 0..2 see nothing and query 3 sees key 0. */
static void test_more_queries_than_keys(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 5, 2, 2, 2});
    randomise(c);
    run_spec(c, "attention: a\nmask: k <= q\n");
    for (int64_t q = 0; q < 3; q++) {
        assert_true(lse_of(c, 0, 0, q) == -INFINITY);
        for (int64_t d = 0; d < 2; d++) assert_true(o_row(c, 0, 0, q)[d] == 0);
    }
    for (int64_t d = 0; d < 2; d++) assert_true(o_row(c, 0, 0, 3)[d] == (double)c->v[d]);
    assert_true(isfinite(lse_of(c, 0, 0, 4)));
    free(c);
}

static void check_visible(Case *c) {
    for (int64_t q = 0; q < 3; q++)
        for (int64_t k = 0; k < 8; k++) assert_int_equal(ag_visible(c->spec, &c->call, 0, 0, q, k), k <= q + 100 && q + 100 - k < 98);
}

static void test_offset(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 3, 8, 2, 2});
    randomise(c);
    c->call.size[SZ_OFF] = 100;
    c->use = check_visible;
    run_spec(c, "attention: a\nmask: k <= q and q - k < 98\n");
    assert_true(isfinite(lse_of(c, 0, 0, 2)));
    free(c);
}

static void test_hidden_keys_contribute_nothing(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 2, 4, 2, 2}), *want = new_case((Sizes){1, 1, 1, 2, 2, 2, 2});
    randomise(c);
    memcpy(want->q, c->q, sizeof c->q), memcpy(want->k, c->k, sizeof c->k), memcpy(want->v, c->v, sizeof c->v);
    for (int i = 4; i < 8; i++) c->k[i] = NAN, c->v[i] = i % 2 ? INFINITY : NAN;
    run_spec(c, "attention: a\nmask: k < 2\n");
    run_spec(want, "attention: a");
    for (int i = 0; i < 4; i++) assert_true(c->ref_o[i] == want->ref_o[i] && c->naive_o[i] == want->naive_o[i]);
    for (int i = 0; i < 2; i++) assert_true(c->ref_lse[i] == want->ref_lse[i]);
    free(c);
    free(want);
}

static void expect_empty(Case *c, int64_t rows, int64_t Dv) {
    for (int64_t i = 0; i < rows; i++) assert_true(c->ref_lse[i] == -INFINITY && c->naive_lse[i] == -INFINITY);
    for (int64_t i = 0; i < rows * Dv; i++) assert_true(c->ref_o[i] == 0 && c->naive_o[i] == 0);
}

static void test_empty_rows(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 2, 1, 3, 4, 2, 3});
    for (int i = 0; i < ROOM; i++) c->q[i] = c->k[i] = c->v[i] = NAN;
    run_spec(c, "attention: a\nmask: false\n");
    expect_empty(c, 6, 3);
    run_spec(c, "attention: a\nmask: q - k > 100\n");
    expect_empty(c, 6, 3);
    free(c);
    c = new_case((Sizes){1, 2, 1, 3, 0, 2, 3}); /* no keys at all */
    run_spec(c, "attention: a");
    expect_empty(c, 6, 3);
    free(c);
    c = new_case((Sizes){1, 1, 1, 2, 3, 1, 1}); /* visible keys whose scores are all -inf */
    c->v[0] = c->v[1] = c->v[2] = 1;
    run_spec(c, "attention: a\nscore: log(relu(s) * 0)\n");
    expect_empty(c, 2, 1);
    free(c);
}

static void test_groups(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 6, 2, 1, 3, 2, 1});
    randomise(c);
    for (int i = 0; i < 6; i++) c->v[i] = (float)(i / 3);
    run_spec(c, "attention: a");
    for (int64_t h = 0; h < 6; h++) expect_near(o_row(c, 0, h, 0)[0], (double)(h / 3), 1e-15);
    run_spec(c, "attention: a\nmask: g == 1 and h > 3\n");
    for (int64_t h = 0; h < 6; h++) assert_int_equal(lse_of(c, 0, h, 0) == -INFINITY, h <= 3);
    free(c);
}

/* Keys stored transposed and backwards, values broadcast over keys. */
static void test_strides(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 2, 3, 2, 2}), *want = new_case((Sizes){1, 1, 1, 2, 3, 2, 2});
    randomise(c);
    memcpy(want->q, c->q, sizeof c->q);
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < 2; d++) want->k[k * 2 + d] = c->k[d * 3 + 2 - k], want->v[k * 2 + d] = c->v[d];
    c->call.k = (HostTensor){c->k + 2, {0, 0, -1, 3}, DT_F32};
    c->call.v.stride[2] = 0;
    run_spec(c, "attention: a\nmask: k <= q\n");
    run_spec(want, "attention: a\nmask: k <= q\n");
    for (int i = 0; i < 4; i++) assert_true(c->ref_o[i] == want->ref_o[i]);
    free(c);
    free(want);
}

/* x63 = 2^63 s through 63 lets, each naming the one before twice: done in no time, because a let is evaluated once per point. */
static void test_lets_are_evaluated_once(void **state) {
    (void)state;
    Buf b = {0};
    ag_put(&b, "attention: a\nscale: 1.0\nlet:\n  x0: s\n");
    for (int i = 1; i < 64; i++) ag_put(&b, "  x%d: x%d + x%d\n", i, i - 1, i - 1);
    ag_put(&b, "score: x63\n");
    Case *c = new_case((Sizes){1, 1, 1, 1, 1, 1, 1});
    c->q[0] = 3, c->k[0] = 1, c->v[0] = 7;
    run_spec(c, b.s);
    assert_true(lse_of(c, 0, 0, 0) == 0x3p63);
    assert_true(o_row(c, 0, 0, 0)[0] == 7);
    ag_buf_free(&b);
    free(c);
}

/* ---- the naive computation and the comparison */

static void test_naive_is_near(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 2, 1, 20, 40, 40, 40});
    randomise(c);
    run_spec(c, "attention: a\nmask: k <= q\n");
    double worst = 0;
    for (int i = 0; i < 2 * 20 * 40; i++) {
        worst = fmax(worst, fabs(c->naive_o[i] - c->ref_o[i]));
        assert_true(stored(DT_BF16, c->naive_o[i]) == c->naive_o[i]);
    }
    assert_true(worst > 1e-5 && worst < 0x1p-7); /* outputs are below 1 */
    free(c);
}

typedef void Damage(Case *);
static Damage *damage;
static Comparison comparison;

static void compare_damaged(Case *c) {
    const int64_t *n = c->call.size;
    for (int64_t h = 0; h < n[SZ_HQ]; h++)
        for (int64_t q = 0; q < n[SZ_SQ]; q++) {
            for (int64_t d = 0; d < n[SZ_DV]; d++) ag_host_set(&c->call.o, 0, h, q, d, o_row(c, 0, h, q)[d]);
            ag_host_set(&c->call.lse, 0, h, q, 0, lse_of(c, 0, h, q));
        }
    if (damage) damage(c);
    comparison = ag_compare(c->spec, &c->call, ag_error_bound("f32acc-ex2-n64"), c->ref_o, c->ref_lse, c->naive_o);
}

static void restore_naive(Case *c) {
    for (int64_t h = 0; h < 2; h++)
        for (int64_t q = 0; q < 9; q++)
            for (int64_t d = 0; d < 32; d++) ag_host_set(&c->call.o, 0, h, q, d, c->naive_o[(h * 9 + q) * 32 + d]);
}
static void poison_all(Case *c) { ag_poison(c->spec, &c->call); }
static void drop_lse(Case *c) { c->call.lse.data = NULL; }
static void one_ulp_off(Case *c) { ag_host_set(&c->call.o, 0, 1, 5, 3, o_row(c, 0, 1, 5)[3] * (1 + 0x1p-7)); }
static void wrong_element(Case *c) { ag_host_set(&c->call.o, 0, 1, 5, 3, 0.5); }
static void nan_element(Case *c) { ag_host_set(&c->call.o, 0, 0, 7, 31, NAN); }
static void small_not_zero(Case *c) { ag_host_set(&c->call.o, 0, 0, 0, 0, 1e-4); }
static void wrong_lse(Case *c) { ag_host_set(&c->call.lse, 0, 1, 4, 0, lse_of(c, 0, 1, 4) + 1e-3); }
static void finite_lse(Case *c) { ag_host_set(&c->call.lse, 0, 0, 0, 0, -1e30); }
static void nan_lse(Case *c) { ag_host_set(&c->call.lse, 0, 0, 0, 0, NAN); }

/* Sq 9, Sk 7 causal: rows 0 and 1 see nothing. */
static void test_compare(void **state) {
    (void)state;
    static const struct {
        Damage *damage;
        const char *text; /* how the message starts */
    } row[] = {
        {NULL, ""},
        {restore_naive, ""},
        {drop_lse, ""},
        {one_ulp_off, ""},
        {poison_all, "594 output elements were never written"},
        {wrong_element, "o[b 0, h 1, q 5, d 3] is 0.5, should be "},
        {nan_element, "o[b 0, h 0, q 7, d 31] is nan, should be "},
        {small_not_zero, "o[b 0, h 0, q 0, d 0] is 0.000100136, should be 0: error 0.0001, limit 1e-06"},
        {wrong_lse, "lse[b 0, h 1, q 4] is "},
        {finite_lse, "lse[b 0, h 0, q 0] is -1e+30, should be -inf: relative error inf, limit 0.0001"},
        {nan_lse, "lse[b 0, h 0, q 0] is nan, should be -inf: relative error inf, limit 0.0001"},
    };
    for (int i = 0; i < LEN(row); i++) {
        Case *c = new_case((Sizes){1, 2, 1, 9, 7, 32, 32});
        randomise(c);
        damage = row[i].damage;
        c->use = compare_damaged;
        run_spec(c, "attention: a\nmask: k <= q\n");
        size_t n = strlen(row[i].text);
        if (strncmp(comparison.text, row[i].text, n) != 0 || comparison.ok != (n == 0)) fail_msg("row %d: %s", i, comparison.text);
        free(c);
    }
}

/* Naive is exact where one key is visible; what is left of the limit is half an ulp of the row's largest output, and 1e-6. */
static void test_compare_floor(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 1, 1, 1, 2});
    c->v[0] = 1.5, c->v[1] = 0.25;
    damage = NULL;
    c->use = compare_damaged;
    run_spec(c, "attention: a");
    assert_true(comparison.ok);
    assert_true(comparison.o_limit == 0x1p-8 + 1e-6);
    free(c);
}

static void test_bounds(void **state) {
    (void)state;
    assert_true(ag_error_bound("f32acc-ex2-n64").naive == 2 && ag_error_bound("f32acc-ex2-n64").half_ulps == 1);
    assert_true(ag_error_bound("f32acc-ex2-n64-lazy8").naive == 2 && ag_error_bound("f32acc-ex2-n64-lazy8").half_ulps == 2);
    assert_true(ag_error_bound("f32acc-ex2-n128-spec40").naive == 2 && ag_error_bound("f32acc-ex2-n128-spec40").half_ulps == 2);
    assert_true(ag_error_bound("f32acc-ex2-n128-spec14").naive == 2 && ag_error_bound("f32acc-ex2-n128-spec14").half_ulps == 2);
}

static double sway[ROOM];
static void find_sway(Case *c) { assert_true(ag_reference_sway(c->spec, &c->call, c->naive_o, sway)); }

/* One key cannot sway; of two with weights p and 1 - p each is 2 p (1 - p) of their distance away from the mean. */
static void test_sway(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 2, 2, 1, 2});
    c->q[0] = 1, c->q[1] = 1, c->k[0] = 0, c->k[1] = (float)log(3);
    c->v[0] = 10, c->v[1] = 1, c->v[2] = 20, c->v[3] = 1; /* the second channel stays */
    c->use = find_sway;
    run_spec(c, "attention: a\nscale: 1.0\nmask: k <= q\n");
    expect_near(sway[0], 0, 1e-15);
    expect_near(sway[1], 10 * 2 * 0.25 * 0.75, 1e-6); /* log(3) is a float */
    free(c);
}

static void test_score_bounds(void **state) {
    (void)state;
    assert_true(ag_error_bound("f32acc-ex2-n64").scores == 0);
    assert_true(ag_error_bound("f32acc-ex2-n64-tanh11").scores == 50 * 0x1p-11);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),           cmocka_unit_test(test_formats_every_value),
        cmocka_unit_test(test_formats_rounding), cmocka_unit_test(test_uniform_is_the_mean),
        cmocka_unit_test(test_one_hot_selects),  cmocka_unit_test(test_scale_score_and_params),
        cmocka_unit_test(test_causal_first_row), cmocka_unit_test(test_more_queries_than_keys),
        cmocka_unit_test(test_offset),           cmocka_unit_test(test_hidden_keys_contribute_nothing),
        cmocka_unit_test(test_empty_rows),       cmocka_unit_test(test_groups),
        cmocka_unit_test(test_strides),          cmocka_unit_test(test_lets_are_evaluated_once),
        cmocka_unit_test(test_naive_is_near),    cmocka_unit_test(test_compare),
        cmocka_unit_test(test_compare_floor),    cmocka_unit_test(test_sway),
        cmocka_unit_test(test_score_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
