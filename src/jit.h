/* jit.h: the runtime half.  NVRTC and libcuda are opened with dlopen; nothing here parses text or includes a CUDA header.
 * Every function returns a status; `Err` carries the sentence for the user. */
#ifndef AG_JIT_H
#define AG_JIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attngen.h"

typedef struct Err {
    char text[2048]; /* "" when there is none */
} Err;
attngen_status ag_err(Err *e, attngen_status s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- what a kernel needs to be launched: plain data, stored in the cache as it is (format version in cache.c) */

/* Integer formula over the sizes, in postfix. */
typedef enum FormulaOp { FO_END, FO_CONST, FO_SIZE, FO_ADD, FO_SUB, FO_MUL, FO_CEILDIV, FO_MIN, FO_MAX } FormulaOp;
typedef struct Formula {
    int32_t op[24]; /* FO_CONST and FO_SIZE are followed by their operand; SIZE operands are SZ_* of op.h */
} Formula;
int64_t ag_formula(const Formula *f, const int64_t *sizes); /* sizes indexed by SZ_*; saturates at INT64_MAX */

typedef enum SlotKind {
    SLOT_POINTER, /* device address of tensor `index` */
    SLOT_STRIDE,  /* int64, elements: stride `dim` of tensor `index` */
    SLOT_SIZE,    /* int32: size `index` (SZ_*) */
    SLOT_FLOAT,   /* float: scalar parameter `index` */
    SLOT_INT,     /* int32: scalar parameter `index` */
    SLOT_VEC      /* int32: bit i set if tensor i can be moved by 16-byte pieces (base, strides and extent allow it) */
} SlotKind;
/* One field of the kernel's argument struct. */
typedef struct Slot {
    uint16_t kind, index, dim, offset; /* offset in bytes */
} Slot;

enum { META_TENSORS = 16, META_SCALARS = 32, META_SLOTS = 128, META_NAME = 64 };

typedef struct TensorMeta {
    char name[META_NAME];
    uint8_t rank, elem_bytes, optional, output;
    uint8_t dim[4]; /* SZ_* of each dim */
} TensorMeta;
typedef struct ScalarMeta {
    char name[META_NAME];
    uint8_t is_int, positive;
    uint8_t pad[6];
    double deflt;
} ScalarMeta;
typedef struct KernelMeta {
    char name[META_NAME]; /* extern "C" symbol */
    uint32_t threads, shared_bytes, param_bytes, nslot;
    Formula blocks; /* 1-D grid */
    Slot slot[META_SLOTS];
} KernelMeta;
/* A program: list of kernels run in order on one stream.  This version's programs have one. */
enum { META_KERNELS = 4 };
typedef struct ProgramMeta {
    uint32_t nkernel, ntensor, nscalar, group; /* group: Hq/Hkv pinned by the spec, 0 = any */
    char spec[META_NAME], arch[16];
    int32_t D, Dv, dtype;
    Formula workspace; /* bytes */
    TensorMeta tensor[META_TENSORS];
    ScalarMeta scalar[META_SCALARS];
    KernelMeta kernel[META_KERNELS];
} ProgramMeta;

/* ---- nvrtc.c */
typedef struct Nvrtc Nvrtc;
/* Finds the library without opening it: explicit path, $ATTNGEN_NVRTC, $CUDA_HOME, the loader's path, toolkit folders, Python wheels' nvidia/cu13/lib.
 * id: what distinguishes this compiler (real file name and size), part of the cache key; log (may be NULL) gets a line per place looked at. */
attngen_status ag_nvrtc_find(const char *explicit_path, char path[4096], char id[256], char *log, size_t nlog, Err *e);
attngen_status ag_nvrtc_open(Nvrtc **out, const char *path, Err *e);
void ag_nvrtc_close(Nvrtc *n);
void ag_nvrtc_version(const Nvrtc *n, int *major, int *minor);
typedef struct Compiled {
    void *image; /* malloc'ed */
    size_t size;
    char *log;   /* malloc'ed, NUL-terminated: ptxas resource report and warnings */
    int registers, spill_bytes; /* of the worst kernel, read from the ptxas report */
} Compiled;
/* ptx: PTX text instead of a cubin.  ATTNGEN_E_COMPILE: e has the head of the log.  A ptxas warning C75xx is ATTNGEN_E_COMPILE too. */
attngen_status ag_nvrtc_compile(Nvrtc *n, const char *source, const char *arch, bool ptx, Compiled *out, Err *e);
void ag_compiled_free(Compiled *c);

/* ---- cache.c: one file per entry, 128-bit XXH3 names, atomic publish */
typedef struct Cache Cache;
typedef struct CacheKey {
    uint8_t h[16];
} CacheKey;
/* dir NULL: from `env` (a copy of the environment's answers made by attngen_create); "" : none.  Never fails: an unusable folder gives a cache that
 * always misses, and one warning. */
typedef struct CacheEnv {
    const char *attngen_cache_dir, *xdg_cache_home, *home; /* NULL if unset */
} CacheEnv;
Cache *ag_cache_open(const char *dir, const CacheEnv *env, void (*warn)(void *, const char *), void *payload);
void ag_cache_close(Cache *c);
const char *ag_cache_dir(const Cache *c); /* "" if there is none */
CacheKey ag_cache_key(const char *source, size_t len, const char *arch, const char *nvrtc_id); /* + options, format version, attngen version */
typedef struct CacheEntry {
    ProgramMeta meta;
    void *cubin; /* malloc'ed */
    size_t size;
    int registers, spill_bytes;
} CacheEntry;
bool ag_cache_load(Cache *c, const CacheKey *key, CacheEntry *out);        /* false: a miss, also for a damaged entry (which is removed) */
void ag_cache_store(Cache *c, const CacheKey *key, const CacheEntry *e);   /* warns once per cache if it cannot */
attngen_status ag_cache_list(Cache *c, attngen_sink sink, void *payload);
attngen_status ag_cache_clear(Cache *c, size_t *removed);

/* ---- driver.c: libcuda.so.1 */
typedef struct Driver Driver;
attngen_status ag_driver_open(Driver **out, Err *e); /* once per process; shared; never closed */
typedef struct DeviceInfo {
    char name[128];
    int sm, sms, shared_max, driver_version;
    size_t memory;
} DeviceInfo;
attngen_status ag_driver_device(Driver *d, int ordinal, DeviceInfo *out, Err *e);
int ag_driver_count(Driver *d);
typedef struct Loaded Loaded; /* a cubin loaded with cuLibraryLoadData: valid in every context */
attngen_status ag_driver_load(Driver *d, const void *cubin, size_t size, const ProgramMeta *m, Loaded **out, Err *e);
void ag_driver_unload(Loaded *l);
/* Enqueue kernel `index`; params: its argument struct of meta.param_bytes. */
attngen_status ag_driver_launch(Loaded *l, int device, int index, uint32_t blocks, const void *params, void *stream, Err *e);

/* ---- launch.c: arguments -> argument struct -> launch */
typedef struct BoundArgs {
    const ProgramMeta *meta;
    int64_t size[8]; /* SZ_* */
    void *data[META_TENSORS];
    int64_t stride[META_TENSORS][4];
    double scalar[META_SCALARS];
    uint32_t vec; /* bit per tensor */
} BoundArgs;
/* Resolves names, checks what can be checked (missing q k v o, null data, strides of outputs that overlap, scale > 0), decides `vec`. */
attngen_status ag_args_bind(BoundArgs *out, const ProgramMeta *m, const int64_t *sizes, const attngen_arg *args, size_t nargs, Err *e);
void ag_args_pack(const BoundArgs *b, const KernelMeta *k, void *params); /* writes k->param_bytes */
void ag_args_explain(const BoundArgs *b, char *buf, size_t n);
#endif
