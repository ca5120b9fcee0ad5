/* spec.c: the spec: a table of fields, what may be bound at compile time, and printing back as YAML. */
#include "expr.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_NAME = 59 /* with "_fwd" a symbol of 63 */, MAX_GROUP = 1024, MAX_HEAD_DIM = 256 };

typedef struct Reader {
    Diag *d;
    Spec *spec;
} Reader;

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
static const char *const argument[] = {"o", "v", "lse", "scale", "dtype", NULL};
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

/* Whether `key` may name a parameter or a let; reports otherwise. */
static bool check_name(Reader *r, const Doc *key) {
    Str name = key->text, shown = ag_clip(r->d->arena, name);
    bool twice = false;
    for (int i = 1; i < r->spec->nparam; i++) twice |= ag_str_eq(r->spec->param[i].name, name);
    if (!is_identifier(name))
        ag_error(r->d, key->span, "'%.*s' cannot be a name; names are letters, digits and '_', at most %d", STRF(shown), MAX_NAME);
    else if (ag_expr_is_reserved(name))
        ag_error(r->d, key->span, "'%.*s' cannot be defined; it is an axis, size, function or keyword of the language", STRF(shown));
    else if (is_one_of(name, argument))
        ag_error(r->d, key->span, "'%.*s' cannot be defined; every kernel has an argument of this name", STRF(shown));
    else if (is_one_of(name, cxx_keyword) || (name.n > 1 && name.s[0] == '_' && name.s[1] == '_'))
        ag_error(r->d, key->span, "'%.*s' cannot be defined; the generated code is C++, which keeps this name for itself", STRF(shown));
    else if (twice)
        ag_error(r->d, key->span, "'%.*s' is a parameter already", STRF(shown));
    else
        return true;
    return false;
}

/* ---- fields */

/* Whether x is a scalar; reports otherwise. */
static bool scalar(Reader *r, const Doc *x, const char *what, const char *expected) {
    if (x->kind == DOC_SCALAR) return true;
    ag_error(r->d, x->span, "%s: expected %s, found a %s", what, expected, x->kind == DOC_MAP ? "map" : "list");
    return false;
}

static bool map(Reader *r, const Doc *x, const char *what, const char *example) {
    if (x->kind == DOC_MAP) return true;
    ag_error(r->d, x->span, "%s: expected a map, such as %s", what, example);
    return false;
}

static void read_attention(Reader *r, const Doc *x) {
    if (!scalar(r, x, "attention", "a name")) return;
    r->spec->name = x->text;
    r->spec->span = x->span;
    if (!is_identifier(x->text))
        ag_error(r->d, x->span, "attention: '%.*s' cannot be a name; names are letters, digits and '_', at most %d",
                 STRF(ag_clip(r->d->arena, x->text)), MAX_NAME);
}

static void read_doc(Reader *r, const Doc *x) {
    if (scalar(r, x, "doc", "text")) r->spec->doc = x->text;
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
    if (!check_name(r, key)) return;
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
    if (!map(r, x, "params", "{cap: {float: 50.0}}")) return;
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
    if (!map(r, x, "heads", "{group: 8}")) return;
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

static Ast *read_expression(Reader *r, const Doc *x, const char *what, ExprUse *use) {
    if (!scalar(r, x, what, "an expression")) return NULL;
    Ast *e = ag_expr_parse(r->d, x);
    return e ? ag_expr_type(r->d, r->spec, e, use) : NULL;
}

/* All names are entered before the first value is read, so that a use before its definition is told from an unknown name. */
static void read_lets(Reader *r, const Doc *x) {
    Spec *s = r->spec;
    if (!map(r, x, "let", "{distance: q - k}")) return;
    if (x->n > SPEC_MAX_LETS) {
        ag_error(r->d, x->key[SPEC_MAX_LETS]->span, "let: more than %d names", SPEC_MAX_LETS);
        return;
    }
    s->let = NEWN(r->d->arena, Let, (size_t)x->n);
    for (int i = 0; i < x->n; i++) {
        check_name(r, x->key[i]);
        s->let[s->nlet++] = (Let){.name = x->key[i]->text, .span = x->key[i]->span};
    }
    for (int i = 0; i < x->n; i++) {
        ExprUse use = {.want = T_NONE, .nlet = i};
        const char *what = ag_fmt(r->d->arena, "let '%.*s'", STRF(ag_clip(r->d->arena, s->let[i].name))).s;
        Ast *value = read_expression(r, x->item[i], what, &use);
        s->let[i] = (Let){s->let[i].name, value, s->let[i].span, use.depth, use.uses_score, use.constant};
    }
}

static void read_score(Reader *r, const Doc *x) {
    r->spec->score = read_expression(r, x, "score", &(ExprUse){.want = T_FLOAT, .nlet = r->spec->nlet});
}

static void read_mask(Reader *r, const Doc *x) { r->spec->mask = read_expression(r, x, "mask", &(ExprUse){.want = T_BOOL, .nlet = r->spec->nlet}); }

static void read_normalize(Reader *r, const Doc *x) {
    static const char *const known[] = {"softmax", "sum", "none", NULL};
    int which = 0;
    if (x->kind == DOC_SCALAR && !ag_doc_enum(r->d, x, "normalize", known, &which)) return;
    if (x->kind == DOC_SCALAR && which == 0) return;
    ag_unsupported(r->d, x->span, "normalize: this version of attngen has plain 'softmax' only");
}

static const struct {
    const char *key;
    void (*read)(Reader *, const Doc *); /* NULL: part of the language, not of this version */
    bool late;                           /* holds expressions: read once the parameters are bound */
    const char *what;                    /* of those not in this version */
} field[] = {
    {"attention", read_attention, false, NULL},
    {"doc", read_doc, false, NULL},
    {"params", read_params, false, NULL},
    {"heads", read_heads, false, NULL},
    {"scale", read_scale, false, NULL},
    {"let", read_lets, true, NULL},
    {"score", read_score, true, NULL},
    {"mask", read_mask, true, NULL},
    {"normalize", read_normalize, true, NULL},
    {"inputs", NULL, true, "captured tensors"},
    {"branches", NULL, true, "several branches"},
    {"output", NULL, true, "combining branches"},
    {"derive", NULL, true, "derived tensors"},
};

static void read_fields(Reader *r, const Doc *root, bool late) {
    for (int i = 0; i < LEN(field); i++)
        for (int j = 0; field[i].late == late && j < root->n; j++) {
            if (!ag_str_is(root->key[j]->text, field[i].key)) continue;
            if (field[i].read)
                field[i].read(r, root->item[j]);
            else
                ag_unsupported(r->d, root->key[j]->span, "'%s' (%s) is not in this version of attngen", field[i].key, field[i].what);
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
    static const char *const dims[] = {"D", "Dv", "dtype"};
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

    Reader r = {d, NEW(d->arena, Spec)};
    r.spec->param = NEWN(d->arena, Param, SPEC_MAX_PARAMS);
    r.spec->param[0] = (Param){.name = STR("scale"), .type = T_FLOAT, .positive = true};
    r.spec->nparam = 1;
    read_fields(&r, root, false);
    bind(&r, dims, ndims);
    read_fields(&r, root, true);
    return d->nerror > before ? NULL : r.spec;
}

/* ---- printing */

/* The character at s[0..n) of valid UTF-8. */
static unsigned character(const char *s, int n, int *len) {
    unsigned c = (unsigned char)s[0];
    *len = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (*len > n) *len = n;
    unsigned x = *len == 1 ? c : c & (0x7Fu >> *len);
    for (int i = 1; i < *len; i++) x = x << 6 | ((unsigned char)s[i] & 0x3Fu);
    return x;
}

/* As a YAML scalar in double quotes on one line; line breaks and what a YAML reader refuses are escaped. */
static void print_text(Buf *out, Str s) {
    ag_put(out, "\"");
    for (int i = 0, len; i < s.n; i += len) {
        unsigned c = character(s.s + i, s.n - i, &len);
        if (c == '"' || c == '\\')
            ag_put(out, "\\%c", (char)c);
        else if (c == '\n')
            ag_put(out, "\\n");
        else if (c < 0x20 || (c >= 0x7F && c < 0xA0))
            ag_put(out, "\\x%02X", c);
        else if (c == 0x2028 || c == 0x2029 || c == 0xFEFF || c == 0xFFFE || c == 0xFFFF)
            ag_put(out, "\\u%04X", c);
        else
            ag_putn(out, s.s + i, (size_t)len);
    }
    ag_put(out, "\"\n");
}

static void print_number(Buf *out, Scalar v) {
    if (v.type == T_INT)
        ag_put(out, "%" PRId64, v.u.i);
    else
        ag_put_double(out, v.u.f);
}

static void print_expression(Buf *out, const Spec *spec, const char *indent, Str key, const Ast *e) {
    ag_put(out, "%s%.*s: ", indent, STRF(key));
    ag_expr_print(out, spec, e);
    ag_put(out, "\n");
}

void ag_spec_print(Buf *out, const Spec *spec) {
    ag_put(out, "# compiled for D = %d, Dv = %d, dtype = %s", spec->D, spec->Dv, ag_dtype_name[spec->dtype]);
    for (int i = 0; i < spec->nparam; i++) {
        if (!spec->param[i].bound) continue;
        ag_put(out, ", %.*s = ", STRF(spec->param[i].name));
        print_number(out, spec->param[i].value);
    }
    ag_put(out, "\nattention: %.*s\n", STRF(spec->name));
    if (spec->doc.n) {
        ag_put(out, "doc: ");
        print_text(out, spec->doc);
    }
    if (spec->nparam > 1) ag_put(out, "params:\n");
    for (int i = 1; i < spec->nparam; i++) {
        ag_put(out, "  %.*s: {%s: ", STRF(spec->param[i].name), ag_type_name(spec->param[i].type));
        print_number(out, spec->param[i].value);
        ag_put(out, "}\n");
    }
    if (spec->group) ag_put(out, "heads: {group: %d}\n", spec->group);
    if (spec->scale_given || spec->param[0].bound) {
        ag_put(out, "scale: ");
        print_number(out, spec->param[0].value);
        ag_put(out, "\n");
    }
    if (spec->nlet) ag_put(out, "let:\n");
    for (int i = 0; i < spec->nlet; i++) print_expression(out, spec, "  ", spec->let[i].name, spec->let[i].value);
    if (spec->score) print_expression(out, spec, "", STR("score"), spec->score);
    if (spec->mask) print_expression(out, spec, "", STR("mask"), spec->mask);
}
