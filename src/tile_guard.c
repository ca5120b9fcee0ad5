/* tile_guard.c: the condition under which an element counts: the spec's mask and the end of the keys; and where it may be left to the maxima. */
#include "law.h"
#include "tiler.h"

/* ---- which weights are 0 by themselves at hidden keys */

/* Laws: is node r -inf (or 0) wherever the guarded maximum bodies are -inf? */
static bool neg_inf_where_hidden(const Tiler *t, Ref r) {
    const Node *n = &t->m->nodes.n[r];
    for (int i = 0; i < t->s->ncarry; i++)
        if (t->s->carry[i].combine == OP_RMAX && t->s->carry[i].body == r) return true;
    switch (n->op) {
    case OP_SUB: return neg_inf_where_hidden(t, n->arg[0]);
    case OP_ADD: return neg_inf_where_hidden(t, n->arg[0]) || neg_inf_where_hidden(t, n->arg[1]);
    case OP_MUL:
        return (ag_positive(t->m->spec, &t->m->nodes, n->arg[0]) && neg_inf_where_hidden(t, n->arg[1])) ||
               (ag_positive(t->m->spec, &t->m->nodes, n->arg[1]) && neg_inf_where_hidden(t, n->arg[0]));
    default: return false;
    }
}
bool ag_zero_where_hidden(const Tiler *t, Ref r) {
    const Node *n = &t->m->nodes.n[r];
    switch (n->op) {
    case OP_EXP:
    case OP_EXP2: return neg_inf_where_hidden(t, n->arg[0]);
    case OP_MUL:
        return !t->m->spec->weigh &&
               (ag_zero_where_hidden(t, n->arg[0]) || ag_zero_where_hidden(t, n->arg[1])); /* the factor of a hidden key may be anything, also NaN */
    default: return false;
    }
}

enum { FAR = 1 << 28 };

/* Keys that a row sees, if that is an interval: lo <= k < hi; 0: unbounded. */
typedef struct Interval {
    Ref lo, hi;
} Interval;
static bool is_key(const Tiler *t, Ref r) { return t->k->nodes.n[r].op == OP_AXIS && t->k->nodes.n[r].index == AX_K; }
static bool has_key(const Tiler *t, Ref r) { return ag_expr_uses(t->k, r, OP_AXIS, AX_K); }
static void tighten(Tiler *t, Ref *bound, Op op, Ref x) { *bound = *bound ? op2(t, op, *bound, x) : x; }
/* An int that is the same for all keys, cut to +-2^30: keys are in [0, 2^29), so comparisons with them stay as they are, and sums with a position in 32 bits. */
static Ref cut(Tiler *t, Ref x) { return op2(t, OP_MIN, op2(t, OP_MAX, x, num(t, -(1 << 30))), num(t, 1 << 30)); }
/* Does an int of the spec's stay within +-`most`? */
static bool stays_within(const Tiler *t, Ref x, int64_t most) {
    IntReach r = ag_reach(t->k, x);
    return !ag_is_of_spec(t->k, x) || (r.least >= -most && r.most <= most);
}
/* Adds `k op x`, op one of < <= > >=. */
static void bound_key(Tiler *t, Interval *i, Op op, Ref x) {
    if (ag_reads_captured(t->k, x) || !stays_within(t, x, 3 << 29)) x = cut(t, x);
    Ref next = op == OP_LE || op == OP_GT ? op2(t, OP_ADD, x, num(t, 1)) : x;
    if (op == OP_LT || op == OP_LE)
        tighten(t, &i->hi, OP_MIN, next);
    else
        tighten(t, &i->lo, OP_MAX, next);
}
/* n * k + c for constants n > 0 and c. */
typedef struct Multiple {
    int64_t n, c;
} Multiple;
static bool multiple_of_key(const Tiler *t, Ref r, Multiple *m) {
    const Nodes *p = &t->k->nodes;
    const Node *x = &p->n[r];
    if (is_key(t, r)) return *m = (Multiple){1, 0}, true;
    if ((x->op != OP_MUL && x->op != OP_ADD && x->op != OP_SUB) || !ag_node_is_const(p, x->arg[1]) || !multiple_of_key(t, x->arg[0], m)) return false;
    int64_t v = p->n[x->arg[1]].value.u.i;
    if (x->op == OP_MUL) return m->n *= v, m->c *= v, v > 0 && v <= FAR && m->n <= FAR && m->c <= FAR && m->c >= -FAR;
    m->c += x->op == OP_ADD ? v : -v;
    return m->c <= FAR && m->c >= -FAR;
}
/* The query's position, or that and a constant, so that sums with one more stay in 32 bits. */
static bool near_query(const Tiler *t, Ref r) {
    const Nodes *p = &t->k->nodes;
    const Node *x = &p->n[r];
    if ((x->op == OP_ADD || x->op == OP_SUB) && ag_node_is_const(p, x->arg[1])) {
        int64_t v = p->n[x->arg[1]].value.u.i;
        if (v > FAR || v < -FAR) return false;
        x = &p->n[x->arg[0]];
    }
    return x->op == OP_AXIS && x->index == AX_Q;
}
/* n * k + c < y: k <= (y - c - 1) // n, once per row; and so on. */
static bool take_multiple(Tiler *t, Interval *i, Op op, Ref a, Ref b) {
    Multiple m;
    if (!near_query(t, b) || !multiple_of_key(t, a, &m)) return false;
    bool less = op == OP_LT || op == OP_GE;
    Ref y = op2(t, OP_SUB, b, num(t, m.c + less));
    if (m.n > 1) y = op2(t, OP_FLOORDIV, y, num(t, m.n));
    return bound_key(t, i, op == OP_LT || op == OP_LE ? OP_LE : OP_GT, y), true;
}
/* Takes comparison `cond` into the interval: k op x, x op k, n * k + c op q, x - k op y; false if it is none of these. */
static bool take_comparison(Tiler *t, Interval *i, const Node *n) {
    static const Op mirror[OP_COUNT] = {[OP_LT] = OP_GT, [OP_LE] = OP_GE, [OP_GT] = OP_LT, [OP_GE] = OP_LE};
    if (!mirror[n->op]) return false;
    Ref a = n->arg[0], b = n->arg[1];
    if (is_key(t, a) && !has_key(t, b)) return bound_key(t, i, n->op, b), true;
    if (is_key(t, b) && !has_key(t, a)) return bound_key(t, i, mirror[n->op], a), true;
    if (take_multiple(t, i, n->op, a, b) || take_multiple(t, i, mirror[n->op], b, a)) return true;
    const Node *d = &t->k->nodes.n[a];
    if (d->op != OP_SUB || !is_key(t, d->arg[1]) || has_key(t, d->arg[0]) || has_key(t, b) || ag_reads_captured(t->k, d->arg[0]) ||
        !stays_within(t, d->arg[0], 1 << 29))
        return false;
    /* x - k < y: k > x - y.  Distances are below 2^30 (launch.c), so y may be cut to that; then x - y - k stays in 32 bits. */
    return bound_key(t, i, mirror[n->op], op2(t, OP_SUB, d->arg[0], cut(t, b))), true;
}
static Ref take_conjunction(Tiler *t, Interval *i, Ref cond);

/* The alternatives of a condition. */
enum { MAX_ALTERNATIVES = 16 };
static int alternatives(const Tiler *t, Ref cond, Ref *out, int n) {
    const Node x = t->k->nodes.n[cond];
    if (x.op == OP_OR && n < MAX_ALTERNATIVES - 1) return alternatives(t, x.arg[1], out, alternatives(t, x.arg[0], out, n));
    out[n] = cond;
    return n + 1;
}
static void widen(Tiler *t, Ref *bound, Op op, Ref x) { *bound = *bound ? op2(t, op, *bound, x) : x; }
/* (k < x or k < y) is k < max(x, y), and (k < x or c) where c is of the row k < (Sk if c else x).  Alternatives that end alike and do not begin become one
 * bound, as do those that begin alike; a single one is taken into the interval, else all that are left are the answer. */
static Ref take_alternatives(Tiler *t, Interval *i, Ref cond) {
    Ref each[MAX_ALTERNATIVES], rest = 0, key = ag_node_leaf(&t->k->nodes, OP_AXIS, T_INT, AX_K, (Span){0}), of_row = 0;
    int n = alternatives(t, cond, each, 0), others = 0, bands = 0;
    Interval all = {0}, band = {0};
    for (int a = 0; a < n; a++) {
        Interval own = {0};
        const Node x = t->k->nodes.n[each[a]];
        bool bound = take_comparison(t, &own, &x);
        if (bound && own.hi)
            widen(t, &all.hi, OP_MAX, own.hi);
        else if (bound)
            widen(t, &all.lo, OP_MIN, own.lo);
        else if (!has_key(t, each[a]))
            of_row = of_row ? op2(t, OP_OR, of_row, each[a]) : each[a];
        else {
            own = (Interval){0};
            if (x.op == OP_AND && !take_conjunction(t, &own, each[a]) && own.lo && own.hi) band = own, bands++;
            rest = others++ ? op2(t, OP_OR, rest, each[a]) : each[a];
        }
    }
    if (of_row && all.hi)
        all.hi = ag_node_op(&t->k->nodes, OP_SELECT, of_row, size(t, SZ_SK), all.hi, (Span){0});
    else if (of_row)
        rest = others++ ? op2(t, OP_OR, rest, of_row) : of_row;
    if (others == 1 && bands == 1 && all.hi && !all.lo) { /* lo <= k < hi or k < x:  (lo <= k or k < x) and k < max(hi, x) */
        tighten(t, &i->hi, OP_MIN, op2(t, OP_MAX, band.hi, all.hi));
        return op2(t, OP_OR, op2(t, OP_GE, key, band.lo), op2(t, OP_LT, key, all.hi));
    }
    if (!others && !all.lo) return tighten(t, &i->hi, OP_MIN, all.hi), 0;
    if (!others && !all.hi) return tighten(t, &i->lo, OP_MAX, all.lo), 0;
    if (all.lo) all.lo = op2(t, OP_GE, key, all.lo), rest = rest ? op2(t, OP_OR, rest, all.lo) : all.lo;
    if (all.hi) all.hi = op2(t, OP_LT, key, all.hi), rest = rest ? op2(t, OP_OR, rest, all.hi) : all.hi;
    return rest;
}
/* Splits a conjunction into its interval and the rest (0: nothing is left). */
static Ref take_conjunction(Tiler *t, Interval *i, Ref cond) {
    const Node n = t->k->nodes.n[cond];
    if (n.op == OP_OR) return take_alternatives(t, i, cond);
    if (n.op == OP_AND) {
        Ref a = take_conjunction(t, i, n.arg[0]), b = take_conjunction(t, i, n.arg[1]);
        return a && b ? op2(t, OP_AND, a, b) : a ? a : b;
    }
    return take_comparison(t, i, &n) ? 0 : cond;
}
/* The mask and the end of the keys, with as few comparisons per element as there can be. */
void ag_tiler_guard(Tiler *t) {
    Ref key = ag_node_leaf(&t->k->nodes, OP_AXIS, T_INT, AX_K, (Span){0}), rest = 0, guard = 0;
    Interval seen = {0};
    if (t->m->range.mask) rest = take_conjunction(t, &seen, ag_tiler_expr(t, t->m->range.visible, LEVEL_ELEM));
    bound_key(t, &seen, OP_LT, size(t, SZ_SK));
    if (t->united && t->k->pack % 16) /* a warp has rows of several queries: no key is before 0 */
        seen.hi = ag_node_op(&t->k->nodes, OP_SELECT, ag_tiler_listed(t), seen.hi, num(t, 0), (Span){0});
    guard = op2(t, OP_LT, key, seen.hi);
    if (seen.lo) guard = op2(t, OP_AND, op2(t, OP_GE, key, seen.lo), guard);
    if (rest) guard = op2(t, OP_AND, rest, guard);
    t->k->guard = ag_node_rebuild(&t->k->nodes, &t->k->nodes, guard, NULL, NULL); /* folded, so that it stays the same node where steps are rebuilt */
}

void ag_tiler_flag(Tiler *t, Block *step, Ref first_key) {
    const KeyRange *r = &t->m->range;
    if (r->mask && r->never_plain) return;
    Ref end = op2(t, OP_ADD, first_key, num(t, tile_field(t->k, F_TILE_N))), masked = op2(t, OP_GT, end, size(t, SZ_SK));
    if (r->plain_lo) masked = op2(t, OP_OR, masked, op2(t, OP_LT, first_key, ag_tiler_expr(t, r->plain_lo, LEVEL_ONCE)));
    if (r->plain_hi) masked = op2(t, OP_OR, masked, op2(t, OP_GT, end, ag_tiler_expr(t, r->plain_hi, LEVEL_ONCE)));
    ag_flag_guard(t->k, step, masked);
}
