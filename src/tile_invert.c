/* tile_invert.c: block lists of queries turned around: the queries of each block, in ascending order.
 *
 *   count    a block of threads for each chunk of queries: how many entries it has of lower blocks than each
 *   scan     a block of threads for some columns: the sum over all chunks says where a block's entries begin, that over earlier chunks where those of a
 *            chunk do
 *   invert   a block of threads for each chunk: its entries to their places
 *
 * Every place follows from sums of integers, so that the result is the same to the bit in each run. */
#include <assert.h>

#include "program.h"

enum { WARPS = 8, THREADS = 32 * WARPS, PER_SM = 4, WINDOW = 1024, COLUMNS = 32 };

typedef struct Builder {
    Kernel *k;
    const Spec *spec;
    const Branch *b;
    int branch;
    Ref blocks; /* of keys */
    Ref heads;
} Builder;

static Ref op(Builder *x, Op o, Ref a, Ref b) { return ag_fold_node(&x->k->nodes, (Node){.op = o, .arg = {a, b}}); }
static Ref num(Builder *x, int64_t n) { return ag_node_int(&x->k->nodes, n); }
static Ref size(Builder *x, Size s) { return ag_node_leaf(&x->k->nodes, OP_SIZE, T_INT, (int)s, (Span){0}); }
static Ref val(Builder *x, int v) { return ag_kval(x->k, v); }

static int let(Builder *x, const char *name, Ref e, const char *note) { return ag_let(x->k, &x->k->role[0].body, name, e, note); }

/* ---- tensors */

static Ref columns(Builder *x) { return op(x, OP_ADD, x->blocks, num(x, 1)); }

static int list_tensor(Builder *x, SpecRef from) {
    bool derived = from.kind == FROM_DERIVE;
    const Input *in = derived ? NULL : &x->spec->input[from.index];
    KernelTensor t = {.name = ag_str_copy(x->k->arena, derived ? x->spec->derive[from.index].name : in->name).s,
                      .type = DT_I32,
                      .rank = derived ? 4 : in->rank,
                      .extent = {size(x, SZ_B), x->heads, size(x, SZ_SQ)},
                      .used = true,
                      .named = true,
                      .program = derived ? ag_program_derive(x->spec, from.index) : ag_program_input(from.index)};
    if (t.rank == 4) t.extent[3] = num(x, ag_list_entries(x->spec, x->b));
    return ag_kernel_tensor(x->k, t);
}

static int buffer(Builder *x, const char *name, int rank, Ref d2, Ref d3, int program, bool output) {
    KernelTensor t = {
        .name = name, .type = DT_I32, .rank = rank, .extent = {size(x, SZ_B), x->heads, d2, d3}, .output = output, .used = true, .program = program};
    return ag_kernel_tensor(x->k, t);
}

static void add_tensors(Builder *x, int step) {
    Inversion *v = &x->k->invert;
    v->lists = v->counts = v->chunks = v->first = v->entry = -1;
    if (step != INVERT_SCAN) v->lists = list_tensor(x, x->b->blocks);
    if (step != INVERT_SCAN && x->b->counts >= 0) v->counts = list_tensor(x, (SpecRef){FROM_INPUT, x->b->counts});
    Ref chunks = op(x, OP_CEILDIV, size(x, SZ_SQ), num(x, INVERT_CHUNK));
    v->chunks = buffer(x, "chunks", 4, chunks, columns(x), ag_program_chunks(x->spec, x->branch), step != INVERT_ENTRIES);
    if (step != INVERT_COUNT) v->first = buffer(x, "first", 3, columns(x), 0, ag_program_first(x->spec, x->branch), step == INVERT_SCAN);
    if (step != INVERT_ENTRIES) return;
    Ref entries = op(x, OP_MUL, size(x, SZ_SQ), num(x, v->slots));
    v->entry = buffer(x, "entry", 3, entries, 0, ag_program_entry(x->spec, x->branch), true);
}

/* ---- kernels */

static int table(Builder *x, const char *name, DType type, int rows, int cols) {
    Kernel *k = x->k;
    int bytes = rows * cols * ag_dtype_bytes(type), at = k->shared_bytes;
    k->shared_bytes += (bytes + 15) / 16 * 16;
    return ag_val(k, (Val){.name = ag_str(name),
                           .space = SPACE_SHARED,
                           .type = type,
                           .rows = rows,
                           .cols = cols,
                           .stages = 1,
                           .offset = at,
                           .bytes = bytes,
                           .over = -1,
                           .reference = -1,
                           .carry = -1,
                           .table = true});
}

/* What a block of threads works on: one of `parts` of one head. */
static Ins *divide(Builder *x, TileOp o, Ref parts, const char *note) {
    Ref block = ag_node_leaf(&x->k->nodes, OP_BLOCK, T_INT, 0, (Span){0});
    x->k->blocks = op(x, OP_MUL, op(x, OP_MUL, parts, x->heads), size(x, SZ_B));
    int n = let(x, o == TI_SCAN_LISTS ? "tiles" : "parts", parts, note);
    int m = let(x, "m", op(x, OP_MOD, block, val(x, n)), NULL);
    int rest = let(x, "rest", op(x, OP_FLOORDIV, block, val(x, n)), NULL);
    int h = let(x, x->b->per_head ? "h" : "g", op(x, OP_MOD, val(x, rest), x->heads), NULL);
    int b = let(x, "b", op(x, OP_FLOORDIV, val(x, rest), x->heads), NULL);
    Ins *i = ag_ins(x->k, o, -1);
    i->span = x->b->span;
    i->e[0] = val(x, b);
    i->e[1] = val(x, h);
    i->e[2] = o == TI_SCAN_LISTS ? op(x, OP_MUL, val(x, m), num(x, COLUMNS)) : val(x, m);
    i->e[3] = x->blocks;
    ag_block_append(&x->k->role[0].body, i);
    return i;
}

static void work_tables(Builder *x, Ins *i, int step) {
    if (step == INVERT_SCAN) {
        i->dst = table(x, "part", DT_I32, WARPS, COLUMNS);
        i->n = x->k->invert.first;
        return;
    }
    i->dst = table(x, "masks", DT_I32, WARPS, WINDOW);
    if (step == INVERT_COUNT) {
        i->a = table(x, "sums", DT_I32, 1, WARPS);
        i->n = x->k->invert.chunks;
    } else {
        i->a = table(x, "begins", DT_I32, 1, WINDOW);
        i->b = table(x, "below", DT_U8, WARPS, WINDOW);
        i->n = x->k->invert.entry;
    }
}

Kernel *ag_build_invert(const Fn *fn, int branch, int step) {
    static const char *const suffix[] = {"count", "scan", "invert"};
    static const TileOp of[] = {TI_COUNT_LISTS, TI_SCAN_LISTS, TI_INVERT_LISTS};
    Builder x = {.spec = fn->spec, .b = &fn->spec->branch[branch], .branch = branch};
    assert(x.b->blocks.kind != FROM_NONE && x.b->per.n == 1);
    Str name = ag_fmt(fn->d->arena, "%.*s_%s%d", STRF(fn->spec->name), suffix[step], branch);
    Kernel *k = x.k = ag_kernel_new(fn->d, fn->spec, fn->sched, fn->target, name);
    k->kind = KERNEL_INVERT;
    k->nrole = 1;
    k->role[0] = (Role){.name = "all", .warps = WARPS};
    k->threads = THREADS;
    k->per_sm = PER_SM;
    k->numerics = STR("i32");
    k->queries = INVERT_CHUNK;
    k->invert = (Inversion){.slots = ag_list_slots(fn->spec, x.b), .chunk = INVERT_CHUNK, .window = WINDOW, .columns = COLUMNS};
    k->forced = ag_apart(fn->spec, x.b);
    x.blocks = op(&x, OP_CEILDIV, size(&x, SZ_SK), num(&x, x.b->block.n));
    x.heads = size(&x, x.b->per_head ? SZ_HQ : SZ_HKV);
    add_tensors(&x, step);
    Ref parts = step == INVERT_SCAN ? op(&x, OP_CEILDIV, columns(&x), num(&x, COLUMNS)) : k->tensor[k->invert.chunks].extent[2];
    Ins *i = divide(&x, of[step], parts, step == INVERT_SCAN ? "---- the columns of this block" : "---- the queries of this block");
    work_tables(&x, i, step);
    k->chunk = ag_gather_chunk(&k->nodes, fn->spec, branch);
    ag_remove_dead_lets(k, &k->role[0].body);
    ag_place_arguments(k);
    return k;
}
