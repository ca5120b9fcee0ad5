/* simulate_any.c: a body that each warp runs or skips by itself (TI_ANY).
 *
 * The body is run on whole tiles; what it has written is then put back in the rows of the warps that skip it.  It writes registers and the warps' own rows of
 * staged tiles, so a role is in one such body at a time, and one copy of each value suffices.  What only some warps have written is written for these alone, in
 * this body and later ones. */
#include "simulate.h"

#include <string.h>

/* NULL: it reads none. */
static const Cell *row_of_condition(Sim *s, const Expr *e) {
    const Cell *row = NULL;
    for (int v = 0; v < e->nval; v++) {
        const Cell *c = &s->cell[e->val[v]];
        if (c->v->space != SPACE_ROW) continue;
        if (!c->written) ag_sim_fail(s, "reads %s before it is written", ag_sim_name(s, e->val[v]));
        row = row ? row : c;
    }
    return row;
}

/* In bodies, what all their warps have written in earlier ones is there; outside, what all warps have. */
static void lend_written(Sim *s) {
    const AnyBody *a = &s->any[s->role];
    for (int v = 0; v < s->k->nval; v++) {
        Cell *c = &s->cell[v];
        if (c->written || !c->some) continue;
        bool there = true;
        for (int r = 0; r < a->live; r++) there &= !a->runs[r] || c->some[r];
        c->lent = c->written = there;
    }
}

static void note_written(Sim *s, Cell *c) {
    const AnyBody *a = &s->any[s->role];
    bool all = true;
    if (!c->some) c->some = NEWN(s->arena, uint8_t, (size_t)c->v->rows);
    for (int r = 0; r < a->live; r++) c->some[r] |= a->runs[r], all &= c->some[r];
    c->written = all;
}

/* Marks the rows of the warps that run the body; false if there are none. */
static bool find_warps(Sim *s, const Ins *i) {
    Expr *e = ag_sim_expr(s, i->e[0]);
    const Cell *row = row_of_condition(s, e);
    AnyBody *a = &s->any[s->role];
    bool some = false;
    a->rows = row ? row->v->rows : (int)s->k->sched->f[F_TILE_M].v;
    a->live = !row ? s->k->queries * s->k->pack : row->from.has_q ? row->from.live : a->rows;
    if (!a->runs) a->runs = NEWN(s->arena, uint8_t, (size_t)s->rows);
    memset(a->runs, 0, (size_t)a->rows);
    int own = a->rows / s->k->role[s->role].warps;
    int64_t q0 = i->e[1] ? ag_sim_int(s, i->e[1]) : 0, h0 = i->e[3] ? ag_sim_int(s, i->e[3]) : 0;
    int lanes = row ? row->lanes : 1; /* of a partial row each lane decides on its own part */
    ag_sim_expr_begin(s, e, 0, lanes);
    for (int r = 0; r < a->live; r++) {
        const Step *t = ag_sim_expr_row(s, e, q0, h0, r, lanes);
        bool holds = false;
        for (int l = 0; l < (t->vary & VARY_COL ? lanes : 1); l++) holds |= t->lane[l].i != 0;
        if (!holds) continue;
        memset(a->runs + r / own * own, 1, (size_t)own);
        some = true;
    }
    return some;
}

static size_t row_floats(const Cell *c) { return (size_t)(c->v->space == SPACE_ROW ? c->lanes : c->v->cols); }
static float *content(const Cell *c) { return c->v->space == SPACE_SHARED ? c->stage[0].x : c->x; }

static void keep_written(Sim *s, const Block *body) {
    for (const Ins *i = body->first; i; i = i->next) {
        bool registers =
            i->op == TI_MAP || i->op == TI_FILL || i->op == TI_REDUCE || i->op == TI_TOTAL || i->op == TI_LOAD || (i->op == TI_MMA && !i->async);
        bool own_rows = i->op == TI_STAGE && s->k->val[i->dst].stages == 1;
        if (!registers && !own_rows) ag_sim_fail(s, "`%s` stands in a body that some warps skip", ag_tile_op_name[i->op]);
        Cell *c = &s->cell[i->dst];
        size_t n = row_floats(c) * (size_t)c->v->rows;
        if (!c->saved) c->saved = NEWN(s->arena, float, n);
        memcpy(c->saved, content(c), sizeof(float) * n);
        c->was_written = c->written;
    }
}

bool ag_sim_any_begin(Sim *s, const Ins *i) {
    if (!s->order->values) return true; /* all do: what decides is not computed */
    if (!find_warps(s, i)) return false;
    lend_written(s);
    keep_written(s, &i->body);
    s->any[s->role].inside = true;
    return true;
}

bool ag_sim_warp_runs(const Sim *s, int warp) {
    const AnyBody *a = &s->any[s->role];
    return !a->inside || a->runs[a->rows / s->k->role[s->role].warps * warp];
}

void ag_sim_any_end(Sim *s, const Ins *i) {
    AnyBody *a = &s->any[s->role];
    if (!a->inside) return;
    a->inside = false;
    for (const Ins *x = i->body.first; x; x = x->next) {
        Cell *c = &s->cell[x->dst];
        size_t n = row_floats(c);
        for (int r = 0; r < a->live; r++) {
            if (a->runs[r]) continue;
            memcpy(content(c) + (size_t)r * n, c->saved + (size_t)r * n, sizeof(float) * n);
        }
        if (!c->was_written) note_written(s, c);
    }
    for (int v = 0; v < s->k->nval; v++) {
        Cell *c = &s->cell[v];
        if (c->lent) c->lent = c->written = false;
    }
}
