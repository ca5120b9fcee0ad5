/* tiler.h: inside the tile pass.  pass_tile.c builds a step from the carries, tile_grid.c finds the block's tile and its keys, tile_guard.c the guard. */
#ifndef AG_TILER_H
#define AG_TILER_H

#include "compile.h"

enum { PRODUCTS_MOST = 8 };
typedef enum Level { LEVEL_ONCE, LEVEL_ROW, LEVEL_ELEM } Level;

typedef struct Tiler {
    Diag *d;
    Kernel *k;
    const Math *m;
    const Stream *s;
    Block *pre, *step, *post; /* before, inside and after the key loop */
    Block *here;              /* where row values go now */
    Level level;              /* of the expression being built */
    Ref root;                 /* math node that it is of */
    int *held;                /* per math node: tile value that holds it now, -1 */
    bool *apart;              /* per math node: see ag_nodes_apart */
    bool *moves;              /* per math node: it reads carried values */
    int *fresh, *kept;        /* per carry: value after and before this step's update */
    Ref *todo;                /* bodies still to be computed in this step */
    int ntodo;
    int shared[KERNEL_TENSORS]; /* per tensor of the kernel: its shared tile, -1 */
    int b, h, g, row0, q0, q_last, j, tile_m;
    const Branch *listed;                 /* whose block lists say which keys are visited; NULL: all keys are */
    Ref limit;                            /* rows of queries below belong to the tile */
    int united;                           /* queries whose lists the tile unites; 0 */
    int blocks;                           /* united: scalar, how many blocks there are */
    Ref first;                            /* listed, query by query: position of the step's first key, a scalar of the step; else 0 */
    bool gather;                          /* queries come block by block (tile_gather.c) */
    bool pooled;                          /* keys are rows of a pool */
    Ref key0;                             /* gather: position of the block's first key */
    int piece_end, block, end, first_key; /* gather: scalars */
    const Spec *program;                  /* the whole spec, whose branch number `branch` this is */
    int branch;
    Ref taken; /* of branches whose forced blocks are apart: an element of the branch's result, of the fragment and what the kernel before has put out */
    int whole_lse;                /* of these as well: a row, the LSE of all blocks */
    int fed[PRODUCTS_MOST], nfed; /* fragments that are weights of this step, rounded by wgmma kernels later than their place here says */
    bool fused;                   /* what is stored is the program's output */
    bool no_lse;                  /* the LSE is not put out */
    bool coarse_tanh;             /* expressions get OP_TANHA for OP_TANH */
    Ref share;                    /* gather: Math node of a row, by which weights are multiplied before they are rounded; 0 */
    Ref one;                      /* Math node 1.0 */
    int nonce, nrow;              /* counters for names */
} Tiler;

/* ---- builders */
static inline int64_t tile_field(const Kernel *k, FieldId f) { return k->sched->f[f].v; }
static inline Ref op2(Tiler *t, Op op, Ref a, Ref b) { return ag_node_op(&t->k->nodes, op, a, b, 0, (Span){0}); }
static inline Ref num(Tiler *t, int64_t v) { return ag_node_int(&t->k->nodes, v); }
static inline Ref size(Tiler *t, Size s) { return ag_node_leaf(&t->k->nodes, OP_SIZE, T_INT, (int)s, (Span){0}); }
static inline Ref val(Tiler *t, int v) { return ag_kval(t->k, v); }
Ins *ag_tiler_add(Tiler *t, Block *to, TileOp op, int dst, const char *note);
int ag_tiler_let(Tiler *t, Block *to, const char *name, Ref e, const char *note); /* a scalar with value e */

int ag_tiler_row(Tiler *t, Str name);                         /* a value for each row of the tile */
const char *ag_tiler_unused_name(Tiler *t, const char *name); /* the name, or with a number behind it if there is such a value */
void ag_tiler_positions(Tiler *t, Ins *map);                  /* where the elements of a map are, if its expression asks */

/* ---- pass_tile.c: a Math node as a kernel expression for use at `level`; what varies with fewer axes is computed ahead, and what is held is read */
Ref ag_tiler_expr(Tiler *t, Ref r, Level level);
Level ag_tiler_level(const Tiler *t, const Node *n); /* what a Math node varies with */
/* ---- tile_result.c */
Ref ag_tiler_head(Tiler *t); /* the query head of an element */
void ag_tiler_outputs(Tiler *t, Block *to, bool wide,
                      int col); /* outputs with channels, of those from `col` on that accumulators hold, or those of rows */
void ag_tiler_joined_output(
    Tiler *t); /* the output of several branches that are one kernel: each normalised in its accumulator, then what the spec makes of them */
void ag_tiler_describe_branches(Tiler *t); /* what the simulator has to know of each branch, and whose weighted values the accumulators hold */
/* ---- tile_list.c: branches over listed blocks */
int ag_listed_queries(const Branch *b, int group); /* queries of one list in a tile */
void ag_tiler_list(Tiler *t);                      /* opens the list of the tile */
Ref ag_tiler_listed(Tiler *t);                     /* of a union: does the row's query list the block of this step? */
void ag_tiler_skip(Tiler *t);                      /* of a union: each warp computes in the steps whose block a query of its rows lists */
Ref ag_tiler_first_key(Tiler *t, int walk);        /* position of the first key of tile j; walk: WALK_* */
/* ---- tile_forced.c: forced blocks that a kernel before has attended to */
static inline bool ag_tiler_apart(const Tiler *t) { return t->listed && t->listed->apart && !t->gather; }
Ref ag_tiler_unforced(Tiler *t, Ref entries, Ref *first); /* those of a selection's `entries` that are not forced lie between *first and the result */
void ag_tiler_take_forced(Tiler *t, const MathOut *lse);  /* behind the loop: sets taken and whole_lse */
/* ---- tile_gather.c: the same, block by block */
void ag_tiler_pieces(Tiler *t, Block *once); /* which entries a block of the launch has */
void ag_tiler_compose(Tiler *t, Block *once, Block *tile, Block *step, Block *post);
/* ---- tile_grid.c */
void ag_tiler_block(Tiler *t);              /* which tile this block computes */
void ag_tiler_keys(Tiler *t, const Fn *fn); /* key tiles that can contribute */
/* ---- tile_guard.c */
void ag_tiler_guard(Tiler *t); /* sets Kernel.guard: the mask and the end of the keys */
void ag_tiler_flag(Tiler *t, Block *step,
                   Ref first_key); /* the guard of a step is for tiles with a key that one of the queries q0 .. q_last does not see */
bool ag_zero_where_hidden(const Tiler *t, Ref weights); /* is this Math node 0 wherever the guard is false, as maxima there are -inf? */
#endif
