/* show.c: `attngen show --timeline` as text: the model of one step, the shared-memory map and the registers; and the words that the picture shares with it. */
#include <math.h>

#include "timeline.h"

static const char *val_name(const Timeline *t, int v) { return t->k->val[v].name.s; }

/* ---- words */

void ag_show_actor(Buf *out, const Timeline *t, int actor) {
    const Actor *a = &t->actor[actor];
    int groups = 0, last = a->group;
    for (int i = 0; i < t->nactor; i++) {
        const Actor *o = &t->actor[i];
        if (o->role != a->role || o->block != a->block) continue;
        groups++;
        if (o->like == actor) last = o->group;
    }
    ag_put(out, "%s", a->role->name);
    if (groups > 1 && last - a->group + 1 < groups) ag_put(out, last > a->group ? " %d-%d" : " %d", a->group, last);
    if (a->block > 0) ag_put(out, ", block %d", a->block);
}

void ag_show_track(Buf *out, const Timeline *t, const Track *track) {
    static const char *const what[] = {[TRACK_PROGRAM] = "CUDA cores", [TRACK_TENSOR] = "tensor cores", [TRACK_COPY] = "copies"};
    ag_show_actor(out, t, track->actor);
    ag_put(out, " %s", track->kind == TRACK_PROGRAM && t->actor[track->actor].role->one_thread ? "thread" : what[track->kind]);
}

static void put_stage(Buf *out, const Timeline *t, int v, int stage) {
    ag_put(out, "%s", val_name(t, v));
    if (t->k->val[v].stages > 1) ag_put(out, "[%d]", stage);
}

static void put_bar(Buf *out, const Timeline *t, int bar, int stage) {
    ag_put(out, "%s", t->k->barrier[bar].name);
    if (t->k->barrier[bar].stages > 1) ag_put(out, "[%d]", stage);
}

static void put_mma(Buf *out, const Timeline *t, const Event *e) {
    const Ins *i = e->ins;
    ag_put(out, "%s %s %s ", val_name(t, i->dst), i->zero ? "=" : "+=", val_name(t, i->a));
    put_stage(out, t, i->b, e->stage);
    if (i->trans) ag_put(out, "^T");
}

static void put_map(Buf *out, const Timeline *t, const Event *e) {
    const Val *v = &t->k->val[e->ins->dst];
    bool narrow = v->space == SPACE_FRAG && v->type != DT_F32;
    ag_put(out, "%s%s", e->exp ? "exp " : narrow ? "pack " : "", v->name.s);
}

void ag_show_label(Buf *out, const Timeline *t, const Event *e) {
    const Ins *i = e->ins;
    switch (i->op) {
    case TI_MMA: put_mma(out, t, e); break;
    case TI_MAP: put_map(out, t, e); break;
    case TI_REDUCE: ag_put(out, "%s %s", ag_op[i->reduce].name, val_name(t, i->dst)); break;
    case TI_COPY:
        put_stage(out, t, i->dst, e->stage);
        ag_put(out, " tile %d", e->tile);
        break;
    case TI_WAIT_BAR:
    case TI_EXPECT:
    case TI_ARRIVE: put_bar(out, t, i->n, e->stage); break;
    default: ag_put(out, "%s", ag_tile_op_name[i->op]);
    }
}

void ag_show_event(Buf *out, const Timeline *t, const Event *e) {
    const Ins *i = e->ins;
    switch (i->op) {
    case TI_MMA:
        ag_put(out, "mma ");
        put_mma(out, t, e);
        break;
    case TI_COPY:
        ag_put(out, "copy ");
        put_stage(out, t, i->dst, e->stage);
        ag_put(out, " <- tile %d of %s", e->tile, t->k->tensor[i->a].name);
        break;
    case TI_WAIT_BAR:
    case TI_EXPECT:
    case TI_ARRIVE:
        ag_put(out, "%s ", ag_tile_op_name[i->op]);
        put_bar(out, t, i->n, e->stage);
        if (i->op == TI_WAIT_BAR) ag_put(out, " parity %d", e->parity);
        break;
    default: ag_tile_dump_ins(out, t->k, i);
    }
}

static long clk(const Timeline *t, double at) { return lround(at - t->from); }

/* "since 940: arrive K_empty[1] by math" */
void ag_show_cause(Buf *out, const Timeline *t, const Event *e) {
    if (e->kind != EVENT_WAIT || e->to == HUGE_VAL || (e->ins->op == TI_WAIT_BAR && e->since == 0)) return;
    if (e->cause < 0) {
        if (e->ins->op == TI_SYNC) ag_put(out, "all are there");
        if (e->ins->op == TI_TAKE_TURN && e->to > e->from) ag_put(out, "until the turn is passed on");
        return;
    }
    const Event *c = &t->event[e->cause];
    ag_put(out, "%s %ld: ", e->to > e->from ? "until" : "since", clk(t, e->since));
    ag_show_event(out, t, c);
    if (c->actor == e->actor) return;
    ag_put(out, " by ");
    ag_show_actor(out, t, t->actor[c->actor].like >= 0 ? t->actor[c->actor].like : c->actor);
}

/* ---- the head */

const char *const ag_show_note[2] = {
    "A model, not a measurement: clocks follow from the instructions and nominal rates. Steps have no mask, bodies of `any` do not run,",
    "synchronisation costs nothing, and who needs an engine at the same time shares it evenly, but for products in turns. All begin together."};

void ag_show_title(Buf *out, const Kernel *k) {
    Str name = k->sched->name.n ? k->sched->name : STR("a schedule without a name");
    ag_put(out, "%s for %s under %.*s: %d queries by %d keys a step, D %d, Dv %d, %s", k->name.s, k->target->name, STRF(name),
           (int)k->sched->f[F_TILE_M].v, (int)k->sched->f[F_TILE_N].v, k->spec->D, k->spec->Dv, ag_dtype_name[k->spec->dtype]);
}

static void put_head(Buf *out, const Timeline *t) {
    ag_show_title(out, t->k);
    ag_put(out, "\n\n%s\n%s\n", ag_show_note[0], ag_show_note[1]);
}

static void put_engines(Buf *out, const Timeline *t) {
    Engine most = ag_timeline_bound(t);
    ag_put(out, "\n%-16s %22s %11s %6s\n", "one SM", "in a clock", "clk a step", "busy");
    for (int e = 0; e < ENGINE_COUNT; e++) {
        double rate = e == ENGINE_TENSOR && !t->async_mma ? t->rates->mma_sync : t->rates->per_clk[e];
        ag_put(out, "%-16s %11.0f %-10s %11.0f %5.0f%%\n", ag_engine[e].name, rate, ag_engine[e].unit, t->work[e], 100 * t->work[e] / t->clk);
    }
    ag_put(out, "copies arrive %.0f clk after they were served\n", t->rates->latency);
    if (t->k->per_sm > 1) ag_put(out, "%d blocks share the SM; a step is one of each\n", t->k->per_sm);
    ag_put(out, "\nstep: %.0f clk, at best %.0f (%s)\n", t->clk, t->work[most], ag_engine[most].name);
    if (t->nidle == 0) return;
    ag_put(out, "tensor cores idle beside");
    for (int i = 0; i < t->nidle; i++) {
        ag_put(out, "%s ", i ? "," : "");
        if (t->idle[i].event->kind == EVENT_WAIT) ag_put(out, "wait ");
        ag_show_label(out, t, t->idle[i].event);
        ag_put(out, " %.0f", t->idle[i].clk);
    }
    ag_put(out, "\n");
}

/* ---- the chart */

enum { COLUMNS = 100, NAME = 22 };

static int column(const Timeline *t, double at) {
    double c = (at - t->from) / (t->to - t->from) * COLUMNS;
    return c <= 0 ? 0 : c >= COLUMNS ? COLUMNS : (int)(c + 0.5);
}

static void put_bar_text(char *line, int from, int to, const char *label) {
    if (to - from < 3) {
        for (int c = from; c < to; c++) line[c] = '#';
        return;
    }
    line[from] = '[', line[to - 1] = ']';
    for (int c = from + 1; c < to - 1; c++) line[c] = *label ? *label++ : ' ';
}

static void draw(const Timeline *t, const Event *e, char *line) {
    int from = column(t, e->from), to = column(t, e->to);
    if (to == from && e->kind == EVENT_WORK && from < COLUMNS) to++;
    Buf label = {0};
    ag_show_label(&label, t, e);
    const char *word = label.s ? label.s : "";
    if (e->kind == EVENT_WAIT)
        for (int c = from; c < to; c++) line[c] = c > from && to - from > (int)label.n + 3 && *word ? *word++ : '~';
    else
        put_bar_text(line, from, to, word);
    ag_buf_free(&label);
}

static void put_line(Buf *out, const char *name, char *line) {
    int n = COLUMNS;
    while (n > 0 && line[n - 1] == ' ') n--;
    if (n > 0) ag_put(out, "%-*s %.*s\n", NAME, name, n, line);
}

static void put_track(Buf *out, const Timeline *t, const Track *track) {
    Buf name = {0};
    ag_show_track(&name, t, track);
    for (int row = 0; row < track->rows; row++) {
        char line[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) line[c] = ' ';
        for (int i = 0; i < t->nevent; i++) {
            const Event *e = &t->event[i];
            if (e->actor == track->actor && e->track == track->kind && e->row == row && e->kind != EVENT_POINT) draw(t, e, line);
        }
        put_line(out, row || !name.s ? "" : name.s, line);
    }
    ag_buf_free(&name);
}

static void put_axis(Buf *out, const Timeline *t) {
    enum { MARK = 20 };
    ag_put(out, "\n%-*s ", NAME, "clk");
    for (int c = 0; c + MARK < COLUMNS; c += MARK) ag_put(out, "%-*.0f", MARK, (t->to - t->from) * c / COLUMNS);
    ag_put(out, "%*.0f\n", MARK, t->to - t->from);
}

static void put_spans(Buf *out, const Timeline *t) {
    static const char mark[] = {[USE_FILL] = '+', [USE_HELD] = '=', [USE_READ] = 'R'};
    for (int i = 0; i < t->nspan;) {
        const StageSpan *s = &t->span[i];
        char line[COLUMNS];
        Buf name = {0};
        for (int c = 0; c < COLUMNS; c++) line[c] = '.';
        for (; i < t->nspan && t->span[i].val == s->val && t->span[i].stage == s->stage; i++)
            for (int c = column(t, t->span[i].from); c < column(t, t->span[i].to); c++) line[c] = mark[t->span[i].use];
        ag_put(&name, "%s[%d]", val_name(t, s->val), s->stage);
        put_line(out, name.s ? name.s : "", line);
        ag_buf_free(&name);
    }
}

static void put_chart(Buf *out, const Timeline *t) {
    ag_put(out, "\ntimeline of step %d: ~ waits\n", t->step);
    put_axis(out, t);
    for (int i = 0; i < t->ntrack; i++) put_track(out, t, &t->track[i]);
    ag_put(out, "stages: + is filled, = holds a tile, R is read, . is free\n");
    put_spans(out, t);
}

/* ---- what happens when */

static void put_time(Buf *out, const Timeline *t, const Event *e) {
    ag_put(out, "  %6ld", clk(t, e->from));
    if (e->to == e->from)
        ag_put(out, "%10s  ", "");
    else if (e->to == HUGE_VAL)
        ag_put(out, " to   ...  ");
    else
        ag_put(out, " to %6ld  ", clk(t, e->to));
}

static void put_events(Buf *out, const Timeline *t, int actor) {
    int alike = 1;
    for (int a = 0; a < t->nactor; a++) alike += t->actor[a].like == actor;
    ag_put(out, "\n");
    ag_show_actor(out, t, actor);
    if (alike > 1) ag_put(out, ", %d at the same times", alike);
    ag_put(out, "\n");
    for (int i = 0; i < t->nevent; i++) {
        const Event *e = &t->event[i];
        Buf what = {0}, cause = {0};
        if (e->actor != actor) continue;
        put_time(out, t, e);
        ag_show_event(&what, t, e);
        ag_show_cause(&cause, t, e);
        ag_put(out, "%-*s", cause.n ? 44 : 0, what.s ? what.s : "");
        ag_put(out, cause.n ? " ; %s\n" : "\n", cause.s);
        ag_buf_free(&what);
        ag_buf_free(&cause);
    }
}

/* ---- shared memory */

static int tensor_in(const Block *b, int v) {
    int tensor = -1;
    for (const Ins *i = b->first; i && tensor < 0; i = i->next)
        tensor = i->op == TI_COPY && i->dst == v ? i->a : i->op == TI_STORE && i->b == v ? i->n : tensor_in(&i->body, v);
    return tensor;
}

void ag_show_value(Buf *out, const Kernel *k, int v) {
    const Val *x = &k->val[v];
    int tensor = -1;
    for (int r = 0; r < k->nrole && tensor < 0; r++) tensor = tensor_in(&k->role[r].body, v);
    ag_put(out, "%s: %s", x->name.s, x->stages > 1 ? "tiles" : "tile");
    if (tensor >= 0) ag_put(out, " of %s", k->tensor[tensor].name);
    ag_put(out, ", %d x %d %s", x->rows, x->cols, ag_dtype_name[x->type]);
    for (int o = 0, n = 0; x->over >= 0 && o < k->nval; o++) {
        const Val *y = &k->val[o];
        bool meet =
            y->space == SPACE_SHARED && o != v && y->offset < x->offset + x->bytes * x->stages && x->offset < y->offset + y->bytes * y->stages;
        if (meet) ag_put(out, "%s %s", n++ ? "," : ", after the last use of", y->name.s);
    }
}

static void put_shared(Buf *out, const Kernel *k) {
    Budget b = ag_place_budget(k);
    ag_put(out, "\nshared memory: %d of %d bytes a block%s\n  offset    bytes  stages\n", k->shared_bytes, b.shared,
           k->per_sm > 1 ? " at this grid.ctas_per_sm" : "");
    for (int v = 0; v < k->nval; v++) {
        const Val *x = &k->val[v];
        if (x->space != SPACE_SHARED) continue;
        for (int s = 0; s < x->stages; s++) {
            ag_put(out, "%8d %8d  ", x->offset + s * x->bytes, x->bytes);
            if (x->stages > 1)
                ag_put(out, "%d of %d  ", s, x->stages);
            else
                ag_put(out, "%8s", "");
            ag_show_value(out, k, v);
            ag_put(out, "\n");
        }
    }
    for (int v = 0; v < k->nval; v++)
        if (k->val[v].space == SPACE_SLOT)
            ag_put(out, "%8d %8d  %-6d  %s: what one role tells another\n", k->val[v].offset, 4 * k->val[v].stages, k->val[v].stages,
                   k->val[v].name.s);
    for (int i = 0; i < k->nbarrier; i++) {
        const Barrier *m = &k->barrier[i];
        if (m->kind != BARRIER_MBAR) continue;
        ag_put(out, "%8d %8d  %-6d  %s: %s of %d arrival%s\n", m->offset, 8 * m->stages, m->stages, m->name,
               m->stages == 1 ? "mbarrier" : "mbarriers", m->count, m->count == 1 ? "" : "s");
    }
}

/* ---- registers */

static void put_registers(Buf *out, const Kernel *k) {
    Budget b = ag_place_budget(k);
    int sum = 0;
    ag_put(out, "\nregisters, 32 bits per thread\n%-8s %5s %8s %8s %8s %8s %8s %9s\n", "role", "warps", "scores", "output", "operand", "held",
           "limit", "of the SM");
    for (int r = 0; r < k->nrole; r++) {
        const Role *role = &k->role[r];
        Held h = role->one_thread ? (Held){0} : b.held;
        int limit = role->regs > 0 ? role->regs : b.registers, all = 32 * role->warps * limit * k->per_sm;
        ag_put(out, "%-8s %5d %8d %8d %8d %8d %8d %9d\n", role->name, role->warps, h.scores, h.output, h.operand, h.scores + h.output + h.operand,
               limit, all);
        sum += all;
    }
    ag_put(out, "limits are %s; %d of %d on an SM%s\n", k->role[0].regs > 0 ? "set by setmaxnreg" : "what the launch bounds leave", sum,
           k->target->regs_sm, k->per_sm > 1 ? ", for all its blocks" : "");
}

/* ---- the whole */

void ag_show_text(Buf *out, const Timeline *t) {
    put_head(out, t);
    if (t->trouble)
        ag_put(out, "\nno steady state was found: %s\n", t->trouble);
    else {
        put_engines(out, t);
        put_chart(out, t);
        for (int a = 0; a < t->nactor; a++)
            if (t->actor[a].like < 0) put_events(out, t, a);
    }
    put_shared(out, t->k);
    put_registers(out, t->k);
}

bool ag_show(Buf *out, const Kernel *k, bool svg) {
    Timeline *t = ag_timeline(k);
    if (!t) return false;
    (svg ? ag_show_svg : ag_show_text)(out, t);
    ag_timeline_free(t);
    return !out->oom;
}
