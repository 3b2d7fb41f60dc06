"""Memory: regions, and tensors in them."""
from __future__ import annotations

import ctypes
import math
from ctypes import byref, c_uint64
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _dlpack, _lib
from ._lib import InvalidError, call
from ._memory import CPU, CUDA, DTYPES, OTHER_NAMES, Memory, memory_of


class _Handle:
    """What has a handle. It closes once: by close, at the end of a with, or with the last reference."""

    def __init__(self, handle: int, parent: Any = None):
        self._h = handle
        self._parent = parent  # is not collected before this
        self._open = True

    def close(self) -> None:
        """Closes it. A second close does nothing."""
        if self._open:
            self._open = False
            try:
                call("penstock_close", self._h)
            except InvalidError:  # such as adopted memory that an export needs: it stays open
                self._open = True
                raise

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # its system was closed before, or Python ends
            pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._h}{'' if self._open else ' closed'}>"


class _Loan:
    """Memory of a region that somebody has. The region is not freed before this is."""

    def __init__(self, region: "Region"):
        self._region = region
        region._loans.add(id(self))

    def __del__(self) -> None:
        self._region._loans.discard(id(self))
        try:
            self._region._settle()
        except Exception:  # Python ends
            pass


_INTERFACE = 0  # in _loans: an array may have been made of the array interface, which keeps the region itself alive
_NO_BYTES = ctypes.c_char()  # where regions without bytes are: numpy takes no array at 0


class Region(_Handle):
    """Memory with an address that transfers read and write.

    memory, array and tensor are views of it, and other libraries make theirs by DLPack (numpy.from_dlpack, torch.from_dlpack) or the array
    interfaces. The memory is there as long as anybody has a view, also after close: then no transfer uses it any more.
    """

    def __init__(self, handle: int, adopted: Optional[Memory] = None):
        super().__init__(handle)
        self._mine = [handle]  # to be closed, once
        self._loans: Set[int] = set()
        self._adopted = adopted
        self._ordinal: Optional[int] = None
        self._orphan = False
        size = c_uint64()
        address = call("penstock_memory", handle, byref(size))
        self.size: int = size.value
        self.address: Optional[int] = address if size.value else ctypes.addressof(_NO_BYTES)  # None: it is on a device

    @property
    def nbytes(self) -> int:
        """How many bytes put and get move."""
        return self.size

    def close(self) -> None:
        """Ends the region: what was allocated is freed with the last view of it, what was adopted is the caller's again. A second close does nothing."""
        if self._adopted is not None:
            super().close()
            if _INTERFACE not in self._loans:
                self._adopted = self._adopted._replace(keep=None)
        else:
            self._open, self._h = False, 0
            self._settle()

    def _settle(self) -> None:
        if self._adopted is None and not self._open and not self._loans:
            try:
                h = self._mine.pop()
            except IndexError:  # by another thread
                return
            call("penstock_close", h)

    def __del__(self) -> None:
        try:
            self._loans.discard(_INTERFACE)
            self._orphan = True
        except AttributeError:  # the constructor failed
            pass
        super().__del__()

    def _unused(self) -> None:
        """An export or a prepared list of it has ended. In a cycle that is collected the region may have been asked to end before."""
        if self._orphan:
            self.close()

    def _loan(self) -> Any:
        """What keeps the memory alive."""
        loan = self._adopted.keep if self._adopted is not None else _Loan(self)
        if not self._open:
            raise InvalidError("the region is closed: take views of it before")
        return loan

    def _what(self) -> "Tuple[Optional[str], Tuple[int, ...]]":
        """The type and shape that the bytes are known to have."""
        return (self._adopted.dtype, self._adopted.shape) if self._adopted is not None else (None, ())

    def _writable(self) -> bool:
        return self._adopted is None or self._adopted.writable

    def _where(self) -> int:
        if not self._open:
            raise InvalidError("the region is closed: take views of it before")
        return self._adopted.address if self.address is None and self._adopted is not None else self.address or 0

    def _penstock_memory(self) -> Memory:
        return Memory(self._where(), self.nbytes, (self, self._loan()), self._writable(), *self._what(), device=self.address is None)

    def _view(self) -> "Tuple[str, Tuple[int, ...]]":
        """The type and shape with which other libraries see it."""
        return "uint8", (self.size,)

    # Views.

    @property
    def memory(self) -> memoryview:
        """The bytes, without a copy."""
        if self.size == 0:
            self._host()
            return memoryview(bytearray() if self._writable() else b"")
        b = (ctypes.c_char * self.size).from_address(self._host())
        m = Memory(self._host(), self.size, self._loan(), True, "uint8", (self.size,))
        b._loan = _dlpack.give(m, (CPU, 0), True)  # goes when nothing can reach the bytes, later than a finalizer would
        v = memoryview(b).cast("B")
        return v if self._writable() else v.toreadonly()

    def _host(self) -> int:
        if self.address is None:
            raise InvalidError("the memory is on a device: use the tensor or the array that was adopted")
        return self._where()

    def _interface(self, at: int) -> Dict[str, Any]:
        dtype, shape = self._view()
        kind = DTYPES[dtype].numpy
        if kind is None:
            raise AttributeError(f"array interfaces have no {dtype}: use DLPack, or tensor()")
        self._loans.add(_INTERFACE)
        return {"version": 3, "shape": shape, "typestr": kind, "data": (at, not self._writable()), "strides": None}

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        return self._interface(self._host())

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if self.address is not None:
            raise AttributeError("the memory is the host's")
        return self._interface(self._where())  # no stream: the bytes are in place when a transfer has ended

    def __dlpack_device__(self) -> "Tuple[int, int]":
        """DLPack's type and number of the device: (1, 0) is the host, (2, n) CUDA's device n."""
        if self.address is not None:
            return CPU, 0
        if self._ordinal is None:
            self._ordinal = _lib.cuda_ordinal(self._where())
        return CUDA, self._ordinal

    def __dlpack__(self, *, stream: Any = None, max_version: "Optional[Tuple[int, int]]" = None, dl_device: "Optional[Tuple[int, int]]" = None,
                   copy: Optional[bool] = None) -> Any:
        """A capsule of DLPack, with a version if max_version is (1, 0) or later. No stream has to wait: the bytes are in place when a transfer has ended."""
        device = self.__dlpack_device__()
        if dl_device is not None and (int(dl_device[0]), dl_device[1]) != device:
            raise BufferError(f"the memory is on DLPack's device {device}, not {tuple(dl_device)}: copy it there with the library that asks")
        r = self
        if copy:
            if self.address is None:
                raise BufferError("memory of a device is not copied here: ask with copy=None, and copy it with the library that asks")
            r, loan = alloc(max(self.nbytes, 1)), self._loan()
            ctypes.memmove(r._where(), self._where(), self.nbytes)
            del loan
        dtype, shape = self._view()
        m = Memory(r._where(), self.nbytes, r._loan(), r._writable(), dtype, shape)
        return _dlpack.give(m, device, max_version is not None and max_version[0] >= 1, bool(copy))

    def array(self, dtype: Any = "u1", shape: Any = None, offset: int = 0) -> Any:
        """A numpy array of the bytes from offset on, without a copy."""
        import numpy
        dtype = numpy.dtype(dtype)
        if shape is None:
            shape = ((self.size - offset) // dtype.itemsize,)
        return numpy.frombuffer(self.memory, dtype, int(numpy.prod(shape)), offset).reshape(shape)

    def tensor(self, dtype: Any = None, shape: Any = None, offset: int = 0) -> Any:
        """A torch tensor of the bytes from offset on, without a copy."""
        import torch
        dtype = dtype or torch.uint8
        if shape is None:
            shape = ((self.size - offset) // torch.empty(0, dtype=dtype).element_size(),)
        count = int(torch.Size(shape).numel())
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=offset).reshape(shape)


class Tensor(Region):
    """A region whose bytes are a tensor in row-major order: dtype is the name that numpy and torch have for it, such as "float32" or "bfloat16".

    numpy.asarray, numpy.from_dlpack and torch.from_dlpack make views of it, as array() and tensor() do.
    """

    def __init__(self, handle: int, dtype: str, shape: Sequence[int]):
        super().__init__(handle)
        self.dtype, self.shape = dtype, tuple(shape)

    @property
    def nbytes(self) -> int:
        return size_of(self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype}{list(self.shape)}{'' if self._open else ' closed'}>"

    def _what(self) -> "Tuple[Optional[str], Tuple[int, ...]]":
        return self.dtype, self.shape

    _view = _what  # type: ignore[assignment]

    @property
    def memory(self) -> memoryview:
        """The bytes, without a copy."""
        return super().memory[:self.nbytes]

    def array(self, dtype: Any = None, shape: Any = None, offset: int = 0) -> Any:
        """A numpy array of the tensor, without a copy; or of its bytes from offset on, if a dtype is given."""
        if dtype is None:
            dtype, shape = DTYPES[self.dtype].numpy, self.shape if shape is None else shape
            if dtype is None:
                raise InvalidError(f"numpy has no {self.dtype}: use tensor(), for torch, or array('u1') and the bytes")
        elif shape is None:
            import numpy
            shape = ((self.nbytes - offset) // numpy.dtype(dtype).itemsize,)
        return super().array(dtype, shape, offset)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:  # where the array interface has no such type, it says so
        a = self.array()
        return a if dtype is None else a.astype(dtype)

    def tensor(self, dtype: Any = None, shape: Any = None, offset: int = 0) -> Any:
        """A torch tensor, without a copy; or of its bytes from offset on, if a dtype is given."""
        import torch
        if dtype is None:
            dtype, shape = getattr(torch, self.dtype, None), self.shape if shape is None else shape
            if dtype is None or DTYPES[self.dtype].bits < 8:  # which torch has by name, with an element in each byte
                raise InvalidError(f"this torch has no tensors of {self.dtype}: use tensor(torch.uint8) and the bytes")
        elif shape is None:
            shape = ((self.nbytes - offset) // torch.empty(0, dtype=dtype).element_size(),)
        return super().tensor(dtype, shape, offset)


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """The bytes of a tensor."""
    return (math.prod(shape) * DTYPES[dtype].bits + 7) // 8


def _flags(huge: bool, pinned: bool) -> int:
    if huge and pinned:
        raise InvalidError("huge and pinned: expected one of them")
    return 1 if huge else 2 if pinned else 0


def alloc(size: int, name: str = "", huge: bool = False, pinned: bool = False) -> Region:
    """Allocates memory that peers on this host can map. size is in bytes and is rounded up to pages.

    huge takes pages of 2 MiB where there are some free. pinned has CUDA's driver pin it, so that devices copy from and to it by themselves.
    """
    return Region(call("penstock_alloc", name.encode(), size, _flags(huge, pinned)))


def empty(shape: "Union[int, Sequence[int]]", dtype: str = "float32", name: str = "", huge: bool = False, pinned: bool = False) -> Tensor:
    """Allocates a tensor in such memory. dtype is a name of numpy's or torch's, such as "bfloat16", or Penstock's, "bf16". array() and tensor() are views of it."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = OTHER_NAMES.get(dtype, dtype)
    if dtype not in DTYPES or any(n < 0 for n in shape):
        raise InvalidError(f"a tensor of {dtype!r} with the shape {shape}: expected one of {', '.join(DTYPES)}, and sizes of 0 or more")
    return Tensor(call("penstock_alloc", name.encode(), max(size_of(dtype, shape), 1), _flags(huge, pinned)), dtype, shape)


def adopt(x: Any, name: str = "") -> Region:
    """Makes a region of the memory of an array, a tensor or a buffer, which the region keeps alive. Peers reach it over sockets.

    It may be memory of a CUDA device. What the current stream does with it is waited for here, as in put and get; what is begun later is not.
    """
    m = memory_of(x)
    return Region(call("penstock_adopt", name.encode(), m.address, m.size), m)


class Reach(NamedTuple):
    """Whether an RDMA adapter of this machine reaches memory itself. It is true where one does; why says how, or what is missing."""
    dma: bool
    why: str

    def __bool__(self) -> bool:
        return self.dma


def is_dma_capable(x: Any) -> Reach:
    """Whether the bytes of a Region, an array, a tensor or a buffer can move between machines without a copy in memory of the host, and why not.

    It finds out by registering a page of the memory with the adapters. Transfers over sockets copy in any case, and those on one host need no adapter.
    """
    r = x if isinstance(x, Region) else adopt(x)
    try:
        b = ctypes.create_string_buffer(4096)
        can = call("penstock_dma", r._h, b, len(b)) == 1
        return Reach(can, b.value.decode("utf-8", "replace"))
    finally:
        if r is not x:
            r.close()
