/* test_gather.c: listed blocks visited block by block: right beside the reference, and what the simulator says where the walk over pieces, its copies or the merging are
 * broken. */
#include <stdio.h>

#include "program.h"
#include "with_schedule.h"

static const char SPEC[] = "attention: a\ninputs:\n  list: {i32: [b, g, q, 5]}\nbranches:\n  x: {blocks: list, block: 32, mask: k <= q}\n";
static const char SCHEDULE[] = "schema: attngen.schedule/1\nloop: {lists: block}\n";

static Compilation *compiled(const char *arch, int group) {
    const attngen_dim dims[] = {{"D", 32}, {"group", group}, {NULL, 0}};
    Compilation *c = compile_raw(SPEC, SCHEDULE, arch, dims, NULL);
    must_compile(c);
    return c;
}

/* The part that has the attention. */
static Kernel *attention(const Compilation *c) {
    for (int i = 0; i < c->npart; i++)
        if (c->part[i].kernel->kind == KERNEL_GATHER) return c->part[i].kernel;
    fail_msg("nothing is gathered");
    return NULL;
}

/* The message of a run ("" if it went well), with the result compared. */
static char *run(const Compilation *c, const Case *shape) {
    CaseData data;
    ProgramBuffers buffers;
    Buf message = {0};
    const Spec *spec = c->fn.spec;
    assert_true(ag_check_data(&data, shape, spec, 5));
    double *o = doubles(&data.call, spec->Dv), *naive = doubles(&data.call, spec->Dv), *lse = doubles(&data.call, 1),
           *naive_lse = doubles(&data.call, 1);
    ag_check_poison(&data, spec);
    ag_putn(&message, "", 0);
    bool ok = ag_simulate_program(c, &data.call, &buffers, &message);
    assert_true(ag_reference(spec, &data.call, o, lse) && ag_naive(spec, &data.call, naive, naive_lse));
    if (ok) {
        Comparison r = ag_compare(spec, &data.call, ag_error_bound(c->numerics), o, lse, naive);
        if (!r.ok) ag_put(&message, "%s", r.text);
    }
    ag_program_buffers_free(&buffers);
    ag_check_data_free(&data);
    free(o);
    free(naive);
    free(lse);
    free(naive_lse);
    return message.s;
}

static const Case small = {.B = 1, .Hkv = 2, .group = 2, .Sq = 90, .Sk = 100, .offset = ATTNGEN_ALIGN_END};

static void says(const Compilation *c, const Case *shape, const char *part) {
    char *text = run(c, shape);
    if (part ? !strstr(text, part) : text[0] != '\0') fail_msg("%s instead of %s", text, part ? part : "nothing");
    free(text);
}

/* Pieces that end in a block and go over several; blocks that nobody lists; heads of a query apart in a tile. */
static void test_right(void **state) {
    (void)state;
    static const int groups[] = {1, 2, 3, 6, 16, 40};
    for (int i = 0; i < LEN(groups); i++) {
        Compilation *c = compiled(i % 2 ? "sm_80" : "sm_90a", groups[i]);
        const Case shapes[] = {
            {.B = 2, .Hkv = 2, .group = groups[i], .Sq = 130, .Sk = 130, .offset = ATTNGEN_ALIGN_END},
            {.B = 1, .Hkv = 1, .group = groups[i], .Sq = 1, .Sk = 700, .offset = ATTNGEN_ALIGN_END, .layout = LAY_BSHD},
            {.B = 1, .Hkv = 1, .group = groups[i], .Sq = 300, .Sk = 33, .offset = -40, .layout = LAY_STEP},
            {.B = 1, .Hkv = 2, .group = groups[i], .Sq = 20, .Sk = 0, .offset = ATTNGEN_ALIGN_END},
        };
        for (int s = 0; s < LEN(shapes); s++) says(c, &shapes[s], NULL);
        ag_compilation_free(c);
    }
}

static Ins *find(Block *b, TileOp op, Block **in) {
    for (Ins *i = b->first; i; i = i->next) {
        if (i->op == op) return *in = b, i;
        Ins *x = find(&i->body, op, in);
        if (x) return x;
    }
    return NULL;
}

/* The n-th instruction of an op, in the order of the text, is taken out. */
static Ins *nth(Block *b, TileOp op, int *n, Block **in) {
    for (Ins *i = b->first; i; i = i->next) {
        if (i->op == op && (*n)-- == 0) return *in = b, i;
        Ins *x = nth(&i->body, op, n, in);
        if (x) return x;
    }
    return NULL;
}

static void without(TileOp op, int n, const char *part) {
    Compilation *c = compiled("sm_80", 2);
    Block *in = NULL;
    Ins *i = nth(&attention(c)->role[0].body, op, &n, &in);
    assert_non_null(i);
    ag_block_remove(in, i);
    says(c, &small, part);
    ag_compilation_free(c);
}

static void test_broken(void **state) {
    (void)state;
    without(TI_WAIT, 0, "reads K [stage 0] before its copy");
    without(TI_WAIT, 1, "reads Q [stage 0] before its copy has arrived: a wait is missing");
    without(TI_SYNC, 0, "reads kept [stage 0] before its copy is visible");
    without(TI_SYNC, 1, "reads K [stage 0] before its copy is visible");
    without(TI_SYNC, 2, "reads Q [stage 0] before its copy is visible");
    without(TI_SYNC, 3, "overwrites Q [stage 0] before its release: no sync since it was last used");
    without(TI_SYNC, 4, "overwrites K [stage 0] before its release: no sync since it was last used");
    without(TI_FIND, 0, "");
}

/* Three chunks of queries, the last of them short, as with less room for the results of entries. */
static void test_chunks(void **state) {
    (void)state;
    enum { ROOM = 800000000 };
    Compilation *c = compiled("sm_90a", 6);
    const Case large = {.B = 2, .Hkv = 1, .group = 6, .Sq = 600, .Sk = 650, .offset = ATTNGEN_ALIGN_END};
    const int64_t size[META_SIZES] = {[SZ_B] = 2, [SZ_HQ] = 6, [SZ_HKV] = 1, [SZ_SQ] = 600, [SZ_SK] = 650, [SZ_OFF] = 50, [SZ_D] = 32, [SZ_DV] = 32};
    int64_t whole = ag_workspace_bytes(&c->meta, size);
    for (uint32_t i = 0; i < c->meta.nderived; i++)
        for (int k = 0; k < LEN(c->meta.derived[i].op); k++)
            if (c->meta.derived[i].op[k] == ROOM) c->meta.derived[i].op[k] = 1;
    assert_int_equal(ag_tensor_extent(&c->meta, size, ag_program_entry(c->fn.spec, 0), 2), 256 * 5);
    assert_true(ag_workspace_bytes(&c->meta, size) < whole / 2);
    says(c, &large, NULL);
    ag_compilation_free(c);
}

/* By itself: where the rows of so many heads cost less than a block of keys. */
static void test_auto(void **state) {
    (void)state;
    static const struct {
        int group, block;
        bool gathers;
        int queries;
    } row[] = {{4, 16, true, 0},   {5, 16, false, 0},   {7, 32, true, 0},   {8, 32, false, 0},    {11, 64, true, 0},  {12, 64, false, 0},
               {15, 128, true, 0}, {16, 128, false, 0}, {1, 256, false, 0}, {1, 64, false, 1023}, {1, 64, true, 1024}};
    for (int i = 0; i < LEN(row); i++) {
        char spec[200];
        snprintf(spec, sizeof spec, "attention: a\ninputs:\n  list: {i32: [b, g, q, 5]}\nbranches:\n  x: {blocks: list, block: %d, mask: k <= q}\n",
                 row[i].block);
        const attngen_dim dims[] = {{"D", 64}, {"group", row[i].group}, {row[i].queries ? "queries" : NULL, row[i].queries}, {NULL, 0}};
        Compilation *c = compile_raw(spec, "schema: attngen.schedule/1\n", "sm_90", dims, NULL);
        must_compile(c);
        bool gathers = false;
        for (int k = 0; k < c->npart; k++) gathers |= c->part[k].kernel->kind == KERNEL_GATHER;
        if (gathers != row[i].gathers) fail_msg("%d heads, blocks of %d", row[i].group, row[i].block);
        ag_compilation_free(c);
    }
}

static int chunked_kernels(const char *rest) {
    char spec[300];
    snprintf(spec, sizeof spec, "attention: a\ninputs:\n  list: {i32: [b, g, q, 5]}\n%s%s", strstr(rest, "lim[") ? "  lim: {i32: [b, q]}\n" : "",
             rest);
    const attngen_dim dims[] = {{"D", 32}, {"group", 2}, {NULL, 0}};
    Compilation *c = compile_raw(spec, SCHEDULE, "sm_80", dims, NULL);
    must_compile(c);
    int n = 0;
    for (uint32_t i = 0; i < c->meta.nkernel; i++) n += c->meta.kernel[i].chunk != 0;
    ag_compilation_free(c);
    return n;
}

/* An expression that reads Sq, or an element of another query, has to see all queries. */
static void test_no_chunks(void **state) {
    (void)state;
    assert_int_equal(chunked_kernels("branches:\n  x: {blocks: list, block: 32, mask: \"k < lim[b, q]\"}\n"), 5);
    assert_int_equal(chunked_kernels("let: {last: Sq - 1}\nbranches:\n  x: {blocks: list, block: 32, mask: k <= last}\n"), 0);
    assert_int_equal(chunked_kernels("branches:\n  x: {blocks: list, block: 32, mask: \"k < lim[b, max(q - 1, 0)]\"}\n"), 0);
    assert_int_equal(chunked_kernels("branches:\n  x: {blocks: list, block: 32, mask: k <= q - off}\n"), 0);
    assert_int_equal(chunked_kernels("let: {far: \"lim[b, 3]\"}\nbranches:\n  x: {blocks: list, block: 32, mask: k < far}\n"), 0);
}

/* A block of the launch that goes on to the next one's piece. */
static void test_pieces_overlap(void **state) {
    (void)state;
    Compilation *c = compiled("sm_80", 2);
    Kernel *k = attention(c);
    k->val[k->entries->dst].cols *= 4; /* and keeps its entries too */
    for (Ins *i = k->role[0].body.first; i; i = i->next) {
        bool end = i->op == TI_LET && ag_str_is(k->val[i->dst].name, "piece_end");
        if (end) i->e[0] = k->nodes.n[i->e[0]].arg[1]; /* all entries of the head */
    }
    const Case large = {.B = 1, .Hkv = 1, .group = 2, .Sq = 300, .Sk = 300, .offset = ATTNGEN_ALIGN_END};
    says(c, &large, "is written twice");
    ag_compilation_free(c);
}

/* The queries of a block are those of its entries, and no others. */
static void test_other_head(void **state) {
    (void)state;
    Compilation *c = compiled("sm_80", 2);
    Kernel *k = attention(c);
    Block *in = NULL;
    Ins *open = find(&k->role[0].body, TI_ENTRIES, &in);
    assert_non_null(open);
    open->e[1] = ag_node_int(&k->nodes, 0);
    char *text = run(c, &small);
    assert_true(text[0] != '\0');
    free(text);
    ag_compilation_free(c);
}

/* The same bits, however often. */
static void test_workspace(void **state) {
    (void)state;
    Compilation *c = compiled("sm_90a", 4);
    const int64_t size[META_SIZES] = {[SZ_B] = 1, [SZ_HQ] = 8, [SZ_HKV] = 2, [SZ_SQ] = 1000, [SZ_SK] = 1000, [SZ_D] = 32, [SZ_DV] = 32};
    int64_t parts = 8 * 1000 * 5 * 32 * 2, lses = 8 * 1000 * 5 * 4, bytes = ag_workspace_bytes(&c->meta, size);
    assert_true(bytes > parts + lses && bytes < parts + lses + (1 << 17));
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right), cmocka_unit_test(test_broken),         cmocka_unit_test(test_chunks),     cmocka_unit_test(test_no_chunks),
        cmocka_unit_test(test_auto),  cmocka_unit_test(test_pieces_overlap), cmocka_unit_test(test_other_head), cmocka_unit_test(test_workspace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
