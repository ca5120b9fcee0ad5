/* pass_ranges.c: the mask, and from it which keys a tile of queries needs and which of them it sees without exception.
 *
 * needs lowered, simple, axes     makes range
 *
 * The mask is found, not read: it is the condition outside of which every reduction over k gets its identity (law.c).  Ranges follow from its structure:
 *   comparison, affine in k and q, k with coefficient +-1    bounds from the first and last query
 *   and    intersection of both          or    hull of what is needed; union of what is plain, if it is an interval
 *   not, select, abs(x) < y, min, max    rewritten to these
 *   anything else                        needs every key, and none is plain
 *
 * Arithmetic is in 32 bits.  Positions and sizes are below P = AG_POSITION_LIMIT in magnitude (the runtime refuses larger ones), other integers may be
 * anything.  A bound t(q) = a * q + u + r only matters against k in [0, P): with |everything but u| <= R, clamping u to +-(P + R) changes no answer, and
 * t fits if P + 2 R + 1 < 2^31.  Comparisons that do not, and those with more than one unbounded integer, get no range.  A mask whose own arithmetic
 * overflows 32 bits is outside of this (and of the language). */
#include "compile.h"
#include "law.h"

typedef struct Ranges {
    const Spec *spec;
    Nodes *p;
    int64_t keys; /* k is below */
    uint8_t tile; /* axes that are the same for all of a tile */
    int budget;   /* conditions still looked into: shared ones are visited once per use */
} Ranges;

static const KeyRange everything = {0};
static const KeyRange unknown = {.never_plain = true};
static const KeyRange nothing = {.never_plain = true, .never_needed = true};

static Ref op2(Ranges *g, Op op, Ref a, Ref b) { return ag_fold_node(g->p, (Node){.op = op, .arg = {a, b}}); }
static Ref num(Ranges *g, int64_t v) { return ag_node_int(g->p, v); }

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
    Ref u = a->other ? op2(g, OP_MIN, op2(g, OP_MAX, a->other, num(g, -clamp)), num(g, clamp)) : 0;
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
    default: return unknown;
    }
}

/* ---- conditions */

static KeyRange condition(Ranges *g, Ref r, bool negated);

static Ref pick(Ranges *g, Op op, Ref a, Ref b) { return a && b ? op2(g, op, a, b) : a ? a : b; }

static KeyRange both(Ranges *g, const KeyRange *a, const KeyRange *b) {
    if (a->never_needed || b->never_needed) return nothing;
    KeyRange r = {.need_lo = pick(g, OP_MAX, a->need_lo, b->need_lo), .need_hi = pick(g, OP_MIN, a->need_hi, b->need_hi)};
    r.never_plain = a->never_plain || b->never_plain;
    if (r.never_plain) return r;
    r.plain_lo = pick(g, OP_MAX, a->plain_lo, b->plain_lo);
    r.plain_hi = pick(g, OP_MIN, a->plain_hi, b->plain_hi);
    return r;
}

/* The union of two plain ranges where it is an interval for sure: both unbounded on the same end.  Else one of them, the less bounded. */
static void unite_plain(Ranges *g, KeyRange *r, const KeyRange *a, const KeyRange *b) {
    bool below = !a->plain_lo && !b->plain_lo, above = !a->plain_hi && !b->plain_hi;
    const KeyRange *one = !b->plain_lo + !b->plain_hi > !a->plain_lo + !a->plain_hi ? b : a;
    if (a->never_plain || b->never_plain) one = a->never_plain ? b : a;
    r->never_plain = one->never_plain;
    r->plain_lo = one->plain_lo, r->plain_hi = one->plain_hi;
    if (a->never_plain || b->never_plain || (one->plain_lo == 0 && one->plain_hi == 0)) return;
    if (below) r->plain_hi = op2(g, OP_MAX, a->plain_hi, b->plain_hi);
    if (above) r->plain_lo = op2(g, OP_MIN, a->plain_lo, b->plain_lo);
}

static KeyRange either(Ranges *g, const KeyRange *a, const KeyRange *b) {
    if (a->never_needed) return *b;
    if (b->never_needed) return *a;
    KeyRange r = {0};
    if (a->need_lo && b->need_lo) r.need_lo = op2(g, OP_MIN, a->need_lo, b->need_lo);
    if (a->need_hi && b->need_hi) r.need_hi = op2(g, OP_MAX, a->need_hi, b->need_hi);
    unite_plain(g, &r, a, b);
    return r;
}

static KeyRange combine(Ranges *g, bool conjunction, const KeyRange *a, const KeyRange *b) { return conjunction ? both(g, a, b) : either(g, a, b); }

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

static KeyRange comparison(Ranges *g, Op op, Ref x, Ref y) {
    KeyRange r;
    Bound t;
    if (--g->budget < 0 || g->p->n[x].type != T_INT) return unknown;
    if (try_split(g, op, x, y, &r) || try_split(g, mirrored(op), y, x, &r)) return r;
    Affine a = {.ok = true};
    add_scaled(g, &a, x, 1);
    add_scaled(g, &a, y, -1);
    if (!a.ok || a.k == 0 || !solve(g, &a, &t)) return unknown;
    if (a.k < 0) op = mirrored(op); /* x - y = +-(c * k - t) */
    if (magnitude(a.k) > 1 && !divide(g, op, &t, magnitude(a.k))) return unknown;
    return compare_key(g, op, &t);
}

/* select(c, a, b) = (c and a) or (not c and b) */
static KeyRange choice(Ranges *g, const Node *n, bool negated) {
    KeyRange part[2];
    for (int i = 0; i < 2; i++) {
        KeyRange c = condition(g, n->arg[0], i == 1), x = condition(g, n->arg[1 + i], negated);
        part[i] = both(g, &c, &x);
    }
    return either(g, &part[0], &part[1]);
}

static KeyRange condition(Ranges *g, Ref r, bool negated) {
    const Node n = g->p->n[r];
    if (--g->budget < 0) return unknown;
    switch (n.op) {
    case OP_CONST: return n.value.u.b != negated ? everything : nothing;
    case OP_NOT: return condition(g, n.arg[0], !negated);
    case OP_SELECT: return choice(g, &n, negated);
    case OP_AND:
    case OP_OR: {
        KeyRange a = condition(g, n.arg[0], negated), b = condition(g, n.arg[1], negated);
        return combine(g, (n.op == OP_AND) != negated, &a, &b);
    }
    default: break;
    }
    if (ag_opposite(n.op) == OP_COUNT || !(n.axes & 1 << AX_K)) return unknown;
    return comparison(g, negated ? ag_opposite(n.op) : n.op, n.arg[0], n.arg[1]);
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
    bool one_head = !fn->program && fn->sched && !fn->sched->f[F_PACK_GQA].v;
    Ranges g = {.spec = m->spec,
                .p = &m->nodes,
                .keys = fn->pool ? AG_POSITION_LIMIT / fn->pool->stride.n + 1 : AG_POSITION_LIMIT,
                .tile = (uint8_t)(1 << AX_B | (one_head ? 1 << AX_H : 0)),
                .budget = BUDGET};
    Ref mask = find_mask(m);
    m->range = mask ? condition(&g, mask, false) : everything;
    m->range.mask = mask;
}
