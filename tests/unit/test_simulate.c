/* test_simulate.c: the simulator takes what the compiler makes, and catches every way of breaking it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"
#include "compile.h"

static const char CAUSAL[] = "attention: causal\nmask: k <= q\n";
static const char DENSE[] = "attention: dense\n";
static const char CUT[] = "attention: cut\nparams:\n  cut: {int: 20}\nscore: s if q != 3 else s - 1.0\nmask: k <= q and k != cut\n";

/* A small kernel: 32 queries by 16 keys, D 16. */
#define SCHEDULE(q_operand, k_stages, v_stages, store, acquire, form, direction)                                                                     \
    "schema: attngen.schedule/1\nname: small\ntarget: {arch: [sm_80]}\napplies_to: {head_dim: {min: 1, max: 64}}\n"                                  \
    "tile: {m: 32, n: 16}\nmma: {family: mma_sync, q_operand: " q_operand "}\nroles: {warps: 2}\n"                                                   \
    "staging:\n  k: {stages: " k_stages "}\n  v: {stages: " v_stages "}\n  o: {store: " store "}\nsmem: {swizzle: xor}\n"                            \
    "pipeline: {acquire: " acquire "}\nloop: {form: " form ", direction: " direction                                                                 \
    "}\ngrid: {order: [m, h, b], longest_first: false, ctas_per_sm: 1}\n"
static const char PLAIN[] = SCHEDULE("smem", "1", "1", "smem", "each", "peeled", "reverse");
static const char DOUBLE[] = SCHEDULE("regs", "2", "2", "direct", "together", "flagged", "forward");

static attngen_source source(const char *name, const char *text) { return (attngen_source){name, text, strlen(text)}; }

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

/* Runs the kernel on random tensors of the case; "" or the message. */
static char *simulate(const Compilation *c, const Case *shape) {
    CaseData d;
    Buf message = {0};
    assert_true(ag_check_data(&d, shape, c->fn.spec, 1));
    ag_check_poison(&d, c->fn.spec);
    bool ok = ag_simulate(c->fn.kernel, &d.call, &message);
    assert_int_equal(ok, message.n == 0);
    ag_check_data_free(&d);
    return message.s ? message.s : calloc(1, 1);
}

static void expect(const Compilation *c, const Case *shape, const char *message) {
    char *got = simulate(c, shape);
    assert_string_equal(got, message);
    free(got);
}

static const Case shape40 = {.B = 1, .Hkv = 2, .group = 2, .Sq = 40, .Sk = 40, .offset = ATTNGEN_ALIGN_END};

/* ---- editing */

static bool is(const Kernel *k, const Ins *i, TileOp op, const char *name) {
    if (i->op != op) return false;
    if (!name) return true;
    bool store = op == TI_STORE || op == TI_STORE_ROW;
    return store ? strcmp(k->tensor[i->n].name, name) == 0 : ag_str_is(k->val[i->dst].name, name);
}

/* The nth (from 0) such instruction in program order, with the block that holds it. */
static Ins *find_in(const Kernel *k, Block *b, TileOp op, const char *name, int *n, Block **where) {
    for (Ins *i = b->first; i; i = i->next) {
        if (is(k, i, op, name) && (*n)-- == 0) {
            *where = b;
            return i;
        }
        Ins *x = find_in(k, &i->body, op, name, n, where);
        if (x) return x;
    }
    return NULL;
}

static Ins *find(Kernel *k, TileOp op, const char *name, int n, Block **where) {
    Block *ignore;
    Ins *i = find_in(k, &k->role[0].body, op, name, &n, where ? where : &ignore);
    assert_non_null(i);
    return i;
}

static void drop(Kernel *k, TileOp op, const char *name, int n) {
    Block *b;
    Ins *i = find(k, op, name, n, &b);
    ag_block_remove(b, i);
}

static void drop_all(Kernel *k, TileOp op, const char *name) {
    for (;;) {
        Block *b;
        int n = 0;
        Ins *i = find_in(k, &k->role[0].body, op, name, &n, &b);
        if (!i) return;
        ag_block_remove(b, i);
    }
}

static void twice(Kernel *k, TileOp op, const char *name, int n) {
    Block *b;
    Ins *i = find(k, op, name, n, &b);
    ag_block_insert_after(b, i, ag_ins_clone(k, i));
}

static void shift(Kernel *k, Ref *e, int64_t by) { *e = ag_node_op(&k->nodes, OP_ADD, *e, ag_node_int(&k->nodes, by), 0, (Span){0}); }

static int val_named(const Kernel *k, const char *name) {
    for (int v = 0; v < k->nval; v++)
        if (ag_str_is(k->val[v].name, name)) return v;
    fail_msg("no value %s", name);
    return -1;
}

typedef struct Swap {
    Kernel *k;
    int from, to;
} Swap;
static Ref swap_val(void *payload, Ref r) {
    const Swap *s = payload;
    const Node *n = &s->k->nodes.n[r];
    return n->op == OP_VAL && n->index == s->from ? ag_kval(s->k, s->to) : 0;
}
static void replace(Kernel *k, Ref *e, const char *from, const char *to) {
    Swap s = {k, val_named(k, from), val_named(k, to)};
    *e = ag_node_rebuild(&k->nodes, &k->nodes, *e, swap_val, &s);
}

/* ---- ways to break a kernel */

static void no_wait(Kernel *k) { drop(k, TI_WAIT, NULL, 0); }
static void no_sync(Kernel *k) { drop(k, TI_SYNC, NULL, 0); }
static void wait_too_little(Kernel *k) { find(k, TI_WAIT, NULL, 0, NULL)->n = 1; }
static void no_release(Kernel *k) { drop(k, TI_SYNC, NULL, 1); }
static void no_commit(Kernel *k) { drop_all(k, TI_COMMIT, NULL); }
static void stage_one(Kernel *k) { find(k, TI_COPY, "K", 0, NULL)->e[0] = ag_node_int(&k->nodes, 1); }
static void read_stage_one(Kernel *k) { find(k, TI_MMA, "acc", 0, NULL)->e[0] = ag_node_int(&k->nodes, 1); }
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
static void second_role(Kernel *k) {
    k->role[1] = (Role){.name = "load", .warp0 = 2, .warps = 1};
    k->nrole = 2;
}

/* The ring's stages in the wrong order: the copy of the next step goes where the current one is read. */
static void stages_swapped(Kernel *k) {
    for (int n = 0; n < 2; n++) {
        Ins *i = find(k, TI_COPY, "K", n, NULL);
        i->e[0] = ag_node_op(&k->nodes, OP_SUB, ag_node_int(&k->nodes, 1), i->e[0], 0, (Span){0});
    }
}
static void read_other_stage(Kernel *k) {
    Ins *i = find(k, TI_MMA, "acc", 0, NULL);
    i->e[0] = ag_node_op(&k->nodes, OP_SUB, ag_node_int(&k->nodes, 1), i->e[0], 0, (Span){0});
}
static void wait_for_one_less(Kernel *k) {
    int last = 0;
    Block *b;
    for (int n = 0; n = last, find_in(k, &k->role[0].body, TI_WAIT, NULL, &n, &b); last++) find(k, TI_WAIT, NULL, last, NULL)->n++;
}

typedef struct Breakage {
    const char *spec, *schedule;
    void (*edit)(Kernel *);
    const char *message;
} Breakage;

static const Breakage breakage[] = {
    {CAUSAL, PLAIN, no_wait, "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] before its copy has arrived: a wait is missing"},
    {CAUSAL, PLAIN, wait_too_little, "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] before its copy has arrived: a wait is missing"},
    {CAUSAL, PLAIN, no_sync,
     "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] before its copy is visible to all threads: a sync is missing"},
    {CAUSAL, PLAIN, no_release,
     "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: overwrites K [stage 0] before its release: no sync since it was last used"},
    {CAUSAL, PLAIN, no_commit, "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0], whose copy is in a group that was never committed"},
    {CAUSAL, PLAIN, stage_one, "simulated block 0 (m 0, h 0, b 0): copy K [stage 1]: stage 1 of K, which has 1 stage"},
    {CAUSAL, PLAIN, read_stage_one, "simulated block 0 (m 0, h 0, b 0): mma acc: stage 1 of V, which has 1 stage (from spec.yaml:2)"},
    {CAUSAL, PLAIN, copy_twice, "simulated block 0 (m 0, h 0, b 0): copy Q [stage 0]: overwrites Q [stage 0] while a copy into it is unfinished"},
    {CAUSAL, PLAIN, copy_at_end, "simulated block 0 (m 0, h 0, b 0): the kernel ends while a copy into V [stage 0] is unfinished: a wait is missing"},
    {CAUSAL, PLAIN, uncommitted_at_end,
     "simulated block 0 (m 0, h 0, b 0): the kernel ends while a copy into V [stage 0] is unfinished: its group was never committed"},
    {CAUSAL, PLAIN, overlap, "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: overwrites Q [stage 0] while a copy into it is unfinished"},
    {CAUSAL, PLAIN, no_copy, "simulated block 0 (m 0, h 0, b 0): mma acc: reads V [stage 0], into which nothing was copied (from spec.yaml:2)"},
    {CAUSAL, PLAIN, staging_too_early,
     "simulated block 0 (m 0, h 0, b 0): store o: overwrites V [stage 0] before its release: no sync since it was last used"},
    {CAUSAL, PLAIN, high_bound, "simulated launch: key 16 is visible to query row 16 (h 0, b 0) but key tile 1 is never visited"},
    {CAUSAL, PLAIN, low_bound, "simulated launch: key 0 is visible to query row 0 (h 0, b 0) but key tile 0 is never visited"},
    {DENSE, PLAIN, high_bound, "simulated launch: key 32 is visible to query row 0 (h 0, b 0) but key tile 2 is never visited"},
    {DENSE, PLAIN, low_bound, "simulated launch: key 0 is visible to query row 0 (h 0, b 0) but key tile 0 is never visited"},
    {CAUSAL, PLAIN, too_low_bound, "simulated block 0 (m 0, h 0, b 0): copy K [stage 0]: rows -16..-1 of k, which has 40"},
    {CAUSAL, PLAIN, late_split,
     "simulated block 0 (m 0, h 0, b 0): mma acc: key 1 is hidden from query row 0 but is not masked in a plain step (from spec.yaml:2)"},
    {DENSE, PLAIN, late_split,
     "simulated block 0 (m 0, h 0, b 0): mma acc: key 40 is past the last of 40 but is not masked for query row 0 in a plain step"},
    {CAUSAL, PLAIN, no_mask,
     "simulated block 0 (m 0, h 0, b 0): mma acc: key 16 is hidden from query row 0 but is not masked in a plain step (from spec.yaml:2)"},
    {CAUSAL, PLAIN, mask_too_much, "simulated block 0 (m 0, h 0, b 0): mma acc: key 18 is visible to query row 18 but is masked (from spec.yaml:2)"},
    {CAUSAL, PLAIN, wrong_positions, "simulated block 0 (m 0, h 0, b 0): map S: keys start at 32, but S holds those from 16 on (from spec.yaml:2)"},
    {CAUSAL, PLAIN, wrong_queries,
     "simulated block 0 (m 0, h 0, b 0): map S: query positions start at 1, but S holds those from 0 on (from spec.yaml:2)"},
    {CAUSAL, PLAIN, contract_twice, "simulated block 0 (m 0, h 0, b 0): mma acc: key tile 1 is visited twice (from spec.yaml:2)"},
    {CAUSAL, PLAIN, no_rescale,
     "simulated block 0 (m 0, h 0, b 0): mma acc: acc is accumulated under an older maximum: rescale is missing (from spec.yaml:2)"},
    {CAUSAL, PLAIN, no_rescale_den,
     "simulated block 0 (m 0, h 0, b 0): reduce den: den is accumulated under an older maximum: rescale is missing (from spec.yaml:2)"},
    {CAUSAL, PLAIN, stale_maximum,
     "simulated block 0 (m 0, h 0, b 0): map den: den is rescaled from a maximum that it is not relative to (from spec.yaml:2)"},
    {CAUSAL, PLAIN, wrong_rows, "simulated block 0 (m 0, h 0, b 0): mma acc: P is for keys 16..31, but V holds rows 32..47 (from spec.yaml:2)"},
    {CAUSAL, PLAIN, rows_past_end, "simulated block 1 (m 1, h 0, b 0): copy Q [stage 0]: rows 32..55 of q, which has 40"},
    {CAUSAL, PLAIN, wrong_head, "simulated block 0 (m 0, h 0, b 0): mma S: query head 0 of batch 0 takes head 1 of batch 0 of k, not head 0"},
    {CAUSAL, PLAIN, head_past_end, "simulated block 2 (m 0, h 1, b 0): mma S: query head 1 of batch 0 takes head 1 of batch 0 of k, not head 0"},
    {CAUSAL, PLAIN, no_fill, "simulated block 0 (m 0, h 0, b 0): map acc: reads acc before it is written (from spec.yaml:2)"},
    {CAUSAL, PLAIN, no_store, "simulated launch: query row 0 of o (h 0, b 0) is never written"},
    {CAUSAL, PLAIN, no_lse, "simulated launch: query row 0 of lse (h 0, b 0) is never written"},
    {CAUSAL, PLAIN, one_block_less, "simulated launch: query row 32 of o (h 3, b 0) is never written"},
    {CAUSAL, PLAIN, store_twice, "simulated block 0 (m 0, h 0, b 0): store_row lse: query row 0 is written twice"},
    {CAUSAL, PLAIN, store_past_end, "simulated block 1 (m 1, h 0, b 0): store_row lse: rows 32..40 of lse, which has 40"},
    {CAUSAL, PLAIN, store_elsewhere,
     "simulated block 0 (m 0, h 0, b 0): store_row lse: lse holds query rows from 0 on of head 0 of batch 0, not from 8 on of head 0 of batch 0"},
    {CAUSAL, PLAIN, part_as_total, "simulated block 0 (m 0, h 0, b 0): map lse: reads den, of which each lane of a quad holds a part, as a total"},
    {CAUSAL, PLAIN, no_total, "simulated block 0 (m 0, h 0, b 0): map r1: reads den_total before it is written"},
    {CAUSAL, PLAIN, second_role, "simulated block 0 (m 0, h 0, b 0): deadlock: role all waits at sync all, role load has ended"},
    {DENSE, DOUBLE, stages_swapped, "simulated block 0 (m 0, h 0, b 0): mma S: reads K [stage 0] before its copy has arrived: a wait is missing"},
    {DENSE, DOUBLE, read_other_stage, "simulated block 0 (m 0, h 0, b 0): mma acc: reads V [stage 1] before its copy has arrived: a wait is missing"},
    {DENSE, DOUBLE, wait_for_one_less,
     "simulated block 0 (m 0, h 0, b 0): load Q_frag: reads Q [stage 0] before its copy has arrived: a wait is missing"},
};

static void test_breakages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof breakage / sizeof *breakage; i++) {
        Compilation *c = compile(breakage[i].spec, breakage[i].schedule);
        breakage[i].edit(c->fn.kernel);
        expect(c, &shape40, breakage[i].message);
        ag_compilation_free(c);
    }
}

/* What looks like a breakage and is none. */
static void test_harmless(void **state) {
    (void)state;
    static void (*const edit[])(Kernel *) = {sync_copy, stage_over_v};
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        Compilation *c = compile(CAUSAL, PLAIN);
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

static void check_result(const Compilation *c, const Case *shape) {
    CaseData d;
    Buf message = {0};
    double o[2 * 6 * 65 * 16], lse[2 * 6 * 65], naive_o[2 * 6 * 65 * 16], naive_lse[2 * 6 * 65];
    assert_true(ag_check_data(&d, shape, c->fn.spec, 1));
    ag_check_poison(&d, c->fn.spec);
    if (!ag_simulate(c->fn.kernel, &d.call, &message)) fail_msg("%s", message.s);
    assert_true(ag_reference(c->fn.spec, &d.call, o, lse) && ag_naive(c->fn.spec, &d.call, naive_o, naive_lse));
    Comparison r = ag_compare(c->fn.spec, &d.call, o, lse, naive_o, naive_lse);
    assert_string_equal(r.text, "");
    assert_true(r.ok);
    assert_true(ag_check_surroundings(&d));
    ag_buf_free(&message);
    ag_check_data_free(&d);
}

static void test_compiled(void **state) {
    (void)state;
    static const char *const spec[] = {CAUSAL, DENSE, CUT};
    static const char *const schedule[] = {PLAIN, DOUBLE, SCHEDULE("regs", "2", "1", "direct", "each", "peeled", "forward"),
                                           SCHEDULE("smem", "1", "3", "smem", "each", "flagged", "reverse"),
                                           SCHEDULE("smem", "4", "2", "smem", "together", "peeled", "reverse")};
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
    Compilation *c = compile(CAUSAL, PLAIN);
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
