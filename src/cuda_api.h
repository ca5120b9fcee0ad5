/* cuda_api.h: the functions of libcuda.so.1 that driver.c calls, as one table, so that tests can put others in their place. */
#ifndef AG_CUDA_API_H
#define AG_CUDA_API_H

#include <stddef.h>

#include "jit.h"

/* As in cuda.h: a CUresult and a CUdevice are ints, the handles are pointers. */
typedef struct CUctx_st *CuContext;
typedef struct CUlib_st *CuLibrary;
typedef struct CUkern_st *CuKernel;
typedef struct CUfunc_st *CuFunction;
typedef struct CUstream_st *CuStream;

enum { CU_ATTR_SM_COUNT = 16, CU_ATTR_MAJOR = 75, CU_ATTR_MINOR = 76, CU_ATTR_SHARED_OPTIN = 97, CU_FUNC_ATTR_DYNAMIC_SHARED = 8 };
enum { CU_CAPTURE_RELAXED = 2 };
enum {
    CU_TMAP_F16 = 6,
    CU_TMAP_BF16 = 9,
    CU_TMAP_NOT_INTERLEAVED = 0,
    CU_TMAP_NO_SWIZZLE = 0,
    CU_TMAP_SWIZZLE_128B = 3,
    CU_TMAP_PROMOTE_128B = 2,
    CU_TMAP_FILL_ZEROS = 0
};

/* field, symbol, arguments; every one returns a CUresult */
#define CUDA_FUNCTIONS(F)                                                                                                                            \
    F(init, "cuInit", (unsigned flags))                                                                                                              \
    F(driver_version, "cuDriverGetVersion", (int *version))                                                                                          \
    F(error_name, "cuGetErrorName", (int result, const char **text))                                                                                 \
    F(error_string, "cuGetErrorString", (int result, const char **text))                                                                             \
    F(device_count, "cuDeviceGetCount", (int *count))                                                                                                \
    F(device_get, "cuDeviceGet", (int *device, int ordinal))                                                                                         \
    F(device_name, "cuDeviceGetName", (char *name, int len, int device))                                                                             \
    F(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, int device))                                                                            \
    F(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                                                             \
    F(primary_retain, "cuDevicePrimaryCtxRetain", (CuContext * context, int device))                                                                 \
    F(ctx_current, "cuCtxGetCurrent", (CuContext * context))                                                                                         \
    F(ctx_set, "cuCtxSetCurrent", (CuContext context))                                                                                               \
    F(ctx_device, "cuCtxGetDevice", (int *device))                                                                                                   \
    F(library_load, "cuLibraryLoadData",                                                                                                             \
      (CuLibrary * library, const void *code, int *jit_options, void **jit_values, unsigned njit, int *options, void **values, unsigned n))          \
    F(library_unload, "cuLibraryUnload", (CuLibrary library))                                                                                        \
    F(library_kernel, "cuLibraryGetKernel", (CuKernel * kernel, CuLibrary library, const char *name))                                                \
    F(kernel_attribute, "cuKernelSetAttribute", (int attribute, int value, CuKernel kernel, int device))                                             \
    F(kernel_function, "cuKernelGetFunction", (CuFunction * function, CuKernel kernel))                                                              \
    F(launch, "cuLaunchKernel",                                                                                                                      \
      (CuFunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CuStream stream,          \
       void **params, void **extra))

/* Functions that only some programs need; NULL if the driver has none. */
#define CUDA_OPTIONAL(F)                                                                                                                             \
    F(thread_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                                                                         \
    F(tensor_map, "cuTensorMapEncodeTiled",                                                                                                          \
      (void *map, int type, unsigned rank, void *address, const uint64_t *dim, const uint64_t *stride, const unsigned *box, const unsigned *step,    \
       int interleave, int swizzle, int promotion, int fill))

typedef struct CudaApi {
#define DECLARE(field, symbol, args) int(*field) args;
    CUDA_FUNCTIONS(DECLARE)
    CUDA_OPTIONAL(DECLARE)
#undef DECLARE
} CudaApi;

/* A driver over another table, initialised; for tests.  free() it. */
attngen_status ag_driver_over(Driver **out, const CudaApi *api, Err *e);
#endif
