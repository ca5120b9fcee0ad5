/* base.h: memory, text and diagnostics of the compiler half.
 *
 * Memory: one Arena per compilation; nothing in it is freed singly.  Out of memory and "too many errors" leave through the one longjmp
 * (diag.c) to the one setjmp (compile.c), so no function below it checks for NULL or unwinds.  Nothing between the two owns anything but
 * arena memory. */
#ifndef AG_BASE_H
#define AG_BASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdnoreturn.h>

#include "attngen.h"

#define LEN(a)       ((int)(sizeof(a) / sizeof((a)[0])))
#define PRINTF(f, a) __attribute__((format(printf, f, a)))

/* ---- arena.c */
typedef struct Arena Arena;
Arena *ag_arena_new(void); /* NULL if out of memory */
void ag_arena_free(Arena *a);
void ag_arena_on_oom(Arena *a, jmp_buf *jump); /* where ag_alloc goes when memory is out; without it, abort */
enum { AG_JUMP_STOP = 1, AG_JUMP_OOM = 2 };    /* what setjmp returns after ag_stop, and when memory is out */
noreturn void ag_oom(Arena *a);                /* memory is out elsewhere too */
void *ag_alloc(Arena *a, size_t n);            /* zeroed, aligned to 16 */
#define NEW(a, T)     ((T *)ag_alloc((a), sizeof(T)))
#define NEWN(a, T, n) ((T *)ag_alloc_n((a), (n), sizeof(T)))
void *ag_alloc_n(Arena *a, size_t n, size_t size); /* checks the product */
/* Grows an arena array to hold at least len + 1 items: PUSH(arena, array, len, cap) = item. */
void *ag_grow(Arena *a, void *old, int len, int *cap, size_t size);
#define PUSH(a, arr, len, cap) ((arr) = ag_grow((a), (arr), (len), &(cap), sizeof *(arr)), &(arr)[(len)++])[0]

/* ---- text: str.c */
typedef struct Str {
    const char *s;
    int n;
} Str;
#define STR(lit) ((Str){(lit), (int)sizeof(lit) - 1})
#define STRF(x)  (x).n, (x).s /* for %.*s */
Str ag_str(const char *cstr);
bool ag_str_eq(Str a, Str b);
bool ag_str_is(Str a, const char *cstr);
Str ag_str_copy(Arena *a, Str s);                        /* NUL-terminated copy */
Str ag_fmt(Arena *a, const char *fmt, ...) PRINTF(2, 3); /* formatted, NUL-terminated */
Str ag_vfmt(Arena *a, const char *fmt, va_list ap);
Str ag_clip(Arena *a, Str s); /* s for use in a message: at most 40 bytes, then "..."; NUL-terminated */
/* Length in bytes of the UTF-8 character at s[0..n), n > 0, and its number in *code; 0 if the bytes are none (overlong, surrogate, cut off). */
uint32_t ag_utf8(const char *s, size_t n, uint32_t *code);
/* The candidate nearest to `word` by edit distance, or NULL if none is near enough to suggest.  names ends with NULL. */
const char *ag_nearest(Str word, const char *const *names);

/* Growable text, malloc'ed; `oom` becomes true instead of failing.  Ends in NUL after every call. */
typedef struct Buf {
    char *s;
    size_t n, cap;
    bool oom;
} Buf;
void ag_put(Buf *b, const char *fmt, ...) PRINTF(2, 3);
void ag_vput(Buf *b, const char *fmt, va_list ap);
void ag_putn(Buf *b, const char *s, size_t n);
void ag_buf_free(Buf *b);
/* Shortest decimal text that reads back as x, with a '.' or exponent always; "inf", "-inf", "nan". Locale-independent. */
void ag_put_double(Buf *b, double x);
/* Reads a signed decimal number, all of s; false if s is none.  Locale-independent; out of range gives an infinity or 0, as strtod. */
bool ag_parse_double(Str s, double *out);

/* ---- diag.c */

/* A stretch of source text: file index, byte offset, byte length.  file 0 = nowhere. */
typedef struct Span {
    uint16_t file;
    uint32_t off, len;
} Span;
Span ag_span_join(Span a, Span b); /* from the start of a to the end of b; a if they are of different files */

typedef struct DiagFile {
    Str name, text;
} DiagFile;

typedef struct DiagMsg DiagMsg; /* diag.c */

/* Everything one compilation shares. */
typedef struct Diag {
    Arena *arena;
    jmp_buf jump;      /* set by compile.c */
    DiagFile file[16]; /* [0] unused */
    int nfile;
    DiagMsg *first, *last; /* in order of report */
    int nerror;
    attngen_status status; /* ATTNGEN_OK, or the status of the gravest error */
} Diag;

enum { AG_MAX_ERRORS = 20 };

uint16_t ag_diag_file(Diag *d, Str name, Str text); /* registers a source, returns its index */
/* One line, lower case, no full stop: what was found, what was expected, what to change. */
void ag_error(Diag *d, Span at, const char *fmt, ...) PRINTF(3, 4);       /* the file is wrong: ATTNGEN_E_SPEC */
void ag_unsupported(Diag *d, Span at, const char *fmt, ...) PRINTF(3, 4); /* right but not possible: ATTNGEN_E_UNSUPPORTED */
void ag_internal(Diag *d, const char *fmt, ...) PRINTF(2, 3);             /* our defect: ATTNGEN_E_INTERNAL (IR checkers) */
void ag_note(Diag *d, Span at, const char *fmt, ...) PRINTF(3, 4);        /* belongs to the message before it */
noreturn void ag_stop(Diag *d);                                           /* leaves the compilation: the longjmp */
void ag_stop_if_errors(Diag *d);
/* All messages: "file:line:col: error: text", the source line, a caret with underline; display width respected, tabs shown as blanks. */
void ag_diag_render(const Diag *d, Buf *out);
void ag_line_col(const Diag *d, Span at, int *line, int *col); /* both from 1; col counts characters */

#endif
