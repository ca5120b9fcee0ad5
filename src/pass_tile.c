/* pass_tile.c: Math IR -> Tile IR.
 *
 * Binds the axes: b, h and tiles of q to the blocks of the grid, tiles of k to a loop, d to fragments and shared tiles.  The result is synchronous and
 * single-stage: one loop over all needed key tiles, every step guarded by the mask and the end of the keys.
 *
 * What a step computes follows from the stream's carries alone:
 *   scores    a contraction over d of a tensor with q and one with k: an mma from shared tiles
 *   maxima    body materialised in a fragment (hidden keys: -inf), combined with the old maximum into a new one
 *   factors   row values from old and new maxima
 *   sums      old value times factor; body materialised; row sums, or an mma with the tile of the tensor that has k and d
 * Values that vary with fewer axes than their use are computed once per block, or once per row (Node.axes, from hoist). */
#include <assert.h>
#include <math.h>

#include "program.h"
#include "tiler.h"

enum { LAZY_LOG2 = 8 };

static int round_up(int x, int to) { return (x + to - 1) / to * to; }

/* ---- builders */

Ins *ag_tiler_add(Tiler *t, Block *to, TileOp op, int dst, const char *note) {
    Ins *i = ag_ins(t->k, op, dst);
    i->note = note;
    ag_block_append(to, i);
    return i;
}
int ag_tiler_let(Tiler *t, Block *to, const char *name, Ref e, const char *note) { return ag_let(t->k, to, name, e, note); }
static int frag(Tiler *t, const char *name, int cols, DType type, Layout layout) {
    return ag_val(t->k, (Val){.name = ag_str(name),
                              .space = SPACE_FRAG,
                              .type = type,
                              .rows = (int)tile_field(t->k, F_TILE_M),
                              .cols = cols,
                              .layout = layout,
                              .over = -1,
                              .reference = -1,
                              .carry = -1});
}
const char *ag_tiler_unused_name(Tiler *t, const char *name) {
    const char *now = name;
    for (int i = 0, n = 2; i < t->k->nval; i++)
        if (ag_str_is(t->k->val[i].name, now)) now = ag_fmt(t->k->arena, "%s%d", name, n++).s, i = -1;
    return now;
}
int ag_tiler_row(Tiler *t, Str name) {
    return ag_val(t->k, (Val){.name = name,
                              .space = SPACE_ROW,
                              .type = DT_F32,
                              .rows = (int)tile_field(t->k, F_TILE_M),
                              .cols = 1,
                              .over = -1,
                              .reference = -1,
                              .carry = -1});
}
/* Where the elements of map i are, if its expression asks. */
void ag_tiler_positions(Tiler *t, Ins *i) {
    if (ag_expr_uses(t->k, i->e[0], OP_AXIS, AX_Q)) i->e[1] = val(t, t->q0);
    if (ag_expr_uses(t->k, i->e[0], OP_AXIS, AX_H)) i->e[3] = val(t, t->h);
    if (ag_expr_uses(t->k, i->e[0], OP_AXIS, AX_K)) i->e[2] = t->first ? t->first : ag_tiler_first_key(t, WALK_OTHER);
}

/* ---- expressions */
Level ag_tiler_level(const Tiler *t, const Node *n) {
    int rows = 1 << AX_Q | (t->k->pack > 1 ? 1 << AX_H : 0);
    if (n->axes & (1 << AX_K | 1 << AX_D)) return LEVEL_ELEM;
    return n->axes & rows ? LEVEL_ROW : LEVEL_ONCE;
}

/* Is the value of a row the same in all steps?  Then it is computed before them. */
static bool steady(const Tiler *t, Ref r) { return t->here == t->step && !t->gather && t->moves && !t->moves[r]; }

/* Computes math node r once per block or per row, ahead of its use, and remembers where. */
static int materialise_low(Tiler *t, Ref r, Level level, const char *name) {
    if (t->held[r] >= 0) return t->held[r];
    Ref e = ag_tiler_expr(t, r, level);
    if (level == LEVEL_ONCE) {
        if (!name) name = ag_fmt(t->k->arena, "c%d", t->nonce++).s;
        return t->held[r] = ag_tiler_let(t, t->pre, name, e, NULL);
    }
    int v = ag_tiler_row(t, name ? ag_str(name) : ag_fmt(t->k->arena, "r%d", t->nrow++));
    Ins *i = ag_tiler_add(t, steady(t, r) ? t->pre : t->here, TI_MAP, v, NULL);
    i->e[0] = e;
    i->span = t->m->nodes.n[r].span;
    ag_tiler_positions(t, i);
    return t->held[r] = v;
}

/* An element of a captured tensor, by the kernel's own number of the tensor. */
static Ref element(Tiler *t, Ref r) {
    Node n = t->m->nodes.n[r];
    const Input *in = &t->m->spec->input[n.index - TEN_COUNT];
    for (int i = 0; i < in->rank && t->pooled; i++)
        if (in->dim[i].kind == DIM_AXIS && in->dim[i].axis == AX_K) {
            ag_unsupported(t->d, n.span,
                           "'%.*s' has a dim k, and the keys of this branch are pooled: this version of attngen does not read one there",
                           STRF(in->name));
            ag_stop(t->d);
        }
    n.index = ag_output_input(t->k, t->m->spec, n.index - TEN_COUNT, n.span);
    for (int i = 0; i < n.nsub; i++) n.sub[i] = ag_tiler_expr(t, n.sub[i], t->level);
    n.axes = 0;
    return ag_node_intern(&t->k->nodes, n);
}

static Ref swap_node(void *payload, Ref r) {
    Tiler *t = payload;
    const Node *n = &t->m->nodes.n[r];
    if (t->held[r] >= 0) return val(t, t->held[r]);
    switch (n->op) {
    case OP_CARRY: return val(t, n->old ? t->kept[n->index] : t->fresh[n->index]);
    case OP_AXISMIN: return val(t, t->q0);
    case OP_AXISMAX: return val(t, t->q_last);
    case OP_AXIS:
        if (n->index == AX_B) return val(t, t->b);
        if (n->index == AX_H) return t->k->pack > 1 ? 0 : val(t, t->h);
        return n->index == AX_G ? val(t, t->g) : 0;
    case OP_LOAD:
        if (n->index >= TEN_COUNT) break;
        /* fall through */
    case OP_RSUM:
    case OP_RMAX:
        ag_unsupported(t->d, n->span, "this needs `%s` of single elements, which no kernel of this version loads", ag_op[n->op].name);
        ag_stop(t->d);
    default: break;
    }
    Level own = ag_tiler_level(t, n);
    if (n->op == OP_LOAD && own == LEVEL_ONCE) /* once for all that ask, bounds of the keys among them */
        return val(t, t->held[r] = ag_tiler_let(t, t->pre, ag_fmt(t->k->arena, "c%d", t->nonce++).s, element(t, r), NULL));
    /* In a register, as an instruction takes one operand from the arguments or one constant: ptxas spills scores for x * scale + 1 otherwise. */
    bool argument = n->op == OP_PARAM && t->m->spec->normalize != NORMALIZE_SOFTMAX;
    bool apart = own == LEVEL_ONCE && t->level == LEVEL_ONCE && r != t->root && t->apart[r];
    bool worth = apart || ((ag_op[n->op].arity > 0 || n->op == OP_LOAD || argument) && own < t->level && (own == LEVEL_ONCE || n->type == T_FLOAT));
    if (worth) return val(t, materialise_low(t, r, own, NULL));
    return n->op == OP_LOAD ? element(t, r) : 0;
}

/* e with `to` in place of every `from`.  Operands have smaller indices, so each node is done once however often it is used. */
static Ref replace_op(Nodes *p, Ref e, Op from, Op to) {
    bool *wanted = NEWN(p->arena, bool, (size_t)e + 1);
    Ref *now = NEWN(p->arena, Ref, (size_t)e + 1);
    wanted[e] = true;
    for (Ref x = e; x > 0; x--)
        for (int i = 0; wanted[x] && i < ag_op[p->n[x].op].arity; i++) wanted[p->n[x].arg[i]] = true;
    for (Ref x = 1; x <= e; x++) {
        if (!wanted[x]) continue;
        Node n = p->n[x];
        for (int i = 0; i < ag_op[n.op].arity; i++) n.arg[i] = now[n.arg[i]];
        if (n.op == from) n.op = to;
        now[x] = ag_node_intern(p, n);
    }
    return now[e];
}

Ref ag_tiler_expr(Tiler *t, Ref r, Level level) {
    Level outer = t->level;
    Ref outer_root = t->root;
    t->level = level;
    t->root = r;
    /* the root itself is what is being computed: only what is below it may be taken from elsewhere, unless it is held */
    Ref e = ag_node_rebuild(&t->k->nodes, &t->m->nodes, r, swap_node, t);
    t->level = outer;
    t->root = outer_root;
    return t->coarse_tanh ? replace_op(&t->k->nodes, e, OP_TANH, OP_TANHA) : e;
}

/* Does computing `root` read what holds `node` now?  Stops at nodes that are held. */
static bool reads(const Tiler *t, Ref root, Ref node, uint8_t *seen) {
    if (root == node) return true;
    if (!root || seen[root] || t->held[root] >= 0) return false;
    seen[root] = 1;
    const Node *n = &t->m->nodes.n[root];
    for (int i = 0; i < 3; i++)
        if (reads(t, n->arg[i], node, seen)) return true;
    for (int i = 0; i < n->nsub; i++)
        if (reads(t, n->sub[i], node, seen)) return true;
    return false;
}
static bool is_fed(const Tiler *t, int v) {
    bool fed = false;
    for (int i = 0; i < t->nfed && tile_field(t->k, F_MMA_FAMILY) == FAMILY_WGMMA; i++) fed |= t->fed[i] == v;
    return fed;
}

/* The math node whose fragment r may overwrite: one that r reads and nothing later does; 0 if there is none. */
static Ref overwritable(Tiler *t, Ref r) {
    int n = t->m->nodes.len;
    for (Ref x = 1; x < n; x++) {
        if (t->held[x] < 0 || t->k->val[t->held[x]].space != SPACE_FRAG || is_fed(t, t->held[x])) continue;
        bool later = false, now = reads(t, r, x, NEWN(t->k->arena, uint8_t, (size_t)n));
        int held = t->held[r];
        t->held[r] = 0; /* later readers of r take r itself */
        for (int i = 0; i < t->ntodo && !later; i++) later = t->todo[i] != r && reads(t, t->todo[i], x, NEWN(t->k->arena, uint8_t, (size_t)n));
        t->held[r] = held;
        if (now && !later) return x;
    }
    return 0;
}

/* Puts element-level node r, computed as e, into a fragment and remembers it there; one that a score is alone may be held as less, a scalar or a row. */
static int materialise_elem(Tiler *t, Ref r, Ref e, const char *name, const char *note) {
    bool there = t->held[r] >= 0 && t->k->val[t->held[r]].space == SPACE_FRAG;
    Ref old = there ? r : overwritable(t, r);
    int v = old ? t->held[old] : frag(t, ag_tiler_unused_name(t, name), (int)tile_field(t->k, F_TILE_N), DT_F32, LAYOUT_ACC);
    Ins *i = ag_tiler_add(t, t->step, TI_MAP, v, note);
    i->e[0] = e;
    i->span = t->m->nodes.n[r].span;
    ag_tiler_positions(t, i);
    if (old) t->held[old] = -1;
    return t->held[r] = v;
}

/* body of a carry as kernel expression, with hidden keys at the identity of its reduction */
static Ref guarded(Tiler *t, const Carry *c, Ref body) {
    const Node *n = &t->m->nodes.n[body];
    double identity = c->combine == OP_RMAX ? c->init : 0.0;
    if (c->combine == OP_RSUM && ag_zero_where_hidden(t, body)) return ag_tiler_expr(t, body, LEVEL_ELEM);
    bool is_mask = n->op == OP_SELECT && n->arg[0] == t->m->range.mask &&
                   (c->combine == OP_RMAX ? ag_node_is_neg_inf(&t->m->nodes, n->arg[2]) : ag_node_is_float(&t->m->nodes, n->arg[2], 0));
    Ref x = ag_tiler_expr(t, is_mask ? n->arg[1] : body, LEVEL_ELEM);
    return ag_node_op(&t->k->nodes, OP_SELECT, t->k->guard, x, ag_node_float(&t->k->nodes, identity), n->span);
}

/* ---- contractions */
/* The kernel's tensor that a LOAD of whole rows is of; `like`: which of q, k and v an input stands for. */
static int tensor_of(Tiler *t, const Node *load, int like) {
    Kernel *k = t->k;
    if (load->index < TEN_COUNT) return load->index;
    KernelTensor x = k->tensor[like];
    int number = 2;
    x.program = ag_program_input(load->index - TEN_COUNT);
    for (int i = TEN_COUNT; i < k->ntensor; i++) {
        const KernelTensor *y = &k->tensor[i];
        if (y->named || y->rows != x.rows || y->values != x.values) continue;
        if (y->program == x.program) return i;
        number++;
    }
    x.name = ag_fmt(k->arena, "%s%d", x.name, number).s;
    return ag_kernel_tensor(k, x);
}

/* The operand of a product that is whole rows along `axis`. */
static int tensor_with(Tiler *t, const Node *product, Axis axis) {
    for (int i = 0; i < 2; i++) {
        const Node *n = &t->m->nodes.n[product->arg[i]];
        bool rows = n->op == OP_LOAD && n->nsub == 4 && n->axes & 1 << AX_D;
        if (rows && n->axes & 1 << axis) return tensor_of(t, n, axis == AX_Q ? TEN_Q : TEN_K);
    }
    return -1;
}
/* The first row of the step's tile.  By TMA a tensor without rows is read through the map of another's first row, whatever that holds (launch.c): a softmax clears rows that see no key,
 * while with scores for weights 0 times it would be left, so V is then read past that row, where TMA brings zeros. */
static Ref first_row(Tiler *t, int tensor) {
    Ref first = ag_tiler_first_key(t, tensor == TEN_K ? WALK_K : WALK_V);
    if (tensor != TEN_V || t->m->spec->normalize == NORMALIZE_SOFTMAX || tile_field(t->k, F_MMA_FAMILY) != FAMILY_WGMMA) return first;
    return op2(t, OP_MAX, first, op2(t, OP_SUB, num(t, 1), size(t, t->k->tensor[tensor].rows)));
}
static int shared_tile(Tiler *t, int tensor) {
    if (t->shared[tensor] >= 0) return t->shared[tensor];
    KernelTensor *kt = &t->k->tensor[tensor], *x = kt;
    bool keys = kt->rows == SZ_SK;
    char *upper = (char *)ag_fmt(t->k->arena, "%s", x->name).s;
    upper[0] = (char)(upper[0] - 'a' + 'A');
    int v = ag_val_shared(t->k, upper, x->type, (int)tile_field(t->k, keys ? F_TILE_N : F_TILE_M), round_up(kt->cols, 16));
    Ins *i = ag_tiler_add(t, keys ? t->step : t->pre, TI_COPY, v, NULL);
    i->a = tensor;
    i->e[0] = num(t, 0);
    i->e[1] = keys ? first_row(t, tensor) : val(t, t->row0);
    i->e[2] = keys ? size(t, kt->rows) : t->limit;
    i->e[3] = val(t, t->b);
    i->e[4] = val(t, kt->heads == SZ_HQ ? t->h : t->g);
    kt->used = true;
    return t->shared[tensor] = v;
}

/* Emits the mma of every score contraction (sum over d of a q-tensor times a k-tensor) that `r` needs. */
static void contract_scores(Tiler *t, Ref r, uint8_t *seen) {
    if (!r || seen[r] || t->held[r] >= 0) return;
    seen[r] = 1;
    const Node *n = &t->m->nodes.n[r];
    if (n->op == OP_RSUM && n->index == AX_D) {
        const Node *p = &t->m->nodes.n[n->arg[0]];
        int a = p->op == OP_MUL ? tensor_with(t, p, AX_Q) : -1, b = p->op == OP_MUL ? tensor_with(t, p, AX_K) : -1;
        if (a < 0 || b < 0) {
            ag_unsupported(t->d, n->span, "a sum over d must be of a product of one tensor over queries and one over keys");
            ag_stop(t->d);
        }
        bool first = ag_str_is(ag_str(ag_tiler_unused_name(t, "S")), "S");
        int v = frag(t, ag_tiler_unused_name(t, "S"), (int)tile_field(t->k, F_TILE_N), DT_F32, LAYOUT_ACC), sa = shared_tile(t, a),
            sb = shared_tile(t, b);
        Ins *i = ag_tiler_add(t, t->step, TI_MMA, v, first ? "---- scores" : NULL);
        i->a = sa;
        i->b = sb;
        i->e[0] = i->e[1] = num(t, 0);
        i->trans = i->zero = true;
        i->span = n->span;
        t->held[r] = v;
        return;
    }
    for (int i = 0; i < 3; i++) contract_scores(t, n->arg[i], seen);
    for (int i = 0; i < n->nsub; i++) contract_scores(t, n->sub[i], seen);
}

/* A sum body that is (elements) * (tensor over k and d): the elements' node, and the tensor; 0 if it is not. */
static Ref weighted(Tiler *t, Ref body, int *tensor) {
    const Node *n = &t->m->nodes.n[body];
    if (!(n->axes & 1 << AX_D)) return 0;
    if (n->op == OP_LOAD) { /* all weights alike */
        *tensor = tensor_of(t, n, TEN_V);
        return t->one;
    }
    for (int i = 0; i < 2 && n->op == OP_MUL; i++) {
        const Node *x = &t->m->nodes.n[n->arg[i]];
        if (x->op == OP_LOAD && !(t->m->nodes.n[n->arg[1 - i]].axes & 1 << AX_D)) {
            *tensor = tensor_of(t, x, TEN_V);
            return n->arg[1 - i];
        }
    }
    ag_unsupported(t->d, n->span, "a sum over keys must be of weights times one tensor over keys");
    ag_stop(t->d);
}

/* ---- carries */
static void hold_carry(Tiler *t, int index, int v) {
    const Carry *c = &t->s->carry[index];
    Val *x = &t->k->val[v];
    x->carry = index;
    x->reference = c->reference >= 0 ? t->kept[c->reference] : -1;
    x->partial = x->space == SPACE_ROW && c->combine == OP_RSUM;
    t->kept[index] = t->fresh[index] = v;
}

static void init_carries(Tiler *t) {
    for (int i = 0; i < t->s->ncarry; i++) {
        const Carry *c = &t->s->carry[i];
        bool wide = c->axes & 1 << AX_D;
        if (wide && t->gather) continue; /* a step is complete in itself: step_alone */
        int v = wide ? frag(t, c->name.s, round_up(t->m->spec->Dv, 16), DT_F32, LAYOUT_ACC) : ag_tiler_row(t, c->name);
        hold_carry(t, i, v);
        if (t->gather) continue;
        ag_tiler_add(t, t->pre, TI_FILL, v, i == 0 ? "---- carried over the key tiles" : NULL)->e[0] = ag_node_float(&t->k->nodes, c->init);
        if (c->combine == OP_RMAX) t->fresh[i] = ag_tiler_row(t, ag_fmt(t->k->arena, "%.*s_new", STRF(c->name)));
    }
}

static void forget_todo(Tiler *t, Ref body) {
    for (int i = 0; i < t->ntodo; i++)
        if (t->todo[i] == body) {
            t->todo[i] = t->todo[--t->ntodo];
            return;
        }
}

static void step_max(Tiler *t, int index) {
    const Carry *c = &t->s->carry[index];
    Ref e = guarded(t, c, c->body);
    forget_todo(t, c->body);
    int x = materialise_elem(t, c->body, e, "X", "hidden keys get -inf");
    if (ag_tiler_level(t, &t->m->nodes.n[c->body]) != LEVEL_ELEM) t->held[c->body] = -1; /* as a value of the row it is not in the fragment */
    Ins *i =
        ag_tiler_add(t, t->step, TI_REDUCE, t->fresh[index], t->gather ? "---- maxima" : "---- new maxima, and what older sums are worth under them");
    i->a = x;
    i->b = t->gather ? -1 : t->kept[index];
    i->reduce = OP_RMAX;
    i->span = t->m->nodes.n[c->reduce].span;
}

static void step_rescale(Tiler *t, int index) {
    const Carry *c = &t->s->carry[index];
    if (!c->factor) return;
    int f = materialise_low(t, c->factor, LEVEL_ROW, ag_fmt(t->k->arena, c->reference > 0 ? "rescale%d" : "rescale", c->reference).s),
        v = t->kept[index];
    Ins *i = ag_tiler_add(t, t->step, TI_MAP, v, NULL);
    i->e[0] = op2(t, OP_MUL, val(t, v), val(t, f));
    i->span = t->m->nodes.n[c->reduce].span;
    ag_tiler_positions(t, i);
}

/* The new maxima become those that the sums are relative to. */
static void step_move_maxima(Tiler *t) {
    for (int i = 0; i < t->s->ncarry; i++) {
        if (t->fresh[i] == t->kept[i]) continue;
        Ins *x = ag_tiler_add(t, t->step, TI_MAP, t->kept[i], NULL);
        x->e[0] = val(t, t->fresh[i]);
        ag_tiler_positions(t, x);
    }
}

static void drop_rows(Tiler *t) { /* what is held in rows and moves with the carries is not known any more */
    for (int i = 0; i < t->m->nodes.len; i++)
        if (t->held[i] >= 0 && t->moves[i] && t->k->val[t->held[i]].space == SPACE_ROW) t->held[i] = -1;
}

/* What reads carried values. */
static void find_moving(Tiler *t) {
    t->moves = NEWN(t->k->arena, bool, (size_t)t->m->nodes.len);
    for (Ref r = 1; r < t->m->nodes.len; r++) {
        const Node *n = &t->m->nodes.n[r];
        t->moves[r] = n->op == OP_CARRY;
        for (int i = 0; i < 3; i++) t->moves[r] |= t->moves[n->arg[i]];
        for (int i = 0; i < n->nsub; i++) t->moves[r] |= t->moves[n->sub[i]];
    }
}

/* Does r, of a factor, hide that an old maximum is -inf? */
static bool hides_old(const Tiler *t, Ref r) {
    enum { SEEN = 1, UNDER = 2 }; /* a finite() */
    uint8_t *how = NEWN(t->k->arena, uint8_t, (size_t)r + 1);
    how[r] = SEEN;
    for (Ref x = r; x > 0; x--) { /* operands have smaller indices */
        const Node *n = &t->m->nodes.n[x];
        if (n->op == OP_CARRY && n->old && how[x] & UNDER) return true;
        for (int i = 0; i < ag_op[n->op].arity; i++) how[n->arg[i]] |= how[x] && n->op == OP_FINITE ? SEEN | UNDER : how[x];
    }
    return false;
}

/* numerics.rescale lazy: does a factor fall below 2^-8 under the new maxima, or is there one for the first time?  0 if some factor is no power of two. */
static Ref maxima_grew(Tiler *t) {
    Ref any = 0;
    for (int i = 0; i < t->s->ncarry; i++) {
        Ref f = t->s->carry[i].factor;
        if (!f) continue;
        const Node *n = &t->m->nodes.n[f];
        if (n->op != OP_EXP2) return 0;
        Ref grew = op2(t, OP_LT, ag_tiler_expr(t, n->arg[0], LEVEL_ROW), ag_node_float(&t->k->nodes, -LAZY_LOG2));
        if (hides_old(t, n->arg[0]))
            grew = op2(t, OP_OR, grew, op2(t, OP_EQ, val(t, t->kept[t->s->carry[i].reference]), ag_node_float(&t->k->nodes, -INFINITY)));
        any = any && any != grew ? op2(t, OP_OR, any, grew) : grew;
    }
    return any;
}

/* The old maxima stay the reference until a row of the warp has outgrown its own by 2^LAZY_LOG2; weights are below that then, and sums stay finite.  Saves the
 * multiplication of the output fragment in nearly every step.  (The idea is FlashAttention-4's conditional rescaling.) */
static bool step_lazy(Tiler *t) {
    Ref grew = tile_field(t->k, F_RESCALE) == 1 ? maxima_grew(t) : 0;
    if (!grew) return false;
    Ins *any = ag_tiler_add(t, t->step, TI_ANY, -1, "---- where a maximum has outgrown its reference by 2^8, the reference moves");
    any->e[0] = grew;
    ag_tiler_positions(t, any);
    Block *step = t->step;
    t->step = t->here = &any->body;
    for (int i = 0; i < t->s->ncarry; i++) step_rescale(t, i);
    step_move_maxima(t);
    t->step = t->here = step;
    drop_rows(t);
    for (int i = 0; i < t->s->ncarry; i++) t->fresh[i] = t->kept[i];
    return true;
}

static void step_eager(Tiler *t) {
    for (int i = 0; i < t->ntodo; i++) ag_tiler_expr(t, t->todo[i], LEVEL_ELEM); /* for what it computes per row, which the factors can share */
    for (int i = 0; i < t->s->ncarry; i++) step_rescale(t, i);
}

/* What sums that lanes hold in parts are in all. */
static void add_totals(Tiler *t, Block *to, const char *note) {
    for (int i = 0; i < t->s->ncarry; i++) {
        if (!t->k->val[t->kept[i]].partial) continue;
        t->fresh[i] = ag_tiler_row(t, ag_fmt(t->k->arena, "%.*s_total", STRF(t->s->carry[i].name)));
        ag_tiler_add(t, to, TI_TOTAL, t->fresh[i], note)->a = t->kept[i];
        note = NULL;
    }
}

/* Of an output that is a carry's value times a value of the row: that of the row; 0.  A step that is complete in itself multiplies the weights by it, which are fewer than
 * the channels, and does not hold the channels meanwhile: 12 instead of 40 bytes of registers spilled at D 128. */
static Ref share_of_output(const Tiler *t) {
    const Nodes *p = &t->m->nodes;
    for (int i = 0; i < t->m->nout; i++) {
        const Node *n = &p->n[t->m->out[i].value];
        if (t->m->tensor[t->m->out[i].tensor].rank != 4) continue;
        if (n->op == OP_SELECT && ag_node_is_float(p, n->arg[2], 0)) n = &p->n[n->arg[1]];
        for (int a = 0; a < 2 && n->op == OP_MUL; a++)
            if (p->n[n->arg[a]].op == OP_CARRY && ag_tiler_level(t, &p->n[n->arg[1 - a]]) != LEVEL_ELEM) return n->arg[1 - a];
    }
    return 0;
}

/* The weights of a sum with channels as an operand, and the tile that they weigh. */
typedef struct Weighing {
    int operand, tile;
} Weighing;

static Weighing weigh(Tiler *t, int x, int tensor) {
    int share = t->share ? materialise_low(t, t->share, LEVEL_ROW, NULL) : -1;
    assert(t->nfed < LEN(t->fed));
    t->fed[t->nfed++] = x;
    Weighing w = {.operand = frag(t, ag_tiler_unused_name(t, "P"), (int)tile_field(t->k, F_TILE_N), t->m->spec->dtype, LAYOUT_A)};
    Ins *i = ag_tiler_add(t, t->step, TI_MAP, w.operand, "rounded to the storage type");
    i->e[0] = val(t, x);
    if (share >= 0) i->e[0] = op2(t, OP_MUL, i->e[0], val(t, share));
    ag_tiler_positions(t, i);
    w.tile = shared_tile(t, tensor);
    return w;
}

/* The carry's value += what they make of the tile's channels from `col` on. */
static void add_weighted(Tiler *t, int index, Weighing w, int col) {
    Ins *i = ag_tiler_add(t, t->step, TI_MMA, t->kept[index], "---- weighted values");
    i->a = w.operand;
    i->b = w.tile;
    i->col = col;
    i->zero = t->gather;
    i->e[0] = i->e[1] = num(t, 0);
    i->span = t->m->nodes.n[t->s->carry[index].reduce].span;
}

/* Is it a maximum's body as well, as where scores are alike for all keys?  That has -inf at hidden keys, a sum 0. */
static bool is_maximum_of(const Tiler *t, Ref body) {
    for (int i = 0; i < t->s->ncarry; i++)
        if (t->s->carry[i].combine == OP_RMAX && t->s->carry[i].body == body) return true;
    return false;
}

/* The body of a sum in a fragment; *tensor: what its elements weigh, -1. */
static int sum_body(Tiler *t, int index, int *tensor) {
    const Carry *c = &t->s->carry[index];
    Ref wide = weighted(t, c->body, tensor), body = wide ? wide : c->body;
    forget_todo(t, body);
    if (is_maximum_of(t, body)) t->held[body] = -1;
    return t->held[body] >= 0 ? t->held[body] : materialise_elem(t, body, guarded(t, c, body), "E", "---- weights");
}

static void step_sum(Tiler *t, int index) {
    int tensor = -1, x = sum_body(t, index, &tensor);
    if (tensor >= 0) {
        add_weighted(t, index, weigh(t, x, tensor), 0);
        return;
    }
    Ins *i = ag_tiler_add(t, t->step, TI_REDUCE, t->kept[index], NULL);
    i->a = x;
    i->b = t->gather ? -1 : t->kept[index];
    i->reduce = OP_RSUM;
    i->span = t->m->nodes.n[t->s->carry[index].reduce].span;
}

/* After the loop a carry's only value is the kept one, and nothing computed inside a step is known. */
static void end_step(Tiler *t) {
    for (int i = 0; i < t->m->nodes.len; i++)
        if (t->held[i] >= 0 && t->k->val[t->held[i]].space != SPACE_SCALAR) t->held[i] = -1;
    t->here = t->post;
    t->j = -1;
    if (t->gather) return;
    for (int i = 0; i < t->s->ncarry; i++) t->fresh[i] = t->kept[i];
    add_totals(t, t->post, "---- outputs");
}

/* ---- a step */

enum { PART_CHANNELS = 32, LONG_KEYS = 64 };

/* A step that is complete in itself.  Rows are put out before the channels are summed, and with many keys these in parts, so that they need few registers: with blocks of 128
 * keys and 128 channels 32 rows a warp fit then, which spill 80 bytes otherwise (hand-written 4.1 instead of 4.4 ms with 16 rows a warp, docs/performance.md). */
static void step_alone(Tiler *t) {
    int tensor = -1, width = round_up(t->m->spec->Dv, 16), part = tile_field(t->k, F_TILE_N) > LONG_KEYS ? PART_CHANNELS : width;
    t->share = share_of_output(t);
    for (int i = 0; i < t->s->ncarry; i++)
        if (t->s->carry[i].combine == OP_RSUM && !(t->s->carry[i].axes & 1 << AX_D)) step_sum(t, i);
    add_totals(t, t->step, NULL);
    ag_tiler_outputs(t, t->step, false, 0);
    for (int i = 0; i < t->s->ncarry; i++) {
        if (!(t->s->carry[i].axes & 1 << AX_D)) continue;
        int x = sum_body(t, i, &tensor);
        Weighing w = weigh(t, x, tensor);
        for (int col = 0; col < width; col += part) {
            const char *name = col ? ag_fmt(t->k->arena, "%.*s%d", STRF(t->s->carry[i].name), col).s : t->s->carry[i].name.s;
            hold_carry(t, i, frag(t, name, width - col < part ? width - col : part, DT_F32, LAYOUT_ACC));
            add_weighted(t, i, w, col);
            ag_tiler_outputs(t, t->step, true, col);
        }
    }
}

static void build_step(Tiler *t) {
    const Stream *s = t->s;
    int n = t->m->nodes.len, ignore;
    t->todo = NEWN(t->k->arena, Ref, (size_t)s->ncarry);
    for (int i = 0; i < s->ncarry; i++) {
        Ref wide = s->carry[i].combine == OP_RSUM ? weighted(t, s->carry[i].body, &ignore) : 0;
        t->todo[t->ntodo++] = wide ? wide : s->carry[i].body;
    }
    uint8_t *seen = NEWN(t->k->arena, uint8_t, (size_t)n);
    for (int i = 0; i < t->ntodo; i++) contract_scores(t, t->todo[i], seen);
    for (int i = 0; i < s->ncarry; i++)
        if (s->carry[i].combine == OP_RMAX) step_max(t, i);
    if (!t->gather && !step_lazy(t)) step_eager(t);
    if (t->gather) {
        step_alone(t);
        return;
    }
    for (int i = 0; i < s->ncarry; i++)
        if (s->carry[i].combine == OP_RSUM) step_sum(t, i);
    step_move_maxima(t);
}

static void describe_tensors(Kernel *k, const Math *m) {
    for (int i = 0; i < TEN_COUNT; i++) {
        const MathTensor *x = &m->tensor[i];
        k->tensor[i] = (KernelTensor){.name = x->name,
                                      .type = x->type,
                                      .rank = x->rank,
                                      .rows = x->size[2],
                                      .heads = x->size[1],
                                      .output = x->output,
                                      .optional = x->optional,
                                      .values = i == TEN_V};
        KernelTensor *t = &k->tensor[i];
        if (x->rank == 4) t->cols = x->size[3] == SZ_DV ? m->spec->Dv : m->spec->D;
        for (int dim = 0; dim < x->rank; dim++)
            t->extent[dim] = dim == 3 ? ag_node_int(&k->nodes, t->cols) : ag_node_leaf(&k->nodes, OP_SIZE, T_INT, (int)x->size[dim], (Span){0});
        t->program = i;
    }
    k->ntensor = TEN_COUNT;
}

/* Names what decides about rounding. */
static Str numerics_class(const Kernel *k) {
    bool coarse = false;
    for (Ref i = 1; i < k->nodes.len; i++) coarse |= k->nodes.n[i].op == OP_TANHA;
    bool referred = false; /* to a maximum */
    for (int i = 0; i < k->nval; i++) referred |= k->val[i].reference >= 0;
    const char *softmax = k->spec->normalize == NORMALIZE_SUM ? "-sum"
                          : !referred                         ? ""
                          : tile_field(k, F_RESCALE) == 1     ? "-lazy8"
                          : tile_field(k, F_SOFTMAX) == 0     ? ""
                          : k->spec->dtype == DT_F16          ? "-spec14"
                                                              : "-spec40";
    return ag_fmt(k->arena, "f32acc-ex2-n%d%s%s%s", (int)tile_field(k, F_TILE_N), softmax, coarse ? "-tanh11" : "",
                  k->kind == KERNEL_GATHER ? "-parts" : "");
}

/* The loop over key tiles, from the end that the schedule says. */
static void key_loop(Tiler *t, Ins *loop) {
    Kernel *k = t->k;
    loop->dst = k->key_loop = t->j = ag_val_scalar(k, "j", T_INT);
    k->val[t->j].nonneg = true; /* j_lo is */
    bool down = tile_field(k, F_DIRECTION) == 0;
    loop->n = down ? -1 : 1;
    loop->e[0] = down ? k->hi : k->lo;
    loop->e[1] = down ? k->lo : k->hi;
}

/* Math IR -> Tile IR        needs stream, range, axes   makes tiled */
void ag_pass_tile(Fn *fn) {
    const Math *m = fn->math;
    assert(m->nstream == 1);
    Str name = ag_fmt(fn->d->arena, "%.*s_fwd", STRF(fn->spec->name));
    Kernel *k = fn->kernel = ag_kernel_new(fn->d, fn->spec, fn->sched, fn->target, name);
    describe_tensors(k, m);
    k->nrole = 1;
    k->role[0] = (Role){.name = "all", .warps = (int)tile_field(k, F_WARPS)};
    k->threads = 32 * k->role[0].warps;
    k->per_sm = (int)tile_field(k, F_PER_SM);
    k->pack = tile_field(k, F_PACK_GQA) ? fn->spec->group : 1;
    const Branch *listed = fn->branch && fn->branch->blocks.kind != FROM_NONE ? fn->branch : NULL;
    if (listed) k->pack = listed->per_head ? 1 : fn->spec->group;
    k->queries = fn->united ? fn->united : listed && !fn->gather ? ag_listed_queries(listed, k->pack) : (int)tile_field(k, F_TILE_M) / k->pack;
    if (listed && fn->gather) k->kind = KERNEL_GATHER;
    Ref one = ag_node_float(&fn->math->nodes, 1.0);
    Ins *loop = ag_ins(k, TI_LOOP, -1);
    Block post = {0}, tile = {0};
    bool gather = listed && fn->gather;
    Tiler t = {.d = fn->d,
               .k = k,
               .m = m,
               .s = &m->stream[0],
               .pre = &k->role[0].body,
               .step = &loop->body,
               .post = &post,
               .j = -1,
               .one = one,
               .listed = listed,
               .united = fn->united,
               .gather = gather,
               .pooled = fn->pool != NULL,
               .program = fn->program,
               .branch = fn->number,
               .fused = fn->fused,
               .no_lse = fn->no_lse};
    t.held = NEWN(fn->d->arena, int, (size_t)m->nodes.len);
    t.apart = ag_nodes_apart(&m->nodes);
    for (int i = 0; i < m->nodes.len; i++) t.held[i] = -1;
    for (int i = 0; i < KERNEL_TENSORS; i++) t.shared[i] = -1;
    find_moving(&t);
    t.fresh = NEWN(fn->d->arena, int, (size_t)t.s->ncarry);
    t.kept = NEWN(fn->d->arena, int, (size_t)t.s->ncarry);
    t.here = t.step;

    if (gather) {
        ag_tiler_pieces(&t, &k->role[0].body);
        t.pre = &tile;
    } else {
        ag_tiler_block(&t);
        if (listed) ag_tiler_list(&t);
        if (fn->classified && ag_is_classified(fn)) ag_tile_map(k, fn);
        ag_tiler_keys(&t, fn);
    }
    init_carries(&t);
    if (!gather) key_loop(&t, loop);
    ag_tiler_guard(&t);
    t.coarse_tanh = tile_field(k, F_TANH) == 1; /* not in the mask, where it would show and hide other keys */
    bool by_list = listed && !gather && !t.united;
    if (by_list) t.first = val(&t, ag_tiler_let(&t, t.step, "key0", ag_tiler_first_key(&t, WALK_OTHER), "position of the step's first key"));
    build_step(&t);
    if (t.united) ag_tiler_skip(&t);
    if (by_list) ag_tiler_flag(&t, t.step, t.first);
    if (!gather) ag_block_append(t.pre, loop);
    end_step(&t);
    for (int i = 0; i < m->nout && ag_tiler_apart(&t); i++)
        if (m->out[i].tensor == TEN_LSE) ag_tiler_take_forced(&t, &m->out[i]);
    if (fn->spec->joined)
        ag_tiler_joined_output(&t);
    else
        for (int wide = 1; wide >= 0 && !gather; wide--) ag_tiler_outputs(&t, t.post, wide, 0);
    ag_tiler_describe_branches(&t);
    if (gather)
        ag_tiler_compose(&t, &k->role[0].body, &tile, &loop->body, &post);
    else
        ag_block_move(t.pre, &post);
    k->numerics = numerics_class(k);
}
