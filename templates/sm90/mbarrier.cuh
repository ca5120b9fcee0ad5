//@ leaf mbar_init needs types LEAF
// A fresh mbarrier in shared memory: its phase completes with `count` arrivals. One thread; then mbar_init_fence and a barrier of the block.
LEAF void mbar_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }

//@ leaf mbar_init_fence needs LEAF
// Makes fresh mbarriers known to the copy engine.
LEAF void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

//@ leaf mbar_expect needs types LEAF
// One arrival; the phase also waits for `bytes` more bytes of copies.
LEAF void mbar_expect(u32 bar, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }

//@ leaf mbar_wait needs types LEAF
// Until the phase of this parity has completed.
LEAF void mbar_wait(u32 bar, u32 parity) {
    asm volatile("{\n.reg .pred p;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(bar), "r"(parity) : "memory");
}

//@ leaf mbar_release needs types LEAF
// One arrival of this warp, when all its lanes are here.
LEAF void mbar_release(u32 bar) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
