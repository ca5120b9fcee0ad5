/* with_check.h: specs over all cases of `attngen check`, on both kernel paths of the simulator. */
#ifndef WITH_CHECK_H
#define WITH_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "check_case.h"
#include "program.h"

static inline Compilation *compiled(const char *text, const char *arch, const char *after, int D) {
    attngen_source s = {"spec.yaml", text, strlen(text)};
    const attngen_dim dims[] = {{"D", D}};
    Compilation *c = ag_compile_text(&s, NULL, arch, dims, 1, after);
    assert_non_null(c);
    if (c->diag.status != ATTNGEN_OK) {
        Buf text_of = {0};
        ag_diag_render(&c->diag, &text_of);
        fail_msg("%s", text_of.s);
    }
    return c;
}

static inline void note(void *payload, const CheckCase *c) {
    Buf *b = payload;
    if (!c->ok) ag_put(b, "%s: %s\n", c->name, c->text);
}

static inline void must_pass(const char *text, int head_dim) {
    static const char *const archs[] = {"sm_80", "sm_90a"};
    const attngen_dim dims[] = {{"D", head_dim}};
    for (int i = 0; i < LEN(archs); i++) {
        attngen_options o = ATTNGEN_OPTIONS_INIT;
        attngen_context *ctx = NULL;
        Buf wrong = {0};
        CheckReport report;
        o.arch = archs[i];
        o.cache_dir = "";
        assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
        CheckOptions opt = {
            .spec = {"spec.yaml", text, strlen(text)}, .dims = dims, .ndims = 1, .gpu = CHECK_GPU_NO, .done = note, .payload = &wrong};
        attngen_status s = ag_check(ctx, &opt, &report);
        if (s != ATTNGEN_OK) fail_msg("%s: %s\n%s\n%s", archs[i], attngen_errmsg(ctx), wrong.s ? wrong.s : "", text);
        assert_true(report.passed > 20);
        ag_buf_free(&wrong);
        attngen_destroy(ctx);
    }
}

#endif
