/* The public interface: contexts, programs, calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "npy.h"

/* ---- helpers */

static char warned[512];

static void on_warning(void *payload, const char *message) {
    (void)payload;
    snprintf(warned, sizeof warned, "%s", message);
}

static attngen_context *new_context_for(const char *arch, const char *cache_dir, const char *nvrtc) {
    attngen_context *ctx;
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    o.arch = arch;
    o.cache_dir = cache_dir;
    o.nvrtc = nvrtc;
    o.warn = on_warning;
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    return ctx;
}

static attngen_context *new_context(const char *cache_dir) { return new_context_for("sm_90", cache_dir, NULL); }

static int fresh_context(void **state) {
    *state = new_context("");
    return 0;
}

static int drop_context(void **state) {
    attngen_destroy(*state);
    return 0;
}

static attngen_source spec_named(const char *name) {
    attngen_source s;
    assert_int_equal(attngen_shipped_spec(&s, name), ATTNGEN_OK);
    return s;
}

static attngen_program *lowered(attngen_context *ctx, const char *name, double D) {
    attngen_program *p;
    attngen_source spec = spec_named(name);
    const attngen_dim dims[] = {{"D", D}};
    attngen_status s = attngen_lower(ctx, &p, &spec, NULL, dims, 1);
    if (s != ATTNGEN_OK) print_error("%s\n", attngen_errmsg(ctx));
    assert_int_equal(s, ATTNGEN_OK);
    return p;
}

static int collect(void *payload, const void *data, size_t n) {
    ag_putn(payload, data, n);
    return 0;
}

static int refuse(void *payload, const void *data, size_t n) {
    (void)payload;
    (void)data;
    (void)n;
    return 1;
}

/* ---- statuses and names */

static void test_statuses(void **state) {
    (void)state;
    static const struct {
        attngen_status s;
        int code;
        const char *text;
    } row[] = {
        {ATTNGEN_OK, 0, "ok"},
        {ATTNGEN_E_INVALID_ARG, 2, "invalid argument"},
        {ATTNGEN_E_SPEC, 3, "the spec or the schedule is wrong"},
        {ATTNGEN_E_UNSUPPORTED, 4, "not possible on this target"},
        {ATTNGEN_E_COMPILE, 5, "NVRTC refused the generated code"},
        {ATTNGEN_E_NO_NVRTC, 6, "NVRTC was not found"},
        {ATTNGEN_E_DRIVER, 6, "no CUDA driver or device, or the driver reported an error"},
        {ATTNGEN_E_IO, 6, "file system error"},
        {ATTNGEN_E_NOMEM, 6, "out of memory"},
        {ATTNGEN_E_CHECK, 1, "a check failed"},
        {ATTNGEN_E_INTERNAL, 1, "internal error"},
        {(attngen_status)-99, 1, "unknown status"},
    };
    for (int i = 0; i < LEN(row); i++) {
        assert_string_equal(attngen_strerror(row[i].s), row[i].text);
        assert_int_equal(attngen_exit_code(row[i].s), row[i].code);
    }
    assert_string_equal(attngen_version(), ATTNGEN_VERSION_STRING);
}

static void test_names(void **state) {
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"};
    for (size_t i = 0; i < 5; i++) assert_string_equal(attngen_known_arch(i), arch[i]);
    assert_null(attngen_known_arch(5));
    attngen_source s;
    size_t n = 0;
    for (; attngen_shipped_spec_name(n); n++) assert_int_equal(attngen_shipped_spec(&s, attngen_shipped_spec_name(n)), ATTNGEN_OK);
    assert_true(n >= 6);
    for (n = 0; attngen_shipped_schedule_name(n); n++) assert_int_equal(attngen_shipped_schedule(&s, attngen_shipped_schedule_name(n)), ATTNGEN_OK);
    assert_true(n >= 3);
    assert_int_equal(attngen_shipped_spec(&s, "no such"), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_shipped_spec(NULL, "causal"), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_shipped_schedule(&s, NULL), ATTNGEN_E_INVALID_ARG);
}

/* ---- contexts */

static void refuse_options(const attngen_options *o, const char *message) {
    attngen_context *ctx = (attngen_context *)1;
    assert_int_equal(attngen_create(&ctx, o), ATTNGEN_E_INVALID_ARG);
    assert_null(ctx);
    assert_string_equal(attngen_errmsg(NULL), message);
}

static void test_create_refuses(void **state) {
    (void)state;
    refuse_options(&(attngen_options){.version = 7}, "options.version is 7, this library knows 3");
    refuse_options(&(attngen_options){.version = 1, .device = -1}, "options.device is -1");
    refuse_options(&(attngen_options){.version = 1, .arch = "sm90"}, "unknown architecture `sm90` (did you mean `sm_90`?)");
    refuse_options(&(attngen_options){.version = 1, .arch = "turing"}, "unknown architecture `turing`");
    assert_int_equal(attngen_create(NULL, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(NULL), "out is NULL");
}

static void test_defaults(void **state) {
    (void)state;
    attngen_context *ctx;
    const char *why;
    assert_int_equal(attngen_create(&ctx, NULL), ATTNGEN_OK);
    assert_string_equal(attngen_errmsg(ctx), "");
    int has = attngen_has_device(ctx, &why);
    assert_int_equal(has, why[0] == 0);
    if (!has) assert_string_equal(attngen_arch(ctx), "sm_90");
    attngen_destroy(ctx);
    attngen_destroy(NULL);
}

static void test_null_handles(void **state) {
    (void)state;
    assert_int_equal(attngen_lower(NULL, NULL, NULL, NULL, NULL, 0), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_bind(NULL, NULL, NULL, NULL), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_emit(NULL, NULL, ATTNGEN_EMIT_CU, NULL, NULL, NULL), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_reference(NULL, NULL, NULL, 0), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_simulate(NULL, NULL, NULL, 0), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_doctor(NULL, NULL, NULL), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_has_device(NULL, NULL), 0);
    assert_int_equal(attngen_workspace(NULL), 0);
    assert_string_equal(attngen_arch(NULL), "");
    assert_string_equal(attngen_cache_path(NULL), "");
    attngen_program_free(NULL);
    attngen_call_free(NULL);
}

/* ---- programs */

static void test_lower_refuses(void **state) {
    attngen_context *ctx = *state;
    attngen_program *p = (attngen_program *)1;
    attngen_source spec = spec_named("causal"), broken = {"x.yaml", NULL, 4};
    const attngen_dim unnamed[] = {{NULL, 1}};
    assert_int_equal(attngen_lower(ctx, &p, NULL, NULL, NULL, 0), ATTNGEN_E_INVALID_ARG);
    assert_null(p);
    assert_string_equal(attngen_errmsg(ctx), "spec is NULL");
    assert_int_equal(attngen_lower(ctx, NULL, &spec, NULL, NULL, 0), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "out is NULL");
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, NULL, 2), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "dims is NULL and ndims 2");
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, unnamed, 1), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "dims[0].name is NULL");
    assert_int_equal(attngen_lower(ctx, &p, &broken, NULL, NULL, 0), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "the text of the spec is NULL and its length 4");
    assert_int_equal(attngen_lower(ctx, &p, &spec, &broken, NULL, 0), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "the text of the schedule is NULL and its length 4");
}

static void test_spec_error_is_whole(void **state) {
    attngen_context *ctx = *state;
    attngen_program *p;
    attngen_source spec = {"bad.yaml", "attention: bad\nmask: k <= \n", 27};
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, NULL, 0), ATTNGEN_E_SPEC);
    const char *text = attngen_errmsg(ctx);
    assert_memory_equal(text, "bad.yaml:2:", 11);
    assert_non_null(strstr(text, "\n    mask: k <="));
    assert_int_not_equal(text[strlen(text) - 1], '\n');
}

static void test_same_inputs_same_program(void **state) {
    attngen_context *ctx = *state;
    attngen_program *a = lowered(ctx, "causal", 64), *b = lowered(ctx, "causal", 64), *c = lowered(ctx, "causal", 80);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    attngen_program_free(a);
    attngen_program_free(c);
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    assert_int_equal(attngen_program_info(b, &info), ATTNGEN_OK);
    assert_int_equal(info.D, 64);
    attngen_program_free(b);
}

/* More programs than a context remembers: the oldest is made anew, whoever holds it keeps it. */
static void test_many_programs(void **state) {
    attngen_context *ctx = *state;
    attngen_program *first = lowered(ctx, "dense", 1);
    for (int D = 2; D <= 140; D++) attngen_program_free(lowered(ctx, "dense", D));
    attngen_program *again = lowered(ctx, "dense", 1);
    attngen_info a = {.version = 1}, b = {.version = 1};
    assert_ptr_not_equal(first, again);
    assert_int_equal(attngen_program_info(first, &a), ATTNGEN_OK);
    assert_int_equal(attngen_program_info(again, &b), ATTNGEN_OK);
    assert_int_equal(a.D, 1);
    assert_int_equal(a.shared_bytes, b.shared_bytes);
    attngen_program_free(first);
    attngen_program_free(again);
}

static void test_info(void **state) {
    attngen_program *p = lowered(*state, "causal", 128);
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    assert_int_equal(attngen_program_info(p, &info), ATTNGEN_OK);
    assert_string_equal(info.name, "causal");
    assert_string_equal(info.arch, "sm_90");
    assert_string_equal(info.schedule, "mma_d128");
    assert_true(info.numerics[0] != 0);
    assert_int_equal(info.D, 128);
    assert_int_equal(info.Dv, 128);
    assert_int_equal(info.dtype, ATTNGEN_BF16);
    assert_int_equal(info.threads, 128);
    assert_true(info.shared_bytes > 0);
    assert_int_equal(info.registers, 0);
    assert_int_equal(info.from_disk_cache, 0);
    info.version = 2;
    assert_int_equal(attngen_program_info(p, &info), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_program_info(NULL, &info), ATTNGEN_E_INVALID_ARG);
    attngen_program_free(p);
}

static void test_program_outlives_context(void **state) {
    (void)state;
    attngen_context *ctx = new_context("");
    attngen_program *p = lowered(ctx, "causal", 64);
    attngen_destroy(ctx);
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    assert_int_equal(attngen_program_info(p, &info), ATTNGEN_OK);
    assert_string_equal(info.name, "causal");
    attngen_program_free(p);
}

/* ---- emit */

static char *emit_text(attngen_context *ctx, const attngen_program *p, attngen_artefact what, const char *after) {
    Buf out = {0};
    assert_int_equal(attngen_emit(ctx, p, what, after, collect, &out), ATTNGEN_OK);
    assert_true(out.n > 0);
    return out.s;
}

static void test_emit(void **state) {
    attngen_context *ctx = *state;
    attngen_program *p = lowered(ctx, "softcap", 64);
    static const attngen_artefact text[] = {ATTNGEN_EMIT_SPEC, ATTNGEN_EMIT_MATH,     ATTNGEN_EMIT_TILE,        ATTNGEN_EMIT_SCHEDULE,
                                            ATTNGEN_EMIT_CU,   ATTNGEN_EMIT_TIMELINE, ATTNGEN_EMIT_TIMELINE_SVG};
    static const char *const holds[] = {"attention: softcap", "tanh", "mma", "mma_d64", "__global__", "A model", "<svg"};
    for (int i = 0; i < LEN(text); i++) {
        char *s = emit_text(ctx, p, text[i], NULL);
        assert_non_null(strstr(s, holds[i]));
        free(s);
    }
    attngen_program_free(p);
}

static void test_emit_after(void **state) {
    attngen_context *ctx = *state;
    attngen_program *p = lowered(ctx, "causal", 64);
    char *simple = emit_text(ctx, p, ATTNGEN_EMIT_MATH, "simplify"), *online = emit_text(ctx, p, ATTNGEN_EMIT_MATH, "online");
    char *last = emit_text(ctx, p, ATTNGEN_EMIT_MATH, NULL), *tile = emit_text(ctx, p, ATTNGEN_EMIT_TILE, "tile");
    char *placed = emit_text(ctx, p, ATTNGEN_EMIT_TILE, "place"), *end = emit_text(ctx, p, ATTNGEN_EMIT_TILE, NULL);
    assert_string_not_equal(simple, online);
    assert_string_equal(online, last);
    assert_string_not_equal(tile, placed);
    assert_string_equal(placed, end);
    free(simple), free(online), free(last), free(tile), free(placed), free(end);
    attngen_program_free(p);
}

static void test_emit_refuses(void **state) {
    attngen_context *ctx = *state;
    attngen_program *p = lowered(ctx, "causal", 64);
    static const struct {
        attngen_artefact what;
        const char *after;
        attngen_sink sink;
        attngen_status status;
        const char *message;
    } row[] = {
        {ATTNGEN_EMIT_CU, "tile", collect, ATTNGEN_E_INVALID_ARG, "after_pass is for the Math IR and the Tile IR only"},
        {ATTNGEN_EMIT_MATH, "simplfy", collect, ATTNGEN_E_INVALID_ARG, "there is no pass `simplfy` (did you mean `simplify`?)"},
        {ATTNGEN_EMIT_MATH, "tile", collect, ATTNGEN_E_INVALID_ARG, "pass `tile` works on the Tile IR, not on the Math IR"},
        {ATTNGEN_EMIT_TILE, "online", collect, ATTNGEN_E_INVALID_ARG, "pass `online` works on the Math IR, not on the Tile IR"},
        {ATTNGEN_EMIT_TIMELINE, "place", collect, ATTNGEN_E_INVALID_ARG, "after_pass is for the Math IR and the Tile IR only"},
        {(attngen_artefact)99, NULL, collect, ATTNGEN_E_INVALID_ARG, "there is no artefact 99"},
        {ATTNGEN_EMIT_CU, NULL, NULL, ATTNGEN_E_INVALID_ARG, "sink is NULL"},
        {ATTNGEN_EMIT_CU, NULL, refuse, ATTNGEN_E_IO, "the output could not be written"},
    };
    for (int i = 0; i < LEN(row); i++) {
        Buf out = {0};
        assert_int_equal(attngen_emit(ctx, p, row[i].what, row[i].after, row[i].sink, &out), row[i].status);
        assert_string_equal(attngen_errmsg(ctx), row[i].message);
        ag_buf_free(&out);
    }
    attngen_program_free(p);
}

/* ---- compile */

static void test_no_nvrtc(void **state) {
    (void)state;
    attngen_context *ctx;
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    o.arch = "sm_80";
    o.cache_dir = "";
    o.nvrtc = "/nowhere";
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    attngen_program *p;
    attngen_source spec = spec_named("causal");
    assert_int_equal(attngen_compile(ctx, &p, &spec, NULL, NULL, 0), ATTNGEN_E_NO_NVRTC);
    assert_null(p);
    assert_non_null(strstr(attngen_errmsg(ctx), "/nowhere"));
    attngen_destroy(ctx);
}

/* From NVRTC, from memory, from disk. */
static void test_cache(void **state) {
    (void)state;
    char dir[] = "/tmp/attngen-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    attngen_source spec = spec_named("causal");
    const attngen_dim dims[] = {{"D", 64}};
    attngen_program *a, *b, *c;
    attngen_context *ctx = new_context(dir);
    attngen_status s = attngen_compile(ctx, &a, &spec, NULL, dims, 1);
    if (s == ATTNGEN_E_NO_NVRTC) {
        attngen_destroy(ctx);
        rmdir(dir);
        skip();
    }
    if (s != ATTNGEN_OK) print_error("%s\n", attngen_errmsg(ctx));
    assert_int_equal(s, ATTNGEN_OK);
    assert_int_equal(attngen_compile(ctx, &b, &spec, NULL, dims, 1), ATTNGEN_OK);
    assert_ptr_equal(a, b);
    attngen_info made = {.version = 1}, found = {.version = 1};
    attngen_program_info(a, &made);
    assert_int_equal(made.from_disk_cache, 0);
    assert_true(made.registers > 0);
    assert_int_equal(made.spill_bytes, 0);
    Buf first = {0}, second = {0};
    assert_int_equal(attngen_emit(ctx, a, ATTNGEN_EMIT_CUBIN, NULL, collect, &first), ATTNGEN_OK);
    attngen_program_free(a);
    attngen_program_free(b);
    attngen_destroy(ctx);

    ctx = new_context(dir);
    assert_int_equal(attngen_compile(ctx, &c, &spec, NULL, dims, 1), ATTNGEN_OK);
    attngen_program_info(c, &found);
    assert_int_equal(found.from_disk_cache, 1);
    assert_int_equal(found.registers, made.registers);
    assert_int_equal(attngen_emit(ctx, c, ATTNGEN_EMIT_CUBIN, NULL, collect, &second), ATTNGEN_OK);
    assert_int_equal(first.n, second.n);
    assert_memory_equal(first.s, second.s, first.n);
    size_t removed = 0;
    assert_int_equal(attngen_cache_clear(ctx, &removed), ATTNGEN_OK);
    assert_int_equal(removed, 1);
    attngen_program_free(c);
    attngen_destroy(ctx);
    ag_buf_free(&first);
    ag_buf_free(&second);
    rmdir(dir);
}

/* Spills are the business of whoever writes the schedule: a warning.  (For a shipped schedule they are an error.) */
static void test_spills_warn(void **state) {
    attngen_context *ctx = *state;
    static const char tight[] = "schema: attngen.schedule/1\nname: tight\ntarget: {arch: [sm_90]}\napplies_to: {head_dim: {min: 1, max: 64}}\n"
                                "tile: {m: 128, n: 32}\nroles: {warps: 4}\ngrid: {ctas_per_sm: 5}\n";
    attngen_source spec = spec_named("causal"), schedule = {"tight.yaml", tight, sizeof tight - 1};
    const attngen_dim dims[] = {{"D", 64}};
    attngen_program *p;
    warned[0] = 0;
    attngen_status s = attngen_compile(ctx, &p, &spec, &schedule, dims, 1);
    if (s == ATTNGEN_E_NO_NVRTC) skip();
    if (s != ATTNGEN_OK) print_error("%s\n", attngen_errmsg(ctx));
    assert_int_equal(s, ATTNGEN_OK);
    attngen_info info = {.version = 1};
    attngen_program_info(p, &info);
    assert_true(info.spill_bytes > 0);
    char expected[256];
    snprintf(expected, sizeof expected,
             "causal under tight spills %d bytes of registers per thread on sm_90 (%d registers are used): it will be slow", info.spill_bytes,
             info.registers);
    assert_string_equal(warned, expected);
    attngen_program_free(p);
}

/* ---- bind */

static void test_bind_refuses(void **state) {
    attngen_context *ctx = *state;
    attngen_program *p = lowered(ctx, "gqa", 64);
    attngen_call *call = (attngen_call *)1;
    static const attngen_shape bad[] = {
        {-1, 8, 1, 1, 1, 0}, {1, 8, 3, 1, 1, 0}, {1, 8, 8, 1, 1, 0}, {1, 8, 1, INT64_MAX, 1, ATTNGEN_ALIGN_END}, {1, 8, 1, 1, 1, INT64_MAX}};
    for (int i = 0; i < LEN(bad); i++) {
        assert_int_not_equal(attngen_bind(ctx, &call, p, &bad[i]), ATTNGEN_OK);
        assert_null(call);
        assert_true(attngen_errmsg(ctx)[0] != 0);
    }
    assert_int_equal(attngen_bind(ctx, &call, p, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "shape is NULL");
    assert_int_equal(attngen_bind(ctx, &call, NULL, &bad[0]), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "program is NULL");
    assert_int_equal(attngen_bind(ctx, NULL, p, &bad[0]), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "out is NULL");
    attngen_program_free(p);
}

static size_t workspace_of(attngen_context *ctx, const char *spec, double D) {
    attngen_program *p = lowered(ctx, spec, D);
    attngen_call *call;
    const attngen_shape shape = {2, 4, 2, 300, 300, ATTNGEN_ALIGN_END};
    assert_int_equal(attngen_bind(ctx, &call, p, &shape), ATTNGEN_OK);
    size_t n = attngen_workspace(call);
    attngen_call_free(call);
    attngen_program_free(p);
    return n;
}

/* A counter where tiles differ in length. */
static void test_workspace(void **state) {
    attngen_context *ctx = new_context_for("sm_90a", "", NULL);
    assert_int_equal(workspace_of(ctx, "causal", 128), 4);
    assert_int_equal(workspace_of(ctx, "dense", 128), 0);
    assert_int_equal(workspace_of(*state, "causal", 128), 0);
    assert_int_equal(attngen_workspace(NULL), 0);
    attngen_destroy(ctx);
}

/* What attngen_bind makes of a program for a launch of so many queries: the name of the schedule. */
static const char *bound_schedule(attngen_context *ctx, const attngen_program *p, int64_t queries) {
    static char name[64];
    attngen_call *call;
    attngen_info info = {.version = 1};
    const attngen_shape shape = {1, 1, 1, queries, queries, ATTNGEN_ALIGN_END};
    warned[0] = 0;
    assert_int_equal(attngen_bind(ctx, &call, p, &shape), ATTNGEN_OK);
    assert_int_equal(attngen_program_info(attngen_call_program(call), &info), ATTNGEN_OK);
    snprintf(name, sizeof name, "%s", info.schedule);
    attngen_call_free(call);
    return name;
}

/* Lowered programs are refined as well; one that cannot be compiled again stays what it is. */
static void test_bind_takes_what_there_is(void **state) {
    (void)state;
    attngen_context *ctx = new_context_for("sm_90a", "", "/nowhere");
    attngen_program *p = lowered(ctx, "causal", 64);
    assert_string_equal(bound_schedule(ctx, p, 512), "wgmma_d64_short");
    p->image = calloc(4, 1); /* as if it were compiled */
    p->size = 4;
    assert_string_equal(bound_schedule(ctx, p, 2049), "wgmma_d64");
    assert_string_equal(warned, "");
    assert_string_equal(bound_schedule(ctx, p, 512), "wgmma_d64");
    assert_string_equal(warned, "causal is not compiled under wgmma_d64_short, which fits 512 queries best: wgmma_d64 runs");
    attngen_context *other = new_context("");
    assert_string_equal(bound_schedule(other, p, 512), "wgmma_d64");
    assert_string_equal(warned, "");
    attngen_destroy(other);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

/* Does the call that attngen_bind makes for so many queries visit block lists block by block? */
static bool bound_by_block(attngen_context *ctx, const attngen_program *p, int64_t queries, int64_t heads) {
    attngen_call *call;
    const attngen_shape shape = {1, heads, 1, queries, 4096, ATTNGEN_ALIGN_END};
    warned[0] = 0;
    assert_int_equal(attngen_bind(ctx, &call, p, &shape), ATTNGEN_OK);
    Buf cu = {0};
    assert_int_equal(attngen_emit(ctx, attngen_call_program(call), ATTNGEN_EMIT_CU, NULL, collect, &cu), ATTNGEN_OK);
    bool merges = strstr(cu.s, " nsa_merge1(") != NULL;
    ag_buf_free(&cu);
    attngen_call_free(call);
    return merges;
}

/* Block lists: few queries go by single ones, unless that cannot be had. */
static void test_bind_few_queries(void **state) {
    (void)state;
    attngen_context *ctx = new_context_for("sm_90", "", "/nowhere");
    attngen_program *p = lowered(ctx, "nsa", 64);
    assert_true(bound_by_block(ctx, p, 1024, 1));
    assert_false(bound_by_block(ctx, p, 1023, 1));
    assert_true(bound_by_block(ctx, p, 1024, 4));
    assert_false(bound_by_block(ctx, p, 1023, 4));
    assert_false(bound_by_block(ctx, p, 1024, 32));
    assert_string_equal(warned, "");
    p->image = calloc(4, 1); /* as if it were compiled */
    p->size = 4;
    assert_true(bound_by_block(ctx, p, 1023, 1));
    assert_string_equal(warned, "nsa is not compiled for few queries: it runs as it is");
    attngen_program_free(p);
    attngen_destroy(ctx);
}

static void test_bind_refines(void **state) {
    (void)state;
    attngen_context *ctx = new_context_for("sm_90a", "", NULL);
    attngen_source spec = spec_named("causal"), schedule;
    const attngen_dim dims[] = {{"D", 64}};
    attngen_program *p = lowered(ctx, "causal", 64), *given;
    p->image = calloc(4, 1);
    p->size = 4;
    const char *name = bound_schedule(ctx, p, 2048);
    if (strstr(attngen_errmsg(ctx), "NVRTC")) name = NULL;
    attngen_program_free(p);
    if (!name) attngen_destroy(ctx);
    if (!name) skip();
    assert_string_equal(name, "wgmma_d64_short");
    assert_string_equal(warned, "");
    assert_int_equal(attngen_shipped_schedule(&schedule, "wgmma_d64_short"), ATTNGEN_OK);
    assert_int_equal(attngen_compile(ctx, &given, &spec, &schedule, dims, 1), ATTNGEN_OK); /* from memory; a schedule that was given stays */
    assert_string_equal(bound_schedule(ctx, given, 5000), "wgmma_d64_short");
    attngen_program_free(given);
    attngen_destroy(ctx);
}

static void test_launch_of_lowered(void **state) {
    attngen_context *ctx = *state;
    attngen_program *p = lowered(ctx, "causal", 64);
    attngen_call *call;
    assert_int_equal(attngen_bind(ctx, &call, p, &(attngen_shape){1, 2, 1, 8, 8, ATTNGEN_ALIGN_END}), ATTNGEN_OK);
    assert_int_equal(attngen_workspace(call), 0);
    assert_int_equal(attngen_launch(call, NULL, 0, NULL, 0, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(), "the program was made by attngen_lower: it has no kernel to launch");
    assert_int_equal(attngen_launch(NULL, NULL, 0, NULL, 0, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(), "call is NULL");
    attngen_call_free(call);
    attngen_program_free(p);
}

/* ---- on the host: 1 x 4 heads on 2, D 40, 5 queries, 9 keys */

enum { HQ = 4, HKV = 2, SQ = 5, SK = 9, D = 40 };

typedef struct Tensors {
    uint16_t q[HQ * SQ * D], k[HKV * SK * D], v[HKV * SK * D], o[HQ * SQ * D];
    float lse[HQ * SQ];
    attngen_arg arg[5];
} Tensors;

static void fill(uint16_t *x, int n, unsigned seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = npy_to_bf16((float)(seed >> 8) / 8388608.0f - 1.0f);
    }
}

static Tensors *new_tensors(void) {
    Tensors *t = calloc(1, sizeof *t);
    fill(t->q, LEN(t->q), 1);
    fill(t->k, LEN(t->k), 2);
    fill(t->v, LEN(t->v), 3);
    memset(t->o, 0xFF, sizeof t->o);
    memset(t->lse, 0xFF, sizeof t->lse);
    t->arg[0] = (attngen_arg){"q", t->q, {HQ * SQ * D, SQ * D, D, 1}, 0};
    t->arg[1] = (attngen_arg){"k", t->k, {HKV * SK * D, SK * D, D, 1}, 0};
    t->arg[2] = (attngen_arg){"v", t->v, {HKV * SK * D, SK * D, D, 1}, 0};
    t->arg[3] = (attngen_arg){"o", t->o, {HQ * SQ * D, SQ * D, D, 1}, 0};
    t->arg[4] = (attngen_arg){"lse", t->lse, {HQ * SQ, SQ, 1, 0}, 0};
    return t;
}

static attngen_call *bound(attngen_context *ctx, const char *spec) {
    attngen_program *p = lowered(ctx, spec, D);
    attngen_call *call;
    assert_int_equal(attngen_bind(ctx, &call, p, &(attngen_shape){1, HQ, HKV, SQ, SK, ATTNGEN_ALIGN_END}), ATTNGEN_OK);
    attngen_program_free(p); /* the call holds its own reference */
    return call;
}

/* Causal attention of one row in double, from the definition. */
static void expected_row(const Tensors *t, int h, int q, double *o, double *lse) {
    double p[SK], sum = 0;
    int g = h / (HQ / HKV), last = q + SK - SQ;
    for (int k = 0; k <= last; k++) {
        double s = 0;
        for (int d = 0; d < D; d++) s += (double)npy_from_bf16(t->q[(h * SQ + q) * D + d]) * (double)npy_from_bf16(t->k[(g * SK + k) * D + d]);
        sum += p[k] = exp(s / sqrt(D));
    }
    for (int d = 0; d < D; d++) {
        o[d] = 0;
        for (int k = 0; k <= last; k++) o[d] += p[k] / sum * (double)npy_from_bf16(t->v[(g * SK + k) * D + d]);
    }
    *lse = log(sum);
}

static void assert_attention(const Tensors *t, double o_error, double lse_error) {
    for (int h = 0; h < HQ; h++)
        for (int q = 0; q < SQ; q++) {
            double o[D], lse;
            expected_row(t, h, q, o, &lse);
            assert_true(fabs((double)t->lse[h * SQ + q] - lse) <= lse_error);
            for (int d = 0; d < D; d++) assert_true(fabs((double)npy_from_bf16(t->o[(h * SQ + q) * D + d]) - o[d]) <= o_error);
        }
}

static void test_reference(void **state) {
    attngen_context *ctx = *state;
    attngen_call *call = bound(ctx, "causal");
    Tensors *t = new_tensors();
    assert_int_equal(attngen_reference(ctx, call, t->arg, 5), ATTNGEN_OK);
    assert_attention(t, 1.0 / 512, 1e-6);
    free(t);
    attngen_call_free(call);
}

static void test_simulate(void **state) {
    attngen_context *ctx = *state;
    attngen_call *call = bound(ctx, "causal");
    Tensors *t = new_tensors();
    attngen_status s = attngen_simulate(ctx, call, t->arg, 5);
    if (s != ATTNGEN_OK) print_error("%s\n", attngen_errmsg(ctx));
    assert_int_equal(s, ATTNGEN_OK);
    assert_attention(t, 1.0 / 128, 1e-3);
    free(t);
    attngen_call_free(call);
}

/* Scalars reach both: with scale -> 0 the weights are equal, and the softmax denominator is the count of keys. */
static void test_scalars(void **state) {
    attngen_context *ctx = *state;
    attngen_call *call = bound(ctx, "causal");
    Tensors *t = new_tensors();
    attngen_arg arg[6];
    memcpy(arg, t->arg, sizeof t->arg);
    arg[5] = (attngen_arg){.name = "scale", .scalar = 1e-20};
    for (int i = 0; i < 2; i++) {
        memset(t->lse, 0xFF, sizeof t->lse);
        assert_int_equal((i ? attngen_simulate : attngen_reference)(ctx, call, arg, 6), ATTNGEN_OK);
        for (int q = 0; q < SQ; q++) assert_true(fabs((double)t->lse[q] - log(q + SK - SQ + 1)) < 1e-5);
    }
    arg[5].scalar = -1;
    assert_int_equal(attngen_reference(ctx, call, arg, 6), ATTNGEN_E_INVALID_ARG);
    assert_non_null(strstr(attngen_errmsg(ctx), "scale"));
    free(t);
    attngen_call_free(call);
}

static void test_missing_argument(void **state) {
    attngen_context *ctx = *state;
    attngen_call *call = bound(ctx, "causal");
    Tensors *t = new_tensors();
    char text[128];
    assert_int_equal(attngen_simulate(ctx, call, t->arg, 3), ATTNGEN_E_INVALID_ARG);
    assert_true(attngen_errmsg(ctx)[0] != 0);
    assert_int_equal(attngen_simulate(ctx, call, t->arg, 4), ATTNGEN_OK); /* lse is optional */
    assert_int_equal(attngen_explain(call, t->arg, 3, text, sizeof text), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_explain(NULL, t->arg, 3, text, sizeof text), ATTNGEN_E_INVALID_ARG);
    free(t);
    attngen_call_free(call);
}

static void test_explain(void **state) {
    attngen_context *ctx = *state;
    attngen_call *call = bound(ctx, "causal");
    Tensors *t = new_tensors();
    char text[256];
    t->arg[0].stride[3] = 2;
    assert_int_equal(attngen_explain(call, t->arg, 5, text, sizeof text), ATTNGEN_OK);
    assert_memory_equal(text, "q: element-wise", 15);
    assert_int_equal(attngen_explain(call, t->arg, 5, NULL, 0), ATTNGEN_OK);
    free(t);
    attngen_call_free(call);
}

static void test_no_work(void **state) {
    attngen_context *ctx = *state;
    attngen_program *p = lowered(ctx, "causal", D);
    static const attngen_shape none[] = {
        {0, HQ, HKV, SQ, SK, ATTNGEN_ALIGN_END}, {1, 0, 0, SQ, SK, ATTNGEN_ALIGN_END}, {1, HQ, HKV, 0, SK, ATTNGEN_ALIGN_END}};
    Tensors *t = new_tensors();
    for (int i = 0; i < LEN(none); i++) {
        attngen_call *call;
        assert_int_equal(attngen_bind(ctx, &call, p, &none[i]), ATTNGEN_OK);
        assert_int_equal(attngen_reference(ctx, call, t->arg, 5), ATTNGEN_OK);
        assert_int_equal(attngen_simulate(ctx, call, t->arg, 5), ATTNGEN_OK);
        assert_int_equal(t->o[0], 0xFFFF);
        attngen_call_free(call);
    }
    /* No key: zeros and -inf. */
    attngen_call *call;
    assert_int_equal(attngen_bind(ctx, &call, p, &(attngen_shape){1, HQ, HKV, SQ, 0, 0}), ATTNGEN_OK);
    assert_int_equal(attngen_simulate(ctx, call, t->arg, 5), ATTNGEN_OK);
    for (int i = 0; i < LEN(t->o); i++) assert_int_equal(t->o[i] & 0x7FFF, 0);
    for (int i = 0; i < LEN(t->lse); i++) assert_true(isinf(t->lse[i]) && t->lse[i] < 0);
    attngen_call_free(call);
    attngen_program_free(p);
    free(t);
}

/* ---- threads: one call, a context each for the diagnostics */

typedef struct Worker {
    const attngen_call *call;
    attngen_status status;
    Tensors *t;
} Worker;

static void *work(void *payload) {
    Worker *w = payload;
    attngen_context *ctx = new_context("");
    w->status = attngen_simulate(ctx, w->call, w->t->arg, 5);
    attngen_destroy(ctx);
    return NULL;
}

static void test_threads_share_a_call(void **state) {
    attngen_call *call = bound(*state, "causal");
    pthread_t thread[2];
    Worker w[2];
    for (int i = 0; i < 2; i++) {
        w[i] = (Worker){call, ATTNGEN_E_INTERNAL, new_tensors()};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) assert_int_equal(w[i].status, ATTNGEN_OK);
    assert_memory_equal(w[0].t->o, w[1].t->o, sizeof w[0].t->o);
    assert_memory_equal(w[0].t->lse, w[1].t->lse, sizeof w[0].t->lse);
    for (int i = 0; i < 2; i++) free(w[i].t);
    attngen_call_free(call);
}

/* ---- doctor */

static void test_doctor(void **state) {
    Buf out = {0};
    assert_int_equal(attngen_doctor(*state, collect, &out), ATTNGEN_OK);
    assert_memory_equal(out.s, "attngen " ATTNGEN_VERSION_STRING "\narch: sm_90, given\nNVRTC: ",
                        sizeof "attngen " ATTNGEN_VERSION_STRING "\narch: sm_90, given\nNVRTC: " - 1);
    assert_non_null(strstr(out.s, "\ndriver: "));
    assert_non_null(strstr(out.s, "\ncache: none\n"));
    ag_buf_free(&out);
    assert_int_equal(attngen_doctor(*state, refuse, NULL), ATTNGEN_E_IO);
}

#define WITH_CONTEXT(f) cmocka_unit_test_setup_teardown(f, fresh_context, drop_context)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_null_handles),
        WITH_CONTEXT(test_lower_refuses),
        WITH_CONTEXT(test_spec_error_is_whole),
        WITH_CONTEXT(test_same_inputs_same_program),
        WITH_CONTEXT(test_many_programs),
        WITH_CONTEXT(test_info),
        cmocka_unit_test(test_program_outlives_context),
        WITH_CONTEXT(test_emit),
        WITH_CONTEXT(test_emit_after),
        WITH_CONTEXT(test_emit_refuses),
        cmocka_unit_test(test_no_nvrtc),
        cmocka_unit_test(test_cache),
        WITH_CONTEXT(test_spills_warn),
        WITH_CONTEXT(test_bind_refuses),
        WITH_CONTEXT(test_workspace),
        cmocka_unit_test(test_bind_takes_what_there_is),
        cmocka_unit_test(test_bind_few_queries),
        cmocka_unit_test(test_bind_refines),
        WITH_CONTEXT(test_launch_of_lowered),
        WITH_CONTEXT(test_reference),
        WITH_CONTEXT(test_simulate),
        WITH_CONTEXT(test_scalars),
        WITH_CONTEXT(test_missing_argument),
        WITH_CONTEXT(test_explain),
        WITH_CONTEXT(test_no_work),
        WITH_CONTEXT(test_threads_share_a_call),
        WITH_CONTEXT(test_doctor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
