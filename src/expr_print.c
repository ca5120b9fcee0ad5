/* expr_print.c: a typed tree back to text, with the fewest parentheses that parse back to the same tree. */
#include "input.h"

#include <inttypes.h>

enum { PREC_IF = 1, PREC_OR = 2, PREC_ADD = 6, PREC_NEG = 8, PREC_POWER = 9, PREC_ATOM = 10 };

static void print(Buf *out, const Spec *spec, const Ast *e, int min);

/* Negative constants come from outside the parser only; they read back as a negation. */
static int constant_precedence(Scalar v) {
    if (v.type == T_INT && v.u.i == INT32_MIN) return PREC_ADD;
    return (v.type == T_INT && v.u.i < 0) || (v.type == T_FLOAT && v.u.f < 0) ? PREC_NEG : PREC_ATOM;
}

static void print_constant(Buf *out, Scalar v) {
    if (v.type == T_BOOL)
        ag_put(out, "%s", v.u.b ? "true" : "false");
    else if (v.type == T_FLOAT)
        ag_put_double(out, v.u.f);
    else if (v.u.i == INT32_MIN)
        ag_put(out, "-%d - 1", INT32_MAX);
    else
        ag_put(out, "%" PRId64, v.u.i);
}

static void print_leaf(Buf *out, const Spec *spec, const Ast *e) {
    switch (e->op) {
    case OP_CONST: print_constant(out, e->value); break;
    case OP_AXIS: ag_put(out, "%s", ag_axis_name[e->index]); break;
    case OP_SIZE: ag_put(out, "%s", ag_size_name[e->index]); break;
    case OP_PARAM: ag_put(out, "%.*s", STRF(spec->param[e->index].name)); break;
    case OP_LET: ag_put(out, "%.*s", STRF(spec->let[e->index].name)); break;
    case OP_BRANCH: ag_put(out, "%.*s", STRF(spec->branch[e->index].name)); break;
    case OP_LOAD:
        ag_put(out, "%.*s", STRF(spec->input[e->index].name));
        for (int i = 0; i < e->nsub; i++) {
            ag_put(out, i ? ", " : "[");
            print(out, spec, e->sub[i], PREC_IF);
        }
        if (e->nsub) ag_put(out, "]");
        break;
    default: ag_put(out, "s"); break;
    }
}

static void print_call(Buf *out, const Spec *spec, const Ast *e) {
    ag_put(out, "%s(", ag_op[e->op].spelling);
    for (int i = 0; i < ag_op[e->op].arity; i++) {
        if (i) ag_put(out, ", ");
        print(out, spec, e->arg[i], PREC_IF);
    }
    ag_put(out, ")");
}

static void print_operator(Buf *out, const Spec *spec, const Ast *e) {
    const OpInfo *op = &ag_op[e->op];
    if (e->op == OP_SELECT) {
        print(out, spec, e->arg[1], PREC_OR);
        ag_put(out, " if ");
        print(out, spec, e->arg[0], PREC_OR);
        ag_put(out, " else ");
        print(out, spec, e->arg[2], PREC_IF);
    } else if (op->arity == 1) {
        ag_put(out, "%s%s", op->spelling, e->op == OP_NOT ? " " : "");
        print(out, spec, e->arg[0], op->prec);
    } else if (e->op == OP_POW) {
        print(out, spec, e->arg[0], PREC_ATOM);
        ag_put(out, " ** ");
        print(out, spec, e->arg[1], PREC_NEG);
    } else {
        print(out, spec, e->arg[0], op->prec);
        ag_put(out, " %s ", op->spelling);
        print(out, spec, e->arg[1], op->prec + 1);
    }
}

/* Prints e so that it can stand where operators of precedence `min` and tighter are taken. */
static void print(Buf *out, const Spec *spec, const Ast *e, int min) {
    while (e->op == OP_TOFLOAT) e = e->arg[0];
    if (e->part) {
        ag_put(out, "%.*s", STRF(spec->batch[e->part - 1].name));
        return;
    }
    bool leaf = ag_op_has(e->op, 'L');
    int prec = e->op == OP_CONST ? constant_precedence(e->value) : leaf || ag_op[e->op].prec == 0 ? PREC_ATOM : ag_op[e->op].prec;
    if (prec < min) ag_put(out, "(");
    if (leaf)
        print_leaf(out, spec, e);
    else if (ag_op[e->op].prec == 0)
        print_call(out, spec, e);
    else
        print_operator(out, spec, e);
    if (prec < min) ag_put(out, ")");
}

void ag_expr_print(Buf *out, const Spec *spec, const Ast *e) { print(out, spec, e, PREC_IF); }
