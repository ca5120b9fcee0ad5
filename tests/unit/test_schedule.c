/* Schedules: reading, rules, laws, printing, and the shipped files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "with_closing.h"

static void refuse_as(const char *text, const char *want, attngen_status want_status) { refuse_on("sm_80", text, want, want_status); }
static void refuse(const char *text, const char *want) { refuse_as(text, want, ATTNGEN_E_SPEC); }

static void test_print(void **state) {
    (void)state;
    prints(HEAD, case_of(128, "sm_80", true),
           "schema: attngen.schedule/1\n"
           "target:\n"
           "  arch: [sm_80, sm_86, sm_89, sm_90, sm_90a]\n"
           "applies_to:\n"
           "  head_dim: {min: 1, max: 256}\n"
           "tile:\n"
           "  m: 128                    # rule: the most rows up to 128 that fit: 65536 of 166912 bytes of shared memory and about 248 of 255 "
           "registers\n"
           "  n: 64                     # rule: 128 keys for head dims to 64, else 64 (for dims between powers of two 96 and 48), less by 16 until "
           "they fit: 65536 of 166912 bytes of shared "
           "memory "
           "and about 248 of 255 registers\n"
           "  pack_gqa: false           # default\n"
           "mma:\n"
           "  family: mma_sync          # default\n"
           "  q_operand: smem           # default\n"
           "roles:\n"
           "  warps: 4                  # default\n"
           "staging:\n"
           "  k:\n"
           "    stages: 1               # rule: mma_sync: small blocks, so that two fit on an SM\n"
           "  v:\n"
           "    stages: 1               # rule: mma_sync: small blocks, so that two fit on an SM\n"
           "  o:\n"
           "    store: smem             # default\n"
           "pipeline:\n"
           "  acquire: each             # default\n"
           "loop:\n"
           "  form: flagged             # default\n"
           "  direction: reverse        # default\n"
           "grid:\n"
           "  order: [m, h, b]          # default\n"
           "  longest_first: true       # rule: the spec has a mask, so tiles differ in length\n"
           "  group_mb: 32              # rule: tiles differ in length, so heads are walked together; 32 MB of K and V stay in L2\n"
           "  ctas_per_sm: 1            # default\n"
           "numerics:\n"
           "  rescale: always           # default\n"
           "  tanh: exact               # default\n");
    prints(HEAD "name: x-1.b\nnotes: \"a \\\"b\\\" \\\\ \\n\\x1b \\u2028 \\u20ac\"\ntarget: {arch: [sm_90, sm_80]}\napplies_to: {head_dim: {min: 3, "
                "max: 64}}\n"
                "tile: {m: auto, n: 32}\nmma: {q_operand: auto}\nroles: {warps: 2}\nstaging: {k: {stages: 2}, v: {stages: 2}}\npipeline: {acquire: "
                "together}\n"
                "grid: {order: [b, h, m], longest_first: true}\nnumerics: {rescale: lazy}\n",
           case_of(33, "sm_90", false),
           "schema: attngen.schedule/1\n"
           "name: \"x-1.b\"\n"
           "notes: \"a \\\"b\\\" \\\\ \\n\\x1B \\L \xE2\x82\xAC\"\n"
           "target:\n"
           "  arch: [sm_80, sm_90]\n"
           "applies_to:\n"
           "  head_dim: {min: 3, max: 64}\n"
           "tile:\n"
           "  m: 128                    # rule: the most rows up to 128 that fit: 24576 of 232448 bytes of shared memory and about 216 of 255 "
           "registers\n"
           "  n: 32                     # file\n"
           "  pack_gqa: false           # default\n"
           "mma:\n"
           "  family: mma_sync          # default\n"
           "  q_operand: smem           # rule: the field's default\n"
           "roles:\n"
           "  warps: 2                  # file\n"
           "staging:\n"
           "  k:\n"
           "    stages: 2               # file\n"
           "  v:\n"
           "    stages: 2               # file\n"
           "  o:\n"
           "    store: smem             # default\n"
           "pipeline:\n"
           "  acquire: together         # file\n"
           "loop:\n"
           "  form: flagged             # default\n"
           "  direction: reverse        # default\n"
           "grid:\n"
           "  order: [b, h, m]          # file\n"
           "  longest_first: true       # file\n"
           "  group_mb: 0               # rule: grid.order does not begin with m, so heads are not walked tile by tile\n"
           "  ctas_per_sm: 1            # default\n"
           "numerics:\n"
           "  rescale: lazy             # file\n"
           "  tanh: exact               # default\n");
}

/* Its score is a load of an element for each key. */
static void with_element(Spec *spec) {
    static Ast key = {.op = OP_AXIS, .type = T_INT, .index = AX_K}, *sub[] = {&key}, load = {.op = OP_LOAD, .type = T_FLOAT, .sub = sub, .nsub = 1};
    static Input row;
    row = (Input){.type = DT_BF16, .storage = true, .rank = 1, .dim = {{.kind = DIM_AXIS, .axis = AX_K}}};
    spec->input = &row;
    spec->ninput = 1;
    spec->score = &load;
}

static void test_print_reads_back(void **state) {
    (void)state;
    expect_stable(STR(HEAD), case_of(64, "sm_86", false));
    expect_stable(STR(HEAD "grid: {group_mb: 7}\nnumerics: {rescale: lazy}\n"), case_of(64, "sm_86", false));
    expect_stable(STR(HEAD "notes: \"\\x85 \\u2029 \\uFEFF \\uFFFE \\t \\x7f \\xa0 caf\\xe9 # no comment\"\n"), case_of(64, "sm_86", false));
    const Shipped *shipped;
    for (size_t i = 0; (shipped = ag_shipped_schedule(i)); i++) {
        Str text = {shipped->text, shipped->len};
        const char *arch = is_wgmma(shipped)                 ? "sm_90a"
                           : strstr(shipped->name, "_small") ? "sm_86"
                           : strstr(shipped->name, "_wide")  ? "sm_80"
                                                             : "sm_90";
        int D = number_after(shipped->name, "_d");
        for (int masked = 0; masked < 2; masked++) {
            Case c = case_of(D, arch, masked);
            c.spec.group = 8; /* for those that pack */
            if (strstr(shipped->name, "bias")) with_element(&c.spec);
            expect_stable(text, c);
        }
    }
}

/* ---- errors to the letter */

static void test_header(void **state) {
    (void)state;
    refuse("", "t.yaml:1:1: error: the schedule is empty, expected 'schema: attngen.schedule/1'\n"
               "    \n"
               "    ^\n");
    refuse("# nothing\n", "t.yaml:1:1: error: the schedule is empty, expected 'schema: attngen.schedule/1'\n"
                          "    # nothing\n"
                          "    ^\n");
    refuse("[1]\n", "t.yaml:1:1: error: the schedule: expected a map with schema, name, notes, target, applies_to, default_for, grid, "
                    "tile, mma, roles, staging, pipeline, loop, numerics\n"
                    "    [1]\n"
                    "    ^~~\n");
    refuse("tile: {m: 64}\n", "t.yaml:1:1: error: schema is missing: write 'schema: attngen.schedule/1' first\n"
                              "    tile: {m: 64}\n"
                              "    ^~~~~~~~~~~~~\n");
    refuse("schema: attngen.schedule/2\n", "t.yaml:1:9: error: schema: expected attngen.schedule/1, found attngen.schedule/2\n"
                                           "    schema: attngen.schedule/2\n"
                                           "            ^~~~~~~~~~~~~~~~~~\n");
    refuse("schema: [1]\n", "t.yaml:1:9: error: schema: expected attngen.schedule/1, found something else\n"
                            "    schema: [1]\n"
                            "            ^~~\n");
    refuse(HEAD "name: ../x\n", "t.yaml:2:7: error: name: expected 1 to 64 letters, digits, '_', '-' or '.'\n"
                                "    name: ../x\n"
                                "          ^~~~\n");
    refuse(HEAD "name: [a]\nnotes: {a: b}\n", "t.yaml:2:7: error: name: expected 1 to 64 letters, digits, '_', '-' or '.'\n"
                                              "    name: [a]\n"
                                              "          ^~~\n"
                                              "t.yaml:3:8: error: notes: expected text\n"
                                              "    notes: {a: b}\n"
                                              "           ^~~~~~\n");
    refuse(HEAD "target: {arch: sm_80}\n", "t.yaml:2:16: error: target.arch: expected a list of architectures, such as [sm_80]\n"
                                           "    target: {arch: sm_80}\n"
                                           "                   ^~~~~\n");
    refuse(HEAD "target: {arch: []}\n", "t.yaml:2:16: error: target.arch: expected a list of architectures, such as [sm_80]\n"
                                        "    target: {arch: []}\n"
                                        "                   ^~\n");
    refuse(HEAD "target: {arch: [sm_80, sm_80, sm_90b, volta]}\n",
           "t.yaml:2:24: error: target.arch: sm_80 is listed twice\n"
           "    target: {arch: [sm_80, sm_80, sm_90b, volta]}\n"
           "                           ^~~~~\n"
           "t.yaml:2:31: error: target.arch: expected sm_80, sm_86, sm_89, sm_90 or sm_90a, found 'sm_90b'; did you mean 'sm_90'?\n"
           "    target: {arch: [sm_80, sm_80, sm_90b, volta]}\n"
           "                                  ^~~~~~\n"
           "t.yaml:2:39: error: target.arch: expected sm_80, sm_86, sm_89, sm_90 or sm_90a, found 'volta'\n"
           "    target: {arch: [sm_80, sm_80, sm_90b, volta]}\n"
           "                                          ^~~~~\n");
    refuse(HEAD "applies_to: {head_dim: {min: 65, max: 64}}\n", "t.yaml:2:39: error: applies_to.head_dim: min <= max does not hold: 65 > 64\n"
                                                                "    applies_to: {head_dim: {min: 65, max: 64}}\n"
                                                                "                                          ^~\n");
    refuse(HEAD "applies_to: {head_dim: {min: 0, max: 257}}\n",
           "t.yaml:2:30: error: applies_to.head_dim.min: 0 is out of range, expected 1 to 256\n"
           "    applies_to: {head_dim: {min: 0, max: 257}}\n"
           "                                 ^\n"
           "t.yaml:2:38: error: applies_to.head_dim.max: 257 is out of range, expected 1 to 256\n"
           "    applies_to: {head_dim: {min: 0, max: 257}}\n"
           "                                         ^~~\n");
    refuse(HEAD "grid: {order: [m, h, h]}\n", "t.yaml:2:15: error: grid.order: expected m, h and b, each once, fastest first, such as [m, h, b]\n"
                                              "    grid: {order: [m, h, h]}\n"
                                              "                  ^~~~~~~~~\n");
    refuse(HEAD "grid: {order: [m, h]}\n", "t.yaml:2:15: error: grid.order: expected m, h and b, each once, fastest first, such as [m, h, b]\n"
                                           "    grid: {order: [m, h]}\n"
                                           "                  ^~~~~~\n");
    refuse(HEAD "grid: {order: [m, h, k]}\n", "t.yaml:2:22: error: grid.order: expected m, h or b, found 'k'\n"
                                              "    grid: {order: [m, h, k]}\n"
                                              "                         ^\n");
}

static void test_default_for(void **state) {
    (void)state;
    static const char text[] = HEAD "default_for: {queries: {max: 7}, masked: true, dtype: [bf16, f16]}\n";
    char *printed = closed(STR(text), case_of(64, "sm_80", true));
    assert_non_null(strstr(printed, "default_for:\n  dtype: [f16, bf16]\n  masked: true\n  queries: {max: 7}\ntile:\n"));
    free(printed);
    expect_stable(STR(text), case_of(64, "sm_80", true));
}

static void test_keys(void **state) {
    (void)state;
    refuse(HEAD "tiel: {m: 64}\n", "t.yaml:2:1: error: unknown key 'tiel' in the schedule; did you mean 'tile'?\n"
                                   "    tiel: {m: 64}\n"
                                   "    ^~~~\n");
    refuse(HEAD "tile: {M: 64, q: 3}\nstaging: {k: {stage: 2}, q: {stages: 1}, p: 1}\n",
           "t.yaml:2:8: error: unknown key 'M' in tile; did you mean 'm'?\n"
           "    tile: {M: 64, q: 3}\n"
           "           ^\n"
           "t.yaml:2:15: error: unknown key 'q' in tile\n"
           "    tile: {M: 64, q: 3}\n"
           "                  ^\n"
           "t.yaml:3:42: error: unknown key 'p' in staging\n"
           "    staging: {k: {stage: 2}, q: {stages: 1}, p: 1}\n"
           "                                             ^\n"
           "t.yaml:3:15: error: unknown key 'stage' in staging.k; did you mean 'stages'?\n"
           "    staging: {k: {stage: 2}, q: {stages: 1}, p: 1}\n"
           "                  ^~~~~\n");
    refuse(HEAD "tile: 64\nstaging: {k: 2}\nmma:\n", "t.yaml:2:7: error: tile: expected a map with m, n, pack_gqa\n"
                                                     "    tile: 64\n"
                                                     "          ^~\n"
                                                     "t.yaml:3:14: error: staging.k: expected a map with stages\n"
                                                     "    staging: {k: 2}\n"
                                                     "                 ^\n"
                                                     "t.yaml:4:5: error: mma: expected a map with family, q_operand, p_operand\n"
                                                     "    mma:\n"
                                                     "        ^\n");
}

static void test_values(void **state) {
    (void)state;
    refuse(HEAD "tile: {m: 100, n: 300}\n", "t.yaml:2:11: error: tile.m % 16 == 0 does not hold: 100 % 16 = 4; nearest legal value 96\n"
                                            "    tile: {m: 100, n: 300}\n"
                                            "              ^~~\n"
                                            "t.yaml:2:19: error: 16 <= tile.n <= 256 does not hold: found 300; nearest legal value 256\n"
                                            "    tile: {m: 100, n: 300}\n"
                                            "                      ^~~\n");
    refuse(HEAD "tile: {m: 8, n: 255}\n", "t.yaml:2:11: error: 16 <= tile.m <= 256 does not hold: found 8; nearest legal value 16\n"
                                          "    tile: {m: 8, n: 255}\n"
                                          "              ^\n"
                                          "t.yaml:2:17: error: tile.n % 16 == 0 does not hold: 255 % 16 = 15; nearest legal value 256\n"
                                          "    tile: {m: 8, n: 255}\n"
                                          "                    ^~~\n");
    refuse(HEAD "tile: {m: -9999999999999, n: '64'}\n",
           "t.yaml:2:11: error: 16 <= tile.m <= 256 does not hold: found -9999999999999; nearest legal value 16\n"
           "    tile: {m: -9999999999999, n: '64'}\n"
           "              ^~~~~~~~~~~~~~\n"
           "t.yaml:2:31: error: tile.n: expected an integer, found text in quotes: remove the quotes\n"
           "    tile: {m: -9999999999999, n: '64'}\n"
           "                                  ^~\n");
    refuse(HEAD "tile: {m: 99999999999999999999, n: 9223372036854775807}\n",
           "t.yaml:2:11: error: tile.m: 99999999999999999999 is out of range, expected 16 to 256\n"
           "    tile: {m: 99999999999999999999, n: 9223372036854775807}\n"
           "              ^~~~~~~~~~~~~~~~~~~~\n"
           "t.yaml:2:36: error: tile.n: 9223372036854775807 is out of range, expected 16 to 256\n"
           "    tile: {m: 99999999999999999999, n: 9223372036854775807}\n"
           "                                       ^~~~~~~~~~~~~~~~~~~\n");
    refuse(HEAD "tile: {m: 'auto'}\n", "t.yaml:2:12: error: tile.m: expected an integer, found text in quotes: remove the quotes\n"
                                       "    tile: {m: 'auto'}\n"
                                       "               ^~~~\n");
    refuse(HEAD "staging: {k: {stages: 0}, o: {store: smen}}\n",
           "t.yaml:2:23: error: 1 <= staging.k.stages <= 4 does not hold: found 0; nearest legal value 1\n"
           "    staging: {k: {stages: 0}, o: {store: smen}}\n"
           "                          ^\n"
           "t.yaml:2:38: error: staging.o.store: expected smem, direct or tma, found 'smen'; did you mean 'smem'?\n"
           "    staging: {k: {stages: 0}, o: {store: smen}}\n"
           "                                         ^~~~\n");
    refuse(HEAD "grid: {longest_first: yes}\n", "t.yaml:2:23: error: grid.longest_first: expected true or false, found 'yes': write true\n"
                                                "    grid: {longest_first: yes}\n"
                                                "                          ^~~\n");
    refuse(HEAD "numerics: {rescale: [lazy]}\n", "t.yaml:2:21: error: numerics.rescale: expected a word, found a list\n"
                                                 "    numerics: {rescale: [lazy]}\n"
                                                 "                        ^~~~~~\n");
}

static void test_laws(void **state) {
    (void)state;
    refuse(HEAD "tile: {m: 96}\n", "t.yaml:2:11: error: tile.m % (16 * roles.warps) == 0 does not hold: 96 % (16 * 4) = 32; nearest legal value 128\n"
                                   "    tile: {m: 96}\n"
                                   "              ^~\n"
                                   "note: roles.warps is 4 by default\n");
    refuse(HEAD "tile:\n  m: 112\nroles:\n  warps: 8\n",
           "t.yaml:3:6: error: tile.m % (16 * roles.warps) == 0 does not hold: 112 % (16 * 8) = 112; nearest legal value 128\n"
           "      m: 112\n"
           "         ^~~\n"
           "t.yaml:5:10: note: roles.warps is 8 here\n"
           "      warps: 8\n"
           "             ^\n");
    refuse(HEAD "tile: {m: 16}\nroles: {warps: 16}\n",
           "t.yaml:2:11: error: tile.m % (16 * roles.warps) == 0 does not hold: 16 % (16 * 16) = 16; nearest legal value 256\n"
           "    tile: {m: 16}\n"
           "              ^~\n"
           "t.yaml:3:16: note: roles.warps is 16 here\n"
           "    roles: {warps: 16}\n"
           "                   ^~\n");
    refuse(HEAD "pipeline: {acquire: together}\n",
           "t.yaml:2:21: error: staging.k.stages >= 2 does not hold, which pipeline.acquire: together needs: found 1; nearest legal value 2\n"
           "    pipeline: {acquire: together}\n"
           "                        ^~~~~~~~\n"
           "note: staging.k.stages is 1 by rule\n"
           "t.yaml:2:21: error: staging.v.stages >= 2 does not hold, which pipeline.acquire: together needs: found 1; nearest legal value 2\n"
           "    pipeline: {acquire: together}\n"
           "                        ^~~~~~~~\n"
           "note: staging.v.stages is 1 by rule\n");
    refuse(HEAD "staging:\n  k: {stages: 2}\n  v: {stages: 1}\npipeline: {acquire: together}\n",
           "t.yaml:5:21: error: staging.v.stages >= 2 does not hold, which pipeline.acquire: together needs: found 1; nearest legal value 2\n"
           "    pipeline: {acquire: together}\n"
           "                        ^~~~~~~~\n"
           "t.yaml:4:15: note: staging.v.stages is 1 here\n"
           "      v: {stages: 1}\n"
           "                  ^\n");
}

static void test_group_law(void **state) {
    (void)state;
    refuse(HEAD "grid:\n  order: [h, m, b]\n  group_mb: 16\n",
           "t.yaml:4:13: error: grid.group_mb > 0 needs m first in grid.order, since a group of heads is walked tile by tile: write group_mb: 0 or "
           "order: [m, h, b]\n"
           "      group_mb: 16\n"
           "                ^~\n"
           "t.yaml:3:10: note: grid.order begins with h here\n"
           "      order: [h, m, b]\n"
           "             ^~~~~~~~~\n");
    free(closed(STR(HEAD "grid: {order: [b, m, h], group_mb: 0}\n"), case_of(64, "sm_80", true)));
    free(closed(STR(HEAD "grid: {order: [m, b, h], group_mb: 1024}\n"), case_of(64, "sm_80", false)));
}

static void test_unsupported(void **state) {
    (void)state;
    refuse_as(HEAD "target:\n  arch: [sm_86, sm_89]\n",
              "t.yaml:3:9: error: this schedule is for sm_86, sm_89, not for sm_80\n      arch: [sm_86, sm_89]\n            ^~~~~~~~~~~~~~\n",
              ATTNGEN_E_UNSUPPORTED);
    refuse_as(HEAD "applies_to: {head_dim: {max: 64}}\n",
              "t.yaml:2:30: error: this schedule is for head dims 1 to 64, and max(D, Dv) is 128\n    applies_to: {head_dim: {max: 64}}\n            "
              "                     ^~\n",
              ATTNGEN_E_UNSUPPORTED);
    refuse_as(HEAD "roles: {warps: 16}\ngrid: {ctas_per_sm: 8}\n",
              "t.yaml:3:21: error: grid.ctas_per_sm * 32 * roles.warps <= 2048 (threads per SM of sm_80) does not hold: 8 * 512 = 4096; nearest "
              "legal value 4\n    grid: {ctas_per_sm: 8}\n                        ^\nt.yaml:2:16: note: roles.warps is 16 here\n    roles: {warps: "
              "16}\n                   ^~\n",
              ATTNGEN_E_UNSUPPORTED);
}

/* ---- rules */

/* For every head dim, arch and warps the rules give a tile that obeys the laws (closed asserts that) and fits shared memory where one can. */
static void test_rules_fit(void **state) {
    (void)state;
    for (size_t i = 0; ag_target_at(i); i++) {
        const Target *t = ag_target_at(i);
        for (int D = 1; D <= 256; D += 15) {
            for (int warps = 1; warps <= 8; warps *= 2) {
                char text[100];
                snprintf(text, sizeof text, HEAD "roles: {warps: %d}\n", warps);
                char *s = closed(ag_str(text), case_of(D, t->name, true));
                int m = number_after(s, "  m: "), n = number_after(s, "  n: "), Dp = (D + 15) / 16 * 16;
                assert_true(m % (16 * warps) == 0 && n % 16 == 0 && n >= 16);
                assert_true(2 * Dp * (m + 2 * n) <= t->shared_max);
                assert_true(m * (n + Dp) / (32 * warps) < 255);
                free(s);
            }
        }
    }
}

static void test_rule_values(void **state) {
    (void)state;
    static const struct {
        int D;
        const char *arch, *text;
        int m, n;
    } row[] = {
        {64, "sm_80", HEAD, 128, 128},
        {128, "sm_80", HEAD, 128, 64},
        {128, "sm_86", HEAD, 128, 64},
        {256, "sm_80", HEAD "roles: {warps: 8}\n", 128, 64},
        {256, "sm_86", HEAD, 64, 64},
        {128, "sm_80", HEAD "tile: {n: 128}\n", 64, 128},
        {128, "sm_80", HEAD "tile: {m: 64}\n", 64, 64},
    };
    for (int i = 0; i < LEN(row); i++) {
        char *s = closed(ag_str(row[i].text), case_of(row[i].D, row[i].arch, true));
        assert_int_equal(number_after(s, "  m: "), row[i].m);
        assert_int_equal(number_after(s, "  n: "), row[i].n);
        free(s);
    }
}

static void test_group_rule(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool mask;
        int group;
    } row[] = {
        {HEAD, true, 32},
        {HEAD, false, 0},
        {HEAD "grid: {longest_first: true, group_mb: auto}\n", false, 32},
        {HEAD "grid: {longest_first: false}\n", true, 0},
        {HEAD "grid: {order: [m, b, h]}\n", true, 32},
        {HEAD "grid: {order: [h, m, b]}\n", true, 0},
        {HEAD "grid: {group_mb: 5}\n", false, 5},
    };
    for (int i = 0; i < LEN(row); i++) {
        char *s = closed(ag_str(row[i].text), case_of(64, "sm_80", row[i].mask));
        assert_int_equal(number_after(s, "  group_mb: "), row[i].group);
        free(s);
    }
}

/* ---- what is shipped */

static void check_name(Diag *d, uint16_t file, void *payload) {
    const Schedule *s = ag_schedule_read(d, file);
    assert_non_null(s);
    assert_true(ag_str_is(s->name, payload));
}

static void test_shipped_names(void **state) {
    (void)state;
    const Shipped *shipped, *last = NULL;
    size_t n = 0;
    for (; (shipped = ag_shipped_schedule(n)); n++) {
        char *errors = report_of((Str){shipped->text, shipped->len}, check_name, (void *)(uintptr_t)shipped->name, NULL);
        assert_string_equal(errors, "");
        free(errors);
        assert_true(!last || strcmp(last->name, shipped->name) < 0);
        last = shipped;
    }
    assert_true(n >= 10);
}

/* What a launch of so many queries gets without a schedule of the user's; -1: of a number that is not known. */
static const char *default_of(const Target *t, int D, DType dtype, bool mask, int64_t queries) {
    Spec spec = {.D = D, .Dv = D / 2 + 1, .dtype = dtype, .mask = mask ? &some_mask : NULL}, turned = spec;
    turned.D = spec.Dv, turned.Dv = spec.D;
    const char *name = ag_schedule_default(&spec, t, queries);
    assert_non_null(name);
    assert_string_equal(name, ag_schedule_default(&turned, t, queries));
    return name;
}

static void test_default_of_mma_sync(void **state) {
    (void)state;
    static const struct {
        const char *arch, *wide, *widest; /* above 64, above 128 */
    } row[] = {{"sm_80", "mma_d128", "mma_d256_wide"},
               {"sm_86", "mma_d128_small", "mma_d256_small"},
               {"sm_89", "mma_d128_small", "mma_d256_small"},
               {"sm_90", "mma_d128", "mma_d256"}};
    for (int i = 0; i < LEN(row); i++)
        for (int n = 1; n <= 2 * 256; n++) {
            int D = (n + 1) / 2;
            const char *name = default_of(ag_target_find(row[i].arch), D, n % 2 ? DT_BF16 : DT_F16, D % 3 == 0, D % 2 ? -1 : 100);
            assert_string_equal(name, D <= 64 ? "mma_d64" : D <= 128 ? row[i].wide : row[i].widest);
        }
    Spec too_wide = {.D = 257, .Dv = 64};
    assert_null(ag_schedule_default(&too_wide, ag_target_find("sm_80"), -1));
}

static void test_default_of_wgmma(void **state) {
    (void)state;
    const Target *t = ag_target_find("sm_90a");
    for (int D = 1; D <= 256; D++) {
        char bf16[32], f16[32];
        int top = D <= 64 ? 64 : D <= 128 ? 128 : D <= 192 ? 192 : 256;
        snprintf(bf16, sizeof bf16, "wgmma_d%d", top);
        snprintf(f16, sizeof f16, "wgmma_d%d_exact", top);
        for (int mask = 0; mask < 2; mask++) {
            const char *few = mask && top == 64 ? "wgmma_d64_short" : bf16;
            assert_string_equal(default_of(t, D, DT_BF16, mask, -1), bf16);
            assert_string_equal(default_of(t, D, DT_BF16, mask, 2049), bf16);
            assert_string_equal(default_of(t, D, DT_BF16, mask, 2048), few);
            assert_string_equal(default_of(t, D, DT_BF16, mask, 0), few);
            assert_string_equal(default_of(t, D, DT_F16, mask, 2048), f16);
            assert_string_equal(default_of(t, D, DT_F16, mask, -1), f16);
        }
    }
}

static bool is_peeled(const Shipped *shipped) { return strstr(shipped->name, "_peeled"); }

/* Of mma_sync, both forms of the loop and both ways to rescale are shipped for every arch but sm_90a, which has schedules of its own. */
static void test_both_forms_are_shipped(void **state) {
    (void)state;
    for (size_t a = 0; ag_target_at(a); a++) {
        const char *arch = ag_target_at(a)->name;
        if (ag_target_at(a)->has_wgmma) continue;
        unsigned forms = 0;
        const Shipped *shipped;
        for (size_t i = 0; (shipped = ag_shipped_schedule(i)); i++) {
            Case c = case_of(64, arch, true);
            free(report_of((Str){shipped->text, shipped->len}, close_and_print, &c, NULL));
            if (!c.printed.s) continue;
            assert_int_equal(is_peeled(shipped), strstr(c.printed.s, "form: peeled") != NULL);
            assert_int_equal(is_peeled(shipped), strstr(c.printed.s, "rescale: always") != NULL);
            forms |= 1u << is_peeled(shipped);
            ag_buf_free(&c.printed);
        }
        assert_int_equal(forms, 3);
    }
}

static void test_targets(void **state) {
    (void)state;
    assert_null(ag_target_find("sm_90b"));
    assert_null(ag_target_find(""));
    assert_true(ag_target_find("sm_90a")->has_wgmma);
    assert_false(ag_target_find("sm_90")->has_wgmma);
    assert_int_equal(ag_target_find("sm_89")->blocks_sm, 24);
    static const struct {
        int sm;
        const char *name;
    } device[] = {{80, "sm_80"}, {86, "sm_86"}, {87, "sm_86"}, {89, "sm_89"}, {90, "sm_90a"}, {91, "sm_90"}};
    for (int i = 0; i < LEN(device); i++) assert_string_equal(ag_target_of_device(device[i].sm)->name, device[i].name);
    assert_null(ag_target_of_device(75));
    assert_null(ag_target_of_device(100));
    for (size_t i = 0; ag_target_at(i); i++) {
        const Target *t = ag_target_at(i);
        char name[16];
        snprintf(name, sizeof name, "sm_%d%s", t->sm, t->has_wgmma ? "a" : "");
        assert_string_equal(t->name, name);
        assert_ptr_equal(ag_target_find(name), t);
        assert_int_equal(t->shared_sm - t->shared_max, 1024);
    }
}

/* Every field has a row that is whole. */
static void test_fields(void **state) {
    (void)state;
    for (int i = 0; i < F_COUNT; i++) {
        const FieldInfo *f = &ag_field[i];
        assert_non_null(strchr(f->path, '.'));
        assert_true(strlen(f->doc) > 10);
        assert_true(f->deflt == FIELD_AUTO || (f->deflt >= (f->kind == FIELD_INT ? f->min : 0) && f->deflt <= (f->kind == FIELD_INT ? f->max : 9)));
        assert_int_equal(f->kind == FIELD_ENUM, *f->names != 0);
        assert_true(f->step > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_print_reads_back),
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_default_for),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_laws),
        cmocka_unit_test(test_group_law),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_rules_fit),
        cmocka_unit_test(test_rule_values),
        cmocka_unit_test(test_group_rule),
        cmocka_unit_test(test_shipped_names),
        cmocka_unit_test(test_default_of_mma_sync),
        cmocka_unit_test(test_default_of_wgmma),
        cmocka_unit_test(test_both_forms_are_shipped),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
