/* The list of passes, and texts in, CUDA text out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "compile.h"

static attngen_source text_source(const char *name, const char *text) { return (attngen_source){name, text, strlen(text)}; }

static attngen_source shipped_spec(const char *name) {
    attngen_source s;
    assert_int_equal(attngen_shipped_spec(&s, name), ATTNGEN_OK);
    return s;
}

static char *report(const Compilation *c) {
    Buf out = {0};
    ag_putn(&out, "", 0);
    ag_diag_render(&c->diag, &out);
    return out.s;
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)); p += strlen(word)) n++;
    return n;
}

/* ---- the table */

static const char *const order[] = {"simplify", "hoist", "ranges", "online", "tile", "split", "pipeline", "divide", "place"};

static void test_pass_order(void **state) {
    (void)state;
    int n = 0;
    for (; ag_pass[n].name; n++) {
        assert_true(n < LEN(order));
        assert_string_equal(ag_pass[n].name, order[n]);
    }
    assert_int_equal(n, LEN(order));
}

/* Every pass finds what it needs, makes something, and a Tile IR never turns back into a Math IR. */
static void test_pass_facts(void **state) {
    (void)state;
    unsigned facts = FACT_LOWERED;
    bool tile = false;
    for (const Pass *p = ag_pass; p->name; p++) {
        assert_non_null(p->run);
        assert_int_equal(p->needs & ~facts, 0);
        assert_true(p->makes != 0);
        assert_int_equal(p->makes & p->breaks, 0);
        assert_true(p->tile || !tile);
        tile = p->tile;
        facts = (facts & ~p->breaks) | p->makes;
    }
    assert_true(facts & FACT_PLACED);
    assert_true(facts & FACT_PIPELINED);
}

/* ---- results */

typedef struct Texts {
    Buf cu, math, tile;
} Texts;

static Texts texts_of(const Compilation *c) {
    Texts t = {0};
    ag_putn(&t.cu, c->cu.s, c->cu.n);
    ag_math_dump(&t.math, c->fn.math);
    ag_tile_dump(&t.tile, c->fn.kernel);
    return t;
}

static void free_texts(Texts *t) {
    ag_buf_free(&t->cu);
    ag_buf_free(&t->math);
    ag_buf_free(&t->tile);
}

static Texts compile_shipped(const char *name, double D, double dtype) {
    attngen_source spec = shipped_spec(name);
    const attngen_dim dims[] = {{"D", D}, {"dtype", dtype}};
    Compilation *c = ag_compile_text(&spec, NULL, "sm_90", dims, 2, NULL);
    if (c->diag.status != ATTNGEN_OK) {
        char *why = report(c);
        print_error("%s D %g: %s", name, D, why);
        free(why);
    }
    assert_int_equal(c->diag.status, ATTNGEN_OK);
    assert_true(c->shipped);
    Texts t = texts_of(c);
    ag_compilation_free(c);
    return t;
}

static void assert_same(const Texts *a, const Texts *b) {
    assert_true(a->cu.n > 1000 && a->math.n > 100 && a->tile.n > 100);
    assert_string_equal(a->math.s, b->math.s);
    assert_string_equal(a->tile.s, b->tile.s);
    assert_string_equal(a->cu.s, b->cu.s);
}

static void *compile_everything(void *payload) {
    Texts *to = payload;
    for (size_t i = 0; attngen_shipped_spec_name(i); i++) to[i] = compile_shipped(attngen_shipped_spec_name(i), 128, ATTNGEN_BF16);
    return NULL;
}

static void test_deterministic(void **state) {
    (void)state;
    enum { SPECS = 256, THREADS = 2 };
    static Texts here[SPECS], there[THREADS][SPECS];
    pthread_t thread[THREADS];
    compile_everything(here);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, compile_everything, there[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (size_t k = 0; attngen_shipped_spec_name(k); k++) {
        for (int i = 0; i < THREADS; i++) {
            assert_same(&here[k], &there[i][k]);
            free_texts(&there[i][k]);
        }
        free_texts(&here[k]);
    }
}

/* What is bound at compile time reaches the code. */
static void test_inputs_matter(void **state) {
    (void)state;
    Texts a = compile_shipped("causal", 64, ATTNGEN_BF16), b = compile_shipped("causal", 64, ATTNGEN_F16),
          c = compile_shipped("causal", 256, ATTNGEN_BF16);
    assert_string_not_equal(a.cu.s, b.cu.s);
    assert_string_not_equal(a.cu.s, c.cu.s);
    free_texts(&a);
    free_texts(&b);
    free_texts(&c);
}

static void test_schedule_matters(void **state) {
    (void)state;
    attngen_source spec = shipped_spec("causal"), schedule;
    assert_int_equal(attngen_shipped_schedule(&schedule, "mma_d128"), ATTNGEN_OK);
    char *edited = calloc(1, schedule.len + 8);
    const char *at = strstr(schedule.text, "direction: reverse");
    assert_non_null(at);
    memcpy(edited, schedule.text, schedule.len);
    memcpy(edited + (at - schedule.text), "direction: forward", 18);
    attngen_source mine = text_source("mine.yaml", edited);
    Compilation *a = ag_compile_text(&spec, &schedule, "sm_90", NULL, 0, NULL), *b = ag_compile_text(&spec, &mine, "sm_90", NULL, 0, NULL);
    assert_int_equal(a->diag.status, ATTNGEN_OK);
    assert_int_equal(b->diag.status, ATTNGEN_OK);
    assert_true(a->shipped);
    assert_false(b->shipped);
    assert_string_equal(a->schedule_name, "mma_d128");
    assert_string_not_equal(a->cu.s, b->cu.s);
    ag_compilation_free(a);
    ag_compilation_free(b);
    free(edited);
}

static void test_after(void **state) {
    (void)state;
    attngen_source spec = shipped_spec("causal");
    Compilation *c = ag_compile_text(&spec, NULL, "sm_90", NULL, 0, "lower");
    assert_int_equal(c->diag.status, ATTNGEN_OK);
    assert_int_equal(c->fn.facts, FACT_LOWERED);
    assert_non_null(c->fn.math);
    assert_null(c->fn.kernel);
    for (const Pass *p = ag_pass; p->name; p++) {
        Compilation *again = ag_compile_again(c, p->name);
        assert_int_equal(again->diag.status, ATTNGEN_OK);
        assert_true((again->fn.facts & p->makes) == p->makes);
        assert_int_equal(again->fn.kernel != NULL, p->tile);
        assert_null(again->cu.s);
        ag_compilation_free(again);
    }
    ag_compilation_free(c);
}

static void test_again_is_the_same(void **state) {
    (void)state;
    attngen_source spec = shipped_spec("softcap");
    const attngen_dim dims[] = {{"D", 96}, {"cap", 30}};
    Compilation *c = ag_compile_text(&spec, NULL, "sm_80", dims, 2, NULL), *again = ag_compile_again(c, NULL);
    assert_int_equal(c->diag.status, ATTNGEN_OK);
    assert_string_equal(c->cu.s, again->cu.s);
    assert_memory_equal(&c->meta, &again->meta, sizeof c->meta);
    ag_compilation_free(c);
    ag_compilation_free(again);
}

static void test_unknown_pass(void **state) {
    (void)state;
    attngen_source spec = shipped_spec("dense");
    Compilation *c = ag_compile_text(&spec, NULL, "sm_90", NULL, 0, "polish");
    char *text = report(c);
    assert_int_equal(c->diag.status, ATTNGEN_E_INTERNAL);
    assert_string_equal(text, "internal error: there is no pass `polish`\n");
    free(text);
    ag_compilation_free(c);
}

/* ---- errors */

static void test_all_errors_of_both_files(void **state) {
    (void)state;
    attngen_source spec = text_source("a.yaml", "attention: a\nmask: k <= p\nscore: s + true\n");
    attngen_source schedule = text_source("b.yaml", "schema: attngen.schedule/1\nname: b\ntile: {m: 17, n: 64}\n");
    Compilation *c = ag_compile_text(&spec, &schedule, "sm_91", NULL, 0, NULL);
    char *text = report(c);
    assert_int_equal(c->diag.status, ATTNGEN_E_SPEC);
    assert_non_null(strstr(text, "error: no kernels for the architecture `sm_91`; known: sm_80, sm_86, sm_89, sm_90, sm_90a\n"));
    assert_true(count(text, "a.yaml:2:") >= 1);
    assert_true(count(text, "a.yaml:3:") >= 1);
    assert_true(count(text, "b.yaml:3:") >= 1);
    free(text);
    ag_compilation_free(c);
}

static void test_no_schedule_fits(void **state) {
    (void)state;
    attngen_source spec = text_source("a.yaml", "attention: a\n");
    const attngen_dim dims[] = {{"D", 257}};
    Compilation *c = ag_compile_text(&spec, NULL, "sm_90", dims, 1, NULL);
    assert_true(c->diag.status == ATTNGEN_E_SPEC || c->diag.status == ATTNGEN_E_UNSUPPORTED);
    assert_null(c->cu.s);
    ag_compilation_free(c);
}

static void test_odd_texts(void **state) {
    (void)state;
    static const char nul[] = "attention: a\0b\n";
    const attngen_source odd[] = {{"empty", "", 0}, {NULL, NULL, 0}, {"nul", nul, sizeof nul - 1}, {"word", "word", 4}};
    for (int i = 0; i < LEN(odd); i++) {
        Compilation *c = ag_compile_text(&odd[i], NULL, "sm_90", NULL, 0, NULL);
        assert_int_equal(c->diag.status, ATTNGEN_E_SPEC);
        ag_compilation_free(c);
    }
}

/* What a compilation takes, it gives back, also after errors.  (Under a sanitizer mallinfo2 counts nothing, but leaks are reported.) */
static void test_memory_is_given_back(void **state) {
    (void)state;
    attngen_source good = shipped_spec("causal"), bad = text_source("bad.yaml", "attention: a\nmask: k <=\n");
    enum { ROUNDS = 9 };
    size_t used[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) { /* in the first ones what malloc itself keeps grows */
        for (int i = 0; i < 20; i++) {
            ag_compilation_free(ag_compile_text(&good, NULL, "sm_90", NULL, 0, NULL));
            ag_compilation_free(ag_compile_text(&bad, NULL, "sm_90", NULL, 0, NULL));
        }
        used[round] = mallinfo2().uordblks;
    }
    assert_true(used[ROUNDS - 1] <= used[ROUNDS - 2] + 4096);
    ag_compilation_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pass_order),        cmocka_unit_test(test_pass_facts),       cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_inputs_matter),     cmocka_unit_test(test_schedule_matters), cmocka_unit_test(test_after),
        cmocka_unit_test(test_again_is_the_same), cmocka_unit_test(test_unknown_pass),     cmocka_unit_test(test_all_errors_of_both_files),
        cmocka_unit_test(test_no_schedule_fits),  cmocka_unit_test(test_odd_texts),        cmocka_unit_test(test_memory_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
