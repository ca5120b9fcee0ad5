/* cli_output.c: results go to stdout, or to a file that appears whole or not at all: a temporary one in the same folder, renamed at the end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

int cli_output_open(Output *o, const char *path, bool binary) {
    struct stat st;
    *o = (Output){stdout, path, NULL};
    if (!path || strcmp(path, "-") == 0) {
        o->path = NULL;
        return binary && isatty(STDOUT_FILENO) ? cli_error(EXIT_USAGE, "binary output to a terminal; use -o FILE or a pipe") : 0;
    }
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a device or a pipe cannot be replaced */
        o->f = fopen(path, "wb");
        return o->f ? 0 : cli_error(EXIT_FILE, "%s: %s", path, strerror(errno));
    }
    size_t n = strlen(path) + sizeof ".XXXXXX";
    o->f = NULL;
    o->temp = malloc(n);
    if (!o->temp) return cli_error(1, "out of memory");
    snprintf(o->temp, n, "%s.XXXXXX", path);
    int fd = mkstemp(o->temp);
    if (fd >= 0) {
        mode_t mask = umask(0);
        umask(mask);
        fchmod(fd, 0666 & ~mask);
        o->f = fdopen(fd, "wb");
    }
    if (o->f) return 0;
    int why = errno;
    free(o->temp);
    o->temp = NULL;
    return cli_error(EXIT_FILE, "%s: %s", path, strerror(why));
}

int cli_output_close(Output *o, bool keep) {
    const char *path = o->path ? o->path : "the standard output";
    int failed = o->f && (fflush(o->f) != 0 || ferror(o->f)) ? errno : 0;
    if (o->f && o->path && fclose(o->f) != 0 && !failed) failed = errno;
    if (o->temp && keep && !failed && rename(o->temp, path) != 0) failed = errno;
    if (o->temp && (!keep || failed)) unlink(o->temp);
    free(o->temp);
    *o = (Output){0};
    return failed && keep ? cli_error(EXIT_FILE, "%s: %s", path, strerror(failed)) : 0;
}

int cli_file_sink(void *payload, const void *data, size_t len) { return fwrite(data, 1, len, payload) == len ? 0 : 1; }

int cli_npy_write(const char *path, NpyType type, int rank, const int64_t *dim, const void *data, size_t bytes) {
    Output o;
    char header[192];
    size_t n = npy_header(header, type, rank, dim);
    int code = cli_output_open(&o, path, true);
    if (code) return code;
    fwrite(header, 1, n, o.f);
    fwrite(data, 1, bytes, o.f);
    return cli_output_close(&o, true); /* says so if a write failed */
}
