/* kernel_meta.c: Tile IR -> what the runtime needs to launch the kernel. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "tile_ir.h"

enum { COUNTER_BYTES = 4 };

static void set_name(char out[META_NAME], Str name) { snprintf(out, META_NAME, "%.*s", STRF(name)); }

/* Appends node r in postfix; the launch formula uses sizes, constants and a few ops only. */
static int formula(const Kernel *k, Ref r, Formula *f, int n) {
    static const struct {
        Op op;
        FormulaOp f;
    } of[] = {{OP_ADD, FO_ADD}, {OP_SUB, FO_SUB}, {OP_MUL, FO_MUL}, {OP_CEILDIV, FO_CEILDIV}, {OP_MIN, FO_MIN}, {OP_MAX, FO_MAX}};
    const Node *x = &k->nodes.n[r];
    if (x->op == OP_CONST || x->op == OP_SIZE) {
        assert(n + 3 < LEN(f->op));
        f->op[n++] = x->op == OP_CONST ? FO_CONST : FO_SIZE;
        f->op[n++] = x->op == OP_CONST ? (int32_t)x->value.u.i : x->index;
        return n;
    }
    n = formula(k, x->arg[1], f, formula(k, x->arg[0], f, n));
    for (int i = 0; i < LEN(of); i++)
        if (of[i].op == x->op) {
            assert(n + 1 < LEN(f->op));
            f->op[n++] = (int32_t)of[i].f;
            return n;
        }
    assert(0 && "an op that launch formulas do not have");
    return n;
}

void ag_program_meta(ProgramMeta *out, const Kernel *k) {
    memset(out, 0, sizeof *out);
    out->nkernel = 1;
    out->ntensor = TEN_COUNT;
    out->nscalar = (uint32_t)k->spec->nparam;
    out->group = (uint32_t)k->spec->group;
    set_name(out->spec, k->spec->name);
    snprintf(out->arch, sizeof out->arch, "%s", k->target->name);
    out->D = k->spec->D;
    out->Dv = k->spec->Dv;
    out->dtype = k->spec->dtype == DT_F16 ? ATTNGEN_F16 : ATTNGEN_BF16;
    out->workspace.op[0] = FO_CONST;
    out->workspace.op[1] = k->counter ? COUNTER_BYTES : 0;
    for (int i = 0; i < TEN_COUNT; i++) {
        const KernelTensor *t = &k->tensor[i];
        TensorMeta *m = &out->tensor[i];
        set_name(m->name, ag_str(t->name));
        m->rank = (uint8_t)t->rank;
        m->elem_bytes = (uint8_t)ag_dtype_bytes(t->type);
        m->optional = t->optional;
        m->output = t->output;
        m->dim[0] = SZ_B;
        m->dim[1] = (uint8_t)t->heads;
        m->dim[2] = (uint8_t)t->rows;
        m->dim[3] = i == TEN_V || i == TEN_O ? SZ_DV : SZ_D;
    }
    out->ntmap = (uint32_t)k->ntmap;
    memcpy(out->tmap, k->tmap, (size_t)k->ntmap * sizeof *k->tmap);
    for (int i = 0; i < k->spec->nparam; i++) {
        const Param *p = &k->spec->param[i];
        ScalarMeta *m = &out->scalar[i];
        set_name(m->name, p->name);
        m->is_int = p->type == T_INT;
        m->positive = p->positive;
        m->bound = p->bound;
        m->deflt = p->type == T_FLOAT ? p->value.u.f : (double)p->value.u.i;
    }
    KernelMeta *m = &out->kernel[0];
    set_name(m->name, k->name);
    m->threads = (uint32_t)k->threads;
    m->shared_bytes = (uint32_t)k->shared_bytes;
    m->param_bytes = (uint32_t)k->param_bytes;
    m->nslot = (uint32_t)k->nslot;
    m->per_sm = k->persistent ? (uint32_t)k->per_sm : 0;
    formula(k, k->blocks, &m->blocks, 0);
    memcpy(m->slot, k->slot, sizeof k->slot);
}
