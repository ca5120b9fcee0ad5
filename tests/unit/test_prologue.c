/* test_prologue.c: rows of q and k changed before attention: what the reference makes of them, both kernel paths over all cases of `attngen check`, the spec read back,
 * and that a wrong row is found. */
#include "with_check.h"

#include <math.h>

/* ---- the reference */

enum { D = 8 };

/* The rows of q or k of a call with one head and `n` rows from position `off` on; x: [n, D]. */
static void rows_of(const char *text, bool of_k, int64_t n, int64_t off, float *x, double *out) {
    Compilation *c = compiled(text, "sm_80", "lower", D);
    HostTensor t = {.data = x, .type = DT_F32, .stride = {n * D, n * D, D, 1}};
    HostCall call = {.q = t, .k = t, .size = {[SZ_B] = 1, [SZ_HQ] = 1, [SZ_HKV] = 1, [SZ_SQ] = n, [SZ_SK] = n, [SZ_OFF] = off, [SZ_D] = D}};
    ag_reference_rows(c->fn.spec, &call, of_k, out);
    ag_compilation_free(c);
}

static void fill(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = (float)sin(1.7 * (double)i + 0.3);
}

/* By hand: the norm of 1 .. 8 is sqrt(204), the mean of squares 25.5. */
static void test_norm(void **state) {
    (void)state;
    float x[D] = {1, 2, 3, 4, 5, 6, 7, 8};
    double y[D];
    rows_of("attention: t\nprologue: {q: [{rms_norm: {eps: 0.5}}, {scale: d + 1}]}\n", false, 1, 0, x, y);
    for (int d = 0; d < D; d++) assert_true(fabs(y[d] - x[d] / sqrt(26) * (d + 1)) < 1e-12);
}

/* As products of complex numbers: pair i at position p is turned by exp(j p theta^(-2 i / channels)). */
static void test_angles(void **state) {
    (void)state;
    enum { ROWS = 3, OFF = 41 };
    float x[ROWS * D];
    double half[ROWS * D], next[ROWS * D];
    fill(x, ROWS * D);
    rows_of("attention: t\nprologue: {q: [{rope: {theta: 100.0, channels: 6}}]}\n", false, ROWS, OFF, x, half);
    rows_of("attention: t\nprologue: {k: [{rope: {theta: 100.0, style: interleaved}}]}\n", true, ROWS, OFF, x, next);
    static const double base6[] = {1, 0.21544346900318834, 0.046415888336127774}, base8[] = {1, 0.31622776601683794, 0.1, 0.03162277660168379};
    for (int r = 0; r < ROWS; r++) {
        const float *a = x + r * D;
        for (int i = 0; i < 3; i++) {
            double angle = (r + OFF) * base6[i];
            assert_true(fabs(half[r * D + i] - (a[i] * cos(angle) - a[i + 3] * sin(angle))) < 1e-9);
            assert_true(fabs(half[r * D + i + 3] - (a[i + 3] * cos(angle) + a[i] * sin(angle))) < 1e-9);
        }
        assert_true(half[r * D + 6] == (double)a[6] && half[r * D + 7] == (double)a[7]);
        for (int i = 0; i < 4; i++) { /* keys count from 0 */
            double angle = r * base8[i];
            assert_true(fabs(next[r * D + 2 * i] - (a[2 * i] * cos(angle) - a[2 * i + 1] * sin(angle))) < 1e-9);
            assert_true(fabs(next[r * D + 2 * i + 1] - (a[2 * i + 1] * cos(angle) + a[2 * i] * sin(angle))) < 1e-9);
        }
    }
}

/* What rotary embedding is for: products of rotated rows depend on the distance of their positions alone. */
static void test_distance(void **state) {
    (void)state;
    enum { ROWS = 4 };
    static const char text[] = "attention: t\nprologue: {q: [{rope: {theta: 1000.0}}]}\n";
    float x[ROWS * D];
    double near[ROWS * D], far[ROWS * D];
    fill(x, ROWS * D);
    rows_of(text, false, ROWS, 5, x, near);
    rows_of(text, false, ROWS, 70005, x, far);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++) {
            double a = 0, b = 0;
            for (int d = 0; d < D; d++) a += near[i * D + d] * near[j * D + d], b += far[i * D + d] * far[j * D + d];
            assert_true(fabs(a - b) < 1e-9);
        }
    assert_true(fabs(near[0] - far[0]) > 1e-3);
}

/* ---- kernels */

/* Halves of any number of channels, within a lane and across; pairs of neighbours; channels that are left as they are; more steps than one of a kind. */
static void test_rope(void **state) {
    (void)state;
    static const int channels[] = {2, 6, 20, 30, 32};
    for (int i = 0; i < LEN(channels); i++) {
        char text[200];
        snprintf(
            text, sizeof text,
            "attention: t\nmask: k <= q\nprologue:\n  q: [{rope: {theta: 500.0, channels: %d}}]\n  k: [{rope: {theta: 500.0, channels: %d, style: "
            "interleaved}}]\n",
            channels[i], channels[i]);
        must_pass(text, channels[i] == 32 ? 32 : 31);
    }
    must_pass(
        "attention: t\nprologue: {qk: [{rope: {theta: 10.0, channels: 12}}, {rope: {theta: 20.0}}, {rope: {theta: 1e9, style: interleaved}}]}\n", 40);
}

static void test_tables(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {c: {bf16: [b, k, 7]}, n: {f16: [200, 7]}}\nmask: k <= q\n"
              "prologue: {qk: [{rope: {cos: c, sin: n, style: interleaved}}]}\n",
              24);
    must_pass("attention: t\ninputs: {c: {f32: [k, 8]}, n: {f32: [k, 8]}, p: {i32: [b, k]}}\nmask: k <= q\nprologue:\n"
              "  q: [{rope: {cos: c, sin: n, position: \"p[b, q] + 1\"}}]\n  k: [{rope: {cos: c, sin: n, position: \"p[b, k]\"}}]\n",
              48);
    must_pass("attention: t\ninputs: {c: {f32: [1, q, 4]}, n: {f32: [b, q, 4]}}\nprologue: {q: [{rope: {cos: c, sin: n}}]}\n", 16);
}

static void test_scale_and_norm(void **state) {
    (void)state;
    must_pass("attention: t\nparams: {t: 0.5, e: 0.001}\ninputs: {w: {dtype: [h, d]}, x: {f32: [b, q]}, y: {u8: [g, k]}}\nmask: k <= q\nprologue:\n"
              "  q: [{scale: \"t * x[b, q] + 0.1 * d\"}, {rms_norm: {eps: e, weight: w}}]\n  k: [{rms_norm: {eps: e}}, {scale: \"1 + y[g, k]\"}]\n",
              20);
    must_pass("attention: t\nprologue: {q: [{scale: 1 / (D + 3 - d)}, {rms_norm: {eps: 0}}]}\n", 21); /* infinite past D */
}

/* Pools, selections and all branches take the rows that the prologue has made. */
static void test_branches(void **state) {
    (void)state;
    must_pass("attention: t\nheads: {group: 2}\nprologue: {qk: [{rope: {theta: 100.0}}, {scale: 0.7}]}\nderive:\n"
              "  kc: {pool: k, size: 32, stride: 16}\n  vc: {pool: v, size: 32, stride: 16}\n"
              "  picks: {select: cmp, block: 32, count: 3, force: {first: 1, local: 1}}\nbranches:\n"
              "  cmp: {keys: kc, values: vc, mask: 16 * k + 31 <= q}\n  slc: {blocks: picks, mask: k <= q}\noutput: cmp + 0.5 * slc\n",
              32);
}

/* ---- the spec read back */
static void test_print(void **state) {
    (void)state;
    static const char text[] = "attention: t\nparams: {th: 99.0}\ninputs: {w: {f32: [d]}, c: {f32: [k, 4]}, p: {i32: [k]}}\nprologue:\n"
                               "  q: [{rms_norm: {eps: 0.5, weight: w}}, {rope: {theta: th, channels: 6}}]\n"
                               "  k: [{scale: 2 * d}, {rope: {cos: c, sin: c, style: interleaved, position: \"p[k]\"}}]\n";
    Compilation *c = compiled(text, "sm_80", "lower", 16);
    Buf once = {0}, twice = {0};
    ag_spec_print(&once, c->fn.spec);
    ag_putn(&once, "", 0);
    assert_non_null(strstr(once.s, "  q:\n    - rms_norm: {eps: 0.5, weight: w}\n    - rope: {theta: th, channels: 6, style: half}\n"
                                   "  k:\n    - scale: 2 * d\n    - rope: {cos: c, sin: c, channels: 8, style: interleaved, position: \"p[k]\"}\n"));
    Compilation *again = compiled(once.s, "sm_80", "lower", 16);
    ag_spec_print(&twice, again->fn.spec);
    ag_putn(&twice, "", 0);
    assert_string_equal(once.s, twice.s);
    ag_buf_free(&once);
    ag_buf_free(&twice);
    ag_compilation_free(c);
    ag_compilation_free(again);
}

/* ---- the judge */

static Ins *find(Block *b, TileOp op) {
    for (Ins *i = b->first; i; i = i->next) {
        if (i->op == op) return i;
        Ins *inner = find(&i->body, op);
        if (inner) return inner;
    }
    return NULL;
}

/* A kernel that turns one pair by a little too much, as of a position half a thousandth off: its rows are wrong, whatever attention makes of them. */
static void test_wrong_row(void **state) {
    (void)state;
    Compilation *c = compiled("attention: t\nprologue: {q: [{rope: {theta: 100.0}}]}\n", "sm_80", NULL, 32);
    const Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 40, .offset = ATTNGEN_ALIGN_END};
    Ins *rotate = find(&c->part[0].kernel->role[0].body, TI_ROW_ROTATE);
    assert_non_null(rotate);
    uint64_t turns[16];
    for (int wrong = 0; wrong < 2; wrong++) {
        CaseData d;
        MadeRows rows;
        ProgramBuffers buffers;
        Buf message = {0};
        char text[256] = "";
        assert_true(ag_check_data(&d, &shape, c->fn.spec, 3) && ag_rows_init(&rows, c->fn.spec, &d.call));
        ag_check_poison(&d, c->fn.spec);
        assert_true(ag_simulate_program(c, &d.call, &buffers, &message));
        memcpy(rows.got[0], buffers.tensor[ag_program_rows(c->fn.spec, ROWS_Q)].data, rows.bytes[0]);
        assert_int_equal(ag_rows_judge(&rows, c->fn.spec, &d.call, text, sizeof text), !wrong);
        if (wrong) assert_non_null(strstr(text, "rows of q[b 0, h 0, row "));
        ag_program_buffers_free(&buffers);
        ag_check_data_free(&d);
        ag_rows_free(&rows);
        ag_buf_free(&message);
        memcpy(turns, rotate->turns, sizeof turns);
        turns[3] += turns[3] / 2000;
        rotate->turns = turns;
    }
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_norm),     cmocka_unit_test(test_angles), cmocka_unit_test(test_distance),
                                       cmocka_unit_test(test_rope),     cmocka_unit_test(test_tables), cmocka_unit_test(test_scale_and_norm),
                                       cmocka_unit_test(test_branches), cmocka_unit_test(test_print),  cmocka_unit_test(test_wrong_row)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
