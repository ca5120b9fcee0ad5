//@ leaf wgmma_commit needs LEAF
// Closes the group of wgmma that this warpgroup has issued.
LEAF void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

//@ leaf wgmma_wait needs LEAF
// Until at most N groups are unfinished.
template <int N> LEAF void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

//@ leaf pin needs types LEAF UNROLL
// No use of x moves above this point: for registers that wgmma writes or reads beside the program.
template <int N> LEAF void pin(float (&x)[1][N][4]) { UNROLL for (int n = 0; n < N; n++) UNROLL for (int e = 0; e < 4; e++) asm volatile("" : "+f"(x[0][n][e])::"memory"); }
template <int N> LEAF void pin(u32 (&x)[1][N][4]) { UNROLL for (int n = 0; n < N; n++) UNROLL for (int e = 0; e < 4; e++) asm volatile("" : "+r"(x[0][n][e])::"memory"); }

//@ leaf desc_k_major needs types LEAF
// Descriptor of an operand whose rows are contiguous along the summed dimension, in panels of 64 columns with 128-byte swizzle.
LEAF u64 desc_k_major(u32 addr) { return (u64)(0x40000000u | (1024 >> 4)) << 32 | (addr & 0x3ffff) >> 4; }

//@ leaf desc_mn_major needs types LEAF
// Descriptor of an operand whose rows are what is summed over, in such panels of panel_bytes, which is rows * 128.
LEAF u64 desc_mn_major(u32 addr, u32 panel_bytes) { return (u64)(0x40000000u | (1024 >> 4)) << 32 | panel_bytes >> 4 << 16 | (addr & 0x3ffff) >> 4; }

//@ leaf stmatrix_x4 needs types LEAF
// Four 8x8 matrices of 2-byte elements to shared memory; lane 8*i + r gives the address of row r of matrix i, which is register i of an accumulator's layout.
LEAF void stmatrix_x4(u32 addr, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

//@ leaf load_element_pairs needs types LEAF UNROLL ldmatrix_x4
// This warp's 16 rows (from `row` on) of a tile of ROWS rows in panels of 64 columns, two neighbours of every eight columns to a lane, as an accumulator has them.
template <int ROWS, int N> LEAF void load_element_pairs(u32 (&x)[1][N][2], u32 src, int row) {
    const u32 lane = threadIdx.x % 32, r = row + lane % 16, from = src + r * 128, piece = (r ^ lane / 16) % 8;
    UNROLL for (int n = 0; n < N; n += 2) {
        u32 y[4];
        ldmatrix_x4(y, from + n / 8 * ROWS * 128 + ((piece ^ n % 8) << 4));
        x[0][n][0] = y[0], x[0][n][1] = y[1], x[0][n + 1][0] = y[2], x[0][n + 1][1] = y[3];
    }
}

//@ leaf load_element_row needs types LEAF UNROLL
// The same of one row, which is that of all rows.
template <int N> LEAF void load_element_row(u32 (&x)[1][N][2], u32 src) {
    const u32 from = src + threadIdx.x % 4 * 4;
    UNROLL for (int n = 0; n < N; n++) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x[0][n][0]) : "r"(from + n * 16) : "memory");
        x[0][n][1] = x[0][n][0];
    }
}

//@ leaf stage_panels needs types LEAF UNROLL stmatrix_x4
// Writes columns 8 * FIRST to 8 * (FIRST + COUNT) of this warp's 16 rows (from `row` on) of an accumulator, rounded to T, into panels of 64 columns of a shared tile
// of ROWS rows.
template <class T, int ROWS, int FIRST, int COUNT, int N> LEAF void stage_panels(u32 dst, int row, const float (&c)[1][N][4]) {
    u32 lane = threadIdx.x % 32, r = row + lane % 16, to = dst + r * 128, piece = (r ^ lane / 16) % 8;
    UNROLL for (int n = 0; n < COUNT && FIRST + n < N; n += 2)
        stmatrix_x4(to + n / 8 * ROWS * 128 + ((piece ^ n % 8) << 4), T::pack(c[0][FIRST + n][0], c[0][FIRST + n][1]), T::pack(c[0][FIRST + n][2], c[0][FIRST + n][3]),
                    T::pack(c[0][FIRST + n + 1][0], c[0][FIRST + n + 1][1]), T::pack(c[0][FIRST + n + 1][2], c[0][FIRST + n + 1][3]));
}

//@ leaf store_panels needs types LEAF UNROLL row_at ld_shared_16 st_global_16 st_global_16_if ld_shared_2
// This warp's 16 rows (from `row` on) of a tile in panels -> global; rows from `rows` on and channels from D on are not written. vec as in store_tile.
template <int ROWS, int D, class Rows> LEAF void store_panels(u16 *dst, Rows at, i64 col_stride, u32 src, int row, int rows, bool vec) {
    constexpr int PIECES = D / 8, STEP = PIECES ? 32 / PIECES : 0; // 16-byte pieces of a row; rows that the warp stores at once
    u32 lane = threadIdx.x % 32;
    __syncwarp();
    if (vec && D % 32 == 0 && PIECES * STEP == 32) { // eight rows a turn: where their pieces lie differs by constants
        u32 c = lane % PIECES, first = row + lane / PIECES, from = src + c / 8 * ROWS * 128 + first * 128, piece = (c ^ first) % 8;
        ROLLED for (int i = 0; i < 16; i += 8) {
            u16 *to = dst + row_at(at, first + i) + 8 * c;
            uint4 x[8];
            UNROLL for (int r = 0; r < 8; r += STEP) x[r] = ld_shared_16(from + (i + r) * 128 + ((piece ^ r) << 4));
            UNROLL for (int r = 0; r < 8; r += STEP) st_global_16_if(row_in(at, first + i + r, rows), to + row_after(at, first + i, r), x[r]);
        }
    } else if (vec && D % 8 == 0) {
        ROLLED for (u32 i = lane; i < 16 * (D / 8); i += 32) {
            int r = row + i / (D / 8), c = i % (D / 8);
            if (row_in(at, r, rows)) st_global_16(dst + row_at(at, r) + 8 * c, ld_shared_16(src + c / 8 * ROWS * 128 + r * 128 + ((c % 8 ^ r % 8) << 4)));
        }
    } else {
        ROLLED for (u32 i = lane; i < 16 * D; i += 32) {
            int r = row + i / D, c = i % D;
            if (row_in(at, r, rows)) dst[row_at(at, r) + c * col_stride] = ld_shared_2(src + c / 64 * ROWS * 128 + r * 128 + ((c / 8 % 8 ^ r % 8) << 4) + c % 8 * 2);
        }
    }
}

//@ leaf mma_panels needs types LEAF UNROLL ldmatrix_x4
// c = A B^T once more for one warp, by mma.sync, whose accumulator is laid out like wgmma's: A is the warp's 16 rows (from `row` on) of a tile of ROWS rows at
// `a`, B the 8 * N rows at `b`, both D channels in panels. Small code rather than fast: it mends failed speculations. Needs mma_16816_x2 of type T.
template <class T, int ROWS, int D, int N> LEAF void mma_panels(float (&c)[1][N][4], u32 a, int row, u32 b) {
    u32 lane = threadIdx.x % 32, ra = row + lane % 16, rb = lane % 8 + lane / 16 * 8;
    ROLLED for (int k = 0; k < D / 16; k++) {
        if (k == 0) // in the loop: there it becomes a predicate of the products, in front of it N * 2 instructions
            UNROLL for (int n = 0; n < N; n++) UNROLL for (int e = 0; e < 4; e++) c[0][n][e] = 0.f;
        u32 fa[4], fb[4], ca = 2 * (k % 4) + lane / 16, cb = 2 * (k % 4) + lane / 8 % 2;
        ldmatrix_x4(fa, a + k / 4 * ROWS * 128 + ra * 128 + ((ca ^ ra % 8) << 4));
        UNROLL for (int n = 0; n < N; n += 2) {
            ldmatrix_x4(fb, b + k / 4 * N * 8 * 128 + (n * 8 + rb) * 128 + ((cb ^ rb % 8) << 4));
            mma_16816_x2(T(), c[0][n], c[0][n + 1], fa, fb);
        }
    }
}
