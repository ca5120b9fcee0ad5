//@ leaf uniform needs LEAF
// Tells the compiler that x is the same in the whole warp.
LEAF int uniform(int x) { return __shfl_sync(~0u, x, 0); }

//@ leaf regs_inc needs LEAF
// Takes more registers per thread for this warpgroup; waits until others have given them up.
template <int N> LEAF void regs_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

//@ leaf regs_dec needs LEAF
// Gives up registers beyond N per thread of this warpgroup.
template <int N> LEAF void regs_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

//@ leaf warpgroup_sync needs LEAF
// A barrier of the 128 threads of this warpgroup.
LEAF void warpgroup_sync() { asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)threadIdx.x / 128) : "memory"); }
