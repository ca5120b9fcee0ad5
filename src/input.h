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
    Op op; /* CONST AXIS SIZE PARAM SCORE LET, or an elementwise op; TOFLOAT inserted by typing */
    Type type;
    Span span;
    Scalar value; /* CONST */
    int index;    /* AXIS: Axis, SIZE: Size, PARAM: index in spec->param, LET: index in spec->let */
    Str name;     /* before typing: an unresolved name or called function */
    Ast *arg[3];
};

typedef struct Param {
    Str name;
    Type type;     /* T_INT or T_FLOAT (T_BOOL allowed) */
    Scalar value;  /* default, or what was bound at compile time */
    bool bound;    /* bound at compile time: a constant */
    bool positive; /* known > 0 and checked at launch: only `scale` */
    Span span;
} Param;

typedef struct Let {
    Str name;
    Ast *value; /* NULL if it had errors */
    Span span;
    int depth;       /* levels of its tree, those of the lets that it names included */
    bool uses_score; /* names s, itself or through other lets */
    Scalar constant; /* its value if that is known now; type T_NONE otherwise */
} Let;

typedef enum DType { DT_F16, DT_BF16, DT_F32 } DType;
extern const char *const ag_dtype_name[]; /* "f16" "bf16" "f32" */
int ag_dtype_bytes(DType t);

typedef struct Spec {
    Str name, doc;
    Param *param; /* [0] is `scale`: float, positive; its default 1/sqrt(D) unless the spec gives a number */
    int nparam;
    bool scale_given;
    Let *let;
    int nlet;
    Ast *score; /* float; NULL = s itself */
    Ast *mask;  /* bool; NULL = every key */
    int group;  /* Hq / Hkv pinned by `heads: {group: N}`; 0 = any */
    Span span, group_span;
    /* bound at compile time */
    int D, Dv;
    DType dtype;
} Spec;
/* Per expression: nesting (parentheses, arguments, prefix operators), nodes; and levels of a tree, lets looked through: walks may recurse that deep.
 * Per spec: lets, and scalar parameters with `scale`. */
enum { EXPR_MAX_DEPTH = 64, EXPR_MAX_NODES = 4096, EXPR_MAX_LEVELS = 1024, SPEC_MAX_LETS = 64, SPEC_MAX_PARAMS = 32 };

/* Reads doc into a Spec; reports all errors; NULL if nothing usable.  dims are applied: D, Dv, dtype, params. */
Spec *ag_spec_read(Diag *d, uint16_t file, const attngen_dim *dims, size_t ndims);
/* Parses and types one expression of a scalar node.  want: T_BOOL (a mask: no s), T_FLOAT (a score: an int is promoted) or T_NONE (any type).
 * All of spec->let is visible.  NULL after errors. */
Ast *ag_expr_read(Diag *d, Spec *spec, const Doc *text, Type want);
/* Prints with the fewest parentheses that parse back to the same tree; names as the spec has them. */
void ag_expr_print(Buf *out, const Spec *spec, const Ast *e);
void ag_spec_print(Buf *out, const Spec *spec); /* as YAML that reads back to the same spec */

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
typedef enum StoreWay { STORE_SMEM, STORE_DIRECT, STORE_TMA } StoreWay;                           /* values of F_O_STORE */
typedef enum Persistence { PERSISTENT_NONE, PERSISTENT_STATIC, PERSISTENT_DYNAMIC } Persistence; /* of F_PERSISTENT */
typedef enum WeightsIn { WEIGHTS_REGS, WEIGHTS_SMEM } WeightsIn;                                 /* of F_P_OPERAND */
typedef enum Family { FAMILY_MMA_SYNC, FAMILY_WGMMA } Family; /* values of F_MMA_FAMILY */
Str ag_field_word(const FieldInfo *info, int64_t v);          /* value v of an enum or a bool as it is written */

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
        int64_t max_queries; /* launches with up to so many only, 0: any */
    } default_for;           /* without a schedule of the user's: for what a shipped one is taken */
    int order[3]; /* grid.order, fastest first: AX_Q (written m), AX_H, AX_B */
    Span order_span;
} Schedule;
/* Why a field has no effect with the schedule's mma.family, in words; NULL if it has. */
const char *ag_field_idle(const Schedule *s, FieldId id);
bool ag_field_has_effect(const Schedule *closed, FieldId id); /* with all other fields as they are; a file that gives one that has none is refused */
/* Reads and checks one file against its table.  NULL after errors. */
Schedule *ag_schedule_read(Diag *d, uint16_t file);
/* ---- schedule_close.c
 * Closes every `auto` for this spec and target and checks that the schedule applies to them (arch, head dim). */
void ag_schedule_close(Diag *d, Schedule *s, const Spec *spec, const Target *t);
bool ag_schedule_is_for(const Schedule *s, const Target *t); /* target.arch has it */
int ag_barrier_bytes(const Schedule *s);                      /* of mbarriers and slots, of a closed schedule */
bool ag_own_output_tile(const Schedule *s, int D, int Dv); /* wgmma: does O have shared memory of its own? */
void ag_schedule_print(
    Buf *out, const Schedule
                  *s); /* schedule_print.c: closed form: YAML that reads back, the fields with an effect, a comment per field saying who decided it */
/* Name of the shipped schedule for this spec and target, NULL if there is none: of those whose target.arch has the target and whose
 * applies_to.head_dim has max(D, Dv) and whose default_for has the spec: the first by name; or, if `queries` (of a launch, -1: not known) is known, of those made
 * for up to so many the one for the fewest. */
const char *ag_schedule_default(const Spec *spec, const Target *t, int64_t queries);

/* ---- shipped.c: specs/, schedules/ and templates/, embedded at build time */
typedef struct Shipped {
    const char *name; /* file name without folder and extension */
    const char *text;
    int len;
} Shipped;
const Shipped *ag_shipped_spec(size_t index); /* NULL past the end; sorted by name */
const Shipped *ag_shipped_schedule(size_t index);
#endif
