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
LEAF void warpgroup_sync() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory"); }

//@ leaf take_turn needs LEAF
// Until the warpgroup before this one has passed its turn on. Barriers 4, 5, ... are those of the turns; `turn` is this warpgroup's.
LEAF void take_turn(int turn) { asm volatile("bar.sync %0, 256;" ::"r"(turn) : "memory"); }

//@ leaf pass_turn needs LEAF
// Gives the turn to the next warpgroup, after the last to the first.
LEAF void pass_turn(int next_turn) { asm volatile("bar.arrive %0, 256;" ::"r"(next_turn) : "memory"); }

//@ leaf first_turn needs LEAF uniform
// The first warpgroup begins, as if the last had passed its turn on.
LEAF void first_turn() {
    if (uniform(threadIdx.x / 128) == 1) asm volatile("bar.arrive 4, 256;" ::: "memory");
}

//@ leaf thread_now needs types LEAF
// threadIdx.x, read again at each use: what follows from it lives in no register between uses (D 64 with three warpgroups: 4 bytes spilled instead of 36).
LEAF u32 thread_now() { u32 x; asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x)); return x; }

//@ leaf row_of_warp needs thread_now
// The first of the warp's 16 query rows in the tile.
LEAF int row_of_warp() { return thread_now() / 32 * 16; }

//@ leaf row_of_lane needs thread_now
// Row of a fragment's first element in this lane.
LEAF int row_of_lane() { u32 t = thread_now(); return t / 32 * 16 + t % 32 / 4; }

//@ leaf col_of_lane needs thread_now
// Column of a fragment's first element in this lane.
LEAF int col_of_lane() { return thread_now() % 4 * 2; }
