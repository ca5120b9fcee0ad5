//@ leaf smem_addr needs types LEAF
// The 32-bit shared-memory address of a pointer into shared memory.
LEAF u32 smem_addr(const void *p) {
    u64 addr;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(addr) : "l"(p));            // asm: computed once, not at each use
    return (u32)addr;
}

//@ leaf ld_shared_16 needs types LEAF
// Reads 16 bytes of shared memory.
LEAF uint4 ld_shared_16(u32 addr) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(addr) : "memory");
    return x;
}

//@ leaf st_global_16 needs types LEAF
// Writes 16 bytes of global memory, in one store: of *(uint4 *)p = ld_shared_16(...) NVVM makes four.
LEAF void st_global_16(u16 *p, uint4 x) { asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory"); }

//@ leaf st_global_16_if needs types LEAF
// The same where `holds`, without a branch.
LEAF void st_global_16_if(bool holds, u16 *p, uint4 x) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"((int)holds), "l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

//@ leaf ld_shared_2 needs types LEAF
// Reads one 2-byte element of shared memory.
LEAF u16 ld_shared_2(u32 addr) { u16 x; asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x) : "r"(addr) : "memory"); return x; }

//@ leaf st_shared_4 needs types LEAF
// Writes 4 bytes of shared memory.
LEAF void st_shared_4(u32 addr, u32 x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(addr), "r"(x) : "memory"); }

//@ leaf st_shared_2 needs types LEAF
// Writes one 2-byte element of shared memory.
LEAF void st_shared_2(u32 addr, u16 x) { asm volatile("st.shared.b16 [%0], %1;" ::"r"(addr), "h"(x) : "memory"); }

//@ leaf padded needs LEAF
// Channels of a shared tile: D rounded up to the 16 that one mma step takes.
LEAF constexpr int padded(int d) { return (d + 15) / 16 * 16; }

//@ leaf swizzle needs types LEAF padded
// Rows of a shared tile of D channels have padded(D) / 8 chunks of 16 bytes. Within each span of span<D>() chunks, row r keeps chunk c at
// c ^ swizzle<D>(r): 8 consecutive rows of a chunk column lie in different banks. It depends on r % 8 only.
template <int D> LEAF constexpr u32 span() { return padded(D) % 64 == 0 ? 8 : padded(D) % 32 == 0 ? 4 : 2; }
template <int D> LEAF constexpr u32 swizzle(u32 row) { return row / (8 / span<D>()) % span<D>(); }

//@ leaf chunk_offset needs types LEAF swizzle
// Byte offset within row r of chunk c, x = swizzle<D>(r); of chunk c + e (c even, e < 2), x = e ^ swizzle<D>(r).
// With c a constant and x a lane's own, few distinct sums arise, and the rest is an immediate of the instruction.
template <int D> LEAF constexpr u32 chunk_offset(u32 c, u32 x) { return c / span<D>() * span<D>() * 16 + ((c % span<D>() ^ x) << 4); }

//@ leaf tile_offset needs types LEAF padded swizzle
// Byte offset of chunk `chunk` of row `row` in a shared tile of D channels; a row has padded(D) * 2 bytes.
template <int D> LEAF constexpr u32 tile_offset(u32 row, u32 chunk) { return row * (padded(D) * 2) + ((chunk ^ swizzle<D>(row)) << 4); }
