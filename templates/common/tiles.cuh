//@ leaf TileList needs types LEAF UNROLL
// The list of key tiles of a query tile, made by a block of N threads: first those without hidden keys, then the others. While it is made the others stand at its
// end, backwards, as nobody knows yet where they begin.
constexpr int TILE_WHOLE = 1, TILE_PARTIAL = 2;
template <int N> struct TileList {
    int *const at;     // at[-2], at[-1]: how many, and how many of them are whole
    const int room;
    int whole, partial;
};
// Each thread comes with a tile of its own and what that is, 0: hidden; tiles ascend with threads and from call to call.
template <int N> LEAF void append_tiles(TileList<N> &list, int kind, int tile) {
    __shared__ int sums[N / 32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 w = __ballot_sync(~0u, kind == TILE_WHOLE), p = __ballot_sync(~0u, kind == TILE_PARTIAL), below = (1u << lane) - 1;
    if (lane == 0) sums[warp] = __popc(w) | __popc(p) << 16;
    __syncthreads();
    int before = 0, all = 0;
    UNROLL for (int i = 0; i < N / 32; i++) {
        before += i < warp ? sums[i] : 0;
        all += sums[i];
    }
    if (kind == TILE_WHOLE) list.at[list.whole + (before & 0xFFFF) + __popc(w & below)] = tile;
    if (kind == TILE_PARTIAL) list.at[list.room - 1 - list.partial - (before >> 16) - __popc(p & below)] = tile;
    list.whole += all & 0xFFFF;
    list.partial += all >> 16;
    __syncthreads();
}
// With all of them there, the others close up.
template <int N> LEAF void close_tiles(TileList<N> &list) {
    const int whole = list.whole, partial = list.partial, room = list.room;
    int *const at = list.at;
    ROLLED for (int i0 = 0; i0 < partial && whole + partial < room; i0 += N) { // forwards, so that nothing is overwritten that is still to be read
        const int i = i0 + (int)threadIdx.x, tile = i < partial ? at[room - partial + i] : 0;
        __syncthreads();
        if (i < partial) at[whole + i] = tile;
        __syncthreads();
    }
    if (threadIdx.x > 0) return;
    at[-2] = whole + partial;
    at[-1] = whole;
    if (whole + partial == 0) at[0] = 0;
}
