/* Masks that launches share (api_mask.c): which kernels run, what may be left out and what is refused.  Over a false driver that counts launches of kernels by their names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "counting_driver.h"
#include "with_folder.h"

/* ---- a driver that counts: kernels that make maps, and others */

static char kernel_at[2];
static int launches[2];

static int c_load(CuLibrary *l, const void *code, int *jo, void **jv, unsigned nj, int *o, void **v, unsigned n) {
    (void)code, (void)jo, (void)jv, (void)nj, (void)o, (void)v, (void)n;
    return *l = (CuLibrary)(void *)kernel_at, 0;
}
static int c_kernel(CuKernel *k, CuLibrary l, const char *name) { return (void)l, *k = (CuKernel)(void *)&kernel_at[!strstr(name, "_tiles")], 0; }
static int c_launch(CuFunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CuStream stream,
                    void **params, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params, (void)extra;
    launches[(char *)(void *)f - kernel_at]++;
    return 0;
}

static Driver *counting_driver(void) { return driver_that_counts(c_load, c_kernel, c_launch); }

/* ---- a call: D 64, B 2, Hq 4, Hkv 2, Sq 8, Sk 16 */

typedef struct Fixture {
    Driver *driver;
    attngen_context *ctx;
    attngen_program *p;
    attngen_call *call;
} Fixture;

static Fixture set_up(const char *text) {
    Fixture f = {counting_driver(), NULL, NULL, NULL};
    const attngen_shape shape = {2, 4, 2, 8, 16, ATTNGEN_ALIGN_END};
    const attngen_source spec = {"spec.yaml", text, strlen(text)};
    const attngen_dim dims[] = {{"D", 64}};
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    attngen_program *p;
    o.arch = "sm_90a", o.nvrtc = "/nowhere", o.cache_dir = root;
    assert_int_equal(attngen_create(&f.ctx, &o), ATTNGEN_OK);
    assert_int_equal(attngen_lower(f.ctx, &p, &spec, NULL, dims, 1), ATTNGEN_OK);
    assert_int_equal(attngen_bind(f.ctx, &f.call, p, &shape), ATTNGEN_OK);
    attngen_program_free(p);
    f.p = ag_program_ref(f.call->program);
    f.p->size = sizeof cubin;
    f.p->image = malloc(sizeof cubin);
    assert_non_null(f.p->image);
    memcpy(f.p->image, cubin, sizeof cubin);
    assert_int_equal(ag_program_load(f.p, f.driver, 0, &f.call->loaded, &err), ATTNGEN_OK);
    return f;
}

static void tear_down(Fixture *f) {
    attngen_call_free(f->call);
    attngen_program_free(f->p);
    attngen_destroy(f->ctx);
    free(f->driver);
}

#define DOCUMENTS                                                                                                                                    \
    "attention: a\nparams: {w: {int: 8}, cap: {float: 2.0}}\ninputs:\n  doc: {i32: [b, k]}\n  bias: {f32: [h, q, k]}\n"                              \
    "score: cap * s + bias[h, q, k]\nmask: k <= q + w and doc[b, q] == doc[b, k]\n"

static const attngen_arg doc = {"doc", memory, {16, 1}, 0}, bias = {"bias", memory, {128, 16, 1}, 0}, wide = {"w", NULL, {0}, 3};
static _Alignas(256) char space[4096];

static Args with(const attngen_arg *a, const attngen_arg *b, const attngen_arg *c, size_t *n) {
    Args x = contiguous(64);
    *n = 4;
    if (a) x.a[(*n)++] = *a;
    if (b) x.a[(*n)++] = *b;
    if (c) x.a[(*n)++] = *c;
    return x;
}

static void assert_launches(int maps, int others) {
    assert_int_equal(launches[0], maps);
    assert_int_equal(launches[1], others);
}

static attngen_status launch_under(const attngen_mask *mask, const attngen_arg *a, const attngen_arg *b, const attngen_arg *c) {
    size_t n;
    Args x = with(a, b, c, &n);
    return attngen_mask_launch(mask, x.a, n, NULL);
}

/* One map for three launches; a launch without a mask makes its own. */
static void test_once(void **state) {
    (void)state;
    Fixture f = set_up(DOCUMENTS);
    const attngen_arg of_mask[] = {doc, wide};
    attngen_mask *mask;
    size_t n;
    assert_int_equal(attngen_mask_make(&mask, f.call, of_mask, 2, space, sizeof space, NULL), ATTNGEN_OK);
    assert_launches(1, 0);
    assert_int_equal(launch_under(mask, &bias, NULL, NULL), ATTNGEN_OK);
    assert_int_equal(launch_under(mask, &bias, &doc, NULL), ATTNGEN_OK);
    assert_int_equal(launch_under(mask, &bias, &doc, &wide), ATTNGEN_OK);
    assert_launches(1, 3);
    attngen_mask_free(mask);
    Args x = with(&doc, &bias, NULL, &n);
    assert_int_equal(attngen_launch(f.call, x.a, n, space, sizeof space, NULL), ATTNGEN_OK);
    assert_launches(2, 4);
    tear_down(&f);
}

static void test_refusals(void **state) {
    (void)state;
    Fixture f = set_up(DOCUMENTS);
    attngen_mask *mask, *none = NULL;
    attngen_arg other = doc, turned = doc, narrow = wide;
    other.data = memory + 64, turned.stride[0] = 32, narrow.scalar = 4;
    assert_int_equal(attngen_mask_make(&none, f.call, &wide, 1, space, sizeof space, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(), "argument 'doc' is missing");
    assert_null(none);
    assert_int_equal(attngen_mask_make(&none, f.call, &doc, 1, space, 16, NULL), ATTNGEN_E_INVALID_ARG);
    assert_non_null(strstr(attngen_launch_errmsg(), "the workspace has 16 bytes"));
    assert_int_equal(attngen_mask_make(&none, NULL, &doc, 1, space, sizeof space, NULL), ATTNGEN_E_INVALID_ARG);
    assert_int_equal(attngen_mask_make(NULL, f.call, &doc, 1, space, sizeof space, NULL), ATTNGEN_E_INVALID_ARG);
    assert_launches(0, 0);
    assert_int_equal(attngen_mask_make(&mask, f.call, &doc, 1, space, sizeof space, NULL), ATTNGEN_OK); /* w by its default, 8 */
    const struct {
        const attngen_arg *given;
        const char *text;
    } row[] = {{&other, "doc is not the tensor that the mask was made of: leave it out, or make a mask of this one"},
               {&turned, "doc is not the tensor that the mask was made of: leave it out, or make a mask of this one"},
               {&narrow, "w is 4, and the mask was made for 8: leave it out, or make a mask for this one"}};
    for (int i = 0; i < LEN(row); i++) {
        assert_int_equal(launch_under(mask, &bias, row[i].given, NULL), ATTNGEN_E_INVALID_ARG);
        assert_string_equal(attngen_launch_errmsg(), row[i].text);
    }
    assert_int_equal(launch_under(mask, NULL, NULL, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(), "argument 'bias' is missing");
    assert_int_equal(attngen_mask_launch(NULL, NULL, 0, NULL), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(attngen_launch_errmsg(), "mask is NULL");
    assert_launches(1, 0);
    attngen_mask_free(mask);
    attngen_mask_free(NULL);
    tear_down(&f);
}

/* Where positions alone decide there is nothing to make, unless tiles are hidden one by one. */
static void test_positions(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int maps;
    } row[] = {{"attention: a\nmask: k <= q\n", 0}, {"attention: a\nmask: k <= q and (q - k) % 1024 < 64\n", 1}};
    for (int i = 0; i < LEN(row); i++) {
        Fixture f = set_up(row[i].spec);
        attngen_mask *mask;
        launches[0] = launches[1] = 0;
        assert_int_equal(attngen_mask_make(&mask, f.call, NULL, 0, space, sizeof space, NULL), ATTNGEN_OK);
        assert_launches(row[i].maps, 0);
        assert_int_equal(launch_under(mask, NULL, NULL, NULL), ATTNGEN_OK);
        assert_launches(row[i].maps, 1);
        attngen_mask_free(mask);
        tear_down(&f);
    }
}

/* Branches that share a map: what makes it is apart from everything else. */
static void test_branches(void **state) {
    (void)state;
    Fixture f = set_up("attention: a\ninputs: {doc: {i32: [b, k]}, k2: {dtype: [b, g, k, d]}}\nbranches:\n  x: {mask: \"doc[b, q] == doc[b, k]\"}\n"
                       "  y: {keys: k2, mask: \"doc[b, q] == doc[b, k]\"}\noutput: x - y\n");
    const attngen_arg k2 = {"k2", memory, {2048, 1024, 64, 1}, 0};
    static _Alignas(256) char room[1 << 16]; /* of the first branch's result, too */
    attngen_mask *mask;
    assert_int_equal(attngen_mask_make(&mask, f.call, &doc, 1, room, sizeof room, NULL), ATTNGEN_OK);
    assert_launches(1, 0);
    assert_int_equal(launch_under(mask, &k2, NULL, NULL), ATTNGEN_OK);
    assert_int_equal(launch_under(mask, &k2, &doc, NULL), ATTNGEN_OK);
    assert_launches(1, 4);
    attngen_mask_free(mask);
    tear_down(&f);
}

static int start(void **state) {
    launches[0] = launches[1] = 0;
    return reset_fake(state) || make_root(state);
}

static int finish(void **state) { return drop_fake(state) || remove_root(state); }

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, finish)
    const struct CMUnitTest tests[] = {TEST(test_once), TEST(test_refusals), TEST(test_positions), TEST(test_branches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
