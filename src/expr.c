/* expr.c: the expression language: text to syntax tree, by recursive descent over one table of operators (op.def).
 *
 * Recursion is bounded by EXPR_MAX_DEPTH, the tree by EXPR_MAX_NODES and EXPR_MAX_LEVELS; the first error ends the parse of its expression.
 * sum(n < 5: x) is written out here: x is parsed once for each n, and nothing behind the parser knows of it. */
#include "expr.h"

#include <float.h>
#include <math.h>
#include <string.h>

const char *const ag_expr_keyword[] = {"and", "or", "not", "if", "else", "true", "false", NULL};

typedef enum TokenKind { TOK_END, TOK_INT, TOK_FLOAT, TOK_NAME, TOK_SYMBOL, TOK_BAD } TokenKind;
typedef struct Token {
    TokenKind kind;
    Str text;
    int at; /* byte in the text of the node */
} Token;

/* What counts the terms of a sum: a number wherever its name stands. */
typedef struct Counter Counter;
struct Counter {
    Str name;
    int value;
    const Counter *outer;
};

typedef struct Parser {
    Diag *d;
    const Doc *doc;
    Token tok; /* the one to look at */
    int pos;   /* where the next one is looked for */
    int depth, nodes;
    const Counter *counter; /* of the innermost sum */
    bool failed;
} Parser;

/* A tree and its number of levels. */
typedef struct Tree {
    Ast *e;
    int levels;
} Tree;
static const Tree none = {NULL, 0};

static Span span_of(const Parser *p, Token t) { return ag_doc_sub(p->doc, t.at, t.text.n); }

/* Only the first error of an expression is reported: what follows it is guesswork. */
#define FAIL(p, report, at, ...) ((p)->failed ? (void)0 : (report)((p)->d, (at), __VA_ARGS__), (p)->failed = true, none)

/* ---- tokens */

static bool is_digit(int c) { return c >= '0' && c <= '9'; }
static bool is_letter(int c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_blank(int c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* The byte at i, 0 past the end. */
static int peek(const Parser *p, int i) { return i < p->doc->text.n ? (unsigned char)p->doc->text.s[i] : 0; }

/* A number takes every letter and digit with it, so that `0x10` and `1_000` are one wrong number and not two tokens. */
static int number_end(const Parser *p, int i) {
    while (is_digit(peek(p, i)) || is_letter(peek(p, i)) || peek(p, i) == '.') {
        bool exponent = (peek(p, i) == 'e' || peek(p, i) == 'E') && (peek(p, i + 1) == '+' || peek(p, i + 1) == '-');
        i += exponent ? 2 : 1;
    }
    return i;
}

/* One character of UTF-8, or one byte that is none. */
static int character_end(const Parser *p, int i) {
    int c = peek(p, i++);
    while (c >= 0xC2 && (peek(p, i) & 0xC0) == 0x80) i++;
    return i;
}

static int symbol_end(const Parser *p, int i) {
    static const char *const symbol[] = {"**", "//", "<=", ">=", "==", "!=", "&&", "||", "<<", ">>", "->"};
    for (int s = 0; s < LEN(symbol); s++)
        if (peek(p, i) == symbol[s][0] && peek(p, i + 1) == symbol[s][1]) return i + 2;
    return i + 1;
}

static void advance(Parser *p) {
    int i = p->pos;
    while (is_blank(peek(p, i))) i++;
    int c = peek(p, i), end = i;
    TokenKind kind = TOK_END;
    if (i < p->doc->text.n) {
        if (is_digit(c) || (c == '.' && is_digit(peek(p, i + 1)))) {
            end = number_end(p, i);
            kind = TOK_INT;
            for (int j = i; j < end; j++)
                if (!is_digit(peek(p, j))) kind = TOK_FLOAT;
        } else if (is_letter(c)) {
            while (is_letter(peek(p, end)) || is_digit(peek(p, end))) end++;
            kind = TOK_NAME;
        } else if (c > ' ' && c < 0x7F) {
            end = symbol_end(p, i);
            kind = TOK_SYMBOL;
        } else {
            end = character_end(p, i);
            kind = TOK_BAD;
        }
    }
    p->tok = (Token){kind, {p->doc->text.s + i, end - i}, i};
    p->pos = end;
}

static bool is_word(Token t) { return t.kind == TOK_NAME || t.kind == TOK_SYMBOL; }
static bool at(const Parser *p, const char *text) { return is_word(p->tok) && ag_str_is(p->tok.text, text); }

static bool accept(Parser *p, const char *text) {
    if (!at(p, text)) return false;
    advance(p);
    return true;
}

/* What people write from other languages, and what it is here. */
static const struct {
    const char *wrong, *advice;
} foreign[] = {
    {"&&", "write 'and'"},
    {"||", "write 'or'"},
    {"!", "write 'not'"},
    {"&", "write 'and'"},
    {"|", "write 'or'"},
    {"=", "write '==' to compare"},
    {"^", "write '**' for a power"},
    {"?", "write 'x if c else y'"},
    {"+", "there is no unary '+'"},
};

/* Reports the current token, which cannot stand where it does. */
static Tree unexpected(Parser *p, const char *expected) {
    Token t = p->tok;
    Str found = ag_clip(p->d->arena, t.text);
    const char *advice = NULL;
    if (t.kind == TOK_END) return FAIL(p, ag_error, span_of(p, t), "the expression ends where %s is expected", expected);
    if (t.kind == TOK_BAD && (unsigned char)t.text.s[0] < 0xC2) {
        return FAIL(p, ag_error, span_of(p, t), "byte 0x%02x cannot be part of an expression", (unsigned)(unsigned char)t.text.s[0]);
    }
    for (int i = 0; i < LEN(foreign); i++)
        if (ag_str_is(t.text, foreign[i].wrong)) advice = foreign[i].advice;
    if (advice) return FAIL(p, ag_error, span_of(p, t), "found '%.*s' where %s is expected; %s", STRF(found), expected, advice);
    return FAIL(p, ag_error, span_of(p, t), "found '%.*s' where %s is expected", STRF(found), expected);
}

static bool expect(Parser *p, const char *text, const char *what) {
    if (accept(p, text)) return true;
    unexpected(p, what);
    return false;
}

/* ---- nodes */

static Tree node(Parser *p, Op op, Span at_span, Tree a, Tree b, Tree c) {
    if (p->failed || ++p->nodes > EXPR_MAX_NODES) {
        return FAIL(p, ag_error, ag_doc_sub(p->doc, 0, p->doc->text.n), "the expression has more than %d operations and operands", EXPR_MAX_NODES);
    }
    int levels = 1 + (a.levels > b.levels ? a.levels : b.levels);
    if (levels <= c.levels) levels = c.levels + 1;
    if (levels > EXPR_MAX_LEVELS) {
        return FAIL(p, ag_error, at_span, "the expression is more than %d operations deep; break it up with parentheses", EXPR_MAX_LEVELS);
    }
    Ast *e = NEW(p->d->arena, Ast);
    *e = (Ast){.op = op, .span = at_span, .arg = {a.e, b.e, c.e}};
    return (Tree){e, levels};
}

static Tree leaf(Parser *p, Op op, Token t) {
    Tree l = node(p, op, span_of(p, t), none, none, none);
    if (l.e) l.e->name = t.text;
    return l;
}

/* A copy, for the middle operand of a chained comparison: later stages may change a tree in place. */
static Tree copy(Parser *p, Tree t) {
    if (!t.e || p->failed) return none;
    Tree arg[3];
    for (int i = 0; i < 3; i++) arg[i] = copy(p, (Tree){t.e->arg[i], 0});
    Tree c = node(p, t.e->op, t.e->span, arg[0], arg[1], arg[2]);
    if (!c.e) return none;
    c.e->value = t.e->value;
    c.e->name = t.e->name;
    if (t.e->op != OP_LOAD) return c;
    c.e->sub = NEWN(p->d->arena, Ast *, (size_t)t.e->nsub);
    for (; c.e->nsub < t.e->nsub; c.e->nsub++) {
        Tree s = copy(p, (Tree){t.e->sub[c.e->nsub], 0});
        if (!s.e) return none;
        c.e->sub[c.e->nsub] = s.e;
        if (c.levels <= s.levels) c.levels = s.levels + 1;
    }
    return c;
}

/* ---- grammar; `min` is the lowest precedence that may be taken, see op.def */

enum { PREC_IF = 1, PREC_OR = 2, PREC_NOT = 4, PREC_COMPARE = 5, PREC_NEG = 8, PREC_POWER = 9 };

static Tree operators(Parser *p, int min);
static Tree expression(Parser *p, int min);

/* Whether a decimal number is not zero as written, whatever it rounds to. */
static bool has_value(Str decimal) {
    for (int i = 0; i < decimal.n && !is_letter((unsigned char)decimal.s[i]); i++)
        if (decimal.s[i] >= '1' && decimal.s[i] <= '9') return true;
    return false;
}

static Tree number(Parser *p) {
    Token t = p->tok;
    Str shown = ag_clip(p->d->arena, t.text);
    double x;
    if (!ag_parse_double(t.text, &x)) {
        return FAIL(p, ag_error, span_of(p, t), "'%.*s' is not a number; numbers are decimal, such as 12, 0.5 or 1e-3", STRF(shown));
    }
    if (is_digit(t.text.n > 1 ? t.text.s[1] : 0) && t.text.s[0] == '0') {
        return FAIL(p, ag_error, span_of(p, t), "'%.*s' starts with 0; numbers are decimal, drop the leading zeros", STRF(shown));
    }
    if (t.kind == TOK_INT && x > INT32_MAX) {
        return FAIL(p, ag_error, span_of(p, t), "%.*s is out of range; integers have 32 bits, at most %d", STRF(shown), INT32_MAX);
    }
    if (x > FLT_MAX || (has_value(t.text) && x < FLT_MIN)) {
        return FAIL(p, ag_error, span_of(p, t), "%.*s is out of range; floats have 32 bits, from 1.2e-38 to 3.4e38", STRF(shown));
    }
    Tree c = leaf(p, OP_CONST, t);
    if (c.e) c.e->value = t.kind == TOK_INT ? (Scalar){T_INT, {.i = (int64_t)x}} : (Scalar){T_FLOAT, {.f = x}};
    advance(p);
    return c;
}

/* The head of a sum, `n < 5:`.  false: reported. */
static bool sum_head(Parser *p, Counter *counter, int *terms) {
    static const char *const form = "a sum is written sum(n < 5: x), with a new name for n and 2 to 64 terms";
    Token name = p->tok;
    double n = 0;
    if (name.kind == TOK_NAME && ag_expr_is_reserved(name.text)) {
        FAIL(p, ag_error, span_of(p, name), "'%.*s' cannot count the terms of a sum, it has a meaning; %s", STRF(ag_clip(p->d->arena, name.text)),
             form);
        return false;
    }
    if (name.kind == TOK_NAME) advance(p);
    bool ok = name.kind == TOK_NAME && accept(p, "<") && p->tok.kind == TOK_INT && ag_parse_double(p->tok.text, &n) && n >= 2 && n <= EXPR_MAX_TERMS;
    if (ok) advance(p);
    if (!ok || !accept(p, ":")) {
        FAIL(p, ag_error, span_of(p, p->tok), "%s", form);
        return false;
    }
    *counter = (Counter){.name = name.text, .outer = p->counter};
    *terms = (int)n;
    return true;
}

/* sum(n < 5: x), with the current token after the parenthesis. */
static Tree sum(Parser *p, Token name) {
    Counter counter;
    Tree term[EXPR_MAX_TERMS];
    int terms;
    if (!sum_head(p, &counter, &terms)) return none;
    Token first = p->tok;
    int pos = p->pos;
    p->counter = &counter;
    for (; counter.value < terms && !p->failed; counter.value++) {
        p->tok = first, p->pos = pos;
        term[counter.value] = expression(p, PREC_IF);
    }
    p->counter = counter.outer;
    Token close = p->tok;
    if (p->failed || !expect(p, ")", "')'")) return none;
    Tree all = term[0];
    for (int i = 1; i < terms && !p->failed; i++) all = node(p, OP_ADD, ag_span_join(span_of(p, name), span_of(p, close)), all, term[i], none);
    return all;
}

static Tree call(Parser *p, Token name) {
    Op op = ag_expr_function(name.text);
    Tree arg[3] = {none, none, none};
    int n = 0;
    if (ag_str_is(name.text, "sum")) return sum(p, name);
    if (op == OP_COUNT) {
        const char *near[OP_COUNT + 1];
        int m = 0;
        for (int i = 0; i < OP_COUNT; i++)
            if (ag_op[i].prec == 0 && *ag_op[i].spelling) near[m++] = ag_op[i].spelling;
        near[m] = NULL;
        const char *hint = ag_nearest(name.text, near);
        Str shown = ag_clip(p->d->arena, name.text);
        const char *why = ag_refused(REFUSED_FUNCTION, name.text);
        if (why) return FAIL(p, ag_unsupported, span_of(p, name), "'%.*s' is no function of the language: %s", STRF(shown), why);
        if (hint) return FAIL(p, ag_error, span_of(p, name), "unknown function '%.*s'; did you mean '%s'?", STRF(shown), hint);
        return FAIL(p, ag_error, span_of(p, name), "unknown function '%.*s'", STRF(shown));
    }
    if (!at(p, ")")) {
        do {
            Tree a = expression(p, PREC_IF);
            if (n < 3) arg[n] = a;
            n++;
        } while (!p->failed && accept(p, ","));
    }
    Token close = p->tok;
    if (!p->failed) expect(p, ")", "',' or ')'");
    int arity = ag_op[op].arity;
    if (!p->failed && n != arity) {
        Span whole = ag_span_join(span_of(p, name), span_of(p, close));
        return FAIL(p, ag_error, whole, "'%s' takes %d argument%s, not %d", ag_op[op].spelling, arity, arity == 1 ? "" : "s", n);
    }
    return node(p, op, ag_span_join(span_of(p, name), span_of(p, close)), arg[0], arg[1], arg[2]);
}

/* name[x, ...], with the current token after the bracket. */
static Tree subscripts(Parser *p, Token name) {
    Ast *sub[INPUT_MAX_DIMS];
    int n = 0, levels = 0;
    do {
        Tree x = expression(p, PREC_IF);
        if (p->failed) return none;
        if (n == INPUT_MAX_DIMS) return FAIL(p, ag_error, x.e->span, "more than %d subscripts; no input has more dims", INPUT_MAX_DIMS);
        sub[n++] = x.e;
        if (x.levels > levels) levels = x.levels;
    } while (accept(p, ","));
    Token close = p->tok;
    if (!expect(p, "]", "',' or ']'")) return none;
    Tree t = node(p, OP_LOAD, ag_span_join(span_of(p, name), span_of(p, close)), (Tree){NULL, levels}, none, none);
    if (!t.e) return none;
    t.e->name = name.text;
    t.e->sub = NEWN(p->d->arena, Ast *, (size_t)n);
    memcpy(t.e->sub, sub, (size_t)n * sizeof *sub);
    t.e->nsub = n;
    return t;
}

static Tree name_or_call(Parser *p) {
    Token t = p->tok;
    bool yes = at(p, "true"), no = at(p, "false");
    for (int i = 0; ag_expr_keyword[i]; i++)
        if (!yes && !no && at(p, ag_expr_keyword[i])) return unexpected(p, "a value");
    if (at(p, "True") || at(p, "False")) {
        return FAIL(p, ag_error, span_of(p, t), "'%.*s' is written '%s'", STRF(t.text), at(p, "True") ? "true" : "false");
    }
    advance(p);
    if (accept(p, "(")) return call(p, t);
    if (!yes && !no && accept(p, "[")) return subscripts(p, t);
    const Counter *n = p->counter;
    while (n && !ag_str_eq(n->name, t.text)) n = n->outer;
    Tree v = leaf(p, yes || no || n ? OP_CONST : OP_VAL, t);
    if (v.e && (yes || no)) v.e->value = (Scalar){T_BOOL, {.b = yes}};
    if (v.e && n) v.e->value = (Scalar){T_INT, {.i = n->value}};
    return v;
}

static Tree primary(Parser *p) {
    if (p->tok.kind == TOK_INT || p->tok.kind == TOK_FLOAT) return number(p);
    if (p->tok.kind == TOK_NAME) return name_or_call(p);
    if (!accept(p, "(")) return unexpected(p, "a value");
    Tree e = expression(p, PREC_IF);
    if (!p->failed) expect(p, ")", "')'");
    return e;
}

static Tree power(Parser *p) {
    Tree x = primary(p);
    if (p->failed || !accept(p, "**")) return x;
    Tree y = expression(p, PREC_NEG);
    if (p->failed) return none;
    return node(p, OP_POW, ag_span_join(x.e->span, y.e->span), x, y, none);
}

static Tree prefixed(Parser *p, int min) {
    Op op = at(p, "-") ? OP_NEG : at(p, "not") ? OP_NOT : OP_COUNT;
    if (op == OP_COUNT) return power(p);
    if (op == OP_NOT && min > PREC_NOT)
        return FAIL(p, ag_error, span_of(p, p->tok), "'not' binds less than what is before it; put it in parentheses");
    Token t = p->tok;
    advance(p);
    Tree x = expression(p, ag_op[op].prec);
    if (p->failed) return none;
    return node(p, op, ag_span_join(span_of(p, t), x.e->span), x, none, none);
}

/* The infix operator at the current token, OP_COUNT if it is none. */
static Op infix(const Parser *p) {
    if (!is_word(p->tok)) return OP_COUNT;
    for (int op = 0; op < OP_COUNT; op++)
        if (ag_op[op].arity == 2 && ag_op[op].prec > 0 && ag_str_is(p->tok.text, ag_op[op].spelling)) return (Op)op;
    return OP_COUNT;
}

static Tree binary(Parser *p, Op op, Tree x, Tree y) {
    if (p->failed) return none;
    return node(p, op, ag_span_join(x.e->span, y.e->span), x, y, none);
}

/* a < b < c is (a < b) and (b < c), as in Python. */
static Tree comparisons(Parser *p, Tree x) {
    Tree all = none;
    for (Op op = infix(p); !p->failed && op != OP_COUNT && ag_op[op].prec == PREC_COMPARE; op = infix(p)) {
        advance(p);
        Tree y = operators(p, PREC_COMPARE + 1);
        Tree one = binary(p, op, x, y);
        all = all.e ? binary(p, OP_AND, all, one) : one;
        op = p->failed ? OP_COUNT : infix(p);
        if (op != OP_COUNT && ag_op[op].prec == PREC_COMPARE) x = copy(p, y);
    }
    return p->failed ? none : all;
}

static Tree operators(Parser *p, int min) {
    Tree x = prefixed(p, min);
    for (Op op = infix(p); !p->failed && op != OP_COUNT && ag_op[op].prec >= min; op = infix(p)) {
        int prec = ag_op[op].prec;
        if (prec == PREC_COMPARE) {
            x = comparisons(p, x);
            continue;
        }
        advance(p);
        x = binary(p, op, x, operators(p, prec + 1));
    }
    return p->failed ? none : x;
}

static Tree conditional(Parser *p) {
    Tree x = operators(p, PREC_OR);
    if (p->failed || !accept(p, "if")) return x;
    Tree c = operators(p, PREC_OR);
    if (p->failed || !expect(p, "else", "'else'")) return none;
    Tree y = expression(p, PREC_IF);
    if (p->failed) return none;
    return node(p, OP_SELECT, ag_span_join(x.e->span, y.e->span), c, x, y);
}

static Tree expression(Parser *p, int min) {
    if (p->failed) return none;
    if (p->depth >= EXPR_MAX_DEPTH) return FAIL(p, ag_error, span_of(p, p->tok), "the expression is nested more than %d levels deep", EXPR_MAX_DEPTH);
    p->depth++;
    Tree e = min == PREC_IF ? conditional(p) : operators(p, min);
    p->depth--;
    return e;
}

/* ---- */

Op ag_expr_function(Str name) {
    for (int op = 0; op < OP_COUNT; op++)
        if (ag_op[op].prec == 0 && ag_op[op].arity > 0 && ag_str_is(name, ag_op[op].spelling)) return (Op)op;
    return OP_COUNT;
}

Ast *ag_expr_parse(Diag *d, const Doc *text) {
    Parser p = {.d = d, .doc = text};
    advance(&p);
    if (p.tok.kind == TOK_END) {
        ag_error(d, text->span, "the expression is empty");
        return NULL;
    }
    Tree e = expression(&p, PREC_IF);
    if (!p.failed && p.tok.kind != TOK_END) unexpected(&p, "an operator");
    return p.failed ? NULL : e.e;
}

Ast *ag_expr_read(Diag *d, Spec *spec, const Doc *text, Type want) {
    ExprUse use = {.want = want, .nlet = spec->nlet};
    Ast *e = ag_expr_parse(d, text);
    return e ? ag_expr_type(d, spec, e, &use) : NULL;
}
