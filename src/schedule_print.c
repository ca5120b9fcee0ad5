/* schedule_print.c: a closed schedule as YAML that reads back to the same, with a comment per field saying who decided it.
 * Fields without effect are left out: a file that gives them is refused. */
#include "input.h"

#include <string.h>

/* In double quotes; what YAML would fold or refuse is escaped. */
static void put_quoted(Buf *out, Str s) {
    ag_put(out, "\"");
    for (int i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.s[i];
        const char *at = s.s + i;
        int left = s.n - i;
        if (c == '"' || c == '\\')
            ag_put(out, "\\%c", c);
        else if (c == '\n')
            ag_put(out, "\\n");
        else if (c < 0x20 || c == 0x7F)
            ag_put(out, "\\x%02X", c);
        else if (left >= 2 && c == 0xC2 && (unsigned char)at[1] <= 0xA0)
            ag_put(out, "\\x%02X", (unsigned char)at[1]), i += 1;
        else if (left >= 3 && !memcmp(at, "\xE2\x80\xA8", 3))
            ag_put(out, "\\L"), i += 2;
        else if (left >= 3 && !memcmp(at, "\xE2\x80\xA9", 3))
            ag_put(out, "\\P"), i += 2;
        else if (left >= 3 && !memcmp(at, "\xEF\xBB\xBF", 3))
            ag_put(out, "\\uFEFF"), i += 2;
        else if (left >= 3 && !memcmp(at, "\xEF\xBF\xBE", 3))
            ag_put(out, "\\uFFFE"), i += 2;
        else if (left >= 3 && !memcmp(at, "\xEF\xBF\xBF", 3))
            ag_put(out, "\\uFFFF"), i += 2;
        else
            ag_putn(out, at, 1);
    }
    ag_put(out, "\"\n");
}

static void put_value(Buf *out, const FieldInfo *info, const Field *f) {
    if (info->kind == FIELD_INT)
        ag_put(out, "%lld", (long long)f->v);
    else
        ag_put(out, "%.*s", STRF(ag_field_word(info, f->v)));
}

static void put_field(Buf *out, int indent, const FieldInfo *info, const Field *f) {
    enum { COMMENT = 28 };
    size_t line = out->n;
    ag_put(out, "%*s%s: ", indent, "", strrchr(info->path, '.') + 1);
    put_value(out, info, f);
    int room = COMMENT - (int)(out->n - line);
    ag_put(out, "%*s# ", room > 1 ? room : 1, "");
    switch (f->by) {
    case BY_FILE: ag_put(out, "file\n"); break;
    case BY_DEFAULT: ag_put(out, "default\n"); break;
    case BY_RULE: ag_put(out, "rule: %s\n", f->why); break;
    }
}

static void put_order(Buf *out, const Schedule *s) {
    ag_put(out, "  order: [");
    for (int i = 0; i < 3; i++) ag_put(out, "%s%s", i ? ", " : "", s->order[i] == AX_Q ? "m" : s->order[i] == AX_H ? "h" : "b");
    ag_put(out, "]          # %s\n", s->order_span.file ? "file" : "default");
}

/* Opens the maps of `path` that were not open for `last`; returns the indentation of its value. */
static int open_maps(Buf *out, const char *last, const char *path, const Schedule *s) {
    int indent = 0;
    bool same = true;
    for (const char *p = path, *dot; (dot = strchr(p, '.')); p = dot + 1, indent += 2) {
        size_t upto = (size_t)(dot + 1 - path);
        same = same && !strncmp(last, path, upto);
        if (same) continue;
        ag_put(out, "%*s%.*s:\n", indent, "", (int)(dot - p), p);
        if (upto == 5 && !strncmp(path, "grid.", upto)) put_order(out, s);
    }
    return indent;
}

static void put_default_for(Buf *out, const Schedule *s) {
    static const DType type[] = {DT_F16, DT_BF16};
    const char *comma = "";
    if (!s->default_for.dtypes && !s->default_for.masked && !s->default_for.elements && !s->default_for.staged && !s->default_for.branches &&
        !s->default_for.quick_start && !s->default_for.max_queries && !s->default_for.max_loads)
        return;
    ag_put(out, "default_for:\n");
    if (s->default_for.dtypes) ag_put(out, "  dtype: [");
    for (int i = 0; i < LEN(type); i++) {
        if (!(s->default_for.dtypes >> type[i] & 1)) continue;
        ag_put(out, "%s%s", comma, ag_dtype_name[type[i]]);
        comma = ", ";
    }
    if (s->default_for.dtypes) ag_put(out, "]\n");
    if (s->default_for.masked) ag_put(out, "  masked: true\n");
    if (s->default_for.elements) ag_put(out, "  elements: true\n");
    if (s->default_for.staged) ag_put(out, "  staged: true\n");
    if (s->default_for.branches) ag_put(out, "  branches: true\n");
    if (s->default_for.quick_start) ag_put(out, "  quick_start: true\n");
    if (s->default_for.max_loads) ag_put(out, "  loads: {max: %lld}\n", (long long)s->default_for.max_loads);
    if (s->default_for.max_queries) ag_put(out, "  queries: {max: %lld}\n", (long long)s->default_for.max_queries);
}

void ag_schedule_print(Buf *out, const Schedule *s) {
    ag_put(out, "schema: attngen.schedule/1\n");
    if (s->name.n) ag_put(out, "name: \"%.*s\"\n", STRF(s->name));
    if (s->notes.n) {
        ag_put(out, "notes: ");
        put_quoted(out, s->notes);
    }
    const char *comma = "";
    ag_put(out, "target:\n  arch: [");
    for (size_t i = 0; ag_target_at(i); i++) {
        if (!(s->arch_mask >> i & 1)) continue;
        ag_put(out, "%s%s", comma, ag_target_at(i)->name);
        comma = ", ";
    }
    ag_put(out, "]\napplies_to:\n  head_dim: {min: %d, max: %d}\n", s->head_dim_min, s->head_dim_max);
    put_default_for(out, s);
    const char *last = "";
    for (int i = 0; i < F_COUNT; i++) {
        const FieldInfo *info = &ag_field[i];
        if (!ag_field_has_effect(s, (FieldId)i)) continue;
        put_field(out, open_maps(out, last, info->path, s), info, &s->f[i]);
        last = info->path;
    }
}
