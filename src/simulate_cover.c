/* simulate_cover.c: whether every query row has seen every visible key once and no hidden one, and whether every output row is written once.
 *
 * What is visible comes from the spec's own mask (ag_visible), not from the passes.  Small problems are checked element by element; of large ones the first
 * and last rows of every group of query rows are, with all keys. */
#include "simulate.h"

#include <math.h>

enum { VISIBLE_CELLS = 1 << 22, SEEN_CELLS = 1 << 26 };
enum { HIDDEN = 1, VISIBLE = 2 };        /* Coverage.visible */
enum { CONTRACTED = 1, MASKED_OUT = 2 }; /* Coverage.seen */

static bool ast_needs_head(const Spec *spec, const Ast *e, bool *let_done) {
    if (!e) return false;
    if (e->op == OP_AXIS && (e->index == AX_B || e->index == AX_H || e->index == AX_G)) return true;
    if (e->op == OP_LET && !let_done[e->index]) {
        let_done[e->index] = true;
        if (ast_needs_head(spec, spec->let[e->index].value, let_done)) return true;
    }
    for (int i = 0; i < 3; i++)
        if (ast_needs_head(spec, e->arg[i], let_done)) return true;
    for (int i = 0; i < e->nsub; i++)
        if (ast_needs_head(spec, e->sub[i], let_done)) return true;
    return false;
}

static bool looked_at(int64_t q, int64_t step, int64_t n) { return q % step == 0 || q % step == step - 1 || q == n - 1; }

static int64_t count_rows(int64_t n, int64_t step) {
    int64_t count = 0;
    for (int64_t q = 0; q < n; q++) count += looked_at(q, step, n);
    return count;
}

static int64_t heads(const Sim *s) { return s->call->size[SZ_B] * s->call->size[SZ_HQ]; }

/* Keys of a score tile: columns of the first product with a transposed operand. */
static int key_tile(const Sim *s, const Block *b) {
    for (const Ins *i = b->first; i; i = i->next) {
        int n = i->op == TI_MMA && i->trans ? s->k->val[i->dst].cols : key_tile(s, &i->body);
        if (n) return n;
    }
    return 0;
}

static const Ast *mask_of(const Sim *s, int branch) { return s->k->nbranch ? s->k->branch[branch].mask : s->k->spec->mask; }

void ag_sim_cover_init(Sim *s) {
    Coverage *c = &s->cover;
    const int64_t *size = s->call->size;
    int64_t sq = size[SZ_SQ], sk = size[SZ_SK], bh = heads(s), step = 1;
    bool let_done[SPEC_MAX_LETS] = {false};
    for (int r = 0; r < s->k->nrole && !c->tile; r++) c->tile = key_tile(s, &s->k->role[r].body);
    c->branches = s->k->nbranch ? s->k->nbranch : 1;
    c->per_head = s->k->list != NULL;
    for (int i = 0; i < c->branches; i++) c->per_head |= ast_needs_head(s->k->spec, mask_of(s, i), let_done);
    int64_t planes = c->per_head ? bh : 1;
    while (step < sq && (count_rows(sq, step) * sk * planes > VISIBLE_CELLS || count_rows(sq, step) * sk * bh > SEEN_CELLS)) step *= 2;
    c->number = NEWN(s->arena, int64_t, (size_t)sq);
    c->rows = NEWN(s->arena, int64_t, (size_t)count_rows(sq, step));
    for (int64_t q = 0; q < sq; q++) {
        c->number[q] = looked_at(q, step, sq) ? c->nrow : -1;
        if (c->number[q] >= 0) c->rows[c->nrow++] = q;
    }
    for (int i = 0; i < c->branches; i++) {
        c->visible[i] = ag_alloc_n(s->arena, (size_t)(planes * c->nrow), (size_t)sk);
        c->seen[i] = ag_alloc_n(s->arena, (size_t)(bh * c->nrow), (size_t)sk);
    }
    for (int t = 0; t < TEN_COUNT; t++)
        if (s->k->tensor[t].output) c->stored[t] = ag_alloc_n(s->arena, (size_t)bh, (size_t)sq);
}

static bool visible(Sim *s, int branch, int64_t b, int64_t h, int64_t number, int64_t key) {
    Coverage *c = &s->cover;
    int64_t plane = c->per_head ? b * s->call->size[SZ_HQ] + h : 0;
    uint8_t *v = &c->visible[branch][(plane * c->nrow + number) * s->call->size[SZ_SK] + key];
    if (!*v) {
        const Ast *mask = mask_of(s, branch);
        bool seen = !mask || ag_ast_eval(s->k->spec, s->call, mask, b, h, c->rows[number] + s->call->size[SZ_OFF], key, 0).u.b;
        seen = seen && ag_sim_list_has(s, b, h, c->rows[number], key);
        *v = seen ? VISIBLE : HIDDEN;
    }
    return *v == VISIBLE;
}

/* ---- contractions */

/* Whether the spec's own score of a visible key is -inf, so that it counts for nothing. */
static bool score_is_neg_inf(const Sim *s, int branch, const Origin *o, int64_t head, int64_t q, int64_t key) {
    const Spec *spec = s->k->spec;
    const Joined own = s->k->nbranch ? s->k->branch[branch] : (Joined){NULL, spec->score, TEN_Q, TEN_K, 0};
    if (!own.score) return false;
    int64_t g = head / (s->call->size[SZ_HQ] / s->call->size[SZ_HKV]);
    double dot = 0;
    for (int d = 0; d < spec->D; d++)
        dot += ag_host_get(ag_sim_tensor(s, own.q), o->b, head, q, d) * ag_host_get(ag_sim_tensor(s, own.k), o->b, g, key, d);
    Scalar x = ag_ast_eval(spec, s->call, own.score, o->b, head, q + s->call->size[SZ_OFF], key, dot * s->call->scalar[0]);
    return x.type == T_FLOAT && (float)x.u.f == -INFINITY;
}

static const char *kind_of_step(const Origin *o) { return o->guarded ? "a masked step" : "a plain step"; }

static void contract_past_end(Sim *s, const Origin *o, int64_t q, int64_t key, bool hidden) {
    if (hidden) return;
    ag_sim_fail(s, "key %lld is past the last of %lld but is not masked for query row %lld in %s", (long long)key, (long long)s->call->size[SZ_SK],
                (long long)q, kind_of_step(o));
}

/* Is the guard nothing but the end of the keys?  Then the mask, if there is one, is a condition of the row, like the score, on weights that a factor makes differ from key to key. */
static bool guards_end_alone(const Kernel *k) {
    const Node *n = &k->nodes.n[k->guard];
    return n->op == OP_LT && k->nodes.n[n->arg[1]].op == OP_SIZE && k->nodes.n[n->arg[1]].index == SZ_SK;
}

/* zero: the weight is; not known of weights in shared memory. */
static void contract_key(Sim *s, int branch, const Origin *o, int64_t head, int64_t number, int64_t key, bool hidden, bool zero, uint8_t *seen) {
    int64_t q = s->cover.rows[number];
    bool may_see = visible(s, branch, o->b, head, number, key);
    if (*seen) ag_sim_fail(s, "key tile %lld is visited twice", (long long)key / s->cover.tile);
    if (!may_see && !hidden && !(zero && guards_end_alone(s->k)))
        ag_sim_fail(s, "key %lld is hidden from query row %lld but is not masked in %s", (long long)key, (long long)q, kind_of_step(o));
    if (may_see && hidden && !score_is_neg_inf(s, branch, o, head, q, key))
        ag_sim_fail(s, "key %lld is visible to query row %lld but is masked", (long long)key, (long long)q);
    *seen = hidden ? MASKED_OUT : CONTRACTED;
}

void ag_sim_cover_contract(Sim *s, const Cell *weights, int branch) {
    Coverage *c = &s->cover;
    const Origin *o = &weights->from;
    int64_t sk = s->call->size[SZ_SK], plane = o->b * s->call->size[SZ_HQ];
    int n = weights->v->cols, pack = s->k->pack, own = weights->v->rows / s->k->role[s->role].warps; /* rows of a warp */
    for (int i = 0; i < o->live; i++) {
        int64_t number = c->number[o->q0 + i / pack], head = o->h + i % pack;
        if (number < 0 || !ag_sim_warp_runs(s, i / own)) continue;
        uint8_t *seen = c->seen[branch] + ((plane + head) * c->nrow + number) * sk;
        for (int j = 0; j < n; j++) {
            int64_t key = o->key0 + j;
            if (key < sk)
                contract_key(s, branch, o, head, number, key, weights->hidden[i * n + j], weights->x && weights->x[i * n + j] == 0, &seen[key]);
            else
                contract_past_end(s, o, o->q0 + i / pack, key, weights->hidden[i * n + j]);
        }
    }
}

/* ---- outputs */

void ag_sim_cover_store(Sim *s, int tensor, int64_t b, int64_t h, int64_t row) {
    uint8_t *stored = &s->cover.stored[tensor][(b * s->call->size[SZ_HQ] + h) * s->call->size[SZ_SQ] + row];
    if (*stored) ag_sim_fail(s, "query row %lld is written twice", (long long)row);
    *stored = 1;
}

static void check_stored(Sim *s, int tensor, int64_t b, int64_t h) {
    const uint8_t *stored = s->cover.stored[tensor];
    int64_t sq = s->call->size[SZ_SQ], plane = b * s->call->size[SZ_HQ] + h;
    if (!stored || !s->k->tensor[tensor].used || !ag_sim_tensor(s, tensor)->data) return;
    for (int64_t q = 0; q < sq; q++)
        if (!stored[plane * sq + q])
            ag_sim_fail_launch(s, (Span){0}, "query row %lld of %s (h %lld, b %lld) is never written", (long long)q, s->k->tensor[tensor].name,
                               (long long)h, (long long)b);
}

static void check_seen(Sim *s, int branch, int64_t b, int64_t h) {
    const Coverage *c = &s->cover;
    int64_t sk = s->call->size[SZ_SK], plane = b * s->call->size[SZ_HQ] + h;
    for (int64_t n = 0; n < c->nrow && !c->untold; n++)
        for (int64_t key = 0; key < sk; key++)
            if (!c->seen[branch][(plane * c->nrow + n) * sk + key] && visible(s, branch, b, h, n, key))
                ag_sim_fail_launch(s, (Span){0}, "key %lld is visible to query row %lld (h %lld, b %lld) but key tile %lld is never visited",
                                   (long long)key, (long long)c->rows[n], (long long)h, (long long)b, (long long)key / (c->tile ? c->tile : 1));
}

void ag_sim_cover_end(Sim *s) {
    for (int64_t b = 0; b < s->call->size[SZ_B]; b++)
        for (int64_t h = 0; h < s->call->size[SZ_HQ]; h++) {
            for (int t = 0; t < TEN_COUNT; t++) check_stored(s, t, b, h);
            for (int i = 0; i < s->cover.branches; i++) check_seen(s, i, b, h);
        }
}
