/* diag.c: collects messages with their places, and renders them with source lines and carets. */
#include "base.h"

#include <string.h>

struct DiagMsg {
    DiagMsg *next;
    const char *kind; /* "error", "internal error", "note" */
    Span at;
    Str text;
};

Span ag_span_join(Span a, Span b) {
    if (a.file != b.file || b.off + b.len < a.off) return a;
    a.len = b.off + b.len - a.off;
    return a;
}

uint16_t ag_diag_file(Diag *d, Str name, Str text) {
    int room = LEN(d->file) - 1;
    if (d->nfile >= room) {
        ag_internal(d, "more than %d source files", room);
        ag_stop(d);
    }
    d->nfile++;
    d->file[d->nfile] = (DiagFile){name, text};
    return (uint16_t)d->nfile;
}

/* ---- reporting */

static void append(Diag *d, const char *kind, Span at, Str text) {
    DiagMsg *m = NEW(d->arena, DiagMsg);
    *m = (DiagMsg){NULL, kind, at, text};
    *(d->last ? &d->last->next : &d->first) = m;
    d->last = m;
}

static int gravity(attngen_status s) {
    switch (s) {
    case ATTNGEN_OK: return 0;
    case ATTNGEN_E_UNSUPPORTED: return 1;
    case ATTNGEN_E_SPEC: return 2;
    default: return 3;
    }
}

/* What is written once may be read for each term of a sum. */
static bool is_said(const Diag *d, Span at, Str text) {
    for (const DiagMsg *m = d->first; m; m = m->next)
        if (at.file && m->at.file == at.file && m->at.off == at.off && m->at.len == at.len && ag_str_eq(m->text, text)) return true;
    return false;
}

static void report(Diag *d, attngen_status status, const char *kind, Span at, Str text) {
    if (is_said(d, at, text)) return;
    if (d->nerror >= AG_MAX_ERRORS) {
        append(d, "error", (Span){0}, STR("too many errors"));
        ag_stop(d);
    }
    append(d, kind, at, text);
    d->nerror++;
    if (gravity(status) > gravity(d->status)) d->status = status;
}

#define FORMATTED(text, d, fmt)                                                                                                                      \
    va_list ap;                                                                                                                                      \
    va_start(ap, fmt);                                                                                                                               \
    Str text = ag_vfmt((d)->arena, fmt, ap);                                                                                                         \
    va_end(ap)

void ag_error(Diag *d, Span at, const char *fmt, ...) {
    FORMATTED(text, d, fmt);
    report(d, ATTNGEN_E_SPEC, "error", at, text);
}

void ag_unsupported(Diag *d, Span at, const char *fmt, ...) {
    FORMATTED(text, d, fmt);
    report(d, ATTNGEN_E_UNSUPPORTED, "error", at, text);
}

void ag_internal(Diag *d, const char *fmt, ...) {
    FORMATTED(text, d, fmt);
    report(d, ATTNGEN_E_INTERNAL, "internal error", (Span){0}, text);
}

void ag_note(Diag *d, Span at, const char *fmt, ...) {
    FORMATTED(text, d, fmt);
    append(d, "note", at, text);
}

noreturn void ag_stop(Diag *d) { longjmp(d->jump, AG_JUMP_STOP); }

void ag_stop_if_errors(Diag *d) {
    if (d->nerror) ag_stop(d);
}

/* ---- characters */

/* As ag_utf8, but bytes that are no character count as one each, with code -1. */
static int decode(const char *s, size_t n, int *code) {
    uint32_t c, len = ag_utf8(s, n, &c);
    *code = len ? (int)c : -1;
    return len ? (int)len : 1;
}

typedef struct Range {
    int lo, hi;
} Range;

static bool in_ranges(int code, const Range *r, int n) {
    for (int i = 0; i < n; i++)
        if (code >= r[i].lo && code <= r[i].hi) return true;
    return false;
}

/* Characters that would upset a terminal or hide what a line says: controls, directional marks, what is assigned to nothing. */
static const Range unsafe[] = {{-1, 0x1F},       {0x7F, 0x9F},     {0x200B, 0x200F}, {0x2028, 0x202E},   {0x2060, 0x206F},
                               {0xD800, 0xDFFF}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFF}, {0xE0000, 0x10FFFF}};
static const Range narrow[] = {{0x300, 0x36F},   {0x483, 0x489},   {0x591, 0x5BD},   {0x64B, 0x65F},  {0x1AB0, 0x1AFF},
                               {0x1DC0, 0x1DFF}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}};
static const Range wide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},  {0xA960, 0xA97F}, {0xAC00, 0xD7A3},
                             {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},  {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F},
                             {0x1F680, 0x1F6FF}, {0x1F900, 0x1FAFF}, {0x20000, 0x3FFFD}};

/* Columns on the screen; an unsafe character is shown as one '?'. */
static int width(int code) {
    if (code >= 0x20 && code < 0x7F) return 1;
    if (in_ranges(code, unsafe, LEN(unsafe))) return 1;
    if (in_ranges(code, narrow, LEN(narrow))) return 0;
    return in_ranges(code, wide, LEN(wide)) ? 2 : 1;
}

/* Puts the characters of s as they may be shown, and returns their width. */
static int put_shown(Buf *out, const char *s, size_t n) {
    int columns = 0, code;
    for (size_t i = 0; i < n;) {
        int len = decode(s + i, n - i, &code);
        if (code == '\t')
            ag_putn(out, " ", 1);
        else if (in_ranges(code, unsafe, LEN(unsafe)))
            ag_putn(out, "?", 1);
        else
            ag_putn(out, s + i, (size_t)len);
        columns += width(code);
        i += (size_t)len;
    }
    return columns;
}

static int columns_of(const char *s, size_t n) {
    int columns = 0, code;
    for (size_t i = 0; i < n;) {
        i += (size_t)decode(s + i, n - i, &code);
        columns += width(code);
    }
    return columns;
}

/* ---- places */

static size_t byte_order_mark(Str text) { return text.n >= 3 && memcmp(text.s, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; }

/* The line that holds byte `off` of the text, without its end and without a byte order mark: [*from, *to). */
static void line_of(Str text, size_t off, size_t *from, size_t *to) {
    size_t n = (size_t)text.n, a = off, b = off;
    while (a > 0 && text.s[a - 1] != '\n') a--;
    while (b < n && text.s[b] != '\n') b++;
    if (b > a && text.s[b - 1] == '\r') b--;
    *from = a == 0 ? byte_order_mark(text) : a;
    *to = b < *from ? *from : b;
}

static size_t start_of(Str text, Span at) { return at.off < (size_t)text.n ? at.off : (size_t)text.n; }

void ag_line_col(const Diag *d, Span at, int *line, int *col) {
    Str text = d->file[at.file].text;
    size_t off = start_of(text, at), from, to;
    line_of(text, off, &from, &to);
    *line = *col = 1;
    for (size_t i = 0; i < from; i++) *line += text.s[i] == '\n';
    for (size_t i = from; i < off; ++*col) {
        int code;
        i += (size_t)decode(text.s + i, off - i, &code);
    }
}

/* ---- rendering */

enum { WINDOW = 120, BEFORE = 60 }; /* widest line shown; room for what precedes the caret in a cut one, in bytes */

/* Moves to the start of the character that holds s[i]. */
static size_t char_start(const char *s, size_t low, size_t i) {
    for (int back = 0; back < 3 && i > low && ((unsigned char)s[i] & 0xC0) == 0x80; back++) i--;
    return i;
}

/* The source line of `at` and the carets under it. */
static void put_line(Buf *out, Str text, Span at) {
    size_t off = start_of(text, at), from, to;
    line_of(text, off, &from, &to);
    if (off > to) off = to;
    if (off < from) off = from;
    size_t end = at.len < to - off ? off + at.len : to;

    bool cut_front = false, cut_back = false;
    if (to - from > WINDOW) {
        if (off - from > BEFORE) cut_front = true, from = char_start(text.s, from, off - BEFORE);
        if (to - from > WINDOW) cut_back = true, to = char_start(text.s, off, from + WINDOW);
        if (end > to) end = to;
    }
    ag_put(out, "%s", cut_front ? "    ..." : "    ");
    put_shown(out, text.s + from, to - from);
    ag_put(out, "%s\n", cut_back ? "..." : "");

    int indent = (cut_front ? 7 : 4) + columns_of(text.s + from, off - from);
    int under = columns_of(text.s + off, end - off);
    ag_put(out, "%*s^", indent, "");
    while (under-- > 1) ag_putn(out, "~", 1);
    ag_putn(out, "\n", 1);
}

void ag_diag_render(const Diag *d, Buf *out) {
    for (const DiagMsg *m = d->first; m; m = m->next) {
        const DiagFile *file = m->at.file ? &d->file[m->at.file] : NULL;
        if (file) {
            int line, col;
            ag_line_col(d, m->at, &line, &col);
            put_shown(out, file->name.s, (size_t)file->name.n);
            ag_put(out, ":%d:%d: ", line, col);
        }
        ag_put(out, "%s: ", m->kind);
        put_shown(out, m->text.s, (size_t)m->text.n);
        ag_putn(out, "\n", 1);
        if (file) put_line(out, file->text, m->at);
    }
}
