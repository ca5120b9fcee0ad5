/* simulate_relative.c: which running maximum a value is relative to.
 *
 * Every new maximum gets an identity.  Weights computed from scores and a maximum carry its identity; a factor computed from two maxima carries both; a
 * carried sum (Val.reference >= 0) carries that of the maximum its content is relative to.  Sums may only be added up under one identity; a carried value
 * moves from one to another by a map that multiplies it with a factor that has both.  A zero is relative to everything. */
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

static Relative fresh(Sim *s) { return (Relative){.id = {++s->maxima}, .n = 1}; }

static bool carried(const Sim *s, int val) { return s->k->val[val].reference >= 0; }

static bool is_reference(const Sim *s, int val) {
    for (int i = 0; i < s->k->nval; i++)
        if (s->k->val[i].reference == val) return true;
    return false;
}

void ag_sim_relate_fill(Sim *s, const Ins *i, float x) {
    Relative *r = &s->cell[i->dst].rel;
    *r = is_reference(s, i->dst) ? fresh(s) : (Relative){.any = x == 0};
}

/* Adds weights relative to `from` to dst. */
static void accumulate(Sim *s, int dst, const Relative *from) {
    Relative *r = &s->cell[dst].rel;
    if (!carried(s, dst) || from->n == 0) return;
    if (!r->any && r->n > 0 && !same(r, from)) ag_sim_fail(s, "%s is accumulated under an older maximum: rescale is missing", ag_sim_name(s, dst));
    *r = *from;
}

/* Multiplies carried dst with factors computed from the maxima of `by`. */
static void rescale(Sim *s, int dst, const Relative *by) {
    Relative *r = &s->cell[dst].rel, left = {0};
    if (r->any || by->n == 0) return;
    for (int i = 0; i < r->n; i++)
        if (!holds(by, r->id[i])) ag_sim_fail(s, "%s is rescaled from a maximum that it is not relative to", ag_sim_name(s, dst));
    for (int i = 0; i < by->n; i++)
        if (!holds(r, by->id[i])) left.id[left.n++] = by->id[i];
    if (left.n > 0) *r = left;
}

void ag_sim_relate_map(Sim *s, const Ins *i, const Expr *e) {
    Relative by = {0};
    bool in_place = false;
    for (int v = 0; v < e->nval; v++) {
        if (e->val[v] == i->dst) in_place = true;
        if (e->val[v] != i->dst && !carried(s, e->val[v])) join(&by, &s->cell[e->val[v]].rel);
    }
    if (carried(s, i->dst) && in_place) {
        rescale(s, i->dst, &by);
        return;
    }
    if (in_place) join(&by, &s->cell[i->dst].rel);
    bool new_maximum = by.n > 1 && e->step[e->n - 1].op == OP_MAX;
    s->cell[i->dst].rel = new_maximum ? fresh(s) : by;
}

void ag_sim_relate_reduce(Sim *s, const Ins *i) {
    Relative *r = &s->cell[i->dst].rel;
    const Relative *from = &s->cell[i->a].rel;
    if (i->reduce == OP_RMAX) {
        *r = fresh(s);
        return;
    }
    *r = i->b >= 0 ? s->cell[i->b].rel : (Relative){.any = true};
    if (carried(s, i->dst))
        accumulate(s, i->dst, from);
    else
        join(r, from);
}

void ag_sim_relate_mma(Sim *s, const Ins *i) {
    Relative *r = &s->cell[i->dst].rel;
    if (i->zero) *r = (Relative){.any = true};
    if (s->cell[i->a].v->space == SPACE_FRAG) accumulate(s, i->dst, &s->cell[i->a].rel);
}
