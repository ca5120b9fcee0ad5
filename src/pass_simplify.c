/* pass_simplify.c: constants and identities; exponentials and logarithms in base 2, with as few multiplications per element as there can be.
 *
 * needs lowered     makes simple     breaks axes, range
 *
 * Every float is seen as a product: c * (factors that vary with neither k nor d) * core.  A rule per operation says which factors may leave it:
 *   positive ones leave maxima, masks and whatever else is homogeneous    max k: c * x = c * (max k: x),  select(m, c * x, -inf) = c * select(m, x, -inf)
 *   all of them leave sums                                                sum k: c * x = c * (sum k: x)
 * so a score reaches exp as c * x with x the raw product of q and k, and exp(c * x - finite(c * mx)) becomes exp2(c' * x - finite(c' * mx)) with
 * c' = c * log2(e) computed once.  A factor whose sign is not known stays inside, and takes the log2(e) in with it.
 * Where the score itself is a weight (normalize: sum, none) it keeps its factors: weights are rounded to the storage type as the spec has them, which in f16 may
 * be within its range only by these.
 *
 * x / u becomes x * (1 / u) for u that varies with neither k nor d, which may differ from the quotient in the last place. */
#include <math.h>

#include "compile.h"
#include "law.h"

typedef struct Factor {
    Ref node;
    bool below; /* divides */
    bool positive;
} Factor;

enum { MAX_FACTORS = 6, ABSORB_BUDGET = 64 };

/* c * product of factors * core; core 0: 1. */
typedef struct Term {
    double c; /* > 0 and well inside the range of a float */
    int n;
    Factor f[MAX_FACTORS];
    Ref core;
} Term;

typedef struct Simplify {
    const Spec *spec;
    Nodes *p;   /* the new pool */
    Term *term; /* per old node that is a float */
    Ref *built; /* per old node: the new one, 0 before it is wanted */
    int budget; /* nodes that an absorption may still look at */
} Simplify;

static Ref fold(Simplify *s, Op op, Ref a, Ref b, Span at) { return ag_fold_node(s->p, (Node){.op = op, .arg = {a, b}, .span = at}); }
static Ref times(Simplify *s, Ref a, Ref b) { return fold(s, OP_MUL, a, b, s->p->n[a].span); }
static bool uniform(const Simplify *s, Ref r) { return !(s->p->n[r].axes & AXES_INNER); }

static bool keeps_weights(const Simplify *s) { return s->spec->normalize != NORMALIZE_SOFTMAX; }

/* ---- products */

static bool fits(double c) { return c > 0x1p-100 && c < 0x1p100; }
static bool is_one(const Term *t) { return t->c == 1 && t->n == 0 && !t->core; }

/* The product of the factors, without core. */
static Ref build_factors(Simplify *s, const Term *t) {
    Ref above = 0, below = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < t->n; i++) {
            Ref *side = t->f[i].below ? &below : &above;
            if (t->f[i].positive == (pass == 0)) *side = *side ? times(s, *side, t->f[i].node) : t->f[i].node;
        }
    Ref c = ag_node_float(s->p, t->c);
    if (below)
        return above && t->c != 1 ? times(s, fold(s, OP_DIV, above, below, (Span){0}), c) : fold(s, OP_DIV, above ? above : c, below, (Span){0});
    return above ? times(s, above, c) : c;
}

static Ref build(Simplify *s, const Term *t) {
    if (t->core && t->c == 1 && t->n == 0) return t->core;
    Ref u = build_factors(s, t);
    return t->core ? times(s, t->core, u) : u;
}

static void add_factor(Simplify *s, Term *t, Factor f) {
    if (t->n == MAX_FACTORS) {
        bool positive = true;
        for (int i = 0; i < t->n; i++) positive &= t->f[i].positive;
        Ref all = build_factors(s, t);
        t->c = 1;
        t->n = 0;
        t->f[t->n++] = (Factor){all, false, positive};
    }
    t->f[t->n++] = f;
}

/* r as one factor, constant or core. */
static Term whole(Simplify *s, Ref r) {
    Term t = {.c = 1};
    const Node *n = &s->p->n[r];
    if (n->op == OP_CONST && fits(n->value.u.f))
        t.c = n->value.u.f;
    else if (uniform(s, r))
        add_factor(s, &t, (Factor){r, false, ag_positive(s->spec, s->p, r)});
    else
        t.core = r;
    return t;
}

/* a * b, or a / b. */
static Term product(Simplify *s, Term a, const Term *b, bool below) {
    double c = below ? a.c / b->c : a.c * b->c;
    if (fits(c))
        a.c = c;
    else
        add_factor(s, &a, (Factor){ag_node_float(s->p, b->c), below, true});
    for (int i = 0; i < b->n; i++) add_factor(s, &a, (Factor){b->f[i].node, b->f[i].below != below, b->f[i].positive});
    if (b->core && below)
        a.core = fold(s, OP_DIV, a.core ? a.core : ag_node_float(s->p, 1), b->core, (Span){0});
    else if (b->core)
        a.core = a.core ? times(s, a.core, b->core) : b->core;
    return a;
}

/* The factors of a product that was built before. */
static Term factors_of(Simplify *s, Ref u) {
    const Node n = s->p->n[u];
    if (--s->budget < 0 || !uniform(s, u) || (n.op != OP_MUL && n.op != OP_DIV)) return whole(s, u);
    Term b = factors_of(s, n.arg[1]);
    return product(s, factors_of(s, n.arg[0]), &b, n.op == OP_DIV);
}

static Term term_of(Simplify *s, Ref r) {
    const Node n = s->p->n[r];
    if (n.op != OP_MUL || uniform(s, r) || !uniform(s, n.arg[1])) return whole(s, r);
    s->budget = ABSORB_BUDGET;
    Term t = factors_of(s, n.arg[1]);
    t.core = n.arg[0];
    return t;
}

/* Parts of t: t = positives * rest. */
static Term positives(const Term *t) {
    Term p = {.c = t->c};
    for (int i = 0; i < t->n; i++)
        if (t->f[i].positive) p.f[p.n++] = t->f[i];
    return p;
}

static Ref rest(Simplify *s, const Term *t) {
    Term r = {.c = 1, .core = t->core};
    for (int i = 0; i < t->n; i++)
        if (!t->f[i].positive) r.f[r.n++] = t->f[i];
    return build(s, &r);
}

static bool same_positives(const Term *a, const Term *b) {
    Term x = positives(a), y = positives(b);
    bool same = x.c == y.c && x.n == y.n;
    for (int i = 0; i < x.n && same; i++) same = x.f[i].node == y.f[i].node && x.f[i].below == y.f[i].below;
    return same;
}

/* ---- taking a positive factor in */

static Ref absorb(Simplify *s, const Term *p, Ref x);

/* p * x where x is a maximum times positive factors: all of them go where p alone would go if it met the maximum, for there is to be only one; else 0. */
static Ref into_maximum(Simplify *s, const Term *p, Ref x) {
    if (!uniform(s, x)) return 0;
    Term t = factors_of(s, x), all = *p;
    Ref maximum = 0;
    for (int i = 0; i < t.n; i++) {
        bool is_maximum = s->p->n[t.f[i].node].op == OP_RMAX;
        if (is_maximum ? maximum || t.f[i].below : !t.f[i].positive) return 0;
        if (is_maximum)
            maximum = t.f[i].node;
        else
            add_factor(s, &all, t.f[i]);
    }
    if (!maximum || !fits(all.c * t.c)) return 0;
    all.c *= t.c;
    return absorb(s, &all, maximum);
}

/* p * x where it costs no further multiplication per element, because x has a factor already, or is computed once per row at most; else 0. */
static Ref absorb(Simplify *s, const Term *p, Ref x) {
    const Node n = s->p->n[x];
    Ref a = 0, b = 0;
    if (--s->budget < 0) return 0;
    switch (n.op) {
    case OP_MUL:
        a = into_maximum(s, p, x);
        if (a) return a;
        if (uniform(s, x) || !uniform(s, n.arg[1])) break;
        Term u = product(s, factors_of(s, n.arg[1]), p, false);
        return times(s, n.arg[0], build(s, &u));
    case OP_SELECT:
        if (!ag_node_is_neg_inf(s->p, n.arg[2]) && !ag_node_is_float(s->p, n.arg[2], 0)) break;
        a = absorb(s, p, n.arg[1]);
        if (a) return ag_fold_node(s->p, (Node){.op = OP_SELECT, .arg = {n.arg[0], a, n.arg[2]}, .span = n.span});
        break;
    case OP_FINITE:
    case OP_RMAX:
        a = absorb(s, p, n.arg[0]);
        if (a) return ag_fold_node(s->p, (Node){.op = n.op, .arg = {a}, .index = n.index, .span = n.span});
        break;
    case OP_MAX:
    case OP_ADD:
    case OP_SUB:
        a = absorb(s, p, n.arg[0]);
        b = a ? absorb(s, p, n.arg[1]) : 0;
        if (b) return fold(s, n.op, a, b, n.span);
        break;
    default: break;
    }
    return uniform(s, x) ? times(s, x, build_factors(s, p)) : 0;
}

static Ref absorb_or_multiply(Simplify *s, const Term *p, Ref x) {
    s->budget = ABSORB_BUDGET;
    Ref r = absorb(s, p, x);
    return r ? r : times(s, x, build_factors(s, p));
}

/* p * x.  Over a sum with a term that is the same for all k, so that the rest is one multiply-add per element.  No further: what is left of a score less its maximum
 * is that score then, which is there for the maximum. */
static Ref push(Simplify *s, const Term *p, Ref x) {
    if (is_one(p)) return x;
    s->budget = ABSORB_BUDGET;
    Ref r = absorb(s, p, x);
    if (r) return r;
    const Node n = s->p->n[x];
    bool sum = n.op == OP_ADD || n.op == OP_SUB;
    if (!sum || (!uniform(s, n.arg[0]) && !uniform(s, n.arg[1]))) return times(s, x, build_factors(s, p));
    Ref a = absorb_or_multiply(s, p, n.arg[0]), b = absorb_or_multiply(s, p, n.arg[1]);
    return fold(s, n.op, a, b, n.span);
}

/* ---- a rule per operation: its term from those of its operands */

static Ref operand(Simplify *s, Ref old) {
    if (!s->built[old]) s->built[old] = build(s, &s->term[old]);
    return s->built[old];
}

static Node with_operands(Simplify *s, const Node *n) {
    Node x = *n;
    x.axes = 0;
    for (int i = 0; i < 3; i++) x.arg[i] = n->arg[i] ? operand(s, n->arg[i]) : 0;
    for (int i = 0; i < n->nsub; i++) x.sub[i] = operand(s, n->sub[i]);
    return x;
}

static Term opaque(Simplify *s, const Node *n) { return term_of(s, ag_fold_node(s->p, with_operands(s, n))); }

static Term multiply(Simplify *s, const Node *n) { return product(s, s->term[n->arg[0]], &s->term[n->arg[1]], n->op == OP_DIV); }

/* op(c * x) = c * op(x) for c > 0 independent of what op reduces over. */
static Term homogeneous(Simplify *s, const Node *n) {
    const Term *a = &s->term[n->arg[0]];
    Term p = positives(a), r = term_of(s, ag_fold_node(s->p, (Node){.op = n->op, .arg = {rest(s, a)}, .index = n->index, .span = n->span}));
    return product(s, p, &r, false);
}

/* select(m, c * x, 0) and select(m, c * x, -inf). */
static Term choose(Simplify *s, const Node *n) {
    const Term *a = &s->term[n->arg[1]];
    Ref other = operand(s, n->arg[2]);
    if (keeps_weights(s) || (!ag_node_is_neg_inf(s->p, other) && !ag_node_is_float(s->p, other, 0))) return opaque(s, n);
    Term p = positives(a),
         r = term_of(s, ag_fold_node(s->p, (Node){.op = OP_SELECT, .arg = {operand(s, n->arg[0]), rest(s, a), other}, .span = n->span}));
    return product(s, p, &r, false);
}

/* w * v with all factors in w, for a v that varies with d; else the whole. */
static Ref weights_times(Simplify *s, Term t) {
    const Node n = s->p->n[t.core];
    for (int i = 0; i < 2 && n.op == OP_MUL; i++) {
        if (s->p->n[n.arg[i]].op != OP_LOAD || !(s->p->n[n.arg[i]].axes & 1 << AX_D)) continue;
        t.core = n.arg[1 - i];
        return times(s, build(s, &t), n.arg[i]);
    }
    return build(s, &t);
}

static Term sum_over(Simplify *s, const Node *n) {
    Term t = s->term[n->arg[0]];
    if (keeps_weights(s) && n->index == AX_K)
        return term_of(s, ag_node_intern(s->p, (Node){.op = OP_RSUM, .arg = {weights_times(s, t)}, .index = n->index, .span = n->span}));
    Ref body = t.core ? t.core : ag_node_float(s->p, 1);
    t.core = 0;
    Term r = term_of(s, ag_node_intern(s->p, (Node){.op = OP_RSUM, .arg = {body}, .index = n->index, .span = n->span}));
    return product(s, t, &r, false);
}

static bool is_logarithm(Simplify *s, const Term *t) {
    bool alone = t->n + (t->core != 0) == 1;
    return alone && t->c == M_LN2 && s->p->n[t->core ? t->core : t->f[0].node].op == OP_LOG2;
}

/* A common positive factor leaves; a sum with a logarithm is taken in base 2. */
static Term add(Simplify *s, const Node *n) {
    Term x[2] = {s->term[n->arg[0]], s->term[n->arg[1]]}, p = {.c = 1};
    Ref arg[2];
    bool log0 = is_logarithm(s, &x[0]), log1 = is_logarithm(s, &x[1]);
    if (same_positives(&x[0], &x[1])) {
        p = positives(&x[0]);
        for (int i = 0; i < 2; i++) arg[i] = rest(s, &x[i]);
    } else if (log0 || log1) {
        p.c = M_LN2;
        for (int i = 0; i < 2; i++) {
            x[i].c = (i ? log1 : log0) ? 1 : x[i].c * M_LOG2E;
            Term inner = positives(&x[i]);
            arg[i] = push(s, &inner, rest(s, &x[i]));
        }
    } else {
        return opaque(s, n);
    }
    Term r = term_of(s, fold(s, n->op, arg[0], arg[1], n->span));
    return product(s, p, &r, false);
}

/* exp, exp2, sigmoid: in base 2. */
static Term exponential(Simplify *s, const Node *n) {
    Term x = s->term[n->arg[0]];
    if (n->op != OP_EXP2) x.c *= M_LOG2E;
    Term p = positives(&x);
    return term_of(s, fold(s, n->op == OP_SIGMOID ? OP_SIGMOID2 : OP_EXP2, push(s, &p, rest(s, &x)), 0, n->span));
}

static Term logarithm(Simplify *s, const Node *n) {
    Term r = term_of(s, fold(s, OP_LOG2, operand(s, n->arg[0]), 0, n->span));
    return product(s, (Term){.c = M_LN2}, &r, false);
}

static Term (*const rule[OP_COUNT])(Simplify *s, const Node *n) = {
    [OP_MUL] = multiply,     [OP_DIV] = multiply,     [OP_ADD] = add,
    [OP_SUB] = add,          [OP_NEG] = homogeneous,  [OP_RELU] = homogeneous,
    [OP_ABS] = homogeneous,  [OP_RMAX] = homogeneous, [OP_FINITE] = homogeneous,
    [OP_RSUM] = sum_over,    [OP_SELECT] = choose,    [OP_EXP] = exponential,
    [OP_EXP2] = exponential, [OP_LOG] = logarithm,    [OP_SIGMOID] = exponential,
};

void ag_pass_simplify(Fn *fn) {
    Math *m = fn->math;
    Nodes fresh;
    ag_nodes_init(&fresh, fn->d->arena);
    size_t len = (size_t)m->nodes.len;
    Simplify s = {.spec = m->spec, .p = &fresh, .term = NEWN(fn->d->arena, Term, len), .built = NEWN(fn->d->arena, Ref, len)};
    for (Ref r = 1; r < m->nodes.len; r++) {
        const Node *n = &m->nodes.n[r];
        if (n->type == T_FLOAT)
            s.term[r] = rule[n->op] ? rule[n->op](&s, n) : opaque(&s, n);
        else
            s.built[r] = ag_fold_node(&fresh, with_operands(&s, n));
    }
    for (int i = 0; i < m->nout; i++) m->out[i].value = operand(&s, m->out[i].value);
    m->nodes = fresh;
    Nodes compact;
    ag_nodes_init(&compact, fn->d->arena);
    ag_math_rebuild(m, &compact, NULL, NULL);
}
