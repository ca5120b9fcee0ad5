/* simulate.c: runs a kernel's Tile IR on the CPU, block by block, with its roles as coroutines. */
#include "simulate.h"

#include <string.h>

/* ---- messages */

static const Scalar *scalar_named(const Sim *s, const char *name) {
    for (int v = 0; v < s->k->nval; v++) {
        const Scalar *x = &s->cell[v].scalar[s->role];
        if (s->k->val[v].space == SPACE_SCALAR && x->type == T_INT && ag_str_is(s->k->val[v].name, name)) return x;
    }
    return NULL;
}

static void put_block(Sim *s) {
    static const char *const names[] = {"m", "h", "b"};
    ag_put(s->message, "simulated block %lld", (long long)s->block);
    int n = 0;
    for (int i = 0; i < LEN(names); i++) {
        const Scalar *x = scalar_named(s, names[i]);
        if (x) ag_put(s->message, "%s%s %lld", n++ ? ", " : " (", names[i], (long long)x->u.i);
    }
    ag_put(s->message, "%s: ", n ? ")" : "");
}

static bool at_mbar(const Ins *i) { return i->op == TI_EXPECT || i->op == TI_WAIT_BAR || i->op == TI_ARRIVE; }

static void put_ins(Sim *s, const Ins *i) {
    ag_put(s->message, "%s", ag_tile_op_name[i->op]);
    if (i->op == TI_WAIT || i->op == TI_MMA_WAIT) ag_put(s->message, " %d", i->n);
    if (i->op == TI_SYNC || i->op == TI_TAKE_TURN || i->op == TI_PASS_TURN || at_mbar(i)) ag_put(s->message, " %s", s->k->barrier[i->n].name);
    if (i->op == TI_STORE || i->op == TI_STORE_ROW || i->op == TI_STORE_LIST || i->op == TI_POOL || i->op == TI_EACH || i->op == TI_ROWS ||
        (i->op >= TI_COUNT_LISTS && i->op <= TI_INVERT_LISTS))
        ag_put(s->message, " %s", s->k->tensor[i->n].name);
    if (i->dst >= 0) ag_put(s->message, " %.*s", STRF(s->k->val[i->dst].name));
    if ((i->op == TI_COPY || i->op == TI_PUT || at_mbar(i)) && s->stage >= 0) ag_put(s->message, " [stage %lld]", (long long)s->stage);
}

/* The line of the spec or schedule that it comes from. */
static void put_from(Sim *s, Span at) {
    const Diag *d = s->k->d;
    int line, col;
    if (!d || !at.file) return;
    ag_line_col(d, at, &line, &col);
    ag_put(s->message, " (from %.*s:%d)", STRF(d->file[at.file].name), line);
}

static noreturn void leave(Sim *s, Span at) {
    put_from(s, at);
    longjmp(s->jump, AG_JUMP_STOP);
}

void ag_sim_fail(Sim *s, const char *fmt, ...) {
    const Ins *i = s->thread[s->role].at;
    put_block(s);
    if (i) {
        put_ins(s, i);
        ag_put(s->message, ": ");
    }
    va_list ap;
    va_start(ap, fmt);
    ag_vput(s->message, fmt, ap);
    va_end(ap);
    leave(s, i ? i->span : (Span){0});
}

void ag_sim_fail_launch(Sim *s, Span at, const char *fmt, ...) {
    ag_put(s->message, "simulated launch: ");
    va_list ap;
    va_start(ap, fmt);
    ag_vput(s->message, fmt, ap);
    va_end(ap);
    leave(s, at);
}

static void put_wait(Sim *s, const Thread *t) {
    s->stage = t->at->op == TI_WAIT_BAR ? t->stage : -1;
    ag_put(s->message, "waits at ");
    put_ins(s, t->at);
    if (t->at->op == TI_WAIT_BAR) {
        const Mbar *m = &s->mbar[t->mbar];
        ag_put(s->message, " parity %lld (%d of %d arrivals", (long long)t->parity, m->count - m->missing, m->count);
        if (m->announced > 0) ag_put(s->message, ", no copy for %lld bytes", (long long)m->announced);
        ag_put(s->message, ")");
    }
    put_from(s, t->at->span);
}

static noreturn void fail_deadlock(Sim *s) {
    s->role = 0;
    put_block(s);
    ag_put(s->message, "deadlock");
    for (int r = 0; r < s->k->nrole; r++) {
        ag_put(s->message, "%s role %s ", r ? "," : ":", s->k->role[r].name);
        if (s->thread[r].done)
            ag_put(s->message, "has ended");
        else
            put_wait(s, &s->thread[r]);
    }
    leave(s, (Span){0});
}

const HostTensor *ag_sim_tensor(const Sim *s, int tensor) {
    const HostTensor *const t[TEN_COUNT] = {[TEN_Q] = &s->call->q,
                                            [TEN_K] = &s->call->k,
                                            [TEN_V] = &s->call->v,
                                            [TEN_O] = &s->call->o,
                                            [TEN_LSE] = &s->call->lse,
                                            [TEN_MAX] = &s->call->max,
                                            [TEN_MEAN] = &s->call->mean_weight};
    return tensor < TEN_COUNT ? t[tensor] : &s->call->more[tensor - TEN_COUNT];
}

/* ---- roles */

static void enter(Sim *s, Thread *t, Frame f) {
    if (t->depth == MAX_NEST) ag_sim_fail(s, "loops and conditions nest deeper than %d", MAX_NEST);
    t->frame[t->depth++] = f;
}

static void set_scalar(Sim *s, int val, Scalar x) { s->cell[val].scalar[s->role] = x; }

/* for dst: n = 1: e[0] <= dst < e[1] upwards; n = -1: e[0] > dst >= e[1] downwards */
static void enter_loop(Sim *s, Thread *t, const Ins *i) {
    int64_t from = ag_sim_int(s, i->e[0]), to = ag_sim_int(s, i->e[1]);
    int64_t first = i->n > 0 ? from : from - 1, last = i->n > 0 ? to - 1 : to;
    if (i->n > 0 ? first > last : first < last) return;
    set_scalar(s, i->dst, (Scalar){T_INT, {.i = first}});
    enter(s, t, (Frame){.at = i->body.first, .owner = i, .i = first, .last = last});
}

/* The end of a block: the next iteration, or out of it. */
static void leave_block(Sim *s, Thread *t) {
    Frame *f = &t->frame[t->depth - 1];
    const Ins *o = f->owner;
    if (o && o->op == TI_LOOP && f->i != f->last) {
        f->i += o->n;
        f->at = o->body.first;
        set_scalar(s, o->dst, (Scalar){T_INT, {.i = f->i}});
        return;
    }
    if (o && o->op == TI_WHILE && ag_sim_int(s, o->e[0])) {
        f->at = o->body.first;
        return;
    }
    if (o && o->op == TI_ANY) ag_sim_any_end(s, o);
    t->depth--;
    t->done = t->depth == 0;
    if (!t->done) return;
    t->at = NULL;
    ag_sim_mma_end(s);
    ag_sim_tiles_end(s);
}

static void synchronise(Sim *s, Thread *t, const Ins *i) {
    const Role *r = &s->k->role[s->role];
    if (r->one_thread) ag_sim_fail(s, "role %s has one thread", r->name);
    if (s->k->barrier[i->n].kind > BARRIER_WARP) ag_sim_fail(s, "%s is no barrier to wait at together", s->k->barrier[i->n].name);
    if (s->k->barrier[i->n].kind == BARRIER_WARPGROUP)
        ag_sim_warpgroup_sync(s);
    else if (s->k->barrier[i->n].kind == BARRIER_WARP)
        ag_sim_warp_sync(s);
    else
        t->waiting = true;
}

static void execute(Sim *s, Thread *t, const Ins *i) {
    switch (i->op) {
    case TI_LET:
    case TI_SET: set_scalar(s, i->dst, ag_sim_scalar(s, i->e[0])); break;
    case TI_LIST: ag_sim_open_list(s, i); break;
    case TI_ENTRIES: ag_sim_open_entries(s, i); break;
    case TI_FIND: set_scalar(s, i->dst, (Scalar){T_INT, {.i = ag_sim_find(s, i)}}); break;
    case TI_GET: set_scalar(s, i->dst, (Scalar){T_INT, {.i = ag_sim_get(s, i)}}); break;
    case TI_FETCH: set_scalar(s, i->dst, (Scalar){T_INT, {.i = ag_sim_fetch(s)}}); break;
    case TI_LOOP: enter_loop(s, t, i); break;
    case TI_ELSE:
        if (!ag_sim_int(s, i->e[0])) enter(s, t, (Frame){.at = i->body.first, .owner = i});
        break;
    case TI_WHILE:
    case TI_IF:
        if (ag_sim_int(s, i->e[0])) enter(s, t, (Frame){.at = i->body.first, .owner = i});
        break;
    case TI_ANY:
        if (ag_sim_any_begin(s, i)) enter(s, t, (Frame){.at = i->body.first, .owner = i});
        break;
    case TI_SYNC: synchronise(s, t, i); break;
    case TI_WAIT_BAR: ag_sim_wait_bar(s, i); break;
    default: ag_sim_op(s, i); break;
    }
}

/* Goes on with a role by one instruction, or the end of a block; false: it waits, or has ended. */
static bool step(Sim *s, int role) {
    Thread *t = &s->thread[role];
    if (t->waiting && t->at->op == TI_WAIT_BAR) t->waiting = !ag_sim_wait_bar_over(s, role);
    if (t->done || t->waiting) return false;
    s->role = role;
    s->stage = -1;
    Frame *f = &t->frame[t->depth - 1];
    if (!f->at) {
        leave_block(s, t);
        return true;
    }
    t->at = f->at;
    f->at = f->at->next;
    execute(s, t, t->at);
    return true;
}

/* Steps the role whose turn it is, or else another; false: all stand still. */
static bool step_some(Sim *s) {
    int n = s->k->nrole, first = s->order->first >= 0 ? s->order->first : s->role + 1;
    for (int r = 0; r < n; r++)
        if (step(s, (first + r) % n)) return true;
    return false;
}

/* All roles stand still, and no copy is on its way: at the same barrier they go on, at their ends the block is done. */
static bool pass_barrier(Sim *s) {
    int done = 0, same = 0, n = s->k->nrole;
    for (int r = 0; r < n; r++) {
        const Thread *t = &s->thread[r], *t0 = &s->thread[0];
        done += t->done;
        same += t->waiting && t0->waiting && t->at->op == TI_SYNC && t0->at->op == TI_SYNC && t->at->n == t0->at->n;
    }
    if (done == n) return false;
    if (same < n) fail_deadlock(s);
    ag_sim_barrier(s);
    for (int r = 0; r < n; r++) s->thread[r].waiting = false;
    return true;
}

static void begin_block(Sim *s) {
    for (int v = 0; v < s->k->nval; v++) {
        Cell *c = &s->cell[v];
        c->written = false;
        if (c->some) memset(c->some, 0, (size_t)c->v->rows);
        c->from = (Origin){0};
        memset(c->rel, 0, sizeof c->rel);
        memset(c->scalar, 0, sizeof c->scalar);
        c->mma_writes = c->mma_reads = 0;
    }
    for (int r = 0; r < s->k->nrole; r++) {
        s->thread[r] = (Thread){.frame = {{.at = s->k->role[r].body.first}}, .depth = 1};
        s->thread[r].clock.time[r] = 1;
        s->any[r].inside = false;
    }
    s->role = s->k->nrole - 1; /* role 0 has the first turn */
    ag_sim_bar_reset(s);
    ag_sim_tiles_reset(s);
    ag_sim_shared_reset(s);
}

static void run_block(Sim *s) {
    begin_block(s);
    while (step_some(s) || ag_sim_land(s) || pass_barrier(s)) continue;
    s->role = 0;
    ag_sim_shared_end(s);
}

/* ---- the launch */

static void make_cell(Sim *s, Cell *c, const Val *v) {
    c->v = v;
    c->lanes = v->partial ? 4 : 1;
    size_t n = (size_t)v->rows * (size_t)(v->space == SPACE_ROW ? c->lanes : v->cols);
    if (v->space == SPACE_SHARED) {
        c->stage = NEWN(s->arena, Stage, (size_t)v->stages);
        for (int t = 0; t < v->stages; t++) c->stage[t].x = NEWN(s->arena, float, n);
    }
    if (v->space == SPACE_SLOT) c->slot = NEWN(s->arena, Slot1, (size_t)v->stages);
    if (v->space == SPACE_FRAG || v->space == SPACE_ROW) c->x = NEWN(s->arena, float, n);
    if (v->space == SPACE_FRAG || v->space == SPACE_SHARED) c->hidden = NEWN(s->arena, uint8_t, n);
    if (v->cols > s->columns) s->columns = v->cols;
    if (v->rows > s->rows) s->rows = v->rows;
}

static void run(Sim *s) {
    size_t widest = 0;
    s->columns = s->k->kind == KERNEL_CLASSIFY ? (int)s->k->sched->f[F_TILE_N].v : 4;
    s->cell = NEWN(s->arena, Cell, (size_t)s->k->nval);
    s->expr = NEWN(s->arena, Expr *, (size_t)s->k->nodes.len);
    for (int v = 0; v < s->k->nval; v++) {
        make_cell(s, &s->cell[v], &s->k->val[v]);
        size_t n = (size_t)s->k->val[v].rows * (size_t)s->k->val[v].cols;
        if (s->k->val[v].space == SPACE_SHARED && n > widest) widest = n;
    }
    s->scratch = NEWN(s->arena, float, widest);
    ag_sim_bar_init(s);
    bool each = s->k->kind == KERNEL_EACH;
    if (each) ag_sim_each_init(s);
    if (s->order->values && s->k->kind == KERNEL_ATTEND) ag_sim_cover_init(s);
    if (s->k->kind == KERNEL_SELECT) ag_sim_lists_init(s);
    if (s->k->kind == KERNEL_INVERT) ag_sim_invert_init(s);
    s->blocks = ag_sim_int(s, s->k->blocks);
    if (s->k->persistent && s->blocks > SIMULATED_SMS) s->blocks = SIMULATED_SMS;
    for (s->block = 0; s->block < s->blocks; s->block++) run_block(s);
    ag_sim_counter_end(s);
    if (each) ag_sim_each_end(s);
    if (s->order->values && s->k->kind == KERNEL_ATTEND) ag_sim_cover_end(s);
    if (s->k->kind == KERNEL_SELECT) ag_sim_lists_end(s);
    if (s->k->kind == KERNEL_INVERT) ag_sim_invert_end(s);
}

static bool guarded_run(Sim *s) {
    switch (setjmp(s->jump)) {
    case 0: run(s); return true;
    case AG_JUMP_OOM: ag_put(s->message, "out of memory"); return false;
    default: return false;
    }
}

static bool run_in_order(const Kernel *k, const HostCall *call, const Order *order, Buf *message) {
    Sim s = {.k = k, .call = call, .order = order, .message = message, .arena = ag_arena_new()};
    if (!s.arena) {
        ag_put(message, "out of memory");
        return false;
    }
    ag_arena_on_oom(s.arena, &s.jump);
    bool ok = guarded_run(&s);
    ag_arena_free(s.arena);
    return ok;
}

bool ag_simulate(const Kernel *k, const HostCall *call, Buf *message) {
    static const Order order[] = {{.first = -1, .values = true}, {.first = 0, .late = true}, {.first = 1, .late = true}};
    for (int n = 0; n < (k->nrole > 1 ? LEN(order) : 1); n++)
        if (!run_in_order(k, call, &order[n], message)) return false;
    return true;
}
