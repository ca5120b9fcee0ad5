/* compile.c: texts in, CUDA text out: the list of passes, what is checked between them, and the one setjmp of the compiler half. */
#include "program.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* In order.  A fact that a pass does not break holds after it: interning keeps Node.axes right while passes rebuild, so only simplify, which may
 * change what a node depends on, breaks the analyses. */
#define MATH_FACTS (FACT_LOWERED | FACT_SIMPLE | FACT_AXES | FACT_RANGE | FACT_STREAM)
const Pass ag_pass[] = {
    {"simplify", ag_pass_simplify, false, FACT_LOWERED, FACT_SIMPLE, FACT_AXES | FACT_RANGE},
    {"hoist", ag_pass_hoist, false, FACT_LOWERED | FACT_SIMPLE, FACT_AXES, 0},
    {"ranges", ag_pass_ranges, false, FACT_LOWERED | FACT_SIMPLE | FACT_AXES, FACT_RANGE, 0},
    {"online", ag_pass_online, false, FACT_LOWERED | FACT_SIMPLE | FACT_AXES, FACT_STREAM, 0},
    {"tile", ag_pass_tile, true, MATH_FACTS, FACT_TILED, 0},
    {"split", ag_pass_split, true, MATH_FACTS | FACT_TILED, FACT_SPLIT, 0},
    {"pipeline", ag_pass_pipeline, true, FACT_TILED | FACT_SPLIT, FACT_PIPELINED, 0},
    {"divide", ag_pass_divide, true, FACT_TILED | FACT_SPLIT | FACT_PIPELINED, FACT_DIVIDED, 0},
    {"place", ag_pass_place, true, FACT_TILED | FACT_SPLIT | FACT_PIPELINED, FACT_PLACED, 0},
    {NULL, NULL, false, 0, 0, 0},
};

/* By bit. */
static const char *const fact_name[] = {"lowered", "simple", "axes", "range", "stream", "tiled", "split", "pipelined", "divided", "placed"};

/* ---- passes */

static void check_needs(const Fn *fn, const Pass *p) {
    unsigned missing = p->needs & ~fn->facts;
    for (int bit = 0; bit < LEN(fact_name); bit++)
        if (missing >> bit & 1) ag_internal(fn->d, "pass %s needs the fact `%s`, which no pass before it has made", p->name, fact_name[bit]);
}

static void check_ir(const Fn *fn, bool tile) {
    if (tile)
        ag_tile_check(fn->kernel, fn->facts);
    else
        ag_math_check(fn->math, fn->facts);
}

/* Whoever asks for an IR by name of a pass gets it checked in every build. */
static bool checks_wanted(const Request *r) {
#ifdef NDEBUG
    return r->after != NULL;
#else
    (void)r;
    return true;
#endif
}

void ag_run_passes(Fn *fn, const Request *r) {
    for (const Pass *p = ag_pass; p->name; p++) {
        check_needs(fn, p);
        ag_stop_if_errors(fn->d);
        p->run(fn);
        ag_stop_if_errors(fn->d);
        fn->facts = (fn->facts & ~p->breaks) | p->makes;
        if (checks_wanted(r)) check_ir(fn, p->tile);
        ag_stop_if_errors(fn->d);
        if (r->after && strcmp(p->name, r->after) == 0) return;
    }
    if (!r->after) return;
    ag_internal(fn->d, "there is no pass `%s`", r->after);
    ag_stop(fn->d);
}

/* ---- inputs */

static Str copy_bytes(Diag *d, const char *s, size_t n) {
    if (n > INT_MAX) n = INT_MAX; /* far above what the reader takes: it refuses the rest too */
    return ag_str_copy(d->arena, (Str){n ? s : "", (int)n});
}

static uint16_t add_source(Diag *d, const attngen_source *s) {
    const char *name = s->name ? s->name : "<text>";
    return ag_diag_file(d, ag_str_copy(d->arena, ag_str(name)), copy_bytes(d, s->text, s->len));
}

static attngen_source source_of(const DiagFile *f) { return (attngen_source){f->name.s, f->text.s, (size_t)f->text.n}; }

static void copy_dims(Compilation *c, const Request *r) {
    c->dims = NEWN(c->diag.arena, attngen_dim, r->ndims);
    c->ndims = r->ndims;
    for (size_t i = 0; i < r->ndims; i++) c->dims[i] = (attngen_dim){ag_str_copy(c->diag.arena, ag_str(r->dims[i].name)).s, r->dims[i].value};
}

static const Target *find_target(Diag *d, const char *arch) {
    const Target *t = ag_target_find(arch);
    if (t) return t;
    Str list = STR("");
    for (size_t i = 0; ag_target_at(i); i++) list = ag_fmt(d->arena, "%s%s%s", list.s, i ? ", " : "", ag_target_at(i)->name);
    ag_unsupported(d, (Span){0}, "no kernels for the architecture `%s`; known: %s", arch, list.s);
    return NULL;
}

static attngen_source shipped_source(const Shipped *s) { return (attngen_source){s->name, s->text, (size_t)s->len}; }

static const Shipped *find_schedule(const char *name) {
    for (size_t i = 0; ag_shipped_schedule(i); i++)
        if (strcmp(ag_shipped_schedule(i)->name, name) == 0) return ag_shipped_schedule(i);
    return NULL;
}

static bool is_shipped(const attngen_source *s) {
    for (size_t i = 0; ag_shipped_schedule(i); i++) {
        const Shipped *x = ag_shipped_schedule(i);
        if ((size_t)x->len == s->len && memcmp(x->text, s->text, s->len) == 0) return true;
    }
    return false;
}

static attngen_source default_schedule(Compilation *c, const Spec *spec, const Target *t, int64_t queries, int fallback) {
    Diag *d = &c->diag;
    bool fits = !c->unstaged && !c->quick; /* of the others there is one for a spec, and none behind it */
    const char *name = fallback      ? (fits ? ag_schedule_fallback(spec, t, queries, fallback) : NULL)
                       : c->unstaged ? ag_schedule_unstaged(spec, t)
                       : c->quick    ? ag_schedule_quick(spec, t)
                                     : ag_schedule_default(spec, t, queries);
    const Shipped *s = name ? find_schedule(name) : NULL;
    if (!s && name) ag_internal(d, "the default schedule `%s` is not among the shipped ones", name);
    if (!s && !name)
        ag_unsupported(d, spec->span, "no shipped schedule fits head dims %d and %d on %s; pass one of your own", spec->D, spec->Dv, t->name);
    ag_stop_if_errors(d);
    return shipped_source(s);
}

/* As attention has it: rows with channels appended, or several branches that are one kernel. */
static const Spec *attention_of(Compilation *c, const Request *r, Spec *spec) {
    const Field *f = c->sched ? &c->sched->f[F_BRANCHES] : NULL;
    bool said = f && !f->open && f->by == BY_FILE;
    const char *why = spec->nbranch ? ag_not_joined(spec) : NULL;
    if (said && f->v == BRANCHES_FUSED && why) {
        ag_unsupported(&c->diag, f->span, "loop.branches: fused makes one kernel of all branches, which these cannot be: %s; write apart", why);
        ag_note(&c->diag, spec->branch[0].span, "the branches begin here");
        ag_stop(&c->diag);
    }
    bool join = spec->nbranch && !why && (said ? f->v == BRANCHES_FUSED : r->branches ? r->branches == 1 + BRANCHES_FUSED : ag_join_pays(spec));
    return join ? ag_joined_spec(c->diag.arena, spec) : ag_attention_spec(c->diag.arena, spec);
}

/* A shipped schedule has the tile of one attention. */
static void reopen_tile(Schedule *s) { s->f[F_TILE_M].open = s->f[F_TILE_N].open = true; }

/* All errors of both files in one run; the schedule that fits is looked for only when the spec is right. */
static void read_inputs(Compilation *c, const Request *r) {
    Diag *d = &c->diag;
    const Target *target = find_target(d, r->arch);
    Spec *spec = ag_spec_read(d, add_source(d, r->spec), c->dims, c->ndims);
    const Spec *attention = NULL;
    attngen_source shipped, *schedule = NULL;
    if (r->schedule) c->sched = ag_schedule_read(d, add_source(d, r->schedule));
    ag_stop_if_errors(d);
    if (!r->schedule && target->portable && !ag_scores_products(spec))
        target = find_target(d, target->portable); /* wgmma has no such kernels, see ag_specialise */
    c->attention = attention = attention_of(c, r, spec);
    if (!r->schedule) {
        shipped = default_schedule(c, attention, target, spec->queries ? spec->queries : -1, r->fallback);
        schedule = &shipped;
        c->sched = ag_schedule_read(d, add_source(d, schedule));
        ag_stop_if_errors(d);
        if (r->unstaged) c->sched->f[F_PERSISTENT] = (Field){.v = PERSISTENT_STATIC, .by = BY_RULE, .why = "its callers have no counter for it"};
        if (attention->joined && !c->sched->default_for.branches) reopen_tile(c->sched);
    }
    c->shipped = schedule || is_shipped(r->schedule);
    c->chosen = schedule != NULL;
    c->fallback = r->fallback;
    ag_schedule_close(d, c->sched, attention, target);
    ag_stop_if_errors(d);
    c->schedule_name = ag_str_copy(d->arena, c->sched->name).s;
    c->fn = (Fn){.d = d, .spec = spec, .sched = c->sched, .target = target};
}

static Schedule *read_schedule(Diag *d, const attngen_source *text) { return ag_schedule_read(d, add_source(d, text)); }

static Schedule *read_for(Compilation *c, const Spec *spec, int64_t queries) {
    Diag *d = &c->diag;
    attngen_source text = source_of(&d->file[2]);
    int fallback =
        c->fallback && ag_schedule_fallback(spec, c->fn.target, queries, c->fallback) ? c->fallback : 0; /* of branches not every one may have it */
    if (c->chosen) text = default_schedule(c, spec, c->fn.target, queries, fallback);
    Schedule *s = c->chosen ? read_schedule(d, &text) : ag_schedule_read(d, 2);
    ag_stop_if_errors(d);
    return s;
}

static Schedule *close_for(Compilation *c, Schedule *s, const Spec *spec) {
    ag_schedule_close(&c->diag, s, spec, c->fn.target);
    ag_stop_if_errors(&c->diag);
    return s;
}

Schedule *ag_schedule_for(Compilation *c, const Spec *spec, int64_t queries) { return close_for(c, read_for(c, spec, queries), spec); }

static void set(Schedule *s, FieldId id, int64_t v) { s->f[id].v = v, s->f[id].open = false; }

Schedule *ag_schedule_narrow(Compilation *c, const Spec *spec) {
    enum { KEYS = 64, STAGES = 3, STAGED_DIM = 128 };
    const Field *wide = ag_schedule_for(c, spec, -1)->f;
    Schedule *s = read_for(c, spec, -1);
    int64_t m = wide[F_TILE_M].v;
    int group = spec->group;
    set(s, F_TILE_M, m);
    if (wide[F_TILE_N].v > KEYS) set(s, F_TILE_N, KEYS);
    if (group > 1 && group <= KEYS && (group & (group - 1)) == 0 && m % group == 0) set(s, F_PACK_GQA, true);
    if (wide[F_PERSISTENT].v == PERSISTENT_DYNAMIC) set(s, F_PERSISTENT, PERSISTENT_STATIC);
    if (wide[F_MMA_FAMILY].v == FAMILY_WGMMA && spec->D <= STAGED_DIM && spec->Dv <= STAGED_DIM)
        set(s, F_K_STAGES, STAGES), set(s, F_V_STAGES, STAGES);
    return close_for(c, s, spec);
}

/* ---- the whole */

/* A spec without branches: its one kernel. */
static void compile_plain(Compilation *c, const Request *r) {
    Fn *fn = &c->fn;
    const Spec *whole = fn->spec;
    fn->spec = c->attention;
    fn->math = ag_lower(fn->d, fn->spec);
    ag_stop_if_errors(fn->d);
    fn->facts = FACT_LOWERED;
    if (checks_wanted(r)) check_ir(fn, false);
    ag_stop_if_errors(fn->d);
    fn->classified = !r->alone;
    fn->mapped = r->mapped;
    if (!(r->after && strcmp(r->after, "lower") == 0)) ag_run_passes(fn, r);
    ag_add_map(c, fn, ag_program_tiles(whole, 0));
    c->part[c->npart++] = *fn;
    fn->spec = whole;
}

/* The class of a program: of its first attention, and that parts are merged if they are anywhere. */
static const char *numerics_of(const Compilation *c) {
    Str name = c->fn.kernel->numerics;
    bool parts = false;
    for (int i = 0; i < c->npart; i++) parts |= c->part[i].kernel->kind == KERNEL_GATHER || c->part[i].kernel->forced;
    if (parts && c->fn.kernel->kind != KERNEL_GATHER) name = ag_fmt(c->diag.arena, "%.*s-parts", STRF(name));
    return ag_str_copy(c->diag.arena, name).s;
}

static void compile(Compilation *c, const Request *r) {
    Fn *fn = &c->fn;
    copy_dims(c, r);
    read_inputs(c, r);
    if (!r->after) ag_build_prologue(c);
    (fn->spec->nbranch ? ag_compile_program : compile_plain)(c, r);
    if (r->after) return;
    ag_link_prologue(c);
    Kernel *kernel[META_KERNELS];
    for (int i = 0; i < c->npart; i++) {
        kernel[i] = c->part[i].kernel;
        kernel[i]->bounded = r->debug_hang && ag_has_mbarriers(kernel[i]);
    }
    ag_emit(&c->cu, fn->spec, kernel, c->npart, c->cu_at);
    if (c->cu.oom) ag_oom(fn->d->arena);
    ag_program_meta(&c->meta, fn->spec, kernel, c->npart);
    ag_stop_if_errors(fn->d);
    c->numerics = numerics_of(c);
}

/* false: memory is out. */
static bool compile_guarded(Compilation *c, const Request *r) {
    switch (setjmp(c->diag.jump)) {
    case 0: compile(c, r); return true;
    case AG_JUMP_STOP: return true;
    default: return false;
    }
}

Compilation *ag_compile(const Request *r) {
    Compilation *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->debug_hang = r->debug_hang;
    c->unstaged = r->unstaged;
    c->quick = r->quick;
    c->diag.arena = ag_arena_new();
    if (c->diag.arena) {
        ag_arena_on_oom(c->diag.arena, &c->diag.jump);
        bool ok = compile_guarded(c, r);
        ag_arena_on_oom(c->diag.arena, NULL);
        if (ok) return c;
    }
    ag_compilation_free(c);
    return NULL;
}

Compilation *ag_compile_text(const attngen_source *spec, const attngen_source *schedule, const char *arch, const attngen_dim *dims, size_t ndims,
                             const char *after) {
    return ag_compile(&(Request){.spec = spec, .schedule = schedule, .arch = arch, .dims = dims, .ndims = ndims, .after = after});
}

Compilation *ag_compile_again(const Compilation *c, const char *after) {
    attngen_source spec = source_of(&c->diag.file[1]), schedule = source_of(&c->diag.file[2]);
    return ag_compile(&(Request){.spec = &spec,
                                 .schedule = &schedule,
                                 .arch = c->fn.target->name,
                                 .dims = c->dims,
                                 .ndims = c->ndims,
                                 .after = after,
                                 .debug_hang = c->debug_hang,
                                 .branches = 1 + (c->attention->joined ? BRANCHES_FUSED : BRANCHES_APART)});
}

void ag_compilation_free(Compilation *c) {
    if (!c) return;
    ag_buf_free(&c->cu);
    ag_arena_free(c->diag.arena);
    free(c);
}
