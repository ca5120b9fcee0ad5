/* law.c: signs, and where values vanish. */
#include "law.h"

#include <math.h>

/* ---- signs */

/* Positive if all operands are. */
static const Op keeps_positive[] = {OP_MUL, OP_DIV, OP_ADD, OP_MIN, OP_MAX, OP_SQRT, OP_RSQRT};
enum { SIGN_DEPTH = 16 }; /* how deep an expression is looked into */

static bool positive(const Spec *spec, const Nodes *p, Ref r, int depth) {
    const Node *n = &p->n[r];
    if (n->type != T_FLOAT || depth > SIGN_DEPTH) return false;
    if (n->op == OP_CONST) return n->value.u.f > 0 && isfinite(n->value.u.f);
    if (n->op == OP_PARAM) return spec->param[n->index].positive;
    for (int i = 0; i < LEN(keeps_positive); i++) {
        if (keeps_positive[i] != n->op) continue;
        bool all = true;
        for (int k = 0; k < ag_op[n->op].arity && all; k++) all = positive(spec, p, n->arg[k], depth + 1);
        return all;
    }
    return false;
}

bool ag_positive(const Spec *spec, const Nodes *p, Ref r) { return positive(spec, p, r, 0); }

/* ---- where a value is -inf or 0
 * All laws assume, as the spec language promises, that the other operand is no NaN and no infinity. */

typedef enum Value { NEG_INF, ZERO } Value;
/* `op` has `value` wherever its operand `side` has `of`; `positive`: provided the other operand is. */
static const struct {
    Op op;
    Value value;
    int side;
    Value of;
    bool positive;
} law[] = {
    {OP_ADD, NEG_INF, 0, NEG_INF, false},                                        /* -inf + y = -inf */
    {OP_ADD, NEG_INF, 1, NEG_INF, false},  {OP_SUB, NEG_INF, 0, NEG_INF, false}, /* -inf - y = -inf */
    {OP_MUL, NEG_INF, 0, NEG_INF, true},                                         /* -inf * c = -inf for c > 0 */
    {OP_MUL, NEG_INF, 1, NEG_INF, true},   {OP_DIV, NEG_INF, 0, NEG_INF, true},    {OP_MIN, NEG_INF, 0, NEG_INF, false},
    {OP_MIN, NEG_INF, 1, NEG_INF, false},  {OP_EXP, ZERO, 0, NEG_INF, false},      {OP_EXP2, ZERO, 0, NEG_INF, false},
    {OP_SIGMOID, ZERO, 0, NEG_INF, false}, {OP_SIGMOID2, ZERO, 0, NEG_INF, false}, {OP_SOFTPLUS, ZERO, 0, NEG_INF, false},
    {OP_RELU, ZERO, 0, NEG_INF, false},    {OP_MUL, ZERO, 0, ZERO, false},         {OP_MUL, ZERO, 1, ZERO, false},
    {OP_DIV, ZERO, 0, ZERO, false},        {OP_NEG, ZERO, 0, ZERO, false},         {OP_ABS, ZERO, 0, ZERO, false},
    {OP_RELU, ZERO, 0, ZERO, false},       {OP_SQRT, ZERO, 0, ZERO, false},        {OP_TANH, ZERO, 0, ZERO, false},
};

typedef struct Search {
    const Spec *spec;
    Nodes *p;
    int budget; /* nodes still to be looked at: shared subexpressions are visited once per use */
} Search;

static bool is_value(const Nodes *p, Ref r, Value v) { return v == NEG_INF ? ag_node_is_neg_inf(p, r) : ag_node_is_float(p, r, 0); }

static Ref logic(Nodes *p, Op op, Ref a, Ref b) { return ag_fold_node(p, (Node){.op = op, .arg = {a, b}, .span = p->n[a].span}); }
/* Either condition being false gives the value. */
static Ref both(Nodes *p, Ref a, Ref b) { return a && b ? logic(p, OP_AND, a, b) : a ? a : b; }

static Ref unless(Search *s, Ref r, Value v);

/* select(m, x, VALUE) has it unless m and x's own condition hold; select(m, VALUE, x) unless not m and x's. */
static Ref select_unless(Search *s, const Node *n, Value v) {
    Ref m = n->arg[0], a = n->arg[1], b = n->arg[2];
    if (is_value(s->p, b, v)) return both(s->p, m, unless(s, a, v));
    if (is_value(s->p, a, v)) return both(s->p, logic(s->p, OP_NOT, m, 0), unless(s, b, v));
    return 0;
}

static Ref unless(Search *s, Ref r, Value v) {
    if (--s->budget < 0) return 0;
    const Node n = s->p->n[r];
    if (n.op == OP_SELECT) return select_unless(s, &n, v);
    Ref found = 0;
    for (int i = 0; i < LEN(law); i++) {
        if (law[i].op != n.op || law[i].value != v) continue;
        if (law[i].positive && !ag_positive(s->spec, s->p, n.arg[1 - law[i].side])) continue;
        found = both(s->p, found, unless(s, n.arg[law[i].side], law[i].of));
    }
    return found;
}

enum { BUDGET = 256 };
Ref ag_neg_inf_unless(const Spec *spec, Nodes *p, Ref r) { return unless(&(Search){spec, p, BUDGET}, r, NEG_INF); }
Ref ag_zero_unless(const Spec *spec, Nodes *p, Ref r) { return unless(&(Search){spec, p, BUDGET}, r, ZERO); }

/* ---- comparisons */

Op ag_opposite(Op compare) {
    static const Op pair[][2] = {{OP_LT, OP_GE}, {OP_LE, OP_GT}, {OP_EQ, OP_NE}};
    for (int i = 0; i < LEN(pair); i++)
        for (int k = 0; k < 2; k++)
            if (pair[i][k] == compare) return pair[i][1 - k];
    return OP_COUNT;
}
