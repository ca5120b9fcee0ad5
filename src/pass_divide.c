/* pass_divide.c: which scalars values are divided by in every step, so that the division becomes a multiplication.
 *
 * needs tiled, split, pipelined     makes divided
 *
 * `k // width % height` of a neighbourhood is two divisions per column and step; by a number that has its value before the loop the first is three instructions and the second
 * four, once its Divider is made (natten_3d on sm_90a, D 128: 1124 instead of 1752 instructions a step).  Marked (Val.divides) are ints from 1 on in expressions that divide
 * what differs from key to key; where rows alone are divided a Divider costs what it saves.  The value of an expression is the same. */
#include <string.h>

#include "compile.h"

enum { BY_LET = 1, OTHERWISE = 2 }; /* how a value is defined: by a TI_LET outside of loops, behind which its Divider is declared */

typedef struct Divide {
    Kernel *k;
    IntReaches reach;
    uint8_t *defined; /* per value: of these, in all roles */
    bool *keyed;      /* per node: does it differ from key to key? */
    bool *live;       /* per node: of the expression that is looked at */
} Divide;

static void note_defined(Divide *d, const Block *b, bool in_loop) {
    for (const Ins *i = b->first; i; i = i->next) {
        if (i->dst >= 0) d->defined[i->dst] |= i->op == TI_LET && !in_loop ? BY_LET : OTHERWISE;
        note_defined(d, &i->body, in_loop || i->op == TI_LOOP);
    }
}

/* Operands have smaller indices. */
static void find_keyed(Divide *d) {
    for (Ref r = 1; r < d->k->nodes.len; r++) {
        const Node *n = &d->k->nodes.n[r];
        d->keyed[r] = n->op == OP_AXIS && n->index == AX_K;
        for (int i = 0; i < ag_op[n->op].arity; i++) d->keyed[r] |= d->keyed[n->arg[i]];
        for (int i = 0; i < n->nsub; i++) d->keyed[r] |= d->keyed[n->sub[i]];
    }
}

static bool is_candidate(Divide *d, const Node *n) {
    if (n->type != T_INT || (n->op != OP_FLOORDIV && n->op != OP_MOD)) return false;
    const Node *by = &d->k->nodes.n[n->arg[1]];
    return by->op == OP_VAL && d->defined[by->index] == BY_LET && ag_reach_among(d->k, &d->reach, n->arg[1]).least >= 1;
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
        worth |= is_candidate(d, n) && d->keyed[n->arg[0]];
        for (int a = 0; a < ag_op[n->op].arity; a++) d->live[n->arg[a]] = true;
        for (int a = 0; a < n->nsub; a++) d->live[n->sub[a]] = true;
    }
    for (Ref i = r; i > 0 && worth; i--) {
        const Node *n = &k->nodes.n[i];
        if (d->live[i] && is_candidate(d, n)) k->val[k->nodes.n[n->arg[1]].index].divides = true;
    }
}

static void mark_steps(Divide *d, const Block *b, bool in_loop) {
    for (const Ins *i = b->first; i; i = i->next) {
        for (int e = 0; e < LEN(i->e) && in_loop; e++)
            if (i->e[e] && d->keyed[i->e[e]]) mark(d, i->e[e]);
        mark_steps(d, &i->body, in_loop || i->op == TI_LOOP);
    }
}

void ag_pass_divide(Fn *fn) {
    Kernel *k = fn->kernel;
    size_t len = (size_t)k->nodes.len;
    Divide d = {.k = k, .defined = NEWN(k->arena, uint8_t, (size_t)k->nval), .keyed = NEWN(k->arena, bool, len), .live = NEWN(k->arena, bool, len)};
    find_keyed(&d);
    for (int r = 0; r < k->nrole; r++) note_defined(&d, &k->role[r].body, false);
    for (int r = 0; r < k->nrole; r++) mark_steps(&d, &k->role[r].body, false);
}
