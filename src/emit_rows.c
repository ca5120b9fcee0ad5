/* emit_rows.c: TI_ROWS -> CUDA: rows of q and k, changed step by step.  Each thread has EACH_CHANNELS neighbouring channels y of a row, and neighbouring lanes of a
 * warp have the row.  Lanes without a row do as the last one does, and do not store: shuffles are for whole warps. */
#include <inttypes.h>

#include "emit.h"

typedef struct RowsOut {
    Emit *e;
    const Ins *i;
    const KernelTensor *out;
    int cols, lanes;
} RowsOut;

static const char *text(const RowsOut *x, Ref r) { return ag_emit_atom(x->e, r); }

/* "args.q + b * args.q_b + h0 * args.q_h + row * args.q_s + d0 * args.q_d": of the first head. */
static const char *place(const RowsOut *x, const char *name) {
    const char *b = text(x, x->i->e[2]), *h = text(x, x->i->e[3]);
    return ag_fmt(x->e->k->arena, "args.%s + %s * args.%s_b + %s * args.%s_h + row * args.%s_s + d0 * args.%s_d", name, b, name, h, name, name, name)
        .s;
}

static const char *each_head(const RowsOut *x) { return ag_fmt(x->e->k->arena, "UNROLL for (int i = 0; i < %d; i++) ", x->e->k->pack).s; }

/* Does the expression differ from head to head? */
static bool by_head(const RowsOut *x, Ref r) { return x->e->k->nodes.n[r].axes >> AX_H & 1; }

static void open_scope(Emit *e) {
    ag_emit_line(e, "{");
    e->indent++;
}

/* Of each head by itself, where h is; heads that are not there do as the last one does. */
static void open_heads(const RowsOut *x) {
    ag_emit_line(x->e, "%s{", each_head(x));
    x->e->indent++;
    ag_emit_line(x->e, "const int h = min(%s + i, %s - 1);", text(x, x->i->e[3]), ag_emit_text(x->e, x->out->extent[1]));
}

static void close_scope(Emit *e) {
    e->indent--;
    ag_emit_line(e, "}");
}

void ag_emit_rows_comment(Emit *e, const Ins *i) {
    const Prologue *p = &e->k->spec->prologue[i->a == TEN_K];
    ag_put(e->out, "//\n// Rows of %s, each\n", e->k->tensor[i->a].name);
    for (int s = 0; s < p->n; s++) {
        ag_put(e->out, "//   ");
        ag_row_step_print(e->out, e->k->spec, &p->step[s]);
        ag_put(e->out, "\n");
    }
    for (int s = 0; s < e->k->spec->ndot; s++) {
        const Dot *dot = &e->k->spec->dot[s];
        ag_put(e->out, "//   and behind it the channels of %.*s\n", STRF(e->k->spec->input[i->a == TEN_K ? dot->y : dot->x].name));
    }
}

/* ---- tables of angles */

static const char *table_name(const RowsOut *x, const Ins *step) {
    int n = 0;
    for (const Ins *s = x->i->body.first; s != step; s = s->next) n += s->turns != NULL;
    return ag_fmt(x->e->k->arena, "turns%d", n).s;
}

void ag_emit_turns(Emit *e) {
    enum { PER_LINE = 6 };
    const Ins *rows = e->k->role[0].body.last;
    if (!rows || rows->op != TI_ROWS) return;
    RowsOut x = {.e = e, .i = rows};
    for (const Ins *s = rows->body.first; s; s = s->next) {
        if (!s->turns) continue;
        ag_emit_line(e, "// By which each pair of channels turns from one position to the next, in 2^-64 of a circle.");
        ag_put(e->out, "__device__ const u64 %s[%d] = {", table_name(&x, s), s->col);
        for (int i = 0; i < s->col; i++) ag_put(e->out, "%s0x%016" PRIx64, i % PER_LINE ? ", " : i ? ",\n    " : "\n    ", s->turns[i]);
        ag_put(e->out, "};\n\n");
    }
}

/* ---- steps */

static void row_norm(const RowsOut *x, const Ins *s) {
    ag_emit_line(x->e, "%snormalise_row<%d, %d>(y[i], d0, %s);", each_head(x), x->lanes, x->e->k->tensor[x->i->a].cols, ag_emit_text(x->e, s->e[0]));
}

static void row_map(const RowsOut *x, const Ins *s) {
    bool apart = by_head(x, s->e[0]);
    if (apart)
        open_heads(x);
    else
        open_scope(x->e);
    ag_emit_row_loop(
        x->e, &(RowLoop){.rows = x->i, .value = s->e[0], .to = "y[i][e]", .first = "d0", .n = EACH_CHANNELS, .around = apart ? NULL : each_head(x)});
    close_scope(x->e);
}

/* The pair that element e of the thread is in, or where the pairs of all begin (*first). */
static const char *pair_of(const RowsOut *x, const Ins *s, const char **first) {
    Arena *a = x->e->k->arena;
    *first = "p0";
    if (s->trans) {
        ag_emit_line(x->e, "const int p0 = d0 / 2;");
        return "p0 + e";
    }
    if (s->col % EACH_CHANNELS == 0) {
        ag_emit_line(x->e, "const int p0 = d0 < %d ? d0 : d0 - %d;", s->col, s->col);
        return NULL;
    }
    return ag_fmt(a, "d0 + e < %d ? d0 + e : d0 + e - %d", s->col, s->col).s;
}

/* Cosines c and sines s of the pairs that the thread's n elements are in. */
static void angles(const RowsOut *x, const Ins *s, int n) {
    static const char *const to[] = {"c[e]", "s[e]"};
    Emit *e = x->e;
    const char *first, *at = pair_of(x, s, &first);
    ag_emit_line(e, "float c[%d], s[%d];", n, n);
    for (int i = 0; i < 2 && !s->turns; i++) {
        open_scope(e);
        ag_emit_row_loop(e, &(RowLoop){.rows = x->i, .value = s->e[i], .to = to[i], .first = first, .at = at, .n = n});
        close_scope(e);
    }
    if (!s->turns) return;
    bool all = 2 * s->col == x->lanes * EACH_CHANNELS; /* else there are lanes with no pair */
    const char *position = ag_emit_row_loop(e, &(RowLoop){.rows = x->i, .value = s->e[2], .first = "d0"}), *pair = at ? at : "p0 + e";
    if (!all) pair = ag_fmt(e->k->arena, "min(%s, %d)", pair, s->col - 1).s;
    ag_emit_line(e, "UNROLL for (int e = 0; e < %d; e++) turn_at(c[e], s[e], %s, %s[%s]);", n, position, table_name(x, s), pair);
}

static void row_rotate(const RowsOut *x, const Ins *s) {
    bool apart = false;
    for (int e = 0; e < 3; e++) apart |= by_head(x, s->e[e]);
    if (apart)
        open_heads(x);
    else
        open_scope(x->e);
    angles(x, s, s->trans ? EACH_CHANNELS / 2 : EACH_CHANNELS);
    ag_emit_line(x->e, s->trans ? "%srotate_neighbours<%d>(y[i], c, s, d0);" : "%srotate_halves<%d>(y[i], c, s, d0);", apart ? "" : each_head(x),
                 s->col);
    close_scope(x->e);
}

/* Channels of another tensor behind the row's. */
static void row_append(const RowsOut *x, const Ins *s) {
    Emit *e = x->e;
    const KernelTensor *a = &e->k->tensor[s->a];
    bool apart = by_head(x, s->e[1]);
    int n = (int)e->k->nodes.n[a->extent[3]].value.u.i;
    const char *type = ag_fmt(e->k->arena, "%s_in", ag_dtype_name[a->type]).s, *at = ag_fmt(e->k->arena, "args.u_%s", a->name).s;
    const char *to = apart ? "" : each_head(x);
    if (apart)
        open_heads(x);
    else
        open_scope(e);
    for (int i = 0; i < 2; i++) {
        const char *index = i == 0 ? text(x, s->e[i]) : ag_emit_row_loop(e, &(RowLoop){.rows = x->i, .value = s->e[i], .first = "d0"});
        if (!ag_node_is_int(&e->k->nodes, s->e[i], 0)) at = ag_fmt(e->k->arena, "%s + (%s) * args.s%d_%s", at, index, i, a->name).s;
    }
    at = ag_fmt(e->k->arena, "%s + row * args.s2_%s + (d0 - %d) * args.s3_%s", at, a->name, s->col, a->name).s;
    if (s->col % EACH_CHANNELS == 0) {
        ag_emit_line(e, "const Eight<%s> more = load_8<%s>(%s, args.s3_%s, d0 < %d ? 0 : %d - d0, args.vec & %d);", type, type, at, a->name, s->col,
                     s->col + n, 1 << s->a);
        ag_emit_line(e, "%sUNROLL for (int e = 0; e < 8; e++)", to);
        ag_emit_line(e, "    if (d0 >= %d) y[i][e] = more[e];", s->col);
    } else {
        ag_emit_line(e, "const %s::element *more = %s;", type, at);
        ag_emit_line(e, "%sUNROLL for (int e = 0; e < 8; e++)", to);
        ag_emit_line(e, "    if (d0 + e >= %d && d0 + e < %d) y[i][e] = %s::value(more[e * args.s3_%s]);", s->col, s->col + n, type, a->name);
    }
    close_scope(e);
}

/* ---- */

void ag_emit_row_steps(Emit *e, const Ins *i) {
    RowsOut x = {.e = e, .i = i, .out = &e->k->tensor[i->n], .cols = e->k->tensor[i->n].cols};
    x.lanes = ag_row_lanes(x.cols);
    const KernelTensor *a = &e->k->tensor[i->a];
    const char *row0 = text(&x, i->e[0]), *rows = ag_emit_text(e, x.out->extent[2]), *type = ag_fmt(e->k->arena, "%s_in", ag_dtype_name[a->type]).s;
    ag_emit_line(e, "// ---- each thread has 8 channels y[i] of a row of %d heads; a row is in one warp", e->k->pack);
    if (x.lanes > 1)
        ag_emit_line(e, "const int own = %s + (int)threadIdx.x / %d, row = min(own, %s - 1), d0 = (int)threadIdx.x %% %d * 8;", row0, x.lanes, rows,
                     x.lanes);
    else
        ag_emit_line(e, "const int own = %s + (int)threadIdx.x, row = min(own, %s - 1), d0 = 0;", row0, rows);
    const char *heads = ag_fmt(e->k->arena, "%s - %s", ag_emit_text(e, x.out->extent[1]), text(&x, i->e[3])).s;
    ag_emit_line(e, "float y[%d][8];", e->k->pack);
    ag_emit_line(e, "load_heads<%s>(y, %s, args.%s_h, %s, args.%s_d, %d - d0, args.vec & %d);", type, place(&x, a->name), a->name, heads, a->name,
                 a->cols, 1 << i->a);
    for (const Ins *s = i->body.first; s; s = s->next) {
        if (s->op == TI_ROW_NORM)
            row_norm(&x, s);
        else if (s->op == TI_ROW_MAP)
            row_map(&x, s);
        else if (s->op == TI_ROW_APPEND)
            row_append(&x, s);
        else
            row_rotate(&x, s);
    }
    ag_emit_line(e, "if (own < %s) store_heads<%s>(%s, args.%s_h, %s, args.%s_d, y, %d - d0, args.vec & %d);", rows, ag_dtype_name[x.out->type],
                 place(&x, x.out->name), x.out->name, heads, x.out->name, x.cols, 1 << i->n);
}
