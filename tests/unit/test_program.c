/* Specs with inputs, derived tensors and branches in the reference: against hand-computed values, a brute force written apart, and plain specs that
 * say the same. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "host.h"
#include "with_diag.h"

/* ---- a call with float tensors of random values that bf16 holds */

typedef struct Sizes {
    int64_t B, Hq, Hkv, Sq, Sk, D, Dv;
} Sizes;

typedef struct Case {
    Sizes n;
    HostCall call;
    float *q, *k, *v;
    double *o, *lse;
    const attngen_dim *dims; /* besides D and Dv */
    size_t ndims;
    void (*use)(struct Case *, const Spec *);
    void *payload;
} Case;

static uint32_t random_state = 1;
/* In -1 .. 1, a multiple of 1/64. */
static float random_value(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)((int)((random_state >> 9) % 129) - 64) / 64;
}

static float *random_values(int64_t n) {
    float *x = calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = random_value();
    return x;
}

static HostTensor contiguous(void *data, DType t, int64_t heads, int64_t rows, int64_t cols) {
    return (HostTensor){data, {heads * rows * cols, rows * cols, cols, 1}, t};
}

static Case *new_case(Sizes n) {
    Case *c = calloc(1, sizeof *c);
    c->n = n;
    c->q = random_values(n.B * n.Hq * n.Sq * n.D);
    c->k = random_values(n.B * n.Hkv * n.Sk * n.D);
    c->v = random_values(n.B * n.Hkv * n.Sk * n.Dv);
    c->o = calloc((size_t)(n.B * n.Hq * n.Sq * n.Dv) + 1, sizeof *c->o);
    c->lse = calloc((size_t)(n.B * n.Hq * n.Sq) + 1, sizeof *c->lse);
    c->call = (HostCall){
        .size = {n.B, n.Hq, n.Hkv, n.Sq, n.Sk, n.Sk - n.Sq, n.D, n.Dv},
        .q = contiguous(c->q, DT_F32, n.Hq, n.Sq, n.D),
        .k = contiguous(c->k, DT_F32, n.Hkv, n.Sk, n.D),
        .v = contiguous(c->v, DT_F32, n.Hkv, n.Sk, n.Dv),
    };
    return c;
}

static void free_case(Case *c) {
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->o);
    free(c->lse);
    free(c);
}

static void run_case(Diag *d, uint16_t file, void *payload) {
    Case *c = payload;
    attngen_dim dims[16] = {{"D", (double)c->n.D}, {"Dv", (double)c->n.Dv}};
    for (size_t i = 0; i < c->ndims; i++) dims[2 + i] = c->dims[i];
    Spec *spec = ag_spec_read(d, file, dims, 2 + c->ndims);
    if (!spec) return;
    for (int i = 0; i < spec->nparam; i++) {
        const Scalar *v = &spec->param[i].value;
        c->call.scalar[i] = v->type == T_INT ? (double)v->u.i : v->u.f;
    }
    assert_true(ag_reference(spec, &c->call, c->o, c->lse));
    if (c->use) c->use(c, spec);
}

static void run_text(Case *c, Str text) {
    char *report = report_of(text, run_case, c, NULL);
    assert_string_equal(report, "");
    free(report);
}
static void run_spec(Case *c, const char *text) { run_text(c, ag_str(text)); }

static void run_file(Case *c, const char *name) {
    static char text[8192];
    char path[128];
    snprintf(path, sizeof path, "specs/%s.yaml", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    assert_true(n < sizeof text);
    run_text(c, (Str){text, (int)n});
}

static void expect_near(double got, double want, double tolerance) {
    if (got != want && !(fabs(got - want) <= tolerance)) fail_msg("%.17g is not %.17g", got, want);
}

static int64_t outputs(const Case *c) { return c->n.B * c->n.Hq * c->n.Sq * c->n.Dv; }

static double *copied(const double *x, int64_t n) {
    double *y = calloc((size_t)n + 1, sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static void expect_same(const double *got, const double *want, int64_t n, double tolerance) {
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i] && !(fabs(got[i] - want[i]) <= tolerance)) fail_msg("element %lld: %.17g is not %.17g", (long long)i, got[i], want[i]);
}

/* ---- pools */

static int derive_of(const Spec *s, const char *name) {
    for (int i = 0; i < s->nderive; i++)
        if (ag_str_is(s->derive[i].name, name)) return i;
    fail();
    return -1;
}

static void check_pools(Case *c, const Spec *s) {
    double p[64];
    int mean = derive_of(s, "mean"), partial = derive_of(s, "partial"), weighted = derive_of(s, "weighted");
    (void)c;
    assert_int_equal(ag_pool_count(&s->derive[mean], 7), 2);
    assert_int_equal(ag_pool_count(&s->derive[mean], 3), 0);
    assert_int_equal(ag_pool_count(&s->derive[mean], 0), 0);
    assert_int_equal(ag_pool_count(&s->derive[partial], 7), 4);
    assert_int_equal(ag_pool_count(&s->derive[partial], 0), 0);
    /* keys are 0 8 16 24 32 40 48 */
    ag_reference_pool(s, &c->call, mean, p);
    expect_near(p[0], 12, 0);
    expect_near(p[1], 28, 0);
    ag_reference_pool(s, &c->call, partial, p);
    expect_near(p[0], 12, 0);
    expect_near(p[2], 40, 0); /* of 32 40 48 */
    expect_near(p[3], 48, 0);
    ag_reference_pool(s, &c->call, weighted, p);
    expect_near(p[0], 14, 0);                    /* (0 + 0 + 2 * 16 + 24) / 4 */
    expect_near(p[2], (32 + 2 * 48) / 3.0, 0.2); /* of weights 1 0 2, rounded to bf16 */
    expect_near(p[2], ag_round_to(DT_BF16, 128 / 3.f), 0);
}

static void test_pools(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 1, 7, 1, 1});
    float w[] = {1, 0, 2, 1};
    for (int i = 0; i < 7; i++) c->k[i] = (float)(8 * i);
    c->call.input[0] = (HostTensor){w, {1}, DT_F32};
    c->use = check_pools;
    run_spec(c, "attention: a\n"
                "inputs: {w: {f32: [4]}}\n"
                "derive:\n"
                "  mean: {pool: k, size: 4, stride: 2}\n"
                "  partial: {pool: k, size: 4, stride: 2, tail: partial}\n"
                "  weighted: {pool: k, size: 4, stride: 2, tail: partial, weights: w}\n"
                "  v1: {pool: v, size: 4, stride: 2}\n"
                "  v2: {pool: v, size: 4, stride: 2, tail: partial}\n"
                "branches: {x: {keys: mean, values: v1}, y: {keys: partial, values: v2}, z: {keys: weighted, values: v2}}\n"
                "output: x + y + z\n");
    free_case(c);
}

/* ---- selections */

#define SELECT(rest)                                                                                                                                 \
    "attention: a\n"                                                                                                                                 \
    "params: {target: {int: 0}}\n"                                                                                                                   \
    "derive:\n"                                                                                                                                      \
    "  kc: {pool: k, size: 32, stride: 16}\n"                                                                                                        \
    "  vc: {pool: v, size: 32, stride: 16}\n"                                                                                                        \
    "  picks: {select: cmp, block: 64, " rest "}\n"

static void check_overlap(Case *c, const Spec *s) {
    static const double want[] = {0, 0, 0, 1, 2, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0}; /* what pooled key i is to block 1 */
    int32_t picks[2];
    double importance[4];
    for (int i = 0; i < LEN(want); i++) {
        c->call.scalar[1] = i;
        assert_true(ag_reference_select(s, &c->call, derive_of(s, "picks"), picks, importance));
        expect_near(importance[1], want[i], 0);
        expect_near(importance[0] + importance[1] + importance[2] + importance[3], 2, 0);
    }
}

static void test_overlap_weights(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 1, 256, 4, 4});
    c->use = check_overlap;
    run_spec(c, SELECT("count: 2, causal: false") "branches:\n"
                                                  "  cmp: {keys: kc, values: vc, score: 0 if k == target else -1000000}\n"
                                                  "  slc: {blocks: picks}\n"
                                                  "output: slc\n");
    free_case(c);
}

typedef struct Wanted {
    int64_t q;
    int32_t picks[4];
} Wanted;

static void expect_picks(Case *c, const Spec *s, const Wanted *want, int n) {
    int derive = derive_of(s, "picks"), count = s->derive[derive].count.n;
    int64_t blocks = ag_block_count(&s->derive[derive].block, c->n.Sk), heads = s->derive[derive].per_head ? c->n.Hq : c->n.Hkv;
    int32_t *picks = calloc((size_t)(c->n.B * heads * c->n.Sq * count), sizeof *picks);
    double *importance = calloc((size_t)(c->n.B * heads * c->n.Sq * blocks), sizeof *importance);
    assert_true(ag_reference_select(s, &c->call, derive, picks, importance));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < count; j++) {
            int32_t got = picks[want[i].q * count + j];
            if (got != want[i].picks[j]) fail_msg("row %lld, entry %d: %d is not %d", (long long)want[i].q, j, got, want[i].picks[j]);
        }
    for (int64_t i = 0; i < c->n.B * heads * c->n.Sq * blocks; i++) assert_true(!isnan(importance[i]));
    if (s->derive[derive].causal) { /* row 100 of the first head: blocks 0 and 1 can be selected */
        assert_true(importance[100 * blocks + 2] == -INFINITY);
        assert_true((importance[100 * blocks] == INFINITY) == (s->derive[derive].first.n > 0));
    }
    free(picks);
    free(importance);
}

static void check_ties(Case *c, const Spec *s) {
    /* uniform probabilities over 15 pooled keys: blocks have 7, 8, 8, 7 */
    static const Wanted want[] = {{0, {0, 1, 2}}, {255, {0, 1, 2}}};
    expect_picks(c, s, want, LEN(want));
}

static void check_forced(Case *c, const Spec *s) {
    static const Wanted want[] = {{0, {0, -1, -1}}, {63, {0, -1, -1}}, {64, {0, 1, -1}}, {127, {0, 1, -1}},
                                  {128, {0, 1, 2}}, {200, {0, 2, 3}},  {255, {0, 2, 3}}};
    expect_picks(c, s, want, LEN(want));
}

static void check_lower_block(Case *c, const Spec *s) {
    static const Wanted want[] = {{0, {0, -1, -1, -1}}, {255, {1, -1, -1, -1}}};
    int derive = derive_of(s, "picks");
    assert_int_equal(s->derive[derive].count.n, 1);
    expect_picks(c, s, want, LEN(want));
}

#define BRANCHES                                                                                                                                     \
    "branches:\n"                                                                                                                                    \
    "  cmp: {keys: kc, values: vc, mask: 16 * k + 31 <= q}\n"                                                                                        \
    "  slc: {blocks: picks, mask: k <= q}\n"                                                                                                         \
    "output: slc\n"

static void test_ties_and_forced(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 2, 1, 256, 256, 4, 4});
    memset(c->q, 0, sizeof(float) * 2 * 256 * 4);
    c->use = check_ties;
    run_spec(c, SELECT("count: 3, causal: false") "branches: {cmp: {keys: kc, values: vc}, slc: {blocks: picks}}\noutput: slc\n");
    c->use = check_lower_block; /* row 0 sees no pooled key, row 255 has blocks of 7 8 8 7 */
    run_spec(c, SELECT("count: 1") BRANCHES);
    for (int i = 0; i < 2 * 256 * 4; i++) c->q[i] = random_value();
    c->use = check_forced;
    run_spec(c, SELECT("count: 3, force: {first: 1, local: 2}") BRANCHES);
    free_case(c);
}

/* The group's importance is the sum of its heads'; with share: head each has its own list. */
static void check_shares(Case *c, const Spec *s) {
    static double group[64 * 4], head[2 * 64 * 4];
    static int32_t picks[2 * 64 * 4];
    assert_true(ag_reference_select(s, &c->call, derive_of(s, "picks"), picks, group));
    assert_true(ag_reference_select(s, &c->call, derive_of(s, "own"), picks, head));
    for (int i = 0; i < 64 * 4; i++) expect_near(group[i], head[i] + head[64 * 4 + i], 1e-12);
}

static void test_shares(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 2, 1, 64, 256, 4, 4});
    c->use = check_shares;
    run_spec(c, SELECT("count: 2, causal: false") "  own: {select: cmp, block: 64, count: 2, causal: false, share: head}\n"
                                                  "branches: {cmp: {keys: kc, values: vc}, slc: {blocks: picks}, other: {blocks: own}}\n"
                                                  "output: slc + other\n");
    free_case(c);
}

/* ---- NSA against a brute force of its own */

typedef struct Nsa {
    int l, stride, block, top, window;
} Nsa;
static const Nsa small = {8, 4, 16, 4, 20};
static const attngen_dim small_dims[] = {{"l", 8}, {"stride", 4}, {"block", 16}, {"top", 4}, {"window", 20}};

static double at4(const HostTensor *t, int64_t b, int64_t h, int64_t i, int64_t d) {
    return ((const float *)t->data)[b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + d * t->stride[3]];
}

static double pooled_at(const Case *c, const HostTensor *t, const Nsa *p, int64_t b, int64_t g, int64_t i, int64_t d) {
    double sum = 0;
    (void)c;
    for (int j = 0; j < p->l; j++) sum += at4(t, b, g, i * p->stride + j, d);
    return ag_round_to(DT_BF16, (float)(sum / p->l));
}

/* Attention of one row over `n` given keys, all of them or pooled; p: their probabilities. */
static void brute_row(const Case *c, const Nsa *pool, int64_t b, int64_t h, int64_t q, const int *keys, int n, double *p, double *o) {
    int64_t g = h / (c->n.Hq / c->n.Hkv);
    double sum = 0;
    for (int64_t d = 0; d < c->n.Dv; d++) o[d] = 0;
    for (int i = 0; i < n; i++) {
        double s = 0;
        for (int64_t d = 0; d < c->n.D; d++)
            s += at4(&c->call.q, b, h, q, d) * (pool ? pooled_at(c, &c->call.k, pool, b, g, keys[i], d) : at4(&c->call.k, b, g, keys[i], d));
        sum += p[i] = exp(s / sqrt((double)c->n.D));
    }
    for (int i = 0; i < n; i++) p[i] /= sum;
    for (int i = 0; i < n; i++)
        for (int64_t d = 0; d < c->n.Dv; d++)
            o[d] += p[i] * (pool ? pooled_at(c, &c->call.v, pool, b, g, keys[i], d) : at4(&c->call.v, b, g, keys[i], d));
}

enum { MOST = 512 };

static int compressed_keys(const Case *c, const Nsa *p, int64_t pos, int *keys) {
    int n = 0;
    for (int i = 0; i * p->stride + p->l <= c->n.Sk; i++)
        if (i * p->stride + p->l - 1 <= pos) keys[n++] = i;
    return n;
}

/* Which blocks a query selects. */
static void brute_blocks(const Case *c, const Nsa *p, int64_t b, int64_t g, int64_t q, bool *in) {
    double importance[MOST] = {0}, prob[MOST], o[64];
    int keys[MOST], chosen = 0;
    int64_t pos = q + c->n.Sk - c->n.Sq, group = c->n.Hq / c->n.Hkv;
    int own = (int)(pos / p->block), n = compressed_keys(c, p, pos, keys);
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        brute_row(c, p, b, h, q, keys, n, prob, o);
        for (int i = 0; i < n; i++)
            for (int t = keys[i] * p->stride; t < keys[i] * p->stride + p->l; t++) importance[t / p->block] += prob[i] / p->stride;
    }
    for (int j = 0; j <= own; j++) chosen += in[j] = j == 0 || j == own || j == own - 1;
    for (; chosen < p->top && chosen <= own; chosen++) {
        int best = -1;
        for (int j = 0; j <= own; j++)
            if (!in[j] && (best < 0 || importance[j] > importance[best] + 1e-12)) best = j;
        in[best] = true;
    }
}

static void brute_nsa(const Case *c, const Nsa *p, const float *gate, int64_t b, int64_t h, int64_t q, double *o) {
    double prob[MOST], one[3][64];
    int keys[MOST], n;
    bool in[MOST] = {false};
    int64_t pos = q + c->n.Sk - c->n.Sq;
    brute_blocks(c, p, b, h / (c->n.Hq / c->n.Hkv), q, in);
    n = compressed_keys(c, p, pos, keys);
    brute_row(c, p, b, h, q, keys, n, prob, one[0]);
    n = 0;
    for (int k = 0; k <= pos; k++)
        if (in[k / p->block]) keys[n++] = k;
    brute_row(c, NULL, b, h, q, keys, n, prob, one[1]);
    n = 0;
    for (int k = 0; k <= pos; k++)
        if (pos - k < p->window) keys[n++] = k;
    brute_row(c, NULL, b, h, q, keys, n, prob, one[2]);
    for (int64_t d = 0; d < c->n.Dv; d++) o[d] = gate[0] * one[0][d] + gate[1] * one[1][d] + gate[2] * one[2][d];
}

static Case *nsa_case(Sizes n, float **gate) {
    Case *c = new_case(n);
    *gate = random_values(n.B * n.Sq * n.Hq * 3);
    c->call.input[0] = (HostTensor){*gate, {n.Sq * n.Hq * 3, n.Hq * 3, 3, 1}, DT_F32};
    c->dims = small_dims;
    c->ndims = LEN(small_dims);
    return c;
}

static void test_nsa_is_brute_force(void **state) {
    (void)state;
    float *gate;
    Case *c = nsa_case((Sizes){2, 4, 2, 70, 150, 8, 4}, &gate);
    run_file(c, "nsa");
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 4; h++)
            for (int64_t q = 0; q < 70; q++) {
                double o[4];
                brute_nsa(c, &small, gate + ((b * 70 + q) * 4 + h) * 3, b, h, q, o);
                expect_same(c->o + ((b * 4 + h) * 70 + q) * 4, o, 4, 1e-9);
                assert_true(c->lse[(b * 4 + h) * 70 + q] == 0); /* there is none */
            }
    free_case(c);
    free(gate);
}

static void test_gate_per_token(void **state) {
    (void)state;
    float *gate;
    Case *c = nsa_case((Sizes){1, 2, 1, 40, 40, 4, 4}, &gate);
    for (int i = 1; i < 40 * 2; i += 2) memcpy(gate + 3 * i, gate + 3 * i - 3, 3 * sizeof *gate); /* alike for both heads */
    run_file(c, "nsa");
    double *want = copied(c->o, outputs(c));
    c->call.input[0].stride[1] = 6, c->call.input[0].stride[2] = 1;
    run_file(c, "nsa_gate_per_token");
    expect_same(c->o, want, outputs(c), 0);
    free(want);
    free_case(c);
    free(gate);
}

/* A decode step is the last row of the whole, to the bit. */
static void test_nsa_decode(void **state) {
    (void)state;
    float *gate;
    Case *c = nsa_case((Sizes){1, 4, 2, 77, 77, 8, 8}, &gate);
    run_file(c, "nsa");
    double *want = copied(c->o, outputs(c));
    c->call.size[SZ_SQ] = 1;
    c->call.size[SZ_OFF] = 76;
    c->call.q.data = c->q + 76 * 8;
    c->call.input[0].data = gate + 76 * 4 * 3;
    run_file(c, "nsa");
    for (int64_t h = 0; h < 4; h++) expect_same(c->o + h * 8, want + (h * 77 + 76) * 8, 8, 0);
    free(want);
    free_case(c);
    free(gate);
}

/* Rows before `from` do not change, to the bit, when the tokens from there on do. */
static void check_future(const char *name, Sizes n, const attngen_dim *dims, size_t ndims, int64_t from) {
    float *gate;
    Case *c = nsa_case(n, &gate);
    c->dims = dims;
    c->ndims = ndims;
    run_file(c, name);
    double *want = copied(c->o, outputs(c));
    for (int round = 0; round < 2; round++) {
        for (int64_t head = 0; head < n.B * n.Hkv; head++)
            for (int64_t i = from * n.D; i < n.Sk * n.D; i++) {
                c->k[head * n.Sk * n.D + i] = round ? NAN : random_value();
                c->v[head * n.Sk * n.D + i] = round ? NAN : random_value();
            }
        run_file(c, name);
        for (int64_t head = 0; head < n.B * n.Hq; head++)
            for (int64_t i = 0; i < from * n.Dv; i++) {
                assert_true(c->o[head * n.Sq * n.Dv + i] == want[head * n.Sq * n.Dv + i]);
            }
    }
    free(want);
    free_case(c);
    free(gate);
}

static void test_future_tokens(void **state) {
    (void)state;
    static const attngen_dim moba[] = {{"block", 16}, {"top", 3}};
    check_future("nsa", (Sizes){1, 4, 2, 90, 90, 4, 4}, small_dims, LEN(small_dims), 59);
    check_future("moba", (Sizes){2, 2, 1, 90, 90, 4, 4}, moba, LEN(moba), 59);
}

/* Rows that see no pooled key: 0, and -inf. */
static void test_first_rows(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 40, 40, 4, 4});
    run_spec(c, "attention: a\nderive: {kc: {pool: k, size: 32, stride: 16}, vc: {pool: v, size: 32, stride: 16}}\n"
                "branches: {cmp: {keys: kc, values: vc, mask: 16 * k + 31 <= q}}\n");
    for (int q = 0; q < 40; q++) {
        assert_true((c->lse[q] == -INFINITY) == (q < 31));
        for (int d = 0; d < 4; d++) assert_true(q < 31 ? c->o[q * 4 + d] == 0 : isfinite(c->o[q * 4 + d]));
    }
    double mean = 0;
    for (int i = 0; i < 32; i++) mean += c->v[i * 4];
    expect_near(c->o[31 * 4], ag_round_to(DT_BF16, (float)(mean / 32)), 1e-15);
    free_case(c);
}

static void test_no_keys(void **state) {
    (void)state;
    float *gate;
    Case *c = nsa_case((Sizes){1, 2, 1, 3, 0, 4, 4}, &gate);
    run_file(c, "nsa");
    for (int i = 0; i < outputs(c); i++) assert_true(c->o[i] == 0);
    free_case(c);
    free(gate);
}

/* Short and lopsided calls: every output is a number, rows before the first key are 0. */
static void test_lengths(void **state) {
    static const int64_t lengths[] = {0, 1, 7, 8, 31, 33, 64};
    static const attngen_dim moba[] = {{"block", 16}, {"top", 3}};
    (void)state;
    for (int i = 0; i < LEN(lengths); i++)
        for (int j = 0; j < LEN(lengths); j++)
            for (int which = 0; which < 2; which++) {
                float *gate;
                Case *c = nsa_case((Sizes){2, 3, 1, lengths[i], lengths[j], 4, 2}, &gate);
                if (which) c->dims = moba, c->ndims = LEN(moba);
                run_file(c, which ? "moba" : "nsa");
                for (int64_t at = 0; at < outputs(c); at++) {
                    int64_t q = at / 2 % lengths[i];
                    assert_true(isfinite(c->o[at]) && (c->o[at] == 0 || q + lengths[j] - lengths[i] >= 0));
                }
                free_case(c);
                free(gate);
            }
}

/* ---- MoBA: every visible key of the chosen blocks, in one softmax */

static void test_moba(void **state) {
    (void)state;
    static const attngen_dim dims[] = {{"block", 16}, {"top", 3}};
    Case *c = new_case((Sizes){1, 2, 1, 100, 100, 4, 4});
    c->dims = dims, c->ndims = LEN(dims);
    run_file(c, "moba");
    for (int64_t h = 0; h < 2; h++)
        for (int64_t q = 0; q < 100; q++) {
            bool in[8] = {false};
            double gate[8], p[MOST], o[4];
            int keys[MOST], n = 0, own = (int)q / 16;
            const Nsa pool = {16, 16, 0, 0, 0};
            for (int j = 0; j < own; j++) {
                gate[j] = 0;
                for (int d = 0; d < 4; d++) gate[j] += at4(&c->call.q, 0, h, q, d) * pooled_at(c, &c->call.k, &pool, 0, 0, j, d);
            }
            in[own] = true;
            for (int i = 0; i < 2 && i < own; i++) {
                int best = -1;
                for (int j = 0; j < own; j++)
                    if (!in[j] && (best < 0 || gate[j] > gate[best])) best = j;
                in[best] = true;
            }
            for (int k = 0; k <= q; k++)
                if (in[k / 16]) keys[n++] = k;
            brute_row(c, NULL, 0, h, q, keys, n, p, o);
            expect_same(c->o + (h * 100 + q) * 4, o, 4, 1e-12);
        }
    free_case(c);
}

/* ---- lists of the caller's */

static void test_lists(void **state) {
    (void)state;
    enum { SQ = 50, SK = 70 };
    /* tiles of 32 queries: rows 18 .. 49 are the second */
    int32_t lists[2][5] = {{2, 0, 0, -1, 99}, {INT32_MIN, 1, 4, 3, INT32_MAX}}, counts[2] = {5, 3};
    Case *c = new_case((Sizes){1, 2, 1, SQ, SK, 4, 4});
    c->call.input[0] = (HostTensor){lists, {0, 0, 5, 1}, DT_I32};
    c->call.input[1] = (HostTensor){counts, {0, 0, 1}, DT_I32};
    run_spec(c, "attention: a\ninputs: {lists: {i32: [b, h, q, 5]}, n: {i32: [b, h, q]}}\n"
                "branches: {x: {blocks: lists, block: 16, blocks_per: 32, counts: n, mask: k <= q}}\n");
    double *want = copied(c->o, outputs(c)), *lse = copied(c->lse, 2 * SQ);
    run_spec(c, "attention: a\nlet: {j: k // 16}\n"
                "mask: k <= q and ((j == 0 or j == 2) if q - off < 32 else (j == 1 or j == 4))\n");
    expect_same(c->o, want, outputs(c), 0);
    expect_same(c->lse, lse, 2 * SQ, 0);
    free(want);
    free(lse);
    free_case(c);
}

static void test_block_sparse(void **state) {
    (void)state;
    static const attngen_dim dims[] = {{"block", 16}, {"tile", 32}, {"most", 3}};
    int32_t lists[2][3] = {{0, -1, -1}, {0, 1, 3}};
    Case *c = new_case((Sizes){1, 1, 1, 64, 64, 4, 4});
    c->dims = dims, c->ndims = LEN(dims);
    c->call.input[0] = (HostTensor){lists, {0, 0, 3, 1}, DT_I32};
    run_file(c, "block_sparse");
    double *want = copied(c->o, outputs(c));
    c->ndims = 0;
    run_spec(c, "attention: a\nmask: k <= q and (k < 16 if q < 32 else k // 16 != 2)\n");
    expect_same(c->o, want, outputs(c), 0);
    free(want);
    free_case(c);
}

/* A given selection is used as it is. */
static void test_given_picks(void **state) {
    (void)state;
    static const attngen_dim dims[] = {{"block", 16}, {"top", 2}};
    int32_t picks[40][2];
    Case *c = new_case((Sizes){1, 1, 1, 40, 40, 4, 4});
    for (int i = 0; i < 40; i++) picks[i][0] = 0, picks[i][1] = -1;
    c->dims = dims, c->ndims = LEN(dims);
    c->call.picks[1] = picks[0];
    run_file(c, "moba");
    double *want = copied(c->o, outputs(c));
    c->ndims = 0;
    run_spec(c, "attention: a\nmask: k <= q and k < 16\n");
    expect_same(c->o, want, outputs(c), 0);
    free(want);
    free_case(c);
}

/* ---- keys and values of the caller's, D != Dv; output */

static void test_other_rows(void **state) {
    (void)state;
    Case *c = new_case((Sizes){2, 2, 1, 9, 20, 6, 3});
    float *k2 = random_values(2 * 20 * 6), *v2 = random_values(2 * 20 * 3), w[] = {0.5f, 2, -1};
    run_spec(c, "attention: a\nmask: k <= q\n");
    double *one = copied(c->o, outputs(c)), *lse = copied(c->lse, 2 * 2 * 9);
    c->call.k.data = k2, c->call.v.data = v2;
    run_spec(c, "attention: a\nscore: 2 * s\n");
    double *two = copied(c->o, outputs(c));
    c->call.k.data = c->k, c->call.v.data = c->v;
    c->call.input[0] = contiguous(k2, DT_F32, 1, 20, 6);
    c->call.input[1] = contiguous(v2, DT_F32, 1, 20, 3);
    c->call.input[2] = (HostTensor){w, {1}, DT_F32};
    run_spec(c, "attention: a\ninputs: {k2: {dtype: [b, g, k, d]}, v2: {dtype: [b, g, k, d]}, w: {f32: [d]}}\n"
                "branches:\n"
                "  x: {mask: k <= q}\n"
                "  y: {keys: k2, values: v2, score: 2 * s}\n"
                "output: x - w[d] * y + w[5] + h\n"); /* w[5] is past the end: 0 */
    for (int64_t i = 0; i < outputs(c); i++) expect_near(c->o[i], one[i] - w[i % 3] * two[i] + (double)(i / 27 % 2), 1e-12);
    run_spec(c, "attention: a\nbranches: {x: {mask: k <= q}}\noutput: 3 * x\n");
    for (int64_t i = 0; i < outputs(c); i++) expect_near(c->o[i], 3 * one[i], 0);
    expect_same(c->lse, lse, 2 * 2 * 9, 0);
    free(one), free(two), free(lse), free(k2), free(v2);
    free_case(c);
}

/* Sk in a branch is the number of its keys; in the output it is that of the call. */
static void test_size_of_branch(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 2, 40, 2, 2});
    run_spec(c, "attention: a\nderive: {kc: {pool: k, size: 16, stride: 8}, vc: {pool: v, size: 16, stride: 8}}\n"
                "branches: {x: {keys: kc, values: vc, score: Sk}}\noutput: Sk + 0 * x\n");
    expect_near(c->lse[0], 4 + log(4), 1e-12);
    expect_near(c->o[0], 40, 0);
    free_case(c);
}

/* ---- captured tensors in plain specs */

static void check_bias(Case *c, const Spec *s) {
    static const struct {
        int64_t b, h, row, k;
        double want;
    } at[] = {{0, 0, 0, 0, 100}, {1, 0, 2, 3, 123}, {0, 1, 4, 1, 1000 + 141}};
    (void)c;
    for (int i = 0; i < LEN(at); i++) {
        double got = ag_ast_eval(s, &c->call, s->score, at[i].b, at[i].h, at[i].row + c->call.size[SZ_OFF], at[i].k, 100).u.f;
        expect_near(got, at[i].want, 0);
    }
}

/* bias[b, h, q, k] = 1000 h + 10 row + k; its dim of 1 is read at 0 for every b; q is a position, rows count from query row 0. */
static void test_bias(void **state) {
    (void)state;
    Case *c = new_case((Sizes){2, 2, 2, 5, 9, 2, 2});
    float bias[2 * 5 * 9];
    for (int h = 0; h < 2; h++)
        for (int q = 0; q < 5; q++)
            for (int k = 0; k < 9; k++) bias[(h * 5 + q) * 9 + k] = (float)(1000 * h + 10 * q + k);
    c->call.input[0] = (HostTensor){bias, {12345, 45, 9, 1}, DT_F32};
    c->use = check_bias;
    run_spec(c, "attention: a\ninputs: {bias: {f32: [1, h, q, k]}}\nscore: s + bias[b, h, q, k]\n");
    free_case(c);
}

typedef struct Value {
    const char *text;
    double want;
} Value;

static void check_value(Case *c, const Spec *s) {
    /* b 0, h 1, row 2 of offset 4, k 3 */
    Scalar got = ag_ast_eval(s, &c->call, s->let[0].value, 0, 1, 6, 3, 0);
    double x = got.type == T_FLOAT ? got.u.f : got.type == T_INT ? (double)got.u.i : got.u.b;
    *(double *)c->payload = x;
}

static void test_loads(void **state) {
    (void)state;
    static const Value value[] = {
        {"t[h, idx[q]]", 15},       /* idx of row 2 is 5 */
        {"t[h, idx[q - off]]", 15}, /* any other subscript is the index itself */
        {"t[h, idx[q + 0]]", 10},   /* 6 is past the end of idx: 0 */
        {"t[h, 7]", 17},            /* the last */
        {"t[h, k + 5]", 0},         /* past the end */
        {"t[h - 2, k]", 0},         /* before the beginning */
        {"t[h, k - 4]", 0},
        {"t[h, idx[q] + idx[q]]", 0},
        {"temperature * 2", 5},
        {"wide[0]", -2}, /* the low 32 bits */
        {"byte[1]", 255},
        {"1 if flag[k] else 0", 1},
        {"1 if flag[0] or flag[99] else 0", 0},
        {"half[2]", 1.5},
        {"1 if 0 <= idx[idx[1] + q - off - 1] < 6 else 0", 1}, /* the middle of a chain is read twice */
    };
    Case *c = new_case((Sizes){1, 2, 1, 5, 9, 2, 2});
    float t[2 * 8], temperature = 2.5f;
    int32_t idx[] = {0, 1, 5, 3, 2};
    int64_t wide[] = {INT64_C(0x5FFFFFFFE)};
    uint8_t byte[] = {0, 255}, flag[9] = {0, 0, 0, 7};
    uint16_t half[] = {0, 0, 0x3E00};
    for (int i = 0; i < 16; i++) t[i] = (float)(i / 8 * 10 + i % 8);
    c->call.input[0] = (HostTensor){t, {8, 1}, DT_F32};
    c->call.input[1] = (HostTensor){idx, {1}, DT_I32};
    c->call.input[2] = (HostTensor){&temperature, {0}, DT_F32};
    c->call.input[3] = (HostTensor){wide, {1}, DT_I64};
    c->call.input[4] = (HostTensor){byte, {1}, DT_U8};
    c->call.input[5] = (HostTensor){flag, {1}, DT_BOOL};
    c->call.input[6] = (HostTensor){half, {1}, DT_F16};
    c->use = check_value;
    for (int i = 0; i < LEN(value); i++) {
        double got = 0;
        char text[1024];
        c->payload = &got;
        snprintf(text, sizeof text,
                 "attention: a\nparams: {n: 8}\ninputs:\n  t: {f32: [h, n]}\n  idx: {i32: [q]}\n  temperature: {f32: []}\n  wide: {i64: [1]}\n"
                 "  byte: {u8: [2]}\n  flag: {bool: [k]}\n  half: {f16: [3]}\nlet:\n  x: %s\n"
                 "  all: t[0, 0] + idx[0] + temperature + wide[0] + byte[0] + (1 if flag[0] else 0) + half[0]\n",
                 value[i].text);
        run_spec(c, text);
        if (got != value[i].want) fail_msg("%s is %g, not %g", value[i].text, got, value[i].want);
    }
    free_case(c);
}

/* A document mask by captured ids is the mask said in words. */
static void test_documents(void **state) {
    (void)state;
    Case *c = new_case((Sizes){1, 1, 1, 12, 12, 4, 4});
    int32_t doc[12];
    for (int i = 0; i < 12; i++) doc[i] = i / 5;
    c->call.input[0] = (HostTensor){doc, {0, 1}, DT_I32};
    run_spec(c, "attention: a\ninputs: {doc: {i32: [b, k]}}\nmask: k <= q and doc[b, k] == doc[b, q]\n");
    double *want = copied(c->o, outputs(c));
    run_spec(c, "attention: a\nmask: k <= q and k // 5 == q // 5\n");
    expect_same(c->o, want, outputs(c), 0);
    free(want);
    free_case(c);
}

/* ---- the naive computation */

static void check_naive(Case *c, const Spec *s) {
    double *o = calloc((size_t)outputs(c), sizeof *o), *lse = calloc((size_t)(c->n.B * c->n.Hq * c->n.Sq), sizeof *lse), worst = 0;
    assert_true(ag_naive(s, &c->call, o, lse));
    for (int64_t i = 0; i < outputs(c); i++) {
        assert_true(o[i] == (double)ag_round_to(s->dtype, (float)o[i]));
        if (fabs(o[i] - c->o[i]) > worst) worst = fabs(o[i] - c->o[i]);
    }
    assert_true(worst > 0 && worst < 0.03);
    free(o);
    free(lse);
}

static void test_naive(void **state) {
    (void)state;
    float *gate;
    Case *c = nsa_case((Sizes){1, 4, 2, 90, 90, 8, 8}, &gate);
    c->use = check_naive;
    run_file(c, "nsa");
    free_case(c);
    free(gate);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools),
        cmocka_unit_test(test_overlap_weights),
        cmocka_unit_test(test_ties_and_forced),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_nsa_is_brute_force),
        cmocka_unit_test(test_gate_per_token),
        cmocka_unit_test(test_nsa_decode),
        cmocka_unit_test(test_future_tokens),
        cmocka_unit_test(test_first_rows),
        cmocka_unit_test(test_no_keys),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_moba),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_block_sparse),
        cmocka_unit_test(test_given_picks),
        cmocka_unit_test(test_other_rows),
        cmocka_unit_test(test_size_of_branch),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_loads),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_naive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
