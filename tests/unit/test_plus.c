/* test_plus.c: a term in the denominator of the softmax: sinks, one more, none; results on both kernel paths, the spec read back, and logits far from the scores. */
#include "with_archs.h"

#define PLUS(inputs, mask, plus) "attention: t\n" inputs "mask: " mask "\nnormalize:\n  softmax:\n    plus: " plus "\n"

static void test_terms(void **state) {
    (void)state;
    must_pass(PLUS("", "k <= q", "1"), 0);
    must_pass(PLUS("", "true", "0"), 0);
    must_pass(PLUS("params: {c: 2.5}\n", "k < q - 20", "c"), 0);
    must_pass(PLUS("inputs: {sink: {f32: [h]}}\n", "k <= q", "exp(sink[h])"), 0);
    must_pass(PLUS("inputs: {sink: {dtype: [b, g]}}\n", "k <= q and q - k < 9", "exp(sink[b, g])"), 0);
    must_pass(PLUS("inputs: {x: {f32: [b, h, q]}}\n", "k <= q", "exp(x[b, h, q]) + 0.5"), 0);
    must_pass(PLUS("inputs: {x: {f32: [b, h, q]}}\nlet:\n  y: x[b, h, q] + 0.1 * h\n", "k <= q", "exp(2 * y)"), 0);
}

/* exp of the logit is far out of the range of a float, either way. */
static void test_far(void **state) {
    (void)state;
    must_pass(PLUS("inputs: {sink: {f32: [h]}}\n", "k <= q", "exp(200 * sink[h])"), 0);
    must_pass(PLUS("", "k <= q", "exp(150)"), 0);
    must_pass(PLUS("", "k <= q", "exp(-150)"), 0);
}

static void test_print(void **state) {
    (void)state;
    Compilation *c = compiled(PLUS("inputs: {sink: {f32: [h]}}\n", "k <= q", "exp(sink[h])"), "sm_80", "lower", 64, 0);
    Buf out = {0};
    ag_spec_print(&out, c->fn.spec);
    ag_putn(&out, "", 0);
    assert_non_null(strstr(out.s, "normalize:\n  softmax:\n    plus: exp(sink[h])\n"));
    Compilation *again = compiled(out.s, "sm_80", "lower", 64, 0);
    Buf twice = {0};
    ag_spec_print(&twice, again->fn.spec);
    ag_putn(&twice, "", 0);
    assert_string_equal(twice.s, out.s);
    ag_buf_free(&out);
    ag_buf_free(&twice);
    ag_compilation_free(again);
    ag_compilation_free(c);
}

/* Each branch has it in its own denominator: over the same keys, other keys, pooled keys; as the output of one it has an LSE. */
static void test_branches(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {sink: {f32: [h]}, gate: {f32: [b, h, q]}}\nnormalize: {softmax: {plus: 'exp(sink[h])'}}\n"
              "branches: {one: {mask: k <= q and q - k < 40}}\noutput: one * sigmoid(gate[b, h, q])\n",
              0);
    must_pass("attention: t\nnormalize: {softmax: {plus: 1}}\ninputs: {q2: {dtype: [b, h, q, d]}, k2: {dtype: [b, g, k, d]}}\nbranches:\n"
              "  one: {mask: k <= q}\n  two: {queries: q2, keys: k2, mask: k < q - 3}\noutput: rms_norm(one - 0.5 * two, 1e-5)\n",
              2);
    must_pass("attention: t\nnormalize: {softmax: {plus: exp(0.01 * q)}}\nbranches: {one: {mask: k <= q}}\n", 0);
    must_pass("attention: t\nnormalize: {softmax: {plus: exp(0.1 * h)}}\nderive:\n  p: {pool: k, size: 32, stride: 32, op: mean}\n"
              "  w: {pool: v, size: 32, stride: 32, op: mean}\nbranches:\n  one: {keys: p, values: w, mask: 32 * k + 31 <= q}\n"
              "  two: {mask: k <= q and q - k < 64}\noutput: one + two\n",
              2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_terms), cmocka_unit_test(test_far), cmocka_unit_test(test_branches),
                                       cmocka_unit_test(test_print)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
