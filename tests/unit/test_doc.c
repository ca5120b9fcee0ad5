/* The YAML subset: trees, places, and the exact texts for hostile files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "with_diag.h"

/* ---- trees: parsed, then written in one line */

static void put_tree(Buf *out, const Doc *x) {
    if (x->kind == DOC_SCALAR) {
        ag_put(out, x->quoted ? "'%.*s'" : "%.*s", STRF(x->text));
        return;
    }
    ag_put(out, x->kind == DOC_LIST ? "[" : "{");
    for (int i = 0; i < x->n; i++) {
        ag_put(out, i ? ", " : "");
        if (x->kind == DOC_MAP) ag_put(out, "%.*s: ", STRF(x->key[i]->text));
        put_tree(out, x->item[i]);
    }
    ag_put(out, x->kind == DOC_LIST ? "]" : "}");
}

static void parse(Diag *d, uint16_t file, void *payload) {
    const Doc *x = ag_doc_parse(d, file);
    if (x)
        put_tree(payload, x);
    else
        ag_put(payload, "nothing");
}

static void tree(Str text, const char *want) {
    Buf got = {0};
    char *errors = report_of(text, parse, &got, NULL);
    assert_string_equal(errors, "");
    assert_string_equal(got.s, want);
    free(errors);
    ag_buf_free(&got);
}

static void test_trees(void **state) {
    (void)state;
    tree(STR("a: 1\nb: [x, 'y z', {c: d}]\n"), "{a: 1, b: [x, 'y z', {c: d}]}");
    tree(STR("- 1\n- - 2\n  - 3\n"), "[1, [2, 3]]");
    tree(STR("no: yes\n017: ~\n"), "{no: yes, 017: ~}");
    tree(STR("a:\nb: ''\n"), "{a: , b: ''}");
    tree(STR("%YAML 1.2\n---\na: 1\n...\n"), "{a: 1}");
    tree(STR("%YAML 1.1\n---\na: 1\n"), "{a: 1}");
    tree(STR("\xEF\xBB\xBF"
             "a: 1\n"),
         "{a: 1}");
    tree(STR("a: |\n  x\n  y\n"), "{a: 'x\ny\n'}");
    tree(STR("\"<<\": 1\n"), "{<<: 1}");
    tree(STR("just text"), "just text");
}

static void test_nothing(void **state) {
    (void)state;
    tree(STR(""), "nothing");
    tree(STR("\n\n  \n"), "nothing");
    tree(STR("# only\n# comments\n"), "nothing");
    tree(STR("---\n"), "nothing");
    tree(STR("\xEF\xBB\xBF"), "nothing");
}

/* ---- errors to the letter */

static void parse_only(Diag *d, uint16_t file, void *payload) {
    const Doc **x = payload;
    *x = ag_doc_parse(d, file);
}

static void refuse(Str text, const char *want) {
    const Doc *x = NULL;
    attngen_status status;
    char *got = report_of(text, parse_only, &x, &status);
    assert_string_equal(got, want);
    assert_null(x);
    assert_int_equal(status, ATTNGEN_E_SPEC);
    free(got);
}

static void test_encoding(void **state) {
    (void)state;
    refuse((Str){"a: b\0c\n", 7}, "t.yaml:1:5: error: a NUL byte: the file is not text\n    a: b?c\n        ^\n");
    refuse(STR("a: \xFF\n"), "t.yaml:1:4: error: invalid UTF-8: byte 0xff\n    a: ?\n       ^\n");
    refuse(STR("k\xC3\xA9: \xC3"), "t.yaml:1:5: error: invalid UTF-8: byte 0xc3\n    k\xC3\xA9: ?\n        ^\n");
    refuse(STR("a: \xC0\x80\n"), "t.yaml:1:4: error: invalid UTF-8: byte 0xc0\n    a: ??\n       ^\n");           /* overlong NUL */
    refuse(STR("a: \xE0\x80\x80\n"), "t.yaml:1:4: error: invalid UTF-8: byte 0xe0\n    a: ???\n       ^\n");      /* overlong */
    refuse(STR("a: \xED\xA0\x80\n"), "t.yaml:1:4: error: invalid UTF-8: byte 0xed\n    a: ???\n       ^\n");      /* surrogate */
    refuse(STR("a: \xF4\x90\x80\x80\n"), "t.yaml:1:4: error: invalid UTF-8: byte 0xf4\n    a: ????\n       ^\n"); /* past U+10FFFF */
    refuse(STR("a: \x01\n"), "t.yaml:1:4: error: control character U+0001 is not allowed\n    a: ?\n       ^\n");
    refuse(STR("a: \x1B[2J\n"), "t.yaml:1:4: error: control character U+001B is not allowed\n    a: ?[2J\n       ^\n");
    refuse(STR("a: b\xEF\xBB\xBF\n"), "t.yaml:1:5: error: control character U+FEFF is not allowed\n    a: b?\n        ^\n");
    refuse((Str){"\xFF\xFE"
                 "a\0:\0",
                 6},
           "t.yaml:1:1: error: the file is UTF-16: save it as UTF-8\n    ??a?:?\n    ^~\n");
    refuse((Str){"\xFE\xFF\0a\0:", 6}, "t.yaml:1:1: error: the file is UTF-16: save it as UTF-8\n    ???a?:\n    ^~\n");
    refuse((Str){"a\0:\0", 4}, "t.yaml:1:2: error: a NUL byte: the file is not text\n    a?:?\n     ^\n"); /* UTF-16 without its mark */
}

static void test_subset(void **state) {
    (void)state;
    refuse(STR("a: &x 1\nb: *x\n"),
           "t.yaml:1:4: error: anchors (&name) are not allowed: write the value out where it is needed\n    a: &x 1\n       ^~\n"
           "t.yaml:2:4: error: aliases (*name) are not allowed: write the value out\n    b: *x\n       ^~\n");
    refuse(STR("a: &x [*x]\n"),
           "t.yaml:1:4: error: anchors (&name) are not allowed: write the value out where it is needed\n    a: &x [*x]\n       ^~\n"
           "t.yaml:1:8: error: aliases (*name) are not allowed: write the value out\n    a: &x [*x]\n           ^~\n");
    refuse(STR("a: *nope\n"), "t.yaml:1:4: error: aliases (*name) are not allowed: write the value out\n    a: *nope\n       ^~~~~\n");
    refuse(STR("a: {b: 1}\n<<: {b: 2}\n"), "t.yaml:2:1: error: merge keys (<<) are not allowed: write the keys out\n    <<: {b: 2}\n    ^~\n");
    refuse(STR("a: !!int \"3\"\nb: !x {c: 1}\n"), "t.yaml:1:4: error: tags (!name) are not allowed: remove it\n    a: !!int \"3\"\n       ^~~~~\n"
                                                  "t.yaml:2:4: error: tags (!name) are not allowed: remove it\n    b: !x {c: 1}\n       ^~\n");
    refuse(STR("a: ! 1\n"), "t.yaml:1:4: error: tags (!name) are not allowed: remove it\n    a: ! 1\n       ^\n");
    refuse(STR("a: !u!x 1\n"), "t.yaml:1:4: error: tags (!name) are not allowed: remove it\n"
                               "    a: !u!x 1\n"
                               "       ^\n");
    refuse(STR("tile: 1\nb: 2\ntile: 3\n"),
           "t.yaml:3:1: error: duplicate key 'tile'\n    tile: 3\n    ^~~~\nt.yaml:1:1: note: first given here\n    tile: 1\n    ^~~~\n");
    refuse(STR("? [a, b]\n: 1\n? {c: d}\n: 2\n"), "t.yaml:1:3: error: a key must be a name, found a list\n    ? [a, b]\n      ^~~~~~\n"
                                                  "t.yaml:3:3: error: a key must be a name, found a map\n    ? {c: d}\n      ^~~~~~\n");
    refuse(STR("'': 1\n"), "t.yaml:1:2: error: a key is empty\n    '': 1\n     ^\n");
    refuse(STR("a: \"x\\0y\"\n"), "t.yaml:1:5: error: a NUL character (\\0) in a text is not allowed\n    a: \"x\\0y\"\n        ^~~~\n");
}

static void test_documents(void **state) {
    (void)state;
    refuse(STR("a: 1\n---\nb: 2\n"), "t.yaml:2:1: error: a second document: one file holds one\n    ---\n    ^~~\n");
    refuse(STR("%YAML 1.3\n---\na: 1\n"),
           "t.yaml:1:1: error: this YAML version is not supported, expected %YAML 1.1 or %YAML 1.2\n    %YAML 1.3\n    ^\n");
    refuse(STR("%FOO bar\n---\na: 1\n"), "t.yaml:1:5: error: directives other than %YAML 1.1 and %YAML 1.2 are not allowed\n"
                                         "    %FOO bar\n"
                                         "        ^\n"
                                         "t.yaml:1:1: note: while scanning a directive that begins here\n"
                                         "    %FOO bar\n"
                                         "    ^\n");
    refuse(STR("%TAG ! tag:x,1:\n---\na: 1\n"), "t.yaml:1:1: error: directives other than %YAML 1.1 and %YAML 1.2 are not allowed\n"
                                                "    %TAG ! tag:x,1:\n    ^~~~~~~~~~~~~~~\n");
}

static void test_syntax(void **state) {
    (void)state;
    refuse(STR("a: [1, 2\n"), "t.yaml:1:9: error: expected ',' or ']'\n"
                              "    a: [1, 2\n"
                              "            ^\n"
                              "t.yaml:1:4: note: while parsing a flow sequence that begins here\n"
                              "    a: [1, 2\n"
                              "       ^\n");
    refuse(STR("a: {b: 1\nc: 2\n"), "t.yaml:2:2: error: expected ',' or '}'\n"
                                    "    c: 2\n"
                                    "     ^\n"
                                    "t.yaml:1:4: note: while parsing a flow mapping that begins here\n"
                                    "    a: {b: 1\n"
                                    "       ^\n");
    refuse(STR("a: 'b\n"), "t.yaml:1:6: error: the text in quotes has no end\n"
                           "    a: 'b\n"
                           "         ^\n"
                           "t.yaml:1:4: note: while scanning a quoted scalar that begins here\n"
                           "    a: 'b\n"
                           "       ^\n");
    refuse(STR("a: b: c\n"), "t.yaml:1:5: error: unexpected ':': check the indentation, or put text that holds ': ' in quotes\n"
                             "    a: b: c\n"
                             "        ^\n");
    refuse(STR("a:\n\tb: 1\n"), "t.yaml:2:1: error: a tab cannot indent: use blanks\n"
                                "     b: 1\n"
                                "    ^\n");
    refuse(STR("a: @b\n"), "t.yaml:1:4: error: '@' cannot start a value: put the text in quotes\n"
                           "    a: @b\n"
                           "       ^\n");
    refuse(STR("a: %b\n"), "t.yaml:1:4: error: '%' cannot start a value: put the text in quotes\n"
                           "    a: %b\n"
                           "       ^\n");
    refuse(STR("a: 1\n b: 2\n"), "t.yaml:2:3: error: unexpected ':': check the indentation, or put text that holds ': ' in quotes\n"
                                 "     b: 2\n"
                                 "      ^\n");
    refuse(STR("a: 1\nb\nc: 2\n"), "t.yaml:3:1: error: expected ':' after the key\n"
                                   "    c: 2\n"
                                   "    ^\n"
                                   "t.yaml:2:1: note: while scanning a simple key that begins here\n"
                                   "    b\n"
                                   "    ^\n");
    refuse(STR("a: 1\n]\n"), "t.yaml:2:1: error: expected a key: check the indentation\n"
                             "    ]\n"
                             "    ^\n"
                             "t.yaml:1:1: note: while parsing a block mapping that begins here\n"
                             "    a: 1\n"
                             "    ^\n");
    refuse(STR("- a\nb: 1\n"), "t.yaml:2:1: error: expected '- ': check the indentation\n"
                               "    b: 1\n"
                               "    ^\n"
                               "t.yaml:1:1: note: while parsing a block collection that begins here\n"
                               "    - a\n"
                               "    ^\n");
    refuse(STR("a: \"\\q\"\n"), "t.yaml:1:5: error: unknown escape after '\\'\n"
                                "    a: \"\\q\"\n"
                                "        ^\n"
                                "t.yaml:1:4: note: while parsing a quoted scalar that begins here\n"
                                "    a: \"\\q\"\n"
                                "       ^\n");
    refuse(STR("k\xC3\xA9y\xC3\xA9: [\n"), "t.yaml:1:8: error: expected a value\n"
                                           "    k\xC3\xA9y\xC3\xA9: [\n"
                                           "           ^\n");
    /* what came before the broken place is checked too */
    refuse(STR("a: 1\na: 2\nb: *x\nc: [\n"), "t.yaml:2:1: error: duplicate key 'a'\n"
                                             "    a: 2\n"
                                             "    ^\n"
                                             "t.yaml:1:1: note: first given here\n"
                                             "    a: 1\n"
                                             "    ^\n"
                                             "t.yaml:3:4: error: aliases (*name) are not allowed: write the value out\n"
                                             "    b: *x\n"
                                             "       ^~\n"
                                             "t.yaml:4:5: error: expected a value\n"
                                             "    c: [\n"
                                             "        ^\n");
}

/* ---- limits, each within a second */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* not the wall clock: others may run beside */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* `count` times `piece`, between `before` and `after`. */
static Str repeated(Buf *b, const char *before, const char *piece, int count, const char *after) {
    ag_put(b, "%s", before);
    for (int i = 0; i < count; i++) ag_putn(b, piece, strlen(piece));
    ag_put(b, "%s", after);
    return (Str){b->s, (int)b->n};
}

/* Refuses the repeated text within a second; the report starts with `first_line`. */
static void refuse_big(const char *before, const char *piece, int count, const char *after, const char *first_line) {
    Buf b = {0};
    const Doc *x = NULL;
    Str text = repeated(&b, before, piece, count, after);
    double start = now();
    char *got = report_of(text, parse_only, &x, NULL);
    assert_true(now() - start < 1.0);
    got[strcspn(got, "\n")] = 0;
    assert_string_equal(got, first_line);
    assert_null(x);
    free(got);
    ag_buf_free(&b);
}

static void test_limits(void **state) {
    (void)state;
    const char *deep = "nesting is deeper than 32 levels", *many = "the file has more than 20000 values";
    char want[200];
#define WANT(place, text) (snprintf(want, sizeof want, "t.yaml:%s: error: %s", place, text), want)
    refuse_big("", "[", 10000000, "", "t.yaml:1:1: error: the file has 10000000 bytes, more than the 1048576 allowed");
    refuse_big("", "[", 1000000, "", WANT("1:33", deep));
    refuse_big("", "[\n", 500000, "", WANT("33:1", deep));
    refuse_big("", "{a: ", 250000, "", WANT("1:129", deep));
    refuse_big("", "- ", 500000, "", WANT("1:65", deep));
    refuse_big("", "? ", 500000, "", "t.yaml:1:3: error: a key must be a name, found a map");
    refuse_big("", "[", 33, "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]", WANT("1:33", deep));
    refuse_big("[", "a,", 300000, "]", WANT("1:40000", many));
    refuse_big("", "- a\n", 30000, "", WANT("20000:3", many));
    refuse_big("a: ", "x", 70000, "\n", "t.yaml:1:4: error: a text is longer than 65536 bytes");
    refuse_big("a: |\n  ", "x", 70000, "\n", "t.yaml:1:4: error: a text is longer than 65536 bytes");
    refuse_big("", "k", 2000, ": 1\n", "t.yaml:1:2001: error: unexpected ':': check the indentation, or put text that holds ': ' in quotes");
    refuse_big("? ", "k", 70000, "\n: 1\n", "t.yaml:1:3: error: a text is longer than 65536 bytes");
    refuse_big("a: \"", "\\u20ac", 100000, "\"\n", "t.yaml:1:4: error: a text is longer than 65536 bytes");
    refuse_big("a: [", "&x", 400000, "\n", "t.yaml:1:7: error: did not find expected alphabetic or numeric character");
    refuse_big("", "&a *a\n", 100000, "", "t.yaml:1:1: error: anchors (&name) are not allowed: write the value out where it is needed");
    refuse_big("", "%TAG !a! b\n", 90000, "", "t.yaml:2:1: error: directives other than %YAML 1.1 and %YAML 1.2 are not allowed");
    refuse_big("", "a: 1\n", 9000, "", "t.yaml:2:1: error: duplicate key 'a'");
    refuse_big("", "*a ", 1000, "", "t.yaml:1:1: error: aliases (*name) are not allowed: write the value out");
    refuse_big("", "---\n", 100000, "", "t.yaml:2:1: error: a second document: one file holds one");
}

static void test_within_limits(void **state) {
    (void)state;
    Buf b = {0};
    const Doc *x = NULL;
    char *got = report_of(repeated(&b, "", "[", 32, "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"), parse_only, &x, NULL);
    assert_string_equal(got, "");
    assert_non_null(x);
    free(got);
    ag_buf_free(&b);

    x = NULL;
    ag_put(&b, "a: ");
    for (int i = 0; i < 65536; i++) ag_put(&b, "x");
    got = report_of((Str){b.s, (int)b.n}, parse_only, &x, NULL);
    assert_string_equal(got, "");
    assert_non_null(x);
    free(got);
    ag_buf_free(&b);

    x = NULL;
    for (int i = 0; i < 9999; i++) ag_put(&b, "key_%d: %d\n", i, i);
    double start = now();
    got = report_of((Str){b.s, (int)b.n}, parse_only, &x, NULL);
    assert_true(now() - start < 1.0);
    assert_string_equal(got, "");
    assert_non_null(x);
    free(got);
    ag_buf_free(&b);
}

static void test_many_errors(void **state) {
    (void)state;
    Buf b = {0};
    const Doc *x = NULL;
    char *got = report_of(repeated(&b, "", "- *a\n", 100, ""), parse_only, &x, NULL);
    const char *end = "t.yaml:20:3: error: aliases (*name) are not allowed: write the value out\n    - *a\n      ^~\nerror: too many errors\n";
    assert_true(strlen(got) > strlen(end));
    assert_string_equal(got + strlen(got) - strlen(end), end);
    free(got);
    ag_buf_free(&b);
}

/* ---- places inside scalars: the source of every non-blank byte of the value of `a` */

static void find_bytes(Diag *d, uint16_t file, void *payload) {
    (void)payload;
    const Doc *x = ag_doc_get(ag_doc_parse(d, file), "a");
    assert_non_null(x);
    Str src = d->file[file].text;
    for (int i = 0; i < x->text.n; i++) {
        char c = x->text.s[i];
        Span at = ag_doc_sub(x, i, 1);
        assert_true(at.off < (uint32_t)src.n);
        if (c != ' ' && c != '\n' && src.s[at.off] != '\\') assert_int_equal(src.s[at.off], c);
        if (src.s[at.off] == '\\') assert_true(x->quoted);
    }
    ag_error(d, ag_doc_sub(x, 0, x->text.n), "text");
    const char *hit = memchr(x->text.s, '!', (size_t)x->text.n);
    if (hit) ag_error(d, ag_doc_sub(x, (int)(hit - x->text.s), 1), "hit");
    ag_error(d, ag_doc_sub(x, x->text.n, 0), "end");
}

static void places(Str text, const char *want) {
    char *got = report_of(text, find_bytes, NULL, NULL);
    assert_string_equal(got, want);
    free(got);
}

static void test_places(void **state) {
    (void)state;
    places(STR("a: k <= ! q\n"), "t.yaml:1:4: error: text\n"
                                 "    a: k <= ! q\n"
                                 "       ^~~~~~~~\n"
                                 "t.yaml:1:9: error: hit\n"
                                 "    a: k <= ! q\n"
                                 "            ^\n"
                                 "t.yaml:1:12: error: end\n"
                                 "    a: k <= ! q\n"
                                 "               ^\n");
    places(STR("a: 'k ''x'' ! q'\n"), "t.yaml:1:5: error: text\n"
                                      "    a: 'k ''x'' ! q'\n"
                                      "        ^~~~~~~~~~~\n"
                                      "t.yaml:1:13: error: hit\n"
                                      "    a: 'k ''x'' ! q'\n"
                                      "                ^\n"
                                      "t.yaml:1:16: error: end\n"
                                      "    a: 'k ''x'' ! q'\n"
                                      "                   ^\n");
    places(STR("k\xC3\xA9: 1\na: \"\\u20ac \\\"x\\\" \\x41 ! \\L\\t q\"\n"), "t.yaml:2:5: error: text\n"
                                                                             "    a: \"\\u20ac \\\"x\\\" \\x41 ! \\L\\t q\"\n"
                                                                             "        ^~~~~~~~~~~~~~~~~~~~~~~~~~\n"
                                                                             "t.yaml:2:23: error: hit\n"
                                                                             "    a: \"\\u20ac \\\"x\\\" \\x41 ! \\L\\t q\"\n"
                                                                             "                          ^\n"
                                                                             "t.yaml:2:31: error: end\n"
                                                                             "    a: \"\\u20ac \\\"x\\\" \\x41 ! \\L\\t q\"\n"
                                                                             "                                  ^\n");
    places(STR("a: k <= q and\n   ! - k < 3\n"), "t.yaml:1:4: error: text\n"
                                                 "    a: k <= q and\n"
                                                 "       ^~~~~~~~~~\n"
                                                 "t.yaml:2:4: error: hit\n"
                                                 "       ! - k < 3\n"
                                                 "       ^\n"
                                                 "t.yaml:2:13: error: end\n"
                                                 "       ! - k < 3\n"
                                                 "                ^\n");
    places(STR("a: |\n  k <=\n\n    q ! 1\n"), "t.yaml:2:3: error: text\n"
                                               "      k <=\n"
                                               "      ^~~~\n"
                                               "t.yaml:4:7: error: hit\n"
                                               "        q ! 1\n"
                                               "          ^\n"
                                               "t.yaml:5:1: error: end\n"
                                               "    \n"
                                               "    ^\n");
    places(STR("a: >-\n  k <=\n  q\n   ! 1\n\nb: 1\n"), "t.yaml:2:3: error: text\n"
                                                        "      k <=\n"
                                                        "      ^~~~\n"
                                                        "t.yaml:4:4: error: hit\n"
                                                        "       ! 1\n"
                                                        "       ^\n"
                                                        "t.yaml:4:7: error: end\n"
                                                        "       ! 1\n"
                                                        "          ^\n");
    places(STR("a: \"k \\\n    \\  ! q\n\n   z\"\n"), "t.yaml:1:5: error: text\n"
                                                      "    a: \"k \\\n"
                                                      "        ^~~\n"
                                                      "t.yaml:2:8: error: hit\n"
                                                      "        \\  ! q\n"
                                                      "           ^\n"
                                                      "t.yaml:4:5: error: end\n"
                                                      "       z\"\n"
                                                      "        ^\n");
    places(STR("a: ''\n"), "t.yaml:1:5: error: text\n"
                           "    a: ''\n"
                           "        ^\n"
                           "t.yaml:1:5: error: end\n"
                           "    a: ''\n"
                           "        ^\n");
}

/* ---- typed reading of the value of `a` */

static void read_int(Diag *d, uint16_t file, void *payload) {
    int64_t v;
    const Doc *x = ag_doc_get(ag_doc_parse(d, file), "a");
    assert_non_null(x);
    if (ag_doc_int(d, x, "tile.m", -5, 300, &v)) ag_put(payload, "%lld", (long long)v);
}

static void read_float(Diag *d, uint16_t file, void *payload) {
    double v;
    const Doc *x = ag_doc_get(ag_doc_parse(d, file), "a");
    assert_non_null(x);
    if (ag_doc_float(d, x, "cap", &v)) ag_put_double(payload, v);
}

static void read_bool(Diag *d, uint16_t file, void *payload) {
    bool v;
    const Doc *x = ag_doc_get(ag_doc_parse(d, file), "a");
    assert_non_null(x);
    if (ag_doc_bool(d, x, "flag", &v)) ag_put(payload, "%s", v ? "true" : "false");
}

static void read_enum(Diag *d, uint16_t file, void *payload) {
    static const char *const names[] = {"smem", "regs", "direct", NULL};
    int v;
    const Doc *x = ag_doc_get(ag_doc_parse(d, file), "a");
    assert_non_null(x);
    if (ag_doc_enum(d, x, "store", names, &v)) ag_put(payload, "%d", v);
}

/* `want`: the value, or the text of the error behind "error: ". */
static void reads(void (*read)(Diag *, uint16_t, void *), const char *value, const char *want) {
    Buf text = {0}, got = {0};
    ag_put(&text, "a: %s\n", value);
    char *errors = report_of((Str){text.s, (int)text.n}, read, &got, NULL), *message = strstr(errors, "error: ");
    if (message) message[strcspn(message, "\n")] = 0;
    assert_string_equal(message ? message + strlen("error: ") : got.s, want);
    free(errors);
    ag_buf_free(&text);
    ag_buf_free(&got);
}

static void test_int(void **state) {
    (void)state;
    reads(read_int, "128", "128");
    reads(read_int, "-5", "-5");
    reads(read_int, "+7", "7");
    reads(read_int, "0x10", "16");
    reads(read_int, "0", "0");
    reads(read_int, "301", "tile.m: 301 is out of range, expected -5 to 300");
    reads(read_int, "99999999999999999999", "tile.m: 99999999999999999999 is out of range, expected -5 to 300");
    reads(read_int, "0xffffffffffffffffff", "tile.m: 0xffffffffffffffffff is out of range, expected -5 to 300");
    reads(read_int, "'128'", "tile.m: expected an integer, found text in quotes: remove the quotes");
    reads(read_int, "\"128\"", "tile.m: expected an integer, found text in quotes: remove the quotes");
    reads(read_int, "1e3", "tile.m: expected an integer, found '1e3'");
    reads(read_int, "12x", "tile.m: expected an integer, found '12x'");
    reads(read_int, "0x", "tile.m: expected an integer, found '0x'");
    reads(read_int, "0x1g", "tile.m: expected an integer, found '0x1g'");
    reads(read_int, "+", "tile.m: expected an integer, found '+'");
    reads(read_int, "1_000", "tile.m: expected an integer, found '1_000'");
    reads(read_int, "017", "tile.m: expected an integer without leading zeros, found '017'");
    reads(read_int, "1:30", "tile.m: expected an integer, found '1:30'");
    reads(read_int, "", "tile.m: expected an integer, found nothing");
    reads(read_int, "~", "tile.m: expected an integer, found '~'");
    reads(read_int, "[1]", "tile.m: expected an integer, found a list");
    reads(read_int, "{b: 1}", "tile.m: expected an integer, found a map");
}

static void test_float(void **state) {
    (void)state;
    reads(read_float, "50", "50.0");
    reads(read_float, "-1.5e-3", "-0.0015");
    reads(read_float, "1e999", "cap: 1e999 is too large for a number");
    reads(read_float, ".inf", "cap: expected a number, found '.inf'");
    reads(read_float, "nan", "cap: expected a number, found 'nan'");
    reads(read_float, "1,5", "cap: expected a number, found '1,5'");
    reads(read_float, "0x1p3", "cap: expected a number, found '0x1p3'");
    reads(read_float, "'1.5'", "cap: expected a number, found text in quotes: remove the quotes");
}

static void test_bool(void **state) {
    (void)state;
    reads(read_bool, "true", "true");
    reads(read_bool, "false", "false");
    reads(read_bool, "yes", "flag: expected true or false, found 'yes': write true");
    reads(read_bool, "No", "flag: expected true or false, found 'No': write false");
    reads(read_bool, "on", "flag: expected true or false, found 'on': write true");
    reads(read_bool, "OFF", "flag: expected true or false, found 'OFF': write false");
    reads(read_bool, "True", "flag: expected true or false, found 'True': write true");
    reads(read_bool, "1", "flag: expected true or false, found '1': write true");
    reads(read_bool, "maybe", "flag: expected true or false, found 'maybe'");
    reads(read_bool, "'true'", "flag: expected true or false, found text in quotes: remove the quotes");
}

static void test_enum(void **state) {
    (void)state;
    reads(read_enum, "regs", "1");
    reads(read_enum, "'direct'", "2");
    reads(read_enum, "rges", "store: expected smem, regs or direct, found 'rges'; did you mean 'regs'?");
    reads(read_enum, "global", "store: expected smem, regs or direct, found 'global'");
    reads(read_enum, "[regs]", "store: expected a word, found a list");
}

static void check_keys(Diag *d, uint16_t file, void *payload) {
    static const char *const names[] = {"score", "mask", "params", NULL};
    (void)payload;
    ag_doc_check_keys(d, ag_doc_parse(d, file), "the spec", names);
}

static void test_keys(void **state) {
    (void)state;
    char *got = report_of(STR("mask: a\nscroe: b\nzzz: c\n"), check_keys, NULL, NULL);
    assert_string_equal(got, "t.yaml:2:1: error: unknown key 'scroe' in the spec; did you mean 'score'?\n    scroe: b\n    ^~~~~\n"
                             "t.yaml:3:1: error: unknown key 'zzz' in the spec\n    zzz: c\n    ^~~\n");
    free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees),       cmocka_unit_test(test_nothing), cmocka_unit_test(test_encoding), cmocka_unit_test(test_subset),
        cmocka_unit_test(test_documents),   cmocka_unit_test(test_syntax),  cmocka_unit_test(test_limits),   cmocka_unit_test(test_within_limits),
        cmocka_unit_test(test_many_errors), cmocka_unit_test(test_places),  cmocka_unit_test(test_int),      cmocka_unit_test(test_float),
        cmocka_unit_test(test_bool),        cmocka_unit_test(test_enum),    cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
