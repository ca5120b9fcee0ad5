/* doc_read.c: typed reading of Doc scalars, and the check of a map's keys. */
#include "input.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_name(DocKind k) { return k == DOC_LIST ? "a list" : "a map"; }

/* Reports anything but a plain, non-empty scalar. */
static bool plain(Diag *d, const Doc *x, const char *what, const char *expected) {
    if (x->kind != DOC_SCALAR)
        ag_error(d, x->span, "%s: expected %s, found %s", what, expected, kind_name(x->kind));
    else if (x->quoted)
        ag_error(d, x->span, "%s: expected %s, found text in quotes: remove the quotes", what, expected);
    else if (x->text.n == 0)
        ag_error(d, x->span, "%s: expected %s, found nothing", what, expected);
    else
        return true;
    return false;
}

static bool wrong(Diag *d, const Doc *x, const char *what, const char *expected) {
    ag_error(d, x->span, "%s: expected %s, found '%s'", what, expected, ag_clip(d->arena, x->text).s);
    return false;
}

/* [+-] digits, or [+-] 0x hex digits; *base of them. */
static bool is_integer(const char *s, int *base) {
    if (*s == '+' || *s == '-') s++;
    *base = s[0] == '0' && s[1] == 'x' ? 16 : 10;
    const char *digits = *base == 16 ? "0123456789abcdefABCDEF" : "0123456789";
    if (*base == 16) s += 2;
    return *s && s[strspn(s, digits)] == 0;
}

bool ag_doc_int(Diag *d, const Doc *x, const char *what, int64_t min, int64_t max, int64_t *out) {
    if (!plain(d, x, what, "an integer")) return false;
    const char *s = ag_str_copy(d->arena, x->text).s;
    int base;
    if (!is_integer(s, &base)) return wrong(d, x, what, "an integer");
    const char *digits = s + (*s == '+' || *s == '-');
    if (base == 10 && digits[0] == '0' && digits[1]) return wrong(d, x, what, "an integer without leading zeros");
    errno = 0;
    long long v = strtoll(s, NULL, base);
    if (errno == ERANGE || v < min || v > max) {
        ag_error(d, x->span, "%s: %s is out of range, expected %lld to %lld", what, ag_clip(d->arena, x->text).s, (long long)min, (long long)max);
        return false;
    }
    *out = v;
    return true;
}

bool ag_doc_float(Diag *d, const Doc *x, const char *what, double *out) {
    if (!plain(d, x, what, "a number")) return false;
    double v;
    if (!ag_parse_double(x->text, &v)) return wrong(d, x, what, "a number");
    if (!isfinite(v)) {
        ag_error(d, x->span, "%s: %s is too large for a number", what, ag_clip(d->arena, x->text).s);
        return false;
    }
    *out = v;
    return true;
}

bool ag_doc_bool(Diag *d, const Doc *x, const char *what, bool *out) {
    static const struct {
        const char *word, *meant;
    } other[] = {{"yes", "true"}, {"on", "true"}, {"y", "true"}, {"1", "true"}, {"no", "false"}, {"off", "false"}, {"n", "false"}, {"0", "false"}};
    if (!plain(d, x, what, "true or false")) return false;
    *out = ag_str_is(x->text, "true");
    if (*out || ag_str_is(x->text, "false")) return true;

    const char *text = ag_str_copy(d->arena, x->text).s, *meant = NULL;
    for (int i = 0; i < LEN(other); i++)
        if (!strcasecmp(text, other[i].word)) meant = other[i].meant;
    if (!strcasecmp(text, "true")) meant = "true";
    if (!strcasecmp(text, "false")) meant = "false";
    if (!meant) return wrong(d, x, what, "true or false");
    ag_error(d, x->span, "%s: expected true or false, found '%s': write %s", what, text, meant);
    return false;
}

bool ag_doc_enum(Diag *d, const Doc *x, const char *what, const char *const *names, int *out) {
    if (x->kind != DOC_SCALAR) {
        ag_error(d, x->span, "%s: expected a word, found %s", what, kind_name(x->kind));
        return false;
    }
    for (int i = 0; names[i]; i++)
        if (ag_str_is(x->text, names[i])) return *out = i, true;

    Str list = STR("");
    for (int i = 0; names[i]; i++) list = ag_fmt(d->arena, "%s%s%s", list.s, !i ? "" : names[i + 1] ? ", " : " or ", names[i]);
    const char *near = ag_nearest(x->text, names);
    ag_error(d, x->span, "%s: expected %s, found '%s'%s%s%s", what, list.s, ag_clip(d->arena, x->text).s, near ? "; did you mean '" : "",
             near ? near : "", near ? "'?" : "");
    return false;
}

void ag_doc_check_keys(Diag *d, const Doc *map, const char *what, const char *const *names) {
    for (int i = 0; i < map->n; i++) {
        Str key = map->key[i]->text;
        bool known = false;
        for (int j = 0; names[j] && !known; j++) known = ag_str_is(key, names[j]);
        if (known) continue;
        const char *near = ag_nearest(key, names);
        ag_error(d, map->key[i]->span, "unknown key '%s' in %s%s%s%s", ag_clip(d->arena, key).s, what, near ? "; did you mean '" : "",
                 near ? near : "", near ? "'?" : "");
    }
}
