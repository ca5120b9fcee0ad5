/* test_branch_maps.c: maps of key tiles (tile_classify.c) of branches: which have one, which share one, and that programs with them are right. */
#include "with_archs.h"

#define DOC        "doc[b, q] == doc[b, k]"
#define PLAIN      "attention: t\ninputs: {k2: {dtype: [b, g, k, d]}}\n"
#define HEAD(more) "attention: t\ninputs: {doc: {i32: [b, k]}" more "}\n"
static const struct {
    const char *text;
    int maps, attentions; /* kernels of each kind */
} specs[] = {
    /* one mask, one map */
    {HEAD(", k2: {dtype: [b, g, k, d]}") "branches:\n  a: {mask: \"k <= q and " DOC "\"}\n  c: {keys: k2, mask: \"k <= q and " DOC
                                         "\"}\noutput: a - 0.5 * c\n",
     1, 2},
    {HEAD(", k2: {dtype: [b, g, k, d]}") "branches:\n  a: {mask: \"k <= q and " DOC "\"}\n  c: {keys: k2, mask: \"" DOC
                                         " and k <= q\"}\noutput: a - 0.5 * c\n",
     2, 2},
    {HEAD(", k2: {dtype: [b, g, k, d]}") "branches:\n  a: {mask: \"k <= q\"}\n  c: {keys: k2, mask: \"" DOC " and k <= q\"}\noutput: a - 0.5 * c\n",
     1, 2},
    {PLAIN "branches:\n  a: {mask: \"k <= q\"}\n  c: {keys: k2, mask: \"q - k < 40 and k <= q\"}\noutput: a - 0.5 * c\n", 0, 2},
    /* hidden one by one */
    {PLAIN "branches:\n  a: {mask: \"(q - k) % 1024 < 64 and k <= q\"}\n  c: {keys: k2, mask: \"k <= q\"}\noutput: a - 0.5 * c\n", 1, 2},
    /* one kernel */
    {HEAD(", w: {f32: [h, k]}") "branches:\n  a: {mask: \"k <= q and " DOC "\"}\n  c: {weigh: \"w[h, k]\", mask: \"k <= q and " DOC
                                "\"}\noutput: a - 0.5 * c\n",
     1, 1},
    /* beside pools and lists, which have none */
    {HEAD("") "derive:\n  pk: {pool: k, size: 32, stride: 16, op: mean}\n  pv: {pool: v, size: 32, stride: 16, op: mean}\n"
              "  top: {select: cmp, block: 64, count: 3, force: {first: 1, local: 1}, share: group}\n"
              "branches:\n  cmp: {keys: pk, values: pv, mask: \"16 * k + 31 <= q\"}\n  sel: {blocks: top, mask: \"k <= q and " DOC "\"}\n"
              "  win: {mask: \"k <= q and q - k < 100 and " DOC "\"}\noutput: cmp + sel + win\n",
     1, 3},
    /* a row of the prologue has buffers behind the map */
    {HEAD(", k2: {dtype: [b, g, k, d]}") "prologue:\n  q: [{rms_norm: {eps: 1e-6}}]\nbranches:\n  a: {mask: \"" DOC
                                         "\"}\n  c: {keys: k2, mask: \"" DOC "\"}\noutput: a - 0.5 * c\n",
     1, 2},
};

static const char *const archs[] = {"sm_80", "sm_90a"};

static int count(const Compilation *c, KernelKind kind) {
    int n = 0;
    for (int i = 0; i < c->npart; i++) n += c->part[i].kernel->kind == kind && !strstr(c->part[i].kernel->name.s, "_forced");
    return n;
}

static void test_which(void **state) {
    (void)state;
    for (int i = 0; i < LEN(specs) * LEN(archs); i++) {
        Compilation *c = compiled(specs[i / 2].text, archs[i % 2], NULL, 64, 2);
        int attentions = count(c, KERNEL_ATTEND) + count(c, KERNEL_GATHER);
        if (count(c, KERNEL_CLASSIFY) != specs[i / 2].maps || attentions != specs[i / 2].attentions)
            fail_msg("%s has %d maps and %d attentions:\n%s", archs[i % 2], count(c, KERNEL_CLASSIFY), attentions, specs[i / 2].text);
        ag_compilation_free(c);
    }
}

/* Every kernel has a symbol of its own that the metadata have room for, however long the names of spec and branches are. */
static void test_long_names(void **state) {
    (void)state;
    static const char text[] =
        "attention: a_spec_whose_name_is_as_long_as_the_longest_that_is_allowed\ninputs: {doc: {i32: [b, k]}, k2: {dtype: [b, g, k, d]}}\n"
        "branches:\n  one: {mask: \"k <= q and " DOC "\"}\n  two: {keys: k2, mask: \"" DOC " and k <= q\"}\noutput: one - two\n";
    Compilation *c = compiled(text, "sm_90a", NULL, 64, 2);
    assert_int_equal(count(c, KERNEL_CLASSIFY), 2);
    for (int i = 0; i < c->npart; i++) {
        Str name = c->part[i].kernel->name;
        assert_true(name.n < META_NAME);
        assert_string_equal(c->meta.kernel[i].name, name.s);
        for (int k = 0; k < i; k++) assert_string_not_equal(name.s, c->part[k].kernel->name.s);
    }
    ag_compilation_free(c);
}

/* Its callers have brought the workspace of another program. */
static void test_alone(void **state) {
    (void)state;
    for (int i = 0; i < LEN(specs); i++) {
        const attngen_source s = {"spec.yaml", specs[i].text, strlen(specs[i].text)};
        const attngen_dim dims[] = {{"D", 64}, {"group", 2}};
        Compilation *c = ag_compile(&(Request){.spec = &s, .arch = "sm_90", .dims = dims, .ndims = 2, .alone = true});
        assert_non_null(c);
        must_compile(c);
        assert_int_equal(count(c, KERNEL_CLASSIFY), 0);
        ag_compilation_free(c);
    }
}

static void test_results(void **state) {
    (void)state;
    static const Case cases[] = {{.B = 2, .Hkv = 1, .group = 2, .Sq = 150, .Sk = 410, .offset = 260},
                                 {.B = 1, .Hkv = 2, .group = 2, .Sq = 260, .Sk = 260, .offset = 0},
                                 {.B = 1, .Hkv = 1, .group = 2, .Sq = 20, .Sk = 3, .offset = -9},
                                 {.B = 1, .Hkv = 1, .group = 2, .Sq = 7, .Sk = 0, .offset = 0}};
    for (int i = 0; i < LEN(specs) * LEN(archs); i++) {
        Compilation *c = compiled(specs[i / 2].text, archs[i % 2], NULL, 64, 2);
        for (int n = 0; n < LEN(cases) * 2; n++) {
            char *wrong = result(c, &cases[n / 2], n % 2), name[128];
            ag_check_case_name(name, sizeof name, &cases[n / 2], c->fn.spec);
            if (*wrong) fail_msg("%s, %s%s: %s\n%s", archs[i % 2], name, n % 2 ? ", extreme" : "", wrong, specs[i / 2].text);
            free(wrong);
        }
        ag_compilation_free(c);
    }
}

/* The simulator looks at every map: one that leaves out what a later branch sees is told. */
static void test_broken(void **state) {
    (void)state;
    for (int a = 0; a < LEN(archs); a++) {
        Compilation *c = compiled(specs[0].text, archs[a], NULL, 64, 2);
        Kernel *k = c->part[0].kernel;
        assert_int_equal(k->kind, KERNEL_CLASSIFY);
        k->role[0].body.last->e[3] = ag_node_bool(&k->nodes, false);
        char *wrong = result(c, &(Case){.B = 1, .Hkv = 1, .group = 2, .Sq = 40, .Sk = 40, .offset = 0}, false);
        assert_non_null(strstr(wrong, "key tile 0 has a visible key and is taken for hidden"));
        free(wrong);
        ag_compilation_free(c);
    }
}

/* Its bytes are counted once where two branches share it. */
static void test_workspace(void **state) {
    (void)state;
    Compilation *c = compiled(specs[0].text, "sm_90a", NULL, 64, 2);
    const int64_t size[SZ_COUNT] = {[SZ_B] = 3, [SZ_HQ] = 4, [SZ_HKV] = 2, [SZ_SQ] = 1000, [SZ_SK] = 1000, [SZ_D] = 64, [SZ_DV] = 64};
    int map = ag_program_tiles(c->fn.spec, 0);
    const Kernel *k = c->part[0].kernel;
    int64_t keys = c->part[1].sched->f[F_TILE_N].v, rows = 3 * ((1000 + k->queries - 1) / k->queries);
    assert_int_equal(ag_tensor_extent(&c->meta, size, map, 0), rows * (MAP_HEAD + (1000 + 32 * keys - 1) / (32 * keys)));
    assert_true(c->meta.tensor[map].buffer);
    assert_int_equal(ag_tensor_extent(&c->meta, size, ag_program_tiles(c->fn.spec, 1), 0), 0); /* shared */
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which),   cmocka_unit_test(test_long_names), cmocka_unit_test(test_alone),
                                       cmocka_unit_test(test_results), cmocka_unit_test(test_broken),     cmocka_unit_test(test_workspace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
