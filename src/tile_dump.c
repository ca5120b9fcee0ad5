/* tile_dump.c: the Tile IR as text that people read. */
#include <stdio.h>

#include "tile_ir.h"

typedef struct Dump {
    const Kernel *k;
    Buf *out;
    int indent;
    char param[META_NAME]; /* name of the one printed last: the kernel is shared by threads, so its arena is left alone */
} Dump;

static const char *leaf(void *payload, const Node *n) {
    Dump *d = payload;
    if (n->op == OP_VAL) return d->k->val[n->index].name.s;
    if (n->op == OP_BRANCH && n->index) return d->k->val[n->index - 1].name.s;
    if (n->op != OP_PARAM) return NULL;
    snprintf(d->param, sizeof d->param, "%.*s", STRF(d->k->spec->param[n->index].name));
    return d->param;
}
static void put_expr(Dump *d, Ref r) { ag_node_print(d->out, &d->k->nodes, r, leaf, d); }
static const char *name(const Dump *d, int v) { return d->k->val[v].name.s; }

static void put_stage(Dump *d, int v, Ref stage) {
    ag_put(d->out, "%s", name(d, v));
    if (d->k->val[v].stages <= 1) return;
    ag_put(d->out, "[");
    put_expr(d, stage);
    ag_put(d->out, "]");
}

static void put_mbar(Dump *d, int bar, Ref stage) {
    ag_put(d->out, "%s", d->k->barrier[bar].name);
    if (d->k->barrier[bar].stages == 1) return;
    ag_put(d->out, "[");
    put_expr(d, stage);
    ag_put(d->out, "]");
}

static void put_exprs(Dump *d, const char *before, const Ref *e, int n, const char *after) {
    ag_put(d->out, "%s", before);
    for (int i = 0; i < n; i++) {
        if (i) ag_put(d->out, ", ");
        put_expr(d, e[i]);
    }
    ag_put(d->out, "%s", after);
}

static void put_range(Dump *d, const Ins *i) {
    bool down = i->n < 0;
    ag_put(d->out, " %s %s ", name(d, i->dst), down ? "from" : "in");
    put_expr(d, i->e[0]);
    ag_put(d->out, down ? " - 1 down to " : " .. ");
    put_expr(d, i->e[1]);
}

static void put_operands(Dump *d, const Ins *i) {
    const Kernel *k = d->k;
    switch (i->op) {
    case TI_LET:
    case TI_SET:
    case TI_FILL:
    case TI_MAP:
        ag_put(d->out, " %s = ", name(d, i->dst));
        put_expr(d, i->e[0]);
        if (i->op == TI_MAP && k->val[i->dst].space == SPACE_FRAG && k->val[i->dst].type != DT_F32)
            ag_put(d->out, " as %s", ag_dtype_name[k->val[i->dst].type]);
        ag_put(d->out, "%s", i->op == TI_LET && k->val[i->dst].divides ? ", divides" : "");
        break;
    case TI_LOOP: put_range(d, i); break;
    case TI_WHILE:
    case TI_IF: put_exprs(d, " ", i->e, 1, ""); break;
    case TI_PUT:
        ag_put(d->out, " ");
        put_stage(d, i->dst, i->e[0]);
        put_exprs(d, " = ", i->e + 1, 1, "");
        break;
    case TI_GET:
        ag_put(d->out, " %s = ", name(d, i->dst));
        put_stage(d, i->a, i->e[0]);
        break;
    case TI_FETCH: ag_put(d->out, " %s", name(d, i->dst)); break;
    case TI_ENTRIES:
        ag_put(d->out, " %s", k->tensor[i->a].name);
        put_exprs(d, "[", i->e, 2, "]");
        ag_put(d->out, ", %s, %d a list", k->tensor[i->b].name, i->n);
        ag_put(d->out, ", %s <- those", name(d, i->dst));
        put_exprs(d, " from ", i->e + 2, 2, "");
        break;
    case TI_FIND:
        ag_put(d->out, " %s = block of entry ", name(d, i->dst));
        put_expr(d, i->e[0]);
        break;
    case TI_LIST:
        if (i->dst >= 0) ag_put(d->out, " %s = size of %s <-", name(d, i->dst), name(d, i->bar));
        ag_put(d->out, " %s", k->tensor[i->a].name);
        put_exprs(d, "[", i->e, 3, i->dst >= 0 ? " ..]" : "]");
        if (i->dst >= 0) put_exprs(d, " of ", i->e + 3, 1, " rows");
        if (i->b >= 0) ag_put(d->out, " counted by %s", k->tensor[i->b].name);
        ag_put(d->out, ", blocks of %d keys", i->n);
        break;
    case TI_TAKE_TURN:
    case TI_PASS_TURN: ag_put(d->out, " %s", k->barrier[i->n].name); break;
    case TI_ANY: put_exprs(d, " row of the warp has ", i->e, 1, ""); break;
    case TI_COPY:
        ag_put(d->out, " ");
        put_stage(d, i->dst, i->e[0]);
        ag_put(d->out, " <- %s", k->tensor[i->a].name);
        put_exprs(d, "[", i->e + 3, 2, ", ");
        if (k->val[i->dst].elements) {
            put_exprs(d, k->val[i->dst].panels ? "rows " : "row ", i->e + 1, 1, k->val[i->dst].panels ? " .., " : ", ");
            put_exprs(d, "columns ", i->e + 5, 1, i->bar >= 0 ? " ..] by TMA, " : " ..]");
        } else {
            put_exprs(d, "rows ", i->e + 1, 1, " ..]");
            put_exprs(d, " below ", i->e + 2, 1, i->bar >= 0 ? " by TMA, " : i->async ? " async" : "");
        }
        if (i->own) ag_put(d->out, ", each warp its own");
        if (i->bar >= 0) put_mbar(d, i->bar, i->e[0]);
        break;
    case TI_EXPECT:
        ag_put(d->out, " ");
        put_mbar(d, i->n, i->e[0]);
        put_exprs(d, " ", i->e + 1, 1, " bytes");
        break;
    case TI_WAIT_BAR:
        ag_put(d->out, " ");
        put_mbar(d, i->n, i->e[0]);
        put_exprs(d, " parity ", i->e + 1, 1, "");
        break;
    case TI_ARRIVE:
        ag_put(d->out, " ");
        put_mbar(d, i->n, i->e[0]);
        break;
    case TI_MMA_WAIT:
    case TI_WAIT: ag_put(d->out, " groups %d", i->n); break;
    case TI_SYNC: ag_put(d->out, " %s", k->nbarrier ? k->barrier[i->n].name : "?"); break;
    case TI_LOAD:
        ag_put(d->out, " %s <- ", name(d, i->dst));
        put_stage(d, i->a, i->e[0]);
        break;
    case TI_STAGE:
        ag_put(d->out, " ");
        put_stage(d, i->dst, i->e[0]);
        ag_put(d->out, " <- %s as %s", name(d, i->a), ag_dtype_name[k->val[i->dst].type]);
        break;
    case TI_MMA:
        ag_put(d->out, " %s %s ", name(d, i->dst), i->zero ? "=" : "+=");
        put_stage(d, i->a, i->e[1]);
        ag_put(d->out, " . ");
        put_stage(d, i->b, i->e[0]);
        ag_put(d->out, "%s%s", i->trans ? "^T" : "", i->async ? " async" : "");
        if (i->col) ag_put(d->out, " columns %d ..", i->col);
        break;
    case TI_REDUCE:
        ag_put(d->out, " %s = %s(", name(d, i->dst), ag_op[i->reduce].name);
        if (i->b >= 0) ag_put(d->out, "%s, ", name(d, i->b));
        ag_put(d->out, "%s)%s", name(d, i->a), k->val[i->dst].partial ? " partial" : "");
        break;
    case TI_POOL:
        ag_put(d->out, " %s", k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e, 1, " ..] = mean of ");
        put_exprs(d, "", i->e + 4, 1, " rows, ");
        put_exprs(d, "one every ", i->e + 1, 1, " of ");
        ag_put(d->out, i->b >= 0 ? "%s weighted by %s" : "%s", k->tensor[i->a].name, i->b >= 0 ? k->tensor[i->b].name : "");
        break;
    case TI_MERGE:
        ag_put(d->out, " %s", k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e, 1, " ..]");
        ag_put(d->out, " of %s and %s, slots of %s", k->tensor[i->a].name, k->tensor[i->b].name, k->tensor[k->list->a].name);
        if (k->forced) ag_put(d->out, " that are not forced, and of %s and %s", k->tensor[k->forced_rows].name, k->tensor[k->forced_lse].name);
        if (i->e[5]) put_exprs(d, ", as branch in ", i->e + 5, 1, "");
        break;
    case TI_OUTPUT:
        ag_put(d->out, " %s as %s", name(d, i->dst), k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e + 1, 1, " ..]");
        put_exprs(d, " below ", i->e + 4, 1, " = ");
        put_exprs(d, "", i->e, 1, "");
        break;
    case TI_OUTPUT_SUM:
        ag_put(d->out, " %s of %s as %s", name(d, i->dst), name(d, i->a), k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e + 1, 1, " ..]");
        put_exprs(d, " below ", i->e + 4, 1, " = sum over d: ");
        put_exprs(d, "", i->e, 1, "");
        break;
    case TI_EACH:
        ag_put(d->out, " %s", k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e + 1, 1, " ..] = ");
        put_exprs(d, "", i->e, 1, "");
        break;
    case TI_ROWS:
        ag_put(d->out, " %s", k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e, 1, " ..]");
        ag_put(d->out, " = rows of %s", k->tensor[i->a].name);
        break;
    case TI_ROW_NORM: put_exprs(d, " / sqrt(mean of squares + ", i->e, 1, ")"); break;
    case TI_ROW_APPEND:
        ag_put(d->out, " channels %d .. = %s", i->col, k->tensor[i->a].name);
        put_exprs(d, "[", i->e, 2, "]");
        break;
    case TI_ROW_MAP: put_exprs(d, " ", i->e, 1, ""); break;
    case TI_ROW_ROTATE:
        ag_put(d->out, i->trans ? " pairs (2 i, 2 i + 1), %d of them" : " pairs (i, %d + i)", i->col);
        if (i->e[2])
            put_exprs(d, " by turns[i] * ", i->e + 2, 1, "");
        else
            put_exprs(d, " by cos and sin ", i->e, 2, "");
        break;
    case TI_TOTAL: ag_put(d->out, " %s = %s over the quad", name(d, i->dst), name(d, i->a)); break;
    case TI_STORE:
    case TI_STORE_ROW:
        ag_put(d->out, " %s", k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e, 1, " ..]");
        put_exprs(d, " below ", i->e + 1, 1, "");
        ag_put(d->out, " <- %s", name(d, i->a));
        if (i->col) ag_put(d->out, " columns %d ..", i->col);
        if (i->op == TI_STORE && i->b >= 0) ag_put(d->out, " through %s%s", name(d, i->b), i->async ? " by TMA" : "");
        break;
    case TI_LOAD_ROW:
        ag_put(d->out, " %s <- %s", name(d, i->dst), k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e, 1, " ..]");
        put_exprs(d, " below ", i->e + 1, 1, "");
        break;
    case TI_CLEAR: ag_put(d->out, " %s", name(d, i->dst)); break;
    case TI_SUM_HEADS: ag_put(d->out, " %s <- %s, %d rows each", name(d, i->dst), name(d, i->a), k->rank.unit); break;
    case TI_RANK:
        ag_put(d->out, " %s <- %s", name(d, i->dst), name(d, i->a));
        put_exprs(d, ", blocks ", i->e, 1, " ..");
        put_exprs(d, " below ", i->e + 1, 1, "");
        put_exprs(d, ", queries at ", i->e + 2, 1, " ..");
        put_exprs(d, ", at most ", i->e + 3, 1, "");
        break;
    case TI_STORE_LIST:
        ag_put(d->out, " %s", k->tensor[i->n].name);
        put_exprs(d, "[", i->e + 2, 2, ", ");
        put_exprs(d, "rows ", i->e, 1, " ..]");
        put_exprs(d, " below ", i->e + 1, 1, "");
        ag_put(d->out, " <- %s", name(d, i->a));
        break;
    case TI_COUNT_LISTS:
    case TI_SCAN_LISTS:
    case TI_INVERT_LISTS:
        ag_put(d->out, " %s", k->tensor[i->n].name);
        put_exprs(d, "[", i->e, 2, i->op == TI_SCAN_LISTS ? ", columns " : ", chunk ");
        put_exprs(d, "", i->e + 2, 1, i->op == TI_SCAN_LISTS ? " ..]" : "]");
        put_exprs(d, ", ", i->e + 3, 1, " blocks");
        break;
    case TI_BOUND:
        ag_put(d->out, " %s %s", name(d, i->dst), name(d, i->a));
        put_exprs(d, " <- ", i->e, 1, "");
        ag_put(d->out, " at %s %s .. %s", i->trans ? "k" : "q", name(d, i->b), name(d, i->bar));
        break;
    case TI_CLASSIFY:
        ag_put(d->out, " %s", k->tensor[k->tiles].name);
        put_exprs(d, "[", i->e, 1, " ..]");
        put_exprs(d, ", key tiles ", i->e + 1, 2, " ..");
        ag_put(d->out, " of %d keys %s .. %s", i->n, name(d, i->dst), name(d, i->col));
        if (i->b >= 0) ag_put(d->out, ", queries %s .. %s", name(d, i->b), name(d, i->bar));
        put_exprs(d, ", may ", i->e + 3, 1, "");
        put_exprs(d, ", must ", i->e + 4, 1, "");
        break;
    case TI_ELSE:
    case TI_RESET:
    case TI_STORE_WAIT:
    case TI_FENCE:
    case TI_COMMIT:
    case TI_MMA_COMMIT: break;
    }
}

void ag_tile_dump_ins(Buf *out, const Kernel *k, const Ins *i) {
    Dump d = {.k = k, .out = out};
    ag_put(out, "%s", ag_tile_op_name[i->op]);
    put_operands(&d, i);
}

static void dump_block(Dump *d, const Block *b) {
    d->indent++;
    for (const Ins *i = b->first; i; i = i->next) {
        ag_put(d->out, "%*s%s", 2 * d->indent, "", ag_tile_op_name[i->op]);
        put_operands(d, i);
        ag_put(d->out, i->note ? "    ; %s\n" : "\n", i->note);
        dump_block(d, &i->body);
    }
    d->indent--;
}

static void dump_values(Dump *d) {
    static const char *const layout[] = {"", " acc", " operand a"};
    const Kernel *k = d->k;
    for (int i = 0; i < k->nval; i++) {
        const Val *v = &k->val[i];
        if (v->space == SPACE_SHARED) {
            ag_put(d->out, "shared  %-8s %d x %d x %d %s", v->name.s, v->stages, v->rows, v->cols, ag_dtype_name[v->type]);
            if (v->panels) ag_put(d->out, " in panels");
            if (v->table) ag_put(d->out, " table");
            if (v->offset >= 0)
                ag_put(d->out, "  at %d, %d bytes, swizzle %d%s", v->offset, v->bytes * v->stages, v->swizzle,
                       v->over >= 0 ? ", over the others" : "");
            ag_put(d->out, "\n");
        }
        if (v->space == SPACE_SLOT) {
            ag_put(d->out, "slot    %-8s %d ints", v->name.s, v->stages);
            ag_put(d->out, v->offset >= 0 ? "  at %d\n" : "\n", v->offset);
        }
        if (v->space == SPACE_FRAG)
            ag_put(d->out, "frag    %-8s %d x %d %s%s", v->name.s, v->rows, v->cols, ag_dtype_name[v->type], layout[v->layout]);
        if (v->lasting) ag_put(d->out, " lasting");
        if (v->space == SPACE_ROW) ag_put(d->out, "row     %-8s %d%s", v->name.s, v->rows, v->partial ? " partial" : "");
        if (v->space == SPACE_FRAG || v->space == SPACE_ROW)
            ag_put(d->out, v->reference >= 0 ? ", relative to %s\n" : "\n", v->reference >= 0 ? name(d, v->reference) : "");
    }
}

/* Those that expressions read, by the number that they read them by. */
static void dump_tensors(Dump *d) {
    const Kernel *k = d->k;
    for (int i = 0; i < k->ntensor; i++) {
        if (!k->tensor[i].used) continue;
        ag_put(d->out, "load%-4d%s", i, k->tensor[i].name);
        put_exprs(d, "[", k->tensor[i].extent, k->tensor[i].rank, "] ");
        ag_put(d->out, "%s\n", ag_dtype_name[k->tensor[i].type]);
    }
}

static void dump_barrier(Buf *out, const Barrier *b) {
    static const char *const who[] = {[BARRIER_BLOCK] = "all threads of the block",
                                      [BARRIER_WARPGROUP] = "the threads of each warpgroup",
                                      [BARRIER_TURNS] = "one warpgroup after the other"};
    ag_put(out, "barrier %s  ", b->name);
    if (b->kind != BARRIER_MBAR) {
        ag_put(out, "%s\n", who[b->kind]);
        return;
    }
    ag_put(out, "%d mbarrier%s of %d arrival%s", b->stages, b->stages == 1 ? "" : "s", b->count, b->count == 1 ? "" : "s");
    if (b->offset >= 0) ag_put(out, "  at %d", b->offset);
    ag_put(out, "\n");
}

static void dump_role(Dump *d, const Role *r) {
    ag_put(d->out, "\nrole %s  warps %d%s", r->name, r->warps, r->one_thread ? ", one thread runs" : "");
    if (r->regs > 0) ag_put(d->out, "  registers %d", r->regs);
    ag_put(d->out, "\n");
    dump_block(d, &r->body);
}

static void dump_rank(Buf *out, const Rank *r) {
    ag_put(out, "rank    %d of blocks of %d, %d a step; pooled keys of %d every %d, %d of them before the step; units of %d rows, %d lanes a query; ",
           r->count, r->block, r->blocks, r->size, r->stride, r->history, r->unit, r->lanes);
    ag_put(out, "first %d, local %d%s\n", r->first, r->local, r->causal ? ", causal" : "");
}

static void dump_invert(Buf *out, const Kernel *k) {
    const Inversion *v = &k->invert;
    ag_put(out, "invert  lists of %d, chunks of %d, windows of %d blocks, %d columns at a time\n", v->slots, v->chunk, v->window, v->columns);
}

static bool reads_elements(const Kernel *k) {
    for (Ref r = 1; r < k->nodes.len; r++)
        if (k->nodes.n[r].op == OP_LOAD) return true;
    return false;
}

void ag_tile_dump(Buf *out, const Kernel *k) {
    Dump d = {.k = k, .out = out};
    ag_put(out, "kernel %s  %s  threads %d  blocks per SM %d  numerics %s\n", k->name.s, k->target->name, k->threads, k->per_sm, k->numerics.s);
    if (k->chunk) put_exprs(&d, "queries ", &k->chunk, 1, " a launch\n");
    put_exprs(&d, k->persistent ? "tiles   " : "grid    ", &k->blocks, 1,
              k->counter      ? ", to blocks by a counter\n"
              : k->persistent ? ", to blocks in turn\n"
                              : "\n");
    if (k->kind == KERNEL_SELECT) dump_rank(out, &k->rank);
    if (k->guard) put_exprs(&d, "guard   ", &k->guard, 1, "\n");
    dump_values(&d);
    if (k->kind == KERNEL_INVERT) dump_invert(out, k);
    if (k->kind == KERNEL_EACH || k->kind == KERNEL_INVERT || reads_elements(k)) dump_tensors(&d);
    for (int i = 0; i < k->nbarrier; i++) dump_barrier(out, &k->barrier[i]);
    for (int r = 0; r < k->nrole; r++) dump_role(&d, &k->role[r]);
}
