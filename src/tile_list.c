/* tile_list.c: attention over listed blocks, query by query: a tile has the queries of one list, and its loop runs over the entries of that. */
#include "program.h"
#include "tiler.h"

enum { TILE_ROWS = 64, TILE_KEYS = 64 };

static int round_up(int x, int to) { return (x + to - 1) / to * to; }

int ag_listed_queries(const Branch *b, int group) {
    int queries = TILE_ROWS / group < b->per.n ? TILE_ROWS / group : b->per.n;
    while (queries > 1 && b->per.n % queries) queries--;
    return queries > 1 ? queries : 1;
}

/* Keys of a tile: a block, or a part of one. */
static int tile_keys(int block) {
    int n = block;
    while (n > TILE_KEYS || block % n) n -= 16;
    return n;
}

/* A warp for every 16 rows: few, and many blocks to an SM, whose copies and products overlap one another's. */
Schedule *ag_listed_schedule(const Fn *fn, const Branch *b) {
    int pack = b->per_head ? 1 : fn->spec->group, rows = round_up(ag_listed_queries(b, pack) * pack, 16);
    Str text = ag_fmt(fn->d->arena,
                      "schema: attngen.schedule/1\nname: listed\ntile: {m: %d, n: %d}\nmma: {family: mma_sync}\nroles: {warps: %d}\n"
                      "staging: {k: {stages: 1}, v: {stages: 1}, o: {store: direct}}\nloop: {direction: forward}\n"
                      "grid: {longest_first: false, group_mb: 0}\nnumerics: {rescale: lazy}\n",
                      rows, tile_keys(b->block.n), rows / 16);
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
    t->k->unique = b->blocks.kind == FROM_DERIVE;
}

Ref ag_tiler_first_key(Tiler *t) {
    Ref j = t->gather ? 0 : val(t, t->j), n = num(t, tile_field(t->k, F_TILE_N));
    if (t->gather) return t->key0;
    if (!t->listed) return op2(t, OP_MUL, j, n);
    int64_t parts = t->listed->block.n / tile_field(t->k, F_TILE_N);
    Ref entry = parts == 1 ? j : op2(t, OP_FLOORDIV, j, num(t, parts));
    Ref block = ag_node_intern(&t->k->nodes, (Node){.op = OP_LISTED, .type = T_INT, .arg = {entry}});
    Ref first = op2(t, OP_MUL, block, num(t, t->listed->block.n));
    return parts == 1 ? first : op2(t, OP_ADD, first, op2(t, OP_MUL, op2(t, OP_MOD, j, num(t, parts)), n));
}
