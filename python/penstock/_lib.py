"""The library libpenstock.so, by ctypes: types, prototypes, errors, fork."""
from __future__ import annotations

import ctypes
import os
import threading
import time
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Iterator, Optional

ABI = 1

PUT, GET = 1, 2


class Error(Exception):
    """An error of Penstock. retriable says whether the same call may succeed later."""

    def __init__(self, text: str, retriable: bool = False):
        super().__init__(text)
        self.retriable = retriable


class InvalidError(Error, ValueError):
    """An argument or a configuration is wrong, or what is used was closed."""


class TimeoutError(Error, TimeoutError):
    """The time is over, and what was waited for goes on."""


class CanceledError(Error):
    """The transfer was canceled."""


class ClosedError(Error):
    """This side closed it."""


class PeerLostError(Error, ConnectionError):
    """The peer is gone."""


class NotFoundError(Error, LookupError):
    """The peer exports no such name."""


class RightsError(Error, PermissionError):
    """The peer does not permit it."""


class RevokedError(Error):
    """The peer took the export back."""


class BoundsError(Error, IndexError):
    """Beyond an export or a region."""


class UnreachableError(Error, ConnectionError):
    """No path reaches the memory or the peer."""


class IntegrityError(Error):
    """The bytes are not those that were sent."""


class FullError(Error):
    """There is no room now."""


class MissingError(Error):
    """The machine or this build does not have it."""


_kinds = {-2: InvalidError, -3: TimeoutError, -4: CanceledError, -5: ClosedError, -6: PeerLostError, -7: NotFoundError, -8: RightsError,
          -9: RevokedError, -10: BoundsError, -11: UnreachableError, -12: IntegrityError, -13: FullError, -14: MissingError}


class CError(ctypes.Structure):
    _fields_ = [("code", c_int32), ("retriable", c_int32), ("text", ctypes.c_char * 1016)]

    def error(self) -> Error:
        return _kinds.get(self.code, Error)(self.text.decode("utf-8", "replace"), bool(self.retriable))


class CBlock(ctypes.Structure):
    _fields_ = [("region", c_uint64), ("offset", c_uint64), ("length", c_uint64), ("remote", c_uint64), ("remote_offset", c_uint64)]


class COptions(ctypes.Structure):
    _fields_ = [("message", c_char_p), ("message_size", c_uint32), ("tag", c_uint32), ("paths", c_char_p), ("digest", c_uint32), ("reserved", c_uint32)]


class CMessage(ctypes.Structure):
    _fields_ = [("tag", c_uint32), ("size", c_uint32), ("bytes", c_uint64), ("peer", ctypes.c_char * 256)]


class CTensor(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_char * 16), ("rank", c_uint32), ("reserved", c_uint32), ("shape", c_int64 * 32)]


class CEntry(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("size", c_uint64), ("rights", c_uint32), ("described", c_uint32), ("what", CTensor)]


class CSegment(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_uint32), ("packet", c_uint32), ("flow", c_uint32), ("timed", c_uint32), ("time", c_int64)]


_prototypes = {
    "penstock_open": (c_uint64, [c_char_p]),
    "penstock_close": (c_int32, [c_uint64]),
    "penstock_log": (c_int64, [c_char_p, c_size_t, c_int64]),
    "penstock_addresses": (c_int64, [c_uint64, c_char_p, c_size_t]),
    "penstock_status": (c_int64, [c_uint64, c_char_p, c_size_t]),
    "penstock_alloc": (c_uint64, [c_char_p, c_uint64, c_uint32]),
    "penstock_adopt": (c_uint64, [c_char_p, c_void_p, c_uint64]),
    "penstock_memory": (c_void_p, [c_uint64, POINTER(c_uint64)]),
    "penstock_dma": (c_int32, [c_uint64, c_char_p, c_size_t]),
    "penstock_export": (c_uint64, [c_uint64, c_uint64, c_uint64, c_uint64, c_char_p, c_uint32, c_uint32]),
    "penstock_publish": (c_uint64, [c_uint64, c_uint64, c_uint64, POINTER(CTensor), c_char_p, c_uint32, c_uint32]),
    "penstock_describe": (c_int32, [c_uint64, POINTER(CTensor)]),
    "penstock_serve": (c_uint64, [c_uint64, c_char_p, c_uint32]),
    "penstock_dial": (c_uint64, [c_uint64, c_char_p, c_int64]),
    "penstock_lookup": (c_uint64, [c_uint64, c_char_p, c_int64, POINTER(c_uint64), POINTER(c_uint32)]),
    "penstock_list": (c_uint64, [c_uint64, c_char_p, c_int64]),
    "penstock_entries": (c_int64, [c_uint64, POINTER(CEntry), c_size_t]),
    "penstock_post": (c_uint64, [c_uint64, c_int32, c_void_p, c_size_t, POINTER(COptions)]),
    "penstock_post_memory": (c_uint64, [c_uint64, c_int32, c_void_p, c_uint64, c_uint64, c_uint64, POINTER(COptions)]),
    "penstock_notify": (c_uint64, [c_uint64, POINTER(COptions)]),
    "penstock_prepare": (c_uint64, [c_uint64, c_int32, c_void_p, c_size_t, POINTER(COptions)]),
    "penstock_repost": (c_uint64, [c_uint64]),
    "penstock_wait": (c_int32, [c_uint64, c_int64]),
    "penstock_cancel": (c_int32, [c_uint64]),
    "penstock_explain": (c_int64, [c_uint64, c_char_p, c_size_t]),
    "penstock_event_fd": (c_int32, [c_uint64]),
    "penstock_watch": (c_int32, [c_uint64]),
    "penstock_ended": (c_int64, [c_uint64, POINTER(c_uint64), c_size_t]),
    "penstock_subscribe": (c_int32, [c_uint64, c_uint32]),
    "penstock_receive": (c_int32, [c_uint64, POINTER(CMessage), c_void_p, c_size_t, c_int64]),
    "penstock_rx": (c_uint64, [c_uint64, c_char_p, c_int32]),
    "penstock_burst": (c_int64, [c_uint64, POINTER(CSegment), c_size_t, c_int64]),
    "penstock_release": (c_int32, [c_uint64]),
    "penstock_send": (c_int64, [c_uint64, c_char_p, c_int32, POINTER(CSegment), c_size_t]),
}

_thread = threading.local()
_library: Any = None
_owner = 0  # the process that loaded it


def _load() -> Any:
    """Loads the library at the first use: import stays fast, and a program that forks first is fine."""
    global _library, _owner
    here = os.path.dirname(os.path.abspath(__file__))
    name = os.environ.get("PENSTOCK_LIBRARY") or os.path.join(here, "libpenstock.so")
    try:
        lib = ctypes.CDLL(name)
    except OSError as e:
        raise MissingError(f"{name} cannot be loaded: {e}; set PENSTOCK_LIBRARY to the library that make capi builds") from e
    lib.penstock_abi.restype = c_uint32
    if lib.penstock_abi() != ABI:
        raise MissingError(f"{name} has ABI {lib.penstock_abi()}, this package needs {ABI}")
    for f, (result, arguments) in _prototypes.items():
        getattr(lib, f).restype = result
        getattr(lib, f).argtypes = arguments + [POINTER(CError)]
    lib.penstock_python.restype, lib.penstock_python.argtypes = c_int32, [c_void_p, c_void_p]
    lib.penstock_progress.restype, lib.penstock_progress.argtypes = c_double, [c_uint64]
    _library, _owner = lib, os.getpid()
    return lib


def lib() -> Any:
    if _library is None:
        return _load()
    return _library


def _forked() -> None:
    """In the child of a fork: the threads of the library's runtime are not there, so no call would return."""
    global _library
    if _library is not None:
        _library = _Forked()


class _Forked:
    def __getattr__(self, name: str) -> Any:
        raise Error(f"penstock was loaded by process {_owner}, and this one is a fork of it, which lacks the library's threads: "
                    "start processes by spawn or forkserver, or use penstock in the child first")


os.register_at_fork(after_in_child=_forked)


def call(name: str, *args: Any) -> int:
    """Calls a function whose negative or zero result, by its kind, is an error."""
    try:
        e, at = _thread.error
    except AttributeError:
        e = CError()
        at = byref(e)
        _thread.error = e, at  # used again: it is large
    r = getattr(_library or lib(), name)(*args, at)
    if e.code:
        x = e.error()
        e.code = 0
        raise x
    return r


def text(name: str, *args: Any) -> str:
    n = 4096
    while True:
        b = ctypes.create_string_buffer(n)
        k = call(name, *args, b, n)
        if k < n:
            return b.value.decode("utf-8", "replace")
        n = k + 1


def cuda() -> Any:
    """CUDA's driver, or None."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def cuda_wait(stream: int) -> None:
    """Waits for a stream, as the CUDA array interface names it."""
    d = cuda()
    r = -1 if d is None else d.cuStreamSynchronize(c_void_p(stream))
    if r != 0:
        raise MissingError(f"CUDA's stream {stream:#x} cannot be waited for: result {r} of cuStreamSynchronize")


def cuda_ordinal(address: int) -> int:
    """The number of the CUDA device whose memory is at the address."""
    d, n = cuda(), ctypes.c_int()
    r = -1 if d is None else d.cuPointerGetAttribute(byref(n), 9, c_uint64(address))
    if r != 0:
        raise MissingError(f"CUDA does not say of which device the memory at {address:#x} is: result {r} of cuPointerGetAttribute")
    return n.value


def milliseconds(timeout: Optional[float]) -> int:
    if timeout is None:
        return -1
    if timeout < 0:
        raise InvalidError(f"timeout is {timeout}: expected seconds, 0 or more, or None")
    return min(int(timeout * 1000 + 0.999), 1 << 40)


def slices(timeout: Optional[float]) -> Iterator[int]:
    """Times in milliseconds to wait one after the other: between them Python handles signals, such as that of Ctrl-C."""
    ms = milliseconds(timeout)
    end = None if ms < 0 else time.monotonic() + ms / 1000
    while True:
        left = 200 if end is None else max(int((end - time.monotonic()) * 1000 + 0.999), 0)
        yield min(left, 200)
        if left <= 200 and end is not None:
            return
