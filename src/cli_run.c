/* cli_run.c: `attngen run`: tensors from .npy files through the kernel on the GPU, the simulator or the reference. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { Q, K, V, O, LSE, NTENSOR };
static const char *const tensor_name[NTENSOR] = {"q", "k", "v", "o", "lse"};

/* Tensors in the program's type, contiguous [B, H, S, D]. */
typedef struct Run {
    Job job;
    Npy in[3];
    int64_t dim[NTENSOR][4]; /* dim[LSE][3] is 1 */
    void *host[NTENSOR];
    size_t bytes[NTENSOR];
    const char *out[NTENSOR];
    int dtype;    /* ATTNGEN_F16, ATTNGEN_BF16 */
    NpyType file; /* type of o's file */
    attngen_arg arg[NTENSOR + CLI_LIST];
    size_t narg;
    char scalar[CLI_LIST][64];
    Gpu *gpu;
} Run;

/* ---- input */

static int read_input(Run *r, const Cli *cli, int t, const char *path) {
    char err[NPY_ERROR];
    bool io;
    if (r->in[t].data) return cli_error(EXIT_USAGE, "--in %s is given twice", tensor_name[t]);
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f) return cli_error(EXIT_FILE, "%s: %s", path, strerror(errno));
    bool ok = npy_read(&r->in[t], f, err, &io);
    if (!is_stdin) fclose(f);
    if (!ok) return cli_error(io ? EXIT_FILE : EXIT_USAGE, "%s: %s", path, err);
    int rank = r->in[t].rank;
    if (rank != 3 && rank != 4)
        return cli_error(EXIT_USAGE, "%s: %s has %d dimensions, expected [B, H, S, D] or [H, S, D]", path, tensor_name[t], rank);
    if (r->in[t].type == NPY_U16 && (!cli->dtype || strcmp(cli->dtype, "bf16") != 0))
        return cli_error(EXIT_USAGE, "%s: type '<u2' is read as bf16 bits only with --dtype bf16", path);
    for (int i = 0; i < 4; i++) r->dim[t][i] = i >= 4 - rank ? r->in[t].dim[i - (4 - rank)] : 1;
    return 0;
}

/* "NAME=FILE" of --in (names 0..2) and --out (names 3..4). */
static int read_names(Run *r, const Cli *cli) {
    for (size_t i = 0; i < cli->ins.n + cli->outs.n; i++) {
        bool is_in = i < cli->ins.n;
        const char *given = is_in ? cli->ins.item[i] : cli->outs.item[i - cli->ins.n], *path;
        char name[64], hint[96];
        if (!cli_assignment(given, name, &path) || !*path)
            return cli_error(EXIT_USAGE, "--%s needs NAME=FILE, not `%s`", is_in ? "in" : "out", given);
        int t = is_in ? Q : O, end = is_in ? O : NTENSOR;
        while (t < end && strcmp(tensor_name[t], name) != 0) t++;
        cli_hint(hint, sizeof hint, name, is_in ? "q k v" : "o lse");
        if (t == end) return cli_error(EXIT_USAGE, "--%s is one of %s, not `%s`%s", is_in ? "in" : "out", is_in ? "q k v" : "o lse", name, hint);
        int code = is_in ? read_input(r, cli, t, path) : 0;
        if (code) return code;
        if (!is_in) r->out[t] = path;
    }
    for (int t = Q; t <= V; t++)
        if (!r->in[t].data) return cli_error(EXIT_USAGE, "--in %s=FILE is missing", tensor_name[t]);
    return r->out[O] || r->out[LSE] ? 0 : cli_error(EXIT_USAGE, "--out o=FILE is missing");
}

/* Sizes of the five tensors; what the kernel itself would refuse is left to attngen_bind. */
static int agree(Run *r) {
    const int64_t *q = r->dim[Q], *k = r->dim[K], *v = r->dim[V];
    if (k[0] != q[0] || v[0] != q[0])
        return cli_error(EXIT_USAGE, "q, k and v differ in B: %lld, %lld, %lld", (long long)q[0], (long long)k[0], (long long)v[0]);
    if (k[1] != v[1]) return cli_error(EXIT_USAGE, "k and v differ in heads: %lld, %lld", (long long)k[1], (long long)v[1]);
    if (k[2] != v[2]) return cli_error(EXIT_USAGE, "k and v differ in length: %lld, %lld", (long long)k[2], (long long)v[2]);
    if (k[3] != q[3]) return cli_error(EXIT_USAGE, "q and k differ in D: %lld, %lld", (long long)q[3], (long long)k[3]);
    memcpy(r->dim[O], q, sizeof r->dim[O]);
    memcpy(r->dim[LSE], q, sizeof r->dim[LSE]);
    r->dim[O][3] = v[3];
    r->dim[LSE][3] = 1;
    cli_job_set(&r->job, "D", (double)q[3]);
    cli_job_set(&r->job, "Dv", (double)v[3]);
    double D = cli_job_get(&r->job, "D", 0), Dv = cli_job_get(&r->job, "Dv", 0);
    if (D != (double)q[3]) return cli_error(EXIT_USAGE, "-D D=%g, but q and k have D %lld", D, (long long)q[3]);
    return Dv == (double)v[3] ? 0 : cli_error(EXIT_USAGE, "-D Dv=%g, but v has D %lld", Dv, (long long)v[3]);
}

static int choose_types(Run *r, const Cli *cli) {
    NpyType file = r->in[Q].type;
    int given = cli->dtype ? cli_dtype(cli->dtype) : 0;
    int bound = (int)cli_job_get(&r->job, "dtype", 0);
    if (given && bound && given != bound) return cli_error(EXIT_USAGE, "--dtype and -D dtype differ");
    r->dtype = given ? given : bound ? bound : file == NPY_F16 ? ATTNGEN_F16 : ATTNGEN_BF16;
    cli_job_set(&r->job, "dtype", r->dtype);
    r->file = file;
    if (cli->out_dtype) r->file = strcmp(cli->out_dtype, "f32") == 0 ? NPY_F32 : strcmp(cli->out_dtype, "f16") == 0 ? NPY_F16 : NPY_U16;
    return 0;
}

static float load(const Run *r, const uint16_t *p) { return r->dtype == ATTNGEN_F16 ? npy_from_f16(*p) : npy_from_bf16(*p); }
static uint16_t store(const Run *r, float x) { return r->dtype == ATTNGEN_F16 ? npy_to_f16(x) : npy_to_bf16(x); }

/* A file's elements, in any order, into the program's type in C order. */
static void convert(const Run *r, int t) {
    const Npy *a = &r->in[t];
    const int64_t *dim = r->dim[t];
    uint16_t *to = r->host[t];
    int skip = 4 - a->rank;
    int64_t s[4];
    for (int i = 0; i < 4; i++) s[i] = i >= skip ? a->stride[i - skip] : 0;
    for (int64_t b = 0; b < dim[0]; b++)
        for (int64_t h = 0; h < dim[1]; h++)
            for (int64_t i = 0; i < dim[2]; i++)
                for (int64_t d = 0; d < dim[3]; d++) *to++ = store(r, npy_get(a, (size_t)(b * s[0] + h * s[1] + i * s[2] + d * s[3])));
}

static int make_tensors(Run *r) {
    for (int t = 0; t < NTENSOR; t++) {
        size_t n = t == LSE ? sizeof(float) : sizeof(uint16_t);
        for (int i = 0; i < 4; i++)
            if (__builtin_mul_overflow(n, (size_t)r->dim[t][i], &n)) return cli_error(EXIT_USAGE, "%s would be too large", tensor_name[t]);
        r->bytes[t] = n;
        r->host[t] = calloc(n ? n : 1, 1);
        if (!r->host[t]) return cli_error(1, "out of memory for %s, %zu bytes", tensor_name[t], n);
        if (t <= V) convert(r, t);
    }
    return 0;
}

/* ---- the call */

static int make_args(Run *r, const Cli *cli) {
    for (int t = 0; t < NTENSOR; t++) {
        attngen_arg *a = &r->arg[r->narg++];
        const int64_t *dim = r->dim[t];
        *a = (attngen_arg){.name = tensor_name[t], .data = r->host[t]};
        int rank = t == LSE ? 3 : 4;
        for (int64_t i = rank - 1, step = 1; i >= 0; step *= dim[i] ? dim[i] : 1, i--) a->stride[i] = step;
    }
    for (size_t i = 0; i < cli->set.n; i++) {
        const char *value;
        double x;
        if (!cli_assignment(cli->set.item[i], r->scalar[i], &value) || !cli_number(value, &x))
            return cli_error(EXIT_USAGE, "--set needs NAME=NUMBER, not `%s`", cli->set.item[i]);
        r->arg[r->narg++] = (attngen_arg){.name = r->scalar[i], .scalar = x};
    }
    return 0;
}

static int launch(Run *r, const Cli *cli, const attngen_call *call) {
    int code = cli_gpu_open(&r->gpu, (int)cli->device);
    for (int t = 0; t < NTENSOR && code == 0; t++) {
        uint64_t p = cli_gpu_alloc(r->gpu, r->bytes[t]);
        if (!p) return EXIT_FILE;
        r->arg[t].data = (void *)(uintptr_t)p;
        if (t <= V) code = cli_gpu_upload(r->gpu, p, r->host[t], r->bytes[t]);
    }
    uint64_t work;
    size_t nwork = attngen_workspace(call);
    if (code == 0) code = cli_gpu_workspace(r->gpu, &work, nwork);
    if (code) return code;
    attngen_status s = attngen_launch(call, r->arg, r->narg, (void *)(uintptr_t)work, nwork, NULL);
    if (s != ATTNGEN_OK) return cli_error(attngen_exit_code(s), "%s", attngen_launch_errmsg());
    for (int t = O; t < NTENSOR && code == 0; t++) code = cli_gpu_download(r->gpu, r->host[t], (uint64_t)(uintptr_t)r->arg[t].data, r->bytes[t]);
    return code;
}

static int call_it(Run *r, const Cli *cli) {
    Job *job = &r->job;
    bool host = cli->cpu || cli->reference;
    attngen_program *program = NULL;
    attngen_call *call = NULL;
    attngen_shape shape = {r->dim[Q][0], r->dim[Q][1], r->dim[K][1], r->dim[Q][2], r->dim[K][2], cli->offset};
    attngen_status s = (host ? attngen_lower : attngen_compile)(job->ctx, &program, &job->spec, job->schedule_or_null, job->dim, job->ndim);
    if (s == ATTNGEN_OK) s = attngen_bind(job->ctx, &call, program, &shape);
    if (s == ATTNGEN_OK && host) s = (cli->reference ? attngen_reference : attngen_simulate)(job->ctx, call, r->arg, r->narg);
    int code = s != ATTNGEN_OK ? cli_fail(job->ctx, s) : host ? 0 : launch(r, cli, call);
    attngen_call_free(call);
    attngen_program_free(program);
    return code;
}

/* ---- output */

static int write_o(Run *r) {
    NpyType own = r->dtype == ATTNGEN_F16 ? NPY_F16 : NPY_U16;
    const uint16_t *from = r->host[O];
    size_t n = r->bytes[O] / sizeof *from, size = npy_size(r->file);
    int skip = 4 - r->in[Q].rank;
    uint8_t *to = malloc(n * size + 1);
    if (!to) return cli_error(1, "out of memory");
    for (size_t i = 0; i < n; i++) {
        float x = load(r, &from[i]);
        uint16_t h = r->file == own ? from[i] : r->file == NPY_F16 ? npy_to_f16(x) : npy_to_bf16(x);
        memcpy(to + i * size, r->file == NPY_F32 ? (void *)&x : (void *)&h, size);
    }
    int code = cli_npy_write(r->out[O], r->file, 4 - skip, r->dim[O] + skip, to, n * size);
    free(to);
    return code;
}

static int write_outputs(Run *r) {
    int skip = 4 - r->in[Q].rank, code = r->out[O] ? write_o(r) : 0;
    if (code == 0 && r->out[LSE]) code = cli_npy_write(r->out[LSE], NPY_F32, 3 - skip, r->dim[LSE] + skip, r->host[LSE], r->bytes[LSE]);
    return code;
}

int cli_run(Cli *cli) {
    Run *r = calloc(1, sizeof *r);
    if (!r) return cli_error(1, "out of memory");
    if (cli->cpu && cli->reference) return free(r), cli_error(EXIT_USAGE, "--cpu and --reference exclude each other");
    if (cli->debug_hang && (cli->cpu || cli->reference))
        return free(r), cli_error(EXIT_USAGE, "--debug-hang is for the GPU, and --%s rules it out", cli->cpu ? "cpu" : "reference");
    int code = cli_job_open(&r->job, cli);
    if (code == 0) code = read_names(r, cli);
    if (code == 0) code = agree(r);
    if (code == 0) code = choose_types(r, cli);
    if (code == 0) code = make_tensors(r);
    if (code == 0) code = make_args(r, cli);
    if (code == 0) {
        cli_progress("running %s", r->job.spec.name);
        code = call_it(r, cli);
        cli_progress_clear();
    }
    if (code == 0) code = write_outputs(r);
    cli_gpu_close(r->gpu);
    for (int t = 0; t < 3; t++) npy_free(&r->in[t]);
    for (int t = 0; t < NTENSOR; t++) free(r->host[t]);
    cli_job_close(&r->job);
    free(r);
    return code;
}
