/* test_batch.c: parts of the batch: both kernel paths over all cases of `attngen check`, the spec read back, sizes that do not divide the batch. */
#include "with_check.h"

#define PARTS "attention: t\nbatch: [n, r]\n"

static void test_parts(void **state) {
    (void)state;
    must_pass(PARTS "inputs: {x: {f32: [r, n, h]}, m: {bool: [r, k]}, len: {i32: [n]}}\nscore: s + x[r, n, h] + 0.1 * n - 0.2 * r\nmask: m[r, k] or "
                    "k <= len[n]\n",
              32);
    must_pass("attention: t\nbatch: [n, r, t]\ninputs: {x: {f32: [t, k]}, y: {f32: [r, q]}, z: {dtype: [n, 1, q, k]}}\n"
              "score: s + x[t, k] * y[r, q] + z[n, h, q, k]\nmask: k + t <= q + r\n",
              32);
    must_pass("attention: t\nbatch: [n]\ninputs: {x: {f32: [n, k]}}\nscore: s + x[n, k]\n", 32);
    must_pass(PARTS "inputs: {x: {f32: [n, q]}}\nprologue: {q: [{scale: \"x[n, q] + r\"}]}\nmask: k <= q\n", 32);
    must_pass(PARTS
              "inputs: {gate: {f32: [n, r, q, h]}}\nbranches: {one: {mask: k <= q}, two: {mask: k > q}}\noutput: gate[n, r, q, h] * one + r * two\n",
              32);
}

static void test_print(void **state) {
    (void)state;
    Compilation *c = compiled("attention: t\nparams: {p: 3}\nbatch: [n, r]\ninputs: {x: {f32: [n, 2, r]}}\nscore: s + x[n, 1, r] * (r - p) - n\n",
                              "sm_80", "lower", 32);
    Buf once = {0}, twice = {0};
    ag_spec_print(&once, c->fn.spec);
    ag_putn(&once, "", 0);
    assert_non_null(strstr(once.s, "params:\n  p: {int: 3}\nbatch: [n, r]\ninputs:\n  x: {f32: [n, 2, r]}\nscore: s + x[n, 1, r] * (r - p) - n\n"));
    Compilation *again = compiled(once.s, "sm_80", "lower", 32);
    ag_spec_print(&twice, again->fn.spec);
    ag_putn(&twice, "", 0);
    assert_string_equal(once.s, twice.s);
    ag_buf_free(&once);
    ag_buf_free(&twice);
    ag_compilation_free(c);
    ag_compilation_free(again);
}

/* What a launch is told of sizes that are not those of the batch; and with them bound, the same. */
static void test_sizes(void **state) {
    (void)state;
    Compilation *c = compiled("attention: t\nbatch: [n, r, t]\ninputs: {x: {f32: [n, r, t]}}\nscore: s + x[n, r, t]\n", "sm_80", NULL, 32);
    int64_t size[SZ_COUNT] = {[SZ_B] = 12, [SZ_HQ] = 1, [SZ_HKV] = 1, [SZ_SQ] = 1, [SZ_SK] = 1, [SZ_D] = 32, [SZ_DV] = 32};
    static const struct {
        double r, t;
        const char *wrong;
    } sizes[] = {{2, 3, NULL},
                 {12, 1, NULL},
                 {3, 3, "t is 3: B = 12 is no multiple of the sizes of its parts"},
                 {5, 1, "r is 5: B = 12 is no multiple of the sizes of its parts"},
                 {0, 1, "r is 0: must be greater than 0"}};
    static float data[64];
    for (int i = 0; i < LEN(sizes); i++) {
        const attngen_arg arg[] = {{.name = "q", .data = data, .stride = {32, 32, 32, 1}},
                                   {.name = "k", .data = data, .stride = {32, 32, 32, 1}},
                                   {.name = "v", .data = data, .stride = {32, 32, 32, 1}},
                                   {.name = "o", .data = data, .stride = {32, 32, 32, 1}},
                                   {.name = "x", .data = data, .stride = {4, 2, 1}},
                                   {.name = "r", .scalar = sizes[i].r},
                                   {.name = "t", .scalar = sizes[i].t}};
        BoundArgs b;
        Err e = {{0}};
        attngen_status s = ag_args_bind(&b, &c->meta, size, arg, LEN(arg), &e);
        assert_int_equal(s, sizes[i].wrong ? ATTNGEN_E_INVALID_ARG : ATTNGEN_OK);
        if (sizes[i].wrong) assert_non_null(strstr(e.text, sizes[i].wrong));
    }
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts), cmocka_unit_test(test_print), cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
