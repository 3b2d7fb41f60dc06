"""DLPack's capsules, given and taken, by ctypes. The layouts are those of dlpack.h 1.0; before 1.0 they had no version.

What is given has a Python object, the owner, which the consumer keeps alive until it calls the deleter. That and the destructor of the
capsule are functions of the library in C: a consumer may call them without Python's lock, or while an exception is under way.
"""
from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object, sizeof
from typing import Any, Optional, Tuple

from . import _lib
from ._lib import InvalidError
from ._memory import BY_DL, CPU, CUDA, CUDA_HOST, CUDA_MANAGED, DTYPES, Memory, compact

NAME, USED = b"dltensor", b"used_dltensor"
VERSIONED, USED_VERSIONED = b"dltensor_versioned", b"used_dltensor_versioned"
READ_ONLY, COPIED, PADDED = 1, 2, 4  # flags


class DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8),
                ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Managed(ctypes.Structure):
    """DLManagedTensor."""
    _fields_ = [("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p), ("flags", c_uint64), ("tensor", DLTensor)]


def _of_python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule = _of_python("PyCapsule_New", py_object, c_void_p, c_char_p, c_void_p)
_valid = _of_python("PyCapsule_IsValid", c_int, py_object, c_char_p)
_pointer = _of_python("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
_rename = _of_python("PyCapsule_SetName", c_int, py_object, c_char_p)
_incref = _of_python("Py_IncRef", None, py_object)

for _name in (NAME, USED, VERSIONED, USED_VERSIONED):
    _incref(_name)  # a capsule only points to its name, and may outlive this module


class _Calls(ctypes.Structure):
    """penstock_python_calls."""
    _names = ("Py_IsInitialized", "PyGILState_Ensure", "PyGILState_Release", "Py_DecRef", "PyCapsule_IsValid", "PyCapsule_GetPointer")
    _fields_ = [(name, c_void_p) for name in _names]


class _Ends(ctypes.Structure):
    """penstock_python_ends."""
    _fields_ = [("deleter", c_void_p), ("deleter_versioned", c_void_p), ("destructor", c_void_p)]


_known: Optional[_Ends] = None


def _ends() -> _Ends:
    global _known
    if _known is None:
        calls, ends = _Calls(*(ctypes.cast(getattr(ctypes.pythonapi, n), c_void_p) for n in _Calls._names)), _Ends()
        if _lib.lib().penstock_python(byref(calls), byref(ends)) != 0:
            raise _lib.MissingError("the library takes no functions of this Python: DLPack is not available")
        _known = ends
    return _known


class _Given:
    """What a consumer has. The library drops the last reference to it, in a deleter or a destructor, and so the owner's."""
    __slots__ = ("managed", "dims", "owner", "__weakref__")

    def __init__(self, managed: Any, dims: Any, owner: Any):
        self.managed, self.dims, self.owner = managed, dims, owner


def give(m: Memory, device: Tuple[int, int], versioned: bool, copied: bool = False) -> Any:
    """A capsule of the memory, which has a dtype. It and its consumers keep m.keep alive."""
    assert m.dtype is not None
    if not versioned and not m.writable:
        raise BufferError("the memory is read-only, which a capsule without a version cannot say: ask with max_version=(1, 0), or copy the bytes")
    ends, d, n = _ends(), DTYPES[m.dtype], len(m.shape)
    dims = (c_int64 * (2 * n + 1))(*m.shape)
    step = 1
    for i in reversed(range(n)):
        dims[n + i] = step
        step *= max(m.shape[i], 1)
    at = ctypes.cast(dims, POINTER(c_int64))
    strides = ctypes.cast(ctypes.addressof(dims) + 8 * n, POINTER(c_int64))
    tensor = DLTensor(m.address, device[0], device[1], n, d.dl, d.bits, 1, at, strides, 0)
    managed: Any
    if versioned:
        flags = (0 if m.writable else READ_ONLY) | (COPIED if copied else 0)
        managed = ManagedVersioned(1, 0, None, ends.deleter_versioned, flags, tensor)
    else:
        managed = Managed(tensor, None, ends.deleter)
    given = _Given(managed, dims, m.keep)
    managed.context = id(given)
    capsule = _capsule(ctypes.addressof(managed), VERSIONED if versioned else NAME, ends.destructor)
    _incref(given)  # the reference that context is
    return capsule


_deleter = ctypes.PYFUNCTYPE(None, c_void_p)


class _Taken:
    """A tensor that a capsule had, which is given back with the last reference."""
    __slots__ = ("_at", "_deleter", "__weakref__")

    def __init__(self, at: int, deleter: Optional[int]):
        self._at, self._deleter = at, deleter

    def __del__(self, function: Any = _deleter) -> None:  # as an argument it is there when Python ends
        deleter, self._deleter = self._deleter, None
        if deleter:
            function(deleter)(self._at)


def _capsule_of(x: Any, device: int) -> Any:
    stream = {"stream": 1} if device in (CUDA, CUDA_MANAGED) else {}
    try:
        return x.__dlpack__(max_version=(1, 0), copy=False, **stream)
    except TypeError:  # of before 1.0
        return x.__dlpack__(**stream)


def take(x: Any) -> Memory:
    """The memory of an object with __dlpack__. Its deleter is called when the last reference to keep goes."""
    device = int(x.__dlpack_device__()[0])
    if device not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise InvalidError(f"the tensor is on a device of DLPack's type {device}: expected memory of the host or of a CUDA device")
    c = _capsule_of(x, device)
    managed: Any
    if _valid(c, VERSIONED):
        at, used = _pointer(c, VERSIONED), USED_VERSIONED
        managed = ManagedVersioned.from_address(at)
    elif _valid(c, NAME):
        at, used = _pointer(c, NAME), USED
        managed = Managed.from_address(at)
    else:
        raise InvalidError(f"__dlpack__ of {type(x).__name__} returned {c!r}: expected a capsule dltensor or dltensor_versioned that nobody has used")
    _rename(c, used)
    keep = _Taken(at, managed.deleter)
    writable, padded = True, False
    if used is USED_VERSIONED:
        if managed.major != 1:
            raise InvalidError(f"the capsule is of version {managed.major}.{managed.minor} of DLPack: expected 1")
        writable, padded = not managed.flags & (READ_ONLY | COPIED), bool(managed.flags & PADDED)
    t = managed.tensor
    shape = tuple(t.shape[:t.ndim]) if t.ndim else ()
    if t.strides and not compact(shape, t.strides[:t.ndim], 1):
        raise InvalidError("the tensor is not contiguous: make a contiguous copy first")
    bits = 8 if padded else t.bits * t.lanes
    if device in (CUDA, CUDA_MANAGED):
        _lib.cuda_wait(1)  # for which the producer's work is ordered
    name = BY_DL.get((t.code, t.bits)) if t.lanes == 1 and not padded else None
    return Memory((t.data or 0) + t.byte_offset, (math.prod(shape) * bits + 7) // 8, keep, writable, name, shape, device in (CUDA, CUDA_MANAGED))


assert (sizeof(DLTensor), sizeof(Managed), sizeof(ManagedVersioned)) == (48, 64, 80)  # as the library has them
