/* emit_distance.c: what a map of scores reads that depends on the distance of query and key alone, such as a table's element: once for each distance of a lane. */
#include "emit.h"

enum { FIXED, BY_DISTANCE, BY_ELEMENT };
static bool is_axis(const Kernel *k, Ref r, int axis) { return k->nodes.n[r].op == OP_AXIS && k->nodes.n[r].index == axis; }
/* q - k (-1), k - q (1), or neither. */
static int distance_of(const Kernel *k, Ref r) {
    const Node *n = &k->nodes.n[r];
    if (n->op != OP_SUB) return 0;
    if (is_axis(k, n->arg[0], AX_Q) && is_axis(k, n->arg[1], AX_K)) return -1;
    return is_axis(k, n->arg[0], AX_K) && is_axis(k, n->arg[1], AX_Q);
}
static uint8_t *by_distance(const Kernel *k, Ref root) {
    uint8_t *how = NEWN(k->arena, uint8_t, (size_t)root + 1);
    for (Ref r = 1; r <= root; r++) { /* operands have smaller indices */
        const Node *n = &k->nodes.n[r];
        bool element = n->op == OP_AXIS || n->op == OP_LISTED_BY || (n->op == OP_VAL && k->val[n->index].space != SPACE_SCALAR);
        how[r] = element ? BY_ELEMENT : FIXED;
        for (int a = 0; a < ag_op[n->op].arity; a++) how[r] = how[n->arg[a]] > how[r] ? how[n->arg[a]] : how[r];
        for (int a = 0; a < n->nsub; a++) how[r] = how[n->sub[a]] > how[r] ? how[n->sub[a]] : how[r];
        if (distance_of(k, r)) how[r] = BY_DISTANCE;
    }
    return how;
}

/* Rows and columns of a lane are 8 apart, so that nearly all distances are there twice.  r is computed for each once, and read by ni, mi and r. */
static void declare_by_distance(Emit *e, const Ins *i, Ref r, const char **shared) {
    static const char *const type[] = {"", "bool", "int", "float"};
    const Kernel *k = e->k;
    const Val *v = &k->val[i->dst];
    int rows = 2 * ag_frag_mt(k, v), count = v->cols / 8 + rows - 1;
    const char **own = NEWN(k->arena, const char *, (size_t)k->nodes.len);
    Names n = {.mi = "", .ni = "", .ei = "", .r = "", .col = ""};
    Base *base = e->base;
    for (Ref x = 1; x <= r; x++)
        if (distance_of(k, x)) own[x] = distance_of(k, x) < 0 ? "behind" : "(-behind)";
    ag_emit_line(e, "%s d%d[%d][2]; // of the element in column ni * 8 + e: [ni + %d - 2 * mi - r][e]", type[k->nodes.n[r].type], r, count, rows - 1);
    ag_emit_line(e, "UNROLL for (int n = 0; n < %d; n++) UNROLL for (int e = 0; e < 2; e++) {", count);
    e->indent++;
    e->base = NULL;
    ag_emit_line(e, "const int behind = qk + (%d - n) * 8 - e;", rows - 1);
    ag_emit_shared(e, r, &n, own, SHARE_ELEMENT);
    Buf value = {0};
    ag_emit_expr_with(e, &value, r, &n, own);
    ag_emit_line(e, "d%d[n][e] = %.*s;", r, (int)value.n, value.s);
    ag_buf_free(&value);
    e->base = base;
    e->indent--;
    ag_emit_line(e, "}");
    shared[r] = ag_fmt(k->arena, "d%d[ni + %d - 2 * mi - r][e]", r, rows - 1).s;
}

enum { MOST_BY_DISTANCE = 2 /* registers */ };
void ag_emit_by_distance(Emit *e, const Ins *i, const char **shared) {
    const Kernel *k = e->k;
    const uint8_t *how = by_distance(k, i->e[0]);
    bool *live = NEWN(k->arena, bool, (size_t)i->e[0] + 1);
    int n = 0;
    if (k->pack > 1 || k->entries) return;
    live[i->e[0]] = true;
    for (Ref r = i->e[0]; r > 0; r--) {
        const Node *x = &k->nodes.n[r];
        if (!live[r]) continue;
        if (how[r] == BY_DISTANCE && !distance_of(k, r) && n < MOST_BY_DISTANCE) {
            if (n++ == 0)
                ag_emit_line(e, "const int qk = %s + %s - k0; // distance in the lane's first row and column", ag_emit_text(e, i->e[1]), e->lane_row);
            declare_by_distance(e, i, r, shared);
            continue;
        }
        for (int a = 0; a < ag_op[x->op].arity; a++) live[x->arg[a]] = true;
        for (int a = 0; a < x->nsub; a++) live[x->sub[a]] = true;
    }
}

/* ---- what is linear in the key: x * float(distance) + y, of which y is a row's */

static bool is_for_rows(const Kernel *k, Ref r, bool *row) {
    bool ok = !ag_expr_uses(k, r, OP_AXIS, AX_K);
    for (int v = 0; v < k->nval && ok; v++) {
        if (k->val[v].space == SPACE_SCALAR || !ag_expr_uses(k, r, OP_VAL, v)) continue;
        ok = k->val[v].space == SPACE_ROW;
        *row = true;
    }
    return ok;
}

typedef struct Ramp {
    Ref distance, x, y;
} Ramp;
static bool ramp_of(const Kernel *k, Ref r, Ramp *out) {
    const Node *n = &k->nodes.n[r], *m = &k->nodes.n[n->arg[0]];
    bool row = false, ignored;
    if ((n->op != OP_ADD && n->op != OP_SUB) || n->type != T_FLOAT || m->op != OP_MUL) return false;
    for (int i = 0; i < 2; i++) {
        const Node *f = &k->nodes.n[m->arg[i]];
        if (f->op != OP_TOFLOAT || !distance_of(k, f->arg[0]) || !is_for_rows(k, m->arg[1 - i], &ignored)) continue;
        *out = (Ramp){f->arg[0], m->arg[1 - i], n->arg[1]};
        return is_for_rows(k, n->arg[1], &row) && row;
    }
    return false;
}

static const char *text_of(const Emit *e, Ref r, const Names *n, const char *const *shared) {
    Buf b = {0};
    ag_emit_expr_with(e, &b, r, n, shared);
    const char *s = ag_str_copy(e->k->arena, (Str){b.s ? b.s : "", (int)b.n}).s;
    ag_buf_free(&b);
    return s;
}

/* The lane's first column by a conversion and a multiply-add, each by one more, as the column is a constant. */
void ag_emit_ramps(Emit *e, const Ins *i, const Names *names, const char **shared) {
    const Kernel *k = e->k;
    Ref root = i->e[0];
    bool *live = NEWN(k->arena, bool, (size_t)root + 1);
    live[root] = true;
    for (Ref r = root; r > 0; r--) {
        const Node *n = &k->nodes.n[r];
        Ramp x;
        if (!live[r] || shared[r]) continue;
        if (!ramp_of(k, r, &x)) {
            for (int a = 0; a < ag_op[n->op].arity; a++) live[n->arg[a]] = true;
            continue;
        }
        bool behind = distance_of(k, x.distance) < 0;
        const char *by = text_of(e, x.x, names, shared), *y = text_of(e, x.y, names, shared);
        if (n->op == OP_SUB) y = ag_fmt(k->arena, k->nodes.n[x.y].op == OP_VAL ? "-%s" : "-(%s)", y).s;
        ag_emit_line(e, "const float ramp%d = fmaf((float)(%s), %s, %s); // in the lane's first column", r, behind ? "q - k0" : "k0 - q", by, y);
        shared[r] = ag_fmt(k->arena, "fmaf(%s(float)(%s), %s, ramp%d)", behind ? "-" : "", names->col, by, r).s;
    }
}
