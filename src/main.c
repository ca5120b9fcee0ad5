/* main.c: the verbs of the command line and their options, as tables. */
#include <stddef.h>
#include <string.h>

#include "cli.h"

#define AT(field) offsetof(Cli, field)
#define SHARED_COMPILE                                                                                                                               \
    {'s', "schedule", "SCHED", OPT_TEXT, AT(schedule), "schedules", "schedule: a file, or the name of a shipped one (default: the one that fits)"},  \
        {'a', "arch", "ARCH", OPT_TEXT, AT(arch), "archs", "target, e.g. sm_90 (default: that of the GPU in the machine, else sm_90)"}, {            \
        'D', "define", "NAME=VALUE", OPT_LIST, AT(dims), NULL,                                                                                       \
            "bind at compile time: D, Dv, dtype (f16, bf16), group, queries or a parameter of the spec"                                              \
    }
#define SHARED_DEVICE                                                                                                                                \
    { 0, "device", "N", OPT_INT, AT(device), NULL, "CUDA device to use (default: 0)" }
#define SHARED_DEBUG                                                                                                                                 \
    { 0, "debug-hang", NULL, OPT_FLAG, AT(debug_hang), NULL, "a kernel that hangs says where and fails: waits on mbarriers are bounded; slower" }
#define SHARED_SET                                                                                                                                   \
    { 0, "set", "NAME=VALUE", OPT_LIST, AT(set), NULL, "scalar at launch: scale or a parameter of the spec" }
#define SHARED_OFFSET                                                                                                                                \
    { 0, "offset", "N", OPT_INT, AT(offset), NULL, "position of the first query (default: Sk - Sq, so that the last ones align)" }
#define SHARED_SHAPE                                                                                                                                 \
    {'B', "batch", "N", OPT_INT, AT(B), NULL, "batch (default: 16384 tokens in all)"},                                                               \
        {0, "heads", "N", OPT_INT, AT(heads), NULL, "query heads (default: 2048 / D)"},                                                              \
        {0, "kv-heads", "N", OPT_INT, AT(kv_heads), NULL, "KV heads (default: as many as the spec allows)"},                                         \
        {0, "sq", "N", OPT_INT, AT(sq), NULL, "query length (default: that of the keys)"},                                                           \
        {0, "sk", "N", OPT_INT, AT(sk), NULL, "key length (default: 4096)"}, SHARED_OFFSET
#define END                                                                                                                                          \
    {'h', "help", NULL, OPT_FLAG, AT(help), NULL, "show this help"}, { 0, NULL, NULL, OPT_FLAG, 0, NULL, NULL }

static const Option emit_options[] = {
    SHARED_COMPILE,
    {0, "as", "WHAT", OPT_TEXT, AT(as), "spec math tile schedule cu ptx cubin", "which artefact (default: cu); ptx and cubin need NVRTC"},
    {0, "after", "PASS", OPT_TEXT, AT(after), NULL, "the IR of math or tile after this pass, e.g. hoist or split"},
    SHARED_DEBUG,
    {'o', "output", "FILE", OPT_TEXT, AT(out), "FILES", "write to FILE, which appears whole or not at all (default: stdout)"},
    END};

static const Option show_options[] = {
    SHARED_COMPILE,
    {0, "timeline", NULL, OPT_FLAG, AT(timeline), NULL, "one step of the key loop by a cost model, the shared-memory map, the registers"},
    {0, "svg", NULL, OPT_FLAG, AT(svg), NULL, "a picture instead of text"},
    {0, "mask", NULL, OPT_FLAG, AT(mask), NULL, "which keys each query sees, by the reference: rows are queries, columns keys"},
    {0, "picks", NULL, OPT_FLAG, AT(picks), NULL, "which blocks the selections of the spec take, by the reference: rows are queries, columns blocks"},
    {'i', "in", "NAME=FILE", OPT_LIST, AT(ins), "FILES",
     "as .npy, for --picks q and k (default: random numbers), for --mask captured tensors (default: made up)"},
    {0, "seed", "N", OPT_INT, AT(seed), NULL, "for --mask and --picks: seed of the random numbers (default: 0)"},
    {'B', "batch", "N", OPT_INT, AT(B), NULL, "for --mask and --picks: batch (default: 1)"},
    {0, "heads", "N", OPT_INT, AT(heads), NULL,
     "for --mask and --picks: query heads (default: 4 per KV head for --picks, 1 for --mask, or as the spec says)"},
    {0, "kv-heads", "N", OPT_INT, AT(kv_heads), NULL, "for --mask and --picks: KV heads (default: 1)"},
    {0, "sq", "N", OPT_INT, AT(sq), NULL, "for --mask and --picks: query length (default: that of the keys)"},
    {0, "sk", "N", OPT_INT, AT(sk), NULL,
     "for --mask and --picks: key length (default: 32 for --mask, for --picks 2048, or enough to have a choice)"},
    SHARED_OFFSET,
    {'o', "output", "FILE", OPT_TEXT, AT(out), "FILES", "write to FILE, which appears whole or not at all (default: stdout)"},
    END};

static const Option check_options[] = {SHARED_COMPILE,
                                       {0, "seed", "N", OPT_INT, AT(seed), NULL, "seed of the random tensors (default: 0)"},
                                       {0, "full", NULL, OPT_FLAG, AT(full), NULL, "the whole grid of shapes instead of the quick one"},
                                       {0, "case", "TEXT", OPT_TEXT, AT(only), NULL, "only the cases whose name contains TEXT"},
                                       {0, "gpu", NULL, OPT_FLAG, AT(gpu), NULL, "fail if there is no GPU to run on"},
                                       {0, "no-gpu", NULL, OPT_FLAG, AT(no_gpu), NULL, "the simulator only"},
                                       SHARED_DEBUG,
                                       SHARED_DEVICE,
                                       END};

static const Option run_options[] = {
    SHARED_COMPILE,
    {'i', "in", "NAME=FILE", OPT_LIST, AT(ins), "FILES", "input: q, k, v as .npy, [B, H, S, D] or [H, S, D]; and the captured tensors of the spec"},
    {'o', "out", "NAME=FILE", OPT_LIST, AT(outs), "FILES", "output: o, lse, max and mean_weight as .npy"},
    SHARED_SET,
    SHARED_OFFSET,
    {0, "dtype", "TYPE", OPT_TEXT, AT(dtype), "f16 bf16",
     "type to compute in (default: that of q; bf16 for f32); bf16 also reads '<u2' files as bf16 bits"},
    {0, "out-dtype", "TYPE", OPT_TEXT, AT(out_dtype), "f16 bf16 f32", "type of the file of o (default: that of q's file)"},
    {0, "cpu", NULL, OPT_FLAG, AT(cpu), NULL, "through the simulator: needs no GPU"},
    {0, "reference", NULL, OPT_FLAG, AT(reference), NULL, "through the double-precision reference: needs no GPU"},
    SHARED_DEBUG,
    SHARED_DEVICE,
    END};

static const Option bench_options[] = {SHARED_COMPILE,
                                       SHARED_SHAPE,
                                       SHARED_SET,
                                       {0, "runs", "N", OPT_INT, AT(runs), NULL, "timed launches (default: 30); the median counts"},
                                       {0, "json", NULL, OPT_FLAG, AT(json), NULL, "one JSON object instead of text"},
                                       SHARED_DEBUG,
                                       SHARED_DEVICE,
                                       END};

static const Option bind_options[] = {SHARED_COMPILE,
                                      SHARED_SHAPE,
                                      {0, "layout", "NAME", OPT_TEXT, AT(layout), "plain tail bshd pitch step broadcast reversed odd",
                                       "how the tensors lie in memory (default: plain)"},
                                      SHARED_DEVICE,
                                      END};

static const Option help_options[] = {{0, "man", NULL, OPT_FLAG, AT(man), NULL, "print the man page (roff)"},
                                      {0, "completion", "SHELL", OPT_TEXT, AT(completion), "bash", "print a completion script"},
                                      END};

static const Option no_options[] = {END};

static const Option device_options[] = {SHARED_DEVICE, END};

const Verb cli_verb[] = {
    {"emit", "SPEC", "print what a spec compiles to", 1, 1, "specs", emit_options, cli_emit},
    {"show", "SPEC", "show how a schedule uses the machine, by a model; or which keys a mask lets through; or which blocks are selected", 1, 1,
     "specs", show_options, cli_show},
    {"check", "SPEC", "compare the kernel, simulated and on the GPU, with the reference", 1, 1, "specs", check_options, cli_check},
    {"run", "SPEC", "run a kernel on tensors from .npy files", 1, 1, "specs", run_options, cli_run},
    {"bench", "SPEC", "time a kernel on the GPU", 1, 1, "specs", bench_options, cli_bench},
    {"bind", "SPEC", "say what a launch with these sizes takes, and how it moves its tensors", 1, 1, "specs", bind_options, cli_bind},
    {"list", "specs|schedules|archs", "list what is shipped", 1, 1, "specs schedules archs", no_options, cli_list},
    {"cache", "path|list|clear", "the cache of compiled kernels", 1, 1, "path list clear", no_options, cli_cache},
    {"doctor", "", "say what was found on this machine: NVRTC, driver, devices, cache", 0, 0, NULL, device_options, cli_doctor},
    {"help", "[VERB]", "explain a verb", 0, 1, "verbs", help_options, cli_help},
    {NULL, NULL, NULL, 0, 0, NULL, NULL, NULL}};

int cli_help(Cli *cli) {
    if (cli->man) return cli_man(stdout), 0;
    if (cli->completion) return cli_completion_bash(stdout), 0;
    if (!cli->pos[0]) return cli_usage(stdout), 0;
    const Verb *v = cli_find_verb(cli->pos[0]);
    if (!v) return EXIT_USAGE;
    cli_help_verb(stdout, v);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return cli_usage(stderr), EXIT_USAGE;
    if (strcmp(argv[1], "--version") == 0) return puts("attngen " ATTNGEN_VERSION_STRING), 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return cli_usage(stdout), 0;
    const Verb *v = cli_find_verb(argv[1]);
    if (!v) return EXIT_USAGE;
    Cli cli = {.offset = ATTNGEN_ALIGN_END};
    int code = cli_parse(&cli, v, argc - 2, argv + 2);
    if (code) return code;
    if (cli.help) return cli_help_verb(stdout, v), 0;
    code = v->run(&cli);
    if (fflush(stdout) != 0 && code == 0) code = cli_error(EXIT_FILE, "cannot write to the standard output");
    return code;
}
