/* spec.c: the spec: a table of fields, names, and what may be bound at compile time. */
#include "spec.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { MAX_NAME = 59 /* with "_fwd" a symbol of 63 */, MAX_GROUP = 1024, MAX_HEAD_DIM = 256 };

/* ---- names */

static bool is_identifier(Str s) {
    for (int i = 0; i < s.n; i++) {
        char c = s.s[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && !(i > 0 && c >= '0' && c <= '9')) return false;
    }
    return s.n > 0 && s.n <= MAX_NAME;
}

static bool is_one_of(Str s, const char *const *names) {
    for (; *names; names++)
        if (ag_str_is(s, *names)) return true;
    return false;
}

/* Arguments of every kernel, and what else is bound by name. */
static const char *const argument[] = {"o", "v", "lse", "scale", "dtype", "group", "queries", NULL};
/* Words that C++ keeps for itself: the generated code carries the spec's names. */
static const char *const cxx_keyword[] = {
    "alignas",  "alignof",   "asm",          "auto",     "bool",      "break",     "case",     "catch",    "char",        "class",
    "const",    "constexpr", "const_cast",   "continue", "decltype",  "default",   "delete",   "do",       "double",      "dynamic_cast",
    "enum",     "explicit",  "export",       "extern",   "float",     "for",       "friend",   "goto",     "inline",      "int",
    "long",     "mutable",   "namespace",    "new",      "noexcept",  "nullptr",   "operator", "private",  "protected",   "public",
    "register", "return",    "short",        "signed",   "sizeof",    "static",    "struct",   "switch",   "static_cast", "static_assert",
    "template", "this",      "thread_local", "throw",    "try",       "typedef",   "typeid",   "typename", "union",       "unsigned",
    "using",    "virtual",   "void",         "volatile", "wchar_t",   "while",     "char8_t",  "char16_t", "char32_t",    "reinterpret_cast",
    "co_await", "co_return", "co_yield",     "concept",  "consteval", "constinit", "requires", "bitand",   "bitor",       "compl",
    "and_eq",   "or_eq",     "xor",          "xor_eq",   "not_eq",    NULL};

/* What the spec has under this name already, in words; NULL if nothing. */
static const char *taken(const Reader *r, Str name) {
    const Spec *s = r->spec;
    if (ag_spec_find_part(s, name) >= 0) return "a part of the batch";
    for (int i = 1; i < s->nparam; i++)
        if (ag_str_eq(s->param[i].name, name)) return "a parameter";
    if (ag_spec_find_input(s, name) >= 0) return "an input";
    if (ag_spec_find_derive(s, name) >= 0) return "a derived tensor";
    return ag_spec_find_branch(s, name) >= 0 ? "a branch" : NULL;
}

bool ag_spec_check_name(Reader *r, const Doc *key) {
    Str name = key->text, shown = ag_clip(r->d->arena, name);
    const char *other = taken(r, name);
    if (!is_identifier(name))
        ag_error(r->d, key->span, "'%.*s' cannot be a name; names are letters, digits and '_', at most %d", STRF(shown), MAX_NAME);
    else if (ag_expr_is_reserved(name))
        ag_error(r->d, key->span, "'%.*s' cannot be defined; it is an axis, size, function or keyword of the language", STRF(shown));
    else if (is_one_of(name, argument))
        ag_error(r->d, key->span, "'%.*s' cannot be defined; every kernel has an argument of this name", STRF(shown));
    else if (is_one_of(name, cxx_keyword) || (name.n > 1 && name.s[0] == '_' && name.s[1] == '_'))
        ag_error(r->d, key->span, "'%.*s' cannot be defined; the generated code is C++, which keeps this name for itself", STRF(shown));
    else if (other)
        ag_error(r->d, key->span, "'%.*s' is %s already", STRF(shown), other);
    else
        return true;
    return false;
}

/* ---- fields */

bool ag_spec_scalar(Reader *r, const Doc *x, const char *what, const char *expected) {
    if (x->kind == DOC_SCALAR) return true;
    ag_error(r->d, x->span, "%s: expected %s, found a %s", what, expected, x->kind == DOC_MAP ? "map" : "list");
    return false;
}

bool ag_spec_map(Reader *r, const Doc *x, const char *what, const char *example) {
    if (x->kind == DOC_MAP) return true;
    ag_error(r->d, x->span, "%s: expected a map, such as %s", what, example);
    return false;
}

const Doc *ag_spec_key(const Doc *x, const char *key) {
    for (int i = 0; i < x->n; i++)
        if (ag_str_is(x->key[i]->text, key)) return x->key[i];
    return NULL;
}

void ag_spec_unknown(Reader *r, const Doc *x, const char *what, const char *expected, const char *const *names) {
    const char *hint = ag_nearest(x->text, names);
    ag_error(r->d, x->span, "%s: expected %s, found '%s'%s%s%s", what, expected, ag_clip(r->d->arena, x->text).s, hint ? "; did you mean '" : "",
             hint ? hint : "", hint ? "'?" : "");
}

/* The int parameter that x names; reports otherwise. */
static int int_param(Reader *r, const Doc *x, const char *what) {
    const Spec *s = r->spec;
    const char *names[SPEC_MAX_PARAMS + 1];
    int n = 0;
    for (int i = 1; i < s->nparam; i++) {
        const Param *p = &s->param[i];
        if (p->part) continue;
        if (!ag_str_eq(p->name, x->text)) {
            if (p->type == T_INT) names[n++] = ag_str_copy(r->d->arena, p->name).s;
            continue;
        }
        if (p->type == T_INT) return i;
        ag_error(r->d, x->span, "%s: expected an int, '%s' is a %s", what, ag_clip(r->d->arena, x->text).s, ag_type_name(p->type));
        return 0;
    }
    names[n] = NULL;
    ag_spec_unknown(r, x, what, "a whole number or an int parameter", names);
    return 0;
}

bool ag_spec_fixed(Reader *r, const Doc *x, const char *what, int min, int max, Fixed *out) {
    int64_t v = 0;
    if (!ag_spec_scalar(r, x, what, "a whole number or an int parameter")) return false;
    if (x->quoted || !is_identifier(x->text)) {
        bool ok = ag_doc_int(r->d, x, what, min, max, &v);
        if (ok) *out = (Fixed){(int)v, 0};
        return ok;
    }
    int i = int_param(r, x, what);
    if (!i) return false;
    Param *p = &r->spec->param[i];
    p->bound = true;
    if (p->value.u.i >= min && p->value.u.i <= max) {
        *out = (Fixed){(int)p->value.u.i, i};
        return true;
    }
    ag_error(r->d, x->span, "%s: '%.*s' is %lld, expected %d to %d", what, STRF(p->name), (long long)p->value.u.i, min, max);
    return false;
}

static void read_attention(Reader *r, const Doc *x) {
    if (!ag_spec_scalar(r, x, "attention", "a name")) return;
    r->spec->name = x->text;
    r->spec->span = x->span;
    if (!is_identifier(x->text))
        ag_error(r->d, x->span, "attention: '%.*s' cannot be a name; names are letters, digits and '_', at most %d",
                 STRF(ag_clip(r->d->arena, x->text)), MAX_NAME);
}

static void read_doc(Reader *r, const Doc *x) {
    if (ag_spec_scalar(r, x, "doc", "text")) r->spec->doc = x->text;
}

static bool is_integer(Str s) {
    int i = s.n > 0 && (s.s[0] == '+' || s.s[0] == '-');
    int first = i;
    while (i < s.n && s.s[i] >= '0' && s.s[i] <= '9') i++;
    return i == s.n && i > first;
}

static bool float_in_range(double v) { return fabs(v) <= FLT_MAX; }

static bool read_number(Reader *r, const Doc *x, const char *what, Type type, Scalar *out) {
    int64_t i = 0;
    double f = 0;
    if (type == T_INT) {
        if (!ag_doc_int(r->d, x, what, -PARAM_INT_MAX, PARAM_INT_MAX, &i)) return false;
        *out = (Scalar){T_INT, {.i = i}};
        return true;
    }
    if (!ag_doc_float(r->d, x, what, &f)) return false;
    *out = (Scalar){T_FLOAT, {.f = f}};
    if (float_in_range(f)) return true;
    ag_error(r->d, x->span, "%s: %.*s is out of range; floats have 32 bits, up to 3.4e38", what, STRF(ag_clip(r->d->arena, x->text)));
    return false;
}

/* name: {float: 1.5}, name: {int: 3}; or short, name: 1.5, name: 3. */
static void read_param(Reader *r, const Doc *key, const Doc *x) {
    static const char *const types[] = {"float", "int", NULL};
    if (!ag_spec_check_name(r, key)) return;
    const char *what = ag_fmt(r->d->arena, "parameter '%.*s'", STRF(key->text)).s;
    Type type = x->kind == DOC_SCALAR && is_integer(x->text) ? T_INT : T_FLOAT;
    const Doc *value = x;
    if (x->kind != DOC_SCALAR) {
        if (x->kind == DOC_MAP) ag_doc_check_keys(r->d, x, what, types);
        if (x->kind != DOC_MAP || x->n != 1) {
            ag_error(r->d, x->span, "%s: expected a number, {float: 1.5} or {int: 3}", what);
            return;
        }
        type = ag_str_is(x->key[0]->text, "int") ? T_INT : T_FLOAT;
        value = x->item[0];
        if (!is_one_of(x->key[0]->text, types)) return;
    }
    Param p = {.name = key->text, .type = type, .span = key->span};
    if (!read_number(r, value, what, type, &p.value)) p.value = (Scalar){type, {.i = 0}};
    r->spec->param[r->spec->nparam++] = p;
}

static void read_params(Reader *r, const Doc *x) {
    if (!ag_spec_map(r, x, "params", "{cap: {float: 50.0}}")) return;
    for (int i = 0; i < x->n; i++) {
        if (r->spec->nparam == SPEC_MAX_PARAMS) {
            ag_error(r->d, x->key[i]->span, "params: more than %d parameters", SPEC_MAX_PARAMS - 1);
            return;
        }
        read_param(r, x->key[i], x->item[i]);
    }
}

static void read_heads(Reader *r, const Doc *x) {
    static const char *const keys[] = {"group", NULL};
    int64_t group = 0;
    if (!ag_spec_map(r, x, "heads", "{group: 8}")) return;
    ag_doc_check_keys(r->d, x, "heads", keys);
    const Doc *g = ag_doc_get(x, "group");
    if (!x->n) ag_error(r->d, x->span, "heads: expected {group: N}, the number of query heads per KV head");
    if (!g || !ag_doc_int(r->d, g, "heads.group", 1, MAX_GROUP, &group)) return;
    r->spec->group = (int)group;
    r->spec->group_span = g->span;
}

static void read_scale(Reader *r, const Doc *x) {
    Param *p = &r->spec->param[0];
    p->span = x->span;
    if (!read_number(r, x, "scale", T_FLOAT, &p->value)) return;
    r->spec->scale_given = true;
    if ((float)p->value.u.f > 0) return;
    ag_error(r->d, x->span, "scale: expected a positive number, found %.*s (to turn scores around, write 'score: -s')",
             STRF(ag_clip(r->d->arena, x->text)));
}

Ast *ag_spec_expression(Reader *r, const Doc *x, const char *what, ExprUse *use) {
    if (!ag_spec_scalar(r, x, what, "an expression")) return NULL;
    Ast *e = ag_expr_parse(r->d, x);
    if (e) e = ag_expr_type(r->d, r->spec, e, use);
    r->read |= use->inputs;
    return e;
}

/* All names are entered before the first value is read, so that a use before its definition is told from an unknown name. */
static void read_lets(Reader *r, const Doc *x) {
    Spec *s = r->spec;
    if (!ag_spec_map(r, x, "let", "{distance: q - k}")) return;
    if (x->n > SPEC_MAX_LETS) {
        ag_error(r->d, x->key[SPEC_MAX_LETS]->span, "let: more than %d names", SPEC_MAX_LETS);
        return;
    }
    s->let = NEWN(r->d->arena, Let, (size_t)x->n);
    for (int i = 0; i < x->n; i++) {
        ag_spec_check_name(r, x->key[i]);
        s->let[s->nlet++] = (Let){.name = x->key[i]->text, .span = x->key[i]->span};
    }
    for (int i = 0; i < x->n; i++) {
        ExprUse use = {.want = T_NONE, .nlet = i};
        const char *what = ag_fmt(r->d->arena, "let '%.*s'", STRF(ag_clip(r->d->arena, s->let[i].name))).s;
        Ast *value = ag_spec_expression(r, x->item[i], what, &use);
        s->let[i] = (Let){s->let[i].name, value, s->let[i].span, use.depth, use.uses_score, use.constant, use.uses_key};
    }
}

static void read_score(Reader *r, const Doc *x) {
    r->spec->score = ag_spec_expression(r, x, "score", &(ExprUse){.want = T_FLOAT, .nlet = r->spec->nlet});
}

static void read_mask(Reader *r, const Doc *x) {
    r->spec->mask = ag_spec_expression(r, x, "mask", &(ExprUse){.want = T_BOOL, .nlet = r->spec->nlet});
}

/* An expression of a denominator: one number for each query. */
static Ast *read_term(Reader *r, const Doc *x, const char *what) {
    ExprUse use = {.want = T_FLOAT, .nlet = r->spec->nlet};
    Ast *e = ag_spec_expression(r, x, what, &use);
    if (e && (use.uses_score || use.uses_key))
        ag_error(r->d, x->span, "%s: this depends on '%s'; the term is one for each query", what, use.uses_score ? "s" : "k");
    return e;
}

/* {softmax: {plus: EXPR}} */
static void read_plus(Reader *r, const Doc *x) {
    static const char *const keys[] = {"plus", NULL};
    const char *what = "normalize.softmax.plus";
    const Doc *plus = x->kind == DOC_MAP ? ag_doc_get(x, "plus") : NULL;
    if (x->kind == DOC_MAP) ag_doc_check_keys(r->d, x, "normalize.softmax", keys);
    if (!plus && (x->kind != DOC_MAP || !x->n))
        ag_error(r->d, x->span,
                 "normalize.softmax: expected {plus: EXPRESSION}, what the denominator has besides; plain softmax is written 'normalize: softmax'");
    if (plus) r->spec->plus = read_term(r, plus, what);
}

/* {sum: {eps: EXPR}} */
static void read_eps(Reader *r, const Doc *x) {
    static const char *const keys[] = {"eps", NULL};
    const Doc *eps = x->kind == DOC_MAP ? ag_doc_get(x, "eps") : NULL;
    if (x->kind == DOC_MAP) ag_doc_check_keys(r->d, x, "normalize.sum", keys);
    if (!eps && (x->kind != DOC_MAP || !x->n))
        ag_error(r->d, x->span, "normalize.sum: expected {eps: EXPRESSION}, what is added to the sum; a plain sum is written 'normalize: sum'");
    if (eps) r->spec->eps = read_term(r, eps, "normalize.sum.eps");
}

/* One dot, of rows like those of q. */
static void check_weigh_dots(Reader *r, const Doc *x, const char *what, const Ast *e, int *rows) {
    for (int i = 0; i < ag_op[e->op].arity && e->op != OP_DOT; i++) check_weigh_dots(r, x, what, e->arg[i], rows);
    if (e->op != OP_DOT) return;
    int input = e->arg[0]->index;
    if (!ag_spec_input_is_rows(r, x, what, input, true)) return;
    r->in_queries |= (uint32_t)1 << input;
    if (*rows >= 0 && *rows != input) ag_unsupported(r->d, e->span, "%s: more than one dot is not in this version of attngen", what);
    *rows = input;
}

Ast *ag_spec_weigh(Reader *r, const Doc *x, const char *what) {
    int rows = -1;
    Ast *e = ag_spec_expression(r, x, what, &(ExprUse){.want = T_FLOAT, .weigh = true, .nlet = r->spec->nlet});
    if (e) check_weigh_dots(r, x, what, e, &rows);
    return e;
}

static void read_weigh(Reader *r, const Doc *x) { r->spec->weigh = ag_spec_weigh(r, x, "weigh"); }

/* rows: [lse, max] */
static void read_rows(Reader *r, const Doc *x) {
    Spec *s = r->spec;
    int which = 0;
    s->rows_given = true;
    if (x->kind != DOC_LIST) {
        ag_error(r->d, x->span, "rows: expected a list of lse, max and mean_weight, such as [lse, max]");
        return;
    }
    if (s->nbranch)
        ag_unsupported(r->d, x->span, "rows: specs with branches put out O alone, or with one branch its LSE, in this version of attngen");
    for (int i = 0; i < x->n; i++) {
        const Doc *y = x->item[i];
        if (!ag_spec_scalar(r, y, "rows", "lse, max or mean_weight") || !ag_doc_enum(r->d, y, "rows", ag_row_value_name, &which)) continue;
        if (s->rows >> which & 1) ag_error(r->d, y->span, "rows: %s is there twice", ag_row_value_name[which]);
        if (s->normalize != NORMALIZE_SOFTMAX)
            ag_unsupported(r->d, y->span, "rows: %s is of a softmax; here scores are weights", ag_row_value_name[which]);
        if (which == ROWV_MEAN && !s->weigh) ag_error(r->d, y->span, "rows: mean_weight is the mean of 'weigh', and there is none");
        s->rows |= 1u << which;
    }
}

static void read_normalize(Reader *r, const Doc *x) {
    static const char *const known[] = {"softmax", "sum", "none", NULL}; /* in the order of Normalize */
    int which = 0;
    bool map = x->kind == DOC_MAP && x->n == 1, softmax = map && ag_str_is(x->key[0]->text, "softmax"),
         sum = map && ag_str_is(x->key[0]->text, "sum");
    if (x->kind == DOC_SCALAR && !ag_doc_enum(r->d, x, "normalize", known, &which)) return;
    if (x->kind != DOC_SCALAR && !softmax && !sum) {
        ag_error(r->d, x->span, "normalize: expected softmax, sum, none, {softmax: {plus: EXPRESSION}} or {sum: {eps: EXPRESSION}}");
        return;
    }
    r->spec->normalize = sum ? NORMALIZE_SUM : (Normalize)which;
    if (softmax) read_plus(r, x->item[0]);
    if (sum) read_eps(r, x->item[0]);
}

static void read_normalize_unless_refused(Reader *r, const Doc *x) {
    const Doc *name = x->kind == DOC_MAP && x->n == 1 ? x->key[0] : x;
    const char *why = name->kind == DOC_SCALAR ? ag_refused(REFUSED_NORMALIZER, name->text) : NULL;
    if (why)
        ag_unsupported(r->d, name->span, "normalize: '%.*s' has no kernel: %s", STRF(name->text), why);
    else
        read_normalize(r, x);
}

static void read_branch_expressions(Reader *r, const Doc *x) {
    (void)x;
    ag_spec_branch_expressions(r);
}

/* In the order in which they are read: what is named comes before the expressions that name it. */
static const struct {
    const char *key;
    void (*read)(Reader *, const Doc *);
    bool late; /* depends on values: read once the parameters are bound */
} field[] = {
    {"attention", read_attention, false},
    {"doc", read_doc, false},
    {"params", read_params, false},
    {"batch", ag_spec_batch, false},
    {"heads", read_heads, false},
    {"scale", read_scale, false},
    {"inputs", ag_spec_inputs, true},
    {"prologue", ag_spec_prologue, true},
    {"derive", ag_spec_derive, true},
    {"branches", ag_spec_branches, true},
    {"let", read_lets, true},
    {"score", read_score, true},
    {"mask", read_mask, true},
    {"weigh", read_weigh, true},
    {"branches", read_branch_expressions, true},
    {"output", ag_spec_output, true},
    {"normalize", read_normalize_unless_refused, true},
    {"rows", read_rows, true},
};

static void read_fields(Reader *r, bool late) {
    for (int i = 0; i < LEN(field); i++) {
        const Doc *x = field[i].late == late ? ag_doc_get(r->root, field[i].key) : NULL;
        if (x) field[i].read(r, x);
    }
}

/* ---- what is bound at compile time; these messages have no place in a file */

static const Span nowhere = {0, 0, 0};

static bool bind_head_dim(Reader *r, const attngen_dim *dim, int *out) {
    double v = dim->value;
    if (!(v == floor(v)) || isinf(v)) {
        ag_error(r->d, nowhere, "%s: a head dim is a whole number", dim->name);
        return false;
    }
    if (v < 1 || v > MAX_HEAD_DIM) {
        ag_unsupported(r->d, nowhere, "head dim %.0f (%s): this version handles 1 to %d", v, dim->name, MAX_HEAD_DIM);
        return false;
    }
    *out = (int)v;
    return true;
}

/* Query heads per KV head, as heads.group says them in the file. */
static void bind_group(Reader *r, const attngen_dim *dim) {
    Spec *s = r->spec;
    double v = dim->value;
    if (!(v >= 1 && v <= MAX_GROUP && v == floor(v)))
        ag_error(r->d, nowhere, "group: expected a whole number of query heads per KV head, from 1 to %d", MAX_GROUP);
    else if (s->group && s->group != (int)v)
        ag_error(r->d, s->group_span, "heads.group is %d here, and group is bound to %d", s->group, (int)v);
    else
        s->group = (int)v;
}

static void bind_queries(Reader *r, const attngen_dim *dim) {
    double v = dim->value;
    if (!(v >= 1 && v <= MAX_QUERIES && v == floor(v)))
        ag_error(r->d, nowhere, "queries: expected a whole number of queries of a launch, from 1 to %d", MAX_QUERIES);
    else
        r->spec->queries = (int)v;
}

static void bind_dtype(Reader *r, const attngen_dim *dim) {
    if (dim->value == ATTNGEN_F16)
        r->spec->dtype = DT_F16;
    else if (dim->value == ATTNGEN_BF16)
        r->spec->dtype = DT_BF16;
    else
        ag_unsupported(r->d, nowhere, "dtype: this version handles f16 (%d) and bf16 (%d)", ATTNGEN_F16, ATTNGEN_BF16);
}

static void bind_param(Reader *r, const attngen_dim *dim, Param *p) {
    double v = dim->value;
    Buf shown = {0};
    ag_put_double(&shown, v);
    const char *text = ag_str_copy(r->d->arena, (Str){shown.s ? shown.s : "", (int)shown.n}).s;
    ag_buf_free(&shown);
    if (!isfinite(v) || !float_in_range(v))
        ag_error(r->d, nowhere, "%s: %s is not a finite 32-bit number", dim->name, text);
    else if (p->type == T_INT && (v != floor(v) || fabs(v) > PARAM_INT_MAX))
        ag_error(r->d, nowhere, "%s: the parameter is an int, expected a whole number from -%d to %d, found %s", dim->name, PARAM_INT_MAX,
                 PARAM_INT_MAX, text);
    else if (p->positive && !((float)v > 0))
        ag_error(r->d, nowhere, "%s: expected a positive number, found %s", dim->name, text);
    else {
        p->value = p->type == T_INT ? (Scalar){T_INT, {.i = (int64_t)v}} : (Scalar){T_FLOAT, {.f = v}};
        p->bound = true;
    }
}

static void unknown_dim(Reader *r, const char *name) {
    static const char *const dims[] = {"D", "Dv", "dtype", "group", "queries"};
    const char *can[LEN(dims) + SPEC_MAX_PARAMS + 1];
    int n = 0;
    for (int i = 0; i < LEN(dims); i++) can[n++] = dims[i];
    for (int i = 0; i < r->spec->nparam; i++) can[n++] = ag_str_copy(r->d->arena, r->spec->param[i].name).s;
    can[n] = NULL;
    Str list = ag_str(can[0]);
    for (int i = 1; i < n; i++) list = ag_fmt(r->d->arena, "%s, %s", list.s, can[i]);
    const char *near = ag_nearest(ag_str(name), can);
    ag_error(r->d, nowhere, "unknown name '%s'%s%s%s; this spec can bind %s", ag_clip(r->d->arena, ag_str(name)).s, near ? " (did you mean '" : "",
             near ? near : "", near ? "'?)" : "", list.s);
}

static void bind(Reader *r, const attngen_dim *dims, size_t ndims) {
    Spec *s = r->spec;
    s->D = 128;
    s->dtype = DT_BF16;
    for (size_t i = 0; i < ndims; i++) {
        const char *name = dims[i].name;
        Param *p = NULL;
        bool twice = false;
        for (size_t j = 0; j < i; j++) twice |= !strcmp(dims[j].name, name);
        for (int j = 0; j < s->nparam; j++)
            if (ag_str_is(s->param[j].name, name)) p = &s->param[j];
        if (twice)
            ag_error(r->d, nowhere, "%s: bound twice", name);
        else if (!strcmp(name, "D"))
            bind_head_dim(r, &dims[i], &s->D);
        else if (!strcmp(name, "Dv"))
            bind_head_dim(r, &dims[i], &s->Dv);
        else if (!strcmp(name, "group"))
            bind_group(r, &dims[i]);
        else if (!strcmp(name, "queries"))
            bind_queries(r, &dims[i]);
        else if (!strcmp(name, "dtype"))
            bind_dtype(r, &dims[i]);
        else if (p)
            bind_param(r, &dims[i], p);
        else
            unknown_dim(r, name);
    }
    if (!s->Dv) s->Dv = s->D;
    if (!s->scale_given && !s->param[0].bound) s->param[0].value = (Scalar){T_FLOAT, {.f = 1 / sqrt(s->D)}};
}

/* What can be said of a spec only as a whole, of one without errors in its parts. */
/* Where the weights of keys have no factor. */
static void check_weighed(Reader *r) {
    const Spec *s = r->spec;
    const Ast *any = s->weigh;
    for (int i = 0; i < s->nbranch && !any; i++) any = s->branch[i].weigh;
    if (any && s->normalize != NORMALIZE_SOFTMAX)
        ag_unsupported(r->d, any->span, "weigh: with normalize none or sum the score is the weight of a key; 'weigh' goes with softmax");
    if (any && s->ndot && ag_weigh_rows(s) >= 0)
        ag_unsupported(r->d, any->span, "weigh: 'dot' beside the one of a score, which adds channels to k, is not in this version of attngen");
    for (int i = 0; i < s->nbranch; i++)
        if (s->branch[i].weigh && s->branch[i].blocks.kind != FROM_NONE)
            ag_unsupported(r->d, s->branch[i].weigh->span, "weigh: branches over listed blocks have none in this version of attngen");
}

static void finish(Reader *r) {
    ag_spec_branches_finish(r);
    ag_spec_inputs_finish(r);
    ag_spec_dots_finish(r);
    check_weighed(r);
}

Spec *ag_spec_read(Diag *d, uint16_t file, const attngen_dim *dims, size_t ndims) {
    int before = d->nerror;
    const char *keys[LEN(field) + 1];
    Doc *root = ag_doc_parse(d, file);
    if (d->nerror > before) return NULL;
    if (!root || root->kind != DOC_MAP) {
        ag_error(d, root ? root->span : (Span){file, 0, 0}, "a spec is a map of fields; the smallest is 'attention: NAME'");
        return NULL;
    }
    for (int i = 0; i < LEN(field); i++) keys[i] = field[i].key;
    keys[LEN(field)] = NULL;
    ag_doc_check_keys(d, root, "the spec", keys);
    if (!ag_doc_get(root, "attention")) ag_error(d, root->span, "the spec has no name; add 'attention: NAME'");

    Reader r = {.d = d, .spec = NEW(d->arena, Spec), .root = root};
    r.spec->param = NEWN(d->arena, Param, SPEC_MAX_PARAMS);
    r.spec->param[0] = (Param){.name = STR("scale"), .type = T_FLOAT, .positive = true};
    r.spec->nparam = 1;
    read_fields(&r, false);
    bind(&r, dims, ndims);
    read_fields(&r, true);
    ag_spec_derive_finish(&r);
    if (d->nerror == before) finish(&r);
    return d->nerror > before ? NULL : r.spec;
}
