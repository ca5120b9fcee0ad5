/* schedule_close.c: the rules that close `auto`, the laws between fields, and the choice of a shipped schedule. */
#include "input.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }
static int round_up(int x, int to) { return (x + to - 1) / to * to; }

static int head_dim(const Spec *spec) { return most(spec->D, spec->Dv); }

/* ---- rules for `auto` */

typedef struct Closing {
    Diag *d;
    Schedule *s;
    const Spec *spec;
    const Target *t;
} Closing;

static int value(const Closing *c, FieldId id) { return (int)c->s->f[id].v; }
static bool wgmma(const Closing *c) { return value(c, F_MMA_FAMILY) == FAMILY_WGMMA; }

/* Columns of a tile that has D in shared memory: whole mma.sync operands, or the panels of 128 bytes that wgmma reads. */
static int columns(const Closing *c, int D) { return round_up(D, wgmma(c) ? 64 : 16); }

/* Slots that a persistent block has at most: its tile, and where that is. */
enum { MAX_SLOTS = 4, MAX_ELEMENTS = 2 /* tiles of elements */ };

int ag_barrier_bytes(const Schedule *s) {
    const Field *f = s->f;
    if (f[F_MMA_FAMILY].v != FAMILY_WGMMA) return 0;
    int q = f[F_PERSISTENT].v ? 2 * (int)f[F_Q_STAGES].v : 1, slots = f[F_PERSISTENT].v ? MAX_SLOTS * (int)f[F_Q_STAGES].v : 0;
    return 8 * (q + 2 * (int)(f[F_K_STAGES].v + f[F_V_STAGES].v + MAX_ELEMENTS * f[F_E_STAGES].v)) + 4 * slots;
}

bool ag_own_output_tile(const Schedule *s, int D, int Dv) {
    if (s->f[F_MMA_FAMILY].v != FAMILY_WGMMA || s->f[F_O_STORE].v == STORE_DIRECT) return false;
    return s->f[F_PERSISTENT].v || s->f[F_O_STORE].v == STORE_TMA || round_up(Dv, 64) > round_up(D, 64);
}

/* Shared memory that one block of an m x n tile takes: the stages of Q, K and V, and barriers.
 * O takes the place of all (mma_sync), or of Q, or has its own (wgmma), and the weights may have theirs. */
static int shared_bytes(const Closing *c, int m, int n) {
    int e = ag_dtype_bytes(c->spec->dtype), D = columns(c, c->spec->D), Dv = columns(c, c->spec->Dv);
    Tiles t = ag_tiles(c->spec);
    int head =
        !wgmma(c) ? most(D * t.q, Dv)
                  : D * t.q * value(c, F_Q_STAGES) + (ag_own_output_tile(c->s, c->spec->D, c->spec->Dv) ? round_up(Dv / value(c, F_O_PARTS), 64) : 0);
    int weights = value(c, F_P_OPERAND) == WEIGHTS_SMEM ? m * columns(c, n) * t.outputs : 0;
    if (value(c, F_E_STAGES)) {
        ElementTiles x = ag_element_tiles(c->spec);
        weights += value(c, F_E_STAGES) * (x.tiles * m * columns(c, n) + round_up(x.rows * n, 64));
    }
    return e * (m * head + n * D * t.k * value(c, F_K_STAGES) + n * Dv * t.v * value(c, F_V_STAGES) + weights) + ag_barrier_bytes(c->s);
}

static int shared_limit(const Closing *c) { return least(c->t->shared_max, c->t->shared_sm / value(c, F_PER_SM) - 1024); }

/* Registers per thread: the S and O accumulators, Q where it stays in registers, what the score's functions take, and the rest: about 56, or 32
 * where a warpgroup of its own loads.  With overlap the rounded weights of a tile live beside the scores of the next, unless they lie in shared memory. */
static int registers(const Closing *c, int m, int n) {
    int threads = 32 * value(c, F_WARPS), D = columns(c, c->spec->D), Dv = columns(c, c->spec->Dv);
    Tiles t = ag_tiles(c->spec);
    /* softcap spills at D 64, n 128; not at D 64, n 112 and D 128, n 64; alibi_formula does at D 64, n 112, not at n 96 */
    int functions = !c->spec->score ? (c->spec->plus && !wgmma(c) ? n / 12 : 0) : wgmma(c) && ag_scores_positions(c->spec) ? n / 8 : n / 12;
    /* on mma_sync elements of captured tensors: evoformer_row spills at D 64, n 80 and D 128, n 48 */
    if (!wgmma(c) && ag_reads_elements(c->spec) && !c->spec->joined) functions = n;
    if (!wgmma(c))
        functions += ag_output_registers(c->spec) + (c->spec->weigh ? n / 8 : 0) + (ag_weigh_rows(c->spec) >= 0 ? 8 : 0) +
                     (c->spec->joined ? n / 4 + (Dv * t.outputs > 128 ? 24 : 8) : 0);
    int scores = wgmma(c) || c->spec->joined ? t.scores : 1; /* elements count the other already */
    int all = m * (n * scores + Dv * t.outputs) / threads + functions;
    if (wgmma(c)) return all + (value(c, F_OVERLAP) && value(c, F_P_OPERAND) == WEIGHTS_REGS ? m * n * t.outputs / (2 * threads) : 0) + 32;
    return all + (value(c, F_Q_OPERAND) ? m * D / (2 * threads) : 0) + 56;
}

static int register_limit(const Closing *c) {
    if (wgmma(c)) return least(c->t->regs_thread, value(c, F_REGS_MATH));
    return least(c->t->regs_thread, c->t->regs_sm / (32 * value(c, F_WARPS) * value(c, F_PER_SM)));
}

static bool fits(const Closing *c, int m, int n) { return shared_bytes(c, m, n) <= shared_limit(c) && registers(c, m, n) <= register_limit(c); }

/* Keys a step to begin with.  Where the 16-byte pieces of a row are no power of two, addresses take registers: D 48, 88..112 spill at the full number, and with elements of captured
 * tensors at three quarters of it. */
static int most_keys(const Closing *c) {
    int D = round_up(c->spec->D, 16), Dv = round_up(c->spec->Dv, 16), n = D <= 64 && Dv <= 64 ? 128 : 64;
    bool powers = (D & (D - 1)) == 0 && (Dv & (Dv - 1)) == 0;
    return powers ? n : ag_reads_elements(c->spec) ? n / 4 + 16 : n * 3 / 4;
}

/* Sets what is open of tile.m and tile.n: the largest m <= 128 for which an n between `low` and `top` fits; then the largest such n. */
static void choose_tile(const Closing *c, int top, int low, int *m, int *n) {
    const Field *fm = &c->s->f[F_TILE_M], *fn = &c->s->f[F_TILE_N];
    int rows = 16 * value(c, F_WARPS), top_m = rows > 128 ? rows : 128 / rows * rows;
    int first_m = fm->open ? top_m : (int)fm->v, last_m = fm->open ? rows : first_m;
    int first_n = fn->open ? top : (int)fn->v, last_n = fn->open ? low : first_n;
    for (*m = first_m; *m >= last_m; *m -= rows)
        for (*n = first_n; *n >= last_n; *n -= 16)
            if (fits(c, *m, *n)) return;
    *m = last_m;
    *n = fn->open ? 16 : first_n;
}

static void decide(Field *f, int v, const char *why) {
    if (!f->open) return;
    *f = (Field){.v = v, .by = BY_RULE, .span = f->span, .why = why};
}

static const char *tile_sum(const Closing *c, int m, int n) {
    return ag_fmt(c->d->arena, "%d of %d bytes of shared memory and about %d of %d registers", shared_bytes(c, m, n), shared_limit(c),
                  registers(c, m, n), register_limit(c))
        .s;
}

static void close_tile(const Closing *c) {
    Field *fm = &c->s->f[F_TILE_M], *fn = &c->s->f[F_TILE_N];
    if (!fm->open && !fn->open) return;
    int m, n;
    choose_tile(c, most_keys(c), 32, &m, &n);
    const char *sum = tile_sum(c, m, n);
    decide(fm, m, ag_fmt(c->d->arena, "the most rows up to 128 that fit: %s", sum).s);
    decide(fn, n,
           ag_fmt(c->d->arena, "128 keys for head dims to 64, else 64 (for dims between powers of two %s), less by 16 until they fit: %s",
                  ag_reads_elements(c->spec) ? "48 and 32, as elements are read" : "96 and 48", sum)
               .s);
}

static void close_tile_wgmma(const Closing *c) {
    Field *fm = &c->s->f[F_TILE_M], *fn = &c->s->f[F_TILE_N];
    int m, n;
    decide(fm, 64 * value(c, F_CONSUMERS), "64 rows for each of roles.consumer.warpgroups");
    if (!fn->open) return;
    int top = value(c, F_P_OPERAND) == WEIGHTS_SMEM ? 192 : 128;
    choose_tile(c, top, 16, &m, &n);
    decide(fn, n, ag_fmt(c->d->arena, "%d keys, less by 16 until they fit: %s", top, tile_sum(c, m, n)).s);
}

/* Registers per thread with which a wgmma block starts; setmaxnreg moves them between its warpgroups, and there are no others. */
static int registers_at_launch(const Closing *c) { return c->t->regs_sm / (128 * (value(c, F_CONSUMERS) + 1)) / 8 * 8; }

/* The usual split between the loading and the computing warpgroups; if the file gives one side, the other takes no more than what that leaves. */
static void close_registers(const Closing *c) {
    static const struct { int load, math; } usual[] = {{56, 240}, {40, 232}, {32, 160}};
    Field *load = &c->s->f[F_REGS_LOAD], *math = &c->s->f[F_REGS_MATH];
    int groups = value(c, F_CONSUMERS), all = registers_at_launch(c) * (groups + 1);
    int left = math->open ? all : all - groups * (int)math->v;
    decide(load, most(ag_field[F_REGS_LOAD].min, least(usual[groups - 1].load, left / 8 * 8)),
           ag_fmt(c->d->arena, "%d at most, of %d for the %d warpgroups of the block", usual[groups - 1].load, all, groups + 1).s);
    left = (all - (int)load->v) / groups;
    decide(math, most(ag_field[F_REGS_MATH].min, least(usual[groups - 1].math, left / 8 * 8)),
           ag_fmt(c->d->arena, "%d at most each, of %d for the %d warpgroups of the block", usual[groups - 1].math, all, groups + 1).s);
}

/* Every number that the other family's passes would read is closed too; it is not printed. */
static void close_mma_sync(const Closing *c) {
    Field *f = c->s->f;
    decide(&f[F_REGS_MATH], 0, ag_field_idle(c->s, F_REGS_MATH));
    decide(&f[F_REGS_LOAD], 0, ag_field_idle(c->s, F_REGS_LOAD));
    decide(&f[F_PERSISTENT], PERSISTENT_NONE, ag_field_idle(c->s, F_PERSISTENT));
    decide(&f[F_K_STAGES], 1, "mma_sync: small blocks, so that two fit on an SM");
    decide(&f[F_V_STAGES], 1, "mma_sync: small blocks, so that two fit on an SM");
    close_tile(c);
}

static void close_wgmma(const Closing *c) {
    Field *f = c->s->f;
    f[F_WARPS] = (Field){.v = 4 * value(c, F_CONSUMERS), .by = BY_RULE, .why = ag_field_idle(c->s, F_WARPS)};
    if (c->spec->mask)
        decide(&f[F_PERSISTENT], PERSISTENT_DYNAMIC, "the spec has a mask, so tiles differ in length");
    else
        decide(&f[F_PERSISTENT], PERSISTENT_STATIC, "the spec has no mask, so all tiles are equally long");
    decide(&f[F_K_STAGES], 2, "wgmma: one tile is loaded while another is read");
    decide(&f[F_V_STAGES], 2, "wgmma: one tile is loaded while another is read");
    close_registers(c);
    close_tile_wgmma(c);
}

/* The K and V of the heads walked together take this much of an L2 (40 MB on sm_80, 50 MB on sm_90). */
enum { GROUP_MB = 32 };

static void close_group(const Closing *c) {
    Field *f = &c->s->f[F_GROUP_MB];
    if (!value(c, F_LONGEST))
        decide(f, 0, "grid.longest_first is false, so one head after the other");
    else if (c->s->order[0] != AX_Q)
        decide(f, 0, "grid.order does not begin with m, so heads are not walked tile by tile");
    else
        decide(f, GROUP_MB, "tiles differ in length, so heads are walked together; 32 MB of K and V stay in L2");
}

/* Query by query each entry of a list costs its block of K and V, once for all heads of the group; block by block it costs for each head the arithmetic, and rows of Q and of
 * results as much as 64 keys' worth of it.  On an H200 (docs/performance.md) they cost the same with 12 heads and 64 keys, and with 16 heads and 128.  With few queries a block of
 * keys is fetched for a few rows. */
enum { ROWS_COST_KEYS = 64, HEADS_EVEN = 24 };

bool ag_can_gather(const Branch *b) { return b->per.n == 1 && b->block.n <= GATHER_KEYS; }

static bool blocks_pay(const Spec *spec, const Branch *b) {
    int heads = b->per_head || !spec->group ? 1 : spec->group;
    if (spec->queries && spec->queries < MANY_QUERIES) return false;
    return ag_can_gather(b) && heads * (b->block.n + ROWS_COST_KEYS) < HEADS_EVEN * b->block.n;
}

static bool is_plain_softmax(const Spec *s) { return s->normalize == NORMALIZE_SOFTMAX && !s->plus; }

static void close_lists(const Closing *c) {
    Field *f = &c->s->f[F_LISTS];
    bool any = false, by_block = true;
    for (int i = 0; i < c->spec->nbranch; i++) {
        const Branch *b = &c->spec->branch[i];
        if (b->blocks.kind == FROM_NONE) continue;
        any = true;
        by_block = by_block && blocks_pay(c->spec, b);
    }
    c->s->has_lists = any;
    if (!any)
        decide(f, LISTS_BY_QUERY, "the spec has no block lists");
    else if (ag_norms(c->spec))
        decide(f, LISTS_BY_QUERY, "the output has a norm over channels, which stands behind attention query by query");
    else if (!is_plain_softmax(c->spec))
        decide(f, LISTS_BY_QUERY, "block by block the parts of a row are merged by their LSEs, which are of a plain softmax");
    else if (by_block)
        decide(f, LISTS_BY_BLOCK,
               ag_fmt(c->d->arena, "query heads of a list * (keys of a block + %d) < %d * keys of a block", ROWS_COST_KEYS, HEADS_EVEN).s);
    else
        decide(
            f, LISTS_BY_QUERY,
            ag_fmt(
                c->d->arena,
                "query heads of a list * (keys of a block + %d) >= %d * keys of a block, or below %d queries, or lists of several queries or blocks "
                "above %d keys",
                ROWS_COST_KEYS, HEADS_EVEN, MANY_QUERIES, GATHER_KEYS)
                .s);
}

/* Whether neighbouring queries have enough keys in common.  Blocks that are forced cost a query as much as others when they are listed; apart they cost a tile of queries a few key
 * tiles, and a row of results for each query.  Block by block, with few heads to a list, that saves no more than the kernels cost: 16k queries, 128 x 8, 4/4 heads 0.53 to 0.57 ms. */
static void close_forced(const Closing *c) {
    enum { LEAST_KEYS = 128, LEAST_HEADS = 4 };
    Field *f = &c->s->f[F_FORCED];
    bool any = false, all = true;
    for (int i = 0; i < c->spec->nbranch; i++) {
        const Branch *b = &c->spec->branch[i];
        if (b->blocks.kind == FROM_NONE) continue;
        bool can = ag_can_part(c->spec, b), by_block = c->s->f[F_LISTS].v == LISTS_BY_BLOCK;
        const Derive *x = can ? &c->spec->derive[b->blocks.index] : NULL;
        any |= can;
        all &= can && (x->first.n + x->local.n) * x->block.n >= LEAST_KEYS && (!by_block || (!b->per_head && c->spec->group >= LEAST_HEADS));
    }
    bool few = c->spec->queries && c->spec->queries < MANY_QUERIES;
    c->s->has_forced = any;
    if (!any)
        decide(f, FORCED_LISTED, "the spec has no causal selection with forced blocks and others");
    else if (all && !few && c->s->f[F_LISTS].v != LISTS_UNITED)
        decide(f, FORCED_APART, ag_fmt(c->d->arena, "forced blocks have %d keys or more", LEAST_KEYS).s);
    else
        decide(f, FORCED_LISTED,
               ag_fmt(c->d->arena,
                      "forced blocks have fewer than %d keys, or below %d queries, or unions, or block by block and fewer than %d heads of a list",
                      LEAST_KEYS, MANY_QUERIES, LEAST_HEADS)
                   .s);
}

/* Where each step has to know its maximum, neither a late nor a guessed one is taken. */
static void close_exact(const Closing *c) {
    static const FieldId stale[] = {F_RESCALE, F_SOFTMAX};
    for (int i = 0; i < LEN(stale) && ag_keeps_maximum(c->spec); i++) {
        Field *f = &c->s->f[stale[i]];
        bool max = ag_puts_out(c->spec, ROWV_MAX);
        if (!f->v || (stale[i] == F_RESCALE && !max)) continue;
        *f = (Field){.v = 0,
                     .by = BY_RULE,
                     .span = f->span,
                     .why = max              ? "the maximum of a row is put out"
                            : c->spec->weigh ? "weights have a factor"
                                             : "several maxima are carried"};
    }
}

static void close_branches(const Closing *c) {
    Field *f = &c->s->f[F_BRANCHES];
    c->s->has_branches = c->spec->joined || c->spec->nbranch > 1;
    if (c->spec->joined)
        decide(f, BRANCHES_FUSED, "what the branches share is most of the work");
    else
        decide(f, BRANCHES_APART, c->s->has_branches ? "each kernel then has the tiles that are best for it" : "there are no several branches");
}

static void close_fields(const Closing *c) {
    static void (*const close[])(const Closing *) = {[FAMILY_MMA_SYNC] = close_mma_sync, [FAMILY_WGMMA] = close_wgmma};
    Field *f = c->s->f;
    for (int i = 0; i < F_COUNT; i++) /* first those without a rule: others depend on them */
        if (ag_field[i].deflt != FIELD_AUTO) decide(&f[i], ag_field[i].deflt, "the field's default");
    if (c->spec->mask)
        decide(&f[F_LONGEST], true, "the spec has a mask, so tiles differ in length");
    else
        decide(&f[F_LONGEST], false, "the spec has no mask, so all tiles are equally long");
    ElementTiles elements = ag_element_tiles(c->spec);
    c->s->has_elements = elements.tiles + elements.rows > 0;
    close_group(c);
    close_lists(c);
    close_forced(c);
    close_branches(c);
    close_exact(c);
    close[value(c, F_MMA_FAMILY)](c);
}

/* ---- laws between fields */

static const char *shown(const Closing *c, FieldId id) {
    if (ag_field[id].kind == FIELD_INT) return ag_fmt(c->d->arena, "%d", value(c, id)).s;
    return ag_str_copy(c->d->arena, ag_field_word(&ag_field[id], c->s->f[id].v)).s;
}

/* Says where the partner of a broken law got its value. */
static void note_partner(const Closing *c, FieldId id) {
    const Field *f = &c->s->f[id];
    const char *who = f->by == BY_FILE ? "here" : f->by == BY_RULE ? "by rule" : "by default";
    if (f->by == BY_FILE || f->by == BY_RULE)
        ag_note(c->d, f->span, "%s is %s %s", ag_field[id].path, shown(c, id), who);
    else
        ag_note(c->d, (Span){0}, "%s is %s %s", ag_field[id].path, shown(c, id), who);
}

/* A field that the file gives, be it as `auto`, has an effect. */
static void check_effect(const Closing *c) {
    for (int i = 0; i < F_COUNT; i++) {
        const Field *f = &c->s->f[i];
        const char *idle = ag_field_idle(c->s, (FieldId)i);
        if (!idle || f->by != BY_FILE) continue;
        ag_error(c->d, f->span, "%s has no effect with mma.family %s: %s", ag_field[i].path, shown(c, F_MMA_FAMILY), idle);
        note_partner(c, F_MMA_FAMILY);
    }
}

static void check_family(const Closing *c) {
    if (!wgmma(c) || c->t->has_wgmma) return;
    Str list = STR("");
    for (size_t i = 0; ag_target_at(i); i++)
        if (ag_target_at(i)->has_wgmma) list = ag_fmt(c->d->arena, "%s%s%s", list.s, list.n ? ", " : "", ag_target_at(i)->name);
    ag_unsupported(c->d, c->s->f[F_MMA_FAMILY].span, "mma.family wgmma is for %s, not for %s", list.s, c->t->name);
}

static void check_rows(const Closing *c) {
    int m = value(c, F_TILE_M), warps = value(c, F_WARPS), rows = 16 * warps, max = ag_field[F_TILE_M].max;
    if (m % rows == 0) return;
    int nearest = (m + rows / 2) / rows * rows;
    nearest = nearest < rows ? rows : nearest > max ? max / rows * rows : nearest;
    ag_error(c->d, c->s->f[F_TILE_M].span, "tile.m %% (16 * roles.warps) == 0 does not hold: %d %% (16 * %d) = %d; nearest legal value %d", m, warps,
             m % rows, nearest);
    note_partner(c, F_WARPS);
}

static void check_acquire(const Closing *c) {
    enum { TOGETHER = 1 };
    if (value(c, F_ACQUIRE) != TOGETHER) return;
    for (FieldId id = F_K_STAGES; id <= F_V_STAGES; id++) {
        if (value(c, id) >= 2) continue;
        ag_error(c->d, c->s->f[F_ACQUIRE].span, "%s >= 2 does not hold, which pipeline.acquire: together needs: found %d; nearest legal value 2",
                 ag_field[id].path, value(c, id));
        note_partner(c, id);
    }
}

static void check_group(const Closing *c) {
    if (!value(c, F_GROUP_MB) || c->s->order[0] == AX_Q) return;
    ag_error(c->d, c->s->f[F_GROUP_MB].span,
             "grid.group_mb > 0 needs m first in grid.order, since a group of heads is walked tile by tile: write group_mb: 0 or order: [m, h, b]");
    ag_note(c->d, c->s->order_span, "grid.order begins with %s here", c->s->order[0] == AX_H ? "h" : "b");
}

static void check_threads(const Closing *c) {
    int threads = 32 * value(c, F_WARPS), per_sm = value(c, F_PER_SM);
    if (per_sm * threads <= c->t->threads_sm) return;
    Field *f = &c->s->f[F_PER_SM];
    ag_unsupported(c->d, f->span,
                   "grid.ctas_per_sm * 32 * roles.warps <= %d (threads per SM of %s) does not hold: %d * %d = %d; nearest legal value %d",
                   c->t->threads_sm, c->t->name, per_sm, threads, per_sm * threads, c->t->threads_sm / threads);
    note_partner(c, F_WARPS);
}

static void check_lists(const Closing *c) {
    const Field *f = &c->s->f[F_LISTS], *forced = &c->s->f[F_FORCED];
    if (c->s->has_forced && forced->v == FORCED_APART && f->v == LISTS_UNITED) {
        ag_unsupported(c->d, forced->span,
                       "loop.forced: apart does not go with loop.lists: union, which reads a block that several queries list once: write listed");
        note_partner(c, F_LISTS);
        return;
    }
    for (int i = 0; i < c->spec->nbranch; i++) {
        const Branch *b = &c->spec->branch[i];
        if (b->blocks.kind == FROM_NONE) continue;
        if (f->v == LISTS_BY_BLOCK && ag_norms(c->spec)) {
            ag_unsupported(c->d, f->span,
                           "loop.lists: block has no kernel in which a row has all its channels, as a norm over them needs: write query");
            ag_note(c->d, c->spec->output->span, "this output has one");
            return;
        }
        if (f->v == LISTS_BY_BLOCK && !is_plain_softmax(c->spec)) {
            ag_unsupported(c->d, f->span, "loop.lists: block merges the parts of a row by their LSEs, as of a plain softmax: write query");
            return;
        }
        if (f->v == LISTS_BY_BLOCK && !ag_can_gather(b)) {
            ag_unsupported(c->d, f->span, "loop.lists: block takes a list for each query and blocks of up to %d keys: write query", GATHER_KEYS);
            ag_note(c->d, b->span, "this branch has %s", b->per.n != 1 ? "lists of several queries" : "larger blocks");
            return;
        }
        if (f->v == LISTS_UNITED && !ag_listed_united(c->spec, b)) {
            ag_unsupported(c->d, f->span,
                           "loop.lists: union takes a list for each query, shared by 4, 8, 16 or 32 query heads, and tiles of 64 rows with up to %d "
                           "entries: write query",
                           UNION_ENTRIES);
            ag_note(c->d, b->span, "this branch has %s, shared by %d heads", b->per.n != 1 ? "lists of several queries" : "lists of one query",
                    b->per_head || !c->spec->group ? 1 : c->spec->group);
            return;
        }
    }
}

/* The heads of a group share the rows of a tile, and those of a warpgroup, which stores its own. */
static void check_pack(const Closing *c) {
    enum { MOST_HEADS = 64 };
    const Field *f = &c->s->f[F_PACK_GQA];
    int group = c->spec->group, m = value(c, F_TILE_M);
    if (!f->v) return;
    if (!group) {
        ag_unsupported(c->d, f->span,
                       "tile.pack_gqa: true needs a spec that fixes the query heads of a KV head: add 'heads: {group: N}' to it, or write false");
        return;
    }
    if ((group & (group - 1)) != 0 || group > MOST_HEADS || m % group != 0) {
        ag_unsupported(c->d, f->span,
                       "tile.pack_gqa: true takes groups of 1, 2, 4, 8, 16, 32 or 64 heads that divide tile.m: the spec has %d, and tile.m is %d",
                       group, m);
        ag_note(c->d, c->spec->group_span, "heads.group is %d here", group);
    }
}

static void check_mma_sync(const Closing *c) {
    if (value(c, F_O_STORE) == STORE_TMA) {
        ag_error(c->d, c->s->f[F_O_STORE].span, "staging.o.store tma needs mma.family wgmma: write smem or direct");
        note_partner(c, F_MMA_FAMILY);
    }
    check_rows(c);
    check_acquire(c);
    check_threads(c);
}

static void check_rows_wgmma(const Closing *c) {
    int m = value(c, F_TILE_M), groups = value(c, F_CONSUMERS);
    if (m == 64 * groups) return;
    ag_error(c->d, c->s->f[F_TILE_M].span, "tile.m == 64 * roles.consumer.warpgroups does not hold: %d is not 64 * %d; nearest legal value %d", m,
             groups, 64 * groups);
    note_partner(c, F_CONSUMERS);
}

/* A block starts with the registers of a computing thread, or what there is for each thread if that is less.  setmaxnreg then gives some back in the loading
 * warpgroup, and would wait for ever in the others for those that the block does not have. */
static void check_registers(const Closing *c) {
    int groups = value(c, F_CONSUMERS), load = value(c, F_REGS_LOAD), math = value(c, F_REGS_MATH);
    int start = registers_at_launch(c), all = start * (groups + 1), most_load = least(start, math);
    if (load > most_load) {
        ag_error(c->d, c->s->f[F_REGS_LOAD].span,
                 "roles.producer.regs <= %d (with which each of the %d threads starts) does not hold: found %d; nearest legal value %d", most_load,
                 128 * (groups + 1), load, most_load);
        note_partner(c, F_REGS_MATH);
        note_partner(c, F_CONSUMERS);
        return;
    }
    if (load + groups * math <= all) return;
    ag_error(
        c->d, c->s->f[F_REGS_MATH].span,
        "128 * (roles.producer.regs + roles.consumer.warpgroups * roles.consumer.regs) <= %d (a block of %d threads starts with %d each) does not "
        "hold: 128 * (%d + %d * %d) = %d; nearest legal value %d",
        128 * all, 128 * (groups + 1), start, load, groups, math, 128 * (load + groups * math), (all - load) / groups / 8 * 8);
    note_partner(c, F_REGS_LOAD);
    note_partner(c, F_CONSUMERS);
}

static void check_softmax(const Closing *c) {
    const Field *f = c->s->f;
    if (f[F_SOFTMAX].v == 1 && f[F_OVERLAP].v == 0) {
        ag_error(c->d, f[F_SOFTMAX].span, "numerics.softmax speculative needs pipeline.overlap: true");
        ag_note(c->d, f[F_OVERLAP].span, "pipeline.overlap is false");
    }
}

/* Of blocks that walk over tiles. */
static void check_walk(const Closing *c) {
    const Field *f = c->s->f;
    if (value(c, F_Q_STAGES) > 1 && !(value(c, F_PERSISTENT) && value(c, F_OVERLAP))) {
        ag_error(c->d, f[F_Q_STAGES].span,
                 "staging.q.stages 2 needs grid.persistent static or dynamic and pipeline.overlap: true, since it chains tiles");
        note_partner(c, value(c, F_OVERLAP) ? F_PERSISTENT : F_OVERLAP);
    }
    if (value(c, F_O_PARTS) > 1 && (value(c, F_O_STORE) != STORE_SMEM || !value(c, F_PERSISTENT))) {
        ag_error(c->d, f[F_O_PARTS].span,
                 "staging.o.parts above 1 needs staging.o.store smem and grid.persistent static or dynamic: only then has O room of its own that can "
                 "be less");
        note_partner(c, value(c, F_PERSISTENT) ? F_O_STORE : F_PERSISTENT);
    }
    if (f[F_FETCH_AHEAD].by == BY_FILE && !ag_field_has_effect(c->s, F_FETCH_AHEAD)) {
        ag_error(c->d, f[F_FETCH_AHEAD].span, "grid.fetch_ahead has no effect with grid.persistent none: a block has one tile");
        note_partner(c, F_PERSISTENT);
    }
}

static void check_elements(const Closing *c) {
    const Field *f = &c->s->f[F_E_STAGES];
    if (!f->v || c->spec->nbranch || c->s->has_elements) return;
    ag_unsupported(c->d, f->span,
                   "staging.elements.stages above 0 needs a score that reads a captured tensor of type %s at [.., q, k] or [.., k], as bias[b, h, q, "
                   "k]; this spec has none: "
                   "write 0",
                   ag_dtype_name[c->spec->dtype]);
}

static void check_wgmma(const Closing *c) {
    const Field *f = c->s->f;
    check_elements(c);
    check_rows_wgmma(c);
    check_registers(c);
    if (value(c, F_PER_SM) != 1)
        ag_error(c->d, f[F_PER_SM].span, "grid.ctas_per_sm == 1 does not hold, which mma.family wgmma needs: found %d; nearest legal value 1",
                 value(c, F_PER_SM));
    if (value(c, F_OVERLAP) && value(c, F_DIRECTION)) {
        ag_error(c->d, f[F_DIRECTION].span, "pipeline.overlap needs loop.direction reverse: write direction: reverse or overlap: false");
        note_partner(c, F_OVERLAP);
    }
    if (value(c, F_RESCALE))
        ag_unsupported(c->d, f[F_RESCALE].span, "numerics.rescale lazy is not available with mma.family wgmma yet: write always");
    if (value(c, F_TURNS) && (value(c, F_CONSUMERS) == 1 || !value(c, F_OVERLAP))) {
        ag_error(c->d, f[F_TURNS].span, "pipeline.turns needs pipeline.overlap: true and at least 2 of roles.consumer.warpgroups");
        note_partner(c, value(c, F_OVERLAP) ? F_CONSUMERS : F_OVERLAP);
    }
    check_softmax(c);
    check_walk(c);
}

/* ---- does it apply? */

static bool mask_has(uint32_t arch_mask, const Target *t) {
    for (size_t i = 0; ag_target_at(i); i++)
        if (ag_target_at(i) == t) return arch_mask >> i & 1;
    return false;
}

bool ag_schedule_is_for(const Schedule *s, const Target *t) { return mask_has(s->arch_mask, t); }

static void check_applies(const Closing *c) {
    const Schedule *s = c->s;
    if (!mask_has(s->arch_mask, c->t)) {
        Str list = STR("");
        for (size_t i = 0; ag_target_at(i); i++)
            if (s->arch_mask >> i & 1) list = ag_fmt(c->d->arena, "%s%s%s", list.s, list.n ? ", " : "", ag_target_at(i)->name);
        ag_unsupported(c->d, s->arch_span, "this schedule is for %s, not for %s", list.s, c->t->name);
    }
    if (head_dim(c->spec) < s->head_dim_min || head_dim(c->spec) > s->head_dim_max)
        ag_unsupported(c->d, s->head_dim_span, "this schedule is for head dims %d to %d, and max(D, Dv) is %d", s->head_dim_min, s->head_dim_max,
                       head_dim(c->spec));
}

void ag_schedule_close(Diag *d, Schedule *s, const Spec *spec, const Target *t) {
    Closing c = {d, s, spec, t};
    int errors = d->nerror;
    check_applies(&c);
    if (d->nerror > errors) return;
    decide(&s->f[F_MMA_FAMILY], ag_field[F_MMA_FAMILY].deflt, "the field's default");
    check_family(&c);
    check_effect(&c);
    if (d->nerror > errors) return;
    close_fields(&c);
    check_group(&c);
    check_pack(&c);
    check_lists(&c);
    (wgmma(&c) ? check_wgmma : check_mma_sync)(&c);
}

/* ---- the shipped schedule for a spec */

/* What a choice needs to know of a shipped schedule.  Every bind asks, so each is read once a process. */
typedef struct Choice {
    bool known;
    uint32_t arch_mask;
    int head_dim_min, head_dim_max;
    unsigned dtypes; /* as in Schedule.default_for */
    bool masked, elements, staged, branches, quick_start;
    int64_t max_queries, max_loads;
} Choice;
enum { MAX_SHIPPED = 64 };
static struct {
    pthread_mutex_t lock;
    Choice of[MAX_SHIPPED];
} choices = {.lock = PTHREAD_MUTEX_INITIALIZER};

static Choice choice_in(Diag *d, const Shipped *shipped) {
    const Schedule *s = ag_schedule_read(d, ag_diag_file(d, ag_str(shipped->name), (Str){shipped->text, shipped->len}));
    if (!s) return (Choice){0};
    return (Choice){.known = true,
                    .arch_mask = s->arch_mask,
                    .head_dim_min = s->head_dim_min,
                    .head_dim_max = s->head_dim_max,
                    .dtypes = s->default_for.dtypes,
                    .masked = s->default_for.masked,
                    .elements = s->default_for.elements,
                    .staged = s->default_for.staged,
                    .branches = s->default_for.branches,
                    .quick_start = s->default_for.quick_start,
                    .max_queries = s->default_for.max_queries,
                    .max_loads = s->default_for.max_loads};
}

/* Reads the schedule as a compilation of its own: the caller's Diag hears nothing of it.  Out of memory: it is not known. */
static Choice read_choice(const Shipped *shipped) {
    Diag d = {.arena = ag_arena_new()};
    Choice c = {0};
    if (!d.arena) return c;
    ag_arena_on_oom(d.arena, &d.jump);
    if (setjmp(d.jump) == 0) c = choice_in(&d, shipped);
    ag_arena_free(d.arena);
    return c;
}

static Choice choice_at(size_t i, const Shipped *shipped) {
    assert(i < MAX_SHIPPED);
    pthread_mutex_lock(&choices.lock);
    Choice c = choices.of[i];
    pthread_mutex_unlock(&choices.lock);
    if (c.known) return c;
    c = read_choice(shipped);
    pthread_mutex_lock(&choices.lock);
    choices.of[i] = c;
    pthread_mutex_unlock(&choices.lock);
    return c;
}

static bool is_for(const Choice *c, const Spec *spec, const Target *t, int64_t queries) {
    bool fits = c->known && mask_has(c->arch_mask, t) && head_dim(spec) >= c->head_dim_min && head_dim(spec) <= c->head_dim_max;
    bool wanted = (!c->dtypes || c->dtypes >> (ag_keeps_maximum(spec) ? DT_F16 : spec->dtype) & 1) && (spec->mask || !c->masked);
    wanted = wanted && (!c->staged || ag_elements_in_tiles(spec));
    wanted = wanted && (!c->max_loads || ag_element_loads(spec) <= c->max_loads);
    return fits && wanted && (!c->max_queries || (queries >= 0 && queries <= c->max_queries));
}

/* What a schedule is kept for, and taken for nothing else. */
typedef enum Kept { KEPT_BRANCHES, KEPT_ELEMENTS, KEPT_QUICK_ELEMENTS, KEPT_QUICK_START, KEPT_NOTHING } Kept;
static Kept kept_for(const Choice *c) {
    if (c->branches) return KEPT_BRANCHES;
    if (c->quick_start) return c->elements ? KEPT_QUICK_ELEMENTS : KEPT_QUICK_START;
    return c->elements ? KEPT_ELEMENTS : KEPT_NOTHING;
}

/* The first by name of those kept for that, or of these the one for the fewest queries. */
static const char *first_for(const Spec *spec, const Target *t, int64_t queries, Kept kept, bool staged) {
    const Shipped *shipped;
    const char *best = NULL;
    int64_t fewest = INT64_MAX; /* that best is for; INT64_MAX: any number */
    for (size_t i = 0; (shipped = ag_shipped_schedule(i)); i++) {
        Choice c = choice_at(i, shipped);
        int64_t max = c.max_queries ? c.max_queries : INT64_MAX;
        if (kept_for(&c) != kept || (c.staged && !staged) || !is_for(&c, spec, t, queries) || (best && max >= fewest)) continue;
        best = shipped->name;
        fewest = max;
    }
    return best;
}

/* Those with default_for.elements leave registers for what is read: of them the first behind the one that fits best. */
const char *ag_schedule_fallback(const Spec *spec, const Target *t, int64_t queries, int n) {
    const char *first = ag_schedule_default(spec, t, queries);
    const Shipped *shipped;
    bool behind = !first || !ag_reads_elements(spec) || first == first_for(spec, t, queries, KEPT_NOTHING, true);
    for (size_t i = 0; first && (shipped = ag_shipped_schedule(i)); i++) {
        Choice c = choice_at(i, shipped);
        c.max_loads = 0; /* that is about speed */
        if (behind && kept_for(&c) == KEPT_ELEMENTS && is_for(&c, spec, t, queries) && --n == 0) return shipped->name;
        behind |= strcmp(shipped->name, first) == 0;
    }
    return NULL;
}

static const char *choose(const Spec *spec, const Target *t, int64_t queries, bool staged, bool quick) {
    const char *name = spec->joined ? first_for(spec, t, queries, KEPT_BRANCHES, staged) : NULL;
    bool elements = ag_reads_elements(spec) || spec->weigh || spec->joined;
    if (!name && elements && quick) name = first_for(spec, t, queries, KEPT_QUICK_ELEMENTS, staged);
    if (!name && elements) name = first_for(spec, t, queries, KEPT_ELEMENTS, staged);
    if (!name && quick) name = first_for(spec, t, queries, KEPT_QUICK_START, staged);
    return name ? name : first_for(spec, t, queries, KEPT_NOTHING, staged);
}

const char *ag_schedule_default(const Spec *spec, const Target *t, int64_t queries) { return choose(spec, t, queries, true, false); }
const char *ag_schedule_unstaged(const Spec *spec, const Target *t) { return choose(spec, t, -1, false, false); }
const char *ag_schedule_quick(const Spec *spec, const Target *t) { return choose(spec, t, -1, true, true); }
