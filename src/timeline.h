/* timeline.h: a model of when the instructions of a kernel run in one step of its key loop, from the placed Tile IR alone.  Nothing is measured.
 *
 *   timeline.c       walks the roles of all blocks of one SM through the loop, with the protocol of barriers and groups that the IR has
 *   timeline_cost.c  what an instruction asks of the engines of an SM, and what these give in a clock
 *   timeline_view.c  the step that is shown, from all events of the walk
 *   show.c           the model, the shared-memory map and the registers as text
 *   show_svg.c       the same as a picture
 *
 * Who needs an engine at the same time shares it evenly, but for products of warpgroups that take turns: they go in that order.  Synchronisation itself costs nothing, and no more than the issue order delays an instruction.
 * All key tiles are visible as a whole, so no step needs the mask, and no body of a TI_ANY runs; but of a union of block lists every
 * warp takes all steps. */
#ifndef AG_TIMELINE_H
#define AG_TIMELINE_H

#include "tile_ir.h"

/* ---- timeline_cost.c */
typedef enum Engine { ENGINE_TENSOR, ENGINE_EXP, ENGINE_FP32, ENGINE_SHARED, ENGINE_COPY, ENGINE_COUNT } Engine;
typedef struct EngineInfo {
    const char *name, *unit; /* unit: of what it does in a clock */
} EngineInfo;
extern const EngineInfo ag_engine[ENGINE_COUNT];

/* Nominal rates of one SM. */
typedef struct Rates {
    int sm; /* Target.sm */
    double per_clk[ENGINE_COUNT];
    double mma_sync; /* of the tensor cores when mma is synchronous */
    double latency;  /* clocks until the first byte of a copy arrives */
} Rates;
const Rates *ag_rates(const Target *t);

/* Clocks for which instruction i, carried out by `warps` warps of a role of `role_warps`, keeps each engine busy if it has it for itself. */
void ag_cost(const Kernel *k, Arena *a, const Rates *r, const Ins *i, int warps, int role_warps, double clk[ENGINE_COUNT]);
double ag_tile_bytes(const Val *v);                /* that a copy of the whole tile moves */
bool ag_has_exp(const Kernel *k, Arena *a, Ref r); /* does the exp unit work for each element of r? */

/* ---- timeline.c */

/* What runs a role by itself: its one thread, or four of its warps (all of them, if they are no multiple of four). */
typedef struct Actor {
    const Role *role;
    int block, group; /* of the blocks on the SM; which four warps of the role */
    int warps;
    int like; /* an actor before it with the same times; -1: none, so it is shown */
} Actor;

typedef enum TrackKind {
    TRACK_PROGRAM, /* the thread, or the warps on the CUDA cores: work and waits */
    TRACK_TENSOR,
    TRACK_COPY,
    TRACK_KINDS
} TrackKind;

typedef enum EventKind { EVENT_WORK, EVENT_WAIT, EVENT_POINT } EventKind; /* POINT: takes no time */
typedef struct Event {
    const Ins *ins;
    int actor;
    TrackKind track;
    EventKind kind;
    double from, to;
    int step;          /* of the actor's key loop, from 0; -1: before it */
    int tile;          /* copies: which one into this value, from 0 */
    int stage, parity; /* values of e[0] and e[1] where the instruction has a stage */
    int cause;         /* waits: the event that ended it, -1 */
    double since;      /* waits: when what it waits for came to be; copies: when the stage was free */
    int row;           /* in its track, where bars overlap */
    bool exp;          /* maps: the exp unit works for each element */
} Event;

/* A stage of a shared tile over the step. */
typedef enum StageUse { USE_FILL, USE_HELD, USE_READ } StageUse;
typedef struct StageSpan {
    int val, stage, tile;
    StageUse use;
    double from, to;
} StageSpan;

typedef struct Track {
    int actor;
    TrackKind kind;
    int rows;
} Track;

/* What runs while the tensor cores do not. */
typedef struct Idle {
    const Event *event;
    double clk;
} Idle;

typedef struct Timeline {
    Arena *arena;
    const Kernel *k;
    const Rates *rates;
    const char *trouble; /* why no steady state was found; then the rest is empty */
    Actor *actor;
    int nactor, first; /* first: the actor whose step is shown */
    Event *event;      /* in order of their start, those that reach into the step */
    int nevent;
    Track *track; /* of the actors that are shown */
    int ntrack;
    StageSpan *span;
    int nspan;
    Idle *idle; /* of the first actor, longest first */
    int nidle;
    int step;                  /* number of the step that is shown */
    double from, to;           /* it */
    double clk;                /* of a step, the mean of many */
    double work[ENGINE_COUNT]; /* clocks that a step of all actors keeps each engine busy */
    bool async_mma;
} Timeline;
Timeline *ag_timeline(const Kernel *k); /* NULL: out of memory */
void ag_timeline_free(Timeline *t);
Engine ag_timeline_bound(const Timeline *t); /* the engine with the most work */

/* ---- timeline_view.c: fills in what is shown of all events; from and to of the step are set */
void ag_timeline_view(Timeline *t, Event *all, int nall);

/* ---- show.c, show_svg.c */
bool ag_show(Buf *out, const Kernel *k, bool svg); /* false: out of memory */
void ag_show_text(Buf *out, const Timeline *t);
void ag_show_svg(Buf *out, const Timeline *t);
extern const char *const ag_show_note[2];                        /* what the model takes for granted */
void ag_show_title(Buf *out, const Kernel *k);                   /* what is shown, in a line */
void ag_show_label(Buf *out, const Timeline *t, const Event *e); /* a few words for a bar */
void ag_show_event(Buf *out, const Timeline *t, const Event *e); /* the instruction with its stage */
void ag_show_cause(Buf *out, const Timeline *t, const Event *e); /* what a wait waits for, "" for other events */
void ag_show_actor(Buf *out, const Timeline *t, int actor);      /* its name, with those that are like it */
void ag_show_track(Buf *out, const Timeline *t, const Track *track);
void ag_show_value(Buf *out, const Kernel *k, int v); /* a shared tile: name, what it holds, shape */
#endif
