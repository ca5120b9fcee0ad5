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
