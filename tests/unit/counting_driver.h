/* counting_driver.h: a false driver whose libraries, kernels and functions a test numbers by addresses of its own, and whose launches it counts. */
#ifndef COUNTING_DRIVER_H
#define COUNTING_DRIVER_H

#include "false_driver.h"

static int c_unload(CuLibrary l) { return (void)l, 0; }
static int c_kernel_attribute(int attribute, int value, CuKernel k, int device) { return (void)attribute, (void)value, (void)k, (void)device, 0; }
static int c_function(CuFunction *f, CuKernel k) { return *f = (CuFunction)(void *)k, 0; }
static int c_current(CuContext *c) { return *c = context(0), 0; }
static int c_device(int *device) { return *device = 0, 0; }
static int c_map(void *map, int type, unsigned rank, void *address, const uint64_t *dim, const uint64_t *stride, const unsigned *box,
                 const unsigned *step, int interleave, int swizzle, int promotion, int fill) {
    (void)map, (void)type, (void)rank, (void)dim, (void)stride, (void)box, (void)step;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    assert_non_null(address); /* of a tensor that is there */
    return 0;
}
static Driver *driver_that_counts(int (*load_library)(CuLibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned),
                                  int (*get_kernel)(CuKernel *, CuLibrary, const char *),
                                  int (*launch_kernel)(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream,
                                                       void **, void **)) {
    CudaApi c = api;
    Driver *d;
    c.library_load = load_library, c.library_unload = c_unload, c.library_kernel = get_kernel, c.kernel_attribute = c_kernel_attribute;
    c.kernel_function = c_function, c.ctx_current = c_current, c.ctx_device = c_device, c.tensor_map = c_map, c.launch = launch_kernel;
    assert_int_equal(ag_driver_over(&d, &c, &err), ATTNGEN_OK);
    return d;
}
#endif
