/* embed.c: turns files into C tables at build time.  Runs on the build machine, depends on nothing.
 *
 *   embed leaves  OUT.c FILE...     OUT.c defines ag_table_leaf (src/leaf.h)
 *   embed shipped OUT.c FILE...     OUT.c defines ag_table_spec and ag_table_schedule (src/input.h), by the folder of each file
 *
 * A leaf file is a sequence of
 *   //@ leaf NAME
 *   //@ leaf NAME needs A B C
 * each followed by the text of the leaf, up to the next marker.  Before the first marker only comments and blank lines may stand. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEAVES = 1024, MAX_NEEDS = 32 };

typedef struct Piece {
    char *name, *file;
    int line;
    char *needs[MAX_NEEDS];
    int nneeds;
    const char *text;
    size_t len;
} Piece;

static Piece leaf[MAX_LEAVES];
static int nleaf;

static void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("embed: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

static void *must(void *p) {
    if (!p) die("out of memory");
    return p;
}

static char *copy(const char *s, size_t n) {
    char *c = must(malloc(n + 1));
    memcpy(c, s, n);
    c[n] = '\0';
    return c;
}

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f) die("%s: %s", path, strerror(errno));
    size_t cap = 4096, n = 0;
    char *s = must(malloc(cap + 1));
    for (size_t got; (got = fread(s + n, 1, cap - n, f)) > 0;) {
        n += got;
        if (n == cap) s = must(realloc(s, (cap *= 2) + 1));
    }
    if (ferror(f)) die("%s: %s", path, strerror(errno));
    fclose(f);
    s[n] = '\0';
    if (memchr(s, '\0', n)) die("%s: contains a NUL byte", path);
    *len = n;
    return s;
}

/* The last `parts` components of a path: "…/templates/sm80/mma.cuh", 2 -> "sm80/mma.cuh". */
static const char *tail(const char *path, int parts) {
    const char *p = path + strlen(path);
    while (p > path && !(p[-1] == '/' && --parts == 0)) p--;
    return p;
}

/* File name without folder and extension. */
static char *stem(const char *path) {
    const char *base = tail(path, 1), *dot = strrchr(base, '.');
    return copy(base, dot ? (size_t)(dot - base) : strlen(base));
}

static int by_path(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static int by_stem(const void *a, const void *b) { return strcmp(stem(*(char *const *)a), stem(*(char *const *)b)); }

/* A const char array: no string literal may exceed the 4095 bytes of C11, so the bytes are listed. */
static void print_bytes(FILE *out, const char *name, int id, const char *s, size_t n) {
    fprintf(out, "static const char %s_%d[] = {", name, id);
    for (size_t i = 0; i < n; i++) fprintf(out, "%s%d,", i % 32 == 0 ? "\n    " : "", (signed char)s[i]);
    fprintf(out, "\n    0};\n");
}

/* ---- shipped */

static void print_shipped(FILE *out, const char *folder, const char *table, char **path, int npath) {
    char **mine = must(calloc((size_t)npath + 1, sizeof *mine));
    size_t *len = must(calloc((size_t)npath + 1, sizeof *len));
    int n = 0;
    for (int i = 0; i < npath; i++)
        if (strncmp(tail(path[i], 2), folder, strlen(folder)) == 0) mine[n++] = path[i];
    qsort(mine, (size_t)n, sizeof *mine, by_stem);
    for (int i = 0; i < n; i++) {
        char *text = read_file(mine[i], &len[i]);
        print_bytes(out, table, i, text, len[i]);
        free(text);
    }
    fprintf(out, "const Shipped ag_table_%s[] = {\n", table);
    for (int i = 0; i < n; i++) fprintf(out, "    {\"%s\", %s_%d, %zu},\n", stem(mine[i]), table, i, len[i]);
    fprintf(out, "    {NULL, NULL, 0}};\n\n");
    free(mine);
    free(len);
}

/* ---- leaves */

static int is_blank_or_comment(const char *s, size_t n) {
    while (n && isspace((unsigned char)*s)) s++, n--;
    return n == 0 || (n >= 2 && s[0] == '/' && s[1] == '/');
}

static void begin_leaf(const char *file, int line, const char *s, size_t n) {
    if (nleaf == MAX_LEAVES) die("%s:%d: more than %d leaves", file, line, MAX_LEAVES);
    Piece *p = &leaf[nleaf];
    p->file = copy(file, strlen(file));
    p->line = line;
    char *words = copy(s, n), *save = NULL, *w = strtok_r(words, " \t\r", &save);
    if (!w) die("%s:%d: expected a name after `//@ leaf`", file, line);
    p->name = copy(w, strlen(w));
    for (int i = 0; i < nleaf; i++)
        if (strcmp(leaf[i].name, w) == 0) die("%s:%d: leaf %s is already in %s:%d", file, line, w, leaf[i].file, leaf[i].line);
    w = strtok_r(NULL, " \t\r", &save);
    if (w && strcmp(w, "needs") != 0) die("%s:%d: expected `needs` after the name, found `%s`", file, line, w);
    while (w && (w = strtok_r(NULL, " \t\r", &save))) {
        if (p->nneeds == MAX_NEEDS) die("%s:%d: leaf %s needs more than %d leaves", file, line, p->name, MAX_NEEDS);
        p->needs[p->nneeds++] = copy(w, strlen(w));
    }
    free(words);
    nleaf++;
}

static void end_leaf(const char *end) {
    Piece *p = &leaf[nleaf - 1];
    while (end > p->text && isspace((unsigned char)end[-1])) end--;
    if (end == p->text) die("%s:%d: leaf %s is empty", p->file, p->line, p->name);
    p->len = (size_t)(end - p->text);
}

static void read_leaves(const char *path) {
    static const char marker[] = "//@ leaf";
    size_t len;
    char *text = read_file(path, &len); /* the leaves point into it */
    int line = 1, open = 0;
    for (char *s = text, *next; s < text + len; s = next, line++) {
        char *nl = strchr(s, '\n');
        size_t n = nl ? (size_t)(nl - s) : strlen(s);
        next = nl ? nl + 1 : s + n;
        if (strncmp(s, "//@", 3) == 0) {
            if (n < sizeof marker || strncmp(s, marker, sizeof marker - 1) != 0)
                die("%s:%d: expected `//@ leaf NAME [needs A B]`", tail(path, 2), line);
            if (open) end_leaf(s);
            open = 1;
            begin_leaf(tail(path, 2), line, s + sizeof marker - 1, n - (sizeof marker - 1));
            leaf[nleaf - 1].text = next;
        } else if (!open && !is_blank_or_comment(s, n)) {
            die("%s:%d: only comments may stand before the first `//@ leaf`", tail(path, 2), line);
        }
    }
    if (open) end_leaf(text + len);
}

static void check_needs(void) {
    for (int i = 0; i < nleaf; i++)
        for (int j = 0; j < leaf[i].nneeds; j++) {
            int found = 0;
            for (int k = 0; k < nleaf && !found; k++) found = strcmp(leaf[k].name, leaf[i].needs[j]) == 0;
            if (!found) die("%s:%d: leaf %s needs %s, which no file has", leaf[i].file, leaf[i].line, leaf[i].name, leaf[i].needs[j]);
        }
}

static void print_leaves(FILE *out) {
    for (int i = 0; i < nleaf; i++) {
        char *text = copy(leaf[i].text, leaf[i].len + 1);
        text[leaf[i].len] = '\n';
        print_bytes(out, "text", i, text, leaf[i].len + 1);
        free(text);
        fprintf(out, "static const char *const needs_%d[] = {", i);
        for (int j = 0; j < leaf[i].nneeds; j++) fprintf(out, "\"%s\", ", leaf[i].needs[j]);
        fprintf(out, "NULL};\n");
    }
    fprintf(out, "const Leaf ag_table_leaf[] = {\n");
    for (int i = 0; i < nleaf; i++) fprintf(out, "    {\"%s\", needs_%d, text_%d, \"%s\"},\n", leaf[i].name, i, i, leaf[i].file);
    fprintf(out, "    {NULL, NULL, NULL, NULL}};\n");
}

int main(int argc, char **argv) {
    int leaves = argc > 2 && strcmp(argv[1], "leaves") == 0;
    if (argc < 3 || (!leaves && strcmp(argv[1], "shipped") != 0)) die("usage: embed leaves|shipped OUT.c FILE...");
    char **path = argv + 3;
    int npath = argc - 3;
    qsort(path, (size_t)npath, sizeof *path, by_path);
    if (leaves) {
        for (int i = 0; i < npath; i++) read_leaves(path[i]);
        check_needs();
    }
    FILE *out = fopen(argv[2], "wb");
    if (!out) die("%s: %s", argv[2], strerror(errno));
    fprintf(out, "/* Generated by tools/embed.c. */\n#include \"%s\"\n\n", leaves ? "leaf.h" : "input.h");
    if (!leaves) {
        fprintf(out, "extern const Shipped ag_table_spec[], ag_table_schedule[];\n");
        print_shipped(out, "specs/", "spec", path, npath);
        print_shipped(out, "schedules/", "schedule", path, npath);
    } else {
        fprintf(out, "extern const Leaf ag_table_leaf[];\n");
        print_leaves(out);
    }
    if (fclose(out) != 0) die("%s: %s", argv[2], strerror(errno));
    return 0;
}
