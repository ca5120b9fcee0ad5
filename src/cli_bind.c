/* cli_bind.c: sizes given as options, and `attngen bind`: what a launch with them takes, and how it moves its tensors.  Needs no GPU. */
#include <string.h>

#include "api.h"
#include "check_case.h"
#include "cli.h"
#include "program.h"

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
    attngen_arg arg[CASE_MOST];
    size_t n;
    TensorLayout layout;
} Tensors;

static bool fits(const int64_t dim[INPUT_MAX_DIMS]) {
    int64_t n = 4; /* bytes of an element at most; the rest is more than any layout adds */
    for (int i = 0; i < INPUT_MAX_DIMS; i++)
        if (__builtin_mul_overflow(n, dim[i] > 1 ? 2 * dim[i] + 16 : 1, &n)) return false;
    return true;
}

static int lay_out(Tensors *l, const attngen_call *call, const char *name) {
    const ProgramMeta *m = &call->program->lowered->meta;
    const Spec *spec = call->program->lowered->fn.spec;
    while (l->layout < LAY_COUNT && strcmp(ag_layout_name[l->layout], name ? name : "plain") != 0) l->layout++;
    for (int i = 0; i < CASE_TENSORS + spec->ninput; i++) {
        const TensorMeta *t = &m->tensor[i];
        CaseTensor c = {.dim = {1, 1, 1, 1, 1, 1}};
        bool own = i < CASE_TENSORS;
        if (t->buffer) continue; /* a program need not read k, say */
        for (int k = 0; k < t->rank; k++) c.dim[k] = own ? call->size[t->dim[k]] : ag_input_extent(spec, i - CASE_TENSORS, k, call->size);
        if (!fits(c.dim)) return cli_error(EXIT_USAGE, "%s would reach beyond 2^63 bytes", t->name);
        if (own)
            ag_check_place(&c, i >= TEN_LSE && i < TEN_COUNT ? DT_F32 : spec->dtype, l->layout, i);
        else
            ag_check_place_input(&c, ag_input_type(spec, i - CASE_TENSORS), l->layout, t->rank);
        l->arg[l->n] = (attngen_arg){.name = t->name, .data = (void *)(SOMEWHERE + c.at)};
        memcpy(l->arg[l->n++].stride, c.view.stride, sizeof l->arg[0].stride);
    }
    return 0;
}

/* ---- the report */

static void print_grid(const BoundArgs *b, const KernelMeta *k, int ordinal) {
    Driver *driver;
    DeviceInfo info;
    int64_t sizes[META_SIZES];
    ag_kernel_sizes(b, k, sizes);
    if (k->chunk) sizes[SZ_SQ] = ag_kernel_chunk(b, k);
    long long blocks = ag_formula(&k->blocks, sizes);
    bool device = ag_driver_open(&driver, NULL) == ATTNGEN_OK && ag_driver_device(driver, ordinal, &info, NULL) == ATTNGEN_OK;
    long long most = device ? (long long)info.sms * k->per_sm : 0;
    if (k->chunk && ag_kernel_chunk(b, k) < b->size[SZ_SQ]) printf("%lld queries at a time, for those ", (long long)ag_kernel_chunk(b, k));
    if (!k->per_sm)
        printf("%lld blocks", blocks);
    else if (device)
        printf("%lld tiles by %lld blocks", blocks, blocks < most ? blocks : most);
    else
        printf("%lld tiles by %u block%s per SM", blocks, k->per_sm, k->per_sm == 1 ? "" : "s");
    printf("; %u threads and %u bytes of shared memory a block", k->threads, k->shared_bytes);
}

/* What the kernels of a program hand on to each other. */
static void print_buffers(const ProgramMeta *m, const int64_t *sizes) {
    printf("%lld bytes of workspace, %lld of them for counters\n", (long long)ag_workspace_bytes(m, sizes), (long long)ag_workspace_counters(m));
    for (uint32_t i = 0; i < m->ntensor; i++) {
        const TensorMeta *t = &m->tensor[i];
        int64_t bytes = t->elem_bytes, dim[ATTNGEN_MOST_DIMS] = {0};
        for (int k = 0; k < t->rank; k++) bytes *= dim[k] = ag_tensor_extent(m, sizes, (int)i, k);
        if (!t->buffer || !bytes) continue;
        printf("  %s [", t->name);
        for (int k = 0; k < t->rank; k++) printf(k ? ", %lld" : "%lld", (long long)dim[k]);
        printf("]: %lld bytes at %lld\n", (long long)bytes, (long long)ag_workspace_place(m, sizes, (int)i));
    }
}

static void print_kernels(const BoundArgs *b, const attngen_call *call, bool program) {
    for (uint32_t i = 0; program && i < b->meta->nkernel; i++) {
        printf("  %s: ", b->meta->kernel[i].name);
        print_grid(b, &b->meta->kernel[i], call->device);
        printf("\n");
    }
    if (program) return;
    print_grid(b, &b->meta->kernel[0], call->device);
    printf("; %lld bytes of workspace\n", (long long)ag_workspace_bytes(b->meta, call->size));
}

/* What p would do.  *which: the companion that takes the tensors, if it does not. */
static attngen_status print_program(const attngen_program *p, const attngen_call *call, const Tensors *l, Companion *which, Err *e) {
    const Compilation *c = p->lowered;
    const int64_t *z = call->size;
    bool program = c->npart > 1 || c->fn.spec->nbranch > 0;
    BoundArgs b;
    char line[256];
    attngen_status s = ag_sizes_check(&c->meta, z, e);
    if (s == ATTNGEN_OK) s = ag_args_bind(&b, &c->meta, z, l->arg, l->n, e);
    if (s != ATTNGEN_OK) return s;
    printf("%s under %s for %s, %s, D %d, Dv %d: B %lld, Hq %lld, Hkv %lld, Sq %lld, Sk %lld, %s\n", c->meta.spec, c->schedule_name, c->meta.arch,
           ag_dtype_name[c->fn.spec->dtype], c->meta.D, c->meta.Dv, (long long)z[SZ_B], (long long)z[SZ_HQ], (long long)z[SZ_HKV],
           (long long)z[SZ_SQ], (long long)z[SZ_SK], ag_layout_name[l->layout]);
    print_kernels(&b, call, program);
    if (program) printf("tensors\n");
    for (int i = 0; i < (int)c->meta.ntensor; i++) {
        if (c->meta.tensor[i].buffer) continue;
        ag_args_way(&b, i, line, sizeof line);
        printf("  %s\n", line);
    }
    if (program) print_buffers(&c->meta, z);
    *which = ag_companion_for(&b);
    return s;
}

static int report(const attngen_call *call, const Tensors *l) {
    attngen_program *p = call->program;
    Err e = {{0}};
    Companion which = COMPANION_NONE, none;
    attngen_status s = print_program(p, call, l, &which, &e);
    if (s == ATTNGEN_OK && which != COMPANION_NONE) {
        s = ag_program_companion(p, which, NULL, call->device, &p, &e);
        if (s == ATTNGEN_OK) printf("so %s runs:\n", ag_companion_words(which));
        if (s == ATTNGEN_OK) s = print_program(p, call, l, &none, &e);
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
