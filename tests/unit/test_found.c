/* What random specs (tests/cli/fuzz_specs.c) and new variants have found, a test for each kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "with_archs.h"

static const Case cases[] = {{.B = 1, .Hkv = 1, .group = 2, .Sq = 130, .Sk = 200, .offset = ATTNGEN_ALIGN_END},
                             {.B = 2, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 33, .offset = -3}};

static void passes_on(const char *arch, const char *spec) {
    Compilation *c = compiled(spec, arch, NULL, 16, 0);
    for (int i = 0; i < LEN(cases); i++) {
        char *wrong = result(c, &cases[i], false);
        if (*wrong) fail_msg("%s, shape %d: %s\n%s", arch, i, wrong, spec);
        free(wrong);
    }
    ag_compilation_free(c);
}

/* Ints wrap around: 2 * 2^30 is -2^31, so that k // (2 * n) is 0 or -1.  The ranges took the product for positive, and sums for what they are without an end, and
 * left out every key. */
static void test_wrapped_divisor(void **state) {
    (void)state;
    static const char *const masks[] = {"k // (n * 2) == q // (n * 2)",
                                        "k // (n * 2) == 0",
                                        "k <= q and k // (n * 4) == 0 and k % 4 == q % 4",
                                        "k * n <= q",
                                        "k - n * 2 <= q",
                                        "q - k < 2 * n",
                                        "k * 4 - n * 3 <= q",
                                        "k - n <= n"};
    for (int i = 0; i < LEN(masks); i++) {
        Buf spec = {0};
        ag_put(&spec, "attention: a\nparams: {size: {int: 1073741824}}\nlet: {n: 'max(size, 1)'}\nmask: %s\n", masks[i]);
        passes_on("sm_80", spec.s);
        passes_on("sm_90a", spec.s);
        ag_buf_free(&spec);
    }
}

/* Comparisons of keys with ints that are at the ends of 32 bits or wrap around; a row's bound is x + 1 or x - y, which has to stay in them. */
static void test_far_bounds(void **state) {
    (void)state;
    static const char *const masks[] = {"k <= 2 * n - 1",          "k > 2 * n - 1",        "k <= q * n",
                                        "q * n - k < 5",           "q - k < 0 - 2 * n",    "q + n - k < n + 100",
                                        "q + n - k > n - 40",      "k >= q * n + 1",       "q * n <= k",
                                        "k - q * n < 3",           "abs(q * n - k) <= 40", "n + n - k < q",
                                        "k <= q or q * n - k < 5", "k < 2 * n + q",        "q - 2 * n - k < 7",
                                        "k // (n * 4 + q) == 0",   "k % (n * 4) == 0",     "k // max(m, 0) == 0 and k % max(m, 0) == 0"};
    for (int i = 0; i < LEN(masks); i++) {
        Buf spec = {0};
        ag_put(&spec, "attention: a\nparams: {n: {int: 1073741824}, m: {int: 0}}\nmask: %s\n", masks[i]);
        passes_on("sm_80", spec.s);
        passes_on("sm_90a", spec.s);
        ag_buf_free(&spec);
    }
}

static int times_in(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

/* With a term in the denominator there were two running maxima where a score has a factor, and sums relative to the one were rescaled from the other. */
static void test_one_maximum(void **state) {
    (void)state;
    static const char *const scores[] = {"s",
                                         "s * x",
                                         "-s",
                                         "tanh(s) * x",
                                         "3 * tanh(s)",
                                         "s / x",
                                         "x * (q + 1)",
                                         "x * k + s",
                                         "softplus(x) * s",
                                         "max(s * x, 0.1)",
                                         "s * x / (1 + exp(x))",
                                         "relu(s) * x",
                                         "exp(x) * tanh(s)"};
    for (int i = 0; i < LEN(scores); i++) {
        Buf spec = {0}, math = {0};
        ag_put(&spec, "attention: a\nparams: {x: {float: 0.375}}\nscore: %s\nmask: k <= q\nnormalize: {softmax: {plus: exp(x)}}\n", scores[i]);
        Compilation *c = compiled(spec.s, "sm_80", "online", 16, 0);
        ag_math_dump(&math, c->fn.math);
        if (times_in(math.s, " max k:") != 1) fail_msg("%s: not one maximum:\n%s", scores[i], math.s);
        ag_compilation_free(c);
        passes_on("sm_80", spec.s);
        if (strstr(scores[i], "s")) passes_on("sm_90a", spec.s);
        ag_buf_free(&spec);
        ag_buf_free(&math);
    }
}

/* Scores that are alike for all keys: the maximum and the sum are of the same constant, and hidden keys are -inf in the one and 0 in the other. */
static void test_constant_score(void **state) {
    (void)state;
    static const char *const scores[] = {"0", "0.25", "x", "x * q", "softplus(0.3)"};
    for (int i = 0; i < LEN(scores); i++)
        for (int plus = 0; plus < 2; plus++) {
            Buf spec = {0};
            ag_put(&spec, "attention: a\nparams: {x: {float: 0.375}}\nscore: %s\n", scores[i]);
            if (plus) ag_put(&spec, "normalize: {softmax: {plus: exp(x)}}\n");
            passes_on("sm_80", spec.s);
            passes_on("sm_90a", spec.s);
            ag_buf_free(&spec);
        }
}

/* A score that does not name s has no kernel of wgmma: without a schedule the portable target is taken; with one, or where s drops out, the answer says so. */
static void test_without_products(void **state) {
    (void)state;
    static const struct {
        const char *text, *arch; /* that it is compiled for */
    } specs[] = {{"let: {far: q - k}\nscore: -0.5 * far\n", "sm_90"},
                 {"let: {t: 2 * s}\nscore: t - k\n", "sm_90a"},
                 {"mask: k <= q\n", "sm_90a"},
                 {"branches: {x: {score: -0.01 * k}, y: {mask: k <= q}}\noutput: x + y\n", "sm_90"},
                 {"branches: {x: {score: s - 0.01 * k}, y: {mask: k <= q}}\noutput: x + y\n", "sm_90a"}};
    for (int i = 0; i < LEN(specs); i++) {
        Buf spec = {0};
        ag_put(&spec, "attention: a\n%s", specs[i].text);
        Compilation *c = compiled(spec.s, "sm_90a", NULL, 16, 1);
        assert_string_equal(c->meta.arch, specs[i].arch);
        ag_compilation_free(c);
        ag_buf_free(&spec);
    }
}

/* A scalar of a tile that takes a division was told to the computing warps by a slot, which holds an int, also where it is a float or a condition. */
static void test_told(void **state) {
    (void)state;
    static const char *const scores[] = {"s + 0.25 * (h // max(n, 1))", "s + x * (h % max(n, 1)) + b // max(n, 1)",
                                         "(s if h // max(n, 1) > 0 else x) / 2"};
    for (volatile int i = 0; i < LEN(scores); i++) {
        Buf spec = {0};
        ag_put(&spec, "attention: a\nparams: {x: {float: 0.375}, n: {int: 2}}\nmask: k <= q\nscore: %s\n", scores[i]);
        passes_on("sm_90a", spec.s);
        Compilation *c = compiled(spec.s, "sm_90a", NULL, 16, 0);
        if (setjmp(c->diag.jump)) fail_msg("%s", report(c));
        ag_tile_check(c->fn.kernel, c->fn.facts);
        assert_int_equal(c->diag.status, ATTNGEN_OK);
        ag_compilation_free(c);
        ag_buf_free(&spec);
    }
}

/* What may leave 32 bits is printed as arithmetic that wraps around, and only that; divisions are C's own of what cannot be negative by what cannot be 0. */
static void test_wrapping_text(void **state) {
    (void)state;
    static const struct {
        const char *mask, *has, *not_has;
    } forms[] = {
        {"k % 3 + n * 4 <= q % 5", "wrap_mul(args.u_n, 4)", NULL},
        {"k * n <= q", "wrap_mul(k, args.u_n)", NULL},
        {"k * 3 + q <= n", "k * 3 + q", "wrap_"}, /* 3 * 2^29 + 2^29 - 1 is the most */
        {"k * 4 + q % 5 <= n", "wrap_add(", "wrap_mul"},
        {"abs(q * n) <= k", "wrap_abs(", NULL},
        {"-(q * n) % 3 <= k % 3", "wrap_sub(0, ", NULL},
        {"k <= q and q - k < n", NULL, "wrap_"},
        {"k % max(n, 1) == 0", "rem_by(k", "floor_mod"},
        {"k % max(n, 0) == 0", "floor_mod(k", "rem(k"},
        {"k // (max(n, 1) * 2) % 3 == q % 2", "floor_div(k", "quot(k"},
        {"k // (clamp(n, 1, 1000) * 2) % 3 == q % 2", "quot_by(k", "floor_div(k"},
        {"(q - k) % max(n, 1) == 0", "floor_mod_by(q - k", "rem_by"},
    };
    for (int i = 0; i < LEN(forms); i++) {
        Buf spec = {0};
        ag_put(&spec, "attention: a\nparams: {n: {int: 7}}\nmask: %s\n", forms[i].mask);
        Compilation *c = compiled(spec.s, "sm_80", NULL, 16, 0);
        const char *code = strstr(c->cu.s, "__global__");
        if (forms[i].has && !strstr(code, forms[i].has)) fail_msg("%s: no %s", forms[i].mask, forms[i].has);
        if (forms[i].not_has && strstr(code, forms[i].not_has)) fail_msg("%s: %s", forms[i].mask, forms[i].not_has);
        ag_compilation_free(c);
        ag_buf_free(&spec);
    }
}

/* Each let names the one before twice, and all are the same for a whole tile: written out as often as they are named they would fill all memory. */
static void chain(Buf *spec, int n, const char *first) {
    ag_put(spec, "attention: a\nparams: {w: {int: 3}, n: {int: 4}}\ninputs: {hw: {i32: [h]}}\nlet:\n  a0: %s\n", first);
    for (int i = 1; i < n; i++) ag_put(spec, "  a%d: (a%d // max(w, 1)) + (a%d %% max(n, 1))\n", i, i - 1, i - 1);
    ag_put(spec, "mask: k %% max(a%d, 1) == 0\n", n - 1);
}
static void test_chain_of_lets(void **state) {
    (void)state;
    static const char *const archs[] = {"sm_80", "sm_90a"}, *const firsts[] = {"h + b + hw[h]", "hw[h]"};
    for (int i = 0; i < 4; i++) {
        Buf deep = {0}, shorter = {0}, dump = {0};
        chain(&deep, 60, firsts[i % 2]);
        Compilation *c = compiled(deep.s, archs[i / 2], NULL, 16, 0);
        assert_true(strlen(c->cu.s) < 100000);
        ag_tile_dump(&dump, c->fn.kernel);
        assert_true(dump.n < 100000);
        ag_compilation_free(c);
        chain(&shorter, 12, firsts[i % 2]); /* where it is still some lets */
        passes_on(archs[i / 2], shorter.s);
        ag_buf_free(&deep), ag_buf_free(&shorter), ag_buf_free(&dump);
    }
}

/* With the maximum put out beside the softmax's own the score stands in a step twice.  Its tile of elements was read again after it had been given back. */
static void test_two_maxima(void **state) {
    (void)state;
    static const char spec[] = "attention: a\nparams: {x: 1.0}\ninputs: {bias: {dtype: [b, h, q, k]}}\n"
                               "score: clamp(min(bias[b, h, q, k] + s + min(s, 0.75), 0.8), -20, 20) * x + s\nrows: [lse, max]\n";
    Compilation *c = compiled(spec, "sm_90a", NULL, 16, 0);
    const char *first = strstr(c->cu.s, "bias_tile");
    assert_non_null(first);
    ag_compilation_free(c);
    passes_on("sm_80", spec);
    passes_on("sm_90a", spec);
}

/* A score that is the same for all keys of a row was taken from the fragment that its maximum was found in, where a factor asked for it by row; and its mask, a condition of the row, was
 * said to be missing from weights that it makes 0. */
static void test_row_scores_and_factors(void **state) {
    (void)state;
    static const char *const scores[] = {"0.75", "cos(q % 7 * 0.25)"}, *const masks[] = {"q >= 0", "q % 3 == 1", "off == -78"};
    for (int i = 0; i < LEN(scores) * LEN(masks); i++) {
        Buf spec = {0};
        ag_put(&spec, "attention: a\nscore: %s\nmask: %s\nweigh: clamp(s, -3, 3)\nrows: [lse, max, mean_weight]\n", scores[i % LEN(scores)],
               masks[i / LEN(scores)]);
        passes_on("sm_80", spec.s);
        passes_on("sm_90", spec.s);
        ag_buf_free(&spec);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrapped_divisor),       cmocka_unit_test(test_far_bounds),    cmocka_unit_test(test_one_maximum),
        cmocka_unit_test(test_constant_score),        cmocka_unit_test(test_told),          cmocka_unit_test(test_without_products),
        cmocka_unit_test(test_wrapping_text),         cmocka_unit_test(test_chain_of_lets), cmocka_unit_test(test_two_maxima),
        cmocka_unit_test(test_row_scores_and_factors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
