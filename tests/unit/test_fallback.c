/* test_fallback.c: where a kernel spills under the schedule that fits, another is taken, once and for all; where the schedule was named it is not. */
#include "with_archs.h"

#include "jit.h"
#include "with_folder.h"

static Spec *spec_of(Compilation *c) { return (Spec *)c->attention; }

/* The order of names, by what the spec reads. */
static void test_order(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int D;
        const char *names[4]; /* the default and behind it */
    } cases[] = {
        {"attention: a\nscore: s + k\n", 128, {"wgmma_d128", "wgmma_d128_element", "wgmma_d128_elements", NULL}},
        {"attention: a\n", 64, {"wgmma_d64", "wgmma_d64_element", "wgmma_d64_elements", NULL}},
        {"attention: a\n", 192, {"wgmma_d192", "wgmma_d192_elements", NULL}},
        {"attention: a\n", 256, {"wgmma_d256", "wgmma_d256_elements", NULL}},
        {"attention: a\ninputs: {x: {f32: [b, h, q, k]}}\nscore: s + x[b, h, q, k]\n", 128, {"wgmma_d128_element", "wgmma_d128_elements", NULL}},
        {"attention: a\ninputs: {x: {f32: [b, h, q, k]}, y: {f32: [h, q, k]}}\nscore: s + x[b, h, q, k] + y[h, q, k]\n",
         64,
         {"wgmma_d64_elements", NULL}},
    };
    for (int i = 0; i < LEN(cases); i++) {
        Compilation *c = compiled(cases[i].spec, "sm_90a", NULL, cases[i].D, 0);
        const Target *t = ag_target_find("sm_90a");
        assert_string_equal(ag_schedule_default(spec_of(c), t, -1), cases[i].names[0]);
        for (int n = 1; n < 4; n++) {
            const char *name = ag_schedule_fallback(spec_of(c), t, -1, n);
            if (!cases[i].names[n]) {
                assert_null(name);
                break;
            }
            assert_non_null(name);
            assert_string_equal(name, cases[i].names[n]);
        }
        assert_null(ag_schedule_fallback(spec_of(c), ag_target_find("sm_80"), -1, 1));
        ag_compilation_free(c);
    }
}

/* Of schedules that read elements one by one, or are for a quick start, there is one for a spec: whoever asks for what is behind it hears of the end. */
static void test_end(void **state) {
    (void)state;
    static const char text[] = "attention: a\ninputs: {x: {f32: [b, h, q, k]}}\nscore: s + x[b, h, q, k]\n";
    const attngen_source spec = {"spec.yaml", text, strlen(text)};
    const attngen_dim dims[] = {{"D", 64}};
    for (int quick = 0; quick < 2; quick++) {
        Compilation *c =
            ag_compile(&(Request){.spec = &spec, .arch = "sm_90a", .dims = dims, .ndims = 1, .fallback = 1, .unstaged = !quick, .quick = quick});
        assert_non_null(c);
        assert_int_equal(c->diag.status, ATTNGEN_E_UNSUPPORTED);
        ag_compilation_free(c);
    }
}

/* ---- with NVRTC */

static char warned[1024];
static void hear(void *payload, const char *message) {
    (void)payload;
    snprintf(warned, sizeof warned, "%s", message);
}

/* Compiles a shipped spec, or a text, for sm_90a; what is known of the program.  `warned` has the last warning, or what a named schedule is refused for. */
static attngen_info compile(const char *name, int D, const char *schedule) {
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    attngen_context *ctx;
    attngen_program *p;
    attngen_source spec, how;
    static char kept[128], arch[16];
    warned[0] = 0;
    o.arch = "sm_90a", o.warn = hear, o.cache_dir = root;
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    if (strchr(name, '\n'))
        spec = (attngen_source){"spec.yaml", name, strlen(name)};
    else
        assert_int_equal(attngen_shipped_spec(&spec, name), ATTNGEN_OK);
    if (schedule) assert_int_equal(attngen_shipped_schedule(&how, schedule), ATTNGEN_OK);
    attngen_status s = attngen_compile(ctx, &p, &spec, schedule ? &how : NULL, &(attngen_dim){"D", D}, 1);
    if (s == ATTNGEN_E_NO_NVRTC) {
        attngen_destroy(ctx);
        skip();
    }
    if (s == ATTNGEN_E_COMPILE && schedule) {
        snprintf(warned, sizeof warned, "%s", attngen_errmsg(ctx));
        attngen_destroy(ctx);
        return info;
    }
    if (s != ATTNGEN_OK) fail_msg("%s", attngen_errmsg(ctx));
    assert_int_equal(attngen_program_info(p, &info), ATTNGEN_OK);
    snprintf(kept, sizeof kept, "%s", info.schedule);
    snprintf(arch, sizeof arch, "%s", info.arch);
    info.schedule = kept;
    info.arch = arch;
    attngen_program_free(p);
    attngen_destroy(ctx);
    return info;
}

/* kerple has a logarithm for each query and key.  The second time nothing is compiled. */
static void test_taken_once(void **state) {
    (void)state;
    for (int again = 0; again < 2; again++) {
        attngen_info info = compile("kerple", 64, NULL);
        assert_string_equal(info.schedule, "wgmma_d64_element");
        assert_true(info.spill_bytes <= 32);
        assert_int_equal(info.from_disk_cache, again);
        assert_string_equal(warned, "");
    }
}

/* Under a schedule that was named it is as ever: a warning, as this spec reads a captured tensor. */
static void test_named(void **state) {
    (void)state;
    attngen_info info = compile("kerple", 64, "wgmma_d64");
    assert_string_equal(info.schedule, "wgmma_d64");
    assert_true(info.spill_bytes > 32);
    assert_non_null(strstr(warned, "kerple under wgmma_d64 spills"));
}

/* Branches fall back together; here the map of tiles is what takes the registers. */
static void test_branches(void **state) {
    (void)state;
    static const char text[] = "attention: t\ninputs: {doc: {i32: [b, k]}, k2: {dtype: [b, g, k, d]}}\nbranches:\n"
                               "  a: {mask: \"k <= q and doc[b, q] == doc[b, k]\"}\n"
                               "  c: {keys: k2, mask: \"k <= q and doc[b, q] == doc[b, k]\"}\noutput: a - 0.5 * c\n";
    attngen_info info = compile(text, 64, NULL);
    assert_string_equal(info.schedule, "wgmma_d64_element");
    assert_true(info.spill_bytes <= 32);
    assert_string_equal(warned, "");
    info = compile(text, 64, "wgmma_d64");
    assert_true(info.spill_bytes > 32);
}

/* Too few registers for wgmma at all are worse than any spills: that schedule is left, too; named, it is refused as if it spilled. */
static void test_serialised(void **state) {
    (void)state;
    static const char rows[] = "attention: t\nparams: {x: {float: 2.0}}\nscore: clamp(rsqrt(1 + abs(x + s)), -2, 2) * x\nrows: [lse, max]\n";
    attngen_info info = compile(rows, 64, NULL);
    assert_string_equal(info.schedule, "wgmma_d64_element");
    assert_true(info.spill_bytes <= 32);
    assert_string_equal(warned, "");
    compile(rows, 64, "wgmma_d64");
    assert_string_equal(warned,
                        "t under the shipped schedule wgmma_d64 has too few registers for its wgmma on sm_90a (128 are used), which then wait "
                        "for one another");
}

/* Under all that there is: one of them, and a warning. */
static void test_serialised_everywhere(void **state) {
    (void)state;
    static const char text[] = "attention: t\ninputs: {small: {u8: [b, h, k]}}\nmask: k > (-16 if Sk < k - q and k == q - k else q - k)\n"
                               "weigh: clamp(min((k - q - Hq) / 16, s) + (s if small[b, h, k] != k - q else s), -3, 3)\n";
    attngen_info info = compile(text, 64, NULL);
    assert_string_equal(info.arch, "sm_90a");
    assert_non_null(strstr(warned, " has too few registers for its wgmma on sm_90a ("));
}

/* graphormer spills under all that there is: the least, and a warning. */
static void test_least(void **state) {
    (void)state;
    attngen_info info = compile("graphormer", 64, NULL);
    assert_string_equal(info.arch, "sm_90a");
    assert_true(info.spill_bytes > 32);
    assert_non_null(strstr(warned, "it will be slow"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_end),
                                       cmocka_unit_test_setup_teardown(test_taken_once, make_root, remove_root),
                                       cmocka_unit_test_setup_teardown(test_named, make_root, remove_root),
                                       cmocka_unit_test_setup_teardown(test_branches, make_root, remove_root),
                                       cmocka_unit_test_setup_teardown(test_serialised, make_root, remove_root),
                                       cmocka_unit_test_setup_teardown(test_serialised_everywhere, make_root, remove_root),
                                       cmocka_unit_test_setup_teardown(test_least, make_root, remove_root)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
