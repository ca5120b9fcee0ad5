/* hand.h: kernels made and edited by hand, for tests of the simulator. */
#ifndef HAND_H
#define HAND_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"
#include "compile.h"

/* A small kernel: 32 queries by 16 keys, D 16. */
#define SCHEDULE(q_operand, k_stages, v_stages, store, acquire, form, direction)                                                                     \
    "schema: attngen.schedule/1\nname: small\ntarget: {arch: [sm_80]}\napplies_to: {head_dim: {min: 1, max: 64}}\n"                                  \
    "tile: {m: 32, n: 16}\nmma: {family: mma_sync, q_operand: " q_operand "}\nroles: {warps: 2}\n"                                                   \
    "staging:\n  k: {stages: " k_stages "}\n  v: {stages: " v_stages "}\n  o: {store: " store "}\n"                                                  \
    "pipeline: {acquire: " acquire "}\nloop: {form: " form ", direction: " direction                                                                 \
    "}\ngrid: {order: [m, h, b], longest_first: false, ctas_per_sm: 1}\n"
static inline attngen_source source(const char *name, const char *text) { return (attngen_source){name, text, strlen(text)}; }

/* Runs the kernel on random tensors of the case; "" or the message. */
static inline char *simulate(const Compilation *c, const Case *shape) {
    CaseData d;
    Buf message = {0};
    assert_true(ag_check_data(&d, shape, c->fn.spec, 1));
    ag_check_poison(&d, c->fn.spec);
    bool ok = ag_simulate(c->fn.kernel, &d.call, &message);
    assert_int_equal(ok, message.n == 0);
    ag_check_data_free(&d);
    return message.s ? message.s : calloc(1, 1);
}

static inline void expect(const Compilation *c, const Case *shape, const char *message) {
    char *got = simulate(c, shape);
    assert_string_equal(got, message);
    free(got);
}

/* ... and its results are right. */
static inline void check_result(const Compilation *c, const Case *shape) {
    CaseData d;
    Buf message = {0};
    double o[2 * 6 * 65 * 16], lse[2 * 6 * 65], naive_o[2 * 6 * 65 * 16], naive_lse[2 * 6 * 65];
    assert_true(ag_check_data(&d, shape, c->fn.spec, 1));
    ag_check_poison(&d, c->fn.spec);
    if (!ag_simulate(c->fn.kernel, &d.call, &message)) fail_msg("%s", message.s);
    assert_true(ag_reference(c->fn.spec, &d.call, o, lse) && ag_naive(c->fn.spec, &d.call, naive_o, naive_lse));
    Comparison r = ag_compare(c->fn.spec, &d.call, (ErrorBound){.naive = 2, .half_ulps = 1, .lse = 1e-4}, o, lse, naive_o);
    assert_string_equal(r.text, "");
    assert_true(r.ok);
    assert_true(ag_check_surroundings(&d));
    ag_buf_free(&message);
    ag_check_data_free(&d);
}

/* ---- building by hand */

#define SCALE (0.25 * 1.4426950408889634) /* of scores at D 16, for exp2 */

typedef struct Hand {
    Kernel *k;
    Block *at; /* where instructions go */
    Span span; /* of those made now */
    int m;     /* query rows of a block */
} Hand;

static inline int val_named(const Kernel *k, const char *name) {
    for (int v = 0; v < k->nval; v++)
        if (ag_str_is(k->val[v].name, name)) return v;
    fail_msg("no value %s", name);
    return -1;
}

static inline Ref use(Hand *h, const char *name) { return ag_kval(h->k, val_named(h->k, name)); }
static inline Ref num(Hand *h, int64_t v) { return ag_node_int(&h->k->nodes, v); }
static inline Ref real(Hand *h, double v) { return ag_node_float(&h->k->nodes, v); }
static inline Ref op(Hand *h, Op o, Ref a, Ref b) { return ag_node_op(&h->k->nodes, o, a, b, 0, h->span); }
static inline Ref size(Hand *h, Size s) { return ag_node_leaf(&h->k->nodes, OP_SIZE, T_INT, (int)s, h->span); }
static inline Ref axis(Hand *h, Axis x) { return ag_node_leaf(&h->k->nodes, OP_AXIS, T_INT, (int)x, h->span); }

static inline Ins *put(Hand *h, TileOp o, const char *dst) {
    Ins *i = ag_ins(h->k, o, dst ? val_named(h->k, dst) : -1);
    i->span = h->span;
    ag_block_append(h->at, i);
    return i;
}
static inline void let(Hand *h, const char *name, Ref e) {
    bool there = false;
    for (int v = 0; v < h->k->nval; v++) there |= ag_str_is(h->k->val[v].name, name);
    if (!there) ag_val_scalar(h->k, name, T_INT); /* each role sets its own */
    put(h, TI_LET, name)->e[0] = e;
}
static inline void add_val(Hand *h, Val v) {
    v.swizzle = v.over = v.reference = v.carry = -1;
    if (v.space != SPACE_SHARED) v.offset = v.bytes = -1;
    ag_val(h->k, v);
}
static inline Ins *map(Hand *h, const char *dst, Ref e) {
    Ins *i = put(h, TI_MAP, dst);
    i->e[0] = e;
    i->e[1] = use(h, "q0");
    return i;
}
static inline Ins *copy(Hand *h, const char *dst, int tensor, Ref row0, const char *head) {
    Ins *i = put(h, TI_COPY, dst);
    i->a = tensor;
    i->async = true;
    i->e[0] = num(h, 0);
    i->e[1] = row0;
    i->e[2] = size(h, h->k->tensor[tensor].rows);
    i->e[3] = use(h, "b");
    i->e[4] = use(h, head);
    return i;
}
static inline Ins *mma(Hand *h, const char *dst, const char *a, const char *b, bool scores) {
    Ins *i = put(h, TI_MMA, dst);
    i->a = val_named(h->k, a);
    i->b = val_named(h->k, b);
    i->e[0] = i->e[1] = num(h, 0);
    i->trans = i->zero = scores;
    return i;
}
static inline void reduce(Hand *h, const char *dst, Op o, const char *with) {
    Ins *i = put(h, TI_REDUCE, dst);
    i->reduce = o;
    i->a = val_named(h->k, "S");
    i->b = val_named(h->k, with);
}
static inline void softmax_step(Hand *h) {
    reduce(h, "mx_new", OP_RMAX, "mx");
    map(h, "r0", ag_node_op(&h->k->nodes, OP_FINITE, op(h, OP_MUL, use(h, "mx_new"), real(h, SCALE)), 0, 0, h->span));
    map(h, "rescale", ag_node_op(&h->k->nodes, OP_EXP2, op(h, OP_SUB, op(h, OP_MUL, use(h, "mx"), real(h, SCALE)), use(h, "r0")), 0, 0, h->span));
    map(h, "den", op(h, OP_MUL, use(h, "den"), use(h, "rescale")));
    map(h, "S", ag_node_op(&h->k->nodes, OP_EXP2, op(h, OP_SUB, op(h, OP_MUL, use(h, "S"), real(h, SCALE)), use(h, "r0")), 0, 0, h->span));
    reduce(h, "den", OP_RSUM, "den");
}
/* What writes the operands of the second product. */
static inline void rescale_step(Hand *h) {
    map(h, "acc", op(h, OP_MUL, use(h, "acc"), use(h, "rescale")));
    map(h, "P", use(h, "S"));
}
static inline void decode_block(Hand *h) {
    Kernel *k = h->k;
    Ref tiles = op(h, OP_CEILDIV, size(h, SZ_SQ), num(h, h->m)), block = ag_node_leaf(&k->nodes, OP_BLOCK, T_INT, 0, h->span);
    k->blocks = op(h, OP_MUL, op(h, OP_MUL, tiles, size(h, SZ_HQ)), size(h, SZ_B));
    let(h, "m", op(h, OP_MOD, block, tiles));
    let(h, "h", op(h, OP_MOD, op(h, OP_FLOORDIV, block, tiles), size(h, SZ_HQ)));
    let(h, "b", op(h, OP_FLOORDIV, op(h, OP_FLOORDIV, block, tiles), size(h, SZ_HQ)));
    let(h, "g", op(h, OP_FLOORDIV, use(h, "h"), op(h, OP_FLOORDIV, size(h, SZ_HQ), size(h, SZ_HKV))));
    let(h, "row0", op(h, OP_MUL, use(h, "m"), num(h, h->m)));
    let(h, "q0", op(h, OP_ADD, use(h, "row0"), size(h, SZ_OFF)));
}
static inline void bound_keys(Hand *h, bool causal) {
    Ref last = op(h, OP_ADD, op(h, OP_MIN, op(h, OP_ADD, use(h, "row0"), num(h, h->m)), size(h, SZ_SQ)), size(h, SZ_OFF)), sk = size(h, SZ_SK);
    Ref hi = causal ? op(h, OP_MIN, last, sk) : sk, clear = causal ? op(h, OP_MIN, op(h, OP_ADD, use(h, "q0"), num(h, 1)), sk) : sk;
    let(h, "j_lo", num(h, 0));
    let(h, "j_hi", op(h, OP_MAX, op(h, OP_CEILDIV, hi, num(h, 16)), use(h, "j_lo")));
    let(h, "j_plain_hi", op(h, OP_MAX, op(h, OP_MIN, op(h, OP_FLOORDIV, clear, num(h, 16)), use(h, "j_hi")), use(h, "j_lo")));
}
static inline void store(Hand *h, TileOp o, const char *a, int tensor) {
    Ins *i = put(h, o, NULL);
    i->a = val_named(h->k, a);
    i->n = tensor;
    i->e[0] = use(h, "row0");
    i->e[1] = size(h, SZ_SQ);
    i->e[2] = use(h, "b");
    i->e[3] = use(h, "h");
    if (o == TI_STORE) i->b = val_named(h->k, "O");
}
static inline void outputs(Hand *h) {
    put(h, TI_TOTAL, "den_total")->a = val_named(h->k, "den");
    map(h, "r1",
        ag_node_op(&h->k->nodes, OP_SELECT, op(h, OP_GT, use(h, "den_total"), real(h, 0)), op(h, OP_DIV, real(h, 1), use(h, "den_total")), real(h, 0),
                   h->span));
    map(h, "acc", op(h, OP_MUL, use(h, "acc"), use(h, "r1")));
    store(h, TI_STORE, "acc", TEN_O);
    Ref log2_den = ag_node_op(&h->k->nodes, OP_LOG2, use(h, "den_total"), 0, 0, h->span);
    map(h, "lse", op(h, OP_MUL, op(h, OP_ADD, op(h, OP_MUL, use(h, "mx"), real(h, SCALE)), log2_den), real(h, 0.6931471805599453)));
    store(h, TI_STORE_ROW, "lse", TEN_LSE);
}
static inline void describe_tensors(Kernel *k) {
    static const char *const name[TEN_COUNT] = {"q", "k", "v", "o", "lse", "max", "mean_weight"};
    for (int t = 0; t < TEN_COUNT; t++) {
        bool keys = t == TEN_K || t == TEN_V;
        k->tensor[t] = (KernelTensor){.name = name[t],
                                      .type = t >= TEN_LSE ? DT_F32 : DT_BF16,
                                      .rank = t >= TEN_LSE ? 3 : 4,
                                      .cols = t >= TEN_LSE ? 0 : 16,
                                      .rows = keys ? SZ_SK : SZ_SQ,
                                      .heads = keys ? SZ_HKV : SZ_HQ,
                                      .output = t == TEN_O || t == TEN_LSE,
                                      .optional = t == TEN_LSE,
                                      .values = t == TEN_V,
                                      .used = t <= TEN_LSE};
    }
}

/* ---- editing */

static inline bool is(const Kernel *k, const Ins *i, TileOp op, const char *name) {
    if (i->op != op) return false;
    if (!name) return true;
    bool store = op == TI_STORE || op == TI_STORE_ROW, bar = op == TI_EXPECT || op == TI_WAIT_BAR || op == TI_ARRIVE;
    if (bar) return strcmp(k->barrier[i->n].name, name) == 0;
    return store ? strcmp(k->tensor[i->n].name, name) == 0 : ag_str_is(k->val[i->dst].name, name);
}

/* The nth (from 0) such instruction in program order, with the block that holds it. */
static inline Ins *find_in(const Kernel *k, Block *b, TileOp op, const char *name, int *n, Block **where) {
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

/* In the roles in order. */
static inline Ins *find(Kernel *k, TileOp op, const char *name, int n, Block **where) {
    Block *ignore;
    Ins *i = NULL;
    for (int r = 0; r < k->nrole && !i; r++) i = find_in(k, &k->role[r].body, op, name, &n, where ? where : &ignore);
    if (!i) fail_msg("no %s %s", ag_tile_op_name[op], name ? name : "");
    return i;
}

static inline void drop(Kernel *k, TileOp op, const char *name, int n) {
    Block *b;
    Ins *i = find(k, op, name, n, &b);
    ag_block_remove(b, i);
}

static inline void drop_all(Kernel *k, TileOp op, const char *name) {
    for (;;) {
        Block *b;
        int n = 0;
        Ins *i = find_in(k, &k->role[0].body, op, name, &n, &b);
        if (!i) return;
        ag_block_remove(b, i);
    }
}

static inline void twice(Kernel *k, TileOp op, const char *name, int n) {
    Block *b;
    Ins *i = find(k, op, name, n, &b);
    ag_block_insert_after(b, i, ag_ins_clone(k, i));
}

static inline void shift(Kernel *k, Ref *e, int64_t by) { *e = ag_node_op(&k->nodes, OP_ADD, *e, ag_node_int(&k->nodes, by), 0, (Span){0}); }

typedef struct Swap {
    Kernel *k;
    int from, to;
} Swap;
static inline Ref swap_val(void *payload, Ref r) {
    const Swap *s = payload;
    const Node *n = &s->k->nodes.n[r];
    return n->op == OP_VAL && n->index == s->from ? ag_kval(s->k, s->to) : 0;
}
static inline void replace(Kernel *k, Ref *e, const char *from, const char *to) {
    Swap s = {k, val_named(k, from), val_named(k, to)};
    *e = ag_node_rebuild(&k->nodes, &k->nodes, *e, swap_val, &s);
}

#endif
