/* random_spec.h: random specs that are well typed: masks, scores, lets, captured tensors, terms in the denominator; one for each seed.
 *
 * Ints may be anything, also wrap around.  Floats are kept where a kernel's 32 bits say the same as the reference's 64 up to rounding: functions of
 * moderate arguments, no floor and no comparison of what was rounded before. */
#ifndef RANDOM_SPEC_H
#define RANDOM_SPEC_H

#include "base.h"

/* What an expression may name. */
enum { MAY_KEY = 1, MAY_SCORE = 2 };

typedef struct RandomLet {
    char type; /* i, f, b */
    int names; /* MAY_... */
} RandomLet;

typedef struct RandomSpec {
    uint64_t state;
    unsigned used; /* inputs, by index */
    RandomLet let[4];
    int nlet;
    int names;    /* of the expression at hand, so far */
    bool counter; /* inside of a sum, whose terms n counts */
} RandomSpec;

/* Name, declaration, type; how it is read by key and without one. */
static const struct {
    const char *name, *type, *key, *row;
    char value;
} random_input[] = {
    {"doc", "i32: [b, k]", "doc[b, k]", "doc[b, q]", 'i'},
    {"rank", "i32: [h, q]", NULL, "rank[h, q]", 'i'},
    {"wide", "i64: [k]", "wide[k]", "wide[q + 1]", 'i'},
    {"small", "u8: [b, h, k]", "small[b, h, k]", "small[b, h, k_]", 'i'},
    {"pairs", "i32: [b, q, k]", "pairs[b, q, k]", NULL, 'i'},
    {"length", "i32: [b]", NULL, "length[b]", 'i'},
    {"marked", "bool: [b, k]", "marked[b, k]", "marked[b, q]", 'b'},
    {"seen", "bool: [q, k]", "seen[q, k]", NULL, 'b'},
    {"bias", "dtype: [1, h, q, k]", "bias[b, h, q, k]", NULL, 'f'},
    {"slope", "f32: [h]", NULL, "slope[h]", 'f'},
    {"table", "f32: [h, 9]", NULL, NULL, 'f'}, /* read at ints */
    {"heat", "f16: []", NULL, "heat", 'f'},
};
enum { RANDOM_INPUTS = LEN(random_input), RANDOM_TABLE = 10 };

static inline uint32_t random_roll(RandomSpec *r, uint32_t n) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) % n);
}

static inline void random_int(RandomSpec *r, Buf *b, int may, int depth);
static inline void random_float(RandomSpec *r, Buf *b, int may, int depth);
static inline void random_bool(RandomSpec *r, Buf *b, int may, int depth);

/* A let or an input of the type, if there is one that may stand here.  false: nothing was written. */
static inline bool random_named(RandomSpec *r, Buf *b, char type, int may) {
    if (r->nlet && random_roll(r, 2)) {
        int i = (int)random_roll(r, (uint32_t)r->nlet);
        if (r->let[i].type != type || r->let[i].names & ~may) return false;
        ag_put(b, "let%d", i);
        r->names |= r->let[i].names;
        return true;
    }
    uint32_t i = random_roll(r, RANDOM_INPUTS);
    if (random_input[i].value != type) return false;
    if (i == RANDOM_TABLE) {
        ag_put(b, "table[h, q %% 12 - 1 + "), random_int(r, b, may & MAY_KEY, 1), ag_put(b, "]"); /* no constant, which may not be out of range */
    } else {
        bool key = may & MAY_KEY && random_input[i].key && (!random_input[i].row || random_roll(r, 2));
        const char *text = key ? random_input[i].key : random_input[i].row;
        if (!text || strstr(text, "k_")) return false;
        ag_put(b, "%s", text);
        if (key) r->names |= MAY_KEY;
    }
    r->used |= 1u << i;
    return true;
}

static inline void random_int_atom(RandomSpec *r, Buf *b, int may) {
    static const char *const row[] = {"q", "q", "q", "w", "c", "h", "b", "g", "q - off", "Sk", "Sq", "off", "Sk // 2", "Hq"};
    if (may & MAY_KEY && random_roll(r, 2)) {
        static const char *const key[] = {"k", "k", "q - k", "k - q"};
        ag_put(b, "%s", key[random_roll(r, LEN(key))]);
        r->names |= MAY_KEY;
    } else if (r->counter && random_roll(r, 2))
        ag_put(b, "n");
    else if (random_roll(r, 3) == 0)
        ag_put(b, "%d", (int)random_roll(r, 40) - 8);
    else if (random_roll(r, 3) || !random_named(r, b, 'i', may & MAY_KEY))
        ag_put(b, "%s", row[random_roll(r, LEN(row))]);
}

static inline void random_divisor(RandomSpec *r, Buf *b) {
    if (random_roll(r, 3))
        ag_put(b, "%d", 1 + (int)random_roll(r, 33));
    else
        ag_put(b, "%s", random_roll(r, 2) ? "c" : "max(w, 1)");
}

static inline void random_int(RandomSpec *r, Buf *b, int may, int depth) {
    static const char *const infix[] = {" + ", " - ", " * "};
    may &= MAY_KEY;
    ag_put(b, "(");
    switch (depth > 0 ? random_roll(r, 11) : 99) {
    case 0:
    case 1:
    case 2: random_int(r, b, may, depth - 1), ag_put(b, "%s", infix[random_roll(r, 3)]), random_int(r, b, may, depth - 1); break;
    case 3: random_int(r, b, may, depth - 1), ag_put(b, random_roll(r, 2) ? " // " : " %% "), random_divisor(r, b); break;
    case 4:
        ag_put(b, random_roll(r, 2) ? "max(" : "min("), random_int(r, b, may, depth - 1), ag_put(b, ", "), random_int(r, b, may, depth - 1);
        ag_put(b, ")");
        break;
    case 5: ag_put(b, random_roll(r, 2) ? "abs(" : "relu("), random_int(r, b, may, depth - 1), ag_put(b, ")"); break;
    case 6: ag_put(b, "clamp("), random_int(r, b, may, depth - 1), ag_put(b, ", 1, Sk - 2)"); break;
    case 7:
        random_int(r, b, may, depth - 1), ag_put(b, " if "), random_bool(r, b, may, depth - 1), ag_put(b, " else ");
        random_int(r, b, may, depth - 1);
        break;
    case 8: ag_put(b, "-"), random_int(r, b, may, depth - 1); break;
    default: random_int_atom(r, b, may); break;
    }
    ag_put(b, ")");
}

static inline void random_bool(RandomSpec *r, Buf *b, int may, int depth) {
    static const char *const compare[] = {"<", "<=", ">", ">=", "==", "!="};
    may &= MAY_KEY;
    ag_put(b, "(");
    uint32_t kind = random_roll(r, depth > 0 ? 9 : 4) + (depth > 0 ? 0 : 5);
    if (kind < 4)
        random_bool(r, b, may, depth - 1), ag_put(b, kind % 2 ? " and " : " or "), random_bool(r, b, may, depth - 1);
    else if (kind == 4)
        ag_put(b, "not "), random_bool(r, b, may, depth - 1);
    else if (kind != 5 || !random_named(r, b, 'b', may)) {
        int deep = depth > 0 ? 2 : 0;
        if (kind == 6 && may & MAY_KEY)
            ag_put(b, "k"), r->names |= MAY_KEY;
        else
            random_int(r, b, may, deep);
        ag_put(b, " %s ", compare[random_roll(r, LEN(compare))]), random_int(r, b, may, deep);
    }
    ag_put(b, ")");
}

static inline void random_float_atom(RandomSpec *r, Buf *b, int may) {
    if (may & MAY_SCORE && random_roll(r, 2)) {
        ag_put(b, "s");
        r->names |= may;
    } else if (random_roll(r, 2) && random_named(r, b, 'f', may))
        return;
    else if (random_roll(r, 3) == 0)
        ag_put(b, "clamp("), random_int(r, b, may, 1), ag_put(b, ", -60, 60) / 16");
    else
        ag_put(b, "%s", random_roll(r, 2) ? "x" : "0.75");
}

static inline void random_float(RandomSpec *r, Buf *b, int may, int depth) {
    static const char *const bounded[] = {"tanh(", "sigmoid(", "softplus(", "relu(", "abs(", "-(", "sqrt(abs(", "log(1 + abs(", "rsqrt(1 + abs("};
    static const char *const close[] = {")", ")", ")", ")", ")", ")", "))", "))", "))"};
    static const char *const limited[] = {"sin(clamp(", "cos(clamp(", "exp(clamp(", "exp2(clamp(", "(clamp("};
    uint32_t i;
    ag_put(b, "(");
    switch (depth > 0 ? random_roll(r, 9) : 99) {
    case 0: random_float(r, b, may, depth - 1), ag_put(b, random_roll(r, 2) ? " + " : " - "), random_float(r, b, may, depth - 1); break;
    case 1:
        ag_put(b, "clamp("), random_float(r, b, may, depth - 1), ag_put(b, ", -6, 6) * clamp("), random_float(r, b, may, depth - 1);
        ag_put(b, ", -2, 2)");
        break;
    case 2: random_float(r, b, may, depth - 1), ag_put(b, " / (1 + abs("), random_float(r, b, may, depth - 1), ag_put(b, "))"); break;
    case 3:
        i = random_roll(r, LEN(bounded));
        ag_put(b, "%s", bounded[i]), random_float(r, b, may, depth - 1), ag_put(b, "%s", close[i]);
        break;
    case 4:
        i = random_roll(r, LEN(limited));
        ag_put(b, "%s", limited[i]), random_float(r, b, may, depth - 1), ag_put(b, i == 4 ? ", -4, 4) ** 2)" : ", -4, 2))");
        break;
    case 5:
        random_float(r, b, may, depth - 1), ag_put(b, " if "), random_bool(r, b, may, depth - 1), ag_put(b, " else ");
        random_float(r, b, may, depth - 1);
        break;
    case 6:
        ag_put(b, random_roll(r, 2) ? "max(" : "min("), random_float(r, b, may, depth - 1), ag_put(b, ", ");
        random_float(r, b, may, depth - 1), ag_put(b, ")");
        break;
    case 7:
        if (!r->counter) {
            ag_put(b, "sum(n < %d: ", 2 + (int)random_roll(r, 3));
            r->counter = true;
            random_float(r, b, may, depth - 1), ag_put(b, ")");
            r->counter = false;
            break;
        }
        /* fall through */
    default: random_float_atom(r, b, may); break;
    }
    ag_put(b, ")");
}

static inline void random_lets(RandomSpec *r, Buf *out) {
    int n = (int)random_roll(r, 4);
    if (n) ag_put(out, "let:\n");
    for (int i = 0; i < n; i++) {
        r->names = 0;
        RandomLet x = {.type = "ifb"[random_roll(r, 3)]};
        int may = random_roll(r, 3) ? MAY_KEY : 0;
        ag_put(out, "  let%d: >-\n    ", i);
        if (x.type == 'i') random_int(r, out, may, 2);
        if (x.type == 'b') random_bool(r, out, may, 2);
        if (x.type == 'f') random_float(r, out, may | (random_roll(r, 3) ? 0 : MAY_SCORE), 2);
        ag_put(out, "\n");
        x.names = r->names;
        r->let[r->nlet++] = x;
    }
}

static inline void random_head(RandomSpec *r, Buf *out, uint64_t seed) {
    ag_put(out, "attention: random_%llu\nparams: {w: {int: %d}, c: {int: %d}, x: {float: %g}}\n", (unsigned long long)seed,
           (int)random_roll(r, 300) - 10, 1 + (int)random_roll(r, 100), random_roll(r, 64) / 16.0 - 2);
    if (random_roll(r, 8) == 0) ag_put(out, "scale: %g\n", (1 + random_roll(r, 16)) / 32.0);
    if (r->used) ag_put(out, "inputs:\n");
    for (int i = 0; i < RANDOM_INPUTS; i++)
        if (r->used >> i & 1) ag_put(out, "  %s: {%s}\n", random_input[i].name, random_input[i].type);
}

/* Of a seed one with two or three branches, which can be one kernel. */
static inline void random_branches(Buf *out, uint64_t seed) {
    RandomSpec r = {.state = (seed + 1234) * 0xD1342543DE82EF95u + 1};
    Buf body = {0};
    random_lets(&r, &body);
    int n = 2 + (random_roll(&r, 4) == 0);
    ag_put(&body, "branches:\n");
    for (int i = 0; i < n; i++) {
        ag_put(&body, "  a%d:\n    score: >-\n      clamp(", i);
        random_float(&r, &body, MAY_KEY | MAY_SCORE, 2), ag_put(&body, ", -10, 10) + s\n");
        if (random_roll(&r, 4)) ag_put(&body, "    mask: >-\n      "), random_bool(&r, &body, MAY_KEY, 2), ag_put(&body, "\n");
        if (random_roll(&r, 3)) continue;
        ag_put(&body, "    weigh: >-\n      clamp("), random_float(&r, &body, MAY_KEY | MAY_SCORE, 2), ag_put(&body, ", -3, 3)\n");
    }
    ag_put(&body, n == 3 ? "output: a0 - 0.5 * a1 + a2\n" : "output: a0 - 0.5 * a1\n");
    random_head(&r, out, seed);
    ag_putn(out, body.s, body.n);
    ag_buf_free(&body);
}

/* The spec of a seed, as YAML. */
static inline void random_spec(Buf *out, uint64_t seed) {
    RandomSpec r = {.state = seed * 0xD1342543DE82EF95u + 1};
    Buf body = {0};
    random_lets(&r, &body);
    uint32_t parts = random_roll(&r, 8);
    if (parts) ag_put(&body, "mask: >-\n  "), random_bool(&r, &body, MAY_KEY, 3), ag_put(&body, "\n");
    if (parts != 1 && parts != 2) {
        static const char *const after[] = {"", " + s", " * x", " * x + s", " / 4", " - s * x"};
        ag_put(&body, "score: >-\n  clamp("), random_float(&r, &body, MAY_KEY | MAY_SCORE, 3);
        ag_put(&body, ", -20, 20)%s\n", after[random_roll(&r, LEN(after))]);
    } else if (parts == 1)
        ag_put(&body, "score: %s\n", random_roll(&r, 2) ? "s * x" : "x * tanh(s / 8) * 8");
    if (random_roll(&r, 6) == 0)
        ag_put(&body, "normalize:\n  softmax:\n    plus: >-\n      exp(clamp("), random_float(&r, &body, 0, 2), ag_put(&body, ", -5, 5))\n");
    RandomSpec w = r; /* of a state of its own, so that what is above stays what it was */
    w.state = (seed + 77) * 0xD1342543DE82EF95u + 1;
    bool weigh = random_roll(&w, 5) == 0;
    if (weigh) ag_put(&body, "weigh: >-\n  clamp("), random_float(&w, &body, MAY_KEY | MAY_SCORE, 2), ag_put(&body, ", -3, 3)\n");
    if (random_roll(&w, 4) == 0) ag_put(&body, "rows: [lse, max%s]\n", weigh ? ", mean_weight" : "");
    r.used |= w.used;
    random_head(&r, out, seed);
    if (body.n) ag_putn(out, body.s, body.n);
    ag_buf_free(&body);
}
#endif
