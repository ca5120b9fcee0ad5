/* check.c: `attngen check`: every case of the grid through the reference, the naive computation, the simulator and, where there is one, the GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"
#include "check_case.h"
#include "driver_mem.h"

typedef struct Checker {
    attngen_context *ctx;
    const CheckOptions *opt;
    CheckReport *report;
    DeviceMemory *gpu; /* NULL: simulator only */
    CaseList grid;
    int index, total;
    attngen_dim *dims; /* those of the options, and room for D, Dv, dtype */
} Checker;

/* A case while it runs. */
typedef struct Running {
    const Case *c;
    attngen_program *program;
    const Spec *spec;
    CaseData data;
    double *o, *lse, *naive_o, *naive_lse;
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

static void describe_program(Checker *k, const attngen_program *p) {
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    if (attngen_program_info(p, &info) != ATTNGEN_OK) return;
    snprintf(k->report->program, sizeof k->report->program, "%s under %s for %s, D %d, %s", info.name, info.schedule, info.arch, info.D,
             info.dtype == ATTNGEN_F16 ? "f16" : "bf16");
}

/* ---- the grid */

static bool has_int_params(const Spec *spec) {
    for (int i = 0; i < spec->nparam; i++)
        if (spec->param[i].type == T_INT && !spec->param[i].bound) return true;
    return false;
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
        if (s == ATTNGEN_E_UNSUPPORTED && own_dims) continue;
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
    describe_program(k, p);
    GridWants w = {k->opt->full, spec->group, has_int_params(spec), !given(k->opt, "D"), !given(k->opt, "dtype")};
    attngen_program_free(p);
    ag_check_grid(&k->grid, &w);
    return k->grid.oom ? out_of_memory(k) : narrow_grid(k, &main_case);
}

/* ---- engines: each computes the outputs of a case, or says why it could not */

static bool run_simulator(Checker *k, Running *r) {
    (void)k;
    Buf message = {0};
    bool ok = ag_simulate(ag_program_compilation(r->program)->fn.kernel, &r->data.call, &message);
    if (!ok) snprintf(r->text, sizeof r->text, "%s", message.s ? message.s : "out of memory");
    ag_buf_free(&message);
    return ok;
}

static size_t make_args(const Running *r, attngen_arg arg[CASE_TENSORS + HOST_SCALARS], const uint64_t address[CASE_TENSORS]) {
    static const char *const name[CASE_TENSORS] = {"q", "k", "v", "o", "lse"};
    size_t n = 0;
    for (int i = 0; i < CASE_TENSORS; i++) {
        const CaseTensor *t = &r->data.t[i];
        if (i == TEN_LSE && r->c->no_lse) continue;
        arg[n] = (attngen_arg){.name = name[i], .data = (void *)(uintptr_t)(address[i] + t->at)};
        memcpy(arg[n].stride, t->view.stride, sizeof arg[n].stride);
        n++;
    }
    const ProgramMeta *m = &ag_program_compilation(r->program)->meta;
    for (int i = 0; i < r->spec->nparam; i++)
        if (!r->spec->param[i].bound) arg[n++] = (attngen_arg){.name = m->scalar[i].name, .scalar = r->data.call.scalar[i]};
    return n;
}

/* A launch leaves its workspace as it found it, all zeros. */
static attngen_status check_workspace(Checker *k, uint64_t address, size_t bytes, Err *e) {
    unsigned char *left = calloc(1, bytes + 1);
    if (!left) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    attngen_status s = ag_memory_download(k->gpu, left, address, bytes, e);
    for (size_t i = 0; s == ATTNGEN_OK && i < bytes; i++)
        if (left[i]) s = ag_err(e, ATTNGEN_E_CHECK, "byte %zu of the workspace is left at %d, not at 0", i, left[i]);
    free(left);
    return s;
}

static attngen_status zeroed_workspace(Checker *k, uint64_t *address, size_t bytes, Err *e) {
    void *zeros = calloc(1, bytes + 1);
    if (!zeros) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    attngen_status s = ag_memory_alloc(k->gpu, address, bytes, e);
    if (s == ATTNGEN_OK) s = ag_memory_upload(k->gpu, *address, zeros, bytes, e);
    free(zeros);
    return s;
}

/* Which program has run. */
static attngen_status note_way(Running *r, const attngen_call *call, const attngen_arg *arg, size_t n, Err *e) {
    BoundArgs b;
    attngen_program *p = call->program;
    attngen_status s = ag_args_bind(&b, &p->lowered->meta, call->size, arg, n, e);
    r->portable = s == ATTNGEN_OK && !ag_args_mappable(&b);
    if (r->portable) s = ag_program_portable(p, call->loaded, call->device, &p, e);
    if (s == ATTNGEN_OK) r->bound = ag_error_bound(p->lowered->numerics);
    return s;
}

static attngen_status launch(Checker *k, Running *r, const uint64_t address[CASE_TENSORS], Err *e) {
    const Case *c = r->c;
    attngen_shape shape = {c->B, (int64_t)c->Hkv * c->group, c->Hkv, c->Sq, c->Sk, c->offset};
    attngen_arg arg[CASE_TENSORS + HOST_SCALARS];
    attngen_call *call = NULL;
    size_t n = make_args(r, arg, address);
    attngen_status s = attngen_bind(k->ctx, &call, r->program, &shape);
    if (s != ATTNGEN_OK) return ag_err(e, s, "%s", attngen_errmsg(k->ctx));
    size_t nwork = attngen_workspace(call);
    uint64_t work = 0;
    if (nwork) s = zeroed_workspace(k, &work, nwork, e);
    if (s == ATTNGEN_OK && (s = attngen_launch(call, arg, n, (void *)(uintptr_t)work, nwork, NULL)) != ATTNGEN_OK)
        ag_err(e, s, "%s", attngen_launch_errmsg());
    if (s == ATTNGEN_OK) s = note_way(r, call, arg, n, e);
    attngen_call_free(call);
    if (s == ATTNGEN_OK) s = ag_memory_sync(k->gpu, e);
    return s == ATTNGEN_OK && nwork ? check_workspace(k, work, nwork, e) : s;
}

static bool run_gpu(Checker *k, Running *r) {
    uint64_t address[CASE_TENSORS] = {0};
    Err e = {{0}};
    attngen_status s = ATTNGEN_OK;
    for (int i = 0; i < CASE_TENSORS && s == ATTNGEN_OK; i++) {
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

static bool judge(Running *r) {
    Comparison c = ag_compare(r->spec, &r->data.call, r->bound, r->o, r->lse, r->naive_o);
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
    r->bound = ag_error_bound(ag_program_compilation(r->program)->numerics);
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

static double *doubles(const HostCall *call, int64_t last) {
    return calloc((size_t)(call->size[SZ_B] * call->size[SZ_HQ] * call->size[SZ_SQ] * last) + 1, sizeof(double));
}

static bool prepare(Checker *k, Running *r) {
    const uint64_t seed = k->opt->seed * 0x9E3779B97F4A7C15u + 1;
    if (!ag_check_data(&r->data, r->c, r->spec, seed)) return false;
    r->o = doubles(&r->data.call, r->spec->Dv);
    r->naive_o = doubles(&r->data.call, r->spec->Dv);
    r->lse = doubles(&r->data.call, 1);
    r->naive_lse = doubles(&r->data.call, 1);
    return r->o && r->naive_o && r->lse && r->naive_lse && ag_reference(r->spec, &r->data.call, r->o, r->lse) &&
           ag_naive(r->spec, &r->data.call, r->naive_o, r->naive_lse);
}

static void release(Running *r) {
    ag_check_data_free(&r->data);
    free(r->o);
    free(r->lse);
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
    k.dims = calloc(opt->ndims + 3, sizeof *k.dims);
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
