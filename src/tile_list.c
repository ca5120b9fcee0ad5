/* tile_list.c: attention over listed blocks, query by query: a tile has the queries of one list, and its loop runs over the entries of that; or it has
 * neighbouring queries with a list each, and its loop runs over the union of these. */
#include <assert.h>

#include "program.h"
#include "tiler.h"

enum { TILE_ROWS = 64, TILE_KEYS = 64, WARP_ROWS = 16, LEAST_KEYS = 32, SMALL_BYTES = 16384 };

static int round_up(int x, int to) { return (x + to - 1) / to * to; }

int ag_listed_queries(const Branch *b, int group) {
    int queries = TILE_ROWS / group < b->per.n ? TILE_ROWS / group : b->per.n;
    while (queries > 1 && b->per.n % queries) queries--;
    return queries > 1 ? queries : 1;
}

/* Keys of a tile: a block, or a part of one.  A block of one warp has K and V in SMALL_BYTES: more of them are on an SM, 2 to 3 % faster for D 128 (docs/performance.md). */
static int tile_keys(const Spec *s, int rows, int block) {
    int key = (round_up(s->D, 16) + round_up(s->Dv, 16)) * ag_dtype_bytes(s->dtype), most = TILE_KEYS, n = block;
    while (rows == WARP_ROWS && most > LEAST_KEYS && most * key > SMALL_BYTES) most /= 2;
    while (n > most || block % n) n -= 16;
    return n;
}

/* Neighbouring queries have the first blocks and the last ones in common, and often others.  A block that several of them list is read once, at the price of
 * steps that some warps skip. */
int ag_listed_united(const Spec *s, const Branch *b) {
    int pack = b->per_head || !s->group ? 1 : s->group, queries = TILE_ROWS / pack;
    bool whole = TILE_ROWS % pack == 0 && b->per.n == 1 && queries <= UNION_QUERIES; /* all rows are in use */
    return whole && queries > 1 && queries * ag_list_slots(s, b) <= UNION_ENTRIES ? queries : 0;
}

/* How many blocks are on an SM at once, as registers and shared memory allow; and with what is left of that, values are fetched a step ahead. */
typedef struct Share {
    int blocks, v_stages;
} Share;
static Share share_sm(const Fn *fn, const Branch *b, int rows, int keys) {
    enum { MOST = 4, KEPT = 1024 /* bytes that the machine takes of a block */ };
    const int other = fn->target->has_wgmma ? 48 : 80; /* registers for addresses and row values; more where NVRTC compiles fast, see nvrtc.c */
    const Spec *s = fn->spec;
    int d = round_up(s->D, 16), dv = round_up(s->Dv, 16), threads = 2 * rows, size = ag_dtype_bytes(s->dtype);
    int registers = rows * (keys + keys / 2 + dv) / threads + other;
    int table = round_up(4 * UNION_ROWS * ag_union_cols(fn->united * ag_list_slots(fn->program, b)), 128);
    int shared = size * (rows * d + keys * (d + dv)) + table + KEPT;
    Share x = {MOST, 1};
    while (x.blocks > 1 && (x.blocks * threads * registers > fn->target->regs_sm || x.blocks * shared > fn->target->shared_sm)) x.blocks--;
    shared += size * keys * dv;
    if (x.blocks * shared <= fn->target->shared_sm && shared <= fn->target->shared_max) x.v_stages = 2;
    return x;
}

/* A warp for every 16 rows: few, and many blocks to an SM, whose copies and products overlap one another's. */
Schedule *ag_listed_schedule(const Fn *fn, const Branch *b) {
    int pack = b->per_head ? 1 : fn->spec->group, queries = fn->united ? fn->united : ag_listed_queries(b, pack), rows = round_up(queries * pack, 16);
    int keys = tile_keys(fn->spec, rows, b->block.n);
    Share share = fn->united ? share_sm(fn, b, rows, keys) : (Share){1, 1};
    Str text = ag_fmt(fn->d->arena,
                      "schema: attngen.schedule/1\nname: listed\ntile: {m: %d, n: %d}\nmma: {family: mma_sync}\nroles: {warps: %d}\n"
                      "staging: {k: {stages: 1}, v: {stages: %d}, o: {store: direct}}\nloop: {direction: forward}\n"
                      "grid: {longest_first: false, group_mb: 0, ctas_per_sm: %d}\nnumerics: {rescale: %s}\n",
                      rows, keys, rows / 16, share.v_stages, share.blocks, fn->united ? "always" : "lazy"); /* bodies that warps skip do not nest */
    Schedule *s = ag_schedule_read(fn->d, ag_diag_file(fn->d, STR("<listed>"), text));
    ag_stop_if_errors(fn->d);
    ag_schedule_close(fn->d, s, fn->spec, fn->target);
    ag_stop_if_errors(fn->d);
    return s;
}

/* The kernel's tensor for a list, or the counts of one. */
static int list_tensor(Tiler *t, const Spec *s, SpecRef from) {
    const Branch *b = t->listed;
    bool derived = from.kind == FROM_DERIVE;
    const Input *in = derived ? NULL : &s->input[from.index];
    KernelTensor x = {.name = ag_str_copy(t->k->arena, derived ? s->derive[from.index].name : in->name).s,
                      .type = DT_I32,
                      .rank = derived ? 4 : in->rank,
                      .used = true,
                      .named = true,
                      .program = derived ? ag_program_derive(s, from.index) : ag_program_input(from.index)};
    x.extent[0] = size(t, SZ_B);
    x.extent[1] = size(t, b->per_head ? SZ_HQ : SZ_HKV);
    x.extent[2] = op2(t, OP_CEILDIV, size(t, SZ_SQ), num(t, b->per.n));
    if (x.rank == 4) x.extent[3] = num(t, derived ? s->derive[from.index].count.n : in->dim[3].n.n);
    return ag_kernel_tensor(t->k, x);
}

/* The list becomes the union of those of all queries of the tile. */
static void unite(Tiler *t, Ins *list) {
    int cols = ag_union_cols(t->united * (int)t->k->nodes.n[t->k->tensor[list->a].extent[3]].value.u.i);
    list->note = "---- the blocks of this tile: what its queries list, each block once, ascending";
    list->bar = ag_val_table(t->k, "united", UNION_ROWS, cols);
    list->e[3] = op2(t, OP_MIN, op2(t, OP_SUB, size(t, SZ_SQ), val(t, t->row0)), num(t, t->united));
    list->dst = t->blocks = ag_val_scalar(t->k, "blocks", T_INT);
    t->k->val[t->blocks].nonneg = true;
}

void ag_tiler_list(Tiler *t) {
    const Branch *b = t->listed;
    const Spec *s = t->m->spec;
    Ins *i = ag_tiler_add(t, t->pre, TI_LIST, -1, "---- the blocks of this tile");
    i->a = list_tensor(t, s, b->blocks);
    i->b = b->counts >= 0 ? list_tensor(t, s, (SpecRef){FROM_INPUT, b->counts}) : -1;
    i->n = b->block.n;
    i->e[0] = val(t, t->b);
    i->e[1] = val(t, b->per_head ? t->h : t->g);
    i->e[2] = op2(t, OP_FLOORDIV, val(t, t->row0), num(t, b->per.n));
    t->k->list = i;
    if (t->united) unite(t, i);
    if (ag_tiler_apart(t)) t->k->forced = &t->program->derive[b->blocks.index];
    t->k->unique = b->blocks.kind == FROM_DERIVE;
}

/* Key tiles of a block. */
static int64_t parts_of(const Tiler *t) { return t->listed->block.n / tile_field(t->k, F_TILE_N); }
static Ref entry_of(Tiler *t) {
    int64_t parts = parts_of(t);
    return parts == 1 ? val(t, t->j) : op2(t, OP_FLOORDIV, val(t, t->j), num(t, parts));
}

Ref ag_tiler_listed(Tiler *t) {
    Ref q = ag_node_leaf(&t->k->nodes, OP_AXIS, T_INT, AX_Q, (Span){0});
    return ag_node_intern(&t->k->nodes, (Node){.op = OP_LISTED_BY, .type = T_BOOL, .arg = {entry_of(t), op2(t, OP_SUB, q, val(t, t->q0))}});
}

/* Two bodies, the first of which ends with the scores: between them the keys are free, and the values can be waited for. */
void ag_tiler_skip(Tiler *t) {
    Ins *last = NULL, *copy[TEN_COUNT], *body[2];
    int ncopy = 0;
    for (Ins *i = t->step->first, *next; i; i = next) {
        next = i->next;
        if (i->op == TI_MMA && i->trans) last = i;
        if (i->op != TI_COPY) continue;
        assert(ncopy < TEN_COUNT);
        ag_block_remove(t->step, i);
        copy[ncopy++] = i;
    }
    Block all = {0};
    ag_block_move(&all, t->step);
    for (int c = 0; c < ncopy; c++) ag_block_append(t->step, copy[c]);
    for (int n = 0; n < 2; n++) {
        body[n] = ag_ins(t->k, TI_ANY, -1);
        body[n]->e[0] = ag_tiler_listed(t);
        body[n]->e[1] = val(t, t->q0);
    }
    body[0]->note = "---- a warp with a query that lists this block: scores";
    body[1]->note = "---- and what follows from them";
    bool scores = last != NULL;
    while (all.first) {
        Ins *i = all.first;
        ag_block_remove(&all, i);
        ag_block_append(&body[scores ? 0 : 1]->body, i);
        if (i == last) scores = false;
    }
    if (last) ag_block_append(t->step, body[0]);
    ag_block_append(t->step, body[1]);
}

/* Steps go in the order of the map. */
static Ref tile_of_step(Tiler *t, Ref j, int walk) {
    bool down = tile_field(t->k, F_DIRECTION) == 0;
    Ref n = down ? op2(t, OP_SUB, op2(t, OP_SUB, t->k->hi, num(t, 1)), j) : j;
    return ag_node_intern(&t->k->nodes, (Node){.op = OP_TILE, .type = T_INT, .index = walk, .arg = {t->k->tile_row, n}});
}

Ref ag_tiler_first_key(Tiler *t, int walk) {
    Ref j = t->gather ? 0 : val(t, t->j), n = num(t, tile_field(t->k, F_TILE_N));
    if (t->gather) return t->key0;
    if (!t->listed && t->k->gap) /* a tile behind the gap */
        j = op2(t, OP_ADD, j, ag_node_op(&t->k->nodes, OP_SELECT, op2(t, OP_GE, j, t->k->gap_at), t->k->gap, num(t, 0), (Span){0}));
    if (t->k->tiles) j = tile_of_step(t, j, walk);
    if (!t->listed) return op2(t, OP_MUL, j, n);
    int64_t parts = parts_of(t);
    Ref block = ag_node_intern(&t->k->nodes, (Node){.op = OP_LISTED, .type = T_INT, .arg = {entry_of(t)}});
    Ref first = op2(t, OP_MUL, block, num(t, t->listed->block.n));
    return parts == 1 ? first : op2(t, OP_ADD, first, op2(t, OP_MUL, op2(t, OP_MOD, j, num(t, parts)), n));
}
