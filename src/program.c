/* program.c: a spec with branches as a list of kernels with buffers between them. */
#include <assert.h>
#include <string.h>

#include "program.h"

Spec *ag_branch_spec(Arena *a, const Spec *spec, int branch) {
    const Branch *b = &spec->branch[branch];
    Spec *s = NEW(a, Spec);
    *s = *spec;
    s->name = ag_fmt(a, "%.*s_%.*s", STRF(spec->name), STRF(b->name));
    s->score = b->score;
    s->mask = b->mask;
    s->weigh = b->weigh;
    s->rows_given = true;
    s->rows = 1u << ROWV_LSE | (ag_reads_mean(spec, branch) ? 1u << ROWV_MEAN : 0);
    s->nderive = s->nbranch = 0;
    s->output = NULL;
    return s;
}

/* ---- what is taken from where */

static int number_of(const Spec *s, SpecRef r) {
    switch (r.kind) {
    case FROM_Q: return TEN_Q;
    case FROM_K: return TEN_K;
    case FROM_V: return TEN_V;
    case FROM_INPUT: return ag_program_input(r.index);
    case FROM_DERIVE: return ag_program_derive(s, r.index);
    default: assert(0 && "no tensor of rows"); return -1;
    }
}

/* Is the branch ranked by? */
static bool is_selected_from(const Spec *s, int branch) {
    for (int i = 0; i < s->nderive; i++)
        if (s->derive[i].kind == DERIVE_SELECT && s->derive[i].source.kind == FROM_BRANCH && s->derive[i].source.index == branch) return true;
    return false;
}

/* Where the kernel of a branch finds its queries, keys and values, and where its results go. */
static void set_tensors(const Spec *s, int branch, Kernel *k, bool gather) {
    const Branch *b = &s->branch[branch];
    k->tensor[TEN_Q].program = number_of(s, b->queries);
    k->tensor[TEN_K].program = number_of(s, b->keys);
    k->tensor[TEN_V].program = number_of(s, b->values);
    k->tensor[TEN_O].program = ag_program_result(s, branch);
    k->tensor[TEN_LSE].program = is_selected_from(s, branch) ? ag_program_lse(s, branch) : ag_has_lse(s) ? TEN_LSE : -1;
    k->tensor[TEN_MEAN].program = ag_reads_mean(s, branch) ? ag_program_mean(s, branch) : -1;
    k->tensor[TEN_MAX].program = -1;
    if (b->keys.kind == FROM_DERIVE) k->pool = &s->derive[b->keys.index];
    if (!gather) return;
    k->tensor[TEN_O].program = ag_program_part(s, branch);
    k->tensor[TEN_LSE].program = ag_program_part_lse(s, branch);
}

/* ---- kernels in their order: pools, branches over all their keys, lists, branches over lists, the output */

static void add_part(Compilation *c, Fn part) {
    assert(c->npart < LEN(c->part));
    c->part[c->npart++] = part;
    ag_stop_if_errors(&c->diag);
}

static void add_built(Compilation *c, Kernel *k) {
    Fn part = c->fn;
    part.spec = k->spec;
    part.math = NULL;
    part.kernel = k;
    add_part(c, part);
}

void ag_build_prologue(Compilation *c) {
    for (int of_k = 0; of_k < 2; of_k++)
        if (ag_makes_rows(c->fn.spec, of_k)) add_built(c, ag_build_rows(&c->fn, of_k ? ROWS_K : ROWS_Q));
}

void ag_link_prologue(Compilation *c) {
    for (int i = 0; i < c->npart; i++) {
        Kernel *k = c->part[i].kernel;
        if (k->role[0].body.last && k->role[0].body.last->op == TI_ROWS) continue;
        for (int t = 0; t < k->ntensor; t++) {
            KernelTensor *x = &k->tensor[t];
            if (x->program == TEN_Q || x->program == TEN_K) x->program = ag_program_source(c->fn.spec, x->program == TEN_K ? ROWS_K : ROWS_Q);
        }
    }
}

/* The bound of a pooled key is a division a row, for which the tiles of three warpgroups at D 64 have no registers: those for few queries have two. */
enum { FEW_QUERIES = 1 };

static void lower_and_run(Fn *fn, const Request *r) {
    fn->math = ag_lower(fn->d, fn->spec);
    ag_stop_if_errors(fn->d);
    fn->facts = FACT_LOWERED;
    if (!r->after || strcmp(r->after, "lower") != 0) ag_run_passes(fn, r);
}

/* Have the two, both with a map, the same? */
static bool same_map(const Fn *a, const Fn *b) {
    static const FieldId of_tile[] = {F_TILE_M, F_TILE_N, F_PACK_GQA};
    const Fn *const both[] = {a, b};
    Nodes p;
    Ref mask[2];
    for (int i = 0; i < LEN(of_tile); i++)
        if (a->sched->f[of_tile[i]].v != b->sched->f[of_tile[i]].v) return false;
    ag_nodes_init(&p, a->d->arena); /* where the same expressions are one node */
    for (int i = 0; i < 2; i++) mask[i] = ag_node_rebuild(&p, &both[i]->math->nodes, both[i]->math->range.mask, NULL, NULL);
    return mask[0] == mask[1];
}

void ag_add_map(Compilation *c, Fn *fn, int number) {
    if (!(fn->facts & FACT_PLACED) || !fn->kernel->tiles) return;
    for (int i = 0; i < c->npart; i++) {
        const Fn *other = &c->part[i];
        if (other->kernel->kind != KERNEL_ATTEND || !other->kernel->tiles || !same_map(other, fn)) continue;
        fn->kernel->tensor[fn->kernel->tiles].program = other->kernel->tensor[other->kernel->tiles].program;
        return;
    }
    Kernel *map = ag_build_classify(fn);
    fn->kernel->tensor[fn->kernel->tiles].program = map->tensor[map->tiles].program = number;
    add_built(c, map);
}

/* The forced blocks of a branch over lists, its result for now. */
static void attend_forced(Compilation *c, const Request *r, int branch) {
    const Spec *whole = c->fn.spec;
    Arena *a = c->diag.arena;
    const Branch *b = ag_forced_branch(a, whole, branch);
    Spec *spec = ag_branch_spec(a, whole, branch);
    spec->name = ag_fmt(a, "%.*s_forced", STRF(spec->name));
    spec->mask = b->mask;
    spec = ag_attention_spec(a, spec);
    Fn fn = {.d = &c->diag, .spec = spec, .target = c->fn.target, .branch = b, .program = whole, .number = branch};
    fn.sched = ag_schedule_narrow(c, spec);
    lower_and_run(&fn, r);
    set_tensors(whole, branch, fn.kernel, false);
    fn.kernel->tensor[TEN_LSE].program = ag_program_lse(whole, branch);
    add_part(c, fn);
}

/* fused: what the kernel writes is the output. */
static void attend(Compilation *c, const Request *r, int branch, bool fused) {
    const Spec *whole = c->fn.spec;
    Spec *spec = ag_attention_spec(c->diag.arena, ag_branch_spec(c->diag.arena, whole, branch));
    if (fused || ag_norms(whole)) spec->beside = ag_output_registers(whole);
    const Branch *b = &whole->branch[branch];
    bool listed = b->blocks.kind != FROM_NONE, gather = listed && !r->united && c->sched->f[F_LISTS].v == LISTS_BY_BLOCK;
    if (b->apart && !r->after) attend_forced(c, r, branch);
    Fn fn = {.d = &c->diag,
             .spec = spec,
             .target = c->fn.target,
             .branch = b,
             .program = whole,
             .number = branch,
             .gather = gather,
             .classified = !r->alone && !listed && b->keys.kind != FROM_DERIVE,
             .fused = fused && !gather,
             .no_lse = (fused || b->apart) && !gather && !is_selected_from(whole, branch) && !ag_has_lse(whole),
             .united = !listed || gather                        ? 0
                       : r->united                              ? r->united
                       : c->sched->f[F_LISTS].v == LISTS_UNITED ? ag_listed_united(whole, b)
                                                                : 0,
             .pool = b->keys.kind == FROM_DERIVE ? &whole->derive[b->keys.index] : NULL};
    fn.sched = gather ? ag_gather_schedule(&c->fn, b) : listed ? ag_listed_schedule(&fn, b) : ag_schedule_for(c, spec, fn.pool ? FEW_QUERIES : -1);
    for (int step = INVERT_COUNT; gather && !r->after && step <= INVERT_ENTRIES; step++) add_built(c, ag_build_invert(&c->fn, branch, step));
    lower_and_run(&fn, r);
    if (fn.kernel) set_tensors(whole, branch, fn.kernel, gather);
    if (fn.kernel && fn.fused) fn.kernel->tensor[TEN_O].program = TEN_O;
    ag_add_map(c, &fn, ag_program_tiles(whole, branch));
    if (!c->fn.math) c->fn.math = fn.math, c->fn.kernel = fn.kernel;
    add_part(c, fn);
    if (gather && !r->after) add_built(c, ag_build_merge(&c->fn, branch, fused));
}

/* All branches as one kernel. */
static void attend_joined(Compilation *c, const Request *r) {
    const Spec *whole = c->fn.spec;
    Fn fn = {.d = &c->diag,
             .spec = ag_joined_spec(c->diag.arena, whole),
             .target = c->fn.target,
             .sched = c->sched,
             .program = whole,
             .classified = !r->alone,
             .fused = true,
             .no_lse = true};
    lower_and_run(&fn, r);
    ag_add_map(c, &fn, ag_program_tiles(whole, 0));
    for (int i = TEN_LSE; fn.kernel && i < TEN_COUNT; i++) fn.kernel->tensor[i].program = -1;
    c->fn.math = fn.math, c->fn.kernel = fn.kernel;
    add_part(c, fn);
}

/* What the kernels of this version cannot do yet. */
static void refuse(Diag *d, const Spec *s) {
    for (int i = 0; i < s->nbranch; i++)
        if (s->branch[i].blocks.kind != FROM_NONE && s->branch[i].keys.kind == FROM_DERIVE)
            ag_unsupported(d, s->branch[i].span, "block lists over pooled keys are not in this version of attngen");
    ag_stop_if_errors(d);
}

/* Kernels take the heads of a group as rows of a tile: their number is needed. */
static Spec *close_group(Compilation *c) {
    enum { MOST_HEADS = 64 };
    Spec *s = NEW(c->diag.arena, Spec);
    *s = *c->fn.spec;
    c->open_group = s->group == 0;
    if (c->open_group) s->group = 1;
    if (s->group > MOST_HEADS)
        ag_unsupported(&c->diag, s->group_span, "with branches this version of attngen takes up to %d query heads per KV head, not %d", MOST_HEADS,
                       s->group);
    c->fn.spec = s;
    return s;
}

/* The branch whose kernel comes last, for the output: one over listed blocks.  But one whose forced blocks are apart has its result in the workspace anyway: then another that
 * nothing ranks by, so that the workspace has no more results than without. */
static int last_branch(const Compilation *c) {
    const Spec *s = c->fn.spec;
    int last = s->nbranch - 1, listed = -1, plain = -1;
    for (int i = 0; i < s->nbranch; i++)
        if (s->branch[i].blocks.kind != FROM_NONE)
            listed = i;
        else if (!is_selected_from(s, i))
            plain = i;
    for (int i = last; listed < 0 && s->branch[last].weigh && i >= 0; i--) /* one without a factor has registers left for the output */
        if (!s->branch[i].weigh && ag_output_fits(s, i)) last = i;
    if (listed < 0) return last;
    bool by_query = c->sched->f[F_LISTS].v == LISTS_BY_QUERY;
    return by_query && s->branch[listed].apart && plain >= 0 && ag_output_fits(s, plain) ? plain : listed;
}

/* Which branches have their forced blocks apart. */
static void close_forced(const Compilation *c, Spec *s, const Request *r) {
    Branch *branch = NEWN(c->diag.arena, Branch, (size_t)s->nbranch + 1);
    for (int i = 0; i < s->nbranch; i++) {
        branch[i] = s->branch[i];
        branch[i].apart = c->sched->f[F_FORCED].v == FORCED_APART && !r->united && ag_can_part(s, &branch[i]);
    }
    s->branch = branch;
}

void ag_compile_program(Compilation *c, const Request *r) {
    Spec *s = close_group(c);
    refuse(&c->diag, s);
    if (c->attention->joined) {
        attend_joined(c, r);
        return;
    }
    close_forced(c, s, r);
    bool all = !r->after, listed = false; /* all: the kernels below have no IR before their last form */
    for (int i = 0; i < s->nbranch; i++) listed |= s->branch[i].blocks.kind != FROM_NONE;
    int last = last_branch(c);
    bool fused = ag_output_fits(s, last);
    for (int i = 0; all && i < s->nderive; i++)
        if (s->derive[i].kind == DERIVE_POOL) add_built(c, ag_build_pool(&c->fn, i));
    for (int i = 0; i < s->nbranch; i++)
        if (s->branch[i].blocks.kind == FROM_NONE && i != last) attend(c, r, i, false);
    if (!listed) attend(c, r, last, fused);
    for (int i = 0; all && i < s->nderive; i++)
        if (s->derive[i].kind == DERIVE_SELECT) add_built(c, ag_build_select(&c->fn, i));
    for (int i = 0; i < s->nbranch; i++)
        if (s->branch[i].blocks.kind != FROM_NONE) attend(c, r, i, fused && i == last);
    if (listed && s->branch[last].blocks.kind == FROM_NONE) attend(c, r, last, fused);
    if (all && !fused && (s->nbranch > 1 || s->output)) add_built(c, ag_build_combine(&c->fn));
}
