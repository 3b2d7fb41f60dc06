"""The library libpenstock.so, or libpenstock-agent.so, by ctypes: types, prototypes, errors, which of both, fork."""
from __future__ import annotations

import ctypes
import os
import struct
import sys
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


class CBatch(ctypes.Structure):
    _fields_ = [("id", c_int64), ("packets", c_uint32), ("per_batch", c_uint32), ("timed_out", c_uint32), ("words", c_uint32), ("first", c_int64),
                ("last", c_int64), ("what", CTensor)]


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
    "penstock_tag": (c_int32, [c_uint64, c_char_p]),
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
    "penstock_batch_of": (c_int32, [c_uint64, c_uint32, POINTER(CBatch), POINTER(c_uint64), c_size_t]),
    "penstock_send": (c_int64, [c_uint64, c_char_p, c_int32, POINTER(CSegment), c_size_t]),
}

_thread = threading.local()
_library: Any = None
_owner = 0  # the process that loaded it
_agent = False  # whether it is libpenstock-agent.so
_lost = False  # whether this process is a fork of one that had loaded libpenstock.so


def use_agent(socket: Optional[str] = None) -> None:
    """Has a process beside do the work: penstock agent, which is started for this program, or which listens at a socket.

    It is for programs that fork, or that have another Go runtime. It is asked for before anything else of penstock is used; setting the environment variable
    PENSTOCK_AGENT to 1, or to the path of the socket, does the same.
    """
    if _library is not None and not _agent:
        raise InvalidError("this process uses penstock already, without an agent: call use_agent before anything else")
    os.environ["PENSTOCK_AGENT"] = "1" if socket is None else os.path.abspath(socket)


def why_agent() -> Optional[str]:
    """Why the library is, or would be, the agent's; None: it is the one that works in this process."""
    wanted = os.environ.get("PENSTOCK_AGENT", "")
    if wanted == "0":
        return None
    if wanted:
        return "PENSTOCK_AGENT asks for it"
    if _lost:
        return f"process {_owner} had loaded the other library, and this one is a fork of it"
    other = _other_go()
    return f"{other} has a Go runtime, and a process has one" if other else None


def _other_go() -> Optional[str]:
    """A loaded file with a Go runtime of its own, if there is one: the linker of Go gives each a section with what it was built of."""
    with open("/proc/self/maps") as f:
        names = {l[l.index("/"):].rstrip("\n") for l in f if " r-x" in l and "/" in l}
    for name in sorted(names):
        if os.path.basename(name).startswith("libpenstock"):
            continue
        try:
            with open(name, "rb") as f:
                header = f.read(64)
                if header[:5] != b"\x7fELF\x02":
                    continue
                at, (size, count, names_at) = int.from_bytes(header[40:48], "little"), struct.unpack("<HHH", header[58:64])
                f.seek(at + names_at * size)
                section = f.read(size)
                if len(section) < 40 or names_at >= count:
                    continue
                f.seek(int.from_bytes(section[24:32], "little"))
                if b".go.buildinfo\0" in f.read(min(int.from_bytes(section[32:40], "little"), 1 << 20)):
                    return name
        except OSError:  # it was deleted, say
            pass
    return None


def _load() -> Any:
    """Loads a library at the first use: import stays fast, and a program that forks first is fine."""
    global _library, _owner, _agent
    here = os.path.dirname(os.path.abspath(__file__))
    name = os.environ.get("PENSTOCK_LIBRARY") or os.path.join(here, "libpenstock.so")
    why = why_agent()
    if why is not None:
        name = os.path.join(os.path.dirname(name), "libpenstock-agent.so")
        why = f" ({why})"
        beside = os.path.join(os.path.dirname(sys.executable or ""), "penstock")  # where the wheel has put it
        if not os.environ.get("PENSTOCK_COMMAND") and not os.path.exists(os.path.join(os.path.dirname(name), "penstock")) and os.access(beside, os.X_OK):
            os.environ["PENSTOCK_COMMAND"] = beside
    try:
        lib = ctypes.CDLL(name)
    except OSError as e:
        raise MissingError(f"{name} cannot be loaded{why or ''}: {e}; set PENSTOCK_LIBRARY to the library that make capi builds") from e
    lib.penstock_abi.restype = c_uint32
    if lib.penstock_abi() != ABI:
        raise MissingError(f"{name} has ABI {lib.penstock_abi()}, this package needs {ABI}")
    for f, (result, arguments) in _prototypes.items():
        getattr(lib, f).restype = result
        getattr(lib, f).argtypes = arguments + [POINTER(CError)]
    lib.penstock_python.restype, lib.penstock_python.argtypes = c_int32, [c_void_p, c_void_p]
    lib.penstock_progress.restype, lib.penstock_progress.argtypes = c_double, [c_uint64]
    _library, _owner, _agent = lib, os.getpid(), why is not None
    return lib


def lib() -> Any:
    if _library is None:
        return _load()
    return _library


def _forked() -> None:
    """In the child of a fork: the threads of a Go runtime are not there, so no call would return. The agent's library knows that it was forked."""
    global _library, _lost
    if _library is None or _agent:
        return
    _lost = True
    _library = _Forked() if os.environ.get("PENSTOCK_AGENT") == "0" else None


class _Forked:
    def __getattr__(self, name: str) -> Any:
        raise Error(f"penstock was loaded by process {_owner}, and this one is a fork of it, which lacks the library's threads, and PENSTOCK_AGENT=0 rules the "
                    "agent out: start processes by spawn or forkserver, or use penstock in the child first")


os.register_at_fork(after_in_child=_forked)


def call(name: str, *args: Any) -> int:
    """Calls a function whose negative or zero result, by its kind, is an error."""
    mine = _thread.__dict__
    try:
        e, at = mine.pop("error")  # taken, because a finalizer or a signal handler may call before the error is read
    except KeyError:
        e = CError()
        at = byref(e)
    r = getattr(_library or lib(), name)(*args, at)
    if e.code:
        raise e.error()
    mine["error"] = e, at  # used again: it is large
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
