/* api_portable.c: the companions of a program that reads through tensor maps: they take the tensors that no map describes. */
#include "api.h"

Companion ag_companion_for(const BoundArgs *b) {
    if (ag_args_mappable(b)) return COMPANION_NONE;
    return ag_args_rows_mappable(b) ? COMPANION_UNSTAGED : COMPANION_PORTABLE;
}

const char *ag_companion_words(Companion which) {
    return which == COMPANION_UNSTAGED ? "the kernel that reads element by element" : "the portable kernel";
}

/* All that is kept of the context is in p->origin.  It has no `warn`: its payload may be gone too. */
static attngen_status make(attngen_program **out, const attngen_program *p, Companion which, Err *e) {
    const Compilation *c = p->lowered;
    const DiagFile *f = &c->diag.file[1];
    const attngen_source spec = {f->name.s, f->text.s, (size_t)f->text.n};
    const char *arch = which == COMPANION_UNSTAGED ? c->fn.target->name : c->fn.target->portable;
    attngen_context *ctx;
    attngen_status s = ag_context_private(&ctx, arch, &p->origin, e);
    if (s != ATTNGEN_OK) return s;
    ctx->branches = 1 + (p->lowered->attention->joined ? BRANCHES_FUSED : BRANCHES_APART);
    ctx->alone = true;
    ctx->unstaged = which == COMPANION_UNSTAGED;
    s = (p->image ? attngen_compile : attngen_lower)(ctx, out, &spec, NULL, c->dims, c->ndims);
    if (s != ATTNGEN_OK) ag_err(e, s, "%s", attngen_errmsg(ctx));
    attngen_destroy(ctx);
    return s;
}

static _Atomic(attngen_program *) *place(attngen_program *p, Companion which) { return which == COMPANION_UNSTAGED ? &p->unstaged : &p->portable; }

/* There, and loaded if that is wanted: what a launch needs. */
static attngen_program *ready(attngen_program *p, Companion which, bool load) {
    attngen_program *c = atomic_load_explicit(place(p, which), memory_order_acquire);
    return c && (!load || atomic_load_explicit(&c->loaded, memory_order_acquire)) ? c : NULL;
}

static attngen_status get(attngen_program *p, Companion which, const Loaded *loaded, int device, attngen_program **out, Err *e) {
    Loaded *ignored;
    attngen_program *c = *place(p, which);
    if (!c) {
        attngen_status s = make(&c, p, which, e);
        if (s != ATTNGEN_OK) return s;
        atomic_store_explicit(place(p, which), c, memory_order_release);
    }
    *out = c;
    return loaded ? ag_program_load(c, ag_loaded_driver(loaded), device, &ignored, e) : ATTNGEN_OK;
}

attngen_status ag_program_companion(attngen_program *p, Companion which, const Loaded *loaded, int device, attngen_program **out, Err *e) {
    *out = ready(p, which, loaded != NULL);
    if (*out) return ATTNGEN_OK;
    pthread_mutex_lock(&p->lock);
    attngen_status s = get(p, which, loaded, device, out, e);
    pthread_mutex_unlock(&p->lock);
    return s;
}
