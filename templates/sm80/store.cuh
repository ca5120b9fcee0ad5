//@ leaf store_c needs types LEAF UNROLL row_at padded
// Registers -> global: fragments of 16 * MT rows, rounded to T; the lane's first row is `row`. Rows from `rows` on and channels from D on are not written.
// pairs: two neighbouring elements go as one 4-byte store (dst and the rows' strides are multiples of 4 bytes, col_stride is 1). Strides in elements.
template <class T, int D, class Rows, int MT> LEAF void store_c(u16 *dst, Rows at, i64 col_stride, const float (&c)[MT][padded(D) / 8][4], int row, int rows, bool pairs) {
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int r = 0; r < 2; r++) {
            int to = row + m * 16 + r * 8;
            if (!row_in(at, to, rows)) continue;
            u16 *line = dst + row_at(at, to);
            UNROLL for (int n = 0; n < padded(D) / 8; n++) {
                int col = n * 8 + threadIdx.x % 4 * 2;
                u32 two = T::pack(c[m][n][2 * r], c[m][n][2 * r + 1]);
                if (pairs && D % 2 == 0) {
                    if (col < D) *(u32 *)(line + col) = two;
                } else {
                    if (col < D) line[col * col_stride] = (u16)two;
                    if (col + 1 < D) line[(col + 1) * col_stride] = (u16)(two >> 16);
                }
            }
        }
}

//@ leaf quad_transpose needs types LEAF
// Lane i of a quad gives w[0..3]; afterwards lane q holds w[q] of lanes 0..3.
LEAF void quad_transpose(u32 (&w)[4]) {
    int q = threadIdx.x % 4;
    u32 r;
    r = __shfl_xor_sync(~0u, q & 1 ? w[0] : w[1], 1); if (q & 1) w[0] = r; else w[1] = r;
    r = __shfl_xor_sync(~0u, q & 1 ? w[2] : w[3], 1); if (q & 1) w[2] = r; else w[3] = r;
    r = __shfl_xor_sync(~0u, q & 2 ? w[0] : w[2], 2); if (q & 2) w[0] = r; else w[2] = r;
    r = __shfl_xor_sync(~0u, q & 2 ? w[1] : w[3], 2); if (q & 2) w[1] = r; else w[3] = r;
}

//@ leaf store_quads needs types LEAF UNROLL row_at quad_transpose store_c
// As store_c, in 16-byte pieces where vec allows: a quad turns four pieces of 4 words so that each lane holds one.
template <class T, int D, class Rows, int MT, int N> LEAF void store_quads(u16 *dst, Rows at, i64 col_stride, const float (&c)[MT][N][4], int row, int rows, bool vec) {
    if (!vec || D % 32 != 0) {
        store_c<T, D>(dst, at, col_stride, c, row, rows, vec);
        return;
    }
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int r = 0; r < 2; r++) {
            int to = row + m * 16 + r * 8;
            u16 *line = dst + row_at(at, to) + threadIdx.x % 4 * 8;
            UNROLL for (int p = 0; p < D / 32; p++) {
                u32 w[4];
                UNROLL for (int i = 0; i < 4; i++) w[i] = T::pack(c[m][4 * p + i][2 * r], c[m][4 * p + i][2 * r + 1]);
                quad_transpose(w);
                if (row_in(at, to, rows)) *(uint4 *)(line + p * 32) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
}
