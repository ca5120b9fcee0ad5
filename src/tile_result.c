/* tile_result.c: inside the tile pass, what is put out behind the loop: accumulators normalised, rows, and where it is the kernel's work the program's output. */
#include <assert.h>

#include "program.h"
#include "tiler.h"

/* The carry with channels that a value reads; -1. */
static int accumulator_of(const Tiler *t, Ref value) {
    const Node *n = &t->m->nodes.n[value];
    if (n->op == OP_CARRY) return t->s->carry[n->index].axes & 1 << AX_D ? n->index : -1;
    int found = -1;
    for (int i = 0; i < ag_op[n->op].arity && found < 0; i++) found = accumulator_of(t, n->arg[i]);
    return found;
}

/* An output that is 0 in some rows, and the rest of its expression: fragment v, from which it is computed, is cleared in those rows, for the warps that have any. */
static Ref clear_empty_rows(Tiler *t, Block *to, Ref value, int v) {
    const Node *n = &t->m->nodes.n[value];
    Node c = t->m->nodes.n[n->arg[0]];
    if (n->op != OP_SELECT || !ag_node_is_float(&t->m->nodes, n->arg[2], 0) || ag_tiler_level(t, &c) != LEVEL_ROW) return value;
    Ref rest = n->arg[1], full = ag_tiler_expr(t, n->arg[0], LEVEL_ROW);
    Ins *any = ag_tiler_add(t, to, TI_ANY, -1, "rows that have seen no key are 0");
    any->e[0] = ag_node_op(&t->k->nodes, OP_NOT, full, 0, 0, c.span);
    ag_tiler_positions(t, any);
    Ins *clear = ag_tiler_add(t, &any->body, TI_MAP, v, NULL);
    clear->e[0] = ag_node_op(&t->k->nodes, OP_SELECT, full, val(t, v), ag_node_float(&t->k->nodes, 0), c.span);
    ag_tiler_positions(t, clear);
    return rest;
}

/* An instruction on the rows of the branch's result in fragment v. */
static Ins *on_output_rows(Tiler *t, TileOp op, int dst, Ref e, const char *note) {
    Ins *x = ag_tiler_add(t, t->post, op, dst, note);
    x->n = TEN_O;
    x->span = t->program->output ? t->program->output->span : t->listed->span;
    x->e[0] = e;
    x->e[1] = val(t, t->row0);
    x->e[2] = val(t, t->b);
    x->e[3] = val(t, t->h);
    x->e[4] = t->limit;
    return x;
}

typedef struct RowSums {
    Tiler *t;
    int v, n;                    /* the fragment; sums so far */
    int mean[SPEC_MAX_BRANCHES]; /* row values: mean weights, -1 before */
} RowSums;
/* The mean weight of a branch that the kernel computes. */
static int own_mean(void *payload, int branch) {
    RowSums *s = payload;
    Tiler *t = s->t;
    int *mean = &s->mean[branch];
    for (int i = 0; i < t->m->nout && *mean < 0; i++) {
        if (t->m->out[i].tensor != TEN_MEAN || (t->m->spec->joined && t->m->out[i].branch != branch)) continue;
        *mean = ag_tiler_row(t, ag_str(ag_tiler_unused_name(t, "mean_weight")));
        Ins *x = ag_tiler_add(t, t->post, TI_MAP, *mean, NULL);
        x->e[0] = ag_tiler_expr(t, t->m->out[i].value, LEVEL_ROW);
        x->span = t->m->nodes.n[t->m->out[i].value].span;
        ag_tiler_positions(t, x);
    }
    assert(*mean >= 0);
    return *mean;
}
static int row_sum(void *payload, Ref body) {
    RowSums *s = payload;
    int sum = ag_tiler_row(s->t, ag_fmt(s->t->k->arena, "sum%d", s->n++));
    on_output_rows(s->t, TI_OUTPUT_SUM, sum, body, "over the channels of a row")->a = s->v;
    return sum;
}

Ref ag_tiler_head(Tiler *t) { return t->k->pack > 1 ? ag_node_leaf(&t->k->nodes, OP_AXIS, T_INT, AX_H, (Span){0}) : val(t, t->h); }

/* What the program puts out, of the branch's result in fragment v and the results of the others. */
static void build_program_output(Tiler *t, int v, int own, const int *fragment) {
    RowSums sums = {t, v, 0, {-1, -1, -1, -1}};
    OutputPlace at = {.k = t->k,
                      .spec = t->program,
                      .b = val(t, t->b),
                      .h = ag_tiler_head(t),
                      .g = val(t, t->g),
                      .own = own,
                      .fragment = fragment,
                      .value = t->taken,
                      .row_sum = row_sum,
                      .mean = own_mean,
                      .payload = &sums};
    Ref e = ag_output_expr(&at);
    on_output_rows(t, TI_OUTPUT, v, e, t->program->nbranch > 1 ? "---- the output of this branch and the others" : "---- the output");
}

/* o, of the channels from `col` on that the carry's value holds. */
static void build_output(Tiler *t, Block *to, const MathOut *o, int col) {
    bool wide = t->m->tensor[o->tensor].rank == 4;
    int v = wide ? t->kept[accumulator_of(t, o->value)] : ag_tiler_row(t, ag_str(t->m->tensor[o->tensor].name));
    Ref value = wide ? clear_empty_rows(t, to, o->value, v) : o->value;
    if (!wide || !t->share) {
        Ref e = !wide && ag_tiler_apart(t) ? val(t, t->whole_lse) : ag_tiler_expr(t, value, wide ? LEVEL_ELEM : LEVEL_ROW);
        const Node *n = &t->k->nodes.n[e];
        Ins *x = n->op == OP_VAL && n->index == v ? NULL : ag_tiler_add(t, to, TI_MAP, v, NULL);
        if (x) {
            x->e[0] = e;
            x->span = t->m->nodes.n[o->value].span;
            ag_tiler_positions(t, x);
        }
    }
    if (wide && t->fused)
        build_program_output(t, v, t->branch, NULL);
    else if (wide && ag_tiler_apart(t))
        on_output_rows(t, TI_OUTPUT, v, t->taken, "---- with the forced blocks");
    Ins *x = ag_tiler_add(t, to, wide ? TI_STORE : TI_STORE_ROW, -1, NULL);
    x->a = v;
    x->n = o->tensor;
    x->col = col;
    x->e[0] = val(t, t->row0);
    x->e[1] = t->limit;
    x->e[2] = val(t, t->b);
    x->e[3] = val(t, t->h);
    t->k->tensor[o->tensor].used = true;
}

static void store_output(Tiler *t, int v) {
    Ins *x = ag_tiler_add(t, t->post, TI_STORE, -1, NULL);
    x->a = v;
    x->n = TEN_O;
    x->e[0] = val(t, t->row0);
    x->e[1] = t->limit;
    x->e[2] = val(t, t->b);
    x->e[3] = val(t, t->h);
    t->k->tensor[TEN_O].used = true;
}

/* The output of several branches that are one kernel: each normalised in its accumulator, then what the spec makes of them. */
void ag_tiler_joined_output(Tiler *t) {
    int fragment[SPEC_MAX_BRANCHES], own = -1;
    Ref done[SPEC_MAX_BRANCHES];
    for (int i = 0; i < t->m->nout; i++) {
        const MathOut *o = &t->m->out[i];
        if (o->tensor != TEN_O) continue;
        int v = fragment[o->branch] = t->kept[accumulator_of(t, o->value)];
        bool again = false;
        for (int b = 0; b < o->branch; b++) again |= fragment[b] == v && done[b] == o->value;
        done[o->branch] = o->value;
        if (own < 0 && ag_output_fits(t->program, o->branch)) own = o->branch;
        if (again) continue;
        Ref value = clear_empty_rows(t, t->post, o->value, v), e = ag_tiler_expr(t, value, LEVEL_ELEM);
        Ins *x = ag_tiler_add(t, t->post, TI_MAP, v, NULL);
        x->e[0] = e;
        x->span = t->m->nodes.n[o->value].span;
        ag_tiler_positions(t, x);
    }
    build_program_output(t, fragment[own], own, fragment);
    store_output(t, fragment[own]);
}

/* The kernel's tensor of a branch's queries or keys. */
static int tensor_of_source(const Kernel *k, SpecRef from, int plain) {
    int found = plain;
    for (int i = TEN_COUNT; i < k->ntensor && from.kind == FROM_INPUT; i++)
        if (!k->tensor[i].named && k->tensor[i].rows == k->tensor[plain].rows && !k->tensor[i].values &&
            k->tensor[i].program == ag_program_input(from.index))
            found = i;
    return found;
}

/* What the simulator has to know of each branch, and whose weighted values the accumulators hold. */
void ag_tiler_describe_branches(Tiler *t) {
    Kernel *k = t->k;
    int known[SPEC_MAX_BRANCHES]; /* accumulators; branches that are alike have one */
    for (int i = 0; i < t->m->nout && t->m->spec->joined; i++) {
        const Branch *b = &t->m->spec->branch[t->m->out[i].branch];
        int v = t->m->out[i].tensor == TEN_O ? t->kept[accumulator_of(t, t->m->out[i].value)] : -1;
        for (int n = 0; n < k->nbranch; n++) v = known[n] == v ? -1 : v;
        if (v < 0) continue;
        known[k->nbranch] = v;
        k->val[v].branch = k->nbranch;
        k->branch[k->nbranch++] =
            (Joined){b->mask, b->score, tensor_of_source(k, b->queries, TEN_Q), tensor_of_source(k, b->keys, TEN_K), t->m->out[i].branch};
    }
}

/* Outputs with channels, or those of rows. */
void ag_tiler_outputs(Tiler *t, Block *to, bool wide, int col) {
    for (int i = 0; i < t->m->nout; i++)
        if ((t->m->tensor[t->m->out[i].tensor].rank == 4) == wide && (wide || !(t->m->out[i].tensor == TEN_LSE ? t->no_lse : t->fused)))
            build_output(t, to, &t->m->out[i], col);
}
