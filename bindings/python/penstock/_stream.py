"""Streams: bursts of packets, as views of where they lie."""
from __future__ import annotations

import ctypes
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from ._lib import CBatch, CSegment, InvalidError, call, slices
from ._memory import DTYPES, memory_of
from ._region import _Handle
from ._transfer import System, _tensor

_ROOM = 4096
_WORDS = 1024  # of the bitmap of the largest batch


class Batch:
    """A batch of a reorder plan, which is received as one packet: its id, how many packets of per_batch are there, the bitmap, whether a timeout ended it, the earliest
    and the latest receive time of its packets in ns since 1970 (None where the queue has no timestamps), and the dtype and the shape of its bytes."""

    def __init__(self, burst: "Burst", packet: int, c: CBatch, bitmap: bytes):
        self._burst, self._packet = burst, packet
        self.id, self.packets, self.per_batch, self.bitmap, self.timed_out = c.id, c.packets, c.per_batch, bitmap, bool(c.timed_out)
        self.first: Optional[int] = c.first or None
        self.last: Optional[int] = c.last or None
        self.dtype: Optional[str]
        self.shape: Tuple[int, ...]
        self.dtype, self.shape = _tensor(c.what)

    def has(self, place: int) -> bool:
        """Whether the packet of a place is there; the bytes of the others are zero."""
        if not 0 <= place < self.per_batch:
            raise InvalidError(f"place {place} of a batch of {self.per_batch} packets")
        return bool(self.bitmap[place // 8] >> place % 8 & 1)

    @property
    def present(self) -> Any:
        """Which packets are there, as a numpy array of bool."""
        import numpy
        return numpy.unpackbits(numpy.frombuffer(self.bitmap, "u1"), bitorder="little")[:self.per_batch].astype(bool)

    @property
    def memory(self) -> memoryview:
        """The bytes, without a copy, until the burst is released."""
        return self._burst._memory(self._packet)

    def array(self) -> Any:
        """A numpy array of the batch, without a copy, until the burst is released."""
        import numpy
        dtype = DTYPES[self.dtype].numpy if self.dtype else None
        if dtype is None:
            raise InvalidError(f"numpy has no {self.dtype}: use tensor(), for torch, or memory")
        return numpy.frombuffer(self.memory, dtype).reshape(self.shape)

    def tensor(self) -> Any:
        """A torch tensor of the batch, without a copy, until the burst is released."""
        import torch
        dtype = getattr(torch, self.dtype or "", None)
        if dtype is None:
            raise InvalidError(f"this torch has no tensors of {self.dtype}: use memory")
        return torch.frombuffer(self.memory, dtype=dtype).reshape(self.shape)

    def __repr__(self) -> str:
        return f"<Batch {self.id}: {self.packets} of {self.per_batch} packets, {self.dtype}{list(self.shape)}>"


class Burst:
    """Packets that were received together. Their views are valid until release, or the end of a with."""

    def __init__(self, rx: "Rx", segments: Any, n: int):
        self._rx, self._segments, self._n = rx, segments, n
        self.released = False

    def __len__(self) -> int:
        return self._segments[self._n - 1].packet + 1 if self._n else 0

    def _held(self) -> None:
        if self.released:
            raise InvalidError("the packets of this burst were released")

    def _memory(self, packet: int) -> memoryview:
        """The bytes of a batch."""
        self._held()
        for s in self._segments[:self._n]:
            if s.packet == packet and s.size:
                return memoryview((ctypes.c_char * s.size).from_address(s.data)).cast("B")
        raise InvalidError(f"the batch of packet {packet} is in memory of an accelerator, which the processor does not reach: write kind: host_pinned for the memory region "
                           "of the batches, which kernels reach too")

    def _views(self) -> Iterator[Any]:
        self._held()
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
    def batches(self) -> List[Optional[Batch]]:
        """What is known of each packet that is a batch of a reorder plan, None for the others."""
        self._held()
        out: List[Optional[Batch]] = []
        words = (ctypes.c_uint64 * _WORDS)()
        for packet in range(len(self)):
            c = CBatch()
            is_one = call("penstock_batch_of", self._rx._h, packet, ctypes.byref(c), words, _WORDS)
            out.append(Batch(self, packet, c, b"".join(w.to_bytes(8, "little") for w in words[:c.words])) if is_one else None)
        return out

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
