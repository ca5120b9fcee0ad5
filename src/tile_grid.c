/* tile_grid.c: the axes b, h and tiles of q on the blocks of the launch; the key tiles of a block. */
#include <assert.h>

#include "tiler.h"

/* A tile has the queries of one query head, or with tile.pack_gqa of all those of a KV head. */
static Size heads_of_tiles(const Tiler *t) { return t->k->pack > 1 ? SZ_HKV : SZ_HQ; }

/* Coordinates of the block, fastest first as grid.order says. */
static void decode_nested(Tiler *t, Ref tiles, Ref place[AX_COUNT]) {
    Ref rest = ag_node_leaf(&t->k->nodes, OP_BLOCK, T_INT, 0, (Span){0}), extent[AX_COUNT] = {0};
    extent[AX_Q] = tiles;
    extent[AX_H] = size(t, heads_of_tiles(t));
    extent[AX_B] = size(t, SZ_B);
    for (int i = 0; i < 3; i++) {
        Axis x = (Axis)t->k->sched->order[i];
        place[x] = i < 2 ? op2(t, OP_MOD, rest, extent[x]) : rest;
        rest = op2(t, OP_FLOORDIV, rest, extent[x]);
    }
}

/* Heads in groups whose K and V fit in grid.group_mb, at most 64 KV heads (wgmma: 16); in a group tile after tile, each for all heads. */
static void decode_grouped(Tiler *t, Ref tiles, Ref place[AX_COUNT]) {
    const Spec *spec = t->m->spec;
    int row_bytes = (spec->D + spec->Dv) * ag_dtype_bytes(spec->dtype);
    int rows = (int)((tile_field(t->k, F_GROUP_MB) << 20) / row_bytes);
    Ref one = num(t, 1), all = op2(t, OP_MUL, size(t, SZ_B), size(t, heads_of_tiles(t))),
        block = ag_node_leaf(&t->k->nodes, OP_BLOCK, T_INT, 0, (Span){0});
    Ref kv = op2(t, OP_MIN, op2(t, OP_MAX, op2(t, OP_FLOORDIV, num(t, rows), op2(t, OP_MAX, size(t, SZ_SK), one)), one),
                 num(t, tile_field(t->k, F_MMA_FAMILY) == FAMILY_WGMMA ? 16 : 64));
    Ref share = t->k->pack > 1 ? one : op2(t, OP_FLOORDIV, size(t, SZ_HQ), size(t, SZ_HKV));
    int group = ag_tiler_let(t, t->pre, "group", op2(t, OP_MIN, op2(t, OP_MUL, kv, share), all), "heads walked together: their K and V stay in L2");
    Ref per_group = op2(t, OP_MUL, val(t, group), tiles);
    int first = ag_tiler_let(t, t->pre, "first", op2(t, OP_MUL, op2(t, OP_FLOORDIV, block, per_group), val(t, group)), NULL);
    int rest = ag_tiler_let(t, t->pre, "rest", op2(t, OP_MOD, block, per_group), NULL);
    int heads = ag_tiler_let(t, t->pre, "heads", op2(t, OP_MIN, val(t, group), op2(t, OP_SUB, all, val(t, first))), "the last group may be smaller");
    t->k->val[heads].nonneg = true; /* first < B * Hq */
    Ref head = op2(t, OP_ADD, val(t, first), op2(t, OP_MOD, val(t, rest), val(t, heads)));
    Axis inner = (Axis)t->k->sched->order[1], outer = (Axis)t->k->sched->order[2];
    Ref extent = size(t, inner == AX_H ? heads_of_tiles(t) : SZ_B);
    place[AX_Q] = op2(t, OP_FLOORDIV, val(t, rest), val(t, heads));
    place[inner] = op2(t, OP_MOD, head, extent);
    place[outer] = op2(t, OP_FLOORDIV, head, extent);
}

void ag_tiler_block(Tiler *t) {
    Kernel *k = t->k;
    Ref bm = num(t, k->queries), place[AX_COUNT] = {0};
    Ref tiles_m = op2(t, OP_CEILDIV, size(t, SZ_SQ), bm);
    k->blocks = op2(t, OP_MUL, op2(t, OP_MUL, tiles_m, size(t, heads_of_tiles(t))), size(t, SZ_B));
    int tiles = ag_tiler_let(t, t->pre, "tiles_m", tiles_m,
                             tile_field(k, F_PERSISTENT) == PERSISTENT_NONE ? "---- the tile of this block" : "---- how tiles are numbered");
    if (tile_field(k, F_GROUP_MB) > 0)
        decode_grouped(t, val(t, tiles), place);
    else
        decode_nested(t, val(t, tiles), place);
    if (tile_field(k, F_LONGEST)) place[AX_Q] = op2(t, OP_SUB, op2(t, OP_SUB, val(t, tiles), num(t, 1)), place[AX_Q]);
    int m = ag_tiler_let(t, t->pre, "m", place[AX_Q], tile_field(k, F_LONGEST) ? "last query tiles, with the most keys, first" : NULL);
    k->val[m].nonneg = true;
    t->tile_m = m;
    if (k->pack == 1) t->h = ag_tiler_let(t, t->pre, "h", place[AX_H], NULL);
    t->b = ag_tiler_let(t, t->pre, "b", place[AX_B], NULL);
    Ref group = op2(t, OP_FLOORDIV, size(t, SZ_HQ), size(t, SZ_HKV));
    t->g = ag_tiler_let(t, t->pre, "g", k->pack > 1 ? place[AX_H] : op2(t, OP_FLOORDIV, val(t, t->h), group), "kv head");
    if (k->pack > 1) t->h = ag_tiler_let(t, t->pre, "h0", op2(t, OP_MUL, val(t, t->g), num(t, k->pack)), "the first of its query heads");
    k->val[t->b].below = 1 + SZ_B;
    k->val[t->g].below = 1 + SZ_HKV;
    k->val[t->h].below = 1 + SZ_HQ;
    t->row0 = ag_tiler_let(t, t->pre, "row0", op2(t, OP_MUL, val(t, m), bm), NULL);
    t->limit =
        k->queries * k->pack == (int)tile_field(k, F_TILE_M) ? size(t, SZ_SQ) : op2(t, OP_MIN, size(t, SZ_SQ), op2(t, OP_ADD, val(t, t->row0), bm));
    t->q0 = ag_tiler_let(t, t->pre, "q0", op2(t, OP_ADD, val(t, t->row0), size(t, SZ_OFF)), "position of the first query row");
    Ref last = op2(t, OP_SUB, op2(t, OP_MIN, op2(t, OP_ADD, val(t, t->row0), bm), size(t, SZ_SQ)), num(t, 1));
    t->q_last = ag_tiler_let(t, t->pre, "q_last", op2(t, OP_ADD, last, size(t, SZ_OFF)), "position of the last query row");
}

/* Entries of the tile's list that can count.  A selection has its blocks at the beginning of the list: not more of them than there are for its queries to select from. */
static Ref listed_entries(Tiler *t) {
    const Kernel *k = t->k;
    Ref all = k->tensor[k->list->a].extent[3], block = num(t, k->list->n), there = op2(t, OP_CEILDIV, size(t, SZ_SK), block);
    SpecRef from = t->listed->blocks;
    if (t->united) return val(t, t->blocks);
    if (from.kind != FROM_DERIVE) return all;
    Ref begun = op2(t, OP_MAX, op2(t, OP_FLOORDIV, op2(t, OP_ADD, val(t, t->q_last), block), block), num(t, 0));
    return op2(t, OP_MIN, all, t->m->spec->derive[from.index].causal ? op2(t, OP_MIN, there, begun) : there);
}

/* Key tiles of these, from *first on. */
static Ref tiles_of_entries(Tiler *t, Ref *first) {
    Ref parts = num(t, t->k->list->n / tile_field(t->k, F_TILE_N)), entries = listed_entries(t);
    *first = num(t, 0);
    if (ag_tiler_apart(t)) entries = ag_tiler_unforced(t, entries, first);
    *first = op2(t, OP_MUL, *first, parts);
    return op2(t, OP_MUL, entries, parts);
}

/* Tiles wholly inside of the gap are left out: from step j_gap on a step's tile is `gap` further than its number.  At least `least` tiles behind the gap stay. */
static void leave_gap(Tiler *t, int j_lo, int j_hi, int least) {
    const KeyRange *r = &t->m->range;
    Kernel *k = t->k;
    Ref bn = num(t, tile_field(k, F_TILE_N)), zero = num(t, 0), hi = val(t, j_hi);
    Ref from = op2(t, OP_CEILDIV, op2(t, OP_MAX, ag_tiler_expr(t, r->gap_lo, LEVEL_ONCE), zero), bn);
    Ref to = op2(t, OP_FLOORDIV, op2(t, OP_MAX, ag_tiler_expr(t, r->gap_hi, LEVEL_ONCE), zero), bn);
    k->gap_at = val(
        t, ag_tiler_let(t, t->pre, "j_gap", op2(t, OP_MIN, op2(t, OP_MAX, from, val(t, j_lo)), hi), "but those from j_gap on, as many as gap says"));
    Ref last = least ? op2(t, OP_SUB, hi, num(t, least)) : hi;
    k->gap = val(t, ag_tiler_let(t, t->pre, "gap", op2(t, OP_MAX, op2(t, OP_SUB, op2(t, OP_MIN, to, last), k->gap_at), zero), NULL));
    k->hi = val(t, ag_tiler_let(t, t->pre, "j_end", op2(t, OP_SUB, hi, k->gap), "steps j_lo .. j_end: step j is tile j, from j_gap on tile j + gap"));
    k->val[k->nodes.n[k->hi].index].nonneg = true;
}

/* What several bounds have in common is computed once. */
static void share_bounds(Tiler *t) {
    bool *named = NEWN(t->k->arena, bool, (size_t)t->m->nodes.len);
    ag_range_shared(t->m, named);
    const char *note = "---- bounds of the keys";
    for (Ref r = 1; r < t->m->nodes.len; r++) {
        if (!named[r] || t->held[r] >= 0) continue;
        Ref e = ag_tiler_expr(t, r, LEVEL_ONCE);
        t->held[r] = ag_tiler_let(t, t->pre, ag_fmt(t->k->arena, "c%d", t->nonce++).s, e, note);
        note = NULL;
    }
}

/* Tiles of the row of the map that a kernel before has made for this query tile (pass_split.c tells those that need no mask). */
static void mapped_tiles(Tiler *t, const Fn *fn) {
    Ref zero = num(t, 0), m = val(t, t->tile_m), tiles_m = op2(t, OP_CEILDIV, size(t, SZ_SQ), num(t, t->k->queries));
    Ref at = ag_tile_row(t->k, fn, val(t, t->b), t->k->pack > 1 ? 0 : val(t, t->h), tiles_m, m);
    t->k->tile_row =
        val(t, ag_tiler_let(t, t->pre, "map", at, "---- steps j_lo .. j_hi: key tiles that can contribute, as this row of the map says"));
    t->k->lo = val(t, ag_tiler_let(t, t->pre, "j_lo", zero, NULL));
    bool some = tile_field(t->k, F_MMA_FAMILY) == FAMILY_WGMMA; /* as below; an empty row has tile 0 */
    t->k->hi = val(t, ag_tiler_let(t, t->pre, "j_hi", op2(t, OP_MAX, ag_tile_head(t->k, t->k->tile_row, MAP_TILES), num(t, some)), NULL));
}

/* Key tiles that can contribute. */
void ag_tiler_keys(Tiler *t, const Fn *fn) {
    if (t->k->tiles) {
        mapped_tiles(t, fn);
        return;
    }
    const KeyRange *r = &t->m->range;
    if (!t->listed) share_bounds(t);
    Ref bn = num(t, tile_field(t->k, F_TILE_N)), zero = num(t, 0), lo = zero, hi = size(t, SZ_SK);
    if (r->need_lo) lo = op2(t, OP_MAX, ag_tiler_expr(t, r->need_lo, LEVEL_ONCE), zero);
    if (r->need_hi) hi = op2(t, OP_MIN, ag_tiler_expr(t, r->need_hi, LEVEL_ONCE), hi);
    if (r->never_needed) hi = zero;
    if (t->listed) lo = hi = zero;
    Ref from = r->need_lo && !t->listed ? op2(t, OP_FLOORDIV, lo, bn) : zero;
    Ref up = t->listed ? tiles_of_entries(t, &from) : op2(t, OP_CEILDIV, r->need_hi ? op2(t, OP_MAX, hi, zero) : hi, bn);
    int j_lo = ag_tiler_let(t, t->pre, "j_lo", from, "---- key tiles j_lo .. j_hi can contribute");
    /* With wgmma a tile without keys visits one, in which none is visible: the rings of the roles need no exception then. */
    bool some = tile_field(t->k, F_MMA_FAMILY) == FAMILY_WGMMA;
    Ref least = some ? op2(t, OP_ADD, val(t, j_lo), num(t, 1)) : val(t, j_lo);
    int j_hi = ag_tiler_let(t, t->pre, "j_hi", some || ((r->need_lo || r->need_hi) && !t->listed) ? op2(t, OP_MAX, up, least) : up, NULL);
    assert(!ag_expr_uses(t->k, lo, OP_AXIS, AX_H) &&
           !ag_expr_uses(t->k, hi, OP_AXIS, AX_H)); /* a tile may have several heads, and the ranges are for all */
    t->k->lo = val(t, j_lo);
    t->k->hi = val(t, j_hi);
    if (r->gap_lo && !t->listed) leave_gap(t, j_lo, j_hi, some);
    t->k->never_clear = t->listed || (r->mask && r->never_plain);
    if (r->plain_lo) t->k->clear_lo = ag_tiler_expr(t, r->plain_lo, LEVEL_ONCE);
    if (r->plain_hi) t->k->clear_hi = ag_tiler_expr(t, r->plain_hi, LEVEL_ONCE);
}
