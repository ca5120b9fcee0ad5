#!/usr/bin/env python3
"""Native Sparse Attention beside PyTorch's dense causal attention (cuDNN), in one process on one GPU.

    tools/gpu_nsa.py [--lengths 8,16,32,64] [--heads 4,8,16,32,64] [--lists 64x16,128x8] [--rounds 7] [--smooth R] [--schedule NAME|FILE]
                     [--arch ARCH] [--peers FILE] [--json FILE]

bf16, forward, B 1, D 128, 4 KV heads, pooling 32 / 16, window 512, one initial and two local blocks, random q k v and gates; tensors lie as [B, S, H, D].
--lengths in units of 1024 tokens; --lists: block x count; --smooth N: q is the mean of N
neighbouring random ones (default 1), scaled to the same variance, so that neighbours list much the same blocks, as those of a trained model do.  Each line: milliseconds of each kernel of the program (from the profiler, median), of the whole
program and of cuDNN (one CUDA graph each, shuffled, L2 overwritten before each run, medians), and cuDNN / total.

--peers: a text with tables `cfg fa2.full cud.full ...` of the same configurations from another run; the best peer's figures are scaled by the ratio of the two
runs' cuDNN times, or of the other table's where a table has none, and the last columns tell peer / ours for the selected branch (*.slc) and the total (*.tot).  The selected branch writes the program's output, with gates and sum, in `slc`;
`alone` is a program whose output is that branch, and is what is compared with the peers, whose kernels for it have neither.

First the program is compared with one written in torch in double precision at S 2048: with the given heads under --schedule, else with 4, 12 and 64."""

import argparse
import json
import pathlib
import re
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from gpu_common import attngen, captured, geomean, machine, medians, race

D, HKV, POOL, STRIDE, WINDOW, FIRST, LOCAL = 128, 4, 32, 16, 512, 1, 2
SPEC = (pathlib.Path(__file__).resolve().parent.parent / "specs" / "nsa.yaml").read_text()
ALONE = re.sub(r"(?m)^(inputs:|  gate:|  win:|output:).*\n", "", SPEC) + "output: slc\n"  # the selected branch without gates and sum, as the peers' kernels for it are


def tensors(S, Hq, seed=0, smooth=1):
    g = torch.Generator("cuda").manual_seed(seed)
    random = lambda s, h: torch.randn(1, s, h, D, generator=g, device="cuda", dtype=torch.float32)
    make = lambda h: random(S, h).to(torch.bfloat16).transpose(1, 2)
    sums = F.pad(random(S + smooth - 1, Hq).cumsum(1), (0, 0, 0, 0, 1, 0))
    q = ((sums[:, smooth:] - sums[:, :-smooth]) / smooth**0.5).to(torch.bfloat16).transpose(1, 2)
    gate = torch.rand(1, S, Hq, 3, generator=g, device="cuda")  # [b, q, h, 3]
    return q, make(HKV), make(HKV), gate


def in_double(q, k, v, gate, block, count):
    """NSA written out for B 1: O, and importance [Hkv, S, blocks] for which blocks there are."""
    q, k, v, gate = (x[0].double() for x in (q, k, v, gate))
    Hq, S, _ = q.shape
    G, scale, at = Hq // HKV, D**-0.5, torch.arange(S, device="cuda")
    pool = lambda x: x.unfold(1, POOL, STRIDE).mean(-1).to(torch.bfloat16).double()
    kc, vc = pool(k), pool(v)
    heads = lambda x: x.repeat_interleave(G, 0)

    def attend(keys, values, mask):
        s = torch.einsum("hqd,hkd->hqk", q, heads(keys)) * scale
        s = s.masked_fill(~mask, float("-inf"))
        p = torch.nan_to_num(s.softmax(-1))
        return p, p @ heads(values)

    starts = torch.arange(kc.shape[1], device="cuda") * STRIDE
    p, cmp = attend(kc, vc, (starts[None] + POOL - 1 <= at[:, None])[None])
    blocks = torch.arange((S + block - 1) // block, device="cuda") * block
    inside = (torch.minimum(starts[:, None] + POOL, blocks[None] + block) - torch.maximum(starts[:, None], blocks[None])).clamp(min=0)
    importance = (p.view(HKV, G, S, -1).sum(1)) @ (inside.double() / STRIDE)
    own, number = at[:, None] // block, torch.arange(len(blocks), device="cuda")[None]
    forced = (number < FIRST) | ((number <= own) & (number > own - LOCAL))
    ranked = importance.masked_fill(forced[None], float("inf")).masked_fill((number > own)[None], float("-inf"))
    best = ranked.topk(min(count, len(blocks)), -1)
    chosen = torch.zeros_like(ranked, dtype=torch.bool).scatter_(-1, best.indices, best.values > float("-inf"))
    listed = heads(chosen.repeat_interleave(block, -1)[..., :S])
    causal = at[None, :] <= at[:, None]
    _, slc = attend(k, v, listed & causal[None])
    _, win = attend(k, v, (causal & (at[:, None] - at[None, :] < WINDOW))[None])
    g = gate.permute(1, 0, 2)
    return g[..., 0:1] * cmp + g[..., 1:2] * slc + g[..., 2:3] * win


def check(arch, schedule, Hq, block, count):
    program = attngen.Context(arch=arch).compile(SPEC, schedule, D=D, group=Hq // HKV, block=block, top=count)
    q, k, v, gate = tensors(2048, Hq, 1)
    o = torch.full((1, 2048, Hq, D), float("nan"), device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    program(q, k, v, o=o, gate=gate)
    torch.cuda.synchronize()
    want = in_double(q, k, v, gate, block, count)
    rows = (o[0].double() - want).norm(dim=-1) / want.norm(dim=-1)
    again = torch.empty_like(o)
    program(q, k, v, o=again, gate=gate)
    torch.cuda.synchronize()
    far = (rows > 0.02).double().mean().item()  # rows whose lists differ by near-ties
    print(f"S 2048 {Hq}/{HKV} ({block}, {count}): median error {rows.median().item():.2e} of the norm, rows off by more than 2 %: {100 * far:.3f} %, the same again: {torch.equal(o, again)}")
    return rows.median().item() < 5e-3 and far < 0.01 and torch.equal(o, again)


STAGES = (("pool", r"_pool\d"), ("cmp", r"_cmp_fwd"), ("select", r"_picks$"), ("slc", r"_slc_|_count\d|_scan\d|_invert\d|_merge\d"), ("win", r"_win_fwd"), ("out", r"_combine"))


def stages(call, runs=5):
    """stage -> milliseconds, by the names of kernels."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(runs):
            call()
        torch.cuda.synchronize()
    found = {}
    for event in prof.events():
        for name, pattern in STAGES:
            if event.device_type == torch.autograd.DeviceType.CUDA and re.search(pattern, event.name):
                found.setdefault((name, event.name), []).append(event.device_time / 1e3)
    out = {name: 0.0 for name, _ in STAGES}
    for (name, _), times in found.items():  # a kernel may run for one chunk of queries after the other
        n = len(times) // runs
        out[name] += statistics.median(sum(times[i * n : (i + 1) * n]) for i in range(runs))
    return out


def peer_tables(text):
    """(block, count) -> {(S in 1024, Hq): {column: ms}}"""
    tables, header, current = {}, None, None
    for line in text.splitlines():
        title = re.search(r"== fwd, block (\d+), top-(\d+)", line)
        if re.match(r"== ", line):
            current = tables.setdefault((int(title[1]), int(title[2])), {}) if title else None
        elif line.startswith("cfg"):
            header = line.split()[1:]
        elif current is not None:
            row = re.match(r"\s*(\d+)k\s+(\d+)/4\s+(.*)", line)
            if row:
                current[int(row[1]), int(row[2])] = dict(zip(header, map(float, row[3].split())))
    return tables


def against_peers(tables, block, count, S, Hq, mine):
    """Best peer's time over ours for the selected branch and the total, and SFNSA's total over ours."""
    row, dense = tables.get((block, count), {}).get((S, Hq)), tables.get((64, 16), {}).get((S, Hq), {}).get("cud.full")
    if not row or not dense:
        return None
    scale = mine["cudnn"] / dense
    best = lambda suffix: scale * min(x for name, x in row.items() if name.endswith(suffix))
    return best(".slc") / mine["alone"], best(".tot") / mine["total"], scale * row["S.tot"] / mine["total"]


def measure(arch, schedule, S, Hq, block, count, rounds, smooth, tables):
    program = attngen.Context(arch=arch).compile(SPEC, schedule, D=D, group=Hq // HKV, block=block, top=count)
    q, k, v, gate = tensors(S, Hq, smooth=smooth)
    o = torch.empty(1, S, Hq, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    size = program.workspace_bytes(q, k, v, gate=gate)
    space = torch.zeros(size, dtype=torch.uint8, device="cuda")
    ours = lambda: program(q, k, v, o=o, gate=gate, workspace=space)
    selected = attngen.Context(arch=arch).compile(ALONE, schedule, D=D, group=Hq // HKV, block=block, top=count)
    alone = lambda: selected(q, k, v, o=o, workspace=space)  # it needs less than the whole

    def dense():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=Hq != HKV)

    graphs = {"total": captured(ours)[0], "cudnn": captured(dense)[0]}
    ms = medians(race(graphs, rounds))
    row = {"S": S, "Hq": Hq, "block": block, "count": count, "workspace": size, **stages(ours), "alone": stages(alone)["slc"], **ms}
    row["peers"] = against_peers(tables, block, count, S // 1024, Hq, row)
    cells = "".join(f"{row[name]:9.3f}" for name, _ in STAGES) + f"{row['alone']:9.3f}{ms['total']:9.3f}{ms['cudnn']:10.3f}{ms['cudnn'] / ms['total']:7.2f}{size / 1e9:7.2f}"
    print(f"{S // 1024:3}k {Hq:2}/{HKV} {block:3}x{count:<2} {cells}" + ("".join(f"{x:8.2f}" for x in row["peers"]) if row["peers"] else ""), flush=True)
    return row


def main():
    numbers = lambda text: [int(x) for x in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=numbers, default=[8, 16, 32, 64])
    parser.add_argument("--heads", type=numbers, default=[4, 8, 16, 32, 64])
    parser.add_argument("--lists", default="64x16,128x8")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smooth", type=int, default=1)
    parser.add_argument("--schedule")
    parser.add_argument("--arch")
    parser.add_argument("--peers", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    lists = [tuple(map(int, x.split("x"))) for x in args.lists.split(",")]
    about = machine(attngen.Context(arch=args.arch))
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    ok = all([check(args.arch, args.schedule, Hq, *x) for Hq in (args.heads if args.schedule else (4, 12, 64)) for x in lists])
    tables = peer_tables(pathlib.Path(args.peers).read_text()) if args.peers else {}
    print("  S  heads list   " + "".join(f"{name:>9}" for name, _ in STAGES) + "    alone    total     cudnn  ratio     GB   slc/p  best/p  SFNSA/p")
    rows = [measure(args.arch, args.schedule, 1024 * S, Hq, *x, args.rounds, args.smooth, tables) for x in lists for S in args.lengths for Hq in args.heads]
    with_peers = [r["peers"] for r in rows if r["peers"]]
    if with_peers:
        print("peer / ours, geometric mean and least: " + ", ".join(f"{what} {geomean(x):.2f} {min(x):.2f}" for what, x in zip(("slc", "best total", "SFNSA total"), zip(*with_peers))))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"machine": about, "rows": rows}) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
