/* pass_ranges.c: the mask, and from it which keys a tile of queries needs and which of them it sees without exception.
 *
 * needs lowered, simple, axes     makes range
 *
 * The mask is found, not read: it is the condition outside of which every reduction over k gets its identity (law.c).  Ranges follow from its structure:
 *   comparison, affine in k and q, k with coefficient +-1    bounds from the first and last query
 *   other comparisons with k on one side                     what the other side is between (range_bound.c), brought to the key (range_solve.c)
 *   comparisons without k                                    all keys or none, by whether any row of the tile meets them, and whether all do
 *   and    intersection of both          or    hull of what is needed, and the gap between; union of what is plain, or one of both
 *   not, select, abs(x) < y, min, max, !=    rewritten to these
 *   anything else                        needs every key, and none is plain
 *
 * Arithmetic is in 32 bits.  Positions and sizes are at most P = AG_POSITION_LIMIT in magnitude, parameters PARAM_INT_MAX (the runtime refuses larger ones),
 * elements of captured tensors may be anything.  A bound t(q) = a * q + u + r only matters against k in [0, P): with |everything but u| <= R, clamping u to +-(P + R), where it can be
 * so large that t might not fit, changes no answer, and t fits if P + 2 R + 1 < 2^31.  Comparisons that do not, and those with more than one unbounded integer, get no range.  A mask whose own arithmetic
 * overflows 32 bits is outside of this (and of the language). */
#include "law.h"
#include "ranges.h"

const KeyRange ag_rg_everything = {0};
const KeyRange ag_rg_unknown = {.never_plain = true};
const KeyRange ag_rg_nothing = {.never_plain = true, .never_needed = true};

static Ref op2(Ranges *g, Op op, Ref a, Ref b) { return ag_rg_op(g, op, a, b); }
static Ref num(Ranges *g, int64_t v) { return ag_rg_num(g, v); }

/* ---- affine forms */

typedef struct Affine {
    int64_t k, q, c; /* coefficients, constant */
    Ref size[SZ_COUNT];
    int64_t size_coef[SZ_COUNT];
    Ref other; /* one other integer that is the same for all of a tile: a parameter, or an element of a captured tensor by b; 0: none */
    int64_t other_coef;
    bool ok;
} Affine;

enum { MAX_COEF = 1 << 16 };

static bool is_position_size(int size) { return size == SZ_SQ || size == SZ_SK || size == SZ_OFF; }

static void add_scaled(Ranges *g, Affine *a, Ref r, int64_t by);

/* Whether r consists of constants, Sq, Sk and off under + - *, so that its magnitude is known. */
static bool bounded(const Nodes *p, Ref r, int depth) {
    const Node *n = &p->n[r];
    if (n->op == OP_CONST) return true;
    if (n->op == OP_SIZE) return is_position_size(n->index);
    bool linear = n->op == OP_ADD || n->op == OP_SUB || n->op == OP_NEG || n->op == OP_MUL;
    if (!linear || depth > 8) return false;
    return bounded(p, n->arg[0], depth + 1) && (n->op == OP_NEG || bounded(p, n->arg[1], depth + 1));
}

static void add_other(Affine *a, Ref r, int64_t by) {
    a->ok &= a->other == 0;
    a->other = r;
    a->other_coef = by;
}

static void add_product(Ranges *g, Affine *a, const Node *n, int64_t by) {
    for (int i = 0; i < 2; i++) {
        const Node *c = &g->p->n[n->arg[i]];
        if (c->op != OP_CONST) continue;
        int64_t v = c->value.u.i;
        a->ok &= v > -MAX_COEF && v < MAX_COEF && by * v > -MAX_COEF && by * v < MAX_COEF;
        if (a->ok) add_scaled(g, a, n->arg[1 - i], by * v);
        return;
    }
    a->ok = false;
}

/* a += by * r */
static void add_scaled(Ranges *g, Affine *a, Ref r, int64_t by) {
    const Node n = g->p->n[r];
    if (!a->ok || --g->budget < 0) {
        a->ok = false;
        return;
    }
    if (!(n.axes & ~g->tile) && !bounded(g->p, r, 0)) {
        add_other(a, r, by);
        return;
    }
    switch (n.op) {
    case OP_CONST: a->c += by * n.value.u.i; break;
    case OP_SIZE: a->size[n.index] = r, a->size_coef[n.index] += by; break;
    case OP_NEG: add_scaled(g, a, n.arg[0], -by); break;
    case OP_ADD:
    case OP_SUB:
        add_scaled(g, a, n.arg[0], by);
        add_scaled(g, a, n.arg[1], n.op == OP_ADD ? by : -by);
        break;
    case OP_MUL: add_product(g, a, &n, by); break;
    case OP_AXIS:
        if (n.index == AX_K) a->k += by;
        if (n.index == AX_Q) a->q += by;
        a->ok &= n.index == AX_K || n.index == AX_Q;
        break;
    default: a->ok = false; break;
    }
}

/* ---- a bound t on k, as nodes: the least and the greatest over the queries */

typedef struct Bound {
    Ref lo, hi;
} Bound;

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

static Ref plus(Ranges *g, Ref a, Ref b, int64_t coef) {
    if (coef == 0) return a;
    Ref x = magnitude(coef) == 1 ? b : op2(g, OP_MUL, b, num(g, magnitude(coef)));
    if (!a) return coef > 0 ? x : ag_fold_node(g->p, (Node){.op = OP_NEG, .arg = {x}});
    return op2(g, coef > 0 ? OP_ADD : OP_SUB, a, x);
}

/* c * k against t, from an affine form that is k * (+-c) + ...: t = -(the rest) * (+-1).  false: no bound in 32 bits. */
static bool solve(Ranges *g, const Affine *a, Bound *t) {
    const int64_t limit = AG_POSITION_LIMIT, sign = a->k > 0 ? -1 : 1; /* t = sign * (rest) */
    int64_t reach = magnitude(a->c) + magnitude(a->q) * limit;
    for (int i = 0; i < SZ_COUNT; i++) reach += magnitude(a->size_coef[i]) * limit;
    bool fits = a->other ? 2 * reach + limit + 1 < INT32_MAX : reach + 1 < INT32_MAX;
    if (magnitude(a->k) > 1) fits = fits && reach + magnitude(a->k) * g->keys + 1 < INT32_MAX; /* the mask itself must not wrap */
    if (!fits || (a->other && magnitude(a->other_coef) != 1)) return false;

    Ref first = ag_node_leaf(g->p, OP_AXISMIN, T_INT, AX_Q, (Span){0}), last = ag_node_leaf(g->p, OP_AXISMAX, T_INT, AX_Q, (Span){0});
    const int64_t q = sign * a->q, clamp = limit + reach;
    int64_t least = 0, most = 0;
    bool known = !a->other || ag_rg_reach(g, a->other, &least, &most);
    bool near = known && reach + (most > -least ? most : -least) + 1 < INT32_MAX;
    Ref u = near ? a->other : op2(g, OP_MIN, op2(g, OP_MAX, a->other, num(g, -clamp)), num(g, clamp));
    Ref *const side[2] = {&t->lo, &t->hi};
    for (int i = 0; i < 2; i++) {
        Ref x = plus(g, 0, (q > 0) == (i == 1) ? last : first, q);
        for (int z = 0; z < SZ_COUNT; z++) x = plus(g, x, a->size[z], sign * a->size_coef[z]);
        if (u) x = plus(g, x, u, sign * a->other_coef);
        *side[i] = x ? op2(g, OP_ADD, x, num(g, sign * a->c)) : num(g, sign * a->c);
    }
    return true;
}

static Ref next(Ranges *g, Ref x) {
    const Node n = g->p->n[x];
    if (n.op == OP_ADD && ag_node_is_const(g->p, n.arg[1])) return op2(g, OP_ADD, n.arg[0], num(g, g->p->n[n.arg[1]].value.u.i + 1));
    return op2(g, OP_ADD, x, num(g, 1));
}

/* c * k `op` t as k `op` t / c, c > 1; rounding is monotone, so both ends of t go alike.  false: not for this op. */
static bool divide(Ranges *g, Op op, Bound *t, int64_t c) {
    if (op == OP_EQ || op == OP_NE) return false;
    Op round = op == OP_LT || op == OP_GE ? OP_CEILDIV : OP_FLOORDIV;
    t->lo = op2(g, round, t->lo, num(g, c));
    t->hi = op2(g, round, t->hi, num(g, c));
    return true;
}

/* k `op` t */
static KeyRange compare_key(Ranges *g, Op op, const Bound *t) {
    switch (op) {
    case OP_LT: return (KeyRange){.need_hi = t->hi, .plain_hi = t->lo};
    case OP_LE: return (KeyRange){.need_hi = next(g, t->hi), .plain_hi = next(g, t->lo)};
    case OP_GE: return (KeyRange){.need_lo = t->lo, .plain_lo = t->hi};
    case OP_GT: return (KeyRange){.need_lo = next(g, t->lo), .plain_lo = next(g, t->hi)};
    case OP_EQ: return (KeyRange){.need_lo = t->lo, .need_hi = next(g, t->hi), .plain_lo = t->hi, .plain_hi = next(g, t->lo)};
    default: return ag_rg_unknown;
    }
}

/* ---- conditions */

static Ref pick(Ranges *g, Op op, Ref a, Ref b) { return a && b ? op2(g, op, a, b) : a ? a : b; }

static Ref size_sk(Ranges *g) { return ag_node_leaf(g->p, OP_SIZE, T_INT, SZ_SK, (Span){0}); }

/* Where the condition holds, r; else nothing is known. */
static KeyRange provided(Ranges *g, Ref condition, KeyRange r) {
    if (!condition) return r;
    if (r.never_needed) return ag_rg_unknown;
    Ref zero = num(g, 0), all = size_sk(g);
    if (r.need_lo) r.need_lo = ag_rg_select(g, condition, r.need_lo, zero);
    if (r.need_hi) r.need_hi = ag_rg_select(g, condition, r.need_hi, all);
    if (r.gap_lo) r.gap_hi = ag_rg_select(g, condition, r.gap_hi, r.gap_lo);
    if (!r.never_plain) r.plain_hi = ag_rg_select(g, condition, r.plain_hi ? r.plain_hi : all, zero);
    return r;
}

KeyRange ag_rg_rows(Ranges *g, Truth t) {
    const Node may = g->p->n[t.may], must = g->p->n[t.must];
    if (may.op == OP_CONST && !may.value.u.b) return ag_rg_nothing;
    if (must.op == OP_CONST && must.value.u.b) return ag_rg_everything;
    KeyRange r = {.never_plain = must.op == OP_CONST};
    if (may.op != OP_CONST) r.need_hi = ag_rg_select(g, t.may, size_sk(g), num(g, 0));
    if (!r.never_plain) r.plain_hi = ag_rg_select(g, t.must, size_sk(g), num(g, 0));
    return r;
}

KeyRange ag_rg_both(Ranges *g, const KeyRange *a, const KeyRange *b) {
    if (a->never_needed || b->never_needed) return ag_rg_nothing;
    KeyRange r = {.need_lo = pick(g, OP_MAX, a->need_lo, b->need_lo), .need_hi = pick(g, OP_MIN, a->need_hi, b->need_hi)};
    const KeyRange *gap = a->gap_lo ? a : b;
    r.gap_lo = gap->gap_lo, r.gap_hi = gap->gap_hi;
    r.never_plain = a->never_plain || b->never_plain;
    if (r.never_plain) return r;
    r.plain_lo = pick(g, OP_MAX, a->plain_lo, b->plain_lo);
    r.plain_hi = pick(g, OP_MIN, a->plain_hi, b->plain_hi);
    return r;
}

/* Plain ranges of which neither is unbounded and not both on the same end.  Where they touch, which the kernel finds, their union; else the one that begins later:
 * of a window and the first keys the window. */
static void unite_apart(Ranges *g, KeyRange *r, const KeyRange *a, const KeyRange *b) {
    const KeyRange *low = !a->plain_lo ? a : b, *high = !a->plain_lo ? b : a;
    Ref zero = num(g, 0), sk = size_sk(g);
    Ref touch = op2(g, OP_LE, pick(g, OP_MAX, a->plain_lo, b->plain_lo), pick(g, OP_MIN, a->plain_hi, b->plain_hi));
    r->plain_lo = ag_rg_select(g, touch, low->plain_lo ? op2(g, OP_MIN, low->plain_lo, high->plain_lo) : zero, high->plain_lo);
    r->plain_hi = high->plain_hi;
    if (high->plain_hi) r->plain_hi = ag_rg_select(g, touch, low->plain_hi ? op2(g, OP_MAX, low->plain_hi, high->plain_hi) : sk, high->plain_hi);
}

static void unite_plain(Ranges *g, KeyRange *r, const KeyRange *a, const KeyRange *b) {
    const KeyRange *one = a->never_plain ? b : a;
    r->never_plain = one->never_plain;
    if (a->never_plain || b->never_plain) {
        r->plain_lo = one->plain_lo, r->plain_hi = one->plain_hi;
        return;
    }
    if ((!a->plain_lo && !a->plain_hi) || (!b->plain_lo && !b->plain_hi)) return;
    if (!a->plain_lo && !b->plain_lo)
        r->plain_hi = op2(g, OP_MAX, a->plain_hi, b->plain_hi);
    else if (!a->plain_hi && !b->plain_hi)
        r->plain_lo = op2(g, OP_MIN, a->plain_lo, b->plain_lo);
    else
        unite_apart(g, r, a, b);
}

/* Keys between those that a and b need; else what is left of a gap of either. */
static void find_gap(Ranges *g, KeyRange *r, const KeyRange *a, const KeyRange *b) {
    Ref end[2] = {a->need_hi, b->need_hi}; /* an empty range ends where it begins */
    if (a->need_lo && a->need_hi) end[0] = op2(g, OP_MAX, a->need_lo, a->need_hi);
    if (b->need_lo && b->need_hi) end[1] = op2(g, OP_MAX, b->need_lo, b->need_hi);
    bool a_first = end[0] && b->need_lo, b_first = end[1] && a->need_lo;
    if (a_first || b_first) {
        r->gap_lo = a_first && b_first ? op2(g, OP_MIN, end[0], end[1]) : end[b_first];
        r->gap_hi = a_first && b_first ? op2(g, OP_MAX, a->need_lo, b->need_lo) : a_first ? b->need_lo : a->need_lo;
    } else if (a->gap_lo && b->gap_lo) {
        r->gap_lo = op2(g, OP_MAX, a->gap_lo, b->gap_lo);
        r->gap_hi = op2(g, OP_MIN, a->gap_hi, b->gap_hi);
    } else if (a->gap_lo || b->gap_lo) {
        const KeyRange *has = a->gap_lo ? a : b, *other = a->gap_lo ? b : a;
        if (!other->need_lo && !other->need_hi) return;
        r->gap_lo = other->need_hi ? op2(g, OP_MAX, has->gap_lo, other->need_hi) : has->gap_lo;
        r->gap_hi = other->need_hi ? has->gap_hi : op2(g, OP_MIN, has->gap_hi, other->need_lo);
    }
}

KeyRange ag_rg_either(Ranges *g, const KeyRange *a, const KeyRange *b) {
    if (a->never_needed) return *b;
    if (b->never_needed) return *a;
    KeyRange r = {0};
    if (a->need_lo && b->need_lo) r.need_lo = op2(g, OP_MIN, a->need_lo, b->need_lo);
    if (a->need_hi && b->need_hi) r.need_hi = op2(g, OP_MAX, a->need_hi, b->need_hi);
    find_gap(g, &r, a, b);
    unite_plain(g, &r, a, b);
    return r;
}

static KeyRange combine(Ranges *g, bool conjunction, const KeyRange *a, const KeyRange *b) {
    return conjunction ? ag_rg_both(g, a, b) : ag_rg_either(g, a, b);
}

/* How `side` of a comparison, f(x, y), splits it: f(x, y) < t is (x < t) and (y < t), or `or`.  abs(x) is max(x, -x). */
static const struct {
    Op f;
    bool below; /* for <, <=; else for >, >= */
    bool conjunction;
} split[] = {
    {OP_MAX, true, true}, {OP_MAX, false, false}, {OP_MIN, true, false}, {OP_MIN, false, true}, {OP_ABS, true, true}, {OP_ABS, false, false},
};

static Op mirrored(Op op) { return op == OP_LT ? OP_GT : op == OP_LE ? OP_GE : op == OP_GT ? OP_LT : op == OP_GE ? OP_LE : op; }

static KeyRange comparison(Ranges *g, Op op, Ref x, Ref y);

static bool try_split(Ranges *g, Op op, Ref x, Ref y, KeyRange *out) {
    const Node n = g->p->n[x];
    bool below = op == OP_LT || op == OP_LE, above = op == OP_GT || op == OP_GE;
    if (!(n.axes & 1 << AX_K)) return false;
    for (int i = 0; i < LEN(split); i++) {
        if (split[i].f != n.op || (split[i].below ? !below : !above)) continue;
        Ref other = n.op == OP_ABS ? ag_fold_node(g->p, (Node){.op = OP_NEG, .arg = {n.arg[0]}}) : n.arg[1];
        KeyRange a = comparison(g, op, n.arg[0], y), b = comparison(g, op, other, y);
        *out = combine(g, split[i].conjunction, &a, &b);
        return true;
    }
    return false;
}

/* x `op` y with a key on one side, by extents.  Bounds that hold only where the kernel finds a divisor positive are made for that. */
static KeyRange between(Ranges *g, Op op, Ref x, Ref y) {
    if (ag_rg_has_key(g, y)) {
        Ref swap = x;
        x = y, y = swap, op = mirrored(op);
    }
    if (ag_rg_has_key(g, y)) return ag_rg_unknown;
    Ref outer = g->assumed;
    g->assumed = 0;
    Extent t = ag_rg_extent(g, y);
    Between b = {op == OP_GE || op == OP_GT || op == OP_EQ, op == OP_LE || op == OP_LT || op == OP_EQ, t, t};
    if (op == OP_GT) b.ge = ag_rg_step(g, ag_rg_cut(g, t, INT32_MIN, INT32_MAX - 1), 1);
    if (op == OP_LT) b.le = ag_rg_step(g, ag_rg_cut(g, t, INT32_MIN + 1, INT32_MAX), -1);
    KeyRange r = t.ok ? ag_rg_solve(g, x, b) : ag_rg_unknown;
    r = provided(g, g->assumed, r);
    g->assumed = outer;
    return r;
}

static KeyRange differs(Ranges *g, Ref x, Ref y) {
    KeyRange below = comparison(g, OP_LT, x, y), above = comparison(g, OP_GT, x, y);
    KeyRange r = below.never_plain ? above : below; /* what is plain of the one: few masks have both */
    r.need_lo = r.need_hi = 0;                      /* and what neither needs is a key or so */
    r.gap_lo = r.gap_hi = 0;
    r.never_needed = below.never_needed && above.never_needed;
    return r;
}

/* Does neither side leave 32 bits on the way?  What wraps around there is not affine; what is the same for a tile may. */
static bool is_exact(Ranges *g, Ref x, Ref y) {
    enum { NODES = 256 };
    int64_t least, most;
    int kept = g->budget;
    g->budget = NODES;
    bool exact = ag_rg_reach(g, x, &least, &most) && ag_rg_reach(g, y, &least, &most);
    g->budget = kept;
    return exact;
}

static KeyRange comparison(Ranges *g, Op op, Ref x, Ref y) {
    KeyRange r;
    Bound t;
    if (--g->budget < 0 || g->p->n[x].type != T_INT) return ag_rg_unknown;
    if (op == OP_NE) return differs(g, x, y);
    if (try_split(g, op, x, y, &r) || try_split(g, mirrored(op), y, x, &r)) return r;
    Affine a = {.ok = true};
    add_scaled(g, &a, x, 1);
    add_scaled(g, &a, y, -1);
    if (!a.ok || a.k == 0 || !is_exact(g, x, y) || !solve(g, &a, &t)) return between(g, op, x, y);
    if (a.k < 0) op = mirrored(op); /* x - y = +-(c * k - t) */
    if (magnitude(a.k) > 1 && !divide(g, op, &t, magnitude(a.k))) return between(g, op, x, y);
    return compare_key(g, op, &t);
}

/* A condition on rows. */
static KeyRange rows(Ranges *g, Ref r, bool negated) {
    Ref outer = g->assumed;
    g->assumed = 0;
    Truth t = ag_rg_truth(g, r);
    if (negated) t = (Truth){ag_fold_node(g->p, (Node){.op = OP_NOT, .arg = {t.must}}), ag_fold_node(g->p, (Node){.op = OP_NOT, .arg = {t.may}})};
    KeyRange x = provided(g, g->assumed, ag_rg_rows(g, t));
    g->assumed = outer;
    return x;
}

/* select(c, a, b) = (c and a) or (not c and b) */
static KeyRange choice(Ranges *g, const Node *n, bool negated) {
    KeyRange part[2];
    for (int i = 0; i < 2; i++) {
        KeyRange c = ag_rg_condition(g, n->arg[0], i == 1), x = ag_rg_condition(g, n->arg[1 + i], negated);
        part[i] = ag_rg_both(g, &c, &x);
    }
    return ag_rg_either(g, &part[0], &part[1]);
}

KeyRange ag_rg_condition(Ranges *g, Ref r, bool negated) {
    const Node n = g->p->n[r];
    if (--g->budget < 0) return ag_rg_unknown;
    if (n.op != OP_CONST && !ag_rg_has_key(g, r)) return rows(g, r, negated);
    switch (n.op) {
    case OP_CONST: return n.value.u.b != negated ? ag_rg_everything : ag_rg_nothing;
    case OP_NOT: return ag_rg_condition(g, n.arg[0], !negated);
    case OP_SELECT: return choice(g, &n, negated);
    case OP_AND:
    case OP_OR: {
        KeyRange a = ag_rg_condition(g, n.arg[0], negated), b = ag_rg_condition(g, n.arg[1], negated);
        return combine(g, (n.op == OP_AND) != negated, &a, &b);
    }
    default: break;
    }
    if (ag_opposite(n.op) == OP_COUNT) return ag_rg_unknown;
    return comparison(g, negated ? ag_opposite(n.op) : n.op, n.arg[0], n.arg[1]);
}

/* ---- the mask, row by row */

/* Is there a division or an absolute value of keys? */
static bool is_indirect(const Ranges *g, Ref r, int depth) {
    const Node *n = &g->p->n[r];
    if (depth > 16 || !ag_rg_has_key(g, r)) return false;
    if (n->op == OP_FLOORDIV || n->op == OP_ABS) return true;
    for (int i = 0; i < ag_op[n->op].arity; i++)
        if (is_indirect(g, n->arg[i], depth + 1)) return true;
    return false;
}

/* Such a comparison as bounds on k: once a row in place of once an element.  0: it has none that say the same. */
static Ref as_bounds(Ranges *g, const Node *n) {
    KeyRange r = comparison(g, n->op, n->arg[0], n->arg[1]);
    bool exact = !r.never_plain && !r.never_needed && !r.gap_lo && r.need_lo == r.plain_lo && r.need_hi == r.plain_hi;
    Ref k = ag_node_leaf(g->p, OP_AXIS, T_INT, AX_K, (Span){0}), all = ag_node_bool(g->p, true);
    if (!exact) return 0;
    Ref lo = r.need_lo ? op2(g, OP_GE, k, r.need_lo) : all, hi = r.need_hi ? op2(g, OP_LT, k, r.need_hi) : all;
    return op2(g, OP_AND, lo, hi);
}

/* g: of a single row */
static Ref by_row(Ranges *g, Ref r) {
    Node n = g->p->n[r];
    if (--g->budget < 0 || !is_indirect(g, r, 0)) return r;
    if (n.op == OP_AND || n.op == OP_OR || n.op == OP_NOT || n.op == OP_SELECT) {
        for (int i = 0; i < ag_op[n.op].arity; i++) n.arg[i] = by_row(g, n.arg[i]);
        n.axes = 0;
        return ag_fold_node(g->p, n);
    }
    Ref bounds = ag_opposite(n.op) != OP_COUNT ? as_bounds(g, &n) : 0;
    return bounds ? bounds : r;
}

/* ---- the mask */

/* Keys are needed where any reduction over them gets more than its identity.  The pool holds nothing but what the outputs need: hoist rebuilt it. */
static Ref find_mask(Math *m) {
    Nodes *p = &m->nodes;
    Ref mask = 0;
    for (Ref r = 1, len = p->len; r < len; r++) {
        const Node n = p->n[r];
        if ((n.op != OP_RSUM && n.op != OP_RMAX) || n.index != AX_K) continue;
        Ref own = n.op == OP_RMAX ? ag_neg_inf_unless(m->spec, p, n.arg[0]) : ag_zero_unless(m->spec, p, n.arg[0]);
        if (!own) return 0;
        mask = mask ? ag_fold_node(p, (Node){.op = OP_OR, .arg = {mask, own}}) : own;
    }
    return mask;
}

enum { BUDGET = 4096 };

void ag_pass_ranges(Fn *fn) {
    Math *m = fn->math;
    bool packed = fn->sched && fn->sched->f[F_PACK_GQA].v, one_head = !fn->program && fn->sched && !packed;
    Ranges g = {.spec = m->spec,
                .p = &m->nodes,
                .keys = fn->pool ? AG_POSITION_LIMIT / fn->pool->stride.n + 1 : AG_POSITION_LIMIT,
                .tile = (uint8_t)(1 << AX_B | (fn->program ? 0 : 1 << AX_G) | (one_head ? 1 << AX_H : 0)),
                .group = packed && !fn->program ? m->spec->group : 0,
                .budget = BUDGET};
    Ref mask = find_mask(m);
    m->range = mask ? ag_rg_condition(&g, mask, false) : ag_rg_everything;
    m->range.mask = mask;
    g.tile = 1 << AX_B | 1 << AX_H | 1 << AX_G | 1 << AX_Q;
    g.group = 0;
    g.budget = BUDGET;
    if (mask) m->range.visible = by_row(&g, mask);
}
