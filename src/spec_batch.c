/* spec_batch.c: `batch`: names of the dims that b counts, [n, r]: b = n * R + r.  The sizes of all but the first are int parameters of their names, given at launch; in
 * expressions the names are quotients and remainders of b by them. */
#include "spec.h"

int ag_spec_find_part(const Spec *s, Str name) {
    for (int i = 0; i < s->nbatch; i++)
        if (ag_str_eq(s->batch[i].name, name)) return i;
    return -1;
}

void ag_spec_batch(Reader *r, const Doc *x) {
    Spec *s = r->spec;
    if (x->kind != DOC_LIST || !x->n) {
        ag_error(r->d, x->span, "batch: expected a list of names, such as [n, r], of the dims that b counts");
        return;
    }
    if (x->n > SPEC_MAX_BATCH) {
        ag_error(r->d, x->item[SPEC_MAX_BATCH]->span, "batch: more than %d names", SPEC_MAX_BATCH);
        return;
    }
    for (int i = 0; i < x->n; i++) {
        BatchPart part = {.name = x->item[i]->text};
        if (!ag_spec_scalar(r, x->item[i], "batch", "a name") || !ag_spec_check_name(r, x->item[i])) continue;
        if (i > 0 && s->nparam == SPEC_MAX_PARAMS) {
            ag_error(r->d, x->item[i]->span, "batch: more than %d parameters, with sizes of the batch", SPEC_MAX_PARAMS - 1);
            return;
        }
        if (i > 0) {
            part.param = s->nparam;
            s->param[s->nparam++] =
                (Param){.name = part.name, .type = T_INT, .value = {T_INT, {.i = 1}}, .positive = true, .part = true, .span = x->item[i]->span};
        }
        s->batch[s->nbatch++] = part;
    }
}

static Ast *operation(Arena *a, Op op, Ast *x, Ast *y) {
    Ast *e = NEW(a, Ast);
    *e = (Ast){.op = op, .type = T_INT, .span = x->span, .arg = {x, y}};
    return e;
}

static Ast *leaf(Arena *a, Op op, int index, Span at) {
    Ast *e = NEW(a, Ast);
    *e = (Ast){.op = op, .type = T_INT, .index = index, .span = at};
    return e;
}

/* (b // what the parts behind it count) % its own size, or without the remainder of the first. */
void ag_spec_resolve_part(Arena *a, const Spec *s, int i, Ast *e) {
    Str name = e->name;
    Span at = e->span;
    Ast *x = leaf(a, OP_AXIS, AX_B, at), *inner = NULL;
    for (int j = i + 1; j < s->nbatch; j++) {
        Ast *size = leaf(a, OP_PARAM, s->batch[j].param, at);
        inner = inner ? operation(a, OP_MUL, inner, size) : size;
    }
    if (inner) x = operation(a, OP_FLOORDIV, x, inner);
    if (i > 0) x = operation(a, OP_MOD, x, leaf(a, OP_PARAM, s->batch[i].param, at));
    *e = *x;
    e->name = name;
    e->part = i + 1;
}
