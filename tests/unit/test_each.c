/* Kernels of pools and of outputs: what they compute on the simulator against the reference, their text, and broken ones that are caught. */
#include <math.h>
#include <stdio.h>

#include "program.h"
#include "with_diag.h"
#include "with_schedule.h"

typedef struct Sizes {
    int64_t B, Hq, Hkv, Sq, Sk, off;
    int D, Dv;
} Sizes;

/* How tensors lie in memory; between and around their elements are canaries. */
typedef enum Lie {
    LIE_PLAIN,
    LIE_SWAPPED /* dims 1 and 2 */,
    LIE_STEPPED /* every second element, odd pitch */,
    LIE_BACKWARDS /* dim 2 */,
    LIE_COUNT
} Lie;

typedef struct Buffer {
    HostTensor t;
    unsigned char *flat;
    size_t bytes;
    int64_t dim[4];
    int rank;
} Buffer;

typedef struct Work Work;
struct Work {
    Sizes n;
    Lie lie;
    bool in_place; /* branch 0 lies in o */
    int derive;    /* the pool to build; -1: the output */
    void (*edit)(Kernel *);
    const char *want;       /* of the simulator; "" */
    void (*use)(Kernel *k); /* instead of running it */
    bool ran;
};

/* ---- tensors */

static uint32_t random_state = 1;
static int random_int(int n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 9) % (uint32_t)n);
}

enum { CANARY = 0xA5, MARGIN = 32 };

static Buffer buffer(DType type, int rank, const int64_t *dim, Lie lie) {
    Buffer b = {.rank = rank, .t = {.type = type}};
    int order[4] = {0, 1, 2, 3};
    int64_t step = lie == LIE_STEPPED ? 2 : 1, all = step;
    for (int i = 0; i < 4; i++) b.dim[i] = i < rank ? dim[i] : 1;
    if (lie == LIE_SWAPPED) order[1] = 2, order[2] = 1;
    for (int i = 3; i >= 0; i--) {
        int x = order[i];
        b.t.stride[x] = i == 3 ? step : all;
        all = b.t.stride[x] * b.dim[x] + (lie == LIE_STEPPED && i == 3 ? 3 : 0);
    }
    int64_t first = MARGIN;
    if (lie == LIE_BACKWARDS && b.dim[2] > 0) {
        first += b.t.stride[2] * (b.dim[2] - 1);
        b.t.stride[2] = -b.t.stride[2];
    }
    size_t e = (size_t)ag_dtype_bytes(type);
    b.bytes = (size_t)(all + 2 * MARGIN) * e;
    b.flat = malloc(b.bytes);
    assert_non_null(b.flat);
    memset(b.flat, CANARY, b.bytes);
    b.t.data = b.flat + (size_t)first * e;
    return b;
}

#define EACH_ELEMENT(n)                                                                                                                              \
    for (int64_t i0 = 0; i0 < (n)[0]; i0++)                                                                                                          \
        for (int64_t i1 = 0; i1 < (n)[1]; i1++)                                                                                                      \
            for (int64_t i2 = 0; i2 < (n)[2]; i2++)                                                                                                  \
                for (int64_t i3 = 0; i3 < (n)[3]; i3++)

/* Floats in -1 .. 1, ints in -3 .. 12: some are no subscripts of what they index. */
static void randomise(Buffer *b) {
    bool real = ag_dtype_value(b->t.type) == T_FLOAT, byte = b->t.type == DT_U8 || b->t.type == DT_BOOL;
    EACH_ELEMENT(b->dim)
    ag_host_set(&b->t, i0, i1, i2, i3, real ? (random_int(129) - 64) / 64.0 : byte ? random_int(2) : random_int(16) - 3);
}

/* Whether nothing but the elements was written; destroys them. */
static void check_canaries(Buffer *b) {
    size_t e = (size_t)ag_dtype_bytes(b->t.type);
    const int64_t *s = b->t.stride;
    EACH_ELEMENT(b->dim) memset((unsigned char *)b->t.data + (i0 * s[0] + i1 * s[1] + i2 * s[2] + i3 * s[3]) * (int64_t)e, CANARY, e);
    for (size_t i = 0; i < b->bytes; i++) assert_int_equal(b->flat[i], CANARY);
}

/* ---- a spec, its kernel, and a call with all that it names */

typedef struct Data {
    HostCall call;
    Buffer q, k, v, o, input[SPEC_MAX_INPUTS], branch[SPEC_MAX_BRANCHES], pool, first; /* first: what branch 0 was, when it lies in o */
} Data;

static Buffer filled(DType type, int rank, const int64_t *dim, Lie lie) {
    Buffer b = buffer(type, rank, dim, lie);
    randomise(&b);
    return b;
}

static void make_data(Data *x, const Work *w, const Spec *spec) {
    const Sizes *n = &w->n;
    const int64_t out[] = {n->B, n->Hq, n->Sq, n->Dv}, keys[] = {n->B, n->Hkv, n->Sk, n->D}, values[] = {n->B, n->Hkv, n->Sk, n->Dv};
    const int64_t query[] = {n->B, n->Hq, n->Sq, n->D};
    memset(x, 0, sizeof *x);
    const int64_t size[SZ_COUNT] = {n->B, n->Hq, n->Hkv, n->Sq, n->Sk, n->off, n->D, n->Dv};
    memcpy(x->call.size, size, sizeof size);
    for (int i = 0; i < spec->nparam; i++) {
        const Scalar *v = &spec->param[i].value;
        x->call.scalar[i] = v->type == T_INT ? (double)v->u.i : v->u.f;
    }
    x->q = filled(spec->dtype, 4, query, w->lie), x->k = filled(spec->dtype, 4, keys, w->lie), x->v = filled(spec->dtype, 4, values, w->lie);
    x->o = filled(spec->dtype, 4, out, w->lie);
    x->call.q = x->q.t, x->call.k = x->k.t, x->call.v = x->v.t, x->call.o = x->o.t;
    for (int i = 0; i < spec->ninput; i++) {
        int64_t dim[INPUT_MAX_DIMS];
        for (int d = 0; d < spec->input[i].rank; d++) dim[d] = ag_input_extent(spec, i, d, size);
        x->input[i] = filled(spec->input[i].type, spec->input[i].rank, dim, w->lie);
        x->call.input[i] = x->input[i].t;
    }
    for (int i = 0; i < spec->nbranch; i++) x->branch[i] = filled(spec->dtype, 4, out, w->lie);
    if (w->derive >= 0) {
        int64_t rows = ag_pool_count(&spec->derive[w->derive], n->Sk);
        x->pool = buffer(spec->dtype, 4, (const int64_t[]){n->B, n->Hkv, rows, ag_source_cols(spec, (SpecRef){FROM_DERIVE, w->derive})}, w->lie);
    }
    if (w->in_place) {
        x->first = x->branch[0];
        x->branch[0] = (Buffer){.t = x->o.t};
        EACH_ELEMENT(out) ag_host_set(&x->first.t, i0, i1, i2, i3, ag_host_get(&x->o.t, i0, i1, i2, i3));
    }
}

static void free_data(Data *x) {
    free(x->q.flat), free(x->k.flat), free(x->v.flat), free(x->o.flat), free(x->pool.flat), free(x->first.flat);
    for (int i = 0; i < SPEC_MAX_INPUTS; i++) free(x->input[i].flat);
    for (int i = 0; i < SPEC_MAX_BRANCHES; i++) free(x->branch[i].flat);
}

/* What stands for tensor `program` of the program. */
static HostTensor tensor_of(const Data *x, const Spec *spec, int program) {
    if (program == TEN_O) return x->branch[0].t;
    if (program < ag_program_derive(spec, 0)) return x->input[program - ag_program_input(0)].t;
    if (program < ag_program_derive(spec, spec->nderive)) return x->pool.t;
    for (int i = 1; i < spec->nbranch; i++)
        if (program == ag_program_result(spec, i)) return x->branch[i].t;
    fail();
    return (HostTensor){0};
}

/* One rounding to the storage type (of each, if both are rounded), and some to float. */
static void expect_near(DType type, double got, double want, double roundings) {
    double half = fabs(want) * (type == DT_BF16 ? 0x1p-8 : 0x1p-11);
    if (got != want && !(fabs(got - want) <= roundings * half + 1e-5) && !(isnan(got) && isnan(want))) fail_msg("%.9g is not %.9g", got, want);
}

static void judge_pool(Data *x, const Work *w, const Spec *spec) {
    const int64_t *n = x->pool.dim;
    double *want = calloc((size_t)(n[0] * n[1] * n[2] * n[3]) + 1, sizeof *want), *at = want;
    ag_reference_pool(spec, &x->call, w->derive, want);
    EACH_ELEMENT(n) expect_near(spec->dtype, ag_host_get(&x->pool.t, i0, i1, i2, i3), *at++, 2);
    free(want);
    check_canaries(&x->pool);
}

static void judge_output(Data *x, const Work *w, const Spec *spec) {
    EACH_ELEMENT(x->o.dim) {
        double value[SPEC_MAX_BRANCHES];
        for (int i = 0; i < spec->nbranch; i++) value[i] = ag_host_get(i || !w->in_place ? &x->branch[i].t : &x->first.t, i0, i1, i2, i3);
        HostPoint at = {.b = i0, .h = i1, .q = i2 + w->n.off, .d = i3, .Sk = w->n.Sk, .branch = value};
        double want = spec->output ? ag_ast_eval_at(spec, &x->call, spec->output, &at).u.f : value[0];
        expect_near(spec->dtype, ag_host_get(&x->o.t, i0, i1, i2, i3), want, 1);
    }
    check_canaries(&x->o);
}

static void run_kernel(const Work *w, const Spec *spec, Kernel *k) {
    Data x;
    Buf message = {0};
    ProgramMeta meta;
    make_data(&x, w, spec);
    for (int i = TEN_COUNT; i < k->ntensor; i++) x.call.more[i - TEN_COUNT] = tensor_of(&x, spec, k->tensor[i].program);
    ag_putn(&message, "", 0);
    bool ok = ag_simulate(k, &x.call, &message);
    assert_string_equal(message.s, w->want ? w->want : "");
    assert_int_equal(ok, !w->want);
    ag_buf_free(&message);
    if (ok && w->derive >= 0) judge_pool(&x, w, spec);
    if (ok && w->derive < 0) judge_output(&x, w, spec);
    ag_program_meta(&meta, spec, &k, 1);
    int64_t rows = w->derive >= 0 ? x.pool.dim[2] : w->n.Sq, heads = w->derive >= 0 ? w->n.Hkv : w->n.Hq;
    if (!w->edit) assert_int_equal(ag_formula(&meta.kernel[0].blocks, x.call.size), (rows + k->queries - 1) / k->queries * heads * w->n.B);
    free_data(&x);
}

static void work(Diag *d, uint16_t file, void *payload) {
    Work *w = payload;
    Schedule schedule = small_schedule();
    attngen_dim dims[] = {{"D", w->n.D}, {"Dv", w->n.Dv}, {"dtype", ATTNGEN_BF16}};
    const Spec *spec = ag_spec_read(d, file, dims, 2);
    ag_stop_if_errors(d);
    Fn fn = {.d = d, .spec = spec, .sched = &schedule, .target = ag_target_find("sm_80")};
    Kernel *k = w->derive >= 0 ? ag_build_pool(&fn, w->derive) : ag_build_combine(&fn);
    if (w->edit) w->edit(k);
    if (!w->want) ag_tile_check(k, FACT_PLACED);
    ag_stop_if_errors(d);
    if (w->use)
        w->use(k);
    else
        run_kernel(w, spec, k);
    w->ran = true;
}

/* The errors are exactly `errors`. */
static void run_with(const char *spec, Work w, const char *errors) {
    char *report = report_of(ag_str(spec), work, &w, NULL);
    assert_string_equal(report, errors);
    assert_int_equal(w.ran, !*errors);
    free(report);
}

static const Sizes some = {2, 4, 2, 19, 23, 4, 16, 24};

static void run_all(const char *spec, int derive) {
    static const Sizes sizes[] = {
        {2, 4, 2, 19, 23, 4, 16, 24}, {1, 2, 1, 40, 33, -7, 20, 20}, {1, 6, 3, 1, 100, 99, 128, 128},
        {3, 1, 1, 5, 0, -5, 1, 1},    {1, 4, 4, 0, 7, 7, 8, 8},      {1, 2, 2, 70, 9, 100, 250, 256},
    };
    for (int i = 0; i < LEN(sizes); i++)
        for (int lie = 0; lie < LIE_COUNT; lie++) run_with(spec, (Work){.n = sizes[i], .lie = (Lie)lie, .derive = derive}, "");
}

/* ---- pools */

#define POOLS                                                                                                                                        \
    "attention: a\n"                                                                                                                                 \
    "inputs: {w: {f32: [5]}, kx: {dtype: [b, g, k, d]}}\n"                                                                                           \
    "derive:\n"                                                                                                                                      \
    "  kc: {pool: k, size: 4, stride: 2}\n"                                                                                                          \
    "  vc: {pool: v, size: 4, stride: 2}\n"                                                                                                          \
    "  kt: {pool: k, size: 4, stride: 3, tail: partial}\n"                                                                                           \
    "  vt: {pool: v, size: 4, stride: 3, tail: partial}\n"                                                                                           \
    "  kw: {pool: k, size: 5, stride: 2, weights: w}\n"                                                                                              \
    "  vw: {pool: v, size: 5, stride: 2, weights: w}\n"                                                                                              \
    "  kp: {pool: kx, size: 5, stride: 7, weights: w, tail: partial}\n"                                                                              \
    "  vp: {pool: v, size: 5, stride: 7, tail: partial}\n"                                                                                           \
    "  k1: {pool: k, size: 1, stride: 1}\n"                                                                                                          \
    "  v1: {pool: v, size: 1, stride: 1}\n"
#define POOLS_ALL                                                                                                                                    \
    POOLS "branches: {x: {keys: kc, values: vc}, y: {keys: kt, values: vt}, z: {keys: kw, values: vw}, u: {keys: kp, values: vp}}\noutput: x + y + " \
          "z + u\n"

static char *without(const char *text, const char *line) {
    char *s = strdup(text), *at = strstr(s, line), *end = strchr(at, '\n') + 1;
    memmove(at, end, strlen(end) + 1);
    return s;
}

static void test_pools(void **state) {
    (void)state;
    char *a = without(POOLS_ALL, "  k1:"), *spec = without(a, "  v1:");
    for (int derive = 0; derive < 8; derive++) run_all(spec, derive);
    free(a);
    free(spec);
    run_all("attention: a\nderive: {k1: {pool: k, size: 1, stride: 1}, v1: {pool: v, size: 1, stride: 1}}\nbranches: {x: {keys: k1, values: v1}}\n",
            1);
}

static char *file(const char *name) {
    char path[128], *text = calloc(1, 8192);
    snprintf(path, sizeof path, "specs/%s.yaml", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_true(fread(text, 1, 8191, f) > 0);
    fclose(f);
    return text;
}

static void test_nsa(void **state) {
    (void)state;
    static const char *const names[] = {"nsa", "nsa_gate_per_token"};
    static const Sizes sizes[] = {
        {2, 4, 2, 50, 130, 80, 64, 64}, {1, 2, 1, 40, 31, -9, 64, 64}, {1, 2, 1, 9, 32, 23, 20, 28}, {1, 2, 2, 300, 300, 0, 128, 128}};
    for (int n = 0; n < LEN(names); n++) {
        char *spec = file(names[n]);
        for (int i = 0; i < LEN(sizes); i++)
            for (int derive = -1; derive < 2; derive++) run_with(spec, (Work){.n = sizes[i], .derive = derive, .in_place = true}, "");
        free(spec);
    }
    char *moba = file("moba");
    run_with(moba, (Work){.n = {1, 4, 2, 20, 700, 680, 32, 16}, .derive = 0}, "");
    run_with(moba, (Work){.n = {1, 4, 2, 20, 700, 680, 32, 16}, .derive = -1}, "");
    free(moba);
}

/* ---- outputs */

#define TWO(inputs, output)                                                                                                                          \
    "attention: a\nparams: {bias: 0.25, shift: {int: 2}}\n" inputs "branches: {x: {mask: k <= q}, y: {mask: k >= q}}\noutput: " output "\n"

static void test_outputs(void **state) {
    (void)state;
    static const char *const specs[] = {
        "attention: a\nbranches: {x: {mask: k <= q}}\n",
        TWO("", "x - bias * y"),
        TWO("inputs: {gate: {f32: [b, q, 3]}, alpha: {bf16: []}}\nlet: {w: 'sigmoid(gate[b, q, 0])'}\n",
            "w * x + (1 - w) * y + alpha * gate[b, q, 2]"),
        /* a gather of a gather; some documents are not in the table */
        TWO("inputs: {doc: {i32: [b, q]}, table: {f16: [10, d]}, rms: {f32: [h, d]}}\n", "x * table[doc[b, q], d] + y * rms[h, d]"),
        TWO("inputs: {at: {i32: [9]}, doc: {i64: [b, 16]}, f: {f32: [q]}}\n", "x * f[doc[b, at[q % 9]]] + y"),
        /* subscripts past the ends; positions that are no rows; a dim of one element */
        TWO("inputs: {gate: {f32: [b, q, 3]}, one: {f32: [1, h, 1]}}\n",
            "x * gate[b, q - 1, 1] + y * gate[b, q + shift, 2] + one[q, h, d] + gate[q, b, d]"),
        TWO("inputs: {kind: {u8: [g, 2]}, keep: {bool: [b, k]}}\n", "(x if keep[b, q] else y) * kind[g, 1] + (kind[h, 0] if g > 0 else 3)"),
        TWO("inputs: {w: {f32: [b, h, q, d]}, v1: {dtype: [b, g, k, d]}}\n",
            "w[b, h, q, d] * x + w[b, h, q, Dv - 1 - d] * y + v1[b, g, q, d // 2] + w[b, h, q, d + 1]"),
        TWO("inputs: {n: {i32: [h, d]}, m: {bool: [d]}}\n", "x * n[h, d] if m[d] and q >= 0 else y * d - (q + off) * 0.125 + Sk / (1 + Sq) + b"),
        TWO("inputs: {a: {f32: [h]}}\nlet: {t: 'exp(-a[h])', u: 't * t + q % 2'}\n", "tanh(x) / (1 + u + d) + u * relu(y) ** 2"),
        TWO("inputs: {a: {f32: [h]}}\n", "a[h] if h < 3 else x + y"),
        TWO("inputs: {m: {f32: [b, h, q, 2, 2, d]}, n: {f32: [2, b, 1, h, q]}}\n", "x * m[b, h, q, 0, 1, d] + n[1, b, 0, h, q] * y"),
    };
    for (int i = 0; i < LEN(specs); i++) {
        run_all(specs[i], -1);
        for (int lie = 0; lie < LIE_COUNT; lie++) run_with(specs[i], (Work){.n = some, .lie = (Lie)lie, .derive = -1, .in_place = true}, "");
    }
}

/* ---- text */

static const char *const *lines; /* that the text has to have, in this order; ends with NULL */
static void has_lines(Kernel *k) {
    Buf cu = {0};
    ag_emit(&cu, k->spec, &k, 1, NULL);
    const char *at = cu.s;
    for (int i = 0; lines[i]; i++) {
        const char *found = strstr(at, lines[i]);
        if (!found) fail_msg("no `%s` in\n%s", lines[i], cu.s);
        at = found + strlen(lines[i]);
    }
    ag_buf_free(&cu);
}

static void test_text(void **state) {
    (void)state;
    static const char *const pool[] = {
        "// nsa: attention forward, generated by attngen ",
        "//\n// Pool\n//   kc       means of 32 rows, 16 apart, of k\n",
        "LEAF void sum_rows(",
        "    const u16 *k;\n    u16 *u_kc;\n    i64 k_b, k_h, k_s, k_d; // strides, elements\n    i64 s0_kc, s1_kc, s2_kc, s3_kc;",
        "__launch_bounds__(THREADS, 4) nsa_pool0(const __grid_constant__ Args args) {\n",
        "    const int row = row0 + (int)threadIdx.x / 16, d0 = (int)threadIdx.x % 16 * 8;\n",
        "const int first = row * 16, rows = min(32, args.Sk - first);\n",
        "sum_rows<bf16_in>(y, source, args.k_s, args.k_d, rows, 128 - d0, args.vec & 2);\n",
        NULL};
    static const char *const output[] = {"//   output   gate[b, q, h, 0] * cmp + gate[b, q, h, 1] * slc + gate[b, q, h, 2] * win\n",
                                         "    if (row < args.Sq) {\n"
                                         "        const float u0_gate = args.u_gate[b * args.s0_gate + row * args.s1_gate + h * args.s2_gate];\n",
                                         "y[e] = u0_gate * u_cmp[e] + u1_gate * u_slc[e] + u2_gate * u_win[e];\n", NULL};
    static const char *const odd[] = {"    // ---- each thread has 8 channels of a row\n"
                                      "    const int row = row0 + (int)threadIdx.x / 3, d0 = (int)threadIdx.x % 3 * 8;\n"
                                      "    if ((int)threadIdx.x < 255 && row < args.Sq) {\n",
                                      "        const int u_doc = args.u_doc[b * args.s0_doc + row * args.s1_doc];\n",
                                      "= load_8<f16_in>(args.u_table + u_doc * args.s0_table + d0 * args.s1_table, args.s1_table, "
                                      "inside(u_doc, 10) ? 20 - d0 : 0, args.vec & 256);\n",
                                      NULL};
    char *nsa = file("nsa");
    lines = pool;
    run_with(nsa, (Work){.n = {.D = 128, .Dv = 128}, .use = has_lines, .derive = 0}, "");
    lines = output;
    run_with(nsa, (Work){.n = {.D = 128, .Dv = 128}, .use = has_lines, .derive = -1}, "");
    free(nsa);
    lines = odd;
    run_with(TWO("inputs: {doc: {i32: [b, q]}, table: {f16: [10, d]}}\n", "x * table[doc[b, q], d] + y"),
             (Work){.n = {.D = 20, .Dv = 20}, .use = has_lines, .derive = -1}, "");
}

static void has_dump(Kernel *k) {
    Buf text = {0};
    ag_tile_dump(&text, k);
    for (int i = 0; lines[i]; i++)
        if (!strstr(text.s, lines[i])) fail_msg("no `%s` in\n%s", lines[i], text.s);
    ag_buf_free(&text);
}

static void test_dump(void **state) {
    (void)state;
    static const char *const pool[] = {"grid    ceildiv(max(ceildiv(Sk - 4, 2), 0), 64) * Hkv * B\n", "load1   k[B, Hkv, Sk, 32] bf16\n",
                                       "  pool kw[b, g, rows row0 ..] = mean of 5 rows, one every 2 of k weighted by w\n", NULL};
    static const char *const output[] = {"  each o[b, h, rows row0 ..] = load7[b, h, q - off, d] - bias * load8[b, h, q - off, d]\n", NULL};
    char *a = without(POOLS_ALL, "  k1:"), *spec = without(a, "  v1:");
    lines = pool;
    run_with(spec, (Work){.n = {.D = 32, .Dv = 32}, .use = has_dump, .derive = 4}, "");
    lines = output;
    run_with(TWO("", "x - bias * y"), (Work){.n = {.D = 32, .Dv = 32}, .use = has_dump, .derive = -1}, "");
    free(a);
    free(spec);
}

/* ---- broken kernels */

static Ins *last(Kernel *k) { return k->role[0].body.last; }
static Ins *let_of(Kernel *k, const char *name) {
    for (Ins *i = k->role[0].body.first; i; i = i->next)
        if (i->op == TI_LET && ag_str_is(k->val[i->dst].name, name)) return i;
    fail();
    return NULL;
}
static Ref add_one(Kernel *k, Ref r) { return ag_node_op(&k->nodes, OP_ADD, r, ag_node_int(&k->nodes, 1), 0, (Span){0}); }

static void later_rows(Kernel *k) { let_of(k, "row0")->e[0] = add_one(k, let_of(k, "row0")->e[0]); }
static void fewer_rows(Kernel *k) { k->queries--; }
static void twice(Kernel *k) { ag_block_append(&k->role[0].body, ag_ins_clone(k, last(k))); }
static void next_head(Kernel *k) { last(k)->e[3] = add_one(k, last(k)->e[3]); }
static void next_batch(Kernel *k) { last(k)->e[2] = add_one(k, last(k)->e[2]); }
static void fewer_blocks(Kernel *k) { k->blocks = ag_node_op(&k->nodes, OP_SUB, k->blocks, ag_node_int(&k->nodes, 1), 0, (Span){0}); }
static void more_rows(Kernel *k) { k->tensor[TEN_COUNT].extent[2] = ag_node_leaf(&k->nodes, OP_SIZE, T_INT, SZ_SK, (Span){0}); }
static void other_type(Kernel *k) { k->tensor[TEN_COUNT].type = DT_F16; }

static void test_broken_runs(void **state) {
    (void)state;
    const char *pool =
        "attention: a\nderive: {kc: {pool: k, size: 4, stride: 2}, vc: {pool: v, size: 4, stride: 2}}\nbranches: {x: {keys: kc, values: vc}}\n";
    const Sizes n = {1, 1, 1, 200, 400, 200, 16, 16};
    run_with(pool, (Work){n, .want = "simulated launch: element [0, 0, 0, 0] of kc is never written", .edit = later_rows}, "");
    run_with(pool, (Work){n, .want = "simulated launch: element [0, 0, 127, 0] of kc is never written", .edit = fewer_rows}, "");
    run_with(pool, (Work){n, .want = "simulated block 0 (m 0, b 0): pool kc: element [0, 0, 0, 0] is written twice (from t.yaml:2)", .edit = twice},
             "");
    run_with(pool, (Work){n, .want = "simulated block 0 (m 0, b 0): pool kc: head 1 of kc, which has 1 (from t.yaml:2)", .edit = next_head}, "");
    run_with(pool, (Work){n, .want = "simulated launch: element [0, 0, 128, 0] of kc is never written", .edit = fewer_blocks}, "");
    run_with(pool, (Work){.n = n, .want = "simulated block 1 (m 1, b 0): pool kc: row 200 is the mean of no row (from t.yaml:2)", .edit = more_rows},
             "");
    const char *output = TWO("", "x + y");
    run_with(output, (Work){n, .derive = -1, .want = "simulated launch: element [0, 0, 0, 0] of o is never written", .edit = later_rows}, "");
    run_with(
        output,
        (Work){n, .derive = -1, .want = "simulated block 0 (m 0, h 0, b 0): each o: batch 1 of o, which has 1 (from t.yaml:4)", .edit = next_batch},
        "");
    run_with(output,
             (Work){n, .derive = -1, .want = "simulated block 0 (m 0, h 0, b 0): each o: x is given as bf16 (from t.yaml:4)", .edit = other_type},
             "");
}

static void no_rows(Kernel *k) { last(k)->a = TEN_LSE; }
static void other_shape(Kernel *k) { k->tensor[TEN_K].extent[3] = ag_node_int(&k->nodes, 8); }
static void no_size(Kernel *k) { last(k)->e[4] = ag_node_leaf(&k->nodes, OP_SIZE, T_INT, SZ_SK, (Span){0}); }
static void wrong_weights(Kernel *k) { last(k)->b = TEN_K; }
static void no_output(Kernel *k) { last(k)->n = TEN_K; }
static void too_few_threads(Kernel *k) { k->queries++; }
static void other_kind(Kernel *k) { k->kind = KERNEL_ATTEND; }
static void whole_number(Kernel *k) { last(k)->e[0] = ag_node_int(&k->nodes, 1); }
static void key(Kernel *k) {
    last(k)->e[0] = ag_node_op(&k->nodes, OP_TOFLOAT, ag_node_leaf(&k->nodes, OP_AXIS, T_INT, AX_K, (Span){0}), 0, 0, (Span){0});
}
static void short_load(Kernel *k) { k->tensor[TEN_COUNT].rank = 3; }
static void other_element(Kernel *k) { k->tensor[TEN_COUNT].type = DT_I32; }
static void channel(Kernel *k) { last(k)->e[1] = ag_node_leaf(&k->nodes, OP_AXIS, T_INT, AX_D, (Span){0}); }

static void test_checks(void **state) {
    (void)state;
    static const struct {
        int derive;
        void (*edit)(Kernel *);
        const char *error;
    } cases[] = {
        {0, no_rows, "pool: the source is no tensor of rows"},
        {0, other_shape, "pool: the pooled rows are of another shape than the source's"},
        {0, no_size, "pool: stride and size are no positive constants"},
        {0, wrong_weights, "pool: there is not one weight for each row of a block"},
        {0, no_output, "pool: it must write rows of an output tensor in a storage type"},
        {0, too_few_threads, "pool: a block has fewer threads than channels"},
        {-1, too_few_threads, "each: a block has fewer threads than channels"},
        {-1, whole_number, "each: the expression is no float"},
        {-1, key, "each: an axis is read where it has no value"},
        {-1, short_load, "each: an element has other dims than its tensor"},
        {-1, other_element, "each: an element has another type than its tensor"},
        {-1, channel, "each: an axis is read where it has no value"},
        {-1, other_kind, "kernel: the queries of a tile have more rows than it"},
    };
    const char *spec =
        "attention: a\nderive: {kc: {pool: k, size: 4, stride: 2}, vc: {pool: v, size: 4, stride: 2}}\nbranches: {x: {keys: kc, values: vc}}\n";
    for (int i = 0; i < LEN(cases); i++) {
        Work w = {.n = {1, 1, 1, 8, 8, 0, 16, 16}, .derive = cases[i].derive, .edit = cases[i].edit};
        attngen_status status;
        char *report = report_of(ag_str(spec), work, &w, &status);
        if (!strstr(report, cases[i].error)) fail_msg("no `%s` in\n%s", cases[i].error, report);
        assert_int_equal(status, ATTNGEN_E_INTERNAL);
        free(report);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools), cmocka_unit_test(test_nsa),         cmocka_unit_test(test_outputs), cmocka_unit_test(test_text),
        cmocka_unit_test(test_dump),  cmocka_unit_test(test_broken_runs), cmocka_unit_test(test_checks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
