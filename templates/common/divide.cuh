//@ leaf floor_div needs LEAF
// Integer division towards minus infinity; 0 if b is 0.
LEAF int floor_div(int a, int b) {
    if (b == 0) return 0;
    int q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

//@ leaf floor_mod needs LEAF
// Remainder with the sign of b, a - b * floor(a / b); 0 if b is 0.
LEAF int floor_mod(int a, int b) {
    if (b == 0) return 0;
    int r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

//@ leaf quot needs types LEAF
// a / b of values that are not negative: half the instructions of a signed division.
LEAF int quot(int a, int b) { return (int)((u32)a / (u32)b); }

//@ leaf rem needs types LEAF
// a % b of values that are not negative.
LEAF int rem(int a, int b) { return (int)((u32)a % (u32)b); }

//@ leaf Divider needs types
// An int from 1 on to divide by: x / by is (2 x * magic >> 32) >> shift for 0 <= x < 2^31, with 2^shift the first power of two that is not below it and
// magic = floor(2^(31 + shift) / by) + 1 (Granlund and Montgomery, Division by Invariant Integers using Multiplication, PLDI 1994, theorem 4.2).
typedef struct Divider { int by; u32 magic, shift; } Divider;

//@ leaf divider needs types LEAF UNROLL Divider
LEAF Divider divider(int by) {
    const u32 d = (u32)by;
    Divider x;
    x.by = by, x.shift = (u32)(32 - __clz(by - 1));
    u32 q = 1, r = (1u << x.shift) - d;                                  // of 2^shift; then 31 more bits, as many at a time as a remainder leaves room for
    ROLLED for (int left = 31; left > 0;) {
        const int bits = min(left, __clz(by));
        r <<= bits;
        q = (q << bits) + r / d;
        r %= d, left -= bits;
    }
    x.magic = q + 1;
    return x;
}

//@ leaf quot_by needs types LEAF Divider divider
// Quotient and remainder of a value that is not negative.
LEAF int quot_by(int x, Divider d) { return (int)(__umulhi(2 * (u32)x, d.magic) >> d.shift); }

//@ leaf rem_by needs LEAF quot_by
LEAF int rem_by(int x, Divider d) { return x - quot_by(x, d) * d.by; }

//@ leaf floor_div_by needs LEAF quot_by
// Those of any value, towards minus infinity: the complement of a negative one is not negative.
LEAF int floor_div_by(int x, Divider d) { return quot_by(x ^ x >> 31, d) ^ x >> 31; }

//@ leaf floor_mod_by needs types LEAF floor_div_by
LEAF int floor_mod_by(int x, Divider d) { return (int)((u32)x - (u32)floor_div_by(x, d) * (u32)d.by); } // the product may be less than any int
