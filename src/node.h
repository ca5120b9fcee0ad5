/* node.h: the expression nodes of both IRs (node.c).
 *
 * Nodes live in a pool and refer to each other by index (Ref); 0 is "none".  A pool interns: building the same node twice gives the same Ref, so common
 * subexpressions are shared by construction, and a Ref compares by value.  Nodes are never changed once made (but for `axes`, a fact filled by
 * the hoist pass); passes rebuild.  Children always have smaller indices than their parent: walking a pool upwards visits operands first, and no walk
 * needs recursion deeper than the expression. */
#ifndef AG_NODE_H
#define AG_NODE_H

#include "op.h"

typedef int32_t Ref;

typedef struct Node {
    Op op;
    Type type;
    Ref arg[3];
    int index;    /* AXIS AXISMIN AXISMAX RSUM RMAX: Axis; SIZE: Size; PARAM: parameter; LOAD: tensor; CARRY: carry; VAL: tile value */
    bool old;     /* CARRY: the value before this step's update */
    Scalar value; /* CONST */
    int nsub;     /* LOAD: subscripts, one per dim of the tensor */
    Ref sub[ATTNGEN_MOST_DIMS];
    Span span;    /* where in the spec it comes from; not part of its identity */
    uint8_t axes; /* bit per Axis that the value varies with; valid after hoist, and always in the Tile IR's pools */
} Node;

typedef struct Nodes {
    Arena *arena;
    Node *n; /* n[0] unused */
    int len, cap;
    int32_t *table; /* hash table of Refs */
    int ntable;
} Nodes;

void ag_nodes_init(Nodes *p, Arena *a);
Ref ag_node_intern(Nodes *p, Node n); /* type and axes are computed here for elementwise ops (children's type rule, union of axes) */
Ref ag_node_op(Nodes *p, Op op, Ref a, Ref b, Ref c, Span at);
Ref ag_node_int(Nodes *p, int64_t v);
Ref ag_node_float(Nodes *p, double v);
Ref ag_node_bool(Nodes *p, bool v);
Ref ag_node_leaf(Nodes *p, Op op, Type type, int index, Span at); /* AXIS, AXISMIN, AXISMAX, SIZE, PARAM, VAL, CARRY (new), BLOCK */
Ref ag_node_carry_old(Nodes *p, int index, Type type);
bool ag_node_is_const(const Nodes *p, Ref r);
bool ag_node_is_int(const Nodes *p, Ref r, int64_t v);
bool ag_node_is_float(const Nodes *p, Ref r, double v);
bool ag_node_is_neg_inf(const Nodes *p, Ref r);
/* Rebuilds `r` of `from` in `to` (may be the same pool), replacing every node for which swap(payload, ref) is non-zero by that Ref of `to`; local
 * simplifications of ag_fold_node are applied on the way. */
Ref ag_node_rebuild(Nodes *to, const Nodes *from, Ref r, Ref (*swap)(void *payload, Ref r), void *payload);
/* By node: do several read it, and would its text, what is below it written out as often as it is read, have more than 256 operations?  Such a one is a value of its own. */
bool *ag_nodes_apart(const Nodes *p);
/* The node that `n` simplifies to by constant folding and identities (x + 0, x * 1, true and x, select(true, a, b), min(x, x), not not x, ...): semantics of
 * ag_eval, nothing that changes a rounding, NaN or infinity. */
Ref ag_fold_node(Nodes *p, Node n);
/* Text such as "exp2(s2 - finite(mx'))"; leaf(payload, node) may name any node, which is then printed as that name alone
 * (NULL: leaves get a default name, the rest is printed in full). */
void ag_node_print(Buf *out, const Nodes *p, Ref r, const char *(*leaf)(void *payload, const Node *n), void *payload);
#endif
