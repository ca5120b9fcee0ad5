//@ leaf TMap needs types
// A tensor map as the driver encodes it: (channel, row, head, batch), boxes of 64 channels; or (64 channels, row, panel of 64 channels, head, batch), boxes of all
// panels; with packed heads (channel, head, row, batch) or (64 channels, head, row, panel, batch). 128-byte swizzle.
struct alignas(64) TMap { u64 word[16]; };

//@ leaf tma_tile needs types LEAF UNROLL TMap
// One thread starts the copy of a tile of ROWS rows by D channels into panels of 64 channels (ROWS * 128 bytes each); rows and channels past the tensor's end
// become zeros. The bytes count for the mbarrier.
template <int ROWS, int D> LEAF void tma_tile(u32 dst, const TMap &map, u32 bar, int row, int head, int batch) {
    UNROLL for (int p = 0; p < (D + 63) / 64; p++)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst + p * ROWS * 128),
                     "l"(&map), "r"(bar), "r"(p * 64), "r"(row), "r"(head), "r"(batch)
                     : "memory");
}

//@ leaf tma_elements needs types LEAF UNROLL TMap
// One thread starts the copy of ROWS x COLS elements of a captured tensor, from `col` and `row` on, into panels of 64 columns; what lies past its ends becomes zeros.
// The bytes count for the mbarrier.
template <int ROWS, int COLS> LEAF void tma_elements(u32 dst, const TMap &map, u32 bar, int col, int row, int head, int batch) {
    UNROLL for (int p = 0; p < (COLS + 63) / 64; p++)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst + p * ROWS * 128),
                     "l"(&map), "r"(bar), "r"(col + p * 64), "r"(row), "r"(head), "r"(batch)
                     : "memory");
}

//@ leaf tma_row needs types LEAF TMap
// The same of a part of one row, as it stands.
LEAF void tma_row(u32 dst, const TMap &map, u32 bar, int col, int row, int head, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst), "l"(&map), "r"(bar),
                 "r"(col), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

//@ leaf tma_panels needs types LEAF TMap
// One thread starts the copy of a tile of a tensor whose rows are whole panels of 64 channels; rows past its end become zeros. The bytes count for the mbarrier.
LEAF void tma_panels(u32 dst, const TMap &map, u32 bar, int row, int head, int batch) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %3, %5, %6}], [%2];" ::"r"(dst), "l"(&map),
                 "r"(bar), "r"(0), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

//@ leaf tma_panels_packed needs types LEAF TMap
// The same of a tile whose rows are several heads to each row of the tensor.
LEAF void tma_panels_packed(u32 dst, const TMap &map, u32 bar, int row, int head, int batch) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %5, %4, %3, %6}], [%2];" ::"r"(dst), "l"(&map),
                 "r"(bar), "r"(0), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

//@ leaf tma_tile_packed needs types LEAF UNROLL TMap
// As tma_tile, of a tile whose rows are several heads to each row of the tensor.
template <int ROWS, int D> LEAF void tma_tile_packed(u32 dst, const TMap &map, u32 bar, int row, int head, int batch) {
    UNROLL for (int p = 0; p < (D + 63) / 64; p++)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %5, %4, %6}], [%2];" ::"r"(dst + p * ROWS * 128),
                     "l"(&map), "r"(bar), "r"(p * 64), "r"(row), "r"(head), "r"(batch)
                     : "memory");
}

//@ leaf tma_store_packed needs types LEAF UNROLL TMap
// As tma_store, of a tile whose rows are PACK heads to each row of the tensor.
template <int ROWS, int D, int PACK> LEAF void tma_store_packed(const TMap &map, u32 src, int first, int row, int head, int batch) {
    UNROLL for (int p = 0; p < (D + 63) / 64; p++)
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map), "r"(src + p * ROWS * 128 + first * 128),
                     "r"(p * 64), "r"(head), "r"(row + first / PACK), "r"(batch)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

//@ leaf tma_store needs types LEAF UNROLL TMap
// One thread starts the copy of a warpgroup's 64 rows, from `first` on, of a tile of ROWS rows by D channels in panels to global memory; rows and channels past the
// tensor's end are left out. tma_store_wait gives the rows back.
template <int ROWS, int D> LEAF void tma_store(const TMap &map, u32 src, int first, int row, int head, int batch) {
    UNROLL for (int p = 0; p < (D + 63) / 64; p++)
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map), "r"(src + p * ROWS * 128 + first * 128),
                     "r"(p * 64), "r"(row + first), "r"(head), "r"(batch)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

//@ leaf tma_store_wait needs LEAF warpgroup_sync
// Until the stores of this warpgroup have read their rows, which may then be written again.
LEAF void tma_store_wait() {
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    warpgroup_sync();
}

//@ leaf async_proxy_fence needs LEAF
// Makes this thread's writes to shared memory known to the copy engine.
LEAF void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
