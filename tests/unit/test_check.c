/* test_check.c: the grid of `attngen check`, its tensors, and what it reports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"
#include "compile.h"

static const char CAUSAL[] = "attention: causal\nmask: k <= q\n";
static const char WINDOW[] = "attention: local\nparams:\n  window: {int: 9}\nmask: k <= q and q - k < window\n";

static attngen_source source(const char *name, const char *text) { return (attngen_source){name, text, strlen(text)}; }

static attngen_context *context(void) {
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    attngen_context *ctx = NULL;
    o.arch = "sm_80";
    o.cache_dir = "";
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    return ctx;
}

/* ---- the grid */

static CaseList grid(GridWants w) {
    CaseList l = {0};
    ag_check_grid(&l, &w);
    assert_false(l.oom);
    return l;
}

static void test_grid_covers(void **state) {
    (void)state;
    static const int lengths[] = {0, 1, 7, 63, 64, 65, 127, 129, 704}, groups[] = {1, 3, 5, 6, 7, 8};
    static const int dims[][2] = {{31, 31}, {40, 40}, {64, 64}, {72, 72}, {80, 80}, {96, 96}, {128, 128}, {160, 160}, {192, 128}, {256, 256}};
    CaseList l = grid((GridWants){.any_dim = true, .any_dtype = true, .int_params = true});
    for (int x = 0; x < (int)(sizeof lengths / sizeof *lengths); x++) {
        bool q = false, k = false;
        for (int i = 0; i < l.n; i++) q |= l.item[i].Sq == lengths[x], k |= l.item[i].Sk == lengths[x];
        assert_true(q && k);
    }
    for (int x = 0; x < (int)(sizeof groups / sizeof *groups); x++) {
        bool seen = false;
        for (int i = 0; i < l.n; i++) seen |= l.item[i].group == groups[x];
        assert_true(seen);
    }
    for (int x = 0; x < LAY_COUNT; x++) {
        bool seen = false;
        for (int i = 0; i < l.n; i++) seen |= l.item[i].layout == (TensorLayout)x;
        assert_true(seen);
    }
    for (int x = 0; x < (int)(sizeof dims / sizeof *dims); x++) {
        bool f16 = false, bf16 = false;
        for (int i = 0; i < l.n; i++)
            if (l.item[i].D == dims[x][0] && l.item[i].Dv == dims[x][1])
                f16 |= l.item[i].dtype == ATTNGEN_F16, bf16 |= l.item[i].dtype == ATTNGEN_BF16;
        assert_true(f16 && bf16);
    }
    free(l.item);
}

static void test_grid_follows_spec(void **state) {
    (void)state;
    CaseList open = grid((GridWants){.any_dim = true, .any_dtype = true}), l = grid((GridWants){.group = 4});
    for (int i = 0; i < l.n; i++) {
        assert_int_equal(l.item[i].group, 4);
        assert_int_equal(l.item[i].D, 0);
        assert_int_equal(l.item[i].dtype, 0);
        assert_int_equal(l.item[i].param, 0);
    }
    assert_true(l.n >= 25 && l.n < open.n);
    CaseList full = grid((GridWants){.full = true, .any_dim = true, .any_dtype = true});
    assert_true(full.n >= open.n + 81);
    free(open.item);
    free(l.item);
    free(full.item);
}

static void test_names(void **state) {
    (void)state;
    static const struct {
        Case c;
        Spec s;
        const char *name;
    } t[] = {
        {{1, 1, 3, 65, 129, ATTNGEN_ALIGN_END, LAY_PLAIN, false, 0, false, 0, 0, 0},
         {.D = 64, .Dv = 64, .dtype = DT_BF16},
         "D64 bf16 B1 H3/1 S65x129"},
        {{2, 2, 1, 7, 1, -5, LAY_BSHD, true, 40, true, 0, 0, 0},
         {.D = 192, .Dv = 128, .dtype = DT_F16},
         "D192/128 f16 B2 H2/2 S7x1 offset -5 params 40 bshd large no-lse"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char name[128];
        ag_check_case_name(name, sizeof name, &t[i].c, &t[i].s);
        assert_string_equal(name, t[i].name);
    }
}

/* ---- tensors */

static const Spec small = {.D = 20, .Dv = 12, .dtype = DT_BF16};

static Case with_layout(TensorLayout layout) {
    return (Case){.B = 2, .Hkv = 2, .group = 2, .Sq = 5, .Sk = 7, .offset = ATTNGEN_ALIGN_END, .layout = layout};
}

static bool all_nan(const CaseTensor *t, const unsigned char *inside) {
    int e = ag_dtype_bytes(t->view.type);
    for (size_t i = 0; i < t->bytes / (size_t)e; i++) {
        HostTensor x = {t->flat, {0, 0, 0, 1}, t->view.type};
        if (!inside[i] && !isnan(ag_host_get(&x, 0, 0, 0, (int64_t)i))) return false;
    }
    return true;
}

/* Every element of the view is a finite number inside the buffer; everything else is NaN. */
static void check_tensor(const CaseTensor *t, bool filled) {
    int e = ag_dtype_bytes(t->view.type);
    unsigned char *inside = calloc(t->bytes, 1);
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t r = 0; r < t->dim[2]; r++)
                for (int64_t d = 0; d < t->dim[3]; d++) {
                    const int64_t *s = t->view.stride;
                    int64_t at = (int64_t)t->at / e + b * s[0] + h * s[1] + r * s[2] + d * s[3];
                    assert_in_range(at, 64, t->bytes / (size_t)e - 65);
                    inside[at] = 1;
                    assert_true(!filled || isfinite(ag_host_get(&t->view, b, h, r, d)));
                }
    assert_true(all_nan(t, inside));
    free(inside);
}

static void test_layouts(void **state) {
    (void)state;
    for (int x = 0; x < LAY_COUNT; x++) {
        CaseData d;
        Case c = with_layout((TensorLayout)x);
        assert_true(ag_check_data(&d, &c, &small, 7));
        for (int i = 0; i < CASE_TENSORS; i++) check_tensor(&d.t[i], i < TEN_O);
        ag_check_data_free(&d);
    }
}

static void test_strides(void **state) {
    (void)state;
    static const struct {
        TensorLayout layout;
        int64_t q[4], k[4];
    } t[] = {
        {LAY_PLAIN, {400, 100, 20, 1}, {280, 140, 20, 1}},      {LAY_TAIL, {800, 200, 20, 1}, {480, 240, 20, 1}},
        {LAY_BSHD, {400, 20, 80, 1}, {280, 20, 40, 1}},         {LAY_PITCH, {560, 140, 28, 1}, {392, 196, 28, 1}},
        {LAY_STEP, {800, 200, 40, 2}, {560, 280, 40, 2}},       {LAY_BROADCAST, {400, 100, 20, 1}, {0, 0, 20, 1}},
        {LAY_REVERSED, {400, 100, -20, 1}, {280, 140, -20, 1}},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        CaseData d;
        Case c = with_layout(t[i].layout);
        assert_true(ag_check_data(&d, &c, &small, 7));
        assert_memory_equal(d.call.q.stride, t[i].q, sizeof t[i].q);
        assert_memory_equal(d.call.k.stride, t[i].k, sizeof t[i].k);
        assert_true(d.call.o.stride[2] > 0);
        ag_check_data_free(&d);
    }
}

static void test_seeds(void **state) {
    (void)state;
    CaseData a, b, c;
    Case x = with_layout(LAY_PLAIN);
    assert_true(ag_check_data(&a, &x, &small, 7) && ag_check_data(&b, &x, &small, 7) && ag_check_data(&c, &x, &small, 8));
    for (int i = 0; i < CASE_TENSORS; i++) assert_memory_equal(a.t[i].flat, b.t[i].flat, a.t[i].bytes);
    assert_memory_not_equal(a.t[0].flat, c.t[0].flat, a.t[0].bytes);
    double sum = 0, square = 0;
    for (int64_t i = 0; i < 2 * 4 * 5 * 20; i++) {
        double q = ag_host_get(&a.call.q, 0, 0, 0, i);
        sum += q, square += q * q;
    }
    assert_true(fabs(sum / 800) < 0.15 && fabs(square / 800 - 1) < 0.2);
    ag_check_data_free(&a);
    ag_check_data_free(&b);
    ag_check_data_free(&c);
}

static void test_surroundings(void **state) {
    (void)state;
    Case x = with_layout(LAY_PITCH);
    CaseData d;
    assert_true(ag_check_data(&d, &x, &small, 7));
    ag_check_poison(&d, &small);
    assert_true(ag_is_poison(&d.call.o, 1, 3, 4, 11));
    ag_host_set(&d.call.o, 1, 3, 4, 11, 1.0);
    assert_true(ag_check_surroundings(&d));
    ag_check_poison(&d, &small);
    ag_host_set(&d.call.o, 1, 3, 4, 12, 1.0); /* the first element behind a row */
    assert_false(ag_check_surroundings(&d));
    ag_check_data_free(&d);
}

/* ---- ag_check */

typedef struct Log {
    int begun, done, failed, last_total;
    char text[512], name[128];
} Log;

static void on_begin(void *payload, const CheckCase *c) {
    Log *l = payload;
    assert_int_equal(c->index, l->begun++);
    assert_string_equal(c->text, "");
    l->last_total = c->total;
}

static void on_done(void *payload, const CheckCase *c) {
    Log *l = payload;
    l->done++;
    l->failed += !c->ok;
    strncpy(l->text, c->text, sizeof l->text - 1);
    strncpy(l->name, c->name, sizeof l->name - 1);
    assert_string_equal(c->where, "simulator");
}

static CheckOptions options(const char *spec, const attngen_dim *dims, size_t ndims, const char *only, Log *log) {
    return (CheckOptions){.spec = source("spec.yaml", spec),
                          .dims = dims,
                          .ndims = ndims,
                          .only = only,
                          .gpu = CHECK_GPU_NO,
                          .begin = on_begin,
                          .done = on_done,
                          .payload = log};
}

static void test_passes(void **state) {
    (void)state;
    const attngen_dim dims[] = {{"D", 32}};
    attngen_context *ctx = context();
    CheckReport r;
    Log log = {0};
    CheckOptions o = options(WINDOW, dims, 1, NULL, &log);
    attngen_status s = ag_check(ctx, &o, &r);
    if (s != ATTNGEN_OK) fail_msg("%s: %s: %s", attngen_errmsg(ctx), log.name, log.text);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.passed, log.last_total);
    assert_int_equal(log.done, log.last_total);
    assert_true(log.done >= 32);
    assert_string_equal(r.device, "");
    assert_non_null(strstr(r.program, "local under "));
    assert_non_null(strstr(r.program, " for sm_80, D 32, bf16"));
    attngen_destroy(ctx);
}

static void test_only(void **state) {
    (void)state;
    const attngen_dim dims[] = {{"D", 32}, {"dtype", ATTNGEN_F16}};
    attngen_context *ctx = context();
    CheckReport r;
    Log log = {0};
    CheckOptions o = options(CAUSAL, dims, 2, "S7x65", &log);
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_OK);
    assert_int_equal(r.passed, 1);
    assert_string_equal(log.name, "D32 f16 B3 H5/1 S7x65 tail");
    o.only = "no such case";
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_OK);
    assert_int_equal(r.passed + r.failed, 0);
    attngen_destroy(ctx);
}

/* The context gives ag_check the very program that is broken here. */
static void test_fails(void **state) {
    (void)state;
    const attngen_dim dims[] = {{"D", 32}};
    attngen_context *ctx = context();
    attngen_source spec = source("spec.yaml", CAUSAL);
    attngen_program *p = NULL;
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, dims, 1), ATTNGEN_OK);
    Kernel *k = ag_program_compilation(p)->fn.kernel;
    Block *b = &k->role[0].body;
    Ins *i = b->first;
    while (i->op != TI_STORE) i = i->next;
    ag_block_remove(b, i);
    CheckReport r;
    Log log = {0};
    CheckOptions o = options(CAUSAL, dims, 1, "S7x65", &log);
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_E_CHECK);
    assert_string_equal(attngen_errmsg(ctx), "1 of 1 cases failed");
    assert_string_equal(log.text, "simulated launch: query row 0 of o (h 0, b 0) is never written");
    assert_int_equal(r.failed, 1);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

/* A kernel that keeps its protocol and computes something else. */
static void test_wrong_result(void **state) {
    (void)state;
    const attngen_dim dims[] = {{"D", 32}};
    attngen_context *ctx = context();
    attngen_source spec = source("spec.yaml", CAUSAL);
    attngen_program *p = NULL;
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, dims, 1), ATTNGEN_OK);
    Kernel *k = ag_program_compilation(p)->fn.kernel;
    Ins *i = k->role[0].body.first;
    while (i->op != TI_STORE_ROW) i = i->next;
    Ins *map = ag_ins(k, TI_MAP, i->a);
    map->e[0] = ag_node_op(&k->nodes, OP_ADD, ag_kval(k, i->a), ag_node_float(&k->nodes, 0.01), 0, (Span){0});
    ag_block_insert_before(&k->role[0].body, i, map);
    CheckReport r;
    Log log = {0};
    CheckOptions o = options(CAUSAL, dims, 1, "S7x65", &log);
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_E_CHECK);
    assert_int_equal(log.failed, 1);
    assert_non_null(strstr(log.text, "lse"));
    attngen_program_free(p);
    attngen_destroy(ctx);
}

static void test_bad_input(void **state) {
    (void)state;
    attngen_context *ctx = context();
    CheckReport r;
    Log log = {0};
    CheckOptions o = options("attention: x\nmusk: k <= q\n", NULL, 0, NULL, &log);
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_E_SPEC);
    assert_non_null(strstr(attngen_errmsg(ctx), "spec.yaml:2:1: error: "));
    assert_int_equal(log.begun, 0);
    attngen_destroy(ctx);
}

/* A schedule for small head dims, and no D given: the first head dim that it is for. */
static void test_schedule_decides_dims(void **state) {
    (void)state;
    attngen_context *ctx = context();
    attngen_source schedule;
    assert_int_equal(attngen_shipped_schedule(&schedule, "mma_d64"), ATTNGEN_OK);
    CheckReport r;
    Log log = {0};
    CheckOptions o = options(CAUSAL, NULL, 0, "S1x1", &log);
    o.schedule = &schedule;
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_OK);
    assert_string_equal(r.program, "causal under mma_d64 for sm_80, D 64, bf16");
    assert_string_equal(log.name, "D64 bf16 B1 H1/1 S1x1");
    attngen_destroy(ctx);
}

/* A tanh of 11 bits in scores of f16 near the cap: rows whose naive error is small by luck are not judged by that alone. */
static void test_coarse_scores(void **state) {
    (void)state;
    attngen_options hopper = ATTNGEN_OPTIONS_INIT;
    attngen_context *ctx = NULL;
    attngen_source schedule, spec;
    hopper.arch = "sm_90a", hopper.cache_dir = "";
    assert_int_equal(attngen_create(&ctx, &hopper), ATTNGEN_OK);
    assert_int_equal(attngen_shipped_schedule(&schedule, "wgmma_d128_fast_tanh"), ATTNGEN_OK);
    assert_int_equal(attngen_shipped_spec(&spec, "gemma2"), ATTNGEN_OK);
    for (int seed = 0; seed < 4; seed++) {
        CheckReport r;
        Log log = {0};
        CheckOptions o = options(CAUSAL, NULL, 0, "large", &log);
        o.spec = spec;
        o.schedule = &schedule;
        o.seed = (uint32_t)seed;
        if (ag_check(ctx, &o, &r) != ATTNGEN_OK) fail_msg("seed %d: %s", seed, log.text);
        assert_true(r.passed >= 1);
    }
    attngen_destroy(ctx);
}

static void test_needs_device(void **state) {
    (void)state;
    attngen_context *ctx = context();
    CheckReport r;
    Log log = {0};
    CheckOptions o = options(CAUSAL, NULL, 0, "S1x1", &log);
    o.gpu = CHECK_GPU_YES;
    if (attngen_has_device(ctx, NULL)) skip();
    assert_int_equal(ag_check(ctx, &o, &r), ATTNGEN_E_DRIVER);
    assert_true(strlen(attngen_errmsg(ctx)) > 0);
    attngen_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grid_covers),
                                       cmocka_unit_test(test_grid_follows_spec),
                                       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_layouts),
                                       cmocka_unit_test(test_strides),
                                       cmocka_unit_test(test_seeds),
                                       cmocka_unit_test(test_surroundings),
                                       cmocka_unit_test(test_passes),
                                       cmocka_unit_test(test_only),
                                       cmocka_unit_test(test_fails),
                                       cmocka_unit_test(test_wrong_result),
                                       cmocka_unit_test(test_bad_input),
                                       cmocka_unit_test(test_schedule_decides_dims),
                                       cmocka_unit_test(test_coarse_scores),
                                       cmocka_unit_test(test_needs_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
