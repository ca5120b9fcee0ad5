#!/usr/bin/env python3
"""Many small launches of random shapes on several streams at once, each checked: looks for races, hangs, and what only rare shapes show.

    tools/gpu_stress.py [-n 10000] [--seed N] [--schedules NAME,FILE,...] [--arch ARCH] [--streams 4] [--batch 32] [--only TEXT]

Programs: causal, dense, gqa and sliding_window for D 64, 96, 128, 192 with Dv 128, and 256, bf16 and f16, under every shipped schedule (or those given) that is
for the architecture.  A launch takes a random program, B, heads, lengths (1, sizes around multiples of tile edges, anything up to 800, rarely no key at all;
Sk < Sq too, so that causal rows see nothing), at times another offset, window, scale (up to 12 times the usual one) or layout.

Launches go in batches, back to back on several streams without a wait between them; the outputs are NaN beforehand.  Afterwards each is computed again in
float32, some in double, by plain torch operations on the GPU, and compared there; the host waits once per batch.  Rounding errors of an element may add up to

    min(u * sum p |v| / l,  7 u * sqrt(sum (p v)^2) / l)  +  u |o|  +  1e-5 max |o|        u: 2^-8 for bf16, 2^-11 for f16

and 1 % (the worst case of rounding P, or more than seven standard deviations of it, then that of rounding O); LSE to 1e-4 of max(1, |LSE|).

A thread ends the process if a batch takes more than 20 s, and says which launches have not ended.  The last line is `N launches, N wrong, N hung`; exit code 0
if none is wrong or hung."""

import argparse
import collections
import math
import os
import pathlib
import random
import sys
import threading
import time

import torch

from gpu_common import DTYPES, SPECS, attngen, compile_each, is_unsupported, machine, shipped

HEAD_DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256))  # D, Dv
STRESSED = ("causal", "dense", "gqa", "sliding_window")
EDGES = (16, 64, 80, 96, 112, 128, 144, 192, 256)
LONGEST, MOST_SCORES, MOST_OUTPUTS = 800, 1 << 22, 1 << 21  # of one sequence; of one launch
UNIT = {"bf16": 2.0**-8, "f16": 2.0**-11}
DEVIATIONS, LSE_LIMIT = 7, 1e-4
HUNG_S, DOUBLE_SHARE = 20.0, 0.03
POOL = 1 << 23  # elements that inputs are cut from

Job = collections.namedtuple("Job", "spec schedule D Dv dtype B Hq Hkv Sq Sk offset params layout double program")


def describe(job):
    keys = " ".join(f"{k} {x}" for k, x in zip(job._fields, job) if k not in ("program", "double"))
    return keys.replace("params {}", "").replace("  ", " ")


# ---- random launches


def random_length(rng):
    kind = rng.random()
    if kind < 0.12:
        return 1
    if kind < 0.55:
        return max(1, rng.choice(EDGES) * rng.randint(1, 3) + rng.choice((-1, 0, 0, 1)))
    return rng.randint(1, LONGEST)


def random_heads(rng, spec):
    group = SPECS[spec][3] or rng.choice((1, 1, 2, 3, 4, 8))
    hkv = rng.choice((1, 1, 2, 3))
    return group * hkv, hkv


def random_sizes(rng, spec, Dv):
    """B, Hq, Hkv, Sq, Sk that are quickly checked and fit the arenas."""
    while True:
        B, (Hq, Hkv), Sq, Sk = rng.choice((1, 1, 2, 3)), random_heads(rng, spec), random_length(rng), random_length(rng)
        kind = rng.random()
        Sk = Sq if kind < 0.3 else 0 if kind < 0.31 else Sk
        if B * Hq * Sq * Sk <= MOST_SCORES and B * Hq * Sq * Dv <= MOST_OUTPUTS:
            return B, Hq, Hkv, Sq, Sk


def random_job(rng, programs):
    (spec, schedule, D, Dv, dtype), program = rng.choice(programs)
    sizes = random_sizes(rng, spec, Dv)
    params = {}
    if spec == "sliding_window":
        params["window"] = rng.choice((1, 17, 64, 127, 128, 129, 300, 1024))
    if rng.random() < 0.25:
        params["scale"] = rng.choice((0.1, 4.0, 12.0)) / math.sqrt(D)
    offset = rng.randint(-40, sizes[-1] + 20) if rng.random() < 0.1 else None
    layout = "bshd" if rng.random() < 0.7 else "bhsd"
    return Job(spec, schedule, D, Dv, dtype, *sizes, offset, params, layout, rng.random() < DOUBLE_SHARE, program)


class Arena:
    """Memory that tensors of a batch are cut from, without a kernel for any of them."""

    def __init__(self, elements, dtype):
        self.room, self.used = torch.empty(elements, dtype=dtype, device="cuda"), 0

    def cut(self, B, H, S, D, layout):
        at, n = self.used, B * H * S * D
        self.used += (n + 127) // 128 * 128
        if self.used > self.room.numel():
            raise RuntimeError("the arena is too small for one batch")
        return shaped(self.room[at : at + n], B, H, S, D, layout)

    def poison(self):
        self.room[: self.used].fill_(math.nan)
        self.used = 0


def shaped(flat, B, H, S, D, layout):
    return flat.view(B, H, S, D) if layout == "bhsd" else flat.view(B, S, H, D).transpose(1, 2)


def cut_inputs(rng, pool, job):
    """q, k, v: pieces of one pool of normal numbers, at random places that TMA can read from."""

    def one(H, S, D):
        n = job.B * H * S * D
        at = rng.randrange((POOL - n) // 8) * 8
        return shaped(pool[at : at + n], job.B, H, S, D, job.layout)

    return one(job.Hq, job.Sq, job.D), one(job.Hkv, job.Sk, job.D), one(job.Hkv, job.Sk, job.Dv)


# ---- the same in torch


def badness(job, q, k, v, o, lse):
    """Largest error over its limit in o and in lse, as a tensor of 2; NaN or infinite where an output is."""
    T = torch.float64 if job.double else torch.float32
    group, rows = job.Hq // job.Hkv, job.B * job.Hkv
    scale = job.params.get("scale", 1.0 / math.sqrt(job.D))
    flat = lambda t, n: t.to(T).reshape(rows, n, t.shape[-1])
    v, p = flat(v, job.Sk), flat(q, group * job.Sq) @ flat(k, job.Sk).transpose(1, 2) * scale
    mask = SPECS[job.spec][0]
    if mask:
        first = job.Sk - job.Sq if job.offset is None else job.offset
        at = torch.arange(first, first + job.Sq, device="cuda")[:, None]
        seen = mask(at, torch.arange(job.Sk, device="cuda")[None, :], job.params)
        p.view(rows, group, job.Sq, job.Sk).masked_fill_(~seen, -math.inf)
    most = p.amax(-1, keepdim=True).clamp(min=-1e30) if job.Sk else torch.zeros(*p.shape[:2], 1, dtype=T, device="cuda")
    p = (p - most).exp_()
    total = p.sum(-1, keepdim=True)
    p /= total.clamp(min=1e-30)
    want = p @ v
    worst_case = p @ v.abs()
    likely = DEVIATIONS * (p.square() @ v.square()).sqrt()
    limit = 1.01 * UNIT[job.dtype] * (torch.minimum(worst_case, likely) + want.abs()) + 1e-5 * want.abs().amax(-1, keepdim=True) + 1e-7
    error = (o.to(T).reshape(want.shape) - want).abs() / limit
    want_lse = (total.log() + most).squeeze(-1)  # -inf where nothing is seen
    got_lse = lse.to(T).reshape(want_lse.shape)
    lse_error = torch.where(got_lse == want_lse, 0.0, (got_lse - want_lse).abs() / (LSE_LIMIT * want_lse.abs().clamp(min=1.0)))
    return torch.stack((error.amax(), lse_error.amax()))


# ---- the watchdog


class Watchdog(threading.Thread):
    """Ends the process when a batch does not end; `self.jobs` and `self.done` (an event each) are those of the batch that runs."""

    def __init__(self, tally):
        super().__init__(daemon=True)
        self.tally, self.since, self.jobs, self.done = tally, None, [], []

    def watch(self, jobs):
        self.jobs, self.done, self.since = jobs, [], time.monotonic()

    def rest(self):
        self.since = None

    def run(self):
        while True:
            time.sleep(0.5)
            since = self.since
            if since is not None and time.monotonic() - since > HUNG_S:
                self.abort()

    def abort(self):
        done = list(self.done)
        open_ = [job for job, event in zip(self.jobs, done) if not event.query()]
        if len(done) < len(self.jobs):
            open_.append(self.jobs[len(done)])  # the host itself does not come back from this one
        for job in open_[:8]:
            print(f"HUNG {describe(job)}")
        print(f"{self.tally.launches} launches, {self.tally.wrong} wrong, {max(1, len(open_))} hung", flush=True)
        os._exit(3)


class Tally:
    def __init__(self):
        self.launches = self.wrong = 0
        self.worst = [0.0, 0.0]
        self.doubles = 0

    def fail(self, job, text):
        self.wrong += 1
        if self.wrong <= 20:
            print(f"WRONG {describe(job)}: {text}", flush=True)

    def add(self, job, found):
        self.launches += 1
        self.doubles += job.double
        found = [x if math.isfinite(x) else math.inf for x in found]
        self.worst = [max(a, b) for a, b in zip(self.worst, found)]
        if max(found) > 1:
            self.fail(job, f"o {found[0]:.3g}, lse {found[1]:.3g} times its limit")


# ---- batches


class Stress:
    def __init__(self, args, programs):
        self.rng = random.Random(args.seed)
        self.programs = sorted(programs.items(), key=lambda item: item[0])
        torch.manual_seed(args.seed)
        self.pools = {t: torch.randn(POOL, device="cuda", dtype=torch.float32).to(T) for t, T in DTYPES.items()}
        self.outputs = {t: Arena(args.batch * (MOST_OUTPUTS + 128), T) for t, T in DTYPES.items()}
        self.lse = Arena(args.batch * (MOST_OUTPUTS // 64 + 128), torch.float32)
        self.streams = [torch.cuda.Stream() for _ in range(args.streams)]
        self.tally = Tally()
        self.watchdog = Watchdog(self.tally)
        self.watchdog.start()

    def tensors(self, job):
        o = self.outputs[job.dtype].cut(job.B, job.Hq, job.Sq, job.Dv, job.layout)
        lse = self.lse.cut(job.B, job.Hq, job.Sq, 1, "bhsd").squeeze(-1)
        return *cut_inputs(self.rng, self.pools[job.dtype], job), o, lse

    def batch(self, n):
        jobs = [random_job(self.rng, self.programs) for _ in range(n)]
        self.watchdog.watch(jobs)
        main = torch.cuda.current_stream()
        tensors = [self.tensors(job) for job in jobs]
        for arena in (*self.outputs.values(), self.lse):
            arena.poison()
        for stream in self.streams:
            stream.wait_stream(main)
        refused = {}
        for i, (job, (q, k, v, o, lse)) in enumerate(zip(jobs, tensors)):
            stream = self.rng.choice(self.streams)
            try:
                job.program(q, k, v, o=o, lse=lse, offset=job.offset, stream=stream, **job.params)
            except attngen.Error as e:
                refused[i] = str(e)
            self.watchdog.done.append(stream.record_event())
        for stream in self.streams:
            main.wait_stream(stream)
        found = torch.stack([badness(job, *t).float() for job, t in zip(jobs, tensors)]).tolist()  # waits
        self.watchdog.rest()
        for i, job in enumerate(jobs):
            if i in refused:
                self.tally.launches += 1
                self.tally.fail(job, refused[i])
            else:
                self.tally.add(job, found[i])


def compile_all(args):
    """(spec, schedule, D, Dv, dtype) -> program, of the schedules that fit."""
    keys = [(s, c, D, Dv, t) for s in STRESSED for c in args.schedules for D, Dv in HEAD_DIMS for t in DTYPES]
    keys = [key for key in keys if args.only in "{} {} D {} Dv {} {}".format(*key)]
    results = compile_each(args.arch, [{"spec": s, "schedule": c, "D": D, "Dv": Dv, "dtype": t} for s, c, D, Dv, t in keys])
    programs = {}
    for (spec, schedule, *rest), result in zip(keys, results):
        if not isinstance(result, attngen.Error):
            programs[(spec, pathlib.Path(schedule).stem, *rest)] = result
        elif not is_unsupported(result):
            raise SystemExit(f"{spec} {schedule} {rest}: {result}")
    return programs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--launches", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", default="", metavar="NAME,FILE,...", help="shipped names or files, by default all shipped ones that fit")
    parser.add_argument("--arch", help="target of attngen's kernels, by default that of the GPU")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="launches without a wait of the host")
    parser.add_argument("--only", default="", help="only programs with this text in `SPEC SCHEDULE D 128 Dv 128 bf16`")
    args = parser.parse_args()
    args.schedules = [s for s in args.schedules.split(",") if s] or shipped("schedules")
    torch.cuda.init()
    torch.set_float32_matmul_precision("highest")
    print(", ".join(f"{k} {v}" for k, v in machine(attngen.Context(arch=args.arch)).items()), flush=True)
    start = time.monotonic()
    programs = compile_all(args)
    if not programs:
        raise SystemExit("no program to launch: no schedule fits")
    print(f"{len(programs)} programs compiled in {time.monotonic() - start:.1f} s; seed {args.seed}", flush=True)
    start, stress = time.monotonic(), Stress(args, programs)
    tally = stress.tally
    try:
        while tally.launches < args.launches:
            stress.batch(min(args.batch, args.launches - tally.launches))
    except RuntimeError as e:  # the device is lost: which launch did it cannot be told
        print(f"FAILED in a batch of: {e}")
        for job in stress.watchdog.jobs:
            print(f"  {describe(job)}")
        tally.wrong += 1
    seconds = time.monotonic() - start
    print(f"{seconds:.0f} s, {tally.doubles} against double; worst error {tally.worst[0]:.2f} of its limit in o, {tally.worst[1]:.2f} in lse")
    print(f"{tally.launches} launches, {tally.wrong} wrong, 0 hung", flush=True)
    sys.stdout.flush()
    os._exit(1 if tally.wrong else 0)  # a lost device would keep the interpreter from ending


if __name__ == "__main__":
    main()
