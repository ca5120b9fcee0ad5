/* specialise_exact.c: numerics.softmax speculative on the wgmma path.
 *
 * A plain step takes its weights under the reference of the steps before, P = 2^(S - ref): no maximum, no shuffles, no rescaling.
 * The row sums, which are needed anyway, verify it: below 2^40 (fp16: 2^14) no weight was too large for its type. A warp in which one is not does the step
 * again: it computes its scores once more from the same K tile, which is therefore released only now, and takes the exact step. A row that has seen
 * no key has NaN as its reference, so speculation on it always fails. (Measured by hand-made kernels: 9 to 14 % faster than exact.)
 *
 * loop.form flagged: masked steps are in the same loop.  They look for their maximum first, which becomes the reference, and rescale what is older; all else is the
 * plain step's. */
#include <assert.h>

#include "specialise.h"

static Ins *add(Block *b, Ins *i) {
    ag_block_append(b, i);
    return i;
}

/* The instructions of an exact softmax that speculation needs to know. */
typedef struct Exact {
    const Ins *max, *ref, *exp, *sum; /* mx_new = max(mx, S);  r = f(mx_new);  S = 2^(S - r);  den = sum(den, S) */
} Exact;

static bool find_exact(const Kernel *k, const Parts *p, Exact *x) {
    *x = (Exact){0};
    if (p->nscores != 1 || p->noutput != 1 || k->spec->weigh) return false;
    for (const Ins *i = p->softmax.first; i; i = i->next) {
        if (i->op == TI_REDUCE) *(i->reduce == OP_RMAX ? &x->max : &x->sum) = i;
        if (!x->max || i->op != TI_MAP) continue;
        if (i->dst == x->max->a) x->exp = i;
        if (!x->exp && k->val[i->dst].space == SPACE_ROW && ag_expr_uses(k, i->e[0], OP_VAL, x->max->dst) && !x->ref) x->ref = i;
    }
    bool all = x->max && x->ref && x->exp && x->sum && x->max->a == p->scores[0]->dst && x->sum->a == p->scores[0]->dst;
    return all && ag_expr_uses(k, x->exp->e[0], OP_VAL, x->ref->dst) && !ag_expr_uses(k, x->exp->e[0], OP_VAL, x->max->dst);
}

/* The reference under the maximum so far: mx for mx_new, and NaN for a row without keys. */
typedef struct Old {
    Kernel *k;
    const Exact *x;
} Old;
static Ref under_old(void *payload, Ref r) {
    const Old *o = payload;
    const Node n = o->k->nodes.n[r];
    if (n.op == OP_FINITE)
        return ag_node_op(&o->k->nodes, OP_SEEN, ag_node_rebuild(&o->k->nodes, &o->k->nodes, n.arg[0], under_old, payload), 0, 0, n.span);
    return n.op == OP_VAL && n.index == o->x->max->dst ? ag_kval(o->k, o->x->max->b) : 0;
}

/* The weights under that reference. */
typedef struct Under {
    Specialise *s;
    int exact;
} Under;
static Ref under_ref(void *payload, Ref r) {
    const Under *u = payload;
    const Node *n = &u->s->k->nodes.n[r];
    return n->op == OP_VAL && n->index == u->exact ? ag_kval(u->s->k, u->s->ref) : 0;
}

static int row_like(Specialise *s, int val, const char *name) {
    Val v = s->k->val[val];
    v.name = ag_str(name);
    v.reference = v.carry = -1;
    return ag_val(s->k, v);
}

void ag_spz_find_reference(Specialise *s, const Parts *p) {
    Exact x;
    if (!find_exact(s->k, p, &x)) return;
    Old old = {s->k, &x};
    s->ref_of = ag_node_rebuild(&s->k->nodes, &s->k->nodes, x.ref->e[0], under_old, &old);
    s->ref = row_like(s, x.ref->dst, "ref");
}

static Ins *put_if(Specialise *s, Block *to, Ref condition, const char *note) {
    Ins *i = ag_spz_put(s, to, TI_IF, note);
    i->e[0] = condition;
    return i;
}

/* The exact step for the warps that must: scores once more, softmax, and what follows.  A masked step has been exact, and its scores would come without a mask. */
static void mend(Specialise *s, Block *to, const Parts *p, Ref step, int sum, Ref masked) {
    Kernel *k = s->k;
    double limit = k->spec->dtype == DT_F16 ? 0x1p14 : 0x1p40;
    Ins *any = ag_spz_put(s, to, TI_ANY, "---- the check: where a row's sum is too large or NaN, the warp does the step again exactly");
    any->e[0] = ag_node_op(&k->nodes, OP_NOT, ag_spz_op(s, OP_LT, ag_kval(k, sum), ag_node_float(&k->nodes, limit)), 0, 0, (Span){0});
    if (masked) any->e[0] = ag_spz_op(s, OP_AND, ag_node_op(&k->nodes, OP_NOT, masked, 0, 0, (Span){0}), any->e[0]);
    Ins *scores = add(&any->body, ag_ins_clone(k, p->scores[0]));
    scores->note = NULL;
    scores->e[0] = ag_spz_stage(s, &s->ring[0], step);
    if (s->round) scores->e[1] = ag_spz_stage(s, &s->query, s->round);
    for (const Ins *i = p->softmax.first; i; i = i->next)
        if (i->op == TI_LOAD)
            ag_spz_put_again(s, &any->body, i, step);
        else if (i->op != TI_IF)
            add(&any->body, ag_ins_clone(k, i));
    ag_spz_append(s, &any->body, &p->touches, 0);
    ag_spz_append(s, &any->body, &p->end, 0);
    Ins *none = ag_spz_put(s, &any->body, TI_FILL, "its weights are counted already");
    none->dst = sum;
    none->e[0] = ag_node_float(&k->nodes, 0);
}

static bool touches_read(const Kernel *k, const Parts *p, int val) {
    for (const Ins *i = p->touches.first; i; i = i->next)
        if (i->e[0] && ag_expr_uses(k, i->e[0], OP_VAL, val)) return true;
    return false;
}

/* In a masked step, before the weights: the maximum, what is older under it, and the reference. */
static void find_maximum(Specialise *s, Block *to, const Parts *p, const Exact *x, Ref masked) {
    Kernel *k = s->k;
    Block body = {0};
    for (const Ins *i = x->max; i; i = i->next) {
        if (i == x->exp || i == x->sum || i->op == TI_IF) continue;
        add(&body, ag_ins_clone(k, i));
        if (k->val[i->dst].carry >= 0 || !touches_read(k, p, i->dst)) continue;
        Ins *none = ag_spz_put(s, to, TI_FILL, NULL); /* a factor for the output, read in a block of its own */
        none->dst = i->dst;
        none->e[0] = ag_node_float(&k->nodes, 1);
    }
    Ins *ref = ag_spz_put(s, &body, TI_MAP, NULL);
    ref->dst = s->ref;
    ref->e[0] = ag_kval(k, x->ref->dst);
    put_if(s, to, masked, NULL)->body = body;
}

/* In a masked step, behind the weighted values. */
static void rescale_output(Specialise *s, Block *to, const Parts *p, Ref masked) {
    Ins *yes = put_if(s, to, masked, NULL);
    for (const Ins *i = p->touches.first; i; i = i->next)
        if (i->dst != p->output[0]->a) add(&yes->body, ag_ins_clone(s->k, i));
    ag_spz_append(s, &yes->body, &p->end, 0);
}

/* Is r a distance of query and key as a float, times what is no element? */
static bool is_penalty(const Kernel *k, Ref r) {
    const Node *n = &k->nodes.n[r];
    for (int i = 0; n->op == OP_MUL && i < 2; i++) {
        const Node *f = &k->nodes.n[n->arg[i]], *d = &k->nodes.n[f->arg[0]];
        Ref by = n->arg[1 - i];
        if (f->op != OP_TOFLOAT || d->op != OP_SUB || k->nodes.n[d->arg[0]].op != OP_AXIS || k->nodes.n[d->arg[1]].op != OP_AXIS) continue;
        bool fixed = !ag_expr_uses(k, by, OP_AXIS, AX_K) && !ag_expr_uses(k, by, OP_AXIS, AX_Q);
        for (int v = 0; v < k->nval && fixed; v++) fixed = k->val[v].space != SPACE_FRAG || !ag_expr_uses(k, by, OP_VAL, v);
        if (fixed) return true;
    }
    return false;
}

/* -r of such a product: its distance the other way round. */
static Ref negated_penalty(Specialise *s, Ref r) {
    Nodes *p = &s->k->nodes;
    const Node n = p->n[r];
    int at = p->n[n.arg[0]].op == OP_TOFLOAT ? 0 : 1;
    const Node d = p->n[p->n[n.arg[at]].arg[0]];
    Ref turned = ag_node_op(p, OP_TOFLOAT, ag_spz_op(s, OP_SUB, d.arg[1], d.arg[0]), 0, 0, n.span);
    return at ? ag_spz_op(s, OP_MUL, n.arg[0], turned) : ag_spz_op(s, OP_MUL, turned, n.arg[1]);
}

/* S = x - d y;  S = 2^(S - ref), where d is a distance, as one map, S = 2^(x + (-d y - ref)): what is in brackets is linear in the key, so it takes one multiply-add for each
 * element instead of a conversion, a product and a difference.  (At head dim 64 conversions have the unit that exponentials wait for.)  0: it has another form. */
static Ref fused_weights(Specialise *s, const Parts *p, const Exact *x, Ref exp) {
    Kernel *k = s->k;
    const Ins *map = p->softmax.first;
    if (!map || map->op != TI_MAP || map->dst != x->exp->dst || map->next != x->max) return 0;
    const Node score = k->nodes.n[map->e[0]], root = k->nodes.n[exp], diff = k->nodes.n[root.arg[0]];
    bool weights = root.op == OP_EXP2 && diff.op == OP_SUB && diff.arg[0] == ag_kval(k, map->dst) && diff.arg[1] == ag_kval(k, s->ref);
    if (!weights || (score.op != OP_SUB && score.op != OP_ADD) || !is_penalty(k, score.arg[1]) || is_penalty(k, score.arg[0])) return 0;
    Ref by_distance = score.op == OP_SUB ? negated_penalty(s, score.arg[1]) : score.arg[1];
    Ref sum = ag_spz_op(s, OP_ADD, score.arg[0], ag_spz_op(s, OP_SUB, by_distance, diff.arg[1]));
    return ag_node_op(&k->nodes, OP_EXP2, sum, 0, 0, root.span);
}

void ag_spz_speculative(Specialise *s, Block *to, const Parts *p, Ref masked) {
    Kernel *k = s->k;
    Exact x;
    bool known = find_exact(k, p, &x);
    assert(known);
    if (!known) return;
    Under under = {s, x.ref->dst};
    Pair issued = ag_spz_issue_both(s, to, p);
    ag_spz_wait_scores(s, to);
    ag_spz_get_key_tile(s, to, issued.scores);
    Ref weights = ag_node_rebuild(&k->nodes, &k->nodes, x.exp->e[0], under_ref, &under), fused = masked ? 0 : fused_weights(s, p, &x, weights);
    for (const Ins *i = p->softmax.first; !fused && i != x.max; i = i->next)
        ag_spz_put_clone(s, to, i, issued.scores, false); /* what the spec makes of the scores */
    if (masked) find_maximum(s, to, p, &x, masked);
    Ins *exp = add(to, ag_ins_clone(k, x.exp));
    exp->note = masked ? "---- weights under the reference" : "weights under the maximum so far";
    exp->e[0] = fused ? fused : weights;
    for (int e = 1; fused && e < LEN(exp->e); e++) exp->e[e] = p->softmax.first->e[e]; /* where positions begin */
    for (const Ins *i = x.exp; i; i = i->next)
        if (i->op == TI_IF) add(to, ag_ins_clone(k, i)); /* hidden keys of a masked step */
    int sum = row_like(s, x.sum->dst, "step_sum");
    Ins *total = add(to, ag_ins_clone(k, x.sum));
    total->dst = sum;
    total->b = -1;
    ag_spz_wait_weighted(s, to, p);
    ag_spz_release(s, to, &s->ring[1], issued.weighted);
    if (masked) rescale_output(s, to, p, masked);
    for (const Ins *i = p->touches.first; i; i = i->next)
        if (i->dst == p->output[0]->a) add(to, ag_ins_clone(k, i)); /* here, so that the scores need not last until the step is mended */
    mend(s, to, p, issued.scores, sum, masked);
    Ins *den = ag_spz_put(
        s, to, TI_MAP, ag_fmt(k->arena, "---- the step stands: its sum counts, and %.*s is needed no longer", STRF(k->val[s->ring[0].val].name)).s);
    den->dst = x.sum->dst;
    den->e[0] = ag_spz_op(s, OP_ADD, ag_kval(k, den->dst), ag_kval(k, sum));
    ag_spz_release(s, to, &s->ring[0], issued.scores); /* only now: a failed speculation reads K again, and elements */
    ag_spz_release_elements(s, to, issued.scores);
    ag_spz_append(s, to, &p->show, 0);
}
