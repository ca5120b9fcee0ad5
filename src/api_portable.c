/* api_portable.c: the companion of a program that reads through tensor maps: it takes the tensors that no map describes. */
#include "api.h"

/* All that is kept of the context is in p->origin.  It has no `warn`: its payload may be gone too. */
static attngen_status make(attngen_program **out, const attngen_program *p, Err *e) {
    const Compilation *c = p->lowered;
    const DiagFile *f = &c->diag.file[1];
    const attngen_source spec = {f->name.s, f->text.s, (size_t)f->text.n};
    attngen_context *ctx;
    attngen_status s = ag_context_private(&ctx, c->fn.target->portable, &p->origin, e);
    if (s != ATTNGEN_OK) return s;
    ctx->alone = p->lowered->fn.spec->nbranch == 0;
    s = (p->image ? attngen_compile : attngen_lower)(ctx, out, &spec, NULL, c->dims, c->ndims);
    if (s != ATTNGEN_OK) ag_err(e, s, "%s", attngen_errmsg(ctx));
    attngen_destroy(ctx);
    return s;
}

/* There, and loaded if that is wanted: what a launch needs. */
static attngen_program *ready(attngen_program *p, bool load) {
    attngen_program *c = atomic_load_explicit(&p->portable, memory_order_acquire);
    return c && (!load || atomic_load_explicit(&c->loaded, memory_order_acquire)) ? c : NULL;
}

static attngen_status get(attngen_program *p, const Loaded *loaded, int device, attngen_program **out, Err *e) {
    Loaded *ignored;
    attngen_program *c = p->portable;
    if (!c) {
        attngen_status s = make(&c, p, e);
        if (s != ATTNGEN_OK) return s;
        atomic_store_explicit(&p->portable, c, memory_order_release);
    }
    *out = c;
    return loaded ? ag_program_load(c, ag_loaded_driver(loaded), device, &ignored, e) : ATTNGEN_OK;
}

attngen_status ag_program_portable(attngen_program *p, const Loaded *loaded, int device, attngen_program **out, Err *e) {
    *out = ready(p, loaded != NULL);
    if (*out) return ATTNGEN_OK;
    pthread_mutex_lock(&p->lock);
    attngen_status s = get(p, loaded, device, out, e);
    pthread_mutex_unlock(&p->lock);
    return s;
}
