/* test_forced.c: the forced blocks of a selection in a kernel of their own, in both orders of lists: right beside the reference, what the kernel over the lists leaves out, and
 * what the simulator says where that is something else. */
#include "with_archs.h"

#define BY_QUERY "schema: attngen.schedule/1\nloop: {lists: query, forced: apart}\n"
#define BY_BLOCK "schema: attngen.schedule/1\nloop: {lists: block, forced: apart}\n"
#define LISTED   "schema: attngen.schedule/1\nloop: {lists: query, forced: listed}\n"
#define SPEC(force, masks, output)                                                                                                                   \
    "attention: t\nderive:\n  kc: {pool: k, size: 8, stride: 4, op: mean}\n  vc: {pool: v, size: 8, stride: 4, op: mean}\n"                          \
    "  picks: {select: cmp, block: 16, count: 5, force: " force ", share: group}\n"                                                                  \
    "branches:\n  cmp: {keys: kc, values: vc, mask: 4 * k + 7 <= q}\n  slc: {blocks: picks" masks "}\n" output
#define GATED "  win: {mask: 'k <= q and q - k < 20'}\noutput: 0.5 * cmp + slc - win\n"

static const char both[] = SPEC("{first: 1, local: 2}", ", mask: k <= q", GATED);

static Compilation *compiled_under(const char *text, const char *schedule, const char *arch, int D, int group) {
    const attngen_dim dims[] = {{"D", D}, {"group", group}, {0}};
    Compilation *c = compile_raw(text, schedule, arch, dims, NULL);
    must_compile(c);
    return c;
}

/* Under the shipped schedule that fits. */
static Compilation *chosen(const char *text, int group, int queries) {
    const attngen_source spec = {"spec.yaml", text, strlen(text)};
    const attngen_dim dims[] = {{"D", 64}, {"group", group}, {"queries", queries}};
    Compilation *c = ag_compile_text(&spec, NULL, "sm_90a", dims, queries ? 3 : 2, NULL);
    must_compile(c);
    return c;
}

static Kernel *named(const Compilation *c, const char *end) {
    size_t n = strlen(end);
    for (int i = 0; i < c->npart; i++) {
        Str name = c->part[i].kernel->name;
        if (name.n >= (int)n && memcmp(name.s + name.n - n, end, n) == 0) return c->part[i].kernel;
    }
    return NULL;
}

static void must_give(const Compilation *c, const Case *shape, const char *spec) {
    char *wrong = result(c, shape, false), name[128];
    ag_check_case_name(name, sizeof name, shape, c->fn.spec);
    if (*wrong) fail_msg("%s on %s: %s\n%s", name, c->fn.target->name, wrong, spec);
    free(wrong);
}

/* Queries at the end of the keys, with more queries than keys, and behind the keys, where some local blocks are not there. */
static void must_pass_under(const char *spec, const char *schedule, const char *arch, int group) {
    Compilation *c = compiled_under(spec, schedule, arch, 32, group);
    assert_non_null(named(c, "_slc_forced_fwd"));
    const Case shapes[] = {
        {.B = 2, .Hkv = 2, .group = group, .Sq = 21, .Sk = 150, .offset = 129, .layout = LAY_BSHD},
        {.B = 1, .Hkv = 1, .group = group, .Sq = 120, .Sk = 120, .offset = 0},
        {.B = 1, .Hkv = 1, .group = group, .Sq = 40, .Sk = 33, .offset = -7, .layout = LAY_TAIL},
        {.B = 1, .Hkv = 1, .group = group, .Sq = 30, .Sk = 90, .offset = 70},
    };
    for (int i = 0; i < LEN(shapes); i++) must_give(c, &shapes[i], spec);
    ag_compilation_free(c);
}

static const char *const specs[] = {
    both,
    SPEC("{first: 1, local: 2}", "", GATED), /* without a mask keys behind the query are seen, to the end of its own block */
    SPEC("{first: 2}", ", mask: k <= q", GATED),
    SPEC("{local: 3}", ", mask: k <= q and k % 3 != 1", GATED),
    SPEC("{first: 1, local: 1}", ", mask: q >= k", "output: slc\n"), /* the listed branch comes last, and the output in its kernel */
    SPEC("{first: 3, local: 1}", ", mask: k <= q", "output: cmp - slc * 2\n"),
};
static const char normed[] =
    SPEC("{first: 1, local: 2}", ", mask: k <= q", "  win: {mask: 'k <= q and q - k < 20'}\noutput: rms_norm(cmp + slc, 1e-3) - win\n"),
                  normed_last[] = SPEC("{first: 1, local: 2}", ", mask: k <= q", "output: layer_norm(slc, 1e-3) + cmp\n");

static void test_by_query(void **state) {
    (void)state;
    for (int i = 0; i < LEN(specs); i++) {
        must_pass_under(specs[i], BY_QUERY, "sm_80", 16);
        must_pass_under(specs[i], BY_QUERY, "sm_90", 3);
    }
    must_pass_under(normed, BY_QUERY, "sm_80", 4);
    must_pass_under(normed_last, BY_QUERY, "sm_80", 4);
}

static void test_by_block(void **state) {
    (void)state;
    for (int i = 0; i < LEN(specs); i++) {
        must_pass_under(specs[i], BY_BLOCK, "sm_80", 1);
        must_pass_under(specs[i], BY_BLOCK, "sm_90", 4);
    }
}

/* wgmma, under the shipped schedule, which decides by itself: 192 keys of each query are forced. */
static void test_hopper(void **state) {
    (void)state;
    static const char spec[] =
        "attention: t\nderive:\n  kc: {pool: k, size: 32, stride: 16, op: mean}\n  vc: {pool: v, size: 32, stride: 16, op: mean}\n"
        "  picks: {select: cmp, block: 64, count: 4, force: {first: 1, local: 2}, share: group}\nbranches:\n"
        "  cmp: {keys: kc, values: vc, mask: 16 * k + 31 <= q}\n  slc: {blocks: picks, mask: k <= q}\n  win: {mask: 'k <= q and q - k < 100'}\n"
        "output: cmp + slc + win\n";
    for (int group = 4; group <= 16; group += 12) {
        Compilation *c = chosen(spec, group, 0);
        const Case shape = {.B = 1, .Hkv = 1, .group = group, .Sq = 70, .Sk = 460, .offset = 390};
        const Kernel *k = named(c, "_slc_forced_fwd");
        assert_non_null(k);
        assert_int_equal(k->sched->f[F_MMA_FAMILY].v, FAMILY_WGMMA);
        assert_int_equal(k->sched->f[F_TILE_N].v, 64);
        assert_int_equal(k->pack, group == 4 ? 4 : 16);
        must_give(c, &shape, spec);
        ag_compilation_free(c);
    }
}

/* ---- what is decided */

static void test_choice(void **state) {
    (void)state;
    static const struct {
        const char *force;
        int block, group, queries;
        bool apart;
    } cases[] = {{"{first: 1, local: 2}", 64, 16, 0, true},
                 {"{first: 1, local: 2}", 64, 4, 0, true},
                 {"{first: 1, local: 2}", 64, 3, 0, false}, /* block by block */
                 {"{first: 1, local: 2}", 64, 16, 1024, true},
                 {"{first: 1, local: 2}", 64, 16, 1023, false},
                 {"{first: 1, local: 2}", 32, 16, 0, false},
                 {"{local: 1}", 64, 16, 0, false},
                 {"{local: 1}", 128, 16, 0, true},
                 {"{first: 1, local: 15}", 64, 16, 0, false}, /* nothing else is listed */
                 {"{first: 1, local: 2}, causal: false", 64, 16, 0, false}};
    for (int i = 0; i < LEN(cases); i++) {
        Buf text = {0};
        ag_put(&text,
               "attention: t\nderive:\n  kc: {pool: k, size: %d, stride: %d, op: mean, tail: partial}\n"
               "  picks: {select: kc, block: %d, count: 16, force: %s, share: group}\nbranches:\n  slc: {blocks: picks, mask: k <= q}\n",
               cases[i].block, cases[i].block, cases[i].block, cases[i].force);
        Compilation *c = chosen(text.s, cases[i].group, cases[i].queries);
        if ((named(c, "_slc_forced_fwd") != NULL) != cases[i].apart) fail_msg("case %d: %s", i, c->sched->f[F_FORCED].why);
        ag_compilation_free(c);
        ag_buf_free(&text);
    }
}

/* The output is in the kernel of a branch that nothing ranks by, as the listed one has a result in the workspace anyway; block by block it is where the results are merged. */
static void test_last(void **state) {
    (void)state;
    static const struct { const char *schedule, *last; } cases[] = {{BY_QUERY, "t_win_fwd"}, {BY_BLOCK, "t_merge1"}, {LISTED, "t_slc_fwd"}};
    for (int i = 0; i < LEN(cases); i++) {
        Compilation *c = compiled_under(both, cases[i].schedule, "sm_80", 32, 4);
        assert_ptr_equal(named(c, cases[i].last), c->part[c->npart - 1].kernel);
        ag_compilation_free(c);
    }
}

/* Results of the first blocks take no room in the workspace. */
static void test_slots(void **state) {
    (void)state;
    Compilation *c = compiled_under(both, BY_BLOCK, "sm_80", 32, 2);
    const Branch *slc = &c->fn.spec->branch[1];
    assert_int_equal(ag_list_entries(c->fn.spec, slc), 5);
    assert_int_equal(ag_list_slots(c->fn.spec, slc), 4);
    ag_compilation_free(c);
}

/* A program of as many kernels as a spec can have of one kind: each branch over a selection of its own, block by block.  There was room for 20, and more were written behind it. */
static void test_many_kernels(void **state) {
    (void)state;
    static const char *const names[] = {"w", "x", "y", "z"};
    Buf text = {0};
    ag_put(&text, "attention: t\nderive:\n  m: {pool: k, size: 16, stride: 16, op: mean, tail: partial}\n");
    for (int i = 0; i < LEN(names); i++)
        ag_put(&text, "  p%s: {select: m, block: 16, count: %d, force: {first: 1, local: 1}, share: group}\n", names[i], 4 + i);
    ag_put(&text, "branches:\n");
    for (int i = 0; i < LEN(names); i++) ag_put(&text, "  %s: {blocks: p%s, mask: k <= q}\n", names[i], names[i]);
    ag_put(&text, "output: w + x - y + z\n");
    Compilation *c = compiled_under(text.s, BY_BLOCK, "sm_80", 32, 2);
    const Case shape = {.B = 1, .Hkv = 1, .group = 2, .Sq = 40, .Sk = 120, .offset = 80};
    assert_int_equal(c->npart, 1 + LEN(names) * 7);
    must_give(c, &shape, text.s);
    ag_compilation_free(c);
    ag_buf_free(&text);
}

/* ---- broken kernels */

static void from_first(Kernel *k) { /* the first block once more */
    k->val[k->nodes.n[k->lo].index].varies = false;
    for (Ins *i = k->role[0].body.first; i; i = i->next)
        if (i->op == TI_LET && i->dst == k->nodes.n[k->lo].index) i->e[0] = ag_node_int(&k->nodes, 0);
}
static void other_weight(Kernel *k) { /* the weights of the two results, exchanged */
    for (Ins *i = k->role[0].body.first; i; i = i->next)
        if (i->op == TI_OUTPUT) {
            Node n = k->nodes.n[i->e[0]];
            Node a = k->nodes.n[n.arg[0]], b = k->nodes.n[n.arg[1]];
            int own = ag_node_is_float(&k->nodes, a.arg[0], 0) ? 1 : 0, there = own;
            Ref swap = a.arg[own];
            a.arg[own] = b.arg[there], b.arg[there] = swap;
            n.arg[0] = ag_node_intern(&k->nodes, a), n.arg[1] = ag_node_intern(&k->nodes, b);
            i->e[0] = ag_node_intern(&k->nodes, n);
        }
}
static void no_forced(Kernel *k) { k->forced = NULL; }

static void test_broken(void **state) {
    (void)state;
    static const struct {
        const char *schedule, *kernel, *want;
        void (*edit)(Kernel *);
    } cases[] = {
        {BY_QUERY, "_slc_fwd", "is hidden from query row", from_first},
        {BY_QUERY, "_slc_fwd", "o[b ", other_weight},
        {BY_BLOCK, "_count1", "", no_forced},
        {BY_BLOCK, "_merge1", "", no_forced},
    };
    for (int i = 0; i < LEN(cases); i++) {
        Compilation *c = compiled_under(both, cases[i].schedule, "sm_80", 32, 4);
        const Case shape = {.B = 1, .Hkv = 1, .group = 4, .Sq = 20, .Sk = 150, .offset = 130};
        char *right = result(c, &shape, false);
        assert_string_equal(right, "");
        cases[i].edit(named(c, cases[i].kernel));
        char *wrong = result(c, &shape, false);
        if (!*wrong || !strstr(wrong, cases[i].want)) fail_msg("case %d: no `%s` in `%s`", i, cases[i].want, wrong);
        free(right), free(wrong);
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_query), cmocka_unit_test(test_by_block), cmocka_unit_test(test_hopper), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_last),     cmocka_unit_test(test_slots),    cmocka_unit_test(test_broken), cmocka_unit_test(test_many_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
