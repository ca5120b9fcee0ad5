/* test_normalize.c: scores as weights, with and without their sum below: results on both kernel paths, rows and sums that are 0, the spec read back, no LSE. */
#include "with_archs.h"

#include <math.h>

#define NONE(more, mask, score)     "attention: t\n" more "score: " score "\nmask: " mask "\nnormalize: none\n"
#define SUM(more, mask, score)      "attention: t\n" more "score: " score "\nmask: " mask "\nnormalize: sum\n"
#define EPS(more, mask, score, eps) "attention: t\n" more "score: " score "\nmask: " mask "\nnormalize:\n  sum:\n    eps: " eps "\n"

static const char *text_of(const char *head, const char *tail) {
    static char text[512];
    snprintf(text, sizeof text, "%s%s", head, tail);
    return text;
}

static void test_none(void **state) {
    (void)state;
    must_pass(NONE("", "k <= q", "sigmoid(s - 3)"), 0);
    must_pass(NONE("", "true", "s"), 0);
    must_pass(NONE("", "k < q - 20 or k % 3 == 0", "-relu(s) / (q + 1000)"), 0);
    must_pass(NONE("inputs: {c: {f32: [h]}, bias: {f32: [b, h, q, k]}}\n", "k <= q and q - k < 9", "c[h] * tanh(s) + bias[b, h, q, k]"), 0);
}

static void test_sum(void **state) {
    (void)state;
    must_pass(SUM("", "k <= q", "exp2(s)"), 0);
    must_pass(SUM("", "k < q - 20", "1 + s + s * s / 2"), 0);
    must_pass(SUM("", "true", "0 * s"), 0); /* the sum is 0 in every row */
    must_pass(EPS("", "k <= q", "relu(s)", "1e-3"), 0);
    must_pass(EPS("", "k <= q", "-relu(s)", "-0.5"), 0);
    must_pass(EPS("inputs: {e: {f32: [b, h, q]}}\n", "k < q - 20", "abs(s)", "1 + abs(e[b, h, q])"), 0);
}

/* In every branch. */
static void test_branches(void **state) {
    (void)state;
    const char *two = "attention: t\nbranches:\n  a: {score: abs(s), mask: k <= q}\n  c: {score: 1 + s * s, mask: 'k <= q and q - k < 20'}\n";
    must_pass(text_of(two, "output: a - 0.25 * c\nnormalize: none\n"), 0);
    must_pass(text_of(two, "output: layer_norm(a + c, 1e-5)\nnormalize: {sum: {eps: 0.5}}\n"), 2);
    must_pass("attention: t\nbranches:\n  a: {score: sigmoid(s), mask: k <= q}\nnormalize: none\n", 0); /* one, which is the output: no LSE either */
}

/* Without any key O is 0: on sm_90a the tile that is fetched all the same holds what the map of another tensor brings, in the simulator a row of NaN. */
static void test_no_keys(void **state) {
    (void)state;
    static const char *const text[] = {
        NONE("", "true", "relu(s)"),
        NONE("", "k >= q - 20 and k < q", "1 + s"), /* the tile is not the tensor's first */
        NONE("", "k < 8 or (k <= q and q - k < 32)", "sigmoid(s)"),
        NONE("inputs: {doc: {i32: [b, k]}}\n", "doc[b, q] == doc[b, k]", "abs(s)"),
        EPS("", "k <= q", "relu(s)", "0.25"),
        ("attention: t\nnormalize: none\noutput: 2 * o1 + c\nderive:\n  p: {pool: k, size: 32, stride: 32, op: mean}\n"
         "  w: {pool: v, size: 32, stride: 32, op: mean}\nbranches:\n  o1: {keys: p, values: w, score: relu(s)}\n  c: {score: s, mask: k <= q}\n")};
    static const int dims[] = {64, 128, 256}, keys[] = {0, 31}; /* of which there are no pools */
    for (int i = 0; i < LEN(text) * 3; i++) {
        Compilation *c = compiled(text[i / 3], "sm_90a", NULL, dims[i % 3], 2);
        for (int n = 0; n < LEN(keys); n++) {
            char *wrong = result(c, &(Case){.B = 1, .Hkv = 2, .group = 2, .Sq = 65, .Sk = keys[n], .offset = ATTNGEN_ALIGN_END}, false);
            if (*wrong) fail_msg("D %d, %d keys: %s\n%s", dims[i % 3], keys[n], wrong, text[i / 3]);
            free(wrong);
        }
        ag_compilation_free(c);
    }
}

/* Over listed blocks: lists of the caller's, of a selection by a pool, unions of neighbouring lists. */
static void test_lists(void **state) {
    (void)state;
    static const char *const text[] = {
        "attention: t\nnormalize: none\ninputs: {list: {i32: [b, g, q, 4]}}\nbranches:\n  x: {blocks: list, block: 64, mask: k <= q, score: "
        "sigmoid(s - 3)}\n",
        "attention: t\nnormalize: sum\ninputs: {list: {i32: [b, h, q, 8]}}\nbranches:\n  x: {blocks: list, block: 16, score: abs(s)}\n  y: {score: 1 "
        "+ s * s}\n"
        "output: x - y\n",
        "attention: t\nnormalize: {sum: {eps: 0.25}}\nderive:\n  p: {pool: k, size: 32, stride: 32, op: mean, tail: partial}\n"
        "  picks: {select: p, block: 32, count: 4, force: {local: 1}}\nbranches:\n  x: {blocks: picks, mask: k <= q, score: 1 + s * s}\n",
        "attention: t\nnormalize: {softmax: {plus: 1}}\ninputs: {list: {i32: [b, h, q, 5]}, n: {i32: [b, h, q]}}\nbranches:\n"
        "  x: {blocks: list, counts: n, block: 32, mask: k <= q}\n  y: {mask: k <= q and q - k < 30}\noutput: x + 0.5 * y\n"};
    for (int i = 0; i < LEN(text); i++) {
        must_pass(text[i], 2);
        if (i == 0) must_pass(text[i], 8); /* one warp has rows of several queries */
    }
}

/* Block by block there is no such kernel: not by itself, and not by a schedule that asks for it. */
static void test_lists_by_block(void **state) {
    (void)state;
    static const char text[] =
        "attention: t\nnormalize: none\ninputs: {list: {i32: [b, g, q, 4]}}\nbranches:\n  x: {blocks: list, block: 64, score: abs(s)}\n";
    Compilation *c = compiled(text, "sm_80", NULL, 64, 1);
    assert_int_equal(c->sched->f[F_LISTS].v, LISTS_BY_QUERY);
    c->sched->f[F_LISTS].v = LISTS_BY_BLOCK;
    Buf schedule = {0}, said = {0};
    ag_schedule_print(&schedule, c->sched);
    ag_compilation_free(c);
    c = ag_compile_text(&(attngen_source){"t.yaml", text, sizeof text - 1}, &(attngen_source){"s.yaml", schedule.s, schedule.n}, "sm_80",
                        (attngen_dim[]){{"D", 64}, {"group", 1}}, 2, NULL);
    assert_int_equal(c->diag.status, ATTNGEN_E_UNSUPPORTED);
    ag_diag_render(&c->diag, &said);
    assert_non_null(strstr(said.s, "error: loop.lists: block merges the parts of a row by their LSEs, as of a plain softmax: write query\n"));
    ag_compilation_free(c);
    ag_buf_free(&said), ag_buf_free(&schedule);
}

/* The score of a hidden key may be anything: here infinite, and not a number. */
static void test_hidden(void **state) {
    (void)state;
    must_pass(NONE("", "k < q", "abs(s) / relu(q - k)"), 0);
    must_pass(SUM("", "k < q", "abs(s) * log(q - k + 1)"), 0);
}

static void reads_back(const char *text, const char *part) {
    Compilation *c = compiled(text, "sm_80", "lower", 64, 0);
    Buf out = {0}, twice = {0};
    ag_spec_print(&out, c->fn.spec);
    ag_putn(&out, "", 0);
    assert_non_null(strstr(out.s, part));
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
    reads_back(NONE("", "k <= q", "s"), "normalize: none\n");
    reads_back(SUM("", "k <= q", "s"), "normalize: sum\n");
    reads_back(EPS("", "k <= q", "s", "0.5"), "normalize:\n  sum:\n    eps: 0.5\n");
}

static Case small(int group) { return (Case){.B = 1, .Hkv = 1, .group = group, .Sq = 2, .Sk = 2}; }

/* Two keys, both seen: the reference against the formula in the test's own words. */
static void test_reference(void **state) {
    (void)state;
    static const char *const text[] = {NONE("", "true", "s * s"), SUM("", "true", "s * s"), EPS("", "true", "s * s", "2")};
    for (int which = 0; which < LEN(text); which++) {
        Compilation *c = compiled(text[which], "sm_80", NULL, 8, 0);
        const Spec *spec = c->fn.spec;
        Case shape = small(1);
        CaseData d;
        assert_true(ag_check_data(&d, &shape, spec, 5));
        double *o = doubles(&d.call, 8), *lse = doubles(&d.call, 1);
        assert_true(ag_reference(spec, &d.call, o, lse));
        for (int q = 0; q < 2; q++) {
            double x[2] = {0, 0};
            for (int k = 0; k < 2; k++) {
                for (int i = 0; i < 8; i++) x[k] += ag_host_get(&d.call.q, 0, 0, q, i) * ag_host_get(&d.call.k, 0, 0, k, i) / sqrt(8);
                x[k] *= x[k];
            }
            double below = which == 0 ? 1 : x[0] + x[1] + (which == 2 ? 2 : 0);
            for (int i = 0; i < 8; i++) {
                double want = (x[0] * ag_host_get(&d.call.v, 0, 0, 0, i) + x[1] * ag_host_get(&d.call.v, 0, 0, 1, i)) / below;
                assert_true(fabs(o[q * 8 + i] - want) < 1e-6 * (1 + fabs(want)));
            }
            assert_true(isnan(lse[q]));
        }
        assert_null(d.call.lse.data);
        ag_check_data_free(&d);
        free(o), free(lse);
        ag_compilation_free(c);
    }
}

/* f16 ends at 65504: the product of q and k squared is beyond, times scale squared it is not. */
static void test_range(void **state) {
    (void)state;
    attngen_source s = {"spec.yaml", NONE("scale: 0.0625\n", "k <= q", "s * s"), 0};
    s.len = strlen(s.text);
    static const char *const arch[] = {"sm_80", "sm_90a"};
    const attngen_dim dims[] = {{"D", 64}, {"dtype", ATTNGEN_F16}};
    for (int a = 0; a < LEN(arch); a++) {
        Compilation *c = ag_compile_text(&s, NULL, arch[a], dims, 2, NULL);
        assert_non_null(c);
        must_compile(c);
        Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 70, .large = true};
        char *wrong = result(c, &shape, false);
        if (*wrong) fail_msg("%s: %s", arch[a], wrong);
        free(wrong);
        ag_compilation_free(c);
    }
}

/* Asked for, LSE is refused by its name. */
static void test_no_lse(void **state) {
    (void)state;
    Compilation *c = compiled(SUM("", "k <= q", "abs(s)"), "sm_80", NULL, 8, 0);
    const int64_t sizes[SZ_COUNT] = {[SZ_B] = 1, [SZ_HQ] = 1, [SZ_HKV] = 1, [SZ_SQ] = 1, [SZ_SK] = 1, [SZ_D] = 8, [SZ_DV] = 8};
    float x = 0;
    const attngen_arg arg = {.name = "lse", .data = &x};
    BoundArgs b;
    Err e;
    assert_int_equal(ag_args_bind(&b, &c->meta, sizes, &arg, 1, &e), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(e.text, "unknown argument 'lse': t takes q k v o scale");
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_none),     cmocka_unit_test(test_sum),           cmocka_unit_test(test_hidden),
                                       cmocka_unit_test(test_branches), cmocka_unit_test(test_print),         cmocka_unit_test(test_reference),
                                       cmocka_unit_test(test_range),    cmocka_unit_test(test_no_lse),        cmocka_unit_test(test_no_keys),
                                       cmocka_unit_test(test_lists),    cmocka_unit_test(test_lists_by_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
