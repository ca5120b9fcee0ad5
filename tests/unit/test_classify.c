/* The map of key tiles (tile_classify.c): against the mask in double, on tensors of many shapes; which specs have one; what the simulator says of wrong bounds; the workspace. */
#include "with_schedule.h"

#include "program.h"
#include "with_masks.h"

static const attngen_dim D16[] = {{"D", 16}, {NULL, 0}};
static const Case shapes[] = {{.B = 1, .Hkv = 2, .group = 1, .Sq = 65, .Sk = 65, .offset = ATTNGEN_ALIGN_END},
                              {.B = 2, .Hkv = 1, .group = 2, .Sq = 130, .Sk = 161, .offset = ATTNGEN_ALIGN_END},
                              {.B = 2, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 300, .offset = 7},
                              {.B = 1, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 0, .offset = 0},
                              {.B = 1, .Hkv = 1, .group = 1, .Sq = 33, .Sk = 15, .offset = -20}};

/* ---- what the first input holds: ints by position */

typedef enum Content { PACKED, MIXED, RARE, EXTREME, ALL_ONE, CONTENTS } Content;

static int32_t number_at(Content content, uint32_t *seed, int64_t at) {
    *seed = *seed * 1664525u + 1013904223u;
    uint32_t x = *seed >> 16;
    switch (content) {
    case PACKED: return (int32_t)((at + 11) / 37);
    case MIXED: return (int32_t)(x % 3);
    case RARE: return x % 61 == 0;
    case EXTREME: return x % 3 == 0 ? INT32_MIN : x % 3 == 1 ? INT32_MAX : (int32_t)(at / 50);
    default: return 1;
    }
}

static void fill(CaseData *d, const Spec *spec, Content content) {
    const CaseTensor *t = &d->t[CASE_TENSORS];
    uint32_t seed = 77;
    int rank = spec->input[0].rank;
    for (int64_t i = 0; i < (rank > 2 ? t->dim[0] : 1); i++)
        for (int64_t j = 0; j < (rank > 1 ? t->dim[rank - 2] : 1); j++)
            for (int64_t k = 0; k < t->dim[rank - 1]; k++) {
                int64_t at[4] = {rank == 1 ? k : rank == 2 ? j : i, rank == 2 ? k : j, k, 0};
                int32_t x = number_at(content, &seed, k);
                if (spec->input[0].type == DT_BOOL) x = x > 0;
                ag_host_set(&d->call.input[0], at[0], at[1], at[2], at[3], x);
            }
}

/* ---- the map, tile by tile */

typedef enum Kind { HIDDEN, PARTIAL, WHOLE } Kind;

static Kind kind_of(const Compilation *c, const HostCall *call, int64_t b, int64_t h, int64_t m, int64_t j) {
    int64_t rows = c->fn.kernel->queries, keys = c->fn.sched->f[F_TILE_N].v, seen = 0, all = 0;
    for (int64_t q = m * rows; q < (m + 1) * rows && q < call->size[SZ_SQ]; q++)
        for (int64_t k = j * keys; k < (j + 1) * keys; k++, all++) seen += k < call->size[SZ_SK] && ag_visible(c->fn.spec, call, b, h, q, k);
    return !seen ? HIDDEN : seen == all ? WHOLE : PARTIAL;
}

/* What the map says of a tile: those between MAP_BEGIN and MAP_END need no mask. */
static Kind mapped(const int32_t *row, int64_t j) {
    bool there = (uint32_t)row[j / 32] >> j % 32 & 1, plain = j >= row[-MAP_BEGIN] && j < row[-MAP_END];
    return !there ? HIDDEN : plain ? WHOLE : PARTIAL;
}

/* A tile is in the map if and only if it has a visible key.  Those that need no mask are as many as any run of tiles has that are seen as a whole, hidden ones left out. */
static void check_row(const Compilation *c, const HostCall *call, const int32_t *row, int64_t b, int64_t h, int64_t m) {
    int64_t keys = c->fn.sched->f[F_TILE_N].v, tiles = (call->size[SZ_SK] + keys - 1) / keys, seen = 0, plain = 0, run = 0, most = 0, first = -1;
    for (int64_t j = 0; j < tiles; j++) {
        Kind kind = kind_of(c, call, b, h, m, j), said = row[-MAP_TILES] ? mapped(row, j) : HIDDEN; /* a row without tiles has a bit */
        if ((kind == HIDDEN) != (said == HIDDEN) || (said == WHOLE && kind != WHOLE))
            fail_msg("%s, b %lld h %lld m %lld: tile %lld is %d and mapped as %d", c->diag.file[1].text.s, (long long)b, (long long)h, (long long)m,
                     (long long)j, kind, said);
        seen += kind != HIDDEN;
        plain += said == WHOLE;
        if (said == PARTIAL && first < 0) first = j;
        run = kind == WHOLE ? run + 1 : kind == PARTIAL ? 0 : run;
        most = run > most ? run : most;
    }
    if (row[-MAP_TILES] != seen || row[-MAP_PLAIN] != plain || plain != most || (first >= 0 && row[-MAP_FIRST] > first))
        fail_msg("%s, b %lld h %lld m %lld: %d tiles of which %d need no mask, should be %lld and %lld", c->diag.file[1].text.s, (long long)b,
                 (long long)h, (long long)m, row[-MAP_TILES], row[-MAP_PLAIN], (long long)seen, (long long)most);
    if (seen == 0) assert_int_equal(row[0], 1); /* tile 0, for whoever visits one at least */
}

/* by_batch, by_head: what the rows are told apart by. */
static void check_map(const Compilation *c, const HostCall *call, const HostTensor *map, bool by_batch, bool by_head) {
    int64_t word = 32 * c->fn.sched->f[F_TILE_N].v, room = MAP_HEAD + (call->size[SZ_SK] ? (call->size[SZ_SK] + word - 1) / word : 1);
    int64_t tiles_m = (call->size[SZ_SQ] + c->fn.kernel->queries - 1) / c->fn.kernel->queries;
    for (int64_t b = 0; b < call->size[SZ_B]; b++)
        for (int64_t h = 0; h < call->size[SZ_HQ]; h++)
            for (int64_t m = 0; m < tiles_m; m++) {
                const int64_t at = (((by_batch ? b : 0) * (by_head ? call->size[SZ_HQ] : 1) + (by_head ? h : 0)) * tiles_m + m) * room;
                check_row(c, call, (const int32_t *)map->data + at + MAP_HEAD, b, h, m);
            }
}

static void run(const Compilation *c, const Case *shape, Content content, bool by_batch, bool by_head) {
    CaseData d;
    ProgramBuffers buffers;
    Buf message = {0}, wrong = {0};
    ag_putn(&wrong, "", 0);
    assert_true(ag_check_data(&d, shape, c->fn.spec, 5));
    fill(&d, c->fn.spec, content);
    ag_check_poison(&d, c->fn.spec);
    if (!ag_simulate_program(c, &d.call, &buffers, &message)) fail_msg("%s: %s", c->diag.file[1].text.s, message.s);
    check_map(c, &d.call, &buffers.tensor[ag_program_tiles(c->fn.spec, 0)], by_batch, by_head);
    judge(c, &d, 1, &wrong);
    if (wrong.n) fail_msg("%s: %s", c->diag.file[1].text.s, wrong.s);
    ag_program_buffers_free(&buffers);
    ag_check_data_free(&d);
    ag_buf_free(&wrong);
}

#define SPEC(inputs, mask) "attention: a\nparams: {w: {int: 40}}\ninputs:\n  x: " inputs "\nscore: s + 0.0 * w\nmask: " mask "\n"

static const struct {
    const char *spec;
    bool by_batch, by_head;
} masks[] = {
    {SPEC("{i32: [b, k]}", "k <= q and x[b, q] == x[b, k]"), true, false},
    {SPEC("{i32: [k]}", "x[q] == x[k]"), false, false},
    {SPEC("{i32: [b, k]}", "x[b, k] != 0 and q - k < w"), true, false},
    {SPEC("{i32: [b, q]}", "k < x[b, q] or k == q"), true, false},
    {SPEC("{i32: [b, k]}", "not (x[b, q] < x[b, k])"), true, false},
    {SPEC("{i32: [b, k]}", "k <= q if x[b, k] == 1 else x[b, q] != 2"), true, false},
    {SPEC("{i32: [b, k]}", "max(x[b, q], 1) == max(x[b, k], 1) and x[b, q] // 2 <= min(x[b, k], 3)"), true, false},
    {SPEC("{bool: [b, k]}", "x[b, k] and k <= q"), true, false},
    {SPEC("{bool: [b, k]}", "not x[b, k] or not x[b, q] or k // max(w, 1) == q // max(w, 1)"), true, false},
    {SPEC("{i32: [h, k]}", "x[h, q] == x[h, k]"), false, true},
    {SPEC("{i32: [b, g, k]}", "x[b, g, q] >= x[b, g, k]"), true, true},
    {SPEC("{bool: [b, q, k]}", "x[b, q, k]"), true, false},
    {SPEC("{f32: [b, k]}", "x[b, k] > 0.5 and k <= q"), true, false},
    {SPEC("{i32: [b, k]}", "x[b, q] + x[b, k] == 2 or (x[b, q] == x[b, k] and k % max(w, 1) != 3)"), true, false},
};

static void test_maps(void **state) {
    (void)state;
    for (int wgmma = 0; wgmma < 2; wgmma++)
        for (int i = 0; i < LEN(masks); i++) {
            Schedule s = wgmma ? small_wgmma(1) : small_schedule();
            Compilation *c = compile_schedule(masks[i].spec, &s, wgmma ? "sm_90a" : "sm_80", D16, NULL);
            must_compile(c);
            assert_int_equal(c->npart, 2);
            assert_int_equal(c->part[0].kernel->kind, KERNEL_CLASSIFY);
            ag_tile_check(c->part[0].kernel, FACT_PLACED);
            assert_int_equal(c->diag.status, ATTNGEN_OK);
            for (int n = 0; n < LEN(shapes); n++)
                for (int content = 0; content < CONTENTS; content++)
                    if (!wgmma || n == content % LEN(shapes)) run(c, &shapes[n], (Content)content, masks[i].by_batch, masks[i].by_head);
            ag_compilation_free(c);
        }
}

/* ---- masks of positions and scalars */

static Compilation *compile_mapped(const char *spec, const Schedule *s, const char *arch, bool mapped) {
    Buf text = {0};
    ag_schedule_print(&text, s);
    const attngen_source a = {"spec.yaml", spec, strlen(spec)}, b = {"schedule.yaml", text.s, text.n};
    Compilation *c = ag_compile(&(Request){.spec = &a, .schedule = &b, .arch = arch, .dims = D16, .ndims = 1, .mapped = mapped});
    assert_non_null(c);
    ag_buf_free(&text);
    return c;
}

/* The map against the mask in double, and the result: what bounds say of random masks drops no visible key, and tells no tile with a hidden key from those that need a mask.  The
 * scalars are not known when the kernel is made, and may make nonsense of a mask. */
static void run_random(const Compilation *c, const Case *shape) {
    CaseData d;
    ProgramBuffers buffers;
    Buf message = {0}, wrong = {0};
    uint8_t by = c->fn.math->nodes.n[c->fn.math->range.mask].axes;
    ag_putn(&wrong, "", 0);
    assert_true(ag_check_data(&d, shape, c->fn.spec, 5));
    ag_check_poison(&d, c->fn.spec);
    if (!ag_simulate_program(c, &d.call, &buffers, &message)) fail_msg("%s: %s", c->diag.file[1].text.s, message.s);
    check_map(c, &d.call, &buffers.tensor[ag_program_tiles(c->fn.spec, 0)], by >> AX_B & 1, by & (1 << AX_H | 1 << AX_G));
    judge(c, &d, 1, &wrong);
    if (wrong.n) fail_msg("%s: %s", c->diag.file[1].text.s, wrong.s);
    ag_program_buffers_free(&buffers);
    ag_check_data_free(&d);
    ag_buf_free(&wrong);
}

static void test_random(void **state) {
    (void)state;
    static const Case cases[] = {{.B = 1, .Hkv = 2, .group = 1, .Sq = 70, .Sk = 161, .offset = ATTNGEN_ALIGN_END},
                                 {.B = 2, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 100, .offset = 30},
                                 {.B = 1, .Hkv = 1, .group = 1, .Sq = 100, .Sk = 50, .offset = -20}};
    int mapped = 0;
    for (int i = 0; i < 100; i++) {
        Buf mask = {0}, spec = {0};
        put_condition(&mask, 3);
        int c = roll(8) ? 1 + (int)roll(40) : roll(2) ? (int)roll(3) - 2 : 1 << 29;
        ag_put(&spec, "attention: a\nparams: {w: {int: %d}, c: {int: %d}}\nmask: %s\n", (int)roll(80), c, mask.s);
        Schedule s = i % 4 ? small_schedule() : small_wgmma(1);
        Compilation *x = compile_mapped(spec.s, &s, i % 4 ? "sm_80" : "sm_90a", true);
        must_compile(x);
        mapped += x->npart == 2; /* a constant mask has no map */
        if (x->npart == 2) run_random(x, &cases[i % LEN(cases)]);
        ag_compilation_free(x);
        ag_buf_free(&mask);
        ag_buf_free(&spec);
    }
    assert_true(mapped > 75);
}

/* Where bounds of positions leave many tiles that no query needs, and only there. */
static void test_pays(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        bool map;
    } row[] = {
        {"mask: k <= q", false},
        {"mask: abs(q - k) < 300 or k < 64", false},
        {"mask: k <= q and (q - k) % 4 == 0", false},   /* every tile has a visible key */
        {"mask: k <= q and (q - k) % 1024 < 64", true}, /* one tile of sixteen or so */
        {"mask: k // 512 == q // 512", false},
        {"mask: k < 64 or q - k < 64 and k <= q or 1000 <= k < 1100", true}, /* two gaps */
        {"params: {w: {int: 64}}\nmask: k % max(w, 1) == q % max(w, 1)", false},
        {"params: {w: {int: 1024}}\nmask: k % max(w, 1) == q % max(w, 1)", true}, /* by the default: any value is right */
    };
    for (int i = 0; i < LEN(row); i++) {
        Buf spec = {0};
        ag_put(&spec, "attention: a\n%s\n", row[i].spec);
        Compilation *c = compile_raw(spec.s, "schema: attngen.schedule/1\n", "sm_80", D16, NULL);
        must_compile(c);
        if ((c->npart == 2) != row[i].map) fail_msg("%s: %d kernels", row[i].spec, c->npart);
        ag_compilation_free(c);
        ag_buf_free(&spec);
    }
}

/* Masks whose tiles follow from positions and scalars, or from ints by batch and head, need no look at tensors. */
static void test_without(void **state) {
    (void)state;
    static const char *const specs[] = {
        "attention: a\nmask: k <= q\n",
        "attention: a\ninputs:\n  n: {i32: [b]}\nmask: k < n[b]\n",
        "attention: a\ninputs:\n  n: {i32: [b, h]}\nmask: k <= q or k < n[b, h]\n",
        "attention: a\ninputs:\n  x: {f32: [b, k]}\nscore: s + x[b, k]\nmask: k <= q\n",
        "attention: a\ninputs:\n  x: {f32: [b, q, k]}\nscore: s + x[b, q, k]\n",
    };
    for (int i = 0; i < LEN(specs); i++) {
        Schedule s = small_schedule();
        Compilation *c = compile_schedule(specs[i], &s, "sm_80", D16, NULL);
        must_compile(c);
        assert_int_equal(c->npart, 1);
        ag_compilation_free(c);
    }
}

/* ---- bounds that say something wrong */

static void run_broken(bool must, const char *want) {
    Schedule s = small_schedule();
    Compilation *c = compile_schedule(masks[0].spec, &s, "sm_80", D16, NULL);
    CaseData d;
    ProgramBuffers buffers;
    Buf message = {0};
    must_compile(c);
    Kernel *k = c->part[0].kernel;
    k->role[0].body.last->e[must ? 4 : 3] = ag_node_bool(&k->nodes, must);
    assert_true(ag_check_data(&d, &shapes[0], c->fn.spec, 5));
    fill(&d, c->fn.spec, PACKED);
    assert_false(ag_simulate_program(c, &d.call, &buffers, &message));
    if (!strstr(message.s, want)) fail_msg("found \"%s\" in place of \"%s\"", message.s, want);
    ag_program_buffers_free(&buffers);
    ag_check_data_free(&d);
    ag_buf_free(&message);
    ag_compilation_free(c);
}

static void test_broken(void **state) {
    (void)state;
    run_broken(true, "key tile 0 has a hidden key and is taken for a whole one");
    run_broken(false, "key tile 0 has a visible key and is taken for hidden");
}

/* ---- the workspace: a bit for each pair of tiles, and MAP_HEAD words for each query tile; behind the counter of a persistent kernel */
static void test_workspace(void **state) {
    (void)state;
    Schedule s = small_schedule();
    Compilation *c = compile_schedule(masks[9].spec, &s, "sm_80", D16, NULL);
    must_compile(c);
    const int64_t size[SZ_COUNT] = {[SZ_B] = 3, [SZ_HQ] = 4, [SZ_HKV] = 2, [SZ_SQ] = 65, [SZ_SK] = 100, [SZ_D] = 16, [SZ_DV] = 16};
    int64_t tiles = ag_program_tiles(c->fn.spec, 0), bytes = 4 * 4 * 3 * (1 + MAP_HEAD);
    assert_int_equal(ag_workspace_bytes(&c->meta, size), ag_workspace_place(&c->meta, size, (int)tiles) + bytes);
    assert_int_equal(ag_workspace_place(&c->meta, size, (int)tiles) < 512, 1);
    ag_compilation_free(c);
}

/* What the mask alone reads, element by element, is an argument of the kernel that makes the map. */
static void test_arguments(void **state) {
    (void)state;
    Compilation *c = compile_raw("attention: a\nparams: {prefix: {int: 64}}\ninputs: {doc: {i32: [k]}, begin: {i32: [9]}}\n"
                                 "mask: doc[q] == doc[k] and (k <= q or k - begin[doc[q]] < prefix)\n",
                                 "schema: attngen.schedule/1\n", "sm_80", D16, NULL);
    must_compile(c);
    int kernels = 0;
    for (int i = 0; i < c->npart; i++) {
        const Kernel *k = c->part[i].kernel;
        bool there = false;
        for (int x = 0; x < k->nslot; x++) there |= k->slot[x].kind == SLOT_INT && k->slot[x].index == 1;
        kernels += there;
    }
    assert_int_equal(kernels, 2);
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_maps),     cmocka_unit_test(test_random), cmocka_unit_test(test_pays),
                                       cmocka_unit_test(test_without),  cmocka_unit_test(test_broken), cmocka_unit_test(test_workspace),
                                       cmocka_unit_test(test_arguments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
