/* simulate_select.c: what the instructions of a selection compute: sums over heads, importance and ranking, lists; and that each list is written once.
 *
 * A table is written by all threads and complete at the next barrier; the rows of a query that TI_RANK works on have one owner, so that it needs none.
 * Lists are kept as floats and blocks beside each other instead of keys that hold both: the order is the same. */
#include "simulate.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

struct SimLists {
    float *importance; /* [queries][room] */
    int64_t *block;    /* -1: none */
    uint8_t *stored;   /* [B][heads][Sq] */
};

static const Rank *rank_of(const Sim *s) { return &s->k->rank; }
static int parts(const Sim *s) { return s->k->pack / rank_of(s)->unit; }

/* ---- rows and tables */

static void load_row(Sim *s, const Ins *i) {
    Cell *d = &s->cell[i->dst];
    const KernelTensor *t = &s->k->tensor[i->n];
    const HostTensor *x = ag_sim_tensor(s, i->n);
    int64_t row0 = ag_sim_int(s, i->e[0]), limit = ag_sim_int(s, i->e[1]), b = ag_sim_int(s, i->e[2]), h = ag_sim_int(s, i->e[3]);
    int64_t rows = s->call->size[t->rows], most = s->k->queries, live = limit - row0 < most ? limit - row0 : most;
    int pack = s->k->pack;
    if (live < 0) live = 0;
    if (live > 0 && (row0 < 0 || row0 + live > rows))
        ag_sim_fail(s, "rows %lld..%lld of %s, which has %lld", (long long)row0, (long long)(row0 + live) - 1, t->name, (long long)rows);
    if (live > 0 && (h < 0 || h + pack > s->call->size[t->heads] || b < 0 || b >= s->call->size[SZ_B]))
        ag_sim_fail(s, "head %lld of batch %lld of %s is not there", (long long)h, (long long)b, t->name);
    for (int r = 0; r < d->v->rows; r++) d->x[r] = r < live * pack ? (float)ag_host_get(x, b, h + r % pack, row0 + r / pack, 0) : -INFINITY;
    d->from = (Origin){.has_q = true, .b = b, .h = h, .q0 = row0, .live = (int)live * pack};
    d->written = true;
}

static void clear_table(Sim *s, const Ins *i) {
    const Val *v = &s->k->val[i->dst];
    Stage *g = ag_sim_overwrite(s, i->dst, 0);
    memset(g->x, 0, sizeof(float) * (size_t)v->rows * (size_t)v->cols);
    for (int64_t e = 0; v->type == DT_I64 && e < (int64_t)v->rows * v->cols; e++) s->lists->block[e] = -1;
    ag_sim_copied(s, g, false, false);
    s->cell[i->dst].written = true;
}

static void sum_heads(Sim *s, const Ins *i) {
    const Cell *a = &s->cell[i->a];
    const Rank *r = rank_of(s);
    if (!a->written) ag_sim_fail(s, "reads %s before it is written", ag_sim_name(s, i->a));
    if (!s->cell[i->dst].written) ag_sim_fail(s, "writes a part of %s, which was not cleared", ag_sim_name(s, i->dst));
    int units = s->k->queries * parts(s), cols = s->k->val[i->dst].cols, n = a->v->cols;
    Stage *g = ag_sim_overwrite(s, i->dst, 0);
    int live = a->from.has_q ? a->from.live : a->v->rows; /* rows of queries that are not there are not computed */
    for (int u = 0; u < units; u++)
        for (int c = 0; c < n; c++) {
            float sum = 0;
            for (int row = u * r->unit; row < (u + 1) * r->unit && row < live; row++) sum += a->x[row * n + c];
            g->x[u * cols + r->history + c] = sum;
        }
    ag_sim_copied(s, g, false, false);
}

/* ---- ranking */

static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }

/* Of the step's block j, for the query. */
static float importance(const Sim *s, const float *sums, int cols, int query, int j) {
    const Rank *r = rank_of(s);
    int first = (int)((int64_t)j * r->block / r->stride), off = (int)((int64_t)j * r->block % r->stride), step = r->blocks * r->block / r->stride;
    float x = 0;
    for (int c = first - r->history; c < step; c++) {
        int from = (c - first) * r->stride - off, shared = least(from + r->size, r->block) - most(from, 0);
        if (shared <= 0) continue;
        float sum = 0;
        for (int p = 0; p < parts(s); p++) sum += sums[(query * parts(s) + p) * cols + r->history + c];
        x += sum * (float)(shared / r->grain);
    }
    return x;
}

/* a before b in a list? */
static bool higher(float a, int64_t block_a, float b, int64_t block_b) { return block_b < 0 || a > b || (a == b && block_a < block_b); }

static void insert(Sim *s, int query, float x, int64_t block) {
    const Rank *r = rank_of(s);
    float *to = s->lists->importance + (int64_t)query * ag_rank_room(r);
    int64_t *at = s->lists->block + (int64_t)query * ag_rank_room(r);
    int e = r->count - 1;
    if (!higher(x, block, to[e], at[e])) return;
    for (; e > 0 && higher(x, block, to[e - 1], at[e - 1]); e--) to[e] = to[e - 1], at[e] = at[e - 1];
    to[e] = x;
    at[e] = block;
}

static void rank_query(Sim *s, const float *sums, int cols, int query, int64_t block0, int64_t blocks, int64_t q) {
    const Rank *r = rank_of(s);
    int64_t own = q >= 0 ? q / r->block : -1;
    for (int j = 0; j < r->blocks && block0 + j < blocks; j++) {
        int64_t block = block0 + j;
        if (r->causal && block > own) return;
        float x = importance(s, sums, cols, query, j);
        if (isnan(x)) x = -FLT_MAX;
        if (block < r->first || (block <= own && block > own - r->local)) x = INFINITY;
        if (x != -INFINITY) insert(s, query, x, block);
    }
}

static void keep_history(const Sim *s, float *sums, int cols) {
    const Rank *r = rank_of(s);
    int step = (int)((int64_t)r->blocks * r->block / r->stride);
    for (int u = 0; u < s->k->queries * parts(s); u++) memmove(sums + u * cols, sums + u * cols + step, sizeof(float) * (size_t)r->history);
}

static void rank(Sim *s, const Ins *i) {
    int64_t block0 = ag_sim_int(s, i->e[0]), blocks = ag_sim_int(s, i->e[1]), q0 = ag_sim_int(s, i->e[2]), queries = ag_sim_int(s, i->e[3]);
    int cols = s->k->val[i->a].cols;
    ag_sim_read(s, i->dst, 0, USE_OWN, false);
    Stage *g = ag_sim_read(s, i->a, 0, USE_ALL, false);
    if (block0 != s->lists_next)
        ag_sim_fail(s, "ranks blocks from %lld on, but the sums are of blocks from %lld on", (long long)block0, (long long)s->lists_next);
    s->lists_next = block0 + rank_of(s)->blocks;
    for (int q = 0; q < s->k->queries && q < queries; q++) rank_query(s, g->x, cols, q, block0, blocks, q0 + q);
    keep_history(s, g->x, cols);
}

/* ---- lists */

/* Every block that the query at position q may select has been ranked. */
static void check_ranked(Sim *s, int64_t row) {
    const Rank *r = rank_of(s);
    int64_t q = row + s->call->size[SZ_OFF], own = q >= 0 ? q / r->block : -1, blocks = (s->call->size[SZ_SK] + r->block - 1) / r->block;
    int64_t last = r->causal && own < blocks - 1 ? own : blocks - 1;
    if (last >= s->lists_next) ag_sim_fail(s, "list %lld may have block %lld, but steps ended before it", (long long)row, (long long)s->lists_next);
}

static void store_list(Sim *s, const Ins *i) {
    const Rank *r = rank_of(s);
    const KernelTensor *t = &s->k->tensor[i->n];
    int64_t row0 = ag_sim_int(s, i->e[0]), limit = ag_sim_int(s, i->e[1]), b = ag_sim_int(s, i->e[2]), h = ag_sim_int(s, i->e[3]);
    int64_t heads = s->call->size[t->heads], rows = s->call->size[t->rows];
    ag_sim_read(s, i->a, 0, USE_OWN, false);
    for (int q = 0; q < s->k->queries && row0 + q < limit; q++) {
        const int64_t *block = s->lists->block + (int64_t)q * ag_rank_room(r);
        int n = 0;
        if (b < 0 || b >= s->call->size[SZ_B] || h < 0 || h >= heads || row0 < 0 || row0 + q >= rows)
            ag_sim_fail(s, "list %lld of head %lld of batch %lld is not there", (long long)(row0 + q), (long long)h, (long long)b);
        uint8_t *stored = &s->lists->stored[(b * heads + h) * rows + row0 + q];
        if (*stored) ag_sim_fail(s, "list %lld (h %lld, b %lld) is written twice", (long long)(row0 + q), (long long)h, (long long)b);
        *stored = 1;
        check_ranked(s, row0 + q);
        while (n < r->count && block[n] >= 0) n++;
        for (int e = 0; e < r->count; e++) {
            int place = 0;
            for (int f = 0; f < n && e < n; f++) place += block[f] < block[e];
            ag_host_set(ag_sim_tensor(s, i->n), b, h, row0 + q, e < n ? place : e, e < n ? (double)block[e] : -1);
        }
    }
}

void ag_sim_select(Sim *s, const Ins *i) {
    assert(s->k->nrole == 1);
    switch (i->op) {
    case TI_LOAD_ROW: load_row(s, i); break;
    case TI_CLEAR: clear_table(s, i); break;
    case TI_SUM_HEADS: sum_heads(s, i); break;
    case TI_RANK: rank(s, i); break;
    default: store_list(s, i); break;
    }
    if (i->op == TI_CLEAR) s->lists_next = 0;
}

void ag_sim_lists_init(Sim *s) {
    const int64_t *size = s->call->size;
    size_t entries = (size_t)s->k->queries * (size_t)ag_rank_room(rank_of(s));
    s->lists = NEW(s->arena, SimLists);
    s->lists->importance = NEWN(s->arena, float, entries);
    s->lists->block = NEWN(s->arena, int64_t, entries);
    s->lists->stored = ag_alloc_n(s->arena, (size_t)(size[SZ_B] * size[SZ_HQ]), (size_t)size[SZ_SQ]);
}

void ag_sim_lists_end(Sim *s) {
    const int64_t *size = s->call->size;
    for (int t = 0; t < s->k->ntensor; t++) {
        if (!s->k->tensor[t].output || !s->k->tensor[t].used) continue;
        int64_t lists = size[SZ_B] * size[s->k->tensor[t].heads] * size[SZ_SQ];
        for (int64_t n = 0; n < lists; n++)
            if (!s->lists->stored[n])
                ag_sim_fail_launch(s, (Span){0}, "list %lld of %s (head %lld over all batches) is never written", (long long)(n % size[SZ_SQ]),
                                   s->k->tensor[t].name, (long long)(n / size[SZ_SQ]));
    }
}
