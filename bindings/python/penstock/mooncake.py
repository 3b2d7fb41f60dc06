"""Mooncake's TransferEngine for memory of the host and of CUDA devices, over Penstock. install() lets programs import mooncake.engine and find this.

    import penstock.mooncake
    penstock.mooncake.install()
    from mooncake.engine import TransferEngine

It uses penstock.nixl: engines are processes of one user on one machine, and find each other by "host:port", as with the metadata server
"P2PHANDSHAKE". What Mooncake has and this has not raises NotImplementedError with the reason. Names, arguments and results are those of
Mooncake 0.3.12 (mooncake-integration/transfer_engine of kvcache-ai/Mooncake).
"""
from __future__ import annotations

import ctypes
import itertools
import json
import logging
import sys
import threading
import time
import types
from enum import IntEnum
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy

from . import _lib
from ._lib import GET, PUT
from ._region import Region, alloc
from ._nixlpeers import _over
from ._nixltransfer import _Request
from .nixl import nixl_agent, nixl_agent_config, nixlError, nixlInvalidParamError

_log = logging.getLogger("mooncake")
_failures = (nixlError, _lib.Error)


class TransferOpcode(IntEnum):
    Read = 0
    Write = 1


class TransferNotify(NamedTuple):
    name: str
    msg: str


class TransferEngine:
    def __init__(self) -> None:
        self._agent: Optional[nixl_agent] = None
        self._mu = threading.Lock()
        self._next = itertools.count(1)
        self._under: Dict[int, "tuple[_Request, float]"] = {}  # by ID, with their deadlines
        self._managed: Dict[int, Region] = {}
        self._names: Dict[str, str] = {}  # of agents, by "host:port"

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Opens the engine. 0: it is open, -1: it cannot be, as when another one has the port."""
        if metadata_server != "P2PHANDSHAKE":
            raise NotImplementedError(f"the metadata server {metadata_server!r}: expected P2PHANDSHAKE; this engine asks its peers and no server")
        if self._agent is not None:
            raise RuntimeError("the engine was initialized before")
        # Peers know an engine by its port, so it has no name before it listens.
        try:
            self._agent = nixl_agent(f"mooncake-{id(self)}-{time.time_ns()}", nixl_agent_config(True, True, _split(local_hostname)[1]))
        except _failures as e:
            _log.error("initialize: %s", e)
            return -1
        return 0

    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str) -> int:
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def _open(self) -> nixl_agent:
        if self._agent is None:
            raise RuntimeError("the engine is not initialized: call initialize first")
        return self._agent

    def get_rpc_port(self) -> int:
        return self._open().get_listen_port()

    # Memory.

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        try:
            self._open().register_memory([(buffer_addr, capacity, 0, "")], "VRAM" if location.startswith("cuda") else "DRAM")
        except _failures as e:
            _log.error("register_memory: %s", e)
            return -1
        return 0

    def unregister_memory(self, addr: int) -> int:
        a = self._open()
        keys = [k for k in a._memory if k[0] == addr]
        if not keys:
            return -1
        a._drop(keys)
        return 0

    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*") -> int:
        return min((self.register_memory(b, c, location) for b, c in zip(buffer_addresses, capacities)), default=0)

    def batch_unregister_memory(self, addrs: Sequence[int]) -> int:
        return min((self.unregister_memory(a) for a in addrs), default=0)

    def allocate_managed_buffer(self, length: int) -> int:
        """Memory that peers reach by shared memory; its address, or 0."""
        try:
            r = alloc(length, "managed")
            self._open()._add(r.address, r.size, r)
        except _lib.Error as e:
            _log.error("allocate_managed_buffer: %s", e)
            return 0
        self._managed[r.address] = r
        return r.address

    def free_managed_buffer(self, buffer: int, length: int) -> int:
        if self._managed.pop(buffer, None) is None:
            return -1
        return self.unregister_memory(buffer)

    def write_bytes_to_buffer(self, dest_address: int, src: bytes, length: int) -> int:
        ctypes.memmove(self._within(dest_address, length), bytes(src), min(length, len(src)))
        return 0

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        return ctypes.string_at(self._within(source_address, length), length)

    def _within(self, address: int, length: int) -> int:
        if not any(a <= address and address + length <= a + n and m.region.address is not None for (a, n), m in self._open()._memory.items()):
            raise ValueError(f"{length} bytes at {address:#x} are not registered memory of the host")
        return address

    def get_first_buffer_address(self, segment: str) -> int:
        """The address of the memory that the peer registered first, or 0."""
        try:
            exports = self._open()._known[self._peer(segment, True)].exports
        except _failures as e:
            _log.error("get_first_buffer_address: %s", e)
            return 0
        return next((a for a, _ in exports.values()), 0)

    # Transfers.

    def transfer_sync_write(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = "") -> int:
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], PUT)

    def transfer_sync_read(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = "") -> int:
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], GET)

    def batch_transfer_sync_write(self, target_hostname: str, buffers: Any, peer_buffer_addresses: Any, lengths: Any, transport_hint: str = "") -> int:
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, PUT)

    def batch_transfer_sync_read(self, target_hostname: str, buffers: Any, peer_buffer_addresses: Any, lengths: Any, transport_hint: str = "") -> int:
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, GET)

    def batch_transfer_async_write(self, target_hostname: str, buffers: Any, peer_buffer_addresses: Any, lengths: Any, transport_hint: str = "") -> int:
        return self._begin(target_hostname, buffers, peer_buffer_addresses, lengths, PUT)

    def batch_transfer_async_read(self, target_hostname: str, buffers: Any, peer_buffer_addresses: Any, lengths: Any, transport_hint: str = "") -> int:
        return self._begin(target_hostname, buffers, peer_buffer_addresses, lengths, GET)

    def transfer_sync(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, opcode: int, notify: Optional[TransferNotify] = None,
                      transport_hint: str = "") -> int:
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], PUT if opcode == TransferOpcode.Write else GET, notify)

    def batch_transfer_sync(self, target_hostname: str, buffers: Any, peer_buffer_addresses: Any, lengths: Any, opcode: int,
                            notify: Optional[TransferNotify] = None, transport_hint: str = "") -> int:
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, PUT if opcode == TransferOpcode.Write else GET, notify)

    def batch_transfer_async(self, target_hostname: str, buffers: Any, peer_buffer_addresses: Any, lengths: Any, opcode: int, transport_hint: str = "") -> int:
        return self._begin(target_hostname, buffers, peer_buffer_addresses, lengths, PUT if opcode == TransferOpcode.Write else GET)

    def transfer_submit_write(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = "") -> int:
        return self._begin(target_hostname, [buffer], [peer_buffer_address], [length], PUT)

    def transfer_check_status(self, batch_id: int) -> int:
        """1: done, 0: under way, -1: failed, -2: its time is over. Any but 0 ends the ID."""
        with self._mu:
            r, late = self._under.get(batch_id, (None, 0.0))
            if r is None:
                return -1
            state = r.look()
            if state == "PROC" and time.monotonic() < late:
                return 0
            del self._under[batch_id]
        if state == "PROC":
            r.release()
            return -2
        return 1 if state == "DONE" else -1

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Waits for all. 0: they are done, -1: some are not."""
        out = 0
        for i in batch_ids:
            with self._mu:
                r, late = self._under.pop(i, (None, 0.0))
            if r is None or not self._wait(r, late):
                out = -1
        return out

    @staticmethod
    def _wait(r: _Request, late: float) -> bool:
        while r.look() == "PROC" and time.monotonic() < late:
            try:
                r.under.wait(max(late - time.monotonic(), 0))  # type: ignore[union-attr]
            except _lib.Error:
                pass
        if r.state == "PROC":
            r.release()
        return r.state == "DONE"

    def _begin(self, target: str, buffers: Any, peers: Any, lengths: Any, kind: int, notify: Optional[TransferNotify] = None) -> int:
        if not len(buffers) == len(peers) == len(lengths):
            raise ValueError(f"{len(buffers)} buffers, {len(peers)} addresses and {len(lengths)} lengths: expected as many of each")
        here, there = numpy.zeros((len(buffers), 3), "u8"), numpy.zeros((len(buffers), 3), "u8")
        here[:, 0], here[:, 1], there[:, 0], there[:, 1] = buffers, lengths, peers, lengths
        message = json.dumps(notify).encode() if notify is not None else b""
        for again in (False, True):  # it may have registered other memory since, or be another process
            try:
                r = self._open()._request(kind, here, there, self._peer(target, again), message)
                r.post(b"")
                break
            except _failures as e:
                if again:
                    _log.error("a transfer with %r: %s", target, e)
                    return 0
        with self._mu:
            i = next(self._next)
            self._under[i] = r, time.monotonic() + 30 + r.size * 1e-9
        return i

    def _sync(self, target: str, buffers: Any, peers: Any, lengths: Any, kind: int, notify: Optional[TransferNotify] = None) -> int:
        i = self._begin(target, buffers, peers, lengths, kind, notify)
        r = self._under[i][0] if i else None
        status = self.get_batch_transfer_status([i]) if i else -1
        # Once more where what it used was over; a message must not arrive twice.
        if status != 0 and r is not None and isinstance(r.failure, _over if notify is None else _lib.RevokedError):
            i = self._begin(target, buffers, peers, lengths, kind, notify)
            status = self.get_batch_transfer_status([i]) if i else -1
        return status

    def _peer(self, target: str, again: bool) -> str:
        """The name of the agent at "host:port"."""
        a, names = self._open(), self._names
        if again or target not in names:
            host, port = _split(target)
            name = a._add_remote(a._fetch(host, port, patience=0))
            old, names[target] = names.get(target), name
            if old in a._known and old not in names.values():  # its process has ended
                a.remove_remote_agent(old)
        return names[target]

    # The rest.

    def get_notifies(self) -> List[TransferNotify]:
        out = []
        for sender, ms in self._open().get_new_notifs().items():
            for m in ms:
                try:
                    name, text = json.loads(m)
                except (ValueError, TypeError, RecursionError) as e:
                    _log.warning("a message of %r is no notify: %s", sender, e)
                else:
                    out.append(TransferNotify(name, text))
        return out

    def send_probe(self, peer_server_name: str) -> int:
        """0: the peer answers."""
        try:
            self._peer(peer_server_name, True)
        except _failures as e:
            _log.error("send_probe: %s", e)
            return -1
        return 0

    def _none(self, what: str) -> Any:
        raise NotImplementedError(what)

    def get_local_topology(self, device_name: Optional[str] = None) -> Any:
        self._none("the topology of adapters: penstock doctor tells it")

    def get_engine(self) -> Any:
        self._none("the engine of Mooncake in C++ is not here")

    def get_engine_ptr(self) -> Any:
        self._none("the engine of Mooncake in C++ is not here")

    def transfer_write_on_cuda(self, *_: Any, **__: Any) -> Any:
        self._none("transfers in the order of a CUDA stream: wait for the stream, and use transfer_sync")

    transfer_read_on_cuda = batch_transfer_write_on_cuda = batch_transfer_read_on_cuda = transfer_write_on_cuda


def _split(address: str) -> "tuple[str, int]":
    """The host and, if there is one, the port of "host:port" or "[host]:port"; an address of IPv6 alone has none."""
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        port = port[1:]
    elif address.count(":") > 1:
        host, port = address, ""
    else:
        host, _, port = address.partition(":")
    if not (port or "0").isdecimal() or int(port or 0) > 65535:
        raise nixlInvalidParamError(f"{address!r}: expected host:port, with a port up to 65535")
    return host, int(port or 0)


def install() -> None:
    """Puts modules in place so that a program which imports mooncake.engine gets this."""
    engine, package = types.ModuleType("mooncake.engine"), types.ModuleType("mooncake")
    engine.__dict__.update(TransferEngine=TransferEngine, TransferNotify=TransferNotify, TransferOpcode=TransferOpcode)
    package.__path__ = []  # type: ignore[attr-defined]
    package.engine = engine  # type: ignore[attr-defined]
    sys.modules["mooncake"], sys.modules["mooncake.engine"] = package, engine
