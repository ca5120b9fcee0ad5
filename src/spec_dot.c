/* spec_dot.c: `dot(x, y)` in a score: products of more channels of the query and the key, which add to s under the same scale,
 *
 *     s + scale * dot(x, y)  =  scale * (<Q, K> + <x, y>)  =  scale * <[Q, x], [K, y]>
 *
 * so attention is that of rows with these channels appended, in which the sum is s.  Wherever a score names s it has to add all of them; any other use of dot would
 * be a second matrix of products and is refused. */
#include "spec.h"

enum { MAX_CHANNELS = 256, MOST_TERMS = 64 };

/* ---- which tensors */

static bool is_head(const Dim *d, Axis head) {
    return d->kind == DIM_CONST ? d->n.n == 1 : d->axis == head || d->axis == AX_G;
} /* no part of the batch is one */

/* [b, h, q, N] or, of keys, [b, g, k, N]. */
static bool is_rows(const Input *x, bool of_k) {
    if (!x->storage || x->rank != 4 || x->dim[3].kind != DIM_CONST) return false;
    const Dim *b = &x->dim[0], *row = &x->dim[2];
    bool batch = b->kind == DIM_CONST ? b->n.n == 1 : b->axis == AX_B && !b->part;
    return batch && is_head(&x->dim[1], of_k ? AX_G : AX_H) && row->kind == DIM_AXIS && row->axis == (of_k ? AX_K : AX_Q);
}

static void check_tensors(Reader *r, const Ast *e) {
    const Spec *s = r->spec;
    for (int i = 0; i < 2; i++) {
        const Input *x = &s->input[e->arg[i]->index];
        if (is_rows(x, i == 1)) continue;
        ag_error(r->d, e->arg[i]->span, "the %s of 'dot' are an input of dtype %s; '%.*s' is %s",
                 i ? "channels of keys, its second argument," : "channels of queries, its first argument,", i ? "[b, g, k, N]" : "[b, h, q, N]",
                 STRF(x->name), ag_spec_type_text(r, x));
        return;
    }
    const Input *x = &s->input[e->arg[0]->index], *y = &s->input[e->arg[1]->index];
    if (x->dim[3].n.n != y->dim[3].n.n)
        ag_error(r->d, e->span, "'%.*s' has %d channels and '%.*s' %d; 'dot' multiplies as many of one as of the other", STRF(x->name), x->dim[3].n.n,
                 STRF(y->name), y->dim[3].n.n);
}

/* Number of the term, which is noted if it is new; -1: there are too many. */
static int number_of(Spec *s, const Ast *e) {
    for (int i = 0; i < s->ndot; i++)
        if (s->dot[i].x == e->arg[0]->index && s->dot[i].y == e->arg[1]->index) return i;
    if (s->ndot == SPEC_MAX_DOTS) return -1;
    s->dot[s->ndot] = (Dot){e->arg[0]->index, e->arg[1]->index, e->span};
    return s->ndot++;
}

/* ---- sums */

typedef struct Sum {
    const Ast *term[MOST_TERMS]; /* those that are neither s nor a dot */
    int n, scores;
    unsigned dots; /* bit per term `scale * dot(x, y)` */
    bool bad;
} Sum;

static const Ast *scaled_dot(const Ast *e) {
    for (int i = 0; e->op == OP_MUL && i < 2; i++)
        if (e->arg[i]->op == OP_PARAM && e->arg[i]->index == 0 && e->arg[1 - i]->op == OP_DOT) return e->arg[1 - i];
    return NULL;
}

static void gather(Spec *s, const Ast *e, Sum *sum) {
    const Ast *dot = scaled_dot(e);
    int i = dot ? number_of(s, dot) : 0;
    if (e->op == OP_ADD) {
        gather(s, e->arg[0], sum);
        gather(s, e->arg[1], sum);
    } else if (e->op == OP_SCORE)
        sum->scores++;
    else if (dot && i >= 0) {
        sum->bad |= sum->dots >> i & 1;
        sum->dots |= 1u << i;
    } else if (sum->n < MOST_TERMS)
        sum->term[sum->n++] = e;
    else
        sum->bad = true;
}

/* The terms of a sum of one s and all dots, or of one s if there are none. */
static bool is_whole(Spec *s, const Ast *e, Sum *sum) {
    *sum = (Sum){.n = 0};
    gather(s, e, sum);
    return !sum->bad && sum->scores == 1 && sum->dots == (1u << s->ndot) - 1;
}

/* ---- what stands in the spec */

static void find(Reader *r, const Ast *e) {
    if (e->op == OP_DOT) {
        int before = r->d->nerror;
        check_tensors(r, e);
        if (r->d->nerror == before && number_of(r->spec, e) < 0)
            ag_unsupported(r->d, e->span, "more than %d different dots in a score are not in this version of attngen", SPEC_MAX_DOTS);
        return;
    }
    for (int i = 0; i < ag_op[e->op].arity; i++) find(r, e->arg[i]);
}

static void refuse(Reader *r, const Ast *e) {
    Sum sum;
    if (e->op == OP_DOT)
        ag_unsupported(r->d, e->span, "'dot' is in this version of attngen a term beside s, under the same scale: s + scale * dot(x, y)");
    else if (e->op == OP_SCORE)
        ag_unsupported(r->d, e->span, "'s' stands here without %s; in this version of attngen each s of such a spec is s + scale * dot(x, y)",
                       r->spec->ndot > 1 ? "all dots" : "the dot");
    else if ((e->op == OP_ADD || e->op == OP_SCORE) && is_whole(r->spec, e, &sum))
        for (int i = 0; i < sum.n; i++) refuse(r, sum.term[i]);
    else
        for (int i = 0; i < ag_op[e->op].arity; i++) refuse(r, e->arg[i]);
}

/* Of lets and of the scores. */
static void each_score(Reader *r, void (*f)(Reader *, const Ast *)) {
    for (int i = 0; i < r->spec->nlet; i++)
        if (r->spec->let[i].value) f(r, r->spec->let[i].value);
    if (r->spec->score) f(r, r->spec->score);
    for (int i = 0; i < r->spec->nbranch; i++)
        if (r->spec->branch[i].score) f(r, r->spec->branch[i].score);
}

/* The rows that have the channels are those of q and k: all branches have to read them, and nothing else may. */
static bool check_branches(Reader *r) {
    const Spec *s = r->spec;
    for (int i = 0; i < s->nbranch; i++) {
        const Branch *b = &s->branch[i];
        const char *what = b->queries.kind != FROM_Q || b->keys.kind != FROM_K ? "queries or keys of its own"
                           : b->blocks.kind != FROM_NONE                       ? "block lists"
                           : !b->score                                         ? "no dot in its score"
                                                                               : NULL;
        if (!what) continue;
        ag_unsupported(r->d, b->span, "branch '%.*s' has %s; in this version of attngen 'dot' is a term of the score of every branch, over q and k",
                       STRF(b->name), what);
        return false;
    }
    return true;
}

void ag_spec_dots_finish(Reader *r) {
    Spec *s = r->spec;
    each_score(r, find);
    if (!s->ndot || r->d->status != ATTNGEN_OK) return;
    int more = ag_dot_channels(s);
    if (!check_branches(r))
        return;
    else if (s->nderive)
        ag_unsupported(r->d, s->derive[0].span, "'dot' beside pools and selections is not in this version of attngen");
    else if (s->D + more > MAX_CHANNELS)
        ag_unsupported(r->d, s->dot[0].span, "%d channels of q and k and %d of 'dot' are %d; this version of attngen handles up to %d", s->D, more,
                       s->D + more, MAX_CHANNELS);
    else if (!s->score && !s->nbranch)
        ag_unsupported(r->d, s->dot[0].span, "'dot' stands in a let that the score does not read");
    else
        each_score(r, refuse);
}

int ag_dot_channels(const Spec *s) {
    int n = 0;
    for (int i = 0; i < s->ndot; i++) n += s->input[s->dot[i].x].dim[3].n.n;
    return n;
}

/* ---- as attention has it */

static Ast *rewrite(Arena *a, Spec *s, const Ast *e);

static Ast *rewrite_sum(Arena *a, Spec *s, const Ast *e, const Sum *sum) {
    Ast *all = NEW(a, Ast);
    *all = (Ast){.op = OP_SCORE, .type = T_FLOAT, .span = e->span};
    for (int i = 0; i < sum->n; i++) {
        Ast *next = NEW(a, Ast);
        *next = (Ast){.op = OP_ADD, .type = T_FLOAT, .span = e->span, .arg = {all, rewrite(a, s, sum->term[i])}};
        all = next;
    }
    return all;
}

/* A sum with dots as s; D as the number that it is, for the rows have more channels. */
static Ast *rewrite(Arena *a, Spec *s, const Ast *e) {
    Sum sum;
    if (!e) return NULL;
    if (e->op == OP_ADD && is_whole(s, e, &sum)) return rewrite_sum(a, s, e, &sum);
    Ast *copy = NEW(a, Ast);
    *copy = *e;
    if (e->op == OP_SIZE && e->index == SZ_D) *copy = (Ast){.op = OP_CONST, .type = T_INT, .value = {T_INT, {.i = s->D}}, .span = e->span};
    for (int i = 0; i < ag_op[e->op].arity; i++) copy->arg[i] = rewrite(a, s, e->arg[i]);
    if (e->nsub) copy->sub = NEWN(a, Ast *, (size_t)e->nsub);
    for (int i = 0; i < e->nsub; i++) copy->sub[i] = rewrite(a, s, e->sub[i]);
    return copy;
}

Spec *ag_attention_spec(Arena *a, Spec *spec) {
    if (!spec->ndot) return spec;
    Spec *s = NEW(a, Spec);
    *s = *spec;
    s->let = NEWN(a, Let, (size_t)spec->nlet + 1);
    for (int i = 0; i < spec->nlet; i++) {
        s->let[i] = spec->let[i];
        s->let[i].value = rewrite(a, spec, spec->let[i].value);
    }
    s->score = rewrite(a, spec, spec->score);
    s->mask = rewrite(a, spec, spec->mask);
    s->plus = rewrite(a, spec, spec->plus);
    s->D = spec->D + ag_dot_channels(spec);
    s->ndot = 0;
    return s;
}
