/* err.c: the sentence for the user that goes with a status of the runtime half. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jit.h"

attngen_status ag_err(Err *e, attngen_status s, const char *fmt, ...) {
    if (!e) return s;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n < 0) e->text[0] = 0;
    if (n >= (int)sizeof e->text) memcpy(e->text + sizeof e->text - 4, "...", 4);
    return s;
}
