/* simulate_classify.c: the map of key tiles on host tensors, element by element, and whether what interval arithmetic says of a tile is true. */
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

/* Tiles begin .. end - 1 of which n are seen as a whole and none in part. */
typedef struct Run {
    int64_t begin, end, n;
} Run;

static void close_run(Run *run, Run *longest, int64_t end) {
    run->end = end;
    if (run->n > longest->n) *longest = *run;
    *run = (Run){.begin = end + 1};
}

static void put(const HostTensor *map, int64_t at, int64_t word) { ag_host_set(map, at, 0, 0, 0, (double)word); }

static void classify(Sim *s, const Ins *i) {
    const HostTensor *map = ag_sim_tensor(s, s->k->tiles);
    int64_t row = ag_sim_int(s, i->e[0]), lo = ag_sim_int(s, i->e[1]), hi = ag_sim_int(s, i->e[2]), sk = s->call->size[SZ_SK], seen_tiles = 0;
    int64_t tiles = (sk + i->n - 1) / i->n, head[MAP_HEAD + 1] = {0};
    uint32_t *bits = NEWN(s->arena, uint32_t, (size_t)tiles / 32 + 1);
    Run run = {0}, longest = {0};
    if (i->n > s->columns || !map->data) ag_sim_fail(s, "there is no room for a tile's keys or for the map");
    for (int64_t j = 0; j < tiles; j++) {
        int64_t first = j * i->n, last = first + i->n < sk ? first + i->n - 1 : sk - 1;
        set(s, i->dst, T_INT, first);
        set(s, i->col, T_INT, last);
        for (const Ins *b = i->body.first; b; b = b->next) bound(s, b);
        bool may = ag_sim_int(s, i->e[3]), must = ag_sim_int(s, i->e[4]);
        Seen seen = look(s, i);
        bool whole = seen.n == seen.all && last == first + i->n - 1;
        if (seen.n && (!may || j < lo || j >= hi)) ag_sim_fail(s, "key tile %lld has a visible key and is taken for hidden", (long long)j);
        if (seen.n < seen.all && must) ag_sim_fail(s, "key tile %lld has a hidden key and is taken for a whole one", (long long)j);
        if (!seen.n) continue;
        if (!seen_tiles++) head[MAP_FIRST] = j;
        bits[j / 32] |= 1u << j % 32;
        run.n += whole;
        if (!whole) close_run(&run, &longest, j);
    }
    close_run(&run, &longest, tiles);
    if (!seen_tiles) bits[0] = 1;
    head[MAP_TILES] = seen_tiles, head[MAP_PLAIN] = longest.n, head[MAP_BEGIN] = longest.begin, head[MAP_END] = longest.end;
    if (longest.n && longest.begin == 0) head[MAP_FIRST] = longest.end;
    for (int what = 1; what <= MAP_HEAD; what++) put(map, row - what, head[what]);
    for (int64_t w = 0; w == 0 || 32 * w < tiles; w++) put(map, row + w, (int32_t)bits[w]);
}

/* From the definition: the n-th of those outside of the plain tiles, then of those. */
static int64_t tile_of(Sim *s, int64_t row, int64_t n) {
    const HostTensor *map = ag_sim_tensor(s, s->k->tiles);
    int64_t head[MAP_HEAD + 1], keys = (int64_t)32 * s->k->sched->f[F_TILE_N].v, words = (s->call->size[SZ_SK] + keys - 1) / keys;
    if (words < 1) words = 1;
    for (int what = 1; what <= MAP_HEAD; what++) head[what] = ag_host_get_int(map, &(int64_t){row - what}, 1);
    for (int plain = 0; plain < 2 && n >= 0; plain++)
        for (int64_t j = 0; j < 32 * words; j++) {
            bool inside = j >= head[MAP_BEGIN] && j < head[MAP_END],
                 there = (uint32_t)ag_host_get_int(map, &(int64_t){row + j / 32}, 1) >> j % 32 & 1;
            if (there && inside == (bool)plain && n-- == 0) return j;
        }
    ag_sim_fail(s, "the map has no such tile");
}

int64_t ag_sim_tile_walk(Sim *s, int walk, int64_t row, int64_t n) {
    MapWalk *w = &s->walk[s->role][walk];
    bool on = n == 0 || (w->begun && row == w->row && (n == w->n || n == w->n + 1));
    if (!on) ag_sim_fail(s, "walks along the map from tile %lld to tile %lld of a row", (long long)w->n, (long long)n);
    *w = (MapWalk){true, row, n};
    return tile_of(s, row, n);
}

int64_t ag_sim_tile_after(Sim *s, int64_t row, int64_t tile, int64_t n) {
    if (n > 0 && tile_of(s, row, n - 1) != tile)
        ag_sim_fail(s, "tile %lld is not number %lld of the row of the map", (long long)tile, (long long)n - 1);
    return tile_of(s, row, n);
}

void ag_sim_classify(Sim *s, const Ins *i) {
    if (i->op == TI_BOUND)
        bound(s, i);
    else
        classify(s, i);
}
