/* host.c: tensors in host memory: element access, 16-bit float formats, and the pattern of what was never written. */
#include "host.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- 16-bit formats; rounding to nearest, ties to even; every NaN becomes 0x7FFF, as the hardware conversions do */

enum { CANONICAL_NAN = 0x7FFF };

static uint16_t bf16_from(float x) {
    uint32_t u = bits_of(x);
    if (isnan(x)) return CANONICAL_NAN;
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1)) >> 16);
}

static uint16_t f16_from(float x) {
    uint32_t u = bits_of(x), a = u & 0x7FFFFFFFu, sign = (u >> 16) & 0x8000u;
    if (isnan(x)) return CANONICAL_NAN;
    if (a >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u);                                   /* >= 65520: rounds to infinity */
    if (a < 0x38800000u) return (uint16_t)(sign | (bits_of(fabsf(x) + 0.5f) - bits_of(0.5f))); /* < 2^-14: steps of 2^-24, the ulp of 0.5f */
    return (uint16_t)(sign | ((a - 0x38000000u + 0xFFFu + ((a >> 13) & 1)) >> 13));
}

static float f16_to(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, a = h & 0x7FFFu;
    if (a >= 0x7C00) return float_of(sign | 0x7F800000u | (a & 0x3FFu) << 13);
    if (a < 0x400) return float_of(sign | bits_of((float)a * 0x1p-24f));
    return float_of(sign | (0x38000000u + (a << 13)));
}

/* The float from which rounding on to fewer bits gives what rounding x itself would: inexact results are made odd. */
static float round_to_odd(double x) {
    float f = (float)x;
    if (isnan(x) || (double)f == x) return f;
    uint32_t u = bits_of(f);
    if (fabs((double)f) > fabs(x)) u--;
    return float_of(u | 1);
}

float ag_round_to(DType t, float x) {
    switch (t) {
    case DT_F16: return f16_to(f16_from(x));
    case DT_BF16: return float_of((uint32_t)bf16_from(x) << 16);
    default: return x;
    }
}

/* ---- elements */

static void *element(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    int64_t at = i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] + i3 * t->stride[3];
    return (char *)t->data + at * ag_dtype_bytes(t->type);
}

/* The bits of an element in the low end. */
static uint64_t load(const HostTensor *t, const void *at) {
    uint8_t byte;
    uint16_t half;
    uint32_t word;
    uint64_t bits;
    switch (ag_dtype_bytes(t->type)) {
    case 1: memcpy(&byte, at, sizeof byte); return byte;
    case 2: memcpy(&half, at, sizeof half); return half;
    case 4: memcpy(&word, at, sizeof word); return word;
    default: memcpy(&bits, at, sizeof bits); return bits;
    }
}

static void store(const HostTensor *t, void *at, uint64_t bits) {
    uint8_t byte = (uint8_t)bits;
    uint16_t half = (uint16_t)bits;
    uint32_t word = (uint32_t)bits;
    switch (ag_dtype_bytes(t->type)) {
    case 1: memcpy(at, &byte, sizeof byte); break;
    case 2: memcpy(at, &half, sizeof half); break;
    case 4: memcpy(at, &word, sizeof word); break;
    default: memcpy(at, &bits, sizeof bits); break;
    }
}

/* The value of an int from its bits. */
static int64_t int_of(DType t, uint64_t u) {
    switch (t) {
    case DT_I32: return (int64_t)(u ^ 0x80000000u) - 0x80000000;
    case DT_BOOL: return u != 0;
    default: return (int64_t)u;
    }
}

static double number_of(DType t, uint64_t u) {
    switch (t) {
    case DT_F16: return f16_to((uint16_t)u);
    case DT_BF16: return float_of((uint32_t)u << 16);
    case DT_F32: return float_of((uint32_t)u);
    default: return (double)int_of(t, u);
    }
}

double ag_host_get(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return number_of(t->type, load(t, element(t, i0, i1, i2, i3)));
}

static void *element_at(const HostTensor *t, const int64_t *index, int rank) {
    int64_t at = 0;
    for (int i = 0; i < rank; i++) at += index[i] * t->stride[i];
    return (char *)t->data + at * ag_dtype_bytes(t->type);
}

double ag_host_get_at(const HostTensor *t, const int64_t *index, int rank) { return number_of(t->type, load(t, element_at(t, index, rank))); }

int64_t ag_host_get_int(const HostTensor *t, const int64_t *index, int rank) { return int_of(t->type, load(t, element_at(t, index, rank))); }

static void set(const HostTensor *t, void *at, double x) {
    uint64_t u = 0;
    switch (t->type) {
    case DT_F16: u = f16_from(round_to_odd(x)); break;
    case DT_BF16: u = bf16_from(round_to_odd(x)); break;
    case DT_F32: u = bits_of((float)x); break;
    case DT_BOOL: u = x != 0; break;
    default: u = (uint64_t)(int64_t)x; break;
    }
    store(t, at, u);
}

void ag_host_set(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double x) { set(t, element(t, i0, i1, i2, i3), x); }
void ag_host_set_at(const HostTensor *t, const int64_t *index, int rank, double x) { set(t, element_at(t, index, rank), x); }

/* ---- poison: signalling NaNs; arithmetic gives quiet ones only */

static uint32_t poison_of(DType t) {
    static const uint32_t pattern[DT_COUNT] = {[DT_F16] = 0x7D25, [DT_BF16] = 0x7FA5, [DT_F32] = 0x7FA5A5A5};
    return pattern[t];
}

bool ag_is_poison(const HostTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return load(t, element(t, i0, i1, i2, i3)) == poison_of(t->type);
}

static void poison(const HostTensor *t, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    for (int64_t i = 0; i < n0; i++)
        for (int64_t j = 0; j < n1; j++)
            for (int64_t k = 0; k < n2; k++)
                for (int64_t l = 0; l < n3; l++) store(t, element(t, i, j, k, l), poison_of(t->type));
}

void ag_poison(const Spec *spec, const HostCall *call) {
    const int64_t *size = call->size;
    poison(&call->o, size[SZ_B], size[SZ_HQ], size[SZ_SQ], spec->Dv);
    const HostTensor *const row[ROWV_COUNT] = {&call->lse, &call->max, &call->mean_weight};
    for (int i = 0; i < ROWV_COUNT; i++)
        if (row[i]->data) poison(row[i], size[SZ_B], size[SZ_HQ], size[SZ_SQ], 1);
}
