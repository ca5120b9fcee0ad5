#include "program.h"
Kernel *ag_build_pool(const Fn *fn, int derive) { (void)derive; ag_unsupported(fn->d, (Span){0}, "stub pool"); ag_stop(fn->d); }
Kernel *ag_build_select(const Fn *fn, int derive) { (void)derive; ag_unsupported(fn->d, (Span){0}, "stub"); ag_stop(fn->d); }
Kernel *ag_build_combine(const Fn *fn) { ag_unsupported(fn->d, (Span){0}, "stub");ag_stop(fn->d); }
