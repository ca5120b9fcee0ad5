//@ leaf QueryLists needs types LEAF UNROLL
// The block lists of a chunk of queries: entries, how many of each list count (null: all), how many queries there are. Strides in elements.
struct QueryLists { const int *entry; i64 row, col; const int *count; i64 count_row; int queries; };
// Entry `slot` of the list of query q; -1 if there is none that counts.
LEAF int entry_of(const QueryLists &lists, int q, int slot) {
    const bool in = q < lists.queries && (!lists.count || slot < __ldg(lists.count + q * lists.count_row));
    return in ? __ldg(lists.entry + q * lists.row + slot * lists.col) : -1;
}
// Whether an earlier slot of the list has the same block.
template <class Lists> LEAF bool is_repeated(const Lists &lists, int q, int slot, int block) {
    ROLLED for (int s = 0; s < slot; s++)
        if (entry_of(lists, q, s) == block) return true;
    return false;
}

//@ leaf UnforcedLists needs types LEAF QueryLists floor_div
// Those without the blocks that are always listed: the first, which lie before `entry`, and of each query its own and the local - 1 before it.  q0: position of the first query.
struct UnforcedLists : QueryLists { int q0, block, local; };
LEAF int entry_of(const UnforcedLists &lists, int q, int slot) {
    const int block = entry_of((const QueryLists &)lists, q, slot);
    return block > floor_div(lists.q0 + q, lists.block) - lists.local ? -1 : block;
}

//@ leaf for_entries needs types LEAF UNROLL QueryLists
// f(i, j) for the entries i = query * N + slot of the 32 queries of the warp whose block is window + j, j < n: lanes side by side, four loads at a time.
template <int N, class Lists, class F> LEAF void for_entries(const Lists &lists, int window, int n, F f) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ROLLED for (int i0 = lane; i0 < 32 * N; i0 += 4 * 32) {
        u32 j[4];
        UNROLL for (int e = 0; e < 4; e++) {
            const int i = i0 + e * 32;
            j[e] = (u32)(i < 32 * N ? entry_of(lists, warp * 32 + i / N, i % N) : -1) - (u32)window;
        }
        UNROLL for (int e = 0; e < 4; e++)
            if (j[e] < (u32)n) f(i0 + e * 32, (int)j[e]);
    }
}

//@ leaf mark_lists needs types LEAF UNROLL for_entries
// Sets bit q of masks[warp][j] if query q of the warp's 32 lists block window + j, j < n; gives those that list some block twice. Each warp sees its own row.
template <int N, int WINDOW, class Lists> LEAF u32 mark_lists(u32 *masks, const Lists &lists, int window, int n) {
    u32 *const row = masks + threadIdx.x / 32 * WINDOW, twice = 0;
    UNROLL for (int i = 0; i < WINDOW / 128; i++) ((uint4 *)row)[i * 32 + threadIdx.x % 32] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    for_entries<N>(lists, window, n, [&](int i, int j) { twice |= atomicOr(row + j, 1u << i / N) & 1u << i / N; });
    return __reduce_or_sync(~0u, twice);
}

//@ leaf count_lists needs types LEAF UNROLL mark_lists
// out[j] = how many entries of the chunk's lists have a block below j, for j = 0 .. blocks. A window of blocks at a time: four neighbouring ones to each thread.
template <int N, int WINDOW, class Lists> LEAF void count_lists(u32 *masks, u32 *sums, const Lists &lists, int blocks, int *out, i64 col) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 before = 0;                                                      // in lower windows
    ROLLED for (int window = 0; window < blocks; window += WINDOW) {
        const int n = min(blocks - window, WINDOW);
        mark_lists<N, WINDOW>(masks, lists, window, n);
        __syncthreads();
        uint4 count = make_uint4(0, 0, 0, 0);
        UNROLL for (int w = 0; w < 8; w++) {
            const uint4 mask = ((const uint4 *)(masks + w * WINDOW))[threadIdx.x];
            count.x += __popc(mask.x), count.y += __popc(mask.y), count.z += __popc(mask.z), count.w += __popc(mask.w);
        }
        const u32 sum = count.x + count.y + count.z + count.w;
        u32 at = sum;                                                    // in this lane and lower ones
        UNROLL for (int d = 1; d < 32; d *= 2) {
            const u32 lower = __shfl_up_sync(~0u, at, d);
            if (lane >= d) at += lower;
        }
        if (lane == 31) sums[warp] = at;
        __syncthreads();
        at += before - sum;
        UNROLL for (int w = 0; w < 8; w++) {
            if (w < warp) at += sums[w];
            before += sums[w];
        }
        ((uint4 *)masks)[threadIdx.x] = make_uint4(at, at + count.x, at + count.x + count.y, at + sum - count.w);
        __syncthreads();
        ROLLED for (int j = threadIdx.x; j < n; j += 256) out[(window + j) * col] = (int)masks[j];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blocks * col] = (int)before;
}

//@ leaf scan_lists needs types LEAF UNROLL
// Columns column .. column + 31 of x (of `columns`), a lane each: total[j] = the sum over all chunks; x[c][j] = that over the chunks before c. A warp takes an eighth
// of the chunks.
LEAF void scan_lists(u32 *part, int *x, i64 row, i64 col, int chunks, int column, int columns, int *total, i64 total_col) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, j = column + lane, share = (chunks + 7) / 8;
    const int from = min(warp * share, chunks), to = j < columns ? min(from + share, chunks) : from;
    x += j * col;
    int at = 0;
    _Pragma("unroll 8") for (int c = from; c < to; c++) at += x[c * row];
    part[warp * 32 + lane] = at;
    __syncthreads();
    at = 0;
    UNROLL for (int w = 0; w < 7; w++)
        if (w < warp) at += part[w * 32 + lane];
    ROLLED for (int c = from; c < to; c += 8) {
        int count[8];
        UNROLL for (int e = 0; e < 8; e++) count[e] = c + e < to ? x[(c + e) * row] : 0;
        UNROLL for (int e = 0; e < 8; e++) {
            if (c + e < to) x[(c + e) * row] = at;
            at += count[e];
        }
    }
    if (warp == 7 && j < columns) total[j * total_col] = at;
}

//@ leaf invert_lists needs types LEAF UNROLL mark_lists
// Writes the entries of the chunk's lists, from number id0 on, to their places: first[j] + before[j + 1] - before[j] is where those of block j begin, behind which they
// lie in the order of their queries.
template <int N, int WINDOW, class Lists> LEAF void invert_lists(u32 *masks, u32 *begins, u8 *below, const Lists &lists, int blocks, const int *first, i64 first_col,
                                                    const int *before, i64 col, int *entry, i64 entry_col, int id0) {
    const int warp = threadIdx.x / 32;
    ROLLED for (int window = 0; window < blocks; window += WINDOW) {
        const int n = min(blocks - window, WINDOW);
        const u32 twice = mark_lists<N, WINDOW>(masks, lists, window, n);
        __syncthreads();
        ROLLED for (int j = threadIdx.x; j < n; j += 256) {
            const int block = window + j;
            begins[j] = first[block * first_col] + before[(block + 1) * col] - before[block * col];
            int lower = 0;                                               // queries of lower warps: 224 at most
            UNROLL for (int w = 0; w < 8; w++) {
                below[w * WINDOW + j] = (u8)lower;
                lower += __popc(masks[w * WINDOW + j]);
            }
        }
        __syncthreads();
        for_entries<N>(lists, window, n, [&](int i, int j) {
            const int q = i / N;
            if (twice >> q & 1 && is_repeated(lists, warp * 32 + q, i % N, window + j)) return;
            const int place = begins[j] + below[warp * WINDOW + j] + __popc(masks[warp * WINDOW + j] & ((1u << q) - 1));
            entry[place * entry_col] = id0 + warp * 32 * N + i;
        });
        __syncthreads();
    }
}
