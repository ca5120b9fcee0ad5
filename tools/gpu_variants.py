#!/usr/bin/env python3
"""Variants of attention beside FlexAttention (torch.compile), in one process on one GPU.

    tools/gpu_variants.py [--schedule FILE,...] [--rounds 25] [--arch ARCH] [--only TEXT] [--json FILE]

D 128, B 1, S 16384, H 16, bf16, forward: causal; a window, k <= q and q - k <= 1024, which is `window: 1025` in sliding_window.yaml, where a query sees itself
and the window - 1 keys before it; softcap 20, 20 * tanh(s / 20), causal.  Both sides get the same tensors, laid as [B, S, H, D]; attngen writes O and LSE.
Each contender is one launch in a CUDA graph; contenders are shuffled in each round, L2 is overwritten before each run, times are medians; outputs are compared
first.  FlexAttention is torch.compile(flex_attention, dynamic=False) with a BlockMask; files of --schedule are further contenders.

`first call` is what passes from nothing to a result, with empty caches on disk: for FlexAttention its first call, BlockMask made before; for attngen context,
compilation and first launch.  The first of FlexAttention's also starts PyTorch's compiler, whose import is left out.  TFLOP/s count the visible part of the
mask.  A ratio above 1 says that attngen is faster.

document: 8 documents of 2048 tokens, causal, by their numbers; attngen's time contains its look at the tiles, FlexAttention's not that of its BlockMask.  alibi: a
slope for each head."""

import os
import tempfile

CACHES = tempfile.TemporaryDirectory(prefix="attngen-variants-")  # both compilers shall start with nothing; PyTorch reads this once
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(CACHES.name, "inductor")
os.environ["TRITON_CACHE_DIR"] = os.path.join(CACHES.name, "triton")

import argparse  # noqa: E402
import json  # noqa: E402
import pathlib  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

import torch  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

from gpu_common import attngen, captured, check_same, machine, medians, race, workspace  # noqa: E402

B, S, H, D = 1, 16384, 16, 128
WINDOW, CAP = 1024, 20.0


def causal(b, h, q, k):
    return k <= q


def window(b, h, q, k):
    return (k <= q) & (q - k <= WINDOW)


def softcap(score, b, h, q, k):
    return CAP * torch.tanh(score / CAP)


DOCUMENT = 2048


def documents():
    return (torch.arange(S, device="cuda") // DOCUMENT).to(torch.int32)[None]


def same_document():
    doc = documents()[0]
    return lambda b, h, q, k: (k <= q) & (doc[q] == doc[k])


def slopes():
    return torch.exp2(-8 * torch.arange(1, H + 1, device="cuda") / H).float()


def alibi():
    slope = slopes()
    return lambda score, b, h, q, k: score - slope[h] * (q - k)


# name: our spec and its arguments at launch (tensors: what makes one), mask_mod and score_mod of FlexAttention (without arguments: what makes one), visible keys of all queries of one head
CAUSAL_PAIRS = S * (S + 1) // 2
VARIANTS = {
    "causal": ("causal", {}, causal, None, CAUSAL_PAIRS),
    f"window {WINDOW}": ("sliding_window", {"window": WINDOW + 1}, window, None, CAUSAL_PAIRS - (S - WINDOW - 1) * (S - WINDOW) // 2),
    f"softcap {CAP:.0f}": ("softcap", {"cap": CAP}, causal, softcap, CAUSAL_PAIRS),
    "document": ("document", {"doc": documents}, same_document, None, S // DOCUMENT * (DOCUMENT * (DOCUMENT + 1) // 2)),
    "alibi": ("alibi", {"slope": slopes}, causal, alibi, CAUSAL_PAIRS),
}


def timed(work):
    """(result, seconds)"""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return result, time.perf_counter() - start


class Attngen:
    def __init__(self, arch, spec, schedule, params, tensors, cache):
        self.q, self.k, self.v = tensors
        self.params = params
        self.o = torch.empty(B, S, H, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        self.lse = torch.empty(B, H, S, device="cuda", dtype=torch.float32)

        def first():
            self.program = attngen.Context(arch=arch, cache_dir=cache).compile(spec, schedule=schedule, D=D)
            self.space = workspace(self.program, *tensors, **params)
            return self.call()

        _, self.first_s = timed(first)

    def call(self):
        return self.program(self.q, self.k, self.v, o=self.o, lse=self.lse, **self.space, **self.params)[0]


class Flex:
    def __init__(self, mask_mod, score_mod, tensors):
        self.tensors, self.score_mod = tensors, score_mod
        self.block_mask, self.mask_s = timed(lambda: create_block_mask(mask_mod, None, None, S, S, device="cuda"))
        torch._dynamo.reset()  # nothing is left of the variant before
        self.compiled = torch.compile(flex_attention, dynamic=False)
        _, self.first_s = timed(self.call)

    def call(self):
        return self.compiled(*self.tensors, score_mod=self.score_mod, block_mask=self.block_mask)


def one_variant(name, args, tensors):
    """What was measured of a variant, with its line printed."""
    spec, params, mask_mod, score_mod, pairs = VARIANTS[name]
    params = {key: value() if callable(value) else value for key, value in params.items()}
    mask_mod, score_mod = (f() if f and f.__code__.co_argcount == 0 else f for f in (mask_mod, score_mod))
    made, left_out = {}, {}
    for contender, schedule in {"attngen": None, **args.own}.items():
        try:
            made[contender] = Attngen(args.arch, spec, schedule, params, tensors, os.path.join(CACHES.name, f"{name}-{contender}"))
        except attngen.Error as e:
            if contender == "attngen":
                raise
            left_out[contender] = str(e).splitlines()[0]
    flex = made["flex"] = Flex(mask_mod, score_mod, tensors)
    graphs = {contender: captured(c.call) for contender, c in made.items()}
    for graph, out in graphs.values():
        out.fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize()
    check_same(name, {contender: out for contender, (_, out) in graphs.items()})
    samples = race({contender: graph for contender, (graph, _) in graphs.items()}, args.rounds)
    ms = medians(samples)
    for contender, mine in made.items():
        tflops = 4 * B * H * D * pairs / ms[contender] / 1e9
        ratio = ms["flex"] / ms[contender]
        print(f"{name:12} {contender:24} {ms[contender]:8.4f} ms  {tflops:6.1f} TFLOP/s  flex/this {ratio:6.3f}  first call {mine.first_s:6.2f} s", flush=True)
    for contender, why in left_out.items():
        print(f"{name:12} {contender:24} left out: {why[:150]}")
    return {
        "name": name,
        "ms": ms,
        "samples": samples,
        "left_out": left_out,
        "first_s": {contender: c.first_s for contender, c in made.items()},
        "mask_s": flex.mask_s,
        "ratio": ms["flex"] / ms["attngen"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", default="", metavar="FILE,...", help="schedule files to time beside attngen's choice")
    parser.add_argument("--arch", help="target of attngen's kernels, by default that of the GPU")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="", help=f"only variants with this text in their name: {', '.join(VARIANTS)}")
    parser.add_argument("--json", help="write everything that was measured to this file")
    args = parser.parse_args()
    args.own = {pathlib.Path(f).stem: str(pathlib.Path(f).resolve()) for f in args.schedule.split(",") if f}
    torch.cuda.init()
    about = machine(attngen.Context(arch=args.arch))
    print(", ".join(f"{k} {v}" for k, v in about.items()) + f"; D {D} B {B} S {S} H {H} bf16", flush=True)
    tensors = [torch.randn(B, S, H, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)]
    rows = [one_variant(name, args, tensors) for name in VARIANTS if args.only in name]
    if not rows:
        raise SystemExit("no variant is left to measure")
    print("flex/attngen: " + ", ".join(f"{row['name']} {row['ratio']:.3f}" for row in rows))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"machine": about, "variants": rows}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
