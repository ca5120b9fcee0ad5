/* check.c: `attngen check`: every case of the grid through the reference, the naive computation, the simulator and, where there is one, the GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"
#include "check_case.h"
#include "driver_mem.h"
#include "program.h"

typedef struct Checker {
    attngen_context *ctx;
    const CheckOptions *opt;
    CheckReport *report;
    DeviceMemory *gpu; /* NULL: simulator only */
    CaseList grid;
    int index, total;
    attngen_dim *dims; /* those of the options, and room for D, Dv, dtype, group */
    bool open_group;   /* the spec has branches, and its cases say how many query heads a KV head has */
} Checker;

/* A case while it runs. */
typedef struct Running {
    const Case *c;
    attngen_program *program;
    const Spec *spec;
    CaseData data;
    double *o, *value[ROWV_COUNT], *naive_o, *naive_lse, *spread;
    MadeRows rows;
    Selections picks;
    char name[128];
    bool portable;    /* the companion ran */
    ErrorBound bound; /* of the program that ran */
    char text[2200];  /* what is wrong, or a figure */
} Running;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static attngen_status out_of_memory(const Checker *k) { return ag_fail(k->ctx, ATTNGEN_E_NOMEM, "out of memory"); }

/* ---- programs */

static bool given(const CheckOptions *opt, const char *name) {
    for (size_t i = 0; i < opt->ndims; i++)
        if (strcmp(opt->dims[i].name, name) == 0) return true;
    return false;
}

typedef attngen_status GetProgram(attngen_context *, attngen_program **, const attngen_source *, const attngen_source *, const attngen_dim *, size_t);

/* The program for a case's head dims and type, from attngen_lower or attngen_compile; the context remembers it. */
static attngen_status get_program(Checker *k, GetProgram *get, const Case *c, attngen_program **out) {
    const CheckOptions *opt = k->opt;
    size_t n = opt->ndims;
    if (c->D) k->dims[n++] = (attngen_dim){"D", c->D};
    if (c->D && !given(opt, "Dv")) k->dims[n++] = (attngen_dim){"Dv", c->Dv};
    if (c->dtype) k->dims[n++] = (attngen_dim){"dtype", c->dtype};
    if (k->open_group && c->group) k->dims[n++] = (attngen_dim){"group", c->group};
    return get(k->ctx, out, &opt->spec, opt->schedule, k->dims, n);
}

/* Head dims of the cases that leave them open: the default, or the first that a schedule given without D applies to. */
static attngen_status get_main(Checker *k, Case *main_case, attngen_program **out) {
    static const int other[] = {64, 256, 96, 32, 192};
    attngen_status s = get_program(k, attngen_lower, main_case, out);
    if (s != ATTNGEN_E_UNSUPPORTED || !k->opt->schedule || given(k->opt, "D")) return s;
    Buf first = {0};
    ag_put(&first, "%s", attngen_errmsg(k->ctx));
    for (size_t i = 0; i < sizeof other / sizeof *other && s == ATTNGEN_E_UNSUPPORTED; i++) {
        main_case->D = main_case->Dv = other[i];
        s = get_program(k, attngen_lower, main_case, out);
    }
    if (s == ATTNGEN_E_UNSUPPORTED) s = ag_fail(k->ctx, s, "%s", first.s ? first.s : "out of memory");
    ag_buf_free(&first);
    return s;
}

/* What runs: on a GPU it may be under another schedule than without, if the kernel spills. */
static void describe_program(Checker *k, const Case *main_case, const attngen_program *p) {
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    attngen_program *built = NULL;
    if (k->gpu && get_program(k, attngen_compile, main_case, &built) == ATTNGEN_OK) p = built;
    if (attngen_program_info(p, &info) != ATTNGEN_OK) return attngen_program_free(built);
    snprintf(k->report->program, sizeof k->report->program, "%s under %s for %s, D %d, %s", info.name, info.schedule, info.arch, info.D,
             info.dtype == ATTNGEN_F16 ? "f16" : "bf16");
    attngen_program_free(built);
}

/* ---- the grid */

static bool has_int_params(const Spec *spec) {
    for (int i = 0; i < spec->nparam; i++)
        if (spec->param[i].type == T_INT && !spec->param[i].bound && !spec->param[i].part) return true;
    return false;
}

/* What decides the lengths of a program's cases. */
static void set_edges(GridWants *w, const Spec *spec) {
    w->program = spec->nbranch > 0;
    for (int i = 0; i < spec->nbranch; i++)
        if (spec->branch[i].blocks.kind != FROM_NONE && spec->branch[i].block.n > w->block) w->block = spec->branch[i].block.n;
    for (int i = 0; i < spec->nderive; i++) {
        const Derive *x = &spec->derive[i];
        if (x->kind == DERIVE_POOL && x->size.n > w->pool) w->pool = x->size.n, w->stride = x->stride.n;
        if (x->kind == DERIVE_SELECT && (x->count.n + 4) * x->block.n > w->choice) w->choice = (x->count.n + 4) * x->block.n;
    }
    if (!w->block) w->block = 64;
    if (!w->pool) w->pool = 32, w->stride = 16;
    if (!w->choice) w->choice = 6 * w->block;
}

/* Takes what the schedule or the target cannot do, and what `only` leaves out, from the grid. */
static attngen_status narrow_grid(Checker *k, const Case *main_case) {
    int n = 0;
    for (int i = 0; i < k->grid.n; i++) {
        Case c = k->grid.item[i];
        bool own_dims = c.D != 0;
        if (!own_dims) c.D = main_case->D, c.Dv = main_case->Dv;
        attngen_program *p = NULL;
        attngen_status s = get_program(k, attngen_lower, &c, &p);
        if (s == ATTNGEN_E_UNSUPPORTED && (own_dims || k->open_group)) continue;
        if (s != ATTNGEN_OK) return s;
        char name[128];
        ag_check_case_name(name, sizeof name, &c, ag_program_compilation(p)->fn.spec);
        attngen_program_free(p);
        if (!k->opt->only || strstr(name, k->opt->only)) k->grid.item[n++] = c;
    }
    k->grid.n = n;
    k->total = n * (k->gpu ? 2 : 1);
    return ATTNGEN_OK;
}

static attngen_status make_grid(Checker *k) {
    Case main_case = {0};
    attngen_program *p = NULL;
    attngen_status s = get_main(k, &main_case, &p);
    if (s != ATTNGEN_OK) return s;
    const Spec *spec = ag_program_compilation(p)->fn.spec;
    describe_program(k, &main_case, p);
    k->open_group = ag_program_compilation(p)->open_group;
    GridWants w = {.full = k->opt->full,
                   .group = k->open_group ? 0 : spec->group,
                   .int_params = has_int_params(spec),
                   .parts = spec->nbatch > 1,
                   .any_dim = !given(k->opt, "D"),
                   .any_dtype = !given(k->opt, "dtype")};
    set_edges(&w, spec);
    attngen_program_free(p);
    ag_check_grid(&k->grid, &w);
    return k->grid.oom ? out_of_memory(k) : narrow_grid(k, &main_case);
}

/* ---- engines: each computes the outputs of a case, or says why it could not */

/* What the simulated kernels selected. */
static void take_picks(Running *r, const ProgramBuffers *buffers) {
    for (int i = 0; i < r->picks.n; i++) {
        const HostTensor *from = &buffers->tensor[ag_program_derive(r->spec, i)];
        if (r->picks.len[i]) memcpy(r->picks.got[i], from->data, r->picks.len[i] * sizeof(int32_t));
    }
}

/* The rows that the simulated kernels made of q and k. */
static void take_rows(Running *r, const ProgramBuffers *buffers) {
    for (int of_k = 0; of_k < 2; of_k++)
        if (r->rows.bytes[of_k])
            memcpy(r->rows.got[of_k], buffers->tensor[ag_program_rows(r->spec, of_k ? ROWS_K : ROWS_Q)].data, r->rows.bytes[of_k]);
}

static bool run_simulator(Checker *k, Running *r) {
    (void)k;
    Buf message = {0};
    ProgramBuffers buffers;
    bool ok = ag_simulate_program(ag_program_compilation(r->program), &r->data.call, &buffers, &message);
    if (ok) take_picks(r, &buffers);
    if (ok) take_rows(r, &buffers);
    if (!ok) snprintf(r->text, sizeof r->text, "%s", message.s ? message.s : "out of memory");
    ag_program_buffers_free(&buffers);
    ag_buf_free(&message);
    return ok;
}

enum { MOST_ARGS = CASE_MOST + HOST_SCALARS };

static size_t make_args(const Running *r, attngen_arg arg[MOST_ARGS], const uint64_t address[CASE_MOST]) {
    const ProgramMeta *m = &ag_program_compilation(r->program)->meta;
    size_t n = 0;
    for (int i = 0; i < r->data.n; i++) {
        const CaseTensor *t = &r->data.t[i];
        if (m->tensor[i].buffer || (i >= TEN_LSE && i < TEN_COUNT && r->c->no_lse)) continue; /* a program need not read k, say */
        arg[n] = (attngen_arg){.name = m->tensor[i].name, .data = (void *)(uintptr_t)(address[i] + t->at)};
        memcpy(arg[n].stride, t->view.stride, sizeof arg[n].stride);
        n++;
    }
    for (int i = 0; i < r->spec->nparam; i++)
        if (!r->spec->param[i].bound) arg[n++] = (attngen_arg){.name = m->scalar[i].name, .scalar = r->data.call.scalar[i]};
    return n;
}

/* A launch leaves the counters of its workspace as it found them, all zeros. */
static attngen_status check_counters(Checker *k, const ProgramMeta *m, uint64_t address, Err *e) {
    unsigned char left[4 * META_KERNELS] = {0};
    size_t bytes = (size_t)ag_workspace_counters(m);
    attngen_status s = ag_memory_download(k->gpu, left, address, bytes, e);
    for (size_t i = 0; s == ATTNGEN_OK && i < bytes; i++)
        if (left[i]) s = ag_err(e, ATTNGEN_E_CHECK, "byte %zu of the workspace is left at %d, not at 0", i, left[i]);
    return s;
}

enum { COUNTERS = 256 }; /* bytes before the first buffer */
_Static_assert(4 * META_KERNELS <= COUNTERS, "the counters of a program reach into its buffers");

/* A workspace as a launch wants it: counters of 0, and NaN in the buffers. */
static attngen_status make_workspace(Checker *k, uint64_t *address, size_t bytes, Err *e) {
    unsigned char *host = malloc(bytes + 1);
    if (!host) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    memset(host, 0xFF, bytes);
    memset(host, 0, bytes < COUNTERS ? bytes : COUNTERS);
    attngen_status s = ag_memory_alloc(k->gpu, address, bytes, e);
    if (s == ATTNGEN_OK) s = ag_memory_upload(k->gpu, *address, host, bytes, e);
    free(host);
    return s;
}

static attngen_status download_picks(Checker *k, Running *r, const attngen_program *p, const int64_t *size, uint64_t work, Err *e) {
    attngen_status s = ATTNGEN_OK;
    for (int i = 0; i < r->picks.n && s == ATTNGEN_OK; i++) {
        if (!r->picks.len[i]) continue;
        int64_t at = ag_workspace_place(&p->lowered->meta, size, ag_program_derive(r->spec, i));
        s = ag_memory_download(k->gpu, r->picks.got[i], work + (uint64_t)at, r->picks.len[i] * sizeof(int32_t), e);
    }
    return s;
}

static attngen_status download_rows(Checker *k, Running *r, const attngen_program *p, const int64_t *size, uint64_t work, Err *e) {
    attngen_status s = ATTNGEN_OK;
    for (int of_k = 0; of_k < 2 && s == ATTNGEN_OK; of_k++) {
        if (!r->rows.bytes[of_k]) continue;
        int64_t at = ag_workspace_place(&p->lowered->meta, size, ag_program_rows(r->spec, of_k ? ROWS_K : ROWS_Q));
        s = ag_memory_download(k->gpu, r->rows.got[of_k], work + (uint64_t)at, r->rows.bytes[of_k], e);
    }
    return s;
}

/* The least that the limits of all its kernels allow. */
static ErrorBound bound_of(const attngen_program *program) {
    const Compilation *c = ag_program_compilation(program);
    ErrorBound all = ag_error_bound(c->numerics);
    for (int i = 0; i < c->npart; i++) {
        if (c->part[i].kernel->kind != KERNEL_ATTEND) continue;
        char name[128];
        snprintf(name, sizeof name, "%.*s", STRF(c->part[i].kernel->numerics));
        ErrorBound b = ag_error_bound(name);
        all.naive = fmax(all.naive, b.naive);
        all.half_ulps = fmax(all.half_ulps, b.half_ulps);
        all.lse = fmax(all.lse, b.lse);
        all.picks = fmax(all.picks, b.picks);
        all.scores = fmax(all.scores, b.scores);
    }
    return all;
}

/* Which program has run. */
static attngen_status note_way(Running *r, const attngen_call *call, const attngen_arg *arg, size_t n, attngen_program **out, Err *e) {
    BoundArgs b;
    *out = call->program;
    attngen_status s = ag_args_bind(&b, &call->program->lowered->meta, call->size, arg, n, e);
    Companion which = s == ATTNGEN_OK ? ag_companion_for(&b) : COMPANION_NONE;
    r->portable = which == COMPANION_PORTABLE;
    if (which != COMPANION_NONE) s = ag_program_companion(call->program, which, call->loaded, call->device, out, e);
    if (s == ATTNGEN_OK) r->bound = bound_of(*out);
    return s;
}

static attngen_status launch_call(Checker *k, Running *r, const attngen_call *call, const attngen_arg *arg, size_t n, Err *e) {
    size_t nwork = attngen_workspace(call);
    uint64_t work = 0;
    attngen_program *ran = call->program;
    attngen_status s = nwork ? make_workspace(k, &work, nwork, e) : ATTNGEN_OK;
    if (s == ATTNGEN_OK && (s = attngen_launch(call, arg, n, (void *)(uintptr_t)work, nwork, NULL)) != ATTNGEN_OK)
        ag_err(e, s, "%s", attngen_launch_errmsg());
    if (s == ATTNGEN_OK) s = note_way(r, call, arg, n, &ran, e);
    if (s == ATTNGEN_OK) s = ag_memory_sync(k->gpu, e);
    if (s == ATTNGEN_OK && nwork) s = check_counters(k, &ran->lowered->meta, work, e);
    if (s == ATTNGEN_OK) s = download_rows(k, r, ran, call->size, work, e);
    return s == ATTNGEN_OK ? download_picks(k, r, ran, call->size, work, e) : s;
}

static attngen_status launch(Checker *k, Running *r, const uint64_t address[CASE_MOST], Err *e) {
    const Case *c = r->c;
    attngen_shape shape = {c->B, (int64_t)c->Hkv * c->group, c->Hkv, c->Sq, c->Sk, c->offset};
    attngen_arg arg[MOST_ARGS];
    attngen_call *call = NULL;
    size_t n = make_args(r, arg, address);
    attngen_status s = attngen_bind(k->ctx, &call, r->program, &shape);
    if (s != ATTNGEN_OK) return ag_err(e, s, "%s", attngen_errmsg(k->ctx));
    s = launch_call(k, r, call, arg, n, e);
    attngen_call_free(call);
    return s;
}

static bool run_gpu(Checker *k, Running *r) {
    uint64_t address[CASE_MOST] = {0};
    Err e = {{0}};
    attngen_status s = ATTNGEN_OK;
    for (int i = 0; i < r->data.n && s == ATTNGEN_OK; i++) {
        const CaseTensor *t = &r->data.t[i];
        s = ag_memory_alloc(k->gpu, &address[i], t->bytes, &e);
        if (s == ATTNGEN_OK) s = ag_memory_upload(k->gpu, address[i], t->flat, t->bytes, &e);
    }
    if (s == ATTNGEN_OK) s = launch(k, r, address, &e);
    for (int i = TEN_O; i < CASE_TENSORS && s == ATTNGEN_OK; i++)
        s = ag_memory_download(k->gpu, r->data.t[i].flat, address[i], r->data.t[i].bytes, &e);
    ag_memory_free_all(k->gpu);
    if (s != ATTNGEN_OK) snprintf(r->text, sizeof r->text, "%s", e.text);
    return s == ATTNGEN_OK;
}

/* ---- one case */

/* The reference and the naive computation, both taking what the kernel selected for selected. */
static bool compute(Running *r) {
    for (int i = 0; i < r->picks.n; i++) r->data.call.picks[i] = r->picks.used[i];
    HostCall own = r->data.call, *call = &own;
    if (ag_has_prologue(r->spec)) ag_rows_use(&r->rows, r->spec, &own);
    bool ok = r->spec->nbranch ? ag_reference_spread(r->spec, call, r->o, r->value[ROWV_LSE], r->spread)
                               : ag_reference_values(r->spec, call, r->o, r->value);
    return ok && ag_naive(r->spec, call, r->naive_o, r->naive_lse);
}

/* Whether the rows of q and k are right; they then are what the rest is judged by. */
static bool judge_rows(Running *r) {
    bool same = true;
    if (!ag_rows_judge(&r->rows, r->spec, &r->data.call, r->text, sizeof r->text)) return false;
    for (int i = 0; i < 2; i++) {
        if (!r->rows.bytes[i] || memcmp(r->rows.used[i], r->rows.got[i], r->rows.bytes[i]) == 0) continue;
        memcpy(r->rows.used[i], r->rows.got[i], r->rows.bytes[i]);
        same = false;
    }
    if (same || compute(r)) return true;
    snprintf(r->text, sizeof r->text, "out of memory");
    return false;
}

/* Whether the selections are right; they then are what the rest is judged by. */
static bool judge_picks(Running *r) {
    bool same = true;
    if (!ag_selections_judge(&r->picks, r->spec, &r->data.call, r->bound.picks, r->text, sizeof r->text)) return false;
    for (int i = 0; i < r->picks.n; i++) {
        size_t bytes = r->picks.len[i] * sizeof(int32_t);
        if (!bytes || memcmp(r->picks.used[i], r->picks.got[i], bytes) == 0) continue;
        memcpy(r->picks.used[i], r->picks.got[i], bytes);
        same = false;
    }
    if (same || compute(r)) return true;
    snprintf(r->text, sizeof r->text, "out of memory");
    return false;
}

static double *doubles(const HostCall *call, int64_t last) {
    return calloc((size_t)(call->size[SZ_B] * call->size[SZ_HQ] * call->size[SZ_SQ] * last) + 1, sizeof(double));
}

static bool sways(const Running *r) { return r->bound.scores > 0 && !r->spec->nbranch && r->spec->normalize == NORMALIZE_SOFTMAX && !r->spec->weigh; }

/* Into spread, how far the scores of the program that ran may move each row. */
static bool find_sway(Running *r) {
    HostCall own = r->data.call;
    if (ag_has_prologue(r->spec)) ag_rows_use(&r->rows, r->spec, &own);
    int64_t rows = own.size[SZ_B] * own.size[SZ_HQ] * own.size[SZ_SQ];
    double *o = doubles(&own, r->spec->Dv);
    bool ok = o && ag_reference_sway(r->spec, &own, o, r->spread);
    for (int64_t i = 0; ok && i < rows; i++) r->spread[i] *= r->bound.scores;
    free(o);
    return ok;
}

static bool judge(Running *r) {
    if (!judge_rows(r) || !judge_picks(r)) return false;
    if (sways(r) && !find_sway(r)) {
        snprintf(r->text, sizeof r->text, "out of memory");
        return false;
    }
    r->bound.spread = r->spec->nbranch || sways(r) ? r->spread : NULL;
    Comparison c = ag_compare(r->spec, &r->data.call, r->bound, r->o, r->value[ROWV_LSE], r->naive_o);
    for (int i = ROWV_LSE + 1; i < ROWV_COUNT; i++) ag_compare_value(&c, &r->data.call, (RowValue)i, r->value[i], r->bound.lse);
    if (!c.ok)
        snprintf(r->text, sizeof r->text, "%s", c.text);
    else if (c.o_limit > 0)
        snprintf(r->text, sizeof r->text, "error %.1e, limit %.1e", c.o_err, c.o_limit);
    if (!c.ok || ag_check_surroundings(&r->data)) return c.ok;
    snprintf(r->text, sizeof r->text, "memory around the outputs was written");
    return false;
}

static void report_case(Checker *k, Running *r, const char *where, bool (*engine)(Checker *, Running *), double since) {
    CheckCase c = {r->name, where, true, false, "", 0, k->index, k->total};
    if (k->opt->begin) k->opt->begin(k->opt->payload, &c);
    r->text[0] = '\0';
    r->bound = bound_of(r->program);
    ag_check_poison(&r->data, r->spec);
    c.ok = engine(k, r) && judge(r);
    c.text = r->text;
    c.seconds = now() - since;
    c.portable = r->portable;
    k->report->portable += r->portable;
    *(c.ok ? &k->report->passed : &k->report->failed) += 1;
    if (k->opt->done) k->opt->done(k->opt->payload, &c);
    k->index++;
}

static bool prepare(Checker *k, Running *r) {
    const uint64_t seed = k->opt->seed * 0x9E3779B97F4A7C15u + 1;
    if (!ag_check_data(&r->data, r->c, r->spec, seed)) return false;
    r->o = doubles(&r->data.call, r->spec->Dv);
    r->naive_o = doubles(&r->data.call, r->spec->Dv);
    bool room = true;
    for (int i = 0; i < ROWV_COUNT; i++) room &= (r->value[i] = doubles(&r->data.call, 1)) != NULL;
    r->naive_lse = doubles(&r->data.call, 1);
    r->spread = doubles(&r->data.call, 1);
    room = room && r->o && r->naive_o && r->naive_lse && r->spread;
    room = room && ag_rows_init(&r->rows, r->spec, &r->data.call);
    return room && ag_selections_init(&r->picks, r->spec, &r->data.call) && compute(r);
}

static void release(Running *r) {
    ag_check_data_free(&r->data);
    ag_selections_free(&r->picks);
    ag_rows_free(&r->rows);
    free(r->spread);
    free(r->o);
    for (int i = 0; i < ROWV_COUNT; i++) free(r->value[i]);
    free(r->naive_o);
    free(r->naive_lse);
    attngen_program_free(r->program);
}

static attngen_status run_case(Checker *k, const Case *c) {
    Running r = {.c = c};
    double since = now();
    attngen_status s = get_program(k, k->gpu ? attngen_compile : attngen_lower, c, &r.program);
    if (s != ATTNGEN_OK) return s;
    r.spec = ag_program_compilation(r.program)->fn.spec;
    ag_check_case_name(r.name, sizeof r.name, c, r.spec);
    if (prepare(k, &r)) {
        report_case(k, &r, "simulator", run_simulator, since);
        if (k->gpu) report_case(k, &r, "gpu", run_gpu, now());
    } else {
        s = out_of_memory(k);
    }
    release(&r);
    return s;
}

/* ---- the whole */

/* Decides whether the GPU takes part: AUTO needs a usable device and NVRTC. */
static attngen_status open_gpu(Checker *k) {
    const char *why = NULL;
    Err e = {{0}};
    if (k->opt->gpu == CHECK_GPU_NO) return ATTNGEN_OK;
    attngen_status s = attngen_has_device(k->ctx, &why) ? ATTNGEN_OK : ATTNGEN_E_DRIVER;
    if (s == ATTNGEN_OK) s = ag_context_find_nvrtc(k->ctx);
    if (s != ATTNGEN_OK) {
        if (k->opt->gpu == CHECK_GPU_AUTO) return ATTNGEN_OK;
        return s == ATTNGEN_E_DRIVER ? ag_fail(k->ctx, s, "%s", why ? why : "no CUDA device") : s;
    }
    s = ag_memory_open(&k->gpu, k->ctx->device, &e);
    if (s != ATTNGEN_OK) return ag_fail_err(k->ctx, s, &e);
    Driver *d;
    DeviceInfo info;
    if (ag_driver_open(&d, &e) == ATTNGEN_OK && ag_driver_device(d, k->ctx->device, &info, &e) == ATTNGEN_OK)
        snprintf(k->report->device, sizeof k->report->device, "%s", info.name);
    return ATTNGEN_OK;
}

attngen_status ag_check(attngen_context *ctx, const CheckOptions *opt, CheckReport *report) {
    Checker k = {.ctx = ctx, .opt = opt, .report = report};
    double since = now();
    memset(report, 0, sizeof *report);
    k.dims = calloc(opt->ndims + 4, sizeof *k.dims);
    if (!k.dims) return out_of_memory(&k);
    if (opt->ndims) memcpy(k.dims, opt->dims, opt->ndims * sizeof *k.dims);
    attngen_status s = open_gpu(&k);
    if (s == ATTNGEN_OK) s = make_grid(&k);
    for (int i = 0; i < k.grid.n && s == ATTNGEN_OK; i++) s = run_case(&k, &k.grid.item[i]);
    if (s == ATTNGEN_OK && report->failed)
        s = ag_fail(ctx, ATTNGEN_E_CHECK, "%d of %d cases failed", report->failed, report->passed + report->failed);
    report->seconds = now() - since;
    ag_memory_close(k.gpu);
    free(k.grid.item);
    free(k.dims);
    return s;
}
