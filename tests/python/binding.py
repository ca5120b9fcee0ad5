#!/usr/bin/env python3
"""The Python binding without torch and without a GPU: its structures against those of attngen.h, and what its calls hand to the library.

    tests/python/binding.py      ATTNGEN_LIBRARY says which library, by default that of build/

The compiler that `CC` names (cc) prints the layouts.  torch and the library's calls that need a driver are stand-ins.  The last line counts."""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools" / "python"))
import attngen  # noqa: E402

STRUCTURES = {name: getattr(attngen, f"_{name}") for name in ("Options", "Source", "Dim", "Shape", "Arg", "Info", "ArgInfo")}
IN_C = {"ArgInfo": "arg_info"}
NUMBERS = {
    "ATTNGEN_F16": attngen.F16,
    "ATTNGEN_BF16": attngen.BF16,
    "ATTNGEN_ALIGN_END": attngen.ALIGN_END,
    "ATTNGEN_MOST_DIMS": attngen.MOST_DIMS,
    **{f"ATTNGEN_EMIT_{name.upper()}": number for name, number in attngen.ARTEFACTS.items()},
}


def from_c():
    """Every size, offset and number as the compiler has them: lines "what value"."""
    lines = []
    for name, structure in STRUCTURES.items():
        c = "attngen_" + IN_C.get(name, name.lower())
        lines.append(f'printf("{name} %lld\\n", (long long)sizeof({c}));')
        lines += [f'printf("{name}.{field[0]} %lld\\n", (long long)offsetof({c}, {field[0]}));' for field in structure._fields_]
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in NUMBERS]
    source = '#include <stddef.h>\n#include <stdio.h>\n#include "attngen.h"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "layout"
        path.with_suffix(".c").write_text(source)
        subprocess.run([os.environ.get("CC", "cc"), "-I", str(ROOT / "src"), "-o", str(path), str(path.with_suffix(".c"))], check=True)
        out = subprocess.run([str(path)], check=True, capture_output=True, text=True).stdout
    return {what: int(value) for what, value in (line.split() for line in out.splitlines())}


def test_layouts():
    c = from_c()
    for name, structure in STRUCTURES.items():
        assert ctypes.sizeof(structure) == c[name], name
        for field in structure._fields_:
            assert getattr(structure, field[0]).offset == c[f"{name}.{field[0]}"], f"{name}.{field[0]}"
    for name, number in NUMBERS.items():
        assert number == c[name], name


# ---- stand-ins


class Tensor:
    """A CUDA tensor as far as the binding looks at one."""

    is_cuda, device, at = True, "cuda:0", 4096

    def __init__(self, *shape, dtype="bfloat16"):
        self.shape, self.dtype = shape, dtype
        Tensor.at += 4096
        self.address = Tensor.at

    def dim(self):
        return len(self.shape)

    def stride(self):
        strides = [1]
        for n in self.shape[:0:-1]:
            strides.insert(0, strides[0] * n)
        return tuple(strides[: len(self.shape)])

    def data_ptr(self):
        return self.address

    def numel(self):
        return self.shape[0]


class Library:
    """Takes what would go to the driver; a call has the tensors of `takes`, name: (type, extents)."""

    def __init__(self, takes):
        self.takes, self.launched = list(takes.items()), []

    def attngen_program_info(self, program, info):
        info._obj.name, info._obj.Dv = b"spec", 64
        return 0

    def attngen_bind(self, ctx, call, program, shape):
        call._obj.value = 1
        return 0

    def attngen_call_tensor(self, call, i, info):
        if i >= len(self.takes):
            return 0
        name, (type_, extent) = self.takes[i]
        info._obj.name, info._obj.type, info._obj.rank = name.encode(), type_.encode(), len(extent)
        info._obj.extent[: len(extent)] = extent
        return 1

    def attngen_workspace(self, call):
        return 16

    def take(self, args, n):
        self.launched.append({a.name.decode(): (a.data, tuple(a.stride), a.scalar) for a in args[:n]})
        return 0

    def attngen_launch(self, call, args, n, space, room, stream):
        return self.take(args, n)

    def attngen_mask_make(self, mask, call, args, n, space, room, stream):
        mask._obj.value = 2
        return self.take(args, n)

    def attngen_mask_launch(self, mask, args, n, stream):
        return self.take(args, n)

    def __getattr__(self, name):
        return lambda *args: 0  # those that free


def with_stand_ins(takes):
    """A program over them, and the library that sees its calls."""
    stream = types.SimpleNamespace(cuda_stream=7)
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(Stream=types.SimpleNamespace, current_stream=lambda device: stream)
    torch.empty = lambda *shape, dtype=None, device=None: Tensor(*(shape[0] if isinstance(shape[0], tuple) else shape), dtype=dtype)
    for name in attngen.TYPES.values():
        setattr(torch, name, name)
    sys.modules["torch"] = torch
    attngen._lib = Library(takes)
    return attngen.Program(types.SimpleNamespace(_handle=None), 1), attngen._lib


B, H, S, D = 2, 3, 5, 64
FOUR = ("bf16", (B, H, S, D))
TAKES = {"q": FOUR, "k": FOUR, "v": FOUR, "o": FOUR, "lse": ("f32", (B, H, S)), "max": ("f32", (B, H, S)), "doc": ("i32", (B, S)), "deep": ("f32", (1, 2, 3, 4, 5, 6))}


def tensors():
    return {name: Tensor(*extent, dtype=attngen.TYPES[type_]) for name, (type_, extent) in TAKES.items()}


def as_argument(x):
    return x.data_ptr(), x.stride() + (0,) * (attngen.MOST_DIMS - x.dim()), 0.0


def test_call():
    program, library = with_stand_ins(TAKES)
    x = tensors()
    space = Tensor(16, dtype="uint8")
    space.is_contiguous = lambda: True
    o, lse, largest = program(**x, workspace=space, window=3)
    assert (o, lse, largest) == (x["o"], x["lse"], x["max"])
    assert library.launched == [{**{name: as_argument(t) for name, t in x.items()}, "window": (None, (0,) * attngen.MOST_DIMS, 3.0)}]


def test_mask():
    program, library = with_stand_ins(TAKES)
    x = tensors()
    kept = {name: x[name] for name in ("doc", "deep")}
    mask = program.mask(x["q"], x["k"], x["v"], workspace=Tensor(16, dtype="uint8"), window=3, **kept)
    o, lse, largest = mask(x["q"], x["k"], x["v"], o=x["o"], lse=True, max=x["max"], cap=0.5)
    made, launched = library.launched
    assert o is x["o"] and largest is x["max"] and lse.shape == (B, H, S) and lse.dtype == "float32"
    assert set(made) == {"q", "k", "v", "doc", "deep", "window"} and made["deep"] == as_argument(x["deep"])
    want = {name: as_argument(t) for name, t in {**x, "lse": lse}.items()}
    assert launched == {**want, "window": (None, (0,) * attngen.MOST_DIMS, 3.0), "cap": (None, (0,) * attngen.MOST_DIMS, 0.5)}
    assert mask(x["q"], x["k"], x["v"]).shape == (B, H, S, D)


def test_mask_refuses():
    program, _ = with_stand_ins(TAKES)
    x = tensors()
    mask = program.mask(x["q"], x["k"], x["v"], workspace=Tensor(16, dtype="uint8"), doc=x["doc"])
    for text, call in {
        "the mask was made for q, k and v of": lambda: mask(Tensor(1, H, S, D), x["k"], x["v"]),
        "spec takes no tensor table, but q, k, v": lambda: mask(x["q"], x["k"], x["v"], table=Tensor(2)),
        "doc must be a CUDA tensor [2, 5] of int32, not [2, 5] of bfloat16": lambda: mask(x["q"], x["k"], x["v"], doc=Tensor(B, S)),
    }.items():
        try:
            call()
        except ValueError as e:
            assert str(e).startswith(text), e
        else:
            raise AssertionError(f"not refused: {text}")


def main():
    failed = 0
    tests = {name: f for name, f in globals().items() if name.startswith("test_")}
    for name, test in tests.items():
        try:
            test()
        except Exception as e:
            failed += 1
            print(f"FAILED {name}: {type(e).__name__}: {e}")
    print(f"{len(tests) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
