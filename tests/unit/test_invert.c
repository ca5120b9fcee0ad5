/* Block lists inverted: the three kernels on the simulator against a brute-force inversion; broken kernels; buffers of the program; their text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "program.h"
#include "with_schedule.h"

enum { STEPS = 3 };

/* ---- a compilation up to the kernels */

typedef struct Built {
    Diag d;
    const Spec *spec;
    const Branch *branch;
    int index;
    Schedule sched;
    Kernel *kernel[STEPS + 1]; /* the last one: a pool, if there is any */
} Built;

static void build(Built *b, const char *text, const char *arch, const attngen_dim *more) {
    *b = (Built){.sched = small_schedule()};
    b->d.arena = ag_arena_new();
    assert_non_null(b->d.arena);
    if (setjmp(b->d.jump)) return;
    ag_arena_on_oom(b->d.arena, &b->d.jump);
    const Spec *spec = b->spec = read_spec(&b->d, text, 64, more);
    while (spec->branch[b->index].blocks.kind == FROM_NONE) b->index++;
    b->branch = &spec->branch[b->index];
    Fn fn = {.d = &b->d, .spec = spec, .sched = &b->sched, .target = ag_target_find(arch)};
    for (int step = 0; step < STEPS; step++) {
        b->kernel[step] = ag_build_invert(&fn, b->index, step);
        ag_tile_check(b->kernel[step], FACT_TILED | FACT_SPLIT | FACT_PIPELINED | FACT_PLACED);
    }
    if (spec->nderive > 0) b->kernel[STEPS] = ag_build_pool(&fn, 0);
}

static void must_build(const Built *b) {
    Buf out = {0};
    ag_putn(&out, "", 0);
    ag_diag_render(&b->d, &out);
    if (b->d.status != ATTNGEN_OK) fail_msg("%s", out.s);
    ag_buf_free(&out);
}

static void drop(Built *b) { ag_arena_free(b->d.arena); }

static const char *spec_text(const char *axis, bool counts) {
    static char text[1024];
    snprintf(text, sizeof text,
             "attention: lists\n"
             "params: {n: {int: 5}, block: {int: 64}}\n"
             "heads: {group: 2}\n"
             "inputs:\n"
             "  lists: {i32: [b, %s, q, n]}\n"
             "%s%s%s"
             "branches:\n"
             "  listed: {blocks: lists, block: block%s}\n",
             axis, counts ? "  counts: {i32: [b, " : "", counts ? axis : "", counts ? ", q]}\n" : "", counts ? ", counts: counts" : "");
    return text;
}

static const char *const nsa_text = "attention: nsa\n"
                                    "heads: {group: 2}\n"
                                    "derive:\n"
                                    "  kc: {pool: k, size: 32, stride: 16}\n"
                                    "  vc: {pool: v, size: 32, stride: 16}\n"
                                    "  picks: {select: cmp, block: 64, count: 16, force: {first: 1, local: 2}}\n"
                                    "branches:\n"
                                    "  cmp: {keys: kc, values: vc, mask: 16 * k + 31 <= q}\n"
                                    "  slc: {blocks: picks, mask: k <= q}\n"
                                    "output: cmp + slc\n";

/* ---- a call: random lists, some entries of which do not count; tensors with gaps between their rows */

typedef struct Data {
    HostCall call;
    int64_t B, heads, Sq, slots, blocks, chunks;
    int32_t *lists, *counts, *sums, *first, *entry, *want_first, *want_entry;
} Data;

static uint32_t random_state;
static int random_below(int64_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (uint32_t)n);
}

enum { GAP = 3 };

static int32_t random_entry(const Data *d, const int32_t *list, int64_t slot) {
    int what = random_below(12);
    if (what == 0) return -1;
    if (what == 1) return (int32_t)d->blocks + random_below(3);
    if (what == 2) return INT32_MIN;
    if (what == 3) return INT32_MAX;
    if (what <= 5 && slot > 0) return list[random_below(slot)];
    int64_t most = what <= 7 && d->blocks > 4 ? 4 : d->blocks; /* some that many lists have */
    return most ? random_below(most) : 0;
}

static int32_t *ints(int64_t n) {
    int32_t *x = malloc(sizeof *x * (size_t)(n + 1));
    for (int64_t i = 0; i <= n; i++) x[i] = -77;
    return x;
}

static int32_t *list_at(const Data *d, int64_t bh, int64_t q) { return d->lists + (bh * d->Sq + q) * (d->slots + GAP); }

/* Blocks one after the other, each looked for in all lists. */
static void brute_force(Data *d, bool counts) {
    for (int64_t bh = 0; bh < d->B * d->heads; bh++) {
        int32_t n = 0;
        for (int64_t block = 0; block < d->blocks; block++) {
            d->want_first[bh * (d->blocks + 1) + block] = n;
            for (int64_t q = 0; q < d->Sq; q++) {
                int64_t slots = counts && d->counts[bh * d->Sq + q] < d->slots ? d->counts[bh * d->Sq + q] : d->slots;
                for (int64_t slot = 0; slot < slots; slot++)
                    if (list_at(d, bh, q)[slot] == block) {
                        d->want_entry[bh * d->Sq * d->slots + n++] = (int32_t)(q * d->slots + slot);
                        break;
                    }
            }
        }
        d->want_first[bh * (d->blocks + 1) + d->blocks] = n;
    }
}

static void make_data(const Built *b, Data *d, int64_t B, int64_t Hkv, int64_t Sq, int64_t Sk) {
    bool per_head = b->branch->per_head, counts = b->branch->counts >= 0;
    *d = (Data){.B = B, .heads = per_head ? 2 * Hkv : Hkv, .Sq = Sq, .slots = ag_list_slots(b->spec, b->branch)};
    d->blocks = (Sk + b->branch->block.n - 1) / b->branch->block.n;
    d->chunks = (Sq + 255) / 256;
    int64_t heads = B * d->heads;
    d->call = (HostCall){.size = {B, 2 * Hkv, Hkv, Sq, Sk, 0, 64, 64}};
    d->lists = ints(heads * Sq * (d->slots + GAP));
    d->counts = ints(heads * Sq);
    d->sums = ints(heads * d->chunks * (d->blocks + 1));
    d->first = ints(heads * (d->blocks + 1));
    d->entry = ints(heads * Sq * d->slots);
    d->want_first = ints(heads * (d->blocks + 1));
    d->want_entry = ints(heads * Sq * d->slots);
    random_state = (uint32_t)(1 + Sq * 7 + Sk);
    for (int64_t i = 0; i < heads * Sq; i++) {
        for (int64_t slot = 0; slot < d->slots; slot++) list_at(d, 0, i)[slot] = random_entry(d, list_at(d, 0, i), slot);
        d->counts[i] = random_below(d->slots + 4) - 2;
    }
    brute_force(d, counts);
}

static void free_data(Data *d) {
    free(d->lists);
    free(d->counts);
    free(d->sums);
    free(d->first);
    free(d->entry);
    free(d->want_first);
    free(d->want_entry);
}

static HostTensor tensor(int32_t *x, int64_t heads, int64_t rows, int64_t pitch) {
    return (HostTensor){x, {heads * rows * pitch, rows * pitch, pitch, 1}, DT_I32};
}

/* The step with its tensors, in its own order. */
static bool run_step(const Built *b, const Data *d, int step, Buf *message) {
    const Kernel *k = b->kernel[step];
    HostCall call = d->call;
    const struct {
        int tensor;
        HostTensor host;
    } on[] = {{k->invert.lists, tensor(d->lists, d->heads, d->Sq, d->slots + GAP)},
              {k->invert.counts, tensor(d->counts, d->heads, d->Sq, 1)},
              {k->invert.chunks, tensor(d->sums, d->heads, d->chunks, d->blocks + 1)},
              {k->invert.first, tensor(d->first, d->heads, d->blocks + 1, 1)},
              {k->invert.entry, tensor(d->entry, d->heads, d->Sq * d->slots, 1)}};
    for (int i = 0; i < LEN(on); i++)
        if (on[i].tensor >= 0) call.more[on[i].tensor - TEN_COUNT] = on[i].host;
    return ag_simulate(k, &call, message);
}

static void run(const Built *b, int64_t B, int64_t Hkv, int64_t Sq, int64_t Sk) {
    Data d;
    Buf message = {0};
    ag_putn(&message, "", 0);
    make_data(b, &d, B, Hkv, Sq, Sk);
    for (int step = 0; step < STEPS; step++)
        if (!run_step(b, &d, step, &message)) fail_msg("Sq %d, Sk %d: %s", (int)Sq, (int)Sk, message.s);
    assert_memory_equal(d.first, d.want_first, sizeof(int32_t) * (size_t)(B * d.heads * (d.blocks + 1)));
    assert_memory_equal(d.entry, d.want_entry, sizeof(int32_t) * (size_t)(B * d.heads * Sq * d.slots)); /* -77 behind the last */
    ag_buf_free(&message);
    free_data(&d);
}

/* ---- tests */

static void test_sizes(void **state) {
    (void)state;
    static const int64_t Sq[] = {0, 1, 255, 256, 257, 700}, Sk[] = {0, 1, 64, 700, 5000};
    for (int counts = 0; counts < 2; counts++)
        for (int h = 0; h < 2; h++) {
            Built b;
            build(&b, spec_text(h ? "h" : "g", counts), "sm_80", NULL);
            must_build(&b);
            for (int q = 0; q < LEN(Sq); q++)
                for (int k = 0; k < LEN(Sk); k++) run(&b, 2, 2, Sq[q], Sk[k]);
            drop(&b);
        }
}

static void test_slots(void **state) {
    (void)state;
    static const int n[] = {1, 2, 16, 33, 64};
    for (int i = 0; i < LEN(n); i++) {
        attngen_dim dims[] = {{"n", n[i]}, {"block", 16}, {NULL, 0}};
        Built b;
        build(&b, spec_text("g", true), "sm_90a", dims);
        must_build(&b);
        run(&b, 1, 3, 300, 2000);
        drop(&b);
    }
}

/* More blocks than are worked on at a time. */
static void test_windows(void **state) {
    (void)state;
    static const attngen_dim dims[] = {{"block", 16}, {NULL, 0}};
    Built b;
    build(&b, spec_text("g", true), "sm_80", dims);
    must_build(&b);
    run(&b, 1, 1, 300, 16 * b.kernel[0]->invert.window);
    run(&b, 1, 2, 300, 16 * b.kernel[0]->invert.window + 1);
    run(&b, 1, 1, 520, 16 * (2 * b.kernel[0]->invert.window + 500));
    drop(&b);
}

static void test_select(void **state) {
    (void)state;
    Built b;
    build(&b, nsa_text, "sm_90a", NULL);
    must_build(&b);
    assert_int_equal(b.kernel[0]->tensor[b.kernel[0]->invert.lists].program, ag_program_derive(b.spec, 2));
    assert_int_equal(b.kernel[2]->tensor[b.kernel[2]->invert.entry].program, ag_program_entry(b.spec, 1));
    run(&b, 2, 1, 600, 3000);
    drop(&b);
}

/* What a defect of one step leads to: it is told from the protocol, or the result differs. */
typedef enum Defect { FEWER_BLOCKS, SHIFTED_CHUNK, FEWER_KEYS, SHIFTED_COLUMN, OTHER_HEAD, DEFECTS } Defect;
static void break_kernel(Kernel *k, Defect x) {
    Ins *i = k->role[0].body.last;
    Ref one = ag_node_int(&k->nodes, 1);
    switch (x) {
    case FEWER_BLOCKS: k->blocks = ag_fold_node(&k->nodes, (Node){.op = OP_SUB, .arg = {k->blocks, one}}); break;
    case SHIFTED_CHUNK:
    case SHIFTED_COLUMN: i->e[2] = ag_fold_node(&k->nodes, (Node){.op = OP_ADD, .arg = {i->e[2], one}}); break;
    case FEWER_KEYS: i->e[3] = ag_fold_node(&k->nodes, (Node){.op = OP_SUB, .arg = {i->e[3], one}}); break;
    case OTHER_HEAD:
    default: i->e[1] = ag_node_int(&k->nodes, 0); break;
    }
}

static void test_broken(void **state) {
    (void)state;
    for (int step = 0; step < STEPS; step++)
        for (int x = 0; x < DEFECTS; x++) {
            Built b;
            Data d;
            Buf message = {0};
            bool ok = true;
            if ((x == SHIFTED_CHUNK) == (step == INVERT_SCAN) && (x == SHIFTED_CHUNK || x == SHIFTED_COLUMN)) continue;
            build(&b, spec_text("g", true), "sm_80", NULL);
            must_build(&b);
            break_kernel(b.kernel[step], (Defect)x);
            make_data(&b, &d, 1, 2, 700, 5000);
            for (int s = 0; s <= step && ok; s++) ok = run_step(&b, &d, s, &message);
            if (ok) fail_msg("defect %d of step %d is not found", x, step);
            ag_buf_free(&message);
            free_data(&d);
            drop(&b);
        }
}

/* Places that do not fit: entries go behind those of their block. */
static void test_wrong_sums(void **state) {
    (void)state;
    Built b;
    Data d;
    Buf message = {0};
    build(&b, spec_text("g", false), "sm_80", NULL);
    must_build(&b);
    make_data(&b, &d, 1, 1, 700, 5000);
    assert_true(run_step(&b, &d, INVERT_COUNT, &message));
    assert_true(run_step(&b, &d, INVERT_SCAN, &message));
    d.first[1]--;
    assert_false(run_step(&b, &d, INVERT_ENTRIES, &message));
    assert_non_null(strstr(message.s, "goes behind those of block 0"));
    ag_buf_free(&message);
    free_data(&d);
    drop(&b);
}

/* What tile_check is for. */
static void test_check(void **state) {
    (void)state;
    for (volatile int x = 0; x < 4; x++) {
        Built b;
        build(&b, spec_text("g", true), "sm_80", NULL);
        must_build(&b);
        Kernel *k = b.kernel[INVERT_ENTRIES];
        if (setjmp(b.d.jump) == 0) {
            if (x == 0) k->val[k->role[0].body.last->dst].cols = 512;
            if (x == 1) k->tensor[k->invert.entry].output = false;
            if (x == 2) k->invert.first = -1;
            if (x == 3) k->invert.slots = 4;
            ag_tile_check(k, FACT_TILED);
        }
        assert_int_not_equal(b.d.status, ATTNGEN_OK);
        drop(&b);
    }
}

/* The program's tensors, with and without kernels that use them. */
static void test_buffers(void **state) {
    (void)state;
    Built b;
    ProgramMeta m;
    build(&b, nsa_text, "sm_90a", NULL);
    must_build(&b);
    ag_program_meta(&m, b.spec, b.kernel, STEPS + 1);
    assert_true(ag_meta_valid(&m));
    int64_t size[META_SIZES] = {2, 4, 2, 700, 5000, 4300, 64, 64};
    const struct {
        int tensor, rank;
        int64_t dim[4];
    } want[] = {{ag_program_chunks(b.spec, 1), 4, {2, 2, 3, 80}},
                {ag_program_first(b.spec, 1), 3, {2, 2, 80}},
                {ag_program_entry(b.spec, 1), 3, {2, 2, 11200}}};
    for (int i = 0; i < LEN(want); i++) {
        const TensorMeta *t = &m.tensor[want[i].tensor];
        assert_true(t->buffer && t->elem_bytes == 4);
        assert_int_equal(t->rank, want[i].rank);
        for (int dim = 0; dim < t->rank; dim++)
            assert_int_equal(t->dim[dim] < META_SIZES ? size[t->dim[dim]] : ag_formula(&m.derived[t->dim[dim] - META_SIZES], size), want[i].dim[dim]);
    }
    assert_int_equal(m.tensor[ag_program_entry(b.spec, 0)].rank, 1);
    Err e = {{0}};
    assert_int_equal(ag_sizes_check(&m, size, &e), ATTNGEN_OK);
    size[SZ_SQ] = 1 << 27;
    size[SZ_OFF] = 0;
    assert_int_equal(ag_sizes_check(&m, size, &e), ATTNGEN_E_INVALID_ARG);
    assert_non_null(strstr(e.text, "entry of slc would have 2147483648 elements"));
    ag_program_meta(&m, b.spec, b.kernel + STEPS, 1);
    assert_int_equal(m.tensor[ag_program_entry(b.spec, 1)].rank, 1);
    assert_int_equal(ag_sizes_check(&m, size, &e), ATTNGEN_OK);
    drop(&b);
}

static void test_text(void **state) {
    (void)state;
    Built b;
    Buf out = {0}, again = {0};
    build(&b, spec_text("g", true), "sm_90a", NULL);
    must_build(&b);
    ag_emit(&out, b.spec, b.kernel, STEPS, NULL);
    ag_emit(&again, b.spec, b.kernel, STEPS, NULL);
    assert_string_equal(out.s, again.s);
    assert_non_null(
        strstr(out.s, "count_lists<5, 1024>(masks, sums, lists, ceil_div(args.Sk, 64), args.chunks + b * args.chunks_b + g * args.chunks_h"));
    assert_non_null(strstr(out.s, "lists.count = args.u_counts + b * args.s0_counts"));
    out.n = 0;
    ag_tile_dump(&out, b.kernel[INVERT_ENTRIES]);
    assert_non_null(strstr(out.s, "invert_lists entry[b, g, chunk m], "));
    ag_buf_free(&out);
    ag_buf_free(&again);
    drop(&b);
}

/* NVRTC takes the text, without a warning; nothing is spilled. */
static void test_compiles(void **state) {
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_90a"};
    const NvrtcEnv env = {getenv("ATTNGEN_NVRTC"), getenv("CUDA_HOME"),    getenv("LD_LIBRARY_PATH"),
                          getenv("VIRTUAL_ENV"),   getenv("CONDA_PREFIX"), getenv("HOME")};
    char path[4096], id[256];
    Err e = {{0}};
    Nvrtc *nvrtc = NULL;
    if (ag_nvrtc_find(NULL, &env, path, id, NULL, 0, &e) != ATTNGEN_OK || ag_nvrtc_open(&nvrtc, path, &e) != ATTNGEN_OK) skip();
    for (int i = 0; i < 2 * LEN(arch); i++) {
        Built b;
        Buf out = {0};
        Compiled c = {0};
        build(&b, i / LEN(arch) ? spec_text("h", true) : nsa_text, arch[i % LEN(arch)], NULL);
        must_build(&b);
        ag_emit(&out, b.spec, b.kernel, STEPS, NULL);
        if (ag_nvrtc_compile(nvrtc, out.s, arch[i % LEN(arch)], 0, &c, &e) != ATTNGEN_OK) fail_msg("%s", e.text);
        assert_int_equal(c.report.spill_bytes, 0);
        if (c.log && strstr(c.log, "warning")) fail_msg("%s", c.log);
        ag_compiled_free(&c);
        ag_buf_free(&out);
        drop(&b);
    }
    ag_nvrtc_close(nvrtc);
}

int main(int argc, char **argv) {
    if (argc >= 2) { /* text of the three kernels: arch, and anything for those of lists with counts */
        Built b;
        Buf out = {0};
        build(&b, argc > 2 ? spec_text("h", true) : nsa_text, argv[1], NULL);
        must_build(&b);
        for (int step = 0; step < STEPS; step++) ag_tile_dump(&out, b.kernel[step]);
        fputs(out.s, stderr);
        out.n = 0;
        ag_emit(&out, b.spec, b.kernel, STEPS, NULL);
        fputs(out.s, stdout);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),  cmocka_unit_test(test_slots),      cmocka_unit_test(test_windows), cmocka_unit_test(test_select),
        cmocka_unit_test(test_broken), cmocka_unit_test(test_wrong_sums), cmocka_unit_test(test_check),   cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_text),   cmocka_unit_test(test_compiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
