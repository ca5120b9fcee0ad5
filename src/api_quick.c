/* api_quick.c: a quick start.  A program that compiles in half the time runs until the one that fits best, which a thread of its own compiles, is there. */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Quick {
    pthread_t thread;
    pid_t process;            /* that has the thread: a fork of it has not */
    attngen_program *lowered; /* what is to come, without its image: the texts and the workspace that it needs */
    const Origin *origin;     /* of the program that this belongs to */
    bool debug_hang;
    int device;
    _Atomic(attngen_program *) program; /* compiled, and loaded if there is a driver; NULL until then */
    pthread_mutex_t lock;               /* for whoever waits, and of warnings */
    pthread_cond_t ended;
    atomic_bool has_ended; /* status and why do not change from then on */
    attngen_status status;
    Err why;
    Buf warnings; /* lines that its context would have had warned of */
};

/* ---- threads of the process: it must not end below one that is inside of NVRTC */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t none;
    int n;
    pid_t process;
} running = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

static void wait_for_all(void) {
    if (running.process != getpid()) return;
    pthread_mutex_lock(&running.lock);
    while (running.n > 0) pthread_cond_wait(&running.none, &running.lock);
    pthread_mutex_unlock(&running.lock);
}

static void count(int more) {
    pthread_mutex_lock(&running.lock);
    if (running.process != getpid()) { /* the first, also in a fork, which inherits what is to be done at exit */
        if (running.process == 0) atexit(wait_for_all);
        running.process = getpid();
        running.n = 0;
    }
    running.n += more;
    if (running.n == 0) pthread_cond_broadcast(&running.none);
    pthread_mutex_unlock(&running.lock);
}

/* ---- the thread */

static void keep_warning(void *payload, const char *message) { ag_put(&((Quick *)payload)->warnings, "%s\n", message); }

static attngen_status compile(Quick *q, attngen_program **out) {
    const Compilation *c = q->lowered->lowered;
    const DiagFile *f = &c->diag.file[1];
    const attngen_source spec = {f->name.s, f->text.s, (size_t)f->text.n};
    attngen_context *ctx;
    attngen_status s = ag_context_private(&ctx, c->fn.target->name, q->origin, &q->why);
    if (s != ATTNGEN_OK) return s;
    ctx->debug_hang = q->debug_hang;
    ctx->warn = keep_warning;
    ctx->payload = q;
    s = attngen_compile(ctx, out, &spec, NULL, c->dims, c->ndims);
    if (s != ATTNGEN_OK) ag_err(&q->why, s, "%s", attngen_errmsg(ctx));
    attngen_destroy(ctx);
    return s;
}

/* Without a driver nothing can be launched, and so nothing need be loaded. */
static attngen_status load(Quick *q, attngen_program *p) {
    Driver *driver;
    Loaded *loaded;
    Err none;
    if (ag_driver_open(&driver, &none) != ATTNGEN_OK) return ATTNGEN_OK;
    attngen_status s = ag_driver_load_beside_captures(driver, &q->why);
    return s == ATTNGEN_OK ? ag_program_load(p, driver, q->device, &loaded, &q->why) : s;
}

static void *work(void *payload) {
    Quick *q = payload;
    attngen_program *p = NULL;
    attngen_status s = compile(q, &p);
    if (s == ATTNGEN_OK) s = load(q, p);
    if (s == ATTNGEN_OK) atomic_store_explicit(&q->program, p, memory_order_release);
    if (s != ATTNGEN_OK) attngen_program_free(p);
    pthread_mutex_lock(&q->lock);
    q->status = s;
    atomic_store_explicit(&q->has_ended, true, memory_order_release);
    pthread_cond_broadcast(&q->ended);
    pthread_mutex_unlock(&q->lock);
    count(-1);
    return NULL;
}

static bool start(Quick *q) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) return false;
    pthread_attr_setstacksize(&attr, COMPILER_STACK);
    count(1);
    bool ok = pthread_create(&q->thread, &attr, work, q) == 0;
    if (!ok) count(-1);
    pthread_attr_destroy(&attr);
    return ok;
}

bool ag_quick_begin(attngen_program *p, attngen_program *next, int device, bool debug_hang) {
    Driver *driver;
    Err none;
    ag_driver_open(&driver, &none); /* before anything is registered for the exit, so that its own handlers run after the thread has ended */
    Quick *q = calloc(1, sizeof *q);
    if (!q) return false;
    q->process = getpid();
    q->lowered = next;
    q->origin = &p->origin;
    q->debug_hang = debug_hang;
    q->device = device;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->ended, NULL);
    if (start(q)) return p->quick = q, true;
    pthread_cond_destroy(&q->ended);
    pthread_mutex_destroy(&q->lock);
    free(q);
    return false;
}

void ag_quick_free(Quick *q) {
    if (!q || q->process != getpid()) return; /* in a fork no thread will ever end: what it holds stays */
    pthread_join(q->thread, NULL);
    attngen_program_free(q->program);
    attngen_program_free(q->lowered);
    ag_buf_free(&q->warnings);
    pthread_cond_destroy(&q->ended);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* ---- what others ask */

attngen_program *ag_quick_next(const attngen_program *p) { return p->quick ? atomic_load_explicit(&p->quick->program, memory_order_acquire) : NULL; }

const ProgramMeta *ag_quick_meta(const attngen_program *p) { return p->quick ? &p->quick->lowered->lowered->meta : NULL; }

void ag_quick_note(const attngen_program *p, Err *e) {
    Quick *q = p->quick;
    const char *own = p->lowered->schedule_name, *next = q->lowered->lowered->schedule_name;
    if (!atomic_load_explicit(&q->has_ended, memory_order_acquire)) /* no lock: this is said of launches */
        ag_err(e, ATTNGEN_OK, "%s is being compiled: %s runs", next, own);
    else if (q->status != ATTNGEN_OK)
        ag_err(e, ATTNGEN_OK, "%s cannot be had: %.500s: %s runs", next, q->why.text, own);
    else
        ag_err(e, ATTNGEN_OK, "what was compiled behind %s does not take this call: %s runs", own, own);
}

static void pass_on(const attngen_context *ctx, Buf *warnings) {
    char *rest = NULL;
    for (char *line = warnings->n ? strtok_r(warnings->s, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) ag_warn(ctx, "%s", line);
    warnings->n = 0;
}

attngen_status attngen_wait(attngen_context *ctx, const attngen_program *program) {
    if (!ctx) return ATTNGEN_E_INVALID_ARG;
    if (!program) return ag_fail(ctx, ATTNGEN_E_INVALID_ARG, "program is NULL");
    Quick *q = program->quick;
    if (!q) return ATTNGEN_OK;
    if (q->process != getpid())
        return ag_fail(ctx, ATTNGEN_E_UNSUPPORTED, "what is compiled behind the program is compiled in the process that this one was forked from");
    pthread_mutex_lock(&q->lock);
    while (!q->has_ended) pthread_cond_wait(&q->ended, &q->lock);
    pass_on(ctx, &q->warnings);
    attngen_status s = q->status == ATTNGEN_OK ? ATTNGEN_OK : ag_fail_err(ctx, q->status, &q->why);
    pthread_mutex_unlock(&q->lock);
    return s;
}
