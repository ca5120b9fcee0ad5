/* cli_picks.c: `attngen show --picks`: which blocks the selections of a spec take, by the reference, on seeded random numbers or on tensors from .npy files. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"
#include "cli.h"
#include "compile.h"

enum { ROWS = 32, COLUMNS = 128, DEFAULT_SK = 2048, DEFAULT_GROUP = 4, MOST_LENGTH = 1 << 20 };
enum { Q, K, NGIVEN };
static const char *const given_name[NGIVEN] = {"q", "k"};

typedef struct Picks {
    Job job;
    Npy in[NGIVEN]; /* data NULL: random */
    int64_t dim[NGIVEN][4];
    void *given[NGIVEN];
    Compilation *c;
    Case shape;
    CaseData data;
    Selections picks;
} Picks;

/* ---- what is selected from */

static int read_tensor(Picks *p, int t, const char *path) {
    char err[NPY_ERROR];
    bool io;
    if (p->in[t].data) return cli_error(EXIT_USAGE, "--in %s is given twice", given_name[t]);
    FILE *f = fopen(path, "rb");
    if (!f) return cli_error(EXIT_FILE, "%s: %s", path, strerror(errno));
    bool ok = npy_read(&p->in[t], f, err, &io);
    fclose(f);
    if (!ok) return cli_error(io ? EXIT_FILE : EXIT_USAGE, "%s: %s", path, err);
    int rank = p->in[t].rank;
    if ((rank != 3 && rank != 4) || npy_is_int(p->in[t].type))
        return cli_error(EXIT_USAGE, "%s: %s is to be floats [B, H, S, D] or [H, S, D]", path, given_name[t]);
    for (int i = 0; i < 4; i++) p->dim[t][i] = i >= 4 - rank ? p->in[t].dim[i - (4 - rank)] : 1;
    return 0;
}

static int read_tensors(Picks *p, const Cli *cli) {
    for (size_t i = 0; i < cli->ins.n; i++) {
        const char *path;
        char name[64], hint[96];
        if (!cli_assignment(cli->ins.item[i], name, &path) || !*path)
            return cli_error(EXIT_USAGE, "--in needs NAME=FILE, not `%s`", cli->ins.item[i]);
        int t = strcmp(name, "q") == 0 ? Q : strcmp(name, "k") == 0 ? K : NGIVEN;
        cli_hint(hint, sizeof hint, name, "q k");
        if (t == NGIVEN) return cli_error(EXIT_USAGE, "--in is one of q k, not `%s`%s", name, hint);
        int code = read_tensor(p, t, path);
        if (code) return code;
    }
    if (!p->in[Q].data != !p->in[K].data) return cli_error(EXIT_USAGE, "--in q=FILE and --in k=FILE go together");
    if (!p->in[Q].data) return 0;
    const int64_t *q = p->dim[Q], *k = p->dim[K];
    if (q[0] != k[0] || q[3] != k[3] || k[1] <= 0 || q[1] % k[1]) return cli_error(EXIT_USAGE, "the dims of q and k do not go together");
    cli_job_set(&p->job, "D", (double)q[3]);
    return 0;
}

/* The least length that shows a choice. */
static int64_t default_keys(const Spec *spec) {
    int64_t keys = DEFAULT_SK;
    for (int i = 0; i < spec->nderive; i++) {
        const Derive *x = &spec->derive[i];
        int64_t some = (int64_t)(x->count.n + 8) * x->block.n;
        if (x->kind == DERIVE_SELECT && some > keys) keys = some;
    }
    return keys;
}

static int choose_shape(Picks *p, const Cli *cli) {
    const Spec *spec = p->c->fn.spec;
    int64_t group = p->c->open_group ? DEFAULT_GROUP : spec->group, sk = cli->sk ? cli->sk : cli->sq ? cli->sq : default_keys(spec);
    int64_t sq = cli->sq ? cli->sq : sk, b = cli->B ? cli->B : 1, hkv = cli->kv_heads ? cli->kv_heads : 1, hq = cli->heads ? cli->heads : hkv * group;
    if (p->in[Q].data) b = p->dim[Q][0], hq = p->dim[Q][1], hkv = p->dim[K][1], sq = p->dim[Q][2], sk = p->dim[K][2];
    if (b < 0 || hq < 0 || hkv < 0 || sq < 0 || sk < 0) return cli_error(EXIT_USAGE, "sizes must not be negative");
    if (!b || !hq || !hkv || !sq || !sk) return cli_error(EXIT_USAGE, "there is nothing to select from");
    if (hq % hkv) return cli_error(EXIT_USAGE, "Hq is %lld and Hkv is %lld: Hq must be a multiple of Hkv", (long long)hq, (long long)hkv);
    if (!p->c->open_group && hq / hkv != spec->group)
        return cli_error(EXIT_USAGE, "%.*s has %d query heads per KV head, not %lld", STRF(spec->name), spec->group, (long long)(hq / hkv));
    if (b > MOST_LENGTH || hq > MOST_LENGTH || sq > MOST_LENGTH || sk > MOST_LENGTH)
        return cli_error(EXIT_USAGE, "sizes are at most %d", MOST_LENGTH);
    p->shape = (Case){.B = (int)b, .Hkv = (int)hkv, .group = (int)(hq / hkv), .Sq = (int)sq, .Sk = (int)sk, .offset = cli->offset};
    return 0;
}

/* A file's elements in the storage type, in place of the random ones. */
static bool take_given(Picks *p, int t, HostTensor *to) {
    const int64_t *n = p->dim[t];
    const Npy *a = &p->in[t];
    int skip = 4 - a->rank;
    int64_t s[4];
    p->given[t] = malloc(a->count * sizeof(uint16_t) + 1);
    if (!p->given[t]) return false;
    *to = (HostTensor){.data = p->given[t], .stride = {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}, .type = p->c->fn.spec->dtype};
    for (int i = 0; i < 4; i++) s[i] = i >= skip ? a->stride[i - skip] : 0;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t d = 0; d < n[3]; d++)
                    ag_host_set(to, b, h, i, d, (double)npy_get(a, (size_t)(b * s[0] + h * s[1] + i * s[2] + d * s[3])));
    return true;
}

static int select_blocks(Picks *p, const Cli *cli) {
    HostCall *call = &p->data.call;
    bool ok = ag_check_data(&p->data, &p->shape, p->c->fn.spec, (uint64_t)cli->seed + 1);
    if (ok && p->in[Q].data) ok = take_given(p, Q, &call->q) && take_given(p, K, &call->k);
    ok = ok && ag_selections_init(&p->picks, p->c->fn.spec, call);
    return ok ? 0 : cli_error(1, "out of memory");
}

/* ---- the picture */

/* What a block is for a query. */
static char mark(const Derive *x, const double *importance, const int32_t *pick, int64_t block) {
    bool in = false;
    for (int i = 0; i < x->count.n; i++) in |= pick[i] == block;
    if (importance[block] == -INFINITY) return ' ';
    if (!in) return '.';
    return importance[block] != INFINITY ? '#' : block < x->first.n ? 'F' : 'L';
}

/* Of several blocks in one column the rarest mark counts. */
static char strongest(char a, char b) {
    static const char order[] = " .L#F";
    return strchr(order, a) > strchr(order, b) ? a : b;
}

static void draw_row(FILE *out, const Derive *x, const double *importance, const int32_t *pick, int64_t blocks, int64_t per) {
    int64_t n = blocks;
    while (n > 0 && mark(x, importance, pick, n - 1) == ' ') n--;
    for (int64_t j = 0; j < n; j += per) {
        char c = ' ';
        for (int64_t i = j; i < j + per && i < n; i++) c = strongest(c, mark(x, importance, pick, i));
        fputc(c, out);
    }
    fputc('\n', out);
}

static void draw_head(FILE *out, const Picks *p, const Derive *x, int64_t per) {
    const Case *c = &p->shape;
    fprintf(out, "%.*s: %d of the blocks of %d keys for each query, %d first and %d local among them; B %d, Hq %d, Hkv %d, Sq %d, Sk %d, D %d\n",
            STRF(x->name), x->count.n, x->block.n, x->first.n, x->local.n, c->B, c->Hkv * c->group, c->Hkv, c->Sq, c->Sk, p->c->fn.spec->D);
    fprintf(out, "b 0, %s 0; F first, L local, # picked, . not picked, blank: must not be; a column is %lld block%s\n\nposition\n",
            x->per_head ? "h" : "g", (long long)per, per == 1 ? "" : "s");
}

static void draw(FILE *out, const Picks *p, int derive) {
    const Derive *x = &p->c->fn.spec->derive[derive];
    const int64_t *size = p->data.call.size;
    int64_t blocks = ag_block_count(&x->block, size[SZ_SK]), per = (blocks + COLUMNS - 1) / COLUMNS, rows = size[SZ_SQ] < ROWS ? size[SZ_SQ] : ROWS;
    draw_head(out, p, x, per);
    for (int64_t i = 0; i < rows; i++) {
        int64_t q = rows == 1 ? 0 : i * (size[SZ_SQ] - 1) / (rows - 1); /* the first and the last among them */
        fprintf(out, "%8lld  ", (long long)(q + size[SZ_OFF]));
        draw_row(out, x, p->picks.importance[derive] + q * blocks, p->picks.want[derive] + q * x->count.n, blocks, per);
    }
}

static int draw_all(Picks *p, const Cli *cli) {
    Output out;
    int code = cli_output_open(&out, cli->out, false), drawn = 0;
    if (code) return code;
    for (int i = 0; i < p->picks.n; i++) {
        if (!p->picks.want[i]) continue;
        if (drawn++) fputc('\n', out.f);
        draw(out.f, p, i);
    }
    if (ferror(out.f)) code = cli_error(EXIT_FILE, "%s: cannot write", out.path ? out.path : "the standard output");
    int closed = cli_output_close(&out, code == 0);
    return code ? code : closed;
}

/* ---- the whole */

/* The spec alone: neither its schedule nor its kernels matter. */
static int read_spec(Picks *p) {
    const Job *job = &p->job;
    attngen_program *program = NULL;
    p->c = ag_compile_text(&job->spec, NULL, "sm_80", job->dim, job->ndim, "lower");
    if (!p->c) return cli_error(1, "out of memory");
    if (p->c->diag.status != ATTNGEN_OK) { /* once more, for its words */
        attngen_status s = attngen_lower(job->ctx, &program, &job->spec, NULL, job->dim, job->ndim);
        attngen_program_free(program);
        return s == ATTNGEN_OK ? cli_error(1, "%s", attngen_strerror(p->c->diag.status)) : cli_fail(job->ctx, s);
    }
    const Spec *spec = p->c->fn.spec;
    for (int i = 0; i < spec->nderive; i++)
        if (spec->derive[i].kind == DERIVE_SELECT) return 0;
    return cli_error(EXIT_USAGE, "%.*s selects no blocks: --picks is for specs with a `select`", STRF(spec->name));
}

int cli_picks(Cli *cli) {
    Picks *p = calloc(1, sizeof *p);
    if (!p) return cli_error(1, "out of memory");
    int code = cli->seed < 0 ? cli_error(EXIT_USAGE, "--seed must not be negative") : cli_job_open(&p->job, cli);
    if (code == 0) code = read_tensors(p, cli);
    if (code == 0) code = read_spec(p);
    if (code == 0) code = choose_shape(p, cli);
    if (code == 0) code = select_blocks(p, cli);
    if (code == 0) code = draw_all(p, cli);
    ag_selections_free(&p->picks);
    ag_check_data_free(&p->data);
    ag_compilation_free(p->c);
    for (int i = 0; i < NGIVEN; i++) {
        npy_free(&p->in[i]);
        free(p->given[i]);
    }
    cli_job_close(&p->job);
    free(p);
    return code;
}
