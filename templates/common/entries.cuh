//@ leaf Entries needs types LEAF
// Inverted lists of a head, N entries to a list: where the entries of each block begin, and the entries, query * N + slot, by block and query.
template <int N> struct Entries { const int *first, *entry; };
template <int N> LEAF int first_of(Entries<N> x, int block) { return __ldg(x.first + block); }
template <int N> LEAF int query_of(Entries<N> x, int i) { return (int)((u32)__ldg(x.entry + i) / N); }

//@ leaf find_block needs types LEAF Entries
// The block, of `blocks`, that entry i is of. All lanes of a warp look for the same one, 32 candidates at a time.
template <int N> LEAF int find_block(Entries<N> x, int blocks, int i) {
    int at = 0, n = blocks, lane = threadIdx.x % 32;
    while (n > 1) {
        int step = (n + 31) / 32, mine = at + lane * step;
        u32 before = __ballot_sync(~0u, lane * step < n && first_of(x, mine) <= i);
        int last = 31 - __clz(before);
        n = min(step, n - last * step);
        at += last * step;
    }
    return at;
}

//@ leaf copy_entries needs types LEAF UNROLL padded tile_offset cp_async_16 st_shared_2 Entries
// As copy_packed: rows of the queries of `count` entries from entry `from` on, PACK heads each.
template <int ROWS, int D, int PACK, int THREADS, int N> LEAF void copy_entries(u32 dst, const u16 *src, i64 row_stride, i64 head_stride, i64 col_stride, Entries<N> entries, int from, int count, bool vec) {
    constexpr u32 PIECE = 8, CHUNKS = padded(D) / PIECE;
    _Pragma("unroll 4") for (u32 i = threadIdx.x; vec && i < ROWS * CHUNKS; i += THREADS) {
        u32 row = i / CHUNKS, chunk = i % CHUNKS;
        int bytes = max(0, min(16, 2 * (D - (int)(PIECE * chunk)))), in = (int)(row / PACK) < count;
        cp_async_16(dst + tile_offset<D>(row, chunk), src + (in ? query_of(entries, from + row / PACK) * row_stride + row % PACK * head_stride + PIECE * chunk : 0), in ? bytes : 0);
    }
    ROLLED for (u32 i = threadIdx.x; !vec && i < ROWS * padded(D); i += THREADS) {
        u32 row = i / padded(D), col = i % padded(D);
        bool in = (int)(row / PACK) < count && col < D;
        st_shared_2(dst + tile_offset<D>(row, col / PIECE) + col % PIECE * 2,
                    in ? src[query_of(entries, from + row / PACK) * row_stride + row % PACK * head_stride + col * col_stride] : (u16)0);
    }
}

//@ leaf Scattered needs types LEAF
// Rows of a tile that go to the rows of a tensor that `entry` names, P heads to each; see row_at.
template <int P> struct Scattered { const int *entry; i64 stride, head_stride; };
template <int P> LEAF i64 row_at(Scattered<P> x, int row) { return __ldg(x.entry + row / P) * x.stride + (u32)row % P * x.head_stride; }
template <int P> LEAF bool row_in(Scattered<P>, int row, int rows) { return (int)((u32)row / P) < rows; }
