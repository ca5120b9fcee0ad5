/* ranges.h: inside the ranges pass.  pass_ranges.c goes through the mask, range_bound.c bounds what has no key, range_solve.c turns bounds of an expression
 * into bounds of the key in it.
 *
 * Everything here is about one tile: queries from AXISMIN q to AXISMAX q of one batch entry, and one head or those of a KV head. */
#ifndef AG_RANGES_H
#define AG_RANGES_H

#include "compile.h"

/* Elements of captured tensors whose bounds over the tile are asked for: number i is between AXISMIN and AXISMAX AX_COUNT + i. */
enum { MAX_BOUNDED = 8 };
typedef struct Bounded {
    Ref load[MAX_BOUNDED];
    int n;
} Bounded;

typedef struct Ranges {
    const Spec *spec;
    Nodes *p;
    int64_t keys;     /* k is below */
    uint8_t tile;     /* axes that are the same for all of a tile */
    int group;        /* query heads of a tile, h = g * group and those that follow; 0: h is the same, or nothing is known of it */
    int budget;       /* nodes still looked into: shared ones are visited once per use */
    Bounded *bounded; /* not NULL: a tile of keys as well, from AXISMIN k to AXISMAX k, for extents and truth */
    Ref assumed;      /* bool node: what the bounds found since it was cleared take for granted; 0: nothing */
} Ranges;

/* Bounds of an int over a tile: nodes that are the same for all of it, and the least and greatest value that these can have at all, within 32 bits. */
typedef struct Extent {
    Ref lo, hi;
    int64_t least, most;
    bool ok;
} Extent;

/* What f is asked to be: at least ge, at most le, or both.  Each is an int of which an extent over the tile is known. */
typedef struct Between {
    bool has_ge, has_le;
    Extent ge, le;
} Between;

/* A condition without a key: does any row of the tile meet it, do all? */
typedef struct Truth {
    Ref may, must;
} Truth;

static inline Ref ag_rg_op(Ranges *g, Op op, Ref a, Ref b) { return ag_fold_node(g->p, (Node){.op = op, .arg = {a, b}}); }
static inline Ref ag_rg_num(Ranges *g, int64_t v) { return ag_node_int(g->p, v); }
static inline Ref ag_rg_select(Ranges *g, Ref c, Ref a, Ref b) { return ag_fold_node(g->p, (Node){.op = OP_SELECT, .arg = {c, a, b}}); }
static inline bool ag_rg_has_key(const Ranges *g, Ref r) { return g->p->n[r].axes & 1 << AX_K; }
static inline bool ag_rg_uniform(const Ranges *g, Ref r) { return !(g->p->n[r].axes & ~g->tile); }

/* ---- range_bound.c */
bool ag_rg_reach(Ranges *g, Ref r, int64_t *least, int64_t *most); /* constants that an int stays within; false: it may leave 32 bits on its way */
Extent ag_rg_extent(Ranges *g, Ref r);                             /* of an int without a key; ok false: not known */
Truth ag_rg_truth(Ranges *g, Ref r);                               /* of a condition without a key */
void ag_rg_assume(Ranges *g, Ref condition);
/* Cut to [least, most], where it is not within it anyway. */
Extent ag_rg_cut(Ranges *g, Extent x, int64_t least, int64_t most);
Extent ag_rg_sum(Ranges *g, Extent a, Extent b); /* a + b */
Extent ag_rg_difference(Ranges *g, Extent a, Extent b);
Extent ag_rg_step(Ranges *g, Extent a, int64_t by); /* a + by */
Extent ag_rg_times(Ranges *g, Extent a, Ref c);     /* a * c, c the same for all of the tile */

/* ---- tile_classify.c: what interval arithmetic says of a tile of queries and one of keys; elements that have to be bounded are added to `bounded` */
Truth ag_tile_truth(const Fn *fn, Nodes *p, Ref mask, Bounded *bounded);

/* ---- range_solve.c: the keys for which f is between the bounds */
KeyRange ag_rg_solve(Ranges *g, Ref f, Between b);

/* ---- pass_ranges.c */
extern const KeyRange ag_rg_everything, ag_rg_unknown, ag_rg_nothing;
KeyRange ag_rg_condition(Ranges *g, Ref r, bool negated);
KeyRange ag_rg_both(Ranges *g, const KeyRange *a, const KeyRange *b);
KeyRange ag_rg_either(Ranges *g, const KeyRange *a, const KeyRange *b);
KeyRange ag_rg_rows(Ranges *g, Truth t); /* every key where the condition on rows holds */
#endif
