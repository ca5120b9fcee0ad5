#!/usr/bin/env python3
"""Several branches as one kernel beside kernels of their own, on the GPU: differential attention and Parallax.

    tools/gpu_branches.py [--only TEXT] [--rounds N] [--json FILE]

`apart` is the default: a kernel for each branch, the output in the last one's.  `fused` has loop.branches: fused and a tile by the rules; the others are schedules of
the same kind that differ as their names say.  bf16, tensors [B, S, H, D], 2048 / D heads.  All outputs of a case are compared with one another, and of the first case of
each spec with double precision.  Medians of CUDA events around graphs in one process, L2 overwritten before each, in random order; `torch` is torch.compile of the same
formula."""

import argparse
import json
import math
import pathlib
import sys

import torch

from gpu_common import DIFFERENTIAL, attngen, captured, check_same, compile_each, machine, medians, race, rows

WGMMA = """schema: attngen.schedule/1
name: %s
target: {arch: [sm_90a]}
tile: {m: 128, n: %s}
mma: {family: wgmma, p_operand: %s}
roles: {consumer: {warpgroups: 2, regs: 232}, producer: {regs: 40}}
staging: {k: {stages: 2}, v: {stages: 2}}
pipeline: {overlap: %s, turns: %s}
loop: {form: flagged, branches: fused}
"""
# name: tile.n, p_operand, overlap, turns
SCHEDULES = {
    "fused": ("auto", "regs", "true", "false"),
    "turns": ("auto", "regs", "true", "true"),
    "in_order": ("64", "regs", "false", "false"),
    "smem": ("auto", "smem", "true", "false"),
}
SHARE = 0.2
# spec, B, S, D, Dv
CASES = [
    ("differential", 32, 512, 64, 128),
    ("differential", 8, 2048, 64, 128),
    ("differential", 4, 4096, 64, 128),
    ("differential", 8, 2048, 64, 64),
    ("parallax", 32, 512, 64, 64),
    ("parallax", 8, 2048, 64, 64),
    ("parallax", 4, 4096, 64, 64),
    ("parallax", 32, 512, 128, 128),
    ("parallax", 8, 2048, 128, 128),
    ("parallax", 4, 4096, 128, 128),
]


def formula(spec, q, k, v, more):
    """In the type of the tensors, or in double."""
    scale = 1 / math.sqrt(q.shape[-1])
    if spec == "differential":
        one = lambda q, k: torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v
        return one(q, k) - SHARE * one(more["q2"], more["k2"])
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    p = torch.softmax((q @ k.transpose(-1, -2) * scale).masked_fill(hidden, -math.inf), -1)
    w = p * (more["r"] @ k.transpose(-1, -2))
    return p @ v * (1 + w.sum(-1, keepdim=True)) - w @ v


def check(name, spec, got, tensors, more):
    """Against double, for the first two batch entries: twice the error of the formula in bf16, and half an ulp of the row's largest value."""
    q, k, v = (x[:2] for x in tensors)
    part = {n: x[:2] for n, x in more.items() if x.dim() == 4}
    want = formula(spec, *(x.double() for x in (q, k, v)), {n: x.double() for n, x in part.items()})
    naive = (formula(spec, q, k, v, part).double() - want).abs().amax(-1, keepdim=True)
    limit = 2 * naive + 2 * 2**-8 * want.abs().amax(-1, keepdim=True) + 1e-6
    bad = ((got[:2].double() - want).abs() / limit).nan_to_num(math.inf).amax().item()
    if not bad <= 1:
        raise SystemExit(f"{name}: off by {bad:.2f} times its limit")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.manual_seed(0)
    about = machine(attngen.Context())
    print(", ".join(f"{k} {v}" for k, v in about.items()), flush=True)
    cases = [c for c in CASES if args.only in f"{c[0]} {c[1]} x {c[2]} D {c[3]}"]
    kinds = sorted({(spec, D, Dv) for spec, _, _, D, Dv in cases})
    ways = {"apart": None, **{n: WGMMA % (n, *how) for n, how in SCHEDULES.items()}}
    jobs = [(kind, way) for kind in kinds for way in ways]
    made = compile_each(about["arch"], [{"spec": DIFFERENTIAL if s == "differential" else s, "schedule": ways[way], "D": D, "Dv": Dv} for (s, D, Dv), way in jobs])
    programs = dict(zip(jobs, made))
    for job, program in programs.items():
        if isinstance(program, attngen.Error):
            print(f"{job}: {str(program).splitlines()[0]}", flush=True)
    found, seen = [], set()
    for spec, B, S, D, Dv in cases:
        H, name = 2048 // D, f"{spec} {B} x {S} D {D}, {Dv}"
        tensors = rows(B, H, S, D), rows(B, H, S, D), rows(B, H, S, Dv)
        more = {"q2": rows(B, H, S, D), "k2": rows(B, H, S, D), "share": torch.tensor(SHARE, device="cuda")} if spec == "differential" else {"r": rows(B, H, S, D) / 16}
        graphs = {}
        for way in ways:
            program = programs[(spec, D, Dv), way]
            if isinstance(program, attngen.Error):
                continue
            out = torch.full((B, S, H, Dv), math.nan, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
            graphs[way] = captured(lambda: program(*tensors, o=out, **more))
        torch_formula = torch.compile(lambda: formula(spec, *tensors, more), dynamic=False)
        torch._dynamo.reset()
        graphs["torch"] = captured(torch_formula)
        for graph, out in graphs.values():
            out.fill_(math.nan)
            graph.replay()
        torch.cuda.synchronize()
        worst = {}
        if (spec, D, Dv) not in seen:
            worst = {way: check(f"{name} {way}", spec, out, tensors, more) for way, (_, out) in graphs.items() if way != "torch"}
        seen.add((spec, D, Dv))
        check_same(name, {way: out for way, (_, out) in graphs.items()})
        ms = medians(race({way: graph for way, (graph, _) in graphs.items()}, args.rounds))
        found.append({"name": name, "ms": ms, "worst": worst})
        of_limit = f"   of its limit {max(worst.values()):.2f}" if worst else ""
        print(f"{name:32}" + "".join(f"{way:>10} {t:8.4f}" for way, t in ms.items()) + of_limit, flush=True)
        del graphs
        torch.cuda.empty_cache()
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"machine": about, "cases": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
