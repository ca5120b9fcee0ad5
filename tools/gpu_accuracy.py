#!/usr/bin/env python3
"""Errors of schedules on easy and hostile inputs against PyTorch in double precision: exact beside speculative softmax.

    tools/gpu_accuracy.py [--schedules NAME,FILE,...] [--arch ARCH] [--dtypes bf16,f16] [--head-dims 64,128,256] [--seq 2048] [--only TEXT] [--markdown FILE]

By default every shipped schedule that is for the architecture and the head dim.  B 1, H 4 on 2 KV heads, Sq = Sk = --seq, full and causal.  Inputs
(the standard deviation of scores in nats is 1 where nothing else is said):

    normal          q, k, v normal
    peaky10 20 30   scores with a standard deviation of 10, 20, 30
    jumping         the scores of the left half of the keys are 30 times larger; blocks are visited from the right, so the maximum jumps half way
    overflow        the same with 300: scores hundreds of nats above any maximum before
    sink            every query likes the first four keys by about 50 nats
    ramp            scores rise by 400 nats from the right end to the left

A cell is the rms and the largest error of O over those of a naive computation in low precision: scores and sums in float32, P = exp(s - max) rounded to the
storage type, O rounded.  LSE: largest error over max(1, |LSE|), of all inputs.  PASS: exact schedules at most 2 times the naive maximum, speculative and
lazy ones 4 times the maximum and 2.5 times the rms; LSE within 1e-4.  (src/compare.c has the limits of `attngen check`, which hold for each row.)  `!` marks
what fails.  Outputs are NaN before each launch.  Exit code 1: something failed."""

import argparse
import math
import pathlib
import sys

import torch

from gpu_common import DTYPES, attngen, compile_each, is_stale, is_unsupported, machine, shipped

B, HQ, HKV = 1, 4, 2
LIMITS = {False: (math.inf, 2.0), True: (2.5, 4.0)}  # by is_stale: rms, maximum
LSE_LIMIT = 1e-4
MASKS = ("full", "causal")
SINK_KEYS, SINK_NATS, RAMP_NATS = 4, 50.0, 400.0


def normal(S, D, g):
    draw = lambda h: torch.randn(B, h, S, D, generator=g, device="cuda", dtype=torch.float32)
    return draw(HQ), draw(HKV), draw(HKV)


def peaky(sigma):
    def make(S, D, g):
        q, k, v = normal(S, D, g)
        return q * sigma, k, v

    return make


def jumping(factor):
    def make(S, D, g):
        q, k, v = normal(S, D, g)
        k[:, :, : S // 2] *= factor
        return q, k, v

    return make


def along_one_direction(q, k, nats):
    """Adds nats[j] to the score of every query with key j: q gets 1 in every channel, k gets that part of its own replaced."""
    D = q.shape[-1]
    return q + 1.0, k - k.mean(-1, keepdim=True) + nats[:, None] / math.sqrt(D)


def sink(S, D, g):
    q, k, v = normal(S, D, g)
    nats = torch.zeros(S, device="cuda")
    nats[:SINK_KEYS] = SINK_NATS
    return *along_one_direction(q, k, nats), v


def ramp(S, D, g):
    q, k, v = normal(S, D, g)
    return *along_one_direction(q, k, torch.linspace(RAMP_NATS, 0.0, S, device="cuda")), v


INPUTS = {
    "normal": normal,
    "peaky10": peaky(10.0),
    "peaky20": peaky(20.0),
    "peaky30": peaky(30.0),
    "jumping": jumping(30.0),
    "overflow": jumping(300.0),
    "sink": sink,
    "ramp": ramp,
}


def reference(q, k, v, causal):
    """(O and LSE in double, O of the naive computation in double)"""
    D, S, T = q.shape[-1], q.shape[-2], q.dtype
    k, v = (t.repeat_interleave(HQ // HKV, 1) for t in (k, v))
    hidden = torch.ones(S, S, dtype=torch.bool, device="cuda").triu(1) if causal else None

    def scores(dtype):
        s = q.to(dtype) @ k.to(dtype).transpose(-1, -2) / math.sqrt(D)
        return s if hidden is None else s.masked_fill_(hidden, -math.inf)

    s = scores(torch.float64)
    lse = torch.logsumexp(s, -1)
    o = torch.exp(s - lse[..., None]) @ v.double()
    s = scores(torch.float32)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    naive = ((p.to(T).float() @ v.float()) / p.sum(-1, keepdim=True)).to(T)
    return o, lse, naive.double()


def errors(program, q, k, v, want):
    """(rms over naive, maximum over naive, error of LSE); infinite where something is NaN."""
    o, lse, naive = want
    got = torch.full((B, q.shape[2], HQ, v.shape[3]), math.nan, dtype=q.dtype, device="cuda").transpose(1, 2)
    got_lse = torch.full(lse.shape, math.nan, dtype=torch.float32, device="cuda")
    program(q, k, v, o=got, lse=got_lse)
    e, e0 = got.double() - o, naive - o
    found = (
        e.square().mean().sqrt() / e0.square().mean().sqrt(),
        e.abs().amax() / e0.abs().amax(),
        ((got_lse.double() - lse).abs() / lse.abs().clamp(min=1.0)).amax(),
    )
    return [x if math.isfinite(x) else math.inf for x in torch.stack(found).tolist()]


def compile_all(args):
    """(D, dtype, causal) -> {schedule: program}, of the schedules that fit."""
    keys = [(D, t, c) for D in args.head_dims for t in args.dtypes for c in (False, True) if args.only in f"{D} {t} {MASKS[c]}"]
    jobs = [(key, s, {"spec": "causal" if key[2] else "dense", "schedule": s, "D": key[0], "dtype": key[1]}) for key in keys for s in args.schedules]
    found = {}
    for (key, schedule, job), result in zip(jobs, compile_each(args.arch, [job for _, _, job in jobs])):
        if not isinstance(result, attngen.Error):
            found.setdefault(key, {})[pathlib.Path(schedule).stem] = result
        elif not is_unsupported(result):
            raise SystemExit(f"{schedule}: {job}: {result}")
    return found


def fails(stale, cell):
    rms, most, lse = cell
    return rms > LIMITS[stale][0] or most > LIMITS[stale][1] or lse > LSE_LIMIT


def inputs_of(name, args, D, dtype):
    g = torch.Generator("cuda").manual_seed(D)
    lay = lambda t: t.to(DTYPES[dtype]).transpose(1, 2).contiguous().transpose(1, 2)  # [B, S, H, D]
    return [lay(t) for t in INPUTS[name](args.seq, D, g)]


def rows_of(programs, args, D, dtype, causal):
    """Dicts of one schedule each: name, stale, cells: input -> (rms, maximum, LSE)."""
    rows = [{"D": D, "dtype": dtype, "causal": causal, "name": name, "stale": is_stale(p), "program": p, "cells": {}} for name, p in programs.items()]
    for name in INPUTS:
        tensors = inputs_of(name, args, D, dtype)
        want = reference(*tensors, causal)
        for row in rows:
            row["cells"][name] = errors(row["program"], *tensors, want)
    return rows


def cell_text(row, name):
    rms, most, _ = row["cells"][name]
    return f"{rms:.2f}/{most:.2f}{'!' if fails(row['stale'], row['cells'][name]) else ''}"


def fields(row):
    """The texts of a row of either table."""
    lse = max(cell[2] for cell in row["cells"].values())
    return [
        row["name"],
        str(row["D"]),
        row["dtype"],
        MASKS[row["causal"]],
        *(cell_text(row, name) for name in INPUTS),
        f"{lse:.0e}{'!' if lse > LSE_LIMIT else ''}",
    ]


HEAD = ["schedule", "D", "type", "mask", *INPUTS, "LSE"]
WIDTHS = [23, 3, 4, 6, *[10] * len(INPUTS), 6]


def plain(texts):
    return " ".join(f"{t:<{w}}" for t, w in zip(texts, WIDTHS)).rstrip()


def markdown(rows, about, args):
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)] + ["| " + " | ".join(fields(row)) + " |" for row in rows]
    return f"{', '.join(f'{k} {v}' for k, v in about.items())}; S {args.seq}, H {HQ}/{HKV}; rms/maximum over naive\n\n" + "\n".join(lines) + "\n"


def verdict(rows, stale):
    """One line on the exact schedules or on the others; whether they pass."""
    cells = {(row["name"], row["D"], row["dtype"], row["causal"], i): c for row in rows if row["stale"] == stale for i, c in row["cells"].items()}
    if not cells:
        return True
    failed = sum(fails(stale, c) for c in cells.values())
    worst = [max(c[n] for c in cells.values()) for n in range(3)]
    where = max(cells, key=lambda at: cells[at][1])
    rms, most = LIMITS[stale]
    limits = (f"maximum {most}" if math.isinf(rms) else f"maximum {most}, rms {rms}") + f", LSE {LSE_LIMIT:.0e}"
    print(
        f"{'FAIL' if failed else 'PASS'} {'speculative or lazy' if stale else 'exact'}: {len(cells) - failed} of {len(cells)} within {limits};"
        f" worst rms {worst[0]:.2f}, maximum {worst[1]:.2f} ({where[0]} D {where[1]} {where[2]} {MASKS[where[3]]} {where[4]}), LSE {worst[2]:.1e}"
    )
    return not failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", default="", metavar="NAME,FILE,...", help="shipped names or files, by default all shipped ones that fit")
    parser.add_argument("--arch", help="target of attngen's kernels, by default that of the GPU")
    parser.add_argument("--dtypes", default="bf16,f16")
    parser.add_argument("--head-dims", default="64,128,256")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--only", default="", help="only rows with this text in `128 bf16 causal`")
    parser.add_argument("--markdown", help="write the table to this file as markdown")
    args = parser.parse_args()
    args.schedules = [s for s in args.schedules.split(",") if s] or shipped("schedules")
    args.dtypes, args.head_dims = args.dtypes.split(","), [int(D) for D in args.head_dims.split(",")]
    torch.cuda.init()
    torch.set_float32_matmul_precision("highest")
    about = machine(attngen.Context(arch=args.arch))
    print(", ".join(f"{k} {v}" for k, v in about.items()) + f"; S {args.seq}; cells: rms/maximum over naive")
    print(plain(HEAD))
    rows = []
    for key, programs in compile_all(args).items():
        for row in rows_of(programs, args, *key):
            print(plain(fields(row)), flush=True)
            rows.append(row)
    if not rows:
        raise SystemExit("nothing to measure: no schedule fits")
    if args.markdown:
        pathlib.Path(args.markdown).write_text(markdown(rows, about, args))
    passed = [verdict(rows, False), verdict(rows, True)]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
