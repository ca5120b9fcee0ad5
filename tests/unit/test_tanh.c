/* test_tanh.c: numerics.tanh approx: where it reaches, what the class says, and how large its error is. */
#include "with_schedule.h"

#include <math.h>

static const char CAPPED[] = "attention: a\nparams: {cap: {float: 20.0}}\nscore: cap * tanh(s / cap)\nmask: k <= q\n";
static const attngen_dim D16[] = {{"D", 16}, {NULL, 0}};

static Compilation *with_tanh(const char *spec, Schedule s, int approx, const char *after) {
    s.f[F_TANH].v = approx;
    Compilation *c = compile_schedule(spec, &s, s.f[F_MMA_FAMILY].v == FAMILY_WGMMA ? "sm_90a" : "sm_80", D16, after);
    must_compile(c);
    return c;
}

static int times(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

static void test_text_and_class(void **state) {
    (void)state;
    Schedule speculative = small_wgmma(1), lazy = small_schedule();
    speculative.f[F_LOOP_FORM].v = 0;
    speculative.f[F_SOFTMAX].v = 1;
    lazy.f[F_RESCALE].v = 1;
    const struct {
        Schedule s;
        int approx;
        const char *numerics;
    } row[] = {{small_schedule(), 0, "f32acc-ex2-n16"},
               {small_schedule(), 1, "f32acc-ex2-n16-tanh11"},
               {lazy, 1, "f32acc-ex2-n16-lazy8-tanh11"},
               {small_wgmma(2), 1, "f32acc-ex2-n16-tanh11"},
               {speculative, 1, "f32acc-ex2-n16-spec40-tanh11"}};
    for (int i = 0; i < LEN(row); i++) {
        Compilation *c = with_tanh(CAPPED, row[i].s, row[i].approx, NULL);
        assert_string_equal(c->numerics, row[i].numerics);
        assert_int_equal(times(c->cu.s, "tanh.approx.f32"), row[i].approx);
        assert_int_equal(times(c->cu.s, "tanh_approx(") >= 2, row[i].approx);
        assert_int_equal(times(c->cu.s, "tanh_exp2(") == 0, row[i].approx);
        ag_compilation_free(c);
    }
}

/* The mask has its exact tanh beside the score's; what varies with the row or with nothing follows. */
static void test_reach(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int approx, exact; /* calls in the text, besides the leaves themselves */
    } row[] = {
        {"attention: a\nscore: s + tanh(0.1 * k)\nmask: tanh(0.2 * k) < 0.9\n", 1, 1},
        {"attention: a\nscore: s * tanh(0.1 * q)\n", 1, 0},
        {"attention: a\nparams: {x: {float: 0.5}}\nscore: s + tanh(x) * k\n", 1, 0},
        {"attention: a\nscore: s * tanh(0.5)\n", 0, 0}, /* a constant is computed here */
    };
    for (int i = 0; i < LEN(row); i++) {
        Compilation *c = with_tanh(row[i].spec, small_schedule(), 1, NULL);
        bool approx = times(c->cu.s, "tanh_approx(") > 0, exact = times(c->cu.s, "tanh_exp2(") > 0;
        if (approx != row[i].approx || exact != row[i].exact) fail_msg("row %d: %d approximate, %d exact", i, approx, exact);
        assert_int_equal(strstr(c->numerics, "-tanh11") != NULL, row[i].approx);
        ag_compilation_free(c);
    }
}

/* As many nodes as the spec has, not 2^60. */
static void test_shared(void **state) {
    (void)state;
    Buf spec = {0};
    ag_put(&spec, "attention: a\nlet:\n  x0: s\n");
    for (int i = 0; i < 60; i++) ag_put(&spec, "  x%d: x%d + tanh(x%d)\n", i + 1, i, i);
    ag_put(&spec, "score: 0.01 * x60\n");
    Compilation *c = with_tanh(spec.s, small_schedule(), 1, "place");
    int n = 0;
    for (int i = 1; i < c->fn.kernel->nodes.len; i++) n += c->fn.kernel->nodes.n[i].op == OP_TANHA;
    assert_true(n >= 60 && n <= 120);
    ag_compilation_free(c);
    ag_buf_free(&spec);
}

/* ---- errors */

/* The largest error of LSE, relative to max(1, |LSE|). */
static double lse_error(const Compilation *c, const Case *shape) {
    CaseData d;
    Buf message = {0};
    assert_true(ag_check_data(&d, shape, c->fn.spec, 3));
    ag_check_poison(&d, c->fn.spec);
    if (!ag_simulate(c->fn.kernel, &d.call, &message)) fail_msg("%s", message.s);
    double *o = doubles(&d.call, c->fn.spec->Dv), *lse = doubles(&d.call, 1), worst = 0;
    assert_true(ag_reference(c->fn.spec, &d.call, o, lse));
    for (int64_t h = 0; h < d.call.size[SZ_HQ]; h++)
        for (int64_t q = 0; q < d.call.size[SZ_SQ]; q++) {
            double want = lse[h * d.call.size[SZ_SQ] + q];
            worst = fmax(worst, fabs(ag_host_get(&d.call.lse, 0, h, q, 0) - want) / fmax(1, fabs(want)));
        }
    free(o);
    free(lse);
    ag_check_data_free(&d);
    return worst;
}

static void test_error(void **state) {
    (void)state;
    static const Case shape = {.B = 1, .Hkv = 2, .group = 1, .Sq = 65, .Sk = 65, .offset = ATTNGEN_ALIGN_END};
    for (int wgmma = 0; wgmma < 2; wgmma++) {
        Schedule s = wgmma ? small_wgmma(1) : small_schedule();
        Compilation *exact = with_tanh(CAPPED, s, 0, "place"), *approx = with_tanh(CAPPED, s, 1, "place");
        double error = lse_error(approx, &shape);
        assert_true(lse_error(exact, &shape) < 1e-5);
        assert_true(error > 0x1p-14 && error <= 0x1p-11);
        must_be_right(approx, &shape, 3);
        ag_compilation_free(exact);
        ag_compilation_free(approx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_and_class),
        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
