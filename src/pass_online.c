/* pass_online.c: one pass over the keys with carried state, derived from the algebra of what is reduced.
 *
 * needs lowered, simple, axes     makes stream
 *
 * Every reduction over k that an output needs becomes a carried value.  One whose body reads another reduction M (its reference) has, at each step, summed
 * bodies that were computed with the M of that time.  It can be carried if moving M from old to new multiplies the body by the same number for all k: the
 * laws below find that factor.  For softmax:  x - m is shifted by m.old - m.new,  exp2 turns the shift into a factor,  products keep the factor,  sums let
 * it out.  Where no law applies there is no one-pass form; the error names the expression. */
#include <math.h>
#include <string.h>

#include "compile.h"
#include "law.h"

/* What happens to a value when its references move. */
typedef enum Change {
    C_NONE,   /* nothing */
    C_REF,    /* it is the same for all k, and computed from references alone */
    C_SHIFT,  /* by is added, the same for all k */
    C_FACTOR, /* it is multiplied by `by`, the same for all k */
    C_LOST    /* no law */
} Change;

typedef struct Moved {
    Change change;
    Ref by;
    Ref culprit; /* C_LOST: the innermost value without a law */
} Moved;

typedef struct Online {
    Math *m;
    Nodes *p;
    const Ref *reduction; /* the reductions over k, operands first */
    int n;
    bool old;     /* what `valued` takes: carries before or after the step */
    Moved *moved; /* per node, of the body in hand */
    Str *law;
    int reference;
} Online;

static Ref op2(Online *o, Op op, Ref a, Ref b) { return ag_fold_node(o->p, (Node){.op = op, .arg = {a, b}}); }
static bool per_key(const Online *o, Ref r) { return o->p->n[r].axes & 1 << AX_K; }

static int carry_of(const Online *o, Ref r) {
    for (int i = 0; i < o->n; i++)
        if (o->reduction[i] == r) return i;
    return -1;
}

/* ---- values of references */

/* A kernel carries a value per row, even where it happens to be the same for all rows. */
static uint8_t carry_axes(const Online *o, int carry) { return o->p->n[o->reduction[carry]].axes | AXES_ROW; }

static Ref carry_node(Online *o, int carry, bool old) {
    const Node n = o->p->n[o->reduction[carry]];
    return ag_node_intern(o->p, (Node){.op = OP_CARRY, .type = n.type, .index = carry, .old = old, .axes = carry_axes(o, carry), .span = n.span});
}

static Ref swap_carry(void *payload, Ref r) {
    Online *o = payload;
    int c = carry_of(o, r);
    return c < 0 ? 0 : carry_node(o, c, o->old);
}

/* r with its reductions replaced by the carried values. */
static Ref valued(Online *o, Ref r, bool old) {
    o->old = old;
    return ag_node_rebuild(o->p, o->p, r, swap_carry, o);
}

static Ref swap_body(void *payload, Ref r) {
    Online *o = payload;
    int c = carry_of(o, r);
    return c >= 0 && o->p->n[r].op == OP_RMAX ? o->p->n[r].arg[0] : 0;
}

/* The reference r as it was.  finite(u) may be taken without its guard if x, which it is subtracted from, is -inf for every key while u is -inf: then u.old =
 * -inf gives the factor 0, and what was summed up to then is 0 too.  That is so if x is computed from the maximum's body as u is from the maximum. */
static Ref old_reference(Online *o, Ref x, Ref r) {
    const Node n = o->p->n[r];
    if (n.op != OP_FINITE) return valued(o, r, true);
    bool same_form = ag_node_rebuild(o->p, o->p, n.arg[0], swap_body, o) == x;
    return valued(o, same_form ? n.arg[0] : r, true);
}

/* ---- laws: how an operation moves, from how its operands do */

static Moved lost(Ref r) { return (Moved){C_LOST, 0, r}; }
static Ref minus_one(Online *o, Ref x) { return ag_fold_node(o->p, (Node){.op = OP_NEG, .arg = {x}}); }

/* x - ref: shifted by ref.old - ref.new; ref - x by the opposite. */
static Ref by_reference(Online *o, const Node *n, const Moved *a) {
    int ref = a[0].change == C_REF ? 0 : 1;
    Ref old = old_reference(o, n->arg[1 - ref], n->arg[ref]), now = valued(o, n->arg[ref], false);
    bool down = n->op == OP_SUB && ref == 1;
    return down ? op2(o, OP_SUB, old, now) : op2(o, OP_SUB, now, old);
}
static Ref keep_left(Online *o, const Node *n, const Moved *a) { return (void)o, (void)n, a[0].by; }
static Ref keep_right(Online *o, const Node *n, const Moved *a) { return (void)o, (void)n, a[1].by; }
static Ref keep_second(Online *o, const Node *n, const Moved *a) {
    return (void)o, a[1].by == a[2].by || ag_node_is_float(o->p, n->arg[2], 0) ? a[1].by : 0;
}
static Ref keep_third(Online *o, const Node *n, const Moved *a) { return ag_node_is_float(o->p, n->arg[1], 0) ? a[2].by : 0; }
static Ref opposite_left(Online *o, const Node *n, const Moved *a) { return (void)n, minus_one(o, a[0].by); }
static Ref opposite_right(Online *o, const Node *n, const Moved *a) { return (void)n, minus_one(o, a[1].by); }
static Ref combined(Online *o, const Node *n, const Moved *a) { return op2(o, n->op, a[0].by, a[1].by); }
/* c * (x + by) = c * x + c * by, for c the same for all k. */
static Ref scaled_left(Online *o, const Node *n, const Moved *a) { return per_key(o, n->arg[1]) ? 0 : op2(o, n->op, a[0].by, n->arg[1]); }
static Ref scaled_right(Online *o, const Node *n, const Moved *a) { return per_key(o, n->arg[0]) ? 0 : op2(o, OP_MUL, a[1].by, n->arg[0]); }
static Ref applied(Online *o, const Node *n, const Moved *a) { return op2(o, n->op, a[0].by, 0); }

enum { N = C_NONE, R = C_REF, S = C_SHIFT, F = C_FACTOR };
static const struct {
    Op op;
    int arg[3]; /* Change of each operand */
    Change result;
    Ref (*by)(Online *o, const Node *n, const Moved *a); /* 0: the law does not apply after all */
    const char *text;
} laws[] = {
    {OP_SUB, {N, R}, C_SHIFT, by_reference, "x - m is shifted"},
    {OP_SUB, {R, N}, C_SHIFT, by_reference, "m - x is shifted"},
    {OP_ADD, {N, R}, C_SHIFT, by_reference, "x + m is shifted"},
    {OP_ADD, {R, N}, C_SHIFT, by_reference, "m + x is shifted"},
    {OP_ADD, {S, N}, C_SHIFT, keep_left, NULL}, /* (x + d) + y = (x + y) + d */
    {OP_ADD, {N, S}, C_SHIFT, keep_right, NULL},
    {OP_ADD, {S, S}, C_SHIFT, combined, NULL},
    {OP_SUB, {S, N}, C_SHIFT, keep_left, NULL},
    {OP_SUB, {N, S}, C_SHIFT, opposite_right, NULL},
    {OP_SUB, {S, S}, C_SHIFT, combined, NULL},
    {OP_NEG, {S}, C_SHIFT, opposite_left, NULL}, /* -(x + d) = -x - d */
    {OP_MUL, {S, N}, C_SHIFT, scaled_left, NULL},
    {OP_MUL, {N, S}, C_SHIFT, scaled_right, NULL},
    {OP_DIV, {S, N}, C_SHIFT, scaled_left, NULL},
    {OP_EXP2, {S}, C_FACTOR, applied, "exp2 makes the shift a factor"}, /* exp2(x + d) = exp2(x) * exp2(d) */
    {OP_EXP, {S}, C_FACTOR, applied, "exp makes the shift a factor"},
    {OP_MUL, {F, N}, C_FACTOR, keep_left, "a product keeps it"}, /* (x f) y = (x y) f */
    {OP_MUL, {N, F}, C_FACTOR, keep_right, "a product keeps it"},
    {OP_MUL, {F, F}, C_FACTOR, combined, "factors multiply"},
    {OP_DIV, {F, N}, C_FACTOR, keep_left, "a quotient keeps it"},
    {OP_NEG, {F}, C_FACTOR, keep_left, NULL},
    {OP_ADD, {F, F}, C_FACTOR, NULL, "a sum of equals keeps it"}, /* x f + y f = (x + y) f */
    {OP_SUB, {F, F}, C_FACTOR, NULL, "a sum of equals keeps it"},
    {OP_SELECT, {N, F, N}, C_FACTOR, keep_second, "a mask keeps it"}, /* select(c, x f, 0) = select(c, x, 0) f */
    {OP_SELECT, {N, N, F}, C_FACTOR, keep_third, "a mask keeps it"},
    {OP_SELECT, {N, F, F}, C_FACTOR, keep_second, "a mask keeps it"},
};

static void cite(Online *o, const char *text) {
    if (!text || (o->law->n && strstr(o->law->s, text))) return;
    *o->law = ag_fmt(o->p->arena, "%s%s%s", o->law->n ? o->law->s : "", o->law->n ? ", " : "", text);
}

static Moved by_law(Online *o, Ref r, const Moved *a) {
    const Node n = o->p->n[r];
    for (int i = 0; i < LEN(laws); i++) {
        bool fits = laws[i].op == n.op;
        for (int k = 0; k < ag_op[n.op].arity && fits; k++) fits = laws[i].arg[k] == (int)a[k].change;
        if (!fits) continue;
        Ref by = laws[i].by ? laws[i].by(o, &n, a) : a[0].by == a[1].by ? a[0].by : 0;
        if (!by) continue;
        cite(o, laws[i].text);
        return (Moved){laws[i].result, by, 0};
    }
    return lost(r);
}

/* Of r, from its operands, which are known. */
static Moved move_of(Online *o, Ref r) {
    const Node *n = &o->p->n[r];
    Moved a[3] = {{0}};
    bool moves = false, alike = !per_key(o, r);
    if (carry_of(o, r) >= 0) return (Moved){C_REF, 0, 0};
    for (int i = 0; i < ag_op[n->op].arity; i++) {
        a[i] = o->moved[n->arg[i]];
        if (a[i].change == C_LOST) return a[i];
        moves |= a[i].change != C_NONE;
        alike &= a[i].change <= C_REF;
    }
    if (!moves) return (Moved){C_NONE, 0, 0};
    if (n->op == OP_RSUM || n->op == OP_RMAX) return lost(r); /* over another axis, of something that moves */
    Moved found = by_law(o, r, a);
    if (found.change != C_LOST) return found;
    return alike ? (Moved){C_REF, 0, 0} : found;
}

/* How `body` moves with the references it reads. */
static Moved analyse(Online *o, Ref body) {
    o->moved = NEWN(o->p->arena, Moved, (size_t)body + 1);
    bool *want = NEWN(o->p->arena, bool, (size_t)body + 1);
    want[body] = true;
    for (Ref r = body; r > 0; r--) {
        if (!want[r] || carry_of(o, r) >= 0) continue;
        for (int i = 0; i < 3; i++) want[o->p->n[r].arg[i]] = true;
    }
    for (Ref r = 1; r <= body; r++) {
        if (!want[r]) continue;
        o->moved[r] = move_of(o, r);
        int c = carry_of(o, r);
        if (c >= 0 && o->reference < 0) o->reference = c;
    }
    return o->moved[body];
}

/* ---- carries */

static Span nearest_span(const Online *o, Ref r, Ref fallback) {
    Span at = o->p->n[r].span;
    for (int i = 0; i < 3 && !at.file; i++) at = o->p->n[o->p->n[r].arg[i]].span;
    if (!at.file) at = o->p->n[fallback].span;
    return at.file ? at : o->m->spec->span;
}

/* For a message: what is deeper than a few operations is not printed. */
typedef struct Shorten {
    const Math *m;
    int left;
} Shorten;

static const char *shorten(void *payload, const Node *n) {
    Shorten *s = payload;
    if (n->op == OP_LOAD && n->index >= TEN_COUNT) return ag_str_copy(s->m->nodes.arena, s->m->spec->input[n->index - TEN_COUNT].name).s;
    if (n->op == OP_LOAD) return s->m->tensor[n->index].name;
    if (n->op == OP_PARAM) return ag_str_copy(s->m->nodes.arena, s->m->spec->param[n->index].name).s;
    return ag_op[n->op].arity && --s->left < 0 ? "..." : NULL;
}

static void refuse(Online *o, Ref reduction, Ref culprit) {
    Buf text = {0};
    Shorten s = {o->m, 8};
    ag_node_print(&text, o->p, culprit, shorten, &s);
    Str what = ag_clip(o->p->arena, ag_str_copy(o->p->arena, (Str){text.s ? text.s : "", (int)text.n}));
    ag_buf_free(&text);
    ag_unsupported(o->m->d, nearest_span(o, culprit, reduction),
                   "no one-pass form: a %s over the keys reads another result over the keys through `%.*s`, and no law says how that changes it",
                   o->p->n[reduction].op == OP_RMAX ? "maximum" : "sum", STRF(what));
}

typedef enum Kind { MAXIMUM, WEIGHT, ACCUMULATOR } Kind;
static Kind kind_of(const Online *o, int carry) {
    const Node *n = &o->p->n[o->reduction[carry]];
    return n->op == OP_RMAX ? MAXIMUM : n->axes & 1 << AX_D ? ACCUMULATOR : WEIGHT;
}

/* By role; a number follows where there are more of a kind. */
static Str name_of(Online *o, int carry) {
    static const char *const name[] = {"mx", "den", "acc"};
    Kind kind = kind_of(o, carry);
    int before = 0;
    for (int i = 0; i < carry; i++) before += kind_of(o, i) == kind;
    return before ? ag_fmt(o->p->arena, "%s%d", name[kind], before + 1) : ag_str(name[kind]);
}

static Carry derive(Online *o, int carry) {
    Ref r = o->reduction[carry];
    const Node n = o->p->n[r];
    Str law = STR("");
    o->law = &law;
    o->reference = -1;
    Carry c = {.name = name_of(o, carry),
               .combine = n.op,
               .reduce = r,
               .reference = -1,
               .init = n.op == OP_RMAX ? -INFINITY : 0,
               .axes = carry_axes(o, carry)};
    Moved moved = analyse(o, n.arg[0]);
    if (moved.change == C_FACTOR && n.op == OP_RSUM) {
        c.factor = moved.by;
        c.reference = o->reference;
        cite(o, "the sum lets it out");
    } else if (moved.change != C_NONE) {
        refuse(o, r, moved.change == C_LOST ? moved.culprit : n.arg[0]);
    }
    c.law = law;
    c.body = valued(o, n.arg[0], false);
    return c;
}

void ag_pass_online(Fn *fn) {
    Math *m = fn->math;
    Nodes *p = &m->nodes;
    Ref *reduction = NEWN(fn->d->arena, Ref, (size_t)p->len);
    Online o = {.m = m, .p = p, .reduction = reduction};
    for (Ref r = 1; r < p->len; r++) /* operands come before their users */
        if ((p->n[r].op == OP_RSUM || p->n[r].op == OP_RMAX) && p->n[r].index == AX_K) reduction[o.n++] = r;
    if (o.n == 0) return;
    Stream *s = NEW(fn->d->arena, Stream);
    *s = (Stream){AX_K, NEWN(fn->d->arena, Carry, (size_t)o.n), o.n};
    for (int i = 0; i < o.n; i++) s->carry[i] = derive(&o, i);
    ag_stop_if_errors(fn->d);
    for (int i = 0; i < m->nout; i++) m->out[i].value = valued(&o, m->out[i].value, false);
    m->stream = s;
    m->nstream = 1;
    Nodes compact;
    ag_nodes_init(&compact, fn->d->arena);
    ag_math_rebuild(m, &compact, NULL, NULL);
}
