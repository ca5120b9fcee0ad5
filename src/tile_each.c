/* tile_each.c: kernels that compute each element of a tensor by itself: pooled rows (`derive`), and the output of a spec with branches.
 *
 * A block has THREADS threads and as many rows of one head as they can take, each thread EACH_CHANNELS channels of a row.  Heads go fastest over the blocks:
 * what lies beside one another for all heads of a row, such as gates [b, q, h, 3], is read at one time. */
#include <math.h>

#include "program.h"

enum { WARPS = 8, THREADS = 32 * WARPS };

typedef struct Builder {
    Kernel *k;
    const Spec *spec;
    int b, h, g, row0; /* scalars of the block */
} Builder;

static Ref op(Builder *x, Op o, Ref a, Ref b) { return ag_fold_node(&x->k->nodes, (Node){.op = o, .arg = {a, b}}); }
static Ref num(Builder *x, int64_t n) { return ag_node_int(&x->k->nodes, n); }
static Ref size(Builder *x, Size s) { return ag_node_leaf(&x->k->nodes, OP_SIZE, T_INT, (int)s, (Span){0}); }
static Ref val(Builder *x, int v) { return ag_kval(x->k, v); }

static int let(Builder *x, const char *name, Ref e, const char *note) { return ag_let(x->k, &x->k->role[0].body, name, e, note); }

/* ---- tensors */

static const struct {
    const char *name;
    int rank;
    Size size[4];
} first[TEN_COUNT] = {
    [TEN_Q] = {"q", 4, {SZ_B, SZ_HQ, SZ_SQ, SZ_D}},        [TEN_K] = {"k", 4, {SZ_B, SZ_HKV, SZ_SK, SZ_D}},
    [TEN_V] = {"v", 4, {SZ_B, SZ_HKV, SZ_SK, SZ_DV}},      [TEN_O] = {"o", 4, {SZ_B, SZ_HQ, SZ_SQ, SZ_DV}},
    [TEN_LSE] = {"lse", 3, {SZ_B, SZ_HQ, SZ_SQ}},          [TEN_MAX] = {"max", 3, {SZ_B, SZ_HQ, SZ_SQ}},
    [TEN_MEAN] = {"mean_weight", 3, {SZ_B, SZ_HQ, SZ_SQ}},
};

static void describe(Builder *x) {
    for (int i = 0; i < TEN_COUNT; i++) {
        KernelTensor *t = &x->k->tensor[i];
        *t = (KernelTensor){.name = first[i].name,
                            .type = i >= TEN_LSE ? DT_F32 : x->spec->dtype,
                            .rank = first[i].rank,
                            .heads = first[i].size[1],
                            .rows = first[i].size[2],
                            .output = i == TEN_O,
                            .program = i};
        if (t->rank == 4) t->cols = first[i].size[3] == SZ_DV ? x->spec->Dv : x->spec->D;
        for (int dim = 0; dim < t->rank; dim++) t->extent[dim] = ag_output_extent(x->k, x->spec, first[i].size[dim]);
    }
    x->k->ntensor = TEN_COUNT;
}

/* ---- kernels */

static Builder begin(const Fn *fn, const char *suffix) {
    Builder x = {.spec = fn->spec, .g = -1};
    x.k = ag_kernel_new(fn->d, fn->spec, fn->sched, fn->target, ag_fmt(fn->d->arena, "%.*s_%s", STRF(fn->spec->name), suffix));
    x.k->kind = KERNEL_EACH;
    x.k->nrole = 1;
    x.k->role[0] = (Role){.name = "all", .warps = WARPS};
    x.k->threads = THREADS;
    x.k->per_sm = 4;
    x.k->numerics = STR("f32acc");
    describe(&x);
    return x;
}

/* Which rows of tensor `out`, of `cols` channels, a block writes, and of which heads: Kernel.pack of them. */
static void divide(Builder *x, int out, int cols, const char *head) {
    const KernelTensor *t = &x->k->tensor[out];
    Ref block = ag_node_leaf(&x->k->nodes, OP_BLOCK, T_INT, 0, (Span){0}), pack = num(x, x->k->pack);
    Ref heads = x->k->pack > 1 ? op(x, OP_CEILDIV, t->extent[1], pack) : t->extent[1];
    x->k->queries = THREADS / ((cols + EACH_CHANNELS - 1) / EACH_CHANNELS);
    Ref rows = num(x, x->k->queries), tiles = op(x, OP_CEILDIV, t->extent[2], rows);
    x->k->blocks = op(x, OP_MUL, op(x, OP_MUL, tiles, heads), t->extent[0]);
    int tiles_m = let(x, "tiles_m", tiles, "---- the rows of this block");
    Ref rest = op(x, OP_FLOORDIV, block, heads);
    int m = let(x, "m", op(x, OP_MOD, rest, val(x, tiles_m)), NULL);
    x->h = let(x, head, op(x, OP_MUL, op(x, OP_MOD, block, heads), pack), NULL);
    x->b = let(x, "b", op(x, OP_FLOORDIV, rest, val(x, tiles_m)), NULL);
    x->row0 = let(x, "row0", op(x, OP_MUL, val(x, m), rows), NULL);
}

static Ins *add(Builder *x, TileOp o, int out, Span at) {
    Ins *i = ag_ins(x->k, o, -1);
    i->n = out;
    i->span = at;
    i->e[2] = val(x, x->b);
    i->e[3] = val(x, x->h);
    ag_block_append(&x->k->role[0].body, i);
    return i;
}

/* Blocks that an SM is to hold at once, by the registers that take what a thread reads at its channels: enough in flight for the memory, and no spills. */
static int blocks_per_sm(const Kernel *k) {
    int words = 0;
    for (Ref r = 1; r < k->nodes.len; r++) {
        const Node *n = &k->nodes.n[r];
        if (n->op == OP_LOAD && n->axes >> AX_D & 1) words += k->tensor[n->index].type <= DT_BF16 ? EACH_CHANNELS / 2 : EACH_CHANNELS;
    }
    return words <= 24 ? 4 : words <= 64 ? 2 : 1;
}

static Kernel *finish(Builder *x) {
    ag_stop_if_errors(x->k->d);
    ag_remove_dead_lets(x->k, &x->k->role[0].body);
    ag_place_arguments(x->k);
    return x->k;
}

/* ---- pools */

/* Blocks that end at Sk or before, or with a partial tail those that begin before it. */
static Ref pool_count(Builder *x, const Derive *p) {
    if (p->partial) return op(x, OP_CEILDIV, size(x, SZ_SK), num(x, p->stride.n));
    Ref starts = op(x, OP_SUB, size(x, SZ_SK), num(x, p->size.n - 1));
    return op(x, OP_MAX, op(x, OP_CEILDIV, starts, num(x, p->stride.n)), num(x, 0));
}

Kernel *ag_build_pool(const Fn *fn, int derive) {
    const Derive *p = &fn->spec->derive[derive];
    Builder x = begin(fn, ag_fmt(fn->d->arena, "pool%d", derive).s);
    int cols = ag_source_cols(fn->spec, (SpecRef){FROM_DERIVE, derive});
    int source = p->source.kind == FROM_K ? TEN_K : p->source.kind == FROM_V ? TEN_V : ag_output_input(x.k, fn->spec, p->source.index, p->span);
    int weights = p->weights >= 0 ? ag_output_input(x.k, fn->spec, p->weights, p->span) : -1;
    x.k->tensor[source].used = true;
    KernelTensor t = {.name = ag_str_copy(fn->d->arena, p->name).s,
                      .type = fn->spec->dtype,
                      .rank = 4,
                      .cols = cols,
                      .heads = SZ_HKV,
                      .extent = {size(&x, SZ_B), size(&x, SZ_HKV), pool_count(&x, p), num(&x, cols)},
                      .output = true,
                      .used = true,
                      .named = true,
                      .program = ag_program_derive(fn->spec, derive)};
    int out = ag_kernel_tensor(x.k, t);
    divide(&x, out, cols, "g");
    Ins *i = add(&x, TI_POOL, out, p->span);
    i->a = source;
    i->b = weights;
    i->e[0] = val(&x, x.row0);
    i->e[1] = num(&x, p->stride.n);
    i->e[4] = num(&x, p->size.n);
    return finish(&x);
}

/* ---- merging what the entries of lists have given */

static int rows_of_entries(Builder *x, const char *name, bool lse, Ref entries, int program) {
    const KernelTensor *o = &x->k->tensor[TEN_O];
    KernelTensor t = {
        .name = name, .type = lse ? DT_F32 : o->type, .rank = lse ? 3 : 4, .cols = o->cols, .heads = SZ_HQ, .used = true, .program = program};
    for (int i = 0; i < 4; i++) t.extent[i] = i == 2 ? entries : o->extent[i];
    return ag_kernel_tensor(x->k, t);
}

/* What the kernel of the forced blocks has put out. */
static void take_forced(Builder *x, int branch) {
    Ref rows = x->k->tensor[TEN_O].extent[2];
    x->k->forced_rows = rows_of_entries(x, "forced", false, rows, ag_program_result(x->spec, branch));
    x->k->forced_lse = rows_of_entries(x, "forced_lse", true, rows, ag_program_lse(x->spec, branch));
}

/* `output` at the elements of the block. */
static Ref output_of(Builder *x, int own) {
    Ref group = op(x, OP_FLOORDIV, size(x, SZ_HQ), size(x, SZ_HKV));
    if (x->g < 0) x->g = let(x, "g", op(x, OP_FLOORDIV, val(x, x->h), group), "kv head");
    return ag_output_expr(&(OutputPlace){.k = x->k, .spec = x->spec, .b = val(x, x->b), .h = val(x, x->h), .g = val(x, x->g), .own = own});
}

Kernel *ag_build_merge(const Fn *fn, int branch, bool output) {
    const Spec *s = fn->spec;
    const Branch *b = &s->branch[branch];
    Builder x = begin(fn, ag_fmt(fn->d->arena, "merge%d", branch).s);
    bool derived = b->blocks.kind == FROM_DERIVE, alone = s->nbranch == 1 && !s->output;
    int n = ag_list_slots(s, b);
    Ref entries = op(&x, OP_MUL, size(&x, SZ_SQ), num(&x, n));
    KernelTensor *o = &x.k->tensor[TEN_O];
    o->used = true;
    o->program = output ? TEN_O : ag_program_result(s, branch);
    x.k->tensor[TEN_LSE].used = alone;
    x.k->tensor[TEN_LSE].output = true;
    int part = rows_of_entries(&x, "part", false, entries, ag_program_part(s, branch)),
        lse = rows_of_entries(&x, "part_lse", true, entries, ag_program_part_lse(s, branch));
    KernelTensor list = {.name = ag_str_copy(x.k->arena, derived ? s->derive[b->blocks.index].name : s->input[b->blocks.index].name).s,
                         .type = DT_I32,
                         .rank = 4,
                         .extent = {size(&x, SZ_B), size(&x, b->per_head ? SZ_HQ : SZ_HKV), size(&x, SZ_SQ), num(&x, ag_list_entries(s, b))},
                         .used = true,
                         .named = true,
                         .program = derived ? ag_program_derive(s, b->blocks.index) : ag_program_input(b->blocks.index)};
    Ins *lists = ag_ins(x.k, TI_LIST, -1); /* not run: what the slots are of */
    lists->a = ag_kernel_tensor(x.k, list);
    lists->b = b->counts >= 0 ? ag_output_input(x.k, s, b->counts, b->span) : -1;
    lists->n = b->block.n;
    x.k->list = lists;
    x.k->unique = derived;
    x.k->forced = ag_apart(s, b);
    if (b->apart) take_forced(&x, branch);
    divide(&x, TEN_O, s->Dv, "h");
    Ref group = op(&x, OP_FLOORDIV, size(&x, SZ_HQ), size(&x, SZ_HKV));
    if (!b->per_head) x.g = let(&x, "g", op(&x, OP_FLOORDIV, val(&x, x.h), group), "kv head");
    Ref value = output ? output_of(&x, branch) : 0;
    Ins *i = add(&x, TI_MERGE, TEN_O, b->span);
    i->e[5] = value;
    i->a = part;
    i->b = lse;
    i->bar = alone ? TEN_LSE : -1;
    i->e[0] = val(&x, x.row0);
    i->e[1] = val(&x, b->per_head ? x.h : x.g);
    i->e[4] = num(&x, n);
    x.k->per_sm = 2;
    x.k->chunk = ag_gather_chunk(&x.k->nodes, s, branch);
    if (output && blocks_per_sm(x.k) < 2) x.k->per_sm = blocks_per_sm(x.k);
    return finish(&x);
}

/* ---- outputs */

Kernel *ag_build_combine(const Fn *fn) {
    Builder x = begin(fn, "combine");
    const Ast *output = fn->spec->output;
    x.k->tensor[TEN_O].used = true;
    divide(&x, TEN_O, fn->spec->Dv, "h");
    Ref value = output_of(&x, -1);
    Ins *i = add(&x, TI_EACH, TEN_O, output ? output->span : (Span){0});
    i->e[0] = value;
    i->e[1] = val(&x, x.row0);
    x.k->per_sm = blocks_per_sm(x.k);
    return finish(&x);
}

/* ---- rows of q and k by their prologue */

/* Heads whose rows a thread has side by side: enough loads in flight, and angles, which are the same for all, computed once. */
enum { ROW_HEADS = 4 };

/* By which each pair turns from one position to the next, in 2^-64 of a circle: ints wrap around as angles do, so that an angle is as good at any position.
 * 48 bits of it, which no rounding of pow moves. */
static const uint64_t *turns(Arena *a, const RowStep *s) {
    enum { BITS = 48, ALL = 64 };
    int pairs = s->channels.n / 2;
    uint64_t *t = NEWN(a, uint64_t, (size_t)pairs);
    for (int i = 0; i < pairs; i++)
        t[i] = (uint64_t)llround(ldexp(pow(s->theta.x, -2.0 * i / s->channels.n) / (2 * acos(-1.0)), BITS)) << (ALL - BITS);
    return t;
}

static Ins *step(Builder *x, Ins *rows, TileOp o, Span at) {
    Ins *i = ag_ins(x->k, o, -1);
    i->span = at;
    ag_block_append(&rows->body, i);
    return i;
}

static void multiply(Builder *x, Ins *rows, Ref factor, Span at) {
    Ref own = ag_node_intern(&x->k->nodes, (Node){.op = OP_BRANCH, .type = T_FLOAT, .axes = 1 << AX_D});
    step(x, rows, TI_ROW_MAP, at)->e[0] = op(x, OP_MUL, own, factor);
}

static void add_step(Builder *x, Ins *rows, const OutputPlace *at, const RowStep *s) {
    if (s->kind == STEP_NORM) step(x, rows, TI_ROW_NORM, s->span)->e[0] = ag_node_float(&x->k->nodes, s->eps.x);
    if (s->factor) multiply(x, rows, ag_output_lower(at, s->factor), s->span);
    if (s->kind != STEP_ROPE) return;
    Ins *i = step(x, rows, TI_ROW_ROTATE, s->span);
    i->col = s->channels.n / 2;
    i->trans = s->interleaved;
    if (s->value[0]) {
        for (int e = 0; e < 2; e++) i->e[e] = ag_output_lower(at, s->value[e]);
        return;
    }
    i->e[2] = ag_output_lower(at, s->position);
    i->turns = turns(x->k->arena, s);
}

/* The channels of an input behind the `col` that the row has; how many. */
static int append(Builder *x, Ins *rows, const OutputPlace *at, int input, int col, Span span) {
    const Input *in = &x->spec->input[input];
    const Dim *head = &in->dim[1];
    Ins *i = step(x, rows, TI_ROW_APPEND, span);
    i->a = ag_output_input(x->k, x->spec, input, span);
    i->col = col;
    i->e[0] = in->dim[0].kind == DIM_CONST ? num(x, 0) : at->b;
    i->e[1] = head->kind == DIM_CONST ? num(x, 0) : head->axis == AX_G ? at->g : at->h;
    return in->dim[3].n.n;
}

Kernel *ag_build_rows(const Fn *fn, RowsOf rows) {
    Spec *s = NEW(fn->d->arena, Spec); /* what the kernel is of: no score */
    Fn own = *fn;
    bool of_k = rows == ROWS_K;
    *s = *fn->spec;
    s->score = s->mask = s->plus = NULL;
    own.spec = s;
    Builder x = begin(&own, of_k ? "k_rows" : "q_rows");
    KernelTensor *source = &x.k->tensor[of_k ? TEN_K : TEN_Q], t = *source;
    source->used = true;
    t.name = "rows";
    t.output = t.used = true;
    t.program = ag_program_rows(s, rows);
    t.cols = s->D + ag_dot_channels(s);
    t.extent[3] = num(&x, t.cols);
    int out = ag_kernel_tensor(x.k, t), col = s->D;
    x.k->pack = ROW_HEADS;
    x.k->per_sm = 2;
    divide(&x, out, ag_row_lanes(t.cols) * EACH_CHANNELS, of_k ? "g0" : "h0");
    Ref group = op(&x, OP_FLOORDIV, size(&x, SZ_HQ), size(&x, SZ_HKV)), head = ag_node_leaf(&x.k->nodes, OP_AXIS, T_INT, AX_H, (Span){0});
    Ins *i = add(&x, TI_ROWS, out, s->prologue[of_k].n ? s->prologue[of_k].step[0].span : s->dot[0].span);
    i->a = of_k ? TEN_K : TEN_Q;
    i->e[0] = val(&x, x.row0);
    OutputPlace at = {.k = x.k, .spec = s, .b = val(&x, x.b), .h = head, .g = of_k ? head : op(&x, OP_FLOORDIV, head, group), .own = -1};
    for (int j = 0; j < s->prologue[of_k].n; j++) add_step(&x, i, &at, &s->prologue[of_k].step[j]);
    for (int j = 0; j < s->ndot; j++) col += append(&x, i, &at, of_k ? s->dot[j].y : s->dot[j].x, col, s->dot[j].span);
    return finish(&x);
}
