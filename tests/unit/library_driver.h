/* library_driver.h: a false driver over which each load has a number that the test chooses, and launches of what it loaded are counted by it. */
#ifndef LIBRARY_DRIVER_H
#define LIBRARY_DRIVER_H

#include <stdatomic.h>

#include "counting_driver.h"

enum { LIBRARIES = 4 };
static char library[LIBRARIES]; /* by address: a library, its kernels and their functions */
static atomic_int launches[LIBRARIES];

static int library_kernel(CuKernel *k, CuLibrary l, const char *name) { return (void)name, *k = (CuKernel)(void *)l, 0; }
static int library_launch(CuFunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          CuStream stream, void **params, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params, (void)extra;
    atomic_fetch_add(&launches[(char *)(void *)f - library], 1);
    return 0;
}

static void assert_launches(int of_first, int of_second) {
    assert_int_equal(launches[0], of_first);
    assert_int_equal(launches[1], of_second);
}

/* The number of what is loaded next. */
static int number_of_load(void);
static int library_load(CuLibrary *l, const void *code, int *jo, void **jv, unsigned nj, int *o, void **v, unsigned n) {
    (void)code, (void)jo, (void)jv, (void)nj, (void)o, (void)v, (void)n;
    int i = number_of_load();
    assert_true(i < LIBRARIES);
    return *l = (CuLibrary)(void *)&library[i], 0;
}

static Driver *library_driver(void) { return driver_that_counts(library_load, library_kernel, library_launch); }
#endif
