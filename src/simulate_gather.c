/* simulate_gather.c: inverted block lists, whose entries are the rows of a tile of queries (KERNEL_GATHER). */
#include "simulate.h"

static const Ins *opened(Sim *s) {
    if (!s->k->entries || s->entries_at[0] < 0) ag_sim_fail(s, "reads inverted lists before they are opened");
    return s->k->entries;
}

void ag_sim_open_entries(Sim *s, const Ins *i) {
    for (int e = 0; e < 3; e++) s->entries_at[e] = ag_sim_int(s, i->e[e]);
    ag_sim_copied(s, ag_sim_overwrite(s, i->dst, 0), false, false);
}

static int64_t element(Sim *s, int tensor, int64_t at) {
    const KernelTensor *t = &s->k->tensor[tensor];
    const int64_t index[3] = {s->entries_at[0], s->entries_at[1], at};
    for (int dim = 0; dim < 3; dim++) {
        int64_t n = ag_sim_int(s, t->extent[dim]);
        if (index[dim] < 0 || index[dim] >= n)
            ag_sim_fail(s, "element %lld of dim %d of %s, which has %lld", (long long)index[dim], dim, t->name, (long long)n);
    }
    return ag_host_get_int(ag_sim_tensor(s, tensor), index, 3);
}

int64_t ag_sim_first(Sim *s, int64_t block) { return element(s, opened(s)->a, block); }
int64_t ag_sim_entry(Sim *s, int64_t i) {
    const Ins *o = opened(s);
    int64_t kept = s->k->val[o->dst].cols, from = s->entries_at[2];
    ag_sim_read(s, o->dst, 0, USE_ALL, false);
    if (i < from || i >= from + kept || i >= ag_sim_int(s, o->e[3]))
        ag_sim_fail(s, "entry %lld, where those from %lld on are kept, %lld at most", (long long)i, (long long)from, (long long)kept);
    return element(s, o->b, i);
}
int64_t ag_sim_query(Sim *s, int64_t i) {
    int64_t q = ag_sim_entry(s, i) / opened(s)->n;
    if (q < 0 || q >= s->call->size[SZ_SQ])
        ag_sim_fail(s, "entry %lld is of query %lld, of %lld", (long long)i, (long long)q, (long long)s->call->size[SZ_SQ]);
    return q;
}

int64_t ag_sim_find(Sim *s, const Ins *i) {
    int64_t x = ag_sim_int(s, i->e[0]), blocks = ag_sim_int(s, i->e[1]);
    for (int64_t j = 0; j < blocks; j++)
        if (ag_sim_first(s, j) <= x && x < ag_sim_first(s, j + 1)) return j;
    ag_sim_fail(s, "entry %lld is of no block", (long long)x);
}

/* Every row at most once: which ones there are is for who reads them to know. */
void ag_sim_gather_store(Sim *s, int tensor, int64_t b, int64_t head, int64_t row) {
    int64_t rows = ag_sim_int(s, s->k->tensor[tensor].extent[2]), heads = s->call->size[SZ_HQ];
    uint8_t **written = &s->gathered[tensor == TEN_LSE];
    if (!*written) *written = ag_alloc_n(s->arena, (size_t)(s->call->size[SZ_B] * heads), (size_t)rows);
    uint8_t *x = *written + (b * heads + head) * rows + row;
    if (*x) ag_sim_fail(s, "row %lld of %s is written twice", (long long)row, s->k->tensor[tensor].name);
    *x = 1;
}
