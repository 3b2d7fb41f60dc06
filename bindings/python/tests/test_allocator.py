"""Memory that is pinned, and what an RDMA adapter reaches. The tests of a whole run have what the machine has; TestReach of capi runs them with stand-ins of libibverbs and of
CUDA's driver too, and on a machine with both a coordinator may run this file by itself."""
import ctypes
import os
import sys
import types
import unittest
import unittest.mock

import numpy
import penstock
import penstock.torch
from penstock import _lib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_cuda
from test_cuda import torch

RDMA = penstock.is_dma_capable(penstock.alloc(1))


class Host(unittest.TestCase):
    def test_all_alike(self):
        """Memory of the host is reached by every adapter, or there is none."""
        with penstock.adopt(numpy.zeros(10)) as adopted:
            for x in (penstock.alloc(1 << 20), penstock.empty((3, 4), "bfloat16"), adopted, numpy.zeros(100), bytearray(7), memoryview(b"read-only")):
                r = penstock.is_dma_capable(x)
                self.assertEqual((bool(r), r.dma), (bool(RDMA), bool(RDMA)), r.why)
                self.assertTrue(r.why)
        with self.assertRaises(penstock.InvalidError):
            penstock.is_dma_capable(numpy.zeros((4, 4)).T[1:])

    @unittest.skipIf(_lib.cuda() is not None, "the machine has CUDA's driver")
    def test_pinned_without_driver(self):
        for f in (lambda: penstock.alloc(1, pinned=True), lambda: penstock.empty(1, pinned=True)):
            with self.assertRaisesRegex(penstock.MissingError, "libcuda"):
                f()

    @unittest.skipIf(torch is None, "no torch")
    def test_torch_that_has_none(self):
        if hasattr(torch.cuda.memory, "CUDAPluggableAllocator"):
            why = "no CUDA device"
            if torch.cuda.is_available():
                self.skipTest("this torch has it")
        else:
            why = "no torch.cuda.(CUDAPluggableAllocator|MemPool)"
        for f in (penstock.torch.allocator, penstock.torch.pool):
            with self.assertRaisesRegex(penstock.MissingError, why):
                f()

    def test_torch_that_has_it(self):
        """A stand-in of PyTorch does with the allocator what PyTorch does: it finds both functions in the library, by the names that it is given."""
        class Allocator:
            def __init__(self, path, *names):
                lib = ctypes.CDLL(path)
                self.found = [getattr(lib, name) for name in names]

            def allocator(self):
                return self

        class Pool:
            def __init__(self, allocator):
                self.of = allocator

        cuda = types.SimpleNamespace(memory=types.SimpleNamespace(CUDAPluggableAllocator=Allocator), MemPool=Pool, is_available=lambda: True)
        with unittest.mock.patch.dict(sys.modules, torch=types.SimpleNamespace(cuda=cuda, __version__="2.9")):
            self.assertEqual(len(penstock.torch.allocator().found), 2)
            self.assertIsInstance(penstock.torch.pool().of, Allocator)
            cuda.is_available = lambda: False
            with self.assertRaisesRegex(penstock.MissingError, "no CUDA device"):
                penstock.torch.pool()

    def test_pinned_and_huge(self):
        with self.assertRaises(penstock.InvalidError):
            penstock.empty(1, huge=True, pinned=True)

    @unittest.skipIf(RDMA, "an adapter is here")
    def test_says_what_is_missing(self):
        self.assertRegex(RDMA.why, "libibverbs|RDMA")

    @unittest.skipUnless(RDMA, RDMA.why)
    def test_says_how(self):
        self.assertRegex(RDMA.why, "^[a-z0-9_]+ reaches it: host memory$")


@unittest.skipIf(_lib.cuda() is None, "no libcuda.so.1")
class Device(unittest.TestCase):
    """Memory of device 0 that the driver's own call has allocated."""

    @classmethod
    def setUpClass(cls):
        test_cuda.Device.setUpClass()
        cls.driver = test_cuda.Device.driver

    def array(self, size):
        a = test_cuda.Array(self.driver, size)
        self.addCleanup(a.free)
        return a

    @unittest.skipUnless(RDMA, RDMA.why)
    def test_way(self):
        absent = "absent dmabuf" in os.environ.get("PENSTOCK_FAKE_VERBS", "")
        r = penstock.is_dma_capable(self.array(4 << 20))
        if r:
            self.assertRegex(r.why, "dma-buf|peer memory")
        if absent:
            self.assertFalse(r)
        if not r:
            self.assertRegex(r.why, "dma-buf")
        if os.environ.get("PENSTOCK_FAKE_VERBS") and not absent:
            self.assertEqual(r, (True, "fake0 reaches it: dma-buf"))
            part = self.array(4 << 20)  # as a tensor lies in memory of PyTorch's
            self.addCleanup(setattr, part, "p", ctypes.c_uint64(part.p.value))
            part.p, part.size = ctypes.c_uint64(part.p.value + 512), 100_000
            self.assertEqual(penstock.is_dma_capable(part), (True, "fake0 reaches it: dma-buf"))

    def test_pinned(self):
        """The driver knows the memory as the host's, devices copy from it, and peers on this host map it."""
        x = penstock.empty((1 << 18,), "float32", pinned=True)
        want = numpy.arange(1 << 18, dtype="f4")
        x.array()[:] = want
        kind = ctypes.c_uint()
        self.assertEqual((self.driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(x.address)), kind.value), (0, 1))
        d = self.array(x.nbytes)
        self.assertEqual(self.driver.cuMemcpyHtoD_v2(d.p, ctypes.c_void_p(x.address), ctypes.c_size_t(x.nbytes)), 0)
        self.assertTrue((d.read() == want).all())
        y = penstock.empty((1 << 18,), "float32", pinned=True)
        with penstock.System(name="b", listen=["tcp://127.0.0.1:0"]) as b, penstock.System(name="a") as a, b.export(y, "y", penstock.WRITE):
            how = a.connect(b.addresses[0]).put(x, "y", paths=["shm"]).wait(30).explain()
        self.assertIn("copies per byte: 1 in user space", how)
        self.assertTrue((y.array() == want).all())
        x.close()
        y.close()

    @unittest.skipIf(torch is None or not torch.cuda.is_available(), "torch has no CUDA here")
    def test_pinned_for_torch(self):
        x = penstock.empty((1 << 18,), "float32", pinned=True)
        t = x.tensor()
        self.assertTrue(t.is_pinned())
        t[:] = torch.arange(1 << 18)
        there = t.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(there.cpu(), t))

    @unittest.skipIf(RDMA, "an adapter is here")
    def test_no_adapter(self):
        self.assertEqual(penstock.is_dma_capable(self.array(4 << 20)), RDMA)


if __name__ == "__main__":
    unittest.main()
