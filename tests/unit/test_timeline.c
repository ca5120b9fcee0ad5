/* The model behind `attngen show --timeline`: what a step asks of the engines, what overlaps with what, and how it is shown. */
#include "with_schedule.h"

#include <math.h>

#include "timeline.h"

static const char CAUSAL[] = "attention: a\nmask: k <= q\n";

/* A compilation under a shipped schedule, with one piece of its text replaced. */
static Compilation *shipped(const char *name, const char *arch, double D, const char *old, const char *new) {
    const attngen_dim dims[] = {{"D", D}, {NULL, 0}};
    attngen_source s;
    assert_int_equal(attngen_shipped_schedule(&s, name), ATTNGEN_OK);
    const char *at = old ? strstr(s.text, old) : s.text;
    assert_non_null(at);
    Buf text = {0};
    ag_putn(&text, s.text, (size_t)(at - s.text));
    if (old) ag_put(&text, "%s", new);
    at += old ? strlen(old) : 0;
    ag_putn(&text, at, s.len - (size_t)(at - s.text));
    Compilation *c =
        compile_raw(strstr(name, "pack_gqa") ? "attention: causal\nheads: {group: 8}\nmask: k <= q\n"
                    : strstr(name, "bias")   ? "attention: bias\ninputs: {t: {dtype: [b, h, q, k]}}\nscore: s + t[b, h, q, k]\nmask: k <= q\n"
                                             : CAUSAL,
                    text.s, arch, dims, NULL);
    ag_buf_free(&text);
    must_compile(c);
    return c;
}

static Timeline *model(const Compilation *c) {
    Timeline *t = ag_timeline(c->fn.kernel);
    assert_non_null(t);
    if (t->trouble) fail_msg("%s", t->trouble);
    return t;
}

static char *shown(const Compilation *c, bool svg) {
    Buf out = {0};
    assert_true(ag_show(&out, c->fn.kernel, svg));
    return out.s;
}

static int64_t field(const Compilation *c, FieldId f) { return c->fn.kernel->sched->f[f].v; }

/* ---- work */

static void test_tensor_work(void **state) {
    (void)state;
    static const struct {
        const char *schedule;
        int D;
    } row[] = {{"wgmma_d64", 64}, {"wgmma_d128", 128}, {"wgmma_d128_exact", 128}, {"wgmma_d256", 256}};
    for (int i = 0; i < LEN(row); i++) {
        Compilation *c = shipped(row[i].schedule, "sm_90a", row[i].D, NULL, NULL);
        Timeline *t = model(c);
        double m = (double)field(c, F_TILE_M), n = (double)field(c, F_TILE_N);
        assert_true(t->async_mma);
        assert_true(fabs(t->work[ENGINE_TENSOR] - 4 * m * n * row[i].D / 4096) < 1e-6);
        assert_true(t->work[ENGINE_EXP] > m * n / 16 - 1e-6); /* one for each score, some for the rows */
        assert_true(t->work[ENGINE_EXP] < m * n / 16 * 1.1);
        assert_true(fabs(t->work[ENGINE_COPY] - 2 * n * row[i].D * 2 / t->rates->per_clk[ENGINE_COPY]) < 1e-6);
        ag_timeline_free(t);
        ag_compilation_free(c);
    }
}

/* Both blocks of an SM count; mma.sync has a rate of its own. */
static void test_work_of_blocks(void **state) {
    (void)state;
    Compilation *c = shipped("mma_d128", "sm_90", 128, NULL, NULL);
    Timeline *t = model(c);
    double m = (double)field(c, F_TILE_M), n = (double)field(c, F_TILE_N);
    assert_int_equal(c->fn.kernel->per_sm, 2);
    assert_false(t->async_mma);
    assert_true(fabs(t->work[ENGINE_TENSOR] - 2 * 4 * m * n * 128 / t->rates->mma_sync) < 1e-6);
    ag_timeline_free(t);
    ag_compilation_free(c);
}

/* What the computing role of persistent blocks does for each tile. */
static Block *tile_body(Kernel *k) {
    Ins *i = k->role[0].body.first;
    while (i->op != TI_WHILE) i = i->next;
    return &i->body;
}

static void test_cost_of_maps(void **state) {
    (void)state;
    Compilation *c = shipped("wgmma_d128_exact", "sm_90a", 128, NULL, NULL);
    Kernel *k = c->fn.kernel;
    double clk[ENGINE_COUNT];
    Arena *a = ag_arena_new();
    int seen = 0;
    for (const Ins *l = tile_body(k)->first; l; l = l->next)
        for (const Ins *i = l->body.first; l->op == TI_LOOP && i; i = i->next) {
            if (i->op != TI_MAP || k->val[i->dst].space != SPACE_FRAG) continue;
            ag_cost(k, a, ag_rates(k->target), i, 4, 8, clk);
            bool exp = ag_has_exp(k, a, i->e[0]), masks = i->note && strstr(i->note, "hidden");
            if (exp) assert_true(clk[ENGINE_EXP] == 64 * 128 / 16.0);      /* half of the rows */
            if (!masks) assert_true(clk[ENGINE_FP32] == 64 * 128 / 128.0); /* a multiply-add, a product, a conversion */
            if (masks) assert_true(clk[ENGINE_FP32] > 2 * 64 * 128 / 128.0);
            seen += exp;
        }
    assert_int_equal(seen, 2);
    ag_arena_free(a);
    ag_compilation_free(c);
}

/* ---- order */

/* Clocks of the step in which an mma and an exponential of the first actor both run. */
static double mma_beside_exp(const Timeline *t) {
    double both = 0;
    for (int i = 0; i < t->nevent; i++)
        for (int j = 0; j < t->nevent; j++) {
            const Event *m = &t->event[i], *e = &t->event[j];
            if (m->actor != t->first || e->actor != t->first || m->track != TRACK_TENSOR || !e->exp) continue;
            both += fmax(0, fmin(fmin(m->to, e->to), t->to) - fmax(fmax(m->from, e->from), t->from));
        }
    return both;
}

static void test_overlap(void **state) {
    (void)state;
    static const char overlap[] = "overlap: true";
    Compilation *c = shipped("wgmma_d192_exact", "sm_90a", 192, NULL, NULL),
                *d = shipped("wgmma_d192_exact", "sm_90a", 192, overlap, "overlap: false");
    Timeline *with = model(c), *without = model(d);
    assert_true(mma_beside_exp(with) > with->work[ENGINE_EXP] / 2);
    assert_true(mma_beside_exp(without) == 0);
    assert_true(with->clk < without->clk);
    assert_true(fabs(without->clk - without->work[ENGINE_TENSOR]) > without->work[ENGINE_EXP] - 1); /* one after the other */
    ag_timeline_free(with), ag_timeline_free(without);
    ag_compilation_free(c), ag_compilation_free(d);
}

static void test_speculation(void **state) {
    (void)state;
    Compilation *c = shipped("wgmma_d192_exact", "sm_90a", 192, NULL, NULL), *d = shipped("wgmma_d192", "sm_90a", 192, NULL, NULL);
    Timeline *exact = model(c), *speculative = model(d);
    assert_true(speculative->clk < exact->clk);
    assert_true(speculative->work[ENGINE_FP32] < exact->work[ENGINE_FP32]);
    ag_timeline_free(exact), ag_timeline_free(speculative);
    ag_compilation_free(c), ag_compilation_free(d);
}

/* One warpgroup's softmax beside another's products. */
static void test_turns(void **state) {
    (void)state;
    Compilation *c = shipped("wgmma_d64", "sm_90a", 64, "turns: true", "turns: false"), *d = shipped("wgmma_d64", "sm_90a", 64, NULL, NULL);
    Timeline *together = model(c), *turns = model(d);
    assert_int_equal(together->actor[1].like, 0);
    assert_int_equal(turns->actor[1].like, -1);
    assert_true(turns->clk < together->clk);
    ag_timeline_free(together), ag_timeline_free(turns);
    ag_compilation_free(c), ag_compilation_free(d);
}

/* What ends a wait is what the wait is for. */
static void test_edges(void **state) {
    (void)state;
    Compilation *c = shipped("wgmma_d128", "sm_90a", 128, NULL, NULL);
    Timeline *t = model(c);
    int full = 0, empty = 0;
    for (int i = 0; i < t->nevent; i++) {
        const Event *e = &t->event[i];
        if (e->ins->op != TI_WAIT_BAR || e->to == HUGE_VAL) continue;
        const Event *cause = &t->event[e->cause];
        assert_true(e->since <= e->to);
        assert_int_equal(cause->stage, e->stage);
        if (t->actor[e->actor].role->one_thread) {
            assert_int_equal(cause->ins->op, TI_ARRIVE);
            assert_int_equal(cause->ins->n, e->ins->n);
            empty++;
        } else {
            assert_int_equal(cause->ins->op, TI_COPY);
            assert_int_equal(cause->ins->bar, e->ins->n);
            full++;
        }
    }
    assert_true(full >= 4 && empty >= 2); /* two warpgroups, K and V */
    ag_timeline_free(t);
    ag_compilation_free(c);
}

/* A stage is not filled while it is held or read, and is read only while it is held. */
static void check_stages(const Timeline *t) {
    for (int i = 0; i < t->nspan; i++)
        for (int j = 0; j < t->nspan; j++) {
            const StageSpan *a = &t->span[i], *b = &t->span[j];
            if (a->use != USE_FILL || b->use == USE_FILL || a->val != b->val || a->stage != b->stage) continue;
            assert_true(a->to <= b->from + 1e-3 || b->to <= a->from + 1e-3);
        }
}

static void test_all_shipped(void **state) {
    (void)state;
    for (size_t i = 0; attngen_shipped_schedule_name(i); i++) {
        const char *name = attngen_shipped_schedule_name(i), *arch = strncmp(name, "wgmma", 5) == 0 ? "sm_90a"
                                                                     : strstr(name, "small")        ? "sm_86"
                                                                                                    : "sm_80";
        if (strcmp(name, "mma_d256") == 0) arch = "sm_90";
        double D = strtod(strchr(name, 'd') + 1, NULL);
        Compilation *c = shipped(name, arch, D, NULL, NULL);
        Timeline *t = model(c);
        assert_true(t->clk >= t->work[ag_timeline_bound(t)] - 1e-3);
        assert_true(t->nspan > 0 && t->ntrack >= 3);
        double idle = 0;
        for (int x = 0; x < t->nidle; x++) idle += t->idle[x].clk;
        assert_true(idle < t->to - t->from);
        check_stages(t);
        ag_timeline_free(t);
        ag_compilation_free(c);
    }
}

/* Nobody arrives where the loading thread waits. */
static void test_deadlock(void **state) {
    (void)state;
    Compilation *c = shipped("wgmma_d128", "sm_90a", 128, NULL, NULL);
    Kernel *k = c->fn.kernel;
    for (Ins *l = tile_body(k)->first; l; l = l->next)
        for (Ins *i = l->body.first, *next; l->op == TI_LOOP && i; i = next) {
            next = i->next;
            if (i->op == TI_ARRIVE) ag_block_remove(&l->body, i);
        }
    Timeline *t = ag_timeline(k);
    assert_string_equal(t->trouble, "the roles wait for each other");
    ag_timeline_free(t);
    char *text = shown(c, false), *svg = shown(c, true);
    assert_non_null(strstr(text, "no steady state was found: the roles wait for each other\n\nshared memory: "));
    assert_non_null(strstr(svg, "the roles wait for each other"));
    free(text), free(svg);
    ag_compilation_free(c);
}

/* ---- what is shown */

static void test_text(void **state) {
    (void)state;
    Compilation *c = shipped("wgmma_d128", "sm_90a", 128, NULL, NULL);
    char *text = shown(c, false), *again = shown(c, false);
    static const char *const holds[] = {"a_fwd for sm_90a under wgmma_d128: 128 queries by 128 keys a step, D 128, Dv 128, bf16\n",
                                        "A model, not a measurement",
                                        "tensor cores            4096 FLOP              2048",
                                        "at best 2048 (tensor cores)\n",
                                        "wait_bar K_full[1] parity 0",
                                        "; until 1024: arrive K_empty[0] by math 1\n",
                                        "take_turn turn                               ; until the turn is passed on\n",
                                        "shared memory: 229504 of 232448 bytes a block\n",
                                        "65536    32768  0 of 2  K: tiles of k, 128 x 128 bf16\n",
                                        "O: tile of o, 128 x 128 bf16\n",
                                        "math         8       64       64       32      160      232     59392\n",
                                        "64512 of 65536 on an SM\n"};
    for (int i = 0; i < LEN(holds); i++)
        if (!strstr(text, holds[i])) fail_msg("`%s` is missing in:\n%s", holds[i], text);
    assert_string_equal(text, again);
    free(text), free(again);
    ag_compilation_free(c);
}

static int count(const char *s, const char *what) {
    int n = 0;
    while ((s = strstr(s, what)) != NULL) n++, s++;
    return n;
}

static void test_svg(void **state) {
    (void)state;
    static const char *const name[] = {"wgmma_d128", "mma_d128"}, *const arch[] = {"sm_90a", "sm_90"};
    for (int i = 0; i < LEN(name); i++) {
        Compilation *c = shipped(name[i], arch[i], 128, NULL, NULL);
        char *svg = shown(c, true);
        assert_int_equal(strncmp(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39), 0);
        assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
        assert_int_equal(count(svg, "<g>"), count(svg, "</g>"));
        assert_int_equal(count(svg, "<text "), count(svg, "</text>"));
        assert_int_equal(count(svg, "<script") + count(svg, "href"), 0);
        assert_non_null(strstr(svg, "S = Q K"));
        assert_null(strstr(svg, " < ")); /* is written &lt; */
        free(svg);
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_work),  cmocka_unit_test(test_work_of_blocks),
        cmocka_unit_test(test_cost_of_maps), cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_speculation),  cmocka_unit_test(test_turns),
        cmocka_unit_test(test_edges),        cmocka_unit_test(test_all_shipped),
        cmocka_unit_test(test_deadlock),     cmocka_unit_test(test_text),
        cmocka_unit_test(test_svg),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
