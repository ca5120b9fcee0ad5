//@ leaf ldmatrix_x4 needs types LEAF
// Four 8x8 matrices of 2-byte elements; lane 8*i + r gives the address of row r of matrix i, r[i] takes matrix i as an mma operand.
LEAF void ldmatrix_x4(u32 (&r)[4], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

//@ leaf ldmatrix_x4_trans needs types LEAF
// The same with each matrix transposed.
LEAF void ldmatrix_x4_trans(u32 (&r)[4], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

//@ leaf mma_16816_bf16 needs types LEAF bf16
// c += A B and d += A B' for one warp: 16 x 16 by 16 x 8; b[0..1] is B, b[2..3] B'.
// c[0..1] are row lane/4, c[2..3] row lane/4 + 8; columns 2 * (lane%4) and the next.
LEAF void mma_16816_x2(bf16, float (&c)[4], float (&d)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%8, %9, %10, %11}, {%12, %13}, {%16, %17, %18, %19};\n\t"
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%14, %15}, {%20, %21, %22, %23};"
        : "=&f"(c[0]), "=&f"(c[1]), "=&f"(c[2]), "=&f"(c[3]), "=&f"(d[0]), "=&f"(d[1]), "=&f"(d[2]), "=&f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
}

//@ leaf mma_16816_f16 needs types LEAF f16
// c += A B and d += A B' for one warp: 16 x 16 by 16 x 8; b[0..1] is B, b[2..3] B'.
// c[0..1] are row lane/4, c[2..3] row lane/4 + 8; columns 2 * (lane%4) and the next.
LEAF void mma_16816_x2(f16, float (&c)[4], float (&d)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%8, %9, %10, %11}, {%12, %13}, {%16, %17, %18, %19};\n\t"
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%14, %15}, {%20, %21, %22, %23};"
        : "=&f"(c[0]), "=&f"(c[1]), "=&f"(c[2]), "=&f"(c[3]), "=&f"(d[0]), "=&f"(d[1]), "=&f"(d[2]), "=&f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
}

//@ leaf load_a needs types LEAF UNROLL padded swizzle chunk_offset ldmatrix_x4
// The A operand of 16 * MT rows, first row at `a` (a row % 8 == 0), from a shared tile of D channels into registers.
template <int D, int MT> LEAF void load_a(u32 (&frag)[MT][padded(D) / 16][4], u32 a) {
    u32 lane = threadIdx.x % 32, x = lane / 16 ^ swizzle<D>(lane), at = a + lane % 16 * (padded(D) * 2);
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int k = 0; k < padded(D) / 16; k++)
            ldmatrix_x4(frag[m][k], at + chunk_offset<D>(2 * k, x) + m * 16 * (padded(D) * 2));
}

//@ leaf mma_ss_nt needs types LEAF UNROLL padded swizzle chunk_offset ldmatrix_x4
// c += A B^T over D channels: A is 16 * MT rows of a shared tile from `a` on (a row % 8 == 0), B the 8 * N rows of a shared tile at `b`.
// Operands are loaded one step ahead of their mma. Needs mma_16816_x2 of type T.
template <class T, int D, int MT, int N> LEAF void mma_ss_nt(float (&c)[MT][N][4], u32 a, u32 b) {
    u32 lane = threadIdx.x % 32, x = lane / 16 ^ swizzle<D>(lane), y = lane / 8 % 2 ^ swizzle<D>(lane);
    u32 at = a + lane % 16 * (padded(D) * 2), bt = b + (lane % 8 + lane / 16 * 8) * (padded(D) * 2);
    constexpr int K = padded(D) / 16, STEPS = N / 2;                    // STEPS of two n-tiles for each k
    u32 fa[2][MT][4], fb[2][4];
    UNROLL for (int m = 0; m < MT; m++) ldmatrix_x4(fa[0][m], at + chunk_offset<D>(0, x) + m * 16 * (padded(D) * 2));
    ldmatrix_x4(fb[0], bt + chunk_offset<D>(0, y));
    UNROLL for (int k = 0; k < K; k++)
        UNROLL for (int n = 0; n < STEPS; n++) {
            int i = k * STEPS + n, next_k = n + 1 < STEPS ? k : k + 1, next_n = n + 1 < STEPS ? n + 1 : 0;
            if (next_k < K) ldmatrix_x4(fb[(i + 1) % 2], bt + chunk_offset<D>(2 * next_k, y) + next_n * 16 * (padded(D) * 2));
            if (next_k < K && next_k > k)
                UNROLL for (int m = 0; m < MT; m++) ldmatrix_x4(fa[next_k % 2][m], at + chunk_offset<D>(2 * next_k, x) + m * 16 * (padded(D) * 2));
            UNROLL for (int m = 0; m < MT; m++) mma_16816_x2(T(), c[m][2 * n], c[m][2 * n + 1], fa[k % 2][m], fb[i % 2]);
        }
}

//@ leaf mma_rs_nt needs types LEAF UNROLL padded swizzle chunk_offset ldmatrix_x4
// c += A B^T over D channels: A in registers (load_a), B the 8 * N rows of a shared tile at `b`. Needs mma_16816_x2 of type T.
template <class T, int D, int MT, int N> LEAF void mma_rs_nt(float (&c)[MT][N][4], const u32 (&a)[MT][padded(D) / 16][4], u32 b) {
    u32 lane = threadIdx.x % 32, y = lane / 8 % 2 ^ swizzle<D>(lane), bt = b + (lane % 8 + lane / 16 * 8) * (padded(D) * 2);
    constexpr int K = padded(D) / 16, STEPS = N / 2;
    u32 fb[2][4];
    ldmatrix_x4(fb[0], bt + chunk_offset<D>(0, y));
    UNROLL for (int k = 0; k < K; k++)
        UNROLL for (int n = 0; n < STEPS; n++) {
            int i = k * STEPS + n, next_k = n + 1 < STEPS ? k : k + 1, next_n = n + 1 < STEPS ? n + 1 : 0;
            if (next_k < K) ldmatrix_x4(fb[(i + 1) % 2], bt + chunk_offset<D>(2 * next_k, y) + next_n * 16 * (padded(D) * 2));
            UNROLL for (int m = 0; m < MT; m++) mma_16816_x2(T(), c[m][2 * n], c[m][2 * n + 1], a[m][k], fb[i % 2]);
        }
}

//@ leaf mma_rs_nn needs types LEAF UNROLL padded swizzle chunk_offset ldmatrix_x4_trans
// c += A B: A in registers (16 * MT rows, 16 * K columns), B the 16 * K rows of a shared tile of D channels at `b`, N * 8 of them from channel FIRST on. Needs mma_16816_x2 of
// type T.
template <class T, int D, int FIRST = 0, int MT, int K, int N> LEAF void mma_rs_nn(float (&c)[MT][N][4], const u32 (&a)[MT][K][4], u32 b) {
    u32 lane = threadIdx.x % 32, x = lane / 16 ^ swizzle<D>(lane), bt = b + lane % 16 * (padded(D) * 2);
    constexpr int STEPS = N / 2;
    u32 fb[2][4];
    ldmatrix_x4_trans(fb[0], bt + chunk_offset<D>(FIRST / 8, x));
    UNROLL for (int k = 0; k < K; k++)
        UNROLL for (int n = 0; n < STEPS; n++) {
            int i = k * STEPS + n, next_k = n + 1 < STEPS ? k : k + 1, next_n = n + 1 < STEPS ? n + 1 : 0;
            if (next_k < K) ldmatrix_x4_trans(fb[(i + 1) % 2], bt + chunk_offset<D>(FIRST / 8 + 2 * next_n, x) + next_k * 16 * (padded(D) * 2));
            UNROLL for (int m = 0; m < MT; m++) mma_16816_x2(T(), c[m][2 * n], c[m][2 * n + 1], a[m][k], fb[i % 2]);
        }
}

//@ leaf stage_c needs types LEAF UNROLL padded swizzle chunk_offset st_shared_4
// Writes fragments of 16 * MT rows, rounded to T, into a shared tile of D channels whose first row (of a multiple of 8) is at `dst`.
template <class T, int D, int MT> LEAF void stage_c(u32 dst, const float (&c)[MT][padded(D) / 8][4]) {
    u32 lane = threadIdx.x % 32, x = swizzle<D>(lane / 4), at = dst + lane / 4 * (padded(D) * 2) + lane % 4 * 4;
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int n = 0; n < padded(D) / 8; n++) {
            u32 to = at + chunk_offset<D>(n, x) + m * 16 * (padded(D) * 2);
            st_shared_4(to, T::pack(c[m][n][0], c[m][n][1]));
            st_shared_4(to + 8 * (padded(D) * 2), T::pack(c[m][n][2], c[m][n][3]));
        }
}
