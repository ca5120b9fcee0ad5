/* test_weights.c: mma.p_operand smem: the second product reads the weights from shared memory.  Every way a step is built, on the simulator against the
 * reference. */
#include "with_schedule.h"

typedef struct Way {
    int m, n;
    const char *softmax, *form, *overlap, *persistent, *q_stages, *store;
} Way;

static Compilation *staged(const char *spec, const Way *w, int D, int dtype) {
    const attngen_dim dims[] = {{"D", D}, {"dtype", dtype}, {NULL, 0}};
    Buf text = {0};
    ag_put(&text, "schema: attngen.schedule/1\ntile: {m: %d, n: %d}\nmma: {family: wgmma, p_operand: smem}\n", w->m, w->n);
    ag_put(&text, "roles: {consumer: {warpgroups: %d}}\nstaging: {q: {stages: %s}, o: {store: %s}}\n", w->m / 64, w->q_stages, w->store);
    ag_put(&text, "pipeline: {overlap: %s}\nloop: {form: %s}\ngrid: {persistent: %s}\nnumerics: {softmax: %s}\n", w->overlap, w->form, w->persistent,
           w->softmax);
    Compilation *c = compile_raw(spec, text.s, "sm_90a", dims, "place");
    must_compile(c);
    ag_buf_free(&text);
    return c;
}

static const char DENSE[] = "attention: a\n", CAUSAL[] = "attention: a\nmask: k <= q\n", WINDOW[] = "attention: a\nmask: k <= q and q - k < 37\n",
                  SOFTCAP[] = "attention: a\nscore: 8.0 * tanh(s / 8.0)\nmask: k <= q\n";

/* 16, 48, 80, 112: panels that are not full. */
static const Way ways[] = {
    {64, 16, "exact", "flagged", "true", "none", "1", "smem"},         {64, 48, "exact", "peeled", "true", "static", "1", "tma"},
    {128, 80, "exact", "peeled", "true", "dynamic", "2", "tma"},       {128, 64, "exact", "flagged", "false", "none", "1", "direct"},
    {64, 32, "exact", "peeled", "false", "dynamic", "1", "smem"},      {64, 16, "speculative", "peeled", "true", "none", "1", "smem"},
    {128, 48, "speculative", "peeled", "true", "static", "2", "tma"},  {192, 112, "speculative", "peeled", "true", "dynamic", "1", "direct"},
    {64, 128, "speculative", "peeled", "true", "dynamic", "2", "tma"},
};
static const Case shapes[] = {
    {.B = 2, .Hkv = 1, .group = 2, .Sq = 130, .Sk = 133, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 2, .group = 1, .Sq = 65, .Sk = 300, .offset = 20, .layout = LAY_BSHD, .large = true},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 0, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 200, .Sk = 49, .offset = -40, .no_lse = true},
};

static void test_right(void **state) {
    (void)state;
    static const char *const spec[] = {DENSE, CAUSAL, WINDOW, SOFTCAP};
    for (int w = 0; w < LEN(ways); w++)
        for (int s = 0; s < LEN(spec); s++) {
            Compilation *c = staged(spec[s], &ways[w], 16 + 16 * (w % 3), w % 2 ? ATTNGEN_BF16 : ATTNGEN_F16);
            for (int i = 0; i < LEN(shapes); i++) must_be_right(c, &shapes[i], 11);
            ag_compilation_free(c);
        }
}

static Ins *find(Block *b, TileOp op, Block **where) {
    for (Ins *i = b->first; i; i = i->next) {
        *where = b;
        if (i->op == op) return i;
        Ins *x = find(&i->body, op, where);
        if (x) return x;
    }
    return NULL;
}
static int count(const Block *b, TileOp op) {
    int n = 0;
    for (const Ins *i = b->first; i; i = i->next) n += (i->op == op) + count(&i->body, op);
    return n;
}

static void simulates(const Compilation *c, const char *part) {
    char *text = result_of(c, &shapes[0], 3, 1);
    if (!strstr(text, part)) fail_msg("%s instead of %s", text, part);
    free(text);
}

/* What the pass has put there is needed. */
static void test_broken(void **state) {
    (void)state;
    static const struct {
        TileOp op;
        const char *text;
    } broken[] = {{TI_FENCE, "a fence is missing"}, {TI_SYNC, "a sync behind the fence is missing"}, {TI_STAGE, "into which nothing was copied"}};
    for (int i = 0; i < LEN(broken); i++) {
        Compilation *c = staged(CAUSAL, &ways[1], 16, ATTNGEN_BF16);
        Block *b = NULL;
        Ins *x = find(&c->fn.kernel->role[0].body, broken[i].op, &b);
        assert_non_null(x);
        ag_block_remove(b, x);
        simulates(c, broken[i].text);
        ag_compilation_free(c);
    }
}

/* In the loop the weights of the step before are read until its product is done. */
static void test_staged_early(void **state) {
    (void)state;
    Compilation *c = staged(DENSE, &ways[0], 16, ATTNGEN_BF16);
    Block *b = NULL, *loop = NULL;
    Ins *l = find(&c->fn.kernel->role[0].body, TI_LOOP, &b);
    assert_non_null(l);
    Ins *stage = find(&l->body, TI_STAGE, &loop);
    assert_non_null(stage);
    Ins *wait = stage->prev;
    while (wait->op != TI_MMA_WAIT) wait = wait->prev;
    ag_block_remove(loop, stage);
    ag_block_insert_before(loop, wait, stage);
    simulates(c, "overwrites P [stage 0] while an mma that reads it is unfinished");
    ag_compilation_free(c);
}

/* A step that is mended stages its rows once more, in front of its fence. */
static void test_mended(void **state) {
    (void)state;
    Compilation *c = staged(DENSE, &ways[5], 16, ATTNGEN_BF16);
    Block *b = NULL;
    Ins *any = find(&c->fn.kernel->role[0].body, TI_ANY, &b);
    assert_non_null(any);
    assert_int_equal(count(&any->body, TI_STAGE), 1);
    assert_int_equal(count(&any->body, TI_FENCE), 0);
    Nodes *p = &c->fn.kernel->nodes;
    const Node not = p->n[any->e[0]];
    Ref below = ag_node_op(p, OP_LT, p->n[not .arg[0]].arg[0], ag_node_float(p, 0), 0, not .span);
    any->e[0] = ag_node_op(p, OP_NOT, below, 0, 0, not .span); /* always */
    for (int i = 0; i < LEN(shapes); i++) must_be_right(c, &shapes[i], 11);
    ag_compilation_free(c);
}

static void breaks_check(void (*edit)(Kernel *, Ins *), const char *want) {
    Compilation *c = staged(CAUSAL, &ways[1], 16, ATTNGEN_BF16);
    Block *b = NULL;
    edit(c->fn.kernel, find(&c->fn.kernel->role[0].body, TI_STAGE, &b));
    if (!setjmp(c->diag.jump)) ag_tile_check(c->fn.kernel, c->fn.facts);
    char *text = report(c);
    if (!strstr(text, want)) fail_msg("%s instead of %s", text, want);
    free(text);
    ag_compilation_free(c);
}
static void into_rows(Kernel *k, Ins *i) { k->val[i->dst].panels = false; }
static void narrower(Kernel *k, Ins *i) { k->val[i->dst].cols -= 16; }
static void from_shared(Kernel *k, Ins *i) { i->a = i->dst, (void)k; }
static void by_one_thread(Kernel *k, Ins *i) { k->role[0].one_thread = true, (void)i; }

static void test_check(void **state) {
    (void)state;
    breaks_check(into_rows, "stage: it must take an accumulator to a shared tile in panels");
    breaks_check(from_shared, "stage: it must take an accumulator to a shared tile in panels");
    breaks_check(narrower, "stage: the tile differs from the fragment in shape");
    breaks_check(by_one_thread, "stage: warpgroups stage their rows");
}

/* The budget: no registers for the weights, whole panels in shared memory. */
static void test_budget(void **state) {
    (void)state;
    Compilation *c = staged(DENSE, &ways[2], 64, ATTNGEN_BF16);
    Budget b = ag_place_budget(c->fn.kernel);
    assert_int_equal(b.held.scores, 40);
    assert_int_equal(b.held.operand, 0);
    const Kernel *k = c->fn.kernel;
    for (int v = 0; v < k->nval; v++)
        if (ag_str_is(k->val[v].name, "P")) assert_int_equal(k->val[v].bytes, 128 * 128 * 2);
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right),  cmocka_unit_test(test_broken), cmocka_unit_test(test_staged_early),
                                       cmocka_unit_test(test_mended), cmocka_unit_test(test_check),  cmocka_unit_test(test_budget)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
