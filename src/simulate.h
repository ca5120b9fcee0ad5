/* simulate.h: internals of the simulator.
 *
 *   simulate.c           the launch, blocks, roles as coroutines, messages
 *   simulate_expr.c      expressions, compiled once and evaluated a row at a time
 *   simulate_shared.c    the protocol of shared memory: copies, groups, barriers, overlaps
 *   simulate_bar.c       mbarriers, copies by TMA on their way, and what a role knows to have happened
 *   simulate_tiles.c     what persistent blocks have: slots, the counter of tiles, turns, asynchronous stores
 *   simulate_mma.c       asynchronous mma: groups, and the values that unfinished ones hold
 *   simulate_ops.c       what each instruction computes, and which queries and keys its result stands for
 *   simulate_relative.c  which running maximum a value is relative to
 *   simulate_list.c      block lists
 *   simulate_any.c       bodies that each warp runs or skips by itself
 *   simulate_each.c      pools and outputs, element by element
 *   simulate_select.c    selections of blocks: sums over heads, ranking, lists
 *   simulate_invert.c    inversions of block lists
 *   simulate_classify.c  the map of key tiles, and whether bounds of tiles say nothing wrong
 *   simulate_cover.c     which keys each query row has seen, which output rows are written
 *
 * Every error leaves through ag_sim_fail, the one longjmp to ag_simulate; all memory is in the simulation's own arena. */
#ifndef AG_SIMULATE_H
#define AG_SIMULATE_H

#include "host.h"
#include "tile_ir.h"

/* ---- state of values */

enum { MAX_ROLES = LEN(((Kernel *)0)->role), MAX_BARRIERS = LEN(((Kernel *)0)->barrier), MAX_MBARS = 64 };

/* What a role knows to have happened: every access of role r up to time[r] of r's own count, which goes up at each of its arrivals, and phase[m] phases of
 * mbarrier m.  It holds in every order that the roles can run in, not only in the one at hand. */
typedef struct Clock {
    int64_t time[MAX_ROLES];
    int phase[MAX_MBARS];
} Clock;

/* How the warps of a role have used a stage since the last barrier that all of them passed. */
typedef enum Use {
    USE_NONE,
    USE_OWN,    /* each warp the rows that it also writes */
    USE_SYNCED, /* as USE_ROWS, and each warpgroup has passed a barrier of its own since */
    USE_ROWS,   /* each warpgroup its own rows */
    USE_ALL     /* any warp any row */
} Use;
typedef struct Access {
    int64_t at, done; /* the role's time at its last use, and when that was over; UNFINISHED while an mma reads */
    int64_t group;    /* of asynchronous mma, that last read it; 0 */
    Use use;
    bool released; /* the role has arrived on the mbarrier that guards the stage */
} Access;
#define UNFINISHED INT64_MAX

/* Life of one stage of a shared value. */
typedef enum StageState {
    STAGE_EMPTY,   /* undefined content */
    STAGE_PENDING, /* an asynchronous copy is on its way; by TMA: ready for the roles that know its phase to be complete */
    STAGE_LANDED,  /* complete for the threads that copied, not yet for the others */
    STAGE_READY,   /* visible to all threads */
    STAGE_PRIVATE, /* each warp sees the rows that it wrote itself */
    STAGE_WRITTEN, /* each warp has written its rows, for asynchronous mma */
    STAGE_FENCED,  /* and every thread has fenced its writes */
    STAGE_ROWS     /* and each warpgroup sees its own rows */
} StageState;

/* Where rows of a shared tile come from. */
typedef struct Source {
    int tensor;
    int64_t b, head, row0;
    int live; /* rows inside the tensor; the others are zero */
} Source;

typedef struct Stage {
    float *x; /* rows x cols, row-major */
    StageState state;
    bool own;      /* each warp has copied its rows */
    int role;      /* PENDING, LANDED: who copied; WRITTEN, FENCED, ROWS: who wrote */
    int64_t group; /* PENDING: its cp.async group */
    bool tma;      /* PENDING: it counts for phase `phase` (from 0) of mbarrier `mbar` instead */
    int mbar, phase;
    int overwritten; /* EMPTY: the value that was written over it, -1 */
    Access by[MAX_ROLES];
    Source source;
} Stage;

/* What the elements of a fragment or row stand for: query row q0 + i / pack of head h + i % pack, key key0 + column. */
typedef struct Origin {
    bool has_q, has_k, guarded; /* guarded: hidden keys have been looked for */
    int64_t b, h, q0, key0;
    int live; /* rows below are inside the tensor */
} Origin;

/* Identities of the maxima that a warp's rows of a value were computed from: of a maximum its own, of a factor those before and after. */
enum { MAX_MAXIMA = 4, MAX_WARPS = 32 };
typedef struct Relative {
    int id[MAX_MAXIMA], n;
    bool any; /* zero: relative to every maximum */
} Relative;

/* One stage of a slot. */
typedef struct Slot1 {
    bool written;
    int64_t value, at; /* the writer's time when it wrote */
    int role;
    int64_t read[MAX_ROLES]; /* each role's time at its last look */
} Slot1;

typedef struct Cell {
    const Val *v;
    Slot1 *slot;
    Stage *stage;    /* shared */
    float *x;        /* fragments: rows x cols; rows: rows x lanes */
    uint8_t *hidden; /* fragments and staged ones: the element is that of a masked key */
    int lanes;       /* rows: 4 if partial, else 1 */
    bool written;
    Origin from;
    Relative rel[MAX_WARPS];
    Scalar scalar[MAX_ROLES];
    float *saved;                  /* fragments and rows that a TI_ANY writes: what they held before */
    bool was_written;              /* the same of `written` */
    bool lent;                     /* `written` holds for the running body only */
    uint8_t *some;                 /* while not `written`: rows of the warps that have written it in such a body; NULL */
    int64_t mma_writes, mma_reads; /* fragments: groups of asynchronous mma that last wrote and read it; 0 */
} Cell;

/* ---- expressions */
typedef union Lane {
    float f;
    int32_t i; /* ints and bools */
} Lane;
enum { VARY_ROW = 1, VARY_COL = 2 };
enum { STEP_ARGS = ATTNGEN_MOST_DIMS };
typedef struct Step {
    Op op;
    Type type, of;      /* of the result, of the operands */
    int vary;           /* VARY_* bits */
    int arg[STEP_ARGS]; /* steps; LOAD: the subscripts */
    int index, nsub;
    int64_t extent[STEP_ARGS]; /* LOAD: of each dim */
    Scalar value;
    Lane *lane; /* one, or one per column */
} Step;
typedef struct Expr {
    Step *step; /* operands first; the last is the result */
    int n;
    int *val, nval; /* values it reads */
    bool hides;     /* it puts -inf somewhere */
    int hider;      /* the kernel's guard, if the whole expression is a select by it; -1 */
} Expr;

/* ---- roles */
typedef struct Frame {
    const Ins *at;    /* next instruction; NULL: end of the block */
    const Ins *owner; /* TI_LOOP, TI_IF or TI_ANY; NULL: the role's own body */
    int64_t i, last;
} Frame;
enum { MAX_NEST = 16 };
typedef struct Thread {
    Frame frame[MAX_NEST];
    int depth;
    const Ins *at; /* running, or waiting at */
    bool waiting, done;
    int64_t open_group; /* index of the cp.async group that is open; all before are closed */
    Clock clock;
    int mbar; /* waiting at a TI_WAIT_BAR: for the phase of this parity */
    int64_t stage, parity;
    int64_t mma_closed, mma_finished; /* groups of asynchronous mma: 1..mma_finished are over, mma_closed + 1 is open */
    bool mma_open;                    /* the open one has an mma */
    const Ins *turn;                  /* taken and not passed on; NULL */
    const Ins *store;                 /* asynchronous, and not waited for; NULL */
} Thread;

/* ---- mbarriers */
typedef struct Mbar {
    int count, missing;        /* arrivals that each phase takes, and that this one still does */
    int64_t announced, flying; /* bytes that it waits for: no copy brings them yet; copies that do are on their way */
    Clock coming;              /* of those that have arrived */
    Clock *done;               /* per completed phase: what one knows who has waited for it */
    int phases, cap;
} Mbar;
typedef struct Flight {
    Mbar *mbar;
    int64_t bytes;
} Flight;

/* One way to run a launch.  The protocol has to hold in all of them; values are the same, so one run computes them. */
typedef struct Order {
    int first; /* the role that goes on as far as it can; -1: the roles take turns */
    bool late; /* copies by TMA arrive when nothing else can happen, the last one first; else at once */
    bool values;
} Order;

/* A body that some warps skip. */
typedef struct AnyBody {
    bool inside;
    uint8_t *runs; /* per row */
    int rows, live;
} AnyBody;

typedef struct Coverage {
    int tile;                            /* keys of a score fragment */
    int64_t nrow, *rows;                 /* query rows that are looked at: all of a small problem, else a sample */
    int64_t *number;                     /* per query row: its place in rows, -1 */
    bool per_head;                       /* visibility depends on b or h */
    int branches;                        /* that the kernel computes, each with a mask of its own */
    uint8_t *visible[SPEC_MAX_BRANCHES]; /* [B * Hq or 1][nrow][Sk]: 0 not known yet, 1 hidden, 2 visible */
    uint8_t *seen[SPEC_MAX_BRANCHES];    /* [B * Hq][nrow][Sk]: contracted, or masked */
    uint8_t *stored[KERNEL_TENSORS];     /* [B * Hq][Sq]; KERNEL_EACH, KERNEL_INVERT: of every element */
    bool untold;                         /* weights came from no scores (a constant score): which keys they are for cannot be told */
} Coverage;

typedef struct SimLists SimLists; /* simulate_select.c */

/* Where a walk along the tile map is: at tile n of a row. */
typedef struct MapWalk {
    bool begun;
    int64_t row, n;
} MapWalk;

typedef struct Sim {
    const Kernel *k;
    const HostCall *call;
    Buf *message;
    Arena *arena;
    jmp_buf jump;
    Cell *cell;        /* per value */
    Expr **expr;       /* per Ref */
    int columns, rows; /* of the widest and the highest value */
    float *scratch;
    Coverage cover;
    int maxima; /* identities given so far */
    int64_t block;
    const Order *order;
    Thread thread[MAX_ROLES];
    AnyBody any[MAX_ROLES];
    int role;      /* which one runs */
    int64_t stage; /* that the running instruction copies into, or of the mbarrier it works on; -1 */
    Mbar mbar[MAX_MBARS];
    int mbar0[MAX_BARRIERS]; /* where the stages of a barrier begin */
    int *guard;              /* per value: 1 + the mbarrier on which its readers release stages; 0 if that cannot be told */
    Flight *flight;          /* copies by TMA on their way, in order of issue */
    int nflight, capflight;
    int64_t blocks, counter; /* of the launch */
    int64_t entries_at[3];   /* of TI_ENTRIES: batch, head, the first that is kept */
    uint8_t *gathered[2];    /* O and LSE: rows that are written, of every head */
    const Ins *list;         /* opened by the block, at list_at: batch, head, row */
    int64_t list_at[3];
    int64_t *united; /* a union of lists: blocks, and which queries of the tile list each (bits) */
    uint32_t *united_by;
    int nunited;
    MapWalk walk[MAX_ROLES][WALKS];
    struct Each *each; /* simulate_each.c */
    SimLists *lists;
    int64_t lists_next; /* block that the next step has to begin with: the sums before it are those of the step before */
} Sim;

/* ---- simulate.c */
noreturn void ag_sim_fail(Sim *s, const char *fmt, ...) PRINTF(2, 3);                 /* prefixed by block and instruction */
noreturn void ag_sim_fail_launch(Sim *s, Span at, const char *fmt, ...) PRINTF(3, 4); /* of the launch as a whole */
const HostTensor *ag_sim_tensor(const Sim *s, int tensor);
static inline const char *ag_sim_name(const Sim *s, int val) { return s->k->val[val].name.s; }

/* ---- simulate_expr.c */
Expr *ag_sim_expr(Sim *s, Ref r);
Scalar ag_sim_scalar(Sim *s, Ref r);
int64_t ag_sim_int(Sim *s, Ref r);
/* Prepares evaluation at query positions q0 + row and key positions k0 + column of `columns` columns, then gives a row's values (step of the result:
 * lane, one if it does not vary with the column).  Heads, where rows have their own, begin at h0. */
void ag_sim_expr_begin(Sim *s, Expr *e, int64_t k0, int columns);
const Step *ag_sim_expr_row(Sim *s, Expr *e, int64_t q0, int64_t h0, int row, int columns);

/* ---- simulate_shared.c */
Stage *ag_sim_read(Sim *s, int val, int64_t stage, Use use, bool async); /* async: until the open group of mma is waited for */
Stage *ag_sim_overwrite(Sim *s, int val, int64_t stage);                 /* checks that nothing there, or overlapping, is still needed */
void ag_sim_copied(Sim *s, Stage *g, bool async, bool own);
void ag_sim_staged(Sim *s, Stage *g);  /* each warp has written its own rows, which go out */
void ag_sim_written(Sim *s, Stage *g); /* which mma will read */
void ag_sim_fence(Sim *s);
void ag_sim_commit(Sim *s);
void ag_sim_wait(Sim *s, int unfinished);
void ag_sim_barrier(Sim *s);        /* of the block */
void ag_sim_warpgroup_sync(Sim *s); /* of each warpgroup of the running role */
void ag_sim_warp_sync(Sim *s);      /* of each warp */
void ag_sim_reads_over(Sim *s);     /* those of mma that have finished */
void ag_sim_shared_reset(Sim *s);
void ag_sim_shared_end(Sim *s); /* no copy may be unfinished when the kernel ends */

/* ---- simulate_bar.c */
void ag_sim_bar_init(Sim *s);
void ag_sim_bar_reset(Sim *s);
void ag_sim_expect(Sim *s, const Ins *i);
void ag_sim_arrive(Sim *s, const Ins *i);
void ag_sim_wait_bar(Sim *s, const Ins *i);  /* the role waits from now on */
bool ag_sim_wait_bar_over(Sim *s, int role); /* can it go on?  Then it knows what those who arrived knew */
void ag_sim_copied_tma(Sim *s, const Ins *i, Stage *g);
bool ag_sim_land(Sim *s);                                  /* lets one copy arrive; false: none is on its way */
bool ag_sim_knows(const Sim *s, int role, const Stage *g); /* has the copy by TMA into g arrived, as far as the role knows? */
void ag_sim_learn(Clock *to, const Clock *from);

/* ---- simulate_mma.c */
void ag_sim_mma_check(Sim *s, const Ins *i); /* of values that unfinished mma hold, i reads and writes none */
void ag_sim_mma_issue(Sim *s, const Ins *i);
void ag_sim_mma_commit(Sim *s);
void ag_sim_mma_wait(Sim *s, int unfinished);
void ag_sim_mma_end(Sim *s); /* of the running role */

/* ---- simulate_tiles.c */
enum { SIMULATED_SMS = 2 };      /* blocks that run at once, which persistent ones are at most */
void ag_sim_tiles_reset(Sim *s); /* before each block */
void ag_sim_put(Sim *s, const Ins *i);
int64_t ag_sim_get(Sim *s, const Ins *i);
int64_t ag_sim_fetch(Sim *s);
void ag_sim_reset(Sim *s);
void ag_sim_turn(Sim *s, const Ins *i);
void ag_sim_store_async(Sim *s, Stage *g);
void ag_sim_store_wait(Sim *s);
void ag_sim_tiles_end(Sim *s);   /* of the running role */
void ag_sim_counter_end(Sim *s); /* of the launch: its counter is 0 again */

/* ---- simulate_ops.c */
void ag_sim_op(Sim *s, const Ins *i);

/* ---- simulate_list.c */
void ag_sim_open_list(Sim *s, const Ins *i);
int64_t ag_sim_listed(Sim *s, int64_t entry); /* a block */
bool ag_sim_listed_by(Sim *s, int64_t entry, int64_t query);
/* ---- simulate_gather.c */
void ag_sim_open_entries(Sim *s, const Ins *i);
int64_t ag_sim_first(Sim *s, int64_t block);
int64_t ag_sim_entry(Sim *s, int64_t i); /* query * n + slot */
int64_t ag_sim_query(Sim *s, int64_t i);
int64_t ag_sim_find(Sim *s, const Ins *i); /* a block */
void ag_sim_gather_store(Sim *s, int tensor, int64_t b, int64_t head, int64_t row);
bool ag_sim_slot_counts(Sim *s, int64_t b, int64_t head, int64_t row, int64_t entry); /* of Kernel.list: is it a block, for the first time? */
bool ag_sim_list_has(const Sim *s, int64_t b, int64_t h, int64_t row, int64_t key);   /* may query `row` of head h see the key, by its list? */
/* ---- simulate_select.c */
void ag_sim_select(Sim *s, const Ins *i); /* TI_LOAD_ROW .. TI_STORE_LIST */
void ag_sim_lists_init(Sim *s);
void ag_sim_lists_end(Sim *s); /* every list is written */

/* ---- simulate_invert.c */
void ag_sim_invert(Sim *s, const Ins *i); /* TI_COUNT_LISTS .. TI_INVERT_LISTS */
void ag_sim_invert_init(Sim *s);
void ag_sim_invert_end(Sim *s); /* every element has been written, of `entry` all up to the last one */

/* ---- simulate_any.c */
bool ag_sim_any_begin(Sim *s, const Ins *i); /* false: no warp runs the body */
void ag_sim_any_end(Sim *s, const Ins *i);
bool ag_sim_warp_runs(const Sim *s, int warp); /* does this warp of the role take part in the running instruction? */

/* ---- simulate_relative.c */
void ag_sim_relate_fill(Sim *s, const Ins *i, float x);
void ag_sim_relate_map(Sim *s, const Ins *i, const Expr *e);
void ag_sim_relate_reduce(Sim *s, const Ins *i);
void ag_sim_relate_mma(Sim *s, const Ins *i);
void ag_sim_relate_total(Sim *s, const Ins *i);
void ag_sim_relate_stage(Sim *s, const Ins *i);

/* ---- simulate_classify.c */
void ag_sim_classify(Sim *s, const Ins *i);                         /* TI_BOUND, TI_CLASSIFY */
int64_t ag_sim_tile_walk(Sim *s, int walk, int64_t row, int64_t n); /* TILE */
int64_t ag_sim_tile_after(Sim *s, int64_t row, int64_t tile, int64_t n);
/* ---- simulate_each.c */
void ag_sim_each_init(Sim *s);
void ag_sim_each(Sim *s, const Ins *i);
void ag_sim_each_end(Sim *s); /* every element has been written */

/* ---- simulate_cover.c */
void ag_sim_cover_init(Sim *s);
void ag_sim_cover_contract(Sim *s, const Cell *weights, int branch);
void ag_sim_cover_store(Sim *s, int tensor, int64_t b, int64_t h, int64_t row);
void ag_sim_cover_end(Sim *s);
#endif
