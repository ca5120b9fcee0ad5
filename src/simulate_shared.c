/* simulate_shared.c: the protocol of shared memory.
 *
 * A stage is filled by a copy.  An asynchronous copy belongs to the cp.async group that its role has open; TI_COMMIT closes the group (an empty one counts),
 * TI_WAIT n completes all closed groups but the last n, and only the next barrier makes the content visible to other threads.  A stage may be written
 * again only after a barrier behind its last use; writing a value makes whatever shares its bytes undefined, under the same condition.
 *
 * A copy by TMA is visible to the roles that know the phase of its mbarrier to be complete.  What another role has used is free once this one knows of the
 * end of that use: it has waited for a phase on which the other arrived later.  A barrier of each warpgroup frees what its warps used by their own rows, for
 * writes whose rows lie in the same bytes.  A barrier of each warp does so for what each warp copies and reads by itself.
 *
 * What TI_STAGE writes is there for the mma of the warpgroups that wrote it behind a TI_FENCE and then a barrier.  A warp's part of an mma reads the rows that this
 * warp writes, so these are free as soon as the mma is over. */
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
        if (g->tma) ag_sim_fail(s, "reads %s [stage %lld] before its copy has arrived: its phase was not waited for", name, n);
        if (g->group >= s->thread[g->role].open_group)
            ag_sim_fail(s, "reads %s [stage %lld], whose copy is in a group that was never committed", name, n);
        ag_sim_fail(s, "reads %s [stage %lld] before its copy has arrived: a wait is missing", name, n);
    case STAGE_LANDED: ag_sim_fail(s, "reads %s [stage %lld] before its copy is visible to all threads: a sync is missing", name, n);
    case STAGE_PRIVATE: ag_sim_fail(s, "reads %s [stage %lld], which holds rows on their way out", name, n);
    case STAGE_WRITTEN: ag_sim_fail(s, "reads %s [stage %lld] before what was staged is fenced for mma: a fence is missing", name, n);
    case STAGE_FENCED:
        ag_sim_fail(s, "reads %s [stage %lld] before what was staged is visible to the warpgroup: a sync behind the fence is missing", name, n);
    case STAGE_ROWS: ag_sim_fail(s, "reads all rows of %s [stage %lld], of which each warpgroup sees those that it staged", name, n);
    case STAGE_READY: break;
    }
}

static void note_use(Sim *s, Stage *g, Use use) {
    Access *a = &g->by[s->role];
    a->at = s->thread[s->role].clock.time[s->role];
    if (a->done != UNFINISHED) a->done = a->at;
    if (use > a->use) a->use = use;
}

Stage *ag_sim_read(Sim *s, int val, int64_t stage, Use use, bool async) {
    Stage *g = stage_of(s, val, stage);
    bool rows = g->state == STAGE_ROWS && g->role == s->role && use == USE_ROWS;
    bool ready = rows || g->state == STAGE_READY || (g->state == STAGE_PENDING && g->tma && ag_sim_knows(s, s->role, g));
    if (!ready) why_not_ready(s, val, stage, g);
    if (g->by[s->role].released) ag_sim_fail(s, "reads %s [stage %lld] after its release", ag_sim_name(s, val), (long long)stage);
    note_use(s, g, rows && !g->own ? USE_OWN : use);
    if (async) {
        g->by[s->role].group = s->thread[s->role].mma_closed + 1;
        g->by[s->role].done = UNFINISHED;
    }
    return g;
}

/* ---- writes */

static bool overlaps(const Val *v, int64_t vs, int vi, const Val *w, int64_t ws, int wi) {
    if (v->offset < 0 || w->offset < 0) return v->over == wi || w->over == vi;
    int64_t a = v->offset + vs * v->bytes, b = w->offset + ws * w->bytes;
    return a < b + w->bytes && b < a + v->bytes;
}

/* Do row r of v and row r of w lie in the same bytes? */
static bool rows_alike(const Val *v, const Val *w) {
    bool same = v->rows == w->rows && v->panels == w->panels && v->offset == w->offset && ag_dtype_bytes(v->type) == ag_dtype_bytes(w->type);
    return same && (v->panels || v->cols == w->cols);
}

/* What this role has used itself. */
static void check_free_own(Sim *s, int val, int64_t stage, const Access *a, int writer) {
    const char *name = ag_sim_name(s, val);
    if (s->k->role[s->role].one_thread) return;
    if (a->done == UNFINISHED)
        ag_sim_fail(s, "overwrites %s [stage %lld] while %s that reads it is unfinished", name, (long long)stage,
                    a->group == INT64_MAX ? "a store" : "an mma");
    if (a->use > USE_SYNCED) ag_sim_fail(s, "overwrites %s [stage %lld] before its release: no sync since it was last used", name, (long long)stage);
    if (a->use != USE_NONE && !rows_alike(&s->k->val[val], &s->k->val[writer]))
        ag_sim_fail(s, "overwrites %s [stage %lld] before its release: each warp%s has released its own rows, which lie elsewhere", name,
                    (long long)stage, a->use == USE_OWN ? "" : "group");
}

/* What another role has used. */
static void check_free_other(Sim *s, int val, int64_t stage, const Access *a, int role) {
    const char *name = ag_sim_name(s, val), *other = s->k->role[role].name;
    int64_t known = s->thread[s->role].clock.time[role];
    if (a->done <= known) return;
    if (a->at <= known)
        ag_sim_fail(s, "overwrites %s [stage %lld], which role %s released while an mma that reads it was unfinished", name, (long long)stage, other);
    ag_sim_fail(s, "overwrites %s [stage %lld] before its release by role %s", name, (long long)stage, other);
}

static void check_free(Sim *s, int val, int64_t stage, const Stage *g, int writer) {
    bool unfinished = g->state == STAGE_PENDING && !(g->tma && ag_sim_knows(s, s->role, g));
    if (unfinished) ag_sim_fail(s, "overwrites %s [stage %lld] while a copy into it is unfinished", ag_sim_name(s, val), (long long)stage);
    for (int r = 0; r < s->k->nrole; r++) {
        if (r == s->role)
            check_free_own(s, val, stage, &g->by[r], writer);
        else
            check_free_other(s, val, stage, &g->by[r], r);
    }
}

static void clear(Stage *g, int overwritten) { *g = (Stage){.x = g->x, .overwritten = overwritten}; }

Stage *ag_sim_overwrite(Sim *s, int val, int64_t stage) {
    Stage *g = stage_of(s, val, stage);
    check_free(s, val, stage, g, val);
    for (int w = 0; w < s->k->nval; w++) {
        const Val *other = &s->k->val[w];
        for (int t = 0; other->space == SPACE_SHARED && w != val && t < other->stages; t++) {
            if (!overlaps(&s->k->val[val], stage, val, other, t, w)) continue;
            check_free(s, w, t, &s->cell[w].stage[t], val);
            clear(&s->cell[w].stage[t], val);
        }
    }
    clear(g, -1);
    return g;
}

void ag_sim_copied(Sim *s, Stage *g, bool async, bool own) {
    g->state = async ? STAGE_PENDING : STAGE_LANDED;
    g->own = own;
    g->role = s->role;
    g->group = s->thread[s->role].open_group;
    note_use(s, g, own ? USE_ROWS : USE_ALL);
}

void ag_sim_staged(Sim *s, Stage *g) {
    g->state = STAGE_PRIVATE;
    note_use(s, g, USE_ROWS);
}

void ag_sim_written(Sim *s, Stage *g) {
    g->state = STAGE_WRITTEN;
    g->role = s->role;
    note_use(s, g, USE_OWN);
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
    if (g->state == STAGE_PENDING && !g->tma && g->role == s->role && g->group < below) g->state = STAGE_LANDED;
}

void ag_sim_wait(Sim *s, int unfinished) { each_stage(s, land, s->thread[s->role].open_group - unfinished); }

static void publish(Sim *s, int val, int stage, Stage *g, int64_t x) {
    (void)val, (void)stage, (void)x;
    if (g->state == STAGE_LANDED) g->state = STAGE_READY;
    if (g->state == STAGE_FENCED) g->state = STAGE_ROWS;
    for (int r = 0; r < s->k->nrole; r++)
        if (g->by[r].done != UNFINISHED) g->by[r].use = USE_NONE;
}

/* All roles know all that any of them does. */
void ag_sim_barrier(Sim *s) {
    Clock all = {0};
    each_stage(s, publish, 0);
    for (int r = 0; r < s->k->nrole; r++) ag_sim_learn(&all, &s->thread[r].clock);
    for (int r = 0; r < s->k->nrole; r++) {
        s->thread[r].clock = all;
        s->thread[r].clock.time[r]++;
    }
}

static void release_rows(Sim *s, int val, int stage, Stage *g, int64_t x) {
    (void)val, (void)stage, (void)x;
    Access *a = &g->by[s->role];
    if (a->use == USE_ROWS && a->done != UNFINISHED) a->use = USE_SYNCED;
    if ((g->state == STAGE_FENCED || (g->state == STAGE_LANDED && g->own)) && g->role == s->role) g->state = STAGE_ROWS;
}

void ag_sim_warpgroup_sync(Sim *s) { each_stage(s, release_rows, 0); }

static void release_own(Sim *s, int val, int stage, Stage *g, int64_t x) {
    if (g->own) release_rows(s, val, stage, g, x);
}

/* What each warp has copied itself is there for it, and what it has read of that is free. */
void ag_sim_warp_sync(Sim *s) { each_stage(s, release_own, 0); }

static void fence(Sim *s, int val, int stage, Stage *g, int64_t x) {
    (void)val, (void)stage, (void)x;
    if (g->state == STAGE_WRITTEN && g->role == s->role) g->state = STAGE_FENCED;
}

void ag_sim_fence(Sim *s) { each_stage(s, fence, 0); }

static void read_over(Sim *s, int val, int stage, Stage *g, int64_t finished) {
    (void)val, (void)stage;
    Access *a = &g->by[s->role];
    if (a->done == UNFINISHED && a->group <= finished) a->done = s->thread[s->role].clock.time[s->role];
}

void ag_sim_reads_over(Sim *s) { each_stage(s, read_over, s->thread[s->role].mma_finished); }

static void reset(Sim *s, int val, int stage, Stage *g, int64_t x) {
    (void)s, (void)val, (void)stage, (void)x;
    clear(g, -1);
}

void ag_sim_shared_reset(Sim *s) { each_stage(s, reset, 0); }

static bool known_to_some(const Sim *s, const Stage *g) {
    for (int r = 0; r < s->k->nrole; r++)
        if (ag_sim_knows(s, r, g)) return true;
    return false;
}

static void finished(Sim *s, int val, int stage, Stage *g, int64_t x) {
    (void)x;
    if (g->state != STAGE_PENDING || (g->tma && known_to_some(s, g))) return;
    bool open = !g->tma && g->group >= s->thread[g->role].open_group;
    ag_sim_fail(s, "the kernel ends while a copy into %s [stage %d] is unfinished: %s", ag_sim_name(s, val), stage,
                open ? "its group was never committed" : "a wait is missing");
}

void ag_sim_shared_end(Sim *s) { each_stage(s, finished, 0); }
