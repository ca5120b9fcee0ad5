/* specialise.c: the pipeline of the wgmma path: a loading role feeds rings of key tiles to a computing role through mbarriers.
 *
 * The synchronous kernel of the tile pass has one role.  Here it becomes two:
 *   load   one thread of a warpgroup of its own: for each key tile waits until the stage is empty, announces the bytes and issues the TMA copy
 *   math   the warpgroups that compute: waits until a stage is full, computes, and releases it when the products that read it are done (speculative: K once the weights are verified)
 * Every ring has two arrays of mbarriers, full (one arrival, and the bytes) and empty (one arrival per warp of math).  Step i of a block, counted from 0, uses
 * stage i mod s in phase i / s: both follow from the tile number j, and in a persistent block (specialise_tiles.c) from the steps before this tile.
 *
 * pipeline.overlap: the scores of tile j are computed beside the weighted values of the tile before.  The loop is rotated for that:
 *   first tile      scores; softmax
 *   each next tile  scores of j  and  output += P V of the tile before  in flight; softmax of j beside the second; then what touches output or P
 *   after the loop  output += P V of the last tile */
#include <assert.h>

#include "specialise.h"

Ref ag_spz_num(Specialise *s, int64_t v) { return ag_node_int(&s->k->nodes, v); }
Ref ag_spz_op(Specialise *s, Op op, Ref a, Ref b) { return ag_node_op(&s->k->nodes, op, a, b, 0, (Span){0}); }
bool ag_spz_is_key_loop(const Specialise *s, const Ins *i) { return i->op == TI_LOOP && i->dst == s->k->key_loop; }
static Ins *add(Block *b, Ins *i) {
    ag_block_append(b, i);
    return i;
}
Ins *ag_spz_put(Specialise *s, Block *b, TileOp op, const char *note) {
    Ins *i = add(b, ag_ins(s->k, op, -1));
    i->note = note;
    return i;
}
Ref ag_spz_let(Specialise *s, Block *b, const char *name, Ref e, const char *note) {
    int v = ag_val_scalar(s->k, name, T_INT);
    s->k->val[v].nonneg = true;
    Ins *i = add(b, ag_ins(s->k, TI_LET, v));
    i->e[0] = e;
    i->note = note;
    return ag_kval(s->k, v);
}
void ag_spz_set(Specialise *s, Block *b, Ref scalar, Ref e) {
    int v = s->k->nodes.n[scalar].index;
    s->k->val[v].varies = true;
    add(b, ag_ins(s->k, TI_SET, v))->e[0] = e;
}

/* ---- steps: tile j is step hi - 1 - j, or j - lo where the loop goes forward, behind those of the block's earlier tiles.  int has room for them: 2^31 steps take
 * a block a quarter of an hour. */
static int stages(const Specialise *s, const Ring *r) { return s->k->val[r->val].stages; }
Ref ag_spz_step(Specialise *s, Ref j) {
    Ref in_tile = s->forward ? ag_spz_op(s, OP_SUB, j, s->k->lo) : ag_spz_op(s, OP_SUB, ag_spz_op(s, OP_SUB, s->k->hi, ag_spz_num(s, 1)), j);
    return s->base ? ag_spz_op(s, OP_ADD, s->base, in_tile) : in_tile;
}
Ref ag_spz_stage(Specialise *s, const Ring *r, Ref step) {
    bool first = stages(s, r) == 1 || step == ag_spz_num(s, 0);
    return first ? ag_spz_num(s, 0) : ag_spz_op(s, OP_MOD, step, ag_spz_num(s, stages(s, r)));
}
Ref ag_spz_phase(Specialise *s, const Ring *r, Ref step) {
    if (step == ag_spz_num(s, 0)) return step;
    Ref round = stages(s, r) == 1 ? step : ag_spz_op(s, OP_FLOORDIV, step, ag_spz_num(s, stages(s, r)));
    return ag_spz_op(s, OP_MOD, round, ag_spz_num(s, 2));
}

void ag_spz_wait(Specialise *s, Block *b, int barrier, Ref stage, Ref parity, const char *note) {
    Ins *i = ag_spz_put(s, b, TI_WAIT_BAR, note);
    i->n = barrier;
    i->e[0] = stage;
    i->e[1] = parity;
}
static void wait_full(Specialise *s, Block *b, const Ring *r, Ref step, const char *what) {
    const char *note = ag_fmt(s->k->arena, "---- %s, when %s is there", what, s->k->val[r->val].name.s).s;
    ag_spz_wait(s, b, r->full, ag_spz_stage(s, r, step), ag_spz_phase(s, r, step), note);
}
void ag_spz_release(Specialise *s, Block *b, const Ring *r, Ref step) {
    Ins *i = ag_spz_put(s, b, TI_ARRIVE, NULL);
    i->n = r->empty;
    i->e[0] = ag_spz_stage(s, r, step);
}
void ag_spz_mma_wait(Specialise *s, Block *b, int n, const char *note) { ag_spz_put(s, b, TI_MMA_WAIT, note)->n = n; }

/* ---- tiles of elements */
static const Ring *element_ring(const Specialise *s, const Ins *i) {
    for (int e = 0; e < s->nelement && i->op == TI_LOAD; e++)
        if (s->element[e].val == i->a) return &s->element[e];
    return NULL;
}
static void release_element(Specialise *s, Block *to, const Ring *r, Ref step) {
    ag_spz_put(s, to, TI_FENCE, NULL); /* what was read may be written by the copy engine */
    ag_spz_release(s, to, r, step);
}
void ag_spz_put_clone(Specialise *s, Block *to, const Ins *i, Ref step, bool last) {
    const Ring *r = element_ring(s, i);
    if (r) wait_full(s, to, r, step, "elements");
    Ins *c = add(to, ag_ins_clone(s->k, i));
    if (!r) return;
    c->e[0] = ag_spz_stage(s, r, step);
    if (last) release_element(s, to, r, step);
}
void ag_spz_put_again(Specialise *s, Block *to, const Ins *load, Ref step) {
    add(to, ag_ins_clone(s->k, load))->e[0] = ag_spz_stage(s, element_ring(s, load), step);
}
void ag_spz_release_elements(Specialise *s, Block *to, Ref step) {
    for (int e = 0; e < s->nelement; e++) release_element(s, to, &s->element[e], step);
}

/* ---- taking the step apart */
static bool is_touched(const Parts *p, int v) {
    bool touched = false;
    for (int i = 0; i < p->noutput; i++) touched |= v == p->output[i]->dst || v == p->output[i]->a;
    return touched;
}
static Block *block_of(Parts *p, const Ins *i, bool behind) {
    if (behind && !is_touched(p, i->dst)) return &p->end;
    if (i->op == TI_FENCE || i->op == TI_SYNC) return &p->show;
    return is_touched(p, i->dst) ? &p->touches : &p->softmax;
}

Parts ag_spz_take_apart(Specialise *s, const Block *step) {
    Parts p = {0};
    int left = 0; /* products behind the softmax that are still to come */
    for (const Ins *i = step->first; i; i = i->next) {
        if (i->op != TI_MMA) continue;
        assert(p.nscores < PRODUCTS && p.noutput < PRODUCTS);
        Ins *c = ag_ins_clone(s->k, i);
        *(i->trans ? &p.scores[p.nscores++] : &p.output[p.noutput++]) = c;
    }
    left = p.noutput;
    for (const Ins *i = step->first; i; i = i->next) {
        if (i->op == TI_MMA) left -= !i->trans;
        if (i->op != TI_COPY && i->op != TI_MMA) add(block_of(&p, i, left == 0), ag_ins_clone(s->k, i));
    }
    if (s->ref < 0) return p;
    Ins *ref = add(&p.end, ag_ins(s->k, TI_MAP, s->ref));
    ref->e[0] = s->ref_of;
    ref->note = "what speculative steps take their weights under";
    return p;
}

/* Clones of a block's instructions with j replaced by `tile`. */
typedef struct Swap {
    Specialise *s;
    Ref tile;
} Swap;
static Ref swap_tile(void *payload, Ref r) {
    const Swap *x = payload;
    return r == x->s->j ? x->tile : 0;
}
Ref ag_spz_at_tile(Specialise *s, Ref e, Ref tile) {
    Swap x = {s, tile};
    return ag_node_rebuild(&s->k->nodes, &s->k->nodes, e, swap_tile, &x);
}
static void retarget(Specialise *s, Ins *i, Ref tile) {
    for (int e = 0; e < LEN(i->e); e++)
        if (i->e[e]) i->e[e] = ag_spz_at_tile(s, i->e[e], tile);
    for (Ins *c = i->body.first; c; c = c->next) retarget(s, c, tile);
}
void ag_spz_append(Specialise *s, Block *to, const Block *from, Ref tile) {
    for (const Ins *i = from->first; i; i = i->next) {
        Ins *c = add(to, ag_ins_clone(s->k, i));
        if (tile) retarget(s, c, tile);
    }
}

/* ---- products */
static void products(Specialise *s, Block *to, Ins *const *mma, int n, const Ring *r, Ref step, Ref query) {
    for (int i = 0; i < n; i++) {
        Ins *c = add(to, ag_ins_clone(s->k, mma[i]));
        c->async = true;
        c->note = NULL; /* the wait for its tile has it */
        c->e[0] = ag_spz_stage(s, r, step);
        if (query) c->e[1] = query;
    }
    ag_spz_put(s, to, TI_MMA_COMMIT, NULL);
}
void ag_spz_scores(Specialise *s, Block *to, const Parts *p, Ref step, Ref round, const char *what) {
    wait_full(s, to, &s->ring[0], step, what);
    products(s, to, p->scores, p->nscores, &s->ring[0], step, round ? ag_spz_stage(s, &s->query, round) : 0);
}
void ag_spz_weighted(Specialise *s, Block *to, const Parts *p, Ref step, const char *what) {
    wait_full(s, to, &s->ring[1], step, what);
    products(s, to, p->output, p->noutput, &s->ring[1], step, 0);
}

/* ---- steps */

/* The key tile of a step whose K is there: before its stage is released, which holds the slot too. */
void ag_spz_get_key_tile(Specialise *s, Block *to, Ref step) {
    if (s->key_slot < 0) return;
    Ins *get = ag_spz_put(s, to, TI_GET, NULL);
    get->dst = s->key_tile;
    get->a = s->key_slot;
    get->e[0] = ag_spz_stage(s, &s->ring[0], step);
}

/* What the step multiplies older sums with is left out: they are 0 before the first tile. */
static bool rescales(const Kernel *k, const Ins *i) {
    const Node *n = &k->nodes.n[i->e[0]];
    if (i->op != TI_MAP || k->val[i->dst].carry < 0 || n->op != OP_MUL) return false;
    const Node *x = &k->nodes.n[n->arg[0]];
    return x->op == OP_VAL && x->index == i->dst;
}
static void append_unscaled(Specialise *s, Block *to, const Block *from, Ref tile, Ref step) {
    Block kept = {0};
    for (const Ins *i = from->first; i; i = i->next)
        if (!rescales(s->k, i)) ag_spz_put_clone(s, &kept, i, step, true);
    ag_spz_append(s, to, &kept, tile);
}
static bool reads_row(const Kernel *k, const Ins *x, int row) {
    bool read = x->a == row || x->b == row || (x->e[0] && ag_expr_uses(k, x->e[0], OP_VAL, row));
    for (const Ins *i = x->body.first; i && !read; i = i->next) read = reads_row(k, i, row);
    return read;
}
static void remove_unread_rows(Specialise *s, Block *b) {
    Kernel *k = s->k;
    for (Ins *i = b->last, *prev; i; i = prev) {
        bool read = false;
        prev = i->prev;
        for (const Ins *x = i->next; x && !read; x = x->next) read = reads_row(k, x, i->dst);
        if (i->op == TI_MAP && k->val[i->dst].space == SPACE_ROW && k->val[i->dst].carry < 0 && i->dst != s->ref && !read) ag_block_remove(b, i);
    }
}

/* Does the mask hide keys of this tile? */
static Ref masked_step(Specialise *s, Ref tile) {
    const Kernel *k = s->k;
    Ref above = ag_spz_op(s, OP_GE, tile, k->plain_hi);
    return k->plain_lo == k->lo ? above : ag_spz_op(s, OP_OR, above, ag_spz_op(s, OP_LT, tile, k->plain_lo));
}

/* Softmax of the first key tile, whose scores are there. */
void ag_spz_first(Specialise *s, Block *to, const Parts *p) {
    Kernel *k = s->k;
    Ref tile = ag_spz_op(s, OP_SUB, k->hi, ag_spz_num(s, 1));
    Block all = {0};
    Ref step = s->base ? s->base : ag_spz_num(s, 0);
    Ins *before = to->last;
    ag_spz_get_key_tile(s, to, step);
    ag_spz_release(s, to, &s->ring[0], step);
    (before ? before->next : to->first)->note = "---- softmax of the first key tile: there are no older sums";
    append_unscaled(s, &all, &p->softmax, tile, step);
    append_unscaled(s, &all, &p->touches, tile, step);
    ag_spz_append(s, &all, &p->show, tile);
    ag_spz_append(s, &all, &p->end, tile);
    remove_unread_rows(s, &all);
    if (k->plain_hi && s->sched->f[F_LOOP_FORM].v == 0) ag_flag_guard(k, &all, masked_step(s, tile));
    ag_spz_append(s, to, &all, 0);
}

Pair ag_spz_issue_both(Specialise *s, Block *to, const Parts *p) {
    Ref step = ag_spz_let(s, to, "step", ag_spz_step(s, s->j), "---- both products: scores of this step, weighted values of the one before");
    Ref before = ag_spz_let(s, to, "before", ag_spz_op(s, OP_SUB, step, ag_spz_num(s, 1)), NULL);
    if (s->turns >= 0) ag_spz_put(s, to, TI_TAKE_TURN, NULL)->n = s->turns;
    ag_spz_scores(s, to, p, step, s->round, "scores");
    ag_spz_weighted(s, to, p, before, "weighted values");
    if (s->turns >= 0) ag_spz_put(s, to, TI_PASS_TURN, NULL)->n = s->turns;
    return (Pair){step, before};
}

void ag_spz_wait_scores(Specialise *s, Block *to) { ag_spz_mma_wait(s, to, 1, "---- when the scores are done: softmax, beside the weighted values"); }
void ag_spz_wait_weighted(Specialise *s, Block *to, const Parts *p) {
    const Val *acc = &s->k->val[p->output[0]->dst], *weights = &s->k->val[p->output[0]->a];
    const char *note =
        ag_fmt(s->k->arena, "---- when the weighted values are done: %.*s and %.*s may change", STRF(acc->name), STRF(weights->name)).s;
    ag_spz_mma_wait(s, to, 0, note);
}

/* Elements that the step reads are asked for before its products; then the rest of the softmax. */
static bool is_fetch(const Specialise *s, const Ins *i) { return i->op == TI_MAP && s->k->val[i->dst].fetched; }
static void append_fetches(Specialise *s, Block *to, const Block *softmax, bool fetches, Ref step) {
    for (const Ins *i = softmax->first; i; i = i->next)
        if (is_fetch(s, i) == fetches) ag_spz_put_clone(s, to, i, step, true);
}

/* Elements that are read ahead of the products: where that takes the key tile, it is waited for. */
static bool fetch_ahead(Specialise *s, Block *to, const Parts *p) {
    bool asks = false;
    for (const Ins *i = p->softmax.first; i; i = i->next) asks |= s->key_slot >= 0 && is_fetch(s, i);
    if (asks) {
        wait_full(s, to, &s->ring[0], ag_spz_step(s, s->j), "which keys");
        ag_spz_get_key_tile(s, to, ag_spz_step(s, s->j));
    }
    append_fetches(s, to, &p->softmax, true, 0);
    return asks;
}

static void overlapped(Specialise *s, Block *to, const Parts *p) {
    bool known = fetch_ahead(s, to, p);
    Pair issued = ag_spz_issue_both(s, to, p);
    ag_spz_wait_scores(s, to);
    if (!known) ag_spz_get_key_tile(s, to, issued.scores);
    ag_spz_release(s, to, &s->ring[0], issued.scores);
    append_fetches(s, to, &p->softmax, false, issued.scores);
    ag_spz_wait_weighted(s, to, p);
    ag_spz_release(s, to, &s->ring[1], issued.weighted);
    ag_spz_append(s, to, &p->touches, 0);
    ag_spz_append(s, to, &p->show, 0);
    ag_spz_append(s, to, &p->end, 0);
}

static void in_order(Specialise *s, Block *to, const Parts *p) {
    bool known = fetch_ahead(s, to, p);
    Ref step = ag_spz_let(s, to, "step", ag_spz_step(s, s->j), NULL);
    ag_spz_scores(s, to, p, step, s->round, "scores");
    ag_spz_mma_wait(s, to, 0, NULL);
    if (!known) ag_spz_get_key_tile(s, to, step);
    ag_spz_release(s, to, &s->ring[0], step);
    append_fetches(s, to, &p->softmax, false, step);
    ag_spz_append(s, to, &p->touches, 0);
    ag_spz_append(s, to, &p->show, 0);
    ag_spz_weighted(s, to, p, step, "weighted values");
    ag_spz_mma_wait(s, to, 0, NULL);
    ag_spz_release(s, to, &s->ring[1], step);
    ag_spz_append(s, to, &p->end, 0);
}

void ag_spz_loops(Specialise *s, Block *to, Ins *first, Ins *last) {
    for (const Ins *i = first; i; i = i == last ? NULL : i->next) {
        if (!ag_spz_is_key_loop(s, i)) {
            add(to, ag_ins_clone(s->k, i));
            continue;
        }
        Parts p = ag_spz_take_apart(s, &i->body);
        bool plain = i->e[0] == s->k->plain_hi && i->e[1] == s->k->plain_lo, flagged = s->k->plain_hi && s->sched->f[F_LOOP_FORM].v == 1;
        Ins *loop = add(to, ag_ins(s->k, TI_LOOP, i->dst));
        loop->n = i->n;
        loop->note =
            ag_fmt(s->k->arena, "---- %s%s", i->note ? i->note : "key tiles", (plain || flagged) && s->ref >= 0 ? ": speculative steps" : "").s;
        loop->span = i->span;
        loop->e[0] = i->e[0];
        loop->e[1] = i->e[1];
        if (!s->overlap) {
            in_order(s, &loop->body, &p);
            continue;
        }
        Ref second = ag_spz_op(s, OP_SUB, s->k->hi, ag_spz_num(s, 1)); /* from the second tile on */
        loop->e[0] = i->e[0] == s->k->hi ? second : ag_spz_op(s, OP_MIN, i->e[0], second);
        if ((plain || flagged) && s->ref >= 0)
            ag_spz_speculative(s, &loop->body, &p, flagged ? masked_step(s, s->j) : 0);
        else
            overlapped(s, &loop->body, &p);
    }
}

/* ---- the whole */

static int barrier(Specialise *s, const char *name, BarrierKind kind, int stages, int count) {
    Kernel *k = s->k;
    assert(k->nbarrier < LEN(k->barrier));
    k->barrier[k->nbarrier] = (Barrier){.name = name, .kind = kind, .stages = stages, .count = count, .offset = -1};
    return k->nbarrier++;
}
static const char *named(Specialise *s, int val, const char *what) { return ag_fmt(s->k->arena, "%.*s_%s", STRF(s->k->val[val].name), what).s; }

/* A tile that is there already has a copy in each of the key loops, all alike: the last one counts. */
static void add_tile(Ring *r, Ins *copy) {
    if (!r->copy) *r = (Ring){.val = copy->dst, .full = -1, .empty = -1};
    if (r->val == copy->dst) {
        r->copy = copy;
        return;
    }
    int i = 0;
    while (i < r->nmore && r->more[i] != copy->dst) i++;
    assert(i < RING_TILES);
    r->more[i] = copy->dst;
    r->more_copy[i] = copy;
    if (i == r->nmore) r->nmore++;
}

static void find_element(Specialise *s, Ins *copy) {
    for (int e = 0; e < s->nelement; e++)
        if (s->element[e].val == copy->dst) return;
    assert(s->nelement < LEN(s->element));
    s->element[s->nelement++] = (Ring){.val = copy->dst, .copy = copy, .full = -1, .empty = -1};
}

static void find_copies(Specialise *s) {
    for (Ins *i = s->body->first, *next; i; i = next) {
        next = i->next;
        if (i->op == TI_COPY) {
            add_tile(&s->query, i);
            ag_block_remove(s->body, i);
        }
    }
    for (Ins *l = s->body->first; l; l = l->next) {
        for (Ins *i = l->body.first; ag_spz_is_key_loop(s, l) && i; i = i->next) {
            if (i->op == TI_COPY && s->k->val[i->dst].elements) find_element(s, i);
            if (i->op != TI_MMA) continue;
            for (Ins *c = l->body.first; c; c = c->next)
                if (c->op == TI_COPY && c->dst == i->b) add_tile(&s->ring[i->trans ? 0 : 1], c);
        }
    }
}

/* The key tile of a step, but for copies: what the loading thread says. */
static Ref told_tile(void *payload, Ref r) {
    Specialise *s = payload;
    if (s->k->nodes.n[r].op != OP_TILE) return 0;
    if (s->key_tile < 0) {
        s->key_tile = ag_val_scalar(s->k, "key_tile", T_INT);
        s->k->val[s->key_tile].nonneg = true;
    }
    return ag_kval(s->k, s->key_tile);
}
static void tell_tiles(Specialise *s, Block *b) {
    for (Ins *i = b->first; i; i = i->next) {
        if (i->op == TI_COPY) continue;
        for (int e = 0; e < LEN(i->e); e++)
            if (i->e[e]) i->e[e] = ag_node_rebuild(&s->k->nodes, &s->k->nodes, i->e[e], told_tile, s);
        tell_tiles(s, &i->body);
    }
}

static void make_ring(Specialise *s, Ring *r, FieldId stages, bool empty) {
    Kernel *k = s->k;
    for (int i = -1; i < r->nmore; i++) {
        Val *x = &k->val[i < 0 ? r->val : r->more[i]];
        x->stages = (int)s->sched->f[stages].v;
        x->span = s->sched->f[stages].span;
        x->panels |= !x->elements;
    }
    const Val *v = &k->val[r->val];
    r->full = barrier(s, named(s, r->val, "full"), BARRIER_MBAR, v->stages, 1);
    if (empty) r->empty = barrier(s, named(s, r->val, "empty"), BARRIER_MBAR, v->stages, k->role[0].warps);
}

/* The map that rounds into an operand becomes one that stages, shown to the products of the warpgroup. */
static void stage_operand(Specialise *s, Block *b, Ins *map, int barrier) {
    Kernel *k = s->k;
    Val *p = &k->val[map->dst];
    p->space = SPACE_SHARED;
    p->panels = true;
    p->stages = 1;
    p->swizzle = p->offset = p->bytes = -1;
    map->op = TI_STAGE;
    map->a = k->nodes.n[map->e[0]].index; /* what is rounded */
    for (int e = 0; e < LEN(map->e); e++) map->e[e] = e ? 0 : ag_spz_num(s, 0);
    Ins *fence = ag_ins(k, TI_FENCE, -1), *sync = ag_ins(k, TI_SYNC, -1);
    fence->note = "for the second product";
    sync->n = barrier;
    ag_block_insert_after(b, map, fence);
    ag_block_insert_after(b, fence, sync);
}

/* The weights of each step go to a tile in shared memory, which the second product reads: instead of into an operand in registers. */
static void stage_weights(Specialise *s, int barrier) {
    for (Ins *l = s->body->first; l; l = l->next)
        for (Ins *i = l->body.first; ag_spz_is_key_loop(s, l) && i; i = i->next) {
            if (i->op == TI_MAP && s->k->val[i->dst].layout == LAYOUT_A) stage_operand(s, &l->body, i, barrier);
        }
}

/* Fragments that one block of the role's code writes and another reads. */
static void mark_lasting(Specialise *s) {
    for (Ins *l = s->body->first; l; l = l->next)
        for (Ins *i = l->body.first; ag_spz_is_key_loop(s, l) && i; i = i->next) {
            if (i->op == TI_MMA && !i->trans && s->k->val[i->a].space == SPACE_FRAG) s->k->val[i->a].lasting = true;
            if (i->op == TI_MMA && i->trans && s->overlap) s->k->val[i->dst].lasting = true;
        }
}

static void make_roles(Specialise *s) {
    Kernel *k = s->k;
    int warps = k->role[0].warps;
    k->role[0].name = "math";
    k->role[0].regs = (int)s->sched->f[F_REGS_MATH].v;
    k->role[1] = (Role){.name = "load", .warp0 = warps, .warps = 4, .regs = (int)s->sched->f[F_REGS_LOAD].v, .one_thread = true};
    k->nrole = 2;
    k->threads = 32 * (warps + 4);
}

/* ---- what in the schedule an instruction comes from, for messages about the protocol */

static FieldId field_of_barrier(const Specialise *s, int barrier) {
    if (barrier == s->ring[0].full || barrier == s->ring[0].empty) return F_K_STAGES;
    if (barrier == s->ring[1].full || barrier == s->ring[1].empty) return F_V_STAGES;
    for (int e = 0; e < s->nelement; e++)
        if (barrier == s->element[e].full || barrier == s->element[e].empty) return F_E_STAGES;
    return barrier == s->turns ? F_TURNS : barrier == s->query.full || barrier == s->query.empty ? F_Q_STAGES : F_O_STORE;
}

/* F_COUNT: none. */
static FieldId field_behind(const Specialise *s, const Ins *i) {
    switch (i->op) {
    case TI_COPY: return field_of_barrier(s, i->bar);
    case TI_EXPECT:
    case TI_WAIT_BAR:
    case TI_ARRIVE:
    case TI_TAKE_TURN:
    case TI_PASS_TURN:
    case TI_SYNC: return field_of_barrier(s, i->n);
    case TI_MMA: return i->trans ? F_K_STAGES : F_V_STAGES;
    case TI_LOAD: return F_E_STAGES;
    case TI_STORE:
    case TI_STORE_WAIT: return F_O_STORE;
    case TI_PUT:
    case TI_GET:
    case TI_FETCH:
    case TI_RESET: return F_PERSISTENT;
    case TI_STAGE:
    case TI_FENCE: return F_P_OPERAND;
    case TI_MMA_COMMIT:
    case TI_MMA_WAIT: return F_OVERLAP;
    default: return F_COUNT;
    }
}

static void add_spans(const Specialise *s, Block *b) {
    for (Ins *i = b->first; i; i = i->next) {
        FieldId field = field_behind(s, i);
        if (!i->span.file && field != F_COUNT) i->span = s->sched->f[field].span;
        add_spans(s, &i->body);
    }
}

/* Plain steps often do not ask which keys they are about. */
static void remove_unread_tiles(const Specialise *s, Block *b) {
    for (Ins *i = b->first, *next; i; i = next) {
        next = i->next;
        remove_unread_tiles(s, &i->body);
        if (i->op == TI_GET && i->dst == s->key_tile && !ag_reads_val(s->k, b, s->key_tile)) ag_block_remove(b, i);
    }
}

/* Roles, mbarriers and the order of asynchronous products        needs tiled, split   makes pipelined */
void ag_specialise(Fn *fn) {
    Kernel *k = fn->kernel;
    const Schedule *sched = fn->sched;
    Specialise s = {.k = k,
                    .sched = sched,
                    .body = &k->role[0].body,
                    .overlap = sched->f[F_OVERLAP].v == 1,
                    .speculate = sched->f[F_SOFTMAX].v == 1,
                    .forward = sched->f[F_DIRECTION].v == 1,
                    .persistent = sched->f[F_PERSISTENT].v != PERSISTENT_NONE,
                    .dynamic = sched->f[F_PERSISTENT].v == PERSISTENT_DYNAMIC,
                    .chained = sched->f[F_Q_STAGES].v > 1,
                    .ref = -1,
                    .turns = -1,
                    .slot = -1,
                    .key_tile = -1,
                    .key_slot = -1,
                    .j = ag_kval(k, k->key_loop)};
    find_copies(&s);
    if (!s.query.copy || !s.ring[0].copy) { /* nothing reads the product */
        ag_unsupported(k->d, k->spec->score ? k->spec->score->span : k->spec->span,
                       "a score that does not depend on 's' has no kernel with mma.family wgmma; give a schedule of mma_sync, or the target sm_90");
        return;
    }
    assert(s.ring[1].copy);
    make_roles(&s);
    if (k->tiles) tell_tiles(&s, s.body);
    if (s.key_tile >= 0) s.key_slot = ag_spz_slot(&s, "key_slot", F_K_STAGES);
    make_ring(&s, &s.query, F_Q_STAGES, s.persistent);
    make_ring(&s, &s.ring[0], F_K_STAGES, true);
    make_ring(&s, &s.ring[1], F_V_STAGES, true);
    for (int e = 0; e < s.nelement; e++) make_ring(&s, &s.element[e], F_E_STAGES, true);
    if (sched->f[F_TURNS].v) s.turns = barrier(&s, "turn", BARRIER_TURNS, 1, 0);
    bool staged = sched->f[F_P_OPERAND].v == WEIGHTS_SMEM;
    if (staged || sched->f[F_O_STORE].v == STORE_SMEM) barrier(&s, "warpgroup", BARRIER_WARPGROUP, 1, 0);
    if (staged) stage_weights(&s, k->nbarrier - 1);
    if (s.persistent) ag_spz_find_places(&s);
    k->persistent = s.persistent;
    k->counter = s.dynamic;
    mark_lasting(&s);
    ag_spz_load(&s, &k->role[1]);
    ag_spz_math(&s);
    if (s.key_tile >= 0) remove_unread_tiles(&s, &k->role[0].body);
    for (int r = 0; r < k->nrole; r++) {
        ag_remove_dead_lets(k, &k->role[r].body);
        add_spans(&s, &k->role[r].body);
    }
}
