//@ leaf TMap needs types
// A tensor map as the driver encodes it: (channel, row, head, batch), boxes of 64 channels, 128-byte swizzle.
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
