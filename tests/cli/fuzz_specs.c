/* fuzz_specs: random specs (random_spec.h), and every fourth time one with branches as one kernel, through both kernel paths: the simulator, which says if a visible key is left out or a hidden one let in, against
 * the reference; and a sample of them through NVRTC.
 *
 *   fuzz_specs [-n COUNT] [--seed FIRST] [--compile EVERY] [--write DIR]
 *     -n         specs, by default 300; their seeds follow FIRST, by default 1
 *     --compile  every so many one is compiled for sm_90a, and the one after it for sm_80; 0: none.  By default 50
 *     --write    writes each as DIR/random_SEED.yaml instead, for a GPU: find DIR -name "random_*" -exec attngen check {} -D D=64 --gpu ";"
 * A failure shows seed and text; `fuzz_specs -n 1 --seed SEED` repeats it.  The last line is "N passed, N failed, N skipped". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attngen.h"
#include "check_case.h"
#include "compile.h"
#include "program.h"
#include "random_spec.h"

enum { HEAD_DIM = 16 };

static int passed, failed, skipped;

static const Case shape[] = {{.B = 1, .Hkv = 1, .group = 2, .Sq = 150, .Sk = 300, .offset = ATTNGEN_ALIGN_END},
                             {.B = 2, .Hkv = 1, .group = 1, .Sq = 37, .Sk = 210, .offset = 70, .layout = LAY_TAIL},
                             {.B = 1, .Hkv = 2, .group = 1, .Sq = 140, .Sk = 61, .offset = -20, .layout = LAY_REVERSED},
                             {.B = 2, .Hkv = 1, .group = 3, .Sq = 1, .Sk = 129, .offset = ATTNGEN_ALIGN_END, .layout = LAY_PITCH},
                             {.B = 1, .Hkv = 1, .group = 1, .Sq = 66, .Sk = 257, .offset = 1 << 20, .layout = LAY_ODD}};

static void wrong(uint64_t seed, const char *arch, int i, const char *what, const char *text) {
    failed++;
    printf("FAILED seed %llu for %s, shape %d: %s\n%s\n", (unsigned long long)seed, arch, i, what, text);
}

/* Runs c on a case: "" or what is wrong, malloc'ed. */
static char *run(const Compilation *c, const Case *at, uint64_t seed) {
    const Spec *spec = c->fn.spec;
    CaseData d;
    Buf text = {0};
    ProgramBuffers buffers;
    ag_putn(&text, "", 0);
    bool ok = ag_check_data(&d, at, spec, seed);
    size_t rows = (size_t)(d.call.size[SZ_B] * d.call.size[SZ_HQ] * d.call.size[SZ_SQ]);
    double *o = malloc(rows * HEAD_DIM * sizeof *o), *naive = malloc(rows * HEAD_DIM * sizeof *naive);
    double *value[ROWV_COUNT], *naive_lse = malloc(rows * sizeof *naive_lse);
    double *spread = malloc(rows * sizeof *spread);
    ok &= spread != NULL;
    for (int i = 0; i < ROWV_COUNT; i++) ok &= (value[i] = malloc(rows * sizeof *value[i])) != NULL;
    ok = ok && o && naive && naive_lse &&
         (spec->nbranch ? ag_reference_spread(spec, &d.call, o, value[0], spread) : ag_reference_values(spec, &d.call, o, value)) &&
         ag_naive(spec, &d.call, naive, naive_lse);
    if (ok) ag_check_poison(&d, spec);
    if (!ok)
        ag_put(&text, "out of memory");
    else if (ag_simulate_program(c, &d.call, &buffers, &text)) {
        /* Random scores are often alike for most keys of a row and not the largest: such weights are all rounded the same way, which costs half an ulp more. */
        ErrorBound bound = ag_error_bound(c->numerics);
        bound.half_ulps += 1;
        bound.spread = spec->nbranch ? spread : NULL;
        Comparison r = ag_compare(spec, &d.call, bound, o, value[ROWV_LSE], naive);
        for (int i = ROWV_LSE + 1; i < ROWV_COUNT; i++) ag_compare_value(&r, &d.call, (RowValue)i, value[i], bound.lse);
        ag_put(&text, "%s", r.text);
        if (r.ok && !ag_check_surroundings(&d)) ag_put(&text, "memory around the outputs was written");
    }
    if (ok) ag_program_buffers_free(&buffers);
    ag_check_data_free(&d);
    for (int i = 0; i < ROWV_COUNT; i++) free(value[i]);
    free(o), free(naive), free(naive_lse), free(spread);
    return text.s;
}

/* The one thing that a random spec may lack. */
static bool is_refused(const char *said) { return strstr(said, "a score that does not depend on 's' has no kernel with mma.family wgmma") != NULL; }

static void simulate(const char *text, size_t n, uint64_t seed, const char *arch, const char *how) {
    const attngen_source source = {"random.yaml", text, n};
    const attngen_dim dims[] = {{"D", HEAD_DIM}};
    const attngen_source schedule = {"fused.yaml", how, how ? strlen(how) : 0};
    Compilation *c = ag_compile_text(&source, how ? &schedule : NULL, arch, dims, 1, NULL);
    Buf said = {0};
    int i = (int)(seed % LEN(shape));
    if (c) ag_diag_render(&c->diag, &said);
    if (said.n && is_refused(said.s)) {
        passed++;
    } else if (!c || c->diag.status != ATTNGEN_OK) {
        wrong(seed, arch, i, said.n ? said.s : "out of memory", text);
    } else {
        char *what = run(c, &shape[i], seed);
        if (*what)
            wrong(seed, arch, i, what, text);
        else
            passed++;
        free(what);
    }
    ag_buf_free(&said);
    if (c) ag_compilation_free(c);
}

/* Branches as one kernel, which takes queries heads one by one. */
static void joined(uint64_t seed) {
    static const char mma[] = "schema: attngen.schedule/1\nloop: {branches: fused}\n",
                      wgmma[] = "schema: attngen.schedule/1\ntile: {n: 32}\nmma: {family: wgmma}\nloop: {branches: fused}\n";
    Buf text = {0};
    random_branches(&text, seed);
    simulate(text.s, text.n, seed, "sm_80", mma);
    simulate(text.s, text.n, seed, "sm_90a", wgmma);
    ag_buf_free(&text);
}

static void compile(const char *text, size_t n, uint64_t seed, const char *arch) {
    attngen_context *ctx = NULL;
    attngen_program *p = NULL;
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    const attngen_source source = {"random.yaml", text, n};
    const attngen_dim dims[] = {{"D", 64}};
    o.arch = arch;
    o.cache_dir = "";
    if (attngen_create(&ctx, &o) != ATTNGEN_OK) exit(printf("no context for %s\n", arch));
    attngen_status s = attngen_compile(ctx, &p, &source, NULL, dims, 1);
    const char *said = attngen_errmsg(ctx);
    if (s == ATTNGEN_E_NO_NVRTC)
        skipped++;
    else if (s == ATTNGEN_OK || (s == ATTNGEN_E_UNSUPPORTED && is_refused(said)) ||
             (s == ATTNGEN_E_COMPILE &&
              (strstr(said, "spills") || strstr(said, "too few registers")))) /* what a random score takes says nothing of the schedule */
        passed++;
    else
        wrong(seed, arch, -1, said, text);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

static void write_spec(const char *dir, uint64_t seed, const char *text, size_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/random_%llu.yaml", dir, (unsigned long long)seed);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(text, 1, n, f) == n;
    if (f && fclose(f) != 0) ok = false;
    if (ok)
        passed++;
    else
        failed++, perror(path);
}

int main(int argc, char **argv) {
    uint64_t count = 300, first = 1, every = 50;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *dir = NULL;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && strcmp(argv[i], "-n") == 0)
            count = strtoull(argv[++i], NULL, 10);
        else if (value && strcmp(argv[i], "--seed") == 0)
            first = strtoull(argv[++i], NULL, 10);
        else if (value && strcmp(argv[i], "--compile") == 0)
            every = strtoull(argv[++i], NULL, 10);
        else if (value && strcmp(argv[i], "--write") == 0)
            dir = argv[++i];
        else
            return fprintf(stderr, "usage: fuzz_specs [-n COUNT] [--seed FIRST] [--compile EVERY] [--write DIR]\n"), 2;
    }
    for (uint64_t seed = first; seed < first + count; seed++) {
        Buf text = {0};
        random_spec(&text, seed);
        if (dir)
            write_spec(dir, seed, text.s, text.n);
        else {
            simulate(text.s, text.n, seed, "sm_80", NULL);
            simulate(text.s, text.n, seed, "sm_90a", NULL);
            if (seed % 4 == 0) joined(seed);
            if (every && seed % every < 2) compile(text.s, text.n, seed, seed % every ? "sm_80" : "sm_90a");
        }
        ag_buf_free(&text);
    }
    if (skipped) puts("skipped: no NVRTC on this machine");
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
