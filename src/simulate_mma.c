/* simulate_mma.c: asynchronous mma.
 *
 * What one computes is in place when it is issued, but nobody may look: until a TI_MMA_WAIT covers its group, its accumulator is neither read nor written
 * but by more of them, its A fragment is not written, and its shared operands are in use (simulate_shared.c).  TI_MMA_COMMIT closes the open group; TI_MMA_WAIT n
 * finishes all closed groups but the last n. */
#include "simulate.h"

static bool unfinished(const Sim *s, int64_t group) { return group > s->thread[s->role].mma_finished; }

static void reading(Sim *s, int val) {
    if (val >= 0 && unfinished(s, s->cell[val].mma_writes))
        ag_sim_fail(s, "%s is read while the mma that writes it is unfinished", ag_sim_name(s, val));
}

static void not_read(Sim *s, int val) {
    if (unfinished(s, s->cell[val].mma_reads)) ag_sim_fail(s, "%s is overwritten while an mma that reads it is unfinished", ag_sim_name(s, val));
}

static void writing(Sim *s, int val) {
    if (unfinished(s, s->cell[val].mma_writes)) ag_sim_fail(s, "%s is overwritten while an mma that writes it is unfinished", ag_sim_name(s, val));
    not_read(s, val);
}

void ag_sim_mma_check(Sim *s, const Ins *i) {
    if (i->op == TI_MAP) {
        const Expr *e = ag_sim_expr(s, i->e[0]);
        for (int v = 0; v < e->nval; v++) reading(s, e->val[v]);
    }
    switch (i->op) {
    case TI_MMA:
        reading(s, i->a);
        if (i->async)
            not_read(s, i->dst);
        else
            writing(s, i->dst);
        break;
    case TI_OUTPUT: writing(s, i->dst); break; /* others that it reads are complete when that one is */
    case TI_OUTPUT_SUM:
        reading(s, i->a);
        writing(s, i->dst);
        break;
    case TI_REDUCE:
    case TI_TOTAL:
        reading(s, i->a);
        reading(s, i->b);
        writing(s, i->dst);
        break;
    case TI_STAGE:
    case TI_STORE:
    case TI_STORE_ROW: reading(s, i->a); break;
    case TI_MAP:
    case TI_FILL:
    case TI_LOAD: writing(s, i->dst); break;
    default: break;
    }
}

void ag_sim_mma_issue(Sim *s, const Ins *i) {
    Thread *t = &s->thread[s->role];
    s->cell[i->dst].mma_writes = t->mma_closed + 1;
    if (s->k->val[i->a].space == SPACE_FRAG) s->cell[i->a].mma_reads = t->mma_closed + 1;
    t->mma_open = true;
}

void ag_sim_mma_commit(Sim *s) {
    s->thread[s->role].mma_closed++;
    s->thread[s->role].mma_open = false;
}

void ag_sim_mma_wait(Sim *s, int n) {
    Thread *t = &s->thread[s->role];
    if (t->mma_open) ag_sim_fail(s, "an mma before it is in a group that was never committed");
    if (t->mma_closed - n > t->mma_finished) t->mma_finished = t->mma_closed - n;
    ag_sim_reads_over(s);
}

void ag_sim_mma_end(Sim *s) {
    const Thread *t = &s->thread[s->role];
    if (t->mma_open) ag_sim_fail(s, "role %s ends with an mma in a group that was never committed", s->k->role[s->role].name);
    if (t->mma_finished < t->mma_closed) ag_sim_fail(s, "role %s ends while an mma is unfinished: a wait is missing", s->k->role[s->role].name);
}
