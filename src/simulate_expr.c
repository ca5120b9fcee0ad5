/* simulate_expr.c: expressions of the Tile IR, compiled once into steps and evaluated a row of a tile at a time, as ag_eval does. */
#include "simulate.h"

#include <math.h>

static int vary_of(const Sim *s, const Node *n) {
    if (n->op == OP_AXIS) return n->index == AX_Q || n->index == AX_H ? VARY_ROW : n->index == AX_K ? VARY_COL : 0;
    if (n->op != OP_VAL) return 0;
    const Val *v = &s->k->val[n->index];
    if (v->space == SPACE_FRAG) return VARY_ROW | VARY_COL;
    return v->space == SPACE_ROW ? VARY_ROW | (v->partial ? VARY_COL : 0) : 0;
}

static void mark(const Nodes *p, Ref r, uint8_t *wanted) {
    wanted[r] = 1;
    for (Ref x = r; x > 0; x--) {
        for (int i = 0; wanted[x] && i < ag_op[p->n[x].op].arity; i++) wanted[p->n[x].arg[i]] = 1;
        for (int i = 0; wanted[x] && i < p->n[x].nsub; i++) wanted[p->n[x].sub[i]] = 1;
    }
}

static void add_step(Sim *s, Expr *e, const Node *n, const int *place) {
    const Nodes *p = &s->k->nodes;
    Step *t = &e->step[e->n++];
    *t = (Step){.op = n->op, .type = n->type, .of = n->type, .index = n->index, .value = n->value, .vary = vary_of(s, n)};
    for (int i = 0; i < ag_op[n->op].arity; i++) {
        t->arg[i] = place[n->arg[i]];
        t->vary |= e->step[t->arg[i]].vary;
    }
    t->nsub = n->nsub;
    for (int i = 0; i < n->nsub; i++) {
        t->arg[i] = place[n->sub[i]];
        t->vary |= e->step[t->arg[i]].vary;
        t->extent[i] = ag_sim_int(s, s->k->tensor[n->index].extent[i]);
    }
    if (ag_op[n->op].arity > 0) t->of = e->step[t->arg[ag_op[n->op].rule == RULE_SEL]].type;
    t->lane = NEWN(s->arena, Lane, (size_t)(t->vary & VARY_COL ? s->columns : 1));
    if (n->op == OP_VAL) e->val[e->nval++] = n->index;
    e->hides |= n->op == OP_SELECT && (ag_node_is_neg_inf(p, n->arg[1]) || ag_node_is_neg_inf(p, n->arg[2]));
}

Expr *ag_sim_expr(Sim *s, Ref r) {
    if (s->expr[r]) return s->expr[r];
    const Nodes *p = &s->k->nodes;
    uint8_t *wanted = NEWN(s->arena, uint8_t, (size_t)r + 1);
    int *place = NEWN(s->arena, int, (size_t)r + 1), count = 0;
    mark(p, r, wanted);
    for (Ref x = 1; x <= r; x++) count += wanted[x];
    Expr *e = s->expr[r] = NEW(s->arena, Expr);
    e->step = NEWN(s->arena, Step, (size_t)count);
    e->val = NEWN(s->arena, int, (size_t)count);
    for (Ref x = 1; x <= r; x++)
        if (wanted[x]) place[x] = e->n, add_step(s, e, &p->n[x], place);
    const Node *root = &p->n[r];
    e->hider = root->op == OP_SELECT && s->k->guard && root->arg[0] == s->k->guard ? place[root->arg[0]] : -1;
    return e;
}

/* ---- leaves that are the same everywhere */

static Scalar of_size(const Sim *s, int size) { return (Scalar){T_INT, {.i = (int32_t)s->call->size[size]}}; }

static Scalar of_param(const Sim *s, const Step *t) {
    double x = s->call->scalar[t->index];
    switch (t->type) {
    case T_FLOAT: return (Scalar){T_FLOAT, {.f = (float)x}};
    case T_INT: return (Scalar){T_INT, {.i = (int32_t)x}};
    default: return (Scalar){T_BOOL, {.b = x != 0}};
    }
}

static Scalar uniform_leaf(Sim *s, const Step *t) {
    switch (t->op) {
    case OP_CONST: return t->value;
    case OP_SIZE: return of_size(s, t->index);
    case OP_PARAM: return of_param(s, t);
    case OP_BLOCK: return (Scalar){T_INT, {.i = s->block}};
    case OP_BLOCKS: return (Scalar){T_INT, {.i = s->blocks}};
    case OP_VAL: {
        Scalar x = s->cell[t->index].scalar[s->role];
        if (x.type == T_NONE) ag_sim_fail(s, "%s is read before it is set", ag_sim_name(s, t->index));
        return x;
    }
    default: ag_sim_fail(s, "an expression has `%s`, which has no value here", ag_op[t->op].name);
    }
}

/* Element `at` of a captured tensor; 0 past the ends of a dim. */
static Scalar element(const Sim *s, const Step *t, const int64_t at[STEP_ARGS]) {
    const HostTensor *x = ag_sim_tensor(s, t->index);
    bool in = x->data != NULL;
    for (int i = 0; i < t->nsub; i++) in = in && at[i] >= 0 && at[i] < t->extent[i];
    switch (t->type) {
    case T_FLOAT: return (Scalar){T_FLOAT, {.f = in ? (float)ag_host_get_at(x, at, t->nsub) : 0}};
    case T_BOOL: return (Scalar){T_BOOL, {.b = in && ag_host_get_int(x, at, t->nsub)}};
    default: return (Scalar){T_INT, {.i = in ? (int32_t)(uint32_t)(uint64_t)ag_host_get_int(x, at, t->nsub) : 0}};
    }
}

static Scalar uniform_element(const Sim *s, const Expr *e, const Step *t) {
    int64_t at[STEP_ARGS] = {0};
    for (int i = 0; i < t->nsub; i++) at[i] = e->step[t->arg[i]].value.u.i;
    return element(s, t, at);
}

static void eval_uniform(Sim *s, Expr *e, Step *t) {
    Scalar arg[3] = {{0}};
    for (int i = 0; i < ag_op[t->op].arity; i++) arg[i] = e->step[t->arg[i]].value;
    if (t->op == OP_LISTED)
        t->value = (Scalar){T_INT, {.i = ag_sim_listed(s, arg[0].u.i)}};
    else if (t->op == OP_FIRST)
        t->value = (Scalar){T_INT, {.i = ag_sim_first(s, arg[0].u.i)}};
    else if (t->op == OP_TILE)
        t->value = (Scalar){T_INT, {.i = ag_sim_tile_walk(s, t->index, arg[0].u.i, arg[1].u.i)}};
    else if (t->op == OP_TILE_AFTER)
        t->value = (Scalar){T_INT, {.i = ag_sim_tile_after(s, arg[0].u.i, arg[1].u.i, arg[2].u.i)}};
    else if (t->op == OP_QUERY)
        t->value = (Scalar){T_INT, {.i = ag_sim_query(s, arg[0].u.i)}};
    else if (t->op == OP_LOAD)
        t->value = uniform_element(s, e, t);
    else if (ag_op[t->op].arity > 0)
        ag_eval(t->op, arg, &t->value);
    else
        t->value = uniform_leaf(s, t);
    if (t->type == T_FLOAT)
        t->lane[0].f = (float)t->value.u.f;
    else
        t->lane[0].i = t->type == T_BOOL ? t->value.u.b : (int32_t)t->value.u.i;
}

Scalar ag_sim_scalar(Sim *s, Ref r) {
    Expr *e = ag_sim_expr(s, r);
    for (int i = 0; i < e->n; i++) {
        if (e->step[i].vary) ag_sim_fail(s, "a scalar is computed from values that differ between threads");
        eval_uniform(s, e, &e->step[i]);
    }
    return e->step[e->n - 1].value;
}

int64_t ag_sim_int(Sim *s, Ref r) {
    Scalar x = ag_sim_scalar(s, r);
    return x.type == T_BOOL ? x.u.b : x.u.i;
}

/* ---- lanes: the common operations in loops of their own, the others through ag_eval */

typedef struct Operand {
    const Lane *p;
    int stride;
} Operand;

static Scalar lane_scalar(Type t, Lane x) {
    if (t == T_FLOAT) return (Scalar){T_FLOAT, {.f = x.f}};
    return t == T_INT ? (Scalar){T_INT, {.i = x.i}} : (Scalar){T_BOOL, {.b = x.i != 0}};
}

static void eval_general(const Step *t, const Operand *a, const Type *type, int n) {
    int arity = ag_op[t->op].arity;
    for (int j = 0; j < n; j++) {
        Scalar arg[3] = {{0}}, r;
        for (int i = 0; i < arity; i++) arg[i] = lane_scalar(type[i], a[i].p[j * a[i].stride]);
        ag_eval(t->op, arg, &r);
        if (t->type == T_FLOAT)
            t->lane[j].f = (float)r.u.f;
        else
            t->lane[j].i = t->type == T_BOOL ? r.u.b : (int32_t)r.u.i;
    }
}

#define X(i, field) (a[i].p[j * a[i].stride].field)
#define EACH(to, expression)                                                                                                                         \
    for (int j = 0; j < n; j++) r[j].to = expression;                                                                                                \
    return true

static int32_t wrap_add(int32_t x, int32_t y) { return (int32_t)((uint32_t)x + (uint32_t)y); }
static int32_t wrap_sub(int32_t x, int32_t y) { return (int32_t)((uint32_t)x - (uint32_t)y); }

static bool eval_float(const Step *t, const Operand *a, int n) {
    Lane *r = t->lane;
    switch (t->op) {
    case OP_ADD: EACH(f, X(0, f) + X(1, f));
    case OP_SUB: EACH(f, X(0, f) - X(1, f));
    case OP_MUL: EACH(f, X(0, f) * X(1, f));
    case OP_DIV: EACH(f, X(0, f) / X(1, f));
    case OP_NEG: EACH(f, -X(0, f));
    case OP_EXP2: EACH(f, exp2f(X(0, f)));
    case OP_EXP: EACH(f, expf(X(0, f)));
    case OP_SIGMOID2: EACH(f, 1 / (1 + exp2f(-X(0, f))));
    case OP_TANH: EACH(f, tanhf(X(0, f)));
    case OP_FINITE: EACH(f, X(0, f) == -INFINITY ? 0 : X(0, f));
    case OP_SEEN: EACH(f, X(0, f) == -INFINITY ? NAN : X(0, f));
    case OP_LT: EACH(i, X(0, f) < X(1, f));
    case OP_GT: EACH(i, X(0, f) > X(1, f));
    default: return false;
    }
}

static bool eval_int(const Step *t, const Operand *a, int n) {
    Lane *r = t->lane;
    switch (t->op) {
    case OP_ADD: EACH(i, wrap_add(X(0, i), X(1, i)));
    case OP_SUB: EACH(i, wrap_sub(X(0, i), X(1, i)));
    case OP_LT: EACH(i, X(0, i) < X(1, i));
    case OP_LE: EACH(i, X(0, i) <= X(1, i));
    case OP_GT: EACH(i, X(0, i) > X(1, i));
    case OP_GE: EACH(i, X(0, i) >= X(1, i));
    case OP_AND: EACH(i, X(0, i) & X(1, i));
    case OP_OR: EACH(i, X(0, i) | X(1, i));
    case OP_NOT: EACH(i, !X(0, i));
    case OP_TOFLOAT: EACH(f, (float)X(0, i));
    default: return false;
    }
}

static void eval_op(const Expr *e, const Step *t, int n) {
    Operand a[3] = {{0}};
    Type type[3] = {T_NONE};
    for (int i = 0; i < ag_op[t->op].arity; i++) {
        const Step *x = &e->step[t->arg[i]];
        a[i] = (Operand){x->lane, (x->vary & VARY_COL) != 0};
        type[i] = x->type;
    }
    Lane *r = t->lane;
    if (t->op == OP_SELECT) {
        for (int j = 0; j < n; j++) r[j] = X(0, i) ? a[1].p[j * a[1].stride] : a[2].p[j * a[2].stride];
    } else if (!(t->of == T_FLOAT ? eval_float(t, a, n) : eval_int(t, a, n))) {
        eval_general(t, a, type, n);
    }
}

static void eval_elements(const Sim *s, const Expr *e, const Step *t, int n) {
    for (int j = 0; j < n; j++) {
        int64_t at[STEP_ARGS] = {0};
        for (int i = 0; i < t->nsub; i++) {
            const Step *x = &e->step[t->arg[i]];
            at[i] = x->lane[x->vary & VARY_COL ? j : 0].i;
        }
        Scalar x = element(s, t, at);
        if (t->type == T_FLOAT)
            t->lane[j].f = (float)x.u.f;
        else
            t->lane[j].i = t->type == T_BOOL ? x.u.b : (int32_t)x.u.i;
    }
}

static void eval_lanes(Sim *s, const Expr *e, const Step *t, int64_t at, int row, int columns) {
    int n = t->vary & VARY_COL ? columns : 1;
    if (t->op == OP_AXIS) {
        for (int j = 0; j < n; j++) t->lane[j].i = (int32_t)(at + j);
    } else if (t->op == OP_LOAD) {
        eval_elements(s, e, t, n);
    } else if (t->op == OP_LISTED_BY) {
        t->lane[0].i = ag_sim_listed_by(s, e->step[t->arg[0]].lane[0].i, e->step[t->arg[1]].lane[0].i);
    } else if (t->op == OP_VAL) {
        const Cell *c = &s->cell[t->index];
        for (int j = 0; j < n; j++) t->lane[j].f = c->x[row * n + j];
    } else {
        eval_op(e, t, n);
    }
}

void ag_sim_expr_begin(Sim *s, Expr *e, int64_t k0, int columns) {
    for (int i = 0; i < e->n; i++) {
        Step *t = &e->step[i];
        if (t->vary == 0) eval_uniform(s, e, t);
        if (t->vary == VARY_COL) eval_lanes(s, e, t, k0, 0, columns);
    }
}

const Step *ag_sim_expr_row(Sim *s, Expr *e, int64_t q0, int64_t h0, int row, int columns) {
    int64_t q = q0 + row / s->k->pack, h = h0 + row % s->k->pack;
    bool entries = s->k->entries != NULL, asked = false;
    for (int i = 0; i < e->n && entries; i++) asked |= e->step[i].op == OP_AXIS && e->step[i].index == AX_Q;
    if (asked) q = ag_sim_query(s, q) + s->call->size[SZ_OFF];
    for (int i = 0; i < e->n; i++) {
        bool head = e->step[i].op == OP_AXIS && e->step[i].index == AX_H;
        if (e->step[i].vary & VARY_ROW) eval_lanes(s, e, &e->step[i], head ? h : q, row, columns);
    }
    return &e->step[e->n - 1];
}
