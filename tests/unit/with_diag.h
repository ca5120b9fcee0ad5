/* with_diag.h: runs a piece of the compiler half on texts, and yields what it reported. */
#ifndef WITH_DIAG_H
#define WITH_DIAG_H

#include <stdlib.h>
#include <string.h>

#include "input.h"

/* Calls work(d, file, payload) on `text` as the file "t.yaml" with a Diag of its own, and returns what was reported (malloc'ed, "" if nothing).
 * *status, if given, gets the status. */
static char *report_of(Str text, void (*work)(Diag *d, uint16_t file, void *payload), void *payload, attngen_status *status) {
    static Diag d;
    d = (Diag){.arena = ag_arena_new()};
    ag_arena_on_oom(d.arena, &d.jump);
    Buf out = {0};
    if (!setjmp(d.jump)) work(&d, ag_diag_file(&d, ag_str("t.yaml"), text), payload);
    ag_putn(&out, "", 0);
    ag_diag_render(&d, &out);
    if (status) *status = d.status;
    ag_arena_free(d.arena);
    return out.s;
}
#endif
