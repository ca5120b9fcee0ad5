/* range_bound.c: what an expression without a key is between, over the queries and heads of a tile: interval arithmetic on nodes.
 *
 * Sums of bounds may be reached by no row, so each is held against the least and greatest value it can have: what might leave 32 bits has no extent.  What is
 * the same for all of a tile is its own bound, also where it wraps around. */
#include "ranges.h"
#include "reach.h"

static const Extent no_extent = {0};
static const int64_t limit = AG_POSITION_LIMIT;

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }
static bool fits(int64_t least, int64_t most) { return least >= INT32_MIN && most <= INT32_MAX; }

/* ---- constants that an int stays within */

static Span64 axis_reach(const Ranges *g, int axis) {
    if (axis == AX_K) return (Span64){0, g->keys - 1};
    return axis == AX_Q ? (Span64){-limit, limit} : (Span64){0, INT32_MAX};
}

static bool reach(Ranges *g, Ref r, Span64 *out);

static bool op_reach(Ranges *g, const Node *n, Span64 *out) {
    Span64 x[3] = {{0}};
    for (int i = 0; i < ag_op[n->op].arity; i++)
        if (g->p->n[n->arg[i]].type == T_INT && !reach(g, n->arg[i], &x[i])) return false;
    return ag_op_reach(n->op, x, out);
}

static bool reach(Ranges *g, Ref r, Span64 *out) {
    const Node n = g->p->n[r];
    *out = ag_any_int();
    if (--g->budget < 0) return ag_rg_uniform(g, r);
    if (n.op == OP_CONST) *out = (Span64){n.value.u.i, n.value.u.i};
    if (n.op == OP_SIZE) *out = ag_size_reach(n.index);
    if (n.op == OP_PARAM) *out = (Span64){-PARAM_INT_MAX, PARAM_INT_MAX};
    if (n.op == OP_AXIS || n.op == OP_AXISMIN || n.op == OP_AXISMAX) *out = axis_reach(g, n.index);
    if (ag_op[n.op].arity == 0 || n.op == OP_LOAD || op_reach(g, &n, out)) return true;
    if (!ag_rg_uniform(g, r)) return false;
    *out = ag_any_int(); /* it may wrap around */
    return true;
}

bool ag_rg_reach(Ranges *g, Ref r, int64_t *least, int64_t *most) {
    Span64 x;
    bool ok = reach(g, r, &x);
    *least = x.lo, *most = x.hi;
    return ok;
}

/* ---- extents */

static Extent extent(Ref lo, Ref hi, int64_t least, int64_t most) { return fits(least, most) ? (Extent){lo, hi, least, most, true} : no_extent; }

void ag_rg_assume(Ranges *g, Ref condition) {
    if (!ag_node_is_const(g->p, condition)) g->assumed = g->assumed ? ag_rg_op(g, OP_AND, g->assumed, condition) : condition;
}

Extent ag_rg_cut(Ranges *g, Extent x, int64_t least, int64_t most) {
    if (x.least < least) x.lo = ag_rg_op(g, OP_MAX, x.lo, ag_rg_num(g, least)), x.hi = ag_rg_op(g, OP_MAX, x.hi, ag_rg_num(g, least));
    if (x.most > most) x.lo = ag_rg_op(g, OP_MIN, x.lo, ag_rg_num(g, most)), x.hi = ag_rg_op(g, OP_MIN, x.hi, ag_rg_num(g, most));
    x.least = ag_min64(ag_max64(x.least, least), most), x.most = ag_max64(ag_min64(x.most, most), least);
    return x;
}

/* x + c, where x may be a sum with a constant already. */
static Ref plus(Ranges *g, Ref x, int64_t c) {
    const Node n = g->p->n[x];
    bool sum = n.op == OP_ADD && ag_node_is_const(g->p, n.arg[1]);
    if (sum) c += g->p->n[n.arg[1]].value.u.i;
    return ag_rg_op(g, OP_ADD, sum ? n.arg[0] : x, ag_rg_num(g, c));
}

static Ref subtract(Ranges *g, Ref a, Ref b) {
    if (g->p->n[b].op == OP_NEG) return ag_rg_op(g, OP_ADD, a, g->p->n[b].arg[0]);
    if (ag_node_is_const(g->p, b)) return plus(g, a, -g->p->n[b].value.u.i);
    return ag_node_is_int(g->p, a, 0) ? ag_fold_node(g->p, (Node){.op = OP_NEG, .arg = {b}}) : ag_rg_op(g, OP_SUB, a, b);
}
static Ref add(Ranges *g, Ref a, Ref b) {
    const Node x = g->p->n[a], y = g->p->n[b];
    if (y.op == OP_CONST) return plus(g, a, y.value.u.i);
    if (x.op == OP_ADD && ag_node_is_const(g->p, x.arg[1])) return plus(g, add(g, x.arg[0], b), g->p->n[x.arg[1]].value.u.i);
    return x.op == OP_NEG ? subtract(g, b, x.arg[0]) : y.op == OP_NEG ? subtract(g, a, y.arg[0]) : ag_rg_op(g, OP_ADD, a, b);
}

/* Where tiles of keys are asked too, a kernel does it, and that can ask besides whether numbers are as small as they are in practice: parameters could make any of them leave
 * 32 bits.  SMALL: two of them and their sum do not. */
enum { SMALL = 1 << 29 };
static void assume_between(Ranges *g, Ref lo, Ref hi, int64_t least, int64_t most) {
    ag_rg_assume(g, ag_rg_op(g, OP_GE, lo, ag_rg_num(g, least)));
    ag_rg_assume(g, ag_rg_op(g, OP_LE, hi, ag_rg_num(g, most)));
}
static Extent small(Ranges *g, Extent x) {
    if (!x.ok || (x.least >= -SMALL && x.most <= SMALL)) return x;
    assume_between(g, x.lo, x.hi, -SMALL, SMALL);
    x.least = ag_max64(x.least, -SMALL), x.most = ag_min64(x.most, SMALL);
    return x;
}
static bool is_too_large(const Ranges *g, Extent a, Extent b, Extent result) { return g->bounded && a.ok && b.ok && !result.ok; }

Extent ag_rg_sum(Ranges *g, Extent a, Extent b) {
    Extent x = extent(0, 0, a.least + b.least, a.most + b.most);
    if (is_too_large(g, a, b, x)) return ag_rg_sum(g, small(g, a), small(g, b));
    if (!a.ok || !b.ok || !x.ok) return no_extent;
    x.lo = add(g, a.lo, b.lo), x.hi = add(g, a.hi, b.hi);
    return x;
}

Extent ag_rg_difference(Ranges *g, Extent a, Extent b) {
    Extent x = extent(0, 0, a.least - b.most, a.most - b.least);
    if (is_too_large(g, a, b, x)) return ag_rg_difference(g, small(g, a), small(g, b));
    if (!a.ok || !b.ok || !x.ok) return no_extent;
    x.lo = subtract(g, a.lo, b.hi), x.hi = subtract(g, a.hi, b.lo);
    return x;
}

Extent ag_rg_step(Ranges *g, Extent a, int64_t by) {
    if (g->bounded && a.ok && !fits(a.least + by, a.most + by) && magnitude(by) < SMALL) a = small(g, a);
    return a.ok ? extent(plus(g, a.lo, by), plus(g, a.hi, by), a.least + by, a.most + by) : no_extent;
}

/* x // c + more */
typedef struct Quotient {
    Ref x;
    int64_t more;
} Quotient;
static bool is_quotient(const Ranges *g, Ref r, Ref c, Quotient *out) {
    Node n = g->p->n[r];
    *out = (Quotient){0};
    if (n.op == OP_ADD && ag_node_is_const(g->p, n.arg[1])) out->more = g->p->n[n.arg[1]].value.u.i, n = g->p->n[n.arg[0]];
    out->x = n.arg[0];
    return n.op == OP_FLOORDIV && n.arg[1] == c && magnitude(out->more) < limit;
}

/* (x // c + more) * c is x - x % c + more * c, which does not leave the neighbourhood of x. */
static Ref multiple(Ranges *g, Quotient a, Ref c) {
    Ref down = ag_rg_op(g, OP_SUB, a.x, ag_rg_op(g, OP_MOD, a.x, c)), more = ag_rg_op(g, OP_MUL, c, ag_rg_num(g, magnitude(a.more)));
    return a.more == 0                 ? down
           : ag_node_is_const(g->p, c) ? plus(g, down, a.more * g->p->n[c].value.u.i)
                                       : ag_rg_op(g, a.more > 0 ? OP_ADD : OP_SUB, down, more);
}

static Extent multiples(Ranges *g, Quotient lo, Quotient hi, Ref c, Span64 by) {
    Span64 x, y, positive = {ag_max64(by.lo, 1), by.hi}; /* a divisor is, or it is assumed */
    if (!reach(g, lo.x, &x) || !reach(g, hi.x, &y)) return no_extent;
    int64_t least = x.lo < 0 ? ag_min64(2 * x.lo, -by.hi) : 0, most = ag_max64(y.hi, 0);
    least += ag_product_reach((Span64){lo.more, lo.more}, positive).lo, most += ag_product_reach((Span64){hi.more, hi.more}, positive).hi;
    return fits(least, most) ? extent(multiple(g, lo, c), multiple(g, hi, c), least, most) : no_extent;
}

/* a * c, which a kernel asks to be small. */
static Extent small_product(Ranges *g, Extent a, Ref c) {
    assume_between(g, c, c, -SMALL, SMALL);
    Ref by = ag_rg_op(g, OP_MAX, ag_fold_node(g->p, (Node){.op = OP_ABS, .arg = {c}}), ag_rg_num(g, 1)),
        most = ag_rg_op(g, OP_FLOORDIV, ag_rg_num(g, SMALL), by);
    ag_rg_assume(g, ag_rg_op(g, OP_LE, a.hi, most));
    ag_rg_assume(g, ag_rg_op(g, OP_GE, a.lo, subtract(g, ag_rg_num(g, 0), most)));
    Ref p = ag_rg_op(g, OP_MUL, a.lo, c), q = ag_rg_op(g, OP_MUL, a.hi, c);
    return extent(ag_rg_op(g, OP_MIN, p, q), ag_rg_op(g, OP_MAX, p, q), -SMALL, SMALL);
}

Extent ag_rg_times(Ranges *g, Extent a, Ref c) {
    Span64 by, r;
    Quotient lo, hi;
    if (!a.ok || !reach(g, c, &by)) return no_extent;
    if (is_quotient(g, a.lo, c, &lo) && is_quotient(g, a.hi, c, &hi)) {
        Extent x = multiples(g, lo, hi, c, by);
        if (x.ok || !g->bounded) return x;
    }
    r = ag_product_reach((Span64){a.least, a.most}, by);
    if (!fits(r.lo, r.hi) && g->bounded) return small_product(g, small(g, a), c);
    if (!fits(r.lo, r.hi)) return no_extent;
    Ref p = ag_rg_op(g, OP_MUL, a.lo, c), q = ag_rg_op(g, OP_MUL, a.hi, c);
    if (by.lo >= 0) return extent(p, q, r.lo, r.hi);
    if (by.hi <= 0) return extent(q, p, r.lo, r.hi);
    return extent(ag_rg_op(g, OP_MIN, p, q), ag_rg_op(g, OP_MAX, p, q), r.lo, r.hi);
}

/* A divisor has to be positive: a constant is, of a parameter it is assumed. */
static bool positive(Ranges *g, Ref c) {
    Span64 x;
    if (!ag_rg_uniform(g, c) || !reach(g, c, &x) || x.hi <= 0) return false;
    if (x.lo <= 0) ag_rg_assume(g, ag_rg_op(g, OP_GT, c, ag_rg_num(g, 0)));
    return true;
}

static Extent quotient(Ranges *g, Extent a, Ref c) {
    Span64 by;
    if (!a.ok || !positive(g, c) || !reach(g, c, &by)) return no_extent;
    Span64 r = ag_quotient_reach((Span64){a.least, a.most}, (Span64){ag_max64(by.lo, 1), by.hi});
    return extent(ag_rg_op(g, OP_FLOORDIV, a.lo, c), ag_rg_op(g, OP_FLOORDIV, a.hi, c), r.lo, r.hi);
}

static Extent remainder_of(Ranges *g, Extent a, Ref c) {
    Span64 by;
    if (!a.ok || !positive(g, c) || !reach(g, c, &by)) return no_extent;
    if (a.least >= 0 && a.most < by.lo) return a;
    int64_t most = g->bounded && a.least >= 0 ? ag_min64(a.most, by.hi - 1) : by.hi - 1;
    Ref one_round = ag_rg_op(g, OP_EQ, ag_rg_op(g, OP_FLOORDIV, a.lo, c), ag_rg_op(g, OP_FLOORDIV, a.hi, c));
    return extent(ag_rg_select(g, one_round, ag_rg_op(g, OP_MOD, a.lo, c), ag_rg_num(g, 0)),
                  ag_rg_select(g, one_round, ag_rg_op(g, OP_MOD, a.hi, c), plus(g, c, -1)), 0, most);
}

static Extent pairwise(Ranges *g, Op op, Extent a, Extent b) {
    bool min = op == OP_MIN;
    if (!a.ok || !b.ok) return no_extent;
    return extent(ag_rg_op(g, op, a.lo, b.lo), ag_rg_op(g, op, a.hi, b.hi), min ? ag_min64(a.least, b.least) : ag_max64(a.least, b.least),
                  min ? ag_min64(a.most, b.most) : ag_max64(a.most, b.most));
}

static Extent constant(Ranges *g, int64_t v) { return extent(ag_rg_num(g, v), ag_rg_num(g, v), v, v); }

static Extent absolute(Ranges *g, Extent a) {
    if (!a.ok || a.least >= 0) return a;
    Extent minus = ag_rg_difference(g, constant(g, 0), a);
    if (!minus.ok) return no_extent;
    Ref lo = ag_rg_op(g, OP_MAX, ag_rg_op(g, OP_MAX, a.lo, minus.lo), ag_rg_num(g, 0));
    return extent(lo, ag_rg_op(g, OP_MAX, a.hi, minus.hi), 0, ag_max64(a.most, minus.most));
}

static Extent choice(Ranges *g, const Node *n) {
    Extent a = ag_rg_extent(g, n->arg[1]), b = ag_rg_extent(g, n->arg[2]);
    if (!a.ok || !b.ok) return no_extent;
    Truth c = ag_rg_truth(g, n->arg[0]);
    Ref lo = ag_rg_select(g, c.may, ag_rg_op(g, OP_MIN, a.lo, b.lo), b.lo), hi = ag_rg_select(g, c.may, ag_rg_op(g, OP_MAX, a.hi, b.hi), b.hi);
    return extent(ag_rg_select(g, c.must, a.lo, lo), ag_rg_select(g, c.must, a.hi, hi), ag_min64(a.least, b.least), ag_max64(a.most, b.most));
}

static Extent key_extent(Ranges *g) {
    return extent(ag_node_leaf(g->p, OP_AXISMIN, T_INT, AX_K, (Span){0}), ag_node_leaf(g->p, OP_AXISMAX, T_INT, AX_K, (Span){0}), 0, g->keys - 1);
}

/* Number of an element that varies with queries or with keys, not with both, among those that are bounded; -1. */
static int bounded_number(Ranges *g, Ref r) {
    int axes = g->p->n[r].axes & ~g->tile, i = 0;
    if (!g->bounded || g->p->n[r].op != OP_LOAD || (axes != 1 << AX_Q && axes != 1 << AX_K)) return -1;
    while (i < g->bounded->n && g->bounded->load[i] != r) i++;
    if (i == MAX_BOUNDED) return -1;
    if (i == g->bounded->n) g->bounded->load[g->bounded->n++] = r;
    return i;
}

static Ref bound_of(Ranges *g, Op end, Type type, int number) { return ag_node_leaf(g->p, end, type, AX_COUNT + number, (Span){0}); }

static Extent element_extent(Ranges *g, Ref r) {
    int i = bounded_number(g, r);
    return i < 0 ? no_extent : extent(bound_of(g, OP_AXISMIN, T_INT, i), bound_of(g, OP_AXISMAX, T_INT, i), INT32_MIN, INT32_MAX);
}

static Extent axis_extent(Ranges *g, int axis) {
    if (axis == AX_K && g->bounded) return key_extent(g);
    if (axis == AX_Q)
        return extent(ag_node_leaf(g->p, OP_AXISMIN, T_INT, AX_Q, (Span){0}), ag_node_leaf(g->p, OP_AXISMAX, T_INT, AX_Q, (Span){0}), -limit, limit);
    if (axis != AX_H || !g->group) return no_extent;
    Ref first = ag_rg_op(g, OP_MUL, ag_node_leaf(g->p, OP_AXIS, T_INT, AX_G, (Span){0}), ag_rg_num(g, g->group));
    return extent(first, plus(g, first, g->group - 1), 0, INT32_MAX);
}

Extent ag_rg_extent(Ranges *g, Ref r) {
    const Node n = g->p->n[r];
    Span64 x;
    if (--g->budget < 0 || n.type != T_INT || (ag_rg_has_key(g, r) && !g->bounded)) return no_extent;
    if (ag_rg_uniform(g, r)) return reach(g, r, &x) ? extent(r, r, x.lo, x.hi) : no_extent;
    if (n.op == OP_AXIS) return axis_extent(g, n.index);
    if (n.op == OP_LOAD) return element_extent(g, r);
    if (n.op == OP_SELECT) return choice(g, &n);
    Extent a = ag_op[n.op].arity ? ag_rg_extent(g, n.arg[0]) : no_extent, b = ag_op[n.op].arity > 1 ? ag_rg_extent(g, n.arg[1]) : no_extent;
    switch (n.op) {
    case OP_NEG: return ag_rg_difference(g, constant(g, 0), a);
    case OP_ADD: return ag_rg_sum(g, a, b);
    case OP_SUB: return ag_rg_difference(g, a, b);
    case OP_MUL:
        return ag_rg_uniform(g, n.arg[1]) ? ag_rg_times(g, a, n.arg[1]) : ag_rg_uniform(g, n.arg[0]) ? ag_rg_times(g, b, n.arg[0]) : no_extent;
    case OP_FLOORDIV: return quotient(g, a, n.arg[1]);
    case OP_MOD: return remainder_of(g, a, n.arg[1]);
    case OP_MIN:
    case OP_MAX: return pairwise(g, n.op, a, b);
    case OP_CLAMP: return pairwise(g, OP_MIN, pairwise(g, OP_MAX, a, b), ag_rg_extent(g, n.arg[2]));
    case OP_RELU: return pairwise(g, OP_MAX, a, constant(g, 0));
    case OP_ABS: return absolute(g, a);
    default: return no_extent;
    }
}

/* ---- conditions */

static Truth comparison(Ranges *g, const Node *n) {
    const Truth open = {ag_node_bool(g->p, true), ag_node_bool(g->p, false)};
    Extent a = ag_rg_extent(g, n->arg[0]), b = ag_rg_extent(g, n->arg[1]);
    if (!a.ok || !b.ok) return open;
    switch (n->op) {
    case OP_LT:
    case OP_LE: return (Truth){ag_rg_op(g, n->op, a.lo, b.hi), ag_rg_op(g, n->op, a.hi, b.lo)};
    case OP_GT:
    case OP_GE: return (Truth){ag_rg_op(g, n->op, a.hi, b.lo), ag_rg_op(g, n->op, a.lo, b.hi)};
    case OP_EQ:
        return (Truth){ag_rg_op(g, OP_AND, ag_rg_op(g, OP_LE, a.lo, b.hi), ag_rg_op(g, OP_GE, a.hi, b.lo)),
                       ag_rg_op(g, OP_AND, ag_rg_op(g, OP_LE, a.hi, b.lo), ag_rg_op(g, OP_GE, a.lo, b.hi))};
    case OP_NE:
        return (Truth){ag_rg_op(g, OP_OR, ag_rg_op(g, OP_LT, a.lo, b.hi), ag_rg_op(g, OP_GT, a.hi, b.lo)),
                       ag_rg_op(g, OP_OR, ag_rg_op(g, OP_LT, a.hi, b.lo), ag_rg_op(g, OP_GT, a.lo, b.hi))};
    default: return open;
    }
}

static Ref not_of(Ranges *g, Ref r) { return ag_fold_node(g->p, (Node){.op = OP_NOT, .arg = {r}}); }

/* (c and a) or (not c and b); all meet it, too, if all meet a and b. */
static Truth chosen(Ranges *g, const Node *n) {
    Truth c = ag_rg_truth(g, n->arg[0]), a = ag_rg_truth(g, n->arg[1]), b = ag_rg_truth(g, n->arg[2]);
    Ref may = ag_rg_op(g, OP_OR, ag_rg_op(g, OP_AND, c.may, a.may), ag_rg_op(g, OP_AND, not_of(g, c.must), b.may));
    Ref must = ag_rg_op(g, OP_OR, ag_rg_op(g, OP_AND, c.must, a.must), ag_rg_op(g, OP_AND, not_of(g, c.may), b.must));
    return (Truth){may, ag_rg_op(g, OP_OR, must, ag_rg_op(g, OP_AND, a.must, b.must))};
}

Truth ag_rg_truth(Ranges *g, Ref r) {
    const Node n = g->p->n[r];
    const Truth open = {ag_node_bool(g->p, true), ag_node_bool(g->p, false)};
    if (--g->budget < 0 || (ag_rg_has_key(g, r) && !g->bounded)) return open;
    if (ag_rg_uniform(g, r)) return (Truth){r, r};
    if (n.op == OP_LOAD) {
        int i = bounded_number(g, r);
        return i < 0 ? open : (Truth){bound_of(g, OP_AXISMAX, T_BOOL, i), bound_of(g, OP_AXISMIN, T_BOOL, i)};
    }
    if (n.op == OP_NOT) {
        Truth a = ag_rg_truth(g, n.arg[0]);
        return (Truth){not_of(g, a.must), not_of(g, a.may)};
    }
    if (n.op == OP_SELECT) return chosen(g, &n);
    if (n.op != OP_AND && n.op != OP_OR) return comparison(g, &n);
    Truth a = ag_rg_truth(g, n.arg[0]), b = ag_rg_truth(g, n.arg[1]);
    return (Truth){ag_rg_op(g, n.op, a.may, b.may), ag_rg_op(g, n.op, a.must, b.must)};
}
