/* emit.h: inside the emitter.  emit.c prints the file, emit_ins.c instructions, emit_expr.c expressions. */
#ifndef AG_EMIT_H
#define AG_EMIT_H

#include "tile_ir.h"

/* Asynchronous mma in flight, oldest first: the registers of each group; the last one is open. */
typedef struct InFlight {
    struct {
        int value[8], n;
    } group[4];
    int ngroup;
} InFlight;

/* How an asynchronous product takes its operands. */
typedef enum WgmmaForm {
    WGMMA_SS, /* A and B from shared memory, B by its rows: scores */
    WGMMA_RS, /* A from registers, B's rows summed over */
    WGMMA_ST, /* A from shared memory, B's rows summed over */
    WGMMA_FORMS
} WgmmaForm;

typedef struct Wgmma {
    int n, steps;       /* 64 x 16 steps by 16 steps x n; n 0: not in use */
    int a_rows, b_rows; /* of the shared tiles */
} Wgmma;

/* How far in the loops of a map a value is known: bits. */
typedef enum Depth { DEPTH_BLOCK, DEPTH_ROW, DEPTH_COLUMN, DEPTH_ELEMENT } Depth;

/* What is known of a node, mostly of an element of a captured tensor, in front of the loop over the columns. */
typedef struct Base {
    const char *at,
        *limit; /* where the rest of the subscripts counts from, NULL: as for any other load; what stands for the extent of subscript `column` */
    int columns, column; /* bit per subscript that varies with the column; the last of them */
    bool key;            /* it is the key alone, and counts from k0 */
    bool distance;       /* of any int: its distance from k0 has been declared */
} Base;

typedef struct Emit {
    const Kernel *k;
    Buf *out;
    int indent;
    int align;                 /* of shared memory */
    int loops;                 /* how many are open */
    bool *declared;            /* per value: its variable has been printed */
    bool head[KERNEL_TENSORS]; /* per tensor: the pointer to this block's batch and head has been printed */
    Base *base;                /* per Ref, in a map; NULL */
    IntReaches *reach;         /* of the kernel's nodes */
    Buf *arrays;               /* not NULL: constants of rows are elements of arrays, which are declared here */
    int row_tiles;             /* of such an array */
    InFlight flight;
    const char *role;                /* whose body is being printed */
    bool mma_sync;                   /* leaves of mma.sync are in use */
    Wgmma wgmma[WGMMA_FORMS];        /* the products that leaves are printed for */
    const char *elem;                /* storage type: "bf16" or "f16" */
    const char *lane_row, *lane_col; /* text: row and column of a fragment's first element in this lane */
} Emit;

/* How the leaves of an expression are written. */
typedef struct Names {
    const char *mi, *ni, *ei; /* indices of a fragment element: m tile, n tile, element 0..3 */
    const char *r;            /* index of its row in the m tile: 0 or 1 */
    const char *col;          /* its column in the fragment, less lane_col */
} Names;

void ag_emit_line(Emit *e, const char *fmt, ...) PRINTF(2, 3); /* one indented line */
/* A uniform expression as C text. */
void ag_emit_expr(const Emit *e, Buf *out, Ref r);
/* Declares constants for parts of r, and notes their names in shared[Ref]: what is the same for a whole row and not free (SHARE_ROW), for a whole column (SHARE_COLUMN),
 * what is read more than once and elements of captured tensors (SHARE_ELEMENT).  So text stays linear in the number of nodes.  A comparison of the key with
 * something of the row becomes one of the column in the fragment: one instruction instead of two per element. */
typedef enum Share { SHARE_ROW, SHARE_COLUMN, SHARE_ELEMENT } Share;
void ag_emit_shared(Emit *e, Ref r, const Names *names, const char **shared, Share what);
void ag_emit_expr_with(const Emit *e, Buf *out, Ref r, const Names *names, const char *const *shared);
void ag_emit_block_parts(Emit *e, Ref r, const Names *names, const char **shared); /* the same for all rows: keys against it, bases of loads */
bool ag_reads_axis(const Emit *e, Ref r, const char *const *shared, Axis axis);    /* is its variable still read, with what is shared? */
bool ag_loads_column(const Kernel *k, Ref r); /* does it read elements of captured tensors that are the same for all rows? */
void ag_emit_factor(const Emit *e, Buf *out, Ref r, const Names *names,
                    const char *const *shared); /* in parentheses unless it can be multiplied as it is */
/* "const int name = value;", or an element of an array of that name; type "const int ".  Returns what it is read as. */
const char *ag_emit_constant(Emit *e, const char *type, const char *name, const char *value);
/* ---- emit_distance.c: declares it in front of the columns of map i, and notes in `shared` how it is read there */
void ag_emit_by_distance(Emit *e, const Ins *i, const char **shared);
void ag_emit_ramps(Emit *e, const Ins *i, const Names *names, const char **shared);
/* ---- emit_load.c */
void ag_emit_load(const Emit *e, Buf *out, Ref r, const Names *names, const char *const *shared, bool paren); /* paren: unless it is a call */
const char *ag_emit_load_name(const Emit *e, Ref r);
void ag_emit_base(Emit *e, Ref r, const Names *names, const char *const *shared, const Depth *depth);
void ag_emit_block(Emit *e, const Block *b);
int ag_frag_mt(const Kernel *k, const Val *v); /* m16 tiles per warp */
/* ---- emit_ins.c, for emit_sm90.c */
const char *ag_emit_text(const Emit *e, Ref r);             /* uniform expression */
const char *ag_emit_atom(const Emit *e, Ref r);             /* the same, in parentheses unless it is one word */
const char *ag_emit_stage(const Emit *e, int v, Ref index); /* address of a stage of a shared value */
void ag_emit_declare(Emit *e, int v);
const char *ag_emit_pointer(const KernelTensor *t);          /* emit.c: the type of its elements, as a pointer is declared with */
const char *ag_emit_rows(const Emit *e, const char *tensor); /* what store leaves take for its rows */
/* ---- emit_each.c: pools and outputs */
void ag_emit_each(Emit *e, const Ins *i);
void ag_emit_output(Emit *e, const Ins *i);
/* A step of TI_ROWS: to = value at each of n channels (or pairs of channels) of the thread, at is the channel of element e, NULL: first + e.  BRANCH is `to`.  n 0: one
 * value for the row, whose text is returned. */
typedef struct RowLoop {
    const Ins *rows; /* the TI_ROWS */
    Ref value;
    const char *to, *first, *at, *around; /* around: what stands before the loop over the channels */
    int n;
} RowLoop;
const char *ag_emit_row_loop(Emit *e, const RowLoop *l);
/* ---- emit_rows.c */
void ag_emit_row_steps(Emit *e, const Ins *i);
void ag_emit_rows_comment(Emit *e, const Ins *i);
void ag_emit_turns(Emit *e); /* the tables of its rotations */
/* ---- emit_each.c again */
void ag_emit_each_comment(Emit *e); /* what the head of such a kernel says of it */
/* ---- emit_select.c */
void ag_emit_ranking(Emit *e);              /* the constants of a selection */
void ag_emit_select(Emit *e, const Ins *i); /* TI_LOAD_ROW .. TI_STORE_LIST */
/* ---- emit_invert.c */
void ag_emit_invert(Emit *e, const Ins *i); /* TI_COUNT_LISTS .. TI_INVERT_LISTS */
void ag_emit_invert_comment(Emit *e);       /* the head of such a kernel */
/* ---- emit_classify.c */
extern const char *const ag_walk_name[WALKS];
void ag_emit_walks(Emit *e, const Block *b);  /* declares those that b has */
void ag_emit_classify(Emit *e, const Ins *i); /* TI_BOUND, TI_CLASSIFY */
void ag_emit_classify_comment(Emit *e);       /* the head of such a kernel */
/* ---- emit_sm90.c: what only the wgmma path has */
void ag_emit_tma(Emit *e, const Ins *i);
void ag_emit_load_elements(Emit *e, const Ins *i);
const char *ag_emit_map_name(const KernelTensor *t, Arena *a);
void ag_emit_barrier(Emit *e, const Ins *i);   /* expect, wait_bar, arrive, warpgroup sync */
void ag_emit_async_mma(Emit *e, const Ins *i); /* mma, mma_commit, mma_wait */
void ag_emit_stage_panels(Emit *e, const Ins *i);
void ag_emit_store_panels(Emit *e, const Ins *i);
void ag_emit_store_tma(Emit *e, const Ins *i);
void ag_emit_tiles(Emit *e, const Ins *i); /* slots, the counter, turns, waits for stores */
void ag_emit_barriers(Emit *e);            /* names and first state of mbarriers */
void ag_emit_roles(Emit *e);
void ag_emit_wgmma_leaves(Emit *e);
#endif
