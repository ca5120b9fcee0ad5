/* emit_expr.c: expression nodes -> C text, from the `cuda` column of op.def. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emit.h"

/* C precedence of an op's text; a child that binds less tightly is put in parentheses. */
enum { P_ATOM = 20, P_UNARY = 15, P_MUL = 13, P_ADD = 12, P_REL = 10, P_EQ = 9, P_AND = 5, P_OR = 4, P_COND = 3 };
static int c_prec(const Node *n) {
    switch (n->op) {
    case OP_ADD:
    case OP_SUB: return P_ADD;
    case OP_MUL: return P_MUL;
    case OP_LT:
    case OP_LE:
    case OP_GT:
    case OP_GE: return P_REL;
    case OP_EQ:
    case OP_NE: return P_EQ;
    case OP_AND: return P_AND;
    case OP_OR: return P_OR;
    case OP_SELECT: return P_COND;
    case OP_NEG:
    case OP_NOT:
    case OP_TOFLOAT: return P_UNARY;
    case OP_FLOOR: return n->type == T_INT ? P_UNARY : P_ATOM;
    default: return P_ATOM;
    }
}

/* Fewest digits that read back as the same float, in any locale. */
static void put_float(Buf *out, double x) {
    float want = (float)x;
    if (isnan(want))
        ag_put(out, "__int_as_float(0x7fffffff)");
    else if (isinf(want))
        ag_put(out, want < 0 ? "NEG_INF" : "-NEG_INF");
    else {
        char text[40];
        for (int digits = 1; digits <= 9; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, (double)want);
            if (strtof(text, NULL) == want) break;
        }
        for (char *p = text; *p; p++)
            if (!strchr("+-e0123456789", *p)) *p = '.';
        ag_put(out, "%s%sf", text, strpbrk(text, ".e") ? "" : ".");
    }
}

static void put_const(Buf *out, const Node *n) {
    if (n->type == T_BOOL)
        ag_put(out, n->value.u.b ? "true" : "false");
    else if (n->type == T_FLOAT)
        put_float(out, n->value.u.f);
    else if (n->value.u.i == INT32_MIN)
        ag_put(out, "(-2147483647 - 1)");
    else
        ag_put(out, "%d", (int)n->value.u.i);
}

static void put_val(const Emit *e, Buf *out, const Node *n, const Names *x) {
    const Val *v = &e->k->val[n->index];
    ag_put(out, "%.*s", STRF(v->name));
    if (v->space == SPACE_FRAG) ag_put(out, "[%s][%s][%s]", x->mi, x->ni, x->ei);
    if (v->space == SPACE_ROW) ag_put(out, "[%s][%s]", x->mi, x->r);
}

static void put_leaf(const Emit *e, Buf *out, const Node *n, const Names *x) {
    switch (n->op) {
    case OP_CONST: put_const(out, n); break;
    case OP_AXIS: ag_put(out, "%s", ag_axis_name[n->index]); break;
    case OP_SIZE: ag_put(out, "args.%s", ag_size_name[n->index]); break;
    case OP_PARAM: /* the user's name behind a prefix: it can be no keyword, macro or member of ours */
        ag_put(out, n->index == 0 ? "args.%.*s" : "args.u_%.*s", STRF(e->k->spec->param[n->index].name));
        break;
    case OP_BLOCK: ag_put(out, "(int)blockIdx.x"); break;
    case OP_BLOCKS: ag_put(out, "(int)gridDim.x"); break;
    default: put_val(e, out, n, x);
    }
}

static void put(const Emit *e, Buf *out, Ref r, const Names *x, const char *const *shared, int outer);

/* The text of an op with %0 %1 %2 for its operands, and how tightly it binds. */
typedef struct Format {
    const char *at, *end;
    int prec;
} Format;
static Format format_of(const Kernel *k, const Node *n) {
    /* integer // and % of values that cannot be negative are C's own */
    bool plain = n->type == T_INT && (n->op == OP_FLOORDIV || n->op == OP_MOD) && ag_nonneg(k, n->arg[0]) && ag_nonneg(k, n->arg[1]);
    if (plain) return (Format){n->op == OP_MOD ? "rem(%0, %1)" : "quot(%0, %1)", NULL, P_ATOM};
    const char *f = ag_op[n->op].cuda, *bar = NULL; /* "float form|int form", but || is an operator */
    for (const char *p = strchr(f, '|'); p && !bar; p = strchr(p + 2, '|'))
        if (p[1] != '|') bar = p;
    bool is_int = k->nodes.n[n->arg[0]].type == T_INT;
    return (Format){bar && is_int ? bar + 1 : f, bar && !is_int ? bar : NULL, c_prec(n)};
}

static void put(const Emit *e, Buf *out, Ref r, const Names *x, const char *const *shared, int outer);

/* How tightly operand i must bind to stand without parentheses. */
static int need_of(const Emit *e, const Node *n, int prec, int i) {
    const Node *x = &e->k->nodes.n[n->arg[i]];
    if (prec == P_ATOM) return 0; /* between a call's parentheses */
    if (n->op == OP_SELECT) return i == 0 ? P_COND + 1 : P_COND;
    if (prec == P_UNARY) return P_UNARY + 1;                                   /* no "--x" */
    if (n->op == OP_OR) return P_AND + 1;                                      /* && inside || is right without, but compilers warn */
    bool same = x->op == n->op && ag_op_has(n->op, 'A') && n->type != T_FLOAT; /* float sums and products keep their order */
    return i == 0 || same ? prec : prec + 1;
}

static void put_operation(const Emit *e, Buf *out, const Node *n, Format f, const Names *x, const char *const *shared) {
    for (const char *p = f.at; *p && p != f.end; p++) {
        bool operand = p[0] == '%' && p[1] >= '0' && p[1] <= '2';
        if (!operand) {
            ag_putn(out, p, 1);
            continue;
        }
        int i = *++p - '0';
        put(e, out, n->arg[i], x, shared, need_of(e, n, f.prec, i));
    }
}

static void put(const Emit *e, Buf *out, Ref r, const Names *x, const char *const *shared, int outer) {
    const Node *n = &e->k->nodes.n[r];
    if (shared && shared[r]) {
        ag_put(out, "%s", shared[r]);
        return;
    }
    if (ag_op[n->op].arity == 0) {
        put_leaf(e, out, n, x);
        return;
    }
    if (ag_is_scale_log2e(&e->k->nodes, r)) {
        ag_put(out, "args.scale_log2e");
        return;
    }
    Format f = format_of(e->k, n);
    if (f.prec < outer) ag_put(out, "(");
    put_operation(e, out, n, f, x, shared);
    if (f.prec < outer) ag_put(out, ")");
}

void ag_emit_expr(const Emit *e, Buf *out, Ref r) { put(e, out, r, NULL, NULL, 0); }
void ag_emit_expr_with(const Emit *e, Buf *out, Ref r, const Names *names, const char *const *shared) { put(e, out, r, names, shared, 0); }

/* ---- what expressions read: operands have smaller indices, so one sweep down from the root visits readers first */

static int *count_uses(const Kernel *k, Ref r, const char *const *shared) {
    int *uses = NEWN(k->arena, int, (size_t)r + 1);
    uses[r] = 1;
    for (Ref i = r; i > 0; i--) {
        const Node *n = &k->nodes.n[i];
        if (!uses[i] || (shared && shared[i])) continue;
        for (int a = 0; a < ag_op[n->op].arity; a++) uses[n->arg[a]]++;
    }
    return uses;
}

/* How far in the loops of a map a node's value is known. */
typedef enum Depth { DEPTH_BLOCK, DEPTH_ROW, DEPTH_ELEMENT } Depth;
static Depth *depths(const Kernel *k, Ref r) {
    Depth *d = NEWN(k->arena, Depth, (size_t)r + 1);
    for (Ref i = 1; i <= r; i++) {
        const Node *n = &k->nodes.n[i];
        if (n->op == OP_AXIS) d[i] = n->index == AX_K ? DEPTH_ELEMENT : DEPTH_ROW;
        if (n->op == OP_VAL)
            d[i] = k->val[n->index].space == SPACE_FRAG ? DEPTH_ELEMENT : k->val[n->index].space == SPACE_ROW ? DEPTH_ROW : DEPTH_BLOCK;
        for (int a = 0; a < ag_op[n->op].arity; a++) d[i] = d[n->arg[a]] > d[i] ? d[n->arg[a]] : d[i];
    }
    return d;
}

/* k < x with x known per row: the operand that is x (0 or 1), else -1. */
static int key_against(const Kernel *k, const Node *n, const Depth *d) {
    if (n->op != OP_LT && n->op != OP_LE && n->op != OP_GT && n->op != OP_GE) return -1;
    for (int a = 0; a < 2; a++) {
        const Node *key = &k->nodes.n[n->arg[1 - a]];
        if (key->op == OP_AXIS && key->index == AX_K && d[n->arg[a]] < DEPTH_ELEMENT) return a;
    }
    return -1;
}

static const char *declare_part(Emit *e, Ref i, const Names *names, const char *const *shared, const char *minus) {
    static const char *const type[] = {"", "bool", "int", "float"};
    Buf text = {0};
    put(e, &text, i, names, shared, *minus ? P_ADD : 0);
    const char *name = ag_fmt(e->k->arena, "t%d", i).s;
    ag_emit_line(e, "const %s %s = %s%s;", type[e->k->nodes.n[i].type], name, text.oom ? "" : text.s, minus);
    ag_buf_free(&text);
    return name;
}

/* The key against a value of the row, as the column in the fragment against their distance. */
static void share_key_comparisons(Emit *e, Ref r, const Names *names, const char **shared, const int *uses, const Depth *d) {
    const Kernel *k = e->k;
    for (Ref i = 1; i <= r; i++) {
        int a = uses[i] ? key_against(k, &k->nodes.n[i], d) : -1;
        if (a < 0) continue;
        const Node *n = &k->nodes.n[i];
        const char *x = declare_part(e, n->arg[a], names, shared, " - k0"), *op = ag_op[n->op].spelling;
        shared[i] = a == 1 ? ag_fmt(k->arena, "(%s %s %s)", names->col, op, x).s : ag_fmt(k->arena, "(%s %s %s)", x, op, names->col).s;
    }
}

void ag_emit_shared(Emit *e, Ref r, const Names *names, const char **shared, Share what) {
    const Kernel *k = e->k;
    const Depth *d = depths(k, r);
    const int *uses = count_uses(k, r, shared);
    if (what == SHARE_ROW && d[r] == DEPTH_ELEMENT) {
        share_key_comparisons(e, r, names, shared, uses, d);
        uses = count_uses(k, r, shared);
    }
    for (Ref i = 1; i < r; i++) {
        const Node *n = &k->nodes.n[i];
        bool row = d[i] == DEPTH_ROW && d[r] == DEPTH_ELEMENT;
        if (!uses[i] || shared[i] || ag_op[n->op].arity == 0) continue;
        if (what == SHARE_ROW ? row : uses[i] > 1) shared[i] = declare_part(e, i, names, shared, "");
    }
}

bool ag_reads_key(const Emit *e, Ref r, const char *const *shared) {
    const int *uses = count_uses(e->k, r, shared);
    for (Ref i = 1; i <= r; i++)
        if (uses[i] && e->k->nodes.n[i].op == OP_AXIS && e->k->nodes.n[i].index == AX_K) return true;
    return false;
}
