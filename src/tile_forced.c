/* tile_forced.c: of a selection's lists the forced blocks are attended to before, by a kernel whose tiles have neighbouring queries (spec_forced.c).  The kernel over the lists
 * leaves them out: they are the first entries of a list and its last, as a causal selection has every block that there is up to its count, in ascending order.  At its end the two
 * results are put together by their LSEs:
 *
 *   M = max(lse1, lse2)   w1 = exp(lse1 - M)   w2 = exp(lse2 - M)   o = (w1 o1 + w2 o2) / (w1 + w2), 0 if that is 0   lse = M + log(w1 + w2) */
#include <math.h>

#include "program.h"
#include "tiler.h"

static Ref real(Tiler *t, double x) { return ag_node_float(&t->k->nodes, x); }

Ref ag_tiler_unforced(Tiler *t, Ref entries, Ref *first) {
    const Derive *s = &t->program->derive[t->listed->blocks.index];
    Ref block = num(t, s->block.n), begun = op2(t, OP_ADD, op2(t, OP_FLOORDIV, val(t, t->q_last), block), num(t, 1));
    /* Of the local blocks those that there are: a launch can say that its queries lie behind the keys. */
    Ref there = op2(t, OP_MIN, op2(t, OP_SUB, op2(t, OP_CEILDIV, size(t, SZ_SK), block), begun), num(t, 0));
    Ref local = op2(t, OP_MAX, op2(t, OP_ADD, there, num(t, s->local.n)), num(t, 0));
    *first = num(t, s->first.n);
    return op2(t, OP_MAX, op2(t, OP_SUB, entries, local), *first);
}

static int map(Tiler *t, const char *name, Ref e, const char *note) {
    int v = ag_tiler_row(t, ag_str(name));
    Ins *i = ag_tiler_add(t, t->post, TI_MAP, v, note);
    i->e[0] = e;
    i->span = t->listed->span;
    ag_tiler_positions(t, i);
    return v;
}

/* The LSE of the row that the kernel before has put out. */
static Ref forced_lse(Tiler *t) {
    KernelTensor x = t->k->tensor[TEN_LSE];
    x.name = "forced_lse";
    x.output = x.optional = false;
    x.used = x.named = true;
    x.program = ag_program_lse(t->program, t->branch);
    Ref q = ag_node_leaf(&t->k->nodes, OP_AXIS, T_INT, AX_Q, (Span){0});
    Node n = {.op = OP_LOAD, .type = T_FLOAT, .index = ag_kernel_tensor(t->k, x), .nsub = 3};
    n.sub[0] = val(t, t->b), n.sub[1] = ag_tiler_head(t), n.sub[2] = op2(t, OP_SUB, q, size(t, SZ_OFF));
    return ag_node_intern(&t->k->nodes, n);
}

static Ref weight(Tiler *t, Ref lse, Ref most) { return op2(t, OP_EXP2, op2(t, OP_MUL, op2(t, OP_SUB, lse, most), real(t, M_LOG2E)), 0); }

void ag_tiler_take_forced(Tiler *t, const MathOut *lse) {
    Nodes *p = &t->k->nodes;
    Ref before = val(t, map(t, "forced", forced_lse(t), "---- the forced blocks: LSE of their keys, and of the others"));
    Ref own = val(t, map(t, "own", ag_tiler_expr(t, lse->value, LEVEL_ROW), NULL));
    Ref most = val(t, map(t, "most", op2(t, OP_FINITE, op2(t, OP_MAX, before, own), 0), NULL));
    Ref w1 = val(t, map(t, "w_forced", weight(t, before, most), NULL)), w2 = val(t, map(t, "w_own", weight(t, own, most), NULL));
    Ref sum = op2(t, OP_ADD, w1, w2), none = op2(t, OP_EQ, sum, real(t, 0));
    Ref share = ag_node_op(p, OP_SELECT, none, real(t, 0), op2(t, OP_DIV, real(t, 1), sum), (Span){0});
    int s1 = map(t, "s_forced", op2(t, OP_MUL, w1, share), NULL), s2 = map(t, "s_own", op2(t, OP_MUL, w2, share), NULL);
    if (!t->no_lse) t->whole_lse = map(t, "whole", op2(t, OP_ADD, most, op2(t, OP_MUL, op2(t, OP_LOG2, sum, 0), real(t, M_LN2))), NULL);
    OutputPlace at = {.k = t->k, .spec = t->program, .b = val(t, t->b), .h = ag_tiler_head(t), .g = val(t, t->g), .own = -1};
    Ref fragment = ag_node_intern(p, (Node){.op = OP_BRANCH, .type = T_FLOAT, .axes = 1 << AX_D});
    t->taken = op2(t, OP_ADD, op2(t, OP_MUL, val(t, s2), fragment), op2(t, OP_MUL, val(t, s1), ag_output_result(&at, t->branch, t->listed->span)));
}
