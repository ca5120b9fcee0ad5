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

//@ leaf mbar_try needs types LEAF
// Whether the phase of this parity has completed; waits for it a moment.
LEAF bool mbar_try(u32 bar, u32 parity) {
    u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    return done;
}

//@ leaf now_ns needs types LEAF
// Nanoseconds by the clock of the GPU.
LEAF u64 now_ns() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }

//@ leaf mbar_wait_bounded needs types LEAF mbar_try now_ns
// mbar_wait of a debug-hang build: a wait of 2 seconds ends with a line that says which it was (one for the lanes of a warp that wait together), and the launch fails.
LEAF void mbar_wait_bounded(u32 bar, u32 parity, const char *kernel, const char *role, const char *name, int stage) {
    if (mbar_try(bar, parity)) return;
    for (u64 start = now_ns(); !mbar_try(bar, parity);) {
        if (now_ns() - start < 2000000000) continue;
        u32 lanes = __activemask();
        if ((int)threadIdx.x % 32 == __ffs(lanes) - 1)
            printf("attngen: %s: block %d, role %s, thread %d: %s[%d] parity %u was not completed within 2 s\n", kernel, (int)blockIdx.x, role, (int)threadIdx.x, name, stage, parity);
        __syncwarp(lanes); // no trap before the line is out
        __trap();
    }
}

//@ leaf mbar_release needs types LEAF
// One arrival of this warp, when all its lanes are here.
LEAF void mbar_release(u32 bar) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
