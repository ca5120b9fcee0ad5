/* pass_place.c: the shared-memory map, swizzles, the register budget and the argument struct.  Refuses a schedule that cannot be with the formula, the
 * numbers and the nearest legal value, at the line of the schedule that asks for it. */
#include <assert.h>

#include "compile.h"

enum { ALIGN = 128, BLOCK_OVERHEAD = 1024 /* bytes that the machine takes per resident block */ };

static int round_up(int x, int to) { return (x + to - 1) / to * to; }
static int64_t field(const Kernel *k, FieldId f) { return k->sched->f[f].v; }

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

static int shared_bytes(const Val *v) { return round_up(v->rows * v->cols * ag_dtype_bytes(v->type), ALIGN); }

/* Places every shared value; returns the bytes used. */
static int lay_out(Kernel *k) {
    int top = 0, most = 0;
    for (int i = 0; i < k->nval; i++) {
        Val *v = &k->val[i];
        if (v->space != SPACE_SHARED) continue;
        v->swizzle = swizzle_bits(v->cols);
        v->bytes = shared_bytes(v);
        v->offset = v->over >= 0 ? 0 : top;
        if (v->over < 0) top += v->bytes * v->stages;
        int end = v->offset + v->bytes * v->stages;
        most = end > most ? end : most;
    }
    return most;
}

static int limit_of(const Kernel *k) {
    int share = k->target->shared_sm / k->per_sm - BLOCK_OVERHEAD;
    return share < k->target->shared_max ? share : k->target->shared_max;
}

/* Bytes as a function of the tile, to look for a legal one. */
static int bytes_for(const Kernel *k, int m, int n) {
    int sum = 0, most = 0;
    for (int i = 0; i < k->nval; i++) {
        Val v = k->val[i];
        if (v.space != SPACE_SHARED) continue;
        v.rows = v.rows == (int)field(k, F_TILE_M) && (v.over >= 0 || v.stages == 1) && v.name.s[0] != 'K' && v.name.s[0] != 'V' ? m : n;
        if (v.over >= 0)
            most = shared_bytes(&v) > most ? shared_bytes(&v) : most;
        else
            sum += shared_bytes(&v) * v.stages;
    }
    return sum > most ? sum : most;
}

static Span span_of(const Kernel *k, FieldId f) { return k->sched->f[f].span; }

static void check_shared(Kernel *k) {
    int limit = limit_of(k), m = (int)field(k, F_TILE_M), n = (int)field(k, F_TILE_N);
    if (k->shared_bytes <= limit) return;
    FieldId at = span_of(k, F_TILE_N).file ? F_TILE_N : F_TILE_M;
    if (field(k, F_K_STAGES) > 1 && span_of(k, F_K_STAGES).file) at = F_K_STAGES;
    ag_unsupported(k->d, span_of(k, at), "the tiles need %d bytes of shared memory, %s has %d per block%s", k->shared_bytes, k->target->name, limit,
                   k->per_sm > 1 ? " at this grid.ctas_per_sm" : "");
    Buf sum = {0};
    for (int i = 0; i < k->nval; i++) {
        const Val *v = &k->val[i];
        if (v->space == SPACE_SHARED && v->over < 0)
            ag_put(&sum, "%s%.*s %d x %d x %d x %d", sum.n ? " + " : "", STRF(v->name), v->stages, v->rows, v->cols, ag_dtype_bytes(v->type));
    }
    ag_note(k->d, span_of(k, at), "%s = %d (stages x rows x columns x bytes)", sum.oom ? "" : sum.s, k->shared_bytes);
    ag_buf_free(&sum);
    int step = 16 * (int)field(k, F_WARPS), nn = n, mm = m;
    while (nn > 16 && bytes_for(k, m, nn) > limit) nn -= 16;
    while (mm > step && bytes_for(k, mm, n) > limit) mm -= step;
    if (bytes_for(k, m, nn) <= limit)
        ag_note(k->d, span_of(k, F_TILE_N), "nearest legal: tile.n: %d", nn);
    else if (bytes_for(k, mm, n) <= limit)
        ag_note(k->d, span_of(k, F_TILE_M), "nearest legal: tile.m: %d", mm);
    else
        ag_note(k->d, span_of(k, at), "no tile of this head dim fits: use fewer stages or a smaller grid.ctas_per_sm");
}

/* ---- registers: what must be held at once, in 32-bit registers per thread */
static void check_registers(Kernel *k) {
    int m = (int)field(k, F_TILE_M), n = (int)field(k, F_TILE_N), t = k->threads, d = round_up(k->spec->D, 16), dv = round_up(k->spec->Dv, 16);
    int s = m * n / t, o = m * dv / t, q = field(k, F_Q_OPERAND) == 1 ? m * d / 2 / t : 0;
    int limit = k->target->regs_sm / (t * k->per_sm);
    limit = limit / 8 * 8;
    if (limit > k->target->regs_thread) limit = k->target->regs_thread;
    if (s + o + q <= limit) return;
    FieldId at = span_of(k, F_TILE_M).file ? F_TILE_M : F_WARPS;
    ag_unsupported(k->d, span_of(k, at), "the fragments need %d registers per thread, at most %d are there", s + o + q, limit);
    ag_note(k->d, span_of(k, at),
            "scores m*n/threads = %d*%d/%d = %d, output m*Dv/threads = %d*%d/%d = %d%s; limit %d registers / (%d threads * %d blocks)", m, n, t, s, m,
            dv, t, o, q ? ag_fmt(k->arena, ", Q m*D/(2*threads) = %d*%d/%d = %d", m, d, 2 * t, q).s : "", k->target->regs_sm, t, k->per_sm);
    int step = 16 * (int)field(k, F_WARPS), mm = m;
    while (mm > step && mm * (n + dv + (q ? d / 2 : 0)) / t > limit) mm -= step;
    if (mm * (n + dv + (q ? d / 2 : 0)) / t <= limit)
        ag_note(k->d, span_of(k, F_TILE_M), "nearest legal: tile.m: %d", mm);
    else
        ag_note(k->d, span_of(k, F_WARPS), "use more warps, a smaller tile.n or a smaller grid.ctas_per_sm");
}

static void check_threads(Kernel *k) {
    const Target *t = k->target;
    if (k->threads * k->per_sm > t->threads_sm || k->per_sm > t->blocks_sm)
        ag_unsupported(k->d, span_of(k, F_PER_SM), "%d blocks of %d threads do not fit on one SM: %s holds %d threads and %d blocks", k->per_sm,
                       k->threads, t->name, t->threads_sm, t->blocks_sm);
}

/* ---- arguments */
static void slot(Kernel *k, SlotKind kind, int index, int dim, int bytes) {
    assert(k->nslot < META_SLOTS);
    k->param_bytes = round_up(k->param_bytes, bytes);
    k->slot[k->nslot++] = (Slot){.kind = (uint16_t)kind, .index = (uint16_t)index, .dim = (uint16_t)dim, .offset = (uint16_t)k->param_bytes};
    k->param_bytes += bytes;
}

static void mark_params(const Kernel *k, const Block *b, bool *used) {
    for (const Ins *i = b->first; i; i = i->next) {
        mark_params(k, &i->body, used);
        for (int e = 0; e < LEN(i->e); e++) {
            /* operands have smaller indices: one sweep down from the root */
            bool *live = NEWN(k->arena, bool, (size_t)i->e[e] + 1);
            live[i->e[e]] = true;
            for (Ref r = i->e[e]; r > 0; r--) {
                if (!live[r]) continue;
                const Node *n = &k->nodes.n[r];
                if (n->op == OP_PARAM) used[n->index] = true;
                for (int a = 0; a < 3; a++) live[n->arg[a]] = true;
            }
        }
    }
}

static void place_arguments(Kernel *k) {
    for (int t = 0; t < TEN_COUNT; t++)
        if (k->tensor[t].used) slot(k, SLOT_POINTER, t, 0, 8);
    for (int t = 0; t < TEN_COUNT; t++)
        for (int x = 0; k->tensor[t].used && x < k->tensor[t].rank; x++) slot(k, SLOT_STRIDE, t, x, 8);
    for (int s = SZ_B; s <= SZ_OFF; s++) slot(k, SLOT_SIZE, s, 0, 4);
    slot(k, SLOT_VEC, 0, 0, 4);
    bool used[HOST_SCALARS] = {false};
    for (int r = 0; r < k->nrole; r++) mark_params(k, &k->role[r].body, used);
    for (int i = 0; i < k->spec->nparam; i++)
        if (used[i]) slot(k, k->spec->param[i].type == T_FLOAT ? SLOT_FLOAT : SLOT_INT, i, 0, 4);
    k->param_bytes = round_up(k->param_bytes, 8);
}

/* Shared-memory map, arguments, limits        needs pipelined   makes placed */
void ag_pass_place(Fn *fn) {
    Kernel *k = fn->kernel;
    k->shared_bytes = lay_out(k);
    check_shared(k);
    check_registers(k);
    check_threads(k);
    place_arguments(k);
}
