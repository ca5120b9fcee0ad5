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

/* What bounds say of the tile: may a query see a key, do all see all? */
static void ask(Emit *e, const Ins *i, const char *declare) {
    const char **shared = NEWN(e->k->arena, const char *, (size_t)e->k->nodes.len);
    Names n = {.mi = "", .ni = "", .ei = "", .r = "", .col = ""};
    Buf may = {0}, must = {0};
    for (int x = 3; x < 5; x++) ag_emit_shared(e, i->e[x], &n, shared, SHARE_ELEMENT);
    ag_emit_expr_with(e, &may, i->e[3], &n, shared);
    ag_emit_expr_with(e, &must, i->e[4], &n, shared);
    ag_emit_line(e, "%smay = %s%s must = %s;", declare, may.s, *declare ? "," : ";", must.s);
    e->out->oom |= may.oom || must.oom;
    ag_buf_free(&may), ag_buf_free(&must);
}

static void keys_of(Emit *e, const Ins *i) {
    const char *first = e->k->val[i->dst].name.s, *last = e->k->val[i->col].name.s;
    ag_emit_line(e, "const int %s = j * %d, %s = min(%s + %d, args.Sk) - 1;", first, i->n, last, first, i->n);
}

static const char *kind(Emit *e, const Ins *i) {
    const char *first = e->k->val[i->dst].name.s, *last = e->k->val[i->col].name.s;
    return ag_fmt(e->k->arena, "!may ? TILE_HIDDEN : must && %s == %s + %d ? TILE_WHOLE : TILE_PARTIAL", last, first, i->n - 1).s;
}

/* Of elements: a warp asks for the bounds of each tile, whose elements its lanes read. */
static void by_warps(Emit *e, const Ins *i) {
    ag_emit_line(e, "const int j_end = min(j0 + THREADS, %s);", ag_emit_text(e, i->e[2]));
    ag_emit_line(e, "ROLLED for (int j = max(j0, %s) + warp; j < j_end; j += THREADS / 32) {", ag_emit_text(e, i->e[1]));
    e->indent++;
    keys_of(e, i);
    for (const Ins *b = i->body.first; b; b = b->next) bound(e, b);
    ask(e, i, "bool ");
    look(e, i);
    ag_emit_line(e, "if (lane == 0) kinds[j - j0] = %s;", kind(e, i));
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "__syncthreads();");
}

/* Of positions and scalars alone: a thread for each tile; then a warp for each that is open. */
static void by_threads(Emit *e, const Ins *i) {
    ag_emit_line(e, "{ // a thread for each tile, by bounds");
    e->indent++;
    ag_emit_line(e, "const int j = j0 + (int)threadIdx.x;");
    keys_of(e, i);
    ag_emit_line(e, "bool may = false, must = false;");
    ag_emit_line(e, "if (j >= %s && j < %s) {", ag_emit_text(e, i->e[1]), ag_emit_text(e, i->e[2]));
    e->indent++;
    ask(e, i, "");
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "kinds[threadIdx.x] = may && !must ? TILE_OPEN : %s;", kind(e, i));
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "__syncthreads();");
    ag_emit_line(e, "ROLLED for (int j = j0 + warp; j < j0 + THREADS; j += THREADS / 32) { // a warp for each that is open, by elements");
    e->indent++;
    ag_emit_line(e, "if (kinds[j - j0] != TILE_OPEN) continue;");
    keys_of(e, i);
    ag_emit_line(e, "bool may = true, must = false;");
    look(e, i);
    ag_emit_line(e, "__syncwarp();");
    ag_emit_line(e, "if (lane == 0) kinds[j - j0] = %s;", kind(e, i));
    e->indent--;
    ag_emit_line(e, "}");
    ag_emit_line(e, "__syncthreads();");
}

static void classify(Emit *e, const Ins *i) {
    ag_emit_line(e, "TileMap<THREADS> row = {args.tiles + %s, 0, 0, {}, {}};", ag_emit_text(e, i->e[0]));
    ag_emit_line(e, "ROLLED for (int j0 = %s / 32 * 32; j0 < %s; j0 += THREADS) {", ag_emit_atom(e, i->e[1]), ag_emit_text(e, i->e[2]));
    e->indent++;
    ag_emit_line(e, "__shared__ u8 kinds[THREADS];");
    (i->body.first ? by_warps : by_threads)(e, i);
    ag_emit_line(e, "map_tiles(row, kinds, j0, %s, %s);", ag_emit_text(e, i->e[1]), ag_emit_text(e, i->e[2]));
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
