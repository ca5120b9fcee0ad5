/* simulate_shared.c: the protocol of shared memory.
 *
 * A stage is filled by a copy.  An asynchronous copy belongs to the cp.async group that its role has open; TI_COMMIT closes the group (an empty one counts),
 * TI_WAIT n completes all closed groups but the last n, and only the next barrier makes the content visible to other threads.  A stage may be written
 * again only after a barrier behind its last use; writing a value makes whatever shares its bytes undefined, under the same condition. */
#include "simulate.h"

static Stage *stage_of(Sim *s, int val, int64_t stage) {
    const Val *v = &s->k->val[val];
    if (stage < 0 || stage >= v->stages)
        ag_sim_fail(s, "stage %lld of %s, which has %d stage%s", (long long)stage, v->name.s, v->stages, v->stages == 1 ? "" : "s");
    return &s->cell[val].stage[stage];
}

/* ---- reads */

static void why_not_ready(Sim *s, int val, int64_t stage, const Stage *g) {
    const char *name = ag_sim_name(s, val);
    long long n = (long long)stage;
    switch (g->state) {
    case STAGE_EMPTY:
        if (g->overwritten >= 0) ag_sim_fail(s, "reads %s [stage %lld] after %s was written over it", name, n, ag_sim_name(s, g->overwritten));
        ag_sim_fail(s, "reads %s [stage %lld], into which nothing was copied", name, n);
    case STAGE_PENDING:
        if (g->group >= s->thread[g->role].open_group)
            ag_sim_fail(s, "reads %s [stage %lld], whose copy is in a group that was never committed", name, n);
        ag_sim_fail(s, "reads %s [stage %lld] before its copy has arrived: a wait is missing", name, n);
    case STAGE_LANDED: ag_sim_fail(s, "reads %s [stage %lld] before its copy is visible to all threads: a sync is missing", name, n);
    case STAGE_PRIVATE: ag_sim_fail(s, "reads %s [stage %lld], which holds rows on their way out", name, n);
    case STAGE_READY: break;
    }
}

Stage *ag_sim_read(Sim *s, int val, int64_t stage) {
    Stage *g = stage_of(s, val, stage);
    if (g->state != STAGE_READY) why_not_ready(s, val, stage, g);
    g->used = true;
    return g;
}

/* ---- writes */

static bool overlaps(const Val *v, int64_t vs, int vi, const Val *w, int64_t ws, int wi) {
    if (v->offset < 0 || w->offset < 0) return v->over == wi || w->over == vi;
    int64_t a = v->offset + vs * v->bytes, b = w->offset + ws * w->bytes;
    return a < b + w->bytes && b < a + v->bytes;
}

static void check_free(Sim *s, int val, int64_t stage, const Stage *g) {
    const char *name = ag_sim_name(s, val);
    if (g->state == STAGE_PENDING) ag_sim_fail(s, "overwrites %s [stage %lld] while a copy into it is unfinished", name, (long long)stage);
    if (g->used) ag_sim_fail(s, "overwrites %s [stage %lld] before its release: no sync since it was last used", name, (long long)stage);
}

Stage *ag_sim_overwrite(Sim *s, int val, int64_t stage) {
    Stage *g = stage_of(s, val, stage);
    check_free(s, val, stage, g);
    for (int w = 0; w < s->k->nval; w++) {
        const Val *other = &s->k->val[w];
        for (int t = 0; other->space == SPACE_SHARED && w != val && t < other->stages; t++) {
            if (!overlaps(&s->k->val[val], stage, val, other, t, w)) continue;
            Stage *x = &s->cell[w].stage[t];
            check_free(s, w, t, x);
            *x = (Stage){.x = x->x, .overwritten = val};
        }
    }
    return g;
}

void ag_sim_copied(Sim *s, Stage *g, bool async) {
    g->state = async ? STAGE_PENDING : STAGE_LANDED;
    g->async = async;
    g->used = true;
    g->role = s->role;
    g->group = s->thread[s->role].open_group;
}

/* ---- groups and barriers */

void ag_sim_commit(Sim *s) { s->thread[s->role].open_group++; }

typedef void EachStage(Sim *s, int val, int stage, Stage *g, int64_t x);

static void each_stage(Sim *s, EachStage *f, int64_t x) {
    for (int v = 0; v < s->k->nval; v++)
        for (int t = 0; s->k->val[v].space == SPACE_SHARED && t < s->k->val[v].stages; t++) f(s, v, t, &s->cell[v].stage[t], x);
}

static void land(Sim *s, int val, int stage, Stage *g, int64_t below) {
    (void)val, (void)stage;
    if (g->state == STAGE_PENDING && g->role == s->role && g->group < below) g->state = STAGE_LANDED;
}

void ag_sim_wait(Sim *s, int unfinished) { each_stage(s, land, s->thread[s->role].open_group - unfinished); }

static void publish(Sim *s, int val, int stage, Stage *g, int64_t x) {
    (void)s, (void)val, (void)stage, (void)x;
    if (g->state == STAGE_LANDED) g->state = STAGE_READY;
    g->used = false;
}

void ag_sim_barrier(Sim *s) { each_stage(s, publish, 0); }

static void reset(Sim *s, int val, int stage, Stage *g, int64_t x) {
    (void)s, (void)val, (void)stage, (void)x;
    *g = (Stage){.x = g->x, .overwritten = -1};
}

void ag_sim_shared_reset(Sim *s) { each_stage(s, reset, 0); }

static void finished(Sim *s, int val, int stage, Stage *g, int64_t x) {
    (void)x;
    if (g->state != STAGE_PENDING) return;
    bool open = g->group >= s->thread[g->role].open_group;
    ag_sim_fail(s, "the kernel ends while a copy into %s [stage %d] is unfinished: %s", ag_sim_name(s, val), stage,
                open ? "its group was never committed" : "a wait is missing");
}

void ag_sim_shared_end(Sim *s) { each_stage(s, finished, 0); }
