/* cli.h: the command line, a client of attngen.h (and of check.h for `check`, of api.h for `bind`).
 * Data goes to stdout or to the file of -o, everything else to stderr.  Functions return exit codes (attngen_exit_code). */
#ifndef AG_CLI_H
#define AG_CLI_H

#include <stdbool.h>
#include <stdio.h>

#include "attngen.h"
#include "npy.h"

enum { CLI_LIST = 64, EXIT_USAGE = 2, EXIT_FILE = 6 };

/* Values of an option that may be given several times. */
typedef struct List {
    const char *item[CLI_LIST];
    size_t n;
} List;

/* Everything that the options of all verbs set. */
typedef struct Cli {
    const char *pos[2]; /* positional arguments */
    const char *schedule, *arch, *as, *after, *out, *dtype, *out_dtype, *only, *completion, *layout;
    List dims, ins, outs, set;
    bool help, man, full, gpu, no_gpu, cpu, reference, json, timeline, mask, picks, svg, debug_hang;
    int64_t seed, device, B, heads, kv_heads, sq, sk, offset, runs;
} Cli;

/* ---- options: one table per verb; parsing, help, man page and completion read it */
typedef enum OptKind { OPT_FLAG, OPT_TEXT, OPT_INT, OPT_LIST } OptKind;
typedef struct Option {
    char letter; /* or '\0' */
    const char *name;
    const char *arg; /* how the help calls its value; NULL for flags */
    OptKind kind;
    size_t offset;      /* of the field in Cli */
    const char *values; /* legal values, blank-separated; NULL: any */
    const char *doc;
} Option;

typedef struct Verb {
    const char *name, *args, *doc;
    int min_pos, max_pos;
    const char *pos_values; /* what the first positional argument may be, for errors and completion; "specs": the shipped ones; NULL: anything */
    const Option *option;   /* ends with a row whose name is NULL */
    int (*run)(Cli *);
} Verb;
extern const Verb cli_verb[];                /* main.c; ends with a row whose name is NULL */
const Verb *cli_find_verb(const char *name); /* NULL, after an error, if there is none */

/* Reads argv behind the verb; 0, or EXIT_USAGE after an error. */
int cli_parse(Cli *cli, const Verb *v, int argc, char **argv);
void cli_usage(FILE *out);
void cli_help_verb(FILE *out, const Verb *v);
void cli_man(FILE *out);
void cli_completion_bash(FILE *out);

/* ---- messages */
/* "attngen: " and the text; returns `code`. */
int cli_error(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The context's diagnostic; returns the exit code of s. */
int cli_fail(const attngen_context *ctx, attngen_status s);
/* The word of a blank-separated list, or of a NULL-terminated table, that `given` is nearest to: " (did you mean `x`?)" or "". */
void cli_hint(char *out, size_t n, const char *given, const char *words);
/* The line on stderr that long work rewrites; nothing unless stderr is a terminal. */
void cli_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_progress_clear(void);

/* ---- cli_source.c: what a verb works on */
typedef struct Job {
    attngen_context *ctx;
    attngen_source spec, schedule;
    const attngen_source *schedule_or_null;
    attngen_dim dim[CLI_LIST + 4];
    size_t ndim;
    void *owned[3]; /* text of the spec, names of the dims, text of the schedule */
} Job;
/* Reads SPEC, -s and -D and makes the context; cli_job_close works after a failure too. */
int cli_job_open(Job *job, const Cli *cli);
void cli_job_close(Job *job);
double cli_job_get(const Job *job, const char *name, double otherwise); /* what -D or cli_job_set gave */
void cli_job_set(Job *job, const char *name, double value);             /* unless -D has */
int cli_context(attngen_context **out, const Cli *cli, bool say_arch);
int cli_dtype(const char *name); /* ATTNGEN_F16, ATTNGEN_BF16, or 0 */
/* Splits "name=value"; value points into text. */
bool cli_assignment(const char *text, char name[64], const char **value);
bool cli_number(const char *text, double *out);

/* ---- cli_output.c: a file that appears whole or not at all */
typedef struct Output {
    FILE *f;
    const char *path; /* NULL: stdout */
    char *temp;       /* NULL: written in place (devices, pipes) */
} Output;
int cli_output_open(Output *o, const char *path, bool binary);
int cli_output_close(Output *o, bool keep);                     /* keep: publish; else remove */
int cli_file_sink(void *payload, const void *data, size_t len); /* an attngen_sink; payload: FILE * */
int cli_npy_write(const char *path, NpyType type, int rank, const int64_t *dim, const void *data, size_t bytes);

/* ---- cli_gpu.c: device memory and events */
typedef struct Gpu Gpu;
int cli_gpu_open(Gpu **out, int ordinal); /* makes the device's primary context current */
void cli_gpu_close(Gpu *g);
uint64_t cli_gpu_alloc(Gpu *g, size_t bytes);                   /* 0 after an error; 0 bytes give one byte */
int cli_gpu_workspace(Gpu *g, uint64_t *address, size_t bytes); /* zeroed, as attngen_launch wants it; 0 for 0 bytes */
int cli_gpu_upload(Gpu *g, uint64_t to, const void *from, size_t bytes);
int cli_gpu_download(Gpu *g, void *to, uint64_t from, size_t bytes); /* waits for everything launched before */
int cli_gpu_event(Gpu *g, int which, bool stop_wait);                /* records event `which` (0 or 1); stop_wait: and waits for it */
float cli_gpu_elapsed_ms(Gpu *g);                                    /* between events 0 and 1 */

/* ---- cli_bind.c: sizes given as options.  Without --kv-heads: the most KV heads with which the spec, which may pin their number, can be bound. */
int cli_bind_call(attngen_call **out, attngen_shape *shape, attngen_context *ctx, const attngen_program *program, const Cli *cli);

/* ---- the verbs */
int cli_emit(Cli *cli);
int cli_show(Cli *cli);
int cli_mask(Cli *cli);  /* of show */
int cli_picks(Cli *cli); /* of show */
int cli_check(Cli *cli);
int cli_run(Cli *cli);
int cli_bench(Cli *cli);
int cli_bind(Cli *cli);
int cli_list(Cli *cli);
int cli_cache(Cli *cli);
int cli_doctor(Cli *cli);
int cli_help(Cli *cli);
#endif
