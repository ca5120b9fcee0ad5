/* simulate_list.c: block lists, of the tile that a block has opened (LISTED) and of single queries (coverage). */
#include "simulate.h"

/* One list: where it begins, and how many of its entries count. */
typedef struct List {
    const HostTensor *t;
    int64_t at[4], n;
} List;

static int64_t blocks_of(const Sim *s, const Ins *i) { return (s->call->size[SZ_SK] + i->n - 1) / i->n; }

static List list_at(const Sim *s, const Ins *i, int64_t b, int64_t head, int64_t row) {
    List l = {ag_sim_tensor(s, i->a), {b, head, row, 0}, s->k->nodes.n[s->k->tensor[i->a].extent[3]].value.u.i};
    if (i->b < 0) return l;
    int64_t count = ag_host_get_int(ag_sim_tensor(s, i->b), l.at, 3);
    l.n = count < 0 ? 0 : count < l.n ? count : l.n;
    return l;
}

static int64_t entry_of(List *l, int64_t e) {
    l->at[3] = e;
    return ag_host_get_int(l->t, l->at, 4);
}

/* From its definition: all blocks, and who lists them. */
static void unite(Sim *s, const Ins *i, int64_t rows) {
    const Val *v = &s->k->val[i->bar];
    if (rows < 1 || rows > s->k->queries) ag_sim_fail(s, "a union of %lld lists in a tile of %d queries", (long long)rows, s->k->queries);
    if (!s->united) s->united = NEWN(s->arena, int64_t, (size_t)v->cols), s->united_by = NEWN(s->arena, uint32_t, (size_t)v->cols);
    ag_sim_copied(s, ag_sim_overwrite(s, i->bar, 0), false, false);
    s->nunited = 0;
    for (int64_t block = 0, end = blocks_of(s, i); block < end; block++) {
        uint32_t by = 0;
        for (int64_t r = 0; r < rows; r++) {
            List l = list_at(s, i, s->list_at[0], s->list_at[1], s->list_at[2] + r);
            for (int64_t e = 0; e < l.n; e++)
                if (entry_of(&l, e) == block) by |= 1u << r;
        }
        if (!by) continue;
        s->united_by[s->nunited] = by;
        s->united[s->nunited++] = block;
    }
    ag_sim_barrier(s);
    s->cell[i->dst].scalar[s->role] = (Scalar){T_INT, {.i = s->nunited}};
}

static void check_entry(Sim *s, int64_t entry) {
    if (!s->list) ag_sim_fail(s, "reads a block list before one is opened");
    if (s->list->dst < 0) return;
    ag_sim_read(s, s->list->bar, 0, USE_ALL, false);
    if (entry < 0 || entry >= s->nunited) ag_sim_fail(s, "entry %lld of a union of %d blocks", (long long)entry, s->nunited);
}

void ag_sim_open_list(Sim *s, const Ins *i) {
    s->list = i;
    for (int e = 0; e < 3; e++) s->list_at[e] = ag_sim_int(s, i->e[e]);
    const KernelTensor *t = &s->k->tensor[i->a];
    int64_t rows = i->dst >= 0 ? ag_sim_int(s, i->e[3]) : 1;
    for (int e = 0; e < 3; e++)
        if (s->list_at[e] < 0 || s->list_at[e] + (e == 2 ? rows : 1) > ag_sim_int(s, t->extent[e]))
            ag_sim_fail(s, "list %lld of dim %d of %s, which has %lld", (long long)s->list_at[e], e, t->name, (long long)ag_sim_int(s, t->extent[e]));
    if (i->dst >= 0) unite(s, i, rows);
}

/* The first past the last if the entry does not count. */
static int64_t block_at(const Sim *s, const Ins *i, const int64_t at[3], int64_t entry) {
    List l = list_at(s, i, at[0], at[1], at[2]);
    int64_t none = blocks_of(s, i), block = entry < l.n ? entry_of(&l, entry) : none;
    if (block < 0 || block >= none) return none;
    for (int64_t e = 0; e < entry; e++)
        if (entry_of(&l, e) == block) return none;
    return block;
}

int64_t ag_sim_listed(Sim *s, int64_t entry) {
    check_entry(s, entry);
    return s->list->dst >= 0 ? s->united[entry] : block_at(s, s->list, s->list_at, entry);
}

bool ag_sim_listed_by(Sim *s, int64_t entry, int64_t query) {
    check_entry(s, entry);
    return query >= 0 && query < s->k->queries && (s->united_by[entry] >> query & 1);
}

bool ag_sim_slot_counts(Sim *s, int64_t b, int64_t head, int64_t row, int64_t entry) {
    const int64_t at[3] = {b, head, row};
    const Derive *forced = s->k->forced;
    int64_t block = block_at(s, s->k->list, at, entry + (forced ? forced->first.n : 0));
    return block < blocks_of(s, s->k->list) && !(forced && ag_forces(forced, row + s->call->size[SZ_OFF], block));
}

/* What the list says, straight from its definition: which keys are in, in whatever order and however often; those that the kernel leaves out are not. */
bool ag_sim_list_has(const Sim *s, int64_t b, int64_t h, int64_t row, int64_t key) {
    const Ins *i = s->k->list;
    if (!i) return true;
    bool per_head = s->k->pack == 1 && s->k->tensor[i->a].extent[1] == s->k->tensor[TEN_Q].extent[1];
    int64_t rows = s->call->size[SZ_SQ], lists = 1;
    const Node *x = &s->k->nodes.n[s->k->tensor[i->a].extent[2]];
    if (x->op == OP_CEILDIV) lists = s->k->nodes.n[x->arg[1]].value.u.i;
    if (s->k->forced && ag_forces(s->k->forced, row + s->call->size[SZ_OFF], key / i->n)) return false;
    int64_t head = per_head ? h : h / (s->call->size[SZ_HQ] / s->call->size[SZ_HKV]);
    List l = list_at(s, i, b, head, row < rows ? row / lists : 0);
    for (int64_t e = 0; e < l.n; e++)
        if (entry_of(&l, e) == key / i->n) return true;
    return false;
}
