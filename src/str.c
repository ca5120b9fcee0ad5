/* str.c: text: slices, formatting, numbers, the nearest word. */
#include "base.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Str ag_str(const char *cstr) { return (Str){cstr, (int)strlen(cstr)}; }
bool ag_str_eq(Str a, Str b) { return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, (size_t)a.n) == 0); }
bool ag_str_is(Str a, const char *cstr) { return ag_str_eq(a, ag_str(cstr)); }

Str ag_str_copy(Arena *a, Str s) {
    char *p = ag_alloc(a, (size_t)s.n + 1);
    if (s.n) memcpy(p, s.s, (size_t)s.n);
    return (Str){p, s.n};
}

Str ag_vfmt(Arena *a, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0) n = 0;
    char *p = ag_alloc(a, (size_t)n + 1);
    vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return (Str){p, n};
}

Str ag_fmt(Arena *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    Str s = ag_vfmt(a, fmt, ap);
    va_end(ap);
    return s;
}

Str ag_clip(Arena *a, Str s) {
    enum { LONGEST = 40 };
    if (s.n <= LONGEST) return ag_str_copy(a, s);
    int n = LONGEST;
    while (n > 0 && ((unsigned char)s.s[n] & 0xC0) == 0x80) n--; /* not inside a character */
    return ag_fmt(a, "%.*s...", n, s.s);
}

uint32_t ag_utf8(const char *s, size_t n, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char c = (unsigned char)s[0];
    uint32_t len = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    uint32_t x = len == 1 ? c : c & (0x7Fu >> len);
    for (uint32_t i = 1; i < len; i++) {
        if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
        x = x << 6 | ((unsigned char)s[i] & 0x3F);
    }
    if (x < least[len] || x > 0x10FFFF || (x >= 0xD800 && x <= 0xDFFF)) return 0;
    *code = x;
    return len;
}

/* ---- the nearest word */

enum { WORD = 48 };

static int lower(char c) { return tolower((unsigned char)c); }
static int min2(int a, int b) { return a < b ? a : b; }

/* Optimal string alignment distance without regard to case: insertions, deletions, changes and swaps of neighbours cost 1. */
static int distance(Str a, Str b) {
    int row[3][WORD + 1];
    int *before = row[0], *last = row[1], *now = row[2];
    for (int j = 0; j <= b.n; j++) last[j] = j;
    for (int i = 1; i <= a.n; i++) {
        now[0] = i;
        for (int j = 1; j <= b.n; j++) {
            int change = last[j - 1] + (lower(a.s[i - 1]) != lower(b.s[j - 1]));
            now[j] = min2(change, 1 + min2(last[j], now[j - 1]));
            bool swap = i > 1 && j > 1 && lower(a.s[i - 1]) == lower(b.s[j - 2]) && lower(a.s[i - 2]) == lower(b.s[j - 1]);
            if (swap) now[j] = min2(now[j], before[j - 2] + 1);
        }
        int *free_row = before;
        before = last, last = now, now = free_row;
    }
    return last[b.n];
}

const char *ag_nearest(Str word, const char *const *names) {
    const char *best = NULL;
    int best_distance = WORD;
    if (word.n > WORD) return NULL;
    for (; *names; names++) {
        Str name = ag_str(*names);
        if (name.n > WORD) continue;
        int longer = word.n > name.n ? word.n : name.n;
        int n = distance(word, name);
        if (n > (longer + 1) / 3 || n >= longer || n >= best_distance) continue;
        best = *names;
        best_distance = n;
    }
    return best;
}

/* ---- growable text */

static bool reserve(Buf *b, size_t more) {
    if (b->oom) return false;
    if (more < b->cap - b->n) return true; /* one byte is kept for the NUL */
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->n <= more) {
        if (cap > SIZE_MAX / 2) return !(b->oom = true);
        cap *= 2;
    }
    char *s = realloc(b->s, cap);
    if (!s) return !(b->oom = true);
    b->s = s;
    b->cap = cap;
    return true;
}

void ag_putn(Buf *b, const char *s, size_t n) {
    if (!reserve(b, n)) return;
    if (n) memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = 0;
}

void ag_vput(Buf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0 && reserve(b, (size_t)n)) {
        vsnprintf(b->s + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void ag_put(Buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    ag_vput(b, fmt, ap);
    va_end(ap);
}

void ag_buf_free(Buf *b) {
    free(b->s);
    *b = (Buf){0};
}

/* ---- numbers */

void ag_put_double(Buf *b, double x) {
    if (isnan(x) || isinf(x)) {
        ag_put(b, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    char raw[64];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(raw, sizeof raw, "%.*g", digits, x);
        if (strtod(raw, NULL) == x) break;
    }
    if (strchr(raw, 'e') && fabs(x) >= 1 && fabs(x) < 1e17) snprintf(raw, sizeof raw, "%.0f", x); /* a whole number */
    /* Whatever is no digit, sign or exponent is the decimal point of the locale. */
    bool real = false;
    for (const char *p = raw; *p; p++) {
        bool digit = isdigit((unsigned char)*p) || *p == '-' || *p == '+';
        if (digit || *p == 'e') {
            real |= *p == 'e';
            ag_putn(b, p, 1);
        } else if (!real) {
            real = true;
            ag_putn(b, ".", 1);
        }
    }
    if (!real) ag_putn(b, ".0", 2);
}

static const char *digits_end(const char *p, const char *end) {
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p;
}

/* [0-9]+ [. [0-9]*] [(e|E) [+-] [0-9]+]  or  . [0-9]+ ...; returns whether all of s has this form. */
static bool is_decimal(const char *p, const char *end) {
    const char *whole = digits_end(p, end);
    const char *point = whole;
    if (point < end && *point == '.') point = digits_end(point + 1, end);
    if (point - p - (point > whole) < 1) return false;
    if (point == end) return true;
    if (*point != 'e' && *point != 'E') return false;
    const char *e = point + 1;
    if (e < end && (*e == '+' || *e == '-')) e++;
    return e < end && digits_end(e, end) == end;
}

bool ag_parse_double(Str s, double *out) {
    const char *end = s.s + s.n, *p = s.s;
    if (p < end && (*p == '+' || *p == '-')) p++;
    if (!is_decimal(p, end)) return false;
    char small[64], *text = (size_t)s.n < sizeof small ? small : malloc((size_t)s.n + 1);
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (text && c) {
        memcpy(text, s.s, (size_t)s.n);
        text[s.n] = 0;
        *out = strtod_l(text, NULL, c);
    }
    bool ok = text && c;
    if (c) freelocale(c);
    if (text != small) free(text);
    return ok;
}
