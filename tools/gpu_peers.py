#!/usr/bin/env python3
"""attngen beside PyTorch's FlashAttention 2 and cuDNN, in one process on one GPU.

    tools/gpu_peers.py [--schedule d64=FILE,d128=FILE,d256=FILE] [--rounds 40] [--json FILE] [--only TEXT]

16384 tokens, H * D = 2048, bf16, forward; S 1024, 4096, 16384; D 64, 128, 256; full and causal.  Tensors lie as [B, S, H, D]; attngen writes O and LSE.
Every contender is one launch captured in a CUDA graph, so that no host time is in the figures.  In each round every contender runs once, in random
order; before each run 256 MiB are written, so that L2 holds nothing of the inputs.  Times are between two CUDA events around the graph, median over
the rounds.  Before the clock starts every output is compared with attngen's.  A ratio above 1 says that attngen is faster."""

import argparse
import json
import math
import pathlib
import random
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "python"))
import attngen  # noqa: E402

TOKENS, WIDTH = 16384, 2048
PEERS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
TARGETS = {"fa2": (1.0, 0.9)}  # geometric mean and minimum that docs/performance.md promises


def captured(work):
    """A graph of one call, after warming up on a side stream.  work() must not synchronise."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            result = work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


class Point:
    def __init__(self, D, S, causal):
        self.D, self.S, self.causal = D, S, causal
        self.B, self.H = TOKENS // S, WIDTH // D
        make = lambda: torch.randn(self.B, S, self.H, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        self.q, self.k, self.v = make(), make(), make()
        self.kept = []
        self.flops = 4 * self.B * self.H * S * S * D * (0.5 if causal else 1)

    @property
    def name(self):
        return f"D {self.D} S {self.S} {'causal' if self.causal else 'full'}"

    def ours(self, program):
        o = torch.empty(self.B, self.S, self.H, self.D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        lse = torch.empty(self.B, self.H, self.S, device="cuda", dtype=torch.float32)
        program(self.q, self.k, self.v, o=o, lse=lse)
        self.kept.append((program, lse))  # the graph uses them after this call
        return captured(lambda: program(self.q, self.k, self.v, o=o, lse=lse)[0])

    def peer(self, backend):
        def work():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal)

        return captured(work)


def contenders(point, programs):
    """name -> (graph, output); a peer that cannot run the point is left out, with the reason."""
    made, missing = {name: point.ours(p) for name, p in programs.items()}, {}
    for name, backend in PEERS.items():
        try:
            made[name] = point.peer(backend)
        except RuntimeError as e:
            missing[name] = str(e).splitlines()[0]
    for graph, _ in made.values():
        graph.replay()
    torch.cuda.synchronize()
    outputs = {name: out.float() for name, (_, out) in made.items()}
    first = next(iter(outputs.values()))
    for name, out in outputs.items():
        error = ((out - first).norm() / first.norm()).item()
        if not error < 1e-2:
            raise SystemExit(f"{point.name}: {name} differs from {next(iter(outputs))} by {error:.3g} of the norm")
    return made, missing


def measure(made, rounds, flush):
    """Milliseconds of each contender, per round."""
    times = {name: [] for name in made}
    names = list(made)
    for n in range(rounds + 5):  # the first five warm the clocks up
        random.shuffle(names)
        for name in names:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.fill_(n)
            begin.record()
            made[name][0].replay()
            end.record()
            if n >= 5:
                times[name].append((begin, end))
        torch.cuda.synchronize()
    return {name: [b.elapsed_time(e) for b, e in pairs] for name, pairs in times.items()}


def schedules(text):
    """d128=FILE,... -> {128: FILE}"""
    found = {}
    for item in filter(None, text.split(",")):
        key, _, path = item.partition("=")
        if not key.startswith("d") or not key[1:].isdigit() or not pathlib.Path(path).is_file():
            raise SystemExit(f"--schedule takes dN=FILE, comma-separated, not `{item}`")
        found[int(key[1:])] = str(pathlib.Path(path).resolve())
    return found


def geomean(x):
    return math.exp(sum(map(math.log, x)) / len(x))


def report_ratios(rows):
    """{peer: {geomean, min}} of the shipped schedules; whether every target is met."""
    summary, met = {}, True
    for peer in PEERS:
        ratios = [r["ms"][peer] / r["ms"]["attngen"] for r in rows if peer in r["ms"]]
        if not ratios:
            continue
        summary[peer] = {"geomean": geomean(ratios), "min": min(ratios), "points": len(ratios)}
        line = f"attngen / {peer}: geometric mean {summary[peer]['geomean']:.3f}, minimum {summary[peer]['min']:.3f}, {len(ratios)} points"
        if peer in TARGETS:
            ok = summary[peer]["geomean"] >= TARGETS[peer][0] and summary[peer]["min"] >= TARGETS[peer][1]
            met = met and ok
            line += f" (target {TARGETS[peer][0]} and {TARGETS[peer][1]}: {'met' if ok else 'MISSED'})"
        print(line)
    return summary, met


def compile_programs(ctx, D, causal, own):
    spec = "causal" if causal else "dense"
    programs = {"attngen": ctx.compile(spec, D=D)}
    if D in own:
        programs["given"] = ctx.compile(spec, schedule=own[D], D=D)
    return programs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", default="", metavar="dN=FILE,...", help="schedule files to time beside the shipped ones")
    parser.add_argument("--arch", help="target of attngen's kernels, by default that of the GPU")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="only points with this text in `D 128 S 4096 causal`")
    parser.add_argument("--json", help="write everything that was measured to this file")
    args = parser.parse_args()
    own, ctx = schedules(args.schedule), attngen.Context(arch=args.arch)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "arch": ctx.arch}
    print(", ".join(f"{k} {v}" for k, v in machine.items()))
    print(f"{'point':24} " + " ".join(f"{n:>9}" for n in ("attngen", "given", *PEERS)) + "   TFLOP/s   " + " ".join(f"/{p:<6}" for p in PEERS))
    rows = []
    for D in (64, 128, 256):
        for S in (1024, 4096, 16384):
            for causal in (False, True):
                point = Point(D, S, causal)
                if args.only not in point.name:
                    continue
                made, missing = contenders(point, compile_programs(ctx, D, causal, own))
                samples = measure(made, args.rounds, flush)
                ms = {name: statistics.median(t) for name, t in samples.items()}
                rows.append(
                    {
                        "D": D,
                        "S": S,
                        "causal": causal,
                        "B": point.B,
                        "H": point.H,
                        "ms": ms,
                        "missing": missing,
                        "samples": samples,
                        "flops": point.flops,
                    }
                )
                cells = " ".join(f"{ms[n]:9.4f}" if n in ms else f"{'-':>9}" for n in ("attngen", "given", *PEERS))
                ratios = " ".join(f"{ms[p] / ms['attngen']:7.3f}" if p in ms else f"{'-':>7}" for p in PEERS)
                print(f"{point.name:24} {cells} ms {point.flops / ms['attngen'] / 1e9:7.1f}   {ratios}", flush=True)
                del made, point
    if not rows:
        raise SystemExit("no point is left to measure")
    summary, met = report_ratios(rows)
    if args.json:
        everything = {"machine": machine, "points": rows, "summary": summary, "schedules": own}
        pathlib.Path(args.json).write_text(json.dumps(everything, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
