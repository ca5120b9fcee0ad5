/* timeline_cost.c: what an instruction of the Tile IR asks of the engines of an SM.  Nominal rates and counts of operations: a model, not a measurement. */
#include "timeline.h"

const EngineInfo ag_engine[ENGINE_COUNT] = {[ENGINE_TENSOR] = {"tensor cores", "FLOP"},
                                            [ENGINE_EXP] = {"exp unit", "results"},
                                            [ENGINE_FP32] = {"fp32 lanes", "operations"},
                                            [ENGINE_SHARED] = {"shared memory", "bytes"},
                                            [ENGINE_COPY] = {"copies from L2", "bytes"}};

/* Dense FLOP of 16-bit products with fp32 accumulators; results of ex2, lg2, rcp and the like; fp32 instructions; bytes of shared memory; bytes of L2 for one
 * of all SMs.  mma.sync has five eighths of the tensor cores on Hopper, as published microbenchmarks say; the rest is wgmma's alone. */
static const Rates rates[] = {
    /* sm  tensor  exp fp32 shared L2   mma.sync latency */
    {80, {2048, 16, 64, 128, 48}, 2048, 600},
    {86, {1024, 16, 128, 128, 24}, 1024, 600},
    {89, {1024, 16, 128, 128, 32}, 1024, 600},
    {90, {4096, 16, 128, 128, 40}, 2560, 700},
};

const Rates *ag_rates(const Target *t) {
    int i = LEN(rates) - 1;
    while (i > 0 && rates[i].sm > t->sm) i--;
    return &rates[i];
}

/* ---- expressions */

/* Instructions of an operation on the fp32 lanes and on the exp unit; what is not here takes one and none. */
static const struct {
    Op op;
    int fp32, exp;
} op_cost[] = {
    {OP_NEG, 0, 0},   {OP_ABS, 0, 0},   {OP_NOT, 0, 0},     {OP_EXP, 1, 1},      {OP_EXP2, 0, 1},     {OP_LOG, 1, 1},  {OP_LOG2, 0, 1},
    {OP_TANH, 4, 2},  {OP_TANHA, 0, 1}, {OP_SIGMOID, 3, 2}, {OP_SIGMOID2, 2, 2}, {OP_SOFTPLUS, 5, 2}, {OP_SQRT, 2, 1}, {OP_RSQRT, 0, 1},
    {OP_DIV, 1, 1},   {OP_POW, 10, 2},  {OP_SIN, 20, 0},    {OP_COS, 20, 0},     {OP_FLOORDIV, 8, 1}, {OP_MOD, 8, 1},  {OP_CEILDIV, 8, 1},
    {OP_CLAMP, 2, 0}, {OP_FLOOR, 2, 0}, {OP_TOFLOAT, 2, 0}, {OP_FINITE, 2, 0},   {OP_SEEN, 2, 0},
};
enum { LANES = 4 /* that hold each row, in a quad */, LANE_BYTES = 4 };

typedef enum Vary { VARY_NOT, VARY_ROW, VARY_ELEMENT, VARY_COUNT } Vary;
/* Instructions of an expression by what they vary with.  What is the same everywhere is computed once for many steps, and is not used. */
typedef struct Count {
    double fp32[VARY_COUNT], exp[VARY_COUNT];
} Count;

static Vary vary_of_leaf(const Kernel *k, const Node *n) {
    if (n->op == OP_AXIS) return n->index == AX_Q ? VARY_ROW : n->index == AX_K ? VARY_ELEMENT : VARY_NOT;
    if (n->op != OP_VAL || k->val[n->index].space == SPACE_SCALAR) return VARY_NOT;
    return k->val[n->index].space == SPACE_FRAG ? VARY_ELEMENT : VARY_ROW;
}

/* A product goes into the sum that reads it, in one instruction. */
static bool is_fused(const Nodes *p, const Node *n, Ref arg) {
    return (n->op == OP_ADD || n->op == OP_SUB) && n->type == T_FLOAT && p->n[arg].op == OP_MUL;
}

static void add(Count *to, Op op, Vary v) {
    int i = 0;
    while (i < LEN(op_cost) && op_cost[i].op != op) i++;
    to->fp32[v] += i < LEN(op_cost) ? op_cost[i].fp32 : 1;
    to->exp[v] += i < LEN(op_cost) ? op_cost[i].exp : 0;
}

static Count count(const Kernel *k, Arena *a, Ref r) {
    const Nodes *p = &k->nodes;
    bool *wanted = NEWN(a, bool, (size_t)r + 1), *fused = NEWN(a, bool, (size_t)r + 1);
    uint8_t *vary = NEWN(a, uint8_t, (size_t)r + 1);
    Count c = {{0}, {0}};
    wanted[r] = r > 0;
    for (Ref x = r; x > 0; x--) /* operands have smaller indices */
        for (int i = 0; wanted[x] && i < ag_op[p->n[x].op].arity; i++) {
            wanted[p->n[x].arg[i]] = true;
            fused[p->n[x].arg[i]] |= is_fused(p, &p->n[x], p->n[x].arg[i]);
        }
    for (Ref x = 1; x <= r; x++) {
        const Node *n = &p->n[x];
        if (!wanted[x]) continue;
        vary[x] = (uint8_t)vary_of_leaf(k, n);
        for (int i = 0; i < ag_op[n->op].arity; i++)
            if (vary[n->arg[i]] > vary[x]) vary[x] = vary[n->arg[i]];
        if (ag_op[n->op].arity > 0 && !fused[x]) add(&c, n->op, (Vary)vary[x]);
    }
    return c;
}

bool ag_has_exp(const Kernel *k, Arena *a, Ref r) { return count(k, a, r).exp[VARY_ELEMENT] > 0; }

/* ---- instructions */
typedef struct Cost {
    double use[ENGINE_COUNT]; /* in the engines' units */
} Cost;

static void quad_sum(Cost *c, double rows) { /* two shuffles, and what combines */
    c->use[ENGINE_SHARED] += 2 * rows * LANES * LANE_BYTES;
    c->use[ENGINE_FP32] += 2 * rows * LANES;
}

static void cost_expr(Cost *c, const Count *n, double rows, double cols) {
    c->use[ENGINE_FP32] += n->fp32[VARY_ELEMENT] * rows * cols + n->fp32[VARY_ROW] * rows * LANES;
    c->use[ENGINE_EXP] += n->exp[VARY_ELEMENT] * rows * cols + n->exp[VARY_ROW] * rows * LANES;
}

double ag_tile_bytes(const Val *v) { return (double)v->rows * (v->panels ? ag_panel_cols(v->cols) : v->cols) * ag_dtype_bytes(v->type); }

/* The b operand is read once by a warpgroup, or by each warp if mma is synchronous. */
static void cost_mma(Cost *c, const Kernel *k, const Ins *i, double share, int warps) {
    const Val *d = &k->val[i->dst], *a = &k->val[i->a], *b = &k->val[i->b];
    c->use[ENGINE_TENSOR] = 2.0 * d->rows * d->cols * a->cols * share;
    c->use[ENGINE_SHARED] = ag_tile_bytes(b) * (i->async ? 1 : warps) + (a->space == SPACE_SHARED ? ag_tile_bytes(a) * share : 0);
}

static void cost_map(Cost *c, const Kernel *k, const Ins *i, const Count *n, double share) {
    const Val *d = &k->val[i->dst];
    bool frag = d->space == SPACE_FRAG;
    cost_expr(c, n, d->rows * share, frag ? d->cols : LANES);
    if (frag && d->type != DT_F32) c->use[ENGINE_FP32] += (double)d->rows * share * d->cols; /* to 16 bits */
}

static void cost_stage(Cost *c, const Kernel *k, const Ins *i, double share) {
    const Val *a = &k->val[i->a];
    c->use[ENGINE_FP32] = (double)a->rows * share * a->cols; /* to 16 bits */
    c->use[ENGINE_SHARED] = (double)a->rows * share * a->cols * ag_dtype_bytes(k->val[i->dst].type);
}

static void cost_reduce(Cost *c, const Kernel *k, const Ins *i, double share) {
    const Val *a = &k->val[i->a];
    c->use[ENGINE_FP32] = (double)a->rows * share * a->cols;
    if (!k->val[i->dst].partial) quad_sum(c, a->rows * share);
}

void ag_cost(const Kernel *k, Arena *arena, const Rates *r, const Ins *i, int warps, int role_warps, double clk[ENGINE_COUNT]) {
    Cost c = {{0}};
    double share = (double)warps / role_warps;
    Count n = i->op == TI_MAP || i->op == TI_ANY ? count(k, arena, i->e[0]) : (Count){{0}, {0}};
    switch (i->op) {
    case TI_COPY: c.use[ENGINE_COPY] = ag_tile_bytes(&k->val[i->dst]) * share; break;
    case TI_LOAD: c.use[ENGINE_SHARED] = ag_tile_bytes(&k->val[i->a]) * share; break;
    case TI_STAGE: cost_stage(&c, k, i, share); break;
    case TI_MMA: cost_mma(&c, k, i, share, warps); break;
    case TI_MAP: cost_map(&c, k, i, &n, share); break;
    case TI_REDUCE: cost_reduce(&c, k, i, share); break;
    case TI_TOTAL: quad_sum(&c, k->val[i->a].rows * share); break;
    case TI_ANY: cost_expr(&c, &n, (double)k->sched->f[F_TILE_M].v * share, 0); break; /* the condition alone */
    default: break;                                                                    /* what issues, counts and waits takes no time of its own */
    }
    for (int e = 0; e < ENGINE_COUNT; e++) clk[e] = c.use[e] / r->per_clk[e];
    if (i->op == TI_MMA && !i->async) clk[ENGINE_TENSOR] = c.use[ENGINE_TENSOR] / r->mma_sync;
}
