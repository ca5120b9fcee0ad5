/* test_quick.c: a quick start: which schedule it takes, when the other program takes over, and what a mask, a failure and the end of the process make of it.
 * Over a false driver that counts launches; where a real one is, what would launch over it is left out. */
#include "with_archs.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"
#include "library_driver.h"
#include "with_folder.h"

static void test_choice(void **state) {
    (void)state;
    static const struct {
        const char *spec, *arch;
        int D;
        const char *name;
    } row[] = {
        {"attention: a\nmask: k <= q\n", "sm_90a", 64, "wgmma_d128_quick"},
        {"attention: a\n", "sm_90a", 128, "wgmma_d128_quick"},
        {"attention: a\nscore: s + k\n", "sm_90a", 192, "wgmma_d192_fast_compile"},
        {"attention: a\n", "sm_90a", 256, "wgmma_d256_fast_compile"},
        {"attention: a\ninputs: {x: {dtype: [b, h, q, k]}}\nscore: s + x[b, h, q, k]\n", "sm_90a", 64, "wgmma_d128_bias_quick"},
        {"attention: a\ninputs: {x: {f32: [h, 9]}}\nscore: s + x[h, q - k]\n", "sm_90a", 128, "wgmma_d128_elements_quick"},
        {"attention: a\nscore: s\nweigh: s\n", "sm_90a", 16, "wgmma_d128_elements_quick"},
        {"attention: a\ninputs: {x: {f32: [h, 9]}}\nscore: s + x[h, q - k]\n", "sm_90a", 192, "wgmma_d192_elements"}, /* the default */
        {"attention: a\nmask: k <= q\n", "sm_90", 128, "mma_d128"},
        {"attention: a\nmask: k <= q\n", "sm_80", 64, "mma_d64"},
    };
    for (int i = 0; i < LEN(row); i++) {
        Compilation *c = compiled(row[i].spec, row[i].arch, NULL, row[i].D, 0);
        assert_string_equal(ag_schedule_quick(c->attention, ag_target_find(row[i].arch)), row[i].name);
        assert_string_not_equal(c->schedule_name, "wgmma_d128_quick");
        ag_compilation_free(c);
    }
}

/* ---- programs */

static attngen_context *context_with(int quick_start, const char *nvrtc) {
    attngen_context *ctx;
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    o.arch = "sm_90a", o.cache_dir = root, o.quick_start = quick_start, o.nvrtc = nvrtc;
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    return ctx;
}

/* A shipped spec with D 64, or a text with D 128. */
static attngen_program *compile(attngen_context *ctx, const char *name, const char *schedule) {
    attngen_program *p = NULL;
    attngen_source spec, how;
    if (strchr(name, '\n'))
        spec = (attngen_source){"spec.yaml", name, strlen(name)};
    else
        assert_int_equal(attngen_shipped_spec(&spec, name), ATTNGEN_OK);
    if (schedule) assert_int_equal(attngen_shipped_schedule(&how, schedule), ATTNGEN_OK);
    attngen_status s = attngen_compile(ctx, &p, &spec, schedule ? &how : NULL, &(attngen_dim){"D", strchr(name, '\n') ? 192 : 64}, 1);
    if (s == ATTNGEN_E_NO_NVRTC) {
        attngen_destroy(ctx);
        skip();
    }
    if (s != ATTNGEN_OK) fail_msg("%s", attngen_errmsg(ctx));
    return p;
}

static const char *schedule_of(const attngen_program *p) {
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    assert_int_equal(attngen_program_info(p, &info), ATTNGEN_OK);
    return info.schedule;
}

static bool on_disk(const attngen_program *p) {
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    assert_int_equal(attngen_program_info(p, &info), ATTNGEN_OK);
    return info.from_disk_cache;
}

static void test_takes_over(void **state) {
    (void)state;
    attngen_context *ctx = context_with(1, NULL);
    attngen_program *p = compile(ctx, "causal", NULL), *again, *named;
    assert_string_equal(schedule_of(p), "wgmma_d128_quick");
    assert_non_null(p->quick);
    named = compile(ctx, "causal", "wgmma_d128_quick"); /* it is on disk, and nothing is compiled behind it */
    assert_true(on_disk(named));
    assert_null(named->quick);
    assert_int_equal(attngen_wait(ctx, p), ATTNGEN_OK);
    assert_int_equal(attngen_wait(ctx, p), ATTNGEN_OK);
    assert_int_equal(attngen_wait(ctx, named), ATTNGEN_OK);
    again = compile(ctx, "causal", NULL);
    assert_ptr_equal(again, ag_quick_next(p));
    assert_string_equal(schedule_of(again), "wgmma_d64");
    assert_null(again->quick);
    attngen_program_free(again);
    attngen_program_free(named);
    attngen_program_free(p);
    attngen_destroy(ctx);
    ctx = context_with(1, NULL); /* another process would find it so */
    p = compile(ctx, "causal", NULL);
    assert_string_equal(schedule_of(p), "wgmma_d64");
    assert_true(on_disk(p));
    assert_null(p->quick);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

/* The kernel that compiles quickly is the one that fits; or it is named; or nobody asked. */
static void test_nothing_behind(void **state) {
    (void)state;
    static const struct {
        const char *spec, *schedule;
        int quick_start;
    } row[] = {{"parallax", NULL, 1}, {"causal", "wgmma_d64_exact", 1}, {"causal", NULL, 0}};
    for (int i = 0; i < LEN(row); i++) {
        attngen_context *ctx = context_with(row[i].quick_start, NULL);
        attngen_program *p = compile(ctx, row[i].spec, row[i].schedule);
        assert_null(p->quick);
        assert_null(strstr(schedule_of(p), "quick"));
        attngen_program_free(p);
        attngen_destroy(ctx);
    }
}

/* ---- launches: library 0 is of the first program, 1 of the one that takes over */

static int loads_next;
static int number_of_load(void) { return loads_next; }

static _Alignas(256) char space[8192];
static const attngen_shape shape = {2, 4, 2, 8, 16, ATTNGEN_ALIGN_END};

/* A call of p, which has been waited for. */
typedef struct Fixture {
    Driver *driver;
    attngen_context *ctx;
    attngen_program *p;
    attngen_call *call;
} Fixture;

static Fixture set_up(const char *spec) {
    attngen_context *ctx = context_with(1, NULL);
    if (attngen_has_device(ctx, NULL)) {
        attngen_destroy(ctx);
        skip();
    }
    Fixture f = {library_driver(), ctx, compile(ctx, spec, NULL), NULL};
    assert_int_equal(attngen_wait(ctx, f.p), ATTNGEN_OK);
    assert_int_equal(attngen_bind(ctx, &f.call, f.p, &shape), ATTNGEN_OK);
    assert_ptr_equal(f.call->program, f.p); /* not another schedule for few queries */
    assert_int_equal(ag_program_load(f.p, f.driver, 0, &f.call->loaded, &err), ATTNGEN_OK);
    return f;
}

static void load_next(Fixture *f) {
    Loaded *l;
    loads_next = 1;
    assert_int_equal(ag_program_load(ag_quick_next(f->p), f->driver, 0, &l, &err), ATTNGEN_OK);
}

static void tear_down(Fixture *f) {
    attngen_call_free(f->call);
    attngen_program_free(f->p);
    attngen_destroy(f->ctx);
    free(f->driver);
}

static void test_launches(void **state) {
    (void)state;
    Fixture f = set_up("causal");
    Args x = contiguous(64);
    assert_int_equal(attngen_launch(f.call, x.a, 4, space, sizeof space, NULL), ATTNGEN_OK);
    assert_launches(1, 0);
    load_next(&f);
    assert_int_equal(attngen_launch(f.call, x.a, 4, space, attngen_workspace(f.call), NULL), ATTNGEN_OK);
    assert_string_equal(attngen_launch_errmsg(), "");
    assert_launches(1, 1);
    f.call->workspace = 0; /* as of a call whose next program turned out to need more */
    assert_int_equal(attngen_launch(f.call, x.a, 4, space, sizeof space, NULL), ATTNGEN_OK);
    assert_launches(2, 1);
    assert_string_equal(attngen_launch_errmsg(), "what was compiled behind wgmma_d128_quick does not take this call: wgmma_d128_quick runs");
    tear_down(&f);
}

/* What a call needs is what either needs, and a map stays with the program that made it. */
static void test_mask(void **state) {
    (void)state;
    Fixture f = set_up("document");
    const attngen_program *next = ag_quick_next(f.p);
    size_t own = (size_t)ag_workspace_bytes(&f.p->lowered->meta, f.call->size),
           later = (size_t)ag_workspace_bytes(&next->lowered->meta, f.call->size);
    assert_int_equal(attngen_workspace(f.call), own > later ? own : later);
    Args x = contiguous(64);
    x.a[4] = (attngen_arg){.name = "doc", .data = memory, .stride = {16, 1}};
    attngen_mask *early, *late;
    assert_int_equal(attngen_mask_make(&early, f.call, x.a, 5, space, 4096, NULL), ATTNGEN_OK);
    assert_launches(1, 0);
    load_next(&f);
    assert_int_equal(attngen_mask_launch(early, x.a, 4, NULL), ATTNGEN_OK);
    assert_launches(2, 0);
    assert_int_equal(attngen_mask_make(&late, f.call, x.a, 5, space + 4096, 4096, NULL), ATTNGEN_OK);
    assert_int_equal(attngen_mask_launch(late, x.a, 4, NULL), ATTNGEN_OK);
    assert_launches(2, 2);
    assert_int_equal(attngen_mask_launch(early, x.a, 4, NULL), ATTNGEN_OK);
    assert_launches(3, 2);
    attngen_mask_free(early);
    attngen_mask_free(late);
    tear_down(&f);
}

/* What takes over spilled under the schedule that fits best and has narrower tiles, so a larger map: a call bound then has room for it. */
static void test_settled_workspace(void **state) {
    (void)state;
    static const char text[] = "attention: t\ninputs: {doc: {i32: [b, k]}, r1: {f32: [h]}, r2: {f32: [h]}}\n"
                               "mask: k <= q and doc[b, q] == doc[b, k]\nscore: s - r1[h] * max(q - k, 0) ** r2[h]\n";
    attngen_context *ctx = context_with(1, NULL);
    attngen_program *p = compile(ctx, text, NULL);
    const attngen_shape many = {1, 1, 1, 65536, 65536, 0};
    attngen_call *call;
    assert_int_equal(attngen_wait(ctx, p), ATTNGEN_OK);
    assert_int_equal(attngen_bind(ctx, &call, p, &many), ATTNGEN_OK);
    const attngen_program *next = ag_quick_next(p);
    assert_non_null(next);
    int64_t meant = ag_workspace_bytes(ag_quick_meta(p), call->size), needed = ag_workspace_bytes(&next->lowered->meta, call->size);
    assert_true(meant < needed);
    assert_int_equal(attngen_workspace(call), needed);
    attngen_call_free(call);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

/* ---- what can go wrong */

/* libattngen.so beside the folder of this program. */
static void *open_library(void) {
    char path[4096 + 32];
    ssize_t n = readlink("/proc/self/exe", path, 4096);
    assert_true(n > 0);
    path[n] = 0;
    for (int up = 0; up < 2; up++) *strrchr(path, '/') = 0;
    strcat(path, "/libattngen.so.0");
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Whoever closes the library while a thread of it compiles is not kept waiting for what the loader would have to give. */
static void test_dlclose(void **state) {
    (void)state;
    attngen_context *own = context_with(0, NULL);
    attngen_program_free(compile(own, "dense", "wgmma_d64_exact")); /* skips where there is no NVRTC */
    attngen_destroy(own);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        void *handle = open_library();
        if (!handle) _exit(1);
        __typeof__(&attngen_create) create = (__typeof__(&attngen_create))dlsym(handle, "attngen_create");
        __typeof__(&attngen_compile) build = (__typeof__(&attngen_compile))dlsym(handle, "attngen_compile");
        attngen_options o = ATTNGEN_OPTIONS_INIT;
        attngen_context *ctx;
        attngen_program *p;
        attngen_source spec;
        o.arch = "sm_90a", o.cache_dir = "", o.quick_start = 1;
        if (!create || !build || create(&ctx, &o) != ATTNGEN_OK || attngen_shipped_spec(&spec, "causal") != ATTNGEN_OK) _exit(2);
        if (build(ctx, &p, &spec, NULL, &(attngen_dim){"D", 64}, 1) != ATTNGEN_OK) _exit(3);
        dlclose(handle);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

static attngen_program *lowered(attngen_context *ctx, const char *schedule) {
    attngen_program *p;
    attngen_source spec, how;
    assert_int_equal(attngen_shipped_spec(&spec, "causal"), ATTNGEN_OK);
    if (schedule) assert_int_equal(attngen_shipped_schedule(&how, schedule), ATTNGEN_OK);
    assert_int_equal(attngen_lower(ctx, &p, &spec, schedule ? &how : NULL, &(attngen_dim){"D", 64}, 1), ATTNGEN_OK);
    return p;
}

static void test_failure(void **state) {
    (void)state;
    attngen_context *ctx = context_with(0, NULL);
    attngen_program *p = lowered(ctx, "wgmma_d128_quick"), *next = lowered(ctx, NULL);
    attngen_call *call;
    char note[1024];
    Args x = contiguous(64);
    free(p->origin.nvrtc), free(p->origin.cache_dir);
    p->origin = (Origin){.cache_dir = strdup(""), .nvrtc = strdup("/nowhere")};
    assert_true(ag_quick_begin(p, next, 0, false));
    assert_int_equal(attngen_wait(ctx, p), ATTNGEN_E_NO_NVRTC);
    assert_non_null(strstr(attngen_errmsg(ctx), "/nowhere"));
    assert_null(ag_quick_next(p));
    assert_int_equal(attngen_bind(ctx, &call, p, &shape), ATTNGEN_OK);
    assert_int_equal(attngen_explain(call, x.a, 4, note, sizeof note), ATTNGEN_OK);
    assert_ptr_equal(strstr(note, "wgmma_d64 cannot be had: "), note);
    assert_string_equal(note + strlen(note) - strlen(": wgmma_d128_quick runs"), ": wgmma_d128_quick runs");
    attngen_call_free(call);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

static void test_wrong_calls(void **state) {
    (void)state;
    attngen_context *ctx = context_with(0, NULL);
    assert_int_equal(attngen_wait(NULL, NULL), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_wait(ctx, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_errmsg(ctx), "program is NULL");
    attngen_destroy(ctx);
}

/* A process that ends at once ends well, and only when what it had begun is on disk. */
static void test_exit(void **state) {
    (void)state;
    static attngen_context *kept; /* of the child, which frees nothing */
    static attngen_program *program;
    attngen_program_free(compile(kept = context_with(0, NULL), "dense", "wgmma_d64_exact")); /* skips where there is no NVRTC */
    attngen_destroy(kept);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kept = context_with(1, NULL);
        program = compile(kept, "dense", NULL);
        exit(program->quick ? 0 : 3);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    attngen_context *ctx = context_with(1, NULL);
    attngen_program *p = compile(ctx, "dense", NULL);
    assert_string_equal(schedule_of(p), "wgmma_d64");
    assert_true(on_disk(p));
    attngen_program_free(p);
    attngen_destroy(ctx);
}

/* A fork has no such thread: it frees what it inherits without waiting for it. */
static void test_fork(void **state) {
    (void)state;
    attngen_context *ctx = context_with(1, NULL);
    attngen_program *p = compile(ctx, "causal", NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        if (attngen_wait(ctx, p) != ATTNGEN_E_UNSUPPORTED) _exit(1);
        attngen_program_free(p);
        attngen_destroy(ctx);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    assert_int_equal(attngen_wait(ctx, p), ATTNGEN_OK);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

static int start(void **state) {
    loads_next = 0;
    for (int i = 0; i < LIBRARIES; i++) launches[i] = 0;
    return reset_fake(state) || make_root(state);
}

static int finish(void **state) { return drop_fake(state) || remove_root(state); }

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, finish)
    const struct CMUnitTest tests[] = {
        TEST(test_choice),  TEST(test_takes_over),  TEST(test_nothing_behind), TEST(test_launches), TEST(test_mask),    TEST(test_settled_workspace),
        TEST(test_failure), TEST(test_wrong_calls), TEST(test_exit),           TEST(test_fork),     TEST(test_dlclose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
