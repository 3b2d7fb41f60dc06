"""What penstock.nixl has of NIXL's classes in C++: numbers, errors, lists of descriptors."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Callable, Optional, Tuple

import numpy

from . import _lib

DEFAULT_COMM_PORT = 5555
NIXL_INIT_AGENT = "NIXL_INIT_AGENT"


class nixl_mem_t(IntEnum):
    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


class nixl_xfer_op_t(IntEnum):
    NIXL_READ = 0
    NIXL_WRITE = 1


class nixl_status_t(IntEnum):
    NIXL_IN_PROG = 1
    NIXL_SUCCESS = 0
    NIXL_ERR_NOT_POSTED = -1
    NIXL_ERR_INVALID_PARAM = -2
    NIXL_ERR_BACKEND = -3
    NIXL_ERR_NOT_FOUND = -4
    NIXL_ERR_MISMATCH = -5
    NIXL_ERR_NOT_ALLOWED = -6
    NIXL_ERR_REPOST_ACTIVE = -7
    NIXL_ERR_UNKNOWN = -8
    NIXL_ERR_NOT_SUPPORTED = -9
    NIXL_ERR_REMOTE_DISCONNECT = -10
    NIXL_ERR_CANCELED = -11
    NIXL_ERR_NO_TELEMETRY = -12


class nixl_thread_sync_t(Enum):
    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 0


DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG = nixl_mem_t


class nixlError(RuntimeError):
    pass


class nixlNotPostedError(nixlError):
    pass


class nixlInvalidParamError(nixlError):
    pass


class nixlBackendError(nixlError):
    pass


class nixlNotFoundError(nixlError):
    pass


class nixlMismatchError(nixlError):
    pass


class nixlNotAllowedError(nixlError):
    pass


class nixlRepostActiveError(nixlError):
    pass


class nixlUnknownError(nixlError):
    pass


class nixlNotSupportedError(nixlError):
    pass


class nixlRemoteDisconnectError(nixlError):
    pass


class nixlCancelledError(nixlError):
    pass


class nixlNoTelemetryError(nixlError):
    pass


_kinds = ((_lib.PeerLostError, nixlRemoteDisconnectError), (_lib.ClosedError, nixlRemoteDisconnectError), (_lib.NotFoundError, nixlNotFoundError),
          (_lib.RevokedError, nixlNotFoundError), (_lib.InvalidError, nixlInvalidParamError), (_lib.BoundsError, nixlInvalidParamError),
          (_lib.RightsError, nixlNotAllowedError), (_lib.CanceledError, nixlCancelledError), (_lib.MissingError, nixlNotSupportedError))


def in_nixl(f: Callable[..., Any]) -> Callable[..., Any]:
    """f with NIXL's errors in the place of Penstock's."""
    @functools.wraps(f)
    def g(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except _lib.Error as e:
            kind: Any = next((to for of, to in _kinds if isinstance(e, of)), nixlBackendError)
            raise kind(str(e)) from e
    return g


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
