/* api.h: what stands behind the handles of attngen.h (api.c, api_bind.c). */
#ifndef AG_API_H
#define AG_API_H

#include <pthread.h>
#include <stdatomic.h>

#include "compile.h"

/* The environment, copied by attngen_create; the names are in api.c. */
typedef enum EnvVar {
    ENV_CACHE_DIR,
    ENV_XDG_CACHE_HOME,
    ENV_HOME,
    ENV_NVRTC,
    ENV_CUDA_HOME,
    ENV_LD_LIBRARY_PATH,
    ENV_VIRTUAL_ENV,
    ENV_CONDA_PREFIX,
    ENV_COUNT
} EnvVar;

/* NVRTC as far as it was needed: found by path for the cache key, opened to compile. */
typedef struct NvrtcState {
    bool sought;
    attngen_status status; /* of the search */
    Err why;
    char path[4096], id[256];
    Nvrtc *open; /* NULL until something is compiled */
} NvrtcState;

/* A program by the hash of all that it was made from. */
typedef struct Known {
    uint64_t key[2];
    uint64_t used; /* clock of the last use */
    attngen_program *program;
} Known;

/* Programs that a context remembers; the least recently used one makes room.  Small enough that looking through all keys takes 0.1 us. */
enum { MAX_KNOWN = 128 };

struct attngen_context {
    char arch[16];
    const char *arch_from;  /* who decided it, in words */
    const Target *portable; /* without a given arch: the target for schedules that are for it, and not for arch; NULL: none */
    int device;
    bool debug_hang, quick_start;
    bool alone, unstaged; /* as in Request, of a companion, whose callers have the workspace of another program */
    int branches;         /* Request.branches, of a companion likewise */
    void (*warn)(void *, const char *);
    void *payload;
    char *nvrtc_option;
    char *env[ENV_COUNT];
    Cache *cache;
    NvrtcState nvrtc;
    Buf message;
    Err no_device;
    uint64_t clock;
    int nknown;
    Known known[MAX_KNOWN];
};

/* What attngen_options say of a program's context, which may be gone by the time another program is made of it.  NULL: not known. */
typedef struct Origin {
    char *cache_dir, *nvrtc;
} Origin;

typedef struct Quick Quick; /* api_quick.c */

struct attngen_program {
    atomic_int refs;
    Compilation *lowered;
    void *image; /* cubin; NULL: lowered only */
    size_t size;
    PtxasReport report;
    bool tuned; /* as of Compiled */
    bool from_disk;
    pthread_mutex_t lock; /* of the three below while they are NULL; they never change after that */
    _Atomic(Loaded *) loaded;
    _Atomic(attngen_program *) portable, unstaged; /* its companions, see api_portable.c */
    Origin origin;                                 /* if it may have one, or another is compiled behind it */
    Quick *quick;                                  /* NULL, or the program that takes over from it; does not change once others see the program */
};

/* A program that a launch runs, and what a call of it needs. */
typedef struct Runner {
    attngen_program *program;
    Loaded *loaded;
    size_t workspace;
    uint64_t rank4; /* bit per tensor that should go by 16-byte pieces */
} Runner;

struct attngen_call {
    attngen_program *program;
    int device;
    int64_t size[SZ_COUNT];
    size_t workspace; /* also for the program that takes over */
    uint64_t rank4;   /* of program, as in Runner */
    Loaded *loaded;   /* NULL: see status and why */
    attngen_status status;
    Err why;
};

struct attngen_mask {
    const attngen_call *call;
    Runner runner; /* that has made the map: maps of others differ */
    void *workspace;
    size_t bytes;
    uint64_t tensors, scalars; /* a bit for each that it was made of, which are in b */
    BoundArgs b;
};

/* ---- api_bind.c: launches, whose diagnostic is that of attngen_launch_errmsg */
attngen_status ag_launch_fail(attngen_status s, const char *fmt, ...) PRINTF(2, 3);
attngen_status ag_call_check(const attngen_call *call, const void *workspace, size_t bytes); /* as a launch would, but for its arguments */
Runner ag_call_runner(const attngen_call *call, Err *note); /* now; note: what is worth noting about it, may be NULL */
attngen_status ag_call_launch(const attngen_call *call, const Runner *runner, const attngen_arg *args, size_t nargs, LaunchPart part, void *workspace,
                              size_t bytes, void *stream); /* runner NULL: that of now */

/* Sets the diagnostic of ctx (NULL: of this thread) and returns s. */
attngen_status ag_fail(attngen_context *ctx, attngen_status s, const char *fmt, ...) PRINTF(3, 4);
attngen_status ag_fail_err(attngen_context *ctx, attngen_status s, const Err *e);
void ag_warn(const attngen_context *ctx, const char *fmt, ...) PRINTF(2, 3);

NvrtcEnv ag_context_nvrtc_env(const attngen_context *ctx);
/* What NVRTC is to make of c, for ag_nvrtc_compile. */
unsigned ag_nvrtc_flags(const Compilation *c, bool ptx);
/* NVRTC's path and id, searched once. */
attngen_status ag_context_find_nvrtc(attngen_context *ctx);
/* And opened. */
attngen_status ag_context_open_nvrtc(attngen_context *ctx);
/* A context for `arch`, which looks neither at the environment nor for a device. */
attngen_status ag_context_private(attngen_context **out, const char *arch, const Origin *origin, Err *e);

attngen_program *ag_program_ref(const attngen_program *program);
/* Loads the cubin for every call of the program, once; a failure is tried again by the next call.  driver NULL: that of the process. */
attngen_status ag_program_load(attngen_program *p, Driver *driver, int device, Loaded **out, Err *e);
/* ---- api_portable.c
 * The companions of p, a program with tensor maps: the same spec for the target's portable one under the shipped schedule, which takes any tensor; and, for
 * elements of captured tensors that no map describes, under the shipped one of p's target that reads each by itself.  One is
 * made by the first call that wants it and kept with p; a failure is tried again by the next.  Compiled if p is, and loaded if `loaded`, that of p, is not
 * NULL.  Takes no lock once it is there. */
typedef enum Companion { COMPANION_NONE, COMPANION_PORTABLE, COMPANION_UNSTAGED } Companion;
Companion ag_companion_for(const BoundArgs *b); /* which of them takes what p does not */
const char *ag_companion_words(Companion which);
attngen_status ag_program_companion(attngen_program *p, Companion which, const Loaded *loaded, int device, attngen_program **out, Err *e);
/* ---- api_quick.c
 * Has a thread compile `next`, a program without its image, for p, which has its origin and which nobody else sees yet.  true: p owns `next`. */
bool ag_quick_begin(attngen_program *p, attngen_program *next, int device, bool debug_hang);
void ag_quick_free(Quick *q); /* waits for the thread; takes NULL */
/* The program that takes over from p, which owns it, loaded if there is a driver; NULL: it is not there yet, or there is none. */
attngen_program *ag_quick_next(const attngen_program *p);
const ProgramMeta *ag_quick_meta(const attngen_program *p); /* what it should be like, from the start; NULL: there is none */
void ag_quick_note(const attngen_program *p, Err *e);       /* why p runs, which has one */
#endif
