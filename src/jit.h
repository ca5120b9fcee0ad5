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
/* Writes the sentence (cut with "..." if too long; e may be NULL) and returns s. */
attngen_status ag_err(Err *e, attngen_status s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- meta.c: what a kernel needs to be launched: plain data, stored in the cache as it is (format version in cache.c).
 * Its bytes are part of the cache key: zero the whole struct before filling it. */

/* Integer formula over the sizes, in postfix. */
typedef enum FormulaOp { FO_END, FO_CONST, FO_SIZE, FO_ADD, FO_SUB, FO_MUL, FO_CEILDIV, FO_MIN, FO_MAX } FormulaOp;
typedef struct Formula {
    int32_t op[24]; /* FO_CONST and FO_SIZE are followed by their operand; SIZE operands are SZ_* of op.h */
} Formula;
/* sizes indexed by SZ_*; every step saturates at the int64 limits.  Division by <= 0, a stack that runs empty or is left with other than one
 * value: INT64_MAX. */
int64_t ag_formula(const Formula *f, const int64_t *sizes);

typedef enum SlotKind {
    SLOT_POINTER,   /* device address of the kernel's tensor `index` */
    SLOT_STRIDE,    /* int64, elements: stride `dim` of the kernel's tensor `index` */
    SLOT_SIZE,      /* int32: size `index` (SZ_*) */
    SLOT_FLOAT,     /* float: scalar parameter `index` */
    SLOT_INT,       /* int32: scalar parameter `index` */
    SLOT_TMAP,      /* 128 bytes, 64-byte aligned: tensor map `index` of the program (TmapMeta) */
    SLOT_WORKSPACE, /* device address of the kernel's counter in the workspace */
    SLOT_VEC,       /* int32: bit i set if the kernel's tensor i can be moved by 16-byte pieces (base, strides and extent allow it) */
    SLOT_LOG2E      /* float: scalar parameter `index` times log2(e) */
} SlotKind;
/* One field of the kernel's argument struct. */
typedef struct Slot {
    uint16_t kind, index, dim, offset; /* offset in bytes */
} Slot;

enum { META_TENSORS = 64, META_SCALARS = 32, META_SLOTS = 128, META_NAME = 64, META_PARAM_BYTES = 4096, META_THREADS = 1024 };
enum { META_SIZES = 8 /* SZ_* of op.h */, META_DERIVED = 40, META_KERNEL_TENSORS = 26, META_NO_TENSOR = 0xFF, META_CONSTANT = 0xFF };

/* A tensor of the program: an argument, or a buffer of the workspace, contiguous. */
typedef struct TensorMeta {
    char name[META_NAME];
    uint8_t rank, elem_bytes, optional, output;
    uint8_t buffer;
    uint8_t rows_first;             /* buffer: dim 2 outside dim 1, so that the heads of a row lie side by side */
    uint8_t dim[ATTNGEN_MOST_DIMS]; /* extent of each dim: SZ_*, from META_SIZES on a derived size; META_CONSTANT: extent below */
    int32_t constant[ATTNGEN_MOST_DIMS];
} TensorMeta;
typedef struct ScalarMeta {
    char name[META_NAME];
    uint8_t is_int, positive, bound; /* bound: its value is in the code */
    uint8_t part;                    /* the size of a part of the batch: B is a multiple of the product of them all */
    uint8_t pad[4];
    double deflt;
} ScalarMeta;
/* How a kernel moves a tensor by TMA, in panels of 64 channels with 128-byte swizzle; elements past the extents read as 0.  panels 0: one at a time, map
 * (d, s, h, b), box 64 x box_rows x 1 x 1.  Else all `panels` of a tile, which make up the tensor's rows, at once: map (64, s, panel, h, b), box 64 x box_rows x panels.
 * pack above 1: box_rows are pack heads of box_rows / pack rows: map (d, h, s, b), box 64 x pack x box_rows / pack x 1, or (64, h, s, panel, b).
 * box_cols above 0: a captured tensor, its last dims in the place of (d, s, h, b), those that it has not of extent 1; box box_cols x box_rows x 1 x 1, with one row
 * without swizzle. */
typedef struct TmapMeta {
    uint8_t tensor, panels;
    uint16_t box_rows;
    uint16_t box_cols, pack;
} TmapMeta;
enum { META_TMAPS = 24, TMAP_BYTES = 128 };
typedef struct KernelMeta {
    char name[META_NAME]; /* extern "C" symbol */
    uint32_t threads, shared_bytes, param_bytes, nslot;
    uint32_t per_sm, pad; /* most blocks per SM of a persistent kernel, which go on from tile to tile; 0: a block per tile */
    uint8_t keys;         /* the size that SZ_SK is for this kernel: SZ_SK, or a derived one */
    uint8_t counter;
    uint8_t
        chunk; /* 0: launched once; else the derived size that is how many queries one launch has: it and its neighbours of the same size run for each so many in turn */
    uint8_t mask;                        /* it makes the tile map, out of what the mask reads alone */
    uint8_t tensor[META_KERNEL_TENSORS]; /* the program's tensor for each of its own, which bits of SLOT_VEC count; META_NO_TENSOR: null */
    Formula blocks;                      /* 1-D grid; of a persistent kernel: tiles */
    Slot slot[META_SLOTS];
} KernelMeta;
/* A program: list of kernels run in order on one stream. */
enum {
    META_KERNELS = 36
}; /* at least those of a prologue (2), 8 derived tensors, 4 branches of 6 (forced blocks, three that invert lists, attention, merge), and the output */
typedef struct ProgramMeta {
    uint32_t nkernel, ntensor, nscalar, group; /* group: Hq/Hkv pinned by the spec, 0 = any */
    char spec[META_NAME], arch[16];
    int32_t D, Dv, dtype;
    uint32_t nderived;
    Formula derived[META_DERIVED]; /* sizes beyond SZ_*, of those */
    uint32_t ntmap, pad;
    TmapMeta tmap[META_TMAPS];
    TensorMeta tensor[META_TENSORS];
    ScalarMeta scalar[META_SCALARS];
    KernelMeta kernel[META_KERNELS];
} ProgramMeta;
/* Whether every count, index, offset and name of m is in range, so that launch.c may use it unchecked. */
bool ag_meta_valid(const ProgramMeta *m);

/* ---- nvrtc.c */
typedef struct Nvrtc Nvrtc;
/* Copies of the environment's answers, made by attngen_create; NULL if unset. */
typedef struct NvrtcEnv {
    const char *attngen_nvrtc, *cuda_home, *ld_library_path, *virtual_env, *conda_prefix, *home;
} NvrtcEnv;
/* Finds the library by path, without opening it: explicit path, $ATTNGEN_NVRTC (a file or a folder; if one is given, nothing else is looked at),
 * $CUDA_HOME, nvrtc/ beside the program or library, the loader's path, toolkit folders, Python wheels.  The table is in nvrtc_find.c.
 * id: what distinguishes this compiler (real file name, size, a hash of its ends), part of the cache key.
 * log (may be NULL) gets a line per place looked at. */
attngen_status ag_nvrtc_find(const char *explicit_path, const NvrtcEnv *env, char path[4096], char id[256], char *log, size_t nlog, Err *e);
/* Options that change the result, without the architecture; ends with NULL.  Whether one is left out depends on the
 * version of NVRTC and the architecture alone, which are in the key too. */
extern const char *const ag_nvrtc_options[];
/* 12.3 or newer, else ATTNGEN_E_NO_NVRTC.  ag_nvrtc_close leaves the library itself loaded. */
attngen_status ag_nvrtc_open(Nvrtc **out, const char *path, Err *e);
void ag_nvrtc_close(Nvrtc *n);
void ag_nvrtc_version(const Nvrtc *n, int *major, int *minor);
enum { COMPILER_STACK = 16 << 20 }; /* bytes, of a thread that compiles, as NVRTC recurs */
/* What ptxas says of a text: of the worst of its kernels. */
typedef struct PtxasReport {
    int registers, spill_bytes; /* per thread, stores + loads */
    bool serialised;            /* one wgmma waits for the one before (C7511, C7512), since registers are short */
} PtxasReport;
typedef struct Compiled {
    void *image; /* malloc'ed */
    size_t size;
    char *log;          /* malloc'ed, NUL-terminated: ptxas resource report and warnings */
    bool tuned;         /* this NVRTC took every option of ag_nvrtc_options that is meant for the arch: shipped schedules do not spill */
    PtxasReport report; /* all 0 for PTX */
} Compiled;
enum {
    NVRTC_PTX = 1, /* PTX text (NUL-terminated, size without it) instead of a cubin */
    NVRTC_SLOW = 2 /* what ptxas warns of by C75xx (serialised wgmma, ignored setmaxnreg) is meant to be: no error.  For debug-hang builds alone. */
};
/* flags: of the above.  ATTNGEN_E_COMPILE: e has the head of the log, out->log all of it; a warning C75xx of ptxas is one, but for those that report.serialised is of.  ATTNGEN_E_UNSUPPORTED: this NVRTC does not know the architecture.
 * *out is to be freed whatever is returned. */
attngen_status ag_nvrtc_compile(Nvrtc *n, const char *source, const char *arch, unsigned flags, Compiled *out, Err *e);
void ag_compiled_free(Compiled *c);
/* Reads a ptxas report.  warning (may be NULL) gets the first line with another C75xx than those of `serialised`, "" if there is none. */
PtxasReport ag_ptxas_report(const char *log, char *warning, size_t n);

/* ---- image.c: the code of a program, as one cubin or several in one block of memory */
typedef struct ImageCubin {
    const void *data;
    size_t size;
} ImageCubin;
/* Compiles 1 to META_KERNELS texts side by side (NVRTC 12.3 and newer does; each is waited for) into out->image; the rest of *out is of the worst of them.  An error is that of the
 * first text that has one, *failed its number.  *out is to be freed whatever is returned. */
attngen_status ag_image_compile(Nvrtc *n, const char *const *text, int ntext, const char *arch, unsigned flags, Compiled *out, int *failed, Err *e);
/* The cubins of an image, in it; how many, 0 if it is none. */
int ag_image_cubins(const void *image, size_t size, ImageCubin out[META_KERNELS]);
bool ag_cubin_has(const ImageCubin *c, const char *kernel); /* false, too, where c is damaged */

/* ---- cache.c: one file per entry, 128-bit XXH3 names, atomic publish */
typedef struct Cache Cache;
typedef struct CacheKey {
    uint8_t h[16];  /* XXH3-128 of text: the name of the entry */
    char text[768]; /* every field in clear, one "name value" a line; source and metadata as length and XXH3-128.  Compared on load. */
} CacheKey;
/* dir NULL: from `env` (a copy of the environment's answers made by attngen_create); "" (also $ATTNGEN_CACHE_DIR=""): none.  Never fails: an unusable
 * folder gives a cache that always misses, and one warning.  The folder is made by the first store. */
typedef struct CacheEnv {
    const char *attngen_cache_dir, *xdg_cache_home, *home; /* NULL if unset */
} CacheEnv;
/* NULL: out of memory; every function below takes NULL. */
Cache *ag_cache_open(const char *dir, const CacheEnv *env, void (*warn)(void *, const char *), void *payload);
void ag_cache_close(Cache *c);
const char *ag_cache_dir(const Cache *c); /* "" if there is none */
/* Of everything that the entry depends on: these, ag_nvrtc_options, the format version and the version of attngen. */
CacheKey ag_cache_key(const char *source, size_t len, const ProgramMeta *meta, const char *arch, const char *nvrtc_id);
typedef struct CacheEntry {
    ProgramMeta meta;
    void *cubin; /* malloc'ed */
    size_t size;
    PtxasReport report;
    bool tuned; /* as of Compiled */
} CacheEntry;
bool ag_cache_load(Cache *c, const CacheKey *key, CacheEntry *out);       /* false: a miss, also for a damaged entry (which is removed) */
void ag_cache_store(Cache *c, const CacheKey *key, const CacheEntry *e);  /* warns once per cache if it cannot */
attngen_status ag_cache_list(Cache *c, attngen_sink sink, void *payload); /* a line with '\n' per entry, sorted by name */
attngen_status ag_cache_clear(Cache *c, size_t *removed);

/* ---- driver.c: libcuda.so.1; its functions are in cuda_api.h */
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
/* m must outlive *out.  Loads the kernels into the current context (the primary one of `device` if none is current), so that the first launch
 * there may be captured into a graph; on another device the first launch does that.  ATTNGEN_E_UNSUPPORTED: the device cannot run m->arch. */
attngen_status ag_driver_load(Driver *d, int device, const void *image, size_t size, const ProgramMeta *m, Loaded **out, Err *e);
/* From now on this thread may load while others capture graphs; in the mode that it begins with, loading would spoil what they capture. */
attngen_status ag_driver_load_beside_captures(Driver *d, Err *e);
void ag_driver_unload(Loaded *l);
Driver *ag_loaded_driver(const Loaded *l); /* which has loaded it */
/* Enqueues kernel `index` in the current context, or in the primary one of `device` if none is current; params: its argument struct of param_bytes.
 * blocks 0: nothing is launched.  Allocates nothing, takes no lock, does not synchronise. */
attngen_status ag_driver_launch(Loaded *l, int device, int index, uint32_t blocks, const void *params, void *stream, Err *e);
/* A tensor map before the driver encodes it (the rest is the same for all, see TmapMeta).  No padding: compared as bytes. */
typedef struct TmapArgs {
    void *data;                 /* NULL: nothing is read through this map, which is then all zeros */
    uint64_t dim[4], stride[3]; /* d s h b, in elements; s h b, in bytes */
    uint16_t box_rows, box_cols;
    uint32_t dtype;        /* ATTNGEN_F16 or ATTNGEN_BF16 */
    uint32_t panels, pack; /* of TmapMeta */
} TmapArgs;
/* Encodes n of them, TMAP_BYTES each, 64-byte aligned.  Context and costs as of ag_driver_launch.  m->ntmap of l must not be 0. */
attngen_status ag_driver_tmaps(Loaded *l, int device, int n, const TmapArgs *args, void *maps, Err *e);

/* ---- launch.c: arguments -> argument struct -> launch */
typedef struct BoundArgs {
    const ProgramMeta *meta;
    int64_t size[META_SIZES + META_DERIVED];
    void *data[META_TENSORS]; /* of buffers until ag_args_place: their place in the workspace */
    int64_t stride[META_TENSORS][ATTNGEN_MOST_DIMS];
    double scalar[META_SCALARS];
    uint64_t vec; /* bit per tensor */
    void *workspace;
} BoundArgs;
/* B, Hq, Hkv in 0..INT32_MAX, Sq, Sk in 0..2^29, |off| <= 2^29, off + Sq <= 2^29, D and Dv those of m, the group, the grid of every kernel.  For
 * attngen_bind. */
attngen_status ag_sizes_check(const ProgramMeta *m, const int64_t *sizes, Err *e);
/* Resolves names, checks what can be checked (missing q k v o, null data, strides of outputs that overlap, scale > 0), decides `vec`.
 * sizes: checked before by ag_sizes_check. */
attngen_status ag_args_bind(BoundArgs *out, const ProgramMeta *m, const int64_t *sizes, const attngen_arg *args, size_t nargs, Err *e);
/* The same where `tensors` alone, a bit each, have to be there, and no others are looked at. */
attngen_status ag_args_bind_some(BoundArgs *out, const ProgramMeta *m, const int64_t *sizes, const attngen_arg *args, size_t nargs, uint64_t tensors,
                                 Err *e);
/* The exact bytes of workspace that these sizes need: counters, then buffers. */
int64_t ag_workspace_bytes(const ProgramMeta *m, const int64_t *sizes);
int64_t ag_tensor_extent(const ProgramMeta *m, const int64_t *sizes, int tensor, int dim); /* elements of a dim */
int64_t ag_workspace_counters(const ProgramMeta *m);                                       /* the bytes of them, which every launch leaves 0 */
/* Where in the workspace buffer `tensor` begins. */
int64_t ag_workspace_place(const ProgramMeta *m, const int64_t *sizes, int tensor);
/* Puts the buffers into the workspace. */
void ag_args_place(BoundArgs *b, void *workspace);
/* Sizes as kernel k has them. */
void ag_kernel_sizes(const BoundArgs *b, const KernelMeta *k, int64_t sizes[META_SIZES]);
/* Queries of each launch of k, all but the last. */
int64_t ag_kernel_chunk(const BoundArgs *b, const KernelMeta *k);
/* An argument with rows of D or Dv channels: q, k, v, o, and captured tensors that are keys or values. */
bool ag_has_channels(const TensorMeta *t);
/* Whether tensor maps describe all tensors that the program reads by TMA; and (rows) those that are no elements of captured tensors. */
bool ag_args_mappable(const BoundArgs *b);
bool ag_args_rows_mappable(const BoundArgs *b);
/* Launches the kernels of b->meta, which is that of l, in order on `stream`: all, those that make the tile map, or the others; b is mappable.  Tensor maps equal to those of this thread's last launch are reused. */
typedef enum LaunchPart { LAUNCH_ALL, LAUNCH_MASK, LAUNCH_REST } LaunchPart;
attngen_status ag_launch(Loaded *l, const BoundArgs *b, LaunchPart part, int device, void *stream, Err *e);
/* For the launch of k whose first query is row `first`: writes k->param_bytes; tensor maps are left zero. */
void ag_args_pack(const BoundArgs *b, const KernelMeta *k, int64_t first, void *params);
/* "q: element-wise loads, stride of d is 2; o: ..."; "" if every tensor of rank 4 goes by 16-byte pieces or by TMA. */
void ag_args_explain(const BoundArgs *b, char *buf, size_t n);
/* "q: stride of d is 2, TMA takes 1; k: ..."; "" if b is mappable. */
void ag_args_unmapped(const BoundArgs *b, char *buf, size_t n);
/* How one tensor is moved, or why it cannot be: "q: TMA", "q: 16-byte pieces", or as the two above. */
void ag_args_way(const BoundArgs *b, int tensor, char *buf, size_t n);
#endif
