/* launch.c: the C interface in one page: compile a spec, bind it to sizes, launch it on device memory.
 * Usage: launch [SPEC]      e.g. launch causal.  Without a GPU it says so and stops after the CUDA text. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "attngen.h"

enum { B = 1, H = 4, S = 512, D = 64, N = B * H * S * D };

/* Device memory is the caller's; here it comes from the driver, whose context attngen uses. */
static int (*mem_alloc)(uint64_t *, size_t), (*upload)(uint64_t, const void *, size_t), (*download)(void *, uint64_t, size_t);
static uint16_t host[N]; /* zeros: every probability is the same and O is 0 */

static int driver(void) {
    int (*init)(unsigned) = NULL, (*retain)(void **, int) = NULL, (*use)(void *) = NULL;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (!cuda) return 0;
    *(void **)&init = dlsym(cuda, "cuInit");
    *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    *(void **)&use = dlsym(cuda, "cuCtxSetCurrent");
    *(void **)&mem_alloc = dlsym(cuda, "cuMemAlloc_v2");
    *(void **)&upload = dlsym(cuda, "cuMemcpyHtoD_v2");
    *(void **)&download = dlsym(cuda, "cuMemcpyDtoH_v2");
    return init && retain && use && mem_alloc && upload && download && init(0) == 0 && retain(&context, 0) == 0 && use(context) == 0;
}

/* Device memory with zeros. */
static void *zeros(size_t bytes) {
    uint64_t p = 0;
    if (mem_alloc(&p, bytes) || upload(p, host, bytes)) {
        fprintf(stderr, "launch: no device memory\n");
        exit(6);
    }
    return (void *)(uintptr_t)p;
}

static void must(attngen_status s, const attngen_context *ctx) {
    if (s == ATTNGEN_OK) return;
    fprintf(stderr, "launch: %s: %s\n", attngen_strerror(s), ctx ? attngen_errmsg(ctx) : attngen_launch_errmsg());
    exit(attngen_exit_code(s));
}

int main(int argc, char **argv) {
    attngen_context *ctx = NULL;
    attngen_program *program = NULL;
    attngen_call *call = NULL;
    attngen_source spec;
    const attngen_dim dims[] = {{"D", D}, {"dtype", ATTNGEN_F16}};
    must(attngen_create(&ctx, NULL), ctx);
    if (attngen_shipped_spec(&spec, argc > 1 ? argv[1] : "causal") != ATTNGEN_OK) return fprintf(stderr, "launch: no such spec\n"), 2;

    int has_gpu = attngen_has_device(ctx, NULL) && driver();
    must((has_gpu ? attngen_compile : attngen_lower)(ctx, &program, &spec, NULL, dims, 2), ctx);

    /* One program serves every size: bind as often as you like. */
    const attngen_shape shape = {B, H, H, S, S, ATTNGEN_ALIGN_END};
    must(attngen_bind(ctx, &call, program, &shape), ctx);

    if (has_gpu) {
        const char *names[] = {"q", "k", "v", "o"};
        attngen_arg args[4];
        for (int i = 0; i < 4; i++) args[i] = (attngen_arg){names[i], zeros(sizeof host), {H * S * D, S * D, D, 1}, 0};
        size_t n = attngen_workspace(call); /* a few bytes or none */
        must(attngen_launch(call, args, 4, n ? zeros(n) : NULL, n, NULL), NULL);
        if (download(host, (uint64_t)(uintptr_t)args[3].data, sizeof host)) must(ATTNGEN_E_DRIVER, ctx);
        printf("launched on the GPU (%s); o[0] = 0x%04x\n", attngen_arch(ctx), (unsigned)host[0]);
    } else {
        printf("compiled to CUDA text for %s; no GPU to launch on\n", attngen_arch(ctx));
    }
    attngen_call_free(call);
    attngen_program_free(program);
    attngen_destroy(ctx);
    return 0;
}
