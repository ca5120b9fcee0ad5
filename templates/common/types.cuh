//@ leaf types
// Integers by width.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

//@ leaf LEAF
// Every leaf is inlined into the kernel.
#define LEAF static __device__ __forceinline__

//@ leaf UNROLL
// A loop over registers is unrolled, else its arrays would go to local memory; a loop over elements in memory is not.
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")

//@ leaf AT_HEAD
// The test of a loop that all lanes of a warp take alike. The barrier keeps it at the loop's head: with one copy in front of the loop and one at its end,
// all that the loop carries would be initialised and merged twice.
#define AT_HEAD(test) (__syncwarp(), test)

//@ leaf row_at needs types LEAF
// Where row `row` of a tensor begins, in elements, and whether it is one of its first `rows`.
[[maybe_unused]] LEAF i64 row_at(i64 stride, int row) { return row * stride; }
[[maybe_unused]] LEAF i64 row_after(i64 stride, int, int n) { return n * stride; } // from row `row` to the n-th behind it
[[maybe_unused]] LEAF bool row_in(i64, int row, int rows) { return row < rows; }

//@ leaf Packed needs types LEAF
// The same of the rows of a tile that has P heads to each row of the tensor.
template <int P> struct Packed { i64 stride, head_stride; };
template <int P> LEAF i64 row_at(Packed<P> x, int row) { return (u32)row / P * x.stride + (u32)row % P * x.head_stride; }
template <int P> LEAF i64 row_after(Packed<P> x, int row, int n) { return row_at(x, row + n) - row_at(x, row); }
template <int P> LEAF bool row_in(Packed<P>, int row, int rows) { return (int)((u32)row / P) < rows; }

//@ leaf NEG_INF
// Minus infinity, the score of a masked key.
#define NEG_INF __int_as_float(0xff800000)
