//@ leaf BlockList needs types LEAF
// The block list of a tile: its entries, how many count, and how many blocks of keys there are.
struct BlockList { const int *entry; i64 stride; int count, blocks; };
// The block at entry i; for one that does not count (negative, past the last block, there before) the first past the keys, all of which are masked.
LEAF int block_of(const BlockList &list, int i) {
    int block = i < list.count ? __ldg(list.entry + i * list.stride) : -1;
    if (block < 0 || block >= list.blocks) return list.blocks;
    for (int j = 0; j < i; j++)
        if (__ldg(list.entry + j * list.stride) == block) return list.blocks;
    return block;
}

//@ leaf UniqueList needs types LEAF
// The same of a list that has no block twice.
struct UniqueList { const int *entry; i64 stride; int count, blocks; };
LEAF int block_of(const UniqueList &list, int i) {
    int block = i < list.count ? __ldg(list.entry + i * list.stride) : -1;
    return block < 0 || block >= list.blocks ? list.blocks : block;
}

//@ leaf KeptList needs types LEAF
// The block list of a tile, in the registers of each of its warps: lane l has the blocks of entries l and l + 32, of one that does not count the first past the keys.
template <int N> struct KeptList { int block[(N + 31) / 32]; };
// For all lanes at once, as to the entry.
template <int N> LEAF int block_of(const KeptList<N> &list, int i) {
    return __shfl_sync(~0u, N > 32 && i >= 32 ? list.block[(N - 1) / 32] : list.block[0], i % 32);
}

//@ leaf keep_list needs types LEAF UNROLL KeptList
// Reads it: the first `count` entries, stride apart. One does not count that is negative, past the last block, or, unless each is UNIQUE, there before.
template <int N, bool UNIQUE> LEAF KeptList<N> keep_list(const int *entry, i64 stride, int count, int blocks) {
    KeptList<N> list;
    const int lane = threadIdx.x % 32;
    UNROLL for (int r = 0; r < (N + 31) / 32; r++) {
        const int i = r * 32 + lane, block = i < N && i < count ? __ldg(entry + i * stride) : -1;
        bool counts = block >= 0 && block < blocks;
        if (!UNIQUE) {
            counts &= (__match_any_sync(~0u, block) & ((1u << lane) - 1)) == 0;
            UNROLL for (int other = 0; other < 32 * r; other++) counts &= __shfl_sync(~0u, list.block[0], other) != block;
        }
        list.block[r] = counts ? block : blocks;
    }
    return list;
}

//@ leaf UnionList needs types LEAF UNROLL
// The union of the lists of a tile's queries: blocks, ascending, and which queries list each.
struct UnionList { const int *entry; const u32 *by; };
LEAF int block_of(const UnionList &list, int i) { return list.entry[i]; }
LEAF bool listed_by(const UnionList &list, int i, int query) { return list.by[i] >> query & 1; }

//@ leaf unite_lists needs types LEAF UNROLL UnionList
// Makes it of the lists of `queries` rows, by all threads, in a table of four rows of PITCH: the union, by whom, and on the way for each entry its block, if
// it is the first with that, and by whom that is listed. Gives how many blocks there are. Entries past the count (null: all count), negative or past the last block are none.
template <int QUERIES, int SLOTS, int PITCH, int THREADS> LEAF int unite_lists(int *table, const int *entry, i64 row, i64 col, const int *count, i64 count_row, int queries, int blocks) {
    constexpr int NONE = 0x7fffffff;
    int *const all = table, *const by = table + PITCH, *const first = table + 2 * PITCH, *const first_by = table + 3 * PITCH;
    int n = 0;
    ROLLED for (int e = threadIdx.x; e < PITCH; e += THREADS) {
        const int q = e / SLOTS, slot = e % SLOTS;
        const bool in = q < queries && (!count || slot < __ldg(count + q * count_row));
        const int block = in ? __ldg(entry + q * row + slot * col) : -1;
        all[e] = block >= 0 && block < blocks ? block : NONE;
    }
    __syncthreads();
    ROLLED for (int e0 = 0; e0 < PITCH; e0 += THREADS) {
        const int e = e0 + threadIdx.x, block = e < PITCH ? all[e] : NONE;
        bool is_first = block != NONE;
        u32 listed = 0;
        ROLLED for (int x = 0; x < PITCH; x += 4) {
            const int4 four = *(const int4 *)(all + x);
            const bool same[4] = {four.x == block, four.y == block, four.z == block, four.w == block};
            UNROLL for (int i = 0; i < 4; i++) {
                if (same[i]) listed |= 1u << (x + i) / SLOTS;
                if (same[i] && x + i < e) is_first = false;
            }
        }
        if (e < PITCH) first[e] = is_first ? block : NONE, first_by[e] = (int)listed;
        n += __syncthreads_count(is_first);
    }
    ROLLED for (int e = threadIdx.x; e < PITCH; e += THREADS) {
        const int block = first[e];
        int rank = 0;
        if (block == NONE) continue;
        ROLLED for (int x = 0; x < PITCH; x += 4) {
            const int4 four = *(const int4 *)(first + x);
            rank += (four.x < block) + (four.y < block) + (four.z < block) + (four.w < block);
        }
        all[rank] = block;
        by[rank] = first_by[e];
    }
    __syncthreads();
    return n;
}

//@ leaf merge_slots needs types LEAF UNROLL NEG_INF load_8
// The results of the N slots of a list (rows of 8 channels, row_stride apart, the first n of which are there), weighted by their LSEs, which are lse_stride apart; the LSE of
// all, -inf if no slot counts.  y is the result of other keys already if their LSE, top, is not -inf.  Two rows are on their way at a time: with more of them, of all threads, DRAM is slower.
template <class T, int N, class List> LEAF float merge_slots(float (&y)[8], const List &list, const float *lse, i64 lse_stride, const typename T::element *part, i64 row_stride, int n, bool vec, float top = NEG_INF) {
    float sum = top == NEG_INF ? 0.f : 1.f;
    UNROLL for (int e = 0; e < 8; e++) y[e] = top == NEG_INF ? 0.f : y[e];
    ROLLED for (int s = 0; s < N; s += 2) {
        float x[2];
        Eight<T> row[2];
        UNROLL for (int i = 0; i < 2; i++) {
            bool counts = s + i < N && block_of(list, s + i) < list.blocks; // the row of another may never have been written
            x[i] = counts ? lse[(s + i) * lse_stride] : NEG_INF;
            if (counts) row[i] = load_8<T>(part + (s + i) * row_stride, 1, n, vec);
        }
        UNROLL for (int i = 0; i < 2; i++) {
            if (x[i] == NEG_INF) continue;
            float above = fmaxf(top, x[i]), old = __expf(top - above), weight = __expf(x[i] - above);
            top = above, sum = sum * old + weight;
            UNROLL for (int e = 0; e < 8; e++) y[e] = y[e] * old + weight * row[i][e];
        }
    }
    if (top == NEG_INF) return top;
    const float share = 1.f / sum;
    UNROLL for (int e = 0; e < 8; e++) y[e] *= share;
    return top + logf(sum);
}
