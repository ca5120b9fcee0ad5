/* tile_classify.c: the kernel that maps the key tiles of each query tile, for masks of elements by query or by key: documents, segments, padding.
 *
 * Which keys such a mask hides is known when the tensors are there.  A tile of queries and a tile of keys are one of
 *   hidden    no query sees a key: not in the map
 *   whole     each query sees each key, and there are as many as a tile has: needs no mask
 *   partial   everything else
 * Nothing is promised by the user.  First the mask is asked by interval arithmetic (range_bound.c), where the positions are between those of the tiles, and elements by query
 * or by key alone between their least and their greatest value in the tile.  That settles all tiles but a few where neighbours have the same value, in O(1) each.  The others
 * are asked element by element, until a hidden and a visible one are found.  (What a launch takes: docs/performance.md.) */
#include <assert.h>

#include "program.h"
#include "ranges.h"

enum { WARPS = 16, THREADS = 32 * WARPS, PER_SM = 2 };

/* ---- which masks */

/* Axes that the mask varies with. */
static uint8_t axes_of(const Math *m) { return m->nodes.n[m->range.mask].axes; }

bool ag_is_classified(const Fn *fn) {
    const Math *m = fn->math;
    Ref mask = m->range.mask;
    bool packed = fn->sched->f[F_PACK_GQA].v, found = false;
    if (!mask || m->range.never_needed || (packed && axes_of(m) >> AX_H & 1)) return false;
    bool *live = NEWN(m->nodes.arena, bool, (size_t)mask + 1);
    live[mask] = true;
    for (Ref r = mask; r > 0 && !found; r--) { /* operands have smaller indices */
        const Node *n = &m->nodes.n[r];
        if (!live[r]) continue;
        found = n->op == OP_LOAD && n->axes & (1 << AX_Q | 1 << AX_K);
        for (int i = 0; i < ag_op[n->op].arity; i++) live[n->arg[i]] = true;
        for (int i = 0; i < n->nsub; i++) live[n->sub[i]] = true;
    }
    return found || fn->mapped || ag_map_pays(fn);
}

/* ---- where the map is: rows [B or 1, Hq or 1, query tiles], each of MAP_HEAD words and a bit for each key tile */

static Ref op(Kernel *k, Op o, Ref a, Ref b) { return ag_fold_node(&k->nodes, (Node){.op = o, .arg = {a, b}}); }
static Ref num(Kernel *k, int64_t n) { return ag_node_int(&k->nodes, n); }
static Ref size(Kernel *k, Size s) { return ag_node_leaf(&k->nodes, OP_SIZE, T_INT, (int)s, (Span){0}); }

static bool by_batch(const Fn *fn) { return axes_of(fn->math) >> AX_B & 1; }
static bool by_head(const Fn *fn) { return axes_of(fn->math) & (1 << AX_H | 1 << AX_G); }
static int tile_keys(const Fn *fn) { return (int)fn->sched->f[F_TILE_N].v; }
static int tile_queries(const Fn *fn) { return (int)fn->sched->f[F_TILE_M].v / (fn->sched->f[F_PACK_GQA].v ? fn->spec->group : 1); }
static Size heads_of(const Fn *fn) { return fn->sched->f[F_PACK_GQA].v ? SZ_HKV : SZ_HQ; }

/* At least one, which a row without tiles has. */
static Ref words(Kernel *k, const Fn *fn) { return op(k, OP_CEILDIV, op(k, OP_MAX, size(k, SZ_SK), num(k, 1)), num(k, 32 * tile_keys(fn))); }
static Ref query_tiles(Kernel *k, const Fn *fn) { return op(k, OP_CEILDIV, size(k, SZ_SQ), num(k, tile_queries(fn))); }
static Ref room(Kernel *k, const Fn *fn) { return op(k, OP_ADD, words(k, fn), num(k, MAP_HEAD)); }
static Ref rows(Kernel *k, const Fn *fn) {
    Ref n = query_tiles(k, fn);
    if (by_head(fn)) n = op(k, OP_MUL, n, size(k, heads_of(fn)));
    return by_batch(fn) ? op(k, OP_MUL, n, size(k, SZ_B)) : n;
}

void ag_tile_map(Kernel *k, const Fn *fn) {
    KernelTensor t = {.name = "tiles", .type = DT_I32, .rank = 1, .used = true, .flat = true, .program = -1 /* see ag_add_map */};
    t.extent[0] = op(k, OP_MUL, rows(k, fn), room(k, fn));
    k->tiles = ag_kernel_tensor(k, t);
}

Ref ag_tile_row(Kernel *k, const Fn *fn, Ref b, Ref h, Ref tiles_m, Ref m) {
    Ref n = by_batch(fn) ? b : num(k, 0);
    if (by_head(fn)) n = op(k, OP_ADD, op(k, OP_MUL, n, size(k, heads_of(fn))), h);
    n = op(k, OP_ADD, op(k, OP_MUL, n, tiles_m), m);
    return op(k, OP_ADD, op(k, OP_MUL, n, room(k, fn)), num(k, MAP_HEAD));
}

Ref ag_tile_head(Kernel *k, Ref row, int what) {
    Node n = {.op = OP_LOAD, .type = T_INT, .index = k->tiles, .nsub = 1};
    n.sub[0] = op(k, OP_SUB, row, num(k, what));
    return ag_node_intern(&k->nodes, n);
}

/* ---- the kernel */

typedef struct Builder {
    const Fn *fn;
    Kernel *k;
    int b, h, g, q0, q_last, k_first, k_last;
    Bounded bounded;
    int least[MAX_BOUNDED], most[MAX_BOUNDED];
} Builder;

static Ref val(const Builder *x, int v) { return ag_kval(x->k, v); }
static int let(Builder *x, const char *name, Ref e, const char *note) { return ag_let(x->k, &x->k->role[0].body, name, e, note); }

static Ref convert(Builder *x, Ref r);

/* Math node -> kernel node. */
static Ref swap(void *payload, Ref r) {
    Builder *x = payload;
    Node n = x->fn->math->nodes.n[r];
    bool first = n.op == OP_AXISMIN;
    if (first || n.op == OP_AXISMAX) {
        if (n.index == AX_Q) return val(x, first ? x->q0 : x->q_last);
        if (n.index == AX_K) return val(x, first ? x->k_first : x->k_last);
        return val(x, (first ? x->least : x->most)[n.index - AX_COUNT]);
    }
    if (n.op == OP_AXIS) return n.index == AX_B ? val(x, x->b) : n.index == AX_H ? val(x, x->h) : n.index == AX_G ? val(x, x->g) : 0;
    if (n.op != OP_LOAD) return 0;
    n.index = ag_output_input(x->k, x->fn->spec, n.index - TEN_COUNT, n.span);
    for (int i = 0; i < n.nsub; i++) n.sub[i] = convert(x, n.sub[i]);
    n.axes = 0;
    return ag_node_intern(&x->k->nodes, n);
}
static Ref convert(Builder *x, Ref r) { return ag_node_rebuild(&x->k->nodes, &x->fn->math->nodes, r, swap, x); }

static Kernel *begin(const Fn *fn) {
    Kernel *k = ag_kernel_new(fn->d, fn->spec, fn->sched, fn->target, ag_fmt(fn->d->arena, "%.*s_tiles", STRF(fn->spec->name)));
    k->kind = KERNEL_CLASSIFY;
    k->nrole = 1;
    k->role[0] = (Role){.name = "all", .warps = WARPS};
    k->threads = THREADS;
    k->per_sm = PER_SM;
    k->numerics = STR("i32");
    k->queries = tile_queries(fn);
    ag_tile_map(k, fn);
    k->tensor[k->tiles].output = true;
    k->blocks = rows(k, fn);
    return k;
}

/* Which query tile a block of threads looks at; returns where its row of the map begins. */
static Ref place(Builder *x) {
    Kernel *k = x->k;
    const Fn *fn = x->fn;
    Ref rest = ag_node_leaf(&k->nodes, OP_BLOCK, T_INT, 0, (Span){0}), queries = num(k, tile_queries(fn)), h = num(k, 0), b = num(k, 0);
    int tiles_m = let(x, "tiles_m", query_tiles(k, fn), "---- the query tile of this block");
    int m = let(x, "m", op(k, OP_MOD, rest, val(x, tiles_m)), NULL);
    rest = op(k, OP_FLOORDIV, rest, val(x, tiles_m));
    if (by_head(fn)) h = op(k, OP_MOD, rest, size(k, heads_of(fn))), rest = op(k, OP_FLOORDIV, rest, size(k, heads_of(fn)));
    if (by_batch(fn)) b = rest;
    x->h = let(x, "h", h, NULL);
    x->b = let(x, "b", b, NULL);
    Ref group = op(k, OP_FLOORDIV, size(k, SZ_HQ), size(k, SZ_HKV));
    x->g = let(x, "g", fn->sched->f[F_PACK_GQA].v ? val(x, x->h) : op(k, OP_FLOORDIV, val(x, x->h), group), "kv head");
    int row0 = let(x, "row0", op(k, OP_MUL, val(x, m), queries), NULL);
    Ref end = op(k, OP_MIN, op(k, OP_ADD, val(x, row0), queries), size(k, SZ_SQ));
    x->q0 = let(x, "q0", op(k, OP_ADD, val(x, row0), size(k, SZ_OFF)), "position of the first query row");
    x->q_last = let(x, "q_last", op(k, OP_ADD, op(k, OP_SUB, end, num(k, 1)), size(k, SZ_OFF)), "position of the last query row");
    return val(x, let(x, "map", ag_tile_row(k, fn, val(x, x->b), val(x, x->h), val(x, tiles_m), val(x, m)), NULL));
}

/* The least and the greatest value of each bounded element: by query once, by key in each key tile. */
static void bound(Builder *x, Block *keys) {
    const Nodes *p = &x->fn->math->nodes;
    for (int i = 0; i < x->bounded.n; i++) {
        Ref load = x->bounded.load[i];
        const Node *n = &p->n[load];
        bool by_key = n->axes >> AX_K & 1;
        x->least[i] = ag_val_scalar(x->k, ag_fmt(x->k->arena, "least%d", i).s, n->type);
        x->most[i] = ag_val_scalar(x->k, ag_fmt(x->k->arena, "most%d", i).s, n->type);
        Ins *b = ag_ins(x->k, TI_BOUND, x->least[i]);
        b->a = x->most[i];
        b->b = by_key ? x->k_first : x->q0;
        b->bar = by_key ? x->k_last : x->q_last;
        b->trans = by_key;
        b->span = n->span;
        b->e[0] = convert(x, load);
        ag_block_append(by_key ? keys : &x->k->role[0].body, b);
    }
}

/* Key tiles that the bounds of positions leave. */
static void range_of_tiles(Builder *x, Ins *i) {
    Kernel *k = x->k;
    const KeyRange *r = &x->fn->math->range;
    Ref zero = num(k, 0), n = num(k, tile_keys(x->fn)), lo = zero, hi = size(k, SZ_SK);
    if (r->need_lo) lo = op(k, OP_FLOORDIV, op(k, OP_MAX, convert(x, r->need_lo), zero), n);
    if (r->need_hi) hi = op(k, OP_MAX, op(k, OP_MIN, convert(x, r->need_hi), hi), zero);
    i->e[1] = val(x, let(x, "j_lo", lo, "---- key tiles that positions alone do not rule out"));
    i->e[2] = val(x, let(x, "j_hi", op(k, OP_CEILDIV, hi, n), NULL));
}

/* What interval arithmetic says of a tile: what it takes for granted is asked with it. */
Truth ag_tile_truth(const Fn *fn, Nodes *p, Ref mask, Bounded *bounded) {
    bool one_head = !fn->sched->f[F_PACK_GQA].v;
    Ranges g = {.spec = fn->math->spec,
                .p = p,
                .keys = AG_POSITION_LIMIT,
                .tile = (uint8_t)(1 << AX_B | 1 << AX_G | (one_head ? 1 << AX_H : 0)),
                .budget = 4096,
                .bounded = bounded};
    Truth t = ag_rg_truth(&g, mask);
    if (!g.assumed) return t;
    Ref unknown = ag_fold_node(p, (Node){.op = OP_NOT, .arg = {g.assumed}});
    return (Truth){ag_rg_op(&g, OP_OR, t.may, unknown), ag_rg_op(&g, OP_AND, t.must, g.assumed)};
}

Kernel *ag_build_classify(const Fn *fn) {
    Builder x = {.fn = fn, .k = begin(fn)};
    Kernel *k = x.k;
    Truth t = ag_tile_truth(fn, &fn->math->nodes, fn->math->range.mask, &x.bounded);
    Ref row = place(&x);
    x.k_first = ag_val_scalar(k, "k_first", T_INT);
    x.k_last = ag_val_scalar(k, "k_last", T_INT);
    Ins *i = ag_ins(k, TI_CLASSIFY, x.k_first);
    i->note = "---- key tiles, as many at a time as there are threads";
    i->col = x.k_last;
    i->b = x.q0;
    i->bar = x.q_last;
    i->n = tile_keys(fn);
    i->span = fn->spec->mask ? fn->spec->mask->span : (Span){0};
    i->e[0] = row;
    range_of_tiles(&x, i);
    bound(&x, &i->body);
    i->e[3] = convert(&x, t.may);
    i->e[4] = convert(&x, t.must);
    k->guard = convert(&x, fn->math->range.visible);
    if (!ag_expr_uses(k, k->guard, OP_AXIS, AX_Q)) i->b = i->bar = -1; /* padding: all queries see the same keys */
    ag_block_append(&k->role[0].body, i);
    ag_remove_dead_lets(k, &k->role[0].body);
    ag_stop_if_errors(fn->d);
    ag_place_arguments(k);
    return k;
}
