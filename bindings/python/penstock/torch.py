"""Memory of CUDA devices for PyTorch that peers, the agent and RDMA adapters reach: every allocation is one of the driver's own, in whole pages of 2 MiB.

    import penstock.torch, torch

    pool = penstock.torch.pool()                 # keep it as long as its tensors
    with torch.cuda.use_mem_pool(pool):
        cache = torch.zeros(1 << 28, device="cuda")
    assert penstock.is_dma_capable(cache)        # where there is an adapter
"""
from __future__ import annotations

from typing import Any

from . import _lib
from ._lib import MissingError


def _cuda(name: str, since: str) -> Any:
    import torch
    kind = getattr(torch.cuda, name, None) or getattr(getattr(torch.cuda, "memory", None), name, None)
    if kind is None:
        raise MissingError(f"PyTorch {torch.__version__} has no torch.cuda.{name}: it came with {since}")
    if not torch.cuda.is_available():
        raise MissingError(f"PyTorch {torch.__version__} sees no CUDA device")
    return kind


def allocator() -> Any:
    """A torch.cuda.memory.CUDAPluggableAllocator, for torch.cuda.memory.change_current_allocator. It caches nothing, so each tensor takes a call of the
    driver that waits for the device: pool is for programs that allocate more than once. PyTorch takes no error of it: when memory is short the library
    writes that to the standard error, and PyTorch goes on without an address."""
    kind = _cuda("CUDAPluggableAllocator", "2.0")
    return kind(_lib.lib()._name, "penstock_cuda_alloc", "penstock_cuda_free")


def pool() -> Any:
    """A torch.cuda.MemPool with PyTorch's own cache over such memory, for torch.cuda.use_mem_pool."""
    kind = _cuda("MemPool", "2.5")
    a = allocator()
    p = kind(a.allocator())
    p._penstock = a  # the pool has no reference of its own
    return p
