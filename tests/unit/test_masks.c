/* Random masks through whole kernels, simulated on both paths: every visible key is visited and let through, every hidden one is masked, and nothing is visited twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "with_archs.h"
#include "with_masks.h"

static void test_random(void **state) {
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_90a"};
    static const Case cases[] = {{.B = 1, .Hkv = 1, .group = 2, .Sq = 300, .Sk = 700, .offset = ATTNGEN_ALIGN_END},
                                 {.B = 1, .Hkv = 2, .group = 2, .Sq = 40, .Sk = 530, .offset = 100},
                                 {.B = 1, .Hkv = 1, .group = 2, .Sq = 260, .Sk = 90, .offset = -20}};
    for (int i = 0; i < 40; i++) {
        Buf mask = {0}, spec = {0};
        put_condition(&mask, 3);
        ag_put(&spec, "attention: a\nheads: {group: 2}\nparams: {w: {int: %d}, c: {int: %d}}\nmask: %s\n", (int)roll(400), 1 + (int)roll(300),
               mask.s);
        for (int a = 0; a < LEN(arch); a++) {
            Compilation *c = compiled(spec.s, arch[a], NULL, 16, 0);
            Case shape = cases[(i + a) % LEN(cases)];
            char *wrong = result(c, &shape, false);
            if (*wrong) fail_msg("%s, shape %d: %s\n%s", arch[a], (i + a) % LEN(cases), wrong, spec.s);
            free(wrong);
            ag_compilation_free(c);
        }
        ag_buf_free(&mask);
        ag_buf_free(&spec);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
