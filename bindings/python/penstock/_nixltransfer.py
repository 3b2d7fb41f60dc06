"""Transfers of penstock.nixl."""
from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

import numpy

from . import _lib
from ._lib import call
from ._nixlpeers import _Known, _over
from ._nixltypes import _DList, nixlInvalidParamError, nixlNotFoundError, nixlRepostActiveError, nixlXferDList
from ._transfer import Transfer, _options

if TYPE_CHECKING:
    from .nixl import nixl_agent

BACKENDS = ("UCX", "PENSTOCK")  # one and the same: programs name UCX
_TAG = 1  # of messages of programs
_RIDES = 1003  # bytes of a message that travel with a transfer: transfer.MaxPayload


class _Side:
    """A list that make_prepped_xfer takes blocks of."""

    def __init__(self, agent: str, descs: _DList):
        self.agent, self.descs = agent, descs

    def release(self) -> None:
        self.descs = nixlXferDList(self.descs.mem)


class _Request:
    """A transfer that can be posted again when it has ended."""

    def __init__(self, agent: "nixl_agent", kind: int, here: Any, there: Any, remote: str, message: bytes):
        if len(here) != len(there) or not numpy.array_equal(here[:, 1], there[:, 1]):
            raise nixlInvalidParamError(f"{len(here)} local and {len(there)} remote descriptors: expected as many, of the same lengths")
        self.agent, self.kind, self.here, self.there, self.remote, self.message = agent, kind, here, there, remote, message
        self.size, self.backend = int(here[:, 1].sum()), next(iter(agent.backends), BACKENDS[0])
        self.state, self.under, self.later, self.released = "INIT", None, b"", False  # type: str, Optional[Transfer], bytes, bool
        self.begun = self.posted = self.ended = 0.0
        self.began = 0
        self.failure: Optional[_lib.Error] = None
        self.known: Optional[_Known] = None
        self.version = 0  # of what is known, that the blocks are of
        self.blocks: Any = None  # of numbers for memory here and there; None: what they stood for may be over
        self._bound(lambda: None)

    def _bound(self, f: Callable[[], Any]) -> Any:
        """Calls f when the blocks are there: once more, with new ones, where what the blocks stand for is over."""
        try:
            if self.blocks is None or self.known is None or self.version != self.known.version:
                self._bind()
            return f()
        except _over:
            self._is_over()
            self._bind()
            return f()

    def _is_over(self) -> None:
        self.blocks = None
        if self.known is not None:
            self.known.stale = True

    def _bind(self) -> None:
        self.known = known = self.agent._agent(self.remote)
        if known.stale:
            known.renew()
        self.version = known.version
        with self.agent._mu:
            memory = list(self.agent._memory.items())
        exports = list(known.exports.items())
        mine, at = _places([m[0] for m in memory], self.here, self.agent.name)
        other, there_at = _places([e[1] for e in exports], self.there, self.remote)
        peer, remotes = known.lookup({i: exports[i][0] for i in set(other.tolist())})
        b = numpy.empty((len(self.here), 5), "u8")
        b[:, 0] = numpy.array([m[1].region._h for m in memory], "u8")[mine]
        b[:, 1], b[:, 2] = at, self.here[:, 1]
        b[:, 3] = numpy.array([remotes[i]._h if i in remotes else 0 for i in range(len(exports))], "u8")[other]
        b[:, 4] = there_at
        self.peer, self.keep, self.blocks = peer, (memory, remotes), b

    def post(self, message: bytes) -> str:
        if self.released:
            raise nixlInvalidParamError("the transfer was released: make another one")
        if self.look() == "PROC":
            raise nixlRepostActiveError("the transfer is under way: it can be posted again when it has ended")
        self.state = "ERR"  # unless it is posted
        self.message = message or self.message
        rides = self.message if len(self.message) <= _RIDES else b""
        self.later = self.message if not rides else b""
        self.began, self.begun = time.time_ns() // 1000, time.perf_counter()
        o = _options(rides or None, _TAG if rides else 0, None, False)
        h = self._bound(lambda: call("penstock_post", self.peer._h, self.kind, self.blocks.ctypes.data, len(self.blocks), o))
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
                logging.getLogger("nixl").error("a transfer with %r failed: %s", self.remote, e)
                self.state = "ERR"
                self.failure = e
                if isinstance(e, _over):
                    self._is_over()
            self.ended = time.perf_counter()
        return self.state

    def release(self) -> None:
        if self.look() == "PROC" and self.under is not None:
            self.under.cancel()
        self.under, self.state, self.released = None, "ERR", True


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
