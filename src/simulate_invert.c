/* simulate_invert.c: inversions of block lists on host tensors, straight from the contracts in tile_ir.h, and whether every element is written once. */
#include "simulate.h"

static const Inversion *inversion(const Sim *s) { return &s->k->invert; }

static int64_t extent(Sim *s, int tensor, int dim) {
    const KernelTensor *t = &s->k->tensor[tensor];
    return dim < t->rank ? ag_sim_int(s, t->extent[dim]) : 1;
}

/* Where an element lies among all of its tensor. */
static int64_t place(Sim *s, int tensor, const int64_t at[4]) {
    int64_t n = 0;
    for (int dim = 0; dim < 4; dim++) n = n * extent(s, tensor, dim) + at[dim];
    return n;
}

static void must_be_there(Sim *s, int tensor, const int64_t at[4]) {
    const char *name = s->k->tensor[tensor].name;
    if (!ag_sim_tensor(s, tensor)->data) ag_sim_fail(s, "%s is not given", name);
    for (int dim = 0; dim < 4; dim++)
        if (at[dim] < 0 || at[dim] >= extent(s, tensor, dim))
            ag_sim_fail(s, "element %lld in dim %d of %s, which has %lld", (long long)at[dim], dim, name, (long long)extent(s, tensor, dim));
}

static int64_t get(Sim *s, int tensor, int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t at[4] = {b, h, i, j};
    must_be_there(s, tensor, at);
    return ag_host_get_int(ag_sim_tensor(s, tensor), at, s->k->tensor[tensor].rank);
}

static void put(Sim *s, int tensor, int64_t b, int64_t h, int64_t i, int64_t j, int64_t x) {
    int64_t at[4] = {b, h, i, j};
    must_be_there(s, tensor, at);
    uint8_t *stored = &s->cover.stored[tensor][place(s, tensor, at)];
    if (*stored)
        ag_sim_fail(s, "element [%lld, %lld, %lld, %lld] of %s is written twice", (long long)b, (long long)h, (long long)i, (long long)j,
                    s->k->tensor[tensor].name);
    *stored = 1;
    ag_host_set(ag_sim_tensor(s, tensor), b, h, i, j, (double)x);
}

/* The work of a block: batch, head, chunk or column, blocks of keys. */
typedef struct Work {
    int64_t b, h, at, blocks;
} Work;

/* The block of a slot of a list; -1 if it does not count. */
static int64_t block_of(Sim *s, const Work *w, int64_t q, int64_t slot) {
    const Inversion *v = inversion(s);
    const Derive *forced = s->k->forced;
    if (v->counts >= 0 && slot >= get(s, v->counts, w->b, w->h, q, 0)) return -1;
    if (forced) slot += forced->first.n;
    int64_t block = get(s, v->lists, w->b, w->h, q, slot);
    if (forced && ag_forces(forced, q + s->call->size[SZ_OFF], block)) return -1;
    if (block < 0 || block >= w->blocks) return -1;
    for (int64_t e = 0; e < slot; e++)
        if (get(s, v->lists, w->b, w->h, q, e) == block) return -1;
    return block;
}

static int64_t end_of_chunk(Sim *s, const Work *w) {
    int64_t lists = extent(s, inversion(s)->lists, 2), end = (w->at + 1) * inversion(s)->chunk;
    if (w->at < 0 || w->at * inversion(s)->chunk >= lists) ag_sim_fail(s, "chunk %lld of %lld lists", (long long)w->at, (long long)lists);
    return end < lists ? end : lists;
}

static void count(Sim *s, const Work *w) {
    const Inversion *v = inversion(s);
    int64_t *n = NEWN(s->arena, int64_t, (size_t)w->blocks + 1), sum = 0, end = end_of_chunk(s, w);
    for (int64_t q = w->at * v->chunk; q < end; q++)
        for (int slot = 0; slot < v->slots; slot++) {
            int64_t block = block_of(s, w, q, slot);
            if (block >= 0) n[block]++;
        }
    for (int64_t j = 0; j <= w->blocks; sum += n[j++]) put(s, v->chunks, w->b, w->h, w->at, j, sum);
}

static void scan(Sim *s, const Work *w) {
    const Inversion *v = inversion(s);
    int64_t chunks = extent(s, v->chunks, 2);
    for (int64_t j = w->at; j < w->at + v->columns && j <= w->blocks; j++) {
        int64_t sum = 0;
        for (int64_t c = 0; c < chunks; c++) {
            int64_t x = get(s, v->chunks, w->b, w->h, c, j);
            put(s, v->chunks, w->b, w->h, c, j, sum);
            sum += x;
        }
        put(s, v->first, w->b, w->h, j, 0, sum);
    }
}

static void invert(Sim *s, const Work *w) {
    const Inversion *v = inversion(s);
    int64_t *at = NEWN(s->arena, int64_t, (size_t)w->blocks + 1), end = end_of_chunk(s, w);
    for (int64_t j = 0; j < w->blocks; j++)
        at[j] = get(s, v->first, w->b, w->h, j, 0) + get(s, v->chunks, w->b, w->h, w->at, j + 1) - get(s, v->chunks, w->b, w->h, w->at, j);
    for (int64_t q = w->at * v->chunk; q < end; q++)
        for (int slot = 0; slot < v->slots; slot++) {
            int64_t block = block_of(s, w, q, slot);
            if (block < 0) continue;
            if (at[block] >= get(s, v->first, w->b, w->h, block + 1, 0))
                ag_sim_fail(s, "entry %lld of query %lld goes behind those of block %lld", (long long)slot, (long long)q, (long long)block);
            put(s, v->entry, w->b, w->h, at[block]++, 0, q * v->slots + slot);
        }
}

void ag_sim_invert(Sim *s, const Ins *i) {
    Work w = {ag_sim_int(s, i->e[0]), ag_sim_int(s, i->e[1]), ag_sim_int(s, i->e[2]), ag_sim_int(s, i->e[3])};
    if (w.blocks < 0) ag_sim_fail(s, "%lld blocks", (long long)w.blocks);
    switch (i->op) {
    case TI_COUNT_LISTS: count(s, &w); break;
    case TI_SCAN_LISTS: scan(s, &w); break;
    default: invert(s, &w); break;
    }
}

static int64_t elements(Sim *s, int tensor) {
    int64_t n = 1;
    for (int dim = 0; dim < 4; dim++) n *= extent(s, tensor, dim);
    return n;
}

void ag_sim_invert_init(Sim *s) {
    for (int t = 0; t < s->k->ntensor; t++)
        if (s->k->tensor[t].output) s->cover.stored[t] = ag_alloc_n(s->arena, (size_t)elements(s, t), 1);
}

/* Of `entry` what the last element of `first` says. */
static void check_head(Sim *s, int tensor, int64_t b, int64_t h) {
    int64_t end = extent(s, tensor, 2), at[4] = {b, h, 0, 0};
    bool entries = tensor == inversion(s)->entry;
    if (entries) end = get(s, inversion(s)->first, b, h, extent(s, inversion(s)->first, 2) - 1, 0);
    for (at[2] = 0; at[2] < end; at[2]++)
        for (at[3] = 0; at[3] < extent(s, tensor, 3); at[3]++)
            if (!s->cover.stored[tensor][place(s, tensor, at)])
                ag_sim_fail_launch(s, (Span){0}, "element [%lld, %lld, %lld, %lld] of %s is never written", (long long)b, (long long)h,
                                   (long long)at[2], (long long)at[3], s->k->tensor[tensor].name);
}

void ag_sim_invert_end(Sim *s) {
    for (int t = 0; t < s->k->ntensor; t++) {
        if (!s->cover.stored[t]) continue;
        for (int64_t b = 0; b < extent(s, t, 0); b++)
            for (int64_t h = 0; h < extent(s, t, 1); h++) check_head(s, t, b, h);
    }
}
