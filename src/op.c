/* op.c: the table of scalar operations, their types, and their value as the kernels compute it. */
#include "input.h"

#include <math.h>
#include <string.h>

const OpInfo ag_op[OP_COUNT] = {
#define OP(id, name, arity, spelling, prec, rule, cuda, flags) [OP_##id] = {name, arity, spelling, prec, RULE_##rule, cuda, flags},
#include "op.def"
#undef OP
};

const char *const ag_axis_name[AX_COUNT] = {"b", "h", "g", "q", "k", "d"};
const char *const ag_size_name[SZ_COUNT] = {"B", "Hq", "Hkv", "Sq", "Sk", "off", "D", "Dv"};
const char *const ag_dtype_name[] = {"f16", "bf16", "f32", "i32", "i64", "u8", "bool"};

bool ag_op_has(Op op, char flag) { return strchr(ag_op[op].flags, flag) != NULL; }

const char *ag_type_name(Type t) {
    static const char *const name[] = {"none", "bool", "int", "float"};
    return name[t];
}

int ag_dtype_bytes(DType t) {
    static const int bytes[DT_COUNT] = {[DT_F16] = 2, [DT_BF16] = 2, [DT_F32] = 4, [DT_I32] = 4, [DT_I64] = 8, [DT_U8] = 1, [DT_BOOL] = 1};
    return bytes[t];
}

Type ag_dtype_value(DType t) { return t <= DT_F32 ? T_FLOAT : t == DT_BOOL ? T_BOOL : T_INT; }

Type ag_op_type(Op op, const Type *arg) {
    const OpInfo *info = &ag_op[op];
    Type t = arg[0];
    bool alike = true, number = t == T_INT || t == T_FLOAT;
    for (int i = 1; i < info->arity; i++) alike &= arg[i] == t;
    switch (info->rule) {
    case RULE_NUM: return alike && number ? t : T_NONE;
    case RULE_FLT: return alike && t == T_FLOAT ? T_FLOAT : T_NONE;
    case RULE_CMP: return alike && number ? T_BOOL : T_NONE;
    case RULE_LOG: return alike && t == T_BOOL ? T_BOOL : T_NONE;
    case RULE_SEL: return t == T_BOOL && arg[1] == arg[2] ? arg[1] : T_NONE;
    case RULE_TOINT: return number ? T_INT : T_NONE;
    case RULE_TOFLT: return t == T_INT ? T_FLOAT : T_NONE;
    case RULE_REF: break;
    }
    return T_NONE;
}

/* ---- evaluation; every helper takes and gives values already in range of its type */

/* Two's complement wrap-around of the low 32 bits. */
static int64_t wrap(uint64_t x) { return (int64_t)((x & 0xFFFFFFFFu) ^ 0x80000000u) - 0x80000000; }

/* Largest integer <= a / b; b != 0.  In 64 bits, so INT_MIN / -1 is no special case. */
static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

static bool eval_int(Op op, int64_t a, int64_t b, int64_t c, int64_t *r) {
    bool by_zero = (op == OP_FLOORDIV || op == OP_MOD || op == OP_CEILDIV) && b == 0;
    uint64_t x = (uint64_t)a, y = (uint64_t)b, v = 0;
    if (by_zero) {
        *r = 0;
        return false;
    }
    switch (op) {
    case OP_ADD: v = x + y; break;
    case OP_SUB: v = x - y; break;
    case OP_MUL: v = x * y; break;
    case OP_NEG: v = 0 - x; break;
    case OP_FLOORDIV: v = (uint64_t)floor_div(a, b); break;
    case OP_CEILDIV: v = 0 - (uint64_t)floor_div(-a, b); break;
    case OP_MOD: v = x - y * (uint64_t)floor_div(a, b); break;
    case OP_RELU: v = a > 0 ? x : 0; break;
    case OP_ABS: v = a < 0 ? 0 - x : x; break;
    case OP_MIN: v = a < b ? x : y; break;
    case OP_MAX: v = a > b ? x : y; break;
    case OP_CLAMP: v = (uint64_t)(a < b ? b : a), v = (int64_t)v > c ? (uint64_t)c : v; break;
    default: v = x; break; /* FLOOR, FINITE */
    }
    *r = wrap(v);
    return true;
}

/* a - b * floor(a / b) without its rounding: the sign is that of b; 0 for b = 0. */
static double floor_mod(double a, double b) {
    if (b == 0) return 0;
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* Rounded to 11 significant bits. */
static double eleven_bits(double x) {
    int e;
    double m = frexp(x, &e);
    return ldexp(nearbyint(ldexp(m, 11)), e - 11);
}

static double eval_float(Op op, double a, double b, double c) {
    switch (op) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_FLOORDIV: return floor((float)(a / b));
    case OP_MOD: return floor_mod(a, b);
    case OP_POW: return pow(a, b);
    case OP_NEG: return -a;
    case OP_EXP: return exp(a);
    case OP_EXP2: return exp2(a);
    case OP_LOG: return log(a);
    case OP_LOG2: return log2(a);
    case OP_TANH: return tanh(a);
    case OP_TANHA: return eleven_bits(tanh(a));
    case OP_SIGMOID: return 1 / (1 + exp(-a));
    case OP_SIGMOID2: return 1 / (1 + exp2(-a));
    case OP_SOFTPLUS: return fmax(a, 0) + log1p(exp(-fabs(a)));
    case OP_RELU: return fmax(a, 0);
    case OP_SQRT: return sqrt(a);
    case OP_RSQRT: return 1 / sqrt(a);
    case OP_SIN: return sin(a);
    case OP_COS: return cos(a);
    case OP_ABS: return fabs(a);
    case OP_MIN: return fmin(a, b);
    case OP_MAX: return fmax(a, b);
    case OP_CLAMP: return fmin(fmax(a, b), c);
    case OP_FINITE: return a == -INFINITY ? 0 : a;
    case OP_SEEN: return a == -INFINITY ? NAN : a;
    default: return NAN;
    }
}

static bool compare(Op op, const Scalar *x, const Scalar *y) {
    double a = x->type == T_FLOAT ? x->u.f : (double)x->u.i, b = y->type == T_FLOAT ? y->u.f : (double)y->u.i;
    switch (op) {
    case OP_LT: return a < b;
    case OP_LE: return a <= b;
    case OP_GT: return a > b;
    case OP_GE: return a >= b;
    case OP_EQ: return a == b;
    default: return a != b;
    }
}

/* The largest integer <= x, saturated to 32 bits; 0 for NaN. */
static int64_t floor_to_int(double x) {
    if (isnan(x)) return 0;
    return x <= INT32_MIN ? INT32_MIN : x >= INT32_MAX ? INT32_MAX : (int64_t)floor(x);
}

static Scalar of_bool(bool b) { return (Scalar){T_BOOL, {.b = b}}; }
static Scalar of_int(int64_t i) { return (Scalar){T_INT, {.i = i}}; }
static Scalar of_float(double f) { return (Scalar){T_FLOAT, {.f = (float)f}}; }

bool ag_eval(Op op, const Scalar *arg, Scalar *result) {
    const OpInfo *info = &ag_op[op];
    const Scalar *a = &arg[0], *b = &arg[info->arity > 1], *c = &arg[info->arity > 2 ? 2 : 0];
    bool ok = true;
    int64_t i = 0;
    switch (info->rule) {
    case RULE_CMP: *result = of_bool(compare(op, a, b)); break;
    case RULE_LOG: *result = of_bool(op == OP_NOT ? !a->u.b : op == OP_AND ? a->u.b && b->u.b : a->u.b || b->u.b); break;
    case RULE_SEL: *result = a->u.b ? *b : *c; break;
    case RULE_TOINT: *result = of_int(a->type == T_FLOAT ? floor_to_int(a->u.f) : a->u.i); break;
    case RULE_TOFLT: *result = of_float((double)a->u.i); break;
    case RULE_NUM:
    case RULE_FLT:
        if (a->type == T_INT) {
            ok = eval_int(op, a->u.i, b->u.i, c->u.i, &i);
            *result = of_int(i);
        } else {
            *result = of_float(eval_float(op, a->u.f, b->u.f, c->u.f));
        }
        break;
    case RULE_REF: *result = (Scalar){T_NONE, {.i = 0}}; break;
    }
    return ok;
}
