/* range_solve.c: the keys for which an expression is between two bounds: through sums, products, floor divisions, minima and choices down to the key.
 *
 *   k + u >= y      k >= y - u                     -f <= y        f >= -y
 *   c f <= y        f <= y // c     (c > 0)        f // c <= y    f <= c y + c - 1      f // c >= y    f >= c y     (c > 0)
 *   max(f, g) >= y  either is       max(f, g) <= y both are       min, abs, clamp and relu by these;  (f if c else g): c and f is, or not c and g is
 *
 * A bound is cut to what f can be at all before it is computed with, if the result could leave 32 bits otherwise. */
#include "ranges.h"

static const Extent none = {0};
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

typedef struct Reach {
    int64_t least, most;
} Reach;

/* The bounds as they have to be for f in r; the answer is the same. */
static Between cut_to(Ranges *g, Between b, Reach r) {
    if (b.has_ge) b.ge = ag_rg_cut(g, b.ge, r.least, r.most + 1);
    if (b.has_le) b.le = ag_rg_cut(g, b.le, r.least - 1, r.most);
    return b;
}

static bool is_ok(const Between *b) { return (!b->has_ge || b->ge.ok) && (!b->has_le || b->le.ok); }

static KeyRange at_key(Ranges *g, Between b) {
    if (b.has_le) b.le = ag_rg_cut(g, b.le, INT32_MIN, INT32_MAX - 1);
    Extent after = b.has_le ? ag_rg_step(g, b.le, 1) : none;
    KeyRange r = {0};
    if (b.has_ge) r.need_lo = b.ge.lo, r.plain_lo = b.ge.hi;
    if (b.has_le) r.need_hi = after.hi, r.plain_hi = after.lo;
    return r;
}

/* Rows alone decide. */
static KeyRange at_rows(Ranges *g, Ref f, const Between *b) {
    Extent u = ag_rg_extent(g, f);
    Ref may = ag_node_bool(g->p, true), must = may;
    if (!u.ok) return ag_rg_unknown;
    if (b->has_ge) may = ag_rg_op(g, OP_GE, u.hi, b->ge.lo), must = ag_rg_op(g, OP_GE, u.lo, b->ge.hi);
    if (b->has_le) may = ag_rg_op(g, OP_AND, may, ag_rg_op(g, OP_LE, u.lo, b->le.hi));
    if (b->has_le) must = ag_rg_op(g, OP_AND, must, ag_rg_op(g, OP_LE, u.hi, b->le.lo));
    return ag_rg_rows(g, (Truth){may, must});
}

/* -f between the bounds: f between these. */
static Between mirrored(Ranges *g, const Between *b, Extent zero) {
    Between m = {b->has_le, b->has_ge, none, none};
    if (b->has_le) m.ge = ag_rg_difference(g, zero, b->le);
    if (b->has_ge) m.le = ag_rg_difference(g, zero, b->ge);
    return m;
}

static Between moved(Ranges *g, const Between *b, Extent u, bool up) {
    Between m = *b;
    if (b->has_ge) m.ge = up ? ag_rg_sum(g, b->ge, u) : ag_rg_difference(g, b->ge, u);
    if (b->has_le) m.le = up ? ag_rg_sum(g, b->le, u) : ag_rg_difference(g, b->le, u);
    return m;
}

typedef enum Sum { F_PLUS_U, F_MINUS_U, U_MINUS_F } Sum;

static Between without_term(Ranges *g, const Between *b, Extent u, Sum sum) {
    return sum == U_MINUS_F ? mirrored(g, b, u) : moved(g, b, u, sum == F_MINUS_U);
}

/* u cut to where the sum is decided by it alone. */
static Extent cut_term(Ranges *g, Extent u, const Between *b, Reach f, Sum sum) {
    int64_t least = min64(b->has_ge ? b->ge.least : INT32_MAX, b->has_le ? b->le.least : INT32_MAX);
    int64_t most = max64(b->has_ge ? b->ge.most : INT32_MIN, b->has_le ? b->le.most : INT32_MIN);
    if (sum == U_MINUS_F) return ag_rg_cut(g, u, least + f.least - 1, most + f.most + 1);
    least = least - f.most - 1, most = most - f.least + 1;
    return sum == F_PLUS_U ? ag_rg_cut(g, u, least, most) : ag_rg_cut(g, u, -most, -least);
}

static KeyRange through_sum(Ranges *g, Ref f, Ref term, Sum sum, Between b, Reach own) {
    Extent u = ag_rg_extent(g, term);
    Reach r;
    if (!u.ok || !ag_rg_reach(g, f, &r.least, &r.most)) return ag_rg_unknown;
    for (int cut = 0; cut < 3; cut++) {
        Between m = without_term(g, &b, u, sum);
        if (is_ok(&m)) return ag_rg_solve(g, f, m);
        if (cut == 0) b = cut_to(g, b, own);
        if (cut == 1) u = cut_term(g, u, &b, r, sum);
    }
    return ag_rg_unknown;
}

static KeyRange through_product(Ranges *g, Ref f, int64_t c, Between b, Reach own) {
    Ref by = ag_rg_num(g, c < 0 ? -c : c);
    b = cut_to(g, b, own);
    if (c < 0) b = mirrored(g, &b, (Extent){ag_rg_num(g, 0), ag_rg_num(g, 0), 0, 0, true});
    if (c == 0 || !is_ok(&b)) return ag_rg_unknown;
    if (b.has_ge) b.ge.lo = ag_rg_op(g, OP_CEILDIV, b.ge.lo, by), b.ge.hi = ag_rg_op(g, OP_CEILDIV, b.ge.hi, by);
    if (b.has_le) b.le.lo = ag_rg_op(g, OP_FLOORDIV, b.le.lo, by), b.le.hi = ag_rg_op(g, OP_FLOORDIV, b.le.hi, by);
    return ag_rg_solve(g, f, b);
}

/* f // c between the bounds: f between these; c > 0. */
static Between times(Ranges *g, Between b, Ref c) {
    if (b.has_ge) b.ge = ag_rg_times(g, b.ge, c);
    if (b.has_le) b.le = ag_rg_step(g, ag_rg_times(g, ag_rg_step(g, b.le, 1), c), -1);
    return b;
}

/* bound * c, the bound cut to -1 .. last, which times c is at most `most`. */
static Extent cut_times(Ranges *g, Extent bound, Ref last, Ref c, int64_t most, int64_t by) {
    Extent x = ag_rg_cut(g, bound, -1, INT32_MAX);
    Ref lo = ag_rg_op(g, OP_MUL, ag_rg_op(g, OP_MIN, x.lo, last), c), hi = ag_rg_op(g, OP_MUL, ag_rg_op(g, OP_MIN, x.hi, last), c);
    return (Extent){lo, hi, -by, most, true};
}

/* The same for f the key and any c: from (Sk // c + 1) * c on there is no key. */
static Between times_key(Ranges *g, Between b, Ref c, int64_t by) {
    Ref sk = ag_node_leaf(g->p, OP_SIZE, T_INT, SZ_SK, (Span){0}), last = ag_rg_op(g, OP_ADD, ag_rg_op(g, OP_FLOORDIV, sk, c), ag_rg_num(g, 1));
    if (b.has_ge) b.ge = cut_times(g, b.ge, last, c, AG_POSITION_LIMIT + by, by);
    if (b.has_le) b.le = ag_rg_step(g, cut_times(g, ag_rg_step(g, b.le, 1), last, c, AG_POSITION_LIMIT + by, by), -1);
    return b;
}

static KeyRange through_quotient(Ranges *g, Ref f, Ref c, Between b, Reach own) {
    Reach by;
    if (!ag_rg_uniform(g, c) || !ag_rg_reach(g, c, &by.least, &by.most) || by.most <= 0) return ag_rg_unknown;
    if (by.least <= 0) ag_rg_assume(g, ag_rg_op(g, OP_GT, c, ag_rg_num(g, 0)));
    Between m = times(g, b, c);
    if (is_ok(&m)) return ag_rg_solve(g, f, m);
    b = cut_to(g, b, g->p->n[f].op == OP_AXIS ? (Reach){INT32_MIN + 1, INT32_MAX - 1} : own);
    m = times(g, b, c);
    if (is_ok(&m)) return ag_rg_solve(g, f, m);
    if (g->p->n[f].op != OP_AXIS || by.most > PARAM_INT_MAX) return ag_rg_unknown;
    return ag_rg_solve(g, f, times_key(g, b, c, by.most));
}

static Between only(const Between *b, bool ge) { return (Between){ge && b->has_ge, !ge && b->has_le, b->ge, b->le}; }

/* max(x, y), or with `min` min(x, y); y 0: abs(x), the larger of x and -x. */
static KeyRange through_extreme(Ranges *g, Ref x, Ref y, bool min, const Between *b) {
    KeyRange all = ag_rg_everything;
    if (!y) y = ag_fold_node(g->p, (Node){.op = OP_NEG, .arg = {x}});
    for (int ge = 0; ge < 2; ge++) {
        if (!(ge ? b->has_ge : b->has_le)) continue;
        KeyRange p = ag_rg_solve(g, x, only(b, ge)), q = ag_rg_solve(g, y, only(b, ge));
        KeyRange one = min == (bool)ge ? ag_rg_both(g, &p, &q) : ag_rg_either(g, &p, &q);
        all = ag_rg_both(g, &all, &one);
    }
    return all;
}

static KeyRange through_choice(Ranges *g, const Node *n, const Between *b) {
    KeyRange part[2];
    for (int i = 0; i < 2; i++) {
        KeyRange c = ag_rg_condition(g, n->arg[0], i == 1), x = ag_rg_solve(g, n->arg[1 + i], *b);
        part[i] = ag_rg_both(g, &c, &x);
    }
    return ag_rg_either(g, &part[0], &part[1]);
}

KeyRange ag_rg_solve(Ranges *g, Ref f, Between b) {
    const Node n = g->p->n[f];
    Reach own;
    if (--g->budget < 0 || n.type != T_INT || !is_ok(&b)) return ag_rg_unknown;
    if (!ag_rg_has_key(g, f)) return at_rows(g, f, &b);
    if (n.op == OP_AXIS) return at_key(g, b);
    if (!ag_rg_reach(g, f, &own.least, &own.most)) return ag_rg_unknown;
    int with_key = ag_op[n.op].arity > 0 && ag_rg_has_key(g, n.arg[0]) ? 0 : 1;
    Ref other = n.arg[1 - with_key];
    bool alone = !other || !ag_rg_has_key(g, other);
    switch (n.op) {
    case OP_NEG: return through_sum(g, n.arg[0], ag_rg_num(g, 0), U_MINUS_F, b, own);
    case OP_ADD: return alone ? through_sum(g, n.arg[with_key], other, F_PLUS_U, b, own) : ag_rg_unknown;
    case OP_SUB: return alone ? through_sum(g, n.arg[with_key], other, with_key ? U_MINUS_F : F_MINUS_U, b, own) : ag_rg_unknown;
    case OP_MUL: return ag_node_is_const(g->p, other) ? through_product(g, n.arg[with_key], g->p->n[other].value.u.i, b, own) : ag_rg_unknown;
    case OP_FLOORDIV: return with_key == 0 && alone ? through_quotient(g, n.arg[0], other, b, own) : ag_rg_unknown;
    case OP_MIN:
    case OP_MAX: return through_extreme(g, n.arg[0], n.arg[1], n.op == OP_MIN, &b);
    case OP_ABS: return through_extreme(g, n.arg[0], 0, false, &b);
    case OP_RELU: return through_extreme(g, n.arg[0], ag_rg_num(g, 0), false, &b);
    case OP_CLAMP: return through_extreme(g, ag_rg_op(g, OP_MAX, n.arg[0], n.arg[1]), n.arg[2], true, &b);
    case OP_SELECT: return through_choice(g, &n, &b);
    default: return ag_rg_unknown;
    }
}
