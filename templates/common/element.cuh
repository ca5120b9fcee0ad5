//@ leaf bf16 needs types
// Storage type bfloat16. pack rounds two values to nearest even and puts lo in the low half.
struct bf16 {
    static __device__ __forceinline__ u32 pack(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
};

//@ leaf f16 needs types
// Storage type binary16. pack rounds two values to nearest even and puts lo in the low half.
struct f16 {
    static __device__ __forceinline__ u32 pack(float lo, float hi) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
};
