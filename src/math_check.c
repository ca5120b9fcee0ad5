/* math_check.c: what must hold of a Math IR between passes.  Every message starts with where: "math node 12 (add)", "math output o", "math carry den". */
#include "compile.h"
#include "law.h"

#include <math.h>

typedef struct Check {
    const Math *m;
    const Nodes *p;
    unsigned facts;
} Check;

#define NODE(c, r) (r), ag_op[(c)->p->n[r].op].name

static bool varies(const Check *c, Ref r, Axis axis) { return c->p->n[r].axes >> axis & 1; }

/* ---- single nodes */

static bool check_operands(const Check *c, Ref r) {
    const Node *n = &c->p->n[r];
    int arity = ag_op[n->op].arity;
    for (int i = 0; i < 3; i++) {
        bool wanted = i < arity, given = n->arg[i] != 0;
        if (given && (n->arg[i] < 0 || n->arg[i] >= r)) {
            ag_internal(c->m->d, "math node %d (%s): operand %d is node %d, which does not come before it", NODE(c, r), i, n->arg[i]);
            return false;
        }
        if (wanted == given) continue;
        ag_internal(c->m->d, "math node %d (%s): operand %d %s", NODE(c, r), i, wanted ? "is missing" : "is one too many");
        return false;
    }
    return true;
}

static void check_types(const Check *c, Ref r) {
    const Node *n = &c->p->n[r];
    Type arg[3] = {T_NONE, T_NONE, T_NONE}, want;
    int arity = ag_op[n->op].arity;
    bool reduction = n->op == OP_RSUM || n->op == OP_RMAX;
    for (int i = 0; i < arity; i++) arg[i] = c->p->n[n->arg[i]].type;
    if (arity == 0) return;
    want = reduction ? (arg[0] == T_FLOAT ? T_FLOAT : T_NONE) : ag_op_type(n->op, arg);
    if (want == T_NONE) {
        ag_internal(c->m->d, "math node %d (%s): operands of types %s, %s, %s do not fit", NODE(c, r), ag_type_name(arg[0]), ag_type_name(arg[1]),
                    ag_type_name(arg[2]));
    } else if (want != n->type) {
        ag_internal(c->m->d, "math node %d (%s): is of type %s, its operands make a %s", NODE(c, r), ag_type_name(n->type), ag_type_name(want));
    }
}

static void check_load(const Check *c, Ref r) {
    const Node *n = &c->p->n[r];
    int input = n->index - TEN_COUNT;
    if (n->index < 0 || input >= c->m->spec->ninput || (input < 0 && c->m->tensor[n->index].output)) {
        ag_internal(c->m->d, "math node %d (%s): there is no input %d", NODE(c, r), n->index);
        return;
    }
    const Input *in = input < 0 ? NULL : &c->m->spec->input[input];
    Str name = in ? in->name : ag_str(c->m->tensor[n->index].name);
    int rank = in ? in->rank : c->m->tensor[n->index].rank;
    Type type = in ? ag_dtype_value(in->type) : T_FLOAT;
    if (n->nsub != rank) ag_internal(c->m->d, "math node %d (%s): %d subscripts for %.*s, which has %d dims", NODE(c, r), n->nsub, STRF(name), rank);
    if (n->type != type)
        ag_internal(c->m->d, "math node %d (%s): is of type %s, %.*s has %s", NODE(c, r), ag_type_name(n->type), STRF(name), ag_type_name(type));
    for (int i = 0; i < n->nsub; i++) {
        bool before = n->sub[i] > 0 && n->sub[i] < r;
        if (!before || c->p->n[n->sub[i]].type != T_INT) ag_internal(c->m->d, "math node %d (%s): subscript %d is no int before it", NODE(c, r), i);
    }
}

/* Leaves that carry an index: how many there are of each, and of what type. */
static void check_leaf(const Check *c, Ref r) {
    const Node *n = &c->p->n[r];
    const Stream *s = c->m->nstream ? &c->m->stream[0] : NULL;
    int count = 1;
    Type type = T_INT;
    switch (n->op) {
    case OP_AXIS:
    case OP_AXISMIN:
    case OP_AXISMAX: count = AX_COUNT; break;
    case OP_SIZE: count = SZ_COUNT; break;
    case OP_PARAM: count = c->m->spec->nparam; break;
    case OP_CARRY: count = s ? s->ncarry : 0, type = T_FLOAT; break;
    case OP_CONST: type = n->value.type; break;
    default: break;
    }
    bool exists = n->index >= 0 && n->index < count;
    if (!exists) ag_internal(c->m->d, "math node %d (%s): index %d of %d", NODE(c, r), n->index, count);
    if (exists && n->op == OP_PARAM) type = c->m->spec->param[n->index].type;
    if (type == T_NONE || type != n->type)
        ag_internal(c->m->d, "math node %d (%s): is of type %s, not %s", NODE(c, r), ag_type_name(n->type), ag_type_name(type));
}

static void check_axes(const Check *c, Ref r) {
    const Node *n = &c->p->n[r];
    uint8_t axes = 0;
    if (!(c->facts & FACT_AXES) || n->op == OP_CARRY) return;
    for (int i = 0; i < 3; i++) axes |= c->p->n[n->arg[i]].axes;
    for (int i = 0; i < n->nsub; i++) axes |= c->p->n[n->sub[i]].axes;
    if (n->op == OP_AXIS) axes |= (uint8_t)(1 << (n->index == AX_G ? AX_H : n->index));
    if (n->op == OP_RSUM || n->op == OP_RMAX) axes &= (uint8_t) ~(1 << n->index);
    if (axes != n->axes) ag_internal(c->m->d, "math node %d (%s): axes are 0x%02x, its operands make 0x%02x", NODE(c, r), n->axes, axes);
}

static void check_reduction(const Check *c, Ref r) {
    const Node *n = &c->p->n[r];
    if (n->op != OP_RSUM && n->op != OP_RMAX) return;
    if (n->index != AX_K && n->index != AX_D)
        ag_internal(c->m->d, "math node %d (%s): reduces over %s", NODE(c, r),
                    n->index >= 0 && n->index < AX_COUNT ? ag_axis_name[n->index] : "no axis");
    else if (n->index == AX_D && !varies(c, n->arg[0], AX_D)) /* over k, equal weights for all keys are fine */
        ag_internal(c->m->d, "math node %d (%s): its body does not vary with d", NODE(c, r));
}

static void check_node(const Check *c, Ref r) {
    const Node *n = &c->p->n[r];
    if (ag_op_has(n->op, 'K') || n->op == OP_VAL || n->op == OP_BLOCK || n->op == OP_BLOCKS) {
        ag_internal(c->m->d, "math node %d (%s): does not belong here", NODE(c, r));
        return;
    }
    if (!check_operands(c, r)) return;
    check_types(c, r);
    check_reduction(c, r);
    if (n->op == OP_LOAD)
        check_load(c, r);
    else if (ag_op[n->op].arity == 0)
        check_leaf(c, r);
    check_axes(c, r);
    if (c->facts & FACT_SIMPLE && (n->op == OP_EXP || n->op == OP_LOG)) ag_internal(c->m->d, "math node %d (%s): is left after simplify", NODE(c, r));
}

/* ---- roots */

static bool exists(const Check *c, Ref r) { return r > 0 && r < c->p->len; }

/* Marks what r is made of. */
static bool *closure(const Check *c, Ref r) {
    bool *in = NEWN(c->p->arena, bool, (size_t)c->p->len);
    in[r] = true;
    for (; r > 0; r--) {
        for (int i = 0; i < 3 && in[r]; i++) in[c->p->n[r].arg[i]] = true;
        for (int i = 0; i < c->p->n[r].nsub && in[r]; i++) in[c->p->n[r].sub[i]] = true;
    }
    return in;
}

/* what: "output o", "carry den, factor".  ncarry: carries that may be read; old: also as they were before the step. */
static void check_streamed(const Check *c, Ref root, const char *what, const char *part, int ncarry, bool old) {
    const bool *in = closure(c, root);
    for (Ref r = 1; r <= root; r++) {
        const Node *n = &c->p->n[r];
        if (!in[r]) continue;
        if ((n->op == OP_RSUM || n->op == OP_RMAX) && n->index == AX_K)
            ag_internal(c->m->d, "math %s%s: reads the reduction %d over k, which no stream carries", what, part, r);
        if (n->op == OP_CARRY && n->index >= ncarry) ag_internal(c->m->d, "math %s%s: reads carry %d, which is not ready", what, part, n->index);
        if (n->op == OP_CARRY && n->old && !old) ag_internal(c->m->d, "math %s%s: reads carry %d as it was before the step", what, part, n->index);
    }
}

static void check_outputs(const Check *c) {
    bool given[TEN_COUNT] = {false};
    for (int i = 0; i < c->m->nout; i++) {
        const MathOut *o = &c->m->out[i];
        const MathTensor *t = &c->m->tensor[o->tensor];
        const char *what = ag_fmt(c->p->arena, "output %s", t->name).s;
        uint8_t axes = 0;
        if (!t->output || (given[o->tensor] && !c->m->spec->joined))
            ag_internal(c->m->d, "math %s: %s", what, t->output ? "is there twice" : "is an input");
        given[o->tensor] = true;
        if (!exists(c, o->value) || c->p->n[o->value].type != T_FLOAT) {
            ag_internal(c->m->d, "math %s: has no float value", what);
            continue;
        }
        for (int k = 0; k < t->rank; k++) axes |= (uint8_t)(1 << t->axis[k]);
        if (c->p->n[o->value].axes & ~axes) ag_internal(c->m->d, "math %s: varies with an axis that the tensor does not have", what);
        if (c->facts & FACT_STREAM) check_streamed(c, o->value, what, "", c->m->nstream ? c->m->stream[0].ncarry : 0, false);
    }
    for (int i = 0; i < TEN_COUNT; i++)
        if (c->m->tensor[i].output && !given[i] && (i < TEN_LSE || ag_puts_out(c->m->spec, (RowValue)(i - TEN_LSE))))
            ag_internal(c->m->d, "math output %s: has no value", c->m->tensor[i].name);
}

static void check_carry(const Check *c, const Stream *s, int i) {
    const Carry *x = &s->carry[i];
    const char *what = ag_fmt(c->p->arena, "carry %.*s", STRF(x->name)).s;
    if (x->combine != OP_RSUM && x->combine != OP_RMAX) ag_internal(c->m->d, "math %s: is combined by %s", what, ag_op[x->combine].name);
    if (!exists(c, x->body) || c->p->n[x->body].type != T_FLOAT) {
        ag_internal(c->m->d, "math %s: has no float body", what);
        return;
    }
    if (x->init != (x->combine == OP_RMAX ? -INFINITY : 0)) ag_internal(c->m->d, "math %s: does not start at the identity of its combination", what);
    if (x->axes != ((c->p->n[x->body].axes & ~(1 << s->axis)) | AXES_ROW))
        ag_internal(c->m->d, "math %s: its axes are not those of a row and of its body without the stream's", what);
    check_streamed(c, x->body, what, ", body", i, false);
    if (x->reference >= i || (x->reference >= 0) != (x->factor != 0)) ag_internal(c->m->d, "math %s: reference and factor do not go together", what);
    if (!x->factor) return;
    if (!exists(c, x->factor) || c->p->n[x->factor].type != T_FLOAT || varies(c, x->factor, AX_K))
        ag_internal(c->m->d, "math %s: its factor is no float that is the same for all keys", what);
    else
        check_streamed(c, x->factor, what, ", factor", i, true);
    if (x->combine != OP_RSUM) ag_internal(c->m->d, "math %s: only sums can be rescaled", what);
}

static void check_range(const Check *c) {
    const KeyRange *g = &c->m->range;
    const Ref bound[] = {g->need_lo, g->need_hi, g->plain_lo, g->plain_hi, g->gap_lo, g->gap_hi};
    if (g->mask && (!exists(c, g->mask) || c->p->n[g->mask].type != T_BOOL)) ag_internal(c->m->d, "math range: the mask is no bool");
    if (!g->mask != !g->visible || (g->visible && (!exists(c, g->visible) || c->p->n[g->visible].type != T_BOOL)))
        ag_internal(c->m->d, "math range: what is visible is no bool");
    for (int i = 0; i < LEN(bound); i++) {
        if (!bound[i]) continue;
        const uint8_t inside = 1 << AX_Q | AXES_INNER;
        if (!exists(c, bound[i]) || c->p->n[bound[i]].type != T_INT || c->p->n[bound[i]].axes & inside)
            ag_internal(c->m->d, "math range: bound %d is no int that is the same for a whole tile", i);
    }
    if (g->never_plain && (g->plain_lo || g->plain_hi)) ag_internal(c->m->d, "math range: no key is plain, yet there are bounds");
    if (!g->gap_lo != !g->gap_hi) ag_internal(c->m->d, "math range: a gap has one end");
    if (!g->mask && (g->gap_lo || g->need_lo || g->need_hi || g->never_plain)) ag_internal(c->m->d, "math range: there is a range and no mask");
}

void ag_math_check(const Math *m, unsigned facts) {
    Check c = {m, &m->nodes, facts};
    for (Ref r = 1; r < m->nodes.len; r++) check_node(&c, r);
    ag_stop_if_errors(m->d);
    check_outputs(&c);
    if (facts & FACT_RANGE) check_range(&c);
    for (int s = 0; s < m->nstream; s++)
        for (int i = 0; i < m->stream[s].ncarry; i++) check_carry(&c, &m->stream[s], i);
}
