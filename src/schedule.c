/* schedule.c: reads a schedule file: the fields of schedule.def and what stands around them. */
#include "input.h"

#include <string.h>

enum { INT = FIELD_INT, BOOL = FIELD_BOOL, ENUM = FIELD_ENUM, AUTO = FIELD_AUTO };

const FieldInfo ag_field[F_COUNT] = {
#define FIELD(id, path, kind, min, max, step, deflt, names, doc) {path, (FieldKind)kind, min, max, step, deflt, names, doc},
#include "schedule.def"
#undef FIELD
};

Str ag_field_word(const FieldInfo *info, int64_t v) {
    if (info->kind == FIELD_BOOL) return v ? STR("true") : STR("false");
    const char *word = info->names;
    for (int64_t i = 0; i < v; i++) word = strchr(word, ' ') + 1;
    return (Str){word, (int)strcspn(word, " ")};
}

/* Fields that one family alone heeds, and what the other does. */
static const struct {
    FieldId id;
    Family family;
    const char *other;
} heeded[] = {
    {F_WARPS, FAMILY_MMA_SYNC, "each of roles.consumer.warpgroups has 4 warps"},
    {F_Q_OPERAND, FAMILY_MMA_SYNC, "Q is read from shared memory in every step"},
    {F_ACQUIRE, FAMILY_MMA_SYNC, "every tile of K and V has a barrier of its own"},
    {F_P_OPERAND, FAMILY_WGMMA, "the weights stay in registers"},
    {F_CONSUMERS, FAMILY_WGMMA, "roles.warps says how many warps compute"},
    {F_REGS_MATH, FAMILY_WGMMA, "all warps have the same registers, which grid.ctas_per_sm bounds"},
    {F_REGS_LOAD, FAMILY_WGMMA, "no warps are set apart for loading"},
    {F_OVERLAP, FAMILY_WGMMA, "a product is complete before the next instruction"},
    {F_Q_STAGES, FAMILY_WGMMA, "a block has one tile of Q"},
    {F_E_STAGES, FAMILY_WGMMA, "each lane reads its own elements"},
    {F_O_PARTS, FAMILY_WGMMA, "O takes the place of Q, K and V, where there is room"},
    {F_TURNS, FAMILY_WGMMA, "warps issue their products on their own"},
    {F_PERSISTENT, FAMILY_WGMMA, "every tile has a block of its own"},
    {F_FETCH_AHEAD, FAMILY_WGMMA, "every tile has a block of its own"},
    {F_SOFTMAX, FAMILY_WGMMA, "every step looks for its maximum"},
};

const char *ag_field_idle(const Schedule *s, FieldId id) {
    for (int i = 0; i < LEN(heeded); i++)
        if (heeded[i].id == id && (int64_t)heeded[i].family != s->f[F_MMA_FAMILY].v) return heeded[i].other;
    return NULL;
}

bool ag_field_has_effect(const Schedule *closed, FieldId id) {
    bool one_tile = closed->f[F_PERSISTENT].v == PERSISTENT_NONE;
    return !ag_field_idle(closed, id) && !(id == F_FETCH_AHEAD && one_tile) && (id != F_LISTS || closed->has_lists) &&
           (id != F_FORCED || closed->has_forced) && (id != F_E_STAGES || closed->has_elements) && (id != F_BRANCHES || closed->has_branches);
}

#define VERSION "attngen.schedule/1"
enum { MAX_NAME = 64, MAX_HEAD_DIM = 256, MAX_KEYS = 16, MAX_PATH = 48 };

typedef struct Reading {
    Diag *d;
    Schedule *s;
    bool schema;
    Span loads, staged; /* of default_for.loads.max and staged */
} Reading;

/* ---- values around the fields */

static void read_schema(Reading *r, const Doc *x) {
    r->schema = true;
    if (x->kind != DOC_SCALAR || !ag_str_is(x->text, VERSION))
        ag_error(r->d, x->span, "schema: expected %s, found %s", VERSION, x->kind == DOC_SCALAR ? ag_clip(r->d->arena, x->text).s : "something else");
}

static void read_name(Reading *r, const Doc *x) {
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    bool ok = x->kind == DOC_SCALAR && x->text.n > 0 && x->text.n <= MAX_NAME;
    for (int i = 0; ok && i < x->text.n; i++) ok = x->text.s[i] && strchr(legal, x->text.s[i]);
    if (ok)
        r->s->name = x->text;
    else
        ag_error(r->d, x->span, "name: expected 1 to %d letters, digits, '_', '-' or '.'", MAX_NAME);
}

static void read_notes(Reading *r, const Doc *x) {
    if (x->kind == DOC_SCALAR)
        r->s->notes = x->text;
    else
        ag_error(r->d, x->span, "notes: expected text");
}

static void read_arch(Reading *r, const Doc *x) {
    const char *names[MAX_KEYS] = {0};
    for (size_t i = 0; ag_target_at(i); i++) names[i] = ag_target_at(i)->name;
    r->s->arch_mask = 0;
    r->s->arch_span = x->span;
    if (x->kind != DOC_LIST || x->n == 0) ag_error(r->d, x->span, "target.arch: expected a list of architectures, such as [%s]", names[0]);
    for (int i = 0, arch; i < (x->kind == DOC_LIST ? x->n : 0); i++) {
        if (!ag_doc_enum(r->d, x->item[i], "target.arch", names, &arch)) continue;
        if (r->s->arch_mask >> arch & 1) ag_error(r->d, x->item[i]->span, "target.arch: %s is listed twice", names[arch]);
        r->s->arch_mask |= 1u << arch;
    }
}

static void read_head_dim(Reading *r, const Doc *x, const char *what, int *out) {
    int64_t v;
    r->s->head_dim_span = x->span;
    if (ag_doc_int(r->d, x, what, 1, MAX_HEAD_DIM, &v)) *out = (int)v;
    if (r->s->head_dim_min > r->s->head_dim_max)
        ag_error(r->d, x->span, "applies_to.head_dim: min <= max does not hold: %d > %d", r->s->head_dim_min, r->s->head_dim_max);
}

static void read_min(Reading *r, const Doc *x) { read_head_dim(r, x, "applies_to.head_dim.min", &r->s->head_dim_min); }
static void read_max(Reading *r, const Doc *x) { read_head_dim(r, x, "applies_to.head_dim.max", &r->s->head_dim_max); }

static void read_dtypes(Reading *r, const Doc *x) {
    static const char *const names[] = {"f16", "bf16", NULL};
    static const DType type[] = {DT_F16, DT_BF16};
    if (x->kind != DOC_LIST || x->n == 0) ag_error(r->d, x->span, "default_for.dtype: expected a list of dtypes, such as [bf16]");
    for (int i = 0, v; i < (x->kind == DOC_LIST ? x->n : 0); i++) {
        if (!ag_doc_enum(r->d, x->item[i], "default_for.dtype", names, &v)) continue;
        if (r->s->default_for.dtypes >> type[v] & 1) ag_error(r->d, x->item[i]->span, "default_for.dtype: %s is listed twice", names[v]);
        r->s->default_for.dtypes |= 1u << type[v];
    }
}
static void read_masked(Reading *r, const Doc *x) {
    bool *masked = &r->s->default_for.masked;
    if (ag_doc_bool(r->d, x, "default_for.masked", masked) && !*masked)
        ag_error(r->d, x->span,
                 "default_for.masked: false has no effect, since a schedule is for specs with and without a mask: write true or leave it out");
}
static void read_elements(Reading *r, const Doc *x) {
    bool *elements = &r->s->default_for.elements;
    if (ag_doc_bool(r->d, x, "default_for.elements", elements) && !*elements)
        ag_error(r->d, x->span,
                 "default_for.elements: false has no effect, since only a schedule with true is kept for specs that read elements: leave it out");
}
static void read_staged(Reading *r, const Doc *x) {
    bool *staged = &r->s->default_for.staged;
    r->staged = x->span;
    if (ag_doc_bool(r->d, x, "default_for.staged", staged) && !*staged)
        ag_error(
            r->d, x->span,
            "default_for.staged: false has no effect, since only a schedule with true is kept for specs whose elements come in tiles: leave it out");
}

static void read_branches(Reading *r, const Doc *x) {
    bool *branches = &r->s->default_for.branches;
    if (ag_doc_bool(r->d, x, "default_for.branches", branches) && !*branches)
        ag_error(r->d, x->span,
                 "default_for.branches: false has no effect, since only a schedule with true is kept for branches that are one kernel: leave it out");
}
static void read_quick(Reading *r, const Doc *x) {
    bool *quick = &r->s->default_for.quick_start;
    if (ag_doc_bool(r->d, x, "default_for.quick_start", quick) && !*quick)
        ag_error(r->d, x->span,
                 "default_for.quick_start: false has no effect, since only a schedule with true is kept for a quick start: leave it out");
}
static void read_queries(Reading *r, const Doc *x) { ag_doc_int(r->d, x, "default_for.queries.max", 1, MAX_QUERIES, &r->s->default_for.max_queries); }

enum { MAX_LOADS = 64 };
static void read_loads(Reading *r, const Doc *x) {
    r->loads = x->span;
    ag_doc_int(r->d, x, "default_for.loads.max", 1, MAX_LOADS, &r->s->default_for.max_loads);
}

static void read_order(Reading *r, const Doc *x) {
    static const char *const names[] = {"m", "h", "b", NULL};
    static const int axis[] = {AX_Q, AX_H, AX_B};
    unsigned seen = 0;
    int v;
    r->s->order_span = x->span;
    for (int i = 0; i < 3 && x->kind == DOC_LIST && x->n == 3; i++) {
        if (!ag_doc_enum(r->d, x->item[i], "grid.order", names, &v)) return;
        r->s->order[i] = axis[v];
        seen |= 1u << v;
    }
    if (seen != 7) ag_error(r->d, x->span, "grid.order: expected m, h and b, each once, fastest first, such as [m, h, b]");
}

static const struct {
    const char *path;
    void (*read)(Reading *r, const Doc *x);
} around[] = {
    {"schema", read_schema},
    {"name", read_name},
    {"notes", read_notes},
    {"target.arch", read_arch},
    {"applies_to.head_dim.min", read_min},
    {"applies_to.head_dim.max", read_max},
    {"default_for.dtype", read_dtypes},
    {"default_for.masked", read_masked},
    {"default_for.elements", read_elements},
    {"default_for.staged", read_staged},
    {"default_for.branches", read_branches},
    {"default_for.quick_start", read_quick},
    {"default_for.queries.max", read_queries},
    {"default_for.loads.max", read_loads},
    {"grid.order", read_order},
};

/* ---- fields */

static void read_int(Diag *d, const Doc *x, const FieldInfo *info, Field *f) {
    enum { DIGITS64 = 18 }; /* any number as short as this fits an int64_t */
    int64_t v;
    bool fits = x->text.n <= DIGITS64;
    if (!ag_doc_int(d, x, info->path, fits ? INT64_MIN : info->min, fits ? INT64_MAX : info->max, &v)) return;
    int64_t in = v < info->min ? info->min : v > info->max ? info->max : v;
    int64_t nearest = info->min + (in - info->min + info->step / 2) / info->step * info->step;
    if (nearest > info->max) nearest -= info->step;
    f->v = v;
    if (in != v)
        ag_error(d, x->span, "%d <= %s <= %d does not hold: found %lld; nearest legal value %lld", info->min, info->path, info->max, (long long)v,
                 (long long)nearest);
    else if ((v - info->min) % info->step)
        ag_error(d, x->span, "%s %% %d == %d does not hold: %lld %% %d = %lld; nearest legal value %lld", info->path, info->step,
                 info->min % info->step, (long long)v, info->step, (long long)(v % info->step), (long long)nearest);
}

static void read_enum(Diag *d, const Doc *x, const FieldInfo *info, Field *f) {
    const char *names[MAX_KEYS] = {0};
    char *text = (char *)ag_str_copy(d->arena, ag_str(info->names)).s, *rest = text;
    for (int i = 0; i + 1 < MAX_KEYS; i++) names[i] = strtok_r(NULL, " ", &rest);
    int v;
    if (ag_doc_enum(d, x, info->path, names, &v)) f->v = v;
}

static void read_field(Reading *r, const Doc *x, int id) {
    const FieldInfo *info = &ag_field[id];
    Field *f = &r->s->f[id];
    *f = (Field){.v = f->v, .by = BY_FILE, .span = x->span};
    if (x->kind == DOC_SCALAR && !x->quoted && ag_str_is(x->text, "auto")) {
        f->open = true;
        return;
    }
    bool b;
    switch (info->kind) {
    case FIELD_INT: read_int(r->d, x, info, f); break;
    case FIELD_ENUM: read_enum(r->d, x, info, f); break;
    case FIELD_BOOL:
        if (ag_doc_bool(r->d, x, info->path, &b)) f->v = b;
        break;
    }
}

/* ---- the walk through the maps: one dotted path after the other */

/* All paths: what stands around the fields, then the fields; NULL past the end. */
static const char *path_at(int i) { return i < LEN(around) ? around[i].path : i < LEN(around) + F_COUNT ? ag_field[i - LEN(around)].path : NULL; }

/* The names that may follow `prefix` ("" or ending in a dot). */
static void names_after(Arena *a, const char *prefix, const char **names) {
    size_t skip = strlen(prefix);
    int n = 0;
    for (int i = 0; path_at(i); i++) {
        if (strncmp(path_at(i), prefix, skip)) continue;
        const char *name = path_at(i) + skip;
        const char *word = ag_fmt(a, "%.*s", (int)strcspn(name, "."), name).s;
        bool known = false;
        for (int j = 0; j < n; j++) known |= !strcmp(names[j], word);
        if (!known && n + 1 < MAX_KEYS) names[n++] = word;
    }
    names[n] = NULL;
}

static bool read_leaf(Reading *r, const char *path, const Doc *x) {
    for (int i = 0; path_at(i); i++) {
        if (strcmp(path_at(i), path)) continue;
        if (i < LEN(around))
            around[i].read(r, x);
        else
            read_field(r, x, i - LEN(around));
        return true;
    }
    return false;
}

static Str word_list(Arena *a, const char *const *names) {
    Str list = STR("");
    for (int i = 0; names[i]; i++) list = ag_fmt(a, "%s%s%s", list.s, i ? ", " : "", names[i]);
    return list;
}

/* Reads one map; its depth is that of the paths, so the recursion is bounded. */
static void read_map(Reading *r, const Doc *map, const char *prefix) {
    Arena *a = r->d->arena;
    const char *names[MAX_KEYS];
    names_after(a, prefix, names);
    const char *what = *prefix ? ag_fmt(a, "%.*s", (int)strlen(prefix) - 1, prefix).s : "the schedule";
    if (map->kind != DOC_MAP) {
        ag_error(r->d, map->span, "%s: expected a map with %s", what, word_list(a, names).s);
        return;
    }
    ag_doc_check_keys(r->d, map, what, names);
    for (int i = 0; i < map->n; i++) {
        bool known = false;
        for (int j = 0; names[j]; j++) known |= ag_str_is(map->key[i]->text, names[j]);
        if (!known) continue;
        const char *path = ag_fmt(a, "%s%.*s", prefix, STRF(map->key[i]->text)).s;
        if (!read_leaf(r, path, map->item[i])) read_map(r, map->item[i], ag_fmt(a, "%s.", path).s);
    }
}

static Schedule *defaults(Arena *a) {
    Schedule *s = NEW(a, Schedule);
    for (int i = 0; i < F_COUNT; i++) {
        bool open = ag_field[i].deflt == AUTO;
        s->f[i] = (Field){.v = open ? 0 : ag_field[i].deflt, .by = BY_DEFAULT, .open = open};
    }
    for (size_t i = 0; ag_target_at(i); i++) s->arch_mask |= 1u << i;
    s->head_dim_min = 1;
    s->head_dim_max = MAX_HEAD_DIM;
    s->order[0] = AX_Q, s->order[1] = AX_H, s->order[2] = AX_B;
    return s;
}

Schedule *ag_schedule_read(Diag *d, uint16_t file) {
    int errors = d->nerror;
    const Doc *doc = ag_doc_parse(d, file);
    if (d->nerror > errors) return NULL;
    Span start = {file, 0, 0};
    Reading r = {.d = d, .s = defaults(d->arena)};
    if (!doc) {
        ag_error(d, start, "the schedule is empty, expected 'schema: %s'", VERSION);
        return NULL;
    }
    read_map(&r, doc, "");
    if (doc->kind == DOC_MAP && !r.schema) ag_error(d, doc->span, "schema is missing: write 'schema: %s' first", VERSION);
    if (r.s->default_for.staged && !r.s->default_for.elements)
        ag_error(r.d, r.staged,
                 "default_for.staged has no effect, since specs that read no elements have none in tiles: write elements: true, or leave it out");
    if (r.s->default_for.max_loads && !r.s->default_for.elements)
        ag_error(d, r.loads,
                 "default_for.loads.max has no effect, since specs that read no elements have none: write elements: true, or leave it out");
    return d->nerror > errors ? NULL : r.s;
}
