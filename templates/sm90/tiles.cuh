//@ leaf slot_put needs types LEAF
// One thread tells the other roles a number; the arrival on an mbarrier that follows makes it known.
LEAF void slot_put(u32 slot, int x) { asm volatile("st.shared.s32 [%0], %1;" ::"r"(slot), "r"(x) : "memory"); }

//@ leaf slot_get needs types LEAF uniform
// What slot_put put there. The lane reads it that gives the slot free again; all may read it, as mbar_release waits for all, but compute-sanitizer does not see that.
// Predicated in here: a branch around it costs causal attention at D 64 1 % by what ptxas makes of its key loop.
LEAF int slot_get(u32 slot) {
    int x;
    asm volatile("{\n.reg .pred p;\n.reg .u32 lane;\nmov.u32 lane, %%laneid;\nsetp.eq.u32 p, lane, 0;\nmov.s32 %0, 0;\n@p ld.shared.s32 %0, [%1];\n}" : "=&r"(x) : "r"(slot) : "memory");
    return uniform(x);
}

//@ leaf next_tile needs LEAF
// The next tile that no block has taken: the first gridDim.x are theirs from the start. Every block draws until it gets a number past the last tile, so there are as
// many draws as tiles, and the block with the last of them leaves the counter at 0, as the launch found it.
LEAF int next_tile(int *counter) { return (int)gridDim.x + atomicAdd(counter, 1); }
