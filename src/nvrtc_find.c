/* nvrtc_find.c: where NVRTC lies, found by path alone: opening it takes longer than a warm compile may. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base.h"
#include "jit.h"

#if defined(__aarch64__)
#define TARGET  "targets/[as]*-linux/lib"
#define TRIPLET "aarch64-linux-gnu"
#else
#define TARGET  "targets/x86_64-linux/lib"
#define TRIPLET "x86_64-linux-gnu"
#endif

typedef enum Base { BASE_NONE, BASE_CUDA_HOME, BASE_LIBRARY, BASE_PROGRAM, BASE_LOADER, BASE_VENV, BASE_CONDA, BASE_HOME, BASE_COUNT } Base;
static const char *const base_name[BASE_COUNT] = {
    "", "$CUDA_HOME", "beside the library", "beside the program", "$LD_LIBRARY_PATH", "$VIRTUAL_ENV", "$CONDA_PREFIX", "$HOME"};

/* Folders in order of search; `pattern` is a glob below the base (a path for BASE_NONE).  Of several matches the last in sort order is taken. */
static const struct {
    Base base;
    const char *pattern;
} place[] = {
    {BASE_CUDA_HOME, "lib64"},
    {BASE_CUDA_HOME, TARGET},
    {BASE_CUDA_HOME, "lib"},
    {BASE_LIBRARY, "nvrtc"},
    {BASE_LIBRARY, "../nvrtc"},
    {BASE_PROGRAM, "nvrtc"},
    {BASE_PROGRAM, "../nvrtc"},
    {BASE_LOADER, ""},
    {BASE_NONE, "/usr/local/cuda/lib64"},
    {BASE_NONE, "/usr/local/cuda/" TARGET},
    {BASE_NONE, "/usr/local/cuda/lib"},
    {BASE_NONE, "/usr/local/cuda-1[23]*/lib64"},
    {BASE_NONE, "/usr/local/cuda-1[23]*/" TARGET},
    {BASE_NONE, "/usr/local/cuda-1[23]*/lib"},
    {BASE_NONE, "/opt/cuda*/lib64"},
    {BASE_NONE, "/usr/lib/" TRIPLET},
    {BASE_NONE, "/usr/lib64"},
    {BASE_VENV, "lib/python3*/site-packages/nvidia/cu13/lib"},
    {BASE_VENV, "lib/python3*/site-packages/nvidia/cuda_nvrtc/lib"},
    {BASE_CONDA, "lib"},
    {BASE_CONDA, "lib/python3*/site-packages/nvidia/cu13/lib"},
    {BASE_CONDA, "lib/python3*/site-packages/nvidia/cuda_nvrtc/lib"},
    {BASE_HOME, ".local/lib/python3*/site-packages/nvidia/cu13/lib"},
    {BASE_HOME, ".local/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib"},
    {BASE_NONE, "/usr/local/lib/python3*/*-packages/nvidia/cu13/lib"},
    {BASE_NONE, "/usr/local/lib/python3*/*-packages/nvidia/cuda_nvrtc/lib"},
    {BASE_NONE, "/usr/lib/python3*/*-packages/nvidia/cu13/lib"},
    {BASE_NONE, "/usr/lib/python3*/*-packages/nvidia/cuda_nvrtc/lib"},
    {BASE_NONE, "/opt/conda/lib/python3*/site-packages/nvidia/cu13/lib"},
    {BASE_NONE, "/opt/conda/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib"},
};

typedef struct Search {
    char library[PATH_MAX], program[PATH_MAX]; /* folders, "" if unknown */
    const NvrtcEnv *env;
    char *path, *log;
    size_t nlog;
} Search;

static void note(Search *s, const char *fmt, ...) PRINTF(2, 3);
static void note(Search *s, const char *fmt, ...) {
    size_t used = s->log && s->nlog ? strlen(s->log) : 0;
    if (!s->log || used + 1 >= s->nlog) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->log + used, s->nlog - used, fmt, ap);
    va_end(ap);
}

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The newest library in a folder given by a glob.  Every match is a candidate, the last one that is a file is taken. */
static bool look(Search *s, const char *folder) {
    char pattern[PATH_MAX];
    glob_t g = {0};
    bool found = false;
    if (snprintf(pattern, sizeof pattern, "%s/libnvrtc.so.1[23]", folder) < (int)sizeof pattern && glob(pattern, 0, NULL, &g) == 0) {
        for (size_t i = g.gl_pathc; i > 0 && !found; i--) found = is_file(g.gl_pathv[i - 1]) && realpath(g.gl_pathv[i - 1], s->path);
        globfree(&g);
    }
    return found;
}

/* One folder `base`/`pattern`; characters of the base that glob would interpret are escaped. */
static bool look_below(Search *s, Base b, const char *base, size_t n, const char *pattern) {
    char folder[PATH_MAX];
    size_t w = 0;
    for (size_t i = 0; i < n && w + 2 < sizeof folder; i++) {
        if (strchr("*?[\\", base[i])) folder[w++] = '\\';
        folder[w++] = base[i];
    }
    if (snprintf(folder + w, sizeof folder - w, "%s%s", n && pattern[0] ? "/" : "", pattern) >= (int)(sizeof folder - w)) return false;
    bool found = look(s, folder);
    note(s, "%s%s%s: %s\n", base_name[b], b == BASE_NONE ? "" : " ", folder, found ? s->path : "not there");
    return found;
}

static const char *base_of(const Search *s, Base b) {
    switch (b) {
    case BASE_CUDA_HOME: return s->env->cuda_home;
    case BASE_LIBRARY: return s->library;
    case BASE_PROGRAM: return s->program;
    case BASE_LOADER: return s->env->ld_library_path;
    case BASE_VENV: return s->env->virtual_env;
    case BASE_CONDA: return s->env->conda_prefix;
    case BASE_HOME: return s->env->home;
    default: return NULL;
    }
}

static bool look_at_place(Search *s, Base b, const char *pattern) {
    if (b == BASE_NONE) return look_below(s, b, "", 0, pattern);
    const char *base = base_of(s, b);
    if (!base || !base[0]) return false;
    if (b != BASE_LOADER) return look_below(s, b, base, strlen(base), pattern);
    for (const char *p = base; *p;) {
        size_t n = strcspn(p, ":;");
        if (n && look_below(s, b, p, n, pattern)) return true;
        p += n + (p[n] != 0);
    }
    return false;
}

static void cut_to_folder(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
}

static void find_ourselves(Search *s) {
    Dl_info info;
    void *self;
    attngen_status (*f)(const char *, const NvrtcEnv *, char *, char *, char *, size_t, Err *) = ag_nvrtc_find;
    memcpy(&self, &f, sizeof self);
    if (!dladdr(self, &info) || !info.dli_fname || !strchr(info.dli_fname, '/') || !realpath(info.dli_fname, s->library)) s->library[0] = 0;
    ssize_t n = readlink("/proc/self/exe", s->program, sizeof s->program - 1);
    s->program[n > 0 ? n : 0] = 0;
    if (!strcmp(s->library, s->program)) s->library[0] = 0;
    cut_to_folder(s->library);
    cut_to_folder(s->program);
}

/* ---- the identity of a file */

/* XXH3-128 of the first and the last 64 KB, in hex: headers, build id and section table, which two builds never have alike. */
static bool ends_hash(int fd, off_t size, char hex[33]) {
    enum { END = 64 << 10 };
    char *buf = malloc(2 * END);
    if (!buf) return false;
    ssize_t head = pread(fd, buf, END, 0), tail = size > END ? pread(fd, buf + END, END, size - END) : 0;
    bool ok = head >= 0 && tail >= 0;
    if (ok) {
        memmove(buf + head, buf + END, (size_t)tail);
        XXH128_hash_t h = XXH3_128bits(buf, (size_t)(head + tail));
        snprintf(hex, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    }
    free(buf);
    return ok;
}

static attngen_status identify(const char *path, char id[256], Err *e) {
    struct stat st;
    char hex[33];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && fstat(fd, &st) == 0 && ends_hash(fd, st.st_size, hex);
    int why = errno;
    if (fd >= 0) close(fd);
    if (!ok) return ag_err(e, ATTNGEN_E_NO_NVRTC, "cannot read %s: %s", path, strerror(why));
    const char *slash = strrchr(path, '/');
    snprintf(id, 256, "%.100s %lld %s", slash ? slash + 1 : path, (long long)st.st_size, hex);
    for (char *p = id; *p; p++) {
        if ((unsigned char)*p < ' ') *p = '?';
    }
    return ATTNGEN_OK;
}

/* A file, or a folder that holds one.  What the user named is taken or refused: no other place is looked at. */
static attngen_status take(Search *s, const char *who, const char *path, Err *e) {
    bool found = is_file(path) && realpath(path, s->path);
    if (found) note(s, "%s %s: %s\n", who, path, s->path);
    if (!found) found = look_below(s, BASE_NONE, path, strlen(path), "");
    if (found) return ATTNGEN_OK;
    return ag_err(e, ATTNGEN_E_NO_NVRTC, "%s is '%s': neither a file nor a folder with libnvrtc.so.13 or libnvrtc.so.12", who, path);
}

attngen_status ag_nvrtc_find(const char *explicit_path, const NvrtcEnv *env, char path[4096], char id[256], char *log, size_t nlog, Err *e) {
    static const NvrtcEnv none;
    Search s = {.env = env ? env : &none, .path = path, .log = log, .nlog = nlog};
    const char *given = explicit_path ? explicit_path : s.env->attngen_nvrtc;
    path[0] = id[0] = 0;
    if (log && nlog) log[0] = 0;
    if (given && given[0]) {
        attngen_status st = take(&s, explicit_path ? "the nvrtc option" : "$ATTNGEN_NVRTC", given, e);
        return st == ATTNGEN_OK ? identify(path, id, e) : st;
    }
    find_ourselves(&s);
    for (int i = 0; i < LEN(place); i++) {
        if (look_at_place(&s, place[i].base, place[i].pattern)) return identify(path, id, e);
    }
    return ag_err(e, ATTNGEN_E_NO_NVRTC,
                  "NVRTC is not on this machine: install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, or name libnvrtc.so.13 in "
                  "$ATTNGEN_NVRTC (attngen doctor lists where it was looked for)");
}
