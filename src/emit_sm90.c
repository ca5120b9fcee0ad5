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

const char *ag_emit_map_name(const KernelTensor *t, Arena *a) { return ag_fmt(a, "%s%s_map", t->named ? "u_" : "", t->name).s; }

void ag_emit_tma(Emit *e, const Ins *i) {
    const Val *v = &e->k->val[i->dst];
    const KernelTensor *t = &e->k->tensor[i->a];
    if (v->elements) {
        const char *load = v->panels ? ag_fmt(e->k->arena, "tma_elements<%d, %d>", v->rows, v->cols).s : "tma_row";
        ag_emit_line(e, "%s(%s, args.%s, %s, %s, %s, %s, %s);", load, ag_emit_stage(e, i->dst, i->e[0]), ag_emit_map_name(t, e->k->arena),
                     bar(e, i->bar, i->e[0]), ag_emit_text(e, i->e[5]), ag_emit_text(e, i->e[1]), ag_emit_text(e, i->e[4]), ag_emit_text(e, i->e[3]));
        return;
    }
    const char *packed = t->rows == SZ_SQ && e->k->pack > 1 ? "_packed" : "";
    const char *load = ag_panels_at_once(t->cols) ? ag_fmt(e->k->arena, "tma_panels%s", packed).s
                                                  : ag_fmt(e->k->arena, "tma_tile%s<%d, %d>", packed, v->rows, t->cols).s;
    ag_emit_line(e, "%s(%s, args.%s_map, %s, %s, %s, %s);", load, ag_emit_stage(e, i->dst, i->e[0]), t->name, bar(e, i->bar, i->e[0]),
                 ag_emit_text(e, i->e[1]), ag_emit_text(e, i->e[4]), ag_emit_text(e, i->e[3]));
}

static const char *const wgmma_name[] = {"wgmma_ss", "wgmma_rs", "wgmma_st"};

/* ---- asynchronous products: registers in flight are pinned where their group is waited for, so that no use of theirs moves above */
static void in_flight(Emit *e, int v) {
    if (e->flight.ngroup == 0) e->flight.ngroup = 1;
    int *n = &e->flight.group[e->flight.ngroup - 1].n;
    assert(*n < LEN(e->flight.group[0].value));
    e->flight.group[e->flight.ngroup - 1].value[(*n)++] = v;
}

/* Descriptor of the left operand's rows of this warpgroup. */
static const char *left_operand(const Emit *e, const Ins *i) {
    return ag_fmt(e->k->arena, "desc_k_major(%s + warpgroup_row * 128)", ag_emit_stage(e, i->a, i->e[1])).s;
}

static void emit_product(Emit *e, const Ins *i) {
    const Val *d = &e->k->val[i->dst], *a = &e->k->val[i->a], *b = &e->k->val[i->b];
    bool shared = a->space == SPACE_SHARED;
    WgmmaForm form = i->trans ? WGMMA_SS : shared ? WGMMA_ST : WGMMA_RS;
    e->wgmma[form] = (Wgmma){.n = d->cols, .steps = (i->trans ? b->cols : b->rows) / 16, .a_rows = a->rows, .b_rows = b->rows};
    ag_emit_declare(e, i->dst);
    const char *left = shared ? left_operand(e, i) : name(e, i->a), *right = ag_emit_stage(e, i->b, i->e[0]);
    if (i->trans)
        ag_emit_line(e, "%s(%s, %s, desc_k_major(%s));", wgmma_name[form], d->name.s, left, right);
    else
        ag_emit_line(e, "%s(%s, %s, desc_mn_major(%s, %d));", wgmma_name[form], d->name.s, left, right, b->rows * 128);
    if (!shared) in_flight(e, i->a);
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

void ag_emit_load_elements(Emit *e, const Ins *i) {
    const Val *v = &e->k->val[i->a];
    ag_emit_declare(e, i->dst);
    const char *to = name(e, i->dst), *from = ag_emit_stage(e, i->a, i->e[0]);
    if (v->panels)
        ag_emit_line(e, "load_element_pairs<%d>(%s, %s, row_of_warp());", v->rows, to, from);
    else
        ag_emit_line(e, "load_element_row(%s, %s);", to, from);
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
    case TI_TAKE_TURN: ag_emit_line(e, "take_turn(turn);"); break;
    case TI_PASS_TURN: ag_emit_line(e, "pass_turn(next_turn);"); break;
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
        ag_emit_walks(e, &role->body);
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
        if (k->barrier[i].kind == BARRIER_TURNS) {
            ag_emit_line(e, "first_turn();");
            ag_emit_line(e, "const int turn = 4 + warpgroup_row / 64, next_turn = warpgroup_row == %d ? 4 : turn + 1; // their barriers",
                         k->role[0].warps * 16 - 64);
        }
    ag_emit_walks(e, &k->role[0].body);
    for (int v = 0; v < k->nval; v++)
        if (k->val[v].lasting) ag_emit_declare(e, v);
}

/* ---- leaves of wgmma m64 n k16: a product in all its steps is one asm.  (An asm for each step has all accumulators as operands each time: NVVM then takes twice as
 * long for the kernel.  Descriptors of A are operands for each step: what is added to them in the asm could not leave the key loop.) */

/* What step i of 16 adds to a descriptor of panels: columns of 32 bytes, four to a panel, or rows. */
static int k_major_step(int i, int rows) { return (i % 4 * 32 + i / 4 * rows * 128) >> 4; }
static int mn_major_step(int i) { return i * 2048 >> 4; }

/* The instruction up to its accumulators, as a macro. */
static void wgmma_opening(Buf *o, const Emit *e, const char *macro, int n) {
    const char *type = e->k->spec->dtype == DT_F16 ? "f16" : "bf16";
    ag_put(o, "#define %s \\\n    \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {\"", macro, n, type, type);
    for (int i = 0; i < n / 2; i += 16) {
        ag_put(o, " \\\n    \"");
        for (int j = i; j < i + 16 && j < n / 2; j++) ag_put(o, "%%%d%s", j, j + 1 < n / 2 ? ", " : "}, ");
        ag_put(o, "\"");
    }
    ag_put(o, "\n");
}

/* Operands are accumulators, then A of each step, then B. */
static void wgmma_step(Buf *o, const Wgmma *w, WgmmaForm form, const char *macro, int i) {
    static const char *const flags[] = {"1, 1, 0, 0", "1, 1, 1", "1, 1, 0, 1"}; /* signs, and which operands are transposed */
    bool fresh = form == WGMMA_SS;
    int a = w->n / 2, b = a + (form == WGMMA_RS ? 4 : 1) * w->steps;
    ag_put(o, "        \"");
    if (i == 0 || (i == 1 && fresh)) ag_put(o, "setp.ne.b32 p, %d, 0; ", i || !fresh);
    if (i) ag_put(o, "add.s64 b, %%%d, %d; ", b, fresh ? k_major_step(i, w->b_rows) : mn_major_step(i));
    ag_put(o, "\" %s \"", macro);
    if (form == WGMMA_RS)
        ag_put(o, "{%%%d, %%%d, %%%d, %%%d}, ", a + 4 * i, a + 4 * i + 1, a + 4 * i + 2, a + 4 * i + 3);
    else
        ag_put(o, "%%%d, ", a + i);
    if (i)
        ag_put(o, "b, p, %s;\\n\"\n", flags[form]);
    else
        ag_put(o, "%%%d, p, %s;\\n\"\n", b, flags[form]);
}

/* "+f"(d[0][0][0]), ... or "r"(a[0][0][0]), ...: four of the n / 4 quadruples a line. */
static void wgmma_operands(Buf *o, const char *constraint, const char *array, int quads, const char *indent) {
    for (int i = 0; i < quads; i++) {
        for (int j = 0; j < 4; j++) ag_put(o, "\"%s\"(%s[0][%d][%d])%s", constraint, array, i, j, j < 3 ? ", " : "");
        if (i + 1 < quads) ag_put(o, ",\n%s", indent);
    }
}

/* "l"(a), "l"(a + 2), ... */
static void wgmma_descriptors(Buf *o, const Wgmma *w) {
    for (int i = 0; i < w->steps; i++) {
        if (i) ag_put(o, i % 8 ? ", " : ",\n          ");
        ag_put(o, i ? "\"l\"(a + %d)" : "\"l\"(a)", k_major_step(i, w->a_rows));
    }
}

static void wgmma_leaf(Emit *e, WgmmaForm form) {
    Buf *o = e->out;
    const Wgmma *w = &e->wgmma[form];
    bool a_in_regs = form == WGMMA_RS;
    const char *macro = form == WGMMA_SS ? "WGMMA_SS" : a_in_regs ? "WGMMA_RS" : "WGMMA_ST";
    ag_put(o, "// d %s A B for one warpgroup: 64 x %d by %d x %d; A in %s, B in shared memory%s. Register accesses before it come first.\n",
           form == WGMMA_SS ? "=" : "+=", w->steps * 16, w->steps * 16, w->n, a_in_regs ? "registers" : "shared memory",
           form == WGMMA_SS ? "" : ", its rows summed over");
    wgmma_opening(o, e, macro, w->n);
    ag_put(o, "LEAF void %s(float (&d)[1][%d][4], ", wgmma_name[form], w->n / 8);
    if (a_in_regs)
        ag_put(o, "const u32 (&a)[1][%d][4], u64 b) {\n", w->steps);
    else
        ag_put(o, "u64 a, u64 b) {\n");
    ag_put(o, "    asm volatile(\n        \"{\\n.reg .pred p;\\n.reg .b64 b;\\nwgmma.fence.sync.aligned;\\n\"\n");
    for (int i = 0; i < w->steps; i++) wgmma_step(o, w, form, macro, i);
    ag_put(o, "        \"}\"\n        : ");
    wgmma_operands(o, "+f", "d", w->n / 8, "          ");
    ag_put(o, "\n        : ");
    if (a_in_regs)
        wgmma_operands(o, "r", "a", w->steps, "          ");
    else
        wgmma_descriptors(o, w);
    ag_put(o, ", \"l\"(b)\n        : \"memory\");\n}\n#undef %s\n\n", macro);
}

void ag_emit_wgmma_leaves(Emit *e) {
    for (int form = 0; form < WGMMA_FORMS; form++)
        if (e->wgmma[form].n) wgmma_leaf(e, (WgmmaForm)form);
}
