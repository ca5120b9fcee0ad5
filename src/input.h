/* input.h: what the user wrote: YAML documents, expressions, the spec, the schedule; and the target.  Everything lives in the Diag's arena. */
#ifndef AG_INPUT_H
#define AG_INPUT_H

#include "op.h"

/* ---- doc.c: strict YAML subset from libyaml events
 * Rejected, each with its own message: anchors, aliases, merge keys, tags, a second document, duplicate keys, empty and non-scalar keys, NUL,
 * control characters, invalid UTF-8, UTF-16, directives other than %YAML 1.1/1.2, depth > 32, file > 1 MiB, nodes > 20 000, scalar > 64 KiB.
 * A UTF-8 byte order mark is skipped. */
typedef enum DocKind { DOC_SCALAR, DOC_LIST, DOC_MAP } DocKind;
typedef struct Doc Doc;
struct Doc {
    DocKind kind;
    Span span;           /* scalars: the text without quotes; collections: their first line */
    Str text;            /* scalars */
    bool quoted;         /* scalars: was in quotes, so it is text and nothing else */
    const uint32_t *map; /* scalars: source offset of each byte of text and of its end (text.n + 1 entries), or NULL if text[i] is at span.off + i */
    Doc **item;          /* lists and maps: values */
    Doc **key;           /* maps: keys (scalars) */
    int n;
};
/* Parses file `file` of d.  Returns NULL for an empty document, and after errors (which are reported). */
Doc *ag_doc_parse(Diag *d, uint16_t file);
Doc *ag_doc_get(const Doc *map, const char *key);      /* NULL if absent */
Span ag_doc_sub(const Doc *scalar, int from, int len); /* span of text[from .. from+len) in the source */
/* ---- doc_read.c
 * Typed reading; each reports and returns false if the scalar is not of the type.  Ranges inclusive. */
bool ag_doc_int(Diag *d, const Doc *x, const char *what, int64_t min, int64_t max, int64_t *out);
bool ag_doc_float(Diag *d, const Doc *x, const char *what, double *out); /* finite */
bool ag_doc_bool(Diag *d, const Doc *x, const char *what, bool *out);    /* exactly true / false; yes, no, on, off get a hint */
bool ag_doc_enum(Diag *d, const Doc *x, const char *what, const char *const *names, int *out);
/* Reports every key of `map` that is not in names (NULL-terminated), with the nearest name. */
void ag_doc_check_keys(Diag *d, const Doc *map, const char *what, const char *const *names);

/* ---- expr.c (parser), expr_type.c (names and types), expr_print.c */
typedef struct Ast Ast;
struct Ast {
    Op op; /* CONST AXIS SIZE PARAM SCORE LET LOAD BRANCH, or an elementwise op; TOFLOAT inserted by typing */
    Type type;
    Span span;
    Scalar value; /* CONST */
    int index;    /* AXIS: Axis, SIZE: Size, PARAM, LET, LOAD, BRANCH: index in spec->param, ->let, ->input, ->branch */
    Str name;     /* before typing: an unresolved name, called function or indexed input */
    Ast *arg[3];
    int part;  /* not 0: it is what the name of spec->batch[part - 1] stands for */
    Ast **sub; /* LOAD: nsub subscripts, one for each dim of the input, ints */
    int nsub;
};

typedef struct Param {
    Str name;
    Type type;     /* T_INT or T_FLOAT (T_BOOL allowed) */
    Scalar value;  /* default, or what was bound at compile time */
    bool bound;    /* bound at compile time: a constant */
    bool positive; /* known > 0 and checked at launch: `scale`, and sizes of parts of the batch */
    bool part;     /* the size of a part of the batch */
    Span span;
} Param;

typedef struct Let {
    Str name;
    Ast *value; /* NULL if it had errors */
    Span span;
    int depth;       /* levels of its tree, those of the lets that it names included */
    bool uses_score; /* names s, itself or through other lets */
    Scalar constant; /* its value if that is known now; type T_NONE otherwise */
    bool uses_key;   /* names k, itself or through other lets */
} Let;

/* Element types of tensors; storage (Spec's dtype) is one of the first two, an accumulator the third. */
typedef enum DType { DT_F16, DT_BF16, DT_F32, DT_I32, DT_I64, DT_U8, DT_BOOL, DT_COUNT } DType;
extern const char *const ag_dtype_name[]; /* "f16" "bf16" "f32" "i32" "i64" "u8" "bool" */
int ag_dtype_bytes(DType t);
Type ag_dtype_value(DType t); /* what an element is in an expression: floats T_FLOAT, ints T_INT, bool T_BOOL */

/* ---- what a spec with inputs, derived tensors and branches has besides; see docs/spec.md */

enum {
    INPUT_MAX_DIMS = ATTNGEN_MOST_DIMS,
    SPEC_MAX_INPUTS = 12,
    SPEC_MAX_DERIVES = 8,
    SPEC_MAX_BRANCHES = 4,
    SPEC_MAX_NORMS = 4,
    SELECT_MAX_COUNT = 64
};

/* A whole number that is fixed at compile time: a literal, or the value of a parameter, which is bound then. */
typedef struct Fixed {
    int n;
    int param; /* index in spec->param; 0 (that is `scale`): a literal */
} Fixed;

typedef enum DimKind { DIM_AXIS, DIM_CONST } DimKind;
typedef struct Dim {
    DimKind kind;
    Axis axis; /* DIM_AXIS: as many elements as the axis has, see ag_input_extent */
    int part;  /* not 0: spec->batch[part - 1], a part of axis b, whose name alone can be its subscript; no more than B elements */
    Fixed n;   /* DIM_CONST: elements; one that has 1 is read at 0 whatever the subscript */
} Dim;

/* A captured tensor.  Reading it past the end of a dim gives 0. */
typedef struct Input {
    Str name;
    DType type;   /* of the elements */
    bool storage; /* written `dtype`: the storage type */
    int rank;     /* 0: a scalar; -1: had errors */
    Dim dim[INPUT_MAX_DIMS];
    bool values; /* its axis d has Dv elements, not D: it is read as values or in `output` */
    int per;     /* a block list: queries per row of its axis q; 1 for everything else */
    Span span;
} Input;

/* Where queries, keys, values, pooled rows, importance or lists come from; index: in spec->input, ->derive or ->branch. */
typedef enum SourceKind { FROM_NONE, FROM_Q, FROM_K, FROM_V, FROM_INPUT, FROM_DERIVE, FROM_BRANCH } SourceKind;
typedef struct SpecRef {
    SourceKind kind;
    int index;
} SpecRef;

/* POOL: [b, g, block, d] in the storage type: block i is the (weighted) mean of rows i * stride .. i * stride + size - 1 of the source, of those
 * that exist.  SELECT: i32 [b, g or h, q, count]: for each query the `count` blocks of highest importance, ascending, -1 at the end. */
typedef enum DeriveKind { DERIVE_NONE /* had errors */, DERIVE_POOL, DERIVE_SELECT } DeriveKind;
typedef struct Derive {
    Str name;
    DeriveKind kind;
    SpecRef source; /* POOL: K, V or INPUT; SELECT: BRANCH (probabilities over pooled keys) or DERIVE (a pool: plain q . key) */
    /* pool */
    Fixed size, stride;
    bool partial; /* tail: partial: blocks that begin before Sk; else those that end there or before */
    int weights;  /* input with one weight per row of a block; -1: all alike */
    /* select */
    Fixed block, count; /* keys per block; blocks per list */
    Fixed first, local; /* always selected, and counted: blocks 0 .. first - 1; the query's own block and the local - 1 before it */
    bool per_head;      /* share: head; else one list for the query heads of a KV head, by the sum of their importance */
    bool causal;        /* only blocks that begin at or before the query's position */
    Span span;
} Derive;

/* One attention with a softmax of its own. */
typedef struct Branch {
    Str name;
    SpecRef queries;           /* Q or INPUT */
    SpecRef keys, values;      /* K, V, INPUT or DERIVE (pools; both or neither) */
    SpecRef blocks;            /* NONE: all keys; DERIVE: a select; INPUT: i32 [b, g or h, q, N] */
    int counts;                /* INPUT lists: input with the number of entries that count; -1: all */
    Fixed block, per;          /* keys per block; queries per list (1 for a select) */
    bool per_head;             /* the lists are by h, not g */
    Ast *score, *mask, *weigh; /* as in Spec; k is the position of a key, for pooled keys their index; Sk the number of keys */
    bool apart;                /* of a program that is being compiled: its forced blocks have a kernel of their own (loop.forced) */
    bool bad;                  /* had errors */
    Span span;
} Branch;

/* What is done to the rows of q or of k before attention reads them, in this order (`prologue`). */
typedef enum StepKind { STEP_SCALE, STEP_NORM, STEP_ROPE } StepKind;
typedef enum RowsOf { ROWS_NONE, ROWS_Q, ROWS_K } RowsOf;
/* A float that is fixed at compile time, as Fixed. */
typedef struct FixedFloat {
    double x;
    int param;
} FixedFloat;
typedef struct RowStep {
    StepKind kind;
    Ast *factor; /* SCALE; NORM: the weight, NULL: none.  At a channel d of a row */
    FixedFloat eps;
    int weight;        /* NORM: the input that `factor` reads; -1 */
    Fixed channels;    /* ROPE: of the row, the first so many; even */
    bool interleaved;  /* pairs are channels 2i and 2i + 1; else i and i + channels / 2 */
    FixedFloat theta;  /* of pair i at position p the angle is p theta^(-2i / channels), or tables are read */
    int table[2];      /* inputs: cosines and sines; -1 */
    Ast *value[2];     /* with tables: cosine and sine of pair d of the row */
    Ast *position;     /* of the row, an int */
    bool own_position; /* it is the row's own, and was not written */
    Span span;
} RowStep;
/* scale * dot(x, y) beside s: x, an input [b, h, q, N], and y, [b, g, k, N]. */
typedef struct Dot {
    int x, y;
    Span span;
} Dot;
enum { SPEC_MAX_DOTS = 4 };
enum { PROLOGUE_STEPS = 8 };
typedef struct Prologue {
    RowStep step[PROLOGUE_STEPS];
    int n;
} Prologue;
/* What O is, of x(k), the scores of the visible keys:  SOFTMAX  sum exp(x) V / (sum exp(x) + plus)   SUM  sum x V / (sum x + eps)   NONE  sum x V */
typedef enum Normalize { NORMALIZE_SOFTMAX, NORMALIZE_SUM, NORMALIZE_NONE } Normalize;

/* What can be put out of each query row beside O, in tensors [B, Hq, Sq] of f32.  MAX: the largest score x(k), -inf where no key is seen.  MEAN: the mean of `weigh`
 * under the weights of the softmax, sum of exp(x - LSE) w; 0 where no key is seen. */
typedef enum RowValue { ROWV_LSE, ROWV_MAX, ROWV_MEAN, ROWV_COUNT } RowValue;
extern const char *const ag_row_value_name[]; /* "lse" "max" "mean_weight", NULL */

/* A part of the batch: b counts all parts, the last one fastest. */
typedef struct BatchPart {
    Str name;
    int param; /* its size, an int parameter of the same name; 0: the first part, whose size is what B leaves */
} BatchPart;
enum { SPEC_MAX_BATCH = 4 };

typedef struct Spec {
    Str name, doc;
    BatchPart batch[SPEC_MAX_BATCH];
    int nbatch;   /* 0: b has no parts */
    Param *param; /* [0] is `scale`: float, positive; its default 1/sqrt(D) unless the spec gives a number */
    int nparam;
    bool scale_given;
    Let *let;
    int nlet;
    Ast *score; /* float; NULL = s itself */
    Ast *mask;  /* bool; NULL = every key */
    Ast *weigh; /* float: by what a key's weight is multiplied before it meets V, but not in the denominator; NULL = 1 */
    Normalize normalize;
    Ast *plus; /* float, one for each query: what the softmax's denominator has besides; NULL = nothing */
    Ast *eps;  /* likewise that of `sum` */
    bool rows_given;
    unsigned rows; /* if they are given: bit per RowValue that is put out; else the LSE is */
    Input *input;
    int ninput;
    Derive *derive;
    int nderive;
    Branch *branch; /* none: one plain attention by score and mask above; else those two are NULL */
    int nbranch;
    Ast *output; /* float, at [b, q, h, d]; NULL: what the only branch gives */
    int joined;  /* of branches that are one kernel: how many, in `branch`; nbranch is 0 then, and `output` theirs */
    int beside;  /* of one branch as a plain spec: ag_output_registers of the program, whose kernels have tiles alike */
    int group;   /* Hq / Hkv pinned by `heads: {group: N}`; 0 = any */
    Dot dot[SPEC_MAX_DOTS];
    int ndot;
    Prologue prologue[2]; /* of the rows of q, of those of k */
    Span span, group_span;
    /* bound at compile time */
    int D, Dv;
    int queries; /* of the launches that it is for; 0: many.  A matter of speed alone */
    DType dtype;
} Spec;
static inline Prologue *ag_prologue(Spec *s, RowsOf rows) { return &s->prologue[rows == ROWS_K]; }
/* Are there rows of q (false) or k that differ from what is given: changed, or with channels appended? */
static inline bool ag_makes_rows(const Spec *s, bool of_k) { return s->prologue[of_k].n || s->ndot; }
static inline bool ag_has_prologue(const Spec *s) { return ag_makes_rows(s, false) || ag_makes_rows(s, true); }
/* ---- spec_dot.c */
int ag_dot_channels(const Spec *s);            /* of all terms; rows that are made have D and so many */
Spec *ag_attention_spec(Arena *a, Spec *spec); /* as attention has it: sums with dots are s, D all channels of its rows; `spec` itself without dots */
/* Per expression: nesting (parentheses, arguments, prefix operators), nodes; levels of a tree, lets looked through: walks may recurse that deep; terms of a sum.
 * Per spec: lets, and scalar parameters with `scale`. */
enum { EXPR_MAX_DEPTH = 64, EXPR_MAX_NODES = 4096, EXPR_MAX_LEVELS = 1024, EXPR_MAX_TERMS = 64, SPEC_MAX_LETS = 64, SPEC_MAX_PARAMS = 32 };

/* Reads doc into a Spec; reports all errors; NULL if nothing usable.  dims are applied: D, Dv, dtype, params. */
Spec *ag_spec_read(Diag *d, uint16_t file, const attngen_dim *dims, size_t ndims);
/* Parses and types one expression of a scalar node.  want: T_BOOL (a mask: no s), T_FLOAT (a score: an int is promoted) or T_NONE (any type).
 * All of spec->let is visible.  NULL after errors. */
Ast *ag_expr_read(Diag *d, Spec *spec, const Doc *text, Type want);
/* Prints with the fewest parentheses that parse back to the same tree; names as the spec has them. */
void ag_expr_print(Buf *out, const Spec *spec, const Ast *e);
void ag_spec_print(Buf *out, const Spec *spec); /* spec_print.c: as YAML that reads back to the same spec */
void ag_row_step_print(Buf *out, const Spec *spec, const RowStep *s);
/* ---- spec_shape.c: sizes of what a spec names, for the sizes of a launch; and what of inputs its scores read */
/* Does its score or mask (of a plain spec) read elements of captured tensors that differ from query to query and from key to key, take remainders of keys, or
 * read elements by key in one of several alternatives; or keys' positions in a score that is a weight?  Each takes registers. */
bool ag_reads_elements(const Spec *spec);
/* What its score reads of captured tensors of the storage type in a form that comes in tiles or rows of keys: t[.., q, k], t[.., k], of so many dims at most. */
enum { ELEMENT_TILE_DIMS = 4 };
typedef struct ElementTiles {
    int tiles, rows;
} ElementTiles;
ElementTiles ag_element_tiles(const Spec *spec);
bool ag_elements_in_tiles(const Spec *spec);        /* one tile, and no other elements by query and key than those in it */
int ag_element_loads(const Spec *spec);             /* how many of these it has, each let once */
bool ag_scores_products(const Spec *spec);          /* does each score, of every branch, read s? */
bool ag_scores_positions(const Spec *spec);         /* does its score read q or k? */
bool ag_scores_captured(const Spec *spec);          /* does a score or mask, of a branch too, read captured tensors? */
bool ag_puts_out(const Spec *spec, RowValue value); /* a value of one softmax, which is that of what is put out */
bool ag_has_lse(const Spec *spec);                  /* is there one LSE: of one softmax, and of what is put out? */
/* Of one attention kernel: tiles of queries, of keys and of values, fragments of products with keys, accumulators. */
typedef struct Tiles {
    int q, k, v, scores, outputs;
} Tiles;
Tiles ag_tiles(const Spec *spec);
int ag_branch_weigh_rows(const Branch *b);        /* the input whose product with the keys its `weigh` reads; -1 */
bool ag_reads_mean(const Spec *spec, int branch); /* does the output read the mean weight of the branch? */
/* Why the branches cannot be one kernel, in words; NULL if they can. */
const char *ag_not_joined(const Spec *spec);
Spec *ag_joined_spec(Arena *a, const Spec *spec); /* that kernel's */
bool ag_join_pays(const Spec *spec);              /* is that kernel faster, of branches that can be one? */
int ag_weigh_rows(const Spec *spec);              /* the input whose product with k `weigh` reads; -1 */
bool ag_keeps_maximum(const Spec *spec);          /* must each step of the keys know its exact maximum? */
int ag_means(const Spec *spec);                   /* mean weights that its output reads */
bool ag_is_norm(Op op);                           /* one over the channels of a row */
int ag_norms(const Spec *spec);                   /* how many norms over channels its output has */
int64_t ag_part_extent(const Spec *spec, int part, int64_t B,
                       const double *scalar); /* elements of a dim that is a part of the batch; scalars of the launch */
int ag_output_registers(const Spec *spec);    /* that a norm over channels in its output takes beside the accumulator on mma_sync, about */
int64_t ag_input_extent(const Spec *spec, int input, int dim, const int64_t size[SZ_COUNT]); /* elements of one dim */
int ag_source_cols(const Spec *spec, SpecRef keys_or_values);                                /* D or Dv */
int64_t ag_pool_count(const Derive *pool, int64_t Sk);                                       /* pooled rows */
int64_t ag_block_count(const Fixed *block, int64_t Sk);                                      /* blocks that begin before Sk */
int64_t ag_branch_keys(const Spec *spec, int branch, int64_t Sk);                            /* keys of a branch */

/* ---- target.c */
typedef struct Target {
    const char *name; /* "sm_80" */
    int sm;           /* 80 */
    int shared_max;   /* bytes per block, opt-in */
    int shared_sm;    /* bytes per SM; each resident block costs 1 KB more than it asks for */
    int regs_sm, regs_thread, threads_block, threads_sm, blocks_sm;
    bool has_cp_async, has_mma_bf16, has_wgmma;
    const char *portable; /* target of the kernels that run here too and take any tensor; NULL: those of this target do */
} Target;
const Target *ag_target_find(const char *name); /* NULL if unknown */
const Target *ag_target_at(size_t index);       /* NULL past the end */
const Target *ag_target_of_device(int sm);      /* the one with the most for a device of this compute capability (90: 9.0); NULL if there is none */

/* ---- schedule.c */
typedef enum Decided { BY_FILE, BY_RULE, BY_DEFAULT } Decided; /* who decided a field: the file, a rule for `auto`, or the field's default */
typedef struct Field {
    int64_t v; /* int, bool, or index of the enum value */
    Decided by;
    bool open;       /* `auto`, to be closed by ag_schedule_close */
    Span span;       /* the value in the file; file 0 if not there */
    const char *why; /* BY_RULE: the rule in words */
} Field;

/* Every field of attngen.schedule/1; the table with names, kinds, ranges and docs is schedule.def. */
typedef enum FieldId {
#define FIELD(id, path, kind, min, max, step, deflt, names, doc) F_##id,
#include "schedule.def"
#undef FIELD
    F_COUNT
} FieldId;

/* What schedule.def says of each field. */
typedef enum FieldKind { FIELD_INT, FIELD_BOOL, FIELD_ENUM } FieldKind;
enum { FIELD_AUTO = -1 }; /* as a default: closed by a rule */
typedef struct FieldInfo {
    const char *path;
    FieldKind kind;
    int min, max, step, deflt;
    const char *names, *doc; /* names: values of an enum, separated by blanks */
} FieldInfo;
extern const FieldInfo ag_field[F_COUNT];
typedef enum StoreWay { STORE_SMEM, STORE_DIRECT, STORE_TMA } StoreWay;                          /* values of F_O_STORE */
typedef enum Persistence { PERSISTENT_NONE, PERSISTENT_STATIC, PERSISTENT_DYNAMIC } Persistence; /* of F_PERSISTENT */
typedef enum WeightsIn { WEIGHTS_REGS, WEIGHTS_SMEM } WeightsIn;                                 /* of F_P_OPERAND */
typedef enum ForcedBlocks { FORCED_LISTED, FORCED_APART } ForcedBlocks;                          /* of F_FORCED */
typedef enum ListOrder { LISTS_BY_QUERY, LISTS_BY_BLOCK, LISTS_UNITED } ListOrder;               /* of F_LISTS */
typedef enum BranchOrder { BRANCHES_APART, BRANCHES_FUSED } BranchOrder;                         /* of F_BRANCHES */
typedef enum Family { FAMILY_MMA_SYNC, FAMILY_WGMMA } Family;                                    /* values of F_MMA_FAMILY */
Str ag_field_word(const FieldInfo *info, int64_t v);                                             /* value v of an enum or a bool as it is written */

typedef struct Schedule {
    Str name, notes;
    Field f[F_COUNT];
    uint32_t arch_mask; /* bit i: ag_target_at(i) is listed under target.arch */
    Span arch_span;
    int head_dim_min, head_dim_max; /* applies_to.head_dim, of max(D, Dv) */
    Span head_dim_span;
    struct {
        unsigned dtypes;     /* bit per DType, 0: any */
        bool masked;         /* specs with a mask only */
        bool branches;       /* specs whose branches are one kernel only */
        bool quick_start;    /* until the kernel under the one that fits best is compiled, see attngen_options.quick_start */
        bool elements;       /* specs that read elements (ag_reads_elements) only */
        bool staged;         /* of these, specs whose elements come in tiles (ag_elements_in_tiles) */
        int64_t max_queries; /* launches with up to so many only, 0: any */
        int64_t max_loads;   /* specs with up to so many elements for each score only (ag_element_loads), 0: any */
    } default_for;           /* without a schedule of the user's: for what a shipped one is taken */
    bool has_lists;          /* closed for a spec with block lists */
    bool has_forced;         /* and some of them can have their forced blocks apart (ag_can_part) */
    bool has_elements;       /* closed for a spec that reads elements in tiles or rows of keys (ag_element_tiles) */
    bool has_branches;       /* and for one with several branches */
    int order[3];            /* grid.order, fastest first: AX_Q (written m), AX_H, AX_B */
    Span order_span;
} Schedule;
/* Why a field has no effect with the schedule's mma.family, in words; NULL if it has. */
const char *ag_field_idle(const Schedule *s, FieldId id);
bool ag_field_has_effect(const Schedule *closed, FieldId id); /* with all other fields as they are; a file that gives one that has none is refused */
/* Reads and checks one file against its table.  NULL after errors. */
Schedule *ag_schedule_read(Diag *d, uint16_t file);
/* ---- schedule_close.c
 * Closes every `auto` for this spec and target and checks that the schedule applies to them (arch, head dim). */
enum { GATHER_KEYS = 128 };          /* of a block that is visited by the queries that list it */
enum { UNION_ENTRIES = 512 };        /* of the lists that a tile unites */
enum { MAX_QUERIES = 1 << 29 };      /* of a launch */
enum { MANY_QUERIES = 1024 };        /* from there on block lists may be visited block by block */
bool ag_can_gather(const Branch *b); /* lists of single queries, and such blocks */
/* ---- spec_forced.c */
bool ag_can_part(const Spec *s, const Branch *b); /* a causal selection, which has its forced blocks at both ends of its lists, and others */
bool ag_forces(const Derive *select, int64_t q,
               int64_t block); /* does it always select this block, which is none behind the query's own, for a query at position q? */
int ag_listed_united(const Spec *s, const Branch *b); /* tile_list.c: the queries of a tile whose lists are united; 0: no tile has several */
void ag_schedule_close(Diag *d, Schedule *s, const Spec *spec, const Target *t);
bool ag_schedule_is_for(const Schedule *s, const Target *t); /* target.arch has it */
int ag_barrier_bytes(const Schedule *s);                     /* of mbarriers and slots, of a closed schedule */
bool ag_own_output_tile(const Schedule *s, int D, int Dv);   /* wgmma: does O have shared memory of its own? */
void ag_schedule_print(
    Buf *out, const Schedule
                  *s); /* schedule_print.c: closed form: YAML that reads back, the fields with an effect, a comment per field saying who decided it */
/* Name of the shipped schedule for this spec and target, NULL if there is none: of those whose target.arch has the target and whose
 * applies_to.head_dim has max(D, Dv) and whose default_for has the spec: the first by name; or, if `queries` (of a launch, -1: not known) is known, of those made
 * for up to so many the one for the fewest. */
const char *ag_schedule_default(const Spec *spec, const Target *t, int64_t queries);
/* The n-th, from 1 on, of those with more registers for the score where the kernel spills under that one; NULL: there are fewer. */
const char *ag_schedule_fallback(const Spec *spec, const Target *t, int64_t queries, int n);
const char *ag_schedule_unstaged(const Spec *spec, const Target *t); /* the one that reads elements one by one */
const char *ag_schedule_quick(const Spec *spec,
                              const Target *t); /* the one for a quick start, or, where there is none for the spec, that of ag_schedule_default */

/* ---- shipped.c: specs/, schedules/ and templates/, embedded at build time */
typedef struct Shipped {
    const char *name; /* file name without folder and extension */
    const char *text;
    int len;
} Shipped;
const Shipped *ag_shipped_spec(size_t index); /* NULL past the end; sorted by name */
const Shipped *ag_shipped_schedule(size_t index);
#endif
