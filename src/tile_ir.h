/* tile_ir.h: the Tile IR, how one kernel computes it.  Structured code over tiles in named spaces; complete: the emitter prints it, the simulator runs it, and
 * nothing else is consulted. */
#ifndef AG_TILE_IR_H
#define AG_TILE_IR_H

#include "jit.h"
#include "math_ir.h"

/* ---- values */
typedef enum Space {
    SPACE_SHARED, /* rows x cols of `type`, `stages` copies, in shared memory */
    SPACE_FRAG,   /* rows x cols spread over the registers of a role's warps; each warp owns rows / warps consecutive rows */
    SPACE_ROW,    /* one float per row, in registers of the lanes that own the row */
    SPACE_SCALAR, /* one int (or float, bool) per block, the same in every thread */
    SPACE_SLOT    /* one int, `stages` copies, in shared memory: what one thread tells another role */
} Space;
typedef enum Layout { LAYOUT_NONE, LAYOUT_ACC, LAYOUT_A } Layout; /* fragments of m16n8k16: accumulator, or A operand */

typedef struct Val {
    Str name;
    Space space;
    DType type;  /* shared and fragments */
    Type scalar; /* SPACE_SCALAR */
    int rows, cols;
    Layout layout;     /* fragments */
    int stages;        /* shared: >= 1 */
    int swizzle;       /* shared, set by place: 0..3 bits of the 16-byte piece index are xor-ed, see docs/design.md; -1 before */
    int offset, bytes; /* shared, set by place: of stage 0, of one stage; -1 before */
    int over;          /* shared: its bytes may overlap those of earlier values (it is used after their last use); -1: no */
    bool partial;      /* rows: each lane of a quad holds its own part of the sum until TI_TOTAL */
    int reference;     /* carried values: the row value (running maximum) that the content is relative to; -1 */
    int carry;         /* index of the Math carry it holds, -1 */
    int branch;        /* accumulators of a kernel of several branches: whose weighted values it holds */
    bool nonneg;       /* scalars: known to be >= 0 */
    bool bounded;      /* scalars of the spec: ints within least and most */
    int64_t least, most;
    int below;     /* scalars: 1 + the size (SZ_*) that it is below, and not negative, wherever a tile is computed; 0: not known */
    bool captured; /* scalars: computed from elements of captured tensors, so an int may be any */
    bool varies;   /* scalars: TI_SET changes it */
    bool divides;  /* scalars: an int from 1 on by which steps divide what differs from key to key: a Divider; set by divide */
    bool panels;   /* shared: kept as panels of 64 columns, a panel being rows x 128 bytes with 128-byte swizzle: what TMA writes and wgmma reads */
    bool fetched;  /* fragments: elements of a captured tensor, packed by pairs of columns as they lie there; read ahead of the step's products */
    bool lasting;  /* fragments: what one block of the role writes another reads */
    bool table;    /* shared: rows of words as they stand, for single accesses: no swizzle */
    bool elements; /* shared: elements of a captured tensor for a tile of scores, in panels; or one row of them for all its queries, as it stands */
    Span span;
} Val;

/* ---- instructions */
typedef enum TileOp {
    TI_LET,   /* scalar dst = e[0], for the rest of its block */
    TI_SET,   /* scalar dst, which has a TI_LET and varies, = e[0] */
    TI_LOOP,  /* for dst: step +1: e[0] <= dst < e[1] upwards; step -1: e[0] > dst >= e[1] downwards (e[0] exclusive upper, e[1] lower); body */
    TI_WHILE, /* while e[0] (uniform bool): body */
    TI_IF,    /* if e[0] (uniform bool): body */
    TI_ELSE,  /* right behind a TI_IF: body, if that one's e[0] did not hold */
    TI_ANY,   /* each warp by itself: if e[0] (bool of the row; AXIS q and h as in TI_MAP) holds in any of its rows: body, on all its rows */
    TI_FILL,  /* dst (fragment or row) = e[0] (constant) */
    TI_COPY, /* shared dst [stage e[0]] = rows e[1] .. e[1]+rows of tensor a at batch e[3], head e[4] (of queries with Kernel.pack: fewer rows, heads from e[4] on);
                    rows >= e[2] and columns past the tensor's are zero;
                    async: by cp.async in the open group, else complete at the next barrier.
                    own: each warp copies the rows that it owns in fragments, and a barrier of each warp makes them known to it.
                    With `elements` (by TMA) tensor a is a captured one: columns e[5] .. of its last dim, rows e[1] .. of the one before, at e[3] and e[4] of the two
                    before that; of dims that it has not these are 0.  What lies past an end, to either side, is zero */
    TI_COMMIT,   /* closes the open cp.async group */
    TI_WAIT,     /* until at most n of this thread's groups are unfinished */
    TI_SYNC,     /* barrier n: all threads of the block, or those of each warpgroup or warp of the role */
    TI_EXPECT,   /* one arrival on mbarrier n [stage e[0]], whose phase then also waits for e[1] bytes of copies */
    TI_WAIT_BAR, /* until mbarrier n [stage e[0]] has completed its phase of parity e[1] */
    TI_ARRIVE,   /* each warp of the role arrives once on mbarrier n [stage e[0]] */
    TI_LIST, /* opens the block list of the tile, which LISTED reads from then on: tensor a at batch e[0], head e[1], row e[2], of blocks of n keys; tensor b (-1: none)
                    at the same place has the number of entries that count.  An entry that is negative, past the last block or there before does not count.
                    With scalar dst it is the union of the lists of e[3] rows from there on, Kernel.queries at most: each block once, ascending; dst = how
                    many there are.  LISTED reads entries 0 .. dst - 1 then, and LISTED_BY tells which rows list one.  All threads make the union, in table
                    bar (ag_union_cols wide, UNION_ROWS), and all have passed a barrier behind it */
    TI_ENTRIES, /* opens the inverted lists of batch e[0], head e[1], which FIRST and QUERY read from then on: tensor a [b, h, blocks + 1] has where the entries
                    of each block begin in tensor b [b, h, entries]; an entry is query * n + slot.  Entries from e[2] on, of e[3] there are, are kept
                    in table dst, complete at the next barrier: these alone can be read */
    TI_FIND, /* scalar dst, which varies, = the block that entry e[0] is of, of e[1] blocks */
    TI_PUT,  /* slot dst [stage e[0]] = e[1]; one thread; seen by who waits for an arrival behind it */
    TI_GET,  /* scalar dst = slot a [stage e[0]] */
    TI_FETCH, /* scalar dst, which varies, = the next tile of the launch's counter: blocks, blocks + 1, ...; each block fetches until it gets one past the last */
    TI_RESET,      /* the launch's counter is 0 again, as it was: for whoever has made the last fetch of all */
    TI_TAKE_TURN,  /* until barrier n says that it is this warpgroup's turn */
    TI_PASS_TURN,  /* the next warpgroup's turn on barrier n */
    TI_MMA_COMMIT, /* closes the open group of asynchronous mma */
    TI_MMA_WAIT,   /* until at most n groups of asynchronous mma of this role are unfinished */
    TI_LOAD,       /* fragment dst (A operand, or `fetched` from `elements`, of which one row is for all rows) = shared a [stage e[0]] */
    TI_STAGE, /* shared dst (panels, stage e[0]) = fragment a (accumulator) rounded to dst's type, each warp its own rows.  Asynchronous mma of this role see it
                    behind a TI_FENCE and then a barrier of the warpgroup, and as their left operand only: each warp's part of one reads that warp's rows */
    TI_FENCE, /* what each thread has staged so far is for asynchronous mma, behind the next barrier; and what it has read so far may be written by TMA */
    TI_MMA, /* fragment dst (accumulator) += a x b; a: shared [stage e[1]] or A fragment; b: shared [stage e[0]], rows are keys.
                    trans: dst = a b^T (b's rows are dst's columns), else dst = a b (b's rows are summed over), of b's columns from `col` on.  zero: dst is cleared
                    first */
    TI_MAP, /* dst (fragment or row) = e[0] at each element, rounded to dst's type.  In e[0]: VAL of a fragment is its element at the same place, VAL of a
                    row the row's value; LOAD, here and in every other expression, an element of a captured tensor, 0 past its ends; AXIS q = e[1] + row / pack, AXIS k = e[2] + column (positions); with pack above 1 AXIS h = e[3] + row % pack */
    TI_REDUCE, /* row dst = reduce (OP_RMAX or OP_RSUM, in `reduce`) over the columns of fragment a, combined with row b (-1: none).
                    dst partial: each lane sums what it holds; else across the quad */
    TI_TOTAL,  /* row dst = sum over the quad of partial row a */
    TI_POOL, /* tensor n [batch e[2], head e[3]] rows e[0].. (Kernel.queries of them, those that it has): row i = the mean of rows i * e[1] .. i * e[1] + e[4] - 1
                    (constants) of tensor a, of those that it has, summed in fp32 and rounded to the type of n; weighted by the elements of tensor b (-1: all alike) */
    TI_MERGE, /* tensor n [batch e[2], head e[3]] rows e[0].. (Kernel.queries of them, those that it has): the rows row * e[4] + slot of tensor a, each weighted by
                 exp(x - LSE) with x its element of tensor b and LSE = log of the sum of their exp(x); of the slots that count in the list of head e[1], of
                 Kernel.list.  0 if there are none.  Tensor bar (-1: none) [batch, head, row] = LSE, -inf if there are none.
                 With Kernel.forced the row of tensor forced_rows is merged as well, with its element of forced_lse.
                 With e[5] tensor n = e[5] at each element, as in TI_EACH, where BRANCH is the merged value */
    TI_OUTPUT, /* fragment dst, which holds the rows that stand for tensor n [batch e[2], head e[3]] rows e[1].. (those < e[4]; with Kernel.pack heads from e[3] on),
                  = e[0] at each element of those.  In e[0]: BRANCH = the element as it was; with an index above 0 that of fragment index - 1; AXIS q = off + row; with pack above 1 AXIS h = the row's head;
                  AXIS d = column; LOAD as in TI_EACH; VAL of a row the row's value.  Other elements of dst are undefined then.  All that an element of tensor n is computed from is read before
                  a TI_STORE writes it */
    TI_OUTPUT_SUM, /* row dst = sum over the tensor's channels of what TI_OUTPUT would make of fragment a, which stays as it is.  In rows not in use it is undefined */
    TI_EACH, /* tensor n [batch e[2], head e[3]] rows e[1].. (as above) = e[0] at each element, rounded to its type.  In e[0]: AXIS q = off + row (a position),
                    AXIS d = channel; LOAD = an element of any tensor, 0 past its ends.  All that an element is computed from is read before it is written */
    TI_ROWS, /* tensor n [batch e[2], head e[3]] rows e[0].. (as above), of heads e[3] .. e[3] + Kernel.pack - 1 that there are, = those rows of tensor a, changed in fp32 by the steps of its body one after
                the other, then rounded to the type of n.  Each row has ag_row_lanes(columns) neighbouring lanes of a warp.  Steps: */
    TI_ROW_NORM,   /* each channel / sqrt(mean of the squares of the row + e[0]) */
    TI_ROW_MAP,    /* each channel = e[0] there; as in TI_EACH, and BRANCH = the channel as it was, AXIS h = the row's head of tensor n */
    TI_ROW_APPEND, /* channels col .. = those of tensor a [batch e[0], head e[1], the same row] */
    TI_ROW_ROTATE, /* the first 2 * col channels, in pairs (i, col + i), or with `trans` (2 i, 2 i + 1): (x, y) = (x c - y s, y c + x s).  c = e[0] and s = e[1], where AXIS d = i;
                      or, if e[2], those of the angle 2 pi turns[i] e[2] 2^-64, taken mod 2^64 */
    TI_STORE, /* tensor n [batch e[2], head e[3]] rows e[0].. (those < e[1]; with Kernel.pack heads from e[3] on) = fragment a rounded to the tensor's type, which holds its columns from `col` on; through shared b, in parts if that has fewer columns, or directly (b = -1).
                    async: by TMA, each warpgroup its rows of b, which a TI_STORE_WAIT gives back */
    TI_STORE_WAIT, /* until the asynchronous stores of this role have read their tiles, for each warpgroup */
    TI_STORE_ROW,  /* tensor n [batch e[2], head e[3]] rows e[0].. (those < e[1]; heads as above) = row a, if the tensor was given */
    /* ---- selections of blocks; Kernel.rank says which */
    TI_LOAD_ROW, /* row dst = tensor n (f32) [batch e[2], head e[3]] rows e[0].. (those < e[1]; heads as in TI_STORE_ROW); -inf in rows not in use */
    TI_CLEAR,    /* shared table dst = 0, complete at the next barrier */
    TI_SUM_HEADS, /* table dst [unit u], columns rank.history.. = sums of fragment a over its rows u * rank.unit .. + rank.unit - 1, complete at the next
                     barrier; dst's other columns stay.  Units behind those of the tile's queries are not written */
    TI_RANK, /* per query i < e[3] of the tile, at position e[2] + i: the importance of blocks e[0] .. e[0] + rank.blocks - 1, of those below e[1] and (causal)
                     not past the query, from the sums in table a over the query's units, column rank.history + c being that of pooled key
                     e[0] * rank.block / rank.stride + c; each into the query's list in table dst if it is among its first rank.count.
                     Then a's last rank.history columns become its first.  Each query's rows of both tables have one owner, some lanes of a warp */
    TI_STORE_LIST, /* tensor n (i32) [batch e[2], head e[3]] rows e[0].. (those < e[1]) = the blocks in the lists of table a, ascending, then -1 */
    /* ---- which key tiles a query tile needs */
    TI_BOUND, /* scalars dst and a = the least and the greatest value (bool: whether all are true, and any) of e[0], which varies with AXIS q or, with `trans`, AXIS k
                    alone, at positions val b .. val bar of it */
    TI_CLASSIFY, /* makes row e[0] of the tile map, Kernel.tiles, from the key tiles e[1] .. e[2] - 1, of n keys each: which hold a key that a query at one of the positions val b .. val bar
                    (-1: any query) sees (Kernel.guard, at AXIS q and AXIS k), and which of these all of them see as a whole, up to its n-th key.  Words from e[0] on: bit j % 32
                    of word j / 32 is set if tile j is one of the former; before them MAP_HEAD words, MapHead.  For each key tile scalars
                    dst and col are its first and its last key, and the body is run; then e[3] (may a query see a key?) and e[4] (do all see all?) may
                    settle it; elements are asked where they do not */
    /* ---- inversions of block lists, at batch e[0], head e[1], of e[3] blocks; Kernel.invert has the tensors; dst, a and b are tables to work in.
     * An entry of a list counts if its block is in 0 .. e[3] - 1, its slot below the count of the list, and no earlier slot of the list has the same
     * block.  Chunk c: lists (of queries) c * invert.chunk .. + invert.chunk - 1, of those that there are */
    TI_COUNT_LISTS, /* chunks[.., c = e[2], j] = entries that count of chunk c and have a block below j, for each j = 0 .. e[3] */
    TI_SCAN_LISTS,  /* columns j = e[2] .. e[2] + invert.columns - 1, of those up to e[3]: first[.., j] = the sum of chunks[.., c, j] over all c; then
                    chunks[.., c, j] = the sum of those of earlier chunks */
    TI_INVERT_LISTS /* entry[.., p] = list * slots + slot for each entry of chunk c = e[2] that counts, j being its block; p = first[.., j] (entries of lower
                    blocks) + chunks[.., c, j + 1] - chunks[.., c, j] (of block j in earlier chunks) + how many lists of the chunk before it have j.
                    Ids are int32: lists * slots < 2^31 */
} TileOp;
extern const char *const ag_tile_op_name[];

typedef struct Ins Ins;
typedef struct Block {
    Ins *first, *last;
} Block;
struct Ins {
    TileOp op;
    int dst, a, b; /* values (a of TI_COPY: tensor); -1: none */
    int n;         /* TI_WAIT: groups; TI_SYNC: barrier; TI_STORE, TI_STORE_ROW: tensor; TI_LOOP: step */
    Op reduce;
    int col;                 /* TI_MMA, TI_STORE: the first column, else 0 */
    bool own;                /* TI_COPY */
    bool async, trans, zero; /* async mma: runs until a TI_MMA_WAIT; async store: until a TI_STORE_WAIT */
    int bar;                 /* TI_COPY: mbarrier [stage e[0]] that its bytes count for, by TMA; -1: cp.async */
    Ref e[6];
    const uint64_t *turns; /* TI_ROW_ROTATE: [col] */
    Block body;
    Span span;        /* what in the spec or schedule it comes from */
    const char *note; /* a short comment for readers of the code; static text */
    Ins *prev, *next;
};

typedef enum BarrierKind {
    BARRIER_BLOCK,     /* __syncthreads */
    BARRIER_WARPGROUP, /* the 128 threads of each warpgroup of a role by themselves */
    BARRIER_WARP,      /* the threads of each warp by themselves */
    BARRIER_MBAR,      /* `stages` mbarriers in shared memory; a phase completes with `count` arrivals and all bytes that were announced */
    BARRIER_TURNS      /* the warpgroups of a role one after the other; the first begins */
} BarrierKind;
typedef struct Barrier {
    const char *name;
    BarrierKind kind;
    int stages, count;
    int offset; /* of stage 0 in shared memory, 8 bytes each; set by place, -1 before */
} Barrier;

typedef struct Role {
    const char *name; /* "all" on the portable path; "math" and "load" with wgmma */
    int warp0, warps;
    int regs;        /* registers per thread by setmaxnreg; 0: as launched */
    bool one_thread; /* its first thread alone runs the body */
    Block body;
} Role;

/* The first TEN_COUNT tensors of a kernel are what stands for q, k, v, o, lse and the other values of a row, used or not; others follow. */
enum { KERNEL_TENSORS = 26 };
typedef struct KernelTensor {
    const char *name;
    DType type;
    int rank;
    int cols;                      /* q k v o: extent of the last dim (D or Dv) */
    Size rows, heads;              /* q k v o lse: extents of dims 2 and 1 */
    Ref extent[ATTNGEN_MOST_DIMS]; /* of every dim, int nodes over sizes */
    bool output, optional, used;
    bool values; /* rows that weights meet: what stands for v */
    bool flat;   /* contiguous, and read by one subscript that is never outside */
    bool named;  /* by the spec, so that in CUDA its pointer and strides have prefixes, see emit_each.c */
    int program; /* index among the tensors of the program */
} KernelTensor;

/* What a KERNEL_SELECT ranks blocks of keys by: pooled key i stands for keys i * stride .. i * stride + size - 1; importance of block j is the sum over i of
 * (column sum i) * (keys that i and j share) / grain: what the reference has but for a constant factor, so that weights are whole numbers.  A list is a table of 8-byte keys, the highest first: the importance as an integer of the same order,
 * in the high half; ~block in the low half, so that of equals the lower block is higher; 0: none. */
typedef struct Rank {
    int size, stride, block; /* keys */
    int grain;               /* gcd of the three */
    int blocks;              /* completed by a step, whose pooled keys are blocks * block / stride */
    int history;             /* pooled keys of earlier steps that overlap those blocks: (size - 1) / stride */
    int unit;                /* rows of the tile that one row of the table of sums is for: a power of 2 that divides pack */
    int lanes;               /* that share the work for a query: a power of 2 */
    int count;               /* blocks of a list */
    int first, local;        /* always in the list: blocks below `first`; the query's own and the local - 1 before it */
    bool causal;             /* blocks past the query's own never are */
} Rank;
static inline int ag_rank_room(const Rank *r) {
    return (r->count + r->lanes - 1) / r->lanes * r->lanes;
} /* entries of a list, all lanes having as many */

/* Block lists and what their inversion consists of, in kernel tensors; -1: this kernel has it not.  All i32. */
typedef struct Inversion {
    int lists, counts;          /* [B, heads, lists, slots]; how many slots count: [B, heads, lists] */
    int chunks;                 /* [B, heads, chunks, blocks + 1]; read and written by TI_SCAN_LISTS */
    int first;                  /* [B, heads, blocks + 1]: where the entries of each block begin in `entry`; the last: how many there are */
    int entry;                  /* [B, heads, lists * slots]: ids of entries by block, ascending; undefined behind the last */
    int slots;                  /* of a list */
    int chunk, window, columns; /* queries of a chunk; blocks that a block of threads works on at a time; columns that one scans */
} Inversion;

/* The table of a union of block lists: blocks, which queries of the tile list each (bits), and what is needed on the way. */
enum { UNION_ROWS = 4, UNION_QUERIES = 16 /* at most */ };
static inline int ag_union_cols(int entries) { return (entries + 3) / 4 * 4; } /* read four at a time */

/* Words in front of the bits of a row of the tile map, by how far: tiles that hold a visible key; how many of them need no mask, which are all that there are in
 * MAP_BEGIN .. MAP_END - 1; from where on there are others.  MAP_BEGIN - 1 is one of those, or -1.  A row without tiles has the bit of tile 0, for whoever visits one at least. */
enum MapHead { MAP_TILES = 1, MAP_PLAIN, MAP_END, MAP_BEGIN, MAP_FIRST, MAP_HEAD = MAP_FIRST };
/* Whose walk along a row a TILE is: copies of keys, of values, everything else.  Each goes tile by tile. */
enum { WALK_K, WALK_V, WALK_OTHER, WALKS };

/* What a kernel is for: the simulator follows keys and query rows through attention alone. */
typedef enum KernelKind { KERNEL_ATTEND, KERNEL_GATHER, KERNEL_SELECT, KERNEL_EACH, KERNEL_INVERT, KERNEL_CLASSIFY } KernelKind;
enum { EACH_CHANNELS = 8 }; /* KERNEL_EACH: neighbouring channels of a row that one thread computes */
/* TI_ROWS: lanes of a row, a power of 2, so that it lies in one warp. */
static inline int ag_row_lanes(int cols) {
    int n = 1;
    while (n * EACH_CHANNELS < cols) n *= 2;
    return n;
}

/* One of several branches of a kernel: which keys its weights are of, and what its scores are made of (tensors of the kernel). */
typedef struct Joined {
    const Ast *mask, *score;
    int q, k, number; /* and the number of the branch in the spec */
} Joined;

typedef struct Kernel {
    KernelKind kind;
    Diag *d;
    Arena *arena;
    Joined branch[SPEC_MAX_BRANCHES];
    int nbranch;        /* 0: one attention, by score and mask of `spec` */
    const Spec *spec;   /* names of parameters, for printing; of a branch: it as a plain spec */
    const Derive *pool; /* SZ_SK counts its rows, not those of k; NULL */
    const Schedule *sched;
    const Target *target;
    Str name; /* extern "C" symbol */
    Nodes nodes;
    Val *val;
    int nval, capval;
    KernelTensor tensor[KERNEL_TENSORS];
    int ntensor;
    Role role[2];
    int nrole;
    Barrier barrier[12];
    int nbarrier;
    int threads, per_sm;
    int pack;         /* query heads per query in a tile: its row r is query first + r / pack, head first + r % pack; 1: one head's queries */
    int queries;      /* in a tile; queries * pack rows are in use, those behind are not; KERNEL_EACH: rows that a block writes of a head */
    Rank rank;        /* KERNEL_SELECT */
    Inversion invert; /* KERNEL_INVERT */
    bool persistent;  /* no more blocks than fit at once: each goes on to further tiles */
    bool counter;     /* the launch has a counter of tiles, which TI_FETCH moves; 0 before and after */
    bool bounded;     /* debug-hang: waits on mbarriers end after 2 s, with a message and a failed launch; the emitter alone heeds it */
    int shared_bytes; /* set by place */
    Ref chunk; /* int node over sizes: the launch is for that many queries at most, and is done again, with its neighbours, for the next ones; 0: for all at once.
                         Sq and off are those of the launch */
    Ref blocks;      /* launch formula over SIZE nodes: blocks, or with `persistent` tiles */
    Ref guard;       /* bool node: the mask with the bound of the key axis; true on plain steps */
    int key_loop;    /* value that counts key tiles (dst of its TI_LOOP) */
    Ref lo, hi;      /* VALs: key tiles [lo, hi) are visited; of listed blocks: tiles of the entries */
    Ref gap_at, gap; /* VALs: the loop counts steps [lo, hi), and steps from gap_at on are tiles `gap` further; 0: steps are tiles */
    int tiles; /* tensor of the tile map, see TI_CLASSIFY; 0: none.  The loop then counts steps, of which those that need a mask come first, then those that need none,
                        each in the order of the keys: the n-th has key tile TILE(tile_row, n) */
    Ref tile_row; /* VAL: where in it the bits of the running tile begin; 0 likewise */
    const Ins *
        entries; /* KERNEL_GATHER: the TI_ENTRIES whose queries are rows.  A row number of queries is one of entries then: row r of a tile that begins at
                               x stands for the query of entry x + r / pack, and what is stored goes to row number `entry` of the tensor */
    const Ins *list; /* the TI_LIST whose blocks are visited, or whose slots TI_MERGE reads; NULL: all keys are */
    const Derive *
        forced; /* the selection of the list, whose forced blocks the kernel leaves out; NULL: it visits all.  KERNEL_INVERT and TI_MERGE: slot n is entry n +
                               forced->first then, and counts if its block is not forced (ag_forces) */
    int forced_rows, forced_lse; /* with TI_MERGE: tensors of what forced blocks give */
    bool unique;                 /* no block is twice in a list */
    Ref clear_lo, clear_hi;      /* keys between which the spec's mask is true for every query row of the tile; 0: unbounded */
    bool never_clear;            /* there is no such range */
    Ref plain_lo, plain_hi;      /* VALs, set by split: steps [plain_lo, plain_hi) need no guard; 0: none are told apart */
    Slot slot[META_SLOTS];       /* argument struct, set by place */
    int nslot, param_bytes;
    TmapMeta tmap[META_TMAPS]; /* how tensors are read by TMA: SLOT_TMAP's `index` counts these */
    int ntmap;
    Str numerics; /* class, e.g. "f32acc-ex2-n64" */
} Kernel;

/* ---- tile.c: building and editing */
/* name: its symbol, cut if it is too long for one. */
Kernel *ag_kernel_new(Diag *d, const Spec *spec, const Schedule *s, const Target *t, Str name);
static inline int ag_panel_cols(int cols) { return (cols + 63) / 64 * 64; } /* columns that a tile kept as panels takes */
/* Panels of a tile that one TMA moves: all if they are full and more than one, 0: one at a time. */
static inline int ag_panels_at_once(int cols) { return cols % 64 == 0 && cols > 64 ? cols / 64 : 0; }
int ag_val(Kernel *k, Val v); /* adds a value, returns its index */
int ag_val_scalar(Kernel *k, const char *name, Type t);
int ag_val_shared(Kernel *k, const char *name, DType type, int rows, int cols); /* a tile of one stage, not placed yet */
int ag_val_table(Kernel *k, const char *name, int rows, int cols);              /* i32 in shared memory, for place to place */
int ag_kernel_tensor(Kernel *k, KernelTensor t);                                /* adds one behind the five, returns its index */
Ins *ag_ins(Kernel *k, TileOp op, int dst);                                     /* fresh, unlinked; operands -1 */
void ag_block_append(Block *b, Ins *i);
int ag_let(Kernel *k, Block *to, const char *name, Ref e, const char *note); /* a scalar that is e from here on, of e's type; its value */
void ag_block_insert_before(Block *b, Ins *at, Ins *i);                      /* at NULL: at the end */
void ag_block_insert_after(Block *b, Ins *at, Ins *i);                       /* at NULL: at the start */
void ag_block_remove(Block *b, Ins *i);
void ag_block_move(Block *to, Block *from);                  /* all of it to the end of `to` */
Ins *ag_ins_clone(Kernel *k, const Ins *i);                  /* deep */
void ag_remove_dead_lets(Kernel *k, Block *b);               /* scalars of b that nothing in it reads; Kernel.lo and hi stay */
bool ag_reads_val(const Kernel *k, const Block *b, int val); /* does an instruction of b? */
Ref ag_kval(Kernel *k, int val);                             /* VAL node of a value */
bool ag_expr_uses(const Kernel *k, Ref r, Op op, int index); /* does r read this leaf? */
bool ag_reads_captured(const Kernel *k, Ref r);              /* does r depend on elements of captured tensors? */
bool ag_has_mbarriers(const Kernel *k);
int ag_walks(const Kernel *k, const Block *b); /* of the tile map: bit WALK_* for each that b has */

/* ---- tile_reach.c */
/* What an int stays within.  wraps: an operation of the spec's that may leave 32 bits; what attngen itself computes never does. */
typedef struct IntReach {
    int64_t least, most;
    bool wraps;
} IntReach;
typedef struct IntReaches { /* of the nodes below n, as far as they have been asked for */
    IntReach *of;
    int n;
} IntReaches;
IntReach ag_reach(const Kernel *k, Ref r);
IntReach ag_reach_among(const Kernel *k, IntReaches *all, Ref r); /* the same where many are asked for, and values have all that is known of them */
bool ag_nonneg(const Kernel *k, Ref r);                           /* int node that is provably >= 0 */
bool ag_is_of_spec(const Kernel *k, Ref r); /* an operation or leaf that stands in the spec, and not one that attngen has made */

/* ---- tile_dump.c, tile_check.c */
void ag_tile_dump(Buf *out, const Kernel *k);
void ag_tile_dump_ins(Buf *out, const Kernel *k, const Ins *i); /* one instruction, without its body and note */
/* Verifies spaces, shapes, layouts, operand order, uniformity of conditions, partial rows not read as totals; reports with ag_internal. */
void ag_tile_check(const Kernel *k, unsigned facts);
/* ---- pass_place.c: what the pass counts */
/* What must be held at once, in 32-bit registers per thread: accumulators; operands that stay in registers (Q, or the weights beside the next scores). */
typedef struct Held {
    int scores, output, operand;
} Held;
typedef struct Budget {
    Held held;
    int registers, shared; /* at most: per thread that computes; bytes per block */
} Budget;
Budget ag_place_budget(const Kernel *k);
void ag_place_arguments(Kernel *k);            /* the argument struct alone */
bool ag_is_scale_log2e(const Nodes *p, Ref r); /* the parameter `scale` times log2(e), an argument of its own */
/* ---- emit.c */
/* spec: what the file is of; kernels run in order.  at (may be NULL): where the text of each of several begins; what all need stands before the first. */
void ag_emit(Buf *out, const Spec *spec, Kernel *const *kernel, int n, size_t *at);
/* ---- kernel_meta.c: what the runtime needs */
void ag_program_meta(ProgramMeta *out, const Spec *spec, Kernel *const *kernel, int n);

/* ---- simulate.c
 * Runs the kernel for every block of the launch on host tensors, with its tiles, rounding points and synchronisation.  Roles are coroutines.
 * Returns false and one message ("simulated block 3 (m 1, h 0, b 0): copy K [stage 1]: ...") at the first protocol error:
 * read before the data arrives, overwrite before release, out of bounds, deadlock, unwritten output, stale reference (rescale missing), a visible key not
 * visited, a hidden key not masked, a key visited twice. */
struct HostCall;
bool ag_simulate(const Kernel *k, const struct HostCall *call, Buf *message);
#endif
