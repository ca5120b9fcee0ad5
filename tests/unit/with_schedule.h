/* with_schedule.h: schedules by their fields, compilations from texts, and kernels run on the simulator against the reference. */
#ifndef WITH_SCHEDULE_H
#define WITH_SCHEDULE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "check_case.h"
#include "compile.h"

/* A small kernel of mma_sync: 32 queries by 16 keys, two warps, one stage; everything else as schedule.def has it, or off. */
static inline Schedule small_schedule(void) {
    Schedule s = {.name = STR("small"), .arch_mask = ~0u, .head_dim_min = 1, .head_dim_max = 256, .order = {AX_Q, AX_H, AX_B}};
    for (int i = 0; i < F_COUNT; i++) s.f[i] = (Field){.v = ag_field[i].deflt == FIELD_AUTO ? 0 : ag_field[i].deflt, .by = BY_FILE};
    s.f[F_TILE_M].v = 32;
    s.f[F_TILE_N].v = 16;
    s.f[F_WARPS].v = 2;
    s.f[F_K_STAGES].v = s.f[F_V_STAGES].v = 1;
    return s;
}

/* The same of wgmma: as many computing warpgroups of 64 queries, rings of two stages, the registers that the rules would give. */
static inline Schedule small_wgmma(int groups) {
    static const struct { int load, math; } regs[] = {{56, 240}, {40, 232}, {32, 160}};
    Schedule s = small_schedule();
    s.f[F_MMA_FAMILY].v = FAMILY_WGMMA;
    s.f[F_TILE_M].v = 64 * groups;
    s.f[F_CONSUMERS].v = groups;
    s.f[F_REGS_LOAD].v = regs[groups - 1].load;
    s.f[F_REGS_MATH].v = regs[groups - 1].math;
    s.f[F_K_STAGES].v = s.f[F_V_STAGES].v = 2;
    return s;
}

/* A spec with D and what follows bound (NULL, or ends with name NULL). Jumps out of errors. */
static inline Spec *read_spec(Diag *d, const char *text, int D, const attngen_dim *more) {
    attngen_dim dims[8] = {{"D", D}};
    size_t n = 1;
    for (; more && more[n - 1].name; n++) dims[n] = more[n - 1];
    Spec *spec = ag_spec_read(d, ag_diag_file(d, ag_str("spec.yaml"), ag_str(text)), dims, n);
    ag_stop_if_errors(d);
    return spec;
}

/* A compilation of texts; dims end with name NULL. */
static inline Compilation *compile_raw(const char *spec, const char *schedule, const char *arch, const attngen_dim *dims, const char *after) {
    attngen_source a = {"spec.yaml", spec, strlen(spec)}, b = {"schedule.yaml", schedule, strlen(schedule)};
    size_t n = 0;
    while (dims[n].name) n++;
    Compilation *c = ag_compile_text(&a, &b, arch, dims, n, after);
    assert_non_null(c);
    return c;
}
static inline Compilation *compile_schedule(const char *spec, const Schedule *s, const char *arch, const attngen_dim *dims, const char *after) {
    Buf text = {0};
    Schedule all = *s;
    all.has_elements = s->f[F_E_STAGES].v > 0;
    ag_schedule_print(&text, &all);
    Compilation *c = compile_raw(spec, text.s, arch, dims, after);
    ag_buf_free(&text);
    return c;
}

/* ... without a kernel before that maps tiles: what bounds of positions say. */
static inline Compilation *compile_alone(const char *spec, const Schedule *s, const char *arch, const attngen_dim *dims, const char *after) {
    Buf text = {0};
    ag_schedule_print(&text, s);
    const attngen_source a = {"spec.yaml", spec, strlen(spec)}, b = {"schedule.yaml", text.s, text.n};
    size_t n = 0;
    while (dims[n].name) n++;
    Compilation *c = ag_compile(&(Request){.spec = &a, .schedule = &b, .arch = arch, .dims = dims, .ndims = n, .after = after, .alone = true});
    assert_non_null(c);
    ag_buf_free(&text);
    return c;
}

/* What a compilation reported (malloc'ed). */
static inline char *report(const Compilation *c) {
    Buf out = {0};
    ag_putn(&out, "", 0);
    ag_diag_render(&c->diag, &out);
    return out.s;
}
static inline void must_compile(const Compilation *c) {
    if (c->diag.status == ATTNGEN_OK) return;
    Buf schedule = {0};
    ag_putn(&schedule, c->diag.file[2].text.s, (size_t)c->diag.file[2].text.n);
    fail_msg("%s\nspec:\n%sschedule:\n%s", report(c), c->diag.file[1].text.s, schedule.s);
}

/* ---- a kernel's result */

static inline double *doubles(const HostCall *c, int64_t last) {
    double *x = calloc((size_t)(c->size[SZ_B] * c->size[SZ_HQ] * c->size[SZ_SQ] * last) + 1, sizeof(double));
    assert_non_null(x);
    return x;
}

/* Compares what lies in the outputs with the reference; writes what is wrong to `text`.  slack: times the contract's limit for o. */
static inline void judge(const Compilation *c, CaseData *d, double slack, Buf *text) {
    const Spec *spec = c->fn.spec;
    double *o = doubles(&d->call, spec->Dv), *lse = doubles(&d->call, 1), *naive_o = doubles(&d->call, spec->Dv), *naive_lse = doubles(&d->call, 1);
    assert_true(ag_reference(spec, &d->call, o, lse) && ag_naive(spec, &d->call, naive_o, naive_lse));
    Comparison r = ag_compare(spec, &d->call, ag_error_bound(c->fn.kernel->numerics.s), o, lse, naive_o);
    assert_int_equal(r.ok, r.text[0] == '\0');
    if (r.unwritten || !(r.o_err <= slack * r.o_limit) || !(r.lse_err <= r.lse_limit))
        ag_put(text, "%s", r.text);
    else if (!ag_check_surroundings(d))
        ag_put(text, "memory around the outputs was written");
    free(o);
    free(lse);
    free(naive_o);
    free(naive_lse);
}

/* The tensors that kernel k reads, as it numbers them; lists: the key tiles of each query tile. */
static inline void number_tensors(HostCall *call, const Compilation *c, const Kernel *k, HostTensor lists) {
    for (int i = 0; i < HOST_MORE; i++) {
        int input = TEN_COUNT + i < k->ntensor ? k->tensor[TEN_COUNT + i].program - TEN_COUNT : -1;
        if (input >= 0 && input < c->fn.spec->ninput) call->more[i] = call->input[input];
        if (k->tiles && k->tiles == TEN_COUNT + i) call->more[i] = lists;
    }
}
/* Runs the kernel of c, and before it the one that maps key tiles, if there is one. */
static inline bool simulate_both(const Compilation *c, HostCall *call, Buf *text) {
    const Kernel *k = c->fn.kernel;
    const int64_t *n = call->size;
    size_t lists = (size_t)(n[SZ_B] * n[SZ_HQ] * ((n[SZ_SQ] + k->queries - 1) / k->queries)); /* at most */
    HostTensor t = {.type = DT_I32, .stride = {1}};
    if (k->tiles) t.data = calloc(lists * (size_t)(n[SZ_SK] + MAP_HEAD + 1) + 1, sizeof(int32_t));
    HostCall own = *call;
    number_tensors(&own, c, c->part[0].kernel, t);
    bool ok = !k->tiles || ag_simulate(c->part[0].kernel, &own, text);
    number_tensors(call, c, k, t);
    ok = ok && ag_simulate(k, call, text);
    free(t.data);
    return ok;
}

/* Runs the kernel of c on random tensors of the case, which `edit` may change before, and compares: "" or what is wrong (malloc'ed). */
static inline char *result_of_edited(const Compilation *c, const Case *shape, uint64_t seed, double slack, void (*edit)(HostCall *)) {
    CaseData d;
    Buf text = {0};
    ag_putn(&text, "", 0);
    assert_true(ag_check_data(&d, shape, c->fn.spec, seed));
    if (edit) edit(&d.call);
    ag_check_poison(&d, c->fn.spec);
    if (simulate_both(c, &d.call, &text)) judge(c, &d, slack, &text);
    ag_check_data_free(&d);
    return text.s;
}
static inline char *result_of(const Compilation *c, const Case *shape, uint64_t seed, double slack) {
    return result_of_edited(c, shape, seed, slack, NULL);
}
static inline void must_be_right(const Compilation *c, const Case *shape, uint64_t seed) {
    char *text = result_of(c, shape, seed, 1), name[128];
    ag_check_case_name(name, sizeof name, shape, c->fn.spec);
    if (*text) fail_msg("%s: %s\nspec:\n%sschedule:\n%s", name, text, c->diag.file[1].text.s, c->diag.file[2].text.s);
    free(text);
}
#endif
