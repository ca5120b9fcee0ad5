/* program.h: specs with branches become a program, a list of kernels with buffers between them (program.c).
 *
 *   rows      q or k as the prologue makes them                             -> buffer, which stands for it in all that follows
 *   pool      a derived tensor: means of rows of k, v or an input           -> buffer
 *   tiles     the map of key tiles of a branch without lists, where its mask wants one (tile_classify.c); branches with the same mask share it   -> buffer
 *   attend    a branch by itself: keys and values of its own, or a pool's   -> its result, and its LSE if a select ranks by it
 *   select    the block lists of a select, from importance never stored     -> buffer
 *   attend    a branch over listed blocks
 *   invert    block lists turned around: the queries of each block, in three kernels    -> buffers
 *   combine   the output expression at each element, unless the last kernel before it is that of a branch over listed blocks: its epilogue then
 *
 * Tensors of a program, by number: q k v o, lse and other values of a row, the spec's inputs, derived tensors, results of branches, their LSEs; of the inverted lists of each branch: sums of
 * chunks, where blocks begin, entries (see Inversion in tile_ir.h); mean weights of branches; rows of the prologue.  The first branch's result lies in o until
 * the output replaces it. */
#ifndef AG_PROGRAM_H
#define AG_PROGRAM_H

#include "compile.h"

static inline int ag_program_input(int input) { return TEN_COUNT + input; }
static inline int ag_program_derive(const Spec *s, int derive) { return ag_program_input(s->ninput) + derive; }
static inline int ag_program_result(const Spec *s, int branch) { return branch ? ag_program_derive(s, s->nderive) + branch - 1 : TEN_O; }
static inline int ag_program_lse(const Spec *s, int branch) { return ag_program_derive(s, s->nderive) + s->nbranch - 1 + branch; }
/* Of a branch that is visited block by block (of another without lists the first is its map of key tiles): its inverted lists, and results and LSEs of their entries. */
static inline int ag_program_chunks(const Spec *s, int branch) { return ag_program_lse(s, s->nbranch) + branch; }
static inline int ag_program_first(const Spec *s, int branch) { return ag_program_chunks(s, s->nbranch) + branch; }
static inline int ag_program_entry(const Spec *s, int branch) { return ag_program_first(s, s->nbranch) + branch; }
static inline int ag_program_part(const Spec *s, int branch) { return ag_program_entry(s, s->nbranch) + branch; }
static inline int ag_program_part_lse(const Spec *s, int branch) { return ag_program_part(s, s->nbranch) + branch; }
/* Mean weights of branches whose output is read by another kernel. */
static inline int ag_program_mean(const Spec *s, int branch) { return ag_program_part_lse(s, s->nbranch) + branch; }
/* What the prologue makes of q and of k, behind all others. */
static inline int ag_program_rows(const Spec *s, RowsOf rows) {
    return (s->nbranch ? ag_program_mean(s, s->nbranch) : ag_program_derive(s, 0)) + (rows == ROWS_K);
}
static inline int ag_program_count(const Spec *s) { return ag_program_rows(s, ROWS_Q) + (ag_has_prologue(s) ? 2 : 0); }
/* The tensor that attention and pools take for q or k. */
static inline int ag_program_source(const Spec *s, RowsOf rows) {
    return ag_makes_rows(s, rows == ROWS_K) ? ag_program_rows(s, rows) : rows == ROWS_K ? TEN_K : TEN_Q;
}
/* The map of key tiles: behind all others, or with branches where one without lists has no use for another number (of branches that are one kernel: the first). */
static inline int ag_program_tiles(const Spec *s, int branch) { return s->nbranch ? ag_program_chunks(s, branch) : ag_program_count(s); }

/* A branch as a plain spec: its score and mask, the name "spec_branch", no branches. */
Spec *ag_branch_spec(Arena *a, const Spec *spec, int branch);

/* spec_forced.c: the branch over the blocks that its selection always has, by a mask; its spec's name ends with "_forced".  Of a branch with ag_can_part. */
Branch *ag_forced_branch(Arena *a, const Spec *spec, int branch);

/* Adds the kernel before that of fn that makes its map of key tiles, as tensor `number` of the program; or none where an attention before has the same map, which is then shared. */
void ag_add_map(Compilation *c, Fn *fn, int number);

/* ---- schedules of branches over listed blocks: small tiles of mma.sync, whatever the other branches have */
Schedule *ag_listed_schedule(const Fn *fn, const Branch *b); /* tile_list.c: a tile has the queries of one list, or fn->united neighbouring ones */
Schedule *ag_gather_schedule(const Fn *fn, const Branch *b); /* tile_gather.c: block by block, if ag_can_gather */

/* ---- kernels in their last form, placed.  fn: d, spec (the whole one, with spec->group known), sched (closed) and target are read. */
Kernel *ag_build_pool(const Fn *fn, int derive); /* tile_each.c */
Kernel *ag_build_rows(const Fn *fn, RowsOf rows);
/* The results of a branch's entries, put together; with `output` what that is of them and the other branches. */
Kernel *ag_build_merge(const Fn *fn, int branch, bool output);
Kernel *ag_build_combine(const Fn *fn);
Kernel *ag_build_select(const Fn *fn, int derive); /* tile_select.c */
/* tile_invert.c: the lists of a branch, one for each query, inverted: three kernels in this order. */
enum { INVERT_COUNT, INVERT_SCAN, INVERT_ENTRIES };
enum { INVERT_CHUNK = 256 }; /* queries that a block of threads works on */
/* tile_gather.c: queries that the kernels of a branch visited block by block take at a time, as the results of their entries are to fit into a workspace; 0: all, where an
 * expression reads Sq or off, or an element by query other than its own row's. */
Ref ag_gather_chunk(Nodes *p, const Spec *spec, int branch);
Kernel *ag_build_invert(const Fn *fn, int branch, int step);
/* Entries of each list of a branch that has lists. */
static inline int ag_list_entries(const Spec *s, const Branch *b) {
    return b->blocks.kind == FROM_DERIVE ? s->derive[b->blocks.index].count.n : s->input[b->blocks.index].dim[3].n.n;
}
/* The selection whose forced blocks the branch has apart; NULL. */
static inline const Derive *ag_apart(const Spec *s, const Branch *b) { return b->apart ? &s->derive[b->blocks.index] : NULL; }
/* Those of a list that are visited block by block: all, or with forced blocks apart those from entry number `first` of the selection on.  Of these the local ones do not count, and
 * are not always there: a launch can say that its queries lie behind the keys. */
static inline int ag_list_slots(const Spec *s, const Branch *b) {
    const Derive *x = ag_apart(s, b);
    return ag_list_entries(s, b) - (x ? x->first.n : 0);
}

/* ---- tile_output.c: `output` in a kernel */
typedef struct OutputPlace {
    Kernel *k;                               /* whose tensor TEN_O has the shape of every branch's result */
    const Spec *spec;                        /* the whole one */
    Ref b, h, g;                             /* batch, query head, KV head of an element */
    int own;                                 /* the branch that the kernel itself computes: BRANCH; -1: all are read */
    Ref value;                               /* of that branch; 0: BRANCH itself */
    int (*row_sum)(void *payload, Ref body); /* the row value that is the sum of `body` over the channels; NULL: the kernel has no rows to itself */
    int (*mean)(void *payload, int branch);  /* the row value that is the mean weight of a branch that the kernel computes */
    const int *fragment;                     /* the kernel computes all branches: the accumulators with their results; NULL */
    void *payload;
} OutputPlace;
Ref ag_output_expr(const OutputPlace *at);                            /* adds the tensors that it reads to the kernel */
Ref ag_output_lower(const OutputPlace *at, const Ast *e);             /* an expression of a prologue, the same way */
Ref ag_output_result(const OutputPlace *at, int branch, Span span);   /* an element of a branch's result, read */
int ag_output_input(Kernel *k, const Spec *spec, int index, Span at); /* kernel tensor of an input; -1 after an error */
Ref ag_output_extent(Kernel *k, const Spec *spec, Size s);            /* as int node; head dims are constants */
bool ag_output_fits(const Spec *s, int branch);                       /* does it read the branch, and has the kernel of that room for its tensors? */

/* ---- simulate_program.c */
typedef struct ProgramBuffers {
    HostTensor tensor[META_TENSORS]; /* of the program: the caller's, and buffers */
    void *memory[META_TENSORS];      /* of the buffers */
} ProgramBuffers;
/* Runs every kernel of c, which has been compiled to its end, on `call`.  false: memory is out, and the message empty; or a kernel breaks its protocol, and the
 * message says which and how.  *buffers is to be freed whatever is returned. */
bool ag_simulate_program(const Compilation *c, const HostCall *call, ProgramBuffers *buffers, Buf *message);
void ag_program_buffers_free(ProgramBuffers *p);
#endif
