"""Files of safetensors at a peer, of which only the tensors that are asked for are fetched.

    import penstock.safetensors

    with penstock.safetensors.open(peer, "llama/model.safetensors") as f:
        for name in f.keys():
            print(name, f.get_slice(name).get_shape())
        wq = f["layers.0.attention.wq.weight"]            # this tensor is fetched, here
        part = f.get_slice("embeddings")[:1000, 64:128]   # and of this one 1000 rows of 64 columns

The names are those of the safetensors library: keys, metadata, get_tensor, get_slice. A file is exported by System.serve or penstock serve;
any export with the bytes of one will do.

A tensor of a type that this package does not have (F8_E8M0, F6_E2M3 and others), or with a key that it does not know, comes as its bytes: of "uint8", with one dimension.
get_slice says what the file calls its type and shape.
"""
from __future__ import annotations

import itertools
import json
import math
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

from ._lib import InvalidError
from ._memory import BY_SAFETENSORS, DTYPES
from ._region import Tensor, empty
from ._transfer import Peer, Remote

_MOST = 100_000_000  # bytes of a header, as the format says
_FIRST = 1 << 16     # bytes that are fetched at first: mostly all of the header

# Bits of an element of the types that the format has and this package has not.
_FOREIGN = {"F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}


class _Entry(NamedTuple):
    kind: str               # the format's name of the type
    shape: Tuple[int, ...]
    begin: int              # in the export
    size: int               # bytes
    dtype: Optional[str]    # None: of a type, or with a key, that is not known, so that it is bytes


def _pairs(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    d = dict(pairs)
    if len(d) != len(pairs):
        raise ValueError("a name occurs twice")
    return d


def _number(x: Any) -> int:
    if type(x) is not int or not 0 <= x < 1 << 63:
        raise ValueError(f"{x!r} is no number from 0 to 2^63-1")
    return x


def _entry(d: Any, at: int, size: int) -> _Entry:
    if not isinstance(d, dict) or not d.keys() >= {"dtype", "shape", "data_offsets"}:
        raise ValueError("expected dtype, shape and data_offsets")
    kind, shape, offsets = d["dtype"], d["shape"], d["data_offsets"]
    if not isinstance(kind, str) or not isinstance(shape, list) or len(shape) > 32 or not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError("expected text as dtype, a shape of 32 sizes at most, and two data_offsets")
    begin, end = _number(offsets[0]), _number(offsets[1])
    if not begin <= end <= size - at:
        raise ValueError(f"data_offsets are {begin} and {end}: the file has {size - at} bytes of data")
    dtype = BY_SAFETENSORS.get(kind)
    bits = _FOREIGN.get(kind) if dtype is None else DTYPES[dtype].bits
    if len(d) > 3:  # what the other keys change about it is not known
        dtype = bits = None
    e = _Entry(kind, tuple(map(_number, shape)), at + begin, end - begin, dtype)
    if bits is not None and math.prod(e.shape) * bits != 8 * e.size:
        raise ValueError(f"{kind} of the shape {shape} does not have {e.size} bytes")
    return e


def _parse(header: bytes, at: int, size: int) -> "Tuple[Dict[str, _Entry], Dict[str, str]]":
    """The tensors and the metadata of a header, which may be hostile. The data begin at at."""
    d = json.loads(header.decode(), object_pairs_hook=_pairs)
    if not isinstance(d, dict):
        raise ValueError("the header is no object of JSON")
    metadata = d.pop("__metadata__", None)
    if metadata is None:  # or null, as some writers say that there is none
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("__metadata__ is not of text")
    out = {}
    for name, x in d.items():
        try:
            out[name] = _entry(x, at, size)
        except ValueError as e:
            raise ValueError(f"{name!r}: {e}") from e
    return dict(sorted(out.items(), key=lambda i: i[1].begin)), metadata


class Slice:
    """A tensor that is not fetched yet. Indexing it fetches that part: whole numbers, and slices with a step of 1."""

    def __init__(self, file: "File", name: str):
        self._file, self._name, self._entry = file, name, file._entry(name)

    def get_shape(self) -> List[int]:
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """The type as the format calls it, such as "BF16"."""
        return self._entry.kind

    def __getitem__(self, key: Any) -> Any:
        return self._file._fetch(self._entry, key)


class File(Mapping[str, Any]):
    """The tensors of a file, by name. Each access fetches the tensor. All are of one content: when the file changes, the next access raises RevokedError."""

    def __init__(self, peer: Peer, name: str, framework: Optional[str] = None, timeout: Optional[float] = 30):
        self._make = {None: lambda t: t, "np": Tensor.array, "numpy": Tensor.array, "pt": Tensor.tensor, "torch": Tensor.tensor}.get(framework)
        if self._make is None:
            raise InvalidError(f"framework is {framework!r}: expected 'np', 'pt', or None for penstock.Tensor")
        self._peer, self.name = peer, name
        self._remote: Optional[Remote] = peer.lookup(name, timeout)
        size = self._remote.size
        try:
            if size < 8:
                raise ValueError(f"it has {size} bytes: expected 8 and a header")
            first = bytes(peer.get(self._remote, length=min(size, _FIRST)).memory)
            n = int.from_bytes(first[:8], "little")
            if n > min(_MOST, size - 8):
                raise ValueError(f"its header would have {n} bytes: expected at most {min(_MOST, size - 8)}")
            header = first[8:8 + n]
            if len(header) < n:
                header += bytes(peer.get(self._remote, offset=len(first), length=n - len(header)).memory)
            self._entries, self._metadata = _parse(header, 8 + n, size)
        except (ValueError, RecursionError) as e:
            self.close()
            if isinstance(e, InvalidError):
                raise
            raise InvalidError(f"{name!r} is no file of safetensors: {e}") from e

    # As the safetensors library has it.

    def metadata(self) -> Dict[str, str]:
        return dict(self._metadata)

    def get_tensor(self, name: str) -> Any:
        """Fetches a tensor."""
        return self._fetch(self._entry(name), ())

    def get_slice(self, name: str) -> Slice:
        """A tensor of which parts can be fetched. It fetches nothing itself."""
        return Slice(self, name)

    # As a mapping.

    def __getitem__(self, name: str) -> Any:
        return self.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: Any) -> bool:  # without fetching it
        return name in self._entries

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the access. What was fetched stays."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {len(self._entries)} tensors{' closed' if self._remote is None else ''}>"

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"{self.name!r} has no tensor {name!r}") from None

    def _fetch(self, e: _Entry, key: Any) -> Any:
        if self._remote is None:
            raise InvalidError(f"{self.name!r} is closed: open it again")
        dtype = e.dtype
        if dtype is None:
            if key != ():
                raise InvalidError(f"of the tensor of {e.kind} only the bytes are known, so it comes as a whole: expected get_tensor, or a type of {', '.join(BY_SAFETENSORS)}")
            e, dtype = e._replace(shape=(e.size,)), "uint8"
        shape, blocks = _blocks(e, DTYPES[dtype].bits, _ranges(e.shape, key))
        t = empty(shape, dtype, self.name)
        if blocks:
            self._peer.post("get", blocks, t, self._remote).wait()
        assert self._make is not None
        return self._make(t)


_Range = Tuple[int, int, bool]  # begin, end, and whether the dimension stays


def _ranges(shape: Tuple[int, ...], key: Any) -> List[_Range]:
    """What a key means, for each dimension."""
    keys: List[Union[int, slice]] = list(key) if isinstance(key, tuple) else [key]
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1 or len(keys) - len(dots) > len(shape):
        raise IndexError(f"{len(keys)} indices for the shape {list(shape)}")
    fill = [slice(None)] * (len(shape) - len(keys) + len(dots))
    at = dots[0] if dots else len(keys)
    keys[at:at + len(dots)] = fill
    out: List[_Range] = []
    for n, k in zip(shape, keys):
        if isinstance(k, slice):
            begin, end, step = k.indices(n)
            if step != 1:
                raise InvalidError(f"a slice has the step {step}: expected 1; fetch the range and take the step of that")
            out.append((begin, max(begin, end), True))
        elif hasattr(k, "__index__") and not isinstance(k, bool):
            i = k.__index__()
            if not -n <= i < n:
                raise IndexError(f"index {i} of a dimension of {n}")
            out.append((i % n, i % n + 1, False))
        else:
            raise TypeError(f"an index is {k!r}: expected a whole number or a slice")
    return out


def _blocks(e: _Entry, bits: int, ranges: List[_Range]) -> "Tuple[Tuple[int, ...], List[Tuple[int, int, int]]]":
    """The shape of a part of a tensor, and the blocks that it is: offset in the part, length, offset in the export."""
    counts = [end - begin for begin, end, _ in ranges]
    shape = tuple(n for n, r in zip(counts, ranges) if r[2])
    if 0 in counts:
        return shape, []
    inner = len(counts)  # dimensions from here on are whole
    while inner > 0 and counts[inner - 1] == e.shape[inner - 1]:
        inner -= 1
    steps = [math.prod(e.shape[i + 1:]) * bits for i in range(len(counts))]
    cut = max(inner - 1, 0)  # the dimension of which a block is a range
    run = counts[cut] * steps[cut] if counts else bits
    first = sum(r[0] * s for r, s in zip(ranges, steps))
    outer = [[i * s for i in range(n)] for n, s in zip(counts[:cut], steps[:cut])]
    starts = [first + sum(p) for p in itertools.product(*outer)]
    if run % 8 or any(s % 8 for s in starts):
        raise InvalidError(f"a part of a tensor of {e.kind} begins or ends within a byte: expected even numbers of elements")
    return shape, [(i * run // 8, run // 8, e.begin + s // 8) for i, s in enumerate(starts)]


def open(peer: Peer, name: str, framework: Optional[str] = None, timeout: Optional[float] = 30) -> File:
    """Opens a file of safetensors that the peer exports. Of it only the header is fetched.

    Tensors come as framework says: "np" as numpy arrays, "pt" as torch tensors, None as penstock.Tensor, of which other libraries make theirs by
    DLPack.
    """
    return File(peer, name, framework, timeout)
