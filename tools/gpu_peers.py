#!/usr/bin/env python3
"""attngen beside PyTorch's FlashAttention 2 and cuDNN, and beside hand-made kernels, in one process on one GPU.

    tools/gpu_peers.py [--points all|fast] [--schedule d64=FILE,d128=FILE,d128=FILE2] [--prototypes DIR] [--peers cudnn,fa2] [--rounds 12] [--steady]
                       [--arch ARCH] [--dims 64,128,256] [--only TEXT] [--json FILE]

bf16, forward.  16384 tokens, H * D = 2048: S 512 to 16384, D 64, 128, 256, full and causal; and D 128 with 32 and 64 query heads on 8 KV heads, B 4, S 4096
and B 1, S 16384.  Tensors lie as [B, S, H, D]; attngen writes O and LSE.  `attngen` is the program without a schedule of one's own; each file of --schedule is
one more contender of its head dim, by the name of the file; DIR/launch.py makes those of --prototypes (gpu_prototypes.py says how).

Every contender is one launch captured in a CUDA graph, so that no host time is in the figures.  In each round every contender runs once, in random order;
before each run 256 MiB are written, so that L2 holds nothing of the inputs.  Times are between two CUDA events around the graph, median over the rounds.
--steady instead takes the points of S 16384 one contender at a time, back to back for 0.6 s after 0.3 s of the same, in one order and then in the other.
Before the clock starts every output, filled with NaN before, is compared with attngen's.

A line is a point: TFLOP/s of attngen, then for each contender its time over attngen's; above 1 attngen is faster.  Exit code 1: a target is missed."""

import argparse
import json
import pathlib
import statistics
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_common import attngen, back_to_back, captured, check_same, compile_each, geomean, machine, medians, race, workspace
from gpu_prototypes import Prototypes, configurations

TOKENS, WIDTH = 16384, 2048
HEAD_DIMS = (64, 128, 256)
LENGTHS = {"all": (512, 1024, 2048, 4096, 8192, 16384), "fast": (1024, 4096, 16384)}
GROUPED = [(128, 32, 8), (128, 64, 8)]  # D, Hq, Hkv
GROUPED_SIZES = [(4, 4096), (1, 16384)]  # B, S
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
TARGETS = {"fa2": (1.0, 0.9)}  # geometric mean and minimum that docs/performance.md promises
LONG = 4096
BELOW = {"cudnn": 1.0, "proto": 0.98}  # points under these are listed
STEADY_S, SETTLE_S, MEASURE_S = 16384, 0.3, 0.6


class Point:
    def __init__(self, D, B, S, Hq, Hkv, causal):
        self.D, self.B, self.S, self.Hq, self.Hkv, self.causal = D, B, S, Hq, Hkv, causal
        self.flops = 4 * B * Hq * S * S * D * (0.5 if causal else 1)
        heads = "" if Hq == Hkv else f" {Hq}/{Hkv}"
        self.name = f"D {D} S {S} {'causal' if causal else 'full'}{heads}"

    def fill(self):
        """Draws the inputs; made late and dropped with `self.kept` so that one point lies in memory at a time."""
        make = lambda h: torch.randn(self.B, self.S, h, self.D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        self.q, self.k, self.v = make(self.Hq), make(self.Hkv), make(self.Hkv)
        self.kept = []  # what graphs use after the call that captured them

    def outputs(self):
        o = torch.empty(self.B, self.S, self.Hq, self.D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        return o, torch.empty(self.B, self.Hq, self.S, device="cuda", dtype=torch.float32)

    def ours(self, program):
        o, lse = self.outputs()
        space = workspace(program, self.q, self.k, self.v)
        self.kept.append((program, lse, space))
        return captured(lambda: program(self.q, self.k, self.v, o=o, lse=lse, **space)[0])

    def peer(self, backend):
        def work():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal, enable_gqa=self.Hq != self.Hkv)

        return captured(work)

    def prototype(self, prototypes, name):
        o, lse = self.outputs()
        launch = prototypes.bind(name, self.D, self.causal, self.S, *(t.transpose(1, 2) for t in (self.q, self.k, self.v, o)), lse)
        self.kept.append((launch, lse))

        def work():
            launch()
            return o

        return captured(work)

    def row(self):
        return {key: getattr(self, key) for key in ("name", "D", "B", "S", "Hq", "Hkv", "causal", "flops")}


def grid(which, dims=HEAD_DIMS):
    points = [Point(D, TOKENS // S, S, WIDTH // D, WIDTH // D, c) for D in dims for S in LENGTHS[which] for c in (False, True)]
    if which == "all" and dims == HEAD_DIMS:
        points += [Point(D, B, S, Hq, Hkv, c) for D, Hq, Hkv in GROUPED for B, S in GROUPED_SIZES for c in (False, True)]
    return points


def contenders(point, programs, peers, prototypes):
    """name -> graph, with outputs that agree; and name -> why it is left out."""
    makers = {name: lambda p=p: point.ours(p) for name, p in programs.items()}
    makers |= {name: lambda name=name: point.peer(PEERS[name]) for name in peers}
    if prototypes:
        makers |= {name: lambda name=name: point.prototype(prototypes, name) for name in configurations(point.D, point.causal, point.S)}
    made, missing = {}, {}
    for name, make in makers.items():
        with warnings.catch_warnings(record=True) as said:  # a backend that refuses says why in warnings
            warnings.simplefilter("always")
            try:
                made[name] = make()
            except RuntimeError as e:
                if name == "attngen":
                    raise
                missing[name] = "; ".join([str(e).splitlines()[0], *(str(w.message).splitlines()[0] for w in said)])
    for graph, out in made.values():
        out.fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize()
    check_same(point.name, {name: out for name, (_, out) in made.items()})
    return {name: graph for name, (graph, _) in made.items()}, missing


def steady(graphs):
    """Milliseconds of each contender in the two orders."""
    names = list(graphs)
    found = {name: [] for name in names}
    for order in (names, names[::-1]):
        for name in order:
            found[name].append(back_to_back(graphs[name], SETTLE_S, MEASURE_S))
    return found


# ---- what is asked for


def schedules(texts):
    """d128=FILE,... -> {128: {stem: FILE}}"""
    found = {}
    for item in (x for text in texts for x in text.split(",") if x):
        key, _, path = item.partition("=")
        if not key.startswith("d") or not key[1:].isdigit() or not pathlib.Path(path).is_file():
            raise SystemExit(f"--schedule takes dN=FILE, comma-separated, not `{item}`")
        path = pathlib.Path(path).resolve()
        own = found.setdefault(int(key[1:]), {})
        if path.stem in own or path.stem in ("attngen", *PEERS) or path.stem.startswith("proto"):
            raise SystemExit(f"--schedule: the name {path.stem} is taken, for head dim {key[1:]}")
        own[path.stem] = str(path)
    return found


def compile_programs(arch, points, own):
    """(D, causal) -> {name: program}; a schedule of one's own that does not compile is left out, with the reason."""
    wanted = [
        ((D, causal), name, {"spec": "causal" if causal else "dense", "schedule": path, "D": D})
        for D, causal in sorted({(p.D, p.causal) for p in points})
        for name, path in {"attngen": None, **own.get(D, {})}.items()
    ]
    programs = {}
    for (where, name, _), result in zip(wanted, compile_each(arch, [job for _, _, job in wanted])):
        if not isinstance(result, attngen.Error):
            programs.setdefault(where, {})[name] = result
        elif name == "attngen":
            raise SystemExit(f"attngen does not compile for D {where[0]}: {result}")
        else:
            print(f"left out: {name} for D {where[0]} {'causal' if where[1] else 'full'}: {str(result).splitlines()[0]}")
    return programs


# ---- reports


def prototype_ms(ms):
    """The fastest hand-made kernel of a point, or None."""
    return min((t for name, t in ms.items() if name.startswith("proto")), default=None)


def ratios(rows, peer, name="attngen"):
    """point -> time of `peer` over that of `name`, where both ran; peer `proto`: the fastest of the prototypes."""
    found = {}
    for row in rows:
        theirs = prototype_ms(row["ms"]) if peer == "proto" else row["ms"].get(peer)
        if theirs and name in row["ms"]:
            found[row["name"]] = theirs / row["ms"][name]
    return found


def summed_up(what, found, target=None):
    """Prints one line; {geomean, min, points}, and whether the target is met."""
    result = {"geomean": geomean(found.values()), "min": min(found.values()), "points": len(found)}
    line = f"{what}: geometric mean {result['geomean']:.3f}, minimum {result['min']:.3f}, {len(found)} points"
    met = target is None or (result["geomean"] >= target[0] and result["min"] >= target[1])
    print(line if target is None else f"{line} (target {target[0]} and {target[1]}: {'met' if met else 'MISSED'})")
    return result, met


def report(rows, peers, own):
    """Everything that is said under the table; ({what: figures}, whether every target is met)."""
    summary, all_met = {}, True
    for peer in (*peers, "proto"):
        for what, some in ((f"attngen / {peer}", rows), (f"attngen / {peer}, S >= {LONG}", [r for r in rows if r["S"] >= LONG])):
            found = ratios(some, peer)
            if found:
                summary[what], met = summed_up(what, found, TARGETS.get(peer) if some is rows else None)
                all_met = all_met and met
    for D, name in ((D, name) for D, files in own.items() for name in files):
        for peer in ("attngen", "cudnn"):
            found = ratios([r for r in rows if r["D"] == D], peer, name)
            if found:
                what = f"D {D} {name} / {peer}"
                summary[what], _ = summed_up(what, found)
    for peer, least in BELOW.items():
        under = {name: x for name, x in ratios(rows, peer).items() if x < least}
        if ratios(rows, peer):
            print(f"below {least} of {peer}: " + (", ".join(f"{name} {x:.3f}" for name, x in under.items()) or "none"))
    return summary, all_met


def line(row, steady_ms):
    """The line of a point; in steady state the TFLOP/s of both orders stand behind each ratio."""
    tflops = lambda ms: row["flops"] / ms / 1e9
    both = lambda name: "" if steady_ms is None else " ({:.0f} {:.0f})".format(*map(tflops, steady_ms[name]))
    cells = [f"{tflops(row['ms']['attngen']):6.1f}{both('attngen')}"]
    cells += [f"{name} {ms / row['ms']['attngen']:.3f}{both(name)}" for name, ms in row["ms"].items() if name != "attngen"]
    return f"{row['name']:27} " + "  ".join(cells)


def measure(point, graphs, args):
    """(samples of each contender, their ms)"""
    if args.steady:
        samples = steady(graphs)
        return samples, {name: statistics.mean(t) for name, t in samples.items()}
    samples = race(graphs, args.rounds)
    return samples, medians(samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", choices=list(LENGTHS), default="all", help="fast: S 1024, 4096, 16384 and no grouped heads")
    parser.add_argument("--schedule", action="append", default=[], metavar="dN=FILE,...", help="schedule files to time beside attngen's choice")
    parser.add_argument("--prototypes", metavar="DIR", help="folder of launch.py, whose kernels are to be timed too")
    parser.add_argument("--peers", default=",".join(PEERS), help="which of PyTorch's backends, comma-separated")
    parser.add_argument("--steady", action="store_true", help=f"only S {STEADY_S}, back to back, instead of the shuffled race")
    parser.add_argument("--arch", help="target of attngen's kernels, by default that of the GPU")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--dims", default=",".join(map(str, HEAD_DIMS)), help="head dims, comma-separated")
    parser.add_argument("--only", default="", help="only points with this text in `D 128 S 4096 causal 32/8`")
    parser.add_argument("--json", help="write everything that was measured to this file")
    args, start = parser.parse_args(), time.monotonic()
    own, peers = schedules(args.schedule), [p for p in args.peers.split(",") if p]
    if set(peers) - set(PEERS):
        raise SystemExit(f"--peers takes {', '.join(PEERS)}, not `{args.peers}`")
    points = [p for p in grid(args.points, tuple(map(int, args.dims.split(",")))) if args.only in p.name and (p.S == STEADY_S or not args.steady)]
    if not points:
        raise SystemExit("no point is left to measure")
    about = machine(attngen.Context(arch=args.arch))
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    programs = compile_programs(args.arch, points, own)
    prototypes = Prototypes(args.prototypes, {(p.D, p.causal, p.S) for p in points}) if args.prototypes else None
    print(f"{'point':27} attngen TFLOP/s, then time over attngen's" + (" (TFLOP/s in either order)" if args.steady else ""))
    rows, told = [], set()
    for point in points:
        point.fill()
        graphs, missing = contenders(point, programs[point.D, point.causal], peers, prototypes)
        samples, ms = measure(point, graphs, args)
        rows.append({**point.row(), "ms": ms, "missing": missing, "samples": samples})
        print(line(rows[-1], samples if args.steady else None), flush=True)
        for name, why in missing.items():
            if (name, why) not in told:
                print(f"  without {name}: {why[:150]}")
            told.add((name, why))
        del graphs, point.q, point.k, point.v, point.kept
    summary, met = report(rows, peers, own)
    print(f"{time.monotonic() - start:.0f} s")
    if args.json:
        everything = {"machine": about, "points": rows, "summary": summary, "schedules": own, "steady": args.steady, "rounds": args.rounds}
        pathlib.Path(args.json).write_text(json.dumps(everything) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
