"""Systems, memory and transfers."""
from __future__ import annotations

import ctypes
import json
import math
import threading
import weakref
from ctypes import byref, c_uint32, c_uint64
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Union

from . import _lib
from ._lib import GET, PUT, CBlock, CMessage, COptions, InvalidError, call, milliseconds, slices, text

READ, WRITE = 1, 2


class _Handle:
    """What has a handle. It closes once: by close, at the end of a with, or with the last reference."""

    def __init__(self, handle: int, parent: Any = None):
        self._h = handle
        self._parent = parent  # is not collected before this
        self._open = True

    def close(self) -> None:
        """Closes it. A second close does nothing."""
        if self._open:
            self._open = False
            try:
                call("penstock_close", self._h)
            except InvalidError:  # such as adopted memory that an export needs: it stays open
                self._open = True
                raise

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # its system was closed before, or Python ends
            pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._h}{'' if self._open else ' closed'}>"


class Region(_Handle):
    """Memory with an address that transfers read and write. It has the buffer interface through memory and array."""

    def __init__(self, handle: int, keep: Any = None):
        super().__init__(handle)
        size = c_uint64()
        self.address: Optional[int] = call("penstock_memory", handle, byref(size))  # None: it is on a device
        self.size: int = size.value
        self._keep = keep

    @property
    def memory(self) -> memoryview:
        """The bytes, without a copy. A view keeps the region open, unless close is called."""
        b = (ctypes.c_char * self.size).from_address(self._host())
        b._region = self
        return memoryview(b).cast("B")

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        return {"version": 3, "shape": (self.size,), "typestr": "|u1", "data": (self._host(), False)}

    def _host(self) -> int:
        if self.address is None:
            raise InvalidError("the memory is on a device: use the tensor or the array that was adopted")
        return self.address

    def array(self, dtype: Any = "u1", shape: Any = None, offset: int = 0) -> Any:
        """A numpy array of the bytes from offset on, without a copy."""
        import numpy
        dtype = numpy.dtype(dtype)
        if shape is None:
            shape = ((self.size - offset) // dtype.itemsize,)
        return numpy.frombuffer(self.memory, dtype, int(numpy.prod(shape)), offset).reshape(shape)

    def tensor(self, dtype: Any = None, shape: Any = None, offset: int = 0) -> Any:
        """A torch tensor of the bytes from offset on, without a copy."""
        import torch
        dtype = dtype or torch.uint8
        count = -1 if shape is None else int(torch.Size(shape).numel())
        t = torch.frombuffer(self.memory, dtype=dtype, count=count, offset=offset)
        return t if shape is None else t.reshape(shape)


def alloc(size: int, name: str = "", huge: bool = False) -> Region:
    """Allocates memory that peers on this host can map. size is in bytes and is rounded up to pages."""
    return Region(call("penstock_alloc", name.encode(), size, 1 if huge else 0))


def _bytes_of(x: Any) -> "tuple[int, int, Any, bool]":
    """Address, size, what keeps it alive and whether it is writable, of anything with contiguous memory of the host or of a CUDA device, whose stream is waited for."""
    if hasattr(x, "__torch_function__") or type(x).__module__.startswith("torch"):
        if x.device.type not in ("cpu", "cuda"):
            raise InvalidError(f"the tensor is on {x.device}: expected memory of the host or of a CUDA device")
        if not x.is_contiguous():
            raise InvalidError("the tensor is not contiguous: call contiguous() first")
        if x.device.type == "cuda":
            import torch
            torch.cuda.current_stream(x.device).synchronize()
        return x.data_ptr(), x.numel() * x.element_size(), x, True
    if hasattr(x, "__cuda_array_interface__"):
        i = x.__cuda_array_interface__
        if i.get("strides") is not None:
            raise InvalidError("the array is not C-contiguous: copy it first")
        if i.get("stream") is not None:
            _lib.cuda_wait(i["stream"])
        return i["data"][0], math.prod(i["shape"]) * int(i["typestr"][2:]), x, not i["data"][1]
    if hasattr(x, "__array_interface__") and not isinstance(x, Region):
        i = x.__array_interface__
        if i.get("strides") is not None and not x.flags["C_CONTIGUOUS"]:
            raise InvalidError("the array is not C-contiguous: call numpy.ascontiguousarray first")
        return i["data"][0], x.nbytes, x, not i["data"][1]
    v = memoryview(x)
    if not v.c_contiguous:
        raise InvalidError("the buffer is not C-contiguous")
    if v.readonly:
        import numpy  # ctypes gives no address of memory that it may not write
        return numpy.frombuffer(v, "u1").__array_interface__["data"][0], v.nbytes, v, False
    return ctypes.addressof(ctypes.c_char.from_buffer(v)), v.nbytes, v, True


def adopt(x: Any, name: str = "") -> Region:
    """Makes a region of the memory of an array, a tensor or a buffer, which the region keeps alive. Peers reach it over sockets.

    It may be memory of a CUDA device. What the current stream does with it is waited for here, as in put and get; what is begun later is not.
    """
    address, size, keep, _ = _bytes_of(x)
    return Region(call("penstock_adopt", name.encode(), address, size), keep)


class Export(_Handle):
    """Memory that peers can name. close revokes it: afterwards no peer writes to it."""


class Remote(_Handle):
    """Memory that a peer exports: its size in bytes and its rights."""

    def __init__(self, handle: int, peer: "Peer", name: str, size: int, rights: int):
        super().__init__(handle, peer)
        self.peer, self.name, self.size, self.rights = peer, name, size, rights


class Message(NamedTuple):
    """A message of a peer, alone or with a transfer that has arrived; bytes is what that moved."""
    peer: str
    tag: int
    data: bytes
    bytes: int  # type: ignore[valid-type]


class Transfer(_Handle):
    """A put or get under way. wait blocks; await does not. It fails with the exception of its kind."""

    def __init__(self, handle: int, system: "System", keep: Any):
        super().__init__(handle, system)
        self._keep = keep  # memory and regions

    def wait(self, timeout: Optional[float] = None) -> "Transfer":
        """Waits until all bytes are in place and verified; timeout is in seconds."""
        if timeout is None or timeout > 0.2:
            try:
                call("penstock_wait", self._h, 200)
                return self
            except _lib.TimeoutError:
                timeout = timeout and timeout - 0.2
        for ms in slices(timeout):
            try:
                call("penstock_wait", self._h, ms)
                return self
            except _lib.TimeoutError as e:
                late = e
        raise late

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        try:
            call("penstock_wait", self._h, 0)
        except _lib.TimeoutError:
            return False
        except _lib.Error:
            pass
        return True

    def progress(self) -> float:
        """The share of the bytes that are in place, 0 to 1."""
        return _lib.lib().penstock_progress(self._h)

    def cancel(self) -> bool:
        """Ends it early; False: it has ended before."""
        return call("penstock_cancel", self._h) == 1

    def explain(self) -> str:
        """Which path it took, why, how long that took, and how often its bytes were copied."""
        return text("penstock_explain", self._h)

    def __await__(self) -> Any:
        return self._parent._ended(self).__await__()


class Prepared(_Handle):
    """A list of blocks that was checked once. Each post is a transfer of all of it; the one before has ended by then."""

    def __init__(self, handle: int, system: "System", keep: Any):
        super().__init__(handle, system)
        self._keep = keep

    def post(self) -> Transfer:
        return Transfer(call("penstock_repost", self._h), self._parent, self._keep)


def _options(message: Optional[bytes], tag: int, paths: Optional[Sequence[str]], digest: bool) -> COptions:
    return COptions(message, len(message or b""), tag, ",".join(paths).encode() if paths else None, int(digest), 0)


class Peer(_Handle):
    """Another node, as one session with it."""

    def __init__(self, handle: int, system: "System"):
        super().__init__(handle, system)

    def lookup(self, name: str, timeout: Optional[float] = 30) -> Remote:
        """Finds an export by its name."""
        size, rights = c_uint64(), c_uint32()
        h = call("penstock_lookup", self._h, name.encode(), milliseconds(timeout), byref(size), byref(rights))
        return Remote(h, self, name, size.value, rights.value)

    def put(self, x: Any, to: Union[str, Remote], offset: int = 0, *, message: Optional[bytes] = None, tag: int = 0,
            paths: Optional[Sequence[str]] = None, digest: bool = False) -> Transfer:
        """Puts the bytes of x into an export of the peer, from offset on. x is a Region, an array, a tensor or a buffer; it stays as it is until the end."""
        return self._move(PUT, x, to, offset, _options(message, tag, paths, digest))

    def get(self, source: Union[str, Remote], into: Any = None, offset: int = 0, *, paths: Optional[Sequence[str]] = None,
            digest: bool = False) -> Any:
        """Gets bytes of an export. With into, memory that takes them, it returns the transfer; without, it waits and returns a Region of them."""
        if into is not None:
            return self._move(GET, into, source, offset, _options(None, 0, paths, digest))
        remote = source if isinstance(source, Remote) else self.lookup(source)
        r = alloc(remote.size - offset, remote.name)
        self._move(GET, r, remote, offset, _options(None, 0, paths, digest), remote.size - offset).wait()
        return r

    def _move(self, kind: int, x: Any, where: Union[str, Remote], offset: int, o: COptions, size: Optional[int] = None) -> Transfer:
        remote = where if isinstance(where, Remote) else self.lookup(where)
        if isinstance(x, Region):
            r = x
        else:
            if kind == GET and not _bytes_of(x)[3]:
                raise InvalidError("the memory that is to take the bytes is read-only")
            r = adopt(x)
        b = CBlock(r._h, 0, r.size if size is None else size, remote._h, offset)
        return Transfer(call("penstock_post", self._h, kind, byref(b), 1, byref(o)), self._parent, (r, remote))

    def post(self, kind: str, blocks: Any, region: Region, remote: Remote, **options: Any) -> Transfer:
        """Begins a transfer of many blocks: rows of (offset in the region, length, offset in the remote), as a sequence or an integer array."""
        b, n, o = self._list(kind, blocks, region, remote, options)
        return Transfer(call("penstock_post", self._h, self._kind(kind), b, n, byref(o)), self._parent, (region, remote))

    def prepare(self, kind: str, blocks: Any, region: Region, remote: Remote, **options: Any) -> Prepared:
        """Checks such a list once, to be posted many times without work for each block."""
        b, n, o = self._list(kind, blocks, region, remote, options)
        return Prepared(call("penstock_prepare", self._h, self._kind(kind), b, n, byref(o)), self._parent, (region, remote))

    @staticmethod
    def _kind(kind: str) -> int:
        if kind not in ("put", "get"):
            raise InvalidError(f"kind is {kind!r}: expected 'put' or 'get'")
        return PUT if kind == "put" else GET

    @staticmethod
    def _list(kind: str, blocks: Any, region: Region, remote: Remote, options: Dict[str, Any]) -> Any:
        try:
            import numpy
        except ImportError:
            rows = [tuple(b) for b in blocks]
            c = (CBlock * len(rows))(*((region._h, b[0], b[1], remote._h, b[2]) for b in rows))
        else:
            rows = numpy.asarray(blocks)
            if rows.ndim != 2 or rows.shape[1] != 3 or rows.dtype.kind not in "iu" or rows.size and rows.min() < 0:
                raise InvalidError(f"blocks have the shape {rows.shape} and the type {rows.dtype}: expected rows of three whole numbers, 0 or more")
            a = numpy.empty((len(rows), 5), "u8")
            a[:, 0], a[:, 1], a[:, 2], a[:, 3], a[:, 4] = region._h, rows[:, 0], rows[:, 1], remote._h, rows[:, 2]
            c = ctypes.cast(a.ctypes.data, ctypes.c_void_p)
            c._keep = a
        o = _options(options.pop("message", None), options.pop("tag", 0), options.pop("paths", None), options.pop("digest", False))
        if options:
            raise InvalidError(f"unknown options {sorted(options)}: expected message, tag, paths or digest")
        return c, len(rows), o

    def notify(self, message: bytes, tag: int) -> Transfer:
        """Sends a message of 1 MiB at most to who subscribed to the tag there."""
        o = _options(message, tag, None, False)
        return Transfer(call("penstock_notify", self._h, byref(o)), self._parent, None)


class System(_Handle):
    """What a configuration describes, open.

    System(yaml=...) takes the text of a configuration (docs/config.md). System(name=..., listen=[...]) is a node for transfers alone.
    """

    def __init__(self, yaml: Optional[str] = None, *, name: str = "", listen: Iterable[str] = ()):
        if yaml is None:
            node = {"name": name, "listen": list(listen)}
            yaml = json.dumps({"penstock": {"transfers": {k: v for k, v in node.items() if v}}})
        elif name or listen:
            raise InvalidError("name and listen are for a node without a configuration: write them into it")
        super().__init__(call("penstock_open", yaml.encode()))
        self._mu = threading.Lock()
        self._waits: "Dict[int, tuple[Any, Any]]" = {}  # futures of transfers that are awaited, by handle
        self._loops: "weakref.WeakSet[Any]" = weakref.WeakSet()  # that watch the event descriptor

    @property
    def addresses(self) -> List[str]:
        """Where peers reach the node."""
        return text("penstock_addresses", self._h).splitlines()

    def status(self) -> Dict[str, Any]:
        """What the system knows of itself (docs/observability.md)."""
        return json.loads(text("penstock_status", self._h))

    def connect(self, address: str, timeout: Optional[float] = 30) -> Peer:
        """Connects with the node at an address such as tcp://10.0.0.1:7070."""
        return Peer(call("penstock_dial", self._h, address.encode(), milliseconds(timeout)), self)

    def export(self, x: Any, name: str = "", rights: int = READ, offset: int = 0, length: Optional[int] = None, whole_region: bool = False) -> Export:
        """Lets peers name memory: a Region, or an array, a tensor or a buffer, which peers reach over sockets.

        whole_region lets shared memory hand over all of a region of which this is a part.
        """
        r = x if isinstance(x, Region) else adopt(x, name)
        n = r.size - offset if length is None else length
        e = Export(call("penstock_export", self._h, r._h, offset, n, name.encode(), rights, int(whole_region)), self)
        e._keep = r
        return e

    def subscribe(self, tag: int) -> None:
        """Keeps messages with a tag, from 1 on, for receive."""
        call("penstock_subscribe", self._h, tag)

    def receive(self, timeout: Optional[float] = None) -> Optional[Message]:
        """Takes the next message, or None when there was none within the time."""
        m, room = CMessage(), ctypes.create_string_buffer(1 << 20)
        for ms in slices(timeout):
            if call("penstock_receive", self._h, byref(m), room, len(room), ms) == 1:
                return Message(m.peer.decode(), m.tag, room.raw[:m.size], m.bytes)
        return None

    def rx(self, interface: str, queue: int = 0) -> Any:
        """A receive queue of an interface of the configuration, as an iterator of bursts."""
        from ._stream import Rx
        return Rx(call("penstock_rx", self._h, interface.encode(), queue), self)

    def send(self, interface: str, packets: Sequence[Any], queue: int = 0) -> int:
        """Copies packets to a transmit queue and sends them; returns how many there was room for."""
        from ._stream import send
        return send(self, interface, packets, queue)

    # Awaiting: the event descriptor says when to look which transfers have ended.

    async def _ended(self, t: Transfer) -> Transfer:
        import asyncio  # takes longer to import than all the rest
        loop = asyncio.get_running_loop()
        f = loop.create_future()
        with self._mu:
            self._waits[t._h] = (loop, f)
            if loop not in self._loops:
                self._loops.add(loop)
                loop.add_reader(call("penstock_event_fd", self._h), self._look)
        try:
            call("penstock_watch", t._h)
            await f
        finally:
            with self._mu:
                self._waits.pop(t._h, None)
                if loop in self._loops and not any(w[0] is loop for w in self._waits.values()):
                    self._loops.discard(loop)
                    if not loop.is_closed():
                        loop.remove_reader(call("penstock_event_fd", self._h))
        return t.wait(0)

    def _look(self) -> None:
        room = (c_uint64 * 256)()
        n = call("penstock_ended", self._h, room, 256)
        with self._mu:
            for h in room[:n]:
                loop, f = self._waits.get(h, (None, None))
                if loop is not None:
                    loop.call_soon_threadsafe(lambda f=f: f.done() or f.set_result(None))
