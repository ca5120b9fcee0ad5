/* expr_type.c: resolves the names of an expression, types it, and finds divisions by a constant zero. */
#include "expr.h"

#include <string.h>

/* What is known of a subtree once it is typed. */
typedef struct Known {
    Scalar constant; /* type T_NONE: not known now */
    int levels;
    bool uses_score, uses_key;
} Known;

typedef struct Typing {
    Diag *d;
    const Spec *spec;
    ExprUse *use;
    int nerror;
} Typing;

static Known type_tree(Typing *t, Ast *e);

/* ---- names */

static int index_of(const char *const *names, int n, Str name) {
    for (int i = 0; i < n; i++)
        if (ag_str_is(name, names[i])) return i;
    return -1;
}

static int find_param(const Spec *s, Str name) {
    for (int i = 0; i < s->nparam; i++)
        if (ag_str_eq(s->param[i].name, name)) return i;
    return -1;
}

static int find_let(const Spec *s, Str name) {
    for (int i = 0; i < s->nlet; i++)
        if (ag_str_eq(s->let[i].name, name)) return i;
    return -1;
}

static int find_input(const Spec *s, Str name) {
    for (int i = 0; i < s->ninput; i++)
        if (ag_str_eq(s->input[i].name, name)) return i;
    return -1;
}

static int find_branch(const Spec *s, Str name) {
    for (int i = 0; i < s->nbranch; i++)
        if (ag_str_eq(s->branch[i].name, name)) return i;
    return -1;
}

static bool is_derive(const Spec *s, Str name) {
    for (int i = 0; i < s->nderive; i++)
        if (ag_str_eq(s->derive[i].name, name)) return true;
    return false;
}

bool ag_expr_is_reserved(Str name) {
    bool keyword = false;
    for (int i = 0; ag_expr_keyword[i]; i++) keyword |= ag_str_is(name, ag_expr_keyword[i]);
    return keyword || ag_str_is(name, "s") || ag_str_is(name, "dot") || ag_str_is(name, "sum") || ag_expr_function(name) != OP_COUNT ||
           index_of(ag_axis_name, AX_COUNT, name) >= 0 || index_of(ag_size_name, SZ_COUNT, name) >= 0;
}

static void unknown_name(Typing *t, const Ast *e) {
    const Spec *s = t->spec;
    const char *near[AX_COUNT + SZ_COUNT + SPEC_MAX_PARAMS + SPEC_MAX_LETS + SPEC_MAX_INPUTS + SPEC_MAX_BRANCHES + 2];
    bool output = t->use->output;
    int n = 0;
    for (int i = 0; i < AX_COUNT; i++)
        if (i != (output ? AX_K : AX_D)) near[n++] = ag_axis_name[i];
    for (int i = 0; i < SZ_COUNT; i++) near[n++] = ag_size_name[i];
    for (int i = 0; i < s->nparam; i++) near[n++] = ag_str_copy(t->d->arena, s->param[i].name).s;
    for (int i = 0; i < t->use->nlet; i++) near[n++] = ag_str_copy(t->d->arena, s->let[i].name).s;
    for (int i = 0; i < s->ninput; i++) near[n++] = ag_str_copy(t->d->arena, s->input[i].name).s;
    for (int i = 0; output && i < s->nbranch; i++) near[n++] = ag_str_copy(t->d->arena, s->branch[i].name).s;
    near[n] = NULL;
    const char *hint = ag_nearest(e->name, near);
    Str shown = ag_clip(t->d->arena, e->name);
    if (ag_expr_function(e->name) != OP_COUNT || ag_str_is(e->name, "sum"))
        ag_error(t->d, e->span, "'%.*s' is a function; write %.*s(...)", STRF(shown), STRF(shown));
    else if (hint)
        ag_error(t->d, e->span, "unknown name '%.*s'; did you mean '%s'?", STRF(shown), hint);
    else if (t->use->rows)
        ag_error(t->d, e->span, "unknown name '%.*s'; it is no axis, size, parameter or input, and a prologue sees no lets", STRF(shown));
    else
        ag_error(t->d, e->span, "unknown name '%.*s'; it is no %saxis, size, parameter%s or let", STRF(shown), output ? "branch, " : "",
                 s->ninput ? ", input" : "");
}

/* ---- captured tensors, branches */

/* An input as it is written in an expression: gate[b, q, h, 0]. */
static const char *as_indexed(const Typing *t, const Input *x) {
    Str text = ag_fmt(t->d->arena, "%.*s", STRF(x->name));
    for (int i = 0; i < x->rank; i++) {
        const Dim *d = &x->dim[i];
        Str name = d->part ? t->spec->batch[d->part - 1].name : ag_str(d->kind == DIM_AXIS ? ag_axis_name[d->axis] : "0");
        text = ag_fmt(t->d->arena, "%s%s%.*s", text.s, i ? ", " : "[", STRF(name));
    }
    return ag_fmt(t->d->arena, "%s%s", text.s, x->rank ? "]" : "").s;
}

/* Whether `e`, that names input i, has as many subscripts as it has dims. */
static bool resolve_input(Typing *t, Ast *e, int i) {
    const Input *x = &t->spec->input[i];
    Str shown = ag_clip(t->d->arena, e->name);
    t->use->inputs |= (uint32_t)1 << i;
    if (x->rank < 0) return false; /* reported where it is defined */
    e->op = OP_LOAD, e->index = i, e->type = ag_dtype_value(x->type);
    if (e->nsub == x->rank) return true;
    if (x->rank == 0)
        ag_error(t->d, e->span, "'%.*s' is a single number, without subscripts", STRF(shown));
    else
        ag_error(t->d, e->span, "'%.*s' has %d dim%s, found %d subscript%s; write %s", STRF(shown), x->rank, x->rank == 1 ? "" : "s", e->nsub,
                 e->nsub == 1 ? "" : "s", as_indexed(t, x));
    return false;
}

static bool resolve_branch(Typing *t, Ast *e, int i) {
    t->use->branches |= (uint32_t)1 << i;
    e->op = OP_BRANCH, e->index = i, e->type = T_FLOAT;
    if (t->use->output) return !t->spec->branch[i].bad;
    ag_error(t->d, e->span, "'%.*s' is a branch; only 'output' can use what it gives", STRF(ag_clip(t->d->arena, e->name)));
    return false;
}

/* The name before a bracket. */
static bool resolve_indexed(Typing *t, Ast *e) {
    const Spec *s = t->spec;
    Str name = e->name, shown = ag_clip(t->d->arena, name);
    const char *near[SPEC_MAX_INPUTS + 1];
    int n = 0, i = find_input(s, name);
    if (i >= 0) return resolve_input(t, e, i);
    bool known = ag_expr_is_reserved(name) || find_param(s, name) >= 0 || find_let(s, name) >= 0 || find_branch(s, name) >= 0 || is_derive(s, name);
    for (; n < s->ninput; n++) near[n] = ag_str_copy(t->d->arena, s->input[n].name).s;
    near[n] = NULL;
    const char *hint = known ? NULL : ag_nearest(name, near);
    Span at = {e->span.file, e->span.off, (uint32_t)name.n};
    const char *why = ag_refused(REFUSED_SUBSCRIPT, name);
    if (why)
        ag_unsupported(t->d, e->span, "'%.*s' is the score of this head, query and key, without subscripts: %s", STRF(shown), why);
    else if (known)
        ag_error(t->d, at, "'%.*s' takes no subscripts; only captured tensors, those of 'inputs', do", STRF(shown));
    else if (hint)
        ag_error(t->d, at, "unknown input '%.*s'; did you mean '%s'?", STRF(shown), hint);
    else
        ag_error(t->d, at, "unknown input '%.*s'; captured tensors are declared in 'inputs', such as %.*s: {f32: [b, q]}", STRF(shown), STRF(shown));
    return false;
}

/* An axis in a prologue: those of its rows. */
static bool resolve_row_axis(Typing *t, const Ast *e, Axis a) {
    bool of_k = t->use->rows == ROWS_K, ok = of_k ? a != AX_H && a != AX_Q : a != AX_K;
    if (!ok)
        ag_error(t->d, e->span, "'%s' has no value in the prologue of %s, whose rows are at %s", ag_axis_name[a], of_k ? "k" : "q",
                 of_k ? "[b, g, k, d]" : "[b, h, q, d]");
    return ok;
}

/* ---- */

/* Turns a name into a leaf.  false: reported here or, for a let with errors, where it is defined. */
static bool resolve(Typing *t, Ast *e) {
    const Spec *s = t->spec;
    Str name = e->name;
    int i;
    if (ag_str_is(name, "s")) {
        e->op = OP_SCORE, e->type = T_FLOAT;
        if (t->use->rows) {
            ag_error(t->d, e->span, "'s' has no value in 'prologue'; that is for rows of q and k, of which scores are made after it");
            return false;
        }
        if (t->use->want != T_BOOL && !t->use->output) return true;
        if (t->use->output) {
            ag_error(t->d, e->span, "'s' has no value in 'output'; a score belongs to a query and a key, put this into the 'score' of a branch");
            return false;
        }
        ag_error(t->d, e->span, "'s' cannot be used in a mask; a mask depends on positions only, put what depends on scores into 'score'");
        return false;
    }
    if ((i = index_of(ag_axis_name, AX_COUNT, name)) >= 0) {
        e->op = OP_AXIS, e->index = i, e->type = T_INT;
        if (i == AX_K && t->use->output) {
            ag_error(t->d, e->span, "'k' has no value in 'output'; it combines what the branches give for a query, at [b, q, h, d]");
            return false;
        }
        if (t->use->rows) return resolve_row_axis(t, e, (Axis)i);
        if (i != AX_D || t->use->output) return true;
        ag_error(t->d, e->span, "'d' has no value here; a score belongs to a query and a key, not to a channel (the head dim is 'D')");
        return false;
    }
    if ((i = index_of(ag_size_name, SZ_COUNT, name)) >= 0) {
        e->op = OP_SIZE, e->index = i, e->type = T_INT;
        return true;
    }
    if ((i = ag_spec_find_part(s, name)) >= 0) {
        ag_spec_resolve_part(t->d->arena, s, i, e);
        return true;
    }
    if ((i = find_param(s, name)) >= 0) {
        e->op = OP_PARAM, e->index = i, e->type = s->param[i].type;
        return true;
    }
    if ((i = find_input(s, name)) >= 0) return resolve_input(t, e, i);
    if ((i = find_branch(s, name)) >= 0) return resolve_branch(t, e, i);
    if (is_derive(s, name)) {
        ag_error(t->d, e->span, "'%.*s' is a derived tensor; branches use those by 'keys', 'values' and 'blocks', expressions cannot",
                 STRF(ag_clip(t->d->arena, name)));
        return false;
    }
    if ((i = find_let(s, name)) < 0) {
        unknown_name(t, e);
        return false;
    }
    if (i > t->use->nlet)
        ag_error(t->d, e->span, "'%.*s' is defined further down; a let sees only those above it", STRF(ag_clip(t->d->arena, name)));
    else if (i == t->use->nlet)
        ag_error(t->d, e->span, "'%.*s' is defined by itself", STRF(ag_clip(t->d->arena, name)));
    else if (s->let[i].value && s->let[i].uses_score && t->use->want == T_BOOL)
        ag_error(t->d, e->span, "'%.*s' depends on 's', which cannot be used in a mask", STRF(ag_clip(t->d->arena, name)));
    else if (s->let[i].value && t->use->output && (s->let[i].uses_score || s->let[i].uses_key))
        ag_error(t->d, e->span, "'%.*s' depends on '%s', which has no value in 'output'", STRF(ag_clip(t->d->arena, name)),
                 s->let[i].uses_score ? "s" : "k");
    else if (s->let[i].value) {
        e->op = OP_LET, e->index = i, e->type = s->let[i].value->type;
        return true;
    }
    return false;
}

static Known known_leaf(const Typing *t, const Ast *e) {
    const Spec *s = t->spec;
    Known k = {.levels = 1, .uses_score = e->op == OP_SCORE, .uses_key = e->op == OP_AXIS && e->index == AX_K};
    if (e->op == OP_CONST) k.constant = e->value;
    if (e->op == OP_SIZE && e->index == SZ_D) k.constant = (Scalar){T_INT, {.i = s->D}};
    if (e->op == OP_SIZE && e->index == SZ_DV) k.constant = (Scalar){T_INT, {.i = s->Dv}};
    if (e->op == OP_PARAM && s->param[e->index].bound) k.constant = s->param[e->index].value;
    if (e->op == OP_LET) {
        const Let *l = &s->let[e->index];
        k = (Known){l->constant, 1 + l->depth, l->uses_score, l->uses_key};
    }
    return k;
}

/* Whether `sub` can stand as subscript i of x; where it and the dim are known now, whether it is in range. */
static bool subscript_fits(Typing *t, const Input *x, int i, const Ast *sub, const Known *k) {
    const Dim *dim = &x->dim[i];
    int64_t at = k->constant.u.i;
    if (sub->type == T_NONE) return false;
    if (sub->type != T_INT) {
        ag_error(t->d, sub->span, "a subscript is an int; this is %s%s", ag_type_name(sub->type), sub->type == T_FLOAT ? ", write floor(...)" : "");
        return false;
    }
    if (dim->part && sub->part != dim->part) {
        Str name = t->spec->batch[dim->part - 1].name;
        ag_error(t->d, sub->span, "dim %d of '%.*s' is '%.*s', a part of the batch, and is read at '%.*s' alone", i + 1,
                 STRF(ag_clip(t->d->arena, x->name)), STRF(name), STRF(name));
        return false;
    }
    if (k->constant.type == T_NONE || dim->kind != DIM_CONST || dim->n.n == 1 || (at >= 0 && at < dim->n.n)) return true;
    ag_error(t->d, sub->span, "subscript %lld is out of range; dim %d of '%.*s' has elements 0 to %d", (long long)at, i + 1,
             STRF(ag_clip(t->d->arena, x->name)), dim->n.n - 1);
    return false;
}

/* A captured tensor with its subscripts. */
static Known type_load(Typing *t, Ast *e) {
    const Input *x = &t->spec->input[e->index];
    Known all = {.levels = 1};
    bool ok = true;
    for (int i = 0; i < e->nsub; i++) {
        Known k = type_tree(t, e->sub[i]);
        ok &= subscript_fits(t, x, i, e->sub[i], &k);
        all.uses_score |= k.uses_score;
        all.uses_key |= k.uses_key;
        if (all.levels <= k.levels) all.levels = k.levels + 1;
    }
    if (!ok) e->type = T_NONE;
    return all;
}

/* mean_weight(a): a branch, by name. */
static Known type_mean(Typing *t, Ast *e) {
    Known all = {.levels = 2};
    Ast *x = e->arg[0];
    int i = x->op == OP_VAL ? find_branch(t->spec, x->name) : -1;
    if (!t->use->output)
        ag_error(t->d, e->span, "'mean_weight' has no value here; it is what a branch gives for a query, for 'output' alone");
    else if (i < 0)
        ag_error(t->d, x->span, "'mean_weight' takes the name of a branch that has 'weigh'");
    else if (!t->spec->branch[i].weigh && !t->spec->branch[i].bad)
        ag_error(t->d, x->span, "'%.*s' has no 'weigh' whose mean this could be", STRF(ag_clip(t->d->arena, x->name)));
    else if (resolve_branch(t, x, i))
        e->type = T_FLOAT;
    return all;
}

/* dot(x, y): two inputs, by name alone; in `weigh` an input and k. */
static Known type_dot(Typing *t, Ast *e) {
    Known all = {.levels = 2, .uses_score = true, .uses_key = true};
    for (int i = 0; i < 2; i++) {
        Ast *x = e->arg[i];
        bool keys = x->op == OP_VAL && ag_str_is(x->name, "k");
        if (t->use->weigh && i == 1) {
            if (!keys) ag_error(t->d, x->span, "in 'weigh' 'dot' is the product of an input [b, h, q, d] with k: write k here");
            if (!keys) return all;
            x->op = OP_AXIS, x->index = AX_K, x->type = T_INT;
            continue;
        }
        int input = x->op == OP_VAL ? find_input(t->spec, x->name) : -1;
        if (input < 0) {
            if (t->use->weigh) {
                ag_error(t->d, x->span, "in 'weigh' 'dot' is the product of an input [b, h, q, d], by name, with k%s",
                         x->op == OP_VAL && ag_str_is(x->name, "q") ? "; that of q with k is s / scale" : "");
                return all;
            }
            ag_error(t->d, x->span, "'dot' takes two inputs by name, channels of queries [b, h, q, N] and of keys [b, g, k, N]%s",
                     x->op == OP_VAL && (ag_str_is(x->name, "q") || ag_str_is(x->name, "k")) ? "; the product of q and k is s" : "");
            return all;
        }
        t->use->inputs |= (uint32_t)1 << input;
        x->op = OP_LOAD, x->index = input, x->type = T_FLOAT;
        if (t->spec->input[input].rank < 0) return all;
    }
    if (t->use->want != T_BOOL && !t->use->output && !t->use->rows)
        e->type = T_FLOAT;
    else
        ag_error(t->d, e->span, "'dot' has no value here; it belongs to a query and a key, beside 's' in a score");
    return all;
}

/* ---- operations */

static void promote(Typing *t, Ast **arg, Known *k) {
    if ((*arg)->type != T_INT) return;
    Ast *f = NEW(t->d->arena, Ast);
    *f = (Ast){.op = OP_TOFLOAT, .type = T_FLOAT, .span = (*arg)->span, .arg = {*arg}};
    *arg = f;
    k->levels++;
    if (k->constant.type == T_INT) ag_eval(OP_TOFLOAT, &(Scalar){T_INT, {.i = k->constant.u.i}}, &k->constant);
}

/* "its left side is int and its right side is bool", for the two sides from arg[from] on, or "its argument is bool". */
static Str sides(Typing *t, const Ast *e, int from, int n) {
    const char *a = ag_type_name(e->arg[from]->type);
    if (n == 1) return ag_fmt(t->d->arena, "it is given %s", a);
    const char *b = ag_type_name(e->arg[from + 1]->type);
    if (n == 2 && ag_op[e->op].prec > 1) return ag_fmt(t->d->arena, "its left side is %s and its right side is %s", a, b);
    if (n == 2) return ag_fmt(t->d->arena, "it is given %s and %s", a, b);
    return ag_fmt(t->d->arena, "it is given %s, %s and %s", a, b, ag_type_name(e->arg[from + 2]->type));
}

static Known misfit(Typing *t, const Ast *e, int bad, const char *needs) {
    Str s = sides(t, e, 0, ag_op[e->op].arity);
    ag_error(t->d, e->arg[bad]->span, "'%s' needs %s; %.*s", ag_op[e->op].spelling, needs, STRF(s));
    return (Known){0};
}

/* The first argument from `from` on that is (`is` true) or is not of type `type`; -1 if there is none. */
static int find_type(const Ast *e, int from, Type type, bool is) {
    for (int i = from; i < ag_op[e->op].arity; i++)
        if ((e->arg[i]->type == type) == is) return i;
    return -1;
}

/* Makes the arguments fit the rule of their operation.  false: reported. */
static bool fit(Typing *t, Ast *e, Known *k) {
    OpRule rule = ag_op[e->op].rule;
    int from = rule == RULE_SEL ? 1 : 0, boolean = find_type(e, from, T_BOOL, true), other = find_type(e, from, T_BOOL, false);
    if (rule == RULE_LOG) {
        if (other >= 0) misfit(t, e, other, "conditions, such as x > 0");
        return other < 0;
    }
    if (rule == RULE_SEL && e->arg[0]->type != T_BOOL) {
        ag_error(t->d, e->arg[0]->span, "the condition of 'if' is %s, not bool; compare it with something, such as x > 0",
                 ag_type_name(e->arg[0]->type));
        return false;
    }
    if (rule == RULE_SEL && boolean >= 0 && other >= 0) {
        const char *a = ag_type_name(e->arg[1]->type), *b = ag_type_name(e->arg[2]->type);
        ag_error(t->d, e->arg[2]->span, "the two values of 'if' are %s and %s; both must be numbers or both bool", a, b);
        return false;
    }
    if (rule != RULE_SEL && boolean >= 0) {
        misfit(t, e, boolean, ag_op[e->op].arity == 1 ? "a number" : "numbers");
        return false;
    }
    bool to_float = rule == RULE_FLT || (rule != RULE_TOINT && find_type(e, from, T_FLOAT, true) >= 0);
    for (int i = from; to_float && i < ag_op[e->op].arity; i++) promote(t, &e->arg[i], &k[i]);
    return true;
}

/* Whether `e` divides by a zero that is known now; 0.0 counts, although floats would give infinity. */
static bool divides_by_zero(const Ast *e, const Known *k) {
    bool division = e->op == OP_DIV || e->op == OP_FLOORDIV || e->op == OP_MOD;
    const Scalar *y = &k[1].constant;
    return division && ((y->type == T_INT && y->u.i == 0) || (y->type == T_FLOAT && y->u.f == 0));
}

/* What of an expression of a row differs from channel to channel; NULL. */
static const Ast *by_channel(const Ast *e) {
    if (e->op == OP_MEAN) return NULL;
    if (e->op == OP_BRANCH || (e->op == OP_AXIS && e->index == AX_D)) return e;
    const Ast *found = NULL;
    for (int i = 0; i < ag_op[e->op].arity && !found; i++) found = by_channel(e->arg[i]);
    for (int i = 0; i < e->nsub && !found; i++) found = by_channel(e->sub[i]);
    return found;
}

/* Whether a norm over channels can stand here. */
static bool norm_fits(Typing *t, const Ast *e) {
    const char *name = ag_op[e->op].spelling;
    if (!t->use->output) {
        ag_error(t->d, e->span, "'%s' is over the channels of what branches give; only 'output' has those", name);
        return false;
    }
    const Ast *bad = by_channel(e->arg[1]);
    if (bad) ag_error(t->d, bad->span, "'%s' takes one eps for all channels of a row; this differs from channel to channel", name);
    return !bad;
}

static Known type_operation(Typing *t, Ast *e) {
    int arity = ag_op[e->op].arity;
    Known k[3] = {{.levels = 0}}, all = {.levels = 0};
    bool ok = true, constant = true;
    for (int i = 0; i < arity; i++) {
        k[i] = type_tree(t, e->arg[i]);
        ok &= e->arg[i]->type != T_NONE;
    }
    bool norm = ag_is_norm(e->op);
    if (!ok || !fit(t, e, k) || (norm && !norm_fits(t, e))) return all;
    Type type[3] = {T_NONE, T_NONE, T_NONE};
    Scalar value[3] = {{.type = T_NONE}};
    for (int i = 0; i < arity; i++) {
        type[i] = e->arg[i]->type;
        value[i] = k[i].constant;
        constant &= value[i].type != T_NONE;
        all.uses_score |= k[i].uses_score;
        all.uses_key |= k[i].uses_key;
        if (k[i].levels > all.levels) all.levels = k[i].levels;
    }
    all.levels++;
    e->type = ag_op_type(e->op, type);
    if (divides_by_zero(e, k)) {
        ag_error(t->d, e->arg[1]->span, "division by zero");
        t->nerror++;
    } else if (constant && !norm) {
        ag_eval(e->op, value, &all.constant);
    }
    return all;
}

/* Types `e` in place; leaves T_NONE, and counts nothing twice, where something below it was wrong. */
static Known type_tree(Typing *t, Ast *e) {
    if (e->op == OP_CONST) e->type = e->value.type;
    if ((e->op == OP_VAL && !resolve(t, e)) || (e->op == OP_LOAD && !resolve_indexed(t, e))) {
        e->type = T_NONE;
        return (Known){0};
    }
    Known k = e->op == OP_DOT         ? type_dot(t, e)
              : e->op == OP_MEAN      ? type_mean(t, e)
              : e->op == OP_LOAD      ? type_load(t, e)
              : ag_op_has(e->op, 'L') ? known_leaf(t, e)
                                      : type_operation(t, e);
    if (e->type != T_NONE && k.levels > EXPR_MAX_LEVELS) {
        ag_error(t->d, e->span, "the expression is more than %d operations deep, lets included", EXPR_MAX_LEVELS);
        e->type = T_NONE;
    }
    return k;
}

Ast *ag_expr_type(Diag *d, const Spec *spec, Ast *e, ExprUse *use) {
    Typing t = {d, spec, use, 0};
    Known k = type_tree(&t, e);
    if (e->type == T_NONE || t.nerror) return NULL;
    if (use->want == T_BOOL && e->type != T_BOOL) {
        ag_error(d, e->span, "a mask is a condition, such as k <= q; this is %s", ag_type_name(e->type));
        return NULL;
    }
    if (use->want == T_FLOAT && e->type == T_BOOL) {
        const char *what = use->weigh    ? "a factor of weights is a number; this is bool (write 1 if c else 0)"
                           : use->rows   ? "this is bool where a number is expected (write x if c else y)"
                           : use->output ? "the output is a number; this is bool (write x if c else y)"
                                         : "a score is a number; this is bool (conditions belong into 'mask', or write x if c else y)";
        ag_error(d, e->span, "%s", what);
        return NULL;
    }
    if (use->want == T_FLOAT) promote(&t, &e, &k);
    use->depth = k.levels;
    use->uses_score = k.uses_score;
    use->uses_key = k.uses_key;
    use->constant = k.constant;
    return e;
}
