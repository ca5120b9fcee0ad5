/* emit_ins.c: instructions of the Tile IR -> CUDA statements. */
#include <assert.h>
#include <string.h>

#include "emit.h"

int ag_frag_mt(const Kernel *k, const Val *v) { return v->rows / (16 * k->role[0].warps); }

static const Val *val(const Emit *e, int i) { return &e->k->val[i]; }
static const char *name(const Emit *e, int i) { return val(e, i)->name.s; }
static bool is_zero(const Emit *e, Ref r) { return ag_node_is_int(&e->k->nodes, r, 0); }

/* Uniform expression as text in the arena. */
const char *ag_emit_text(const Emit *e, Ref r) {
    Buf b = {0};
    ag_emit_expr(e, &b, r);
    const char *s = ag_str_copy(e->k->arena, (Str){b.s ? b.s : "", (int)b.n}).s;
    ag_buf_free(&b);
    return s;
}
/* A name, a number, or one call. */
static bool is_atom(const char *s) {
    s += strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
    int depth = 0;
    while (*s && (depth += (*s == '(') - (*s == ')')) > 0) s++;
    return !*s || (*s == ')' && !s[1]);
}
const char *ag_emit_atom(const Emit *e, Ref r) {
    const char *s = ag_emit_text(e, r);
    return is_atom(s) ? s : ag_fmt(e->k->arena, "(%s)", s).s;
}

/* An expression per row or element. */
static const char *expr(Emit *e, Ref r, const Names *n, const char *const *shared) {
    Buf b = {0};
    ag_emit_expr_with(e, &b, r, n, shared);
    const char *s = ag_str_copy(e->k->arena, (Str){b.s ? b.s : "", (int)b.n}).s;
    ag_buf_free(&b);
    return s;
}

/* Address of a stage of a shared value. */
const char *ag_emit_stage(const Emit *e, int v, Ref index) {
    if (is_zero(e, index)) return name(e, v);
    return ag_fmt(e->k->arena, "%s + %s * %s_BYTES", name(e, v), ag_emit_atom(e, index), name(e, v)).s;
}

/* ---- declarations: variables before the instruction that first writes them, in its block; pointers before the first top-level instruction that needs them */
static void declare_as(Emit *e, int v, const char *init) {
    const Val *x = val(e, v);
    if (e->declared[v] || x->space == SPACE_SHARED || x->space == SPACE_SCALAR) return;
    e->declared[v] = true;
    int mt = ag_frag_mt(e->k, x);
    if (x->space == SPACE_ROW)
        ag_emit_line(e, "float %s[%d][2]%s;", x->name.s, mt, init);
    else if (x->fetched && x->type != DT_F32)
        ag_emit_line(e, "u32 %s[%d][%d][2]%s;", x->name.s, mt, x->cols / 8, init);
    else if (x->layout == LAYOUT_ACC)
        ag_emit_line(e, "float %s[%d][%d][4]%s;", x->name.s, mt, x->cols / 8, init);
    else
        ag_emit_line(e, "u32 %s[%d][%d][4]%s;", x->name.s, mt, x->cols / 16, init);
}
void ag_emit_declare(Emit *e, int v) { declare_as(e, v, ""); }

static void head_pointer(Emit *e, int tensor, Ref batch, Ref head) {
    if (e->head[tensor]) return;
    e->head[tensor] = true;
    const KernelTensor *t = &e->k->tensor[tensor];
    ag_emit_line(e, "%s*%s_head = args.%s + %s * args.%s_b + %s * args.%s_h;", ag_emit_pointer(t), t->name, t->name, ag_emit_atom(e, batch), t->name,
                 ag_emit_atom(e, head), t->name);
}
/* In a kernel of one role before the first instruction of its body that needs them somewhere inside, else in the very block. */
static void head_pointers(Emit *e, const Ins *i) {
    if (i->op == TI_COPY && i->bar < 0) head_pointer(e, i->a, i->e[3], i->e[4]);
    if (i->op == TI_STORE && !i->async) head_pointer(e, i->n, i->e[2], i->e[3]);
    for (const Ins *x = i->body.first; x && e->k->nrole == 1; x = x->next) head_pointers(e, x);
}

/* ---- one function per op */
static const char *const c_type[] = {"", "bool", "int", "float"};

static bool heads_stage(const char *note) { return note && note[0] == '-'; }
static void emit_let(Emit *e, const Ins *i) {
    bool behind = i->note && !heads_stage(i->note);
    const char *first = val(e, i->dst)->varies ? "" : "const ";
    ag_emit_line(e, "%s%s %s = %s;%s%s", first, c_type[val(e, i->dst)->scalar], name(e, i->dst), ag_emit_text(e, i->e[0]), behind ? " // " : "",
                 behind ? i->note : "");
    if (val(e, i->dst)->divides) ag_emit_line(e, "const Divider %s_by = divider(%s);", name(e, i->dst), name(e, i->dst));
}

/* A block in braces: what it declares is gone after it. */
static void emit_scope(Emit *e, const Block *b) {
    bool *outer = e->declared, head[KERNEL_TENSORS];
    memcpy(head, e->head, sizeof head);
    e->declared = NEWN(e->k->arena, bool, (size_t)e->k->nval);
    memcpy(e->declared, outer, sizeof(bool) * (size_t)e->k->nval);
    ag_emit_block(e, b);
    memcpy(e->head, head, sizeof head);
    e->declared = outer;
}

static void emit_loop(Emit *e, const Ins *i) {
    const char *j = name(e, i->dst), *from = ag_emit_text(e, i->e[0]), *to = ag_emit_text(e, i->e[1]), *less = i->n < 0 ? ">=" : "<";
    /* Kernels of one role keep the test at the loop's head, see the leaf; with wgmma it gains nothing. */
    const char *test = ag_fmt(e->k->arena, e->k->nrole == 1 ? "AT_HEAD(%s %s %s)" : "%s %s %s", j, less, to).s;
    ag_emit_line(e, "ROLLED for (int %s = %s%s; %s; %s%s) {", j, from, i->n < 0 ? " - 1" : "", test, j, i->n < 0 ? "--" : "++");
    e->loops++;
    emit_scope(e, &i->body);
    e->loops--;
    ag_emit_line(e, "}");
}

static void emit_while(Emit *e, const Ins *i) {
    ag_emit_line(e, "ROLLED while (%s) {", ag_emit_text(e, i->e[0]));
    e->loops++;
    emit_scope(e, &i->body);
    e->loops--;
    ag_emit_line(e, "}");
}

/* And the else that may follow: each side begins with the same asynchronous mma in flight. */
static void emit_if(Emit *e, const Ins *i) {
    InFlight before = e->flight;
    ag_emit_line(e, "if (%s) {", ag_emit_text(e, i->e[0]));
    emit_scope(e, &i->body);
    if (i->next && i->next->op == TI_ELSE) {
        ag_emit_line(e, "} else {");
        e->flight = before;
        emit_scope(e, &i->next->body);
    }
    ag_emit_line(e, "}");
}

static void emit_fill(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    const char *x = ag_emit_text(e, i->e[0]);
    bool clear = ag_node_is_float(&e->k->nodes, i->e[0], 0) && !e->declared[i->dst];
    declare_as(e, i->dst, clear ? " = {}" : "");
    if (clear) return;
    int mt = ag_frag_mt(e->k, v);
    if (v->space == SPACE_ROW)
        ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) %s[mi][0] = %s[mi][1] = %s;", mt, v->name.s, v->name.s, x);
    else
        ag_emit_line(
            e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int ni = 0; ni < %d; ni++) UNROLL for (int e = 0; e < 4; e++) %s[mi][ni][e] = %s;",
            mt, v->cols / 8, v->name.s, x);
}

/* Position and head of row (mi, r), if asked for. */
static void row_axes(Emit *e, const Ins *i, bool query, bool head) {
    int pack = e->k->pack;
    if (query && e->k->entries) /* rows behind the tile's entries are those of the last */
        ag_emit_line(e, "const int q = query_of(entries, min(%s + quot(%s + mi * 16 + r * 8, %d), end - 1)) + args.off;", ag_emit_text(e, i->e[1]),
                     e->lane_row, pack);
    if (query && !e->k->entries && pack == 1) ag_emit_line(e, "const int q = %s + %s + mi * 16 + r * 8;", ag_emit_text(e, i->e[1]), e->lane_row);
    if (query && !e->k->entries && pack > 1)
        ag_emit_line(e, "const int q = %s + quot(%s + mi * 16 + r * 8, %d);", ag_emit_text(e, i->e[1]), e->lane_row, pack);
    if (head) ag_emit_line(e, "const int h = %s + rem(%s + mi * 16 + r * 8, %d);", ag_emit_text(e, i->e[3]), e->lane_row, pack);
}

static void all_row_axes(Emit *e, const Ins *i) {
    row_axes(e, i, ag_expr_uses(e->k, i->e[0], OP_AXIS, AX_Q), ag_expr_uses(e->k, i->e[0], OP_AXIS, AX_H));
}

static bool uses(const Kernel *k, const Block *b, int v) {
    for (const Ins *i = b->first; i; i = i->next) {
        if (i->dst == v || i->a == v || i->b == v || uses(k, &i->body, v)) return true;
        for (int x = 0; x < LEN(i->e); x++)
            if (i->e[x] && ag_expr_uses(k, i->e[x], OP_VAL, v)) return true;
    }
    return false;
}

/* The one before with the same condition, in the same block; NULL. */
static const Ins *same_any(const Ins *i) {
    const Ins *x = i->prev;
    while (x && (x->op != TI_ANY || x->e[0] != i->e[0])) x = x->prev;
    return x;
}

/* The name of the flag is that of the instruction's place, so that two in one block differ.  A later body under the same condition takes the flag, and the values
 * that the first has left in registers, which are declared in front of both then. */
static void emit_any(Emit *e, const Ins *i) {
    Names n = {.mi = "mi", .r = "r"};
    const char **shared = NEWN(e->k->arena, const char *, (size_t)e->k->nodes.len);
    int mt = (int)e->k->sched->f[F_TILE_M].v / (16 * e->k->role[0].warps);
    if (same_any(i)) {
        ag_emit_line(e, "if (__any_sync(~0u, any%d)) {", i->e[0]);
        emit_scope(e, &i->body);
        ag_emit_line(e, "}");
        return;
    }
    for (const Ins *x = i->next; x; x = x->next)
        for (const Ins *w = i->body.first; w && x->op == TI_ANY && x->e[0] == i->e[0]; w = w->next)
            if (w->dst >= 0 && uses(e->k, &x->body, w->dst)) ag_emit_declare(e, w->dst);
    ag_emit_line(e, "bool any%d = false;", i->e[0]);
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) {", mt);
    e->indent++;
    all_row_axes(e, i);
    ag_emit_shared(e, i->e[0], &n, shared, SHARE_ELEMENT);
    ag_emit_line(e, "any%d |= %s;", i->e[0], expr(e, i->e[0], &n, shared));
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "if (__any_sync(~0u, any%d)) {", i->e[0]);
    emit_scope(e, &i->body);
    ag_emit_line(e, "}");
}

/* Pieces of queries that a lane copies in one turn: where a warp's rows are whole queries all of them, each looked up once; fewer with long blocks, whose scores take the
 * registers (ptxas spills 120 bytes otherwise), or where each piece is looked up. */
enum { ENTRY_PIECES = 4, ENTRY_PIECES_LONG = 8, LONG_KEYS = 64 };

static void emit_copy(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    const KernelTensor *t = &e->k->tensor[i->a];
    const char *row = ag_emit_atom(e, i->e[1]);
    if (t->rows == SZ_SQ && e->k->entries) {
        int rows = v->rows / e->k->role[0].warps;
        bool few = rows % e->k->pack || e->k->pack == 2; /* two heads: ptxas 13.0 spills 24 bytes with more */
        int turn = few ? ENTRY_PIECES : e->k->sched->f[F_TILE_N].v > LONG_KEYS ? ENTRY_PIECES_LONG : rows;
        ag_emit_line(e, "copy_entries<%d, %d, %d, %d>(%s, %s_head, args.%s_s, args.%s_h, args.%s_d, entries, %s, %s - %s, args.vec & %d);", rows,
                     t->cols, e->k->pack, turn, ag_emit_stage(e, i->dst, i->e[0]), t->name, t->name, t->name, t->name, row, ag_emit_text(e, i->e[2]),
                     row, 1 << i->a);
        return;
    }
    if (t->rows == SZ_SQ && e->k->pack > 1) {
        const char *rows = ag_fmt(e->k->arena, "%s - %s", ag_emit_text(e, i->e[2]), row).s;
        if (e->k->queries * e->k->pack < v->rows) rows = ag_fmt(e->k->arena, "min(%s, %d)", rows, e->k->queries).s;
        ag_emit_line(e, "copy_packed<%d, %d, %d, THREADS>(%s, %s_head + (i64)%s * args.%s_s, args.%s_s, args.%s_h, args.%s_d, %s, args.vec & %d);",
                     v->rows, t->cols, e->k->pack, ag_emit_stage(e, i->dst, i->e[0]), t->name, row, t->name, t->name, t->name, t->name, rows,
                     1 << i->a);
        return;
    }
    bool listed = (e->k->list || e->k->tiles) && t->rows == SZ_SK;
    if (listed) { /* which block or tile it is, is asked once */
        ag_emit_line(e, "{");
        e->indent++;
        ag_emit_line(e, "const int first = %s;", ag_emit_text(e, i->e[1]));
        row = "first";
    }
    ag_emit_line(e, "copy_tile<%d, %d, THREADS%s>(%s, %s_head + (i64)%s * args.%s_s, args.%s_s, args.%s_d, %s - %s, args.vec & %d);", v->rows,
                 t->cols, e->loops ? "" : ", 4", ag_emit_stage(e, i->dst, i->e[0]), t->name, row, t->name, t->name, t->name, ag_emit_text(e, i->e[2]),
                 row, 1 << i->a);
    if (listed) {
        e->indent--;
        ag_emit_line(e, "}");
    }
}

static void emit_entries(Emit *e, const Ins *i) {
    const char *b = ag_emit_atom(e, i->e[0]), *h = ag_emit_atom(e, i->e[1]);
    ag_emit_line(e, "const Entries<%d> entries = {args.first + %s * args.first_b + %s * args.first_h, %s, %s};", i->n, b, h, name(e, i->dst),
                 ag_emit_text(e, i->e[2]));
    ag_emit_line(e, "keep_entries<%d, THREADS>(%s, args.entry + %s * args.entry_b + %s * args.entry_h, entries.from, %s);", val(e, i->dst)->cols,
                 name(e, i->dst), b, h, ag_emit_text(e, i->e[3]));
}

static const char *list_place(const Emit *e, const Ins *i, const char *name) {
    return ag_fmt(e->k->arena, "%s * args.s0_%s + %s * args.s1_%s + %s * args.s2_%s", ag_emit_atom(e, i->e[0]), name, ag_emit_atom(e, i->e[1]), name,
                  ag_emit_atom(e, i->e[2]), name)
        .s;
}

static void emit_union(Emit *e, const Ins *i) {
    const KernelTensor *t = &e->k->tensor[i->a];
    const char *united = name(e, i->bar), *counts = "nullptr, 0";
    if (i->b >= 0) {
        const char *c = e->k->tensor[i->b].name;
        counts = ag_fmt(e->k->arena, "args.u_%s + (%s), args.s2_%s", c, list_place(e, i, c), c).s;
    }
    ag_emit_line(e, "const UnionList list = {%s, (const u32 *)%s + %d};", united, united, val(e, i->bar)->cols);
    ag_emit_line(e, "const int %s = unite_lists<%d, %s, %d, THREADS>(%s, args.u_%s + (%s), args.s2_%s, args.s3_%s, %s, %s, ceil_div(args.Sk, %d));",
                 name(e, i->dst), e->k->queries, ag_emit_text(e, t->extent[3]), val(e, i->bar)->cols, united, t->name, list_place(e, i, t->name),
                 t->name, t->name, counts, ag_emit_text(e, i->e[3]), i->n);
}

enum { KEPT_SLOTS = 64 }; /* of a list in registers: two a lane */

static void emit_list(Emit *e, const Ins *i) {
    if (i->dst >= 0) {
        emit_union(e, i);
        return;
    }
    const KernelTensor *t = &e->k->tensor[i->a];
    const char *count = ag_emit_text(e, t->extent[3]);
    if (i->b >= 0) {
        const char *c = e->k->tensor[i->b].name;
        count = ag_fmt(e->k->arena, "min(%s, args.u_%s[%s])", count, c, list_place(e, i, c)).s;
    }
    const Node *slots = &e->k->nodes.n[t->extent[3]];
    if (slots->op == OP_CONST && slots->value.u.i <= KEPT_SLOTS) {
        ag_emit_line(e, "const KeptList<%s> list = keep_list<%s, %s>(args.u_%s + (%s), args.s3_%s, %s, ceil_div(args.Sk, %d));",
                     ag_emit_text(e, t->extent[3]), ag_emit_text(e, t->extent[3]), e->k->unique ? "true" : "false", t->name,
                     list_place(e, i, t->name), t->name, count, i->n);
        return;
    }
    ag_emit_line(e, "const %s list = {args.u_%s + (%s), args.s3_%s, %s, ceil_div(args.Sk, %d)};", e->k->unique ? "UniqueList" : "BlockList", t->name,
                 list_place(e, i, t->name), t->name, count, i->n);
}

static void emit_load(Emit *e, const Ins *i) {
    const Val *s = val(e, i->a);
    if (s->elements) {
        ag_emit_load_elements(e, i);
        return;
    }
    ag_emit_declare(e, i->dst);
    ag_emit_line(e, "load_a<%d>(%s, %s + warp_row * %d);", s->cols, name(e, i->dst), ag_emit_stage(e, i->a, i->e[0]), s->cols * 2);
}

static void emit_mma(Emit *e, const Ins *i) {
    const Val *d = val(e, i->dst), *a = val(e, i->a), *b = val(e, i->b);
    e->mma_sync = true;
    if (a->panels) { /* one warp by itself, beside the asynchronous ones */
        ag_emit_line(e, "mma_panels<%s, %d, %d>(%s, %s, row_of_warp(), %s);", e->elem, a->rows, a->cols, d->name.s, ag_emit_stage(e, i->a, i->e[1]),
                     ag_emit_stage(e, i->b, i->e[0]));
        return;
    }
    if (i->zero) {
        Ins clear = {.op = TI_FILL, .dst = i->dst, .e = {ag_node_float((Nodes *)&e->k->nodes, 0)}};
        emit_fill(e, &clear);
    }
    bool from_shared = a->space == SPACE_SHARED;
    assert(i->trans || !from_shared);
    const char *first = i->col ? ag_fmt(e->k->arena, ", %d", i->col).s : "";
    ag_emit_line(e, "mma_%s_%s<%s, %d%s>(%s, %s%s, %s);", from_shared ? "ss" : "rs", i->trans ? "nt" : "nn", e->elem, b->cols, first, name(e, i->dst),
                 from_shared ? ag_emit_stage(e, i->a, i->e[1]) : name(e, i->a),
                 from_shared ? ag_fmt(e->k->arena, " + warp_row * %d", a->cols * 2).s : "", ag_emit_stage(e, i->b, i->e[0]));
}

/* ---- maps: rows (mi, r) outside, then columns (ni, e); what is the same for a whole row is computed outside */
/* Prints what body prints, and whether it printed anything. */
static Buf captured(Emit *e, const Ins *i, const Names *n, const char **shared, void (*body)(Emit *, const Ins *, const Names *, const char **)) {
    Buf b = {0}, *out = e->out;
    e->out = &b;
    body(e, i, n, shared);
    e->out = out;
    return b;
}
static void first_key(Emit *e, const Ins *i) {
    if (ag_expr_uses(e->k, i->e[0], OP_AXIS, AX_K))
        ag_emit_line(e, "const int k0 = %s + %s; // the lane's first key", ag_emit_text(e, i->e[2]), e->lane_col);
}
static void row_constants(Emit *e, const Ins *i, const Names *n, const char **shared) {
    all_row_axes(e, i);
    first_key(e, i);
    ag_emit_shared(e, i->e[0], n, shared, val(e, i->dst)->space == SPACE_ROW ? SHARE_ELEMENT : SHARE_ROW);
    if (val(e, i->dst)->space == SPACE_FRAG) ag_emit_ramps(e, i, n, shared);
}
static void element_constants(Emit *e, const Ins *i, const Names *n, const char **shared) {
    if (ag_reads_axis(e, i->e[0], shared, AX_K)) ag_emit_line(e, "const int k = k0 + %s;", n->col);
    ag_emit_shared(e, i->e[0], n, shared, SHARE_ELEMENT);
}
/* A loop head, its constants, and what stands in it; braces only around more than one statement. */
static void open_loop(Emit *e, const char *head, Buf *constants) {
    ag_emit_line(e, constants->n ? "%s {" : "%s", head);
    e->indent++;
    ag_putn(e->out, constants->s, constants->n);
}
static void close_loop(Emit *e, Buf *constants) {
    e->indent--;
    if (constants->n) ag_emit_line(e, "}");
    e->out->oom |= constants->oom;
    ag_buf_free(constants);
}

static const char *const col_text[] = {"ni * 8", "ni * 8 + 1", "ni * 8 + e"}, *const element_text[] = {"2 * r", "2 * r + 1", "2 * r + e"};

/* One statement of a map: which of a pair of columns (0, 1), or e (2). */
typedef struct Statement {
    Buf row, element; /* constants */
    const char *text;
} Statement;
static Statement map_statement(Emit *e, const Ins *i, int which) {
    const Val *v = val(e, i->dst);
    bool wide = v->space == SPACE_FRAG;
    Names n = {.mi = "mi", .ni = "ni", .ei = element_text[which], .r = "r", .col = col_text[which]};
    const char **shared = NEWN(e->k->arena, const char *, (size_t)e->k->nodes.len);
    Statement s = {0};
    e->indent++;
    s.row = captured(e, i, &n, shared, row_constants);
    e->indent += wide;
    if (wide) s.element = captured(e, i, &n, shared, element_constants);
    e->indent -= 1 + wide;
    const char *x = expr(e, i->e[0], &n, shared);
    s.text = wide ? ag_fmt(e->k->arena, "%s[mi][ni][%s] = %s;", v->name.s, n.ei, x).s : ag_fmt(e->k->arena, "%s[mi][r] = %s;", v->name.s, x).s;
    return s;
}
static void free_statement(Statement *s) {
    ag_buf_free(&s->row);
    ag_buf_free(&s->element);
}

/* Two columns, a statement each: the innermost loop costs compile time. */
static void map_pair(Emit *e, const Ins *i, const char *cols) {
    ag_emit_line(e, "%s {", cols);
    e->indent++;
    for (int which = 0; which < 2; which++) {
        Statement s = map_statement(e, i, which);
        ag_emit_line(e, "%s", s.text);
        free_statement(&s);
    }
    e->indent--;
    ag_emit_line(e, "}");
}

static void emit_map_loops(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    const char *rows = ag_fmt(e->k->arena, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++)", ag_frag_mt(e->k, v)).s;
    const char *cols = ag_fmt(e->k->arena, "UNROLL for (int ni = 0; ni < %d; ni++)", v->cols / 8).s;
    Statement s = map_statement(e, i, 2);
    open_loop(e, rows, &s.row);
    if (v->space != SPACE_FRAG)
        ag_emit_line(e, "%s", s.text);
    else if (s.element.n == 0)
        map_pair(e, i, cols);
    else {
        open_loop(e, ag_fmt(e->k->arena, "%s UNROLL for (int e = 0; e < 2; e++)", cols).s, &s.element);
        ag_emit_line(e, "%s", s.text);
        close_loop(e, &s.element);
    }
    close_loop(e, &s.row);
}

/* Rows whose constants are elements of arrays: declared here, set in a loop of their own. */
static void row_arrays(Emit *e, const Ins *i, const Names *n, const char **shared) {
    all_row_axes(e, i);
    size_t axes = e->out->n;
    ag_emit_shared(e, i->e[0], n, shared, SHARE_ROW);
    if (e->out->n == axes) e->out->n = 0; /* nothing asks for them */
}
static void inner_constants(Emit *e, const Ins *i, const Names *n, const char **shared) {
    row_axes(e, i, ag_reads_axis(e, i->e[0], shared, AX_Q), ag_reads_axis(e, i->e[0], shared, AX_H));
    ag_emit_shared(e, i->e[0], n, shared, SHARE_ELEMENT);
}

/* Columns outside, rows inside: for what is read of captured tensors once per column. */
static void emit_map_columns(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    const char *rows = ag_fmt(e->k->arena, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++)", ag_frag_mt(e->k, v)).s;
    const char **shared = NEWN(e->k->arena, const char *, (size_t)e->k->nodes.len);
    Names n = {.mi = "mi", .ni = "ni", .ei = element_text[2], .r = "r", .col = col_text[2]};
    Buf arrays = {0};
    ag_emit_line(e, "{");
    e->indent++;
    first_key(e, i);
    ag_emit_by_distance(e, i, shared);
    ag_emit_block_parts(e, i->e[0], &n, shared);
    e->arrays = &arrays;
    e->row_tiles = ag_frag_mt(e->k, v);
    e->indent++;
    Buf row = captured(e, i, &n, shared, row_arrays);
    e->indent--;
    e->arrays = NULL;
    ag_putn(e->out, arrays.s, arrays.n);
    if (row.n) {
        ag_emit_line(e, "%s {", rows);
        ag_putn(e->out, row.s, row.n);
        ag_emit_line(e, "}");
    }
    ag_emit_line(e, "UNROLL for (int ni = 0; ni < %d; ni++) UNROLL for (int e = 0; e < 2; e++) {", v->cols / 8);
    e->indent++;
    if (ag_reads_axis(e, i->e[0], shared, AX_K)) ag_emit_line(e, "const int k = k0 + %s;", n.col);
    ag_emit_shared(e, i->e[0], &n, shared, SHARE_COLUMN);
    e->indent++;
    Buf inner = captured(e, i, &n, shared, inner_constants);
    e->indent--;
    open_loop(e, rows, &inner);
    ag_emit_line(e, "%s[mi][ni][%s] = %s;", v->name.s, n.ei, expr(e, i->e[0], &n, shared));
    close_loop(e, &inner);
    e->indent--;
    ag_emit_line(e, "}");
    e->indent--;
    ag_emit_line(e, "}");
    e->out->oom |= arrays.oom | row.oom;
    ag_buf_free(&arrays);
    ag_buf_free(&row);
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

/* Elements of a captured tensor: what lies before its columns row by row, then pairs of them. */
static void map_fetched(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    const Node *load = &e->k->nodes.n[i->e[0]];
    const char **shared = NEWN(e->k->arena, const char *, (size_t)e->k->nodes.len);
    Names n = {.mi = "mi", .ni = "ni", .ei = element_text[2], .r = "r", .col = col_text[2]};
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) {", ag_frag_mt(e->k, v));
    e->indent++;
    row_constants(e, i, &n, shared);
    const Base *b = &e->base[i->e[0]];
    ag_emit_line(e, "fetch_pairs(%s[mi], r, %s, args.s%d_%s, %s, k0);", v->name.s, b->at, load->nsub - 1, e->k->tensor[load->index].name, b->limit);
    e->indent--;
    ag_emit_line(e, "}");
}

static void emit_map(Emit *e, const Ins *i) {
    const Val *v = val(e, i->dst);
    bool wide = v->space == SPACE_FRAG;
    ag_emit_declare(e, i->dst);
    e->base = wide ? NEWN(e->k->arena, Base, (size_t)e->k->nodes.len) : NULL;
    if (v->layout == LAYOUT_A)
        map_operand(e, i);
    else if (v->fetched)
        map_fetched(e, i);
    else if (wide && ag_loads_column(e->k, i->e[0]))
        emit_map_columns(e, i);
    else
        emit_map_loops(e, i);
    e->base = NULL;
}

static void emit_reduce(Emit *e, const Ins *i) {
    const Val *a = val(e, i->a), *v = val(e, i->dst);
    bool max = i->reduce == OP_RMAX;
    ag_emit_declare(e, i->dst);
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) {", ag_frag_mt(e->k, v));
    e->indent++;
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
    e->indent--;
    ag_emit_line(e, "}");
}

static void emit_total(Emit *e, const Ins *i) {
    ag_emit_declare(e, i->dst);
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) %s[mi][r] = quad_sum(%s[mi][r]);",
                 ag_frag_mt(e->k, val(e, i->dst)), name(e, i->dst), name(e, i->a));
}

/* How the rows of an output lie: by their stride, or packed heads side by side. */
const char *ag_emit_rows(const Emit *e, const char *n) {
    if (e->k->entries)
        return ag_fmt(e->k->arena, "Scattered<%d>{entries.kept + (e - entries.from), args.%s_s, args.%s_h, end - e - 1}", e->k->pack, n, n).s;
    if (e->k->pack == 1) return ag_fmt(e->k->arena, "args.%s_s", n).s;
    return ag_fmt(e->k->arena, "Packed<%d>{args.%s_s, args.%s_h}", e->k->pack, n, n).s;
}

static void emit_store(Emit *e, const Ins *i) {
    const KernelTensor *t = &e->k->tensor[i->n];
    const Val *v = val(e, i->a);
    const char *row = ag_emit_atom(e, i->e[0]), *n = t->name, *rows = ag_emit_text(e, i->e[1]);
    int cols = t->cols - i->col < v->cols ? t->cols - i->col : v->cols;
    const char *first = i->col ? ag_fmt(e->k->arena, " + %d * args.%s_d", i->col, n).s : "";
    if (i->b >= 0) {
        ag_emit_line(e, "stage_c<%s, %d>(%s + warp_row * %d, %s);", e->elem, v->cols, name(e, i->b), v->cols * 2, name(e, i->a));
        ag_emit_line(e, "__syncthreads();");
        ag_emit_line(e, "store_tile<%d, %d, THREADS>(%s_head + (i64)%s * args.%s_s, %s, args.%s_d, %s, %s - %s, args.vec & %d);", v->rows, t->cols, n,
                     row, n, ag_emit_rows(e, n), n, name(e, i->b), rows, row, 1 << i->n);
    } else
        ag_emit_line(e, "%s<%s, %d>(%s_head%s%s, %s, args.%s_d, %s, %s, %s - %s, args.vec & %d);",
                     e->k->nrole > 1 || e->k->entries ? "store_quads" : "store_c", e->elem, cols, n,
                     e->k->entries ? "" : ag_fmt(e->k->arena, " + (i64)%s * args.%s_s", row, n).s, first, ag_emit_rows(e, n), n, name(e, i->a),
                     e->lane_row, rows, row, 1 << i->n);
}

static void emit_store_row(Emit *e, const Ins *i) {
    const char *n = e->k->tensor[i->n].name, *row = ag_emit_atom(e, i->e[0]);
    ag_emit_line(e, "if (args.%s && threadIdx.x %% 4 == 0)", n);
    ag_emit_line(e, "    UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) {", ag_frag_mt(e->k, val(e, i->a)));
    const char *text = ag_emit_atom(e, i->e[3]), *head = text, *to = "row";
    if (e->k->entries) {
        ag_emit_line(e, "        const int row = %s + quot(%s + mi * 16 + r * 8, %d), head = %s + rem(%s + mi * 16 + r * 8, %d);", row, e->lane_row,
                     e->k->pack, text, e->lane_row, e->k->pack);
        head = "head";
        to = "(i64)entry_of(entries, row)";
    } else if (e->k->pack == 1)
        ag_emit_line(e, "        const int row = %s + %s + mi * 16 + r * 8;", row, e->lane_row);
    else {
        ag_emit_line(e, "        const int row = %s + quot(%s + mi * 16 + r * 8, %d), head = %s + rem(%s + mi * 16 + r * 8, %d);", row, e->lane_row,
                     e->k->pack, text, e->lane_row, e->k->pack);
        head = "head";
    }
    ag_emit_line(e, "        if (row < %s) args.%s[%s * args.%s_b + %s * args.%s_h + %s * args.%s_s] = %s[mi][r];", ag_emit_text(e, i->e[1]), n,
                 ag_emit_atom(e, i->e[2]), n, head, n, to, n, name(e, i->a));
    ag_emit_line(e, "    }");
}

static void emit_ins(Emit *e, const Ins *i) {
    if (i->note && (i->op != TI_LET || heads_stage(i->note))) ag_emit_line(e, "// %s", i->note);
    switch (i->op) {
    case TI_LET: emit_let(e, i); break;
    case TI_LOOP: emit_loop(e, i); break;
    case TI_SET: ag_emit_line(e, "%s = %s;", name(e, i->dst), ag_emit_text(e, i->e[0])); break;
    case TI_WHILE: emit_while(e, i); break;
    case TI_IF: emit_if(e, i); break;
    case TI_ELSE: break; /* printed with its if */
    case TI_PUT:
    case TI_GET:
    case TI_FETCH:
    case TI_RESET:
    case TI_TAKE_TURN:
    case TI_PASS_TURN:
    case TI_STORE_WAIT: ag_emit_tiles(e, i); break;
    case TI_ANY: emit_any(e, i); break;
    case TI_LIST: emit_list(e, i); break;
    case TI_ENTRIES: emit_entries(e, i); break;
    case TI_FIND: ag_emit_line(e, "%s = find_block(entries, %s, %s);", name(e, i->dst), ag_emit_text(e, i->e[1]), ag_emit_text(e, i->e[0])); break;
    case TI_FILL: emit_fill(e, i); break;
    case TI_COPY:
        if (i->bar >= 0)
            ag_emit_tma(e, i);
        else
            emit_copy(e, i);
        break;
    case TI_COMMIT: ag_emit_line(e, "cp_async_commit();"); break;
    case TI_WAIT: ag_emit_line(e, "cp_async_wait<%d>();", i->n); break;
    case TI_SYNC:
        if (e->k->barrier[i->n].kind == BARRIER_BLOCK)
            ag_emit_line(e, "__syncthreads();");
        else if (e->k->barrier[i->n].kind == BARRIER_WARP)
            ag_emit_line(e, "__syncwarp();");
        else
            ag_emit_barrier(e, i);
        break;
    case TI_EXPECT:
    case TI_WAIT_BAR:
    case TI_ARRIVE: ag_emit_barrier(e, i); break;
    case TI_MMA_COMMIT:
    case TI_MMA_WAIT: ag_emit_async_mma(e, i); break;
    case TI_LOAD: emit_load(e, i); break;
    case TI_STAGE: ag_emit_stage_panels(e, i); break;
    case TI_FENCE: ag_emit_line(e, "async_proxy_fence();"); break;
    case TI_MMA:
        if (i->async)
            ag_emit_async_mma(e, i);
        else
            emit_mma(e, i);
        break;
    case TI_MAP: emit_map(e, i); break;
    case TI_REDUCE: emit_reduce(e, i); break;
    case TI_TOTAL: emit_total(e, i); break;
    case TI_POOL:
    case TI_MERGE:
    case TI_EACH: ag_emit_each(e, i); break;
    case TI_ROWS: ag_emit_row_steps(e, i); break;
    case TI_ROW_NORM:
    case TI_ROW_MAP:
    case TI_ROW_APPEND:
    case TI_ROW_ROTATE: break; /* steps of TI_ROWS, which prints them */
    case TI_OUTPUT:
    case TI_OUTPUT_SUM: ag_emit_output(e, i); break;
    case TI_STORE:
        if (i->async)
            ag_emit_store_tma(e, i);
        else if (i->b >= 0 && e->k->val[i->b].panels)
            ag_emit_store_panels(e, i);
        else
            emit_store(e, i);
        break;
    case TI_STORE_ROW: emit_store_row(e, i); break;
    case TI_LOAD_ROW:
    case TI_CLEAR:
    case TI_SUM_HEADS:
    case TI_RANK:
    case TI_STORE_LIST: ag_emit_select(e, i); break;
    case TI_COUNT_LISTS:
    case TI_SCAN_LISTS:
    case TI_INVERT_LISTS: ag_emit_invert(e, i); break;
    case TI_BOUND:
    case TI_CLASSIFY: ag_emit_classify(e, i); break;
    }
}

void ag_emit_block(Emit *e, const Block *b) {
    e->indent++;
    for (const Ins *i = b->first; i; i = i->next) {
        if (e->indent == 1 || e->k->nrole > 1) head_pointers(e, i);
        emit_ins(e, i);
    }
    e->indent--;
}
