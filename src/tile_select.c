/* tile_select.c: the kernel that computes the block lists of a selection.  Importance is summed up, ranked and forgotten step by step.
 *
 *   once    Q tile, LSE of its rows, empty lists
 *   step    pooled keys -> scores -> probabilities (by a pool: the scores themselves) -> sums over the query heads that share a list, in a table
 *           -> importance of the blocks that these keys complete -> those that are high enough into their query's list
 *   end     lists in ascending order of blocks
 *
 * A step takes tile.n pooled keys, which are a whole number of blocks; the last pooled keys of the step before still overlap its first blocks.  Steps go on to the
 * last block that a query of the tile may select, whether there are pooled keys or not. */
#include <assert.h>
#include <math.h>

#include "program.h"
#include "tiler.h"

enum { STEP_KEYS = 64, MAX_STEP_KEYS = 256, LIST_IN_LANE = 32 /* 8-byte keys that a lane has in registers */ };

typedef struct Select {
    const Fn *fn;
    const Derive *what, *pool;
    int index, branch; /* branch: -1 by a pool */
    Fn local;          /* the kernel's own schedule, and its Math IR */
    Schedule sched;
    Tiler t;
    int keys, lse; /* values: number of pooled keys, LSE of a row */
} Select;

static int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }
static int lcm(int a, int b) { return a / gcd(a, b) * b; }
static int round_up(int x, int to) { return (x + to - 1) / to * to; }
static int pow2_below(int x) { return x < 2 ? 1 : 2 * pow2_below(x / 2); }
static int group(const Select *s) { return s->what->per_head ? 1 : s->fn->spec->group; }

/* ---- sizes */

static Rank rank_of(const Select *s, int m, int warps, int n) {
    const Derive *w = s->what, *p = s->pool;
    int pack = group(s), rows = m / warps, unit = 1, share = 32 * warps / (m / pack);
    Rank r = {.size = p->size.n,
              .stride = p->stride.n,
              .block = w->block.n,
              .grain = gcd(gcd(p->size.n, p->stride.n), w->block.n),
              .blocks = (int)((int64_t)n * p->stride.n / w->block.n),
              .history = (p->size.n - 1) / p->stride.n,
              .count = w->count.n,
              .first = w->first.n,
              .local = w->local.n,
              .causal = w->causal};
    while (2 * unit <= 32 && pack % (2 * unit) == 0 && rows % (2 * unit) == 0) unit *= 2;
    r.unit = unit;
    r.lanes = pow2_below(share);
    if (r.lanes > 32) r.lanes = 32;
    if (r.lanes > pow2_below(r.blocks)) r.lanes = pow2_below(r.blocks);
    return r;
}

static int sum_rows(const Select *s, const Rank *r, int m) { return m / group(s) * (group(s) / r->unit); }
static int sum_cols(const Rank *r, int n) { return (r->history + n) | 1; } /* odd: lanes that read one column of different rows do not collide */

/* Bytes of shared memory, about as place will count them. */
static int shared_need(const Select *s, int m, int warps, int n) {
    Rank r = rank_of(s, m, warps, n);
    int d = round_up(s->fn->spec->D, 16) * ag_dtype_bytes(s->fn->spec->dtype), lists = m / group(s) * ag_rank_room(&r) * 8;
    return round_up(m * d, 128) + 2 * round_up(n * d, 128) + round_up(4 * sum_rows(s, &r, m) * sum_cols(&r, n), 128) + round_up(lists, 128);
}

static bool fits(const Select *s, int m, int warps, int n, int per_sm) {
    const Target *t = s->fn->target;
    if (group(s) > m) return false;
    int share = t->shared_sm / per_sm - 1024, room = share < t->shared_max ? share : t->shared_max;
    Rank r = rank_of(s, m, warps, n);
    bool registers = m * n / (32 * warps) <= 128 && ag_rank_room(&r) / r.lanes <= LIST_IN_LANE;
    return registers && shared_need(s, m, warps, n) <= room;
}

/* Pooled keys of a step: whole blocks, and at least as many as the next step still needs; 0: there is no such number. */
static int step_keys(const Select *s, int want) {
    int each = lcm(16, s->what->block.n / gcd(s->what->block.n, s->pool->stride.n)), n = round_up(want, each);
    int history = (s->pool->size.n - 1) / s->pool->stride.n;
    if (n < history) n = round_up(history, each);
    return n <= MAX_STEP_KEYS ? n : 0;
}

static void set(Select *s, FieldId f, int64_t v) { s->sched.f[f].v = v; }

/* The schedule's tile if it is of mma.sync and fits, else the first that does. */
static void choose_tile(Select *s) {
    static const struct { int m, warps, per_sm; } ways[] = {{128, 4, 2}, {64, 4, 2}, {128, 4, 1}, {64, 4, 1}, {32, 2, 1}, {16, 1, 1}};
    const Field *f = s->fn->sched->f;
    Diag *d = s->fn->d;
    bool own = f[F_MMA_FAMILY].v == FAMILY_MMA_SYNC;
    int n = step_keys(s, own ? (int)f[F_TILE_N].v : STEP_KEYS), m = (int)f[F_TILE_M].v, warps = (int)f[F_WARPS].v, per_sm = (int)f[F_PER_SM].v;
    if (!n)
        ag_unsupported(d, s->what->span, "a pool of size %d and stride %d and blocks of %d take more than %d pooled keys per step", s->pool->size.n,
                       s->pool->stride.n, s->what->block.n, MAX_STEP_KEYS);
    if (group(s) > 128) ag_unsupported(d, s->what->span, "lists shared by %d query heads; at most 128 are possible", group(s));
    ag_stop_if_errors(d);
    own = own && fits(s, m, warps, n, per_sm);
    for (int i = 0; i < LEN(ways) && !own; i++) {
        m = ways[i].m, warps = ways[i].warps, per_sm = ways[i].per_sm;
        own = fits(s, m, warps, n, per_sm);
    }
    if (!own) ag_unsupported(d, s->what->span, "no tile of this selection fits into shared memory of %s", s->fn->target->name);
    ag_stop_if_errors(d);
    set(s, F_TILE_M, m);
    set(s, F_TILE_N, n);
    set(s, F_WARPS, warps);
    set(s, F_PER_SM, per_sm);
    int operand = m * round_up(s->fn->spec->D, 16) / (64 * warps), scores = m * n / (32 * warps);
    int registers = s->fn->target->has_wgmma ? 128 : 96; /* the fast compile, which is not for sm_90a, needs more for the rest */
    set(s, F_Q_OPERAND, operand <= 64 && scores + operand <= registers);
}

static void close_schedule(Select *s) {
    s->sched = *s->fn->sched;
    set(s, F_MMA_FAMILY, FAMILY_MMA_SYNC);
    set(s, F_PACK_GQA, group(s) > 1);
    set(s, F_K_STAGES, 2);
    set(s, F_V_STAGES, 1);
    set(s, F_Q_STAGES, 1);
    set(s, F_O_STORE, STORE_DIRECT);
    set(s, F_ACQUIRE, 0);
    set(s, F_DIRECTION, 1);
    set(s, F_LOOP_FORM, 1);
    set(s, F_LONGEST, s->what->causal);
    set(s, F_GROUP_MB, 0);
    set(s, F_PERSISTENT, PERSISTENT_NONE);
    set(s, F_RESCALE, 0);
    set(s, F_SOFTMAX, 0);
    choose_tile(s);
}

/* ---- what a step computes */

static Ref load_lse(Nodes *p) {
    static const Axis axis[] = {AX_B, AX_H, AX_Q};
    Node n = {.op = OP_LOAD, .type = T_FLOAT, .index = TEN_LSE, .nsub = LEN(axis)};
    for (int i = 0; i < LEN(axis); i++) n.sub[i] = ag_node_leaf(p, OP_AXIS, T_INT, (int)axis[i], (Span){0});
    n.sub[2] = ag_node_op(p, OP_SUB, n.sub[2], ag_node_leaf(p, OP_SIZE, T_INT, SZ_OFF, (Span){0}), 0, (Span){0});
    return ag_node_intern(p, n);
}

/* The branch's softmax, lowered, gives its score and mask.  What is computed is exp(score - LSE), 0 in a row that sees no key; and, for what it says of
 * which keys matter, the sum of that over the keys that are visible. */
static void lower_branch(Select *s) {
    Math *m = s->local.math = ag_lower(s->fn->d, ag_branch_spec(s->fn->d->arena, s->fn->spec, s->branch));
    Nodes *p = &m->nodes;
    Ref x = p->n[p->n[m->out[1].value].arg[0]].arg[0], zero = ag_node_float(p, 0); /* LSE = (max over k of x) + ... */
    const Node masked = p->n[x];
    bool has_mask = s->fn->spec->branch[s->branch].mask != NULL;
    Ref lse = load_lse(p), none = ag_node_op(p, OP_EQ, lse, ag_node_float(p, -INFINITY), 0, (Span){0});
    lse = ag_node_op(p, OP_SELECT, none, ag_node_float(p, INFINITY), lse, (Span){0});
    Ref e = ag_node_op(p, OP_EXP, ag_node_op(p, OP_SUB, has_mask ? masked.arg[1] : x, lse, 0, (Span){0}), 0, 0, masked.span);
    Ref seen = has_mask ? ag_node_op(p, OP_SELECT, masked.arg[0], e, zero, masked.span) : e;
    m->out[0] = (MathOut){TEN_O, 0, e};
    m->out[1] = (MathOut){TEN_LSE, 0, ag_node_intern(p, (Node){.op = OP_RSUM, .arg = {seen}, .index = AX_K, .span = masked.span})};
    ag_pass_simplify(&s->local);
    ag_pass_hoist(&s->local);
    ag_pass_ranges(&s->local);
}

/* By a pool the scores are the importance: an empty Math IR. */
static void lower_pool(Select *s) {
    Math *m = s->local.math = NEW(s->fn->d->arena, Math);
    m->d = s->fn->d;
    m->spec = s->fn->spec;
    ag_nodes_init(&m->nodes, s->fn->d->arena);
}

/* ---- tensors */

static Ref extent(Kernel *k, Size s) { return ag_node_leaf(&k->nodes, OP_SIZE, T_INT, (int)s, (Span){0}); }

/* Pooled keys, as ag_pool_count has it. */
static Ref pool_count(Kernel *k, const Derive *p) {
    Nodes *x = &k->nodes;
    Ref n = extent(k, SZ_SK), stride = ag_node_int(x, p->stride.n);
    if (!p->partial) n = ag_node_op(x, OP_MAX, ag_node_op(x, OP_SUB, n, ag_node_int(x, p->size.n - 1), 0, p->span), ag_node_int(x, 0), 0, p->span);
    return ag_node_op(x, OP_CEILDIV, n, stride, 0, p->span);
}

static int describe_tensors(Select *s, Kernel *k) {
    const Spec *spec = s->fn->spec;
    Ref b = extent(k, SZ_B), d = ag_node_int(&k->nodes, spec->D);
    Size heads = s->what->per_head ? SZ_HQ : SZ_HKV;
    k->tensor[TEN_Q] = (KernelTensor){.name = "q", .type = spec->dtype, .rank = 4, .cols = spec->D, .rows = SZ_SQ, .heads = SZ_HQ, .used = true};
    k->tensor[TEN_K] = (KernelTensor){.name = "k", .type = spec->dtype, .rank = 4, .cols = spec->D, .rows = SZ_SK, .heads = SZ_HKV, .used = true};
    k->tensor[TEN_V] = (KernelTensor){.name = "v", .type = spec->dtype, .program = TEN_V};
    k->tensor[TEN_O] = (KernelTensor){.name = "o", .type = spec->dtype, .program = TEN_O};
    k->tensor[TEN_LSE] = (KernelTensor){.name = "lse", .type = DT_F32, .rank = 3, .rows = SZ_SQ, .heads = SZ_HQ, .used = s->branch >= 0};
    k->tensor[TEN_K].program = ag_program_derive(spec, (int)(s->pool - spec->derive));
    const SpecRef queries = s->branch >= 0 ? spec->branch[s->branch].queries : (SpecRef){FROM_Q, 0};
    k->tensor[TEN_Q].program = queries.kind == FROM_INPUT ? ag_program_input(queries.index) : TEN_Q;
    k->tensor[TEN_LSE].program = s->branch >= 0 ? ag_program_lse(spec, s->branch) : TEN_LSE;
    const Ref q[] = {b, extent(k, SZ_HQ), extent(k, SZ_SQ), d}, keys[] = {b, extent(k, SZ_HKV), pool_count(k, s->pool), d};
    const Ref lists[] = {b, extent(k, heads), extent(k, SZ_SQ), ag_node_int(&k->nodes, s->what->count.n)};
    KernelTensor picks = {.name = "picks", .type = DT_I32, .rank = 4, .cols = s->what->count.n, .rows = SZ_SQ, .heads = heads, .output = true};
    picks.used = true;
    picks.program = ag_program_derive(spec, s->index);
    for (int i = 0; i < 4; i++) {
        k->tensor[TEN_Q].extent[i] = q[i];
        k->tensor[TEN_K].extent[i] = keys[i];
        k->tensor[TEN_LSE].extent[i] = i < 3 ? q[i] : 0;
        picks.extent[i] = lists[i];
    }
    return ag_kernel_tensor(k, picks);
}

/* ---- the kernel */

static int value(Kernel *k, const char *name, Space space, DType type, int rows, int cols) {
    return ag_val(k, (Val){.name = ag_str(name),
                           .space = space,
                           .type = type,
                           .rows = rows,
                           .cols = cols,
                           .layout = space == SPACE_FRAG ? LAYOUT_ACC : LAYOUT_NONE,
                           .stages = 1,
                           .swizzle = -1,
                           .offset = -1,
                           .bytes = -1,
                           .over = -1,
                           .reference = -1,
                           .carry = -1});
}

static int table(Kernel *k, const char *name, DType type, int rows, int cols) {
    int v = value(k, name, SPACE_SHARED, type, rows, cols);
    k->val[v].table = true;
    return v;
}

static int copied(Select *s, Block *to, int tensor, const char *name, int rows, Ref row0, Ref limit, int head) {
    Tiler *t = &s->t;
    int v = value(t->k, name, SPACE_SHARED, s->fn->spec->dtype, rows, round_up(s->fn->spec->D, 16));
    Ins *i = ag_tiler_add(t, to, TI_COPY, v, NULL);
    i->a = tensor;
    i->e[0] = num(t, 0);
    i->e[1] = row0;
    i->e[2] = limit;
    i->e[3] = val(t, t->b);
    i->e[4] = val(t, head);
    return v;
}

/* Where a store or load of rows of the tile begins and ends; batch and head. */
static void set_rows(Tiler *t, Ins *i, int tensor, int head) {
    i->n = tensor;
    i->e[0] = val(t, t->row0);
    i->e[1] = size(t, SZ_SQ);
    i->e[2] = val(t, t->b);
    i->e[3] = val(t, head);
}

/* Steps that hold a block which some query of the tile may select. */
static void find_steps(Select *s, int *blocks) {
    Tiler *t = &s->t;
    Kernel *k = t->k;
    Ref block = num(t, k->rank.block), zero = num(t, 0);
    s->keys = ag_tiler_let(t, t->pre, "keys", k->tensor[TEN_K].extent[2], "pooled keys");
    k->val[s->keys].nonneg = true;
    *blocks = ag_tiler_let(t, t->pre, "blocks", op2(t, OP_CEILDIV, size(t, SZ_SK), block), NULL);
    Ref last = val(t, *blocks);
    if (k->rank.causal) {
        Ref own =
            op2(t, OP_FLOORDIV, op2(t, OP_ADD, val(t, t->q_last), block), block); /* past the last query's own, as q_last >= -block; else 0 or less */
        last = op2(t, OP_MIN, last, op2(t, OP_MAX, own, zero));
    }
    int lo = ag_tiler_let(t, t->pre, "j_lo", zero, "---- steps j_lo .. j_hi hold blocks that can be selected");
    int hi = ag_tiler_let(t, t->pre, "j_hi", op2(t, OP_CEILDIV, last, num(t, k->rank.blocks)), NULL);
    k->lo = val(t, lo);
    k->hi = val(t, hi);
}

/* In the guard the end of the keys is that of the pooled ones. */
static Ref pooled_size(void *payload, Ref r) {
    Select *s = payload;
    const Node *n = &s->t.k->nodes.n[r];
    return n->op == OP_SIZE && n->index == SZ_SK ? val(&s->t, s->keys) : 0;
}

/* Math nodes that the kernel has at hand. */
static void hold(Select *s, int scores) {
    const Nodes *p = &s->local.math->nodes;
    for (Ref r = 1; r < p->len; r++) {
        if (p->n[r].op == OP_LOAD && p->n[r].index == TEN_LSE) s->t.held[r] = s->lse;
        if (p->n[r].op == OP_SIZE && p->n[r].index == SZ_SK) s->t.held[r] = s->keys;
        if (p->n[r].op == OP_RSUM && p->n[r].index == AX_D) s->t.held[r] = scores;
    }
}

/* Pooled keys that all queries of the tile see. */
static void find_clear(Select *s) {
    Tiler *t = &s->t;
    const KeyRange *r = &t->m->range;
    t->k->never_clear = r->mask && r->never_plain;
    if (t->k->never_clear) return;
    t->k->clear_hi = val(t, s->keys);
    if (r->plain_lo) t->k->clear_lo = ag_tiler_expr(t, r->plain_lo, LEVEL_ONCE);
    if (r->plain_hi) t->k->clear_hi = op2(t, OP_MIN, ag_tiler_expr(t, r->plain_hi, LEVEL_ONCE), val(t, s->keys));
}

/* Scores become probabilities. */
static void map_scores(Select *s, int scores) {
    Tiler *t = &s->t;
    Kernel *k = t->k;
    if (s->branch < 0) return;
    hold(s, scores);
    ag_tiler_guard(t);
    k->guard = ag_node_rebuild(&k->nodes, &k->nodes, k->guard, pooled_size, s);
    find_clear(s);
    t->coarse_tanh = tile_field(k, F_TANH) == 1; /* not in the mask, where it would show and hide other keys */
    Ref p = ag_tiler_expr(t, t->m->out[0].value, LEVEL_ELEM);
    Ins *i = ag_tiler_add(t, t->step, TI_MAP, scores, "---- probabilities: hidden keys get 0");
    i->e[0] = ag_node_op(&k->nodes, OP_SELECT, k->guard, p, ag_node_float(&k->nodes, 0), (Span){0});
    i->span = s->fn->spec->branch[s->branch].span;
    if (ag_expr_uses(k, i->e[0], OP_AXIS, AX_Q)) i->e[1] = val(t, t->q0);
    if (ag_expr_uses(k, i->e[0], OP_AXIS, AX_K)) i->e[2] = op2(t, OP_MUL, val(t, t->j), num(t, tile_field(k, F_TILE_N)));
    if (ag_expr_uses(k, i->e[0], OP_AXIS, AX_H)) i->e[3] = val(t, t->h);
}

static void build_step(Select *s, int q, int sums, int lists, int blocks) {
    Tiler *t = &s->t;
    Kernel *k = t->k;
    int m = (int)tile_field(k, F_TILE_M), n = (int)tile_field(k, F_TILE_N);
    int keys = copied(s, t->step, TEN_K, "K", n, op2(t, OP_MUL, val(t, t->j), num(t, n)), val(t, s->keys), t->g);
    int scores = value(k, "S", SPACE_FRAG, DT_F32, m, n);
    Ins *i = ag_tiler_add(t, t->step, TI_MMA, scores, "---- scores");
    i->a = q;
    i->b = keys;
    i->e[0] = i->e[1] = num(t, 0);
    i->trans = i->zero = true;
    map_scores(s, scores);
    ag_tiler_add(t, t->step, TI_SUM_HEADS, sums, "---- importance, and the lists")->a = scores;
    ag_tiler_add(t, t->step, TI_SYNC, -1, NULL);
    i = ag_tiler_add(t, t->step, TI_RANK, lists, NULL);
    i->a = sums;
    i->e[0] = op2(t, OP_MUL, val(t, t->j), num(t, k->rank.blocks));
    i->e[1] = val(t, blocks);
    i->e[2] = val(t, t->q0);
    i->e[3] = op2(t, OP_SUB, size(t, SZ_SQ), val(t, t->row0));
    i->span = s->what->span;
}

static void build(Select *s, int picks) {
    Tiler *t = &s->t;
    Kernel *k = t->k;
    int m = (int)tile_field(k, F_TILE_M), blocks;
    ag_tiler_block(t);
    find_steps(s, &blocks);
    int q = copied(s, t->pre, TEN_Q, "Q", m, val(t, t->row0), size(t, SZ_SQ), t->h);
    int sums = table(k, "sums", DT_F32, sum_rows(s, &k->rank, m), sum_cols(&k->rank, (int)tile_field(k, F_TILE_N)));
    int lists = table(k, "lists", DT_I64, k->queries, ag_rank_room(&k->rank));
    ag_tiler_add(t, t->pre, TI_CLEAR, sums, NULL);
    ag_tiler_add(t, t->pre, TI_CLEAR, lists, NULL);
    if (s->branch >= 0) {
        s->lse = value(k, "lse", SPACE_ROW, DT_F32, m, 1);
        set_rows(t, ag_tiler_add(t, t->pre, TI_LOAD_ROW, s->lse, NULL), TEN_LSE, t->h);
    }
    Ins *loop = ag_ins(k, TI_LOOP, -1);
    t->step = &loop->body;
    loop->dst = k->key_loop = t->j = ag_val_scalar(k, "j", T_INT);
    k->val[t->j].nonneg = true;
    loop->n = 1;
    loop->e[0] = k->lo;
    loop->e[1] = k->hi;
    build_step(s, q, sums, lists, blocks);
    ag_block_append(t->pre, loop);
    ag_tiler_add(t, t->pre, TI_SYNC, -1, "---- lists")->span = s->what->span;
    Ins *store = ag_tiler_add(t, t->pre, TI_STORE_LIST, -1, NULL);
    store->a = lists;
    set_rows(t, store, picks, s->what->per_head ? t->h : t->g);
    ag_remove_dead_lets(k, t->pre);
}

Kernel *ag_build_select(const Fn *fn, int derive) {
    const Spec *spec = fn->spec;
    Select s = {.fn = fn, .what = &spec->derive[derive], .index = derive, .branch = -1, .lse = -1, .local = *fn};
    SpecRef by = s.what->source;
    if (by.kind == FROM_BRANCH) {
        s.branch = by.index;
        by = spec->branch[by.index].keys;
    }
    assert(s.what->kind == DERIVE_SELECT && by.kind == FROM_DERIVE && spec->group > 0);
    s.pool = s.local.pool = &spec->derive[by.index];
    close_schedule(&s);
    Schedule *sched = NEW(fn->d->arena, Schedule);
    *sched = s.sched;
    s.local.sched = sched;
    if (s.branch >= 0)
        lower_branch(&s);
    else
        lower_pool(&s);
    Str name = ag_fmt(fn->d->arena, "%.*s_%.*s", STRF(spec->name), STRF(s.what->name));
    Kernel *k = s.local.kernel = ag_kernel_new(fn->d, spec, sched, fn->target, name);
    k->kind = KERNEL_SELECT;
    int picks = describe_tensors(&s, k);
    k->nrole = 1;
    k->role[0] = (Role){.name = "all", .warps = (int)tile_field(k, F_WARPS)};
    k->threads = 32 * k->role[0].warps;
    k->per_sm = (int)tile_field(k, F_PER_SM);
    k->pack = group(&s);
    k->queries = (int)tile_field(k, F_TILE_M) / k->pack;
    k->rank = rank_of(&s, (int)tile_field(k, F_TILE_M), k->role[0].warps, (int)tile_field(k, F_TILE_N));
    s.t = (Tiler){.d = fn->d, .k = k, .m = s.local.math, .pre = &k->role[0].body, .here = &k->role[0].body, .j = -1};
    s.t.held = NEWN(fn->d->arena, int, (size_t)s.local.math->nodes.len);
    s.t.apart = ag_nodes_apart(&s.local.math->nodes);
    for (int i = 0; i < s.local.math->nodes.len; i++) s.t.held[i] = -1;
    build(&s, picks);
    k->numerics = ag_fmt(fn->d->arena, "f32acc-ex2-n%d-select", (int)tile_field(k, F_TILE_N));
    if (s.branch >= 0) ag_pass_split(&s.local);
    ag_pass_pipeline(&s.local);
    ag_pass_place(&s.local);
    return k;
}
