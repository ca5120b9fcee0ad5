/* test_captured.c: captured tensors in scores and masks: results against the reference on both kernel paths, where loads are placed, which keys a mask that reads tensors
 * still lets a tile skip, how an element reads in CUDA, and what is refused. */
#include "with_archs.h"

static void test_types(void **state) {
    (void)state;
    static const char *const type[] = {"f32", "f16", "bf16", "i32", "i64", "u8", "dtype"};
    for (int i = 0; i < LEN(type); i++) {
        char text[256];
        snprintf(text, sizeof text, "attention: t\ninputs: {x: {%s: [b, h, k]}, y: {%s: [b, q]}}\nscore: s + 0.1 * x[b, h, k] - 0.1 * y[b, q]\n",
                 type[i], type[i]);
        must_pass(text, 0);
    }
    must_pass("attention: t\ninputs: {x: {bool: [b, h, k]}, y: {bool: [b, q]}}\nmask: x[b, h, k] or y[b, q]\n", 0);
}

/* Whatever a subscript is, an element outside is 0; the tables lie between NaN and -1. */
static void test_subscripts(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {t: {f32: [h, 40]}}\nscore: s + t[h, q - k]\n", 0);
    must_pass("attention: t\ninputs: {t: {f32: [40, h]}}\nscore: s + t[k - q + 11, h]\nmask: k <= q\n", 0);
    must_pass("attention: t\ninputs:\n  t: {f16: [h, 9]}\n  dist: {i32: [b, q, k]}\nscore: s + t[h, dist[b, q, k]]\n", 0);
    must_pass("attention: t\ninputs:\n  t: {f32: [6]}\n  of: {i64: [b, k]}\n  at: {u8: [b, q]}\nscore: s + t[of[b, k]] + t[at[b, q]]\n", 0);
    must_pass("attention: t\ninputs:\n  t: {f32: [6]}\n  one: {i32: []}\n  head: {i32: [h]}\nscore: s + t[one] + t[head[h] + q - k]\n", 0);
    must_pass("attention: t\ninputs:\n  t: {f32: [1, h, 1, k]}\n  u: {dtype: [b, 1, q, 1]}\nscore: s + t[b, h, q, k] * u[b, h, q, k]\n", 0);
}

/* Of five and six dims: read ahead, by a row, through other elements, in masks that list tiles, and in the output of a branch. */
static void test_many_dims(void **state) {
    (void)state;
    must_pass("attention: t\ninputs:\n  m: {f32: [b, g, h, q, k]}\n  w: {dtype: [2, b, 1, h, q, k]}\nscore: s + m[b, g, h, q, k] + w[1, b, 0, h, q, "
              "k]\nmask: k <= q\n",
              0);
    must_pass("attention: t\ninputs: {w: {bf16: [b, 3, 1, h, q, k]}}\nscore: s + w[b, 2, 0, h, q, k]\n", 0);
    must_pass("attention: t\ninputs:\n  of: {i32: [b, 1, 2, g, q, 1]}\n  t: {f32: [b, h, 3, 2, q]}\nscore: s + k % 3 * t[b, h, of[b, 0, 1, g, q, 0] "
              "% 3, h % 2, q]\n",
              0);
    must_pass("attention: t\ninputs: {x: {i32: [2, b, 1, g, h, k]}}\nmask: x[1, b, 0, g, h, k] % 2 == 0 and k <= q\n", 0);
    must_pass("attention: t\ninputs: {gate: {f32: [b, h, 2, q, 1, d]}}\nbranches: {one: {mask: k <= q}}\n"
              "output: one * gate[b, h, 1, q, 0, d] + gate[b, h, 0, q, 0, d]\n",
              2);
}

static void test_scores(void **state) {
    (void)state;
    must_pass("attention: t\ninputs:\n  x: {f32: [b, h, q]}\n  y: {f32: [b, h]}\nscore: s * x[b, h, q] + y[b, h] * tanh(s)\nmask: k <= q\n", 0);
    must_pass("attention: t\ninputs: {t: {f32: [8]}}\nlet:\n  near: t[min(floor(abs(0.01 * s)), 7)]\nscore: s + near\n", 0);
}

static void test_masks(void **state) {
    (void)state;
    must_pass("attention: t\ninputs: {n: {i32: [b]}}\nmask: k < n[b]\n", 0);
    must_pass("attention: t\ninputs: {n: {i32: [b, h]}}\nmask: k <= q and q - k < n[b, h]\n", 0);
    must_pass("attention: t\ninputs: {n: {i32: [g]}}\nmask: k >= n[g] and k <= q + n[g]\n", 3);
    must_pass("attention: t\ninputs: {n: {i32: [b]}}\nmask: k <= q or k < n[b]\n", 0);
    must_pass("attention: t\ninputs: {n: {i32: [b]}}\nmask: not (2 * k > n[b])\n", 0);
    must_pass("attention: t\ninputs: {doc: {i32: [b, k]}}\nmask: k <= q and doc[b, q] == doc[b, k]\n", 0);
    must_pass("attention: t\ninputs: {from: {i32: [b, q]}, keep: {bool: [b, k]}}\nmask: from[b, q] <= k and keep[b, k]\n", 0);
    must_pass("attention: t\ninputs: {see: {bool: [b, q, k]}}\nmask: see[b, q, k]\n", 0);
}

/* Bounds of any int neither wrap around nor read beyond. */
static void test_extremes(void **state) {
    (void)state;
    must_pass_with("attention: t\ninputs: {n: {i32: [b]}}\nmask: k <= n[b]\n", 0, true);
    must_pass_with("attention: t\ninputs: {n: {i32: [b]}}\nmask: k > n[b] or k < 3\n", 0, true);
    must_pass_with("attention: t\ninputs: {n: {i32: [b, h]}}\nmask: n[b, h] >= k\n", 0, true);
    must_pass_with("attention: t\ninputs: {n: {i32: [b, q]}}\nmask: k <= n[b, q] and q - k <= n[b, q]\n", 0, true);
    must_pass_with("attention: t\ninputs: {n: {i32: [b, h]}, t: {f32: [7]}}\nscore: s + t[n[b, h]]\n", 0, true);
}

static void test_branches(void **state) {
    (void)state;
    must_pass("attention: t\ninputs:\n  slope: {f32: [h]}\n  doc: {i32: [b, k]}\n  gate: {f32: [b, q, h]}\nlet: {g0: 'gate[b, q, h]', far: 'slope[h] "
              "* (k - q)'}\n"
              "branches:\n  x: {score: s + far, mask: k <= q}\n  y:\n    mask: doc[b, q] == doc[b, k]\noutput: g0 * x + (1 - g0) * y\n",
              2);
    must_pass("attention: t\ninputs:\n  slope: {f32: [h]}\n  keep: {bool: [b, k]}\n  list: {i32: [b, g, q, 3]}\n"
              "branches:\n  x:\n    blocks: list\n    block: 16\n    score: s + slope[h] * (k - q)\n    mask: k <= q and keep[b, k]\n",
              2);
}

/* ---- where loads are */

static bool has_load(const Kernel *k, Ref r) {
    bool *live = calloc((size_t)r + 1, 1), found = false;
    live[r] = true;
    for (Ref i = r; i > 0; i--) {
        const Node *n = &k->nodes.n[i];
        if (!live[i]) continue;
        found |= n->op == OP_LOAD;
        for (int a = 0; a < 3; a++) live[n->arg[a]] = true;
        for (int a = 0; a < n->nsub; a++) live[n->sub[a]] = true;
    }
    free(live);
    return found;
}

/* Instructions that read elements, in loops or outside of them. */
static int loads(const Kernel *k, const Block *b, bool inside, bool wanted) {
    int n = 0;
    for (const Ins *i = b->first; i; i = i->next) {
        for (int e = 0; e < LEN(i->e) && inside == wanted; e++) n += i->e[e] && has_load(k, i->e[e]);
        n += loads(k, &i->body, inside || i->op == TI_LOOP, wanted);
    }
    return n;
}

static void expect_loads(const char *text, int before, bool in_loops) {
    Compilation *c = compiled(text, "sm_80", "tile", 64, 0);
    const Kernel *k = c->fn.kernel;
    assert_int_equal(loads(k, &k->role[0].body, false, false), before);
    assert_int_equal(loads(k, &k->role[0].body, false, true) > 0, in_loops);
    ag_compilation_free(c);
}

static void test_levels(void **state) {
    (void)state;
    expect_loads("attention: t\ninputs: {x: {f32: [h]}}\nscore: s + x[h] * (k - q)\n", 1, false);
    expect_loads("attention: t\ninputs: {x: {f32: [b, h, q]}}\nscore: s * x[b, h, q]\n", 1, false);
    expect_loads("attention: t\ninputs: {x: {i32: [b]}, t: {f32: [9]}}\nscore: s * t[x[b]]\n", 2, false);
    expect_loads("attention: t\ninputs: {x: {f32: [b, k]}}\nscore: s + x[b, k]\n", 0, true);
    expect_loads("attention: t\ninputs: {n: {i32: [b]}}\nmask: k < n[b]\n", 1, false);
}

/* ---- which keys */

static void expect_range(const char *text, const char *need, const char *plain) {
    Compilation *c = compiled(text, "sm_80", "ranges", 64, 0);
    Buf out = {0};
    char want[512];
    ag_math_dump(&out, c->fn.math);
    snprintf(want, sizeof want, "          need   %s\n          plain  %s\n", need, plain);
    if (!strstr(out.s, want)) fail_msg("no\n%sin\n%s", want, out.s);
    ag_buf_free(&out);
    ag_compilation_free(c);
}

static void test_ranges(void **state) {
    (void)state;
    expect_range("attention: t\ninputs: {doc: {i32: [b, k]}}\nmask: k <= q and doc[b, q] == doc[b, k]\n", "0 .. min(Sk, q.max + 1)", "not known");
    expect_range("attention: t\ninputs: {doc: {i32: [b, k]}}\nmask: k <= q or doc[b, q] == doc[b, k]\n", "0 .. Sk", "0 .. min(Sk, q.min + 1)");
    expect_range("attention: t\ninputs: {n: {i32: [b]}}\nmask: k < n[b]\n", "0 .. min(Sk, min(max(n[b], -536870912), 536870912))",
                 "0 .. min(Sk, min(max(n[b], -536870912), 536870912))");
    expect_range("attention: t\ninputs: {n: {i32: [b, q]}}\nmask: k < n[b, q]\n", "0 .. Sk", "not known");
    expect_range("attention: t\ninputs: {x: {bool: [b, k]}}\nmask: not x[b, k]\n", "0 .. Sk", "not known");
}

/* ---- how it reads */

static void expect_text(const char *text, const char *arch, const char *want) {
    Compilation *c = compiled(text, arch, NULL, 64, 0);
    if (!strstr(c->cu.s, want)) fail_msg("no\n%s\nin the kernel of\n%s\n%s", want, text, c->cu.s);
    ag_compilation_free(c);
}

static void test_text(void **state) {
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_90a"};
    for (int i = 0; i < LEN(arch); i++) {
        expect_text("attention: t\ninputs: {x: {f32: [h]}}\nscore: s + x[h]\n", arch[i],
                    "inside(h, args.Hq) ? __ldg(args.u_x + h * args.s0_x) : 0.f");
        expect_text("attention: t\ninputs: {x: {f32: [b, k]}}\nscore: s + x[b, k]\n", arch[i], "_at = args.u_x + b * args.s0_x + k0 * args.s1_x;\n");
        expect_text("attention: t\ninputs: {x: {bf16: [3]}}\nscore: s + x[2]\n", arch[i], "= bf16_in::value(__ldg(args.u_x + 2 * args.s0_x));\n");
    }
}

/* What no simulator sees: that every name is declared, once, where it is in scope. */
static void test_compiles(void **state) {
    (void)state;
    static const char *const text[] = {
        "attention: t\ninputs: {n: {i32: [b, q]}, m: {i32: [b]}}\nmask: k < n[b, q] or k <= m[b]\n"
        "score: s + (0.5 if k < n[b, q] else 0.25) + 0.01 * (n[b, q] % 7) + (0.1 if k > n[b, q] else 0)\n",
        "attention: t\ninputs:\n  keep: {bool: [b, k]}\n  pair: {dtype: [1, h, q, k]}\nmask: keep[b, k]\nscore: s + pair[0, h, q, k]\n",
        "attention: t\ninputs:\n  t: {f16: [h, 16]}\n  dist: {u8: [b, q, k]}\n  big: {i64: [b, k]}\nmask: k <= q + 7\n"
        "score: s + t[h, dist[b, q, k]] + (0.5 if big[b, k] > q else 0.25)\n"};
    static const char *const arch[] = {"sm_80", "sm_90a"};
    for (int i = 0; i < LEN(text) * LEN(arch); i++) {
        attngen_options o = ATTNGEN_OPTIONS_INIT;
        attngen_context *ctx = NULL;
        attngen_program *p = NULL;
        attngen_source s = {"spec.yaml", text[i / LEN(arch)], strlen(text[i / LEN(arch)])};
        const attngen_dim dims[] = {{"D", 64}};
        o.arch = arch[i % LEN(arch)];
        o.cache_dir = "";
        assert_int_equal(attngen_create(&ctx, &o), ATTNGEN_OK);
        attngen_status status = attngen_compile(ctx, &p, &s, NULL, dims, 1);
        if (status != ATTNGEN_OK && status != ATTNGEN_E_NO_NVRTC) fail_msg("%s", attngen_errmsg(ctx));
        attngen_program_free(p);
        attngen_destroy(ctx);
        if (status == ATTNGEN_E_NO_NVRTC) skip();
    }
}

/* ---- what a kernel does not read */

static void expect_refused(const char *text, const char *want) {
    attngen_source s = {"spec.yaml", text, strlen(text)};
    const attngen_dim dims[] = {{"D", 64}, {"group", 1}};
    Compilation *c = ag_compile_text(&s, NULL, "sm_80", dims, strstr(text, "branches") ? 2 : 1, NULL);
    Buf out = {0};
    assert_non_null(c);
    ag_diag_render(&c->diag, &out);
    assert_int_equal(c->diag.status, ATTNGEN_E_UNSUPPORTED);
    if (!strstr(out.s, want)) fail_msg("%s", out.s);
    ag_buf_free(&out);
    ag_compilation_free(c);
}

static void test_refused(void **state) {
    (void)state;
    expect_refused("attention: t\ninputs: {x: {f32: [b, k]}}\nderive:\n  p: {pool: k, size: 32, stride: 16}\n  w: {pool: v, size: 32, stride: 16}\n"
                   "branches:\n  y:\n    keys: p\n    values: w\n    score: s + x[b, k]\n",
                   "error: 'x' has a dim k, and the keys of this branch are pooled: this version of attngen does not read one there\n");
}

/* ---- the schedule that is taken */

static void test_default_schedule(void **state) {
    (void)state;
    static const struct {
        const char *text, *arch, *name;
    } want[] = {{"attention: t\ninputs: {x: {f32: [h]}}\nscore: s + x[h]\n", "sm_90a", "wgmma_d64"},
                {"attention: t\ninputs: {x: {f32: [b, k]}}\nscore: s + x[b, k]\n", "sm_90a", "wgmma_d64"},
                {"attention: t\ninputs: {x: {f32: [b, q, k]}, y: {f32: [q, k]}}\nscore: s + x[b, q, k] + y[q, k]\n", "sm_90a", "wgmma_d64_elements"},
                {"attention: t\ninputs: {x: {f32: [b, q, k]}}\nscore: s + x[b, q, k]\n", "sm_90a", "wgmma_d64_element"},
                {"attention: t\ninputs: {x: {f32: [9]}}\nlet: {far: q - k}\nscore: s + x[far]\n", "sm_90a", "wgmma_d64_element"},
                {"attention: t\ninputs: {x: {f32: [9]}}\nscore: s + x[floor(s)]\n", "sm_90a", "wgmma_d64_element"},
                {"attention: t\ninputs: {x: {bool: [b, k]}}\nlet:\n  m: x[b, k]\nmask: k <= q or m\n", "sm_90a", "wgmma_d64_element"},
                {"attention: t\ninputs: {x: {bool: [b, k]}}\nmask: k <= q and x[b, k]\n", "sm_90a", "wgmma_d64"},
                {"attention: t\ninputs: {x: {f32: [b, q, k]}}\nscore: s + x[b, q, k]\n", "sm_80", "mma_d64"}};
    for (int i = 0; i < LEN(want); i++) {
        Compilation *c = compiled(want[i].text, want[i].arch, NULL, 64, 0);
        assert_string_equal(c->schedule_name, want[i].name);
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),           cmocka_unit_test(test_subscripts), cmocka_unit_test(test_many_dims), cmocka_unit_test(test_scores),
        cmocka_unit_test(test_masks),           cmocka_unit_test(test_branches),   cmocka_unit_test(test_extremes),  cmocka_unit_test(test_levels),
        cmocka_unit_test(test_ranges),          cmocka_unit_test(test_text),       cmocka_unit_test(test_compiles),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_default_schedule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
