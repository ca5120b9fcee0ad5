/* simulate.h: internals of the simulator.
 *
 *   simulate.c           the launch, blocks, roles as coroutines, messages
 *   simulate_expr.c      expressions, compiled once and evaluated a row at a time
 *   simulate_shared.c    the protocol of shared memory: copies, groups, barriers, overlaps
 *   simulate_ops.c       what each instruction computes, and which queries and keys its result stands for
 *   simulate_relative.c  which running maximum a value is relative to
 *   simulate_any.c       bodies that each warp runs or skips by itself
 *   simulate_cover.c     which keys each query row has seen, which output rows are written
 *
 * Every error leaves through ag_sim_fail, the one longjmp to ag_simulate; all memory is in the simulation's own arena. */
#ifndef AG_SIMULATE_H
#define AG_SIMULATE_H

#include "host.h"
#include "tile_ir.h"

/* ---- state of values */

/* Life of one stage of a shared value. */
typedef enum StageState {
    STAGE_EMPTY,   /* undefined content */
    STAGE_PENDING, /* an asynchronous copy is on its way */
    STAGE_LANDED,  /* complete for the threads that copied, not yet for the others */
    STAGE_READY,   /* visible to all threads */
    STAGE_PRIVATE  /* each warp sees the rows that it wrote itself */
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
    bool async, used; /* used: read or written since the last barrier */
    int role;         /* PENDING, LANDED: who copied */
    int64_t group;    /* PENDING: its cp.async group */
    int overwritten;  /* EMPTY: the value that was written over it, -1 */
    Source source;
} Stage;

/* What the elements of a fragment or row stand for: query row q0 + i, key key0 + column. */
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

typedef struct Cell {
    const Val *v;
    Stage *stage;    /* shared */
    float *x;        /* fragments: rows x cols; rows: rows x lanes */
    uint8_t *hidden; /* fragments: the element is that of a masked key */
    int lanes;       /* rows: 4 if partial, else 1 */
    bool written;
    Origin from;
    Relative rel[MAX_WARPS];
    Scalar scalar[2]; /* per role */
    float *saved;     /* fragments and rows that a TI_ANY writes: what they held before */
    bool was_written; /* the same of `written` */
} Cell;

/* ---- expressions */
typedef union Lane {
    float f;
    int32_t i; /* ints and bools */
} Lane;
enum { VARY_ROW = 1, VARY_COL = 2 };
typedef struct Step {
    Op op;
    Type type, of; /* of the result, of the operands */
    int vary;      /* VARY_* bits */
    int arg[3];    /* steps */
    int index;
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
} Thread;

/* A body that some warps skip. */
typedef struct AnyBody {
    bool inside;
    uint8_t *runs; /* per row */
    int rows, live;
} AnyBody;

typedef struct Coverage {
    int tile;                   /* keys of a score fragment */
    int64_t nrow, *rows;        /* query rows that are looked at: all of a small problem, else a sample */
    int64_t *number;            /* per query row: its place in rows, -1 */
    bool per_head;              /* visibility depends on b or h */
    uint8_t *visible;           /* [B * Hq or 1][nrow][Sk]: 0 not known yet, 1 hidden, 2 visible */
    uint8_t *seen;              /* [B * Hq][nrow][Sk]: contracted, or masked */
    uint8_t *stored[TEN_COUNT]; /* [B * Hq][Sq] */
    bool untold;                /* weights came from no scores (a constant score): which keys they are for cannot be told */
} Coverage;

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
    Thread thread[2];
    AnyBody any[2]; /* per role */
    int role;       /* which one runs */
    int64_t stage;  /* that the running instruction copies into, -1 */
} Sim;

/* ---- simulate.c */
noreturn void ag_sim_fail(Sim *s, const char *fmt, ...) PRINTF(2, 3);        /* prefixed by block and instruction */
noreturn void ag_sim_fail_launch(Sim *s, const char *fmt, ...) PRINTF(2, 3); /* of the launch as a whole */
const HostTensor *ag_sim_tensor(const Sim *s, int tensor);
static inline const char *ag_sim_name(const Sim *s, int val) { return s->k->val[val].name.s; }

/* ---- simulate_expr.c */
Expr *ag_sim_expr(Sim *s, Ref r);
Scalar ag_sim_scalar(Sim *s, Ref r);
int64_t ag_sim_int(Sim *s, Ref r);
/* Prepares evaluation at query positions q0 + row and key positions k0 + column of `columns` columns, then gives a row's values (step of the result:
 * lane, one if it does not vary with the column). */
void ag_sim_expr_begin(Sim *s, Expr *e, int64_t k0, int columns);
const Step *ag_sim_expr_row(Sim *s, Expr *e, int64_t q0, int row, int columns);

/* ---- simulate_shared.c */
Stage *ag_sim_read(Sim *s, int val, int64_t stage);
Stage *ag_sim_overwrite(Sim *s, int val, int64_t stage); /* checks that nothing there, or overlapping, is still needed */
void ag_sim_copied(Sim *s, Stage *g, bool async);
void ag_sim_commit(Sim *s);
void ag_sim_wait(Sim *s, int unfinished);
void ag_sim_barrier(Sim *s);
void ag_sim_shared_reset(Sim *s);
void ag_sim_shared_end(Sim *s); /* no copy may be unfinished when the kernel ends */

/* ---- simulate_ops.c */
void ag_sim_op(Sim *s, const Ins *i);

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

/* ---- simulate_cover.c */
void ag_sim_cover_init(Sim *s);
void ag_sim_cover_contract(Sim *s, const Cell *weights);
void ag_sim_cover_store(Sim *s, int tensor, int64_t b, int64_t h, int64_t row);
void ag_sim_cover_end(Sim *s);
#endif
