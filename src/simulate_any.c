/* simulate_any.c: a body that each warp runs or skips by itself (TI_ANY).
 *
 * The body is run on whole tiles; what it has written is then put back in the rows of the warps that skip it. */
#include "simulate.h"

#include <string.h>

/* Bit per row: its warp runs the body. */
static bool find_warps(Sim *s, const Ins *i, AnyBody *a) {
    Expr *e = ag_sim_expr(s, i->e[0]);
    const Cell *first = NULL;
    for (int v = 0; v < e->nval; v++) {
        const Cell *c = &s->cell[e->val[v]];
        if (c->v->space != SPACE_ROW) continue;
        if (!c->written) ag_sim_fail(s, "%s is read before it is written", ag_sim_name(s, e->val[v]));
        first = first ? first : c;
    }
    if (!first) ag_sim_fail(s, "the condition reads no row");
    a->rows = first->v->rows;
    a->runs = ag_alloc(s->arena, (size_t)a->rows);
    int live = first->from.has_q ? first->from.live : a->rows, own = a->rows / s->k->role[s->role].warps;
    bool any = false;
    ag_sim_expr_begin(s, e, 0, 1);
    for (int r = 0; r < live; r++) {
        if (!ag_sim_expr_row(s, e, i->e[1] ? ag_sim_int(s, i->e[1]) : 0, r, 1)->lane->i) continue;
        memset(a->runs + r / own * own, 1, (size_t)own);
        any = true;
    }
    return any;
}

static size_t row_floats(const Cell *c) { return (size_t)(c->v->space == SPACE_FRAG ? c->v->cols : c->lanes); }

static void keep_written(Sim *s, const Block *body, AnyBody *a) {
    for (const Ins *i = body->first; i; i = i->next) {
        keep_written(s, &i->body, a);
        const Cell *c = i->dst >= 0 ? &s->cell[i->dst] : NULL;
        if (!c || !c->x || !c->written || a->saved[i->dst]) continue;
        size_t bytes = sizeof(float) * row_floats(c) * (size_t)c->v->rows;
        a->saved[i->dst] = ag_alloc(s->arena, bytes);
        memcpy(a->saved[i->dst], c->x, bytes);
    }
}

bool ag_sim_any_begin(Sim *s, const Ins *i, AnyBody *a) {
    if (!find_warps(s, i, a)) return false;
    a->saved = ag_alloc(s->arena, sizeof(float *) * (size_t)s->k->nval);
    keep_written(s, &i->body, a);
    return true;
}

void ag_sim_any_end(Sim *s, const AnyBody *a) {
    for (int v = 0; v < s->k->nval; v++) {
        const Cell *c = &s->cell[v];
        size_t n = row_floats(c);
        for (int r = 0; a->saved[v] && r < c->v->rows; r++)
            if (!a->runs[r]) memcpy(c->x + (size_t)r * n, a->saved[v] + (size_t)r * n, sizeof(float) * n);
    }
}
