/* math_dump.c: the Math IR as text for readers.  A value gets a line of its own if it is used twice, is a reduction, or is computed less often than what uses
 * it; everything else is printed inside its user. */
#include <assert.h>

#include "math_ir.h"

typedef struct Dump {
    Buf *out;
    const Math *m;
    uint8_t *uses;     /* per node: 0, 1, 2 = more */
    bool *apart;       /* per node: computed less often than a user of it */
    bool *stepwise;    /* per node: reads a carried value */
    const char **name; /* per node, once its line is printed */
    Ref top;           /* being defined: printed in full */
    bool in_step;      /* carries have an old and a new value */
    int count[128];    /* values named so far, by letter */
} Dump;

/* ---- how often a value is computed */

static const struct {
    uint8_t all; /* varies with all of these; the first row that fits */
    const char *often;
    char letter;
} level[] = {
    {1 << AX_K | 1 << AX_Q | 1 << AX_D, "per element, d", 'x'},
    {1 << AX_K | 1 << AX_Q, "per element", 's'},
    {1 << AX_K | 1 << AX_D, "per key, d", 'y'},
    {1 << AX_K, "per column", 't'},
    {1 << AX_Q | 1 << AX_D, "per row, d", 'z'},
    {1 << AX_Q, "per row", 'r'},
    {1 << AX_H, "per head", 'h'},
    {1 << AX_B, "per batch", 'b'},
    {0, "once", 'c'},
};

static int level_of(const Node *n) {
    int i = 0;
    while ((n->axes & level[i].all) != level[i].all) i++;
    return i;
}

/* ---- which values get a line */

static void use(Dump *d, Ref r) {
    if (d->uses[r] < 2) d->uses[r]++;
}

/* Subscripts that are printed: of captured tensors alone. */
static int shown_subs(const Node *n) { return n->op == OP_LOAD && n->index >= TEN_COUNT ? n->nsub : 0; }

static void count_uses(Dump *d) {
    const Math *m = d->m;
    for (int i = 0; i < m->nout; i++) use(d, m->out[i].value);
    for (int s = 0; s < m->nstream; s++)
        for (int i = 0; i < m->stream[s].ncarry; i++) use(d, m->stream[s].carry[i].body), use(d, m->stream[s].carry[i].factor);
    for (Ref r = m->nodes.len - 1; r > 0; r--) {
        const Node *n = &m->nodes.n[r];
        for (int i = 0; i < 3 && d->uses[r]; i++) {
            use(d, n->arg[i]);
            if (level_of(&m->nodes.n[n->arg[i]]) > level_of(n)) d->apart[n->arg[i]] = true;
        }
        for (int i = 0; i < shown_subs(n) && d->uses[r]; i++) use(d, n->sub[i]);
    }
}

static void find_stepwise(Dump *d) {
    for (Ref r = 1; r < d->m->nodes.len; r++) {
        const Node *n = &d->m->nodes.n[r];
        d->stepwise[r] = n->op == OP_CARRY;
        for (int i = 0; i < 3; i++) d->stepwise[r] |= d->stepwise[n->arg[i]];
    }
}

static bool has_line(const Dump *d, Ref r) {
    const Node *n = &d->m->nodes.n[r];
    if (ag_op[n->op].arity == 0 || !d->uses[r]) return false;
    return d->uses[r] > 1 || d->apart[r] || n->op == OP_RSUM || n->op == OP_RMAX || r == d->m->range.mask;
}

/* ---- expressions */

static const char *name_node(void *payload, const Node *n);

/* "bias[b, h, q - off, k]" */
static const char *element_text(const Dump *d, const Node *n) {
    Arena *a = d->m->nodes.arena;
    Buf text = {0};
    ag_put(&text, "%.*s", STRF(d->m->spec->input[n->index - TEN_COUNT].name));
    for (int i = 0; i < n->nsub; i++) {
        ag_put(&text, i ? ", " : "[");
        ag_node_print(&text, &d->m->nodes, n->sub[i], name_node, (void *)d);
    }
    if (n->nsub) ag_put(&text, "]");
    const char *s = ag_str_copy(a, (Str){text.s ? text.s : "", (int)text.n}).s;
    ag_buf_free(&text);
    return s;
}

static const char *name_node(void *payload, const Node *n) {
    const Dump *d = payload;
    Ref r = (Ref)(n - d->m->nodes.n);
    Arena *a = d->m->nodes.arena;
    if (r != d->top && d->name[r]) return d->name[r];
    switch (n->op) {
    case OP_LOAD: return n->index < TEN_COUNT ? d->m->tensor[n->index].name : element_text(d, n);
    case OP_PARAM: return ag_str_copy(a, d->m->spec->param[n->index].name).s;
    case OP_CARRY: return ag_fmt(a, "%.*s%s", STRF(d->m->stream[0].carry[n->index].name), d->in_step && !n->old ? "'" : "").s;
    default: return NULL;
    }
}

static void put_expr(Dump *d, Ref r, Ref top) {
    d->top = top;
    ag_node_print(d->out, &d->m->nodes, r, name_node, d);
    d->top = 0;
}

static void pad(Dump *d, size_t from, size_t width) {
    do ag_put(d->out, " ");
    while (d->out->n < from + width);
}

static void put_place(Dump *d, Span at) {
    int line, col;
    if (!at.file) return;
    ag_line_col(d->m->d, at, &line, &col);
    ag_put(d->out, "   ; %.*s:%d:%d", STRF(d->m->d->file[at.file].name), line, col);
}

static const char *fresh_name(Dump *d, const Node *n) {
    char letter = n->type == T_BOOL ? 'm' : n->type == T_INT ? 'i' : level[level_of(n)].letter;
    return ag_fmt(d->m->nodes.arena, "%c%d", letter, d->count[(int)letter]++).s;
}

/* The place in the spec, unless an operand that has a line has shown it. */
static void put_own_place(Dump *d, const Node *n) {
    for (int i = 0; i < 3; i++) {
        const Span *at = &d->m->nodes.n[n->arg[i]].span;
        if (d->name[n->arg[i]] && at->file == n->span.file && at->off == n->span.off && at->len == n->span.len) return;
    }
    put_place(d, n->span);
}

/* "  s0  = sum d: q * k          per element   ; causal:2:7" */
static void put_line(Dump *d, Ref r) {
    const Node *n = &d->m->nodes.n[r];
    size_t from = d->out->n;
    const char *name = fresh_name(d, n);
    ag_put(d->out, "  %-4s = ", name);
    put_expr(d, r, r);
    pad(d, from, 72);
    ag_put(d->out, "%s", level[level_of(n)].often);
    put_own_place(d, n);
    ag_put(d->out, "\n");
    d->name[r] = name;
}

/* Lines of what `root` is made of and has none yet; stepwise: also of what reads carried values. */
static void define(Dump *d, Ref root, bool stepwise) {
    bool *want = NEWN(d->m->nodes.arena, bool, (size_t)root + 1);
    want[root] = true;
    for (Ref r = root; r > 0; r--) {
        if (!want[r] || d->name[r]) continue;
        const Node *n = &d->m->nodes.n[r];
        for (int i = 0; i < 3; i++) want[n->arg[i]] = true;
        for (int i = 0; i < shown_subs(n); i++) want[n->sub[i]] = true;
    }
    for (Ref r = 1; r <= root; r++)
        if (want[r] && !d->name[r] && has_line(d, r) && (stepwise || !d->stepwise[r])) put_line(d, r);
}

/* ---- sections */

static void put_tensor(Dump *d, const MathTensor *t) {
    ag_put(d->out, "%s[", t->name);
    for (int i = 0; i < t->rank; i++) ag_put(d->out, "%s%s%s", i ? "," : "", ag_axis_name[t->axis[i]], t->axis[i] == AX_Q ? "-off" : "");
    ag_put(d->out, "] %s", ag_dtype_name[t->type]);
}

static void put_value(Buf *out, const Scalar *v) {
    if (v->type == T_BOOL) ag_put(out, "%s", v->u.b ? "true" : "false");
    if (v->type == T_INT) ag_put(out, "%lld", (long long)v->u.i);
    if (v->type == T_FLOAT) ag_put_double(out, v->u.f);
}

/* "input   doc[b, k] i32" */
static void put_input(Dump *d, const Input *in) {
    ag_put(d->out, "input   %.*s[", STRF(in->name));
    for (int i = 0; i < in->rank; i++) {
        if (i) ag_put(d->out, ", ");
        if (in->dim[i].kind == DIM_AXIS)
            ag_put(d->out, "%s", ag_axis_name[in->dim[i].axis]);
        else
            ag_put(d->out, "%d", in->dim[i].n.n);
    }
    ag_put(d->out, "] %s\n", ag_dtype_name[in->type]);
}

static void put_head(Dump *d) {
    const Spec *s = d->m->spec;
    ag_put(d->out, "program %.*s   D %d  Dv %d  %s\n", STRF(s->name), s->D, s->Dv, ag_dtype_name[s->dtype]);
    ag_put(d->out, "axes    b  h  g = h // (Hq/Hkv)  q  k  d        q is a position: rows count from 0, positions from off\n");
    ag_put(d->out, "input   ");
    for (int i = TEN_Q; i <= TEN_V; i++) ag_put(d->out, i ? "   " : ""), put_tensor(d, &d->m->tensor[i]);
    ag_put(d->out, "\n");
    for (int i = 0; i < s->ninput; i++) put_input(d, &s->input[i]);
    for (int i = 0; i < s->nparam; i++) {
        const Param *p = &s->param[i];
        ag_put(d->out, "param   %.*s %s%s", STRF(p->name), ag_type_name(p->type), p->positive ? " > 0" : "");
        if (p->bound) ag_put(d->out, " = "), put_value(d->out, &p->value);
        ag_put(d->out, "\n");
    }
    ag_put(d->out, "\n");
}

static void put_bound(Dump *d, Ref r, const char *clamp, const char *unbounded) {
    if (!r) {
        ag_put(d->out, "%s", unbounded);
        return;
    }
    ag_put(d->out, "%s(%s, ", clamp, unbounded);
    put_expr(d, r, r);
    ag_put(d->out, ")");
}

static void put_interval(Dump *d, Ref lo, Ref hi) {
    put_bound(d, lo, "max", "0");
    ag_put(d->out, " .. ");
    put_bound(d, hi, "min", "Sk");
    ag_put(d->out, "\n");
}

static void put_range(Dump *d) {
    const KeyRange *g = &d->m->range;
    if (!g->mask) return;
    ag_put(d->out, "\nrange k   mask   ");
    put_expr(d, g->mask, 0);
    bool *named = NEWN(d->m->nodes.arena, bool, (size_t)d->m->nodes.len);
    ag_range_shared(d->m, named);
    for (Ref r = 1; r < d->m->nodes.len; r++) {
        if (!named[r] || d->name[r]) continue;
        const char *name = fresh_name(d, &d->m->nodes.n[r]);
        ag_put(d->out, "\n          where  %s = ", name);
        put_expr(d, r, r);
        d->name[r] = name;
    }
    ag_put(d->out, "\n          need   ");
    if (g->never_needed)
        ag_put(d->out, "no key\n");
    else
        put_interval(d, g->need_lo, g->need_hi);
    if (g->gap_lo) {
        ag_put(d->out, "          but    ");
        put_expr(d, g->gap_lo, g->gap_lo);
        ag_put(d->out, " .. ");
        put_expr(d, g->gap_hi, g->gap_hi);
        ag_put(d->out, "\n");
    }
    ag_put(d->out, "          plain  ");
    if (g->never_plain)
        ag_put(d->out, "not known\n");
    else
        put_interval(d, g->plain_lo, g->plain_hi);
}

static void put_carry(Dump *d, const Carry *c) {
    if (c->factor) define(d, c->factor, true);
    define(d, c->body, true);
    size_t from = d->out->n;
    bool max = c->combine == OP_RMAX;
    ag_put(d->out, "  %.*s'%*s = %s%.*s", STRF(c->name), 3 - c->name.n, "", max ? "max(" : "", STRF(c->name));
    if (c->factor) ag_put(d->out, " * "), put_expr(d, c->factor, 0);
    ag_put(d->out, max ? ", max k: " : " + (sum k: ");
    put_expr(d, c->body, 0);
    ag_put(d->out, ")");
    pad(d, from, 72);
    ag_put(d->out, "%s", c->axes & 1 << AX_D ? "per row, d" : "per row");
    if (c->law.n) ag_put(d->out, "   ; %.*s", STRF(c->law));
    ag_put(d->out, "\n");
}

static void put_stream(Dump *d, const Stream *s) {
    ag_put(d->out, "\nstream %s  carry ", ag_axis_name[s->axis]);
    for (int i = 0; i < s->ncarry; i++) {
        const Carry *c = &s->carry[i];
        ag_put(d->out, "%s%.*s%s = ", i ? ", " : "", STRF(c->name), c->axes & 1 << AX_D ? "[d]" : "");
        ag_put_double(d->out, c->init);
    }
    ag_put(d->out, "\n");
    d->in_step = true;
    for (int i = 0; i < s->ncarry; i++) put_carry(d, &s->carry[i]);
    d->in_step = false;
}

/* After the stream a carry is its last value: what was named inside a step is computed anew. */
static void put_outputs(Dump *d) {
    for (Ref r = 1; r < d->m->nodes.len; r++)
        if (d->stepwise[r]) d->name[r] = NULL;
    ag_put(d->out, "\n");
    for (int i = 0; i < d->m->nout; i++) define(d, d->m->out[i].value, true);
    for (int i = 0; i < d->m->nout; i++) {
        ag_put(d->out, "out ");
        put_tensor(d, &d->m->tensor[d->m->out[i].tensor]);
        ag_put(d->out, " = ");
        put_expr(d, d->m->out[i].value, 0);
        ag_put(d->out, "\n");
    }
}

/* What is the same in every step, and the mask. */
static void put_values(Dump *d) {
    const Math *m = d->m;
    for (int s = 0; s < m->nstream; s++)
        for (int i = 0; i < m->stream[s].ncarry; i++) {
            const Carry *c = &m->stream[s].carry[i];
            if (c->factor) define(d, c->factor, false);
            define(d, c->body, false);
        }
    for (int i = 0; i < m->nout; i++) define(d, m->out[i].value, false);
    if (m->range.mask) define(d, m->range.mask, false);
}

void ag_math_dump(Buf *out, const Math *m) {
    size_t len = (size_t)m->nodes.len;
    Arena *a = m->nodes.arena;
    Dump d = {.out = out, .m = m};
    d.uses = NEWN(a, uint8_t, len);
    d.apart = NEWN(a, bool, len);
    d.stepwise = NEWN(a, bool, len);
    d.name = NEWN(a, const char *, len);
    count_uses(&d);
    find_stepwise(&d);
    put_head(&d);
    put_values(&d);
    put_range(&d);
    for (int s = 0; s < m->nstream; s++) put_stream(&d, &m->stream[s]);
    put_outputs(&d);
}
