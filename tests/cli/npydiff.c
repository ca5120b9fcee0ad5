/* npydiff: compares two .npy files of the same shape.  usage: npydiff GOT WANT TOLERANCE
 * Prints the largest absolute error and the root mean square of the error relative to that of WANT; exit 1 if an error exceeds the tolerance (or is NaN). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "npy.h"

static Npy read_or_die(const char *path) {
    Npy a;
    bool io;
    char err[NPY_ERROR] = "cannot be opened";
    FILE *f = fopen(path, "rb");
    if (!f || !npy_read(&a, f, err, &io)) {
        fprintf(stderr, "npydiff: %s: %s\n", path, err);
        exit(2);
    }
    fclose(f);
    return a;
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: npydiff GOT WANT TOLERANCE\n"), 2;
    Npy got = read_or_die(argv[1]), want = read_or_die(argv[2]);
    double limit = atof(argv[3]), worst = 0, err2 = 0, want2 = 0;
    if (got.rank != want.rank || memcmp(got.dim, want.dim, sizeof got.dim) != 0 || memcmp(got.stride, want.stride, sizeof got.stride) != 0)
        return fprintf(stderr, "npydiff: the shapes differ\n"), 1;
    bool nan = false;
    for (size_t i = 0; i < got.count; i++) {
        double x = npy_get(&got, i), y = npy_get(&want, i), e = fabs(x - y);
        if (isnan(e)) nan = true;
        if (e > worst) worst = e;
        err2 += e * e;
        want2 += y * y;
    }
    bool ok = !nan && worst <= limit;
    printf("%s: %zu values, largest error %.3g (limit %.3g), relative rms error %.3g%s\n", ok ? "ok" : "FAILED", got.count, worst, limit,
           want2 > 0 ? sqrt(err2 / want2) : sqrt(err2), nan ? ", NaN" : "");
    npy_free(&got);
    npy_free(&want);
    return ok ? 0 : 1;
}
