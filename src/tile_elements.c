/* tile_elements.c: elements of captured tensors that a whole tile of scores shares, and those that are fetched ahead.
 *
 * Tables by distance or bucket end in a value for everything that is far: table[h, clamp(k - q, -128, 128) + 128], T5's last bucket.  Of a tile far from the diagonal
 * all scores then read the same element.  Subscripts are followed by interval arithmetic over the tile's queries and keys; where both ends of each come out alike, the
 * kernel reads the element once and broadcasts it, else it reads one for each score as before:
 *   if (all alike)   x = t[lo];  S = f(S, x)
 *   else             S = f(S, t[i(q, k)])
 * An element for each query and key, bias[b, h, q, k], comes from far: with wgmma it is fetched before the products of its step are issued, two neighbours at a time where they
 * lie so, into a fragment of its own.  With staging.elements.stages it comes in tiles through shared memory, as K does, and so does one for each key, bias[b, k], in rows:
 *   copy pair_tile <- pair[.., q, k];  load E = pair_tile;  S = f(S, E)
 *
 * Bounds go through operations that are monotone; log2.approx is so but for its last bit, which may put a score at the edge of two buckets into either, as it may without this. */
#include <float.h>
#include <math.h>

#include "compile.h"

enum { MOST_NODES = 512, POSITIONS = AG_POSITION_LIMIT + (1 << 16) /* of rows and keys past the ends, too */ };

/* What a value is between over the tile: nodes that are the same for all of it; and numbers that these stay within. */
typedef struct Bounds {
    Ref lo, hi;
    double least, most;
    bool ok;
} Bounds;
static const Bounds unknown = {0};

typedef struct Walk {
    Kernel *k;
    const Ins *map;
    Block *lets; /* what is read more than once */
    Ref assumed; /* what the bounds take for granted; 0: nothing */
    int budget;
} Walk;

static const Node *node(const Walk *w, Ref r) { return &w->k->nodes.n[r]; }
static Ref op2(Walk *w, Op op, Ref a, Ref b) { return ag_fold_node(&w->k->nodes, (Node){.op = op, .arg = {a, b}}); }
static Ref op1(Walk *w, Op op, Ref a) { return ag_fold_node(&w->k->nodes, (Node){.op = op, .arg = {a}}); }
static Ref either(Walk *w, Ref c, Ref a, Ref b) { return ag_fold_node(&w->k->nodes, (Node){.op = OP_SELECT, .arg = {c, a, b}}); }
static Ref num(Walk *w, int64_t n) { return ag_node_int(&w->k->nodes, n); }

/* r under a name of its own. */
static Ref named(Walk *w, Ref r) {
    if (!ag_op[node(w, r)->op].arity) return r;
    return ag_kval(w->k, ag_let(w->k, w->lets, ag_fmt(w->k->arena, "u%d", r).s, r, NULL));
}

/* Is r the same for all elements of the tile? */
static bool is_fixed(const Walk *w, Ref r) {
    const Kernel *k = w->k;
    bool *live = NEWN(k->arena, bool, (size_t)r + 1), fixed = true;
    live[r] = true;
    for (Ref i = r; i > 0 && fixed; i--) { /* operands have smaller indices */
        const Node *n = &k->nodes.n[i];
        if (!live[i]) continue;
        fixed = n->op != OP_AXIS && (n->op != OP_VAL || k->val[n->index].space == SPACE_SCALAR) && n->op != OP_LISTED_BY;
        for (int a = 0; a < ag_op[n->op].arity; a++) live[n->arg[a]] = true;
        for (int a = 0; a < n->nsub; a++) live[n->sub[a]] = true;
    }
    return fixed;
}

static Bounds of_fixed(const Walk *w, Ref r) {
    const Node *n = node(w, r);
    bool is_int = n->type == T_INT;
    Bounds b = {r, r, is_int ? INT32_MIN : -DBL_MAX, is_int ? INT32_MAX : DBL_MAX, n->type != T_BOOL};
    if (n->op == OP_CONST && b.ok) b.least = b.most = is_int ? (double)n->value.u.i : n->value.u.f;
    if (n->op == OP_SIZE)
        b.least = n->index == SZ_OFF ? -AG_POSITION_LIMIT : 0,
        b.most = n->index == SZ_SQ || n->index == SZ_SK || n->index == SZ_OFF ? AG_POSITION_LIMIT : INT32_MAX;
    if (n->op == OP_PARAM && is_int) b.least = -PARAM_INT_MAX, b.most = PARAM_INT_MAX;
    return b;
}

static Bounds of_axis(Walk *w, const Node *n) {
    bool keys = n->index == AX_K;
    Ref first = w->map->e[keys ? 2 : 1];
    int64_t count = keys ? w->k->val[w->map->dst].cols : w->k->queries;
    if (!first || (!keys && n->index != AX_Q)) return unknown;
    return (Bounds){first, op2(w, OP_ADD, first, num(w, count - 1)), keys ? 0 : -POSITIONS, POSITIONS, true};
}

static Bounds bounds(Walk *w, Ref r);

static void assume_positive(Walk *w, Ref x) {
    Ref c = op2(w, OP_GT, x, ag_node_float(&w->k->nodes, 0));
    w->assumed = w->assumed ? op2(w, OP_AND, w->assumed, c) : c;
}

/* Functions that grow with their operand. */
static Bounds of_function(Walk *w, const Node *n) {
    Bounds a = bounds(w, n->arg[0]);
    if (!a.ok) return unknown;
    Bounds b = {op1(w, n->op, a.lo), op1(w, n->op, a.hi), -DBL_MAX, DBL_MAX, true};
    switch (n->op) {
    case OP_TOFLOAT: b.least = a.least, b.most = a.most; break;
    case OP_LOG2:
        assume_positive(w, a.lo);
        b.least = -1100, b.most = a.most > 0 ? log2(a.most) : -1100;
        break;
    case OP_LOG:
        assume_positive(w, a.lo);
        b.least = -800, b.most = a.most > 0 ? log(a.most) : -800;
        break;
    case OP_SQRT:
        assume_positive(w, a.lo);
        b.least = 0, b.most = a.most > 0 ? sqrt(a.most) : 0;
        break;
    case OP_FLOOR: b.least = fmax(floor(a.least), INT32_MIN), b.most = fmin(floor(a.most), INT32_MAX); break;
    case OP_RELU: b.least = fmax(a.least, 0), b.most = fmax(a.most, 0); break;
    default: return unknown;
    }
    return b;
}

static Bounds of_product(Walk *w, const Node *n) {
    for (int i = 0; i < 2; i++) {
        const Node c = *node(w, n->arg[i]);
        if (c.op != OP_CONST) continue;
        double by = c.type == T_INT ? (double)c.value.u.i : c.value.u.f;
        Bounds a = bounds(w, n->arg[1 - i]);
        Ref p = op2(w, OP_MUL, a.lo, n->arg[i]), q = op2(w, OP_MUL, a.hi, n->arg[i]);
        if (!a.ok || by == 0) return unknown;
        return by > 0 ? (Bounds){p, q, a.least * by, a.most * by, true} : (Bounds){q, p, a.most * by, a.least * by, true};
    }
    return unknown;
}

static Bounds of_pair(Walk *w, const Node *n) {
    Bounds a = bounds(w, n->arg[0]), b = bounds(w, n->arg[1]);
    if (!a.ok || !b.ok) return unknown;
    Op op = n->op;
    switch (op) {
    case OP_ADD: return (Bounds){op2(w, op, a.lo, b.lo), op2(w, op, a.hi, b.hi), a.least + b.least, a.most + b.most, true};
    case OP_SUB: return (Bounds){op2(w, op, a.lo, b.hi), op2(w, op, a.hi, b.lo), a.least - b.most, a.most - b.least, true};
    case OP_MIN: return (Bounds){op2(w, op, a.lo, b.lo), op2(w, op, a.hi, b.hi), fmin(a.least, b.least), fmin(a.most, b.most), true};
    case OP_MAX: return (Bounds){op2(w, op, a.lo, b.lo), op2(w, op, a.hi, b.hi), fmax(a.least, b.least), fmax(a.most, b.most), true};
    default: break; /* a division by a positive constant */
    }
    if (b.least != b.most || b.least <= 0) return unknown;
    double less = op == OP_DIV ? 0 : 1; /* by how much a quotient may be rounded down */
    return (Bounds){op2(w, op, a.lo, b.lo), op2(w, op, a.hi, b.lo), a.least / b.least - less, a.most / b.least, true};
}

static Bounds of_clamp(Walk *w, const Node *n) {
    Bounds a = bounds(w, n->arg[0]), lo = bounds(w, n->arg[1]), hi = bounds(w, n->arg[2]);
    if (!a.ok || !lo.ok || !hi.ok) return unknown;
    Ref from = op2(w, OP_MIN, op2(w, OP_MAX, a.lo, lo.lo), hi.lo), to = op2(w, OP_MIN, op2(w, OP_MAX, a.hi, lo.hi), hi.hi);
    return (Bounds){from, to, fmin(fmax(a.least, lo.least), hi.least), fmin(fmax(a.most, lo.most), hi.most), true};
}

/* a where x < y, or by another comparison, else b. */
static Bounds of_choice(Walk *w, const Node *n) {
    const Node c = *node(w, n->arg[0]);
    bool less = c.op == OP_LT || c.op == OP_LE;
    if (!less && c.op != OP_GT && c.op != OP_GE) return unknown;
    Bounds x = bounds(w, c.arg[0]), y = bounds(w, c.arg[1]), a = bounds(w, n->arg[1]), b = bounds(w, n->arg[2]);
    if (!x.ok || !y.ok || !a.ok || !b.ok) return unknown;
    Ref may = named(w, op2(w, c.op, less ? x.lo : x.hi, less ? y.hi : y.lo)), must = named(w, op2(w, c.op, less ? x.hi : x.lo, less ? y.lo : y.hi));
    a.lo = named(w, a.lo), a.hi = named(w, a.hi), b.lo = named(w, b.lo), b.hi = named(w, b.hi);
    Ref lo = either(w, must, a.lo, either(w, may, op2(w, OP_MIN, a.lo, b.lo), b.lo)),
        hi = either(w, must, a.hi, either(w, may, op2(w, OP_MAX, a.hi, b.hi), b.hi));
    return (Bounds){lo, hi, fmin(a.least, b.least), fmax(a.most, b.most), true};
}

static Bounds bounds(Walk *w, Ref r) {
    const Node n = *node(w, r);
    Bounds b = unknown;
    if (--w->budget < 0 || n.type == T_BOOL) return unknown;
    if (is_fixed(w, r)) return of_fixed(w, r);
    switch (n.op) {
    case OP_AXIS: return of_axis(w, &n);
    case OP_NEG: {
        Bounds a = bounds(w, n.arg[0]);
        if (a.ok) b = (Bounds){op1(w, OP_NEG, a.hi), op1(w, OP_NEG, a.lo), -a.most, -a.least, true};
        break;
    }
    case OP_ADD:
    case OP_SUB:
    case OP_MIN:
    case OP_MAX:
    case OP_FLOORDIV:
    case OP_DIV: b = of_pair(w, &n); break;
    case OP_MUL: b = of_product(w, &n); break;
    case OP_SELECT: b = of_choice(w, &n); break;
    case OP_CLAMP: b = of_clamp(w, &n); break;
    default: b = ag_op[n.op].arity == 1 ? of_function(w, &n) : unknown; break;
    }
    if (n.type == T_INT && (b.least < INT32_MIN || b.most > INT32_MAX)) return unknown; /* an end might wrap around */
    return b;
}

/* ---- loads whose subscripts may come to rest */

static bool comes_to_rest(const Walk *w, Ref r) {
    const Node *n = node(w, r);
    bool rests = n->op == OP_MIN || n->op == OP_MAX || n->op == OP_SELECT || n->op == OP_FLOORDIV || n->op == OP_FLOOR || n->op == OP_RELU ||
                 n->op == OP_CLAMP;
    for (int i = 0; i < ag_op[n->op].arity && !rests; i++) rests = comes_to_rest(w, n->arg[i]);
    return rests;
}

enum { MOST_LOADS = 4, MOST_STAGED = 2 };
typedef struct Shared {
    Kernel *k;
    Ref load[MOST_LOADS], alike[MOST_LOADS]; /* and the element that all read where they read one */
    int val[MOST_LOADS], n;
} Shared;

/* The element that all scores read where `*test` holds; 0: that is never so, or not known. */
static Ref element_of_all(Walk *w, Ref load, Ref *test) {
    Node n = *node(w, load);
    Ref all = 0;
    for (int i = 0; i < n.nsub; i++) {
        if (is_fixed(w, n.sub[i])) continue;
        Bounds b = comes_to_rest(w, n.sub[i]) ? bounds(w, n.sub[i]) : unknown;
        if (!b.ok) return 0;
        b.lo = named(w, b.lo);
        Ref same = op2(w, OP_EQ, b.lo, b.hi);
        all = all ? op2(w, OP_AND, all, same) : same;
        n.sub[i] = b.lo;
    }
    if (!all) return 0;
    *test = *test ? op2(w, OP_AND, *test, all) : all;
    n.axes = 0;
    return ag_node_intern(&w->k->nodes, n);
}

static void find_loads(Walk *w, Shared *s, Ref *test) {
    const Kernel *k = w->k;
    Ref root = w->map->e[0];
    bool *live = NEWN(k->arena, bool, (size_t)root + 1);
    live[root] = true;
    for (Ref r = root; r > 0; r--) {
        const Node n = k->nodes.n[r];
        if (!live[r]) continue;
        for (int i = 0; i < ag_op[n.op].arity; i++) live[n.arg[i]] = true;
        if (n.op != OP_LOAD || s->n == MOST_LOADS) continue;
        Ref alike = element_of_all(w, r, test);
        if (alike) s->load[s->n] = r, s->alike[s->n++] = alike;
    }
}

static Ref swap_load(void *payload, Ref r) {
    const Shared *s = payload;
    for (int i = 0; i < s->n; i++)
        if (s->load[i] == r) return ag_kval(s->k, s->val[i]);
    return 0;
}

static void share(Kernel *k, Block *b, Ins *map) {
    Block lets = {0};
    Walk w = {.k = k, .map = map, .lets = &lets, .budget = MOST_NODES};
    Shared s = {.k = k};
    Ref test = 0;
    find_loads(&w, &s, &test);
    if (!s.n || ag_node_is_const(&k->nodes, test)) return;
    if (w.assumed) test = op2(&w, OP_AND, w.assumed, test);
    Ins *yes = ag_ins(k, TI_IF, -1), *no = ag_ins(k, TI_ELSE, -1), *once = ag_ins_clone(k, map);
    yes->e[0] = no->e[0] = test;
    yes->span = no->span = map->span;
    yes->note = "where all scores of the tile read the same element, it is read once";
    for (int i = 0; i < s.n; i++) s.val[i] = ag_let(k, &yes->body, ag_fmt(k->arena, "alike%d", s.load[i]).s, s.alike[i], NULL);
    once->e[0] = ag_node_rebuild(&k->nodes, &k->nodes, map->e[0], swap_load, &s);
    once->note = NULL;
    ag_block_append(&yes->body, once);
    while (lets.first) {
        Ins *i = lets.first;
        ag_block_remove(&lets, i);
        ag_block_insert_before(b, map, i);
    }
    ag_block_insert_after(b, map, no);
    ag_block_insert_after(b, map, yes);
    ag_block_remove(b, map);
    ag_block_append(&no->body, map);
}

/* ---- elements by query and key, fetched ahead */

/* Is it an element by query and key, the key being its last dim and nothing else? */
static bool is_by_key(const Kernel *k, Ref r) {
    const Node *n = &k->nodes.n[r];
    if (n->op != OP_LOAD || n->nsub < 2 || n->type != T_FLOAT || k->tensor[n->index].flat) return false;
    const Node *last = &k->nodes.n[n->sub[n->nsub - 1]];
    bool keys = last->op == OP_AXIS && last->index == AX_K, rows = false;
    for (int i = 0; i < n->nsub - 1 && keys; i++) {
        keys = !ag_expr_uses(k, n->sub[i], OP_AXIS, AX_K);
        rows |= ag_expr_uses(k, n->sub[i], OP_AXIS, AX_Q) || ag_expr_uses(k, n->sub[i], OP_AXIS, AX_H);
    }
    return keys && rows;
}

/* A fragment for what r reads, packed as it lies in memory. */
static int fragment_for(Kernel *k, Ref r, const Val *like) {
    const KernelTensor *t = &k->tensor[k->nodes.n[r].index];
    Val v = *like;
    v.name = ag_fmt(k->arena, "E%d", r);
    v.type = t->type;
    v.reference = v.carry = -1;
    v.lasting = false;
    v.fetched = true;
    return ag_val(k, v);
}

/* Which nodes up to `root` are operands in it, or it; not those of subscripts. */
static const bool *operands_of(const Kernel *k, Ref root) {
    bool *live = NEWN(k->arena, bool, (size_t)root + 1);
    live[root] = true;
    for (Ref r = root; r > 0; r--)
        for (int i = 0; live[r] && i < ag_op[k->nodes.n[r].op].arity; i++) live[k->nodes.n[r].arg[i]] = true;
    return live;
}

static void fetch(Kernel *k, Block *b, Ins *map) {
    Ref root = map->e[0];
    Shared s = {.k = k};
    const bool *live = operands_of(k, root);
    for (Ref r = root; r > 0; r--) {
        if (!live[r]) continue;
        if (s.n == MOST_LOADS || r == root || !is_by_key(k, r)) continue;
        Val like = k->val[map->dst];
        Ins *early = ag_ins_clone(k, map);
        s.load[s.n] = r;
        s.val[s.n++] = early->dst = fragment_for(k, r, &like);
        early->e[0] = r;
        early->note = "---- elements of this step, on their way while the products are computed";
        ag_block_insert_before(b, map, early);
    }
    if (s.n) map->e[0] = ag_node_rebuild(&k->nodes, &k->nodes, root, swap_load, &s);
}

/* ---- elements by query and key, or by key, in tiles through shared memory */

typedef struct Staged {
    Ref load;
    int tile, frag;  /* shared; and what it is read into */
    const Block *in; /* the key loop's body that last got the load: a fragment serves all maps of a step */
} Staged;
typedef struct Staging {
    Fn *fn;
    Staged of[MOST_STAGED];
    int n;
    Ref row0; /* VAL of the tile's first query row */
} Staging;

/* Is it an element that a tile of a tensor map has: its key the last subscript, its query's row, if it has one, the last but one, and the others the same for
 * the tile? */
static bool is_in_tiles(Kernel *k, Ref r, bool *rows) {
    const Node *n = &k->nodes.n[r];
    if (n->op != OP_LOAD || !n->nsub || n->nsub > ELEMENT_TILE_DIMS || k->tensor[n->index].flat || k->tensor[n->index].type != k->spec->dtype)
        return false;
    Walk w = {.k = k};
    const Node *last = &k->nodes.n[n->sub[n->nsub - 1]], *q = n->nsub > 1 ? &k->nodes.n[n->sub[n->nsub - 2]] : NULL;
    *rows = q && q->op == OP_SUB && k->nodes.n[q->arg[0]].op == OP_AXIS && k->nodes.n[q->arg[0]].index == AX_Q &&
            k->nodes.n[q->arg[1]].op == OP_SIZE && k->nodes.n[q->arg[1]].index == SZ_OFF;
    bool in = last->op == OP_AXIS && last->index == AX_K;
    for (int i = 0; i < n->nsub - 1 - *rows && in; i++) in = is_fixed(&w, n->sub[i]);
    return in;
}

static Ref first_row(const Kernel *k) {
    for (const Ins *i = k->role[0].body.first; i; i = i->next)
        if (i->op == TI_COPY && i->a == TEN_Q) return i->e[1];
    return 0;
}

/* The place of r's tile among those of the kernel; -1: it gets none. */
static int staged_as(Staging *s, Ref r, const Ins *map, bool want_rows) {
    Kernel *k = s->fn->kernel;
    bool rows;
    int tensor = k->nodes.n[r].index;
    for (int i = 0; i < s->n; i++)
        if (s->of[i].load == r) return i;
    for (int i = 0; i < s->n; i++)
        if (k->nodes.n[s->of[i].load].index == tensor) return -1; /* it has another map already */
    if (s->n == MOST_STAGED || k->pack > 1 || !is_in_tiles(k, r, &rows) || rows != want_rows || (rows && !s->row0)) return -1;
    const Val like = k->val[map->dst]; /* values move where one is added */
    int tile = ag_val_shared(k, ag_fmt(k->arena, "%s_tile", k->tensor[tensor].name).s, k->tensor[tensor].type, rows ? like.rows : 1, like.cols);
    k->val[tile].panels = rows;
    k->val[tile].elements = true;
    s->of[s->n] = (Staged){r, tile, fragment_for(k, r, &like), NULL};
    return s->n++;
}

/* The copy of the tile of this step, and its load. */
static void copy_and_load(Staging *s, Block *b, Ins *map, const Staged *x) {
    Kernel *k = s->fn->kernel;
    const Node n = k->nodes.n[x->load];
    Ins *copy = ag_ins(k, TI_COPY, x->tile), *load = ag_ins(k, TI_LOAD, x->frag);
    Ref zero = ag_node_int(&k->nodes, 0);
    int row = n.nsub - 2;
    copy->a = n.index;
    for (int e = 0; e < 6; e++) copy->e[e] = zero;
    copy->e[5] = map->e[2];
    if (row >= 0) copy->e[1] = k->val[x->tile].panels ? s->row0 : n.sub[row];
    if (row >= 1) copy->e[4] = n.sub[row - 1];
    if (row >= 2) copy->e[3] = n.sub[row - 2];
    load->a = x->tile;
    load->e[0] = zero;
    copy->span = load->span = map->span;
    ag_block_insert_before(b, map, copy);
    ag_block_insert_before(b, map, load);
}

static void stage(Staging *s, Block *b, Ins *map, bool want_rows) {
    Kernel *k = s->fn->kernel;
    Ref root = map->e[0];
    Shared swap = {.k = k};
    const bool *live = operands_of(k, root);
    for (Ref r = root; r > 0; r--) {
        bool load = live[r] && k->nodes.n[r].op == OP_LOAD;
        int at = load && swap.n < MOST_LOADS ? staged_as(s, r, map, want_rows) : -1;
        if (at < 0) continue;
        swap.load[swap.n] = r;
        swap.val[swap.n++] = s->of[at].frag;
        if (s->of[at].in != b) copy_and_load(s, b, map, &s->of[at]);
        s->of[at].in = b;
    }
    if (swap.n) map->e[0] = ag_node_rebuild(&k->nodes, &k->nodes, root, swap_load, &swap);
}

/* Of a role's key loops; a speculative step does its scores again, without conditions: it has none. */
void ag_share_elements(Fn *fn) {
    Kernel *k = fn->kernel;
    bool wgmma = fn->sched->f[F_MMA_FAMILY].v == FAMILY_WGMMA, exact = fn->sched->f[F_SOFTMAX].v == 0, tiles = fn->sched->f[F_E_STAGES].v > 0;
    Staging staging = {.fn = fn, .row0 = first_row(k)};
    if (k->kind != KERNEL_ATTEND) return;
    for (Ins *l = k->role[0].body.first; l; l = l->next)
        for (Ins *i = l->body.first, *next; l->op == TI_LOOP && l->dst == k->key_loop && i; i = next) {
            next = i->next;
            if (i->op != TI_MAP || k->val[i->dst].space != SPACE_FRAG || k->val[i->dst].type != DT_F32) continue;
            if (tiles) stage(&staging, &l->body, i, true);
            if (tiles) stage(&staging, &l->body, i, false);
            if (wgmma && exact) fetch(k, &l->body, i); /* the other path has no registers to spare */
            if (exact) share(k, &l->body, i);
        }
}
