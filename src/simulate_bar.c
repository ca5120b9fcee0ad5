/* simulate_bar.c: mbarriers, copies by TMA on their way, and what a role knows to have happened.
 *
 * A phase completes with the arrivals that the barrier counts and all bytes that were announced for it.  A wait for parity p goes on while the phase that is
 * open has the other parity.  What the waiting role then knows is what must have happened in every order: if it knew of n phases, n of them if phase n has the
 * other parity, else n + 1. */
#include "simulate.h"

/* The mbarrier that guards a value is the one wait between the copy before and that into it; of two copies into it behind one wait the second is an alternative. */
typedef struct Waits {
    int n, last; /* since the last copy; the mbarrier of the last, + 1 */
    int copied;  /* by the last copy, + 1 */
} Waits;
static void find_guards(Sim *s, const Block *b, Waits *w) {
    for (const Ins *i = b->first; i; i = i->next) {
        if (i->op == TI_WAIT_BAR) w->n++, w->last = i->n + 1;
        if (i->op == TI_COPY) {
            if (w->n > 0 || w->copied != i->dst + 1) s->guard[i->dst] = w->n == 1 ? w->last : 0;
            w->n = 0;
            w->copied = i->dst + 1;
        }
        find_guards(s, &i->body, w);
    }
}

void ag_sim_bar_init(Sim *s) {
    int n = 0;
    s->guard = NEWN(s->arena, int, (size_t)s->k->nval);
    for (int r = 0; r < s->k->nrole; r++)
        if (s->k->role[r].one_thread) find_guards(s, &s->k->role[r].body, &(Waits){0});
    for (int b = 0; b < s->k->nbarrier; b++) {
        const Barrier *x = &s->k->barrier[b];
        s->mbar0[b] = n;
        if (x->kind == BARRIER_MBAR) n += x->stages;
    }
    if (n > MAX_MBARS) ag_sim_fail_launch(s, (Span){0}, "%d mbarriers, of which the simulator takes %d", n, MAX_MBARS);
}

void ag_sim_bar_reset(Sim *s) {
    for (int b = 0; b < s->k->nbarrier; b++) {
        const Barrier *x = &s->k->barrier[b];
        for (int t = 0; x->kind == BARRIER_MBAR && t < x->stages; t++) {
            Mbar *m = &s->mbar[s->mbar0[b] + t];
            *m = (Mbar){.count = x->count, .missing = x->count, .done = m->done, .cap = m->cap};
        }
    }
    s->nflight = 0;
}

void ag_sim_learn(Clock *to, const Clock *from) {
    for (int r = 0; r < MAX_ROLES; r++)
        if (from->time[r] > to->time[r]) to->time[r] = from->time[r];
    for (int m = 0; m < MAX_MBARS; m++)
        if (from->phase[m] > to->phase[m]) to->phase[m] = from->phase[m];
}

bool ag_sim_knows(const Sim *s, int role, const Stage *g) { return s->thread[role].clock.phase[g->mbar] > g->phase; }

/* The index of stage e of mbarrier `barrier`. */
static int mbar_index(Sim *s, int barrier, Ref e) {
    const Barrier *b = &s->k->barrier[barrier];
    if (b->kind != BARRIER_MBAR) ag_sim_fail(s, "%s is no mbarrier", b->name);
    s->stage = ag_sim_int(s, e);
    if (s->stage < 0 || s->stage >= b->stages)
        ag_sim_fail(s, "stage %lld of %s, which has %d stage%s", (long long)s->stage, b->name, b->stages, b->stages == 1 ? "" : "s");
    return s->mbar0[barrier] + (int)s->stage;
}

static void complete(Sim *s, Mbar *m) {
    if (m->missing > 0 || m->announced > 0 || m->flying > 0) return;
    m->coming.phase[m - s->mbar] = m->phases + 1;
    PUSH(s->arena, m->done, m->phases, m->cap) = m->coming;
    m->coming = (Clock){0};
    m->missing = m->count;
}

static void arrive(Sim *s, Mbar *m, int n) {
    Thread *t = &s->thread[s->role];
    if (n > m->missing) ag_sim_fail(s, "%d arrival%s, but the phase takes %d more of %d", n, n == 1 ? "" : "s", m->missing, m->count);
    ag_sim_learn(&m->coming, &t->clock);
    t->clock.time[s->role]++;
    m->missing -= n;
    complete(s, m);
}

/* The running role is done with what this stage of the mbarrier guards. */
static void release(Sim *s, int barrier) {
    for (int v = 0; v < s->k->nval; v++) {
        if (s->guard[v] != barrier + 1 || s->stage >= s->k->val[v].stages) continue;
        Access *a = &s->cell[v].stage[s->stage].by[s->role];
        if (a->done == UNFINISHED)
            ag_sim_fail(s, "%s [stage %lld] is released while an mma that reads it is unfinished", ag_sim_name(s, v), (long long)s->stage);
        if (a->released) ag_sim_fail(s, "%s [stage %lld] is released twice", ag_sim_name(s, v), (long long)s->stage);
        a->released = true;
    }
}

void ag_sim_arrive(Sim *s, const Ins *i) {
    const Role *r = &s->k->role[s->role];
    Mbar *m = &s->mbar[mbar_index(s, i->n, i->e[0])];
    release(s, i->n);
    arrive(s, m, r->one_thread ? 1 : r->warps);
}

void ag_sim_expect(Sim *s, const Ins *i) {
    Mbar *m = &s->mbar[mbar_index(s, i->n, i->e[0])];
    int64_t bytes = ag_sim_int(s, i->e[1]);
    if (!s->k->role[s->role].one_thread) ag_sim_fail(s, "each thread of the role announces the bytes");
    if (bytes < 0) ag_sim_fail(s, "%lld bytes", (long long)bytes);
    if (m->missing > 0) m->announced += bytes;
    arrive(s, m, 1);
}

void ag_sim_wait_bar(Sim *s, const Ins *i) {
    Thread *t = &s->thread[s->role];
    t->mbar = mbar_index(s, i->n, i->e[0]);
    t->stage = s->stage;
    t->parity = ag_sim_int(s, i->e[1]);
    if (t->parity != 0 && t->parity != 1) ag_sim_fail(s, "parity %lld", (long long)t->parity);
    t->waiting = true;
}

bool ag_sim_wait_bar_over(Sim *s, int role) {
    Thread *t = &s->thread[role];
    const Mbar *m = &s->mbar[t->mbar];
    if ((m->phases & 1) == t->parity) return false;
    int known = t->clock.phase[t->mbar], n = (known & 1) != t->parity ? known : known + 1;
    if (n > 0) ag_sim_learn(&t->clock, &m->done[n - 1]);
    return true;
}

/* ---- copies by TMA: the whole box, with the zeros past the ends of the tensor */

void ag_sim_copied_tma(Sim *s, const Ins *i, Stage *g) {
    const Val *v = &s->k->val[i->dst];
    int64_t bytes = (int64_t)v->rows * (v->panels ? ag_panel_cols(v->cols) : v->cols) * ag_dtype_bytes(v->type);
    int index = mbar_index(s, i->bar, i->e[0]);
    Mbar *m = &s->mbar[index];
    if (bytes > m->announced)
        ag_sim_fail(s, "brings %lld bytes, but %s expects %lld more", (long long)bytes, s->k->barrier[i->bar].name, (long long)m->announced);
    m->announced -= bytes;
    m->flying += bytes;
    g->state = STAGE_PENDING;
    g->tma = true;
    g->role = s->role;
    g->mbar = index;
    g->phase = m->phases;
    PUSH(s->arena, s->flight, s->nflight, s->capflight) = (Flight){m, bytes};
    if (!s->order->late) ag_sim_land(s);
}

bool ag_sim_land(Sim *s) {
    if (s->nflight == 0) return false;
    Flight f = s->flight[--s->nflight];
    f.mbar->flying -= f.bytes;
    complete(s, f.mbar);
    return true;
}
