"""Agents that end, are stopped and restarted, register memory anew, fork, and share a machine with another user."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import numpy
import penstock
import penstock.mooncake
import penstock.nixl as nixl
from penstock.nixl import nixl_agent, nixl_agent_config

AGENT = """
import json, sys, numpy, penstock.nixl as nixl
name, port = sys.argv[1], int(sys.argv[2])
a = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_listen_thread=True, listen_port=port))
x = numpy.zeros(4096, "u1")
a.register_memory(x)
print(json.dumps([a.get_listen_port(), x.ctypes.data, a.get_agent_metadata().decode()]), flush=True)
for line in sys.stdin:
    print(int(x[0]), flush=True)
"""

ENGINE = """
import json, sys, numpy, penstock.mooncake
e = penstock.mooncake.TransferEngine()
assert e.initialize("127.0.0.1:" + sys.argv[1], "P2PHANDSHAKE", "tcp", "") == 0
x = numpy.zeros(4096, "u1")
assert e.register_memory(x.ctypes.data, x.nbytes) == 0
print(json.dumps([e.get_rpc_port(), x.ctypes.data]), flush=True)
for line in sys.stdin:
    print(int(x[0]), flush=True)
"""

# Another user of the machine. It has loaded all it needs when it changes its user.
OTHER = """
import json, os, select, socket, sys, penstock, penstock.nixl as nixl
ports, metadata, mode = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
penstock.System(name="loads").close()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)

def line(port, what):  # what listen threads once took from everybody
    with socket.create_connection(("127.0.0.1", port), 10) as s, s.makefile("rw") as f:
        try:
            f.write(json.dumps(what) + "\\n")
            f.flush()
            return json.loads(f.readline())
        except (OSError, ValueError):
            return {}

def tries():
    swapped = line(ports[1], {"do": "get"}).get("metadata", metadata)
    d = json.loads(swapped)
    if isinstance(d["exports"], dict):
        d["exports"] = dict(zip(d["exports"], reversed(d["exports"].values())))
    line(ports[0], {"do": "add", "metadata": json.dumps(d)})
    yield None
    a = nixl.nixl_agent("b")
    for f in (lambda: a.fetch_remote_metadata("a", "127.0.0.1", ports[0]), lambda: a.send_local_metadata("127.0.0.1", ports[0]),
              lambda: a.invalidate_local_metadata("127.0.0.1", ports[0]), lambda: a.add_remote_agent(metadata.encode())):
        try:
            f()
            yield "let in"
        except (nixl.nixlError, penstock.Error) as e:
            yield type(e).__name__

if mode == "attack":
    print(json.dumps(list(tries())), flush=True)
elif mode == "hold":
    def hold():
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", ports[0]))
        return s
    held = [hold() for _ in range(128)]
    print(json.dumps(len(held)), flush=True)
    while True:
        ready = select.select(held + [sys.stdin], [], [])[0]
        if sys.stdin in ready:
            sys.exit()
        for s in ready:  # it was closed
            held.remove(s)
            s.close()
            held.append(hold())
elif mode == "listen":
    a = nixl.nixl_agent("b", nixl.nixl_agent_config(enable_listen_thread=True, listen_port=0))
    print(json.dumps(a.get_listen_port()), flush=True)
sys.stdin.readline()
"""


def listening(name):
    return nixl_agent(name, nixl_agent_config(enable_listen_thread=True, listen_port=0))


class Processes(unittest.TestCase):
    def child(self, script, *args, **environment):
        if script is not OTHER:  # it may be killed, and leaves its directory then
            at = tempfile.TemporaryDirectory()
            self.addCleanup(at.cleanup)
            environment["TMPDIR"] = at.name
        p = subprocess.Popen([sys.executable, "-c", script, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **environment})

        def end():
            p.stdin.close()
            p.wait(60)
            p.stdout.close()
        self.addCleanup(end)
        return p, json.loads(p.stdout.readline() or "null")

    def first(self, p):
        p.stdin.write("?\n")
        p.stdin.flush()
        return int(p.stdout.readline())

    def end(self, p):
        p.kill()
        p.wait()
        p.stdout.read()  # its agent, which has the pipe too, has ended as well

    def stop(self, p):
        p.send_signal(signal.SIGSTOP)
        os.waitpid(p.pid, os.WUNTRACED)

    def until(self, f):
        end = time.monotonic() + 30
        while not f():
            self.assertLess(time.monotonic(), end)

    def done(self, agent, handle):
        self.until(lambda: agent.check_xfer_state(handle) != "PROC")
        self.assertEqual(agent.check_xfer_state(handle), "DONE")


class Life(Processes):
    def setUp(self):
        self.a = nixl_agent("a")
        self.x = numpy.full(4096, 1, "u1")
        self.mine = self.a.register_memory(self.x)

    def write(self, name, there):
        return self.a.initialize_xfer("WRITE", self.mine.trim(), self.a.get_xfer_descs([(there, 4096, 0)], "DRAM"), name)

    def fails(self, h, error):
        """What is over may be noticed while the transfer is under way; the next post is refused."""
        try:
            self.a.transfer(h)
            self.until(lambda: self.a.check_xfer_state(h) != "PROC")
        except error:
            pass
        self.assertEqual(self.a.check_xfer_state(h), "ERR")
        with self.assertRaises(error):
            self.a.transfer(h)
        self.assertEqual(self.a.check_xfer_state(h), "ERR")

    def test_stopped(self):
        """The session with an agent that was stopped for a while is over. What was prepared before goes on in another one."""
        p, (_, there, metadata) = self.child(AGENT, "b", 0, PENSTOCK_AGENT="0")  # the node is in the process that stops
        self.a.add_remote_agent(metadata.encode())
        old = self.write("b", there)
        self.a.transfer(old)
        self.done(self.a, old)
        self.stop(p)
        with self.assertRaises(penstock.PeerLostError):
            self.a._known["b"].peer.list("x", 60)
        p.send_signal(signal.SIGCONT)
        for value, h in ((2, old), (3, None), (4, old)):
            self.x[:] = value
            h = h or self.write("b", there)
            self.a.transfer(h)
            self.done(self.a, h)
            self.assertEqual(self.first(p), value)
        self.a._known["b"].peer.close()
        self.a.send_notif("b", b"again")

    def test_restarted(self):
        """An agent that was restarted says where it is now. What was prepared before goes on where its memory is registered."""
        p, (port, there, metadata) = self.child(AGENT, "b", 0)
        self.a.add_remote_agent(metadata.encode())
        old = self.write("b", there)
        self.end(p)
        self.fails(old, nixl.nixlRemoteDisconnectError)
        p, (_, there, _) = self.child(AGENT, "b", port)
        self.a.fetch_remote_metadata("b", "127.0.0.1", port)
        self.x[:] = 5
        h = self.write("b", there)
        self.a.transfer(h)
        self.done(self.a, h)
        self.assertEqual(self.first(p), 5)

    def test_registered_anew(self):
        """Memory that was registered anew, and is smaller now, is found with new metadata, whole or partial."""
        b, y = nixl_agent("b"), numpy.zeros(8192, "u1")
        there = y.ctypes.data
        large = b.register_memory(y)
        self.a.add_remote_agent(b.get_agent_metadata())
        old = self.write("b", there)
        for value, said in ((6, b.get_agent_metadata), (7, lambda: b.get_partial_agent_metadata(small))):
            h = self.write("b", there)
            self.a.transfer(h)
            self.done(self.a, h)
            b.deregister_memory(large)
            small = b.register_memory(y[:4096])
            self.a.add_remote_agent(said())
            self.x[:] = value
            for h in (old, self.write("b", there)):
                y[:] = 0
                self.a.transfer(h)
                self.done(self.a, h)
                self.assertTrue((y[:4096] == value).all())
            b.deregister_memory(small)
            large = b.register_memory(y)
            self.a.add_remote_agent(b.get_agent_metadata())
        self.a.deregister_memory(self.mine)
        self.mine = self.a.register_memory(self.x)
        self.a.transfer(old)
        self.done(self.a, old)

    def test_state_of_a_refused_post(self):
        b, y = nixl_agent("b"), numpy.zeros(4096, "u1")
        d = b.register_memory(y)
        self.a.add_remote_agent(b.get_agent_metadata())
        h = self.write("b", y.ctypes.data)
        self.a.transfer(h)
        self.done(self.a, h)
        b.deregister_memory(d)
        self.fails(h, nixl.nixlNotFoundError)

    def test_registered_twice(self):
        b, y = nixl_agent("b"), numpy.zeros(4096, "u1")
        d = b.register_memory(y)
        b.register_memory(y)
        b.deregister_memory(d)
        self.a.add_remote_agent(b.get_agent_metadata())
        h = self.write("b", y.ctypes.data)
        self.a.transfer(h)
        self.done(self.a, h)
        b.deregister_memory(d)
        with self.assertRaises(nixl.nixlNotFoundError):
            b.deregister_memory(d)
        with self.assertRaises(nixl.nixlError):
            b.register_memory([(y.ctypes.data, 16, 0, ""), (0, 16, 0, "")], "DRAM")  # the second is no memory
        self.assertEqual(json.loads(b.get_agent_metadata())["exports"], [])

    def test_errors(self):
        """What escapes is an error of NIXL."""
        b, y = listening("b"), numpy.zeros(4096, "u1")
        d = b.register_memory(y)
        self.a.add_remote_agent(b.get_agent_metadata())
        here, there = self.a.prep_xfer_dlist("", self.mine.trim()), self.a.prep_xfer_dlist("b", d.trim())
        h = self.a.make_prepped_xfer("WRITE", here, [0], there, [0])
        self.a.release_dlist_handle(there)
        self.a.release_xfer_handle(h)
        port = b.get_listen_port()
        for f, e in ((lambda: self.a.make_prepped_xfer("WRITE", here, [1], there, [0]), nixl.nixlInvalidParamError),
                     (lambda: self.a.make_prepped_xfer("WRITE", here, [0], there, [0]), nixl.nixlInvalidParamError),
                     (lambda: self.a.transfer(h), nixl.nixlInvalidParamError),
                     (lambda: self.a.deserialize_descs(b"[]"), nixl.nixlMismatchError),
                     (lambda: self.a.deserialize_descs(b"{"), nixl.nixlMismatchError),
                     (lambda: self.a.send_notif("b", bytes(2 << 20)), nixl.nixlError),
                     (lambda: self.a.fetch_remote_metadata("c", "127.0.0.1", port), nixl.nixlNotFoundError),
                     (lambda: self.a.fetch_remote_metadata("c", "192.0.2.1", port), nixl.nixlNotSupportedError),
                     (lambda: nixl_agent("c", nixl_agent_config(enable_listen_thread=True, listen_port=port)), nixl.nixlError)):
            with self.assertRaises(e):
                f()
        b.system.close()
        with self.assertRaises(nixl.nixlRemoteDisconnectError):
            self.a.send_notif("b", b"")
        with self.assertRaises(nixl.nixlError):
            b.register_memory(self.x)

    def test_bindings(self):
        out = subprocess.run([sys.executable, "-c", "import penstock.nixl as n; n.install()\nfrom nixl import _bindings as b; print(*dir(b))"],
                             stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout.split()
        errors = "NotPosted InvalidParam Backend NotFound Mismatch NotAllowed RepostActive Unknown NotSupported RemoteDisconnect Cancelled NoTelemetry"
        names = [f"nixl{e}Error" for e in errors.split()] + """NIXL_INIT_AGENT DEFAULT_COMM_PORT nixl_thread_sync_t nixl_mem_t nixl_xfer_op_t nixl_status_t NIXL_READ
            NIXL_WRITE NIXL_IN_PROG NIXL_SUCCESS NIXL_ERR_NOT_POSTED NIXL_ERR_REMOTE_DISCONNECT NIXL_THREAD_SYNC_NONE NIXL_THREAD_SYNC_STRICT
            NIXL_THREAD_SYNC_DEFAULT DRAM_SEG VRAM_SEG BLK_SEG OBJ_SEG FILE_SEG nixlXferDList nixlRegDList""".split()
        self.assertEqual(sorted(set(names) - set(out)), [])

    def test_fork(self):
        """The end of a fork leaves the agent of its parent where it is; the end of the parent does not."""
        out = subprocess.run([sys.executable, "-c", """
import os, sys, penstock.nixl
a = penstock.nixl.nixl_agent("a")
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
print(a._directory, os.path.exists(a._directory + "/agent.sock"))
"""], stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout.split()
        self.assertEqual((out[1], os.path.exists(out[0])), ("True", False))

    def test_much_memory(self):
        """Metadata may be longer than a message."""
        b = listening("b")
        y = numpy.zeros(600 * 16, "u1")
        d = b.register_memory([(y.ctypes.data + 16 * i, 16, 0, "") for i in range(600)], "DRAM")
        self.a.fetch_remote_metadata("b", "127.0.0.1", b.get_listen_port())
        self.assertTrue(self.a.check_remote_metadata("b", d.trim()))
        c = listening("c")
        with unittest.mock.patch("penstock.nixl._MOST", 100):
            b.send_partial_agent_metadata(d.trim(), ip_addr="127.0.0.1", port=c.get_listen_port())
        self.until(lambda: c.check_remote_metadata("b", d.trim()))


class Engines(Processes):
    def setUp(self):
        self.e = penstock.mooncake.TransferEngine()
        self.assertEqual(self.e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        self.x = numpy.full(4096, 1, "u1")
        self.here = self.x.ctypes.data
        self.assertEqual(self.e.register_memory(self.here, 4096), 0)

    def test_restarted(self):
        p, (port, there) = self.child(ENGINE, 0)
        to = f"127.0.0.1:{port}"
        for value in (2, 3):
            self.x[:] = value
            self.assertEqual(self.e.transfer_sync_write(to, self.here, there, 4096), 0)
            self.assertEqual(self.first(p), value)
            self.end(p)
            p, (_, there) = self.child(ENGINE, port)
        self.assertEqual(len(self.e._open()._known), 1)

    def test_stopped(self):
        p, (port, there) = self.child(ENGINE, 0, PENSTOCK_AGENT="0")
        to = f"127.0.0.1:{port}"
        self.assertEqual(self.e.transfer_sync_write(to, self.here, there, 4096), 0)
        self.stop(p)
        a = self.e._open()
        with self.assertRaises(penstock.PeerLostError):
            a._known[self.e._names[to]].peer.list("x", 60)
        p.send_signal(signal.SIGCONT)
        self.x[:] = 9
        self.assertEqual(self.e.transfer_sync_write(to, self.here, there, 4096), 0)
        self.assertEqual(self.first(p), 9)

    def test_registered_anew(self):
        b, y = penstock.mooncake.TransferEngine(), numpy.zeros(8192, "u1")
        self.assertEqual(b.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        to, there = f"127.0.0.1:{b.get_rpc_port()}", y.ctypes.data
        notify = penstock.mooncake.TransferNotify("k", "v")
        for i, size in enumerate((8192, 4096, 8192, 4096)):
            self.assertEqual(b.register_memory(there, size), 0)
            self.x[:] = i + 1
            f = self.e.transfer_sync if i % 2 else self.e.transfer_sync_write
            self.assertEqual(f(to, self.here, there, 4096, *([penstock.mooncake.TransferOpcode.Write, notify] * (i % 2))), 0)
            self.assertTrue((y[:4096] == i + 1).all())
            self.assertEqual(b.unregister_memory(there), 0)


class Names(Processes):
    """An entry for an agent is what that agent has said."""

    def test_another_agent(self):
        a, b, c = listening("a"), nixl_agent("b"), nixl_agent("c")
        port = a.get_listen_port()
        lie = json.loads(c.get_agent_metadata())
        lie["agent"] = "b"
        with self.assertRaisesRegex(nixl.nixlNotAllowedError, "is not 'b'"):
            a.add_remote_agent(json.dumps(lie).encode())
        b.send_local_metadata("127.0.0.1", port)
        self.until(lambda: a.check_remote_metadata("b"))
        before = a._known["b"]
        with self.assertLogs("nixl", "WARNING") as log:
            c._tell("127.0.0.1", port, lie, {"agent": "b", "address": b.address, "gone": True})  # c speaks of b
            self.until(lambda: a.check_remote_metadata("b") and len(log.output) == 2)
            d = nixl_agent("b")  # has the same name, and another address
            d.send_local_metadata("127.0.0.1", port)
            d.invalidate_local_metadata("127.0.0.1", port)
            self.until(lambda: a.check_remote_metadata("b") and len(log.output) == 3)
        self.assertIs(a._known["b"], before)
        before.peer.close()  # as when b was stopped for a while
        x = numpy.zeros(16, "u1")
        more = b.register_memory(x)
        b.send_local_metadata("127.0.0.1", port)
        self.until(lambda: a.check_remote_metadata("b", more.trim()))
        b.system.close()
        d.send_local_metadata("127.0.0.1", port)
        self.until(lambda: a.check_remote_metadata("b") and a._known["b"].address == d.address)
        d.invalidate_local_metadata("127.0.0.1", port)
        self.until(lambda: not a.check_remote_metadata("b"))


@unittest.skipUnless(os.geteuid() == 0, "to be two users takes root")
class Users(Processes):
    def other(self, ports, metadata, mode):
        return self.child(OTHER, json.dumps(ports), metadata, mode, PENSTOCK_AGENT="0")

    def test_attack(self):
        """Another user redirects no transfer, and learns nothing."""
        a, b = listening("a"), listening("b")
        x, y, z = (numpy.full(4096, v, "u1") for v in (7, 0, 0))
        mine = a.register_memory(x)
        b.register_memory([y, z])
        ports = [a.get_listen_port(), b.get_listen_port()]
        a.fetch_remote_metadata("b", "127.0.0.1", ports[1])
        known = a._known["b"].exports
        _, (_, *said) = self.other(ports, b.get_agent_metadata().decode(), "attack")
        self.assertEqual(said, ["nixlNotAllowedError"] * 3 + ["nixlInvalidParamError"])
        self.assertTrue(a.check_remote_metadata("b"))
        self.assertEqual(a._known["b"].exports, known)
        h = a.initialize_xfer("WRITE", mine.trim(), a.get_xfer_descs(y), "b")
        a.transfer(h)
        self.done(a, h)
        self.assertTrue((y == 7).all() and not z.any())

    def test_held_connections(self):
        """Connections of another user that say nothing keep nobody away, where there are more of them than descriptors."""
        _, (port, _, _) = self.child("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n" + AGENT, "b", 0)
        _, held = self.other([port], "{}", "hold")
        self.assertEqual(held, 128)
        a = nixl_agent("ä" * 100)  # the name is a part of what is said
        for _ in range(5):
            a.fetch_remote_metadata("b", "127.0.0.1", port)
            a.send_local_metadata("127.0.0.1", port)
        a.make_connection("b")

    def test_port_of_another_user(self):
        """An agent tells nothing to another user who listens at the port, and takes nothing."""
        _, port = self.other([], "{}", "listen")
        a = nixl_agent("b")
        for f in (lambda: a.fetch_remote_metadata("b", "127.0.0.1", port), lambda: a.send_local_metadata("127.0.0.1", port),
                  lambda: a.invalidate_local_metadata("127.0.0.1", port)):
            with self.assertRaises(nixl.nixlNotAllowedError):
                f()


if __name__ == "__main__":
    unittest.main()
