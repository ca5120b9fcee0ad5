/* timeline.c: the model's walk.  All blocks that share an SM run their roles from the start, with the protocol of the IR: mbarriers with phases, groups of
 * copies and of asynchronous mma, barriers.  Time passes when an instruction asks something of an engine (timeline_cost.c).
 *
 * The key range is taken as MANY tiles, all of them plain, so that the loops that are not plain have no steps; which loop is the plain one needs no
 * search then.  After WARM steps of the first computing actor the state is taken as steady: a step is the mean of the MEAN that follow, and the one after
 * these is shown. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "timeline.h"

enum { MANY = 64, WARM = 12, MEAN = 12 /* a multiple of 1, 2, 3 and 4 stages */, MAX_NEST = 16, MAX_STAGES = 16, MAX_EVENTS = 1 << 17 };
static const double TINY = 1e-6; /* clocks that are none */

/* ---- state */

/* Something that an engine does for an actor. */
typedef struct Job Job;
struct Job {
    Job *next;
    int event;
    double left[ENGINE_COUNT]; /* clocks with the engine to itself */
    double lands;              /* copies: when it is over; HUGE_VAL: still served */
    int64_t group;
    int bar, stage; /* copies by TMA */
    bool in_turn;   /* mma: issued by whom it was the turn of */
};
typedef struct Queue {
    Job *first, *last;
} Queue;

typedef struct Mbar {
    int missing, phases;
    double bytes; /* that its phase still waits for */
    int cause;    /* the event that completed the last phase */
    double since;
} Mbar;

typedef struct SmBlock {
    Mbar mbar[LEN(((Kernel *)0)->barrier)][MAX_STAGES];
    int at_sync[LEN(((Kernel *)0)->barrier)], syncs[LEN(((Kernel *)0)->barrier)]; /* actors that wait; barriers passed */
    int turn[LEN(((Kernel *)0)->barrier)];                                        /* the group whose turn it is */
    int64_t *slot;                                                                /* [value][MAX_STAGES] */
} SmBlock;

typedef struct Frame {
    const Ins *at, *owner;
    int64_t i, last;
} Frame;

typedef enum Blocked { GO, ON_WORK, ON_BAR, ON_SYNC, ON_TURN, ON_MMA, ON_COPY, DONE } Blocked;
typedef struct Runner {
    Frame frame[MAX_NEST];
    int depth, step;
    Scalar *scalar; /* per value */
    Blocked blocked;
    int event;            /* the wait that is open */
    const Ins *at;        /* what is blocked */
    int stage, parity, n; /* of the wait; n: groups, or barriers passed */
    Queue work, mma, copy;
    int64_t mma_closed, copy_closed;
    bool my_turn;
    int cause;    /* last event that was over in mma or copy */
    double since; /* and when; for a role with mbarriers: when the last wait's phase was complete */
} Runner;

typedef struct Memo {
    const Ins *ins;
    const Role *role;
    double clk[ENGINE_COUNT];
} Memo;

typedef struct Walk {
    Timeline *t;
    const Kernel *k;
    Arena *arena;
    jmp_buf jump;
    Runner *run;
    SmBlock *block;
    Event *event;
    int nevent, capevent;
    Memo *memo;
    int nmemo, capmemo;
    int *copies; /* per value: copies so far, of block 0 */
    double now, begun[WARM + MEAN + 2];
    bool over;
    Scalar *value; /* of nodes in the evaluation `stamp` */
    int *stamped, stamp;
} Walk;

/* ---- values of scalars */

static Scalar of_int(int64_t v) { return (Scalar){T_INT, {.i = v}}; }

static Scalar of_size(const Walk *w, int size) {
    const Kernel *k = w->k;
    int64_t group = k->spec->group > 1 ? k->spec->group : 1, keys = MANY * k->sched->f[F_TILE_N].v;
    const int64_t v[SZ_COUNT] = {
        [SZ_B] = 1, [SZ_HQ] = group, [SZ_HKV] = 1, [SZ_SQ] = keys, [SZ_SK] = keys, [SZ_D] = k->spec->D, [SZ_DV] = k->spec->Dv};
    return of_int(v[size]);
}

static Scalar of_leaf(const Walk *w, const Runner *r, const Node *n) {
    switch (n->op) {
    case OP_CONST: return n->value;
    case OP_SIZE: return of_size(w, n->index);
    case OP_BLOCKS: return of_int(1);
    case OP_PARAM: return w->k->spec->param[n->index].value;
    case OP_VAL:
        if (w->k->val[n->index].space == SPACE_SCALAR && r->scalar[n->index].type != T_NONE) return r->scalar[n->index];
        break;
    default: break;
    }
    return (Scalar){n->type, {.i = 0}}; /* the first block, or nothing known */
}

static Scalar eval(Walk *w, const Runner *r, Ref x) {
    const Node *n = &w->k->nodes.n[x];
    Scalar arg[3] = {{0}}, v;
    if (w->stamped[x] == w->stamp) return w->value[x];
    int arity = ag_op[n->op].arity;
    for (int a = 0; a < arity; a++) arg[a] = eval(w, r, n->arg[a]);
    if (arity > 0)
        ag_eval(n->op, arg, &v);
    else
        v = of_leaf(w, r, n);
    w->stamped[x] = w->stamp;
    return w->value[x] = v;
}
static Scalar scalar(Walk *w, const Runner *r, Ref x) {
    w->stamp++;
    return eval(w, r, x);
}
static int64_t int_of(Walk *w, const Runner *r, Ref x) { return x ? scalar(w, r, x).u.i : 0; }
static bool bool_of(Walk *w, const Runner *r, Ref x) { return scalar(w, r, x).u.b; }

static bool is_val(const Kernel *k, Ref r, int val) { return r && k->nodes.n[r].op == OP_VAL && k->nodes.n[r].index == val; }

/* The range of keys is MANY tiles that are all plain, whatever the kernel computes. */
static void let(Walk *w, Runner *r, const Ins *i) {
    const Kernel *k = w->k;
    if (is_val(k, k->hi, i->dst) || is_val(k, k->plain_hi, i->dst))
        r->scalar[i->dst] = of_int(MANY);
    else if (is_val(k, k->lo, i->dst) || is_val(k, k->plain_lo, i->dst))
        r->scalar[i->dst] = of_int(0);
    else
        r->scalar[i->dst] = scalar(w, r, i->e[0]);
}

/* ---- events and jobs */

static noreturn void give_up(Walk *w, const char *why) {
    w->t->trouble = why;
    longjmp(w->jump, AG_JUMP_STOP);
}

static int event(Walk *w, int actor, const Ins *i, TrackKind track, EventKind kind) {
    const Runner *r = &w->run[actor];
    if (w->nevent == MAX_EVENTS) give_up(w, "the step has too many instructions");
    PUSH(w->arena, w->event, w->nevent, w->capevent) = (Event){.ins = i,
                                                               .actor = actor,
                                                               .track = track,
                                                               .kind = kind,
                                                               .from = w->now,
                                                               .to = kind == EVENT_POINT ? w->now : HUGE_VAL,
                                                               .step = r->step,
                                                               .stage = r->stage,
                                                               .parity = r->parity,
                                                               .cause = -1,
                                                               .since = w->now};
    return w->nevent - 1;
}

static const double *cost(Walk *w, int actor, const Ins *i) {
    const Actor *a = &w->t->actor[actor];
    for (int m = 0; m < w->nmemo; m++)
        if (w->memo[m].ins == i && w->memo[m].role == a->role) return w->memo[m].clk;
    Memo *m = &PUSH(w->arena, w->memo, w->nmemo, w->capmemo);
    *m = (Memo){.ins = i, .role = a->role};
    ag_cost(w->k, w->arena, w->t->rates, i, a->warps, a->role->warps, m->clk);
    return m->clk;
}

static Job *enqueue(Walk *w, Queue *q, int event, const double *clk) {
    Job *j = NEW(w->arena, Job);
    *j = (Job){.event = event, .lands = HUGE_VAL, .bar = -1};
    memcpy(j->left, clk, sizeof j->left);
    *(q->last ? &q->last->next : &q->first) = j;
    q->last = j;
    return j;
}

static bool is_served(const Job *j) {
    for (int e = 0; e < ENGINE_COUNT; e++)
        if (j->left[e] > 0) return false;
    return true;
}
static Job *served_now(const Queue *q) {
    Job *j = q->first;
    while (j && is_served(j)) j = j->next;
    return j;
}

/* ---- mbarriers */

static void complete(Walk *w, Mbar *m, int count, int cause) {
    if (m->missing > 0 || m->bytes > 0) return;
    m->phases++;
    m->missing = count;
    m->cause = cause;
    m->since = w->now;
}

static Mbar *mbar(Walk *w, int actor, int bar, int stage) {
    if (stage < 0 || stage >= w->k->barrier[bar].stages || stage >= MAX_STAGES) give_up(w, "an mbarrier has no such stage");
    return &w->block[w->t->actor[actor].block].mbar[bar][stage];
}

static void arrive(Walk *w, int actor, const Ins *i, int arrivals) {
    Mbar *m = mbar(w, actor, i->n, w->run[actor].stage);
    int e = event(w, actor, i, TRACK_PROGRAM, EVENT_POINT);
    m->missing -= arrivals;
    complete(w, m, w->k->barrier[i->n].count, e);
}

/* ---- waits */

/* Groups of the queue that are closed and not over; they end in order. */
static int64_t unfinished(const Queue *q, int64_t closed) {
    int64_t n = q->first ? closed - q->first->group + 1 : 0;
    return n > 0 ? n : 0;
}

static bool may_go(const Walk *w, int actor) {
    const Runner *r = &w->run[actor];
    const SmBlock *b = &w->block[w->t->actor[actor].block];
    switch (r->blocked) {
    case GO: return true;
    case ON_WORK: return !r->work.first;
    case ON_BAR: return (b->mbar[r->at->n][r->stage].phases & 1) != r->parity;
    case ON_SYNC: return b->syncs[r->at->n] != r->n;
    case ON_TURN: return b->turn[r->at->n] == w->t->actor[actor].group;
    case ON_MMA: return unfinished(&r->mma, r->mma_closed) <= r->n;
    case ON_COPY: return unfinished(&r->copy, r->copy_closed) <= r->n;
    case DONE: return false;
    }
    return false;
}

static void end_wait(Walk *w, int actor) {
    Runner *r = &w->run[actor];
    Event *e = &w->event[r->event];
    const Mbar *m = r->blocked == ON_BAR ? &w->block[w->t->actor[actor].block].mbar[r->at->n][r->stage] : NULL;
    if (r->blocked != ON_WORK && r->blocked != GO) {
        e->to = w->now;
        bool queue = r->blocked == ON_MMA || r->blocked == ON_COPY;
        e->cause = m ? m->cause : queue ? r->cause : -1;
        e->since = m ? m->since : queue ? r->since : w->now;
        if (m) r->since = m->since;
    }
    r->blocked = GO;
}

static void wait(Walk *w, int actor, const Ins *i, Blocked on, int n) {
    Runner *r = &w->run[actor];
    r->blocked = on;
    r->at = i;
    r->n = n;
    r->event = event(w, actor, i, TRACK_PROGRAM, EVENT_WAIT);
}

static void sync(Walk *w, int actor, const Ins *i) {
    const Actor *a = &w->t->actor[actor];
    SmBlock *b = &w->block[a->block];
    int all = 0;
    if (w->k->barrier[i->n].kind != BARRIER_BLOCK) return; /* an actor is a warpgroup */
    for (int x = 0; x < w->t->nactor; x++) all += w->t->actor[x].block == a->block;
    wait(w, actor, i, ON_SYNC, b->syncs[i->n]);
    if (++b->at_sync[i->n] < all) return;
    b->at_sync[i->n] = 0;
    b->syncs[i->n]++;
}

static void take_turn(Walk *w, int actor, const Ins *i) {
    w->run[actor].my_turn = true;
    wait(w, actor, i, ON_TURN, 0);
}

static void pass_turn(Walk *w, int actor, const Ins *i) {
    const Actor *a = &w->t->actor[actor];
    int groups = a->role->warps / a->warps;
    w->run[actor].my_turn = false;
    w->block[a->block].turn[i->n] = (a->group + 1) % groups;
    event(w, actor, i, TRACK_PROGRAM, EVENT_POINT);
}

/* ---- instructions */

static void work(Walk *w, int actor, const Ins *i) {
    Runner *r = &w->run[actor];
    const double *clk = cost(w, actor, i);
    int e = event(w, actor, i, i->op == TI_MMA ? TRACK_TENSOR : TRACK_PROGRAM, EVENT_WORK);
    Job *j = enqueue(w, &r->work, e, clk);
    if (is_served(j)) { /* it takes no time */
        w->event[e].kind = EVENT_POINT;
        w->event[e].to = w->now;
        r->work = (Queue){0};
    } else
        r->blocked = ON_WORK;
}

static void copy(Walk *w, int actor, const Ins *i) {
    Runner *r = &w->run[actor];
    int e = event(w, actor, i, TRACK_COPY, EVENT_WORK);
    Job *j = enqueue(w, &r->copy, e, cost(w, actor, i));
    w->event[e].since = r->since;
    if (w->t->actor[actor].block == 0 && w->t->actor[actor].group == 0) w->copies[i->dst]++;
    w->event[e].tile = w->copies[i->dst];
    j->group = i->bar >= 0 ? 0 : r->copy_closed + 1;
    j->bar = i->bar;
    j->stage = r->stage;
    if (i->bar >= 0 || i->async) return;
    r->copy_closed++;
    wait(w, actor, i, ON_COPY, 0);
}

static void expect(Walk *w, int actor, const Ins *i) {
    Mbar *m = mbar(w, actor, i->n, w->run[actor].stage);
    m->bytes += (double)int_of(w, &w->run[actor], i->e[1]);
    arrive(w, actor, i, 1);
}

static void async_mma(Walk *w, int actor, const Ins *i) {
    Runner *r = &w->run[actor];
    Job *j = enqueue(w, &r->mma, event(w, actor, i, TRACK_TENSOR, EVENT_WORK), cost(w, actor, i));
    j->group = r->mma_closed + 1;
    j->in_turn = r->my_turn;
}

static int64_t *slot(Walk *w, int actor, int val, Ref stage) {
    int64_t s = int_of(w, &w->run[actor], stage);
    if (s < 0 || s >= MAX_STAGES) give_up(w, "a slot has no such stage");
    return &w->block[w->t->actor[actor].block].slot[val * MAX_STAGES + s];
}

static bool holds_key_loop(const Kernel *k, const Block *b) {
    for (const Ins *i = b->first; i; i = i->next)
        if ((i->op == TI_LOOP && i->dst == k->key_loop) || holds_key_loop(k, &i->body)) return true;
    return false;
}

static void enter(Walk *w, Runner *r, const Ins *i, int64_t from, int64_t last) {
    if (r->depth == MAX_NEST) give_up(w, "the code is nested too deeply");
    r->frame[r->depth++] = (Frame){.at = i->body.first, .owner = i, .i = from, .last = last};
}

/* A step of the loop begins. */
static void begin_step(Walk *w, int actor) {
    Runner *r = &w->run[actor];
    Frame *f = &r->frame[r->depth - 1];
    r->scalar[f->owner->dst] = of_int(f->i);
    if (f->owner->dst != w->k->key_loop) return;
    r->step++;
    if (actor != w->t->first) return;
    w->begun[r->step] = w->now;
    w->over = r->step == LEN(w->begun) - 1;
}

static void loop(Walk *w, int actor, const Ins *i) {
    Runner *r = &w->run[actor];
    int64_t a = int_of(w, r, i->e[0]), b = int_of(w, r, i->e[1]);
    if (i->n > 0 ? a >= b : a <= b) return;
    enter(w, r, i, i->n > 0 ? a : a - 1, i->n > 0 ? b - 1 : b);
    begin_step(w, actor);
}

/* The body of an if, or of the else behind it. */
static void branch(Walk *w, int actor, const Ins *i) {
    Runner *r = &w->run[actor];
    const Ins *other = i->next && i->next->op == TI_ELSE ? i->next : NULL;
    if (other) r->frame[r->depth - 1].at = other->next;
    if (bool_of(w, r, i->e[0]))
        enter(w, r, i, 0, 0);
    else if (other)
        enter(w, r, other, 0, 0);
}

/* The end of a block: the next step of a loop, or what follows. */
static void leave(Walk *w, int actor) {
    Runner *r = &w->run[actor];
    Frame *f = &r->frame[r->depth - 1];
    if (f->owner && f->owner->op == TI_WHILE && bool_of(w, r, f->owner->e[0])) {
        f->at = f->owner->body.first;
        return;
    }
    if (f->owner && f->owner->op == TI_LOOP && f->i != f->last) {
        f->i += f->owner->n;
        f->at = f->owner->body.first;
        begin_step(w, actor);
    } else if (--r->depth == 0)
        r->blocked = DONE;
}

static bool has_stage(const Ins *i) {
    switch (i->op) {
    case TI_COPY:
    case TI_EXPECT:
    case TI_WAIT_BAR:
    case TI_ARRIVE:
    case TI_MMA:
    case TI_LOAD: return true;
    default: return false;
    }
}

static void execute(Walk *w, int actor, const Ins *i) {
    Runner *r = &w->run[actor];
    const Actor *a = &w->t->actor[actor];
    r->stage = has_stage(i) ? (int)int_of(w, r, i->e[0]) : 0;
    r->parity = i->op == TI_WAIT_BAR ? (int)int_of(w, r, i->e[1]) : 0;
    switch (i->op) {
    case TI_LET:
    case TI_SET: let(w, r, i); break;
    case TI_LOOP: loop(w, actor, i); break;
    case TI_WHILE:
        if (bool_of(w, r, i->e[0])) enter(w, r, i, 0, 0);
        break;
    case TI_IF: branch(w, actor, i); break;
    case TI_PUT: *slot(w, actor, i->dst, i->e[0]) = int_of(w, r, i->e[1]); break;
    case TI_GET: r->scalar[i->dst] = of_int(*slot(w, actor, i->a, i->e[0])); break;
    case TI_FETCH: r->scalar[i->dst] = of_int(INT32_MAX); break; /* no tile is left */
    case TI_TAKE_TURN: take_turn(w, actor, i); break;
    case TI_PASS_TURN: pass_turn(w, actor, i); break;
    case TI_COPY: copy(w, actor, i); break;
    case TI_COMMIT: r->copy_closed++; break;
    case TI_WAIT: wait(w, actor, i, ON_COPY, i->n); break;
    case TI_SYNC: sync(w, actor, i); break;
    case TI_EXPECT: expect(w, actor, i); break;
    case TI_WAIT_BAR:
        mbar(w, actor, i->n, r->stage);
        wait(w, actor, i, ON_BAR, 0);
        break;
    case TI_ARRIVE: arrive(w, actor, i, a->role->one_thread ? 1 : a->warps); break;
    case TI_MMA_COMMIT: r->mma_closed++; break;
    case TI_MMA_WAIT: wait(w, actor, i, ON_MMA, i->n); break;
    case TI_MMA:
        if (i->async)
            async_mma(w, actor, i);
        else
            work(w, actor, i);
        break;
    case TI_ANY: /* its condition alone, but for the steps of a union of lists */
        work(w, actor, i);
        if (w->k->list && w->k->list->dst >= 0 && w->k->nodes.n[i->e[0]].op == OP_LISTED_BY) enter(w, r, i, 0, 0);
        break;
    case TI_LOAD:
    case TI_STAGE:
    case TI_MAP:
    case TI_REDUCE:
    case TI_TOTAL: work(w, actor, i); break;
    default: /* costs nothing; a body is gone through once if the loop is in it */
        if (holds_key_loop(w->k, &i->body)) enter(w, r, i, 0, 0);
        break;
    }
}

static void go_on(Walk *w, int actor) {
    Runner *r = &w->run[actor];
    end_wait(w, actor);
    while (r->blocked == GO && !w->over) {
        Frame *f = &r->frame[r->depth - 1];
        const Ins *i = f->at;
        if (i) {
            f->at = i->next;
            execute(w, actor, i);
        } else
            leave(w, actor);
        if (r->blocked != GO && r->blocked != ON_WORK && may_go(w, actor)) end_wait(w, actor);
    }
}

/* ---- time */

static void over(Walk *w, int actor, Queue *q) {
    Runner *r = &w->run[actor];
    Job *j = q->first;
    q->first = j->next;
    if (!q->first) q->last = NULL;
    w->event[j->event].to = w->now;
    if (q != &r->work) {
        r->cause = j->event;
        r->since = w->now;
    }
    if (j->bar < 0) return;
    Mbar *m = mbar(w, actor, j->bar, j->stage);
    m->bytes -= ag_tile_bytes(&w->k->val[w->event[j->event].ins->dst]);
    complete(w, m, w->k->barrier[j->bar].count, j->event);
}

/* The jobs that engines serve: of each actor the work at hand, its first mma and its first copy. */
static int served(const Walk *w, Job **jobs) {
    int n = 0;
    for (int a = 0; a < w->t->nactor; a++) {
        const Queue *q[] = {&w->run[a].work, &w->run[a].mma, &w->run[a].copy};
        for (int i = 0; i < LEN(q); i++)
            if ((jobs[n] = served_now(q[i])) != NULL) n++;
    }
    return n;
}

static double next_landing(const Walk *w) {
    double at = HUGE_VAL;
    for (int a = 0; a < w->t->nactor; a++)
        if (w->run[a].copy.first) at = fmin(at, w->run[a].copy.first->lands);
    return at;
}

/* Does the engine serve this job now?  Who took turns in issuing mma is served in that order; everybody else at once. */
static bool is_active(Job *const *jobs, int n, int j, Engine e) {
    if (jobs[j]->left[e] <= 0) return false;
    for (int o = 0; e == ENGINE_TENSOR && jobs[j]->in_turn && o < n; o++)
        if (jobs[o]->in_turn && jobs[o]->left[e] > 0 && jobs[o]->event < jobs[j]->event) return false;
    return true;
}

/* Each engine works for dt, in equal parts for its users. */
static void serve(Walk *w, Job **jobs, int n, bool (*active)[ENGINE_COUNT], const int *users, double dt) {
    for (int j = 0; j < n; j++) {
        for (int e = 0; e < ENGINE_COUNT; e++) {
            if (active[j][e]) jobs[j]->left[e] -= dt / users[e];
            if (jobs[j]->left[e] < TINY) jobs[j]->left[e] = 0;
        }
        if (is_served(jobs[j])) jobs[j]->lands = w->now + (w->event[jobs[j]->event].track == TRACK_COPY ? w->t->rates->latency : 0);
    }
}

static void land(Walk *w) {
    for (int a = 0; a < w->t->nactor; a++) {
        Queue *q[] = {&w->run[a].work, &w->run[a].mma, &w->run[a].copy};
        for (int i = 0; i < LEN(q); i++)
            while (q[i]->first && q[i]->first->lands <= w->now + TINY) over(w, a, q[i]);
    }
}

/* Lets time pass until an engine is done with something, or a copy lands. */
static void pass_time(Walk *w, Job **jobs, bool (*active)[ENGINE_COUNT]) {
    int n = served(w, jobs), users[ENGINE_COUNT] = {0};
    double dt = next_landing(w) - w->now;
    for (int j = 0; j < n; j++)
        for (int e = 0; e < ENGINE_COUNT; e++) users[e] += active[j][e] = is_active(jobs, n, j, (Engine)e);
    for (int j = 0; j < n; j++)
        for (int e = 0; e < ENGINE_COUNT; e++)
            if (active[j][e]) dt = fmin(dt, jobs[j]->left[e] * users[e]);
    if (dt == HUGE_VAL) give_up(w, "the roles wait for each other");
    w->now += dt;
    serve(w, jobs, n, active, users, dt);
    land(w);
}

static void walk(Walk *w) {
    size_t most = 3 * (size_t)w->t->nactor + 1;
    Job **jobs = NEWN(w->arena, Job *, most);
    bool(*active)[ENGINE_COUNT] = ag_alloc_n(w->arena, most, sizeof *active);
    for (bool moved = true; !w->over;) {
        if (!moved) pass_time(w, jobs, active);
        moved = false;
        for (int a = 0; a < w->t->nactor && !w->over; a++)
            if (may_go(w, a)) {
                go_on(w, a);
                moved = true;
            }
        if (w->run[w->t->first].blocked == DONE) give_up(w, "the loop over the keys has too few steps");
    }
}

/* ---- setting up */

static void make_actors(Timeline *t) {
    const Kernel *k = t->k;
    int cap = 0;
    t->first = -1;
    for (int b = 0; b < k->per_sm; b++)
        for (int r = 0; r < k->nrole; r++) {
            const Role *role = &k->role[r];
            int groups = role->one_thread || role->warps % 4 ? 1 : role->warps / 4;
            for (int g = 0; g < groups; g++) {
                if (t->first < 0 && !role->one_thread) t->first = t->nactor;
                PUSH(t->arena, t->actor, t->nactor, cap) = (Actor){.role = role, .block = b, .group = g, .warps = role->warps / groups, .like = -1};
            }
        }
    assert(t->first >= 0);
}

static void set_up(Walk *w) {
    const Kernel *k = w->k;
    w->run = NEWN(w->arena, Runner, (size_t)w->t->nactor);
    w->block = NEWN(w->arena, SmBlock, (size_t)k->per_sm);
    w->copies = NEWN(w->arena, int, (size_t)k->nval + 1);
    w->value = NEWN(w->arena, Scalar, (size_t)k->nodes.len + 1);
    w->stamped = NEWN(w->arena, int, (size_t)k->nodes.len + 1);
    for (int v = 0; v < k->nval; v++) w->copies[v] = -1;
    for (int a = 0; a < w->t->nactor; a++) {
        Runner *r = &w->run[a];
        r->frame[0] = (Frame){.at = w->t->actor[a].role->body.first};
        r->depth = 1;
        r->step = r->cause = -1;
        r->scalar = NEWN(w->arena, Scalar, (size_t)k->nval + 1);
    }
    for (int b = 0; b < k->per_sm; b++) w->block[b].slot = NEWN(w->arena, int64_t, (size_t)(k->nval + 1) * MAX_STAGES);
    for (int b = 0; b < k->per_sm; b++)
        for (int i = 0; i < k->nbarrier; i++)
            for (int s = 0; s < MAX_STAGES; s++) w->block[b].mbar[i][s] = (Mbar){.missing = k->barrier[i].count, .cause = -1};
}

/* ---- the whole */

static void sum_work(Walk *w) {
    Timeline *t = w->t;
    const int from = WARM, to = WARM + MEAN;
    for (int i = 0; i < w->nevent; i++) {
        const Event *e = &w->event[i];
        if (e->kind != EVENT_WORK || e->step < from || e->step >= to) continue;
        const double *clk = cost(w, e->actor, e->ins);
        for (int x = 0; x < ENGINE_COUNT; x++) t->work[x] += clk[x] / MEAN;
        t->async_mma |= e->ins->op == TI_MMA && e->ins->async;
    }
    t->step = to;
    t->from = w->begun[to];
    t->to = w->begun[to + 1];
    t->clk = (w->begun[to] - w->begun[from]) / MEAN;
}

static void model(Walk *w) {
    make_actors(w->t);
    set_up(w);
    walk(w);
    sum_work(w);
    ag_timeline_view(w->t, w->event, w->nevent);
}

/* false: memory is out. */
static bool guarded(Walk *w) {
    switch (setjmp(w->jump)) {
    case 0: model(w); return true;
    case AG_JUMP_STOP: return true;
    default: return false;
    }
}

Timeline *ag_timeline(const Kernel *k) {
    Timeline *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    *t = (Timeline){.arena = ag_arena_new(), .k = k, .rates = ag_rates(k->target)};
    Walk *w = calloc(1, sizeof *w);
    bool ok = w && t->arena;
    if (ok) {
        *w = (Walk){.t = t, .k = k, .arena = t->arena};
        ag_arena_on_oom(t->arena, &w->jump);
        ok = guarded(w);
        ag_arena_on_oom(t->arena, NULL);
    }
    free(w);
    if (ok) return t;
    ag_timeline_free(t);
    return NULL;
}

void ag_timeline_free(Timeline *t) {
    if (!t) return;
    ag_arena_free(t->arena);
    free(t);
}

Engine ag_timeline_bound(const Timeline *t) {
    Engine most = ENGINE_TENSOR;
    for (int e = 0; e < ENGINE_COUNT; e++)
        if (t->work[e] > t->work[most]) most = (Engine)e;
    return most;
}
