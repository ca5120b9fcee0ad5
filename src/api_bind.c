/* api_bind.c: sizes to a call, and what can be done with a call: launch, explain, reference, simulate. */
#include "api.h"
#include "program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIMS = 64 };

/* ---- bind */

attngen_status ag_program_load(attngen_program *p, Driver *driver, int device, Loaded **out, Err *e) {
    attngen_status s = ATTNGEN_OK;
    if (!p->image) return ag_err(e, ATTNGEN_E_INVALID_ARG, "the program was made by attngen_lower: it has no kernel to launch");
    pthread_mutex_lock(&p->lock);
    *out = p->loaded;
    if (!*out) {
        if (!driver) s = ag_driver_open(&driver, e);
        if (s == ATTNGEN_OK) s = ag_driver_load(driver, device, p->image, p->size, &p->lowered->meta, out, e);
        atomic_store_explicit(&p->loaded, *out, memory_order_release);
    }
    pthread_mutex_unlock(&p->lock);
    return s;
}

static void set_sizes(int64_t size[SZ_COUNT], const attngen_shape *shape, const Spec *spec) {
    size[SZ_B] = shape->B;
    size[SZ_HQ] = shape->Hq;
    size[SZ_HKV] = shape->Hkv;
    size[SZ_SQ] = shape->Sq;
    size[SZ_SK] = shape->Sk;
    size[SZ_OFF] = shape->offset;
    size[SZ_D] = spec->D;
    size[SZ_DV] = spec->Dv;
    /* Lengths out of range are refused later; the difference must not overflow before that. */
    if (shape->offset == ATTNGEN_ALIGN_END && __builtin_sub_overflow(shape->Sk, shape->Sq, &size[SZ_OFF])) size[SZ_OFF] = 0;
}

/* Those that should go by 16-byte pieces: the others of rank 4 go by TMA or not at all. */
static uint64_t tensors_in_pieces(const ProgramMeta *m) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < m->ntensor; i++) bits |= (uint64_t)ag_has_channels(&m->tensor[i]) << i;
    for (uint32_t i = 0; i < m->ntmap; i++) bits &= ~((uint64_t)1 << m->tmap[i].tensor);
    return bits;
}

/* p under shipped schedule `name`, compiled if p is; NULL: it cannot be had. */
static attngen_program *under(attngen_context *ctx, const attngen_program *p, const char *name) {
    const Compilation *c = p->lowered;
    const DiagFile *spec = &c->diag.file[1];
    const attngen_source text = {spec->name.s, spec->text.s, (size_t)spec->text.n};
    attngen_source schedule;
    attngen_program *other = NULL;
    if (attngen_shipped_schedule(&schedule, name) != ATTNGEN_OK) return NULL;
    attngen_status s = (p->image ? attngen_compile : attngen_lower)(ctx, &other, &text, &schedule, c->dims, c->ndims);
    return s == ATTNGEN_OK ? other : NULL;
}

/* One reference to the program that fits launches of these sizes best: if no schedule was given, p under another shipped one, or p itself.
 * It is a matter of speed alone: where it cannot be had, p does. */
static attngen_program *refined(attngen_context *ctx, const attngen_program *p, const int64_t *size) {
    const Compilation *c = p->lowered;
    bool free_to = c->chosen && !c->fallback && !c->quick && strcmp(ctx->arch, c->fn.target->name) == 0;
    const char *name = free_to ? ag_schedule_default(c->attention, c->fn.target, size[SZ_SQ]) : NULL;
    if (!name || strcmp(name, c->schedule_name) == 0) return ag_program_ref(p);
    attngen_program *other = under(ctx, p, name);
    if (other && ag_sizes_check(&other->lowered->meta, size, NULL) == ATTNGEN_OK) return other;
    attngen_program_free(other);
    ag_warn(ctx, "%s is not compiled under %s, which fits %lld queries best: %s runs", c->meta.spec, name, (long long)size[SZ_SQ], c->schedule_name);
    return ag_program_ref(p);
}

/* A branch visited block by block, or with its forced blocks apart, because that is faster with many queries, and these are few? */
static bool wants_few(const Compilation *c, const attngen_shape *shape) {
    const Field *lists = &c->sched->f[F_LISTS], *forced = &c->sched->f[F_FORCED];
    bool many = (lists->by == BY_RULE && lists->v == LISTS_BY_BLOCK) || (forced->by == BY_RULE && forced->v == FORCED_APART);
    return many && !c->fn.spec->queries && shape->Sq < MANY_QUERIES;
}

/* One reference to the program for these sizes: one with branches that was compiled for no number of query heads per KV head in particular is compiled for theirs, and
 * one with block lists for few queries if they are few.  Sizes that do not fit are left to the check behind. */
static attngen_status for_sizes(attngen_context *ctx, attngen_program **out, const attngen_program *p, const attngen_shape *shape) {
    const Compilation *c = p->lowered;
    int64_t hq = shape->Hq, hkv = shape->Hkv;
    bool group = c->open_group && hkv > 0 && hq > 0 && hq % hkv == 0 && hq / hkv != c->fn.spec->group, few = wants_few(c, shape);
    *out = NULL;
    if (!group && !few) {
        *out = ag_program_ref(p);
        return ATTNGEN_OK;
    }
    const DiagFile *spec = &c->diag.file[1], *schedule = &c->diag.file[2];
    const attngen_source text = {spec->name.s, spec->text.s, (size_t)spec->text.n},
                         how = {schedule->name.s, schedule->text.s, (size_t)schedule->text.n};
    attngen_dim dims[MAX_DIMS];
    size_t n = c->ndims;
    if (n + 2 > MAX_DIMS) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "more than %d names are bound", MAX_DIMS - 2);
    memcpy(dims, c->dims, n * sizeof *dims);
    if (group) dims[n++] = (attngen_dim){"group", (double)(hq / hkv)};
    if (few) dims[n++] = (attngen_dim){"queries", 1}; /* one program for all numbers that are few */
    attngen_status s = (p->image ? attngen_compile : attngen_lower)(ctx, out, &text, c->chosen ? NULL : &how, dims, n);
    if (s == ATTNGEN_OK || group) return s;
    ag_warn(ctx, "%s is not compiled for few queries: it runs as it is", c->meta.spec); /* slower, but it does */
    *out = ag_program_ref(p);
    return ATTNGEN_OK;
}

/* For p and for what takes over from it. */
static size_t workspace_of(const attngen_program *p, const int64_t *size) {
    const attngen_program *there = ag_quick_next(p);
    const ProgramMeta *next = there ? &there->lowered->meta : ag_quick_meta(p);
    size_t own = (size_t)ag_workspace_bytes(&p->lowered->meta, size), later = next ? (size_t)ag_workspace_bytes(next, size) : 0;
    return own > later ? own : later;
}

attngen_status attngen_bind(attngen_context *ctx, attngen_call **out, const attngen_program *program, const attngen_shape *shape) {
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    if (!out || !program || !shape) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "%s is NULL", !out ? "out" : !program ? "program" : "shape");
    *out = NULL;
    Err e;
    int64_t size[SZ_COUNT];
    attngen_program *own = NULL;
    attngen_status s = for_sizes(ctx, &own, program, shape);
    if (s != ATTNGEN_OK) return s;
    set_sizes(size, shape, own->lowered->fn.spec);
    s = ag_sizes_check(&own->lowered->meta, size, &e);
    attngen_call *c = s == ATTNGEN_OK ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        attngen_program_free(own);
        return s != ATTNGEN_OK ? ag_fail_err(ctx, s, &e) : ag_fail(ctx, ATTNGEN_E_NOMEM, "out of memory");
    }
    c->program = refined(ctx, own, size);
    attngen_program_free(own);
    const ProgramMeta *m = &c->program->lowered->meta;
    c->device = ctx->device;
    memcpy(c->size, size, sizeof size);
    c->workspace = workspace_of(c->program, size);
    c->rank4 = tensors_in_pieces(m);
    c->status = ag_program_load(c->program, NULL, c->device, &c->loaded, &c->why);
    *out = c;
    return ATTNGEN_OK;
}

void attngen_call_free(attngen_call *call) {
    if (!call) return;
    attngen_program_free(call->program);
    free(call);
}

const attngen_program *attngen_call_program(const attngen_call *call) { return call ? call->program : NULL; }

size_t attngen_workspace(const attngen_call *call) { return call ? call->workspace : 0; }

static const char *type_of(const Spec *spec, int tensor) {
    int input = tensor - ag_program_input(0);
    DType t = tensor >= TEN_LSE && tensor < TEN_COUNT ? DT_F32 : input < 0 || spec->input[input].storage ? spec->dtype : spec->input[input].type;
    return ag_dtype_name[t];
}

/* Is dim k of the program's tensor a part of the batch? */
static bool is_part(const Spec *spec, int tensor, int k) {
    int input = tensor - ag_program_input(0);
    return input >= 0 && input < spec->ninput && spec->input[input].dim[k].part;
}

int attngen_call_tensor(const attngen_call *call, size_t index, attngen_arg_info *info) {
    if (!call || !info) return 0;
    const ProgramMeta *m = &call->program->lowered->meta;
    for (int i = 0; i < (int)m->ntensor; i++) {
        const TensorMeta *t = &m->tensor[i];
        if (t->buffer || index--) continue;
        *info = (attngen_arg_info){t->name, type_of(call->program->lowered->fn.spec, i), t->rank, t->optional, t->output, {0}};
        for (int k = 0; k < t->rank; k++)
            info->extent[k] = is_part(call->program->lowered->fn.spec, i, k) ? -1 : ag_tensor_extent(m, call->size, i, k);
        return 1;
    }
    return 0;
}

/* ---- launch */

static _Thread_local Err launch_text;

const char *attngen_launch_errmsg(void) { return launch_text.text; }

/* What takes the arguments, and the arguments as it takes them. */
typedef struct Way {
    Runner by;
    BoundArgs b;
} Way;

/* The program that has been compiled behind that of the call, if it is there and can run it. */
static bool next_runner(Runner *r, const attngen_call *call) {
    attngen_program *p = ag_quick_next(call->program);
    Loaded *loaded = p ? atomic_load_explicit(&p->loaded, memory_order_acquire) : NULL;
    if (!loaded || ag_sizes_check(&p->lowered->meta, call->size, NULL) != ATTNGEN_OK) return false;
    const ProgramMeta *m = &p->lowered->meta;
    *r = (Runner){p, loaded, (size_t)ag_workspace_bytes(m, call->size), tensors_in_pieces(m)};
    return r->workspace <= call->workspace; /* may be more where it had to take another schedule than was meant */
}

Runner ag_call_runner(const attngen_call *call, Err *note) {
    Runner r;
    if (call->program->quick && next_runner(&r, call)) return r;
    if (call->program->quick && note) ag_quick_note(call->program, note);
    return (Runner){call->program, call->loaded, call->workspace, call->rank4};
}

/* Turns to a companion.  e: why, or what went wrong. */
static attngen_status go_with(Companion which, Way *w, const attngen_call *call, const attngen_arg *args, size_t nargs, Err *e) {
    char why[1024];
    Err cause;
    ag_args_unmapped(&w->b, why, sizeof why);
    attngen_status s = ag_program_companion(w->by.program, which, w->by.loaded, call->device, &w->by.program, &cause);
    if (s != ATTNGEN_OK) return ag_err(e, s, "%s: %s cannot be made: %s", why, ag_companion_words(which), cause.text);
    const Compilation *c = w->by.program->lowered;
    s = ag_sizes_check(&c->meta, call->size, &cause); /* its blocks have other sizes */
    if (s == ATTNGEN_OK) s = ag_args_bind(&w->b, &c->meta, call->size, args, nargs, &cause);
    if (s != ATTNGEN_OK) return ag_err(e, s, "%s: %s cannot run: %s", why, ag_companion_words(which), cause.text);
    w->by.loaded = atomic_load_explicit(&w->by.program->loaded, memory_order_acquire);
    w->by.workspace = (size_t)ag_workspace_bytes(&c->meta, call->size);
    w->by.rank4 = tensors_in_pieces(&c->meta);
    return ag_err(e, ATTNGEN_OK, "%s: %s (%s) runs", why, ag_companion_words(which), c->schedule_name);
}

static void note_elements(const Way *w, Err *e) {
    size_t used = strlen(e->text), gap = used ? 2 : 0;
    if (used + gap >= sizeof e->text) return;
    memcpy(e->text + used, "; ", gap);
    ag_args_explain(&w->b, e->text + used + gap, sizeof e->text - used - gap);
}

/* runner NULL: that of now.  e: what is worth noting about the way, or what went wrong. */
static attngen_status choose(Way *w, const attngen_call *call, const Runner *runner, const attngen_arg *args, size_t nargs, Err *e) {
    w->by = runner ? *runner : ag_call_runner(call, e);
    attngen_status s = ag_args_bind(&w->b, &w->by.program->lowered->meta, call->size, args, nargs, e);
    Companion which = s == ATTNGEN_OK ? ag_companion_for(&w->b) : COMPANION_NONE;
    if (which != COMPANION_NONE) s = go_with(which, w, call, args, nargs, e);
    if (s == ATTNGEN_OK && w->by.rank4 & ~w->b.vec) note_elements(w, e);
    return s;
}

static attngen_status check_call(const attngen_call *call) {
    if (!call) return ag_err(&launch_text, ATTNGEN_E_INVALID_ARG, "call is NULL");
    return call->loaded ? ATTNGEN_OK : ag_err(&launch_text, call->status, "%s", call->why.text);
}

static attngen_status check_workspace(size_t needed, const void *workspace, size_t bytes) {
    Err *e = &launch_text;
    if (bytes < needed) return ag_err(e, ATTNGEN_E_INVALID_ARG, "the workspace has %zu bytes, the call needs %zu", bytes, needed);
    if (needed && (uintptr_t)workspace % 256) return ag_err(e, ATTNGEN_E_INVALID_ARG, "the workspace is not aligned to 256 bytes");
    return ATTNGEN_OK;
}

attngen_status ag_launch_fail(attngen_status s, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(launch_text.text, sizeof launch_text.text, fmt, args);
    va_end(args);
    return s;
}

attngen_status ag_call_check(const attngen_call *call, const void *workspace, size_t bytes) {
    launch_text.text[0] = 0;
    attngen_status s = check_call(call);
    return s == ATTNGEN_OK ? check_workspace(call->workspace, workspace, bytes) : s;
}

attngen_status attngen_launch(const attngen_call *call, const attngen_arg *args, size_t nargs, void *workspace, size_t workspace_bytes,
                              void *stream) {
    return ag_call_launch(call, NULL, args, nargs, LAUNCH_ALL, workspace, workspace_bytes, stream);
}

attngen_status ag_call_launch(const attngen_call *call, const Runner *runner, const attngen_arg *args, size_t nargs, LaunchPart part, void *workspace,
                              size_t workspace_bytes, void *stream) {
    Way w;
    launch_text.text[0] = 0;
    attngen_status s = check_call(call);
    if (s == ATTNGEN_OK) s = choose(&w, call, runner, args, nargs, &launch_text);
    if (s == ATTNGEN_OK) s = check_workspace(w.by.workspace, workspace, workspace_bytes);
    if (s != ATTNGEN_OK) return s;
    ag_args_place(&w.b, workspace);
    return ag_launch(w.by.loaded, &w.b, part, call->device, stream, &launch_text);
}

attngen_status attngen_explain(const attngen_call *call, const attngen_arg *args, size_t nargs, char *buf, size_t n) {
    Way w;
    launch_text.text[0] = 0;
    if (!call || (!buf && n)) return ag_err(&launch_text, ATTNGEN_E_INVALID_ARG, "%s is NULL", call ? "buf" : "call");
    attngen_status s = choose(&w, call, NULL, args, nargs, &launch_text);
    if (n) snprintf(buf, n, "%s", launch_text.text);
    return s;
}

/* ---- on the host */

static HostTensor host_tensor(const BoundArgs *b, int tensor, DType type) {
    HostTensor t = {.data = b->meta->tensor[tensor].buffer ? NULL : b->data[tensor],
                    .type = type}; /* of what no call gives there is a place in the workspace */
    memcpy(t.stride, b->stride[tensor], sizeof b->stride[tensor]);
    return t;
}

static double constant(const Param *p) {
    return p->value.type == T_FLOAT ? p->value.u.f : p->value.type == T_BOOL ? p->value.u.b : (double)p->value.u.i;
}

static attngen_status host_call(attngen_context *ctx, const attngen_call *call, const attngen_arg *args, size_t nargs, HostCall *h) {
    BoundArgs b;
    Err e;
    if (!call) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "call is NULL");
    const Spec *spec = call->program->lowered->fn.spec;
    attngen_status s = ag_args_bind(&b, &call->program->lowered->meta, call->size, args, nargs, &e);
    if (s != ATTNGEN_OK) return ag_fail_err(ctx, s, &e);
    memset(h, 0, sizeof *h);
    memcpy(h->size, call->size, sizeof h->size);
    h->q = host_tensor(&b, TEN_Q, spec->dtype);
    h->k = host_tensor(&b, TEN_K, spec->dtype);
    h->v = host_tensor(&b, TEN_V, spec->dtype);
    h->o = host_tensor(&b, TEN_O, spec->dtype);
    for (int i = 0; i < ROWV_COUNT; i++) *ag_host_row(h, (RowValue)i) = host_tensor(&b, TEN_LSE + i, DT_F32);
    for (int i = 0; i < spec->ninput; i++)
        h->input[i] = host_tensor(&b, ag_program_input(i), spec->input[i].storage ? spec->dtype : spec->input[i].type);
    for (int i = 0; i < spec->nparam && i < HOST_SCALARS; i++) {
        const Param *p = &spec->param[i];
        h->scalar[i] = p->bound ? constant(p) : b.scalar[i];
    }
    return ATTNGEN_OK;
}

/* Rounds contiguous results into the caller's tensors. */
static void store_rows(HostCall *h, const double *o, double *const value[ROWV_COUNT]) {
    const int64_t *n = h->size;
    for (int64_t b = 0; b < n[SZ_B]; b++)
        for (int64_t r = 0; r < n[SZ_HQ] * n[SZ_SQ]; r++) {
            int64_t head = r / n[SZ_SQ], q = r % n[SZ_SQ];
            for (int64_t d = 0; d < n[SZ_DV]; d++) ag_host_set(&h->o, b, head, q, d, *o++);
            for (int i = 0; i < ROWV_COUNT; i++) {
                const HostTensor *t = ag_host_row(h, (RowValue)i);
                if (t->data) ag_host_set(t, b, head, q, 0, value[i][b * n[SZ_HQ] * n[SZ_SQ] + r]);
            }
        }
}

/* calloc for a product that may be too large; never NULL for want of elements. */
static double *new_doubles(const int64_t *size, int64_t last) {
    int64_t n = last;
    bool fits =
        !__builtin_mul_overflow(n, size[SZ_B], &n) && !__builtin_mul_overflow(n, size[SZ_HQ], &n) && !__builtin_mul_overflow(n, size[SZ_SQ], &n);
    return fits ? calloc((size_t)n + 1, sizeof(double)) : NULL;
}

attngen_status attngen_reference(attngen_context *ctx, const attngen_call *call, const attngen_arg *args, size_t nargs) {
    HostCall h;
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    attngen_status s = host_call(ctx, call, args, nargs, &h);
    if (s != ATTNGEN_OK) return s;
    double *o = new_doubles(h.size, h.size[SZ_DV]), *value[ROWV_COUNT];
    bool ok = o != NULL;
    for (int i = 0; i < ROWV_COUNT; i++) ok &= (value[i] = new_doubles(h.size, 1)) != NULL;
    ok = ok && ag_reference_values(call->program->lowered->fn.spec, &h, o, value);
    if (ok) store_rows(&h, o, value);
    free(o);
    for (int i = 0; i < ROWV_COUNT; i++) free(value[i]);
    return ok ? ATTNGEN_OK : ag_fail(ctx, ATTNGEN_E_NOMEM, "out of memory");
}

attngen_status attngen_simulate(attngen_context *ctx, const attngen_call *call, const attngen_arg *args, size_t nargs) {
    HostCall h;
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    attngen_status s = host_call(ctx, call, args, nargs, &h);
    if (s != ATTNGEN_OK) return s;
    Buf message = {0};
    ProgramBuffers buffers;
    if (!ag_simulate_program(call->program->lowered, &h, &buffers, &message)) {
        bool oom = message.oom || !message.s;
        s = oom ? ag_fail(ctx, ATTNGEN_E_NOMEM, "out of memory") : ag_fail(ctx, ATTNGEN_E_CHECK, "%s", message.s);
    }
    ag_program_buffers_free(&buffers);
    ag_buf_free(&message);
    return s;
}
