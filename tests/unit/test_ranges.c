/* The keys that a tile of queries needs, those between that it does not, and those that need no mask: as numbers for masks that people use, and against the naive
 * mask for random ones.  No bound leaves 32 bits on its way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "compile.h"
#include "with_diag.h"
#include "with_masks.h"

/* ---- from a spec to its ranges */

typedef struct Job {
    void (*use)(Math *m, void *payload);
    void *payload;
    bool packed;
} Job;

static Math *math_of(Diag *d, const Spec *spec, bool packed) {
    Schedule *sched = NEW(d->arena, Schedule);
    sched->f[F_PACK_GQA].v = packed;
    Fn fn = {.d = d, .spec = spec, .sched = sched, .math = ag_lower(d, spec)};
    ag_pass_simplify(&fn);
    ag_pass_hoist(&fn);
    ag_pass_ranges(&fn);
    ag_math_check(fn.math, FACT_LOWERED | FACT_SIMPLE | FACT_AXES | FACT_RANGE);
    ag_stop_if_errors(d);
    return fn.math;
}

static void run_job(Diag *d, uint16_t file, void *payload) {
    Job *j = payload;
    Spec *spec = ag_spec_read(d, file, NULL, 0);
    if (spec) j->use(math_of(d, spec, j->packed), j->payload);
}

static void with_ranges(const char *text, bool packed, void (*use)(Math *m, void *payload), void *payload) {
    Job j = {use, payload, packed};
    char *report = report_of(ag_str(text), run_job, &j, NULL);
    assert_string_equal(report, "");
    free(report);
}

/* ---- bounds of a tile */

typedef struct Tile {
    const Math *m;
    const HostCall *call;
    int64_t first, last, h; /* positions of its queries; its (first) head */
} Tile;

typedef struct Keys {
    int64_t lo, hi, gap_lo, gap_hi, plain_lo, plain_hi; /* lo >= hi: none */
} Keys;

static int64_t leaf(const Tile *t, const Node *n) {
    int64_t group = t->call->size[SZ_HQ] / t->call->size[SZ_HKV];
    switch (n->op) {
    case OP_CONST: return n->type == T_BOOL ? n->value.u.b : n->value.u.i;
    case OP_AXIS: return n->index == AX_G ? t->h / group : n->index == AX_H ? t->h : 0;
    case OP_AXISMIN: return t->first;
    case OP_AXISMAX: return t->last;
    case OP_SIZE: return t->call->size[n->index];
    case OP_PARAM: return (int64_t)t->call->scalar[n->index];
    default: fail_msg("a bound reads %s", ag_op[n->op].name); return 0;
    }
}

/* Within 32 bits, all of it. */
static int64_t eval(const Tile *t, Ref r) {
    const Node *n = &t->m->nodes.n[r];
    if (!ag_op[n->op].arity) return leaf(t, n);
    if (n->op == OP_SELECT) return eval(t, n->arg[eval(t, n->arg[0]) ? 1 : 2]);
    Scalar a[3], v;
    for (int i = 0; i < ag_op[n->op].arity; i++) {
        Type type = t->m->nodes.n[n->arg[i]].type;
        int64_t x = eval(t, n->arg[i]);
        a[i] = (Scalar){type, {.i = x}};
        if (type == T_BOOL) a[i].u.b = x != 0;
    }
    ag_eval(n->op, a, &v);
    if (v.type == T_BOOL) return v.u.b;
    int64_t exact = n->op == OP_ADD ? a[0].u.i + a[1].u.i : n->op == OP_SUB ? a[0].u.i - a[1].u.i : n->op == OP_MUL ? a[0].u.i * a[1].u.i : v.u.i;
    if (exact != v.u.i) fail_msg("%s of %lld and %lld leaves 32 bits", ag_op[n->op].name, (long long)a[0].u.i, (long long)a[1].u.i);
    return v.u.i;
}

static int64_t cut(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }
static int64_t bound(const Tile *t, Ref r, int64_t unbounded) { return r ? cut(eval(t, r), t->call->size[SZ_SK]) : unbounded; }

static Keys keys_of(const Tile *t) {
    const KeyRange *g = &t->m->range;
    int64_t sk = t->call->size[SZ_SK];
    Keys k = {bound(t, g->need_lo, 0), bound(t, g->need_hi, sk), bound(t, g->gap_lo, 0),
              bound(t, g->gap_hi, 0),  bound(t, g->plain_lo, 0), bound(t, g->plain_hi, sk)};
    if (g->never_needed) k.lo = k.hi = 0;
    if (g->never_plain || k.plain_lo >= k.plain_hi) k.plain_lo = k.plain_hi = 0;
    if (k.gap_lo >= k.gap_hi) k.gap_lo = k.gap_hi = 0;
    if (k.lo >= k.hi) k.lo = k.hi = 0;
    return k;
}

/* ---- masks that people use, by number */

typedef struct Want {
    const char *mask;
    int64_t first, last, h; /* of 1000 keys; q counts from 0 */
    Keys keys;
} Want;

static void check_want(Math *m, void *payload) {
    const Want *w = payload;
    HostCall call = {.size = {1, 4, 4, 1000, 1000, 0, 128, 128}};
    for (int i = 0; i < m->spec->nparam; i++) call.scalar[i] = m->spec->param[i].value.type == T_INT ? (double)m->spec->param[i].value.u.i : 0;
    Keys k = keys_of(&(Tile){m, &call, w->first, w->last, w->h});
    const int64_t *got = &k.lo, *want = &w->keys.lo;
    for (int i = 0; i < 6; i++)
        if (got[i] != want[i])
            fail_msg("%s at %d .. %d: need %d .. %d but %d .. %d, plain %d .. %d", w->mask, (int)w->first, (int)w->last, (int)k.lo, (int)k.hi,
                     (int)k.gap_lo, (int)k.gap_hi, (int)k.plain_lo, (int)k.plain_hi);
}

static void test_numbers(void **state) {
    (void)state;
    static const char head[] = "attention: a\nparams: {w: {int: 50}, c: {int: 100}, sinks: {int: 4}, prefix: {int: 300}, zero: {int: 0}}\nmask: ";
    static const Want want[] = {
        /* mask, the first and last query, its head: need, gap, plain */
        {"k <= q", 128, 255, 0, {0, 256, 0, 0, 0, 129}},
        {"k // 100 == q // 100", 128, 191, 0, {100, 200, 0, 0, 100, 200}},
        {"k // 100 == q // 100", 128, 255, 0, {100, 300, 0, 0, 0, 0}},
        {"k // c == q // c", 128, 191, 0, {100, 200, 0, 0, 100, 200}},
        {"k // zero == q // zero", 128, 191, 0, {0, 1000, 0, 0, 0, 0}},
        {"k <= q and k // c == q // c", 128, 191, 0, {100, 192, 0, 0, 100, 129}},
        {"k <= q or k < prefix", 128, 255, 0, {0, 300, 0, 0, 0, 300}},
        {"k <= q or k < prefix", 512, 639, 0, {0, 640, 0, 0, 0, 513}},
        {"q - k < w and k - q <= 7", 512, 519, 0, {463, 527, 0, 0, 470, 520}},
        {"k <= q and (q - k < w or k < sinks)", 512, 519, 0, {0, 520, 4, 463, 470, 513}},
        {"k <= q and (q - k < w or k < sinks)", 40, 47, 0, {0, 48, 0, 0, 0, 41}},
        {"k <= q and (k < sinks or not q - k >= w)", 512, 519, 0, {0, 520, 4, 463, 470, 513}},
        {"abs(q - k) <= w or k < sinks or q < sinks", 512, 519, 0, {0, 570, 4, 462, 469, 563}},
        {"abs(q - k) <= w or k < sinks or q < sinks", 0, 7, 0, {0, 1000, 0, 0, 0, 51}},
        {"abs(q - k) <= w or k < sinks or q < sinks", 0, 3, 0, {0, 1000, 0, 0, 0, 1000}},
        {"abs(q - k) <= w and (q - k) % 4 == 0", 512, 519, 0, {462, 570, 0, 0, 0, 0}},
        {"abs(k - clamp(q, 6, Sk - 7)) <= 6", 0, 3, 0, {0, 13, 0, 0, 0, 13}},
        {"abs(k - clamp(q, 6, Sk - 7)) <= 6", 512, 515, 0, {506, 522, 0, 0, 509, 519}},
        {"abs(k // 40 - clamp(q // 40, 2, 22)) <= 2 and abs(k % 40 - clamp(q % 40, 2, 37)) <= 2", 400, 479, 0, {320, 560, 0, 0, 0, 0}},
        {"abs(k // c - clamp(q // c, 1, 8)) <= 1", 400, 479, 0, {300, 600, 0, 0, 300, 600}},
        {"q - k < w * (h + 1) and k <= q", 512, 519, 2, {363, 520, 0, 0, 370, 513}},
        {"k <= q and (q - k < w or h < 2)", 512, 519, 1, {0, 520, 0, 0, 0, 513}},
        {"k <= q and (q - k < w or h < 2)", 512, 519, 2, {0, 520, 0, 463, 470, 513}},
        {"k > q + 9 or k < q - 9", 512, 519, 0, {0, 1000, 510, 522, 529, 1000}},
        {"not (k > q)", 10, 10, 0, {0, 11, 0, 0, 0, 11}},
        {"k != q", 10, 10, 0, {0, 1000, 0, 0, 0, 10}},
        {"3 * k < q", 300, 302, 0, {0, 101, 0, 0, 0, 100}},
        {"(k + 5) // 10 <= q // 20", 100, 119, 0, {0, 55, 0, 0, 0, 55}},
        {"q // 7 - k // 7 < 3 and k <= q", 70, 76, 0, {56, 77, 0, 0, 56, 71}},
        {"true", 0, 7, 0, {0, 1000, 0, 0, 0, 1000}},
        {"k < 5 and false", 0, 7, 0, {0, 0, 0, 0, 0, 0}},
    };
    for (int i = 0; i < LEN(want); i++) {
        char text[512];
        Want w = want[i];
        snprintf(text, sizeof text, "%s%s\n", head, w.mask);
        with_ranges(text, false, check_want, &w);
    }
}

/* ---- random masks against the naive mask */

typedef struct Tally {
    const char *mask;
    bool packed;
    int64_t checked, hidden, skipped, seen, plain;
} Tally;

static void check_key(const Tile *t, const Keys *g, int64_t k, Tally *sum, int64_t heads) {
    bool needed = k >= g->lo && k < g->hi && !(k >= g->gap_lo && k < g->gap_hi), plain = k >= g->plain_lo && k < g->plain_hi, any = false, all = true;
    for (int64_t q = t->first; q <= t->last; q++)
        for (int64_t h = t->h; h < t->h + heads; h++) {
            bool sees = ag_ast_eval(t->m->spec, t->call, t->m->spec->mask, 0, h, q, k, 0).u.b;
            any |= sees, all &= sees;
        }
    if (any && !needed) fail_msg("mask %s: queries %d .. %d see key %d, which is not needed", sum->mask, (int)t->first, (int)t->last, (int)k);
    if (!all && plain) fail_msg("mask %s: queries %d .. %d do not all see key %d, which is plain", sum->mask, (int)t->first, (int)t->last, (int)k);
    sum->checked++, sum->hidden += !any, sum->skipped += !needed, sum->seen += all, sum->plain += plain;
}

static void check_tile(const Tile *t, Tally *sum, int64_t heads) {
    Keys g = keys_of(t);
    for (int64_t k = 0; k < t->call->size[SZ_SK]; k++) check_key(t, &g, k, sum, heads);
}

static void check_random(Math *m, void *payload) {
    static const int64_t extreme[] = {1 << 24, -(1 << 24), 1000, 0, -1}; /* no product of the mask itself leaves 32 bits */
    Tally *t = payload;
    for (int i = 0; i < 8; i++) {
        HostCall call = {.size = {1, 4, 2, 1 + roll(20), roll(40), (int64_t)roll(40) - 12, 128, 128}};
        call.scalar[1] = (double)((int64_t)roll(30) - 6);
        call.scalar[2] = (double)((int64_t)roll(12) - 2);
        if (roll(6) == 0) call.scalar[1 + roll(2)] = (double)extreme[roll(LEN(extreme))];
        int64_t tile = 1 + roll(8), h = roll(2) * 2 + (t->packed ? 0 : roll(2));
        for (int64_t q = 0; q < call.size[SZ_SQ]; q += tile) {
            int64_t last = q + tile < call.size[SZ_SQ] ? q + tile : call.size[SZ_SQ];
            check_tile(&(Tile){m, &call, q + call.size[SZ_OFF], last - 1 + call.size[SZ_OFF], h}, t, t->packed ? 2 : 1);
        }
    }
}

static void test_random(void **state) {
    (void)state;
    Tally t = {0};
    for (int i = 0; i < 2500; i++) {
        Buf mask = {0}, spec = {0};
        put_condition(&mask, 3);
        ag_put(&spec, "attention: a\nheads: {group: 2}\nparams: {w: {int: 4}, c: {int: 4}}\nmask: %s\n", mask.s);
        t.mask = mask.s;
        t.packed = i % 4 == 0;
        with_ranges(spec.s, t.packed, check_random, &t);
        ag_buf_free(&mask);
        ag_buf_free(&spec);
    }
    /* The ranges are worth having: of the keys that no query of a tile sees, and of those that all see, a good share is known. */
    print_message("of %lld keys %lld are hidden, of which %lld are skipped, and %lld seen by all, of which %lld are plain\n", (long long)t.checked,
                  (long long)t.hidden, (long long)t.skipped, (long long)t.seen, (long long)t.plain);
    assert_true(t.skipped * 5 > t.hidden * 2);
    assert_true(t.plain * 4 > t.seen);
}

/* ---- far positions, extreme parameters: nothing leaves 32 bits, and keys near every bound are where they belong */

static void check_near(const Tile *t, const Keys *g, int64_t at, Tally *sum) {
    for (int64_t k = at - 2; k <= at + 2; k++)
        if (k >= 0 && k < t->call->size[SZ_SK]) check_key(t, g, k, sum, 1);
}

static void check_far(Math *m, void *payload) {
    static const int64_t param[] = {PARAM_INT_MAX, -PARAM_INT_MAX, 1 - PARAM_INT_MAX, 1 << 29, 1, 0, 1000}, far = AG_POSITION_LIMIT;
    static const int64_t at[] = {AG_POSITION_LIMIT - 8, -AG_POSITION_LIMIT, 0, 5000}, sizes[] = {AG_POSITION_LIMIT - 1, 40};
    for (int i = 0; i < LEN(param) * LEN(param) * LEN(at) * LEN(sizes); i++) {
        int64_t first = at[i / 49 % LEN(at)], sk = sizes[i / 49 / LEN(at)];
        HostCall call = {.size = {1, 4, 4, 8, sk, first, 128, 128}};
        call.scalar[1] = (double)param[i % LEN(param)];
        call.scalar[2] = (double)param[i / LEN(param) % LEN(param)];
        Tile t = {m, &call, first, first + 7 < far ? first + 7 : far, 1};
        Keys g = keys_of(&t);
        const int64_t ends[] = {0, sk - 1, g.lo, g.hi, g.gap_lo, g.gap_hi, g.plain_lo, g.plain_hi, first, first + 7, 1000, 5000};
        for (int e = 0; e < LEN(ends); e++) check_near(&t, &g, ends[e], payload);
    }
}

static void test_far(void **state) {
    (void)state;
    static const char *const mask[] = {
        "k // c == q // c",
        "k <= q and k // c == q // c",
        "k // c < q // c or k // c == w",
        "k <= q and (q - k < w or k < c)",
        "abs(q - k) <= w or k < c or q < c",
        "abs(k - clamp(q, w // 2, Sk - 1 - w // 2)) <= w // 2",
        "abs(k // c - clamp(q // c, 2, 20)) <= 2",
        "k // c - q // c < 3",
        "k - c >= q % 7",
        "(k - q) // 4 < w // 8",
        "(k - Sk // 2 if k >= Sk // 2 else k) // c == q // c",
        "k < w or k >= c",
        "k != w and q != c",
    };
    for (int i = 0; i < LEN(mask); i++) {
        Tally t = {.mask = mask[i]};
        char text[256];
        snprintf(text, sizeof text, "attention: a\nparams: {w: {int: 4}, c: {int: 4}}\nmask: %s\n", mask[i]);
        with_ranges(text, false, check_far, &t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_random), cmocka_unit_test(test_far)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
