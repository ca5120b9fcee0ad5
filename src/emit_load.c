/* emit_load.c: elements of captured tensors in expressions.
 *
 * Every subscript is asked whether it is in its dim, and outside the element is 0: no address is read that the tensor does not have.  In a map what is the same for all
 * columns is computed in front of the loop over them, so that an element costs one comparison and one multiply-add:
 *   const float *u_bias_7_at = args.u_bias + b * args.s0_bias + (q - args.off) * args.s1_bias + k0 * args.s2_bias;
 *   const int u_bias_7_n = inside(q - args.off, args.Sq) ? args.Sk - k0 : 0;
 *   ... ni * 8 + e < u_bias_7_n ? __ldg(u_bias_7_at + (ni * 8 + e) * args.s2_bias) : 0.f
 * The number in a name is that of the node. */
#include "emit.h"

static const Node *node(const Emit *e, Ref r) { return &e->k->nodes.n[r]; }
static const KernelTensor *tensor(const Emit *e, Ref r) { return &e->k->tensor[node(e, r)->index]; }

static const char *taken(const Emit *e, Buf *b) {
    const char *s = ag_str_copy(e->k->arena, (Str){b->s ? b->s : "", (int)b->n}).s;
    e->out->oom |= b->oom;
    ag_buf_free(b);
    return s;
}

/* What an expression is printed with. */
typedef struct With {
    const Emit *e;
    const Names *names;
    const char *const *shared;
} With;

static const char *text(With w, Ref r, bool factor) {
    Buf b = {0};
    (factor ? ag_emit_factor : ag_emit_expr_with)(w.e, &b, r, w.names, w.shared);
    return taken(w.e, &b);
}

/* ---- subscripts; `which`: a bit for each that is meant */

enum { ALL = (1 << LEN(((Node *)0)->sub)) - 1 };

static bool is_key(const Emit *e, Ref r) { return node(e, r)->op == OP_AXIS && node(e, r)->index == AX_K; }

/* Is subscript i known to be in its dim?  tile: of what is computed of the running tile, whose batch and head there are. */
static bool is_inside(const Emit *e, Ref r, int i, bool tile) {
    const Node *sub = node(e, node(e, r)->sub[i]), *n = node(e, tensor(e, r)->extent[i]);
    if (tensor(e, r)->flat) return true;
    if (sub->op == OP_CONST && n->op == OP_CONST) return sub->value.u.i >= 0 && sub->value.u.i < n->value.u.i;
    if (!tile || n->op != OP_SIZE) return false;
    if (sub->op == OP_VAL) return e->k->val[sub->index].below == 1 + n->index;
    return sub->op == OP_AXIS && sub->index == AX_H && n->index == SZ_HQ;
}

/* "inside(q, args.Sq) && ..."; limit: what stands for the extent of subscript `limited`. */
static const char *condition(With w, Ref r, int which, int limited, const char *limit) {
    Buf b = {0};
    for (int i = 0; i < node(w.e, r)->nsub; i++) {
        if (!(which >> i & 1) || is_inside(w.e, r, i, w.names != NULL)) continue;
        const char *n = i == limited ? limit : ag_emit_text(w.e, tensor(w.e, r)->extent[i]);
        ag_put(&b, "%sinside(%s, %s)", b.n ? " && " : "", text(w, node(w.e, r)->sub[i], false), n);
    }
    return taken(w.e, &b);
}

/* " + h * args.s1_bias + ..."; key: what stands for the key, NULL: itself. */
static const char *offset(With w, Ref r, int which, const char *key) {
    Buf b = {0};
    for (int i = 0; i < node(w.e, r)->nsub; i++) {
        Ref sub = node(w.e, r)->sub[i];
        if (!(which >> i & 1) || ag_node_is_int(&w.e->k->nodes, sub, 0)) continue;
        ag_put(&b, " + ");
        if (tensor(w.e, r)->flat) {
            ag_put(&b, "%s", text(w, sub, false));
            continue;
        }
        if (!ag_node_is_int(&w.e->k->nodes, sub, 1)) ag_put(&b, "%s * ", key && is_key(w.e, sub) ? key : text(w, sub, true));
        ag_put(&b, "args.s%d_%s", i, tensor(w.e, r)->name);
    }
    return taken(w.e, &b);
}

static const char *pointer(With w, Ref r) { return ag_fmt(w.e->k->arena, "args.%s%s", tensor(w.e, r)->named ? "u_" : "", tensor(w.e, r)->name).s; }
const char *ag_emit_load_name(const Emit *e, Ref r) { return ag_fmt(e->k->arena, "u_%s_%d", tensor(e, r)->name, r).s; }

/* ---- in front of the loop over the columns */

void ag_emit_base(Emit *e, Ref r, const Names *names, const char *const *shared, const Depth *depth) {
    With w = {e, names, shared};
    const Node *n = node(e, r);
    Base *b = &e->base[r];
    int columns = 0;
    for (int i = 0; i < n->nsub; i++)
        if (depth[n->sub[i]] & DEPTH_COLUMN) b->columns |= 1 << i, b->column = i, columns++;
    b->key = columns == 1 && is_key(e, n->sub[b->column]);
    int first = ALL & ~b->columns;
    const char *from = offset(w, r, b->key ? ALL : first, "k0"), *in = condition(w, r, first, -1, NULL), *name = ag_emit_load_name(e, r);
    const char *left = ag_emit_text(e, tensor(e, r)->extent[b->column]);
    b->at = pointer(w, r);
    if (from[0])
        b->at = ag_emit_constant(e, ag_fmt(e->k->arena, "%s*", ag_emit_pointer(tensor(e, r))).s, ag_fmt(e->k->arena, "%s_at", name).s,
                                 ag_fmt(e->k->arena, "%s%s", b->at, from).s);
    b->limit = left;
    if (b->key) left = ag_fmt(e->k->arena, "%s - k0", left).s;
    if (in[0]) left = ag_fmt(e->k->arena, "%s ? %s : 0", in, left).s;
    if (b->key || in[0]) b->limit = ag_emit_constant(e, "const int ", ag_fmt(e->k->arena, "%s_n", name).s, left);
}

/* ---- an element */

static const char *whether(With w, Ref r, const Base *b) {
    if (!b) return condition(w, r, ALL, -1, NULL);
    if (b->key) return ag_fmt(w.e->k->arena, "%s < %s", w.names->col, b->limit).s;
    return condition(w, r, b->columns, b->column, b->limit);
}

static const char *address(With w, Ref r, const Base *b) {
    const char *key = b && b->key ? ag_fmt(w.e->k->arena, "(%s)", w.names->col).s : NULL;
    return ag_fmt(w.e->k->arena, "%s%s", b ? b->at : pointer(w, r), offset(w, r, b ? b->columns : ALL, key)).s;
}

void ag_emit_load(const Emit *e, Buf *out, Ref r, const Names *names, const char *const *shared, bool paren) {
    static const char *const zero[] = {"", "false", "0", "0.f"};
    With w = {e, names, shared};
    const Base *b = e->base && e->base[r].at ? &e->base[r] : NULL;
    DType type = tensor(e, r)->type;
    const char *in = whether(w, r, b);
    paren = paren && (in[0] || type == DT_BOOL);
    ag_put(out, "%s%s%s", paren ? "(" : "", in, in[0] ? " ? " : "");
    ag_put(out, "%s__ldg(%s)",
           type == DT_F16    ? "f16_in::value("
           : type == DT_BF16 ? "bf16_in::value("
           : type == DT_I64  ? "(int)"
                             : "",
           address(w, r, b));
    ag_put(out, "%s", type <= DT_BF16 ? ")" : type == DT_BOOL ? " != 0" : "");
    if (in[0]) ag_put(out, " : %s", zero[node(e, r)->type]);
    if (paren) ag_put(out, ")");
}
