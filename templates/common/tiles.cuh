//@ leaf TileMap needs types LEAF UNROLL
// The row of the tile map that a block of N threads makes for its tile of queries: bit j of the words from `at` on says that a query sees a key of key tile j. Before
// them: at[-1] how many such tiles there are; at[-2] how many of them need no mask: all those from tile at[-4] to at[-3] - 1; others begin at tile at[-5] or behind, and
// at[-4] - 1 is one of them, or -1.
constexpr int TILE_HIDDEN = 0, TILE_WHOLE = 1, TILE_PARTIAL = 2;
struct TileRun { // tiles begin .. end - 1, of which n are seen as a whole and none in part
    int begin, end, n;
};
template <int N> struct TileMap {
    int *const at;
    int seen, first;
    TileRun run, longest; // of these the first thread keeps account
};
LEAF void close_run(TileRun &run, TileRun &longest, int end) {
    if (run.n > longest.n) longest = {run.begin, end, run.n};
    run = {end + 1, 0, 0};
}
// What tiles first .. first + N - 1 are, of which those of lo .. hi - 1 count; `first` is a multiple of 32 and ascends from call to call.
template <int N> LEAF void map_tiles(TileMap<N> &map, const u8 (&kinds)[N], int first, int lo, int hi) {
    __shared__ u32 whole[N / 32], partial[N / 32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = first + (int)threadIdx.x;
    const int kind = tile >= lo && tile < hi ? kinds[threadIdx.x] : TILE_HIDDEN;
    const u32 w = __ballot_sync(~0u, kind == TILE_WHOLE), p = __ballot_sync(~0u, kind == TILE_PARTIAL);
    if (lane == 0) {
        whole[warp] = w, partial[warp] = p;
        if (tile < hi) map.at[tile / 32] = (int)(w | p);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        ROLLED for (int i = 0; i < N / 32 && first + 32 * i < hi; i++) {
            const u32 all = whole[i] | partial[i];
            if (!all) continue;
            const int begin = first + 32 * i;
            if (!map.seen) map.first = begin + __ffs((int)all) - 1;
            map.seen += __popc(all);
            u32 left = whole[i];
            ROLLED for (u32 cuts = partial[i]; cuts; cuts &= cuts - 1) {
                const u32 below = (cuts & (0 - cuts)) - 1;
                map.run.n += __popc(left & below);
                left &= ~below;
                close_run(map.run, map.longest, begin + __popc(below));
            }
            map.run.n += __popc(left);
        }
    __syncthreads();
}
// With all of them there. A map without tiles has the bit of tile 0, for whoever visits one at least.
template <int N> LEAF void close_map(TileMap<N> &map, int end) {
    if (threadIdx.x > 0) return;
    close_run(map.run, map.longest, end);
    map.at[-1] = map.seen;
    map.at[-2] = map.longest.n;
    map.at[-3] = map.longest.end;
    map.at[-4] = map.longest.begin;
    map.at[-5] = map.longest.n && map.longest.begin == 0 ? map.longest.end : map.first;
    if (map.seen == 0) map.at[0] = 1;
}
//@ leaf TILE_OPEN
constexpr int TILE_OPEN = 3; // bounds do not say what it is
//@ leaf tile_after needs types LEAF
// Readers of a row visit first the tiles that need the mask, then those that need none, both ascending: its tile number n, behind `tile`, which is number n - 1.
LEAF int next_tile_from(const int *map, int tile) {
    int word = tile / 32;
    u32 bits = (u32)__ldg(map + word) & ~0u << tile % 32;
    while (!bits) bits = (u32)__ldg(map + ++word);
    return word * 32 + __ffs((int)bits) - 1;
}
LEAF int tile_after(const int *map, int tile, int n) {
    const int begin = __ldg(map - 4);
    int from = tile + 1 == begin ? __ldg(map - 3) : tile + 1;
    if (n == 0) from = __ldg(map - 5);
    if (n == __ldg(map - 1) - __ldg(map - 2)) from = begin;
    return next_tile_from(map, from);
}
//@ leaf TileWalk needs types LEAF tile_after
// Where a reader of a row of the map is: at its tile number n.
struct TileWalk {
    int n, tile;
};
// A row is walked from its tile 0 on, n being as it was or one more.
LEAF int tile_at(TileWalk &walk, const int *map, int n) {
    if (n == 0 || n != walk.n) walk = {n, tile_after(map, walk.tile, n)};
    return walk.tile;
}
