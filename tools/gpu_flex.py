#!/usr/bin/env python3
"""The language's variants beside FlexAttention and torch.compile, in one process on one GPU.

    tools/gpu_flex.py [--rounds 25] [--arch ARCH] [--only TEXT] [--json FILE]
    tools/gpu_flex.py --first [--repeats 3] [--at-once 1] [--arch ARCH] [--only TEXT] [--json FILE]

bf16, forward.  FlexAttention is torch.compile(flex_attention, dynamic=False) with a BlockMask where there is a mask; B 1, S 16384, D 128, H 16 unless said:
full, causal, ALiBi, softcap 20, a window (k <= q and q - k <= 1024), prefix 1024, eight documents of 2048 tokens, and causal with 32 query heads on 8 KV heads.
a neighbourhood of 5 x 5 x 5 tokens in a video of 64 frames of 16 x 16 (its mask is not one of intervals of positions), with these
sizes compiled in, as FlexAttention has them, and given at launch.
Evoformer row attention (sets of 256 rows of 256 residues, 4 heads, with a bias by row and key and one by pair, D 64 and 128), triangle attention (256 and 384 residues,
4 heads, D 32, an eighth of the keys hidden) and differential attention (two softmaxes over V twice as wide, lambda 0.2, D 64 and 128) run beside torch.compile of the
formula; differential attention over the eight documents beside two calls of FlexAttention and the difference, compiled together.  Both sides get the same numbers.

Each contender is one call in a CUDA graph; contenders are shuffled in each round, L2 is overwritten before each run, times are medians; outputs are compared
first.  attngen writes O and, where there is one, LSE; all that it does for a mask is in its time.  A BlockMask is made before, and its time is told apart:
`mask` is that of create_block_mask, not compiled, median of its last three calls of five; `with mask` is the ratio if every call needs a new one.  `first` is what passes from nothing
to a result, with empty caches on disk: for attngen from the text of the spec over context and compilation to the first launch; for the others their first
call, BlockMask made before.  The first of these also starts PyTorch's compiler.  A ratio above 1 says that attngen is faster.  What a version of attngen refuses
is left out, with its reason.  The summary has geometric mean and minimum over FlexAttention and over torch.compile.

--first measures that time alone, each case and contender in processes of their own with empty caches on disk: forked from one that has imported torch and nothing else has been done in.
The CUDA context, the tensors and the BlockMask are made before the clock starts; PyTorch's compiler starts behind it.  Medians; of attngen also with quick_start, and with that the time
until the kernel that fits best has taken over.
--at-once: how many processes of a peer run side by side, which attngen's never do.  Of cases with the same spec the first stands for all."""

import gpu_variants  # before torch: it points the caches of PyTorch's compilers to a folder of its own

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time
import traceback
import typing

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gpu_common import DIFFERENTIAL, attngen, captured, check_same, geomean, machine, medians, race, rows, workspace

S, H, D = 16384, 16, 128
CAP, WINDOW, PREFIX, DOCUMENT = 20.0, 1024, 1024, 2048
LAMBDA = 0.2
EVOFORMER = """attention: evoformer
params: {rows: {int: 256}, sets: {int: 1}}
inputs:
  bias: {dtype: [b, k]}
  pair: {dtype: [sets, h, q, k]}
score: s + bias[b, k] + pair[b // rows, h, q, k]
"""


DIFFERENTIAL_DOCUMENTS = """attention: differential_documents
inputs:
  q2: {dtype: [b, h, q, d]}
  k2: {dtype: [b, g, k, d]}
  doc: {i32: [b, k]}
  share: {f32: []}
branches:
  a: {mask: "k <= q and doc[b, q] == doc[b, k]"}
  c: {queries: q2, keys: k2, mask: "k <= q and doc[b, q] == doc[b, k]"}
output: a - share * c
"""
HEIGHT, WIDTH, SIZE = 16, 16, 5  # of a frame and of the neighbourhood
NATTEN = {"height": HEIGHT, "width": WIDTH, "size": SIZE}


@dataclasses.dataclass
class Case:
    """One line of the table.  pairs: visible pairs of query and key of one head; flops_of_pair: multiplications and additions for each, 2 per multiply-add."""

    name: str
    spec: str
    peer: typing.Callable  # (case, tensors, inputs) -> an object with name, first_s, call
    pairs: int
    B: int = 1
    S: int = S
    Hq: int = H
    Hkv: int = H
    D: int = D
    Dv: int = 0
    params: dict = dataclasses.field(default_factory=dict)  # at launch
    bound: dict = dataclasses.field(default_factory=dict)  # at compilation
    inputs: typing.Callable = lambda case: {}
    products: int = 1  # pairs of matrix products

    def width(self):
        return self.Dv or self.D

    def flops(self):
        return 2 * self.B * self.Hq * self.pairs * (self.D + self.width()) * self.products


# ---- attngen


class Attngen:
    name = "attngen"

    def __init__(self, case, tensors, inputs, args, quick_start=False):
        self.tensors, self.given = tensors, {**case.params, **inputs}
        cache = pathlib.Path(gpu_variants.CACHES.name) / case.name.replace(" ", "_").replace("/", "_")
        self.o = torch.empty(case.B, case.S, case.Hq, case.width(), device="cuda", dtype=torch.bfloat16).transpose(1, 2)

        start = time.perf_counter()

        def first():
            nonlocal start
            start = time.perf_counter()
            context = attngen.Context(arch=args.arch, cache_dir=str(cache), quick_start=quick_start)
            self.program = context.compile(case.spec, D=case.D, Dv=case.width(), **case.bound)
            self.space = workspace(self.program, *tensors, **self.given)
            return self.call()

        _, self.first_s = gpu_variants.timed(first)
        self.program.wait()
        self.settled_s = time.perf_counter() - start

    def call(self):
        self.program(*self.tensors, o=self.o, **self.space, **self.given)
        return self.o


# ---- peers


class Flex:
    name = "flex"

    def __init__(self, case, tensors, mask_mod=None, score_mod=None):
        self.tensors = tensors
        self.options = {"score_mod": score_mod, "enable_gqa": case.Hq != case.Hkv}
        self.mask_s = 0.0
        if mask_mod:
            self.options["block_mask"], self.mask_s = self.block_mask(mask_mod, case.S)
        torch._dynamo.reset()  # nothing is left of the variant before
        self.compiled = torch.compile(flex_attention, dynamic=False)
        _, self.first_s = gpu_variants.timed(self.call)

    @staticmethod
    def block_mask(mask_mod, length):
        """The BlockMask, and the seconds that making it takes; not compiled: a run with torch.compile around it had not ended the second case after two minutes."""
        results = [gpu_variants.timed(lambda: create_block_mask(mask_mod, None, None, length, length, device="cuda")) for _ in range(5)]
        return results[-1][0], statistics.median(seconds for _, seconds in results[2:])

    def call(self):
        return self.compiled(*self.tensors, **self.options)


class Compiled:
    name = "torch.compile"
    mask_s = 0.0

    def __init__(self, work):
        torch._dynamo.reset()
        compiled = torch.compile(work, dynamic=False)
        self.call = compiled
        _, self.first_s = gpu_variants.timed(self.call)


def flex(mask_of=None, score_of=None):
    """A peer from functions that make a mask_mod and a score_mod of the inputs."""
    return lambda case, tensors, inputs: Flex(case, tensors, mask_of and mask_of(inputs), score_of and score_of(inputs))


def causal_of(inputs):
    return lambda b, h, q, k: k <= q


def window_of(inputs):
    return lambda b, h, q, k: (k <= q) & (q - k <= WINDOW)


def prefix_of(inputs):
    return lambda b, h, q, k: (k <= q) | (k < PREFIX)


def document_of(inputs):
    doc = inputs["doc"][0].clone()
    return lambda b, h, q, k: (k <= q) & (doc[q] == doc[k])


def natten_of(inputs):
    r, frames = SIZE // 2, S // (HEIGHT * WIDTH)
    near = lambda q, k, n: (k - q.clamp(r, n - 1 - r)).abs() <= r
    frame, row, column = (lambda x: x // (HEIGHT * WIDTH)), (lambda x: x // WIDTH % HEIGHT), (lambda x: x % WIDTH)
    return lambda b, h, q, k: near(frame(q), frame(k), frames) & near(row(q), row(k), HEIGHT) & near(column(q), column(k), WIDTH)


def alibi_of(inputs):
    slope = inputs["slope"].clone()
    return lambda score, b, h, q, k: score - slope[h] * (q - k)


def softcap_of(inputs):
    return lambda score, b, h, q, k: CAP * torch.tanh(score / CAP)


def evoformer(case, tensors, inputs):
    """softmax(Q K^T / sqrt(D) + bias of row and key + bias of pair) V over [set, row, head, residue, D]."""
    sets = case.bound["sets"]
    q, k, v = (t.unflatten(0, (sets, -1)) for t in tensors)
    bias, pair = inputs["bias"].view(sets, -1, 1, 1, case.S), inputs["pair"].view(sets, 1, case.Hq, case.S, case.S)

    def work():
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(case.D) + bias + pair
        return torch.matmul(torch.softmax(scores, -1), v).flatten(0, 1)

    return Compiled(work)


def triangle(case, tensors, inputs):
    q, k, v = tensors
    keep, edge = inputs["keep"].view(case.B, 1, 1, case.S), inputs["edge"]  # of one complex: [1, Hq, S, S]

    def work():
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(case.D) + edge
        return torch.matmul(torch.softmax(scores.masked_fill(~keep, -math.inf), -1), v)

    return Compiled(work)


class FlexDifferential(Flex):
    """One call: two of flex_attention and their difference, compiled together."""

    def __init__(self, case, tensors, inputs):
        q, k, v = tensors
        mask, self.mask_s = self.block_mask(document_of(inputs), case.S)
        torch._dynamo.reset()
        one = lambda q, k: flex_attention(q, k, v, block_mask=mask)
        self.call = torch.compile(lambda: one(q, k) - LAMBDA * one(inputs["q2"], inputs["k2"]), dynamic=False)
        _, self.first_s = gpu_variants.timed(self.call)


def differential(case, tensors, inputs):
    q, k, v = tensors

    def one(q, k):
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(case.D), -1), v)

    return Compiled(lambda: one(q, k) - LAMBDA * one(inputs["q2"], inputs["k2"]))


# ---- the cases

CAUSAL = S * (S + 1) // 2
DOCUMENTS = S // DOCUMENT * (DOCUMENT * (DOCUMENT + 1) // 2)


def evoformer_case(sets, D):
    def inputs(case):
        make = lambda *dims: torch.randn(*dims, device="cuda", dtype=torch.bfloat16)
        return {"bias": make(case.B, case.S), "pair": make(sets, case.Hq, case.S, case.S)}

    return Case(f"evoformer {sets} D {D}", EVOFORMER, evoformer, 256 * 256, 256 * sets, 256, 4, 4, D, bound={"sets": sets, "rows": 256}, inputs=inputs)


def triangle_case(residues):
    def inputs(case):
        keep = torch.rand(1, residues, residues, device="cuda") > 1 / 8
        return {"keep": keep, "edge": torch.randn(1, case.Hq, residues, residues, device="cuda", dtype=torch.bfloat16)}

    return Case(f"triangle {residues}", "triangle_attention", triangle, residues**2, residues, residues, 4, 4, 32, params={"i": residues}, inputs=inputs)


def second_queries_and_keys(case):
    return {"q2": rows(case.B, case.Hq, case.S, case.D), "k2": rows(case.B, case.Hq, case.S, case.D), "share": torch.tensor(LAMBDA, device="cuda")}


def documents(case):
    return {"doc": (torch.arange(case.S, device="cuda") // DOCUMENT).int().expand(case.B, -1).contiguous()}


def differential_case(B, S, D):
    heads = 2048 // D
    return Case(f"differential {B} x {S} D {D}", DIFFERENTIAL, differential, S * S, B, S, heads, heads, D, 2 * D, inputs=second_queries_and_keys, products=2)


CASES = [
    Case("full", "dense", flex(), S * S),
    Case("causal", "causal", flex(causal_of), CAUSAL),
    Case(
        "alibi",
        "alibi",
        flex(causal_of, alibi_of),
        CAUSAL,
        inputs=lambda case: {"slope": torch.exp2(-8.0 * torch.arange(1, case.Hq + 1, device="cuda") / case.Hq).float()},
    ),
    Case(f"softcap {CAP:.0f}", "softcap", flex(causal_of, softcap_of), CAUSAL, params={"cap": CAP}),
    Case(f"window {WINDOW}", "window_inclusive", flex(window_of), CAUSAL - (S - WINDOW - 1) * (S - WINDOW) // 2, params={"window": WINDOW}),
    Case(f"prefix {PREFIX}", "prefix_lm_scalar", flex(prefix_of), CAUSAL + PREFIX * (PREFIX - 1) // 2, params={"prefix": PREFIX}),
    Case(
        f"documents {S // DOCUMENT} x {DOCUMENT}",
        "document",
        flex(document_of),
        DOCUMENTS,
        inputs=documents,
    ),
    Case("causal 32/8", "causal", flex(causal_of), CAUSAL, Hq=32, Hkv=8),
    *[evoformer_case(sets, D) for D in (64, 128) for sets in (1, 8, 32)],
    *[differential_case(B, S, D) for D in (64, 128) for B, S in ((32, 512), (8, 2048), (4, 4096))],
    Case(f"natten {SIZE} x {SIZE} x {SIZE}", "natten_3d", flex(natten_of), S * SIZE**3, bound=NATTEN),
    Case("natten, sizes at launch", "natten_3d", flex(natten_of), S * SIZE**3, params=NATTEN),
    *[triangle_case(residues) for residues in (256, 384)],
    Case(
        "differential documents",
        DIFFERENTIAL_DOCUMENTS,
        FlexDifferential,
        DOCUMENTS,
        D=64,
        Dv=128,
        inputs=lambda case: {**second_queries_and_keys(case), **documents(case)},
        products=2,
    ),
]


# ---- measuring


def one_case(case, args):
    """What was measured of a case, or why it is left out."""
    tensors = [rows(case.B, case.Hq, case.S, case.D), rows(case.B, case.Hkv, case.S, case.D), rows(case.B, case.Hkv, case.S, case.width())]
    inputs = case.inputs(case)
    try:
        ours = Attngen(case, tensors, inputs, args)
    except attngen.Error as e:
        return {"name": case.name, "left_out": str(e).splitlines()[0]}
    peer = case.peer(case, tensors, inputs)
    graphs = {c.name: captured(c.call) for c in (ours, peer)}
    for graph, out in graphs.values():
        out.fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize()
    check_same(case.name, {name: out for name, (_, out) in graphs.items()})
    samples = race({name: graph for name, (graph, _) in graphs.items()}, args.rounds)
    ms = medians(samples)
    mine, theirs = ms[ours.name], ms[peer.name]
    return {
        "name": case.name,
        "peer": peer.name,
        "ms": ms,
        "samples": samples,
        "tflops": {name: case.flops() / t / 1e9 for name, t in ms.items()},
        "ratio": theirs / mine,
        "mask_ms": 1e3 * peer.mask_s,
        "ratio_with_mask": (theirs + 1e3 * peer.mask_s) / mine,
        "first_s": {ours.name: ours.first_s, peer.name: peer.first_s},
        "schedule": ours.program.info.schedule.decode(),
    }


# ---- the first result, in processes of their own


def start_first(case, contender, args):
    """A child process that measures one first result of attngen, "quick start" or the peer (None); its pid, and the pipe that its figures come by."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, out
    status = 1
    os.setpgid(0, 0)
    try:
        folder = tempfile.mkdtemp(dir=gpu_variants.CACHES.name)
        os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "inductor"), os.path.join(folder, "triton")
        gpu_variants.CACHES.name = folder
        torch.zeros(1, device="cuda")
        tensors = [rows(case.B, case.Hq, case.S, case.D), rows(case.B, case.Hkv, case.S, case.D), rows(case.B, case.Hkv, case.S, case.width())]
        inputs = case.inputs(case)
        made = Attngen(case, tensors, inputs, args, contender == "quick start") if contender else case.peer(case, tensors, inputs)
        found = {"name": made.name, "first_s": made.first_s}
        if contender:
            found |= {"settled_s": made.settled_s, "schedule": made.program.info.schedule.decode()}
        os.write(into, json.dumps(found).encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def finish_first(child):
    pid, out = child
    with os.fdopen(out) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):  # PyTorch's compiler leaves processes behind, which would slow down what is measured next
        os.killpg(pid, signal.SIGKILL)
    return json.loads(text) if text else None


def peer_results(case, args):
    found = []
    while len(found) < args.repeats:
        n = min(args.at_once, args.repeats - len(found))
        found += [finish_first(child) for child in [start_first(case, None, args) for _ in range(n)]]
    return found


def first_results(case, ours, quick, args):
    theirs = peer_results(case, args)
    if None in ours + quick + theirs:
        return {"name": case.name, "left_out": "a process failed"}
    middle = lambda runs, key: statistics.median(run[key] for run in runs)
    return {
        "name": case.name,
        "schedules": [ours[0]["schedule"], quick[0]["schedule"]],
        "peer": theirs[0]["name"],
        "first_s": {"attngen": middle(ours, "first_s"), "quick start": middle(quick, "first_s"), theirs[0]["name"]: middle(theirs, "first_s")},
        "settled_s": middle(quick, "settled_s"),
        "runs": {"attngen": ours, "quick start": quick, theirs[0]["name"]: theirs},
    }


def first_line(row):
    if "left_out" in row:
        return f"{row['name']:24} left out: {row['left_out']}"
    mine, quick, theirs = (row["first_s"][name] for name in ("attngen", "quick start", row["peer"]))
    times = f"{mine:9.2f} {quick:9.2f} {row['settled_s']:9.2f} {row['peer']:13} {theirs:7.2f} {theirs / mine:6.1f} {theirs / quick:6.1f}"
    return f"{row['name']:24} {times}  {', '.join(row['schedules'])}"


def measure_first(args):
    cases = [case for i, case in enumerate(CASES) if args.only in case.name and not any(case.spec == other.spec for other in CASES[:i])]
    runs = lambda case, contender: [finish_first(start_first(case, contender, args)) for _ in range(args.repeats)]
    ours = [(runs(case, "attngen"), runs(case, "quick start")) for case in cases]
    found = []
    print(f"{'case':24} {'attngen s':>9} {'quick s':>9} {'settled s':>9} {'peer':13} {'s':>7} {'ratio':>6} {'quick':>6}  schedules")
    for case, own in zip(cases, ours):
        found.append(first_results(case, *own, args))
        print(first_line(found[-1]), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"torch": torch.__version__, "first": found}) + "\n")
    return 0


def line(row):
    if "left_out" in row:
        return f"{row['name']:24} left out: {row['left_out'][:130]}"
    mine, theirs = row["ms"]["attngen"], row["ms"][row["peer"]]
    mask = f"{row['mask_ms']:8.3f} {row['ratio_with_mask']:9.3f}" if row["mask_ms"] else " " * 18
    first = row["first_s"]
    return (
        f"{row['name']:24} {mine:9.4f} {row['tflops']['attngen']:7.1f} {row['peer']:13} {theirs:9.4f} {row['ratio']:7.3f} {mask}"
        f" {first['attngen']:7.2f} {first[row['peer']]:7.2f}"
    )


def summary(found):
    result = {}
    for peer in ("flex", "torch.compile"):
        some = [row for row in found if row.get("peer") == peer]
        if not some:
            continue
        ratios = {row["name"]: row["ratio"] for row in some}
        worst = min(ratios, key=ratios.get)
        first = [max(row["first_s"]["attngen"] for row in some), max(row["first_s"][peer] for row in some)]
        result[peer] = {"geomean": geomean(ratios.values()), "min": ratios[worst], "points": len(some), "first_s": first}
        print(
            f"{peer} / attngen: geometric mean {result[peer]['geomean']:.3f}, minimum {ratios[worst]:.3f} ({worst}), {len(some)} points;"
            f" first result after at most {first[0]:.2f} s, with {peer} {first[1]:.2f} s"
        )
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", help="target of attngen's kernels, by default that of the GPU")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="", help=f"only cases with this text in their name: {', '.join(case.name for case in CASES)}")
    parser.add_argument("--json", help="write everything that was measured to this file")
    parser.add_argument("--first", action="store_true", help="only the time to the first result, cold")
    parser.add_argument("--repeats", type=int, default=3, help="processes of --first for each case and contender")
    parser.add_argument("--at-once", type=int, default=1, help="how many of them run side by side, of a peer")
    args = parser.parse_args()
    if args.first:
        return measure_first(args)
    torch.cuda.init()
    torch.manual_seed(0)
    about = machine(attngen.Context(arch=args.arch))
    print(", ".join(f"{k} {v}" for k, v in about.items()), flush=True)
    found = []
    for case in CASES:
        if args.only in case.name:
            found.append(one_case(case, args))
            print(f"  {line(found[-1])}", file=sys.stderr, flush=True)
            torch.cuda.empty_cache()
    if not found:
        raise SystemExit("no case is left to measure")
    print(f"{'case':24} {'attngen':>9} {'TFLOP/s':>7} {'peer':13} {'ms':>9} {'ratio':>7} {'mask ms':>8} {'with mask':>9} {'first s':>7} {'peer s':>7}")
    for row in found:
        print(line(row))
    result = summary(found)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"machine": about, "cases": found, "summary": result}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
