/* op.h: scalar operations and their types (op.c); the facts are in op.def. */
#ifndef AG_OP_H
#define AG_OP_H

#include "base.h"

typedef enum Op {
#define OP(id, name, arity, spelling, prec, rule, cuda, flags) OP_##id,
#include "op.def"
#undef OP
    OP_COUNT
} Op;

typedef enum Type { T_NONE, T_BOOL, T_INT, T_FLOAT } Type; /* bool, 32-bit int, 32-bit float in kernels; double and int64 in the reference */

typedef enum OpRule { RULE_NUM, RULE_FLT, RULE_CMP, RULE_LOG, RULE_SEL, RULE_TOINT, RULE_TOFLT, RULE_REF } OpRule;

typedef struct OpInfo {
    const char *name;
    int arity;
    const char *spelling;
    int prec;
    OpRule rule;
    const char *cuda, *flags;
} OpInfo;
extern const OpInfo ag_op[OP_COUNT];
bool ag_op_has(Op op, char flag);
const char *ag_type_name(Type t);
Type ag_op_type(Op op, const Type *arg); /* by the op's rule, with no promotion; T_NONE if the arguments do not fit, and for RULE_REF */

/* The axes, as positions: q counts from `off` (run time), k from 0; b, h, g, d are indices. */
typedef enum Axis { AX_B, AX_H, AX_G, AX_Q, AX_K, AX_D, AX_COUNT } Axis;
extern const char *const ag_axis_name[AX_COUNT];

/* Sizes and other integers known at launch (D and Dv at compile time). */
typedef enum Size { SZ_B, SZ_HQ, SZ_HKV, SZ_SQ, SZ_SK, SZ_OFF, SZ_D, SZ_DV, SZ_COUNT } Size;
extern const char *const ag_size_name[SZ_COUNT]; /* "B" "Hq" "Hkv" "Sq" "Sk" "off" "D" "Dv" */

/* Int parameters are within +- this: kernels compare them with positions (below 2^29) and their distances in 32 bits. */
enum { PARAM_INT_MAX = 1 << 30 };

/* A scalar of any type. */
typedef struct Scalar {
    Type type;
    union {
        bool b;
        int64_t i; /* T_INT values wrap to 32 bits in kernels */
        double f;  /* T_FLOAT values are rounded to float by ag_eval */
    } u;
} Scalar;
/* Evaluates an elementwise op as the kernels do: 32-bit integers with wrap-around, floats rounded after each op, floor semantics for // and %.
 * false: integer division by zero (the result is 0 then, as in the kernels' floor_div). */
bool ag_eval(Op op, const Scalar *arg, Scalar *result);
#endif
