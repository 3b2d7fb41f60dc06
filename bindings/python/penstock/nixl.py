"""NIXL's agent for memory of the host and of CUDA devices, over Penstock. install() lets programs import nixl._api and find this.

    import penstock.nixl
    penstock.nixl.install()
    from nixl._api import nixl_agent, nixl_agent_config

What an agent says of itself (get_agent_metadata) is its name, the address of a socket that only this user's processes can open, and the names of the
memory that it has registered: so agents are on one machine. An agent asks the one at the address for its name before it uses the address. What NIXL
has and this has not raises nixlNotSupportedError with the reason. Names, arguments and results are those of NIXL 1.4 (src/api/python/_api.py of
ai-dynamo/nixl).
"""
from __future__ import annotations

import collections
import ctypes
import itertools
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import types
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy

from . import _lib, _nixltypes
from ._lib import GET, PUT, call
from ._memory import Memory, memory_of
from ._nixlpeers import (_MEMORY, _PREFIX, _answers, _check_private, _exports, _here, _Known, _name_and_address, _object, _over, _say, _spans, _who)
from ._nixltransfer import _TAG, BACKENDS, _places, _Request, _Side
from ._nixltypes import (BLK_SEG, DEFAULT_COMM_PORT, DRAM_SEG, FILE_SEG, NIXL_INIT_AGENT, OBJ_SEG, VRAM_SEG, _DList, in_nixl, nixl_agent_config,
                         nixl_thread_sync_t, nixl_xfer_telemetry, nixlBackendError, nixlCancelledError, nixlError, nixlInvalidParamError, nixlMismatchError,
                         nixlNoTelemetryError, nixlNotAllowedError, nixlNotFoundError, nixlNotPostedError, nixlNotSupportedError, nixlRegDList,
                         nixlRemoteDisconnectError, nixlRepostActiveError, nixlUnknownError, nixlXferDList)
from ._region import Region
from ._transfer import READ, WRITE, Export, Peer, System

_MOST = 10000  # names that one message of metadata has room for
_LONG = 2048  # bytes of a message that no path carries
_METADATA = 2  # tag of messages of agents about themselves

_mems = {"DRAM": DRAM_SEG, "VRAM": VRAM_SEG, "BLOCK": BLK_SEG, "OBJ": OBJ_SEG, "FILE": FILE_SEG, "cpu": DRAM_SEG, "cuda": VRAM_SEG}
_ops = {"READ": GET, "WRITE": PUT}


class _Registered(NamedTuple):
    region: Region
    export: Export
    name: str
    times: int  # registered


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
        self._end = weakref.finalize(self, _remove, self._directory, os.getpid())
        self.address = f"unix://{self._directory}/agent.sock"
        # The node asks the kernel who connects, and bounds connections and what they send.
        self.system = System(name=agent_name, listen=[self.address] + [f"tcp://127.0.0.1:{c.listen_port}"] * c.enable_listen_thread)
        self.system.subscribe(_TAG)
        if c.enable_listen_thread:
            self.system.subscribe(_METADATA)
        self._who = _say(self.system, self._said())
        self._count = itertools.count()
        self._memory: Dict[Tuple[int, int], _Registered] = {}
        self._known: Dict[str, _Known] = {}
        self._notifs: Dict[str, List[bytes]] = {}
        for b in c.backends:
            self.create_backend(b)

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
        try:
            d = json.loads(serialized_descs)
            return {"nixlRegDList": nixlRegDList, "nixlXferDList": nixlXferDList}[d["kind"]](d["mem"], d["rows"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as e:
            raise nixlMismatchError(f"that is no list of get_serialized_descs: {e!r}") from e

    # Memory.

    def register_memory(self, reg_list: Any, mem_type: Optional[str] = None, backends: Any = ()) -> Optional[nixlRegDList]:
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None:
            raise nixlInvalidParamError("register_memory: no list of descriptors: expected tensors, arrays, or tuples of (address, length, device, text) with mem_type")
        self._served(descs)
        added: List[Tuple[int, int]] = []
        try:
            for address, size, _ in descs.rows.tolist():
                self._add(address, size)
                added.append((address, size))
        except BaseException:
            self._drop(added)
            raise
        return descs

    def _add(self, address: int, size: int, region: Optional[Region] = None) -> None:
        """Registers memory. What is registered already is counted: it stays until it was deregistered as often."""
        with self._mu:
            m = self._memory.get((address, size))
            if m is None:
                r = region or Region(call("penstock_adopt", b"", address, size), Memory(address, size, None, True))
                name = f"{_MEMORY}{next(self._count):08x}-{address:x}-{size:x}"
                m = _Registered(r, self.system.export(r, name, READ | WRITE), name, 0)
            self._memory[address, size] = m._replace(times=m.times + 1)

    def deregister_memory(self, dereg_list: Any, backends: Any = ()) -> None:
        descs = self.get_reg_descs(dereg_list) if not isinstance(dereg_list, _DList) else dereg_list
        if descs is None:
            raise nixlInvalidParamError("deregister_memory: no list of descriptors")
        self._drop([(address, size) for address, size, _ in descs.rows.tolist()])

    def _drop(self, which: List[Tuple[int, int]]) -> None:
        with self._mu:
            for k, times in collections.Counter(which).items():
                if k not in self._memory or self._memory[k].times < times:
                    raise nixlNotFoundError(f"the {k[1]} bytes at {k[0]:#x} are not registered, or not as often")
            for k in which:
                m = self._memory[k]
                if m.times > 1:
                    self._memory[k] = m._replace(times=m.times - 1)
                    continue
                del self._memory[k]
                m.export.close()
                m.region.close()

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
        with self._mu:
            return json.dumps(self._said(exports=[m.name for m in self._memory.values()])).encode()

    def _said(self, **more: Any) -> Dict[str, Any]:
        return {"agent": self.name, "address": self.address, **more}

    def get_partial_agent_metadata(self, descs: _DList, inc_conn_info: bool = False, backends: Any = ()) -> bytes:
        return json.dumps(self._said(exports=self._partial(descs), partial=True)).encode()

    def _partial(self, descs: _DList) -> List[str]:
        with self._mu:
            memory = list(self._memory.items())
            which = set(_places([m[0] for m in memory], descs.rows, self.name)[0].tolist()) if len(descs) else set()
        return [memory[i][1].name for i in which]

    def add_remote_agent(self, metadata: bytes) -> bytes:
        return self._add_remote(_object(metadata)).encode()

    def _add_remote(self, d: Dict[str, Any], told: bool = False) -> str:
        """Takes metadata that the program has got, or a message of the agent itself (told)."""
        name, address = _name_and_address(d)
        names = d.get("exports")
        if not isinstance(names, list) and not (told and names is None):
            raise nixlInvalidParamError("that is no metadata of an agent: it has no list of exports")
        exports = None if names is None else _spans(names)
        _check_private(name, address)
        with self._mu:
            k = self._known.get(name)
        if k is None or k.address != address:
            if told and k is not None and _answers(k):
                raise nixlNotAllowedError(f"another agent says that it is {name!r}, which is at {k.address} and answers")
            k = _Known(self.system, name, address)
        k.told(exports, bool(d.get("partial")))
        with self._mu:
            old, self._known[name] = self._known.get(name), k
        if old is not None and old is not k:
            old.close()
        return name

    def remove_remote_agent(self, agent: Any) -> None:
        with self._mu:
            k = self._known.pop(_name(agent), None)
        if k is None:
            raise nixlNotFoundError(f"no agent {agent!r} was added")
        k.close()

    def make_connection(self, remote_agent: str, backends: Any = ()) -> None:
        self._agent(remote_agent).renew()

    def check_remote_metadata(self, agent: Any, descs: Any = None) -> bool:
        try:
            k = self._agent(agent)
            if descs is not None and len(descs) > 0:
                _places(list(k.exports.values()), descs.rows, k.name)
        except nixlNotFoundError:
            return False
        return True

    def _agent(self, name: Any) -> _Known:
        name = _name(name)
        if self.config.enable_listen_thread:
            self.update_notifs()  # it may have told of itself
        with self._mu:
            k = self._known.get(name)
        if k is None:
            raise nixlNotFoundError(f"no agent {name!r} was added: call add_remote_agent or fetch_remote_metadata first")
        return k

    # Metadata by the port of an agent with a listen thread.

    def get_listen_port(self) -> int:
        if not self.config.enable_listen_thread:
            raise nixlNotSupportedError("the agent does not listen: nixl_agent_config.enable_listen_thread is not set")
        return int(self.system.addresses[1].rsplit(":", 1)[1])

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        self._tell(ip_addr, port, self._said())

    def send_partial_agent_metadata(self, descs: _DList, inc_conn_info: bool = False, backends: Any = (), ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = "") -> None:
        names = self._partial(descs)
        self._tell(ip_addr, port, *(self._said(exports=names[i:i + _MOST], partial=True) for i in range(0, max(len(names), 1), _MOST)))

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        try:
            self._tell(ip_addr, port, self._said(gone=True), patience=0)
        except _lib.Error as e:
            if not e.retriable:
                raise  # else the agent there has ended

    def fetch_remote_metadata(self, remote_agent: str, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = "") -> None:
        d = self._fetch(ip_addr, port)
        if d["agent"] != _name(remote_agent):
            raise nixlNotFoundError(f"the agent at {ip_addr}:{port} is {d['agent']!r} and not {remote_agent!r}")
        self._add_remote(d)

    def _tell(self, ip: str, port: int, *messages: Dict[str, Any], patience: float = 10) -> None:
        with self._meet(ip, port, patience) as peer:
            for m in messages:
                # Long enough to go by the control connection, which answers when it is there: what a path has taken is lost with a session that ends at once.
                peer.notify(json.dumps(m).encode().ljust(_LONG), _METADATA).wait(30)

    def _fetch(self, ip: str, port: int, patience: float = 10) -> Dict[str, Any]:
        """What the agent at a port says of itself, and all memory that it has registered."""
        with self._meet(ip, port, patience) as peer:
            name, address = _who(peer)
            return {"agent": name, "address": address, "exports": list(_exports(peer))}

    def _meet(self, ip: str, port: int, patience: float) -> Peer:
        """A session with the agent at a port, which may begin to listen soon. The node refuses an agent of another user."""
        if not ip:
            raise nixlNotSupportedError("without ip_addr the metadata would go to etcd, which this has not: pass the address of the agent")
        at, end = f"tcp://{_here(ip)}:{port}", time.monotonic() + patience
        while True:
            try:
                return self.system.connect(at, 10)
            except _lib.Error as e:
                if not e.retriable or time.monotonic() >= end:
                    raise
                time.sleep(0.05)

    def _told(self, sender: str, message: bytes) -> None:
        """Takes what another agent says of itself."""
        try:
            d = _object(message)
            name, address = _name_and_address(d)
            if name != sender:
                raise nixlNotAllowedError(f"it speaks of {name!r}: expected that an agent speaks of itself")
            if not d.get("gone"):
                self._add_remote(d, told=True)
            elif name in self._known and self._known[name].address == address:
                self.remove_remote_agent(name)
        except (nixlError, _lib.Error) as e:
            logging.getLogger("nixl").warning("metadata from %r: %s", sender, e)

    # Transfers.

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: Optional[str] = None, backends: Any = ()) -> _Side:
        descs = self.get_xfer_descs(xfer_list, mem_type)
        if descs is None:
            raise nixlInvalidParamError("prep_xfer_dlist: no list of descriptors")
        self._served(descs)
        if agent_name in ("", NIXL_INIT_AGENT):
            agent_name = ""
            with self._mu:
                _places(list(self._memory), descs.rows, self.name)
        else:
            _places(list(self._agent(agent_name).exports.values()), descs.rows, agent_name)
        return _Side(agent_name, descs)

    def make_prepped_xfer(self, operation: str, local_xfer_side: _Side, local_indices: Any, remote_xfer_side: _Side, remote_indices: Any,
                          notif_msg: Any = b"", backends: Any = (), skip_desc_merge: bool = False) -> _Request:
        kind = _ops[operation]
        try:
            here = local_xfer_side.descs.rows[numpy.asarray(local_indices, "i8")]
            there = remote_xfer_side.descs.rows[numpy.asarray(remote_indices, "i8")]
        except IndexError as e:
            raise nixlInvalidParamError(f"make_prepped_xfer: {e}; was the list released?") from e
        return self._request(kind, here, there, remote_xfer_side.agent, notif_msg)

    def initialize_xfer(self, operation: str, local_descs: _DList, remote_descs: _DList, remote_agent: Any, notif_msg: Any = b"", backends: Any = ()) -> _Request:
        kind = _ops[operation]
        self._served(local_descs)
        self._served(remote_descs)
        return self._request(kind, local_descs.rows, remote_descs.rows, remote_agent, notif_msg)

    def _request(self, kind: int, here: Any, there: Any, remote: Any, message: Any) -> _Request:
        return _Request(self, kind, here, there, _name(remote), _bytes(message))

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
                                   len(handle.here), handle.backend)

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
        k, message = self._agent(remote_agent_name), _bytes(notif_msg)
        try:
            t = k.peer.notify(message, _TAG)
        except _over:
            k.renew()
            t = k.peer.notify(message, _TAG)
        t.wait(30)

    def update_notifs(self, backends: Any = ()) -> Dict[str, List[bytes]]:
        with self._mu:
            while True:
                m = self.system.receive(0)
                if m is None:
                    return self._notifs
                if m.tag == _METADATA:
                    self._told(m.peer, m.data)
                else:
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


for _n, _f in list(vars(nixl_agent).items()):
    if callable(_f) and (not _n.startswith("_") or _n == "__init__"):
        setattr(nixl_agent, _n, in_nixl(_f))


def _bytes(x: Any) -> bytes:
    return x.encode() if isinstance(x, str) else bytes(x)


def _name(agent: Any) -> str:
    """The name of an agent, which add_remote_agent gave as bytes."""
    return agent.decode() if isinstance(agent, bytes) else agent


def _remove(directory: str, owner: int) -> None:
    """Removes the directory of an agent that is not the one of a process of which this is a fork."""
    if os.getpid() == owner:
        shutil.rmtree(directory, True)


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
    for name, x in vars(_nixltypes).items():
        if name.startswith(("nixl", "NIXL_", "DEFAULT_")) or name.endswith("_SEG"):
            setattr(bindings, name, x)
    for enum in (_nixltypes.nixl_mem_t, _nixltypes.nixl_xfer_op_t, _nixltypes.nixl_status_t, nixl_thread_sync_t):
        bindings.__dict__.update(enum.__members__)
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
