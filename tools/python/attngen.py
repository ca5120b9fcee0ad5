"""attngen from Python: compile a spec, call the kernel on PyTorch CUDA tensors.

    import attngen
    ctx = attngen.Context()
    causal = ctx.compile("causal", D=128, dtype="bf16")
    o = causal(q, k, v)                       # [B, Hq, Sq, D], [B, Hkv, Sk, D], [B, Hkv, Sk, Dv], any strides
    o, lse = causal(q, k, v, lse=True)
    causal(q, k, v, o=o, window=128, stream=stream)
    nsa(q, k, v, gate=gate)                   # captured tensors of the spec by name, of its types
    mask = packed.mask(q, k, v, doc=doc)      # which tiles of keys a mask allows, found out once
    for q, k, v in layers: o = mask(q, k, v)

Only ctypes is needed to compile; PyTorch is imported by the first call.  The library is $ATTNGEN_LIBRARY, or libattngen.so beside this file, in the
folder above, in the build folder of the source tree, or where the loader finds it.
"""

import ctypes
import os
import pathlib
import struct
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_void_p

__all__ = ["Context", "Error", "Mask", "Program", "compile", "launch_notes"]

F16, BF16 = 16, 17
DTYPES = {"f16": F16, "float16": F16, "bf16": BF16, "bfloat16": BF16}
ALIGN_END = -(2**63)
TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "i32": "int32", "i64": "int64", "u8": "uint8", "bool": "bool"}  # the names that torch has
MAX_CALLS = 1024  # bound shapes that a Program keeps
ARTEFACTS = {"spec": 0, "math": 1, "tile": 2, "schedule": 3, "cu": 4, "ptx": 5, "cubin": 6}


MOST_DIMS = 6  # ATTNGEN_MOST_DIMS


class Error(RuntimeError):
    """A failure of the library; .status is its attngen_status."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class _Options(Structure):
    _fields_ = [("version", c_uint32), ("arch", c_char_p), ("device", c_int), ("cache_dir", c_char_p), ("nvrtc", c_char_p), ("warn", c_void_p), ("payload", c_void_p), ("debug_hang", c_int), ("quick_start", c_int)]


class _Source(Structure):
    _fields_ = [("name", c_char_p), ("text", c_char_p), ("len", c_size_t)]


class _Dim(Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class _Shape(Structure):
    _fields_ = [(name, c_int64) for name in ("B", "Hq", "Hkv", "Sq", "Sk", "offset")]


class _Arg(Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("stride", c_int64 * MOST_DIMS), ("scalar", c_double)]


def _tensor_arg(name, strides, address=None):
    return _Arg(name.encode(), address, (c_int64 * MOST_DIMS)(*strides), 0.0)


def _scalar_arg(name, value):
    return _Arg(name.encode(), None, (c_int64 * MOST_DIMS)(), float(value))


class _Info(Structure):
    _fields_ = (
        [("version", c_uint32)]
        + [(name, c_char_p) for name in ("name", "arch", "schedule", "numerics")]
        + [(name, c_int) for name in ("D", "Dv", "dtype", "threads", "shared_bytes", "registers", "spill_bytes", "from_disk_cache")]
    )


class _ArgInfo(Structure):
    _fields_ = [("name", c_char_p), ("type", c_char_p), ("rank", c_int), ("optional", c_int), ("output", c_int), ("extent", c_int64 * MOST_DIMS)]


_Sink = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)

_FUNCTIONS = {
    "attngen_strerror": (c_char_p, [c_int]),
    "attngen_create": (c_int, [POINTER(c_void_p), POINTER(_Options)]),
    "attngen_destroy": (None, [c_void_p]),
    "attngen_errmsg": (c_char_p, [c_void_p]),
    "attngen_arch": (c_char_p, [c_void_p]),
    "attngen_compile": (c_int, [c_void_p, POINTER(c_void_p), POINTER(_Source), POINTER(_Source), POINTER(_Dim), c_size_t]),
    "attngen_lower": (c_int, [c_void_p, POINTER(c_void_p), POINTER(_Source), POINTER(_Source), POINTER(_Dim), c_size_t]),
    "attngen_wait": (c_int, [c_void_p, c_void_p]),
    "attngen_program_free": (None, [c_void_p]),
    "attngen_program_info": (c_int, [c_void_p, POINTER(_Info)]),
    "attngen_shipped_spec": (c_int, [POINTER(_Source), c_char_p]),
    "attngen_shipped_schedule": (c_int, [POINTER(_Source), c_char_p]),
    "attngen_emit": (c_int, [c_void_p, c_void_p, c_int, c_char_p, _Sink, c_void_p]),
    "attngen_bind": (c_int, [c_void_p, POINTER(c_void_p), c_void_p, POINTER(_Shape)]),
    "attngen_call_free": (None, [c_void_p]),
    "attngen_call_tensor": (c_int, [c_void_p, c_size_t, POINTER(_ArgInfo)]),
    "attngen_workspace": (c_size_t, [c_void_p]),
    "attngen_launch": (c_int, [c_void_p, POINTER(_Arg), c_size_t, c_void_p, c_size_t, c_void_p]),
    "attngen_mask_make": (c_int, [POINTER(c_void_p), c_void_p, POINTER(_Arg), c_size_t, c_void_p, c_size_t, c_void_p]),
    "attngen_mask_launch": (c_int, [c_void_p, POINTER(_Arg), c_size_t, c_void_p]),
    "attngen_mask_free": (None, [c_void_p]),
    "attngen_launch_errmsg": (c_char_p, []),
    "attngen_explain": (c_int, [c_void_p, POINTER(_Arg), c_size_t, c_char_p, c_size_t]),
}


def _load():
    here = pathlib.Path(__file__).resolve().parent
    given = os.environ.get("ATTNGEN_LIBRARY")
    places = [given] if given else [p / "libattngen.so" for p in (here, here.parent, here.parent.parent / "build")]
    path = next((str(p) for p in places if given or p.exists()), "libattngen.so.0")
    lib = ctypes.CDLL(path)
    for name, (result, args) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args
    return lib


_lib = _load()


def _check(status, ctx):
    if status:
        text = _lib.attngen_errmsg(ctx) or _lib.attngen_strerror(status)
        raise Error(status, text.decode(errors="replace"))


def _source(given, shipped):
    """A shipped name, the path of a file (it has a '/' or ends in .yaml), or the text itself (it has a ':')."""
    if given is None:
        return None
    source = _Source()
    given = os.fspath(given)
    if "\n" not in given and ("/" in given or given.endswith(".yaml")) and ":" not in given:
        text = pathlib.Path(given).read_bytes()
        return _Source(given.encode(), text, len(text))
    if ":" in given:
        text = given.encode()
        return _Source(b"<python>", text, len(text))
    status = shipped(byref(source), given.encode())
    if status:
        raise Error(status, f"nothing is shipped under the name {given!r}")
    return source


class Context:
    """A target (the GPU `device`, or an architecture by name), the kernel cache and the last diagnostic.  To be used by one thread at a time.
    debug_hang: its kernels, where they wait on mbarriers, fail with a line that names the wait instead of hanging (docs/schedule.md); slower.
    quick_start: a program that is not on disk comes sooner, under a schedule that compiles in less time; the one that fits best is compiled beside, and takes
    over when it is there, see Program.wait."""

    def __init__(self, arch=None, device=0, cache_dir=None, nvrtc=None, debug_hang=False, quick_start=False):
        encode = lambda x: None if x is None else os.fspath(x).encode()
        options = _Options(3, encode(arch), device, encode(cache_dir), encode(nvrtc), None, None, debug_hang, quick_start)
        self._handle, self.device = c_void_p(), device
        _check(_lib.attngen_create(byref(self._handle), byref(options)), None)

    def __del__(self):
        if getattr(self, "_handle", None):
            _lib.attngen_destroy(self._handle)

    @property
    def arch(self):
        return _lib.attngen_arch(self._handle).decode()

    def compile(self, spec, schedule=None, D=128, Dv=None, dtype="bf16", lower=False, **params):
        """A Program for a shipped name, a file or a text.  lower=True stops at the CUDA text: needs no NVRTC, cannot be called."""
        if dtype not in DTYPES:
            raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {dtype!r}")
        values = {"D": D, "Dv": D if Dv is None else Dv, "dtype": DTYPES[dtype], **params}
        dims = (_Dim * len(values))(*[(name.encode(), float(x)) for name, x in values.items()])
        spec, schedule = _source(spec, _lib.attngen_shipped_spec), _source(schedule, _lib.attngen_shipped_schedule)
        handle = c_void_p()
        function = _lib.attngen_lower if lower else _lib.attngen_compile
        _check(function(self._handle, byref(handle), byref(spec), byref(schedule) if schedule else None, dims, len(dims)), self._handle)
        return Program(self, handle)


def _inputs_and_scalars(given):
    """What a call was given by name: tensors, which are inputs of the spec, and numbers, which CPU tensors without dims may be too."""
    inputs = {name: x for name, x in given.items() if hasattr(x, "data_ptr") and (x.is_cuda or x.dim() > 0)}
    return inputs, {name: x for name, x in given.items() if name not in inputs}


def _rows(q, lse, max, mean_weight):
    """The outputs of a value for each query that a call asks for, by name: a tensor as it is, True as a new one."""
    import torch

    asked = {name: x for name, x in (("lse", lse), ("max", max), ("mean_weight", mean_weight)) if x is not None and x is not False}
    return {name: torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if x is True else x for name, x in asked.items()}


class Program:
    """A compiled spec, callable on CUDA tensors.  .info: what attngen_program_info tells, as attributes."""

    def __init__(self, ctx, handle):
        self._ctx, self._handle, self._calls, self._spaces = ctx, handle, {}, {}
        self.info = _Info(version=1)
        _check(_lib.attngen_program_info(handle, byref(self.info)), ctx._handle)

    def __del__(self):
        for call in getattr(self, "_calls", {}).values():
            _lib.attngen_call_free(call[0])
        if getattr(self, "_handle", None):
            _lib.attngen_program_free(self._handle)

    def emit(self, what="cu", after=None):
        """One of spec, math, tile, schedule, cu, ptx (str), cubin (bytes)."""
        pieces = []
        sink = _Sink(lambda payload, data, n: pieces.append(ctypes.string_at(data, n)) or 0)
        _check(_lib.attngen_emit(self._ctx._handle, self._handle, ARTEFACTS[what], after.encode() if after else None, sink, None), self._ctx._handle)
        data = b"".join(pieces)
        return data if what == "cubin" else data.decode()

    def wait(self):
        """Of a Context with quick_start: waits until every launch, also one that is captured into a graph, runs the kernel that fits best.  A spec with branches has to
        be compiled with its `group`: else the first call of a shape compiles a program of its own, which this does not wait for."""
        _check(_lib.attngen_wait(self._ctx._handle, self._handle), self._ctx._handle)

    def _lookup(self, tensors, offset, scalars):
        """What _bind gives for these shapes and strides, made once."""
        key = (*[(name, x.shape, x.stride(), x.dtype, x.device) for name, x in tensors.items()], offset, *scalars.items())
        call = self._calls.get(key)
        if call is None:
            call = self._bind(tensors, offset, scalars)
            if len(self._calls) >= MAX_CALLS:
                _lib.attngen_call_free(self._calls.pop(next(iter(self._calls)))[0])
            self._calls[key] = call
        return call

    def prepare(self, q, k, v, o, lse=None, offset=None, max=None, mean_weight=None, **more):
        """Checks, binds and loads for tensors of this kind without a launch: the first call may then be captured into a CUDA graph.  Says how they are
        moved, '' if by TMA or 16-byte pieces: for what TMA cannot move, a kernel for the portable target is compiled here, or else by the first call."""
        inputs, scalars = _inputs_and_scalars(more)
        rows = {name: x for name, x in (("lse", lse), ("max", max), ("mean_weight", mean_weight)) if x is not None}
        tensors = {"q": q, "k": k, "v": v, "o": o, **rows, **inputs}
        handle, _, array, _, template, names = self._lookup(tensors, offset, scalars)
        text = ctypes.create_string_buffer(2048)
        status = _lib.attngen_explain(handle, array.from_buffer(self._fill(template, tensors, names)), array._length_, text, len(text))
        if status:
            raise Error(status, text.value.decode(errors="replace"))
        return text.value.decode(errors="replace")

    def workspace_bytes(self, q, k, v, offset=None, **more):
        """Bytes of workspace that a call with tensors of these shapes needs."""
        inputs, scalars = _inputs_and_scalars(more)
        return self._lookup({"q": q, "k": k, "v": v, **inputs}, offset, scalars)[1]

    def _space(self, size, stream, device):
        """A workspace of at least `size` bytes, all 0 when the stream gets there.  One per stream, since each launch leaves it fit for the next;
        under capture a fresh one, whose memset becomes part of the graph, since the graph may be replayed on another stream."""
        import torch

        if not isinstance(stream, torch.cuda.Stream):
            stream = torch.cuda.ExternalStream(stream, device=device)
        key = device.index, stream.cuda_stream
        with torch.cuda.stream(stream):  # allocated and cleared in the order of the launches
            if torch.cuda.is_current_stream_capturing():
                return torch.zeros(size, dtype=torch.uint8, device=device)
            space = self._spaces.get(key)
            if space is None or space.numel() < size:
                space = self._spaces[key] = torch.zeros(size, dtype=torch.uint8, device=device)
        return space

    def _takes(self, handle):
        """The tensors that a call takes, by name: its _ArgInfo."""
        takes, info = {}, _ArgInfo()
        while _lib.attngen_call_tensor(handle, len(takes), byref(info)):
            takes[info.name.decode()] = info
            info = _ArgInfo()
        return takes

    def _check_tensor(self, name, x, info):
        import torch

        want, extent = getattr(torch, TYPES[info.type.decode()]), list(info.extent[: info.rank])
        fits = x.dim() == len(extent) and all(e in (-1, n) for e, n in zip(extent, x.shape))  # -1: a part of the batch
        if x.dtype != want or not fits or not x.is_cuda:
            raise ValueError(f"{name} must be a CUDA tensor {extent} of {want}, not {list(x.shape)} of {x.dtype} on {x.device}")

    def _bind(self, tensors, offset, scalars):
        """Checks and binds what does not change from call to call: the call handle, its workspace, the arguments with null pointers, and the names of
        the tensors among them."""
        if tensors["q"].dim() != 4 or tensors["k"].dim() != 4:
            raise ValueError("q, k and v have 4 dimensions: [B, H, S, D]")
        (B, Hq, Sq, _), (_, Hkv, Sk, _) = tensors["q"].shape, tensors["k"].shape
        shape = _Shape(B, Hq, Hkv, Sq, Sk, ALIGN_END if offset is None else offset)
        handle = c_void_p()
        _check(_lib.attngen_bind(self._ctx._handle, byref(handle), self._handle, byref(shape)), self._ctx._handle)
        try:
            takes = self._takes(handle)
            names = [name for name in tensors if name in takes or name not in ("q", "k", "v")]  # a spec need not read k, say
            for name in names:
                if name not in takes:
                    raise ValueError(f"{self.info.name.decode()} takes no tensor {name}, but {', '.join(takes)}")
                self._check_tensor(name, tensors[name], takes[name])
        except ValueError:
            _lib.attngen_call_free(handle)
            raise
        args = [_tensor_arg(name, tensors[name].stride()) for name in names]
        args += [_scalar_arg(name, value) for name, value in scalars.items()]
        array = _Arg * len(args)
        args = array(*args)
        return handle, _lib.attngen_workspace(handle), array, args, bytes(args), names

    @staticmethod
    def _fill(template, tensors, names):
        """A copy of the arguments of _bind with the addresses of these tensors: threads may share a Program."""
        args, at = bytearray(template), _Arg.data.offset
        for name in names:
            struct.pack_into("@P", args, at, tensors[name].data_ptr())
            at += ctypes.sizeof(_Arg)
        return args

    def mask(self, q, k, v, offset=None, stream=None, workspace=None, **more):
        """A Mask: what the kernel before the attention finds out of the mask's tensors, made once for all calls with shapes like those of q, k and v, which are
        not read.  more: the captured tensors and parameters that the mask reads.  workspace: as in a call, and for the Mask alone."""
        return Mask(self, q, k, v, offset, stream, workspace, more)

    def __call__(self, q, k, v, o=None, lse=None, offset=None, stream=None, workspace=None, max=None, mean_weight=None, **more):
        """O [B, Hq, Sq, Dv], or (O, LSE [B, Hq, Sq] float32) if lse is True or a tensor; likewise, behind it, max and mean_weight of specs whose `rows` has
        them.  offset: position of query 0 minus that of key 0,
        by default Sk - Sq.  stream: a torch.cuda.Stream or a raw handle, by default the current one.  more: scale and the spec's parameters; its
        captured tensors, CUDA tensors of the types and dims that the spec says, any strides.
        workspace: workspace_bytes() bytes or more, a uint8 CUDA tensor that is all 0 before its first launch; every launch leaves it fit for
        the next, and no two may use it at once.  By default the Program keeps one for each stream."""
        import torch

        if o is None:
            o = torch.empty((*q.shape[:3], self.info.Dv), dtype=q.dtype, device=q.device)
        inputs, scalars = _inputs_and_scalars(more)
        tensors = {"q": q, "k": k, "v": v, "o": o, **inputs}
        rows = _rows(q, lse, max, mean_weight)
        tensors |= rows
        handle, size, array, _, template, names = self._lookup(tensors, offset, scalars)
        args = self._fill(template, tensors, names)
        if stream is None:
            stream = torch.cuda.current_stream(q.device)
        if workspace is None and size:
            workspace = self._space(size, stream, q.device)
        elif workspace is not None and (workspace.dtype != torch.uint8 or not workspace.is_cuda or not workspace.is_contiguous()):
            raise ValueError(f"workspace must be a contiguous CUDA tensor of torch.uint8, not of {workspace.dtype} on {workspace.device}")
        data, room = (None, 0) if workspace is None else (workspace.data_ptr(), workspace.numel())
        status = _lib.attngen_launch(handle, array.from_buffer(args), array._length_, data, room, getattr(stream, "cuda_stream", stream))
        if status:
            raise Error(status, _lib.attngen_launch_errmsg().decode(errors="replace"))
        return (o, *rows.values()) if rows else o


class Mask:
    """The map of key tiles of one mask, callable as its Program is, without the kernel that makes it; for launches behind its making, one at a time.  What it
    was made of may be left out of a call.  The tensors must not be changed in place while it is in use: nobody can check that."""

    def __init__(self, program, q, k, v, offset, stream, workspace, more):
        import torch

        self._program, self._mask, self._call, self._shapes = program, c_void_p(), None, (q.shape, k.shape, v.shape)
        self._inputs, self._scalars = _inputs_and_scalars(more)
        tensors = {"q": q, "k": k, "v": v, **self._inputs}
        self._call, size, array, _, template, names = program._bind(tensors, offset, self._scalars)
        stream = torch.cuda.current_stream(q.device) if stream is None else stream
        if workspace is None:
            with torch.cuda.stream(stream if isinstance(stream, torch.cuda.Stream) else torch.cuda.ExternalStream(stream, device=q.device)):
                workspace = torch.zeros(max(size, 1), dtype=torch.uint8, device=q.device)
        self._space = workspace
        args = array.from_buffer(program._fill(template, tensors, names))
        handle = getattr(stream, "cuda_stream", stream)
        status = _lib.attngen_mask_make(byref(self._mask), self._call, args, array._length_, workspace.data_ptr(), workspace.numel(), handle)
        if status:
            raise Error(status, _lib.attngen_launch_errmsg().decode(errors="replace"))

    def __del__(self):
        _lib.attngen_mask_free(getattr(self, "_mask", None))
        _lib.attngen_call_free(getattr(self, "_call", None))

    def __call__(self, q, k, v, o=None, lse=None, stream=None, max=None, mean_weight=None, **more):
        """As Program.__call__, at the offset and in the workspace that the mask was made with."""
        import torch

        if (q.shape, k.shape, v.shape) != self._shapes:
            raise ValueError(f"the mask was made for q, k and v of {self._shapes}, not {(q.shape, k.shape, v.shape)}")
        if o is None:
            o = torch.empty((*q.shape[:3], self._program.info.Dv), dtype=q.dtype, device=q.device)
        inputs, scalars = _inputs_and_scalars(more)
        rows = _rows(q, lse, max, mean_weight)
        tensors = {"q": q, "k": k, "v": v, "o": o, **rows, **self._inputs, **inputs}
        takes = self._program._takes(self._call)
        args = []
        for name, x in tensors.items():
            if name not in takes and name in ("q", "k", "v"):
                continue
            if name not in takes:
                raise ValueError(f"{self._program.info.name.decode()} takes no tensor {name}, but {', '.join(takes)}")
            self._program._check_tensor(name, x, takes[name])
            args.append(_tensor_arg(name, x.stride(), x.data_ptr()))
        args += [_scalar_arg(name, x) for name, x in {**self._scalars, **scalars}.items()]
        stream = torch.cuda.current_stream(q.device) if stream is None else stream
        status = _lib.attngen_mask_launch(self._mask, (_Arg * len(args))(*args), len(args), getattr(stream, "cuda_stream", stream))
        if status:
            raise Error(status, _lib.attngen_launch_errmsg().decode(errors="replace"))
        return (o, *rows.values()) if rows else o


def launch_notes():
    """How the last launch of this thread moved its tensors, as Program.prepare says it."""
    return _lib.attngen_launch_errmsg().decode(errors="replace")


_default = None


def compile(spec, schedule=None, **options):
    """As Context.compile, in a context for GPU 0 that is made by the first call."""
    global _default
    if _default is None:
        _default = Context()
    return _default.compile(spec, schedule, **options)
