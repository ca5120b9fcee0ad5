/* test_queries.c: branches with queries of their own: results on both kernel paths, over listed blocks and as what a selection goes by; the spec read back. */
#include "with_archs.h"

#define DIFFERENCE                                                                                                                                   \
    "attention: t\ninputs: {q2: {dtype: [b, h, q, d]}, k2: {dtype: [b, g, k, d]}}\nbranches:\n  x: {mask: k <= q}\n"                                 \
    "  y: {queries: q2, keys: k2, mask: k <= q}\noutput: rms_norm(x - 0.5 * y, 1e-5)\n"

static void test_difference(void **state) {
    (void)state;
    must_pass(DIFFERENCE, 0);
    must_pass(DIFFERENCE, 3);
}

static void test_lists(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {q2: {dtype: [b, h, q, d]}, list: {i32: [b, g, q, 3]}}\nbranches:\n"
              "  x: {queries: q2, blocks: list, block: 16, mask: k <= q}\n",
              2);
    must_pass("attention: t\ninputs: {q2: {dtype: [b, h, q, d]}}\nderive:\n  kc: {pool: k, size: 16, stride: 16, op: mean}\n"
              "  vc: {pool: v, size: 16, stride: 16, op: mean}\n  picks: {select: c, block: 16, count: 3, force: {first: 0, local: 1}}\n"
              "branches:\n  c: {queries: q2, keys: kc, values: vc, mask: 16 * k + 15 <= q}\n  x: {blocks: picks, mask: k <= q}\noutput: c + x\n",
              2);
}

/* q itself is no argument where no branch reads it. */
static void test_unread(void **state) {
    (void)state;
    Compilation *c = compiled("attention: t\ninputs: {q2: {dtype: [b, h, q, d]}}\nbranches: {x: {queries: q2}}\n", "sm_90a", NULL, 32, 1);
    assert_true(c->meta.tensor[TEN_Q].buffer);
    assert_string_equal(c->meta.tensor[ag_program_input(0)].name, "q2");
    assert_false(c->meta.tensor[ag_program_input(0)].buffer);
    ag_compilation_free(c);
}

static void test_print(void **state) {
    (void)state;
    Compilation *c = compiled(DIFFERENCE, "sm_80", NULL, 32, 1);
    Buf out = {0};
    ag_spec_print(&out, c->fn.spec);
    ag_putn(&out, "", 0);
    assert_non_null(strstr(out.s, "    queries: q2\n"));
    Compilation *again = compiled(out.s, "sm_80", NULL, 32, 0);
    assert_int_equal(again->fn.spec->branch[1].queries.kind, FROM_INPUT);
    assert_int_equal(again->fn.spec->branch[0].queries.kind, FROM_Q);
    ag_buf_free(&out);
    ag_compilation_free(again);
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_difference), cmocka_unit_test(test_lists), cmocka_unit_test(test_unread),
                                       cmocka_unit_test(test_print)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
