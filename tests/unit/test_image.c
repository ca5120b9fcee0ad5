/* test_image.c: kernels compiled side by side; several cubins in one block of memory, also where that is damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "jit.h"

static Nvrtc *nvrtc;
static ImageCubin cubin[META_KERNELS];

static const char *const kernels[] = {
    "extern \"C\" __global__ void a(float *p) { p[threadIdx.x] = 1.f; }",
    "extern \"C\" __global__ void b(float *p) { for (int i = 0; i < 9; i++) p[threadIdx.x + i * 64] = sinf(p[i]); }",
    "extern \"C\" __global__ void c(float *p) { p[threadIdx.x] *= p[0]; }",
};

static int open_nvrtc(void **state) {
    (void)state;
    static char path[4096], id[256];
    Err e;
    NvrtcEnv env = {getenv("ATTNGEN_NVRTC"), getenv("CUDA_HOME"),    getenv("LD_LIBRARY_PATH"),
                    getenv("VIRTUAL_ENV"),   getenv("CONDA_PREFIX"), getenv("HOME")};
    if (ag_nvrtc_find(NULL, &env, path, id, NULL, 0, &e) == ATTNGEN_OK) assert_int_equal(ag_nvrtc_open(&nvrtc, path, &e), ATTNGEN_OK);
    return 0;
}
static int close_nvrtc(void **state) {
    (void)state;
    ag_nvrtc_close(nvrtc);
    return 0;
}

/* Each text's cubin, in their order, is what the text alone gives. */
static void test_side_by_side(void **state) {
    (void)state;
    Compiled all, one;
    Err e;
    int failed;
    if (!nvrtc) skip();
    assert_int_equal(ag_image_compile(nvrtc, kernels, 3, "sm_90", 0, &all, &failed, &e), ATTNGEN_OK);
    assert_int_equal(ag_image_cubins(all.image, all.size, cubin), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ag_nvrtc_compile(nvrtc, kernels[i], "sm_90", 0, &one, &e), ATTNGEN_OK);
        assert_int_equal(cubin[i].size, one.size);
        assert_memory_equal(cubin[i].data, one.image, one.size);
        assert_int_equal((uintptr_t)cubin[i].data % 16, (uintptr_t)all.image % 16);
        assert_true(one.report.registers <= all.report.registers);
        char entry[] = "entry function 'a'";
        entry[sizeof entry - 3] = (char)('a' + i);
        assert_non_null(strstr(all.log, entry));
        for (int k = 0; k < 3; k++) assert_int_equal(ag_cubin_has(&cubin[i], (char[]){(char)('a' + k), 0}), k == i);
        assert_false(ag_cubin_has(&cubin[i], "") || ag_cubin_has(&cubin[i], "ab"));
        ag_compiled_free(&one);
    }
    ag_compiled_free(&all);
    assert_int_equal(ag_image_compile(nvrtc, kernels, 1, "sm_90", 0, &one, &failed, &e), ATTNGEN_OK); /* one is a cubin as it is */
    assert_memory_equal(one.image, "\177ELF", 4);
    assert_int_equal(ag_image_cubins(one.image, one.size, cubin), 1);
    assert_ptr_equal(cubin[0].data, one.image);
    ag_compiled_free(&one);
}

/* The first text that is refused is reported, whichever is done first. */
static void test_first_error(void **state) {
    (void)state;
    const char *text[] = {kernels[1], "extern \"C\" __global__ void d() { first; }", kernels[0], "nonsense"};
    Compiled c;
    Err e;
    int failed;
    if (!nvrtc) skip();
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ag_image_compile(nvrtc, text, 4, "sm_90", 0, &c, &failed, &e), ATTNGEN_E_COMPILE);
        assert_int_equal(failed, 1);
        assert_non_null(strstr(e.text, "identifier \"first\" is undefined"));
        assert_null(c.image);
        ag_compiled_free(&c);
    }
}

static void test_damaged(void **state) {
    (void)state;
    _Alignas(8) char p[512] = "agcubins";
    uint64_t n = 2, size[2] = {70, 5};
    const size_t first = (8 + 8 + 8 * META_KERNELS + 63) / 64 * 64, second = first + 128, end = second + 5;
    assert_true(end < sizeof p);
    memcpy(p + 8, &n, 8);
    memcpy(p + 16, size, 16);
    memcpy(p + first, "\177ELF", 4);
    memcpy(p + second, "\177ELF", 4);
    assert_int_equal(ag_image_cubins(p, end, cubin), 2);
    assert_ptr_equal(cubin[1].data, p + second);
    assert_int_equal(cubin[1].size, 5);
    for (size_t len = 0; len < end; len++) assert_int_equal(ag_image_cubins(p, len, cubin), 0);
    static const struct {
        size_t at;
        uint64_t v;
    } wrong[] = {{0, 1}, {8, 0}, {8, META_KERNELS + 1}, {8, UINT64_MAX}, {16, UINT64_MAX}, {24, UINT64_MAX - 63}, {24, 6}};
    for (int i = 0; i < LEN(wrong); i++) {
        char copy[sizeof p];
        memcpy(copy, p, sizeof p);
        memcpy(copy + wrong[i].at, &wrong[i].v, 8);
        assert_int_equal(ag_image_cubins(copy, end, cubin), 0);
    }
    p[second] = 0;
    assert_int_equal(ag_image_cubins(p, end, cubin), 0);
    assert_int_equal(ag_image_cubins("\177EL", 3, cubin), 0);
}

/* Of a cubin that is cut short or has wrong numbers nothing is read beyond its end, which sanitizers watch. */
static void test_damaged_cubin(void **state) {
    (void)state;
    Compiled one;
    Err e;
    if (!nvrtc) skip();
    assert_int_equal(ag_nvrtc_compile(nvrtc, kernels[0], "sm_90", 0, &one, &e), ATTNGEN_OK);
    for (size_t n = 0; n < one.size; n += n < 128 ? 1 : 61) {
        char *part = malloc(n ? n : 1);
        assert_non_null(part);
        memcpy(part, one.image, n);
        ag_cubin_has(&(ImageCubin){part, n}, "a");
        free(part);
    }
    char *copy = malloc(one.size);
    assert_non_null(copy);
    for (size_t at = 0; at < one.size; at += at < 64 ? 1 : 7) { /* the header byte by byte */
        memcpy(copy, one.image, one.size);
        copy[at] = (char)~copy[at];
        ag_cubin_has(&(ImageCubin){copy, one.size}, "a");
    }
    memcpy(copy, one.image, one.size);
    assert_true(ag_cubin_has(&(ImageCubin){copy, one.size}, "a"));
    copy[0x28 + 7] = 1; /* e_shoff, far beyond the end */
    assert_false(ag_cubin_has(&(ImageCubin){copy, one.size}, "a"));
    free(copy);
    ag_compiled_free(&one);
}

/* A program of several kernels, from the cache as from NVRTC; its cubin as an artefact is one, of all kernels. */
static int count_elf(void *payload, const void *data, size_t n) {
    size_t *size = payload;
    if (*size == 0) assert_memory_equal(data, "\177ELF", 4);
    return *size += n, 0;
}
static void test_program(void **state) {
    (void)state;
    static const char text[] = "attention: t\ninputs: {doc: {i32: [b, k]}}\nmask: doc[b, q] == doc[b, k]\n";
    const attngen_source spec = {"t.yaml", text, sizeof text - 1};
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    attngen_context *ctx;
    attngen_program *p;
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    size_t size = 0;
    if (!nvrtc) skip();
    o.arch = "sm_80";
    o.cache_dir = "";
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    assert_int_equal(attngen_compile(ctx, &p, &spec, NULL, &(attngen_dim){"D", 16}, 1), ATTNGEN_OK);
    assert_int_equal(attngen_program_info(p, &info), ATTNGEN_OK);
    assert_true(info.registers > 32);
    assert_int_equal(attngen_emit(ctx, p, ATTNGEN_EMIT_CUBIN, NULL, count_elf, &size), ATTNGEN_OK);
    assert_true(size > 10000);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_side_by_side), cmocka_unit_test(test_first_error), cmocka_unit_test(test_damaged),
                                       cmocka_unit_test(test_damaged_cubin), cmocka_unit_test(test_program)};
    return cmocka_run_group_tests(tests, open_nvrtc, close_nvrtc);
}
