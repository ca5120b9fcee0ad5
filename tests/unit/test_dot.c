/* test_dot.c: more products beside that of q and k: both kernel paths over all cases of `attngen check`, what attention has in their place, the spec read back. */
#include "with_check.h"

#define ROWS(n) "inputs: {x: {dtype: [b, h, q, " #n "]}, y: {dtype: [b, g, k, " #n "]}}\n"

/* Channels behind a multiple of 8 and elsewhere, up to a new power of 2 of lanes. */
static void test_channels(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {x: {dtype: [b, h, q, 8]}, y: {dtype: [b, g, k, 8]}, doc: {i32: [b, k]}}\nscore: s + scale * dot(x, y)\n"
              "mask: doc[b, q] == doc[b, k]\n",
              32); /* rows and a tile map, both in the workspace */
    must_pass("attention: t\n" ROWS(8) "score: s + scale * dot(x, y)\nmask: k <= q\n", 32);
    must_pass("attention: t\n" ROWS(5) "score: scale * dot(x, y) + s\nmask: k <= q\n", 31);
    must_pass("attention: t\n" ROWS(40) "score: s + dot(x, y) * scale\n", 16);
    must_pass("attention: t\n" ROWS(1) "score: s + scale * dot(x, y)\n", 64);
}

/* Tensors that heads or batches share; two of them, of which a let and the score have the sums. */
static void test_terms(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {x: {dtype: [b, g, q, 16]}, y: {dtype: [1, 1, k, 16]}}\nscore: s + scale * dot(x, y)\nmask: k <= q\n", 32);
    must_pass(
        "attention: t\ninputs: {x: {dtype: [b, h, q, 6]}, y: {dtype: [b, 1, k, 6]}, z: {dtype: [1, g, k, 6]}, bias: {f32: [h, k]}}\nmask: k <= q\n"
        "let:\n  all: scale * dot(x, y) + s + scale * dot(x, z)\n"
        "score: tanh(all / D) * D + (scale * dot(x, z) + bias[h, k] + 0.5 + s + scale * dot(x, y))\n",
        24);
    must_pass("attention: t\n" ROWS(4) "score: -(s + scale * dot(x, y)) - 1\nmask: D * k <= D * q\nnormalize: {softmax: {plus: D}}\n", 20);
}

/* The rows' own channels are changed before others stand behind them. */
static void test_prologue(void **state) {
    (void)state;
    must_pass(
        "attention: t\n" ROWS(8) "prologue: {q: [{rms_norm: {eps: 0.1}}, {rope: {theta: 50.0}}], k: [{rope: {theta: 50.0}}]}\nscore: s + scale * "
                                 "dot(x, y)\nmask: k <= q\n",
        32);
    must_pass("attention: t\n" ROWS(9) "prologue: {k: [{rms_norm: {eps: 0.1}}, {scale: 1 + d}]}\nscore: s + scale * dot(x, y)\n", 15);
}

/* One branch with an output of its own, two over the same keys; D is in all of them the number that it was. */
static void test_branches(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {x: {dtype: [b, h, q, 24]}, y: {dtype: [b, 1, k, 24]}, gate: {f32: [b, h, q, d]}}\n"
              "branches: {one: {score: 's + scale * dot(x, y)', mask: k <= q}}\noutput: one * sigmoid(gate[b, h, q, d]) + D\n",
              32);
    must_pass("attention: t\n" ROWS(
                  16) "let: {all: 'scale * dot(x, y) + s'}\nbranches:\n  near: {score: all - 0.01 * (q - k), mask: k <= q and q - k < 40}\n"
                      "  far: {score: 8 * tanh(all / 8) + D / 100, mask: k <= q - 40}\noutput: rms_norm(near - 0.5 * far, 1e-5)\n",
              40);
    must_pass("attention: t\n" ROWS(8) "prologue: {qk: [{rope: {theta: 50.0}}]}\nnormalize: {softmax: {plus: 1}}\n"
                                       "branches: {one: {score: 's + scale * dot(x, y)', mask: k <= q}}\n",
              64);
}

static void test_attention(void **state) {
    (void)state;
    Compilation *c =
        compiled("attention: t\n" ROWS(8) "score: s + scale * dot(x, y) + D * k\nlet: {d2: 2 * D}\nmask: d2 > k\n", "sm_80", "lower", 16);
    assert_int_equal(c->fn.spec->D, 16);
    assert_int_equal(c->attention->D, 24);
    Buf out = {0};
    ag_expr_print(&out, c->attention, c->attention->score);
    ag_put(&out, "; ");
    ag_expr_print(&out, c->attention, c->attention->let[0].value);
    assert_string_equal(out.s, "s + 16 * k; 2 * 16");
    out.n = 0;
    ag_expr_print(&out, c->fn.spec, c->fn.spec->score);
    assert_string_equal(out.s, "s + scale * dot(x, y) + D * k");
    ag_buf_free(&out);
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_channels), cmocka_unit_test(test_terms), cmocka_unit_test(test_prologue),
                                       cmocka_unit_test(test_branches), cmocka_unit_test(test_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
