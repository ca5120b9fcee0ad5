//@ leaf bf16_in needs types
// Elements of bfloat16 as they are read: one as a float, its bits, and element e of those that lie in words w.
struct bf16_in {
    typedef u16 element;
    static __device__ __forceinline__ u32 bits(u16 x) { return x; }
    static __device__ __forceinline__ float value(u16 x) { return __uint_as_float((u32)x << 16); }
    static __device__ __forceinline__ float value(const u32 *w, int e) { return __uint_as_float(e % 2 ? w[e / 2] & 0xffff0000u : w[e / 2] << 16); }
};

//@ leaf f16_in needs types
// The same of binary16.
struct f16_in {
    typedef u16 element;
    static __device__ __forceinline__ u32 bits(u16 x) { return x; }
    static __device__ __forceinline__ float value(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
    static __device__ __forceinline__ float value(const u32 *w, int e) { return value((u16)(w[e / 2] >> e % 2 * 16)); }
};

//@ leaf f32_in needs types
// The same of floats.
struct f32_in {
    typedef float element;
    static __device__ __forceinline__ u32 bits(float x) { return __float_as_uint(x); }
    static __device__ __forceinline__ float value(float x) { return x; }
    static __device__ __forceinline__ float value(const u32 *w, int e) { return __uint_as_float(w[e]); }
};

//@ leaf inside needs types LEAF
// Whether 0 <= i < n.
LEAF bool inside(int i, int n) { return (u32)i < (u32)n; }

//@ leaf Eight needs types
// 8 neighbouring elements of a tensor as they lie in memory; x[e] is one of them as a float.
template <class T> struct Eight {
    u32 word[2 * sizeof(typename T::element)];
    __device__ __forceinline__ float operator[](int e) const { return T::value(word, e); }
};

//@ leaf load_whole needs types LEAF UNROLL Eight
// All 8 by 16-byte loads: p is aligned to 16 bytes.
template <class T> LEAF Eight<T> load_whole(const typename T::element *p) {
    Eight<T> x;
    UNROLL for (int i = 0; i < (int)sizeof x / 16; i++) {
        const uint4 piece = ((const uint4 *)p)[i];
        x.word[4 * i] = piece.x, x.word[4 * i + 1] = piece.y, x.word[4 * i + 2] = piece.z, x.word[4 * i + 3] = piece.w;
    }
    return x;
}

//@ leaf load_some needs types LEAF UNROLL Eight
// The first n of them (all if n is above 8), element by element; the others are 0.
template <class T> LEAF Eight<T> load_some(const typename T::element *p, i64 stride, int n) {
    constexpr int PER_WORD = 4 / sizeof(typename T::element), BITS = 32 / PER_WORD;
    Eight<T> x = {};
    UNROLL for (int e = 0; e < 8; e++)
        if (e < n) x.word[e / PER_WORD] |= T::bits(p[e * stride]) << e % PER_WORD * BITS;
    return x;
}

//@ leaf load_8 needs types LEAF load_whole load_some
// The first n of them; vec: by 16-byte loads if all are there (stride is 1).
template <class T> LEAF Eight<T> load_8(const typename T::element *p, i64 stride, int n, bool vec) {
    return vec && n >= 8 ? load_whole<T>(p) : load_some<T>(p, stride, n);
}

//@ leaf Pairs needs types
// 2 neighbouring elements of each of N eights, as a lane has them of a row of a fragment; x(n, e) is one of them as a float.
template <class T, int N> struct Pairs {
    u32 word[N][sizeof(typename T::element) / 2];
    __device__ __forceinline__ float operator()(int n, int e) const { return T::value(word[n], e); }
};

//@ leaf load_pairs needs types LEAF UNROLL Pairs
// Those whose first is at p, n elements being there from p on; the others are 0. vec: one load for each pair if all are there (stride is 1, and p even).
template <class T, int N> LEAF Pairs<T, N> load_pairs(const typename T::element *p, i64 stride, int n, bool vec) {
    constexpr int BITS = 8 * sizeof(typename T::element) % 32;
    Pairs<T, N> x = {};
    if (vec && n >= 8 * N - 6)
        UNROLL for (int i = 0; i < N; i++)
            if (BITS)
                x.word[i][0] = *(const u32 *)(p + 8 * i);
            else {
                const uint2 two = *(const uint2 *)(p + 8 * i);
                x.word[i][0] = two.x, x.word[i][sizeof x.word[i] / 4 - 1] = two.y;
            }
    else
        UNROLL for (int i = 0; i < N; i++)
            UNROLL for (int e = 0; e < 2; e++)
                if (8 * i + e < n) x.word[i][BITS ? 0 : e] |= T::bits(p[(8 * i + e) * stride]) << e * BITS;
    return x;
}

//@ leaf sum_rows needs types LEAF UNROLL load_whole load_some
// The sums over `rows` rows of 8 channels, the first n of which are there.
template <class T> LEAF void sum_rows(float (&sum)[8], const typename T::element *p, i64 row_stride, i64 stride, int rows, int n, bool vec) {
    UNROLL for (int e = 0; e < 8; e++) sum[e] = 0.f;
    if (vec && n >= 8)
        _Pragma("unroll 8") for (int j = 0; j < rows; j++, p += row_stride) {
            const Eight<T> x = load_whole<T>(p);
            UNROLL for (int e = 0; e < 8; e++) sum[e] += x[e];
        }
    else
        ROLLED for (int j = 0; j < rows; j++, p += row_stride) {
            const Eight<T> x = load_some<T>(p, stride, n);
            UNROLL for (int e = 0; e < 8; e++) sum[e] += x[e];
        }
}

//@ leaf sum_weighted needs types LEAF UNROLL load_whole load_some
// The same with a weight for each row; the sum of the weights.
template <class T> LEAF float sum_weighted(float (&sum)[8], const typename T::element *p, i64 row_stride, i64 stride, int rows, int n, bool vec, const float *weight, i64 weight_stride) {
    float total = 0.f;
    UNROLL for (int e = 0; e < 8; e++) sum[e] = 0.f;
    if (vec && n >= 8)
        _Pragma("unroll 8") for (int j = 0; j < rows; j++, p += row_stride) {
            const Eight<T> x = load_whole<T>(p);
            const float w = weight[j * weight_stride];
            UNROLL for (int e = 0; e < 8; e++) sum[e] += w * x[e];
            total += w;
        }
    else
        ROLLED for (int j = 0; j < rows; j++, p += row_stride) {
            const Eight<T> x = load_some<T>(p, stride, n);
            const float w = weight[j * weight_stride];
            UNROLL for (int e = 0; e < 8; e++) sum[e] += w * x[e];
            total += w;
        }
    return total;
}

//@ leaf store_8 needs types LEAF UNROLL
// The first n of 8 neighbouring channels, rounded to T. vec: as one 16-byte store if all are there (stride is 1).
template <class T> LEAF void store_8(u16 *p, i64 stride, const float (&x)[8], int n, bool vec) {
    if (vec && n >= 8)
        *(uint4 *)p = make_uint4(T::pack(x[0], x[1]), T::pack(x[2], x[3]), T::pack(x[4], x[5]), T::pack(x[6], x[7]));
    else
        UNROLL for (int e = 0; e < 8; e++)
            if (e < n) p[e * stride] = (u16)T::pack(x[e], 0.f);
}
