/* shipped.c: access to the specs, schedules and leaves that tools/embed.c made tables of. */
#include <string.h>

#include "input.h"
#include "leaf.h"

/* Generated; each ends with a row whose name is NULL. */
extern const Shipped ag_table_spec[], ag_table_schedule[];
extern const Leaf ag_table_leaf[];

static const Shipped *row(const Shipped *table, size_t index) {
    for (size_t i = 0; table[i].name; i++)
        if (i == index) return &table[i];
    return NULL;
}

const Shipped *ag_shipped_spec(size_t index) { return row(ag_table_spec, index); }
const Shipped *ag_shipped_schedule(size_t index) { return row(ag_table_schedule, index); }

const Leaf *ag_leaf_at(size_t index) {
    for (size_t i = 0; ag_table_leaf[i].name; i++)
        if (i == index) return &ag_table_leaf[i];
    return NULL;
}

const Leaf *ag_leaf_find(const char *name) {
    for (const Leaf *l = ag_table_leaf; l->name; l++)
        if (strcmp(l->name, name) == 0) return l;
    return NULL;
}
