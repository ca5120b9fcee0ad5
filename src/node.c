/* node.c: the pool of expression nodes: interning, folding, rebuilding, printing. */
#include "node.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- interning */

void ag_nodes_init(Nodes *p, Arena *a) {
    *p = (Nodes){.arena = a, .len = 1, .cap = 64, .ntable = 128};
    p->n = NEWN(a, Node, (size_t)p->cap);
    p->table = NEWN(a, int32_t, (size_t)p->ntable);
}

static uint64_t bits(const Scalar *s) {
    uint64_t x = 0;
    if (s->type == T_BOOL) return s->u.b;
    if (s->type == T_INT) return (uint64_t)s->u.i;
    if (s->type == T_FLOAT) memcpy(&x, &s->u.f, sizeof x);
    return x;
}

static bool same(const Node *a, const Node *b) {
    bool alike = a->op == b->op && a->type == b->type && a->index == b->index && a->old == b->old && a->nsub == b->nsub;
    return alike && memcmp(a->arg, b->arg, sizeof a->arg) == 0 && memcmp(a->sub, b->sub, sizeof a->sub) == 0 && bits(&a->value) == bits(&b->value);
}

static uint32_t hash(const Node *n) {
    uint64_t value = bits(&n->value);
    const uint32_t word[] = {(uint32_t)n->op,     (uint32_t)n->type,   (uint32_t)n->arg[0], (uint32_t)n->arg[1], (uint32_t)n->arg[2],
                             (uint32_t)n->index,  (uint32_t)n->old,    (uint32_t)n->sub[0], (uint32_t)n->sub[1], (uint32_t)n->sub[2],
                             (uint32_t)n->sub[3], (uint32_t)n->sub[4], (uint32_t)n->sub[5], (uint32_t)value,     (uint32_t)(value >> 32)};
    uint32_t h = 2166136261u;
    for (int i = 0; i < LEN(word); i++) h = (h ^ word[i]) * 16777619u, h ^= h >> 15;
    return h;
}

/* The place of n in the table: where it is, or where it belongs. */
static int32_t *place(const Nodes *p, const Node *n) {
    uint32_t mask = (uint32_t)p->ntable - 1, i = hash(n) & mask;
    while (p->table[i] && !same(&p->n[p->table[i]], n)) i = (i + 1) & mask;
    return &p->table[i];
}

static void grow_table(Nodes *p) {
    p->ntable *= 2;
    p->table = NEWN(p->arena, int32_t, (size_t)p->ntable);
    for (Ref r = 1; r < p->len; r++) *place(p, &p->n[r]) = r;
}

/* Heads of K and V follow from the query head, so g varies with h. */
static uint8_t axis_bit(int axis) { return (uint8_t)(1u << (axis == AX_G ? AX_H : axis)); }

static uint8_t axes_of(const Nodes *p, const Node *n) {
    uint8_t axes = 0;
    for (int i = 0; i < 3; i++) axes |= p->n[n->arg[i]].axes;
    for (int i = 0; i < n->nsub; i++) axes |= p->n[n->sub[i]].axes;
    if (n->op == OP_AXIS) axes |= axis_bit(n->index);
    if (n->op == OP_RSUM || n->op == OP_RMAX) axes &= (uint8_t)~axis_bit(n->index);
    return axes;
}

static Type type_of(const Nodes *p, const Node *n) {
    switch (ag_op[n->op].rule) {
    case RULE_NUM: return p->n[n->arg[0]].type;
    case RULE_FLT:
    case RULE_TOFLT: return T_FLOAT;
    case RULE_CMP:
    case RULE_LOG: return T_BOOL;
    case RULE_SEL: return p->n[n->arg[1]].type;
    case RULE_TOINT: return T_INT;
    case RULE_REF: break;
    }
    return n->op == OP_CONST ? n->value.type : n->op == OP_RSUM || n->op == OP_RMAX ? p->n[n->arg[0]].type : n->type;
}

Ref ag_node_intern(Nodes *p, Node n) {
    n.type = type_of(p, &n);
    n.axes |= axes_of(p, &n);
    int32_t *at = place(p, &n);
    if (*at) return *at;
    if (p->len * 2 > p->ntable) grow_table(p), at = place(p, &n);
    *at = p->len;
    PUSH(p->arena, p->n, p->len, p->cap) = n;
    return *at;
}

Ref ag_node_op(Nodes *p, Op op, Ref a, Ref b, Ref c, Span at) { return ag_node_intern(p, (Node){.op = op, .arg = {a, b, c}, .span = at}); }

static Ref constant(Nodes *p, Scalar v) { return ag_node_intern(p, (Node){.op = OP_CONST, .value = v}); }
Ref ag_node_int(Nodes *p, int64_t v) { return constant(p, (Scalar){T_INT, {.i = (int32_t)(uint32_t)(uint64_t)v}}); }
Ref ag_node_float(Nodes *p, double v) { return constant(p, (Scalar){T_FLOAT, {.f = (float)v}}); }
Ref ag_node_bool(Nodes *p, bool v) { return constant(p, (Scalar){T_BOOL, {.b = v}}); }

Ref ag_node_leaf(Nodes *p, Op op, Type type, int index, Span at) {
    return ag_node_intern(p, (Node){.op = op, .type = type, .index = index, .span = at});
}

Ref ag_node_carry_old(Nodes *p, int index, Type type) { return ag_node_intern(p, (Node){.op = OP_CARRY, .type = type, .index = index, .old = true}); }

bool ag_node_is_const(const Nodes *p, Ref r) { return p->n[r].op == OP_CONST && r != 0; }
bool ag_node_is_int(const Nodes *p, Ref r, int64_t v) { return ag_node_is_const(p, r) && p->n[r].type == T_INT && p->n[r].value.u.i == v; }
bool ag_node_is_float(const Nodes *p, Ref r, double v) { return ag_node_is_const(p, r) && p->n[r].type == T_FLOAT && p->n[r].value.u.f == (float)v; }
bool ag_node_is_neg_inf(const Nodes *p, Ref r) { return ag_node_is_float(p, r, -INFINITY); }

/* ---- folding */

static bool is_bool(const Nodes *p, Ref r, bool v) { return ag_node_is_const(p, r) && p->n[r].type == T_BOOL && p->n[r].value.u.b == v; }

/* An operand `value` at `side` (1 << argument) makes the operation its other operand, or that constant.  Values that only suit ints or only suit floats
 * say so: a float 0 * x is not 0 for an infinite x. */
typedef enum Gives { OTHER, ITSELF } Gives;
static const struct {
    Op op;
    Type type;
    double value;
    int side;
    Gives gives;
} identity[] = {
    {OP_ADD, T_INT, 0, 3, OTHER},           {OP_ADD, T_FLOAT, 0, 3, OTHER},   {OP_SUB, T_INT, 0, 2, OTHER},   {OP_SUB, T_FLOAT, 0, 2, OTHER},
    {OP_MUL, T_INT, 1, 3, OTHER},           {OP_MUL, T_FLOAT, 1, 3, OTHER},   {OP_MUL, T_INT, 0, 3, ITSELF},  {OP_DIV, T_FLOAT, 1, 2, OTHER},
    {OP_FLOORDIV, T_INT, 1, 2, OTHER},      {OP_CEILDIV, T_INT, 1, 2, OTHER}, {OP_POW, T_FLOAT, 1, 2, OTHER}, {OP_AND, T_BOOL, 1, 3, OTHER},
    {OP_AND, T_BOOL, 0, 3, ITSELF},         {OP_OR, T_BOOL, 0, 3, OTHER},     {OP_OR, T_BOOL, 1, 3, ITSELF},  {OP_MIN, T_FLOAT, INFINITY, 3, OTHER},
    {OP_MAX, T_FLOAT, -INFINITY, 3, OTHER},
};

static bool has_value(const Nodes *p, Ref r, Type type, double v) {
    switch (type) {
    case T_BOOL: return is_bool(p, r, v != 0);
    case T_INT: return ag_node_is_int(p, r, (int64_t)v);
    default: return ag_node_is_float(p, r, v);
    }
}

static Ref by_identity(const Nodes *p, const Node *n) {
    for (int i = 0; i < LEN(identity); i++) {
        if (identity[i].op != n->op) continue;
        for (int side = 0; side < 2; side++)
            if (identity[i].side >> side & 1 && has_value(p, n->arg[side], identity[i].type, identity[i].value))
                return identity[i].gives == ITSELF ? n->arg[side] : n->arg[1 - side];
    }
    return 0;
}

/* Both operands the same. */
static Ref by_sameness(Nodes *p, const Node *n) {
    Ref a = n->arg[0];
    if (a != n->arg[1]) return 0;
    bool exact = p->n[a].type == T_INT; /* a NaN is not equal to itself */
    switch (n->op) {
    case OP_AND:
    case OP_OR:
    case OP_MIN:
    case OP_MAX: return a;
    case OP_SUB: return exact ? ag_node_int(p, 0) : 0;
    case OP_LE:
    case OP_GE:
    case OP_EQ: return exact ? ag_node_bool(p, true) : 0;
    case OP_LT:
    case OP_GT:
    case OP_NE: return exact ? ag_node_bool(p, false) : 0;
    default: return 0;
    }
}

static Ref by_constants(Nodes *p, const Node *n) {
    Scalar arg[3] = {{0}}, v;
    int arity = ag_op[n->op].arity;
    if (arity == 0 || ag_op[n->op].rule == RULE_REF) return 0;
    for (int i = 0; i < arity; i++) {
        if (!ag_node_is_const(p, n->arg[i])) return 0;
        arg[i] = p->n[n->arg[i]].value;
    }
    ag_eval(n->op, arg, &v);
    return ag_node_intern(p, (Node){.op = OP_CONST, .value = v, .span = n->span});
}

static Ref fold_select(Nodes *p, Node n) {
    Ref c = n.arg[0], a = n.arg[1], b = n.arg[2];
    if (a == b) return a;
    /* A mask that hides everything stays: what is under it still tells over what the reductions run. */
    if (ag_node_is_const(p, c) && !ag_node_is_neg_inf(p, b)) return is_bool(p, c, true) ? a : b;
    if (is_bool(p, c, true)) return a;
    if (p->n[c].op == OP_NOT) return ag_node_op(p, OP_SELECT, p->n[c].arg[0], b, a, n.span);
    return ag_node_intern(p, n);
}

Ref ag_fold_node(Nodes *p, Node n) {
    Ref r = by_constants(p, &n);
    if (!r) r = by_identity(p, &n);
    if (!r && ag_op[n.op].arity == 2) r = by_sameness(p, &n);
    if (r) return r;
    const Node *a = &p->n[n.arg[0]];
    switch (n.op) {
    case OP_SELECT: return fold_select(p, n);
    case OP_NOT:
    case OP_NEG: return a->op == n.op ? a->arg[0] : ag_node_intern(p, n);
    case OP_FINITE: return a->op == OP_FINITE || a->type != T_FLOAT ? n.arg[0] : ag_node_intern(p, n);
    case OP_FLOOR: return a->type == T_INT ? n.arg[0] : ag_node_intern(p, n);
    default: break;
    }
    /* A constant goes last, so that x * 2 and 2 * x are one node. */
    if (ag_op_has(n.op, 'C') && ag_node_is_const(p, n.arg[0])) {
        Ref swap = n.arg[0];
        n.arg[0] = n.arg[1], n.arg[1] = swap;
    }
    return ag_node_intern(p, n);
}

/* ---- rebuilding */

static void want_operands(const Node *n, bool *want) {
    for (int i = 0; i < 3; i++) want[n->arg[i]] = true;
    for (int i = 0; i < n->nsub; i++) want[n->sub[i]] = true;
}

Ref ag_node_rebuild(Nodes *to, const Nodes *from, Ref r, Ref (*swap)(void *payload, Ref r), void *payload) {
    if (!r) return 0;
    bool *want = NEWN(to->arena, bool, (size_t)r + 1);
    Ref *now = NEWN(to->arena, Ref, (size_t)r + 1);
    want[r] = true;
    for (Ref i = r; i > 0; i--) {
        if (!want[i]) continue;
        now[i] = swap ? swap(payload, i) : 0;
        if (!now[i]) want_operands(&from->n[i], want);
    }
    for (Ref i = 1; i <= r; i++) {
        if (!want[i] || now[i]) continue;
        Node n = from->n[i];
        for (int k = 0; k < 3; k++) n.arg[k] = now[n.arg[k]];
        for (int k = 0; k < n.nsub; k++) n.sub[k] = now[n.sub[k]];
        if (ag_op[n.op].arity) n.axes = 0;
        now[i] = ag_fold_node(to, n);
    }
    return now[r];
}

/* ---- printing */

typedef struct Printer {
    Buf *out;
    const Nodes *p;
    const char *(*leaf)(void *payload, const Node *n);
    void *payload;
} Printer;

static void print(const Printer *pr, Ref r, int outer);

static void print_list(const Printer *pr, const Ref *item, int n, char open, char close) {
    ag_put(pr->out, "%c", open);
    for (int i = 0; i < n; i++) {
        if (i) ag_put(pr->out, ", ");
        print(pr, item[i], 0);
    }
    ag_put(pr->out, "%c", close);
}

/* The shortest decimal that reads back as the same float. */
static void print_float(Buf *out, double v) {
    char text[32];
    double x = v;
    for (int digits = 1; digits <= 9 && isfinite(v); digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, v);
        x = strtod(text, NULL);
        if ((float)x == (float)v) break;
    }
    ag_put_double(out, x);
}

static void print_const(Buf *out, const Scalar *v) {
    if (v->type == T_BOOL) ag_put(out, "%s", v->u.b ? "true" : "false");
    if (v->type == T_INT) ag_put(out, "%lld", (long long)v->u.i);
    if (v->type == T_FLOAT) print_float(out, v->u.f);
}

static void print_leaf(const Printer *pr, const Node *n) {
    switch (n->op) {
    case OP_CONST: print_const(pr->out, &n->value); break;
    case OP_AXIS: ag_put(pr->out, "%s", ag_axis_name[n->index]); break;
    case OP_AXISMIN: ag_put(pr->out, "%s.min", ag_axis_name[n->index]); break;
    case OP_AXISMAX: ag_put(pr->out, "%s.max", ag_axis_name[n->index]); break;
    case OP_SIZE: ag_put(pr->out, "%s", ag_size_name[n->index]); break;
    case OP_BLOCK: ag_put(pr->out, "block"); break;
    case OP_BLOCKS: ag_put(pr->out, "blocks"); break;
    default: ag_put(pr->out, "%s%d%s", ag_op[n->op].name, n->index, n->old ? ".old" : ""); break;
    }
}

static void print_symbol(const Printer *pr, const Node *n, int outer) {
    const OpInfo *op = &ag_op[n->op];
    bool paren = op->prec < outer, word = op->spelling[0] >= 'a';
    if (paren) ag_put(pr->out, "(");
    if (op->arity == 1) {
        ag_put(pr->out, "%s%s", op->spelling, word ? " " : "");
        print(pr, n->arg[0], op->prec);
    } else {
        print(pr, n->arg[0], op->prec + (n->op == OP_POW || op->rule == RULE_CMP));
        ag_put(pr->out, " %s ", op->spelling);
        print(pr, n->arg[1], op->prec + (n->op != OP_POW));
    }
    if (paren) ag_put(pr->out, ")");
}

/* outer: precedence below which parentheses are needed. */
static void print(const Printer *pr, Ref r, int outer) {
    const Node *n = &pr->p->n[r];
    const OpInfo *op = &ag_op[n->op];
    const char *name = pr->leaf ? pr->leaf(pr->payload, n) : NULL;
    if (name) {
        ag_put(pr->out, "%s", name);
    } else if (n->op == OP_LOAD) {
        ag_put(pr->out, "load%d", n->index);
        print_list(pr, n->sub, n->nsub, '[', ']');
    } else if (n->op == OP_RSUM || n->op == OP_RMAX) {
        ag_put(pr->out, "%s%s %s: ", outer ? "(" : "", op->name, ag_axis_name[n->index]);
        print(pr, n->arg[0], 0);
        if (outer) ag_put(pr->out, ")");
    } else if (op->arity == 0) {
        print_leaf(pr, n);
    } else if (op->prec && n->op != OP_SELECT) {
        print_symbol(pr, n, outer);
    } else {
        ag_put(pr->out, "%s", op->name);
        print_list(pr, n->arg, op->arity, '(', ')');
    }
}

void ag_node_print(Buf *out, const Nodes *p, Ref r, const char *(*leaf)(void *payload, const Node *n), void *payload) {
    print(&(Printer){out, p, leaf, payload}, r, 0);
}

bool *ag_nodes_apart(const Nodes *p) {
    enum { MOST = 256 };
    size_t len = (size_t)p->len;
    bool *apart = NEWN(p->arena, bool, len);
    int *readers = NEWN(p->arena, int, len), *size = NEWN(p->arena, int, len);
    for (Ref r = 1; r < p->len; r++) {
        const Node *n = &p->n[r];
        for (int i = 0; i < ag_op[n->op].arity; i++) readers[n->arg[i]]++;
        for (int i = 0; i < n->nsub; i++) readers[n->sub[i]]++;
    }
    for (Ref r = 1; r < p->len; r++) { /* operands have smaller indices */
        const Node *n = &p->n[r];
        int64_t sum = 1;
        for (int i = 0; i < ag_op[n->op].arity; i++) sum += size[n->arg[i]];
        for (int i = 0; i < n->nsub; i++) sum += size[n->sub[i]];
        apart[r] = readers[r] > 1 && sum > MOST;
        size[r] = apart[r] ? 1 : (int)(sum < INT32_MAX / 8 ? sum : INT32_MAX / 8);
    }
    return apart;
}
