/* cli_gpu.c: device memory and events from libcuda, which attngen.h leaves to its callers. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* The driver functions used here: name in libcuda, field, parameters. */
#define DRIVER_FUNCTIONS(X)                                                                                                                          \
    X("cuInit", init, (unsigned))                                                                                                                    \
    X("cuGetErrorString", error_string, (int, const char **))                                                                                        \
    X("cuDeviceGet", device_get, (int *, int))                                                                                                       \
    X("cuDevicePrimaryCtxRetain", context_retain, (void **, int))                                                                                    \
    X("cuDevicePrimaryCtxRelease_v2", context_release, (int))                                                                                        \
    X("cuCtxSetCurrent", set_current, (void *))                                                                                                      \
    X("cuCtxSynchronize", synchronize, (void))                                                                                                       \
    X("cuMemAlloc_v2", mem_alloc, (uint64_t *, size_t))                                                                                              \
    X("cuMemFree_v2", mem_free, (uint64_t))                                                                                                          \
    X("cuMemcpyHtoD_v2", upload, (uint64_t, const void *, size_t))                                                                                   \
    X("cuMemcpyDtoH_v2", download, (void *, uint64_t, size_t))                                                                                       \
    X("cuEventCreate", event_create, (void **, unsigned))                                                                                            \
    X("cuEventRecord", event_record, (void *, void *))                                                                                               \
    X("cuEventSynchronize", event_wait, (void *))                                                                                                    \
    X("cuEventElapsedTime", event_elapsed, (float *, void *, void *))                                                                                \
    X("cuEventDestroy_v2", event_destroy, (void *))

enum { MAX_BLOCKS = 32 };

struct Gpu {
    void *lib, *context, *event[2];
    int device;
    uint64_t block[MAX_BLOCKS];
    int nblock;
#define FIELD(name, field, params) int(*field) params;
    DRIVER_FUNCTIONS(FIELD)
#undef FIELD
};

static int failed(const Gpu *g, const char *what, int code) {
    const char *text = NULL;
    if (g->error_string) g->error_string(code, &text);
    return cli_error(EXIT_FILE, "%s: %s (CUDA error %d)", what, text ? text : "unknown error", code);
}

static int load(Gpu *g) {
    g->lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!g->lib) return cli_error(EXIT_FILE, "no CUDA driver: %s", dlerror());
#define LOAD(name, field, params)                                                                                                                    \
    *(void **)&g->field = dlsym(g->lib, name);                                                                                                       \
    if (!g->field) return cli_error(EXIT_FILE, "the CUDA driver has no %s: it is too old", name);
    DRIVER_FUNCTIONS(LOAD)
#undef LOAD
    return 0;
}

int cli_gpu_open(Gpu **out, int ordinal) {
    Gpu *g = *out = calloc(1, sizeof *g);
    if (!g) return cli_error(1, "out of memory");
    int code = load(g), e;
    if (code) return code;
    if ((e = g->init(0))) return failed(g, "the CUDA driver does not start", e);
    if ((e = g->device_get(&g->device, ordinal))) return failed(g, "no such CUDA device", e);
    if ((e = g->context_retain(&g->context, g->device)) || (e = g->set_current(g->context))) return failed(g, "no CUDA context", e);
    for (int i = 0; i < 2; i++)
        if ((e = g->event_create(&g->event[i], 0))) return failed(g, "no CUDA event", e);
    return 0;
}

void cli_gpu_close(Gpu *g) {
    if (!g) return;
    for (int i = 0; i < g->nblock; i++) g->mem_free(g->block[i]);
    for (int i = 0; i < 2; i++)
        if (g->event[i]) g->event_destroy(g->event[i]);
    if (g->context) g->context_release(g->device);
    free(g); /* the library stays loaded: it does not survive being closed */
}

uint64_t cli_gpu_alloc(Gpu *g, size_t bytes) {
    uint64_t p = 0;
    int e = g->nblock == MAX_BLOCKS ? -1 : g->mem_alloc(&p, bytes ? bytes : 1);
    if (e) return failed(g, "no device memory", e), 0;
    return g->block[g->nblock++] = p;
}

int cli_gpu_workspace(Gpu *g, uint64_t *address, size_t bytes) {
    *address = 0;
    if (bytes == 0) return 0;
    void *zeros = calloc(1, bytes);
    if (!zeros) return cli_error(EXIT_FILE, "out of memory");
    int code = (*address = cli_gpu_alloc(g, bytes)) ? cli_gpu_upload(g, *address, zeros, bytes) : EXIT_FILE;
    free(zeros);
    return code;
}

int cli_gpu_upload(Gpu *g, uint64_t to, const void *from, size_t bytes) {
    int e = bytes ? g->upload(to, from, bytes) : 0;
    return e ? failed(g, "copy to the device", e) : 0;
}

int cli_gpu_download(Gpu *g, void *to, uint64_t from, size_t bytes) {
    int e = g->synchronize();
    if (e) return failed(g, "the kernel failed", e);
    e = bytes ? g->download(to, from, bytes) : 0;
    return e ? failed(g, "copy from the device", e) : 0;
}

int cli_gpu_event(Gpu *g, int which, bool stop_wait) {
    int e = g->event_record(g->event[which], NULL);
    if (!e && stop_wait) e = g->event_wait(g->event[which]);
    return e ? failed(g, "the kernel failed", e) : 0;
}

float cli_gpu_elapsed_ms(Gpu *g) {
    float ms = 0;
    g->event_elapsed(&ms, g->event[0], g->event[1]);
    return ms;
}
