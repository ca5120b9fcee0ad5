/* with_masks.h: random masks over q, k, h, sizes and the int parameters w and c, well typed. */
#ifndef WITH_MASKS_H
#define WITH_MASKS_H

#include "base.h"

static inline uint32_t roll(uint32_t n) {
    static uint32_t state = 12345;
    state = state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(state >> 4) * n >> 28);
}

static inline void put_int(Buf *b, bool key, int depth);
static inline void put_condition(Buf *b, int depth);

static inline void put_const(Buf *b, int from, int n) { ag_put(b, "%d", from + (int)roll((uint32_t)n)); }

static inline void put_divisor(Buf *b) {
    if (roll(3))
        put_const(b, 1, 9);
    else
        ag_put(b, "c");
}

static inline void put_atom(Buf *b, bool key) {
    static const char *const row[] = {"q", "w", "h", "c", "q - off", "Sk", "Sk // 2", "g", "w * h", "b"};
    if (key)
        ag_put(b, roll(3) ? "k" : roll(2) ? "q - k" : "k - q");
    else if (roll(4) == 0)
        put_const(b, -6, 24);
    else
        ag_put(b, "%s", row[roll(3) ? 0 : roll(LEN(row))]);
}

/* An int; key: one that depends on k, in one place if it can. */
static inline void put_int(Buf *b, bool key, int depth) {
    uint32_t kind = depth ? roll(11) : 99;
    ag_put(b, "(");
    switch (kind) {
    case 0: put_int(b, key, depth - 1), ag_put(b, roll(2) ? " + " : " - "), put_int(b, false, depth - 1); break;
    case 1: put_int(b, false, depth - 1), ag_put(b, roll(2) ? " + " : " - "), put_int(b, key, depth - 1); break;
    case 2: put_int(b, key, depth - 1), ag_put(b, " // "), put_divisor(b); break;
    case 3: put_int(b, key, depth - 1), ag_put(b, " %% "), put_divisor(b); break;
    case 4: put_int(b, key, depth - 1), ag_put(b, " * "), put_const(b, -3, 7); break;
    case 5: ag_put(b, roll(2) ? "max(" : "min("), put_int(b, key, depth - 1), ag_put(b, ", "), put_int(b, false, depth - 1), ag_put(b, ")"); break;
    case 6: ag_put(b, roll(2) ? "abs(" : "relu("), put_int(b, key, depth - 1), ag_put(b, ")"); break;
    case 7: ag_put(b, "clamp("), put_int(b, key, depth - 1), ag_put(b, ", 2, Sk - 3)"); break;
    case 8: put_int(b, key, depth - 1), ag_put(b, " if "), put_condition(b, depth - 1), ag_put(b, " else "), put_int(b, key, depth - 1); break;
    case 9: ag_put(b, "-"), put_int(b, key, depth - 1); break;
    default: put_atom(b, key); break;
    }
    ag_put(b, ")");
}

static inline void put_condition(Buf *b, int depth) {
    static const char *const compare[] = {"<", "<=", ">", ">=", "==", "!="};
    uint32_t kind = depth ? roll(9) : 8;
    ag_put(b, "(");
    if (kind < 5) {
        ag_put(b, kind == 4 ? "not " : ""), put_condition(b, depth - 1);
        if (kind < 4) ag_put(b, kind % 2 ? " and " : " or "), put_condition(b, depth - 1);
    } else if (kind == 5)
        put_condition(b, depth - 1), ag_put(b, " if "), put_condition(b, depth - 1), ag_put(b, " else "), put_condition(b, depth - 1);
    else {
        bool left = roll(5), right = !left && roll(4);
        put_int(b, left, 2), ag_put(b, " %s ", compare[roll(LEN(compare))]), put_int(b, right, 2);
    }
    ag_put(b, ")");
}
#endif
