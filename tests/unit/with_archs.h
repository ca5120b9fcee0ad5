/* with_archs.h: specs under the schedules that are taken by default, on both kernel paths, over all layouts, against the reference. */
#ifndef WITH_ARCHS_H
#define WITH_ARCHS_H

#include "with_schedule.h"

#include <stdio.h>

#include "api.h"
#include "program.h"

/* The schedule that is taken by default. */
static inline Compilation *compiled(const char *text, const char *arch, const char *after, int D, int group) {
    attngen_source s = {"spec.yaml", text, strlen(text)};
    const attngen_dim dims[] = {{"D", D}, {"group", group}};
    Compilation *c = ag_compile_text(&s, NULL, arch, dims, group ? 2 : 1, after);
    assert_non_null(c);
    must_compile(c);
    return c;
}

/* ---- results */

/* Every i32 input the least and the greatest int by turns. */
static inline void make_extreme(CaseData *d) {
    for (int i = CASE_TENSORS; i < d->n; i++) {
        CaseTensor *t = &d->t[i];
        for (int64_t a = 0; t->view.type == DT_I32 && a < t->dim[0]; a++)
            for (int64_t b = 0; b < t->dim[1]; b++) ag_host_set(&t->view, a, b, 0, 0, (a + b) % 2 ? INT32_MIN : INT32_MAX);
    }
}

/* Runs the program on a case: "" or what is wrong (malloc'ed). */
static inline char *result(const Compilation *c, const Case *shape, bool extreme) {
    const Spec *spec = c->fn.spec;
    CaseData d;
    Buf text = {0};
    ProgramBuffers buffers;
    ag_putn(&text, "", 0);
    assert_true(ag_check_data(&d, shape, spec, 11));
    if (extreme) make_extreme(&d);
    double *o = doubles(&d.call, spec->Dv), *value[ROWV_COUNT], *spread = doubles(&d.call, 1);
    double *naive_o = doubles(&d.call, spec->Dv), *naive_lse = doubles(&d.call, 1);
    for (int i = 0; i < ROWV_COUNT; i++) value[i] = doubles(&d.call, 1);
    double *lse = value[ROWV_LSE];
    bool program = spec->nbranch > 0;
    assert_true((program ? ag_reference_spread(spec, &d.call, o, lse, spread) : ag_reference_values(spec, &d.call, o, value)) &&
                ag_naive(spec, &d.call, naive_o, naive_lse));
    ag_check_poison(&d, spec);
    if (ag_simulate_program(c, &d.call, &buffers, &text)) {
        ErrorBound bound = ag_error_bound(c->numerics);
        bound.spread = program ? spread : NULL;
        Comparison r = ag_compare(spec, &d.call, bound, o, lse, naive_o);
        for (int i = ROWV_LSE + 1; i < ROWV_COUNT; i++) ag_compare_value(&r, &d.call, (RowValue)i, value[i], bound.lse);
        ag_put(&text, "%s", r.text);
        if (r.ok && !ag_check_surroundings(&d)) ag_put(&text, "memory around the outputs was written");
    }
    ag_program_buffers_free(&buffers);
    ag_check_data_free(&d);
    for (int i = 0; i < ROWV_COUNT; i++) free(value[i]);
    free(o), free(spread), free(naive_o), free(naive_lse);
    return text.s;
}

static inline void must_pass_with(const char *text, int group, bool extreme) {
    static const char *const arch[] = {"sm_80", "sm_90a"};
    static const Case cases[] = {{.B = 2, .Hkv = 2, .Sq = 70, .Sk = 133, .offset = 63},
                                 {.B = 1, .Hkv = 1, .Sq = 5, .Sk = 3, .offset = -2},
                                 {.B = 3, .Hkv = 1, .Sq = 33, .Sk = 40, .offset = 900}};
    for (int a = 0; a < LEN(arch); a++) {
        Compilation *c = compiled(text, arch[a], NULL, 32, group);
        for (int i = 0; i < LEN(cases) * LAY_COUNT; i++) {
            Case shape = cases[i / LAY_COUNT];
            shape.layout = (TensorLayout)(i % LAY_COUNT);
            shape.group = group ? group : 2;
            char *wrong = result(c, &shape, extreme), name[128];
            ag_check_case_name(name, sizeof name, &shape, c->fn.spec);
            if (*wrong) fail_msg("%s, %s: %s\n%s", arch[a], name, wrong, text);
            free(wrong);
        }
        ag_compilation_free(c);
    }
}

static inline void must_pass(const char *text, int group) { must_pass_with(text, group, false); }
#endif
