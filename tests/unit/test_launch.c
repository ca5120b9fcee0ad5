/* Launching: formulas, sizes, arguments, the argument struct, and over a false driver the exact calls that a launch makes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "false_driver.h"

/* ---- formulas */

static int64_t eval(const Formula *f) {
    int64_t s[SZ_COUNT] = {[SZ_B] = 3, [SZ_SQ] = 130, [SZ_SK] = INT64_MAX, [SZ_OFF] = -5};
    return ag_formula(f, s);
}

static void test_formula(void **state) {
    (void)state;
    static const struct {
        Formula f;
        int64_t value;
    } row[] = {
        {{{FO_CONST, 7, FO_END}}, 7},
        {{{FO_SIZE, SZ_SQ, FO_CONST, 64, FO_CEILDIV, FO_SIZE, SZ_B, FO_MUL, FO_END}}, 9},
        {{{FO_SIZE, SZ_OFF, FO_CONST, 3, FO_SUB, FO_END}}, -8},
        {{{FO_CONST, 2, FO_CONST, 5, FO_MIN, FO_CONST, 4, FO_MAX, FO_CONST, 1, FO_ADD, FO_END}}, 5},
        {{{FO_SIZE, SZ_OFF, FO_CONST, 2, FO_CEILDIV, FO_END}}, -2},
        {{{FO_CONST, 0, FO_CONST, 64, FO_CEILDIV, FO_END}}, 0},
        {{{FO_SIZE, SZ_SK, FO_CONST, 2, FO_MUL, FO_END}}, INT64_MAX},
        {{{FO_SIZE, SZ_SK, FO_CONST, -2, FO_MUL, FO_END}}, INT64_MIN},
        {{{FO_SIZE, SZ_SK, FO_CONST, 1, FO_ADD, FO_END}}, INT64_MAX},
        {{{FO_SIZE, SZ_SK, FO_CONST, 64, FO_CEILDIV, FO_END}}, INT64_MAX / 64 + 1},
        /* not formulas */
        {{{FO_END}}, INT64_MAX},
        {{{FO_ADD, FO_END}}, INT64_MAX},
        {{{FO_CONST, 1, FO_ADD, FO_END}}, INT64_MAX},
        {{{FO_CONST, 1, FO_CONST, 1, FO_END}}, INT64_MAX},
        {{{FO_CONST, 1, FO_CONST, 0, FO_CEILDIV, FO_END}}, INT64_MAX},
        {{{FO_SIZE, SZ_COUNT, FO_END}}, INT64_MAX},
        {{{FO_SIZE, -1, FO_END}}, INT64_MAX},
        {{{FO_CONST, 1, FO_CONST, 1, 99, FO_END}}, INT64_MAX},
        {{{[23] = FO_CONST}}, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) assert_int_equal(eval(&row[i].f), row[i].value);
    Formula full;
    for (int i = 0; i < 24; i++) full.op[i] = FO_CONST; /* fills the stack and has no end */
    assert_int_equal(eval(&full), INT64_MAX);
}

static void test_meta_valid(void **state) {
    (void)state;
    ProgramMeta good = program(64, 0), m;
    assert_true(ag_meta_valid(&good));
#define BAD(change)                                                                                                                                  \
    m = good;                                                                                                                                        \
    m.change;                                                                                                                                        \
    assert_false(ag_meta_valid(&m))
    BAD(nkernel = 0);
    BAD(nkernel = META_KERNELS + 1);
    BAD(ntensor = META_TENSORS + 1);
    BAD(nscalar = META_SCALARS + 1);
    BAD(spec[0] = 0);
    BAD(tensor[Q].rank = ATTNGEN_MOST_DIMS + 1);
    BAD(tensor[Q].elem_bytes = 0);
    BAD(tensor[Q].dim[3] = SZ_COUNT);
    BAD(kernel[0].threads = 0);
    BAD(kernel[0].param_bytes = META_PARAM_BYTES + 1);
    BAD(kernel[0].nslot = META_SLOTS + 1);
    BAD(kernel[0].slot[0].kind = SLOT_LOG2E + 1);
    BAD(kernel[0].slot[0].index = META_KERNEL_TENSORS);
    BAD(kernel[0].tensor[0] = TENSORS);
    BAD(kernel[0].keys = SZ_SQ);
    BAD(kernel[0].keys = META_SIZES);
    BAD(nderived = META_DERIVED + 1);
    BAD(kernel[0].slot[0].offset = 4);
    BAD(kernel[0].slot[0].offset = 48);
    BAD(kernel[0].slot[1].dim = 4);
    BAD(kernel[0].slot[2].index = SZ_COUNT);
    BAD(kernel[0].slot[3].index = WINDOW);
    BAD(kernel[0].slot[4].index = CAP);
    BAD(kernel[0].slot[0].kind = SLOT_TMAP);
    good.kernel[0].slot[5] = (Slot){SLOT_WORKSPACE, 0, 0, 32};
    assert_true(ag_meta_valid(&good));
    BAD(kernel[0].slot[5].offset = 28);
    BAD(kernel[0].slot[5].offset = 48);
#undef BAD
    memset(good.arch, 'x', sizeof good.arch);
    assert_false(ag_meta_valid(&good));
}

/* ---- sizes */

static void sizes_refused(Sizes s, uint32_t group, const char *expected) {
    ProgramMeta m = program(64, group);
    Err e = {0};
    assert_int_equal(ag_sizes_check(&m, s.s, &e), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(e.text, expected);
}

static void sizes_taken(Sizes s, uint32_t group) {
    ProgramMeta m = program(64, group);
    Err e = {0};
    assert_int_equal(ag_sizes_check(&m, s.s, &e), ATTNGEN_OK);
    assert_string_equal(e.text, "");
}

static void test_sizes(void **state) {
    (void)state;
    sizes_taken(usual(64), 0);
    sizes_taken(usual(64), 2);
    sizes_taken(sizes(0, 0, 0, 0, 0, 0, 64), 0);
    sizes_taken(sizes(1, 0, 2, 1, 1, 0, 64), 0);
    sizes_taken(sizes(1, 1, 1, 1, 1 << 29, (1 << 29) - 1, 64), 0);
    sizes_taken(sizes(1, 1, 1, 1, 1, -(1 << 29), 64), 0);
    sizes_taken(sizes(1, 1, 1, 1 << 29, 1 << 29, 0, 64), 0);
    sizes_taken(sizes(INT32_MAX, 1, 1, 64, 1, 0, 64), 0);
    sizes_refused(sizes(-1, 4, 2, 8, 16, 8, 64), 0, "B is -1: must be from 0 to 2147483647");
    sizes_refused(sizes(2, 4, 2, 8, (int64_t)1 << 31, 8, 64), 0, "Sk is 2147483648: must be from 0 to 536870912");
    sizes_refused(sizes(2, 4, 2, (1 << 29) + 1, 1, 0, 64), 0, "Sq is 536870913: must be from 0 to 536870912");
    sizes_refused(sizes(2, 4, 2, 1, (1 << 29) + 1, 0, 64), 0, "Sk is 536870913: must be from 0 to 536870912");
    sizes_refused(sizes(2, (int64_t)1 << 31, 2, 8, 16, 8, 64), 0, "Hq is 2147483648: must be from 0 to 2147483647");
    sizes_refused(sizes(2, 4, 2, 8, 16, -(1 << 29) - 1, 64), 0, "off is -536870913: must be from -536870912 to 536870912");
    sizes_refused(sizes(2, 4, 2, 8, 16, (1 << 29) + 1, 64), 0, "off is 536870913: must be from -536870912 to 536870912");
    sizes_refused(sizes(1, 1, 1, 1 << 29, 1, 1 << 29, 64), 0, "off is 536870912 and Sq is 536870912: their sum must be at most 536870912");
    sizes_refused(sizes(2, 4, 3, 8, 16, 8, 64), 0, "Hq is 4 and Hkv is 3: Hq must be a multiple of Hkv");
    sizes_refused(sizes(2, 4, 0, 8, 16, 8, 64), 0, "Hq is 4 and Hkv is 0: Hq must be a multiple of Hkv");
    sizes_refused(usual(64), 8, "Hq is 4 and Hkv is 2: softcap is compiled for 8 query heads per KV head, so Hq must be 16");
    sizes_refused(usual(128), 0, "D is 128 and Dv is 128: softcap is compiled for 64 and 64");
    sizes_refused(sizes(65536, 32768, 1, 64, 1, 0, 64), 0,
                  "softcap_mma would need 2147483648 blocks with B 65536, Hq 32768, Sq 64: the most that a launch can have is 2147483647");
    sizes_refused(sizes(INT32_MAX, INT32_MAX, 1, 1 << 29, 1, 0, 64), 0,
                  "softcap_mma would need 9223372036854775807 blocks with B 2147483647, Hq 2147483647, Sq 536870912: the most that a launch can have "
                  "is 2147483647");
}

/* Persistent blocks count tiles in 32 bits, and a little past the last one. */
static void test_most_tiles(void **state) {
    (void)state;
    ProgramMeta m = program(64, 0);
    const Sizes most = sizes(2146435071, 1, 1, 64, 1, 0, 64), past = sizes(1 << 15, 65505, 1, 8, 1, 0, 64);
    assert_int_equal(ag_sizes_check(&m, past.s, &err), ATTNGEN_OK);
    m.kernel[0].per_sm = 1;
    assert_int_equal(ag_sizes_check(&m, most.s, &err), ATTNGEN_OK);
    assert_int_equal(ag_sizes_check(&m, past.s, &err), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(err.text, "softcap_mma would have 2146467840 tiles with B 32768, Hq 65505, Sq 8: the most that it can have is 2146435071");
}

/* ---- arguments */

static attngen_status bind(int64_t D, Sizes s, const attngen_arg *a, size_t n) {
    static ProgramMeta m;
    m = program((int)D, 0);
    memset(&err, 0, sizeof err);
    return ag_args_bind(&bound, &m, s.s, a, n, &err);
}

static void refused(const Args *x, size_t n, const char *expected) {
    assert_int_equal(bind(64, usual(64), x->a, n), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(err.text, expected);
}

static void test_bind(void **state) {
    (void)state;
    Args x = contiguous(64);
    x.a[4] = (attngen_arg){"window", NULL, {0}, -7};
    assert_int_equal(bind(64, usual(64), x.a, 5), ATTNGEN_OK);
    assert_true(bound.scalar[SCALE] == 0.125 && bound.scalar[CAP] == 50 && bound.scalar[WINDOW] == -7);
    assert_int_equal(bound.vec, 1 << Q | 1 << K | 1 << V | 1 << O);
    assert_null(bound.data[LSE]);
}

static void test_names(void **state) {
    (void)state;
    Args x = contiguous(64);
    refused(&x, 3, "argument 'o' is missing");
    refused(&x, 0, "argument 'q' is missing");
    x.a[4] = (attngen_arg){"K", memory, {0}, 0};
    refused(&x, 5, "unknown argument 'K': softcap takes q k v o lse scale cap window");
    x.a[4] = x.a[1];
    refused(&x, 5, "argument 'k' is given twice");
    x.a[4] = (attngen_arg){NULL, memory, {0}, 0};
    refused(&x, 5, "argument 4 has no name");
    assert_int_equal(bind(64, usual(64), NULL, 4), ATTNGEN_E_INVALID_ARG);
    assert_string_equal(err.text, "args is null and nargs is 4");
}

static void scalar_refused(const char *name, double value, const char *expected) {
    Args x = contiguous(64);
    x.a[4] = (attngen_arg){name, NULL, {0}, value};
    refused(&x, 5, expected);
}

static void test_scalars(void **state) {
    (void)state;
    scalar_refused("scale", 0, "scale is 0: must be greater than 0");
    scalar_refused("scale", -0.5, "scale is -0.5: must be greater than 0");
    scalar_refused("scale", (double)NAN, "scale is nan: must be finite");
    scalar_refused("scale", (double)INFINITY, "scale is inf: must be finite");
    scalar_refused("scale", 1e39, "scale is 1e+39: beyond the range of float");
    scalar_refused("scale", 1e-50, "scale is 1e-50: must be from 2^-100 to 2^100");
    scalar_refused("cap", -(double)INFINITY, "cap is -inf: must be finite");
    scalar_refused("window", 1.5, "window is 1.5: must be a whole number from -1073741824 to 1073741824");
    scalar_refused("window", 2147483648., "window is 2147483648: must be a whole number from -1073741824 to 1073741824");
    Args x = contiguous(64);
    x.a[4] = (attngen_arg){"cap", memory, {0}, 1};
    refused(&x, 5, "cap is a scalar: its data must be null");
}

static void test_data(void **state) {
    (void)state;
    Args x = contiguous(64);
    x.a[1].data = NULL;
    refused(&x, 4, "k: data is null");
    assert_int_equal(bind(64, sizes(2, 4, 2, 8, 0, 0, 64), x.a, 4), ATTNGEN_OK); /* no keys, nothing to point to */
    x.a[1].data = memory + 1;
    refused(&x, 4, "k: data is not aligned to 2 bytes");
    x = contiguous(64);
    x.a[4] = (attngen_arg){"lse", memory + 2, {32, 8, 1, 0}, 0};
    refused(&x, 5, "lse: data is not aligned to 4 bytes");
    x.a[4].data = NULL;
    assert_int_equal(bind(64, usual(64), x.a, 5), ATTNGEN_OK);
}

static void output_strides(int64_t b, int64_t h, int64_t q, int64_t d, const char *expected) {
    Args x = contiguous(64);
    int64_t s[4] = {b, h, q, d};
    memcpy(x.a[O].stride, s, sizeof s);
    if (expected)
        refused(&x, 4, expected);
    else
        assert_int_equal(bind(64, usual(64), x.a, 4), ATTNGEN_OK);
}

static void test_overlap(void **state) {
    (void)state;
    output_strides(2048, 64, 256, 1, NULL); /* [b, q, h, d] */
    output_strides(-2048, 512, -64, 1, NULL);
    output_strides(1, 2, 8, 64, NULL);     /* d outermost */
    output_strides(3, 2, 100, 1000, NULL); /* extents 2 and 4: 3 and 2 do meet at 6, but b has only 0 and 3 */
    output_strides(2048, 0, 64, 1, "o: stride of h is 0 with extent 4: the elements of an output must not coincide");
    output_strides(2048, 512, 64, 0, "o: stride of d is 0 with extent 64: the elements of an output must not coincide");
    output_strides(2048, 512, 32, 1, "o: strides 32 of q and 1 of d with extents 8 and 64: the elements of an output must not coincide");
    output_strides(2048, 64, -64, 1, "o: strides 64 of h and -64 of q with extents 4 and 8: the elements of an output must not coincide");
    output_strides(4, 2, 100, 1000, "o: strides 4 of b and 2 of h with extents 2 and 4: the elements of an output must not coincide");
    Args x = contiguous(64);
    x.a[K].stride[0] = x.a[K].stride[1] = x.a[K].stride[2] = 0; /* inputs may broadcast */
    assert_int_equal(bind(64, usual(64), x.a, 4), ATTNGEN_OK);
    x.a[4] = (attngen_arg){"lse", memory, {32, 8, 0, 0}, 0};
    refused(&x, 5, "lse: stride of q is 0 with extent 8: the elements of an output must not coincide");
    x = contiguous(64);
    x.a[O].stride[0] = 0;
    assert_int_equal(bind(64, sizes(1, 4, 2, 8, 16, 8, 64), x.a, 4), ATTNGEN_OK); /* extent 1 */
}

static void test_reach(void **state) {
    (void)state;
    Args x = contiguous(64);
    x.a[Q].stride[0] = (int64_t)1 << 40; /* beyond 32 bits is fine */
    assert_int_equal(bind(64, usual(64), x.a, 4), ATTNGEN_OK);
    x.a[Q].stride[0] = INT64_MAX / 2 + 1;
    refused(&x, 4, "q: its strides reach beyond 2^63 bytes");
    x.a[Q].stride[0] = INT64_MIN;
    refused(&x, 4, "q: its strides reach beyond 2^63 bytes");
}

static void explains(int64_t D, const Args *x, uint32_t vec, const char *expected) {
    char text[512];
    assert_int_equal(bind(D, usual(D), x->a, 4), ATTNGEN_OK);
    assert_int_equal(bound.vec, vec);
    ag_args_explain(&bound, text, sizeof text);
    assert_string_equal(text, expected);
}

static void test_pieces(void **state) {
    (void)state;
    enum { ALL = 1 << Q | 1 << K | 1 << V | 1 << O };
    Args x = contiguous(64);
    explains(64, &x, ALL, "");
    x.a[Q].data = memory + 8;
    explains(64, &x, ALL & ~(1 << Q), "q: element-wise loads, data is not aligned to 16 bytes");
    x = contiguous(64);
    x.a[Q].stride[3] = 2;
    x.a[O].stride[2] = 68;
    explains(64, &x, ALL & ~(1 << Q | 1 << O),
             "q: element-wise loads, stride of d is 2; o: element-wise stores, stride of q is 68, no multiple of 8");
    x = contiguous(64);
    x.a[K].stride[1] = 0, x.a[K].stride[2] = -64;
    explains(64, &x, ALL, "");
    x = contiguous(40);
    explains(40, &x, ALL, "");
    x = contiguous(31);
    explains(31, &x, 0,
             "q: element-wise loads, extent of d is 31, no multiple of 8; k: element-wise loads, extent of d is 31, no multiple of 8; "
             "v: element-wise loads, extent of d is 31, no multiple of 8; o: element-wise stores, extent of d is 31, no multiple of 8");
    char cut[12];
    ag_args_explain(&bound, cut, sizeof cut);
    assert_string_equal(cut, "q: element-");
    x = contiguous(64);
    x.a[Q].stride[0] = 3;
    assert_int_equal(bind(64, sizes(1, 4, 2, 8, 16, 8, 64), x.a, 4), ATTNGEN_OK);
    assert_int_equal(bound.vec, ALL); /* the stride of an extent of 1 is of no matter */
}

static void test_pack(void **state) {
    (void)state;
    unsigned char p[48 + 8];
    memset(p, 0xEE, sizeof p);
    Args x = contiguous(64);
    x.a[K].stride[1] = (int64_t)1 << 33;
    x.a[4] = (attngen_arg){"window", NULL, {0}, -7};
    assert_int_equal(bind(64, usual(64), x.a, 5), ATTNGEN_OK);
    ag_args_pack(&bound, &bound.meta->kernel[0], 0, p);
    struct {
        void *q;
        int64_t k_stride;
        int32_t off;
        float scale;
        int32_t window;
        uint32_t vec;
        float log2e_scale;
        int32_t hole;
        void *lse;
    } expected = {memory, (int64_t)1 << 33, 8, 0.125f, -7, 15, 0.125f * 1.44269504f, 0, NULL};
    assert_memory_equal(p, &expected, sizeof expected);
    assert_int_equal(p[48], 0xEE);
}

/* A kernel that takes 3 queries at a time: their number, their positions, and tensors from the first of them on. */
static void test_pack_chunk(void **state) {
    (void)state;
    ProgramMeta m = program(64, 0);
    unsigned char p[META_PARAM_BYTES];
    m.nderived = 1;
    m.derived[0] = (Formula){{FO_CONST, 3}};
    m.kernel[0].chunk = META_SIZES;
    m.kernel[0].slot[0] = (Slot){SLOT_POINTER, 0, 0, 0};
    m.kernel[0].slot[1] = (Slot){SLOT_SIZE, SZ_SQ, 0, 8};
    m.kernel[0].slot[2] = (Slot){SLOT_SIZE, SZ_OFF, 0, 12};
    m.kernel[0].nslot = 3;
    assert_true(ag_meta_valid(&m));
    Args x = contiguous(64);
    assert_int_equal(ag_args_bind(&bound, &m, usual(64).s, x.a, 4, &err), ATTNGEN_OK);
    assert_int_equal(ag_kernel_chunk(&bound, &m.kernel[0]), 3);
    const struct {
        int64_t first;
        int32_t queries, off;
    } row[] = {{0, 3, 8}, {3, 3, 11}, {6, 2, 14}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        ag_args_pack(&bound, &m.kernel[0], row[i].first, p);
        char *q = memory + 2 * row[i].first * x.a[Q].stride[2];
        assert_memory_equal(p, &q, sizeof q);
        assert_memory_equal(p + 8, &row[i].queries, 4);
        assert_memory_equal(p + 12, &row[i].off, 4);
    }
}

/* ---- over a false driver */

static attngen_status launch(Loaded *l, Sizes s, int device, void *stream) {
    Args x = contiguous(64);
    memset(&err, 0, sizeof err);
    assert_int_equal(ag_args_bind(&bound, &launched, s.s, x.a, 4, &err), ATTNGEN_OK);
    fake.calls[0] = 0;
    return ag_launch(l, &bound, LAUNCH_ALL, device, stream, &err);
}

static void test_calls_of_load(void **state) {
    (void)state;
    Loaded *l = load(0);
    assert_string_equal(fake.calls, "current retain0 set0 device load kernel:softcap_mma shared0=98304 function set-1 ");
    fake.calls[0] = 0;
    ag_driver_unload(l);
    assert_string_equal(fake.calls, "unload ");
    ag_driver_unload(NULL);
}

static void test_calls_of_launch(void **state) {
    (void)state;
    Loaded *l = load(0);
    void *stream = memory + 5;
    fake.current = 0;
    assert_int_equal(launch(l, usual(64), 0, stream), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current device launch "); /* the first launch does no more than any other: it may be captured */
    assert_ptr_equal(fake.stream, stream);
    assert_int_equal(fake.grid, 8);
    assert_int_equal(fake.block, 128);
    assert_int_equal(fake.dynamic, 98304);
    assert_memory_equal(fake.params, &(void *){memory}, sizeof(void *));
    assert_int_equal(launch(l, usual(64), 0, NULL), ATTNGEN_OK);
    assert_null(fake.stream);
    ag_driver_unload(l);
}

/* Neighbours with the same chunk run for each chunk in turn; others once. */
static void test_calls_of_chunks(void **state) {
    (void)state;
    Loaded *l = load(0);
    fake.current = 0;
    launched.nderived = 1;
    launched.derived[0] = (Formula){{FO_CONST, 3}};
    launched.kernel[0].chunk = META_SIZES;
    assert_int_equal(launch(l, usual(64), 0, NULL), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current device launch current device launch current device launch ");
    launched.derived[0] = (Formula){{FO_CONST, 0}}; /* no chunk at all would never end */
    assert_int_equal(launch(l, sizes(1, 4, 2, 2, 16, 8, 64), 0, NULL), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current device launch current device launch ");
    ag_driver_unload(l);
}

/* No more persistent blocks than fit at once; without tiles none. */
static void test_persistent_blocks(void **state) {
    (void)state;
    static const struct {
        int64_t B;
        uint32_t per_sm, grid;
    } row[] = {{100, 0, 400}, {100, 1, 132}, {100, 2, 264}, {100, 4, 400}, {33, 1, 132}, {2, 1, 8}};
    Loaded *l = load(0);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        launched.kernel[0].per_sm = row[i].per_sm;
        assert_int_equal(launch(l, sizes(row[i].B, 4, 2, 8, 16, 8, 64), 0, NULL), ATTNGEN_OK);
        assert_int_equal(fake.grid, row[i].grid);
    }
    assert_int_equal(launch(l, sizes(0, 4, 2, 8, 16, 8, 64), 0, NULL), ATTNGEN_OK);
    assert_string_equal(fake.calls, "");
    ag_driver_unload(l);
}

static void test_workspace(void **state) {
    (void)state;
    launched.kernel[0].slot[5] = (Slot){SLOT_WORKSPACE, 0, 0, 32};
    launched.kernel[0].nslot = 7; /* without what lies there else */
    Loaded *l = load(0);
    Args x = contiguous(64);
    assert_int_equal(ag_args_bind(&bound, &launched, usual(64).s, x.a, 4, &err), ATTNGEN_OK);
    bound.workspace = memory + 256;
    assert_int_equal(ag_launch(l, &bound, LAUNCH_ALL, 0, NULL, &err), ATTNGEN_OK);
    assert_memory_equal(fake.params + 32, &bound.workspace, sizeof bound.workspace);
    ag_driver_unload(l);
}

static void test_no_context(void **state) {
    (void)state;
    Loaded *l = load(1);
    assert_int_equal(launch(l, usual(64), 1, NULL), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current set1 device launch set-1 "); /* retained by the load already */
    assert_ptr_equal(fake.launched_in, context(1));
    assert_int_equal(fake.current, -1);
    ag_driver_unload(l);
}

static void test_two_devices(void **state) {
    (void)state;
    Loaded *l = load(0);
    fake.current = 1; /* the current context decides, not the option */
    assert_int_equal(launch(l, usual(64), 0, NULL), ATTNGEN_OK);
    assert_string_equal(fake.calls, "current device shared1=98304 function launch ");
    assert_ptr_equal(fake.launched_in, context(1));
    for (int i = 0; i < 4; i++) {
        fake.current = i % 2;
        assert_int_equal(launch(l, usual(64), 0, NULL), ATTNGEN_OK);
        assert_string_equal(fake.calls, "current device launch ");
        assert_ptr_equal(fake.launched_in, context(i % 2));
    }
    ag_driver_unload(l);
}

static void test_nothing_to_do(void **state) {
    (void)state;
    Loaded *l = load(0);
    assert_int_equal(launch(l, sizes(2, 4, 2, 0, 16, 0, 64), 0, NULL), ATTNGEN_OK);
    assert_string_equal(fake.calls, "");
    assert_int_equal(ag_driver_launch(l, 0, 0, 0, memory, NULL, &err), ATTNGEN_OK);
    assert_string_equal(fake.calls, "");
    ag_driver_unload(l);
}

static void test_little_shared_memory(void **state) {
    (void)state;
    launched.kernel[0].shared_bytes = 48 * 1024;
    Loaded *l = load(0);
    assert_null(strstr(fake.calls, "shared0"));
    ag_driver_unload(l);
}

static void test_errors(void **state) {
    (void)state;
    Loaded *l = load(0);
    fake.result_of_launch = 1;
    assert_int_equal(launch(l, usual(64), 0, NULL), ATTNGEN_E_DRIVER);
    assert_string_equal(err.text, "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
    assert_int_equal(fake.current, -1); /* put back all the same */
    fake.result_of_launch = 700;
    assert_int_equal(launch(l, usual(64), 0, NULL), ATTNGEN_E_DRIVER);
    assert_string_equal(err.text,
                        "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered; a kernel that ran before "
                        "failed, and its CUDA context is of no use from then on");
    assert_int_equal(launch(l, usual(64), 7, NULL), ATTNGEN_E_DRIVER);
    assert_string_equal(err.text, "there is no CUDA device 7: this machine has 2");
    ag_driver_unload(l);
}

static void arch_runs(const char *arch, int major, int minor, bool runs) {
    Loaded *l = NULL;
    Err e = {0};
    fake.major[0] = major, fake.minor[0] = minor;
    snprintf(launched.arch, sizeof launched.arch, "%s", arch);
    assert_int_equal(ag_driver_load(driver, 0, cubin, sizeof cubin, &launched, &l, &e), runs ? ATTNGEN_OK : ATTNGEN_E_UNSUPPORTED);
    if (!runs) assert_non_null(strstr(e.text, "the kernel is compiled for sm_"));
    ag_driver_unload(l);
}

static void test_arch(void **state) {
    (void)state;
    arch_runs("sm_80", 8, 0, true);
    arch_runs("sm_80", 8, 9, true);
    arch_runs("sm_90a", 9, 0, true);
    arch_runs("sm_90a", 9, 1, false);
    arch_runs("sm_90a", 8, 9, false);
    arch_runs("sm_90a", 10, 0, false);
    arch_runs("sm_90a", 12, 0, false);
    arch_runs("sm_86", 8, 0, false);
    arch_runs("sm_80", 9, 0, false);
    arch_runs("sm_90", 10, 0, false);
    arch_runs("sm_100a", 10, 3, false);
    arch_runs("sm_100", 10, 3, true);
    Err e = {0};
    Loaded *l;
    fake.major[0] = 8, fake.minor[0] = 6;
    snprintf(launched.arch, sizeof launched.arch, "sm_90");
    fake.calls[0] = 0;
    assert_int_equal(ag_driver_load(driver, 0, cubin, sizeof cubin, &launched, &l, &e), ATTNGEN_E_UNSUPPORTED);
    assert_string_equal(e.text, "the kernel is compiled for sm_90 and device 0 is sm_86: compile for that");
    fake.major[0] = 10, fake.minor[0] = 0;
    snprintf(launched.arch, sizeof launched.arch, "sm_90a");
    assert_int_equal(ag_driver_load(driver, 0, cubin, sizeof cubin, &launched, &l, &e), ATTNGEN_E_UNSUPPORTED);
    assert_string_equal(e.text, "the kernel is compiled for sm_90a and device 0 is sm_100: compile for that");
    assert_null(strstr(fake.calls, "load"));
    assert_int_equal(ag_driver_load(driver, 0, "nonsense", 8, &launched, &l, &e), ATTNGEN_E_INTERNAL);
}

static void test_device_info(void **state) {
    (void)state;
    DeviceInfo d;
    assert_int_equal(ag_driver_count(driver), 2);
    assert_int_equal(ag_driver_device(driver, 1, &d, &err), ATTNGEN_OK);
    assert_string_equal(d.name, "Fake 1");
    assert_true(d.sm == 90 && d.sms == 132 && d.shared_max == 232448 && d.driver_version == 12040 && d.memory == (size_t)1 << 31);
    assert_int_equal(ag_driver_device(driver, 2, &d, &err), ATTNGEN_E_DRIVER);
}

static void test_old_driver(void **state) {
    (void)state;
    Driver *d;
    fake.version = 11080;
    assert_int_equal(ag_driver_over(&d, &api, &err), ATTNGEN_E_DRIVER);
    assert_string_equal(err.text, "the CUDA driver is for CUDA 11.8: one for 12.0 or newer (525 or newer) is needed");
    assert_null(d);
    fake.result_of_init = 1;
    assert_int_equal(ag_driver_over(&d, &api, &err), ATTNGEN_E_DRIVER);
    assert_string_equal(err.text, "cuInit: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
}

/* Whatever this machine has, opening answers, and twice the same. */
static void test_real_driver(void **state) {
    (void)state;
    Driver *a, *b;
    Err e = {0}, f = {0};
    attngen_status s = ag_driver_open(&a, &e);
    assert_int_equal(ag_driver_open(&b, &f), s);
    assert_ptr_equal(a, b);
    assert_string_equal(e.text, f.text);
    assert_true((s == ATTNGEN_OK) == (a != NULL));
    assert_true((s == ATTNGEN_OK) == (e.text[0] == 0));
}

static void test_err_is_cut(void **state) {
    (void)state;
    Err e;
    char big[4000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    assert_int_equal(ag_err(&e, ATTNGEN_E_IO, "%s", big), ATTNGEN_E_IO);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    assert_string_equal(e.text + sizeof e.text - 5, "x...");
    assert_int_equal(ag_err(NULL, ATTNGEN_E_IO, "x"), ATTNGEN_E_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_meta_valid),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_most_tiles),
        cmocka_unit_test(test_bind),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_pack_chunk),
        DRIVER(test_calls_of_load),
        DRIVER(test_calls_of_launch),
        DRIVER(test_calls_of_chunks),
        DRIVER(test_persistent_blocks),
        DRIVER(test_workspace),
        DRIVER(test_no_context),
        DRIVER(test_two_devices),
        DRIVER(test_nothing_to_do),
        DRIVER(test_little_shared_memory),
        DRIVER(test_errors),
        DRIVER(test_arch),
        DRIVER(test_device_info),
        DRIVER(test_old_driver),
        cmocka_unit_test(test_real_driver),
        cmocka_unit_test(test_err_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
