/* doc.c: YAML text to a Doc tree, by way of libyaml's events.
 *
 * Two steps.  `collect` runs libyaml and copies its events into memory taken beforehand: nothing in it leaves by longjmp, so libyaml's
 * own memory is always freed.  `build` makes the tree from the copy and reports what this subset of YAML forbids.
 * libyaml's marks count characters; a place is a byte offset here, found through `Reader.checkpoint`. */
#include "input.h"

#include <assert.h>
#include <string.h>
#include <yaml.h>

enum { MAX_DEPTH = 32, MAX_NODES = 20000, MAX_SCALAR = 64 * 1024, MAX_FILE = 1024 * 1024, STEP = 64 };

typedef struct Event {
    yaml_event_type_t type;
    yaml_scalar_style_t style;
    uint32_t from, to; /* in the source */
    uint32_t text;     /* offset in Reader.text */
    int ntext;         /* -1: the scalar is too long and was not copied */
    bool anchor, tag;
} Event;

typedef struct Reader {
    Str src;
    uint32_t body;        /* where libyaml starts: after a byte order mark */
    uint32_t *checkpoint; /* byte offset of every STEP-th character; NULL if all characters are one byte long */
    Event *event;
    int nevent, max_event;
    char *text;
    size_t ntext, max_text;
    int nodes, depth;
    /* why it stopped before the end; NULL if it did not */
    const char *problem, *context;
    uint32_t problem_at, context_at;
    bool oom;
} Reader;

/* ---- characters and places */

static bool is_control(uint32_t c) {
    return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || (c >= 0x7F && c < 0xA0 && c != 0x85) || c == 0xFEFF || c == 0xFFFE || c == 0xFFFF;
}

/* Reports the first thing in the text that is not a legal character. */
static bool check_text(Diag *d, uint16_t file, Reader *r) {
    Str s = r->src;
    if (s.n > MAX_FILE) {
        ag_error(d, (Span){file, 0, 1}, "the file has %d bytes, more than the %d allowed", s.n, MAX_FILE);
        return false;
    }
    if (s.n >= 2 && (!memcmp(s.s, "\xFF\xFE", 2) || !memcmp(s.s, "\xFE\xFF", 2))) {
        ag_error(d, (Span){file, 0, 2}, "the file is UTF-16: save it as UTF-8");
        return false;
    }
    r->body = s.n >= 3 && !memcmp(s.s, "\xEF\xBB\xBF", 3) ? 3 : 0;
    bool ascii = true;
    for (uint32_t i = r->body, len; i < (uint32_t)s.n; i += len) {
        uint32_t code = 0;
        len = ag_utf8(s.s + i, (size_t)s.n - i, &code);
        Span at = {file, i, len ? len : 1};
        if (!len)
            ag_error(d, at, "invalid UTF-8: byte 0x%02x", (unsigned char)s.s[i]);
        else if (!code)
            ag_error(d, at, "a NUL byte: the file is not text");
        else if (is_control(code))
            ag_error(d, at, "control character U+%04X is not allowed", code);
        if (!len || is_control(code)) return false;
        ascii &= len == 1;
    }
    if (!ascii) r->checkpoint = NEWN(d->arena, uint32_t, (size_t)s.n / STEP + 1);
    return true;
}

static void fill_checkpoints(Reader *r) {
    uint32_t code, chars = 0;
    for (uint32_t i = r->body; i < (uint32_t)r->src.n; chars++) {
        if (chars % STEP == 0) r->checkpoint[chars / STEP] = i;
        i += ag_utf8(r->src.s + i, (size_t)r->src.n - i, &code);
    }
}

/* Byte offset of character `index`, as libyaml counts. */
static uint32_t place(const Reader *r, size_t index) {
    uint32_t n = (uint32_t)r->src.n, code;
    if (!r->checkpoint) return index < n - r->body ? r->body + (uint32_t)index : n;
    if (index / STEP > (size_t)n / STEP) return n;
    uint32_t i = r->checkpoint[index / STEP];
    if (i == 0 && index >= STEP) return n; /* past the last character */
    for (size_t k = index % STEP; k > 0 && i < n; k--) i += ag_utf8(r->src.s + i, n - i, &code);
    return i;
}

/* ---- step 1: libyaml */

static bool stop(Reader *r, uint32_t at, const char *problem) {
    r->problem = problem;
    r->problem_at = at;
    return false;
}

static void take_text(Reader *r, Event *e, const yaml_event_t *y) {
    size_t n = y->data.scalar.length;
    e->style = y->data.scalar.style;
    e->anchor = y->data.scalar.anchor != NULL;
    e->tag = y->data.scalar.tag != NULL;
    e->text = (uint32_t)r->ntext;
    e->ntext = n > MAX_SCALAR || n > r->max_text - r->ntext ? -1 : (int)n;
    if (e->ntext <= 0) return;
    memcpy(r->text + r->ntext, y->data.scalar.value, n);
    r->ntext += n;
}

/* Copies one event; false if that was the last. */
static bool take(Reader *r, const yaml_event_t *y) {
    Event e = {.type = y->type, .from = place(r, y->start_mark.index), .to = place(r, y->end_mark.index)};
    bool node = true;
    switch (y->type) {
    case YAML_SCALAR_EVENT: take_text(r, &e, y); break;
    case YAML_ALIAS_EVENT: break;
    case YAML_SEQUENCE_START_EVENT:
        e.anchor = y->data.sequence_start.anchor != NULL;
        e.tag = y->data.sequence_start.tag != NULL;
        r->depth++;
        break;
    case YAML_MAPPING_START_EVENT:
        e.anchor = y->data.mapping_start.anchor != NULL;
        e.tag = y->data.mapping_start.tag != NULL;
        r->depth++;
        break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        r->depth--;
        node = false;
        break;
    case YAML_DOCUMENT_START_EVENT: /* `tag` stands for %TAG here */
        e.tag = y->data.document_start.tag_directives.start != y->data.document_start.tag_directives.end;
        node = false;
        break;
    default: node = false; break;
    }
    if (r->depth > MAX_DEPTH) return stop(r, e.from, "nesting is deeper than 32 levels");
    r->nodes += node;
    if (r->nodes > MAX_NODES || r->nevent == r->max_event) return stop(r, e.from, "the file has more than 20000 values");
    r->event[r->nevent++] = e;
    return y->type != YAML_STREAM_END_EVENT;
}

static void take_problem(Reader *r, const yaml_parser_t *p) {
    r->oom = p->error == YAML_MEMORY_ERROR;
    stop(r, p->error == YAML_READER_ERROR ? r->body + (uint32_t)p->problem_offset : place(r, p->problem_mark.index), p->problem);
    if (!r->problem) r->problem = "the text is not YAML";
    r->context = p->context;
    r->context_at = place(r, p->context_mark.index);
}

static void collect(Reader *r) {
    yaml_parser_t parser;
    yaml_event_t event;
    if (!yaml_parser_initialize(&parser)) {
        r->oom = true;
        return;
    }
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)r->src.s + r->body, (size_t)r->src.n - r->body);
    for (bool more = true; more;) {
        if (!yaml_parser_parse(&parser, &event)) {
            take_problem(r, &parser);
            break;
        }
        more = take(r, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
}

/* libyaml's texts (static strings) and ours. */
static const char *const problem_text[][2] = {
    {"mapping values are not allowed in this context", "unexpected ':': check the indentation, or put text that holds ': ' in quotes"},
    {"block sequence entries are not allowed in this context", "unexpected '- ': check the indentation"},
    {"could not find expected ':'", "expected ':' after the key"},
    {"did not find expected key", "expected a key: check the indentation"},
    {"did not find expected '-' indicator", "expected '- ': check the indentation"},
    {"did not find expected ',' or ']'", "expected ',' or ']'"},
    {"did not find expected ',' or '}'", "expected ',' or '}'"},
    {"did not find expected node content", "expected a value"},
    {"did not find expected <document start>", "unexpected text after the end of the document"},
    {"found unexpected end of stream", "the text in quotes has no end"},
    {"found unknown escape character", "unknown escape after '\\'"},
    {"found incompatible YAML document", "this YAML version is not supported, expected %YAML 1.1 or %YAML 1.2"},
    {"found unknown directive name", "directives other than %YAML 1.1 and %YAML 1.2 are not allowed"},
    {"found duplicate %TAG directive", "directives other than %YAML 1.1 and %YAML 1.2 are not allowed"},
    {"found undefined tag handle", "tags (!name) are not allowed: remove it"},
    {"found duplicate %YAML directive", "a second %YAML directive: remove it"},
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static bool only_blanks(Str s, uint32_t from) {
    while (from < (uint32_t)s.n && is_blank(s.s[from])) from++;
    return from == (uint32_t)s.n;
}

static void report_problem(Diag *d, uint16_t file, const Reader *r) {
    const char *text = r->problem;
    uint32_t n = (uint32_t)r->src.n, p = r->problem_at < n ? r->problem_at : n;
    char first = p < n ? r->src.s[p] : 0;
    if (only_blanks(r->src, p))
        while (p > r->body && is_blank(r->src.s[p - 1])) p--; /* the end of the file: rather the end of its last text */
    Span at = {file, p, 1};
    for (int i = 0; i < LEN(problem_text); i++)
        if (!strcmp(text, problem_text[i][0])) text = problem_text[i][1];
    if (strcmp(text, "found character that cannot start any token"))
        ag_error(d, at, "%s", text);
    else if (first == '\t')
        ag_error(d, at, "a tab cannot indent: use blanks");
    else
        ag_error(d, at, "'%c' cannot start a value: put the text in quotes", first);
    if (r->context && r->context_at != r->problem_at) ag_note(d, (Span){file, r->context_at, 1}, "%s that begins here", r->context);
}

/* ---- where each byte of a scalar came from */

typedef struct Walk {
    const char *src;
    uint32_t p, end;
    char quote; /* ' or ", or 0 */
} Walk;

static int hex_value(const char *s, int n) {
    int x = 0;
    for (int i = 0; i < n; i++) x = x * 16 + ((s[i] | 32) >= 'a' ? (s[i] | 32) - 'a' + 10 : s[i] - '0');
    return x;
}

/* Length of the escape at w->p; *bytes of text it makes (0: an escaped line break). */
static uint32_t escape(const Walk *w, int *bytes) {
    const char *s = w->src + w->p;
    uint32_t left = w->end - w->p;
    *bytes = 1;
    if (left < 2) return left;
    uint32_t digits = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0;
    if (s[1] == '\n' || s[1] == '\r') *bytes = 0;
    if (s[1] == 'N' || s[1] == '_') *bytes = 2;
    if (s[1] == 'L' || s[1] == 'P') *bytes = 3;
    if (!digits || left < 2 + digits) return 2;
    int code = hex_value(s + 2, (int)digits);
    *bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    return 2 + digits;
}

static bool is_escape_of(const Walk *w, const char *set) {
    return w->quote == '"' && w->p + 1 < w->end && w->src[w->p] == '\\' && strchr(set, w->src[w->p + 1]);
}

/* Moves over what left nothing in the text, up to what may have made the byte c: escaped line breaks with the indentation after them and,
 * if c is no blank, all blanks. */
static void skip_folded(Walk *w, char c) {
    int bytes;
    bool indented = false;
    while (w->p < w->end) {
        bool line_end = is_escape_of(w, "\n\r");
        indented |= line_end;
        if (line_end || (!is_blank(c) && is_escape_of(w, " \ttnr")))
            w->p += escape(w, &bytes);
        else if ((indented || !is_blank(c)) && is_blank(w->src[w->p]))
            w->p++;
        else
            return;
    }
}

/* Offset in the source of each byte of `text`, and of its end.  Exact for all but folded blanks, which map to a line break nearby. */
static uint32_t *make_map(Arena *a, Walk w, Str text) {
    uint32_t *map = NEWN(a, uint32_t, (size_t)text.n + 1);
    for (int i = 0; i < text.n;) {
        skip_folded(&w, text.s[i]);
        int bytes = 1;
        uint32_t len = w.p < w.end ? 1 : 0;
        bool escaped = w.quote == '"' && len && w.src[w.p] == '\\';
        if (escaped)
            len = escape(&w, &bytes);
        else if (len && is_blank(text.s[i]) && w.src[w.p] != text.s[i])
            len = 0;
        else if (w.quote == '\'' && len && w.src[w.p] == '\'')
            len = 2;
        for (; bytes > 0 && i < text.n; bytes--) map[i++] = w.p;
        w.p += len;
    }
    map[text.n] = w.p < w.end ? w.p : w.end;
    return map;
}

/* ---- step 2: the tree */

typedef struct Frame {
    Doc *node;
    Doc *key; /* maps: read, its value not yet */
    int cap_key, cap_item;
} Frame;

typedef struct Builder {
    Diag *d;
    uint16_t file;
    const Reader *r;
    Frame frame[MAX_DEPTH + 1];
    int depth;
    Doc *root;
} Builder;

/* The place of the anchor or tag that starts with c, at or shortly after `from`. */
static Span property(const Builder *b, uint32_t from, char c) {
    const char *s = b->r->src.s;
    uint32_t n = (uint32_t)b->r->src.n, end;
    while (from < n && s[from] != c) from++;
    for (end = from; end < n && !is_blank(s[end]) && !strchr(",[]{}", s[end]);) end++;
    return (Span){b->file, from, end - from};
}

static Span first_line(const Builder *b, uint32_t from, uint32_t to) {
    const char *s = b->r->src.s;
    uint32_t end = from;
    while (end < to && s[end] != '\n') end++;
    while (end > from && is_blank(s[end - 1])) end--;
    return (Span){b->file, from, end - from};
}

static void locate_block(Builder *b, const Event *e, Doc *x) {
    const char *s = b->r->src.s;
    Walk w = {s, e->from, e->to, 0};
    while (w.p < w.end && s[w.p] != '\n') w.p++;
    x->map = make_map(b->d->arena, w, x->text);
    int first = 0;
    while (first < x->text.n && is_blank(x->text.s[first])) first++;
    x->span = first < x->text.n ? first_line(b, x->map[first], e->to) : first_line(b, e->from, e->to);
}

static void locate(Builder *b, const Event *e, Doc *x) {
    const char *s = b->r->src.s;
    if (e->style == YAML_LITERAL_SCALAR_STYLE || e->style == YAML_FOLDED_SCALAR_STYLE) {
        locate_block(b, e, x);
        return;
    }
    uint32_t quote = x->quoted && e->to - e->from >= 2 ? 1 : 0, from = e->from + quote, to = e->to - quote;
    x->span = (Span){b->file, from, to - from};
    if (to - from == (uint32_t)x->text.n && !memcmp(s + from, x->text.s, to - from)) return;
    x->map = make_map(b->d->arena, (Walk){s, from, to, quote ? s[e->from] : 0}, x->text);
}

static Doc *scalar(Builder *b, const Event *e) {
    Doc *x = NEW(b->d->arena, Doc);
    x->kind = DOC_SCALAR;
    x->quoted = e->style != YAML_PLAIN_SCALAR_STYLE && e->style != YAML_ANY_SCALAR_STYLE;
    x->span = first_line(b, e->from, e->to);
    if (e->ntext < 0) {
        ag_error(b->d, x->span, "a text is longer than %d bytes", MAX_SCALAR);
        return x;
    }
    x->text = (Str){b->r->text + e->text, e->ntext};
    if (e->type == YAML_SCALAR_EVENT && !e->anchor && !e->tag) locate(b, e, x);
    if (x->text.n && memchr(x->text.s, 0, (size_t)x->text.n)) ag_error(b->d, x->span, "a NUL character (\\0) in a text is not allowed");
    return x;
}

static Doc *collection(Builder *b, const Event *e, DocKind kind) {
    Doc *x = NEW(b->d->arena, Doc);
    x->kind = kind;
    x->span = first_line(b, e->from, (uint32_t)b->r->src.n);
    return x;
}

static void check_key(Builder *b, const Doc *map, const Doc *key) {
    if (key->kind != DOC_SCALAR) {
        ag_error(b->d, key->span, "a key must be a name, found a %s", key->kind == DOC_LIST ? "list" : "map");
        return;
    }
    if (key->text.n == 0) ag_error(b->d, key->span, "a key is empty");
    if (ag_str_is(key->text, "<<") && !key->quoted) ag_error(b->d, key->span, "merge keys (<<) are not allowed: write the keys out");
    for (int i = 0; i < map->n; i++) {
        if (map->key[i]->kind != DOC_SCALAR || !ag_str_eq(map->key[i]->text, key->text)) continue;
        ag_error(b->d, key->span, "duplicate key '%s'", ag_clip(b->d->arena, key->text).s);
        ag_note(b->d, map->key[i]->span, "first given here");
        return;
    }
}

static void add(Builder *b, Doc *x) {
    if (b->depth == 0) {
        b->root = x;
        return;
    }
    Frame *f = &b->frame[b->depth];
    Arena *a = b->d->arena;
    Doc *in = f->node;
    if (in->kind == DOC_LIST) {
        PUSH(a, in->item, in->n, f->cap_item) = x;
    } else if (!f->key) {
        check_key(b, in, x);
        f->key = x;
    } else {
        int n = in->n;
        PUSH(a, in->key, n, f->cap_key) = f->key;
        PUSH(a, in->item, in->n, f->cap_item) = x;
        f->key = NULL;
    }
}

static void open_collection(Builder *b, Doc *x) {
    add(b, x);
    b->frame[++b->depth] = (Frame){.node = x};
}

static void close_collection(Builder *b, const Event *e) {
    Doc *x = b->frame[b->depth--].node;
    if (x->span.off + x->span.len > e->to && e->to > x->span.off) x->span.len = e->to - x->span.off;
}

static void check_properties(Builder *b, const Event *e) {
    if (e->anchor) ag_error(b->d, property(b, e->from, '&'), "anchors (&name) are not allowed: write the value out where it is needed");
    if (e->tag) ag_error(b->d, property(b, e->from, '!'), "tags (!name) are not allowed: remove it");
}

/* One event; false at a second document. */
static bool step(Builder *b, const Event *e, bool seen) {
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (e->tag) ag_error(b->d, first_line(b, e->from, e->to), "directives other than %%YAML 1.1 and %%YAML 1.2 are not allowed");
        if (seen) ag_error(b->d, first_line(b, e->from, e->to), "a second document: one file holds one");
        return !seen;
    case YAML_ALIAS_EVENT:
        ag_error(b->d, first_line(b, e->from, e->to), "aliases (*name) are not allowed: write the value out");
        add(b, scalar(b, e));
        return true;
    case YAML_SCALAR_EVENT:
        check_properties(b, e);
        add(b, scalar(b, e));
        return true;
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        check_properties(b, e);
        open_collection(b, collection(b, e, e->type == YAML_SEQUENCE_START_EVENT ? DOC_LIST : DOC_MAP));
        return true;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: close_collection(b, e); return true;
    default: return true;
    }
}

static void build(Builder *b) {
    bool seen = false;
    for (int i = 0; i < b->r->nevent; i++) {
        const Event *e = &b->r->event[i];
        if (!step(b, e, seen)) return;
        seen |= e->type == YAML_DOCUMENT_START_EVENT;
    }
}

/* A document of nothing, as "---" or only comments, has one empty plain scalar or no root. */
static bool is_nothing(const Doc *root) { return !root || (root->kind == DOC_SCALAR && !root->quoted && root->text.n == 0); }

Doc *ag_doc_parse(Diag *d, uint16_t file) {
    int errors = d->nerror;
    Reader r = {.src = d->file[file].text};
    if (!check_text(d, file, &r)) return NULL;
    if (r.checkpoint) fill_checkpoints(&r);

    /* No more than two events and two bytes of text come from one byte of source. */
    size_t n = (size_t)r.src.n, most = 2 * MAX_NODES + 16;
    r.max_event = (int)(2 * n + 16 < most ? 2 * n + 16 : most);
    r.event = NEWN(d->arena, Event, (size_t)r.max_event);
    r.max_text = 2 * n;
    r.text = ag_alloc(d->arena, r.max_text + 1);
    collect(&r);
    if (r.oom) ag_oom(d->arena);

    Builder *b = NEW(d->arena, Builder);
    *b = (Builder){.d = d, .file = file, .r = &r};
    build(b);
    if (r.problem) report_problem(d, file, &r);
    return d->nerror > errors || is_nothing(b->root) ? NULL : b->root;
}

Doc *ag_doc_get(const Doc *map, const char *key) {
    if (!map || map->kind != DOC_MAP) return NULL;
    for (int i = 0; i < map->n; i++)
        if (ag_str_is(map->key[i]->text, key)) return map->item[i];
    return NULL;
}

Span ag_doc_sub(const Doc *x, int from, int len) {
    assert(from >= 0 && len >= 0 && from + len <= x->text.n);
    Span at = x->span;
    if (!x->map) return (Span){at.file, at.off + (uint32_t)from, (uint32_t)len};
    uint32_t start = x->map[from], end = len ? x->map[from + len - 1] + 1 : start;
    return (Span){at.file, start, end - start};
}
