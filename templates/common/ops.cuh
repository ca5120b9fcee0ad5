//@ leaf floor_fmod needs LEAF
// The same of floats.
LEAF float floor_fmod(float a, float b) {
    if (b == 0.f) return 0.f;
    float r = fmodf(a, b);
    return r != 0.f && (r < 0.f) != (b < 0.f) ? r + b : r;
}

//@ leaf wrap_add needs types LEAF
// Sums, differences, products and magnitudes of ints that may leave 32 bits: they wrap around, where a signed operation has no value in C.
LEAF int wrap_add(int a, int b) { return (int)((u32)a + (u32)b); }

//@ leaf wrap_sub needs types LEAF
LEAF int wrap_sub(int a, int b) { return (int)((u32)a - (u32)b); }

//@ leaf wrap_mul needs types LEAF
LEAF int wrap_mul(int a, int b) { return (int)((u32)a * (u32)b); }

//@ leaf wrap_abs needs LEAF wrap_sub
LEAF int wrap_abs(int a) { return a < 0 ? wrap_sub(0, a) : a; }

//@ leaf ceil_div needs LEAF
// Smallest integer >= a / b, for b > 0.
LEAF int ceil_div(int a, int b) { return a / b + (a % b > 0); }

//@ leaf finite_or_zero needs LEAF NEG_INF
// x, but 0 where x is minus infinity: the reference of a row that has seen no key.
LEAF float finite_or_zero(float x) { return x == NEG_INF ? 0.f : x; }

//@ leaf seen_or_nan needs LEAF NEG_INF
// x, but NaN where x is minus infinity: a reference that no speculation on a row without keys survives.
LEAF float seen_or_nan(float x) { return x == NEG_INF ? __int_as_float(0x7fffffff) : x; }

//@ leaf sigmoid_exp2 needs LEAF exp2_approx
// 1 / (1 + 2^-x): two special-function instructions and no branch.
LEAF float sigmoid_exp2(float x) { return __fdividef(1.f, 1.f + exp2_approx(-x)); }

//@ leaf sigmoid needs LEAF sigmoid_exp2
// 1 / (1 + e^-x).
LEAF float sigmoid(float x) { return sigmoid_exp2(x * 1.44269504f); }

//@ leaf softplus needs LEAF
// log(1 + e^x), without overflow.
LEAF float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

//@ leaf tanh_approx needs LEAF
// tanh(x) in one instruction, relative error up to 2^-11.
LEAF float tanh_approx(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

//@ leaf tanh_exp2 needs LEAF exp2_approx
// tanh(x), absolute error below 2^-22: what a score needs. Two special-function instructions and no branch; tanhf has about 30 instructions.
LEAF float tanh_exp2(float x) { return 1.f - __fdividef(2.f, 1.f + exp2_approx(x * 2.88539008f)); }
