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

//@ leaf fetch_pairs needs types LEAF UNROLL
// Row r of a fragment = two neighbours of every eight elements of a row that begins at `at`, the lower one in the low half; those from n on are 0 and not read. Where they
// lie side by side and are aligned to that, two come at a time. The tile before, which is the next one, is fetched to L2, if the row has as many as `before`.
template <int N> LEAF void fetch_ahead(const char *at, int row_bytes, int before) {
    if (before >= 8 * N) asm volatile("prefetch.global.L2 [%0];" ::"l"(at - row_bytes + threadIdx.x % 4 * (row_bytes / 4)));
}
template <int N> LEAF void fetch_pairs(u32 (&x)[N][2], int r, const u16 *at, i64 col, int n, int before) {
    if (n > 8 * N - 7 && col == 1 && (u64)at % 4 == 0) {
        UNROLL for (int ni = 0; ni < N; ni++) x[ni][r] = __ldg((const u32 *)(at + ni * 8));
        fetch_ahead<N>((const char *)at, 16 * N, before);
        return;
    }
    UNROLL for (int ni = 0; ni < N; ni++) {
        const u32 lo = ni * 8 < n ? __ldg(at + ni * 8 * col) : 0, hi = ni * 8 + 1 < n ? __ldg(at + (ni * 8 + 1) * col) : 0;
        x[ni][r] = lo | hi << 16;
    }
}
template <int N> LEAF void fetch_pairs(float (&x)[N][4], int r, const float *at, i64 col, int n, int before) {
    if (n > 8 * N - 7 && col == 1 && (u64)at % 8 == 0) {
        UNROLL for (int ni = 0; ni < N; ni++) {
            const float2 two = __ldg((const float2 *)(at + ni * 8));
            x[ni][2 * r] = two.x, x[ni][2 * r + 1] = two.y;
        }
        fetch_ahead<N>((const char *)at, 32 * N, before);
        return;
    }
    UNROLL for (int ni = 0; ni < N; ni++) {
        x[ni][2 * r] = ni * 8 < n ? __ldg(at + ni * 8 * col) : 0.f;
        x[ni][2 * r + 1] = ni * 8 + 1 < n ? __ldg(at + (ni * 8 + 1) * col) : 0.f;
    }
}
