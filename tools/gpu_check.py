#!/usr/bin/env python3
"""Every shipped spec without branches under every shipped schedule on a GPU, against PyTorch in double precision.

    tools/gpu_check.py [--quick] [--only TEXT] [--long 4096,16384]

The reference shares nothing with attngen: mask and score of each spec are written out below in torch.  The limits are those of `attngen check`
(src/compare.c): twice the error of the same computation done naively in the storage type, plus half an ulp of the row's largest output (one ulp under a
stale maximum: numerics classes -lazy8, -spec40 and -spec14) and 1e-6; LSE
within 1e-4.  Outputs are filled with NaN before each launch.  Tensors that TMA cannot describe must run through the portable kernel of a program for
sm_90a, and no others; those are counted.  Exit code 0: everything passed.  The library is found as tools/python/attngen.py says.
"""

import argparse
import math
import sys
import threading
import time

import torch

from gpu_common import DTYPES, SPECS, attngen, compile_each, heads, is_stale, is_unsupported, shipped

HALF_ULP = {"bf16": (7, -126), "f16": (10, -14)}  # mantissa bits, least exponent
HEAD_DIMS = (64, 128, 256)
ODD_HEAD_DIMS = (31, 40, 72, 80, 96, 160, 192)


# B, Hq, Hkv, Sq, Sk, offset (None: the last query is aligned with the last key)
SHAPES = (
    (1, 1, 1, 1, 1, None),
    (2, 4, 2, 7, 63, None),
    (1, 2, 2, 63, 64, None),
    (2, 2, 1, 64, 65, None),
    (1, 6, 2, 65, 127, None),
    (1, 6, 1, 127, 129, None),
    (2, 5, 5, 129, 129, None),
    (1, 8, 1, 200, 70, None),
    (1, 4, 4, 704, 704, None),
    (1, 2, 2, 1, 704, None),
    (1, 2, 1, 130, 0, None),
    (1, 3, 3, 100, 300, 40),
    (1, 3, 1, 70, 150, -20),
)
QUICK_SHAPES = SHAPES[4:8]


# ---- data and reference


def random_tensor(generator, shape, dtype, scale=1.0):
    return (torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32) * scale).to(dtype)


class Problem:
    """q, k, v of one shape in [B, H, S, D] order, with outputs of the same layout; strides are whatever `layout` makes."""

    def __init__(self, shape, D, dtype, seed=0, layout="bshd", scale=1.0):
        self.B, self.Hq, self.Hkv, self.Sq, self.Sk, self.offset = shape
        self.D, self.dtype = D, dtype
        g = torch.Generator("cuda").manual_seed(seed)
        make = lambda h, s, f: self.lay_out(random_tensor(g, (self.B, h, s, D), DTYPES[dtype], f), layout)
        self.q, self.k, self.v = make(self.Hq, self.Sq, 2.0 * scale), make(self.Hkv, self.Sk, scale), make(self.Hkv, self.Sk, 1.0)
        self.o = self.lay_out(torch.empty(self.B, self.Hq, self.Sq, D, dtype=DTYPES[dtype], device="cuda"), layout)
        self.lse = torch.empty(self.B, self.Hq, self.Sq, dtype=torch.float32, device="cuda")

    @staticmethod
    def lay_out(t, layout):
        """The same values with other strides; what lies between the elements is NaN."""
        B, H, S, D = t.shape
        if layout == "bhsd":
            return t.contiguous()
        if layout == "bshd":
            return t.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "padded":  # rows longer than D, still 16-byte pieces
            room = torch.full((B, S + 3, H, (D + 7) // 8 * 8 + 8), float("nan"), dtype=t.dtype, device="cuda")
            view = room[:, :S, :, :D].transpose(1, 2)
        elif layout == "strided":  # every second channel, odd start: element by element
            room = torch.full((B, H, S, 2 * D + 3), float("nan"), dtype=t.dtype, device="cuda")
            view = room[..., 1 : 2 * D + 1 : 2]
        else:  # "transposed": channels outermost
            assert layout == "transposed", layout
            room = torch.full((B, H, D, S), float("nan"), dtype=t.dtype, device="cuda")
            view = room.transpose(2, 3)
        view.copy_(t)
        return view

    @property
    def shape(self):
        return (self.B, self.Hq, self.Hkv, self.Sq, self.Sk, self.offset)

    def poison(self):
        self.o.fill_(float("nan"))
        self.lse.fill_(float("nan"))


def reference(spec, p, params):
    """(O and LSE in double, O of the naive computation), contiguous [B, Hq, Sq, ...], in pieces that fit."""
    mask, score = SPECS[spec][:2]
    params = {**SPECS[spec][2], **params}
    offset = p.Sk - p.Sq if p.offset is None else p.offset
    scale = 1.0 / math.sqrt(p.D)
    n, group, T = p.B * p.Hq, p.Hq // p.Hkv, DTYPES[p.dtype]
    o = torch.zeros(n, p.Sq, p.D, dtype=torch.float64, device="cuda")
    naive = torch.zeros(n, p.Sq, p.D, dtype=torch.float32, device="cuda")
    lse = torch.full((n, p.Sq), -math.inf, dtype=torch.float64, device="cuda")
    limit = 1 << 25  # scores at once
    rows = max(1, min(p.Sq, limit // max(1, p.Sk)))
    many = max(1, limit // max(1, rows * p.Sk))
    kpos = torch.arange(p.Sk, device="cuda")[None, :]
    for i in range(0, n, many):
        at = torch.arange(i, min(i + many, n), device="cuda")
        b, h = at // p.Hq, at % p.Hq
        k, v = p.k[b, h // group], p.v[b, h // group]
        for r in range(0, p.Sq, rows):
            q = p.q[b, h, r : r + rows]
            qpos = torch.arange(r, min(r + rows, p.Sq), device="cuda")[:, None] + offset
            hidden = ~mask(qpos, kpos, params) if mask else None
            out = attention(q.double(), k.double(), v.double(), scale, hidden, score, params, lambda x: x)
            o[i : i + many, r : r + rows], lse[i : i + many, r : r + rows] = out
            naive[i : i + many, r : r + rows] = attention(q.float(), k.float(), v.float(), scale, hidden, score, params, lambda x: x.to(T).float())[0]
    full = (p.B, p.Hq, p.Sq)
    return o.view(*full, p.D), lse.view(full), naive.view(*full, p.D)


def attention(q, k, v, scale, hidden, score, params, stored):
    s = stored(q @ k.transpose(-1, -2) * scale)
    if score:
        s = stored(score(s, params))
    if hidden is not None:
        s = s.masked_fill(hidden, -math.inf)
    if s.shape[-1] == 0:
        return torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device), torch.full(
            q.shape[:-1], -math.inf, dtype=q.dtype, device=q.device
        )
    lse = torch.logsumexp(s, -1)
    weight = stored(torch.exp(s - lse.masked_fill(lse == -math.inf, 0.0)[..., None]))
    return stored(weight @ v), lse


def half_ulp(x, dtype):
    bits, least = HALF_ULP[dtype]
    exponent = torch.frexp(x)[1] - 1
    exponent = torch.where(x > 0, exponent, torch.full_like(exponent, least)).clamp(min=least)
    return torch.exp2((exponent - bits - 1).double())


def judge(program, p, want, portable=False):
    """'' if p.o and p.lse are within their limits, else what is wrong; and the worst error over its limit."""
    o, lse, naive = want
    if p.o.numel() == 0:
        return "", 0.0
    if torch.isnan(p.o).any() or torch.isnan(p.lse).any():
        return f"{int(torch.isnan(p.o).sum())} NaN or unwritten in o, {int(torch.isnan(p.lse).sum())} in lse", math.inf
    half_ulps = 2 if is_stale(program) and not portable else 1
    limit = 2 * (naive.double() - o).abs().amax(-1) + half_ulps * half_ulp(o.abs().amax(-1), p.dtype) + 1e-6
    ratio = (p.o.double() - o).abs().amax(-1) / limit
    same = p.lse.double() == lse
    lse_error = torch.where(same, 0.0, (p.lse.double() - lse).abs() / lse.abs().clamp(min=1.0))
    lse_ratio = torch.nan_to_num(lse_error, nan=math.inf, posinf=math.inf).amax().item() / 1e-4
    worst = ratio.amax().item()
    if worst > 1:
        b, h, q = (int(x) for x in torch.unravel_index(ratio.argmax(), ratio.shape))
        return f"o[b {b}, h {h}, q {q}]: {worst:.3g} times its limit {limit[b, h, q].item():.3g}", worst
    return (f"lse: {lse_ratio:.3g} times its limit 1e-4" if lse_ratio > 1 else ""), max(worst, lse_ratio)


# ---- bookkeeping


class Tally:
    def __init__(self):
        self.passed = self.failed = self.portable = 0
        self.worst = 0.0

    def add(self, name, text, ratio=0.0):
        self.worst = max(self.worst, ratio)
        if text:
            self.failed += 1
            print(f"FAIL {name}: {text}", flush=True)
        else:
            self.passed += 1

    def line(self, name, before):
        """One row of the table: what was added since `before`."""
        passed, failed = self.passed - before[0], self.failed - before[1]
        print(f"{'FAIL' if failed else 'ok':4}  {name:58} {passed:4} passed {failed:3} failed  worst {self.worst:5.2f} of the limit", flush=True)
        self.worst = 0.0

    def mark(self):
        return self.passed, self.failed


def unmappable(t):
    """Whether no tensor map describes t: TMA takes a contiguous last dim, and all else in pieces of 16 bytes."""
    far = [s for s, n in zip(t.stride()[:3], t.shape) if n > 1]
    return bool(t.numel()) and (t.data_ptr() % 16 != 0 or (t.shape[3] > 1 and t.stride(3) != 1) or any(s <= 0 or s % 8 for s in far))


def run(program, p, want, tally, name, params):
    p.poison()
    try:
        launch(program, p, **params)
    except attngen.Error as e:
        tally.add(name, str(e))
        return
    notes = attngen.launch_notes()
    portable = "the portable kernel" in notes
    torch.cuda.synchronize()
    text, ratio = judge(program, p, want, portable)
    must = program.info.arch == b"sm_90a" and any(unmappable(t) for t in (p.q, p.k, p.v))
    may = must or program.info.arch == b"sm_90a" and unmappable(p.o)
    if must and not portable or portable and not may:
        text = f"went the wrong way: {notes or 'by TMA'}"
    tally.portable += portable
    tally.add(name, text, ratio)


def launch(program, p, stream=None, **params):
    program(p.q, p.k, p.v, o=p.o, lse=p.lse, offset=p.offset, stream=stream, **params)


# ---- specs x schedules


def compile_all(arch, only):
    """(spec, schedule, D, dtype) -> what was compiled, or the error; without schedules that are for other head dims or architectures."""
    jobs = [(s, c, D, t) for s in SPECS for c in shipped("schedules") for D in HEAD_DIMS + ODD_HEAD_DIMS for t in DTYPES]
    jobs = [job for job in jobs if only in "{} {} {} {}".format(*job)]
    results = compile_each(arch, [dict(zip(("spec", "schedule", "D", "dtype"), job)) for job in jobs])
    return {job: r for job, r in zip(jobs, results) if not is_unsupported(r)}


def zoo_cases(spec, D, shapes, long):
    cases = [(s[0], *heads(spec, s[1], s[2]), *s[3:]) for s in shapes]
    if D in HEAD_DIMS:
        cases += [(1, *heads(spec, 2048 // D, 2048 // D // 4), S, S, None) for S in long]
    return cases


def check_variants(spec, D, dtype, variants, cases, tally):
    """variants: schedule -> program.  A reference is made once for all schedules."""
    tallies = {schedule: Tally() for schedule in variants}
    for n, shape in enumerate(cases):
        p = Problem(shape, D, dtype, seed=n)
        want = reference(spec, p, {})
        for schedule, program in variants.items():
            if not isinstance(program, Exception):
                run(program, p, want, tallies[schedule], f"{spec} {schedule} D {D} {dtype} {shape}", {})
    for schedule, one in tallies.items():
        if isinstance(variants[schedule], Exception):
            one.add(f"{spec} {schedule} D {D} {dtype}", str(variants[schedule]))
        mark = tally.mark()
        tally.passed, tally.failed, tally.worst = tally.passed + one.passed, tally.failed + one.failed, one.worst
        tally.portable += one.portable
        tally.line(f"{spec:15} {schedule:16} D {D:3} {dtype:4}", mark)


def check_zoo(programs, shapes, long, tally):
    by_data = {}
    for (spec, schedule, D, dtype), program in programs.items():
        by_data.setdefault((spec, D, dtype), {})[schedule] = program
    for (spec, D, dtype), variants in sorted(by_data.items()):
        if spec in SPECS:
            check_variants(spec, D, dtype, variants, zoo_cases(spec, D, shapes, long), tally)
        else:
            tally.add(spec, "gpu_check.py has no reference for this spec")


# ---- what else a launch must stand


def check_layouts(ctx, tally):
    for D in (64, 72, 128):
        program = ctx.compile("causal", D=D, dtype="bf16")
        for layout in ("bhsd", "bshd", "padded", "strided", "transposed"):
            p = Problem((2, 6, 2, 130, 197, None), D, "bf16", seed=D, layout=layout)
            run(program, p, reference("causal", p, {}), tally, f"layout {layout} D {D}", {})
        p = Problem((3, 4, 2, 65, 129, None), D, "bf16", seed=D)
        p.k, p.v = p.k[:1].expand(3, -1, -1, -1), p.v[:1].expand(3, -1, -1, -1)  # stride 0 over the batch
        run(program, p, reference("causal", p, {}), tally, f"broadcast K and V D {D}", {})


def check_params(ctx, tally):
    p = Problem((1, 4, 2, 150, 300, None), 64, "f16", seed=5)
    for spec, name, values in (("sliding_window", "window", (1, 17, 64, 1000)), ("softcap", "cap", (0.5, 5.0, 200.0))):
        program = ctx.compile(spec, D=64, dtype="f16")
        for x in values:
            run(program, p, reference(spec, p, {name: x}), tally, f"{spec} {name} = {x}", {name: x})


def check_large_logits(ctx, tally):
    for dtype in DTYPES:
        p = Problem((1, 2, 2, 130, 260, None), 128, dtype, seed=9, scale=2.3)  # logits to about +-120
        run(ctx.compile("causal", D=128, dtype=dtype), p, reference("causal", p, {}), tally, f"large logits {dtype}", {})


def check_many_heads(ctx, tally):
    p = Problem((1, 70000, 70000, 3, 5, None), 64, "bf16", seed=1)
    run(ctx.compile("causal", D=64, dtype="bf16"), p, reference("causal", p, {}), tally, "B*H = 70000, heads", {})
    p = Problem((70000, 1, 1, 3, 5, None), 64, "bf16", seed=2)
    run(ctx.compile("causal", D=64, dtype="bf16"), p, reference("causal", p, {}), tally, "B*H = 70000, batch", {})


def check_far_elements(ctx, tally):
    """Element offsets beyond 2^31: by the row stride in one tensor after the other, and by the batch stride in all."""
    program = ctx.compile("causal", D=64, dtype="bf16")
    S, D = 2500, 64
    room = torch.empty(S * (1 << 20), dtype=torch.bfloat16, device="cuda")  # 5.2 GB
    for name in ("q", "k", "v", "o"):
        p = Problem((1, 1, 1, S, S, None), D, "bf16", seed=3)
        far = room.as_strided((1, 1, S, D), (0, 0, 1 << 20, 1))
        far.copy_(getattr(p, name))
        setattr(p, name, far)
        run(program, p, reference("causal", p, {}), tally, f"rows of {name} beyond 2^31 elements", {})
    p = Problem((2, 2, 1, 100, 200, None), D, "bf16", seed=4)
    for i, name in enumerate(("q", "k", "v", "o")):
        t = getattr(p, name)
        far = room.as_strided(t.shape, ((1 << 31) + 64, t.shape[2] * D, D, 1), i * (1 << 20))
        far.copy_(t)
        setattr(p, name, far)
    run(program, p, reference("causal", p, {}), tally, "batch 1 of all beyond 2^31 elements", {})


def check_graph(ctx, tally):
    """A program that was bound and never launched is captured, then replayed on other data."""
    p = Problem((2, 4, 2, 200, 333, None), 112, "bf16", seed=6)
    program = ctx.compile("causal", D=112, dtype="bf16")
    program.prepare(p.q, p.k, p.v, p.o, p.lse)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(program, p)
    for seed in (7, 8):
        fresh = Problem(p.shape, 112, "bf16", seed=seed)
        for name in ("q", "k", "v"):
            getattr(p, name).copy_(getattr(fresh, name))
        p.poison()
        graph.replay()
        torch.cuda.synchronize()
        tally.add(f"graph replay, seed {seed}", *judge(program, p, reference("causal", p, {})))


def check_threads(ctx, tally):
    """Two threads launch one call on a stream each."""
    shape = (1, 8, 2, 300, 500, None)
    program = ctx.compile("causal", D=128, dtype="bf16")
    problems = [Problem(shape, 128, "bf16", seed=s) for s in (10, 11)]
    errors = []

    def work(p):
        try:
            stream = torch.cuda.Stream()
            p.poison()
            torch.cuda.synchronize()
            for _ in range(200):
                launch(program, p, stream=stream)
            stream.synchronize()
        except Exception as e:  # reported below, in the main thread
            errors.append(str(e))

    threads = [threading.Thread(target=work, args=(p,)) for p in problems]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, p in enumerate(problems):
        text, ratio = judge(program, p, reference("causal", p, {}))
        tally.add(f"thread {i}", errors[0] if errors else text, ratio)


def check_repeats(ctx, tally):
    for D in HEAD_DIMS:
        p = Problem((2, 16, 4, 1500, 1500, None), D, "bf16", seed=D)
        program = ctx.compile("causal", D=D, dtype="bf16")
        seen = []
        for _ in range(10):
            p.poison()
            launch(program, p)
            torch.cuda.synchronize()
            seen.append((p.o.clone(), p.lse.clone()))
        bits = lambda t: t.contiguous().view(torch.int16 if t.element_size() == 2 else torch.int32)
        same = all(torch.equal(bits(a), bits(b)) for run_ in seen[1:] for a, b in zip(run_, seen[0]))
        tally.add(f"10 repeats D {D}", "" if same else "the results differ in their bits")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", help="compile for this architecture instead of that of the device")
    parser.add_argument("--quick", action="store_true", help="few shapes, no long ones, no far elements")
    parser.add_argument("--only", default="", help="of specs x schedules only those with this text in `SPEC SCHEDULE D DTYPE`")
    parser.add_argument("--long", default="4096,16384", help="long sequences, comma-separated")
    args = parser.parse_args()
    torch.cuda.init()
    ctx = attngen.Context(arch=args.arch)
    print(f"device: {torch.cuda.get_device_name()}, torch {torch.__version__}, kernels for {ctx.arch}", flush=True)

    start = time.time()
    programs = compile_all(ctx.arch, args.only)
    print(f"{len(programs)} programs compiled in {time.time() - start:.1f} s", flush=True)
    tally = Tally()
    if not programs:
        tally.add("compile", "nothing to check")
    long = [] if args.quick else [int(x) for x in args.long.split(",") if x]
    check_zoo(programs, QUICK_SHAPES if args.quick else SHAPES, long, tally)
    others = [check_layouts, check_params, check_large_logits, check_many_heads, check_graph, check_threads, check_repeats]
    if not args.quick:
        others.append(check_far_elements)
    for check in others:
        mark = tally.mark()
        try:
            check(ctx, tally)
        except (attngen.Error, RuntimeError) as e:  # the others shall still run
            tally.add(check.__name__, str(e))
        tally.line(check.__name__.replace("check_", "").replace("_", " "), mark)
    print(f"{'FAIL' if tally.failed else 'PASS'}: {tally.passed} passed, {tally.failed} failed, {tally.portable} of them by the portable kernel, {time.time() - start:.0f} s")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
