/* test_tile.c: the Tile IR: its checker, and what split, pipeline and place make. */
#include "with_schedule.h"

#include <math.h>
#include <stdio.h>

static const attngen_dim D16[] = {{"D", 16}, {NULL, 0}};
static const char CAUSAL[] = "attention: causal\nmask: k <= q\n";
static const char WINDOW[] = "attention: window\nparams:\n  w: {int: 20}\nmask: k <= q and q - k < w\n";

/* ---- the checker: each row breaks a kernel that was right */

typedef struct Edit {
    Compilation *c;
    Kernel *k;
    Nodes *n;
} Edit;

static int val_named(const Kernel *k, const char *name) {
    for (int v = 0; v < k->nval; v++)
        if (ag_str_is(k->val[v].name, name)) return v;
    fail_msg("no value %s", name);
    return -1;
}
static Val *value(Edit *e, const char *name) { return &e->k->val[val_named(e->k, name)]; }
static Ref use(Edit *e, const char *name) { return ag_kval(e->k, val_named(e->k, name)); }

static Ins *find_in(const Kernel *k, Block *b, TileOp op, const char *dst, Block **where) {
    for (Ins *i = b->first; i; i = i->next) {
        *where = b;
        if (i->op == op && (!dst || ag_str_is(k->val[i->dst].name, dst))) return i;
        Ins *x = find_in(k, &i->body, op, dst, where);
        if (x) return x;
    }
    return NULL;
}
/* The first such instruction; dst NULL: any. */
static Ins *find(Edit *e, TileOp op, const char *dst) {
    Block *where;
    Ins *i = find_in(e->k, &e->k->role[0].body, op, dst, &where);
    if (!i && e->k->nrole > 1) i = find_in(e->k, &e->k->role[1].body, op, dst, &where);
    if (!i) fail_msg("no %s of %s", ag_tile_op_name[op], dst ? dst : "any");
    return i;
}
static void drop(Edit *e, TileOp op, const char *dst) {
    Block *where;
    Ins *i = find_in(e->k, &e->k->role[0].body, op, dst, &where);
    assert_non_null(i);
    ag_block_remove(where, i);
}
static Ref axis(Edit *e, Axis x) { return ag_node_leaf(e->n, OP_AXIS, T_INT, (int)x, (Span){0}); }
static Ref to_float(Edit *e, Ref r) { return ag_node_op(e->n, OP_TOFLOAT, r, 0, 0, (Span){0}); }
static Ref positive(Edit *e, Ref r) { return ag_node_op(e->n, OP_GT, r, ag_node_float(e->n, 0), 0, (Span){0}); }

static void nothing(Edit *e) { (void)e; }
static void let_fragment(Edit *e) { find(e, TI_LET, "m")->dst = val_named(e->k, "S"); }
static void let_missing(Edit *e) { find(e, TI_LET, "m")->e[0] = 0; }
static void let_float(Edit *e) { find(e, TI_LET, "m")->e[0] = ag_node_float(e->n, 1); }
static void let_of_row(Edit *e) { find(e, TI_LET, "m")->e[0] = axis(e, AX_Q); }
static void let_too_late(Edit *e) { find(e, TI_LET, "m")->e[0] = use(e, "q0"); }
static void let_of_math(Edit *e) { find(e, TI_LET, "m")->e[0] = ag_node_leaf(e->n, OP_AXISMIN, T_INT, AX_Q, (Span){0}); }
static void let_of_nothing(Edit *e) { find(e, TI_LET, "m")->e[0] = ag_node_leaf(e->n, OP_VAL, T_INT, 999, (Span){0}); }
static void loop_over_row(Edit *e) { find(e, TI_LOOP, NULL)->dst = val_named(e->k, "mx"); }
static void loop_by_two(Edit *e) { find(e, TI_LOOP, NULL)->n = 2; }
static void if_of_row(Edit *e) { find(e, TI_IF, NULL)->e[0] = positive(e, use(e, "mx")); }
static void if_of_int(Edit *e) { find(e, TI_IF, NULL)->e[0] = use(e, "m"); }
static void any_of_int(Edit *e) { find(e, TI_ANY, NULL)->e[0] = use(e, "m"); }
static void any_of_element(Edit *e) { find(e, TI_ANY, NULL)->e[0] = positive(e, use(e, "S")); }
static void any_without_place(Edit *e) { find(e, TI_ANY, NULL)->e[0] = positive(e, to_float(e, axis(e, AX_Q))); }
static void written_in_any(Edit *e) { drop(e, TI_MAP, "P"), find(e, TI_MAP, "rescale")->dst = val_named(e->k, "lse"), drop(e, TI_MAP, "lse"); }
static void fill_shared(Edit *e) { find(e, TI_FILL, "acc")->dst = val_named(e->k, "Q"); }
static void fill_missing(Edit *e) { find(e, TI_FILL, "acc")->e[0] = 0; }
static void no_fill(Edit *e) { drop(e, TI_FILL, "mx"); }
static void copy_to_fragment(Edit *e) { find(e, TI_COPY, "Q")->dst = val_named(e->k, "acc"); }
static void copy_lse(Edit *e) { find(e, TI_COPY, "Q")->a = TEN_LSE; }
static void copy_wide_tensor(Edit *e) { e->k->tensor[TEN_Q].cols = 40; }
static void copy_no_head(Edit *e) { find(e, TI_COPY, "Q")->e[4] = 0; }
static void copy_sync(Edit *e) { find(e, TI_COPY, "Q")->async = false; }
static void wait_negative(Edit *e) { find(e, TI_WAIT, NULL)->n = -1; }
static void sync_unknown(Edit *e) { find(e, TI_SYNC, NULL)->n = 1; }
static void load_other_shape(Edit *e) { find(e, TI_LOAD, "Q_frag")->a = val_named(e->k, "K"); }
static void load_accumulator(Edit *e) { value(e, "Q_frag")->layout = LAYOUT_ACC; }
static void load_no_stage(Edit *e) { find(e, TI_LOAD, "Q_frag")->e[0] = 0; }
static void mma_two_fragments(Edit *e) { find(e, TI_MMA, "acc")->b = val_named(e->k, "P"); }
static void mma_bf16(Edit *e) { value(e, "acc")->type = DT_BF16; }
static void mma_layout(Edit *e) { value(e, "P")->layout = LAYOUT_ACC; }
static void mma_types(Edit *e) { value(e, "P")->type = DT_F16; }
static void mma_shape(Edit *e) { find(e, TI_MMA, "S")->trans = false; }
static void mma_adds(Edit *e) { find(e, TI_MMA, "S")->zero = false; }
static void mma_unwritten(Edit *e) { drop(e, TI_MAP, "P"); }
static void map_scalar(Edit *e) { find(e, TI_MAP, "P")->dst = val_named(e->k, "m"); }
static void map_int(Edit *e) { find(e, TI_MAP, "P")->e[0] = use(e, "m"); }
static void map_shared(Edit *e) { find(e, TI_MAP, "P")->e[0] = use(e, "Q"); }
static void map_other_shape(Edit *e) { find(e, TI_MAP, "P")->e[0] = use(e, "acc"); }
static void map_row_of_fragment(Edit *e) { find(e, TI_MAP, "lse")->e[0] = use(e, "acc"); }
static void map_part(Edit *e) { find(e, TI_MAP, "lse")->e[0] = use(e, "den"); }
static void map_row_of_key(Edit *e) { find(e, TI_MAP, "lse")->e[0] = to_float(e, axis(e, AX_K)), find(e, TI_MAP, "lse")->e[2] = use(e, "m"); }
static void map_no_place(Edit *e) { find(e, TI_MAP, "lse")->e[0] = to_float(e, axis(e, AX_Q)); }
static void map_after_loop(Edit *e) { find(e, TI_MAP, "lse")->e[0] = use(e, "mx_new"); }
static void reduce_to_fragment(Edit *e) { find(e, TI_REDUCE, "mx_new")->dst = val_named(e->k, "S"); }
static void reduce_product(Edit *e) { find(e, TI_REDUCE, "mx_new")->reduce = OP_MUL; }
static void reduce_part_of_max(Edit *e) { find(e, TI_REDUCE, "den")->reduce = OP_RMAX; }
static void reduce_mixed(Edit *e) { find(e, TI_REDUCE, "den")->b = val_named(e->k, "mx"); }
static void reduce_unwritten(Edit *e) { drop(e, TI_MMA, "S"), drop(e, TI_MAP, "S"); }
static void total_of_total(Edit *e) { find(e, TI_TOTAL, NULL)->a = val_named(e->k, "mx"); }
static void total_unwritten(Edit *e) { find(e, TI_TOTAL, NULL)->a = ag_val(e->k, *value(e, "den")); }
static void store_to_input(Edit *e) { find(e, TI_STORE, NULL)->n = TEN_Q; }
static void store_part(Edit *e) { find(e, TI_STORE_ROW, NULL)->a = val_named(e->k, "den"); }
static void store_through_row(Edit *e) { find(e, TI_STORE, NULL)->b = val_named(e->k, "mx"); }
static void store_through_key(Edit *e) { find(e, TI_STORE, NULL)->b = val_named(e->k, "V"); }
static void store_narrow(Edit *e) { e->k->tensor[TEN_O].cols = 40; }
static void place_overlap(Edit *e) { value(e, "K")->offset = 0; }
static void place_outside(Edit *e) { e->k->shared_bytes -= 16; }
static void place_none(Edit *e) { value(e, "V")->swizzle = -1; }
static void place_arguments(Edit *e) { e->k->slot[2].offset = e->k->slot[1].offset; }
static void list_back(Edit *e) { find(e, TI_COPY, "Q")->prev = NULL; }
static void list_last(Edit *e) { e->k->role[0].body.last = e->k->role[0].body.first; }
static void threads(Edit *e) { e->k->threads = 32; }
static void rows(Edit *e) { value(e, "r0")->rows = 24; }
static void columns(Edit *e) { value(e, "Q_frag")->cols = 24; }

/* ... and of kernels with roles that walk over tiles */
static void else_alone(Edit *e) { find(e, TI_ELSE, NULL)->prev->op = TI_WHILE; }
static void else_of_other(Edit *e) { find(e, TI_ELSE, NULL)->e[0] = ag_node_bool(e->n, true); }
static void while_of_int(Edit *e) { find(e, TI_WHILE, NULL)->e[0] = use(e, "tile"); }
static void set_constant(Edit *e) { value(e, "round")->varies = false; }
static void set_first(Edit *e) { find(e, TI_LET, "base")->op = TI_SET; }
static void put_by_all(Edit *e) { e->k->role[0].body = e->k->role[1].body; }
static void put_elsewhere(Edit *e) { find(e, TI_PUT, NULL)->dst = val_named(e->k, "tile"); }
static void put_nothing(Edit *e) { find(e, TI_PUT, NULL)->e[1] = 0; }
static void get_elsewhere(Edit *e) { find(e, TI_GET, NULL)->a = val_named(e->k, "tile"); }
static void get_to_row(Edit *e) { find(e, TI_GET, NULL)->dst = val_named(e->k, "mx"); }
static void fetch_without_counter(Edit *e) { e->k->counter = false; }
static void fetch_constant(Edit *e) { find(e, TI_FETCH, NULL)->dst = val_named(e->k, "tiles"); }
static void turn_at_mbar(Edit *e) { find(e, TI_TAKE_TURN, NULL)->n = 0; }
static void store_rows(Edit *e) { value(e, "O")->panels = false; }
static void slot_outside(Edit *e) { value(e, "tile_slot")->offset = e->k->shared_bytes; }
static void slot_nowhere(Edit *e) { value(e, "tile_slot")->offset = -1; }
static void mbar_nowhere(Edit *e) { e->k->barrier[1].offset = -1; }

/* Every message begins with "internal error: tile IR of causal_fwd: "; the first one counts. */
static const struct {
    void (*edit)(Edit *);
    const char *message;
} broken[] = {
    {nothing, ""},
    {let_fragment, "let: the destination is no scalar"},
    {let_missing, "let: an operand expression is missing"},
    {let_float, "let: an operand expression has the wrong type"},
    {let_of_row, "let: an axis is read where it has no value"},
    {let_too_late, "let: a value is read before it is written"},
    {let_of_math, "let: an expression holds a node of the Math IR"},
    {let_of_nothing, "let: an expression reads a value that is not there"},
    {loop_over_row, "loop: the loop variable is no scalar, or its step not 1 or -1"},
    {loop_by_two, "loop: the loop variable is no scalar, or its step not 1 or -1"},
    {if_of_row, "if: a row is read where there are no rows, or other ones"},
    {if_of_int, "if: an operand expression has the wrong type"},
    {any_of_int, "any: the condition is no bool"},
    {any_of_element, "any: a fragment is read by an expression of another shape"},
    {any_without_place, "any: an axis is read, but where its positions begin is missing"},
    {written_in_any, "map: a value is read before it is written"},
    {fill_shared, "fill: it must put a constant into a fragment or row"},
    {fill_missing, "fill: it must put a constant into a fragment or row"},
    {no_fill, "reduce: an operand was not written"},
    {copy_to_fragment, "copy: the destination is not in shared memory"},
    {copy_lse, "copy: the source is no tensor of rows"},
    {copy_wide_tensor, "copy: the tile is narrower than the tensor"},
    {copy_no_head, "copy: an operand expression is missing"},
    {copy_sync, "copy: a copy is synchronous after pipeline"},
    {wait_negative, "wait: a negative number of groups"},
    {sync_unknown, "sync: there is no such barrier"},
    {load_other_shape, "load: the operand differs from the tile in shape or type"},
    {load_accumulator, "load: it must take a shared tile to an operand, or elements to a fragment of them"},
    {load_no_stage, "load: an operand expression is missing"},
    {mma_two_fragments, "mma: operands must be fragment += shared or fragment . shared"},
    {mma_bf16, "mma: the result is no fp32 accumulator"},
    {mma_layout, "mma: the left operand has the wrong layout"},
    {mma_types, "mma: the operands differ in type"},
    {mma_shape, "mma: the shapes do not fit"},
    {mma_adds, "mma: it accumulates into nothing"},
    {mma_unwritten, "mma: the left operand was not written"},
    {map_scalar, "map: the destination is no fragment or row"},
    {map_int, "map: the expression is no float"},
    {map_shared, "map: an expression reads shared memory"},
    {map_other_shape, "map: a fragment is read by an expression of another shape"},
    {map_row_of_fragment, "map: a fragment is read by an expression of another shape"},
    {map_part, "map: a partial row sum is read as a total"},
    {map_row_of_key, "map: an axis is read where it has no value"},
    {map_no_place, "map: an axis is read, but where its positions begin is missing"},
    {map_after_loop, "map: a value is read before it is written"},
    {reduce_to_fragment, "reduce: it must take a fragment to a row by max or sum"},
    {reduce_product, "reduce: it must take a fragment to a row by max or sum"},
    {reduce_part_of_max, "reduce: only sums can be partial"},
    {reduce_mixed, "reduce: a partial row sum is read as a total"},
    {reduce_unwritten, "reduce: an operand was not written"},
    {total_of_total, "total: it must take a partial row to a total"},
    {total_unwritten, "total: the partial row was not written"},
    {store_to_input, "store: it must put a fragment or row into an output tensor"},
    {store_part, "store_row: a partial row sum is read as a total"},
    {store_through_row, "store: the staging tile is not in shared memory"},
    {store_through_key, "store: the staging tile is of another shape or type"},
    {store_narrow, "store: the fragment is narrower than the tensor"},
    {place_overlap, "kernel: two shared values overlap"},
    {place_outside, "kernel: a shared value ends outside of shared memory"},
    {place_none, "kernel: a shared value has no place"},
    {place_arguments, "kernel: the argument struct is out of order"},
    {list_back, "fill: the list of instructions is broken"},
    {list_last, "store_row: the list of instructions is broken"},
    {threads, "kernel: the roles do not add up to the threads"},
    {rows, "kernel: a fragment's rows do not divide among the warps"},
    {columns, "kernel: a fragment's columns are no multiple of 16"},
};

static const struct {
    void (*edit)(Edit *);
    const char *message;
} broken_tiles[] = {
    {nothing, ""},
    {else_alone, "else: there is no if that it belongs to"},
    {else_of_other, "else: there is no if that it belongs to"},
    {while_of_int, "while: an operand expression has the wrong type"},
    {set_constant, "set: the destination is no scalar that varies"},
    {set_first, "set: the destination is no scalar that varies"},
    {put_by_all, "put: each thread of the role would write the slot"},
    {put_elsewhere, "put: there is no such slot"},
    {put_nothing, "put: an operand expression is missing"},
    {get_elsewhere, "get: there is no such slot"},
    {get_to_row, "get: the destination is no scalar"},
    {fetch_without_counter, "fetch: the launch has no counter"},
    {fetch_constant, "fetch: the destination is no scalar that varies"},
    {turn_at_mbar, "take_turn: warpgroups take turns on a barrier for that"},
    {store_rows, "store: TMA stores panels"},
    {slot_outside, "kernel: a slot has no place"},
    {slot_nowhere, "kernel: a slot has no place"},
    {mbar_nowhere, "kernel: an mbarrier has no place"},
};

/* 32 queries by 48 keys, D 32: no two tiles have the same shape. */
static Compilation *whole_kernel(void) {
    static const attngen_dim D32[] = {{"D", 32}, {NULL, 0}};
    Schedule s = small_schedule();
    s.f[F_TILE_N].v = 48;
    s.f[F_Q_OPERAND].v = 1;
    s.f[F_RESCALE].v = 1;
    s.f[F_LOOP_FORM].v = 0;
    Compilation *c = compile_schedule(CAUSAL, &s, "sm_80", D32, "place");
    must_compile(c);
    return c;
}

/* Persistent blocks whose tiles are chained. */
static Compilation *tile_kernel(void) {
    Schedule s = small_wgmma(2);
    s.f[F_Q_STAGES].v = 2;
    s.f[F_PERSISTENT].v = PERSISTENT_DYNAMIC;
    s.f[F_TURNS].v = 1;
    s.f[F_O_STORE].v = STORE_TMA;
    Compilation *c = compile_schedule(CAUSAL, &s, "sm_90a", D16, "place");
    must_compile(c);
    return c;
}

static void first_report(Compilation *c, char *out, size_t n) {
    static const char before[] = "internal error: tile IR of causal_fwd: ";
    if (!setjmp(c->diag.jump)) ag_tile_check(c->fn.kernel, c->fn.facts);
    char *text = report(c);
    out[0] = '\0';
    if (*text) {
        assert_memory_equal(text, before, sizeof before - 1);
        snprintf(out, n, "%.*s", (int)strcspn(text + sizeof before - 1, "\n"), text + sizeof before - 1);
        assert_int_equal(c->diag.status, ATTNGEN_E_INTERNAL);
    }
    free(text);
}

static void check_row(int row, Compilation *c, void (*edit)(Edit *), const char *message) {
    char text[256];
    Edit e = {.c = c, .k = c->fn.kernel, .n = &c->fn.kernel->nodes};
    edit(&e);
    first_report(c, text, sizeof text);
    if (strcmp(text, message) != 0) print_error("row %d:\n", row);
    assert_string_equal(text, message);
    ag_compilation_free(c);
}

static void test_checker(void **state) {
    (void)state;
    for (int i = 0; i < LEN(broken); i++) check_row(i, whole_kernel(), broken[i].edit, broken[i].message);
    for (int i = 0; i < LEN(broken_tiles); i++) check_row(i, tile_kernel(), broken_tiles[i].edit, broken_tiles[i].message);
}

/* ---- split: the bounds of every block against the spec's own mask */

typedef struct BlockRun {
    const Kernel *k;
    const HostCall *call;
    int64_t number;
    int64_t *val; /* per value: what a LET has put there */
} BlockRun;

static Scalar eval(const BlockRun *r, Ref e) {
    const Node *n = &r->k->nodes.n[e];
    Scalar arg[3] = {{T_NONE, {0}}, {T_NONE, {0}}, {T_NONE, {0}}}, x = {T_INT, {.i = 0}};
    switch (n->op) {
    case OP_CONST: return n->value;
    case OP_SIZE: x.u.i = r->call->size[n->index]; return x;
    case OP_BLOCK: x.u.i = r->number; return x;
    case OP_PARAM: x.u.i = (int64_t)r->call->scalar[n->index]; return x;
    case OP_VAL: x.u.i = r->val[n->index]; return x;
    default: break;
    }
    for (int a = 0; a < ag_op[n->op].arity; a++) arg[a] = eval(r, n->arg[a]);
    assert_true(ag_eval(n->op, arg, &x));
    return x;
}
static int64_t eval_int(const BlockRun *r, Ref e) { return eval(r, e).u.i; }

static void run_lets(BlockRun *r) {
    for (const Ins *i = r->k->role[0].body.first; i; i = i->next)
        if (i->op == TI_LET && r->k->val[i->dst].scalar == T_INT) r->val[i->dst] = eval_int(r, i->e[0]);
}
static int64_t scalar(const BlockRun *r, const char *name) { return r->val[val_named(r->k, name)]; }

/* What the mask says of a key tile under the query rows of a block. */
typedef struct Seen {
    bool any, all;
} Seen;
static Seen look(const BlockRun *r, const Spec *spec, int64_t tile, int m, int n) {
    int64_t row0 = scalar(r, "row0"), sq = r->call->size[SZ_SQ], sk = r->call->size[SZ_SK];
    Seen s = {false, true};
    for (int64_t q = row0; q < row0 + m && q < sq; q++)
        for (int64_t k = tile * n; k < (tile + 1) * n; k++) {
            bool see = k < sk && ag_visible(spec, r->call, scalar(r, "b"), scalar(r, "h"), q, k);
            s.any |= see;
            s.all &= see;
        }
    return s;
}

typedef struct Counts {
    int64_t visited, plain, needed, clear;
} Counts;

/* The step that visits a key tile; -1: it is in the gap. */
static int64_t step_of(const BlockRun *r, int64_t tile) {
    if (!r->k->gap || tile < eval_int(r, r->k->gap_at)) return tile;
    int64_t step = tile - eval_int(r, r->k->gap);
    return step < eval_int(r, r->k->gap_at) ? -1 : step;
}

static void check_block_bounds(const BlockRun *r, const Spec *spec, int m, int n, Counts *t) {
    const Kernel *k = r->k;
    int64_t lo = eval_int(r, k->lo), hi = eval_int(r, k->hi), plain_lo = lo, plain_hi = lo, tiles = (r->call->size[SZ_SK] + n - 1) / n;
    if (k->plain_lo) plain_lo = eval_int(r, k->plain_lo), plain_hi = eval_int(r, k->plain_hi);
    assert_true(0 <= lo && lo <= hi && lo <= plain_lo && plain_lo <= plain_hi && plain_hi <= hi);
    assert_true(hi <= tiles || hi == lo);
    Counts here = {0, 0, 0, 0};
    for (int64_t j = 0; j < tiles; j++) {
        Seen s = look(r, spec, j, m, n);
        int64_t step = step_of(r, j);
        bool visited = lo <= step && step < hi, plain = plain_lo <= step && step < plain_hi;
        if (s.any && !visited) fail_msg("block %d: key tile %d is needed and not visited", (int)r->number, (int)j);
        if (plain && !s.all) fail_msg("block %d: key tile %d needs a mask and has none", (int)r->number, (int)j);
        here.visited += visited;
        here.plain += plain;
        here.needed += s.any;
        here.clear += s.all;
    }
    if (here.needed == 0 && here.visited == 1) here.visited = 0; /* the needed keys begin in the last tile, past the last key */
    t->visited += here.visited;
    t->plain += here.plain;
    t->needed += here.needed;
    t->clear += here.clear;
}

static Counts check_bounds(const Compilation *c, const Case *shape) {
    CaseData d;
    assert_true(ag_check_data(&d, shape, c->fn.spec, 1));
    const Kernel *k = c->fn.kernel;
    int m = (int)c->sched->f[F_TILE_M].v, n = (int)c->sched->f[F_TILE_N].v;
    Counts t = {0, 0, 0, 0};
    BlockRun r = {k, &d.call, 0, NEWN(k->arena, int64_t, (size_t)k->nval)};
    int64_t blocks = eval_int(&r, k->blocks);
    assert_int_equal(blocks, (d.call.size[SZ_SQ] + m - 1) / m * d.call.size[SZ_HQ] * d.call.size[SZ_B]);
    for (r.number = 0; r.number < blocks; r.number++) {
        run_lets(&r);
        check_block_bounds(&r, c->fn.spec, m, n, &t);
    }
    ag_check_data_free(&d);
    return t;
}

static const Case bound_shapes[] = {
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 100, .Sk = 100, .offset = ATTNGEN_ALIGN_END},
    {.B = 2, .Hkv = 2, .group = 3, .Sq = 33, .Sk = 70, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 97, .Sk = 31, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 2, .Sq = 64, .Sk = 0, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 48, .offset = 0},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 65, .Sk = 80, .offset = -50},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 65, .Sk = 80, .offset = 50},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 80, .offset = 500},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 80, .offset = -500},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 17, .Sk = 97, .offset = 1 << 29},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 17, .Sk = 97, .offset = -(1 << 29)},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 0, .Sk = 64, .offset = ATTNGEN_ALIGN_END},
};

/* tight: exactly the tiles with a visible key are visited, and exactly those that all rows see whole are plain. */
static const struct {
    const char *mask;
    bool tight;
} masks[] = {
    {"k <= q", true},
    {"k < q - 3", true},
    {"q >= k and q - k < 20", true},
    {"abs(q - k) <= 9", true},
    {"k >= 20", true},
    {"k >= 20 and k < 50 and k <= q", true},
    {"k <= q and q - k < w", true},
    {"k < w", true},
    {"true", true},
    {"false", true},
    {"k < 5 or q - k < 20 and k <= q", false},
    {"k <= q or k < 40", false},
    {"not (k > q)", true},
    {"k <= q if q % 2 == 0 else k < 10", false},
    {"k % 3 == 1 and k <= q", false},
    {"k // 16 <= q // 16", true},
    {"k // 16 == q // 16", true},
    {"k <= q and k // 48 == q // 48", true},
    {"q - k < 20 and k <= q or k < 5 and k <= q", false}, /* a gap past the last key */
    {"k <= q and (q - k < 20 or k < 5 or q < 5)", false},
    {"k < q - 40 or k > q + 40", false},
    {"abs(k // 20 - clamp(q // 20, 1, 3)) <= 1 and k % 20 <= q % 20", false},
    {"q < 20 or k > 50", false},
    {"k <= q + h", false},
    {"2 * k <= q", false},
    {"k - off <= q - off and k >= off - 30", false},
    {"k == q", false},
    {"k != q", false},
    {"k <= min(q, 60) and k > max(q - 50, 3)", false},
};

static void test_bounds(void **state) {
    (void)state;
    static const int tile_n[] = {16, 32};
    Counts all = {0, 0, 0, 0};
    for (int i = 0; i < LEN(masks) * LEN(tile_n); i++) {
        char spec[256];
        Schedule s = small_schedule();
        s.f[F_TILE_N].v = tile_n[i % LEN(tile_n)];
        s.f[F_LONGEST].v = i / 2 % 2;
        s.f[F_GROUP_MB].v = i / 4 % 2;
        snprintf(spec, sizeof spec, "attention: a\nparams:\n  w: {int: 25}\nmask: %s\n", masks[i / LEN(tile_n)].mask);
        for (int form = 0; form < 2; form++) {
            s.f[F_LOOP_FORM].v = form;
            Compilation *c = compile_alone(spec, &s, "sm_80", D16, "split");
            must_compile(c);
            for (int k = 0; k < LEN(bound_shapes); k++) {
                Counts t = check_bounds(c, &bound_shapes[k]);
                bool tight = t.visited == t.needed && t.plain == t.clear;
                if (masks[i / LEN(tile_n)].tight && !tight)
                    fail_msg("mask %s, shape %d: %d tiles visited of %d needed, %d plain of %d", masks[i / LEN(tile_n)].mask, k, (int)t.visited,
                             (int)t.needed, (int)t.plain, (int)t.clear);
                all.visited += t.visited;
                all.plain += t.plain;
            }
            ag_compilation_free(c);
        }
    }
    assert_true(all.visited > 5000 && all.plain > 1000); /* of the test itself */
}

/* ---- pipeline: the simulator is the judge of the protocol */

static const Case step_shapes[] = {
    {.B = 1, .Hkv = 1, .group = 2, .Sq = 40, .Sk = 100, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 65, .Sk = 33, .offset = ATTNGEN_ALIGN_END, .layout = LAY_TAIL},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 7, .Sk = 16, .offset = 0},
    {.B = 1, .Hkv = 1, .group = 1, .Sq = 33, .Sk = 0, .offset = ATTNGEN_ALIGN_END},
};

static void test_every_pipeline(void **state) {
    (void)state;
    enum { K, V, TOGETHER, FORWARD, FLAGGED, REGS, AXES };
    static const int n[AXES] = {4, 4, 2, 2, 2, 2};
    int at[AXES], kernels = 0;
    for (int turn = 0; turn < 4 * 4 * 2 * 2 * 2 * 2; turn++) {
        for (int a = 0, rest = turn; a < AXES; rest /= n[a++]) at[a] = rest % n[a];
        if (at[TOGETHER] && (at[K] == 0 || at[V] == 0)) continue;
        Schedule s = small_schedule();
        s.f[F_K_STAGES].v = 1 + at[K];
        s.f[F_V_STAGES].v = 1 + at[V];
        s.f[F_ACQUIRE].v = at[TOGETHER];
        s.f[F_DIRECTION].v = at[FORWARD];
        s.f[F_LOOP_FORM].v = at[FLAGGED];
        s.f[F_Q_OPERAND].v = at[REGS];
        s.f[F_O_STORE].v = turn % 3 == 0;
        Compilation *c = compile_schedule(WINDOW, &s, "sm_80", D16, "place");
        must_compile(c);
        for (int i = 0; i < LEN(step_shapes); i++) must_be_right(c, &step_shapes[i], (uint64_t)turn);
        ag_compilation_free(c);
        kernels++;
    }
    assert_int_equal(kernels, 8 * (16 + 9));
}

/* Logits so large that one key of a row has all the weight. */
static void must_be_right_large(const Compilation *c, const Case *shape, uint64_t seed) {
    Case large = *shape;
    large.large = true;
    char *text = result_of(c, &large, seed, 1);
    if (*text) fail_msg("large logits: %s\n%s", text, c->diag.file[2].text.s);
    free(text);
}

static void test_every_wgmma_pipeline(void **state) {
    (void)state;
    enum { K, V, FLAGGED, FORM, AXES };
    enum { IN_ORDER, FORWARD, OVERLAP, SPECULATIVE };
    static const int n[AXES] = {4, 4, 2, 4};
    int at[AXES];
    for (int turn = 0; turn < 4 * 4 * 2 * 4; turn++) {
        for (int a = 0, rest = turn; a < AXES; rest /= n[a++]) at[a] = rest % n[a];
        Schedule s = small_wgmma(1);
        s.f[F_K_STAGES].v = 1 + at[K];
        s.f[F_V_STAGES].v = 1 + at[V];
        s.f[F_LOOP_FORM].v = at[FLAGGED] && at[FORM] != SPECULATIVE;
        s.f[F_OVERLAP].v = at[FORM] >= OVERLAP;
        s.f[F_SOFTMAX].v = at[FORM] == SPECULATIVE;
        s.f[F_DIRECTION].v = at[FORM] == FORWARD;
        s.f[F_O_STORE].v = turn % 3 == 0;
        Compilation *c = compile_schedule(turn % 2 ? WINDOW : CAUSAL, &s, "sm_90a", D16, "place");
        must_compile(c);
        for (int i = 0; i < LEN(step_shapes); i++) {
            must_be_right(c, &step_shapes[i], (uint64_t)turn);
            must_be_right_large(c, &step_shapes[i], (uint64_t)turn);
        }
        ag_compilation_free(c);
    }
}

/* Blocks that walk over tiles: how the next comes, chained or not, what stores, and the order of tiles.  The spec reads every scalar that says where a tile is, more
 * than the loading thread tells. */
static void test_every_walk(void **state) {
    (void)state;
    static const char PLACES[] = "attention: places\nmask: k <= q + h - b and k != g\n";
    static const int order[][3] = {{AX_Q, AX_H, AX_B}, {AX_B, AX_H, AX_Q}, {AX_H, AX_B, AX_Q}};
    static const Case shape = {.B = 2, .Hkv = 2, .group = 2, .Sq = 150, .Sk = 60, .offset = ATTNGEN_ALIGN_END};
    static const Case keyless = {.B = 2, .Hkv = 1, .group = 1, .Sq = 150, .Sk = 0, .offset = ATTNGEN_ALIGN_END};
    for (int turn = 0; turn < 3 * 3 * 3 * 2 * 2; turn++) {
        Schedule s = small_wgmma(1 + turn % 2);
        int form = turn / 12 % 3; /* in order; scores beside values; chained */
        s.f[F_PERSISTENT].v = turn / 6 % 2 ? PERSISTENT_DYNAMIC : PERSISTENT_STATIC;
        s.f[F_TURNS].v = form > 0 && turn % 2;
        s.f[F_OVERLAP].v = form > 0;
        s.f[F_Q_STAGES].v = 1 + (form > 1);
        s.f[F_O_STORE].v = turn / 2 % 3;
        s.f[F_FETCH_AHEAD].v = turn % 4;
        s.f[F_LOOP_FORM].v = turn / 4 % 2;
        s.f[F_LONGEST].v = turn / 3 % 2;
        memcpy(s.order, order[turn / 36], sizeof s.order);
        s.f[F_GROUP_MB].v = s.order[0] == AX_Q && s.f[F_LONGEST].v;
        Compilation *c = compile_schedule(PLACES, &s, "sm_90a", D16, "place");
        must_compile(c);
        must_be_right(c, &shape, (uint64_t)turn);
        must_be_right(c, &keyless, (uint64_t)turn);
        ag_compilation_free(c);
    }
}

/* "wait 0, sync, copy V, ..." of the top level of a block, with loops left out. */
static void put_protocol(const Kernel *k, const Block *b, Buf *out) {
    for (const Ins *i = b->first; i; i = i->next) {
        if (i->op == TI_WAIT) ag_put(out, "wait %d, ", i->n);
        if (i->op == TI_SYNC) ag_put(out, "sync, ");
        if (i->op == TI_COPY) ag_put(out, "copy %s, ", k->val[i->dst].name.s);
        if (i->op == TI_MMA) ag_put(out, "mma %s, ", k->val[i->dst].name.s);
        if (i->op == TI_COMMIT) ag_put(out, "commit, ");
        if (i->op == TI_STORE) ag_put(out, "store, ");
        if (i->op == TI_LOOP) ag_put(out, "LOOP, ");
        if (i->op == TI_IF) {
            ag_put(out, "if ");
            put_protocol(k, &i->body, out);
        }
    }
}

static void expect_protocol(int k_stages, int v_stages, int together, const char *role, const char *step) {
    Schedule s = small_schedule();
    s.f[F_K_STAGES].v = k_stages;
    s.f[F_V_STAGES].v = v_stages;
    s.f[F_ACQUIRE].v = together;
    s.f[F_LOOP_FORM].v = 0;
    Compilation *c = compile_schedule(CAUSAL, &s, "sm_80", D16, "place");
    must_compile(c);
    Edit e = {.c = c, .k = c->fn.kernel};
    Buf text = {0};
    put_protocol(e.k, &e.k->role[0].body, &text);
    assert_string_equal(text.s, role);
    ag_buf_free(&text);
    put_protocol(e.k, &find(&e, TI_LOOP, NULL)->body, &text);
    assert_string_equal(text.s, step);
    ag_buf_free(&text);
    ag_compilation_free(c);
}

static void test_protocol(void **state) {
    (void)state;
    /* one stage each: each ring is refilled behind the other's barrier */
    expect_protocol(1, 1, 0, "copy Q, if copy K, commit, LOOP, LOOP, wait 0, sync, store, ",
                    "wait 0, sync, copy V, commit, mma S, wait 0, sync, if copy K, commit, mma acc, ");
    /* two stages each: one barrier a step */
    expect_protocol(2, 2, 1, "copy Q, if copy K, if copy V, commit, LOOP, LOOP, wait 0, sync, store, ",
                    "wait 0, sync, if copy K, if copy V, commit, mma S, mma acc, ");
    /* two stages each, waited for separately: two groups stay under way */
    expect_protocol(2, 2, 0, "copy Q, if copy K, commit, if copy V, commit, if copy K, commit, LOOP, LOOP, wait 0, sync, store, ",
                    "wait 2, sync, if copy V, commit, mma S, wait 2, sync, if copy K, commit, mma acc, ");
}

/* ---- the dump: names of parameters are cut from the spec's text */

static void test_dump_names(void **state) {
    (void)state;
    Schedule s = small_schedule();
    Compilation *c = compile_schedule(WINDOW, &s, "sm_80", D16, "place");
    must_compile(c);
    Buf text = {0};
    ag_tile_dump(&text, c->fn.kernel);
    assert_non_null(strstr(text.s, "guard   k >= q - min(max(w, -1073741824), 1073741824) + 1 and k < min(q + 1, Sk)\n"));
    assert_null(strstr(text.s, "int"));
    ag_buf_free(&text);
    ag_compilation_free(c);
}

/* ---- place: refusals name values that are legal */

static int set_field(Schedule *s, const char *path, size_t n, int v) {
    for (int i = 0; i < F_COUNT; i++)
        if (strlen(ag_field[i].path) == n && strncmp(ag_field[i].path, path, n) == 0) {
            s->f[i].v = v;
            return i;
        }
    fail_msg("no field %.*s", (int)n, path);
    return -1;
}

/* Applies each "nearest legal: FIELD: VALUE" of the report by itself; each must compile.  Returns how many there were. */
static int apply_suggestions(const char *spec, const Schedule *s, const char *arch, const attngen_dim *dims, const char *text) {
    static const char before[] = "nearest legal: ";
    int n = 0;
    for (const char *at = text; (at = strstr(at, before)); n++) {
        at += sizeof before - 1;
        Schedule other = *s;
        size_t path = strcspn(at, ":");
        set_field(&other, at, path, atoi(at + path + 1));
        Compilation *c = compile_schedule(spec, &other, arch, dims, "place");
        must_compile(c);
        ag_compilation_free(c);
    }
    return n;
}

static int pick(uint64_t *seed, int n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)n);
}

static void test_suggestions(void **state) {
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_86", "sm_90"};
    uint64_t seed = 1;
    int refused = 0, suggested = 0;
    for (int turn = 0; turn < 600; turn++) {
        Schedule s = small_schedule();
        int warps = 1 << pick(&seed, 5), blocks = 256 / (16 * warps);
        s.f[F_WARPS].v = warps;
        s.f[F_TILE_M].v = 16 * warps * (1 + pick(&seed, blocks));
        s.f[F_TILE_N].v = 16 * (1 + pick(&seed, 16));
        s.f[F_K_STAGES].v = 1 + pick(&seed, 4);
        s.f[F_V_STAGES].v = 1 + pick(&seed, 4);
        s.f[F_ACQUIRE].v = s.f[F_K_STAGES].v > 1 && s.f[F_V_STAGES].v > 1 && pick(&seed, 2);
        s.f[F_Q_OPERAND].v = pick(&seed, 2);
        s.f[F_O_STORE].v = pick(&seed, 2);
        s.f[F_PER_SM].v = 1 + pick(&seed, 3);
        const attngen_dim dims[] = {{"D", 1 + pick(&seed, 256)}, {"Dv", 1 + pick(&seed, 256)}, {NULL, 0}};
        const char *a = arch[pick(&seed, LEN(arch))];
        Compilation *c = compile_schedule(CAUSAL, &s, a, dims, "place");
        char *text = report(c);
        if (c->diag.status != ATTNGEN_OK) {
            assert_int_equal(c->diag.status, ATTNGEN_E_UNSUPPORTED);
            int n = apply_suggestions(CAUSAL, &s, a, dims, text);
            assert_int_equal(n == 0, strstr(text, "no single field") != NULL || strstr(text, "nearest legal value") != NULL);
            refused++;
            suggested += n;
        }
        free(text);
        ag_compilation_free(c);
    }
    assert_true(refused > 200 && suggested > 200);
}

/* The staged output can be what takes the most. */
static void test_staged_output_is_largest(void **state) {
    (void)state;
    static const attngen_dim dims[] = {{"D", 16}, {"Dv", 240}, {NULL, 0}};
    Schedule s = small_schedule();
    s.f[F_WARPS].v = 16;
    s.f[F_TILE_M].v = 256;
    Compilation *c = compile_schedule(CAUSAL, &s, "sm_86", dims, NULL);
    char *text = report(c);
    assert_non_null(strstr(text, "error: the tiles need 122880 bytes of shared memory, sm_86 has 101376 per block\n"));
    assert_non_null(strstr(text, "note: O 1 x 256 x 240 x 2 = 122880 (stages x rows x columns x bytes)\n"));
    free(text);
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checker),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_every_pipeline),
        cmocka_unit_test(test_every_wgmma_pipeline),
        cmocka_unit_test(test_every_walk),
        cmocka_unit_test(test_protocol),
        cmocka_unit_test(test_dump_names),
        cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_staged_output_is_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
