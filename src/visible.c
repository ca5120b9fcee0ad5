/* visible.c: how much of a call its mask leaves to compute. */
#include <string.h>

#include "check.h"
#include "compile.h"

enum { SAMPLE_ROWS = 64 };

static void set_scalars(HostCall *call, const Spec *spec, const attngen_arg *set, size_t nset) {
    for (int i = 0; i < spec->nparam && i < HOST_SCALARS; i++) {
        const Scalar *v = &spec->param[i].value;
        call->scalar[i] = v->type == T_INT ? (double)v->u.i : v->type == T_BOOL ? v->u.b : v->u.f;
        for (size_t j = 0; j < nset; j++)
            if (ag_str_is(spec->param[i].name, set[j].name)) call->scalar[i] = set[j].scalar;
    }
}

/* Does an expression read a captured tensor?  Then what it hides is not known. */
static bool reads_inputs(const Spec *spec, const Ast *e) {
    if (!e) return false;
    if (e->op == OP_LOAD) return true;
    if (e->op == OP_LET) return reads_inputs(spec, spec->let[e->index].value);
    for (int i = 0; i < 3; i++)
        if (reads_inputs(spec, e->arg[i])) return true;
    return false;
}

/* Keys in as many blocks as a list can have. */
static int64_t listed_keys(const Spec *spec, const Branch *b, int64_t Sk) {
    if (b->blocks.kind == FROM_NONE) return Sk;
    const int64_t none[SZ_COUNT] = {0};
    int64_t n = b->blocks.kind == FROM_DERIVE ? spec->derive[b->blocks.index].count.n : ag_input_extent(spec, b->blocks.index, 3, none);
    return n * b->block.n < Sk ? n * b->block.n : Sk;
}

/* Keys that a row sees: those that the mask lets through, and at most `most`. */
static int64_t seen_by(const Spec *spec, const HostCall *call, int64_t row, int64_t rows, int64_t most) {
    int64_t seen = 0, keys = call->size[SZ_SK], q = (2 * row + 1) * call->size[SZ_SQ] / (2 * rows);
    bool all = reads_inputs(spec, spec->mask);
    for (int64_t k = 0; k < keys && !all; k++) seen += ag_visible(spec, call, row % call->size[SZ_B], row % call->size[SZ_HQ], q, k);
    if (all) seen = keys;
    return seen < most ? seen : most;
}

static double share(const Spec *spec, const HostCall *call) {
    int64_t Sk = call->size[SZ_SK], sq = call->size[SZ_SQ], rows = sq < SAMPLE_ROWS ? sq : SAMPLE_ROWS, seen = 0;
    for (int i = 0; i < (spec->nbranch ? spec->nbranch : 1); i++) {
        const Branch *b = spec->nbranch ? &spec->branch[i] : NULL;
        Spec plain = *spec;
        HostCall own = *call;
        int64_t most = b ? listed_keys(spec, b, Sk) : Sk;
        if (b) {
            plain.mask = b->mask;
            own.size[SZ_SK] = ag_branch_keys(spec, i, Sk);
        }
        for (int64_t row = 0; row < rows; row++) seen += seen_by(&plain, &own, row, rows, most);
    }
    return (double)seen / (double)(rows * Sk);
}

attngen_status ag_visible_share(double *out, const attngen_source *source, const attngen_dim *dims, size_t ndims, const attngen_shape *shape,
                                const attngen_arg *set, size_t nset) {
    Compilation *c = ag_compile_text(source, NULL, "sm_80", dims, ndims, "lower");
    attngen_status s = c ? c->diag.status : ATTNGEN_E_NOMEM;
    *out = 1;
    if (s == ATTNGEN_OK && shape->B > 0 && shape->Hq > 0 && shape->Sq > 0 && shape->Sk > 0) {
        HostCall call = {.size = {[SZ_B] = shape->B, [SZ_HQ] = shape->Hq, [SZ_HKV] = shape->Hkv, [SZ_SQ] = shape->Sq, [SZ_SK] = shape->Sk}};
        call.size[SZ_OFF] = shape->offset == ATTNGEN_ALIGN_END ? shape->Sk - shape->Sq : shape->offset;
        call.size[SZ_D] = c->fn.spec->D;
        call.size[SZ_DV] = c->fn.spec->Dv;
        set_scalars(&call, c->fn.spec, set, nset);
        *out = share(c->fn.spec, &call);
    }
    ag_compilation_free(c);
    return s;
}
