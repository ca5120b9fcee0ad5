/* test_simulate.c: the simulator takes what the compiler makes, and catches every way of breaking it. */
#include "hand.h"

static const char CAUSAL[] = "attention: causal\nmask: k <= q\n";
static const char DENSE[] = "attention: dense\n";
static const char CUT[] = "attention: cut\nparams:\n  cut: {int: 20}\nscore: s if q != 3 else s - 1.0\nmask: k <= q and k != cut\n";

/* Scores that are -inf by the spec's own doing are no masks. */
static const char LOGS[] = "attention: logs\nscore: s + log(relu(k - 2.0))\nmask: k <= q\n";
static const char RICH[] =
    "attention: rich\nparams:\n  cap: {float: 3.0}\nlet:\n  far: q - k > 9 or not (k % 3 == 1)\n"
    "score: (clamp(s, -cap, cap) + sigmoid(s) * sin(s) - softplus(-s) + sqrt(abs(s)) + min(s, 1.0) / (1.0 + relu(s))) if far else "
    "cap * tanh(s / cap) + 0.01 * (k // 2) - exp(-abs(s))\nmask: far or q != 7\n";

static const char PLAIN[] = SCHEDULE("smem", "1", "1", "smem", "each", "peeled", "reverse");
static const char DOUBLE[] = SCHEDULE("regs", "2", "2", "direct", "together", "flagged", "forward");

static Compilation *compile(const char *spec, const char *schedule) {
    const attngen_dim dims[] = {{"D", 16}};
    attngen_source a = source("spec.yaml", spec), b = source("schedule.yaml", schedule);
    Compilation *c = ag_compile_text(&a, &b, "sm_80", dims, 1, NULL);
    assert_non_null(c);
    Buf text = {0};
    ag_diag_render(&c->diag, &text);
    if (c->diag.status != ATTNGEN_OK) fail_msg("%s", text.s);
    ag_buf_free(&text);
    return c;
}

static const Case shape40 = {.B = 1, .Hkv = 2, .group = 2, .Sq = 40, .Sk = 40, .offset = ATTNGEN_ALIGN_END};

/* ---- a kernel by hand: what the passes made of CAUSAL or DENSE with 32 queries by 16 keys and one stage each, when this was written; the breakages below
 * count on its shape */

static void add_row(Hand *h, const char *name, bool partial) {
    add_val(h, (Val){.name = ag_str(name), .space = SPACE_ROW, .type = DT_F32, .rows = 32, .cols = 1, .partial = partial});
}
static void add_frag(Hand *h, const char *name, DType type, Layout layout) {
    add_val(h, (Val){.name = ag_str(name), .space = SPACE_FRAG, .type = type, .rows = 32, .cols = 16, .layout = layout});
}
static void add_shared(Hand *h, const char *name, int rows, int offset) {
    add_val(h, (Val){.name = ag_str(name),
                     .space = SPACE_SHARED,
                     .type = DT_BF16,
                     .rows = rows,
                     .cols = 16,
                     .stages = 1,
                     .offset = offset,
                     .bytes = rows * 32});
}
static void acquire(Hand *h) {
    put(h, TI_WAIT, NULL)->n = 0;
    put(h, TI_SYNC, NULL);
}
/* if tile >= j_lo: copy K of it */
static void fetch_k(Hand *h, Ref tile) {
    Block *outer = h->at;
    Ins *i = put(h, TI_IF, NULL);
    i->e[0] = op(h, OP_GE, tile, use(h, "j_lo"));
    h->at = &i->body;
    copy(h, "K", TEN_K, op(h, OP_MUL, tile, num(h, 16)), "g");
    h->at = outer;
}
static void key_loop(Hand *h, Ref hi, Ref lo, bool masked) {
    Block *outer = h->at;
    Ins *loop = put(h, TI_LOOP, "j");
    loop->n = -1;
    loop->e[0] = hi;
    loop->e[1] = lo;
    h->at = &loop->body;
    acquire(h);
    copy(h, "V", TEN_V, op(h, OP_MUL, use(h, "j"), num(h, 16)), "g");
    put(h, TI_COMMIT, NULL);
    mma(h, "S", "Q", "K", true);
    acquire(h);
    fetch_k(h, op(h, OP_SUB, use(h, "j"), num(h, 1)));
    put(h, TI_COMMIT, NULL);
    if (masked)
        map(h, "S", ag_node_op(&h->k->nodes, OP_SELECT, h->k->guard, use(h, "S"), real(h, -INFINITY), h->span))->e[2] =
            op(h, OP_MUL, use(h, "j"), num(h, 16));
    softmax_step(h);
    rescale_step(h);
    mma(h, "acc", "P", "V", false);
    map(h, "mx", use(h, "mx_new"));
    h->at = outer;
}
static void add_values(Hand *h) {
    static const char *const row[] = {"mx", "mx_new", "r0", "rescale", "den_total", "r1", "lse"};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) add_row(h, row[i], false);
    add_row(h, "den", true);
    add_frag(h, "acc", DT_F32, LAYOUT_ACC);
    add_frag(h, "S", DT_F32, LAYOUT_ACC);
    add_frag(h, "P", DT_BF16, LAYOUT_A);
    add_shared(h, "Q", 32, 0);
    add_shared(h, "K", 16, 1024);
    add_shared(h, "V", 16, 1536);
    add_shared(h, "O", 32, 0);
    ag_val_scalar(h->k, "j", T_INT);
    h->k->val[val_named(h->k, "den")].reference = h->k->val[val_named(h->k, "acc")].reference = val_named(h->k, "mx");
}

/* The spec of c, which was compiled no further than needed for it, with a kernel by hand. */
static Compilation *by_hand(const char *spec) {
    const attngen_dim dims[] = {{"D", 16}};
    attngen_source a = source("spec.yaml", spec), b = source("schedule.yaml", PLAIN);
    Compilation *c = ag_compile_text(&a, &b, "sm_80", dims, 1, "lower");
    assert_int_equal(c->diag.status, ATTNGEN_OK);
    bool causal = spec == CAUSAL;
    Kernel *k = c->fn.kernel = ag_kernel_new(&c->diag, c->fn.spec, c->fn.sched, c->fn.target, STR("hand"));
    Hand h = {k, &k->role[0].body, {0}, 32};
    k->role[0] = (Role){.name = "all", .warps = 2};
    k->nrole = k->nbarrier = 1;
    k->barrier[0] = (Barrier){.name = "all", .kind = BARRIER_BLOCK};
    describe_tensors(k);
    add_values(&h);
    Ref in_range = op(&h, OP_LT, axis(&h, AX_K), size(&h, SZ_SK));
    k->guard = causal ? op(&h, OP_AND, op(&h, OP_LE, axis(&h, AX_K), axis(&h, AX_Q)), in_range) : in_range;
    decode_block(&h);
    bound_keys(&h, causal);
    put(&h, TI_FILL, "mx")->e[0] = real(&h, -INFINITY);
    put(&h, TI_FILL, "den")->e[0] = real(&h, 0);
    put(&h, TI_FILL, "acc")->e[0] = real(&h, 0);
    copy(&h, "Q", TEN_Q, use(&h, "row0"), "h");
    fetch_k(&h, op(&h, OP_SUB, use(&h, "j_hi"), num(&h, 1)));
    put(&h, TI_COMMIT, NULL);
    if (causal) h.span = c->fn.spec->mask->span;
    key_loop(&h, use(&h, "j_hi"), use(&h, "j_plain_hi"), true);
    key_loop(&h, use(&h, "j_plain_hi"), use(&h, "j_lo"), false);
    h.span = (Span){0};
    acquire(&h);
    outputs(&h);
    return c;
}

/* ---- ways to break a kernel */

static void nothing(Kernel *k) { (void)k; }
static void no_wait(Kernel *k) { drop(k, TI_WAIT, NULL, 0); }
static void no_sync(Kernel *k) { drop(k, TI_SYNC, NULL, 0); }
static void wait_too_little(Kernel *k) { find(k, TI_WAIT, NULL, 0, NULL)->n = 1; }
static void no_release(Kernel *k) { drop(k, TI_SYNC, NULL, 1); }
static void no_commit(Kernel *k) { drop_all(k, TI_COMMIT, NULL); }
static void stage_one(Kernel *k) { find(k, TI_COPY, "K", 0, NULL)->e[0] = ag_node_int(&k->nodes, 1); }
static void read_stage_one(Kernel *k) { find(k, TI_MMA, "acc", 0, NULL)->e[0] = ag_node_int(&k->nodes, 1); }
static void read_other_stage(Kernel *k) {
    k->val[val_named(k, "V")].stages = 2;
    read_stage_one(k);
}
static void copy_twice(Kernel *k) { twice(k, TI_COPY, "Q", 0); }
static void copy_at_end(Kernel *k) {
    Ins *i = ag_ins_clone(k, find(k, TI_COPY, "V", 0, NULL));
    ag_block_append(&k->role[0].body, i);
    ag_block_append(&k->role[0].body, ag_ins(k, TI_COMMIT, -1));
}
static void no_copy(Kernel *k) { drop_all(k, TI_COPY, "V"); }
static void sync_copy(Kernel *k) { find(k, TI_COPY, "V", 0, NULL)->async = false; }
static void uncommitted_at_end(Kernel *k) {
    Ins *i = ag_ins_clone(k, find(k, TI_COPY, "V", 0, NULL));
    ag_block_append(&k->role[0].body, i);
}
/* O where V is: harmless as long as a barrier stands between the last product and the store. */
static void stage_over_v(Kernel *k) { k->val[val_named(k, "O")].offset = k->val[val_named(k, "V")].offset; }
static void staging_too_early(Kernel *k) {
    stage_over_v(k);
    drop(k, TI_SYNC, NULL, 4);
}
/* Q written over by K. */
static void overlap(Kernel *k) { k->val[val_named(k, "K")].offset = 0; }
static void high_bound(Kernel *k) { shift(k, &find(k, TI_LET, "j_hi", 0, NULL)->e[0], -1); }
static void low_bound(Kernel *k) { shift(k, &find(k, TI_LET, "j_lo", 0, NULL)->e[0], 1); }
static void too_low_bound(Kernel *k) { shift(k, &find(k, TI_LET, "j_lo", 0, NULL)->e[0], -1); }
static void late_split(Kernel *k) { shift(k, &find(k, TI_LET, "j_plain_hi", 0, NULL)->e[0], 1); }
static void no_mask(Kernel *k) {
    Ins *i = find(k, TI_MAP, "S", 0, NULL);
    i->e[0] = k->nodes.n[i->e[0]].arg[1];
}
static void mask_too_much(Kernel *k) {
    k->guard =
        ag_node_op(&k->nodes, OP_AND, k->guard,
                   ag_node_op(&k->nodes, OP_NE, ag_node_leaf(&k->nodes, OP_AXIS, T_INT, AX_K, (Span){0}), ag_node_int(&k->nodes, 18), 0, (Span){0}),
                   0, (Span){0});
    Ins *i = find(k, TI_MAP, "S", 0, NULL);
    const Node n = k->nodes.n[i->e[0]];
    i->e[0] = ag_node_op(&k->nodes, OP_SELECT, k->guard, n.arg[1], n.arg[2], n.span);
}
static void wrong_positions(Kernel *k) { shift(k, &find(k, TI_MAP, "S", 0, NULL)->e[2], 16); }
static void wrong_queries(Kernel *k) { shift(k, &find(k, TI_MAP, "S", 0, NULL)->e[1], 1); }
static void contract_twice(Kernel *k) { twice(k, TI_MMA, "acc", 0); }
static void no_rescale(Kernel *k) { drop(k, TI_MAP, "acc", 0); }
static void no_rescale_den(Kernel *k) { drop(k, TI_MAP, "den", 0); }
static void stale_maximum(Kernel *k) { drop(k, TI_MAP, "mx", 0); }
static void wrong_rows(Kernel *k) { shift(k, &find(k, TI_COPY, "V", 0, NULL)->e[1], 16); }
static void rows_past_end(Kernel *k) { shift(k, &find(k, TI_COPY, "Q", 0, NULL)->e[2], 16); }
static void wrong_head(Kernel *k) {
    Ins *i = find(k, TI_COPY, "K", 0, NULL);
    i->e[4] = ag_node_int(&k->nodes, 1);
}
static void head_past_end(Kernel *k) { find(k, TI_COPY, "K", 0, NULL)->e[4] = ag_kval(k, val_named(k, "h")); }
static void no_fill(Kernel *k) { drop(k, TI_FILL, "acc", 0); }
static void no_store(Kernel *k) { drop(k, TI_STORE, "o", 0); }
static void no_lse(Kernel *k) { drop(k, TI_STORE_ROW, "lse", 0); }
static void one_block_less(Kernel *k) { shift(k, &k->blocks, -1); }
static void store_twice(Kernel *k) { twice(k, TI_STORE_ROW, "lse", 0); }
static void store_past_end(Kernel *k) { shift(k, &find(k, TI_STORE_ROW, "lse", 0, NULL)->e[1], 1); }
static void store_elsewhere(Kernel *k) { shift(k, &find(k, TI_STORE_ROW, "lse", 0, NULL)->e[0], 8); }
static void part_as_total(Kernel *k) { replace(k, &find(k, TI_MAP, "lse", 0, NULL)->e[0], "den_total", "den"); }
static void no_total(Kernel *k) { drop(k, TI_TOTAL, "den_total", 0); }
static void batch_past_end(Kernel *k) { shift(k, &find(k, TI_COPY, "V", 0, NULL)->e[3], 1); }
static void no_score(Kernel *k) { drop(k, TI_MMA, "S", 0); }
static void second_role(Kernel *k) {
    k->role[1] = (Role){.name = "load", .warp0 = 2, .warps = 1};
    k->nrole = 2;
}

/* Rescaling moved into bodies that each warp runs only where one of its maxima has grown. */
static void lazy(Kernel *k) {
    static const char *const moved[] = {"rescale", "den", "acc", "mx"};
    Hand h = {.k = k};
    for (int n = 0; n < 2; n++) {
        Block *step;
        Ins *any = ag_ins(k, TI_ANY, -1), *r0 = find(k, TI_MAP, "r0", 2 * n, &step), *again = ag_ins_clone(k, r0);
        any->e[0] = op(&h, OP_LT, op(&h, OP_SUB, op(&h, OP_MUL, use(&h, "mx"), real(&h, SCALE)), use(&h, "r0")), real(&h, 0));
        for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) {
            Block *b;
            Ins *x = find(k, TI_MAP, moved[i], n, &b);
            ag_block_remove(b, x);
            ag_block_append(&any->body, x);
        }
        replace(k, &again->e[0], "mx_new", "mx");
        ag_block_insert_after(step, r0, any);
        ag_block_insert_after(step, any, again);
    }
}
static void lazy_no_rescale(Kernel *k) { lazy(k), no_rescale(k); }
static void lazy_stale_maximum(Kernel *k) { lazy(k), stale_maximum(k); }
static void lazy_new_maximum(Kernel *k) {
    lazy(k);
    replace(k, &find(k, TI_MAP, "r0", 1, NULL)->e[0], "mx", "mx_new");
}
static void lazy_copy(Kernel *k) {
    lazy(k);
    ag_block_append(&find(k, TI_ANY, NULL, 0, NULL)->body, ag_ins_clone(k, find(k, TI_COPY, "V", 0, NULL)));
}
/* Only the first warp of the block runs the body, so only it has a factor. */
static void lazy_leak(Kernel *k) {
    lazy(k);
    Hand h = {.k = k};
    Block *b;
    Ins *any = find(k, TI_ANY, NULL, 0, &b), *x = ag_ins_clone(k, find(k, TI_MAP, "lse", 0, NULL));
    any->e[0] = op(&h, OP_AND, any->e[0], op(&h, OP_LT, axis(&h, AX_Q), num(&h, 16)));
    any->e[1] = use(&h, "q0");
    x->e[0] = use(&h, "rescale");
    ag_block_insert_after(b, any, x);
}
/* Only the first warp moves its maximum, but all weights are taken relative to the new one. */
static void lazy_half(Kernel *k) {
    lazy_new_maximum(k);
    Hand h = {.k = k};
    Ins *any = find(k, TI_ANY, NULL, 0, NULL);
    any->e[0] = op(&h, OP_AND, any->e[0], op(&h, OP_LT, axis(&h, AX_Q), num(&h, 16)));
    any->e[1] = use(&h, "q0");
}

typedef struct Breakage {
    const char *spec;
    void (*edit)(Kernel *);
    const char *message;
} Breakage;

static const Breakage breakage[] = {
    {CAUSAL, no_wait,
     "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] before its copy has arrived: a wait is missing (from spec.yaml:2)"},
    {CAUSAL, wait_too_little,
     "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] before its copy has arrived: a wait is missing (from spec.yaml:2)"},
    {CAUSAL, no_sync,
     "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] before its copy is visible to all threads: a sync is missing (from spec.yaml:2)"},
    {CAUSAL, no_release,
     "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: overwrites K [stage 0] before its release: no sync since it was last used (from "
     "spec.yaml:2)"},
    {CAUSAL, no_commit,
     "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0], whose copy is in a group that was never committed (from spec.yaml:2)"},
    {CAUSAL, stage_one, "simulated block 0 (m 0, h 0, b 0): copy K [stage 1]: stage 1 of K, which has 1 stage"},
    {CAUSAL, read_stage_one, "simulated block 0 (m 0, h 0, b 0): mma acc: stage 1 of V, which has 1 stage (from spec.yaml:2)"},
    {CAUSAL, copy_twice, "simulated block 0 (m 0, h 0, b 0): copy Q [stage 0]: overwrites Q [stage 0] while a copy into it is unfinished"},
    {CAUSAL, copy_at_end, "simulated block 0 (m 0, h 0, b 0): the kernel ends while a copy into V [stage 0] is unfinished: a wait is missing"},
    {CAUSAL, uncommitted_at_end,
     "simulated block 0 (m 0, h 0, b 0): the kernel ends while a copy into V [stage 0] is unfinished: its group was never committed"},
    {CAUSAL, overlap, "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: overwrites Q [stage 0] while a copy into it is unfinished"},
    {CAUSAL, no_copy, "simulated block 0 (m 0, h 0, b 0): mma acc: reads V [stage 0], into which nothing was copied (from spec.yaml:2)"},
    {CAUSAL, staging_too_early,
     "simulated block 0 (m 0, h 0, b 0): store o: overwrites V [stage 0] before its release: no sync since it was last used"},
    {CAUSAL, high_bound, "simulated launch: key 16 is visible to query row 16 (h 0, b 0) but key tile 1 is never visited"},
    {CAUSAL, low_bound, "simulated launch: key 0 is visible to query row 0 (h 0, b 0) but key tile 0 is never visited"},
    {DENSE, high_bound, "simulated launch: key 32 is visible to query row 0 (h 0, b 0) but key tile 2 is never visited"},
    {DENSE, low_bound, "simulated launch: key 0 is visible to query row 0 (h 0, b 0) but key tile 0 is never visited"},
    {CAUSAL, too_low_bound, "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: rows -16..-1 of k, which has 40 (from spec.yaml:2)"},
    {CAUSAL, late_split,
     "simulated block 0 (m 0, h 0, b 0): mma acc: key 1 is hidden from query row 0 but is not masked in a plain step (from spec.yaml:2)"},
    {DENSE, late_split,
     "simulated block 0 (m 0, h 0, b 0): mma acc: key 40 is past the last of 40 but is not masked for query row 0 in a plain step"},
    {CAUSAL, no_mask,
     "simulated block 0 (m 0, h 0, b 0): mma acc: key 16 is hidden from query row 0 but is not masked in a plain step (from spec.yaml:2)"},
    {CAUSAL, mask_too_much, "simulated block 0 (m 0, h 0, b 0): mma acc: key 18 is visible to query row 18 but is masked (from spec.yaml:2)"},
    {CAUSAL, wrong_positions, "simulated block 0 (m 0, h 0, b 0): map S: keys start at 32, but S holds those from 16 on (from spec.yaml:2)"},
    {CAUSAL, wrong_queries, "simulated block 0 (m 0, h 0, b 0): map S: query positions start at 1, but S holds those from 0 on (from spec.yaml:2)"},
    {CAUSAL, contract_twice, "simulated block 0 (m 0, h 0, b 0): mma acc: key tile 1 is visited twice (from spec.yaml:2)"},
    {CAUSAL, no_rescale,
     "simulated block 0 (m 0, h 0, b 0): mma acc: acc is accumulated under an older maximum: rescale is missing (from spec.yaml:2)"},
    {CAUSAL, no_rescale_den,
     "simulated block 0 (m 0, h 0, b 0): reduce den: den is accumulated under an older maximum: rescale is missing (from spec.yaml:2)"},
    {CAUSAL, stale_maximum,
     "simulated block 0 (m 0, h 0, b 0): map den: den is rescaled from a maximum that it is not relative to (from spec.yaml:2)"},
    {CAUSAL, wrong_rows, "simulated block 0 (m 0, h 0, b 0): mma acc: P is for keys 16..31, but V holds rows 32..47 (from spec.yaml:2)"},
    {CAUSAL, rows_past_end, "simulated block 1 (m 1, h 0, b 0): copy Q [stage 0]: rows 32..55 of q, which has 40"},
    {CAUSAL, wrong_head,
     "simulated block 0 (m 0, h 0, b 0): mma S: query head 0 of batch 0 takes head 1 of batch 0 of k, not head 0 (from spec.yaml:2)"},
    {CAUSAL, head_past_end,
     "simulated block 2 (m 0, h 1, b 0): mma S: query head 1 of batch 0 takes head 1 of batch 0 of k, not head 0 (from spec.yaml:2)"},
    {CAUSAL, no_fill, "simulated block 0 (m 0, h 0, b 0): map acc: reads acc before it is written (from spec.yaml:2)"},
    {CAUSAL, no_store, "simulated launch: query row 0 of o (h 0, b 0) is never written"},
    {CAUSAL, no_lse, "simulated launch: query row 0 of lse (h 0, b 0) is never written"},
    {CAUSAL, one_block_less, "simulated launch: query row 32 of o (h 3, b 0) is never written"},
    {CAUSAL, store_twice, "simulated block 0 (m 0, h 0, b 0): store_row lse: query row 0 is written twice"},
    {CAUSAL, store_past_end, "simulated block 1 (m 1, h 0, b 0): store_row lse: rows 32..40 of lse, which has 40"},
    {CAUSAL, store_elsewhere,
     "simulated block 0 (m 0, h 0, b 0): store_row lse: lse holds query rows from 0 on of head 0 of batch 0, not from 8 on of head 0 of batch 0"},
    {CAUSAL, part_as_total, "simulated block 0 (m 0, h 0, b 0): map lse: reads den, of which each lane of a quad holds a part, as a total"},
    {CAUSAL, no_total, "simulated block 0 (m 0, h 0, b 0): map r1: reads den_total before it is written"},
    {CAUSAL, second_role, "simulated block 0 (m 0, h 0, b 0): deadlock: role all waits at sync all (from spec.yaml:2), role load has ended"},
    {CAUSAL, batch_past_end, "simulated block 0 (m 0, h 0, b 0): copy V [stage 0]: batch 1 of v, which has 1 (from spec.yaml:2)"},
    {CAUSAL, no_score, "simulated block 0 (m 0, h 0, b 0): map S: reads S before it is written (from spec.yaml:2)"},
    {CAUSAL, read_other_stage, "simulated block 0 (m 0, h 0, b 0): mma acc: reads V [stage 1], into which nothing was copied (from spec.yaml:2)"},
    {CAUSAL, lazy_no_rescale,
     "simulated block 0 (m 0, h 0, b 0): mma acc: acc is accumulated under an older maximum: rescale is missing (from spec.yaml:2)"},
    {CAUSAL, lazy_stale_maximum,
     "simulated block 0 (m 0, h 0, b 0): reduce den: den is accumulated under an older maximum: rescale is missing (from spec.yaml:2)"},
    {CAUSAL, lazy_new_maximum,
     "simulated block 1 (m 1, h 0, b 0): reduce den: den is accumulated under an older maximum: rescale is missing (from spec.yaml:2)"},
    {CAUSAL, lazy_copy, "simulated block 0 (m 0, h 0, b 0): any: `copy` stands in a body that some warps skip"},
    {CAUSAL, lazy_leak, "simulated block 0 (m 0, h 0, b 0): map lse: reads rescale before it is written"},
    {DENSE, lazy_half, "simulated block 0 (m 0, h 0, b 0): map den: den is rescaled from a maximum that it is not relative to"},
};

static void test_breakages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof breakage / sizeof *breakage; i++) {
        Compilation *c = by_hand(breakage[i].spec);
        breakage[i].edit(c->fn.kernel);
        expect(c, &shape40, breakage[i].message);
        ag_compilation_free(c);
    }
}

/* What looks like a breakage and is none. */
static void test_harmless(void **state) {
    (void)state;
    static void (*const edit[])(Kernel *) = {nothing, sync_copy, stage_over_v, lazy};
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        Compilation *c = by_hand(CAUSAL);
        edit[i](c->fn.kernel);
        expect(c, &shape40, "");
        ag_compilation_free(c);
    }
}

/* ---- what the compiler makes is right */

static const Case shapes[] = {
    {.B = 1, .Hkv = 2, .group = 2, .Sq = 40, .Sk = 40, .offset = ATTNGEN_ALIGN_END},
    {.B = 2, .Hkv = 1, .group = 3, .Sq = 1, .Sk = 65, .offset = ATTNGEN_ALIGN_END, .layout = LAY_TAIL},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 65, .Sk = 17, .offset = ATTNGEN_ALIGN_END, .layout = LAY_BSHD},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 33, .Sk = 48, .offset = 0, .layout = LAY_REVERSED},
    {.B = 1, .Hkv = 1, .group = 2, .Sq = 33, .Sk = 48, .offset = -40, .layout = LAY_STEP},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 64, .Sk = 0, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 0, .Sk = 64, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 31, .Sk = 33, .offset = ATTNGEN_ALIGN_END, .large = true, .no_lse = true},
};

static void test_compiled(void **state) {
    (void)state;
    static const char *const spec[] = {CAUSAL, DENSE, CUT, LOGS, RICH};
    static const char *const schedule[] = {PLAIN, DOUBLE, SCHEDULE("regs", "2", "1", "direct", "each", "peeled", "forward"),
                                           SCHEDULE("smem", "1", "3", "smem", "each", "flagged", "reverse"),
                                           SCHEDULE("smem", "4", "2", "smem", "together", "peeled", "reverse") "numerics: {rescale: lazy}\n"};
    for (size_t i = 0; i < sizeof spec / sizeof *spec; i++)
        for (size_t j = 0; j < sizeof schedule / sizeof *schedule; j++) {
            Compilation *c = compile(spec[i], schedule[j]);
            for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) check_result(c, &shapes[n]);
            ag_compilation_free(c);
        }
}

/* Large problems are looked at in samples of their rows; an unvisited tile shows all the same. */
static void test_sampled(void **state) {
    (void)state;
    static const Case wide = {.B = 1, .Hkv = 1, .group = 1, .Sq = 600, .Sk = 9000, .offset = ATTNGEN_ALIGN_END};
    Compilation *c = by_hand(CAUSAL);
    expect(c, &wide, "");
    high_bound(c->fn.kernel);
    expect(c, &wide, "simulated launch: key 8416 is visible to query row 16 (h 0, b 0) but key tile 526 is never visited");
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_breakages), cmocka_unit_test(test_harmless), cmocka_unit_test(test_compiled),
                                       cmocka_unit_test(test_sampled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
