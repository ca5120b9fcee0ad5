/* cli_bench.c: `attngen bench`: CUDA-event times of one call, their median, and the arithmetic rate. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "check.h"
#include "check_case.h"
#include "cli.h"

enum { WARM_UP = 5, DEFAULT_RUNS = 30, MAX_RUNS = 10000 };

typedef struct Bench {
    Job job;
    attngen_program *program;
    attngen_call *call;
    attngen_shape shape;
    attngen_info info;
    attngen_arg arg[CASE_MOST + CLI_LIST]; /* tensors, then scalars */
    size_t narg;
    char scalar[CLI_LIST][64];
    Gpu *gpu;
    double share; /* of the query-key pairs that the mask leaves */
    float ms[MAX_RUNS];
    int runs;
} Bench;

static int read_runs(Bench *b, const Cli *cli) {
    if (cli->runs < 0) return cli_error(EXIT_USAGE, "--runs must not be negative");
    b->runs = cli->runs ? (int)(cli->runs < MAX_RUNS ? cli->runs : MAX_RUNS) : DEFAULT_RUNS;
    return 0;
}

/* Bounded noise in the 16-bit type: signs, exponents of about 1 and fractions from a linear congruential generator. */
static void fill(uint16_t *p, size_t n, int dtype, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(int32_t)seed * 0x1p-31f;
        p[i] = dtype == ATTNGEN_F16 ? npy_to_f16(x) : npy_to_bf16(x);
    }
}

static int add_tensor(Bench *b, const char *name, int64_t H, int64_t S, int64_t D) {
    attngen_arg *a = &b->arg[b->narg];
    size_t n = (size_t)(b->shape.B * H * S * D);
    *a = (attngen_arg){.name = name, .stride = {H * S * D, S * D, D, 1}};
    uint64_t p = cli_gpu_alloc(b->gpu, n * sizeof(uint16_t));
    uint16_t *host = malloc(n * sizeof *host + 1);
    if (!p || !host) return free(host), p ? cli_error(1, "out of memory") : EXIT_FILE;
    fill(host, n, b->info.dtype, (uint32_t)b->narg++);
    a->data = (void *)(uintptr_t)p;
    int code = cli_gpu_upload(b->gpu, p, host, n * sizeof *host);
    free(host);
    return code;
}

/* A captured tensor of the spec: numbers of its type; lists of different blocks up to the query's own. */
static int add_input(Bench *b, int input) {
    const Compilation *c = b->call->program->lowered;
    CaseTensor t = {0};
    attngen_arg *a = &b->arg[b->narg];
    if (!ag_check_input(&t, c->fn.spec, input, b->call->size, LAY_PLAIN, (uint64_t)b->narg, false)) return cli_error(1, "out of memory");
    *a = (attngen_arg){.name = c->meta.tensor[CASE_TENSORS + input].name};
    memcpy(a->stride, t.view.stride, sizeof a->stride);
    uint64_t p = cli_gpu_alloc(b->gpu, t.bytes);
    int code = p ? cli_gpu_upload(b->gpu, p, t.flat, t.bytes) : EXIT_FILE;
    a->data = (void *)(uintptr_t)(p + t.at);
    b->narg++;
    free(t.flat);
    return code;
}

/* What the program takes: one with branches need not read k, say. */
static int add_tensors(Bench *b) {
    const attngen_shape *s = &b->shape;
    const Compilation *c = b->call->program->lowered;
    const struct {
        const char *name;
        int64_t heads, length;
        int d;
    } t[] = {{"q", s->Hq, s->Sq, b->info.D}, {"k", s->Hkv, s->Sk, b->info.D}, {"v", s->Hkv, s->Sk, b->info.Dv}, {"o", s->Hq, s->Sq, b->info.Dv}};
    int code = 0;
    for (int i = 0; i < LEN(t) && code == 0; i++)
        if (!c->meta.tensor[i].buffer) code = add_tensor(b, t[i].name, t[i].heads, t[i].length, t[i].d);
    for (int i = 0; i < c->fn.spec->ninput && code == 0; i++)
        if (!c->meta.tensor[CASE_TENSORS + i].buffer) code = add_input(b, i);
    return code;
}

static int make_args(Bench *b, const Cli *cli) {
    int code = add_tensors(b);
    for (size_t i = 0; i < cli->set.n && code == 0; i++) {
        const char *value;
        double x;
        if (!cli_assignment(cli->set.item[i], b->scalar[i], &value) || !cli_number(value, &x))
            return cli_error(EXIT_USAGE, "--set needs NAME=NUMBER, not `%s`", cli->set.item[i]);
        b->arg[b->narg++] = (attngen_arg){.name = b->scalar[i], .scalar = x};
    }
    return code;
}

static int by_time(const void *x, const void *y) {
    float a = *(const float *)x, b = *(const float *)y;
    return (a > b) - (a < b);
}

static int measure(Bench *b) {
    size_t nwork = attngen_workspace(b->call);
    uint64_t work;
    int failed = cli_gpu_workspace(b->gpu, &work, nwork);
    if (failed) return failed;
    for (int i = -WARM_UP; i < b->runs; i++) {
        int code = cli_gpu_event(b->gpu, 0, false);
        attngen_status s = code ? ATTNGEN_OK : attngen_launch(b->call, b->arg, b->narg, (void *)(uintptr_t)work, nwork, NULL);
        if (s != ATTNGEN_OK) return cli_error(attngen_exit_code(s), "%s", attngen_launch_errmsg());
        if (code || (code = cli_gpu_event(b->gpu, 1, true))) return code;
        if (i >= 0) b->ms[i] = cli_gpu_elapsed_ms(b->gpu);
    }
    qsort(b->ms, (size_t)b->runs, sizeof b->ms[0], by_time);
    return 0;
}

static void report(const Bench *b, bool json) {
    const attngen_shape *s = &b->shape;
    double ms = b->ms[b->runs / 2];
    double flop = 2.0 * (double)(s->B * s->Hq) * (double)s->Sq * (double)s->Sk * b->share * (b->info.D + b->info.Dv);
    const char *format =
        json ? "{\"spec\": \"%s\", \"schedule\": \"%s\", \"arch\": \"%s\", \"dtype\": \"%s\", \"D\": %d, \"Dv\": %d, \"B\": %lld, \"Hq\": %lld, "
               "\"Hkv\": %lld, "
               "\"Sq\": %lld, \"Sk\": %lld, \"visible\": %.4f, \"runs\": %d, \"median_ms\": %.5f, \"min_ms\": %.5f, \"tflops\": %.2f}\n"
             : "%s under %s for %s, %s, D %d, Dv %d: B %lld, Hq %lld, Hkv %lld, Sq %lld, Sk %lld, %.4f of the pairs visible\n"
               "%d runs: median %.5f ms, fastest %.5f ms, %.2f TFLOP/s (visible pairs)\n";
    printf(format, b->info.name, b->info.schedule, b->info.arch, b->info.dtype == ATTNGEN_F16 ? "f16" : "bf16", b->info.D, b->info.Dv,
           (long long)s->B, (long long)s->Hq, (long long)s->Hkv, (long long)s->Sq, (long long)s->Sk, b->share, b->runs, ms, (double)b->ms[0],
           flop / ms * 1e-9);
}

static int prepare(Bench *b, const Cli *cli) {
    Job *job = &b->job;
    const char *why = "";
    int code = cli_job_open(job, cli);
    if (code) return code;
    if (!attngen_has_device(job->ctx, &why)) return cli_error(EXIT_FILE, "bench needs a GPU: %s", why);
    attngen_status s = attngen_compile(job->ctx, &b->program, &job->spec, job->schedule_or_null, job->dim, job->ndim);
    b->info.version = ATTNGEN_INFO_VERSION;
    if (s == ATTNGEN_OK) s = attngen_program_info(b->program, &b->info);
    return s == ATTNGEN_OK ? 0 : cli_fail(job->ctx, s);
}

int cli_bench(Cli *cli) {
    Bench *b = calloc(1, sizeof *b);
    if (!b) return cli_error(1, "out of memory");
    int code = prepare(b, cli);
    if (code == 0) code = read_runs(b, cli);
    if (code == 0) code = cli_bind_call(&b->call, &b->shape, b->job.ctx, b->program, cli);
    if (code == 0) attngen_program_info(attngen_call_program(b->call), &b->info); /* another than b->program where the sizes ask for it */
    if (code == 0) code = cli_gpu_open(&b->gpu, (int)cli->device);
    if (code == 0) code = make_args(b, cli);
    if (code == 0) {
        attngen_status s = ag_visible_share(&b->share, &b->job.spec, b->job.dim, b->job.ndim, &b->shape, b->arg, b->narg);
        if (s != ATTNGEN_OK) code = cli_error(attngen_exit_code(s), "the mask cannot be counted: %s", attngen_strerror(s));
    }
    if (code == 0) code = measure(b);
    if (code == 0 && *attngen_launch_errmsg()) cli_error(0, "%s", attngen_launch_errmsg());
    if (code == 0) report(b, cli->json);
    cli_gpu_close(b->gpu);
    attngen_call_free(b->call);
    attngen_program_free(b->program);
    cli_job_close(&b->job);
    free(b);
    return code;
}
