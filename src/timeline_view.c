/* timeline_view.c: of all events of the walk those of the step that is shown: tracks and their rows, stages, what the tensor cores wait for. */
#include <math.h>
#include <stdlib.h>

#include "timeline.h"

static const double TINY = 1e-6; /* clocks that are none */

/* ---- events */

static bool same(double a, double b) { return fabs(a - b) < 0.5; }

/* Do two actors do the same at the same times in the step? */
static bool alike(const Timeline *t, int a, int b) {
    int i = 0, j = 0;
    if (t->actor[a].role != t->actor[b].role) return false;
    for (;; i++, j++) {
        while (i < t->nevent && t->event[i].actor != a) i++;
        while (j < t->nevent && t->event[j].actor != b) j++;
        if (i == t->nevent || j == t->nevent) return i == t->nevent && j == t->nevent;
        const Event *x = &t->event[i], *y = &t->event[j];
        if (x->ins != y->ins || !same(x->from, y->from) || !same(fmin(x->to, t->to), fmin(y->to, t->to))) return false;
    }
}

static void find_alike(Timeline *t) {
    for (int a = 1; a < t->nactor; a++)
        for (int b = 0; b < a && t->actor[a].like < 0; b++)
            if (t->actor[b].like < 0 && alike(t, a, b)) t->actor[a].like = b;
}

/* Keeps the events that reach into the step; causes move along, and one that is not kept is appended for its name's sake. */
static void keep_events(Timeline *t, Event *all, int nall) {
    int *moved = NEWN(t->arena, int, (size_t)nall + 1), cap = 0, n;
    for (int i = 0; i < nall; i++) {
        moved[i] = -1;
        Event *e = &all[i];
        bool point = e->from == e->to, inside = point ? e->from >= t->from && e->from < t->to : e->from < t->to && e->to > t->from;
        if (!inside) continue;
        moved[i] = t->nevent;
        e->exp = e->ins->op == TI_MAP && ag_has_exp(t->k, t->arena, e->ins->e[0]);
        PUSH(t->arena, t->event, t->nevent, cap) = *e;
    }
    n = t->nevent;
    for (int i = 0; i < n; i++) {
        int c = t->event[i].cause;
        if (c >= 0 && moved[c] < 0) { /* before the step */
            moved[c] = t->nevent;
            PUSH(t->arena, t->event, t->nevent, cap) = all[c];
        }
        t->event[i].cause = c < 0 ? -1 : moved[c];
    }
    t->nevent = n; /* those behind are there for `cause` alone */
}

/* Rows of a track: each bar goes into the first that is free. */
static void place_rows(Timeline *t, Track *track) {
    enum { ROWS = 8 };
    double busy[ROWS];
    for (int r = 0; r < ROWS; r++) busy[r] = -HUGE_VAL;
    for (int i = 0; i < t->nevent; i++) {
        Event *e = &t->event[i];
        int r = 0;
        if (e->actor != track->actor || e->track != track->kind || e->kind == EVENT_POINT) continue;
        while (r < ROWS - 1 && busy[r] > e->from + 1e-3) r++;
        busy[r] = e->to;
        e->row = r;
        if (r >= track->rows) track->rows = r + 1;
    }
}

static void make_tracks(Timeline *t) {
    int cap = 0;
    for (int n = 0; n < 2 * t->nactor; n++) { /* what loads comes first */
        int a = n % t->nactor;
        if (t->actor[a].role->one_thread != (n < t->nactor) || t->actor[a].like >= 0) continue;
        for (int kind = 0; kind < TRACK_KINDS; kind++) {
            Track track = {.actor = a, .kind = (TrackKind)kind};
            place_rows(t, &track);
            if (track.rows > 0) PUSH(t->arena, t->track, t->ntrack, cap) = track;
        }
    }
}

/* ---- stages: filled by a copy, held until it is released, and read meanwhile */

static void add_span(Timeline *t, int *cap, StageSpan s) {
    s.from = fmax(s.from, t->from);
    s.to = fmin(s.to, t->to);
    if (s.from < s.to) PUSH(t->arena, t->span, t->nspan, *cap) = s;
}

static bool fills(const Event *e, const Event *like) {
    return e->track == TRACK_COPY && e->actor == like->actor && e->ins->dst == like->ins->dst && e->stage == like->stage;
}

static void add_spans(Timeline *t, const Event *all, int nall, int at, int *cap) {
    const Event *c = &all[at];
    double end = HUGE_VAL, landed = c->to;
    for (int i = at + 1; i < nall; i++)
        if (fills(&all[i], c)) {
            end = all[i].ins->bar >= 0 ? all[i].since : all[i].from;
            break;
        }
    StageSpan s = {.val = c->ins->dst, .stage = c->stage, .tile = c->tile, .use = USE_FILL, .from = c->from, .to = landed};
    add_span(t, cap, s);
    s.use = USE_HELD, s.from = landed, s.to = end;
    add_span(t, cap, s);
    s.use = USE_READ;
    for (int i = at + 1; i < nall; i++) {
        const Event *e = &all[i];
        if (e->track != TRACK_TENSOR || e->ins->b != s.val || e->stage != s.stage || t->actor[e->actor].block != 0 || e->from >= end) continue;
        s.from = fmax(e->from, landed), s.to = e->to;
        add_span(t, cap, s);
    }
}

static int span_order(const void *x, const void *y) {
    const StageSpan *a = x, *b = y;
    if (a->val != b->val) return a->val - b->val;
    if (a->stage != b->stage) return a->stage - b->stage;
    if (a->use != b->use) return (int)a->use - (int)b->use; /* what is read is drawn over what is held */
    return (a->from > b->from) - (a->from < b->from);
}

static void make_spans(Timeline *t, const Event *all, int nall) {
    int cap = 0;
    bool *in_loop = NEWN(t->arena, bool, (size_t)t->k->nval + 1); /* values that the loop fills */
    for (int i = 0; i < nall; i++)
        if (all[i].track == TRACK_COPY && all[i].step >= 0) in_loop[all[i].ins->dst] = true;
    for (int i = 0; i < nall; i++) {
        const Event *e = &all[i];
        const Actor *a = &t->actor[e->actor];
        if (e->track == TRACK_COPY && a->block == 0 && a->group == 0 && in_loop[e->ins->dst]) add_spans(t, all, nall, i, &cap);
    }
    if (t->nspan > 0) qsort(t->span, (size_t)t->nspan, sizeof *t->span, span_order);
}

/* ---- what the first actor does while no actor's mma runs */

static int idle_order(const void *x, const void *y) {
    const Idle *a = x, *b = y;
    return (a->clk < b->clk) - (a->clk > b->clk);
}

/* Clocks of [from, to) in which the tensor cores have nothing to do. */
static double idle_within(const Timeline *t, double from, double to) {
    double idle = 0, at = from;
    while (at < to) {
        double end = at, next = to; /* of what runs at `at`; the next begin */
        for (int i = 0; i < t->nevent; i++) {
            const Event *e = &t->event[i];
            if (e->track != TRACK_TENSOR) continue;
            if (e->from <= at + TINY && e->to > end) end = e->to;
            if (e->from > at && e->from < next) next = e->from;
        }
        if (end <= at + TINY) idle += next - at, end = next;
        at = end;
    }
    return idle;
}

static void make_idle(Timeline *t) {
    int cap = 0;
    for (int i = 0; i < t->nevent; i++) {
        const Event *e = &t->event[i];
        if (e->actor != t->first || e->track != TRACK_PROGRAM || e->kind == EVENT_POINT) continue;
        double clk = idle_within(t, fmax(e->from, t->from), fmin(e->to, t->to));
        if (clk >= t->clk / 200) PUSH(t->arena, t->idle, t->nidle, cap) = (Idle){e, clk};
    }
    if (t->nidle > 0) qsort(t->idle, (size_t)t->nidle, sizeof *t->idle, idle_order);
}

/* ---- the whole */

void ag_timeline_view(Timeline *t, Event *all, int nall) {
    make_spans(t, all, nall);
    keep_events(t, all, nall);
    find_alike(t);
    make_tracks(t);
    make_idle(t);
}
