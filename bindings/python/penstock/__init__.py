"""Penstock moves bytes between the memories of machines, and packets from a network into memory.

A System is what a configuration describes, open: a node for transfers, interfaces with queues of packets. A node exports memory under a
name; another one connects with it (a Peer), finds the name (a Remote), and puts bytes there or gets them:

    import numpy, penstock

    with penstock.System(name="a") as a, a.connect("tcp://127.0.0.1:7070") as peer:
        x = numpy.arange(1000, dtype=numpy.float32)
        peer.put(x, "weights").wait()

The bytes are in place and verified when wait returns. docs/python.md has more.
"""
from ._lib import (Error, InvalidError, TimeoutError, CanceledError, ClosedError, PeerLostError, NotFoundError, RightsError, RevokedError,
                   BoundsError, UnreachableError, IntegrityError, FullError, MissingError, use_agent)
from ._region import Reach, Region, Tensor, alloc, empty, adopt, is_dma_capable
from ._transfer import System, Peer, Remote, Entry, Export, Share, Transfer, Prepared, Message, READ, WRITE
from ._stream import Batch, Rx, Burst

__all__ = [
    "System", "Peer", "Remote", "Entry", "Region", "Tensor", "Export", "Share", "Transfer", "Prepared", "Message", "Rx", "Burst", "Batch", "Reach", "alloc", "empty", "adopt", "is_dma_capable", "use_agent", "READ", "WRITE",
    "Error", "InvalidError", "TimeoutError", "CanceledError", "ClosedError", "PeerLostError", "NotFoundError", "RightsError", "RevokedError",
    "BoundsError", "UnreachableError", "IntegrityError", "FullError", "MissingError",
]
