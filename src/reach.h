/* reach.h: constants that an int stays within, for what is derived from the mask and for what is printed. */
#ifndef AG_REACH_H
#define AG_REACH_H

#include "math_ir.h"

typedef struct Span64 {
    int64_t lo, hi;
} Span64;

static inline Span64 ag_any_int(void) { return (Span64){INT32_MIN, INT32_MAX}; }
static inline int64_t ag_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ag_max64(int64_t a, int64_t b) { return a > b ? a : b; }
Span64 ag_size_reach(int size); /* SZ_*, as a launch takes it */
Span64 ag_product_reach(Span64 a, Span64 b);
Span64 ag_quotient_reach(Span64 a, Span64 b); /* rounded down; 0 where b is 0 */
/* Of an operation on ints within x[0], x[1], x[2]; false: the result may leave 32 bits, and so wrap around. */
bool ag_op_reach(Op op, const Span64 x[3], Span64 *out);

#endif
