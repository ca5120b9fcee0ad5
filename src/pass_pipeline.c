/* pass_pipeline.c: makes the copies of key tiles asynchronous and orders them against their readers.
 *
 * A ring is a shared tile with `stages` copies, filled once per step.  Its first reader in a step stands at an acquire point: wait for the ring's group, then a
 * barrier.  A barrier also tells that every warp is past what stands before it, so stages whose last reader lies before it are free: each acquire point
 * issues the copies that its barrier has freed, as early as possible, in one cp.async group.
 *   pipeline.acquire each      every ring has its acquire point           (two barriers a step)
 *   pipeline.acquire together  one point at the first reader of the step  (one barrier a step, two stages of each)
 *
 * With P points a step, a ring with s stages whose last reader lies behind point r is refilled at point (r + 1) mod P of step i with the tile of step
 * i + s (same step), or i + s - 1 (r + 1 = P: the barrier belongs to the next step).  The wait count at a point is the number of groups closed since the
 * one that it needs; groups are closed whether or not they hold a copy, so it is a constant. */
#include <assert.h>

#include "compile.h"

enum { MAX_RING = 4, MAX_POINT = 4 };

typedef struct Ring {
    int val;
    Ins *copy;   /* as tile made it */
    int acquire; /* point at which a step waits for it */
    int issue;   /* point at which it is refilled */
    int ahead;   /* with the tile of this many steps later */
    int stages;
} Ring;

typedef struct Pipe {
    Kernel *k;
    Block *body;
    bool down, together;
    Ring ring[MAX_RING];
    int nring, npoint;
    bool commits[MAX_POINT]; /* does this point close a group? */
} Pipe;

static Ref num(Pipe *p, int64_t v) { return ag_node_int(&p->k->nodes, v); }
static Ref op2(Pipe *p, Op op, Ref a, Ref b) { return ag_node_op(&p->k->nodes, op, a, b, 0, (Span){0}); }
static bool is_key_loop(const Pipe *p, const Ins *i) { return i->op == TI_LOOP && i->dst == p->k->key_loop; }
static bool is_ring_copy(const Pipe *p, const Ins *i) {
    for (int r = 0; r < p->nring; r++)
        if (i->op == TI_COPY && i->dst == p->ring[r].val) return true;
    return false;
}
/* The ring that it reads, or the first one that its body does; -1. */
static int ring_read(const Pipe *p, const Ins *i) {
    for (const Ins *x = i->body.first; x; x = x->next) {
        int r = ring_read(p, x);
        if (r >= 0) return r;
    }
    for (int r = 0; r < p->nring; r++)
        if ((i->op == TI_MMA && (i->b == p->ring[r].val || i->a == p->ring[r].val)) || (i->op == TI_LOAD && i->a == p->ring[r].val)) return r;
    return -1;
}

/* ---- analysis of one step */
static void find_rings(Pipe *p, const Block *step, const Schedule *s) {
    for (Ins *i = step->first; i; i = i->next) {
        if (i->op != TI_COPY) continue;
        assert(p->nring < MAX_RING);
        const Field *f = &s->f[p->k->tensor[i->a].values ? F_V_STAGES : F_K_STAGES];
        p->k->val[i->dst].stages = (int)f->v;
        p->k->val[i->dst].span = f->span;
        p->ring[p->nring++] = (Ring){.val = i->dst, .copy = i, .acquire = -1, .stages = (int)f->v};
    }
}

static void plan(Pipe *p, const Block *step) {
    int last[MAX_RING] = {0}; /* the point behind which a ring's last reader lies */
    for (const Ins *i = step->first; i; i = i->next) {
        int r = ring_read(p, i);
        if (r < 0) continue;
        if (p->ring[r].acquire < 0) p->ring[r].acquire = p->together && p->npoint ? 0 : p->npoint++;
        last[r] = p->npoint - 1;
    }
    for (int r = 0; r < p->nring; r++) {
        Ring *x = &p->ring[r];
        bool same_step = last[r] + 1 < p->npoint;
        x->issue = same_step ? last[r] + 1 : 0;
        x->ahead = same_step ? x->stages : x->stages - 1;
        p->commits[x->issue] = true;
    }
}

/* Groups closed after that of ring r for the current step, up to its acquire point. */
static int groups_since(const Pipe *p, int r) {
    const Ring *x = &p->ring[r];
    int n = 0;
    for (int c = 0; c < p->npoint; c++) n += p->commits[c] * (x->ahead + (c < x->acquire) - (c <= x->issue));
    return n;
}

/* ---- code */
static void add(Block *b, Ins *at, Ins *i) { ag_block_insert_before(b, at, i); }

/* The first row of key tile j as that of another. */
typedef struct TileSwap {
    Ref j, tile;
} TileSwap;
static Ref swap_tile(void *payload, Ref r) {
    const TileSwap *x = payload;
    return r == x->j ? x->tile : 0;
}

/* What is fetched in its own step walks along the tile map with the rest of the step. */
static Ref join_walk(void *payload, Ref r) {
    Nodes *p = payload;
    Node n = p->n[r];
    if (n.op != OP_TILE || n.index == WALK_OTHER) return 0;
    n.index = WALK_OTHER;
    return ag_node_intern(p, n);
}

/* Tile number of the copy that step j issues `ahead` steps early, and a form of it that is never negative, for the stage. */
static Ins *issue(Pipe *p, const Ring *x, Ref from, int ahead, bool guarded) {
    Kernel *k = p->k;
    Ref tile = ahead ? op2(p, p->down ? OP_SUB : OP_ADD, from, num(p, ahead)) : from;
    int turn = p->down ? (x->stages - ahead % x->stages) % x->stages : ahead % x->stages; /* same residue, no subtraction */
    Ins *c = ag_ins_clone(k, x->copy);
    c->async = true;
    c->e[0] = x->stages == 1 ? num(p, 0) : op2(p, OP_MOD, op2(p, OP_ADD, from, num(p, turn)), num(p, x->stages));
    TileSwap swap = {ag_kval(k, k->key_loop), tile};
    c->e[1] = ag_node_rebuild(&k->nodes, &k->nodes, x->copy->e[1], swap_tile, &swap);
    if (ahead == 0 && !guarded) c->e[1] = ag_node_rebuild(&k->nodes, &k->nodes, c->e[1], join_walk, &k->nodes);
    if (!guarded) return c;
    Ins *when = ag_ins(k, TI_IF, -1);
    when->e[0] = p->down ? op2(p, OP_GE, tile, k->lo) : op2(p, OP_LT, tile, k->hi);
    ag_block_append(&when->body, c);
    return when;
}

/* "K and V" of the rings for which pick is true. */
static const char *ring_names(const Pipe *p, bool (*pick)(const Ring *, int), int point) {
    Str s = STR("");
    for (int r = 0; r < p->nring; r++)
        if (pick(&p->ring[r], point)) s = ag_fmt(p->k->arena, "%s%s%s", s.s, s.n ? " and " : "", p->k->val[p->ring[r].val].name.s);
    return s.s;
}
static bool acquired_at(const Ring *x, int point) { return x->acquire == point; }
static bool issued_at(const Ring *x, int point) { return x->issue == point; }

static void add_copies(Pipe *p, Block *b, Ins *at, int point) {
    for (int r = 0; r < p->nring; r++)
        if (p->ring[r].issue == point) add(b, at, issue(p, &p->ring[r], ag_kval(p->k, p->k->key_loop), p->ring[r].ahead, p->ring[r].ahead > 0));
    if (p->commits[point]) add(b, at, ag_ins(p->k, TI_COMMIT, -1));
}

/* A ring of one stage that no other point could refill: the copy is issued and waited for at the same place. */
static bool is_synchronous(const Pipe *p, int point) {
    for (int r = 0; r < p->nring; r++)
        if (p->ring[r].issue == point && p->ring[r].acquire == point && p->ring[r].ahead == 0) return true;
    return false;
}

static void acquire_point(Pipe *p, Block *b, Ins *at, int point) {
    Kernel *k = p->k;
    int n = -1;
    if (is_synchronous(p, point)) {
        add(b, at, ag_ins(k, TI_SYNC, -1));
        add_copies(p, b, at, point);
        add(b, at, ag_ins(k, TI_WAIT, -1)); /* for all groups */
        add(b, at, ag_ins(k, TI_SYNC, -1));
        return;
    }
    for (int r = 0; r < p->nring; r++)
        if (p->ring[r].acquire == point && (n < 0 || groups_since(p, r) < n)) n = groups_since(p, r);
    Ins *wait = ag_ins(k, TI_WAIT, -1);
    wait->n = n;
    wait->note = ag_fmt(k->arena, "---- %s of this step has arrived%s%s", ring_names(p, acquired_at, point), p->commits[point] ? "; fetch " : "",
                        ring_names(p, issued_at, point))
                     .s;
    add(b, at, wait);
    add(b, at, ag_ins(k, TI_SYNC, -1));
    add_copies(p, b, at, point);
}

/* Readers of a ring take the stage of this step. */
static void read_stage(Pipe *p, Ins *i, int ring) {
    for (Ins *x = i->body.first; x; x = x->next)
        if (ring_read(p, x) == ring) read_stage(p, x, ring);
    if (!i->body.first) i->e[0] = op2(p, OP_MOD, ag_kval(p->k, p->k->key_loop), num(p, p->ring[ring].stages));
}

static void rewrite_step(Pipe *p, Block *b) {
    bool done[MAX_POINT] = {false};
    Ins *last_read = NULL; /* a point stands right behind the reads before it: what its barrier frees is fetched the earlier */
    for (Ins *i = b->first, *next; i; i = next) {
        next = i->next;
        if (is_ring_copy(p, i)) {
            ag_block_remove(b, i);
            continue;
        }
        int r = ring_read(p, i);
        if (r < 0) continue;
        const Ring *x = &p->ring[r];
        if (!done[x->acquire]) acquire_point(p, b, last_read ? last_read->next : i, x->acquire);
        done[x->acquire] = true;
        last_read = i;
        if (x->stages > 1) read_stage(p, i, r);
    }
}

/* The copies of the steps before the first, in the order in which those steps would have issued them.  Returns the groups closed after the first. */
static int prologue(Pipe *p, Ins *first_loop) {
    Kernel *k = p->k;
    int most = 0, groups = 0;
    for (int r = 0; r < p->nring; r++) most = p->ring[r].ahead > most ? p->ring[r].ahead : most;
    for (int step = -most; step < 0; step++)
        for (int c = 0; c < p->npoint; c++) {
            if (!p->commits[c]) continue;
            bool any = groups > 0;
            for (int r = 0; r < p->nring; r++) {
                int tile = step + p->ring[r].ahead; /* counted from the first */
                if (p->ring[r].issue != c || tile < 0) continue;
                any = true;
                /* down: hi - 1 - tile;  up: lo + tile */
                add(p->body, first_loop, issue(p, &p->ring[r], p->down ? k->hi : k->lo, p->down ? tile + 1 : tile, true));
            }
            if (!any) continue;
            add(p->body, first_loop, ag_ins(k, TI_COMMIT, -1));
            groups++;
        }
    return groups - 1;
}

/* Q into registers once, before the loop. */
static void hoist_query(Pipe *p, Ins *first_loop, int groups_after) {
    Kernel *k = p->k;
    int frag[8], shared[8], n = 0;
    for (Ins *l = first_loop; l; l = l->next) {
        if (!is_key_loop(p, l)) continue;
        for (Ins *i = l->body.first; i; i = i->next) {
            if (i->op != TI_MMA || k->val[i->a].space != SPACE_SHARED) continue;
            int f = -1;
            for (int x = 0; x < n; x++)
                if (shared[x] == i->a) f = frag[x];
            if (f < 0) {
                Val v = k->val[i->a];
                shared[n] = i->a;
                frag[n++] = f = ag_val(k, (Val){.name = ag_fmt(k->arena, "%.*s_frag", STRF(v.name)),
                                                .space = SPACE_FRAG,
                                                .type = v.type,
                                                .rows = v.rows,
                                                .cols = v.cols,
                                                .layout = LAYOUT_A,
                                                .over = -1,
                                                .reference = -1,
                                                .carry = -1});
            }
            i->a = f;
        }
    }
    Ins *wait = ag_ins(k, TI_WAIT, -1);
    wait->n = groups_after;
    add(p->body, first_loop, wait);
    add(p->body, first_loop, ag_ins(k, TI_SYNC, -1));
    for (int x = 0; x < n; x++) {
        Ins *load = ag_ins(k, TI_LOAD, frag[x]);
        load->a = shared[x];
        load->e[0] = num(p, 0);
        add(p->body, first_loop, load);
    }
}

/* After the loops: no copy is under way, and the output may be staged where Q and the rings were. */
static void epilogue(Pipe *p, Ins *last_loop, bool staged) {
    Kernel *k = p->k;
    Ins *wait = ag_ins(k, TI_WAIT, -1);
    wait->n = 0;
    wait->note = "---- no copy is under way any more";
    ag_block_insert_after(p->body, last_loop, wait);
    if (!staged) return;
    Ins *sync = ag_ins(k, TI_SYNC, -1);
    sync->note = "every warp is past its last read of shared memory";
    ag_block_insert_after(p->body, wait, sync);
    for (Ins *i = sync; i; i = i->next) {
        if (i->op != TI_STORE) continue;
        const Val *acc = &k->val[i->a];
        i->b = ag_val(k, (Val){.name = ag_str("O"),
                               .space = SPACE_SHARED,
                               .type = k->tensor[i->n].type,
                               .rows = acc->rows,
                               .cols = acc->cols,
                               .stages = 1,
                               .swizzle = -1,
                               .offset = -1,
                               .bytes = -1,
                               .over = 0,
                               .reference = -1,
                               .carry = -1});
    }
}

/* Asynchronous copies, waits, barriers, stages        needs tiled, split   makes pipelined */
void ag_pass_pipeline(Fn *fn) {
    Kernel *k = fn->kernel;
    const Schedule *s = fn->sched;
    if (k->kind == KERNEL_GATHER) return; /* its copies are asynchronous already, one after the other: blocks beside it on the SM hide them */
    if (s->f[F_MMA_FAMILY].v == FAMILY_WGMMA) {
        ag_specialise(fn);
        return;
    }
    Pipe p = {.k = k, .body = &k->role[0].body, .together = s->f[F_ACQUIRE].v == 1};
    k->barrier[k->nbarrier++] = (Barrier){.name = "all", .kind = BARRIER_BLOCK};
    Ins *first = NULL, *last = NULL;
    for (Ins *i = p.body->first; i; i = i->next) {
        if (i->op == TI_COPY) i->async = true; /* Q, in the first group */
        if (!is_key_loop(&p, i)) continue;
        first = first ? first : i;
        last = i;
    }
    assert(first);
    p.down = first->n < 0;
    find_rings(&p, &first->body, s);
    plan(&p, &first->body);
    for (Ins *i = first; i; i = i->next)
        if (is_key_loop(&p, i)) rewrite_step(&p, &i->body);
    int groups_after = prologue(&p, first);
    if (s->f[F_Q_OPERAND].v == 1) hoist_query(&p, first, groups_after);
    epilogue(&p, last, s->f[F_O_STORE].v == 0);
}
