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

static void put_ins(Sim *s, const Ins *i) {
    ag_put(s->message, "%s", ag_tile_op_name[i->op]);
    if (i->op == TI_WAIT) ag_put(s->message, " %d", i->n);
    if (i->op == TI_SYNC) ag_put(s->message, " %s", s->k->barrier[i->n].name);
    if (i->op == TI_STORE || i->op == TI_STORE_ROW) ag_put(s->message, " %s", s->k->tensor[i->n].name);
    if (i->dst >= 0) ag_put(s->message, " %.*s", STRF(s->k->val[i->dst].name));
    if (i->op == TI_COPY && s->stage >= 0) ag_put(s->message, " [stage %lld]", (long long)s->stage);
}

static noreturn void leave(Sim *s, Span at) {
    const Diag *d = s->k->d;
    if (d && at.file) {
        int line, col;
        ag_line_col(d, at, &line, &col);
        ag_put(s->message, " (from %.*s:%d)", STRF(d->file[at.file].name), line);
    }
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

void ag_sim_fail_launch(Sim *s, const char *fmt, ...) {
    ag_put(s->message, "simulated launch: ");
    va_list ap;
    va_start(ap, fmt);
    ag_vput(s->message, fmt, ap);
    va_end(ap);
    leave(s, (Span){0});
}

static noreturn void fail_deadlock(Sim *s) {
    s->role = 0;
    put_block(s);
    ag_put(s->message, "deadlock");
    for (int r = 0; r < s->k->nrole; r++) {
        ag_put(s->message, "%s role %s ", r ? "," : ":", s->k->role[r].name);
        if (s->thread[r].done) {
            ag_put(s->message, "has ended");
        } else {
            ag_put(s->message, "waits at ");
            put_ins(s, s->thread[r].at);
        }
    }
    leave(s, (Span){0});
}

const HostTensor *ag_sim_tensor(const Sim *s, int tensor) {
    const HostTensor *const t[TEN_COUNT] = {
        [TEN_Q] = &s->call->q, [TEN_K] = &s->call->k, [TEN_V] = &s->call->v, [TEN_O] = &s->call->o, [TEN_LSE] = &s->call->lse};
    return t[tensor];
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
    if (o && o->op == TI_ANY) ag_sim_any_end(s, o);
    t->depth--;
    t->done = t->depth == 0;
}

static void execute(Sim *s, Thread *t, const Ins *i) {
    switch (i->op) {
    case TI_LET: set_scalar(s, i->dst, ag_sim_scalar(s, i->e[0])); break;
    case TI_LOOP: enter_loop(s, t, i); break;
    case TI_IF:
        if (ag_sim_int(s, i->e[0])) enter(s, t, (Frame){.at = i->body.first, .owner = i});
        break;
    case TI_ANY:
        if (ag_sim_any_begin(s, i)) enter(s, t, (Frame){.at = i->body.first, .owner = i});
        break;
    case TI_SYNC: t->waiting = true; break;
    default: ag_sim_op(s, i); break;
    }
}

/* Runs one role up to its next barrier or its end. */
static void run_role(Sim *s, int role) {
    Thread *t = &s->thread[role];
    s->role = role;
    while (!t->done && !t->waiting) {
        Frame *f = &t->frame[t->depth - 1];
        if (!f->at) {
            leave_block(s, t);
            continue;
        }
        t->at = f->at;
        f->at = f->at->next;
        s->stage = -1;
        execute(s, t, t->at);
    }
}

/* All roles stand still: at the same barrier they go on, at their ends the block is done. */
static bool pass_barrier(Sim *s) {
    int done = 0, same = 0, n = s->k->nrole;
    for (int r = 0; r < n; r++) {
        done += s->thread[r].done;
        same += s->thread[r].waiting && s->thread[0].waiting && s->thread[r].at->n == s->thread[0].at->n;
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
        c->from = (Origin){0};
        memset(c->rel, 0, sizeof c->rel);
        memset(c->scalar, 0, sizeof c->scalar);
    }
    for (int r = 0; r < s->k->nrole; r++) s->thread[r] = (Thread){.frame = {{.at = s->k->role[r].body.first}}, .depth = 1};
    s->any[0].inside = s->any[1].inside = false;
    s->role = 0;
    ag_sim_shared_reset(s);
}

static void run_block(Sim *s) {
    begin_block(s);
    do {
        for (int r = 0; r < s->k->nrole; r++) run_role(s, r);
    } while (pass_barrier(s));
    for (int r = 0; r < s->k->nrole; r++) s->thread[r].at = NULL;
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
    if (v->space == SPACE_FRAG || v->space == SPACE_ROW) c->x = NEWN(s->arena, float, n);
    if (v->space == SPACE_FRAG) c->hidden = NEWN(s->arena, uint8_t, n);
    if (v->cols > s->columns) s->columns = v->cols;
    if (v->rows > s->rows) s->rows = v->rows;
}

static void run(Sim *s) {
    size_t widest = 0;
    s->columns = 4;
    s->cell = NEWN(s->arena, Cell, (size_t)s->k->nval);
    s->expr = NEWN(s->arena, Expr *, (size_t)s->k->nodes.len);
    for (int v = 0; v < s->k->nval; v++) {
        make_cell(s, &s->cell[v], &s->k->val[v]);
        size_t n = (size_t)s->k->val[v].rows * (size_t)s->k->val[v].cols;
        if (s->k->val[v].space == SPACE_SHARED && n > widest) widest = n;
    }
    s->scratch = NEWN(s->arena, float, widest);
    ag_sim_cover_init(s);
    int64_t blocks = ag_sim_int(s, s->k->blocks);
    for (s->block = 0; s->block < blocks; s->block++) run_block(s);
    ag_sim_cover_end(s);
}

static bool guarded_run(Sim *s) {
    switch (setjmp(s->jump)) {
    case 0: run(s); return true;
    case AG_JUMP_OOM: ag_put(s->message, "out of memory"); return false;
    default: return false;
    }
}

bool ag_simulate(const Kernel *k, const HostCall *call, Buf *message) {
    Sim s = {.k = k, .call = call, .message = message, .arena = ag_arena_new()};
    if (!s.arena) {
        ag_put(message, "out of memory");
        return false;
    }
    ag_arena_on_oom(s.arena, &s.jump);
    bool ok = guarded_run(&s);
    ag_arena_free(s.arena);
    return ok;
}
