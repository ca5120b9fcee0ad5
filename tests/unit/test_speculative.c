/* test_speculative.c: numerics.softmax speculative on inputs that it guesses
 * wrong: what is mended is right, and without the mending the comparison sees
 * it. */
#include "with_schedule.h"

#include <math.h>

enum { TILE_N = 16 };

/* ---- inputs: the logit of key k, in base 2, is `growth` times the number of
 * its tile counted from the right, and little else */
static double growth;
static void grow_to_the_left(HostCall *c) {
    double scale = 1 / sqrt((double)c->size[SZ_D]), log2e = 1.4426950408889634, unit = 4;
    int64_t tiles = (c->size[SZ_SK] + TILE_N - 1) / TILE_N;
    for (int64_t b = 0; b < c->size[SZ_B]; b++) {
        for (int64_t h = 0; h < c->size[SZ_HQ]; h++)
            for (int64_t q = 0; q < c->size[SZ_SQ]; q++) ag_host_set(&c->q, b, h, q, 0, unit);
        for (int64_t h = 0; h < c->size[SZ_HKV]; h++)
            for (int64_t k = 0; k < c->size[SZ_SK]; k++)
                ag_host_set(&c->k, b, h, k, 0, growth * (double)(tiles - 1 - k / TILE_N) / (unit * scale * log2e));
    }
}

/* ---- kernels */
static int form; /* of the loop: masked steps in one of their own, or in that of the others */
static Compilation *speculative(const char *spec, int dtype) {
    const attngen_dim dims[] = {{"D", 16}, {"dtype", dtype}, {NULL, 0}};
    Schedule s = small_wgmma(1);
    s.f[F_LOOP_FORM].v = form;
    s.f[F_SOFTMAX].v = 1;
    Compilation *c = compile_schedule(spec, &s, "sm_90a", dims, "place");
    must_compile(c);
    return c;
}

/* Puts `limit` into each condition `not SUM < LIMIT`, or `not MASKED and not SUM < LIMIT`, under which a step is done
 * again; NAN: it never is.  Returns how many there are. */
static int put_limit(Kernel *k, Block *b, double limit) {
    Nodes *p = &k->nodes;
    int n = 0;
    for (Ins *i = b->first; i; i = i->next) {
        n += put_limit(k, &i->body, limit);
        if (i->op != TI_ANY) continue;
        const Node whole = p->n[i->e[0]], not = whole.op == OP_AND ? p->n[whole.arg[1]] : whole, less = p->n[not .arg[0]];
        if (not .op != OP_NOT || less.op != OP_LT) continue;
        Ref below = ag_node_op(p, OP_LT, less.arg[0], ag_node_float(p, isnan(limit) ? 0 : limit), 0, less.span);
        Ref above = ag_node_op(p, OP_NOT, below, 0, 0, not .span);
        i->e[0] = isnan(limit)         ? below
                  : whole.op == OP_AND ? ag_node_op(p, OP_AND, whole.arg[0], above, 0, whole.span)
                                       : above; /* no sum is below 0 */
        n++;
    }
    return n;
}
static void set_limit(Compilation *c, double limit) { assert_int_equal(put_limit(c->fn.kernel, &c->fn.kernel->role[0].body, limit), 1); }

typedef enum Wants { RIGHT, WRONG } Wants;
static void expect(const Compilation *c, const Case *shape, double by, Wants wants) {
    growth = by;
    char *text = result_of_edited(c, shape, 5, 1, grow_to_the_left);
    bool simulated = !strstr(text, "simulated block");
    if (!simulated || (*text != '\0') != (wants == WRONG)) fail_msg("growth by 2^%g per tile: %s", by, *text ? text : "the result is right");
    free(text);
}

static const char DENSE[] = "attention: a\n", CAUSAL[] = "attention: a\nmask: k <= q\n";
static const Case tail = {.B = 1, .Hkv = 1, .group = 2, .Sq = 70, .Sk = 97, .offset = ATTNGEN_ALIGN_END};
/* The first row sees keys to 31, so that it has seen none when the first plain
 * tile, 16 to 31, comes. */
static const Case late = {.B = 1, .Hkv = 1, .group = 1, .Sq = 64, .Sk = 95, .offset = 31};

/* Weights above 2^40, once and again after each new maximum; growth by less
 * adds up until a later step is done again. */
static void test_growth(void **state) {
    (void)state;
    static const double by[] = {-200, -60, -1, 0, 1, 12, 20, 30, 45, 60, 130, 400};
    static const char *const spec[] = {DENSE, CAUSAL};
    static const int dtype[] = {ATTNGEN_BF16, ATTNGEN_F16};
    for (int s = 0; s < LEN(spec); s++)
        for (int t = 0; t < LEN(dtype); t++) {
            Compilation *c = speculative(spec[s], dtype[t]);
            for (int i = 0; i < LEN(by); i++) {
                expect(c, &tail, by[i], RIGHT);
                expect(c, &late, by[i], RIGHT);
            }
            ag_compilation_free(c);
        }
}

/* The weights of a plain step are those under the old maximum: without the
 * mending small growth is right and large growth overflows. */
static void test_growth_without_mending(void **state) {
    (void)state;
    Compilation *c = speculative(DENSE, ATTNGEN_BF16);
    set_limit(c, NAN);
    expect(c, &tail, 0, RIGHT);
    expect(c, &tail, 15, RIGHT);
    expect(c, &tail, 60, WRONG);
    expect(c, &tail, 400, WRONG);
    ag_compilation_free(c);
}

/* fp16 overflows at 2^16, far below the limit of bf16. */
static void test_f16_limit(void **state) {
    (void)state;
    Compilation *c = speculative(DENSE, ATTNGEN_F16);
    set_limit(c, 0x1p40);
    expect(c, &tail, 1, RIGHT);
    expect(c, &tail, 20, WRONG);
    ag_compilation_free(c);
    c = speculative(DENSE, ATTNGEN_F16);
    set_limit(c, NAN);
    expect(c, &tail, 20, WRONG);
    ag_compilation_free(c);
}

/* Rows without a key so far have no maximum to speculate under. */
static void test_no_key_yet(void **state) {
    (void)state;
    static const double by[] = {-10, 0, 10};
    for (int i = 0; i < LEN(by); i++) {
        Compilation *c = speculative(CAUSAL, ATTNGEN_BF16);
        expect(c, &late, by[i], RIGHT);
        set_limit(c, NAN);
        expect(c, &late, by[i], WRONG);
        ag_compilation_free(c);
    }
}

/* ---- penalties that grow with the distance: weights of plain steps in one map, which reads the key's position */
static bool weighs_distance(const Kernel *k, const Block *b) {
    bool found = false;
    for (const Ins *i = b->first; i && !found; i = i->next) {
        bool weights = i->op == TI_MAP && k->nodes.n[i->e[0]].op == OP_EXP2;
        found = (weights && ag_expr_uses(k, i->e[0], OP_AXIS, AX_K)) || weighs_distance(k, &i->body);
    }
    return found;
}

#define PENALTY(score) "attention: a\ninputs: {t: {f32: [h]}}\nscore: " score "\nmask: k <= q\n"

static void test_distance(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        bool fused;
    } row[] = {
        {PENALTY("s - t[h] * (q - k)"), true},     {PENALTY("s + 0.5 * t[h] * (k - q)"), true}, {PENALTY("0.7 * s - (q - k) / (8 + t[h])"), true},
        {PENALTY("s - t[h] * (q + k)"), false},    {PENALTY("s - t[h] * abs(q - k)"), false},   {PENALTY("s - t[h]"), false},
        {PENALTY("s - s * t[h] * (q - k)"), false}};
    static const Case shape[] = {{.B = 1, .Hkv = 2, .group = 1, .Sq = 150, .Sk = 150, .offset = ATTNGEN_ALIGN_END},
                                 {.B = 1, .Hkv = 1, .group = 2, .Sq = 70, .Sk = 200, .offset = 100},
                                 {.B = 1, .Hkv = 1, .group = 1, .Sq = 65, .Sk = 90, .offset = 1 << 20}};
    for (int i = 0; i < LEN(row); i++) {
        const attngen_dim dims[] = {{"D", 16}, {NULL, 0}};
        Schedule s = small_wgmma(1);
        s.f[F_LOOP_FORM].v = form;
        s.f[F_SOFTMAX].v = 1;
        Compilation *c = compile_schedule(row[i].spec, &s, "sm_90a", dims, NULL);
        must_compile(c);
        bool fused = row[i].fused && form == 0;
        if (weighs_distance(c->fn.kernel, &c->fn.kernel->role[0].body) != fused) fail_msg("%s: %s", row[i].spec, fused ? "not fused" : "fused");
        assert_int_equal(strstr(c->cu.s, "const float ramp") != NULL, fused);
        for (int n = 0; n < LEN(shape); n++) must_be_right(c, &shape[n], 17 + (uint64_t)n);
        ag_compilation_free(c);
    }
}

static int peeled(void **state) {
    (void)state;
    form = 0;
    return 0;
}
static int flagged(void **state) {
    (void)state;
    form = 1;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),    cmocka_unit_test(test_growth_without_mending),
        cmocka_unit_test(test_f16_limit), cmocka_unit_test(test_no_key_yet),
        cmocka_unit_test(test_distance),
    };
    return cmocka_run_group_tests(tests, peeled, NULL) + cmocka_run_group_tests(tests, flagged, NULL);
}
