/* The Math IR: lowering and passes keep the value (against the reference, and one step of keys at a time), key ranges are safe and tight, the checker and
 * the refusals say what is wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "compile.h"
#include "with_diag.h"

/* ---- from a spec to a Math IR */

static void (*const passes[])(Fn *fn) = {ag_pass_simplify, ag_pass_hoist, ag_pass_ranges, ag_pass_online};
static const unsigned made[] = {FACT_SIMPLE, FACT_AXES, FACT_RANGE, FACT_STREAM};
enum { LOWERED = 0, SIMPLIFIED, HOISTED, RANGED, STREAMED, ALL_FACTS = FACT_LOWERED | FACT_SIMPLE | FACT_AXES | FACT_RANGE | FACT_STREAM };

typedef struct Job {
    const attngen_dim *dim;
    size_t ndim;
    int npass;
    void (*use)(Math *m, void *payload);
    void *payload;
} Job;

static Math *math_of(Diag *d, const Spec *spec, int npass) {
    Fn fn = {.d = d, .spec = spec, .facts = FACT_LOWERED};
    fn.math = ag_lower(d, spec);
    ag_math_check(fn.math, fn.facts);
    for (int i = 0; i < npass; i++) {
        passes[i](&fn);
        ag_stop_if_errors(d);
        fn.facts |= made[i];
        ag_math_check(fn.math, fn.facts);
        ag_stop_if_errors(d);
    }
    return fn.math;
}

static void run_job(Diag *d, uint16_t file, void *payload) {
    Job *j = payload;
    Spec *spec = ag_spec_read(d, file, j->dim, j->ndim);
    if (spec) j->use(math_of(d, spec, j->npass), j->payload);
}

static void with_math(const char *text, int npass, void (*use)(Math *m, void *payload), void *payload) {
    static const attngen_dim dim[] = {{"D", 4}, {"Dv", 3}};
    Job j = {dim, LEN(dim), npass, use, payload};
    char *report = report_of(ag_str(text), run_job, &j, NULL);
    assert_string_equal(report, "");
    free(report);
}

/* ---- a small interpreter, in double */

typedef struct Env {
    const Math *m;
    const HostCall *call;
    int64_t axis[AX_COUNT], qmin, qmax;
    const double *now, *old; /* carries; those over d: at axis[AX_D] */
} Env;

static double eval(Env *e, Ref r);

static double reduce(Env *e, const Node *n) {
    int64_t keep = e->axis[n->index], len = n->index == AX_D ? e->m->spec->D : e->call->size[SZ_SK];
    double x = n->op == OP_RMAX ? -INFINITY : 0;
    for (e->axis[n->index] = 0; e->axis[n->index] < len; e->axis[n->index]++) {
        double y = eval(e, n->arg[0]);
        x = n->op == OP_RMAX ? fmax(x, y) : x + y;
    }
    e->axis[n->index] = keep;
    return x;
}

static double load(Env *e, const Node *n) {
    const HostTensor *t = n->index == TEN_Q ? &e->call->q : n->index == TEN_K ? &e->call->k : &e->call->v;
    int64_t at[4];
    for (int i = 0; i < 4; i++) at[i] = (int64_t)eval(e, n->sub[i]);
    return ag_host_get(t, at[0], at[1], at[2], at[3]);
}

static double elementwise(Env *e, const Node *n, const double *a) {
    switch (n->op) {
    case OP_DIV: return a[0] / a[1];
    case OP_EXP: return exp(a[0]);
    case OP_EXP2: return exp2(a[0]);
    case OP_LOG: return log(a[0]);
    case OP_LOG2: return log2(a[0]);
    case OP_TANH: return tanh(a[0]);
    case OP_FINITE: return a[0] == -INFINITY ? 0 : a[0];
    case OP_TOFLOAT: return a[0];
    default: break;
    }
    if (n->type == T_FLOAT && n->op == OP_ADD) return a[0] + a[1];
    if (n->type == T_FLOAT && n->op == OP_SUB) return a[0] - a[1];
    if (n->type == T_FLOAT && n->op == OP_MUL) return a[0] * a[1];
    Scalar arg[3], v;
    for (int i = 0; i < ag_op[n->op].arity; i++) {
        Type t = e->m->nodes.n[n->arg[i]].type;
        arg[i] = (Scalar){t, {0}};
        if (t == T_BOOL) arg[i].u.b = a[i] != 0;
        if (t == T_INT) arg[i].u.i = (int64_t)a[i];
        if (t == T_FLOAT) arg[i].u.f = a[i];
    }
    ag_eval(n->op, arg, &v);
    return v.type == T_BOOL ? v.u.b : v.type == T_INT ? (double)v.u.i : v.u.f;
}

static double eval(Env *e, Ref r) {
    const Node *n = &e->m->nodes.n[r];
    double a[3] = {0};
    switch (n->op) {
    case OP_CONST: return n->type == T_BOOL ? n->value.u.b : n->type == T_INT ? (double)n->value.u.i : n->value.u.f;
    case OP_AXIS:
        if (n->index == AX_G) return (double)(e->axis[AX_H] / (e->call->size[SZ_HQ] / e->call->size[SZ_HKV]));
        return (double)e->axis[n->index];
    case OP_AXISMIN: return (double)e->qmin;
    case OP_AXISMAX: return (double)e->qmax;
    case OP_SIZE: return (double)e->call->size[n->index];
    case OP_PARAM: return e->call->scalar[n->index];
    case OP_LOAD: return load(e, n);
    case OP_CARRY: return n->old ? e->old[n->index] : e->now[n->index];
    case OP_RSUM:
    case OP_RMAX: return reduce(e, n);
    default: break;
    }
    if (n->op == OP_SELECT) return eval(e, n->arg[eval(e, n->arg[0]) != 0 ? 1 : 2]);
    for (int i = 0; i < ag_op[n->op].arity; i++) a[i] = eval(e, n->arg[i]);
    return elementwise(e, n, a);
}

/* One row's stream in steps of `step` keys, at axis[AX_D], then the outputs. */
static void stream(Env *e, int step, double *o, double *lse) {
    const Stream *s = &e->m->stream[0];
    double now[8], old[8];
    e->now = now, e->old = old;
    for (int i = 0; i < s->ncarry; i++) now[i] = s->carry[i].init;
    for (int64_t k0 = 0; k0 < e->call->size[SZ_SK]; k0 += step) {
        memcpy(old, now, sizeof now);
        for (int i = 0; i < s->ncarry; i++) {
            const Carry *c = &s->carry[i];
            double x = old[i] * (c->factor ? eval(e, c->factor) : 1);
            for (int64_t k = k0; k < k0 + step && k < e->call->size[SZ_SK]; k++) {
                e->axis[AX_K] = k;
                double y = eval(e, c->body);
                x = c->combine == OP_RMAX ? fmax(x, y) : x + y;
            }
            now[i] = x;
        }
    }
    *o = eval(e, e->m->out[0].value);
    *lse = eval(e, e->m->out[1].value);
}

/* ---- the value is kept */

enum { SQ = 5, SK = 9, HQ = 2, HKV = 1, HD = 4, HDV = 3 };

typedef struct Case {
    HostCall call;
    double amplitude;
    float q[HQ * SQ * HD], k[SK * HD], v[SK * HDV];
} Case;

static uint32_t rng = 1;
static uint32_t roll(uint32_t n) {
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}
static double uniform(void) { return (double)roll(1 << 20) / (1 << 19) - 1; }

static void fill(Case *c, int64_t off) {
    for (int i = 0; i < LEN(c->q); i++) c->q[i] = (float)(uniform() * c->amplitude);
    for (int i = 0; i < LEN(c->k); i++) c->k[i] = (float)uniform();
    for (int i = 0; i < LEN(c->v); i++) c->v[i] = (float)uniform();
    const int64_t size[SZ_COUNT] = {1, HQ, HKV, SQ, SK, off, HD, HDV};
    memcpy(c->call.size, size, sizeof size);
    c->call.q = (HostTensor){c->q, {HQ * SQ * HD, SQ * HD, HD, 1}, DT_F32};
    c->call.k = (HostTensor){c->k, {SK * HD, SK * HD, HD, 1}, DT_F32};
    c->call.v = (HostTensor){c->v, {SK * HDV, SK * HDV, HDV, 1}, DT_F32};
}

static void assert_near(double x, double want, double scale, const char *what, int step) {
    bool ok = x == want || (isnan(x) && isnan(want)) || fabs(x - want) <= 1e-5 * fmax(1, fmax(scale, fabs(want)));
    if (!ok) fail_msg("%s with step %d: %.9g, want %.9g", what, step, x, want);
}

typedef struct Values {
    Case *c;
    double o[HQ * SQ * HDV], lse[HQ * SQ];
} Values;

static void compare_values(Math *m, void *payload) {
    Values *w = payload;
    static const int steps[] = {0, 1, 2, 4, SK};
    for (int row = 0; row < HQ * SQ; row++)
        for (int i = 0; i < LEN(steps); i++) {
            int d = row % HDV;
            double o, lse, at = 1e-2 * w->c->amplitude;
            Env e = {.m = m, .call = &w->c->call};
            e.axis[AX_H] = row / SQ, e.axis[AX_Q] = row % SQ + w->c->call.size[SZ_OFF], e.axis[AX_D] = d;
            if ((m->nstream > 0) != (steps[i] > 0)) continue;
            if (m->nstream)
                stream(&e, steps[i], &o, &lse);
            else
                o = eval(&e, m->out[0].value), lse = eval(&e, m->out[1].value);
            assert_near(o, w->o[row * HDV + d], at, "o", steps[i]);
            assert_near(lse, w->lse[row], at, "lse", steps[i]);
        }
}

static void reference_values(Math *m, void *payload) {
    Values *w = payload;
    for (int i = 0; i < m->spec->nparam; i++) {
        const Param *p = &m->spec->param[i];
        if (i || p->bound) w->c->call.scalar[i] = p->type == T_FLOAT ? p->value.u.f : p->type == T_INT ? (double)p->value.u.i : p->value.u.b;
    }
    assert_true(ag_reference(m->spec, &w->c->call, w->o, w->lse));
}

static const char *const value_specs[] = {
    "attention: a\n",
    "attention: a\nmask: k <= q\n",
    "attention: a\nmask: k < 0\n",
    "attention: a\nmask: 1 > 2\n",
    "attention: a\nmask: k >= 4 and k < 6\n",
    "attention: a\nmask: k <= q and q - k < 3\n",
    "attention: a\nmask: k % 3 == q % 3 or k == 0\n",
    "attention: a\nparams: {cap: {float: 2.0}}\nscore: cap * tanh(s / cap)\nmask: k <= q\n",
    "attention: a\nparams: {cap: {float: -2.0}}\nscore: cap * tanh(s / cap)\nmask: k <= q\n",
    "attention: a\nparams: {cap: {float: -0.5}}\nscore: s * cap\nmask: k <= q\n",
    "attention: a\nparams: {cap: {float: 0.0}}\nscore: s * cap\nmask: k <= q\n",
    "attention: a\nparams: {m: {float: 0.25}}\nscore: s + m * (k - q)\nmask: k <= q\n",
    "attention: a\nparams: {m: {float: 0.25}}\nscore: s * m * 2.0 - h * k * m\n",
    "attention: a\nscore: tanh(s)\n",
    "attention: a\nscore: s * -0.5 + 1.0\nmask: k <= q\n",
    "attention: a\nscore: relu(s) * 2.0 - abs(3.0 * s)\nmask: k <= q\n",
    "attention: a\nscore: 3.0\nmask: k <= q\n",
    "attention: a\nscore: 0.0\n",
    "attention: a\nscore: -s\nmask: k <= q\n",
    "attention: a\nscore: s * (0.5 if k < 3 else 2.0)\nmask: k <= q\n",
    "attention: a\nscore: log(exp(s) + 1.0) * exp(-abs(s))\n",
    "attention: a\nscore: log(2.0) + s\nmask: k != 2\n",
    "attention: a\nlet: {t: s * 2.0, u: t + t * k}\nscore: u + t\nmask: q >= 1\n",
    "attention: a\nscore: max(s, 0.1 * s) / (1.0 + abs(q - k))\nmask: not (k > q)\n",
};

static void test_values(void **state) {
    (void)state;
    static const struct {
        double scale, amplitude;
        int64_t off;
    } at[] = {{0.5, 1, SK - SQ}, {0.5, 1, -3}, {1e-20, 1, 4}, {1e20, 1e-20, 4}, {0.5, 120, 4}, {1, 1e4, 0}};
    for (int i = 0; i < LEN(value_specs); i++)
        for (int k = 0; k < LEN(at); k++) {
            static Case c;
            Values w = {.c = &c};
            c.amplitude = at[k].amplitude;
            fill(&c, at[k].off);
            c.call.scalar[0] = at[k].scale;
            with_math(value_specs[i], LOWERED, reference_values, &w);
            c.amplitude *= at[k].scale;
            for (int n = LOWERED; n <= STREAMED; n++) with_math(value_specs[i], n, compare_values, &w);
        }
}

/* ---- form: scores in base 2 with one multiplication per element */

typedef struct Work {
    int products, sums; /* operations on floats per element */
} Work;

static void check_work(Math *m, void *payload) {
    const Work *want = payload;
    Work n = {0};
    for (Ref r = 1; r < m->nodes.len; r++) {
        const Node *x = &m->nodes.n[r];
        bool element = x->type == T_FLOAT && (x->axes & (1 << AX_K | 1 << AX_Q | 1 << AX_D)) == (1 << AX_K | 1 << AX_Q);
        n.products += element && (x->op == OP_MUL || x->op == OP_DIV);
        n.sums += element && (x->op == OP_ADD || x->op == OP_SUB);
    }
    assert_int_equal(n.products, want->products);
    assert_int_equal(n.sums, want->sums);
}

static void test_work(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        Work want;
    } form[] = {
        {"attention: a\n", {1, 1}},
        {"attention: a\nmask: k <= q\n", {1, 1}},
        {"attention: a\nparams: {c: {float: 2.0}}\nscore: s * c / 3.0\nmask: k <= q\n", {1, 1}},
        {"attention: a\nparams: {c: {float: 2.0}}\nscore: s + c * k\nmask: k <= q\n", {1, 2}},
        {"attention: a\nscore: tanh(s)\nmask: k <= q\n", {2, 1}},
        {"attention: a\nparams: {c: {float: 2.0}}\nscore: c * tanh(s / c)\nmask: k <= q\n", {2, 1}},
        {"attention: a\nparams: {c: {float: 2.0}}\nscore: s + c + 0.5 * k + h\n", {1, 3}},  /* hoist: c + h once per head */
        {"attention: a\nparams: {c: {float: 2.0}}\nscore: s + tanh(k) + sin(k)\n", {2, 2}}, /* hoist: tanh(k) + sin(k) once per column */
        {"attention: a\nparams: {c: {float: 2.0}}\nscore: tanh(s) * k * c * k * h\n", {3, 1}},
    };
    for (int i = 0; i < LEN(form); i++) {
        Work want = form[i].want;
        with_math(form[i].spec, RANGED, check_work, &want);
    }
}

/* ---- key ranges, as text */

typedef struct Lines {
    const char *from, *to;
    char *text; /* what the dump has from the one up to the other */
} Lines;

static void dump_lines(Math *m, void *payload) {
    Lines *l = payload;
    Buf out = {0};
    ag_math_dump(&out, m);
    const char *a = strstr(out.s, l->from), *b = a ? strstr(a, l->to) : NULL;
    l->text = b ? strndup(a, (size_t)(b - a)) : strdup("(not there)");
    ag_buf_free(&out);
}

static void test_range_text(void **state) {
    (void)state;
    static const struct {
        const char *mask, *need, *plain;
    } form[] = {
        {"k <= q", "0 .. min(Sk, q.max + 1)", "0 .. min(Sk, q.min + 1)"},
        {"q >= k", "0 .. min(Sk, q.max + 1)", "0 .. min(Sk, q.min + 1)"},
        {"not (k > q)", "0 .. min(Sk, q.max + 1)", "0 .. min(Sk, q.min + 1)"},
        {"k < 100", "0 .. min(Sk, 100)", "0 .. min(Sk, 100)"},
        {"k >= 7 and k < 100", "max(0, 7) .. min(Sk, 100)", "max(0, 7) .. min(Sk, 100)"},
        {"k == q + 1", "max(0, q.min + 1) .. min(Sk, q.max + 2)", "max(0, q.max + 1) .. min(Sk, q.min + 2)"},
        {"k != q", "0 .. Sk", "0 .. min(Sk, q.min)"},
        {"k <= q and q - k < 8", "max(0, q.min + -7) .. min(Sk, q.max + 1)", "max(0, q.max + -7) .. min(Sk, q.min + 1)"},
        {"abs(q - k) < 8", "max(0, q.min + -7) .. min(Sk, q.max + 8)", "max(0, q.max + -7) .. min(Sk, q.min + 8)"},
        {"k <= q or k < 16", "0 .. min(Sk, max(q.max + 1, 16))", "0 .. min(Sk, max(q.min + 1, 16))"},
        {"k <= q or k > q + 9", "0 .. Sk\n          but    q.max + 1 .. q.min + 10", "max(0, select(q.max + 10 <= q.min + 1, 0, q.max + 10)) .. Sk"},
        {"k <= q if q < 50 else k < 10", "0 .. min(Sk, max(min(select(q.min < 50, Sk, 0), q.max + 1), min(select(q.max < 50, 0, Sk), 10)))",
         "0 .. min(Sk, max(min(select(q.max < 50, Sk, 0), q.min + 1), min(select(q.min < 50, 0, Sk), 10)))"},
        {"k <= q and q < 50", "0 .. min(Sk, min(q.max + 1, select(q.min < 50, Sk, 0)))", "0 .. min(Sk, min(q.min + 1, select(q.max < 50, Sk, 0)))"},
        {"k <= q or q < 50", "0 .. min(Sk, max(q.max + 1, select(q.min < 50, Sk, 0)))", "0 .. min(Sk, max(q.min + 1, select(q.max < 50, Sk, 0)))"},
        {"k < q * 2 + 3", "0 .. min(Sk, q.max * 2 + 3)", "0 .. min(Sk, q.min * 2 + 3)"},
        {"k + q < 30", "0 .. min(Sk, -q.min + 30)", "0 .. min(Sk, -q.max + 30)"},
        {"k < Sk - 1", "0 .. min(Sk, Sk + -1)", "0 .. min(Sk, Sk + -1)"},
        {"k * 2 < q", "0 .. min(Sk, ceildiv(q.max, 2))", "0 .. min(Sk, ceildiv(q.min, 2))"},
        {"k * 2 > 7 - q", "max(0, (-q.max + 7) // 2 + 1) .. Sk", "max(0, (-q.min + 7) // 2 + 1) .. Sk"},
        {"16 * k + 31 <= q", "0 .. Sk", "not known"}, /* 16 * 2^29 wraps */
        {"k * 2 == q", "max(0, ceildiv(max(q.min, 0), 2)) .. min(Sk, max(q.max, -1) // 2 + 1)",
         "max(0, ceildiv(max(q.max, 0), 2)) .. min(Sk, max(q.min, -1) // 2 + 1)"},
        {"k < q * q", "0 .. Sk", "not known"},
        {"k < h", "0 .. Sk", "not known"},
        {"k % 4 == 0", "0 .. Sk", "not known"},
        {"k < 200000000 + q * 3", "0 .. min(Sk, q.max * 3 + 200000000)", "0 .. min(Sk, q.min * 3 + 200000000)"},
        {"k < 2000000000 + q", "0 .. Sk", "not known"},
        {"1 > 2", "no key", "not known"},
        {"k <= q and 1 > 2", "no key", "not known"},
    };
    for (int i = 0; i < LEN(form); i++) {
        char spec[256], want[512];
        snprintf(spec, sizeof spec, "attention: a\nmask: %s\n", form[i].mask);
        snprintf(want, sizeof want, "          need   %s\n          plain  %s\n", form[i].need, form[i].plain);
        Lines l = {"          need", "\nout", NULL};
        with_math(spec, RANGED, dump_lines, &l);
        assert_string_equal(l.text, want);
        free(l.text);
    }
}

/* ---- key ranges, against every pair of a query and a key */

static void put_atom(Buf *b) {
    static const char *const atom[] = {
        "k <= q + %d",     "q - k < %d",         "k < %d",         "k >= %d",           "k == q + %d",    "k != %d",
        "q < %d",          "k %% 4 == %d",       "q - k < w",      "k <= q + p",        "k < p - q",      "k > q * 2 - %d",
        "k < -2 * q + %d", "k < Sk - %d",        "k - off > %d",   "abs(q - k) < p",    "max(k, q) < %d", "min(k, q + 3) > %d",
        "q - k + 1 < w",   "(q - k) * -1 >= %d", "k < w // 2 + q", "k <= q - off + %d", "w > %d",         "2 * k + %d <= q",
        "3 * k - q > %d",  "q - 2 * k >= %d",
    };
    uint32_t i = roll(LEN(atom));
    ag_put(b, "(");
    /* the only conversion is one %d, or none: the row is a literal of the table above */
    char text[64];
    const char *at = strstr(atom[i], "%d");
    if (at)
        snprintf(text, sizeof text, "%.*s%d%s", (int)(at - atom[i]), atom[i], (int)roll(24) - 6, at + 2);
    else
        snprintf(text, sizeof text, "%s", atom[i]);
    for (const char *c = text; *c; c++)
        if (c[0] != '%' || c[1] != '%') ag_put(b, "%c", *c);
    ag_put(b, ")");
}

static void put_mask(Buf *b, int depth) {
    uint32_t kind = depth ? roll(6) : 5;
    if (kind >= 4) {
        put_atom(b);
        return;
    }
    ag_put(b, kind == 2 ? "(not " : "(");
    put_mask(b, depth - 1);
    if (kind == 3) ag_put(b, " if "), put_mask(b, depth - 1), ag_put(b, " else ");
    if (kind < 2) ag_put(b, kind ? " and " : " or ");
    if (kind != 2) put_mask(b, depth - 1);
    ag_put(b, ")");
}

typedef struct Tally {
    const char *mask;
    int64_t needed, skipped, plain, checked;
} Tally;

static int64_t bound(Env *e, Ref r, int64_t unbounded) { return r ? (int64_t)eval(e, r) : unbounded; }

static void check_tile(Env *e, Tally *t) {
    const KeyRange *g = &e->m->range;
    int64_t sk = e->call->size[SZ_SK], need_lo = bound(e, g->need_lo, 0), need_hi = bound(e, g->need_hi, sk);
    int64_t plain_lo = g->never_plain ? 0 : bound(e, g->plain_lo, 0), plain_hi = g->never_plain ? 0 : bound(e, g->plain_hi, sk);
    if (g->never_needed) need_lo = need_hi = 0;
    for (int64_t k = 0; k < sk; k++) {
        bool needed = k >= need_lo && k < need_hi, plain = k >= plain_lo && k < plain_hi;
        for (int64_t q = e->qmin; q <= e->qmax; q++) {
            bool sees = ag_ast_eval(e->m->spec, e->call, e->m->spec->mask, 0, 0, q, k, 0).u.b;
            if (sees && !needed) fail_msg("mask %s: query %d sees key %d, which is not needed", t->mask, (int)q, (int)k);
            if (!sees && plain) fail_msg("mask %s: query %d does not see key %d, which is plain", t->mask, (int)q, (int)k);
        }
        t->checked++, t->skipped += !needed, t->plain += plain;
    }
}

static void check_range(Math *m, void *payload) {
    static const int64_t extreme[] = {0, 1, 5, -3, PARAM_INT_MAX, -PARAM_INT_MAX, PARAM_INT_MAX - 1, 1 << 29, -(1 << 29)};
    Tally *t = payload;
    for (int i = 0; i < 12; i++) {
        HostCall call = {.size = {1, 1, 1, 1 + roll(20), roll(24), (int64_t)roll(30) - 12, 4, 3}};
        call.scalar[1] = (double)extreme[roll(LEN(extreme))];
        call.scalar[2] = (double)((int64_t)roll(20) - 4);
        int64_t tile = 1 + roll(8);
        for (int64_t q = 0; q < call.size[SZ_SQ]; q += tile) {
            Env e = {.m = m, .call = &call, .qmin = q + call.size[SZ_OFF]};
            e.qmax = e.qmin + tile - 1;
            check_tile(&e, t);
        }
    }
}

static void test_range_property(void **state) {
    (void)state;
    Tally t = {0};
    for (int i = 0; i < 1500; i++) {
        Buf mask = {0}, spec = {0};
        put_mask(&mask, 3);
        ag_put(&spec, "attention: a\nparams: {w: {int: 4}, p: {int: 4}}\nmask: %s\n", mask.s);
        t.mask = mask.s;
        with_math(spec.s, RANGED, check_range, &t);
        ag_buf_free(&mask);
        ag_buf_free(&spec);
    }
    /* The ranges are worth having: of masks like these, they skip and clear a fair share of all keys. */
    assert_true(t.skipped * 5 > t.checked);
    assert_true(t.plain * 10 > t.checked);
}

/* Far positions and extreme windows: nothing wraps. */
static void check_far(Math *m, void *payload) {
    (void)payload;
    static const int64_t w[] = {PARAM_INT_MAX, -PARAM_INT_MAX, 1 - PARAM_INT_MAX, 1 << 29, 3, 0};
    static const int64_t at[] = {AG_POSITION_LIMIT - 8, -AG_POSITION_LIMIT + 1, 0, 1000};
    for (int i = 0; i < LEN(w); i++)
        for (int k = 0; k < LEN(at); k++) {
            HostCall call = {.size = {1, 1, 1, 4, AG_POSITION_LIMIT - 1, at[k], 4, 3}};
            call.scalar[1] = (double)w[i];
            Env e = {.m = m, .call = &call, .qmin = at[k], .qmax = at[k] + 3};
            int64_t lo = bound(&e, m->range.need_lo, 0), hi = bound(&e, m->range.need_hi, call.size[SZ_SK]);
            int64_t want = at[k] + w[i] + 4 > call.size[SZ_SK] ? call.size[SZ_SK] : at[k] + w[i] + 4;
            assert_int_equal(lo, 0);
            if (hi > call.size[SZ_SK]) hi = call.size[SZ_SK];
            assert_int_equal(hi < 0 ? 0 : hi, want < 0 ? 0 : want);
        }
}

static void test_range_far(void **state) {
    (void)state;
    with_math("attention: a\nparams: {w: {int: 4}}\nmask: k - q <= w\n", RANGED, check_far, NULL);
}

/* ---- laws */

static void check_carries(Math *m, void *payload) {
    (void)payload;
    static const char *const name[] = {"mx", "den", "acc"};
    const Stream *s = &m->stream[0];
    assert_int_equal(m->nstream, 1);
    assert_int_equal(s->ncarry, 3);
    for (int i = 0; i < 3; i++) {
        assert_true(ag_str_is(s->carry[i].name, name[i]));
        assert_int_equal(s->carry[i].reference, s->carry[i].factor ? 0 : -1);
        assert_int_equal(s->carry[i].axes >> AX_D & 1, i == 2);
        assert_false(s->carry[i].axes >> AX_K & 1);
    }
    assert_int_equal(s->carry[1].factor, s->carry[2].factor);
    if (!s->carry[1].factor) return; /* all keys weigh the same: the weight has left the sums */
    assert_true(ag_str_is(s->carry[1].law, "x - m is shifted, exp2 makes the shift a factor, the sum lets it out"));
    assert_true(ag_str_is(s->carry[2].law, "x - m is shifted, exp2 makes the shift a factor, a product keeps it, the sum lets it out"));
}

static void test_carries(void **state) {
    (void)state;
    for (int i = 0; i < LEN(value_specs); i++) with_math(value_specs[i], STREAMED, check_carries, NULL);
}

/* A sum over k of f(x - max): which f have a one-pass form. */
typedef struct Chain {
    Op f, g; /* f(x - max), then times x for OP_MUL, or tanh of it, ... */
    bool swap;
} Chain;

static void stream_chain(Diag *d, uint16_t file, void *payload) {
    const Chain *c = payload;
    Fn fn = {.d = d, .spec = ag_spec_read(d, file, NULL, 0)};
    Math *m = fn.math = ag_lower(d, fn.spec);
    ag_pass_simplify(&fn);
    ag_pass_hoist(&fn);
    Nodes *p = &m->nodes;
    Ref mx = 0;
    for (Ref r = 1; r < p->len; r++)
        if (p->n[r].op == OP_RMAX) mx = r;
    Span at = {file, 11, 1};
    Ref x = p->n[mx].arg[0], arg = ag_node_op(p, OP_SUB, c->swap ? mx : x, c->swap ? x : mx, 0, (Span){0});
    Ref y = ag_node_op(p, c->f, arg, 0, 0, at);
    if (c->g == OP_MUL) y = ag_node_op(p, OP_MUL, y, x, 0, at);
    if (c->g == OP_ADD) y = ag_node_op(p, OP_ADD, y, x, 0, at);
    if (c->g == OP_SELECT) y = ag_node_op(p, OP_SELECT, ag_node_op(p, OP_GT, x, ag_node_float(p, 0), 0, at), y, ag_node_float(p, 0), at);
    m->out[1].value = ag_node_intern(p, (Node){.op = OP_RSUM, .arg = {y}, .index = AX_K, .span = at});
    ag_pass_online(&fn);
    ag_math_check(m, ALL_FACTS & ~(unsigned)FACT_RANGE);
}

#define REFUSED(x)                                                                                                                                   \
    "t.yaml:1:12: error: no one-pass form: a sum over the keys reads another result over the keys through `" x                                       \
    "`, and no law says how that changes "                                                                                                           \
    "it\n    attention: dense\n               ^\n"

static void test_one_pass_forms(void **state) {
    (void)state;
    static const struct {
        Chain chain;
        const char *report;
    } form[] = {
        {{OP_EXP2, OP_CONST, false}, ""},
        {{OP_EXP2, OP_CONST, true}, ""},
        {{OP_EXP2, OP_MUL, false}, ""},
        {{OP_EXP2, OP_SELECT, false}, ""},
        {{OP_TANH, OP_CONST, false}, REFUSED("tanh((sum d: q * k) - (max k: sum d: q *...")},
        {{OP_EXP2, OP_ADD, false}, REFUSED("exp2((sum d: q * k) - (max k: sum d: q *...")},
        {{OP_RELU, OP_CONST, false}, REFUSED("relu((sum d: q * k) - (max k: sum d: q *...")},
    };
    for (int i = 0; i < LEN(form); i++) {
        attngen_status status;
        char *report = report_of(STR("attention: dense\n"), stream_chain, (void *)&form[i].chain, &status);
        assert_string_equal(report, form[i].report);
        assert_int_equal(status, form[i].report[0] ? ATTNGEN_E_UNSUPPORTED : ATTNGEN_OK);
        free(report);
    }
}

/* ---- the checker */

static Ref find(const Math *m, Op op) {
    for (Ref r = 1; r < m->nodes.len; r++)
        if (m->nodes.n[r].op == op) return r;
    fail();
    return 0;
}
static Node *node(Math *m, Op op) { return &m->nodes.n[find(m, op)]; }

static void operand_missing(Math *m) { node(m, OP_EXP2)->arg[0] = 0; }
static void operand_extra(Math *m) { node(m, OP_EXP2)->arg[1] = 1; }
static void operand_later(Math *m) { node(m, OP_EXP2)->arg[0] = m->nodes.len; }
static void types_unfit(Math *m) { node(m, OP_EXP2)->arg[0] = find(m, OP_LE); }
static void type_wrong(Math *m) { node(m, OP_LE)->type = T_INT; }
static void foreign(Math *m) { ag_node_leaf(&m->nodes, OP_VAL, T_FLOAT, 0, (Span){0}); }
static void exp_left(Math *m) { ag_node_op(&m->nodes, OP_EXP, find(m, OP_EXP2), 0, 0, (Span){0}); }
static void axes_wrong(Math *m) { node(m, OP_EXP2)->axes ^= 1 << AX_B; }
static void subscript_missing(Math *m) { node(m, OP_LOAD)->nsub = 3; }
static void subscript_float(Math *m) { node(m, OP_LOAD)->sub[1] = find(m, OP_PARAM) < find(m, OP_LOAD) ? find(m, OP_PARAM) : 0; }
static void no_input(Math *m) { node(m, OP_LOAD)->index = TEN_O; }
static void no_param(Math *m) { node(m, OP_PARAM)->index = 7; }
static void no_axis(Math *m) { node(m, OP_RSUM)->index = AX_Q; }
static void output_lost(Math *m) { m->nout = 1; }
static void output_twice(Math *m) { m->out[1] = m->out[0]; }
static void output_wide(Math *m) { m->out[1].value = m->out[0].value; }
static void output_old(Math *m) { m->out[1].value = ag_node_intern(&m->nodes, (Node){.op = OP_CARRY, .type = T_FLOAT, .old = true}); }
static void not_carried(Math *m) { m->out[1].value = m->stream[0].carry[0].reduce; }
static void carry_early(Math *m) { m->stream[0].carry[0] = m->stream[0].carry[1]; }
static void carry_init(Math *m) { m->stream[0].carry[0].init = 0; }
static void carry_axes(Math *m) { m->stream[0].carry[1].axes = 0; }
static void factor_lost(Math *m) { m->stream[0].carry[1].factor = 0; }
static void factor_per_key(Math *m) { m->stream[0].carry[1].factor = m->stream[0].carry[1].body; }
static void mask_int(Math *m) { m->range.mask = m->range.need_hi; }
static void bound_moves(Math *m) { m->range.need_lo = ag_node_leaf(&m->nodes, OP_AXIS, T_INT, AX_Q, (Span){0}); }
static void never_plain(Math *m) { m->range.never_plain = true; }

static const struct {
    void (*harm)(Math *m);
    const char *say; /* the first message, up to its end; # for the number of a node */
} harm[] = {
    {operand_missing, "internal error: math node # (exp2): operand 0 is missing\n"},
    {operand_extra, "internal error: math node # (exp2): operand 1 is one too many\n"},
    {operand_later, "internal error: math node # (exp2): operand 0 is node #, which does not come before it\n"},
    {types_unfit, "internal error: math node # (exp2): operands of types bool, none, none do not fit\n"},
    {type_wrong, "internal error: math node # (le): is of type int, its operands make a bool\n"},
    {foreign, "internal error: math node # (val): does not belong here\n"},
    {exp_left, "internal error: math node # (exp): is left after simplify\n"},
    {axes_wrong, "internal error: math node # (exp2): axes are 0x1a, its operands make 0x1b\n"},
    {subscript_missing, "internal error: math node # (load): 3 subscripts for k, which has 4 dims\n"},
    {subscript_float, "internal error: math node # (load): subscript 1 is no int before it\n"},
    {no_input, "internal error: math node # (load): there is no input 3\n"},
    {no_param, "internal error: math node # (param): index 7 of 1\n"},
    {no_axis, "internal error: math node # (sum): reduces over q\n"},
    {output_lost, "internal error: math output lse: has no value\n"},
    {output_twice, "internal error: math output o: is there twice\n"},
    {output_wide, "internal error: math output lse: varies with an axis that the tensor does not have\n"},
    {output_old, "internal error: math output lse: reads carry 0 as it was before the step\n"},
    {not_carried, "internal error: math output lse: reads the reduction # over k, which no stream carries\n"},
    {carry_early, "internal error: math carry den, body: reads carry 0, which is not ready\n"},
    {carry_init, "internal error: math carry mx: does not start at the identity of its combination\n"},
    {carry_axes, "internal error: math carry den: its axes are not those of a row and of its body without the stream's\n"},
    {factor_lost, "internal error: math carry den: reference and factor do not go together\n"},
    {factor_per_key, "internal error: math carry den: its factor is no float that is the same for all keys\n"},
    {mask_int, "internal error: math range: the mask is no bool\n"},
    {bound_moves, "internal error: math range: bound 0 is no int that is the same for a whole tile\n"},
    {never_plain, "internal error: math range: no key is plain, yet there are bounds\n"},
};

static void harm_and_check(Diag *d, uint16_t file, void *payload) {
    Math *m = math_of(d, ag_spec_read(d, file, NULL, 0), STREAMED);
    (*(void (*const *)(Math *))payload)(m);
    ag_math_check(m, ALL_FACTS);
}

/* The first line, each number of a node replaced by '#'. */
static char *first_line(const char *report) {
    Buf out = {0};
    ag_putn(&out, "", 0);
    for (const char *s = report; *s && (s == report || s[-1] != '\n'); s++) {
        bool number = strncmp(s, "node ", 5) == 0 || strncmp(s, "reduction ", 10) == 0;
        ag_putn(&out, s, 1);
        if (!number) continue;
        for (s++; *s < '0' || *s > '9'; s++) ag_putn(&out, s, 1);
        while (*s >= '0' && *s <= '9') s++;
        ag_putn(&out, "#", 1);
        s--;
    }
    return out.s;
}

static void test_checker(void **state) {
    (void)state;
    for (int i = 0; i < LEN(harm); i++) {
        attngen_status status;
        void (*work)(Math *) = harm[i].harm;
        char *report = report_of(STR("attention: a\nmask: k <= q\n"), harm_and_check, &work, &status), *line = first_line(report);
        assert_string_equal(line, harm[i].say);
        assert_int_equal(status, ATTNGEN_E_INTERNAL);
        free(line);
        free(report);
    }
}

/* ---- folding */

/* Each folds to the other: x and y are floats, i an int, c and e bools. */
static void test_folding(void **state) {
    (void)state;
    static const char *const same[][2] = {
        {"s * 1.0 + 0.0", "s"},
        {"s / 1.0 - 0.0", "s"},
        {"-(-s)", "s"},
        {"s if 1 < 2 else -s", "s"},
        {"s if not (k < q) else -s", "-s if k < q else s"},
        {"s if k < k else -s", "-s"},
        {"s if k - k == 0 else -s", "s"},
        {"s if k < q and 1 < 2 else -s", "s if k < q else -s"},
        {"s if k < q or k < q else -s", "s if k < q else -s"},
        {"min(s, s)", "s"},
        {"s + 2 ** 3", "s + 8.0"},
        {"2.0 * tanh(s)", "tanh(s) * 2.0"},
        {"s + (k + 0) * 1 // 1", "s + k"},
    };
    for (int i = 0; i < LEN(same); i++) {
        Lines l[2] = {{"\n\n", "\nout o", NULL}, {"\n\n", "\nout o", NULL}};
        for (int j = 0; j < 2; j++) {
            char spec[256];
            snprintf(spec, sizeof spec, "attention: a\nscore: %s\n", same[i][j]);
            with_math(spec, SIMPLIFIED, dump_lines, &l[j]);
            for (char *at; (at = strstr(l[j].text, "   ;"));) memmove(at, strchr(at, '\n'), strlen(strchr(at, '\n')) + 1);
        }
        assert_string_equal(l[0].text, l[1].text);
        free(l[0].text);
        free(l[1].text);
    }
}

/* Shared expressions cost no more than their number of nodes: 2^30 uses of s. */
static void ignore(Math *m, void *payload) {
    Lines l = {"\n\n", "\nout", NULL};
    (void)payload;
    dump_lines(m, &l);
    free(l.text);
}
static void test_shared(void **state) {
    (void)state;
    Buf spec = {0};
    ag_put(&spec, "attention: a\nlet:\n  x0: s\n  m0: k < q\n");
    for (int i = 0; i < 30; i++) ag_put(&spec, "  x%d: x%d + tanh(x%d)\n  m%d: m%d and (m%d or k < %d)\n", i + 1, i, i, i + 1, i, i, i);
    ag_put(&spec, "score: exp(x30)\nmask: m30\n");
    with_math(spec.s, STREAMED, ignore, NULL);
    ag_buf_free(&spec);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folding),        cmocka_unit_test(test_shared),     cmocka_unit_test(test_values),
        cmocka_unit_test(test_work),           cmocka_unit_test(test_range_text), cmocka_unit_test(test_range_far),
        cmocka_unit_test(test_range_property), cmocka_unit_test(test_carries),    cmocka_unit_test(test_one_pass_forms),
        cmocka_unit_test(test_checker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
