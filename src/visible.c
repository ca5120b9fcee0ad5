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

attngen_status ag_visible_share(double *out, const attngen_source *source, const attngen_dim *dims, size_t ndims, const attngen_shape *shape,
                                const attngen_arg *set, size_t nset) {
    Compilation *c = ag_compile_text(source, NULL, "sm_80", dims, ndims, NULL);
    attngen_status s = c ? c->diag.status : ATTNGEN_E_NOMEM;
    *out = 1;
    if (s == ATTNGEN_OK && shape->B > 0 && shape->Hq > 0 && shape->Sq > 0 && shape->Sk > 0) {
        HostCall call = {.size = {[SZ_B] = shape->B, [SZ_HQ] = shape->Hq, [SZ_HKV] = shape->Hkv, [SZ_SQ] = shape->Sq, [SZ_SK] = shape->Sk}};
        call.size[SZ_OFF] = shape->offset == ATTNGEN_ALIGN_END ? shape->Sk - shape->Sq : shape->offset;
        call.size[SZ_D] = c->fn.spec->D;
        call.size[SZ_DV] = c->fn.spec->Dv;
        set_scalars(&call, c->fn.spec, set, nset);
        int64_t rows = shape->Sq < SAMPLE_ROWS ? shape->Sq : SAMPLE_ROWS, seen = 0;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < shape->Sk; k++)
                seen += ag_visible(c->fn.spec, &call, i % shape->B, i % shape->Hq, (2 * i + 1) * shape->Sq / (2 * rows), k);
        *out = (double)seen / (double)(rows * shape->Sk);
    }
    ag_compilation_free(c);
    return s;
}
