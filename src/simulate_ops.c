/* simulate_ops.c: what each instruction computes, with the rounding points of the kernel, and which query rows and keys its result stands for.
 * Rows past the end of the tensors (Origin.live) are not computed: nothing may be stored from them. */
#include "simulate.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static Cell *written(Sim *s, int val) {
    Cell *c = &s->cell[val];
    if (!c->written) ag_sim_fail(s, "reads %s before it is written", ag_sim_name(s, val));
    return c;
}

static void not_partial(Sim *s, int val) {
    if (s->k->val[val].partial) ag_sim_fail(s, "reads %s, of which each lane of a quad holds a part, as a total", ag_sim_name(s, val));
}

static int live_rows(const Cell *c) { return c->from.has_q ? c->from.live : c->v->rows; }

static Origin of_source(const Sim *s, const Source *x) {
    if (s->k->tensor[x->tensor].rows != SZ_SQ) return (Origin){0};
    return (Origin){.has_q = true, .b = x->b, .h = x->head, .q0 = x->row0, .live = x->live};
}

/* ---- copies */

static void check_head(Sim *s, const KernelTensor *t, int64_t b, int64_t head) {
    int64_t nb = s->call->size[SZ_B], nh = s->call->size[t->heads];
    if (b < 0 || b >= nb) ag_sim_fail(s, "batch %lld of %s, which has %lld", (long long)b, t->name, (long long)nb);
    if (head < 0 || head >= nh) ag_sim_fail(s, "head %lld of %s, which has %lld", (long long)head, t->name, (long long)nh);
}

/* Of a pool fewer than there are keys. */
static int64_t rows_of(Sim *s, const KernelTensor *t) { return t->extent[2] ? ag_sim_int(s, t->extent[2]) : s->call->size[t->rows]; }

static void check_rows(Sim *s, const KernelTensor *t, int64_t row0, int64_t end) {
    int64_t n = rows_of(s, t);
    if (row0 < 0 || end > n) ag_sim_fail(s, "rows %lld..%lld of %s, which has %lld", (long long)row0, (long long)end - 1, t->name, (long long)n);
}

/* Query heads whose rows lie beside one another in a tile of tensor t. */
static int packed(const Sim *s, const KernelTensor *t) { return t->rows == SZ_SQ ? s->k->pack : 1; }

/* The map of a tensor without rows is that of another tensor's first row (launch.c), which may hold anything: row 0 of the tile that is fetched all the same. */
static void fetch_stand_in(Sim *s, const Ins *i, Stage *g, int64_t row0) {
    if (i->bar < 0 || row0 > 0 || rows_of(s, &s->k->tensor[i->a]) > 0) return;
    for (int c = 0; c < s->k->tensor[i->a].cols; c++) g->x[c] = NAN;
}

/* Rows past the `live` first and columns past the tensor's are zero. */
static void fetch(Sim *s, const Ins *i, Stage *g, int64_t row0, int live, int64_t b, int64_t head) {
    const Val *v = &s->k->val[i->dst];
    const HostTensor *x = ag_sim_tensor(s, i->a);
    int cols = s->k->tensor[i->a].cols < v->cols ? s->k->tensor[i->a].cols : v->cols, pack = packed(s, &s->k->tensor[i->a]);
    memset(g->x, 0, sizeof(float) * (size_t)v->rows * (size_t)v->cols);
    bool entries = s->k->entries && s->k->tensor[i->a].rows == SZ_SQ;
    for (int r = 0; r < live; r++) {
        int64_t row = entries ? ag_sim_query(s, row0 + r / pack) : row0 + r / pack;
        for (int c = 0; c < cols; c++) g->x[r * v->cols + c] = (float)ag_host_get(x, b, head + r % pack, row, c);
    }
    fetch_stand_in(s, i, g, row0);
}

/* Elements of a captured tensor, and zeros where it has none. */
static void fetch_elements(Sim *s, const Ins *i, Stage *g) {
    const Val *v = &s->k->val[i->dst];
    const KernelTensor *t = &s->k->tensor[i->a];
    const HostTensor *x = ag_sim_tensor(s, i->a);
    int64_t first[4] = {ag_sim_int(s, i->e[3]), ag_sim_int(s, i->e[4]), ag_sim_int(s, i->e[1]), ag_sim_int(s, i->e[5])}, extent[4], at[4];
    int none = 4 - t->rank; /* dims that it has not */
    for (int d = 0; d < t->rank; d++) extent[d] = ag_sim_int(s, t->extent[d]);
    for (int j = 0; j < v->rows * v->cols; j++) {
        bool in = true;
        for (int d = 0; d < 4; d++) {
            int64_t n = first[d] + (d == 3 ? j % v->cols : d == 2 ? j / v->cols : 0);
            in = in && n >= 0 && n < (d < none ? 1 : extent[d - none]);
            if (d >= none) at[d - none] = n;
        }
        g->x[j] = in ? (float)ag_host_get_at(x, at, t->rank) : 0;
    }
}

static void copy_elements(Sim *s, const Ins *i) {
    s->stage = ag_sim_int(s, i->e[0]);
    Stage *g = ag_sim_overwrite(s, i->dst, s->stage);
    if (s->order->values) fetch_elements(s, i, g);
    g->source = (Source){.tensor = i->a, .row0 = ag_sim_int(s, i->e[1])};
    if (i->bar < 0 || !s->k->role[s->role].one_thread) ag_sim_fail(s, "elements are copied by TMA, by one thread");
    ag_sim_copied_tma(s, i, g);
}

static void copy(Sim *s, const Ins *i) {
    const Val *v = &s->k->val[i->dst];
    if (v->elements) {
        copy_elements(s, i);
        return;
    }
    const KernelTensor *t = &s->k->tensor[i->a];
    int64_t row0 = ag_sim_int(s, i->e[1]), limit = ag_sim_int(s, i->e[2]), b = ag_sim_int(s, i->e[3]), head = ag_sim_int(s, i->e[4]);
    s->stage = ag_sim_int(s, i->e[0]);
    Stage *g = ag_sim_overwrite(s, i->dst, s->stage);
    int pack = packed(s, t), most = t->rows == SZ_SQ ? s->k->queries : v->rows,
        live = limit <= row0 ? 0 : (limit - row0 < most ? (int)(limit - row0) : most) * pack;
    if (live > 0) check_head(s, t, b, head), check_head(s, t, b, head + pack - 1);
    if (live > 0 && !(s->k->entries && t->rows == SZ_SQ)) check_rows(s, t, row0, row0 + live / pack);
    if (s->order->values) fetch(s, i, g, row0, live, b, head);
    g->source = (Source){i->a, b, head, row0, live};
    if ((i->bar >= 0) != s->k->role[s->role].one_thread)
        ag_sim_fail(s, i->bar >= 0 ? "each thread of the role would copy by TMA" : "a role of one thread copies by TMA only");
    if (i->bar >= 0)
        ag_sim_copied_tma(s, i, g);
    else
        ag_sim_copied(s, g, i->async, i->own);
}

static void load(Sim *s, const Ins *i) {
    Cell *d = &s->cell[i->dst];
    const Val *a = &s->k->val[i->a];
    const Stage *g = ag_sim_read(s, i->a, ag_sim_int(s, i->e[0]), USE_ROWS, false);
    assert((d->v->rows == a->rows || a->elements) && d->v->cols == a->cols);
    if (!s->order->values) return;
    for (int r = 0; r < d->v->rows; r++) memcpy(d->x + r * a->cols, g->x + (a->rows == 1 ? 0 : r * a->cols), sizeof(float) * (size_t)a->cols);
    d->from = of_source(s, &g->source);
    d->written = true;
}

/* What the tile stands for is noted as of a fragment. */
static void stage(Sim *s, const Ins *i) {
    Cell *d = &s->cell[i->dst];
    Stage *g = ag_sim_overwrite(s, i->dst, ag_sim_int(s, i->e[0]));
    ag_sim_written(s, g);
    if (!s->order->values) return;
    const Cell *a = written(s, i->a);
    int n = d->v->cols;
    assert(a->v->rows == d->v->rows && a->v->cols == n);
    for (int j = 0; j < live_rows(a) * n; j++) g->x[j] = ag_round_to(d->v->type, a->x[j]);
    memcpy(d->hidden, a->hidden, (size_t)d->v->rows * (size_t)n);
    d->from = a->from;
    ag_sim_relate_stage(s, i);
    d->written = true;
}

/* ---- products */

typedef float F4 __attribute__((vector_size(16)));

/* c[0..R)[0..8) += a[0..R)[0..depth) * b[0..depth)[0..8) */
static inline void product_block(float *c, int ldc, const float *a, int lda, const float *b, int ldb, int depth, const int R) {
    F4 sum[4][2], x[2];
    for (int r = 0; r < R; r++) memcpy(sum[r], c + r * ldc, sizeof sum[r]);
    for (int d = 0; d < depth; d++) {
        memcpy(x, b + d * ldb, sizeof x);
        for (int r = 0; r < R; r++) {
            float y = a[r * lda + d];
            sum[r][0] += y * x[0];
            sum[r][1] += y * x[1];
        }
    }
    for (int r = 0; r < R; r++) memcpy(c + r * ldc, sum[r], sizeof sum[r]);
}

/* c += a b, row-major, in fp32; cols is a multiple of 8. */
static void product(float *c, int rows, int cols, const float *a, int lda, const float *b, int ldb, int depth) {
    for (int r = 0; r < rows; r += 4)
        for (int j = 0; j < cols; j += 8) {
            if (r + 4 <= rows)
                product_block(c + r * cols + j, cols, a + r * lda, lda, b + j, ldb, depth, 4);
            else
                for (int k = r; k < rows; k++) product_block(c + k * cols + j, cols, a + k * lda, lda, b + j, ldb, depth, 1);
        }
}

/* scratch[c][r] = x[r][c] */
static const float *transposed(Sim *s, const float *x, int rows, int cols) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) s->scratch[c * rows + r] = x[r * cols + c];
    return s->scratch;
}

/* The KV head and batch of `keys` must be those of query head h. */
static void check_kv_head(Sim *s, const Source *keys, const Origin *o) {
    int64_t group = s->call->size[SZ_HQ] / s->call->size[SZ_HKV], g = o->h / group;
    if (keys->live > 0 && (keys->b != o->b || keys->head != g))
        ag_sim_fail(s, "query head %lld of batch %lld takes head %lld of batch %lld of %s, not head %lld", (long long)o->h, (long long)o->b,
                    (long long)keys->head, (long long)keys->b, s->k->tensor[keys->tensor].name, (long long)g);
}

static void score_origin(Sim *s, Cell *d, const Origin *q, const Source *keys) {
    d->from = *q;
    if (!q->has_q) ag_sim_fail(s, "the rows of the first operand are not query rows");
    check_kv_head(s, keys, q);
    d->from.has_k = true;
    d->from.guarded = false;
    d->from.key0 = keys->row0;
    memset(d->hidden, 0, (size_t)d->v->rows * (size_t)d->v->cols);
}

static void output_origin(Sim *s, Cell *d, const Ins *i, const Cell *weights, const Source *keys) {
    const Origin *w = &weights->from;
    d->from = *w;
    d->from.has_k = false;
    s->cover.untold |= !w->has_k;
    if (!w->has_k) return;
    check_kv_head(s, keys, w);
    int n = weights->v->cols;
    if (w->key0 != keys->row0 && rows_of(s, &s->k->tensor[keys->tensor]) > 0)
        ag_sim_fail(s, "%s is for keys %lld..%lld, but %s holds rows %lld..%lld", ag_sim_name(s, i->a), (long long)w->key0,
                    (long long)w->key0 + n - 1, ag_sim_name(s, i->b), (long long)keys->row0, (long long)keys->row0 + n - 1);
    if (s->k->kind == KERNEL_ATTEND) ag_sim_cover_contract(s, weights, d->v->branch);
}

/* ga: NULL if the first operand is a fragment; what is staged counts as one, but for where its elements are */
static void multiply(Sim *s, const Ins *i, const Stage *ga, const Stage *gb) {
    Cell *d = &s->cell[i->dst];
    const Val *va = &s->k->val[i->a], *vb = &s->k->val[i->b];
    bool shared = ga != NULL;
    const Cell *ca = shared && (ga->state != STAGE_ROWS || ga->own) ? NULL : written(s, i->a);
    int depth = i->trans ? vb->cols : vb->rows, ldb = i->trans ? vb->rows : vb->cols, cols = d->v->cols;
    assert(va->rows == d->v->rows && va->cols == depth && i->col + cols <= ldb && cols % 8 == 0);

    ag_sim_relate_mma(s, i);
    Origin qa = ca ? ca->from : of_source(s, &ga->source);
    if (i->trans)
        score_origin(s, d, &qa, &gb->source);
    else if (ca)
        output_origin(s, d, i, ca, &gb->source);
    if (i->zero) memset(d->x, 0, sizeof(float) * (size_t)d->v->rows * (size_t)d->v->cols);
    const float *b = i->trans ? transposed(s, gb->x, vb->rows, vb->cols) : gb->x + i->col;
    product(d->x, live_rows(d), cols, shared ? ga->x : ca->x, va->cols, b, ldb, depth);
    d->written = true;
}

static void mma(Sim *s, const Ins *i) {
    bool shared = s->k->val[i->a].space == SPACE_SHARED;
    if (s->order->values && !i->zero) written(s, i->dst);
    const Stage *gb = ag_sim_read(s, i->b, ag_sim_int(s, i->e[0]), USE_ALL, i->async);
    const Stage *ga = shared ? ag_sim_read(s, i->a, ag_sim_int(s, i->e[1]), USE_ROWS, i->async) : NULL;
    if (s->order->values) multiply(s, i, ga, gb);
    if (i->async) ag_sim_mma_issue(s, i);
}

/* ---- maps */

static void map_operand(Sim *s, const Cell *d, int val) {
    const Cell *c = &s->cell[val];
    if (c->v->space == SPACE_SCALAR) return;
    written(s, val);
    if (!(d->v->space == SPACE_ROW && d->v->partial) && c->v->space == SPACE_ROW) not_partial(s, val);
    bool fits = c->v->space == SPACE_ROW || (c->v->space == SPACE_FRAG && d->v->space == SPACE_FRAG && c->v->cols == d->v->cols);
    if (!fits || c->v->rows != d->v->rows) ag_sim_fail(s, "reads %s, which has another shape", ag_sim_name(s, val));
}

/* What the result stands for follows from what it is computed from. */
static Origin map_origin(Sim *s, const Expr *e, const Cell *d) {
    Origin o = {0};
    for (int v = 0; v < e->nval; v++) {
        const Cell *c = &s->cell[e->val[v]];
        if (c->v->space == SPACE_SCALAR) continue;
        Origin keys = o;
        if (c->from.has_q && !o.has_q) o = c->from;
        o.has_k = keys.has_k;
        o.key0 = keys.key0;
        o.guarded = keys.guarded;
        if (d->v->space == SPACE_FRAG && c->from.has_k) o.has_k = true, o.key0 = c->from.key0, o.guarded |= c->from.guarded;
    }
    o.guarded |= e->hides || e->hider >= 0;
    return o;
}

/* Positions that the expression is evaluated at must be those that its operands stand for. */
static void check_positions(Sim *s, const Expr *e, const Ins *i, const Origin *o, int64_t q0, int64_t h0, int64_t k0) {
    int64_t q = o->q0 + (int32_t)s->call->size[SZ_OFF];
    for (int n = 0; n < e->n; n++) {
        if (e->step[n].op != OP_AXIS) continue;
        if (e->step[n].index == AX_Q && o->has_q && (s->k->entries ? o->q0 : q) != q0)
            ag_sim_fail(s, "query positions start at %lld, but %s holds those from %lld on", (long long)q0, ag_sim_name(s, i->dst), (long long)q);
        if (e->step[n].index == AX_H && o->has_q && o->h != h0)
            ag_sim_fail(s, "heads start at %lld, but %s holds those from %lld on", (long long)h0, ag_sim_name(s, i->dst), (long long)o->h);
        if (e->step[n].index == AX_K && o->has_k && o->key0 != k0)
            ag_sim_fail(s, "keys start at %lld, but %s holds those from %lld on", (long long)k0, ag_sim_name(s, i->dst), (long long)o->key0);
    }
}

/* An element is hidden if an operand is, if it is -inf, or if the guard did not let it pass. */
static void map_hidden(Sim *s, const Expr *e, Cell *d, int row, const Lane *x, int stride) {
    int n = d->v->cols;
    uint8_t *h = d->hidden + row * n;
    bool in_place = false;
    for (int v = 0; v < e->nval; v++) in_place |= &s->cell[e->val[v]] == d;
    if (!in_place) memset(h, 0, (size_t)n);
    for (int v = 0; v < e->nval; v++) {
        const Cell *c = &s->cell[e->val[v]];
        for (int j = 0; c->v->space == SPACE_FRAG && j < n; j++) h[j] |= c->hidden[row * n + j];
    }
    for (int j = 0; j < n; j++) h[j] |= x[j * stride].f == -INFINITY;
    if (e->hider < 0) return;
    const Step *t = &e->step[e->hider];
    for (int j = 0; j < n; j++) h[j] |= !t->lane[t->vary & VARY_COL ? j : 0].i;
}

static void map(Sim *s, const Ins *i) {
    Cell *d = &s->cell[i->dst];
    Expr *e = ag_sim_expr(s, i->e[0]);
    for (int v = 0; v < e->nval; v++) map_operand(s, d, e->val[v]);
    int64_t q0 = i->e[1] ? ag_sim_int(s, i->e[1]) : 0, k0 = i->e[2] ? ag_sim_int(s, i->e[2]) : 0, h0 = i->e[3] ? ag_sim_int(s, i->e[3]) : 0;
    Origin from = map_origin(s, e, d);
    check_positions(s, e, i, &from, q0, h0, k0);
    ag_sim_relate_map(s, i, e);
    d->from = from;
    int columns = d->v->space == SPACE_FRAG ? d->v->cols : d->lanes;
    ag_sim_expr_begin(s, e, k0, columns);
    if (d->hidden && !from.has_k) memset(d->hidden, 0, (size_t)d->v->rows * (size_t)d->v->cols); /* of no keys yet */
    for (int r = 0; r < live_rows(d); r++) {
        const Step *t = ag_sim_expr_row(s, e, q0, h0, r, columns);
        int stride = (t->vary & VARY_COL) != 0;
        if (from.has_k) map_hidden(s, e, d, r, t->lane, stride);
        for (int j = 0; j < columns; j++) d->x[r * columns + j] = ag_round_to(d->v->type, t->lane[j * stride].f);
    }
    d->written = true;
}

static void fill(Sim *s, const Ins *i) {
    Cell *d = &s->cell[i->dst];
    float x = (float)ag_sim_scalar(s, i->e[0]).u.f;
    int n = d->v->rows * (d->v->space == SPACE_FRAG ? d->v->cols : d->lanes);
    for (int j = 0; j < n; j++) d->x[j] = x;
    d->from = (Origin){0};
    d->written = true;
    ag_sim_relate_fill(s, i, x);
}

/* ---- rows */

static float combine(Op op, float a, float b) { return op == OP_RMAX ? fmaxf(a, b) : a + b; }

/* Lane l of a quad holds columns 2l and 2l + 1 of every 8. */
static void reduce_lanes(Op op, const float *x, int n, float lane[4]) {
    for (int l = 0; l < 4; l++) lane[l] = op == OP_RMAX ? -INFINITY : 0;
    for (int j = 0; j < n; j++) lane[j % 8 / 2] = combine(op, lane[j % 8 / 2], x[j]);
}

static void reduce(Sim *s, const Ins *i) {
    Cell *d = &s->cell[i->dst];
    const Cell *a = written(s, i->a), *b = i->b >= 0 ? written(s, i->b) : NULL;
    assert(a->v->space == SPACE_FRAG && a->v->rows == d->v->rows);
    if (b && d->lanes == 1) not_partial(s, i->b);
    if (b && b->lanes != d->lanes) ag_sim_fail(s, "adds the total %s to each lane's part", ag_sim_name(s, i->b));
    ag_sim_relate_reduce(s, i);
    d->from = a->from;
    d->from.has_k = false;
    for (int r = 0; r < live_rows(a); r++) {
        float lane[4];
        reduce_lanes(i->reduce, a->x + r * a->v->cols, a->v->cols, lane);
        if (d->lanes == 1) lane[0] = combine(i->reduce, combine(i->reduce, lane[0], lane[1]), combine(i->reduce, lane[2], lane[3]));
        for (int l = 0; l < d->lanes; l++) d->x[r * d->lanes + l] = b ? combine(i->reduce, b->x[r * d->lanes + l], lane[l]) : lane[l];
    }
    d->written = true;
}

static void total(Sim *s, const Ins *i) {
    Cell *d = &s->cell[i->dst];
    const Cell *a = written(s, i->a);
    if (a->lanes != 4) ag_sim_fail(s, "%s is a total already", ag_sim_name(s, i->a));
    for (int r = 0; r < a->v->rows; r++) {
        const float *x = a->x + 4 * r;
        d->x[r] = (x[0] + x[1]) + (x[2] + x[3]);
    }
    d->from = a->from;
    ag_sim_relate_total(s, i);
    d->written = true;
}

/* ---- stores */

static void store(Sim *s, const Ins *i) {
    const Cell *a = written(s, i->a);
    const KernelTensor *t = &s->k->tensor[i->n];
    const HostTensor *x = ag_sim_tensor(s, i->n);
    int64_t row0 = ag_sim_int(s, i->e[0]), limit = ag_sim_int(s, i->e[1]), b = ag_sim_int(s, i->e[2]), h = ag_sim_int(s, i->e[3]);
    bool wide = i->op == TI_STORE;
    int left = t->cols - i->col, cols = !wide ? 1 : left < a->v->cols ? left : a->v->cols;
    if (!wide) not_partial(s, i->a);
    if (!x->data) return;
    int pack = packed(s, t);
    int64_t most = s->k->queries, live = limit - row0 < most ? limit - row0 : most;
    if (live <= 0) return;
    check_head(s, t, b, h);
    check_head(s, t, b, h + pack - 1);
    if (!s->k->entries) check_rows(s, t, row0, row0 + live);
    if (a->from.has_q && (a->from.q0 != row0 || a->from.b != b || a->from.h != h))
        ag_sim_fail(s, "%s holds query rows from %lld on of head %lld of batch %lld, not from %lld on of head %lld of batch %lld",
                    ag_sim_name(s, i->a), (long long)a->from.q0, (long long)a->from.h, (long long)a->from.b, (long long)row0, (long long)h,
                    (long long)b);
    for (int64_t r = 0; r < live * pack; r++) {
        int64_t head = h + r % pack, q = s->k->entries ? ag_sim_entry(s, row0 + r / pack) : row0 + r / pack;
        if (!i->col) (s->k->entries ? ag_sim_gather_store : ag_sim_cover_store)(s, i->n, b, head, q);
        for (int c = 0; c < cols; c++) ag_host_set(x, b, head, q, i->col + c, a->x[r * (wide ? a->v->cols : 1) + c]);
    }
}

static void compute(Sim *s, const Ins *i) {
    switch (i->op) {
    case TI_FILL: fill(s, i); break;
    case TI_MAP: map(s, i); break;
    case TI_REDUCE: reduce(s, i); break;
    case TI_TOTAL: total(s, i); break;
    case TI_POOL:
    case TI_MERGE:
    case TI_OUTPUT:
    case TI_ROWS:
    case TI_OUTPUT_SUM:
    case TI_EACH: ag_sim_each(s, i); break;
    case TI_ROW_NORM:
    case TI_ROW_MAP:
    case TI_ROW_APPEND:
    case TI_ROW_ROTATE: break; /* steps of TI_ROWS, which runs them */
    case TI_STORE:
    case TI_STORE_ROW: store(s, i); break;
    case TI_COUNT_LISTS:
    case TI_SCAN_LISTS:
    case TI_INVERT_LISTS: ag_sim_invert(s, i); break;
    case TI_BOUND:
    case TI_CLASSIFY: ag_sim_classify(s, i); break;
    default: break; /* control flow: simulate.c */
    }
}

void ag_sim_op(Sim *s, const Ins *i) {
    ag_sim_mma_check(s, i);
    switch (i->op) {
    case TI_COPY: copy(s, i); break;
    case TI_COMMIT: ag_sim_commit(s); break;
    case TI_WAIT: ag_sim_wait(s, i->n); break;
    case TI_EXPECT: ag_sim_expect(s, i); break;
    case TI_ARRIVE: ag_sim_arrive(s, i); break;
    case TI_MMA_COMMIT: ag_sim_mma_commit(s); break;
    case TI_MMA_WAIT: ag_sim_mma_wait(s, i->n); break;
    case TI_LOAD: load(s, i); break;
    case TI_STAGE: stage(s, i); break;
    case TI_FENCE: ag_sim_fence(s); break;
    case TI_MMA: mma(s, i); break;
    case TI_PUT: ag_sim_put(s, i); break;
    case TI_RESET: ag_sim_reset(s); break;
    case TI_TAKE_TURN:
    case TI_PASS_TURN: ag_sim_turn(s, i); break;
    case TI_STORE_WAIT: ag_sim_store_wait(s); break;
    case TI_LOAD_ROW:
    case TI_CLEAR:
    case TI_SUM_HEADS:
    case TI_RANK:
    case TI_STORE_LIST: ag_sim_select(s, i); break;
    case TI_STORE:
        if (i->b >= 0) {
            Stage *g = ag_sim_overwrite(s, i->b, 0);
            ag_sim_staged(s, g);
            if (i->async) ag_sim_store_async(s, g);
        }
        break;
    default: break;
    }
    if (s->order->values) compute(s, i);
}
