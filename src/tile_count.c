/* tile_count.c: which key tiles a tile of queries visits, on the host: by the bounds that ranges has found; and whether a map would leave enough of these out to pay, where
 * the mask is of positions and scalars alone. */
#include "ranges.h"

/* ---- values of nodes for one pair of tiles */

typedef struct Eval {
    const Nodes *p;
    const TilePlace *at;
    int64_t k_first, k_last;
    Scalar *value;
    int *stamp, now; /* value[r] holds if stamp[r] is `now` */
} Eval;

static Eval eval_of(Arena *a, const Nodes *p, const TilePlace *at) {
    return (Eval){.p = p, .at = at, .value = NEWN(a, Scalar, (size_t)p->len), .stamp = NEWN(a, int, (size_t)p->len)};
}

static Scalar of_int(int64_t v) { return (Scalar){T_INT, {.i = v}}; }

static Scalar axis(const TilePlace *at, int index) {
    const int64_t *size = at->call->size;
    if (index == AX_B) return of_int(at->b);
    if (index == AX_G) return of_int(size[SZ_HQ] ? at->h * size[SZ_HKV] / size[SZ_HQ] : 0);
    return of_int(index == AX_H ? at->h : 0);
}

static Scalar param(const Eval *x, const Node *n) {
    double v = x->at->call->scalar[n->index];
    return n->type == T_FLOAT ? (Scalar){T_FLOAT, {.f = (float)v}} : n->type == T_BOOL ? (Scalar){T_BOOL, {.b = v != 0}} : of_int((int32_t)v);
}

static Scalar eval(Eval *x, Ref r);

/* Of an int by batch and head; 0 past its ends. */
static Scalar element(Eval *x, const Node *n) {
    const Spec *spec = x->at->spec;
    int input = n->index - TEN_COUNT;
    const HostTensor *t = &x->at->call->input[input];
    int64_t at[INPUT_MAX_DIMS] = {0};
    bool in = t->data != NULL;
    for (int i = 0; i < n->nsub; i++) {
        at[i] = eval(x, n->sub[i]).u.i;
        in = in && at[i] >= 0 && at[i] < ag_input_extent(spec, input, i, x->at->call->size);
    }
    int64_t v = in ? ag_host_get_int(t, at, n->nsub) : 0;
    return n->type == T_BOOL ? (Scalar){T_BOOL, {.b = v != 0}} : of_int((int32_t)v);
}

static Scalar leaf(Eval *x, const Node *n) {
    bool first = n->op == OP_AXISMIN;
    switch (n->op) {
    case OP_CONST: return n->value;
    case OP_SIZE: return of_int(x->at->call->size[n->index]);
    case OP_PARAM: return param(x, n);
    case OP_AXIS: return axis(x->at, n->index);
    case OP_LOAD: return element(x, n);
    case OP_AXISMIN:
    case OP_AXISMAX:
        if (n->index == AX_K) return of_int(first ? x->k_first : x->k_last);
        return of_int(first ? x->at->q_first : x->at->q_last);
    default: return (Scalar){n->type, {.i = 0}};
    }
}

static Scalar eval(Eval *x, Ref r) {
    const Node *n = &x->p->n[r];
    Scalar arg[3] = {{0}}, v = {n->type, {.i = 0}};
    if (x->stamp[r] == x->now) return x->value[r];
    int arity = ag_op[n->op].arity;
    for (int i = 0; i < arity; i++) arg[i] = eval(x, n->arg[i]);
    if (arity)
        ag_eval(n->op, arg, &v);
    else
        v = leaf(x, n);
    x->stamp[r] = x->now;
    return x->value[r] = v;
}

/* ---- by bounds: as tile_grid.c has them */

static int64_t clamp(int64_t v, int64_t most) { return v < 0 ? 0 : v < most ? v : most; }
static int64_t down(int64_t v, int n) { return v / n; }
static int64_t up(int64_t v, int n) { return (v + n - 1) / n; }

static int64_t bound(Eval *x, Ref r, int64_t none) {
    int64_t sk = x->at->call->size[SZ_SK];
    return r ? clamp(eval(x, r).u.i, sk) : none;
}

void ag_tiles_by_range(const Math *m, const TilePlace *at, int n, uint8_t *kind) {
    const KeyRange *r = &m->range;
    Eval x = eval_of(m->nodes.arena, &m->nodes, at);
    x.now = 1;
    int64_t sk = at->call->size[SZ_SK], lo = down(bound(&x, r->need_lo, 0), n), hi = up(bound(&x, r->need_hi, sk), n);
    int64_t from = r->gap_lo ? up(bound(&x, r->gap_lo, 0), n) : 0, to = r->gap_lo ? down(bound(&x, r->gap_hi, 0), n) : 0;
    int64_t plain_lo = up(bound(&x, r->plain_lo, 0), n), plain_hi = down(bound(&x, r->plain_hi, sk), n);
    for (int64_t j = 0; j * n < sk; j++) {
        bool visited = j >= lo && j < hi && !(j >= from && j < to) && !r->never_needed,
             plain = j >= plain_lo && j < plain_hi && !(r->mask && r->never_plain);
        kind[j] = !visited ? TILE_HIDDEN : plain ? TILE_WHOLE : TILE_PARTIAL;
    }
}

/* ---- would a map pay? */

/* Lengths that are looked at, in tiles of keys, tiles of queries of each, and what has to be left of the tiles that bounds visit: the kernel that makes the map takes some microseconds, and
 * what is left of tiles is worth 1 % of a launch each. */
enum { SHORT = 128, LONG = 1024, SAMPLES = 12, LEFT = 3, OF = 4 };

typedef struct Count {
    int64_t bounds, map;
} Count;

static Count count(const Fn *fn, const HostCall *call, const Nodes *p, Ref may, int queries, int keys) {
    Arena *a = p->arena;
    int64_t sq = call->size[SZ_SQ], tiles_m = (sq + queries - 1) / queries, tiles = (call->size[SZ_SK] + keys - 1) / keys;
    uint8_t *kind = NEWN(a, uint8_t, (size_t)tiles);
    Count c = {0, 0};
    TilePlace at = {.spec = fn->spec, .call = call};
    Eval x = eval_of(a, p, &at);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t m = (2 * i + 1) * tiles_m / (2 * SAMPLES);
        at.q_first = m * queries + call->size[SZ_OFF];
        at.q_last = at.q_first + queries - 1;
        ag_tiles_by_range(fn->math, &at, keys, kind);
        for (int64_t j = 0; j < tiles; j++) {
            if (kind[j] == TILE_HIDDEN) continue;
            x.now++;
            x.k_first = j * keys, x.k_last = x.k_first + keys - 1;
            c.bounds++;
            c.map += eval(&x, may).u.b;
        }
    }
    return c;
}

static void set_defaults(HostCall *call, const Spec *spec) {
    for (int i = 0; i < spec->nparam && i < HOST_SCALARS; i++) {
        const Scalar *v = &spec->param[i].value;
        call->scalar[i] = v->type == T_INT ? (double)v->u.i : v->type == T_BOOL ? v->u.b : v->u.f;
    }
}

bool ag_map_pays(const Fn *fn) {
    static const int length[] = {SHORT, LONG};
    const Spec *spec = fn->spec;
    Nodes p;
    ag_nodes_init(&p, fn->d->arena); /* apart, so that the kernel is the same whatever is asked here */
    Bounded none = {.n = 0};
    Truth t = ag_tile_truth(fn, &p, ag_node_rebuild(&p, &fn->math->nodes, fn->math->range.mask, NULL, NULL), &none);
    if (ag_node_is_const(&p, t.may)) return false;
    bool packed = fn->sched->f[F_PACK_GQA].v;
    int group = spec->group ? spec->group : 1, queries = (int)fn->sched->f[F_TILE_M].v / (packed ? group : 1), keys = (int)fn->sched->f[F_TILE_N].v;
    for (int i = 0; i < LEN(length); i++) {
        int64_t n = (int64_t)length[i] * keys;
        HostCall call = {.size = {[SZ_B] = 1, [SZ_HQ] = group, [SZ_HKV] = 1, [SZ_SQ] = n, [SZ_SK] = n, [SZ_D] = spec->D, [SZ_DV] = spec->Dv}};
        set_defaults(&call, spec);
        Count c = count(fn, &call, &p, t.may, queries, keys);
        if (OF * c.map <= LEFT * c.bounds && c.bounds > 0) return true;
    }
    return false;
}
