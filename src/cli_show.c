/* cli_show.c: `attngen show`: how a schedule uses the machine; which keys a mask lets a query see (cli_mask.c); or which blocks a spec selects (cli_picks.c). */
#include "cli.h"

static int show(Job *job, attngen_artefact what, Output *out) {
    attngen_program *program = NULL;
    attngen_status s = attngen_lower(job->ctx, &program, &job->spec, job->schedule_or_null, job->dim, job->ndim);
    if (s == ATTNGEN_OK) s = attngen_emit(job->ctx, program, what, NULL, cli_file_sink, out->f);
    attngen_program_free(program);
    if (s == ATTNGEN_OK) return 0;
    return ferror(out->f) ? cli_error(EXIT_FILE, "%s: cannot write", out->path ? out->path : "the standard output") : cli_fail(job->ctx, s);
}

int cli_show(Cli *cli) {
    Job job;
    Output out;
    int wanted = cli->timeline + cli->mask + cli->picks;
    if (wanted == 0) return cli_error(EXIT_USAGE, "show needs --timeline, --mask or --picks");
    if (wanted > 1) return cli_error(EXIT_USAGE, "--timeline, --mask and --picks exclude each other");
    if (!cli->timeline && cli->svg) return cli_error(EXIT_USAGE, "--%s is drawn as text: --svg is for --timeline", cli->mask ? "mask" : "picks");
    if (cli->mask) return cli_mask(cli);
    if (cli->picks) return cli_picks(cli);
    int code = cli_job_open(&job, cli);
    if (code == 0) code = cli_output_open(&out, cli->out, false);
    if (code == 0) {
        code = show(&job, cli->svg ? ATTNGEN_EMIT_TIMELINE_SVG : ATTNGEN_EMIT_TIMELINE, &out);
        int closed = cli_output_close(&out, code == 0);
        if (code == 0) code = closed;
    }
    cli_job_close(&job);
    return code;
}
