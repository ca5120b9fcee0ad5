/* simulate_relative.c: which running maximum a value is relative to, warp by warp.
 *
 * Every new maximum gets an identity.  Weights computed from scores and a maximum carry its identity; a factor computed from two maxima carries both; a
 * carried sum (Val.reference >= 0) carries that of the maximum its content is relative to.  Sums may only be added up under one identity; a carried value
 * moves from one to another by a map that multiplies it with a factor that has both.  A zero is relative to everything. */
#include <assert.h>

#include "simulate.h"

static bool holds(const Relative *r, int id) {
    for (int i = 0; i < r->n; i++)
        if (r->id[i] == id) return true;
    return false;
}

static void join(Relative *to, const Relative *from) {
    for (int i = 0; i < from->n; i++)
        if (!holds(to, from->id[i]) && to->n < MAX_MAXIMA) to->id[to->n++] = from->id[i];
}

static bool same(const Relative *a, const Relative *b) {
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++)
        if (!holds(b, a->id[i])) return false;
    return true;
}

static Relative fresh(const Sim *s) { return (Relative){.id = {s->maxima}, .n = 1}; }

static bool carried(const Sim *s, int val) { return s->k->val[val].reference >= 0; }

static bool is_reference(const Sim *s, int val) {
    for (int i = 0; i < s->k->nval; i++)
        if (s->k->val[i].reference == val) return true;
    return false;
}

/* The warps of the role that run the instruction; a maximum that it makes has one identity for all of them. */
static int begin(Sim *s) {
    int warps = s->k->role[s->role].warps;
    assert(warps <= MAX_WARPS);
    s->maxima++;
    return warps;
}

#define EACH_WARP(w)                                                                                                                                 \
    for (int w = 0, n_ = begin(s); w < n_; w++)                                                                                                      \
        if (ag_sim_warp_runs(s, w))

void ag_sim_relate_fill(Sim *s, const Ins *i, float x) {
    bool reference = is_reference(s, i->dst);
    EACH_WARP(w) s->cell[i->dst].rel[w] = reference ? fresh(s) : (Relative){.any = x == 0};
}

/* Adds weights relative to `from` to dst. */
static void accumulate(Sim *s, int dst, int warp, const Relative *from) {
    Relative *r = &s->cell[dst].rel[warp];
    if (!carried(s, dst) || from->n == 0) return;
    if (!r->any && r->n > 0 && !same(r, from)) ag_sim_fail(s, "%s is accumulated under an older maximum: rescale is missing", ag_sim_name(s, dst));
    *r = *from;
}

/* Multiplies carried dst with factors computed from the maxima of `by`. */
static void rescale(Sim *s, int dst, int warp, const Relative *by) {
    Relative *r = &s->cell[dst].rel[warp], left = {0};
    if (r->any || by->n == 0) return;
    for (int i = 0; i < r->n; i++)
        if (!holds(by, r->id[i])) ag_sim_fail(s, "%s is rescaled from a maximum that it is not relative to", ag_sim_name(s, dst));
    for (int i = 0; i < by->n; i++)
        if (!holds(r, by->id[i])) left.id[left.n++] = by->id[i];
    if (left.n > 0) *r = left;
}

static void relate_map(Sim *s, const Ins *i, const Expr *e, int warp) {
    Relative by = {0};
    bool in_place = false;
    for (int v = 0; v < e->nval; v++) {
        if (e->val[v] == i->dst) in_place = true;
        if (e->val[v] != i->dst && !carried(s, e->val[v])) join(&by, &s->cell[e->val[v]].rel[warp]);
    }
    if (carried(s, i->dst) && in_place) {
        rescale(s, i->dst, warp, &by);
        return;
    }
    if (in_place) join(&by, &s->cell[i->dst].rel[warp]);
    bool new_maximum = by.n > 1 && e->step[e->n - 1].op == OP_MAX;
    s->cell[i->dst].rel[warp] = new_maximum ? fresh(s) : by;
}

void ag_sim_relate_map(Sim *s, const Ins *i, const Expr *e) { EACH_WARP(w) relate_map(s, i, e, w); }

static void relate_sum(Sim *s, const Ins *i, int warp) {
    Relative *r = &s->cell[i->dst].rel[warp];
    const Relative *from = &s->cell[i->a].rel[warp];
    *r = i->b >= 0 ? s->cell[i->b].rel[warp] : (Relative){.any = true};
    if (carried(s, i->dst))
        accumulate(s, i->dst, warp, from);
    else
        join(r, from);
}

void ag_sim_relate_reduce(Sim *s, const Ins *i) {
    EACH_WARP(w) {
        if (i->reduce == OP_RMAX)
            s->cell[i->dst].rel[w] = fresh(s);
        else
            relate_sum(s, i, w);
    }
}

void ag_sim_relate_total(Sim *s, const Ins *i) { EACH_WARP(w) s->cell[i->dst].rel[w] = (Relative){0}; }

void ag_sim_relate_mma(Sim *s, const Ins *i) {
    EACH_WARP(w) {
        if (i->zero) s->cell[i->dst].rel[w] = (Relative){.any = true};
        accumulate(s, i->dst, w, &s->cell[i->a].rel[w]); /* of tensors: relative to none */
    }
}

void ag_sim_relate_stage(Sim *s, const Ins *i) { EACH_WARP(w) s->cell[i->dst].rel[w] = s->cell[i->a].rel[w]; }
