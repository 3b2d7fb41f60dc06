import json
import os
import pickle
import tempfile
import subprocess
import sys
import time
import unittest
import unittest.mock

import numpy
import penstock
import penstock.nixl as nixl
from penstock.nixl import nixl_agent, nixl_agent_config


def wait(agent, handle, want="DONE"):
    end = time.monotonic() + 30
    while agent.check_xfer_state(handle) == "PROC":
        assert time.monotonic() < end, "the transfer does not end"
    assert agent.check_xfer_state(handle) == want, handle.state


def message(agent, of, text):
    end = time.monotonic() + 30
    while not agent.check_remote_xfer_done(of, text, tag_is_prefix=False):
        assert time.monotonic() < end, "the message does not arrive"


class Agents(unittest.TestCase):
    def setUp(self):
        self.a, self.b = (nixl_agent(n, nixl_agent_config(capture_telemetry=True)) for n in ("a", "b"))
        self.x, self.y = numpy.arange(4096, dtype="u1").reshape(16, 256), numpy.zeros((16, 256), "u1")
        self.mine, self.theirs = self.a.register_memory(self.x), self.b.register_memory(self.y)
        self.assertEqual(self.a.add_remote_agent(self.b.get_agent_metadata()), b"b")

    def rows(self, agent, x):
        return agent.get_xfer_descs([r for r in x])

    def test_initialize_xfer(self):
        h = self.a.initialize_xfer("WRITE", self.rows(self.a, self.x), self.rows(self.b, self.y), "b", b"written")
        self.assertIn(self.a.transfer(h), ("PROC", "DONE"))
        wait(self.a, h)
        message(self.b, "a", b"written")
        self.assertTrue((self.x == self.y).all())
        t = self.a.get_xfer_telemetry(h)
        self.assertEqual((t.totalBytes, t.descCount, t.backendName, self.a.query_xfer_backend(h)), (4096, 16, "UCX", "UCX"))
        self.y[:] += 1
        h2 = self.a.initialize_xfer("READ", self.mine.trim(), self.theirs.trim(), "b")
        self.a.transfer(h2, "read")
        wait(self.a, h2)
        message(self.b, "a", b"read")
        self.assertTrue((self.x == self.y).all())
        self.a.release_xfer_handle(h)
        for size in (1003, 1004, 1024, 1025, 5000):  # the longest message that travels with the bytes, and longer ones, which do not
            long = bytes(size)
            self.y[:] += 1
            self.a.transfer(h2, long)
            wait(self.a, h2)
            message(self.b, "a", long)
            self.assertTrue((self.x == self.y).all())

    def test_prepped(self):
        at = numpy.array([[self.x.ctypes.data + i * 256, 256, 0] for i in range(16)], "u8")
        there = [(self.y.ctypes.data + i * 256, 256, 0) for i in range(16)]
        here = self.a.prep_xfer_dlist("NIXL_INIT_AGENT", at, mem_type="DRAM")
        far = self.a.prep_xfer_dlist("b", there, mem_type="cpu")
        h = self.a.make_prepped_xfer("WRITE", here, numpy.arange(16, dtype="i4"), far, list(range(15, -1, -1)), b"done")
        for i in range(5):
            self.x[:] += 1
            self.a.transfer(h)
            wait(self.a, h)
            message(self.b, "a", b"done")
            self.assertTrue((self.x == self.y[::-1]).all())
        self.a.release_dlist_handle(here)
        h.release()

    def test_notifications(self):
        self.a.send_notif("b", b"one")
        self.a.send_notif(b"b", "two")
        end, got = time.monotonic() + 30, []
        while len(got) < 2 and time.monotonic() < end:
            got += self.b.get_new_notifs().get("a", [])
        self.assertEqual(got, [b"one", b"two"])
        self.assertEqual(self.b.get_new_notifs(), {})
        self.a.send_notif("b", b"tag and more")
        end = time.monotonic() + 30
        while not self.b.check_remote_xfer_done("a", b"tag"):
            self.assertLess(time.monotonic(), end)

    def test_metadata(self):
        z = numpy.zeros(512, "u1")
        d = self.b.register_memory(z)
        self.assertFalse(self.a.check_remote_metadata("b", d))
        self.a.add_remote_agent(self.b.get_partial_agent_metadata(d))
        self.assertTrue(self.a.check_remote_metadata("b", d) and self.a.check_remote_metadata("b"))
        self.assertFalse(self.a.check_remote_metadata("c"))
        self.a.make_connection("b")
        self.b.deregister_memory(d)
        with self.assertRaises(nixl.nixlNotFoundError):
            self.a.initialize_xfer("READ", self.a.get_xfer_descs(self.x[:2].reshape(-1)), d.trim(), "b")
        self.a.remove_remote_agent("b")
        for f in (lambda: self.a.send_notif("b", b""), lambda: self.a.remove_remote_agent("b")):
            with self.assertRaises(nixl.nixlNotFoundError):
                f()
        for bad in (b"", b"[]", json.dumps({"agent": "c", "address": "tcp://127.0.0.1:1", "exports": []}).encode(),
                    json.dumps({"agent": "c", "address": "unix:///tmp/penstock-nixl-\0/s", "exports": []}).encode()):
            with self.assertRaises((nixl.nixlInvalidParamError, nixl.nixlNotFoundError)):
                self.a.add_remote_agent(bad)
        for prefix, mode in ("other-", 0o700), ("penstock-nixl-", 0o770):  # anybody could have made those
            with tempfile.TemporaryDirectory(prefix=prefix) as at:
                os.chmod(at, mode)
                with self.assertRaises(nixl.nixlInvalidParamError):
                    self.a.add_remote_agent(json.dumps({"agent": "c", "address": f"unix://{at}/s", "exports": []}).encode())

    def test_another_user(self):
        """The directory of an agent that another user runs is refused, whoever is first to name it."""
        m, me = self.b.get_agent_metadata(), os.geteuid()
        with unittest.mock.patch("penstock.nixl.os.geteuid", lambda: me + 1):
            with self.assertRaisesRegex(nixl.nixlInvalidParamError, "only this user"):
                self.a.add_remote_agent(m)
        self.assertEqual(self.a.add_remote_agent(m), b"b")

    def test_descriptors(self):
        d = self.rows(self.a, self.x)
        self.assertEqual(self.a.deserialize_descs(self.a.get_serialized_descs(d)), d)
        self.assertEqual(pickle.loads(pickle.dumps(self.mine)), self.mine)
        self.assertEqual((len(d), d.descCount(), d.isEmpty(), d.getType(), d[1]), (16, 16, False, nixl.DRAM_SEG, (self.x.ctypes.data + 256, 256, 0)))
        self.assertIsNone(self.a.get_xfer_descs([(1, 2, 3, 4)], "DRAM"))
        self.assertIsNone(self.a.get_reg_descs([(1, 2, 3)], "DRAM"))
        self.assertIsNone(self.a.get_xfer_descs(self.x.T))
        self.assertIs(self.a.get_remote_descs(d), d)
        with self.assertRaises(KeyError):
            self.a.get_xfer_descs([(1, 2, 3)], "V-RAM")

    def test_device_of_numpy_2(self):
        class Array(numpy.ndarray):
            device = "cpu"  # as numpy has it from version 2 on
        self.assertEqual(self.a.get_reg_descs(numpy.zeros(4).view(Array)).rows[0, 1:].tolist(), [32, 0])

    def test_refused(self):
        small = self.a.get_xfer_descs([(self.x.ctypes.data, 10, 0)], "DRAM")
        outside = self.a.get_xfer_descs([(self.y.ctypes.data + 4090, 10, 0)], "DRAM")
        for f, e in ((lambda: self.a.initialize_xfer("WRITE", small, outside, "b"), nixl.nixlNotFoundError),
                     (lambda: self.a.initialize_xfer("WRITE", outside, small, "b"), nixl.nixlNotFoundError),
                     (lambda: self.a.initialize_xfer("WRITE", small, self.theirs, "b"), nixl.nixlInvalidParamError),
                     (lambda: self.a.initialize_xfer("WR", small, small, "b"), KeyError),
                     (lambda: self.a.register_memory([(1, 2, 0, "")], "FILE"), nixl.nixlNotSupportedError),
                     (lambda: self.a.create_backend("GDS"), nixl.nixlNotFoundError),
                     (lambda: self.a.query_memory([], "POSIX"), nixl.nixlNotSupportedError),
                     (lambda: self.a.prep_mem_view(small), nixl.nixlNotSupportedError),
                     (lambda: self.a.release_mem_view(None), nixl.nixlNotSupportedError),
                     (lambda: self.a.estimate_xfer_cost(None), nixl.nixlNotSupportedError),
                     (lambda: self.a.send_local_metadata(), nixl.nixlNotSupportedError),
                     (lambda: self.a.get_listen_port(), nixl.nixlNotSupportedError),
                     (lambda: nixl_agent(""), ValueError), (lambda: nixl_agent_config(sync_mode=1), TypeError)):
            with self.assertRaises(e):
                f()
        self.assertEqual(self.a.get_plugin_mem_types("GDS"), [])

    def test_methods(self):
        said = open(__file__).read()
        self.assertEqual([m for m in vars(nixl_agent) if not m.startswith("_") and callable(getattr(nixl_agent, m)) and f".{m}(" not in said], [])

    def test_backends(self):
        a = self.a
        for b in a.get_plugin_list():
            a.create_backend(b, {"key": b})
            self.assertIn("tcp", a.get_plugin_params(b)["paths"])
            self.assertIn("DRAM", a.get_backend_mem_types(b))
            self.assertEqual(a.get_backend_params(b), {"key": b})
        self.assertIn("UCX", a.get_plugin_list())
        self.assertEqual((a.get_plugin_params("GDS"), a.get_backend_mem_types("GDS"), a.get_backend_params("GDS")), ({}, [], {}))

    def test_update_notifs(self):
        self.a.send_notif("b", b"first")
        self.a.send_notif("b", b"second")
        end = time.monotonic() + 30
        while len(self.b.update_notifs().get("a", [])) < 2 and time.monotonic() < end:
            pass
        self.assertEqual(self.b.update_notifs(), {"a": [b"first", b"second"]})  # it takes none of them away
        self.assertEqual((self.b.get_new_notifs(), self.b.get_new_notifs()), ({"a": [b"first", b"second"]}, {}))

    def test_lost(self):
        h = self.a.initialize_xfer("WRITE", self.rows(self.a, self.x), self.rows(self.b, self.y), "b")
        self.b.system.close()
        try:
            self.a.transfer(h)
        except nixl.nixlRemoteDisconnectError:
            return
        wait(self.a, h, "ERR")


TARGET = """
import penstock.nixl, sys
penstock.nixl.install()
import numpy
from nixl._api import nixl_agent, nixl_agent_config
a = nixl_agent("target", nixl_agent_config(True, True, 0))
x = numpy.full(1 << 16, 7, "u1")
d = a.register_memory(x)
print(a.get_listen_port(), flush=True)
while not a.check_remote_metadata("initiator"):
    pass
a.send_notif("initiator", a.get_serialized_descs(d.trim()))
while not a.check_remote_xfer_done("initiator", b"read"):
    pass
while a.check_remote_metadata("initiator"):
    pass
"""


class Processes(unittest.TestCase):
    def test_listen_thread(self):
        p = subprocess.Popen([sys.executable, "-c", TARGET], stdout=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.kill)
        port = int(p.stdout.readline())
        a = nixl_agent("initiator")
        y = numpy.zeros(1 << 16, "u1")
        mine = a.register_memory(y)
        a.fetch_remote_metadata("target", "127.0.0.1", port)
        a.send_partial_agent_metadata(mine.trim(), True, ip_addr="127.0.0.1", port=port)  # what it exported is among it
        a.send_local_metadata("127.0.0.1", port)
        end, got = time.monotonic() + 30, {}
        while not got and time.monotonic() < end:
            got = a.get_new_notifs()
        h = a.initialize_xfer("READ", mine.trim(), a.deserialize_descs(got["target"][0]), "target", b"read")
        a.transfer(h)
        wait(a, h)
        self.assertTrue((y == 7).all())
        a.invalidate_local_metadata("127.0.0.1", port)
        self.assertEqual(p.wait(30), 0)


if __name__ == "__main__":
    unittest.main()
