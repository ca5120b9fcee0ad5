/* .npy files: number formats, headers good and bad, and the round trip. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "npy.h"

/* A version 1 file with this header text and `data` zero bytes. */
static size_t file_with(uint8_t *out, const char *header, size_t data) {
    size_t n = strlen(header);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (uint8_t)(n & 255);
    out[9] = (uint8_t)(n >> 8);
    memcpy(out + 10, header, n);
    memset(out + 10 + n, 0, data);
    return 10 + n + data;
}

static void expect_error(const char *header, size_t data, const char *want) {
    static uint8_t bytes[4096];
    char err[NPY_ERROR] = "";
    Npy a;
    assert_false(npy_parse(&a, bytes, file_with(bytes, header, data), err));
    assert_string_equal(err, want);
}

static void bad_headers(void **state) {
    (void)state;
#define TAIL "'fortran_order': False, 'shape': (2, 3), }"
    expect_error("", 0, "bad .npy header: expected `{`");
    expect_error("{'descr': '<f4', " TAIL, 23, "the shape needs 24 bytes of data, the file has 23");
    expect_error("{'descr': '<f4', " TAIL, 25, "the shape needs 24 bytes of data, the file has 25");
    expect_error("{'descr': '<f8', " TAIL, 48, "type '<f8' is none of '<f2' (f16), '<f4' (f32), '<u2' (bf16 bits), '<i4', '<i8', '|u1', '|b1'");
    expect_error("{'descr': '>f4', " TAIL, 24, "type '>f4' is big-endian; save it with astype('<f4')");
    expect_error("{'descr': [('a', '<f4')], " TAIL, 24, "structured arrays are not tensors");
    expect_error("{'descr': '<f4', 'descr': '<f4', " TAIL, 24, "bad .npy header: key 'descr' twice");
    expect_error("{'descr': '<f4', 'order': 1, " TAIL, 24, "bad .npy header: unknown key 'order'");
    expect_error("{'descr': '<f4', 'fortran_order': False, }", 24, "bad .npy header: no key 'shape'");
    expect_error("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", 4, "bad .npy header: fortran_order is neither True nor False");
    expect_error("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} x", 24, "bad .npy header: text after the closing brace");
    expect_error("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", 4, "bad .npy header: expected a dimension");
    expect_error("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1)}", 4, "more than 6 dimensions");
    expect_error("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 4, "a dimension is out of range");
    expect_error("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 4, "the shape has too many elements");
    expect_error("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4294967296, 4294967296)}", 0, "the shape has too many elements");
    expect_error("{'descr': '<f4", 0, "bad .npy header: a word is too long or not closed");
    expect_error("{'descr' '<f4'}", 0, "bad .npy header: expected `:`");
}

static void bad_files(void **state) {
    (void)state;
    Npy a;
    char err[NPY_ERROR];
    assert_false(npy_parse(&a, "", 0, err));
    assert_string_equal(err, "not a .npy file");
    assert_false(npy_parse(&a, "PK\003\004 a zip file", 16, err));
    assert_string_equal(err, "not a .npy file");
    assert_false(npy_parse(&a, "\x93NUMPY\x09\x00\x00\x00", 10, err));
    assert_string_equal(err, ".npy version 9.0 is not known");
    assert_false(npy_parse(&a, "\x93NUMPY\x02\x00\xff\xff", 10, err));
    assert_string_equal(err, "the file ends inside the .npy header");
    assert_false(npy_parse(&a, "\x93NUMPY\x02\x00\xff\xff\xff\xff", 12, err));
    assert_string_equal(err, "the file ends inside the .npy header");
    assert_false(npy_parse(&a, "\x93NUMPY\x01\x00\xff\xff{", 11, err));
    assert_string_equal(err, "the file ends inside the .npy header");
}

/* Every prefix of a good file is refused; in a buffer of its own size, so that the sanitizers see a read past the end. */
static void truncated(void **state) {
    (void)state;
    static uint8_t bytes[4096];
    size_t n = file_with(bytes, "{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3, 4), }\n", 48);
    for (size_t i = 0; i <= n; i++) {
        uint8_t *part = malloc(i ? i : 1);
        char err[NPY_ERROR] = "";
        Npy a;
        memcpy(part, bytes, i);
        assert_int_equal(npy_parse(&a, part, i, err), i == n);
        assert_int_equal(err[0] != '\0', i != n);
        free(part);
    }
}

static void layouts(void **state) {
    (void)state;
    static uint8_t bytes[4096];
    char err[NPY_ERROR];
    Npy a;
    assert_true(npy_parse(&a, bytes, file_with(bytes, "{'shape': (2, 3, 4), 'descr': \"<f2\", 'fortran_order': False}", 48), err));
    assert_int_equal(a.rank, 3);
    assert_int_equal(a.count, 24);
    const int64_t c[] = {12, 4, 1}, f[] = {1, 2, 6};
    assert_memory_equal(a.stride, c, sizeof c);
    assert_true(npy_parse(&a, bytes, file_with(bytes, "{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3, 4), }   \n", 48), err));
    assert_memory_equal(a.stride, f, sizeof f);
    assert_true(npy_parse(&a, bytes, file_with(bytes, "{'descr': '<u2', 'fortran_order': False, 'shape': (7, 0, 3), }", 0), err));
    assert_int_equal(a.count, 0);
    assert_true(npy_parse(&a, bytes, file_with(bytes, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4), err));
    assert_int_equal(a.count, 1);
}

static void written_header_reads_back(void **state) {
    (void)state;
    char bytes[256], err[NPY_ERROR];
    const int64_t dim[4] = {2, 1, 3, 4};
    for (int rank = 1; rank <= 4; rank++) {
        Npy a;
        size_t n = npy_header(bytes, NPY_F16, rank, dim), count = 1;
        for (int i = 0; i < rank; i++) count *= (size_t)dim[i];
        assert_int_equal(n % 64, 0);
        memset(bytes + n, 0, 2 * count);
        assert_true(npy_parse(&a, bytes, n + 2 * count, err));
        assert_int_equal(a.rank, rank);
        assert_int_equal(a.type, NPY_F16);
        assert_memory_equal(a.dim, dim, (size_t)rank * sizeof *dim);
    }
    const int64_t huge[4] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    assert_true(npy_header(bytes, NPY_F16, 4, huge) <= 192);
}

/* All 65536 bit patterns survive the way to float and back, NaN as NaN. */
static void sixteen_bits(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t x = (uint16_t)i;
        if (isnan(npy_from_f16(x)))
            assert_true(isnan(npy_from_f16(npy_to_f16(npy_from_f16(x)))));
        else
            assert_int_equal(npy_to_f16(npy_from_f16(x)), x);
        if (isnan(npy_from_bf16(x)))
            assert_true(isnan(npy_from_bf16(npy_to_bf16(npy_from_bf16(x)))));
        else
            assert_int_equal(npy_to_bf16(npy_from_bf16(x)), x);
    }
}

static void rounding(void **state) {
    (void)state;
    assert_int_equal(npy_to_f16(1.0f + 0x1p-11f), 0x3c00); /* a tie goes to the even one below */
    assert_int_equal(npy_to_f16(1.0f + 0x3p-11f), 0x3c02); /* and above */
    assert_int_equal(npy_to_f16(1.0f + 0x1.002p-11f), 0x3c01);
    assert_int_equal(npy_to_f16(65519.0f), 0x7bff);
    assert_int_equal(npy_to_f16(65520.0f), 0x7c00);
    assert_int_equal(npy_to_f16(-1e9f), 0xfc00);
    assert_int_equal(npy_to_f16(0x1p-24f), 1);
    assert_int_equal(npy_to_f16(0x1p-25f), 0);
    assert_int_equal(npy_to_f16(0x1.8p-24f), 2);
    assert_int_equal(npy_to_f16(0x1.ffep-15f), 0x400); /* the largest subnormal's upper neighbour is normal */
    assert_int_equal(npy_to_f16(-0.0f), 0x8000);
    assert_int_equal(npy_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(npy_to_bf16(1.0f + 0x3p-8f), 0x3f82);
    assert_int_equal(npy_to_bf16(3.4e38f), 0x7f80);
    assert_true(npy_from_f16(0x3555) == 0x1.554p-2f);
}

static void ints(void **state) {
    (void)state;
    static const struct {
        const char *header;
        uint8_t data[16];
        size_t bytes;
        int64_t want[2];
    } t[] = {{"{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", {255, 255, 255, 255, 7, 0, 0, 128}, 8, {-1, -2147483641}},
             {"{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}",
              {1, 0, 0, 0, 1, 0, 0, 0, 254, 255, 255, 255, 255, 255, 255, 255},
              16,
              {4294967297, -2}},
             {"{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", {200, 3}, 2, {200, 3}},
             {"{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", {0, 2}, 2, {0, 1}}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static uint8_t bytes[4096];
        char err[NPY_ERROR] = "";
        Npy a;
        size_t n = file_with(bytes, t[i].header, t[i].bytes);
        memcpy(bytes + n - t[i].bytes, t[i].data, t[i].bytes);
        assert_true(npy_parse(&a, bytes, n, err));
        assert_true(npy_is_int(a.type));
        for (size_t x = 0; x < 2; x++) assert_int_equal(npy_get_int(&a, x), t[i].want[x]);
    }
    assert_false(npy_is_int(NPY_F16) || npy_is_int(NPY_F32) || npy_is_int(NPY_U16));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_headers), cmocka_unit_test(bad_files),    cmocka_unit_test(ints),     cmocka_unit_test(truncated),
        cmocka_unit_test(layouts),     cmocka_unit_test(sixteen_bits), cmocka_unit_test(rounding), cmocka_unit_test(written_header_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
