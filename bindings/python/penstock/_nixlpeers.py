"""Other agents, as one of penstock.nixl knows them: who they are, where, and what memory they have registered."""
from __future__ import annotations

import json
import os
import re
import socket
import stat
import threading
from typing import Any, Dict, List, Optional, Tuple

from . import _lib
from ._nixltypes import nixlError, nixlInvalidParamError, nixlNotAllowedError, nixlNotFoundError, nixlNotSupportedError, nixlRemoteDisconnectError
from ._transfer import Export, Peer, Remote, System

_PREFIX = "penstock-nixl-"  # of the directories in which agents have their sockets
_WHO = "agent/"  # exports of one byte, in whose names an agent says who it is
_MEMORY = "memory/"  # exports of memory: when it was registered, its address and its size, in hexadecimal
_NAME = re.compile(_MEMORY + r"[0-9a-f]{8,}-([0-9a-f]{1,16})-([0-9a-f]{1,16})")
# What says that a session, a name, or memory that was looked up before is over.
_over = (_lib.PeerLostError, _lib.ClosedError, _lib.RevokedError, _lib.NotFoundError, _lib.InvalidError)


class _Known:
    """Another agent: a session with it, and the memory that it has registered, as far as this agent was told, by name."""

    def __init__(self, system: System, name: str, address: str):
        self.system, self.name, self.address = system, name, address
        self.exports: Dict[str, Tuple[int, int]] = {}
        self.version = 0
        self.stale = False  # something of it is over, or may be
        self._mu = threading.Lock()
        self._connect()

    def _connect(self) -> None:
        try:
            peer = self.system.connect(self.address, 10)
        except _lib.TimeoutError:
            raise
        except _lib.Error as e:
            raise nixlRemoteDisconnectError(f"the agent {self.name!r} has ended: {e}") from e
        if _who(peer) != (self.name, self.address):
            peer.close()
            raise nixlNotAllowedError(f"the agent at {self.address} is not {self.name!r}: expected metadata that the agent itself made")
        self.peer, self._remotes = peer, {}  # type: Peer, Dict[str, Remote]

    def renew(self) -> None:
        """Connects again where the session is over, and forgets memory that the agent has no more."""
        with self._mu:
            there = self._there()
            self._remotes, self.stale = {}, False
            self.version += 1
            self.exports = {n: s for n, s in self.exports.items() if n in there}

    def _there(self) -> Dict[str, Tuple[int, int]]:
        """The memory that the agent has now, in another session where the one before is over."""
        try:
            return _exports(self.peer)
        except _over:
            self._connect()
            return _exports(self.peer)

    def told(self, exports: Optional[Dict[str, Tuple[int, int]]], partial: bool) -> None:
        """Takes new metadata: of all its memory, or of more of it; None: of what it has now."""
        with self._mu:
            if exports is None:
                exports = self._there()
            self.exports = {**self.exports, **exports} if partial else exports
            self._remotes = {n: r for n, r in self._remotes.items() if n in self.exports}
            self.stale = partial and self.version > 0  # what it had before may have been deregistered since
            self.version += 1

    def close(self) -> None:
        """Ends what uses it: that asks for the agent anew."""
        with self._mu:
            self.version += 1
            self.peer.close()

    def lookup(self, names: Dict[int, str]) -> Tuple[Peer, Dict[int, Remote]]:
        """The session, and what the names stand for in it."""
        with self._mu:
            for n in names.values():
                if n not in self._remotes:
                    self._remotes[n] = self.peer.lookup(n)
            return self.peer, {i: self._remotes[n] for i, n in names.items()}


def _say(system: System, what: Dict[str, Any]) -> List[Export]:
    """Says who an agent is, in as many names of 255 bytes as it takes."""
    text = json.dumps(what)
    return [system.export(b"?", f"{_WHO}{i // 200:02}/{text[i:i + 200]}") for i in range(0, len(text), 200)]


def _who(peer: Peer) -> Tuple[str, str]:
    """The name and the address of the agent at the other end."""
    return _name_and_address(_object("".join(e.name[len(_WHO) + 3:] for e in peer.list(_WHO))))


def _exports(peer: Peer) -> Dict[str, Tuple[int, int]]:
    return _spans([e.name for e in peer.list(_MEMORY)])


def _object(b: Any) -> Dict[str, Any]:
    """What JSON of another process has, which is an object."""
    try:
        d = json.loads(b)
    except (ValueError, TypeError, RecursionError) as e:
        raise nixlInvalidParamError(f"that is no metadata of an agent: {e}") from e
    if not isinstance(d, dict):
        raise nixlInvalidParamError(f"that is no metadata of an agent: {type(d).__name__}, expected an object")
    return d


def _name_and_address(d: Dict[str, Any]) -> Tuple[str, str]:
    return str(d.get("agent", "")), str(d.get("address", ""))


def _spans(names: Any) -> Dict[str, Tuple[int, int]]:
    """The address and size that names of exported memory have."""
    out = {}
    for n in names:
        m = _NAME.fullmatch(n) if isinstance(n, str) else None
        if m is None:
            raise nixlInvalidParamError(f"{n!r} is no name of an agent's memory")
        out[n] = int(m[1], 16), int(m[2], 16)
    return out


def _check_private(name: str, address: str) -> None:
    """Refuses an address at which another user of this machine could listen, who may have made the metadata."""
    at = os.path.dirname(address[len("unix://"):])
    private = address.startswith("unix:///") and os.path.basename(at).startswith(_PREFIX)
    try:
        if private:
            status = os.lstat(at)
            private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0
    except (OSError, ValueError) as e:
        raise nixlNotFoundError(f"the agent {name!r} is not there: {e}") from e
    if not private:
        raise nixlInvalidParamError(f"the agent {name!r} is at {address}: expected a socket in a directory {_PREFIX}* that only this user can enter")


def _answers(known: _Known) -> bool:
    """Whether the agent is there, or may be: it has until the timeout."""
    try:
        known.renew()
    except _lib.TimeoutError:
        return True
    except (_lib.Error, nixlError):
        return False
    return True


def _here(host: str) -> str:
    """127.0.0.1, where agents listen, for each address of this machine: programs name themselves by the one that others would reach."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as s:
            s.bind(address)
    except (OSError, UnicodeError) as e:
        raise nixlNotSupportedError(f"{host!r}: {e}; expected an address of this machine: agents exchange metadata on one machine") from e
    return "127.0.0.1"
