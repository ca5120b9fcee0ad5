/* The expression language: parsing, names and types, printing, evaluation; and the scalar operations of the kernels. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "expr.h"
#include "host.h"
#include "with_diag.h"

/* ---- a spec to write expressions in */

static const char header[] = "attention: t\nparams: {w: 3, x: 2.5}\nlet:\n  near: q - k < w\n  twice: 2 * s\n";

typedef struct Work {
    const char *text; /* of an expression */
    Type want;
    void (*use)(Diag *d, Spec *spec, Ast *e, void *payload);
    void *payload;
} Work;

static Doc as_doc(Diag *d, Str text) {
    uint16_t file = ag_diag_file(d, STR("e"), text);
    return (Doc){.kind = DOC_SCALAR, .span = {file, 0, (uint32_t)text.n}, .text = text};
}

static void read_expression(Diag *d, uint16_t file, void *payload) {
    Work *w = payload;
    Spec *spec = ag_spec_read(d, file, NULL, 0);
    assert_non_null(spec);
    Doc doc = as_doc(d, ag_str(w->text));
    Ast *e = ag_expr_read(d, spec, &doc, w->want);
    if (e) w->use(d, spec, e, w->payload);
}

/* Reads `text` under `header` and calls use with its tree; returns what was reported. */
static char *with_expression(const char *text, Type want, void (*use)(Diag *, Spec *, Ast *, void *), void *payload) {
    Work w = {text, want, use, payload};
    return report_of(ag_str(header), read_expression, &w, NULL);
}

static void expect_no_report(char *report) {
    assert_string_equal(report, "");
    free(report);
}

/* ---- values: b = 1, h = 6 of 8, g = 3 of 4, q = 10, k = 4, s = 0.5; B = 2, Sq = 12, Sk = 20, off = 8, w = 3, x = 2.5 */

static void evaluate(Diag *d, Spec *spec, Ast *e, void *payload) {
    (void)d;
    HostCall call = {.size = {[SZ_B] = 2, [SZ_HQ] = 8, [SZ_HKV] = 4, [SZ_SQ] = 12, [SZ_SK] = 20, [SZ_OFF] = 8, [SZ_D] = 128, [SZ_DV] = 128}};
    for (int i = 0; i < spec->nparam; i++) {
        const Scalar *v = &spec->param[i].value;
        call.scalar[i] = v->type == T_INT ? (double)v->u.i : v->u.f;
    }
    *(Scalar *)payload = ag_ast_eval(spec, &call, e, 1, 6, 10, 4, 0.5);
}

static Scalar value_of(const char *text) {
    Scalar v = {.type = T_NONE};
    expect_no_report(with_expression(text, T_NONE, evaluate, &v));
    return v;
}

static void expect_float(const char *text, double want) {
    Scalar v = value_of(text);
    if (v.type != T_FLOAT || !(fabs(v.u.f - want) <= 1e-12 * fmax(1, fabs(want)))) fail_msg("%s is %.17g, not %.17g", text, v.u.f, want);
}

static void expect_int(const char *text, int64_t want) {
    Scalar v = value_of(text);
    if (v.type != T_INT || v.u.i != want) fail_msg("%s is %lld, not %lld", text, (long long)v.u.i, (long long)want);
}

static void expect_bool(const char *text, bool want) {
    Scalar v = value_of(text);
    if (v.type != T_BOOL || v.u.b != want) fail_msg("%s is not %d", text, want);
}

static void test_integers(void **state) {
    (void)state;
    expect_int("b * 1000 + h * 100 + g * 10", 1630);
    expect_int("q - k", 6);
    expect_int("1 + 2 * 3 - 4", 3);
    expect_int("(1 + 2) * 3", 9);
    expect_int("10 - 4 - 3", 3);
    expect_int("-7 // 2", -4);
    expect_int("7 // -2", -4);
    expect_int("-7 // -2", 3);
    expect_int("-7 % 3", 2);
    expect_int("7 % -3", -2);
    expect_int("q // (k - 4)", 0); /* division by zero in the run gives 0 */
    expect_int("q % (k - 4)", 0);
    expect_int("--q", 10);
    expect_int("B + Hq + Hkv + Sq + Sk + off", 54);
    expect_int("D + Dv", 256);
    expect_int("w", 3);
    expect_int("floor(x)", 2);
    expect_int("floor(-x)", -3);
    expect_int("floor(q)", 10);
    expect_int("abs(k - q) + relu(k - q) + relu(q - k)", 12);
    expect_int("min(q, k) * 10 + max(q, k)", 50);
    expect_int("clamp(q, 0, 5) + clamp(-q, 0, 5) + clamp(3, 0, 5)", 8);
    expect_int("1 if q < k else 2 if q == 10 else 3", 2);
}

/* Written out when they are read; the innermost n counts. */
static void test_sums(void **state) {
    (void)state;
    expect_int("sum(n < 5: n)", 10);
    expect_int("2 * sum(n < 3: n * q) + 1", 61);
    expect_int("sum(n < 3: sum(m < 2: 10 * n + m))", 63);
    expect_int("sum(n < 2: sum(n < 3: n) * (n + 1))", 9);
    expect_int("sum(n < 4: 1 if n < k // 2 else 0)", 2);
    expect_int("sum(w < 4: w) + w", 9);
    expect_int("sum(n < 64: n)", 2016);
    expect_float("sum(n < 3: s * n + twice)", 4.5);
    expect_float("sum(n < 2: x if 0 < n <= q else s)", 3.0);
}

/* The low 32 bits count. */
static void test_wrap_around(void **state) {
    (void)state;
    expect_int("1073741824 * 2 * (q // 10)", -2147483648);
    expect_int("2147483647 + q", -2147483639);
    expect_int("-2147483647 - q", 2147483639);
    expect_int("k // (1073741824 * (q // 5))", -1);
}

static void test_floats(void **state) {
    (void)state;
    expect_float("s", 0.5);
    expect_float("twice", 1.0);
    expect_float("x * q", 25.0);
    expect_float("q / k", 2.5);
    expect_float("1 / 2", 0.5);
    expect_float("2 ** 10", 1024.0);
    expect_float("2 ** 3 ** 2", 512.0);
    expect_float("2 ** -1", 0.5);
    expect_float("-2 ** 2", -4.0);
    expect_float("(-2) ** 2", 4.0);
    expect_float("x // 1.0", 2.0);
    expect_float("-x // 1", -3.0);
    expect_float("-x % 2", 1.5);
    expect_float("x % -2.0", -1.5);
    expect_float("x % (q - 10.0)", 0.0);
    expect_float("1 if k <= q else 0.5", 1.0);
    expect_float("max(q, x)", 10.0);
    expect_float("exp(0) + exp2(3) + log(1) + log2(8)", 12.0);
    expect_float("tanh(s)", tanh(0.5));
    expect_float("sigmoid(s) + sigmoid(-s)", 1.0);
    expect_float("softplus(s) - softplus(-s)", 0.5);
    expect_float("softplus(1000.0)", 1000.0);
    expect_float("relu(-s) + sqrt(16) + rsqrt(4)", 4.5);
    expect_float("sin(s) ** 2 + cos(s) ** 2", 1.0);
    expect_float("clamp(s, -0.25, 0.25)", 0.25);
    expect_float("1e3 + .5 + 2. + 1.5E-1", 1002.65);
    expect_float("scale", 1 / sqrt(128));
}

static void test_conditions(void **state) {
    (void)state;
    expect_bool("true", true);
    expect_bool("not true or true", true);
    expect_bool("not (true or true)", false);
    expect_bool("false and false or true", true);
    expect_bool("not k == 4", false);
    expect_bool("k < q and q != 10", false);
    expect_bool("0 <= k < q", true);
    expect_bool("0 <= k < q < 10", false);
    expect_bool("0 < q > k", true);
    expect_bool("x > 2 and x < 3", true);
    expect_bool("near", false);
    expect_bool("near if q < k else not near", true);
}

/* ---- printing */

static void print(Diag *d, Spec *spec, Ast *e, void *payload) {
    (void)d;
    ag_expr_print(payload, spec, e);
}

static void test_print(void **state) {
    static const char *const pairs[][2] = {
        {"((q)+(k))", "q + k"},
        {"q-(k-w)", "q - (k - w)"},
        {"(q-k)-w", "q - k - w"},
        {"q+(k+w)", "q + (k + w)"},
        {"(q*k)//w%2", "q * k // w % 2"},
        {"q*(k//w)", "q * (k // w)"},
        {"-(q+k)*-w", "-(q + k) * -w"},
        {"-(s**2)", "-s ** 2"},
        {"(-s)**2", "(-s) ** 2"},
        {"(2**s)**x", "(2 ** s) ** x"},
        {"2**(s**x)", "2 ** s ** x"},
        {"2**(-s)", "2 ** -s"},
        {"2**(s+x)", "2 ** (s + x)"},
        {"--q", "--q"},
        {"not(k<q)and(not near)", "not k < q and not near"},
        {"not(k<q and near)", "not (k < q and near)"},
        {"(k<q or near)and true", "(k < q or near) and true"},
        {"k<q or(near and true)", "k < q or near and true"},
        {"0<=k<q", "0 <= k and k < q"},
        {"(1 if near else 2)if k<q else(3 if near else 4)", "(1 if near else 2) if k < q else 3 if near else 4"},
        {"(1 if near else 2)+3", "(1 if near else 2) + 3"},
        {"max( s,1 )", "max(s, 1)"},
        {"clamp(s,-1,min(x,2.5e10))", "clamp(s, -1, min(x, 25000000000.0))"},
        {"1.50 * 1e-7", "1.5 * 1e-07"},
        {"q\t+\n  k", "q + k"},
    };
    (void)state;
    for (int i = 0; i < LEN(pairs); i++) {
        Buf out = {0};
        expect_no_report(with_expression(pairs[i][0], T_NONE, print, &out));
        assert_string_equal(out.s, pairs[i][1]);
        ag_buf_free(&out);
    }
}

static void test_print_foreign_constants(void **state) {
    (void)state;
    Ast least = {.op = OP_CONST, .type = T_INT, .value = {T_INT, {.i = INT32_MIN}}},
        minus = {.op = OP_CONST, .type = T_FLOAT, .value = {T_FLOAT, {.f = -1.5}}};
    Ast two = {.op = OP_CONST, .type = T_INT, .value = {T_INT, {.i = 2}}};
    Ast mul = {.op = OP_MUL, .type = T_INT, .arg = {&two, &least}}, power = {.op = OP_POW, .type = T_FLOAT, .arg = {&minus, &two}};
    Spec none = {.D = 1};
    Buf out = {0};
    ag_expr_print(&out, &none, &mul);
    ag_put(&out, " | ");
    ag_expr_print(&out, &none, &power);
    assert_string_equal(out.s, "2 * (-2147483647 - 1) | (-1.5) ** 2");
    ag_buf_free(&out);
}

/* ---- parse(print(tree)) == tree, for random trees */

static uint32_t random_state;
static int random_below(int n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (uint32_t)n);
}

typedef struct Maker {
    Diag *d;
    Spec *spec;
} Maker;

static Ast *make(Maker *m, Type type, int size, bool promoted);

static Ast *new_node(Maker *m, Op op, Type type) {
    Ast *e = NEW(m->d->arena, Ast);
    *e = (Ast){.op = op, .type = type};
    return e;
}

static Ast *make_leaf(Maker *m, Type type) {
    Ast *e = new_node(m, OP_CONST, type);
    int pick = random_below(3);
    e->value.type = type;
    if (type == T_BOOL)
        e->value.u.b = pick == 0;
    else if (type == T_INT)
        e->value.u.i = random_below(1000);
    else
        e->value.u.f = random_below(1000) / 64.0;
    if (pick == 0) return e;
    *e = (Ast){.op = type == T_BOOL ? OP_LET : type == T_INT ? OP_AXIS : OP_SCORE, .type = type};
    if (type == T_INT) e->index = random_below(AX_D);
    if (type == T_INT && pick == 2) *e = (Ast){.op = OP_SIZE, .type = type, .index = random_below(SZ_OFF)};
    if (type == T_FLOAT && pick == 2) *e = (Ast){.op = OP_PARAM, .type = type, .index = 2};
    return e;
}

/* A float; where a promoted int may stand, sometimes one. */
static Ast *make_promoted(Maker *m, int size) {
    Ast *e = new_node(m, OP_TOFLOAT, T_FLOAT);
    e->arg[0] = make(m, T_INT, size - 1, false);
    return e;
}

static bool gives(Op op, Type type) {
    switch (ag_op[op].rule) {
    case RULE_NUM: return type != T_BOOL;
    case RULE_FLT: return type == T_FLOAT;
    case RULE_CMP:
    case RULE_LOG: return type == T_BOOL;
    case RULE_SEL: return true;
    case RULE_TOINT: return type == T_INT;
    default: return false;
    }
}

/* promoted: the place is one where typing promotes an int by itself. */
static Ast *make(Maker *m, Type type, int size, bool promoted) {
    if (promoted && random_below(3) == 0) return make_promoted(m, size);
    if (size <= 1) return make_leaf(m, type);
    Op op;
    do op = (Op)random_below(OP_COUNT);
    while (!gives(op, type) || !*ag_op[op].spelling || ag_op_has(op, 'K'));
    Ast *e = new_node(m, op, type);
    OpRule rule = ag_op[op].rule;
    Type child = rule == RULE_FLT                         ? T_FLOAT
                 : rule == RULE_LOG                       ? T_BOOL
                 : rule == RULE_CMP || rule == RULE_TOINT ? (random_below(2) ? T_INT : T_FLOAT)
                                                          : type;
    int n = ag_op[op].arity, anchor = rule == RULE_SEL ? 1 : 0; /* one argument that is a float by itself makes typing promote the others */
    for (int i = 0; i < n; i++) {
        bool condition = rule == RULE_SEL && i == 0, may = child == T_FLOAT && rule != RULE_TOINT && (rule == RULE_FLT || i != anchor);
        e->arg[i] = make(m, condition ? T_BOOL : child, (size - 1) / n, may && !condition);
    }
    return e;
}

static bool same(const Ast *a, const Ast *b) {
    if (!a || !b) return a == b;
    if (a->op != b->op || a->type != b->type || (a->op != OP_CONST && a->index != b->index)) return false;
    if (a->op == OP_CONST && a->type == T_BOOL && a->value.u.b != b->value.u.b) return false;
    if (a->op == OP_CONST && a->type == T_INT && a->value.u.i != b->value.u.i) return false;
    if (a->op == OP_CONST && a->type == T_FLOAT && a->value.u.f != b->value.u.f) return false;
    return same(a->arg[0], b->arg[0]) && same(a->arg[1], b->arg[1]) && same(a->arg[2], b->arg[2]);
}

typedef struct RoundTrip {
    int checked;
} RoundTrip;

static void round_trip(Diag *d, uint16_t file, void *payload) {
    static const Type types[] = {T_BOOL, T_INT, T_FLOAT};
    RoundTrip *t = payload;
    Spec *spec = ag_spec_read(d, file, NULL, 0);
    Maker m = {d, spec};
    Ast *made = make(&m, types[random_below(3)], 1 + random_below(60), false);
    Buf out = {0};
    ag_expr_print(&out, spec, made);
    Str text = ag_str_copy(d->arena, (Str){out.s, (int)out.n});
    ag_buf_free(&out);
    Doc doc = as_doc(d, text);
    Ast *read = ag_expr_read(d, spec, &doc, T_NONE);
    if (read && !same(made, read)) fail_msg("%s reads back as another tree", text.s);
    t->checked += read != NULL;
}

static void test_round_trip(void **state) {
    (void)state;
    RoundTrip t = {0};
    for (uint32_t seed = 0; seed < 3000; seed++) {
        random_state = seed;
        char *report = report_of(ag_str(header), round_trip, &t, NULL);
        if (*report) assert_non_null(strstr(report, "division by zero")); /* constants may come to that; nothing else is wrong */
        free(report);
    }
    assert_true(t.checked > 2500);
}

/* ---- errors: those of whole specs are in tests/errors/spec */

static void not_reached(Diag *d, Spec *spec, Ast *e, void *payload) {
    (void)d, (void)spec, (void)e, (void)payload;
    fail();
}

static void expect_report(const char *text, Type want, const char *report) {
    char *got = with_expression(text, want, not_reached, NULL);
    assert_string_equal(got, report);
    free(got);
}

static void test_errors(void **state) {
    (void)state;
    expect_report("s + tahn(x)", T_FLOAT,
                  "e:1:5: error: unknown function 'tahn'; did you mean 'tanh'?\n"
                  "    s + tahn(x)\n"
                  "        ^~~~\n");
    expect_report("q // (w - w) + qq", T_NONE,
                  "e:1:16: error: unknown name 'qq'; did you mean 'q'?\n"
                  "    q // (w - w) + qq\n"
                  "                   ^~\n");
    expect_report("twice > 1", T_BOOL,
                  "e:1:1: error: 'twice' depends on 's', which cannot be used in a mask\n"
                  "    twice > 1\n"
                  "    ^~~~~\n");
    expect_report("near + 1", T_NONE,
                  "e:1:1: error: '+' needs numbers; its left side is bool and its right side is int\n"
                  "    near + 1\n"
                  "    ^~~~\n");
    expect_report("max(x, near)", T_NONE,
                  "e:1:8: error: 'max' needs numbers; it is given float and bool\n"
                  "    max(x, near)\n"
                  "           ^~~~\n");
    expect_report("clamp(x, near, 1)", T_NONE,
                  "e:1:10: error: 'clamp' needs numbers; it is given float, bool and int\n"
                  "    clamp(x, near, 1)\n"
                  "             ^~~~\n");
    expect_report("doc[b, q]", T_NONE,
                  "e:1:1: error: unknown input 'doc'; captured tensors are declared in 'inputs', such as doc: {f32: [b, q]}\n"
                  "    doc[b, q]\n"
                  "    ^~~\n");
    expect_report("q \x01 k", T_NONE,
                  "e:1:3: error: byte 0x01 cannot be part of an expression\n"
                  "    q ? k\n"
                  "      ^\n");
    expect_report("   ", T_NONE,
                  "e:1:1: error: the expression is empty\n"
                  "       \n"
                  "    ^~~\n");
}

/* Repeats `piece` n times between `before` and `after`. */
static char *repeated(const char *before, const char *piece, int n, const char *after) {
    Buf b = {0};
    ag_put(&b, "%s", before);
    for (int i = 0; i < n; i++) ag_put(&b, "%s", piece);
    ag_put(&b, "%s", after);
    return b.s;
}

static void expect_one_error(char *text, const char *message) {
    char *report = with_expression(text, T_NONE, not_reached, NULL);
    const char *at = strstr(report, "error: ");
    assert_non_null(at);
    assert_int_equal(strncmp(at + 7, message, strlen(message)), 0);
    assert_null(strstr(at + 1, "error: "));
    free(report);
    free(text);
}

static void accept(Diag *d, Spec *spec, Ast *e, void *payload) {
    (void)d, (void)spec, (void)e;
    ++*(int *)payload;
}

static void test_hostile(void **state) {
    (void)state;
    static const char nested[] = "the expression is nested more than 64 levels deep\n";
    static const char deep[] = "the expression is more than 1024 operations deep; break it up with parentheses\n";
    static const char many[] = "the expression has more than 4096 operations and operands\n";
    expect_one_error(repeated("", "(", 10000, ""), nested);
    expect_one_error(repeated("", "-", 10000, "q"), nested);
    expect_one_error(repeated("", "not ", 10000, "q"), nested);
    expect_one_error(repeated("", "2 ** ", 10000, "2"), nested);
    expect_one_error(repeated("", "exp(", 10000, "q"), nested);
    expect_one_error(repeated("", "1 if near else ", 10000, "2"), nested);
    expect_one_error(repeated("1", " + 1", 1024, ""), deep);
    expect_one_error(repeated("1", "*1", 10000, ""), deep);
    expect_one_error(repeated("q", " < q", 1500, ""), deep);
    expect_one_error(repeated("0", " + max(q, min(k, 1)) * 2", 1000, ""), many);
    expect_one_error(repeated("", "max(q if 0 < ", 1000, ""), nested);
    /* each chain stands for its middle operand twice: 2^20 operands */
    char *opened = repeated("", "(1 if 0 < ", 20, "q");
    expect_one_error(repeated(opened, " < 2 else 0)", 20, ""), many);
    free(opened);
}

static void test_limits(void **state) {
    (void)state;
    int accepted = 0;
    char *sum = repeated("1", " + 1", 1022, ""), *nest = repeated("", "(", 60, "q");
    char *closed = repeated(nest, ")", 60, "");
    expect_no_report(with_expression(sum, T_NONE, accept, &accepted));
    expect_no_report(with_expression(closed, T_NONE, accept, &accepted));
    assert_int_equal(accepted, 2);
    free(sum);
    free(nest);
    free(closed);
}

/* ---- operations as the kernels do them */

static Scalar eval2(Op op, Scalar a, Scalar b, bool *ok) {
    Scalar arg[3] = {a, b, b}, r = {.type = T_NONE};
    *ok = ag_eval(op, arg, &r);
    return r;
}

static void expect_int_op(Op op, int64_t a, int64_t b, int64_t want, bool want_ok) {
    bool ok;
    Scalar r = eval2(op, (Scalar){T_INT, {.i = a}}, (Scalar){T_INT, {.i = b}}, &ok);
    assert_int_equal(r.type, T_INT);
    assert_true(r.u.i == want);
    assert_int_equal(ok, want_ok);
}

static void expect_float_op(Op op, double a, double b, double want) {
    bool ok;
    Scalar r = eval2(op, (Scalar){T_FLOAT, {.f = a}}, (Scalar){T_FLOAT, {.f = b}}, &ok);
    assert_int_equal(r.type, T_FLOAT);
    if (isnan(want))
        assert_true(isnan(r.u.f));
    else
        assert_true(r.u.f == want);
    assert_true(ok);
}

static void test_eval_integers(void **state) {
    (void)state;
    expect_int_op(OP_ADD, INT32_MAX, 1, INT32_MIN, true);
    expect_int_op(OP_SUB, INT32_MIN, 1, INT32_MAX, true);
    expect_int_op(OP_MUL, 65536, 65536, 0, true);
    expect_int_op(OP_MUL, 65537, 65537, 131073, true);
    expect_int_op(OP_NEG, INT32_MIN, 0, INT32_MIN, true);
    expect_int_op(OP_ABS, INT32_MIN, 0, INT32_MIN, true);
    expect_int_op(OP_FLOORDIV, -7, 2, -4, true);
    expect_int_op(OP_FLOORDIV, INT32_MIN, -1, INT32_MIN, true);
    expect_int_op(OP_FLOORDIV, 7, 0, 0, false);
    expect_int_op(OP_MOD, -7, 3, 2, true);
    expect_int_op(OP_MOD, 7, -3, -2, true);
    expect_int_op(OP_MOD, 7, 0, 0, false);
    expect_int_op(OP_CEILDIV, 7, 2, 4, true);
    expect_int_op(OP_CEILDIV, -7, 2, -3, true);
    expect_int_op(OP_CEILDIV, 7, 0, 0, false);
}

static void test_eval_floats(void **state) {
    (void)state;
    expect_float_op(OP_ADD, 16777216, 1, 16777216); /* rounded to 24 bits */
    expect_float_op(OP_MUL, (float)0.1, 3, (float)((double)(float)0.1 * 3));
    expect_float_op(OP_MUL, 1e30f, 1e30f, INFINITY);
    expect_float_op(OP_DIV, 1, 0, INFINITY);
    expect_float_op(OP_FLOORDIV, -2.5, 1, -3);
    expect_float_op(OP_MOD, -2.5, 2, 1.5);
    expect_float_op(OP_MOD, 2.5, 0, 0);
    expect_float_op(OP_MAX, NAN, 1, 1);
    expect_float_op(OP_FINITE, -INFINITY, 0, 0);
    expect_float_op(OP_FINITE, -3.5, 0, -3.5);
    expect_float_op(OP_EXP2, -INFINITY, 0, 0);
    expect_float_op(OP_SUB, INFINITY, INFINITY, NAN);

    expect_float_op(OP_TANHA, 0, 0, 0);
    expect_float_op(OP_TANHA, 20, 0, 1);
    expect_float_op(OP_TANHA, -INFINITY, 0, -1);
    expect_float_op(OP_TANHA, NAN, 0, NAN);
    expect_float_op(OP_TANHA, 0.5, 0, 1893.0 / 4096);    /* tanh is 1892.83 / 4096 */
    expect_float_op(OP_TANHA, -0.25, 0, -1003.0 / 4096); /* 1003.19 */
    expect_float_op(OP_TANHA, 0x1p-20 * (1 + 0x1p-12), 0, 0x1p-20);

    Scalar r, big = {T_FLOAT, {.f = 1e20}}, nan = {T_FLOAT, {.f = NAN}}, i = {T_INT, {.i = 16777217}};
    ag_eval(OP_FLOOR, &big, &r);
    assert_true(r.type == T_INT && r.u.i == INT32_MAX);
    ag_eval(OP_FLOOR, &nan, &r);
    assert_true(r.type == T_INT && r.u.i == 0);
    ag_eval(OP_TOFLOAT, &i, &r);
    assert_true(r.type == T_FLOAT && r.u.f == 16777216);
}

static void test_op_types(void **state) {
    (void)state;
    const Type ii[3] = {T_INT, T_INT, T_NONE}, fi[3] = {T_FLOAT, T_INT, T_NONE}, bff[3] = {T_BOOL, T_FLOAT, T_FLOAT},
               bb[3] = {T_BOOL, T_BOOL, T_NONE};
    assert_int_equal(ag_op_type(OP_ADD, ii), T_INT);
    assert_int_equal(ag_op_type(OP_ADD, fi), T_NONE);
    assert_int_equal(ag_op_type(OP_ADD, bb), T_NONE);
    assert_int_equal(ag_op_type(OP_DIV, ii), T_NONE);
    assert_int_equal(ag_op_type(OP_LT, ii), T_BOOL);
    assert_int_equal(ag_op_type(OP_AND, bb), T_BOOL);
    assert_int_equal(ag_op_type(OP_SELECT, bff), T_FLOAT);
    assert_int_equal(ag_op_type(OP_SELECT, fi), T_NONE);
    assert_int_equal(ag_op_type(OP_FLOOR, fi), T_INT);
    assert_int_equal(ag_op_type(OP_TOFLOAT, ii), T_FLOAT);
    assert_int_equal(ag_op_type(OP_RSUM, fi), T_NONE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_wrap_around),
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_conditions),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_print_foreign_constants),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_eval_integers),
        cmocka_unit_test(test_eval_floats),
        cmocka_unit_test(test_op_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
