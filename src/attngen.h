/* attngen: an attention compiler.  The whole public interface.
 *
 * A *context* holds a target (a GPU or an architecture by name), the kernel cache and the last diagnostic.
 * A *program* is a compiled spec + schedule: immutable, shared by any number of threads, freed with attngen_program_free.
 * A *call* is a program bound to sizes; it is immutable after attngen_bind and may be launched from any number of threads.
 *
 * Conventions: out-parameters come first; every function that can fail returns attngen_status; free functions accept NULL.
 * The library never prints and never exits; it reads the environment once, in attngen_create.
 * Threads: one context is used by one thread at a time (its diagnostic is one buffer); everything else as said above. */
#ifndef ATTNGEN_H
#define ATTNGEN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTNGEN_VERSION_MAJOR  0
#define ATTNGEN_VERSION_MINOR  1
#define ATTNGEN_VERSION_PATCH  0
#define ATTNGEN_VERSION_STRING "0.1.0"

#if defined(_WIN32)
#define ATTNGEN_API
#else
#define ATTNGEN_API __attribute__((visibility("default")))
#endif

/* Values are fixed; new ones are appended.  attngen_exit_code maps them to the exit codes of the command line. */
typedef enum attngen_status {
    ATTNGEN_OK = 0,
    ATTNGEN_E_INVALID_ARG = -1, /* a call of this interface is wrong: null pointer, unknown name, size out of range */
    ATTNGEN_E_SPEC = -2,        /* the spec or the schedule is wrong; attngen_errmsg has file:line:column */
    ATTNGEN_E_UNSUPPORTED = -3, /* right, but not possible on this target */
    ATTNGEN_E_COMPILE = -4,     /* NVRTC refused the generated code: a defect of attngen */
    ATTNGEN_E_NO_NVRTC = -5,    /* NVRTC was needed and not found */
    ATTNGEN_E_DRIVER = -6,      /* no CUDA driver or device, or the driver reported an error */
    ATTNGEN_E_IO = -7,          /* file system */
    ATTNGEN_E_NOMEM = -8,
    ATTNGEN_E_CHECK = -9, /* a simulated kernel broke its own protocol, or a checked result is wrong */
    ATTNGEN_E_INTERNAL = -10
} attngen_status;

/* "ok", "invalid argument", ...: a static string. */
ATTNGEN_API const char *attngen_strerror(attngen_status s);
/* 0 fine; 1 check failed or internal; 2 usage; 3 spec or schedule; 4 not possible on this target; 5 NVRTC refused; 6 driver, device, files. */
ATTNGEN_API int attngen_exit_code(attngen_status s);
ATTNGEN_API const char *attngen_version(void);

typedef struct attngen_context attngen_context;
typedef struct attngen_program attngen_program;
typedef struct attngen_call attngen_call;
typedef struct attngen_mask attngen_mask;

/* ---- context */

typedef struct attngen_options {
    uint32_t version; /* ATTNGEN_OPTIONS_VERSION */
    /* "sm_80" ... "sm_90a".  NULL: that of `device`, sm_90a for compute capability 9.0, where a schedule that is for sm_90 and not for sm_90a is compiled
     * for sm_90; without a driver sm_90. */
    const char *arch;
    int device;            /* CUDA ordinal; used when a kernel is launched */
    const char *cache_dir; /* NULL: $ATTNGEN_CACHE_DIR, $XDG_CACHE_HOME/attngen, ~/.cache/attngen; "" : no disk cache */
    const char *nvrtc;     /* path of libnvrtc.so; NULL: searched, see attngen_doctor */
    /* Warnings (an unwritable cache, a slow path taken), one line each, no newline.  NULL: dropped. */
    void (*warn)(void *payload, const char *message);
    void *payload;
    /* From version 2 on.  1: programs of this context are debug-hang builds: a wait on an mbarrier that takes 2 s prints a line that names it, and the launch
     * fails instead of hanging.  For whoever edits schedules; slow.  Kernels without mbarriers stay as they are, with a warning. */
    int debug_hang;
    /* From version 3 on.  1: the first launch comes early.  Without a schedule, and with no kernel of it on disk, attngen_compile compiles the spec under a shipped schedule that takes
     * 0.3 to 0.6 of the time, where there is one (docs/schedule.md), while a thread of the library compiles it under the one that fits best, and puts that on disk.  Launches run that one from the moment
     * when it is there, also of calls that were bound before: results then change in their last bits, as the order of sums does.  See attngen_wait. */
    int quick_start;
} attngen_options;
#define ATTNGEN_OPTIONS_VERSION 3u /* 1 and 2 are taken too */
#define ATTNGEN_OPTIONS_INIT                                                                                                                         \
    { ATTNGEN_OPTIONS_VERSION, NULL, 0, NULL, NULL, NULL, NULL, 0, 0 }

ATTNGEN_API attngen_status attngen_create(attngen_context **out, const attngen_options *options /* NULL: defaults */);
ATTNGEN_API void attngen_destroy(attngen_context *ctx);
/* The whole diagnostic of the last failure in this context ("" if none); for spec errors all of them, with source lines and carets.
 * ctx NULL: why the last attngen_create of this thread failed. */
ATTNGEN_API const char *attngen_errmsg(const attngen_context *ctx);
/* The architecture in use, e.g. "sm_90". */
ATTNGEN_API const char *attngen_arch(const attngen_context *ctx);
/* 1 if a CUDA driver and the device of the options are usable; 0 if not, and then *why (may be NULL) says why. */
ATTNGEN_API int attngen_has_device(attngen_context *ctx, const char **why);

/* ---- compile: text in, program out */

typedef struct attngen_source {
    const char *name; /* used in diagnostics only, e.g. the file name */
    const char *text; /* need not end in NUL */
    size_t len;
} attngen_source;

/* A name bound at compile time: "D", "Dv" (head dims, 1..256), "dtype" (value 16: f16, 17: bf16), "group" (query heads per KV head; attngen_bind finds it out by itself),
 * "queries" (how many queries launches will have: for speed alone, any number works; attngen_bind sees to it by itself), or a scalar parameter of the spec. */
typedef struct attngen_dim {
    const char *name;
    double value;
} attngen_dim;
#define ATTNGEN_F16  16
#define ATTNGEN_BF16 17

/* Compiles, or finds in memory or on disk, the kernels of `spec` under `schedule` (NULL: the shipped one that fits).
 * D defaults to 128, Dv to D, dtype to bf16.  Where the kernel has too few registers under the shipped schedule that fits, one is taken under which it has enough (docs/schedule.md);
 * or least; attngen_program_info has its name.  On success *out owns one reference; the same inputs give the same program. */
ATTNGEN_API attngen_status attngen_compile(attngen_context *ctx, attngen_program **out, const attngen_source *spec, const attngen_source *schedule,
                                           const attngen_dim *dims, size_t ndims);
/* As attngen_compile, but stops at the CUDA text: needs neither NVRTC nor a driver.  attngen_simulate, attngen_reference and attngen_emit
 * (all but ptx and cubin) work on such a program; attngen_launch does not. */
ATTNGEN_API attngen_status attngen_lower(attngen_context *ctx, attngen_program **out, const attngen_source *spec, const attngen_source *schedule,
                                         const attngen_dim *dims, size_t ndims);
/* Waits for what is compiled behind a program of a context with quick_start; returns at once for others.  From then on calls bound to it run the same kernels, also into a graph that is
 * captured, and attngen_compile of the same inputs gives the program that takes over.  attngen_bind may choose another program for its sizes, with a compilation of its own behind it: then
 * wait for attngen_call_program of the call.  A call bound before stays with its first kernels if those that were meant had too few registers, and what was taken in their place needs more
 * workspace; attngen_explain says so.  A failure: there is none, and the program stays as it is.  ATTNGEN_E_UNSUPPORTED: in a fork.  Warnings of that compilation go to `warn` of ctx. */
ATTNGEN_API attngen_status attngen_wait(attngen_context *ctx, const attngen_program *program);
/* The last reference waits for a thread that compiles, and so does the end of the process. */
ATTNGEN_API void attngen_program_free(attngen_program *program);

/* A shipped spec or schedule by name ("causal", "mma_d128"); *out points to static text. */
ATTNGEN_API attngen_status attngen_shipped_spec(attngen_source *out, const char *name);
ATTNGEN_API attngen_status attngen_shipped_schedule(attngen_source *out, const char *name);
/* Names of what is shipped, NULL at and after the end. */
ATTNGEN_API const char *attngen_shipped_spec_name(size_t index);
ATTNGEN_API const char *attngen_shipped_schedule_name(size_t index);
ATTNGEN_API const char *attngen_known_arch(size_t index);

typedef enum attngen_artefact {
    ATTNGEN_EMIT_SPEC,     /* the spec as understood, printed from its syntax tree */
    ATTNGEN_EMIT_MATH,     /* Math IR after its last pass (or after `after_pass`) */
    ATTNGEN_EMIT_TILE,     /* Tile IR, likewise */
    ATTNGEN_EMIT_SCHEDULE, /* the closed schedule: every field, and who decided it */
    ATTNGEN_EMIT_CU,       /* the CUDA file */
    ATTNGEN_EMIT_PTX,      /* needs NVRTC */
    ATTNGEN_EMIT_CUBIN,    /* needs NVRTC */
    ATTNGEN_EMIT_TIMELINE, /* a model of one step of the key loop, the shared-memory map and the registers, as text */
    ATTNGEN_EMIT_TIMELINE_SVG
} attngen_artefact;
/* Called with consecutive pieces; returns 0 to go on, anything else stops with ATTNGEN_E_IO. */
typedef int (*attngen_sink)(void *payload, const void *data, size_t len);
/* after_pass: a pass name for MATH and TILE ("simplify", "hoist", "ranges", "online"; "tile", "split", "pipeline", "place"), else NULL. */
ATTNGEN_API attngen_status attngen_emit(attngen_context *ctx, const attngen_program *program, attngen_artefact what, const char *after_pass,
                                        attngen_sink sink, void *payload);

typedef struct attngen_info {
    uint32_t version; /* set by the caller to ATTNGEN_INFO_VERSION */
    const char *name, *arch, *schedule, *numerics;
    int D, Dv, dtype;
    int threads, shared_bytes;  /* of a program of several kernels: of the one with the most shared memory */
    int registers, spill_bytes; /* 0 until compiled */
    int from_disk_cache;
} attngen_info;
#define ATTNGEN_INFO_VERSION 1u
ATTNGEN_API attngen_status attngen_program_info(const attngen_program *program, attngen_info *info);

/* ---- bind: sizes in, call out */

/* Sizes of one call.  Any B, Hq, Hkv, Sq, Sk >= 0 with Hq a multiple of Hkv; 0 anywhere: a launch that writes what there is to write.  Positions have 32 bits:
 * Sq, Sk and |offset| are at most 2^29, offset + Sq is at most 2^29. */
typedef struct attngen_shape {
    int64_t B, Hq, Hkv, Sq, Sk;
    /* Position of query row 0 minus that of key 0.  ATTNGEN_ALIGN_END: Sk - Sq, the last query sees as far as the last key. */
    int64_t offset;
} attngen_shape;
#define ATTNGEN_ALIGN_END INT64_MIN

/* Where no schedule was given, sizes may ask for another shipped one (few queries under a mask), and with block lists for another order of them (below 1024 queries);
 * attngen_bind then compiles that, or finds it in memory or on disk.  If it cannot be had, the program itself runs and `warn` hears of it.  A spec with branches
 * compiled for no number of query heads per KV head in particular is compiled for that of the shape. */
ATTNGEN_API attngen_status attngen_bind(attngen_context *ctx, attngen_call **out, const attngen_program *program, const attngen_shape *shape);
ATTNGEN_API void attngen_call_free(attngen_call *call);
/* The program that the call was bound to, which lives as long as the call: it is launched, or with quick_start what takes over from it. */
ATTNGEN_API const attngen_program *attngen_call_program(const attngen_call *call);
/* Exact bytes of device workspace that attngen_launch needs for this call: 4 for each kernel whose persistent blocks share a counter of tiles, as for sm_90a with
 * a mask; the map of key tiles, where the mask has one; and for a spec with branches, a prologue or dot what its kernels hand on to each other. */
ATTNGEN_API size_t attngen_workspace(const attngen_call *call);

#define ATTNGEN_MOST_DIMS 6 /* of a tensor */

/* A tensor that the call takes. */
typedef struct attngen_arg_info {
    const char *name, *type; /* "f16" "bf16" "f32" "i32" "i64" "u8" "bool"; both live as long as the call */
    int rank, optional, output;
    int64_t extent[ATTNGEN_MOST_DIMS]; /* -1: a part of the batch, whose size is a scalar of the launch, or what those leave of B */
} attngen_arg_info;
/* Tensor `index` of those that the call takes: o and, as far as the spec reads them, q, k, v and its captured tensors; lse and other values of rows where there are such.  0: there are no more. */
ATTNGEN_API int attngen_call_tensor(const attngen_call *call, size_t index, attngen_arg_info *info);

/* ---- launch */

/* One argument: a tensor (data, dtype, strides in elements for its dims in order) or a scalar.
 *   "q" [B, Hq, Sq, D]   "k" [B, Hkv, Sk, D]   "v" [B, Hkv, Sk, Dv]   "o" [B, Hq, Sq, Dv]   in the program's dtype, any strides (also 0 and negative for inputs).
 *                      Programs of mma.family wgmma (the default for sm_90a) move them by TMA, which wants the base 16-byte aligned, and of the dims with
 *                      more than one element the last with stride 1 and the others with a positive multiple of 8 below 2^39.  Anything else goes to a
 *                      companion of the program, compiled for sm_90; see attngen_launch.
 *   "lse" [B, Hq, Sq] f32, optional: natural log of the softmax denominator, -inf for a row that sees no key; not of specs without one softmax
 *   "max", "mean_weight" [B, Hq, Sq] f32, optional: of specs whose `rows` has them: the largest score of the row, -inf if it sees no key; the mean of `weigh`, 0 then
 *   captured tensors of the spec, by name: the type and dims that it gives them, any strides.  Under a schedule with staging.elements those that come in tiles go
 *                      by TMA, too, with strides that may also be 0, or else to a second companion, for the same architecture
 *   "scale" and the spec's scalar params: optional, with defaults; `scale` must be positive and finite */
typedef struct attngen_arg {
    const char *name;
    void *data; /* tensors: device memory for launch, host memory for reference and simulate */
    int64_t stride[ATTNGEN_MOST_DIMS];
    double scalar; /* scalars only, with data == NULL */
} attngen_arg;

/* Enqueues the kernels on `stream` (a CUstream / cudaStream_t; NULL: the legacy default stream) of the current context, or of the device's primary
 * context if none is current.  Allocates nothing, does not synchronise, may be captured into a CUDA graph.
 * workspace: attngen_workspace bytes, 256-byte aligned, all 0 before its first launch.  Each launch leaves it fit for the next, of any call of the program, and no two that may run at once (on several
 * streams, or copies of a graph) may share it.  After a launch that failed on the device it must be cleared again.
 * The first launch of a program whose tensors TMA cannot move makes its companion: it compiles (about 0.3 s, for the same architecture 1 s; from the disk cache if it is there) and loads
 * it under a lock, and must not be captured.  Call attngen_explain with the same arguments, or launch once, before the capture; every later launch is as
 * said above.  If the companion cannot be made the launch fails, and the next one tries again.  It may use less of the workspace. */
ATTNGEN_API attngen_status attngen_launch(const attngen_call *call, const attngen_arg *args, size_t nargs, void *workspace, size_t workspace_bytes,
                                          void *stream);
/* ---- a mask that many launches share, as the layers of a model do
 *
 * Where a mask reads captured tensors by query or key, or hides tiles of keys one by one, a kernel before the attention maps the tiles that hold a visible key, into the workspace.
 * attngen_launch makes the map anew each time.  A mask is the map made once:
 *   attngen_mask_make(&mask, call, args of the mask, ..., workspace, bytes, stream);
 *   for each layer: attngen_mask_launch(mask, q, k, v, o, ..., stream);
 *   attngen_mask_free(mask);
 * It makes for every call, also for one whose program has no such kernel. */

/* Enqueues the kernels that make the map alone.  args: the captured tensors and scalars that the mask reads; others may be among them, and are not looked at.
 * From here to attngen_mask_free the workspace is the mask's, and no other launch may use it; what the tensors hold must not change, which nobody can check.
 * The call has to live as long.  Allocates a little host memory. */
ATTNGEN_API attngen_status attngen_mask_make(attngen_mask **out, const attngen_call *call, const attngen_arg *args, size_t nargs, void *workspace,
                                             size_t workspace_bytes, void *stream);
/* As attngen_launch of the mask's call in its workspace, without those kernels; behind attngen_mask_make on the same stream, or ordered behind it.  What the mask was
 * made of may be left out of args; if it is given it has to be the same tensor or number, else ATTNGEN_E_INVALID_ARG. */
ATTNGEN_API attngen_status attngen_mask_launch(const attngen_mask *mask, const attngen_arg *args, size_t nargs, void *stream);
ATTNGEN_API void attngen_mask_free(attngen_mask *mask);

/* What the last failure of attngen_launch in this thread was, or what attngen_explain says of the last launch: 0 or more notes on paths taken. */
ATTNGEN_API const char *attngen_launch_errmsg(void);
/* Says in one line how `args` would be moved, "" if every tensor goes by TMA or 16-byte pieces; writes at most n bytes with NUL.
 *   q: element-wise loads, stride of d is 2
 *   pair: stride of q is 250, TMA takes multiples of 8 from 0 to 549755813880: the kernel that reads element by element (wgmma_d128_element) runs
 *   k: stride of k is 65, TMA takes multiples of 8 from 8 to 549755813880: the portable kernel (mma_d128) runs; k: element-wise loads, stride of k is 65, no multiple of 8
 * Makes the companion if they need it, as the launch would.  After a failure, which a launch would have too, it says why. */
ATTNGEN_API attngen_status attngen_explain(const attngen_call *call, const attngen_arg *args, size_t nargs, char *buf, size_t n);

/* The same call on host memory.  reference: double precision straight from the spec; simulate: the Tile IR with its tiles, rounding and
 * protocol checks (ATTNGEN_E_CHECK and attngen_errmsg if the kernel breaks them). */
ATTNGEN_API attngen_status attngen_reference(attngen_context *ctx, const attngen_call *call, const attngen_arg *args, size_t nargs);
ATTNGEN_API attngen_status attngen_simulate(attngen_context *ctx, const attngen_call *call, const attngen_arg *args, size_t nargs);

/* ---- the cache and the machine */

/* Directory in use, "" if there is none. */
ATTNGEN_API const char *attngen_cache_path(const attngen_context *ctx);
/* Calls sink once per entry with one line of text. */
ATTNGEN_API attngen_status attngen_cache_list(attngen_context *ctx, attngen_sink sink, void *payload);
/* Removes every entry; *removed (may be NULL) counts them. */
ATTNGEN_API attngen_status attngen_cache_clear(attngen_context *ctx, size_t *removed);
/* What was found on this machine and where: NVRTC, driver, devices, cache; text lines to sink. */
ATTNGEN_API attngen_status attngen_doctor(attngen_context *ctx, attngen_sink sink, void *payload);

#ifdef __cplusplus
}
#endif
#endif
