/* with_folder.h: a new folder for each test, removed after it; for cmocka_unit_test_setup_teardown(test, make_root, remove_root). */
#ifndef WITH_FOLDER_H
#define WITH_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char root[] = "/tmp/attngen-test-XXXXXX";

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f) {
    (void)st, (void)type, (void)f;
    return remove(path);
}

static int make_root(void **state) {
    (void)state;
    memcpy(root + sizeof root - 7, "XXXXXX", 6);
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* root/name; the last eight stay valid. */
static inline const char *in_root(const char *name) {
    static char path[8][512];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", root, name);
    return path[at];
}

#endif
