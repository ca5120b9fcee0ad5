/* arena.c: memory of one compilation, freed as a whole. */
#include "base.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 * 1024, ALIGN = 16 };

typedef struct Block Block;
struct Block {
    Block *next;
    size_t used, size; /* of data */
    _Alignas(ALIGN) char data[];
};

struct Arena {
    Block *top;
    jmp_buf *jump;
};

Arena *ag_arena_new(void) { return calloc(1, sizeof(Arena)); }

void ag_arena_free(Arena *a) {
    if (!a) return;
    for (Block *b = a->top; b;) {
        Block *next = b->next;
        free(b);
        b = next;
    }
    free(a);
}

void ag_arena_on_oom(Arena *a, jmp_buf *jump) { a->jump = jump; }

noreturn void ag_oom(Arena *a) {
    if (!a->jump) abort();
    longjmp(*a->jump, AG_JUMP_OOM);
}

static void *block_take(Block *b, size_t n) {
    void *p = b->data + b->used;
    b->used += n;
    return p;
}

void *ag_alloc(Arena *a, size_t n) {
    if (n > SIZE_MAX - BLOCK) ag_oom(a);
    n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (n == 0) n = ALIGN;
    if (a->top && a->top->size - a->top->used >= n) return block_take(a->top, n);

    size_t size = n > BLOCK / 4 ? n : BLOCK;
    Block *b = calloc(1, sizeof(Block) + size);
    if (!b) ag_oom(a);
    b->size = size;
    /* A large block that is full at once goes below the top, which keeps its free room. */
    Block **link = a->top && size == n ? &a->top->next : &a->top;
    b->next = *link;
    *link = b;
    return block_take(b, n);
}

void *ag_alloc_n(Arena *a, size_t n, size_t size) {
    if (size && n > SIZE_MAX / size) ag_oom(a);
    return ag_alloc(a, n * size);
}

void *ag_grow(Arena *a, void *old, int len, int *cap, size_t size) {
    if (len < *cap) return old;
    if (*cap > INT32_MAX / 2) ag_oom(a);
    int bigger = *cap ? *cap * 2 : 8;
    void *p = ag_alloc_n(a, (size_t)bigger, size);
    if (len) memcpy(p, old, (size_t)len * size);
    *cap = bigger;
    return p;
}
