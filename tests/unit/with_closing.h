/* with_closing.h: closes schedules for a spec and a target, and compares what is printed or reported. */
#ifndef WITH_CLOSING_H
#define WITH_CLOSING_H

#include "with_diag.h"

#define HEAD  "schema: attngen.schedule/1\n"
#define WGMMA HEAD "mma: {family: wgmma}\n"

static Ast some_mask;

/* What a schedule is closed for, and what comes out. */
typedef struct Case {
    Spec spec;
    const char *arch;
    Buf printed;
} Case;

static void close_and_print(Diag *d, uint16_t file, void *payload) {
    Case *c = payload;
    Schedule *s = ag_schedule_read(d, file);
    if (!s) return;
    ag_schedule_close(d, s, &c->spec, ag_target_find(c->arch));
    ag_stop_if_errors(d);
    for (int i = 0; i < F_COUNT; i++) {
        assert_false(s->f[i].open);
        assert_int_equal(s->f[i].by == BY_RULE, s->f[i].why != NULL);
    }
    ag_schedule_print(&c->printed, s);
}

static Case case_of(int D, const char *arch, bool mask) {
    return (Case){.spec = {.D = D, .Dv = D, .dtype = DT_BF16, .mask = mask ? &some_mask : NULL}, .arch = arch};
}

/* Closes `text` for D 128 on `arch` with a mask; the errors are exactly `want`. */
static void refuse_on(const char *arch, const char *text, const char *want, attngen_status want_status) {
    Case c = case_of(128, arch, true);
    attngen_status status;
    char *got = report_of(ag_str(text), close_and_print, &c, &status);
    assert_string_equal(got, want);
    assert_int_equal(status, want_status);
    assert_null(c.printed.s);
    free(got);
}

static char *closed(Str text, Case c) {
    char *errors = report_of(text, close_and_print, &c, NULL);
    assert_string_equal(errors, "");
    free(errors);
    return c.printed.s;
}

static void prints(const char *text, Case c, const char *want) {
    char *got = closed(ag_str(text), c);
    assert_string_equal(got, want);
    free(got);
}

/* ---- the printed form reads back to the same values */

static void strip_comments(char *s) {
    char *to = s;
    for (char *from = s; *from;) {
        if (*from == '#') {
            while (to > s && to[-1] == ' ') to--;
            while (*from && *from != '\n') from++;
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
}

static void expect_stable(Str text, Case c) {
    char *once = closed(text, c), *twice = closed(ag_str(once), c);
    assert_null(strstr(twice, "# default"));
    assert_null(strstr(twice, "# rule"));
    strip_comments(once);
    strip_comments(twice);
    assert_string_equal(once, twice);
    free(once);
    free(twice);
}

static int number_after(const char *text, const char *label) {
    const char *at = strstr(text, label);
    assert_non_null(at);
    return atoi(at + strlen(label));
}

static bool is_wgmma(const Shipped *shipped) { return !strncmp(shipped->name, "wgmma", 5); }
#endif
