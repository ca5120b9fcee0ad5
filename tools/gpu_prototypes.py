#!/usr/bin/env python3
"""Hand-made kernels as contenders for gpu_peers.py: those that a folder's launch.py compiles and launches.

launch.py has config(d, causal, **over), source(config), compile_cubin(text) and Kernel(config).bind(q, k, v, o, lse) for tensors [B, S, H, D].  NVRTC takes
0.5 s or more for each, so every configuration is compiled ahead in a process of its own (this file, run as a program: one cubin), and Kernel finds its cubin
in a temporary folder."""

import ctypes
import glob
import hashlib
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

SMALL_ROWS = {"WARPGROUPS": 2, "REGS_PRODUCER": 40, "REGS_CONSUMER": 232}
WIDE_KEYS = {"BN": 144, "TMA_STORE": 0}


def configurations(D, causal, S):
    """name -> what differs from launch.config: the best ones at S, by launch.py's comments."""
    if D == 64 and causal and S <= 2048:
        return {"proto": SMALL_ROWS}
    if D == 128 and not causal and S >= 8192:
        return {"proto": {}, "proto144": WIDE_KEYS}
    return {"proto": {}}


def load_launch(folder):
    spec = importlib.util.spec_from_file_location("prototype_launch", pathlib.Path(folder) / "launch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def preload_nvrtc():
    """Loads NVRTC from where toolkits and wheels put it, so that launch.py finds it by name."""
    try:
        return ctypes.CDLL("libnvrtc.so.13")
    except OSError:
        pass
    folders = ["/usr/local/cuda/lib64", *glob.glob("/usr/local/cuda-13*/lib64"), *(f"{p}/nvidia/*/lib" for p in sys.path if p)]
    for path in sorted(p for f in folders for p in glob.glob(f"{f}/libnvrtc.so.13")):
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    return None


class Prototypes:
    """The kernels in `folder` for these (D, causal, S)."""

    def __init__(self, folder, points):
        self.folder = str(pathlib.Path(folder).resolve())
        self.launch = load_launch(self.folder)
        self.cubins = tempfile.TemporaryDirectory(prefix="attngen-prototypes-")
        self.kernels, self.failed = {}, {}
        self.launch.compile_cubin = self._compiled
        wanted = {self._key(D, causal, over) for D, causal, S in points for over in configurations(D, causal, S).values()}
        running = [(key, self._start(key)) for key in sorted(wanted)]
        for key, process in running:
            text = process.communicate()[0].strip()
            if process.returncode:
                self.failed[key] = text.splitlines()[-1] if text else f"exit code {process.returncode}"

    @staticmethod
    def _key(D, causal, over):
        return D, bool(causal), json.dumps(over, sort_keys=True)

    def _path(self, text):
        return pathlib.Path(self.cubins.name) / (hashlib.sha256(text.encode()).hexdigest() + ".cubin")

    def _config(self, key):
        return self.launch.config(key[0], key[1], **json.loads(key[2]))

    def _start(self, key):
        D, causal, over = key
        out = self._path(self.launch.source(self._config(key)))
        return subprocess.Popen(
            [sys.executable, __file__, self.folder, str(D), str(int(causal)), over, str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def _compiled(self, text):
        return self._path(text).read_bytes(), "", 0.0

    def bind(self, name, D, causal, S, q, k, v, o, lse):
        """A function that launches configuration `name` on the current stream; tensors [B, S, H, D]."""
        key = self._key(D, causal, configurations(D, causal, S)[name])
        if key in self.failed:
            raise RuntimeError(self.failed[key])
        if key not in self.kernels:
            self.kernels[key] = self.launch.Kernel(self._config(key))
        return self.kernels[key].bind(q, k, v, o, lse)


def compile_one(folder, D, causal, over, out):
    preload_nvrtc()
    launch = load_launch(folder)
    cubin = launch.compile_cubin(launch.source(launch.config(int(D), int(causal), **json.loads(over))))[0]
    pathlib.Path(out).write_bytes(cubin)


if __name__ == "__main__":
    compile_one(*sys.argv[1:])
