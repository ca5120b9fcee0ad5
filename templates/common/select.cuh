//@ leaf clear_table needs types LEAF UNROLL st_shared_4
// Clears BYTES of shared memory, all THREADS threads. Complete at the next barrier.
template <int BYTES, int THREADS> LEAF void clear_table(u32 table) {
    ROLLED for (u32 i = threadIdx.x * 4; i < BYTES; i += THREADS * 4) st_shared_4(table + i, 0);
}

//@ leaf ld_shared_f32 needs types LEAF
// Reads a float of shared memory.
LEAF float ld_shared_f32(u32 addr) { float x; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(addr) : "memory"); return x; }

//@ leaf ld_shared_u64 needs types LEAF
// Reads 8 bytes of shared memory.
LEAF u64 ld_shared_u64(u32 addr) { u64 x; asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(addr) : "memory"); return x; }

//@ leaf st_shared_u64 needs types LEAF
// Writes 8 bytes of shared memory.
LEAF void st_shared_u64(u32 addr, u64 x) { asm volatile("st.shared.b64 [%0], %1;" ::"r"(addr), "l"(x) : "memory"); }

//@ leaf add_lanes needs types LEAF UNROLL
// The sums of N values over lanes that differ in the bits BIT, 2 * BIT, .. below END. Each lane keeps half of the values at each bit while they can be
// halved: afterwards v[0..left_of_lanes) are the sums of the values from the returned index on. The same bits in whatever lane.
template <int N, int BIT, int END> LEAF constexpr int left_of_lanes() {
    if constexpr (BIT >= END) return N;
    else return left_of_lanes<N % 2 ? N : N / 2, 2 * BIT, END>();
}
template <int N, int BIT, int END, int M> LEAF int add_lanes(float (&v)[M]) {
    if constexpr (BIT >= END) return 0;
    else if constexpr (N % 2) {
        UNROLL for (int i = 0; i < N; i++) v[i] += __shfl_xor_sync(~0u, v[i], BIT);
        return add_lanes<N, 2 * BIT, END>(v);
    } else {
        const bool upper = threadIdx.x & BIT;
        UNROLL for (int i = 0; i < N / 2; i++) {
            float keep = upper ? v[i + N / 2] : v[i], give = upper ? v[i] : v[i + N / 2];
            v[i] = keep + __shfl_xor_sync(~0u, give, BIT);
        }
        return (upper ? N / 2 : 0) + add_lanes<N / 2, 2 * BIT, END>(v);
    }
}

//@ leaf sum_heads needs types LEAF UNROLL add_lanes
// Sums of fragments over R::UNIT rows at a time, each warp its own 16 * MT from warp_row on; those of unit u go to row u of the table, behind its history.
template <class R, int MT, int N> LEAF void sum_heads(u32 table, const float (&p)[MT][N][4], int warp_row) {
    constexpr int ROWS = R::UNIT > 8 ? R::UNIT : 8, END = R::UNIT < 8 ? 4 * R::UNIT : 32; // rows whose registers are added, lanes that are
    const int lane = threadIdx.x % 32;
    UNROLL for (int top = 0; top < 16 * MT; top += ROWS) {
        float v[2 * N];
        UNROLL for (int i = 0; i < 2 * N; i++) {
            v[i] = p[top / 16][i / 2][top / 8 % 2 * 2 + i % 2];
            UNROLL for (int r = top + 8; r < top + ROWS; r += 8) v[i] += p[r / 16][i / 2][r / 8 % 2 * 2 + i % 2];
        }
        const int from = add_lanes<2 * N, 4, END>(v), unit = (warp_row + top + lane / 4) / R::UNIT;
        if (unit >= R::QUERIES * R::PARTS) continue;
        const u32 row = table + (unit * R::SUM_PITCH + R::HISTORY + lane % 4 * 2) * 4;
        UNROLL for (int i = 0; i < left_of_lanes<2 * N, 4, END>(); i++) st_shared_4(row + ((from + i) / 2 * 8 + (from + i) % 2) * 4, __float_as_uint(v[i]));
    }
}

//@ leaf importance needs types LEAF ld_shared_f32
// What the sums in the table rows of a query say of block j of this step: each pooled key counts by the keys that it shares with the block, in units of R::GRAIN.
template <class R> LEAF float importance(u32 rows, int j) {
    constexpr bool EVEN = R::BLOCK % R::STRIDE == 0;                     // then the weights are the same for all blocks
    constexpr int END = (R::BLOCK + R::STRIDE - 2) / R::STRIDE + 1, TERMS = R::HISTORY + END;
    const int first = EVEN ? j * (R::BLOCK / R::STRIDE) : j * R::BLOCK / R::STRIDE, off = EVEN ? 0 : j * R::BLOCK % R::STRIDE;
    float x = 0.f;
    _Pragma("unroll TERMS <= 32 ? TERMS : 1") for (int t = -R::HISTORY; t < END; t++) {
        const int shared = min(t * R::STRIDE + R::SIZE - off, R::BLOCK) - max(t * R::STRIDE - off, 0);
        if (shared <= 0) continue;
        const u32 at = rows + (R::HISTORY + first + t) * 4;
        float sum = ld_shared_f32(at);
        _Pragma("unroll R::PARTS <= 4 ? R::PARTS : 1") for (int p = 1; p < R::PARTS; p++) sum += ld_shared_f32(at + p * R::SUM_PITCH * 4);
        x += sum * (float)(shared / R::GRAIN);
    }
    return x;
}

//@ leaf rank_key needs types LEAF
// A block and its importance as an integer that is the higher the more important, of equals the lower the block; never 0.
LEAF u64 rank_key(float x, int block) {
    u32 bits = __float_as_uint(x + 0.f);                                 // -0 is 0
    bits ^= (u32)((int)bits >> 31) | 0x80000000u;
    return (u64)bits << 32 | (u32)~block;
}

//@ leaf rank_blocks needs types LEAF UNROLL NEG_INF importance rank_key ld_shared_u64 st_shared_u64 st_shared_4
// Takes those of R::BLOCKS blocks from block0 on into the lists of the tile's queries that belong there. R::LANES lanes of a warp own a query: its list, which they
// hold in order, KEYS after KEYS, and its rows of the sums, whose end becomes the next step's history. Blocks come in ascending order.
template <class R> LEAF void rank_blocks(u32 lists, u32 sums, int block0, int blocks, int q0, int queries) {
    constexpr int KEYS = R::LIST_PITCH / R::LANES;
    if ((int)(threadIdx.x / 32 * 32) >= R::QUERIES * R::LANES) return;   // a warp without queries
    const int lane = threadIdx.x % R::LANES, query = threadIdx.x / R::LANES, q = q0 + query, own = q < 0 ? -1 : q / R::BLOCK;
    const bool in = query < min(R::QUERIES, queries);
    const u32 list = lists + (in ? query : 0) * (R::LIST_PITCH * 8), rows = sums + (in ? query : 0) * (R::PARTS * R::SUM_PITCH * 4);
    const u32 group = (R::LANES == 32 ? ~0u : (1u << R::LANES) - 1u) << (threadIdx.x % 32 / R::LANES * R::LANES);
    u64 low = 0, key[KEYS] = {};                                         // what a block has to exceed; the list, once it is wanted
    bool open = false;
    if (in) low = ld_shared_u64(list + (R::COUNT - 1) * 8);
    ROLLED for (int j = lane; j - lane < R::BLOCKS; j += R::LANES) {
        const int block = block0 + j;
        u64 next = 0;
        if (in && block < blocks && (!R::CAUSAL || block <= own) && j < R::BLOCKS) {
            float x = importance<R>(rows, j);
            x = x == x ? x : -3.402823466e38f;
            if (block < R::FIRST || (block <= own && block > own - R::LOCAL)) x = -NEG_INF;
            if (x != NEG_INF) next = rank_key(x, block);
        }
        for (u32 wait; (wait = __ballot_sync(~0u, next > low)) != 0;) {  // one of each query
            if (!open && in) UNROLL for (int i = 0; i < KEYS; i++) key[i] = ld_shared_u64(list + (lane * KEYS + i) * 8);
            open = true;
            const int who = (wait & group) ? __ffs(wait & group) - 1 : (int)(threadIdx.x % 32);
            u64 x = __shfl_sync(~0u, next, who), before = __shfl_up_sync(~0u, key[KEYS - 1], 1, R::LANES);
            if (!(wait & group)) x = 0;                                  // changes nothing
            if (lane == 0) before = ~0ull;
            UNROLL for (int i = KEYS - 1; i > 0; i--) key[i] = max(key[i], min(key[i - 1], x));
            key[0] = max(key[0], min(before, x));
            low = __shfl_sync(~0u, key[(R::COUNT - 1) % KEYS], (R::COUNT - 1) / KEYS, R::LANES);
            if (who == (int)(threadIdx.x % 32)) next = 0;
        }
    }
    if (open && in) UNROLL for (int i = 0; i < KEYS; i++) st_shared_u64(list + (lane * KEYS + i) * 8, key[i]);
    __syncwarp();
    if constexpr (R::HISTORY > 0) {
        ROLLED for (int i = lane; in && i < R::PARTS * R::HISTORY; i += R::LANES) {
            const u32 row = rows + i / R::HISTORY * (R::SUM_PITCH * 4) + i % R::HISTORY * 4;
            st_shared_4(row, __float_as_uint(ld_shared_f32(row + R::STEP * 4)));
        }
    }
}

//@ leaf store_lists needs types LEAF UNROLL ld_shared_u64
// Writes the lists of the tile's first `queries` queries by their owners: blocks in ascending order, then -1. Strides in elements.
template <class R> LEAF void store_lists(int *dst, i64 row_stride, i64 col_stride, u32 lists, int queries) {
    const int lane = threadIdx.x % R::LANES, query = threadIdx.x / R::LANES;
    if (query >= min(R::QUERIES, queries)) return;
    const u32 list = lists + query * (R::LIST_PITCH * 8);
    ROLLED for (int i = lane; i < R::COUNT; i += R::LANES) {
        const u32 mine = (u32)ld_shared_u64(list + i * 8);               // ~block, 0: none
        int place = 0;
        ROLLED for (int n = 0; n < R::COUNT; n++) place += (u32)ld_shared_u64(list + n * 8) > mine;
        dst[query * row_stride + (mine ? place : i) * col_stride] = mine ? (int)~mine : -1;
    }
}
