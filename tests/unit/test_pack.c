/* test_pack.c: tile.pack_gqa: the query heads of a KV head are rows of a tile.  Both families and every way out, on the simulator against the reference; what
 * the simulator says where rows and heads are confused; refusals. */
#include "with_schedule.h"

typedef struct Way {
    const char *arch, *fields; /* of the schedule, but for tile */
    int m, n;
} Way;

static const Way ways[] = {
    {"sm_80", "roles: {warps: 4}\n", 64, 32},
    {"sm_80", "roles: {warps: 2}\nstaging: {o: {store: direct}}\nmma: {q_operand: regs}\nloop: {form: peeled}\n", 64, 16},
    {"sm_90a", "mma: {family: wgmma}\nroles: {consumer: {warpgroups: 1}}\ngrid: {persistent: none}\nstaging: {o: {store: smem}}\n", 64, 32},
    {"sm_90a",
     "mma: {family: wgmma}\nroles: {consumer: {warpgroups: 2}}\nstaging: {q: {stages: 2}, o: {store: tma}}\nloop: {form: peeled}\n"
     "numerics: {softmax: speculative}\n",
     128, 48},
    {"sm_90a", "mma: {family: wgmma}\nroles: {consumer: {warpgroups: 2}}\nstaging: {o: {store: direct}}\npipeline: {overlap: false}\n", 128, 64},
};

static Compilation *packed(const Way *w, int group, const char *rest, int D, const char *after) {
    const attngen_dim dims[] = {{"D", D}, {NULL, 0}};
    Buf spec = {0}, text = {0};
    ag_put(&spec, "attention: a\n%s", rest);
    if (group) ag_put(&spec, "heads: {group: %d}\n", group);
    ag_put(&text, "schema: attngen.schedule/1\ntile: {m: %d, n: %d, pack_gqa: true}\n%s", w->m, w->n, w->fields);
    Compilation *c = compile_raw(spec.s, text.s, w->arch, dims, after);
    ag_buf_free(&spec);
    ag_buf_free(&text);
    return c;
}

static const char CAUSAL[] = "mask: k <= q\n", WINDOW[] = "mask: k <= q and q - k < 37\n",
                  BY_HEAD[] = "score: s + (h + 1) * (k - q) / 64\nmask: k <= q and q - k < 20 * (h + 1)\n";

static void test_right(void **state) {
    (void)state;
    static const char *const rest[] = {"", CAUSAL, WINDOW, BY_HEAD};
    static const int groups[] = {1, 2, 4, 8, 16, 64};
    for (int w = 0; w < LEN(ways); w++)
        for (int g = 0; g < LEN(groups); g++) {
            Compilation *c = packed(&ways[w], groups[g], rest[(w + g) % LEN(rest)], 16 + 16 * (g % 3), "place");
            must_compile(c);
            const Case shapes[] = {
                {.B = 2, .Hkv = 2, .group = groups[g], .Sq = 1, .Sk = 133, .offset = ATTNGEN_ALIGN_END},
                {.B = 1, .Hkv = 1, .group = groups[g], .Sq = 37, .Sk = 90, .offset = 20, .layout = LAY_BSHD, .large = true},
                {.B = 1, .Hkv = 2, .group = groups[g], .Sq = 70, .Sk = 49, .offset = -40, .layout = LAY_PITCH, .no_lse = true},
            };
            for (int i = 0; i < LEN(shapes); i++) must_be_right(c, &shapes[i], 7);
            ag_compilation_free(c);
        }
}

/* A group of queries is read once: as many tiles as KV heads have. */
static void test_fewer_tiles(void **state) {
    (void)state;
    Compilation *c = packed(&ways[3], 8, CAUSAL, 64, NULL);
    must_compile(c);
    const int64_t size[SZ_COUNT] = {[SZ_B] = 3, [SZ_HQ] = 32, [SZ_HKV] = 4, [SZ_SQ] = 17, [SZ_SK] = 100};
    assert_int_equal(ag_formula(&c->meta.kernel[0].blocks, size), 3 * 4 * 2); /* 128 / 8 = 16 queries a tile */
    bool found = false;
    for (uint32_t i = 0; i < c->meta.ntmap; i++)
        found |= c->meta.tmap[i].tensor == TEN_Q && c->meta.tmap[i].pack == 8 && c->meta.tmap[i].box_rows == 128;
    assert_true(found);
    ag_compilation_free(c);
}

/* ---- what the simulator sees */

static Ins *find(Block *b, TileOp op) {
    for (Ins *i = b->first; i; i = i->next) {
        Ins *x = i->op == op ? i : find(&i->body, op);
        if (x) return x;
    }
    return NULL;
}

static void simulates(const Compilation *c, const char *part) {
    const Case shape = {.B = 1, .Hkv = 2, .group = 4, .Sq = 30, .Sk = 60, .offset = ATTNGEN_ALIGN_END};
    char *text = result_of(c, &shape, 3, 1);
    if (!strstr(text, part)) fail_msg("%s instead of %s", text, part);
    free(text);
}

static void test_wrong_head_stored(void **state) {
    (void)state;
    Compilation *c = packed(&ways[0], 4, CAUSAL, 16, "place");
    must_compile(c);
    Ins *store = find(&c->fn.kernel->role[0].body, TI_STORE);
    assert_non_null(store);
    store->e[3] = ag_node_int(&c->fn.kernel->nodes, 0);
    simulates(c, "not from 16 on of head 0 of batch 0");
    ag_compilation_free(c);
}

static void test_heads_past_the_end(void **state) {
    (void)state;
    Compilation *c = packed(&ways[0], 4, CAUSAL, 16, "place");
    must_compile(c);
    Ins *copy = find(&c->fn.kernel->role[0].body, TI_COPY);
    assert_non_null(copy);
    copy->e[4] = ag_node_int(&c->fn.kernel->nodes, 5);
    simulates(c, "head 8 of q, which has 8");
    ag_compilation_free(c);
}

static void test_unpacked_rows(void **state) {
    (void)state;
    Compilation *c = packed(&ways[0], 4, CAUSAL, 16, "place");
    must_compile(c);
    c->fn.kernel->pack = 1;
    c->fn.kernel->queries = 64;
    simulates(c, "is visited twice");
    ag_compilation_free(c);
}

/* ---- refusals */

static void refuses(const Way *w, int group, attngen_status status, const char *want) {
    Compilation *c = packed(w, group, CAUSAL, 64, NULL);
    char *text = report(c);
    assert_int_equal(c->diag.status, status);
    if (strcmp(text, want) != 0) fail_msg("%s instead of %s", text, want);
    free(text);
    ag_compilation_free(c);
}

static void test_refusals(void **state) {
    (void)state;
    refuses(&ways[0], 0, ATTNGEN_E_UNSUPPORTED,
            "schedule.yaml:2:32: error: tile.pack_gqa: true needs a spec that fixes the query heads of a KV head: add 'heads: {group: N}' to it, or "
            "write "
            "false\n    tile: {m: 64, n: 32, pack_gqa: true}\n                                   ^~~~\n");
    refuses(&ways[0], 6, ATTNGEN_E_UNSUPPORTED,
            "schedule.yaml:2:32: error: tile.pack_gqa: true takes groups of 1, 2, 4, 8, 16, 32 or 64 heads that divide tile.m: the spec has 6, and "
            "tile.m is "
            "64\n    tile: {m: 64, n: 32, pack_gqa: true}\n                                   ^~~~\n"
            "spec.yaml:3:16: note: heads.group is 6 here\n    heads: {group: 6}\n                   ^\n");
    refuses(&ways[4], 128, ATTNGEN_E_UNSUPPORTED,
            "schedule.yaml:2:33: error: tile.pack_gqa: true takes groups of 1, 2, 4, 8, 16, 32 or 64 heads that divide tile.m: the spec has 128, and "
            "tile.m "
            "is 128\n    tile: {m: 128, n: 64, pack_gqa: true}\n                                    ^~~~\n"
            "spec.yaml:3:16: note: heads.group is 128 here\n    heads: {group: 128}\n                   ^~~\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right),
        cmocka_unit_test(test_fewer_tiles),
        cmocka_unit_test(test_wrong_head_stored),
        cmocka_unit_test(test_heads_past_the_end),
        cmocka_unit_test(test_unpacked_rows),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
