/* simulate_each.c: what TI_POOL, TI_MERGE, TI_EACH, TI_OUTPUT and TI_OUTPUT_SUM compute, element by element, and whether every element of an output is written once. */
#include "simulate.h"

#include <math.h>
#include <string.h>

typedef struct Each {
    int64_t extent[KERNEL_TENSORS][INPUT_MAX_DIMS];
    Scalar *value; /* per Ref: at the element at hand */
    bool *wanted;  /* per Ref: the expression reads it */
    Scalar own;    /* BRANCH at the element at hand */
    int row;       /* of a fragment: the row at hand, for VALs of rows */
} Each;

static int64_t elements(const Each *x, const KernelTensor *t, int tensor) {
    int64_t n = 1;
    for (int dim = 0; dim < t->rank; dim++) n *= x->extent[tensor][dim];
    return n;
}

void ag_sim_each_init(Sim *s) {
    Each *x = s->each = NEW(s->arena, Each);
    x->value = NEWN(s->arena, Scalar, (size_t)s->k->nodes.len);
    x->wanted = NEWN(s->arena, bool, (size_t)s->k->nodes.len);
    for (int i = 0; i < s->k->ntensor; i++) {
        const KernelTensor *t = &s->k->tensor[i];
        if (!t->used) continue;
        for (int dim = 0; dim < t->rank; dim++) x->extent[i][dim] = ag_sim_int(s, t->extent[dim]);
        if (t->output && t->rank == 4 && s->k->kind == KERNEL_EACH) s->cover.stored[i] = ag_alloc_n(s->arena, (size_t)elements(x, t, i), 1);
    }
}

/* Where element `at` lies among all of its tensor. */
static int64_t place(const int64_t *extent, const int64_t at[4]) { return ((at[0] * extent[1] + at[1]) * extent[2] + at[2]) * extent[3] + at[3]; }

/* Element of the tensor that `i` writes; *row counts from its first row. */
typedef struct Rows {
    int64_t b, h, row0, end, cols;
} Rows;
static Rows rows_of(Sim *s, const Ins *i, Ref row0) {
    const int64_t *n = s->each->extent[i->n];
    const char *name = s->k->tensor[i->n].name;
    Rows r = {.b = ag_sim_int(s, i->e[2]), .h = ag_sim_int(s, i->e[3]), .row0 = ag_sim_int(s, row0), .cols = n[3]};
    r.end = r.row0 + s->k->queries < n[2] ? r.row0 + s->k->queries : n[2];
    if (r.row0 < 0) ag_sim_fail(s, "rows from %lld on of %s", (long long)r.row0, name);
    if (r.b < 0 || r.b >= n[0]) ag_sim_fail(s, "batch %lld of %s, which has %lld", (long long)r.b, name, (long long)n[0]);
    if (r.h < 0 || r.h >= n[1]) ag_sim_fail(s, "head %lld of %s, which has %lld", (long long)r.h, name, (long long)n[1]);
    return r;
}

static const HostTensor *given(Sim *s, int tensor) {
    const HostTensor *t = ag_sim_tensor(s, tensor);
    if (!t->data) ag_sim_fail(s, "%s is not given", s->k->tensor[tensor].name);
    if (t->type != s->k->tensor[tensor].type) ag_sim_fail(s, "%s is given as %s", s->k->tensor[tensor].name, ag_dtype_name[t->type]);
    return t;
}

static void write(Sim *s, const Ins *i, const int64_t at[4], float x) {
    uint8_t *stored = &s->cover.stored[i->n][place(s->each->extent[i->n], at)];
    if (*stored)
        ag_sim_fail(s, "element [%lld, %lld, %lld, %lld] is written twice", (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3]);
    *stored = 1;
    ag_host_set(given(s, i->n), at[0], at[1], at[2], at[3], x);
}

/* ---- pools */

static float pooled(Sim *s, const Ins *i, int64_t b, int64_t h, int64_t row, int64_t col, int64_t stride, int64_t size) {
    const HostTensor *a = given(s, i->a), *weights = i->b >= 0 ? given(s, i->b) : NULL;
    int64_t rows = s->each->extent[i->a][2], first = row * stride;
    float sum = 0, total = 0;
    for (int64_t j = 0; j < size && first + j < rows; j++) {
        float w = weights ? (float)ag_host_get_at(weights, &j, 1) : 1;
        sum += w * (float)ag_host_get(a, b, h, first + j, col);
        total += w;
    }
    return sum * (1 / total);
}

static void pool(Sim *s, const Ins *i) {
    Rows r = rows_of(s, i, i->e[0]);
    int64_t stride = ag_sim_int(s, i->e[1]), size = ag_sim_int(s, i->e[4]);
    for (int64_t row = r.row0; row < r.end; row++)
        for (int64_t d = 0; d < r.cols; d++) {
            if (row * stride >= s->each->extent[i->a][2]) ag_sim_fail(s, "row %lld is the mean of no row", (long long)row);
            write(s, i, (int64_t[]){r.b, r.h, row, d}, pooled(s, i, r.b, r.h, row, d, stride, size));
        }
}

/* ---- expressions */

static Scalar element(Sim *s, const Node *n) {
    const HostTensor *t = given(s, n->index);
    int64_t at[ATTNGEN_MOST_DIMS] = {0};
    bool in = true;
    for (int i = 0; i < n->nsub; i++) {
        at[i] = s->each->value[n->sub[i]].u.i;
        in = in && at[i] >= 0 && at[i] < s->each->extent[n->index][i];
    }
    switch (n->type) {
    case T_FLOAT: return (Scalar){T_FLOAT, {.f = in ? (float)ag_host_get_at(t, at, n->nsub) : 0}};
    case T_BOOL: return (Scalar){T_BOOL, {.b = in && ag_host_get_int(t, at, n->nsub)}};
    default: return (Scalar){T_INT, {.i = in ? (int32_t)(uint32_t)(uint64_t)ag_host_get_int(t, at, n->nsub) : 0}};
    }
}

static void want(Sim *s, Ref root) {
    Each *x = s->each;
    memset(x->wanted, 0, sizeof(bool) * (size_t)s->k->nodes.len);
    x->wanted[root] = true;
    for (Ref j = root; j > 0; j--) {
        const Node *n = &s->k->nodes.n[j];
        for (int a = 0; x->wanted[j] && a < ag_op[n->op].arity; a++) x->wanted[n->arg[a]] = true;
        for (int a = 0; x->wanted[j] && a < n->nsub; a++) x->wanted[n->sub[a]] = true;
    }
}

/* Of a row of the fragment at hand. */
static Scalar row_value(Sim *s, int val) {
    const Cell *c = &s->cell[val];
    if (!c->written || c->lanes != 1) ag_sim_fail(s, "reads %s, which is no total of the row", ag_sim_name(s, val));
    return (Scalar){T_FLOAT, {.f = c->x[s->each->row]}};
}

/* Of another fragment, in that row. */
static Scalar other_element(Sim *s, int val, int64_t d) {
    const Cell *c = &s->cell[val];
    if (!c->written) ag_sim_fail(s, "reads %s before it is written", ag_sim_name(s, val));
    return (Scalar){T_FLOAT, {.f = c->x[s->each->row * c->v->cols + d]}};
}

/* What varies with the channel, or all the rest. */
static void evaluate(Sim *s, Ref root, bool channel, int64_t q, int64_t h, int64_t d) {
    Each *x = s->each;
    for (Ref r = 1; r <= root; r++) {
        const Node *n = &s->k->nodes.n[r];
        Scalar arg[3] = {{0}};
        if (!x->wanted[r] || (n->axes >> AX_D & 1) != channel) continue;
        for (int i = 0; i < ag_op[n->op].arity; i++) arg[i] = x->value[n->arg[i]];
        if (ag_op[n->op].arity > 0)
            ag_eval(n->op, arg, &x->value[r]);
        else if (n->op == OP_LOAD)
            x->value[r] = element(s, n);
        else if (n->op == OP_BRANCH)
            x->value[r] = n->index ? other_element(s, n->index - 1, d) : x->own;
        else if (n->op == OP_VAL && s->k->val[n->index].space == SPACE_ROW)
            x->value[r] = row_value(s, n->index);
        else if (n->op == OP_AXIS && (n->index == AX_Q || n->index == AX_H || n->index == AX_D))
            x->value[r] = (Scalar){T_INT, {.i = (int32_t)(n->index == AX_Q ? q : n->index == AX_H ? h : d)}};
        else
            x->value[r] = ag_sim_scalar(s, r);
    }
}

static void each(Sim *s, const Ins *i) {
    Each *x = s->each;
    Ref root = i->e[0];
    Rows r = rows_of(s, i, i->e[1]);
    want(s, root);
    for (int64_t row = r.row0; row < r.end; row++) {
        evaluate(s, root, false, row + s->call->size[SZ_OFF], r.h, 0);
        for (int64_t d = 0; d < r.cols; d++) {
            evaluate(s, root, true, row + s->call->size[SZ_OFF], r.h, d);
            write(s, i, (int64_t[]){r.b, r.h, row, d}, (float)x->value[root].u.f);
        }
    }
}

/* ---- merging */

typedef struct Slots {
    int64_t n, first;
    double weight[SELECT_MAX_COUNT + 1], lse; /* of each slot, and of the forced blocks */
} Slots;

/* The slots of the list of a row that count, with their shares. */
static Slots slots_of(Sim *s, const Ins *i, int64_t b, int64_t h, int64_t row) {
    Slots x = {.n = ag_sim_int(s, i->e[4]), .lse = -INFINITY};
    float top = -INFINITY, sum = 0, value[SELECT_MAX_COUNT + 1];
    x.first = row * x.n;
    for (int64_t e = 0; e < x.n; e++) {
        bool counts = ag_sim_slot_counts(s, b, ag_sim_int(s, i->e[1]), row, e);
        const int64_t at[3] = {b, h, x.first + e};
        value[e] = counts ? (float)ag_host_get_at(given(s, i->b), at, 3) : -INFINITY;
        top = fmaxf(top, value[e]);
    }
    value[x.n] = s->k->forced ? (float)ag_host_get_at(given(s, s->k->forced_lse), (const int64_t[]){b, h, row}, 3) : -INFINITY;
    top = fmaxf(top, value[x.n]);
    for (int64_t e = 0; e <= x.n; e++) sum += value[e] = top == -INFINITY ? 0 : expf(value[e] - top);
    for (int64_t e = 0; e <= x.n; e++) x.weight[e] = sum > 0 ? value[e] / sum : 0;
    if (sum > 0) x.lse = top + logf(sum);
    return x;
}

static void merge(Sim *s, const Ins *i) {
    Rows r = rows_of(s, i, i->e[0]);
    Ref root = i->e[5];
    if (root) want(s, root);
    for (int64_t row = r.row0; row < r.end; row++) {
        Slots x = slots_of(s, i, r.b, r.h, row);
        if (root) evaluate(s, root, false, row + s->call->size[SZ_OFF], r.h, 0);
        for (int64_t d = 0; d < r.cols; d++) {
            float sum = x.weight[x.n] > 0 ? (float)x.weight[x.n] * (float)ag_host_get(given(s, s->k->forced_rows), r.b, r.h, row, d) : 0;
            for (int64_t e = 0; e < x.n; e++)
                if (x.weight[e] > 0) sum += (float)x.weight[e] * (float)ag_host_get(given(s, i->a), r.b, r.h, x.first + e, d);
            s->each->own = (Scalar){T_FLOAT, {.f = sum}};
            if (root) evaluate(s, root, true, row + s->call->size[SZ_OFF], r.h, d);
            write(s, i, (int64_t[]){r.b, r.h, row, d}, root ? (float)s->each->value[root].u.f : sum);
        }
        if (i->bar >= 0 && ag_sim_tensor(s, i->bar)->data) ag_host_set(ag_sim_tensor(s, i->bar), r.b, r.h, row, 0, x.lse);
    }
}

/* ---- rows changed step by step */

typedef struct RowAt {
    int64_t q, h, cols;
} RowAt;

/* The value of `root` at a channel, where BRANCH is `own`. */
static Scalar at_channel(Sim *s, Ref root, const RowAt *at, int64_t d, float own) {
    want(s, root);
    s->each->own = (Scalar){T_FLOAT, {.f = own}};
    evaluate(s, root, false, at->q, at->h, 0);
    evaluate(s, root, true, at->q, at->h, d);
    return s->each->value[root];
}

static void rotate(Sim *s, const Ins *i, const RowAt *at, float *x) {
    enum { PI_BITS = 31 };
    for (int p = 0; p < i->col; p++) {
        float *a = &x[i->trans ? 2 * p : p], *b = &x[i->trans ? 2 * p + 1 : i->col + p], first = *a, second = *b, c, n;
        if (i->e[2]) {
            uint64_t turn = (uint64_t)at_channel(s, i->e[2], at, p, 0).u.i * i->turns[p];
            float angle = (float)(int32_t)(uint32_t)(turn >> 32) * (float)ldexp(acos(-1.0), -PI_BITS);
            c = cosf(angle), n = sinf(angle);
        } else {
            c = (float)at_channel(s, i->e[0], at, p, 0).u.f;
            n = (float)at_channel(s, i->e[1], at, p, 0).u.f;
        }
        *a = first * c - second * n;
        *b = second * c + first * n;
    }
}

static void append(Sim *s, const Ins *i, const RowAt *at, int64_t row, float *x) {
    int64_t b = ag_sim_int(s, i->e[0]), h = at_channel(s, i->e[1], at, 0, 0).u.i, n = s->each->extent[i->a][3];
    for (int64_t d = 0; d < n; d++) x[i->col + d] = (float)ag_host_get(given(s, i->a), b, h, row, d);
}

static void step(Sim *s, const Ins *i, const RowAt *at, float *x) {
    float squares = 0;
    switch (i->op) {
    case TI_ROW_NORM:
        for (int64_t d = 0; d < at->cols; d++) squares += x[d] * x[d];
        squares = 1 / sqrtf(squares / (float)at->cols + (float)at_channel(s, i->e[0], at, 0, 0).u.f);
        for (int64_t d = 0; d < at->cols; d++) x[d] *= squares;
        break;
    case TI_ROW_MAP:
        for (int64_t d = 0; d < at->cols; d++) x[d] = (float)at_channel(s, i->e[0], at, d, x[d]).u.f;
        break;
    default: rotate(s, i, at, x); break;
    }
}

static void change_row(Sim *s, const Ins *i, const Rows *r, int64_t h, int64_t row, float *x) {
    RowAt at = {row + s->call->size[SZ_OFF], h, s->each->extent[i->a][3]};
    for (int64_t d = 0; d < at.cols; d++) x[d] = (float)ag_host_get(given(s, i->a), r->b, h, row, d);
    for (const Ins *b = i->body.first; b; b = b->next)
        if (b->op == TI_ROW_APPEND)
            append(s, b, &at, row, x);
        else
            step(s, b, &at, x);
    for (int64_t d = 0; d < r->cols; d++) write(s, i, (int64_t[]){r->b, h, row, d}, x[d]);
}

static void change_rows(Sim *s, const Ins *i) {
    Rows r = rows_of(s, i, i->e[0]);
    float *x = NEWN(s->arena, float, (size_t)r.cols);
    for (int64_t h = r.h; h < r.h + s->k->pack && h < s->each->extent[i->n][1]; h++)
        for (int64_t row = r.row0; row < r.end; row++) change_row(s, i, &r, h, row, x);
}

/* ---- outputs in a fragment */

static void check_rows(Sim *s, const Ins *i, const Cell *d, int64_t b, int64_t h, int64_t row0, int64_t limit) {
    const int64_t *n = s->each->extent[i->n];
    const char *name = s->k->tensor[i->n].name;
    if (b < 0 || b >= n[0]) ag_sim_fail(s, "batch %lld of %s, which has %lld", (long long)b, name, (long long)n[0]);
    if (h < 0 || h + s->k->pack > n[1])
        ag_sim_fail(s, "heads %lld..%lld of %s, which has %lld", (long long)h, (long long)h + s->k->pack - 1, name, (long long)n[1]);
    int64_t rows = (d->v->rows + s->k->pack - 1) / s->k->pack, end = limit < row0 + rows ? limit : row0 + rows;
    if (row0 < 0 || limit > n[2])
        ag_sim_fail(s, "rows %lld..%lld of %s, which has %lld", (long long)row0, (long long)limit - 1, name, (long long)n[2]);
    if (end > row0 + s->k->queries)
        ag_sim_fail(s, "rows %lld..%lld of %s, of which the tile has %d", (long long)row0, (long long)end - 1, name, s->k->queries);
    if (d->from.has_q && (d->from.b != b || d->from.h != h || d->from.q0 != row0))
        ag_sim_fail(s, "%s holds query rows from %lld on of head %lld of batch %lld, not from %lld on of head %lld of batch %lld",
                    ag_sim_name(s, i->op == TI_OUTPUT ? i->dst : i->a), (long long)d->from.q0, (long long)d->from.h, (long long)d->from.b,
                    (long long)row0, (long long)h, (long long)b);
}

/* Row r of fragment d in place, or its sum in the order of a quad: lane l has columns 2l and 2l + 1 of every 8. */
static void output_row(Sim *s, const Ins *i, Cell *d, int r, bool used, int64_t q, int64_t h) {
    Each *x = s->each;
    Ref root = i->e[0];
    float lane[4] = {0, 0, 0, 0};
    x->row = r;
    if (used) evaluate(s, root, false, q, h, 0);
    for (int c = 0; c < d->v->cols; c++) {
        float *element = &d->x[r * d->v->cols + c];
        bool counts = used && c < x->extent[i->n][3];
        x->own = (Scalar){T_FLOAT, {.f = *element}};
        if (counts) evaluate(s, root, true, q, h, c);
        if (i->op == TI_OUTPUT)
            *element = counts ? (float)x->value[root].u.f : NAN;
        else if (counts)
            lane[c % 8 / 2] += (float)x->value[root].u.f;
    }
    if (i->op == TI_OUTPUT_SUM) s->cell[i->dst].x[r] = used ? (lane[0] + lane[1]) + (lane[2] + lane[3]) : NAN;
}

static void output(Sim *s, const Ins *i) {
    if (!s->each) ag_sim_each_init(s);
    int fragment = i->op == TI_OUTPUT ? i->dst : i->a;
    Cell *d = &s->cell[fragment];
    int64_t row0 = ag_sim_int(s, i->e[1]), b = ag_sim_int(s, i->e[2]), h = ag_sim_int(s, i->e[3]), limit = ag_sim_int(s, i->e[4]);
    if (!d->written) ag_sim_fail(s, "reads %s before it is written", ag_sim_name(s, fragment));
    check_rows(s, i, d, b, h, row0, limit);
    want(s, i->e[0]);
    for (int r = 0; r < d->v->rows; r++)
        output_row(s, i, d, r, row0 + r / s->k->pack < limit, row0 + r / s->k->pack + s->call->size[SZ_OFF], h + r % s->k->pack);
    if (i->op == TI_OUTPUT) return;
    s->cell[i->dst].from = d->from;
    s->cell[i->dst].written = true;
}

void ag_sim_each(Sim *s, const Ins *i) {
    if (i->op == TI_OUTPUT || i->op == TI_OUTPUT_SUM)
        output(s, i);
    else if (i->op == TI_POOL)
        pool(s, i);
    else if (i->op == TI_ROWS)
        change_rows(s, i);
    else if (i->op == TI_MERGE)
        merge(s, i);
    else
        each(s, i);
}

void ag_sim_each_end(Sim *s) {
    for (int t = 0; t < s->k->ntensor; t++) {
        const int64_t *n = s->each->extent[t];
        int64_t at[4];
        if (!s->cover.stored[t]) continue;
        for (at[0] = 0; at[0] < n[0]; at[0]++)
            for (at[1] = 0; at[1] < n[1]; at[1]++)
                for (at[2] = 0; at[2] < n[2]; at[2]++)
                    for (at[3] = 0; at[3] < n[3]; at[3]++)
                        if (!s->cover.stored[t][place(n, at)])
                            ag_sim_fail_launch(s, (Span){0}, "element [%lld, %lld, %lld, %lld] of %s is never written", (long long)at[0],
                                               (long long)at[1], (long long)at[2], (long long)at[3], s->k->tensor[t].name);
    }
}
