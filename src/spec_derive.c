/* spec_derive.c: `derive`: pooled rows and selected blocks. */
#include "spec.h"

enum { MAX_POOL = 1 << 16, BLOCK_STEP = 16, BLOCK_MAX = 256 };

int ag_spec_find_derive(const Spec *s, Str name) {
    for (int i = 0; i < s->nderive; i++)
        if (ag_str_eq(s->derive[i].name, name)) return i;
    return -1;
}

/* A field of the map x that has to be there. */
static const Doc *needed(Reader *r, const Doc *x, const char *what, const char *key) {
    const Doc *v = ag_doc_get(x, key);
    if (!v) ag_error(r->d, x->span, "%s: '%s' is missing", what, key);
    return v;
}

static const char *sub(Reader *r, const char *what, const char *key) { return ag_fmt(r->d->arena, "%s: %s", what, key).s; }

/* ---- pools */

static bool pool_source(Reader *r, const Doc *x, const char *what, SpecRef *out) {
    const Spec *s = r->spec;
    const char *names[SPEC_MAX_INPUTS + 3] = {"k", "v"};
    what = sub(r, what, "pool");
    if (!ag_spec_scalar(r, x, what, "k, v or an input")) return false;
    int i = ag_spec_find_input(s, x->text);
    if (ag_str_is(x->text, "k"))
        *out = (SpecRef){FROM_K, 0};
    else if (ag_str_is(x->text, "v"))
        *out = (SpecRef){FROM_V, 0};
    else if (i >= 0) {
        *out = (SpecRef){FROM_INPUT, i};
        return ag_spec_input_is_rows(r, x, what, i, false);
    } else {
        for (i = 0; i < s->ninput; i++) names[i + 2] = ag_str_copy(r->d->arena, s->input[i].name).s;
        ag_spec_unknown(r, x, what, "k, v or an input", names);
        return false;
    }
    return true;
}

/* weights: an input, f32 [size]. */
static bool pool_weights(Reader *r, const Doc *x, const char *what, Derive *p) {
    const Spec *s = r->spec;
    const char *names[SPEC_MAX_INPUTS + 1] = {NULL};
    what = sub(r, what, "weights");
    if (!ag_spec_scalar(r, x, what, "an input")) return false;
    p->weights = ag_spec_find_input(s, x->text);
    if (p->weights < 0) {
        for (int i = 0; i < s->ninput; i++) names[i] = ag_str_copy(r->d->arena, s->input[i].name).s;
        ag_spec_unknown(r, x, what, "an input", names);
        return false;
    }
    const Input *w = &s->input[p->weights];
    r->in_lists |= (uint32_t)1 << p->weights;
    if (w->rank < 0 || (w->type == DT_F32 && w->rank == 1 && w->dim[0].kind == DIM_CONST && w->dim[0].n.n == p->size.n)) return w->rank >= 0;
    ag_error(r->d, x->span, "%s: expected an input of f32 [%d], one for each row of a block; '%.*s' is %s", what, p->size.n, STRF(w->name),
             ag_spec_type_text(r, w));
    return false;
}

static bool read_pool(Reader *r, const Doc *x, const char *what, Derive *p) {
    static const char *const keys[] = {"pool", "size", "stride", "op", "weights", "tail", NULL};
    static const char *const ops[] = {"mean", NULL};
    static const char *const tails[] = {"drop", "partial", NULL};
    int which = 0, tail = 0, before = r->d->nerror;
    ag_doc_check_keys(r->d, x, what, keys);
    const Doc *size = needed(r, x, what, "size"), *stride = needed(r, x, what, "stride");
    const Doc *op = ag_doc_get(x, "op"), *weights = ag_doc_get(x, "weights"), *t = ag_doc_get(x, "tail");
    pool_source(r, ag_doc_get(x, "pool"), what, &p->source);
    bool sized = size && ag_spec_fixed(r, size, sub(r, what, "size"), 1, MAX_POOL, &p->size);
    if (stride) ag_spec_fixed(r, stride, sub(r, what, "stride"), 1, MAX_POOL, &p->stride);
    if (op && weights) ag_error(r->d, ag_spec_key(x, "weights")->span, "%s: 'op' and 'weights' exclude each other", what);
    if (op) ag_doc_enum(r->d, op, sub(r, what, "op"), ops, &which);
    if (weights && sized) pool_weights(r, weights, what, p);
    if (t && ag_doc_enum(r->d, t, sub(r, what, "tail"), tails, &tail)) p->partial = tail == 1;
    return r->d->nerror == before;
}

/* ---- selections */

bool ag_spec_block(Reader *r, const Doc *x, const char *what, Fixed *out) {
    what = sub(r, what, "block");
    if (!ag_spec_fixed(r, x, what, BLOCK_STEP, BLOCK_MAX, out)) return false;
    if (out->n % BLOCK_STEP == 0) return true;
    ag_error(r->d, x->span, "%s: %d is no multiple of %d", what, out->n, BLOCK_STEP);
    return false;
}

static void read_force(Reader *r, const Doc *x, const char *what, Derive *p) {
    static const char *const keys[] = {"first", "local", NULL};
    what = sub(r, what, "force");
    if (!ag_spec_map(r, x, what, "{first: 1, local: 2}")) return;
    ag_doc_check_keys(r->d, x, what, keys);
    const Doc *first = ag_doc_get(x, "first"), *local = ag_doc_get(x, "local");
    bool ok = !first || ag_spec_fixed(r, first, sub(r, what, "first"), 0, SELECT_MAX_COUNT, &p->first);
    ok &= !local || ag_spec_fixed(r, local, sub(r, what, "local"), 0, SELECT_MAX_COUNT, &p->local);
    if (ok && p->count.n && p->first.n + p->local.n > p->count.n)
        ag_error(r->d, x->span, "%s: %d first and %d local blocks are more than the %d of a list ('count')", what, p->first.n, p->local.n,
                 p->count.n);
}

static bool read_select(Reader *r, const Doc *x, const char *what, Derive *p, const Doc **by) {
    static const char *const keys[] = {"select", "block", "count", "force", "share", "causal", NULL};
    static const char *const shares[] = {"group", "head", NULL};
    int share = 0, before = r->d->nerror;
    ag_doc_check_keys(r->d, x, what, keys);
    const Doc *block = needed(r, x, what, "block"), *count = needed(r, x, what, "count");
    const Doc *force = ag_doc_get(x, "force"), *s = ag_doc_get(x, "share"), *causal = ag_doc_get(x, "causal");
    *by = ag_doc_get(x, "select");
    if (!ag_spec_scalar(r, *by, sub(r, what, "select"), "a branch over pooled keys, or a pool")) *by = NULL;
    if (block) ag_spec_block(r, block, what, &p->block);
    if (count) ag_spec_fixed(r, count, sub(r, what, "count"), 1, SELECT_MAX_COUNT, &p->count);
    if (force) read_force(r, force, what, p);
    if (s && ag_doc_enum(r->d, s, sub(r, what, "share"), shares, &share)) p->per_head = share == 1;
    p->causal = true;
    if (causal) ag_doc_bool(r->d, causal, sub(r, what, "causal"), &p->causal);
    return r->d->nerror == before;
}

/* ---- */

static void read_derive(Reader *r, const Doc *key, const Doc *x) {
    Derive p = {.name = key->text, .weights = -1, .span = key->span};
    bool ok = ag_spec_check_name(r, key);
    int i = r->spec->nderive;
    const char *what = ag_fmt(r->d->arena, "derive '%.*s'", STRF(ag_clip(r->d->arena, key->text))).s;
    const Doc *pool = x->kind == DOC_MAP ? ag_doc_get(x, "pool") : NULL, *select = x->kind == DOC_MAP ? ag_doc_get(x, "select") : NULL;
    if (!pool == !select)
        ag_error(r->d, x->span, "%s: expected {pool: k, size: 32, stride: 16} or {select: BRANCH, block: 64, count: 16}", what);
    else if (pool && read_pool(r, x, what, &p) && ok)
        p.kind = DERIVE_POOL;
    else if (select && read_select(r, x, what, &p, &r->select[i]) && ok)
        p.kind = DERIVE_SELECT;
    r->spec->derive[r->spec->nderive++] = p;
}

void ag_spec_derive(Reader *r, const Doc *x) {
    if (!ag_spec_map(r, x, "derive", "{kc: {pool: k, size: 32, stride: 16}}")) return;
    if (x->n > SPEC_MAX_DERIVES) {
        ag_error(r->d, x->key[SPEC_MAX_DERIVES]->span, "derive: more than %d derived tensors", SPEC_MAX_DERIVES);
        return;
    }
    r->spec->derive = NEWN(r->d->arena, Derive, (size_t)x->n + 1);
    for (int i = 0; i < x->n; i++) read_derive(r, x->key[i], x->item[i]);
}

/* ---- once branches have been read */

/* What a selection by a pool needs: one key per block, and no block whose mean holds keys that the query cannot see. */
static void check_pool_of_select(Reader *r, const Derive *p, const Doc *by, const char *what) {
    const Derive *pool = &r->spec->derive[p->source.index];
    bool keys = pool->source.kind != FROM_V, alike = pool->size.n == p->block.n && pool->stride.n == p->block.n;
    if (pool->source.kind == FROM_INPUT) r->in_keys |= (uint32_t)1 << pool->source.index;
    if (!keys)
        ag_error(r->d, by->span, "%s: '%.*s' pools values; blocks are selected by keys", what, STRF(pool->name));
    else if (!alike || !pool->partial)
        ag_error(r->d, by->span, "%s: '%.*s' has to have size and stride %d, the block, and tail: partial; it has %d, %d and tail: %s", what,
                 STRF(pool->name), p->block.n, pool->size.n, pool->stride.n, pool->partial ? "partial" : "drop");
    else if (p->causal && !p->local.n)
        ag_error(r->d, by->span, "%s: the mean over the query's own block holds keys past the query; select that block always, by force: {local: 1}",
                 what);
}

static void resolve_select(Reader *r, Derive *p, const Doc *by) {
    const Spec *s = r->spec;
    const char *what = ag_fmt(r->d->arena, "derive '%.*s': select", STRF(ag_clip(r->d->arena, p->name))).s;
    const char *names[SPEC_MAX_BRANCHES + SPEC_MAX_DERIVES + 1];
    int n = 0, branch = ag_spec_find_branch(s, by->text), pool = ag_spec_find_derive(s, by->text);
    if (branch >= 0) {
        const Branch *b = &s->branch[branch];
        p->source = (SpecRef){FROM_BRANCH, branch};
        r->selected |= (uint32_t)1 << branch;
        if (!b->bad && b->keys.kind != FROM_DERIVE)
            ag_error(r->d, by->span, "%s: '%.*s' is no branch over pooled keys; its probabilities are of single keys", what, STRF(b->name));
        if (s->normalize != NORMALIZE_SOFTMAX || s->plus)
            ag_unsupported(r->d, by->span,
                           "%s: by a branch blocks are ranked by its probabilities under a plain softmax, and 'normalize' is another in this spec; "
                           "select by a pool",
                           what);
    } else if (pool >= 0 && s->derive[pool].kind != DERIVE_SELECT) {
        p->source = (SpecRef){FROM_DERIVE, pool};
        r->derive_used |= (uint32_t)1 << pool;
        if (s->derive[pool].kind == DERIVE_POOL) check_pool_of_select(r, p, by, what);
    } else {
        for (int i = 0; i < s->nbranch; i++) names[n++] = ag_str_copy(r->d->arena, s->branch[i].name).s;
        for (int i = 0; i < s->nderive; i++)
            if (s->derive[i].kind == DERIVE_POOL) names[n++] = ag_str_copy(r->d->arena, s->derive[i].name).s;
        names[n] = NULL;
        ag_spec_unknown(r, by, what, "a branch over pooled keys, or a pool", names);
    }
}

void ag_spec_derive_finish(Reader *r) {
    Spec *s = r->spec;
    for (int i = 0; i < s->nderive; i++)
        if (s->derive[i].kind == DERIVE_SELECT) resolve_select(r, &s->derive[i], r->select[i]);
}
