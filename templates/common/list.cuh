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
