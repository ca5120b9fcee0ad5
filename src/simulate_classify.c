/* simulate_classify.c: lists of key tiles on host tensors, element by element, and whether what interval arithmetic says of a tile is true. */
#include "simulate.h"

static void set(Sim *s, int val, Type type, int64_t x) {
    s->cell[val].scalar[s->role] = type == T_BOOL ? (Scalar){T_BOOL, {.b = x != 0}} : (Scalar){T_INT, {.i = x}};
}
static int64_t get(const Sim *s, int val) { return s->cell[val].scalar[s->role].u.i; }

/* The values of e[0] between least and most. */
static void bound(Sim *s, const Ins *i) {
    Expr *e = ag_sim_expr(s, i->e[0]);
    Type type = s->k->nodes.n[i->e[0]].type;
    int64_t first = get(s, i->b), n = get(s, i->bar) - first + 1, least = INT64_MAX, most = INT64_MIN;
    if (i->trans && n > s->columns) ag_sim_fail(s, "a tile of %lld keys, which has at most %d", (long long)n, s->columns);
    ag_sim_expr_begin(s, e, i->trans ? first : 0, i->trans ? (int)n : 1);
    for (int64_t at = 0; at < n; at++) {
        const Step *t = i->trans ? &e->step[e->n - 1] : ag_sim_expr_row(s, e, first, 0, (int)at, 1);
        int64_t x = t->lane[t->vary & VARY_COL ? at : 0].i;
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    set(s, i->dst, type, least);
    set(s, i->a, type, most);
}

/* How many elements of the tile are visible, of how many. */
typedef struct Seen {
    int64_t n, all;
} Seen;
static Seen look(Sim *s, const Ins *i) {
    Expr *e = ag_sim_expr(s, s->k->guard);
    bool by_query = i->b >= 0;
    int64_t k0 = get(s, i->dst), q0 = by_query ? get(s, i->b) : 0, rows = by_query ? get(s, i->bar) - q0 + 1 : 1, keys = get(s, i->col) - k0 + 1;
    Seen seen = {0, rows * keys};
    ag_sim_expr_begin(s, e, k0, (int)keys);
    for (int64_t r = 0; r < rows; r++) {
        const Step *t = ag_sim_expr_row(s, e, q0, 0, (int)r, (int)keys);
        for (int64_t k = 0; k < keys; k++) seen.n += t->lane[t->vary & VARY_COL ? k : 0].i != 0;
    }
    return seen;
}

static void classify(Sim *s, const Ins *i) {
    const HostTensor *to = ag_sim_tensor(s, s->k->tiles);
    int64_t at = ag_sim_int(s, i->e[0]), lo = ag_sim_int(s, i->e[1]), hi = ag_sim_int(s, i->e[2]), whole = 0, partial = 0;
    int64_t sk = s->call->size[SZ_SK], tiles = (sk + i->n - 1) / i->n, *rest = NEWN(s->arena, int64_t, (size_t)tiles + 1);
    if (i->n > s->columns || !to->data) ag_sim_fail(s, "there is no room for a tile's keys or for the lists");
    for (int64_t j = 0; j < tiles; j++) {
        int64_t first = j * i->n, last = first + i->n < sk ? first + i->n - 1 : sk - 1;
        set(s, i->dst, T_INT, first);
        set(s, i->col, T_INT, last);
        for (const Ins *b = i->body.first; b; b = b->next) bound(s, b);
        bool may = ag_sim_int(s, i->e[3]), must = ag_sim_int(s, i->e[4]);
        Seen seen = look(s, i);
        if (seen.n && (!may || j < lo || j >= hi)) ag_sim_fail(s, "key tile %lld has a visible key and is taken for hidden", (long long)j);
        if (seen.n < seen.all && must) ag_sim_fail(s, "key tile %lld has a hidden key and is taken for a whole one", (long long)j);
        if (seen.n && seen.n == seen.all && last == first + i->n - 1)
            ag_host_set(to, at + whole++, 0, 0, 0, (double)j);
        else if (seen.n)
            rest[partial++] = j;
    }
    for (int64_t n = 0; n < partial; n++) ag_host_set(to, at + whole + n, 0, 0, 0, (double)rest[partial - 1 - n]);
    ag_host_set(to, at - 2, 0, 0, 0, (double)(whole + partial));
    ag_host_set(to, at - 1, 0, 0, 0, (double)whole);
    if (whole + partial == 0) ag_host_set(to, at, 0, 0, 0, 0);
}

void ag_sim_classify(Sim *s, const Ins *i) {
    if (i->op == TI_BOUND)
        bound(s, i);
    else
        classify(s, i);
}
