/* compile_all: compiles some shipped specs (is_thorough) under every shipped schedule for every arch and both types with NVRTC, without the cache; the others under the
 * schedules that are taken by default, for the oldest and the newest arch: all head dims and both types if they are named, else the usual ones and a few more by turns.
 * Then head dims in between, under the schedule that is taken by default, in bf16.  A ptxas warning, more than a few bytes of spilled registers or a refusal other than "this head dim or arch is not for this schedule" is a failure.
 * The last line is "N passed, N failed, N skipped"; without NVRTC everything is skipped.  usage: compile_all [SPEC]... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attngen.h"

static const int head_dims[] = {64, 128, 256, 96, 192}; /* from OFTEN on those that a schedule names alone */
enum { OFTEN = 3 };
static const int dtypes[] = {ATTNGEN_F16, ATTNGEN_BF16};
static const int between[] = {40, 48, 80, 96, 112, 160};
enum { NBETWEEN = sizeof between / sizeof *between };
enum { NDIMS = sizeof head_dims / sizeof *head_dims, NTYPES = sizeof dtypes / sizeof *dtypes };

enum { SPILLS_TOLERATED = 32 }; /* as in api.c */
static int passed, failed, no_nvrtc;
static int serialised; /* the last one compiled has too few registers for wgmma, which a warning says */
static int all_of_it;  /* specs are given: take all that there is of them */
static int turn;       /* number of the spec */

static void hear(void *payload, const char *text) {
    (void)payload;
    serialised |= strstr(text, "has too few registers") != NULL;
}

/* Does the spec read elements of captured tensors, for which sm_90a has schedules of their own?  Then it may spill under those that are not the default. */
static int reads_elements(const attngen_source *spec) {
    attngen_context *ctx = NULL;
    attngen_program *p = NULL;
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    o.arch = "sm_90a";
    o.cache_dir = "";
    int elements = attngen_create(&ctx, &o) == ATTNGEN_OK && attngen_lower(ctx, &p, spec, NULL, NULL, 0) == ATTNGEN_OK &&
                   attngen_program_info(p, &info) == ATTNGEN_OK && (strstr(info.schedule, "_element") || strstr(info.schedule, "_bias"));
    attngen_program_free(p);
    attngen_destroy(ctx);
    return elements;
}

static int may_spill(attngen_context *ctx, const attngen_source *spec, const attngen_dim *dims, const char *sched) {
    attngen_program *p = NULL;
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    int other = sched && attngen_lower(ctx, &p, spec, NULL, dims, 2) == ATTNGEN_OK && attngen_program_info(p, &info) == ATTNGEN_OK &&
                strcmp(info.schedule, sched) != 0;
    attngen_program_free(p);
    return other && reads_elements(spec);
}

/* Specs that read captured tensors per row, column or element in ways that may spill under the schedules that they get, for some head dim or other. */
static int may_be_slow(const char *spec) {
    static const char *const names[] = {"alibi_both",
                                        "bigbird",
                                        "decomposed_bias",
                                        "document_full",
                                        "document_prefix",
                                        "document_starts",
                                        "fire",
                                        "flamingo",
                                        "forgetting",
                                        "fp_scaled",
                                        "graphormer",
                                        "graphormer_spatial",
                                        "jagged_cross",
                                        "kerple",
                                        "kerple_power",
                                        "left_padding",
                                        "longformer",
                                        "modality",
                                        "multi_item",
                                        "natten_morton",
                                        "paligemma",
                                        "permutation",
                                        "sandwich",
                                        "shared_prefix",
                                        "ssmax",
                                        "swin",
                                        "t5_encoder",
                                        "tree_decode",
                                        "vsa"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(spec, names[i]) == 0) return 1;
    return 0;
}

/* Returns 1 if the schedule is meant for this arch and head dim. */
static int compile_with(attngen_context *ctx, const char *spec, const char *sched, int D, int dtype, int group, int block) {
    attngen_program *p = NULL;
    attngen_source s, c;
    attngen_info info = {.version = ATTNGEN_INFO_VERSION};
    const attngen_dim dims[] = {{"D", D}, {"dtype", dtype}, {"group", group}, {"block", block}};
    attngen_shipped_spec(&s, spec);
    if (sched) attngen_shipped_schedule(&c, sched);
    serialised = 0;
    attngen_status st = attngen_compile(ctx, &p, &s, sched ? &c : NULL, dims, block ? 4 : group ? 3 : 2);
    if (st == ATTNGEN_OK) st = attngen_program_info(p, &info);
    attngen_program_free(p);
    if (st == ATTNGEN_E_UNSUPPORTED) return 0;
    if (st == ATTNGEN_E_NO_NVRTC) return no_nvrtc = 1;
    const char *type = dtype == ATTNGEN_F16 ? "f16" : "bf16";
    if (st == ATTNGEN_OK && !serialised && (info.spill_bytes <= SPILLS_TOLERATED || may_be_slow(spec) || may_spill(ctx, &s, dims, sched)))
        return passed++, 1;
    failed++;
    printf("FAILED %s under %s for %s, D %d, %s, group %d, block %d: ", spec, sched ? sched : "the default", attngen_arch(ctx), D, type, group,
           block);
    if (st == ATTNGEN_OK)
        printf("%d bytes of registers spilled%s\n", info.spill_bytes, serialised ? ", wgmma serialised" : "");
    else
        printf("%s\n", attngen_errmsg(ctx));
    return 1;
}

static int compile_one(attngen_context *ctx, const char *spec, const char *sched, int D, int dtype, int group) {
    return compile_with(ctx, spec, sched, D, dtype, group, 0);
}

/* Specs between which every path through the emitter is taken: these under all schedules, on all arches. */
static int is_thorough(const char *spec) {
    static const char *const names[] = {"dense", "causal", "gqa", "mqa", "sliding_window", "softcap", "score_bias", "sink_window"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(spec, names[i]) == 0) return 1;
    return 0;
}

static int is_oldest_or_newest(const char *arch) { return strcmp(arch, "sm_80") == 0 || strcmp(arch, "sm_90a") == 0; }

/* Of all that there is for a spec on an arch, one after the other: is this to be compiled? */
static int is_its_turn(const char *arch, int D, int dtype, int i) {
    enum { ALL = 2 * (NDIMS * NTYPES + NBETWEEN) };
    int newest = strcmp(arch, "sm_90a") == 0, usual = dtype == ATTNGEN_BF16 && (D == 128 || (newest && D == 64));
    return all_of_it || usual || (newest ? i + ALL / 2 : i) == turn % ALL;
}

/* Under the schedule that is taken by default. */
static void compile_default(attngen_context *ctx, const char *spec) {
    const char *arch = attngen_arch(ctx);
    int i = 0;
    if (!is_oldest_or_newest(arch)) return;
    for (int d = 0; d < NDIMS; d++)
        for (int t = 0; t < NTYPES && !no_nvrtc; t++, i++)
            if (is_its_turn(arch, head_dims[d], dtypes[t], i)) compile_one(ctx, spec, NULL, head_dims[d], dtypes[t], 0);
    for (int d = 0; d < NBETWEEN && !no_nvrtc; d++, i++)
        if (is_its_turn(arch, between[d], ATTNGEN_BF16, i)) compile_one(ctx, spec, NULL, between[d], ATTNGEN_BF16, 0);
}

static void compile_spec(attngen_context *ctx, const char *spec) {
    const char *sched;
    if (!is_thorough(spec)) {
        compile_default(ctx, spec);
        return;
    }
    for (size_t j = 0; (sched = attngen_shipped_schedule_name(j)) && !no_nvrtc; j++) {
        int used = 0;
        for (int d = 0; d < NDIMS; d++) {
            char named[8];
            snprintf(named, sizeof named, "_d%d", head_dims[d]);
            if (d >= OFTEN && !strstr(sched, named)) continue;
            for (int t = 0; t < NTYPES && !no_nvrtc; t++) used += compile_one(ctx, spec, sched, head_dims[d], dtypes[t], 0);
        }
        if (used == 0) printf("note: %s is not for %s, or for none of the head dims tried\n", sched, attngen_arch(ctx));
    }
    for (int d = 0; d < NBETWEEN && !no_nvrtc; d++) compile_one(ctx, spec, NULL, between[d], ATTNGEN_BF16, 0);
}

/* A program with block lists has many kernels, and those that other specs have are compiled with them: under the default, groups for both orders of its listed blocks. */
static void compile_program(attngen_context *ctx, const char *spec) {
    static const int group[] = {1, 6, 16};
    int all = strcmp(spec, "nsa") == 0;
    if (!is_oldest_or_newest(attngen_arch(ctx))) return;
    for (int d = 0; d < OFTEN && !no_nvrtc; d++)
        for (int g = 0; g < (int)(sizeof group / sizeof *group) && !no_nvrtc; g++)
            if (all || (head_dims[d] == 128 && group[g] == 6)) compile_one(ctx, spec, NULL, head_dims[d], ATTNGEN_BF16, group[g]);
    if (all) compile_one(ctx, spec, NULL, 128, ATTNGEN_F16, 16);
    static const int by_block[] = {1, 2, 4, 6, 8}; /* under blocks of 128 keys */
    for (int g = 0; all && g < (int)(sizeof by_block / sizeof *by_block) && !no_nvrtc; g++)
        compile_with(ctx, spec, NULL, 128, ATTNGEN_BF16, by_block[g], 128);
}

static int has_lists(const char *spec) {
    attngen_source s;
    attngen_shipped_spec(&s, spec);
    return strstr(s.text, "blocks:") != NULL;
}

int main(int argc, char **argv) {
    const char *arch, *spec;
    for (size_t a = 0; (arch = attngen_known_arch(a)) && !no_nvrtc; a++) {
        attngen_options o = ATTNGEN_OPTIONS_INIT;
        attngen_context *ctx = NULL;
        o.arch = arch;
        o.cache_dir = "";
        o.warn = hear;
        if (attngen_create(&ctx, &o) != ATTNGEN_OK) return printf("no context for %s\n", arch), 1;
        for (size_t i = 0; (spec = attngen_shipped_spec_name(i)) && !no_nvrtc; i++) {
            int wanted = argc < 2;
            all_of_it = argc >= 2, turn = (int)i;
            for (int j = 1; j < argc; j++) wanted |= strcmp(argv[j], spec) == 0;
            if (wanted) (has_lists(spec) ? compile_program : compile_spec)(ctx, spec);
        }
        attngen_destroy(ctx);
    }
    if (no_nvrtc) puts("skipped: no NVRTC on this machine");
    printf("%d passed, %d failed, %d skipped\n", passed, failed, no_nvrtc);
    return failed != 0;
}
