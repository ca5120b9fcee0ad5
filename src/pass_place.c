/* pass_place.c: the shared-memory map, swizzles, the register budget and the argument struct.  Refuses a schedule that cannot be with the formula, the
 * numbers and the nearest legal value, at the line of the schedule that asks for it. */
#include <assert.h>
#include <math.h>

#include "compile.h"

enum {
    ALIGN = 128,
    PANEL_ALIGN = 1024 /* of the 128-byte swizzle's pattern */,
    BLOCK_OVERHEAD = 1024 /* bytes that the machine takes per resident block */
};

static int round_up(int x, int to) { return (x + to - 1) / to * to; }

/* ---- shared memory */

/* Bits of the 16-byte piece index that are xor-ed with row bits.  A row of 8 * odd * 2^b columns: eight rows at one piece index then lie in eight different
 * groups of four banks, so that ldmatrix has no conflicts. */
static int swizzle_bits(int cols) {
    int pieces = cols / 8, bits = 0;
    while (bits < 3 && pieces % 2 == 0) {
        pieces /= 2;
        bits++;
    }
    return bits;
}

static int bytes_of(const Val *v) {
    int e = ag_dtype_bytes(v->type);
    return v->panels ? round_up(v->rows * ag_panel_cols(v->cols) * e, PANEL_ALIGN) : round_up(v->rows * v->cols * e, ALIGN);
}

/* Places every shared value; returns the bytes used. */
static int lay_out(Kernel *k) {
    int top = 0, most = 0;
    for (int i = 0; i < k->nval; i++) {
        Val *v = &k->val[i];
        if (v->space != SPACE_SHARED) continue;
        if (v->panels) top = round_up(top, PANEL_ALIGN);
        v->swizzle = v->panels ? 3 : v->table || v->elements ? 0 : swizzle_bits(v->cols);
        v->bytes = bytes_of(v);
        v->offset = v->over >= 0 ? 0 : top;
        if (v->over < 0) top += v->bytes * v->stages;
        int end = v->offset + v->bytes * v->stages;
        most = end > most ? end : most;
    }
    for (int i = 0; i < k->nbarrier; i++) {
        Barrier *b = &k->barrier[i];
        if (b->kind != BARRIER_MBAR) continue;
        b->offset = most;
        most += 8 * b->stages;
    }
    for (int i = 0; i < k->nval; i++) {
        Val *v = &k->val[i];
        if (v->space != SPACE_SLOT) continue;
        v->offset = most;
        most += 4 * v->stages;
    }
    return most;
}

/* ---- what a schedule needs and what there is, as functions of its fields, so that a legal value can be looked for */

typedef struct Fields {
    int v[F_COUNT];
} Fields;

static Fields fields_of(const Kernel *k) {
    Fields f;
    for (int i = 0; i < F_COUNT; i++) f.v[i] = (int)k->sched->f[i].v;
    return f;
}

/* What fills shared value v: a copy, or what stages the weights; NULL: the staged output. */
static const Ins *filler_in(const Block *b, int v) {
    const Ins *found = NULL;
    for (const Ins *i = b->first; i && !found; i = i->next)
        found = (i->op == TI_COPY || i->op == TI_STAGE) && i->dst == v ? i : filler_in(&i->body, v);
    return found;
}

static bool is_wgmma(const Fields *f) { return f->v[F_MMA_FAMILY] == FAMILY_WGMMA; }

static const Ins *filler(const Kernel *k, int v) {
    const Ins *found = NULL;
    for (int r = 0; r < k->nrole && !found; r++) found = filler_in(&k->role[r].body, v);
    return found;
}

/* mbarriers and slots, of the schedule with fields f. */
static int barrier_bytes(const Kernel *k, const Fields *f) {
    Schedule s = *k->sched;
    for (int i = 0; i < F_COUNT; i++) s.f[i].v = f->v[i];
    return ag_barrier_bytes(&s);
}

static int shared_need(const Kernel *k, const Fields *f) {
    int sum = 0, most = 0;
    for (int i = 0; i < k->nval; i++) {
        Val v = k->val[i];
        if (v.space != SPACE_SHARED) continue;
        const Ins *by = filler(k, i);
        int tensor = by && by->op == TI_COPY ? by->a : -1;
        bool keys = tensor >= 0 && !v.elements && k->tensor[tensor].rows == SZ_SK;
        if (!v.table && !(v.elements && v.rows == 1)) v.rows = f->v[keys ? F_TILE_N : F_TILE_M];
        if ((by && by->op == TI_STAGE) || v.elements) v.cols = f->v[F_TILE_N];
        v.stages = tensor < 0   ? 1
                   : v.elements ? f->v[F_E_STAGES]
                   : !keys      ? f->v[F_Q_STAGES]
                                : f->v[k->tensor[tensor].values ? F_V_STAGES : F_K_STAGES];
        int bytes = bytes_of(&v) * v.stages;
        if (v.over < 0)
            sum += bytes;
        else if (bytes > most)
            most = bytes;
    }
    if (is_wgmma(f)) most = sum += barrier_bytes(k, f);
    return sum > most ? sum : most;
}

static int shared_limit(const Kernel *k, const Fields *f) {
    int share = k->target->shared_sm / f->v[F_PER_SM] - BLOCK_OVERHEAD;
    return share < k->target->shared_max ? share : k->target->shared_max;
}

static Held held(const Kernel *k, const Fields *f) {
    int m = f->v[F_TILE_M], t = 32 * f->v[F_WARPS], d = round_up(k->spec->D, 16), dv = k->kind == KERNEL_ATTEND ? round_up(k->spec->Dv, 16) : 0;
    bool weights = f->v[F_OVERLAP] && f->v[F_P_OPERAND] == WEIGHTS_REGS;
    Tiles n = ag_tiles(k->spec);
    int scores = n.scores * m * f->v[F_TILE_N] / t;
    dv *= n.outputs;
    if (is_wgmma(f)) return (Held){scores, m * dv / t, weights ? n.outputs * m * f->v[F_TILE_N] / 2 / t : 0};
    return (Held){scores, m * dv / t, f->v[F_Q_OPERAND] == 1 ? m * d / 2 / t : 0};
}
static int register_need(const Kernel *k, const Fields *f) {
    Held h = held(k, f);
    return h.scores + h.output + h.operand;
}
static int register_limit(const Kernel *k, const Fields *f) {
    if (is_wgmma(f)) return f->v[F_REGS_MATH];
    int limit = k->target->regs_sm / (32 * f->v[F_WARPS] * f->v[F_PER_SM]) / 8 * 8;
    return limit < k->target->regs_thread ? limit : k->target->regs_thread;
}

static bool fits(const Kernel *k, const Fields *f) {
    bool rows = f->v[F_TILE_M] % (16 * f->v[F_WARPS]) == 0, threads = 32 * f->v[F_WARPS] * f->v[F_PER_SM] <= k->target->threads_sm;
    return rows && threads && shared_need(k, f) <= shared_limit(k, f) && register_need(k, f) <= register_limit(k, f);
}

Budget ag_place_budget(const Kernel *k) {
    Fields f = fields_of(k);
    return (Budget){held(k, &f), register_limit(k, &f), shared_limit(k, &f)};
}

/* ---- refusals */

static Span span_of(const Kernel *k, FieldId f) { return k->sched->f[f].span; }

/* The nearest value of field `id`, towards its end `to`, with which the schedule fits, all else as it is; 0: there is none. */
static int nearest(const Kernel *k, FieldId id, int to) {
    Fields f = fields_of(k);
    int step = to < f.v[id] ? -ag_field[id].step : ag_field[id].step;
    while (f.v[id] != to) {
        f.v[id] += step;
        if (fits(k, &f)) return f.v[id];
    }
    return 0;
}

/* Notes every single field that would help. */
static void suggest(const Kernel *k, Span at) {
    int stages = k->sched->f[F_ACQUIRE].v == 1 ? 2 : 1; /* together needs two of each */
    const struct {
        FieldId id;
        int to;
    } way[] = {{F_K_STAGES, stages}, {F_V_STAGES, stages}, {F_TILE_N, 16}, {F_TILE_M, 16}, {F_WARPS, ag_field[F_WARPS].max}, {F_PER_SM, 1}};
    int ways = k->sched->f[F_MMA_FAMILY].v == FAMILY_WGMMA ? 3 : LEN(way); /* the others follow from the roles there */
    bool any = false;
    for (int i = 0; i < ways; i++) {
        int v = nearest(k, way[i].id, way[i].to);
        if (v) ag_note(k->d, span_of(k, way[i].id), "nearest legal: %s: %d", ag_field[way[i].id].path, v);
        any |= v != 0;
    }
    if (!any) ag_note(k->d, at, "no single field makes it fit: use a smaller tile with fewer stages");
}

/* The field to point at: a number of stages above one, else the tile. */
static FieldId field_to_blame(const Kernel *k) {
    static const FieldId stages[] = {F_K_STAGES, F_V_STAGES};
    for (int i = 0; i < LEN(stages); i++)
        if (k->sched->f[stages[i]].v > 1 && span_of(k, stages[i]).file) return stages[i];
    return span_of(k, F_TILE_N).file ? F_TILE_N : F_TILE_M;
}

static Str shared_sum(const Kernel *k) {
    Str sum = STR("");
    bool staged = false;
    for (int i = 0; i < k->nval; i++) staged |= k->val[i].over >= 0 && k->val[i].bytes == k->shared_bytes;
    for (int i = 0; i < k->nval; i++) {
        const Val *v = &k->val[i];
        if (v->space != SPACE_SHARED || (v->over >= 0) != staged) continue;
        sum = ag_fmt(k->arena, "%s%s%.*s %d x %d x %d x %d", sum.s, sum.n ? " + " : "", STRF(v->name), v->stages, v->rows,
                     v->panels ? ag_panel_cols(v->cols) : v->cols, ag_dtype_bytes(v->type));
    }
    int mbarriers = 0, slots = 0;
    for (int i = 0; i < k->nbarrier; i++) mbarriers += k->barrier[i].kind == BARRIER_MBAR ? k->barrier[i].stages : 0;
    for (int i = 0; i < k->nval; i++) slots += k->val[i].space == SPACE_SLOT ? k->val[i].stages : 0;
    if (mbarriers) sum = ag_fmt(k->arena, "%s + %d mbarriers x 8", sum.s, mbarriers);
    return slots ? ag_fmt(k->arena, "%s + %d slots x 4", sum.s, slots) : sum;
}

static bool check_shared(const Kernel *k, const Fields *f, Span at) {
    int limit = shared_limit(k, f);
    if (k->shared_bytes <= limit) return true;
    ag_unsupported(k->d, at, "the tiles need %d bytes of shared memory, %s has %d per block%s", k->shared_bytes, k->target->name, limit,
                   k->per_sm > 1 ? " at this grid.ctas_per_sm" : "");
    ag_note(k->d, at, "%s = %d (stages x rows x columns x bytes)", shared_sum(k).s, k->shared_bytes);
    return false;
}

static bool check_registers(const Kernel *k, const Fields *f, Span at) {
    int need = register_need(k, f), limit = register_limit(k, f), m = f->v[F_TILE_M], t = 32 * f->v[F_WARPS], n = f->v[F_TILE_N];
    if (need <= limit) return true;
    Held h = held(k, f);
    int d = round_up(k->spec->D, 16), dv = k->kind == KERNEL_ATTEND ? round_up(k->spec->Dv, 16) : 0;
    ag_unsupported(k->d, at, "the fragments need %d registers per thread, at most %d are there", need, limit);
    const char *operand = !h.operand    ? ""
                          : is_wgmma(f) ? ag_fmt(k->arena, ", weights m*n/(2*threads) = %d*%d/%d = %d", m, n, 2 * t, h.operand).s
                                        : ag_fmt(k->arena, ", Q m*D/(2*threads) = %d*%d/%d = %d", m, d, 2 * t, h.operand).s;
    ag_note(k->d, at, "scores m*n/threads = %d*%d/%d = %d, output m*Dv/threads = %d*%d/%d = %d%s", m, n, t, h.scores, m, dv, t, h.output, operand);
    if (is_wgmma(f)) {
        ag_note(k->d, span_of(k, F_REGS_MATH), "roles.consumer.regs is %d; threads are those that compute", limit);
        return false;
    }
    ag_note(k->d, at, "%s has %d per thread, and %d / (threads * blocks per SM) = %d / (%d * %d) = %d, in eights", k->target->name,
            k->target->regs_thread, k->target->regs_sm, k->target->regs_sm, t, k->per_sm, k->target->regs_sm / (t * k->per_sm));
    return false;
}

static void check_limits(const Kernel *k) {
    Fields f = fields_of(k);
    Span shared_at = span_of(k, field_to_blame(k)), registers_at = span_of(k, span_of(k, F_TILE_M).file ? F_TILE_M : F_WARPS);
    bool shared = check_shared(k, &f, shared_at), registers = check_registers(k, &f, registers_at);
    if (!shared || !registers) suggest(k, registers ? shared_at : registers_at);
}

/* ---- arguments */
static void slot(Kernel *k, SlotKind kind, int index, int dim, int bytes) {
    assert(k->nslot < META_SLOTS);
    k->param_bytes = round_up(k->param_bytes, bytes);
    k->slot[k->nslot++] = (Slot){.kind = (uint16_t)kind, .index = (uint16_t)index, .dim = (uint16_t)dim, .offset = (uint16_t)k->param_bytes};
    k->param_bytes += bytes;
}

bool ag_is_scale_log2e(const Nodes *p, Ref r) {
    const Node *n = &p->n[r], *x = &p->n[n->arg[0]], *c = &p->n[n->arg[1]];
    return n->op == OP_MUL && n->type == T_FLOAT && x->op == OP_PARAM && x->index == 0 && c->op == OP_CONST && (float)c->value.u.f == (float)M_LOG2E;
}

/* Which parameters an expression reads, and whether it reads the scale times log2(e).  (The host does that product: ptxas keeps an argument in a uniform register, and what is
 * computed from it seldom; an FFMA of three registers has bank conflicts.) */
static void mark_expr(const Kernel *k, Ref root, bool *used, bool *scale_log2e) {
    /* operands have smaller indices: one sweep down from the root */
    bool *live = NEWN(k->arena, bool, (size_t)root + 1);
    live[root] = true;
    for (Ref r = root; r > 0; r--) {
        if (!live[r]) continue;
        const Node *n = &k->nodes.n[r];
        if (ag_is_scale_log2e(&k->nodes, r)) {
            *scale_log2e = true;
            continue;
        }
        if (n->op == OP_PARAM) used[n->index] = true;
        for (int a = 0; a < 3; a++) live[n->arg[a]] = true;
        for (int a = 0; a < n->nsub; a++) live[n->sub[a]] = true;
    }
}
static void mark_params(const Kernel *k, const Block *b, bool *used, bool *scale_log2e) {
    for (const Ins *i = b->first; i; i = i->next) {
        mark_params(k, &i->body, used, scale_log2e);
        for (int e = 0; e < LEN(i->e); e++) mark_expr(k, i->e[e], used, scale_log2e);
        if (i->op == TI_CLASSIFY) mark_expr(k, k->guard, used, scale_log2e);
    }
}

enum { STORE_ROWS = 64 /* of a warpgroup, which stores its own */, PANEL_COLS = 64 };

/* A tensor map for every tensor that is copied or stored by TMA; it needs neither pointer nor strides then, unless elements of it are read besides. */
static void place_maps(Kernel *k, const Block *b, bool *mapped) {
    for (const Ins *i = b->first; i; i = i->next) {
        place_maps(k, &i->body, mapped);
        bool loads = i->op == TI_COPY && i->bar >= 0, stores = i->op == TI_STORE && i->async;
        int tensor = loads ? i->a : i->n, rows = loads ? k->val[i->dst].rows : STORE_ROWS;
        if ((!loads && !stores) || mapped[tensor]) continue;
        mapped[tensor] = true;
        bool elements = loads && k->val[i->dst].elements;
        uint8_t panels =
            (uint8_t)(loads && !elements ? ag_panels_at_once(k->tensor[tensor].cols) : 0); /* a warpgroup stores rows that do not fill its panels */
        k->param_bytes = round_up(k->param_bytes, 64);
        int pack = !elements && k->tensor[tensor].rows == SZ_SQ ? k->pack : 1, cols = !elements ? 0 : rows > 1 ? PANEL_COLS : k->val[i->dst].cols;
        k->tmap[k->ntmap] =
            (TmapMeta){.tensor = (uint8_t)tensor, .panels = panels, .box_rows = (uint16_t)rows, .box_cols = (uint16_t)cols, .pack = (uint16_t)pack};
        slot(k, SLOT_TMAP, k->ntmap++, 0, 64);
        k->param_bytes += 64;
    }
}

static bool reads_elements_of(const Kernel *k, const Block *b, int tensor) {
    bool found = tensor >= TEN_COUNT && k->guard && ag_expr_uses(k, k->guard, OP_LOAD, tensor);
    for (const Ins *i = b->first; i && !found; i = i->next) {
        for (int e = 0; e < LEN(i->e) && !found; e++) found = i->e[e] && ag_expr_uses(k, i->e[e], OP_LOAD, tensor);
        found = found || reads_elements_of(k, &i->body, tensor);
    }
    return found;
}

void ag_place_arguments(Kernel *k) {
    bool mapped[KERNEL_TENSORS] = {false};
    for (int r = 0; r < k->nrole; r++) place_maps(k, &k->role[r].body, mapped);
    for (int t = TEN_COUNT; t < k->ntensor; t++)
        for (int r = 0; r < k->nrole && mapped[t]; r++) mapped[t] = !reads_elements_of(k, &k->role[r].body, t);
    for (int t = 0; t < k->ntensor; t++)
        if (k->tensor[t].used && !mapped[t]) slot(k, SLOT_POINTER, t, 0, 8);
    for (int t = 0; t < k->ntensor; t++)
        for (int x = 0; k->tensor[t].used && !mapped[t] && !k->tensor[t].flat && x < k->tensor[t].rank; x++) slot(k, SLOT_STRIDE, t, x, 8);
    for (int s = SZ_B; s <= SZ_OFF; s++) slot(k, SLOT_SIZE, s, 0, 4);
    slot(k, SLOT_VEC, 0, 0, 4);
    if (k->counter) slot(k, SLOT_WORKSPACE, 0, 0, 8);
    bool used[HOST_SCALARS] = {false}, scale_log2e = false;
    for (int r = 0; r < k->nrole; r++) mark_params(k, &k->role[r].body, used, &scale_log2e);
    for (int i = 0; i < k->spec->nparam; i++)
        if (used[i]) slot(k, k->spec->param[i].type == T_FLOAT ? SLOT_FLOAT : SLOT_INT, i, 0, 4);
    if (scale_log2e) slot(k, SLOT_LOG2E, 0, 0, 4);
    k->param_bytes = round_up(k->param_bytes, k->ntmap ? 64 : 8);
}

/* Shared-memory map, arguments, limits        needs pipelined   makes placed */
void ag_pass_place(Fn *fn) {
    Kernel *k = fn->kernel;
    k->shared_bytes = lay_out(k);
    check_limits(k);
    ag_place_arguments(k);
}
