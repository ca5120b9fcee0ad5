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
    if (v->fetched && v->type != DT_F32) {
        ag_put(out, "%s_in::value(%.*s[%s][%s], %s)", ag_dtype_name[v->type], STRF(v->name), x->mi, x->ni, x->ei);
        return;
    }
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

/* The text of an op with %0 %1 %2 for its operands and %w for its walk, and how tightly it binds. */
typedef struct Format {
    const char *at, *end;
    int prec;
} Format;
/* Operations on ints that may leave 32 bits: what wraps around is unsigned in C. */
static const char *wrapping(Op op) {
    switch (op) {
    case OP_ADD: return "wrap_add(%0, %1)";
    case OP_SUB: return "wrap_sub(%0, %1)";
    case OP_MUL: return "wrap_mul(%0, %1)";
    case OP_NEG: return "wrap_sub(0, %0)";
    case OP_ABS: return "wrap_abs(%0)";
    default: return NULL;
    }
}
/* Integer // and % of values that cannot be negative are C's own; by 0, which in a spec gives 0, only attngen never divides. */
static bool is_plain_division(const Emit *e, Ref r) {
    const Node *n = &e->k->nodes.n[r];
    if (n->type != T_INT || (n->op != OP_FLOORDIV && n->op != OP_MOD)) return false;
    return ag_reach_among(e->k, e->reach, n->arg[0]).least >= 0 && ag_reach_among(e->k, e->reach, n->arg[1]).least >= ag_is_of_spec(e->k, r);
}
/* By a scalar that is declared with its Divider. */
static bool is_by_divider(const Emit *e, const Node *n) {
    if (n->type != T_INT || (n->op != OP_FLOORDIV && n->op != OP_MOD)) return false;
    const Node *by = &e->k->nodes.n[n->arg[1]];
    return by->op == OP_VAL && e->k->val[by->index].divides;
}
static Format format_of(const Emit *e, Ref r) {
    const Node *n = &e->k->nodes.n[r];
    if (is_by_divider(e, n)) {
        bool plain = is_plain_division(e, r), rest = n->op == OP_MOD;
        const char *call = plain ? (rest ? "rem_by(%0, %1_by)" : "quot_by(%0, %1_by)") : rest ? "floor_mod_by(%0, %1_by)" : "floor_div_by(%0, %1_by)";
        return (Format){call, NULL, P_ATOM};
    }
    if (is_plain_division(e, r)) return (Format){n->op == OP_MOD ? "rem(%0, %1)" : "quot(%0, %1)", NULL, P_ATOM};
    if (n->type == T_INT && wrapping(n->op) && ag_reach_among(e->k, e->reach, r).wraps) return (Format){wrapping(n->op), NULL, P_ATOM};
    const char *f = ag_op[n->op].cuda, *bar = NULL; /* "float form|int form", but || is an operator */
    for (const char *p = strchr(f, '|'); p && !bar; p = strchr(p + 2, '|'))
        if (p[1] != '|') bar = p;
    bool is_int = e->k->nodes.n[n->arg[0]].type == T_INT;
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

const char *const ag_walk_name[WALKS] = {"walk_k", "walk_v", "walk"};

static void put_operation(const Emit *e, Buf *out, const Node *n, Format f, const Names *x, const char *const *shared) {
    for (const char *p = f.at; *p && p != f.end; p++) {
        bool operand = p[0] == '%' && p[1] >= '0' && p[1] <= '2';
        if (p[0] == '%' && p[1] == 'w') {
            ag_put(out, "%s", ag_walk_name[n->index]);
            p++;
            continue;
        }
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
    if (n->op == OP_LOAD) {
        ag_emit_load(e, out, r, x, shared, outer > P_COND);
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
    Format f = format_of(e, r);
    if (f.prec < outer) ag_put(out, "(");
    put_operation(e, out, n, f, x, shared);
    if (f.prec < outer) ag_put(out, ")");
}

void ag_emit_expr(const Emit *e, Buf *out, Ref r) { put(e, out, r, NULL, NULL, 0); }
void ag_emit_expr_with(const Emit *e, Buf *out, Ref r, const Names *names, const char *const *shared) { put(e, out, r, names, shared, 0); }

void ag_emit_factor(const Emit *e, Buf *out, Ref r, const Names *names, const char *const *shared) { put(e, out, r, names, shared, P_MUL + 1); }

/* ---- what expressions read: operands have smaller indices, so one sweep down from the root visits readers first */

/* A subscript stands in the text of its load twice; those that a base has taken in, and the key of one, do not. */
static void count_subscripts(const Emit *e, Ref r, int *uses) {
    const Node *n = &e->k->nodes.n[r];
    const Base *b = e->base && e->base[r].at ? &e->base[r] : NULL;
    for (int i = 0; i < n->nsub; i++)
        if (!b || (!b->key && b->columns >> i & 1)) uses[n->sub[i]] += 2;
}

static int *count_uses(const Emit *e, Ref r, const char *const *shared) {
    const Kernel *k = e->k;
    int *uses = NEWN(k->arena, int, (size_t)r + 1);
    uses[r] = 1;
    for (Ref i = r; i > 0; i--) {
        const Node *n = &k->nodes.n[i];
        if (!uses[i] || (shared && shared[i])) continue;
        for (int a = 0; a < ag_op[n->op].arity; a++) uses[n->arg[a]]++;
        count_subscripts(e, i, uses);
    }
    return uses;
}

static Depth of_leaf(const Kernel *k, const Node *n) {
    if (n->op == OP_AXIS) return n->index == AX_K ? DEPTH_COLUMN : DEPTH_ROW;
    if (n->op != OP_VAL) return DEPTH_BLOCK;
    Space space = k->val[n->index].space;
    return space == SPACE_FRAG ? DEPTH_ELEMENT : space == SPACE_ROW ? DEPTH_ROW : DEPTH_BLOCK;
}

static Depth *depths(const Kernel *k, Ref r) {
    Depth *d = NEWN(k->arena, Depth, (size_t)r + 1);
    for (Ref i = 1; i <= r; i++) {
        const Node *n = &k->nodes.n[i];
        d[i] = of_leaf(k, n);
        for (int a = 0; a < ag_op[n->op].arity; a++) d[i] |= d[n->arg[a]];
        for (int a = 0; a < n->nsub; a++) d[i] |= d[n->sub[a]];
    }
    return d;
}

bool ag_loads_column(const Kernel *k, Ref r) {
    const Depth *d = depths(k, r);
    const int *uses = count_uses(&(Emit){.k = k}, r, NULL);
    for (Ref i = 1; i <= r; i++)
        if (uses[i] && k->nodes.n[i].op == OP_LOAD && d[i] & DEPTH_COLUMN) return true;
    return false;
}

/* k < x with x known per row: the operand that is x (0 or 1), else -1. */
static int key_against(const Kernel *k, const Node *n, const Depth *d) {
    if (n->op != OP_LT && n->op != OP_LE && n->op != OP_GT && n->op != OP_GE) return -1;
    for (int a = 0; a < 2; a++) {
        const Node *key = &k->nodes.n[n->arg[1 - a]];
        if (key->op == OP_AXIS && key->index == AX_K && !(d[n->arg[a]] & DEPTH_COLUMN)) return a;
    }
    return -1;
}

const char *ag_emit_constant(Emit *e, const char *type, const char *name, const char *value) {
    if (!e->arrays) {
        ag_emit_line(e, "%s%s = %s;", type, name, value);
        return name;
    }
    bool pointer = strchr(type, '*') != NULL; /* what it points to is const */
    for (int i = 0; i < e->indent - 1; i++) ag_put(e->arrays, "    ");
    ag_put(e->arrays, "%s%s[%d][2];\n", pointer ? type : type + strlen("const "), name, e->row_tiles);
    const char *element = ag_fmt(e->k->arena, "%s[mi][r]", name).s;
    ag_emit_line(e, "%s = %s;", element, value);
    return element;
}

/* Is an int known to be so far above the least that a key can be subtracted? */
static bool is_above_least(const Emit *e, Ref r) {
    if (!ag_reads_captured(e->k, r) && !ag_is_of_spec(e->k, r)) return true;
    return ag_reach_among(e->k, e->reach, r).least >= INT32_MIN + (int64_t)AG_POSITION_LIMIT;
}

/* less_key: less the lane's first key, which names it apart: both may be asked for. */
static const char *declare_part(Emit *e, Ref i, const Names *names, const char *const *shared, bool less_key) {
    static const char *const type[] = {"", "const bool ", "const int ", "const float "};
    const Node *n = &e->k->nodes.n[i];
    bool cut = less_key && !is_above_least(e, i), load = n->op == OP_LOAD && !less_key;
    Buf text = {0};
    ag_put(&text, cut ? "max(" : "");
    put(e, &text, i, names, shared, less_key && !cut ? P_ADD : 0);
    ag_put(&text, cut ? ", -1073741824) - k0" : less_key ? " - k0" : "");
    const char *name = load ? ag_emit_load_name(e, i) : ag_fmt(e->k->arena, !less_key && e->base && e->base[i].distance ? "v%d" : "t%d", i).s;
    if (less_key && e->base) e->base[i].distance = true;
    name = ag_emit_constant(e, type[n->type], name, text.oom ? "" : text.s);
    ag_buf_free(&text);
    return name;
}

/* The key against a value that is known at `depth`, as the column in the fragment against their distance. */
static void share_key_comparisons(Emit *e, Ref r, const Names *names, const char **shared, const Depth *d, Depth depth) {
    const Kernel *k = e->k;
    const int *uses = count_uses(e, r, shared);
    const char **less_key = NEWN(k->arena, const char *, (size_t)r + 1);
    for (Ref i = 1; i <= r; i++) {
        int a = uses[i] ? key_against(k, &k->nodes.n[i], d) : -1;
        if (a < 0 || shared[i]) continue;
        const Node *n = &k->nodes.n[i];
        if (d[n->arg[a]] > depth) continue;
        if (!less_key[n->arg[a]]) less_key[n->arg[a]] = declare_part(e, n->arg[a], names, shared, true);
        const char *x = less_key[n->arg[a]], *op = ag_op[n->op].spelling;
        shared[i] = a == 1 ? ag_fmt(k->arena, "(%s %s %s)", names->col, op, x).s : ag_fmt(k->arena, "(%s %s %s)", x, op, names->col).s;
    }
}

/* How far what a load has in front of its columns is known. */
static Depth depth_of_base(const Kernel *k, Ref r, const Depth *d) {
    const Node *n = &k->nodes.n[r];
    Depth base = DEPTH_BLOCK;
    for (int i = 0; i < n->nsub; i++)
        if (!(d[n->sub[i]] & DEPTH_COLUMN)) base |= d[n->sub[i]];
    return base;
}

static void emit_bases(Emit *e, Ref r, const Names *names, const char *const *shared, const Depth *d, Depth depth) {
    const int *uses = count_uses(e, r, shared);
    for (Ref i = 1; i <= r; i++) {
        bool load = uses[i] && e->k->nodes.n[i].op == OP_LOAD && !shared[i] && d[i] & DEPTH_COLUMN && !e->base[i].at;
        if (load && depth_of_base(e->k, i, d) <= depth) ag_emit_base(e, i, names, shared, d);
    }
}

/* Is a part of depth d to be declared? */
static bool is_part(Depth d, Depth root, Share what, int uses, bool load) {
    switch (what) {
    case SHARE_ROW: return d == DEPTH_ROW && root & DEPTH_COLUMN;
    case SHARE_COLUMN: return d == DEPTH_COLUMN;
    default: return uses > 1 || load;
    }
}

void ag_emit_shared(Emit *e, Ref r, const Names *names, const char **shared, Share what) {
    const Kernel *k = e->k;
    const Depth *d = depths(k, r);
    if (what == SHARE_ROW && d[r] & DEPTH_COLUMN) share_key_comparisons(e, r, names, shared, d, DEPTH_ROW);
    const int *uses = count_uses(e, r, shared);
    for (Ref i = 1; i < r; i++) {
        const Node *n = &k->nodes.n[i];
        bool load = n->op == OP_LOAD;
        if (!uses[i] || shared[i] || (ag_op[n->op].arity == 0 && !load)) continue;
        if (is_part(d[i], d[r], what, uses[i], load)) shared[i] = declare_part(e, i, names, shared, false);
    }
    if (what == SHARE_ROW && e->base) emit_bases(e, r, names, shared, d, DEPTH_ROW);
}

void ag_emit_block_parts(Emit *e, Ref r, const Names *names, const char **shared) {
    const Depth *d = depths(e->k, r);
    share_key_comparisons(e, r, names, shared, d, DEPTH_BLOCK);
    emit_bases(e, r, names, shared, d, DEPTH_BLOCK);
}

bool ag_reads_axis(const Emit *e, Ref r, const char *const *shared, Axis axis) {
    const int *uses = count_uses(e, r, shared);
    for (Ref i = 1; i <= r; i++)
        if (uses[i] && e->k->nodes.n[i].op == OP_AXIS && e->k->nodes.n[i].index == (int)axis) return true;
    return false;
}
