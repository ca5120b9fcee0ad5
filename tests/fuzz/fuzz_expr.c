/* fuzz_expr.c: any text as an expression.  The first byte picks what it should be.  What is accepted must print as text that reads back to the same print,
 * and evaluate. */
#include <string.h>

#include "fuzz.h"
#include "host.h"

static Doc as_doc(Diag *d, Str text) {
    uint16_t file = ag_diag_file(d, STR("expression"), text);
    return (Doc){.kind = DOC_SCALAR, .span = {file, 0, (uint32_t)text.n}, .text = text};
}

static Str printed(Diag *d, const Spec *spec, const Ast *e) {
    Buf out = {0};
    ag_expr_print(&out, spec, e);
    return fuzz_take(d, &out);
}

static void work(Diag *d, Str text) {
    static const char header[] = "attention: t\nparams: {w: 3, x: 2.5}\ninputs: {t: {f32: [h, 4]}, i: {i32: [q]}, z: {bool: []}}\n"
                                 "let:\n  near: q - k < w\n  twice: 2 * s\n  loads: t[h, i[q]] if z else 0\n";
    static const Type wants[] = {T_NONE, T_BOOL, T_FLOAT};
    if (!text.n) return;
    Type want = wants[(unsigned char)text.s[0] % 3];
    Spec *spec = ag_spec_read(d, ag_diag_file(d, STR("spec"), ag_str(header)), NULL, 0);
    Doc doc = as_doc(d, (Str){text.s + 1, text.n - 1});
    Ast *e = ag_expr_read(d, spec, &doc, want);
    fuzz_require(d, (e == NULL) == (d->nerror > 0), "neither a tree nor an error", text);
    if (!e) return;

    Str once = printed(d, spec, e);
    Doc again = as_doc(d, once);
    Ast *e2 = ag_expr_read(d, spec, &again, want);
    fuzz_require(d, e2 != NULL, "does not read back", once);
    fuzz_require(d, ag_str_eq(once, printed(d, spec, e2)), "reads back as something else", once);

    HostCall call = {.size = {1, 2, 1, 8, 8, 0, 128, 128}, .scalar = {0.125, 3, 2.5}};
    ag_ast_eval(spec, &call, e, 0, 1, 5, 3, 0.75);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_run(data, size, work);
    return 0;
}
