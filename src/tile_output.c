/* tile_output.c: `output` of a spec with branches as an expression of kernel nodes, for a kernel of its own or behind that of the last branch. */
#include <string.h>

#include "program.h"

typedef struct Lower {
    const OutputPlace *at;
    Nodes *p;
    Ref let[SPEC_MAX_LETS]; /* 0: not lowered yet */
} Lower;

static Ref axis(Lower *x, Axis a) { return ag_node_leaf(x->p, OP_AXIS, T_INT, (int)a, (Span){0}); }

/* ---- tensors */

static Ref size(Kernel *k, Size s) { return ag_node_leaf(&k->nodes, OP_SIZE, T_INT, (int)s, (Span){0}); }

Ref ag_output_extent(Kernel *k, const Spec *spec, Size s) {
    if (s == SZ_D) return ag_node_int(&k->nodes, spec->D);
    return s == SZ_DV ? ag_node_int(&k->nodes, spec->Dv) : size(k, s);
}

static Ref input_extent(Kernel *k, const Spec *spec, const Input *in, const Dim *d) {
    static const Size of_axis[AX_COUNT] = {[AX_B] = SZ_B, [AX_H] = SZ_HQ, [AX_G] = SZ_HKV, [AX_Q] = SZ_SQ, [AX_K] = SZ_SK};
    if (d->kind == DIM_CONST) return ag_node_int(&k->nodes, d->n.n);
    if (d->axis == AX_D) return ag_output_extent(k, spec, in->values ? SZ_DV : SZ_D);
    return size(k, of_axis[d->axis]);
}

/* The kernel's tensor that stands for `program` and is only read; -1. */
static int find_tensor(const Kernel *k, int program) {
    for (int i = TEN_COUNT; i < k->ntensor; i++)
        if (k->tensor[i].program == program && k->tensor[i].named && !k->tensor[i].output) return i;
    return -1;
}

int ag_output_input(Kernel *k, const Spec *spec, int index, Span at) {
    const Input *in = &spec->input[index];
    KernelTensor t = {.name = ag_str_copy(k->arena, in->name).s,
                      .type = in->type,
                      .rank = in->rank,
                      .used = true,
                      .named = true,
                      .program = ag_program_input(index)};
    if (in->rank > LEN(t.extent)) {
        ag_unsupported(k->d, at, "'%s' has %d dims; kernels of this version of attngen read tensors of at most %d", t.name, in->rank, LEN(t.extent));
        return -1;
    }
    int there = find_tensor(k, t.program);
    if (there >= 0) return there;
    for (int i = 0; i < in->rank; i++) t.extent[i] = input_extent(k, spec, in, &in->dim[i]);
    return ag_kernel_tensor(k, t);
}

static int branch(const OutputPlace *at, int index) {
    Kernel *k = at->k;
    KernelTensor t = k->tensor[TEN_O];
    t.name = ag_str_copy(k->arena, at->spec->branch[index].name).s;
    t.output = t.optional = false;
    t.used = t.named = true;
    t.program = ag_program_result(at->spec, index);
    int there = find_tensor(k, t.program);
    return there >= 0 ? there : ag_kernel_tensor(k, t);
}

/* ---- the syntax tree as kernel nodes */

static Ref row_of(Kernel *k) {
    Ref q = ag_node_leaf(&k->nodes, OP_AXIS, T_INT, AX_Q, (Span){0});
    return ag_fold_node(&k->nodes, (Node){.op = OP_SUB, .arg = {q, size(k, SZ_OFF)}});
}
static Ref row(Lower *x) { return row_of(x->at->k); }

static Ref lower(Lower *x, const Ast *e);

/* An element of an input.  The axis q alone, for a dim of queries, counts rows from 0. */
static Ref lower_load(Lower *x, const Ast *e) {
    const Input *in = &x->at->spec->input[e->index];
    int tensor = ag_output_input(x->at->k, x->at->spec, e->index, e->span);
    Node n = {.op = OP_LOAD, .type = e->type, .index = tensor, .nsub = e->nsub, .span = e->span};
    if (n.index < 0) return ag_fold_node(x->p, (Node){.op = OP_CONST, .value = {.type = e->type}});
    for (int i = 0; i < e->nsub; i++) {
        const Dim *d = &in->dim[i];
        bool queries = d->kind == DIM_AXIS && d->axis == AX_Q, single = d->kind == DIM_CONST && d->n.n == 1;
        bool position = e->sub[i]->op == OP_AXIS && e->sub[i]->index == AX_Q;
        n.sub[i] = single ? ag_node_int(x->p, 0) : queries && position ? row(x) : lower(x, e->sub[i]);
    }
    return ag_node_intern(x->p, n);
}

Ref ag_output_result(const OutputPlace *at, int index, Span span) {
    Nodes *p = &at->k->nodes;
    Node n = {.op = OP_LOAD, .type = T_FLOAT, .index = branch(at, index), .nsub = 4, .span = span};
    n.sub[0] = at->b, n.sub[1] = at->h, n.sub[2] = row_of(at->k), n.sub[3] = ag_node_leaf(p, OP_AXIS, T_INT, AX_D, (Span){0});
    return ag_node_intern(p, n);
}

static Ref lower_branch(Lower *x, int index, Span at) {
    const int *f = x->at->fragment;
    if (f && f[index] != f[x->at->own])
        return ag_node_intern(x->p, (Node){.op = OP_BRANCH, .type = T_FLOAT, .index = 1 + f[index], .axes = 1 << AX_D, .span = at});
    if (!f && index != x->at->own) return ag_output_result(x->at, index, at);
    return x->at->value ? x->at->value : ag_node_intern(x->p, (Node){.op = OP_BRANCH, .type = T_FLOAT, .axes = 1 << AX_D, .span = at});
}

/* The mean weight of a branch for the query. */
static Ref lower_mean(Lower *x, int index, Span at) {
    Kernel *k = x->at->k;
    if (x->at->fragment || index == x->at->own) return ag_kval(k, x->at->mean(x->at->payload, index));
    KernelTensor t = k->tensor[TEN_MEAN];
    t.name = ag_fmt(k->arena, "mean_%.*s", STRF(x->at->spec->branch[index].name)).s;
    t.output = t.optional = false;
    t.used = t.named = true;
    t.program = ag_program_mean(x->at->spec, index);
    int there = find_tensor(k, t.program);
    Node n = {.op = OP_LOAD, .type = T_FLOAT, .index = there >= 0 ? there : ag_kernel_tensor(k, t), .nsub = 3, .span = at};
    n.sub[0] = x->at->b, n.sub[1] = x->at->h, n.sub[2] = row(x);
    return ag_node_intern(x->p, n);
}

static Ref lower_axis(Lower *x, Axis a) {
    switch (a) {
    case AX_B: return x->at->b;
    case AX_H: return x->at->h;
    case AX_G: return x->at->g;
    case AX_K: return row(x); /* in a prologue, of the rows of k */
    default: return axis(x, a);
    }
}

static Ref lower_leaf(Lower *x, const Ast *e) {
    const Spec *s = x->at->spec;
    const Param *p = &s->param[e->op == OP_PARAM ? e->index : 0];
    switch (e->op) {
    case OP_CONST: return ag_node_intern(x->p, (Node){.op = OP_CONST, .value = e->value, .span = e->span});
    case OP_PARAM:
        if (p->bound) return ag_node_intern(x->p, (Node){.op = OP_CONST, .value = p->value, .span = e->span});
        return ag_node_leaf(x->p, OP_PARAM, p->type, e->index, e->span);
    case OP_AXIS: return lower_axis(x, (Axis)e->index);
    case OP_SIZE: return ag_output_extent(x->at->k, s, (Size)e->index);
    case OP_LOAD: return lower_load(x, e);
    case OP_BRANCH: return lower_branch(x, e->index, e->span);
    default: break; /* a let */
    }
    if (!x->let[e->index]) x->let[e->index] = lower(x, s->let[e->index].value);
    return x->let[e->index];
}

static Ref op(Lower *x, Op o, Ref a, Ref b) { return ag_fold_node(x->p, (Node){.op = o, .arg = {a, b}}); }

/* The mean of an expression over the channels. */
static Ref mean(Lower *x, Ref body) {
    return op(x, OP_MUL, ag_kval(x->at->k, x->at->row_sum(x->at->payload, body)), ag_node_float(x->p, 1.0 / x->at->spec->Dv));
}

/* y / sqrt(mean of y^2 + eps) over the channels of a row, and 0 where that root is 0; y = x, or x less its mean. */
static Ref lower_norm(Lower *x, const Ast *e) {
    Ref y = lower(x, e->arg[0]), eps = lower(x, e->arg[1]);
    if (!x->at->row_sum) {
        ag_unsupported(x->at->k->d, e->span, "'%s' is computed in the kernel of the last branch, which has no room for all that this output reads",
                       ag_op[e->op].spelling);
        return y;
    }
    if (e->op == OP_LAYER_NORM) y = op(x, OP_SUB, y, mean(x, y));
    Ref square = op(x, OP_ADD, mean(x, op(x, OP_MUL, y, y)), eps), zero = ag_node_float(x->p, 0);
    Ref some = op(x, OP_NE, square, zero);
    Ref inverse = ag_fold_node(x->p, (Node){.op = OP_SELECT, .arg = {some, op(x, OP_RSQRT, square, 0), zero}, .span = e->span});
    return op(x, OP_MUL, y, inverse);
}

static Ref lower(Lower *x, const Ast *e) {
    if (ag_op_has(e->op, 'L')) return lower_leaf(x, e);
    if (e->op == OP_MEAN) return lower_mean(x, e->arg[0]->index, e->span);
    if (ag_is_norm(e->op)) return lower_norm(x, e);
    Node n = {.op = e->op, .span = e->span};
    for (int i = 0; i < ag_op[e->op].arity; i++) n.arg[i] = lower(x, e->arg[i]);
    return ag_fold_node(x->p, n);
}

Ref ag_output_expr(const OutputPlace *at) {
    Lower x = {.at = at, .p = &at->k->nodes};
    return at->spec->output ? lower(&x, at->spec->output) : lower_branch(&x, 0, (Span){0});
}

Ref ag_output_lower(const OutputPlace *at, const Ast *e) {
    Lower x = {.at = at, .p = &at->k->nodes};
    return lower(&x, e);
}

/* ---- whether it can stand behind the kernel of a branch */

static bool reads(const Spec *s, const Ast *e, int branch, bool *seen) {
    bool found = e->op == OP_BRANCH && e->index == branch;
    if (e->op == OP_LET && !seen[e->index]) {
        seen[e->index] = true;
        found = reads(s, s->let[e->index].value, branch, seen);
    }
    for (int i = 0; i < ag_op[e->op].arity && !found; i++) found = reads(s, e->arg[i], branch, seen);
    for (int i = 0; i < e->nsub && !found; i++) found = reads(s, e->sub[i], branch, seen);
    return found;
}

bool ag_output_fits(const Spec *s, int branch) {
    enum { OTHER_TENSORS = 8, DIMS = 4, OTHER_SLOTS = 8 };
    bool seen[SPEC_MAX_LETS] = {false};
    int tensors = OTHER_TENSORS + s->ninput + s->nbranch + ag_means(s);
    if (tensors > KERNEL_TENSORS || (tensors - 2) * (1 + DIMS) + OTHER_SLOTS + s->nparam > META_SLOTS) return false;
    return s->output && reads(s, s->output, branch, seen);
}
