/* spec_forced.c: the forced blocks of a selection, as a branch that knows its keys by a mask.  Neighbouring queries have these blocks in common, other than those that they
 * select, so that one tile of queries reads them once. */
#include "program.h"

bool ag_can_part(const Spec *s, const Branch *b) {
    if (b->blocks.kind != FROM_DERIVE || s->normalize != NORMALIZE_SOFTMAX || s->plus || b->weigh || ag_puts_out(s, ROWV_MAX)) return false;
    const Derive *x = &s->derive[b->blocks.index];
    int forced = x->first.n + x->local.n;
    return x->causal && forced > 0 && forced < x->count.n;
}

bool ag_forces(const Derive *select, int64_t q, int64_t block) {
    int64_t n = select->block.n, own = q >= 0 ? q / n : -1;
    return block <= own && (block < select->first.n || block > own - select->local.n);
}

/* ---- syntax trees, typed */

static Ast *leaf(Arena *a, Op op, int index, Span at) {
    Ast *e = NEW(a, Ast);
    *e = (Ast){.op = op, .type = T_INT, .index = index, .span = at};
    return e;
}
static Ast *number(Arena *a, int64_t n, Span at) {
    Ast *e = leaf(a, OP_CONST, 0, at);
    e->value = (Scalar){.type = T_INT, .u.i = n};
    return e;
}
static Ast *op(Arena *a, Op o, Type type, Ast *x, Ast *y) {
    Ast *e = NEW(a, Ast);
    *e = (Ast){.op = o, .type = type, .arg = {x, y}, .span = x->span};
    return e;
}

static bool is_axis(const Ast *e, Axis a) { return e->op == OP_AXIS && e->index == (int)a; }

/* Does it hold for no key behind the query? */
static bool is_causal(const Ast *mask) {
    if (mask->op == OP_AND) return is_causal(mask->arg[0]) || is_causal(mask->arg[1]);
    if (mask->op != OP_LE && mask->op != OP_GE) return false;
    return is_axis(mask->arg[mask->op == OP_GE], AX_K) && is_axis(mask->arg[mask->op == OP_LE], AX_Q);
}

/* k < first * block or k >= (q // block - (local - 1)) * block, of the keys up to the query's own block; and the branch's own mask. */
static Ast *forced_mask(Arena *a, const Derive *x, const Branch *b) {
    Ast *q = leaf(a, OP_AXIS, AX_Q, b->span), *k = leaf(a, OP_AXIS, AX_K, b->span), *block = number(a, x->block.n, b->span);
    Ast *own = op(a, OP_FLOORDIV, T_INT, q, block), *first = NULL, *local = NULL;
    if (x->first.n) first = op(a, OP_LT, T_BOOL, k, number(a, (int64_t)x->first.n * x->block.n, b->span));
    if (x->local.n) local = op(a, OP_GE, T_BOOL, k, op(a, OP_MUL, T_INT, op(a, OP_SUB, T_INT, own, number(a, x->local.n - 1, b->span)), block));
    Ast *all = first && local ? op(a, OP_OR, T_BOOL, first, local) : first ? first : local;
    Ast *end = op(a, OP_MUL, T_INT, op(a, OP_ADD, T_INT, own, number(a, 1, b->span)), block);
    if (!b->mask || !is_causal(b->mask)) all = op(a, OP_AND, T_BOOL, op(a, OP_LT, T_BOOL, k, end), all);
    return b->mask ? op(a, OP_AND, T_BOOL, b->mask, all) : all;
}

Branch *ag_forced_branch(Arena *a, const Spec *s, int branch) {
    Branch *b = NEW(a, Branch);
    *b = s->branch[branch];
    b->mask = forced_mask(a, &s->derive[b->blocks.index], b);
    b->blocks = (SpecRef){FROM_NONE, 0};
    b->counts = -1;
    b->apart = false;
    return b;
}
