/* test_norm.c: norms over the channels of a row in `output`: results on both kernel paths, head dims that are no multiple of 8, rows that are 0, and what is refused. */
#include "with_archs.h"

#include <math.h>

#define ONE(inputs, output) "attention: t\n" inputs "branches:\n  a: {mask: k <= q}\noutput: " output "\n"
#define TWO(inputs, output) "attention: t\n" inputs "branches:\n  a: {mask: k <= q}\n  c: {mask: 'k <= q and q - k < 20'}\noutput: " output "\n"

static void test_forms(void **state) {
    (void)state;
    must_pass(ONE("", "rms_norm(a, 1e-5)"), 0);
    must_pass(ONE("inputs: {w: {f32: [d]}}\n", "rms_norm(a, 1e-5) * w[d]"), 0);
    must_pass(ONE("inputs: {w: {dtype: [h, d]}, u: {f32: [d]}}\nparams: {eps: 1e-3}\n", "layer_norm(a, eps) * w[h, d] + u[d]"), 0);
    must_pass(ONE("inputs: {e: {f32: [b, h, q]}}\n", "rms_norm(2 * a - d * 0.125, 1 + abs(e[b, h, q]))"), 0);
    must_pass(TWO("inputs: {w: {f32: [h, 1]}}\n", "0.8 * rms_norm(a - w[h, 0] * c, 1e-5)"), 0);
    must_pass(TWO("", "layer_norm(a, 0.1) * rms_norm(c, 0.1) + rms_norm(layer_norm(a + c, 1e-2), 0.5)"), 0);
    must_pass(TWO("inputs: {gate: {dtype: [b, h, q, d]}}\n", "rms_norm(a, 1e-5) * sigmoid(gate[b, h, q, d]) + c"), 3);
}

/* Rows that see no key: the root is 0 with eps 0. */
static void test_zero(void **state) {
    (void)state;
    must_pass("attention: t\nbranches:\n  a: {mask: k < q - 40}\noutput: rms_norm(a, 0)\n", 0);
    must_pass("attention: t\nbranches:\n  a: {mask: k < q - 40}\noutput: layer_norm(a, 0) + 1\n", 0);
}

/* Channels that pad a fragment do not count, whatever is computed there. */
static void test_padded(void **state) {
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_90a"};
    static const int D[] = {1, 8, 31, 40, 72};
    const char *text = ONE("inputs: {w: {f32: [d]}}\n", "layer_norm(a + 7 + w[d], 1e-5) + rms_norm(a + 1, 0.5)");
    for (int i = 0; i < LEN(arch) * LEN(D); i++) {
        Compilation *c = compiled(text, arch[i % LEN(arch)], NULL, D[i / LEN(arch)], 0);
        Case shape = {.B = 1, .Hkv = 2, .group = 1, .Sq = 70, .Sk = 70, .layout = LAY_TAIL};
        char *wrong = result(c, &shape, false);
        if (*wrong) fail_msg("%s, D %d: %s", arch[i % LEN(arch)], D[i / LEN(arch)], wrong);
        free(wrong);
        ag_compilation_free(c);
    }
}

/* The reference against the formula in the test's own words; one key, so that a row is the only value. */
static void test_reference(void **state) {
    (void)state;
    enum { D = 5 };
    static const char *const text[] = {ONE("", "rms_norm(a, 0.5)"), ONE("", "layer_norm(a, 0.5)")};
    for (int which = 0; which < LEN(text); which++) {
        Compilation *c = compiled(text[which], "sm_80", NULL, D, 0);
        Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 1, .Sk = 1};
        CaseData data;
        assert_true(ag_check_data(&data, &shape, c->fn.spec, 3));
        double o[D], lse[1], mean = 0, square = 0;
        assert_true(ag_reference(c->fn.spec, &data.call, o, lse));
        for (int i = 0; i < D && which; i++) mean += ag_host_get(&data.call.v, 0, 0, 0, i) / D;
        for (int i = 0; i < D; i++) square += pow(ag_host_get(&data.call.v, 0, 0, 0, i) - mean, 2) / D;
        for (int i = 0; i < D; i++) assert_true(fabs(o[i] - (ag_host_get(&data.call.v, 0, 0, 0, i) - mean) / sqrt(square + 0.5)) < 1e-12);
        ag_check_data_free(&data);
        ag_compilation_free(c);
    }
}

/* Listed blocks are visited query by query then, and only so. */
static void test_lists(void **state) {
    (void)state;
    const char *text =
        "attention: t\ninputs: {list: {i32: [b, g, q, 4]}}\nbranches:\n  a: {blocks: list, block: 16, mask: k <= q}\noutput: rms_norm(a, 1e-5)\n";
    must_pass(text, 1);
    must_pass(text, 4);
    attngen_source spec = {"spec.yaml", text, strlen(text)}, schedule = {"s.yaml", NULL, 0};
    static const char by_block[] = "schema: attngen.schedule/1\nname: s\ntarget: {arch: [sm_80]}\nloop: {lists: block}\n";
    schedule.text = by_block;
    schedule.len = strlen(by_block);
    Compilation *c = ag_compile_text(&spec, &schedule, "sm_80", NULL, 0, NULL);
    assert_non_null(c);
    assert_int_equal(c->diag.status, ATTNGEN_E_UNSUPPORTED);
    char *text_of = report(c);
    assert_non_null(strstr(text_of, "loop.lists: block has no kernel in which a row has all its channels, as a norm over them needs: write query"));
    free(text_of);
    ag_compilation_free(c);
}

/* A broken kernel is found: the sum is read before it is there, or is of the padding too. */
static Ins *sum_of(Kernel *k) {
    for (Ins *i = k->role[0].body.first; i; i = i->next)
        if (i->op == TI_OUTPUT_SUM) return i;
    return NULL;
}
static void test_broken(void **state) {
    (void)state;
    Compilation *c = compiled(ONE("", "rms_norm(a, 1e-5)"), "sm_80", NULL, 32, 0);
    Kernel *k = c->part[c->npart - 1].kernel;
    ag_tile_check(k, FACT_PLACED | FACT_PIPELINED);
    must_compile(c);
    Ins *sum = sum_of(k);
    assert_non_null(sum);
    ag_block_remove(&k->role[0].body, sum);
    Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 20, .Sk = 20};
    char *wrong = result(c, &shape, false);
    assert_non_null(strstr(wrong, "sum0"));
    free(wrong);
    ag_tile_check(k, FACT_PLACED | FACT_PIPELINED);
    char *text = report(c);
    assert_non_null(strstr(text, "a value is read before it is written"));
    free(text);
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms),     cmocka_unit_test(test_zero),  cmocka_unit_test(test_padded),
                                       cmocka_unit_test(test_reference), cmocka_unit_test(test_lists), cmocka_unit_test(test_broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
