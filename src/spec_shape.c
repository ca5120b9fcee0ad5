/* spec_shape.c: sizes of what a spec names, for the sizes of a launch. */
#include "input.h"

static int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : 0; }

const char *const ag_row_value_name[] = {[ROWV_LSE] = "lse", [ROWV_MAX] = "max", [ROWV_MEAN] = "mean_weight", NULL};

bool ag_puts_out(const Spec *s, RowValue value) {
    unsigned rows = s->rows_given ? s->rows : 1u << ROWV_LSE;
    return rows >> value & 1 && s->normalize == NORMALIZE_SOFTMAX && s->nbranch <= 1 && !(s->nbranch && s->output);
}
bool ag_has_lse(const Spec *s) { return ag_puts_out(s, ROWV_LSE); }

bool ag_keeps_maximum(const Spec *s) { return ag_puts_out(s, ROWV_MAX) || s->weigh || s->joined; }

static int dot_rows(const Ast *e) {
    int found = e->op == OP_DOT ? e->arg[0]->index : -1;
    for (int i = 0; i < ag_op[e->op].arity && found < 0; i++) found = dot_rows(e->arg[i]);
    return found;
}
int ag_weigh_rows(const Spec *s) { return s->weigh ? dot_rows(s->weigh) : -1; }
int ag_branch_weigh_rows(const Branch *b) { return b->weigh ? dot_rows(b->weigh) : -1; }

static bool mean_in(const Ast *e, int branch) {
    bool found = e->op == OP_MEAN && e->arg[0]->index == branch;
    for (int i = 0; i < ag_op[e->op].arity && !found; i++) found = mean_in(e->arg[i], branch);
    return found;
}
bool ag_reads_mean(const Spec *s, int branch) { return s->output && mean_in(s->output, branch); }

/* Adds x to the set; whether it was new. */
static bool add_ref(SpecRef *set, int *n, SpecRef x) {
    for (int i = 0; i < *n; i++)
        if (set[i].kind == x.kind && set[i].index == x.index) return false;
    set[(*n)++] = x;
    return true;
}

Tiles ag_tiles(const Spec *s) {
    enum { MOST = 2 * SPEC_MAX_BRANCHES };
    int rows = ag_weigh_rows(s) >= 0;
    if (!s->joined) return (Tiles){1 + rows, 1, 1, 1 + rows, 1};
    SpecRef q[MOST], k[MOST], v[MOST], pair[MOST];
    Tiles t = {.outputs = s->joined};
    int pairs = 0;
    for (int i = 0; i < s->joined; i++) {
        const Branch *b = &s->branch[i];
        SpecRef more = {FROM_INPUT, ag_branch_weigh_rows(b)}, both[] = {b->queries, more};
        add_ref(k, &t.k, b->keys);
        add_ref(v, &t.v, b->values);
        for (int n = 0; n < 1 + (more.index >= 0); n++) {
            add_ref(q, &t.q, both[n]);
            add_ref(pair, &pairs,
                    (SpecRef){both[n].kind, both[n].index * SPEC_MAX_INPUTS * MOST + (int)b->keys.kind * SPEC_MAX_INPUTS + b->keys.index});
        }
    }
    t.scores = pairs;
    return t;
}

const char *ag_not_joined(const Spec *s) {
    enum { MOST_TILES = 4 };
    if (s->nbranch < 2) return "there is one branch";
    if (s->normalize != NORMALIZE_SOFTMAX) return "scores are weights, and only a softmax is joined to others";
    if (s->ndot) return "a dot appends channels to the rows of q and k";
    if (s->nderive) return "there are derived tensors, and their keys are others";
    for (int i = 0; i < s->nbranch; i++)
        if (s->branch[i].blocks.kind != FROM_NONE) return "a branch has block lists, so it visits other keys";
    Spec all = *s;
    all.joined = s->nbranch;
    Tiles t = ag_tiles(&all);
    return t.q > MOST_TILES || t.k > MOST_TILES || t.scores > MOST_TILES || t.k + t.v > MOST_TILES
               ? "they read too many different queries, keys and values"
               : NULL;
}

static bool same(const Ast *a, const Ast *b) {
    if (!a || !b) return a == b;
    bool alike = a->op == b->op && a->type == b->type && a->nsub == b->nsub && (!ag_op_has(a->op, 'L') || a->index == b->index);
    if (a->op == OP_CONST) alike = alike && a->value.u.i == b->value.u.i;
    for (int i = 0; i < ag_op[a->op].arity && alike; i++) alike = same(a->arg[i], b->arg[i]);
    for (int i = 0; i < a->nsub && alike; i++) alike = same(a->sub[i], b->sub[i]);
    return alike;
}

/* Measured on an H200 (docs/performance.md): Parallax, whose branches share their scores, is 1.2 to 1.6 times as fast as one kernel; differential attention, which computes as much either way, is
 * slower, as its tiles are smaller and its softmax is exact.  Above 128 channels there are no registers for two results. */
bool ag_join_pays(const Spec *s) {
    enum { MOST_CHANNELS = 128, MOST_RESULTS = 256 };
    Spec all = *s;
    all.joined = s->nbranch;
    Tiles t = ag_tiles(&all);
    int apart = 0;
    for (int i = 0; i < s->nbranch; i++) {
        apart += 2 + (ag_branch_weigh_rows(&s->branch[i]) >= 0);
        if (!same(s->branch[i].mask, s->branch[0].mask)) return false; /* what one does not see is computed for it all the same */
    }
    bool room = s->D <= MOST_CHANNELS && s->Dv <= MOST_CHANNELS && s->Dv * t.outputs <= MOST_RESULTS;
    return room && t.scores + t.outputs < apart;
}

Spec *ag_joined_spec(Arena *a, const Spec *spec) {
    Spec *s = NEW(a, Spec);
    *s = *spec;
    s->joined = spec->nbranch;
    s->nbranch = 0;
    s->rows_given = true;
    s->rows = 0;
    s->mask = spec->branch[0].mask; /* whether there is one in each is what it says */
    s->weigh = NULL;
    for (int i = 0; i < spec->nbranch; i++) {
        if (!spec->branch[i].mask) s->mask = NULL;
        if (spec->branch[i].weigh) s->weigh = spec->branch[i].weigh; /* whether there is one in any */
    }
    return s;
}

static int means(const Ast *e) {
    int n = e->op == OP_MEAN;
    for (int i = 0; i < ag_op[e->op].arity; i++) n += means(e->arg[i]);
    return n;
}
int ag_means(const Spec *s) { return s->output ? means(s->output) : 0; }

bool ag_is_norm(Op op) { return op == OP_RMS_NORM || op == OP_LAYER_NORM; }

static int norms(const Ast *e) {
    int n = ag_is_norm(e->op);
    for (int i = 0; i < ag_op[e->op].arity; i++) n += norms(e->arg[i]);
    for (int i = 0; i < e->nsub; i++) n += norms(e->sub[i]);
    return n;
}
int ag_norms(const Spec *s) { return s->output ? norms(s->output) : 0; }

/* At D 128 a second branch and its mean weight spill 56 bytes at n 64, none at n 48.  output_norm spills on sm_80 at D 128, n 64, not at n 48; differential, which reads another result, does at n 48, not at n 32. */
int ag_output_registers(const Spec *s) {
    return s->joined ? (ag_norms(s) ? 8 : 0) : s->beside ? s->beside : ag_norms(s) ? 8 + 16 * (s->nbranch - 1) : ag_means(s) ? 16 : 0;
}

int64_t ag_part_extent(const Spec *spec, int part, int64_t B, const double *scalar) {
    if (part > 1) return (int64_t)scalar[spec->batch[part - 1].param];
    for (int i = 1; i < spec->nbatch; i++) B /= (int64_t)scalar[spec->batch[i].param];
    return B;
}

int64_t ag_input_extent(const Spec *spec, int input, int dim, const int64_t size[SZ_COUNT]) {
    static const Size of_axis[AX_COUNT] = {[AX_B] = SZ_B, [AX_H] = SZ_HQ, [AX_G] = SZ_HKV, [AX_Q] = SZ_SQ, [AX_K] = SZ_SK, [AX_D] = SZ_D};
    const Input *x = &spec->input[input];
    const Dim *d = &x->dim[dim];
    if (d->kind == DIM_CONST) return d->n.n;
    if (d->axis == AX_D) return x->values ? spec->Dv : spec->D;
    if (d->axis == AX_Q) return ceil_div(size[SZ_SQ], x->per);
    return size[of_axis[d->axis]];
}

int ag_source_cols(const Spec *spec, SpecRef s) {
    if (s.kind == FROM_DERIVE) s = spec->derive[s.index].source;
    bool values = s.kind == FROM_V || (s.kind == FROM_INPUT && spec->input[s.index].values);
    return values ? spec->Dv : spec->D;
}

int64_t ag_pool_count(const Derive *pool, int64_t Sk) {
    if (pool->partial) return ceil_div(Sk, pool->stride.n);
    return Sk < pool->size.n ? 0 : (Sk - pool->size.n) / pool->stride.n + 1;
}

int64_t ag_block_count(const Fixed *block, int64_t Sk) { return ceil_div(Sk, block->n); }

int64_t ag_branch_keys(const Spec *spec, int branch, int64_t Sk) {
    SpecRef s = spec->branch[branch].keys;
    return s.kind == FROM_DERIVE ? ag_pool_count(&spec->derive[s.index], Sk) : Sk;
}

/* ---- what an expression varies with */

enum { BY_QUERY = 1, BY_KEY = 2 };

typedef struct Reading {
    const Spec *spec;
    bool known[SPEC_MAX_LETS];
    int let[SPEC_MAX_LETS];
    bool sought[SPEC_MAX_LETS], by_key[SPEC_MAX_LETS]; /* of lets: whether they read elements by key */
    bool positions, keys, captured;                    /* seen on the way */
    int elements;                                      /* how many */
} Reading;

static int varies_with(Reading *r, const Ast *e);

/* Does it read elements of captured tensors that differ from key to key? */
static bool reads_by_key(Reading *r, const Ast *e) {
    if (!e) return false;
    if (e->op == OP_LET) {
        bool *known = &r->sought[e->index];
        if (!*known) *known = true, r->by_key[e->index] = reads_by_key(r, r->spec->let[e->index].value);
        return r->by_key[e->index];
    }
    bool found = false;
    for (int i = 0; i < e->nsub && !found; i++) found = (e->op == OP_LOAD && varies_with(r, e->sub[i]) & BY_KEY) || reads_by_key(r, e->sub[i]);
    for (int i = 0; i < ag_op[e->op].arity && !found; i++) found = reads_by_key(r, e->arg[i]);
    return found;
}

static int varies_with(Reading *r, const Ast *e) {
    int by = 0;
    if (!e) return 0;
    if (e->op == OP_SCORE) return BY_QUERY | BY_KEY;
    r->positions |= e->op == OP_AXIS && (e->index == AX_Q || e->index == AX_K);
    r->keys |= e->op == OP_AXIS && e->index == AX_K;
    if (e->op == OP_AXIS) return e->index == AX_Q ? BY_QUERY : e->index == AX_K ? BY_KEY : 0;
    if (e->op == OP_LET) {
        if (!r->known[e->index]) r->let[e->index] = varies_with(r, r->spec->let[e->index].value), r->known[e->index] = true;
        return r->let[e->index];
    }
    r->captured |= e->op == OP_LOAD;
    for (int i = 0; i < e->nsub; i++) by |= varies_with(r, e->sub[i]);
    r->elements += e->op == OP_LOAD && by == (BY_QUERY | BY_KEY);
    for (int i = 0; i < ag_op[e->op].arity; i++) by |= varies_with(r, e->arg[i]);
    r->elements += e->op == OP_MOD && by & BY_KEY; /* takes registers as loads do */
    /* So do alternatives by what is read for each key, of which none is a bound of the row. */
    r->elements += e->op == OP_OR && (reads_by_key(r, e->arg[0]) || reads_by_key(r, e->arg[1]));
    return by;
}

bool ag_reads_elements(const Spec *spec) { return ag_element_loads(spec) > 0; }

int ag_element_loads(const Spec *spec) {
    enum { WEIGHTS = 2 };
    Reading r = {.spec = spec};
    varies_with(&r, spec->score);
    for (int i = 0; i < spec->joined; i++) {
        varies_with(&r, spec->branch[i].score);
        varies_with(&r, spec->branch[i].mask);
    }
    if (ag_tiles(spec).scores > 1) r.elements += WEIGHTS;          /* a second fragment of products */
    bool weights = r.keys && spec->normalize != NORMALIZE_SOFTMAX; /* retention finds no registers for its distances under wgmma_d128 */
    varies_with(&r, spec->mask);
    varies_with(&r, spec->weigh);
    return weights && r.elements < WEIGHTS ? WEIGHTS : r.elements;
}

/* ---- elements in tiles */

typedef struct TilesRead {
    const Spec *spec;
    bool visited[SPEC_MAX_LETS];
    const Ast *seen[4]; /* one of each tensor */
    int n;
    ElementTiles found;
} TilesRead;

static bool is_axis(const Ast *e, Axis axis) { return e->op == OP_AXIS && e->index == (int)axis; }
static bool has_axis(const Input *x, int dim, Axis axis) { return x->dim[dim].kind == DIM_AXIS && x->dim[dim].axis == axis; }

static void find_tiles(TilesRead *t, const Ast *e) {
    if (!e) return;
    if (e->op == OP_LET && !t->visited[e->index]) {
        t->visited[e->index] = true;
        find_tiles(t, t->spec->let[e->index].value);
    }
    for (int i = 0; i < ag_op[e->op].arity; i++) find_tiles(t, e->arg[i]);
    if (e->op != OP_LOAD || !e->nsub || e->nsub > ELEMENT_TILE_DIMS) return;
    const Input *x = &t->spec->input[e->index];
    int last = e->nsub - 1;
    bool keys = is_axis(e->sub[last], AX_K) && (x->storage || x->type == t->spec->dtype);
    bool rows = last > 0 && is_axis(e->sub[last - 1], AX_Q) && has_axis(x, last - 1, AX_Q);
    Reading r = {.spec = t->spec};
    for (int i = 0; i < last - rows && keys; i++) keys = varies_with(&r, e->sub[i]) == 0;
    for (int i = 0; i < t->n && keys; i++) keys = t->seen[i]->index != e->index; /* has been counted */
    if (!keys || t->n == LEN(t->seen)) return;
    t->seen[t->n++] = e;
    if (rows) t->found.tiles++;
    if (!rows) t->found.rows++;
}

ElementTiles ag_element_tiles(const Spec *spec) {
    TilesRead t = {.spec = spec};
    find_tiles(&t, spec->score);
    return t.found;
}

bool ag_elements_in_tiles(const Spec *spec) {
    ElementTiles x = ag_element_tiles(spec);
    return x.tiles == 1 && x.rows <= 1 && ag_element_loads(spec) == 1;
}

/* Through lets, too.  No score: s. */
static bool reads_score(const Spec *spec, const Ast *e) {
    if (e->op == OP_SCORE || e->op == OP_DOT) return true;
    if (e->op == OP_LET) return spec->let[e->index].uses_score;
    for (int i = 0; i < e->nsub; i++)
        if (reads_score(spec, e->sub[i])) return true;
    for (int i = 0; i < ag_op[e->op].arity; i++)
        if (reads_score(spec, e->arg[i])) return true;
    return false;
}

bool ag_scores_products(const Spec *spec) {
    bool all = spec->nbranch || !spec->score || reads_score(spec, spec->score);
    for (int i = 0; i < spec->nbranch; i++) all &= !spec->branch[i].score || reads_score(spec, spec->branch[i].score);
    return all;
}

bool ag_scores_positions(const Spec *spec) {
    Reading r = {.spec = spec};
    varies_with(&r, spec->score);
    return r.positions;
}

bool ag_scores_captured(const Spec *spec) {
    Reading r = {.spec = spec};
    varies_with(&r, spec->score);
    varies_with(&r, spec->mask);
    for (int i = 0; i < spec->nbranch; i++) {
        varies_with(&r, spec->branch[i].score);
        varies_with(&r, spec->branch[i].mask);
    }
    return r.captured;
}
