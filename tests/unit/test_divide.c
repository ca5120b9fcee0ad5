/* test_divide.c: division by what is the same for a whole launch: the functions of emitted code, as C, against 64-bit arithmetic; which scalars the pass marks. */
#include "with_archs.h"

#include "tile_ir.h"

/* ---- the leaves as they are emitted */

typedef uint32_t u32;
#define LEAF static inline
#define ROLLED
static u32 __umulhi(u32 a, u32 b) { return (u32)((uint64_t)a * b >> 32); }
static int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
static int min(int a, int b) { return a < b ? a : b; }
#include "../../templates/common/divide.cuh"

static int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

static void compare(int x, int by) {
    const Divider d = divider(by);
    int64_t q = floor_of(x, by), r = x - q * by;
    if (floor_div_by(x, d) != q || floor_mod_by(x, d) != r) fail_msg("%d by %d: %d and %d", x, by, floor_div_by(x, d), floor_mod_by(x, d));
    if (floor_div(x, by) != q || floor_mod(x, by) != r) fail_msg("%d by %d, plainly: %d and %d", x, by, floor_div(x, by), floor_mod(x, by));
    if (x < 0) return;
    if (quot_by(x, d) != q || rem_by(x, d) != r) fail_msg("%d by %d: %d and %d", x, by, quot_by(x, d), rem_by(x, d));
    if (quot(x, by) != q || rem(x, by) != r) fail_msg("%d by %d, plainly: %d and %d", x, by, quot(x, by), rem(x, by));
}

/* About every multiple and both ends: where a quotient would be off by one first. */
static void compare_all(int by) {
    static const int ends[] = {0, 1, 2, INT32_MAX, INT32_MAX - 1, -1, -2, INT32_MIN, INT32_MIN + 1, 1 << 30, (1 << 30) - 1};
    for (int i = 0; i < LEN(ends); i++) compare(ends[i], by);
    int64_t most = INT32_MAX / by, step = most / 50 + 1;
    for (int64_t n = most; n > 0; n -= step)
        for (int64_t x = n * by - 1; x <= n * by + 1; x++)
            if (x <= INT32_MAX) compare((int)x, by), compare((int)-x, by);
}

static void test_numbers(void **state) {
    (void)state;
    for (int by = 1; by <= 3000; by++) compare_all(by);
    for (int bit = 1; bit < 31; bit++)
        for (int off = -3; off <= 3; off++)
            if ((1 << bit) + off > 0) compare_all((1 << bit) + off);
    compare_all(INT32_MAX);
    compare_all(INT32_MAX - 1);
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < 200000; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int by = (int)(random >> 33 >> (random & 31) % 31);
        if (by > 0) compare((int)(random >> 5), by);
    }
}

/* ---- the pass */

/* Told by another role through a slot it has no Divider, which emitted code would have to declare; beside it one that has. */
static void test_told(void **state) {
    (void)state;
    static const char text[] = "attention: a\nparams: {n: {int: 3}}\ninputs: {w: {i32: [h]}}\n"
                               "mask: k % max(w[h] // max(n, 1), 1) == 0 and k // clamp(w[h], 1, 9) % 2 == 0\n";
    static const struct {
        const char *arch;
        int n;
    } cases[] = {{"sm_80", 2}, {"sm_90a", 1}};
    for (int i = 0; i < LEN(cases); i++) {
        Compilation *c = compiled(text, cases[i].arch, NULL, 64, 0);
        int declared = 0, n = 0;
        for (const char *p = c->cu.s; (p = strstr(p, "_by = divider(")); p++) declared++;
        for (int v = 0; v < c->fn.kernel->nval; v++) n += c->fn.kernel->val[v].divides;
        assert_int_equal(n, cases[i].n);
        assert_int_equal(declared, n);
        ag_compilation_free(c);
    }
}

/* The names of marked scalars, in order, each with a blank behind it. */
static const char *marked(const char *text, const char *arch) {
    static char names[256];
    Compilation *c = compiled(text, arch, NULL, 64, 0);
    const Kernel *k = c->fn.kernel;
    names[0] = 0;
    for (int v = 0; v < k->nval; v++)
        if (k->val[v].divides) snprintf(names + strlen(names), sizeof names - strlen(names), "%.*s ", STRF(k->val[v].name));
    bool printed = strstr(c->cu.s, "_by = divider(") != NULL;
    assert_int_equal(printed, names[0] != 0);
    ag_compilation_free(c);
    return names;
}

static void test_marked(void **state) {
    (void)state;
    static const char *const archs[] = {"sm_80", "sm_90a"};
    static const struct {
        const char *mask;
        int n; /* divisors */
    } cases[] = {
        {"k % max(w, 1) == q % max(w, 1)", 1},
        {"k // max(w, 1) % max(n, 1) == q % max(n, 1)", 2},
        {"(q - k) % max(w, 1) == 0", 1},
        {"k % w == 0", 0},                     /* may be 0, or negative */
        {"k % (max(w, 1) + q * q) == 0", 0},   /* differs from row to row */
        {"k % 16 == 0", 0},                    /* a constant: the compiler knows better */
        {"k < q // max(w, 1) * max(w, 1)", 0}, /* of rows alone */
    };
    for (int a = 0; a < LEN(archs); a++)
        for (int i = 0; i < LEN(cases); i++) {
            char text[256];
            snprintf(text, sizeof text, "attention: a\nparams: {w: {int: 3}, n: {int: 5}}\nmask: %s\n", cases[i].mask);
            int n = 0;
            for (const char *p = marked(text, archs[a]); *p; p++) n += *p == ' ';
            if (n != cases[i].n) fail_msg("%s for %s: %d divisors, not %d", cases[i].mask, archs[a], n, cases[i].n);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_marked), cmocka_unit_test(test_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
