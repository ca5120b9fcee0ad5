//@ leaf slot_put needs types LEAF
// One thread tells the other roles a number; the arrival on an mbarrier that follows makes it known.
LEAF void slot_put(u32 slot, int x) { asm volatile("st.shared.s32 [%0], %1;" ::"r"(slot), "r"(x) : "memory"); }

//@ leaf slot_get needs types LEAF uniform
// What slot_put put there, read by the lane that gives the slot free again.
LEAF int slot_get(u32 slot) {
    int x = 0;
    if (threadIdx.x % 32 == 0) asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(slot) : "memory");
    return uniform(x);
}

//@ leaf next_tile needs LEAF
// The next tile that no block has taken: the first gridDim.x are theirs from the start. Every block draws until it gets a number past the last tile, so there are as
// many draws as tiles, and the block with the last of them leaves the counter at 0, as the launch found it.
LEAF int next_tile(int *counter) { return (int)gridDim.x + atomicAdd(counter, 1); }
