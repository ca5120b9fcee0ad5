"""What the gpu_*.py tools share: the specs written in torch, compiling in parallel, launches as CUDA graphs, and the race that times them."""

import concurrent.futures
import functools
import math
import os
import pathlib
import random
import re
import statistics
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "python"))
import attngen  # noqa: E402

UNSUPPORTED = -3  # ATTNGEN_E_UNSUPPORTED
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
FLUSH_BYTES, WARM_ROUNDS = 256 << 20, 5
SAME = 1e-2  # two bf16 outputs of one problem differ by less than this part of their norm


def causal(q, k, p):
    return k <= q


# name: (mask(q, k, params) or None, score(s, params) or None, parameters with their defaults, query heads per KV head or None)
SPECS = {
    "dense": (None, None, {}, None),
    "causal": (causal, None, {}, None),
    "gqa": (causal, None, {}, 8),
    "mqa": (causal, None, {}, 0),  # 0: one KV head
    "sliding_window": (lambda q, k, p: (k <= q) & (q - k < p["window"]), None, {"window": 1024}, None),
    "softcap": (causal, lambda s, p: p["cap"] * torch.tanh(s / p["cap"]), {"cap": 20.0}, None),
}


# two softmaxes over the same values, V twice as wide as D or not
DIFFERENTIAL = """attention: differential
inputs:
  q2: {dtype: [b, h, q, d]}
  k2: {dtype: [b, g, k, d]}
  share: {f32: []}
branches:
  a: {score: s}
  c: {queries: q2, keys: k2, score: s}
output: a - share * c
"""


def rows(B, H, S, D):
    """[B, H, S, D], laid as [B, S, H, D]."""
    return torch.randn(B, S, H, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)


def heads(spec, hq, hkv):
    """The heads of a shape as the spec allows them."""
    group = SPECS[spec][3]
    return (hq, hkv) if group is None else (hq, 1) if group == 0 else (group * hkv, hkv)


def shipped(folder):
    return sorted(f.stem for f in (ROOT / folder).glob("*.yaml"))


def machine(ctx):
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "arch": ctx.arch}


# ---- programs


def compile_each(arch, jobs):
    """A Program or an attngen.Error for each of `jobs` (keyword arguments of Context.compile), on all cores."""

    def one(job):
        try:
            return attngen.Context(arch=arch).compile(**job)  # a context serves one thread
        except attngen.Error as e:
            return e

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, jobs))


def is_unsupported(result):
    """Whether compile_each found the schedule to be for other head dims or architectures."""
    return isinstance(result, attngen.Error) and result.status == UNSUPPORTED


def is_stale(program):
    """Whether weights are taken under a maximum that may be out of date: speculative softmax, lazy rescaling.  The largest is then rounded like the others."""
    return re.search(rb"-(lazy|spec)\d", program.info.numerics) is not None


def workspace(program, q, k, v, **scalars):
    """Keyword arguments that give a launch a workspace of its own, if the program needs one."""
    size = program.workspace_bytes(q, k, v, **scalars)
    return {"workspace": torch.zeros(size, dtype=torch.uint8, device="cuda")} if size else {}


# ---- graphs and times


@functools.cache
def side_stream():
    return torch.cuda.Stream()


def captured(work):
    """A graph of one call and what the call returned, after warming up on a side stream.  work() must not synchronise."""
    side = side_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            result = work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def check_same(what, outputs):
    """outputs: name -> tensor.  Ends the program if one differs from the first."""
    names = list(outputs)
    first = outputs[names[0]].float()
    for name in names[1:]:
        error = ((outputs[name].float() - first).norm() / first.norm()).item()
        if not error < SAME:
            raise SystemExit(f"{what}: {name} differs from {names[0]} by {error:.3g} of the norm")


def race(graphs, rounds):
    """Milliseconds of each graph, per round: in each round every graph runs once, in random order, and before each run memory is written until L2 holds
    nothing of the inputs."""
    flush = flush_buffer()
    times, names = {name: [] for name in graphs}, list(graphs)
    for n in range(WARM_ROUNDS + rounds):
        random.shuffle(names)
        for name in names:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.fill_(n % 256)
            begin.record()
            graphs[name].replay()
            end.record()
            if n >= WARM_ROUNDS:
                times[name].append((begin, end))
        torch.cuda.synchronize()
    return {name: [b.elapsed_time(e) for b, e in pairs] for name, pairs in times.items()}


@functools.cache
def flush_buffer():
    return torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")


def medians(samples):
    return {name: statistics.median(t) for name, t in samples.items()}


def back_to_back(graph, settle_s, measure_s):
    """Milliseconds of one run among runs without a gap, after settle_s seconds of the same."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def timed(n):
        begin.record()
        for _ in range(n):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / n

    once = timed(3)
    once = timed(max(1, math.ceil(1e3 * settle_s / once)))
    return timed(max(1, math.ceil(1e3 * measure_s / once)))


def geomean(x):
    return math.exp(sum(map(math.log, x)) / len(x))
