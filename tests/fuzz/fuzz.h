/* fuzz.h: one input through the compiler half, with a Diag of its own. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdio.h>
#include <stdlib.h>

#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Calls work(d, text); whatever it reports must render. */
static inline void fuzz_run(const uint8_t *data, size_t size, void (*work)(Diag *d, Str text)) {
    static Diag d;
    d = (Diag){.arena = ag_arena_new()};
    ag_arena_on_oom(d.arena, &d.jump);
    if (size <= 1 << 16 && !setjmp(d.jump)) work(&d, (Str){(const char *)data, (int)size});
    Buf out = {0};
    ag_diag_render(&d, &out);
    ag_buf_free(&out);
    ag_arena_free(d.arena);
}

/* What was printed must read back without an error: a defect otherwise. */
static inline void fuzz_require(const Diag *d, bool ok, const char *what, Str text) {
    if (ok) return;
    Buf out = {0};
    ag_diag_render(d, &out);
    fprintf(stderr, "%s:\n%.*s\n%s", what, STRF(text), out.n ? out.s : "");
    abort();
}

static inline Str fuzz_take(Diag *d, Buf *b) {
    Str s = ag_str_copy(d->arena, (Str){b->s ? b->s : "", (int)b->n});
    ag_buf_free(b);
    return s;
}
#endif
