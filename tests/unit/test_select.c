/* The kernel of a selection: its lists on the simulator against the reference, index by index; broken kernels; its text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "program.h"
#include "with_schedule.h"

/* ---- a compilation up to the kernel */

typedef struct Built {
    Diag d;
    const Spec *spec;
    Schedule sched;
    Kernel *kernel;
} Built;

static void build(Built *b, const char *text, const Schedule *sched, const char *arch, int D, const attngen_dim *more) {
    *b = (Built){.sched = *sched};
    b->d.arena = ag_arena_new();
    assert_non_null(b->d.arena);
    if (setjmp(b->d.jump)) return;
    ag_arena_on_oom(b->d.arena, &b->d.jump);
    const Spec *spec = b->spec = read_spec(&b->d, text, D, more);
    int derive = 0;
    while (spec->derive[derive].kind != DERIVE_SELECT) derive++;
    Fn fn = {.d = &b->d, .spec = spec, .sched = &b->sched, .target = ag_target_find(arch)};
    b->kernel = ag_build_select(&fn, derive);
    ag_stop_if_errors(&b->d);
    ag_tile_check(b->kernel, FACT_TILED | FACT_SPLIT | FACT_PIPELINED | FACT_PLACED);
}

static void must_build(const Built *b) {
    Buf out = {0};
    ag_putn(&out, "", 0);
    ag_diag_render(&b->d, &out);
    if (b->d.status != ATTNGEN_OK) fail_msg("%s", out.s);
    ag_buf_free(&out);
}

static void drop(Built *b) { ag_arena_free(b->d.arena); }

/* ---- a call */

typedef enum Values { RANDOM, INTEGERS, ALIKE } Values;

typedef struct Sizes {
    int64_t B, Hkv, Sq, Sk, off;
    int group;
} Sizes;

typedef struct Data {
    HostCall call; /* of the whole spec */
    HostCall run;  /* of the kernel */
    float *q, *k, *pooled, *lse;
    int32_t *want, *got;
    double *importance;
    int64_t lists;
    int count;
    int64_t blocks;
} Data;

static uint32_t random_state;
static float random_value(Values v) {
    random_state = random_state * 1664525u + 1013904223u;
    int x = (int)(random_state >> 10 & 0xffff);
    return v == ALIKE ? 1 : v == INTEGERS ? (float)(x % 5 - 2) : (float)(x % 257 - 128) / 64;
}
static float *values(int64_t n, Values v) {
    float *x = calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = random_value(v);
    return x;
}
static uint16_t *stored(int64_t n) {
    uint16_t *x = calloc((size_t)n + 1, sizeof *x);
    HostTensor t = {x, {1}, DT_BF16};
    for (int64_t i = 0; i < n; i++) ag_host_set(&t, i, 0, 0, 0, (double)random_value(RANDOM));
    return x;
}
static HostTensor tensor(void *data, DType t, int64_t heads, int64_t rows, int64_t cols) {
    return (HostTensor){data, {heads * rows * cols, rows * cols, cols, 1}, t};
}

/* LSE of the branch that is selected by: it is plain attention over the pooled keys. */
static void make_lse(const Built *b, Data *d, int branch, int64_t pooled) {
    Spec *plain = ag_branch_spec(b->d.arena, b->spec, branch);
    HostCall call = d->call;
    const int64_t *n = call.size;
    call.size[SZ_SK] = pooled;
    call.k = call.v = tensor(d->pooled, DT_F32, n[SZ_HKV], pooled, n[SZ_D]);
    double *o = calloc((size_t)(n[SZ_B] * n[SZ_HQ] * n[SZ_SQ] * n[SZ_D]) + 1, sizeof *o);
    double *lse = calloc((size_t)(n[SZ_B] * n[SZ_HQ] * n[SZ_SQ]) + 1, sizeof *lse);
    plain->Dv = plain->D;
    assert_true(ag_reference(plain, &call, o, lse));
    for (int64_t i = 0; i < n[SZ_B] * n[SZ_HQ] * n[SZ_SQ]; i++) d->lse[i] = (float)lse[i];
    free(o);
    free(lse);
}

static void make_data(const Built *b, Data *d, Sizes n, Values v, uint32_t seed) {
    const Spec *spec = b->spec;
    int derive = 0;
    while (spec->derive[derive].kind != DERIVE_SELECT) derive++;
    const Derive *what = &spec->derive[derive];
    int branch = what->source.kind == FROM_BRANCH ? what->source.index : -1, pool = branch < 0 ? what->source.index : spec->branch[branch].keys.index;
    int64_t D = spec->D, Hq = n.Hkv * n.group, pooled = ag_pool_count(&spec->derive[pool], n.Sk), heads = what->per_head ? Hq : n.Hkv;
    random_state = seed;
    *d = (Data){.lists = n.B * heads * n.Sq, .count = what->count.n, .blocks = ag_block_count(&what->block, n.Sk)};
    d->q = values(n.B * Hq * n.Sq * D, v);
    d->k = values(n.B * n.Hkv * n.Sk * D, v);
    d->lse = values(n.B * Hq * n.Sq, v);
    d->call = (HostCall){.size = {n.B, Hq, n.Hkv, n.Sq, n.Sk, n.off, D, spec->Dv},
                         .q = tensor(d->q, DT_F32, Hq, n.Sq, D),
                         .k = tensor(d->k, DT_F32, n.Hkv, n.Sk, D),
                         .v = tensor(d->k, DT_F32, n.Hkv, n.Sk, D)};
    for (int i = 0; i < spec->nparam; i++) {
        const Scalar *x = &spec->param[i].value;
        d->call.scalar[i] = x->type == T_INT ? (double)x->u.i : x->u.f;
    }
    double *p = calloc((size_t)(n.B * n.Hkv * pooled * D) + 1, sizeof *p);
    d->pooled = values(n.B * n.Hkv * pooled * D, v);
    ag_reference_pool(spec, &d->call, pool, p);
    for (int64_t i = 0; i < n.B * n.Hkv * pooled * D; i++) d->pooled[i] = (float)p[i];
    free(p);
    if (branch >= 0) make_lse(b, d, branch, pooled);
    d->want = calloc((size_t)(d->lists * d->count) + 1, sizeof *d->want);
    d->got = calloc((size_t)(d->lists * d->count) + 1, sizeof *d->got);
    for (int64_t i = 0; i < d->lists * d->count; i++) d->got[i] = -77;
    d->importance = calloc((size_t)(d->lists * d->blocks) + 1, sizeof *d->importance);
    assert_true(ag_reference_select(spec, &d->call, derive, d->want, d->importance));
    d->run = d->call;
    d->run.k = tensor(d->pooled, DT_F32, n.Hkv, pooled, D);
    d->run.lse = (HostTensor){d->lse, {Hq * n.Sq, n.Sq, 1}, DT_F32};
    d->run.more[0] = tensor(d->got, DT_I32, heads, n.Sq, d->count);
}

static void free_data(Data *d) {
    free(d->q);
    free(d->k);
    free(d->pooled);
    free(d->lse);
    free(d->want);
    free(d->got);
    free(d->importance);
}

static bool has(const int32_t *list, int n, int32_t block) {
    for (int i = 0; i < n; i++)
        if (list[i] == block) return true;
    return false;
}

/* Lists may differ in blocks of the same importance as the least of the list, to fp32 accuracy. */
static void compare(const Data *d, double tolerance) {
    for (int64_t l = 0; l < d->lists; l++) {
        const int32_t *want = d->want + l * d->count, *got = d->got + l * d->count;
        const double *importance = d->importance + l * d->blocks;
        double least = INFINITY;
        for (int i = 0; i < d->count; i++)
            if (want[i] >= 0 && importance[want[i]] < least) least = importance[want[i]];
        for (int i = 0; i < d->count; i++) {
            if (got[i] == want[i]) continue;
            bool sound = tolerance > 0 && got[i] >= 0 && got[i] < d->blocks && (i == 0 || got[i] > got[i - 1]);
            bool tie = sound && (has(want, d->count, got[i]) || fabs(importance[got[i]] - least) <= tolerance * fabs(least));
            if (!tie)
                fail_msg("list %lld, entry %d: %d (%g), not %d (%g); least %g", (long long)l, i, got[i],
                         got[i] >= 0 && got[i] < d->blocks ? importance[got[i]] : NAN, want[i], want[i] >= 0 ? importance[want[i]] : NAN, least);
        }
    }
}

static void run(const Built *b, Sizes n, Values v, double tolerance) {
    Data d;
    Buf message = {0};
    ag_putn(&message, "", 0);
    make_data(b, &d, n, v, 1 + (uint32_t)(n.Sq * 31 + n.Sk));
    if (!ag_simulate(b->kernel, &d.run, &message)) fail_msg("%s", message.s);
    compare(&d, tolerance);
    ag_buf_free(&message);
    free_data(&d);
}

/* ---- specs */

static const char *nsa_spec(int group, const char *rest) {
    static char text[1024];
    snprintf(text, sizeof text,
             "attention: nsa\n"
             "params: {l: {int: 32}, stride: {int: 16}, block: {int: 64}, top: {int: 4}}\n"
             "heads: {group: %d}\n"
             "derive:\n"
             "  kc: {pool: k, size: l, stride: stride}\n"
             "  vc: {pool: v, size: l, stride: stride}\n"
             "  picks: {select: cmp, block: block, count: top%s}\n"
             "branches:\n"
             "  cmp: {keys: kc, values: vc, mask: stride * k + l - 1 <= q}\n"
             "  slc: {blocks: picks, mask: k <= q}\n"
             "output: cmp + slc\n",
             group, rest);
    return text;
}

static const char *moba_spec(int group, const char *rest) {
    static char text[1024];
    snprintf(text, sizeof text,
             "attention: moba\n"
             "params: {block: {int: 16}, top: {int: 3}}\n"
             "heads: {group: %d}\n"
             "derive:\n"
             "  means: {pool: k, size: block, stride: block, tail: partial}\n"
             "  picks: {select: means, block: block, count: top%s}\n"
             "branches:\n"
             "  moba: {blocks: picks, mask: k <= q}\n",
             group, rest);
    return text;
}

/* ---- tests */

static void test_groups(void **state) {
    (void)state;
    static const int group[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64};
    for (int i = 0; i < LEN(group); i++) {
        Schedule s = small_schedule();
        Built b;
        build(&b, nsa_spec(group[i], ", force: {first: 1, local: 2}, share: group"), &s, "sm_80", 16, NULL);
        must_build(&b);
        run(&b, (Sizes){.B = 1, .Hkv = 2, .Sq = 70, .Sk = 900, .off = 830, .group = group[i]}, RANDOM, 1e-5);
        run(&b, (Sizes){.B = 1, .Hkv = 1, .Sq = 3, .Sk = 600, .off = 597, .group = group[i]}, RANDOM, 1e-5);
        drop(&b);
    }
}

static void test_shapes(void **state) {
    (void)state;
    static const Sizes sizes[] = {
        {.B = 1, .Hkv = 1, .Sq = 1, .Sk = 777, .off = 776, .group = 2},    {.B = 2, .Hkv = 2, .Sq = 40, .Sk = 333, .off = 293, .group = 2},
        {.B = 1, .Hkv = 1, .Sq = 20, .Sk = 20, .off = 0, .group = 2},      {.B = 1, .Hkv = 1, .Sq = 5, .Sk = 1, .off = 0, .group = 2},
        {.B = 1, .Hkv = 1, .Sq = 100, .Sk = 60, .off = -40, .group = 2},   {.B = 1, .Hkv = 1, .Sq = 200, .Sk = 300, .off = -130, .group = 2},
        {.B = 1, .Hkv = 1, .Sq = 9, .Sk = 129, .off = 500, .group = 2},    {.B = 1, .Hkv = 1, .Sq = 70, .Sk = 0, .off = -70, .group = 2},
        {.B = 3, .Hkv = 1, .Sq = 17, .Sk = 2048, .off = 2000, .group = 2},
    };
    static const char *const rest[] = {", force: {first: 1, local: 2}", "", ", causal: false", ", force: {local: 1}, share: head",
                                       ", force: {first: 2}, share: head, causal: false"};
    static const attngen_dim all[] = {{"top", 40}, {NULL, 0}};
    for (int r = 0; r < LEN(rest); r++)
        for (int i = 0; i < LEN(sizes); i++) {
            Schedule s = small_schedule();
            Built b;
            build(&b, nsa_spec(2, rest[r]), &s, "sm_80", 16, i % 2 ? all : NULL);
            must_build(&b);
            run(&b, sizes[i], RANDOM, 1e-5);
            drop(&b);
        }
}

static void test_pools(void **state) {
    (void)state;
    static const attngen_dim pools[][5] = {
        {{"l", 64}, {"stride", 64}, {NULL, 0}},
        {{"l", 16}, {"stride", 16}, {"block", 16}, {NULL, 0}},
        {{"l", 24}, {"stride", 8}, {"block", 32}, {NULL, 0}},
        {{"l", 40}, {"stride", 24}, {"block", 64}, {NULL, 0}},
        {{"l", 5}, {"stride", 7}, {"block", 16}, {NULL, 0}},
        {{"l", 200}, {"stride", 16}, {NULL, 0}},
        {{"l", 3}, {"stride", 1}, {"block", 16}, {NULL, 0}},
        {{"l", 8}, {"stride", 100}, {"block", 16}, {NULL, 0}},
    };
    for (int i = 0; i < LEN(pools); i++) {
        Schedule s = small_schedule();
        Built b;
        build(&b, nsa_spec(3, ", force: {first: 1, local: 1}"), &s, "sm_80", 16, pools[i]);
        must_build(&b);
        run(&b, (Sizes){.B = 1, .Hkv = 1, .Sq = 50, .Sk = 700, .off = 650, .group = 3}, RANDOM, 1e-5);
        drop(&b);
    }
}

/* Sums of small integers are exact, so that lists are the same to the last tie. */
static void test_pool_source(void **state) {
    (void)state;
    static const char *const rest[] = {", force: {local: 1}, share: head", ", force: {local: 1}", ", force: {first: 1, local: 1}", ", causal: false"};
    static const int group[] = {1, 3, 4, 16};
    for (int r = 0; r < LEN(rest); r++)
        for (int g = 0; g < LEN(group); g++) {
            Schedule s = small_schedule();
            Built b;
            build(&b, moba_spec(group[g], rest[r]), &s, "sm_80", 32, NULL);
            must_build(&b);
            run(&b, (Sizes){.B = 2, .Hkv = 2, .Sq = 45, .Sk = 400, .off = 355, .group = group[g]}, INTEGERS, 0);
            run(&b, (Sizes){.B = 1, .Hkv = 1, .Sq = 90, .Sk = 90, .off = 0, .group = group[g]}, ALIKE, 0);
            drop(&b);
        }
}

static void test_ties_to_the_lower_block(void **state) {
    (void)state;
    Schedule s = small_schedule();
    Built b;
    Data d;
    Buf message = {0};
    build(&b, nsa_spec(2, ", causal: false"), &s, "sm_80", 16, NULL);
    must_build(&b);
    make_data(&b, &d, (Sizes){.B = 1, .Hkv = 1, .Sq = 2, .Sk = 1024, .off = 1022, .group = 2}, ALIKE, 1);
    assert_true(ag_simulate(b.kernel, &d.run, &message));
    for (int i = 0; i < 4; i++) assert_int_equal(d.got[i], i + 1); /* block 0 has no pooled key before it, and less importance for it */
    compare(&d, 0);
    free_data(&d);
    drop(&b);
}

/* ---- the kernel in practice */

static void test_large_tiles(void **state) {
    (void)state;
    static const struct {
        int group, D;
        const char *arch, *rest;
    } on[] = {{16, 128, "sm_90a", ", force: {first: 1, local: 2}"},
              {1, 128, "sm_90a", ", force: {first: 1, local: 2}"},
              {4, 192, "sm_80", ""},
              {2, 256, "sm_90a", ", share: head"}};
    static const attngen_dim top[] = {{"top", 16}, {NULL, 0}};
    for (int i = 0; i < LEN(on); i++) {
        Schedule s = small_wgmma(2);
        Built b;
        build(&b, nsa_spec(on[i].group, on[i].rest), &s, on[i].arch, on[i].D, top);
        must_build(&b);
        run(&b, (Sizes){.B = 1, .Hkv = 1, .Sq = 40, .Sk = 3000, .off = 2960, .group = on[i].group}, RANDOM, 1e-5);
        drop(&b);
    }
}

/* ---- in a program: pools, branches, selection and output one after the other */

static void run_program(const char *text, const Schedule *sched, const char *arch, Sizes n, const attngen_dim *dims) {
    Compilation *c = compile_schedule(text, sched, arch, dims, NULL);
    must_compile(c);
    const Spec *spec = c->fn.spec;
    int64_t Hq = n.Hkv * n.group, outputs = n.B * Hq * n.Sq * spec->Dv;
    random_state = 5;
    uint16_t *q = stored(n.B * Hq * n.Sq * spec->D), *k = stored(n.B * n.Hkv * n.Sk * spec->D);
    uint16_t *v = stored(n.B * n.Hkv * n.Sk * spec->Dv), *o = stored(outputs);
    HostCall call = {.size = {n.B, Hq, n.Hkv, n.Sq, n.Sk, n.off, spec->D, spec->Dv},
                     .q = tensor(q, DT_BF16, Hq, n.Sq, spec->D),
                     .k = tensor(k, DT_BF16, n.Hkv, n.Sk, spec->D),
                     .v = tensor(v, DT_BF16, n.Hkv, n.Sk, spec->Dv),
                     .o = tensor(o, DT_BF16, Hq, n.Sq, spec->Dv)};
    for (int i = 0; i < spec->nparam; i++) {
        const Scalar *x = &spec->param[i].value;
        call.scalar[i] = x->type == T_INT ? (double)x->u.i : x->u.f;
    }
    double *want = calloc((size_t)outputs + 1, sizeof *want), *lse = calloc((size_t)(n.B * Hq * n.Sq) + 1, sizeof *lse);
    assert_true(ag_reference(spec, &call, want, lse));
    ProgramBuffers buffers;
    Buf message = {0};
    ag_putn(&message, "", 0);
    if (!ag_simulate_program(c, &call, &buffers, &message)) fail_msg("%s", message.s);
    HostTensor flat = {o, {1}, DT_BF16};
    for (int64_t i = 0; i < outputs; i++) {
        double got = ag_host_get(&flat, i, 0, 0, 0);
        if (!(fabs(got - want[i]) <= 0.03)) fail_msg("%s: element %lld is %g, not %g", arch, (long long)i, got, want[i]);
    }
    ag_program_buffers_free(&buffers);
    ag_buf_free(&message);
    free(q);
    free(k);
    free(v);
    free(o);
    free(want);
    free(lse);
    ag_compilation_free(c);
}

static void test_programs(void **state) {
    (void)state;
    static const attngen_dim nsa[] = {{"D", 32}, {"top", 4}, {NULL, 0}}, moba[] = {{"D", 32}, {"block", 32}, {NULL, 0}};
    Schedule small = small_schedule(), wide = small_wgmma(1);
    for (int way = 0; way < 2; way++) {
        const Schedule *s = way ? &wide : &small;
        const char *arch = way ? "sm_90a" : "sm_80";
        run_program(nsa_spec(4, ", force: {first: 1, local: 1}"), s, arch, (Sizes){.B = 2, .Hkv = 2, .Sq = 50, .Sk = 700, .off = 650, .group = 4},
                    nsa);
        run_program(nsa_spec(3, ", force: {local: 1}, share: head"), s, arch, (Sizes){.B = 1, .Hkv = 1, .Sq = 80, .Sk = 80, .off = 0, .group = 3},
                    nsa);
        run_program(moba_spec(2, ", force: {local: 1}, share: head"), s, arch, (Sizes){.B = 1, .Hkv = 2, .Sq = 300, .Sk = 300, .off = 0, .group = 2},
                    moba);
    }
}

/* ---- broken kernels */

typedef struct Broken {
    const char *name, *message;
    void (*edit)(Kernel *k);
} Broken;

static Ins *find(Block *b, TileOp op) {
    for (Ins *i = b->first; i; i = i->next) {
        Ins *x = i->op == op ? i : find(&i->body, op);
        if (x) return x;
    }
    return NULL;
}
static Block *body(Kernel *k) { return &k->role[0].body; }
static Block *step(Kernel *k) { return &find(body(k), TI_LOOP)->body; }
static Ref add(Kernel *k, Ref x, int n) { return ag_node_op(&k->nodes, OP_ADD, x, ag_node_int(&k->nodes, n), 0, (Span){0}); }

static void no_sync_before_rank(Kernel *k) { ag_block_remove(step(k), find(step(k), TI_RANK)->prev); }
static void no_sync_behind_rank(Kernel *k) { ag_block_append(step(k), ag_ins_clone(k, find(step(k), TI_SUM_HEADS))); }
static void no_clear(Kernel *k) { ag_block_remove(body(k), find(body(k), TI_CLEAR)); }
static void no_store(Kernel *k) { ag_block_remove(body(k), find(body(k), TI_STORE_LIST)); }
static void stored_twice(Kernel *k) { ag_block_append(body(k), ag_ins_clone(k, find(body(k), TI_STORE_LIST))); }
static void other_head(Kernel *k) { find(body(k), TI_STORE_LIST)->e[3] = ag_node_int(&k->nodes, 7); }
static void other_rows(Kernel *k) {
    Ins *i = find(body(k), TI_LOAD_ROW);
    i->e[1] = add(k, i->e[1], 1);
}
static void later_blocks(Kernel *k) {
    Ins *i = find(step(k), TI_RANK);
    i->e[0] = add(k, i->e[0], 4);
}
static void step_left_out(Kernel *k) {
    Ins *loop = find(body(k), TI_LOOP);
    loop->e[1] = add(k, loop->e[1], -1);
}
static void keys_past_the_end(Kernel *k) {
    Ins *copy = find(step(k), TI_COPY);
    copy->e[2] = add(k, copy->e[2], 3);
}

static void test_broken(void **state) {
    (void)state;
    static const Broken broken[] = {
        {"sync before rank", "reads sums [stage 0] before its copy is visible to all threads: a sync is missing", no_sync_before_rank},
        {"sync behind rank", "before its release: no sync since it was last used", no_sync_behind_rank},
        {"clear", "was not cleared", no_clear},
        {"store", "list 0 of picks (head 0 over all batches) is never written", no_store},
        {"store twice", "is written twice", stored_twice},
        {"head of the list", "store_list picks: list 64 of head 7 of batch 0 is not there", other_head},
        {"rows of lse", "load_row lse: rows 64..70 of lse, which has 70", other_rows},
        {"blocks", "ranks blocks from 4 on, but the sums are of blocks from 0 on", later_blocks},
        {"last step", "list 64 may have block 12, but steps ended before it", step_left_out},
        {"pooled keys", "rows 48..57 of k, which has 55", keys_past_the_end},
    };
    for (int i = 0; i < LEN(broken); i++) {
        Schedule s = small_schedule();
        Built b;
        Data d;
        Buf message = {0};
        ag_putn(&message, "", 0);
        build(&b, nsa_spec(2, ", force: {first: 1, local: 1}"), &s, "sm_80", 16, NULL);
        must_build(&b);
        make_data(&b, &d, (Sizes){.B = 1, .Hkv = 1, .Sq = 70, .Sk = 900, .off = 830, .group = 2}, RANDOM, 3);
        broken[i].edit(b.kernel);
        bool ok = ag_simulate(b.kernel, &d.run, &message);
        if (ok || !strstr(message.s, broken[i].message)) fail_msg("%s: '%s'", broken[i].name, message.s);
        ag_buf_free(&message);
        free_data(&d);
        drop(&b);
    }
}

/* What no pass may make. */
static void wide_units(Kernel *k) { k->rank.unit = 64; }
static void odd_unit(Kernel *k) { k->rank.unit = 4; }
static void many_lanes(Kernel *k) { k->rank.lanes = 16; }
static void short_history(Kernel *k) { k->rank.history = 0; }
static void long_step(Kernel *k) { k->rank.blocks *= 2; }
static void broken_grain(Kernel *k) { k->rank.grain = 5; }
static void small_lists(Kernel *k) { k->val[find(step(k), TI_RANK)->dst].cols = 1; }
static void small_sums(Kernel *k) { k->val[find(step(k), TI_RANK)->a].rows = 3; }
static void other_type(Kernel *k) { k->val[find(step(k), TI_RANK)->a].type = DT_BF16; }
static void other_output(Kernel *k) { find(body(k), TI_STORE_LIST)->n = TEN_LSE; }
static void no_query(Kernel *k) { find(step(k), TI_RANK)->e[2] = 0; }
static void attends(Kernel *k) { k->kind = KERNEL_ATTEND; }
static void sums_first(Kernel *k) {
    Ins *i = find(step(k), TI_SUM_HEADS);
    ag_block_remove(step(k), i);
    ag_block_insert_after(step(k), NULL, i);
}

static void must_be_caught(const Broken *broken) {
    Schedule s = small_schedule();
    Built b;
    Buf out = {0};
    build(&b, nsa_spec(2, ", force: {first: 1, local: 1}"), &s, "sm_80", 16, NULL);
    must_build(&b);
    broken->edit(b.kernel);
    if (!setjmp(b.d.jump)) ag_tile_check(b.kernel, FACT_TILED | FACT_SPLIT | FACT_PIPELINED | FACT_PLACED);
    ag_diag_render(&b.d, &out);
    if (b.d.status != ATTNGEN_E_INTERNAL || !strstr(out.s, broken->message)) fail_msg("%s: '%s'", broken->name, out.s ? out.s : "");
    ag_buf_free(&out);
    drop(&b);
}

static void test_checked(void **state) {
    (void)state;
    static const Broken broken[] = {
        {"wide units", "no whole number of units", wide_units},
        {"odd unit", "no whole number of units", odd_unit},
        {"many lanes", "too few lanes", many_lanes},
        {"short history", "the history is not", short_history},
        {"long step", "the table of sums is too small", long_step},
        {"grain", "no whole numbers", broken_grain},
        {"small lists", "the lists are too small", small_lists},
        {"small sums", "too small for the sums", small_sums},
        {"type of sums", "too small for the sums", other_type},
        {"output", "it must put lists into an output tensor", other_output},
        {"operand", "an operand expression is missing", no_query},
        {"kind", "the kernel selects nothing", attends},
        {"order", "the fragment was not written", sums_first},
    };
    for (int i = 0; i < LEN(broken); i++) must_be_caught(&broken[i]);
}

/* ---- refusals, text and dump */

static void refuses(const char *text, const attngen_dim *dims, const char *want) {
    Schedule s = small_schedule();
    Built b;
    Buf out = {0};
    build(&b, text, &s, "sm_80", 16, dims);
    ag_diag_render(&b.d, &out);
    assert_int_equal(b.d.status, ATTNGEN_E_UNSUPPORTED);
    if (!strstr(out.s, want)) fail_msg("%s", out.s);
    ag_buf_free(&out);
    drop(&b);
}

static void test_refusals(void **state) {
    (void)state;
    static const attngen_dim fine[] = {{"l", 4}, {"stride", 1}, {"block", 208}, {NULL, 0}}, wide[] = {{"l", 1024}, {"stride", 1}, {NULL, 0}};
    Schedule s = small_schedule();
    Built b;
    build(&b, nsa_spec(1, ""), &s, "sm_80", 16, fine);
    must_build(&b); /* 208 pooled keys a step */
    drop(&b);
    refuses(nsa_spec(2, ""), wide, "a pool of size 1024 and stride 1 and blocks of 64 take more than 256 pooled keys per step");
    refuses(nsa_spec(129, ""), NULL, "lists shared by 129 query heads; at most 128 are possible");
}

static void test_text(void **state) {
    (void)state;
    static const attngen_dim top[] = {{"top", 16}, {NULL, 0}};
    static const char *const dump[] = {
        "rank    16 of blocks of 64, 16 a step; pooled keys of 32 every 16, 1 of them before the step; units of 16 rows, 16 lanes a query; first 1",
        "clear sums",
        "load_row lse <- lse[b, h0, rows row0 ..] below Sq",
        "sum_heads sums <- S, 16 rows each",
        "rank lists <- sums, blocks j * 16 .. below blocks, queries at q0 .., at most Sq - row0",
        "store_list picks[b, g, rows row0 ..] below Sq <- lists"};
    static const char *const cuda[] = {"struct Ranking {", "QUERIES = 8, UNIT = 16, PARTS = 1;", "sum_heads<Ranking>(sums, S, warp_row);",
                                       "rank_blocks<Ranking>(lists, sums, j * 16, blocks, q0, args.Sq - row0);", "if (j >= j_plain_hi) {"};
    Schedule s = small_wgmma(2);
    Built b;
    Buf out = {0}, text = {0};
    build(&b, nsa_spec(16, ", force: {first: 1, local: 2}"), &s, "sm_90a", 128, top);
    must_build(&b);
    ag_tile_dump(&out, b.kernel);
    ag_emit(&text, b.spec, &b.kernel, 1, NULL);
    for (int i = 0; i < LEN(dump); i++)
        if (!strstr(out.s, dump[i])) fail_msg("no '%s' in\n%s", dump[i], out.s);
    for (int i = 0; i < LEN(cuda); i++)
        if (!strstr(text.s, cuda[i])) fail_msg("no '%s' in\n%s", cuda[i], text.s);
    ag_buf_free(&out);
    ag_buf_free(&text);
    drop(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_pools),
        cmocka_unit_test(test_pool_source),
        cmocka_unit_test(test_ties_to_the_lower_block),
        cmocka_unit_test(test_large_tiles),
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_checked),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
