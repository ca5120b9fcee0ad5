/* spec_print.c: a spec back to YAML that reads as the same spec. */
#include "input.h"

#include <inttypes.h>

/* The character at s[0..n) of valid UTF-8. */
static unsigned character(const char *s, int n, int *len) {
    unsigned c = (unsigned char)s[0];
    *len = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (*len > n) *len = n;
    unsigned x = *len == 1 ? c : c & (0x7Fu >> *len);
    for (int i = 1; i < *len; i++) x = x << 6 | ((unsigned char)s[i] & 0x3Fu);
    return x;
}

/* As a YAML scalar in double quotes on one line; line breaks and what a YAML reader refuses are escaped. */
static void print_text(Buf *out, Str s) {
    ag_put(out, "\"");
    for (int i = 0, len; i < s.n; i += len) {
        unsigned c = character(s.s + i, s.n - i, &len);
        if (c == '"' || c == '\\')
            ag_put(out, "\\%c", (char)c);
        else if (c == '\n')
            ag_put(out, "\\n");
        else if (c < 0x20 || (c >= 0x7F && c < 0xA0))
            ag_put(out, "\\x%02X", c);
        else if (c == 0x2028 || c == 0x2029 || c == 0xFEFF || c == 0xFFFE || c == 0xFFFF)
            ag_put(out, "\\u%04X", c);
        else
            ag_putn(out, s.s + i, (size_t)len);
    }
    ag_put(out, "\"\n");
}

static void print_number(Buf *out, Scalar v) {
    if (v.type == T_INT)
        ag_put(out, "%" PRId64, v.u.i);
    else
        ag_put_double(out, v.u.f);
}

static void print_expression(Buf *out, const Spec *spec, const char *indent, Str key, const Ast *e) {
    ag_put(out, "%s%.*s: ", indent, STRF(key));
    ag_expr_print(out, spec, e);
    ag_put(out, "\n");
}

/* ---- inputs, derive, branches */

static void print_fixed(Buf *out, const Spec *spec, const char *before, const char *key, Fixed x) {
    ag_put(out, "%s%s: ", before, key);
    if (x.param)
        ag_put(out, "%.*s", STRF(spec->param[x.param].name));
    else
        ag_put(out, "%d", x.n);
}

static void print_inputs(Buf *out, const Spec *spec) {
    if (spec->ninput) ag_put(out, "inputs:\n");
    for (int i = 0; i < spec->ninput; i++) {
        const Input *x = &spec->input[i];
        ag_put(out, "  %.*s: {%s: [", STRF(x->name), x->storage ? "dtype" : ag_dtype_name[x->type]);
        for (int j = 0; j < x->rank; j++) {
            const Dim *d = &x->dim[j];
            if (j) ag_put(out, ", ");
            if (d->part)
                ag_put(out, "%.*s", STRF(spec->batch[d->part - 1].name));
            else if (d->kind == DIM_AXIS)
                ag_put(out, "%s", ag_axis_name[d->axis]);
            else if (d->n.param)
                ag_put(out, "%.*s", STRF(spec->param[d->n.param].name));
            else
                ag_put(out, "%d", d->n.n);
        }
        ag_put(out, "]}\n");
    }
}

/* ---- prologue */

static void print_float(Buf *out, const Spec *spec, const char *key, FixedFloat x) {
    ag_put(out, "%s: ", key);
    if (x.param)
        ag_put(out, "%.*s", STRF(spec->param[x.param].name));
    else
        ag_put_double(out, x.x);
}

static void print_rope(Buf *out, const Spec *spec, const RowStep *s) {
    ag_put(out, "rope: {");
    if (s->table[0] >= 0)
        ag_put(out, "cos: %.*s, sin: %.*s", STRF(spec->input[s->table[0]].name), STRF(spec->input[s->table[1]].name));
    else
        print_float(out, spec, "theta", s->theta);
    print_fixed(out, spec, ", ", "channels", s->channels);
    ag_put(out, ", style: %s", s->interleaved ? "interleaved" : "half");
    if (!s->own_position) {
        ag_put(out, ", position: \"");
        ag_expr_print(out, spec, s->position);
        ag_put(out, "\"");
    }
    ag_put(out, "}");
}

void ag_row_step_print(Buf *out, const Spec *spec, const RowStep *s) {
    switch (s->kind) {
    case STEP_SCALE:
        ag_put(out, "scale: ");
        ag_expr_print(out, spec, s->factor);
        break;
    case STEP_NORM:
        print_float(out, spec, "rms_norm: {eps", s->eps);
        if (s->weight >= 0) ag_put(out, ", weight: %.*s", STRF(spec->input[s->weight].name));
        ag_put(out, "}");
        break;
    case STEP_ROPE: print_rope(out, spec, s); break;
    }
}

static void print_prologue(Buf *out, const Spec *spec) {
    if (ag_has_prologue(spec)) ag_put(out, "prologue:\n");
    for (int of_k = 0; of_k < 2; of_k++) {
        const Prologue *p = &spec->prologue[of_k];
        if (p->n) ag_put(out, "  %s:\n", of_k ? "k" : "q");
        for (int i = 0; i < p->n; i++) {
            ag_put(out, "    - ");
            ag_row_step_print(out, spec, &p->step[i]);
            ag_put(out, "\n");
        }
    }
}

static Str source_name(const Spec *spec, SpecRef s) {
    switch (s.kind) {
    case FROM_INPUT: return spec->input[s.index].name;
    case FROM_DERIVE: return spec->derive[s.index].name;
    case FROM_BRANCH: return spec->branch[s.index].name;
    default: return s.kind == FROM_V ? STR("v") : STR("k");
    }
}

static void print_derive(Buf *out, const Spec *spec) {
    if (spec->nderive) ag_put(out, "derive:\n");
    for (int i = 0; i < spec->nderive; i++) {
        const Derive *p = &spec->derive[i];
        bool pool = p->kind == DERIVE_POOL;
        ag_put(out, "  %.*s: {%s: %.*s", STRF(p->name), pool ? "pool" : "select", STRF(source_name(spec, p->source)));
        print_fixed(out, spec, ", ", pool ? "size" : "block", pool ? p->size : p->block);
        print_fixed(out, spec, ", ", pool ? "stride" : "count", pool ? p->stride : p->count);
        if (pool) {
            bool mean = p->weights < 0;
            ag_put(out, ", %s: %.*s, tail: %s}\n", mean ? "op" : "weights", STRF(mean ? STR("mean") : spec->input[p->weights].name),
                   p->partial ? "partial" : "drop");
            continue;
        }
        print_fixed(out, spec, ", force: {", "first", p->first);
        print_fixed(out, spec, ", ", "local", p->local);
        ag_put(out, "}, share: %s, causal: %s}\n", p->per_head ? "head" : "group", p->causal ? "true" : "false");
    }
}

static void print_branches(Buf *out, const Spec *spec) {
    if (spec->nbranch) ag_put(out, "branches:\n");
    for (int i = 0; i < spec->nbranch; i++) {
        const Branch *b = &spec->branch[i];
        ag_put(out, "  %.*s:\n    keys: %.*s\n    values: %.*s\n", STRF(b->name), STRF(source_name(spec, b->keys)),
               STRF(source_name(spec, b->values)));
        if (b->queries.kind == FROM_INPUT) ag_put(out, "    queries: %.*s\n", STRF(source_name(spec, b->queries)));
        if (b->blocks.kind != FROM_NONE) ag_put(out, "    blocks: %.*s\n", STRF(source_name(spec, b->blocks)));
        if (b->blocks.kind == FROM_INPUT) {
            print_fixed(out, spec, "    ", "block", b->block);
            print_fixed(out, spec, "\n    ", "blocks_per", b->per);
            if (b->counts >= 0) ag_put(out, "\n    counts: %.*s", STRF(spec->input[b->counts].name));
            ag_put(out, "\n");
        }
        if (b->score) print_expression(out, spec, "    ", STR("score"), b->score);
        if (b->mask) print_expression(out, spec, "    ", STR("mask"), b->mask);
        if (b->weigh) print_expression(out, spec, "    ", STR("weigh"), b->weigh);
    }
}

void ag_spec_print(Buf *out, const Spec *spec) {
    ag_put(out, "# compiled for D = %d, Dv = %d, dtype = %s", spec->D, spec->Dv, ag_dtype_name[spec->dtype]);
    for (int i = 0; i < spec->nparam; i++) {
        if (!spec->param[i].bound) continue;
        ag_put(out, ", %.*s = ", STRF(spec->param[i].name));
        print_number(out, spec->param[i].value);
    }
    ag_put(out, "\nattention: %.*s\n", STRF(spec->name));
    if (spec->doc.n) {
        ag_put(out, "doc: ");
        print_text(out, spec->doc);
    }
    if (spec->nparam > 1 && !spec->param[1].part) ag_put(out, "params:\n"); /* parts stand behind them */
    for (int i = 1; i < spec->nparam && !spec->param[i].part; i++) {
        ag_put(out, "  %.*s: {%s: ", STRF(spec->param[i].name), ag_type_name(spec->param[i].type));
        print_number(out, spec->param[i].value);
        ag_put(out, "}\n");
    }
    for (int i = 0; i < spec->nbatch; i++)
        ag_put(out, "%s%.*s%s", i ? ", " : "batch: [", STRF(spec->batch[i].name), i + 1 < spec->nbatch ? "" : "]\n");
    if (spec->group) ag_put(out, "heads: {group: %d}\n", spec->group);
    if (spec->scale_given || spec->param[0].bound) {
        ag_put(out, "scale: ");
        print_number(out, spec->param[0].value);
        ag_put(out, "\n");
    }
    print_inputs(out, spec);
    print_prologue(out, spec);
    print_derive(out, spec);
    print_branches(out, spec);
    if (spec->nlet) ag_put(out, "let:\n");
    for (int i = 0; i < spec->nlet; i++) print_expression(out, spec, "  ", spec->let[i].name, spec->let[i].value);
    if (spec->score) print_expression(out, spec, "", STR("score"), spec->score);
    if (spec->mask) print_expression(out, spec, "", STR("mask"), spec->mask);
    if (spec->weigh) print_expression(out, spec, "", STR("weigh"), spec->weigh);
    if (spec->plus) ag_put(out, "normalize:\n  softmax:\n");
    if (spec->plus) print_expression(out, spec, "    ", STR("plus"), spec->plus);
    static const char *const plain[] = {[NORMALIZE_SUM] = "sum", [NORMALIZE_NONE] = "none"};
    if (spec->eps) ag_put(out, "normalize:\n  sum:\n");
    if (spec->eps) print_expression(out, spec, "    ", STR("eps"), spec->eps);
    if (spec->normalize != NORMALIZE_SOFTMAX && !spec->eps) ag_put(out, "normalize: %s\n", plain[spec->normalize]);
    if (spec->rows_given) {
        ag_put(out, "rows: [");
        for (int i = 0, n = 0; i < ROWV_COUNT; i++)
            if (spec->rows >> i & 1) ag_put(out, "%s%s", n++ ? ", " : "", ag_row_value_name[i]);
        ag_put(out, "]\n");
    }
    if (spec->output) print_expression(out, spec, "", STR("output"), spec->output);
}
