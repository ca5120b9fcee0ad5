/* check_grid.c: which cases `attngen check` runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_case.h"

#define END ATTNGEN_ALIGN_END

/* The quick grid.  Lengths 0, 1, 7, 63, 64, 65, 127, 129, 704; groups 1, 3, 5, 6, 7, 8; every layout. */
static const Case quick[] = {
    /*  B  Hkv grp  Sq   Sk  offset   layout         large  param   no_lse */
    {1, 1, 1, 64, 64, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 1, 1, 1, 1, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 2, 1, 65, 65, END, LAY_TAIL, false, 0, false, 0, 0, 0},
    {2, 1, 3, 63, 127, END, LAY_BSHD, false, 0, false, 0, 0, 0},
    {1, 1, 1, 127, 129, END, LAY_PITCH, false, 0, false, 0, 0, 0},
    {1, 1, 6, 129, 63, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {3, 1, 5, 7, 65, END, LAY_TAIL, false, 0, false, 0, 0, 0},
    {1, 2, 7, 7, 7, END, LAY_BSHD, false, 0, false, 0, 0, 0},
    {1, 1, 8, 1, 704, END, LAY_TAIL, false, 0, false, 0, 0, 0},
    {2, 2, 1, 64, 129, END, LAY_BROADCAST, false, 0, false, 0, 0, 0},
    {1, 1, 1, 129, 129, END, LAY_STEP, false, 0, false, 0, 0, 0},
    {1, 2, 1, 127, 65, END, LAY_REVERSED, false, 0, false, 0, 0, 0},
    {1, 1, 3, 63, 63, END, LAY_ODD, false, 0, false, 0, 0, 0},
    {1, 1, 1, 0, 64, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 2, 1, 65, 0, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {0, 1, 1, 64, 64, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 0, 1, 64, 64, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 1, 1, 64, 129, 0, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 1, 1, 129, 65, -70, LAY_TAIL, false, 0, false, 0, 0, 0},
    {1, 1, 3, 63, 64, -1000, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 1, 1, 65, 127, 1 << 20, LAY_TAIL, false, 0, false, 0, 0, 0},
    {1, 1, 1, 7, 129, (1 << 29) - 7, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 1, 1, 129, 127, END, LAY_TAIL, true, 0, false, 0, 0, 0},
    {1, 1, 1, 65, 129, END, LAY_PLAIN, true, 0, false, 0, 0, ATTNGEN_F16},
    {1, 2, 1, 129, 65, END, LAY_TAIL, false, 0, false, 0, 0, ATTNGEN_F16},
    {1, 1, 1, 65, 64, END, LAY_PLAIN, false, 0, true, 0, 0, 0},
    {1, 1, 1, 129, 704, END, LAY_TAIL, false, 0, false, 0, 0, 0},
    {1, 1, 1, 704, 129, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
    {1, 1, 1, 704, 704, END, LAY_TAIL, false, 0, false, 0, 0, 0},
};

/* Windows and the like: shorter than a tile, within it, past both ends. */
static const Case with_params[] = {
    {1, 1, 1, 129, 129, END, LAY_TAIL, false, 1, false, 0, 0, 0},    {1, 1, 3, 65, 704, END, LAY_TAIL, false, 7, false, 0, 0, 0},
    {1, 1, 1, 129, 129, END, LAY_PLAIN, false, 64, false, 0, 0, 0},  {1, 2, 1, 704, 127, END, LAY_PLAIN, false, 100, false, 0, 0, 0},
    {1, 1, 1, 65, 129, -3, LAY_TAIL, false, 100000, false, 0, 0, 0}, {1, 1, 1, 129, 65, END, LAY_TAIL, false, 1 << 30, false, 0, 0, 0},
    {1, 1, 1, 63, 129, 100, LAY_TAIL, false, 40, false, 0, 0, 0},
};

/* Head dims of the contract; D and Dv. */
static const int head_dim[][2] = {{31, 31}, {40, 40}, {64, 64}, {72, 72}, {80, 80}, {96, 96}, {128, 128}, {160, 160}, {192, 128}, {256, 256}};
/* What each of them runs on. */
static const Case per_dim[] = {
    {1, 1, 3, 65, 129, END, LAY_TAIL, false, 0, false, 0, 0, ATTNGEN_BF16},
    {1, 1, 1, 129, 127, END, LAY_BSHD, false, 0, false, 0, 0, ATTNGEN_F16},
};
static const Case per_dim_full[] = {
    {1, 2, 1, 1, 704, END, LAY_TAIL, false, 0, false, 0, 0, ATTNGEN_F16},
    {2, 1, 1, 127, 63, END, LAY_PITCH, false, 0, false, 0, 0, ATTNGEN_BF16},
    {1, 1, 2, 704, 704, END, LAY_PLAIN, false, 0, false, 0, 0, ATTNGEN_BF16},
    {1, 1, 1, 704, 704, END, LAY_TAIL, false, 0, false, 0, 0, ATTNGEN_F16},
};

static const int length[] = {0, 1, 7, 63, 64, 65, 127, 129, 704};
static const int group[] = {1, 3, 5, 6, 7, 8};

static void add(CaseList *l, const GridWants *w, Case c) {
    if (w->group) c.group = w->group;
    if (!w->any_dtype) c.dtype = 0;
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 64;
        Case *p = realloc(l->item, sizeof *p * (size_t)cap);
        if (!p) {
            l->oom = true;
            return;
        }
        l->item = p;
        l->cap = cap;
    }
    l->item[l->n++] = c;
}

static void add_all(CaseList *l, const GridWants *w, const Case *c, int n, const int dim[2]) {
    for (int i = 0; i < n; i++) {
        Case x = c[i];
        if (dim) x.D = dim[0], x.Dv = dim[1];
        add(l, w, x);
    }
}

/* Of specs with branches: groups 1, 2, 3, 4, 6, 16; lengths around the edges of blocks and pooled blocks, and so many keys that a selection has to choose. */
static void add_program(CaseList *l, const GridWants *w) {
    const int b = w->block, p = w->pool, s = w->stride, m = w->choice;
    const Case c[] = {
        {1, 1, 1, 64, 64, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 1, 1, 1, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 2, 33, 2 * b + 1, END, LAY_TAIL, false, 0, false, 0, 0, 0},
        {2, 1, 3, b - 1, b - 1, END, LAY_BSHD, false, 0, false, 0, 0, 0},
        {1, 2, 4, 17, b, END, LAY_PITCH, false, 0, false, 0, 0, 0},
        {1, 1, 6, 5, 3 * b + 5, END, LAY_BROADCAST, false, 0, false, 0, 0, 0},
        {1, 1, 16, 3, b + 1, END, LAY_STEP, false, 0, false, 0, 0, 0},
        {1, 2, 2, 33, 2 * b + 3, END, LAY_REVERSED, false, 0, false, 0, 0, 0},
        {1, 1, 1, 1, m, END, LAY_TAIL, false, 0, false, 0, 0, 0},
        {2, 2, 4, 1, m - 1, END, LAY_BSHD, false, 0, true, 0, 0, 0},
        {1, 1, 2, 1, m + 7, m / 2, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 4, 9, m + 5, END, LAY_ODD, false, 0, false, 0, 0, 0},
        {1, 2, 1, 40, m + b + 3, END, LAY_TAIL, false, 0, false, 0, 0, 0},
        {1, 1, 16, 2, m, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 1, p + s + 1, p - 1, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 2, p + s + 1, p, END, LAY_TAIL, false, 0, false, 0, 0, 0},
        {1, 2, 1, 20, p + s - 1, END, LAY_BSHD, false, 0, false, 0, 0, 0},
        {2, 1, 3, 20, p + s, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 1, 0, 64, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 2, 2, 65, 0, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {0, 1, 1, 64, 64, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 0, 1, 64, 64, END, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 3, 40, 2 * b + 9, -20, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 1, 7, b, -1000, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 2, 20, 2 * b, 1 << 20, LAY_TAIL, false, 0, false, 0, 0, 0},
        {1, 1, 1, 7, 129, (1 << 29) - 7, LAY_PLAIN, false, 0, false, 0, 0, 0},
        {1, 1, 2, 33, m, END, LAY_TAIL, true, 0, false, 0, 0, 0},
        {1, 1, 1, 20, m, END, LAY_PLAIN, true, 0, false, 0, 0, ATTNGEN_F16},
        {1, 2, 4, 20, m + 1, END, LAY_BSHD, false, 0, false, 0, 0, ATTNGEN_F16},
        {1, 1, 1, 129, 129, END, LAY_TAIL, false, 0, false, 0, 0, 0},
    };
    add_all(l, w, c, (int)(sizeof c / sizeof *c), NULL);
}

/* Their whole grid: pairs of lengths at edges, every group up to 8 and some beyond; and a long one, whose selections have much to choose from. */
static void add_program_pairs(CaseList *l, const GridWants *w) {
    static const int groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33, 64};
    const int sk[] = {1, w->pool, w->block - 1, w->block + 1, 2 * w->block, w->choice, w->choice + w->block + 1}, sq[] = {1, 7, 33, w->block + 1};
    int turn = 0;
    for (int i = 0; i < (int)(sizeof sq / sizeof *sq); i++)
        for (int j = 0; j < (int)(sizeof sk / sizeof *sk); j++, turn++) {
            int g = groups[turn % (int)(sizeof groups / sizeof *groups)];
            add(l, w,
                (Case){1 + turn % 3 % 2, 1 + turn % 2, g, g > 8 && sq[i] > 7 ? 7 : sq[i], sk[j], END, (TensorLayout)(turn % LAY_COUNT), false, 0,
                       false, 0, 0, 0});
        }
    add(l, w, (Case){1, 2, 2, 704, w->choice, END, LAY_TAIL, false, 0, false, 0, 0, 0});
    add(l, w, (Case){1, 1, 1, 4096, 4096, END, LAY_BSHD, false, 0, false, 0, 0, 0});
}

static const Case per_dim_program[] = {
    {1, 1, 2, 33, 129, END, LAY_TAIL, false, 0, false, 0, 0, ATTNGEN_BF16},
    {1, 1, 1, 20, 127, END, LAY_BSHD, false, 0, false, 0, 0, ATTNGEN_F16},
};

/* Every pair of lengths, with batch sizes, groups and layouts in turn. */
static void add_pairs(CaseList *l, const GridWants *w) {
    int turn = 0, n = (int)(sizeof length / sizeof *length), ngroup = (int)(sizeof group / sizeof *group);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++, turn++)
            add(l, w,
                (Case){1 + turn % 3 % 2, 1 + turn % 2, length[i] + length[j] > 800 ? 1 : group[turn % ngroup], length[i], length[j], END,
                       (TensorLayout)(turn % LAY_COUNT), false, 0, false, 0, 0, 0});
}

static void add_plain(CaseList *l, const GridWants *w) {
    add_all(l, w, quick, (int)(sizeof quick / sizeof *quick), NULL);
    if (w->int_params) add_all(l, w, with_params, (int)(sizeof with_params / sizeof *with_params), NULL);
    if (w->full) add_pairs(l, w);
    if (w->full) add(l, w, (Case){66, 1000 / (w->group ? w->group : 1), 1, 1, 7, END, LAY_PLAIN, false, 0, false, 0, 0, 0}); /* B * Hq beyond 65535 */
}

void ag_check_grid(CaseList *l, const GridWants *w) {
    int ndim = (int)(sizeof head_dim / sizeof *head_dim);
    if (!w->program) add_plain(l, w);
    if (w->program) add_program(l, w);
    if (w->program && w->int_params) add_all(l, w, with_params, (int)(sizeof with_params / sizeof *with_params), NULL);
    if (w->program && w->full) add_program_pairs(l, w);
    for (int i = 0; i < ndim && w->any_dim; i++) {
        if (w->program)
            add_all(l, w, per_dim_program, (int)(sizeof per_dim_program / sizeof *per_dim_program), head_dim[i]);
        else
            add_all(l, w, per_dim, (int)(sizeof per_dim / sizeof *per_dim), head_dim[i]);
        if (w->full && !w->program) add_all(l, w, per_dim_full, (int)(sizeof per_dim_full / sizeof *per_dim_full), head_dim[i]);
    }
    for (int i = 0; i < l->n && w->parts; i++) l->item[i].B *= 2;
}

const char *const ag_layout_name[LAY_COUNT] = {"plain", "tail", "bshd", "pitch", "step", "broadcast", "reversed", "odd"};

void ag_check_case_name(char *out, size_t n, const Case *c, const Spec *spec) {
    bool plain = c->layout == LAY_PLAIN;
    char dims[32], offset[32] = "", param[32] = "";
    snprintf(dims, sizeof dims, spec->D == spec->Dv ? "%d" : "%d/%d", spec->D, spec->Dv);
    if (c->offset != END) snprintf(offset, sizeof offset, " offset %lld", (long long)c->offset);
    if (c->param) snprintf(param, sizeof param, " params %lld", (long long)c->param);
    snprintf(out, n, "D%s %s B%d H%d/%d S%dx%d%s%s%s%s%s%s", dims, ag_dtype_name[spec->dtype], c->B, c->Hkv * c->group, c->Hkv, c->Sq, c->Sk, offset,
             param, plain ? "" : " ", plain ? "" : ag_layout_name[c->layout], c->large ? " large" : "", c->no_lse ? " no-lse" : "");
}
