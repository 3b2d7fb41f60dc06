import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest
import weakref

import numpy
import penstock
import torch
from penstock import READ, WRITE, _dlpack, _lib
from penstock._dlpack import Managed, ManagedVersioned
from penstock._memory import DTYPES

valid = _dlpack._valid


def alive(handle):
    """Whether the library has the region."""
    try:
        _lib.call("penstock_memory", handle, None)
    except penstock.InvalidError:
        return False
    return True


class Only:
    """An object that has nothing but DLPack, of before 1.0."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, stream=None):
        self.capsule = self.x.__dlpack__()
        return self.capsule

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class Producer:
    """Gives capsules of 1.0 that say what a test wants, and counts what comes back."""

    def __init__(self, a, device=(1, 0), **fields):
        self.a, self.device, self.fields, self.deleted, self.asked = a, device, fields, [], None
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.deleted.append)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.asked = stream, max_version, copy
        n = self.a.ndim
        self.dims = (ctypes.c_int64 * (2 * n))(*self.a.shape, *(s // self.a.itemsize for s in self.a.strides))
        at = ctypes.addressof(self.dims)
        p = ctypes.POINTER(ctypes.c_int64)
        kind, bits = {"f": (2, 32), "b": (6, 8), "u": (1, 8)}[self.a.dtype.kind]
        t = _dlpack.DLTensor(self.a.ctypes.data - 16, 1, 0, n, kind, bits, 1, ctypes.cast(at, p), ctypes.cast(at + 8 * n, p), 16)
        self.managed = ManagedVersioned(1, 3, None, ctypes.cast(self.deleter, ctypes.c_void_p), 0, t)
        for k, v in self.fields.items():
            setattr(self.managed if hasattr(self.managed, k) else self.managed.tensor, k, v)
        self.capsule = _dlpack._capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)
        return self.capsule


def consume(x, **more):
    """Takes a capsule as a consumer in C does: the structure, and what deletes it, from which the lock of Python is not held."""
    c = x.__dlpack__(**more)
    for name, used, kind in ((b"dltensor", b"used_dltensor", Managed), (b"dltensor_versioned", b"used_dltensor_versioned", ManagedVersioned)):
        if valid(c, name):
            at = _dlpack._pointer(c, name)
            _dlpack._rename(c, used)
            m = kind.from_address(at)
            return m, lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(m.deleter)(at)
    raise AssertionError(c)


class Given(unittest.TestCase):
    def test_numpy_and_torch(self):
        t = penstock.empty((3, 5), "float32")
        t.array()[:] = numpy.arange(15).reshape(3, 5)
        for a in (numpy.from_dlpack(t), torch.from_dlpack(t), numpy.asarray(t), t.tensor()):
            self.assertEqual((tuple(a.shape), str(a.dtype)[-7:]), ((3, 5), "float32"))
            t.array()[2, 4] += 1
            self.assertEqual(a[2, 4], t.array()[2, 4])
        r = penstock.alloc(4096)
        r.array()[7] = 9
        self.assertEqual((numpy.from_dlpack(r)[7], torch.from_dlpack(r).numel()), (9, 4096))

    def test_types(self):
        for name, d in DTYPES.items():
            t = penstock.empty((2, 4), name)
            m, end = consume(t, max_version=(1, 3))
            self.assertEqual((m.tensor.code, m.tensor.bits, m.tensor.lanes, t.nbytes), (d.dl, d.bits, 1, d.bits), name)
            end()
            kind = getattr(torch, name, None) if d.bits >= 8 else None
            if kind is None:
                with self.assertRaisesRegex(penstock.InvalidError, name):
                    t.tensor()
            else:
                self.assertEqual((t.tensor().dtype, t.tensor().shape), (kind, (2, 4)))
                if name in ("bfloat16", "float16", "complex64", "int64"):
                    x = torch.from_dlpack(t)
                    x[1, 3] = 7
                    self.assertEqual((x.dtype, t.tensor()[1, 3]), (kind, 7))
            if d.numpy:
                self.assertEqual((t.array().dtype.name, numpy.asarray(t).dtype.name), (name, name))
            else:
                for f in (t.array, lambda: numpy.asarray(t)):
                    with self.assertRaisesRegex(penstock.InvalidError, name):
                        f()
        for bad in ((3, "float"), (-1, "int8")):
            with self.assertRaises(penstock.InvalidError):
                penstock.empty(*bad)
        for shape in ((), (0,), (3, 0, 2), 5):
            t = penstock.empty(shape, "int32")
            want = (5,) if shape == 5 else shape
            self.assertEqual((t.shape, t.array().shape, tuple(t.tensor().shape), numpy.from_dlpack(t).shape), (want,) * 4)

    def test_structure(self):
        t = penstock.empty((3, 5), "int16")
        m, end = consume(t, max_version=(1, 0))
        self.assertEqual((m.major, m.minor, m.flags), (1, 0, 0))
        x = m.tensor
        self.assertEqual((x.data, x.device_type, x.device_id, x.ndim, x.shape[:2], x.strides[:2], x.byte_offset), (t.address, 1, 0, 2, [3, 5], [5, 1], 0))
        self.assertEqual(t.__dlpack_device__(), (1, 0))
        end()
        for old in ({}, {"max_version": None}, {"max_version": (0, 8)}, {"stream": 1, "dl_device": (1, 0), "copy": False}):
            m, end = consume(t, **old)
            self.assertIsInstance(m, Managed)
            end()
        with self.assertRaises(BufferError):
            t.__dlpack__(dl_device=(2, 0))
        t.array()[:] = 3
        m, end = consume(t, max_version=(1, 0), copy=True)
        t.array()[:] = 4
        self.assertEqual((m.flags, ctypes.c_int16.from_address(m.tensor.data).value), (_dlpack.COPIED, 3))
        end()

    def test_read_only(self):
        r = penstock.adopt(b"read-only")
        with self.assertRaisesRegex(BufferError, "max_version"):
            r.__dlpack__()
        m, end = consume(r, max_version=(1, 0))
        self.assertEqual((m.flags, ctypes.string_at(m.tensor.data, 9)), (_dlpack.READ_ONLY, b"read-only"))
        end()
        self.assertTrue(r.memory.readonly and r.__array_interface__["data"][1] and not r.array().flags.writeable)
        m, end = consume(r, copy=True)  # of a copy, which may be written
        end()

    def test_lifetime(self):
        """The consumer's memory outlasts the region, its system and every reference, and goes with the consumer."""
        for make in (numpy.from_dlpack, torch.from_dlpack, lambda t: t.array(), lambda t: t.tensor(), lambda t: numpy.frombuffer(t.memory, "f4"), numpy.asarray):
            for order in range(3):
                t = penstock.empty(1 << 20, "float32")
                h = t._h
                t.array()[:] = 6
                x = make(t)
                if order != 1:
                    t.close()
                    t.close()
                    for f in (t.__dlpack__, lambda: t.memory, lambda: t.__array_interface__, lambda: penstock.System().export(t)):
                        with self.assertRaises(penstock.InvalidError):
                            f()
                if order != 2:
                    del t
                gc.collect()
                self.assertTrue(alive(h))
                self.assertEqual((int(x[0]), int(x[-1])), (6, 6))
                y = x[::2]
                del x
                self.assertTrue(alive(h))
                del y
                if order == 2 and make is numpy.asarray:  # the array has the region
                    self.assertTrue(alive(h))
                    del t
                self.assertFalse(alive(h))

    def test_adopted(self):
        """A consumer of adopted memory keeps what was adopted, and the region closes at once."""
        x = numpy.arange(1000, dtype="f4")
        gone, address = weakref.ref(x), x.ctypes.data
        r = penstock.adopt(x)
        y = numpy.from_dlpack(r)
        del x
        r.close()
        self.assertFalse(alive(r._mine[0]))
        gc.collect()
        self.assertEqual((y.ctypes.data, y.view("f4")[999]), (address, 999))
        del y
        self.assertIsNone(gone())

    def test_never_consumed(self):
        for more in ({}, {"max_version": (1, 0)}):
            t = penstock.empty(8, "int8")
            h, c = t._h, t.__dlpack__(**more)
            t.close()
            del t
            self.assertTrue(alive(h))
            del c
            self.assertFalse(alive(h))
            t = penstock.empty(8, "int8")
            h, c = t._h, t.__dlpack__(**more)
            m, end = consume(t)
            del t, c  # not those of the other one
            self.assertTrue(alive(h))
            end()
            self.assertFalse(alive(h))

    def test_exceptions(self):
        """What ends while an exception is under way leaves it so."""
        t = penstock.empty(8, "bfloat16")
        with self.assertRaises((BufferError, RuntimeError)):  # of numpy, which drops the capsule with its error set
            numpy.from_dlpack(t)
        for f in (torch.from_dlpack, lambda t: t.__dlpack__(), lambda t: t.memory):
            with self.assertRaises(ZeroDivisionError):
                print(f(t), 1 // 0)
        h = t._h
        t.close()
        self.assertFalse(alive(h))

    def test_cycles(self):
        """Nothing is left of 1000 of each, in any order in which they are collected."""
        class Node:
            pass

        def make(i):
            t = penstock.empty(1024, "float32")
            handles.append(t._h)
            n = Node()
            n.me, n.tensor = n, t
            n.has = (numpy.from_dlpack, torch.from_dlpack, lambda t: t.__dlpack__(), lambda t: t.memory, lambda t: consume(t, max_version=(1, 0))[1]())[i % 5](t)
            if i % 3 == 0:
                t.close()

        def resident():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        handles = []
        for i in range(100):
            make(i)
        gc.collect()
        objects, memory = len(gc.get_objects()), resident()
        for i in range(5000):
            make(i)
        gc.collect()
        self.assertFalse(any(map(alive, handles)))
        self.assertLess(len(gc.get_objects()), objects + 1000)
        self.assertLess(resident(), memory + (12 << 20))  # 20 MiB were allocated

    def test_export_in_a_cycle(self):
        """The region is closed also if it is asked to before the export that uses it."""
        s = penstock.System(name="s")
        handles = []
        for _ in range(50):
            r = penstock.adopt(numpy.zeros(10))
            handles.append(r._h)
            r.export = s.export(r)
        del r
        for _ in range(100):  # a collection that another thread has begun has the one here do nothing
            gc.collect()
            if not any(map(alive, handles)):
                break
        self.assertFalse(any(map(alive, handles)))

    def test_threads(self):
        """A region is closed while others take views of it: each has its memory, or hears that it is closed."""
        def views(t):
            try:
                while True:
                    x = t.memory, t.__dlpack__()
                    self.assertEqual(x[0][4095], 0)
            except penstock.InvalidError:
                pass

        handles = []
        for _ in range(20):
            t = penstock.alloc(4096)
            handles.append(t._h)
            threads = [threading.Thread(target=views, args=(t,)) for _ in range(4)]
            for x in threads:
                x.start()
            t.close()
            for x in threads:
                x.join(30)
        self.assertFalse(any(map(alive, handles)))

    def test_exit(self):
        """Python ends while consumers have memory, and while nobody has used a capsule."""
        r = subprocess.run([sys.executable, "-c", "import numpy, torch, penstock, sys, threading, builtins\n"
                            "t = [penstock.empty(8, 'int8') for _ in range(6)]\n"
                            "a, b, c, d = numpy.from_dlpack(t[0]), torch.from_dlpack(t[1]), t[2].__dlpack__(), t[3].memory\n"
                            "builtins.kept = torch.from_dlpack(t[4]), t[5].__dlpack__(max_version=(1, 0))\n"
                            "sys.modules['kept'] = threading.kept = torch.from_dlpack(t[4])\n"
                            "[x.close() for x in t]\n"
                            "print(int(a[0] + b[0]) >= 0)"], capture_output=True, text=True, timeout=120)
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, "True\n", ""))

    def test_function_pointers(self):
        calls, ends = _dlpack._Calls(), _dlpack._Ends()
        self.assertNotEqual(_lib.lib().penstock_python(ctypes.byref(calls), ctypes.byref(ends)), 0)


class Taken(unittest.TestCase):
    def setUp(self):
        self.b = penstock.System(name="b", listen=["tcp://127.0.0.1:0"])
        self.a = penstock.System(name="a")
        self.peer = self.a.connect(self.b.addresses[0])
        for s in (self.b, self.a, self.peer):
            self.addCleanup(s.close)

    def test_both_ways(self):
        x, y, z = (torch.arange(3000).to(torch.bfloat16) * k for k in (1, 0, 0))
        with self.b.export(Only(y), "y", READ | WRITE):
            self.assertEqual(self.peer.lookup("y").dtype, "bfloat16")
            only = Only(x)
            self.peer.put(only, "y").wait(30)
            self.assertTrue(torch.equal(x, y) and valid(only.capsule, b"used_dltensor"))
            self.peer.get("y", Only(z)).wait(30)
            self.assertTrue(torch.equal(x, z))
            t = self.peer.get("y")
            self.assertTrue(torch.equal(torch.from_dlpack(t), x))
            self.peer.put(Only(t), "y").wait(30)  # what we give is taken, too
            self.peer.put(t, "y").wait(30)        # of a tensor its bytes, not its pages

    def test_end(self):
        """The deleter is called once, at the end of the use."""
        p = Producer(numpy.arange(10, dtype="f4"))
        r = penstock.adopt(p)
        self.assertEqual((p.asked, r.size, r.address), ((None, (1, 0), False), 40, p.a.ctypes.data))
        self.assertTrue(valid(p.capsule, b"used_dltensor_versioned"))
        y = numpy.from_dlpack(r)  # of what another library has lent
        r.close()
        self.assertEqual(p.deleted, [])
        del y
        self.assertEqual(p.deleted, [ctypes.addressof(p.managed)])
        y = numpy.zeros(10, "f4")
        with self.b.export(y, "y", WRITE):
            p = Producer(numpy.arange(10, dtype="f4"))
            t = self.peer.put(p, "y").wait(30)
            self.assertTrue((y == p.a).all())
            del t
            self.assertEqual(len(p.deleted), 1)
        p = Producer(numpy.zeros((3, 1, 4), "f4"))
        with self.b.export(p, "p"):
            remote = self.peer.lookup("p")
            self.assertEqual((remote.dtype, remote.shape, p.deleted), ("float32", (3, 1, 4), []))
        self.assertEqual(len(p.deleted), 1)

    def test_refused(self):
        a = numpy.zeros((4, 4), "f4")
        for p, text in ((Producer(a.T[:3]), "contiguous"), (Producer(a, major=2), "version 2"), (Producer(a, device=(8, 0)), "device")):
            with self.assertRaisesRegex(penstock.InvalidError, text):
                penstock.adopt(p)
            gc.collect()
            self.assertEqual(len(p.deleted), 0 if text == "device" else 1)
        with self.b.export(a, "a"):
            for flags in (_dlpack.READ_ONLY, _dlpack.COPIED):
                p = Producer(a, flags=flags)
                with self.assertRaisesRegex(penstock.InvalidError, "read-only"):
                    self.peer.get("a", p)
                with self.assertRaisesRegex(penstock.InvalidError, "read-only"):
                    self.b.export(p, "p", WRITE)
            self.assertEqual(len(p.deleted), 2)

        class Again(Only):
            def __dlpack__(self, stream=None):
                return self.capsule
        x = Only(torch.zeros(4))
        penstock.adopt(x)
        again = Again(x.x)
        again.capsule = x.capsule
        with self.assertRaisesRegex(penstock.InvalidError, "used_dltensor"):
            penstock.adopt(again)

    def test_sizes(self):
        a = numpy.arange(64, dtype="u1")
        for fields, size, dtype in (({}, 64, "uint8"), ({"code": 17, "bits": 4}, 32, "float4_e2m1fn"), ({"code": 17, "bits": 4, "flags": _dlpack.PADDED}, 64, None),
                                    ({"code": 2, "bits": 32, "lanes": 2}, 512, None), ({"code": 99}, 64, None)):
            m = _dlpack.take(Producer(a, **fields))
            self.assertEqual((m.size, m.dtype, m.address), (size, dtype, a.ctypes.data))

    def test_leaks(self):
        gone = []
        for i in range(1000):
            x = torch.zeros(1000)
            gone.append(weakref.ref(x.storage()))
            r = penstock.adopt(Only(x))
            if i % 2:
                r.close()
        del x, r
        gc.collect()
        before = len(gc.get_objects())
        for i in range(1000):
            penstock.adopt(Only(torch.zeros(1000))).close()
        gc.collect()
        self.assertLess(len(gc.get_objects()), before + 100)

    def test_torch(self):
        """What DLPack of torch does not give is taken all the same, or refused with what to do."""
        self.assertEqual(penstock.adopt(torch.zeros(3, requires_grad=True)).size, 12)
        self.assertEqual(penstock.adopt(torch.zeros(3, dtype=torch.bool)).size, 3)
        with self.assertRaisesRegex(penstock.InvalidError, "resolve_conj"):
            penstock.adopt(torch.zeros(3, dtype=torch.complex64).conj())


class Alone(unittest.TestCase):
    def test_without_numpy_and_torch(self):
        r = subprocess.run([sys.executable, "-c", "import sys\n"
                            "sys.modules['numpy'] = sys.modules['torch'] = None\n"
                            "import array, ctypes, penstock, penstock.safetensors\n"
                            "b, a = penstock.System(name='b', listen=['tcp://127.0.0.1:0']), penstock.System(name='a')\n"
                            "peer = a.connect(b.addresses[0])\n"
                            "t = penstock.empty((2, 3), 'bfloat16')\n"
                            "e = b.export(t, 't', penstock.READ | penstock.WRITE)\n"
                            "peer.put(b'read-only me', 't').wait(30)\n"
                            "got = peer.get('t')\n"
                            "print(got, bytes(got.memory), got.__dlpack__(max_version=(1, 0)) is not None)\n"
                            "class Only:\n"
                            "    __dlpack__, __dlpack_device__ = got.__dlpack__, got.__dlpack_device__\n"
                            "peer.post('put', [(0, 12, 0)], got, peer.lookup('t')).wait(30)\n"
                            "peer.put(Only(), 't').wait(30)\n"
                            "e = b.export(array.array('d', [1, 2]), 'd')\n"
                            "print(peer.get('d'), peer.get('d').memory.cast('d').tolist())\n"], capture_output=True, text=True, timeout=120)
        self.assertEqual(r.stdout, "<Tensor bfloat16[2, 3]> b'read-only me' True\n<Tensor float64[2]> [1.0, 2.0]\n", r.stderr)


if __name__ == "__main__":
    unittest.main()
