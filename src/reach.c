/* reach.c: interval arithmetic on ints of 32 bits, as of constants. */
#include "reach.h"

static bool fits(int64_t least, int64_t most) { return least >= INT32_MIN && most <= INT32_MAX; }

Span64 ag_size_reach(int size) {
    if (size == SZ_SQ || size == SZ_SK) return (Span64){0, AG_POSITION_LIMIT};
    return size == SZ_OFF ? (Span64){-AG_POSITION_LIMIT, AG_POSITION_LIMIT} : (Span64){0, INT32_MAX};
}

Span64 ag_product_reach(Span64 a, Span64 b) {
    int64_t p[4] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
    Span64 r = {p[0], p[0]};
    for (int i = 1; i < 4; i++) r = (Span64){ag_min64(r.lo, p[i]), ag_max64(r.hi, p[i])};
    return r;
}

static int64_t floor_div64(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

Span64 ag_quotient_reach(Span64 a, Span64 b) {
    if (b.lo > 0)
        return (Span64){ag_min64(floor_div64(a.lo, b.lo), floor_div64(a.lo, b.hi)), ag_max64(floor_div64(a.hi, b.lo), floor_div64(a.hi, b.hi))};
    if (a.lo >= 0 && b.lo == 0) return (Span64){0, a.hi}; /* by 0 it is 0 */
    int64_t most = ag_max64(ag_max64(a.lo, -a.lo), ag_max64(a.hi, -a.hi));
    return (Span64){ag_max64(-most, INT32_MIN), ag_min64(most, INT32_MAX)};
}

static Span64 remainder_reach(Span64 a, Span64 b) {
    if (b.lo < 0) return ag_any_int();
    return a.lo >= 0 && a.hi < b.lo ? a : (Span64){0, ag_max64(b.hi - 1, 0)};
}

bool ag_op_reach(Op op, const Span64 x[3], Span64 *out) {
    switch (op) {
    case OP_NEG: *out = (Span64){-x[0].hi, -x[0].lo}; break;
    case OP_ADD: *out = (Span64){x[0].lo + x[1].lo, x[0].hi + x[1].hi}; break;
    case OP_SUB: *out = (Span64){x[0].lo - x[1].hi, x[0].hi - x[1].lo}; break;
    case OP_MUL: *out = ag_product_reach(x[0], x[1]); break;
    case OP_FLOORDIV: *out = ag_quotient_reach(x[0], x[1]); break;
    case OP_MOD: *out = remainder_reach(x[0], x[1]); break;
    case OP_MIN: *out = (Span64){ag_min64(x[0].lo, x[1].lo), ag_min64(x[0].hi, x[1].hi)}; break;
    case OP_MAX: *out = (Span64){ag_max64(x[0].lo, x[1].lo), ag_max64(x[0].hi, x[1].hi)}; break;
    case OP_CLAMP: *out = (Span64){ag_min64(ag_max64(x[0].lo, x[1].lo), x[2].lo), ag_min64(ag_max64(x[0].hi, x[1].hi), x[2].hi)}; break;
    case OP_RELU: *out = (Span64){ag_max64(x[0].lo, 0), ag_max64(x[0].hi, 0)}; break;
    case OP_ABS: *out = (Span64){ag_max64(0, ag_max64(x[0].lo, -x[0].hi)), ag_max64(-x[0].lo, x[0].hi)}; break;
    case OP_SELECT: *out = (Span64){ag_min64(x[1].lo, x[2].lo), ag_max64(x[1].hi, x[2].hi)}; break;
    default: *out = ag_any_int(); break;
    }
    return fits(out->lo, out->hi);
}
