/* specialise.c: the pipeline of the wgmma path: a loading role feeds rings of key tiles to a computing role through mbarriers.
 *
 * The synchronous kernel of the tile pass has one role.  Here it becomes two:
 *   load   one thread of a warpgroup of its own: for each key tile waits until the stage is empty, announces the bytes and issues the TMA copy
 *   math   the warpgroups that compute: waits until a stage is full, computes, and releases it when the products that read it are done (speculative: K once the weights are verified)
 * Every ring has two arrays of mbarriers, full (one arrival, and the bytes) and empty (one arrival per warp of math).  Step i of the key loop, counted from 0, uses
 * stage i mod s in phase i / s, so no counter is carried: both follow from the tile number j.
 *
 * pipeline.overlap: the scores of tile j are computed beside the weighted values of the tile before.  The loop is rotated for that:
 *   first tile      scores; softmax
 *   each next tile  scores of j  and  output += P V of the tile before  in flight; softmax of j beside the second; then what touches output or P
 *   after the loop  output += P V of the last tile
 *
 * numerics.softmax speculative: a plain step takes its weights under the reference of the steps before, P = 2^(S - ref): no maximum, no shuffles, no rescaling.
 * The row sums, which are needed anyway, verify it: below 2^40 (fp16: 2^14) no weight was too large for its type. A warp in which one is not does the step
 * again: it computes its scores once more from the same K tile, which is therefore released only now, and takes the exact step. A row that has seen
 * no key has NaN as its reference, so speculation on it always fails. (Measured by hand-made kernels: 9 to 14 % faster than exact.) */
#include <assert.h>

#include "compile.h"

typedef struct Ring {
    int val, full, empty; /* shared value, barriers */
    Ins *copy;
} Ring;

typedef struct Specialise {
    Kernel *k;
    Block *body;  /* of math */
    Ring ring[2]; /* [0] of the scores' operand, [1] of the weighted values' */
    int query, q_full;
    Ins *q_copy;
    bool overlap, speculate, forward;
    Ref j; /* VAL of the key loop's variable */
} Specialise;

static Ref num(Specialise *s, int64_t v) { return ag_node_int(&s->k->nodes, v); }
static Ref op2(Specialise *s, Op op, Ref a, Ref b) { return ag_node_op(&s->k->nodes, op, a, b, 0, (Span){0}); }
static bool is_key_loop(const Specialise *s, const Ins *i) { return i->op == TI_LOOP && i->dst == s->k->key_loop; }
static Ins *add(Block *b, Ins *i) {
    ag_block_append(b, i);
    return i;
}
static Ins *put(Specialise *s, Block *b, TileOp op, const char *note) {
    Ins *i = add(b, ag_ins(s->k, op, -1));
    i->note = note;
    return i;
}

static int barrier(Specialise *s, const char *name, BarrierKind kind, int stages, int count) {
    s->k->barrier[s->k->nbarrier] = (Barrier){.name = name, .kind = kind, .stages = stages, .count = count, .offset = -1};
    return s->k->nbarrier++;
}
static const char *named(Specialise *s, int val, const char *what) { return ag_fmt(s->k->arena, "%.*s_%s", STRF(s->k->val[val].name), what).s; }

/* ---- steps: tile j is step hi - 1 - j, or j - lo where the loop goes forward */
static int stages(const Specialise *s, int r) { return s->k->val[s->ring[r].val].stages; }
static Ref step_of(Specialise *s, Ref j) {
    if (s->forward) return op2(s, OP_SUB, j, s->k->lo);
    return op2(s, OP_SUB, op2(s, OP_SUB, s->k->hi, num(s, 1)), j);
}
/* A scalar that holds the number of a step. */
static Ref let_step(Specialise *s, Block *b, const char *name, Ref step) {
    int v = ag_val_scalar(s->k, name, T_INT);
    s->k->val[v].nonneg = true; /* j < hi, and before the first step there is none */
    Ins *i = add(b, ag_ins(s->k, TI_LET, v));
    i->e[0] = step;
    return ag_kval(s->k, v);
}
static Ref stage_of(Specialise *s, int r, Ref step) {
    return stages(s, r) == 1 || step == num(s, 0) ? num(s, 0) : op2(s, OP_MOD, step, num(s, stages(s, r)));
}
static Ref phase_of(Specialise *s, int r, Ref step) {
    if (step == num(s, 0)) return step;
    return op2(s, OP_MOD, op2(s, OP_FLOORDIV, step, num(s, stages(s, r))), num(s, 2));
}

static void wait_full(Specialise *s, Block *b, int r, Ref step, const char *note) {
    Ins *i = put(s, b, TI_WAIT_BAR, note);
    i->n = s->ring[r].full;
    i->e[0] = stage_of(s, r, step);
    i->e[1] = phase_of(s, r, step);
}
static void release(Specialise *s, Block *b, int r, Ref step) {
    Ins *i = put(s, b, TI_ARRIVE, NULL);
    i->n = s->ring[r].empty;
    i->e[0] = stage_of(s, r, step);
}
static void mma_wait(Specialise *s, Block *b, int n) { put(s, b, TI_MMA_WAIT, NULL)->n = n; }

/* ---- taking the step apart */
typedef struct Parts {
    Ins *scores, *output;        /* the two products */
    Block softmax, touches, end; /* between them: what neither output nor P needs; what writes them; behind the second */
} Parts;

static Parts take_apart(Specialise *s, const Block *step) {
    Parts p = {0};
    int acc = -1, weights = -1;
    for (const Ins *i = step->first; i; i = i->next)
        if (i->op == TI_MMA && !i->trans) {
            acc = i->dst;
            weights = i->a;
        }
    for (const Ins *i = step->first; i; i = i->next) {
        if (i->op == TI_COPY) continue;
        Ins *c = ag_ins_clone(s->k, i);
        if (i->op == TI_MMA)
            *(i->trans ? &p.scores : &p.output) = c;
        else
            add(p.output ? &p.end : i->dst == acc || i->dst == weights ? &p.touches : &p.softmax, c);
    }
    return p;
}

/* Clones of a block's instructions with j replaced by `tile` (0: as it is). */
typedef struct Swap {
    Specialise *s;
    Ref tile;
} Swap;
static Ref swap_tile(void *payload, Ref r) {
    const Swap *x = payload;
    return r == x->s->j ? x->tile : 0;
}
static void retarget(Specialise *s, Ins *i, Ref tile) {
    Swap x = {s, tile};
    for (int e = 0; e < LEN(i->e); e++)
        if (i->e[e]) i->e[e] = ag_node_rebuild(&s->k->nodes, &s->k->nodes, i->e[e], swap_tile, &x);
    for (Ins *c = i->body.first; c; c = c->next) retarget(s, c, tile);
}
static void append(Specialise *s, Block *to, const Block *from, Ref tile) {
    for (const Ins *i = from->first; i; i = i->next) {
        Ins *c = add(to, ag_ins_clone(s->k, i));
        if (tile) retarget(s, c, tile);
    }
}

/* One asynchronous product of the given step, in a group of its own. */
static void product(Specialise *s, Block *to, const Ins *mma, int r, Ref step) {
    Ins *c = add(to, ag_ins_clone(s->k, mma));
    c->async = true;
    c->e[0] = stage_of(s, r, step);
    put(s, to, TI_MMA_COMMIT, NULL);
}

/* ---- math */
static void scores(Specialise *s, Block *to, const Parts *p, Ref step) {
    wait_full(s, to, 0, step, ag_fmt(s->k->arena, "---- scores, when %s is there", s->k->val[s->ring[0].val].name.s).s);
    product(s, to, p->scores, 0, step);
}
static void weighted_values(Specialise *s, Block *to, const Parts *p, Ref step) {
    wait_full(s, to, 1, step, ag_fmt(s->k->arena, "---- weighted values, when %s is there", s->k->val[s->ring[1].val].name.s).s);
    product(s, to, p->output, 1, step);
}

static void first_tile(Specialise *s, Block *to, const Parts *p) {
    Ref tile = op2(s, OP_SUB, s->k->hi, num(s, 1)), step = num(s, 0);
    Ins *q = put(s, to, TI_WAIT_BAR, NULL);
    q->n = s->q_full;
    q->e[0] = q->e[1] = num(s, 0);
    scores(s, to, p, step);
    mma_wait(s, to, 0);
    release(s, to, 0, step);
    append(s, to, &p->softmax, tile);
    append(s, to, &p->touches, tile);
    append(s, to, &p->end, tile);
}

/* ---- speculation */

/* The instructions of an exact softmax that speculation needs to know. */
typedef struct Exact {
    const Ins *max, *exp, *sum; /* mx_new = max(mx, S);  S = 2^(S - r);  den = sum(den, S) */
} Exact;

static bool find_exact(const Parts *p, Exact *x) {
    *x = (Exact){0};
    for (const Ins *i = p->softmax.first; i; i = i->next) {
        if (i->op == TI_REDUCE) *(i->reduce == OP_RMAX ? &x->max : &x->sum) = i;
        if (x->max && i->op == TI_MAP && i->dst == x->max->a) x->exp = i;
    }
    return x->max && x->exp && x->sum && x->max->a == p->scores->dst && x->sum->a == p->scores->dst;
}

/* Expressions of the exact step under the old maximum: mx for mx_new, NaN for a row without keys, and row values computed on the way spelled out. */
typedef struct Old {
    Specialise *s;
    const Parts *p;
    const Exact *x;
} Old;
static Ref under_old(void *payload, Ref r) {
    const Old *o = payload;
    Kernel *k = o->s->k;
    const Node n = k->nodes.n[r];
    if (n.op == OP_FINITE) return ag_node_op(&k->nodes, OP_SEEN, ag_node_rebuild(&k->nodes, &k->nodes, n.arg[0], under_old, payload), 0, 0, n.span);
    if (n.op != OP_VAL) return 0;
    if (n.index == o->x->max->dst) return ag_kval(k, o->x->max->b);
    for (const Ins *i = o->p->softmax.first; i; i = i->next)
        if (i->op == TI_MAP && i->dst == n.index && k->val[n.index].space == SPACE_ROW)
            return ag_node_rebuild(&k->nodes, &k->nodes, i->e[0], under_old, payload);
    return 0;
}

static int row_like(Specialise *s, int val, const char *name) {
    Val v = s->k->val[val];
    v.name = ag_str(name);
    v.reference = v.carry = -1;
    return ag_val(s->k, v);
}

/* The exact step for the warps that must: scores once more, softmax, and what follows. */
static void mend(Specialise *s, Block *to, const Parts *p, Ref step, int sum) {
    Kernel *k = s->k;
    double limit = k->spec->dtype == DT_F16 ? 0x1p14 : 0x1p40;
    Ins *any = put(s, to, TI_ANY, "---- where speculation went too far the step is done again exactly");
    any->e[0] = ag_node_op(&k->nodes, OP_NOT, op2(s, OP_LT, ag_kval(k, sum), ag_node_float(&k->nodes, limit)), 0, 0, (Span){0});
    Ins *scores = add(&any->body, ag_ins_clone(k, p->scores));
    scores->note = NULL;
    scores->e[0] = stage_of(s, 0, step);
    append(s, &any->body, &p->softmax, 0);
    append(s, &any->body, &p->touches, 0);
    append(s, &any->body, &p->end, 0);
    Ins *none = put(s, &any->body, TI_FILL, NULL);
    none->dst = sum;
    none->e[0] = ag_node_float(&k->nodes, 0);
}

static void speculative(Specialise *s, Block *to, const Parts *p, const Exact *x) {
    Kernel *k = s->k;
    Old old = {s, p, x};
    Ref step = let_step(s, to, "step", step_of(s, s->j)), before = let_step(s, to, "before", op2(s, OP_SUB, step, num(s, 1)));
    scores(s, to, p, step);
    weighted_values(s, to, p, before);
    mma_wait(s, to, 1);
    for (const Ins *i = p->softmax.first; i != x->max; i = i->next) add(to, ag_ins_clone(k, i)); /* what the spec makes of the scores */
    Ins *exp = add(to, ag_ins_clone(k, x->exp));
    exp->note = "---- weights under the maximum so far";
    exp->e[0] = ag_node_rebuild(&k->nodes, &k->nodes, x->exp->e[0], under_old, &old);
    int sum = row_like(s, x->sum->dst, "step_sum");
    Ins *total = add(to, ag_ins_clone(k, x->sum));
    total->dst = sum;
    total->b = -1;
    mma_wait(s, to, 0);
    release(s, to, 1, before);
    for (const Ins *i = p->touches.first; i; i = i->next)
        if (i->dst == p->output->a) add(to, ag_ins_clone(k, i));
    mend(s, to, p, step, sum);
    Ins *den = put(s, to, TI_MAP, NULL);
    den->dst = x->sum->dst;
    den->e[0] = op2(s, OP_ADD, ag_kval(k, den->dst), ag_kval(k, sum));
    release(s, to, 0, step); /* only now: a failed speculation reads K again */
}

/* Scores of j beside the weighted values of j + 1. */
static void overlapped(Specialise *s, Block *to, const Parts *p) {
    Ref step = let_step(s, to, "step", step_of(s, s->j)), before = let_step(s, to, "before", op2(s, OP_SUB, step, num(s, 1)));
    scores(s, to, p, step);
    weighted_values(s, to, p, before);
    mma_wait(s, to, 1);
    release(s, to, 0, step);
    append(s, to, &p->softmax, 0);
    mma_wait(s, to, 0);
    release(s, to, 1, before);
    append(s, to, &p->touches, 0);
    append(s, to, &p->end, 0);
}

static void in_order(Specialise *s, Block *to, const Parts *p) {
    Ref step = let_step(s, to, "step", step_of(s, s->j));
    scores(s, to, p, step);
    mma_wait(s, to, 0);
    release(s, to, 0, step);
    append(s, to, &p->softmax, 0);
    append(s, to, &p->touches, 0);
    weighted_values(s, to, p, step);
    mma_wait(s, to, 0);
    release(s, to, 1, step);
    append(s, to, &p->end, 0);
}

static Ins *if_any_key(Specialise *s, Ins *before) {
    Ins *i = ag_ins(s->k, TI_IF, -1);
    i->e[0] = op2(s, OP_GT, s->k->hi, s->k->lo);
    ag_block_insert_before(s->body, before, i);
    return i;
}

static void rewrite_loops(Specialise *s) {
    Ins *first = NULL, *last = NULL;
    for (Ins *i = s->body->first; i; i = i->next)
        if (is_key_loop(s, i)) {
            first = first ? first : i;
            last = i;
        }
    Parts whole = take_apart(s, &first->body); /* the first loop's steps have the guard */
    for (Ins *i = first; i; i = i == last ? NULL : i->next) {
        if (!is_key_loop(s, i)) continue;
        Parts p = take_apart(s, &i->body);
        bool plain = i->e[0] == s->k->plain_hi && i->e[1] == s->k->plain_lo;
        i->body = (Block){0};
        if (s->overlap) {
            Ref second = op2(s, OP_SUB, s->k->hi, num(s, 1)); /* from the second tile on */
            i->e[0] = i->e[0] == s->k->hi ? second : op2(s, OP_MIN, i->e[0], second);
            Exact x;
            if (plain && s->speculate && find_exact(&p, &x))
                speculative(s, &i->body, &p, &x);
            else
                overlapped(s, &i->body, &p);
        } else
            in_order(s, &i->body, &p);
    }
    if (s->overlap) {
        Ins *head = if_any_key(s, first), *tail = if_any_key(s, last->next);
        head->note = "---- the first key tile";
        first_tile(s, &head->body, &whole);
        tail->note = "---- the last weighted values";
        weighted_values(s, &tail->body, &whole, let_step(s, &tail->body, "step", step_of(s, s->k->lo)));
        mma_wait(s, &tail->body, 0);
    } else { /* Q is waited for before the first step */
        Ins *q = put(s, &if_any_key(s, first)->body, TI_WAIT_BAR, NULL);
        q->n = s->q_full;
        q->e[0] = q->e[1] = num(s, 0);
    }
}

/* ---- load */
static void load_tile(Specialise *s, Block *to, Ins *copy, int val, int full, Ref stage, Ref row) {
    const Val *v = &s->k->val[val];
    Ins *e = put(s, to, TI_EXPECT, NULL);
    e->n = full;
    e->e[0] = stage;
    e->e[1] = num(s, v->rows * ag_panel_cols(v->cols) * ag_dtype_bytes(v->type));
    Ins *c = add(to, ag_ins_clone(s->k, copy));
    c->async = true;
    c->bar = full;
    c->e[0] = stage;
    if (row) c->e[1] = row;
}

static void build_load(Specialise *s, Role *load) {
    Kernel *k = s->k;
    for (const Ins *i = s->body->first; i && !is_key_loop(s, i); i = i->next)
        if (i->op == TI_LET) add(&load->body, ag_ins_clone(k, i));
    Ins *any = put(s, &load->body, TI_IF, NULL); /* without keys nobody would wait for Q */
    any->e[0] = op2(s, OP_GT, k->hi, k->lo);
    load_tile(s, &any->body, s->q_copy, s->query, s->q_full, num(s, 0), 0);
    Ins *loop = add(&any->body, ag_ins(k, TI_LOOP, k->key_loop));
    loop->n = s->forward ? 1 : -1;
    loop->e[0] = s->forward ? k->lo : k->hi;
    loop->e[1] = s->forward ? k->hi : k->lo;
    Ref step = let_step(s, &loop->body, "step", step_of(s, s->j));
    for (int r = 0; r < 2; r++) {
        Ins *w = put(s, &loop->body, TI_WAIT_BAR, NULL);
        w->n = s->ring[r].empty;
        w->e[0] = stage_of(s, r, step);
        w->e[1] = op2(s, OP_SUB, num(s, 1), phase_of(s, r, step)); /* the first round finds every stage empty */
        load_tile(s, &loop->body, s->ring[r].copy, s->ring[r].val, s->ring[r].full, stage_of(s, r, step),
                  op2(s, OP_MUL, s->j, num(s, k->val[s->ring[r].val].rows)));
    }
}

/* ---- the whole */
static void find_copies(Specialise *s) {
    for (Ins *i = s->body->first, *next; i; i = next) {
        next = i->next;
        if (i->op == TI_COPY) {
            s->q_copy = i;
            s->query = i->dst;
            ag_block_remove(s->body, i);
        }
    }
    for (Ins *l = s->body->first; l; l = l->next) {
        for (Ins *i = l->body.first; is_key_loop(s, l) && i; i = i->next) {
            if (i->op != TI_MMA) continue;
            Ring *r = &s->ring[i->trans ? 0 : 1];
            r->val = i->b;
            for (Ins *c = l->body.first; c; c = c->next)
                if (c->op == TI_COPY && c->dst == i->b) r->copy = c;
        }
    }
}

static void store_by_warps(Specialise *s) {
    Kernel *k = s->k;
    for (Ins *i = s->body->first; i; i = i->next) {
        if (i->op != TI_STORE) continue;
        const Val *acc = &k->val[i->a];
        Ins *sync = ag_ins(k, TI_SYNC, -1);
        sync->n = barrier(s, "warpgroup", BARRIER_WARPGROUP, 1, 0);
        sync->note = "the warpgroup is past its last read of Q";
        ag_block_insert_before(s->body, i, sync);
        i->b = ag_val(k, (Val){.name = ag_str("O"),
                               .space = SPACE_SHARED,
                               .type = k->tensor[i->n].type,
                               .rows = acc->rows,
                               .cols = acc->cols,
                               .stages = 1,
                               .swizzle = -1,
                               .offset = -1,
                               .bytes = -1,
                               .over = ag_panel_cols(acc->cols) <= ag_panel_cols(k->val[s->query].cols) ? s->query : -1,
                               .panels = true,
                               .reference = -1,
                               .carry = -1});
    }
}

/* Roles, mbarriers and the order of asynchronous products        needs tiled, split   makes pipelined */
void ag_specialise(Fn *fn) {
    Kernel *k = fn->kernel;
    const Schedule *sched = fn->sched;
    Specialise s = {.k = k,
                    .body = &k->role[0].body,
                    .overlap = sched->f[F_OVERLAP].v == 1,
                    .speculate = sched->f[F_SOFTMAX].v == 1,
                    .forward = sched->f[F_DIRECTION].v == 1,
                    .j = ag_kval(k, k->key_loop)};
    find_copies(&s);
    assert(s.q_copy && s.ring[0].copy && s.ring[1].copy);
    int warps = k->role[0].warps;
    k->role[0].name = "math";
    k->role[0].regs = (int)sched->f[F_REGS_MATH].v;
    k->role[1] = (Role){.name = "load", .warp0 = warps, .warps = 4, .regs = (int)sched->f[F_REGS_LOAD].v, .one_thread = true};
    k->nrole = 2;
    k->threads = 32 * (warps + 4);
    k->val[s.query].panels = true;
    s.q_full = barrier(&s, named(&s, s.query, "full"), BARRIER_MBAR, 1, 1);
    for (int r = 0; r < 2; r++) {
        Val *v = &k->val[s.ring[r].val];
        v->stages = (int)sched->f[r ? F_V_STAGES : F_K_STAGES].v;
        v->span = sched->f[r ? F_V_STAGES : F_K_STAGES].span;
        v->panels = true;
        s.ring[r].full = barrier(&s, named(&s, s.ring[r].val, "full"), BARRIER_MBAR, v->stages, 1);
        s.ring[r].empty = barrier(&s, named(&s, s.ring[r].val, "empty"), BARRIER_MBAR, v->stages, warps);
    }
    build_load(&s, &k->role[1]);
    for (Ins *l = s.body->first; l; l = l->next)
        for (Ins *i = l->body.first; is_key_loop(&s, l) && i; i = i->next)
            if (i->op == TI_MMA && !i->trans) k->val[i->a].lasting = true;
    rewrite_loops(&s);
    if (sched->f[F_O_STORE].v == 0) store_by_warps(&s);
    for (int r = 0; r < k->nrole; r++) ag_remove_dead_lets(k, &k->role[r].body);
}
