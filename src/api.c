/* api.c: contexts, the way from texts to a program, and the tables of names. */
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- statuses */

static const struct {
    attngen_status status;
    int exit_code;
    const char *text;
} status_row[] = {
    {ATTNGEN_OK, 0, "ok"},
    {ATTNGEN_E_INVALID_ARG, 2, "invalid argument"},
    {ATTNGEN_E_SPEC, 3, "the spec or the schedule is wrong"},
    {ATTNGEN_E_UNSUPPORTED, 4, "not possible on this target"},
    {ATTNGEN_E_COMPILE, 5, "NVRTC refused the generated code"},
    {ATTNGEN_E_NO_NVRTC, 6, "NVRTC was not found"},
    {ATTNGEN_E_DRIVER, 6, "no CUDA driver or device, or the driver reported an error"},
    {ATTNGEN_E_IO, 6, "file system error"},
    {ATTNGEN_E_NOMEM, 6, "out of memory"},
    {ATTNGEN_E_CHECK, 1, "a check failed"},
    {ATTNGEN_E_INTERNAL, 1, "internal error"},
};

const char *attngen_strerror(attngen_status s) {
    for (int i = 0; i < LEN(status_row); i++)
        if (status_row[i].status == s) return status_row[i].text;
    return "unknown status";
}

int attngen_exit_code(attngen_status s) {
    for (int i = 0; i < LEN(status_row); i++)
        if (status_row[i].status == s) return status_row[i].exit_code;
    return 1;
}

const char *attngen_version(void) { return ATTNGEN_VERSION_STRING; }

/* ---- diagnostics */

static _Thread_local Err create_error; /* of attngen_create, which leaves no context to ask */

static attngen_status set_message(attngen_context *ctx, attngen_status s, const char *text, size_t n) {
    ctx->message.n = 0;
    ctx->message.oom = false;
    ag_putn(&ctx->message, text, n);
    return s;
}

attngen_status ag_fail(attngen_context *ctx, attngen_status s, const char *fmt, ...) {
    Err e;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.text, sizeof e.text, fmt, ap);
    va_end(ap);
    return ag_fail_err(ctx, s, &e);
}

attngen_status ag_fail_err(attngen_context *ctx, attngen_status s, const Err *e) {
    if (ctx) return set_message(ctx, s, e->text, strlen(e->text));
    create_error = *e;
    return s;
}

static attngen_status no_memory(attngen_context *ctx) { return ag_fail(ctx, ATTNGEN_E_NOMEM, "out of memory"); }

static attngen_status fail_diag(attngen_context *ctx, const Diag *d) {
    Buf text = {0};
    ag_diag_render(d, &text);
    while (text.n && text.s[text.n - 1] == '\n') text.n--;
    attngen_status s = text.oom ? no_memory(ctx) : set_message(ctx, d->status, text.s, text.n);
    ag_buf_free(&text);
    return s;
}

void ag_warn(const attngen_context *ctx, const char *fmt, ...) {
    char line[512];
    if (!ctx->warn) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    ctx->warn(ctx->payload, line);
}

const char *attngen_errmsg(const attngen_context *ctx) {
    if (!ctx) return create_error.text;
    if (ctx->message.oom) return "out of memory";
    return ctx->message.s ? ctx->message.s : "";
}

/* ---- context */

static const char *const env_name[ENV_COUNT] = {
    [ENV_CACHE_DIR] = "ATTNGEN_CACHE_DIR", [ENV_XDG_CACHE_HOME] = "XDG_CACHE_HOME", [ENV_HOME] = "HOME",
    [ENV_NVRTC] = "ATTNGEN_NVRTC",         [ENV_CUDA_HOME] = "CUDA_HOME",           [ENV_LD_LIBRARY_PATH] = "LD_LIBRARY_PATH",
    [ENV_VIRTUAL_ENV] = "VIRTUAL_ENV",     [ENV_CONDA_PREFIX] = "CONDA_PREFIX",
};

static bool copy_text(char **to, const char *from) {
    *to = from ? strdup(from) : NULL;
    return !from || *to;
}

static void set_arch(attngen_context *ctx, const char *arch, const char *from) {
    snprintf(ctx->arch, sizeof ctx->arch, "%s", arch);
    ctx->arch_from = from;
}

static attngen_status given_arch(attngen_context *ctx, const char *arch) {
    const char *names[32] = {NULL};
    if (ag_target_find(arch)) {
        set_arch(ctx, arch, "given");
        return ATTNGEN_OK;
    }
    for (size_t i = 0; i + 1 < sizeof names / sizeof names[0]; i++) names[i] = attngen_known_arch(i);
    const char *near = ag_nearest(ag_str(arch), names);
    return ag_fail(NULL, ATTNGEN_E_INVALID_ARG, "unknown architecture `%s`%s%s%s", arch, near ? " (did you mean `" : "", near ? near : "",
                   near ? "`?)" : "");
}

static const char default_arch[] = "sm_90";

static void device_arch(attngen_context *ctx) {
    Driver *driver;
    DeviceInfo info;
    set_arch(ctx, default_arch, "the default, without a usable device");
    if (ag_driver_open(&driver, &ctx->no_device) != ATTNGEN_OK) return;
    if (ag_driver_device(driver, ctx->device, &info, &ctx->no_device) != ATTNGEN_OK) return;
    const Target *t = ag_target_of_device(info.sm);
    if (t) {
        set_arch(ctx, t->name, "of the device");
        ctx->portable = t->portable ? ag_target_find(t->portable) : NULL;
    } else
        ag_warn(ctx, "device %d (%s) is sm_%d, for which this version has no kernels; compiling for %s, which it cannot run", ctx->device, info.name,
                info.sm, default_arch);
}

/* All but the architecture.  env: the values of env_name, NULL if unset. */
static attngen_status context_init(attngen_context *ctx, const attngen_options *o, const char *const value[ENV_COUNT]) {
    ctx->device = o->device;
    ctx->debug_hang = o->version >= 2 && o->debug_hang;
    ctx->quick_start = o->version >= 3 && o->quick_start;
    ctx->warn = o->warn;
    ctx->payload = o->payload;
    bool ok = copy_text(&ctx->nvrtc_option, o->nvrtc);
    for (int i = 0; i < ENV_COUNT; i++) ok = copy_text(&ctx->env[i], value[i]) && ok;
    const CacheEnv env = {ctx->env[ENV_CACHE_DIR], ctx->env[ENV_XDG_CACHE_HOME], ctx->env[ENV_HOME]};
    ctx->cache = ok ? ag_cache_open(o->cache_dir, &env, o->warn, o->payload) : NULL;
    return ctx->cache ? ATTNGEN_OK : no_memory(NULL);
}

static attngen_status context_new(attngen_context **out, const attngen_options *o, const char *const env[ENV_COUNT]) {
    attngen_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx) return no_memory(NULL);
    attngen_status s = context_init(ctx, o, env);
    if (s == ATTNGEN_OK && o->arch)
        s = given_arch(ctx, o->arch);
    else if (s == ATTNGEN_OK)
        device_arch(ctx);
    if (s != ATTNGEN_OK)
        attngen_destroy(ctx);
    else
        *out = ctx;
    return s;
}

attngen_status attngen_create(attngen_context **out, const attngen_options *options) {
    static const attngen_options defaults = ATTNGEN_OPTIONS_INIT;
    const attngen_options *o = options ? options : &defaults;
    if (!out) return ag_fail(NULL, ATTNGEN_E_INVALID_ARG, "out is NULL");
    *out = NULL;
    if (o->version < 1 || o->version > ATTNGEN_OPTIONS_VERSION)
        return ag_fail(NULL, ATTNGEN_E_INVALID_ARG, "options.version is %u, this library knows %u", o->version, ATTNGEN_OPTIONS_VERSION);
    if (o->device < 0) return ag_fail(NULL, ATTNGEN_E_INVALID_ARG, "options.device is %d", o->device);
    const char *env[ENV_COUNT];
    for (int i = 0; i < ENV_COUNT; i++) env[i] = getenv(env_name[i]);
    return context_new(out, o, env);
}

attngen_status ag_context_private(attngen_context **out, const char *arch, const Origin *origin, Err *e) {
    static const char *const env[ENV_COUNT] = {NULL};
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    o.arch = arch;
    o.cache_dir = origin->cache_dir ? origin->cache_dir : "";
    o.nvrtc = origin->nvrtc;
    attngen_status s = context_new(out, &o, env);
    return s == ATTNGEN_OK ? s : ag_err(e, s, "%s", create_error.text);
}

void attngen_destroy(attngen_context *ctx) {
    if (!ctx) return;
    for (int i = 0; i < ctx->nknown; i++) attngen_program_free(ctx->known[i].program);
    for (int i = 0; i < ENV_COUNT; i++) free(ctx->env[i]);
    free(ctx->nvrtc_option);
    ag_nvrtc_close(ctx->nvrtc.open);
    ag_cache_close(ctx->cache);
    ag_buf_free(&ctx->message);
    free(ctx);
}

const char *attngen_arch(const attngen_context *ctx) { return ctx ? ctx->arch : ""; }

int attngen_has_device(attngen_context *ctx, const char **why) {
    Driver *driver;
    DeviceInfo info;
    if (why) *why = "";
    if (!ctx) return 0;
    attngen_status s = ag_driver_open(&driver, &ctx->no_device);
    if (s == ATTNGEN_OK) s = ag_driver_device(driver, ctx->device, &info, &ctx->no_device);
    if (s != ATTNGEN_OK && why) *why = ctx->no_device.text;
    return s == ATTNGEN_OK;
}

NvrtcEnv ag_context_nvrtc_env(const attngen_context *ctx) {
    char *const *e = ctx->env;
    return (NvrtcEnv){e[ENV_NVRTC], e[ENV_CUDA_HOME], e[ENV_LD_LIBRARY_PATH], e[ENV_VIRTUAL_ENV], e[ENV_CONDA_PREFIX], e[ENV_HOME]};
}

attngen_status ag_context_find_nvrtc(attngen_context *ctx) {
    NvrtcState *n = &ctx->nvrtc;
    const NvrtcEnv env = ag_context_nvrtc_env(ctx);
    if (!n->sought) n->status = ag_nvrtc_find(ctx->nvrtc_option, &env, n->path, n->id, NULL, 0, &n->why);
    n->sought = true;
    return n->status == ATTNGEN_OK ? ATTNGEN_OK : ag_fail_err(ctx, n->status, &n->why);
}

attngen_status ag_context_open_nvrtc(attngen_context *ctx) {
    Err e;
    attngen_status s = ag_context_find_nvrtc(ctx);
    if (s != ATTNGEN_OK || ctx->nvrtc.open) return s;
    s = ag_nvrtc_open(&ctx->nvrtc.open, ctx->nvrtc.path, &e);
    return s == ATTNGEN_OK ? s : ag_fail_err(ctx, s, &e);
}

/* ---- programs */

attngen_program *ag_program_ref(const attngen_program *program) {
    attngen_program *p = (attngen_program *)(uintptr_t)program; /* the count is the only thing that changes */
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void attngen_program_free(attngen_program *p) {
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    ag_quick_free(p->quick); /* first: its thread reads what is p's */
    if (p->loaded) ag_driver_unload(p->loaded);
    attngen_program_free(p->portable);
    attngen_program_free(p->unstaged);
    pthread_mutex_destroy(&p->lock);
    free(p->origin.cache_dir);
    free(p->origin.nvrtc);
    ag_compilation_free(p->lowered);
    free(p->image);
    free(p);
}

const Compilation *ag_program_compilation(const attngen_program *program) { return program->lowered; }

/* Takes over c. */
static attngen_program *program_new(Compilation *c) {
    attngen_program *p = calloc(1, sizeof *p);
    if (!p) {
        ag_compilation_free(c);
        return NULL;
    }
    atomic_init(&p->refs, 1);
    pthread_mutex_init(&p->lock, NULL);
    p->lowered = c;
    return p;
}

/* The kernel of a program that asks most of the machine. */
static const KernelMeta *largest_kernel(const ProgramMeta *m) {
    const KernelMeta *most = &m->kernel[0];
    for (uint32_t i = 1; i < m->nkernel; i++)
        if (m->kernel[i].shared_bytes > most->shared_bytes) most = &m->kernel[i];
    return most;
}

attngen_status attngen_program_info(const attngen_program *p, attngen_info *info) {
    if (!p || !info || info->version != ATTNGEN_INFO_VERSION) return ATTNGEN_E_INVALID_ARG;
    const Compilation *c = p->lowered;
    *info = (attngen_info){
        .version = ATTNGEN_INFO_VERSION,
        .name = c->meta.spec,
        .arch = c->meta.arch,
        .schedule = c->schedule_name,
        .numerics = c->numerics,
        .D = c->fn.spec->D,
        .Dv = c->fn.spec->Dv,
        .dtype = c->fn.spec->dtype == DT_F16 ? ATTNGEN_F16 : ATTNGEN_BF16,
        .threads = (int)largest_kernel(&c->meta)->threads,
        .shared_bytes = (int)largest_kernel(&c->meta)->shared_bytes,
        .registers = p->report.registers,
        .spill_bytes = p->report.spill_bytes,
        .from_disk_cache = p->from_disk,
    };
    return ATTNGEN_OK;
}

/* ---- the image of a program: from the disk cache or from NVRTC */

/* Keeps code that NVRTC refused in the cache folder, for a report.  false: there was no place for it. */
static bool keep_source(const attngen_context *ctx, const CacheKey *key, const char *cu, char path[4096]) {
    const char *dir = ag_cache_dir(ctx->cache);
    char hex[2 * sizeof key->h + 1];
    for (size_t i = 0; i < sizeof key->h; i++) snprintf(hex + 2 * i, 3, "%02x", key->h[i]);
    if (!*dir || snprintf(path, 4096, "%s/failed-%s.cu", dir, hex) >= 4096) return false;
    mkdir(dir, 0700); /* nothing may have been stored yet; if it fails, so does open */
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return false;
    size_t n = strlen(cu);
    bool ok = write(fd, cu, n) == (ssize_t)n;
    return close(fd) == 0 && ok;
}

static attngen_status refused(attngen_context *ctx, const CacheKey *key, const char *cu, const Err *e) {
    char path[4096];
    if (keep_source(ctx, key, cu, path))
        return ag_fail(ctx, ATTNGEN_E_COMPILE, "%s\nthis is a defect of attngen; the code is kept in %s", e->text, path);
    return ag_fail(ctx, ATTNGEN_E_COMPILE, "%s\nthis is a defect of attngen; `attngen emit` prints the code", e->text);
}

/* The calls of printf behind bounded waits serialise wgmma, which else is a defect. */
unsigned ag_nvrtc_flags(const Compilation *c, bool ptx) { return (ptx ? NVRTC_PTX : 0u) | (c->fn.kernel->bounded ? NVRTC_SLOW : 0u); }

/* Bytes stored and loaded again in all: what is put aside once per tile, not in every step. */
enum { SPILLS_TOLERATED = 32 };

/* By how much its registers are too few: bytes spilled, or, which is worse, wgmma that is serialised. */
static int shortage(const attngen_program *p) {
    if (p->lowered->fn.kernel->bounded) return 0;
    return p->report.serialised ? INT_MAX : p->report.spill_bytes > SPILLS_TOLERATED ? p->report.spill_bytes : 0;
}

/* What there is to say of it, in buf. */
static const char *shortage_text(const attngen_program *p, char *buf, size_t n) {
    const PtxasReport *r = &p->report;
    const char *arch = p->lowered->meta.arch;
    if (r->serialised)
        snprintf(buf, n, "has too few registers for its wgmma on %s (%d are used), which then wait for one another", arch, r->registers);
    else
        snprintf(buf, n, "spills %d bytes of registers per thread on %s (%d registers are used)", r->spill_bytes, arch, r->registers);
    return buf;
}

/* Too few registers are a defect of a shipped schedule that was named if the compiler is one that it was made for, else the business of whoever chose schedule and compiler; where nobody chose,
 * and under no schedule there are none, of a long spec.  Those of a debug-hang build come from its bounded waits and say nothing of the schedule. */
static attngen_status check_registers(attngen_context *ctx, const attngen_program *p) {
    const Compilation *c = p->lowered;
    char text[256];
    if (c->fn.kernel->bounded || (p->report.spill_bytes == 0 && !p->report.serialised)) return ATTNGEN_OK;
    if (c->shipped && shortage(p) == 0) return ATTNGEN_OK;
    bool own = ag_scores_captured(c->fn.spec); /* what it reads per row, column and element takes registers as the spec says */
    if (c->shipped && !c->chosen && p->tuned && !own)
        return ag_fail(ctx, ATTNGEN_E_COMPILE, "%s under the shipped schedule %s %s", c->meta.spec, c->schedule_name,
                       shortage_text(p, text, sizeof text));
    if (!p->from_disk)
        ag_warn(ctx, "%s under %s %s: it will be slow%s", c->meta.spec, c->schedule_name, shortage_text(p, text, sizeof text),
                p->tuned ? "" : "; NVRTC 12.9 or newer would do better");
    return ATTNGEN_OK;
}

/* Kernels that multiply matrices take most of the time: each is compiled by itself, all others together. */
static bool is_unit(const Kernel *k) { return k->kind == KERNEL_ATTEND || k->kind == KERNEL_GATHER || k->kind == KERNEL_SELECT; }

/* The texts that c->cu is compiled as, malloc'ed; how many, 0 if memory is out.  Each begins with what all kernels need. */
static int split_text(const Compilation *c, char *text[META_KERNELS]) {
    int n = 0, rest = -1;
    Buf buf[META_KERNELS] = {{0}};
    for (int i = 0; i < c->npart; i++) {
        size_t from = c->npart > 1 ? c->cu_at[i] : c->cu.n, to = i + 1 < c->npart ? c->cu_at[i + 1] : c->cu.n;
        bool own = is_unit(c->part[i].kernel);
        int at = own || rest < 0 ? n++ : rest;
        if (!own) rest = at;
        if (!buf[at].n) ag_putn(&buf[at], c->cu.s, c->npart > 1 ? c->cu_at[0] : c->cu.n);
        ag_putn(&buf[at], c->cu.s + from, to - from);
    }
    bool oom = false;
    for (int i = 0; i < n; i++) {
        oom |= buf[i].oom;
        text[i] = buf[i].s;
    }
    for (int i = 0; i < n && oom; i++) free(text[i]);
    return oom ? 0 : n;
}

static attngen_status compile_units(attngen_context *ctx, const Compilation *c, const CacheKey *key, Compiled *built) {
    char *text[META_KERNELS];
    int n = split_text(c, text), failed = 0;
    Err e;
    if (n == 0) return no_memory(ctx);
    attngen_status s = ag_image_compile(ctx->nvrtc.open, (const char *const *)text, n, c->meta.arch, ag_nvrtc_flags(c, false), built, &failed, &e);
    if (s == ATTNGEN_E_COMPILE)
        refused(ctx, key, text[failed], &e);
    else if (s != ATTNGEN_OK)
        ag_fail_err(ctx, s, &e);
    for (int i = 0; i < n; i++) free(text[i]);
    return s;
}

static attngen_status build_image(attngen_context *ctx, attngen_program *p, const CacheKey *key) {
    const Compilation *c = p->lowered;
    Compiled built = {0};
    attngen_status s = ag_context_open_nvrtc(ctx);
    if (s != ATTNGEN_OK) return s;
    s = compile_units(ctx, c, key, &built);
    if (s == ATTNGEN_OK) {
        const CacheEntry entry = {c->meta, built.image, built.size, built.report, built.tuned};
        ag_cache_store(ctx->cache, key, &entry);
        p->image = built.image;
        p->size = built.size;
        p->report = built.report;
        p->tuned = built.tuned;
        built.image = NULL;
    }
    ag_compiled_free(&built);
    return s;
}

/* From the disk, if it is there: else p has none. */
static attngen_status find_image(attngen_context *ctx, attngen_program *p, CacheKey *key) {
    const Compilation *c = p->lowered;
    attngen_status s = ag_context_find_nvrtc(ctx); /* its id is part of the key; it is opened for a miss only */
    if (s != ATTNGEN_OK) return s;
    CacheEntry entry;
    *key = ag_cache_key(c->cu.s, c->cu.n, &c->meta, c->meta.arch, ctx->nvrtc.id);
    if (!ag_cache_load(ctx->cache, key, &entry)) return ATTNGEN_OK;
    p->image = entry.cubin;
    p->size = entry.size;
    p->report = entry.report;
    p->tuned = entry.tuned;
    p->from_disk = true;
    return ATTNGEN_OK;
}

static attngen_status get_image(attngen_context *ctx, attngen_program *p) {
    CacheKey key;
    attngen_status s = find_image(ctx, p, &key);
    return s == ATTNGEN_OK && !p->image ? build_image(ctx, p, &key) : s;
}

/* Notes what a companion would be made with.  Of NVRTC the file that was found, so that it is not sought again. */
static attngen_status set_origin(attngen_context *ctx, attngen_program *p) {
    const NvrtcState *n = &ctx->nvrtc;
    bool found = n->sought && n->status == ATTNGEN_OK;
    bool ok = copy_text(&p->origin.cache_dir, ag_cache_dir(ctx->cache));
    ok = copy_text(&p->origin.nvrtc, found ? n->path : ctx->nvrtc_option) && ok;
    return ok ? ATTNGEN_OK : no_memory(ctx);
}

/* ---- programs that a context remembers */

typedef struct Inputs {
    const attngen_source *spec, *schedule;
    const attngen_dim *dims;
    size_t ndims;
    bool image; /* wanted up to the cubin */
} Inputs;

static void hash_text(XXH3_state_t *h, const char *s, size_t n) {
    XXH3_128bits_update(h, &n, sizeof n);
    if (n) XXH3_128bits_update(h, s, n);
}

/* Of everything but the names of the files, which matter to diagnostics alone. */
static XXH128_hash_t hash_inputs(const attngen_context *ctx, const Inputs *in) {
    XXH3_state_t h;
    const char kind[2] = {(char)in->image, (char)(in->schedule != NULL)};
    XXH3_128bits_reset(&h);
    XXH3_128bits_update(&h, kind, sizeof kind);
    hash_text(&h, ctx->arch, strlen(ctx->arch));
    hash_text(&h, in->spec->text, in->spec->len);
    if (in->schedule) hash_text(&h, in->schedule->text, in->schedule->len);
    for (size_t i = 0; i < in->ndims; i++) {
        hash_text(&h, in->dims[i].name, strlen(in->dims[i].name));
        XXH3_128bits_update(&h, &in->dims[i].value, sizeof in->dims[i].value);
    }
    return XXH3_128bits_digest(&h);
}

static attngen_program *recall(attngen_context *ctx, XXH128_hash_t key) {
    for (int i = 0; i < ctx->nknown; i++) {
        Known *k = &ctx->known[i];
        if (k->key[0] != key.low64 || k->key[1] != key.high64) continue;
        k->used = ++ctx->clock;
        return k->program;
    }
    return NULL;
}

static void remember(attngen_context *ctx, XXH128_hash_t key, const attngen_program *program) {
    Known *to = &ctx->known[0];
    if (ctx->nknown < MAX_KNOWN) {
        to = &ctx->known[ctx->nknown++];
    } else {
        for (int i = 1; i < MAX_KNOWN; i++)
            if (ctx->known[i].used < to->used) to = &ctx->known[i];
        attngen_program_free(to->program);
    }
    *to = (Known){{key.low64, key.high64}, ++ctx->clock, ag_program_ref(program)};
}

/* ---- attngen_compile and attngen_lower */

static attngen_status check_source(attngen_context *ctx, const char *what, const attngen_source *s) {
    if (!s->text && s->len) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "the text of the %s is NULL and its length %zu", what, s->len);
    return ATTNGEN_OK;
}

static attngen_status check_inputs(attngen_context *ctx, const Inputs *in) {
    if (!in->spec) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "spec is NULL");
    if (in->ndims && !in->dims) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "dims is NULL and ndims %zu", in->ndims);
    for (size_t i = 0; i < in->ndims; i++)
        if (!in->dims[i].name) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "dims[%zu].name is NULL", i);
    attngen_status s = check_source(ctx, "spec", in->spec);
    if (s == ATTNGEN_OK && in->schedule) s = check_source(ctx, "schedule", in->schedule);
    return s;
}

/* For ctx->arch, or for ctx->portable if the schedule wants that. */
static Compilation *compile_text(const attngen_context *ctx, const Inputs *in) {
    Request r = {.spec = in->spec,
                 .schedule = in->schedule,
                 .arch = ctx->arch,
                 .dims = in->dims,
                 .ndims = in->ndims,
                 .debug_hang = ctx->debug_hang,
                 .alone = ctx->alone,
                 .unstaged = ctx->unstaged,
                 .branches = ctx->branches};
    Compilation *c = ag_compile(&r);
    if (!c || c->diag.status != ATTNGEN_E_UNSUPPORTED || !c->sched || !ctx->portable) return c;
    if (ag_schedule_is_for(c->sched, ag_target_find(ctx->arch)) || !ag_schedule_is_for(c->sched, ctx->portable)) return c;
    ag_compilation_free(c);
    r.arch = ctx->portable->name;
    return ag_compile(&r);
}

static attngen_program *program_of(Compilation *c) {
    if (c && c->diag.status == ATTNGEN_OK) return program_new(c);
    ag_compilation_free(c);
    return NULL;
}

/* The program of the same inputs under fallback number n of their schedule, from 1 on, with its image; NULL: it cannot be had.  *end: there are no further ones. */
static attngen_program *fallback(attngen_context *ctx, const Inputs *in, const Target *t, int n, bool *end) {
    const Request r = {.spec = in->spec,
                       .arch = t->name,
                       .dims = in->dims,
                       .ndims = in->ndims,
                       .debug_hang = ctx->debug_hang,
                       .alone = ctx->alone,
                       .fallback = n,
                       .unstaged = ctx->unstaged,
                       .branches = ctx->branches};
    attngen_program *p = program_of(ag_compile(&r));
    *end = !p;
    if (!p || get_image(ctx, p) == ATTNGEN_OK) return p;
    attngen_program_free(p);
    return NULL;
}

/* Where nobody chose the schedule and registers are too few under it, the first fallback under which they are not; else the one under which least is spilled.  (The kernel for the portable
 * target is none of them: without spills it is slower than one of wgmma with them, docs/performance.md.) */
static attngen_program *with_registers(attngen_context *ctx, const Inputs *in, attngen_program *best) {
    const Target *t = best->lowered->fn.target;
    bool end = !best->lowered->chosen;
    for (int n = 1; !end && shortage(best) > 0; n++) {
        attngen_program *p = fallback(ctx, in, t, n, &end), *worse = p;
        if (p && shortage(p) < shortage(best)) worse = best, best = p;
        attngen_program_free(worse);
    }
    return best;
}

/* The same inputs as p's, which is not compiled, as a program that is: under a schedule that compiles quickly, while a thread makes p.  NULL: there is none. */
static attngen_program *quick_start(attngen_context *ctx, const Inputs *in, attngen_program *p) {
    const Request r = {
        .spec = in->spec, .arch = p->lowered->fn.target->name, .dims = in->dims, .ndims = in->ndims, .debug_hang = ctx->debug_hang, .quick = true};
    attngen_program *quick = program_of(ag_compile(&r));
    bool other = quick && strcmp(quick->lowered->cu.s, p->lowered->cu.s) != 0;
    bool ok = other && get_image(ctx, quick) == ATTNGEN_OK && set_origin(ctx, quick) == ATTNGEN_OK && ag_context_open_nvrtc(ctx) == ATTNGEN_OK;
    if (ok && ag_quick_begin(quick, p, ctx->device, ctx->debug_hang)) return quick;
    attngen_program_free(quick);
    return NULL;
}

static attngen_status finish_image(attngen_context *ctx, attngen_program **p, const Inputs *in) {
    CacheKey key;
    attngen_status s = find_image(ctx, *p, &key);
    if (s != ATTNGEN_OK) return s;
    bool wanted = !(*p)->image && ctx->quick_start && (*p)->lowered->chosen;
    attngen_program *quick = wanted ? quick_start(ctx, in, *p) : NULL;
    if (quick) return *p = quick, ATTNGEN_OK;
    if (!(*p)->image) s = build_image(ctx, *p, &key);
    if (s != ATTNGEN_OK) return s;
    *p = with_registers(ctx, in, *p);
    return check_registers(ctx, *p);
}

static attngen_status make_program(attngen_context *ctx, attngen_program **out, const Inputs *in) {
    Compilation *c = compile_text(ctx, in);
    if (!c) return no_memory(ctx);
    if (c->diag.status != ATTNGEN_OK) {
        attngen_status s = fail_diag(ctx, &c->diag);
        ag_compilation_free(c);
        return s;
    }
    if (ctx->debug_hang && !c->fn.kernel->bounded)
        ag_warn(ctx, "%s under %s has no mbarriers, so debug-hang has nothing to bound: it is the usual build", c->meta.spec, c->schedule_name);
    attngen_program *p = program_new(c);
    if (!p) return no_memory(ctx);
    attngen_status s = in->image ? finish_image(ctx, &p, in) : ATTNGEN_OK;
    if (s == ATTNGEN_OK && p->lowered->meta.ntmap && !p->quick) s = set_origin(ctx, p);
    if (s != ATTNGEN_OK)
        attngen_program_free(p);
    else
        *out = p;
    return s;
}

static attngen_status get_program(attngen_context *ctx, attngen_program **out, const Inputs *in) {
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    if (!out) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "out is NULL");
    *out = NULL;
    attngen_status s = check_inputs(ctx, in);
    if (s != ATTNGEN_OK) return s;
    XXH128_hash_t key = hash_inputs(ctx, in);
    const attngen_program *known = recall(ctx, key), *next = known ? ag_quick_next(known) : NULL;
    if (known) {
        *out = ag_program_ref(next ? next : known);
        return ATTNGEN_OK;
    }
    s = make_program(ctx, out, in);
    if (s == ATTNGEN_OK) remember(ctx, key, *out);
    return s;
}

attngen_status attngen_compile(attngen_context *ctx, attngen_program **out, const attngen_source *spec, const attngen_source *schedule,
                               const attngen_dim *dims, size_t ndims) {
    return get_program(ctx, out, &(Inputs){spec, schedule, dims, ndims, true});
}

attngen_status attngen_lower(attngen_context *ctx, attngen_program **out, const attngen_source *spec, const attngen_source *schedule,
                             const attngen_dim *dims, size_t ndims) {
    return get_program(ctx, out, &(Inputs){spec, schedule, dims, ndims, false});
}

/* ---- names */

typedef const Shipped *(*ShippedAt)(size_t);

static attngen_status find_shipped(attngen_source *out, const char *name, ShippedAt at) {
    if (!out || !name) return ATTNGEN_E_INVALID_ARG;
    for (size_t i = 0; at(i); i++) {
        const Shipped *s = at(i);
        if (strcmp(s->name, name) != 0) continue;
        *out = (attngen_source){s->name, s->text, (size_t)s->len};
        return ATTNGEN_OK;
    }
    return ATTNGEN_E_INVALID_ARG;
}

attngen_status attngen_shipped_spec(attngen_source *out, const char *name) { return find_shipped(out, name, ag_shipped_spec); }
attngen_status attngen_shipped_schedule(attngen_source *out, const char *name) { return find_shipped(out, name, ag_shipped_schedule); }
const char *attngen_shipped_spec_name(size_t index) { return ag_shipped_spec(index) ? ag_shipped_spec(index)->name : NULL; }
const char *attngen_shipped_schedule_name(size_t index) { return ag_shipped_schedule(index) ? ag_shipped_schedule(index)->name : NULL; }
const char *attngen_known_arch(size_t index) { return ag_target_at(index) ? ag_target_at(index)->name : NULL; }

/* ---- the cache */

const char *attngen_cache_path(const attngen_context *ctx) { return ctx ? ag_cache_dir(ctx->cache) : ""; }

attngen_status attngen_cache_list(attngen_context *ctx, attngen_sink sink, void *payload) {
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    if (!sink) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "sink is NULL");
    attngen_status s = ag_cache_list(ctx->cache, sink, payload);
    return s == ATTNGEN_OK ? s : ag_fail(ctx, s, "cannot list %s: %s", ag_cache_dir(ctx->cache), strerror(errno));
}

attngen_status attngen_cache_clear(attngen_context *ctx, size_t *removed) {
    size_t n = 0;
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    attngen_status s = ag_cache_clear(ctx->cache, &n);
    if (removed) *removed = n;
    return s == ATTNGEN_OK ? s : ag_fail(ctx, s, "cannot clear %s: %s", ag_cache_dir(ctx->cache), strerror(errno));
}
