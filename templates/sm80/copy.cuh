//@ leaf cp_async_16 needs types LEAF
// Starts a copy of 16 bytes to shared memory, past L1: the first `bytes` from global memory, the rest zeros. Both addresses 16-byte aligned.
LEAF void cp_async_16(u32 dst, const void *src, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

//@ leaf cp_async_commit needs LEAF
// Closes the group of copies that this thread started since the last commit; an empty group counts.
LEAF void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

//@ leaf cp_async_wait needs LEAF
// Waits until at most N of this thread's latest groups are unfinished. Other threads see the data after a barrier.
template <int N> LEAF void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

//@ leaf copy_tile needs types LEAF UNROLL padded tile_offset cp_async_16 st_shared_2
// Global -> shared: a tile of ROWS rows by D channels, all THREADS threads. Rows from `rows` on and channels from D on become zeros. Strides in elements.
// vec: 16-byte cp.async (the caller commits and waits; src and row_stride are multiples of 16 bytes, col_stride is 1); else element by element.
// TURN: pieces that a turn of the loop moves; all by default, few where the copy is not repeated and short code is worth more.
template <int ROWS, int D, int THREADS, int TURN = ROWS> LEAF void copy_tile(u32 dst, const u16 *src, i64 row_stride, i64 col_stride, int rows, bool vec) {
    constexpr int CHUNKS = padded(D) / 8, STEP = THREADS / CHUNKS;      // STEP rows at a time, one chunk a thread
    static_assert(STEP > 0, "a row must not have more chunks than the block has threads");
    if (vec) {
        u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        int bytes = D % 16 == 0 ? 16 : max(0, min(16, 2 * (D - 8 * (int)chunk))), left = rows - (int)row;
        u64 p = (u64)(src + (row * row_stride + 8 * chunk)), step = row_stride * (2 * STEP); // bytes: one addition a piece
        u32 at = dst + tile_offset<D>(row, chunk), odd = dst + tile_offset<D>(row + STEP, chunk);
        _Pragma("unroll TURN") for (int i = 0; i < (ROWS + STEP - 1) / STEP; i++, p += step) {
            if ((ROWS % STEP != 0 && row + i * STEP >= ROWS) || (THREADS % CHUNKS != 0 && row >= STEP)) continue;
            u32 to = STEP % 8 == 0 ? at + i * (STEP * padded(D) * 2)                                    // the swizzle of all these rows is the same,
                   : STEP % 8 == 4 ? (i % 2 ? odd : at) + i / 2 * (2 * STEP * padded(D) * 2)            // or alternates,
                   : dst + tile_offset<D>(row + i * STEP, chunk);                                       // or changes from row to row
            cp_async_16(to, (const void *)p, i * STEP < left ? bytes : 0);
        }
    } else {
        ROLLED for (u32 i = threadIdx.x; i < ROWS * padded(D); i += THREADS) {
            int row = i / padded(D), col = i % padded(D);
            st_shared_2(dst + tile_offset<D>(row, col / 8) + col % 8 * 2, row < rows && col < D ? src[row * row_stride + col * col_stride] : (u16)0);
        }
    }
}

//@ leaf copy_packed needs types LEAF UNROLL padded tile_offset cp_async_16 st_shared_2
// As copy_tile, but each row of the tensor stands for PACK rows of the tile, one for each head from the first on. `rows` counts those of the tensor.
template <int ROWS, int D, int PACK, int THREADS> LEAF void copy_packed(u32 dst, const u16 *src, i64 row_stride, i64 head_stride, i64 col_stride, int rows, bool vec) {
    constexpr u32 PIECE = 8, CHUNKS = padded(D) / PIECE;
    ROLLED for (u32 i = threadIdx.x; vec && i < ROWS * CHUNKS; i += THREADS) {
        u32 row = i / CHUNKS, chunk = i % CHUNKS;
        int bytes = max(0, min(16, 2 * (D - (int)(PIECE * chunk)))), in = (int)(row / PACK) < rows;
        cp_async_16(dst + tile_offset<D>(row, chunk), src + (in ? row / PACK * row_stride + row % PACK * head_stride + PIECE * chunk : 0), in ? bytes : 0);
    }
    ROLLED for (u32 i = threadIdx.x; !vec && i < ROWS * padded(D); i += THREADS) {
        u32 row = i / padded(D), col = i % padded(D);
        bool in = (int)(row / PACK) < rows && col < D;
        st_shared_2(dst + tile_offset<D>(row, col / PIECE) + col % PIECE * 2, in ? src[row / PACK * row_stride + row % PACK * head_stride + col * col_stride] : (u16)0);
    }
}

//@ leaf store_tile needs types LEAF UNROLL row_at padded tile_offset ld_shared_16 st_global_16 ld_shared_2
// Shared -> global: the first `rows` rows and D channels of a tile of ROWS rows, all THREADS threads. Strides in elements.
// vec: 16 bytes a store (dst and the rows' strides are multiples of 16 bytes, col_stride is 1); else element by element.
template <int ROWS, int D, int THREADS, class Rows> LEAF void store_tile(u16 *dst, Rows at, i64 col_stride, u32 src, int rows, bool vec) {
    constexpr int CHUNKS = padded(D) / 8, STEP = THREADS / CHUNKS;
    if (vec && D % 8 == 0) {
        int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        if ((THREADS % CHUNKS == 0 || row < STEP) && (D % 16 == 0 || 8 * chunk < D))
            ROLLED for (; row < ROWS && row_in(at, row, rows); row += STEP) st_global_16(dst + row_at(at, row) + 8 * chunk, ld_shared_16(src + tile_offset<D>(row, chunk)));
    } else {
        ROLLED for (u32 i = threadIdx.x; i < ROWS * D; i += THREADS) {
            int row = i / D, col = i % D;
            if (row_in(at, row, rows)) dst[row_at(at, row) + col * col_stride] = ld_shared_2(src + tile_offset<D>(row, col / 8) + col % 8 * 2);
        }
    }
}
