/* cli_mask.c: `attngen show --mask`: which keys each query sees, by the reference, with captured tensors from .npy files or made up. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"
#include "cli.h"
#include "compile.h"

enum { DEFAULT_SK = 32, CELLS = 64, TILED = 128, MOST_LENGTH = 1 << 14 };

typedef struct Masks {
    Job job;
    Compilation *c;      /* the spec alone */
    Compilation *kernel; /* what it is compiled to; NULL: it is not */
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

/* Its kernels, if they can be had: for what they visit of larger problems. */
static void compile_kernel(Masks *m) {
    const Job *job = &m->job;
    if (m->c->fn.spec->nbranch || (m->shape.Sq < TILED && m->shape.Sk < TILED)) return;
    m->kernel = ag_compile_text(&job->spec, job->schedule_or_null, attngen_arch(job->ctx), job->dim, job->ndim, NULL);
    if (!m->kernel || m->kernel->diag.status == ATTNGEN_OK) return;
    ag_compilation_free(m->kernel);
    m->kernel = NULL;
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

/* ---- what is seen of batch entry 0 and head 0 */

typedef struct Seen {
    int64_t sq, sk;
    uint8_t *at; /* [sq, sk] */
} Seen;

static bool look(Seen *s, const Spec *spec, const HostCall *call) {
    *s = (Seen){call->size[SZ_SQ], call->size[SZ_SK], NULL};
    s->at = malloc((size_t)(s->sq * s->sk));
    for (int64_t q = 0; s->at && q < s->sq; q++)
        for (int64_t k = 0; k < s->sk; k++) s->at[q * s->sk + k] = ag_visible(spec, call, 0, 0, q, k);
    return s->at != NULL;
}

/* What queries from q on see of keys from k on: TILE_WHOLE if all see all. */
static int kind_of(const Seen *s, int64_t q, int64_t queries, int64_t k, int64_t keys) {
    int64_t seen = 0, all = 0;
    for (int64_t i = q; i < q + queries && i < s->sq; i++)
        for (int64_t j = k; j < k + keys && j < s->sk; j++) seen += s->at[i * s->sk + j], all++;
    return seen == 0 ? TILE_HIDDEN : seen == all ? TILE_WHOLE : TILE_PARTIAL;
}

/* ---- the picture */

static char cell(const Seen *s, int64_t q, int64_t k, int64_t per) { return ".+#"[kind_of(s, q, per, k, per)]; }

/* ---- what the kernel makes of it, tile by tile */

typedef struct TileCounts {
    int64_t all, needed, visited, plain, bounds; /* bounds: visited without a map */
} TileCounts;

/* TileCounts of a map that need no mask: the longest run of those that are seen as a whole. */
static int64_t longest_run(const uint8_t *kind, int64_t n) {
    int64_t run = 0, most = 0;
    for (int64_t j = 0; j < n; j++) {
        run = kind[j] == TILE_WHOLE ? run + 1 : kind[j] == TILE_PARTIAL ? 0 : run;
        most = run > most ? run : most;
    }
    return most;
}

static void count_tiles(const Masks *m, const Seen *s, FILE *out) {
    const Compilation *c = m->kernel;
    const Kernel *k = c->fn.kernel;
    int keys = (int)c->fn.sched->f[F_TILE_N].v;
    int64_t n = (s->sk + keys - 1) / keys, off = m->data.call.size[SZ_OFF];
    uint8_t *seen = NEWN(m->c->diag.arena, uint8_t, (size_t)n), *visited = NEWN(m->c->diag.arena, uint8_t, (size_t)n);
    TileCounts t = {0};
    for (int64_t q = 0; q < s->sq; q += k->queries) {
        int64_t end = q + k->queries < s->sq ? q + k->queries : s->sq;
        TilePlace at = {.spec = c->fn.spec, .call = &m->data.call, .q_first = q + off, .q_last = end - 1 + off};
        for (int64_t j = 0; j < n; j++) {
            bool part = (j + 1) * keys > s->sk; /* the end of the keys is masked, too */
            seen[j] = (uint8_t)kind_of(s, q, k->queries, j * keys, keys);
            if (seen[j] == TILE_WHOLE && part) seen[j] = TILE_PARTIAL;
        }
        ag_tiles_by_range(c->fn.math, &at, keys, visited);
        for (int64_t j = 0; j < n; j++) {
            t.all++;
            t.needed += seen[j] != TILE_HIDDEN;
            t.bounds += visited[j] != TILE_HIDDEN;
            t.visited += (k->tiles ? seen : visited)[j] != TILE_HIDDEN;
            t.plain += !k->tiles && visited[j] == TILE_WHOLE;
        }
        if (k->tiles) t.plain += longest_run(seen, n);
    }
    fprintf(out,
            "\n%lld tiles of %d queries x %d keys under %s for %s: %lld hold a visible key, %lld are visited, %lld of them without a mask; %s%s\n",
            (long long)t.all, k->queries, keys, c->schedule_name, c->fn.target->name, (long long)t.needed, (long long)t.visited, (long long)t.plain,
            k->tiles ? "by a map" : "by bounds", k->tiles ? ag_fmt(m->c->diag.arena, ", bounds would visit %lld", (long long)t.bounds).s : "");
}

static bool draw(FILE *out, const Masks *m, const Branch *branch, int index) {
    Spec spec = *m->c->fn.spec;
    HostCall call = m->data.call;
    Seen seen;
    if (branch) spec.mask = branch->mask, call.size[SZ_SK] = ag_branch_keys(m->c->fn.spec, index, call.size[SZ_SK]);
    if (!look(&seen, &spec, &call)) return false;
    int64_t sq = seen.sq, sk = seen.sk, longest = sq > sk ? sq : sk, per = (longest + CELLS - 1) / CELLS;
    fprintf(out, "%.*s%s%.*s: %lld queries from position %lld, a row for each%s, by %lld keys%s\n", STRF(spec.name), branch ? ", branch " : "",
            branch ? branch->name.n : 0, branch ? branch->name.s : "", (long long)sq, (long long)call.size[SZ_OFF],
            per > 1 ? ag_fmt(m->c->diag.arena, " %lld", (long long)per).s : "", (long long)sk,
            branch && branch->blocks.kind != FROM_NONE ? ", of those in listed blocks" : "");
    fprintf(out, "b 0, h 0; # seen, %s. hidden\n\n", per > 1 ? "+ seen in part, " : "");
    for (int64_t q = 0; q < sq; q += per) {
        for (int64_t k = 0; k < sk; k += per) fputc(cell(&seen, q, k, per), out);
        fputc('\n', out);
    }
    if (!branch && m->kernel) count_tiles(m, &seen, out);
    free(seen.at);
    return true;
}

static int draw_all(const Masks *m, const Cli *cli) {
    const Spec *spec = m->c->fn.spec;
    Output out;
    int code = cli_output_open(&out, cli->out, false);
    if (code) return code;
    bool room = spec->nbranch || draw(out.f, m, NULL, 0);
    for (int i = 0; i < spec->nbranch && room; i++) {
        if (i) fputc('\n', out.f);
        room = draw(out.f, m, &spec->branch[i], i);
    }
    if (!room) code = cli_error(1, "out of memory");
    if (code == 0 && ferror(out.f)) code = cli_error(EXIT_FILE, "%s: cannot write", out.path ? out.path : "the standard output");
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
    if (code == 0) compile_kernel(m);
    if (code == 0) code = draw_all(m, cli);
    ag_check_data_free(&m->data);
    ag_compilation_free(m->kernel);
    ag_compilation_free(m->c);
    cli_job_close(&m->job);
    free(m);
    return code;
}
