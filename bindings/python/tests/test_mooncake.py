import subprocess
import sys
import time
import unittest

import numpy
from penstock.mooncake import TransferEngine, TransferNotify, TransferOpcode


class Engines(unittest.TestCase):
    def setUp(self):
        self.a, self.b = TransferEngine(), TransferEngine()
        for e in (self.a, self.b):
            self.assertEqual(e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        self.to = f"127.0.0.1:{self.b.get_rpc_port()}"
        self.x, self.y = numpy.arange(8192, dtype="u2"), numpy.zeros(8192, "u2")
        self.here, self.there, self.size = self.x.ctypes.data, self.y.ctypes.data, self.x.nbytes
        self.assertEqual((self.a.register_memory(self.here, self.size), self.b.register_memory(self.there, self.size)), (0, 0))

    def same(self):
        self.assertTrue((self.x == self.y).all())
        self.y[:] = 0

    def test_sync(self):
        self.assertEqual(self.a.transfer_sync_write(self.to, self.here, self.there, self.size), 0)
        self.same()
        self.assertEqual(self.a.transfer_sync(self.to, self.here, self.there, self.size, TransferOpcode.Write, TransferNotify("k", "v")), 0)
        self.same()
        end, got = time.monotonic() + 30, []
        while not got and time.monotonic() < end:
            got = self.b.get_notifies()
        self.assertEqual(got, [TransferNotify("k", "v")])
        self.y[:] = self.x + 1
        self.assertEqual(self.a.transfer_sync_read(self.to, self.here, self.there, self.size), 0)
        self.same()

    def test_batches(self):
        at = [i * 1024 for i in range(16)]
        batch = [self.here + i for i in at], [self.there + i for i in at], [1024] * 16
        for f in (self.a.batch_transfer_sync_write, lambda *x: self.a.batch_transfer_sync(*x, TransferOpcode.Write)):
            self.assertEqual(f(self.to, *batch), 0)
            self.same()
        for f in (self.a.batch_transfer_async_write, lambda *x: self.a.batch_transfer_async(*x, TransferOpcode.Write)):
            ids = [f(self.to, *batch) for _ in range(3)]
            self.assertTrue(all(ids))
            self.assertEqual(self.a.get_batch_transfer_status(ids), 0)
            self.same()
        i = self.a.transfer_submit_write(self.to, self.here, self.there, self.size)
        end = time.monotonic() + 30
        while (s := self.a.transfer_check_status(i)) == 0:
            self.assertLess(time.monotonic(), end)
        self.assertEqual((s, self.a.transfer_check_status(i)), (1, -1))
        self.same()
        self.y[:] = 5
        self.assertEqual(self.a.batch_transfer_sync_read(self.to, *batch), 0)
        self.assertEqual(self.a.get_batch_transfer_status([self.a.batch_transfer_async_read(self.to, *batch)]), 0)
        self.same()

    def test_memory(self):
        m = self.b.allocate_managed_buffer(4096)
        self.assertTrue(m)
        self.assertEqual(self.b.write_bytes_to_buffer(m, b"hello", 5), 0)
        self.assertEqual(self.a.transfer_sync_read(self.to, self.here, m, 5), 0)  # registered after the first exchange
        self.assertEqual(self.x.tobytes()[:5], b"hello")
        self.assertEqual(self.b.read_bytes_from_buffer(m, 5), b"hello")
        self.assertEqual(self.a.get_first_buffer_address(self.to), self.there)
        self.assertEqual((self.b.free_managed_buffer(m, 4096), self.b.free_managed_buffer(m, 4096)), (0, -1))
        self.assertEqual(self.a.transfer_sync_read(self.to, self.here, m, 5), -1)
        z = numpy.zeros((2, 512), "u1")
        at = [z[0].ctypes.data, z[1].ctypes.data]
        self.assertEqual((self.a.unregister_memory(self.here), self.a.unregister_memory(self.here)), (0, -1))
        self.assertEqual((self.b.batch_register_memory(at, [512, 512]), self.b.batch_unregister_memory(at), self.b.batch_unregister_memory(at)), (0, 0, -1))
        with self.assertRaises(ValueError):
            self.b.read_bytes_from_buffer(m, 1 << 40)

    def test_refused(self):
        self.assertEqual((self.a.send_probe(self.to), self.a.send_probe("127.0.0.1:1")), (0, -1))
        self.assertEqual(self.a.transfer_sync_write(self.to, self.here, self.there + 1, self.size), -1)
        self.assertEqual(self.a.transfer_sync_write("127.0.0.1:1", self.here, self.there, 1), -1)
        self.assertEqual(self.a.transfer_submit_write(self.to, 1, self.there, 1), 0)
        self.assertEqual((self.a.transfer_check_status(99), self.a.get_batch_transfer_status([99])), (-1, -1))
        with self.assertRaises(ValueError):
            self.a.batch_transfer_sync_write(self.to, [1], [1, 2], [1])
        for f in (lambda: TransferEngine().initialize("h", "etcd://x", "tcp", ""), self.a.get_local_topology,
                  self.a.get_engine, self.a.get_engine_ptr, self.a.transfer_write_on_cuda, self.a.transfer_read_on_cuda,
                  self.a.batch_transfer_write_on_cuda, self.a.batch_transfer_read_on_cuda):
            with self.assertRaises(NotImplementedError):
                f()
        with self.assertRaises(RuntimeError):
            TransferEngine().get_rpc_port()
        for target in ("127.0.0.1:x", "127.0.0.1:99999", "a" * 70 + ":1", "192.0.2.1:5", "\0:1"):
            self.assertEqual(self.a.transfer_sync_write(target, self.here, self.there, 1), -1)
        self.assertEqual((TransferEngine().initialize(self.to, "P2PHANDSHAKE", "tcp", ""), TransferEngine().initialize("h:x", "P2PHANDSHAKE", "tcp", "")), (-1, -1))
        self.a._open().send_notif(self.a._peer(self.to, True), b"no notify")
        self.assertEqual(self.a.transfer_sync(self.to, self.here, self.there, 1, TransferOpcode.Write, TransferNotify("k", "v")), 0)
        end, got = time.monotonic() + 30, []
        while not got and time.monotonic() < end:
            got = self.b.get_notifies()
        self.assertEqual(got, [TransferNotify("k", "v")])
        self.assertEqual(TransferEngine().initialize_ext("127.0.0.1:0", "P2PHANDSHAKE", "rdma", "", ""), 0)

    def test_methods(self):
        said = open(__file__).read()
        self.assertEqual([m for m in vars(TransferEngine) if not m.startswith("_") and callable(getattr(TransferEngine, m)) and f".{m}" not in said], [])

    def test_install(self):
        r = subprocess.run([sys.executable, "-c", "import penstock.mooncake as m; m.install()\nfrom mooncake.engine import TransferEngine\nprint(TransferEngine is m.TransferEngine)"],
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(r.stdout, "True\n", r.stderr)


if __name__ == "__main__":
    unittest.main()
