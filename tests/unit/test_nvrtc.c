/* NVRTC: the search by path, the ptxas report, and, where NVRTC is on the machine, real compilations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jit.h"
#include "with_folder.h"

/* ---- a tree of false libraries */

/* Makes root/name with its folders. */
static void plant(const char *name, const char *content) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

static char path[4096], id[256], text[16384];

static void finds(const char *explicit_path, const NvrtcEnv *env, const char *expected) {
    Err e = {0};
    assert_int_equal(ag_nvrtc_find(explicit_path, env, path, id, text, sizeof text, &e), ATTNGEN_OK);
    assert_string_equal(path, in_root(expected));
}

static void test_order(void **state) {
    (void)state;
    plant("opt/libnvrtc.so.13", "1");
    plant("own/libnvrtc.so.12", "1");
    plant("cuda/lib64/libnvrtc.so.12", "1");
    plant("load/libnvrtc.so.12", "1");
    plant("load/libnvrtc.so.13", "1");
    char list[1024];
    snprintf(list, sizeof list, "%s::%s:/nowhere", in_root("empty"), in_root("load"));
    NvrtcEnv env = {.attngen_nvrtc = in_root("own"), .cuda_home = in_root("cuda"), .ld_library_path = list};
    finds(in_root("opt/libnvrtc.so.13"), &env, "opt/libnvrtc.so.13");
    finds(NULL, &env, "own/libnvrtc.so.12");
    env.attngen_nvrtc = "";
    finds(NULL, &env, "cuda/lib64/libnvrtc.so.12");
    env.cuda_home = in_root("nothing");
    Err e = {0};
    assert_int_equal(ag_nvrtc_find(NULL, &env, path, id, text, sizeof text, &e), ATTNGEN_OK);
    if (!strstr(path, "/nvrtc/")) assert_string_equal(path, in_root("load/libnvrtc.so.13")); /* a bundle's own comes before */
    assert_ptr_equal(strstr(text, "$CUDA_HOME "), text);
    assert_non_null(strstr(text, "/nothing/lib64: not there\n"));
}

static void test_cuda_home_with_odd_name(void **state) {
    (void)state;
    plant("a[b]*c/lib64/libnvrtc.so.13", "1");
    NvrtcEnv env = {.cuda_home = in_root("a[b]*c")};
    finds(NULL, &env, "a[b]*c/lib64/libnvrtc.so.13");
}

static void test_link_is_resolved(void **state) {
    (void)state;
    plant("lib64/libnvrtc.so.13.0.88", "12345");
    assert_int_equal(symlink("libnvrtc.so.13.0.88", in_root("lib64/libnvrtc.so.13")), 0);
    NvrtcEnv env = {.cuda_home = root};
    finds(NULL, &env, "lib64/libnvrtc.so.13.0.88");
    assert_ptr_equal(strstr(id, "libnvrtc.so.13.0.88 5 "), id);
}

static void test_id_follows_the_content(void **state) {
    (void)state;
    char first[256], big[200001];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    plant("lib64/libnvrtc.so.13", big);
    NvrtcEnv env = {.cuda_home = root};
    finds(NULL, &env, "lib64/libnvrtc.so.13");
    snprintf(first, sizeof first, "%s", id);
    finds(NULL, &env, "lib64/libnvrtc.so.13");
    assert_string_equal(id, first);
    big[sizeof big - 2] = 'y'; /* the same size, another end */
    plant("lib64/libnvrtc.so.13", big);
    finds(NULL, &env, "lib64/libnvrtc.so.13");
    assert_string_not_equal(id, first);
}

static void test_dangling_link_is_passed_over(void **state) {
    (void)state;
    plant("lib64/libnvrtc.so.12", "1");
    assert_int_equal(symlink("gone", in_root("lib64/libnvrtc.so.13")), 0);
    NvrtcEnv env = {.cuda_home = root};
    finds(NULL, &env, "lib64/libnvrtc.so.12");
}

static void test_named_but_not_there(void **state) {
    (void)state;
    Err e = {0};
    NvrtcEnv env = {.attngen_nvrtc = "/nowhere/nvrtc", .cuda_home = root};
    plant("lib64/libnvrtc.so.13", "1");
    assert_int_equal(ag_nvrtc_find(NULL, &env, path, id, NULL, 0, &e), ATTNGEN_E_NO_NVRTC);
    assert_string_equal(e.text, "$ATTNGEN_NVRTC is '/nowhere/nvrtc': neither a file nor a folder with libnvrtc.so.13 or libnvrtc.so.12");
    assert_int_equal(ag_nvrtc_find("/nowhere/x", &env, path, id, NULL, 0, &e), ATTNGEN_E_NO_NVRTC);
    assert_string_equal(e.text, "the nvrtc option is '/nowhere/x': neither a file nor a folder with libnvrtc.so.13 or libnvrtc.so.12");
}

static void test_open_what_is_no_library(void **state) {
    (void)state;
    Err e = {0};
    Nvrtc *n;
    plant("libnvrtc.so.13", "no ELF file");
    assert_int_equal(ag_nvrtc_open(&n, in_root("libnvrtc.so.13"), &e), ATTNGEN_E_NO_NVRTC);
    assert_null(n);
    assert_ptr_equal(strstr(e.text, "cannot open NVRTC: "), e.text);
    assert_int_equal(ag_nvrtc_open(&n, "libc.so.6", &e), ATTNGEN_E_NO_NVRTC);
    assert_string_equal(e.text, "libc.so.6 has no nvrtcVersion: NVRTC 12.3 or newer is needed");
}

/* ---- the report */

static void test_report(void **state) {
    (void)state;
    static const char log[] = "ptxas info    : 0 bytes gmem\n"
                              "ptxas info    : Compiling entry function 's' for 'sm_90'\n"
                              "ptxas info    : Function properties for s\n"
                              "ptxas         .     2568 bytes stack frame, 3064 bytes spill stores, 5900 bytes spill loads\n"
                              "ptxas info    : Used 32 registers, used 1 barriers, 2568 bytes cumulative stack size\n"
                              "ptxas info    : Function properties for t\n"
                              "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                              "ptxas info    : Used 168 registers, 360 bytes cmem[0]";
    char warning[128];
    PtxasReport r = ag_ptxas_report(log, warning, sizeof warning);
    assert_int_equal(r.registers, 168);
    assert_int_equal(r.spill_bytes, 8964);
    assert_false(r.serialised);
    assert_string_equal(warning, "");
    r = ag_ptxas_report("a\nptxas info    : (C7510) Potential Performance Loss: x\nb (C7508)\n", warning, sizeof warning);
    assert_int_equal(r.registers, 0);
    assert_false(r.serialised);
    assert_string_equal(warning, "ptxas info    : (C7510) Potential Performance Loss: x");
    r = ag_ptxas_report("(C7600) (C75) (C75x1) C7510 Used registers", warning, sizeof warning);
    assert_string_equal(warning, "");
    assert_int_equal(r.registers, 0);
}

/* Two warnings say that registers are short, which is no defect of the text as such; another beside them is. */
static void test_report_of_shortage(void **state) {
    (void)state;
    static const char
        pipeline[] = "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register "
                     "resources for the wgmma pipeline in the function 'f'\n",
        function[] = "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register "
                     "resources for the function 'f'\n";
    char warning[128], both[sizeof pipeline + 64];
    assert_true(ag_ptxas_report(pipeline, warning, sizeof warning).serialised);
    assert_string_equal(warning, "");
    assert_true(ag_ptxas_report(function, warning, sizeof warning).serialised);
    assert_string_equal(warning, "");
    snprintf(both, sizeof both, "%s(C7508) 'setmaxnreg' ignored\n", pipeline);
    assert_true(ag_ptxas_report(both, warning, sizeof warning).serialised);
    assert_string_equal(warning, "(C7508) 'setmaxnreg' ignored");
    assert_false(ag_ptxas_report("serialized due to insufficient register resources", warning, sizeof warning).serialised);
}

/* ---- compiling */

/* NULL: not on this machine.  One for all tests: opening takes milliseconds. */
static Nvrtc *nvrtc(void) {
    static Nvrtc *n;
    static bool tried;
    Err e = {0};
    NvrtcEnv env = {getenv("ATTNGEN_NVRTC"), getenv("CUDA_HOME"),    getenv("LD_LIBRARY_PATH"),
                    getenv("VIRTUAL_ENV"),   getenv("CONDA_PREFIX"), getenv("HOME")};
    if (!tried && ag_nvrtc_find(NULL, &env, path, id, NULL, 0, &e) == ATTNGEN_OK) {
        assert_int_equal(ag_nvrtc_open(&n, path, &e), ATTNGEN_OK);
    }
    tried = true;
    return n;
}

static int close_nvrtc(void **state) {
    (void)state;
    ag_nvrtc_close(nvrtc());
    return 0;
}

static const char plain[] = "extern \"C\" __global__ void k(float *p) { p[threadIdx.x] = 1.f; }";

static void test_compile(void **state) {
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_86", "sm_89", "sm_90"};
    if (!nvrtc()) skip();
    for (int i = 0; i < 4; i++) {
        Err e = {0};
        Compiled c, again;
        assert_int_equal(ag_nvrtc_compile(nvrtc(), plain, arch[i], false, &c, &e), ATTNGEN_OK);
        assert_true(c.size > 1000);
        assert_memory_equal(c.image, "\177ELF", 4);
        assert_in_range(c.report.registers, 2, 32);
        assert_int_equal(c.report.spill_bytes, 0);
        assert_int_equal(ag_nvrtc_compile(nvrtc(), plain, arch[i], false, &again, &e), ATTNGEN_OK);
        assert_int_equal(again.size, c.size);
        assert_memory_equal(again.image, c.image, c.size);
        ag_compiled_free(&c);
        ag_compiled_free(&again);
    }
}

static void test_ptx(void **state) {
    (void)state;
    Err e = {0};
    Compiled c;
    if (!nvrtc()) skip();
    assert_int_equal(ag_nvrtc_compile(nvrtc(), plain, "sm_90", true, &c, &e), ATTNGEN_OK);
    assert_non_null(strstr(c.image, ".target sm_90"));
    assert_int_equal(c.size, strlen(c.image));
    ag_compiled_free(&c);
}

static void test_bad_code(void **state) {
    (void)state;
    Err e = {0};
    Compiled c;
    if (!nvrtc()) skip();
    assert_int_equal(ag_nvrtc_compile(nvrtc(), "extern \"C\" __global__ void k() { nonsense; }", "sm_90", false, &c, &e), ATTNGEN_E_COMPILE);
    assert_non_null(strstr(e.text, " refused the generated code: attngen.cu(1): error: identifier \"nonsense\" is undefined"));
    assert_non_null(strstr(c.log, "1 error detected"));
    assert_null(c.image);
    ag_compiled_free(&c);
}

static void test_spills(void **state) {
    (void)state;
    static const char source[] = "extern \"C\" __global__ void __launch_bounds__(1024, 2) k(float *p) {\n"
                                 "    float a[128], t = 0;\n"
                                 "#pragma unroll\n"
                                 "    for (int i = 0; i < 128; i++) a[i] = p[i * 1024 + threadIdx.x];\n"
                                 "    __syncthreads();\n"
                                 "#pragma unroll\n"
                                 "    for (int i = 0; i < 128; i++) t += a[i] * a[(i * 7 + 3) % 128];\n"
                                 "#pragma unroll\n"
                                 "    for (int i = 0; i < 128; i++) p[i * 1024 + threadIdx.x] = a[i] + t;\n"
                                 "}\n";
    Err e = {0};
    Compiled c;
    if (!nvrtc()) skip();
    assert_int_equal(ag_nvrtc_compile(nvrtc(), source, "sm_90", false, &c, &e), ATTNGEN_OK);
    assert_int_equal(c.report.registers, 32);
    assert_in_range(c.report.spill_bytes, 64, 100000);
    ag_compiled_free(&c);
}

static void test_performance_warning_is_an_error(void **state) {
    (void)state;
    static const char source[] = "extern \"C\" __global__ void k(float *p) {\n"
                                 "    asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\");\n"
                                 "    p[threadIdx.x] = 1.f;\n"
                                 "}\n";
    Err e = {0};
    Compiled c;
    if (!nvrtc()) skip();
    assert_int_equal(ag_nvrtc_compile(nvrtc(), source, "sm_90a", false, &c, &e), ATTNGEN_E_COMPILE);
    assert_ptr_equal(strstr(e.text, "the generated code does not compile as meant: ptxas info    : (C7508) "), e.text);
    ag_compiled_free(&c);
    assert_int_equal(ag_nvrtc_compile(nvrtc(), source, "sm_90a", NVRTC_SLOW, &c, &e), ATTNGEN_OK);
    assert_non_null(strstr(c.log, "(C7508)"));
    assert_non_null(c.image);
    ag_compiled_free(&c);
}

/* No option may take setmaxnreg away from a kernel that uses it well. */
static void test_registers_move_between_warps(void **state) {
    (void)state;
    static const char source[] = "extern \"C\" __global__ void __launch_bounds__(384, 1) k(float *p) {\n"
                                 "    if (threadIdx.x < 128) {\n"
                                 "        asm volatile(\"setmaxnreg.dec.sync.aligned.u32 24;\");\n"
                                 "    } else {\n"
                                 "        asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\");\n"
                                 "        p[threadIdx.x] = 1.f;\n"
                                 "    }\n"
                                 "}\n";
    Err e = {0};
    Compiled c;
    if (!nvrtc()) skip();
    assert_int_equal(ag_nvrtc_compile(nvrtc(), source, "sm_90a", false, &c, &e), ATTNGEN_OK);
    assert_int_equal(c.report.registers, 168);
    ag_compiled_free(&c);
}

static void test_unknown_arch(void **state) {
    (void)state;
    Err e = {0};
    Compiled c;
    if (!nvrtc()) skip();
    assert_int_equal(ag_nvrtc_compile(nvrtc(), plain, "sm_20", false, &c, &e), ATTNGEN_E_UNSUPPORTED);
    assert_non_null(strstr(e.text, " does not know sm_20: it knows sm_"));
    ag_compiled_free(&c);
    assert_int_equal(ag_nvrtc_compile(nvrtc(), plain, "gfx942", false, &c, &e), ATTNGEN_E_UNSUPPORTED);
    assert_string_equal(e.text, "'gfx942' is no architecture");
    ag_compiled_free(&c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_order),
        TEST(test_cuda_home_with_odd_name),
        TEST(test_link_is_resolved),
        TEST(test_id_follows_the_content),
        TEST(test_dangling_link_is_passed_over),
        TEST(test_named_but_not_there),
        TEST(test_open_what_is_no_library),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_report_of_shortage),
        cmocka_unit_test(test_compile),
        cmocka_unit_test(test_ptx),
        cmocka_unit_test(test_bad_code),
        cmocka_unit_test(test_spills),
        cmocka_unit_test(test_performance_warning_is_an_error),
        cmocka_unit_test(test_registers_move_between_warps),
        cmocka_unit_test(test_unknown_arch),
    };
    return cmocka_run_group_tests(tests, NULL, close_nvrtc);
}
