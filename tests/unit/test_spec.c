/* The spec loader: fields and defaults, what is bound at compile time, printing.  Errors with a place are in tests/errors/spec. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "with_diag.h"

typedef struct Work {
    const attngen_dim *dims;
    size_t ndims;
    void (*use)(const Spec *spec, void *payload);
    void *payload;
} Work;

static void read_spec(Diag *d, uint16_t file, void *payload) {
    Work *w = payload;
    Spec *spec = ag_spec_read(d, file, w->dims, w->ndims);
    assert_int_equal(spec == NULL, d->nerror > 0);
    if (spec) w->use(spec, w->payload);
}

static void not_reached(const Spec *spec, void *payload) {
    (void)spec, (void)payload;
    fail();
}

static void with_spec(const char *text, const attngen_dim *dims, size_t ndims, void (*use)(const Spec *, void *), void *payload) {
    Work w = {dims, ndims, use, payload};
    char *report = report_of(ag_str(text), read_spec, &w, NULL);
    assert_string_equal(report, "");
    free(report);
}

/* ---- fields */

static void check_smallest(const Spec *s, void *payload) {
    (void)payload;
    assert_true(ag_str_is(s->name, "dense"));
    assert_int_equal(s->doc.n, 0);
    assert_int_equal(s->nparam, 1);
    assert_true(ag_str_is(s->param[0].name, "scale"));
    assert_int_equal(s->param[0].type, T_FLOAT);
    assert_true(s->param[0].positive && !s->param[0].bound && !s->scale_given);
    assert_true(s->param[0].value.u.f == 1 / sqrt(128));
    assert_null(s->score);
    assert_null(s->mask);
    assert_int_equal(s->nlet, 0);
    assert_int_equal(s->group, 0);
    assert_int_equal(s->D, 128);
    assert_int_equal(s->Dv, 128);
    assert_int_equal(s->dtype, DT_BF16);
}

static void test_smallest(void **state) {
    (void)state;
    with_spec("attention: dense", NULL, 0, check_smallest, NULL);
}

static const char full[] = "attention: full_1\n"
                           "doc: 'Everything: at once'\n"
                           "params:\n"
                           "  cap: {float: 50}\n"
                           "  window: {int: 4096}\n"
                           "  short_int: -3\n"
                           "  short_float: 1.5\n"
                           "heads: {group: 6}\n"
                           "scale: 0.25\n"
                           "let:\n"
                           "  capped: cap * tanh(s / cap)\n"
                           "  near: q - k < window\n"
                           "score: capped if near else short_int\n"
                           "mask: k <= q and near\n"
                           "normalize: softmax\n";

static void check_full(const Spec *s, void *payload) {
    (void)payload;
    static const struct {
        const char *name;
        Type type;
        double value;
    } want[] = {{"scale", T_FLOAT, 0.25}, {"cap", T_FLOAT, 50}, {"window", T_INT, 4096}, {"short_int", T_INT, -3}, {"short_float", T_FLOAT, 1.5}};
    assert_true(ag_str_is(s->doc, "Everything: at once"));
    assert_int_equal(s->nparam, LEN(want));
    for (int i = 0; i < LEN(want); i++) {
        const Param *p = &s->param[i];
        assert_true(ag_str_is(p->name, want[i].name));
        assert_int_equal(p->type, want[i].type);
        assert_true((p->type == T_INT ? (double)p->value.u.i : p->value.u.f) == want[i].value);
        assert_false(p->bound);
    }
    assert_int_equal(s->group, 6);
    assert_true(s->scale_given);
    assert_int_equal(s->nlet, 2);
    assert_true(s->let[0].uses_score && !s->let[1].uses_score);
    assert_int_equal(s->let[1].value->type, T_BOOL);
    assert_int_equal(s->score->type, T_FLOAT);
    assert_int_equal(s->score->op, OP_SELECT);
    assert_int_equal(s->score->arg[0]->op, OP_LET); /* the condition first */
    assert_int_equal(s->score->arg[2]->op, OP_TOFLOAT);
    assert_int_equal(s->mask->type, T_BOOL);
}

static void test_full(void **state) {
    (void)state;
    with_spec(full, NULL, 0, check_full, NULL);
}

/* ---- bound at compile time */

static void check_bound(const Spec *s, void *payload) {
    (void)payload;
    assert_int_equal(s->D, 192);
    assert_int_equal(s->Dv, 96);
    assert_int_equal(s->dtype, DT_F16);
    assert_true(s->param[0].value.u.f == 0.25);
    assert_true(s->param[1].bound && s->param[1].value.u.f == 30);
    assert_true(s->param[2].bound && s->param[2].value.u.i == -5);
    assert_false(s->param[3].bound);
}

static void check_dv_follows(const Spec *s, void *payload) {
    (void)payload;
    assert_int_equal(s->Dv, 64);
    assert_true(s->param[0].value.u.f == 0.125);
}

static void check_scale_bound(const Spec *s, void *payload) {
    (void)payload;
    assert_true(s->param[0].bound && s->param[0].value.u.f == 2);
}

static void test_bound(void **state) {
    (void)state;
    const attngen_dim all[] = {{"Dv", 96}, {"D", 192}, {"dtype", ATTNGEN_F16}, {"cap", 30}, {"window", -5}}, d64[] = {{"D", 64}},
                      scale[] = {{"scale", 2}};
    with_spec(full, all, LEN(all), check_bound, NULL);
    with_spec("attention: a", d64, 1, check_dv_follows, NULL);
    with_spec("attention: a", scale, 1, check_scale_bound, NULL);
}

static void expect_report(const char *text, attngen_dim dim, attngen_status want, const char *report) {
    Work w = {&dim, 1, not_reached, NULL};
    attngen_status status;
    char *got = report_of(ag_str(text), read_spec, &w, &status);
    assert_string_equal(got, report);
    assert_int_equal(status, want);
    free(got);
}

static void test_bound_wrongly(void **state) {
    (void)state;
    expect_report(full, (attngen_dim){"D", 300}, ATTNGEN_E_UNSUPPORTED, "error: head dim 300 (D): this version handles 1 to 256\n");
    expect_report(full, (attngen_dim){"Dv", 0}, ATTNGEN_E_UNSUPPORTED, "error: head dim 0 (Dv): this version handles 1 to 256\n");
    expect_report(full, (attngen_dim){"D", 64.5}, ATTNGEN_E_SPEC, "error: D: a head dim is a whole number\n");
    expect_report(full, (attngen_dim){"D", NAN}, ATTNGEN_E_SPEC, "error: D: a head dim is a whole number\n");
    expect_report(full, (attngen_dim){"dtype", 32}, ATTNGEN_E_UNSUPPORTED, "error: dtype: this version handles f16 (16) and bf16 (17)\n");
    expect_report(full, (attngen_dim){"window", 1.5}, ATTNGEN_E_SPEC,
                  "error: window: the parameter is an int, expected a whole number from -1073741824 to 1073741824, found 1.5\n");
    expect_report(full, (attngen_dim){"window", 3e9}, ATTNGEN_E_SPEC,
                  "error: window: the parameter is an int, expected a whole number from -1073741824 to 1073741824, found 3000000000.0\n");
    expect_report(full, (attngen_dim){"cap", INFINITY}, ATTNGEN_E_SPEC, "error: cap: inf is not a finite 32-bit number\n");
    expect_report(full, (attngen_dim){"scale", 0}, ATTNGEN_E_SPEC, "error: scale: expected a positive number, found 0.0\n");
    expect_report(full, (attngen_dim){"widow", 1}, ATTNGEN_E_SPEC,
                  "error: unknown name 'widow' (did you mean 'window'?); this spec can bind D, Dv, dtype, group, queries, scale, cap, window, "
                  "short_int, short_float\n");
    expect_report("attention: a", (attngen_dim){"queries", 0}, ATTNGEN_E_SPEC,
                  "error: queries: expected a whole number of queries of a launch, from 1 to 536870912\n");
    expect_report("attention: a", (attngen_dim){"x", 1}, ATTNGEN_E_SPEC,
                  "error: unknown name 'x'; this spec can bind D, Dv, dtype, group, queries, scale\n");
    expect_report("attention: a\nparams: {w: 2}\nmask: q // (w - 2) < k\n", (attngen_dim){"w", 2}, ATTNGEN_E_SPEC,
                  "t.yaml:3:13: error: division by zero\n"
                  "    mask: q // (w - 2) < k\n"
                  "                ^~~~~\n");
}

static void test_bound_twice(void **state) {
    (void)state;
    const attngen_dim dims[] = {{"D", 64}, {"D", 64}};
    Work w = {dims, 2, not_reached, NULL};
    char *got = report_of(STR("attention: a"), read_spec, &w, NULL);
    assert_string_equal(got, "error: D: bound twice\n");
    free(got);
}

/* ---- printing: as written, and reading back to the same */

static void print(const Spec *s, void *payload) { ag_spec_print(payload, s); }

static void expect_print(const char *text, const attngen_dim *dims, size_t ndims, const char *want) {
    Buf out = {0}, again = {0};
    with_spec(text, dims, ndims, print, &out);
    assert_string_equal(out.s, want);
    with_spec(out.s, dims, ndims, print, &again);
    assert_string_equal(again.s, out.s);
    ag_buf_free(&out);
    ag_buf_free(&again);
}

static void test_print(void **state) {
    const attngen_dim dims[] = {{"D", 64}, {"cap", 30}};
    (void)state;
    expect_print("attention: dense", NULL, 0, "# compiled for D = 128, Dv = 128, dtype = bf16\nattention: dense\n");
    expect_print(full, dims, LEN(dims),
                 "# compiled for D = 64, Dv = 64, dtype = bf16, cap = 30.0\n"
                 "attention: full_1\n"
                 "doc: \"Everything: at once\"\n"
                 "params:\n"
                 "  cap: {float: 30.0}\n"
                 "  window: {int: 4096}\n"
                 "  short_int: {int: -3}\n"
                 "  short_float: {float: 1.5}\n"
                 "heads: {group: 6}\n"
                 "scale: 0.25\n"
                 "let:\n"
                 "  capped: cap * tanh(s / cap)\n"
                 "  near: q - k < window\n"
                 "score: capped if near else short_int\n"
                 "mask: k <= q and near\n");
    expect_print("attention: a\ndoc: \"q\\\"\\\\ \\n\\t \\u2028 \\x85 \xC3\xA9 \xF0\x9F\x99\x82\"\n", NULL, 0,
                 "# compiled for D = 128, Dv = 128, dtype = bf16\nattention: a\n"
                 "doc: \"q\\\"\\\\ \\n\\x09 \\u2028 \\x85 \xC3\xA9 \xF0\x9F\x99\x82\"\n");
}

/* ---- inputs, derive, branches */

static const char everything[] = "attention: everything\n"
                                 "params: {l: {int: 32}, stride: {int: 16}, block: {int: 64}, top: 8, n: 4, w: {float: 0.5}, free: 3}\n"
                                 "inputs:\n"
                                 "  gate: {f32: [b, q, h, 3]}\n"
                                 "  bias: {bf16: [1, h, q, k]}\n"
                                 "  t: {i64: []}\n"
                                 "  flag: {bool: [n, g]}\n"
                                 "  byte: {u8: [b, k]}\n"
                                 "  k2: {dtype: [b, g, k, d]}\n"
                                 "  v2: {dtype: [b, g, k, d]}\n"
                                 "  norm: {f16: [d]}\n"
                                 "  lists: {i32: [b, h, q, n]}\n"
                                 "  used: {i32: [b, h, q]}\n"
                                 "  pw: {f32: [l]}\n"
                                 "derive:\n"
                                 "  kc: {pool: k2, size: l, stride: stride, weights: pw}\n"
                                 "  vc: {pool: v, size: l, stride: 16}\n"
                                 "  kb: {pool: k, size: 64, stride: block, tail: partial}\n"
                                 "  picks: {select: cmp, block: block, count: top, force: {first: 1, local: 2}}\n"
                                 "  own: {select: kb, block: block, count: 16, force: {local: 1}, share: head, causal: true}\n"
                                 "branches:\n"
                                 "  cmp: {keys: kc, values: vc, mask: stride * k + l - 1 <= q}\n"
                                 "  slc: {blocks: picks, values: v2, score: capped, mask: 'k <= q and flag[free, g]'}\n"
                                 "  blk: {blocks: own}\n"
                                 "  lst: {blocks: lists, block: block, blocks_per: 128, counts: used}\n"
                                 "let:\n"
                                 "  capped: s + bias[b, h, q, k] * (t + byte[b, k // 2])\n"
                                 "  row: 2 * q\n"
                                 "output: gate[b, q, h, 0] * cmp + (slc - blk) * norm[d] + lst * (d + row) * w\n";

static const char everything_printed[] = "# compiled for D = 64, Dv = 32, dtype = f16, l = 32, stride = 16, block = 64, top = 16, n = 4\n"
                                         "attention: everything\n"
                                         "params:\n"
                                         "  l: {int: 32}\n"
                                         "  stride: {int: 16}\n"
                                         "  block: {int: 64}\n"
                                         "  top: {int: 16}\n"
                                         "  n: {int: 4}\n"
                                         "  w: {float: 0.5}\n"
                                         "  free: {int: 3}\n"
                                         "inputs:\n"
                                         "  gate: {f32: [b, q, h, 3]}\n"
                                         "  bias: {bf16: [1, h, q, k]}\n"
                                         "  t: {i64: []}\n"
                                         "  flag: {bool: [n, g]}\n"
                                         "  byte: {u8: [b, k]}\n"
                                         "  k2: {dtype: [b, g, k, d]}\n"
                                         "  v2: {dtype: [b, g, k, d]}\n"
                                         "  norm: {f16: [d]}\n"
                                         "  lists: {i32: [b, h, q, n]}\n"
                                         "  used: {i32: [b, h, q]}\n"
                                         "  pw: {f32: [l]}\n"
                                         "derive:\n"
                                         "  kc: {pool: k2, size: l, stride: stride, weights: pw, tail: drop}\n"
                                         "  vc: {pool: v, size: l, stride: 16, op: mean, tail: drop}\n"
                                         "  kb: {pool: k, size: 64, stride: block, op: mean, tail: partial}\n"
                                         "  picks: {select: cmp, block: block, count: top, force: {first: 1, local: 2}, share: group, causal: true}\n"
                                         "  own: {select: kb, block: block, count: 16, force: {first: 0, local: 1}, share: head, causal: true}\n"
                                         "branches:\n"
                                         "  cmp:\n"
                                         "    keys: kc\n"
                                         "    values: vc\n"
                                         "    mask: stride * k + l - 1 <= q\n"
                                         "  slc:\n"
                                         "    keys: k\n"
                                         "    values: v2\n"
                                         "    blocks: picks\n"
                                         "    score: capped\n"
                                         "    mask: k <= q and flag[free, g]\n"
                                         "  blk:\n"
                                         "    keys: k\n"
                                         "    values: v\n"
                                         "    blocks: own\n"
                                         "  lst:\n"
                                         "    keys: k\n"
                                         "    values: v\n"
                                         "    blocks: lists\n"
                                         "    block: block\n"
                                         "    blocks_per: 128\n"
                                         "    counts: used\n"
                                         "let:\n"
                                         "  capped: s + bias[b, h, q, k] * (t + byte[b, k // 2])\n"
                                         "  row: 2 * q\n"
                                         "output: gate[b, q, h, 0] * cmp + (slc - blk) * norm[d] + lst * (d + row) * w\n";

static const attngen_dim everything_dims[] = {{"D", 64}, {"Dv", 32}, {"dtype", ATTNGEN_F16}, {"top", 16}};

static void expect_fixed(Fixed x, int n, int param) {
    assert_int_equal(x.n, n);
    assert_int_equal(x.param, param);
}

static void expect_source(SpecRef s, SourceKind kind, int index) {
    assert_int_equal(s.kind, kind);
    assert_int_equal(s.index, index);
}

static void check_derive(const Spec *s) {
    const Derive *kc = &s->derive[0], *kb = &s->derive[2], *picks = &s->derive[3], *own = &s->derive[4];
    assert_int_equal(s->nderive, 5);
    assert_int_equal(kc->kind, DERIVE_POOL);
    expect_source(kc->source, FROM_INPUT, 5);
    expect_fixed(kc->size, 32, 1);
    assert_int_equal(kc->weights, 10);
    assert_int_equal(s->derive[1].weights, -1);
    expect_fixed(s->derive[1].stride, 16, 0);
    assert_true(kb->partial && !kc->partial);
    assert_int_equal(picks->kind, DERIVE_SELECT);
    expect_source(picks->source, FROM_BRANCH, 0);
    expect_source(own->source, FROM_DERIVE, 2);
    expect_fixed(picks->block, 64, 3);
    expect_fixed(picks->count, 16, 4);
    expect_fixed(picks->local, 2, 0);
    assert_true(picks->causal && !picks->per_head && own->per_head);
    assert_int_equal(ag_source_cols(s, (SpecRef){FROM_DERIVE, 0}), 64);
    assert_int_equal(ag_source_cols(s, (SpecRef){FROM_DERIVE, 1}), 32);
}

static void check_everything(const Spec *s, void *payload) {
    static const int64_t size[SZ_COUNT] = {2, 8, 4, 300, 1000, 700, 64, 32};
    (void)payload;
    static const int bound[] = {1, 2, 3, 4, 5};
    assert_int_equal(s->ninput, 11);
    for (int i = 0; i < s->nparam; i++) {
        bool want = false;
        for (int j = 0; j < LEN(bound); j++) want |= bound[j] == i;
        assert_int_equal(s->param[i].bound, want);
    }
    assert_true(s->input[5].storage && s->input[5].type == DT_F16 && !s->input[5].values);
    assert_true(s->input[6].values && s->input[7].values); /* v2 is read as values, norm in the output */
    assert_int_equal(ag_input_extent(s, 7, 0, size), 32);
    assert_int_equal(ag_input_extent(s, 5, 3, size), 64);
    assert_int_equal(ag_input_extent(s, 0, 1, size), 300);
    assert_int_equal(ag_input_extent(s, 8, 2, size), 3); /* lists: one for 128 queries */
    assert_int_equal(ag_input_extent(s, 9, 2, size), 3);
    assert_int_equal(ag_input_extent(s, 8, 3, size), 4);
    check_derive(s);
    assert_int_equal(s->nbranch, 4);
    expect_source(s->branch[0].keys, FROM_DERIVE, 0);
    expect_source(s->branch[1].keys, FROM_K, 0);
    expect_source(s->branch[1].values, FROM_INPUT, 6);
    expect_source(s->branch[1].blocks, FROM_DERIVE, 3);
    expect_source(s->branch[3].blocks, FROM_INPUT, 8);
    assert_int_equal(s->branch[3].counts, 9);
    assert_int_equal(s->branch[0].counts, -1);
    expect_fixed(s->branch[3].per, 128, 0);
    expect_fixed(s->branch[3].block, 64, 3);
    assert_true(s->branch[3].per_head && s->branch[2].per_head && !s->branch[1].per_head);
    assert_int_equal(ag_branch_keys(s, 0, 1000), 61);
    assert_int_equal(ag_branch_keys(s, 1, 1000), 1000);
    assert_null(s->score);
    assert_null(s->mask);
    assert_int_equal(s->output->type, T_FLOAT);
}

static void test_everything(void **state) {
    (void)state;
    with_spec(everything, everything_dims, LEN(everything_dims), check_everything, NULL);
    expect_print(everything, everything_dims, LEN(everything_dims), everything_printed);
    with_spec(everything_printed, everything_dims, LEN(everything_dims), check_everything, NULL);
}

static void print_once(const Spec *s, void *payload) { ag_spec_print(payload, s); }

/* The shipped specs with branches print as what reads back to the same print. */
static void test_files(void **state) {
    static const char *const names[] = {"nsa", "nsa_gate_per_token", "moba", "block_sparse"};
    (void)state;
    for (int i = 0; i < LEN(names); i++) {
        char path[128], text[4096];
        snprintf(path, sizeof path, "specs/%s.yaml", names[i]);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        Buf once = {0}, twice = {0};
        with_spec(text, NULL, 0, print_once, &once);
        with_spec(once.s, NULL, 0, print_once, &twice);
        assert_string_equal(once.s, twice.s);
        ag_buf_free(&once);
        ag_buf_free(&twice);
    }
}

static void expect_answer(const char *text, const attngen_dim *dims, size_t ndims, const char *answer) {
    Work w = {dims, ndims, not_reached, NULL};
    char *got = report_of(ag_str(text), read_spec, &w, NULL);
    assert_string_equal(got, answer);
    free(got);
}

/* What depends on what is bound. */
static void test_bound_sizes(void **state) {
    static const attngen_dim dv[] = {{"Dv", 64}}, block[] = {{"block", 100}};
    (void)state;
    expect_answer("attention: a\ninputs: {kv: {dtype: [b, g, k, d]}}\nbranches: {x: {keys: kv, values: kv}}\n", dv, 1,
                  "t.yaml:2:10: error: input 'kv' is read as keys, of D = 128 channels, and as values, of Dv = 64\n"
                  "    inputs: {kv: {dtype: [b, g, k, d]}}\n"
                  "             ^~\n");
    expect_answer("attention: a\nparams: {block: 64}\ninputs: {x: {i32: [b, h, q, 4]}}\nbranches: {y: {blocks: x, block: block}}\n", block, 1,
                  "t.yaml:4:34: error: branch 'y': block: 100 is no multiple of 16\n"
                  "    branches: {y: {blocks: x, block: block}}\n"
                  "                                     ^~~~~\n");
}

/* ---- limits */

static void accept(const Spec *s, void *payload) { *(int *)payload = s->nlet + s->nparam; }

/* let: x0: q, x1: x0 + x0, ...: doubling n times takes no more time than writing it. */
static char *doubling(int n) {
    Buf b = {0};
    ag_put(&b, "attention: a\nlet:\n  x0: s\n");
    for (int i = 1; i < n; i++) ag_put(&b, "  x%d: x%d + x%d\n", i, i - 1, i - 1);
    ag_put(&b, "score: x%d\n", n - 1);
    return b.s;
}

static char *many_params(int n) {
    Buf b = {0};
    ag_put(&b, "attention: a\nparams:\n");
    for (int i = 0; i < n; i++) ag_put(&b, "  p%d: %d\n", i, i);
    return b.s;
}

/* n lets of a sum of `terms` terms each, every one on top of the one before. */
static char *tower(int n, int terms) {
    Buf b = {0};
    ag_put(&b, "attention: a\nlet:\n  x0: s\n");
    for (int i = 1; i < n; i++) {
        ag_put(&b, "  x%d: x%d", i, i - 1);
        for (int j = 1; j < terms; j++) ag_put(&b, " + s");
        ag_put(&b, "\n");
    }
    return b.s;
}

static void expect_start(char *text, const char *start) {
    Work w = {NULL, 0, not_reached, NULL};
    char *got = report_of(ag_str(text), read_spec, &w, NULL);
    if (strncmp(got, start, strlen(start)) != 0) assert_string_equal(got, start);
    free(got);
    free(text);
}

static void test_limits(void **state) {
    (void)state;
    int count = 0;
    char *text = doubling(SPEC_MAX_LETS);
    with_spec(text, NULL, 0, accept, &count);
    assert_int_equal(count, SPEC_MAX_LETS + 1);
    free(text);
    text = many_params(SPEC_MAX_PARAMS - 1);
    with_spec(text, NULL, 0, accept, &count);
    assert_int_equal(count, SPEC_MAX_PARAMS);
    free(text);
    expect_start(doubling(SPEC_MAX_LETS + 1), "t.yaml:67:3: error: let: more than 64 names\n      x64: x63 + x63\n      ^~~\n");
    expect_start(many_params(SPEC_MAX_PARAMS), "t.yaml:34:3: error: params: more than 31 parameters\n      p31: 31\n      ^~~\n");
    expect_start(tower(12, 100), "t.yaml:14:8: error: the expression is more than 1024 operations deep, lets included\n");
}

/* ---- what is shipped */

static void check_shipped(const Spec *s, void *payload) {
    const char *name = payload;
    assert_true(ag_str_is(s->name, name));
    assert_true(s->doc.n > 0);
}

static void test_shipped(void **state) {
    static const char *const names[] = {"dense", "causal", "gqa", "mqa", "sliding_window", "softcap"};
    (void)state;
    bool found[LEN(names)] = {false};
    for (size_t i = 0; ag_shipped_spec(i); i++) {
        const Shipped *s = ag_shipped_spec(i);
        Work w = {NULL, 0, check_shipped, (void *)(uintptr_t)s->name};
        char *report = report_of((Str){s->text, s->len}, read_spec, &w, NULL);
        assert_string_equal(report, "");
        free(report);
        for (int j = 0; j < LEN(names); j++) found[j] |= !strcmp(names[j], s->name);
    }
    for (int j = 0; j < LEN(names); j++) assert_true(found[j]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smallest),    cmocka_unit_test(test_full),  cmocka_unit_test(test_bound),       cmocka_unit_test(test_bound_wrongly),
        cmocka_unit_test(test_bound_twice), cmocka_unit_test(test_print), cmocka_unit_test(test_limits),      cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_everything),  cmocka_unit_test(test_files), cmocka_unit_test(test_bound_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
