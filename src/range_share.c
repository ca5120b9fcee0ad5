/* range_share.c: which parts of the bounds of a key range are worth a name of their own: those that several places read and that are longer than a line wants. */
#include "compile.h"

enum { LONG = 7 /* operations and operands */ };

void ag_range_shared(const Math *m, bool *named) {
    const KeyRange *g = &m->range;
    const Ref bound[] = {g->need_lo, g->need_hi, g->plain_lo, g->plain_hi, g->gap_lo, g->gap_hi};
    Arena *a = m->nodes.arena;
    int *uses = NEWN(a, int, (size_t)m->nodes.len), *size = NEWN(a, int, (size_t)m->nodes.len);
    for (int i = 0; i < LEN(bound); i++) uses[bound[i]]++;
    for (Ref r = m->nodes.len - 1; r > 0; r--)
        for (int i = 0; uses[r] && i < ag_op[m->nodes.n[r].op].arity; i++) uses[m->nodes.n[r].arg[i]]++;
    for (Ref r = 1; r < m->nodes.len; r++) {
        const Node *n = &m->nodes.n[r];
        if (!uses[r]) continue;
        size[r] = 1;
        for (int i = 0; i < ag_op[n->op].arity; i++) size[r] += size[n->arg[i]];
        named[r] = uses[r] > 1 && n->type == T_INT && size[r] >= LONG;
        if (named[r]) size[r] = 1;
    }
}
