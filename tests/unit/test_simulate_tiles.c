/* test_simulate_tiles.c: persistent kernels as the compiler makes them, and every way of breaking them. */
#include "hand.h"

static const char CAUSAL[] = "attention: causal\nmask: k <= q\n";
/* A field a line: messages name the line. */
#define HEAD_LINES    "schema: attngen.schedule/1\nname: tiles\ntile: {m: 128, n: 16}\nmma: {family: wgmma}\nroles: {consumer: {warpgroups: 2}}\n"
#define DYNAMIC_LINES "grid:\n  persistent: dynamic\n  fetch_ahead: 1\n"
static const char CHAINED[] = HEAD_LINES "staging:\n  q: {stages: 2}\n  k: {stages: 2}\n  v: {stages: 2}\n  o: {store: tma}\n"
                                         "pipeline:\n  overlap: true\n  turns: true\nloop: {form: peeled}\n" DYNAMIC_LINES;

/* Eight tiles for two blocks: of many key tiles, and of one each, so that roles are never far apart. */
static const Case wide = {.B = 2, .Hkv = 1, .group = 2, .Sq = 200, .Sk = 200, .offset = ATTNGEN_ALIGN_END};
static const Case narrow = {.B = 2, .Hkv = 1, .group = 2, .Sq = 200, .Sk = 16, .offset = ATTNGEN_ALIGN_END};

static Compilation *compiled(const char *schedule) {
    const attngen_dim dims[] = {{"D", 16}};
    attngen_source a = source("spec.yaml", CAUSAL), b = source("tiles.yaml", schedule);
    Compilation *c = ag_compile_text(&a, &b, "sm_90a", dims, 1, NULL);
    Buf errors = {0};
    ag_diag_render(&c->diag, &errors);
    if (c->diag.status != ATTNGEN_OK) fail_msg("%s", errors.s);
    return c;
}

/* ---- breakages */

static void put_missing(Kernel *k) { drop(k, TI_PUT, "tile_slot", 1); }
static void put_of_end_missing(Kernel *k) { drop(k, TI_PUT, "tile_slot", 2); }
/* What stands for the next tile of the last one. */
static void no_query_of_end(Kernel *k) { drop(k, TI_COPY, "Q", 2); }
static void no_keys_of_end(Kernel *k) { drop(k, TI_COPY, "K", 2), drop(k, TI_EXPECT, "K_full", 2); }
static void place_of_end_missing(Kernel *k) { drop(k, TI_PUT, "m_slot", 2); }
/* The arrival is what tells, not the copy. */
static void put_late(Kernel *k) {
    Block *b;
    Ins *put = find(k, TI_PUT, "tile_slot", 1, &b), *copy = find(k, TI_COPY, "Q", 1, &b);
    ag_block_remove(b, put);
    ag_block_insert_after(b, copy, put);
}
static void get_late(Kernel *k) {
    Block *b;
    Ins *get = find(k, TI_GET, "h", 0, &b), *release = find(k, TI_ARRIVE, "Q_empty", 0, &b);
    ag_block_remove(b, get);
    ag_block_insert_after(b, release, get);
}
static void no_room(Kernel *k) { drop(k, TI_WAIT_BAR, "Q_empty", 1); }
static void other_parity(Kernel *k) {
    Ref *parity = &find(k, TI_WAIT_BAR, "Q_full", 1, NULL)->e[1];
    *parity = ag_node_op(&k->nodes, OP_SUB, ag_node_int(&k->nodes, 1), *parity, 0, (Span){0});
}
static void no_release(Kernel *k) { drop(k, TI_ARRIVE, "Q_empty", 0); }
static void release_twice(Kernel *k) { twice(k, TI_ARRIVE, "Q_empty", 0); }
static void math_base(Kernel *k) { drop(k, TI_SET, "base", 0); }
static void load_base(Kernel *k) { drop(k, TI_SET, "base", 1); }
static void math_round(Kernel *k) { drop(k, TI_SET, "round", 0); }
static void no_store_wait(Kernel *k) { drop(k, TI_STORE_WAIT, NULL, 0); }
static void no_last_store_wait(Kernel *k) { drop(k, TI_STORE_WAIT, NULL, 1); }
static void turn_twice(Kernel *k) { twice(k, TI_TAKE_TURN, NULL, 0); }
static void turn_kept(Kernel *k) { drop(k, TI_PASS_TURN, NULL, 1); }
static void turn_not_taken(Kernel *k) { drop(k, TI_TAKE_TURN, NULL, 1); }
static void turn_at_end(Kernel *k) { ag_block_append(&k->role[0].body, ag_ins_clone(k, find(k, TI_TAKE_TURN, NULL, 0, NULL))); }
static void counter_kept(Kernel *k) { drop(k, TI_RESET, NULL, 0); }
static void reset_early(Kernel *k) {
    Block *b;
    Ins *fetch = find(k, TI_FETCH, "next", 0, &b);
    ag_block_insert_after(b, fetch, ag_ins_clone(k, find(k, TI_RESET, NULL, 0, NULL)));
}
static void fetched_twice(Kernel *k) { twice(k, TI_FETCH, "next", 0); }

static const struct {
    const Case *shape;
    void (*edit)(Kernel *);
    const char *message;
} breakage[] = {
    {&wide, put_missing, "simulated block 0 (m 1, h 0, b 0): get next: reads tile_slot [stage 1], into which nothing was put (from tiles.yaml:16)"},
    {&wide, put_of_end_missing, "simulated block 0 (m 0, h 1, b 1): map S: keys start at 112, but S holds those from 200 on (from spec.yaml:2)"},
    {&wide, no_query_of_end,
     "simulated block 0 (m 0, h 1, b 1): deadlock: role math waits at wait_bar Q_full [stage 1] parity 1 (1 of 1 arrivals, no copy for 16384 bytes) "
     "(from tiles.yaml:7), role load has ended"},
    {&wide, no_keys_of_end,
     "simulated block 0 (m 0, h 1, b 1): deadlock: role math waits at wait_bar K_full [stage 1] parity 1 (0 of 1 arrivals) (from tiles.yaml:8), role "
     "load has ended"},
    {&wide, place_of_end_missing,
     "simulated block 1 (m 1, h 1, b 0): get next_m: reads m_slot [stage 1], into which nothing was put (from tiles.yaml:16)"},
    {&narrow, put_late,
     "simulated block 0 (m 1, h 0, b 0): get next: reads tile_slot [stage 1] before it is known to be written: no wait since (from tiles.yaml:16)"},
    {&narrow, get_late,
     "simulated block 0 (m 1, h 0, b 1): put h_slot [stage 0]: overwrites h_slot [stage 0] before role math is known to have read it (from "
     "tiles.yaml:16)"},
    {&narrow, no_room,
     "simulated block 0 (m 1, h 0, b 1): put b_slot [stage 0]: overwrites b_slot [stage 0] before role math is known to have read it (from "
     "tiles.yaml:16)"},
    {&wide, other_parity,
     "simulated block 0 (m 1, h 0, b 0): deadlock: role math waits at wait_bar Q_full [stage 1] parity 1 (0 of 1 arrivals) (from tiles.yaml:7), role "
     "load waits at wait_bar K_empty [stage 1] parity 0 (0 of 8 arrivals) (from tiles.yaml:8)"},
    {&wide, no_release,
     "simulated block 0 (m 1, h 0, b 0): deadlock: role math waits at wait_bar K_full [stage 1] parity 0 (0 of 1 arrivals) (from tiles.yaml:8), role "
     "load waits at wait_bar Q_empty [stage 0] parity 0 (0 of 8 arrivals) (from tiles.yaml:7)"},
    {&wide, release_twice, "simulated block 0 (m 1, h 0, b 0): arrive Q_empty [stage 0]: Q [stage 0] is released twice (from tiles.yaml:7)"},
    {&wide, math_base,
     "simulated block 0 (m 1, h 0, b 0): deadlock: role math waits at wait_bar V_full [stage 1] parity 1 (0 of 1 arrivals) (from tiles.yaml:9), role "
     "load waits at wait_bar K_empty [stage 1] parity 0 (0 of 8 arrivals) (from tiles.yaml:8)"},
    {&wide, load_base,
     "simulated block 0 (m 1, h 0, b 0): deadlock: role math waits at wait_bar K_full [stage 1] parity 0 (0 of 1 arrivals) (from tiles.yaml:8), role "
     "load waits at wait_bar K_empty [stage 0] parity 1 (0 of 8 arrivals) (from tiles.yaml:8)"},
    {&wide, math_round, "simulated block 0 (m 1, h 0, b 0): mma S: reads Q [stage 0] after its release (from tiles.yaml:8)"},
    {&wide, no_store_wait,
     "simulated block 0 (m 1, h 0, b 1): store o: overwrites O [stage 0] while a store that reads it is unfinished (from tiles.yaml:10)"},
    {&wide, no_last_store_wait,
     "simulated block 0 (m 0, h 1, b 1): store o: role math ends while the store is unfinished: a wait is missing (from tiles.yaml:10)"},
    {&wide, turn_twice, "simulated block 0 (m 1): take_turn turn: takes a turn that it has not passed on (from tiles.yaml:13)"},
    {&wide, turn_kept, "simulated block 0 (m 1): take_turn turn: takes a turn that it has not passed on (from tiles.yaml:13)"},
    {&wide, turn_not_taken, "simulated block 0 (m 1): pass_turn turn: passes on a turn that it has not taken (from tiles.yaml:13)"},
    {&wide, turn_at_end, "simulated block 0 (m 0, h 1, b 1): take_turn turn: role math ends without passing its turn on (from tiles.yaml:13)"},
    {&wide, reset_early, "simulated block 0 (m 1, h 0, b 0): reset: after 1 draws, but there will be 8 (from tiles.yaml:16)"},
    {&wide, counter_kept, "simulated launch: the counter of tiles is left at 8, not at 0 (from tiles.yaml:16)"},
    {&wide, fetched_twice, "simulated block 1 (m 1, h 1, b 0): mma acc: key tile 12 is visited twice (from spec.yaml:2)"},
};

static void test_breakages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof breakage / sizeof *breakage; i++) {
        Compilation *c = compiled(CHAINED);
        breakage[i].edit(c->fn.kernel);
        expect(c, breakage[i].shape, breakage[i].message);
        ag_compilation_free(c);
    }
}

/* ---- the same without chained tiles, and with tiles in turn */

static const char PLAIN[] = HEAD_LINES "staging: {o: {store: smem}}\ngrid:\n  persistent: dynamic\n";
static const char STATIC[] = HEAD_LINES "staging: {q: {stages: 2}, o: {store: direct}}\ngrid:\n  persistent: static\n";

static void plain_put_late(Kernel *k) {
    Block *b;
    Ins *put = find(k, TI_PUT, "tile_slot", 1, &b), *end = find(k, TI_EXPECT, "Q_full", 1, &b);
    ag_block_remove(b, put);
    ag_block_insert_after(b, end, put);
}
static void no_end(Kernel *k) { drop(k, TI_EXPECT, "Q_full", 1); }
static void no_sync(Kernel *k) { drop(k, TI_SYNC, NULL, 0); }
static void static_put_missing(Kernel *k) { drop(k, TI_PUT, "h_slot", 1); }
static void static_base(Kernel *k) { drop(k, TI_SET, "base", 0); }
static void static_next(Kernel *k) {
    Ref *next = &find(k, TI_LET, "next", 0, NULL)->e[0];
    shift(k, next, 1);
}

static const struct {
    const char *schedule;
    void (*edit)(Kernel *);
    const char *message;
} other[] = {
    {PLAIN, plain_put_late,
     "simulated block 0 (m 0, h 1, b 1): get next: reads tile_slot [stage 0] before it is known to be written: no wait since (from tiles.yaml:8)"},
    {PLAIN, no_end,
     "simulated block 0 (m 0, h 1, b 1): deadlock: role math waits at wait_bar Q_full [stage 0] parity 1 (0 of 1 arrivals), role load has ended"},
    {PLAIN, no_release,
     "simulated block 0 (m 1, h 0, b 0): deadlock: role math waits at wait_bar Q_full [stage 0] parity 1 (0 of 1 arrivals), role load waits at "
     "wait_bar Q_empty [stage 0] parity 0 (0 of 8 arrivals)"},
    {PLAIN, no_sync,
     "simulated block 0 (m 1, h 0, b 1): store o: overwrites O [stage 0] before its release: no sync since it was last used (from tiles.yaml:6)"},
    {STATIC, static_put_missing, "simulated block 0 (m 1, h 0, b 0): get h: reads h_slot [stage 1], into which nothing was put (from tiles.yaml:8)"},
    {STATIC, static_base, "simulated block 0 (m 1, h 0, b 0): mma acc: reads V [stage 1], into which nothing was copied (from spec.yaml:2)"},
    {STATIC, static_next, "simulated block 0 (m 0, h 0, b 0): the kernel ends while a copy into Q [stage 0] is unfinished: a wait is missing"},
};

static void test_other_breakages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        Compilation *c = compiled(other[i].schedule);
        other[i].edit(c->fn.kernel);
        expect(c, &narrow, other[i].message);
        ag_compilation_free(c);
    }
}

static void test_right(void **state) {
    (void)state;
    static const char *const schedule[] = {CHAINED, PLAIN, STATIC};
    for (size_t i = 0; i < sizeof schedule / sizeof *schedule; i++) {
        Compilation *c = compiled(schedule[i]);
        expect(c, &wide, "");
        expect(c, &narrow, "");
        ag_compilation_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right), cmocka_unit_test(test_breakages), cmocka_unit_test(test_other_breakages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
