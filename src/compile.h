/* compile.h: texts in, program out; the list of passes (compile.c). */
#ifndef AG_COMPILE_H
#define AG_COMPILE_H

#include "host.h"
#include "tile_ir.h"

/* Facts about the IRs that passes make, need and break; checked in debug builds. */
enum {
    FACT_LOWERED = 1 << 0,   /* Math IR is there */
    FACT_SIMPLE = 1 << 1,    /* folded; exponentials are base 2, positive factors outside of maxima */
    FACT_AXES = 1 << 2,      /* Node.axes is right */
    FACT_RANGE = 1 << 3,     /* Math.range is right */
    FACT_STREAM = 1 << 4,    /* no reduction over k is left; streams hold them */
    FACT_TILED = 1 << 5,     /* Tile IR is there, synchronous and single-stage */
    FACT_SPLIT = 1 << 6,     /* masked and plain steps are told apart */
    FACT_PIPELINED = 1 << 7, /* copies are asynchronous and ordered by waits and barriers */
    FACT_DIVIDED = 1 << 8,   /* Val.divides is set */
    FACT_PLACED = 1 << 9     /* shared-memory map, swizzles and arguments are set */
};

/* One function being compiled. */
typedef struct Fn {
    Diag *d;
    const Spec *spec;
    const Schedule *sched; /* closed */
    const Target *target;
    Math *math;
    Kernel *kernel;
    unsigned facts;
    const Branch *branch; /* whose plain spec `spec` is; NULL */
    const Spec *program;  /* the whole spec, and the number of the branch in it */
    int number;
    bool gather; /* its listed blocks are visited block by block */
    bool fused;  /* its kernel ends with the program's output */
    bool no_lse; /* nobody asks for the LSE of its rows, which in others costs nothing (without it ptxas spills at D 128 on sm_80) */
    int united;  /* else: neighbouring queries of a tile, whose loop runs over the union of their lists; 0: one list has all queries of a tile */
    const Derive *pool; /* whose rows its keys are; NULL */
    bool mapped;        /* Request.mapped */
    bool classified;    /* a kernel before maps the key tiles of each query tile (tile_classify.c) */
} Fn;

/* Math IR */
void ag_pass_simplify(Fn *fn);
void ag_pass_hoist(Fn *fn);
void ag_pass_ranges(Fn *fn);
void ag_pass_online(Fn *fn);
/* Tile IR */
void ag_pass_tile(Fn *fn);
void ag_pass_split(Fn *fn);
void ag_pass_pipeline(Fn *fn);
void ag_pass_divide(Fn *fn);
void ag_pass_place(Fn *fn);
void ag_flag_guard(Kernel *k, Block *b, Ref masked); /* pass_split.c: of the steps in b, only those with `masked` apply the guard */
void ag_share_elements(Fn *fn);                      /* tile_elements.c: elements that all scores of a tile read are read once */
void ag_specialise(Fn *fn);                          /* specialise.c: what pipeline does for mma.family wgmma */

typedef struct Pass {
    const char *name;
    void (*run)(Fn *fn);
    bool tile; /* leaves a Tile IR */
    unsigned needs, makes, breaks;
} Pass;
extern const Pass ag_pass[]; /* in order; ends with name NULL */

/* A compilation that lives as long as its program: arena, IRs, text. */
typedef struct Compilation {
    Diag diag; /* file[1]: the spec, file[2]: the schedule, given or shipped */
    Fn fn;     /* of a program of several kernels: the whole spec, with the IRs of its first attention */
    Fn part[META_KERNELS];
    int npart;
    const Spec *attention; /* of a spec without branches: as its attention has it, see ag_attention_spec */
    bool open_group;       /* the spec has branches and nobody said how many query heads a KV head has: compiled for 1 */
    Schedule *sched;
    attngen_dim *dims; /* copies */
    size_t ndims;
    Buf cu;
    size_t cu_at[META_KERNELS]; /* of several kernels: where the text of each begins */
    ProgramMeta meta;
    const char *schedule_name, *numerics; /* NUL-terminated */
    bool shipped;                         /* the schedule is a shipped one to the byte */
    bool chosen;                          /* none was given: it is the one that fits */
    int fallback;                         /* or that so many steps behind it, as it takes fewer registers */
    bool unstaged;                        /* of those without staging.elements */
    bool quick;                           /* or of those that compile quickly */
    bool debug_hang;                      /* was asked for; whether it has an effect: fn.kernel->bounded */
} Compilation;

/* What to compile. */
typedef struct Request {
    const attngen_source *spec, *schedule; /* schedule NULL: the shipped one that fits */
    const char *arch;
    const attngen_dim *dims;
    size_t ndims;
    const char *after; /* stop after this pass ("lower": before the first), no text then; NULL: all */
    bool debug_hang;   /* Kernel.bounded, where there are mbarriers */
    int united;        /* Fn.united, for tests; 0: as loop.lists says */
    bool alone;        /* no kernel before that classifies tiles: the program needs no buffers */
    bool mapped;       /* for tests: one for every mask of a spec without branches, whatever it saves */
    int fallback; /* without a schedule: that so many steps behind the one that fits, see ag_schedule_fallback; ATTNGEN_E_UNSUPPORTED: there is none */
    bool unstaged; /* of the shipped schedules none with staging.elements, and tiles in turn: nothing in the workspace */
    bool quick;    /* of the shipped schedules those for a quick start, where there are such */
    int branches;  /* where the schedule says nothing: 1 + BranchOrder, 0: by rule */
} Request;

/* The passes of the list over fn, which is lowered; fewer if r->after says so. */
void ag_run_passes(Fn *fn, const Request *r);
/* The schedule of the compilation closed once more, for another spec: the given one, or the shipped one that fits. */
Schedule *ag_schedule_for(Compilation *c, const Spec *spec, int64_t queries); /* queries: as for ag_schedule_default */
/* The same for a spec whose queries see few keys each, neighbouring ones much the same: narrow tiles of keys, and of the queries of all heads that share them.  With 64 heads in
 * groups of 16, 192 keys for a query, D 128 and 16384 queries 0.22 instead of 0.38 ms; tiles of 128 keys 0.32, without the heads 0.31 (docs/performance.md). */
Schedule *ag_schedule_narrow(Compilation *c, const Spec *spec);
/* tile_classify.c: is the mask of fn, whose Math IR has its range, one of elements by query or by key, of which only a look at each tile tells what it hides? */
bool ag_is_classified(const Fn *fn);
void ag_tile_map(Kernel *k, const Fn *fn);                                  /* makes k->tiles */
Ref ag_tile_row(Kernel *k, const Fn *fn, Ref b, Ref h, Ref tiles_m, Ref m); /* where in it the bits of a query tile begin */
Ref ag_tile_head(Kernel *k, Ref row, int what);                             /* MAP_* of a row */
/* tile_count.c: what a tile of queries makes of a tile of keys: number j of them is kind[j]. */
enum { TILE_HIDDEN, TILE_PARTIAL, TILE_WHOLE };
typedef struct TilePlace {
    const Spec *spec;
    const HostCall *call;
    int64_t b, h, q_first, q_last; /* positions */
} TilePlace;
void ag_tiles_by_range(const Math *m, const TilePlace *at, int keys, uint8_t *kind); /* visited with and without a mask, by the bounds alone */
bool ag_map_pays(const Fn *fn);          /* would a map leave out enough of those?  The mask reads no tensor */
Kernel *ag_build_classify(const Fn *fn); /* the kernel that makes it, of fn after all passes */
/* program.c: makes c->part of a spec with branches. */
void ag_build_prologue(Compilation *c); /* program.c: kernels of the rows that a prologue changes */
void ag_link_prologue(Compilation *c);  /* program.c: what they make stands for q and k in all other kernels */
void ag_compile_program(Compilation *c, const Request *r);
/* Everything up to the CUDA text.  NULL only if out of memory; else look at diag.status of the result. */
Compilation *ag_compile(const Request *r);
/* The same without debug_hang. */
Compilation *ag_compile_text(const attngen_source *spec, const attngen_source *schedule, const char *arch, const attngen_dim *dims, size_t ndims,
                             const char *after);
/* The same inputs once more, up to pass `after`. */
Compilation *ag_compile_again(const Compilation *c, const char *after);
void ag_compilation_free(Compilation *c);
/* What a program was made from (api.c). */
const Compilation *ag_program_compilation(const attngen_program *program);
#endif
