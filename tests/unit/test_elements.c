/* Elements of captured tensors in scores (tile_elements.c): those that a whole tile shares are read once, and only where it does; biases by query and key are fetched ahead of the
 * products. */
#include "with_schedule.h"

static const attngen_dim D16[] = {{"D", 16}, {NULL, 0}};
static const Case shapes[] = {{.B = 1, .Hkv = 2, .group = 1, .Sq = 200, .Sk = 200, .offset = ATTNGEN_ALIGN_END},
                              {.B = 2, .Hkv = 1, .group = 2, .Sq = 33, .Sk = 310, .offset = ATTNGEN_ALIGN_END},
                              {.B = 1, .Hkv = 1, .group = 1, .Sq = 130, .Sk = 65, .offset = -40},
                              {.B = 1, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 90, .offset = 1 << 20}};

#define TABLE(index, mask) "attention: a\nparams: {w: {int: 9}}\ninputs:\n  t: {f32: [h, 40]}\nscore: s + t[h, " index "]\nmask: " mask "\n"

/* Tables whose subscript comes to rest far from the diagonal, or never does. */
static const struct {
    const char *spec;
    bool shares;
} tables[] = {
    {TABLE("clamp(k - q, -8, 8) + 8", "true"), true},
    {TABLE("min(abs(q - k), 20)", "true"), false}, /* no bounds of abs */
    {TABLE("min(max(q - k, 0), 20)", "k <= q"), true},
    {TABLE("min(max(q - k, 0) // 4, 7)", "k <= q"), true},
    {TABLE("max(k - q + 30, 0) if k - q < 0 else 31", "true"), true},
    {TABLE("q - k if q - k < 8 else min(8 + floor(log((q - k) / 8) * 6), 31)", "k <= q"), true},
    {TABLE("min(floor(log2(q - k) * 3), 17)", "k < q"), true}, /* of what is not positive there is no bound */
    {TABLE("min(floor(sqrt(max(q - k, 0))), 5)", "k <= q"), true},
    {TABLE("relu(10 - (q - k))", "true"), true},
    {TABLE("max(3 * (k - q), -30) // w + 30", "k <= q"), false}, /* a divisor that may be anything */
    {TABLE("(k - q) % 40", "true"), false},
    {TABLE("k // 32", "true"), true},
    {TABLE("clamp(k - q + 2147483000, 0, 39)", "true"), false}, /* it wraps around */
    {TABLE("q - k", "k <= q and q - k < 40"), false},
};

static const Ins *find(const Block *b, bool (*is)(const Kernel *, const Ins *), const Kernel *k) {
    const Ins *found = NULL;
    for (const Ins *i = b->first; i && !found; i = i->next) found = is(k, i) ? i : find(&i->body, is, k);
    return found;
}
static bool is_shared(const Kernel *k, const Ins *i) { return i->op == TI_LET && strncmp(k->val[i->dst].name.s, "alike", 5) == 0; }
static bool is_fetch(const Kernel *k, const Ins *i) { return i->op == TI_MAP && k->val[i->dst].fetched; }

static void test_shared(void **state) {
    (void)state;
    for (int wgmma = 0; wgmma < 2; wgmma++)
        for (int i = 0; i < LEN(tables); i++) {
            Schedule s = wgmma ? small_wgmma(1) : small_schedule();
            if (wgmma && i % 2) s.f[F_OVERLAP].v = 1, s.f[F_DIRECTION].v = 0;
            s.f[F_LOOP_FORM].v = i % 3 != 0;
            Compilation *c = compile_schedule(tables[i].spec, &s, wgmma ? "sm_90a" : "sm_80", D16, "place");
            must_compile(c);
            if ((find(&c->fn.kernel->role[0].body, is_shared, c->fn.kernel) != NULL) != tables[i].shares)
                fail_msg("%s: %s", tables[i].spec, tables[i].shares ? "reads an element for each score" : "takes elements for one that may differ");
            for (int n = 0; n < LEN(shapes); n++) must_be_right(c, &shapes[n], 3 + (uint64_t)n);
            ag_compilation_free(c);
        }
}

/* Speculative steps are done again without conditions. */
static void test_speculative(void **state) {
    (void)state;
    Schedule s = small_wgmma(1);
    s.f[F_OVERLAP].v = s.f[F_SOFTMAX].v = 1;
    s.f[F_LOOP_FORM].v = 0;
    Compilation *c = compile_schedule(tables[0].spec, &s, "sm_90a", D16, "place");
    must_compile(c);
    assert_null(find(&c->fn.kernel->role[0].body, is_shared, c->fn.kernel));
    must_be_right(c, &shapes[0], 9);
    ag_compilation_free(c);
}

#define BIAS(type, dims, at) "attention: a\ninputs:\n  t: {" type ": [" dims "]}\nscore: 0.5 * s + t[" at "]\nmask: k <= q + 20\n"

static const struct {
    const char *spec;
    bool fetched;
} biases[] = {
    {BIAS("dtype", "b, h, q, k", "b, h, q, k"), true},
    {BIAS("f32", "b, h, q, k", "b, h, q, k"), true},
    {BIAS("f16", "1, h, q, k", "b, h, q, k"), true},
    {BIAS("f32", "q, k", "q, k"), true},
    {BIAS("f32", "b, k", "b, k"), false},
    {BIAS("f32", "b, k, q", "b, k, q"), false},
    {BIAS("f32", "q, k", "q, k + 1"), false},
};

/* The fragment is packed as the tensor is, and written before the products of its step are issued. */
static void test_fetched(void **state) {
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++)
        for (int i = 0; i < LEN(biases); i++) {
            Schedule s = small_wgmma(1);
            s.f[F_OVERLAP].v = overlap;
            s.f[F_DIRECTION].v = 0;
            s.f[F_LOOP_FORM].v = i % 2;
            Compilation *c = compile_schedule(biases[i].spec, &s, "sm_90a", D16, "place");
            must_compile(c);
            const Kernel *k = c->fn.kernel;
            const Ins *fetch = NULL, *loop = k->role[0].body.first;
            for (; loop && !fetch; loop = loop->next)
                if (loop->op == TI_LOOP) fetch = find(&loop->body, is_fetch, k);
            if ((fetch != NULL) != biases[i].fetched) fail_msg("%s: %s", biases[i].spec, fetch ? "is fetched ahead" : "is not fetched ahead");
            for (const Ins *x = fetch ? fetch->prev : NULL; x; x = x->prev) assert_true(x->op == TI_MAP || x->op == TI_LET);
            if (fetch) assert_int_equal(k->val[fetch->dst].type, k->tensor[k->nodes.n[fetch->e[0]].index].type);
            for (int n = 0; n < 3; n++) must_be_right(c, &shapes[n], 5 + (uint64_t)n);
            ag_compilation_free(c);
        }
}

/* ---- tiles through shared memory */

static bool is_tile_load(const Kernel *k, const Ins *i) { return i->op == TI_LOAD && k->val[i->a].elements && k->val[i->a].panels; }
static bool is_row_load(const Kernel *k, const Ins *i) { return i->op == TI_LOAD && k->val[i->a].elements && !k->val[i->a].panels; }
static bool is_release(const Kernel *k, const Ins *i) { return i->op == TI_ARRIVE && strcmp(k->barrier[i->n].name, "t_tile_empty") == 0; }

#define PAIR "attention: a\ninputs:\n  row: {dtype: [b, k]}\n  t: {dtype: [b, h, q, k]}\nscore: s + row[b, k] - 2 * t[b, h, q, k]\n"

static const struct {
    const char *spec;
    bool tile, row;
} staged[] = {
    {BIAS("dtype", "b, h, q, k", "b, h, q, k"), true, false},
    {BIAS("dtype", "1, h, q, k", "b, h, q, k"), true, false},
    {BIAS("dtype", "h, q, k", "h, q, k"), true, false},
    {BIAS("dtype", "q, k", "q, k"), true, false},
    {BIAS("dtype", "3, h, q, k", "b + 1, h, q, k"), true, false}, /* past its end, too: zeros */
    {BIAS("dtype", "3, h, q, k", "b - 1, h, q, k"), true, false},
    {BIAS("dtype", "b, h, q, 50", "b, h, q, k"), true, false},
    {BIAS("dtype", "b, k", "b, k"), false, true},
    {BIAS("dtype", "k", "k"), false, true},
    {PAIR, true, true},
    {PAIR "mask: t[b, h, q, k] > -1.0\n", true, true}, /* elements of it are read besides */
};

/* What is staged comes right whatever the rest of the schedule. */
static void test_staged(void **state) {
    (void)state;
    for (int i = 0; i < LEN(staged); i++)
        for (int way = 0; way < 6; way++) {
            Schedule s = small_wgmma(way == 5 ? 2 : 1);
            bool overlap = way > 0;
            s.f[F_OVERLAP].v = overlap;
            s.f[F_DIRECTION].v = way == 0 ? i % 2 : 0;
            s.f[F_LOOP_FORM].v = (i + way) % 2;
            s.f[F_E_STAGES].v = 1 + (i + way) % 3;
            s.f[F_SOFTMAX].v = way >= 3;
            s.f[F_PERSISTENT].v = way == 1 ? PERSISTENT_NONE : way % 2 ? PERSISTENT_DYNAMIC : PERSISTENT_STATIC;
            s.f[F_Q_STAGES].v = way == 2 || way >= 4 ? 2 : 1;
            Compilation *c = compile_schedule(staged[i].spec, &s, "sm_90a", D16, NULL);
            must_compile(c);
            const Kernel *k = c->fn.kernel;
            if ((find(&k->role[0].body, is_tile_load, k) != NULL) != staged[i].tile ||
                (find(&k->role[0].body, is_row_load, k) != NULL) != staged[i].row)
                fail_msg("%s: its elements do not come as expected", staged[i].spec);
            for (int n = 0; n < LEN(shapes); n++) must_be_right(c, &shapes[n], 11 + (uint64_t)n);
            ag_compilation_free(c);
        }
}

/* What has no such form is read as without the field. */
static void test_not_staged(void **state) {
    (void)state;
    static const char *const specs[] = {
        "attention: a\ninputs:\n  row: {dtype: [b, k]}\n  t: {f32: [b, h, q, k]}\nscore: s + row[b, k] + t[b, h, q, k]\n",
        "attention: a\ninputs:\n  row: {dtype: [b, k]}\n  t: {dtype: [b, h, k, q]}\nscore: s + row[b, k] + t[b, h, k, q]\n",
        "attention: a\ninputs:\n  row: {dtype: [b, k]}\n  t: {dtype: [b, h, q, k]}\nscore: s + row[b, k] + t[b, h, q + 1, k]\n",
        "attention: a\ninputs:\n  row: {dtype: [b, k]}\n  t: {dtype: [b, h, q, k]}\nscore: s + row[b, k] + t[b, h, q, k + 1]\n",
    };
    for (int i = 0; i < LEN(specs); i++) {
        Schedule s = small_wgmma(1);
        s.f[F_E_STAGES].v = 2;
        Compilation *c = compile_schedule(specs[i], &s, "sm_90a", D16, "place");
        must_compile(c);
        assert_null(find(&c->fn.kernel->role[0].body, is_tile_load, c->fn.kernel));
        for (int n = 0; n < 3; n++) must_be_right(c, &shapes[n], 13 + (uint64_t)n);
        ag_compilation_free(c);
    }
}

/* A tile that is released before it is read is one that the next copy may overwrite: the simulator says so. */
static void test_early_release(void **state) {
    (void)state;
    Schedule s = small_wgmma(1);
    s.f[F_E_STAGES].v = 1;
    Compilation *c = compile_schedule(staged[0].spec, &s, "sm_90a", D16, "place");
    must_compile(c);
    Kernel *k = c->fn.kernel;
    Block *in = NULL;
    Ins *release = NULL, *load = NULL;
    for (Ins *w = k->role[0].body.first; w; w = w->next)
        for (Ins *l = w->body.first; l; l = l->next) in = l->op == TI_LOOP ? &l->body : in;
    if (!in)
        for (Ins *l = k->role[0].body.first; l; l = l->next) in = l->op == TI_LOOP ? &l->body : in;
    assert_non_null(in);
    for (Ins *i = in->first; i; i = i->next) {
        if (is_release(k, i)) release = i;
        if (is_tile_load(k, i)) load = i;
    }
    assert_non_null(release);
    assert_non_null(load);
    ag_block_remove(in, release);
    ag_block_insert_before(in, load, release);
    char *text = result_of(c, &shapes[0], 3, 1);
    assert_non_null(strstr(text, "t_tile"));
    free(text);
    ag_compilation_free(c);
}

/* A lane of a 64 x 16 tile has 2 x 2 pairs of scores at 3 pairs of distances; one load stands for each. */
static void test_distances(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int arrays;
    } row[] = {{TABLE("clamp(k - q, -8, 8) + 8", "true"), 1},
               {TABLE("(q - k) % 40", "k <= q"), 1},
               {TABLE("(q - k + h) % 40", "k <= q"), 1},
               {TABLE("(q + k) % 40", "true"), 0},
               {TABLE("(q - k + floor(s)) % 40", "true"), 0}};
    for (int i = 0; i < LEN(row); i++) {
        Schedule s = small_wgmma(1);
        Compilation *c = compile_schedule(row[i].spec, &s, "sm_90a", D16, NULL);
        must_compile(c);
        const char *at = strstr(c->cu.s, "[3][2]; // of the element in column"), *loop = at ? strstr(at, "for (int n = 0; n < 3; n++)") : NULL;
        assert_int_equal(at != NULL, row[i].arrays);
        assert_int_equal(loop && strstr(loop, "const int behind = qk + (1 - n) * 8 - e;") != NULL, row[i].arrays);
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared),       cmocka_unit_test(test_speculative), cmocka_unit_test(test_fetched),
                                       cmocka_unit_test(test_distances),    cmocka_unit_test(test_staged),      cmocka_unit_test(test_not_staged),
                                       cmocka_unit_test(test_early_release)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
