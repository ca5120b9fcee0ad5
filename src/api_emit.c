/* api_emit.c: the artefacts of a program as text or bytes, and the report on the machine. */
#include "api.h"
#include "timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- artefacts */

static const Pass *find_pass(const char *name) {
    for (const Pass *p = ag_pass; p->name; p++)
        if (strcmp(p->name, name) == 0) return p;
    return NULL;
}

/* The IRs of a program's kernels, each under the kernel's name; of a plain spec its one without. */
static void put_parts(Buf *out, const Compilation *c, bool tile) {
    for (int i = 0; i < c->npart; i++) {
        const Fn *part = &c->part[i];
        Str name = part->kernel ? part->kernel->name : part->spec->name;
        if (c->fn.spec->nbranch || c->npart > 1) ag_put(out, "%s==== %.*s\n", i ? "\n" : "", STRF(name));
        if (tile && part->kernel)
            ag_tile_dump(out, part->kernel);
        else if (!tile && part->math)
            ag_math_dump(out, part->math);
        else
            ag_put(out, "no %s IR\n", tile ? "Tile" : "Math");
    }
}

/* An IR in the form it has at the end, or after one pass: then everything up to there is done again. */
static attngen_status put_ir(attngen_context *ctx, const Compilation *c, bool tile, const char *after, Buf *out) {
    const Pass *pass = after ? find_pass(after) : NULL;
    const char *names[16] = {NULL};
    for (int i = 0; ag_pass[i].name; i++) names[i] = ag_pass[i].name;
    const char *near = after ? ag_nearest(ag_str(after), names) : NULL;
    if (after && !pass)
        return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "there is no pass `%s`%s%s%s", after, near ? " (did you mean `" : "", near ? near : "",
                       near ? "`?)" : "");
    if (pass && pass->tile != tile)
        return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "pass `%s` works on the %s IR, not on the %s IR", after, tile ? "Math" : "Tile",
                       tile ? "Tile" : "Math");
    Compilation *again = after ? ag_compile_again(c, after) : NULL;
    if (after && !again) return ag_fail(ctx, ATTNGEN_E_NOMEM, "out of memory");
    const Compilation *shown = after ? again : c;
    attngen_status s = shown->diag.status;
    if (s != ATTNGEN_OK)
        ag_fail(ctx, s, "the same inputs failed when compiled again: %s", attngen_strerror(s));
    else
        put_parts(out, shown, tile);
    ag_compilation_free(again);
    return s;
}

static attngen_status put_image(attngen_context *ctx, const attngen_program *p, bool ptx, Buf *out) {
    const Compilation *c = p->lowered;
    ImageCubin cubin[META_KERNELS];
    if (!ptx && p->image && ag_image_cubins(p->image, p->size, cubin) == 1) { /* else one of all kernels is made */
        ag_putn(out, p->image, p->size);
        return ATTNGEN_OK;
    }
    Compiled built = {0};
    Err e;
    attngen_status s = ag_context_open_nvrtc(ctx);
    if (s != ATTNGEN_OK) return s;
    s = ag_nvrtc_compile(ctx->nvrtc.open, c->cu.s, c->meta.arch, ag_nvrtc_flags(c, ptx), &built, &e);
    if (s == ATTNGEN_OK)
        ag_putn(out, built.image, built.size);
    else
        ag_fail_err(ctx, s, &e);
    ag_compiled_free(&built);
    return s;
}

static attngen_status put_timeline(attngen_context *ctx, const Kernel *k, bool svg, Buf *out) {
    return ag_show(out, k, svg) ? ATTNGEN_OK : ag_fail(ctx, ATTNGEN_E_NOMEM, "out of memory");
}

static attngen_status put_artefact(attngen_context *ctx, const attngen_program *p, attngen_artefact what, const char *after, Buf *out) {
    const Compilation *c = p->lowered;
    switch (what) {
    case ATTNGEN_EMIT_SPEC: ag_spec_print(out, c->fn.spec); return ATTNGEN_OK;
    case ATTNGEN_EMIT_MATH: return put_ir(ctx, c, false, after, out);
    case ATTNGEN_EMIT_TILE: return put_ir(ctx, c, true, after, out);
    case ATTNGEN_EMIT_SCHEDULE: ag_schedule_print(out, c->sched); return ATTNGEN_OK;
    case ATTNGEN_EMIT_CU: ag_putn(out, c->cu.s, c->cu.n); return ATTNGEN_OK;
    case ATTNGEN_EMIT_PTX: return put_image(ctx, p, true, out);
    case ATTNGEN_EMIT_CUBIN: return put_image(ctx, p, false, out);
    case ATTNGEN_EMIT_TIMELINE: return put_timeline(ctx, c->fn.kernel, false, out);
    case ATTNGEN_EMIT_TIMELINE_SVG: return put_timeline(ctx, c->fn.kernel, true, out);
    }
    return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "there is no artefact %d", (int)what);
}

attngen_status attngen_emit(attngen_context *ctx, const attngen_program *program, attngen_artefact what, const char *after_pass, attngen_sink sink,
                            void *payload) {
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    if (!program || !sink) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "%s is NULL", program ? "sink" : "program");
    if (after_pass && what != ATTNGEN_EMIT_MATH && what != ATTNGEN_EMIT_TILE)
        return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "after_pass is for the Math IR and the Tile IR only");
    Buf text = {0};
    attngen_status s = put_artefact(ctx, program, what, after_pass, &text);
    if (s == ATTNGEN_OK && text.oom) s = ag_fail(ctx, ATTNGEN_E_NOMEM, "out of memory");
    if (s == ATTNGEN_OK && text.n && sink(payload, text.s, text.n) != 0) s = ag_fail(ctx, ATTNGEN_E_IO, "the output could not be written");
    ag_buf_free(&text);
    return s;
}

/* ---- doctor */

static void put_nvrtc(attngen_context *ctx, Buf *out) {
    enum { LOG = 16384 };
    char path[4096], id[256], *log = calloc(1, LOG);
    const NvrtcEnv env = ag_context_nvrtc_env(ctx);
    Nvrtc *n = NULL;
    Err e;
    int major = 0, minor = 0;
    attngen_status s = ag_nvrtc_find(ctx->nvrtc_option, &env, path, id, log, log ? LOG : 0, &e);
    if (s == ATTNGEN_OK) s = ag_nvrtc_open(&n, path, &e);
    if (s == ATTNGEN_OK) ag_nvrtc_version(n, &major, &minor);
    if (s == ATTNGEN_OK)
        ag_put(out, "NVRTC: %d.%d, %s\n", major, minor, path);
    else
        ag_put(out, "NVRTC: none: %s\n", e.text);
    for (const char *line = log; line && *line;) {
        int len = (int)strcspn(line, "\n");
        ag_put(out, "  looked at %.*s\n", len, line);
        line += len + (line[len] == '\n');
    }
    ag_nvrtc_close(n);
    free(log);
}

static void put_devices(Buf *out) {
    Driver *driver;
    DeviceInfo d;
    Err e;
    if (ag_driver_open(&driver, &e) != ATTNGEN_OK) {
        ag_put(out, "driver: none: %s\n", e.text);
        return;
    }
    int n = ag_driver_count(driver);
    ag_put(out, "driver: %d device%s\n", n, n == 1 ? "" : "s");
    for (int i = 0; i < n; i++) {
        if (ag_driver_device(driver, i, &d, &e) != ATTNGEN_OK) {
            ag_put(out, "device %d: %s\n", i, e.text);
            continue;
        }
        ag_put(out, "device %d: %s, sm_%d, %d SMs, %d bytes of shared memory per block, %zu MiB, driver for CUDA %d.%d\n", i, d.name, d.sm, d.sms,
               d.shared_max, d.memory >> 20, d.driver_version / 1000, d.driver_version % 1000 / 10);
    }
}

attngen_status attngen_doctor(attngen_context *ctx, attngen_sink sink, void *payload) {
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    if (!sink) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "sink is NULL");
    Buf text = {0};
    const char *dir = ag_cache_dir(ctx->cache);
    ag_put(&text, "attngen %s\narch: %s, %s\n", attngen_version(), ctx->arch, ctx->arch_from);
    put_nvrtc(ctx, &text);
    put_devices(&text);
    ag_put(&text, "cache: %s\n", *dir ? dir : "none");
    attngen_status s = text.oom ? ag_fail(ctx, ATTNGEN_E_NOMEM, "out of memory") : ATTNGEN_OK;
    if (s == ATTNGEN_OK && sink(payload, text.s, text.n) != 0) s = ag_fail(ctx, ATTNGEN_E_IO, "the output could not be written");
    ag_buf_free(&text);
    return s;
}
