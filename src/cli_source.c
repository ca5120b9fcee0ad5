/* cli_source.c: the spec, the schedule, the bound names and the context that a verb works with. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { SOURCE_LIMIT = 16 << 20 }; /* bytes; the loader has a smaller limit of its own, with an error that names it */

static void warn(void *payload, const char *message) {
    (void)payload;
    cli_error(0, "%s", message);
}

/* A whole text file, or stdin for "-". */
static int read_text(const char *path, attngen_source *out, void **owned) {
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f) return cli_error(EXIT_FILE, "%s: %s", path, strerror(errno));
    size_t cap = 1 << 16, n = 0;
    char *s = malloc(cap);
    for (size_t got; s && n < SOURCE_LIMIT && (got = fread(s + n, 1, cap - n, f)) > 0;) {
        n += got;
        if (n < cap) continue;
        char *more = realloc(s, cap *= 2);
        if (!more) free(s);
        s = more;
    }
    int failed = ferror(f) ? errno : 0;
    if (!is_stdin) fclose(f);
    *owned = s;
    if (!s) return cli_error(1, "%s: out of memory", path);
    if (failed) return cli_error(EXIT_FILE, "%s: %s", path, strerror(failed));
    *out = (attngen_source){is_stdin ? "<stdin>" : path, s, n};
    return 0;
}

/* A file if its name has a '/' or a '.' or is "-", else something shipped. */
static int read_source(const char *given, const char *what, const char *table, attngen_status (*shipped)(attngen_source *, const char *),
                       attngen_source *out, void **owned) {
    char hint[96];
    if (strcmp(given, "-") == 0 || strpbrk(given, "/.")) return read_text(given, out, owned);
    if (shipped(out, given) == ATTNGEN_OK) return 0;
    cli_hint(hint, sizeof hint, given, table);
    return cli_error(EXIT_USAGE, "no %s `%s` is shipped%s; `attngen list %s` has them, and a file is given with its path, e.g. ./%s.yaml", what,
                     given, hint, table, given);
}

int cli_dtype(const char *name) { return strcmp(name, "f16") == 0 ? ATTNGEN_F16 : strcmp(name, "bf16") == 0 ? ATTNGEN_BF16 : 0; }

bool cli_assignment(const char *text, char name[64], const char **value) {
    size_t n = strcspn(text, "=");
    if (n == 0 || n >= 64 || !text[n]) return false;
    memcpy(name, text, n);
    name[n] = '\0';
    *value = text + n + 1;
    return true;
}

bool cli_number(const char *text, double *out) {
    char *end;
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) return *out = text[0] == 't', true;
    *out = strtod(text, &end);
    return *text && end != text && !*end && !isnan(*out);
}

/* -D NAME=VALUE */
static int read_dims(Job *job, const Cli *cli) {
    char(*name)[64] = job->owned[1] = calloc(CLI_LIST, 64);
    if (!name) return cli_error(1, "out of memory");
    for (size_t i = 0; i < cli->dims.n; i++) {
        const char *value;
        double x;
        if (!cli_assignment(cli->dims.item[i], name[i], &value)) return cli_error(EXIT_USAGE, "-D needs NAME=VALUE, not `%s`", cli->dims.item[i]);
        if (strcmp(name[i], "dtype") == 0)
            x = cli_dtype(value);
        else if (!cli_number(value, &x))
            return cli_error(EXIT_USAGE, "-D %s needs a number, not `%s`", name[i], value);
        if (strcmp(name[i], "dtype") == 0 && x == 0) return cli_error(EXIT_USAGE, "-D dtype is one of f16 bf16, not `%s`", value);
        if (!isnan(cli_job_get(job, name[i], NAN))) return cli_error(EXIT_USAGE, "-D %s is given twice", name[i]);
        job->dim[job->ndim++] = (attngen_dim){name[i], x};
    }
    return 0;
}

double cli_job_get(const Job *job, const char *name, double otherwise) {
    for (size_t i = 0; i < job->ndim; i++)
        if (strcmp(job->dim[i].name, name) == 0) return job->dim[i].value;
    return otherwise;
}

void cli_job_set(Job *job, const char *name, double value) {
    if (isnan(cli_job_get(job, name, NAN))) job->dim[job->ndim++] = (attngen_dim){name, value};
}

int cli_context(attngen_context **out, const Cli *cli, bool say_arch) {
    attngen_options options = ATTNGEN_OPTIONS_INIT;
    if (cli->device < 0 || cli->device > 1023) return cli_error(EXIT_USAGE, "--device %lld is out of range", (long long)cli->device);
    options.arch = cli->arch;
    options.device = (int)cli->device;
    options.warn = warn;
    options.debug_hang = cli->debug_hang;
    attngen_status s = attngen_create(out, &options);
    if (s != ATTNGEN_OK) return cli_fail(*out, s);
    const char *why = "";
    if (say_arch && !cli->arch) {
        bool has = attngen_has_device(*out, &why);
        cli_error(0, "taking %s%s%s", attngen_arch(*out), has ? ", the arch of the GPU in this machine" : ": no -a is given and ", has ? "" : why);
    }
    return 0;
}

int cli_job_open(Job *job, const Cli *cli) {
    memset(job, 0, sizeof *job);
    if (cli->schedule && strcmp(cli->schedule, "-") == 0 && strcmp(cli->pos[0], "-") == 0)
        return cli_error(EXIT_USAGE, "the spec and the schedule cannot both come from the standard input");
    int code = read_source(cli->pos[0], "spec", "specs", attngen_shipped_spec, &job->spec, &job->owned[0]);
    if (code == 0 && cli->schedule) {
        code = read_source(cli->schedule, "schedule", "schedules", attngen_shipped_schedule, &job->schedule, &job->owned[2]);
        job->schedule_or_null = &job->schedule;
    }
    if (code == 0) code = read_dims(job, cli);
    if (code == 0) code = cli_context(&job->ctx, cli, true);
    return code;
}

void cli_job_close(Job *job) {
    attngen_destroy(job->ctx);
    for (int i = 0; i < 3; i++) free(job->owned[i]);
    memset(job, 0, sizeof *job);
}
