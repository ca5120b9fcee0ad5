/* spec_prologue.c: `prologue`: what is done to the rows of q and of k before attention reads them. */
#include "spec.h"

#include <float.h>

enum { COSINES, SINES };
enum { MAX_CHANNELS = 256 };

/* A step that is being read. */
typedef struct Place {
    Reader *r;
    RowsOf rows;
    const char *what; /* "prologue of q: rope" */
} Place;

static const char *sub(const Place *at, const char *key) { return ag_fmt(at->r->d->arena, "%s: %s", at->what, key).s; }

/* ---- values */

/* A number from 0 on, or a float parameter that has one, which is fixed at compile time by this. */
static bool read_fixed(const Place *at, const Doc *x, const char *what, FixedFloat *out) {
    Reader *r = at->r;
    const char *names[SPEC_MAX_PARAMS + 1];
    int n = 0;
    if (!ag_spec_scalar(r, x, what, "a number or a float parameter")) return false;
    char c = x->text.n ? x->text.s[0] : '0';
    bool name = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!name && !ag_doc_float(r->d, x, what, &out->x)) return false;
    for (int i = 1; name && i < r->spec->nparam; i++) {
        Param *p = &r->spec->param[i];
        if (p->type != T_FLOAT) continue;
        names[n++] = ag_str_copy(r->d->arena, p->name).s;
        if (!ag_str_eq(p->name, x->text)) continue;
        p->bound = true;
        *out = (FixedFloat){p->value.u.f, i};
    }
    names[n] = NULL;
    if (name && !out->param) {
        ag_spec_unknown(r, x, what, "a number or a float parameter", names);
        return false;
    }
    if (out->x >= 0 && out->x <= FLT_MAX) return true;
    ag_error(r->d, x->span, "%s: expected a number from 0 on", what);
    return false;
}

/* The input that x names; -1 after an error. */
static int read_input(const Place *at, const Doc *x, const char *what) {
    Reader *r = at->r;
    const char *names[SPEC_MAX_INPUTS + 1];
    if (!ag_spec_scalar(r, x, what, "an input")) return -1;
    int i = ag_spec_find_input(r->spec, x->text);
    for (int j = 0; j < r->spec->ninput; j++) names[j] = ag_str_copy(r->d->arena, r->spec->input[j].name).s;
    names[r->spec->ninput] = NULL;
    if (i < 0)
        ag_spec_unknown(r, x, what, "an input", names);
    else
        r->read |= (uint32_t)1 << i;
    return i >= 0 && r->spec->input[i].rank >= 0 ? i : -1;
}

static Ast *axis(const Place *at, Axis a) {
    Ast *e = NEW(at->r->d->arena, Ast);
    *e = (Ast){.op = OP_AXIS, .type = T_INT, .index = (int)a};
    return e;
}

/* The element of an input whose subscripts are to be filled in. */
static Ast *element(const Place *at, int input, Span span) {
    const Input *in = &at->r->spec->input[input];
    Ast *e = NEW(at->r->d->arena, Ast);
    *e = (Ast){.op = OP_LOAD, .type = T_FLOAT, .index = input, .span = span, .name = in->name, .nsub = in->rank};
    e->sub = NEWN(at->r->d->arena, Ast *, (size_t)in->rank + 1);
    return e;
}

static bool is_axis(const Dim *d, Axis a) { return d->kind == DIM_AXIS && d->axis == a && !d->part; }
static bool is_one(const Dim *d) { return d->kind == DIM_CONST && d->n.n == 1; }

/* ---- steps */

static bool read_scale(const Place *at, const Doc *x, RowStep *s) {
    ExprUse use = {.want = T_FLOAT, .rows = at->rows};
    s->factor = ag_spec_expression(at->r, x, at->what, &use);
    return s->factor != NULL;
}

/* One weight for each channel, maybe for each head. */
static bool read_weight(const Place *at, const Doc *x, RowStep *s) {
    const char *what = sub(at, "weight");
    Axis head = at->rows == ROWS_K ? AX_G : AX_H;
    int i = read_input(at, x, what);
    if (i < 0) return false;
    const Input *in = &at->r->spec->input[i];
    bool ok = ag_dtype_value(in->type) == T_FLOAT && in->rank >= 1 && is_axis(&in->dim[in->rank - 1], AX_D);
    for (int j = 0; ok && j < in->rank - 1; j++)
        ok = is_axis(&in->dim[j], AX_B) || is_axis(&in->dim[j], head) || is_axis(&in->dim[j], AX_G) || is_one(&in->dim[j]);
    if (!ok) {
        ag_error(at->r->d, x->span, "%s: expected floats [d] or [%s, d]; '%.*s' is %s", what, ag_axis_name[head], STRF(in->name),
                 ag_spec_type_text(at->r, in));
        return false;
    }
    at->r->in_keys |= (uint32_t)1 << i; /* its d has D channels */
    s->weight = i;
    s->factor = element(at, i, x->span);
    for (int j = 0; j < in->rank; j++) s->factor->sub[j] = axis(at, is_one(&in->dim[j]) ? AX_B : in->dim[j].axis);
    return true;
}

static bool read_norm(const Place *at, const Doc *x, RowStep *s) {
    static const char *const keys[] = {"eps", "weight", NULL};
    if (!ag_spec_map(at->r, x, at->what, "{eps: 1e-6, weight: w}")) return false;
    ag_doc_check_keys(at->r->d, x, at->what, keys);
    const Doc *eps = ag_doc_get(x, "eps"), *weight = ag_doc_get(x, "weight");
    if (!eps) ag_error(at->r->d, x->span, "%s: 'eps' is missing, such as {eps: 1e-6}", at->what);
    bool ok = eps && read_fixed(at, eps, sub(at, "eps"), &s->eps);
    return (!weight || read_weight(at, weight, s)) && ok;
}

/* Cosines or sines: by position and pair. */
static bool read_table(const Place *at, const Doc *x, int which, RowStep *s) {
    const char *what = sub(at, which == COSINES ? "cos" : "sin");
    Reader *r = at->r;
    int i = read_input(at, x, what), pairs = 0;
    if (i < 0) return false;
    const Input *in = &r->spec->input[i];
    bool ok = ag_dtype_value(in->type) == T_FLOAT && in->rank >= 2 && in->dim[in->rank - 1].kind == DIM_CONST;
    Ast *e = element(at, i, x->span);
    for (int j = 0; j < in->rank - 1; j++) {
        const Dim *d = &in->dim[j];
        bool own = is_axis(d, AX_Q) && at->rows == ROWS_Q && s->own_position, position = j == in->rank - 2 && (is_axis(d, AX_K) || own);
        ok &= position || is_axis(d, AX_B) || d->kind == DIM_CONST;
        e->sub[j] = position || (d->kind == DIM_CONST && j == in->rank - 2) ? s->position : axis(at, AX_B);
    }
    if (!ok) {
        ag_error(r->d, x->span, "%s: expected floats [k, N] or [b, k, N], N being the number of pairs; '%.*s' is %s", what, STRF(in->name),
                 ag_spec_type_text(r, in));
        return false;
    }
    pairs = in->dim[in->rank - 1].n.n;
    e->sub[in->rank - 1] = axis(at, AX_D);
    s->table[which] = i;
    s->value[which] = e;
    if (!s->channels.n) s->channels.n = 2 * pairs;
    if (s->channels.n == 2 * pairs) return true;
    ag_error(r->d, x->span,
             "%s: '%.*s' has %d pairs at a position, and %d channels make %d; a table has one value for each pair, not for each channel", what,
             STRF(in->name), pairs, s->channels.n, s->channels.n / 2);
    return false;
}

static bool read_position(const Place *at, const Doc *x, RowStep *s) {
    ExprUse use = {.want = T_NONE, .rows = at->rows};
    const char *what = sub(at, "position");
    s->own_position = x == NULL;
    s->position = x ? ag_spec_expression(at->r, x, what, &use) : axis(at, at->rows == ROWS_K ? AX_K : AX_Q);
    if (!s->position || s->position->type == T_INT) return s->position != NULL;
    ag_error(at->r->d, x->span, "%s: a position is an int; this is %s", what, ag_type_name(s->position->type));
    return false;
}

/* The channels are those of theta or of tables; how many of the row's there are follows from -D. */
static bool check_channels(const Place *at, const Doc *x, RowStep *s) {
    Diag *d = at->r->d;
    const Doc *given = ag_doc_get(x, "channels");
    int D = at->r->spec->D;
    if (!s->channels.n) s->channels.n = D;
    Span span = given ? given->span : x->span;
    if (s->channels.n <= D && s->channels.n % 2 == 0) return true;
    if (s->channels.n > D)
        ag_unsupported(d, span, "%s: %d channels are rotated, and the rows have D = %d", at->what, s->channels.n, D);
    else if (given)
        ag_error(d, span, "%s: %d channels make no pairs; give an even number", at->what, s->channels.n);
    else
        ag_unsupported(d, span, "%s: the rows have D = %d channels, which make no pairs; say how many are rotated, such as channels: %d", at->what, D,
                       D - 1);
    return false;
}

static bool read_rope(const Place *at, const Doc *x, RowStep *s) {
    static const char *const keys[] = {"theta", "cos", "sin", "channels", "style", "position", NULL};
    static const char *const styles[] = {"half", "interleaved", NULL};
    Reader *r = at->r;
    if (!ag_spec_map(r, x, at->what, "{theta: 10000.0}")) return false;
    ag_doc_check_keys(r->d, x, at->what, keys);
    const Doc *theta = ag_doc_get(x, "theta"), *style = ag_doc_get(x, "style"), *channels = ag_doc_get(x, "channels");
    const Doc *table[2] = {ag_doc_get(x, "cos"), ag_doc_get(x, "sin")};
    int which = 0;
    if (!theta == !(table[COSINES] && table[SINES]) || !table[COSINES] != !table[SINES]) {
        ag_error(r->d, x->span, "%s: expected theta, or tables, such as {theta: 10000.0} or {cos: c, sin: s}", at->what);
        return false;
    }
    if (channels && !ag_spec_fixed(r, channels, sub(at, "channels"), 1, MAX_CHANNELS, &s->channels)) return false;
    if (style && !ag_doc_enum(r->d, style, sub(at, "style"), styles, &which)) return false;
    s->interleaved = which == 1;
    if (!read_position(at, ag_doc_get(x, "position"), s)) return false;
    for (int i = COSINES; table[COSINES] && i <= SINES; i++)
        if (!read_table(at, table[i], i, s)) return false;
    if (theta && !read_fixed(at, theta, sub(at, "theta"), &s->theta)) return false;
    if (theta && !(s->theta.x >= 1)) {
        ag_error(r->d, theta->span, "%s: theta is the base of frequencies, from 1 on", at->what);
        return false;
    }
    return check_channels(at, x, s);
}

static const struct {
    const char *key;
    StepKind kind;
    bool (*read)(const Place *, const Doc *, RowStep *);
} step[] = {{"scale", STEP_SCALE, read_scale}, {"rms_norm", STEP_NORM, read_norm}, {"rope", STEP_ROPE, read_rope}};

static void read_step(Reader *r, RowsOf rows, const Doc *x) {
    const char *names[LEN(step) + 1] = {NULL};
    const char *of = rows == ROWS_K ? "k" : "q";
    Prologue *p = ag_prologue(r->spec, rows);
    RowStep s = {.weight = -1, .table = {-1, -1}, .span = x->span};
    for (int i = 0; i < LEN(step); i++) names[i] = step[i].key;
    if (x->kind != DOC_MAP || x->n != 1) {
        ag_error(r->d, x->span, "prologue of %s: expected steps of one entry each: scale, rms_norm or rope, such as {rope: {theta: 10000.0}}", of);
        return;
    }
    ag_doc_check_keys(r->d, x, ag_fmt(r->d->arena, "prologue of %s", of).s, names);
    for (int i = 0; i < LEN(step); i++) {
        if (!ag_str_is(x->key[0]->text, step[i].key)) continue;
        Place at = {r, rows, ag_fmt(r->d->arena, "prologue of %s: %s", of, step[i].key).s};
        s.kind = step[i].kind;
        s.span = x->key[0]->span;
        if (step[i].read(&at, x->item[0], &s)) p->step[p->n++] = s;
    }
}

static void read_steps(Reader *r, RowsOf rows, const Doc *x) {
    if (x->kind != DOC_LIST || !x->n) {
        ag_error(r->d, x->span, "prologue: expected a list of steps, such as [{rope: {theta: 10000.0}}]");
        return;
    }
    if (x->n > PROLOGUE_STEPS) {
        ag_error(r->d, x->item[PROLOGUE_STEPS]->span, "prologue: more than %d steps", PROLOGUE_STEPS);
        return;
    }
    for (int i = 0; i < x->n; i++) read_step(r, rows, x->item[i]);
}

void ag_spec_prologue(Reader *r, const Doc *x) {
    static const char *const keys[] = {"q", "k", "qk", NULL};
    if (!ag_spec_map(r, x, "prologue", "{qk: [{rope: {theta: 10000.0}}]}")) return;
    ag_doc_check_keys(r->d, x, "prologue", keys);
    const Doc *q = ag_doc_get(x, "q"), *k = ag_doc_get(x, "k"), *both = ag_doc_get(x, "qk");
    if (both && (q || k)) {
        ag_error(r->d, ag_spec_key(x, "qk")->span, "prologue: 'qk' is for both; write either that, or 'q' and 'k'");
        return;
    }
    if (!x->n) ag_error(r->d, x->span, "prologue: expected q, k or qk, such as {qk: [{rope: {theta: 10000.0}}]}");
    int before = r->d->nerror;
    if (q || both) read_steps(r, ROWS_Q, q ? q : both);
    if (k || (both && r->d->nerror == before)) read_steps(r, ROWS_K, k ? k : both); /* of what is wrong in both once */
}
