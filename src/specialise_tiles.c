/* specialise_tiles.c: the walk of a block over tiles on the wgmma path, outputs, and the loading role.
 *
 * grid.persistent none: a block has one tile.  Otherwise there is one block per SM; its first tile is its own number, and the next one is
 *   static    `blocks` further on
 *   dynamic   what the loading thread fetches from the launch's counter, grid.fetch_ahead key tiles before the end of its own loads.  It tells the others through a
 *             slot beside the tile's Q; -1 ends the block
 * Both roles count: `round` tiles so far, `base` key tiles so far.  Every tile has at least one key tile (tile_grid.c), so the rings need no exceptions.
 *
 * staging.q.stages 2 chains tiles: the scores of the next tile's first keys are issued beside the last weighted values of this one, so that normalising and storing
 * this one run beside tensor work.  No branch may lie between an asynchronous product and its wait, so the last tile has a next one too, of zeros: the loading
 * thread asks for rows past the end of Q and K, and nobody looks at the scores. */
#include <assert.h>

#include "specialise.h"

static Ins *add(Block *b, Ins *i) {
    ag_block_append(b, i);
    return i;
}

/* ---- the parts of the role as tile and split left it */
typedef struct Outline {
    Block once, tile;  /* scalars and first values: the same for all tiles, and those of one */
    Ins *first, *last; /* key loops */
    Block outputs;
} Outline;

/* Does instruction i depend on the tile: by the number of the block, or by a scalar that does? */
static bool of_tile(const Kernel *k, const Ins *i, const bool *tile_scalar) {
    if (i->op != TI_LET) return true;
    if (ag_expr_uses(k, i->e[0], OP_BLOCK, 0)) return true;
    for (int v = 0; v < k->nval; v++)
        if (tile_scalar[v] && ag_expr_uses(k, i->e[0], OP_VAL, v)) return true;
    return false;
}

static Outline outline(Specialise *s) {
    Kernel *k = s->k;
    Outline o = {0};
    bool *tile_scalar = NEWN(k->arena, bool, (size_t)k->nval);
    for (Ins *i = s->body->first; i; i = i->next)
        if (ag_spz_is_key_loop(s, i)) {
            o.first = o.first ? o.first : i;
            o.last = i;
        }
    assert(o.first);
    for (const Ins *i = s->body->first; i != o.first; i = i->next) {
        bool tile = of_tile(k, i, tile_scalar);
        if (tile && i->op == TI_LET) tile_scalar[i->dst] = true;
        add(s->persistent && !tile ? &o.once : &o.tile, ag_ins_clone(k, i));
    }
    for (const Ins *i = o.last->next; i; i = i->next) add(&o.outputs, ag_ins_clone(k, i));
    return o;
}

/* ---- scalars that the loading thread tells */

static bool divides(const Kernel *k, Ref r) {
    bool *live = NEWN(k->arena, bool, (size_t)r + 1);
    live[r] = true;
    for (Ref i = r; i > 0; i--) { /* operands have smaller indices */
        const Node *n = &k->nodes.n[i];
        if (!live[i]) continue;
        if ((n->op == OP_FLOORDIV || n->op == OP_MOD) && k->nodes.n[n->arg[1]].op != OP_CONST) return true;
        for (int a = 0; a < ag_op[n->op].arity; a++) live[n->arg[a]] = true;
    }
    return false;
}

static bool reads(const Kernel *k, const Ins *i, int val) {
    for (int e = 0; e < LEN(i->e); e++)
        if (i->e[e] && i->op != TI_COPY && ag_expr_uses(k, i->e[e], OP_VAL, val)) return true;
    for (const Ins *x = i->body.first; x; x = x->next)
        if (reads(k, x, val)) return true;
    return false;
}

static bool is_told(const Specialise *s, int val) {
    for (int p = 0; p < s->nplace; p++)
        if (s->place[p].val == val) return true;
    return false;
}

/* Does the computing role read the scalar, when it need not compute those that it is told? */
static bool is_wanted(const Specialise *s, const Ins *let, const bool *wanted) {
    for (const Ins *i = let->next; i; i = i->next) {
        bool counts = i->op != TI_LET || (wanted[i->dst] && !is_told(s, i->dst));
        if (counts && reads(s->k, i, let->dst)) return true;
    }
    return false;
}

int ag_spz_slot(Specialise *s, const char *name, FieldId stages) {
    return ag_val(
        s->k,
        (Val){
            .name = ag_str(name), .space = SPACE_SLOT, .stages = (int)s->sched->f[stages].v, .offset = -1, .over = -1, .reference = -1, .carry = -1});
}

/* Where a tile is takes a handful of divisions, some hundred clocks at the start of every tile; the loading thread has that time.  A slot holds an int: others are computed where
 * they are wanted. */
void ag_spz_find_places(Specialise *s) {
    Kernel *k = s->k;
    Ins *loop = s->body->first;
    bool *wanted = NEWN(k->arena, bool, (size_t)k->nval), *tile_scalar = NEWN(k->arena, bool, (size_t)k->nval);
    for (; !ag_spz_is_key_loop(s, loop); loop = loop->next)
        if (loop->op == TI_LET) tile_scalar[loop->dst] = of_tile(k, loop, tile_scalar);
    for (const Ins *i = loop->prev; i; i = i->prev) { /* readers stand behind */
        if (i->op != TI_LET) continue;
        wanted[i->dst] = is_wanted(s, i, wanted);
        bool told = k->val[i->dst].scalar == T_INT && tile_scalar[i->dst] && divides(k, i->e[0]);
        if (!wanted[i->dst] || !told || s->nplace == LEN(s->place)) continue;
        s->place[s->nplace].val = i->dst;
        s->place[s->nplace++].slot = ag_spz_slot(s, ag_fmt(k->arena, "%.*s_slot", STRF(k->val[i->dst].name)).s, F_Q_STAGES);
    }
    if (s->dynamic) s->slot = ag_spz_slot(s, "tile_slot", F_Q_STAGES);
}

/* ---- the number of the running tile for that of the block */
typedef struct Rename {
    Specialise *s;
    Ref tile;
    const int *to; /* per value: its copy, -1 */
} Rename;
static Ref rename_leaf(void *payload, Ref r) {
    const Rename *x = payload;
    const Node *n = &x->s->k->nodes.n[r];
    if (n->op == OP_BLOCK) return x->tile;
    return x->to && n->op == OP_VAL && x->to[n->index] >= 0 ? ag_kval(x->s->k, x->to[n->index]) : 0;
}
static Ref renamed(const Rename *x, Ref e) { return e ? ag_node_rebuild(&x->s->k->nodes, &x->s->k->nodes, e, rename_leaf, (void *)x) : 0; }

/* Makes a let one of what is in the slot beside the running tile's Q. */
static void get_slot(Specialise *s, Ins *let, int slot) {
    let->op = TI_GET;
    let->note = NULL; /* it told how the scalar is computed */
    let->a = slot;
    let->e[0] = ag_spz_stage(s, &s->query, s->round);
}

static void get_told(Specialise *s, Ins *let, int val) {
    for (int p = 0; p < s->nplace; p++)
        if (s->place[p].val == val) get_slot(s, let, s->place[p].slot);
}

/* A stage begins behind `before`, with what is read from slots if there is such a thing: other scalars may go away later. */
static void head(const Block *to, const Ins *before, const char *note) {
    Ins *first = before ? before->next : to->first, *i = first;
    while (i && i->op != TI_GET) i = i->next;
    if (i) first = i;
    if (first && !first->note) first->note = note;
}

static void append_tile(Specialise *s, Block *to, const Block *from, Ref tile, const char *note) {
    Rename x = {s, tile, NULL};
    const Ins *before = to->last;
    for (const Ins *i = from->first; i; i = i->next) {
        Ins *c = add(to, ag_ins_clone(s->k, i));
        if (i->op != TI_LET) continue;
        c->e[0] = renamed(&x, c->e[0]);
        get_told(s, c, i->dst);
    }
    head(to, before, note);
}

/* Copies of the scalars of a tile under names of their own, for another tile; what nothing reads goes away later.  told: from the slots, where they are there. */
static Rename copy_scalars(Specialise *s, Block *to, const Block *from, Ref tile, const char *prefix, bool told, const char *note) {
    Kernel *k = s->k;
    int n = k->nval, *copy = NEWN(k->arena, int, (size_t)n);
    for (int v = 0; v < n; v++) copy[v] = -1;
    Rename x = {s, tile, copy};
    const Ins *before = to->last;
    for (const Ins *i = from->first; i; i = i->next) {
        if (i->op != TI_LET) continue;
        Ref e = renamed(&x, i->e[0]);
        Val v = k->val[i->dst];
        v.name = ag_fmt(k->arena, "%s_%.*s", prefix, STRF(v.name));
        copy[i->dst] = ag_val(k, v);
        add(to, ag_ins(k, TI_LET, copy[i->dst]))->e[0] = e;
        if (told) get_told(s, to->last, i->dst);
    }
    head(to, before, note);
    return x;
}

static Ref tiles_of(const Specialise *s) { return s->k->blocks; }
static Ref leaf(Specialise *s, Op op) { return ag_node_leaf(&s->k->nodes, op, T_INT, 0, (Span){0}); }
static Ref steps_of_tile(Specialise *s) { return ag_spz_op(s, OP_SUB, s->k->hi, s->k->lo); }

/* What both roles count. */
typedef struct Walk {
    Ref tile, tiles;
} Walk;
static Walk begin_walk(Specialise *s, Block *to) {
    Walk w;
    w.tiles = ag_spz_let(s, to, "tiles", tiles_of(s), NULL);
    w.tile = ag_spz_let(s, to, "tile", leaf(s, OP_BLOCK), "---- from tile to tile: what both roles count");
    s->base = ag_spz_let(s, to, "base", ag_spz_num(s, 0), "key tiles so far");
    s->round = ag_spz_let(s, to, "round", ag_spz_num(s, 0), "tiles so far");
    return w;
}
static void count_tile(Specialise *s, Block *to) {
    ag_spz_set(s, to, s->base, ag_spz_op(s, OP_ADD, s->base, steps_of_tile(s)));
    ag_spz_set(s, to, s->round, ag_spz_op(s, OP_ADD, s->round, ag_spz_num(s, 1)));
}
static Block *while_tiles(Specialise *s, Block *to, Ref more) {
    Ins *i = ag_spz_put(s, to, TI_WHILE, NULL);
    i->e[0] = more;
    return &i->body;
}
static Ref below_tiles(Specialise *s, Walk w, Ref tile) { return ag_spz_op(s, OP_LT, tile, w.tiles); }

/* What the computing role asks: it is told -1 at the end, or knows the number of tiles. */
static Ref is_tile(Specialise *s, Walk w, Ref tile) { return s->dynamic ? ag_spz_op(s, OP_GE, tile, ag_spz_num(s, 0)) : below_tiles(s, w, tile); }

/* ---- math: outputs */

/* Columns of the tile that outputs go through: all, or whole panels of staging.o.parts. */
static int output_columns(const Specialise *s, int cols) {
    int parts = (int)s->sched->f[F_O_PARTS].v, part = (ag_panel_cols(cols) / 64 + parts - 1) / parts * 64;
    return s->sched->f[F_O_STORE].v == STORE_SMEM && part < cols ? part : cols;
}

static int output_tile(Specialise *s, const Ins *store) {
    Kernel *k = s->k;
    const Val *acc = &k->val[store->a];
    bool own = ag_own_output_tile(s->sched, k->spec->D, k->spec->Dv);
    return ag_val(k, (Val){.name = ag_str("O"),
                           .space = SPACE_SHARED,
                           .type = k->tensor[store->n].type,
                           .rows = acc->rows,
                           .cols = output_columns(s, acc->cols),
                           .stages = 1,
                           .swizzle = -1,
                           .offset = -1,
                           .bytes = -1,
                           .over = own ? -1 : s->query.val,
                           .panels = true,
                           .reference = -1,
                           .carry = -1});
}

static int warpgroup_barrier(const Specialise *s) {
    for (int i = 0; i < s->k->nbarrier; i++)
        if (s->k->barrier[i].kind == BARRIER_WARPGROUP) return i;
    return -1;
}

/* Stores go through shared memory, once the warpgroup is done with what lies there. */
static void stage_outputs(Specialise *s, Block *outputs) {
    StoreWay way = (StoreWay)s->sched->f[F_O_STORE].v;
    for (Ins *i = outputs->first; i && way != STORE_DIRECT; i = i->next) {
        if (i->op != TI_STORE) continue;
        Ins *before = ag_ins(s->k, way == STORE_TMA ? TI_STORE_WAIT : TI_SYNC, -1);
        before->n = way == STORE_TMA ? 0 : warpgroup_barrier(s);
        before->note = way == STORE_TMA ? "until the tile before has left O" : s->persistent ? NULL : "the warpgroup is past its last read of Q";
        ag_block_insert_before(outputs, i, before);
        i->b = output_tile(s, i);
        i->async = way == STORE_TMA;
    }
}

/* ---- math: key tiles */

static void wait_query(Specialise *s, Block *to, const char *note) {
    Ref round = s->round ? s->round : ag_spz_num(s, 0);
    ag_spz_wait(s, to, s->query.full, ag_spz_stage(s, &s->query, round), ag_spz_phase(s, &s->query, round), note);
}

static void first_scores(Specialise *s, Block *to, const Parts *p, const char *what) {
    ag_spz_scores(s, to, p, s->base ? s->base : ag_spz_num(s, 0), s->round, what);
}

/* The weighted values of key tile number `last`, the tile's last, and the outputs. */
static void last_values(Specialise *s, Block *to, const Parts *p, const Outline *o, Ref last) {
    ag_spz_weighted(s, to, p, last, "last weighted values");
    ag_spz_mma_wait(s, to, 0, NULL);
    if (s->persistent) ag_spz_release(s, to, &s->ring[1], last);
    ag_spz_append(s, to, &o->outputs, 0);
}

/* Do the key loops read the scalar of a tile, or what is computed in front of them?  Those alone live through them: registers are scarce there. */
static bool is_for_loops(const Specialise *s, const Outline *o, int val) {
    const Kernel *k = s->k;
    Ref v = ag_kval(s->k, val);
    if (v == k->lo || v == k->hi || v == k->plain_lo || v == k->plain_hi) return true;
    for (const Ins *i = o->tile.first; i; i = i->next)
        if (i->op != TI_LET && reads(k, i, val)) return true;
    for (const Ins *i = o->first; i; i = i == o->last ? NULL : i->next)
        if (reads(k, i, val)) return true;
    return false;
}

static bool is_for_outputs(const Specialise *s, const Outline *o, int val) {
    for (const Ins *i = o->outputs.first; i; i = i->next)
        if (reads(s->k, i, val)) return true;
    return false;
}

/* The scalars that the key loops need, or those that the outputs need beyond them, with what these are computed from. */
static Block scalars_for(Specialise *s, const Outline *o, bool loops) {
    Kernel *k = s->k;
    Block lets = {0};
    bool *wanted = NEWN(k->arena, bool, (size_t)k->nval);
    for (const Ins *i = o->tile.last; i; i = i->prev) { /* readers stand behind */
        if (i->op != TI_LET || (!loops && is_for_loops(s, o, i->dst))) continue;
        wanted[i->dst] = loops ? is_for_loops(s, o, i->dst) : is_for_outputs(s, o, i->dst);
        for (const Ins *x = i->next; x && !wanted[i->dst]; x = x->next)
            wanted[i->dst] = x->op == TI_LET && wanted[x->dst] && !is_told(s, x->dst) && reads(k, x, i->dst);
    }
    for (const Ins *i = o->tile.first; i; i = i->next)
        if (i->op == TI_LET && wanted[i->dst]) add(&lets, ag_ins_clone(k, i));
    return lets;
}

/* The same beside the first scores of the next tile, whose scalars take over at the end. */
static void last_and_next(Specialise *s, Block *to, const Parts *p, const Outline *o, Ref last, Ref next) {
    Block scalars = scalars_for(s, o, true);
    ag_spz_weighted(s, to, p, last, "last weighted values");
    first_scores(s, to, p, "first scores of the next tile");
    Rename x = copy_scalars(s, to, &scalars, next, "next", true, "---- the next tile's keys");
    ag_spz_mma_wait(s, to, 1, "---- when the weighted values are done: outputs, beside those scores");
    ag_spz_release(s, to, &s->ring[1], last);
    ag_spz_append(s, to, &o->outputs, 0);
    const Ins *before = to->last;
    for (const Ins *i = o->tile.first; i; i = i->next)
        if (i->op == TI_LET && is_for_loops(s, o, i->dst)) ag_spz_set(s, to, ag_kval(s->k, i->dst), ag_kval(s->k, x.to[i->dst]));
    ag_spz_mma_wait(s, to, 0, NULL);
    head(to, before, "---- the next tile takes over, with its first scores");
}

/* Between the first key tile's scores and the last one's weighted values of tile number `tile` (0: the block's only one). */
static void key_tiles(Specialise *s, Block *to, const Outline *o, const Parts *p, Ref tile) {
    if (s->overlap) ag_spz_first(s, to, p);
    ag_spz_loops(s, to, o->first, o->last);
    if (s->chained) {
        Block lets = scalars_for(s, o, false);
        append_tile(s, to, &lets, tile, "---- what outputs need to know of the tile; Q and the slots beside it are not read after that");
    }
    if (!s->persistent) return;
    ag_spz_release(s, to, &s->query, s->round);
    if (!s->chained) to->last->note = "---- Q is read no longer";
}

/* ---- math: a block with one tile */
static void one_tile(Specialise *s, Block *to, const Outline *o, const Parts *p) {
    ag_spz_append(s, to, &o->tile, 0);
    wait_query(s, to, "---- when Q is there");
    if (s->overlap) {
        first_scores(s, to, p, "first scores");
        ag_spz_mma_wait(s, to, 0, NULL);
    }
    key_tiles(s, to, o, p, 0);
    if (s->overlap)
        last_values(s, to, p, o, ag_spz_let(s, to, "last", ag_spz_step(s, s->k->lo), "---- the end of the tile"));
    else
        ag_spz_append(s, to, &o->outputs, 0);
}

/* ---- math: a block that walks over tiles */

/* The number of the next tile, if there is one.  dynamic or chained: its Q is there then, or what stands for it. */
static Ref next_tile(Specialise *s, Block *to, Walk w) {
    if (s->chained) wait_query(s, to, "---- when Q of the next tile is there, or zeros as there is none");
    if (!s->dynamic) return ag_spz_let(s, to, "next", ag_spz_op(s, OP_ADD, w.tile, leaf(s, OP_BLOCKS)), NULL);
    if (!s->chained) wait_query(s, to, "---- when Q of the next tile is there, or word that there is none");
    Ref next = ag_spz_let(s, to, "next", ag_spz_num(s, 0), NULL);
    get_slot(s, to->last, s->slot);
    s->k->val[to->last->dst].nonneg = false;
    return next;
}

static void chained_end(Specialise *s, Block *to, const Outline *o, const Parts *p, Ref next) {
    Ref last =
        ag_spz_let(s, to, "last", ag_spz_op(s, OP_SUB, s->base, ag_spz_num(s, 1)), "---- the end of the tile, beside the beginning of the next");
    last_and_next(s, to, p, o, last, next);
}

static void plain_end(Specialise *s, Block *to, const Outline *o, const Parts *p) {
    if (s->overlap)
        last_values(s, to, p, o, ag_spz_let(s, to, "last", ag_spz_op(s, OP_SUB, s->base, ag_spz_num(s, 1)), "---- the end of the tile"));
    else
        ag_spz_append(s, to, &o->outputs, 0);
}

static void walk_tiles(Specialise *s, Block *to, const Outline *o, const Parts *p) {
    Block scalars = scalars_for(s, o, true), rest = {0};
    for (const Ins *i = o->tile.first; i; i = i->next)
        if (i->op != TI_LET) add(&rest, ag_ins_clone(s->k, i));
    ag_spz_append(s, to, &o->once, 0);
    Walk w = begin_walk(s, to);
    wait_query(s, to, "---- when Q of the first tile is there");
    Block *in = NULL;
    if (s->chained) { /* the scalars of the first tile here, of each next one where its first scores are issued */
        first_scores(s, to, p, "first scores");
        append_tile(s, to, &scalars, w.tile, "---- the tile's keys");
        ag_spz_mma_wait(s, to, 0, "when the scores are done");
        in = while_tiles(s, to, is_tile(s, w, w.tile));
        append_tile(s, in, &rest, w.tile, NULL);
    } else {
        in = while_tiles(s, to, is_tile(s, w, w.tile));
        if (s->overlap) first_scores(s, in, p, "first scores");
        append_tile(s, in, &o->tile, w.tile, "---- the tile's keys");
        if (s->overlap) ag_spz_mma_wait(s, in, 0, NULL);
    }
    key_tiles(s, in, o, p, w.tile);
    count_tile(s, in);
    if (!s->chained) plain_end(s, in, o, p);
    Ref next = next_tile(s, in, w);
    if (s->chained) chained_end(s, in, o, p, next);
    if (!s->chained && !s->dynamic) {
        Ins *yes = ag_spz_put(s, in, TI_IF, NULL);
        yes->e[0] = is_tile(s, w, next);
        wait_query(s, &yes->body, NULL);
    }
    ag_spz_set(s, in, w.tile, next);
}

/* Is anything relative to a maximum?  Else no weight has to be guessed. */
static bool has_maximum(const Kernel *k) {
    for (int i = 0; i < k->nval; i++)
        if (k->val[i].reference >= 0) return true;
    return false;
}

void ag_spz_math(Specialise *s) {
    Outline o = outline(s);
    Parts p = ag_spz_take_apart(s, &o.first->body); /* the first loop's steps have the guard */
    if (s->speculate) {
        ag_spz_find_reference(s, &p);
        if (s->ref < 0 && has_maximum(s->k)) {
            ag_unsupported(s->k->d, s->sched->f[F_SOFTMAX].span,
                           "numerics.softmax speculative does not know the form that this spec's softmax takes: write exact");
            ag_stop(s->k->d);
        }
        if (!s->k->plain_hi) s->ref = -1; /* every step has the mask, so that none is speculative */
        p = ag_spz_take_apart(s, &o.first->body);
    }
    Block body = {0};
    stage_outputs(s, &o.outputs);
    (s->persistent ? walk_tiles : one_tile)(s, &body, &o, &p);
    if (s->sched->f[F_O_STORE].v == STORE_TMA) ag_spz_put(s, &body, TI_STORE_WAIT, "---- until the last tile has left O");
    *s->body = body;
}

/* ---- load */

static void expect(Specialise *s, Block *to, const Ring *r, Ref stage, int bytes, const char *note) {
    Ins *e = ag_spz_put(s, to, TI_EXPECT, note);
    e->n = r->full;
    e->e[0] = stage;
    e->e[1] = ag_spz_num(s, bytes);
}

static int tile_bytes(const Specialise *s, int val) {
    const Val *v = &s->k->val[val];
    return v->rows * (v->panels ? ag_panel_cols(v->cols) : v->cols) * ag_dtype_bytes(v->type);
}

/* A stage of every tile of the ring; the first of the copies. */
static Ins *copy_tiles(Specialise *s, Block *to, const Ring *r, Ref stage, const char *note) {
    int bytes = tile_bytes(s, r->val);
    Ins *first = NULL;
    for (int i = 0; i < r->nmore; i++) bytes += tile_bytes(s, r->more[i]);
    expect(s, to, r, stage, bytes, note);
    for (int i = -1; i < r->nmore; i++) {
        Ins *c = add(to, ag_ins_clone(s->k, i < 0 ? r->copy : r->more_copy[i]));
        c->async = true;
        c->bar = r->full;
        c->e[0] = stage;
        first = first ? first : c;
    }
    return first;
}

static void load_tile(Specialise *s, Block *to, const Ring *r, Ref stage, const Rename *x, Ref row, const char *note) {
    for (Ins *c = copy_tiles(s, to, r, stage, note); c; c = c->next) {
        for (int i = 1; x && i < LEN(c->e); i++) c->e[i] = renamed(x, c->e[i]);
        if (row) c->e[1] = row;
    }
}

/* Tiles of zeros: rows from the tensor's end on. */
static void load_zeros(Specialise *s, Block *to, const Ring *r, Ref stage, const char *note) {
    for (Ins *c = copy_tiles(s, to, r, stage, note); c; c = c->next) {
        c->e[1] = ag_node_leaf(&s->k->nodes, OP_SIZE, T_INT, (int)s->k->tensor[c->a].rows, (Span){0});
        c->e[3] = c->e[4] = ag_spz_num(s, 0);
    }
}

/* Until the stage of this step is empty. */
static Ref room_for_keys(Specialise *s, Block *to, const Ring *r, Ref step, const char *note) {
    Ref stage = ag_spz_stage(s, r, step);
    ag_spz_wait(s, to, r->empty, stage, ag_spz_op(s, OP_SUB, ag_spz_num(s, 1), ag_spz_phase(s, r, step)), note); /* the first round finds it empty */
    return stage;
}

static void put_slot(Specialise *s, Block *to, int slot, Ref stage, Ref x);

/* With a tile map: the row of the copy by the key tile, which is found when K of a step is fetched, behind that of the step before. */
typedef struct Tile {
    Specialise *s;
    Ref found, named;
} Tile;
static Ref find_tile(void *payload, Ref r) {
    Tile *x = payload;
    const Node *n = &x->s->k->nodes.n[r];
    if (n->op != OP_TILE) return 0;
    x->found = r;
    return x->named ? x->named : r;
}
static Ref with_tile(Specialise *s, Ref row, Ref named) { return ag_node_rebuild(&s->k->nodes, &s->k->nodes, row, find_tile, &(Tile){s, 0, named}); }

static void go_to_tile(Specialise *s, Block *to, Ref row) {
    Nodes *p = &s->k->nodes;
    Tile x = {s, 0, 0};
    ag_node_rebuild(p, p, row, find_tile, &x);
    const Node *tile = &p->n[x.found];
    Ref map = tile->arg[0], n = tile->arg[1], before = s->tile_k ? s->tile_k : ag_spz_num(s, 0);
    Ref next = ag_node_intern(p, (Node){.op = OP_TILE_AFTER, .type = T_INT, .arg = {map, before, n}});
    if (s->tile_k)
        ag_spz_set(s, to, s->tile_k, next);
    else
        s->tile_k = ag_spz_let(s, to, "key_tile", next, NULL);
}

static Ref row_of_keys(Specialise *s, Block *to, int ring, Ref row, Ref stage) {
    if (ring == 1) return with_tile(s, row, s->tile_now);
    go_to_tile(s, to, row);
    if (s->key_slot >= 0) put_slot(s, to, s->key_slot, stage, s->tile_k);
    return with_tile(s, row, s->tile_k);
}

/* Key tile j of ring r, which is step `step` of the block, once its stage is empty. */
static void load_keys(Specialise *s, Block *to, int ring, Ref j, Ref step, const char *what) {
    const Ring *r = &s->ring[ring];
    Ref stage = room_for_keys(s, to, r, step, ag_fmt(s->k->arena, "---- %.*s of %s, when its stage is empty", STRF(s->k->val[r->val].name), what).s);
    Ref row = ag_spz_at_tile(s, r->copy->e[1], j);
    if (s->k->tiles) row = row_of_keys(s, to, ring, row, stage);
    load_tile(s, to, r, stage, NULL, row, NULL);
}

/* The elements that the scores of key tile j read. */
static void load_elements(Specialise *s, Block *to, Ref j, Ref step, const char *what) {
    for (int e = 0; e < s->nelement; e++) {
        const Ring *r = &s->element[e];
        Ref stage =
            room_for_keys(s, to, r, step, ag_fmt(s->k->arena, "---- %.*s of %s, when its stage is empty", STRF(s->k->val[r->val].name), what).s);
        Ins *c = copy_tiles(s, to, r, stage, NULL);
        for (int i = 1; i < LEN(c->e); i++) {
            c->e[i] = ag_spz_at_tile(s, c->e[i], j);
            if (s->k->tiles && c->e[i]) c->e[i] = with_tile(s, c->e[i], s->tile_k);
        }
    }
}

static Ref room_for_query(Specialise *s, Block *to, Ref round, const char *note) {
    Ref stage = ag_spz_stage(s, &s->query, round);
    ag_spz_wait(s, to, s->query.empty, stage, ag_spz_op(s, OP_SUB, ag_spz_num(s, 1), ag_spz_phase(s, &s->query, round)), note);
    return stage;
}

static void put_slot(Specialise *s, Block *to, int slot, Ref stage, Ref x) {
    Ins *put = ag_spz_put(s, to, TI_PUT, NULL);
    put->dst = slot;
    put->e[0] = stage;
    put->e[1] = x;
}

/* No tile comes any more.  chained: zeros stand for it. */
static void put_end(Specialise *s, Block *to, Ref stage) {
    const char *note = "no tile comes any more";
    if (s->dynamic) put_slot(s, to, s->slot, stage, ag_spz_num(s, -1));
    for (int i = 0; s->chained && i < s->nplace; i++) put_slot(s, to, s->place[i].slot, stage, ag_spz_num(s, 0));
    if (to->first) to->first->note = note;
    if (s->chained)
        load_zeros(s, to, &s->query, stage, to->first ? NULL : note);
    else
        expect(s, to, &s->query, stage, 0, NULL);
}

/* Q of a tile, the round-th of the block, where it is, and with `dynamic` its number.  more: is there such a tile?  0: there is.  whose: for the reader. */
static void publish(Specialise *s, Block *to, Ref tile, Ref round, const Rename *x, Ref more, const char *whose) {
    Block *there = to;
    const char *note = ag_fmt(s->k->arena, "---- Q of %s and, in slots beside it, what math asks for; when that stage is empty", whose).s;
    Ref stage = room_for_query(s, to, round, note);
    if (more) {
        Ins *yes = ag_spz_put(s, to, TI_IF, NULL), *no = ag_spz_put(s, to, TI_ELSE, NULL);
        yes->e[0] = no->e[0] = more;
        there = &yes->body;
        put_end(s, &no->body, stage);
    }
    if (s->dynamic) put_slot(s, there, s->slot, stage, tile);
    for (int i = 0; i < s->nplace; i++) put_slot(s, there, s->place[i].slot, stage, ag_kval(s->k, x ? x->to[s->place[i].val] : s->place[i].val));
    load_tile(s, there, &s->query, stage, x, 0, NULL);
}

/* The loads of one tile: with overlap K runs one key tile ahead of V, as the products do.  early: what is done fetch_ahead key tiles before the end. */
static void load_loop(Specialise *s, Block *to, const Block *early) {
    Kernel *k = s->k;
    Ref one = ag_spz_num(s, 1), ahead = ag_spz_num(s, s->sched->f[F_FETCH_AHEAD].v), at = 0;
    if (early->first)
        at = ag_spz_let(s, to, "fetch_at",
                        s->forward ? ag_spz_op(s, OP_MAX, k->lo, ag_spz_op(s, OP_SUB, ag_spz_op(s, OP_SUB, k->hi, one), ahead))
                                   : ag_spz_op(s, OP_MIN, ag_spz_op(s, OP_SUB, k->hi, one), ag_spz_op(s, OP_ADD, k->lo, ahead)),
                        "at which key tile the next tile is prepared");
    if (k->tiles && !s->overlap) s->tile_k = ag_spz_let(s, to, "key_tile", ag_spz_num(s, 0), NULL);
    Ins *loop = ag_spz_put(s, to, TI_LOOP, s->overlap ? "---- key tiles, K a step ahead of V as in math" : "---- key tiles");
    loop->dst = k->key_loop;
    loop->n = s->forward ? 1 : -1;
    loop->e[0] = s->forward ? k->lo : k->hi;
    loop->e[1] = s->forward ? k->hi : k->lo;
    Ref step = ag_spz_let(s, &loop->body, "step", ag_spz_step(s, s->j), NULL);
    if (early->first) {
        Ins *yes = ag_spz_put(s, &loop->body, TI_IF, NULL);
        yes->e[0] = ag_spz_op(s, OP_EQ, s->j, at);
        yes->body = *early;
    }
    if (s->overlap) {
        if (k->tiles) s->tile_now = ag_spz_let(s, &loop->body, "tile_now", s->tile_k, "the key tile of this step");
        Ins *more = ag_spz_put(s, &loop->body, TI_IF, NULL);
        more->e[0] = ag_spz_op(s, OP_GT, s->j, k->lo);
        load_keys(s, &more->body, 0, ag_spz_op(s, OP_SUB, s->j, one), ag_spz_op(s, OP_ADD, step, one), "the next step");
        load_elements(s, &more->body, ag_spz_op(s, OP_SUB, s->j, one), ag_spz_op(s, OP_ADD, step, one), "the next step");
    } else {
        load_keys(s, &loop->body, 0, s->j, step, "this step");
        load_elements(s, &loop->body, s->j, step, "this step");
        s->tile_now = s->tile_k;
    }
    load_keys(s, &loop->body, 1, s->j, step, "this step");
}

static Ref first_step(Specialise *s) { return s->base ? s->base : ag_spz_num(s, 0); }
static Ref first_tile(Specialise *s) { return ag_spz_op(s, OP_SUB, s->k->hi, ag_spz_num(s, 1)); }
static void first_key(Specialise *s, Block *to) {
    if (s->overlap) load_keys(s, to, 0, first_tile(s), first_step(s), "the first step");
}
/* Behind Q, which is waited for before. */
static void first_elements(Specialise *s, Block *to) {
    if (s->overlap) load_elements(s, to, first_tile(s), first_step(s), "the first step");
}

static void load_walk(Specialise *s, Block *to, const Outline *o) {
    Block early = {0};
    ag_spz_append(s, to, &o->once, 0);
    Walk w = begin_walk(s, to);
    if (s->chained) {
        Rename x = copy_scalars(s, to, &o->tile, w.tile, "first", false, "---- where the first tile is");
        publish(s, to, w.tile, s->round, &x, 0, "the first tile");
    }
    Block *in = while_tiles(s, to, below_tiles(s, w, w.tile));
    for (const Ins *i = o->tile.first; i; i = i->next)
        if (i->op == TI_LET) add(in, ag_ins_clone(s->k, i))->e[0] = renamed(&(Rename){s, w.tile, NULL}, i->e[0]);
    head(in, NULL, "---- where the tile is, and which keys it needs");
    Ref next = ag_spz_let(s, in, "next", s->dynamic ? w.tile : ag_spz_op(s, OP_ADD, w.tile, leaf(s, OP_BLOCKS)), NULL),
        more = below_tiles(s, w, next);
    if (s->dynamic) {
        int v = s->k->nodes.n[next].index;
        s->k->val[v].varies = true;
        Ins *fetch = add(&early, ag_ins(s->k, TI_FETCH, v));
        fetch->note = "---- the next tile: late, so that the longest tiles still go first; not too late, so that Q is there in time";
    }
    if (s->chained) {
        Rename x = copy_scalars(s, &early, &o->tile, next, "next", false, s->dynamic ? NULL : "---- the next tile");
        Ref round = ag_spz_let(s, &early, "next_round", ag_spz_op(s, OP_ADD, s->round, ag_spz_num(s, 1)), NULL);
        publish(s, &early, next, round, &x, more, "the next tile");
    }
    first_key(s, in);
    if (!s->chained) publish(s, in, w.tile, s->round, NULL, 0, "the tile");
    first_elements(s, in);
    load_loop(s, in, &early);
    count_tile(s, in);
    ag_spz_set(s, in, w.tile, next);
    if (s->chained) load_zeros(s, to, &s->ring[0], room_for_keys(s, to, &s->ring[0], s->base, "---- K of the tile that is none"), NULL);
    if (!s->chained && s->dynamic) put_end(s, to, room_for_query(s, to, s->round, "---- the end"));
    if (!s->dynamic) return;
    Ins *last = ag_spz_put(s, to, TI_IF, "---- the last fetch of the launch puts the counter back");
    last->e[0] = ag_spz_op(s, OP_EQ, w.tile, ag_spz_op(s, OP_SUB, ag_spz_op(s, OP_ADD, leaf(s, OP_BLOCKS), w.tiles), ag_spz_num(s, 1)));
    ag_spz_put(s, &last->body, TI_RESET, NULL);
}

void ag_spz_load(Specialise *s, Role *load) {
    Outline o = outline(s);
    Block none = {0};
    if (s->persistent) {
        load_walk(s, &load->body, &o);
        return;
    }
    for (const Ins *i = o.tile.first; i; i = i->next)
        if (i->op == TI_LET) add(&load->body, ag_ins_clone(s->k, i));
    first_key(s, &load->body);
    load_tile(s, &load->body, &s->query, ag_spz_num(s, 0), NULL, 0, "---- Q");
    first_elements(s, &load->body);
    load_loop(s, &load->body, &none);
}
