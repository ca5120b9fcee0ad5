/* Arena, text and diagnostics. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "with_diag.h"

/* ---- arena */

static void test_arena_zeroed_and_aligned(void **state) {
    (void)state;
    Arena *a = ag_arena_new();
    for (size_t n = 0; n < 200000; n = n * 3 + 1) {
        unsigned char *p = ag_alloc(a, n);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
        memset(p, 0xFF, n);
    }
    ag_arena_free(a);
    ag_arena_free(NULL);
}

static void test_arena_push(void **state) {
    (void)state;
    Arena *a = ag_arena_new();
    int *list = NULL, n = 0, cap = 0;
    for (int i = 0; i < 1000; i++) PUSH(a, list, n, cap) = i * i;
    assert_int_equal(n, 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(list[i], i * i);
    ag_arena_free(a);
}

static void test_arena_out_of_memory(void **state) {
    (void)state;
    jmp_buf jump;
    Arena *a = ag_arena_new();
    ag_arena_on_oom(a, &jump);
    int got = setjmp(jump);
    if (got == 0) {
        ag_alloc_n(a, SIZE_MAX / 4, 8); /* the product overflows */
        fail();
    }
    assert_int_equal(got, AG_JUMP_OOM);
    if (setjmp(jump) == 0) {
        ag_alloc(a, SIZE_MAX - 1);
        fail();
    }
    ag_arena_free(a);
}

/* ---- text */

static void expect_double(double x, const char *text) {
    Buf b = {0};
    ag_put_double(&b, x);
    assert_string_equal(b.s, text);
    ag_buf_free(&b);
}

static void test_put_double(void **state) {
    (void)state;
    expect_double(0, "0.0");
    expect_double(-0.0, "-0.0");
    expect_double(50, "50.0");
    expect_double(0.1, "0.1");
    expect_double(1e300, "1e+300");
    expect_double(1.5e-9, "1.5e-09");
    expect_double(1.0 / 3, "0.3333333333333333");
    expect_double(5e-324, "5e-324");
    expect_double(1e15 + 0.5, "1000000000000000.5");
    expect_double(123456789.0, "123456789.0");
    expect_double(INFINITY, "inf");
    expect_double(-INFINITY, "-inf");
    expect_double(NAN, "nan");
}

static void test_put_double_reads_back(void **state) {
    (void)state;
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        double x, y;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x)) continue;
        Buf b = {0};
        ag_put_double(&b, x);
        assert_true(ag_parse_double(ag_str(b.s), &y));
        assert_memory_equal(&x, &y, sizeof x);
        ag_buf_free(&b);
    }
}

static void test_parse_double(void **state) {
    (void)state;
    static const char *const good[] = {"1", "-1", "+1.", ".5", "1e5", "1.5E-3", "007"};
    static const char *const bad[] = {"", "-", ".", "e5", "1e", "1e+", "0x10", "1_000", "inf", ".inf", "nan", "1 ", " 1", "1,5", "--1", "1.2.3"};
    double x;
    for (int i = 0; i < LEN(good); i++) assert_true(ag_parse_double(ag_str(good[i]), &x));
    for (int i = 0; i < LEN(bad); i++) assert_false(ag_parse_double(ag_str(bad[i]), &x));
    assert_true(ag_parse_double(STR("-1.5e2"), &x));
    assert_true(x == -150);
    assert_true(ag_parse_double(STR("1e999"), &x));
    assert_true(isinf(x));
}

static void test_nearest(void **state) {
    (void)state;
    static const char *const names[] = {"tile", "staging", "smem", "m", "n", "direction", NULL};
    assert_string_equal(ag_nearest(STR("tiel"), names), "tile");
    assert_string_equal(ag_nearest(STR("stagin"), names), "staging");
    assert_string_equal(ag_nearest(STR("SMEM"), names), "smem");
    assert_string_equal(ag_nearest(STR("M"), names), "m");
    assert_string_equal(ag_nearest(STR("directoin"), names), "direction");
    assert_null(ag_nearest(STR("x"), names));
    assert_null(ag_nearest(STR(""), names));
    assert_null(ag_nearest(STR("warps"), names));
    char longest[1000];
    memset(longest, 't', sizeof longest);
    assert_null(ag_nearest((Str){longest, sizeof longest}, names));
}

static void test_fmt_and_clip(void **state) {
    (void)state;
    Arena *a = ag_arena_new();
    assert_string_equal(ag_fmt(a, "%s %d", "x", 7).s, "x 7");
    assert_string_equal(ag_clip(a, STR("short")).s, "short");
    Str cut = ag_clip(a, STR("012345678901234567890123456789012345678\xC3\xA9 and more"));
    assert_string_equal(cut.s, "012345678901234567890123456789012345678...");
    assert_true(ag_str_eq(ag_str_copy(a, STR("abc")), STR("abc")));
    assert_false(ag_str_is(STR("abc"), "ab"));
    ag_arena_free(a);
}

static void test_buf_grows(void **state) {
    (void)state;
    Buf b = {0};
    for (int i = 0; i < 5000; i++) ag_put(&b, "%d,", i % 10);
    assert_int_equal(b.n, 10000);
    assert_int_equal(strlen(b.s), b.n);
    assert_false(b.oom);
    ag_buf_free(&b);
    assert_null(b.s);
}

/* ---- diagnostics */

static void errors_at(Diag *d, uint16_t file, void *payload) {
    (void)file;
    for (const Span *s = payload; s->file; s++) ag_error(d, *s, "here");
}

static void expect(Str text, const Span *at, const char *report) {

    char *got = report_of(text, errors_at, (void *)(uintptr_t)at, NULL);
    assert_string_equal(got, report);
    free(got);
}

#define AT(off, len) ((const Span[]){{1, (off), (len)}, {0, 0, 0}})

static void test_render(void **state) {
    (void)state;
    expect(STR("a: 1\nbc: 22\n"), AT(9, 2), "t.yaml:2:5: error: here\n    bc: 22\n        ^~\n");
    expect(STR("a: 1\r\nbc: 22\r\n"), AT(10, 2), "t.yaml:2:5: error: here\n    bc: 22\n        ^~\n");
    expect(STR(""), AT(0, 0), "t.yaml:1:1: error: here\n    \n    ^\n");
    expect(STR("abc"), AT(3, 5), "t.yaml:1:4: error: here\n    abc\n       ^\n");
    expect(STR("ab\ncd"), AT(1, 4), "t.yaml:1:2: error: here\n    ab\n     ^\n"); /* underlines the first line only */
    expect(STR("abc\n"), AT(99999, 1), "t.yaml:2:1: error: here\n    \n    ^\n");
}

static void test_render_width(void **state) {
    (void)state;
    expect(STR("\tx: y"), AT(4, 1), "t.yaml:1:5: error: here\n     x: y\n        ^\n");
    expect(STR("k\xC3\xA9y: v"), AT(6, 1), "t.yaml:1:6: error: here\n    k\xC3\xA9y: v\n         ^\n");
    expect(STR("\xE6\xBC\xA2: v"), AT(5, 1), "t.yaml:1:4: error: here\n    \xE6\xBC\xA2: v\n        ^\n"); /* wide: two columns */
    expect(STR("e\xCC\x81: v"), AT(5, 1), "t.yaml:1:5: error: here\n    e\xCC\x81: v\n       ^\n");        /* combining: none */
    expect(STR("\x1B[31m: v"), AT(7, 1), "t.yaml:1:8: error: here\n    ?[31m: v\n           ^\n");         /* no escapes reach a terminal */
    expect(STR("\xFF\xFE: v"), AT(4, 1), "t.yaml:1:5: error: here\n    ??: v\n        ^\n");               /* no UTF-8 */
    expect(STR("\xE2\x80\xAEx: v"), AT(3, 1), "t.yaml:1:2: error: here\n    ?x: v\n     ^\n");             /* right-to-left override */
    expect(STR("\xEF\xBB\xBFx: v"), AT(6, 1), "t.yaml:1:4: error: here\n    x: v\n       ^\n");            /* byte order mark */
}

static void test_render_long_line(void **state) {
    (void)state;
    enum { N = 1000 };
    char line[N];
    memset(line, 'a', N);
    line[500] = 'B', line[501] = 'C';
    char *got = report_of((Str){line, N}, errors_at, (void *)(uintptr_t)AT(500, 2), NULL), want[600];
    snprintf(want, sizeof want, "t.yaml:1:501: error: here\n    ...%.60sBC%.58s...\n%67s^~\n", line, line, "");
    assert_string_equal(got, want);
    free(got);
    got = report_of((Str){line, N}, errors_at, (void *)(uintptr_t)AT(2, N), NULL);
    snprintf(want, sizeof want, "t.yaml:1:3: error: here\n    %.120s...\n      ^", line);
    for (int i = 0; i < 117; i++) strcat(want, "~");
    strcat(want, "\n");
    assert_string_equal(got, want);
    free(got);
}

static void report_many(Diag *d, uint16_t file, void *payload) {
    (void)payload;
    for (int i = 0;; i++) {
        ag_error(d, (Span){file, 0, 1}, "error %d", i);
        ag_note(d, (Span){0}, "note %d", i);
    }
}

static void test_too_many(void **state) {
    (void)state;
    char *got = report_of(STR("x"), report_many, NULL, NULL);
    const char *end = "t.yaml:1:1: error: error 19\n    x\n    ^\nnote: note 19\nerror: too many errors\n";
    assert_true(strlen(got) > strlen(end));
    assert_string_equal(got + strlen(got) - strlen(end), end);
    free(got);
}

static void report_kinds(Diag *d, uint16_t file, void *payload) {
    Span at = {file, 0, 1};
    for (const char *kind = payload; *kind; kind++) {
        if (*kind == 'u') ag_unsupported(d, at, "u");
        if (*kind == 'e') ag_error(d, at, "e\x1B\n");
        if (*kind == 'i') ag_internal(d, "i");
        if (*kind == '!') ag_stop_if_errors(d);
    }
}

static void test_status(void **state) {
    (void)state;
    static const struct {
        const char *kinds;
        attngen_status status;
    } row[] = {{"", ATTNGEN_OK},           {"u", ATTNGEN_E_UNSUPPORTED}, {"ue", ATTNGEN_E_SPEC},        {"eu", ATTNGEN_E_SPEC},
               {"ei", ATTNGEN_E_INTERNAL}, {"ieu", ATTNGEN_E_INTERNAL},  {"!u", ATTNGEN_E_UNSUPPORTED}, {"u!e", ATTNGEN_E_UNSUPPORTED}};
    for (int i = 0; i < LEN(row); i++) {
        attngen_status status;
        free(report_of(STR("x"), report_kinds, (void *)(uintptr_t)row[i].kinds, &status));
        assert_int_equal(status, row[i].status);
    }
    char *got = report_of(STR("x"), report_kinds, (void *)(uintptr_t) "ei", NULL);
    assert_string_equal(got, "t.yaml:1:1: error: e??\n    x\n    ^\ninternal error: i\n");
    free(got);
}

static void test_span_join(void **state) {
    (void)state;
    Span s = ag_span_join((Span){1, 3, 2}, (Span){1, 10, 4});
    assert_int_equal(s.off, 3);
    assert_int_equal(s.len, 11);
    s = ag_span_join((Span){1, 3, 2}, (Span){2, 10, 4});
    assert_int_equal(s.len, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_zeroed_and_aligned),
        cmocka_unit_test(test_arena_push),
        cmocka_unit_test(test_arena_out_of_memory),
        cmocka_unit_test(test_put_double),
        cmocka_unit_test(test_put_double_reads_back),
        cmocka_unit_test(test_parse_double),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_fmt_and_clip),
        cmocka_unit_test(test_buf_grows),
        cmocka_unit_test(test_render),
        cmocka_unit_test(test_render_width),
        cmocka_unit_test(test_render_long_line),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_span_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
