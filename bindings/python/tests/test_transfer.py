import array
import asyncio
import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import weakref

import numpy
import penstock
from penstock import READ, WRITE
from test_agent import command


class Pair(unittest.TestCase):
    def setUp(self):
        self.b = penstock.System(name="b", listen=["tcp://127.0.0.1:0"])
        self.a = penstock.System(name="a")
        self.peer = self.a.connect(self.b.addresses[0])

    def tearDown(self):
        self.peer.close()
        self.a.close()
        self.b.close()

    def export(self, x, name, rights=READ | WRITE, **more):
        e = self.b.export(x, name, rights, **more)
        self.addCleanup(e.close)
        return e


class Transfers(Pair):
    def test_numpy(self):
        x = numpy.arange(100_000, dtype=numpy.float32)
        y = numpy.zeros_like(x)
        self.export(y, "y")
        t = self.peer.put(x, "y", digest=True)
        self.assertIs(t.wait(30), t)
        self.assertTrue((x == y).all() and t.done() and t.progress() == 1)
        self.assertIn("tcp", t.explain())
        z = numpy.zeros_like(x)
        self.peer.get("y", z).wait(30)
        self.assertTrue((x == z).all())
        r = self.peer.get("y")
        self.assertTrue((r.array(numpy.float32)[:len(x)] == x).all())

    def test_close_refused(self):
        x = numpy.zeros(10)
        r = penstock.adopt(x)
        e = self.b.export(r, "adopted")
        with self.assertRaises(penstock.InvalidError):
            r.close()
        self.assertNotIn("closed", repr(r))
        e.close()
        r.close()
        self.assertIn("closed", repr(r))

    def test_torch(self):
        import torch
        x, y = torch.arange(5000, dtype=torch.int32), torch.zeros(5000, dtype=torch.int32)
        self.export(y, "y")
        self.peer.put(x, "y").wait(30)
        self.assertTrue(torch.equal(x, y))
        r = self.peer.get("y")
        self.assertTrue(torch.equal(r.tensor(torch.int32, (5000,)), x))
        with self.assertRaises(penstock.InvalidError):
            self.peer.put(torch.zeros(4, 4).t()[:, :2], "y")

    def test_shared_memory(self):
        src, dst = penstock.alloc(1 << 16), penstock.alloc(1 << 16)
        src.array()[:] = numpy.arange(1 << 16, dtype="u1")
        self.export(dst, "dst")
        t = self.peer.put(src, "dst", paths=["shm"]).wait(30)
        self.assertIn("shm", t.explain())
        self.assertEqual(bytes(dst.memory), bytes(src.memory))
        with dst.memory as m:
            m[0] = 9
        self.assertEqual(dst.array()[0], 9)

    @staticmethod
    async def awaited(l):
        await l.post()

    def test_blocks(self):
        n, size = 64, 4096
        src, dst = penstock.alloc(n * size), penstock.alloc(n * size)
        s, d = src.array().reshape(n, size), dst.array().reshape(n, size)
        s[:] = numpy.random.default_rng(1).integers(0, 256, (n, size))
        self.export(dst, "dst")
        remote = self.peer.lookup("dst")
        self.assertEqual((remote.size, remote.rights), (n * size, READ | WRITE))
        at = numpy.arange(n) * size
        blocks = numpy.stack([at, numpy.full(n, size), at[::-1]], 1)
        self.peer.post("put", blocks, src, remote).wait(30)
        self.assertTrue((d == s[::-1]).all())
        with self.peer.prepare("put", [list(b) for b in blocks], src, remote) as l:
            for i in range(10):
                s[:] += 1
                l.post().wait(30)
                self.assertTrue((d == s[::-1]).all())
        with self.assertRaises(penstock.InvalidError):  # of the post or, by the agent, of what is asked of it
            l.post().wait(30)
        with self.assertRaises(penstock.InvalidError):
            asyncio.run(self.awaited(l))
        for bad in ([[0, 1]], [[0, -1, 0]], [[0.5, 1, 0]]):
            with self.assertRaises(penstock.InvalidError):
                self.peer.post("put", bad, src, remote)
        with self.assertRaises(penstock.BoundsError):
            self.peer.post("put", [[0, n * size + 1, 0]], src, remote)
        with self.assertRaises(penstock.InvalidError):
            self.peer.post("steal", blocks, src, remote)

    def test_messages(self):
        self.b.subscribe(5)
        self.assertIsNone(self.b.receive(0))
        self.peer.notify(b"a\0b", 5).wait(30)
        self.assertEqual(self.b.receive(30), penstock.Message("a", 5, b"a\0b", 0))
        y = penstock.alloc(4096)
        self.export(y, "y")
        self.peer.put(b"x" * 10, "y", message=b"there", tag=5).wait(30)
        self.assertEqual(self.b.receive(30), penstock.Message("a", 5, b"there", 10))
        self.peer.notify(b"z" * (1 << 20), 5).wait(30)
        self.assertEqual(len(self.b.receive(30).data), 1 << 20)

    def test_await(self):
        y = numpy.zeros((32, 4096), "u1")
        self.export(y, "y")
        remote = self.peer.lookup("y")

        async def one(i):
            t = self.peer.put(numpy.full(4096, i, "u1"), remote, i * 4096)
            self.assertIs(await t, t)
            return i

        async def all_of_them():
            self.assertEqual(await asyncio.gather(*(one(i) for i in range(32))), list(range(32)))
            with self.assertRaises(penstock.BoundsError):
                await self.peer.put(numpy.zeros(4097, "u1"), remote, 31 * 4096)

        for _ in range(3):  # each run has a loop of its own
            asyncio.run(all_of_them())
            self.assertTrue((y == numpy.arange(32)[:, None]).all())
            y[:] = 0

    def held(self, tag=7):
        """A notification that does not end before b, which has subscribed, receives: those that were sent before fill the room."""
        for _ in range(3000):  # the node keeps 1024
            t = self.peer.notify(bytes(1000), tag)
        self.assertFalse(t.done())
        return t

    def free(self, t):
        """Receives all, so that it ends: a node whose room is full takes nothing from its peer, no puts either."""
        for _ in range(3000):
            self.assertIsNotNone(self.b.receive(60))
        t.wait(60)

    def test_await_by_many(self):
        """Each of those who await one transfer is woken, and who is canceled takes nothing from the others."""
        async def main():
            t = self.held()
            waiters = [asyncio.ensure_future(self.awaited_again(t)) for _ in range(5)]
            await asyncio.sleep(0)
            waiters.pop(2).cancel()
            waiters.pop().cancel()
            await asyncio.sleep(0)
            waiters.append(asyncio.ensure_future(self.awaited_again(t)))
            await asyncio.sleep(0)
            self.free(t)
            self.assertEqual(await asyncio.wait_for(asyncio.gather(*waiters), 60), [t] * 4)
            both = asyncio.gather(self.awaited_again(t), self.awaited_again(t))
            self.assertEqual(await asyncio.wait_for(both, 60), [t] * 2)  # also when it has ended

        self.b.subscribe(7)
        asyncio.run(main())
        self.assertEqual((self.a._waits, self.a._loops), ({}, {}))

    @staticmethod
    async def awaited_again(t):
        return await t

    def test_await_in_many_loops(self):
        """Loops of several threads await one transfer, and others of their own; one is closed while it waits."""
        y = numpy.zeros((4, 4096), "u1")
        self.export(y, "y")
        remote = self.peer.lookup("y")
        self.b.subscribe(7)
        t = self.held()
        lost = asyncio.new_event_loop()
        task = lost.create_task(self.awaited_again(t))
        lost.run_until_complete(asyncio.sleep(0))
        lost.close()
        waiting, got = threading.Barrier(5), []

        async def main(i):
            task = asyncio.ensure_future(self.awaited_again(t))
            await asyncio.sleep(0)
            waiting.wait(60)
            for _ in range(20):
                await asyncio.wait_for(self.peer.put(numpy.full(4096, i, "u1"), remote, i * 4096), 60)
            got.append(await asyncio.wait_for(task, 60))

        all_of_them = [threading.Thread(target=lambda i=i: asyncio.run(main(i))) for i in range(4)]
        for x in all_of_them:
            x.start()
        waiting.wait(60)
        self.free(t)
        for x in all_of_them:
            x.join()
        self.assertEqual(got, [t] * 4)
        self.assertEqual((self.a._waits, self.a._loops), ({}, {}))
        task._log_destroy_pending = False  # it is, and is to be

    def test_await_closed(self):
        """What is awaited ends with its transfer's handle closed, and with its system."""
        async def main():
            self.b.subscribe(7)
            self.b.subscribe(8)
            t = self.held()
            task = asyncio.ensure_future(self.awaited_again(t))
            await asyncio.sleep(0)
            t.close()
            other = self.held(8)
            others = [asyncio.ensure_future(self.awaited_again(other)) for _ in range(2)]
            await asyncio.sleep(0)
            self.a.close()
            for x in [task] + others:
                with self.assertRaises(penstock.Error):
                    await asyncio.wait_for(x, 60)
            with self.assertRaises(penstock.Error):
                await asyncio.wait_for(other, 60)

        asyncio.run(main())
        self.assertEqual((self.a._waits, self.a._loops), ({}, {}))

    def test_empty(self):
        """Arrays and tensors without bytes are adopted, exported, put and got as others are."""
        import torch
        self.b.subscribe(7)
        for x, dtype, shape in ((numpy.zeros((0, 3), "f4"), "float32", (0, 3)), (numpy.zeros((4, 0), "i8").T, "int64", (0, 4)), (numpy.zeros(0, "V0"), None, ()),
                                (torch.empty(2, 0, dtype=torch.bfloat16), "bfloat16", (2, 0)), (torch.empty(0, requires_grad=True), "float32", (0,)),
                                (penstock.empty((3, 0), "fp16"), "float16", (3, 0)), (b"", None, ()), (bytearray(), None, ()),
                                (array.array("d"), "float64", (0,)), (penstock.adopt(bytearray()), None, ())):
            with self.subTest(x):
                rights = READ if isinstance(x, bytes) else READ | WRITE
                with self.b.export(x, "x", rights):
                    r = self.peer.lookup("x")
                    self.assertEqual((r.size, r.rights, r.dtype, r.shape), (0, rights, dtype, shape))
                    self.assertEqual([(e.name, e.size, e.dtype, e.shape) for e in self.peer.list()], [("x", 0, dtype, shape)])
                    if rights & WRITE:
                        self.assertEqual(self.peer.put(x, r, message=b"empty", tag=7, digest=True).wait(30).progress(), 1)
                        self.assertEqual(self.b.receive(30), penstock.Message("a", 7, b"empty", 0))
                        self.peer.get(r, x).wait(30)
                    with self.assertRaises(penstock.BoundsError):
                        self.peer.get(r, bytearray(1)).wait(30)
                    got = self.peer.get("x")
                    if dtype:
                        self.assertEqual((got.dtype, got.shape, got.nbytes, len(got.memory)), (dtype, shape, 0, 0))
                if not isinstance(x, penstock.Region):
                    with penstock.adopt(x) as a:
                        self.assertEqual((a.size, a.nbytes, len(a.memory), a.array().shape, tuple(a.tensor().shape)), (0, 0, 0, (0,), (0,)))
                        self.assertEqual((numpy.from_dlpack(a).shape if rights & WRITE else (0,), numpy.asarray(a).shape), ((0,), (0,)))
                        self.assertTrue(penstock.is_dma_capable(a))

    def test_identity(self):
        """A node proves its name by the user's own identity, or by that of a directory. One without is told of it."""
        with tempfile.TemporaryDirectory() as dir:
            own, other, bundle = os.path.join(dir, "penstock"), os.path.join(dir, "other"), os.path.join(dir, "bundle")
            for args in (["init", "--name", "first", "--dir", own], ["allow", "second", "read,list", "--dir", own],
                         ["export", "second", "-o", bundle, "--dir", own], ["import", bundle, "--dir", other]):
                subprocess.run([command(), "pair", *args], check=True, capture_output=True)
            r = subprocess.run([sys.executable, "-c", "import numpy, penstock, sys\n"
                                "with penstock.System(name='b', listen=['tcp://127.0.0.1:0'], identity=True) as b:\n"
                                "    e = b.export(numpy.arange(5), 'x')\n"
                                "    with penstock.System(identity=sys.argv[1]) as a, a.connect(b.addresses[0].replace('//', '//first@')) as p:\n"
                                "        print(p.get('x').array().sum())\n"
                                "        try:\n"
                                "            p.put(numpy.arange(5), 'x').wait()\n"
                                "        except penstock.Error as e:\n"
                                "            print(type(e).__name__)\n"
                                "with penstock.System(name='c') as c:\n"
                                "    try:\n"
                                "        c.connect('tcp://192.0.2.1:1')\n"
                                "    except penstock.Error as e:\n"
                                "        print(e)\n", other], env=dict(os.environ, XDG_CONFIG_HOME=dir), capture_output=True, text=True)
            self.assertRegex(r.stdout, "^10\n.*Error\n.*identity=True in Python .* use that of " + own, r.stderr)
        with self.assertRaisesRegex(penstock.InvalidError, "write them into it"):
            penstock.System("penstock: {}", identity=True)

    def test_big_endian(self):
        """No door takes an array of the other byte order as if its elements were those of this one."""
        y = numpy.zeros(4, "f4")
        self.export(y, "y")
        r = self.peer.lookup("y")
        swapped = numpy.arange(4, dtype=">f4")
        fields = numpy.zeros(2, [("a", "<i4"), ("b", [("c", "u1", (3,)), ("d", ">i2")])])

        class Integers(ctypes.BigEndianStructure):
            _fields_ = [("a", ctypes.c_int32)]

        class Foreign:  # as another library gives it
            __array_interface__ = swapped.__array_interface__

        for x in (swapped, swapped[:0], swapped.astype(">i2"), numpy.zeros(2, ">U3"), numpy.zeros(2, ">M8[ns]"), fields, Foreign(), (Integers * 4)(), memoryview(swapped)):
            with self.subTest(x):
                for door in (lambda: self.peer.put(x, r), lambda: self.peer.get(r, x), lambda: self.peer.get(r, x, length=4), lambda: self.b.export(x, "x"),
                             lambda: penstock.adopt(x), lambda: penstock.is_dma_capable(x)):
                    with self.assertRaisesRegex(penstock.InvalidError, r"big-endian.*newbyteorder"):
                        door()
        self.assertEqual(y.tolist(), [0] * 4)
        self.peer.put(swapped.astype(swapped.dtype.newbyteorder("<")), r).wait(30)
        self.assertEqual(y.tolist(), [0, 1, 2, 3])
        self.peer.put(swapped.view("u1"), r).wait(30)
        self.assertEqual(y.view(">f4").tolist(), [0, 1, 2, 3])
        for x in (numpy.zeros(2, "S3"), numpy.zeros(2, [("a>b", "<i4")]), numpy.zeros(2, "V8")):
            self.peer.put(x, r).wait(30)

    def test_threads(self):
        y = numpy.zeros((8, 1 << 16), "u1")
        self.export(y, "y")
        remote = self.peer.lookup("y")

        def put(i):
            for _ in range(20):
                self.peer.put(numpy.full(1 << 16, i, "u1"), remote, i << 16).wait(30)

        all_of_them = [threading.Thread(target=put, args=(i,)) for i in range(8)]
        for t in all_of_them:
            t.start()
        for t in all_of_them:
            t.join()
        self.assertTrue((y == numpy.arange(8)[:, None]).all())

    def test_waits_for_one(self):
        """Nobody is told that a transfer has ended while it goes on, whoever serves it."""
        n = 64 << 20
        y = numpy.zeros(n, "u1")
        self.export(y, "y")
        remote = self.peer.lookup("y")
        for i in range(1, 4):
            x = numpy.full(n, i, "u1")
            t = self.peer.put(x, remote)
            wrong = []

            def wait():
                t.wait(60)
                if t.progress() != 1 or y[-1] != i:
                    wrong.append(t.progress())

            all_of_them = [threading.Thread(target=wait) for _ in range(4)]
            for w in all_of_them:
                w.start()
            for w in all_of_them:
                w.join()
            self.assertEqual(wrong, [])
            self.assertTrue((y == i).all())

    def test_error_of_another_call(self):
        """A call that comes between the end of another one and its error, in a handler of a signal or a finalizer, takes nothing of it."""
        from penstock import _lib
        refuse = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int32, ctypes.POINTER(_lib.CError))

        class Library:
            @refuse
            def penstock_inner(_, e):
                e[0].code, e[0].text = -10, b"inner"
                return 0

            @refuse
            def penstock_outer(n, e):
                if n:
                    e[0].code, e[0].text = -7, b"outer"
                with self.assertRaisesRegex(penstock.BoundsError, "inner"):
                    _lib.call("penstock_inner", 0)
                return 5

        with unittest.mock.patch.object(_lib, "_library", Library):
            for _ in range(2):
                with self.assertRaisesRegex(penstock.NotFoundError, "outer"):
                    _lib.call("penstock_outer", 1)
                self.assertEqual(_lib.call("penstock_outer", 0), 5)

    def test_errors(self):
        y = penstock.alloc(4096)
        e = self.export(y, "y", READ)
        with self.assertRaises(penstock.RightsError) as c:
            self.peer.put(b"x", "y").wait(30)
        self.assertFalse(c.exception.retriable)
        with self.assertRaises(LookupError):
            self.peer.lookup("nothing")
        with self.assertRaises(penstock.InvalidError):
            penstock.System("penstock: {nonsense: 1}")
        with self.assertRaises(penstock.InvalidError):
            self.peer.get("y", b"read-only")
        remote = self.peer.lookup("y")
        e.close()
        with self.assertRaises(penstock.RevokedError):
            self.peer.get(remote)
        self.export(y, "y2")
        remote = self.peer.lookup("y2")
        self.b.close()
        with self.assertRaises(penstock.PeerLostError) as c:
            self.peer.get(remote)
        self.assertTrue(c.exception.retriable)
        self.a.close()
        with self.assertRaises(penstock.InvalidError):
            self.a.addresses
        with self.assertRaises(penstock.InvalidError):
            penstock.alloc(0)

    def test_list(self):
        self.assertEqual(self.peer.list(), [])
        self.export(numpy.zeros((3, 5), "f4"), "layer/wq", READ)
        self.export(penstock.empty((7,), "bfloat16"), "layer/b")
        region = penstock.alloc(8192)
        self.export(region, "raw", WRITE, offset=4096, length=100)
        self.export(region, "")  # without a name it is not listed
        raw = penstock.Entry("raw", 100, WRITE, None, ())
        self.assertEqual(self.peer.list("layer/"), [penstock.Entry("layer/b", 14, READ | WRITE, "bfloat16", (7,)), penstock.Entry("layer/wq", 60, READ, "float32", (3, 5))])
        self.assertEqual(self.peer.list()[2:], [raw])
        for i in range(600):  # more than one call takes
            self.export(region, f"many/{i:03}\u00e9")
        many = self.peer.list("many/")
        self.assertEqual([e.name for e in many], [f"many/{i:03}\u00e9" for i in range(600)])
        self.assertEqual(self.peer.list("raw"), [raw])
        self.b.close()
        with self.assertRaises(penstock.PeerLostError):
            self.peer.list()

    def test_memory_of_a_put(self):
        """A transfer has the memory of an array until it is collected, also after its close, and gives it back then."""
        y = numpy.zeros(1 << 22, "u1")
        self.export(y, "y")
        remote = self.peer.lookup("y")

        class Array(numpy.ndarray):
            pass

        x = numpy.full(1 << 22, 5, "u1").view(Array)
        gone = weakref.ref(x)
        t = self.peer.put(x, remote)
        t.close()
        t.close()
        self.assertIn("closed", repr(t))
        with self.assertRaises(penstock.InvalidError):
            t.wait(1)
        del x
        gc.collect()
        self.assertIsNotNone(gone())
        del t  # waits for what is under way
        gc.collect()
        self.assertIsNone(gone())
        self.assertTrue((y == 5).all())
        with self.assertRaises(penstock.BoundsError):
            self.peer.put(numpy.zeros(2, "u1"), remote, (1 << 22) - 1).wait()
        self.peer.put(numpy.zeros(0), remote, 1 << 22).wait()
        with self.assertRaises(penstock.BoundsError):
            self.peer.put(numpy.zeros(0), remote, (1 << 22) + 1).wait()
        with self.assertRaises(penstock.BoundsError):
            self.peer.get(remote, numpy.zeros(4, "u1"), length=5)
        z = numpy.zeros(4, "u1")
        self.peer.get(remote, z, length=2).wait()
        self.assertEqual(bytes(z), b"\5\5\0\0")

    def test_wait_in_time(self):
        self.b.subscribe(9)
        all_of_them = [self.peer.notify(b"x" * 1000, 9) for _ in range(8000)]  # more than are kept there
        t = all_of_them[-1]
        with self.assertRaises(penstock.TimeoutError):
            t.wait(0.3)
        self.assertFalse(t.done())
        begun = time.monotonic()
        with self.assertRaises(penstock.TimeoutError):
            t.wait(0.25)
        self.assertGreater(time.monotonic() - begun, 0.24)
        with self.assertRaises(penstock.TimeoutError):
            t.wait(0)
        for _ in all_of_them:
            self.assertIsNotNone(self.b.receive(30))
        t.wait(30)

    def test_status(self):
        self.assertIn("a", str(self.a.status()))

    def test_flat(self):
        def open_files():
            return len(os.listdir("/proc/self/fd"))

        def resident():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        src, dst = penstock.alloc(4096), penstock.alloc(4096)
        self.export(dst, "dst")
        remote = self.peer.lookup("dst")
        with self.peer.prepare("put", [[0, 64, 0]], src, remote) as l:
            for i in range(30_000):
                l.post().wait()
                if i == 10_000:
                    gc.collect()
                    files, memory, objects = open_files(), resident(), len(gc.get_objects())
        gc.collect()
        self.assertLess(open_files(), files + 64)  # of 20,000 transfers; a node may open another path meanwhile
        self.assertLess(resident(), memory + (16 << 20))
        self.assertLess(len(gc.get_objects()), objects + 1000)


class Process(unittest.TestCase):
    def python(self, program, **more):
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, **more)

    def test_import_loads_nothing(self):
        r = self.python("import penstock, sys; print(any('libpenstock' in l for l in open('/proc/self/maps')), 'numpy' in sys.modules)")
        self.assertEqual(r.stdout, "False False\n", r.stderr)

    FORKS = ("import os, penstock\n"
             "r = penstock.alloc(1)\n"
             "r.array()[0] = 7\n"
             "if os.fork() == 0:\n"
             "    try:\n"
             "        own = penstock.alloc(4096)\n"
             "        a, b = penstock.System(name='a'), penstock.System(name='b', listen=['tcp://127.0.0.1:0'])\n"
             "        e = b.export(own, 'own', penstock.READ | penstock.WRITE)\n"
             "        a.connect(b.addresses[0]).put(b'x' * 100, 'own').wait(30)\n"
             "        print('works', bytes(own.memory[:3]), r.array()[0], flush=True)\n"
             "        b.export(r, 'of the parent')\n"
             "    except penstock.Error as e:\n"
             "        print(type(e).__name__, e, flush=True)\n"
             "    del r\n"
             "    os._exit(0)\n"
             "os.wait()\n"
             "print('parent', r.array()[0], penstock.System(name='c') is not None)\n")

    def test_fork(self):
        """A child of a fork has an agent of its own; what the parent has made is refused there, and stays the parent's."""
        r = self.python(self.FORKS)
        self.assertRegex(r.stdout, r"works b'xxx' 7\nInvalidError .* fork", r.stderr)
        self.assertIn("parent 7 True", r.stdout)

    def test_fork_without_agent(self):
        if os.environ.get("PENSTOCK_AGENT"):
            self.skipTest("the agent serves forks")
        r = self.python(self.FORKS, env={**os.environ, "PENSTOCK_AGENT": "0"})
        self.assertIn("is a fork of it", r.stdout, r.stderr)

    def test_interrupt(self):
        p = subprocess.Popen([sys.executable, "-c", "import penstock\ns = penstock.System(name='a')\nprint('ready', flush=True)\ns.receive()"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(p.stdout.readline(), "ready\n")
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=30)
        self.assertIn("KeyboardInterrupt", err)

    def test_exit_with_everything_open(self):
        r = self.python("import penstock, threading\n"
                        "b = penstock.System(name='b', listen=['tcp://127.0.0.1:0'])\n"
                        "a = penstock.System(name='a')\n"
                        "p = a.connect(b.addresses[0])\n"
                        "r = penstock.alloc(4096)\n"
                        "e = b.export(r, 'r')\n"
                        "t = p.get('r')\n"
                        "threading.Thread(target=b.receive, daemon=True).start()\n")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertNotIn("Traceback", r.stderr)

    def test_help(self):
        r = self.python("help('penstock.Peer.put')")
        self.assertIn("Puts the bytes of x", r.stdout)


if __name__ == "__main__":
    unittest.main()
