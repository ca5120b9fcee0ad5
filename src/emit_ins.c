/* emit_ins.c: instructions of the Tile IR -> CUDA statements. */
#include <assert.h>
#include <string.h>

#include "emit.h"

int ag_frag_mt(const Kernel *k, const Val *v) { return v->rows / (16 * k->role[0].warps); }

static const Val *val(const Emit *e, int i) { return &e->k->val[i]; }
static const char *name(const Emit *e, int i) { return val(e, i)->name.s; }
static bool is_zero(const Emit *e, Ref r) { return ag_node_is_int(&e->k->nodes, r, 0); }

/* Uniform expression as text in the arena. */
static const char *text(const Emit *e, Ref r) {
    Buf b = {0};
    ag_emit_expr(e, &b, r, NULL);
    const char *s = ag_str_copy(e->k->arena, (Str){b.s ? b.s : "", (int)b.n}).s;
    ag_buf_free(&b);
    return s;
}
static bool is_atom(const Emit *e, Ref r) { return ag_op[e->k->nodes.n[r].op].arity == 0; }
static const char *atom(const Emit *e, Ref r) { return is_atom(e, r) ? text(e, r) : ag_fmt(e->k->arena, "(%s)", text(e, r)).s; }

/* Address of a stage of a shared value. */
static const char *stage(const Emit *e, int v, Ref index) {
    if (is_zero(e, index)) return name(e, v);
    return ag_fmt(e->k->arena, "%s + %s * %s_BYTES", name(e, v), atom(e, index), name(e, v)).s;
}

/* ---- declarations: variables before the instruction that first writes them, in its block; pointers before the first top-level instruction that needs them */
static void declare(Emit *e, int v) {
    const Val *x = val(e, v);
    if (v < 0 || e->declared[v] || x->space == SPACE_SHARED || x->space == SPACE_SCALAR) return;
    e->declared[v] = true;
    int mt = ag_frag_mt(e->k, x);
    if (x->space == SPACE_ROW)
        ag_emit_line(e, "float %s[%d][2];", x->name.s, mt);
    else if (x->layout == LAYOUT_ACC)
        ag_emit_line(e, "float %s[%d][%d][4];", x->name.s, mt, x->cols / 8);
    else
        ag_emit_line(e, "u32 %s[%d][%d][4];", x->name.s, mt, x->cols / 16);
}
static void head_pointer(Emit *e, int tensor, Ref batch, Ref head) {
    if (e->head[tensor]) return;
    e->head[tensor] = true;
    const KernelTensor *t = &e->k->tensor[tensor];
    ag_emit_line(e, "%s*%s_head = args.%s + %s * args.%s_b + %s * args.%s_h;",
                 t->type == DT_F32 ? "float "
                 : t->output       ? "u16 "
                                   : "const u16 ",
                 t->name, t->name, atom(e, batch), t->name, atom(e, head), t->name);
}
static void head_pointers(Emit *e, const Ins *i) {
    if (i->op == TI_COPY) head_pointer(e, i->a, i->e[3], i->e[4]);
    if (i->op == TI_STORE) head_pointer(e, i->n, i->e[2], i->e[3]);
    for (const Ins *x = i->body.first; x; x = x->next) head_pointers(e, x);
}

/* ---- one function per op */
static const char *const c_type[] = {"", "bool", "int", "float"};

static void emit_let(Emit *e, const Ins *i) {
    ag_emit_line(e, "const %s %s = %s;", c_type[val(e, i->dst)->scalar], name(e, i->dst), text(e, i->e[0]));
}

static void emit_loop(Emit *e, const Ins *i) {
    const char *j = name(e, i->dst);
    if (i->n < 0)
        ag_emit_line(e, "ROLLED for (int %s = %s - 1; %s >= %s; %s--) {", j, text(e, i->e[0]), j, text(e, i->e[1]), j);
    else
        ag_emit_line(e, "ROLLED for (int %s = %s; %s < %s; %s++) {", j, text(e, i->e[0]), j, text(e, i->e[1]), j);
    bool *outer = e->declared; /* what a step declares is gone after it */
    e->declared = NEWN(e->k->arena, bool, (size_t)e->k->nval);
    memcpy(e->declared, outer, sizeof(bool) * (size_t)e->k->nval);
    ag_emit_block(e, &i->body);
    e->declared = outer;
    ag_emit_line(e, "}");
}

static void emit_if(Emit *e, const Ins *i) {
    ag_emit_line(e, "if (%s) {", text(e, i->e[0]));
    ag_emit_block(e, &i->body);
    ag_emit_line(e, "}");
}

static void open_rows(Emit *e, const Val *v) { ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++)", ag_frag_mt(e->k, v)); }

static void fill(Emit *e, const Val *v, const char *x) {
    int mt = ag_frag_mt(e->k, v);
    if (v->space == SPACE_ROW)
        ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) %s[mi][0] = %s[mi][1] = %s;", mt, v->name.s, v->name.s, x);
    else
        ag_emit_line(
            e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int ni = 0; ni < %d; ni++) UNROLL for (int e = 0; e < 4; e++) %s[mi][ni][e] = %s;",
            mt, v->cols / 8, v->name.s, x);
}

static void emit_fill(Emit *e, const Ins *i) {
    declare(e, i->dst);
    fill(e, val(e, i->dst), text(e, i->e[0]));
}

static void emit_copy(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    const KernelTensor *t = &e->k->tensor[i->a];
    const char *row = atom(e, i->e[1]);
    ag_emit_line(e, "copy_tile<%d, %d, THREADS>(%s, %s_head + (i64)%s * args.%s_s, args.%s_s, args.%s_d, %s - %s, args.vec & %d);", v->rows, t->cols,
                 stage(e, i->dst, i->e[0]), t->name, row, t->name, t->name, t->name, text(e, i->e[2]), row, 1 << i->a);
}

static void emit_load(Emit *e, const Ins *i) {
    const Val *s = val(e, i->a);
    declare(e, i->dst);
    ag_emit_line(e, "load_a<%d>(%s, %s + warp_row * %d);", s->cols, name(e, i->dst), stage(e, i->a, i->e[0]), s->cols * 2);
}

static void emit_mma(Emit *e, const Ins *i) {
    const Val *a = val(e, i->a), *b = val(e, i->b);
    declare(e, i->dst);
    if (i->zero) fill(e, val(e, i->dst), "0.f");
    bool from_shared = a->space == SPACE_SHARED;
    assert(i->trans || !from_shared);
    ag_emit_line(e, "mma_%s_%s<%s, %d>(%s, %s%s, %s);", from_shared ? "ss" : "rs", i->trans ? "nt" : "nn", e->elem, b->cols, name(e, i->dst),
                 from_shared ? stage(e, i->a, i->e[1]) : name(e, i->a), from_shared ? ag_fmt(e->k->arena, " + warp_row * %d", a->cols * 2).s : "",
                 stage(e, i->b, i->e[0]));
}

/* ---- maps */
static void positions(Emit *e, const Ins *i, bool q, bool k, const char *r) {
    if (q) ag_emit_line(e, "const int q = %s + lane_row + mi * 16 + %s * 8;", text(e, i->e[1]), r);
    if (k) ag_emit_line(e, "const int k = %s + lane_col + ni * 8 + e %% 2;", text(e, i->e[2]));
}

static const char *expr(Emit *e, Ref r, const Names *n, const bool *shared) {
    Buf b = {0};
    ag_emit_expr_with(e, &b, r, n, shared);
    const char *s = ag_str_copy(e->k->arena, (Str){b.s ? b.s : "", (int)b.n}).s;
    ag_buf_free(&b);
    return s;
}

static void map_rows(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    Names n = {.mi = "mi", .r = "r"};
    bool *shared = NEWN(e->k->arena, bool, (size_t)e->k->nodes.len), q = ag_expr_uses(e->k, i->e[0], OP_AXIS, AX_Q);
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) {", ag_frag_mt(e->k, v));
    e->indent++;
    positions(e, i, q, false, "r");
    ag_emit_shared(e, i->e[0], &n, shared);
    ag_emit_line(e, "%s[mi][r] = %s;", v->name.s, expr(e, i->e[0], &n, shared));
    e->indent--;
    ag_emit_line(e, "}");
}

static void map_acc(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    Names n = {.mi = "mi", .ni = "ni", .ei = "e", .r = "e / 2"};
    bool *shared = NEWN(e->k->arena, bool, (size_t)e->k->nodes.len);
    bool q = ag_expr_uses(e->k, i->e[0], OP_AXIS, AX_Q), k = ag_expr_uses(e->k, i->e[0], OP_AXIS, AX_K);
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int ni = 0; ni < %d; ni++) UNROLL for (int e = 0; e < 4; e++) {",
                 ag_frag_mt(e->k, v), v->cols / 8);
    e->indent++;
    positions(e, i, q, k, "(e / 2)");
    ag_emit_shared(e, i->e[0], &n, shared);
    ag_emit_line(e, "%s[mi][ni][e] = %s;", v->name.s, expr(e, i->e[0], &n, shared));
    e->indent--;
    ag_emit_line(e, "}");
}

/* Into an A operand: register r of k16 step ki holds columns of accumulator tiles 2 ki and 2 ki + 1. */
static void map_operand(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    Names lo = {.mi = "mi", .ni = "2 * ki + r / 2", .ei = "r % 2 * 2", .r = "r % 2"}, hi = lo;
    hi.ei = "r % 2 * 2 + 1";
    assert(!ag_expr_uses(e->k, i->e[0], OP_AXIS, AX_Q) && !ag_expr_uses(e->k, i->e[0], OP_AXIS, AX_K));
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int ki = 0; ki < %d; ki++) UNROLL for (int r = 0; r < 4; r++)",
                 ag_frag_mt(e->k, v), v->cols / 16);
    ag_emit_line(e, "    %s[mi][ki][r] = %s::pack(%s, %s);", v->name.s, e->elem, expr(e, i->e[0], &lo, NULL), expr(e, i->e[0], &hi, NULL));
}

static void emit_map(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    declare(e, i->dst);
    if (v->space == SPACE_ROW)
        map_rows(e, i);
    else if (v->layout == LAYOUT_ACC)
        map_acc(e, i);
    else
        map_operand(e, i);
}

static void emit_reduce(Emit *e, const Ins *i) {
    const Val *a = val(e, i->a), *v = val(e, i->dst);
    bool max = i->reduce == OP_RMAX;
    declare(e, i->dst);
    open_rows(e, v);
    ag_emit_line(e, "    UNROLL for (int r = 0; r < 2; r++) {");
    e->indent += 2;
    if (i->b >= 0)
        ag_emit_line(e, "float x = %s[mi][r];", name(e, i->b));
    else
        ag_emit_line(e, "float x = %s;", max ? "NEG_INF" : "0.f");
    if (max)
        ag_emit_line(e, "UNROLL for (int ni = 0; ni < %d; ni++) x = fmaxf(x, fmaxf(%s[mi][ni][2 * r], %s[mi][ni][2 * r + 1]));", a->cols / 8,
                     a->name.s, a->name.s);
    else
        ag_emit_line(e, "UNROLL for (int ni = 0; ni < %d; ni++) x += %s[mi][ni][2 * r] + %s[mi][ni][2 * r + 1];", a->cols / 8, a->name.s, a->name.s);
    ag_emit_line(e, v->partial ? "%s[mi][r] = x;" : max ? "%s[mi][r] = quad_max(x);" : "%s[mi][r] = quad_sum(x);", v->name.s);
    e->indent -= 2;
    ag_emit_line(e, "    }");
}

static void emit_total(Emit *e, const Ins *i) {
    declare(e, i->dst);
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) %s[mi][r] = quad_sum(%s[mi][r]);",
                 ag_frag_mt(e->k, val(e, i->dst)), name(e, i->dst), name(e, i->a));
}

static void emit_store(Emit *e, const Ins *i) {
    const KernelTensor *t = &e->k->tensor[i->n];
    const Val *v = val(e, i->a);
    const char *row = atom(e, i->e[0]), *n = t->name, *rows = text(e, i->e[1]);
    if (i->b >= 0) {
        ag_emit_line(e, "stage_c<%s, %d>(%s + warp_row * %d, %s);", e->elem, v->cols, name(e, i->b), v->cols * 2, name(e, i->a));
        ag_emit_line(e, "__syncthreads();");
        ag_emit_line(e, "store_tile<%d, %d, THREADS>(%s_head + (i64)%s * args.%s_s, args.%s_s, args.%s_d, %s, %s - %s, args.vec & %d);", v->rows,
                     t->cols, n, row, n, n, n, name(e, i->b), rows, row, 1 << i->n);
    } else
        ag_emit_line(e, "store_c<%s, %d>(%s_head + (i64)%s * args.%s_s, args.%s_s, args.%s_d, %s, lane_row, %s - %s, args.vec & %d);", e->elem,
                     t->cols, n, row, n, n, n, name(e, i->a), rows, row, 1 << i->n);
}

static void emit_store_row(Emit *e, const Ins *i) {
    const char *n = e->k->tensor[i->n].name, *row = atom(e, i->e[0]);
    ag_emit_line(e, "if (args.%s && threadIdx.x %% 4 == 0)", n);
    ag_emit_line(e, "    UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) {", ag_frag_mt(e->k, val(e, i->a)));
    ag_emit_line(e, "        const int row = %s + lane_row + mi * 16 + r * 8;", row);
    ag_emit_line(e, "        if (row < %s) args.%s[%s * args.%s_b + %s * args.%s_h + row * args.%s_s] = %s[mi][r];", text(e, i->e[1]), n,
                 atom(e, i->e[2]), n, atom(e, i->e[3]), n, n, name(e, i->a));
    ag_emit_line(e, "    }");
}

static void emit_ins(Emit *e, const Ins *i) {
    if (i->note) ag_emit_line(e, "// %s", i->note);
    switch (i->op) {
    case TI_LET: emit_let(e, i); break;
    case TI_LOOP: emit_loop(e, i); break;
    case TI_IF: emit_if(e, i); break;
    case TI_FILL: emit_fill(e, i); break;
    case TI_COPY: emit_copy(e, i); break;
    case TI_COMMIT: ag_emit_line(e, "cp_async_commit();"); break;
    case TI_WAIT: ag_emit_line(e, "cp_async_wait<%d>();", i->n); break;
    case TI_SYNC: ag_emit_line(e, "__syncthreads();"); break;
    case TI_LOAD: emit_load(e, i); break;
    case TI_MMA: emit_mma(e, i); break;
    case TI_MAP: emit_map(e, i); break;
    case TI_REDUCE: emit_reduce(e, i); break;
    case TI_TOTAL: emit_total(e, i); break;
    case TI_STORE: emit_store(e, i); break;
    case TI_STORE_ROW: emit_store_row(e, i); break;
    }
}

void ag_emit_block(Emit *e, const Block *b) {
    e->indent++;
    for (const Ins *i = b->first; i; i = i->next) {
        if (e->indent == 1) head_pointers(e, i);
        emit_ins(e, i);
    }
    e->indent--;
}
