/* test_emit.c: the CUDA text: what changes it, what does not, and what can never get into it. */
#include "with_schedule.h"

#include <ctype.h>
#include <stdio.h>

#include "jit.h"

static const attngen_dim D16[] = {{"D", 16}, {NULL, 0}};
static const char SPEC[] =
    "attention: window\nheads: {group: 2}\nparams:\n  cap: {float: 8.0}\n  w: {int: 20}\nscore: cap * tanh(s / cap)\nmask: k <= q and q - k < w\n";

static const Case small_shapes[] = {
    {.B = 2, .Hkv = 2, .group = 2, .Sq = 40, .Sk = 100, .offset = ATTNGEN_ALIGN_END},
    {.B = 1, .Hkv = 1, .group = 2, .Sq = 65, .Sk = 33, .offset = 0, .layout = LAY_BSHD},
};

/* The text behind the head comment, which prints the schedule. */
static const char *code_of(const Compilation *c) {
    const char *p = c->cu.s;
    while (p[0] == '/' && p[1] == '/') p = strchr(p, '\n') + 1;
    return p;
}

static const char *arch_for(const Schedule *s) { return s->f[F_MMA_FAMILY].v == FAMILY_WGMMA ? "sm_90a" : "sm_80"; }

static Compilation *emit(const char *spec, const Schedule *s) {
    Compilation *c = compile_schedule(spec, s, arch_for(s), D16, NULL);
    must_compile(c);
    return c;
}

/* ---- every field of the schedule has an effect */

/* Everything on that another field may need. */
static Schedule rich_schedule(void) {
    Schedule s = small_schedule();
    s.f[F_K_STAGES].v = s.f[F_V_STAGES].v = 2;
    return s;
}
static Schedule rich_wgmma(void) {
    Schedule s = small_wgmma(2);
    s.f[F_LOOP_FORM].v = 0;
    s.f[F_REGS_MATH].v = 152; /* enough for a third warpgroup */
    s.f[F_PERSISTENT].v = PERSISTENT_DYNAMIC;
    return s;
}

/* Another value of a field than in the base; `with` is changed beside it where a law asks for that. */
typedef struct Change {
    FieldId id;
    int64_t other;
    FieldId with;
    int64_t with_value;
} Change;
static const Change mma_sync_change[] = {
    {F_TILE_M, 64, F_TILE_M, 64},     {F_TILE_N, 32, F_TILE_N, 32},     {F_Q_OPERAND, 1, F_Q_OPERAND, 1}, {F_WARPS, 1, F_WARPS, 1},
    {F_K_STAGES, 3, F_K_STAGES, 3},   {F_V_STAGES, 3, F_V_STAGES, 3},   {F_O_STORE, 1, F_O_STORE, 1},     {F_ACQUIRE, 1, F_ACQUIRE, 1},
    {F_LOOP_FORM, 0, F_LOOP_FORM, 0}, {F_DIRECTION, 1, F_DIRECTION, 1}, {F_LONGEST, 1, F_LONGEST, 1},     {F_GROUP_MB, 1, F_GROUP_MB, 1},
    {F_PER_SM, 2, F_PER_SM, 2},       {F_RESCALE, 1, F_RESCALE, 1},     {F_TANH, 1, F_TANH, 1},           {F_PACK_GQA, 1, F_PACK_GQA, 1},
};
static const Change wgmma_change[] = {
    {F_TILE_M, 192, F_CONSUMERS, 3},      {F_TILE_N, 32, F_TILE_N, 32},
    {F_CONSUMERS, 3, F_TILE_M, 192},      {F_REGS_MATH, 144, F_REGS_MATH, 144},
    {F_REGS_LOAD, 24, F_REGS_LOAD, 24},   {F_Q_STAGES, 2, F_Q_STAGES, 2},
    {F_K_STAGES, 3, F_K_STAGES, 3},       {F_V_STAGES, 3, F_V_STAGES, 3},
    {F_O_STORE, 1, F_O_STORE, 1},         {F_O_STORE, 2, F_O_STORE, 2},
    {F_OVERLAP, 0, F_OVERLAP, 0},         {F_TURNS, 1, F_TURNS, 1},
    {F_LOOP_FORM, 1, F_LOOP_FORM, 1},     {F_DIRECTION, 1, F_OVERLAP, 0},
    {F_LONGEST, 1, F_LONGEST, 1},         {F_GROUP_MB, 1, F_GROUP_MB, 1},
    {F_PERSISTENT, 0, F_PERSISTENT, 0},   {F_PERSISTENT, 1, F_PERSISTENT, 1},
    {F_FETCH_AHEAD, 3, F_FETCH_AHEAD, 3}, {F_SOFTMAX, 1, F_SOFTMAX, 1},
    {F_P_OPERAND, 1, F_P_OPERAND, 1},     {F_TANH, 1, F_TANH, 1},
    {F_PACK_GQA, 1, F_PACK_GQA, 1},
};

static void must_be_right_on_small_shapes(const Compilation *c) {
    for (int i = 0; i < LEN(small_shapes); i++) must_be_right(c, &small_shapes[i], 7);
}

static void try_changes(const Schedule *base, const Change *change, int n, bool *tried) {
    Compilation *a = emit(SPEC, base);
    must_be_right_on_small_shapes(a);
    for (int i = 0; i < n; i++) {
        Schedule s = *base;
        s.f[change[i].id].v = change[i].other;
        s.f[change[i].with].v = change[i].with_value;
        tried[change[i].id] = true;
        Compilation *b = emit(SPEC, &s);
        if (strcmp(code_of(a), code_of(b)) == 0) fail_msg("%s has no effect", ag_field[change[i].id].path);
        must_be_right_on_small_shapes(b);
        ag_compilation_free(b);
    }
    ag_compilation_free(a);
}

/* Whoever adds a field adds a row, to each family that heeds it, but for those that are fixed there. */
static void must_be_tried(const Schedule *base, const bool *tried, const FieldId *fixed, int n) {
    for (int i = 0; i < F_COUNT; i++) {
        bool other = i == F_MMA_FAMILY || i == F_LISTS || i == F_FORCED /* for specs with block lists: test_gather.c, test_forced.c */ ||
                     i == F_E_STAGES /* test_elements.c */ || i == F_BRANCHES /* test_joined.c */ || ag_field_idle(base, (FieldId)i) ||
                     ag_field[i].min == ag_field[i].max;
        for (int k = 0; k < n; k++) other |= fixed[k] == (FieldId)i;
        if (!tried[i] && !other) fail_msg("%s is not tried", ag_field[i].path);
    }
}

static void test_every_field(void **state) {
    (void)state;
    static const FieldId fixed[] = {F_PER_SM, F_RESCALE, F_O_PARTS}; /* with wgmma two have one legal value; the third wants more columns */
    bool tried[F_COUNT] = {false}, tried_wgmma[F_COUNT] = {false};
    Schedule base = rich_schedule(), wgmma = rich_wgmma();
    try_changes(&base, mma_sync_change, LEN(mma_sync_change), tried);
    must_be_tried(&base, tried, NULL, 0);
    try_changes(&wgmma, wgmma_change, LEN(wgmma_change), tried_wgmma);
    must_be_tried(&wgmma, tried_wgmma, fixed, LEN(fixed));
    Compilation *a = emit(SPEC, &base), *b = emit(SPEC, &wgmma);
    assert_string_not_equal(code_of(a), code_of(b));
    ag_compilation_free(a);
    ag_compilation_free(b);
}

/* Parts of whole panels of 64 columns: more than there are panels make no difference. */
/* The class of a kernel says how coarse its tanh is, if it has one. */
static void test_tanh(void **state) {
    (void)state;
    Schedule s = rich_schedule();
    s.f[F_TANH].v = 1;
    Compilation *c = emit(SPEC, &s), *without = emit("attention: plain\nmask: k <= q\n", &s);
    assert_non_null(strstr(c->numerics, "-tanh11"));
    assert_non_null(strstr(code_of(c), "tanh_approx("));
    assert_null(strstr(code_of(c), "tanh_exp2("));
    assert_true(ag_error_bound(c->numerics).lse == 0x1p-11);
    assert_null(strstr(without->numerics, "-tanh11"));
    assert_true(ag_error_bound(without->numerics).lse == 1e-4);
    ag_compilation_free(c);
    ag_compilation_free(without);
}

static void test_parts(void **state) {
    (void)state;
    static const int Dv[] = {64, 72, 128, 200, 256};
    for (int i = 0; i < LEN(Dv); i++) {
        const attngen_dim dims[] = {{"D", 16}, {"Dv", Dv[i]}, {NULL, 0}};
        Compilation *last = NULL;
        for (int parts = 1; parts <= 4; parts++) {
            Schedule s = small_wgmma(1);
            s.f[F_PERSISTENT].v = PERSISTENT_STATIC;
            s.f[F_O_PARTS].v = parts;
            Compilation *c = compile_schedule(SPEC, &s, "sm_90a", dims, NULL);
            must_compile(c);
            must_be_right_on_small_shapes(c);
            int panels = (Dv[i] + 63) / 64;
            bool same = last && (panels + parts - 1) / parts == (panels + parts - 2) / (parts - 1);
            if (last) assert_int_equal(strcmp(code_of(last), code_of(c)) == 0, same);
            ag_compilation_free(last);
            last = c;
        }
        ag_compilation_free(last);
    }
}

static void test_order(void **state) {
    (void)state;
    static const int order[][3] = {{AX_Q, AX_H, AX_B}, {AX_Q, AX_B, AX_H}, {AX_H, AX_Q, AX_B},
                                   {AX_H, AX_B, AX_Q}, {AX_B, AX_Q, AX_H}, {AX_B, AX_H, AX_Q}};
    Compilation *c[LEN(order)];
    for (int i = 0; i < LEN(order); i++) {
        Schedule s = small_schedule();
        memcpy(s.order, order[i], sizeof s.order);
        c[i] = emit(SPEC, &s);
        must_be_right_on_small_shapes(c[i]);
        for (int j = 0; j < i; j++) assert_string_not_equal(code_of(c[i]), code_of(c[j]));
    }
    for (int i = 0; i < LEN(order); i++) ag_compilation_free(c[i]);
}

/* The closed schedule gives the same text as the one that it closes, to the byte. */
static void check_closed_on(const char *arch, const char *spec, const char *schedule, const attngen_dim *dims) {
    Compilation *a = compile_raw(spec, schedule, arch, dims, NULL);
    if (a->diag.status == ATTNGEN_E_UNSUPPORTED) { /* not for this head dim */
        ag_compilation_free(a);
        return;
    }
    must_compile(a);
    Compilation *b = compile_schedule(spec, a->sched, arch, dims, NULL);
    must_compile(b);
    assert_string_equal(a->cu.s, b->cu.s);
    assert_null(strstr(b->diag.file[2].text.s, "auto"));
    Buf again = {0};
    ag_schedule_print(&again, b->sched);
    assert_null(strstr(again.s, "# rule"));
    assert_null(strstr(again.s, "# default"));
    ag_buf_free(&again);
    ag_compilation_free(a);
    ag_compilation_free(b);
}

static void check_closed(const char *spec, const char *schedule, const attngen_dim *dims) {
    check_closed_on("sm_90", spec, schedule, dims);
    check_closed_on("sm_90a", spec, schedule, dims);
}

static void test_closed_schedule(void **state) {
    (void)state;
    static const double D[] = {64, 128, 256};
    static const char *const autos[] = {
        "schema: attngen.schedule/1\n",
        "schema: attngen.schedule/1\ntile: {m: auto, n: 64}\ngrid: {order: [h, m, b]}\n",
        "schema: attngen.schedule/1\nmma: {family: wgmma}\ntile: {m: auto, n: auto}\nroles: {consumer: {warpgroups: 1}}\n",
        "schema: attngen.schedule/1\nmma: {family: wgmma}\nloop: {form: peeled}\nnumerics: {softmax: speculative}\n",
        "schema: attngen.schedule/1\ntile: {m: 64, n: auto}\nstaging: {k: {stages: 2}}\ngrid: {longest_first: auto, group_mb: 5}\n",
    };
    for (int i = 0; i < LEN(D); i++) {
        const attngen_dim dims[] = {{"D", D[i]}, {NULL, 0}};
        for (size_t n = 0; ag_shipped_schedule(n); n++) check_closed(SPEC, ag_shipped_schedule(n)->text, dims);
        for (int n = 0; n < LEN(autos); n++) check_closed(SPEC, autos[n], dims), check_closed("attention: dense\n", autos[n], dims);
    }
}

/* ---- the text depends on the inputs alone, and holds nothing of the machine */

static int append(void *payload, const void *data, size_t n) {
    ag_putn(payload, data, n);
    return 0;
}
static char *emit_in_new_context(const char *cache) {
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    o.arch = "sm_90";
    o.cache_dir = cache;
    attngen_context *ctx;
    attngen_program *p;
    attngen_source spec = {"/home/someone/of \"mine\".yaml", SPEC, sizeof SPEC - 1};
    Buf out = {0};
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, NULL, 0), ATTNGEN_OK);
    assert_int_equal(attngen_emit(ctx, p, ATTNGEN_EMIT_CU, NULL, append, &out), ATTNGEN_OK);
    attngen_program_free(p);
    attngen_destroy(ctx);
    return out.s;
}

static void test_same_in_every_context(void **state) {
    (void)state;
    char *a = emit_in_new_context(""), *b = emit_in_new_context("/nowhere/at/all");
    assert_string_equal(a, b);
    assert_null(strstr(a, "someone"));
    assert_null(strstr(a, "nowhere"));
    free(a);
    free(b);
}

static void check_clean(const char *text) {
    static const char *const never[] = {"#include", "__FILE__", "__DATE__", "__TIME__", "__LINE__", ".yaml",
                                        ".cuh",     "(nil)",    "(null)",   "attngen/", "?\x3F"}; /* the last begins a trigraph */
    for (int i = 0; i < LEN(never); i++)
        if (strstr(text, never[i])) fail_msg("the text has `%s`", never[i]);
    bool macro = false; /* of several lines: the only ones that go on behind a backslash */
    for (const char *p = text; *p; p++) {
        if (p == text || (p[-1] == '\n' && !(macro && p[-2] == '\\'))) macro = !strncmp(p, "#define ", 8);
        bool printable = *p >= 0x20 && *p < 0x7F;
        if (!printable && *p != '\n') fail_msg("byte %d in the text", (unsigned char)*p);
        if (*p == '\n' && p > text && (p[-1] == ' ' || (p[-1] == '\\' && !macro))) fail_msg("a line ends in '%c'", p[-1]);
    }
    size_t n = strlen(text);
    assert_true(text[n - 1] == '\n' && text[n - 2] != '\n');
}

static void test_clean(void **state) {
    (void)state;
    for (int turn = 0; turn < 64; turn++) {
        Schedule s = rich_schedule();
        s.f[F_ACQUIRE].v = turn & 1;
        s.f[F_LOOP_FORM].v = turn >> 1 & 1;
        s.f[F_Q_OPERAND].v = turn >> 2 & 1;
        s.f[F_O_STORE].v = turn >> 3 & 1;
        s.f[F_RESCALE].v = turn >> 4 & 1;
        s.f[F_GROUP_MB].v = turn >> 5 & 1;
        Compilation *c = emit(SPEC, &s);
        check_clean(c->cu.s);
        ag_compilation_free(c);
    }
    for (int turn = 0; turn < 32; turn++) {
        Schedule s = rich_wgmma();
        s.f[F_OVERLAP].v = turn & 1;
        s.f[F_SOFTMAX].v = (turn & 7) == 3;
        s.f[F_LOOP_FORM].v = turn >> 2 & 1;
        s.f[F_O_STORE].v = turn >> 3 & 1;
        s.f[F_GROUP_MB].v = turn >> 4 & 1;
        Compilation *c = emit(SPEC, &s);
        check_clean(c->cu.s);
        ag_compilation_free(c);
    }
}

/* ---- the user's names */

/* Every word of the code (comments aside) that is `word`, or ends in it behind the prefix. */
static void count_word(const char *text, const char *word, int *bare, int *prefixed) {
    size_t n = strlen(word);
    *bare = *prefixed = 0;
    for (const char *p = text; *p;) {
        if (p[0] == '/' && p[1] == '/') {
            p += strcspn(p, "\n");
            continue;
        }
        size_t len = 0;
        while (isalnum((unsigned char)p[len]) || p[len] == '_') len++;
        *bare += len == n && memcmp(p, word, n) == 0;
        *prefixed += len == n + 2 && memcmp(p, "u_", 2) == 0 && memcmp(p + 2, word, n) == 0;
        p += len ? len : 1;
    }
}

static void test_prefix(void **state) {
    (void)state;
    static const char spec[] = "attention: a\nparams:\n  flurb: {float: 2.0}\n  glorp: {int: 5}\nlet:\n  snark: flurb * s\n"
                               "score: snark + 0.1 * glorp\nmask: q - k < glorp\n";
    Schedule s = small_schedule();
    Compilation *c = emit(spec, &s);
    static const char *const param[] = {"flurb", "glorp"};
    int bare, prefixed;
    for (int i = 0; i < LEN(param); i++) {
        count_word(c->cu.s, param[i], &bare, &prefixed);
        assert_int_equal(bare, 0);
        assert_true(prefixed >= 2); /* in the struct, and where it is read */
    }
    count_word(c->cu.s, "snark", &bare, &prefixed); /* lets are looked through */
    assert_int_equal(bare + prefixed, 0);
    ag_compilation_free(c);
}

/* NULL: not on this machine. */
static Nvrtc *nvrtc(void) {
    static Nvrtc *n;
    static bool tried;
    static char path[4096], id[256];
    Err e = {{0}};
    NvrtcEnv env = {getenv("ATTNGEN_NVRTC"), getenv("CUDA_HOME"),    getenv("LD_LIBRARY_PATH"),
                    getenv("VIRTUAL_ENV"),   getenv("CONDA_PREFIX"), getenv("HOME")};
    if (!tried && ag_nvrtc_find(NULL, &env, path, id, NULL, 0, &e) == ATTNGEN_OK) assert_int_equal(ag_nvrtc_open(&n, path, &e), ATTNGEN_OK);
    tried = true;
    return n;
}
static int close_nvrtc(void **state) {
    (void)state;
    ag_nvrtc_close(nvrtc());
    return 0;
}
static void must_build(const Compilation *c) {
    Err e = {{0}};
    Compiled out;
    if (ag_nvrtc_compile(nvrtc(), c->cu.s, "sm_80", false, &out, &e) != ATTNGEN_OK) fail_msg("%s\n%s", e.text, out.log ? out.log : "");
    ag_compiled_free(&out);
}

/* Macros of C, of compilers and of ours; types, built-ins and variables of the generated code. */
static const char *const hostile[] = {
    "LEAF", "NULL", "unix", "linux",     "assert",   "EOF", "INFINITY", "UNROLL", "ROLLED",   "THREADS", "NEG_INF",
    "args", "Args", "smem", "q0",        "row0",     "acc", "mx",       "K",      "S",        "u_K",     "threadIdx",
    "u32",  "i64",  "bf16", "copy_tile", "lane_row", "mi",  "e",        "vec",    "_Complex",
};

static void test_hostile_params(void **state) {
    (void)state;
    Buf spec = {0};
    ag_put(&spec, "attention: typename_\nparams:\n");
    for (int i = 0; i < LEN(hostile); i++) ag_put(&spec, "  %s: {%s: 2}\n", hostile[i], i % 2 ? "int" : "float");
    ag_put(&spec, "score: s");
    for (int i = 0; i < LEN(hostile); i++) ag_put(&spec, " + %s", hostile[i]);
    ag_put(&spec, "\nmask: k < NULL + row0 + K\n");
    Schedule s = small_schedule();
    Compilation *c = emit(spec.s, &s);
    check_clean(c->cu.s);
    for (int i = 0; i < LEN(hostile); i++) {
        int bare, prefixed;
        count_word(c->cu.s, hostile[i], &bare, &prefixed);
        assert_true(prefixed >= 2);
    }
    ag_buf_free(&spec);
    if (nvrtc()) must_build(c);
    ag_compilation_free(c);
    if (!nvrtc()) skip();
}

/* Names of specs become symbols, which are not cut. */
static void test_hostile_spec_names(void **state) {
    (void)state;
    static const char *const name[] = {"NULL", "main", "int", "threadIdx", "a123456789012345678901234567890123456789012345678901234567890"};
    Schedule s = small_schedule();
    for (int i = 0; i < LEN(name); i++) {
        char spec[128], symbol[128];
        snprintf(spec, sizeof spec, "attention: %.*s\n", i == LEN(name) - 1 ? 59 : 64, name[i]);
        Compilation *c = compile_schedule(spec, &s, "sm_80", D16, NULL);
        must_compile(c);
        snprintf(symbol, sizeof symbol, " %s(const __grid_constant__ Args args) {", c->meta.kernel[0].name);
        assert_non_null(strstr(c->cu.s, symbol));
        if (nvrtc()) must_build(c);
        ag_compilation_free(c);
    }
    if (!nvrtc()) skip();
}

/* ---- the head comment */

static void test_head_comment(void **state) {
    (void)state;
    static const char spec[] =
        "attention: a\ndoc: \"zaone */ zatwo \\\\\\n#error zathree\\r\\n ?\\x3F/\\n\\u2028zafive \\\\\"\nparams: {w: {int: 3}}\n"
        "let:\n  far: q - k >\n    w\nscore: s\n  * 2.0\nmask: not\n  far\n";
    static const char schedule[] = "schema: attngen.schedule/1\nname: b\nnotes: \"zasix */ \\\\\\n#error zaseven \\\\\"\ntile: {m: 64, n: 16}\n";
    Compilation *c = compile_raw(spec, schedule, "sm_80", D16, NULL);
    must_compile(c);
    check_clean(c->cu.s);
    static const char *const texts[] = {"#error", "*/", "zaone", "zatwo", "zathree", "zafive", "zasix", "zaseven"};
    for (int i = 0; i < LEN(texts); i++) assert_null(strstr(c->cu.s, texts[i]));
    const char *end = strstr(c->cu.s, "\n\n"); /* the comment is one paragraph */
    assert_true(code_of(c) == end + 1);
    assert_non_null(strstr(c->cu.s, "//   let      far = q - k > w\n//   score    s * 2.0\n//   mask     not far\n"));
    if (nvrtc()) must_build(c);
    ag_compilation_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_closed_schedule),
        cmocka_unit_test(test_same_in_every_context),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_hostile_params),
        cmocka_unit_test(test_hostile_spec_names),
        cmocka_unit_test(test_head_comment),
    };
    return cmocka_run_group_tests(tests, NULL, close_nvrtc);
}
