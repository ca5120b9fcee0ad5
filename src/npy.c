/* npy.c: reading and writing .npy.  The header is a Python dict literal that NumPy writes in one form; the parser takes any order of its three
 * keys and any blanks, and nothing else. */
#include "npy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *descr;
    size_t size;
} type_info[] = {[NPY_F16] = {"<f2", 2}, [NPY_F32] = {"<f4", 4}, [NPY_U16] = {"<u2", 2}, [NPY_I32] = {"<i4", 4},
                 [NPY_I64] = {"<i8", 8}, [NPY_U8] = {"|u1", 1},  [NPY_BOOL] = {"|b1", 1}};
enum { NTYPES = sizeof type_info / sizeof *type_info };

size_t npy_size(NpyType t) { return type_info[t].size; }
const char *npy_descr(NpyType t) { return type_info[t].descr; }

/* ---- numbers */

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float npy_from_bf16(uint16_t x) { return from_bits((uint32_t)x << 16); }

uint16_t npy_to_bf16(float x) {
    uint32_t u = to_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

float npy_from_f16(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f;
    return sign ? -tiny : tiny;
}

uint16_t npy_to_f16(float x) {
    uint32_t u = to_bits(x), sign = u >> 16 & 0x8000, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to infinity */
    if (mag >= 0x38800000u) return (uint16_t)(sign | ((mag - 0x38000000u + 0xfffu + (mag >> 13 & 1)) >> 13));
    /* Subnormal: adding 0.5 leaves the value, rounded to 2^-24, in the low bits of the sum. */
    return (uint16_t)(sign | (to_bits(from_bits(mag) + 0.5f) - to_bits(0.5f)));
}

float npy_get(const Npy *a, size_t i) {
    uint16_t h;
    float f;
    switch (a->type) {
    case NPY_F32: memcpy(&f, a->data + i * 4, 4); return f;
    case NPY_F16: memcpy(&h, a->data + i * 2, 2); return npy_from_f16(h);
    case NPY_U16: memcpy(&h, a->data + i * 2, 2); return npy_from_bf16(h);
    default: return (float)npy_get_int(a, i);
    }
}

bool npy_is_int(NpyType t) { return t >= NPY_I32; }

int64_t npy_get_int(const Npy *a, size_t i) {
    int64_t x = 0;
    int32_t word;
    switch (a->type) {
    case NPY_I64: memcpy(&x, a->data + i * 8, 8); return x;
    case NPY_I32: memcpy(&word, a->data + i * 4, 4); return word;
    case NPY_BOOL: return a->data[i] != 0;
    default: return a->data[i];
    }
}

/* ---- the header */

typedef struct Scan {
    const char *p, *end;
    char *err;
} Scan;

static bool fail(char *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool fail(char *err, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err, NPY_ERROR, fmt, ap);
    va_end(ap);
    return false;
}

static void blanks(Scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t')) s->p++;
}

static bool take(Scan *s, char c) {
    blanks(s);
    if (s->p >= s->end || *s->p != c) return false;
    s->p++;
    return true;
}

static bool expect(Scan *s, char c) { return take(s, c) || fail(s->err, "bad .npy header: expected `%c`", c); }

/* A quoted word of printable characters without escapes. */
static bool word(Scan *s, char *out, size_t n) {
    blanks(s);
    char quote = s->p < s->end ? *s->p : '\0';
    if (quote != '\'' && quote != '"') return fail(s->err, "bad .npy header: expected a quoted word");
    const char *from = ++s->p;
    while (s->p < s->end && *s->p != quote && *s->p >= ' ' && *s->p < 127 && *s->p != '\\') s->p++;
    size_t len = (size_t)(s->p - from);
    if (s->p >= s->end || *s->p != quote || len >= n) return fail(s->err, "bad .npy header: a word is too long or not closed");
    memcpy(out, from, len);
    out[len] = '\0';
    s->p++;
    return true;
}

static bool read_type(Scan *s, Npy *a) {
    char descr[32];
    blanks(s);
    if (s->p < s->end && *s->p == '[') return fail(s->err, "structured arrays are not tensors");
    if (!word(s, descr, sizeof descr)) return false;
    for (int t = 0; t < NTYPES; t++)
        if (strcmp(descr, type_info[t].descr) == 0) return a->type = (NpyType)t, true;
    if (descr[0] == '>') return fail(s->err, "type '%s' is big-endian; save it with astype('<%s')", descr, descr + 1);
    return fail(s->err, "type '%s' is none of '<f2' (f16), '<f4' (f32), '<u2' (bf16 bits), '<i4', '<i8', '|u1', '|b1'", descr);
}

static bool read_order(Scan *s, bool *fortran) {
    blanks(s);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "True" : "False";
        size_t n = strlen(name);
        if ((size_t)(s->end - s->p) >= n && memcmp(s->p, name, n) == 0) return *fortran = i, s->p += n, true;
    }
    return fail(s->err, "bad .npy header: fortran_order is neither True nor False");
}

static bool read_shape(Scan *s, Npy *a) {
    if (!expect(s, '(')) return false;
    for (a->rank = 0; !take(s, ')');) {
        if (a->rank == NPY_RANK) return fail(s->err, "more than %d dimensions", NPY_RANK);
        if (s->p >= s->end || *s->p < '0' || *s->p > '9') return fail(s->err, "bad .npy header: expected a dimension");
        int64_t x = 0;
        for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++) {
            if (x > INT64_MAX / 16) return fail(s->err, "a dimension is out of range");
            x = 10 * x + (*s->p - '0');
        }
        a->dim[a->rank++] = x;
        if (take(s, ',')) continue;
        if (!expect(s, ')')) return false;
        break;
    }
    return true;
}

static bool read_dict(Scan *s, Npy *a, bool *fortran) {
    static const char *const names[] = {"descr", "fortran_order", "shape"};
    unsigned seen = 0;
    if (!expect(s, '{')) return false;
    while (!take(s, '}')) {
        char key[32];
        int k = 0;
        if (!word(s, key, sizeof key) || !expect(s, ':')) return false;
        while (k < 3 && strcmp(key, names[k]) != 0) k++;
        if (k == 3) return fail(s->err, "bad .npy header: unknown key '%s'", key);
        if (seen & 1u << k) return fail(s->err, "bad .npy header: key '%s' twice", key);
        seen |= 1u << k;
        if (!(k == 0 ? read_type(s, a) : k == 1 ? read_order(s, fortran) : read_shape(s, a))) return false;
        if (take(s, ',')) continue;
        if (!expect(s, '}')) return false;
        break;
    }
    for (int k = 0; k < 3; k++)
        if (!(seen & 1u << k)) return fail(s->err, "bad .npy header: no key '%s'", names[k]);
    blanks(s);
    return s->p == s->end || fail(s->err, "bad .npy header: text after the closing brace");
}

/* Elements and strides; every product is checked, zero dims included, so that strides never overflow. */
static bool layout(Npy *a, bool fortran, char *err) {
    int64_t step = 1;
    a->count = 1;
    for (int i = 0; i < a->rank; i++) {
        int d = fortran ? i : a->rank - 1 - i;
        a->stride[d] = step;
        if (a->dim[d] > 1 && __builtin_mul_overflow(step, a->dim[d], &step)) return fail(err, "the shape has too many elements");
        a->count *= (size_t)a->dim[d] ? 1 : 0;
    }
    if (a->count) a->count = (size_t)step;
    return a->count <= SIZE_MAX / 8 || fail(err, "the shape has too many elements");
}

bool npy_parse(Npy *out, const void *bytes, size_t n, char err[NPY_ERROR]) {
    const uint8_t *b = bytes;
    memset(out, 0, sizeof *out);
    if (n < 10 || memcmp(b, "\x93NUMPY", 6) != 0) return fail(err, "not a .npy file");
    int version = b[6];
    if (version < 1 || version > 3) return fail(err, ".npy version %d.%d is not known", version, b[7]);
    size_t start = version == 1 ? 10 : 12, len = (size_t)b[8] | (size_t)b[9] << 8;
    if (n < start) return fail(err, "the file ends inside the .npy header");
    if (version > 1) len |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (len > n - start) return fail(err, "the file ends inside the .npy header");
    Scan s = {(const char *)b + start, (const char *)b + start + len, err};
    bool fortran = false;
    if (!read_dict(&s, out, &fortran) || !layout(out, fortran, err)) return false;
    size_t have = n - start - len, want = out->count * npy_size(out->type);
    if (have != want) return fail(err, "the shape needs %zu bytes of data, the file has %zu", want, have);
    out->data = b + start + len;
    return true;
}

bool npy_read(Npy *out, FILE *f, char err[NPY_ERROR], bool *io) {
    size_t cap = 1 << 16, n = 0;
    char *s = malloc(cap);
    memset(out, 0, sizeof *out);
    *io = true;
    for (size_t got; s && (got = fread(s + n, 1, cap - n, f)) > 0;) {
        n += got;
        if (n < cap) continue;
        char *more = realloc(s, cap *= 2);
        if (!more) free(s);
        s = more;
    }
    if (!s) return fail(err, "out of memory");
    if (ferror(f)) return free(s), fail(err, "cannot be read");
    *io = false;
    if (!npy_parse(out, s, n, err)) return free(s), false;
    out->owned = s;
    return true;
}

void npy_free(Npy *a) {
    free(a->owned);
    memset(a, 0, sizeof *a);
}

size_t npy_header(char out[192], NpyType type, int rank, const int64_t *dim) {
    char shape[96] = "";
    size_t n = 0;
    for (int i = 0; i < rank; i++) n += (size_t)snprintf(shape + n, sizeof shape - n, i ? ", %" PRId64 : "%" PRId64, dim[i]);
    int len = snprintf(out + 10, 182, "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }", npy_descr(type), shape, rank == 1 ? "," : "");
    size_t total = (10 + (size_t)len + 1 + 63) / 64 * 64;
    memset(out + 10 + len, ' ', total - 10 - (size_t)len);
    out[total - 1] = '\n';
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (char)((total - 10) & 255);
    out[9] = (char)((total - 10) >> 8);
    return total;
}
