/* show_svg.c: `attngen show --timeline --svg`: the same as show.c, as one picture without scripts or other files.  Full texts are tooltips. */
#include <math.h>
#include <stdio.h>

#include "timeline.h"

enum {
    WIDTH = 1400,
    LEFT = 170, /* of the drawings */
    DRAWN = 1200,
    ROW = 20,
    GAP = 4,
    LETTER = 7, /* width of one, roughly */
    TICKS = 8
};

/* Fill colours; text on them is black. */
typedef enum Colour { C_TENSOR, C_EXP, C_FP32, C_COPY, C_WAIT, C_HELD, C_FREE, C_COUNT } Colour;
static const struct {
    const char *fill, *legend;
} colour[C_COUNT] = {[C_TENSOR] = {"#8fd19e", "tensor cores, or a stage that they read"},
                     [C_EXP] = {"#f6b26b", "exponentials"},
                     [C_FP32] = {"#ffe599", "other work of the CUDA cores"},
                     [C_COPY] = {"#9fc5e8", "copies, or a stage that is filled"},
                     [C_WAIT] = {"#e6e6e6", "waits"},
                     [C_HELD] = {"#cfd8dc", "a stage that holds a tile"},
                     [C_FREE] = {"#ffffff", "a free stage"}};

typedef struct Picture {
    const Timeline *t;
    const Kernel *k;
    Buf *out;
    int y;     /* of what comes next */
    int chart; /* of the first track */
} Picture;

/* ---- elements */

static void put_escaped(Buf *out, const char *s, int limit) {
    for (int n = 0; *s && n < limit; s++, n++) {
        if (*s == '<' || *s == '>' || *s == '&')
            ag_put(out, *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : "&amp;");
        else
            ag_putn(out, s, 1);
    }
}

static void text(const Picture *p, int x, int y, const char *style, const char *s) {
    ag_put(p->out, "<text x=\"%d\" y=\"%d\"%s%s>", x, y, *style ? " " : "", style);
    put_escaped(p->out, s, WIDTH);
    ag_put(p->out, "</text>\n");
}

static void line(const Picture *p, int x0, int y0, int x1, int y1, const char *style) {
    ag_put(p->out, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" %s/>\n", x0, y0, x1, y1, style);
}

/* A bar with as much of its label as fits, and a tooltip. */
static void bar(const Picture *p, int from, int to, int y, Colour c, const char *label, const char *tip) {
    int width = to > from ? to - from : 1, letters = (width - 6) / LETTER;
    ag_put(p->out, "<g><title>");
    put_escaped(p->out, tip, WIDTH);
    ag_put(p->out, "</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" stroke=\"#666\" stroke-width=\"0.5\"/>", from, y, width,
           ROW - GAP, colour[c].fill);
    if (letters >= 2) {
        ag_put(p->out, "<text x=\"%d\" y=\"%d\">", from + 3, y + ROW - GAP - 4);
        put_escaped(p->out, label, letters);
        ag_put(p->out, "</text>");
    }
    ag_put(p->out, "</g>\n");
}

static void heading(Picture *p, const char *s) {
    p->y += ROW;
    text(p, 10, p->y, "font-weight=\"bold\"", s);
    p->y += GAP + 4;
}

static int part(double x, double of) {
    double f = of > 0 ? x / of : 0;
    return (int)lround(DRAWN * (f < 0 ? 0 : f > 1 ? 1 : f));
}

static const char *str(const Buf *b) { return b->s ? b->s : ""; }

/* ---- engines */

static void engines(Picture *p) {
    static const Colour of[ENGINE_COUNT] = {C_TENSOR, C_EXP, C_FP32, C_HELD, C_COPY};
    const Timeline *t = p->t;
    Buf head = {0};
    Engine most = ag_timeline_bound(t);
    ag_put(&head, "work of one step on one SM: %.0f clk, at best %.0f (%s)", t->clk, t->work[most], ag_engine[most].name);
    heading(p, str(&head));
    ag_buf_free(&head);
    for (int e = 0; e < ENGINE_COUNT; e++, p->y += ROW) {
        Buf label = {0}, tip = {0};
        double rate = e == ENGINE_TENSOR && !t->async_mma ? t->rates->mma_sync : t->rates->per_clk[e];
        ag_put(&label, "%.0f clk, %.0f%%", t->work[e], 100 * t->work[e] / t->clk);
        ag_put(&tip, "%s: %.0f %s in a clock", ag_engine[e].name, rate, ag_engine[e].unit);
        text(p, 10, p->y + ROW - GAP - 4, "", ag_engine[e].name);
        bar(p, LEFT, LEFT + part(t->work[e], t->clk), p->y, of[e], str(&label), str(&tip));
        ag_buf_free(&label);
        ag_buf_free(&tip);
    }
}

/* ---- the chart */

static int x_of(const Timeline *t, double at) { return LEFT + part(at - t->from, t->to - t->from); }

static Colour colour_of(const Event *e) {
    if (e->kind == EVENT_WAIT) return C_WAIT;
    return e->track == TRACK_TENSOR ? C_TENSOR : e->track == TRACK_COPY ? C_COPY : e->exp ? C_EXP : C_FP32;
}

static void event(const Picture *p, const Event *e, int y) {
    Buf label = {0}, tip = {0}, cause = {0};
    const Timeline *t = p->t;
    ag_show_label(&label, t, e);
    ag_show_cause(&cause, t, e);
    ag_put(&tip, "%ld to ", lround(e->from - t->from));
    if (e->to == HUGE_VAL)
        ag_put(&tip, "later: ");
    else
        ag_put(&tip, "%ld: ", lround(e->to - t->from));
    ag_show_event(&tip, t, e);
    if (cause.n) ag_put(&tip, "; %s", cause.s);
    bar(p, x_of(t, e->from), x_of(t, e->to), y, colour_of(e), str(&label), str(&tip));
    ag_buf_free(&label);
    ag_buf_free(&tip);
    ag_buf_free(&cause);
}

static void draw_track(Picture *p, const Track *track) {
    const Timeline *t = p->t;
    Buf name = {0};
    ag_show_track(&name, t, track);
    text(p, 10, p->y + ROW - GAP - 4, "", str(&name));
    ag_buf_free(&name);
    for (int i = 0; i < t->nevent; i++) {
        const Event *e = &t->event[i];
        if (e->actor == track->actor && e->track == track->kind && e->kind != EVENT_POINT && e->to > e->from) event(p, e, p->y + e->row * ROW);
    }
    p->y += track->rows * ROW;
}

/* The middle of the row that an event stands in; -1: it is not shown. */
static int y_of(const Picture *p, const Event *e) {
    const Timeline *t = p->t;
    int actor = t->actor[e->actor].like >= 0 ? t->actor[e->actor].like : e->actor;
    int y = p->chart;
    for (int n = 0; n < t->ntrack; y += t->track[n++].rows * ROW)
        if (t->track[n].actor == actor && t->track[n].kind == e->track) return y + e->row * ROW + (ROW - GAP) / 2;
    return -1;
}

/* From what ended a wait to its end; dashed where it had come before. */
static void edge(const Picture *p, const Event *e) {
    const Timeline *t = p->t;
    if (e->kind != EVENT_WAIT || e->cause < 0 || e->to == HUGE_VAL) return;
    const Event *c = &t->event[e->cause];
    int y0 = y_of(p, c), y1 = y_of(p, e);
    if (y0 < 0 || y1 < 0 || y0 == y1 || e->since < t->from) return;
    line(p, x_of(t, e->since), y0, x_of(t, e->to), y1,
         e->to > e->from ? "stroke=\"#c00\" stroke-width=\"1.2\" marker-end=\"url(#arrow)\""
                         : "stroke=\"#c00\" stroke-width=\"0.8\" stroke-dasharray=\"4 3\" marker-end=\"url(#arrow)\"");
}

static void axis(const Picture *p, int top) {
    for (int i = 0; i <= TICKS; i++) {
        char number[32];
        int x = LEFT + DRAWN * i / TICKS;
        snprintf(number, sizeof number, "%.0f", (p->t->to - p->t->from) * i / TICKS);
        line(p, x, top, x, p->y, "stroke=\"#ddd\"");
        text(p, x, top - 2, "text-anchor=\"middle\" fill=\"#555\"", number);
    }
}

static void stages(Picture *p) {
    static const Colour of[] = {[USE_FILL] = C_COPY, [USE_HELD] = C_HELD, [USE_READ] = C_TENSOR};
    const Timeline *t = p->t;
    for (int i = 0; i < t->nspan; p->y += ROW) {
        const StageSpan *s = &t->span[i];
        Buf name = {0};
        ag_put(&name, "%s[%d]", p->k->val[s->val].name.s, s->stage);
        text(p, 10, p->y + ROW - GAP - 4, "", str(&name));
        bar(p, LEFT, LEFT + DRAWN, p->y, C_FREE, "", "free");
        for (; i < t->nspan && t->span[i].val == s->val && t->span[i].stage == s->stage; i++) {
            const StageSpan *x = &t->span[i];
            char label[32];
            snprintf(label, sizeof label, "tile %d", x->tile);
            bar(p, x_of(t, x->from), x_of(t, x->to), p->y, of[x->use], label, label);
        }
        ag_buf_free(&name);
    }
}

static void legend(Picture *p) {
    int x = LEFT;
    for (int c = 0; c < C_COUNT; c++) {
        ag_put(p->out, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\" stroke=\"#666\" stroke-width=\"0.5\"/>\n", x, p->y,
               colour[c].fill);
        text(p, x + 16, p->y + 10, "", colour[c].legend);
        for (const char *s = colour[c].legend; *s; s++) x += LETTER;
        x += 24;
    }
    p->y += ROW;
}

static void chart(Picture *p) {
    const Timeline *t = p->t;
    char title[64];
    snprintf(title, sizeof title, "step %d, in clk; arrows: what ends a wait", t->step);
    heading(p, title);
    p->y += ROW / 2;
    p->chart = p->y;
    Buf bars = {0}, *out = p->out; /* the grid lies below them, and its height is not known before */
    p->out = &bars;
    for (int n = 0; n < t->ntrack; n++) draw_track(p, &t->track[n]);
    for (int i = 0; i < t->nevent; i++)
        if (t->actor[t->event[i].actor].like < 0) edge(p, &t->event[i]);
    p->y += GAP;
    stages(p);
    p->out = out;
    axis(p, p->chart);
    ag_putn(out, str(&bars), bars.n);
    out->oom |= bars.oom;
    ag_buf_free(&bars);
    legend(p);
}

/* ---- shared memory */

static void tile(const Picture *p, int v, int limit, int y) {
    const Val *x = &p->k->val[v];
    for (int s = 0; s < x->stages; s++) {
        Buf label = {0}, tip = {0};
        int from = x->offset + s * x->bytes;
        ag_put(&label, "%s", x->name.s);
        if (x->stages > 1) ag_put(&label, "[%d]", s);
        ag_show_value(&tip, p->k, v);
        ag_put(&tip, "; %d bytes at %d", x->bytes, from);
        bar(p, LEFT + part(from, limit), LEFT + part(from + x->bytes, limit), y, C_COPY, str(&label), str(&tip));
        ag_buf_free(&label);
        ag_buf_free(&tip);
    }
}

static void shared(Picture *p) {
    const Kernel *k = p->k;
    Buf head = {0};
    int limit = ag_place_budget(k).shared;
    bool over = false;
    ag_put(&head, "shared memory: %d of %d bytes a block", k->shared_bytes, limit);
    heading(p, str(&head));
    ag_buf_free(&head);
    bar(p, LEFT, LEFT + DRAWN, p->y, C_FREE, "", "free");
    for (int v = 0; v < k->nval; v++) {
        if (k->val[v].space != SPACE_SHARED) continue;
        over |= k->val[v].over >= 0;
        tile(p, v, limit, p->y + (k->val[v].over >= 0 ? ROW : 0));
    }
    text(p, 10, p->y + ROW - GAP - 4, "", "in the loop");
    if (over) text(p, 10, p->y + 2 * ROW - GAP - 4, "", "after it");
    p->y += over ? 2 * ROW : ROW;
}

/* ---- registers */

static void registers(Picture *p) {
    const Kernel *k = p->k;
    Budget b = ag_place_budget(k);
    heading(p, "registers of a thread, and its limit");
    for (int r = 0; r < k->nrole; r++, p->y += ROW) {
        const Role *role = &k->role[r];
        int limit = role->regs > 0 ? role->regs : b.registers, at = 0;
        const struct {
            const char *name;
            int n;
            Colour c;
        } held[] = {{"scores", b.held.scores, C_EXP}, {"output", b.held.output, C_TENSOR}, {"operand", b.held.operand, C_FP32}};
        char label[64];
        text(p, 10, p->y + ROW - GAP - 4, "", role->name);
        snprintf(label, sizeof label, "%d", limit);
        bar(p, LEFT, LEFT + part(limit, k->target->regs_thread), p->y, C_FREE, "", "limit");
        text(p, LEFT + part(limit, k->target->regs_thread) + 4, p->y + ROW - GAP - 4, "", label);
        for (int i = 0; !role->one_thread && i < LEN(held); at += held[i++].n) {
            snprintf(label, sizeof label, "%s %d", held[i].name, held[i].n);
            if (held[i].n > 0)
                bar(p, LEFT + part(at, k->target->regs_thread), LEFT + part(at + held[i].n, k->target->regs_thread), p->y, held[i].c, label, label);
        }
    }
}

/* ---- the whole */

static void draw(Picture *p) {
    Buf head = {0};
    ag_show_title(&head, p->k);
    p->y = ROW;
    text(p, 10, p->y, "font-size=\"14\" font-weight=\"bold\"", str(&head));
    ag_buf_free(&head);
    for (int i = 0; i < LEN(ag_show_note); i++) text(p, 10, p->y += ROW, "fill=\"#555\"", ag_show_note[i]);
    if (p->t->trouble)
        heading(p, p->t->trouble);
    else {
        engines(p);
        chart(p);
    }
    shared(p);
    registers(p);
}

void ag_show_svg(Buf *out, const Timeline *t) {
    Buf body = {0};
    Picture p = {.t = t, .k = t->k, .out = &body};
    draw(&p);
    ag_put(out,
           "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n"
           "<defs><marker id=\"arrow\" markerWidth=\"8\" markerHeight=\"8\" refX=\"6\" refY=\"3\" orient=\"auto\"><path d=\"M0,0 L6,3 L0,6 z\" "
           "fill=\"#c00\"/></marker></defs>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
           WIDTH, p.y + ROW, WIDTH, p.y + ROW);
    ag_putn(out, str(&body), body.n);
    ag_put(out, "</svg>\n");
    out->oom |= body.oom;
    ag_buf_free(&body);
}
