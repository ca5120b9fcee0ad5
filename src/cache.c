/* cache.c: compiled kernels on disk, one file per entry.
 *
 *   DIR/v3/ab/0123456789...ef.agk     the first byte of the key, then the others; temporary files in the same folder
 *
 *   Header | key text | ProgramMeta | cubin | XXH3-128 (canonical bytes) of all before
 *
 * Correctness rests on rename alone, there are no locks: whoever stores last wins, and all that store a key store the same.  Whatever is odd about an
 * entry makes it a miss and removes it.  Whoever can write the folder can run code on the GPU, so a folder that others can write is refused. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base.h"
#include "jit.h"

#define FORMAT_FOLDER "v6"
enum { FORMAT = 6, NAME_BYTES = 64, STALE_SECONDS = 3600 };
/* A change of ProgramMeta is a change of the format. */
_Static_assert(sizeof(ProgramMeta) == 57752, "ProgramMeta changed: raise FORMAT and FORMAT_FOLDER, then this number");

enum { TUNED = 1, SERIALISED = 2 };

static const char magic[8] = "AGKERNEL";
static const size_t max_entry = (size_t)256 << 20;

typedef struct Header {
    char magic[8];
    uint32_t format, key_bytes, meta_bytes;
    int32_t registers, spill_bytes;
    uint32_t flags; /* TUNED, SERIALISED */
    uint64_t cubin_bytes, total_bytes;
} Header;

struct Cache {
    char dir[PATH_MAX]; /* "" if there is none */
    bool refused;       /* the folder is not to be used */
    bool warned;
    void (*warn)(void *, const char *);
    void *payload;
};

static void warn_once(Cache *c, const char *fmt, ...) PRINTF(2, 3);
static void warn_once(Cache *c, const char *fmt, ...) {
    char text[PATH_MAX + 256];
    if (c->warned || !c->warn) return;
    c->warned = true;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->warn(c->payload, text);
}

/* ---- the key */

static void hex_of(const uint8_t h[16], char hex[33]) {
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", h[i]);
}

static void hash(const void *data, size_t n, uint8_t h[16]) {
    XXH128_canonical_t x;
    XXH128_canonicalFromHash(&x, XXH3_128bits(data, n));
    memcpy(h, x.digest, 16);
}

CacheKey ag_cache_key(const char *source, size_t len, const ProgramMeta *meta, const char *arch, const char *nvrtc_id) {
    CacheKey key;
    uint8_t h[16];
    char src[33], met[33], options[160] = "";
    memset(&key, 0, sizeof key);
    hash(source, len, h);
    hex_of(h, src);
    hash(meta, sizeof *meta, h);
    hex_of(h, met);
    for (const char *const *o = ag_nvrtc_options; *o; o++) snprintf(options + strlen(options), sizeof options - strlen(options), " %s", *o);
    int n = snprintf(key.text, sizeof key.text, "format %d\nattngen %s\nsource %zu %s\nmeta %zu %s\narch %s\noptions%s\nnvrtc %s\n", FORMAT,
                     ATTNGEN_VERSION_STRING, len, src, sizeof *meta, met, arch, options, nvrtc_id);
    assert(n > 0 && n < (int)sizeof key.text);
    (void)n;
    hash(key.text, sizeof key.text, key.h);
    return key;
}

/* ---- folders */

/* The folder by the rules of jit.h; false: none is wanted or none can be named. */
static bool choose(Cache *c, const char *dir, const CacheEnv *env) {
    static const CacheEnv unset;
    const CacheEnv *v = env ? env : &unset;
    const char *base = dir ? dir : v->attngen_cache_dir, *below = "";
    if (!base && v->xdg_cache_home && v->xdg_cache_home[0] == '/') base = v->xdg_cache_home, below = "/attngen";
    if (!base && v->home && v->home[0] == '/') base = v->home, below = "/.cache/attngen";
    if (!base) warn_once(c, "no kernel cache: none of ATTNGEN_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder");
    if (!base || !base[0]) return false;
    if (snprintf(c->dir, sizeof c->dir, "%s%s", base, below) < (int)sizeof c->dir) return true;
    c->dir[0] = 0;
    warn_once(c, "no kernel cache: the path of the folder is longer than %zu bytes", sizeof c->dir - 1);
    return false;
}

/* Ours alone: a folder that somebody else may write is not to be trusted. */
static bool trusted(Cache *c, const struct stat *st) {
    const char *why = !S_ISDIR(st->st_mode)               ? "it is not a folder"
                      : st->st_uid != geteuid()           ? "it belongs to another user"
                      : st->st_mode & (S_IWGRP | S_IWOTH) ? "other users may write to it"
                                                          : NULL;
    if (!why) return true;
    c->refused = true;
    warn_once(c, "no kernel cache: %s is refused: %s (name another one in ATTNGEN_CACHE_DIR)", c->dir, why);
    return false;
}

/* -1 with errno; errno 0: refused. */
static int open_trusted(Cache *c, int at, const char *name, int flags) {
    struct stat st;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    if (fd < 0) return -1;
    if (fstat(fd, &st) == 0 && trusted(c, &st)) return fd;
    close(fd);
    errno = 0;
    return -1;
}

/* A link is followed if it is ours or root's. */
static int open_top(Cache *c) {
    struct stat st;
    if (c->refused || !c->dir[0]) {
        errno = 0;
        return -1;
    }
    if (lstat(c->dir, &st) == 0 && S_ISLNK(st.st_mode) && st.st_uid != geteuid() && st.st_uid != 0) {
        c->refused = true;
        warn_once(c, "no kernel cache: %s is refused: it is another user's link (name another one in ATTNGEN_CACHE_DIR)", c->dir);
        errno = 0;
        return -1;
    }
    return open_trusted(c, AT_FDCWD, c->dir, 0);
}

static bool make_path(const char *dir) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", dir);
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST) return false;
        *p = '/';
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static int open_below(Cache *c, int at, const char *name, bool make) {
    if (make && mkdirat(at, name, 0700) != 0 && errno != EEXIST) return -1;
    return open_trusted(c, at, name, O_NOFOLLOW);
}

/* DIR/v3 */
static int open_format(Cache *c, bool make) {
    if (make && !c->refused && c->dir[0] && !make_path(c->dir)) return -1;
    int top = open_top(c);
    if (top < 0) return -1;
    int fd = open_below(c, top, FORMAT_FOLDER, make);
    int why = errno;
    close(top);
    errno = why;
    return fd;
}

/* The folder of an entry, and its name there.  -1 with errno; errno 0: refused. */
static int open_folder(Cache *c, const CacheKey *key, bool make, char name[NAME_BYTES]) {
    char hex[33], sub[3];
    hex_of(key->h, hex);
    memcpy(sub, hex, 2);
    sub[2] = 0;
    snprintf(name, NAME_BYTES, "%s.agk", hex + 2);
    int top = open_format(c, make);
    if (top < 0) return -1;
    int fd = open_below(c, top, sub, make);
    int why = errno;
    close(top);
    errno = why;
    return fd;
}

Cache *ag_cache_open(const char *dir, const CacheEnv *env, void (*warn)(void *, const char *), void *payload) {
    Cache *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->warn = warn;
    c->payload = payload;
    if (choose(c, dir, env)) {
        int fd = open_top(c);
        if (fd >= 0)
            close(fd);
        else if (errno && errno != ENOENT)
            c->refused = true, warn_once(c, "no kernel cache: %s: %s", c->dir, strerror(errno));
    }
    return c;
}

void ag_cache_close(Cache *c) { free(c); }
const char *ag_cache_dir(const Cache *c) { return c && !c->refused ? c->dir : ""; }

/* ---- load */

static bool read_all(int fd, void *p, size_t n) {
    for (char *at = p; n;) {
        ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

/* Whether the n bytes at p are a whole entry of this key. */
static bool entry_valid(const uint8_t *p, size_t n, const char *key_text, size_t key_bytes) {
    Header h;
    uint8_t sum[16];
    if (n < sizeof h + sizeof sum) return false;
    memcpy(&h, p, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) || h.format != FORMAT || h.key_bytes != key_bytes || h.meta_bytes != sizeof(ProgramMeta)) return false;
    size_t fixed = sizeof h + key_bytes + sizeof(ProgramMeta) + sizeof sum;
    if (h.total_bytes != n || n <= fixed || h.cubin_bytes != n - fixed) return false;
    hash(p, n - sizeof sum, sum);
    return !memcmp(sum, p + n - sizeof sum, sizeof sum) && (!key_text || !memcmp(p + sizeof h, key_text, key_bytes));
}

static bool unpack(const uint8_t *p, CacheEntry *out) {
    Header h;
    memcpy(&h, p, sizeof h);
    p += sizeof h + h.key_bytes;
    memcpy(&out->meta, p, sizeof out->meta);
    if (!ag_meta_valid(&out->meta)) return false;
    out->size = (size_t)h.cubin_bytes;
    out->report = (PtxasReport){h.registers, h.spill_bytes, (h.flags & SERIALISED) != 0};
    out->tuned = (h.flags & TUNED) != 0;
    out->cubin = malloc(out->size);
    if (out->cubin) memcpy(out->cubin, p + sizeof out->meta, out->size);
    return true;
}

/* Whole file in memory, malloc'ed.  NULL: *damaged says whether the file is at fault (as against memory or the system). */
static uint8_t *slurp(int dir, const char *name, size_t *n, bool *damaged) {
    struct stat st;
    *damaged = false;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK); /* NONBLOCK: a planted pipe must not stop us */
    if (fd < 0) {
        *damaged = errno == ELOOP || errno == ENXIO;
        return NULL;
    }
    uint8_t *p = NULL;
    if (fstat(fd, &st) == 0) {
        *n = (size_t)st.st_size;
        *damaged = !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size <= 0 || *n > max_entry;
        if (!*damaged) p = malloc(*n);
        if (p && !read_all(fd, p, *n)) {
            free(p);
            p = NULL;
        }
    }
    close(fd);
    return p;
}

bool ag_cache_load(Cache *c, const CacheKey *key, CacheEntry *out) {
    char name[NAME_BYTES];
    size_t n = 0;
    bool damaged = false;
    memset(out, 0, sizeof *out);
    int dir = c ? open_folder(c, key, false, name) : -1;
    if (dir < 0) return false;
    uint8_t *p = slurp(dir, name, &n, &damaged);
    if (p) damaged = !entry_valid(p, n, key->text, sizeof key->text) || !unpack(p, out);
    free(p);
    if (damaged) unlinkat(dir, name, 0);
    close(dir);
    return !damaged && out->cubin;
}

/* ---- store */

static bool write_all(int fd, const void *p, size_t n) {
    for (const char *at = p; n;) {
        ssize_t put = write(fd, at, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        at += put;
        n -= (size_t)put;
    }
    return true;
}

static uint8_t *pack(const CacheKey *key, const CacheEntry *e, size_t *n) {
    Header h = {.format = FORMAT,
                .key_bytes = sizeof key->text,
                .meta_bytes = sizeof e->meta,
                .registers = e->report.registers,
                .spill_bytes = e->report.spill_bytes,
                .flags = (e->tuned ? TUNED : 0u) | (e->report.serialised ? SERIALISED : 0u)};
    size_t before = sizeof h + sizeof key->text + sizeof e->meta + e->size;
    *n = before + 16;
    uint8_t *p = malloc(*n);
    if (!p) return NULL;
    memcpy(h.magic, magic, sizeof magic);
    h.cubin_bytes = e->size;
    h.total_bytes = *n;
    uint8_t *at = p;
    memcpy(at, &h, sizeof h), at += sizeof h;
    memcpy(at, key->text, sizeof key->text), at += sizeof key->text;
    memcpy(at, &e->meta, sizeof e->meta), at += sizeof e->meta;
    memcpy(at, e->cubin, e->size);
    hash(p, before, p + before);
    return p;
}

static bool is_temporary(const char *name) { return !strncmp(name, ".tmp-", 5); }

/* What killed writers left behind. */
static void sweep(int dir) {
    int fd = dup(dir);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0) close(fd);
        return;
    }
    rewinddir(d);
    for (struct dirent *x = readdir(d); x; x = readdir(d)) {
        struct stat st;
        if (!is_temporary(x->d_name) || fstatat(dir, x->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (time(NULL) - st.st_mtime > STALE_SECONDS) unlinkat(dir, x->d_name, 0);
    }
    closedir(d);
}

static bool temporary_name(char name[NAME_BYTES]) {
    uint8_t r[16];
    char hex[33];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r) return false;
    hex_of(r, hex);
    snprintf(name, NAME_BYTES, ".tmp-%ld-%s", (long)getpid(), hex);
    return true;
}

/* False with errno. */
static bool publish(int dir, const char *name, const uint8_t *p, size_t n) {
    char tmp[NAME_BYTES];
    if (!temporary_name(tmp)) return false;
    int fd = openat(dir, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    bool ok = write_all(fd, p, n) && fsync(fd) == 0;
    int why = errno;
    if (close(fd) != 0 && ok) ok = false, why = errno;
    if (ok && renameat(dir, tmp, dir, name) != 0) ok = false, why = errno;
    if (ok)
        fsync(dir);
    else
        unlinkat(dir, tmp, 0);
    errno = why;
    return ok;
}

void ag_cache_store(Cache *c, const CacheKey *key, const CacheEntry *e) {
    char name[NAME_BYTES];
    size_t n = 0;
    if (!c || !c->dir[0] || c->refused) return;
    int dir = open_folder(c, key, true, name);
    if (dir < 0) {
        if (errno) warn_once(c, "the kernel is not cached: %s: %s (name another folder in ATTNGEN_CACHE_DIR)", c->dir, strerror(errno));
        return;
    }
    uint8_t *p = pack(key, e, &n);
    sweep(dir);
    if (p && n <= max_entry && !publish(dir, name, p, n)) {
        warn_once(c, "the kernel is not cached: %s: %s (name another folder in ATTNGEN_CACHE_DIR)", c->dir, strerror(errno));
    }
    free(p);
    close(dir);
}

/* ---- list and clear */

static bool is_hex(const char *s, size_t n) { return strspn(s, "0123456789abcdef") == n; }
static int is_sub(const struct dirent *x) { return strlen(x->d_name) == 2 && is_hex(x->d_name, 2); }
static int is_ours(const struct dirent *x) { return is_temporary(x->d_name) || (is_hex(x->d_name, 30) && !strcmp(x->d_name + 30, ".agk")); }

typedef struct Visit {
    Cache *cache;
    attngen_status (*file)(struct Visit *v, int dir, const char *sub, const char *name);
    attngen_sink sink;
    void *payload;
    size_t removed;
    bool remove_folders;
} Visit;

static attngen_status visit_folder(Visit *v, int top, const char *sub) {
    struct dirent **name = NULL;
    attngen_status s = ATTNGEN_OK;
    int dir = open_below(v->cache, top, sub, false);
    if (dir < 0) return ATTNGEN_OK;
    int n = scandirat(dir, ".", &name, is_ours, alphasort);
    for (int i = 0; i < n; i++) {
        if (s == ATTNGEN_OK) s = v->file(v, dir, sub, name[i]->d_name);
        free(name[i]);
    }
    free(name);
    close(dir);
    if (v->remove_folders) unlinkat(top, sub, AT_REMOVEDIR);
    return n < 0 ? ATTNGEN_E_IO : s;
}

static attngen_status visit(Visit *v) {
    struct dirent **sub = NULL;
    attngen_status s = ATTNGEN_OK;
    int top = v->cache ? open_format(v->cache, false) : -1;
    if (top < 0) return v->cache && errno && errno != ENOENT ? ATTNGEN_E_IO : ATTNGEN_OK;
    int n = scandirat(top, ".", &sub, is_sub, alphasort);
    for (int i = 0; i < n; i++) {
        if (s == ATTNGEN_OK) s = visit_folder(v, top, sub[i]->d_name);
        free(sub[i]);
    }
    free(sub);
    close(top);
    return n < 0 ? ATTNGEN_E_IO : s;
}

/* "0123...ef  causal sm_90 D 128/128  58 KB  255 registers  0 spilled" */
static attngen_status list_file(Visit *v, int dir, const char *sub, const char *name) {
    char line[512];
    size_t n = 0;
    bool damaged;
    CacheEntry e = {0};
    if (is_temporary(name)) return ATTNGEN_OK;
    uint8_t *p = slurp(dir, name, &n, &damaged);
    if (p && entry_valid(p, n, NULL, sizeof(((CacheKey *)0)->text)) && unpack(p, &e) && e.cubin) {
        snprintf(line, sizeof line, "%s%.30s  %s %s D %d/%d  %zu bytes  %d registers  %d spilled%s\n", sub, name, e.meta.spec, e.meta.arch, e.meta.D,
                 e.meta.Dv, n, e.report.registers, e.report.spill_bytes, e.report.serialised ? ", wgmma serialised" : "");
    } else {
        snprintf(line, sizeof line, "%s%.30s  damaged\n", sub, name);
    }
    free(p);
    free(e.cubin);
    return v->sink(v->payload, line, strlen(line)) ? ATTNGEN_E_IO : ATTNGEN_OK;
}

static attngen_status clear_file(Visit *v, int dir, const char *sub, const char *name) {
    (void)sub;
    if (unlinkat(dir, name, 0) != 0) return errno == ENOENT ? ATTNGEN_OK : ATTNGEN_E_IO;
    v->removed += !is_temporary(name);
    return ATTNGEN_OK;
}

attngen_status ag_cache_list(Cache *c, attngen_sink sink, void *payload) {
    Visit v = {.cache = c, .file = list_file, .sink = sink, .payload = payload};
    return visit(&v);
}

attngen_status ag_cache_clear(Cache *c, size_t *removed) {
    Visit v = {.cache = c, .file = clear_file, .remove_folders = true};
    attngen_status s = visit(&v);
    if (removed) *removed = v.removed;
    return s;
}
