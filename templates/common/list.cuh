//@ leaf BlockList needs types LEAF
// The block list of a tile: its entries, how many count, and how many blocks of keys there are.
struct BlockList { const int *entry; i64 stride; int count, blocks; };
// The block at entry i; for one that does not count (negative, past the last block, there before) the first past the keys, all of which are masked.
LEAF int block_of(const BlockList &list, int i) {
    int block = i < list.count ? __ldg(list.entry + i * list.stride) : -1;
    if (block < 0 || block >= list.blocks) return list.blocks;
    for (int j = 0; j < i; j++)
        if (__ldg(list.entry + j * list.stride) == block) return list.blocks;
    return block;
}

//@ leaf UniqueList needs types LEAF
// The same of a list that has no block twice.
struct UniqueList { const int *entry; i64 stride; int count, blocks; };
LEAF int block_of(const UniqueList &list, int i) {
    int block = i < list.count ? __ldg(list.entry + i * list.stride) : -1;
    return block < 0 || block >= list.blocks ? list.blocks : block;
}

//@ leaf merge_slots needs types LEAF UNROLL NEG_INF load_8
// The results of the N slots of a list (rows of 8 channels, row_stride apart, the first n of which are there), weighted by their LSEs; the LSE of all, -inf if no slot counts.
template <class T, int N, class List> LEAF float merge_slots(float (&y)[8], const List &list, const float *lse, const typename T::element *part, i64 row_stride, int n, bool vec) {
    float x[N], top = NEG_INF, sum = 0.f;
    UNROLL for (int s = 0; s < N; s++) {
        x[s] = block_of(list, s) < list.blocks ? lse[s] : NEG_INF;
        top = fmaxf(top, x[s]);
    }
    UNROLL for (int e = 0; e < 8; e++) y[e] = 0.f;
    if (top == NEG_INF) return top;
    UNROLL for (int s = 0; s < N; s++) sum += x[s] = __expf(x[s] - top);
    const float share = 1.f / sum;
    UNROLL for (int s = 0; s < N; s++) {
        if (x[s] == 0.f) continue; // and its row may never have been written
        const Eight<T> row = load_8<T>(part + s * row_stride, 1, n, vec);
        UNROLL for (int e = 0; e < 8; e++) y[e] += x[s] * share * row[e];
    }
    return top + logf(sum);
}
