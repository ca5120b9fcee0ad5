#!/usr/bin/env python3
"""Masks with a tile map on one GPU: against an earlier library in the same process, and with the map made once (Program.mask).

    tools/gpu_maps.py [--before LIBRARY --before-python ATTNGEN.PY] [--rounds 15] [--only TEXT,...]

Rows of the output are compared with the formula in double first, in outputs that were full of NaN; then each contender is one launch in a CUDA graph, contenders are shuffled in
each round, L2 is overwritten before each run, and medians are told.  `map kept` leaves out the kernel that makes the map; `before` is the earlier library."""

import argparse
import concurrent.futures
import importlib.util
import os

import torch

from gpu_common import attngen, captured, medians, race

ROWS = 48


def floor(a, b):
    return torch.div(a, b, rounding_mode="floor")


def clamp(x, lo, hi):
    return torch.minimum(torch.maximum(x, torch.as_tensor(lo, device=x.device)), torch.as_tensor(hi, device=x.device))


def documents(S):
    return (torch.arange(S, device="cuda") // 2048).to(torch.int32)[None]


def natten_2d(w, r):
    def mask(q, k, S, h, doc):
        row, col = clamp(floor(q, w), r, S // w - 1 - r), clamp(q % w, r, w - 1 - r)
        return ((floor(k, w) - row).abs() <= r) & ((k % w - col).abs() <= r)

    return mask


def natten_3d(q, k, S, h, doc, w=16, r=2):
    frame, row, col = clamp(floor(q, w * w), r, S // (w * w) - 1 - r), clamp(floor(q, w) % w, r, w - 1 - r), clamp(q % w, r, w - 1 - r)
    return ((floor(k, w * w) - frame).abs() <= r) & ((floor(k, w) % w - row).abs() <= r) & ((k % w - col).abs() <= r)


def natten_tiled(q, k, S, h, doc, w=64, t=8, r=6):
    a, tq, tk = w // t, floor(q, t * t), floor(k, t * t)
    row = clamp(floor(tq, a) * t + floor(q % (t * t), t), r, S // w - 1 - r)
    col = clamp(tq % a * t + q % t, r, w - 1 - r)
    return ((floor(tk, a) * t + floor(k % (t * t), t) - row).abs() <= r) & ((tk % a * t + k % t - col).abs() <= r)


def sta_3d(q, k, S, h, doc):
    video, tq, tk = 5 * 6 * 10 * 384, floor(q, 384), floor(k, 384)
    near = torch.ones_like(q * k, dtype=torch.bool)
    for a, n in ((lambda t: floor(t, 60), 5), (lambda t: floor(t, 10) % 6, 6), (lambda t: t % 10, 10)):
        near = near & ((a(tk) - clamp(a(tq), 1, n - 2)).abs() <= 1)
    return torch.where(q < video, near | ((k >= video) & (k < video + 128)), k < video + 128)


def svg_temporal(q, k, S, h, doc):
    return (q < 256) | (k < 256) | (((q - 256) % 1024 - (k - 256) % 1024).abs() < 128)


def longnet_times(q, k, h):
    n = 0
    for i in range(3):
        n = n + ((floor(k, 2048 << i) == floor(q, 2048 << i)) & (k % (1 << i) == h % (1 << i)) & (q % (1 << i) == h % (1 << i))).int()
    return n * (k <= q)


# name: spec, S, heads, D, parameters bound when it is compiled, mask
CASES = {
    "document": ("document", 16384, 16, 128, {}, lambda q, k, S, h, doc: (k <= q) & (doc[q] == doc[k])),
    "document D 64": ("document", 16384, 16, 64, {}, lambda q, k, S, h, doc: (k <= q) & (doc[q] == doc[k])),
    "document_full": ("document_full", 16384, 16, 128, {}, lambda q, k, S, h, doc: doc[q] == doc[k]),
    "natten_2d, width 512": ("natten_2d", 16384, 16, 128, {"width": 512}, natten_2d(512, 6)),
    "criss_cross, width 512": ("criss_cross", 16384, 16, 128, {"width": 512}, lambda q, k, S, h, doc: (floor(k, 512) == floor(q, 512)) | (k % 512 == q % 512)),
    "natten_3d": ("natten_3d", 16384, 16, 128, {}, natten_3d),
    "natten_tiled": ("natten_tiled", 16384, 16, 128, {}, natten_tiled),
    "sta_3d": ("sta_3d", 5 * 6 * 10 * 384 + 128, 2, 128, {}, sta_3d),
    "svg_temporal": ("svg_temporal", 16640, 16, 128, {}, svg_temporal),
    "longnet": ("longnet", 32768, 8, 128, {}, lambda q, k, S, h, doc: longnet_times(q, k, h)),
}


def other(path, python):
    """The binding once more, over another library."""
    os.environ["ATTNGEN_LIBRARY"] = path
    spec = importlib.util.spec_from_file_location("attngen_before", python)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(q, k, v, mask, h, rows, doc):
    """Rows of head h in double; a number in place of a condition is how often a key counts."""
    S = k.shape[2]
    at, key = rows[:, None].long(), torch.arange(S, device="cuda")[None]
    times = mask(at, key, S, h, doc).double()
    s = q[0, h, rows].double() @ k[0, h].double().T / q.shape[3] ** 0.5
    p = torch.exp(s.masked_fill(times == 0, float("-inf")) - s.masked_fill(times == 0, float("-inf")).amax(1, keepdim=True).clamp(min=-1e30)) * times
    return torch.nan_to_num(p @ v[0, h].double() / p.sum(1, keepdim=True))


def one(name, programs, rounds):
    spec, S, H, D, bound, mask = CASES[name]
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, S, H, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    doc = documents(S)
    inputs = {"doc": doc} if spec.startswith("document") else {}
    outs = {c: torch.empty(1, S, H, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for c in (*programs, "map kept")}
    spaces = {c: torch.zeros(max(1, p.workspace_bytes(q, k, v, **inputs)), dtype=torch.uint8, device="cuda") for c, p in programs.items()}
    work = {c: (lambda c=c, p=p: p(q, k, v, o=outs[c], workspace=spaces[c], **inputs)) for c, p in programs.items()}
    kept = programs["now"].mask(q, k, v, **inputs)
    work["map kept"] = lambda: kept(q, k, v, o=outs["map kept"])
    graphs = {c: captured(w)[0] for c, w in work.items()}
    rows = torch.cat([torch.arange(16, device="cuda"), torch.randint(S, (ROWS - 32,), device="cuda"), torch.arange(S - 16, S, device="cuda")])
    worst = {}
    for c, graph in graphs.items():
        outs[c].fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for h in {0, H - 1}:
            want = expected(q, k, v, mask, h, rows, doc[0])
            worst[c] = max(worst.get(c, 0), ((outs[c][0, h, rows].double() - want).norm() / want.norm()).item())
        if not worst[c] < 1e-2 or not torch.isfinite(outs[c]).all():
            raise SystemExit(f"{name}: {c} is off by {worst[c]:.3g} of the norm")
    times = medians(race(graphs, rounds))
    sizes = {c: s.numel() for c, s in spaces.items()}
    print(f"{name:24} S {S} H {H}  " + "  ".join(f"{c} {t:.4f} ms" for c, t in times.items()) + f"  workspace {sizes}  error {max(worst.values()):.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before")
    parser.add_argument("--before-python")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    libraries = {"now": attngen} | ({"before": other(args.before, args.before_python)} if args.before else {})
    names = [n for n in CASES if any(text in n for text in args.only.split(","))]
    jobs = [(n, c, m) for n in names for c, m in libraries.items()]
    make = lambda job: job[2].Context().compile(CASES[job[0]][0], D=CASES[job[0]][3], **CASES[job[0]][4])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = dict(zip([j[:2] for j in jobs], pool.map(make, jobs)))
    print(torch.cuda.get_device_name(), flush=True)
    for n in names:
        try:
            one(n, {c: made[n, c] for c in libraries}, args.rounds)
        except (Exception, SystemExit) as e:
            print(f"{n}: FAILED {type(e).__name__} {e}", flush=True)


if __name__ == "__main__":
    main()
