/* cli_mask.c: `attngen show --mask`: which keys each query sees, by the reference, with captured tensors from .npy files or made up. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"
#include "cli.h"
#include "compile.h"

enum { DEFAULT_SK = 32, CELLS = 64, MOST_LENGTH = 1 << 14 };

typedef struct Masks {
    Job job;
    Compilation *c;
    Case shape;
    CaseData data;
} Masks;

/* The spec alone: neither its schedule nor its kernels matter. */
static int read_spec(Masks *m) {
    const Job *job = &m->job;
    attngen_program *program = NULL;
    m->c = ag_compile_text(&job->spec, NULL, "sm_80", job->dim, job->ndim, "lower");
    if (!m->c) return cli_error(1, "out of memory");
    if (m->c->diag.status == ATTNGEN_OK) return 0;
    attngen_status s = attngen_lower(job->ctx, &program, &job->spec, NULL, job->dim, job->ndim); /* once more, for its words */
    attngen_program_free(program);
    return s == ATTNGEN_OK ? cli_error(1, "%s", attngen_strerror(m->c->diag.status)) : cli_fail(job->ctx, s);
}

static int choose_shape(Masks *m, const Cli *cli) {
    const Spec *spec = m->c->fn.spec;
    int64_t sk = cli->sk ? cli->sk : cli->sq ? cli->sq : DEFAULT_SK, sq = cli->sq ? cli->sq : sk, b = cli->B ? cli->B : 1;
    int64_t hkv = cli->kv_heads ? cli->kv_heads : 1, hq = cli->heads ? cli->heads : hkv * (spec->group ? spec->group : 1);
    if (b < 1 || hq < 1 || hkv < 1 || sq < 1 || sk < 1) return cli_error(EXIT_USAGE, "sizes must be positive");
    if (hq % hkv) return cli_error(EXIT_USAGE, "Hq is %lld and Hkv is %lld: Hq must be a multiple of Hkv", (long long)hq, (long long)hkv);
    if (b > MOST_LENGTH || hq > MOST_LENGTH || sq > MOST_LENGTH || sk > MOST_LENGTH)
        return cli_error(EXIT_USAGE, "sizes are at most %d", MOST_LENGTH);
    m->shape = (Case){.B = (int)b, .Hkv = (int)hkv, .group = (int)(hq / hkv), .Sq = (int)sq, .Sk = (int)sk, .offset = cli->offset};
    return 0;
}

/* ---- captured tensors */

static int input_of(const Masks *m, const char *name) {
    const Spec *spec = m->c->fn.spec;
    Buf names = {0};
    char hint[96];
    for (int i = 0; i < spec->ninput; i++) {
        if (ag_str_is(spec->input[i].name, name)) return ag_buf_free(&names), i;
        ag_put(&names, " %.*s", STRF(spec->input[i].name));
    }
    cli_hint(hint, sizeof hint, name, names.s ? names.s : "");
    cli_error(EXIT_USAGE, "--in is one of the captured tensors of the spec,%s, not `%s`%s", names.s ? names.s : " of which it has none", name, hint);
    ag_buf_free(&names);
    return -1;
}

static int take(CaseTensor *t, const Npy *a, const char *path, const Input *in) {
    bool ints = ag_dtype_value(t->view.type) != T_FLOAT, same = a->rank == in->rank;
    for (int i = 0; same && i < in->rank; i++) same = a->dim[i] == t->dim[i];
    if (npy_is_int(a->type) != ints) return cli_error(EXIT_USAGE, "%s: '%s' is no type for %.*s", path, npy_descr(a->type), STRF(in->name));
    if (!same) {
        Buf text = {0};
        for (int i = 0; i < in->rank; i++) ag_put(&text, i ? ", %lld" : "%lld", (long long)t->dim[i]);
        cli_error(EXIT_USAGE, "%s: the dims of %.*s are [%s]", path, STRF(in->name), text.s ? text.s : "");
        ag_buf_free(&text);
        return EXIT_USAGE;
    }
    int64_t at[INPUT_MAX_DIMS];
    for (bool more = ag_first_index(at, t->dim, in->rank); more; more = ag_next_index(at, t->dim, in->rank)) {
        int64_t where = 0;
        for (int i = 0; i < in->rank; i++) where += at[i] * a->stride[i];
        ag_host_set_at(&t->view, at, in->rank, ints ? (double)npy_get_int(a, (size_t)where) : (double)npy_get(a, (size_t)where));
    }
    return 0;
}

static int read_input(Masks *m, const char *given) {
    const char *path;
    char name[64], err[NPY_ERROR];
    bool io;
    Npy a = {0};
    if (!cli_assignment(given, name, &path) || !*path) return cli_error(EXIT_USAGE, "--in needs NAME=FILE, not `%s`", given);
    int i = input_of(m, name);
    if (i < 0) return EXIT_USAGE;
    FILE *f = fopen(path, "rb");
    if (!f) return cli_error(EXIT_FILE, "%s: %s", path, strerror(errno));
    bool ok = npy_read(&a, f, err, &io);
    fclose(f);
    int code =
        !ok ? cli_error(io ? EXIT_FILE : EXIT_USAGE, "%s: %s", path, err) : take(&m->data.t[CASE_TENSORS + i], &a, path, &m->c->fn.spec->input[i]);
    npy_free(&a);
    return code;
}

/* Those that are not given: documents behind each other, lengths, flags that are set; as `bench` has them. */
static int make_inputs(Masks *m, const Cli *cli) {
    const Spec *spec = m->c->fn.spec;
    if (!ag_check_data(&m->data, &m->shape, spec, (uint64_t)cli->seed + 1)) return cli_error(1, "out of memory");
    for (int i = 0; i < spec->ninput; i++) {
        CaseTensor *t = &m->data.t[CASE_TENSORS + i];
        free(t->flat);
        t->flat = NULL;
        if (!ag_check_input(t, spec, i, m->data.call.size, LAY_PLAIN, (uint64_t)(cli->seed + i + 1), false)) return cli_error(1, "out of memory");
        m->data.call.input[i] = t->view;
    }
    for (size_t i = 0; i < cli->ins.n; i++) {
        int code = read_input(m, cli->ins.item[i]);
        if (code) return code;
    }
    return 0;
}

/* ---- the picture */

/* What `per` queries see of as many keys. */
static char cell(const Spec *spec, const HostCall *call, int64_t q, int64_t k, int64_t per) {
    int64_t seen = 0, all = 0;
    for (int64_t i = q; i < q + per && i < call->size[SZ_SQ]; i++)
        for (int64_t j = k; j < k + per && j < call->size[SZ_SK]; j++) seen += ag_visible(spec, call, 0, 0, i, j), all++;
    return seen == 0 ? '.' : seen == all ? '#' : '+';
}

static void draw(FILE *out, const Masks *m, const Branch *branch, int index) {
    Spec spec = *m->c->fn.spec;
    HostCall call = m->data.call;
    if (branch) spec.mask = branch->mask, call.size[SZ_SK] = ag_branch_keys(m->c->fn.spec, index, call.size[SZ_SK]);
    int64_t sq = call.size[SZ_SQ], sk = call.size[SZ_SK], longest = sq > sk ? sq : sk, per = (longest + CELLS - 1) / CELLS;
    fprintf(out, "%.*s%s%.*s: %lld queries from position %lld, a row for each%s, by %lld keys%s\n", STRF(spec.name), branch ? ", branch " : "",
            branch ? branch->name.n : 0, branch ? branch->name.s : "", (long long)sq, (long long)call.size[SZ_OFF],
            per > 1 ? ag_fmt(m->c->diag.arena, " %lld", (long long)per).s : "", (long long)sk,
            branch && branch->blocks.kind != FROM_NONE ? ", of those in listed blocks" : "");
    fprintf(out, "b 0, h 0; # seen, %s. hidden\n\n", per > 1 ? "+ seen in part, " : "");
    for (int64_t q = 0; q < sq; q += per) {
        for (int64_t k = 0; k < sk; k += per) fputc(cell(&spec, &call, q, k, per), out);
        fputc('\n', out);
    }
}

static int draw_all(const Masks *m, const Cli *cli) {
    const Spec *spec = m->c->fn.spec;
    Output out;
    int code = cli_output_open(&out, cli->out, false);
    if (code) return code;
    if (!spec->nbranch) draw(out.f, m, NULL, 0);
    for (int i = 0; i < spec->nbranch; i++) {
        if (i) fputc('\n', out.f);
        draw(out.f, m, &spec->branch[i], i);
    }
    if (ferror(out.f)) code = cli_error(EXIT_FILE, "%s: cannot write", out.path ? out.path : "the standard output");
    int closed = cli_output_close(&out, code == 0);
    return code ? code : closed;
}

int cli_mask(Cli *cli) {
    Masks *m = calloc(1, sizeof *m);
    if (!m) return cli_error(1, "out of memory");
    int code = cli->seed < 0 ? cli_error(EXIT_USAGE, "--seed must not be negative") : cli_job_open(&m->job, cli);
    if (code == 0) code = read_spec(m);
    if (code == 0) code = choose_shape(m, cli);
    if (code == 0) code = make_inputs(m, cli);
    if (code == 0) code = draw_all(m, cli);
    ag_check_data_free(&m->data);
    ag_compilation_free(m->c);
    cli_job_close(&m->job);
    free(m);
    return code;
}
