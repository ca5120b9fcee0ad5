/* test_schedule_fuzz.c: random legal schedules for random specs on random shapes, through the simulator against the reference.
 *
 *   test_schedule_fuzz [COUNT [SEED]]      COUNT kernels, 150 by default; a failure names its turn, spec, schedule and shape */
#include "with_schedule.h"

#include <stdio.h>

static int count = 150;
static uint64_t state_of;

/* ---- splitmix64 */
static uint64_t next(void) {
    uint64_t z = state_of += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static int below(int n) { return (int)(next() % (uint64_t)n); }
static int between(int a, int b) { return a + below(b - a + 1); }
static bool chance(int percent) { return below(100) < percent; }

/* ---- specs */

/* %d: a number about the lengths of the shapes below. */
static const char *const mask_part[] = {
    "k <= q",
    "k < q - %d",
    "q - k < %d",
    "abs(q - k) <= %d",
    "k >= %d",
    "k < %d",
    "q - k < w",
    "k >= w",
    "k %% 3 != %d",
    "k // 8 <= q // 8",
    "k <= q + h",
    "k + %d <= q + b",
    "k - off >= 0 - 9",
    "k < Sk - %d",
    "q %% 4 != 1",
    "k != %d",
    "k < q if q %% 2 == 0 else k < %d",
    "g == 0 or k < %d",
    "not (k > q + 5)",
    "max(k, q) - min(k, q) < %d",
    "2 * k <= q + %d",
    "k * k < q + %d",
    "true",
    "false",
    "q < %d",
    "k < c * 2.0 + 30",
    "q - k < far",
};
static void put_mask(Buf *out, int depth) {
    static const char *const join[] = {" and ", " or "};
    if (depth > 0 && chance(60)) {
        ag_put(out, chance(20) ? "not (" : "(");
        put_mask(out, depth - 1);
        ag_put(out, "%s", join[chance(35)]);
        put_mask(out, depth - 1);
        ag_put(out, ")");
        return;
    }
    char text[128];
    const char *part = mask_part[below(LEN(mask_part))];
    ag_put(out, "(");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, part, between(0, 60));
#pragma GCC diagnostic pop
    ag_put(out, "%s)", text);
}

static const char *const score[] = {
    "s",
    "cap * tanh(s / cap)",
    "s - 0.02 * abs(q % 64 - k)",
    "s * exp2(-0.5 * (h + 1)) + 0.01 * ((k - q) % 50)",
    "s if k % 2 == 0 else 0.5 * s",
    "relu(s) - 0.1 * relu(-s)",
    "clamp(s, -c, c)",
    "s + c * sin(0.1 * (q % 100)) * cos(0.1 * k)",
    "softplus(s) + sigmoid(s)",
    "piece + c * g",
    "s / (1.0 + abs(s))",
    "s + log2(1.0 + k)",
    "min(s, 2.0) if q - k < far else s - 1",
};

/* Captured tensors: how each is declared, and a term of a score or a part of a mask. */
static const struct {
    const char *input, *term, *part;
} captured[] = {
    {"slope: {f32: [h]}", "slope[h] * 0.01 * ((k - q) % 64)", NULL},
    {"bias: {dtype: [1, h, q, k]}", "bias[b, h, q, k]", NULL},
    {"row: {f32: [b, q]}", "row[b, q]", NULL},
    {"col: {f16: [b, g, k]}", "col[b, g, k]", NULL},
    {"table: {bf16: [h, 30]}", "table[h, q - k + 9]", NULL},
    {"by: {f32: [5]}", "by[floor(abs(0.01 * k))]", NULL},
    {"heat: {f32: [b]}", "0.1 * s * heat[b]", NULL},
    {"doc: {i32: [b, k]}", NULL, "doc[b, k] == doc[b, q]"},
    {"len: {i32: [b]}", NULL, "k < len[b]"},
    {"back: {i32: [b, h]}", NULL, "q - k < back[b, h]"},
    {"keep: {bool: [b, k]}", NULL, "keep[b, k]"},
    {"from: {i64: [b, q]}", NULL, "from[b, q] <= k"},
    {"see: {u8: [b, q, k]}", NULL, "see[b, q, k] % 3 != 1"},
    {"one: {i32: []}", NULL, "k != one"},
};

static void put_spec(Buf *out) {
    int term = chance(40) ? below(LEN(captured)) : -1, part = chance(40) ? below(LEN(captured)) : -1;
    if (term >= 0 && !captured[term].term) term = -1;
    if (part >= 0 && !captured[part].part) part = -1;
    ag_put(out, "attention: random\nparams:\n  w: {int: %d}\n  cap: {float: %d.5}\n  c: {float: 1.25}\n", between(-5, 90), between(1, 9));
    if (term >= 0 || part >= 0) ag_put(out, "inputs:\n");
    if (term >= 0) ag_put(out, "  %s\n", captured[term].input);
    if (part >= 0) ag_put(out, "  %s\n", captured[part].input);
    ag_put(out, "let:\n  far: w // 2 + 3\n  piece: s * 0.5 + min(c, cap)\nscore: (%s)%s%s\n", score[below(LEN(score))], term >= 0 ? " + " : "",
           term >= 0 ? captured[term].term : "");
    if (chance(10)) ag_put(out, "scale: 0.2\n");
    if (chance(10)) ag_put(out, "normalize:\n  softmax:\n    plus: exp(%d - h)\n", between(-9, 9));
    if (chance(15) && part < 0) return;
    ag_put(out, "mask: ");
    if (part >= 0) ag_put(out, "(%s) %s ", captured[part].part, chance(70) ? "and" : "or");
    put_mask(out, between(0, 2));
    ag_put(out, "\n");
}

/* ---- schedules */

static void random_order(Schedule *s) {
    for (int i = 2; i > 0; i--) {
        int j = below(i + 1), x = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = x;
    }
    s->f[F_GROUP_MB].v = s->order[0] == AX_Q && chance(60) ? between(1, 40) : 0;
}

/* Fields of words and bools, and the stages. */
static void random_words(Schedule *s) {
    Field *f = s->f;
    for (int i = 0; i < F_COUNT; i++)
        if (ag_field[i].kind != FIELD_INT && i != F_MMA_FAMILY) f[i].v = between(ag_field[i].min, ag_field[i].max);
    f[F_PACK_GQA].v = 0; /* the groups are random too; test_pack.c */
    f[F_TILE_N].v = 16 * between(1, 3);
    f[F_K_STAGES].v = between(1, 4);
    f[F_V_STAGES].v = between(1, 4);
}

static Schedule random_mma_sync(void) {
    Schedule s = small_schedule();
    Field *f = s.f;
    random_words(&s);
    f[F_WARPS].v = between(1, 3);
    f[F_TILE_M].v = 16 * f[F_WARPS].v * between(1, 2);
    f[F_PER_SM].v = between(1, 2);
    if (f[F_K_STAGES].v < 2 || f[F_V_STAGES].v < 2) f[F_ACQUIRE].v = 0;
    if (f[F_O_STORE].v == STORE_TMA) f[F_O_STORE].v = STORE_SMEM;
    random_order(&s);
    return s;
}

static Schedule random_wgmma(void) {
    int groups = between(1, 2);
    Schedule s = small_wgmma(groups);
    Field *f = s.f;
    random_words(&s);
    f[F_REGS_MATH].v -= 8 * between(0, 3);
    f[F_RESCALE].v = 0;
    if (chance(60)) f[F_OVERLAP].v = 1; /* else half of them */
    if (f[F_OVERLAP].v) f[F_DIRECTION].v = 0;
    if (!f[F_OVERLAP].v || f[F_LOOP_FORM].v) f[F_SOFTMAX].v = 0;
    if (!f[F_OVERLAP].v || groups == 1) f[F_TURNS].v = 0;
    if (f[F_OVERLAP].v && f[F_PERSISTENT].v) f[F_Q_STAGES].v = between(1, 2);
    f[F_FETCH_AHEAD].v = between(0, 4);
    random_order(&s);
    return s;
}

/* ---- shapes */

static Case random_shape(void) {
    static const int length[] = {0, 1, 7, 15, 16, 17, 31, 33, 48, 63, 65, 80, 97, 130};
    return (Case){.B = between(1, 2),
                  .Hkv = between(1, 2),
                  .group = between(1, 3),
                  .Sq = length[below(LEN(length))],
                  .Sk = length[below(LEN(length))],
                  .offset = chance(50)   ? ATTNGEN_ALIGN_END
                            : chance(90) ? between(-80, 120)
                                         : 1 << 28,
                  .layout = (TensorLayout)below(LAY_COUNT),
                  .large = chance(25),
                  .param = chance(40) ? between(1, 100) : 0,
                  .no_lse = chance(10)};
}

static void test_random(void **state) {
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"};
    /* The contract's limit is twice the error of one naive computation.  That error may be small by luck; among thousands of rows with few keys some are. */
    enum { SHAPES = 3, SLACK = 2 };
    uint64_t seed = state_of;
    int visited = 0;
    for (int turn = 0; turn < count; turn++) {
        state_of = seed + (uint64_t)turn * 1000003u;
        Buf spec = {0};
        put_spec(&spec);
        bool wgmma = chance(40);
        Schedule s = wgmma ? random_wgmma() : random_mma_sync();
        attngen_dim dims[] = {
            {"D", between(1, 40)}, {"Dv", between(24, 48)}, {"dtype", chance(50) ? ATTNGEN_F16 : ATTNGEN_BF16}, {"w", between(0, 40)}, {NULL, 0}};
        if (chance(70)) dims[3] = (attngen_dim){NULL, 0};
        Compilation *c = compile_schedule(spec.s, &s, wgmma ? "sm_90a" : arch[below(LEN(arch))], dims, chance(50) ? "place" : NULL);
        if (c->diag.status != ATTNGEN_OK) print_error("turn %d\n", turn);
        must_compile(c);
        for (int i = 0; i < SHAPES; i++) {
            Case shape = random_shape();
            char *text = result_of(c, &shape, next(), SLACK), name[128];
            ag_check_case_name(name, sizeof name, &shape, c->fn.spec);
            if (*text) fail_msg("turn %d, %s: %s\nspec:\n%sschedule:\n%s", turn, name, text, spec.s, c->diag.file[2].text.s);
            free(text);
            visited++;
        }
        ag_compilation_free(c);
        ag_buf_free(&spec);
    }
    print_message("%d kernels, %d launches\n", count, visited);
}

int main(int argc, char **argv) {
    if (argc > 1) count = atoi(argv[1]);
    state_of = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
