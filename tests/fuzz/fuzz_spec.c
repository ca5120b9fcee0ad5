/* fuzz_spec.c: any text as a spec.  What is accepted must print as a spec that reads back to the same print. */
#include "fuzz.h"

static Str printed(Diag *d, const Spec *spec) {
    Buf out = {0};
    ag_spec_print(&out, spec);
    return fuzz_take(d, &out);
}

static void work(Diag *d, Str text) {
    Spec *spec = ag_spec_read(d, ag_diag_file(d, STR("spec"), text), NULL, 0);
    fuzz_require(d, (spec == NULL) == (d->nerror > 0), "neither a spec nor an error", text);
    if (!spec) return;
    Str once = printed(d, spec);
    Spec *again = ag_spec_read(d, ag_diag_file(d, STR("printed"), once), NULL, 0);
    fuzz_require(d, again != NULL, "does not read back", once);
    fuzz_require(d, ag_str_eq(once, printed(d, again)), "reads back as something else", once);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_run(data, size, work);
    return 0;
}
