/* Host-side times of attngen: emission, cold and warm compilation, repeated compilation, launch.
 *
 *   bench_host [SPEC [D [ARCH]]]        a shipped spec, default: causal 128 sm_90
 *
 * Prints one line per step with its target.  Cold: NVRTC's own cache off; in new processes without a disk cache, and once with an empty one.  Warm: a new process that finds the kernel in that
 * folder; its clock runs from before attngen_create to after attngen_compile.  Launch: host time of attngen_launch alone, in batches shorter than
 * the queue of the driver.  Steps that need NVRTC or a GPU say so when there is none.  Exit status 1 if a target is missed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attngen.h"

enum { EMISSIONS = 50, PROCESSES = 15, COLD = 9, COMPILES = 20000, BATCHES = 40, BATCH = 200, HEADS = 4, SEQ = 64 };

static const char *spec_name = "causal";
static double head_dim = 128;
static const char *arch = "sm_90";
static int missed;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* times in seconds, shown in `unit` (1e3: ms, 1e6: us); target 0: none */
static void row(const char *step, double *t, int n, double unit, double target) {
    qsort(t, (size_t)n, sizeof *t, by_value);
    double median = t[n / 2] * unit;
    char goal[32] = "";
    if (target > 0) snprintf(goal, sizeof goal, "%7g  %s", target, median <= target ? "ok" : "MISSED");
    missed += target > 0 && median > target;
    printf("%-44s %9.3f %9.3f %9.3f %s  %s\n", step, median, t[0] * unit, t[n - 1] * unit, unit > 1e4 ? "us" : "ms", goal);
}

static void skipped(const char *step, const char *why) { printf("%-44s skipped: %s\n", step, why); }

static attngen_context *context(const char *cache_dir) {
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    attngen_context *ctx = NULL;
    o.cache_dir = cache_dir;
    o.arch = arch; /* given: else making a context starts the driver */
    attngen_status s = attngen_create(&ctx, &o);
    if (s == ATTNGEN_OK) return ctx;
    fprintf(stderr, "bench_host: attngen_create: %s\n", attngen_strerror(s));
    exit(attngen_exit_code(s));
}

static void must(attngen_context *ctx, attngen_status s, const char *what) {
    if (s == ATTNGEN_OK) return;
    fprintf(stderr, "bench_host: %s: %s\n%s\n", what, attngen_strerror(s), attngen_errmsg(ctx));
    exit(attngen_exit_code(s));
}

static attngen_source spec(attngen_context *ctx) {
    attngen_source s;
    must(ctx, attngen_shipped_spec(&s, spec_name), spec_name);
    return s;
}

static attngen_status compile(attngen_context *ctx, attngen_program **p) {
    attngen_source s = spec(ctx);
    attngen_dim d = {"D", head_dim};
    return attngen_compile(ctx, p, &s, NULL, &d, 1);
}

/* ---- emission */

static int count(void *payload, const void *data, size_t len) {
    (void)data;
    *(size_t *)payload += len;
    return 0;
}

static void bench_emission(void) {
    double t[EMISSIONS];
    size_t bytes = 0;
    for (int i = 0; i < EMISSIONS; i++) {
        attngen_context *ctx = context("");
        attngen_source s = spec(ctx);
        attngen_dim d = {"D", head_dim};
        attngen_program *p;
        bytes = 0;
        double t0 = now();
        must(ctx, attngen_lower(ctx, &p, &s, NULL, &d, 1), "attngen_lower");
        must(ctx, attngen_emit(ctx, p, ATTNGEN_EMIT_CU, NULL, count, &bytes), "attngen_emit");
        t[i] = now() - t0;
        attngen_program_free(p);
        attngen_destroy(ctx);
    }
    char step[64];
    snprintf(step, sizeof step, "emission, spec to .cu of %zu bytes", bytes);
    row(step, t, EMISSIONS, 1e3, 3);
}

/* ---- compilation */

/* In a child: prints the seconds from before attngen_create to after attngen_compile.  warm: the kernel must come from the disk cache in dir. */
static int child(const char *dir, int warm) {
    attngen_program *p;
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    double t0 = now();
    attngen_context *ctx = context(dir);
    must(ctx, compile(ctx, &p), "attngen_compile");
    double t = now() - t0;
    must(ctx, attngen_program_info(p, &info), "attngen_program_info");
    if (info.from_disk_cache != warm) fprintf(stderr, "bench_host: the kernel %s from the disk cache\n", warm ? "did not come" : "came");
    printf("%.9f\n", t);
    return info.from_disk_cache != warm;
}

static double run_child(const char *self, const char *how, const char *dir) {
    char command[8192], line[64] = "";
    snprintf(command, sizeof command, "'%s' %s '%s' %s %g %s", self, how, dir, spec_name, head_dim, arch);
    FILE *f = popen(command, "r");
    if (!f || !fgets(line, sizeof line, f) || pclose(f) != 0) {
        fprintf(stderr, "bench_host: the child process failed\n");
        exit(1);
    }
    return atof(line);
}

/* The first compile in dir's cache, and then the same without a cache in new processes. */
static attngen_status bench_cold(const char *self, const char *dir) {
    attngen_program *p;
    double t[COLD], t0 = now();
    attngen_context *ctx = context(dir);
    attngen_status s = compile(ctx, &p);
    double first = now() - t0;
    if (s == ATTNGEN_E_NO_NVRTC) {
        skipped("cold compile", attngen_errmsg(ctx));
    } else {
        must(ctx, s, "attngen_compile");
        for (int i = 0; i < COLD; i++) t[i] = run_child(self, "--cold", "");
        row("cold compile, new process, no cache", t, COLD, 1e3, 350);
        row("cold compile, the entry written to disk", &first, 1, 1e3, 0);
        attngen_program_free(p);
    }
    attngen_destroy(ctx);
    return s;
}

static void bench_warm(const char *self, const char *dir) {
    double t[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) t[i] = run_child(self, "--warm", dir);
    row("warm compile, new process, disk cache", t, PROCESSES, 1e3, 5);
}

static void bench_repeated(attngen_context *ctx) {
    double t[BATCHES];
    attngen_source s = spec(ctx);
    attngen_dim d = {"D", head_dim};
    attngen_program *p;
    for (int i = 0; i < BATCHES; i++) {
        double t0 = now();
        for (int k = 0; k < COMPILES / BATCHES; k++) {
            must(ctx, attngen_compile(ctx, &p, &s, NULL, &d, 1), "attngen_compile");
            attngen_program_free(p);
        }
        t[i] = (now() - t0) / (COMPILES / BATCHES);
    }
    row("repeated compile, same process", t, BATCHES, 1e6, 2);
}

/* ---- launch */

/* The few driver calls that the measurement itself needs; attngen has no allocator. */
typedef struct Cuda {
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*alloc)(unsigned long long *, size_t), (*sync)(void),
        (*clear)(unsigned long long, unsigned char, size_t);
} Cuda;

static int open_cuda(Cuda *cu) {
    void *h = dlopen("libcuda.so.1", RTLD_NOW), *ctx, *f;
    const char *name[] = {"cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuCtxSynchronize", "cuMemsetD8_v2"};
    for (int i = 0; i < 6; i++) {
        if (!h || !(f = dlsym(h, name[i]))) return 0;
        memcpy((char *)cu + (size_t)i * sizeof f, &f, sizeof f);
    }
    return cu->init(0) == 0 && cu->retain(&ctx, 0) == 0 && cu->set(ctx) == 0;
}

static void *workspace(attngen_context *ctx, const Cuda *cu, size_t bytes) {
    unsigned long long address = 0;
    void *p = NULL;
    if (bytes && (cu->alloc(&address, bytes) != 0 || cu->clear(address, 0, bytes) != 0)) must(ctx, ATTNGEN_E_DRIVER, "cuMemAlloc");
    memcpy(&p, &address, sizeof p);
    return p;
}

static void time_launches(attngen_context *ctx, const Cuda *cu, const attngen_call *call, const attngen_arg *arg) {
    double t[BATCHES], once = 0;
    size_t bytes = attngen_workspace(call);
    void *space = workspace(ctx, cu, bytes);
    for (int i = -1; i < BATCHES; i++) { /* -1: the first launch, on its own */
        int n = i < 0 ? 1 : BATCH;
        double t0 = now();
        for (int k = 0; k < n; k++) {
            attngen_status s = attngen_launch(call, arg, 4, space, bytes, NULL);
            if (s != ATTNGEN_OK) fprintf(stderr, "bench_host: attngen_launch: %s\n", attngen_launch_errmsg());
            if (s != ATTNGEN_OK) exit(attngen_exit_code(s));
        }
        double mean = (now() - t0) / n;
        if (cu->sync() != 0) must(ctx, ATTNGEN_E_DRIVER, "cuCtxSynchronize");
        if (i < 0)
            once = mean;
        else
            t[i] = mean;
    }
    row("first launch call, host time", &once, 1, 1e6, 0);
    row("launch call, host time", t, BATCHES, 1e6, 3);
}

static void bench_launch(attngen_context *ctx, attngen_program *p) {
    Cuda cu;
    const char *why = "no driver";
    if (!attngen_has_device(ctx, &why) || !open_cuda(&cu)) {
        skipped("launch call, host time", why);
        return;
    }
    int64_t d = (int64_t)head_dim;
    attngen_shape shape = {1, HEADS, HEADS, SEQ, SEQ, ATTNGEN_ALIGN_END};
    const char *name[] = {"q", "k", "v", "o"};
    attngen_arg arg[4] = {{0}};
    attngen_call *call;
    for (int i = 0; i < 4; i++) {
        unsigned long long address = 0;
        if (cu.alloc(&address, (size_t)(HEADS * SEQ * d * 2)) != 0) must(ctx, ATTNGEN_E_DRIVER, "cuMemAlloc");
        memcpy(&arg[i].data, &address, sizeof address);
        arg[i].name = name[i];
        memcpy(arg[i].stride, (int64_t[ATTNGEN_MOST_DIMS]){HEADS * SEQ * d, SEQ * d, d, 1}, sizeof arg[i].stride);
    }
    must(ctx, attngen_bind(ctx, &call, p, &shape), "attngen_bind");
    time_launches(ctx, &cu, call, arg);
    attngen_call_free(call);
}

static char folder[] = "/tmp/attngen-bench-XXXXXX";

static void remove_folder(void) {
    char format[sizeof folder + 3];
    attngen_context *ctx = context(folder);
    attngen_cache_clear(ctx, NULL);
    attngen_destroy(ctx);
    snprintf(format, sizeof format, "%s/v3", folder);
    rmdir(format);
    rmdir(folder);
}

static void bench_all(const char *self) {
    if (!mkdtemp(folder)) {
        perror("bench_host: /tmp");
        exit(6);
    }
    atexit(remove_folder);
    printf("%-44s %9s %9s %9s     %7s\n", spec_name, "median", "least", "most", "target");
    bench_emission();
    if (bench_cold(self, folder) != ATTNGEN_OK) return;
    attngen_program *p;
    attngen_context *ctx = context(folder);
    bench_warm(self, folder);
    must(ctx, compile(ctx, &p), "attngen_compile");
    bench_repeated(ctx);
    bench_launch(ctx, p);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

int main(int argc, char **argv) {
    int warm = argc > 2 && !strcmp(argv[1], "--warm"), cold = argc > 2 && !strcmp(argv[1], "--cold"), at = warm || cold ? 3 : 1;
    if (argc > at) spec_name = argv[at];
    if (argc > at + 1) head_dim = atof(argv[at + 1]);
    if (argc > at + 2) arch = argv[at + 2];
    if (warm || cold) return child(argv[2], warm);
    char self[4096];
    setvbuf(stdout, NULL, _IOLBF, 0);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    bench_all(self);
    return missed != 0;
}
