/* test_joined.c: several branches as one kernel (loop.branches: fused): results under schedules of both kernel paths against the reference, that it is one kernel which
 * loads once what the branches share, what the simulator finds where a branch is treated wrongly, and what is refused. */
#include "with_archs.h"

#define SCHEMA "schema: attngen.schedule/1\n"

/* One that each path takes by its rules, and others by which products, tiles and outputs are ordered in other ways. */
static const struct {
    const char *arch, *text;
} schedule[] = {
    {"sm_80", SCHEMA "loop: {branches: fused}\n"},
    {"sm_80", SCHEMA "tile: {m: 64, n: 32}\nmma: {q_operand: regs}\nstaging: {k: {stages: 2}, v: {stages: 2}}\npipeline: {acquire: together}\n"
                     "loop: {form: peeled, branches: fused}\nnumerics: {rescale: lazy}\n"},
    {"sm_90a", SCHEMA "mma: {family: wgmma}\nloop: {branches: fused}\n"},
    {"sm_90a", SCHEMA "tile: {n: 32}\nmma: {family: wgmma}\npipeline: {overlap: false}\nloop: {form: peeled, direction: forward, branches: fused}\n"},
    {"sm_90a", SCHEMA "tile: {n: 32}\nmma: {family: wgmma, p_operand: smem}\nstaging: {q: {stages: 2}, o: {store: tma}}\npipeline: {turns: true}\n"
                      "loop: {branches: fused}\ngrid: {persistent: dynamic}\n"},
};

static Compilation *joined(const char *text, int which, const attngen_dim *dims, size_t n) {
    attngen_source s = {"spec.yaml", text, strlen(text)}, how = {"schedule.yaml", schedule[which].text, strlen(schedule[which].text)};
    Compilation *c = ag_compile_text(&s, &how, schedule[which].arch, dims, n, NULL);
    assert_non_null(c);
    must_compile(c);
    assert_int_equal(c->npart, 1);
    return c;
}

static void passes(const char *text, int Dv, int dtype, int group) {
    static const Case cases[] = {{.B = 2, .Hkv = 2, .Sq = 70, .Sk = 133, .offset = 63},
                                 {.B = 1, .Hkv = 1, .Sq = 5, .Sk = 3, .offset = -2},
                                 {.B = 1, .Hkv = 1, .Sq = 140, .Sk = 90, .offset = ATTNGEN_ALIGN_END, .layout = LAY_BSHD}};
    const attngen_dim dims[] = {{"D", 32}, {"Dv", Dv}, {"dtype", dtype}, {"group", group}};
    for (int i = 0; i < LEN(schedule); i++) {
        Compilation *c = joined(text, i, dims, 4);
        for (int n = 0; n < LEN(cases); n++) {
            Case shape = cases[n];
            shape.group = group;
            char *wrong = result(c, &shape, false);
            if (*wrong) fail_msg("schedule %d, case %d: %s\n%s", i, n, wrong, text);
            free(wrong);
        }
        ag_compilation_free(c);
    }
}

#define TWO "inputs: {q2: {dtype: [b, h, q, d]}, k2: {dtype: [b, g, k, d]}, l: {f32: [h]}}\n"

/* Queries and keys of its own for each, the same values. */
static void test_differential(void **state) {
    (void)state;
    static const char text[] = "attention: t\n" TWO "branches:\n  a: {mask: k <= q}\n  c: {queries: q2, keys: k2, mask: k <= q}\n"
                               "output: rms_norm(a - l[h] * c, 1e-5)\n";
    passes(text, 64, ATTNGEN_BF16, 1);
    passes(text, 32, ATTNGEN_F16, 2);
}

/* The union of the keys is visited, and each branch sees its own; rows that one sees no key of, and the other does. */
static void test_masks(void **state) {
    (void)state;
    passes("attention: t\n" TWO
           "branches:\n  a: {mask: k <= q and q - k < 20}\n  c: {queries: q2, keys: k2, mask: k < q - 50}\noutput: a + l[h] * c\n",
           32, ATTNGEN_BF16, 1);
    passes("attention: t\nbranches:\n  a: {mask: k % 3 == 0}\n  c: {score: 0.5 * s}\n  e: {score: 8 * tanh(s / 8), mask: k > q}\noutput: a - c * e\n",
           32, ATTNGEN_BF16, 1);
    passes("attention: t\ninputs: {doc: {i32: [b, k]}}\nbranches:\n  a: {mask: 'doc[b, k] == doc[b, q]'}\n  c: {score: s - abs(q - k) / 8}\noutput: "
           "a - 0.5 * c\n",
           32, ATTNGEN_BF16, 1);
    passes("attention: t\nbranches:\n  a: {mask: k < 0}\n  c: {mask: k < 0, score: 2 * s}\noutput: a + c\n", 32, ATTNGEN_BF16, 1);
}

/* Values of its own for each; one that is the other's again; more than two. */
static void test_values(void **state) {
    (void)state;
    passes(
        "attention: t\ninputs: {v2: {dtype: [b, g, k, d]}}\nbranches:\n  a: {}\n  c: {values: v2, mask: k <= q}\noutput: layer_norm(a, 1e-5) + c\n",
        64, ATTNGEN_BF16, 1);
    passes("attention: t\nbranches:\n  a: {mask: k <= q}\n  c: {mask: k <= q}\noutput: a - 0.25 * c\n", 32, ATTNGEN_BF16, 1);
    passes("attention: t\nbranches:\n  a: {score: s}\n  c: {score: 2 * s}\n  e: {score: 3 * s}\n  f: {score: s / 2}\noutput: (a - c) * 2 + e * f\n",
           16, ATTNGEN_BF16, 1);
}

/* Factors of weights: the scores, maxima and denominators are shared then, and the product with k is another. */
static void test_weighed(void **state) {
    (void)state;
    passes("attention: t\ninputs: {r: {dtype: [b, h, q, d]}}\nbranches:\n  mean: {mask: k <= q}\n  moved: {mask: k <= q, weigh: 'dot(r, k)'}\n"
           "output: mean * (1 + mean_weight(moved)) - moved\n",
           32, ATTNGEN_BF16, 2);
    passes("attention: t\ninputs: {q2: {dtype: [b, h, q, d]}, l: {f32: [h]}}\nbranches:\n  a: {weigh: 'dot(q2, k)', mask: k < q}\n  c: {weigh: 1 / "
           "relu(q - k), mask: k < q}\n"
           "output: (a + mean_weight(a)) * l[h] - c / (1 + mean_weight(c))\n",
           32, ATTNGEN_BF16, 1);
}

static int count(const Block *b, TileOp op) {
    int n = 0;
    for (const Ins *i = b->first; i; i = i->next) n += (i->op == op) + count(&i->body, op);
    return n;
}

static const Block *key_loop(const Kernel *k, const Block *b) {
    const Block *found = NULL;
    for (const Ins *i = b->first; i && !found; i = i->next) found = i->op == TI_LOOP && i->dst == k->key_loop ? &i->body : key_loop(k, &i->body);
    return found;
}

/* What they share is loaded and computed once: in a step of Parallax there are K and V, and four products for two branches, one maximum and three sums. */
static void test_shared(void **state) {
    (void)state;
    const attngen_dim dims[] = {{"D", 32}};
    static const char text[] =
        "attention: t\ninputs: {r: {dtype: [b, h, q, d]}}\nbranches:\n  a: {mask: k <= q}\n  c: {mask: k <= q, weigh: 'dot(r, k)'}\n"
        "output: a * (1 + mean_weight(c)) - c\n";
    Compilation *c = joined(text, 0, dims, 1);
    const Kernel *k = c->part[0].kernel;
    const Block *step = key_loop(k, &k->role[0].body);
    assert_int_equal(count(step, TI_COPY), 2);
    assert_int_equal(count(step, TI_MMA), 4);
    assert_int_equal(count(step, TI_REDUCE), 3);
    assert_int_equal(count(&k->role[0].body, TI_STORE), 1);
    ag_compilation_free(c);
}

static const char DIFFERENT[] =
    "attention: t\n" TWO "branches:\n  a: {mask: k <= q}\n  c: {queries: q2, keys: k2, mask: k < q}\noutput: a - l[h] * c\n";

static Ins *last(Block *b, TileOp op) {
    Ins *found = NULL;
    for (Ins *i = b->first; i; i = i->next) {
        Ins *in = last(&i->body, op);
        found = in ? in : i->op == op ? i : found;
    }
    return found;
}

/* The second branch's weights under the first one's mask, its product left out, its maximum not followed: the simulator says so. */
static void finds(void (*spoil)(Kernel *k, Block *step), const char *what) {
    const attngen_dim dims[] = {{"D", 32}};
    Compilation *c = joined(DIFFERENT, 0, dims, 1);
    Kernel *k = c->part[0].kernel;
    spoil(k, (Block *)(uintptr_t)key_loop(k, &k->role[0].body));
    Case shape = {.B = 1, .Hkv = 1, .group = 1, .Sq = 70, .Sk = 70};
    char *wrong = result(c, &shape, false);
    if (!strstr(wrong, what)) fail_msg("found '%s', not '%s'", wrong, what);
    free(wrong);
    ag_compilation_free(c);
}
static void other_mask(Kernel *k, Block *step) { (void)step, k->branch[1].mask = k->branch[0].mask; }
static void no_product(Kernel *k, Block *step) { (void)k, ag_block_remove(step, last(step, TI_MMA)); }
static void twice(Kernel *k, Block *step) {
    Ins *mma = last(step, TI_MMA);
    ag_block_insert_after(step, mma, ag_ins_clone(k, mma));
}
static void other_branch(Kernel *k, Block *step) { k->val[last(step, TI_MMA)->dst].branch = 0; }

static void test_found(void **state) {
    (void)state;
    finds(other_mask, "is visible to query row");
    finds(no_product, "is never visited");
    finds(twice, "is visited twice");
    finds(other_branch, "is visited twice");
}

static void refuses(const char *spec, const char *what) {
    attngen_source s = {"spec.yaml", spec, strlen(spec)}, how = {"schedule.yaml", schedule[0].text, strlen(schedule[0].text)};
    Compilation *c = ag_compile_text(&s, &how, "sm_80", NULL, 0, NULL);
    assert_non_null(c);
    assert_int_equal(c->diag.status, ATTNGEN_E_UNSUPPORTED);
    Buf text = {0};
    ag_diag_render(&c->diag, &text);
    ag_putn(&text, "", 0);
    if (!strstr(text.s, what)) fail_msg("%s", text.s);
    ag_buf_free(&text);
    ag_compilation_free(c);
}

static void test_refused(void **state) {
    (void)state;
    refuses("attention: t\nbranches:\n  a: {mask: k <= q}\noutput: 2 * a\n", "there is one branch");
    refuses("attention: t\nbranches:\n  a: {score: abs(s)}\n  c: {score: s * s}\noutput: a - c\nnormalize: none\n", "scores are weights");
    refuses("attention: t\ninputs: {l: {i32: [b, g, q, 4]}}\nbranches:\n  a: {}\n  c: {blocks: l, block: 64}\noutput: a - c\n",
            "a branch has block lists");
    refuses("attention: t\nderive: {p: {pool: k, size: 32, stride: 16, op: mean}, w: {pool: v, size: 32, stride: 16, op: mean}}\n"
            "branches:\n  a: {keys: p, values: w}\n  c: {}\noutput: a - c\n",
            "there are derived tensors");
    refuses("attention: t\ninputs: {x: {dtype: [b, g, k, d]}, y: {dtype: [b, g, k, d]}, z: {dtype: [b, g, k, d]}}\n"
            "branches:\n  a: {}\n  c: {keys: x}\n  e: {keys: y, values: z}\noutput: a - c + e\n",
            "too many different queries, keys and values");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_differential), cmocka_unit_test(test_masks),  cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_weighed),      cmocka_unit_test(test_shared), cmocka_unit_test(test_found),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
