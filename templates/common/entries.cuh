//@ leaf Entries needs types LEAF
// Inverted lists of a head, N entries to a list: where the entries of each block begin; and those of a piece, from entry number `from` on, query * N + slot, by block
// and query, in shared memory.
template <int N> struct Entries { const int *first, *kept; int from; };
template <int N> LEAF int first_of(Entries<N> x, int block) { return __ldg(x.first + block); }
template <int N> LEAF int entry_of(Entries<N> x, int i) { return x.kept[i - x.from]; }
template <int N> LEAF int query_of(Entries<N> x, int i) { return (int)((u32)entry_of(x, i) / N); }

//@ leaf keep_entries needs types LEAF
// Up to MOST entries from number `from` on, of `all` at `entry`, into `kept`.
template <int MOST, int THREADS> LEAF void keep_entries(int *kept, const int *entry, int from, int all) {
    for (int i = threadIdx.x; i < MOST && from + i < all; i += THREADS) kept[i] = __ldg(entry + from + i);
}

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
// As copy_packed, but the rows of each warp by itself, ROWS of them: those of the queries of `count` entries from entry `from` on, PACK heads each.
// TURN: pieces that a lane moves in a turn of the loop.
template <int ROWS, int D, int PACK, int TURN, int N> LEAF void copy_entries(u32 dst, const u16 *src, i64 row_stride, i64 head_stride, i64 col_stride, Entries<N> entries, int from, int count, bool vec) {
    constexpr u32 PIECE = 8, CHUNKS = padded(D) / PIECE;
    constexpr bool WHOLE = ROWS % PACK == 0;                            // a warp has whole queries, so that an entry is looked up for many pieces
    u32 lane = threadIdx.x % 32, first = threadIdx.x / 32 * ROWS;
    if (vec) {
        _Pragma("unroll TURN") for (u32 i = 0; i < ROWS * CHUNKS / 32; i++) {
            u32 in_warp = (lane + i * 32) / CHUNKS, row = first + in_warp, chunk = (lane + i * 32) % CHUNKS;
            u32 query = WHOLE ? first / PACK + in_warp / PACK : row / PACK, head = WHOLE ? in_warp % PACK : row % PACK;
            int bytes = max(0, min(16, 2 * (D - (int)(PIECE * chunk)))), in = (int)query < count;
            cp_async_16(dst + tile_offset<D>(row, chunk), src + (in ? query_of(entries, from + query) * row_stride + head * head_stride + PIECE * chunk : 0), in ? bytes : 0);
        }
        return;
    }
    ROLLED for (u32 i = lane; i < ROWS * padded(D); i += 32) {
        u32 row = first + i / padded(D), col = i % padded(D);
        bool in = (int)(row / PACK) < count && col < D;
        st_shared_2(dst + tile_offset<D>(row, col / PIECE) + col % PIECE * 2,
                    in ? src[query_of(entries, from + row / PACK) * row_stride + row % PACK * head_stride + col * col_stride] : (u16)0);
    }
}

//@ leaf Scattered needs types LEAF
// Rows of a tile that go to the rows of a tensor that entries name, P heads to each, up to entry[last]; see row_at.
template <int P> struct Scattered { const int *entry; i64 stride, head_stride; int last; };
template <int P> LEAF i64 row_at(Scattered<P> x, int row) { return x.entry[min((int)((u32)row / P), x.last)] * x.stride + (u32)row % P * x.head_stride; }
template <int P> LEAF bool row_in(Scattered<P>, int row, int rows) { return (int)((u32)row / P) < rows; }
