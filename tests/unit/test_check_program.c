/* test_check_program.c: `attngen check` of specs with inputs and branches: their data, what is demanded of a selection, the limits; and what tells callers of
 * tensors and buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "check_case.h"
#include "program.h"

static const char NSA[] = "attention: tiny\n"
                          "params: {l: {int: 32}, stride: {int: 16}, block: {int: 32}, top: {int: 4}, window: {int: 20}}\n"
                          "inputs:\n"
                          "  gate: {f32: [b, q, h, 3]}\n"
                          "derive:\n"
                          "  kc: {pool: k, size: l, stride: stride, op: mean}\n"
                          "  vc: {pool: v, size: l, stride: stride, op: mean}\n"
                          "  picks: {select: cmp, block: block, count: top, force: {first: 1, local: 1}, share: group}\n"
                          "branches:\n"
                          "  cmp: {keys: kc, values: vc, mask: stride * k + l - 1 <= q}\n"
                          "  slc: {blocks: picks, mask: k <= q}\n"
                          "  win: {mask: k <= q and q - k < window}\n"
                          "output: gate[b, q, h, 0] * cmp + gate[b, q, h, 1] * slc + gate[b, q, h, 2] * win\n";

static const char LISTS[] = "attention: lists\n"
                            "inputs:\n"
                            "  list: {i32: [b, h, q, 6]}\n"
                            "  n: {i32: [b, h, q]}\n"
                            "branches:\n"
                            "  only: {blocks: list, block: 16, blocks_per: 4, counts: n, mask: k <= q}\n";

/* Every type, and a pool with weights. */
static const char TYPES[] = "attention: types\n"
                            "inputs:\n"
                            "  w: {f32: [32]}\n"
                            "  c: {dtype: [h]}\n"
                            "  i: {i32: [q]}\n"
                            "  j: {i64: [b]}\n"
                            "  u: {u8: [h]}\n"
                            "  t: {bool: [1, q, d]}\n"
                            "  one: {f32: []}\n"
                            "  m: {f16: [b, g, q, h]}\n"
                            "derive:\n"
                            "  kc: {pool: k, size: 32, stride: 16, weights: w}\n"
                            "  vc: {pool: v, size: 32, stride: 16, weights: w}\n"
                            "branches:\n"
                            "  x: {mask: k <= q}\n"
                            "  y: {keys: kc, values: vc}\n"
                            "output: (x + c[h] + i[q] + j[b] + u[h] * one if t[0, q, d] else y) + m[b, g, q, 0]\n";

static attngen_source source(const char *text) { return (attngen_source){"spec.yaml", text, strlen(text)}; }

static attngen_context *context(void) {
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    attngen_context *ctx = NULL;
    o.arch = "sm_80";
    o.cache_dir = "";
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    return ctx;
}

/* The spec alone. */
static Compilation *read_spec(const char *text) {
    const attngen_dim dims[] = {{"D", 32}};
    attngen_source s = source(text);
    Compilation *c = ag_compile_text(&s, NULL, "sm_80", dims, 1, "lower");
    assert_non_null(c);
    assert_int_equal(c->diag.status, ATTNGEN_OK);
    return c;
}

static const Case some = {.B = 2, .Hkv = 2, .group = 1, .Sq = 9, .Sk = 70, .offset = ATTNGEN_ALIGN_END};

/* ---- data */

/* The least and the greatest element of an input, as it is stored. */
static void range_of(const CaseTensor *t, double *least, double *greatest) {
    *least = INFINITY, *greatest = -INFINITY;
    for (int64_t a = 0; a < t->dim[0]; a++)
        for (int64_t b = 0; b < t->dim[1]; b++)
            for (int64_t c = 0; c < t->dim[2]; c++)
                for (int64_t d = 0; d < t->dim[3]; d++) {
                    double x = ag_host_get(&t->view, a, b, c, d);
                    assert_true(isfinite(x));
                    *least = fmin(*least, x), *greatest = fmax(*greatest, x);
                }
}

static void test_types(void **state) {
    (void)state;
    static const struct {
        DType type;
        int64_t dim[4];
        double least, greatest;
    } want[] = {{DT_F32, {32, 1, 1, 1}, 0.25, 6},        {DT_BF16, {2, 1, 1, 1}, -6, 6}, {DT_I32, {9, 1, 1, 1}, -(1 << 24), 1 << 24},
                {DT_I64, {2, 1, 1, 1}, -(1 << 24), 9e9}, {DT_U8, {2, 1, 1, 1}, 0, 255},  {DT_BOOL, {1, 9, 32, 1}, 0, 1},
                {DT_F32, {1, 1, 1, 1}, -6, 6},           {DT_F16, {2, 2, 9, 2}, -6, 6}};
    Compilation *c = read_spec(TYPES);
    for (int layout = 0; layout < LAY_COUNT; layout++) {
        Case x = some;
        CaseData d;
        x.layout = (TensorLayout)layout;
        assert_true(ag_check_data(&d, &x, c->fn.spec, 3));
        assert_int_equal(d.n, CASE_TENSORS + 8);
        assert_null(d.call.lse.data);
        for (int i = 0; i < 8; i++) {
            const CaseTensor *t = &d.t[CASE_TENSORS + i];
            double least, greatest;
            assert_int_equal(t->view.type, want[i].type);
            assert_memory_equal(t->dim, want[i].dim, sizeof want[i].dim);
            assert_true(t->dim[4] == 1 && t->dim[5] == 1);
            assert_ptr_equal(d.call.input[i].data, t->view.data);
            range_of(t, &least, &greatest);
            assert_true(least >= want[i].least && greatest <= want[i].greatest);
        }
        ag_check_data_free(&d);
    }
    ag_compilation_free(c);
}

/* Lists have blocks that exist and such that do not, -1, and duplicates; counts go from below 0 to beyond the list. */
static void test_lists(void **state) {
    (void)state;
    Compilation *c = read_spec(LISTS);
    CaseData d;
    Case x = some;
    x.Sq = 90;
    assert_true(ag_check_data(&d, &x, c->fn.spec, 3));
    const CaseTensor *list = &d.t[CASE_TENSORS], *count = list + 1;
    int none = 0, beyond = 0, twice = 0, unsorted = 0, negative = 0, more = 0;
    assert_int_equal(list->dim[2], 23);
    for (int64_t q = 0; q < 23; q++) {
        for (int64_t i = 0; i < 6; i++) {
            double e = ag_host_get(&list->view, 0, 0, q, i), before = i ? ag_host_get(&list->view, 0, 0, q, i - 1) : -INFINITY;
            none += e == -1, beyond += e >= 5, unsorted += e < before, twice += e == before && e >= 0 && e < 5;
        }
        double n = ag_host_get(&count->view, 0, 0, q, 0);
        negative += n<0, more += n> 6;
    }
    assert_true(none && beyond && twice && unsorted && negative && more);
    ag_check_data_free(&d);
    ag_compilation_free(c);
}

static void test_sane_lists(void **state) {
    (void)state;
    Compilation *c = read_spec(LISTS);
    const int64_t size[SZ_COUNT] = {[SZ_B] = 1, [SZ_HQ] = 2, [SZ_HKV] = 1, [SZ_SQ] = 100, [SZ_SK] = 500, [SZ_D] = 32, [SZ_DV] = 32, [SZ_OFF] = 400};
    CaseTensor list = {0}, count = {0};
    assert_true(ag_check_input(&list, c->fn.spec, 0, size, LAY_PLAIN, 5, false));
    assert_true(ag_check_input(&count, c->fn.spec, 1, size, LAY_PLAIN, 5, false));
    for (int64_t q = 0; q < 25; q++) {
        assert_true(ag_host_get(&count.view, 0, 1, q, 0) == 6);
        for (int64_t i = 0; i < 6; i++) {
            double e = ag_host_get(&list.view, 0, 1, q, i);
            assert_true(e >= 0 && e <= (double)((400 + 4 * q + 3) / 16));
            assert_true(i == 0 || e > ag_host_get(&list.view, 0, 1, q, i - 1));
        }
    }
    free(list.flat);
    free(count.flat);
    ag_compilation_free(c);
}

/* ---- selections: one row, 6 blocks, of which the last must not be selected and the first always is */

static const double importance[] = {INFINITY, 0.5, 0.3, 0.29999, 0.1, -INFINITY};

static bool judged(const int32_t got[3], char text[200]) {
    int32_t want[] = {0, 1, 2}, own[3];
    double row[6];
    Derive x = {.name = STR("picks"), .kind = DERIVE_SELECT, .block = {16, 0}, .count = {3, 0}};
    Spec spec = {.derive = &x, .nderive = 1};
    HostCall call = {.size = {[SZ_B] = 1, [SZ_HQ] = 1, [SZ_HKV] = 1, [SZ_SQ] = 1, [SZ_SK] = 96}};
    memcpy(own, got, sizeof own);
    memcpy(row, importance, sizeof row);
    Selections s = {.n = 1, .len = {3}, .want = {want}, .got = {own}, .importance = {row}};
    text[0] = '\0';
    return ag_selections_judge(&s, &spec, &call, 1e-4, text, 200);
}

static void test_judge(void **state) {
    (void)state;
    static const struct {
        int32_t got[3];
        const char *why; /* NULL: right */
    } t[] = {{{0, 1, 2}, NULL},
             {{0, 1, 3}, NULL}, /* about as important as 2 */
             {{0, 1, 4}, "a block is missing that matters more than one that is there: 2"},
             {{0, 2, 3}, "a block is missing that matters more than one that is there: 1"},
             {{1, 2, 3}, "a block that is always selected is missing: 0"},
             {{0, 2, 1}, "the list is not ascending: 1"},
             {{0, 1, 1}, "the list is not ascending: 1"},
             {{0, 1, 5}, "the block must not be selected: 5"},
             {{0, 1, 6}, "there is no such block: 6"},
             {{0, 1, -2}, "there is no such block: -2"},
             {{0, 1, -1}, "the list ends though there are more blocks: -1"},
             {{-1, 0, 1}, "the list ends though there are more blocks: -1"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char text[200], want[200] = "";
        bool ok = judged(t[i].got, text);
        if (t[i].why) snprintf(want, sizeof want, "picks[b 0, g 0, q 0]: %s", t[i].why);
        assert_string_equal(text, want);
        assert_int_equal(ok, !t[i].why);
    }
}

/* ---- limits */

/* output a - a': what is left is small, but may be off by half an ulp of each. */
static void test_spread(void **state) {
    (void)state;
    Compilation *c = read_spec("attention: x\nbranches:\n  a: {mask: k <= q}\n  z: {mask: k == q}\noutput: 8 * a - 4 * z\n");
    Case x = {.B = 1, .Hkv = 1, .group = 1, .Sq = 3, .Sk = 3, .offset = ATTNGEN_ALIGN_END};
    CaseData d;
    double o[3 * 32], lse[3], spread[3];
    assert_true(ag_check_data(&d, &x, c->fn.spec, 3));
    assert_true(ag_reference_spread(c->fn.spec, &d.call, o, lse, spread));
    double largest = 0;
    for (int i = 0; i < 32; i++) largest = fmax(largest, fabs(ag_host_get(&d.call.v, 0, 0, 0, i)));
    assert_true(fabs(spread[0] - 12 * ag_half_ulp(DT_BF16, largest)) < 1e-9); /* query 0: both are v[0] */
    double got = o[5] + 0.9 * spread[0] + ag_half_ulp(DT_BF16, fabs(o[5]));
    for (int q = 0; q < 3; q++)
        for (int i = 0; i < 32; i++) ag_host_set(&d.call.o, 0, 0, q, i, o[q * 32 + i]);
    ag_host_set(&d.call.o, 0, 0, 0, 5, got);
    ErrorBound bound = ag_error_bound("f32acc-ex2-n64");
    assert_false(ag_compare(c->fn.spec, &d.call, bound, o, lse, o).ok);
    bound.spread = spread;
    assert_true(ag_compare(c->fn.spec, &d.call, bound, o, lse, o).ok);
    ag_check_data_free(&d);
    ag_compilation_free(c);
}

/* ---- the grid */

static void test_grid(void **state) {
    (void)state;
    static const int groups[] = {1, 2, 3, 4, 6, 16};
    GridWants w = {.program = true, .block = 64, .pool = 32, .stride = 16, .choice = 1280, .any_dtype = true};
    CaseList l = {0}, full = {0};
    ag_check_grid(&l, &w);
    unsigned seen = 0;
    bool decode = false, chooses = false, short_pool = false;
    for (int i = 0; i < l.n; i++) {
        for (int g = 0; g < 6; g++) seen |= (unsigned)(l.item[i].group == groups[g]) << g;
        decode |= l.item[i].Sq == 1 && l.item[i].offset != ATTNGEN_ALIGN_END;
        chooses |= l.item[i].Sk >= 1280;
        short_pool |= l.item[i].Sk < 32 && l.item[i].Sk > 0;
    }
    assert_int_equal(seen, 63);
    assert_true(decode && chooses && short_pool);
    w.full = true;
    ag_check_grid(&full, &w);
    assert_true(full.n > l.n + 25);
    free(l.item);
    free(full.item);
}

/* ---- the whole */

typedef struct Log {
    char text[512], name[128];
} Log;

static void on_done(void *payload, const CheckCase *c) {
    Log *l = payload;
    if (c->ok) return;
    strncpy(l->text, c->text, sizeof l->text - 1);
    strncpy(l->name, c->name, sizeof l->name - 1);
}

static void check(const char *text) {
    const attngen_dim dims[] = {{"D", 32}, {"dtype", ATTNGEN_BF16}};
    attngen_context *ctx = context();
    Log log = {{0}, {0}};
    CheckReport r;
    CheckOptions o = {.spec = source(text), .dims = dims, .ndims = 2, .gpu = CHECK_GPU_NO, .done = on_done, .payload = &log};
    attngen_status s = ag_check(ctx, &o, &r);
    if (s != ATTNGEN_OK) fail_msg("%s: %s: %s", attngen_errmsg(ctx), log.name, log.text);
    assert_true(r.passed >= 30);
    attngen_destroy(ctx);
}

static void test_passes(void **state) {
    (void)state;
    check(NSA);
    check(LISTS);
    check(TYPES);
}

/* Kernels that compute something else than the spec: it is the spec that is changed, behind their back. */
static void test_wrong_output(void **state) {
    (void)state;
    const attngen_dim dims[] = {{"D", 32}, {"dtype", ATTNGEN_BF16}, {"group", 1}};
    attngen_context *ctx = context();
    attngen_source spec = source(NSA);
    attngen_program *p = NULL;
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, dims, 3), ATTNGEN_OK);
    Spec *s = (Spec *)(uintptr_t)ag_program_compilation(p)->fn.spec;
    Log log = {{0}, {0}};
    CheckReport r;
    CheckOptions o = {.spec = spec, .dims = dims, .ndims = 3, .gpu = CHECK_GPU_NO, .only = "S40x", .done = on_done, .payload = &log};
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_OK);
    s->derive[2].local.n = 2; /* now the reference always selects one more */
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_E_CHECK);
    assert_non_null(strstr(log.text, "a block that is always selected is missing"));
    s->derive[2].local.n = 1;
    s->output->arg[1]->arg[0]->sub[3]->value.u.i = 0; /* gate 0 for gate 2 */
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_E_CHECK);
    assert_non_null(strstr(log.text, "o[b "));
    attngen_program_free(p);
    attngen_destroy(ctx);
}

/* ---- what tells of tensors and buffers */

static void test_tensors_of_a_call(void **state) {
    (void)state;
    static const struct {
        const char *name, *type;
        int rank, output;
        int64_t extent[ATTNGEN_MOST_DIMS];
    } want[] = {{"q", "bf16", 4, 0, {2, 4, 9, 32}},
                {"k", "bf16", 4, 0, {2, 2, 200, 32}},
                {"v", "bf16", 4, 0, {2, 2, 200, 32}},
                {"o", "bf16", 4, 1, {2, 4, 9, 32}},
                {"gate", "f32", 4, 0, {2, 9, 4, 3}}};
    const attngen_dim dims[] = {{"D", 32}};
    attngen_context *ctx = context();
    attngen_source spec = source(NSA);
    attngen_program *p = NULL;
    attngen_call *call = NULL;
    attngen_shape shape = {2, 4, 2, 9, 200, ATTNGEN_ALIGN_END};
    attngen_arg_info info;
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, dims, 1), ATTNGEN_OK);
    assert_int_equal(attngen_bind(ctx, &call, p, &shape), ATTNGEN_OK);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(attngen_call_tensor(call, i, &info), 1);
        assert_string_equal(info.name, want[i].name);
        assert_string_equal(info.type, want[i].type);
        assert_int_equal(info.rank, want[i].rank);
        assert_int_equal(info.output, want[i].output);
        assert_memory_equal(info.extent, want[i].extent, sizeof info.extent);
    }
    assert_int_equal(attngen_call_tensor(call, 5, &info), 0);
    assert_int_equal(attngen_call_tensor(NULL, 0, &info), 0);
    const ProgramMeta *m = &call->program->lowered->meta;
    int picks = ag_program_derive(call->program->lowered->fn.spec, 2);
    int64_t at = ag_workspace_place(m, call->size, picks);
    assert_true(at >= 256 && at % 256 == 0 && at + 2 * 2 * 9 * 4 * 4 <= (int64_t)attngen_workspace(call));
    assert_int_equal(ag_workspace_counters(m), 0);
    attngen_call_free(call);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

static double share(const char *text, int64_t sq, int64_t sk) {
    const attngen_dim dims[] = {{"D", 32}};
    attngen_source spec = source(text);
    attngen_shape shape = {1, 1, 1, sq, sk, ATTNGEN_ALIGN_END};
    double x;
    assert_int_equal(ag_visible_share(&x, &spec, dims, 1, &shape, NULL, 0), ATTNGEN_OK);
    return x;
}

static void test_visible(void **state) {
    (void)state;
    assert_true(fabs(share("attention: x\nmask: k <= q\n", 64, 64) - 65.0 / 128) < 1e-9);
    assert_true(fabs(share("attention: x\nbranches:\n  a: {mask: k <= q}\n  c: {}\noutput: a + c\n", 64, 64) - 1 - 65.0 / 128) < 1e-9);
    assert_true(fabs(share(LISTS, 4, 960) - 0.1) < 1e-9);                        /* 6 blocks of 16 */
    assert_true(fabs(share(NSA, 1, 1024) - (63 + 4 * 32 + 20) / 1024.0) < 1e-9); /* pooled keys, picks, window */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types),  cmocka_unit_test(test_lists),        cmocka_unit_test(test_sane_lists),
                                       cmocka_unit_test(test_judge),  cmocka_unit_test(test_spread),       cmocka_unit_test(test_grid),
                                       cmocka_unit_test(test_passes), cmocka_unit_test(test_wrong_output), cmocka_unit_test(test_tensors_of_a_call),
                                       cmocka_unit_test(test_visible)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
