"""NIXL's agent for memory of the host and of CUDA devices, over Penstock. install() lets programs import nixl._api and find this.

    import penstock.nixl
    penstock.nixl.install()
    from nixl._api import nixl_agent, nixl_agent_config

What an agent says of itself (get_agent_metadata) is the address of a socket that only this user's processes can open, and names, which
cannot be guessed, of the memory that it has registered: so agents are on one machine. What NIXL has and this has not raises
nixlNotSupportedError with the reason. Names, arguments and results are those of NIXL 1.4 (src/api/python/_api.py of ai-dynamo/nixl).
"""
from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import shutil
import socket
import socketserver
import stat
import sys
import tempfile
import threading
import time
import types
import weakref
from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, List, Optional, Tuple

import numpy

from . import _lib
from ._lib import GET, PUT, call
from ._memory import Memory, memory_of
from ._region import Region
from ._transfer import READ, WRITE, Export, Peer, Remote, System, Transfer, _options

DEFAULT_COMM_PORT = 5555
BACKENDS = ("UCX", "PENSTOCK")  # one and the same: programs name UCX
_TAG = 1
_RIDES = 1024  # bytes of a message that travel with a transfer

DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG = range(5)
_mems = {"DRAM": DRAM_SEG, "VRAM": VRAM_SEG, "BLOCK": BLK_SEG, "OBJ": OBJ_SEG, "FILE": FILE_SEG, "cpu": DRAM_SEG, "cuda": VRAM_SEG}
_ops = {"READ": GET, "WRITE": PUT}
_PREFIX = "penstock-nixl-"  # of the directories in which agents have their sockets


class nixlError(RuntimeError):
    pass


class nixlNotFoundError(nixlError):
    pass


class nixlInvalidParamError(nixlError):
    pass


class nixlNotSupportedError(nixlError):
    pass


class nixlBackendError(nixlError):
    pass


class nixlNoTelemetryError(nixlError):
    pass


class nixl_thread_sync_t(Enum):
    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2


@dataclass
class nixl_agent_config:
    """sync_mode, enable_prog_thread and num_threads change nothing: an agent may be used by any thread, and moves bytes by itself."""
    enable_prog_thread: bool = True
    enable_listen_thread: bool = False
    listen_port: int = DEFAULT_COMM_PORT
    capture_telemetry: bool = False
    num_threads: int = 0
    backends: Tuple[str, ...] = ("UCX",)
    sync_mode: Optional[nixl_thread_sync_t] = None

    def __post_init__(self) -> None:
        if self.sync_mode is not None and not isinstance(self.sync_mode, nixl_thread_sync_t):
            raise TypeError("sync_mode must be a nixl_thread_sync_t")


class _DList:
    """A list of descriptors: rows of address, length and device, with the type of their memory."""

    def __init__(self, mem: int, rows: Any = ()):
        self.mem = mem
        self.rows = numpy.array(rows, "u8").reshape(-1, 3)

    def getType(self) -> int:
        return self.mem

    def descCount(self) -> int:
        return len(self.rows)

    def isEmpty(self) -> bool:
        return len(self.rows) == 0

    def addDesc(self, row: Any) -> None:
        self.rows = numpy.vstack([self.rows, numpy.array(row[:3], "u8")])

    def clear(self) -> None:
        self.rows = self.rows[:0]

    def trim(self) -> Any:
        return nixlXferDList(self.mem, self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Tuple[int, ...]:
        return tuple(int(x) for x in self.rows[i])

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.mem == other.mem and numpy.array_equal(self.rows, other.rows)


class nixlXferDList(_DList):
    pass


class nixlRegDList(_DList):
    def __init__(self, mem: int, rows: Any = ()):
        rows = [tuple(r) for r in rows]
        self.meta = [r[3] if len(r) > 3 else "" for r in rows]
        super().__init__(mem, [r[:3] for r in rows])


@dataclass
class nixl_xfer_telemetry:
    startTime: int     # µs since 1970
    postDuration: int  # µs
    xferDuration: int  # µs
    totalBytes: int
    descCount: int
    backendName: str


class _Side:
    """A list that make_prepped_xfer takes blocks of."""

    def __init__(self, agent: str, descs: _DList):
        self.agent, self.descs = agent, descs

    def release(self) -> None:
        self.descs = nixlXferDList(self.descs.mem)


class _Request:
    """A transfer that can be posted again when it has ended."""

    def __init__(self, peer: Peer, kind: int, blocks: Any, keep: Any, size: int, message: bytes, remote: str, backend: str):
        self.peer, self.kind, self.blocks, self.keep, self.size, self.message, self.remote, self.backend = peer, kind, blocks, keep, size, message, remote, backend
        self.state, self.under, self.later = "INIT", None, b""  # type: str, Optional[Transfer], bytes
        self.begun = self.posted = self.ended = 0.0
        self.began = 0

    def post(self, message: bytes) -> str:
        if self.state == "PROC":
            raise nixlBackendError("the transfer is under way: it can be posted again when it has ended")
        self.message = message or self.message
        rides = self.message if len(self.message) <= _RIDES else b""
        self.later = self.message if not rides else b""
        self.began, self.begun = time.time_ns() // 1000, time.perf_counter()
        o = _options(rides or None, _TAG if rides else 0, None, False)
        h = call("penstock_post", self.peer._h, self.kind, self.blocks.ctypes.data, len(self.blocks), o)
        self.under, self.state = Transfer(h, self.peer._parent, self.keep), "PROC"
        self.posted = time.perf_counter()
        return self.look()

    def look(self) -> str:
        if self.state == "PROC":
            try:
                assert self.under is not None
                self.under.wait(0)
                if self.later:  # too long to travel with the bytes: it follows them
                    self.under, self.later = self.peer.notify(self.later, _TAG), b""
                    return self.look()
                self.state = "DONE"
            except _lib.TimeoutError:
                return "PROC"
            except _lib.Error as e:
                logging.getLogger("nixl").error("a transfer with %s failed: %s", self.remote, e)
                self.state = "ERR"
            self.ended = time.perf_counter()
        return self.state

    def release(self) -> None:
        if self.look() == "PROC" and self.under is not None:
            self.under.cancel()
        self.under, self.state = None, "ERR"


class _Known:
    """Another agent: its session, and the memory that it has registered, by address."""

    def __init__(self, peer: Peer, address: str):
        self.peer, self.address = peer, address
        self.exports: Dict[str, Tuple[int, int]] = {}
        self.remotes: Dict[str, Remote] = {}

    def remote(self, name: str) -> Remote:
        if name not in self.remotes:
            self.remotes[name] = self.peer.lookup(name)
        return self.remotes[name]


def _places(bases: List[Tuple[int, int]], rows: Any, whose: str) -> Tuple[Any, Any]:
    """For each row, which of the memories has it, and at which offset."""
    if not bases:
        raise nixlNotFoundError(f"{whose} has registered no memory")
    order = sorted(range(len(bases)), key=lambda i: (bases[i][0], bases[i][1]))
    starts = numpy.array([bases[i][0] for i in order], "u8")
    ends = numpy.array([bases[i][0] + bases[i][1] for i in order], "u8")
    at = numpy.searchsorted(starts, rows[:, 0], "right").astype("i8") - 1
    bad = (at < 0) | (rows[:, 0] + rows[:, 1] > ends[at])
    for i in numpy.nonzero(bad)[0]:  # of registrations that overlap another one may have it
        for k in range(len(order)):
            if starts[k] <= rows[i, 0] and rows[i, 0] + rows[i, 1] <= ends[k]:
                at[i], bad[i] = k, False
    if bad.any():
        i = int(numpy.nonzero(bad)[0][0])
        raise nixlNotFoundError(f"descriptor {i}: {whose} has not registered the {rows[i, 1]} bytes at {rows[i, 0]:#x}")
    return numpy.array(order)[at], rows[:, 0] - starts[at]


class nixl_agent:
    def __init__(self, agent_name: str, nixl_conf: Optional[nixl_agent_config] = None, instantiate_all: bool = False):
        if not agent_name:
            raise ValueError("an agent needs a name")
        c = nixl_conf or nixl_agent_config()
        self.name, self.config = agent_name, c
        self.backends: Dict[str, Dict[str, str]] = {}
        self.plugin_list = self.get_plugin_list()
        self._mu = threading.RLock()
        self._directory = tempfile.mkdtemp(prefix=_PREFIX)  # which no other user can enter
        self.system = System(name=agent_name, listen=["unix://" + os.path.join(self._directory, "agent.sock")])
        self.system.subscribe(_TAG)
        self._end = weakref.finalize(self, shutil.rmtree, self._directory, True)
        self._memory: Dict[Tuple[int, int], Tuple[Region, Export, str]] = {}
        self._known: Dict[str, _Known] = {}
        self._notifs: Dict[str, List[bytes]] = {}
        self._server: Optional[socketserver.ThreadingTCPServer] = None
        for b in c.backends:
            self.create_backend(b)
        if c.enable_listen_thread:
            self._server = _listen(self, c.listen_port)

    # Backends: there is one.

    def get_plugin_list(self) -> List[str]:
        return list(BACKENDS)

    def get_plugin_mem_types(self, backend: str) -> List[str]:
        return [] if backend not in BACKENDS else ["DRAM"] if _lib.cuda() is None else ["DRAM", "VRAM"]

    def get_plugin_params(self, backend: str) -> Dict[str, str]:
        return {"paths": "shm,tcp"} if backend in BACKENDS else {}

    def get_backend_mem_types(self, backend: str) -> List[str]:
        return self.get_plugin_mem_types(backend) if backend in self.backends else []

    def get_backend_params(self, backend: str) -> Dict[str, str]:
        return dict(self.backends.get(backend, {}))

    def create_backend(self, backend: str, initParams: Optional[Dict[str, str]] = None) -> None:
        if backend not in BACKENDS:
            raise nixlNotFoundError(f"there is no backend {backend!r}: expected one of {', '.join(BACKENDS)}")
        self.backends[backend] = dict(initParams or {})

    # Descriptors.

    def _mem(self, mem_type: Optional[str]) -> int:
        return _mems[mem_type]  # type: ignore[index]

    def get_xfer_descs(self, descs: Any, mem_type: Optional[str] = None, is_sorted: bool = False) -> Optional[nixlXferDList]:
        """A list for transfers, or None for what is none."""
        if isinstance(descs, nixlXferDList):
            return descs
        rows = self._rows(descs, mem_type, 3)
        return rows and nixlXferDList(rows[0], rows[1])

    def get_reg_descs(self, descs: Any, mem_type: Optional[str] = None, is_sorted: bool = False) -> Optional[nixlRegDList]:
        """A list for registration, or None for what is none."""
        if isinstance(descs, nixlRegDList):
            return descs
        rows = self._rows(descs, mem_type, 4)
        return rows and nixlRegDList(rows[0], rows[1])

    def get_remote_descs(self, descs: Any, mem_type: Optional[str] = None) -> Optional[nixlXferDList]:
        return self.get_xfer_descs(descs, mem_type)

    def _rows(self, descs: Any, mem_type: Optional[str], width: int) -> Optional[Tuple[int, Any]]:
        log = logging.getLogger("nixl")
        if isinstance(descs, _DList):
            log.error("a list of another kind was given")
            return None
        if isinstance(descs, numpy.ndarray) and descs.ndim == 2 and descs.shape[1] == 3 and mem_type is not None:
            return self._mem(mem_type), descs
        items = descs if isinstance(descs, (list, tuple)) else [descs]
        if items and isinstance(items[0], tuple):
            if mem_type is None or any(len(r) != width for r in items):
                log.error("expected tuples of %d with a type of memory", width)
                return None
            return self._mem(mem_type), items
        rows, mems = [], set()
        for x in items:
            try:
                m = memory_of(x)
            except (_lib.InvalidError, TypeError, BufferError) as e:
                log.error("no descriptor: %s", e)
                return None
            on = getattr(x, "device", None)  # of torch it has type and index, of CuPy id, and of numpy it is text
            gpu = m.device
            mems.add(VRAM_SEG if gpu else DRAM_SEG)
            rows.append((m.address, m.size, (on.index if hasattr(on, "type") else getattr(on, "id", 0)) or 0 if gpu else 0))
        if len(mems) > 1:
            log.error("tensors of the host and of a device are in one list")
            return None
        return mems.pop() if mems else DRAM_SEG, rows

    def get_serialized_descs(self, descs: _DList) -> bytes:
        return json.dumps({"kind": type(descs).__name__, "mem": descs.mem, "rows": descs.rows.tolist()}).encode()

    def deserialize_descs(self, serialized_descs: bytes) -> Any:
        d = json.loads(serialized_descs)
        return (nixlRegDList if d["kind"] == "nixlRegDList" else nixlXferDList)(d["mem"], d["rows"])

    # Memory.

    def register_memory(self, reg_list: Any, mem_type: Optional[str] = None, backends: Any = ()) -> Optional[nixlRegDList]:
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None:
            raise nixlInvalidParamError("register_memory: no list of descriptors: expected tensors, arrays, or tuples of (address, length, device, text) with mem_type")
        self._served(descs)
        for address, size, _ in descs.rows.tolist():
            self._add(address, size)
        return descs

    def _add(self, address: int, size: int, region: Optional[Region] = None) -> None:
        """Registers memory once, under a name that cannot be guessed."""
        with self._mu:
            if (address, size) not in self._memory:
                name = secrets.token_hex(16)
                r = region or Region(call("penstock_adopt", b"", address, size), Memory(address, size, None, True))
                self._memory[address, size] = r, self.system.export(r, name, READ | WRITE), name

    def deregister_memory(self, dereg_list: Any, backends: Any = ()) -> None:
        descs = self.get_reg_descs(dereg_list) if not isinstance(dereg_list, _DList) else dereg_list
        with self._mu:
            for address, size, _ in descs.rows.tolist() if descs is not None else ():
                r, e, _ = self._memory.pop((address, size), (None, None, None))
                if e is not None:
                    e.close()
                    r.close()

    def query_memory(self, reg_list: Any, backend: str, mem_type: Optional[str] = None) -> Any:
        raise nixlNotSupportedError("query_memory asks backends for files and objects, which this has not")

    @staticmethod
    def _served(descs: _DList) -> None:
        if descs.mem not in (DRAM_SEG, VRAM_SEG):
            name = next(k for k, v in _mems.items() if v == descs.mem)
            raise nixlNotSupportedError(f"memory of type {name}: this agent takes memory of the host (DRAM) and of CUDA devices (VRAM)")
        if descs.mem == VRAM_SEG and _lib.cuda() is None:
            raise nixlNotSupportedError("memory of type VRAM: this machine has no libcuda.so.1")

    # Agents.

    def get_agent_metadata(self) -> bytes:
        return self._metadata(self._memory)

    def _metadata(self, which: Any) -> bytes:
        with self._mu:
            exports = {self._memory[k][2]: list(k) for k in which}
        return json.dumps({"agent": self.name, "address": self.system.addresses[0], "exports": exports}).encode()

    def get_partial_agent_metadata(self, descs: _DList, inc_conn_info: bool = False, backends: Any = ()) -> bytes:
        with self._mu:
            keys = list(self._memory)
            which = _places(keys, descs.rows, self.name)[0] if len(descs) else []
        return self._metadata({keys[i] for i in which})

    def add_remote_agent(self, metadata: bytes) -> bytes:
        try:
            d = json.loads(metadata)
            name, address, exports = str(d["agent"]), str(d["address"]), {str(k): (int(v[0]), int(v[1])) for k, v in d["exports"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise nixlInvalidParamError(f"that is no metadata of an agent: {e}") from e
        at = os.path.dirname(address[len("unix://"):])
        mine = address.startswith("unix:///") and os.path.basename(at).startswith(_PREFIX)
        try:  # another user of this machine may have sent it
            if mine:
                status = os.lstat(at)
                mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o077 == 0
        except (OSError, ValueError) as e:
            raise nixlNotFoundError(f"the agent {name!r} is not there: {e}") from e
        if not mine:
            raise nixlInvalidParamError(f"the agent {name!r} is at {address}: expected a socket in a directory {_PREFIX}* that only this user can enter")
        with self._mu:
            k = self._known.get(name)
            if k is None or k.address != address:
                k = _Known(self.system.connect(address), address)
            k.exports.update(exports)
            self._known[name] = k
        return name.encode()

    def remove_remote_agent(self, agent: Any) -> None:
        with self._mu:
            k = self._known.pop(_name(agent), None)
        if k is None:
            raise nixlNotFoundError(f"no agent {agent!r} was added")
        k.peer.close()

    def make_connection(self, remote_agent: str, backends: Any = ()) -> None:
        self._agent(remote_agent)

    def check_remote_metadata(self, agent: Any, descs: Any = None) -> bool:
        agent = _name(agent)
        with self._mu:
            k = self._known.get(agent)
            if k is None:
                return False
            if descs is None or len(descs) == 0:
                return True
            try:
                _places(list(k.exports.values()), descs.rows, agent)
            except nixlNotFoundError:
                return False
            return True

    def _agent(self, name: Any) -> _Known:
        name = _name(name)
        with self._mu:
            k = self._known.get(name)
        if k is None:
            raise nixlNotFoundError(f"no agent {name!r} was added: call add_remote_agent or fetch_remote_metadata first")
        return k

    # Metadata by the port of another agent's listen thread.

    def get_listen_port(self) -> int:
        if self._server is None:
            raise nixlNotSupportedError("the agent does not listen: nixl_agent_config.enable_listen_thread is not set")
        return self._server.server_address[1]

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        self._ask(ip_addr, port, {"do": "add", "metadata": self.get_agent_metadata().decode()})

    def send_partial_agent_metadata(self, descs: _DList, inc_conn_info: bool = False, backends: Any = (), ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = "") -> None:
        self._ask(ip_addr, port, {"do": "add", "metadata": self.get_partial_agent_metadata(descs).decode()})

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        self._ask(ip_addr, port, {"do": "remove", "agent": self.name, "address": self.system.addresses[0]}, patience=0)

    def fetch_remote_metadata(self, remote_agent: str, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = "") -> None:
        a = self._ask(ip_addr, port, {"do": "get"})
        if json.loads(a["metadata"])["agent"] != _name(remote_agent):
            raise nixlNotFoundError(f"the agent at {ip_addr}:{port} is not {remote_agent!r}")
        self.add_remote_agent(a["metadata"].encode())

    @staticmethod
    def _ask(ip: str, port: int, what: Dict[str, str], patience: float = 10) -> Dict[str, str]:
        if not ip:
            raise nixlNotSupportedError("without ip_addr the metadata would go to etcd, which this has not: pass the address of the agent")
        at, end = _here(ip), time.monotonic() + patience
        while True:
            try:
                with socket.create_connection((at, port), 10) as s, s.makefile("rw") as f:
                    f.write(json.dumps(what) + "\n")
                    f.flush()
                    return json.loads(f.readline() or "{}")
            except OSError as e:
                if time.monotonic() >= end:
                    if what["do"] == "remove":  # the agent there has ended
                        return {}
                    raise nixlBackendError(f"no agent at {ip}:{port}: {e}") from e
                time.sleep(0.05)

    # Transfers.

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: Optional[str] = None, backends: Any = ()) -> _Side:
        descs = self.get_xfer_descs(xfer_list, mem_type)
        if descs is None:
            raise nixlInvalidParamError("prep_xfer_dlist: no list of descriptors")
        self._served(descs)
        if agent_name in ("", "NIXL_INIT_AGENT"):
            agent_name = ""
            with self._mu:
                _places(list(self._memory), descs.rows, self.name)
        else:
            _places(list(self._agent(agent_name).exports.values()), descs.rows, agent_name)
        return _Side(agent_name, descs)

    def make_prepped_xfer(self, operation: str, local_xfer_side: _Side, local_indices: Any, remote_xfer_side: _Side, remote_indices: Any,
                          notif_msg: Any = b"", backends: Any = (), skip_desc_merge: bool = False) -> _Request:
        kind = _ops[operation]
        here, there = numpy.asarray(local_indices, "i8"), numpy.asarray(remote_indices, "i8")
        return self._request(kind, local_xfer_side.descs.rows[here], remote_xfer_side.descs.rows[there], remote_xfer_side.agent, notif_msg)

    def initialize_xfer(self, operation: str, local_descs: _DList, remote_descs: _DList, remote_agent: Any, notif_msg: Any = b"", backends: Any = ()) -> _Request:
        kind = _ops[operation]
        self._served(local_descs)
        self._served(remote_descs)
        return self._request(kind, local_descs.rows, remote_descs.rows, remote_agent, notif_msg)

    def _request(self, kind: int, here: Any, there: Any, remote: Any, message: Any) -> _Request:
        if len(here) != len(there) or not numpy.array_equal(here[:, 1], there[:, 1]):
            raise nixlInvalidParamError(f"{len(here)} local and {len(there)} remote descriptors: expected as many, of the same lengths")
        k = self._agent(remote)
        with self._mu:
            memory = list(self._memory.items())
            exports = list(k.exports.items())
        mine, at = _places([m[0] for m in memory], here, self.name)
        other, there_at = _places([e[1] for e in exports], there, str(remote))
        remotes = {i: k.remote(exports[i][0]) for i in set(other.tolist())}
        blocks = numpy.empty((len(here), 5), "u8")
        blocks[:, 0] = numpy.array([m[1][0]._h for m in memory], "u8")[mine]
        blocks[:, 1], blocks[:, 2] = at, here[:, 1]
        blocks[:, 3] = numpy.array([remotes[i]._h if i in remotes else 0 for i in range(len(exports))], "u8")[other]
        blocks[:, 4] = there_at
        return _Request(k.peer, kind, blocks, (memory, remotes), int(here[:, 1].sum()), _bytes(message), str(remote), next(iter(self.backends), BACKENDS[0]))

    def transfer(self, handle: _Request, notif_msg: Any = b"") -> str:
        return handle.post(_bytes(notif_msg))

    def check_xfer_state(self, handle: _Request) -> str:
        return handle.look()

    def estimate_xfer_cost(self, req_handle: _Request) -> Any:
        raise nixlNotSupportedError("the expected time is in the explanation of a transfer that was posted: handle.under.explain()")

    def get_xfer_telemetry(self, handle: _Request) -> nixl_xfer_telemetry:
        asked = os.environ.get("NIXL_TELEMETRY_ENABLE")  # which decides where it is set
        if not (self.config.capture_telemetry if asked is None else asked.lower() in ("y", "yes", "1", "on", "true")):
            raise nixlNoTelemetryError("set nixl_agent_config.capture_telemetry, or NIXL_TELEMETRY_ENABLE=y")
        if handle.look() != "DONE":
            raise nixlNoTelemetryError(f"the transfer is in the state {handle.state}")
        us = 1e6
        return nixl_xfer_telemetry(handle.began, max(int((handle.posted - handle.begun) * us), 1), max(int((handle.ended - handle.begun) * us), 1), handle.size,
                                   len(handle.blocks), handle.backend)

    def query_xfer_backend(self, handle: _Request) -> str:
        return handle.backend

    def release_xfer_handle(self, handle: _Request) -> None:
        handle.release()

    def release_dlist_handle(self, handle: _Side) -> None:
        handle.release()

    def prep_mem_view(self, dlist: Any, *, backends: Any = None) -> Any:
        raise nixlNotSupportedError("memory views are for kernels of a GPU, which this agent does not serve")

    def release_mem_view(self, mvh: Any) -> None:
        raise nixlNotSupportedError("memory views are for kernels of a GPU, which this agent does not serve")

    # Messages.

    def send_notif(self, remote_agent_name: Any, notif_msg: Any, backend: Optional[str] = None) -> None:
        self._agent(remote_agent_name).peer.notify(_bytes(notif_msg), _TAG).wait(30)

    def update_notifs(self, backends: Any = ()) -> Dict[str, List[bytes]]:
        with self._mu:
            while True:
                m = self.system.receive(0)
                if m is None:
                    return self._notifs
                self._notifs.setdefault(m.peer, []).append(m.data)

    def get_new_notifs(self, backends: Any = ()) -> Dict[str, List[bytes]]:
        with self._mu:
            out, self._notifs = self.update_notifs(), {}
            return out

    def check_remote_xfer_done(self, remote_agent_name: Any, lookup_tag: Any, backends: Any = (), tag_is_prefix: bool = True) -> bool:
        """Takes the first message of the agent that is, or begins with, the tag."""
        tag = _bytes(lookup_tag)
        name = _name(remote_agent_name)
        with self._mu:
            mine = self.update_notifs().get(name, [])
            for i, m in enumerate(mine):
                if m == tag or tag_is_prefix and m.startswith(tag):
                    del mine[i]
                    return True
        return False


def _bytes(x: Any) -> bytes:
    return x.encode() if isinstance(x, str) else bytes(x)


def _name(agent: Any) -> str:
    """The name of an agent, which add_remote_agent gave as bytes."""
    return agent.decode() if isinstance(agent, bytes) else agent


def _here(host: str) -> str:
    """127.0.0.1, where agents listen, for each address of this machine: programs name themselves by the one that others would reach."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as s:
            s.bind(address)
    except OSError:
        return host
    return "127.0.0.1"


def _listen(agent: nixl_agent, port: int) -> socketserver.ThreadingTCPServer:
    """Serves metadata to processes of this machine."""
    weak = weakref.ref(agent)

    class Handler(socketserver.StreamRequestHandler):
        timeout = 10

        def handle(self) -> None:
            a = weak()
            line = self.rfile.readline(16 << 20)
            if a is None or not line:
                return
            answer: Dict[str, str] = {}
            try:
                q = json.loads(line)
                if q["do"] == "add":
                    a.add_remote_agent(q["metadata"].encode())
                elif q["do"] == "get":
                    answer["metadata"] = a.get_agent_metadata().decode()
                elif q["do"] == "remove":
                    with a._mu:
                        if q["agent"] in a._known and a._known[q["agent"]].address == q["address"]:
                            del a._known[q["agent"]]
            except (ValueError, KeyError, TypeError, nixlError, _lib.Error) as e:
                logging.getLogger("nixl").warning("metadata from %s: %s", self.client_address, e)
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True
        over = False

        def service_actions(self) -> None:
            if self.over:
                raise SystemExit  # of the thread

        def end(self) -> None:
            self.over = True  # the thread sees it within half a second: a wait for it could be in its own way
            self.server_close()

    s = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    weakref.finalize(agent, s.end)
    return s


def malloc_passthru(size: int) -> int:
    """Memory for tests of NIXL, which give it back by free_passthru."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return libc.malloc(size)


def free_passthru(address: int) -> None:
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(address)


def install() -> None:
    """Puts modules in place so that a program which imports nixl gets this."""
    here = sys.modules[__name__]
    api, bindings, utils, log = (types.ModuleType("nixl." + n) for n in ("_api", "_bindings", "_utils", "logging"))
    for name in ("nixl_agent", "nixl_agent_config", "nixl_thread_sync_t", "nixl_xfer_telemetry", "DEFAULT_COMM_PORT"):
        setattr(api, name, getattr(here, name))
    for name in dir(here):
        if name.startswith("nixl") and name.endswith(("Error", "DList")) or name.endswith("_SEG"):
            setattr(bindings, name, getattr(here, name))
    api.__dict__.update(nixlBind=bindings, nixl_prepped_dlist_handle=_Side, nixl_xfer_handle=_Request)
    bindings.HAVE_UCX_GPU_DEVICE_API = False  # type: ignore[attr-defined]
    setattr(utils, "malloc_passthru", malloc_passthru)
    setattr(utils, "free_passthru", free_passthru)
    setattr(log, "get_logger", logging.getLogger)
    package = types.ModuleType("nixl")
    package.__path__ = []  # type: ignore[attr-defined]
    package.__dict__.update({k: v for k, v in vars(api).items() if not k.startswith("_")})
    for m in (api, bindings, utils, log):
        sys.modules[m.__name__] = m
        setattr(package, m.__name__.rsplit(".", 1)[1], m)
    sys.modules["nixl"] = package
