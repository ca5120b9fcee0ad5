/* spec_branches.c: `branches`, each an attention of its own, and `output`, which combines them. */
#include "spec.h"

enum { MAX_PER = 1 << 16 };

int ag_spec_find_branch(const Spec *s, Str name) {
    for (int i = 0; i < s->nbranch; i++)
        if (ag_str_eq(s->branch[i].name, name)) return i;
    return -1;
}

static const char *what_of(Reader *r, const Branch *b, const char *key) {
    return ag_fmt(r->d->arena, "branch '%.*s'%s%s", STRF(ag_clip(r->d->arena, b->name)), *key ? ": " : "", key).s;
}

/* Names of what could stand where x does, for a hint. */
static void unknown_source(Reader *r, const Doc *x, const char *what, const char *expected, const char *plain, DeriveKind kind) {
    const Spec *s = r->spec;
    const char *names[1 + SPEC_MAX_INPUTS + SPEC_MAX_DERIVES + 1];
    int n = 0;
    if (plain) names[n++] = plain;
    for (int i = 0; i < s->ninput; i++) names[n++] = ag_str_copy(r->d->arena, s->input[i].name).s;
    for (int i = 0; i < s->nderive; i++)
        if (s->derive[i].kind == kind) names[n++] = ag_str_copy(r->d->arena, s->derive[i].name).s;
    names[n] = NULL;
    ag_spec_unknown(r, x, what, expected, names);
}

/* ---- keys and values */

static bool pooled(Reader *r, const Doc *x, const char *what, bool keys, int i, SpecRef *out) {
    const Derive *p = &r->spec->derive[i];
    uint32_t bit = (uint32_t)1 << (p->source.kind == FROM_INPUT ? p->source.index : 0);
    *out = (SpecRef){FROM_DERIVE, i};
    r->derive_used |= (uint32_t)1 << i;
    if (p->kind == DERIVE_NONE) return false;
    if (p->kind == DERIVE_SELECT) {
        ag_error(r->d, x->span, "%s: '%.*s' is a list of blocks; write blocks: %.*s", what, STRF(p->name), STRF(p->name));
        return false;
    }
    if (p->source.kind == (keys ? FROM_V : FROM_K)) {
        ag_error(r->d, x->span, "%s: '%.*s' pools %s", what, STRF(p->name), keys ? "values" : "keys");
        return false;
    }
    if (p->source.kind == FROM_INPUT && keys) r->in_keys |= bit;
    if (p->source.kind == FROM_INPUT && !keys) r->in_values |= bit;
    return true;
}

static bool read_source(Reader *r, const Doc *x, const Branch *b, bool keys, SpecRef *out) {
    const char *what = what_of(r, b, keys ? "keys" : "values"), *own = keys ? "k" : "v";
    const char *expected = ag_fmt(r->d->arena, "%s, an input or a pool", own).s;
    *out = (SpecRef){keys ? FROM_K : FROM_V, 0};
    if (!x) return true;
    if (!ag_spec_scalar(r, x, what, expected)) return false;
    if (ag_str_is(x->text, own)) return true;
    int i = ag_spec_find_input(r->spec, x->text), j = ag_spec_find_derive(r->spec, x->text);
    if (i >= 0) {
        *out = (SpecRef){FROM_INPUT, i};
        *(keys ? &r->in_keys : &r->in_values) |= (uint32_t)1 << i;
        return ag_spec_input_is_rows(r, x, what, i, false);
    }
    if (j >= 0) return pooled(r, x, what, keys, j, out);
    unknown_source(r, x, what, expected, own, DERIVE_POOL);
    return false;
}

/* ---- queries */

static void read_queries(Reader *r, const Doc *x, Branch *b) {
    const char *what = what_of(r, b, "queries");
    b->queries = (SpecRef){FROM_Q, 0};
    if (!x || !ag_spec_scalar(r, x, what, "q or an input") || ag_str_is(x->text, "q")) return;
    int i = ag_spec_find_input(r->spec, x->text);
    if (i < 0) {
        unknown_source(r, x, what, "q or an input", "q", DERIVE_NONE);
        return;
    }
    b->queries = (SpecRef){FROM_INPUT, i};
    r->in_queries |= (uint32_t)1 << i;
    ag_spec_input_is_rows(r, x, what, i, true);
}

/* Keys and values have to be the same rows. */
static bool same_rows(Reader *r, const Doc *x, const Branch *b) {
    bool k = b->keys.kind == FROM_DERIVE, v = b->values.kind == FROM_DERIVE;
    const Doc *at = ag_doc_get(x, v ? "values" : "keys");
    if (!k && !v) return true;
    if (k != v) {
        const Derive *p = &r->spec->derive[k ? b->keys.index : b->values.index];
        ag_error(r->d, at->span, "%s: the %s are pooled by '%.*s', the %s are not; pool both alike", what_of(r, b, ""), k ? "keys" : "values",
                 STRF(p->name), k ? "values" : "keys");
        return false;
    }
    const Derive *p = &r->spec->derive[b->keys.index], *q = &r->spec->derive[b->values.index];
    if (p->size.n == q->size.n && p->stride.n == q->stride.n && p->partial == q->partial) return true;
    ag_error(r->d, at->span, "%s: '%.*s' and '%.*s' differ in size, stride or tail; keys and values have to be pooled alike", what_of(r, b, ""),
             STRF(p->name), STRF(q->name));
    return false;
}

/* ---- blocks */

static bool is_list(const Input *x, bool *per_head) {
    static const Axis by_head[] = {AX_B, AX_H, AX_Q}, by_group[] = {AX_B, AX_G, AX_Q};
    *per_head = ag_spec_is_dims(x, by_head, LEN(by_head));
    return x->type == DT_I32 && (*per_head || ag_spec_is_dims(x, by_group, LEN(by_group)));
}

/* The queries per list of an input; all branches have to agree on it. */
static bool set_per(Reader *r, const Doc *at, const char *what, int i, const Fixed *per) {
    Input *x = &r->spec->input[i];
    uint32_t bit = (uint32_t)1 << i;
    if ((r->in_lists & bit) && x->per != per->n) {
        ag_error(r->d, at->span, "%s: '%.*s' has one list for %d quer%s in one branch and for %d in this one", what, STRF(x->name), x->per,
                 x->per == 1 ? "y" : "ies", per->n);
        return false;
    }
    r->in_lists |= bit;
    x->per = per->n;
    return true;
}

static bool read_counts(Reader *r, const Doc *x, Branch *b) {
    const char *what = what_of(r, b, "counts");
    bool per_head;
    if (!ag_spec_scalar(r, x, what, "an input")) return false;
    int i = ag_spec_find_input(r->spec, x->text);
    if (i < 0) {
        unknown_source(r, x, what, "an input", NULL, DERIVE_NONE);
        return false;
    }
    const Input *in = &r->spec->input[i];
    b->counts = i;
    if (in->rank < 0) return false;
    if (is_list(in, &per_head) && in->rank == 3 && per_head == b->per_head) return set_per(r, x, what, i, &b->per);
    ag_error(r->d, x->span, "%s: expected an input of i32 [b, %s, q], as many as there are lists; '%.*s' is %s", what, b->per_head ? "h" : "g",
             STRF(in->name), ag_spec_type_text(r, in));
    return false;
}

/* blocks: an input. */
static bool listed(Reader *r, const Doc *x, Branch *b, int i) {
    const Doc *block = ag_doc_get(x, "block"), *per = ag_doc_get(x, "blocks_per"), *counts = ag_doc_get(x, "counts"), *at = ag_doc_get(x, "blocks");
    const Input *in = &r->spec->input[i];
    const char *what = what_of(r, b, "blocks");
    b->blocks = (SpecRef){FROM_INPUT, i};
    bool ok = !per || ag_spec_fixed(r, per, what_of(r, b, "blocks_per"), 1, MAX_PER, &b->per);
    if (!block) ag_error(r->d, at->span, "%s: '%.*s' is an input; say how many keys a block has, such as block: 64", what, STRF(in->name));
    ok &= block && ag_spec_block(r, block, what_of(r, b, ""), &b->block);
    if (in->rank < 0) return false;
    if (in->rank != 4 || !is_list(in, &b->per_head) || in->dim[3].kind != DIM_CONST) {
        ag_error(r->d, at->span, "%s: expected an input of i32 [b, g, q, N] or [b, h, q, N]; '%.*s' is %s", what, STRF(in->name),
                 ag_spec_type_text(r, in));
        return false;
    }
    ok = ok && set_per(r, at, what, i, &b->per);
    return ok && (!counts || read_counts(r, counts, b));
}

/* blocks: a selection. */
static bool selected(Reader *r, const Doc *x, Branch *b, int i) {
    static const char *const none[] = {"block", "blocks_per", "counts", NULL};
    const Derive *p = &r->spec->derive[i];
    bool ok = true;
    b->blocks = (SpecRef){FROM_DERIVE, i};
    r->derive_used |= (uint32_t)1 << i;
    if (p->kind == DERIVE_NONE) return false;
    if (p->kind == DERIVE_POOL) {
        ag_error(r->d, ag_doc_get(x, "blocks")->span, "%s: '%.*s' is no list of blocks but pooled rows", what_of(r, b, "blocks"), STRF(p->name));
        return false;
    }
    for (int j = 0; none[j]; j++) {
        if (!ag_doc_get(x, none[j])) continue;
        ag_error(r->d, ag_spec_key(x, none[j])->span, "%s: has no place here; '%.*s' says it", what_of(r, b, none[j]), STRF(p->name));
        ok = false;
    }
    b->block = p->block;
    b->per_head = p->per_head;
    return ok;
}

static bool read_blocks(Reader *r, const Doc *x, Branch *b) {
    static const char *const needs_list[] = {"block", "blocks_per", "counts", NULL};
    const Doc *list = ag_doc_get(x, "blocks");
    const char *what = what_of(r, b, "blocks");
    for (int j = 0; !list && needs_list[j]; j++) {
        if (!ag_doc_get(x, needs_list[j])) continue;
        ag_error(r->d, ag_spec_key(x, needs_list[j])->span, "%s: has no effect without 'blocks'", what_of(r, b, needs_list[j]));
        return false;
    }
    if (!list) return true;
    if (!ag_spec_scalar(r, list, what, "a selection or an input")) return false;
    int i = ag_spec_find_input(r->spec, list->text), j = ag_spec_find_derive(r->spec, list->text);
    if (i >= 0) return listed(r, x, b, i);
    if (j >= 0) return selected(r, x, b, j);
    unknown_source(r, list, what, "a selection or an input", NULL, DERIVE_SELECT);
    return false;
}

/* ---- branches */

/* Lists of blocks are of the original keys. */
static bool blocks_fit(Reader *r, const Doc *x, const Branch *b) {
    const Doc *list = ag_doc_get(x, "blocks"), *by = b->blocks.kind == FROM_DERIVE ? r->select[b->blocks.index] : NULL;
    if (b->blocks.kind == FROM_NONE) return true;
    if (by && ag_str_eq(by->text, b->name)) {
        ag_error(r->d, list->span, "%s: '%.*s' is selected by this branch itself", what_of(r, b, "blocks"), STRF(list->text));
        return false;
    }
    if (b->keys.kind != FROM_DERIVE) return true;
    ag_error(r->d, list->span, "%s: the keys of this branch are pooled; lists name blocks of keys that are not", what_of(r, b, "blocks"));
    return false;
}

static void read_branch(Reader *r, const Doc *key, const Doc *x) {
    static const char *const keys[] = {"queries", "keys", "values", "mask", "score", "weigh", "blocks", "counts", "block", "blocks_per", NULL};
    Branch *b = &r->spec->branch[r->spec->nbranch];
    *b = (Branch){.name = key->text, .counts = -1, .per = {1, 0}, .span = key->span};
    bool ok = ag_spec_check_name(r, key);
    int before = r->d->nerror;
    if (ag_spec_map(r, x, what_of(r, b, ""), "{mask: k <= q}")) {
        r->branch[r->spec->nbranch] = x;
        ag_doc_check_keys(r->d, x, what_of(r, b, ""), keys);
        read_queries(r, ag_doc_get(x, "queries"), b);
        bool rows = read_source(r, ag_doc_get(x, "keys"), b, true, &b->keys);
        rows &= read_source(r, ag_doc_get(x, "values"), b, false, &b->values);
        if (rows) same_rows(r, x, b);
        if (read_blocks(r, x, b)) blocks_fit(r, x, b);
    }
    b->bad = !ok || r->d->nerror > before;
    r->spec->nbranch++;
}

void ag_spec_branches(Reader *r, const Doc *x) {
    static const char *const single[] = {"score", "mask", "weigh"};
    if (!ag_spec_map(r, x, "branches", "{local: {mask: q - k < window}}")) return;
    if (!x->n) ag_error(r->d, x->span, "branches: expected one or more, such as {local: {mask: q - k < window}}");
    for (int i = 0; i < LEN(single); i++) {
        const Doc *key = ag_spec_key(r->root, single[i]);
        if (key) ag_error(r->d, key->span, "'%s' does not go with 'branches', which have their own; put it into a branch", single[i]);
    }
    if (x->n > SPEC_MAX_BRANCHES) {
        ag_error(r->d, x->key[SPEC_MAX_BRANCHES]->span, "branches: more than %d", SPEC_MAX_BRANCHES);
        return;
    }
    r->spec->branch = NEWN(r->d->arena, Branch, (size_t)x->n + 1);
    for (int i = 0; i < x->n; i++) read_branch(r, x->key[i], x->item[i]);
}

void ag_spec_branch_expressions(Reader *r) {
    for (int i = 0; i < r->spec->nbranch; i++) {
        Branch *b = &r->spec->branch[i];
        const Doc *score = r->branch[i] ? ag_doc_get(r->branch[i], "score") : NULL, *mask = r->branch[i] ? ag_doc_get(r->branch[i], "mask") : NULL;
        const Doc *weigh = r->branch[i] ? ag_doc_get(r->branch[i], "weigh") : NULL;
        if (weigh) b->weigh = ag_spec_weigh(r, weigh, what_of(r, b, "weigh"));
        if (score) b->score = ag_spec_expression(r, score, what_of(r, b, "score"), &(ExprUse){.want = T_FLOAT, .nlet = r->spec->nlet});
        if (mask) b->mask = ag_spec_expression(r, mask, what_of(r, b, "mask"), &(ExprUse){.want = T_BOOL, .nlet = r->spec->nlet});
    }
}

/* ---- output */

void ag_spec_output(Reader *r, const Doc *x) {
    ExprUse use = {.want = T_FLOAT, .output = true, .nlet = r->spec->nlet};
    if (!ag_doc_get(r->root, "branches")) {
        ag_error(r->d, ag_spec_key(r->root, "output")->span, "'output' combines branches; there is no 'branches'");
        return;
    }
    r->spec->output = ag_spec_expression(r, x, "output", &use);
    if (ag_norms(r->spec) > SPEC_MAX_NORMS) ag_error(r->d, x->span, "output: more than %d norms over channels", SPEC_MAX_NORMS);
    r->branch_out = use.branches;
    r->in_output = use.inputs;
}

void ag_spec_branches_finish(Reader *r) {
    Spec *s = r->spec;
    bool output = ag_doc_get(r->root, "output") != NULL;
    if (!output && s->nbranch > 1)
        ag_error(r->d, ag_spec_key(r->root, "branches")->span,
                 "there are %d branches and no 'output' that combines them, such as output: %.*s + %.*s", s->nbranch, STRF(s->branch[0].name),
                 STRF(s->branch[1].name));
    for (int i = 0; output && i < s->nbranch; i++)
        if (!((r->branch_out | r->selected) >> i & 1)) ag_error(r->d, s->branch[i].span, "branch '%.*s' is never used", STRF(s->branch[i].name));
    for (int i = 0; i < s->nderive; i++)
        if (!(r->derive_used >> i & 1)) ag_error(r->d, s->derive[i].span, "derive '%.*s' is never used", STRF(s->derive[i].name));
}
