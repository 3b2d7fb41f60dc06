"""What memory an argument is: its address, its size, and, as far as it says so, the type and shape of its elements."""
from __future__ import annotations

import ctypes
import math
from ctypes import c_char_p, c_int, c_ssize_t, c_void_p, py_object
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from . import _lib
from ._lib import InvalidError


class DType(NamedTuple):
    """A type of elements, whose name is that of numpy and torch."""
    code: str             # of the library
    bits: int             # of an element
    dl: int               # DLPack's type code
    numpy: Optional[str]  # the type string of numpy, if it has the type
    safetensors: Optional[str]


DTYPES: Dict[str, DType] = {
    "bool": DType("bool", 8, 6, "|b1", "BOOL"),
    "int8": DType("i8", 8, 0, "|i1", "I8"),
    "uint8": DType("u8", 8, 1, "|u1", "U8"),
    "int16": DType("i16", 16, 0, "<i2", "I16"),
    "uint16": DType("u16", 16, 1, "<u2", "U16"),
    "int32": DType("i32", 32, 0, "<i4", "I32"),
    "uint32": DType("u32", 32, 1, "<u4", "U32"),
    "int64": DType("i64", 64, 0, "<i8", "I64"),
    "uint64": DType("u64", 64, 1, "<u8", "U64"),
    "float16": DType("f16", 16, 2, "<f2", "F16"),
    "bfloat16": DType("bf16", 16, 4, None, "BF16"),
    "float32": DType("f32", 32, 2, "<f4", "F32"),
    "float64": DType("f64", 64, 2, "<f8", "F64"),
    "complex64": DType("c64", 64, 5, "<c8", "C64"),
    "complex128": DType("c128", 128, 5, "<c16", None),
    "float8_e4m3fn": DType("f8e4m3", 8, 10, None, "F8_E4M3"),
    "float8_e5m2": DType("f8e5m2", 8, 12, None, "F8_E5M2"),
    "int4": DType("i4", 4, 0, None, None),
    "uint4": DType("u4", 4, 1, None, None),
    "float4_e2m1fn": DType("f4e2m1", 4, 17, None, "F4"),
}
BY_CODE = {d.code: name for name, d in DTYPES.items()}
OTHER_NAMES = {**BY_CODE, "half": "float16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "double": "float64"}
BY_DL = {(d.dl, d.bits): name for name, d in DTYPES.items()}
BY_NUMPY = {d.numpy: name for name, d in DTYPES.items() if d.numpy}
BY_SAFETENSORS = {d.safetensors: name for name, d in DTYPES.items() if d.safetensors}

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLPack's devices that are taken


class Memory(NamedTuple):
    """Contiguous memory of the host or of a CUDA device."""
    address: int
    size: int            # bytes
    keep: Any            # keeps it alive
    writable: bool
    dtype: Optional[str] = None  # a key of DTYPES; None: not said, or none of them
    shape: Tuple[int, ...] = ()  # with dtype
    device: bool = False         # whether it is known to be of a device


def compact(shape: Sequence[int], strides: Optional[Sequence[int]], step: int) -> bool:
    """Whether elements lie one after the other in row-major order; step is the stride of the last dimension then."""
    if strides is None or 0 in shape:
        return True
    for n, s in zip(reversed(shape), reversed(strides)):
        if n != 1 and s != step:
            return False
        step *= n
    return True


_SWAPPED = ("the {} is big-endian, and exports, transfers and tensors are little-endian: convert it with x.astype(x.dtype.newbyteorder('<')), or pass "
            "x.view('u1') to move its bytes as they are")


def _swapped(fields: Any) -> bool:
    """Whether a field of a structured type, as the array interface describes it, is big-endian."""
    return any(_swapped(f[1]) if isinstance(f[1], list) else f[1][0] == ">" for f in fields)


def _torch(x: Any) -> Memory:
    # Not by DLPack, in which torch gives no tensor that needs a gradient and, before 2.1, none of bool.
    if x.device.type not in ("cpu", "cuda"):
        raise InvalidError(f"the tensor is on {x.device}: expected memory of the host or of a CUDA device")
    if not x.is_contiguous():
        raise InvalidError("the tensor is not contiguous: call contiguous() first")
    if x.is_conj() or x.is_neg():
        raise InvalidError("the tensor is a conjugate or negative view: call resolve_conj() or resolve_neg() first")
    if x.device.type == "cuda":
        import torch
        torch.cuda.current_stream(x.device).synchronize()
    name = str(x.dtype).rsplit(".", 1)[-1]
    return Memory(x.data_ptr(), x.numel() * x.element_size(), x, True, name if name in DTYPES else None, tuple(x.shape), x.device.type == "cuda")


def _interface(x: Any, i: Dict[str, Any], device: bool) -> Memory:
    """The array interface, of numpy or of CUDA."""
    shape, kind = tuple(i["shape"]), i["typestr"]
    if kind[0] == ">" or kind[1] == "V" and _swapped(i.get("descr", ())):
        raise InvalidError(_SWAPPED.format("array"))
    size = int(kind[2:].split("[")[0]) * (4 if kind[1] == "U" else 1)  # of text they are characters, of dates there is more: <M8[ns]
    if not compact(shape, i.get("strides"), size):
        raise InvalidError("the array is not C-contiguous: " + ("copy it first" if device else "call numpy.ascontiguousarray first"))
    if device and i.get("stream") is not None:
        _lib.cuda_wait(i["stream"])
    address, readonly = i["data"]
    return Memory(address or 0, math.prod(shape) * size, x, not readonly, BY_NUMPY.get(kind), shape, device)


class _Buffer(ctypes.Structure):
    """Py_buffer, for the address of memory that may not be written: ctypes gives none."""
    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int), ("ndim", c_int),
                ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p), ("suboffsets", c_void_p), ("internal", c_void_p)]


_get_buffer = ctypes.PYFUNCTYPE(c_int, py_object, ctypes.POINTER(_Buffer), c_int)(("PyObject_GetBuffer", ctypes.pythonapi))
_release_buffer = ctypes.PYFUNCTYPE(None, ctypes.POINTER(_Buffer))(("PyBuffer_Release", ctypes.pythonapi))


def _buffer(x: Any) -> Memory:
    v = memoryview(x)
    if not v.c_contiguous:
        raise InvalidError("the buffer is not C-contiguous: copy it first")
    if v.itemsize > 1 and (">" in v.format or "!" in v.format):
        raise InvalidError(_SWAPPED.format("buffer"))
    b = _Buffer()
    _get_buffer(v, ctypes.byref(b), 0)  # v keeps it where it is
    address = b.buf or 0
    _release_buffer(ctypes.byref(b))
    kind = {"b": "i", "h": "i", "i": "i", "l": "i", "q": "i", "H": "u", "I": "u", "L": "u", "Q": "u", "e": "f", "f": "f", "d": "f", "?": "b"}.get(v.format)
    return Memory(address, v.nbytes, v, not v.readonly, BY_NUMPY.get(f"{'|' if v.itemsize == 1 else '<'}{kind}{v.itemsize}"), tuple(v.shape or ()))


def memory_of(x: Any) -> Memory:
    """The memory of anything that has contiguous memory of the host or of a CUDA device, whose stream is waited for."""
    if type(x).__module__ == "numpy":  # the others are asked for what numpy's do not have, which takes long
        return _interface(x, x.__array_interface__, False)
    if hasattr(x, "__torch_function__") or type(x).__module__.startswith("torch"):
        return _torch(x)
    own = getattr(x, "_penstock_memory", None)  # a Region
    if own is not None:
        return own()
    i = getattr(x, "__cuda_array_interface__", None)
    if i is not None:
        return _interface(x, i, True)
    i = getattr(x, "__array_interface__", None)
    if i is not None:
        return _interface(x, i, False)
    if hasattr(x, "__dlpack__"):
        from . import _dlpack
        return _dlpack.take(x)
    return _buffer(x)
