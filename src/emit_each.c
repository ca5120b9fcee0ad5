/* emit_each.c: TI_POOL, TI_MERGE and TI_EACH -> CUDA.  Each thread has EACH_CHANNELS neighbouring channels of a row.  TI_OUTPUT and
 * TI_OUTPUT_SUM are the same of a fragment, where a thread has two neighbouring channels of every 8.
 *
 * Names of the user's have prefixes that keep them apart from one another and from ours: args.u_gate is the pointer of a tensor, args.s0_gate the stride of its first
 * dim; u_cmp is what a thread has read of a tensor, u0_gate, u1_gate if it reads several elements. */
#include <string.h>

#include "emit.h"

typedef struct Each {
    Emit *e;
    const Ins *i;
    const KernelTensor *out;
    Ref b, h;                                          /* batch and head of all elements; 0 */
    const char *first;                                 /* the thread's first channel */
    bool fragment;                                     /* channels lie in a fragment */
    int chunk;                                         /* eights of channels of a fragment whose pieces are read at a time; 0: all */
    Ref row;                                           /* off subtracted from the position: the row */
    const char **text;                                 /* per Ref: the name of what is computed already */
    int *uses;                                         /* per Ref: how often it is read */
    bool *by_channel;                                  /* per Ref: by something that varies with the channel, though it does not itself */
    const RowLoop *loop;                               /* of a step of TI_ROWS; NULL */
    int loads[KERNEL_TENSORS], loaded[KERNEL_TENSORS]; /* per tensor: elements that are read; those that have a name */
} Each;

static const Nodes *nodes(const Each *x) { return &x->e->k->nodes; }
static bool varies(const Each *x, Ref r) { return nodes(x)->n[r].axes >> AX_D & 1; }

/* ---- tensors */

static const char *pointer(const Each *x, int tensor) {
    const KernelTensor *t = &x->e->k->tensor[tensor];
    return ag_fmt(x->e->k->arena, "args.%s%s", t->named ? "u_" : "", t->name).s;
}

static const char *stride(const Each *x, int tensor, int dim) {
    const KernelTensor *t = &x->e->k->tensor[tensor];
    return t->named ? ag_fmt(x->e->k->arena, "args.s%d_%s", dim, t->name).s : ag_fmt(x->e->k->arena, "args.%s_%c", t->name, "bhsd"[dim]).s;
}

/* The type that loads of a tensor of floats name. */
static const char *reader(const KernelTensor *t) { return t->type == DT_F16 ? "f16_in" : t->type == DT_BF16 ? "bf16_in" : "f32_in"; }

static const char *expr(const Each *x, Ref r) {
    Buf b = {0};
    ag_emit_expr_with(x->e, &b, r, NULL, x->text);
    const char *s = ag_str_copy(x->e->k->arena, (Str){b.s ? b.s : "", (int)b.n}).s;
    x->e->out->oom |= b.oom;
    ag_buf_free(&b);
    return s;
}

static const char *factor(const Each *x, Ref r) {
    const char *s = expr(x, r);
    bool word = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == strlen(s);
    return word ? s : ag_fmt(x->e->k->arena, "(%s)", s).s;
}

/* " + b * args.k_b + ..." for the first n subscripts; those that are 0 are left out. */
static const char *offset(const Each *x, int tensor, const Ref *sub, int n) {
    const char *s = "";
    for (int i = 0; i < n; i++) {
        const char *by = stride(x, tensor, i);
        if (ag_node_is_int(nodes(x), sub[i], 0)) continue;
        s = ag_node_is_int(nodes(x), sub[i], 1) ? ag_fmt(x->e->k->arena, "%s + %s", s, by).s
                                                : ag_fmt(x->e->k->arena, "%s + %s * %s", s, factor(x, sub[i]), by).s;
    }
    return s;
}

/* ---- elements */

/* Whether subscript i of n is known to be in its dim. */
static bool is_inside(const Each *x, const Node *n, int i) {
    Ref sub = n->sub[i], extent = x->e->k->tensor[n->index].extent[i];
    const Node *s = &nodes(x)->n[sub], *d = &nodes(x)->n[extent];
    if (s->op == OP_CONST && d->op == OP_CONST) return s->value.u.i >= 0 && s->value.u.i < d->value.u.i;
    if (sub == x->b) return extent == x->out->extent[0];
    if (sub == x->h || (s->op == OP_AXIS && s->index == AX_H)) return extent == x->out->extent[1];
    if (sub == x->row) return extent == x->out->extent[2];
    bool full = x->loop ? ag_row_lanes(x->out->cols) * EACH_CHANNELS == d->value.u.i : d->value.u.i % EACH_CHANNELS == 0;
    return s->op == OP_AXIS && s->index == AX_D && extent == x->out->extent[3] && full;
}

/* "inside(i, n) && ..." for the first n subscripts; "" if all are known to be. */
static Str condition(const Each *x, const Node *load, int n) {
    Str s = STR("");
    for (int i = 0; i < n; i++)
        if (!is_inside(x, load, i))
            s = ag_fmt(x->e->k->arena, "%s%sinside(%s, %s)", s.s, s.n ? " && " : "", expr(x, load->sub[i]),
                       expr(x, x->e->k->tensor[load->index].extent[i]));
    return s;
}

static const char *name_load(Each *x, int tensor) {
    const char *name = x->e->k->tensor[tensor].name;
    if (x->loads[tensor] == 1) return ag_fmt(x->e->k->arena, "u_%s", name).s;
    return ag_fmt(x->e->k->arena, "u%d_%s", x->loaded[tensor]++, name).s;
}

static const char *const c_type[] = {"", "bool", "int", "float"};

/* One element, as a constant. */
static void load_one(Each *x, Ref r) {
    static const char *const zero[] = {"", "false", "0", "0.f"};
    const Node *n = &nodes(x)->n[r];
    const KernelTensor *t = &x->e->k->tensor[n->index];
    Str in = condition(x, n, n->nsub);
    const char *at = offset(x, n->index, n->sub, n->nsub);
    const char *element = ag_fmt(x->e->k->arena, "%s[%s]", pointer(x, n->index), *at ? at + strlen(" + ") : "0").s;
    if (t->type <= DT_BF16) element = ag_fmt(x->e->k->arena, "%s::value(%s)", reader(t), element).s;
    if (t->type == DT_I64) element = ag_fmt(x->e->k->arena, "(int)%s", element).s;
    if (t->type == DT_BOOL) element = ag_fmt(x->e->k->arena, "%s != 0", element).s;
    const char *name = name_load(x, n->index);
    if (in.n)
        ag_emit_line(x->e, "const %s %s = %s ? %s : %s;", c_type[n->type], name, in.s, element, zero[n->type]);
    else
        ag_emit_line(x->e, "const %s %s = %s;", c_type[n->type], name, element);
    x->text[r] = name;
}

/* Is it an element of a tensor of floats at channel d, and is nothing else of it that varies with the channel? */
static bool is_piece(const Each *x, const Node *n) {
    if (n->op != OP_LOAD || !n->nsub || x->e->k->tensor[n->index].type > DT_F32 || (x->loop && x->loop->at)) return false;
    const Node *last = &nodes(x)->n[n->sub[n->nsub - 1]];
    bool ok = last->op == OP_AXIS && last->index == AX_D;
    for (int i = 0; i < n->nsub - 1; i++) ok &= !varies(x, n->sub[i]);
    return ok;
}

/* How many channels from the thread's first on a dim of the last subscript has. */
static const char *left(const Each *x, int tensor, int dim) {
    return ag_fmt(x->e->k->arena, "%s - %s", factor(x, x->e->k->tensor[tensor].extent[dim]), x->first).s;
}

/* Eights of channels: all, and those at a time. */
static int eights(const Each *x) { return (x->out->cols + 7) / 8; }
static int eights_at_once(const Each *x) { return x->chunk ? x->chunk : eights(x); }

static void load_piece(Each *x, Ref r) {
    const Node *n = &nodes(x)->n[r];
    const KernelTensor *t = &x->e->k->tensor[n->index];
    int last = n->nsub - 1;
    Str in = condition(x, n, last);
    const char *at = offset(x, n->index, n->sub, last), *name = name_load(x, n->index), *by = stride(x, n->index, last), *type = reader(t),
               *rest = left(x, n->index, last);
    if (in.n) rest = ag_fmt(x->e->k->arena, "%s ? %s : 0", in.s, rest).s;
    const char *from =
        ag_fmt(x->e->k->arena, "%s%s + %s * %s, %s, %s, args.vec & %d", pointer(x, n->index), at, x->first, by, by, rest, 1 << n->index).s;
    if (x->fragment)
        ag_emit_line(x->e, "const Pairs<%s, %d> %s = load_pairs<%s, %d>(%s);", type, eights_at_once(x), name, type, eights_at_once(x), from);
    else
        ag_emit_line(x->e, "const Eight<%s> %s = load_8<%s>(%s);", type, name, type, from);
    x->text[r] = ag_fmt(x->e->k->arena, x->fragment ? "%s(ni, e)" : "%s[e]", name).s;
}

static void declare(Each *x, Ref r) {
    const char *name = ag_fmt(x->e->k->arena, "t%d", r).s;
    ag_emit_line(x->e, "const %s %s = %s;", c_type[nodes(x)->n[r].type], name, expr(x, r));
    x->text[r] = name;
}

/* ---- expressions */

/* Which nodes are read, how often, and from where. */
static void count(Each *x, Ref root) {
    x->uses[root] = 1;
    for (Ref r = root; r > 0; r--) {
        const Node *n = &nodes(x)->n[r];
        int subs = n->nsub - is_piece(x, n); /* the channel itself is not read then */
        bool inner = varies(x, r) && !is_piece(x, n);
        if (!x->uses[r] || x->text[r]) continue;
        if (n->op == OP_LOAD) x->loads[n->index]++;
        for (int i = 0; i < ag_op[n->op].arity + subs; i++) {
            Ref a = i < ag_op[n->op].arity ? n->arg[i] : n->sub[i - ag_op[n->op].arity];
            x->uses[a]++;
            x->by_channel[a] |= inner && !varies(x, a);
        }
    }
}

/* The node of axis a, if it is read. */
static bool reads(const Each *x, Ref root, Axis a) {
    for (Ref r = 1; r <= root; r++)
        if (x->uses[r] && nodes(x)->n[r].op == OP_AXIS && nodes(x)->n[r].index == (int)a) return true;
    return false;
}

static void pieces(Each *x, Ref root) {
    for (Ref r = 1; r <= root; r++)
        if (x->uses[r] && !x->text[r] && is_piece(x, &nodes(x)->n[r])) load_piece(x, r);
}

/* What is the same for all channels of a row, and all pieces, unless these come in chunks. */
static void row_parts(Each *x, Ref root) {
    for (Ref r = 1; r <= root; r++) {
        const Node *n = &nodes(x)->n[r];
        if (!x->uses[r] || x->text[r]) continue;
        if (is_piece(x, n)) {
            if (!x->chunk) load_piece(x, r);
        } else if (varies(x, r))
            continue;
        else if (n->op == OP_LOAD)
            load_one(x, r);
        else if (ag_op[n->op].arity > 0 && (x->uses[r] > 1 || x->by_channel[r]))
            declare(x, r);
    }
}

static void channel_parts(Each *x, Ref root) {
    for (Ref r = 1; r < root; r++) {
        const Node *n = &nodes(x)->n[r];
        if (!x->uses[r] || x->text[r]) continue;
        if (n->op == OP_LOAD)
            load_one(x, r);
        else if (ag_op[n->op].arity > 0 && x->uses[r] > 1)
            declare(x, r);
    }
    if (!x->text[root] && nodes(x)->n[root].op == OP_LOAD) load_one(x, root);
}

static int fragment_of(const Ins *i) { return i->op == TI_OUTPUT ? i->dst : i->a; }
static const char *element_of(const Each *x, int fragment) {
    return ag_fmt(x->e->k->arena, x->chunk ? "%s[mi][n0 + ni][2 * r + e]" : "%s[mi][ni][2 * r + e]", x->e->k->val[fragment].name.s).s;
}
static const char *fragment_element(const Each *x) { return element_of(x, fragment_of(x->i)); }

/* How the value of a channel of a fragment is used: put in its place, or added up if it is one of the tensor's channels. */
static const char *use_of(const Each *x, const char *value) {
    if (x->i->op == TI_OUTPUT) return ag_fmt(x->e->k->arena, "%s = %s;", fragment_element(x), value).s;
    if (x->out->cols % 8 == 0) return ag_fmt(x->e->k->arena, "sum += %s;", value).s;
    return ag_fmt(x->e->k->arena, "if (%s + ni * 8 + e < %d) sum += %s;", x->first, x->out->cols, value).s;
}

/* The loop over the channels; braces around more than one statement. */
static void channels(Each *x, Ref root) {
    Emit *e = x->e;
    Buf parts = {0}, *out = e->out;
    const char *loop = "UNROLL for (int e = 0; e < 8; e++)", *to = "y[e]";
    if (x->fragment) loop = ag_fmt(e->k->arena, "UNROLL for (int ni = 0; ni < %d; ni++) UNROLL for (int e = 0; e < 2; e++)", eights_at_once(x)).s;
    if (x->loop) {
        loop = ag_fmt(e->k->arena, "%sUNROLL for (int e = 0; e < %d; e++)", x->loop->around ? x->loop->around : "", x->loop->n).s;
        to = x->loop->to;
    }
    e->out = &parts;
    e->indent++;
    if (x->loop && x->loop->at && reads(x, root, AX_D))
        ag_emit_line(e, "const int d = %s;", x->loop->at);
    else if (reads(x, root, AX_D))
        ag_emit_line(e, x->fragment ? "const int d = %s + ni * 8 + e;" : "const int d = %s + e;", x->first);
    channel_parts(x, root);
    e->indent--;
    e->out = out;
    if (x->i->op == TI_EACH) ag_emit_line(e, "float y[8];");
    const char *value = expr(x, root), *use = x->fragment ? use_of(x, value) : ag_fmt(e->k->arena, "%s = %s;", to, value).s;
    if (!parts.n)
        ag_emit_line(e, "%s %s", loop, use);
    else {
        ag_emit_line(e, "%s {", loop);
        ag_putn(out, parts.s, parts.n);
        ag_emit_line(e, "    %s", use);
        ag_emit_line(e, "}");
    }
    out->oom |= parts.oom;
    ag_buf_free(&parts);
}

static Ref find_row(const Kernel *k) {
    for (Ref r = 1; r < k->nodes.len; r++) {
        const Node *n = &k->nodes.n[r], *a = &k->nodes.n[n->arg[0]], *b = &k->nodes.n[n->arg[1]];
        if (n->op == OP_SUB && a->op == OP_AXIS && a->index == AX_Q && b->op == OP_SIZE && b->index == SZ_OFF) return r;
    }
    return 0;
}

/* What `root` reads; `own`: how what the kernel itself has computed is written. */
static void prepare(Each *x, Ref root, const char *own) {
    size_t n = (size_t)nodes(x)->len;
    x->uses = NEWN(x->e->k->arena, int, n);
    x->by_channel = NEWN(x->e->k->arena, bool, n);
    x->row = find_row(x->e->k);
    if (x->row) x->text[x->row] = "row";
    for (Ref r = 1; r <= root; r++)
        if (nodes(x)->n[r].op == OP_BRANCH && nodes(x)->n[r].index)
            x->text[r] = element_of(x, nodes(x)->n[r].index - 1);
        else if (nodes(x)->n[r].op == OP_BRANCH)
            x->text[r] = own;
        else if (nodes(x)->n[r].op == OP_VAL && x->e->k->val[nodes(x)->n[r].index].space == SPACE_ROW)
            x->text[r] = ag_fmt(x->e->k->arena, "%s[mi][r]", x->e->k->val[nodes(x)->n[r].index].name.s).s;
    count(x, root);
}

/* What is read of a row. */
static void row_reads(Each *x, Ref root) {
    if (reads(x, root, AX_Q)) ag_emit_line(x->e, "const int q = row + args.off;");
    row_parts(x, root);
}

static void each(Each *x) {
    prepare(x, x->i->e[0], NULL);
    row_reads(x, x->i->e[0]);
    channels(x, x->i->e[0]);
}

/* ---- pools */

static void pool(Each *x) {
    Emit *e = x->e;
    const Ins *i = x->i;
    const KernelTensor *a = &e->k->tensor[i->a];
    const char *size = expr(x, i->e[4]), *last = stride(x, i->a, 3), *type = reader(a);
    const char *rest = left(x, i->a, 3), *from = offset(x, i->a, &i->e[2], 2);
    ag_emit_line(e, "const int first = row * %s, rows = min(%s, %s - first);", expr(x, i->e[1]), size, factor(x, a->extent[2]));
    ag_emit_line(e, "const %s::element *source = %s%s + first * %s + d0 * %s;", type, pointer(x, i->a), from, stride(x, i->a, 2), last);
    ag_emit_line(e, "float y[8];");
    if (i->b < 0) {
        ag_emit_line(e, "sum_rows<%s>(y, source, %s, %s, rows, %s, args.vec & %d);", type, stride(x, i->a, 2), last, rest, 1 << i->a);
        ag_emit_line(e, "const float share = 1.f / rows;");
    } else {
        ag_emit_line(e, "const float total = sum_weighted<%s>(y, source, %s, %s, rows, %s, args.vec & %d, %s, %s);", type, stride(x, i->a, 2), last,
                     rest, 1 << i->a, pointer(x, i->b), stride(x, i->b, 0));
        ag_emit_line(e, "const float share = 1.f / total;");
    }
    ag_emit_line(e, "UNROLL for (int e = 0; e < 8; e++) y[e] *= share;");
}

/* ---- merging */

/* What the forced blocks give. */
static void read_forced(Each *x, const char *type) {
    Emit *e = x->e;
    int rows = e->k->forced_rows, lse = e->k->forced_lse;
    const Ref at[3] = {x->i->e[2], x->i->e[3], 0};
    ag_emit_line(e, "const float forced_lse = *(%s%s + row * %s);", pointer(x, lse), offset(x, lse, at, 2), stride(x, lse, 2));
    ag_emit_line(e, "const Eight<%s> forced = load_8<%s>(%s%s + row * %s + d0 * %s, %s, %s, args.vec & %d);", type, type, pointer(x, rows),
                 offset(x, rows, at, 2), stride(x, rows, 2), stride(x, rows, 3), stride(x, rows, 3), left(x, rows, 3), 1 << rows);
    ag_emit_line(e, "UNROLL for (int e = 0; e < 8; e++) y[e] = forced[e];");
}

static void merge(Each *x) {
    Emit *e = x->e;
    const Ins *i = x->i, *l = e->k->list;
    const KernelTensor *part = &e->k->tensor[i->a], *lse = &e->k->tensor[i->b];
    const char *n = expr(x, i->e[4]), *count = n;
    const Ref at[3] = {i->e[2], i->e[1], 0};
    const char *place = offset(x, l->a, at, 2), *b = factor(x, i->e[2]), *h = factor(x, i->e[3]);
    if (i->e[5]) { /* what is read beside is on its way meanwhile */
        prepare(x, i->e[5], "y[e]");
        row_reads(x, i->e[5]);
    }
    if (l->b >= 0) count = ag_fmt(e->k->arena, "min(%s, *(%s%s + row * %s))", n, pointer(x, l->b), offset(x, l->b, at, 2), stride(x, l->b, 2)).s;
    const Derive *forced = e->k->forced;
    const char *blocks = ag_fmt(e->k->arena, "ceil_div(args.Sk, %d)", l->n).s, *first = "";
    if (forced) { /* of the entries behind the first blocks those up to the query's local ones */
        blocks = ag_fmt(e->k->arena, "min(%s, floor_div(args.off + row, %d) - %d)", blocks, l->n, forced->local.n - 1).s;
        if (forced->first.n) first = ag_fmt(e->k->arena, " + %d * %s", forced->first.n, stride(x, l->a, 3)).s;
    }
    ag_emit_line(e, "const %s list = {%s%s + row * %s%s, %s, %s, %s};", e->k->unique ? "UniqueList" : "BlockList", pointer(x, l->a), place,
                 stride(x, l->a, 2), first, stride(x, l->a, 3), count, blocks);
    ag_emit_line(e, "float y[8];");
    if (forced) read_forced(x, reader(part));
    const char *result = i->bar >= 0 ? "const float lse = " : "";
    ag_emit_line(e,
                 "%smerge_slots<%s, %s>(y, list, args.%s + %s * args.%s_b + %s * args.%s_h + (i64)row * %s * args.%s_s, args.%s_s, args.%s + %s * "
                 "args.%s_b + %s * "
                 "args.%s_h + (i64)row * %s * args.%s_s + d0, args.%s_s, %s, args.vec & %d%s);",
                 result, reader(part), n, lse->name, b, lse->name, h, lse->name, n, lse->name, lse->name, part->name, b, part->name, h, part->name, n,
                 part->name, part->name, left(x, i->n, 3), 1 << i->a, forced ? ", forced_lse" : "");
    if (i->e[5]) channels(x, i->e[5]);
    if (i->bar < 0) return;
    const char *to = e->k->tensor[i->bar].name;
    ag_emit_line(e, "if (d0 == 0 && args.%s) args.%s[%s * args.%s_b + %s * args.%s_h + row * args.%s_s] = lse;", to, to, b, to, h, to, to);
}

/* ---- */

void ag_emit_each(Emit *e, const Ins *i) {
    const Kernel *k = e->k;
    Each x = {.e = e, .i = i, .out = &k->tensor[i->n], .b = i->e[2], .h = i->e[3], .first = "d0"};
    x.text = NEWN(k->arena, const char *, (size_t)k->nodes.len);
    int cols = x.out->cols, threads = (cols + EACH_CHANNELS - 1) / EACH_CHANNELS, all = threads * k->queries;
    const char *spare = all < k->threads ? ag_fmt(k->arena, "(int)threadIdx.x < %d && ", all).s : "";
    ag_emit_line(e, "// ---- each thread has 8 channels of a row");
    if (threads > 1)
        ag_emit_line(e, "const int row = %s + (int)threadIdx.x / %d, d0 = (int)threadIdx.x %% %d * 8;",
                     factor(&x, i->op == TI_EACH ? i->e[1] : i->e[0]), threads, threads);
    else
        ag_emit_line(e, "const int row = %s + (int)threadIdx.x, d0 = 0;", factor(&x, i->op == TI_EACH ? i->e[1] : i->e[0]));
    ag_emit_line(e, "if (%srow < %s) {", spare, expr(&x, x.out->extent[2]));
    e->indent++;
    (i->op == TI_POOL ? pool : i->op == TI_MERGE ? merge : each)(&x);
    const char *last = stride(&x, i->n, 3);
    ag_emit_line(e, "store_8<%s>(%s%s + row * %s + d0 * %s, %s, y, %s, args.vec & %d);", ag_dtype_name[x.out->type], pointer(&x, i->n),
                 offset(&x, i->n, &i->e[2], 2), stride(&x, i->n, 2), last, last, left(&x, i->n, 3), 1 << i->n);
    e->indent--;
    ag_emit_line(e, "}");
}

/* How many eights of channels a thread reads at a time, so that its pieces need no more registers than there are beside the fragment; 0: all. */
enum { PIECE_WORDS = 16 };
static int chunk_of(Each *x, Ref root) {
    bool *wanted = NEWN(x->e->k->arena, bool, (size_t)root + 1);
    int words = 0, all = eights(x), n = all;
    wanted[root] = true;
    for (Ref r = root; r > 0; r--) {
        const Node *node = &nodes(x)->n[r];
        if (!wanted[r]) continue;
        if (is_piece(x, node)) words += x->e->k->tensor[node->index].type == DT_F32 ? 2 : 1;
        for (int i = 0; i < ag_op[node->op].arity; i++) wanted[node->arg[i]] = true;
        for (int i = 0; i < node->nsub; i++) wanted[node->sub[i]] = true;
    }
    while (n > 1 && (words * n > PIECE_WORDS || all % n)) n--;
    return n == all ? 0 : n;
}

void ag_emit_output(Emit *e, const Ins *i) {
    const Kernel *k = e->k;
    bool sum = i->op == TI_OUTPUT_SUM;
    Each x = {.e = e, .i = i, .out = &k->tensor[i->n], .b = i->e[2], .h = k->pack == 1 ? i->e[3] : 0, .first = e->lane_col, .fragment = true};
    x.text = NEWN(k->arena, const char *, (size_t)k->nodes.len);
    x.chunk = chunk_of(&x, i->e[0]);
    prepare(&x, i->e[0], fragment_element(&x));
    const char *place = ag_fmt(k->arena, "%s + mi * 16 + r * 8", e->lane_row).s;
    if (sum) ag_emit_declare(e, i->dst);
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) {", ag_frag_mt(k, &k->val[fragment_of(i)]));
    e->indent++;
    ag_emit_line(e, k->pack > 1 ? "const int row = %s + quot(%s, %d);" : "const int row = %s + %s;", ag_emit_atom(e, i->e[1]), place, k->pack);
    if (sum) ag_emit_line(e, "float sum = 0.f;");
    ag_emit_line(e, "if (row < %s) {", ag_emit_text(e, i->e[4]));
    e->indent++;
    if (reads(&x, i->e[0], AX_H)) ag_emit_line(e, "const int h = %s + rem(%s, %d);", ag_emit_atom(e, i->e[3]), place, k->pack);
    row_reads(&x, i->e[0]);
    if (x.chunk) {
        ag_emit_line(e, "UNROLL for (int n0 = 0; n0 < %d; n0 += %d) {", eights(&x), x.chunk);
        e->indent++;
        ag_emit_line(e, "const int first = %s + n0 * 8;", x.first);
        x.first = "first";
        pieces(&x, i->e[0]);
    }
    channels(&x, i->e[0]);
    if (x.chunk) {
        e->indent--;
        ag_emit_line(e, "}");
    }
    e->indent--;
    ag_emit_line(e, "}");
    if (sum) ag_emit_line(e, "%s[mi][r] = quad_sum(sum);", k->val[i->dst].name.s);
    e->indent--;
    ag_emit_line(e, "}");
}

const char *ag_emit_row_loop(Emit *e, const RowLoop *l) {
    const Kernel *k = e->k;
    Each x = {.e = e, .i = l->rows, .out = &k->tensor[l->rows->n], .b = l->rows->e[2], .h = l->rows->e[3], .first = l->first, .loop = l};
    x.text = NEWN(k->arena, const char *, (size_t)k->nodes.len);
    prepare(&x, l->value, l->to);
    row_reads(&x, l->value);
    if (l->n) channels(&x, l->value);
    return l->n ? l->to : expr(&x, l->value);
}

/* What a pool is of; an output stands in the spec. */
void ag_emit_each_comment(Emit *e) {
    const Kernel *k = e->k;
    const Ins *i = k->role[0].body.last;
    if (i->op == TI_ROWS) ag_emit_rows_comment(e, i);
    if (i->op != TI_POOL) return;
    ag_put(e->out, "//\n// Pool\n//   %-8s means of %d rows, %d apart, of %s", k->tensor[i->n].name, (int)k->nodes.n[i->e[4]].value.u.i,
           (int)k->nodes.n[i->e[1]].value.u.i, k->tensor[i->a].name);
    if (i->b >= 0) ag_put(e->out, ", weighted by %s", k->tensor[i->b].name);
    ag_put(e->out, "\n");
}
