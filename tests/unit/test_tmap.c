/* Tensor maps: metadata, what is encoded and when, what TMA cannot describe, over a false driver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "false_driver.h"

/* softcap for sm_90a: q k v by TMA */
static ProgramMeta mapped_program(void) {
    ProgramMeta m = program(64, 0);
    KernelMeta *k = &m.kernel[0];
    snprintf(m.arch, sizeof m.arch, "sm_90a");
    m.dtype = ATTNGEN_BF16;
    m.ntmap = 3;
    m.tmap[0] = (TmapMeta){.tensor = Q, .box_rows = 64, .pack = 1};
    m.tmap[1] = (TmapMeta){.tensor = K, .box_rows = 128, .pack = 1};
    m.tmap[2] = (TmapMeta){.tensor = V, .box_rows = 176, .pack = 1};
    k->slot[7] = (Slot){SLOT_TMAP, 1, 0, 64};
    k->slot[8] = (Slot){SLOT_TMAP, 0, 0, 192};
    k->slot[9] = (Slot){SLOT_TMAP, 2, 0, 320};
    k->nslot = 10, k->param_bytes = 448;
    return m;
}

static void test_meta_valid(void **state) {
    (void)state;
    ProgramMeta good = mapped_program(), m;
    assert_true(ag_meta_valid(&good));
#define BAD(change)                                                                                                                                  \
    m = good;                                                                                                                                        \
    m.change;                                                                                                                                        \
    assert_false(ag_meta_valid(&m))
    BAD(ntmap = 0);
    BAD(ntmap = 2);
    BAD(ntmap = META_TMAPS + 1);
    BAD(dtype = 0);
    BAD(tmap[0].tensor = TENSORS);
    BAD(tmap[0].tensor = LSE);
    BAD(tensor[Q].elem_bytes = 4);
    BAD(tmap[2].box_rows = 0);
    BAD(tmap[2].box_rows = 257);
    BAD(kernel[0].slot[7].index = 3);
    BAD(kernel[0].slot[7].offset = 72);
    BAD(kernel[0].slot[9].offset = 384);
#undef BAD
}

/* ---- tensor maps.  The maps of the last launch outlive a test: each has its own addresses. */

static attngen_status launch_args(Loaded *l, Sizes s, const Args *x) {
    memset(&err, 0, sizeof err);
    assert_int_equal(ag_args_bind(&bound, &launched, s.s, x->a, 4, &err), ATTNGEN_OK);
    fake.calls[0] = 0;
    return ag_launch(l, &bound, LAUNCH_ALL, 0, NULL, &err);
}

static Args at(size_t offset) {
    Args x = contiguous(64);
    for (int i = Q; i <= V; i++) x.a[i].data = memory + offset + 16 * i;
    return x;
}

static FakeMap map_at(size_t offset) {
    FakeMap m;
    memcpy(&m, fake.params + offset, sizeof m);
    return m;
}

static void assert_map(size_t offset, FakeMap expected) {
    FakeMap m = map_at(offset);
    expected.box[0] = 64;
    for (int i = 2; i < 5; i++)
        if (expected.dim[i] && !expected.box[i]) expected.box[i] = 1;
    expected.swizzle = 3, expected.promotion = 2; /* 128 bytes each */
    assert_memory_equal(&m, &expected, sizeof m);
}

static void test_maps(void **state) {
    (void)state;
    launched = mapped_program();
    Loaded *l = load(0);
    assert_string_equal(fake.calls, "current retain0 set0 device load kernel:softcap_mma shared0=98304 function set-1 ");
    Args x = at(0);
    assert_int_equal(launch_args(l, usual(64), &x), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current set0 device map64 map128 map176 set-1 current set0 device launch set-1 ");
    assert_map(192, (FakeMap){.address = memory, .dim = {64, 8, 4, 2}, .stride = {128, 1024, 4096}, .box = {0, 64}, .type = 9});
    assert_map(64, (FakeMap){.address = memory + 16, .dim = {64, 16, 2, 2}, .stride = {128, 2048, 4096}, .box = {0, 128}, .type = 9});
    assert_map(320, (FakeMap){.address = memory + 32, .dim = {64, 16, 2, 2}, .stride = {128, 2048, 4096}, .box = {0, 176}, .type = 9});
    assert_memory_equal(fake.params, &x.a[Q].data, sizeof(void *)); /* the other slots are as ever */
    launched.dtype = ATTNGEN_F16;
    fake.current = 0;
    assert_int_equal(launch_args(l, usual(64), &x), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current device map64 map128 map176 current device launch ");
    assert_int_equal(map_at(64).type, 6);
    ag_driver_unload(l);
}

/* Panels at once, and heads before rows. */
static void test_maps_of_panels_and_packed_heads(void **state) {
    (void)state;
    launched = mapped_program();
    launched.D = launched.Dv = 128;
    launched.tmap[0] = (TmapMeta){.tensor = Q, .box_rows = 64, .pack = 2};
    launched.tmap[1] = (TmapMeta){.tensor = K, .box_rows = 128, .panels = 2, .pack = 1};
    launched.tmap[2] = (TmapMeta){.tensor = Q, .box_rows = 64, .panels = 2, .pack = 2};
    assert_true(ag_meta_valid(&launched));
    Loaded *l = load(0);
    Args x = contiguous(128);
    for (int i = Q; i <= V; i++) x.a[i].data = memory;
    assert_int_equal(launch_args(l, usual(128), &x), ATTNGEN_OK);
    assert_map(192, (FakeMap){.address = memory, .dim = {128, 4, 8, 2}, .stride = {2048, 256, 8192}, .box = {0, 2, 32}, .type = 9});
    assert_map(64, (FakeMap){.address = memory, .dim = {64, 16, 2, 2, 2}, .stride = {256, 128, 4096, 8192}, .box = {0, 128, 2}, .type = 9});
    assert_map(320, (FakeMap){.address = memory, .dim = {64, 4, 8, 2, 2}, .stride = {2048, 256, 128, 8192}, .box = {0, 2, 32, 2}, .type = 9});
    launched.tmap[0].pack = 3;
    assert_false(ag_meta_valid(&launched));
    launched.tmap[0].pack = 0;
    assert_false(ag_meta_valid(&launched));
    ag_driver_unload(l);
}

static void test_maps_are_kept(void **state) {
    (void)state;
    static const char encoded[] = "current device map64 map128 map176 current device launch ", kept[] = "current device launch ";
    launched = mapped_program();
    Loaded *l = load(0);
    fake.current = 0;
    Args x = at(64), y = at(128);
    y.a[O].data = x.a[O].data;
    assert_int_equal(launch_args(l, usual(64), &x), ATTNGEN_OK);
    assert_string_equal(fake.calls, encoded);
    unsigned char first[META_PARAM_BYTES];
    memcpy(first, fake.params, launched.kernel[0].param_bytes);
    memset(fake.params, 0xEE, sizeof fake.params);
    assert_int_equal(launch_args(l, usual(64), &x), ATTNGEN_OK);
    assert_string_equal(fake.calls, kept);
    assert_memory_equal(first, fake.params, launched.kernel[0].param_bytes);
    x.a[O].data = memory + 512; /* has no map */
    assert_int_equal(launch_args(l, usual(64), &x), ATTNGEN_OK);
    assert_string_equal(fake.calls, kept);
    assert_int_equal(launch_args(l, usual(64), &y), ATTNGEN_OK); /* other addresses */
    assert_string_equal(fake.calls, encoded);
    assert_ptr_equal(map_at(64).address, y.a[K].data);
    y.a[V].stride[2] = 72; /* another stride */
    assert_int_equal(launch_args(l, usual(64), &y), ATTNGEN_OK);
    assert_string_equal(fake.calls, encoded);
    assert_int_equal(map_at(320).stride[0], 144);
    assert_int_equal(launch_args(l, sizes(2, 4, 2, 8, 15, 7, 64), &y), ATTNGEN_OK); /* another extent */
    assert_string_equal(fake.calls, encoded);
    launched.tmap[0].box_rows = 32; /* another program */
    assert_int_equal(launch_args(l, sizes(2, 4, 2, 8, 15, 7, 64), &y), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current device map32 map128 map176 current device launch ");
    assert_int_equal(launch_args(l, sizes(2, 4, 2, 0, 15, 7, 64), &x), ATTNGEN_OK); /* nothing to launch */
    assert_string_equal(fake.calls, "");
    ag_driver_unload(l);
}

/* A failure is not kept, and neither is what it overwrote. */
static void test_map_fails(void **state) {
    (void)state;
    launched = mapped_program();
    Loaded *l = load(0);
    Args x = at(192), y = at(256);
    assert_int_equal(launch_args(l, usual(64), &x), ATTNGEN_OK);
    fake.result_of_map = 1;
    assert_int_equal(launch_args(l, usual(64), &y), ATTNGEN_E_DRIVER);
    assert_string_equal(err.text, "cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
    assert_string_equal(fake.calls, "current set0 device map64 set-1 ");
    fake.result_of_map = 0;
    assert_int_equal(launch_args(l, usual(64), &x), ATTNGEN_OK);
    assert_non_null(strstr(fake.calls, "map64 map128 map176 "));
    ag_driver_unload(l);
}

static void *launch_in_thread(void *payload) {
    Args x = at(320);
    BoundArgs b;
    attngen_status s = ag_args_bind(&b, &launched, usual(64).s, x.a, 4, NULL);
    return s == ATTNGEN_OK && ag_launch(payload, &b, LAUNCH_ALL, 0, NULL, NULL) == ATTNGEN_OK ? payload : NULL;
}

static void test_maps_of_a_thread(void **state) {
    (void)state;
    launched = mapped_program();
    Loaded *l = load(0);
    void *ok;
    pthread_t thread;
    assert_non_null(launch_in_thread(l));
    fake.calls[0] = 0;
    assert_non_null(launch_in_thread(l));
    assert_null(strstr(fake.calls, "map"));
    assert_int_equal(pthread_create(&thread, NULL, launch_in_thread, l), 0);
    assert_int_equal(pthread_join(thread, &ok), 0);
    assert_non_null(ok);
    assert_non_null(strstr(fake.calls, "map64 map128 map176 "));
    ag_driver_unload(l);
}

static void test_maps_of_small_tensors(void **state) {
    (void)state;
    launched = mapped_program();
    Loaded *l = load(0);
    fake.current = 0;
    Args x = at(384);
    for (int i = 0; i < 3; i++) x.a[Q].stride[i] = x.a[K].stride[i] = -3 * i; /* of no matter with extents of 1 */
    x.a[V].stride[0] = 1, x.a[V].stride[2] = INT64_MAX;
    assert_int_equal(launch_args(l, sizes(1, 1, 1, 1, 1, 0, 64), &x), ATTNGEN_OK);
    for (size_t offset = 64; offset <= 320; offset += 128) {
        FakeMap m = map_at(offset);
        assert_memory_equal(m.dim, ((uint64_t[5]){64, 1, 1, 1}), sizeof m.dim);
        assert_memory_equal(m.stride, ((uint64_t[4]){128, 128, 128}), sizeof m.stride);
    }
    ag_driver_unload(l);
}

/* Keys that are not there are zeros, whatever their tensors say, and q stands in for them: a map must be a legal one. */
static void test_maps_without_keys(void **state) {
    (void)state;
    launched = mapped_program();
    Loaded *l = load(0);
    fake.current = 0;
    Args x = at(512);
    x.a[K].data = memory + 1, x.a[V].data = NULL;
    x.a[K].stride[3] = 7;
    assert_int_equal(launch_args(l, sizes(2, 4, 2, 8, 0, 0, 64), &x), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current device map64 map128 map176 current device launch ");
    assert_map(192, (FakeMap){.address = memory + 512, .dim = {64, 8, 4, 2}, .stride = {128, 1024, 4096}, .box = {0, 64}, .type = 9});
    assert_map(64, (FakeMap){.address = memory + 512, .dim = {64, 1, 1, 1}, .stride = {128, 128, 128}, .box = {0, 128}, .type = 9});
    assert_map(320, (FakeMap){.address = memory + 512, .dim = {64, 1, 1, 1}, .stride = {128, 128, 128}, .box = {0, 176}, .type = 9});
    launched.Dv = 128; /* no more than the row of q is fetched */
    Sizes wide = sizes(2, 4, 2, 8, 0, 0, 64);
    wide.s[SZ_DV] = 128, x.a[O] = contiguous(128).a[O];
    assert_int_equal(launch_args(l, wide, &x), ATTNGEN_OK);
    assert_int_equal(map_at(320).dim[0], 64);
    x.a[Q].data = memory + 514; /* q is read even then */
    assert_int_equal(ag_args_bind(&bound, &launched, sizes(2, 4, 2, 8, 0, 0, 64).s, x.a, 4, &err), ATTNGEN_OK);
    assert_false(ag_args_mappable(&bound));
    x.a[Q].data = NULL; /* no queries: nothing is launched */
    assert_int_equal(launch_args(l, sizes(2, 4, 2, 0, 0, 0, 64), &x), ATTNGEN_OK);
    assert_string_equal(fake.calls, "");
    ag_driver_unload(l);
}

#define TAKES ", TMA takes multiples of 8 from 8 to 549755813880"

static void not_mappable(const Args *x, const char *expected) {
    char text[1024];
    assert_int_equal(ag_args_bind(&bound, &launched, usual(64).s, x->a, 4, &err), ATTNGEN_OK);
    assert_false(ag_args_mappable(&bound));
    ag_args_unmapped(&bound, text, sizeof text);
    assert_string_equal(text, expected);
}

static void test_not_mappable(void **state) {
    (void)state;
    static const struct {
        int64_t stride;
        int tensor, dim;
        const char *text;
    } row[] = {
        {2, Q, 3, "q: stride of d is 2, TMA takes 1"},   {0, K, 3, "k: stride of d is 0, TMA takes 1"},
        {-1, V, 3, "v: stride of d is -1, TMA takes 1"}, {68, K, 2, "k: stride of k is 68" TAKES},
        {0, V, 1, "v: stride of g is 0" TAKES},          {-64, Q, 2, "q: stride of q is -64" TAKES},
        {4, Q, 1, "q: stride of h is 4" TAKES},          {(int64_t)1 << 39, K, 0, "k: stride of b is 549755813888" TAKES},
    };
    launched = mapped_program();
    Loaded *l = load(0);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        Args x = at(448);
        x.a[row[i].tensor].stride[row[i].dim] = row[i].stride;
        not_mappable(&x, row[i].text);
    }
    Args x = at(448);
    x.a[Q].data = memory + 8;
    not_mappable(&x, "q: data is 8 bytes past a multiple of 16, TMA takes 0");
    x.a[V].data = memory + 2;
    x.a[O].data = memory + 4;
    not_mappable(&x, "q: data is 8 bytes past a multiple of 16, TMA takes 0; v: data is 2 bytes past a multiple of 16, TMA takes 0");
    char text[256];
    ag_args_explain(&bound, text, sizeof text); /* of the others */
    assert_string_equal(text, "o: element-wise stores, data is not aligned to 16 bytes");
    x = at(448);
    x.a[K].stride[0] = ((int64_t)1 << 39) - 8; /* the largest */
    assert_int_equal(launch_args(l, usual(64), &x), ATTNGEN_OK);
    assert_true(ag_args_mappable(&bound));
    ag_args_unmapped(&bound, text, sizeof text);
    assert_string_equal(text, "");
    assert_int_equal(map_at(64).stride[2], ((int64_t)1 << 40) - 16);
    ag_driver_unload(l);
}

/* ---- elements of captured tensors: boxes of their own; a dim of stride 0 is repeated */

#define BIAS "attention: t\ninputs:\n  bias: {dtype: [b, k]}\n  pair: {dtype: [h, q, k]}\nscore: s + bias[b, k] + pair[h, q, k]\n"

static _Alignas(64) char far[3][64]; /* rows; bias; pair: nothing is read */

/* q k v o of [2, 4, 128, 64], bias [2, 128], pair [4, 128, 128] */
static Args with_elements(int64_t head_stride, int64_t row_stride) {
    Args x = contiguous(64);
    for (int i = Q; i <= O; i++) {
        x.a[i].data = far[0];
        x.a[i].stride[0] = 4 * 128 * 64, x.a[i].stride[1] = 128 * 64, x.a[i].stride[2] = 64;
    }
    x.a[LSE] = (attngen_arg){.name = "bias", .data = far[1], .stride = {128, 1}};
    x.a[TENSORS] = (attngen_arg){.name = "pair", .data = far[2], .stride = {head_stride, row_stride, 1}};
    return x;
}

static void test_elements(void **state) {
    (void)state;
    static const attngen_source text = {"t.yaml", BIAS, sizeof BIAS - 1};
    const attngen_dim dims[] = {{"D", 64}, {"dtype", ATTNGEN_BF16}};
    Compilation *c = ag_compile_text(&text, NULL, "sm_90a", dims, 2, NULL);
    assert_int_equal(c->diag.status, ATTNGEN_OK);
    assert_string_equal(c->schedule_name, "wgmma_d64_bias");
    assert_true(ag_meta_valid(&c->meta));
    Sizes z = sizes(2, 4, 4, 128, 128, 0, 64);
    z.s[SZ_DV] = 64;
    launched = c->meta;
    Loaded *l = load(0);
    fake.current = 0;
    for (int repeated = 0; repeated < 2; repeated++) {
        Args x = with_elements(repeated ? 0 : 128 * 128, 128);
        memset(&err, 0, sizeof err);
        assert_int_equal(ag_args_bind(&bound, &launched, z.s, x.a, TENSORS + 1, &err), ATTNGEN_OK);
        assert_true(ag_args_mappable(&bound));
        assert_int_equal(ag_launch(l, &bound, LAUNCH_ALL, 0, NULL, &err), ATTNGEN_OK);
        int found = 0;
        for (uint32_t i = 0; i < launched.kernel[0].nslot; i++) {
            const Slot *s = &launched.kernel[0].slot[i];
            if (s->kind != SLOT_TMAP) continue;
            FakeMap m = map_at(s->offset);
            if (m.address == far[1]) {
                assert_memory_equal(m.dim, ((uint64_t[]){128, 2, 1, 1}), 4 * sizeof(uint64_t));
                assert_memory_equal(m.box, ((unsigned[]){128, 1, 1, 1}), 4 * sizeof(unsigned));
                assert_int_equal(m.stride[0], 256);
                assert_int_equal(m.swizzle, 0);
                found++;
            }
            if (m.address == far[2]) {
                assert_memory_equal(m.dim, ((uint64_t[]){128, 128, 4, 1}), 4 * sizeof(uint64_t));
                assert_memory_equal(m.box, ((unsigned[]){64, 128, 1, 1}), 4 * sizeof(unsigned));
                assert_int_equal(m.stride[0], 256);
                assert_int_equal(m.swizzle, CU_TMAP_SWIZZLE_128B);
                assert_int_equal(m.stride[1], repeated ? 0 : 128 * 128 * 2);
                found++;
            }
        }
        assert_int_equal(found, 2);
    }
    static const struct {
        int64_t head, row;
        const char *why;
    } odd[] = {{128 * 128, 129, "pair: stride of q is 129, TMA takes multiples of 8 from 0 to 549755813880"},
               {-128 * 128, 128, "pair: stride of h is -16384, TMA takes multiples of 8 from 0 to 549755813880"}};
    for (int i = 0; i < 2; i++) {
        char why[256];
        Args x = with_elements(odd[i].head, odd[i].row);
        assert_int_equal(ag_args_bind(&bound, &launched, z.s, x.a, TENSORS + 1, &err), ATTNGEN_OK);
        assert_false(ag_args_mappable(&bound));
        assert_true(ag_args_rows_mappable(&bound));
        ag_args_unmapped(&bound, why, sizeof why);
        assert_string_equal(why, odd[i].why);
        assert_int_equal(ag_companion_for(&bound), COMPANION_UNSTAGED);
        x.a[K].stride[2] = 65;
        assert_int_equal(ag_args_bind(&bound, &launched, z.s, x.a, TENSORS + 1, &err), ATTNGEN_OK);
        assert_int_equal(ag_companion_for(&bound), COMPANION_PORTABLE);
    }
    ag_driver_unload(l);
    ag_compilation_free(c);
}

/* A store writes whole pieces: a row of 31 channels would end behind the tensor.  Loads of such rows are fine. */
static void test_stores_of_odd_rows(void **state) {
    (void)state;
    static const attngen_source text = {"t.yaml", "attention: t\n", 13};
    const attngen_dim dims[] = {{"D", 31}};
    Compilation *c = ag_compile_text(&text, NULL, "sm_90a", dims, 1, NULL);
    Sizes one = sizes(1, 1, 1, 1, 1, 0, 31);
    one.s[SZ_DV] = 31;
    Args x = contiguous(31);
    for (int i = Q; i <= O; i++) x.a[i].data = memory + 512;
    assert_int_equal(ag_args_bind(&bound, &c->meta, one.s, x.a, 4, &err), ATTNGEN_OK);
    char reason[256];
    assert_false(ag_args_mappable(&bound));
    ag_args_unmapped(&bound, reason, sizeof reason);
    assert_string_equal(reason, "o: extent of d is 31, TMA stores multiples of 8");
    ag_compilation_free(c);
}

static void test_driver_without_maps(void **state) {
    (void)state;
    CudaApi old = api;
    Driver *d;
    Loaded *l;
    old.tensor_map = NULL;
    assert_int_equal(ag_driver_over(&d, &old, &err), ATTNGEN_OK);
    assert_int_equal(ag_driver_load(d, 0, cubin, sizeof cubin, &launched, &l, &err), ATTNGEN_OK);
    ag_driver_unload(l);
    launched = mapped_program();
    assert_int_equal(ag_driver_load(d, 0, cubin, sizeof cubin, &launched, &l, &err), ATTNGEN_E_DRIVER);
    assert_string_equal(err.text, "the CUDA driver has no cuTensorMapEncodeTiled, which programs for sm_90a need: a driver for CUDA 12.0 or newer "
                                  "(525 or newer) is needed");
    assert_null(l);
    assert_int_equal(fake.current, -1);
    free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meta_valid),
        DRIVER(test_maps),
        DRIVER(test_maps_of_panels_and_packed_heads),
        DRIVER(test_maps_are_kept),
        DRIVER(test_map_fails),
        DRIVER(test_maps_of_a_thread),
        DRIVER(test_maps_of_small_tensors),
        DRIVER(test_maps_without_keys),
        DRIVER(test_not_mappable),
        DRIVER(test_elements),
        cmocka_unit_test(test_stores_of_odd_rows),
        DRIVER(test_driver_without_maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
