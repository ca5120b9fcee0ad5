/* reference.c: attention from the syntax tree, in double precision; and the same done naively in the storage type, the yardstick for errors.
 *
 * For a query at position q = row + off and every key k that the mask lets through,
 *     x[k] = score(scale * <Q[q], K[k]>),  LSE = log(sum exp x, and `plus` if there is one),  O = sum exp(x[k] - LSE) w[k] V[k],  w = `weigh`, else 1.
 * Keys that are hidden contribute nothing at all: their K and V are not even read.  A row that sees no key (or only keys of score -inf) gives O = 0
 * and LSE = -inf.  Shares nothing with the compiler's passes, nor with the kernels' arithmetic in op.c. */
#include "reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- expressions, in double and int64 */

/* Where an expression is evaluated, and the lets already known there. */
typedef struct Point {
    const Spec *spec;
    const HostCall *call;
    int64_t axis[AX_COUNT], Sk;
    double s;
    const double *branch, *mean, *key;
    HostRow *row;
    uint64_t known; /* bit per let */
    Scalar let[SPEC_MAX_LETS];
} Point;

static Scalar of_bool(bool b) { return (Scalar){T_BOOL, {.b = b}}; }
static Scalar of_int(int64_t i) { return (Scalar){T_INT, {.i = i}}; }
static Scalar of_float(double f) { return (Scalar){T_FLOAT, {.f = f}}; }

/* Rounds down; 0 for b = 0. */
static int64_t divide(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* Of the result the low 32 bits count: ints wrap around. */
static int64_t int_op(Op op, int64_t a, int64_t b, int64_t c) {
    uint64_t x = (uint64_t)a, y = (uint64_t)b;
    switch (op) {
    case OP_ADD: return (int64_t)(x + y);
    case OP_SUB: return (int64_t)(x - y);
    case OP_MUL: return (int64_t)(x * y);
    case OP_NEG: return (int64_t)(0 - x);
    case OP_FLOORDIV: return divide(a, b);
    case OP_MOD: return b == 0 ? 0 : (int64_t)(x - y * (uint64_t)divide(a, b));
    case OP_RELU: return a > 0 ? a : 0;
    case OP_ABS: return a < 0 ? (int64_t)(0 - x) : a;
    case OP_MIN: return a < b ? a : b;
    case OP_MAX: return a > b ? a : b;
    case OP_CLAMP: a = a > b ? a : b; return a < c ? a : c;
    default: return a; /* floor */
    }
}

/* Remainder with the sign of b; 0 for b = 0. */
static double remainder_of(double a, double b) {
    double r = b == 0 ? 0 : fmod(a, b);
    return r != 0 && signbit(r) != signbit(b) ? r + b : r;
}

static double float_op(Op op, double a, double b, double c) {
    switch (op) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_FLOORDIV: return floor(a / b);
    case OP_MOD: return remainder_of(a, b);
    case OP_POW: return pow(a, b);
    case OP_NEG: return -a;
    case OP_EXP: return exp(a);
    case OP_EXP2: return exp2(a);
    case OP_LOG: return log(a);
    case OP_LOG2: return log2(a);
    case OP_TANH: return tanh(a);
    case OP_SIGMOID: return a >= 0 ? 1 / (1 + exp(-a)) : exp(a) / (1 + exp(a));
    case OP_SOFTPLUS: return a > 0 ? a + log1p(exp(-a)) : log1p(exp(a));
    case OP_RELU: return fmax(a, 0);
    case OP_SQRT: return sqrt(a);
    case OP_RSQRT: return 1 / sqrt(a);
    case OP_SIN: return sin(a);
    case OP_COS: return cos(a);
    case OP_ABS: return fabs(a);
    case OP_MIN: return fmin(a, b);
    case OP_MAX: return fmax(a, b);
    default: return fmin(fmax(a, b), c); /* clamp */
    }
}

static bool compare(Op op, Scalar x, Scalar y) {
    bool f = x.type == T_FLOAT;
    bool less = f ? x.u.f < y.u.f : x.u.i < y.u.i, equal = f ? x.u.f == y.u.f : x.u.i == y.u.i, more = f ? x.u.f > y.u.f : x.u.i > y.u.i;
    switch (op) {
    case OP_LT: return less;
    case OP_LE: return less || equal;
    case OP_GT: return more;
    case OP_GE: return more || equal;
    case OP_EQ: return equal;
    default: return !equal;
    }
}

static int64_t to_int(double x) {
    if (isnan(x)) return 0;
    return x <= INT32_MIN ? INT32_MIN : x >= INT32_MAX ? INT32_MAX : (int64_t)floor(x);
}

static Scalar eval(Point *p, const Ast *e);

/* An element of a captured tensor.  Rows of an axis q count from query row 0, positions from `off`; past the end of a dim there are zeros; ints have
 * 32 bits. */
static Scalar eval_load(Point *p, const Ast *e) {
    const HostTensor *t = &p->call->input[e->index];
    const Input *x = &p->spec->input[e->index];
    int64_t at[INPUT_MAX_DIMS] = {0};
    bool in = t->data != NULL;
    for (int i = 0; i < e->nsub; i++) {
        const Dim *d = &x->dim[i];
        const Ast *sub = e->sub[i];
        at[i] = eval(p, sub).u.i;
        if (d->kind == DIM_AXIS && d->axis == AX_Q && sub->op == OP_AXIS && sub->index == AX_Q) at[i] -= p->call->size[SZ_OFF];
        if (d->kind == DIM_CONST && d->n.n == 1) at[i] = 0;
        in = in && at[i] >= 0 && at[i] < ag_input_extent(p->spec, e->index, i, p->call->size);
    }
    switch (e->type) {
    case T_FLOAT: return of_float(in ? ag_host_get_at(t, at, e->nsub) : 0);
    case T_BOOL: return of_bool(in && ag_host_get_int(t, at, e->nsub));
    default: return of_int(in ? (int32_t)(uint32_t)(uint64_t)ag_host_get_int(t, at, e->nsub) : 0);
    }
}

static Scalar eval_leaf(Point *p, const Ast *e) {
    const Spec *spec = p->spec;
    switch (e->op) {
    case OP_CONST: return e->value;
    case OP_AXIS: return of_int(p->axis[e->index]);
    case OP_SIZE: return of_int(e->index == SZ_SK ? p->Sk : p->call->size[e->index]);
    case OP_PARAM: return e->type == T_INT ? of_int((int64_t)p->call->scalar[e->index]) : of_float(p->call->scalar[e->index]);
    case OP_SCORE: return of_float(p->s);
    case OP_LOAD: return eval_load(p, e);
    case OP_BRANCH: return of_float(p->branch[e->index]);
    default: break;
    }
    if (!(p->known >> e->index & 1)) {
        p->let[e->index] = eval(p, spec->let[e->index].value);
        p->known |= (uint64_t)1 << e->index;
    }
    return p->let[e->index];
}

/* The product of the rows of two inputs, or of one with the key. */
static double eval_dot(const Point *p, const Ast *e) {
    double sum = 0;
    if (e->arg[1]->op == OP_AXIS) {
        int64_t row[4] = {p->axis[AX_B], p->axis[AX_H], p->axis[AX_Q] - p->call->size[SZ_OFF], 0};
        for (; row[3] < p->spec->D; row[3]++) sum += ag_host_get_at(&p->call->input[e->arg[0]->index], row, 4) * p->key[row[3]];
        return sum;
    }
    int64_t at[2][4] = {{p->axis[AX_B], 0, p->axis[AX_Q] - p->call->size[SZ_OFF], 0}, {p->axis[AX_B], 0, p->axis[AX_K], 0}};
    const Input *in[2] = {&p->spec->input[e->arg[0]->index], &p->spec->input[e->arg[1]->index]};
    for (int i = 0; i < 2; i++) {
        const Dim *dim = in[i]->dim;
        if (dim[0].kind == DIM_CONST) at[i][0] = 0;
        if (dim[1].kind == DIM_AXIS) at[i][1] = p->axis[dim[1].axis];
    }
    for (int64_t d = 0; d < in[0]->dim[3].n.n; d++) {
        at[0][3] = at[1][3] = d;
        sum += ag_host_get_at(&p->call->input[e->arg[0]->index], at[0], 4) * ag_host_get_at(&p->call->input[e->arg[1]->index], at[1], 4);
    }
    return sum;
}

/* The argument of a norm at channel d. */
static double channel(const Point *p, const Ast *e, int64_t d) {
    double value[SPEC_MAX_BRANCHES];
    Point at = *p;
    at.axis[AX_D] = d;
    for (int i = 0; i < p->spec->nbranch; i++) value[i] = p->row->branch[i][d];
    at.branch = value;
    return eval(&at, e->arg[0]).u.f;
}

/* (x - mean) / sqrt(mean of (x - mean)^2 + eps) over the channels, with the mean taken for 0 by rms_norm.  0 if the root is. */
static double eval_norm(Point *p, const Ast *e) {
    HostRow *row = p->row;
    int i = 0;
    while (i < row->n && row->norm[i].e != e) i++;
    assert(i < SPEC_MAX_NORMS);
    if (i == row->n) {
        double n = p->spec->Dv, mean = 0, square = 0;
        for (int d = 0; d < p->spec->Dv && e->op == OP_LAYER_NORM; d++) mean += channel(p, e, d) / n;
        for (int d = 0; d < p->spec->Dv; d++) {
            double y = channel(p, e, d) - mean;
            square += y * y / n;
        }
        square += eval(p, e->arg[1]).u.f;
        i = row->n++; /* those within are known now */
        row->norm[i].e = e;
        row->norm[i].mean = mean;
        row->norm[i].inverse = square == 0 ? 0 : 1 / sqrt(square);
    }
    return (eval(p, e->arg[0]).u.f - row->norm[i].mean) * row->norm[i].inverse;
}

static Scalar eval(Point *p, const Ast *e) {
    if (e->op == OP_DOT) return of_float(eval_dot(p, e));
    if (e->op == OP_MEAN) return of_float(p->mean[e->arg[0]->index]);
    if (ag_op_has(e->op, 'L')) return eval_leaf(p, e);
    if (ag_op_has(e->op, 'K')) return of_float(eval_norm(p, e));
    Scalar a = eval(p, e->arg[0]), b = a, c = a;
    if (e->op == OP_SELECT) return eval(p, e->arg[a.u.b ? 1 : 2]);
    if (e->op == OP_NOT) return of_bool(!a.u.b);
    if (e->op == OP_AND) return a.u.b ? eval(p, e->arg[1]) : a;
    if (e->op == OP_OR) return a.u.b ? a : eval(p, e->arg[1]);
    if (e->op == OP_TOFLOAT) return of_float((double)a.u.i);
    if (e->op == OP_FLOOR) return a.type == T_INT ? a : of_int(to_int(a.u.f));
    if (e->arg[1]) b = eval(p, e->arg[1]);
    if (e->arg[2]) c = eval(p, e->arg[2]);
    if (e->type == T_BOOL) return of_bool(compare(e->op, a, b));
    return a.type == T_INT ? of_int((int32_t)(uint32_t)int_op(e->op, a.u.i, b.u.i, c.u.i)) : of_float(float_op(e->op, a.u.f, b.u.f, c.u.f));
}

int64_t ag_kv_head(const HostCall *call, int64_t h) {
    int64_t hq = call->size[SZ_HQ], hkv = call->size[SZ_HKV];
    return hkv > 0 ? h / (hq / hkv) : 0;
}

Scalar ag_ast_eval_at(const Spec *spec, const HostCall *call, const Ast *e, const HostPoint *at) {
    Point p; /* its lets are left as they are: `known` says which have a value */
    p.spec = spec;
    p.call = call;
    p.Sk = at->Sk;
    p.s = at->s;
    p.branch = at->branch;
    p.mean = at->mean;
    p.key = at->key;
    p.row = at->row;
    p.known = 0;
    p.axis[AX_B] = at->b;
    p.axis[AX_H] = at->h;
    p.axis[AX_G] = ag_kv_head(call, at->h);
    p.axis[AX_Q] = at->q;
    p.axis[AX_K] = at->k;
    p.axis[AX_D] = at->d;
    return eval(&p, e);
}

Scalar ag_ast_eval(const Spec *spec, const HostCall *call, const Ast *e, int64_t b, int64_t h, int64_t qpos, int64_t k, double s) {
    return ag_ast_eval_at(spec, call, e, &(HostPoint){.b = b, .h = h, .q = qpos, .k = k, .s = s, .Sk = call->size[SZ_SK]});
}

bool ag_visible(const Spec *spec, const HostCall *call, int64_t b, int64_t h, int64_t q, int64_t k) {
    return !spec->mask || ag_ast_eval(spec, call, spec->mask, b, h, q + call->size[SZ_OFF], k, 0).u.b;
}

/* ---- rows */

static Scalar at_key(const Row *r, const Ast *e, int64_t k, double s) {
    HostPoint at = {.b = r->b, .h = r->h, .q = r->q + r->call->size[SZ_OFF], .k = k, .s = s, .Sk = r->Sk, .key = r->key + k * r->D};
    return ag_ast_eval_at(r->spec, r->call, e, &at);
}

/* By what the weight of key number i of those that the row sees is multiplied. */
static double factor(const Row *r, int64_t i) {
    double s = r->call->scalar[0] * ag_row_dot(r->query, r->key + r->seen[i] * r->D, r->D);
    return at_key(r, r->weigh, r->seen[i], s).u.f;
}

static double score(const Row *r, int64_t k, double s) { return r->score ? at_key(r, r->score, k, s).u.f : s; }

void ag_row_seen(Row *r, const bool *in) {
    r->n = 0;
    for (int64_t k = 0; k < r->Sk; k++)
        if ((!in || in[k]) && (!r->mask || at_key(r, r->mask, k, 0).u.b)) r->seen[r->n++] = k;
}

/* Four partial sums, so that the loop is not bound by the latency of one addition. */
double ag_row_dot(const double *x, const double *y, int64_t n) {
    double sum[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) sum[j] += x[i + j] * y[i + j];
    for (; i < n; i++) sum[0] += x[i] * y[i];
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* The logarithm of what the denominator has besides; -inf: nothing. */
static double log_plus(const Row *r) {
    const Ast *e = r->spec->plus;
    if (!e) return -INFINITY;
    return e->op == OP_EXP ? at_key(r, e->arg[0], 0, 0).u.f : log(at_key(r, e, 0, 0).u.f);
}

/* What `sum` divides by, of the sum of the weights; `none`: 1. */
static double divisor(const Row *r, double sum) {
    if (r->spec->normalize == NORMALIZE_NONE) return 1;
    return r->spec->eps ? sum + at_key(r, r->spec->eps, 0, 0).u.f : sum;
}

/* normalize: sum, none.  O = sum of x[k] V[k], over (sum of x[k] + eps) with `sum`, and 0 where that is 0.  There is no LSE: NaN. */
static void weighted_exact(Row *r) {
    double scale = r->call->scalar[0], sum = 0;
    for (int64_t i = 0; i < r->n; i++) sum += r->x[i] = score(r, r->seen[i], scale * ag_row_dot(r->query, r->key + r->seen[i] * r->D, r->D));
    double all = divisor(r, sum);
    *r->lse = NAN;
    memset(r->o, 0, (size_t)r->Dv * sizeof *r->o);
    for (int64_t i = 0; i < r->n && all != 0; i++)
        for (int64_t d = 0; d < r->Dv; d++) r->o[d] += r->x[i] / all * r->value[r->seen[i] * r->Dv + d];
}

void ag_row_exact(Row *r) {
    if (r->spec->normalize != NORMALIZE_SOFTMAX) {
        weighted_exact(r);
        return;
    }
    double scale = r->call->scalar[0], plus = log_plus(r), max = plus, sum = 0;
    for (int64_t i = 0; i < r->n; i++) {
        double s = scale * ag_row_dot(r->query, r->key + r->seen[i] * r->D, r->D);
        r->x[i] = score(r, r->seen[i], s);
        if (r->x[i] > max) max = r->x[i];
    }
    double from = max == -INFINITY ? 0 : max;
    r->max = -INFINITY;
    for (int64_t i = 0; i < r->n; i++) r->max = fmax(r->max, r->x[i]);
    for (int64_t i = 0; i < r->n; i++) sum += r->x[i] = exp(r->x[i] - from);
    sum += exp(plus - from);
    *r->lse = from + log(sum);
    r->mean = 0;
    memset(r->o, 0, (size_t)r->Dv * sizeof *r->o);
    if (sum == 0) return;
    for (int64_t i = 0; i < r->n; i++) {
        const double *v = r->value + r->seen[i] * r->Dv;
        double p = r->x[i] /= sum;
        if (r->weigh) r->mean += p *= factor(r, i);
        for (int64_t d = 0; d < r->Dv; d++) r->o[d] += p * v[d];
    }
}

/* Into lse: the sum over the keys of p |v - o|, of the channel where that is largest. */
static void row_sway(Row *r) {
    ag_row_exact(r);
    *r->lse = 0;
    for (int64_t d = 0; d < r->Dv; d++) {
        double sum = 0;
        for (int64_t i = 0; i < r->n; i++) sum += r->x[i] * fabs(r->value[r->seen[i] * r->Dv + d] - r->o[d]);
        *r->lse = fmax(*r->lse, sum);
    }
}

/* Rounds to the storage type; what would overflow is kept, for it says nothing about precision. */
static float stored(DType t, float x) {
    float y = ag_round_to(t, x);
    return isinf(y) ? x : y;
}

/* The score of key number i of those that the row sees. */
static float score_naive(const Row *r, int64_t i) {
    DType t = r->spec->dtype;
    const double *k = r->key + r->seen[i] * r->D;
    float acc = 0;
    for (int64_t d = 0; d < r->D; d++) acc += (float)r->query[d] * (float)k[d];
    float s = stored(t, (float)r->call->scalar[0] * acc);
    return r->score ? stored(t, (float)score(r, r->seen[i], s)) : s;
}

/* o = sum of x[k] V[k]. */
static void sum_naive(Row *r) {
    for (int64_t d = 0; d < r->Dv; d++) {
        float acc = 0;
        for (int64_t i = 0; i < r->n; i++) acc += (float)r->x[i] * (float)r->value[r->seen[i] * r->Dv + d];
        r->o[d] = ag_round_to(r->spec->dtype, acc);
    }
}

static void weighted_naive(Row *r) {
    float sum = 0;
    for (int64_t i = 0; i < r->n; i++) sum += (float)(r->x[i] = score_naive(r, i));
    float all = (float)divisor(r, sum);
    *r->lse = NAN;
    for (int64_t i = 0; i < r->n; i++) r->x[i] = all == 0 ? 0 : stored(r->spec->dtype, (float)r->x[i] / all);
    sum_naive(r);
}

void ag_row_naive(Row *r) {
    if (r->spec->normalize != NORMALIZE_SOFTMAX) {
        weighted_naive(r);
        return;
    }
    DType t = r->spec->dtype;
    float plus = (float)log_plus(r), max = plus, sum = 0;
    for (int64_t i = 0; i < r->n; i++) {
        float x = score_naive(r, i);
        r->x[i] = x;
        if (x > max) max = x;
    }
    float from = max == -INFINITY ? 0 : max;
    for (int64_t i = 0; i < r->n; i++) {
        float p = expf((float)r->x[i] - from);
        r->x[i] = p;
        sum += p;
    }
    sum += expf(plus - from);
    *r->lse = from + logf(sum);
    for (int64_t i = 0; i < r->n; i++) r->x[i] = sum == 0 ? 0 : stored(t, (float)r->x[i] / sum);
    r->mean = 0;
    for (int64_t i = 0; i < r->n && r->weigh; i++) r->mean += r->x[i] = stored(t, (float)r->x[i] * stored(t, (float)factor(r, i)));
    sum_naive(r);
}

static void gather(double *to, const HostTensor *t, int64_t b, int64_t h, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[i * cols + j] = ag_host_get(t, b, h, i, j);
}

/* What is put out of each row: O and, unless they are NULL, values of the row. */
typedef struct Results {
    double *o, *const *value;
} Results;

static void head(Row *r, RowFunction *row, const Results *out) {
    const HostCall *call = r->call;
    int64_t Hq = call->size[SZ_HQ], Sq = call->size[SZ_SQ];
    for (r->q = 0; r->q < Sq; r->q++) {
        int64_t at = (r->b * Hq + r->h) * Sq + r->q;
        for (int64_t d = 0; d < r->D; d++) r->query[d] = ag_host_get(&call->q, r->b, r->h, r->q, d);
        double lse = 0;
        r->o = out->o + at * r->Dv;
        r->lse = &lse;
        ag_row_seen(r, NULL);
        row(r);
        const double value[ROWV_COUNT] = {[ROWV_LSE] = lse, [ROWV_MAX] = r->max, [ROWV_MEAN] = r->mean};
        for (int i = 0; i < ROWV_COUNT; i++)
            if (out->value[i]) out->value[i][at] = value[i];
    }
}

static bool all_rows(const Spec *spec, const HostCall *call, double *o, double *const value[ROWV_COUNT], RowFunction *row) {
    const int64_t *size = call->size;
    Row r = {
        .spec = spec, .call = call, .score = spec->score, .mask = spec->mask, .weigh = spec->weigh, .D = spec->D, .Dv = spec->Dv, .Sk = size[SZ_SK]};
    size_t keys = (size_t)r.Sk + 1;
    r.query = malloc((size_t)r.D * sizeof *r.query);
    r.key = malloc(keys * (size_t)r.D * sizeof *r.key);
    r.value = malloc(keys * (size_t)r.Dv * sizeof *r.value);
    r.seen = malloc(keys * sizeof *r.seen);
    r.x = malloc(keys * sizeof *r.x);
    bool ok = r.query && r.key && r.value && r.seen && r.x;
    int64_t loaded = -1; /* KV head whose copies are there */
    for (r.b = 0; ok && r.b < size[SZ_B]; r.b++, loaded = -1)
        for (r.h = 0; r.h < size[SZ_HQ]; r.h++) {
            int64_t g = ag_kv_head(call, r.h);
            if (g != loaded) {
                gather(r.key, &call->k, r.b, g, r.Sk, r.D);
                gather(r.value, &call->v, r.b, g, r.Sk, r.Dv);
                loaded = g;
            }
            head(&r, row, &(Results){o, value});
        }
    free(r.query);
    free(r.key);
    free(r.value);
    free(r.seen);
    free(r.x);
    return ok;
}

bool ag_reference_values(const Spec *spec, const HostCall *call, double *o, double *const value[ROWV_COUNT]) {
    PreparedCall p;
    bool ok = ag_prepare_call(spec, call, &p);
    ok = ok && (spec->nbranch ? ag_reference_program(spec, &p.call, o, value[ROWV_LSE]) : all_rows(spec, &p.call, o, value, ag_row_exact));
    ag_prepared_free(&p);
    return ok;
}

bool ag_reference(const Spec *spec, const HostCall *call, double *o, double *lse) {
    return ag_reference_values(spec, call, o, (double *const[ROWV_COUNT]){[ROWV_LSE] = lse});
}

bool ag_reference_sway(const Spec *spec, const HostCall *call, double *o, double *sway) {
    PreparedCall p;
    assert(!spec->nbranch && spec->normalize == NORMALIZE_SOFTMAX && !spec->weigh);
    bool ok = ag_prepare_call(spec, call, &p) && all_rows(spec, &p.call, o, (double *const[ROWV_COUNT]){[ROWV_LSE] = sway}, row_sway);
    ag_prepared_free(&p);
    return ok;
}

bool ag_naive(const Spec *spec, const HostCall *call, double *o, double *lse) {
    PreparedCall p;
    bool ok = ag_prepare_call(spec, call, &p);
    ok = ok && (spec->nbranch ? ag_naive_program(spec, &p.call, o, lse)
                              : all_rows(spec, &p.call, o, (double *const[ROWV_COUNT]){[ROWV_LSE] = lse}, ag_row_naive));
    ag_prepared_free(&p);
    return ok;
}
