/* What users of other attention libraries have reported, as cases here: those that concern forward and what this version has.
 *
 *   report                               what went wrong there                        where it is tested
 *   pytorch 139462                       a mask for longer tensors than are given     test_lengths
 *   pytorch 146377                       K and V as slices of a longer tensor         test_slices: the same bits as without
 *   pytorch 141126                       a block-sparse mask                          test_masks
 *   pytorch 163588                       one query, 1000 keys, a random mask          test_masks; every case of `attngen check` prints its error and the limit
 *   NATTEN PR 203                        NaN for at most 32 tokens at D 64            test_short
 *   pytorch 158212                       an index from a captured offset is -1        test_masks; test_captured.c: any subscript, and what lies around is NaN
 *   pytorch 172225                       a captured tensor broadcast over batches     test_broadcast: by a dim that is 1, never by the size
 *   pytorch 133717                       decode by 128, 129, ... keys, transposed     test_growing
 *   attention-gym 67, pytorch 137711     a captured mask read at padded queries       test_masks, with NaN behind the tensor
 *   pytorch 145869                       a bias of more than 2^31 elements            test_launch.c (test_reach): 64-bit offsets
 *   pytorch 147268, 141183               12800 keys, blocks with a memory token       test_long
 *   pytorch 134756, attention-gym 54     building a mask for a long sequence          test_workspace: none that grows with the square of the length, but 4 bytes a pair of tiles for documents
 *   SpecForge 452                        a mask for each head, for want of memory     test_workspace, with 64 heads
 *   attention-gym 127, pytorch PR 133495, flashinfer 790
 *                                        head dims 31, 96, 56                         test_check.c (test_grid_covers), compile_all; test_head_dims
 *   pytorch 143117, 151359, flashinfer 996, 258, 254
 *                                        groups that are no power of two, one query   test_groups
 *   pytorch 148527                       a mask by head with 8 queries                test_masks
 *   pytorch 180278, 133254, 198224       too much shared memory, and no advice        errors/schedule/shared_*.yaml, wgmma_shared*.yaml
 *   pytorch 141486, PR 189952, 133716    a new kernel for each length                 test_lengths: one compilation
 *   pytorch 134560, 136196, 152297       a mask by batch entry, the batch changes     test_batches: one compilation
 *   pytorch 171267, 149767               the host's time dominates short calls        tools/bench_host.c
 *   pytorch 145208, attention-gym 171, pytorch 157677
 *                                        learnt scalars, one table read twice         test_scores
 *   pytorch 139548                       a condition as score                         errors/spec/wants.yaml
 *   pytorch 151695                       scales of FP8 inputs                         specs/fp_scaled.yaml; FP8 itself is not in this version
 *   pytorch 155065                       both sides of different lengths              specs/jagged_cross.yaml, padded; ragged tensors are not in this version
 *   flashinfer PR 4695                   a mask lost on tiles off the boundary        test_masks; fuzz_specs; the simulator looks at every key
 *   flashinfer 972, PR 993, sglang 4389, vllm 41865
 *                                        stuck after a killed or beside other writers test_cache.c (test_killed_writers, test_sixteen_processes, test_read_only_folder)
 *   flashinfer 2968, vllm 47456, sglang 7339
 *                                        compile time                                 docs/performance.md; tools/gpu_flex.py measures it
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "with_archs.h"

static const char *const arch[] = {"sm_80", "sm_90a"};

/* Runs a spec for each arch on cases, by one compilation. */
static void passes(const char *spec, int D, const Case *cases, int n) {
    for (int a = 0; a < LEN(arch); a++) {
        Compilation *c = compiled(spec, arch[a], NULL, D, 0);
        for (int i = 0; i < n; i++) {
            char *wrong = result(c, &cases[i], false);
            if (*wrong) fail_msg("%s, case %d: %s\n%s", arch[a], i, wrong, spec);
            free(wrong);
        }
        ag_compilation_free(c);
    }
}

#define PASSES(spec, D, ...)                                                                                                                         \
    do {                                                                                                                                             \
        const Case cases_[] = {__VA_ARGS__};                                                                                                         \
        passes(spec, D, cases_, LEN(cases_));                                                                                                        \
    } while (0)

static const char causal[] = "attention: a\nmask: k <= q\n";

static void test_lengths(void **state) {
    (void)state;
    PASSES(causal, 16, {.B = 2, .Hkv = 1, .group = 1, .Sq = 2, .Sk = 2, .offset = 0},
           {.B = 1, .Hkv = 1, .group = 1, .Sq = 320, .Sk = 320, .offset = 0}, {.B = 1, .Hkv = 1, .group = 1, .Sq = 256, .Sk = 256, .offset = 0},
           {.B = 1, .Hkv = 1, .group = 1, .Sq = 192, .Sk = 192, .offset = 0}, {.B = 1, .Hkv = 1, .group = 1, .Sq = 128, .Sk = 128, .offset = 0});
}

/* The bits of o, in order. */
static uint16_t *bits_of(const Compilation *c, const Case *shape) {
    CaseData d;
    Buf text = {0};
    ProgramBuffers buffers;
    assert_true(ag_check_data(&d, shape, c->fn.spec, 5));
    assert_true(ag_simulate_program(c, &d.call, &buffers, &text));
    const int64_t *n = d.call.size;
    uint16_t *bits = malloc((size_t)(n[SZ_B] * n[SZ_HQ] * n[SZ_SQ] * n[SZ_DV]) * sizeof *bits), *to = bits;
    assert_non_null(bits);
    for (int64_t b = 0; b < n[SZ_B]; b++)
        for (int64_t h = 0; h < n[SZ_HQ]; h++)
            for (int64_t i = 0; i < n[SZ_SQ]; i++)
                for (int64_t j = 0; j < n[SZ_DV]; j++) {
                    const int64_t *s = d.call.o.stride;
                    *to++ = ((const uint16_t *)d.call.o.data)[b * s[0] + h * s[1] + i * s[2] + j * s[3]];
                }
    ag_program_buffers_free(&buffers);
    ag_check_data_free(&d);
    return bits;
}

static void test_slices(void **state) {
    (void)state;
    for (int a = 0; a < LEN(arch); a++) {
        Compilation *c = compiled("attention: a\n", arch[a], NULL, 64, 0);
        Case whole = {.B = 1, .Hkv = 2, .group = 1, .Sq = 40, .Sk = 397, .offset = ATTNGEN_ALIGN_END}, slice = whole;
        slice.layout = LAY_TAIL;
        uint16_t *x = bits_of(c, &whole), *y = bits_of(c, &slice);
        assert_memory_equal(x, y, 2 * 40 * 64 * sizeof *x);
        free(x), free(y);
        ag_compilation_free(c);
    }
}

static void test_masks(void **state) {
    (void)state;
    PASSES("attention: a\ninputs: {block: {bool: [h, 4, 4]}}\nmask: |-\n  block[h, q // 64, k // 64]\n", 16,
           {.B = 1, .Hkv = 4, .group = 1, .Sq = 200, .Sk = 200, .offset = 0});
    PASSES("attention: a\ninputs: {seen: {bool: [q, k]}}\nmask: |-\n  seen[q, k]\n", 64,
           {.B = 1, .Hkv = 1, .group = 1, .Sq = 1, .Sk = 1000, .offset = ATTNGEN_ALIGN_END},
           {.B = 1, .Hkv = 1, .group = 1, .Sq = 300, .Sk = 300, .offset = 0},
           {.B = 1, .Hkv = 1, .group = 1, .Sq = 162, .Sk = 5248, .offset = 0, .layout = LAY_TAIL});
    PASSES("attention: a\ninputs: {offset: {i32: [b]}, first: {i32: [k]}}\nmask: |-\n  k <= q and k >= first[offset[b]]\n", 16,
           {.B = 4, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 90, .offset = 0},
           {.B = 9, .Hkv = 1, .group = 1, .Sq = 3, .Sk = 40, .offset = 0, .layout = LAY_TAIL});
    PASSES("attention: a\ninputs: {kind: {bool: [h]}}\nmask: |-\n  kind[h] and k <= q\n", 16,
           {.B = 1, .Hkv = 32, .group = 1, .Sq = 8, .Sk = 8, .offset = 0});
}

static void test_short(void **state) {
    (void)state;
    static const int length[] = {1, 7, 31, 32};
    for (int i = 0; i < LEN(length); i++)
        for (int f16 = 0; f16 < 2; f16++) {
            const attngen_dim dims[] = {{"D", 64}, {"dtype", f16 ? ATTNGEN_F16 : ATTNGEN_BF16}};
            static const char text[] = "attention: a\nmask: abs(k - clamp(q, 6, Sk - 7)) <= 6\n";
            const attngen_source s = {"spec.yaml", text, sizeof text - 1};
            const Case shape = {.B = 1, .Hkv = 2, .group = 1, .Sq = length[i], .Sk = length[i], .offset = 0};
            for (int a = 0; a < LEN(arch); a++) {
                Compilation *c = ag_compile_text(&s, NULL, arch[a], dims, 2, NULL);
                must_compile(c);
                char *wrong = result(c, &shape, false);
                if (*wrong) fail_msg("%s, S %d: %s", arch[a], length[i], wrong);
                free(wrong);
                ag_compilation_free(c);
            }
        }
}

static void test_broadcast(void **state) {
    (void)state;
    PASSES("attention: a\ninputs: {bias: {f32: [1, h, q]}, slope: {f32: [1]}}\nscore: |-\n  s * slope[h] + bias[b, h, q] * k\n", 16,
           {.B = 4, .Hkv = 2, .group = 1, .Sq = 30, .Sk = 50, .offset = 0, .layout = LAY_TAIL});
}

static void test_growing(void **state) {
    (void)state;
    Case cases[8];
    static const int more[LEN(cases)] = {0, 1, 2, 31, 32, 63, 64, 99};
    for (int i = 0; i < LEN(cases); i++)
        cases[i] = (Case){.B = 1, .Hkv = 16, .group = 1, .Sq = 1, .Sk = 128 + more[i], .offset = ATTNGEN_ALIGN_END, .layout = LAY_BSHD};
    passes("attention: a\ninputs: {offset: {i32: []}}\nmask: k <= q + offset\n", 64, cases, LEN(cases));
}

static void test_long(void **state) {
    (void)state;
    PASSES("attention: a\nmask: k <= q and (k // 64 == q // 64 or k % 64 == 63)\n", 16,
           {.B = 1, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 12800, .offset = ATTNGEN_ALIGN_END},
           {.B = 1, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 1280, .offset = 100});
}

static void test_workspace(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t limit;
    } specs[] = {{"causal", 1 << 20},
                 {"sliding_window", 1 << 20},
                 {"document", (size_t)520 << 20 /* 4 bytes for each pair of tiles of 128 queries and 64 keys */}};
    enum { TOKENS = 1 << 20, HEADS = 64 };
    for (int a = 0; a < LEN(arch); a++)
        for (int i = 0; i < LEN(specs); i++) {
            attngen_options o = ATTNGEN_OPTIONS_INIT;
            attngen_context *ctx = NULL;
            attngen_program *p = NULL;
            attngen_call *call = NULL;
            attngen_source s;
            o.arch = arch[a], o.cache_dir = "";
            assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
            assert_int_equal(attngen_shipped_spec(&s, specs[i].name), ATTNGEN_OK);
            assert_int_equal(attngen_lower(ctx, &p, &s, NULL, NULL, 0), ATTNGEN_OK);
            assert_int_equal(attngen_bind(ctx, &call, p, &(attngen_shape){1, HEADS, HEADS, TOKENS, TOKENS, ATTNGEN_ALIGN_END}), ATTNGEN_OK);
            assert_true(attngen_workspace(call) <= specs[i].limit);
            attngen_call_free(call);
            attngen_program_free(p);
            attngen_destroy(ctx);
        }
}

static void test_head_dims(void **state) {
    (void)state;
    static const int D[] = {31, 56, 96};
    for (int i = 0; i < LEN(D); i++)
        PASSES(causal, D[i], {.B = 1, .Hkv = 1, .group = 1, .Sq = 1, .Sk = 129, .offset = ATTNGEN_ALIGN_END},
               {.B = 1, .Hkv = 1, .group = 1, .Sq = 65, .Sk = 65, .offset = 0});
}

static void test_groups(void **state) {
    (void)state;
    static const int group[] = {3, 5, 6, 7, 12};
    for (int i = 0; i < LEN(group); i++) PASSES(causal, 32, {.B = 2, .Hkv = 2, .group = group[i], .Sq = 1, .Sk = 1024, .offset = ATTNGEN_ALIGN_END});
}

static void test_batches(void **state) {
    (void)state;
    PASSES("attention: a\ninputs: {cut: {i32: [b]}}\nmask: |-\n  k <= q and k >= cut[b]\n", 16,
           {.B = 8, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 60, .offset = ATTNGEN_ALIGN_END},
           {.B = 3, .Hkv = 1, .group = 1, .Sq = 40, .Sk = 60, .offset = ATTNGEN_ALIGN_END});
}

static void test_scores(void **state) {
    (void)state;
    static const char *const scores[] = {"s * t", "s + t", "s + bias[q - k + Sk] + bias[k]", "s + t * bias[k] - bias[q]"};
    for (int i = 0; i < LEN(scores); i++) {
        Buf spec = {0};
        ag_put(&spec, "attention: a\ninputs:\n%s%sscore: %s\n", strstr(scores[i], "t") ? "  t: {f32: []}\n" : "",
               strstr(scores[i], "bias") ? "  bias: {f32: [k]}\n" : "", scores[i]);
        PASSES(spec.s, 16, {.B = 1, .Hkv = 2, .group = 1, .Sq = 70, .Sk = 90, .offset = 0});
        ag_buf_free(&spec);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lengths), cmocka_unit_test(test_slices),    cmocka_unit_test(test_masks),
                                       cmocka_unit_test(test_short),   cmocka_unit_test(test_broadcast), cmocka_unit_test(test_growing),
                                       cmocka_unit_test(test_long),    cmocka_unit_test(test_workspace), cmocka_unit_test(test_head_dims),
                                       cmocka_unit_test(test_groups),  cmocka_unit_test(test_batches),   cmocka_unit_test(test_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
