/* math_ir.h: the Math IR, what is computed.  A DAG of nodes over the axes b h g q k d; see docs/design.md.
 *
 * Softmax is no primitive: lowering writes max, subtract, exp, sum, multiply; the online pass derives the one-pass form. */
#ifndef AG_MATH_IR_H
#define AG_MATH_IR_H

#include "input.h"
#include "node.h"

/* The tensors that every attention has.  A LOAD of tensor TEN_COUNT + i is an element of the spec's input i, 0 (false) where a subscript is outside of its dim. */
enum { TEN_Q, TEN_K, TEN_V, TEN_O, TEN_LSE /* and the other values of a row, in the order of RowValue */, TEN_MAX, TEN_MEAN, TEN_COUNT };
typedef struct MathTensor {
    const char *name;
    DType type;
    int rank;
    Axis axis[4]; /* q: b h q d; k, v: b g k d; o: b h q d; lse and other values of a row: b h q */
    Size size[4]; /* extent of each dim */
    bool output, optional;
} MathTensor;

/* One value carried over a stream of keys.  After step t over a set of keys:  new = combine(old * factor, reduce over the step's keys of body).
 * body and factor read other carries as CARRY (new) and CARRY old. */
typedef struct Carry {
    Str name;      /* "mx", "den", "acc" */
    Op combine;    /* OP_RMAX or OP_RSUM */
    Ref reduce;    /* the reduction node it computes */
    Ref body;      /* varies with k */
    Ref factor;    /* what `old` is multiplied by when its reference moves; 0: nothing */
    int reference; /* carry whose value the body is relative to; -1: none */
    double init;   /* identity of combine */
    uint8_t axes;  /* of the carried value: b, h, q, and what else its body varies with but k */
    Str law;       /* which laws gave the factor, for the dump */
} Carry;

/* One pass over an axis: the carries in an order such that each reads only earlier ones. */
typedef struct Stream {
    Axis axis; /* AX_K */
    Carry *carry;
    int ncarry;
} Stream;

/* Which keys matter to query positions [AXISMIN q, AXISMAX q], as int nodes over these, sizes and int params.  0 = unbounded on that side.
 * need: outside [need_lo, need_hi) every key is hidden from all of them.  plain: inside [plain_lo, plain_hi) every key is visible to all of them;
 * never_plain: no such range is known.  gap: inside [gap_lo, gap_hi), which may be empty, every key is hidden from all of them again; both 0: no gap is known. */
typedef struct KeyRange {
    Ref mask;    /* bool node; 0: every key is visible */
    Ref visible; /* the mask once more, with bounds of the row on k where it divides k or takes a distance */
    Ref need_lo, need_hi, plain_lo, plain_hi, gap_lo, gap_hi;
    bool never_plain, never_needed; /* never_needed: the mask is constant false */
} KeyRange;

enum { MATH_OUTS = 2 * SPEC_MAX_BRANCHES };
typedef struct MathOut {
    int tensor, branch; /* of several branches: whose */
    Ref value;          /* after online: in terms of CARRY (final) */
} MathOut;

typedef struct Math {
    Diag *d;
    const Spec *spec;
    Nodes nodes;
    MathTensor tensor[TEN_COUNT];
    MathOut out[MATH_OUTS];
    int nout;
    KeyRange range;
    Stream *stream;
    int nstream;
} Math;

/* Positions of queries and keys are in (-AG_POSITION_LIMIT, AG_POSITION_LIMIT), so that key ranges are exact in 32 bits, see pass_ranges.c. */
enum { AG_POSITION_LIMIT = 1 << 29 };

/* ---- lower.c: Spec -> Math (naive, whole-tensor) */
Math *ag_lower(Diag *d, const Spec *spec);
/* Rebuilds everything that m refers to in a fresh pool, folded, replacing nodes as ag_node_rebuild does; what nothing refers to is gone.
 * swap (may be NULL) is called with old Refs and answers with Refs of *to. */
void ag_math_rebuild(Math *m, Nodes *to, Ref (*swap)(void *payload, Ref r), void *payload);
/* ---- range_share.c: named[r] = true for the ints that are to be computed once for all bounds of m->range, by node */
void ag_range_shared(const Math *m, bool *named);
/* ---- math_dump.c, math_check.c */
void ag_math_dump(Buf *out, const Math *m);
/* Verifies types, operands, axes, subscripts, streams; reports with ag_internal.  `facts`: what passes so far have made, see compile.h. */
void ag_math_check(const Math *m, unsigned facts);
#endif
