/* target.c: the limits of each architecture, one row each. */
#include "input.h"

#include <string.h>

static const Target targets[] = {
    /* name    sm  shared/block  /SM  registers/SM /thread threads/block /SM  blocks/SM cp.async bf16 mma wgmma portable */
    {"sm_80", 80, 166912, 167936, 65536, 255, 1024, 2048, 32, true, true, false, NULL},
    {"sm_86", 86, 101376, 102400, 65536, 255, 1024, 1536, 16, true, true, false, NULL},
    {"sm_89", 89, 101376, 102400, 65536, 255, 1024, 1536, 24, true, true, false, NULL},
    {"sm_90", 90, 232448, 233472, 65536, 255, 1024, 2048, 32, true, true, false, NULL},
    {"sm_90a", 90, 232448, 233472, 65536, 255, 1024, 2048, 32, true, true, true, "sm_90"},
};

const Target *ag_target_at(size_t index) { return index < (size_t)LEN(targets) ? &targets[index] : NULL; }

/* Cubins run on their own architecture and on later ones of the same major version; those of the rows with a portable one on their own alone. */
const Target *ag_target_of_device(int sm) {
    const Target *best = NULL;
    for (int i = 0; i < LEN(targets); i++) {
        const Target *t = &targets[i];
        bool runs = t->portable ? t->sm == sm : t->sm <= sm && t->sm / 10 == sm / 10;
        if (runs && (!best || t->sm >= best->sm)) best = t;
    }
    return best;
}

const Target *ag_target_find(const char *name) {
    for (int i = 0; i < LEN(targets); i++)
        if (!strcmp(targets[i].name, name)) return &targets[i];
    return NULL;
}
