"""Streams: bursts of packets, as views of where they lie."""
from __future__ import annotations

import ctypes
from typing import Any, Iterator, List, Optional, Sequence

from ._lib import CSegment, InvalidError, call, slices
from ._memory import memory_of
from ._region import _Handle
from ._transfer import System

_ROOM = 4096


class Burst:
    """Packets that were received together. Their views are valid until release, or the end of a with."""

    def __init__(self, rx: "Rx", segments: Any, n: int):
        self._rx, self._segments, self._n = rx, segments, n
        self.released = False

    def __len__(self) -> int:
        return self._segments[self._n - 1].packet + 1 if self._n else 0

    def _views(self) -> Iterator[Any]:
        if self.released:
            raise InvalidError("the packets of this burst were released")
        for s in self._segments[:self._n]:
            yield s, memoryview((ctypes.c_char * s.size).from_address(s.data)).cast("B")

    @property
    def packets(self) -> List[memoryview]:
        """Each packet, without a copy; of a packet with several segments the first one. See segments."""
        out: List[memoryview] = []
        for s, v in self._views():
            if s.packet == len(out):
                out.append(v)
        return out

    @property
    def segments(self) -> List[List[memoryview]]:
        """The segments of each packet, without a copy."""
        out: List[List[memoryview]] = []
        for s, v in self._views():
            if s.packet == len(out):
                out.append([])
            out[-1].append(v)
        return out

    def arrays(self) -> List[Any]:
        """The packets as numpy arrays of bytes, without a copy."""
        import numpy
        return [numpy.frombuffer(p, "u1") for p in self.packets]

    @property
    def times(self) -> List[Optional[int]]:
        """When each packet was received, in ns since 1970, or None."""
        out: List[Optional[int]] = []
        for s in self._segments[:self._n]:
            if s.packet == len(out):
                out.append(s.time if s.timed else None)
        return out

    @property
    def flows(self) -> List[int]:
        """The ID of the flow rule that each packet matched, or 0."""
        out: List[int] = []
        for s in self._segments[:self._n]:
            if s.packet == len(out):
                out.append(s.flow)
        return out

    def release(self) -> None:
        """Gives the packets back. A second release does nothing."""
        if not self.released:
            self.released = True
            call("penstock_release", self._rx._h)

    def __enter__(self) -> "Burst":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


class Rx(_Handle):
    """A receive queue. Iterating it gives bursts, and releases each when the next one is asked for."""

    def __init__(self, handle: int, system: System):
        super().__init__(handle, system)
        self._room = (CSegment * _ROOM)()
        self._last: Optional[Burst] = None

    def receive(self, timeout: Optional[float] = None) -> Optional[Burst]:
        """Waits for packets, or returns None when there are none within the time. It releases the burst before."""
        if self._last is not None:
            self._last.release()
        for ms in slices(timeout):
            n = call("penstock_burst", self._h, self._room, _ROOM, ms)
            if n > 0:
                self._last = Burst(self, self._room, n)
                return self._last
        return None

    def __iter__(self) -> Iterator[Burst]:
        while True:
            b = self.receive()
            if b is not None:
                yield b


def send(system: System, interface: str, packets: Sequence[Any], queue: int) -> int:
    a = (CSegment * len(packets))()
    keep = []
    for i, p in enumerate(packets):
        m = memory_of(p)
        a[i].data, a[i].size, a[i].packet = m.address, m.size, i
        keep.append(m.keep)
    return call("penstock_send", system._h, interface.encode(), queue, a, len(packets))
