/* emit_sm90.c: what only the wgmma path has: roles, mbarriers, TMA copies, asynchronous products. */
#include <assert.h>

#include "emit.h"

static const char *name(const Emit *e, int v) { return e->k->val[v].name.s; }

/* Address of a stage of an array of mbarriers. */
static const char *bar(const Emit *e, int n, Ref stage) {
    const Barrier *b = &e->k->barrier[n];
    if (b->stages == 1) return b->name;
    return ag_fmt(e->k->arena, "%s + %s * 8", b->name, ag_emit_atom(e, stage)).s;
}

/* In a debug-hang build the wait also gets what it says if it is in vain. */
static void emit_wait_bar(Emit *e, const Ins *i) {
    const Barrier *b = &e->k->barrier[i->n];
    const char *at = bar(e, i->n, i->e[0]), *parity = ag_emit_text(e, i->e[1]), *stage = b->stages == 1 ? "0" : ag_emit_text(e, i->e[0]);
    if (e->k->bounded)
        ag_emit_line(e, "mbar_wait_bounded(%s, %s, \"%.*s\", \"%s\", \"%s\", %s);", at, parity, STRF(e->k->name), e->role, b->name, stage);
    else
        ag_emit_line(e, "mbar_wait(%s, %s);", at, parity);
}

void ag_emit_barrier(Emit *e, const Ins *i) {
    switch (i->op) {
    case TI_SYNC: ag_emit_line(e, "warpgroup_sync();"); break;
    case TI_EXPECT: ag_emit_line(e, "mbar_expect(%s, %s);", bar(e, i->n, i->e[0]), ag_emit_text(e, i->e[1])); break;
    case TI_WAIT_BAR: emit_wait_bar(e, i); break;
    default: ag_emit_line(e, "mbar_release(%s);", bar(e, i->n, i->e[0]));
    }
}

void ag_emit_tma(Emit *e, const Ins *i) {
    const Val *v = &e->k->val[i->dst];
    const KernelTensor *t = &e->k->tensor[i->a];
    const char *packed = t->rows == SZ_SQ && e->k->pack > 1 ? "_packed" : "";
    const char *load = ag_panels_at_once(t->cols) ? ag_fmt(e->k->arena, "tma_panels%s", packed).s
                                                  : ag_fmt(e->k->arena, "tma_tile%s<%d, %d>", packed, v->rows, t->cols).s;
    ag_emit_line(e, "%s(%s, args.%s_map, %s, %s, %s, %s);", load, ag_emit_stage(e, i->dst, i->e[0]), t->name, bar(e, i->bar, i->e[0]),
                 ag_emit_text(e, i->e[1]), ag_emit_text(e, i->e[4]), ag_emit_text(e, i->e[3]));
}

/* ---- asynchronous products: registers in flight are pinned where their group is waited for, so that no use of theirs moves above */
static void in_flight(Emit *e, int v) {
    if (e->flight.ngroup == 0) e->flight.ngroup = 1;
    int *n = &e->flight.group[e->flight.ngroup - 1].n;
    assert(*n < LEN(e->flight.group[0].value));
    e->flight.group[e->flight.ngroup - 1].value[(*n)++] = v;
}

/* Descriptor of step i of the left operand's rows of this warpgroup. */
static const char *left_operand(const Emit *e, const Ins *i) {
    return ag_fmt(e->k->arena, "desc_k_major(%s + warpgroup_row * 128) + step_k_major(i, %d)", ag_emit_stage(e, i->a, i->e[1]), e->k->val[i->a].rows)
        .s;
}

static void emit_product(Emit *e, const Ins *i) {
    const Val *d = &e->k->val[i->dst], *a = &e->k->val[i->a], *b = &e->k->val[i->b];
    ag_emit_declare(e, i->dst);
    ag_emit_line(e, "wgmma_fence();");
    if (i->trans) {
        e->wgmma[WGMMA_SS] = d->cols;
        ag_emit_line(e, "UNROLL for (int i = 0; i < %d; i++)", a->cols / 16);
        ag_emit_line(e, "    wgmma_ss(%s, %s, desc_k_major(%s) + step_k_major(i, %d), i > 0);", d->name.s, left_operand(e, i),
                     ag_emit_stage(e, i->b, i->e[0]), b->rows);
    } else if (a->space == SPACE_SHARED) {
        e->wgmma[WGMMA_ST] = d->cols;
        ag_emit_line(e, "UNROLL for (int i = 0; i < %d; i++)", b->rows / 16);
        ag_emit_line(e, "    wgmma_st(%s, %s, desc_mn_major(%s, %d) + step_mn_major(i), 1);", d->name.s, left_operand(e, i),
                     ag_emit_stage(e, i->b, i->e[0]), b->rows * 128);
    } else {
        e->wgmma[WGMMA_RS] = d->cols;
        ag_emit_line(e, "UNROLL for (int i = 0; i < %d; i++) wgmma_rs(%s, %s[0][i], desc_mn_major(%s, %d) + step_mn_major(i), 1);", b->rows / 16,
                     d->name.s, a->name.s, ag_emit_stage(e, i->b, i->e[0]), b->rows * 128);
        in_flight(e, i->a);
    }
    in_flight(e, i->dst);
}

static void emit_wait(Emit *e, int n) {
    ag_emit_line(e, "wgmma_wait<%d>();", n);
    int done = e->flight.ngroup - 1 - n; /* the last is the open one */
    for (int g = 0; g < done; g++)
        for (int v = 0; v < e->flight.group[g].n; v++) ag_emit_line(e, "pin(%s);", name(e, e->flight.group[g].value[v]));
    for (int g = 0; done > 0 && g + done < e->flight.ngroup; g++) e->flight.group[g] = e->flight.group[g + done];
    if (done > 0) e->flight.ngroup -= done;
}

void ag_emit_async_mma(Emit *e, const Ins *i) {
    switch (i->op) {
    case TI_MMA: emit_product(e, i); break;
    case TI_MMA_COMMIT:
        ag_emit_line(e, "wgmma_commit();");
        assert(e->flight.ngroup > 0 && e->flight.ngroup < LEN(e->flight.group));
        e->flight.group[e->flight.ngroup++].n = 0;
        break;
    default: emit_wait(e, i->n);
    }
}

void ag_emit_stage_panels(Emit *e, const Ins *i) {
    const Val *v = &e->k->val[i->dst];
    ag_emit_line(e, "stage_panels<%s, %d, 0, %d>(%s, row_of_warp(), %s);", e->elem, v->rows, v->cols / 8, ag_emit_stage(e, i->dst, i->e[0]),
                 name(e, i->a));
}

void ag_emit_store_panels(Emit *e, const Ins *i) {
    const KernelTensor *t = &e->k->tensor[i->n];
    const Val *v = &e->k->val[i->b];
    const char *row = ag_emit_atom(e, i->e[0]), *n = t->name, *rows = ag_emit_text(e, i->e[1]);
    for (int col = 0; col < t->cols; col += v->cols) {
        int cols = t->cols - col < v->cols ? t->cols - col : v->cols;
        const char *from = col ? ag_fmt(e->k->arena, " + %d * args.%s_d", col, n).s : "";
        if (col) ag_emit_line(e, "__syncwarp();");
        ag_emit_line(e, "stage_panels<%s, %d, %d, %d>(%s, row_of_warp(), %s);", e->elem, v->rows, col / 8, v->cols / 8, name(e, i->b), name(e, i->a));
        ag_emit_line(e, "store_panels<%d, %d>(%s_head + (i64)%s * args.%s_s%s, %s, args.%s_d, %s, row_of_warp(), %s - %s, args.vec & %d);", v->rows,
                     cols, n, row, n, from, ag_emit_rows(e, n), n, name(e, i->b), rows, row, 1 << i->n);
    }
}

void ag_emit_store_tma(Emit *e, const Ins *i) {
    const KernelTensor *t = &e->k->tensor[i->n];
    const Val *v = &e->k->val[i->b];
    ag_emit_line(e, "stage_panels<%s, %d, 0, %d>(%s, row_of_warp(), %s);", e->elem, v->rows, v->cols / 8, name(e, i->b), name(e, i->a));
    ag_emit_line(e, "async_proxy_fence();");
    ag_emit_line(e, "warpgroup_sync();");
    const char *rows = ag_emit_text(e, i->e[0]), *heads = ag_emit_text(e, i->e[3]);
    if (e->k->pack > 1)
        ag_emit_line(e, "if (threadIdx.x %% 128 == 0) tma_store_packed<%d, %d, %d>(args.%s_map, %s, warpgroup_row, %s, %s, %s);", v->rows, t->cols,
                     e->k->pack, t->name, name(e, i->b), rows, heads, ag_emit_text(e, i->e[2]));
    else
        ag_emit_line(e, "if (threadIdx.x %% 128 == 0) tma_store<%d, %d>(args.%s_map, %s, warpgroup_row, %s, %s, %s);", v->rows, t->cols, t->name,
                     name(e, i->b), rows, heads, ag_emit_text(e, i->e[2]));
}

/* ---- tiles of a persistent block */
static const char *slot(const Emit *e, int v, Ref stage) {
    if (e->k->val[v].stages == 1) return name(e, v);
    return ag_fmt(e->k->arena, "%s + %s * 4", name(e, v), ag_emit_atom(e, stage)).s;
}

void ag_emit_tiles(Emit *e, const Ins *i) {
    const Kernel *k = e->k;
    switch (i->op) {
    case TI_PUT: ag_emit_line(e, "slot_put(%s, %s);", slot(e, i->dst, i->e[0]), ag_emit_text(e, i->e[1])); break;
    case TI_GET: ag_emit_line(e, "%sint %s = slot_get(%s);", k->val[i->dst].varies ? "" : "const ", name(e, i->dst), slot(e, i->a, i->e[0])); break;
    case TI_FETCH: ag_emit_line(e, "%s = next_tile(args.counter);", name(e, i->dst)); break;
    case TI_RESET: ag_emit_line(e, "*args.counter = 0;"); break;
    case TI_TAKE_TURN: ag_emit_line(e, "take_turn();"); break;
    case TI_PASS_TURN: ag_emit_line(e, "pass_turn<%d>();", k->role[0].warps / 4); break;
    default: ag_emit_line(e, "tma_store_wait();");
    }
}

/* ---- the kernel around the roles */
void ag_emit_barriers(Emit *e) {
    const Kernel *k = e->k;
    ag_emit_line(e, "// ---- mbarriers, one per stage: full by one arrival and the bytes of the copy, empty by an arrival of each warp of %s",
                 k->role[0].name);
    for (int i = 0; i < k->nbarrier; i++)
        if (k->barrier[i].kind == BARRIER_MBAR) ag_emit_line(e, "const u32 %s = smem_addr(smem) + %d;", k->barrier[i].name, k->barrier[i].offset);
    ag_emit_line(e, "if (threadIdx.x == 0) {");
    for (int i = 0; i < k->nbarrier; i++) {
        const Barrier *b = &k->barrier[i];
        if (b->kind == BARRIER_MBAR && b->stages == 1)
            ag_emit_line(e, "    mbar_init(%s, %d);", b->name, b->count);
        else if (b->kind == BARRIER_MBAR)
            ag_emit_line(e, "    UNROLL for (int s = 0; s < %d; s++) mbar_init(%s + s * 8, %d);", b->stages, b->name, b->count);
    }
    ag_emit_line(e, "    mbar_init_fence();");
    ag_emit_line(e, "}");
    ag_emit_line(e, "__syncthreads();\n");
}

/* Every role but the first as a branch that returns; the first is the rest of the kernel. */
void ag_emit_roles(Emit *e) {
    const Kernel *k = e->k;
    for (int r = 1; r < k->nrole; r++) {
        const Role *role = &k->role[r];
        assert(role->one_thread && role->regs && k->role[0].regs);
        ag_emit_line(e, "// ---- role %s: one thread of a warpgroup of its own fills the stages", role->name);
        ag_emit_line(e, "if (uniform(threadIdx.x / 128) == %d) {", role->warp0 / 4);
        e->indent++;
        ag_emit_line(e, "regs_dec<%d>();", role->regs);
        ag_emit_line(e, "if (threadIdx.x != %d) return;", role->warp0 * 32);
        e->indent--;
        e->role = role->name;
        ag_emit_block(e, &role->body);
        e->indent++;
        ag_emit_line(e, "return;");
        e->indent--;
        ag_emit_line(e, "}\n");
    }
    ag_emit_line(e, "// ---- role %s: %d warpgroups of 64 query rows", k->role[0].name, k->role[0].warps / 4);
    ag_emit_line(e, "regs_inc<%d>();", k->role[0].regs);
    ag_emit_line(e, "const int warpgroup_row = uniform(threadIdx.x / 128) * 64;");
    for (int i = 0; i < k->nbarrier; i++)
        if (k->barrier[i].kind == BARRIER_TURNS) ag_emit_line(e, "first_turn();");
    for (int v = 0; v < k->nval; v++)
        if (k->val[v].lasting) ag_emit_declare(e, v);
}

/* ---- wgmma m64 n k16 with its registers written out: A from shared memory or registers, B from shared memory */
static void wgmma_leaf(Emit *e, WgmmaForm form) {
    static const char *const leaf[] = {"wgmma_ss", "wgmma_rs", "wgmma_st"};
    static const char *const flags[] = {"1, 1, 0, 0", "1, 1, 1", "1, 1, 0, 1"}; /* signs, and which operands are transposed */
    Buf *o = e->out;
    int n = e->wgmma[form], regs = n / 2;
    bool a_in_regs = form == WGMMA_RS;
    const char *type = e->k->spec->dtype == DT_F16 ? "f16" : "bf16";
    ag_put(o, "// d %s A B for one warpgroup: 64 x 16 by 16 x %d; A in %s, B in shared memory%s.\n", form == WGMMA_SS ? "= or +=" : "+=", n,
           a_in_regs ? "registers" : "shared memory", form == WGMMA_SS ? "" : ", its rows summed over");
    ag_put(o, "LEAF void %s(float (&d)[1][%d][4], %s, u64 b, int accumulate) {\n", leaf[form], n / 8, a_in_regs ? "const u32 (&a)[4]" : "u64 a");
    ag_put(o, "    asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 p, %%%d, 0;\\n\"\n", regs + (a_in_regs ? 5 : 2));
    ag_put(o, "                 \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {\"\n", n, type, type);
    for (int i = 0; i < regs; i += 16) {
        ag_put(o, "                 \"");
        for (int j = i; j < i + 16 && j < regs; j++) ag_put(o, "%%%d%s", j, j + 1 < regs ? ", " : "");
        ag_put(o, "\"\n");
    }
    if (a_in_regs)
        ag_put(o, "                 \"}, {%%%d, %%%d, %%%d, %%%d}, %%%d, p, %s;\\n}\"\n", regs, regs + 1, regs + 2, regs + 3, regs + 4, flags[form]);
    else
        ag_put(o, "                 \"}, %%%d, %%%d, p, %s;\\n}\"\n", regs, regs + 1, flags[form]);
    for (int i = 0; i < regs; i += 4)
        ag_put(o, "                 %s\"+f\"(d[0][%d][0]), \"+f\"(d[0][%d][1]), \"+f\"(d[0][%d][2]), \"+f\"(d[0][%d][3])%s\n", i ? "  " : ": ", i / 4,
               i / 4, i / 4, i / 4, i + 4 < regs ? "," : "");
    ag_put(o, "                 : %s, \"l\"(b), \"r\"(accumulate));\n}\n\n",
           a_in_regs ? "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])" : "\"l\"(a)");
}

void ag_emit_wgmma_leaves(Emit *e) {
    for (int form = 0; form < WGMMA_FORMS; form++)
        if (e->wgmma[form]) wgmma_leaf(e, (WgmmaForm)form);
}
