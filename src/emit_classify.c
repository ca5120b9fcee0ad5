/* emit_classify.c: the map of key tiles -> CUDA statements.  A warp looks at one key tile at a time, its lanes at neighbouring keys. */
#include "emit.h"

/* r at one position: constants for what it reads, then its text. */
static const char *element(Emit *e, Ref r) {
    const char **shared = NEWN(e->k->arena, const char *, (size_t)e->k->nodes.len);
    Names n = {.mi = "", .ni = "", .ei = "", .r = "", .col = ""};
    Buf b = {0};
    ag_emit_shared(e, r, &n, shared, SHARE_ELEMENT);
    ag_emit_expr_with(e, &b, r, &n, shared);
    const char *s = ag_str_copy(e->k->arena, (Str){b.s ? b.s : "", (int)b.n}).s;
    e->out->oom |= b.oom;
    ag_buf_free(&b);
    return s;
}

static void bound(Emit *e, const Ins *i) {
    const Kernel *k = e->k;
    const char *least = k->val[i->dst].name.s, *most = k->val[i->a].name.s, *first = k->val[i->b].name.s, *last = k->val[i->bar].name.s;
    const char *axis = i->trans ? "k" : "q";
    bool flag = k->nodes.n[i->e[0]].type == T_BOOL;
    ag_emit_line(e, "int %s_of = 2147483647, %s_of = -2147483647 - 1; // over all %s", least, most, axis);
    ag_emit_line(e, "UNROLL for (int i = 0; i < %d; i++) {", ((i->trans ? (int)k->sched->f[F_TILE_N].v : k->queries) + 31) / 32);
    e->indent++;
    ag_emit_line(e, "const int %s = min(%s + lane + 32 * i, %s);", axis, first, last);
    ag_emit_line(e, "const int x = %s;", element(e, i->e[0]));
    ag_emit_line(e, "%s_of = min(%s_of, x), %s_of = max(%s_of, x);", least, least, most, most);
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "const %s %s = __reduce_min_sync(~0u, %s_of)%s, %s = __reduce_max_sync(~0u, %s_of)%s;", flag ? "bool" : "int", least, least,
                 flag ? " != 0" : "", most, most, flag ? " != 0" : "");
}

/* The mask at the lane's keys of a query. */
static void look_along(Emit *e, const Ins *i) {
    const Kernel *k = e->k;
    if (ag_expr_uses(k, k->guard, OP_AXIS, AX_K)) {
        ag_emit_line(e, "UNROLL for (int i = 0; i < %d; i++) {", (i->n + 31) / 32);
        ag_emit_line(e, "    const int k = min(%s + lane + 32 * i, %s);", k->val[i->dst].name.s, k->val[i->col].name.s);
    } else
        ag_emit_line(e, "{");
    e->indent++;
    ag_emit_line(e, "const bool seen = %s;", element(e, k->guard));
    ag_emit_line(e, "may |= seen, must &= seen;");
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "may = __any_sync(~0u, may), must = __all_sync(~0u, must);");
}

/* Where bounds leave it open: element by element, until both a hidden and a visible one are found. */
static void look(Emit *e, const Ins *i) {
    bool by_query = i->b >= 0;
    ag_emit_line(e, "if (may && !must) {");
    e->indent++;
    ag_emit_line(e, "may = false, must = true;");
    if (by_query) {
        const char *first = e->k->val[i->b].name.s, *last = e->k->val[i->bar].name.s;
        ag_emit_line(e, "ROLLED for (int n = 0; n <= %s - %s && (must || !may); n++) { // from both ends: these differ most", last, first);
        e->indent++;
        ag_emit_line(e, "const int q = n %% 2 ? %s - n / 2 : %s + n / 2;", last, first);
    }
    look_along(e, i);
    if (by_query) {
        e->indent--;
        ag_emit_line(e, "}");
    }
    e->indent--;
    ag_emit_line(e, "}");
}

static void classify(Emit *e, const Ins *i) {
    const Kernel *k = e->k;
    const char *first = k->val[i->dst].name.s, *last = k->val[i->col].name.s;
    ag_emit_line(e, "TileMap<THREADS> row = {args.tiles + %s, 0, 0, {}, {}};", ag_emit_text(e, i->e[0]));
    ag_emit_line(e, "ROLLED for (int j0 = %s / 32 * 32; j0 < %s; j0 += THREADS) {", ag_emit_atom(e, i->e[1]), ag_emit_text(e, i->e[2]));
    e->indent++;
    ag_emit_line(e, "__shared__ u8 kinds[THREADS];");
    ag_emit_line(e, "ROLLED for (int j = j0 + warp; j < j0 + THREADS; j += THREADS / 32) {");
    e->indent++;
    ag_emit_line(e, "if (j < %s || j >= %s) {", ag_emit_text(e, i->e[1]), ag_emit_text(e, i->e[2]));
    ag_emit_line(e, "    if (lane == 0) kinds[j - j0] = TILE_HIDDEN;");
    ag_emit_line(e, "    continue;");
    ag_emit_line(e, "}");
    ag_emit_line(e, "const int %s = j * %d, %s = min(%s + %d, args.Sk) - 1;", first, i->n, last, first, i->n);
    for (const Ins *b = i->body.first; b; b = b->next) bound(e, b);
    ag_emit_line(e, "bool may = %s, must = %s;", ag_emit_text(e, i->e[3]), ag_emit_text(e, i->e[4]));
    look(e, i);
    ag_emit_line(e, "if (lane == 0) kinds[j - j0] = !may ? TILE_HIDDEN : must && %s == %s + %d ? TILE_WHOLE : TILE_PARTIAL;", last, first, i->n - 1);
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "__syncthreads();");
    ag_emit_line(e, "map_tiles(row, kinds[threadIdx.x], j0 + (int)threadIdx.x, %s);", ag_emit_text(e, i->e[2]));
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "close_map(row, %s);", ag_emit_text(e, i->e[2]));
}

void ag_emit_classify(Emit *e, const Ins *i) {
    if (!i->prev || i->prev->op != TI_BOUND) ag_emit_line(e, "const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x %% 32;");
    if (i->op == TI_BOUND)
        bound(e, i);
    else
        classify(e, i);
}

void ag_emit_walks(Emit *e, const Block *b) {
    int walks = ag_walks(e->k, b);
    Str all = STR("");
    for (int w = 0; w < WALKS; w++)
        if (walks >> w & 1) all = ag_fmt(e->k->arena, "%s%s%s = {}", all.s, all.n ? ", " : "", ag_walk_name[w]);
    if (walks) ag_emit_line(e, "TileWalk %s; // along the row of the map", all.s);
}

void ag_emit_classify_comment(Emit *e) {
    const Kernel *k = e->k;
    const Ins *i = k->role[0].body.last;
    ag_put(e->out, "//\n// Key tiles of each query tile, by the mask at tiles of %d queries x %d keys: a bit for each that holds a visible key\n",
           k->queries, i->n);
}
