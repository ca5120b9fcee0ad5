/* spec_inputs.c: `inputs`: captured tensors, their types and dims. */
#include "spec.h"

#include <string.h>

enum { MAX_DIM = 1 << 24 };

int ag_spec_find_input(const Spec *s, Str name) {
    for (int i = 0; i < s->ninput; i++)
        if (ag_str_eq(s->input[i].name, name)) return i;
    return -1;
}

bool ag_spec_is_dims(const Input *x, const Axis *axis, int n) {
    for (int i = 0; i < n; i++)
        if (i >= x->rank || x->dim[i].kind != DIM_AXIS || x->dim[i].axis != axis[i] || x->dim[i].part) return false;
    return true;
}

const char *ag_spec_type_text(const Reader *r, const Input *x) {
    Str text = ag_fmt(r->d->arena, "%s [", x->storage ? "dtype" : ag_dtype_name[x->type]);
    for (int i = 0; i < x->rank; i++) {
        const Dim *d = &x->dim[i];
        const char *comma = i ? ", " : "";
        if (d->part)
            text = ag_fmt(r->d->arena, "%s%s%.*s", text.s, comma, STRF(r->spec->batch[d->part - 1].name));
        else if (d->kind == DIM_AXIS)
            text = ag_fmt(r->d->arena, "%s%s%s", text.s, comma, ag_axis_name[d->axis]);
        else
            text = ag_fmt(r->d->arena, "%s%s%d", text.s, comma, d->n.n);
    }
    return ag_fmt(r->d->arena, "%s]", text.s).s;
}

bool ag_spec_input_is_rows(Reader *r, const Doc *x, const char *what, int i, bool queries) {
    static const Axis of[2][4] = {{AX_B, AX_G, AX_K, AX_D}, {AX_B, AX_H, AX_Q, AX_D}};
    const Axis *rows = of[queries];
    const Input *in = &r->spec->input[i];
    if (in->rank < 0) return false;
    if (in->storage && in->rank == LEN(of[0]) && ag_spec_is_dims(in, rows, LEN(of[0]))) return true;
    ag_error(r->d, x->span, "%s: expected an input of dtype %s; '%.*s' is %s", what, queries ? "[b, h, q, d]" : "[b, g, k, d]", STRF(in->name),
             ag_spec_type_text(r, in));
    return false;
}

static bool is_param(const Spec *s, Str name) {
    for (int i = 0; i < s->nparam; i++)
        if (ag_str_eq(s->param[i].name, name)) return true;
    return false;
}

/* An axis, a part of the batch, an int parameter or a literal. */
static bool read_dim(Reader *r, const Doc *x, const char *what, Dim *out) {
    if (!ag_spec_scalar(r, x, what, "an axis or a number")) return false;
    for (int i = 0; i < AX_COUNT; i++) {
        if (!ag_str_is(x->text, ag_axis_name[i])) continue;
        *out = (Dim){.kind = DIM_AXIS, .axis = (Axis)i};
        return true;
    }
    int part = ag_spec_find_part(r->spec, x->text);
    if (part >= 0) {
        *out = (Dim){.kind = DIM_AXIS, .axis = AX_B, .part = part + 1};
        return true;
    }
    static const char *const axes[] = {"b", "h", "g", "q", "k", "d", NULL};
    bool name = x->text.n > 0 && !(x->text.s[0] >= '0' && x->text.s[0] <= '9') && x->text.s[0] != '-' && x->text.s[0] != '+' && !x->quoted;
    if (name && !is_param(r->spec, x->text)) {
        ag_spec_unknown(r, x, what, "an axis, a whole number or an int parameter", axes);
        return false;
    }
    out->kind = DIM_CONST;
    return ag_spec_fixed(r, x, what, 1, MAX_DIM, &out->n);
}

static bool read_type(Reader *r, const Doc *x, const char *what, Input *in) {
    const char *names[DT_COUNT + 2];
    for (int i = 0; i < DT_COUNT; i++) names[i] = ag_dtype_name[i];
    names[DT_COUNT] = "dtype", names[DT_COUNT + 1] = NULL;
    for (int i = 0; names[i]; i++) {
        if (!ag_str_is(x->text, names[i])) continue;
        in->storage = i == DT_COUNT;
        in->type = in->storage ? r->spec->dtype : (DType)i;
        return true;
    }
    ag_spec_unknown(r, x, what, "a type: f32, f16, bf16, i32, i64, u8, bool or dtype", names);
    return false;
}

static bool read_dims(Reader *r, const Doc *x, const char *what, Input *in) {
    bool ok = true;
    if (x->kind != DOC_LIST) {
        ag_error(r->d, x->span, "%s: expected a list of dims, such as [b, h, q]; [] for a single number", what);
        return false;
    }
    if (x->n > INPUT_MAX_DIMS) {
        ag_error(r->d, x->item[INPUT_MAX_DIMS]->span, "%s: more than %d dims", what, INPUT_MAX_DIMS);
        return false;
    }
    for (int i = 0; i < x->n; i++) ok &= read_dim(r, x->item[i], what, &in->dim[i]);
    in->rank = x->n;
    return ok;
}

/* name: {TYPE: [dims]} */
static void read_input(Reader *r, const Doc *key, const Doc *x) {
    Input in = {.name = key->text, .per = 1, .span = key->span};
    bool ok = ag_spec_check_name(r, key);
    const char *what = ag_fmt(r->d->arena, "input '%.*s'", STRF(ag_clip(r->d->arena, key->text))).s;
    if (x->kind != DOC_MAP || x->n != 1) {
        ag_error(r->d, x->span, "%s: expected a type and dims, such as {f32: [b, h, q]}", what);
        ok = false;
    } else {
        ok &= read_type(r, x->key[0], what, &in);
        ok &= read_dims(r, x->item[0], what, &in);
    }
    if (!ok) in.rank = -1;
    r->spec->input[r->spec->ninput++] = in;
}

void ag_spec_inputs(Reader *r, const Doc *x) {
    if (!ag_spec_map(r, x, "inputs", "{slope: {f32: [h]}}")) return;
    if (x->n > SPEC_MAX_INPUTS) {
        ag_error(r->d, x->key[SPEC_MAX_INPUTS]->span, "inputs: more than %d captured tensors", SPEC_MAX_INPUTS);
        return;
    }
    r->spec->input = NEWN(r->d->arena, Input, (size_t)x->n + 1);
    for (int i = 0; i < x->n; i++) read_input(r, x->key[i], x->item[i]);
}

static bool has_channels(const Input *x) {
    for (int i = 0; i < x->rank; i++)
        if (x->dim[i].kind == DIM_AXIS && x->dim[i].axis == AX_D) return true;
    return false;
}

void ag_spec_inputs_finish(Reader *r) {
    Spec *s = r->spec;
    for (int i = 0; i < s->ninput; i++) {
        Input *x = &s->input[i];
        uint32_t bit = (uint32_t)1 << i;
        x->values = has_channels(x) && ((r->in_values | r->in_output) & bit);
        if (!((r->read | r->in_queries | r->in_keys | r->in_values | r->in_lists) & bit))
            ag_error(r->d, x->span, "input '%.*s' is never used", STRF(x->name));
        else if (x->values && ((r->in_keys | r->in_queries) & bit) && s->D != s->Dv)
            ag_error(r->d, x->span, "input '%.*s' is read as %s, of D = %d channels, and as %s, of Dv = %d", STRF(x->name),
                     r->in_keys & bit ? "keys" : "queries", s->D, r->in_values & bit ? "values" : "output", s->Dv);
        else if (x->per > 1 && (r->read & bit))
            ag_error(r->d, x->span, "input '%.*s' has one list for %d queries; an expression cannot read it", STRF(x->name), x->per);
    }
}
