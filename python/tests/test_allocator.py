"""What an RDMA adapter reaches. The tests of a whole run have what the machine has; TestReach of capi runs them with stand-ins of libibverbs and of
CUDA's driver too, and on a machine with both a coordinator may run this file by itself."""
import os
import sys
import unittest

import numpy
import penstock
from penstock import _lib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_cuda

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

    @unittest.skipIf(RDMA, "an adapter is here")
    def test_no_adapter(self):
        self.assertEqual(penstock.is_dma_capable(self.array(4 << 20)), RDMA)


if __name__ == "__main__":
    unittest.main()
