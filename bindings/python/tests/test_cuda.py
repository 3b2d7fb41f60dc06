import ctypes
import os
import subprocess
import sys
import unittest

import numpy
import penstock
import penstock.nixl as nixl
import penstock.torch
from penstock import READ, WRITE, _dlpack, _lib
from penstock.mooncake import TransferEngine

try:
    import torch
except ImportError:
    torch = None


def consume(x, **more):
    """Takes a capsule, of 1.0: its structure, and what ends it."""
    c = x.__dlpack__(**more)
    at = _dlpack._pointer(c, b"dltensor_versioned")
    _dlpack._rename(c, b"used_dltensor_versioned")
    m = _dlpack.ManagedVersioned.from_address(at)
    return m, lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(m.deleter)(at)


class Array:
    """Memory of device 0, by the driver's own calls."""

    def __init__(self, driver, size):
        self.driver, self.size, self.p = driver, size, ctypes.c_uint64()
        self.do("cuMemAlloc_v2", ctypes.byref(self.p), ctypes.c_size_t(size))

    def do(self, f, *args):
        r = getattr(self.driver, f)(*args)
        if r != 0:
            raise RuntimeError(f"{f}: {r}")

    @property
    def __cuda_array_interface__(self):
        return {"version": 3, "shape": (self.size // 4,), "typestr": "<f4", "data": (self.p.value, False), "strides": None, "stream": 1}

    def write(self, a):
        self.do("cuMemcpyHtoD_v2", self.p, ctypes.c_void_p(a.ctypes.data), ctypes.c_size_t(a.nbytes))

    def read(self):
        a = numpy.empty(self.size // 4, "f4")
        self.do("cuMemcpyDtoH_v2", ctypes.c_void_p(a.ctypes.data), self.p, ctypes.c_size_t(self.size))
        return a

    def free(self):
        self.do("cuMemFree_v2", self.p)


@unittest.skipIf(_lib.cuda() is None, "no libcuda.so.1")
class Device(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        d = cls.driver = _lib.cuda()
        context = ctypes.c_void_p()
        for r in (d.cuInit(0), d.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), d.cuCtxSetCurrent(context)):
            if r != 0:
                raise RuntimeError(f"the driver says {r}")

    def test_driver_after_the_first_put(self):
        """Memory of a device is known also if the driver is loaded after memory of the host was adopted."""
        program = ("import ctypes, sys, penstock\n"
                   "from penstock import _lib\n"
                   "host = penstock.adopt(bytearray(8))\n"
                   "sys.path.insert(0, sys.argv[1])\n"
                   "import test_cuda\n"
                   "test_cuda.Device.setUpClass()\n"
                   "a = test_cuda.Array(test_cuda.Device.driver, 4096)\n"
                   "print(host.address is None, penstock.adopt(a).address)\n")
        program = program.replace("host = ", "assert 'libcuda' not in open('/proc/self/maps').read()\nhost = ")
        r = subprocess.run([sys.executable, "-c", program, os.path.dirname(os.path.abspath(__file__))], capture_output=True, text=True, timeout=60)
        self.assertEqual(r.stdout, "False None\n", r.stderr)

    def test_agent_without_handle(self):
        """Memory that the driver gives to no other process is refused by the agent, with what helps."""
        name = ctypes.create_string_buffer(64)
        self.driver.cuDeviceGetName(name, 64, 0)
        if b"fake" not in name.value:
            self.skipTest("a driver that is told to refuse")
        program = ("import sys, penstock\n"
                   "sys.path.insert(0, sys.argv[1])\n"
                   "import test_cuda\n"
                   "test_cuda.Device.setUpClass()\n"
                   "a = test_cuda.Array(test_cuda.Device.driver, 4096)\n"
                   "try:\n"
                   "    penstock.adopt(a)\n"
                   "except penstock.MissingError as e:\n"
                   "    print(e)\n")
        r = subprocess.run([sys.executable, "-c", program, os.path.dirname(os.path.abspath(__file__))], capture_output=True, text=True, timeout=60,
                           env={**os.environ, "PENSTOCK_AGENT": "1", "PENSTOCK_FAKE_CUDA": "fail cuIpcGetMemHandle CUDA_ERROR_INVALID_VALUE"})
        self.assertRegex(r.stdout, "^.*cuIpcGetMemHandle.*cudaMalloc.*\n$", r.stderr)

    def array(self, values):
        a = Array(self.driver, 4 * len(values))
        self.addCleanup(a.free)
        a.write(numpy.asarray(values, "f4"))
        return a

    def setUp(self):
        self.b = penstock.System(name="b", listen=["tcp://127.0.0.1:0"])
        self.a = penstock.System(name="a")
        self.peer = self.a.connect(self.b.addresses[0])
        for s in (self.b, self.a, self.peer):
            self.addCleanup(s.close)

    def test_put_and_get(self):
        n = 700_000
        want = numpy.arange(n, dtype="f4")
        x, y, z = self.array(want), self.array(numpy.zeros(n)), self.array(numpy.zeros(n))
        with self.b.export(y, "y", READ | WRITE):
            t = self.peer.put(x, "y", digest=True).wait(30)
            self.assertIn("cuda 0", t.explain())
            self.assertTrue((y.read() == want).all())
            self.peer.get("y", z).wait(30)
            self.assertTrue((z.read() == want).all())
            host = self.peer.get("y")  # between the host and the device, both ways
            self.assertTrue((host.array("f4")[:n] == want).all())
            self.peer.put(want[::-1].copy(), "y").wait(30)
            self.assertTrue((y.read() == want[::-1]).all())

    def test_region(self):
        x = self.array(numpy.zeros(1000))
        with penstock.adopt(x) as r:
            self.assertEqual((r.size, r.address), (4000, None))
            for f in (lambda: r.memory, lambda: r.array(), lambda: r.__array_interface__):
                with self.assertRaises(penstock.InvalidError):
                    f()

    def test_dlpack(self):
        """Given with the device's number, and taken from objects that have nothing else."""
        x, y = self.array(numpy.arange(3000)), self.array(numpy.zeros(3000))
        r = penstock.adopt(x)
        m, end = consume(r, stream=2, max_version=(1, 0), dl_device=(2, 0))
        t = m.tensor
        self.assertEqual((t.data, t.device_type, t.device_id, t.shape[0], t.code, t.bits), (x.p.value, 2, 0, 12000, 1, 8))
        self.assertEqual((r.__dlpack_device__(), r.__cuda_array_interface__["data"], hasattr(penstock.alloc(1), "__cuda_array_interface__")), ((2, 0), (x.p.value, False), False))
        for more in ({"dl_device": (1, 0)}, {"copy": True}):
            with self.assertRaises(BufferError):
                r.__dlpack__(**more)
        r.close()
        end()
        streams = []

        class Only:
            def __init__(self, a):
                self.r = penstock.adopt(a)

            def __dlpack__(self, *, stream, **more):
                streams.append(stream)
                return self.r.__dlpack__(stream=stream, **more)

            def __dlpack_device__(self):
                return self.r.__dlpack_device__()

        with self.b.export(Only(y), "y", READ | WRITE):
            self.assertIn("cuda 0", self.peer.put(Only(x), "y").wait(30).explain())
        self.assertEqual(streams, [1, 1])
        self.assertTrue((y.read() == numpy.arange(3000)).all())

    def test_prepared(self):
        x, y = self.array(numpy.arange(4096)), self.array(numpy.zeros(4096))
        with penstock.adopt(x) as here, penstock.adopt(y) as there, self.b.export(there, "y", WRITE), self.peer.lookup("y") as remote:
            at = numpy.arange(16) * 1024
            with self.peer.prepare("put", numpy.stack([at, numpy.full(16, 1024), at[::-1]], axis=1), here, remote) as p:
                p.post().wait(30)
        want = numpy.arange(4096, dtype="f4").reshape(16, 256)[::-1].ravel()
        self.assertTrue((y.read() == want).all())

    def test_context_of_the_thread(self):
        """Calls with memory of another device leave the thread the context that it has."""
        context, now, p = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        if self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) != 0:
            self.skipTest("one device")
        self.addCleanup(self.driver.cuDevicePrimaryCtxRelease_v2, 1)
        self.driver.cuCtxPushCurrent_v2(context)
        x = self.array(numpy.arange(1000))
        self.driver.cuCtxPopCurrent_v2(ctypes.byref(now))
        self.assertEqual(_lib.cuda_ordinal(x.p.value), 1)
        self.driver.cuCtxGetCurrent(ctypes.byref(context))
        y = numpy.zeros(1000, "f4")
        with self.b.export(y, "y", READ | WRITE):
            self.assertIn("cuda 1", self.peer.put(x, "y").wait(30).explain())
            with penstock.adopt(x) as r:
                self.peer.get("y", r).wait(30)
        self.assertTrue((y == numpy.arange(1000)).all())
        self.driver.cuCtxGetCurrent(ctypes.byref(now))
        self.assertEqual((context.value is not None, now.value), (True, context.value))

    def test_beyond(self):
        x = self.array(numpy.zeros(1000))
        x.size = 1 << 40
        with self.assertRaises(penstock.BoundsError):
            penstock.adopt(x)
        x.size = 4000

    def test_nixl(self):
        a, b = nixl.nixl_agent("a"), nixl.nixl_agent("b")
        self.assertEqual(a.get_plugin_mem_types("UCX"), ["DRAM", "VRAM"])
        x, y = self.array(numpy.arange(2000)), self.array(numpy.zeros(2000))
        mine, theirs = a.register_memory(x), b.register_memory([(y.p.value, y.size, 0, "")], "VRAM")
        self.assertEqual(mine.getType(), nixl.VRAM_SEG)
        a.add_remote_agent(b.get_agent_metadata())
        t = a.initialize_xfer("WRITE", a.get_xfer_descs(x), theirs.trim(), "b", b"there")
        state = a.transfer(t)
        while state == "PROC":
            state = a.check_xfer_state(t)
        self.assertEqual(state, "DONE")
        self.assertTrue((y.read() == numpy.arange(2000)).all())
        a.release_xfer_handle(t)
        a.deregister_memory(mine)
        b.deregister_memory(theirs)

    def test_mooncake(self):
        a, b = TransferEngine(), TransferEngine()
        for e in (a, b):
            self.assertEqual(e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        x, y = self.array(numpy.arange(2000)), self.array(numpy.zeros(2000))
        self.assertEqual((a.register_memory(x.p.value, x.size), b.register_memory(y.p.value, y.size, "cuda:0")), (0, 0))
        self.assertEqual(a.transfer_sync_write(f"127.0.0.1:{b.get_rpc_port()}", x.p.value, y.p.value, x.size), 0)
        self.assertTrue((y.read() == numpy.arange(2000)).all())
        with self.assertRaises(ValueError):
            a.read_bytes_from_buffer(x.p.value, 1)
        self.assertEqual((a.unregister_memory(x.p.value), b.unregister_memory(y.p.value)), (0, 0))

    def test_allocator(self):
        """What PyTorch's pluggable allocator calls: memory that shares no block with other memory, put and given back."""
        lib = ctypes.CDLL(_lib.lib()._name)
        lib.penstock_cuda_alloc.argtypes, lib.penstock_cuda_alloc.restype = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        lib.penstock_cuda_free.argtypes, lib.penstock_cuda_free.restype = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p], None
        base, n, kind = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint()
        for size, device in ((1, 0), (5 << 20, 0), (3 << 20, 1)):
            if device > 0 and self.driver.cuDeviceGet(ctypes.byref(kind), device) != 0:
                continue
            p = lib.penstock_cuda_alloc(size, device, None)
            self.assertEqual(p % (2 << 20), 0)
            self.assertEqual(self.driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(n), ctypes.c_uint64(p)), 0)
            self.assertGreaterEqual(base.value + n.value, p + -(-size // (2 << 20) * (2 << 20)))
            self.assertEqual(_lib.cuda_ordinal(p), device)
            if size > 4:
                a = Array.__new__(Array)
                a.driver, a.size, a.p = self.driver, size, ctypes.c_uint64(p)
                want = numpy.arange(size // 4, dtype="f4")
                a.write(want)
                y = numpy.zeros(size // 4, "f4")
                with self.b.export(y, f"y{device}", WRITE):
                    self.assertIn(f"cuda {device}", self.peer.put(a, f"y{device}").wait(30).explain())
                self.assertTrue((y == want).all())
            lib.penstock_cuda_free(p, size, device, None)
            self.assertNotEqual(self.driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(p)), 0)
        self.assertIsNone(lib.penstock_cuda_alloc(0, 0, None))
        self.assertIsNone(lib.penstock_cuda_alloc(1, 99, None))  # says why on the standard error
        lib.penstock_cuda_free(None, 0, 0, None)

    @unittest.skipIf(torch is None or not hasattr(torch.cuda, "MemPool") or not torch.cuda.is_available(), "torch has no CUDA, or no MemPool, here")
    def test_torch_pool(self):
        pool = penstock.torch.pool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.arange(1 << 20, device="cuda")
        y = torch.zeros(1 << 20, dtype=x.dtype)
        with self.b.export(y, "pool", WRITE):
            self.assertIn("cuda 0", self.peer.put(x, "pool").wait(30).explain())
        self.assertTrue(torch.equal(x.cpu(), y))

    @unittest.skipIf(torch is None or not torch.cuda.is_available(), "torch has no CUDA here")
    def test_torch(self):
        x = torch.arange(1 << 20, device="cuda") * 3  # a kernel that may be under way
        y, z = torch.zeros_like(x), torch.zeros(1 << 20, dtype=x.dtype).pin_memory()
        with self.b.export(y, "y", READ | WRITE):
            self.assertIn("cuda 0", self.peer.put(x, "y").wait(30).explain())
            self.assertTrue(torch.equal(x, y))
            self.peer.get("y", z).wait(30)  # pinned memory is the host's
            self.assertTrue(torch.equal(x.cpu(), z))
            with penstock.adopt(x) as r:
                self.assertEqual(torch.from_dlpack(r).data_ptr(), x.data_ptr())
                self.assertTrue(torch.equal(torch.as_tensor(r, device="cuda").view(x.dtype), x))


if __name__ == "__main__":
    unittest.main()
