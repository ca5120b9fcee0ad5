/* pass_divide.c: which scalars values are divided by in every step, so that the division becomes a multiplication.
 *
 * needs tiled, split, pipelined     makes divided
 *
 * `k // width % height` of a neighbourhood costs two divisions per column and step, some twenty instructions each; by a number that is the same for the whole launch the
 * first is three and the second four, after some fifty instructions before the first step.  Marked are ints from 1 on that have their value before the loop (Val.divides),
 * in expressions that divide what differs from key to key; a division of rows alone is not worth those fifty.  The value of an expression is the same. */
#include <string.h>

#include "compile.h"

typedef struct Divide {
    Kernel *k;
    IntReaches reach;
    bool *steady;         /* per value: a scalar that nothing but TI_LET outside of loops defines, in whatever role: there the Divider is declared */
    bool *varies, *keyed; /* per node: does it differ within a tile; from key to key? */
    bool *live;           /* per node: of the expression that is looked at */
} Divide;

/* Of a node, where those of its operands are known: they have smaller indices. */
static bool of_operands(const Node *n, const bool *known) {
    bool any = false;
    for (int i = 0; i < ag_op[n->op].arity; i++) any |= known[n->arg[i]];
    for (int i = 0; i < n->nsub; i++) any |= known[n->sub[i]];
    return any;
}

static bool varies(const Kernel *k, const Node *n, const bool *known) {
    if (n->op == OP_AXIS) return true;
    if (n->op == OP_VAL) return k->val[n->index].space != SPACE_SCALAR;
    return of_operands(n, known);
}

bool *ag_varying(const Kernel *k) {
    bool *known = NEWN(k->arena, bool, (size_t)k->nodes.len);
    for (Ref i = 1; i < k->nodes.len; i++) known[i] = varies(k, &k->nodes.n[i], known);
    return known;
}

static bool is_candidate(Divide *d, const Node *n) {
    if (n->type != T_INT || (n->op != OP_FLOORDIV && n->op != OP_MOD) || !d->varies[n->arg[0]]) return false;
    const Node *by = &d->k->nodes.n[n->arg[1]];
    return by->op == OP_VAL && d->steady[by->index] && ag_reach_among(d->k, &d->reach, n->arg[1]).least >= 1;
}

/* Marks the divisors of an expression in which one divides what differs from key to key. */
static void mark(Divide *d, Ref r) {
    Kernel *k = d->k;
    bool worth = false;
    memset(d->live, 0, sizeof(bool) * ((size_t)r + 1));
    d->live[r] = true;
    for (Ref i = r; i > 0; i--) {
        const Node *n = &k->nodes.n[i];
        if (!d->live[i]) continue;
        worth |= d->keyed[i] && is_candidate(d, n) && d->keyed[n->arg[0]];
        for (int a = 0; a < ag_op[n->op].arity; a++) d->live[n->arg[a]] = true;
        for (int a = 0; a < n->nsub; a++) d->live[n->sub[a]] = true;
    }
    for (Ref i = r; i > 0 && worth; i--) {
        const Node *n = &k->nodes.n[i];
        if (d->live[i] && is_candidate(d, n)) k->val[k->nodes.n[n->arg[1]].index].divides = true;
    }
}

/* Of the values that the instructions of b define: those by a TI_LET outside of loops, or the others. */
static void note_defined(const Block *b, bool in_loop, bool by_let, bool *value, bool to) {
    for (const Ins *i = b->first; i; i = i->next) {
        if (i->dst >= 0 && (i->op == TI_LET && !in_loop) == by_let) value[i->dst] = to;
        note_defined(&i->body, in_loop || i->op == TI_LOOP, by_let, value, to);
    }
}

static void walk(Divide *d, const Block *b, bool in_loop) {
    for (const Ins *i = b->first; i; i = i->next) {
        for (int e = 0; e < LEN(i->e) && in_loop; e++)
            if (i->e[e] && d->keyed[i->e[e]]) mark(d, i->e[e]);
        walk(d, &i->body, in_loop || i->op == TI_LOOP);
    }
}

void ag_pass_divide(Fn *fn) {
    Kernel *k = fn->kernel;
    size_t len = (size_t)k->nodes.len;
    Divide d = {.k = k,
                .steady = NEWN(k->arena, bool, (size_t)k->nval),
                .varies = ag_varying(k),
                .keyed = NEWN(k->arena, bool, len),
                .live = NEWN(k->arena, bool, len)};
    for (Ref i = 1; i < k->nodes.len; i++) {
        const Node *n = &k->nodes.n[i];
        d.keyed[i] = (n->op == OP_AXIS && n->index == AX_K) || of_operands(n, d.keyed);
    }
    for (int r = 0; r < k->nrole; r++) note_defined(&k->role[r].body, false, true, d.steady, true);
    for (int r = 0; r < k->nrole; r++) note_defined(&k->role[r].body, false, false, d.steady, false);
    for (int r = 0; r < k->nrole; r++) walk(&d, &k->role[r].body, false);
}
