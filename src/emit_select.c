/* emit_select.c: instructions of a selection of blocks -> CUDA statements. */
#include "emit.h"

/* What the leaves of a selection take as R: all that is known of it, and how its tables lie. */
void ag_emit_ranking(Emit *e) {
    const Kernel *k = e->k;
    const Rank *r = &k->rank;
    int pitch = 0;
    for (int i = 0; i < k->nval; i++)
        if (k->val[i].table && k->val[i].type == DT_F32) pitch = k->val[i].cols;
    ag_emit_line(e, "struct Ranking {");
    e->indent++;
    ag_emit_line(
        e,
        "static constexpr int SIZE = %d, STRIDE = %d, BLOCK = %d, GRAIN = %d; // keys: of a pooled key, from one to the next, of a block; their gcd",
        r->size, r->stride, r->block, r->grain);
    ag_emit_line(e, "static constexpr int BLOCKS = %d, STEP = %d, HISTORY = %d; // of a step: blocks, pooled keys, earlier ones that it needs",
                 r->blocks, (int)((int64_t)r->blocks * r->block / r->stride), r->history);
    ag_emit_line(e, "static constexpr int QUERIES = %d, UNIT = %d, PARTS = %d; // of a tile; rows summed in registers; such sums per query",
                 k->queries, r->unit, k->pack / r->unit);
    ag_emit_line(e, "static constexpr int COUNT = %d, FIRST = %d, LOCAL = %d; // blocks of a list; always in it: first ones, last ones", r->count,
                 r->first, r->local);
    ag_emit_line(e, "static constexpr bool CAUSAL = %s;", r->causal ? "true" : "false");
    ag_emit_line(e, "static constexpr int LANES = %d, LIST_PITCH = %d, SUM_PITCH = %d; // that own a query; columns of the tables", r->lanes,
                 ag_rank_room(r), pitch);
    e->indent--;
    ag_emit_line(e, "};\n");
}

static void load_row(Emit *e, const Ins *i) {
    const Kernel *k = e->k;
    const char *n = k->tensor[i->n].name, *v = k->val[i->dst].name.s, *row0 = ag_emit_atom(e, i->e[0]), *head = ag_emit_atom(e, i->e[3]);
    const char *limit = ag_emit_text(e, i->e[1]);
    if (k->queries * k->pack < k->val[i->dst].rows) limit = ag_fmt(k->arena, "min(%s, %s + %d)", limit, row0, k->queries).s;
    ag_emit_declare(e, i->dst);
    ag_emit_line(e, "UNROLL for (int mi = 0; mi < %d; mi++) UNROLL for (int r = 0; r < 2; r++) {", ag_frag_mt(k, &k->val[i->dst]));
    e->indent++;
    if (k->pack == 1)
        ag_emit_line(e, "const int row = %s + %s + mi * 16 + r * 8, head = %s;", row0, e->lane_row, head);
    else
        ag_emit_line(e, "const int row = %s + quot(%s + mi * 16 + r * 8, %d), head = %s + rem(%s + mi * 16 + r * 8, %d);", row0, e->lane_row, k->pack,
                     head, e->lane_row, k->pack);
    ag_emit_line(e, "%s[mi][r] = row < %s ? args.%s[%s * args.%s_b + head * args.%s_h + row * args.%s_s] : NEG_INF;", v, limit, n,
                 ag_emit_atom(e, i->e[2]), n, n, n);
    e->indent--;
    ag_emit_line(e, "}");
}

static void store_list(Emit *e, const Ins *i) {
    const char *n = e->k->tensor[i->n].name, *row = ag_emit_atom(e, i->e[0]);
    ag_emit_line(e, "store_lists<Ranking>(args.%s + %s * args.%s_b + %s * args.%s_h + (i64)%s * args.%s_s, args.%s_s, args.%s_d, %s, %s - %s);", n,
                 ag_emit_atom(e, i->e[2]), n, ag_emit_atom(e, i->e[3]), n, row, n, n, n, e->k->val[i->a].name.s, ag_emit_text(e, i->e[1]), row);
}

void ag_emit_select(Emit *e, const Ins *i) {
    const Val *d = i->dst >= 0 ? &e->k->val[i->dst] : NULL, *a = i->a >= 0 ? &e->k->val[i->a] : NULL;
    switch (i->op) {
    case TI_LOAD_ROW: load_row(e, i); break;
    case TI_CLEAR: ag_emit_line(e, "clear_table<%d, THREADS>(%s);", d->bytes, d->name.s); break;
    case TI_SUM_HEADS: ag_emit_line(e, "sum_heads<Ranking>(%s, %s, warp_row);", d->name.s, a->name.s); break;
    case TI_RANK:
        ag_emit_line(e, "rank_blocks<Ranking>(%s, %s, %s, %s, %s, %s);", d->name.s, a->name.s, ag_emit_text(e, i->e[0]), ag_emit_text(e, i->e[1]),
                     ag_emit_text(e, i->e[2]), ag_emit_text(e, i->e[3]));
        break;
    default: store_list(e, i); break;
    }
}
