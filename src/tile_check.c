/* tile_check.c: what must hold of the Tile IR between passes; a violation is a defect of a pass. */
#include "compile.h"

typedef struct Check {
    const Kernel *k;
    unsigned facts;
    const Role *role;
    bool *written; /* per value: something has been put into it by this role, on every way here */
    bool list;     /* a block list is open */
    Ref any;       /* of the last TI_ANY of this block: its condition, and what it has written for the warps that ran it */
    bool *any_written;
    const Ins *ins; /* being checked, for messages */
} Check;

static void fail(const Check *c, const char *what) {
    ag_internal(c->k->d, "tile IR of %s: %s: %s", c->k->name.s, c->ins ? ag_tile_op_name[c->ins->op] : "kernel", what);
}
static void require(const Check *c, bool ok, const char *what) {
    if (!ok) fail(c, what);
}
static const Val *val(const Check *c, int v) { return v >= 0 && v < c->k->nval ? &c->k->val[v] : NULL; }
static bool is_in(const Check *c, int v, Space s) { return val(c, v) && val(c, v)->space == s; }

/* What an expression may read. */
typedef enum Reach { UNIFORM, PER_ROW, PER_ELEMENT } Reach;

/* Is its expression about elements of a tensor, by row and channel? */
static bool is_by_channel(TileOp op) {
    return op == TI_EACH || op == TI_MERGE || op == TI_OUTPUT || op == TI_OUTPUT_SUM || op == TI_ROW_MAP || op == TI_ROW_APPEND ||
           op == TI_ROW_ROTATE;
}

/* An element of a tensor. */
static void check_element(const Check *c, const Node *n) {
    const KernelTensor *t = n->index >= 0 && n->index < c->k->ntensor ? &c->k->tensor[n->index] : NULL;
    require(c, t && t->used && t->rank == n->nsub, "an element has other dims than its tensor");
    if (!t) return;
    require(c, n->type == ag_dtype_value(t->type), "an element has another type than its tensor");
    for (int i = 0; i < n->nsub; i++) require(c, c->k->nodes.n[n->sub[i]].type == T_INT, "a subscript is no int");
}

static void check_leaf(const Check *c, const Node *n, Reach reach, int rows, int cols, int dst) {
    if (n->op == OP_AXIS) {
        bool of_row = n->index == AX_Q || (n->index == AX_H && c->k->pack > 1);
        bool each = is_by_channel(c->ins->op) && n->index == AX_D && reach == PER_ROW;
        require(c, of_row ? reach >= PER_ROW : each || (n->index == AX_K && reach == PER_ELEMENT), "an axis is read where it has no value");
        return;
    }
    bool by_channel = is_by_channel(c->ins->op) && reach == PER_ROW;
    if (n->op == OP_LOAD && (n->index >= TEN_COUNT || by_channel)) {
        check_element(c, n);
        return;
    }
    bool own = (c->ins->op == TI_MERGE || c->ins->op == TI_OUTPUT || c->ins->op == TI_OUTPUT_SUM || c->ins->op == TI_ROW_MAP) && reach == PER_ROW;
    if (n->op == OP_BRANCH && n->index) {
        const Val *f = val(c, n->index - 1);
        bool output = c->ins->op == TI_OUTPUT || c->ins->op == TI_OUTPUT_SUM;
        require(c, output && f && f->space == SPACE_FRAG && f->layout == LAYOUT_ACC && f->rows == rows && c->written[n->index - 1],
                "the accumulator of another branch is read where it has no value");
    }
    require(c, n->op != OP_BRANCH || own, "the branch of a kernel is read where it has no value");
    require(c, (n->op != OP_FIRST && n->op != OP_QUERY) || c->k->entries, "inverted lists are read that the kernel does not have");
    require(c, n->op != OP_LISTED || c->list, "a block list is read before it is opened");
    require(c, (n->op != OP_TILE && n->op != OP_TILE_AFTER) || c->k->tiles, "a tile map is read that the kernel does not have");
    require(c, n->op != OP_LISTED_BY || (c->list && c->k->list->dst >= 0), "who lists a block is asked without a union of lists");
    require(c, n->op != OP_LOAD && n->op != OP_CARRY && n->op != OP_AXISMIN && n->op != OP_AXISMAX && n->op != OP_RSUM && n->op != OP_RMAX,
            "an expression holds a node of the Math IR");
    if (n->op != OP_VAL) return;
    const Val *v = val(c, n->index);
    if (!v) {
        fail(c, "an expression reads a value that is not there");
        return;
    }
    require(c, c->written[n->index], "a value is read before it is written");
    require(c, v->space != SPACE_SHARED, "an expression reads shared memory");
    require(c, v->space != SPACE_ROW || (reach >= PER_ROW && v->rows == rows), "a row is read where there are no rows, or other ones");
    require(c, v->space != SPACE_FRAG || (reach == PER_ELEMENT && v->rows == rows && v->cols == cols),
            "a fragment is read by an expression of another shape");
    bool by_lane = c->ins->op == TI_ANY || n->index == dst || (dst >= 0 && val(c, dst)->partial); /* each lane its own part */
    require(c, !v->partial || by_lane, "a partial row sum is read as a total");
}

static void check_expr(const Check *c, Ref r, Reach reach, int rows, int cols, int dst) {
    bool *live = NEWN(c->k->arena, bool, (size_t)r + 1);
    live[r] = true;
    for (Ref i = r; i > 0; i--) {
        if (!live[i]) continue;
        const Node *n = &c->k->nodes.n[i];
        if (ag_op[n->op].arity == 0 || n->op == OP_LISTED || n->op == OP_LISTED_BY || n->op == OP_TILE || n->op == OP_TILE_AFTER ||
            n->op == OP_FIRST || n->op == OP_QUERY)
            check_leaf(c, n, reach, rows, cols, dst);
        for (int a = 0; a < ag_op[n->op].arity; a++) live[n->arg[a]] = true;
        for (int a = 0; a < n->nsub; a++) live[n->sub[a]] = true;
    }
}
/* An expression at each row or element, whose positions begin at i->e[1] and i->e[2], and heads at i->e[3]. */
static void check_positions(const Check *c, const Ins *i) {
    static const Axis axis[] = {AX_Q, AX_K, AX_H};
    for (int e = 1; e <= 3; e++)
        require(c, i->e[e] || !ag_expr_uses(c->k, i->e[0], OP_AXIS, (int)axis[e - 1]), "an axis is read, but where its positions begin is missing");
}
static void check_uniform(const Check *c, Ref r, Type want) {
    require(c, r != 0, "an operand expression is missing");
    if (!r) return;
    require(c, c->k->nodes.n[r].type == want, "an operand expression has the wrong type");
    check_expr(c, r, UNIFORM, 0, 0, -1);
}

static bool is_mbar(const Check *c, int n) { return n >= 0 && n < c->k->nbarrier && c->k->barrier[n].kind == BARRIER_MBAR; }

/* A tile, or a row, of elements of a captured tensor. */
static void check_copy_elements(const Check *c, const Ins *i) {
    const Val *d = val(c, i->dst);
    require(c, i->a >= TEN_COUNT && i->a < c->k->ntensor && c->k->tensor[i->a].type == d->type && !c->k->tensor[i->a].flat,
            "the source is no captured tensor of this type");
    require(c, d->panels == (d->rows > 1), "elements lie in panels, or as one row");
    for (int e = 0; e < 6; e++) check_uniform(c, i->e[e], T_INT);
    require(c, !(c->facts & FACT_PIPELINED) || (c->role->one_thread && is_mbar(c, i->bar)), "one thread copies elements by TMA");
}

static void check_copy(const Check *c, const Ins *i) {
    require(c, is_in(c, i->dst, SPACE_SHARED), "the destination is not in shared memory");
    if (is_in(c, i->dst, SPACE_SHARED) && val(c, i->dst)->elements) {
        check_copy_elements(c, i);
        return;
    }
    bool rows = i->a >= 0 && i->a < c->k->ntensor && c->k->tensor[i->a].rank == 4 && c->k->tensor[i->a].cols;
    require(c, rows, "the source is no tensor of rows");
    if (!is_in(c, i->dst, SPACE_SHARED) || !rows) return;
    require(c, val(c, i->dst)->cols >= c->k->tensor[i->a].cols, "the tile is narrower than the tensor");
    for (int e = 0; e < 5; e++) check_uniform(c, i->e[e], T_INT);
    require(c, !(c->facts & FACT_PIPELINED) || i->async, "a copy is synchronous after pipeline");
    require(c, (i->bar >= 0) == c->role->one_thread, "one thread copies by TMA, many by cp.async");
    require(c, !i->own || i->bar < 0, "TMA copies for all warps");
    if (i->bar < 0) return;
    require(c, is_mbar(c, i->bar), "its barrier is no mbarrier");
    require(c, val(c, i->dst)->panels, "TMA writes panels");
}

/* Stage e[0] of mbarrier n, and with `operand` e[1]. */
static void check_mbar(const Check *c, const Ins *i, bool operand) {
    require(c, is_mbar(c, i->n), "there is no such mbarrier");
    check_uniform(c, i->e[0], T_INT);
    if (operand) check_uniform(c, i->e[1], T_INT);
    require(c, i->op != TI_EXPECT || c->role->one_thread, "each thread of the role would announce the bytes");
}

/* What goes through a slot, and who. */
static void check_slot(const Check *c, const Ins *i, int slot) {
    require(c, is_in(c, slot, SPACE_SLOT), "there is no such slot");
    check_uniform(c, i->e[0], T_INT);
    if (i->op == TI_PUT) check_uniform(c, i->e[1], T_INT);
    require(c, i->op != TI_PUT || c->role->one_thread, "each thread of the role would write the slot");
    require(c, i->op != TI_GET || is_in(c, i->dst, SPACE_SCALAR), "the destination is no scalar");
}

static void check_fetch(const Check *c, const Ins *i) {
    require(c, is_in(c, i->dst, SPACE_SCALAR) && val(c, i->dst)->varies, "the destination is no scalar that varies");
    require(c, c->k->counter, "the launch has no counter");
    require(c, c->role->one_thread, "each thread of the role would fetch a tile of its own");
}

static void check_turn(const Check *c, const Ins *i) {
    bool turns = i->n >= 0 && i->n < c->k->nbarrier && c->k->barrier[i->n].kind == BARRIER_TURNS;
    require(c, turns && c->role->warps % 4 == 0, "warpgroups take turns on a barrier for that");
}

static void check_sync(const Check *c, const Ins *i) {
    bool there = i->n >= 0 && i->n < c->k->nbarrier;
    require(c, there, "there is no such barrier");
    require(c, !there || c->k->barrier[i->n].kind <= BARRIER_WARP, "it is no barrier to wait at together");
    require(c, !c->role->one_thread, "one thread cannot wait for its others");
}

static bool is_table(const Check *c, int v, DType type, int rows, int cols);
static void check_entries(const Check *c, const Ins *i) {
    const KernelTensor *a = i->a >= TEN_COUNT && i->a < c->k->ntensor ? &c->k->tensor[i->a] : NULL,
                       *b = i->b >= TEN_COUNT && i->b < c->k->ntensor ? &c->k->tensor[i->b] : NULL;
    require(c, a && b && a->rank == 3 && b->rank == 3 && a->type == DT_I32 && b->type == DT_I32, "inverted lists are two i32 tensors of rank 3");
    require(c, c->k->kind == KERNEL_GATHER && c->k->entries == i && i->n > 0, "it is not what the rows of the kernel's queries come from");
    require(c, is_table(c, i->dst, DT_I32, 1, 1), "there is no table for the entries of a piece");
    for (int e = 0; e < 4; e++) check_uniform(c, i->e[e], T_INT);
}

static void check_union(const Check *c, const Ins *i) {
    int entries = c->k->queries * (int)c->k->nodes.n[c->k->tensor[i->a].extent[3]].value.u.i;
    require(c, is_in(c, i->dst, SPACE_SCALAR), "the number of blocks goes to no scalar");
    require(c, is_table(c, i->bar, DT_I32, UNION_ROWS, ag_union_cols(entries)), "the table is too small for the union of the lists");
    require(c, c->k->queries <= UNION_QUERIES, "there are more queries than bits for them");
    check_uniform(c, i->e[3], T_INT);
}

static void check_list(Check *c, const Ins *i) {
    bool there = i->a >= TEN_COUNT && i->a < c->k->ntensor && c->k->tensor[i->a].rank == 4 && c->k->tensor[i->a].type == DT_I32;
    require(c, there && ag_node_is_const(&c->k->nodes, c->k->tensor[i->a].extent[3]), "the list is no i32 tensor with a constant number of entries");
    require(c, i->b < 0 || (i->b < c->k->ntensor && c->k->tensor[i->b].rank == 3 && c->k->tensor[i->b].type == DT_I32),
            "the counts are no i32 tensor of rank 3");
    require(c, i->n > 0 && i->n % c->k->sched->f[F_TILE_N].v == 0, "a block is not made up of key tiles");
    require(c, !c->role->one_thread && c->k->nrole == 1, "a list belongs to a kernel of one role");
    for (int e = 0; e < 3; e++) check_uniform(c, i->e[e], T_INT);
    if (i->dst >= 0 && there) check_union(c, i);
    c->list = true;
}

static void check_load(const Check *c, const Ins *i) {
    const Val *d = val(c, i->dst), *a = val(c, i->a);
    bool shared = d && a && d->space == SPACE_FRAG && a->space == SPACE_SHARED, elements = shared && a->elements;
    bool there = shared && (elements ? d->layout == LAYOUT_ACC && d->fetched : d->layout == LAYOUT_A);
    require(c, there, "it must take a shared tile to an operand, or elements to a fragment of them");
    if (!there) return;
    require(c, (d->rows == a->rows || (elements && a->rows == 1)) && d->cols == a->cols && d->type == a->type,
            "the operand differs from the tile in shape or type");
    check_uniform(c, i->e[0], T_INT);
}

static void check_stage(const Check *c, const Ins *i) {
    const Val *d = val(c, i->dst), *a = val(c, i->a);
    bool there = d && a && d->space == SPACE_SHARED && d->panels && a->space == SPACE_FRAG && a->layout == LAYOUT_ACC;
    require(c, there, "it must take an accumulator to a shared tile in panels");
    if (!there) return;
    require(c, d->rows == a->rows && d->cols == a->cols, "the tile differs from the fragment in shape");
    require(c, c->written[i->a], "the fragment was not written");
    require(c, c->role->warps % 4 == 0 && !c->role->one_thread, "warpgroups stage their rows");
    check_uniform(c, i->e[0], T_INT);
}

static void check_mma(const Check *c, const Ins *i) {
    const Val *d = val(c, i->dst), *a = val(c, i->a), *b = val(c, i->b);
    bool there = d && a && b && d->space == SPACE_FRAG && b->space == SPACE_SHARED;
    require(c, there, "operands must be fragment += shared or fragment . shared");
    if (!there) return;
    require(c, d->layout == LAYOUT_ACC && d->type == DT_F32, "the result is no fp32 accumulator");
    require(c, a->space == SPACE_SHARED || (a->space == SPACE_FRAG && a->layout == LAYOUT_A), "the left operand has the wrong layout");
    require(c, a->type == b->type, "the operands differ in type");
    bool part = !i->trans && !i->async && i->col >= 0 && i->col % 16 == 0 && i->col + d->cols <= b->cols; /* of b's columns */
    require(c, d->rows == a->rows && a->cols == (i->trans ? b->cols : b->rows) && (part || d->cols == (i->trans ? b->rows : b->cols)),
            "the shapes do not fit");
    require(c, i->zero || c->written[i->dst], "it accumulates into nothing");
    require(c, a->space == SPACE_SHARED || c->written[i->a] || a->lasting, "the left operand was not written");
    check_uniform(c, i->e[0], T_INT);
    if (a->space == SPACE_SHARED) check_uniform(c, i->e[1], T_INT);
    bool panels = b->panels && (a->space != SPACE_SHARED || a->panels);
    require(c, !i->async || (panels && c->role->warps % 4 == 0), "asynchronous mma takes warpgroups and panels");
}

static void check_map(const Check *c, const Ins *i) {
    const Val *d = val(c, i->dst);
    bool ok = d && (d->space == SPACE_FRAG || d->space == SPACE_ROW) && i->e[0];
    require(c, ok, "the destination is no fragment or row");
    if (!ok) return;
    require(c, c->k->nodes.n[i->e[0]].type == T_FLOAT, "the expression is no float");
    check_expr(c, i->e[0], d->space == SPACE_ROW ? PER_ROW : PER_ELEMENT, d->rows, d->cols, i->dst);
    check_positions(c, i);
    for (int e = 1; e <= 3; e++)
        if (i->e[e]) check_uniform(c, i->e[e], T_INT);
}

static void check_reduce(const Check *c, const Ins *i) {
    const Val *d = val(c, i->dst), *a = val(c, i->a);
    bool ok = d && a && d->space == SPACE_ROW && a->space == SPACE_FRAG && d->rows == a->rows;
    require(c, ok && (i->reduce == OP_RMAX || i->reduce == OP_RSUM), "it must take a fragment to a row by max or sum");
    if (!ok) return;
    require(c, c->written[i->a] && (i->b < 0 || c->written[i->b]), "an operand was not written");
    require(c, !d->partial || i->reduce == OP_RSUM, "only sums can be partial");
    require(c, i->b < 0 || (val(c, i->b)->space == SPACE_ROW && val(c, i->b)->partial == d->partial), "a partial row sum is read as a total");
}

static void check_store(const Check *c, const Ins *i) {
    bool wide = i->op == TI_STORE, ok = is_in(c, i->a, wide ? SPACE_FRAG : SPACE_ROW) && i->n >= 0 && i->n < TEN_COUNT && c->k->tensor[i->n].output;
    require(c, ok, "it must put a fragment or row into an output tensor");
    if (!ok) return;
    require(c, c->written[i->a] && !val(c, i->a)->partial, wide ? "the fragment was not written" : "a partial row sum is read as a total");
    require(c, !wide || i->b < 0 || is_in(c, i->b, SPACE_SHARED), "the staging tile is not in shared memory");
    if (wide && is_in(c, i->b, SPACE_SHARED)) {
        const Val *f = val(c, i->a), *b = val(c, i->b);
        require(c,
                f->rows == b->rows && (f->cols == b->cols || (b->panels && b->cols % 64 == 0 && b->cols < f->cols && !i->async)) &&
                    b->type == c->k->tensor[i->n].type,
                "the staging tile is of another shape or type");
    }
    require(c, !i->async || (is_in(c, i->b, SPACE_SHARED) && val(c, i->b)->panels), "TMA stores panels");
    require(c, !wide || i->col || c->k->entries || val(c, i->a)->cols >= c->k->tensor[i->n].cols, "the fragment is narrower than the tensor");
    require(c, i->col >= 0 && i->col % 16 == 0 && (!i->col || i->b < 0), "a part of the columns is stored directly");
    for (int e = 0; e < 4; e++) check_uniform(c, i->e[e], T_INT);
}

/* Tensor n of TI_POOL and TI_EACH: a thread for every EACH_CHANNELS of the channels of every row. */
static bool check_written(const Check *c, const Ins *i) {
    const KernelTensor *t = i->n >= 0 && i->n < c->k->ntensor ? &c->k->tensor[i->n] : NULL;
    bool ok = t && t->output && t->used && t->rank == 4 && (t->type == DT_F16 || t->type == DT_BF16);
    require(c, ok, "it must write rows of an output tensor in a storage type");
    if (!ok) return false;
    int64_t cols = c->k->nodes.n[t->extent[3]].value.u.i;
    require(c, cols > 0 && c->k->queries * ((cols + EACH_CHANNELS - 1) / EACH_CHANNELS) <= c->k->threads, "a block has fewer threads than channels");
    require(c, c->k->kind == KERNEL_EACH && c->k->nrole == 1, "it takes all threads of a kernel for each element");
    return true;
}

static bool is_positive(const Check *c, Ref r) { return ag_node_is_const(&c->k->nodes, r) && c->k->nodes.n[r].value.u.i > 0; }

static void check_pool(const Check *c, const Ins *i) {
    for (int e = 0; e < 5; e++) check_uniform(c, i->e[e], T_INT);
    if (!check_written(c, i)) return;
    const KernelTensor *t = &c->k->tensor[i->n], *a = i->a >= 0 && i->a < c->k->ntensor ? &c->k->tensor[i->a] : NULL;
    bool ok = a && a->used && a->rank == 4 && a->type <= DT_F32;
    require(c, ok, "the source is no tensor of rows");
    for (int x = 0; ok && x < 4; x++) require(c, x == 2 || a->extent[x] == t->extent[x], "the pooled rows are of another shape than the source's");
    require(c, is_positive(c, i->e[1]) && is_positive(c, i->e[4]), "stride and size are no positive constants");
    if (i->b < 0) return;
    const KernelTensor *b = i->b < c->k->ntensor ? &c->k->tensor[i->b] : NULL;
    require(c, b && b->used && b->rank == 1 && b->type == DT_F32 && b->extent[0] == i->e[4], "there is not one weight for each row of a block");
}

static void check_merge(const Check *c, const Ins *i) {
    for (int e = 0; e < 5; e++) check_uniform(c, i->e[e], T_INT);
    if (!check_written(c, i)) return;
    const KernelTensor *t = &c->k->tensor[i->n], *a = i->a >= TEN_COUNT && i->a < c->k->ntensor ? &c->k->tensor[i->a] : NULL,
                       *b = i->b >= TEN_COUNT && i->b < c->k->ntensor ? &c->k->tensor[i->b] : NULL;
    require(c, a && a->used && a->rank == 4 && a->type == t->type && a->extent[3] == t->extent[3], "the parts are no rows like those of the result");
    require(c, b && b->used && b->rank == 3 && b->type == DT_F32 && a && b->extent[2] == a->extent[2], "there is not one LSE for each part");
    require(c, is_positive(c, i->e[4]) && c->k->list, "there are no lists whose slots they are");
    require(c, i->bar < 0 || (i->bar < c->k->ntensor && c->k->tensor[i->bar].type == DT_F32), "the LSE goes to no f32 tensor");
    if (!i->e[5]) return;
    require(c, c->k->nodes.n[i->e[5]].type == T_FLOAT, "the expression is no float");
    check_expr(c, i->e[5], PER_ROW, 0, 0, -1);
    require(c, ag_expr_uses(c->k, i->e[5], OP_BRANCH, 0), "the expression does not read what is merged");
}

static void check_each(const Check *c, const Ins *i) {
    for (int e = 1; e < 4; e++) check_uniform(c, i->e[e], T_INT);
    require(c, i->e[0] && c->k->nodes.n[i->e[0]].type == T_FLOAT, "the expression is no float");
    check_expr(c, i->e[0], PER_ROW, 0, 0, -1);
    check_written(c, i);
}

/* An expression of a step at a channel. */
static void check_channel(const Check *c, Ref r, Type want) {
    require(c, r && c->k->nodes.n[r].type == want, "an expression of a step is missing, or of another type");
    if (r) check_expr(c, r, PER_ROW, 0, 0, -1);
}

/* Behind the channels of the source, within those of rows of t. */
static void check_append(const Check *c, const Ins *i, int64_t cols, const KernelTensor *t) {
    const KernelTensor *a = i->a >= 0 && i->a < c->k->ntensor ? &c->k->tensor[i->a] : NULL;
    require(c, a && a->used && a->rank == 4 && a->type <= DT_F32 && a->extent[2] == t->extent[2], "the channels are of no tensor with these rows");
    require(c, a && i->col >= cols && i->col + c->k->nodes.n[a->extent[3]].value.u.i <= t->cols, "the channels do not fit behind those of the row");
    check_uniform(c, i->e[0], T_INT);
    check_channel(c, i->e[1], T_INT);
}

/* Of rows of tensor t, of which the source has the first `cols` channels. */
static void check_step(const Check *c, const Ins *i, int64_t cols, const KernelTensor *t) {
    switch (i->op) {
    case TI_ROW_NORM: check_uniform(c, i->e[0], T_FLOAT); break;
    case TI_ROW_MAP: check_channel(c, i->e[0], T_FLOAT); break;
    case TI_ROW_APPEND: check_append(c, i, cols, t); break;
    case TI_ROW_ROTATE:
        require(c, i->col > 0 && 2 * i->col <= cols, "it rotates more channels than a row has");
        require(c, !i->e[2] == !i->turns, "there is not one angle for each pair");
        if (i->e[2]) {
            check_channel(c, i->e[2], T_INT);
            break;
        }
        check_channel(c, i->e[0], T_FLOAT);
        check_channel(c, i->e[1], T_FLOAT);
        break;
    default: fail(c, "it is no step"); break;
    }
}

static void check_rows(Check *c, const Ins *i) {
    for (int e = 0; e < 4; e++)
        if (e != 1) check_uniform(c, i->e[e], T_INT);
    if (!check_written(c, i)) return;
    const KernelTensor *t = &c->k->tensor[i->n], *a = i->a >= 0 && i->a < c->k->ntensor ? &c->k->tensor[i->a] : NULL;
    bool ok = a && a->used && a->rank == 4 && a->type <= DT_F32;
    require(c, ok, "the source is no tensor of rows");
    for (int x = 0; ok && x < 3; x++) require(c, a->extent[x] == t->extent[x], "the rows are of another shape than the source's");
    int64_t cols = ok ? c->k->nodes.n[a->extent[3]].value.u.i : 0;
    require(c, cols <= t->cols && c->k->nodes.n[t->extent[3]].value.u.i == t->cols && c->k->queries * ag_row_lanes(t->cols) <= c->k->threads,
            "a block has fewer threads than channels");
    for (const Ins *s = i->body.first; s; s = s->next) {
        c->ins = s;
        check_step(c, s, cols, t);
    }
    c->ins = i;
}

static void check_output(const Check *c, const Ins *i) {
    for (int e = 1; e < 5; e++) check_uniform(c, i->e[e], T_INT);
    int fragment = i->op == TI_OUTPUT ? i->dst : i->a;
    const Val *d = val(c, fragment), *row = val(c, i->dst);
    const KernelTensor *t = i->n >= 0 && i->n < TEN_COUNT ? &c->k->tensor[i->n] : NULL;
    bool ok = t && t->output && t->used && t->rank == 4;
    require(c, ok, "its rows are those of no output tensor");
    require(c, d && d->space == SPACE_FRAG && d->layout == LAYOUT_ACC && d->type == DT_F32 && c->written[fragment],
            "the accumulator was not written");
    require(c, i->op == TI_OUTPUT || (row && d && row->space == SPACE_ROW && row->rows == d->rows && !row->partial),
            "its sum is no row of the fragment");
    require(c, !ok || !d || d->cols >= t->cols, "the fragment is narrower than the tensor");
    require(c, c->k->kind == KERNEL_ATTEND, "it takes a kernel whose rows are queries");
    require(c, i->e[0] && c->k->nodes.n[i->e[0]].type == T_FLOAT, "the expression is no float");
    check_expr(c, i->e[0], PER_ROW, d ? d->rows : 0, 0, -1);
    require(c, i->op != TI_OUTPUT || ag_expr_uses(c->k, i->e[0], OP_BRANCH, 0), "the expression does not read the fragment");
}

/* ---- selections */
static bool is_table(const Check *c, int v, DType type, int rows, int cols) {
    const Val *t = val(c, v);
    return t && t->space == SPACE_SHARED && t->table && t->stages == 1 && t->type == type && t->rows >= rows && t->cols >= cols;
}
static bool is_lists(const Check *c, int v) { return is_table(c, v, DT_I64, c->k->queries, ag_rank_room(&c->k->rank)); }
static bool is_pow2(int x) { return x > 0 && (x & (x - 1)) == 0; }

static void check_rank_fields(const Check *c) {
    const Rank *r = &c->k->rank;
    require(c, c->k->kind == KERNEL_SELECT, "the kernel selects nothing");
    bool sizes = r->size > 0 && r->stride > 0 && r->block > 0 && r->blocks > 0 && r->count > 0;
    require(c, sizes && r->grain > 0 && r->size % r->grain == 0 && r->stride % r->grain == 0 && r->block % r->grain == 0,
            "weights are no whole numbers");
    require(c, sizes && r->history == (r->size - 1) / r->stride, "the history is not what earlier pooled keys overlap");
    require(c, is_pow2(r->unit) && r->unit <= 32 && c->k->pack % r->unit == 0, "the heads of a query are no whole number of units");
    require(c, is_pow2(r->lanes) && r->lanes <= 32 && r->lanes * c->k->queries <= c->k->threads, "there are too few lanes for the queries");
}
static void check_select(const Check *c, const Ins *i) {
    const Rank *r = &c->k->rank;
    const Val *a = val(c, i->a);
    check_rank_fields(c);
    if (c->k->kind != KERNEL_SELECT || r->unit <= 0 || r->stride <= 0) return;
    int units = c->k->queries * (c->k->pack / r->unit), step = (int)((int64_t)r->blocks * r->block / r->stride);
    bool tensor = i->n >= 0 && i->n < c->k->ntensor;
    const KernelTensor *t = tensor ? &c->k->tensor[i->n] : NULL;
    int operands = 4;
    switch (i->op) {
    case TI_LOAD_ROW:
        require(c, is_in(c, i->dst, SPACE_ROW) && !val(c, i->dst)->partial && t && t->type == DT_F32 && t->rank == 3,
                "it must put a tensor of rows into a row");
        break;
    case TI_CLEAR:
        require(c, is_table(c, i->dst, val(c, i->dst) ? val(c, i->dst)->type : DT_F32, 1, 1), "the destination is no table");
        operands = 0;
        break;
    case TI_SUM_HEADS:
        require(c, is_in(c, i->a, SPACE_FRAG) && a->layout == LAYOUT_ACC && c->written[i->a], "the fragment was not written");
        require(c, is_in(c, i->a, SPACE_FRAG) && is_table(c, i->dst, DT_F32, units, r->history + a->cols), "the table is too small for the sums");
        require(c, is_in(c, i->a, SPACE_FRAG) && a->rows / c->role->warps % r->unit == 0, "a unit has rows of two warps");
        operands = 0;
        break;
    case TI_RANK:
        require(c, is_lists(c, i->dst) && c->written[i->dst], "the lists are too small, or not cleared");
        require(c, is_table(c, i->a, DT_F32, units, r->history + step) && c->written[i->a], "the table of sums is too small");
        require(c, (int64_t)r->blocks * r->block % r->stride == 0 && r->history <= step, "a step is no whole number of pooled keys");
        break;
    default:
        require(c, is_lists(c, i->a) && c->written[i->a], "the lists are too small, or not cleared");
        require(c, t && t->type == DT_I32 && t->rank == 4 && t->output && t->cols == r->count, "it must put lists into an output tensor of them");
        break;
    }
    for (int e = 0; e < operands; e++) check_uniform(c, i->e[e], T_INT);
}

/* ---- inversions */

/* Is tensor v an i32 one of that rank, which the kernel has (and writes)? */
static bool is_ints(const Check *c, int v, int rank, bool output) {
    const KernelTensor *t = v >= TEN_COUNT && v < c->k->ntensor ? &c->k->tensor[v] : NULL;
    return t && t->used && t->type == DT_I32 && t->rank == rank && (t->output || !output);
}
/* Is r the number of blocks and one more? */
static bool is_columns(const Check *c, const Ins *i, Ref r) {
    const Node *n = &c->k->nodes.n[r];
    return n->op == OP_ADD && n->arg[0] == i->e[3] && ag_node_is_int(&c->k->nodes, n->arg[1], 1);
}
static void check_lists(const Check *c, const Ins *i) {
    const Inversion *v = &c->k->invert;
    bool lists = is_ints(c, v->lists, 4, false);
    require(c, lists && ag_node_is_int(&c->k->nodes, c->k->tensor[v->lists].extent[3], v->slots), "the lists are no i32 tensor of that many slots");
    require(c, v->counts < 0 || is_ints(c, v->counts, 3, false), "the counts are no i32 tensor of rank 3");
    require(c, v->chunk == c->k->threads && c->k->threads == 256, "there is not one thread for each query of a chunk, 8 warps of them");
    require(c, v->window == 4 * c->k->threads && is_table(c, i->dst, DT_I32, c->k->threads / 32, v->window),
            "there is no table of a bit per query and block of a window");
}
static void check_invert(const Check *c, const Ins *i) {
    const Inversion *v = &c->k->invert;
    require(c, c->k->kind == KERNEL_INVERT && c->k->nrole == 1, "it takes all threads of a kernel that inverts lists");
    for (int e = 0; e < 4; e++) check_uniform(c, i->e[e], T_INT);
    bool chunks = is_ints(c, v->chunks, 4, i->op != TI_INVERT_LISTS) && is_columns(c, i, c->k->tensor[v->chunks].extent[3]);
    require(c, chunks, "the sums of chunks are no i32 tensor of a column per block and one more");
    if (i->op != TI_SCAN_LISTS) check_lists(c, i);
    if (i->op != TI_COUNT_LISTS)
        require(c, is_ints(c, v->first, 3, i->op == TI_SCAN_LISTS) && is_columns(c, i, c->k->tensor[v->first].extent[2]),
                "where blocks begin is no i32 tensor of an element per block and one more");
    switch (i->op) {
    case TI_COUNT_LISTS:
        require(c, i->n == v->chunks && is_table(c, i->a, DT_I32, 1, c->k->threads / 32), "there is no table of a sum per warp");
        break;
    case TI_SCAN_LISTS:
        require(c, i->n == v->first && v->columns == 32 && is_table(c, i->dst, DT_I32, c->k->threads / 32, v->columns),
                "there is no table of a sum per warp and column");
        break;
    default:
        require(c, i->n == v->entry && is_ints(c, v->entry, 3, true), "the entries are no i32 output tensor of rank 3");
        require(c, is_table(c, i->a, DT_I32, 1, v->window), "there is no table of where blocks begin");
        require(c, is_table(c, i->b, DT_U8, c->k->threads / 32, v->window), "there is no table of queries of lower warps");
        break;
    }
}

static void check_block(Check *c, const Block *b);

/* A body that may not run: what it writes counts inside only. */
static void check_body(Check *c, const Ins *i, int counter) {
    bool *outer = c->written, *same = i->op == TI_ANY && c->any == i->e[0] ? c->any_written : NULL;
    c->written = NEWN(c->k->arena, bool, (size_t)c->k->nval);
    for (int v = 0; v < c->k->nval; v++) c->written[v] = outer[v] || (same && same[v]);
    if (counter >= 0) c->written[counter] = true;
    check_block(c, &i->body);
    if (i->op == TI_ANY) c->any = i->e[0], c->any_written = c->written;
    c->written = outer;
}

static void check_loop(Check *c, const Ins *i) {
    require(c, is_in(c, i->dst, SPACE_SCALAR) && (i->n == 1 || i->n == -1), "the loop variable is no scalar, or its step not 1 or -1");
    check_uniform(c, i->e[0], T_INT);
    check_uniform(c, i->e[1], T_INT);
    if (is_in(c, i->dst, SPACE_SCALAR)) check_body(c, i, i->dst);
}

/* Scalars dst and x, which it sets, and positions from val b to val bar, if it has such. */
static bool check_span(const Check *c, const Ins *i, int x, bool positions) {
    bool ok = is_in(c, i->dst, SPACE_SCALAR) && is_in(c, x, SPACE_SCALAR),
         from = !positions || (is_in(c, i->b, SPACE_SCALAR) && is_in(c, i->bar, SPACE_SCALAR) && c->written[i->b] && c->written[i->bar]);
    require(c, c->k->kind == KERNEL_CLASSIFY && c->k->nrole == 1, "it is for a kernel that classifies tiles");
    require(c, ok && from, "it sets and reads scalars");
    return ok && from;
}
static void check_bound(Check *c, const Ins *i) {
    if (!check_span(c, i, i->a, true)) return;
    bool other = ag_expr_uses(c->k, i->e[0], OP_AXIS, i->trans ? AX_Q : AX_K);
    require(c, !other && ag_expr_uses(c->k, i->e[0], OP_AXIS, i->trans ? AX_K : AX_Q), "what is bounded varies with one axis");
    check_expr(c, i->e[0], PER_ELEMENT, 0, 0, -1);
    c->written[i->a] = true;
}
static void check_block(Check *c, const Block *b);
static void check_classify(Check *c, const Ins *i) {
    if (!check_span(c, i, i->col, ag_expr_uses(c->k, c->k->guard, OP_AXIS, AX_Q))) return;
    const KernelTensor *t = &c->k->tensor[c->k->tiles];
    require(c, c->k->tiles >= TEN_COUNT && t->output && t->flat && t->type == DT_I32, "there is no tensor for the map");
    for (int e = 0; e < 3; e++) check_uniform(c, i->e[e], T_INT);
    require(c, i->n > 0 && c->k->guard && c->k->nodes.n[c->k->guard].type == T_BOOL, "a tile has no keys, or there is no mask");
    c->written[i->dst] = c->written[i->col] = true;
    check_block(c, &i->body);
    c->ins = i;
    check_expr(c, c->k->guard, PER_ELEMENT, 0, 0, -1);
    for (int e = 3; e < 5; e++) check_uniform(c, i->e[e], T_BOOL);
}

static void check_ins(Check *c, const Ins *i) {
    c->ins = i;
    switch (i->op) {
    case TI_LET:
        require(c, is_in(c, i->dst, SPACE_SCALAR), "the destination is no scalar");
        if (is_in(c, i->dst, SPACE_SCALAR)) check_uniform(c, i->e[0], val(c, i->dst)->scalar);
        require(c, !val(c, i->dst)->divides || (val(c, i->dst)->scalar == T_INT && ag_reach(c->k, i->e[0]).least >= 1), "a divisor may be below 1");
        break;
    case TI_SET:
        require(c, is_in(c, i->dst, SPACE_SCALAR) && val(c, i->dst)->varies && c->written[i->dst], "the destination is no scalar that varies");
        if (is_in(c, i->dst, SPACE_SCALAR)) check_uniform(c, i->e[0], val(c, i->dst)->scalar);
        break;
    case TI_LOOP: check_loop(c, i); return;
    case TI_ELSE: require(c, i->prev && i->prev->op == TI_IF && i->prev->e[0] == i->e[0], "there is no if that it belongs to"); /* fallthrough */
    case TI_WHILE:
    case TI_IF:
        check_uniform(c, i->e[0], T_BOOL);
        check_body(c, i, -1);
        return;
    case TI_ANY:
        require(c, i->e[0] && c->k->nodes.n[i->e[0]].type == T_BOOL, "the condition is no bool");
        if (i->e[0]) check_expr(c, i->e[0], PER_ROW, (int)c->k->sched->f[F_TILE_M].v, 0, -1);
        if (i->e[0]) check_positions(c, i);
        check_body(c, i, -1);
        return;
    case TI_FILL:
        require(c, (is_in(c, i->dst, SPACE_FRAG) || is_in(c, i->dst, SPACE_ROW)) && ag_node_is_const(&c->k->nodes, i->e[0]),
                "it must put a constant into a fragment or row");
        break;
    case TI_LIST: check_list(c, i); break;
    case TI_ENTRIES: check_entries(c, i); break;
    case TI_FIND:
        require(c, is_in(c, i->dst, SPACE_SCALAR) && val(c, i->dst)->varies, "the destination is no scalar that varies");
        for (int e = 0; e < 2; e++) check_uniform(c, i->e[e], T_INT);
        break;
    case TI_COPY: check_copy(c, i); break;
    case TI_COMMIT: break;
    case TI_WAIT: require(c, i->n >= 0, "a negative number of groups"); break;
    case TI_SYNC: check_sync(c, i); break;
    case TI_EXPECT:
    case TI_WAIT_BAR: check_mbar(c, i, true); break;
    case TI_ARRIVE: check_mbar(c, i, false); break;
    case TI_PUT: check_slot(c, i, i->dst); break;
    case TI_GET: check_slot(c, i, i->a); break;
    case TI_FETCH: check_fetch(c, i); break;
    case TI_RESET: require(c, c->k->counter && c->role->one_thread, "the launch has no counter, or many threads would put it back"); break;
    case TI_TAKE_TURN:
    case TI_PASS_TURN: check_turn(c, i); break;
    case TI_STORE_WAIT:
    case TI_FENCE:
    case TI_MMA_COMMIT: break;
    case TI_MMA_WAIT: require(c, i->n >= 0, "a negative number of groups"); break;
    case TI_LOAD: check_load(c, i); break;
    case TI_STAGE: check_stage(c, i); break;
    case TI_MMA: check_mma(c, i); break;
    case TI_MAP: check_map(c, i); break;
    case TI_REDUCE: check_reduce(c, i); break;
    case TI_TOTAL:
        require(c, is_in(c, i->a, SPACE_ROW) && val(c, i->a)->partial && is_in(c, i->dst, SPACE_ROW) && !val(c, i->dst)->partial,
                "it must take a partial row to a total");
        require(c, is_in(c, i->a, SPACE_ROW) && c->written[i->a], "the partial row was not written");
        break;
    case TI_POOL: check_pool(c, i); break;
    case TI_EACH: check_each(c, i); break;
    case TI_MERGE: check_merge(c, i); break;
    case TI_ROWS: check_rows(c, i); break;
    case TI_ROW_NORM:
    case TI_ROW_MAP:
    case TI_ROW_APPEND:
    case TI_ROW_ROTATE: fail(c, "a step stands outside of rows"); break;
    case TI_OUTPUT:
    case TI_OUTPUT_SUM: check_output(c, i); break;
    case TI_STORE:
    case TI_STORE_ROW: check_store(c, i); break;
    case TI_LOAD_ROW:
    case TI_CLEAR:
    case TI_SUM_HEADS:
    case TI_RANK:
    case TI_STORE_LIST: check_select(c, i); break;
    case TI_COUNT_LISTS:
    case TI_SCAN_LISTS:
    case TI_INVERT_LISTS: check_invert(c, i); break;
    case TI_BOUND: check_bound(c, i); break;
    case TI_CLASSIFY: check_classify(c, i); break;
    }
    if (i->dst >= 0) c->written[i->dst] = true;
}

static void check_block(Check *c, const Block *b) {
    Ref any = c->any;
    bool *any_written = c->any_written;
    c->any = 0;
    for (const Ins *i = b->first; i; i = i->next) {
        c->ins = i;
        require(c, i->next ? i->next->prev == i : b->last == i, "the list of instructions is broken");
        check_ins(c, i);
    }
    c->any = any;
    c->any_written = any_written;
}

static void check_place(Check *c) {
    const Kernel *k = c->k;
    c->ins = NULL;
    for (int i = 0; i < k->nval; i++) {
        const Val *v = &k->val[i];
        if (v->space == SPACE_SLOT)
            require(c, v->offset >= 0 && v->offset % 4 == 0 && v->offset + 4 * v->stages <= k->shared_bytes, "a slot has no place");
        if (v->space != SPACE_SHARED) continue;
        require(c, v->offset >= 0 && v->swizzle >= 0 && v->bytes >= v->rows * v->cols * ag_dtype_bytes(v->type), "a shared value has no place");
        require(c, v->offset + v->bytes * v->stages <= k->shared_bytes, "a shared value ends outside of shared memory");
        for (int j = 0; j < i; j++) {
            const Val *o = &k->val[j];
            bool apart = o->space != SPACE_SHARED || o->offset + o->bytes * o->stages <= v->offset || v->offset + v->bytes * v->stages <= o->offset;
            require(c, apart || v->over >= 0 || o->over >= 0, "two shared values overlap");
        }
    }
    for (int i = 1; i < k->nslot; i++) require(c, k->slot[i].offset > k->slot[i - 1].offset, "the argument struct is out of order");
}

/* Roles follow one another; the warps of those with fragments. */
static int check_roles(const Check *c) {
    const Kernel *k = c->k;
    int warps = 0, computing = 1;
    for (int r = 0; r < k->nrole; r++) {
        require(c, k->role[r].warp0 == warps, "the roles do not follow one another");
        warps += k->role[r].warps;
        if (!k->role[r].one_thread) computing = k->role[r].warps;
    }
    require(c, k->nrole >= 1 && k->threads == 32 * warps, "the roles do not add up to the threads");
    return computing;
}

static void check_barriers(const Check *c) {
    for (int i = 0; i < c->k->nbarrier; i++) {
        const Barrier *b = &c->k->barrier[i];
        if (b->kind != BARRIER_MBAR) continue;
        require(c, b->stages >= 1 && b->count >= 1, "an mbarrier has no stage or counts no arrival");
        if (!(c->facts & FACT_PLACED)) continue;
        require(c, b->offset >= 0 && b->offset % 8 == 0 && b->offset + 8 * b->stages <= c->k->shared_bytes, "an mbarrier has no place");
    }
}

void ag_tile_check(const Kernel *k, unsigned facts) {
    Check c = {.k = k, .facts = facts};
    int warps = check_roles(&c);
    bool tiles = k->kind != KERNEL_EACH && k->kind != KERNEL_INVERT && k->kind != KERNEL_CLASSIFY;
    require(&c, k->pack >= 1 && k->queries >= 1 && (!tiles || k->queries * k->pack <= k->sched->f[F_TILE_M].v),
            "the queries of a tile have more rows than it");
    for (int i = 0; i < k->nval; i++) {
        const Val *v = &k->val[i];
        bool tile = v->space == SPACE_FRAG || v->space == SPACE_ROW;
        require(&c, !tile || (v->rows > 0 && v->rows % (16 * warps) == 0), "a fragment's rows do not divide among the warps");
        require(&c, v->space != SPACE_FRAG || v->cols % 16 == 0, "a fragment's columns are no multiple of 16");
    }
    check_barriers(&c);
    for (int r = 0; r < k->nrole; r++) {
        c.role = &k->role[r];
        c.written = NEWN(k->arena, bool, (size_t)k->nval + 1);
        check_block(&c, &c.role->body);
    }
    if (facts & FACT_PLACED) check_place(&c);
}
