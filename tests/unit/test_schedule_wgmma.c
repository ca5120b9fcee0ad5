/* Schedules of mma.family wgmma: rules, laws, printing, and the shipped files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "with_closing.h"

static Ast some_score;

static void test_print(void **state) {
    (void)state;
    prints(WGMMA, case_of(128, "sm_90a", true),
           "schema: attngen.schedule/1\n"
           "target:\n"
           "  arch: [sm_80, sm_86, sm_89, sm_90, sm_90a]\n"
           "applies_to:\n"
           "  head_dim: {min: 1, max: 256}\n"
           "tile:\n"
           "  m: 128                    # rule: 64 rows for each of roles.consumer.warpgroups\n"
           "  n: 128                    # rule: 128 keys, less by 16 until they fit: 196704 of 232448 bytes of shared memory and about 192 of 232 "
           "registers\n"
           "  pack_gqa: false           # default\n"
           "mma:\n"
           "  family: wgmma             # file\n"
           "  p_operand: regs           # default\n"
           "roles:\n"
           "  consumer:\n"
           "    warpgroups: 2           # default\n"
           "    regs: 232               # rule: 232 at most each, of 504 for the 3 warpgroups of the block\n"
           "  producer:\n"
           "    regs: 40                # rule: 40 at most, of 504 for the 3 warpgroups of the block\n"
           "staging:\n"
           "  q:\n"
           "    stages: 1               # default\n"
           "  k:\n"
           "    stages: 2               # rule: wgmma: one tile is loaded while another is read\n"
           "  v:\n"
           "    stages: 2               # rule: wgmma: one tile is loaded while another is read\n"
           "  o:\n"
           "    store: smem             # default\n"
           "    parts: 1                # default\n"
           "pipeline:\n"
           "  overlap: true             # default\n"
           "  turns: false              # default\n"
           "loop:\n"
           "  form: flagged             # default\n"
           "  direction: reverse        # default\n"
           "grid:\n"
           "  order: [m, h, b]          # default\n"
           "  longest_first: true       # rule: the spec has a mask, so tiles differ in length\n"
           "  group_mb: 32              # rule: tiles differ in length, so heads are walked together; 32 MB of K and V stay in L2\n"
           "  persistent: dynamic       # rule: the spec has a mask, so tiles differ in length\n"
           "  fetch_ahead: 1            # default\n"
           "  ctas_per_sm: 1            # default\n"
           "numerics:\n"
           "  rescale: always           # default\n"
           "  tanh: exact               # default\n"
           "  softmax: exact            # default\n");
    prints(WGMMA "tile: {m: auto, n: 64}\nroles: {consumer: {warpgroups: 3, regs: 128}}\nstaging: {k: {stages: 3}, o: {store: direct}}\n"
                 "pipeline: {overlap: false}\nloop: {form: peeled, direction: forward}\n",
           case_of(64, "sm_90a", false),
           "schema: attngen.schedule/1\n"
           "target:\n"
           "  arch: [sm_80, sm_86, sm_89, sm_90, sm_90a]\n"
           "applies_to:\n"
           "  head_dim: {min: 1, max: 256}\n"
           "tile:\n"
           "  m: 192                    # rule: 64 rows for each of roles.consumer.warpgroups\n"
           "  n: 64                     # file\n"
           "  pack_gqa: false           # default\n"
           "mma:\n"
           "  family: wgmma             # file\n"
           "  p_operand: regs           # default\n"
           "roles:\n"
           "  consumer:\n"
           "    warpgroups: 3           # file\n"
           "    regs: 128               # file\n"
           "  producer:\n"
           "    regs: 32                # rule: 32 at most, of 512 for the 4 warpgroups of the block\n"
           "staging:\n"
           "  q:\n"
           "    stages: 1               # default\n"
           "  k:\n"
           "    stages: 3               # file\n"
           "  v:\n"
           "    stages: 2               # rule: wgmma: one tile is loaded while another is read\n"
           "  o:\n"
           "    store: direct           # file\n"
           "    parts: 1                # default\n"
           "pipeline:\n"
           "  overlap: false            # file\n"
           "  turns: false              # default\n"
           "loop:\n"
           "  form: peeled              # file\n"
           "  direction: forward        # file\n"
           "grid:\n"
           "  order: [m, h, b]          # default\n"
           "  longest_first: false      # rule: the spec has no mask, so all tiles are equally long\n"
           "  group_mb: 0               # rule: grid.longest_first is false, so one head after the other\n"
           "  persistent: static        # rule: the spec has no mask, so all tiles are equally long\n"
           "  fetch_ahead: 1            # default\n"
           "  ctas_per_sm: 1            # default\n"
           "numerics:\n"
           "  rescale: always           # default\n"
           "  tanh: exact               # default\n"
           "  softmax: exact            # default\n");
}

static void test_print_reads_back(void **state) {
    (void)state;
    expect_stable(STR(WGMMA), case_of(64, "sm_90a", false));
    expect_stable(STR(WGMMA "grid: {persistent: none}\n"), case_of(64, "sm_90a", true)); /* fetch_ahead has no effect then */
    expect_stable(STR(WGMMA "staging: {q: {stages: 2}, o: {store: tma}}\npipeline: {turns: true}\ngrid: {fetch_ahead: auto}\n"),
                  case_of(64, "sm_90a", true));
    expect_stable(STR(WGMMA "roles: {consumer: {warpgroups: 1, regs: 256}}\npipeline: {overlap: false}\nloop: {direction: forward}\n"),
                  case_of(200, "sm_90a", true));
}

/* Fields of the other family, given by the file, be it as `auto`. */
static void test_effect(void **state) {
    (void)state;
    refuse_on("sm_90a", WGMMA "roles: {warps: 8}\n",
              "t.yaml:3:16: error: roles.warps has no effect with mma.family wgmma: each of roles.consumer.warpgroups has 4 warps\n"
              "    roles: {warps: 8}\n"
              "                   ^\n"
              "t.yaml:2:15: note: mma.family is wgmma here\n"
              "    mma: {family: wgmma}\n"
              "                  ^~~~~\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", HEAD "mma:\n  family: wgmma\n  q_operand: auto\npipeline: {acquire: each}\n",
              "t.yaml:4:14: error: mma.q_operand has no effect with mma.family wgmma: Q is read from shared memory in every step\n"
              "      q_operand: auto\n"
              "                 ^~~~\n"
              "t.yaml:3:11: note: mma.family is wgmma here\n"
              "      family: wgmma\n"
              "              ^~~~~\n"
              "t.yaml:5:21: error: pipeline.acquire has no effect with mma.family wgmma: every tile of K and V has a barrier of its own\n"
              "    pipeline: {acquire: each}\n"
              "                        ^~~~\n"
              "t.yaml:3:11: note: mma.family is wgmma here\n"
              "      family: wgmma\n"
              "              ^~~~~\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_80", HEAD "roles: {consumer: {warpgroups: 2, regs: 240}, producer: {regs: auto}}\npipeline: {overlap: false}\n",
              "t.yaml:2:32: error: roles.consumer.warpgroups has no effect with mma.family mma_sync: roles.warps says how many warps compute\n"
              "    roles: {consumer: {warpgroups: 2, regs: 240}, producer: {regs: auto}}\n"
              "                                   ^\n"
              "note: mma.family is mma_sync by default\n"
              "t.yaml:2:41: error: roles.consumer.regs has no effect with mma.family mma_sync: all warps have the same registers, which "
              "grid.ctas_per_sm bounds\n"
              "    roles: {consumer: {warpgroups: 2, regs: 240}, producer: {regs: auto}}\n"
              "                                            ^~~\n"
              "note: mma.family is mma_sync by default\n"
              "t.yaml:2:64: error: roles.producer.regs has no effect with mma.family mma_sync: no warps are set apart for loading\n"
              "    roles: {consumer: {warpgroups: 2, regs: 240}, producer: {regs: auto}}\n"
              "                                                                   ^~~~\n"
              "note: mma.family is mma_sync by default\n"
              "t.yaml:3:21: error: pipeline.overlap has no effect with mma.family mma_sync: a product is complete before the next instruction\n"
              "    pipeline: {overlap: false}\n"
              "                        ^~~~~\n"
              "note: mma.family is mma_sync by default\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", HEAD "mma: {family: mma_sync}\nroles: {producer: {regs: 24}}\n",
              "t.yaml:3:26: error: roles.producer.regs has no effect with mma.family mma_sync: no warps are set apart for loading\n"
              "    roles: {producer: {regs: 24}}\n"
              "                             ^~\n"
              "t.yaml:2:15: note: mma.family is mma_sync here\n"
              "    mma: {family: mma_sync}\n"
              "                  ^~~~~~~~\n",
              ATTNGEN_E_SPEC);
}

static void test_laws(void **state) {
    (void)state;
    refuse_on("sm_80", WGMMA,
              "t.yaml:2:15: error: mma.family wgmma is for sm_90a, not for sm_80\n"
              "    mma: {family: wgmma}\n"
              "                  ^~~~~\n",
              ATTNGEN_E_UNSUPPORTED);
    refuse_on("sm_90", HEAD "mma: {family: wgmma}\n",
              "t.yaml:2:15: error: mma.family wgmma is for sm_90a, not for sm_90\n"
              "    mma: {family: wgmma}\n"
              "                  ^~~~~\n",
              ATTNGEN_E_UNSUPPORTED);
    refuse_on("sm_90a", WGMMA "tile: {m: 192}\n",
              "t.yaml:3:11: error: tile.m == 64 * roles.consumer.warpgroups does not hold: 192 is not 64 * 2; nearest legal value 128\n"
              "    tile: {m: 192}\n"
              "              ^~~\n"
              "note: roles.consumer.warpgroups is 2 by default\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", WGMMA "tile: {m: 128}\nroles: {consumer: {warpgroups: 3}}\n",
              "t.yaml:3:11: error: tile.m == 64 * roles.consumer.warpgroups does not hold: 128 is not 64 * 3; nearest legal value 192\n"
              "    tile: {m: 128}\n"
              "              ^~~\n"
              "t.yaml:4:32: note: roles.consumer.warpgroups is 3 here\n"
              "    roles: {consumer: {warpgroups: 3}}\n"
              "                                   ^\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", WGMMA "roles: {consumer: {regs: 240}, producer: {regs: 40}}\n",
              "t.yaml:3:26: error: 128 * (roles.producer.regs + roles.consumer.warpgroups * roles.consumer.regs) <= 64512 (a block of 384 threads "
              "starts with 168 each) does not hold: 128 * (40 + 2 * 240) = 66560; nearest legal value 232\n"
              "    roles: {consumer: {regs: 240}, producer: {regs: 40}}\n"
              "                             ^~~\n"
              "t.yaml:3:49: note: roles.producer.regs is 40 here\n"
              "    roles: {consumer: {regs: 240}, producer: {regs: 40}}\n"
              "                                                    ^~\n"
              "note: roles.consumer.warpgroups is 2 by default\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", WGMMA "roles: {consumer: {warpgroups: 3, regs: 168}}\n",
              "t.yaml:3:41: error: 128 * (roles.producer.regs + roles.consumer.warpgroups * roles.consumer.regs) <= 65536 (a block of 512 threads "
              "starts with 128 each) does not hold: 128 * (24 + 3 * 168) = 67584; nearest legal value 160\n"
              "    roles: {consumer: {warpgroups: 3, regs: 168}}\n"
              "                                            ^~~\n"
              "note: roles.producer.regs is 24 by rule\n"
              "t.yaml:3:32: note: roles.consumer.warpgroups is 3 here\n"
              "    roles: {consumer: {warpgroups: 3, regs: 168}}\n"
              "                                   ^\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", WGMMA "roles: {consumer: {warpgroups: 4, regs: 100}}\n",
              "t.yaml:3:32: error: 1 <= roles.consumer.warpgroups <= 3 does not hold: found 4; nearest legal value 3\n"
              "    roles: {consumer: {warpgroups: 4, regs: 100}}\n"
              "                                   ^\n"
              "t.yaml:3:41: error: roles.consumer.regs % 8 == 0 does not hold: 100 % 8 = 4; nearest legal value 104\n"
              "    roles: {consumer: {warpgroups: 4, regs: 100}}\n"
              "                                            ^~~\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", WGMMA "grid: {ctas_per_sm: 2}\n",
              "t.yaml:3:21: error: grid.ctas_per_sm == 1 does not hold, which mma.family wgmma needs: found 2; nearest legal value 1\n"
              "    grid: {ctas_per_sm: 2}\n"
              "                        ^\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", WGMMA "loop: {direction: forward}\n",
              "t.yaml:3:19: error: pipeline.overlap needs loop.direction reverse: write direction: reverse or overlap: false\n"
              "    loop: {direction: forward}\n"
              "                      ^~~~~~~\n"
              "note: pipeline.overlap is true by default\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", WGMMA "pipeline: {overlap: true}\nloop: {direction: forward}\n",
              "t.yaml:4:19: error: pipeline.overlap needs loop.direction reverse: write direction: reverse or overlap: false\n"
              "    loop: {direction: forward}\n"
              "                      ^~~~~~~\n"
              "t.yaml:3:21: note: pipeline.overlap is true here\n"
              "    pipeline: {overlap: true}\n"
              "                        ^~~~\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_90a", WGMMA "numerics: {rescale: lazy}\n",
              "t.yaml:3:21: error: numerics.rescale lazy is not available with mma.family wgmma yet: write always\n"
              "    numerics: {rescale: lazy}\n"
              "                        ^~~~\n",
              ATTNGEN_E_UNSUPPORTED);
}

static void test_softmax_laws(void **state) {
    (void)state;
    refuse_on("sm_90a", WGMMA "pipeline: {overlap: false}\nnumerics: {softmax: speculative}\nloop: {form: peeled}\n",
              "t.yaml:4:21: error: numerics.softmax speculative needs pipeline.overlap: true\n"
              "    numerics: {softmax: speculative}\n"
              "                        ^~~~~~~~~~~\n"
              "t.yaml:3:21: note: pipeline.overlap is false\n"
              "    pipeline: {overlap: false}\n"
              "                        ^~~~~\n",
              ATTNGEN_E_SPEC);
    refuse_on("sm_80", HEAD "numerics: {softmax: exact}\n",
              "t.yaml:2:21: error: numerics.softmax has no effect with mma.family mma_sync: every step looks for its maximum\n"
              "    numerics: {softmax: exact}\n"
              "                        ^~~~~\n"
              "note: mma.family is mma_sync by default\n",
              ATTNGEN_E_SPEC);
}

static void test_rule_values(void **state) {
    (void)state;
    static const struct {
        int D, Dv;
        bool score;
        const char *text;
        int m, n, consumer, producer;
    } row[] = {
        {64, 64, false, WGMMA, 128, 128, 232, 40},
        {64, 64, false, WGMMA "roles: {consumer: {warpgroups: 1}}\n", 64, 128, 240, 56},
        {64, 64, false, WGMMA "roles: {consumer: {warpgroups: 3}}\n", 192, 128, 160, 32},
        {64, 64, true, WGMMA "roles: {consumer: {warpgroups: 3}}\n", 192, 112, 160, 32},
        {64, 64, true, WGMMA "roles: {consumer: {warpgroups: 3}}\npipeline: {overlap: false}\n", 192, 128, 160, 32},
        {128, 128, true, WGMMA, 128, 128, 232, 40},
        {192, 192, false, WGMMA, 128, 80, 232, 40},
        {192, 128, false, WGMMA, 128, 112, 232, 40},
        {128, 192, false, WGMMA, 128, 112, 232, 40},
        {256, 256, false, WGMMA, 128, 48, 232, 40},
        {256, 256, true, WGMMA, 128, 48, 232, 40},
        {256, 256, false, WGMMA "grid: {persistent: none}\n", 128, 80, 232, 40}, /* O takes Q's place */
        {256, 256, false, WGMMA "staging: {o: {store: direct}}\n", 128, 80, 232, 40},
        {256, 256, false, WGMMA "staging: {k: {stages: 1}, v: {stages: 1}}\n", 128, 96, 232, 40},
        {128, 128, false, WGMMA "roles: {consumer: {regs: 240}}\n", 128, 128, 240, 24},
        {128, 128, false, WGMMA "roles: {producer: {regs: 56}}\n", 128, 128, 224, 56},
        {128, 128, false, WGMMA "roles: {producer: {regs: 24}}\n", 128, 128, 232, 24},
        {128, 128, false, WGMMA "roles: {consumer: {regs: 104}}\n", 128, 16, 104, 40},
    };
    for (int i = 0; i < LEN(row); i++) {
        Case c = case_of(row[i].D, "sm_90a", true);
        c.spec.Dv = row[i].Dv;
        c.spec.score = row[i].score ? &some_score : NULL;
        char *s = closed(ag_str(row[i].text), c);
        assert_int_equal(number_after(s, "  m: "), row[i].m);
        assert_int_equal(number_after(s, "  n: "), row[i].n);
        assert_int_equal(number_after(strstr(s, "  consumer:"), "    regs: "), row[i].consumer);
        assert_int_equal(number_after(strstr(s, "  producer:"), "    regs: "), row[i].producer);
        assert_null(strstr(s, "  warps:"));
        free(s);
    }
}

/* What persistent blocks are by rule, and how the others follow. */
static void test_persistent_rule(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool mask;
        const char *line;
    } row[] = {
        {WGMMA, true, "  persistent: dynamic       # rule: the spec has a mask, so tiles differ in length\n"},
        {WGMMA, false, "  persistent: static        # rule: the spec has no mask, so all tiles are equally long\n"},
        {WGMMA "grid: {persistent: auto, longest_first: false}\n", true, "  persistent: dynamic       # rule: the spec has a mask"},
        {WGMMA "grid: {persistent: static}\n", true, "  persistent: static        # file\n  fetch_ahead: 1            # default\n"},
        {WGMMA "grid: {persistent: dynamic, fetch_ahead: 16}\n", false, "  persistent: dynamic       # file\n  fetch_ahead: 16           # file\n"},
        {WGMMA "grid: {persistent: none}\n", true, "  persistent: none          # file\n  ctas_per_sm: 1            # default\n"},
    };
    for (int i = 0; i < LEN(row); i++) {
        char *s = closed(ag_str(row[i].text), case_of(64, "sm_90a", row[i].mask));
        if (!strstr(s, row[i].line)) fail_msg("row %d: %s", i, s);
        free(s);
    }
    for (int mask = 0; mask < 2; mask++) {
        char *s = closed(STR(HEAD), case_of(64, "sm_90a", mask));
        assert_null(strstr(s, "persistent"));
        assert_null(strstr(s, "fetch_ahead"));
        free(s);
    }
}

/* What a shipped wgmma schedule closes to fits an SM at every head dim that it is for. */
static void check_fits(Diag *d, uint16_t file, void *payload) {
    const Case *c = payload;
    Schedule *s = ag_schedule_read(d, file);
    const Target *t = ag_target_find(c->arch);
    ag_schedule_close(d, s, &c->spec, t);
    ag_stop_if_errors(d);
    const Field *f = s->f;
    int64_t m = f[F_TILE_M].v, n = f[F_TILE_N].v, D = (c->spec.D + 63) / 64 * 64, groups = f[F_CONSUMERS].v, k = f[F_K_STAGES].v, v = f[F_V_STAGES].v;
    assert_int_equal(f[F_WARPS].v, 4 * groups);
    assert_int_equal(m, 64 * groups);
    assert_true(n >= (s->default_for.elements ? 32 : 64) && n % 16 == 0);
    int64_t parts = f[F_O_PARTS].v, o = ag_own_output_tile(s, (int)D, (int)D) ? (D / 64 + parts - 1) / parts * 64 : 0;
    int64_t weights = f[F_P_OPERAND].v == WEIGHTS_SMEM ? (n + 63) / 64 * 64 : 0;
    assert_true(2 * m * (f[F_Q_STAGES].v * D + o + weights) + 2 * (k + v) * n * D + ag_barrier_bytes(s) <= t->shared_max);
    assert_true(128 * (f[F_REGS_LOAD].v + groups * f[F_REGS_MATH].v) <= t->regs_sm);
    assert_true(128 * (groups + 1) <= t->threads_block);
    assert_true(n / 2 + (weights ? 0 : n / 4) + D / 2 < f[F_REGS_MATH].v); /* scores, weights, output */
}

static void test_shipped_fit(void **state) {
    (void)state;
    const Shipped *shipped;
    int n = 0;
    for (size_t i = 0; (shipped = ag_shipped_schedule(i)); i++) {
        for (int D = 1; is_wgmma(shipped) && D <= 256; D++) {
            Case c = case_of(D, "sm_90a", true);
            attngen_status status;
            free(report_of((Str){shipped->text, shipped->len}, check_fits, &c, &status));
            assert_true(status == ATTNGEN_OK || status == ATTNGEN_E_UNSUPPORTED);
            n += status == ATTNGEN_OK;
        }
    }
    /* the default, an exact one, one that compiles fast, one for elements; to 64 one for few queries; above one with a fast tanh; to 128 one for one element, one for several branches, and
     * for a quick start one and one for elements */
    assert_int_equal(n, 4 * 256 + 64 + 64 + 4 * 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print),           cmocka_unit_test(test_print_reads_back),
        cmocka_unit_test(test_effect),          cmocka_unit_test(test_laws),
        cmocka_unit_test(test_softmax_laws),    cmocka_unit_test(test_rule_values),
        cmocka_unit_test(test_persistent_rule), cmocka_unit_test(test_shipped_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
