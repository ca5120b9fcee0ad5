/* The disk cache: what is stored is what is loaded, whatever is odd is a miss, and nothing that the file system does is fatal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "jit.h"
#include "op.h"
#include "with_folder.h"

typedef struct Warnings {
    int n;
    char last[1024];
} Warnings;

static void on_warn(void *payload, const char *message) {
    Warnings *w = payload;
    w->n++;
    snprintf(w->last, sizeof w->last, "%s", message);
}

/* ---- one entry */

static ProgramMeta meta(void) {
    ProgramMeta m;
    memset(&m, 0, sizeof m);
    m.nkernel = 1;
    m.D = m.Dv = 64;
    snprintf(m.spec, sizeof m.spec, "causal");
    snprintf(m.arch, sizeof m.arch, "sm_90");
    snprintf(m.kernel[0].name, sizeof m.kernel[0].name, "attention");
    m.kernel[0].threads = 128;
    m.kernel[0].param_bytes = 8;
    m.kernel[0].keys = SZ_SK;
    memset(m.kernel[0].tensor, META_NO_TENSOR, sizeof m.kernel[0].tensor);
    return m;
}

static char image[5000];

static CacheEntry entry(void) {
    for (size_t i = 0; i < sizeof image; i++) image[i] = (char)(i * 7 + i / 256);
    return (CacheEntry){.meta = meta(), .cubin = image, .size = sizeof image, .report = {.registers = 168, .spill_bytes = 4, .serialised = true}};
}

static CacheKey key_of(const char *source) {
    ProgramMeta m = meta();
    return ag_cache_key(source, strlen(source), &m, "sm_90", "libnvrtc.so.13 1 -");
}

static const char *path_of(const CacheKey *k) {
    char name[128];
    int n = snprintf(name, sizeof name, "v6/%02x/", k->h[0]);
    for (int i = 1; i < 16; i++) n += snprintf(name + n, sizeof name - (size_t)n, "%02x", k->h[i]);
    snprintf(name + n, sizeof name - (size_t)n, ".agk");
    return in_root(name);
}

static bool is_entry(const CacheEntry *x) {
    CacheEntry e = entry();
    return x->size == e.size && !memcmp(x->cubin, e.cubin, e.size) && !memcmp(&x->meta, &e.meta, sizeof e.meta) && x->report.registers == 168 &&
           x->report.spill_bytes == 4 && x->report.serialised && !x->tuned;
}

static bool loads(Cache *c, const CacheKey *k) {
    CacheEntry x;
    bool hit = ag_cache_load(c, k, &x);
    bool right = hit && is_entry(&x);
    free(x.cubin);
    assert_true(!hit || right);
    return hit;
}

static bool exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

static void write_file(const char *path, const void *p, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), n);
    close(fd);
}

static char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(*n);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

/* ---- tests */

static void test_round_trip(void **state) {
    (void)state;
    Warnings w = {0};
    CacheKey k = key_of("a"), other = key_of("b");
    CacheEntry e = entry();
    Cache *c = ag_cache_open(in_root("new/deep"), NULL, on_warn, &w);
    assert_false(exists(in_root("new"))); /* made by the first store */
    assert_false(loads(c, &k));
    ag_cache_store(c, &k, &e);
    assert_true(loads(c, &k));
    assert_false(loads(c, &other));
    ag_cache_close(c);
    c = ag_cache_open(in_root("new/deep"), NULL, on_warn, &w);
    assert_true(loads(c, &k));
    assert_int_equal(w.n, 0);
    ag_cache_close(c);
}

static void test_modes(void **state) {
    (void)state;
    struct stat st;
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    mode_t old = umask(0);
    Cache *c = ag_cache_open(in_root("."), NULL, NULL, NULL);
    ag_cache_store(c, &k, &e);
    umask(old);
    assert_int_equal(stat(path_of(&k), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(stat(in_root("v6"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    ag_cache_close(c);
}

static void test_key_depends_on_everything(void **state) {
    (void)state;
    ProgramMeta m = meta(), n = meta();
    n.scalar[0].deflt = 30;
    CacheKey k[] = {
        ag_cache_key("ab", 2, &m, "sm_90", "x"), ag_cache_key("ac", 2, &m, "sm_90", "x"), ag_cache_key("ab", 1, &m, "sm_90", "x"),
        ag_cache_key("ab", 2, &n, "sm_90", "x"), ag_cache_key("ab", 2, &m, "sm_80", "x"), ag_cache_key("ab", 2, &m, "sm_90", "y"),
    };
    for (size_t i = 0; i < sizeof k / sizeof k[0]; i++) {
        for (size_t j = 0; j < i; j++) assert_memory_not_equal(k[i].h, k[j].h, 16);
    }
    CacheKey again = ag_cache_key("ab", 2, &m, "sm_90", "x");
    assert_memory_equal(k[0].h, again.h, 16);
}

static void test_key_of_another_program(void **state) {
    (void)state;
    CacheKey k = key_of("a"), other = key_of("b");
    CacheEntry e = entry();
    char to[512];
    Cache *c = ag_cache_open(root, NULL, NULL, NULL);
    ag_cache_store(c, &k, &e);
    ag_cache_store(c, &other, &e);
    snprintf(to, sizeof to, "%s", path_of(&other));
    assert_int_equal(rename(path_of(&k), to), 0); /* whole and sound, but not what its name says */
    assert_false(loads(c, &other));
    assert_false(exists(to));
    ag_cache_close(c);
}

static void test_truncation(void **state) {
    (void)state;
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    size_t n;
    Cache *c = ag_cache_open(root, NULL, NULL, NULL);
    ag_cache_store(c, &k, &e);
    char *whole = read_file(path_of(&k), &n);
    assert_true(n > sizeof image);
    for (size_t cut = 0; cut < n; cut += cut + 64 < n ? 64 : 1) {
        write_file(path_of(&k), whole, cut);
        assert_false(loads(c, &k));
        assert_false(exists(path_of(&k)));
    }
    char *longer = calloc(1, n + 1);
    memcpy(longer, whole, n);
    write_file(path_of(&k), longer, n + 1);
    assert_false(loads(c, &k));
    write_file(path_of(&k), whole, n);
    assert_true(loads(c, &k));
    free(longer);
    free(whole);
    ag_cache_close(c);
}

static void test_bit_flips(void **state) {
    (void)state;
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    size_t n;
    Cache *c = ag_cache_open(root, NULL, NULL, NULL);
    ag_cache_store(c, &k, &e);
    char *p = read_file(path_of(&k), &n);
    for (size_t at = 0; at < n; at += at < 64 || at + 40 > n ? 1 : 37) {
        p[at] = (char)(p[at] ^ (1 << at % 8));
        write_file(path_of(&k), p, n);
        assert_false(loads(c, &k));
        assert_false(exists(path_of(&k)));
        p[at] = (char)(p[at] ^ (1 << at % 8));
    }
    ag_cache_store(c, &k, &e); /* a damaged entry is replaced */
    assert_true(loads(c, &k));
    free(p);
    ag_cache_close(c);
}

/* Sound in every checksum, but its metadata would make the launch write out of bounds. */
static void test_metadata_out_of_range(void **state) {
    (void)state;
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    e.meta.kernel[0].nslot = 1;
    e.meta.kernel[0].slot[0] = (Slot){.kind = SLOT_VEC, .offset = 8};
    Cache *c = ag_cache_open(root, NULL, NULL, NULL);
    ag_cache_store(c, &k, &e);
    assert_true(exists(path_of(&k)));
    assert_false(loads(c, &k));
    assert_false(exists(path_of(&k)));
    ag_cache_close(c);
}

static void test_planted_entries(void **state) {
    (void)state;
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    size_t n;
    Cache *c = ag_cache_open(root, NULL, NULL, NULL);
    ag_cache_store(c, &k, &e);
    char *whole = read_file(path_of(&k), &n);
    write_file(in_root("elsewhere"), whole, n);
    free(whole);

    assert_int_equal(unlink(path_of(&k)), 0);
    assert_int_equal(symlink(in_root("elsewhere"), path_of(&k)), 0);
    assert_false(loads(c, &k));
    assert_false(exists(path_of(&k)));
    assert_true(exists(in_root("elsewhere")));

    assert_int_equal(mkfifo(path_of(&k), 0600), 0);
    assert_false(loads(c, &k)); /* and does not wait for a writer */
    assert_false(exists(path_of(&k)));

    assert_int_equal(mkdir(path_of(&k), 0700), 0);
    assert_false(loads(c, &k));
    ag_cache_store(c, &k, &e);
    assert_false(loads(c, &k));
    ag_cache_close(c);
}

static void test_planted_folder_link(void **state) {
    (void)state;
    Warnings w = {0};
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    assert_int_equal(mkdir(in_root("cache"), 0700), 0);
    assert_int_equal(mkdir(in_root("elsewhere"), 0700), 0);
    assert_int_equal(symlink(in_root("elsewhere"), in_root("cache/v6")), 0);
    Cache *c = ag_cache_open(in_root("cache"), NULL, on_warn, &w);
    ag_cache_store(c, &k, &e);
    ag_cache_store(c, &k, &e);
    assert_false(loads(c, &k));
    assert_int_equal(w.n, 1);
    assert_int_equal(rmdir(in_root("elsewhere")), 0); /* nothing was written there */
    ag_cache_close(c);
}

static void test_folder_writable_by_others(void **state) {
    (void)state;
    Warnings w = {0};
    char expected[1024];
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    assert_int_equal(mkdir(in_root("open"), 0700), 0);
    assert_int_equal(chmod(in_root("open"), 0777), 0);
    Cache *c = ag_cache_open(in_root("open"), NULL, on_warn, &w);
    ag_cache_store(c, &k, &e);
    assert_false(loads(c, &k));
    snprintf(expected, sizeof expected, "no kernel cache: %s is refused: other users may write to it (name another one in ATTNGEN_CACHE_DIR)",
             in_root("open"));
    assert_int_equal(w.n, 1);
    assert_string_equal(w.last, expected);
    assert_string_equal(ag_cache_dir(c), "");
    assert_int_equal(rmdir(in_root("open")), 0);
    ag_cache_close(c);
}

static void test_folder_of_another_user(void **state) {
    (void)state;
    Warnings w = {0};
    assert_int_equal(mkdir(in_root("theirs"), 0700), 0);
    if (chown(in_root("theirs"), 12345, 12345) != 0) skip(); /* only root can give a folder away */
    Cache *c = ag_cache_open(in_root("theirs"), NULL, on_warn, &w);
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.last, "is refused: it belongs to another user"));
    ag_cache_close(c);
    w.n = 0;
    assert_int_equal(symlink(root, in_root("link")), 0);
    c = ag_cache_open(in_root("link"), NULL, on_warn, &w); /* our own link is followed */
    assert_int_equal(w.n, 0);
    ag_cache_close(c);
    assert_int_equal(lchown(in_root("link"), 12345, 12345), 0);
    c = ag_cache_open(in_root("link"), NULL, on_warn, &w);
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.last, "is refused: it is another user's link"));
    ag_cache_close(c);
}

/* Folders that cannot be made: below a file, in /proc, below nothing. */
static void test_unusable_folder(void **state) {
    (void)state;
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    write_file(in_root("file"), "x", 1);
    const char *dir[] = {in_root("file"), in_root("file/below"), "/proc/attngen", "/proc/self/attngen/below"};
    for (size_t i = 0; i < sizeof dir / sizeof dir[0]; i++) {
        Warnings w = {0};
        Cache *c = ag_cache_open(dir[i], NULL, on_warn, &w);
        ag_cache_store(c, &k, &e);
        ag_cache_store(c, &k, &e);
        assert_false(loads(c, &k));
        assert_int_equal(w.n, 1);
        assert_non_null(strstr(w.last, dir[i]));
        ag_cache_close(c);
    }
}

static void test_where(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        CacheEnv env;
        const char *expected;
    } row[] = {
        {"/a", {"/b", "/c", "/d"}, "/a"},
        {NULL, {"/b", "/c", "/d"}, "/b"},
        {NULL, {NULL, "/c", "/d"}, "/c/attngen"},
        {NULL, {NULL, "c", "/d"}, "/d/.cache/attngen"},
        {NULL, {NULL, "", "/d"}, "/d/.cache/attngen"},
        {NULL, {NULL, NULL, "d"}, ""},
        {NULL, {NULL, NULL, NULL}, ""},
        {"", {"/b", "/c", "/d"}, ""},
        {NULL, {"", "/c", "/d"}, ""},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        Cache *c = ag_cache_open(row[i].dir, &row[i].env, NULL, NULL);
        assert_string_equal(ag_cache_dir(c), row[i].expected);
        ag_cache_close(c);
    }
}

static void test_home_unset(void **state) {
    (void)state;
    Warnings w = {0};
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    Cache *c = ag_cache_open(NULL, &(CacheEnv){0}, on_warn, &w);
    ag_cache_store(c, &k, &e);
    assert_false(loads(c, &k));
    assert_int_equal(w.n, 1);
    assert_string_equal(w.last, "no kernel cache: none of ATTNGEN_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder");
    ag_cache_close(c);
    w.n = 0;
    c = ag_cache_open("", &(CacheEnv){0}, on_warn, &w); /* asked for: nothing to warn of */
    ag_cache_store(c, &k, &e);
    assert_int_equal(w.n, 0);
    ag_cache_close(c);
}

static size_t count_files(const char *dir) {
    char command[600];
    size_t n = 0;
    snprintf(command, sizeof command, "find %s -type f | wc -l", dir);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%zu", &n), 1);
    pclose(f);
    return n;
}

/* Exit status of a child that stores with files limited to 4 KB: 0 if it warned once, and cached nothing. */
static int store_beyond_limit(void) {
    Warnings w = {0};
    CacheKey k = key_of("a");
    CacheEntry e = entry(), x;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
    Cache *c = ag_cache_open(root, NULL, on_warn, &w);
    ag_cache_store(c, &k, &e);
    ag_cache_store(c, &k, &e);
    bool hit = ag_cache_load(c, &k, &x);
    ag_cache_close(c);
    return hit || w.n != 1 || !strstr(w.last, "File too large");
}

enum { CANNOT_MOUNT = 77 };

static int store_on_full_disk(void) {
    Warnings w = {0};
    CacheKey k = key_of("a");
    CacheEntry e = entry(), x;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return CANNOT_MOUNT;
    if (mount("tmpfs", root, "tmpfs", 0, "size=8k,mode=0700") != 0) return CANNOT_MOUNT;
    Cache *c = ag_cache_open(root, NULL, on_warn, &w);
    ag_cache_store(c, &k, &e);
    bool hit = ag_cache_load(c, &k, &x);
    ag_cache_close(c);
    return hit || w.n != 1 || !strstr(w.last, "No space left on device") || count_files(root) != 0;
}

/* Modes do not stop root: the child becomes somebody else. */
static int store_read_only(void) {
    Warnings w = {0};
    CacheKey k = key_of("a"), other = key_of("b");
    CacheEntry e = entry(), x;
    if (geteuid() == 0 && (chown(root, 12345, 12345) != 0 || setresgid(12345, 12345, 12345) != 0 || setresuid(12345, 12345, 12345) != 0)) return 2;
    Cache *c = ag_cache_open(root, NULL, on_warn, &w);
    ag_cache_store(c, &k, &e);
    if (w.n || chmod(in_root("v6"), 0500) != 0) return 3;
    ag_cache_store(c, &other, &e);
    ag_cache_store(c, &other, &e);
    bool hit = ag_cache_load(c, &k, &x) && is_entry(&x);
    ag_cache_close(c);
    return chmod(in_root("v6"), 0700) != 0 || !hit || w.n != 1 || !strstr(w.last, "Permission denied");
}

static int in_child(int (*f)(void)) {
    int status = -1;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(f());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_file_limit(void **state) {
    (void)state;
    assert_int_equal(in_child(store_beyond_limit), 0);
    assert_int_equal(count_files(root), 0); /* no temporary file stays */
}

static void test_read_only_folder(void **state) {
    (void)state;
    assert_int_equal(in_child(store_read_only), 0);
}

static void test_full_disk(void **state) {
    (void)state;
    int r = in_child(store_on_full_disk);
    if (r == CANNOT_MOUNT) skip();
    assert_int_equal(r, 0);
}

static int store_and_load_often(void) {
    Warnings w = {0};
    CacheKey k = key_of("shared");
    CacheEntry e = entry();
    Cache *c = ag_cache_open(in_root("shared"), NULL, on_warn, &w);
    for (int i = 0; i < 20; i++) {
        CacheEntry x;
        ag_cache_store(c, &k, &e);
        if (!ag_cache_load(c, &k, &x) || !is_entry(&x)) return 1;
        free(x.cubin);
    }
    ag_cache_close(c);
    return w.n != 0;
}

static void test_sixteen_processes(void **state) {
    (void)state;
    pid_t pid[16];
    for (int i = 0; i < 16; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0) _exit(store_and_load_often());
    }
    for (int i = 0; i < 16; i++) {
        int status = -1;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(count_files(in_root("shared")), 1);
}

/* A writer killed at any moment leaves a hit, or a miss that the next store mends. */
static void test_killed_writers(void **state) {
    (void)state;
    CacheKey k = key_of("shared");
    CacheEntry e = entry();
    for (int i = 0; i < 40; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            for (;;) store_and_load_often();
        }
        nanosleep(&(struct timespec){0, 100000 * (i % 20)}, NULL);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        Cache *c = ag_cache_open(in_root("shared"), NULL, NULL, NULL);
        loads(c, &k); /* hit or miss; a hit is checked */
        ag_cache_store(c, &k, &e);
        assert_true(loads(c, &k));
        ag_cache_close(c);
    }
}

static void test_stale_temporaries(void **state) {
    (void)state;
    CacheKey k = key_of("a");
    CacheEntry e = entry();
    char old_file[600], new_file[600];
    Cache *c = ag_cache_open(root, NULL, NULL, NULL);
    ag_cache_store(c, &k, &e);
    snprintf(old_file, sizeof old_file, "%s/v6/%02x/.tmp-1-0", root, k.h[0]);
    snprintf(new_file, sizeof new_file, "%s/v6/%02x/.tmp-1-1", root, k.h[0]);
    write_file(old_file, "x", 1);
    write_file(new_file, "x", 1);
    struct timespec t[2] = {{time(NULL) - 7200, 0}, {time(NULL) - 7200, 0}};
    assert_int_equal(utimensat(AT_FDCWD, old_file, t, 0), 0);
    ag_cache_store(c, &k, &e);
    assert_false(exists(old_file));
    assert_true(exists(new_file)); /* its writer may live */
    ag_cache_close(c);
}

static int collect(void *payload, const void *data, size_t len) {
    strncat(payload, data, len);
    return 0;
}

static int stop(void *payload, const void *data, size_t len) {
    (void)data, (void)len;
    ++*(int *)payload;
    return 1;
}

static void test_list_and_clear(void **state) {
    (void)state;
    char text[2048] = "", foreign[600];
    size_t removed = 99;
    int calls = 0;
    CacheEntry e = entry();
    CacheKey k = key_of("a"), other = key_of("b");
    Cache *c = ag_cache_open(in_root("cache"), NULL, NULL, NULL);
    assert_int_equal(ag_cache_list(c, collect, text), ATTNGEN_OK);
    assert_string_equal(text, "");
    ag_cache_store(c, &k, &e);
    ag_cache_store(c, &other, &e);
    assert_int_equal(ag_cache_list(c, collect, text), ATTNGEN_OK);
    char *second = strchr(text, '\n') + 1;
    assert_string_equal(strchr(text, ' '), strstr(text, "  causal sm_90 D 64/64"));
    assert_non_null(strstr(second, "  168 registers  4 spilled, wgmma serialised\n"));
    assert_true(strcmp(text, second) < 0); /* sorted */
    assert_string_equal(strchr(second, '\n'), "\n");
    assert_int_equal(ag_cache_list(c, stop, &calls), ATTNGEN_E_IO);
    assert_int_equal(calls, 1);
    snprintf(foreign, sizeof foreign, "%s/cache/v6/%02x/notes.txt", root, k.h[0]);
    write_file(foreign, "x", 1);
    assert_int_equal(ag_cache_clear(c, &removed), ATTNGEN_OK);
    assert_int_equal(removed, 2);
    assert_true(exists(foreign)); /* not ours */
    assert_false(loads(c, &k));
    ag_cache_close(c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_round_trip),
        TEST(test_modes),
        TEST(test_key_depends_on_everything),
        TEST(test_key_of_another_program),
        TEST(test_truncation),
        TEST(test_bit_flips),
        TEST(test_metadata_out_of_range),
        TEST(test_planted_entries),
        TEST(test_planted_folder_link),
        TEST(test_folder_writable_by_others),
        TEST(test_folder_of_another_user),
        TEST(test_unusable_folder),
        TEST(test_read_only_folder),
        TEST(test_where),
        TEST(test_home_unset),
        TEST(test_file_limit),
        TEST(test_full_disk),
        TEST(test_sixteen_processes),
        TEST(test_killed_writers),
        TEST(test_stale_temporaries),
        TEST(test_list_and_clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
