/* fuzz_schedule.c: any text as a schedule, closed for one spec on one target.  What is accepted must print as a schedule that is accepted. */
#include "fuzz.h"

static void work(Diag *d, Str text) {
    const attngen_dim dims[] = {{"D", 64}};
    const Spec *spec = ag_spec_read(d, ag_diag_file(d, STR("spec"), STR("attention: t\nmask: k <= q\n")), dims, 1);
    const Target *target = ag_target_find("sm_80");
    Schedule *s = ag_schedule_read(d, ag_diag_file(d, STR("schedule"), text));
    fuzz_require(d, s != NULL || d->nerror > 0, "neither a schedule nor an error", text);
    if (d->nerror) return;
    ag_schedule_close(d, s, spec, target);
    if (d->nerror) return;

    Buf out = {0};
    ag_schedule_print(&out, s);
    Str once = fuzz_take(d, &out);
    Schedule *again = ag_schedule_read(d, ag_diag_file(d, STR("printed"), once));
    if (again && !d->nerror) ag_schedule_close(d, again, spec, target);
    fuzz_require(d, again && !d->nerror, "does not read back", once);
    for (int i = 0; i < F_COUNT; i++) fuzz_require(d, again->f[i].v == s->f[i].v, "reads back as something else", once);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_run(data, size, work);
    return 0;
}
