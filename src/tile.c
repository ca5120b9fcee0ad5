/* tile.c: building and editing the Tile IR. */
#include <assert.h>

#include "tile_ir.h"

#include <string.h>

const char *const ag_tile_op_name[] = {[TI_LET] = "let",
                                       [TI_LOOP] = "loop",
                                       [TI_IF] = "if",
                                       [TI_ANY] = "any",
                                       [TI_FILL] = "fill",
                                       [TI_COPY] = "copy",
                                       [TI_COMMIT] = "commit",
                                       [TI_WAIT] = "wait",
                                       [TI_SYNC] = "sync",
                                       [TI_EXPECT] = "expect",
                                       [TI_WAIT_BAR] = "wait_bar",
                                       [TI_ARRIVE] = "arrive",
                                       [TI_LOAD] = "load",
                                       [TI_MMA] = "mma",
                                       [TI_LIST] = "list",
                                       [TI_ENTRIES] = "entries",
                                       [TI_FIND] = "find",
                                       [TI_MMA_COMMIT] = "mma_commit",
                                       [TI_MMA_WAIT] = "mma_wait",
                                       [TI_MAP] = "map",
                                       [TI_REDUCE] = "reduce",
                                       [TI_TOTAL] = "total",
                                       [TI_POOL] = "pool",
                                       [TI_EACH] = "each",
                                       [TI_MERGE] = "merge",
                                       [TI_ROWS] = "rows",
                                       [TI_ROW_NORM] = "row_norm",
                                       [TI_ROW_MAP] = "row_map",
                                       [TI_ROW_APPEND] = "row_append",
                                       [TI_ROW_ROTATE] = "row_rotate",
                                       [TI_OUTPUT] = "output",
                                       [TI_OUTPUT_SUM] = "output_sum",
                                       [TI_STORE] = "store",
                                       [TI_STORE_ROW] = "store_row",
                                       [TI_WHILE] = "while",
                                       [TI_ELSE] = "else",
                                       [TI_SET] = "set",
                                       [TI_PUT] = "put",
                                       [TI_GET] = "get",
                                       [TI_FETCH] = "fetch",
                                       [TI_RESET] = "reset",
                                       [TI_TAKE_TURN] = "take_turn",
                                       [TI_PASS_TURN] = "pass_turn",
                                       [TI_STORE_WAIT] = "store_wait",
                                       [TI_STAGE] = "stage",
                                       [TI_FENCE] = "fence",
                                       [TI_LOAD_ROW] = "load_row",
                                       [TI_CLEAR] = "clear",
                                       [TI_SUM_HEADS] = "sum_heads",
                                       [TI_RANK] = "rank",
                                       [TI_STORE_LIST] = "store_list",
                                       [TI_COUNT_LISTS] = "count_lists",
                                       [TI_SCAN_LISTS] = "scan_lists",
                                       [TI_INVERT_LISTS] = "invert_lists",
                                       [TI_BOUND] = "bound",
                                       [TI_CLASSIFY] = "classify"};

/* A name longer than the metadata have room for is cut, and told apart from others cut to the same by a hash of the whole (FNV-1a). */
static Str symbol(Arena *a, Str name) {
    enum { MOST = META_NAME - 1, HEX = 8 };
    uint32_t h = 2166136261u;
    if (name.n <= MOST) return name;
    for (int i = 0; i < name.n; i++) h = (h ^ (uint8_t)name.s[i]) * 16777619u;
    return ag_fmt(a, "%.*s_%08x", MOST - HEX - 1, name.s, h);
}

Kernel *ag_kernel_new(Diag *d, const Spec *spec, const Schedule *s, const Target *t, Str name) {
    Kernel *k = NEW(d->arena, Kernel);
    k->d = d;
    k->arena = d->arena;
    k->spec = spec;
    k->sched = s;
    k->target = t;
    k->name = symbol(d->arena, name);
    k->key_loop = -1;
    k->pack = 1;
    k->queries = (int)s->f[F_TILE_M].v;
    ag_nodes_init(&k->nodes, d->arena);
    return k;
}

int ag_kernel_tensor(Kernel *k, KernelTensor t) {
    if (k->ntensor < TEN_COUNT) k->ntensor = TEN_COUNT;
    assert(k->ntensor < KERNEL_TENSORS);
    k->tensor[k->ntensor] = t;
    return k->ntensor++;
}

int ag_val(Kernel *k, Val v) {
    int index = k->nval;
    PUSH(k->arena, k->val, k->nval, k->capval) = v;
    return index;
}

int ag_val_scalar(Kernel *k, const char *name, Type t) {
    return ag_val(k, (Val){.name = ag_str(name), .space = SPACE_SCALAR, .scalar = t, .over = -1, .reference = -1, .carry = -1});
}

int ag_val_shared(Kernel *k, const char *name, DType type, int rows, int cols) {
    return ag_val(k, (Val){.name = ag_str(name),
                           .space = SPACE_SHARED,
                           .type = type,
                           .rows = rows,
                           .cols = cols,
                           .stages = 1,
                           .swizzle = -1,
                           .offset = -1,
                           .bytes = -1,
                           .over = -1,
                           .reference = -1,
                           .carry = -1});
}

int ag_val_table(Kernel *k, const char *name, int rows, int cols) {
    int v = ag_val_shared(k, name, DT_I32, rows, cols);
    k->val[v].table = true;
    return v;
}

Ref ag_kval(Kernel *k, int val) {
    const Val *v = &k->val[val];
    return ag_node_leaf(&k->nodes, OP_VAL, v->space == SPACE_SCALAR ? v->scalar : T_FLOAT, val, v->span);
}

bool ag_expr_uses(const Kernel *k, Ref r, Op op, int index) {
    bool *live = NEWN(k->arena, bool, (size_t)r + 1), found = false;
    live[r] = true;
    for (Ref i = r; i > 0 && !found; i--) { /* operands have smaller indices */
        const Node *n = &k->nodes.n[i];
        if (!live[i]) continue;
        found = n->op == op && n->index == index;
        for (int a = 0; a < ag_op[n->op].arity; a++) live[n->arg[a]] = true;
        for (int a = 0; a < n->nsub; a++) live[n->sub[a]] = true;
    }
    return found;
}

bool ag_reads_captured(const Kernel *k, Ref r) {
    bool *live = NEWN(k->arena, bool, (size_t)r + 1), found = false;
    live[r] = true;
    for (Ref i = r; i > 0 && !found; i--) { /* operands have smaller indices */
        const Node *n = &k->nodes.n[i];
        if (!live[i]) continue;
        found = n->op == OP_LOAD || (n->op == OP_VAL && k->val[n->index].captured);
        for (int a = 0; a < ag_op[n->op].arity; a++) live[n->arg[a]] = true;
    }
    return found;
}

Ins *ag_ins(Kernel *k, TileOp op, int dst) {
    Ins *i = NEW(k->arena, Ins);
    i->op = op;
    i->dst = dst;
    i->a = i->b = i->bar = -1;
    return i;
}

int ag_let(Kernel *k, Block *to, const char *name, Ref e, const char *note) {
    int v = ag_val_scalar(k, name, k->nodes.n[e].type);
    Ins *i = ag_ins(k, TI_LET, v);
    if (k->val[v].scalar == T_INT) {
        IntReach x = ag_reach(k, e);
        k->val[v].nonneg = x.least >= 0;
        k->val[v].bounded = ag_is_of_spec(k, e);
        k->val[v].least = x.least, k->val[v].most = x.most;
    }
    k->val[v].captured = k->val[v].scalar == T_INT && ag_reads_captured(k, e);
    i->e[0] = e;
    i->note = note;
    ag_block_append(to, i);
    return v;
}

void ag_block_insert_before(Block *b, Ins *at, Ins *i) {
    i->next = at;
    i->prev = at ? at->prev : b->last;
    *(i->prev ? &i->prev->next : &b->first) = i;
    *(at ? &at->prev : &b->last) = i;
}

void ag_block_insert_after(Block *b, Ins *at, Ins *i) { ag_block_insert_before(b, at ? at->next : b->first, i); }

void ag_block_append(Block *b, Ins *i) { ag_block_insert_before(b, NULL, i); }

void ag_block_remove(Block *b, Ins *i) {
    *(i->prev ? &i->prev->next : &b->first) = i->next;
    *(i->next ? &i->next->prev : &b->last) = i->prev;
    i->prev = i->next = NULL;
}

void ag_block_move(Block *to, Block *from) {
    for (Ins *i = from->first, *next; i; i = next) {
        next = i->next;
        ag_block_remove(from, i);
        ag_block_append(to, i);
    }
}

Ins *ag_ins_clone(Kernel *k, const Ins *i) {
    Ins *c = ag_ins(k, i->op, i->dst);
    *c = *i;
    c->prev = c->next = NULL;
    c->body = (Block){0};
    for (const Ins *x = i->body.first; x; x = x->next) ag_block_append(&c->body, ag_ins_clone(k, x));
    return c;
}

bool ag_has_mbarriers(const Kernel *k) {
    for (int i = 0; i < k->nbarrier; i++)
        if (k->barrier[i].kind == BARRIER_MBAR) return true;
    return false;
}

static void mark_walks(const Kernel *k, Ref r, int *walks) {
    bool *live = NEWN(k->arena, bool, (size_t)r + 1);
    live[r] = true;
    for (Ref i = r; i > 0; i--) { /* operands have smaller indices */
        const Node *n = &k->nodes.n[i];
        if (!live[i]) continue;
        if (n->op == OP_TILE) *walks |= 1 << n->index;
        for (int a = 0; a < ag_op[n->op].arity; a++) live[n->arg[a]] = true;
        for (int a = 0; a < n->nsub; a++) live[n->sub[a]] = true;
    }
}

int ag_walks(const Kernel *k, const Block *b) {
    int walks = 0;
    for (const Ins *i = b->first; i; i = i->next) {
        for (int e = 0; e < LEN(i->e); e++) mark_walks(k, i->e[e], &walks);
        walks |= ag_walks(k, &i->body);
    }
    return walks;
}

/* ---- scalars that nothing reads */
static bool reads_val(const Kernel *k, const Block *b, int v) {
    for (const Ins *i = b->first; i; i = i->next) {
        for (int e = 0; e < LEN(i->e); e++)
            if (i->e[e] && ag_expr_uses(k, i->e[e], OP_VAL, v)) return true;
        if (i->op == TI_CLASSIFY && (i->b == v || i->bar == v || ag_expr_uses(k, k->guard, OP_VAL, v))) return true;
        if (reads_val(k, &i->body, v)) return true;
    }
    return false;
}
bool ag_reads_val(const Kernel *k, const Block *b, int v) { return reads_val(k, b, v); }
void ag_remove_dead_lets(Kernel *k, Block *b) {
    for (Ins *i = b->last, *prev; i; i = prev) { /* readers stand behind, in the same block */
        prev = i->prev;
        ag_remove_dead_lets(k, &i->body);
        bool bound = i->op == TI_LET && (ag_kval(k, i->dst) == k->lo || ag_kval(k, i->dst) == k->hi); /* pipeline asks for them */
        if (i->op == TI_LET && !bound && !reads_val(k, b, i->dst)) ag_block_remove(b, i);
    }
}
