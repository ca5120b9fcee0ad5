/* test_fuse.c: `output` in the last kernel of a program: behind the merge of a branch that is visited block by block, and behind attention query by query.  Results
 * against the reference, the forms that are chosen, broken kernels that are caught, and the workspace that it saves. */
#include "with_archs.h"

typedef enum Form { MERGED, BY_QUERY, APART } Form;

#define LISTED(inputs, list, output)                                                                                                                 \
    "attention: t\nparams: {bias: 0.25, shift: {int: 1}}\ninputs:\n" list inputs "branches:\n  win: {mask: 'k <= q and q - k < 20'}\n"               \
    "  only: {blocks: list, block: 16, mask: k <= q}\noutput: " output "\n"
#define BY_KV_HEAD "  list: {i32: [b, g, q, 5]}\n"
#define BY_HEAD    "  list: {i32: [b, h, q, 5]}\n"
#define PER_FOUR(inputs, output)                                                                                                                     \
    "attention: t\ninputs:\n  list: {i32: [b, g, q, 3]}\n  n: {i32: [b, g, q]}\n" inputs "branches:\n"                                               \
    "  only: {blocks: list, block: 32, blocks_per: 4, counts: n, mask: k <= q}\n  win: {mask: 'k <= q and q - k < 20'}\noutput: " output "\n"

/* Compiles with the order of listed blocks that leads to the form; of a program without lists the order is idle. */
static Compilation *compiled_under(const char *text, int D, int dtype, int group, Form form) {
    const attngen_dim dims[] = {{"D", D}, {"dtype", dtype}, {"group", group}, {0}};
    const char *by_block = "schema: attngen.schedule/1\nloop: {lists: block}\n";
    const char *by_query = "schema: attngen.schedule/1\nloop: {lists: query}\n";
    Compilation *c = compile_raw(text, form == MERGED ? by_block : by_query, "sm_80", dims, NULL);
    must_compile(c);
    return c;
}

static Kernel *last_kernel(const Compilation *c) { return c->part[c->npart - 1].kernel; }

/* The instruction whose result is the output; of a kernel that stores a branch as it is NULL. */
static Ins *output_of(Kernel *k) {
    for (Ins *i = k->role[0].body.first; i; i = i->next)
        if (i->op == TI_OUTPUT || i->op == TI_EACH || (i->op == TI_MERGE && i->e[5])) return i;
    return NULL;
}

static Form form_of(const Compilation *c) {
    const Ins *i = output_of(last_kernel(c));
    assert_non_null(i);
    return i->op == TI_MERGE ? MERGED : i->op == TI_OUTPUT ? BY_QUERY : APART;
}

static void must_pass_under(const char *text, int D, int dtype, int group, Form form) {
    Compilation *c = compiled_under(text, D, dtype, group, form);
    if (form_of(c) != form) fail_msg("form %d, not %d, group %d, of\n%s", form_of(c), form, group, text);
    for (int layout = 0; layout < LAY_COUNT; layout++) {
        Case shape = {.B = 2, .Hkv = 2, .group = group, .Sq = 21, .Sk = 90, .offset = 69, .layout = (TensorLayout)layout};
        char *wrong = result(c, &shape, false), name[128];
        ag_check_case_name(name, sizeof name, &shape, c->fn.spec);
        if (*wrong) fail_msg("%s: %s\n%s", name, wrong, text);
        free(wrong);
    }
    ag_compilation_free(c);
}

/* Both forms by the number of heads that share a list. */
static void must_pass_both(const char *text, int D, int dtype) {
    must_pass_under(text, D, dtype, 1, MERGED);
    must_pass_under(text, D, dtype, 3, MERGED);
    must_pass_under(text, D, dtype, 12, BY_QUERY);
    must_pass_under(text, D, dtype, 16, BY_QUERY);
}

static void test_gates(void **state) {
    (void)state;
    const char *per_head = LISTED("  gate: {f32: [b, q, h, 3]}\n", BY_KV_HEAD, "gate[b, q, h, 0] * win + gate[b, q, h, 2] * only");
    const char *per_token = LISTED("  gate: {f32: [b, q, 3]}\n", BY_KV_HEAD, "gate[b, q, 1] * win - gate[b, q, 2] * only");
    must_pass_both(per_head, 32, ATTNGEN_BF16);
    must_pass_both(per_token, 32, ATTNGEN_F16);
    must_pass_both(per_head, 36, ATTNGEN_F16); /* rows that are no whole pieces, and columns that are not stored */
}

/* Elements of every kind; some past the ends of their tensors. */
static void test_elements(void **state) {
    (void)state;
    static const char *const specs[] = {
        LISTED("  doc: {i32: [b, q]}\n  table: {f16: [10, d]}\n  rms: {f32: [h, d]}\n", BY_KV_HEAD, "only * table[doc[b, q], d] + win * rms[h, d]"),
        LISTED("  w: {f32: [b, h, q, d]}\n", BY_KV_HEAD, "w[b, h, q, d] * only + w[b, h, q, Dv - 1 - d] * win + w[b, h, q - shift, d + 1]"),
        LISTED("  kind: {u8: [g, 2]}\n  keep: {bool: [b, k]}\n  one: {dtype: [1]}\n", BY_KV_HEAD,
               "(only if keep[b, q] else win) * kind[g, 1] + bias * one[0] + (kind[h, 0] if g > 0 else d)"),
        LISTED("  gate: {f32: [q, h]}\n", BY_KV_HEAD, "tanh(only) * exp(-abs(gate[q, h])) + only * (q % 3) + (win if list[b, g, q, 0] > 2 else 0.5)"),
    };
    for (int i = 0; i < LEN(specs); i++) {
        must_pass_under(specs[i], 32, ATTNGEN_BF16, 2, MERGED);
        must_pass_under(specs[i], 20, ATTNGEN_BF16, 16, BY_QUERY);
    }
    must_pass_under(LISTED("  gate: {f32: [h, g]}\n", BY_HEAD, "gate[h, g] * only + gate[h, b] * win"), 32, ATTNGEN_BF16, 3, MERGED);
}

/* Lists of several queries: tiles with rows not in use; and the listed branch comes first in the spec, whose result would lie in o. */
static void test_lists_of_four(void **state) {
    (void)state;
    const char *spec = PER_FOUR("  gate: {f32: [b, q, h, 2]}\n", "gate[b, q, h, 0] * win + gate[b, q, h, 1] * only");
    for (int group = 1; group <= 7; group += 2) must_pass_under(spec, 32, ATTNGEN_BF16, group, BY_QUERY);
    must_pass_under(spec, 48, ATTNGEN_F16, 4, BY_QUERY);
    must_pass_under(PER_FOUR("", "win - only if q > 75 else only"), 32, ATTNGEN_BF16, 5, BY_QUERY);
}

#define TWO_LISTS                                                                                                                                    \
    "attention: t\ninputs:\n  list: {i32: [b, g, q, 5]}\n  more: {i32: [b, h, q, 2]}\nbranches:\n  x: {blocks: list, block: 16, mask: k <= q}\n"     \
    "  y: {blocks: more, block: 16, mask: k <= q}\noutput: "

static void test_forms(void **state) {
    (void)state;
    must_pass_under(TWO_LISTS "x + 0.5 * y\n", 32, ATTNGEN_BF16, 16, MERGED);
    must_pass_under("attention: t\nbranches: {x: {mask: k <= q}, y: {}}\noutput: x + y\n", 32, ATTNGEN_BF16, 2, BY_QUERY);
    const char *alone = "attention: t\ninputs: {list: {i32: [b, g, q, 5]}}\nlet: {z: 'q * 0.25'}\n"
                        "branches: {x: {blocks: list, block: 16, mask: k <= q}}\noutput: x + z\n";
    must_pass_under(alone, 32, ATTNGEN_BF16, 2, MERGED);
    must_pass_under(alone, 32, ATTNGEN_BF16, 16, BY_QUERY);
}

/* A kernel has no room for all the tensors and parameters that the two of them take. */
static void test_no_room(void **state) {
    (void)state;
    for (int params = 2; params < 28; params += 25) {
        Buf text = {0};
        ag_put(&text, "attention: t\nparams:\n");
        for (int i = 0; i < params; i++) ag_put(&text, "  p%d: 0.125\n", i);
        ag_put(&text, "inputs:\n" BY_KV_HEAD);
        for (int i = 0; i < 11; i++) ag_put(&text, "  a%d: {f32: [h]}\n", i);
        ag_put(&text, "branches:\n  x: {}\n  y: {mask: k <= q}\n  only: {blocks: list, block: 16, mask: k <= q}\noutput: x + y + only");
        for (int i = 0; i < 11; i++) ag_put(&text, " * a%d[h]", i);
        for (int i = 0; i < params; i++) ag_put(&text, " + p%d", i);
        ag_put(&text, "\n");
        Compilation *c = compiled_under(text.s, 32, ATTNGEN_BF16, 16, BY_QUERY);
        assert_int_equal(form_of(c), params == 2 ? BY_QUERY : APART);
        ag_compilation_free(c);
        ag_buf_free(&text);
    }
}

/* ---- text */

static void has(const Compilation *c, const char *const *part) {
    Buf cu = {0}, dump = {0};
    Kernel *k = last_kernel(c);
    ag_emit(&cu, k->spec, &k, 1, NULL);
    ag_tile_dump(&dump, k);
    for (int i = 0; part[i]; i++)
        if (!strstr(cu.s, part[i]) && !strstr(dump.s, part[i])) fail_msg("no `%s` in\n%s\n%s", part[i], cu.s, dump.s);
    ag_buf_free(&cu);
    ag_buf_free(&dump);
}

static void test_text(void **state) {
    (void)state;
    static const char *const merged[] = {"const Eight<bf16_in> u_win = load_8<bf16_in>(",
                                         "        float y[8];\n        merge_slots<bf16_in, 5>(y, list, ",
                                         "UNROLL for (int e = 0; e < 8; e++) y[e] = u_gate * u_win[e] + y[e];", ", as branch in load", NULL};
    static const char *const by_query[] = {
        "        if (row < args.Sq) {\n            const int h = h0 + rem(lane_row + mi * 16 + r * 8, 16);\n            const float u_gate = "
        "args.u_gate[b ",
        "const Pairs<bf16_in, 4> u_win = load_pairs<bf16_in, 4>(args.u_win + b * args.s0_win + h * args.s1_win + row * args.s2_win + lane_col * ",
        "acc[mi][ni][2 * r + e] = u_gate * u_win(ni, e) + acc[mi][ni][2 * r + e];", "  output acc as o[b, h0, rows row0 ..] below Sq = load", NULL};
    const char *spec = LISTED("  gate: {f32: [b, q, h, 3]}\n", BY_KV_HEAD, "gate[b, q, h, 0] * win + only");
    Compilation *c = compiled_under(spec, 32, ATTNGEN_BF16, 1, MERGED);
    has(c, merged);
    ag_compilation_free(c);
    c = compiled_under(spec, 32, ATTNGEN_BF16, 16, BY_QUERY);
    has(c, by_query);
    ag_compilation_free(c);
}

/* ---- broken kernels */

static Ref add_one(Kernel *k, Ref r) { return ag_node_op(&k->nodes, OP_ADD, r, ag_node_int(&k->nodes, 1), 0, (Span){0}); }
static Ref *expression(Ins *i) { return &i->e[i->op == TI_MERGE ? 5 : 0]; }

static void next_head(Kernel *k, Ins *i) { i->e[3] = add_one(k, i->e[3]); }
static void next_batch(Kernel *k, Ins *i) { i->e[2] = add_one(k, i->e[2]); }
static void next_rows(Kernel *k, Ins *i) { i->e[1] = add_one(k, i->e[1]); }
static void more_rows(Kernel *k, Ins *i) { i->e[4] = add_one(k, i->e[4]); }
static void other_expression(Kernel *k, Ins *i) { *expression(i) = ag_node_op(&k->nodes, OP_NEG, *expression(i), 0, 0, (Span){0}); }
static void other_type(Kernel *k, Ins *i) {
    (void)i;
    for (int t = TEN_COUNT; t < k->ntensor; t++)
        if (strcmp(k->tensor[t].name, "win") == 0) k->tensor[t].type = DT_F16;
}
static void other_gate(Kernel *k, Ins *i) {
    Ref one = ag_node_int(&k->nodes, 1); /* of the second gate */
    for (Ref r = *expression(i); r > 0; r--)
        if (k->nodes.n[r].op == OP_LOAD && ag_node_is_int(&k->nodes, k->nodes.n[r].sub[3], 0)) k->nodes.n[r].sub[3] = one;
}
static void other_axis(Kernel *k, Ins *i) { /* the same query head for all rows */
    for (Ref r = *expression(i); r > 0; r--)
        for (int s = 0; k->nodes.n[r].op == OP_LOAD && s < k->nodes.n[r].nsub; s++)
            if (k->nodes.n[k->nodes.n[r].sub[s]].op == OP_AXIS && k->nodes.n[k->nodes.n[r].sub[s]].index == AX_H) k->nodes.n[r].sub[s] = i->e[3];
}
static void twice(Kernel *k, Ins *i) { ag_block_insert_after(&k->role[0].body, i, ag_ins_clone(k, i)); }

static const char *const broken_spec = LISTED("  gate: {f32: [b, q, h, 3]}\n", BY_KV_HEAD, "gate[b, q, h, 0] * win + gate[b, q, h, 1] * only");

static void test_broken_runs(void **state) {
    (void)state;
    static const struct {
        int group;
        void (*edit)(Kernel *, Ins *);
        const char *want; /* part of what is reported */
    } cases[] = {
        {16, next_head, "not from 0 on of head 1 of batch 0"},
        {16, next_batch, "batch 1 of o, which has 1"},
        {16, next_rows, "not from 1 on of head 0 of batch 0"},
        {16, more_rows, "output acc: rows 0..20 of o, which has 20"},
        {16, other_expression, "o[b "},
        {16, other_type, "win is given as bf16"},
        {16, other_gate, "o[b "},
        {16, other_axis, "o[b "},
        {16, twice, "o[b "},
        {2, next_head, "head 4 of o, which has 4"},
        {2, next_batch, "batch 1 of o, which has 1"},
        {2, other_expression, "o[b "},
        {2, other_type, "win is given as bf16"},
        {2, other_gate, "o[b "},
        {2, twice, "is written twice"},
    };
    for (int i = 0; i < LEN(cases); i++) {
        Compilation *c = compiled_under(broken_spec, 32, ATTNGEN_BF16, cases[i].group, cases[i].group > 8 ? BY_QUERY : MERGED);
        const Case shape = {.B = 1, .Hkv = 2, .group = cases[i].group, .Sq = 20, .Sk = 90, .offset = 70};
        char *right = result(c, &shape, false);
        assert_string_equal(right, "");
        cases[i].edit(last_kernel(c), output_of(last_kernel(c)));
        char *wrong = result(c, &shape, false);
        if (!strstr(wrong, cases[i].want)) fail_msg("case %d: no `%s` in `%s`", i, cases[i].want, wrong);
        free(right);
        free(wrong);
        ag_compilation_free(c);
    }
}

static void whole_number(Kernel *k, Ins *i) { *expression(i) = ag_node_int(&k->nodes, 1); }
static void no_branch(Kernel *k, Ins *i) { *expression(i) = ag_node_float(&k->nodes, 1); }
static void short_load(Kernel *k, Ins *i) {
    (void)i;
    k->tensor[k->ntensor - 1].rank--;
}
static void key(Kernel *k, Ins *i) {
    Ref f = ag_node_op(&k->nodes, OP_TOFLOAT, ag_node_leaf(&k->nodes, OP_AXIS, T_INT, AX_K, (Span){0}), 0, 0, (Span){0});
    *expression(i) = ag_node_op(&k->nodes, OP_ADD, *expression(i), f, 0, (Span){0});
}
static void no_fragment(Kernel *k, Ins *i) {
    for (int v = 0; v < k->nval; v++)
        if (k->val[v].space == SPACE_ROW) i->dst = v;
}
static void no_output(Kernel *k, Ins *i) {
    (void)k;
    i->n = TEN_K;
}
static void by_row(Kernel *k, Ins *i) { i->e[3] = ag_node_leaf(&k->nodes, OP_AXIS, T_INT, AX_Q, (Span){0}); }
static void other_kind(Kernel *k, Ins *i) {
    (void)i;
    k->kind = KERNEL_GATHER;
}
static void in_a_map(Kernel *k, Ins *i) {
    (void)k;
    i->op = TI_MAP;
}

static void test_checks(void **state) {
    (void)state;
    static const struct {
        int group;
        void (*edit)(Kernel *, Ins *);
        const char *want;
    } cases[] = {
        {16, whole_number, "output: the expression is no float"},
        {16, no_branch, "output: the expression does not read the fragment"},
        {16, short_load, "output: an element has other dims than its tensor"},
        {16, key, "output: an axis is read where it has no value"},
        {16, no_fragment, "output: the accumulator was not written"},
        {16, no_output, "output: its rows are those of no output tensor"},
        {16, by_row, "output: an axis is read where it has no value"},
        {16, other_kind, "output: it takes a kernel whose rows are queries"},
        {16, in_a_map, "map: the branch of a kernel is read where it has no value"},
        {2, whole_number, "merge: the expression is no float"},
        {2, no_branch, "merge: the expression does not read what is merged"},
        {2, short_load, "merge: an element has other dims than its tensor"},
        {2, key, "merge: an axis is read where it has no value"},
    };
    for (int i = 0; i < LEN(cases); i++) {
        Compilation *c = compiled_under(broken_spec, 32, ATTNGEN_BF16, cases[i].group, cases[i].group > 8 ? BY_QUERY : MERGED);
        Kernel *k = last_kernel(c);
        ag_tile_check(k, FACT_PLACED | FACT_PIPELINED);
        must_compile(c);
        cases[i].edit(k, output_of(k));
        ag_tile_check(k, FACT_PLACED | FACT_PIPELINED);
        char *text = report(c);
        if (!strstr(text, cases[i].want)) fail_msg("no `%s` in\n%s", cases[i].want, text);
        assert_int_equal(c->diag.status, ATTNGEN_E_INTERNAL);
        free(text);
        ag_compilation_free(c);
    }
}

/* ---- what it saves */

static void test_workspace(void **state) {
    (void)state;
    const attngen_dim dims[] = {{"D", 128}};
    attngen_shape shape = {1, 64, 4, 65536, 65536, ATTNGEN_ALIGN_END};
    attngen_options o = ATTNGEN_OPTIONS_INIT;
    attngen_context *ctx = NULL;
    attngen_program *p = NULL;
    attngen_call *call = NULL;
    attngen_source spec;
    o.arch = "sm_90a";
    o.cache_dir = "";
    attngen_shipped_spec(&spec, "nsa");
    assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
    assert_int_equal(attngen_lower(ctx, &p, &spec, NULL, dims, 1), ATTNGEN_OK);
    assert_int_equal(attngen_bind(ctx, &call, p, &shape), ATTNGEN_OK);
    const Compilation *c = call->program->lowered;
    assert_int_equal(c->fn.spec->group, 16);
    assert_int_equal(last_kernel(c)->tensor[TEN_O].program, TEN_O);
    assert_true(attngen_workspace(call) < 2000000000u);
    assert_true(attngen_workspace(call) > 1000000000u); /* the selected branch's result, which begins with that of its forced blocks */
    const TensorMeta *win = &c->meta.tensor[ag_program_result(c->fn.spec, 2)];
    assert_true(win->rank == 1 && win->dim[0] == META_CONSTANT && win->constant[0] == 0);
    attngen_call_free(call);
    attngen_program_free(p);
    attngen_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gates),       cmocka_unit_test(test_elements), cmocka_unit_test(test_lists_of_four),
        cmocka_unit_test(test_forms),       cmocka_unit_test(test_no_room),  cmocka_unit_test(test_text),
        cmocka_unit_test(test_broken_runs), cmocka_unit_test(test_checks),   cmocka_unit_test(test_workspace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
