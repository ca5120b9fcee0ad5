//@ leaf load_heads needs types LEAF UNROLL load_whole load_some
// 8 channels, the first n of which are there, of a row of the first N heads, of which there are `heads`: the others are as the last one. All loads are on their way at once.
template <class T, int N> LEAF void load_heads(float (&y)[N][8], const typename T::element *p, i64 head_stride, int heads, i64 stride, int n, bool vec) {
    Eight<T> x[N];
    if (vec && n >= 8)
        UNROLL for (int i = 0; i < N; i++) x[i] = load_whole<T>(p + min(i, heads - 1) * head_stride);
    else
        UNROLL for (int i = 0; i < N; i++) x[i] = load_some<T>(p + min(i, heads - 1) * head_stride, stride, n);
    UNROLL for (int i = 0; i < N; i++)
        UNROLL for (int e = 0; e < 8; e++) y[i][e] = x[i][e];
}

//@ leaf store_heads needs types LEAF UNROLL store_8
// Those of the heads that there are, rounded to T.
template <class T, int N> LEAF void store_heads(u16 *p, i64 head_stride, int heads, i64 stride, const float (&y)[N][8], int n, bool vec) {
    UNROLL for (int i = 0; i < N; i++)
        if (i < heads) store_8<T>(p + i * head_stride, stride, y[i], n, vec);
}

//@ leaf normalise_row needs LEAF UNROLL
// y / sqrt(mean of y^2 + eps) over a row of D channels, which LANES neighbouring lanes of a warp have, 8 each from d0 on.
template <int LANES, int D> LEAF void normalise_row(float (&y)[8], int d0, float eps) {
    float sum = 0.f;
    UNROLL for (int e = 0; e < 8; e++)
        if (8 * LANES == D || d0 + e < D) sum += y[e] * y[e];
    UNROLL for (int i = LANES / 2; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    const float factor = rsqrtf(sum * (1.f / D) + eps);
    UNROLL for (int e = 0; e < 8; e++) y[e] *= factor;
}

//@ leaf turn_at needs types LEAF
// Cosine and sine of the angle at a position, of which one position is `step` 2^-64 of a circle: ints wrap around as angles do, so a position may be of any size.
// Absolute error 2^-21.
LEAF void turn_at(float &c, float &s, int position, u64 step) {
    const float angle = (float)(int)((u64)position * step >> 32) * 1.46291808e-9f; // 2 pi / 2^32
    c = __cosf(angle), s = __sinf(angle);
}

//@ leaf rotate_halves needs LEAF UNROLL
// Rotates the pairs (d, H + d) of a row, of which this lane has channels d0 .. d0 + 7, and its neighbours the others; c and s: of the pair that each is in.
template <int H> LEAF void rotate_halves(float (&y)[8], const float (&c)[8], const float (&s)[8], int d0) {
    const int lane = (int)threadIdx.x % 32;
    float other[8];
    UNROLL for (int e = 0; e < 8; e++)
        if (H % 8 == 0) // all of a lane's channels are in one half
            other[e] = __shfl_sync(~0u, y[e], lane + (d0 < H ? H / 8 : -(H / 8)));
        else {
            const float above = __shfl_sync(~0u, y[(e + H) % 8], lane + (e + H) / 8);
            const float below = __shfl_sync(~0u, y[(e + 8 * H - H) % 8], lane - (H - e + 7) / 8);
            other[e] = d0 + e < H ? above : below;
        }
    UNROLL for (int e = 0; e < 8; e++)
        if (d0 + e < 2 * H) y[e] = y[e] * c[e] + (d0 + e < H ? -other[e] : other[e]) * s[e];
}

//@ leaf rotate_neighbours needs LEAF UNROLL
// Rotates the first N pairs (2 i, 2 i + 1) of a row, of which this lane has channels d0 .. d0 + 7; c and s: of its four pairs.
template <int N> LEAF void rotate_neighbours(float (&y)[8], const float (&c)[4], const float (&s)[4], int d0) {
    UNROLL for (int i = 0; i < 4; i++)
        if (d0 / 2 + i < N) {
            const float a = y[2 * i], b = y[2 * i + 1];
            y[2 * i] = a * c[i] - b * s[i];
            y[2 * i + 1] = b * c[i] + a * s[i];
        }
}
