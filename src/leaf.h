/* leaf.h: the device functions of templates/, embedded at build time by tools/embed.c; the emitter prints those that a kernel uses. */
#ifndef AG_LEAF_H
#define AG_LEAF_H

#include <stddef.h>

typedef struct Leaf {
    const char *name;
    const char *const *needs; /* names of the leaves that this one uses directly, NULL-terminated */
    const char *text;         /* ends in one newline */
    const char *file;         /* e.g. "sm80/mma.cuh" */
} Leaf;

const Leaf *ag_leaf_find(const char *name); /* NULL if there is none */
const Leaf *ag_leaf_at(size_t index);       /* NULL past the end; in order of file name, then of the file */
#endif
