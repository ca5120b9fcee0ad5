/* image.c: the code of a program.  Its kernels are compiled in units, side by side on the processors that there are, and what comes of them lies in one block of memory:
 * one cubin as it is, several behind a header that says how long each is. */
#include <elf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "jit.h"

/* ---- several cubins in one block */

enum { CUBIN_ALIGN = 64 };
static const char several[8] = "agcubins";
typedef struct Header {
    char magic[8];
    uint64_t n;
    uint64_t size[META_KERNELS];
} Header;

static size_t aligned(size_t n) { return (n + CUBIN_ALIGN - 1) / CUBIN_ALIGN * CUBIN_ALIGN; }
static bool is_elf(const char *p, size_t size) { return size >= 4 && memcmp(p, "\177ELF", 4) == 0; }

int ag_image_cubins(const void *image, size_t size, ImageCubin out[META_KERNELS]) {
    const char *p = image;
    Header h;
    if (is_elf(p, size)) return out[0] = (ImageCubin){image, size}, 1;
    if (size < sizeof h) return 0;
    memcpy(&h, p, sizeof h);
    if (memcmp(h.magic, several, sizeof several) || h.n < 1 || h.n > META_KERNELS) return 0;
    size_t at = aligned(sizeof h);
    for (uint64_t i = 0; i < h.n; i++) {
        if (at > size || h.size[i] > size - at || !is_elf(p + at, h.size[i])) return 0;
        out[i] = (ImageCubin){p + at, h.size[i]};
        at += aligned(h.size[i]);
    }
    return (int)h.n;
}

/* ---- which of them a kernel is in: its code is a section of its own, .text.NAME */

/* A string of `size` bytes at p, of which it is not known whether they hold its end. */
static bool same_name(const char *p, size_t size, const char *prefix, const char *name) {
    size_t a = strlen(prefix), b = strlen(name);
    return size > a + b && !memcmp(p, prefix, a) && !memcmp(p + a, name, b) && p[a + b] == 0;
}

bool ag_cubin_has(const ImageCubin *c, const char *kernel) {
    Elf64_Ehdr head;
    Elf64_Shdr names, section;
    const char *p = c->data;
    if (c->size < sizeof head) return false;
    memcpy(&head, p, sizeof head);
    if (head.e_shentsize != sizeof section || head.e_shoff > c->size || head.e_shnum > (c->size - head.e_shoff) / sizeof section) return false;
    if (head.e_shstrndx >= head.e_shnum) return false;
    memcpy(&names, p + head.e_shoff + head.e_shstrndx * sizeof names, sizeof names);
    if (names.sh_offset > c->size || names.sh_size > c->size - names.sh_offset) return false;
    for (int i = 0; i < head.e_shnum; i++) {
        memcpy(&section, p + head.e_shoff + (size_t)i * sizeof section, sizeof section);
        size_t at = section.sh_name;
        if (at < names.sh_size && same_name(p + names.sh_offset + at, names.sh_size - at, ".text.", kernel)) return true;
    }
    return false;
}

static attngen_status join(const Compiled *part, int n, Compiled *out, Err *e) {
    Header h = {.n = (uint64_t)n};
    memcpy(h.magic, several, sizeof several);
    size_t bytes = aligned(sizeof h);
    for (int i = 0; i < n; i++) {
        h.size[i] = part[i].size;
        bytes += aligned(part[i].size);
    }
    char *to = calloc(1, bytes);
    if (!to) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    out->image = to;
    out->size = bytes;
    memcpy(to, &h, sizeof h);
    to += aligned(sizeof h);
    for (int i = 0; i < n; i++) {
        memcpy(to, part[i].image, part[i].size);
        to += aligned(part[i].size);
    }
    return ATTNGEN_OK;
}

/* ---- units, side by side */

typedef struct Job {
    const char *text;
    size_t len;
    Compiled built;
    attngen_status status;
    Err err;
} Job;

typedef struct Queue {
    Nvrtc *nvrtc;
    const char *arch;
    unsigned flags;
    Job job[META_KERNELS];
    int order[META_KERNELS]; /* the longest text, which takes longest, first */
    int n;
    atomic_int next;
} Queue;

static void *work(void *payload) {
    Queue *q = payload;
    for (int i; (i = atomic_fetch_add(&q->next, 1)) < q->n;) {
        Job *j = &q->job[q->order[i]];
        j->status = ag_nvrtc_compile(q->nvrtc, j->text, q->arch, q->flags, &j->built, &j->err);
    }
    return NULL;
}

static void sort_by_length(Queue *q) {
    for (int i = 0; i < q->n; i++) {
        int at = i;
        for (; at > 0 && q->job[q->order[at - 1]].len < q->job[i].len; at--) q->order[at] = q->order[at - 1];
        q->order[at] = i;
    }
}

/* This thread works, too; where no other can be made it does all of it. */
static void run(Queue *q) {
    pthread_t thread[META_KERNELS];
    pthread_attr_t attr;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int more = 0, most = (processors < q->n ? (int)processors : q->n) - 1;
    bool usual = pthread_attr_init(&attr) != 0;
    if (!usual) pthread_attr_setstacksize(&attr, COMPILER_STACK);
    while (more < most && pthread_create(&thread[more], usual ? NULL : &attr, work, q) == 0) more++;
    work(q);
    for (int i = 0; i < more; i++) pthread_join(thread[i], NULL);
    if (!usual) pthread_attr_destroy(&attr);
}

/* What is known of all: the worst kernel, and every log. */
static void sum_up(const Queue *q, Compiled *out) {
    Buf log = {0};
    out->tuned = true;
    for (int i = 0; i < q->n; i++) {
        const Compiled *b = &q->job[i].built;
        PtxasReport *r = &out->report;
        if (b->report.registers > r->registers) r->registers = b->report.registers;
        if (b->report.spill_bytes > r->spill_bytes) r->spill_bytes = b->report.spill_bytes;
        r->serialised |= b->report.serialised;
        out->tuned &= b->tuned;
        ag_put(&log, "%s", b->log ? b->log : "");
    }
    out->log = log.s;
}

attngen_status ag_image_compile(Nvrtc *n, const char *const *text, int ntext, const char *arch, unsigned flags, Compiled *out, int *failed, Err *e) {
    memset(out, 0, sizeof *out);
    *failed = 0;
    if (ntext == 1) return ag_nvrtc_compile(n, text[0], arch, flags, out, e);
    Queue *q = calloc(1, sizeof *q);
    if (!q) return ag_err(e, ATTNGEN_E_NOMEM, "out of memory");
    q->nvrtc = n, q->arch = arch, q->flags = flags, q->n = ntext;
    for (int i = 0; i < ntext; i++) q->job[i] = (Job){.text = text[i], .len = strlen(text[i])};
    sort_by_length(q);
    run(q);
    attngen_status s = ATTNGEN_OK;
    for (int i = ntext - 1; i >= 0; i--)
        if (q->job[i].status != ATTNGEN_OK) s = q->job[i].status, *failed = i, *e = q->job[i].err;
    Compiled part[META_KERNELS];
    for (int i = 0; i < ntext; i++) part[i] = q->job[i].built;
    sum_up(q, out);
    if (s == ATTNGEN_OK) s = join(part, ntext, out, e);
    for (int i = 0; i < ntext; i++) ag_compiled_free(&part[i]);
    free(q);
    return s;
}
