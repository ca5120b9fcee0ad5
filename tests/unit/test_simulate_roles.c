/* test_simulate_roles.c: kernels of two roles, with mbarriers, copies by TMA and asynchronous mma: a right one, and every way of breaking it. */
#include "hand.h"

static const char CAUSAL[] = "attention: causal\nmask: k <= q\n";
static const char SCHEDULE_TEXT[] = SCHEDULE("smem", "1", "1", "smem", "each", "peeled", "reverse");

static const Case shape100 = {.B = 1, .Hkv = 1, .group = 2, .Sq = 100, .Sk = 100, .offset = ATTNGEN_ALIGN_END};

/* ---- a kernel by hand: 64 queries by 16 keys, rings of two stages, scores of a tile beside the weighted values of the one before */

enum { Q_FULL, K_FULL, K_EMPTY, V_FULL, V_EMPTY, WARPGROUP };

static void add_values(Hand *h) {
    static const char *const row[] = {"mx", "mx_new", "r0", "rescale", "den_total", "r1", "lse", "den"};
    static const char *const frag[] = {"acc", "S", "P"};
    static const char *const shared[] = {"Q", "O", "K", "V"};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        add_val(h, (Val){.name = ag_str(row[i]), .space = SPACE_ROW, .type = DT_F32, .rows = 64, .cols = 1, .partial = strcmp(row[i], "den") == 0});
    for (int i = 0; i < 3; i++)
        add_val(h, (Val){.name = ag_str(frag[i]),
                         .space = SPACE_FRAG,
                         .type = i == 2 ? DT_BF16 : DT_F32,
                         .rows = 64,
                         .cols = 16,
                         .layout = i == 2 ? LAYOUT_A : LAYOUT_ACC});
    for (int i = 0; i < 4; i++)
        add_val(h, (Val){.name = ag_str(shared[i]),
                         .space = SPACE_SHARED,
                         .type = DT_BF16,
                         .rows = i < 2 ? 64 : 16,
                         .cols = 16,
                         .stages = i < 2 ? 1 : 2,
                         .panels = true,
                         .offset = i < 2 ? 0 : 4096 + 4096 * i,
                         .bytes = i < 2 ? 8192 : 2048});
    ag_val_scalar(h->k, "j", T_INT);
    h->k->val[val_named(h->k, "den")].reference = h->k->val[val_named(h->k, "acc")].reference = val_named(h->k, "mx");
}

static Block *enter(Hand *h, Ins *i) {
    Block *outer = h->at;
    h->at = &i->body;
    return outer;
}
static Block *if_any_key(Hand *h) {
    Ins *i = put(h, TI_IF, NULL);
    i->e[0] = op(h, OP_GT, use(h, "j_hi"), use(h, "j_lo"));
    return enter(h, i);
}
static Block *key_loop(Hand *h, Ref hi) {
    Ins *i = put(h, TI_LOOP, "j");
    i->n = -1;
    i->e[0] = hi;
    i->e[1] = use(h, "j_lo");
    return enter(h, i);
}
static Ref minus(Hand *h, Ref a, int b) { return op(h, OP_SUB, a, num(h, b)); }
static Ref stage_of(Hand *h, Ref step) { return op(h, OP_MOD, step, num(h, 2)); }
static Ref phase_of(Hand *h, Ref step) { return op(h, OP_MOD, op(h, OP_FLOORDIV, step, num(h, 2)), num(h, 2)); }

static void at_bar(Hand *h, TileOp o, int bar, Ref stage, Ref operand) {
    Ins *i = put(h, o, NULL);
    i->n = bar;
    i->e[0] = stage;
    i->e[1] = operand;
}
static void wait_full(Hand *h, int bar, Ref step) { at_bar(h, TI_WAIT_BAR, bar, stage_of(h, step), phase_of(h, step)); }
static void release(Hand *h, int bar, Ref step) { at_bar(h, TI_ARRIVE, bar, stage_of(h, step), 0); }
static void product(Hand *h, const char *dst, const char *a, const char *b, Ref step) {
    Ins *i = mma(h, dst, a, b, *dst == 'S');
    i->async = true;
    i->e[0] = stage_of(h, step);
    put(h, TI_MMA_COMMIT, NULL);
}
static void scores(Hand *h, Ref step) {
    wait_full(h, K_FULL, step);
    product(h, "S", "Q", "K", step);
}
static void weighted_values(Hand *h, Ref step) {
    wait_full(h, V_FULL, step);
    product(h, "acc", "P", "V", step);
}
static void mma_wait(Hand *h, int n) { put(h, TI_MMA_WAIT, NULL)->n = n; }
static void softmax(Hand *h, Ref tile) {
    map(h, "S", ag_node_op(&h->k->nodes, OP_SELECT, h->k->guard, use(h, "S"), real(h, -INFINITY), h->span))->e[2] = op(h, OP_MUL, tile, num(h, 16));
    softmax_step(h);
}

static void first_tile(Hand *h) {
    Block *outer = if_any_key(h);
    at_bar(h, TI_WAIT_BAR, Q_FULL, num(h, 0), num(h, 0));
    scores(h, num(h, 0));
    mma_wait(h, 0);
    release(h, K_EMPTY, num(h, 0));
    softmax(h, minus(h, use(h, "j_hi"), 1));
    rescale_step(h);
    map(h, "mx", use(h, "mx_new"));
    h->at = outer;
}
static void next_tiles(Hand *h) {
    Block *outer = key_loop(h, minus(h, use(h, "j_hi"), 1));
    let(h, "step", op(h, OP_SUB, minus(h, use(h, "j_hi"), 1), use(h, "j")));
    let(h, "before", minus(h, use(h, "step"), 1));
    scores(h, use(h, "step"));
    weighted_values(h, use(h, "before"));
    mma_wait(h, 1);
    release(h, K_EMPTY, use(h, "step"));
    softmax(h, use(h, "j"));
    mma_wait(h, 0);
    release(h, V_EMPTY, use(h, "before"));
    rescale_step(h);
    map(h, "mx", use(h, "mx_new"));
    h->at = outer;
}
static void last_values(Hand *h) {
    Block *outer = if_any_key(h);
    let(h, "last", op(h, OP_SUB, minus(h, use(h, "j_hi"), 1), use(h, "j_lo")));
    weighted_values(h, use(h, "last"));
    mma_wait(h, 0);
    h->at = outer;
}
static void math_role(Hand *h) {
    decode_block(h);
    bound_keys(h, true);
    put(h, TI_FILL, "mx")->e[0] = real(h, -INFINITY);
    put(h, TI_FILL, "den")->e[0] = real(h, 0);
    put(h, TI_FILL, "acc")->e[0] = real(h, 0);
    first_tile(h);
    next_tiles(h);
    last_values(h);
    put(h, TI_SYNC, NULL)->n = WARPGROUP;
    outputs(h);
}

static void load_tile(Hand *h, const char *dst, int tensor, int full, Ref stage, Ref row, const char *head) {
    at_bar(h, TI_EXPECT, full, stage, num(h, tensor == TEN_Q ? 8192 : 2048));
    Ins *i = copy(h, dst, tensor, row, head);
    i->e[0] = stage;
    i->bar = full;
}
static void load_role(Hand *h) {
    decode_block(h);
    bound_keys(h, true);
    if_any_key(h);
    load_tile(h, "Q", TEN_Q, Q_FULL, num(h, 0), use(h, "row0"), "h");
    key_loop(h, use(h, "j_hi"));
    let(h, "step", op(h, OP_SUB, minus(h, use(h, "j_hi"), 1), use(h, "j")));
    for (int v = 0; v < 2; v++) {
        Ref stage = stage_of(h, use(h, "step")), row = op(h, OP_MUL, use(h, "j"), num(h, 16));
        at_bar(h, TI_WAIT_BAR, v ? V_EMPTY : K_EMPTY, stage, op(h, OP_SUB, num(h, 1), phase_of(h, use(h, "step"))));
        load_tile(h, v ? "V" : "K", v ? TEN_V : TEN_K, v ? V_FULL : K_FULL, stage, row, "g");
    }
}

static Compilation *by_hand(void) {
    static const Barrier barrier[] = {{"q_full", BARRIER_MBAR, 1, 1, 0},  {"k_full", BARRIER_MBAR, 2, 1, 0},
                                      {"k_empty", BARRIER_MBAR, 2, 4, 0}, {"v_full", BARRIER_MBAR, 2, 1, 0},
                                      {"v_empty", BARRIER_MBAR, 2, 4, 0}, {"warpgroup", BARRIER_WARPGROUP, 1, 0, 0},
                                      {"block", BARRIER_BLOCK, 1, 0, 0}};
    const attngen_dim dims[] = {{"D", 16}};
    attngen_source a = source("spec.yaml", CAUSAL), b = source("schedule.yaml", SCHEDULE_TEXT);
    Compilation *c = ag_compile_text(&a, &b, "sm_80", dims, 1, "lower");
    assert_int_equal(c->diag.status, ATTNGEN_OK);
    Kernel *k = c->fn.kernel = ag_kernel_new(&c->diag, c->fn.spec, c->fn.sched, c->fn.target, STR("hand"));
    Hand h = {.k = k, .at = &k->role[0].body, .m = 64};
    k->role[0] = (Role){.name = "math", .warps = 4};
    k->role[1] = (Role){.name = "load", .warp0 = 4, .warps = 4, .one_thread = true};
    k->nrole = 2;
    k->threads = 256;
    k->queries = h.m;
    k->nbarrier = sizeof barrier / sizeof *barrier;
    memcpy(k->barrier, barrier, sizeof barrier);
    describe_tensors(k);
    add_values(&h);
    k->guard = op(&h, OP_AND, op(&h, OP_LE, axis(&h, AX_K), axis(&h, AX_Q)), op(&h, OP_LT, axis(&h, AX_K), size(&h, SZ_SK)));
    math_role(&h);
    h.at = &k->role[1].body;
    load_role(&h);
    return c;
}

/* ---- ways to break it: in math, the first instruction of a kind is that of the first tile, the second that of the loop, the third that behind it */

static void flip(Kernel *k, Ref *e) { *e = ag_node_op(&k->nodes, OP_SUB, ag_node_int(&k->nodes, 1), *e, 0, (Span){0}); }

/* Moves an instruction in front of another of its block. */
static void move(Ins *i, Block *b, Ins *before) {
    ag_block_remove(b, i);
    ag_block_insert_before(b, before, i);
}

static void parity_full(Kernel *k) { flip(k, &find(k, TI_WAIT_BAR, "k_full", 1, NULL)->e[1]); }
static void parity_first(Kernel *k) { flip(k, &find(k, TI_WAIT_BAR, "q_full", 0, NULL)->e[1]); }
static void parity_empty(Kernel *k) { flip(k, &find(k, TI_WAIT_BAR, "k_empty", 0, NULL)->e[1]); }
static void parity_two(Kernel *k) { find(k, TI_WAIT_BAR, "q_full", 0, NULL)->e[1] = ag_node_int(&k->nodes, 2); }
static void no_full_wait(Kernel *k) { drop(k, TI_WAIT_BAR, "v_full", 0); }
static void no_empty_wait(Kernel *k) { drop(k, TI_WAIT_BAR, "k_empty", 0); }
static void no_release(Kernel *k) { drop(k, TI_ARRIVE, "v_empty", 0); }
static void release_twice(Kernel *k) { twice(k, TI_ARRIVE, "k_empty", 0); }
static void release_thrice(Kernel *k) { k->barrier[K_EMPTY].count = 3; }
static void no_expect(Kernel *k) { drop(k, TI_EXPECT, "k_full", 0); }
static void too_few_bytes(Kernel *k) { find(k, TI_EXPECT, "v_full", 0, NULL)->e[1] = ag_node_int(&k->nodes, 1024); }
static void too_many_bytes(Kernel *k) { find(k, TI_EXPECT, "v_full", 0, NULL)->e[1] = ag_node_int(&k->nodes, 4096); }
static void no_copy(Kernel *k) { drop(k, TI_COPY, "V", 0); }
/* Released before the products that read it are done. */
static void release_early(Kernel *k) {
    Block *b;
    Ins *release = find(k, TI_ARRIVE, "k_empty", 1, &b);
    move(release, b, release->prev);
}
/* Released before they are issued. */
static void release_too_early(Kernel *k) {
    Block *b;
    Ins *release = find(k, TI_ARRIVE, "k_empty", 1, &b);
    move(release, b, find(k, TI_MMA, "S", 1, NULL));
}
static void release_other_stage(Kernel *k) { flip(k, &find(k, TI_ARRIVE, "k_empty", 1, NULL)->e[0]); }
static void no_mma_wait(Kernel *k) { drop(k, TI_MMA_WAIT, NULL, 0); }
static void no_mma_wait_kept(Kernel *k) { no_mma_wait(k), drop(k, TI_ARRIVE, "k_empty", 0); }
static void weak_mma_wait(Kernel *k) { find(k, TI_MMA_WAIT, NULL, 1, NULL)->n = 2; }
static void weak_mma_wait_kept(Kernel *k) { weak_mma_wait(k), drop(k, TI_ARRIVE, "k_empty", 1); }
static void weak_second_wait(Kernel *k) { find(k, TI_MMA_WAIT, NULL, 2, NULL)->n = 1; }
static void no_second_wait(Kernel *k) {
    Block *b;
    Ins *wait = find(k, TI_MMA_WAIT, NULL, 2, &b), *p = find(k, TI_MAP, "P", 1, NULL), *acc = find(k, TI_MAP, "acc", 1, NULL);
    move(p, b, acc);
    ag_block_remove(b, wait);
}
static void weak_second_wait_kept(Kernel *k) { weak_second_wait(k), drop(k, TI_ARRIVE, "v_empty", 0); }
static void no_second_wait_kept(Kernel *k) { no_second_wait(k), drop(k, TI_ARRIVE, "v_empty", 0); }
static void no_last_wait(Kernel *k) { drop(k, TI_MMA_WAIT, NULL, 3); }
static void no_commit(Kernel *k) { drop(k, TI_MMA_COMMIT, NULL, 0); }
/* One more product at the end of the keys, into S. */
static void one_more(Kernel *k) {
    Block *b;
    Ins *last = find(k, TI_MMA, "acc", 1, &b), *i = ag_ins_clone(k, last);
    i->dst = val_named(k, "S");
    i->a = val_named(k, "Q");
    i->trans = i->zero = true;
    i->e[1] = ag_node_int(&k->nodes, 0);
    ag_block_append(b, i);
}
static void one_more_direct(Kernel *k) {
    one_more(k);
    find(k, TI_STORE, "o", 0, NULL)->b = -1;
}
static void one_more_committed(Kernel *k) {
    one_more_direct(k);
    ag_block_append(&k->role[0].body, ag_ins(k, TI_MMA_COMMIT, -1));
}
static void clear_early(Kernel *k) {
    Block *b;
    Ins *wait = find(k, TI_MMA_WAIT, NULL, 2, &b), *fill = ag_ins(k, TI_FILL, val_named(k, "acc"));
    fill->e[0] = ag_node_float(&k->nodes, 0);
    ag_block_insert_before(b, wait, fill);
}
static void read_other_stage(Kernel *k) { flip(k, &find(k, TI_MMA, "S", 1, NULL)->e[0]); }
static void copy_other_stage(Kernel *k) { flip(k, &find(k, TI_COPY, "K", 0, NULL)->e[0]); }
static void stage_two(Kernel *k) { find(k, TI_WAIT_BAR, "v_full", 0, NULL)->e[0] = ag_node_int(&k->nodes, 2); }
static void no_sync(Kernel *k) { drop(k, TI_SYNC, NULL, 0); }
static void stage_over_k(Kernel *k) { k->val[val_named(k, "O")].offset = k->val[val_named(k, "K")].offset; }
static void stage_over_v(Kernel *k) { k->val[val_named(k, "O")].offset = k->val[val_named(k, "V")].offset; }
static void stage_shifted(Kernel *k) {
    k->val[val_named(k, "O")].panels = false;
    k->val[val_named(k, "O")].cols = 32;
}
static void block_sync(Kernel *k) { find(k, TI_SYNC, NULL, 0, NULL)->n = WARPGROUP + 1; }
static void one_thread_sync(Kernel *k) { ag_block_append(&k->role[1].body, ag_ins_clone(k, find(k, TI_SYNC, NULL, 0, NULL))); }
static void by_cp_async(Kernel *k) { find(k, TI_COPY, "K", 0, NULL)->bar = -1; }
static void tma_by_all(Kernel *k) { k->role[1].one_thread = false; }
/* A copy that nobody waits for. */
static void copy_unwaited(Kernel *k) {
    Hand h = {.k = k};
    Block *b;
    Ins *copy = find(k, TI_COPY, "Q", 0, &b), *expect = copy->prev, *last = ag_ins_clone(k, copy);
    add_val(&h, k->val[copy->dst]);
    k->val[k->nval - 1].name = STR("X");
    k->val[k->nval - 1].offset = 20480;
    last->dst = k->nval - 1;
    ag_block_append(b, ag_ins_clone(k, expect));
    ag_block_append(b, last);
}
/* The loading role knows only that its own copy has arrived. */
static void wait_for_full(Kernel *k) { find(k, TI_WAIT_BAR, "k_empty", 0, NULL)->n = K_FULL; }
/* Both waits before both copies: nothing says what guards what, so only the overwriting itself can tell. */
static void wait_first(Kernel *k) {
    Block *b;
    Ins *wait = find(k, TI_WAIT_BAR, "v_empty", 0, &b);
    move(wait, b, find(k, TI_EXPECT, "k_full", 0, NULL));
}
static void wait_first_release_early(Kernel *k) {
    wait_first(k);
    Block *b;
    Ins *release = find(k, TI_ARRIVE, "v_empty", 0, &b);
    move(release, b, release->prev);
}
static void wait_first_no_release(Kernel *k) {
    wait_first(k);
    Block *b;
    Ins *release = find(k, TI_ARRIVE, "v_empty", 0, &b);
    move(release, b, find(k, TI_MMA, "acc", 0, NULL));
}
static void release_v_early(Kernel *k) {
    Block *b;
    Ins *release = find(k, TI_ARRIVE, "v_empty", 0, &b);
    move(release, b, release->prev);
}
static void wait_at_sync(Kernel *k) { find(k, TI_WAIT_BAR, "q_full", 0, NULL)->n = WARPGROUP; }

/* Two phases, of which the computing role waits for the first: right only if it is there before the second is over. */
static void lapped(Kernel *k) {
    k->barrier[k->nbarrier] = (Barrier){"tick", BARRIER_MBAR, 1, 1, 0};
    for (int n = 0; n < 3; n++) {
        Ins *i = ag_ins(k, n ? TI_ARRIVE : TI_WAIT_BAR, -1);
        i->n = k->nbarrier;
        i->e[0] = i->e[1] = ag_node_int(&k->nodes, 0);
        ag_block_insert_after(&k->role[n ? 1 : 0].body, NULL, i);
    }
    k->nbarrier++;
}

/* ---- the weights through shared memory: of each step into one tile, fenced and shown to the warpgroup */

static void stage_weights(Kernel *k) {
    Val *p = &k->val[val_named(k, "P")];
    p->space = SPACE_SHARED;
    p->panels = true;
    p->stages = 1;
    p->offset = 24576;
    p->bytes = 8192;
    for (int n = 0; n < 2; n++) {
        Block *b;
        Ins *stage = find(k, TI_MAP, "P", 0, &b), *fence = ag_ins(k, TI_FENCE, -1), *sync = ag_ins(k, TI_SYNC, -1);
        stage->op = TI_STAGE;
        stage->a = val_named(k, "S");
        stage->e[0] = ag_node_int(&k->nodes, 0);
        sync->n = WARPGROUP;
        ag_block_insert_after(b, stage, fence);
        ag_block_insert_after(b, fence, sync);
    }
}
static void no_fence(Kernel *k) { stage_weights(k), drop(k, TI_FENCE, NULL, 0); }
static void no_sync_behind(Kernel *k) { stage_weights(k), drop(k, TI_SYNC, NULL, 1); }
static void sync_before_fence(Kernel *k) {
    Block *b;
    stage_weights(k);
    Ins *fence = find(k, TI_FENCE, NULL, 0, &b);
    move(fence->next, b, fence);
}
static void fence_before_stage(Kernel *k) {
    Block *b;
    stage_weights(k);
    Ins *fence = find(k, TI_FENCE, NULL, 1, &b);
    move(fence, b, fence->prev);
}
static void stage_early(Kernel *k) {
    Block *b;
    stage_weights(k);
    Ins *stage = find(k, TI_STAGE, "P", 1, &b);
    move(stage, b, find(k, TI_MMA_WAIT, NULL, 2, NULL));
}
static void stage_scores_early(Kernel *k) {
    Block *b;
    stage_weights(k);
    Ins *stage = find(k, TI_STAGE, "P", 1, &b);
    move(stage, b, find(k, TI_MMA_WAIT, NULL, 1, NULL));
}
static void stage_nothing(Kernel *k) { stage_weights(k), drop(k, TI_STAGE, "P", 1); }
static void stage_first_only(Kernel *k) {
    stage_weights(k);
    drop(k, TI_STAGE, "P", 1), drop(k, TI_FENCE, NULL, 1), drop(k, TI_SYNC, NULL, 1);
}
static void stage_unscaled(Kernel *k) { stage_weights(k), drop(k, TI_MAP, "acc", 1); }
/* The rows of all warpgroups as the right operand. */
static void stage_as_right(Kernel *k) {
    Block *b;
    stage_weights(k);
    Ins *mma = find(k, TI_MMA, "acc", 0, &b);
    mma->b = mma->a;
    mma->e[0] = mma->e[1];
}
static void stage_over_q(Kernel *k) { stage_weights(k), k->val[val_named(k, "P")].offset = 0; }
static void stage_over_k_ring(Kernel *k) { stage_weights(k), k->val[val_named(k, "P")].offset = k->val[val_named(k, "K")].offset; }
/* The output over the weights: each warp's rows in the same bytes, and elsewhere. */
static void output_over(Kernel *k) {
    stage_weights(k);
    drop(k, TI_SYNC, NULL, 2);
    k->val[val_named(k, "O")].offset = k->val[val_named(k, "P")].offset;
}
static void output_over_shifted(Kernel *k) {
    output_over(k);
    k->val[val_named(k, "O")].panels = false;
    k->val[val_named(k, "O")].cols = 32;
}
/* Staged once more by the warps that the condition picks, before the fence: their own rows. */
static void stage_by_some(Kernel *k) {
    Block *b;
    Hand h = {.k = k};
    stage_weights(k);
    Ins *stage = find(k, TI_STAGE, "P", 1, &b), *any = ag_ins(k, TI_ANY, -1);
    any->e[0] = op(&h, OP_LT, use(&h, "mx"), real(&h, 0.1));
    ag_block_append(&any->body, ag_ins_clone(k, stage));
    ag_block_insert_after(b, stage, any);
}
static void stage_by_some_behind(Kernel *k) {
    Block *b;
    stage_by_some(k);
    Ins *any = find(k, TI_ANY, NULL, 0, &b);
    Ins *sync = any->next->next;
    ag_block_remove(b, any);
    ag_block_insert_after(b, sync, any);
}

typedef struct Breakage {
    void (*edit)(Kernel *);
    const char *message;
} Breakage;

static const Breakage breakage[] = {
    {parity_full, "simulated block 0 (m 0, h 0, b 0): deadlock: role math waits at wait_bar k_full [stage 1] parity 1 (0 of 1 arrivals), role load "
                  "waits at wait_bar v_empty [stage 0] parity 0 (0 of 4 arrivals)"},
    {parity_first, "simulated block 0 (m 0, h 0, b 0): deadlock: role math waits at wait_bar q_full [stage 0] parity 1 (0 of 1 arrivals), role load "
                   "waits at wait_bar k_empty [stage 0] parity 0 (0 of 4 arrivals)"},
    {parity_empty, "simulated block 0 (m 0, h 0, b 0): deadlock: role math waits at wait_bar k_full [stage 0] parity 0 (0 of 1 arrivals), role load "
                   "waits at wait_bar k_empty [stage 0] parity 0 (0 of 4 arrivals)"},
    {parity_two, "simulated block 0 (m 0, h 0, b 0): wait_bar q_full [stage 0]: parity 2"},
    {no_full_wait, "simulated block 0 (m 0, h 0, b 0): mma acc: reads V [stage 0] before its copy has arrived: its phase was not waited for"},
    {no_empty_wait, "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: overwrites K [stage 0] while a copy into it is unfinished"},
    {no_release, "simulated block 0 (m 0, h 0, b 0): deadlock: role math waits at wait_bar k_full [stage 1] parity 1 (0 of 1 arrivals), role load "
                 "waits at wait_bar v_empty [stage 0] parity 0 (0 of 4 arrivals)"},
    {release_twice, "simulated block 0 (m 0, h 0, b 0): arrive k_empty [stage 0]: K [stage 0] is released twice"},
    {release_thrice, "simulated block 0 (m 0, h 0, b 0): arrive k_empty [stage 0]: 4 arrivals, but the phase takes 3 more of 3"},
    {no_expect, "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: brings 2048 bytes, but k_full expects 0 more"},
    {too_few_bytes, "simulated block 0 (m 0, h 0, b 0): copy V [stage 0]: brings 2048 bytes, but v_full expects 1024 more"},
    {too_many_bytes, "simulated block 0 (m 0, h 0, b 0): deadlock: role math waits at wait_bar v_full [stage 0] parity 0 (1 of 1 arrivals, no copy "
                     "for 2048 bytes), role load waits at wait_bar v_empty [stage 0] parity 0 (0 of 4 arrivals)"},
    {no_copy, "simulated block 0 (m 0, h 0, b 0): deadlock: role math waits at wait_bar v_full [stage 0] parity 0 (1 of 1 arrivals, no copy for 2048 "
              "bytes), role load waits at wait_bar v_empty [stage 0] parity 0 (0 of 4 arrivals)"},
    {release_early, "simulated block 0 (m 0, h 0, b 0): arrive k_empty [stage 1]: K [stage 1] is released while an mma that reads it is unfinished"},
    {release_too_early, "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 1] after its release"},
    {release_other_stage, "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] after its release"},
    {no_mma_wait, "simulated block 0 (m 0, h 0, b 0): arrive k_empty [stage 0]: K [stage 0] is released while an mma that reads it is unfinished"},
    {no_mma_wait_kept, "simulated block 0 (m 0, h 0, b 0): map S: S is read while the mma that writes it is unfinished"},
    {weak_mma_wait, "simulated block 0 (m 0, h 0, b 0): arrive k_empty [stage 1]: K [stage 1] is released while an mma that reads it is unfinished"},
    {weak_mma_wait_kept, "simulated block 0 (m 0, h 0, b 0): map S: S is read while the mma that writes it is unfinished"},
    {weak_second_wait,
     "simulated block 0 (m 0, h 0, b 0): arrive v_empty [stage 0]: V [stage 0] is released while an mma that reads it is unfinished"},
    {weak_second_wait_kept, "simulated block 0 (m 0, h 0, b 0): map acc: acc is read while the mma that writes it is unfinished"},
    {no_second_wait, "simulated block 0 (m 0, h 0, b 0): arrive v_empty [stage 0]: V [stage 0] is released while an mma that reads it is unfinished"},
    {no_second_wait_kept, "simulated block 0 (m 0, h 0, b 0): map P: P is overwritten while an mma that reads it is unfinished"},
    {no_last_wait, "simulated block 0 (m 0, h 0, b 0): map acc: acc is read while the mma that writes it is unfinished"},
    {no_commit, "simulated block 0 (m 0, h 0, b 0): mma_wait 0: an mma before it is in a group that was never committed"},
    {one_more, "simulated block 0 (m 0, h 0, b 0): store o: overwrites Q [stage 0] while an mma that reads it is unfinished"},
    {one_more_direct, "simulated block 0 (m 0, h 0, b 0): role math ends with an mma in a group that was never committed"},
    {one_more_committed, "simulated block 0 (m 0, h 0, b 0): role math ends while an mma is unfinished: a wait is missing"},
    {clear_early, "simulated block 0 (m 0, h 0, b 0): fill acc: acc is overwritten while an mma that writes it is unfinished"},
    {read_other_stage, "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] before its copy has arrived: its phase was not waited for"},
    {copy_other_stage, "simulated block 0 (m 0, h 0, b 0): copy K [stage 1]: brings 2048 bytes, but k_full expects 0 more"},
    {stage_two, "simulated block 0 (m 0, h 0, b 0): wait_bar v_full [stage 2]: stage 2 of v_full, which has 2 stages"},
    {no_sync, "simulated block 0 (m 0, h 0, b 0): store o: overwrites Q [stage 0] before its release: no sync since it was last used"},
    {stage_over_k, "simulated block 0 (m 0, h 0, b 0): store o: overwrites K [stage 0] before its release: no sync since it was last used"},
    {stage_over_v, "simulated block 0 (m 0, h 0, b 0): store o: overwrites V [stage 0] before its release: no sync since it was last used"},
    {stage_shifted, "simulated block 0 (m 0, h 0, b 0): store o: overwrites Q [stage 0] before its release: each warpgroup has released its own "
                    "rows, which lie elsewhere"},
    {block_sync, "simulated block 0 (m 0, h 0, b 0): deadlock: role math waits at sync block, role load has ended"},
    {one_thread_sync, "simulated block 0 (m 0, h 0, b 0): sync warpgroup: role load has one thread"},
    {by_cp_async, "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: a role of one thread copies by TMA only"},
    {tma_by_all, "simulated block 0 (m 0, h 0, b 0): expect q_full [stage 0]: each thread of the role announces the bytes"},
    {copy_unwaited, "simulated block 0 (m 0, h 0, b 0): the kernel ends while a copy into X [stage 0] is unfinished: a wait is missing"},
    {wait_at_sync, "simulated block 0 (m 0, h 0, b 0): wait_bar warpgroup: warpgroup is no mbarrier"},
    {wait_for_full, "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: overwrites K [stage 0] before its release by role math"},
    {wait_first_release_early, "simulated block 0 (m 0, h 0, b 0): copy V [stage 0]: overwrites V [stage 0], which role math released while an mma "
                               "that reads it was unfinished"},
    {wait_first_no_release, "simulated block 0 (m 0, h 0, b 0): copy V [stage 0]: overwrites V [stage 0] before its release by role math"},
    {release_v_early,
     "simulated block 0 (m 0, h 0, b 0): arrive v_empty [stage 0]: V [stage 0] is released while an mma that reads it is unfinished"},
    {no_fence, "simulated block 0 (m 0, h 0, b 0): mma acc: reads P [stage 0] before what was staged is fenced for mma: a fence is missing"},
    {no_sync_behind, "simulated block 0 (m 0, h 0, b 0): mma acc: reads P [stage 0] before what was staged is visible to the warpgroup: a sync "
                     "behind the fence is missing"},
    {sync_before_fence, "simulated block 0 (m 0, h 0, b 0): mma acc: reads P [stage 0] before what was staged is visible to the warpgroup: a sync "
                        "behind the fence is missing"},
    {fence_before_stage,
     "simulated block 0 (m 0, h 0, b 0): mma acc: reads P [stage 0] before what was staged is fenced for mma: a fence is missing"},
    {stage_early, "simulated block 0 (m 0, h 0, b 0): stage P: overwrites P [stage 0] while an mma that reads it is unfinished"},
    {stage_scores_early, "simulated block 0 (m 0, h 0, b 0): stage P: S is read while the mma that writes it is unfinished"},
    {stage_nothing, "simulated block 0 (m 0, h 0, b 0): mma acc: acc is accumulated under an older maximum: rescale is missing"},
    {stage_first_only, "simulated block 0 (m 0, h 0, b 0): mma acc: acc is accumulated under an older maximum: rescale is missing"},
    {stage_unscaled, "simulated block 0 (m 0, h 0, b 0): mma acc: acc is accumulated under an older maximum: rescale is missing"},
    {stage_as_right, "simulated block 0 (m 0, h 0, b 0): mma acc: reads all rows of P [stage 0], of which each warpgroup sees those that it staged"},
    {stage_over_q, "simulated block 0 (m 0, h 0, b 0): stage P: overwrites Q [stage 0] before its release: no sync since it was last used"},
    {stage_over_k_ring, "simulated block 0 (m 0, h 0, b 0): stage P: overwrites K [stage 0] before its release: no sync since it was last used"},
    {output_over_shifted, "simulated block 0 (m 0, h 0, b 0): store o: overwrites P [stage 0] before its release: each warp has released its own "
                          "rows, which lie elsewhere"},
    {stage_by_some_behind,
     "simulated block 0 (m 0, h 0, b 0): mma acc: reads P [stage 0] before what was staged is fenced for mma: a fence is missing"},
    {lapped, "simulated block 0: deadlock: role math waits at wait_bar tick [stage 0] parity 0 (0 of 1 arrivals), role load waits at wait_bar "
             "k_empty [stage 0] parity 0 (0 of 4 arrivals)"},
};

static void test_breakages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof breakage / sizeof *breakage; i++) {
        Compilation *c = by_hand();
        breakage[i].edit(c->fn.kernel);
        expect(c, &shape100, breakage[i].message);
        ag_compilation_free(c);
    }
}

static const Case shapes[] = {
    {.B = 1, .Hkv = 1, .group = 2, .Sq = 100, .Sk = 100, .offset = ATTNGEN_ALIGN_END},
    {.B = 2, .Hkv = 2, .group = 1, .Sq = 65, .Sk = 16, .offset = ATTNGEN_ALIGN_END, .layout = LAY_BSHD},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 1, .Sk = 65, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 0, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 100, .Sk = 49, .offset = -40, .no_lse = true},
};

static void test_right(void **state) {
    (void)state;
    static void (*const edit[])(Kernel *) = {NULL, wait_first, stage_weights, output_over, stage_by_some};
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        Compilation *c = by_hand();
        if (edit[i]) edit[i](c->fn.kernel);
        for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) check_result(c, &shapes[n]);
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right), cmocka_unit_test(test_breakages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
