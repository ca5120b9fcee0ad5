/* driver.c: libcuda.so.1 opened with dlopen; loads cubins and launches kernels. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "cuda_api.h"

enum { MAX_DEVICES = 64, DRIVER_NEEDED = 12000, SHARED_WITHOUT_ASKING = 48 * 1024 };

struct Driver {
    CudaApi cu;
    int version, count;
    _Atomic(CuContext) primary[MAX_DEVICES]; /* retained once a process, never released */
};

struct Loaded {
    Driver *driver;
    const ProgramMeta *meta;
    CuLibrary library[META_KERNELS];
    int nlibrary;
    CuKernel kernel[META_KERNELS];
    atomic_bool ready[MAX_DEVICES]; /* attributes set and code loaded on this device, sms known */
    int sms[MAX_DEVICES];
};

/* ---- errors */

/* After one of these, nothing works in the context any more. */
static bool is_sticky(int r) {
    static const int list[] = {214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 720, 721};
    for (int i = 0; i < LEN(list); i++) {
        if (list[i] == r) return true;
    }
    return false;
}

static attngen_status cu_err(const Driver *d, int r, const char *what, Err *e) {
    const char *name = NULL, *text = NULL;
    if (d->cu.error_name(r, &name) != 0 || !name) name = "unknown error";
    if (d->cu.error_string(r, &text) != 0 || !text) text = "no description";
    return ag_err(e, ATTNGEN_E_DRIVER, "%s: %s (%d): %s%s", what, name, r, text,
                  is_sticky(r) ? "; a kernel that ran before failed, and its CUDA context is of no use from then on" : "");
}

/* ---- opening */

static attngen_status init(Driver *d, Err *e) {
    int r = d->cu.init(0);
    if (r != 0) return cu_err(d, r, "cuInit", e);
    if ((r = d->cu.driver_version(&d->version)) != 0) return cu_err(d, r, "cuDriverGetVersion", e);
    if ((r = d->cu.device_count(&d->count)) != 0) return cu_err(d, r, "cuDeviceGetCount", e);
    return ATTNGEN_OK;
}

static attngen_status resolve(CudaApi *cu, void *handle, Err *e) {
    static const struct {
        const char *symbol;
        size_t at;
        bool needed;
    } table[] = {
#define ROW(field, symbol, args) {symbol, offsetof(CudaApi, field), true},
        CUDA_FUNCTIONS(ROW)
#undef ROW
#define ROW(field, symbol, args) {symbol, offsetof(CudaApi, field), false},
            CUDA_OPTIONAL(ROW)
#undef ROW
    };
    for (int i = 0; i < LEN(table); i++) {
        void *f = dlsym(handle, table[i].symbol);
        if (!f && table[i].needed)
            return ag_err(e, ATTNGEN_E_DRIVER, "the CUDA driver has no %s: a driver for CUDA 12.0 or newer (525 or newer) is needed",
                          table[i].symbol);
        memcpy((char *)cu + table[i].at, &f, sizeof f);
    }
    return ATTNGEN_OK;
}

attngen_status ag_driver_over(Driver **out, const CudaApi *api, Err *e) {
    Driver *d = calloc(1, sizeof *d);
    if (!d) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    d->cu = *api;
    attngen_status s = init(d, e);
    if (s == ATTNGEN_OK && d->version < DRIVER_NEEDED) {
        s = ag_err(e, ATTNGEN_E_DRIVER, "the CUDA driver is for CUDA %d.%d: one for 12.0 or newer (525 or newer) is needed", d->version / 1000,
                   d->version % 1000 / 10);
    }
    if (s != ATTNGEN_OK) {
        free(d);
        d = NULL;
    }
    *out = d;
    return s;
}

/* The one driver of the process, or why there is none. */
static struct {
    pthread_once_t once;
    Driver *driver;
    attngen_status status;
    Err err;
} process = {.once = PTHREAD_ONCE_INIT};

static void open_process(void) {
    CudaApi api;
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        process.status = ag_err(&process.err, ATTNGEN_E_DRIVER, "no CUDA driver: %s", dlerror());
        return;
    }
    process.status = resolve(&api, handle, &process.err);
    if (process.status == ATTNGEN_OK) process.status = ag_driver_over(&process.driver, &api, &process.err);
}

attngen_status ag_driver_open(Driver **out, Err *e) {
    pthread_once(&process.once, open_process);
    *out = process.driver;
    return process.status == ATTNGEN_OK ? ATTNGEN_OK : ag_err(e, process.status, "%s", process.err.text);
}

int ag_driver_count(Driver *d) { return d->count; }

static attngen_status check_ordinal(const Driver *d, int ordinal, Err *e) {
    if (ordinal >= 0 && ordinal < d->count && ordinal < MAX_DEVICES) return ATTNGEN_OK;
    return ag_err(e, ATTNGEN_E_DRIVER, "there is no CUDA device %d: this machine has %d", ordinal, d->count);
}

attngen_status ag_driver_device(Driver *d, int ordinal, DeviceInfo *out, Err *e) {
    int dev = 0, major = 0, minor = 0, r;
    memset(out, 0, sizeof *out);
    attngen_status s = check_ordinal(d, ordinal, e);
    if (s != ATTNGEN_OK) return s;
    if ((r = d->cu.device_get(&dev, ordinal)) != 0) return cu_err(d, r, "cuDeviceGet", e);
    if ((r = d->cu.device_name(out->name, sizeof out->name, dev)) != 0) return cu_err(d, r, "cuDeviceGetName", e);
    if ((r = d->cu.device_memory(&out->memory, dev)) != 0) return cu_err(d, r, "cuDeviceTotalMem", e);
    const struct {
        int attribute, *value;
    } wanted[] = {{CU_ATTR_MAJOR, &major}, {CU_ATTR_MINOR, &minor}, {CU_ATTR_SM_COUNT, &out->sms}, {CU_ATTR_SHARED_OPTIN, &out->shared_max}};
    for (int i = 0; i < LEN(wanted); i++) {
        if ((r = d->cu.device_attribute(wanted[i].value, wanted[i].attribute, dev)) != 0) return cu_err(d, r, "cuDeviceGetAttribute", e);
    }
    out->sm = 10 * major + minor;
    out->driver_version = d->version;
    return ATTNGEN_OK;
}

/* ---- contexts */

/* Makes a context current: the one that is, else the primary one of `ordinal`, and then *restore says that none was.  *dev is its device. */
static attngen_status enter(Driver *d, int ordinal, bool *restore, int *dev, Err *e) {
    CuContext ctx = NULL;
    int r = d->cu.ctx_current(&ctx);
    *restore = false;
    if (r != 0) return cu_err(d, r, "cuCtxGetCurrent", e);
    if (!ctx) {
        attngen_status s = check_ordinal(d, ordinal, e);
        if (s != ATTNGEN_OK) return s;
        ctx = atomic_load_explicit(&d->primary[ordinal], memory_order_acquire);
        if (!ctx) {
            int device = 0;
            if ((r = d->cu.device_get(&device, ordinal)) != 0) return cu_err(d, r, "cuDeviceGet", e);
            if ((r = d->cu.primary_retain(&ctx, device)) != 0) return cu_err(d, r, "cuDevicePrimaryCtxRetain", e);
            atomic_store_explicit(&d->primary[ordinal], ctx, memory_order_release);
        }
        if ((r = d->cu.ctx_set(ctx)) != 0) return cu_err(d, r, "cuCtxSetCurrent", e);
        *restore = true;
    }
    if ((r = d->cu.ctx_device(dev)) == 0) return ATTNGEN_OK;
    if (*restore) d->cu.ctx_set(NULL);
    return cu_err(d, r, "cuCtxGetDevice", e);
}

/* ---- loading */

/* "sm_90" runs on every 9.x from 9.0 on, "sm_90a" on 9.0 alone. */
static attngen_status check_arch(const Driver *d, const char *arch, int dev, Err *e) {
    int major = 0, minor = 0, r;
    if ((r = d->cu.device_attribute(&major, CU_ATTR_MAJOR, dev)) != 0) return cu_err(d, r, "cuDeviceGetAttribute", e);
    if ((r = d->cu.device_attribute(&minor, CU_ATTR_MINOR, dev)) != 0) return cu_err(d, r, "cuDeviceGetAttribute", e);
    char *suffix = NULL;
    int sm = strncmp(arch, "sm_", 3) ? 0 : (int)strtol(arch + 3, &suffix, 10);
    bool ok = sm / 10 == major && sm % 10 <= minor && !(suffix && *suffix == 'a' && sm % 10 != minor);
    if (ok) return ATTNGEN_OK;
    return ag_err(e, ATTNGEN_E_UNSUPPORTED, "the kernel is compiled for %s and device %d is sm_%d%d: compile for that", arch, dev, major, minor);
}

/* Once per device: code into the current context, limits raised. */
static attngen_status prepare(Loaded *l, int dev, Err *e) {
    const CudaApi *cu = &l->driver->cu;
    attngen_status s = check_arch(l->driver, l->meta->arch, dev, e);
    for (uint32_t i = 0; s == ATTNGEN_OK && i < l->meta->nkernel; i++) {
        int shared = (int)l->meta->kernel[i].shared_bytes, r = 0;
        CuFunction f;
        if (shared > SHARED_WITHOUT_ASKING) r = cu->kernel_attribute(CU_FUNC_ATTR_DYNAMIC_SHARED, shared, l->kernel[i], dev);
        if (r != 0) return cu_err(l->driver, r, "cuKernelSetAttribute", e);
        if ((r = cu->kernel_function(&f, l->kernel[i])) != 0) return cu_err(l->driver, r, "cuKernelGetFunction", e);
    }
    if (s != ATTNGEN_OK || dev >= MAX_DEVICES) return s;
    int r = cu->device_attribute(&l->sms[dev], CU_ATTR_SM_COUNT, dev);
    if (r != 0) return cu_err(l->driver, r, "cuDeviceGetAttribute", e);
    atomic_store_explicit(&l->ready[dev], true, memory_order_release);
    return s;
}

static bool is_ready(Loaded *l, int dev) { return dev < MAX_DEVICES && atomic_load_explicit(&l->ready[dev], memory_order_acquire); }

/* Kernel i, which is in one of the libraries, made of these cubins: in which is read there, as a tool that watches the driver would report a library asked in vain. */
static attngen_status find_kernel(Loaded *l, const ImageCubin *cubin, uint32_t i, Err *e) {
    const char *name = l->meta->kernel[i].name;
    int k = l->nlibrary - 1;
    while (k > 0 && !ag_cubin_has(&cubin[k], name)) k--;
    int r = l->driver->cu.library_kernel(&l->kernel[i], l->library[k], name);
    return r == 0 ? ATTNGEN_OK : cu_err(l->driver, r, "cuLibraryGetKernel", e);
}

static attngen_status load(Loaded *l, int device, const ImageCubin *cubin, int n, Err *e) {
    Driver *d = l->driver;
    bool restore;
    int dev = 0, r;
    attngen_status s = enter(d, device, &restore, &dev, e);
    if (s != ATTNGEN_OK) return s;
    s = check_arch(d, l->meta->arch, dev, e);
    if (s == ATTNGEN_OK && l->meta->ntmap && !d->cu.tensor_map) {
        s = ag_err(e, ATTNGEN_E_DRIVER,
                   "the CUDA driver has no cuTensorMapEncodeTiled, which programs for %s need: a driver for CUDA 12.0 or newer "
                   "(525 or newer) is needed",
                   l->meta->arch);
    }
    for (int i = 0; s == ATTNGEN_OK && i < n; i++) {
        r = d->cu.library_load(&l->library[i], cubin[i].data, NULL, NULL, 0, NULL, NULL, 0);
        if (r != 0) s = cu_err(d, r, "cuLibraryLoadData", e);
        l->nlibrary += r == 0;
    }
    for (uint32_t i = 0; s == ATTNGEN_OK && i < l->meta->nkernel; i++) s = find_kernel(l, cubin, i, e);
    if (s == ATTNGEN_OK) s = prepare(l, dev, e);
    if (restore) d->cu.ctx_set(NULL);
    return s;
}

attngen_status ag_driver_load(Driver *d, int device, const void *image, size_t size, const ProgramMeta *m, Loaded **out, Err *e) {
    *out = NULL;
    ImageCubin cubin[META_KERNELS];
    int n = ag_image_cubins(image, size, cubin);
    if (n == 0) return ag_err(e, ATTNGEN_E_INTERNAL, "the cubin of %zu bytes is no ELF file", size);
    Loaded *l = calloc(1, sizeof *l);
    if (!l) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    l->driver = d;
    l->meta = m;
    attngen_status s = load(l, device, cubin, n, e);
    if (s != ATTNGEN_OK) {
        ag_driver_unload(l);
        return s;
    }
    *out = l;
    return ATTNGEN_OK;
}

attngen_status ag_driver_load_beside_captures(Driver *d, Err *e) {
    int mode = CU_CAPTURE_RELAXED, r = d->cu.thread_capture_mode ? d->cu.thread_capture_mode(&mode) : 0;
    return r == 0 ? ATTNGEN_OK : cu_err(d, r, "cuThreadExchangeStreamCaptureMode", e);
}

void ag_driver_unload(Loaded *l) {
    for (int i = 0; l && i < l->nlibrary; i++) l->driver->cu.library_unload(l->library[i]);
    free(l);
}

Driver *ag_loaded_driver(const Loaded *l) { return l->driver; }

/* ---- launching */

attngen_status ag_driver_launch(Loaded *l, int device, int index, uint32_t blocks, const void *params, void *stream, Err *e) {
    const KernelMeta *k = &l->meta->kernel[index];
    bool restore;
    int dev = 0;
    if (!blocks) return ATTNGEN_OK;
    attngen_status s = enter(l->driver, device, &restore, &dev, e);
    if (s != ATTNGEN_OK) return s;
    if (!is_ready(l, dev)) s = prepare(l, dev, e);
    if (s == ATTNGEN_OK) {
        uint32_t most = dev < MAX_DEVICES ? (uint32_t)l->sms[dev] * k->per_sm : k->per_sm;
        if (k->per_sm && blocks > most) blocks = most;
        void *arg[1];
        memcpy(arg, &params, sizeof params); /* the driver reads, and takes void * */
        int r = l->driver->cu.launch((CuFunction)(void *)l->kernel[index], blocks, 1, 1, k->threads, 1, 1, k->shared_bytes, stream, arg, NULL);
        if (r != 0) s = cu_err(l->driver, r, "cuLaunchKernel", e);
    }
    if (restore) l->driver->cu.ctx_set(NULL);
    return s;
}

/* One dim of a tensor map: extent, stride in bytes, box. */
typedef struct MapDim {
    uint64_t size, stride;
    unsigned box;
} MapDim;

static int encode(const CudaApi *cu, const TmapArgs *a, void *map) {
    enum { PANEL = 64, PANEL_BYTES = 128 };
    const unsigned step[5] = {1, 1, 1, 1, 1};
    int type = a->dtype == ATTNGEN_F16 ? CU_TMAP_F16 : CU_TMAP_BF16;
    memset(map, 0, TMAP_BYTES);
    if (!a->data) return 0;
    bool row = a->box_cols && a->box_rows == 1;
    MapDim channels = {a->panels ? PANEL : a->dim[0], 0, a->box_cols ? a->box_cols : PANEL}, rows = {a->dim[1], a->stride[0], a->box_rows / a->pack},
           panels = {a->panels, PANEL_BYTES, a->panels}, heads = {a->dim[2], a->stride[1], a->pack}, dim[5] = {channels};
    unsigned rank = 1, box[5];
    uint64_t size[5], stride[5];
    if (a->pack > 1) dim[rank++] = heads;
    dim[rank++] = rows;
    if (a->panels) dim[rank++] = panels;
    if (a->pack == 1) dim[rank++] = heads;
    dim[rank++] = (MapDim){a->dim[3], a->stride[2], 1};
    for (unsigned i = 0; i < rank; i++) {
        size[i] = dim[i].size;
        stride[i] = dim[i].stride;
        box[i] = dim[i].box;
    }
    return cu->tensor_map(map, type, rank, a->data, size, stride + 1, box, step, CU_TMAP_NOT_INTERLEAVED,
                          row ? CU_TMAP_NO_SWIZZLE : CU_TMAP_SWIZZLE_128B, CU_TMAP_PROMOTE_128B, CU_TMAP_FILL_ZEROS);
}

/* The driver looks the address up, so it wants a context. */
attngen_status ag_driver_tmaps(Loaded *l, int device, int n, const TmapArgs *args, void *maps, Err *e) {
    bool restore;
    int dev = 0, r = 0;
    attngen_status s = enter(l->driver, device, &restore, &dev, e);
    if (s != ATTNGEN_OK) return s;
    for (int i = 0; r == 0 && i < n; i++) r = encode(&l->driver->cu, &args[i], (char *)maps + i * TMAP_BYTES);
    if (r != 0) s = cu_err(l->driver, r, "cuTensorMapEncodeTiled", e);
    if (restore) l->driver->cu.ctx_set(NULL);
    return s;
}
