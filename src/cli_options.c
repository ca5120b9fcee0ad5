/* cli_options.c: parsing, help, man page and completion, all from the tables of main.c; and the messages. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "cli.h"

/* ---- messages */

int cli_error(int code, const char *fmt, ...) {
    va_list ap;
    cli_progress_clear();
    va_start(ap, fmt);
    fputs("attngen: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return code;
}

int cli_fail(const attngen_context *ctx, attngen_status s) {
    const char *text = attngen_errmsg(ctx);
    if (!*text) text = attngen_strerror(s);
    size_t n = strlen(text);
    cli_progress_clear();
    const char *located = strstr(text, "error: "); /* "file:line:col: error: ..." needs no other head */
    bool has_head = located && !memchr(text, '\n', (size_t)(located - text));
    fprintf(stderr, "%s%s%s", has_head ? "" : "attngen: ", text, text[n - 1] == '\n' ? "" : "\n");
    return attngen_exit_code(s);
}

static bool progress_shown;

void cli_progress_clear(void) {
    if (progress_shown) fputs("\r\033[K", stderr);
    progress_shown = false;
}

void cli_progress(const char *fmt, ...) {
    if (!isatty(STDERR_FILENO)) return;
    cli_progress_clear();
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fflush(stderr);
    progress_shown = true;
}

/* ---- lists of names: blank-separated words, or one of the shipped tables by its name */

typedef const char *(*NameAt)(size_t);

static const char *verb_name(size_t i) { return cli_verb[i].name; }

static NameAt table_of(const char *words) {
    static const struct {
        const char *name;
        NameAt at;
    } table[] = {
        {"specs", attngen_shipped_spec_name}, {"schedules", attngen_shipped_schedule_name}, {"archs", attngen_known_arch}, {"verbs", verb_name}};
    for (int i = 0; i < LEN(table); i++)
        if (strcmp(words, table[i].name) == 0) return table[i].at;
    return NULL;
}

/* All names with blanks between them; malloc'ed. */
static char *all_names(const char *words) {
    Buf b = {0};
    NameAt at = table_of(words);
    if (!at) ag_put(&b, "%s", words);
    for (size_t i = 0; at && at(i); i++) ag_put(&b, "%s%s", i ? " " : "", at(i));
    if (!b.s) ag_put(&b, "%s", "");
    return b.s;
}

void cli_hint(char *out, size_t n, const char *given, const char *words) {
    const char *name[256];
    char *names = all_names(words), *save = NULL;
    int count = 0;
    for (char *w = names ? strtok_r(names, " ", &save) : NULL; w && count < LEN(name) - 1; w = strtok_r(NULL, " ", &save)) name[count++] = w;
    name[count] = NULL;
    const char *near = ag_nearest(ag_str(given), name);
    if (near)
        snprintf(out, n, " (did you mean `%s`?)", near);
    else
        *out = '\0';
    free(names);
}

static bool is_one_of(const char *given, const char *words) {
    size_t n = strlen(given);
    for (const char *w = words; *w; w += strspn(w, " ")) {
        size_t len = strcspn(w, " ");
        if (len == n && memcmp(w, given, n) == 0) return true;
        w += len;
    }
    return false;
}

/* ---- parsing */

const Verb *cli_find_verb(const char *name) {
    char hint[96];
    for (const Verb *v = cli_verb; v->name; v++)
        if (strcmp(v->name, name) == 0) return v;
    cli_hint(hint, sizeof hint, name, "verbs");
    cli_error(0, "no verb `%s`%s; `attngen help` lists them", name, hint);
    return NULL;
}

static int unknown_option(const Verb *v, const char *given, size_t n) {
    Buf names = {0};
    char hint[96], word[64];
    for (const Option *o = v->option; o->name; o++) ag_put(&names, "--%s ", o->name);
    snprintf(word, sizeof word, "%.*s", (int)n, given);
    cli_hint(hint, sizeof hint, word, names.s ? names.s : "");
    ag_buf_free(&names);
    return cli_error(EXIT_USAGE, "%s has no option `%s`%s; see `attngen help %s`", v->name, word, hint, v->name);
}

/* One option with its value (NULL for flags) into its field. */
static int set_option(Cli *cli, const Option *o, const char *value) {
    void *field = (char *)cli + o->offset;
    char hint[96], *end;
    switch (o->kind) {
    case OPT_FLAG: *(bool *)field = true; return 0;
    case OPT_TEXT:
        if (o->values && *o->values != 'F' && !table_of(o->values) && !is_one_of(value, o->values)) {
            cli_hint(hint, sizeof hint, value, o->values);
            return cli_error(EXIT_USAGE, "--%s is one of %s, not `%s`%s", o->name, o->values, value, hint);
        }
        *(const char **)field = value;
        return 0;
    case OPT_INT:
        errno = 0;
        *(int64_t *)field = strtoll(value, &end, 10);
        return errno || end == value || *end ? cli_error(EXIT_USAGE, "--%s needs a whole number, not `%s`", o->name, value) : 0;
    case OPT_LIST: {
        List *list = field;
        if (list->n == CLI_LIST) return cli_error(EXIT_USAGE, "--%s is given more than %d times", o->name, CLI_LIST);
        list->item[list->n++] = value;
        return 0;
    }
    }
    return 0;
}

/* "--name", "--name=value", "-x", "-xvalue"; takes the value from the next argument where it is not attached. */
static int one_option(Cli *cli, const Verb *v, int argc, char **argv, int *i) {
    const char *arg = argv[*i], *value = NULL;
    bool is_long = arg[1] == '-';
    size_t n = is_long ? strcspn(arg, "=") : 2;
    const Option *o = v->option;
    while (o->name && !(is_long ? strlen(o->name) == n - 2 && memcmp(o->name, arg + 2, n - 2) == 0 : o->letter == arg[1])) o++;
    if (!o->name) return unknown_option(v, arg, n);
    if (arg[n]) value = arg + n + (is_long ? 1 : 0);
    if (o->kind == OPT_FLAG && value) return cli_error(EXIT_USAGE, "--%s takes no value", o->name);
    if (o->kind != OPT_FLAG && !value) {
        if (*i + 1 >= argc) return cli_error(EXIT_USAGE, "--%s needs a value: %s", o->name, o->arg);
        value = argv[++*i];
    }
    return set_option(cli, o, value);
}

/* A positional argument that must be one of a few words; names of what is shipped may be files too and are looked up later. */
static int check_word(const Verb *v, const char *given) {
    char hint[96];
    if (!v->pos_values || table_of(v->pos_values) || is_one_of(given, v->pos_values)) return 0;
    cli_hint(hint, sizeof hint, given, v->pos_values);
    return cli_error(EXIT_USAGE, "%s takes %s, not `%s`%s", v->name, v->args, given, hint);
}

int cli_parse(Cli *cli, const Verb *v, int argc, char **argv) {
    int npos = 0, code = 0;
    bool only_pos = false;
    for (int i = 0; i < argc && code == 0; i++) {
        if (!only_pos && strcmp(argv[i], "--") == 0)
            only_pos = true;
        else if (!only_pos && argv[i][0] == '-' && argv[i][1])
            code = one_option(cli, v, argc, argv, &i);
        else if (npos == v->max_pos)
            code = cli_error(EXIT_USAGE, "unexpected argument `%s`; usage: attngen %s %s", argv[i], v->name, v->args);
        else
            code = check_word(v, cli->pos[npos++] = argv[i]);
    }
    if (code == 0 && !cli->help && npos < v->min_pos)
        code = cli_error(EXIT_USAGE, "usage: attngen %s %s [OPTION]...; see `attngen help %s`", v->name, v->args, v->name);
    return code;
}

/* ---- help */

static const char exit_codes[] =
    "0 fine; 1 a check failed or an internal error; 2 usage; 3 the spec or the schedule is wrong; 4 right, but not possible "
    "on this target; 5 NVRTC refused the code (a defect of attngen); 6 driver, device or file system.";

static void option_head(Buf *b, const Option *o) {
    if (o->letter) ag_put(b, "-%c, ", o->letter);
    ag_put(b, "--%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

void cli_usage(FILE *out) {
    fputs("attngen: an attention compiler. A spec says what is computed, a schedule how; the result is a CUDA kernel.\n\n", out);
    for (const Verb *v = cli_verb; v->name; v++) fprintf(out, "  attngen %-6s %-22s %s\n", v->name, v->args, v->doc);
    fprintf(out,
            "\nSPEC is a file (its name has a `/` or a `.`), `-` for the standard input, or the name of a shipped spec.\n"
            "`attngen help VERB` lists the options of a verb; `attngen --version`.\n\nExit codes: %s\n",
            exit_codes);
}

void cli_help_verb(FILE *out, const Verb *v) {
    fprintf(out, "usage: attngen %s%s%s [OPTION]...\n%s.\n\n", v->name, *v->args ? " " : "", v->args, v->doc);
    for (const Option *o = v->option; o->name; o++) {
        Buf b = {0};
        option_head(&b, o);
        if (b.n > 24) ag_put(&b, "\n%28s", "");
        fprintf(out, "  %s%-*s  %s\n", o->letter ? "" : "    ", o->letter ? 28 : 24, b.s ? b.s : "", o->doc);
        if (o->values && *o->values != 'F' && !table_of(o->values)) fprintf(out, "%32sone of: %s\n", "", o->values);
        ag_buf_free(&b);
    }
}

static void roff(FILE *out, const char *s) {
    if (*s == '.' || *s == '\'') fputs("\\&", out);
    for (; *s; s++) fputs(*s == '-' ? "\\-" : *s == '\\' ? "\\e" : (char[]){*s, 0}, out);
}

void cli_man(FILE *out) {
    fprintf(out, ".TH ATTNGEN 1 \"\" \"attngen %s\" \"User Commands\"\n.SH NAME\nattngen \\- an attention compiler\n.SH SYNOPSIS\n",
            ATTNGEN_VERSION_STRING);
    for (const Verb *v = cli_verb; v->name; v++) fprintf(out, ".B attngen %s\n%s [OPTION]...\n.br\n", v->name, v->args);
    fputs(".SH DESCRIPTION\nSPEC is a file (its name has a / or a .), - for the standard input, or the name of a shipped spec. Data goes to the\n"
          "standard output or to the file of \\-o, everything else to the standard error.\n",
          out);
    for (const Verb *v = cli_verb; v->name; v++) {
        fprintf(out, ".SH attngen %s\n", v->name);
        roff(out, v->doc);
        fputs(".\n", out);
        for (const Option *o = v->option; o->name; o++) {
            Buf b = {0};
            option_head(&b, o);
            fputs(".TP\n.B ", out);
            roff(out, b.s ? b.s : "");
            fputc('\n', out);
            roff(out, o->doc);
            if (o->values && *o->values != 'F' && !table_of(o->values)) fprintf(out, ". One of: %s", o->values);
            fputs(".\n", out);
            ag_buf_free(&b);
        }
    }
    fprintf(out, ".SH EXIT STATUS\n%s\n", exit_codes);
    fputs(".SH ENVIRONMENT\n.TP\n.B ATTNGEN_NVRTC\nPath of libnvrtc.so.\n.TP\n.B ATTNGEN_CACHE_DIR\nFolder of compiled kernels.\n", out);
}

void cli_completion_bash(FILE *out) {
    fputs("# bash completion for attngen: source this file, or put it into /etc/bash_completion.d\n"
          "_attngen() {\n    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words= files=\n    COMPREPLY=()\n"
          "    case \"${COMP_WORDS[1]}:$prev\" in\n",
          out);
    for (const Verb *v = cli_verb; v->name; v++)
        for (const Option *o = v->option; o->name; o++) {
            if (!o->arg) continue;
            char *names = o->values && *o->values != 'F' ? all_names(o->values) : NULL;
            fprintf(out, "    %s:--%s", v->name, o->name);
            if (o->letter) fprintf(out, "|%s:-%c", v->name, o->letter);
            fprintf(out, ") words=\"%s\"%s;;\n", names ? names : "", !o->values ? "" : *o->values == 'F' || table_of(o->values) ? " files=1 " : " ");
            free(names);
        }
    fputs("    *) case $COMP_CWORD:${COMP_WORDS[1]} in\n        1:*) words=\"", out);
    char *verbs = all_names("verbs");
    fprintf(out, "%s\";;\n", verbs ? verbs : "");
    free(verbs);
    for (const Verb *v = cli_verb; v->name; v++) {
        fprintf(out, "        *:%s) words=\"", v->name);
        for (const Option *o = v->option; o->name; o++) fprintf(out, "--%s ", o->name);
        char *names = v->pos_values ? all_names(v->pos_values) : NULL;
        fprintf(out, "%s\"%s;;\n", names ? names : "", v->pos_values && strcmp(v->pos_values, "specs") == 0 ? " files=1" : "");
        free(names);
    }
    fputs("        esac;;\n    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
          "    [ -n \"$files\" ] && COMPREPLY+=($(compgen -f -- \"$cur\"))\n}\ncomplete -o filenames -F _attngen attngen\n",
          out);
}
