/* driver_mem.c: device memory for `attngen check`. */
#include "driver_mem.h"

#include <dlfcn.h>
#include <stdlib.h>

/* field, symbol, parameters; every one returns a CUresult */
#define MEMORY_FUNCTIONS(F)                                                                                                                          \
    F(init, "cuInit", (unsigned))                                                                                                                    \
    F(error_string, "cuGetErrorString", (int, const char **))                                                                                        \
    F(device_get, "cuDeviceGet", (int *, int))                                                                                                       \
    F(retain, "cuDevicePrimaryCtxRetain", (void **, int))                                                                                            \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int))                                                                                                \
    F(push, "cuCtxPushCurrent_v2", (void *))                                                                                                         \
    F(pop, "cuCtxPopCurrent_v2", (void **))                                                                                                          \
    F(synchronize, "cuCtxSynchronize", (void))                                                                                                       \
    F(alloc, "cuMemAlloc_v2", (uint64_t *, size_t))                                                                                                  \
    F(free, "cuMemFree_v2", (uint64_t))                                                                                                              \
    F(upload, "cuMemcpyHtoD_v2", (uint64_t, const void *, size_t))                                                                                   \
    F(download, "cuMemcpyDtoH_v2", (void *, uint64_t, size_t))

enum { MAX_BLOCKS = 16 };

struct DeviceMemory {
    void *context;
    int device;
    uint64_t block[MAX_BLOCKS];
    int nblock;
#define DECLARE(field, symbol, params) int(*field) params;
    MEMORY_FUNCTIONS(DECLARE)
#undef DECLARE
};

static attngen_status failed(const DeviceMemory *m, int r, const char *what, Err *e) {
    const char *text = NULL;
    if (r == 0) return ATTNGEN_OK;
    m->error_string(r, &text);
    return ag_err(e, ATTNGEN_E_DRIVER, "%s: %s (CUDA error %d)", what, text ? text : "unknown error", r);
}

static attngen_status resolve(DeviceMemory *m, Err *e) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* stays open: the driver does not survive being closed */
    if (!lib) return ag_err(e, ATTNGEN_E_DRIVER, "no CUDA driver: %s", dlerror());
#define RESOLVE(field, symbol, params)                                                                                                               \
    *(void **)&m->field = dlsym(lib, symbol);                                                                                                        \
    if (!m->field) return ag_err(e, ATTNGEN_E_DRIVER, "the CUDA driver has no %s: it is too old", symbol);
    MEMORY_FUNCTIONS(RESOLVE)
#undef RESOLVE
    return ATTNGEN_OK;
}

attngen_status ag_memory_open(DeviceMemory **out, int ordinal, Err *e) {
    DeviceMemory *m = *out = calloc(1, sizeof *m);
    if (!m) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    attngen_status s = resolve(m, e);
    if (s == ATTNGEN_OK) s = failed(m, m->init(0), "the CUDA driver does not start", e);
    if (s == ATTNGEN_OK) s = failed(m, m->device_get(&m->device, ordinal), "no such CUDA device", e);
    if (s == ATTNGEN_OK) s = failed(m, m->retain(&m->context, m->device), "no CUDA context", e);
    if (s == ATTNGEN_OK) s = failed(m, m->push(m->context), "no CUDA context", e);
    if (s != ATTNGEN_OK) {
        if (m->context) m->release(m->device);
        free(m);
        *out = NULL;
    }
    return s;
}

void ag_memory_close(DeviceMemory *m) {
    if (!m) return;
    void *context;
    ag_memory_free_all(m);
    m->pop(&context);
    m->release(m->device);
    free(m);
}

attngen_status ag_memory_alloc(DeviceMemory *m, uint64_t *address, size_t bytes, Err *e) {
    if (m->nblock == MAX_BLOCKS) return ag_err(e, ATTNGEN_E_INTERNAL, "more than %d blocks of device memory", MAX_BLOCKS);
    attngen_status s = failed(m, m->alloc(address, bytes ? bytes : 1), "no device memory", e);
    if (s == ATTNGEN_OK) m->block[m->nblock++] = *address;
    return s;
}

void ag_memory_free_all(DeviceMemory *m) {
    while (m->nblock > 0) m->free(m->block[--m->nblock]);
}

attngen_status ag_memory_upload(DeviceMemory *m, uint64_t to, const void *from, size_t bytes, Err *e) {
    return bytes ? failed(m, m->upload(to, from, bytes), "copy to the device", e) : ATTNGEN_OK;
}

attngen_status ag_memory_download(DeviceMemory *m, void *to, uint64_t from, size_t bytes, Err *e) {
    return bytes ? failed(m, m->download(to, from, bytes), "copy from the device", e) : ATTNGEN_OK;
}

attngen_status ag_memory_sync(DeviceMemory *m, Err *e) { return failed(m, m->synchronize(), "the kernel failed", e); }
