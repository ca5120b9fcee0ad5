//@ leaf exp2_approx needs LEAF
// 2^x within 2 ulp; 2^-inf = 0; results below 2^-126 become 0.
LEAF float exp2_approx(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

//@ leaf log2_approx needs LEAF
// log2(x), absolute error below 2^-22; log2(0) = -inf.
LEAF float log2_approx(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

//@ leaf quad_max needs LEAF
// The maximum over the 4 lanes of a quad: they hold one row of an mma fragment.
LEAF float quad_max(float x) { x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)); return fmaxf(x, __shfl_xor_sync(~0u, x, 2)); }

//@ leaf quad_sum needs LEAF
// The sum over the 4 lanes of a quad, the same bits in all four.
LEAF float quad_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }

//@ leaf rcp_approx needs LEAF
// 1 / x within 1 ulp.
LEAF float rcp_approx(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
