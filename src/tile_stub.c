#include "program.h"
Kernel *ag_build_select(const Fn *fn, int derive) { (void)derive; ag_unsupported(fn->d, (Span){0}, "stub"); ag_stop(fn->d); }
