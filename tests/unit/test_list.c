/* test_list.c: attention over listed blocks with neighbouring queries in a tile, whose loop runs over the union of their lists: against the reference, broken
 * kernels, which groups take it. */
#include "with_schedule.h"

#include <math.h>
#include <stdio.h>

#include "program.h"

enum { D = 32 };

static Compilation *compiled(const char *text, const char *arch, int group, int united) {
    const attngen_dim dims[] = {{"D", D}, {"group", group}};
    attngen_source spec = {"spec.yaml", text, strlen(text)};
    Compilation *c = ag_compile(&(Request){.spec = &spec, .arch = arch, .dims = dims, .ndims = 2, .united = united});
    Buf out = {0};
    assert_non_null(c);
    ag_putn(&out, "", 0);
    ag_diag_render(&c->diag, &out);
    if (c->diag.status != ATTNGEN_OK) fail_msg("group %d, %d queries: %s", group, united, out.s);
    ag_buf_free(&out);
    return c;
}

static const char *lists(const char *axis, int slots, int block, const char *mask) {
    static char text[512];
    snprintf(text, sizeof text,
             "attention: lists\ninputs:\n  list: {i32: [b, %s, q, %d]}\n  n: {i32: [b, %s, q]}\nbranches:\n  only: {blocks: list, block: %d, counts: "
             "n%s}\n",
             axis, slots, axis, block, mask);
    return text;
}

static Kernel *kernel_of(const Compilation *c) {
    assert_int_equal(c->npart, 1);
    return c->part[0].kernel;
}

/* Changes the data before the run. */
typedef void Change(CaseData *d);

/* "" or what the simulator or the comparison says. */
static char *run(const Compilation *c, const Case *shape, Change *change) {
    CaseData d;
    Buf message = {0};
    ProgramBuffers buffers;
    assert_true(ag_check_data(&d, shape, c->fn.spec, 7));
    if (change) change(&d);
    ag_check_poison(&d, c->fn.spec);
    const int64_t *size = d.call.size;
    size_t rows = (size_t)(size[SZ_B] * size[SZ_HQ] * size[SZ_SQ]) + 1;
    double *o = malloc(sizeof *o * rows * D), *naive = malloc(sizeof *o * rows * D), *lse = malloc(sizeof *o * rows),
           *other = malloc(sizeof *o * rows);
    assert_true(o && naive && lse && other);
    ag_putn(&message, "", 0);
    if (ag_simulate_program(c, &d.call, &buffers, &message)) {
        assert_true(ag_reference(c->fn.spec, &d.call, o, lse) && ag_naive(c->fn.spec, &d.call, naive, other));
        Comparison x = ag_compare(c->fn.spec, &d.call, ag_error_bound(c->numerics), o, lse, naive);
        ag_put(&message, "%s", x.text);
        assert_true(message.n > 0 || ag_check_surroundings(&d));
    }
    ag_program_buffers_free(&buffers);
    free(o), free(naive), free(lse), free(other);
    ag_check_data_free(&d);
    return message.s;
}

static void must_run(const Compilation *c, const Case *shape, Change *change) {
    char *text = run(c, shape, change), name[128];
    ag_check_case_name(name, sizeof name, shape, c->fn.spec);
    if (*text) fail_msg("%s: %s", name, text);
    free(text);
}

/* ---- against the reference; the data has entries that are negative, past the end, twice, in any order, and counts below 0 and beyond the list */

static const struct {
    int group, united;
} tiles[] = {{1, 16}, {1, 5}, {2, 8}, {4, 16}, {8, 8}, {8, 3}, {12, 4}, {12, 1}, {16, 4}, {24, 2}, {32, 2}, {32, 4}, {64, 1}, {64, 2}};

static void test_sizes(void **state) {
    (void)state;
    static const int Sq[] = {1, 4, 9, 18}, Sk[] = {0, 1, 70, 200};
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        Compilation *c = compiled(lists("g", 6, 16, ", mask: k <= q"), t % 2 ? "sm_80" : "sm_90a", tiles[t].group, tiles[t].united);
        assert_int_equal(kernel_of(c)->queries, tiles[t].united);
        for (int q = 0; q < 4; q++)
            for (int k = 0; k < 4; k++) {
                Case shape = {
                    .B = 2, .Hkv = tiles[t].group > 16 ? 1 : 2, .group = tiles[t].group, .Sq = Sq[q], .Sk = Sk[k], .offset = ATTNGEN_ALIGN_END};
                shape.layout = (TensorLayout)((q + k) % LAY_COUNT);
                must_run(c, &shape, NULL);
            }
        ag_compilation_free(c);
    }
}

/* Blocks of several key tiles, and a mask that is not causal. */
static void test_blocks(void **state) {
    (void)state;
    static const int block[] = {16, 48, 64, 128, 192};
    for (int b = 0; b < 5; b++)
        for (int mask = 0; mask < 2; mask++) {
            Compilation *c = compiled(lists("g", 5, block[b], mask ? ", mask: k % 3 != q % 2" : ""), "sm_80", mask ? 8 : 16, mask ? 8 : 4);
            const Case shape = {.B = 1, .Hkv = 2, .group = mask ? 8 : 16, .Sq = 10, .Sk = 500, .offset = ATTNGEN_ALIGN_END};
            must_run(c, &shape, NULL);
            ag_compilation_free(c);
        }
}

/* A list for each query head. */
static void test_heads(void **state) {
    (void)state;
    Compilation *c = compiled(lists("h", 4, 16, ", mask: k <= q"), "sm_80", 3, 16);
    const Case shape = {.B = 2, .Hkv = 2, .group = 3, .Sq = 35, .Sk = 90, .offset = ATTNGEN_ALIGN_END};
    assert_int_equal(kernel_of(c)->pack, 1);
    must_run(c, &shape, NULL);
    ag_compilation_free(c);
}

static void set_list(CaseData *d, int64_t q, int64_t slots, const int32_t *entry, double count) {
    const int64_t *dim = d->t[CASE_TENSORS].dim;
    for (int64_t b = 0; b < dim[0]; b++)
        for (int64_t g = 0; g < dim[1]; g++) {
            for (int64_t e = 0; e < slots; e++) ag_host_set(&d->call.input[0], b, g, q, e, entry[e]);
            ag_host_set(&d->call.input[1], b, g, q, 0, count);
        }
}

/* Tiles of 4 queries: nobody lists anything, one does, and all list the same. */
static void some_empty(CaseData *d) {
    static const int32_t none[] = {-1, 99, INT32_MIN, INT32_MAX}, one[] = {3, 3, -1, 3}, all[] = {2, 0, 3, 1};
    for (int64_t q = 0; q < 4; q++) set_list(d, q, 4, q % 2 ? none : all, q % 2 ? 4 : 0);
    for (int64_t q = 4; q < 8; q++) set_list(d, q, 4, q == 6 ? one : none, 4);
    for (int64_t q = 8; q < 12; q++) set_list(d, q, 4, all, 4);
}
static void test_empty(void **state) {
    (void)state;
    for (int group = 8; group <= 16; group += 8) {
        Compilation *c = compiled(lists("g", 4, 16, ""), "sm_80", group, 4);
        const Case shape = {.B = 1, .Hkv = 1, .group = group, .Sq = 12, .Sk = 64, .offset = ATTNGEN_ALIGN_END};
        must_run(c, &shape, some_empty);
        ag_compilation_free(c);
    }
}

static const char nsa[] = "attention: tiny\n"
                          "derive:\n"
                          "  kc: {pool: k, size: 32, stride: 16, op: mean}\n"
                          "  vc: {pool: v, size: 32, stride: 16, op: mean}\n"
                          "  picks: {select: cmp, block: 32, count: 4, force: {first: 1, local: 1}, share: group}\n"
                          "branches:\n"
                          "  cmp: {keys: kc, values: vc, mask: 16 * k + 31 <= q}\n"
                          "  slc: {blocks: picks, mask: k <= q}\n"
                          "output: slc + 0 * cmp\n";

/* Lists that the program makes itself. */
static void test_derived(void **state) {
    (void)state;
    Compilation *c = compiled(nsa, "sm_90a", 16, 4);
    const Case shape = {.B = 1, .Hkv = 1, .group = 16, .Sq = 41, .Sk = 300, .offset = ATTNGEN_ALIGN_END};
    bool united = false;
    for (int i = 0; i < c->npart; i++) united |= c->part[i].kernel->list && c->part[i].kernel->list->dst >= 0;
    assert_true(united);
    must_run(c, &shape, NULL);
    ag_compilation_free(c);
}

/* ---- broken kernels */

static Ins *first_of(Block *b, TileOp op) {
    for (Ins *i = b->first; i; i = i->next) {
        if (i->op == op) return i;
        Ins *x = first_of(&i->body, op);
        if (x) return x;
    }
    return NULL;
}
static Ins *loop_of(Kernel *k) { return first_of(&k->role[0].body, TI_LOOP); }
static Ins *any_of(Kernel *k, int n) {
    Ins *i = loop_of(k)->body.first;
    while (i->op != TI_ANY || n-- > 0) i = i->next;
    return i;
}
static Ref node(Kernel *k, Op op, Ref a, Ref b) { return ag_node_op(&k->nodes, op, a, b, 0, (Span){0}); }
static Ref asks(Kernel *k, Ref entry, Ref query) {
    return ag_node_intern(&k->nodes, (Node){.op = OP_LISTED_BY, .type = T_BOOL, .arg = {entry, query}});
}

static void fewer_blocks(Kernel *k) { loop_of(k)->e[1] = node(k, OP_SUB, loop_of(k)->e[1], ag_node_int(&k->nodes, 1)); }
static void more_blocks(Kernel *k) { loop_of(k)->e[1] = node(k, OP_ADD, loop_of(k)->e[1], ag_node_int(&k->nodes, 1)); }
static void more_lists(Kernel *k) { first_of(&k->role[0].body, TI_LIST)->e[3] = ag_node_int(&k->nodes, k->queries); }
static void fewer_lists(Kernel *k) { first_of(&k->role[0].body, TI_LIST)->e[3] = ag_node_int(&k->nodes, 1); }
static void other_row(Kernel *k) {
    Ins *i = first_of(&k->role[0].body, TI_LIST);
    i->e[2] = node(k, OP_ADD, i->e[2], ag_node_int(&k->nodes, 1));
}
static void other_query(Kernel *k) {
    const Node *n = &k->nodes.n[any_of(k, 1)->e[0]];
    any_of(k, 0)->e[0] = any_of(k, 1)->e[0] = asks(k, n->arg[0], node(k, OP_SUB, ag_node_int(&k->nodes, k->queries - 1), n->arg[1]));
}
static void always(Kernel *k) {
    for (int n = 0; n < 2; n++)
        any_of(k, n)->e[0] = node(k, OP_OR, any_of(k, n)->e[0], ag_node_op(&k->nodes, OP_NOT, any_of(k, n)->e[0], 0, 0, (Span){0}));
}
static void no_scores(Kernel *k) { any_of(k, 0)->body = (Block){0}; }
static void first_always(Kernel *k) { /* the values of warps that skip are multiplied by the scores of those that do not */
    any_of(k, 1)->e[0] = node(k, OP_OR, any_of(k, 1)->e[0], ag_node_op(&k->nodes, OP_NOT, any_of(k, 1)->e[0], 0, 0, (Span){0}));
}
static void swap_guard(Kernel *k) { /* rows of a warp whose query does not list the block */
    Ins *map = first_of(&any_of(k, 1)->body, TI_MAP);
    Node n = k->nodes.n[map->e[0]];
    const Node *g = &k->nodes.n[n.arg[0]], *hi = &k->nodes.n[g->arg[1]];
    assert_true(n.op == OP_SELECT && hi->op == OP_SELECT);
    k->guard = node(k, OP_LT, g->arg[0], hi->arg[1]);
    map->e[0] = ag_node_op(&k->nodes, OP_SELECT, k->guard, n.arg[1], n.arg[2], (Span){0});
}

static void test_broken(void **state) {
    (void)state;
    static const struct {
        void (*change)(Kernel *k);
        int group, united;
        const char *says;
    } t[] = {{fewer_blocks, 16, 4, "is never visited"},
             {more_blocks, 16, 4, "of a union of"},
             {more_lists, 16, 4, "of dim 2 of list, which has 9"},
             {fewer_lists, 16, 4, "is never visited"},
             {other_row, 16, 4, "is hidden from query row"},
             {other_query, 16, 4, "is hidden from query row"},
             {always, 16, 4, "is hidden from query row"},
             {no_scores, 16, 4, "reads S before it is written"},
             {first_always, 16, 4, "reads S before it is written"},
             {swap_guard, 8, 8, "is hidden from query row"}};
    for (size_t x = 0; x < sizeof t / sizeof *t; x++) {
        Compilation *c = compiled(lists("g", 6, 16, ", mask: k <= q"), "sm_80", t[x].group, t[x].united);
        const Case shape = {.B = 1, .Hkv = 1, .group = t[x].group, .Sq = 9, .Sk = 400, .offset = ATTNGEN_ALIGN_END};
        t[x].change(kernel_of(c));
        char *text = run(c, &shape, NULL);
        if (!strstr(text, t[x].says)) fail_msg("%d: %s", (int)x, text);
        free(text);
        ag_compilation_free(c);
    }
}

/* The loop over a selection ends with the blocks that there are to select: with two of them, and lists of four, one step less leaves keys out. */
static void test_few_blocks(void **state) {
    (void)state;
    for (int less = 0; less < 2; less++) {
        Compilation *c = compiled(nsa, "sm_90a", 16, 1);
        const Case shape = {.B = 1, .Hkv = 1, .group = 16, .Sq = 41, .Sk = 64, .offset = ATTNGEN_ALIGN_END};
        for (int i = 0; i < c->npart && less; i++)
            if (c->part[i].kernel->list) fewer_blocks(c->part[i].kernel);
        char *text = run(c, &shape, NULL);
        if (less ? !strstr(text, "is never visited") : *text != 0) fail_msg("%d: %s", less, text);
        free(text);
        ag_compilation_free(c);
    }
}

/* What tile_check is for. */
static void spoil(Kernel *k, int x) {
    Ins *list = first_of(&k->role[0].body, TI_LIST);
    if (x == 0) k->val[list->bar].cols = 16;
    if (x == 1) list->bar = list->dst;
    if (x == 2) list->e[3] = 0;
    if (x == 3) k->queries = 17;
    if (x == 4) first_always(k); /* scores are read under another condition */
}
static void test_check(void **state) {
    (void)state;
    for (volatile int x = 0; x < 5; x++) {
        Compilation *c = compiled(lists("g", 6, 16, ""), "sm_80", 16, 4);
        Kernel *k = kernel_of(c);
        unsigned facts = FACT_TILED | FACT_SPLIT | FACT_PIPELINED | FACT_PLACED;
        ag_tile_check(k, facts);
        if (setjmp(c->diag.jump) == 0) {
            spoil(k, x);
            ag_tile_check(k, facts);
        }
        if (c->diag.status == ATTNGEN_OK) fail_msg("%d is not found", x);
        ag_compilation_free(c);
    }
}

/* ---- which groups take it */

static void test_choice(void **state) {
    (void)state;
    static const struct {
        const char *order;
        int group, slots, block, queries; /* 0: refused */
    } want[] = {
        {"union", 2, 16, 64, 0},  {"union", 4, 16, 64, 16}, {"union", 4, 16, 256, 16}, {"union", 8, 16, 64, 8},
        {"union", 12, 16, 64, 0}, {"union", 16, 16, 64, 4}, {"union", 16, 200, 64, 0}, {"union", 20, 16, 64, 0},
        {"union", 24, 16, 64, 0}, {"union", 32, 16, 64, 2}, {"union", 48, 16, 64, 0},  {"union", 64, 16, 64, 0},
        {"query", 8, 16, 64, 1},  {"auto", 12, 16, 64, 1},  {"auto", 16, 16, 64, 1},   {"auto", 8, 16, 32, 1},
    };
    for (int i = 0; i < LEN(want); i++) {
        const attngen_dim dims[] = {{"D", D}, {"group", want[i].group}, {0}};
        char schedule[96];
        snprintf(schedule, sizeof schedule, "schema: attngen.schedule/1\nloop: {lists: %s}\n", want[i].order);
        Compilation *c = compile_raw(lists("g", want[i].slots, want[i].block, ", mask: k <= q"), schedule, "sm_80", dims, NULL);
        if (!want[i].queries) {
            char *text = report(c);
            assert_int_equal(c->diag.status, ATTNGEN_E_UNSUPPORTED);
            if (!strstr(text, "loop.lists: union takes a list for each query, shared by 4, 8, 16 or 32 query heads")) fail_msg("%s", text);
            free(text);
        } else {
            must_compile(c);
            const Kernel *k = kernel_of(c);
            if (k->queries != want[i].queries) fail_msg("case %d: %d queries, not %d", i, k->queries, want[i].queries);
            assert_int_equal(k->list->dst >= 0, want[i].queries > 1);
            assert_int_equal(strstr(c->cu.s, "unite_lists<") != NULL, want[i].queries > 1);
        }
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_blocks),  cmocka_unit_test(test_heads),
        cmocka_unit_test(test_empty),      cmocka_unit_test(test_derived), cmocka_unit_test(test_broken),
        cmocka_unit_test(test_few_blocks), cmocka_unit_test(test_check),   cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
