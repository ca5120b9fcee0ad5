/* pass_hoist.c: which axes each value varies with, and chains regrouped so that what varies with few is computed apart.
 *
 * needs lowered, simple     makes axes
 *
 * a * s * b becomes s * (a * b) for a and b the same for all k: one multiplication per element instead of two.  Likewise for operands that vary with k but not
 * with q (once per column), and for every associative and commutative operation.  Sums and products may round differently.
 * Node.axes itself is kept right by interning; after this pass later ones may rely on it to say what is worth computing apart. */
#include "compile.h"
#include "law.h"

enum { MAX_CHAIN = 64 };

typedef struct Hoist {
    const Nodes *from;
    Nodes *to;
    Ref *now;      /* per old node: the new one */
    uint8_t *uses; /* per old node: 0, 1, 2 = more */
    Ref leaf[MAX_CHAIN];
    int nleaf;
} Hoist;

static bool is_chain(const Node *n) { return ag_op_has(n->op, 'A') && ag_op_has(n->op, 'C'); }

static void count_uses(Hoist *h) {
    for (Ref r = 1; r < h->from->len; r++) {
        const Node *n = &h->from->n[r];
        for (int i = 0; i < 3 + n->nsub; i++) {
            uint8_t *uses = &h->uses[i < 3 ? n->arg[i] : n->sub[i - 3]];
            if (*uses < 2) ++*uses;
        }
    }
}

/* The operands of the chain of `op` under r, left to right; false if there are too many. */
static bool gather(Hoist *h, Op op, Ref r, bool root) {
    const Node *n = &h->from->n[r];
    if (n->op == op && (root || h->uses[r] == 1)) return gather(h, op, n->arg[0], false) && gather(h, op, n->arg[1], false);
    if (h->nleaf == MAX_CHAIN) return false;
    h->leaf[h->nleaf++] = r;
    return true;
}

typedef enum Group { ELEMENT, COLUMN, UNIFORM, GROUPS } Group;
static Group group_of(const Node *n) {
    if (!(n->axes & AXES_INNER)) return UNIFORM;
    return n->axes & (1 << AX_Q | 1 << AX_D) ? ELEMENT : COLUMN;
}

static Ref join(Hoist *h, const Node *n, Ref a, Ref b) {
    if (!a || !b) return a ? a : b;
    return ag_fold_node(h->to, (Node){.op = n->op, .arg = {a, b}, .span = n->span});
}

/* Weights times values of a sum: what weighs is a value of its own. */
static bool is_weighted(const Hoist *h, const Node *n) {
    for (int i = 0; i < 2 && n->op == OP_MUL; i++) {
        const Node *v = &h->from->n[n->arg[i]];
        if (v->op == OP_LOAD && v->axes & 1 << AX_D && v->axes & 1 << AX_K && !(h->from->n[n->arg[1 - i]].axes & 1 << AX_D)) return true;
    }
    return false;
}

static Ref regroup(Hoist *h, Ref r) {
    const Node *n = &h->from->n[r];
    int members[GROUPS] = {0};
    h->nleaf = 0;
    if (is_weighted(h, n) || !is_chain(n) || !gather(h, n->op, r, true)) return 0;
    for (int i = 0; i < h->nleaf; i++) members[group_of(&h->from->n[h->leaf[i]])]++;
    if (members[COLUMN] < 2 && members[UNIFORM] < 2) return 0;
    Ref part[GROUPS] = {0};
    for (int i = 0; i < h->nleaf; i++) {
        Ref *p = &part[group_of(&h->from->n[h->leaf[i]])];
        *p = join(h, n, *p, h->now[h->leaf[i]]);
    }
    return join(h, n, join(h, n, part[ELEMENT], part[COLUMN]), part[UNIFORM]);
}

static Ref copy(Hoist *h, Ref r) {
    Node n = h->from->n[r];
    n.axes = 0;
    for (int i = 0; i < 3; i++) n.arg[i] = h->now[n.arg[i]];
    for (int i = 0; i < n.nsub; i++) n.sub[i] = h->now[n.sub[i]];
    return ag_fold_node(h->to, n);
}

static Ref new_node(void *payload, Ref r) { return ((const Hoist *)payload)->now[r]; }

void ag_pass_hoist(Fn *fn) {
    Math *m = fn->math;
    Arena *a = fn->d->arena;
    Nodes fresh, compact;
    ag_nodes_init(&fresh, a);
    size_t len = (size_t)m->nodes.len;
    Hoist h = {.from = &m->nodes, .to = &fresh, .now = NEWN(a, Ref, len), .uses = NEWN(a, uint8_t, len)};
    count_uses(&h);
    for (Ref r = 1; r < m->nodes.len; r++) {
        h.now[r] = regroup(&h, r);
        if (!h.now[r]) h.now[r] = copy(&h, r);
    }
    ag_math_rebuild(m, &fresh, new_node, &h);
    ag_nodes_init(&compact, a);
    ag_math_rebuild(m, &compact, NULL, NULL);
}
