/* The pool of expression nodes, and what is known of values without computing them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "law.h"
#include "with_diag.h"

/* ---- interning, folding one node */

static void check_nodes(Diag *d, uint16_t file, void *payload) {
    (void)file, (void)payload;
    Nodes p;
    ag_nodes_init(&p, d->arena);
    Span none = {0};
    Ref k = ag_node_leaf(&p, OP_AXIS, T_INT, AX_K, none), two = ag_node_int(&p, 2), x = ag_node_op(&p, OP_TOFLOAT, k, 0, 0, none);
    assert_int_equal(k, ag_node_leaf(&p, OP_AXIS, T_INT, AX_K, none));
    assert_int_equal(p.n[x].type, T_FLOAT);
    assert_int_equal(p.n[x].axes, 1 << AX_K);
    assert_true(ag_node_float(&p, 0.0) != ag_node_float(&p, -0.0));
    assert_true(ag_node_is_int(&p, ag_node_int(&p, (int64_t)INT32_MAX + 1), INT32_MIN));
    for (int i = 0; i < 1000; i++) ag_node_int(&p, i);
    for (int i = 0; i < 1000; i++) assert_true(ag_node_is_int(&p, ag_node_int(&p, i), i));
    assert_int_equal(p.n[ag_fold_node(&p, (Node){.op = OP_EQ, .arg = {x, x}})].op, OP_EQ); /* a NaN is not itself */
    assert_int_equal(p.n[ag_fold_node(&p, (Node){.op = OP_EQ, .arg = {k, k}})].op, OP_CONST);
    assert_int_equal(p.n[ag_fold_node(&p, (Node){.op = OP_MUL, .arg = {x, ag_node_float(&p, 0)}})].op, OP_MUL); /* x may be infinite */
    Ref sum = ag_node_op(&p, OP_ADD, two, k, 0, none);
    assert_int_equal(ag_node_op(&p, OP_ADD, k, two, 0, none), ag_node_rebuild(&p, &p, sum, NULL, NULL)); /* constants go last */
}

static void test_nodes(void **state) {
    (void)state;
    char *report = report_of(STR(""), check_nodes, NULL, NULL);
    assert_string_equal(report, "");
    free(report);
}

/* ---- printing */

static void check_printing(Diag *d, uint16_t file, void *payload) {
    (void)file, (void)payload;
    Nodes p;
    ag_nodes_init(&p, d->arena);
    Span none = {0};
    Ref k = ag_node_leaf(&p, OP_AXIS, T_INT, AX_K, none), q = ag_node_leaf(&p, OP_AXISMAX, T_INT, AX_Q, none), two = ag_node_int(&p, 2);
    Ref x = ag_node_leaf(&p, OP_VAL, T_FLOAT, 3, none), c = ag_node_carry_old(&p, 1, T_FLOAT), le = ag_node_op(&p, OP_LE, k, q, 0, none);
    Ref sub = ag_node_op(&p, OP_SUB, k, q, 0, none), b = ag_node_op(&p, OP_OR, le, ag_node_op(&p, OP_NOT, le, 0, 0, none), 0, none);
    const struct {
        Ref r;
        const char *text;
    } form[] = {
        {ag_node_op(&p, OP_MUL, sub, two, 0, none), "(k - q.max) * 2"},
        {ag_node_op(&p, OP_SUB, k, sub, 0, none), "k - (k - q.max)"},
        {ag_node_op(&p, OP_SUB, sub, k, 0, none), "k - q.max - k"},
        {ag_node_op(&p, OP_NEG, sub, 0, 0, none), "-(k - q.max)"},
        {ag_node_op(&p, OP_AND, b, le, 0, none), "(k <= q.max or not k <= q.max) and k <= q.max"},
        {ag_node_op(&p, OP_SELECT, le, x, ag_node_float(&p, -INFINITY), none), "select(k <= q.max, val3, -inf)"},
        {ag_node_op(&p, OP_EXP2, ag_node_op(&p, OP_SUB, c, ag_node_op(&p, OP_FINITE, x, 0, 0, none), 0, none), 0, 0, none),
         "exp2(carry1.old - finite(val3))"},
        {ag_node_op(&p, OP_MUL, ag_node_intern(&p, (Node){.op = OP_RSUM, .arg = {x}, .index = AX_D}), x, 0, none), "(sum d: val3) * val3"},
        {ag_node_float(&p, 1.4426950408889634), "1.442695"},
        {ag_node_float(&p, 0.1), "0.1"},
        {ag_node_float(&p, 16777216), "16777216.0"},
    };
    for (int i = 0; i < LEN(form); i++) {
        Buf out = {0};
        ag_node_print(&out, &p, form[i].r, NULL, NULL);
        assert_string_equal(out.s, form[i].text);
        ag_buf_free(&out);
    }
}

static void test_printing(void **state) {
    (void)state;
    char *report = report_of(STR(""), check_printing, NULL, NULL);
    assert_string_equal(report, "");
    free(report);
}

/* ---- laws */

/* Where a value is -inf or 0: y is a plain float, u one of unknown sign, m and w conditions, x = select(m, y, -inf). */
static void check_vanishing(Diag *d, uint16_t file, void *payload) {
    (void)payload;
    const Spec *spec = ag_spec_read(d, file, NULL, 0);
    Nodes p;
    ag_nodes_init(&p, d->arena);
    Span none = {0};
    Ref k = ag_node_leaf(&p, OP_AXIS, T_INT, AX_K, none), q = ag_node_leaf(&p, OP_AXIS, T_INT, AX_Q, none);
    Ref scale = ag_node_leaf(&p, OP_PARAM, T_FLOAT, 0, none), u = ag_node_leaf(&p, OP_PARAM, T_FLOAT, 1, none);
    Ref m = ag_node_op(&p, OP_LE, k, q, 0, none), w = ag_node_op(&p, OP_GT, k, ag_node_int(&p, 3), 0, none),
        not_m = ag_node_op(&p, OP_NOT, m, 0, 0, none);
    Ref y = ag_node_op(&p, OP_TOFLOAT, k, 0, 0, none), inf = ag_node_float(&p, -INFINITY), zero = ag_node_float(&p, 0);
    Ref x = ag_node_op(&p, OP_SELECT, m, y, inf, none), z = ag_node_op(&p, OP_EXP2, x, 0, 0, none);
#define NODE(...) ag_node_intern(&p, (Node){__VA_ARGS__})
    const struct {
        Ref value, neg_inf, zero; /* the conditions, 0: none */
    } form[] = {
        {x, m, 0},
        {y, 0, 0},
        {z, 0, m},
        {NODE(.op = OP_SELECT, .arg = {m, inf, y}), not_m, 0},
        {NODE(.op = OP_SELECT, .arg = {w, x, inf}), NODE(.op = OP_AND, .arg = {w, m}), 0},
        {NODE(.op = OP_SELECT, .arg = {w, y, zero}), 0, w},
        {NODE(.op = OP_MUL, .arg = {x, scale}), m, 0},
        {NODE(.op = OP_MUL, .arg = {scale, x}), m, 0},
        {NODE(.op = OP_MUL, .arg = {x, u}), 0, 0},
        {NODE(.op = OP_MUL, .arg = {u, x}), 0, 0},
        {NODE(.op = OP_DIV, .arg = {x, scale}), m, 0},
        {NODE(.op = OP_SUB, .arg = {x, y}), m, 0},
        {NODE(.op = OP_SUB, .arg = {y, x}), 0, 0},
        {NODE(.op = OP_ADD, .arg = {y, x}), m, 0},
        {NODE(.op = OP_MAX, .arg = {y, x}), 0, 0},
        {NODE(.op = OP_MIN, .arg = {y, x}), m, 0},
        {NODE(.op = OP_RELU, .arg = {x}), 0, m},
        {NODE(.op = OP_TANH, .arg = {x}), 0, 0},
        {NODE(.op = OP_MUL, .arg = {y, z}), 0, m},
        {NODE(.op = OP_DIV, .arg = {z, y}), 0, m},
        {NODE(.op = OP_DIV, .arg = {y, z}), 0, 0},
        {NODE(.op = OP_ADD, .arg = {z, y}), 0, 0},
        {NODE(.op = OP_FINITE, .arg = {x}), 0, 0},
    };
#undef NODE
    for (int i = 0; i < LEN(form); i++) {
        assert_int_equal(ag_neg_inf_unless(spec, &p, form[i].value), form[i].neg_inf);
        assert_int_equal(ag_zero_unless(spec, &p, form[i].value), form[i].zero);
    }
    assert_true(ag_positive(spec, &p, scale));
    assert_false(ag_positive(spec, &p, u));
}

static void test_vanishing(void **state) {
    (void)state;
    char *report = report_of(STR("attention: a\nparams: {u: {float: 1.0}}\n"), check_vanishing, NULL, NULL);
    assert_string_equal(report, "");
    free(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nodes), cmocka_unit_test(test_printing), cmocka_unit_test(test_vanishing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
