/* check_select.c: whether what a kernel selected is a right selection.
 *
 * A list is ascending without duplicates, with -1 at its end only and only where fewer blocks can be selected; blocks that are always selected are in it.
 * Otherwise it may differ from the reference's where their importance is about equal (how much so: compare.c). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"

static int64_t heads_of(const Derive *x, const HostCall *call) { return call->size[x->per_head ? SZ_HQ : SZ_HKV]; }

bool ag_selections_init(Selections *s, const Spec *spec, const HostCall *call) {
    memset(s, 0, sizeof *s);
    s->n = spec->nderive;
    for (int i = 0; i < s->n; i++) {
        const Derive *x = &spec->derive[i];
        if (x->kind != DERIVE_SELECT) continue;
        size_t rows = (size_t)(call->size[SZ_B] * heads_of(x, call) * call->size[SZ_SQ]);
        size_t blocks = (size_t)ag_block_count(&x->block, call->size[SZ_SK]);
        s->len[i] = rows * (size_t)x->count.n;
        s->want[i] = calloc(s->len[i] + 1, sizeof *s->want[i]);
        s->got[i] = calloc(s->len[i] + 1, sizeof *s->got[i]);
        s->used[i] = calloc(s->len[i] + 1, sizeof *s->used[i]);
        s->importance[i] = calloc(rows * blocks + 1, sizeof *s->importance[i]);
        bool room = s->want[i] && s->got[i] && s->used[i] && s->importance[i];
        if (!room || !ag_reference_select(spec, call, i, s->want[i], s->importance[i])) return false;
        memcpy(s->used[i], s->want[i], s->len[i] * sizeof *s->used[i]);
    }
    return true;
}

void ag_selections_free(Selections *s) {
    for (int i = 0; i < SPEC_MAX_DERIVES; i++) {
        free(s->want[i]);
        free(s->got[i]);
        free(s->used[i]);
        free(s->importance[i]);
    }
}

typedef struct List {
    const int32_t *pick;
    int count;
    const double *importance;
    int64_t blocks;
} List;

static bool has(const int32_t *pick, int count, int64_t block) {
    for (int i = 0; i < count; i++)
        if (pick[i] == block) return true;
    return false;
}

/* Which rule the list breaks, NULL if none; *where: the entry or block to blame. */
static const char *broken_rule(const List *l, int64_t *where) {
    int64_t eligible = 0, n = 0;
    for (int64_t j = 0; j < l->blocks; j++) eligible += l->importance[j] != -INFINITY;
    for (int i = 0; i < l->count; i++) {
        *where = l->pick[i];
        if (l->pick[i] == -1 && i >= eligible) continue;
        if (l->pick[i] == -1) return "the list ends though there are more blocks";
        if (n < i) return "there is an entry behind -1";
        if (l->pick[i] < 0 || l->pick[i] >= l->blocks) return "there is no such block";
        if (l->importance[l->pick[i]] == -INFINITY) return "the block must not be selected";
        if (i && l->pick[i] <= l->pick[i - 1]) return "the list is not ascending";
        n++;
    }
    return NULL;
}

/* A block that the reference has and the list has not, though it matters more than one that the list has instead: by how much too much. */
static const char *broken_choice(const List *l, const int32_t *want, double tolerance, int64_t *where) {
    double largest = 0, least = INFINITY;
    for (int64_t j = 0; j < l->blocks; j++)
        if (isfinite(l->importance[j]) && l->importance[j] > -1e300) largest = fmax(largest, fabs(l->importance[j]));
    for (int i = 0; i < l->count; i++)
        if (l->pick[i] >= 0 && !has(want, l->count, l->pick[i])) least = fmin(least, l->importance[l->pick[i]]);
    for (int i = 0; i < l->count && least < INFINITY; i++) {
        if (want[i] < 0 || has(l->pick, l->count, want[i])) continue;
        *where = want[i];
        if (l->importance[want[i]] == INFINITY) return "a block that is always selected is missing";
        if (l->importance[want[i]] - least > tolerance * largest) return "a block is missing that matters more than one that is there";
    }
    return NULL;
}

bool ag_selections_judge(const Selections *s, const Spec *spec, const HostCall *call, double tolerance, char *text, size_t n) {
    for (int i = 0; i < s->n; i++) {
        const Derive *x = &spec->derive[i];
        int count = x->count.n;
        int64_t blocks = x->kind == DERIVE_SELECT ? ag_block_count(&x->block, call->size[SZ_SK]) : 0, sq = call->size[SZ_SQ];
        for (size_t at = 0; at < s->len[i]; at += (size_t)count) {
            int64_t row = (int64_t)at / count, heads = heads_of(x, call), where = 0;
            List l = {s->got[i] + at, count, s->importance[i] + row * blocks, blocks};
            const char *why = broken_rule(&l, &where);
            if (!why) why = broken_choice(&l, s->want[i] + at, tolerance, &where);
            if (!why) continue;
            snprintf(text, n, "%.*s[b %" PRId64 ", %s %" PRId64 ", q %" PRId64 "]: %s: %" PRId64, STRF(x->name), row / sq / heads,
                     x->per_head ? "h" : "g", row / sq % heads, row % sq, why, where);
            return false;
        }
    }
    return true;
}
