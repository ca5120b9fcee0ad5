/* cli_run.c: `attngen run`: tensors from .npy files through the kernel on the GPU, the simulator or the reference. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "cli.h"
#include "program.h"

enum {
    Q,
    K,
    V,
    O,
    LSE /* and other values of a row, in the order of RowValue */,
    NTENSOR = LSE + ROWV_COUNT,
    MOST_ARGS = NTENSOR + SPEC_MAX_INPUTS + CLI_LIST
};
static const char *const tensor_name[NTENSOR] = {"q", "k", "v", "o", "lse", "max", "mean_weight"};

/* A captured tensor of the spec. */
typedef struct Captured {
    Npy file;
    const char *path; /* NULL: not given */
    void *host;       /* in the spec's type, contiguous */
    size_t bytes;
    attngen_arg arg;
} Captured;

/* Tensors in the program's type, contiguous [B, H, S, D]. */
typedef struct Run {
    Job job;
    Npy in[3];
    int64_t dim[NTENSOR][4]; /* dim[LSE][3] and so on are 1 */
    void *host[NTENSOR];
    size_t bytes[NTENSOR];
    const char *out[NTENSOR];
    int dtype;    /* ATTNGEN_F16, ATTNGEN_BF16 */
    NpyType file; /* type of o's file */
    attngen_arg arg[NTENSOR];
    Captured input[SPEC_MAX_INPUTS]; /* as the spec numbers them */
    attngen_arg set[CLI_LIST];
    size_t nset;
    char scalar[CLI_LIST][64];
    Compilation *early; /* for the names of the spec's inputs; NULL, or failed, if the spec is wrong: that is said later */
    Gpu *gpu;
} Run;

/* ---- input */

static int read_file(Npy *out, const char *path) {
    char err[NPY_ERROR];
    bool io;
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f) return cli_error(EXIT_FILE, "%s: %s", path, strerror(errno));
    bool ok = npy_read(out, f, err, &io);
    if (!is_stdin) fclose(f);
    return ok ? 0 : cli_error(io ? EXIT_FILE : EXIT_USAGE, "%s: %s", path, err);
}

static int read_input(Run *r, const Cli *cli, int t, const char *path) {
    if (r->in[t].data) return cli_error(EXIT_USAGE, "--in %s is given twice", tensor_name[t]);
    int code = read_file(&r->in[t], path), rank = r->in[t].rank;
    if (code) return code;
    if (rank != 3 && rank != 4)
        return cli_error(EXIT_USAGE, "%s: %s has %d dimensions, expected [B, H, S, D] or [H, S, D]", path, tensor_name[t], rank);
    if (npy_is_int(r->in[t].type)) return cli_error(EXIT_USAGE, "%s: %s has ints, '%s'", path, tensor_name[t], npy_descr(r->in[t].type));
    if (r->in[t].type == NPY_U16 && (!cli->dtype || strcmp(cli->dtype, "bf16") != 0))
        return cli_error(EXIT_USAGE, "%s: type '<u2' is read as bf16 bits only with --dtype bf16", path);
    for (int i = 0; i < 4; i++) r->dim[t][i] = i >= 4 - rank ? r->in[t].dim[i - (4 - rank)] : 1;
    return 0;
}

/* The spec's inputs by name.  They are looked up before anything is known of the sizes, so the spec is read by itself. */
static const Spec *early_spec(Run *r) {
    if (!r->early) r->early = ag_compile_text(&r->job.spec, NULL, "sm_80", r->job.dim, r->job.ndim, "lower");
    return r->early && r->early->diag.status == ATTNGEN_OK ? r->early->fn.spec : NULL;
}

static int read_captured(Run *r, const char *name, const char *path) {
    const Spec *spec = early_spec(r);
    char hint[96];
    if (!spec) return 0;
    Buf names = {0};
    ag_put(&names, "q k v");
    for (int i = 0; i < spec->ninput; i++) {
        Captured *c = &r->input[i];
        ag_put(&names, " %.*s", STRF(spec->input[i].name));
        if (!ag_str_is(spec->input[i].name, name)) continue;
        ag_buf_free(&names);
        if (c->path) return cli_error(EXIT_USAGE, "--in %s is given twice", name);
        c->path = path;
        return read_file(&c->file, path);
    }
    cli_hint(hint, sizeof hint, name, names.s ? names.s : "");
    int code = cli_error(EXIT_USAGE, "--in is one of %s, not `%s`%s", names.s ? names.s : "", name, hint);
    ag_buf_free(&names);
    return code;
}

static int read_output(Run *r, const char *name, const char *path) {
    char hint[96];
    int t = O;
    while (t < NTENSOR && strcmp(tensor_name[t], name) != 0) t++;
    cli_hint(hint, sizeof hint, name, "o lse max mean_weight");
    if (t == NTENSOR) return cli_error(EXIT_USAGE, "--out is one of o lse max mean_weight, not `%s`%s", name, hint);
    r->out[t] = path;
    return 0;
}

/* "NAME=FILE" of --in and --out. */
static int read_names(Run *r, const Cli *cli) {
    for (size_t i = 0; i < cli->ins.n + cli->outs.n; i++) {
        bool is_in = i < cli->ins.n;
        const char *given = is_in ? cli->ins.item[i] : cli->outs.item[i - cli->ins.n], *path;
        char name[64];
        if (!cli_assignment(given, name, &path) || !*path)
            return cli_error(EXIT_USAGE, "--%s needs NAME=FILE, not `%s`", is_in ? "in" : "out", given);
        int t = Q;
        while (t < O && strcmp(tensor_name[t], name) != 0) t++;
        int code = !is_in ? read_output(r, name, path) : t < O ? read_input(r, cli, t, path) : read_captured(r, name, path);
        if (code) return code;
    }
    for (int t = Q; t <= V; t++)
        if (!r->in[t].data) return cli_error(EXIT_USAGE, "--in %s=FILE is missing", tensor_name[t]);
    for (int t = O; t < NTENSOR; t++)
        if (r->out[t]) return 0;
    return cli_error(EXIT_USAGE, "--out o=FILE is missing");
}

/* Sizes of the tensors; what the kernel itself would refuse is left to attngen_bind. */
static int agree(Run *r) {
    const int64_t *q = r->dim[Q], *k = r->dim[K], *v = r->dim[V];
    if (k[0] != q[0] || v[0] != q[0])
        return cli_error(EXIT_USAGE, "q, k and v differ in B: %lld, %lld, %lld", (long long)q[0], (long long)k[0], (long long)v[0]);
    if (k[1] != v[1]) return cli_error(EXIT_USAGE, "k and v differ in heads: %lld, %lld", (long long)k[1], (long long)v[1]);
    if (k[2] != v[2]) return cli_error(EXIT_USAGE, "k and v differ in length: %lld, %lld", (long long)k[2], (long long)v[2]);
    if (k[3] != q[3]) return cli_error(EXIT_USAGE, "q and k differ in D: %lld, %lld", (long long)q[3], (long long)k[3]);
    memcpy(r->dim[O], q, sizeof r->dim[O]);
    r->dim[O][3] = v[3];
    for (int t = LSE; t < NTENSOR; t++) {
        memcpy(r->dim[t], q, sizeof r->dim[t]);
        r->dim[t][3] = 1;
    }
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
        size_t n = t >= LSE ? sizeof(float) : sizeof(uint16_t);
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
        attngen_arg *a = &r->arg[t];
        const int64_t *dim = r->dim[t];
        *a = (attngen_arg){.name = tensor_name[t], .data = r->host[t]};
        int rank = t >= LSE ? 3 : 4;
        for (int64_t i = rank - 1, step = 1; i >= 0; step *= dim[i] ? dim[i] : 1, i--) a->stride[i] = step;
    }
    for (size_t i = 0; i < cli->set.n; i++) {
        const char *value;
        double x;
        if (!cli_assignment(cli->set.item[i], r->scalar[i], &value) || !cli_number(value, &x))
            return cli_error(EXIT_USAGE, "--set needs NAME=NUMBER, not `%s`", cli->set.item[i]);
        r->set[r->nset++] = (attngen_arg){.name = r->scalar[i], .scalar = x};
    }
    return 0;
}

/* ---- captured tensors, once the sizes are known */

static void put_dims(Buf *out, const int64_t *dim, int rank) {
    ag_put(out, "[");
    for (int i = 0; i < rank; i++) ag_put(out, i ? ", %lld" : "%lld", (long long)dim[i]);
    ag_put(out, "]");
}

/* ": dim 2 is k, and Sk is 98", of the first dim that differs; nothing for one that the spec gives as a number. */
static void put_axis(Buf *out, const Input *in, const int64_t *got, const int64_t *want) {
    static const Size of_axis[AX_COUNT] = {[AX_B] = SZ_B, [AX_H] = SZ_HQ, [AX_G] = SZ_HKV, [AX_Q] = SZ_SQ, [AX_K] = SZ_SK, [AX_D] = SZ_D};
    int i = 0;
    while (i < in->rank && got[i] == want[i]) i++;
    if (i == in->rank || in->dim[i].kind != DIM_AXIS || in->dim[i].part || in->per > 1) return;
    Axis axis = in->dim[i].axis;
    ag_put(out, ": dim %d is %s, and %s is %lld", i + 1, ag_axis_name[axis], ag_size_name[axis == AX_D && in->values ? SZ_DV : of_axis[axis]],
           (long long)want[i]);
}

static int check_captured(const Captured *c, const Input *in, const char *name, DType type, const int64_t *dim) {
    const Npy *a = &c->file;
    int rank = in->rank;
    bool is_float = ag_dtype_value(type) == T_FLOAT;
    if (npy_is_int(a->type) == is_float)
        return cli_error(EXIT_USAGE, "%s: %s is %s, but the file has '%s'", c->path, name, ag_dtype_name[type], npy_descr(a->type));
    if (a->rank == rank && memcmp(a->dim, dim, (size_t)rank * sizeof *dim) == 0) return 0;
    Buf text = {0};
    put_dims(&text, a->dim, a->rank);
    ag_put(&text, ", expected ");
    put_dims(&text, dim, rank);
    if (a->rank == rank) put_axis(&text, in, a->dim, dim);
    int code = cli_error(EXIT_USAGE, "%s: %s is %s", c->path, name, text.s ? text.s : "?");
    ag_buf_free(&text);
    return code;
}

/* One element of the file; false: an int that the type does not have. */
static bool convert_element(const HostTensor *to, const Npy *a, const int64_t *at) {
    size_t from = 0;
    for (int i = 0; i < a->rank; i++) from += (size_t)(at[i] * a->stride[i]);
    if (!npy_is_int(a->type)) return ag_host_set_at(to, at, a->rank, (double)npy_get(a, from)), true;
    int64_t x = npy_get_int(a, from);
    if (to->type == DT_I64) {
        int64_t where = 0;
        for (int i = 0; i < a->rank; i++) where += at[i] * to->stride[i];
        return memcpy((char *)to->data + where * (int64_t)sizeof x, &x, sizeof x), true; /* all bits, which no double has */
    }
    ag_host_set_at(to, at, a->rank, (double)x);
    return to->type == DT_BOOL || (to->type == DT_U8 ? x >= 0 && x <= UINT8_MAX : x >= INT32_MIN && x <= INT32_MAX);
}

/* Elements of dim k of input i. */
static int64_t extent_of(const Run *r, const attngen_call *call, int i, int k) {
    const Spec *spec = call->program->lowered->fn.spec;
    const Dim *d = &spec->input[i].dim[k];
    double scalar[HOST_SCALARS];
    if (!d->part) return ag_input_extent(spec, i, k, call->size);
    for (int j = 0; j < spec->nparam; j++) {
        scalar[j] = spec->param[j].type == T_INT ? (double)spec->param[j].value.u.i : 1;
        for (size_t n = 0; n < r->nset; n++)
            if (ag_str_is(spec->param[j].name, r->set[n].name) && r->set[n].scalar >= 1) scalar[j] = r->set[n].scalar;
    }
    return ag_part_extent(spec, d->part, call->size[SZ_B], scalar);
}

/* Input i of the program's spec into its type. */
static int make_captured(Run *r, const attngen_call *call, int i) {
    const Spec *spec = call->program->lowered->fn.spec;
    const Input *x = &spec->input[i];
    Captured *c = &r->input[i];
    const char *name = call->program->lowered->meta.tensor[ag_program_input(i)].name;
    HostTensor to = {.type = x->storage ? spec->dtype : x->type};
    int64_t dim[INPUT_MAX_DIMS], at[INPUT_MAX_DIMS], step = 1;
    if (!c->path) return cli_error(EXIT_USAGE, "--in %s=FILE is missing", name);
    for (int k = 0; k < x->rank; k++) dim[k] = extent_of(r, call, i, k);
    int code = check_captured(c, x, name, to.type, dim);
    if (code) return code;
    for (int k = x->rank - 1; k >= 0; step *= dim[k], k--) to.stride[k] = step;
    c->bytes = c->file.count * (size_t)ag_dtype_bytes(to.type);
    to.data = c->host = calloc(c->bytes + 1, 1);
    if (!c->host) return cli_error(1, "out of memory for %s, %zu bytes", name, c->bytes);
    c->arg = (attngen_arg){.name = name, .data = c->host};
    memcpy(c->arg.stride, to.stride, sizeof c->arg.stride);
    for (bool more = ag_first_index(at, dim, x->rank); more; more = ag_next_index(at, dim, x->rank))
        if (!convert_element(&to, &c->file, at))
            return cli_error(EXIT_USAGE, "%s: an element of %s is out of range of %s", c->path, name, ag_dtype_name[to.type]);
    return 0;
}

/* Tensors that the program takes: one with branches need not read k, say. */
static bool takes(const attngen_call *call, int tensor) { return !call->program->lowered->meta.tensor[tensor].buffer; }

static int make_all_captured(Run *r, const attngen_call *call) {
    int code = 0;
    for (int t = LSE; t < NTENSOR; t++)
        if (r->out[t] && !takes(call, t)) return cli_error(EXIT_USAGE, "%s has no %s", call->program->lowered->meta.spec, tensor_name[t]);
    for (int i = 0; i < call->program->lowered->fn.spec->ninput && code == 0; i++)
        if (takes(call, ag_program_input(i))) code = make_captured(r, call, i);
    return code;
}

static size_t collect(const Run *r, const attngen_call *call, attngen_arg arg[MOST_ARGS]) {
    size_t n = 0;
    for (int t = 0; t < NTENSOR; t++)
        if (takes(call, t)) arg[n++] = r->arg[t];
    for (int i = 0; i < SPEC_MAX_INPUTS; i++)
        if (r->input[i].host) arg[n++] = r->input[i].arg;
    for (size_t i = 0; i < r->nset; i++) arg[n++] = r->set[i];
    return n;
}

static int to_device(Run *r, attngen_arg *a, const void *from, size_t bytes) {
    uint64_t p = cli_gpu_alloc(r->gpu, bytes);
    a->data = (void *)(uintptr_t)p;
    return !p ? EXIT_FILE : from ? cli_gpu_upload(r->gpu, p, from, bytes) : 0;
}

static int launch(Run *r, const Cli *cli, const attngen_call *call) {
    attngen_arg arg[MOST_ARGS];
    int code = cli_gpu_open(&r->gpu, (int)cli->device);
    for (int t = 0; t < NTENSOR && code == 0; t++) code = to_device(r, &r->arg[t], t <= V ? r->host[t] : NULL, r->bytes[t]);
    for (int i = 0; i < SPEC_MAX_INPUTS && code == 0; i++)
        if (r->input[i].host) code = to_device(r, &r->input[i].arg, r->input[i].host, r->input[i].bytes);
    uint64_t work;
    size_t nwork = attngen_workspace(call);
    if (code == 0) code = cli_gpu_workspace(r->gpu, &work, nwork);
    if (code) return code;
    attngen_status s = attngen_launch(call, arg, collect(r, call, arg), (void *)(uintptr_t)work, nwork, NULL);
    if (s != ATTNGEN_OK) return cli_error(attngen_exit_code(s), "%s", attngen_launch_errmsg());
    for (int t = O; t < NTENSOR && code == 0; t++) code = cli_gpu_download(r->gpu, r->host[t], (uint64_t)(uintptr_t)r->arg[t].data, r->bytes[t]);
    return code;
}

static int on_host(Run *r, const Cli *cli, const attngen_call *call) {
    attngen_arg arg[MOST_ARGS];
    attngen_status s = (cli->reference ? attngen_reference : attngen_simulate)(r->job.ctx, call, arg, collect(r, call, arg));
    return s == ATTNGEN_OK ? 0 : cli_fail(r->job.ctx, s);
}

static int call_it(Run *r, const Cli *cli) {
    Job *job = &r->job;
    bool host = cli->cpu || cli->reference;
    attngen_program *program = NULL;
    attngen_call *call = NULL;
    attngen_shape shape = {r->dim[Q][0], r->dim[Q][1], r->dim[K][1], r->dim[Q][2], r->dim[K][2], cli->offset};
    attngen_status s = (host ? attngen_lower : attngen_compile)(job->ctx, &program, &job->spec, job->schedule_or_null, job->dim, job->ndim);
    if (s == ATTNGEN_OK) s = attngen_bind(job->ctx, &call, program, &shape);
    int code = s == ATTNGEN_OK ? make_all_captured(r, call) : cli_fail(job->ctx, s);
    if (code == 0) code = host ? on_host(r, cli, call) : launch(r, cli, call);
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
    for (int t = LSE; t < NTENSOR; t++)
        if (code == 0 && r->out[t]) code = cli_npy_write(r->out[t], NPY_F32, 3 - skip, r->dim[t] + skip, r->host[t], r->bytes[t]);
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
    for (int i = 0; i < SPEC_MAX_INPUTS; i++) {
        npy_free(&r->input[i].file);
        free(r->input[i].host);
    }
    ag_compilation_free(r->early);
    cli_job_close(&r->job);
    free(r);
    return code;
}
