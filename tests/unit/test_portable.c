/* The companion of a program with tensor maps: what it is taken for, what is said of it, how it is made.  Over a false driver that counts launches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api.h"
#include "library_driver.h"
#include "with_folder.h"

static atomic_int nloaded;
static int number_of_load(void) { return atomic_fetch_add(&nloaded, 1); }

/* ---- programs and calls: causal, D 64, B 2, Hq 4, Hkv 2, Sq 8, Sk 16 */

static attngen_context *context_for(const char *arch, const char *nvrtc) {
    attngen_context *ctx;
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    o.arch = arch, o.nvrtc = nvrtc, o.cache_dir = root;
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    return ctx;
}

static attngen_program *lowered(attngen_context *ctx) {
    attngen_program *p;
    attngen_source spec;
    const attngen_dim dims[] = {{"D", 64}};
    assert_int_equal(attngen_shipped_spec(&spec, "causal"), ATTNGEN_OK);
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, dims, 1), ATTNGEN_OK);
    return p;
}

static void give_image(attngen_program *p) {
    p->size = sizeof cubin;
    p->image = malloc(sizeof cubin);
    assert_non_null(p->image);
    memcpy(p->image, cubin, sizeof cubin);
}

typedef struct Fixture {
    Driver *driver;
    attngen_context *ctx;
    attngen_program *p;
    attngen_call *call;
} Fixture;

/* A call of a program for sm_90a that counts as compiled and is loaded as library 0.  The context may know its NVRTC. */
static Fixture set_up(attngen_context *ctx) {
    Fixture f = {library_driver(), ctx, NULL, NULL};
    const attngen_shape shape = {2, 4, 2, 8, 16, ATTNGEN_ALIGN_END};
    attngen_program *p = lowered(ctx);
    assert_int_equal(attngen_bind(f.ctx, &f.call, p, &shape), ATTNGEN_OK);
    attngen_program_free(p);
    f.p = ag_program_ref(f.call->program); /* under the schedule for few queries */
    give_image(f.p);
    assert_int_equal(ag_program_load(f.p, f.driver, 0, &f.call->loaded, &err), ATTNGEN_OK);
    return f;
}

/* ... with a companion that counts as compiled and is loaded as library 1. */
static Fixture set_up_both(void) {
    Fixture f = set_up(context_for("sm_90a", "/nowhere"));
    attngen_context *ctx = context_for("sm_90", "/nowhere");
    attngen_program *c = lowered(ctx);
    Loaded *l;
    give_image(c);
    assert_int_equal(ag_program_load(c, f.driver, 0, &l, &err), ATTNGEN_OK);
    f.p->portable = c;
    attngen_destroy(ctx);
    return f;
}

static void tear_down(Fixture *f) {
    attngen_call_free(f->call);
    attngen_program_free(f->p);
    attngen_destroy(f->ctx);
    free(f->driver);
}

static _Alignas(256) char space[4096];

static attngen_status launch(const Fixture *f, const Args *x) { return attngen_launch(f->call, x->a, 4, space, sizeof space, NULL); }

/* ---- which way */

#define TAKES ", TMA takes multiples of 8 from 8 to 549755813880"
#define RUNS  ": the portable kernel (mma_d64) runs"

static Args odd_k(void) {
    Args x = contiguous(64);
    x.a[K].stride[2] = 65;
    return x;
}

static void test_ways(void **state) {
    (void)state;
    Fixture f = set_up_both();
    Args fit = contiguous(64), unfit = odd_k();
    assert_int_equal(ag_args_bind(&bound, &f.p->lowered->meta, f.call->size, unfit.a, 4, &err), ATTNGEN_OK);
    assert_false(ag_args_mappable(&bound));
    assert_int_equal(launch(&f, &fit), ATTNGEN_OK);
    assert_string_equal(attngen_launch_errmsg(), "");
    assert_launches(1, 0);
    assert_int_equal(launch(&f, &unfit), ATTNGEN_OK);
    assert_launches(1, 1);
    assert_int_equal(launch(&f, &fit), ATTNGEN_OK);
    assert_string_equal(attngen_launch_errmsg(), "");
    assert_launches(2, 1);
    assert_int_equal(nloaded, 2);
    tear_down(&f);
}

/* Elements that no map describes: the same target's kernels that read them one by one. */
static void elements_go_by_themselves(const char *text, const char *schedule) {
    const attngen_source spec = {"t.yaml", text, strlen(text)};
    const attngen_dim dims[] = {{"D", 64}};
    const attngen_shape shape = {2, 4, 2, 8, 16, ATTNGEN_ALIGN_END};
    attngen_context *ctx = context_for("sm_90a", "/nowhere");
    attngen_program *p, *c, *again;
    attngen_call *call;
    char note[1024], expected[256];
    int staged = 0;
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, dims, 1), ATTNGEN_OK);
    assert_int_equal(attngen_bind(ctx, &call, p, &shape), ATTNGEN_OK);
    Args x = contiguous(64);
    x.a[4] = (attngen_arg){.name = "pair", .data = memory, .stride = {8 * 17, 17, 1}};
    snprintf(expected, sizeof expected,
             "pair: stride of q is 17, TMA takes multiples of 8 from 0 to 549755813880: the kernel that reads element by element (%s) runs",
             schedule);
    assert_int_equal(attngen_explain(call, x.a, 5, note, sizeof note), ATTNGEN_OK);
    assert_string_equal(note, expected);
    assert_int_equal(ag_program_companion(call->program, COMPANION_UNSTAGED, NULL, 0, &c, &err), ATTNGEN_OK);
    assert_int_equal(ag_program_companion(call->program, COMPANION_UNSTAGED, NULL, 0, &again, &err), ATTNGEN_OK);
    assert_ptr_equal(c, again);
    assert_string_equal(c->lowered->meta.arch, "sm_90a");
    for (uint32_t i = 0; i < c->lowered->meta.ntmap; i++) assert_int_equal(c->lowered->meta.tmap[i].box_cols, 0);
    for (uint32_t i = 0; i < p->lowered->meta.ntmap; i++) staged += p->lowered->meta.tmap[i].box_cols > 0;
    assert_true(staged > 0);
    assert_true((size_t)ag_workspace_bytes(&c->lowered->meta, call->size) <= call->workspace); /* what the caller has brought is enough */
    x.a[Q].stride[3] = 2;
    assert_int_equal(attngen_explain(call, x.a, 5, note, sizeof note), ATTNGEN_OK);
    assert_non_null(strstr(note, "the portable kernel (mma_d64) runs"));
    attngen_call_free(call);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

static void test_elements(void **state) {
    (void)state;
    elements_go_by_themselves("attention: t\ninputs:\n  pair: {dtype: [h, q, k]}\nscore: s + pair[h, q, k]\nmask: k <= q\n", "wgmma_d64_element");
    elements_go_by_themselves(
        "attention: t\ninputs:\n  pair: {dtype: [h, q, k]}\nbranches:\n  a: {score: \"s + pair[h, q, k]\"}\n  c: {mask: k <= q}\noutput: a - c\n",
        "wgmma_d64");
}

static void test_notes(void **state) {
    (void)state;
    static const struct {
        int64_t stride;
        size_t past; /* bytes */
        int tensor, dim;
        const char *text;
    } row[] = {
        {65, 0, K, 2, "k: stride of k is 65" TAKES RUNS "; k: element-wise loads, stride of k is 65, no multiple of 8"},
        {2, 0, Q, 3, "q: stride of d is 2, TMA takes 1" RUNS "; q: element-wise loads, stride of d is 2"},
        {0, 0, V, 1, "v: stride of g is 0" TAKES RUNS},
        {-64, 0, V, 2, "v: stride of k is -64" TAKES RUNS},
        {64, 2, K, 2, "k: data is 2 bytes past a multiple of 16, TMA takes 0" RUNS "; k: element-wise loads, data is not aligned to 16 bytes"},
    };
    Fixture f = set_up_both();
    for (int i = 0; i < LEN(row); i++) {
        Args x = contiguous(128);
        char text[1024], cut[8];
        x.a[row[i].tensor].stride[row[i].dim] = row[i].stride;
        x.a[row[i].tensor].data = memory + row[i].past;
        assert_int_equal(launch(&f, &x), ATTNGEN_OK);
        assert_string_equal(attngen_launch_errmsg(), row[i].text);
        assert_int_equal(attngen_explain(f.call, x.a, 4, text, sizeof text), ATTNGEN_OK);
        assert_string_equal(text, row[i].text);
        assert_int_equal(attngen_explain(f.call, x.a, 4, cut, sizeof cut), ATTNGEN_OK);
        assert_memory_equal(cut, text, 7);
        assert_int_equal(attngen_explain(f.call, x.a, 4, NULL, 0), ATTNGEN_OK);
        assert_launches(0, i + 1);
    }
    Args x = contiguous(128);
    x.a[O].stride[3] = 2; /* stored by TMA or not, as the schedule says: either way noted */
    assert_int_equal(launch(&f, &x), ATTNGEN_OK);
    assert_non_null(strstr(attngen_launch_errmsg(), "o: element-wise stores, stride of d is 2"));
    x = odd_k();
    x.a[Q].data = memory + 8;
    assert_int_equal(launch(&f, &x), ATTNGEN_OK);
    assert_string_equal(attngen_launch_errmsg(),
                        "q: data is 8 bytes past a multiple of 16, TMA takes 0; k: stride of k is 65" TAKES RUNS
                        "; q: element-wise loads, data is not aligned to 16 bytes; k: element-wise loads, stride of k is 65, "
                        "no multiple of 8");
    tear_down(&f);
}

/* A wrong call is told so as ever, whichever way it would go; what is asked for is the workspace of the program that runs. */
static void test_refusals(void **state) {
    (void)state;
    Fixture f = set_up_both();
    Args fit = contiguous(64), unfit = odd_k();
    f.call->workspace = 512;
    assert_int_equal(attngen_launch(f.call, unfit.a, 4, NULL, 0, NULL), ATTNGEN_OK);
    assert_int_equal(attngen_launch(f.call, fit.a, 4, space, 256, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(), "the workspace has 256 bytes, the call needs 512");
    assert_int_equal(attngen_launch(f.call, fit.a, 4, space + 8, 1024, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(), "the workspace is not aligned to 256 bytes");
    assert_int_equal(attngen_launch(f.call, fit.a, 4, space, 512, NULL), ATTNGEN_OK);
    assert_launches(1, 1);
    unfit.a[V].data = NULL;
    assert_int_equal(launch(&f, &unfit), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(), "v: data is null");
    unfit = odd_k();
    unfit.a[O].stride[0] = 1 << 28, unfit.a[O].stride[1] = 1 << 26;
    f.call->size[SZ_SQ] = 1 << 20;
    f.call->size[SZ_B] = 1 << 16; /* in blocks of the companion too many */
    assert_int_equal(launch(&f, &unfit), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(),
                        "k: stride of k is 65" TAKES ": the portable kernel cannot run: causal_fwd would need 2147483648 blocks with B 65536, Hq 4, "
                        "Sq 1048576: the most that a launch can have is 2147483647");
    f.call->loaded = NULL;
    f.call->status = ATTNGEN_E_DRIVER;
    snprintf(f.call->why.text, sizeof f.call->why.text, "no driver here");
    assert_int_equal(launch(&f, &fit), ATTNGEN_E_DRIVER);
    assert_string_equal(attngen_launch_errmsg(), "no driver here");
    assert_launches(1, 1);
    tear_down(&f);
}

/* ---- how it is made */

static void test_lowered_is_lowered(void **state) {
    (void)state;
    attngen_context *ctx = context_for("sm_90a", "/nowhere");
    attngen_program *p = lowered(ctx);
    attngen_call *call;
    char text[512];
    Args x = odd_k();
    assert_int_equal(attngen_bind(ctx, &call, p, &(attngen_shape){2, 4, 2, 8, 16, ATTNGEN_ALIGN_END}), ATTNGEN_OK);
    attngen_destroy(ctx); /* is not needed any more */
    assert_int_equal(attngen_explain(call, x.a, 4, text, sizeof text), ATTNGEN_OK);
    assert_string_equal(text, "k: stride of k is 65" TAKES RUNS "; k: element-wise loads, stride of k is 65, no multiple of 8");
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    assert_int_equal(attngen_program_info(call->program->portable, &info), ATTNGEN_OK);
    assert_string_equal(info.arch, "sm_90");
    assert_int_equal(info.D, 64);
    attngen_call_free(call);
    attngen_program_free(p);
}

static void test_no_nvrtc(void **state) {
    (void)state;
    static const char head[] = "k: stride of k is 65" TAKES ": the portable kernel cannot be made: ";
    Fixture f = set_up(context_for("sm_90a", "/nowhere"));
    Args fit = contiguous(64), unfit = odd_k();
    char text[2048];
    for (int i = 0; i < 2; i++) { /* it is tried every time */
        assert_int_equal(launch(&f, &unfit), ATTNGEN_E_NO_NVRTC);
        assert_memory_equal(attngen_launch_errmsg(), head, sizeof head - 1);
        assert_non_null(strstr(attngen_launch_errmsg(), "/nowhere"));
        assert_non_null(strstr(attngen_launch_errmsg(), "libnvrtc.so"));
    }
    assert_int_equal(attngen_explain(f.call, unfit.a, 4, text, sizeof text), ATTNGEN_E_NO_NVRTC);
    assert_string_equal(text, attngen_launch_errmsg());
    assert_null(f.p->portable);
    assert_int_equal(launch(&f, &fit), ATTNGEN_OK);
    assert_string_equal(attngen_launch_errmsg(), "");
    assert_launches(1, 0);
    tear_down(&f);
}

/* A context that knows where NVRTC is. */
static attngen_context *context_with_nvrtc(void) {
    attngen_context *ctx = context_for("sm_90a", NULL);
    if (ag_context_find_nvrtc(ctx) == ATTNGEN_OK) return ctx;
    attngen_destroy(ctx);
    return NULL;
}

static void *explain_in_thread(void *payload) {
    Args x = odd_k();
    char text[512];
    return attngen_explain(payload, x.a, 4, text, sizeof text) == ATTNGEN_OK ? payload : NULL;
}

static void *launch_in_thread(void *payload) {
    Args x = odd_k();
    for (int i = 0; i < 100; i++)
        if (attngen_launch(payload, x.a, 4, NULL, 0, NULL) != ATTNGEN_OK) return NULL;
    return payload;
}

static void test_two_threads(void **state) {
    (void)state;
    attngen_context *ctx = context_with_nvrtc();
    if (!ctx) skip();
    Fixture f = set_up(ctx);
    pthread_t thread;
    void *ok;
    attngen_destroy(f.ctx); /* neither is it needed here */
    f.ctx = NULL;
    assert_int_equal(pthread_create(&thread, NULL, launch_in_thread, f.call), 0);
    if (!explain_in_thread(f.call) || !launch_in_thread(f.call)) fail_msg("%s", attngen_launch_errmsg());
    assert_int_equal(pthread_join(thread, &ok), 0);
    assert_non_null(ok);
    assert_int_equal(nloaded, 2);
    assert_launches(0, 200);
    tear_down(&f);
}

/* The second program of this kind finds the companion in the folder of the first. */
static void test_from_disk(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        attngen_context *ctx = context_with_nvrtc();
        if (!ctx) skip();
        Fixture f = set_up(ctx);
        Args x = odd_k();
        if (launch(&f, &x) != ATTNGEN_OK) fail_msg("%s", attngen_launch_errmsg());
        attngen_info info = {.version = ATTNGEN_INFO_VERSION};
        assert_int_equal(attngen_program_info(f.p->portable, &info), ATTNGEN_OK);
        assert_int_equal(info.from_disk_cache, i);
        tear_down(&f);
    }
}

/* Of branches that are one kernel the companion is one too: kernels of their own would want buffers, and the caller has the workspace of the program. */
static void test_branches(void **state) {
    (void)state;
    static const char text[] =
        "attention: t\ninputs: {r: {dtype: [b, h, q, d]}}\nbranches:\n  a: {}\n  c: {weigh: 'dot(r, k)'}\noutput: a * mean_weight(c) - c\n";
    static const char apart[] = "schema: attngen.schedule/1\nmma: {family: wgmma}\nloop: {branches: apart}\n";
    const attngen_source spec = {"spec.yaml", text, sizeof text - 1}, schedule = {"schedule.yaml", apart, sizeof apart - 1};
    const attngen_dim dims[] = {{"D", 64}};
    const attngen_shape shape = {2, 4, 4, 100, 100, ATTNGEN_ALIGN_END};
    for (int which = 0; which < 2; which++) {
        attngen_context *ctx = context_for("sm_90a", NULL);
        attngen_program *p, *companion;
        attngen_call *call, *other;
        assert_int_equal(attngen_lower(ctx, &p, &spec, which ? &schedule : NULL, dims, 1), ATTNGEN_OK);
        assert_int_equal(ag_program_companion(p, COMPANION_PORTABLE, NULL, 0, &companion, &err), ATTNGEN_OK);
        assert_int_equal(p->lowered->npart, which ? 2 : 1);
        assert_int_equal(companion->lowered->npart, which ? 2 : 1);
        assert_int_equal(attngen_bind(ctx, &call, p, &shape), ATTNGEN_OK);
        attngen_context *portable = context_for("sm_90", NULL);
        assert_int_equal(attngen_bind(portable, &other, companion, &shape), ATTNGEN_OK);
        assert_true(attngen_workspace(other) <= attngen_workspace(call));
        attngen_call_free(call);
        attngen_call_free(other);
        attngen_program_free(p);
        attngen_destroy(portable);
        attngen_destroy(ctx);
    }
}

/* Where the device decides on sm_90a, schedules that are for sm_90 alone still work; whoever asks for sm_90a gets no other. */
static void test_schedule_decides(void **state) {
    (void)state;
    static const struct {
        const char *schedule, *arch;
        bool given;
    } row[] = {{"mma_d64", "sm_90", false}, {"wgmma_d64", "sm_90a", false}, {NULL, "sm_90a", false}, {"mma_d64", NULL, true}};
    attngen_source spec, schedule;
    const attngen_dim dims[] = {{"D", 64}};
    assert_int_equal(attngen_shipped_spec(&spec, "causal"), ATTNGEN_OK);
    for (int i = 0; i < LEN(row); i++) {
        attngen_context *ctx = context_for("sm_90a", "/nowhere");
        attngen_program *p;
        attngen_info info = {.version = ATTNGEN_INFO_VERSION};
        if (!row[i].given) ctx->portable = ag_target_find("sm_90");
        if (row[i].schedule) assert_int_equal(attngen_shipped_schedule(&schedule, row[i].schedule), ATTNGEN_OK);
        attngen_status s = attngen_lower(ctx, &p, &spec, row[i].schedule ? &schedule : NULL, dims, 1);
        assert_int_equal(s, row[i].arch ? ATTNGEN_OK : ATTNGEN_E_UNSUPPORTED);
        if (s == ATTNGEN_OK) assert_int_equal(attngen_program_info(p, &info), ATTNGEN_OK);
        if (s == ATTNGEN_OK) assert_string_equal(info.arch, row[i].arch);
        attngen_program_free(p);
        attngen_destroy(ctx);
    }
}

static int start(void **state) {
    nloaded = 0;
    for (int i = 0; i < LIBRARIES; i++) launches[i] = 0;
    return reset_fake(state) || make_root(state);
}

static int finish(void **state) { return drop_fake(state) || remove_root(state); }

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, finish)
    const struct CMUnitTest tests[] = {
        TEST(test_ways),     TEST(test_elements),    TEST(test_notes),     TEST(test_refusals),         TEST(test_lowered_is_lowered),
        TEST(test_no_nvrtc), TEST(test_two_threads), TEST(test_from_disk), TEST(test_schedule_decides), TEST(test_branches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
