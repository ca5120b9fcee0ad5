/* lower.c: Spec -> Math IR, naively: whole scores, whole softmax, straight from the typed syntax tree.
 *
 *   s   = (sum d: q * k) * scale          score = the spec's, of s          x = score where the mask holds, else -inf
 *   mx  = max k: x      e = exp(x - mx)   den = sum k: e
 *   o   = sum k: e * (1 / den) * v, or 0 if den is 0        lse = mx + log(den)
 * With a factor w of weights (`weigh`), where the mask holds:   f = e * w    o = sum k: f * (1 / den) * v     mean_weight = sum k: f * (1 / den)
 * With a term exp(y) in the denominator, M = max(mx, y):  den * exp(mx - M) + exp(y - M) in place of den, exp(mx - M) in place of 1, lse from M.
 * A row that sees no key has mx = -inf and den = 0: finite(mx) keeps e at 0 there, so that o = 0 and lse = -inf without a NaN.
 *
 * Other normalisers take the score itself as the weight of a key, and have no lse:   w = score where the mask holds, else 0
 *   none   o = sum k: w * v              sum   o = (sum k: w * v) * (1 / (sum k: w + eps)), or 0 where that sum is 0 */
#include <math.h>

#include "math_ir.h"

typedef struct Lower {
    Diag *d;
    const Spec *spec;
    Nodes *p;
    Ref s, *let;          /* the scaled score; per let, its value */
    const Branch *branch; /* of several: which; NULL */
    const Ast *score, *mask, *weigh;
    bool mean;  /* the mean weight is wanted */
    int number; /* of the branch */
} Lower;

static const MathTensor tensors[TEN_COUNT] = {
    [TEN_Q] = {"q", DT_F32, 4, {AX_B, AX_H, AX_Q, AX_D}, {SZ_B, SZ_HQ, SZ_SQ, SZ_D}, false, false},
    [TEN_K] = {"k", DT_F32, 4, {AX_B, AX_G, AX_K, AX_D}, {SZ_B, SZ_HKV, SZ_SK, SZ_D}, false, false},
    [TEN_V] = {"v", DT_F32, 4, {AX_B, AX_G, AX_K, AX_D}, {SZ_B, SZ_HKV, SZ_SK, SZ_DV}, false, false},
    [TEN_O] = {"o", DT_F32, 4, {AX_B, AX_H, AX_Q, AX_D}, {SZ_B, SZ_HQ, SZ_SQ, SZ_DV}, true, false},
    [TEN_LSE] = {"lse", DT_F32, 3, {AX_B, AX_H, AX_Q}, {SZ_B, SZ_HQ, SZ_SQ}, true, true},
    [TEN_MAX] = {"max", DT_F32, 3, {AX_B, AX_H, AX_Q}, {SZ_B, SZ_HQ, SZ_SQ}, true, true},
    [TEN_MEAN] = {"mean_weight", DT_F32, 3, {AX_B, AX_H, AX_Q}, {SZ_B, SZ_HQ, SZ_SQ}, true, true},
};

static Ref op(const Lower *l, Op o, Ref a, Ref b, Ref c) { return ag_node_op(l->p, o, a, b, c, (Span){0}); }

static Ref constant(const Lower *l, Scalar v, Span at) { return ag_node_intern(l->p, (Node){.op = OP_CONST, .value = v, .span = at}); }

static Ref param(const Lower *l, int index, Span at) {
    const Param *x = &l->spec->param[index];
    return x->bound ? constant(l, x->value, at) : ag_node_leaf(l->p, OP_PARAM, x->type, index, at);
}

static Ref size(const Lower *l, int index, Span at) {
    if (index == SZ_D) return ag_node_int(l->p, l->spec->D);
    if (index == SZ_DV) return ag_node_int(l->p, l->spec->Dv);
    return ag_node_leaf(l->p, OP_SIZE, T_INT, index, at);
}

static Ref lower(const Lower *l, const Ast *e);

/* An element of a captured tensor.  The axis q alone, for a dim of queries, counts rows from 0; positions count from `off`. */
static Ref lower_input(const Lower *l, const Ast *e) {
    const Input *in = &l->spec->input[e->index];
    Node n = {.op = OP_LOAD, .type = e->type, .index = TEN_COUNT + e->index, .nsub = e->nsub, .span = e->span};
    for (int i = 0; i < e->nsub; i++) {
        const Dim *d = &in->dim[i];
        bool queries = d->kind == DIM_AXIS && d->axis == AX_Q, single = d->kind == DIM_CONST && d->n.n == 1;
        n.sub[i] = single ? ag_node_int(l->p, 0) : lower(l, e->sub[i]);
        if (queries && e->sub[i]->op == OP_AXIS && e->sub[i]->index == AX_Q) n.sub[i] = op(l, OP_SUB, n.sub[i], size(l, SZ_OFF, (Span){0}), 0);
    }
    return ag_node_intern(l->p, n);
}

static Ref lower_key_dot(const Lower *l, const Ast *e);

static Ref lower(const Lower *l, const Ast *e) {
    switch (e->op) {
    case OP_DOT: return lower_key_dot(l, e);
    case OP_SCORE: return l->s;
    case OP_LET: return l->let[e->index];
    case OP_CONST: return constant(l, e->value, e->span);
    case OP_PARAM: return param(l, e->index, e->span);
    case OP_SIZE: return size(l, e->index, e->span);
    case OP_LOAD: return lower_input(l, e);
    case OP_AXIS: return ag_node_leaf(l->p, OP_AXIS, T_INT, e->index, e->span);
    default: break;
    }
    Ref arg[3] = {0};
    for (int i = 0; i < ag_op[e->op].arity; i++) arg[i] = lower(l, e->arg[i]);
    return ag_node_op(l->p, e->op, arg[0], arg[1], arg[2], e->span);
}

/* An element of an input.  The rows of q count from 0, positions from `off`. */
static Ref load(const Lower *l, int tensor) {
    const MathTensor *t = &tensors[tensor];
    Node n = {.op = OP_LOAD, .type = T_FLOAT, .index = tensor, .nsub = t->rank};
    for (int i = 0; i < t->rank; i++) {
        n.sub[i] = ag_node_leaf(l->p, OP_AXIS, T_INT, (int)t->axis[i], (Span){0});
        if (t->axis[i] == AX_Q) n.sub[i] = op(l, OP_SUB, n.sub[i], size(l, SZ_OFF, (Span){0}), 0);
    }
    return ag_node_intern(l->p, n);
}

static Ref reduce(const Lower *l, Op o, Axis axis, Ref body, Span at);

/* What stands for q, k or v in the branch. */
static Ref source(const Lower *l, int tensor) {
    Ref whole = load(l, tensor); /* adds nodes, so it comes before the look into the pool */
    Node n = l->p->n[whole];
    const Branch *b = l->branch;
    SpecRef from = b ? (tensor == TEN_Q ? b->queries : tensor == TEN_K ? b->keys : b->values) : (SpecRef){FROM_NONE, 0};
    if (from.kind == FROM_K && tensor == TEN_V) n.index = TEN_K;
    if (from.kind == FROM_INPUT) n.index = TEN_COUNT + from.index;
    return ag_node_intern(l->p, n);
}

/* dot(r, k): r an input with rows like those of q. */
static Ref lower_key_dot(const Lower *l, const Ast *e) {
    Ref q = load(l, TEN_Q);
    Node rows = l->p->n[q];
    rows.index = TEN_COUNT + e->arg[0]->index;
    rows.span = e->arg[0]->span;
    return reduce(l, OP_RSUM, AX_D, op(l, OP_MUL, ag_node_intern(l->p, rows), source(l, TEN_K), 0), e->span);
}

static Ref reduce(const Lower *l, Op o, Axis axis, Ref body, Span at) {
    return ag_node_intern(l->p, (Node){.op = o, .arg = {body}, .index = (int)axis, .span = at});
}

/* The score, and for hidden keys `hidden`. */
static Ref lower_score(Lower *l, double hidden) {
    const Spec *spec = l->spec;
    Ref dot = reduce(l, OP_RSUM, AX_D, op(l, OP_MUL, source(l, TEN_Q), source(l, TEN_K), 0), (Span){0});
    l->s = op(l, OP_MUL, dot, param(l, 0, (Span){0}), 0);
    l->let = NEWN(l->p->arena, Ref, (size_t)spec->nlet + 1);
    for (int i = 0; i < spec->nlet; i++) l->let[i] = lower(l, spec->let[i].value);
    Ref score = l->score ? lower(l, l->score) : l->s;
    if (!l->mask) return score;
    return ag_node_op(l->p, OP_SELECT, lower(l, l->mask), score, ag_node_float(l->p, hidden), l->mask->span);
}

/* A term in the denominator, exp(y): that of a key whose value is 0.  With M = max(mx, y) the sum under mx counts exp(mx - M) times, *share, and *all = den * *share +
 * exp(y - M), which neither overflows nor vanishes.  *top: mx, then M. */
static void lower_plus(const Lower *l, Ref den, Ref *share, Ref *all, Ref *top) {
    const Ast *e = l->spec->plus;
    Ref y = e->op == OP_EXP ? lower(l, e->arg[0]) : ag_node_op(l->p, OP_LOG, lower(l, e), 0, 0, e->span);
    Ref mx = *top, most = op(l, OP_FINITE, op(l, OP_MAX, mx, y, 0), 0, 0);
    *share = ag_node_op(l->p, OP_EXP, op(l, OP_SUB, mx, most, 0), 0, 0, e->span);
    *all = op(l, OP_ADD, op(l, OP_MUL, den, *share, 0), ag_node_op(l->p, OP_EXP, op(l, OP_SUB, y, most, 0), 0, 0, e->span), 0);
    *top = l->p->n[most].arg[0];
}

/* What the passes after this one cannot do yet. */
static void refuse(Diag *d, const Spec *spec) {
    if (spec->nderive) ag_unsupported(d, spec->derive[0].span, "derived tensors ('derive') are not in this version of attngen");
    if (spec->nbranch) ag_unsupported(d, spec->branch[0].span, "branches ('branches') are not in this version of attngen");
    ag_stop_if_errors(d);
}

/* normalize: softmax. */
static void lower_softmax(Lower *l, Math *m) {
    Ref x = lower_score(l, -INFINITY);
    ag_stop_if_errors(l->d);
    Ref zero = ag_node_float(l->p, 0), one = ag_node_float(l->p, 1);
    Span at = l->p->n[x].span;
    Ref mx = reduce(l, OP_RMAX, AX_K, x, at);
    Ref e = ag_node_op(l->p, OP_EXP, op(l, OP_SUB, x, op(l, OP_FINITE, mx, 0, 0), 0), 0, 0, at);
    Ref den = reduce(l, OP_RSUM, AX_K, e, at);
    Ref seen = op(l, OP_NE, den, zero, 0); /* a row without keys has 0; one with a NaN keeps it */
    Ref share = one, all = den, top = mx;
    if (l->spec->plus) lower_plus(l, den, &share, &all, &top);
    Ref inv = op(l, OP_SELECT, seen, op(l, OP_DIV, share, all, 0), zero);
    Ref f = e;
    if (l->weigh) f = op(l, OP_MUL, e, lower(l, l->weigh), 0);
    if (l->weigh && l->mask) f = ag_node_op(l->p, OP_SELECT, lower(l, l->mask), f, zero, l->mask->span);
    Ref o = reduce(l, OP_RSUM, AX_K, op(l, OP_MUL, op(l, OP_MUL, f, inv, 0), source(l, TEN_V), 0), at);
    o = op(l, OP_SELECT, seen, o, zero); /* whatever v holds */
    Ref lse = op(l, OP_ADD, top, op(l, OP_LOG, all, 0, 0), 0);
    m->out[m->nout++] = (MathOut){TEN_O, l->number, o};
    if (ag_has_lse(l->spec)) m->out[m->nout++] = (MathOut){TEN_LSE, 0, lse};
    if (l->mean) m->out[m->nout++] = (MathOut){TEN_MEAN, l->number, op(l, OP_MUL, reduce(l, OP_RSUM, AX_K, f, at), inv, 0)};
    if (ag_puts_out(l->spec, ROWV_MAX)) m->out[m->nout++] = (MathOut){TEN_MAX, 0, mx};
}

/* normalize: sum, none. */
static void lower_weights(Lower *l, Math *m) {
    Ref w = lower_score(l, 0);
    ag_stop_if_errors(l->d);
    Span at = l->p->n[w].span;
    bool sum = l->spec->normalize == NORMALIZE_SUM;
    Ref zero = ag_node_float(l->p, 0),
        all = sum ? reduce(l, OP_RSUM, AX_K, w, at) : 0; /* before o, so that scores are read no longer when o is summed */
    Ref o = reduce(l, OP_RSUM, AX_K, op(l, OP_MUL, w, load(l, TEN_V), 0), at);
    if (sum) {
        if (l->spec->eps) all = op(l, OP_ADD, all, lower(l, l->spec->eps), 0);
        Ref some = op(l, OP_NE, all, zero, 0);
        Ref inv = op(l, OP_SELECT, some, op(l, OP_DIV, ag_node_float(l->p, 1), all, 0), zero);
        o = op(l, OP_SELECT, some, op(l, OP_MUL, o, inv, 0), zero);
    }
    m->out[m->nout++] = (MathOut){TEN_O, 0, o};
}

Math *ag_lower(Diag *d, const Spec *spec) {
    refuse(d, spec);
    Math *m = NEW(d->arena, Math);
    m->d = d;
    m->spec = spec;
    ag_nodes_init(&m->nodes, d->arena);
    for (int i = 0; i < TEN_COUNT; i++) {
        m->tensor[i] = tensors[i];
        if (i < TEN_LSE) m->tensor[i].type = spec->dtype;
    }
    Lower l = {.d = d, .spec = spec, .p = &m->nodes, .score = spec->score, .mask = spec->mask, .weigh = spec->weigh};
    l.mean = ag_puts_out(spec, ROWV_MEAN);
    for (int i = 0; i < spec->joined; i++) {
        const Branch *b = &spec->branch[i];
        Lower one = {.d = d, .spec = spec, .p = &m->nodes, .branch = b, .score = b->score, .mask = b->mask, .weigh = b->weigh, .number = i};
        one.mean = ag_reads_mean(spec, i);
        lower_softmax(&one, m);
    }
    if (spec->joined) return m;
    (spec->normalize == NORMALIZE_SOFTMAX ? lower_softmax : lower_weights)(&l, m);
    return m;
}

/* ---- rebuilding a whole Math IR */

enum { RANGE_REFS = 8, CARRY_REFS = 3 };

void ag_math_rebuild(Math *m, Nodes *to, Ref (*swap)(void *payload, Ref r), void *payload) {
    KeyRange *g = &m->range;
    Ref *const range[RANGE_REFS] = {&g->mask, &g->need_lo, &g->need_hi, &g->plain_lo, &g->plain_hi, &g->gap_lo, &g->gap_hi, &g->visible};
    for (int i = 0; i < m->nout; i++) m->out[i].value = ag_node_rebuild(to, &m->nodes, m->out[i].value, swap, payload);
    for (int i = 0; i < RANGE_REFS; i++) *range[i] = ag_node_rebuild(to, &m->nodes, *range[i], swap, payload);
    for (int s = 0; s < m->nstream; s++)
        for (int i = 0; i < m->stream[s].ncarry; i++) {
            Carry *c = &m->stream[s].carry[i];
            Ref *const ref[CARRY_REFS] = {&c->reduce, &c->body, &c->factor};
            for (int k = 0; k < CARRY_REFS; k++) *ref[k] = ag_node_rebuild(to, &m->nodes, *ref[k], swap, payload);
        }
    m->nodes = *to;
}
