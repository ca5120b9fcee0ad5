/* false_driver.h: a program as the compiler makes them, arguments for it, and a driver of two devices that writes down how it is called. */
#ifndef FALSE_DRIVER_H
#define FALSE_DRIVER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"
#include "op.h"

/* ---- a program: q k v o lse, scale, cap, window */

enum { Q, K, V, O, LSE, TENSORS };
enum { SCALE, CAP, WINDOW, SCALARS };

static TensorMeta tensor(const char *name, int rank, int bytes, bool output, bool optional, Size d0, Size d1, Size d2, Size d3) {
    TensorMeta t = {.rank = (uint8_t)rank, .elem_bytes = (uint8_t)bytes, .output = output, .optional = optional};
    t.dim[0] = (uint8_t)d0, t.dim[1] = (uint8_t)d1, t.dim[2] = (uint8_t)d2, t.dim[3] = (uint8_t)d3;
    snprintf(t.name, sizeof t.name, "%s", name);
    return t;
}

static ScalarMeta scalar(const char *name, bool is_int, bool positive, double deflt) {
    ScalarMeta s = {.is_int = is_int, .positive = positive, .deflt = deflt};
    snprintf(s.name, sizeof s.name, "%s", name);
    return s;
}

/* ceil(Sq / 64) * B * Hq blocks */
static const Formula blocks = {{FO_SIZE, SZ_SQ, FO_CONST, 64, FO_CEILDIV, FO_SIZE, SZ_B, FO_MUL, FO_SIZE, SZ_HQ, FO_MUL, FO_END}};

static ProgramMeta program(int D, uint32_t group) {
    ProgramMeta m;
    memset(&m, 0, sizeof m);
    m.nkernel = 1, m.ntensor = TENSORS, m.nscalar = SCALARS, m.group = group, m.D = m.Dv = D;
    snprintf(m.spec, sizeof m.spec, "softcap");
    snprintf(m.arch, sizeof m.arch, "sm_90");
    m.tensor[Q] = tensor("q", 4, 2, false, false, SZ_B, SZ_HQ, SZ_SQ, SZ_D);
    m.tensor[K] = tensor("k", 4, 2, false, false, SZ_B, SZ_HKV, SZ_SK, SZ_D);
    m.tensor[V] = tensor("v", 4, 2, false, false, SZ_B, SZ_HKV, SZ_SK, SZ_DV);
    m.tensor[O] = tensor("o", 4, 2, true, false, SZ_B, SZ_HQ, SZ_SQ, SZ_DV);
    m.tensor[LSE] = tensor("lse", 3, 4, true, true, SZ_B, SZ_HQ, SZ_SQ, 0);
    m.scalar[SCALE] = scalar("scale", false, true, 0.125);
    m.scalar[CAP] = scalar("cap", false, false, 50);
    m.scalar[WINDOW] = scalar("window", true, false, 4096);
    KernelMeta *k = &m.kernel[0];
    snprintf(k->name, sizeof k->name, "softcap_mma");
    k->threads = 128, k->shared_bytes = 98304, k->param_bytes = 48, k->nslot = 8, k->blocks = blocks;
    k->keys = SZ_SK;
    memset(k->tensor, META_NO_TENSOR, sizeof k->tensor);
    for (uint8_t i = 0; i < TENSORS; i++) k->tensor[i] = i;
    k->slot[0] = (Slot){SLOT_POINTER, Q, 0, 0};
    k->slot[1] = (Slot){SLOT_STRIDE, K, 1, 8};
    k->slot[2] = (Slot){SLOT_SIZE, SZ_OFF, 0, 16};
    k->slot[3] = (Slot){SLOT_FLOAT, SCALE, 0, 20};
    k->slot[4] = (Slot){SLOT_INT, WINDOW, 0, 24};
    k->slot[5] = (Slot){SLOT_VEC, 0, 0, 28};
    k->slot[6] = (Slot){SLOT_POINTER, LSE, 0, 40};
    k->slot[7] = (Slot){SLOT_LOG2E, SCALE, 0, 32};
    return m;
}

typedef struct Sizes {
    int64_t s[SZ_COUNT];
} Sizes;
static Sizes sizes(int64_t B, int64_t Hq, int64_t Hkv, int64_t Sq, int64_t Sk, int64_t off, int64_t D) {
    Sizes x = {{[SZ_B] = B, [SZ_HQ] = Hq, [SZ_HKV] = Hkv, [SZ_SQ] = Sq, [SZ_SK] = Sk, [SZ_OFF] = off, [SZ_D] = D, [SZ_DV] = D}};
    return x;
}

static _Alignas(64) char memory[1024];

typedef struct Args {
    attngen_arg a[8];
} Args;
/* q k v o, contiguous, for B 2, Hq 4, Hkv 2, Sq 8, Sk 16 */
static Args contiguous(int64_t D) {
    Args x = {{{"q", memory, {32 * D, 8 * D, D, 1}, 0},
               {"k", memory, {32 * D, 16 * D, D, 1}, 0},
               {"v", memory, {32 * D, 16 * D, D, 1}, 0},
               {"o", memory, {32 * D, 8 * D, D, 1}, 0}}};
    return x;
}
static inline Sizes usual(int64_t D) { return sizes(2, 4, 2, 8, 16, 8, D); }

static BoundArgs bound __attribute__((unused)); /* not every test binds */
static Err err;

/* ---- a false driver: two devices, calls written down */

static struct {
    char calls[2048];
    int version, result_of_launch, result_of_init, current; /* current: device of the current context, -1 = none */
    int major[2], minor[2], shared[2];
    unsigned grid, block, dynamic;
    CuStream stream;
    CuContext launched_in;
    int result_of_map;
    _Alignas(8) unsigned char params[META_PARAM_BYTES];
} fake;

static ProgramMeta launched;

/* What the false driver puts into a tensor map. */
typedef struct FakeMap {
    void *address;
    uint64_t dim[5], stride[4]; /* those past its rank are 0 */
    unsigned box[5];
    int type, interleave, swizzle, promotion, fill;
} FakeMap;
_Static_assert(sizeof(FakeMap) <= TMAP_BYTES, "a false map lies where a real one would");

static char context_of_device[2];
#define CALLED(...) snprintf(fake.calls + strlen(fake.calls), sizeof fake.calls - strlen(fake.calls), __VA_ARGS__)
static CuContext context(int i) { return i < 0 ? NULL : (CuContext)(void *)&context_of_device[i]; }

static int f_init(unsigned flags) { return (int)flags + fake.result_of_init; }
static int f_version(int *v) { return *v = fake.version, 0; }
static int f_error_name(int r, const char **t) {
    return *t = r == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : r == 1 ? "CUDA_ERROR_INVALID_VALUE" : NULL, 0;
}
static int f_error_string(int r, const char **t) { return *t = r == 700 ? "an illegal memory access was encountered" : "invalid argument", 0; }
static int f_count(int *n) { return *n = 2, 0; }
static int f_get(int *device, int ordinal) { return *device = ordinal, 0; }
static int f_name(char *name, int len, int device) { return snprintf(name, (size_t)len, "Fake %d", device), 0; }
static int f_memory(size_t *n, int device) { return *n = (size_t)1 << (30 + device), 0; }
static int f_attribute(int *value, int attribute, int device) {
    *value = attribute == CU_ATTR_MAJOR          ? fake.major[device]
             : attribute == CU_ATTR_MINOR        ? fake.minor[device]
             : attribute == CU_ATTR_SM_COUNT     ? 132
             : attribute == CU_ATTR_SHARED_OPTIN ? 232448
                                                 : -1;
    return 0;
}
static int f_retain(CuContext *c, int device) { return CALLED("retain%d ", device), *c = context(device), 0; }
static int f_current(CuContext *c) { return CALLED("current "), *c = context(fake.current), 0; }
static int f_set(CuContext c) {
    fake.current = c == context(0) ? 0 : c == context(1) ? 1 : -1;
    return CALLED("set%d ", fake.current), 0;
}
static int f_device(int *device) { return CALLED("device "), *device = fake.current, 0; }
static int f_load(CuLibrary *l, const void *code, int *jo, void **jv, unsigned nj, int *o, void **v, unsigned n) {
    (void)code, (void)jo, (void)jv, (void)o, (void)v;
    assert_int_equal(nj + n, 0);
    return CALLED("load "), *l = (CuLibrary)(void *)&fake, 0;
}
static int f_unload(CuLibrary l) { return CALLED("unload "), l != (CuLibrary)(void *)&fake; }
static int f_kernel(CuKernel *k, CuLibrary l, const char *name) {
    (void)l;
    return CALLED("kernel:%s ", name), *k = (CuKernel)(void *)memory, 0;
}
static int f_kernel_attribute(int attribute, int value, CuKernel k, int device) {
    (void)k;
    assert_int_equal(attribute, 8);
    fake.shared[device] = value;
    return CALLED("shared%d=%d ", device, value), 0;
}
static int f_function(CuFunction *f, CuKernel k) { return CALLED("function "), *f = (CuFunction)(void *)k, 0; }
static int f_launch(CuFunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CuStream stream,
                    void **params, void **extra) {
    assert_ptr_equal(f, memory);
    assert_null(extra);
    assert_int_equal(gy * gz * by * bz, 1);
    fake.grid = gx, fake.block = bx, fake.dynamic = shared, fake.stream = stream, fake.launched_in = context(fake.current);
    assert_int_equal((uintptr_t)params[0] % 64, 0);
    memcpy(fake.params, params[0], launched.kernel[0].param_bytes);
    return CALLED("launch "), fake.result_of_launch;
}
static int f_map(void *map, int type, unsigned rank, void *address, const uint64_t *dim, const uint64_t *stride, const unsigned *box,
                 const unsigned *step, int interleave, int swizzle, int promotion, int fill) {
    FakeMap m = {.address = address, .type = type, .interleave = interleave, .swizzle = swizzle, .promotion = promotion, .fill = fill};
    assert_in_range(rank, 4, 5);
    assert_int_equal((uintptr_t)map % 64, 0);
    assert_true(fake.current >= 0);
    memcpy(m.dim, dim, rank * sizeof *dim);
    memcpy(m.stride, stride, (rank - 1) * sizeof *stride);
    memcpy(m.box, box, rank * sizeof *box);
    for (unsigned i = 0; i < rank; i++) assert_int_equal(step[i], 1);
    memcpy(map, &m, sizeof m);
    return CALLED("map%u ", box[1]), fake.result_of_map;
}

static const CudaApi api = {
    .init = f_init,
    .driver_version = f_version,
    .error_name = f_error_name,
    .error_string = f_error_string,
    .device_count = f_count,
    .device_get = f_get,
    .device_name = f_name,
    .device_memory = f_memory,
    .device_attribute = f_attribute,
    .primary_retain = f_retain,
    .ctx_current = f_current,
    .ctx_set = f_set,
    .ctx_device = f_device,
    .library_load = f_load,
    .library_unload = f_unload,
    .library_kernel = f_kernel,
    .kernel_attribute = f_kernel_attribute,
    .kernel_function = f_function,
    .launch = f_launch,
    .tensor_map = f_map,
};

static Driver *driver;

static int reset_fake(void **state) {
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.version = 12040, fake.current = -1;
    fake.major[0] = fake.major[1] = 9;
    launched = program(64, 0);
    Err e = {0};
    return ag_driver_over(&driver, &api, &e) != ATTNGEN_OK;
}

static int drop_fake(void **state) {
    (void)state;
    free(driver);
    return 0;
}

static const char cubin[] = "\177ELF...";

static inline Loaded *load(int device) {
    Loaded *l;
    Err e = {0};
    assert_int_equal(ag_driver_load(driver, device, cubin, sizeof cubin, &launched, &l, &e), ATTNGEN_OK);
    return l;
}

#define DRIVER(f) cmocka_unit_test_setup_teardown(f, reset_fake, drop_fake)
#endif
