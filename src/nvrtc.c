/* nvrtc.c: NVRTC opened with dlopen: compiles CUDA text to a cubin, reads the resource report.  The search for the library is in nvrtc_find.c. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "jit.h"

typedef void *NvrtcProgram;

/* field, symbol, arguments; every function returns an nvrtcResult except GetErrorString */
#define NVRTC_FUNCTIONS(F)                                                                                                                           \
    F(version, "nvrtcVersion", int, (int *major, int *minor))                                                                                        \
    F(error_string, "nvrtcGetErrorString", const char *, (int result))                                                                               \
    F(num_archs, "nvrtcGetNumSupportedArchs", int, (int *n))                                                                                         \
    F(archs, "nvrtcGetSupportedArchs", int, (int *list))                                                                                             \
    F(create, "nvrtcCreateProgram", int,                                                                                                             \
      (NvrtcProgram * p, const char *src, const char *name, int n, const char *const *hdr, const char *const *inc))                                  \
    F(destroy, "nvrtcDestroyProgram", int, (NvrtcProgram * p))                                                                                       \
    F(compile, "nvrtcCompileProgram", int, (NvrtcProgram p, int n, const char *const *options))                                                      \
    F(log_size, "nvrtcGetProgramLogSize", int, (NvrtcProgram p, size_t * n))                                                                         \
    F(log, "nvrtcGetProgramLog", int, (NvrtcProgram p, char *text))                                                                                  \
    F(cubin_size, "nvrtcGetCUBINSize", int, (NvrtcProgram p, size_t * n))                                                                            \
    F(cubin, "nvrtcGetCUBIN", int, (NvrtcProgram p, char *image))                                                                                    \
    F(ptx_size, "nvrtcGetPTXSize", int, (NvrtcProgram p, size_t * n))                                                                                \
    F(ptx, "nvrtcGetPTX", int, (NvrtcProgram p, char *image))

enum { NVRTC_OK = 0, NVRTC_OUT_OF_MEMORY = 1, NVRTC_INVALID_OPTION = 5, NVRTC_COMPILATION = 6, NVRTC_BUILTIN_OPERATION_FAILURE = 7 };

struct Nvrtc {
#define DECLARE(field, symbol, result, args) result(*field) args;
    NVRTC_FUNCTIONS(DECLARE)
#undef DECLARE
    int major, minor;
};

/* Measured with NVRTC 13.0: without it the big kernels spill, up to 200 bytes per thread, and compiling takes a third longer. */
#define FAST_COMPILE "--Ofast-compile=min"
const char *const ag_nvrtc_options[] = {"--std=c++17", "--ptxas-options=-v", FAST_COMPILE, NULL};

/* NVRTC opens its builtins by bare name, which the loader finds only in its own path: have them loaded from NVRTC's folder before. */
static void preload_builtins(const char *path, int major, int minor) {
    const char *slash = strrchr(path, '/');
    char name[4096 + 64];
    int dir = slash ? (int)(slash - path) + 1 : 0;
    snprintf(name, sizeof name, "%.*slibnvrtc-builtins.so.%d.%d", dir, path, major, minor);
    dlopen(name, RTLD_LAZY | RTLD_GLOBAL);
}

static attngen_status resolve(Nvrtc *n, void *handle, const char *path, Err *e) {
    static const struct {
        const char *symbol;
        size_t at;
    } table[] = {
#define ROW(field, symbol, result, args) {symbol, offsetof(Nvrtc, field)},
        NVRTC_FUNCTIONS(ROW)
#undef ROW
    };
    for (int i = 0; i < LEN(table); i++) {
        void *f = dlsym(handle, table[i].symbol);
        if (!f) return ag_err(e, ATTNGEN_E_NO_NVRTC, "%s has no %s: NVRTC 12.3 or newer is needed", path, table[i].symbol);
        memcpy((char *)n + table[i].at, &f, sizeof f);
    }
    if (n->version(&n->major, &n->minor) != NVRTC_OK) return ag_err(e, ATTNGEN_E_NO_NVRTC, "%s does not tell its version", path);
    if (n->major * 100 + n->minor < 1203) {
        return ag_err(e, ATTNGEN_E_NO_NVRTC, "%s is NVRTC %d.%d: 12.3 or newer is needed", path, n->major, n->minor);
    }
    preload_builtins(path, n->major, n->minor);
    return ATTNGEN_OK;
}

attngen_status ag_nvrtc_open(Nvrtc **out, const char *path, Err *e) {
    *out = NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        return ag_err(e, ATTNGEN_E_NO_NVRTC, "cannot open NVRTC: %s", why ? why : path);
    }
    Nvrtc *n = calloc(1, sizeof *n);
    if (!n) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    attngen_status s = resolve(n, handle, path, e);
    if (s != ATTNGEN_OK) {
        free(n);
        return s;
    }
    *out = n;
    return ATTNGEN_OK;
}

void ag_nvrtc_close(Nvrtc *n) { free(n); }

void ag_nvrtc_version(const Nvrtc *n, int *major, int *minor) {
    *major = n->major;
    *minor = n->minor;
}

void ag_compiled_free(Compiled *c) {
    free(c->image);
    free(c->log);
    memset(c, 0, sizeof *c);
}

static int number_before(const char *line, const char *words) {
    const char *end = strstr(line, words), *p = end;
    while (p && p > line && p[-1] >= '0' && p[-1] <= '9') p--;
    return p && p < end ? atoi(p) : 0;
}

static bool is_c75(const char *line) {
    for (const char *p = strstr(line, "(C75"); p; p = strstr(p + 1, "(C75")) {
        if (p[4] >= '0' && p[4] <= '9' && p[5] >= '0' && p[5] <= '9' && p[6] == ')') return true;
    }
    return false;
}

/* C7511 and C7512, "wgmma.mma_async instructions are serialized due to insufficient register resources for the ...": as with spills, the text asks for more than a thread has. */
static bool is_short_of_registers(const char *line) { return strstr(line, "serialized due to insufficient register resources") != NULL; }

/* The lines read, as ptxas of CUDA 12.3 to 13.0 prints them:
 *   ptxas         .     2568 bytes stack frame, 3064 bytes spill stores, 5900 bytes spill loads
 *   ptxas info    : Used 32 registers, used 1 barriers, 2568 bytes cumulative stack size
 *   ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirement. */
PtxasReport ag_ptxas_report(const char *log, char *warning, size_t n) {
    PtxasReport report = {0};
    if (warning && n) warning[0] = 0;
    for (const char *p = log; *p;) {
        size_t len = strcspn(p, "\n");
        char line[512];
        snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), p);
        int used = strstr(line, "Used ") ? number_before(line, " registers") : 0;
        int spill = number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
        if (used > report.registers) report.registers = used;
        if (spill > report.spill_bytes) report.spill_bytes = spill;
        bool c75 = is_c75(line), shortage = c75 && is_short_of_registers(line);
        report.serialised |= shortage;
        if (warning && n && !warning[0] && c75 && !shortage) snprintf(warning, n, "%s", line);
        p += len + (p[len] == '\n');
    }
    return report;
}

/* "sm_90a" -> 90; 0 if it is no architecture */
static int arch_number(const char *arch) { return strncmp(arch, "sm_", 3) ? 0 : atoi(arch + 3); }

static attngen_status check_arch(const Nvrtc *n, const char *arch, Err *e) {
    int count = 0, list[256];
    if (n->num_archs(&count) != NVRTC_OK || count < 1 || count > LEN(list) || n->archs(list) != NVRTC_OK) return ATTNGEN_OK;
    for (int i = 0; i < count; i++) {
        if (list[i] == arch_number(arch)) return ATTNGEN_OK;
    }
    return ag_err(e, ATTNGEN_E_UNSUPPORTED, "NVRTC %d.%d does not know %s: it knows sm_%d to sm_%d", n->major, n->minor, arch, list[0],
                  list[count - 1]);
}

enum { MAX_OPTIONS = 8, OPTION_BYTES = 48 };
typedef struct Options {
    int n;
    const char *item[MAX_OPTIONS];
    char arch[OPTION_BYTES];
} Options;

/* NVRTC 12.9 is the first that takes FAST_COMPILE and --no-cache. */
static bool is_recent(const Nvrtc *n) { return n->major * 100 + n->minor >= 1209; }

/* For sm_90a and its like FAST_COMPILE must not be: ptxas then ignores setmaxnreg (C7504).  A cold compile is to be cold: NVRTC's own cache is off. */
static bool takes_fast(const Nvrtc *n, const char *arch) { return is_recent(n) && arch[strlen(arch) - 1] != 'a'; }

static void make_options(Options *o, const Nvrtc *n, const char *arch, bool ptx, bool fast) {
    snprintf(o->arch, sizeof o->arch, "--gpu-architecture=%s%s", ptx ? "compute_" : "sm_", arch + 3);
    o->n = 0;
    o->item[o->n++] = o->arch;
    for (const char *const *p = ag_nvrtc_options; *p; p++) {
        if (fast || strcmp(*p, FAST_COMPILE)) o->item[o->n++] = *p;
    }
    if (is_recent(n)) o->item[o->n++] = "--no-cache";
}

static attngen_status compile_error(const Nvrtc *n, int result, const Options *o, const char *log, Err *e) {
    char all[MAX_OPTIONS * OPTION_BYTES] = "";
    switch (result) {
    case NVRTC_OUT_OF_MEMORY: return ag_err(e, ATTNGEN_E_NOMEM, "NVRTC is out of memory");
    case NVRTC_COMPILATION: return ag_err(e, ATTNGEN_E_COMPILE, "NVRTC %d.%d refused the generated code: %s", n->major, n->minor, log);
    case NVRTC_INVALID_OPTION:
        for (int i = 0; i < o->n; i++) snprintf(all + strlen(all), sizeof all - strlen(all), " %s", o->item[i]);
        return ag_err(e, ATTNGEN_E_COMPILE, "NVRTC %d.%d refused one of the options%s: %s", n->major, n->minor, all, log);
    case NVRTC_BUILTIN_OPERATION_FAILURE:
        return ag_err(e, ATTNGEN_E_NO_NVRTC, "NVRTC %d.%d cannot load libnvrtc-builtins.so.%d.%d: it belongs in the folder of libnvrtc.so.%d",
                      n->major, n->minor, n->major, n->minor, n->major);
    default: return ag_err(e, ATTNGEN_E_COMPILE, "NVRTC %d.%d: %s: %s", n->major, n->minor, n->error_string(result), log);
    }
}

static char *read_log(const Nvrtc *n, NvrtcProgram p) {
    size_t size = 0;
    if (n->log_size(p, &size) != NVRTC_OK) size = 0;
    char *log = calloc(1, size + 1);
    if (log && size && n->log(p, log) != NVRTC_OK) log[0] = 0;
    return log;
}

static attngen_status read_image(const Nvrtc *n, NvrtcProgram p, bool ptx, Compiled *out, Err *e) {
    int r = ptx ? n->ptx_size(p, &out->size) : n->cubin_size(p, &out->size);
    if (r == NVRTC_OK && !out->size) return ag_err(e, ATTNGEN_E_COMPILE, "NVRTC %d.%d gave no code", n->major, n->minor);
    if (r != NVRTC_OK) return ag_err(e, ATTNGEN_E_COMPILE, "NVRTC %d.%d: %s", n->major, n->minor, n->error_string(r));
    out->image = malloc(out->size);
    if (!out->image) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    r = ptx ? n->ptx(p, out->image) : n->cubin(p, out->image);
    if (ptx) out->size--; /* counts the NUL */
    return r == NVRTC_OK ? ATTNGEN_OK : ag_err(e, ATTNGEN_E_COMPILE, "NVRTC %d.%d: %s", n->major, n->minor, n->error_string(r));
}

static attngen_status run(Nvrtc *n, NvrtcProgram p, const char *arch, unsigned flags, bool fast, Compiled *out, Err *e) {
    Options o;
    make_options(&o, n, arch, flags & NVRTC_PTX, fast);
    int r = n->compile(p, o.n, o.item);
    out->log = read_log(n, p);
    if (!out->log) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    if (r != NVRTC_OK) return compile_error(n, r, &o, out->log, e);
    char warning[512];
    out->report = ag_ptxas_report(out->log, warning, sizeof warning);
    if (warning[0] && !(flags & NVRTC_SLOW)) return ag_err(e, ATTNGEN_E_COMPILE, "the generated code does not compile as meant: %s", warning);
    return read_image(n, p, flags & NVRTC_PTX, out, e);
}

static attngen_status compile(Nvrtc *n, const char *source, const char *arch, unsigned flags, bool fast, Compiled *out, Err *e) {
    NvrtcProgram p = NULL;
    int r = n->create(&p, source, "attngen.cu", 0, NULL, NULL);
    if (r != NVRTC_OK) return ag_err(e, r == NVRTC_OUT_OF_MEMORY ? ATTNGEN_E_NOMEM : ATTNGEN_E_COMPILE, "NVRTC: %s", n->error_string(r));
    attngen_status s = run(n, p, arch, flags, fast, out, e);
    n->destroy(&p);
    return s;
}

/* Fast first; a kernel that spills then (head dims between powers of two on sm_8x: up to 900 bytes) is compiled once more with all that ptxas can. */
attngen_status ag_nvrtc_compile(Nvrtc *n, const char *source, const char *arch, unsigned flags, Compiled *out, Err *e) {
    memset(out, 0, sizeof *out);
    if (!arch_number(arch) || strlen(arch) > 12) return ag_err(e, ATTNGEN_E_UNSUPPORTED, "'%s' is no architecture", arch);
    attngen_status s = check_arch(n, arch, e);
    if (s != ATTNGEN_OK) return s;
    bool fast = takes_fast(n, arch);
    s = compile(n, source, arch, flags, fast, out, e);
    if (s == ATTNGEN_OK && fast && out->report.spill_bytes > 0) {
        Compiled slow = {0};
        bool better = compile(n, source, arch, flags, false, &slow, e) == ATTNGEN_OK && slow.report.spill_bytes < out->report.spill_bytes;
        Compiled worse = better ? *out : slow;
        if (better) *out = slow;
        ag_compiled_free(&worse);
    }
    out->tuned = is_recent(n);
    return s;
}
