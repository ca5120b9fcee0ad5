/* tile_reach.c: constants that the ints of a kernel stay within.
 *
 * Ints wrap around in 32 bits (docs/spec.md), and in C a signed overflow is undefined.  So where an operation of the spec's may leave 32 bits, its value is any int, and the
 * emitter prints another form of it.  What attngen itself computes of sizes, tiles and steps never does: the launch holds sizes against limits (launch.c), and a
 * bound of keys against what it can be (range_bound.c).  The two are told apart by the place in the spec that the spec's have. */
#include "reach.h"
#include "tile_ir.h"

static bool of_spec(const Node *n) { return n->span.file != 0; }
static Span64 at_least(int64_t least) { return (Span64){least, INT32_MAX}; }

static Span64 of_val(const Val *v) {
    if (v->bounded && !v->varies) return (Span64){v->least, v->most};
    return v->nonneg ? at_least(0) : ag_any_int();
}

static Span64 of_leaf(const Kernel *k, const Node *n) {
    switch (n->op) {
    case OP_CONST: return (Span64){n->value.u.i, n->value.u.i};
    case OP_SIZE: return ag_size_reach(n->index);
    case OP_AXIS:
        if (n->index == AX_K) return (Span64){0, AG_POSITION_LIMIT - 1};
        return n->index == AX_Q ? (Span64){-AG_POSITION_LIMIT, AG_POSITION_LIMIT} : (Span64){0, INT32_MAX - 1};
    case OP_PARAM: return (Span64){k->spec->param[n->index].part ? 1 : -PARAM_INT_MAX, PARAM_INT_MAX};
    case OP_BLOCK:
    case OP_BLOCKS: return at_least(0);
    case OP_VAL: return of_val(&k->val[n->index]);
    default: return ag_any_int();
    }
}

/* Of what attngen computes: it never leaves 32 bits, so of what is not negative nothing comes that is. */
static Span64 trusted(const Node *n, const Span64 x[3]) {
    bool keeps = n->op == OP_ADD || n->op == OP_MUL || n->op == OP_CEILDIV || n->op == OP_FLOORDIV || n->op == OP_MOD;
    return keeps && x[0].lo >= 0 && x[1].lo >= 0 ? at_least(0) : ag_any_int();
}

static IntReach of_node(const Kernel *k, const Node *n, const IntReach *of) {
    Span64 x[3] = {{0}}, r;
    if (n->type != T_INT) return (IntReach){0};
    if (ag_op[n->op].arity == 0) return r = of_leaf(k, n), (IntReach){r.lo, r.hi, false};
    if (n->op == OP_LISTED || n->op == OP_FIRST || n->op == OP_QUERY || n->op == OP_TILE || n->op == OP_TILE_AFTER)
        return (IntReach){0, INT32_MAX, false};
    for (int i = 0; i < ag_op[n->op].arity; i++) x[i] = (Span64){of[n->arg[i]].least, of[n->arg[i]].most};
    bool fits = n->op != OP_CEILDIV && ag_op_reach(n->op, x, &r);
    if (!fits || !of_spec(n)) {
        Span64 t = of_spec(n) ? ag_any_int() : trusted(n, x);
        r = fits ? (Span64){ag_max64(r.lo, t.lo), ag_min64(r.hi, t.hi)} : t;
    }
    return (IntReach){r.lo, r.hi, !fits && of_spec(n)};
}

static void extend(const Kernel *k, IntReaches *all, int n) {
    IntReach *of = NEWN(k->arena, IntReach, (size_t)n);
    for (Ref i = 1; i < all->n; i++) of[i] = all->of[i];
    for (Ref i = all->n > 1 ? all->n : 1; i < n; i++) of[i] = of_node(k, &k->nodes.n[i], of);
    *all = (IntReaches){of, n};
}

IntReach ag_reach_among(const Kernel *k, IntReaches *all, Ref r) {
    if (r >= all->n) extend(k, all, k->nodes.len);
    return all->of[r];
}

IntReach ag_reach(const Kernel *k, Ref r) {
    IntReaches all = {0};
    extend(k, &all, r + 1);
    return all.of[r];
}

bool ag_nonneg(const Kernel *k, Ref r) { return k->nodes.n[r].type == T_INT && ag_reach(k, r).least >= 0; }
bool ag_is_of_spec(const Kernel *k, Ref r) {
    const Node *n = &k->nodes.n[r];
    return n->op == OP_VAL ? k->val[n->index].bounded : of_spec(n);
}
