/* reference_program.c: specs with branches, in double precision: pools, selections, one softmax per branch, and `output` over what they give.
 *
 *   pool      P[i] = sum over j < size of w[j] X[i stride + j] / sum of w[j], rows that exist only, rounded to the storage type
 *   branch    as in reference.c over its own keys; of listed blocks, over the keys of the blocks that are in the list
 *   select    importance of block j: sum over pooled keys i of p[i] (rows that i and j share) / stride, p the probabilities of the branch;
 *             or plainly <q, P[j]>; summed over the query heads of a KV head unless `share: head`
 * Shares nothing with the compiler's passes.  Straight rather than fast: a selection computes the branch that it goes by again. */
#include "reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- pools */

static const HostTensor *tensor_of(const HostCall *call, SpecRef s) {
    return s.kind == FROM_Q ? &call->q : s.kind == FROM_K ? &call->k : s.kind == FROM_V ? &call->v : &call->input[s.index];
}

static double pooled(const Spec *spec, const HostCall *call, const Derive *p, int64_t b, int64_t g, int64_t i, int64_t d) {
    const HostTensor *x = tensor_of(call, p->source);
    double sum = 0, weights = 0;
    int64_t end = least(i * p->stride.n + p->size.n, call->size[SZ_SK]);
    for (int64_t row = i * p->stride.n; row < end; row++) {
        int64_t j = row - i * p->stride.n;
        double w = p->weights < 0 ? 1 : ag_host_get_at(&call->input[p->weights], &j, 1);
        sum += w * ag_host_get(x, b, g, row, d);
        weights += w;
    }
    double one = 0;
    HostTensor cell = {.data = &one, .type = spec->dtype};
    ag_host_set(&cell, 0, 0, 0, 0, sum / weights);
    return ag_host_get(&cell, 0, 0, 0, 0);
}

static void pool_head(const Spec *spec, const HostCall *call, int derive, int64_t b, int64_t g, double *out) {
    const Derive *p = &spec->derive[derive];
    int64_t n = ag_pool_count(p, call->size[SZ_SK]), cols = ag_source_cols(spec, (SpecRef){FROM_DERIVE, derive});
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < cols; d++) out[i * cols + d] = pooled(spec, call, p, b, g, i, d);
}

void ag_reference_pool(const Spec *spec, const HostCall *call, int derive, double *out) {
    int64_t n = ag_pool_count(&spec->derive[derive], call->size[SZ_SK]) * ag_source_cols(spec, (SpecRef){FROM_DERIVE, derive});
    for (int64_t b = 0; b < call->size[SZ_B]; b++)
        for (int64_t g = 0; g < call->size[SZ_HKV]; g++, out += n) pool_head(spec, call, derive, b, g, out);
}

/* Keys or values of one KV head: [keys, cols]. */
static void load_head(const Spec *spec, const HostCall *call, SpecRef s, int64_t b, int64_t g, double *out) {
    const HostTensor *x = tensor_of(call, s);
    int64_t cols = ag_source_cols(spec, s);
    if (s.kind == FROM_DERIVE) {
        pool_head(spec, call, s.index, b, g, out);
        return;
    }
    for (int64_t k = 0; k < call->size[SZ_SK]; k++)
        for (int64_t d = 0; d < cols; d++) out[k * cols + d] = ag_host_get(x, b, g, k, d);
}

/* ---- a branch at work: rows of the KV head that is loaded */

typedef struct Worker {
    Row row;
    const Branch *branch;
    bool *in;             /* [Sk]: keys of the listed blocks; NULL: all */
    const int32_t *picks; /* of the selection that lists them; NULL: an input lists them */
    double *o, lse;       /* [Dv] */
} Worker;

/* Room for a pool's keys alone if `branch` is NULL. */
static bool worker_init(Worker *w, const Spec *spec, const HostCall *call, const Branch *branch, int64_t keys) {
    size_t n = (size_t)keys + 1;
    *w = (Worker){.branch = branch};
    w->row = (Row){.spec = spec, .call = call, .D = spec->D, .Dv = spec->Dv, .Sk = keys};
    w->row.query = calloc((size_t)spec->D, sizeof(double));
    w->row.key = calloc(n * (size_t)spec->D, sizeof(double));
    w->row.value = calloc(n * (size_t)spec->Dv, sizeof(double));
    w->row.seen = calloc(n, sizeof(int64_t));
    w->row.x = calloc(n, sizeof(double));
    w->o = calloc((size_t)spec->Dv, sizeof(double));
    w->row.o = w->o;
    w->row.lse = &w->lse;
    if (branch) w->row.score = branch->score, w->row.mask = branch->mask, w->row.weigh = branch->weigh;
    bool lists = branch && branch->blocks.kind != FROM_NONE;
    if (lists) w->in = calloc(n, sizeof(bool));
    return w->row.query && w->row.key && w->row.value && w->row.seen && w->row.x && w->o && (w->in || !lists);
}

static void worker_free(Worker *w) {
    free(w->row.query);
    free(w->row.key);
    free(w->row.value);
    free(w->row.seen);
    free(w->row.x);
    free(w->o);
    free(w->in);
}

static void worker_load(Worker *w, int64_t b, int64_t g) {
    load_head(w->row.spec, w->row.call, w->branch->keys, b, g, w->row.key);
    load_head(w->row.spec, w->row.call, w->branch->values, b, g, w->row.value);
}

/* queries: q, or an input that stands for it. */
static void load_query(Row *r, SpecRef queries, int64_t b, int64_t h, int64_t q) {
    const HostTensor *x = tensor_of(r->call, queries);
    r->b = b, r->h = h, r->q = q;
    for (int64_t d = 0; d < r->D; d++) r->query[d] = ag_host_get(x, b, h, q, d);
}

static void add_block(Worker *w, int64_t block) {
    int64_t n = w->branch->block.n, sk = w->row.Sk;
    if (block < 0 || block >= ag_block_count(&w->branch->block, sk)) return;
    for (int64_t k = block * n; k < least((block + 1) * n, sk); k++) w->in[k] = true;
}

/* Which keys the row's list has. */
static void find_listed(Worker *w) {
    const Row *r = &w->row;
    const Branch *b = w->branch;
    const int64_t *size = r->call->size;
    int64_t head = b->per_head ? r->h : ag_kv_head(r->call, r->h);
    memset(w->in, 0, (size_t)r->Sk + 1);
    if (w->picks) {
        int64_t count = r->spec->derive[b->blocks.index].count.n, heads = size[b->per_head ? SZ_HQ : SZ_HKV];
        for (int64_t i = 0; i < count; i++) add_block(w, w->picks[((r->b * heads + head) * size[SZ_SQ] + r->q) * count + i]);
        return;
    }
    int64_t at[4] = {r->b, head, r->q / b->per.n, 0}, n = ag_input_extent(r->spec, b->blocks.index, 3, size);
    if (b->counts >= 0) n = least(n, ag_host_get_int(&r->call->input[b->counts], at, 3));
    for (at[3] = 0; at[3] < n; at[3]++) add_block(w, ag_host_get_int(&r->call->input[b->blocks.index], at, 4));
}

static void worker_row(Worker *w, RowFunction *f, int64_t b, int64_t h, int64_t q) {
    load_query(&w->row, w->branch->queries, b, h, q);
    if (w->in) find_listed(w);
    ag_row_seen(&w->row, w->in);
    f(&w->row);
}

/* ---- selections */

/* Rows that pooled key i and block j share. */
static int64_t shared_rows(const Derive *pool, const Derive *select, int64_t i, int64_t j) {
    int64_t from = most(i * pool->stride.n, j * select->block.n);
    return most(0, least(i * pool->stride.n + pool->size.n, (j + 1) * select->block.n) - from);
}

/* Adds what the row, done already, says of each block. */
static void add_probabilities(const Row *r, const Derive *pool, const Derive *select, int64_t blocks, double *importance) {
    for (int64_t n = 0; n < r->n; n++) {
        int64_t i = r->seen[n], first = i * pool->stride.n / select->block.n, last = (i * pool->stride.n + pool->size.n - 1) / select->block.n;
        for (int64_t j = first; j <= last && j < blocks; j++)
            importance[j] += r->x[n] * (double)shared_rows(pool, select, i, j) / (double)pool->stride.n;
    }
}

/* Which blocks may be selected for a query at position q, and which always are: as -inf and inf. */
static void set_bounds(const Derive *s, int64_t q, int64_t blocks, double *importance) {
    int64_t own = q >= 0 ? q / s->block.n : -1;
    for (int64_t j = 0; j < blocks; j++) {
        bool forced = j < s->first.n || (j <= own && j > own - s->local.n);
        if (isnan(importance[j])) importance[j] = -DBL_MAX;
        if (s->causal && j > own)
            importance[j] = -INFINITY;
        else if (forced)
            importance[j] = INFINITY;
    }
}

/* The highest first, ties to the lower block; written in ascending order. */
static void choose(const double *importance, int64_t blocks, int count, int32_t *picks) {
    int n = 0;
    while (n < count) {
        int64_t best = -1;
        for (int64_t j = 0; j < blocks; j++) {
            bool taken = importance[j] == -INFINITY;
            for (int i = 0; i < n; i++) taken |= picks[i] == j;
            if (!taken && (best < 0 || importance[j] > importance[best])) best = j;
        }
        if (best < 0) break;
        picks[n++] = (int32_t)best;
    }
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && picks[j - 1] > picks[j]; j--) {
            int32_t t = picks[j];
            picks[j] = picks[j - 1], picks[j - 1] = t;
        }
    for (; n < count; n++) picks[n] = -1;
}

/* Importance of the blocks for one query head, added. */
static void add_importance(Worker *w, const Derive *s, int64_t blocks, int64_t b, int64_t h, int64_t q, double *importance) {
    const Spec *spec = w->row.spec;
    if (w->branch) {
        worker_row(w, ag_row_exact, b, h, q);
        add_probabilities(&w->row, &spec->derive[w->branch->keys.index], s, blocks, importance);
        return;
    }
    load_query(&w->row, (SpecRef){FROM_Q, 0}, b, h, q);
    int64_t own = q + w->row.call->size[SZ_OFF];
    for (int64_t j = 0; j < blocks; j++) /* later blocks are not read */
        if (!s->causal || j * s->block.n <= own) importance[j] += ag_row_dot(w->row.query, w->row.key + j * w->row.D, w->row.D);
}

static bool select_blocks(const Spec *spec, const HostCall *call, int derive, int32_t *picks, double *importance) {
    const Derive *s = &spec->derive[derive];
    const int64_t *size = call->size;
    bool by_branch = s->source.kind == FROM_BRANCH;
    const Branch *branch = by_branch ? &spec->branch[s->source.index] : NULL;
    int64_t blocks = ag_block_count(&s->block, size[SZ_SK]), group = size[SZ_HKV] > 0 ? size[SZ_HQ] / size[SZ_HKV] : 1;
    int64_t keys = by_branch ? ag_branch_keys(spec, s->source.index, size[SZ_SK]) : ag_pool_count(&spec->derive[s->source.index], size[SZ_SK]);
    int64_t share = s->per_head ? 1 : group, heads = s->per_head ? size[SZ_HQ] : size[SZ_HKV];
    Worker w;
    double *one = calloc((size_t)blocks + 1, sizeof *one);
    bool ok = worker_init(&w, spec, call, branch, keys) && one;
    for (int64_t b = 0; ok && b < size[SZ_B]; b++)
        for (int64_t head = 0; head < heads; head++) {
            int64_t g = s->per_head ? ag_kv_head(call, head) : head;
            if (by_branch)
                worker_load(&w, b, g);
            else
                pool_head(spec, call, s->source.index, b, g, w.row.key);
            for (int64_t q = 0; q < size[SZ_SQ]; q++) {
                int64_t row = (b * heads + head) * size[SZ_SQ] + q;
                memset(one, 0, (size_t)blocks * sizeof *one);
                for (int64_t h = head * share; h < (head + 1) * share; h++) add_importance(&w, s, blocks, b, h, q, one);
                set_bounds(s, q + size[SZ_OFF], blocks, one);
                choose(one, blocks, s->count.n, picks + row * s->count.n);
                if (importance) memcpy(importance + row * blocks, one, (size_t)blocks * sizeof *one);
            }
        }
    worker_free(&w);
    free(one);
    return ok;
}

bool ag_reference_select(const Spec *spec, const HostCall *call, int derive, int32_t *picks, double *importance) {
    PreparedCall p;
    bool ok = ag_prepare_call(spec, call, &p) && select_blocks(spec, &p.call, derive, picks, importance);
    ag_prepared_free(&p);
    return ok;
}

/* ---- the program */

typedef struct Program {
    const Spec *spec;
    const HostCall *call;
    RowFunction *row;
    Worker worker[SPEC_MAX_BRANCHES];
    int32_t *picks[SPEC_MAX_DERIVES]; /* owned */
    double *o, *lse, *spread;         /* spread may be NULL */
} Program;

/* Computes the selections that the call does not give. */
static bool make_picks(Program *p) {
    const int64_t *size = p->call->size;
    for (int i = 0; i < p->spec->nderive; i++) {
        const Derive *s = &p->spec->derive[i];
        if (s->kind != DERIVE_SELECT || p->call->picks[i]) continue;
        int64_t n = size[SZ_B] * size[s->per_head ? SZ_HQ : SZ_HKV] * size[SZ_SQ] * s->count.n;
        p->picks[i] = calloc((size_t)n + 1, sizeof *p->picks[i]);
        if (!p->picks[i] || !ag_reference_select(p->spec, p->call, i, p->picks[i], NULL)) return false;
    }
    return true;
}

static bool make_workers(Program *p) {
    bool ok = true;
    for (int i = 0; i < p->spec->nbranch; i++) {
        const Branch *b = &p->spec->branch[i];
        ok &= worker_init(&p->worker[i], p->spec, p->call, b, ag_branch_keys(p->spec, i, p->call->size[SZ_SK]));
        if (b->blocks.kind != FROM_DERIVE) continue;
        const int32_t *given = p->call->picks[b->blocks.index];
        p->worker[i].picks = given ? given : p->picks[b->blocks.index];
    }
    return ok;
}

/* Rounded to the storage type for the naive computation. */
static double as_stored(const Program *p, double x) { return p->row == ag_row_naive ? ag_round_to(p->spec->dtype, (float)x) : x; }

static double output_at(const Program *p, const HostPoint *at) { return ag_ast_eval_at(p->spec, p->call, p->spec->output, at).u.f; }

/* Adds up by how much the output at a point moves with each branch: step[i] is how far branch i may be off. */
static double spread_at(const Program *p, const HostPoint *at, double *value, const double *step) {
    double x = output_at(p, at), sum = 0;
    for (int i = 0; i < p->spec->nbranch; i++) {
        double exact = value[i];
        value[i] += step[i];
        double e = fabs(output_at(p, at) - x);
        if (isfinite(e)) sum += e;
        value[i] = exact;
    }
    return sum;
}

static void find_steps(const Program *p, double step[SPEC_MAX_BRANCHES]) {
    for (int i = 0; i < p->spec->nbranch; i++) {
        double largest = 0;
        for (int64_t d = 0; d < p->spec->Dv; d++)
            if (isfinite(p->worker[i].o[d])) largest = fmax(largest, fabs(p->worker[i].o[d]));
        step[i] = ag_half_ulp(p->spec->dtype, largest);
    }
}

static void program_row(Program *p, int64_t b, int64_t h, int64_t q) {
    const Spec *spec = p->spec;
    const int64_t *size = p->call->size;
    int64_t row = (b * size[SZ_HQ] + h) * size[SZ_SQ] + q;
    double value[SPEC_MAX_BRANCHES], step[SPEC_MAX_BRANCHES], mean[SPEC_MAX_BRANCHES];
    HostRow rows = {.n = 0};
    bool spreads = p->spread && spec->output;
    for (int i = 0; i < spec->nbranch; i++) {
        worker_row(&p->worker[i], p->row, b, h, q);
        rows.branch[i] = p->worker[i].o;
        mean[i] = p->worker[i].row.mean;
    }
    if (spreads) find_steps(p, step);
    if (p->spread) p->spread[row] = 0;
    p->lse[row] = spec->nbranch == 1 ? p->worker[0].lse : 0;
    for (int64_t d = 0; d < spec->Dv; d++) {
        for (int i = 0; i < spec->nbranch; i++) value[i] = p->worker[i].o[d];
        HostPoint at = {.b = b, .h = h, .q = q + size[SZ_OFF], .d = d, .Sk = size[SZ_SK], .branch = value, .mean = mean, .row = &rows};
        double x = spec->output ? output_at(p, &at) : value[0];
        if (spreads) p->spread[row] = fmax(p->spread[row], spread_at(p, &at, value, step));
        p->o[row * spec->Dv + d] = as_stored(p, x);
    }
}

static bool run(const Spec *spec, const HostCall *call, double *o, double *lse, double *spread, RowFunction *row) {
    Program p = {.spec = spec, .call = call, .row = row, .o = o, .lse = lse, .spread = spread};
    const int64_t *size = call->size;
    bool ok = make_picks(&p) && make_workers(&p);
    int64_t group = size[SZ_HKV] > 0 ? size[SZ_HQ] / size[SZ_HKV] : 1;
    for (int64_t b = 0; ok && b < size[SZ_B]; b++)
        for (int64_t h = 0; h < size[SZ_HQ]; h++) {
            for (int i = 0; h % group == 0 && i < spec->nbranch; i++) worker_load(&p.worker[i], b, h / group);
            for (int64_t q = 0; q < size[SZ_SQ]; q++) program_row(&p, b, h, q);
        }
    for (int i = 0; i < spec->nbranch; i++) worker_free(&p.worker[i]);
    for (int i = 0; i < spec->nderive; i++) free(p.picks[i]);
    return ok;
}

bool ag_reference_program(const Spec *spec, const HostCall *call, double *o, double *lse) { return run(spec, call, o, lse, NULL, ag_row_exact); }
bool ag_reference_spread(const Spec *spec, const HostCall *call, double *o, double *lse, double *spread) {
    PreparedCall p;
    bool ok = ag_prepare_call(spec, call, &p) && run(spec, &p.call, o, lse, spread, ag_row_exact);
    ag_prepared_free(&p);
    return ok;
}
bool ag_naive_program(const Spec *spec, const HostCall *call, double *o, double *lse) { return run(spec, call, o, lse, NULL, ag_row_naive); }
