/* The embedded tables: what tools/embed.c made of specs/, schedules/ and templates/. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "input.h"
#include "leaf.h"

static void same_as_file(const Shipped *s, const char *folder) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s.yaml", folder, s->name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = malloc((size_t)s->len + 2);
    size_t n = fread(text, 1, (size_t)s->len + 2, f);
    fclose(f);
    assert_int_equal(n, s->len);
    assert_memory_equal(text, s->text, n);
    assert_int_equal(s->text[n], '\0');
    free(text);
}

static void files_are_embedded_in_order(void **state) {
    (void)state;
    for (size_t i = 0; ag_shipped_spec(i); i++) {
        same_as_file(ag_shipped_spec(i), "specs");
        if (i) assert_true(strcmp(ag_shipped_spec(i - 1)->name, ag_shipped_spec(i)->name) < 0);
    }
    for (size_t i = 0; ag_shipped_schedule(i); i++) same_as_file(ag_shipped_schedule(i), "schedules");
    assert_non_null(ag_shipped_spec(0));
    assert_non_null(ag_shipped_schedule(0));
}

static void leaves_are_closed(void **state) {
    (void)state;
    size_t n = 0;
    for (const Leaf *l; (l = ag_leaf_at(n)); n++) {
        size_t len = strlen(l->text);
        assert_ptr_equal(ag_leaf_find(l->name), l);
        assert_true(len > 1 && l->text[len - 1] == '\n' && l->text[len - 2] != '\n');
        assert_null(strstr(l->text, "//@"));
        assert_null(strstr(l->text, "#include"));
        for (const char *const *need = l->needs; *need; need++) assert_non_null(ag_leaf_find(*need));
    }
    assert_true(n > 10);
    assert_null(ag_leaf_find("no_such_leaf"));
    assert_null(ag_leaf_at(n));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_are_embedded_in_order), cmocka_unit_test(leaves_are_closed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
