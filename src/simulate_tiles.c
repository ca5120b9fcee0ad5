/* simulate_tiles.c: what persistent blocks have: slots, the counter of tiles, turns of warpgroups, asynchronous stores.
 *
 * A slot is written by one thread and read by other roles: a reader must know of the write (it has waited for an arrival behind it), and the writer must know that
 * everybody has read what it writes over. */
#include "simulate.h"

#include <string.h>

void ag_sim_tiles_reset(Sim *s) {
    for (int v = 0; v < s->k->nval; v++)
        if (s->cell[v].slot) memset(s->cell[v].slot, 0, sizeof(Slot1) * (size_t)s->k->val[v].stages);
}

static Slot1 *slot_of(Sim *s, int val, Ref e) {
    const Val *v = &s->k->val[val];
    s->stage = ag_sim_int(s, e);
    if (s->stage < 0 || s->stage >= v->stages)
        ag_sim_fail(s, "stage %lld of %s, which has %d stage%s", (long long)s->stage, v->name.s, v->stages, v->stages == 1 ? "" : "s");
    return &s->cell[val].slot[s->stage];
}

static int64_t now(const Sim *s) { return s->thread[s->role].clock.time[s->role]; }

void ag_sim_put(Sim *s, const Ins *i) {
    Slot1 *x = slot_of(s, i->dst, i->e[0]);
    if (!s->k->role[s->role].one_thread) ag_sim_fail(s, "each thread of the role writes the slot");
    for (int r = 0; r < s->k->nrole; r++)
        if (r != s->role && x->read[r] > s->thread[s->role].clock.time[r])
            ag_sim_fail(s, "overwrites %s [stage %lld] before role %s is known to have read it", ag_sim_name(s, i->dst), (long long)s->stage,
                        s->k->role[r].name);
    *x = (Slot1){.written = true, .value = ag_sim_int(s, i->e[1]), .at = now(s), .role = s->role};
}

int64_t ag_sim_get(Sim *s, const Ins *i) {
    Slot1 *x = slot_of(s, i->a, i->e[0]);
    const char *name = ag_sim_name(s, i->a);
    if (!x->written) ag_sim_fail(s, "reads %s [stage %lld], into which nothing was put", name, (long long)s->stage);
    if (x->role != s->role && x->at > s->thread[s->role].clock.time[x->role])
        ag_sim_fail(s, "reads %s [stage %lld] before it is known to be written: no wait since", name, (long long)s->stage);
    x->read[s->role] = now(s);
    return x->value;
}

/* ---- the counter: numbers 0, 1, ... of draws, as many as there are tiles; who has made the last one puts it back */

int64_t ag_sim_fetch(Sim *s) {
    int64_t tiles = ag_sim_int(s, s->k->blocks), draw = s->counter++;
    if (draw >= tiles) ag_sim_fail(s, "draw %lld of a launch of %lld tiles", (long long)draw, (long long)tiles);
    return s->blocks + draw;
}

void ag_sim_reset(Sim *s) {
    int64_t tiles = ag_sim_int(s, s->k->blocks);
    if (s->counter != tiles) ag_sim_fail(s, "after %lld draws, but there will be %lld", (long long)s->counter, (long long)tiles);
    s->counter = 0;
}

void ag_sim_counter_end(Sim *s) {
    if (s->counter != 0)
        ag_sim_fail_launch(s, s->k->sched->f[F_PERSISTENT].span, "the counter of tiles is left at %lld, not at 0", (long long)s->counter);
}

/* ---- turns: all warpgroups of a role run the same instructions, so take and pass must alternate in it */

void ag_sim_turn(Sim *s, const Ins *i) {
    Thread *t = &s->thread[s->role];
    bool take = i->op == TI_TAKE_TURN;
    if ((t->turn != NULL) == take) ag_sim_fail(s, take ? "takes a turn that it has not passed on" : "passes on a turn that it has not taken");
    t->turn = take ? i : NULL;
}

/* ---- asynchronous stores */

void ag_sim_store_async(Sim *s, Stage *g) {
    Thread *t = &s->thread[s->role];
    g->by[s->role].done = UNFINISHED;
    g->by[s->role].group = INT64_MAX; /* no wait for mma ends it */
    t->store = t->at;
}

void ag_sim_store_wait(Sim *s) {
    for (int v = 0; v < s->k->nval; v++)
        for (int t = 0; s->k->val[v].space == SPACE_SHARED && t < s->k->val[v].stages; t++) {
            Access *a = &s->cell[v].stage[t].by[s->role];
            if (a->done != UNFINISHED || a->group != INT64_MAX) continue;
            a->done = now(s);
            a->use = USE_SYNCED;
        }
    s->thread[s->role].store = NULL;
}

void ag_sim_tiles_end(Sim *s) {
    Thread *t = &s->thread[s->role];
    const char *role = s->k->role[s->role].name;
    t->at = t->turn ? t->turn : t->store; /* of which the message is */
    if (t->turn) ag_sim_fail(s, "role %s ends without passing its turn on", role);
    if (t->store) ag_sim_fail(s, "role %s ends while the store is unfinished: a wait is missing", role);
}
