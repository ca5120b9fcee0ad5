/* emit.h: inside the emitter.  emit.c prints the file, emit_ins.c instructions, emit_expr.c expressions. */
#ifndef AG_EMIT_H
#define AG_EMIT_H

#include "tile_ir.h"

typedef struct Emit {
    const Kernel *k;
    Buf *out;
    int indent;
    bool *declared;     /* per value: its variable has been printed */
    bool head[TEN_COUNT]; /* per tensor: the pointer to this block's batch and head has been printed */
    const char *elem;   /* storage type: "bf16" or "f16" */
} Emit;

/* How the leaves of an expression are written. */
typedef struct Names {
    const char *mi, *ni, *ei;  /* indices of a fragment element: m tile, n tile, element 0..3 */
    const char *r;             /* index of its row pair: 0 or 1 */
} Names;

void ag_emit_line(Emit *e, const char *fmt, ...) PRINTF(2, 3); /* one indented line */
/* Scalar or element expression as C text. names NULL: uniform scalars only. */
void ag_emit_expr(const Emit *e, Buf *out, Ref r, const Names *names);
/* Declares what an expression uses more than once as constants, so that text stays linear in the number of nodes; then r prints as one expression. */
void ag_emit_shared(Emit *e, Ref r, const Names *names, bool *shared);
void ag_emit_expr_with(const Emit *e, Buf *out, Ref r, const Names *names, const bool *shared);
bool ag_expr_uses(const Kernel *k, Ref r, Op op, int index); /* does r read this leaf? */
void ag_emit_block(Emit *e, const Block *b);
int ag_frag_mt(const Kernel *k, const Val *v); /* m16 tiles per warp */
#endif
