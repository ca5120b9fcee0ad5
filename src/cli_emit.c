/* cli_emit.c: `attngen emit`, and the verbs that only print: list, cache, doctor. */
#include <string.h>

#include "cli.h"

static const struct {
    const char *name;
    attngen_artefact what;
    bool has_passes, needs_nvrtc, is_code;
} artefact[] = {{"cu", ATTNGEN_EMIT_CU, false, false, true},     {"spec", ATTNGEN_EMIT_SPEC, false, false, false},
                {"math", ATTNGEN_EMIT_MATH, true, false, false}, {"tile", ATTNGEN_EMIT_TILE, true, false, false},
                {"ptx", ATTNGEN_EMIT_PTX, false, true, true},    {"schedule", ATTNGEN_EMIT_SCHEDULE, false, false, false},
                {"cubin", ATTNGEN_EMIT_CUBIN, false, true, true}};

static int emit(Job *job, const Cli *cli, int row, Output *out) {
    attngen_program *program = NULL;
    attngen_status s =
        (artefact[row].needs_nvrtc ? attngen_compile : attngen_lower)(job->ctx, &program, &job->spec, job->schedule_or_null, job->dim, job->ndim);
    if (s == ATTNGEN_OK) s = attngen_emit(job->ctx, program, artefact[row].what, cli->after, cli_file_sink, out->f);
    attngen_program_free(program);
    if (s == ATTNGEN_OK) return 0;
    return ferror(out->f) ? cli_error(EXIT_FILE, "%s: cannot write", out->path ? out->path : "the standard output") : cli_fail(job->ctx, s);
}

int cli_emit(Cli *cli) {
    Job job;
    Output out;
    int row = 0;
    while (cli->as && strcmp(artefact[row].name, cli->as) != 0) row++;
    if (cli->after && !artefact[row].has_passes) return cli_error(EXIT_USAGE, "--after goes with --as math or --as tile");
    if (cli->debug_hang && !artefact[row].is_code) return cli_error(EXIT_USAGE, "--debug-hang goes with --as cu, ptx or cubin");
    int code = cli_job_open(&job, cli);
    if (code == 0) code = cli_output_open(&out, cli->out, artefact[row].what == ATTNGEN_EMIT_CUBIN);
    if (code == 0) {
        code = emit(&job, cli, row, &out);
        int closed = cli_output_close(&out, code == 0);
        if (code == 0) code = closed;
    }
    cli_job_close(&job);
    return code;
}

int cli_list(Cli *cli) {
    const char *(*name)(size_t) = strcmp(cli->pos[0], "specs") == 0       ? attngen_shipped_spec_name
                                  : strcmp(cli->pos[0], "schedules") == 0 ? attngen_shipped_schedule_name
                                                                          : attngen_known_arch;
    for (size_t i = 0; name(i); i++) puts(name(i));
    return 0;
}

int cli_cache(Cli *cli) {
    attngen_context *ctx = NULL;
    attngen_status s = ATTNGEN_OK;
    size_t removed = 0;
    int code = cli_context(&ctx, cli, false);
    if (code == 0 && strcmp(cli->pos[0], "path") == 0)
        puts(attngen_cache_path(ctx));
    else if (code == 0 && strcmp(cli->pos[0], "list") == 0)
        s = attngen_cache_list(ctx, cli_file_sink, stdout);
    else if (code == 0 && (s = attngen_cache_clear(ctx, &removed)) == ATTNGEN_OK)
        cli_error(0, "removed %zu entries from %s", removed, attngen_cache_path(ctx));
    if (s != ATTNGEN_OK) code = cli_fail(ctx, s);
    attngen_destroy(ctx);
    return code;
}

int cli_doctor(Cli *cli) {
    attngen_context *ctx = NULL;
    int code = cli_context(&ctx, cli, false);
    if (code == 0) {
        attngen_status s = attngen_doctor(ctx, cli_file_sink, stdout);
        if (s != ATTNGEN_OK) code = cli_fail(ctx, s);
    }
    attngen_destroy(ctx);
    return code;
}
