/* tile_gather.c: attention over listed blocks, block by block (KV-outer): a block of keys stays in shared memory, and the queries that list it come by.
 *
 * The lists are inverted first (tile_invert.c).  Entries, sorted by block and then by query, are cut into pieces of one size, however many queries a block has; a block of
 * the launch takes one piece, and in it block of keys after block of keys.  Each entry gives a normalised result and its LSE of its own, which merge puts together
 * (tile_each.c): no maximum is carried, nothing is added in an order that could vary.
 * The form is that of MiniMax's sparse attention (2606.13392); Flash Sparse Attention (2508.18224) has the loop order. */
#include <assert.h>

#include "program.h"
#include "tiler.h"

enum { WARPS = 4, WARP_ROWS = 32, WARP_ROWS_LESS = 16, WIDE = 128, LONG = 64, HOPPER = 90, PIECE_TILES = 16, PIECE_LEAST = 256 };

/* A warp reads the whole block of keys for its rows, so 32 of them; with wider heads, or long blocks and queries that lie in two warps, or as ptxas schedules for older GPUs,
 * there are no registers for that. */
Schedule *ag_gather_schedule(const Fn *fn, const Branch *b) {
    int heads = b->per_head ? 1 : fn->spec->group;
    bool wide = fn->spec->D > WIDE || fn->spec->Dv > WIDE, apart = b->block.n > LONG && WARP_ROWS % heads != 0,
         less = wide || apart || fn->target->sm < HOPPER;
    Str text = ag_fmt(fn->d->arena,
                      "schema: attngen.schedule/1\nname: gather\ntile: {m: %d, n: %d}\nmma: {family: mma_sync}\nroles: {warps: %d}\n"
                      "staging: {k: {stages: 1}, v: {stages: 1}, o: {store: direct}}\nloop: {direction: forward}\n"
                      "grid: {longest_first: false, group_mb: 0, ctas_per_sm: %d}\n",
                      WARPS * (less ? WARP_ROWS_LESS : WARP_ROWS), b->block.n, WARPS, wide ? 1 : 2);
    Schedule *s = ag_schedule_read(fn->d, ag_diag_file(fn->d, STR("<gather>"), text));
    ag_stop_if_errors(fn->d);
    ag_schedule_close(fn->d, s, fn->spec, fn->target);
    ag_stop_if_errors(fn->d);
    return s;
}

/* ---- chunks of queries */

/* Does an element of a tensor with a row for each query lie elsewhere than in the query's own row?  It may be in another chunk. */
static bool leaves_row(const Spec *s, const Ast *load) {
    for (int i = 0; i < load->nsub; i++) {
        const Dim *d = &s->input[load->index].dim[i];
        bool own = load->sub[i]->op == OP_AXIS && load->sub[i]->index == AX_Q;
        if (d->kind == DIM_AXIS && d->axis == AX_Q && !own) return true;
    }
    return false;
}

/* Does the expression need to see all queries? */
static bool reads_queries(const Spec *s, const Ast *e) {
    if (!e) return false;
    if (e->op == OP_LET) return reads_queries(s, s->let[e->index].value);
    bool found = (e->op == OP_SIZE && (e->index == SZ_SQ || e->index == SZ_OFF)) || (e->op == OP_LOAD && leaves_row(s, e));
    for (int i = 0; i < ag_op[e->op].arity && !found; i++) found = reads_queries(s, e->arg[i]);
    for (int i = 0; i < e->nsub && !found; i++) found = reads_queries(s, e->sub[i]);
    return found;
}

/* Bytes of the results of entries, at most; a chunk is whole chunks of the inversion. */
enum { PARTS_BYTES = 800000000 };

Ref ag_gather_chunk(Nodes *p, const Spec *spec, int branch) {
    const Branch *b = &spec->branch[branch];
    if (reads_queries(spec, b->score) || reads_queries(spec, b->mask) || reads_queries(spec, spec->output)) return 0;
    Ref size[SZ_COUNT];
    for (int i = 0; i < SZ_COUNT; i++) size[i] = ag_node_leaf(p, OP_SIZE, T_INT, i, (Span){0});
    int row = ag_list_slots(spec, b) * (spec->Dv * ag_dtype_bytes(spec->dtype) + ag_dtype_bytes(DT_F32));
    Ref rows = ag_fold_node(p, (Node){.op = OP_CEILDIV,
                                      .arg = {ag_node_int(p, PARTS_BYTES), ag_fold_node(p, (Node){.op = OP_MUL, .arg = {size[SZ_B], size[SZ_HQ]}})}}),
        queries = ag_fold_node(p, (Node){.op = OP_CEILDIV, .arg = {rows, ag_node_int(p, row)}}), step = ag_node_int(p, INVERT_CHUNK);
    Ref whole = ag_fold_node(p, (Node){.op = OP_MUL, .arg = {ag_fold_node(p, (Node){.op = OP_CEILDIV, .arg = {queries, step}}), step}});
    return ag_fold_node(p, (Node){.op = OP_MIN, .arg = {size[SZ_SQ], whole}});
}

static Ref unary(Tiler *t, Op o, Ref x) { return ag_node_intern(&t->k->nodes, (Node){.op = o, .type = T_INT, .arg = {x}}); }

/* A scalar that TI_SET or TI_FIND changes. */
static int variable(Tiler *t, Block *to, const char *name, Ref first, const char *note) {
    int v = ag_tiler_let(t, to, name, first, note);
    t->k->val[v].varies = true;
    t->k->val[v].nonneg = true;
    return v;
}
static void set(Tiler *t, Block *to, int v, Ref x) { ag_tiler_add(t, to, TI_SET, v, NULL)->e[0] = x; }
static Ins *put(Tiler *t, Block *to, TileOp op, const char *note) { return ag_tiler_add(t, to, op, -1, note); }

static Ref blocks_of_keys(Tiler *t) { return op2(t, OP_CEILDIV, size(t, SZ_SK), num(t, t->listed->block.n)); }

static int inverted(Tiler *t, const char *name, Ref extent, int program) {
    KernelTensor x = {.name = name, .type = DT_I32, .rank = 3, .used = true, .program = program};
    x.extent[0] = size(t, SZ_B);
    x.extent[1] = size(t, t->listed->per_head ? SZ_HQ : SZ_HKV);
    x.extent[2] = extent;
    return ag_kernel_tensor(t->k, x);
}

/* Results go to a row for each entry. */
static void describe_parts(Tiler *t, Ref entries) {
    static const int output[] = {TEN_O, TEN_LSE};
    for (int i = 0; i < 2; i++) t->k->tensor[output[i]].extent[2] = entries;
    t->k->tensor[TEN_LSE].optional = false;
}

/* Which piece of which head this block of the launch has, and where it begins. */
void ag_tiler_pieces(Tiler *t, Block *once) {
    Kernel *k = t->k;
    const Branch *b = t->listed;
    int n = ag_list_slots(t->m->spec, b), piece_entries = k->queries * PIECE_TILES < PIECE_LEAST ? PIECE_LEAST : k->queries * PIECE_TILES;
    Ref block = ag_node_leaf(&k->nodes, OP_BLOCK, T_INT, 0, (Span){0}), all = op2(t, OP_MUL, size(t, SZ_SQ), num(t, n)),
        heads = size(t, b->per_head ? SZ_HQ : SZ_HKV), group = op2(t, OP_FLOORDIV, size(t, SZ_HQ), size(t, SZ_HKV));
    Ref pieces = op2(t, OP_CEILDIV, all, num(t, piece_entries));
    k->blocks = op2(t, OP_MUL, op2(t, OP_MUL, pieces, heads), size(t, SZ_B));
    k->chunk = ag_gather_chunk(&k->nodes, t->program, t->branch);
    describe_parts(t, all);
    int np = ag_tiler_let(t, once, "pieces", pieces, "---- the piece of this block: entries of one head");
    int piece = ag_tiler_let(t, once, "piece", op2(t, OP_MOD, block, val(t, np)), NULL);
    Ref rest = op2(t, OP_FLOORDIV, block, val(t, np));
    t->b = ag_tiler_let(t, once, "b", op2(t, OP_FLOORDIV, rest, heads), NULL);
    int head = ag_tiler_let(t, once, b->per_head ? "h" : "g", op2(t, OP_MOD, rest, heads), b->per_head ? NULL : "kv head");
    t->g = b->per_head ? ag_tiler_let(t, once, "g", op2(t, OP_FLOORDIV, val(t, head), group), "kv head") : head;
    t->h = b->per_head ? head : ag_tiler_let(t, once, "h0", op2(t, OP_MUL, val(t, t->g), num(t, k->pack)), "the first of its query heads");
    Ref first = op2(t, OP_MUL, val(t, piece), num(t, piece_entries));
    Ins *open = put(t, once, TI_ENTRIES, NULL);
    open->dst = ag_val_table(k, "kept", 1, piece_entries);
    open->a = inverted(t, "first", op2(t, OP_ADD, blocks_of_keys(t), num(t, 1)), ag_program_first(t->program, t->branch));
    open->b = inverted(t, "entry", all, ag_program_entry(t->program, t->branch));
    open->n = n;
    open->e[0] = val(t, t->b);
    open->e[1] = val(t, head);
    open->e[2] = first;
    open->e[3] = all;
    k->entries = open;
    int total = ag_tiler_let(t, once, "total", unary(t, OP_FIRST, blocks_of_keys(t)), "entries that count");
    t->row0 = t->q0 = variable(t, once, "e", first, "the next entry");
    t->piece_end = ag_tiler_let(t, once, "piece_end", op2(t, OP_MIN, op2(t, OP_ADD, val(t, t->row0), num(t, piece_entries)), val(t, total)), NULL);
    t->block = ag_val_scalar(k, "j", T_INT);
    t->end = ag_val_scalar(k, "end", T_INT);
    t->first_key = ag_val_scalar(k, "key0", T_INT);
    k->val[t->block].varies = true;
    k->val[t->block].nonneg = k->val[t->end].nonneg = k->val[t->first_key].nonneg = true;
    t->limit = val(t, t->end);
    t->key0 = val(t, t->first_key);
}

/* The copies out of a block, made asynchronous. */
static void take_copies(Block *from, Block *to, bool own) {
    for (Ins *i = from->first, *next; i; i = next) {
        next = i->next;
        if (i->op != TI_COPY) continue;
        ag_block_remove(from, i);
        i->async = true;
        i->own = own;
        ag_block_append(to, i);
    }
}

/* The step's mask is for tiles with a query that does not see the whole block. */
static void flag_step(Tiler *t, Block *tile, Block *step) {
    const KeyRange *r = &t->m->range;
    Kernel *k = t->k;
    if (r->mask && r->never_plain) return;
    int entry = t->q0;
    Ref last = op2(t, OP_SUB, op2(t, OP_MIN, op2(t, OP_ADD, val(t, entry), num(t, k->queries)), t->limit), num(t, 1)), off = size(t, SZ_OFF);
    t->q0 = ag_tiler_let(t, tile, "q_first", op2(t, OP_ADD, unary(t, OP_QUERY, val(t, entry)), off), "positions of the tile's first and last query");
    t->q_last = ag_tiler_let(t, tile, "q_last", op2(t, OP_ADD, unary(t, OP_QUERY, last), off), NULL);
    Block *pre = t->pre;
    t->pre = tile;
    ag_tiler_flag(t, step, t->key0);
    t->pre = pre;
    t->q0 = entry;
}

enum { ALL, EACH_WARP }; /* barriers */

static void sync(Tiler *t, Block *to, int barrier, const char *note) { put(t, to, TI_SYNC, note)->n = barrier; }
static void arrived(Tiler *t, Block *to, int barrier) {
    put(t, to, TI_WAIT, NULL);
    sync(t, to, barrier, NULL);
}

/* The copies `rows` of the queries of the tile at `entry`. */
static void fetch_rows(Tiler *t, Block *to, const Block *rows, Ref entry) {
    for (const Ins *i = rows->first; i; i = i->next) {
        Ins *copy = ag_ins_clone(t->k, i);
        copy->e[1] = entry;
        ag_block_append(to, copy);
    }
    put(t, to, TI_COMMIT, NULL);
}

/* Behind the step's last look at the queries those of the next tile are fetched. */
static void fetch_ahead(Tiler *t, Block *step, const Block *rows, Ref next) {
    Ins *last = NULL;
    for (Ins *i = step->first; i; i = i->next)
        for (const Ins *x = rows->first; x; x = x->next)
            if (i->op == TI_MMA && i->a == x->dst) last = i;
    assert(last);
    Block ahead = {0};
    sync(t, &ahead, EACH_WARP, "the next tile's queries on their way");
    Ins *some = put(t, &ahead, TI_IF, NULL);
    some->e[0] = op2(t, OP_LT, next, val(t, t->end));
    fetch_rows(t, &some->body, rows, next);
    while (ahead.last) {
        Ins *i = ahead.last;
        ag_block_remove(&ahead, i);
        ag_block_insert_after(step, last, i);
    }
}

/* Each warp has the rows of its queries to itself, from their copy to the store of their results, so that the warps need not wait for one another before the block of keys
 * changes: 4.6 instead of 10.9 ms for 64 query heads in groups of 16, 32768 tokens, 16 blocks of 64 keys (docs/performance.md). */
void ag_tiler_compose(Tiler *t, Block *once, Block *tile, Block *step, Block *post) {
    Kernel *k = t->k;
    Ref entry = val(t, t->row0), end = val(t, t->end), block = val(t, t->block), next = op2(t, OP_ADD, entry, num(t, k->queries));
    Block keys = {0}, rows = {0}, scalars = {0};
    k->barrier[k->nbarrier++] = (Barrier){.name = "all", .kind = BARRIER_BLOCK};
    k->barrier[k->nbarrier++] = (Barrier){.name = "each warp", .kind = BARRIER_WARP};
    take_copies(step, &keys, false);
    take_copies(tile, &rows, true);
    fetch_ahead(t, step, &rows, next);
    flag_step(t, &scalars, step);

    Ins *some = put(t, once, TI_IF, NULL);
    some->e[0] = op2(t, OP_LT, entry, val(t, t->piece_end));
    Ins *let = ag_tiler_add(t, &some->body, TI_LET, t->block, NULL);
    let->e[0] = num(t, 0);
    Ins *find = ag_tiler_add(t, &some->body, TI_FIND, t->block, NULL);
    find->e[0] = entry;
    find->e[1] = blocks_of_keys(t);
    sync(t, &some->body, ALL, "the piece's entries are there");
    Ins *blocks = put(t, &some->body, TI_WHILE, "---- block of keys after block of keys");
    blocks->e[0] = op2(t, OP_LT, entry, val(t, t->piece_end));
    ag_tiler_add(t, &blocks->body, TI_LET, t->end, NULL)->e[0] =
        op2(t, OP_MIN, unary(t, OP_FIRST, op2(t, OP_ADD, block, num(t, 1))), val(t, t->piece_end));
    ag_tiler_add(t, &blocks->body, TI_LET, t->first_key, NULL)->e[0] = op2(t, OP_MUL, block, num(t, t->listed->block.n));
    Ins *listed = put(t, &blocks->body, TI_IF, NULL);
    listed->e[0] = op2(t, OP_LT, entry, end);
    ag_block_move(&listed->body, &keys);
    fetch_rows(t, &listed->body, &rows, entry);
    arrived(t, &listed->body, ALL);
    Ins *tiles = put(t, &listed->body, TI_WHILE, "---- its queries, tile by tile");
    tiles->e[0] = op2(t, OP_LT, entry, end);
    ag_block_move(&tiles->body, &scalars);
    ag_block_move(&tiles->body, tile);
    arrived(t, &tiles->body, EACH_WARP);
    ag_block_move(&tiles->body, step);
    ag_block_move(&tiles->body, post);
    set(t, &tiles->body, t->row0, op2(t, OP_MIN, next, end));
    sync(t, &listed->body, ALL, "every warp is past its reads of the block");
    set(t, &blocks->body, t->block, op2(t, OP_ADD, block, num(t, 1)));
}
