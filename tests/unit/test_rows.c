/* test_rows.c: what is put out of each row beside O (`rows`), and factors of weights (`weigh`): results on both kernel paths, exact maxima under schedules that
 * would take late ones, rows without keys, the reference in the test's own words, the spec read back. */
#include "with_archs.h"

#include <math.h>

#define ROWS(rows, more) "attention: t\nrows: " rows "\n" more

static void test_max(void **state) {
    (void)state;
    must_pass(ROWS("[lse, max]", "mask: k <= q\n"), 0);
    must_pass(ROWS("[max]", "mask: k < q - 20\n"), 0); /* rows without keys */
    must_pass(ROWS("[max, lse]", "score: 20 * tanh(s / 20) - 0.5 * abs(q - k)\n"), 0);
    must_pass(ROWS("[max]", "score: -s\nmask: k <= q\nnormalize: {softmax: {plus: 3}}\n"), 0); /* the term is no score */
    must_pass(ROWS("[lse, max]", "inputs: {bias: {f32: [b, h, q, k]}}\nscore: 's + bias[b, h, q, k]'\nmask: k <= q and q - k < 9\n"), 0);
    must_pass(ROWS("[]", "mask: k <= q\n"), 0);
}

static void test_weigh(void **state) {
    (void)state;
    must_pass(ROWS("[lse, mean_weight]", "inputs: {gate: {f32: [b, k]}}\nmask: k <= q\nweigh: 'gate[b, k]'\n"), 0);
    must_pass(ROWS("[mean_weight, max]", "inputs: {r: {dtype: [b, h, q, d]}}\nmask: k < q - 20\nweigh: dot(r, k)\n"), 0);
    must_pass(ROWS("[lse, mean_weight]", "score: 20 * tanh(s / 20)\nweigh: s - 0.25\n"), 0);
    must_pass(ROWS("[lse, max, mean_weight]",
                   "inputs: {r: {dtype: [b, h, q, d]}, c: {f32: [h]}}\nmask: k <= q and q - k < 40\nweigh: 'sigmoid(dot(r, k)) + c[h]'\n"),
              2);
    must_pass(ROWS("[lse, mean_weight]", "mask: k <= q\nweigh: 1 - 2 * (k % 2)\nnormalize: {softmax: {plus: 1}}\n"), 0);
    must_pass("attention: t\nmask: k < q\nweigh: 1 / relu(q - k)\n", 0); /* of hidden keys it is infinite */
    must_pass("attention: t\nmask: not (k > q or k % 5 == 2)\nweigh: s + k % 3\n", 0);
    must_pass(ROWS("[max, mean_weight]", "score: clamp((k - q) / 8, -4, 4)\nmask: k % 27 == 1\nweigh: s\n"), 0); /* the scores are no product */
    must_pass("attention: t\nmask: k < q\nweigh: log(q - k)\n", 0);                                              /* or no number */
}

#define R "inputs: {r: {dtype: [b, h, q, d]}, p: {dtype: [b, h, q, d]}}\n"

static void test_mean_of_branches(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {r: {dtype: [b, h, q, d]}}\nbranches:\n  a: {mask: k <= q}\n  c: {mask: k <= q, weigh: 'dot(r, k)'}\n"
              "output: a * (1 + mean_weight(c)) - c\n",
              0);
    must_pass("attention: t\n" R "branches:\n  c: {mask: k <= q, weigh: 'dot(r, k)'}\n  e: {queries: p, weigh: s}\n"
              "output: rms_norm(c - mean_weight(c) * e, 1e-5) + mean_weight(e)\n",
              2);
    must_pass("attention: t\nbranches:\n  c: {mask: k < q - 20, weigh: abs(s)}\noutput: c / (mean_weight(c) + 1)\n", 0); /* its own */
}

/* A late or a guessed maximum would not be what is put out. */
static void test_exact(void **state) {
    (void)state;
    static const char *const name[] = {"mma_d64", "wgmma_d64", "wgmma_d64_fast_compile"}, *const arch[] = {"sm_80", "sm_90a", "sm_90a"};
    attngen_source s = {"spec.yaml", ROWS("[lse, max]", "mask: k <= q\n"), 0};
    s.len = strlen(s.text);
    for (int i = 0; i < LEN(name); i++) {
        const Shipped *shipped = NULL;
        for (size_t n = 0; ag_shipped_schedule(n); n++)
            if (strcmp(ag_shipped_schedule(n)->name, name[i]) == 0) shipped = ag_shipped_schedule(n);
        assert_non_null(shipped);
        attngen_source schedule = {shipped->name, shipped->text, (size_t)shipped->len};
        const attngen_dim dims[] = {{"D", 64}};
        Compilation *c = ag_compile_text(&s, &schedule, arch[i], dims, 1, NULL);
        assert_non_null(c);
        must_compile(c);
        assert_null(strstr(c->numerics, "-lazy"));
        assert_null(strstr(c->numerics, "-spec"));
        Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 300, .Sk = 300, .large = true};
        char *wrong = result(c, &shape, false);
        if (*wrong) fail_msg("%s: %s", name[i], wrong);
        free(wrong);
        ag_compilation_free(c);
    }
}

/* Two keys, both seen: the reference against the formulas in the test's own words. */
static void test_reference(void **state) {
    (void)state;
    Compilation *c = compiled(ROWS("[lse, max, mean_weight]", "inputs: {r: {dtype: [b, h, q, d]}}\nweigh: dot(r, k) + 2 * k\n"), "sm_80", NULL, 8, 0);
    const Spec *spec = c->fn.spec;
    Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 2, .Sk = 2};
    CaseData d;
    assert_true(ag_check_data(&d, &shape, spec, 5));
    double *o = doubles(&d.call, 8), *value[ROWV_COUNT];
    for (int i = 0; i < ROWV_COUNT; i++) value[i] = doubles(&d.call, 1);
    assert_true(ag_reference_values(spec, &d.call, o, value));
    for (int q = 0; q < 2; q++) {
        double x[2] = {0, 0}, w[2] = {0, 2};
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 8; i++) {
                x[k] += ag_host_get(&d.call.q, 0, 0, q, i) * ag_host_get(&d.call.k, 0, 0, k, i) / sqrt(8);
                w[k] += ag_host_get(&d.call.input[0], 0, 0, q, i) * ag_host_get(&d.call.k, 0, 0, k, i);
            }
        double lse = log(exp(x[0]) + exp(x[1])), p = exp(x[0] - lse), r = 1 - p;
        assert_true(fabs(value[ROWV_LSE][q] - lse) < 1e-9);
        assert_true(fabs(value[ROWV_MAX][q] - fmax(x[0], x[1])) < 1e-9);
        assert_true(fabs(value[ROWV_MEAN][q] - p * w[0] - r * w[1]) < 1e-9);
        for (int i = 0; i < 8; i++) {
            double want = p * w[0] * ag_host_get(&d.call.v, 0, 0, 0, i) + r * w[1] * ag_host_get(&d.call.v, 0, 0, 1, i);
            assert_true(fabs(o[q * 8 + i] - want) < 1e-9 * (1 + fabs(want)));
        }
    }
    ag_check_data_free(&d);
    free(o);
    for (int i = 0; i < ROWV_COUNT; i++) free(value[i]);
    ag_compilation_free(c);
}

/* Rows that see no key: -inf, and 0. */
static void test_empty(void **state) {
    (void)state;
    Compilation *c = compiled(ROWS("[lse, max, mean_weight]", "mask: k < 0\nweigh: s\n"), "sm_80", NULL, 8, 0);
    Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 3, .Sk = 2};
    CaseData d;
    assert_true(ag_check_data(&d, &shape, c->fn.spec, 5));
    ag_check_poison(&d, c->fn.spec);
    Buf text = {0};
    ProgramBuffers buffers;
    assert_true(ag_simulate_program(c, &d.call, &buffers, &text));
    for (int q = 0; q < 3; q++) {
        assert_true(ag_host_get(&d.call.lse, 0, 0, q, 0) == -INFINITY);
        assert_true(ag_host_get(&d.call.max, 0, 0, q, 0) == -INFINITY);
        assert_true(ag_host_get(&d.call.mean_weight, 0, 0, q, 0) == 0);
        assert_true(ag_host_get(&d.call.o, 0, 0, q, 0) == 0);
    }
    ag_program_buffers_free(&buffers);
    ag_buf_free(&text);
    ag_check_data_free(&d);
    ag_compilation_free(c);
}

/* A value that is wrong, or missing, is found. */
static void test_compare(void **state) {
    (void)state;
    Compilation *c = compiled(ROWS("[max]", ""), "sm_80", NULL, 8, 0);
    Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 3, .Sk = 2};
    CaseData d;
    assert_true(ag_check_data(&d, &shape, c->fn.spec, 5));
    const double want[3] = {1, -INFINITY, -40};
    for (int wrong = -1; wrong < 3; wrong++) {
        Comparison r = {.ok = true};
        ag_check_poison(&d, c->fn.spec);
        for (int q = 0; q < 3; q++) ag_host_set(&d.call.max, 0, 0, q, 0, q == wrong ? want[q] - 0.01 : want[q]);
        ag_compare_value(&r, &d.call, ROWV_MAX, want, 1e-4);
        assert_int_equal(r.ok, wrong < 0 || wrong == 1);
    }
    Comparison r = {.ok = true};
    ag_check_poison(&d, c->fn.spec);
    ag_compare_value(&r, &d.call, ROWV_MAX, want, 1e-4);
    assert_false(r.ok);
    assert_int_equal(r.unwritten, 1);
    ag_check_data_free(&d);
    ag_compilation_free(c);
}

static void reads_back(const char *text, const char *part) {
    Compilation *c = compiled(text, "sm_80", "lower", 64, 0);
    Buf out = {0}, twice = {0};
    ag_spec_print(&out, c->fn.spec);
    ag_putn(&out, "", 0);
    if (!strstr(out.s, part)) fail_msg("no %s in\n%s", part, out.s);
    Compilation *again = compiled(out.s, "sm_80", "lower", 64, 0);
    ag_spec_print(&twice, again->fn.spec);
    ag_putn(&twice, "", 0);
    assert_string_equal(twice.s, out.s);
    ag_buf_free(&out);
    ag_buf_free(&twice);
    ag_compilation_free(again);
    ag_compilation_free(c);
}

static void test_print(void **state) {
    (void)state;
    reads_back(ROWS("[max, lse]", ""), "rows: [lse, max]\n");
    reads_back(ROWS("[]", ""), "rows: []\n");
    reads_back(ROWS("[mean_weight]", "inputs: {r: {dtype: [b, h, q, d]}}\nweigh: 2 * dot(r, k) - s\n"), "weigh: 2 * dot(r, k) - s\n");
    reads_back("attention: t\nbranches: {a: {weigh: s}}\noutput: a - mean_weight(a)\n", "output: a - mean_weight(a)\n");
}

/* Which are arguments: those that are put out. */
static void test_arguments(void **state) {
    (void)state;
    static const struct {
        const char *text, *takes;
    } t[] = {{ROWS("[lse, max]", ""), "t takes q k v o lse max scale"},
             {ROWS("[max]", ""), "t takes q k v o max scale"},
             {ROWS("[]", ""), "t takes q k v o scale"},
             {"attention: t\nweigh: s\n", "t takes q k v o lse scale"},
             {ROWS("[mean_weight]", "weigh: s\n"), "t takes q k v o mean_weight scale"}};
    for (int i = 0; i < LEN(t); i++) {
        Compilation *c = compiled(t[i].text, "sm_80", NULL, 8, 0);
        const int64_t sizes[SZ_COUNT] = {[SZ_B] = 1, [SZ_HQ] = 1, [SZ_HKV] = 1, [SZ_SQ] = 1, [SZ_SK] = 1, [SZ_D] = 8, [SZ_DV] = 8};
        float x = 0;
        const attngen_arg arg = {.name = "none", .data = &x};
        BoundArgs b;
        Err e;
        assert_int_equal(ag_args_bind(&b, &c->meta, sizes, &arg, 1, &e), ATTNGEN_E_INVALID_ARG);
        if (!strstr(e.text, t[i].takes)) fail_msg("%s: %s", t[i].text, e.text);
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_max),     cmocka_unit_test(test_weigh),     cmocka_unit_test(test_mean_of_branches),
                                       cmocka_unit_test(test_exact),   cmocka_unit_test(test_reference), cmocka_unit_test(test_empty),
                                       cmocka_unit_test(test_compare), cmocka_unit_test(test_print),     cmocka_unit_test(test_arguments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
