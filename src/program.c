/* program.c: a spec with branches as a list of kernels with buffers between them. */
#include "program.h"

Spec *ag_branch_spec(Arena *a, const Spec *spec, int branch) {
    const Branch *b = &spec->branch[branch];
    Spec *s = NEW(a, Spec);
    *s = *spec;
    s->name = ag_fmt(a, "%.*s_%.*s", STRF(spec->name), STRF(b->name));
    s->score = b->score;
    s->mask = b->mask;
    s->nderive = s->nbranch = 0;
    s->output = NULL;
    return s;
}
