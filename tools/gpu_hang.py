#!/usr/bin/env python3
"""Proves on a GPU that a debug-hang build says where a kernel hangs, and fails.

    tools/gpu_hang.py [ATTNGEN]            default: build/attngen; needs NVRTC and a GPU that runs sm_90a

For D 64, 128 and 256: `attngen check --debug-hang` must pass.  Then the text of that kernel is broken in two ways and launched, each by a process of its own,
as a trap leaves a CUDA context unusable.  The launch must fail within 10 s, and one of the lines that it prints must name the wait that is in vain (those that wait for it give up at about the same time)."""

import ctypes
import os
import pathlib
import re
import struct
import subprocess
import sys
import time

B, H, S, LIMIT_S = 1, 16, 4096, 10.0
BREAKS = [  # the line that is replaced, once; by what; the line that is to be printed
    (r"^ *mbar_release\(K_empty.*;$", "", r"role (load|math), thread \d+: K_(empty|full)\["),
    (r"^ *tma_(tile<\d+, \d+>|panels)\(K .*;$", "return;", r"role math, thread \d+: [KQ]_full\["),  # Q, where K of a tile is loaded first
]


def call(lib, function, *args):
    result = getattr(lib, function)(*args)
    if result:
        sys.exit(f"gpu_hang: {function}: error {result}")


def compiled(text, nvrtc_path):
    for builtins in pathlib.Path(nvrtc_path).parent.glob("libnvrtc-builtins.so.*.*"):  # NVRTC wants them to be there already
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    lib, program, size = ctypes.CDLL(nvrtc_path), ctypes.c_void_p(), ctypes.c_size_t()
    call(lib, "nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"broken.cu", 0, None, None)
    call(lib, "nvrtcCompileProgram", program, 2, (ctypes.c_char_p * 2)(b"--gpu-architecture=sm_90a", b"--std=c++17"))
    call(lib, "nvrtcGetCUBINSize", program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    return call(lib, "nvrtcGetCUBIN", program, cubin) or cubin.raw


def zeros(cu, n):
    address, size = ctypes.c_uint64(), ctypes.c_size_t(n)
    call(cu, "cuMemAlloc_v2", ctypes.byref(address), size)
    return call(cu, "cuMemsetD8_v2", address, 0, size) or address.value


def tensor_map(cu, address, D, rows, at_once):
    """Of a contiguous [B, H, S, D] of bf16, as src/driver.c encodes it: (d, s, h, b), or (d, s, panel, h, b) where all panels are copied at once."""
    space = ctypes.create_string_buffer(192)
    at, u64, u32 = ctypes.c_void_p((ctypes.addressof(space) + 63) & ~63), ctypes.c_uint64, ctypes.c_uint32
    panels = [(64, 64, 2), (S, rows, 2 * D), (D // 64, D // 64, 128)] if at_once else [(D, 64, 2), (S, rows, 2 * D)]
    dim, box, apart = zip(*panels, (H, 1, 2 * D * S), (B, 1, 2 * D * S * H))
    n, steps = len(dim), [1] * len(dim)
    shape = (u64 * n)(*dim), (u64 * (n - 1))(*apart[1:]), (u32 * n)(*box), (u32 * n)(*steps)
    call(cu, "cuTensorMapEncodeTiled", at, 9, n, ctypes.c_void_p(address), *shape, 0, 3, 2, 0)
    return ctypes.string_at(at, 128)


def arguments(text, values):
    """The bytes of `struct Args` as the text has it: what `values` does not name is 0."""
    out, size = b"", {"TMap": 64, "i64": 8, "int": 4, "float": 4}  # and alignment
    for kind, names in re.findall(r"^    (?:const )?(\w+) ([^;]+);", re.search(r"struct Args \{\n(.*?)\};", text, re.S)[1], re.M):
        for name in names.split(", "):
            n, value = 8 if name[0] == "*" else size[kind], values.get(name.lstrip("*"), 0)
            out += bytes(-len(out) % n)
            out += value if kind == "TMap" else struct.pack("<f", value) if (kind, n) == ("float", 4) else value.to_bytes(n, "little")
    return out + bytes(64)  # the struct's size is a multiple of 64


def launch(cubin, text, D):
    cu, context, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    shared, threads, m, n = (int(re.search(x, text)[1]) for x in (r"Shared memory, (\d+)", r"THREADS = (\d+)", r"tile\.m +(\d+)", r"tile\.n +(\d+)"))
    call(cu, "cuInit", 0)
    call(cu, "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call(cu, "cuCtxSetCurrent", context)
    call(cu, "cuModuleLoadData", ctypes.byref(module), cubin)
    call(cu, "cuModuleGetFunction", ctypes.byref(kernel), module, b"causal_fwd")
    call(cu, "cuFuncSetAttribute", kernel, 8, shared)  # dynamic shared memory
    values = {"B": B, "Hq": H, "Hkv": H, "Sq": S, "Sk": S, "counter": zeros(cu, 256), "scale": 0.1}
    for name, rows in (("q", m), ("k", n), ("v", n), ("o", 64)):
        values[name], at_once = zeros(cu, 2 * B * H * S * D), re.search(rf"tma_panels\(.*args\.{name}_map", text)
        values |= {f"{name}_map": tensor_map(cu, values[name], D, rows, at_once), f"{name}_b": H * S * D, f"{name}_h": S * D, f"{name}_s": D, f"{name}_d": 1}
    args = ctypes.create_string_buffer(arguments(text, values))
    call(cu, "cuLaunchKernel", kernel, min(128, S // m * H * B), 1, 1, threads, 1, 1, shared, None, (ctypes.c_void_p * 1)(ctypes.addressof(args)), None)
    return cu.cuCtxSynchronize()


def output(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def prove(attngen, D, nvrtc_path):
    options = ("causal", "-a", "sm_90a", "-D", f"D={D}", "--debug-hang")
    print(output(attngen, "check", *options, "--gpu").splitlines()[-1], flush=True)
    text = output(attngen, "emit", *options)
    for pattern, by, expected in BREAKS:
        was = re.search(pattern, text, re.M)[0]
        out = output(sys.executable, __file__, "--child", str(D), nvrtc_path, input=text.replace(was, by, 1), timeout=60)
        line, end = re.search("^attngen: .*" + expected + r".* was not completed within 2 s$", out, re.M), re.search(r"^ended (\d+) (\S+)", out, re.M)
        if not line or not end or int(end[1]) == 0 or float(end[2]) > LIMIT_S:
            sys.exit(f"gpu_hang: D {D}, `{by}` for `{was.strip()}`: {out[:1000]}")
        print(f"ok: D {D}, `{by}` for `{was.strip()}`: error {end[1]} after {end[2]} s: {line[0]}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        kernel_text = sys.stdin.read()
        image, begin = compiled(kernel_text, sys.argv[3]), time.monotonic()
        status = launch(image, kernel_text, int(sys.argv[2]))
        ctypes.CDLL(None).fflush(None)
        os.write(1, f"\nended {status} {time.monotonic() - begin:.2f}\n".encode())
        os._exit(0)  # nothing can be torn down in a context that trapped
    binary = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).resolve().parent.parent / "build" / "attngen")
    nvrtc = re.search(r"^NVRTC: \d[^,]*, (.*)$", output(binary, "doctor"), re.M) or sys.exit("gpu_hang: there is no NVRTC")
    for head_dim in (64, 128, 256):
        prove(binary, head_dim, nvrtc[1])
