/* pass_split.c: separates steps that need the guard (mask and end of the keys) from those that do not.
 *
 * The key loop over tiles [lo, hi) becomes, in the loop's direction,
 *   loop.form peeled   a loop of guarded steps over [plain_hi, hi), one of plain steps over [plain_lo, plain_hi), and one of guarded steps over [lo, plain_lo)
 *                      if the mask has a lower end
 *   loop.form flagged  one loop; the guarded part of a step stands behind a condition that is the same for the whole block
 * In a plain step the guard is true: it is replaced by that constant, and what this makes an identity goes away. */
#include <assert.h>

#include "compile.h"

typedef struct Split {
    Kernel *k;
    Block *body; /* of the role */
    Ins *loop;
} Split;

static Ref op2(Kernel *k, Op op, Ref a, Ref b) { return ag_node_op(&k->nodes, op, a, b, 0, (Span){0}); }

static Ref let_before(Split *s, const char *name, Ref e, const char *note) {
    int v = ag_val_scalar(s->k, name, T_INT);
    s->k->val[v].nonneg = ag_nonneg(s->k, e);
    Ins *i = ag_ins(s->k, TI_LET, v);
    i->e[0] = e;
    i->note = note;
    ag_block_insert_before(s->body, s->loop, i);
    return ag_kval(s->k, v);
}

/* ---- the guard replaced by true */
static Ref guard_is_true(void *payload, Ref r) {
    Kernel *k = payload;
    return r == k->guard ? ag_node_bool(&k->nodes, true) : 0;
}
static Ref unguarded(Kernel *k, Ref e) { return ag_node_rebuild(&k->nodes, &k->nodes, e, guard_is_true, k); }

static bool is_identity(const Kernel *k, const Ins *i) {
    const Node *n = &k->nodes.n[i->e[0]];
    return i->op == TI_MAP && n->op == OP_VAL && n->index == i->dst;
}

static void make_plain(Kernel *k, Block *b) {
    for (Ins *i = b->first, *next; i; i = next) {
        next = i->next;
        if (i->op == TI_MAP) {
            Ref e = unguarded(k, i->e[0]);
            if (e != i->e[0]) i->note = NULL;
            i->e[0] = e;
        }
        if (is_identity(k, i)) ag_block_remove(b, i);
        make_plain(k, &i->body);
    }
}

/* dst = select(guard, x, c)  ->  dst = x;  if (masked) dst = select(guard, dst, c)      and any other guarded map stays as it is */
void ag_flag_guard(Kernel *k, Block *b, Ref masked) {
    for (Ins *i = b->first, *next; i; i = next) {
        next = i->next;
        const Node *n = &k->nodes.n[i->e[0]];
        if (i->op != TI_MAP || n->op != OP_SELECT || n->arg[0] != k->guard) continue;
        Ref hidden = n->arg[2], x = n->arg[1];
        Ins *flag = ag_ins(k, TI_IF, -1), *map = ag_ins_clone(k, i);
        map->e[0] = ag_node_op(&k->nodes, OP_SELECT, k->guard, ag_kval(k, i->dst), hidden, n->span);
        map->note = NULL;
        flag->e[0] = masked;
        flag->note = ag_node_is_neg_inf(&k->nodes, hidden) ? "hidden keys get -inf" : "hidden keys get 0";
        ag_block_append(&flag->body, map);
        ag_block_insert_after(b, i, flag);
        i->e[0] = x;
        i->note = NULL;
        if (is_identity(k, i)) ag_block_remove(b, i);
    }
}

/* ---- bounds */

/* The first step whose tile is `tile` or a later one. */
static Ref step_of(Kernel *k, Ref tile) { return k->gap ? op2(k, OP_MIN, tile, op2(k, OP_MAX, op2(k, OP_SUB, tile, k->gap), k->gap_at)) : tile; }

static void plain_tiles(Split *s, int tile_n) {
    Kernel *k = s->k;
    if (k->tiles) { /* the walk ends with them */
        Ref n = ag_tile_head(k, k->tile_row, MAP_PLAIN);
        bool down = s->loop->n < 0;
        k->plain_lo = down ? k->lo : let_before(s, "j_plain_lo", op2(k, OP_SUB, k->hi, n), "those from j_plain_lo on need no mask");
        k->plain_hi = down ? let_before(s, "j_plain_hi", n, "those below j_plain_hi need no mask") : k->hi;
        k->val[k->nodes.n[down ? k->plain_hi : k->plain_lo].index].nonneg = true;
        return;
    }
    Ref bn = ag_node_int(&k->nodes, tile_n), zero = ag_node_int(&k->nodes, 0), hi = ag_node_leaf(&k->nodes, OP_SIZE, T_INT, SZ_SK, (Span){0});
    k->plain_lo = k->lo;
    if (k->clear_lo) {
        Ref up = op2(k, OP_CEILDIV, op2(k, OP_MAX, k->clear_lo, zero), bn);
        if (k->gap) up = let_before(s, "plain_from", up, NULL);
        k->plain_lo = let_before(s, "j_plain_lo", op2(k, OP_MIN, op2(k, OP_MAX, step_of(k, up), k->lo), k->hi), NULL);
    }
    if (k->clear_hi) hi = op2(k, OP_MAX, op2(k, OP_MIN, k->clear_hi, hi), zero);
    Ref down = op2(k, OP_FLOORDIV, hi, bn);
    if (k->gap) down = let_before(s, "plain_to", down, NULL);
    k->plain_hi = let_before(s, "j_plain_hi", op2(k, OP_MAX, op2(k, OP_MIN, step_of(k, down), k->hi), k->plain_lo), NULL);
    const char *what = k->gap ? "steps" : "tiles", *from = k->plain_lo == k->lo ? "j_lo" : "j_plain_lo";
    s->loop->prev->note = ag_fmt(k->arena, "%s %s .. j_plain_hi need no mask", what, from).s;
}

static Ins *loop_over(Split *s, Ref lo, Ref hi, const char *note) {
    Ins *l = ag_ins_clone(s->k, s->loop);
    bool down = l->n < 0;
    l->e[0] = down ? hi : lo;
    l->e[1] = down ? lo : hi;
    l->note = note;
    return l;
}

static void peel(Split *s) {
    Kernel *k = s->k;
    const char *masked = "key tiles that need the mask";
    Ins *part[3] = {k->plain_hi == k->hi ? NULL : loop_over(s, k->plain_hi, k->hi, masked),
                    loop_over(s, k->plain_lo, k->plain_hi, "key tiles that need no mask"),
                    k->plain_lo == k->lo ? NULL : loop_over(s, k->lo, k->plain_lo, k->tiles ? masked : "key tiles at the lower end of the mask")};
    make_plain(k, &part[1]->body);
    bool down = s->loop->n < 0;
    for (int i = 0; i < 3; i++) {
        Ins *l = part[down ? i : 2 - i];
        if (l) ag_block_insert_before(s->body, s->loop, l);
    }
    ag_block_remove(s->body, s->loop);
}

static void flag(Split *s) {
    Kernel *k = s->k;
    Ref j = ag_kval(k, k->key_loop), masked = op2(k, OP_GE, j, k->plain_hi);
    if (k->plain_lo != k->lo) masked = op2(k, OP_OR, masked, op2(k, OP_LT, j, k->plain_lo));
    ag_flag_guard(k, &s->loop->body, masked);
}

/* Positions that a map's expression does not ask for any more: what they are made of may be needed nowhere else, and nvcc warns of that. */
static void drop_positions(const Kernel *k, Block *b) {
    static const Axis of[] = {[1] = AX_Q, [2] = AX_K, [3] = AX_H};
    for (Ins *i = b->first; i; i = i->next) {
        drop_positions(k, &i->body);
        for (int e = 1; e < LEN(of) && i->op == TI_MAP; e++)
            if (i->e[e] && !ag_expr_uses(k, i->e[0], OP_AXIS, (int)of[e])) i->e[e] = 0;
    }
}

/* Tells masked from plain steps        needs tiled   makes split */
void ag_pass_split(Fn *fn) {
    Kernel *k = fn->kernel;
    if (k->kind == KERNEL_GATHER) return; /* tile has told them apart: which step is masked depends on the queries at hand */
    Split s = {.k = k, .body = &k->role[0].body};
    for (Ins *i = s.body->first; i; i = i->next)
        if (i->op == TI_LOOP && i->dst == k->key_loop) s.loop = i;
    assert(s.loop);
    if (!k->never_clear) plain_tiles(&s, (int)fn->sched->f[F_TILE_N].v);
    if (!k->never_clear && fn->sched->f[F_LOOP_FORM].v == 0) peel(&s);
    if (!k->never_clear && fn->sched->f[F_LOOP_FORM].v == 1) flag(&s);
    ag_share_elements(fn);
    drop_positions(k, &k->role[0].body);
    ag_remove_dead_lets(k, &k->role[0].body);
}
