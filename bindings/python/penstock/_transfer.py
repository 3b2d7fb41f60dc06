"""Systems and transfers."""
from __future__ import annotations

import ctypes
import json
import os
import threading
from ctypes import byref, c_uint32, c_uint64
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _lib
from ._lib import GET, PUT, CBlock, CEntry, CMessage, COptions, CTensor, InvalidError, call, milliseconds, slices, text
from ._memory import BY_CODE, DTYPES, memory_of
from ._region import Region, Tensor, _Handle, adopt, alloc, empty

READ, WRITE = 1, 2


class Export(_Handle):
    """Memory that peers can name. close revokes it: afterwards no peer writes to it."""

    def __init__(self, handle: int, system: "System", region: Region, adopted: bool):
        super().__init__(handle, system)
        self._region, self._adopted = region, adopted  # by this export

    def close(self) -> None:
        """Revokes it. What it has adopted is the caller's again. A second close does nothing."""
        super().close()
        if self._adopted:
            self._region.close()
        self._region._unused()


class Share(_Handle):
    """Files that peers can name. close revokes them."""


class Remote(_Handle):
    """Memory that a peer exports: its size in bytes and its rights; of a tensor also dtype, such as "bfloat16", and shape, else None and ()."""

    def __init__(self, handle: int, peer: "Peer", name: str, size: int, rights: int):
        super().__init__(handle, peer)
        self.peer, self.name, self.size, self.rights = peer, name, size, rights
        t = CTensor()
        self.dtype, self.shape = _tensor(t) if call("penstock_describe", handle, byref(t)) else (None, ())

    @property
    def tag(self) -> Optional[bytes]:
        """16 bytes that name the content as it was looked up, or None: a tensor of batches and what is known of them (NAME/batch) have the same."""
        room = ctypes.create_string_buffer(16)
        return room.raw if call("penstock_tag", self._h, room) else None


def _tensor(t: CTensor) -> "Tuple[Optional[str], Tuple[int, ...]]":
    """The type and shape of a tensor; None and () if it is of a type that Python does not know."""
    dtype = BY_CODE.get(t.dtype.decode())
    return dtype, tuple(t.shape[:t.rank]) if dtype else ()


class Entry(NamedTuple):
    """An export of a peer, by its name: its size in bytes and its rights; of a tensor also dtype and shape, else None and ()."""
    name: str
    size: int
    rights: int
    dtype: Optional[str]
    shape: Tuple[int, ...]


class Message(NamedTuple):
    """A message of a peer, alone or with a transfer that has arrived; bytes is what that moved."""
    peer: str
    tag: int
    data: bytes
    bytes: int  # type: ignore[valid-type]


class Transfer(_Handle):
    """A put or get under way. wait blocks; await does not. It fails with the exception of its kind."""

    def __init__(self, handle: int, system: "System", keep: Any, lends: bool = False):
        self._h, self._parent, self._open = handle, system, True  # not by super, which takes a tenth of what a small put does
        self._keep = keep  # memory and regions
        self._lends = handle if lends else 0  # memory of the caller goes with it until that is closed

    def close(self) -> None:
        """Gives the handle back. What is under way goes on, and has its memory. A second close does nothing."""
        if self._lends:
            self._open, self._h = False, 0
        else:
            super().close()

    def __del__(self) -> None:
        try:
            if self._lends:
                call("penstock_close", self._lends)
            elif self._open:
                call("penstock_close", self._h)
        except Exception:  # its system was closed before, or Python ends
            pass

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

    def __init__(self, handle: int, system: "System", region: Region, remote: Remote):
        super().__init__(handle, system)
        self._keep = region, remote

    def close(self) -> None:
        """Ends the list, not what it has posted. A second close does nothing."""
        super().close()
        self._keep[0]._unused()

    def post(self) -> Transfer:
        return Transfer(call("penstock_repost", self._h), self._parent, self._keep)


def _options(message: Optional[bytes], tag: int, paths: Optional[Sequence[str]], digest: bool) -> Optional[COptions]:
    if not (message or tag or paths or digest):
        return None
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

    def list(self, prefix: str = "", timeout: Optional[float] = 30) -> "List[Entry]":
        """What the peer exports now under names that begin with prefix, in the order of the names."""
        h = call("penstock_list", self._h, prefix.encode(), milliseconds(timeout))
        try:
            room, out = (CEntry * 256)(), []
            while True:
                n = call("penstock_entries", h, room, len(room))
                if n == 0:
                    return out
                for e in room[:n]:
                    out.append(Entry(e.name.decode(), e.size, e.rights, *(_tensor(e.what) if e.described else (None, ()))))
        finally:
            call("penstock_close", h)

    def put(self, x: Any, to: Union[str, Remote], offset: int = 0, *, message: Optional[bytes] = None, tag: int = 0,
            paths: Optional[Sequence[str]] = None, digest: bool = False) -> Transfer:
        """Puts the bytes of x into an export of the peer, from offset on. x is a Region, an array, a tensor or a buffer; it stays as it is until the end."""
        return self._move(PUT, x, to, offset, _options(message, tag, paths, digest))

    def get(self, source: Union[str, Remote], into: Any = None, offset: int = 0, *, length: Optional[int] = None, paths: Optional[Sequence[str]] = None,
            digest: bool = False) -> Any:
        """Gets bytes of an export: length ones from offset on.

        With into, memory that takes them, it returns the transfer. Without, it waits, and returns a Tensor if the peer exports one and all of
        it was asked for, else a Region of as many bytes as were asked for.
        """
        o = _options(None, 0, paths, digest)
        if into is not None:
            return self._move(GET, into, source, offset, o, length)
        remote = source if isinstance(source, Remote) else self.lookup(source)
        r: Region
        if remote.dtype is not None and offset == 0 and length is None:
            r = empty(remote.shape, remote.dtype, remote.name)
            length = r.nbytes
        else:
            length = remote.size - offset if length is None else length
            if length < 0 or offset < 0:
                raise _lib.BoundsError(f"{length} bytes from {offset} on: {remote.name!r} has {remote.size}")
            r = alloc(max(length, 1), remote.name)
            r.size = length  # of its pages
        if length > 0:
            self._move(GET, r, remote, offset, o, length).wait()
        return r

    def _move(self, kind: int, x: Any, where: Union[str, Remote], offset: int, o: Optional[COptions], size: Optional[int] = None) -> Transfer:
        remote = where if isinstance(where, Remote) else self.lookup(where)
        if size is not None and not isinstance(x, Region):
            x = adopt(x)
        m = x if isinstance(x, Region) else memory_of(x)
        if kind == GET and not (m._writable() if isinstance(m, Region) else m.writable):
            raise InvalidError("the memory that is to take the bytes is read-only: expected an array, a tensor or a buffer that can be written")
        if isinstance(m, Region):
            b = CBlock(m._h, 0, m.nbytes if size is None else size, remote._h, offset)
            h = call("penstock_post", self._h, kind, byref(b), 1, o)
        else:
            h = call("penstock_post_memory", self._h, kind, m.address, m.size, remote._h, offset, o)
        return Transfer(h, self._parent, (m, remote), m is not x)

    def post(self, kind: str, blocks: Any, region: Region, remote: Remote, **options: Any) -> Transfer:
        """Begins a transfer of many blocks: rows of (offset in the region, length, offset in the remote), as a sequence or an integer array."""
        b, n, o = self._list(blocks, region, remote, options)
        return Transfer(call("penstock_post", self._h, self._kind(kind), b, n, o), self._parent, (region, remote))

    def prepare(self, kind: str, blocks: Any, region: Region, remote: Remote, **options: Any) -> Prepared:
        """Checks such a list once, to be posted many times without work for each block."""
        b, n, o = self._list(blocks, region, remote, options)
        return Prepared(call("penstock_prepare", self._h, self._kind(kind), b, n, o), self._parent, region, remote)

    @staticmethod
    def _kind(kind: str) -> int:
        if kind not in ("put", "get"):
            raise InvalidError(f"kind is {kind!r}: expected 'put' or 'get'")
        return PUT if kind == "put" else GET

    @staticmethod
    def _list(blocks: Any, region: Region, remote: Remote, options: Dict[str, Any]) -> Any:
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
        return Transfer(call("penstock_notify", self._h, o), self._parent, None)


class System(_Handle):
    """What a configuration describes, open.

    System(yaml=...) takes the text of a configuration (docs/config.md), whose applications run until the system is closed. System(name=..., listen=[...]) is a node for transfers alone: with identity=True it has
    the user's own identity ("penstock pair"), which addresses beyond this machine need, or with identity=DIR that of a directory. What it
    logs goes to the logger "penstock" of package logging, unless the configuration names a file.
    """

    def __init__(self, yaml: Optional[str] = None, *, name: str = "", listen: Iterable[str] = (),
                 identity: "Union[bool, str, os.PathLike[str]]" = False):
        from . import _log  # package logging takes longer to import than all the rest
        if yaml is None:
            node = {"name": name, "listen": list(listen)}
            sections: Dict[str, Any] = {"logging": {"level": _log.level()}, "transfers": {k: v for k, v in node.items() if v}}
            if identity:
                sections["security"] = {} if identity is True else {"identity": os.fspath(identity)}
            yaml = json.dumps({"penstock": sections})
        elif name or listen or identity:
            raise InvalidError("name, listen and identity are for a node without a configuration: write them into it")
        _log.keep()
        try:
            super().__init__(call("penstock_open", yaml.encode()))
        finally:
            _log.start()
        self._mu = threading.RLock()  # guards what follows; a collection under it may end what is awaited
        self._closing = False
        self._waits: "Dict[int, List[Tuple[Any, Any]]]" = {}  # loops and futures of those who await a transfer, by its handle
        self._loops: "Dict[Any, List[int]]" = {}              # of a loop: its descriptor of the system's event, and how many of its futures wait

    def close(self) -> None:
        """Closes it, and ends what is awaited. A second close does nothing."""
        with self._mu:
            self._closing = True
        super().close()
        self._wake(self._waits, _lib.ClosedError("the system was closed"))

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

        Peers learn the type and shape of an array or a tensor that is exported whole. whole_region lets shared memory hand over all of a region
        of which this is a part.
        """
        r = x if isinstance(x, Region) else adopt(x, name)
        if not r._writable() and rights & WRITE:
            raise InvalidError("the memory is read-only: export it with READ alone")
        dtype, shape = r._what()
        if dtype is None or offset != 0 or length is not None or len(shape) > 32:
            h = call("penstock_export", self._h, r._h, offset, r.nbytes - offset if length is None else length, name.encode(), rights, int(whole_region))
        else:
            t = CTensor(DTYPES[dtype].code.encode(), len(shape), 0, shape)
            h = call("penstock_publish", self._h, r._h, 0, byref(t), name.encode(), rights, int(whole_region))
        return Export(h, self, r, r is not x)

    def serve(self, path: Any, tensors: bool = True) -> Share:
        """Exports a file, or each file of a directory and below, for reading under its path relative to the directory.

        With tensors, each tensor of a safetensors file has a name too, FILE/TENSOR, and the array of an npy file, FILE/array. A system has one share.
        """
        return Share(call("penstock_serve", self._h, os.fsencode(path), int(tensors)), self)

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
        """A receive queue of an interface of the configuration, but not one of an application, as an iterator of bursts."""
        from ._stream import Rx
        return Rx(call("penstock_rx", self._h, interface.encode(), queue), self)

    def send(self, interface: str, packets: Sequence[Any], queue: int = 0) -> int:
        """Copies packets to a transmit queue and sends them; returns how many there was room for."""
        from ._stream import send
        return send(self, interface, packets, queue)

    # Awaiting: the event descriptor says when to look which transfers have ended. Whichever loop looks takes the handles for all of them.

    async def _ended(self, t: Transfer) -> Transfer:
        import asyncio  # takes longer to import than all the rest
        loop = asyncio.get_running_loop()
        h, waiter = t._h, (loop, loop.create_future())
        with self._mu:
            if self._closing:
                raise _lib.ClosedError("the system was closed")
            if loop not in self._loops:
                event = os.dup(call("penstock_event_fd", self._h))
                self._loops[loop] = [event, 0]
                loop.add_reader(event, self._look)
            self._loops[loop][1] += 1
            self._waits.setdefault(h, []).append(waiter)
        try:
            call("penstock_watch", h)
            lost = await waiter[1]
        finally:
            self._forget(h, waiter)
        if lost is not None and not t.done():
            raise lost
        return t.wait(0)

    def _forget(self, h: int, waiter: "Tuple[Any, Any]") -> None:
        """Ends the waiting of one. The others of the transfer and of the loop wait on."""
        with self._mu:
            waiters = self._waits.get(h, [])
            if waiter not in waiters:
                return
            waiters.remove(waiter)
            if not waiters:
                del self._waits[h]
            loop = waiter[0]
            self._loops[loop][1] -= 1
            if self._loops[loop][1] == 0:
                event = self._loops.pop(loop)[0]
                if not loop.is_closed():
                    loop.remove_reader(event)
                os.close(event)

    def _look(self) -> None:
        room = (c_uint64 * 256)()
        try:
            n = call("penstock_ended", self._h, room, 256)
        except _lib.Error as e:  # such as an agent that was lost: nothing is said of a transfer any more
            self._wake(self._waits, e)
        else:
            self._wake(room[:n], None)

    def _wake(self, handles: Iterable[int], lost: Optional[_lib.Error]) -> None:
        """Ends the waiting for transfers: they have ended, or nobody says any more when they do."""
        with self._mu:
            waiters = [(h, w) for h in list(handles) for w in self._waits.get(h, ())]
        for h, w in waiters:
            try:
                w[0].call_soon_threadsafe(_resolve, w[1], lost)
            except RuntimeError:  # the loop is closed, and nobody waits
                self._forget(h, w)


def _resolve(f: Any, lost: Optional[_lib.Error]) -> None:
    if not f.done():  # it may have been canceled
        f.set_result(lost)
