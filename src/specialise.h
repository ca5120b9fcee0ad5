/* specialise.h: inside the pipeline of the wgmma path.  specialise.c has the key loops of the computing role, specialise_exact.c speculation, specialise_tiles.c
 * what surrounds a tile: the walk over tiles, outputs, and the loading role. */
#ifndef AG_SPECIALISE_H
#define AG_SPECIALISE_H

#include "compile.h"

/* Tiles that are filled and released together: a stage of each. */
enum { RING_TILES = 4, PRODUCTS = 4 };
typedef struct Ring {
    int val, full, empty; /* the first shared value; barriers */
    Ins *copy;            /* of it; NULL: no tile is there */
    int more[RING_TILES]; /* the others */
    Ins *more_copy[RING_TILES];
    int nmore;
} Ring;

typedef struct Specialise {
    Kernel *k;
    const Schedule *sched;
    Block *body;     /* of math */
    Ring ring[2];    /* [0] of the scores' operands, [1] of the weighted values' */
    Ring element[2]; /* of tiles of elements that the scores read */
    int nelement;
    Ring query; /* its `empty` is used by persistent blocks only */
    bool overlap, speculate, forward, persistent, dynamic, chained;
    int ref;    /* speculate: per row what plain steps take their weights under, -1; Parts.end sets it */
    Ref ref_of; /* and how it follows from the maximum */
    int turns;  /* barrier, -1 */
    int slot;   /* dynamic: per stage of Q the tile that it is of; -1 */
    struct {
        int val, slot;
    } place[3]; /* persistent: scalars of a tile that take divisions, which the loading thread computes and tells */
    int nplace;
    int key_tile,
        key_slot; /* with a tile map: scalar and slot, per stage of K, of the key tile in that stage, as the loading thread has found it; -1: math does not ask */
    Ref tile_k, tile_now; /* load, with a tile map: scalars, the key tile of the last copy of K, and of the running step; 0 */
    Ref j;                /* VAL of the key loop's variable */
    Ref base;             /* VAL of the key tiles before this tile's first, since the block began; 0: none, the block has one tile */
    Ref round;            /* VAL of the number of this tile in its block; 0 likewise */
} Specialise;

/* A step of the synchronous kernel, taken apart. */
typedef struct Parts {
    Ins *scores[PRODUCTS], *output[PRODUCTS]; /* the products before and behind the softmax */
    int nscores, noutput;
    Block softmax, touches; /* between them: what neither output nor P needs; what writes them */
    Block show, end;        /* what makes P in shared memory seen by the second; behind it */
} Parts;

/* ---- specialise.c */
Ref ag_spz_num(Specialise *s, int64_t v);
Ref ag_spz_op(Specialise *s, Op op, Ref a, Ref b);
Ins *ag_spz_put(Specialise *s, Block *b, TileOp op, const char *note);
Ref ag_spz_let(Specialise *s, Block *b, const char *name, Ref e, const char *note); /* a non-negative int */
void ag_spz_set(Specialise *s, Block *b, Ref scalar, Ref e);
Ref ag_spz_step(Specialise *s, Ref j); /* number of key tile j among all that the block visits */
Ref ag_spz_stage(Specialise *s, const Ring *r, Ref step);
Ref ag_spz_phase(Specialise *s, const Ring *r, Ref step);
void ag_spz_wait(Specialise *s, Block *b, int barrier, Ref stage, Ref parity, const char *note);
void ag_spz_release(Specialise *s, Block *b, const Ring *r, Ref step);
void ag_spz_mma_wait(Specialise *s, Block *b, int groups, const char *note);
int ag_spz_slot(Specialise *s, const char *name, FieldId stages);
/* A clone of instruction i of a step; of the load of a tile of elements with the wait for it, and (last) its release. */
void ag_spz_put_clone(Specialise *s, Block *to, const Ins *i, Ref step, bool last);
void ag_spz_put_again(Specialise *s, Block *to, const Ins *load, Ref step); /* the load of a tile of elements that is there */
void ag_spz_release_elements(Specialise *s, Block *to, Ref step);           /* which were not the last */
Ref ag_spz_at_tile(Specialise *s, Ref e, Ref tile);                         /* e with `tile` in place of the step */
void ag_spz_append(Specialise *s, Block *to, const Block *from, Ref tile);  /* clones; j becomes `tile` (0: as it is) */
/* One asynchronous product of the given step, in a group of its own, when its shared tile is there.  what: for the reader of the kernel. */
void ag_spz_scores(Specialise *s, Block *to, const Parts *p, Ref step, Ref round, const char *what);
void ag_spz_weighted(Specialise *s, Block *to, const Parts *p, Ref step, const char *what);
/* Scores of j beside the weighted values of the tile before it: the steps of both. */
typedef struct Pair {
    Ref scores, weighted;
} Pair;
Pair ag_spz_issue_both(Specialise *s, Block *to, const Parts *p);
/* Until the scores are done, and the weighted values run on; until those are done, too. */
void ag_spz_wait_scores(Specialise *s, Block *to);
void ag_spz_wait_weighted(Specialise *s, Block *to, const Parts *p);
/* The steps of all key loops but, with overlap, what belongs to the first tile's scores and the last one's weighted values. */
void ag_spz_first(Specialise *s, Block *to, const Parts *p);
void ag_spz_loops(Specialise *s, Block *to, Ins *first, Ins *last);
void ag_spz_get_key_tile(Specialise *s, Block *to, Ref step); /* of a step whose K is there, before that is released */
bool ag_spz_is_key_loop(const Specialise *s, const Ins *i);
Parts ag_spz_take_apart(Specialise *s, const Block *step);

/* ---- specialise_exact.c */
void ag_spz_find_reference(Specialise *s, const Parts *p); /* sets ref; leaves it at -1 if the softmax has another form */
/* A speculative step; masked: when it has to be exact, as the mask hides keys (0: never). */
void ag_spz_speculative(Specialise *s, Block *to, const Parts *p, Ref masked);

/* ---- specialise_tiles.c */
void ag_spz_find_places(Specialise *s);      /* of the body as tile and split left it */
void ag_spz_math(Specialise *s);             /* rewrites s->body */
void ag_spz_load(Specialise *s, Role *load); /* builds the loading role from s->body as tile left it, so before ag_spz_math */
#endif
