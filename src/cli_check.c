/* cli_check.c: `attngen check`: the grid and the comparison are the library's (check.h); this prints one line a case. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cli.h"

static void begin(void *payload, const CheckCase *c) {
    (void)payload;
    cli_progress("%d/%d %s (%s)", c->index + 1, c->total, c->name, c->where);
}

static void done(void *payload, const CheckCase *c) {
    (void)payload;
    cli_progress_clear();
    printf("%-7s %-9s %6.2f s  %s%s%s%s\n", c->ok ? "ok" : "FAILED", c->where, c->seconds, c->name, c->portable ? ", portable kernel" : "",
           *c->text ? ": " : "", c->text);
    fflush(stdout);
}

int cli_check(Cli *cli) {
    Job job;
    if (cli->gpu && cli->no_gpu) return cli_error(EXIT_USAGE, "--gpu and --no-gpu exclude each other");
    if (cli->debug_hang && cli->no_gpu) return cli_error(EXIT_USAGE, "--debug-hang is for the GPU, and --no-gpu rules it out");
    if (cli->seed < 0) return cli_error(EXIT_USAGE, "--seed must not be negative");
    int code = cli_job_open(&job, cli);
    if (code == 0) {
        CheckReport r = {0};
        CheckOptions opt = {job.spec, job.schedule_or_null, job.dim, job.ndim, (uint64_t)cli->seed, cli->full, cli->only, CHECK_GPU_AUTO, begin, done,
                            NULL};
        if (cli->gpu || cli->no_gpu) opt.gpu = cli->gpu ? CHECK_GPU_YES : CHECK_GPU_NO;
        attngen_status s = ag_check(job.ctx, &opt, &r);
        cli_progress_clear();
        bool ran = r.passed + r.failed > 0;
        char portable[48] = "";
        if (r.portable) snprintf(portable, sizeof portable, ", %d of them by the portable kernel", r.portable);
        if (ran)
            printf("%s: %d passed, %d failed%s, in %.1f s; %s%s\n", r.program, r.passed, r.failed, portable, r.seconds,
                   *r.device ? "simulator and " : "simulator", r.device);
        if (s == ATTNGEN_OK && !ran) code = cli_error(EXIT_USAGE, "no case has a name with `%s`", cli->only ? cli->only : "");
        if (s != ATTNGEN_OK) code = r.failed ? attngen_exit_code(s) : cli_fail(job.ctx, s);
    }
    cli_job_close(&job);
    return code;
}
