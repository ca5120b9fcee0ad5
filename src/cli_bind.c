/* cli_bind.c: sizes given as options, and `attngen bind`: what a launch with them takes, and how it moves its tensors.  Needs no GPU. */
#include <string.h>

#include "api.h"
#include "check_case.h"
#include "cli.h"

enum { DEFAULT_TOKENS = 16384, DEFAULT_SK = 4096, DEFAULT_WIDTH = 2048, SOMEWHERE = 1 << 20 /* an address, aligned as allocations are */ };

/* ---- sizes */

static int read_shape(attngen_shape *s, const Cli *cli, int D) {
    const int64_t given[] = {cli->B, cli->heads, cli->kv_heads, cli->sq, cli->sk};
    for (int i = 0; i < LEN(given); i++)
        if (given[i] < 0) return cli_error(EXIT_USAGE, "sizes must not be negative");
    s->Sk = cli->sk ? cli->sk : cli->sq ? cli->sq : DEFAULT_SK;
    s->Sq = cli->sq ? cli->sq : s->Sk;
    s->B = cli->B ? cli->B : s->Sk < DEFAULT_TOKENS ? DEFAULT_TOKENS / s->Sk : 1;
    s->Hq = cli->heads ? cli->heads : D < DEFAULT_WIDTH ? DEFAULT_WIDTH / D : 1;
    s->offset = cli->offset;
    return 0;
}

int cli_bind_call(attngen_call **out, attngen_shape *shape, attngen_context *ctx, const attngen_program *program, const Cli *cli) {
    attngen_status s = ATTNGEN_E_INVALID_ARG;
    int code = read_shape(shape, cli, ag_program_compilation(program)->fn.spec->D);
    if (code) return code;
    for (int64_t n = cli->kv_heads ? cli->kv_heads : shape->Hq; n >= 1 && s != ATTNGEN_OK; n--) {
        if (shape->Hq % n && !cli->kv_heads) continue;
        shape->Hkv = n;
        s = attngen_bind(ctx, out, program, shape);
        if (cli->kv_heads) break;
    }
    return s == ATTNGEN_OK ? 0 : cli_fail(ctx, s);
}

/* ---- tensors: addresses and strides, no memory */

typedef struct Tensors {
    attngen_arg arg[CASE_TENSORS];
    TensorLayout layout;
} Tensors;

static bool fits(const int64_t dim[4]) {
    int64_t n = 4; /* bytes of an element at most; the rest is more than any layout adds */
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(n, 2 * dim[i] + 16, &n)) return false;
    return true;
}

static int lay_out(Tensors *l, const attngen_call *call, const char *name) {
    const ProgramMeta *m = &call->program->lowered->meta;
    while (l->layout < LAY_COUNT && strcmp(ag_layout_name[l->layout], name ? name : "plain") != 0) l->layout++;
    for (int i = 0; i < CASE_TENSORS; i++) {
        const TensorMeta *t = &m->tensor[i];
        CaseTensor c = {.dim = {1, 1, 1, 1}};
        for (int k = 0; k < t->rank; k++) c.dim[k] = call->size[t->dim[k]];
        if (!fits(c.dim)) return cli_error(EXIT_USAGE, "%s would reach beyond 2^63 bytes", t->name);
        ag_check_place(&c, i == TEN_LSE ? DT_F32 : call->program->lowered->fn.spec->dtype, l->layout, i);
        l->arg[i] = (attngen_arg){.name = t->name, .data = (void *)(SOMEWHERE + c.at)};
        memcpy(l->arg[i].stride, c.view.stride, sizeof l->arg[i].stride);
    }
    return 0;
}

/* ---- the report */

static void print_grid(const ProgramMeta *m, const attngen_call *call) {
    Driver *driver;
    DeviceInfo info;
    const KernelMeta *k = &m->kernel[0];
    long long blocks = ag_formula(&k->blocks, call->size);
    bool device = ag_driver_open(&driver, NULL) == ATTNGEN_OK && ag_driver_device(driver, call->device, &info, NULL) == ATTNGEN_OK;
    long long most = device ? (long long)info.sms * k->per_sm : 0;
    if (!k->per_sm)
        printf("%lld blocks", blocks);
    else if (device)
        printf("%lld tiles by %lld blocks", blocks, blocks < most ? blocks : most);
    else
        printf("%lld tiles by %u block%s per SM", blocks, k->per_sm, k->per_sm == 1 ? "" : "s");
    printf("; %u threads and %u bytes of shared memory a block; %lld bytes of workspace\n", k->threads, k->shared_bytes,
           (long long)ag_workspace_bytes(m, call->size));
}

/* What p would do.  *fits: whether it takes the tensors. */
static attngen_status print_program(const attngen_program *p, const attngen_call *call, const Tensors *l, bool *fits, Err *e) {
    const Compilation *c = p->lowered;
    const int64_t *z = call->size;
    BoundArgs b;
    char line[256];
    attngen_status s = ag_sizes_check(&c->meta, z, e);
    if (s == ATTNGEN_OK) s = ag_args_bind(&b, &c->meta, z, l->arg, CASE_TENSORS, e);
    if (s != ATTNGEN_OK) return s;
    printf("%s under %s for %s, %s, D %d, Dv %d: B %lld, Hq %lld, Hkv %lld, Sq %lld, Sk %lld, %s\n", c->meta.spec, c->schedule_name, c->meta.arch,
           ag_dtype_name[c->fn.spec->dtype], c->meta.D, c->meta.Dv, (long long)z[SZ_B], (long long)z[SZ_HQ], (long long)z[SZ_HKV],
           (long long)z[SZ_SQ], (long long)z[SZ_SK], ag_layout_name[l->layout]);
    print_grid(&c->meta, call);
    for (int i = 0; i < (int)c->meta.ntensor; i++) {
        ag_args_way(&b, i, line, sizeof line);
        printf("  %s\n", line);
    }
    *fits = ag_args_mappable(&b);
    return s;
}

static int report(const attngen_call *call, const Tensors *l) {
    attngen_program *p = call->program;
    Err e = {{0}};
    bool fits = true;
    attngen_status s = print_program(p, call, l, &fits, &e);
    if (s == ATTNGEN_OK && !fits) {
        s = ag_program_portable(p, NULL, call->device, &p, &e);
        if (s == ATTNGEN_OK) printf("so the portable kernel runs:\n");
        if (s == ATTNGEN_OK) s = print_program(p, call, l, &fits, &e);
    }
    return s == ATTNGEN_OK ? 0 : cli_error(attngen_exit_code(s), "%s", e.text);
}

int cli_bind(Cli *cli) {
    Job job;
    attngen_program *program = NULL;
    attngen_call *call = NULL;
    attngen_shape shape;
    Tensors tensors = {.layout = LAY_PLAIN};
    int code = cli_job_open(&job, cli);
    if (code == 0) {
        attngen_status s = attngen_lower(job.ctx, &program, &job.spec, job.schedule_or_null, job.dim, job.ndim);
        if (s != ATTNGEN_OK) code = cli_fail(job.ctx, s);
    }
    if (code == 0) code = cli_bind_call(&call, &shape, job.ctx, program, cli);
    if (code == 0) code = lay_out(&tensors, call, cli->layout);
    if (code == 0) code = report(call, &tensors);
    attngen_call_free(call);
    attngen_program_free(program);
    cli_job_close(&job);
    return code;
}
