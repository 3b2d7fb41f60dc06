import json
import os
import shutil
import tempfile
import unittest

import numpy
import penstock
import penstock.safetensors
import torch

KINDS = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool, "U8": torch.uint8}


def file_of(tensors, metadata=None, **replace):
    """The bytes of a file: tensors of torch by their names, or any entries of the header."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, t in tensors.items():
        b = bytes(t.contiguous().view(-1).view(torch.uint8).numpy()) if t.numel() else b""
        kind = next(k for k, v in KINDS.items() if v == t.dtype)
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(b)]}
        data += b
    header.update(replace)
    h = json.dumps(header).encode()
    return len(h).to_bytes(8, "little") + h + data


class Files(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        g = torch.Generator().manual_seed(1)
        self.tensors = {"wq": torch.randn(64, 48, generator=g), "half": torch.randn(5, 6, 7, 8, generator=g).to(torch.bfloat16), "scalar": torch.tensor(7),
                        "empty": torch.zeros(0, 3), "mask": torch.rand(9, generator=g) > 0.5, "large": torch.randn(300_000, 4, generator=g).to(torch.bfloat16)}
        os.mkdir(os.path.join(self.dir, "llama"))
        self.write("llama/model.safetensors", file_of(self.tensors, {"format": "pt"}))
        numpy.save(os.path.join(self.dir, "a.npy"), numpy.arange(3.0))
        self.b = penstock.System(name="b", listen=["tcp://127.0.0.1:0"])
        self.share = self.b.serve(self.dir, tensors=True)
        self.a = penstock.System(name="a")
        self.peer = self.a.connect(self.b.addresses[0])
        for s in (self.share, self.b, self.a, self.peer):
            self.addCleanup(s.close)

    def write(self, name, data):
        with open(os.path.join(self.dir, name), "wb") as f:
            f.write(data)

    def test_get(self):
        """Each tensor of a file that is served is an export with its type and shape."""
        for name, want in self.tensors.items():
            t = self.peer.get("llama/model.safetensors/" + name)
            self.assertIsInstance(t, penstock.Tensor)
            self.assertEqual((t.dtype, t.shape), (str(want.dtype)[6:], tuple(want.shape)))
            self.assertTrue(torch.equal(t.tensor(), want), name)
        self.assertEqual(self.peer.get("a.npy/array").array().tolist(), [0, 1, 2])

    def test_mapping(self):
        with penstock.safetensors.open(self.peer, "llama/model.safetensors") as f:
            self.assertEqual((list(f.keys()), len(f), f.metadata()), (list(self.tensors), 6, {"format": "pt"}))
            self.assertTrue("wq" in f and "nothing" not in f)
            for name, t in f.items():
                self.assertTrue(torch.equal(torch.from_dlpack(t) if t.dtype != "bool" else t.tensor(), self.tensors[name]), name)
            with self.assertRaisesRegex(KeyError, "nothing"):
                f["nothing"]
            kept = f["wq"]
        with self.assertRaisesRegex(penstock.InvalidError, "closed"):
            f["wq"]
        self.assertTrue(torch.equal(kept.tensor(), self.tensors["wq"]))
        with penstock.safetensors.open(self.peer, "llama/model.safetensors", framework="pt") as f:
            for name in f:
                self.assertTrue(torch.equal(f.get_tensor(name), self.tensors[name]))
        with penstock.safetensors.open(self.peer, "llama/model.safetensors", framework="np") as f:
            x = f["wq"]
            self.assertIsInstance(x, numpy.ndarray)
            self.assertTrue((x == self.tensors["wq"].numpy()).all())
            with self.assertRaisesRegex(penstock.InvalidError, "bfloat16"):
                f["half"]
        with self.assertRaisesRegex(penstock.InvalidError, "framework"):
            penstock.safetensors.open(self.peer, "llama/model.safetensors", "jax")

    def test_lazy(self):
        """Opening fetches the header, and an access what was asked for."""
        fetched, get, post = [], self.peer.get, self.peer.post
        self.peer.get = lambda *a, **k: (fetched.append(k["length"]), get(*a, **k))[1]
        self.peer.post = lambda kind, blocks, *a: (fetched.append([b[1] for b in blocks]), post(kind, blocks, *a))[1]
        f = penstock.safetensors.open(self.peer, "llama/model.safetensors", "pt")
        self.assertEqual(fetched, [1 << 16])
        s = f.get_slice("large")
        self.assertEqual((s.get_shape(), s.get_dtype()), ([300_000, 4], "BF16"))
        self.assertTrue(torch.equal(s[1000:1010], self.tensors["large"][1000:1010]))
        self.assertEqual(fetched[1:], [[80]])  # in one piece
        self.assertTrue(torch.equal(s[:, 2:3], self.tensors["large"][:, 2:3]))  # in many
        self.assertEqual(len(fetched[2]), 300_000)

    def test_slices(self):
        f = penstock.safetensors.open(self.peer, "llama/model.safetensors", "pt")
        for name, keys in (("wq", (slice(None), 3, -1, slice(2, 9), slice(5, -5), (slice(None), slice(8, 16)), (slice(3, 7), slice(-4, None)), (2, 3), (slice(1, 2), 5),
                                   (Ellipsis, slice(0, 1)), Ellipsis, (Ellipsis, 4), (slice(9, 3),), slice(60, 99), numpy.int64(3), (slice(None), slice(None)))),
                           ("half", ((1,), (slice(1, 3), slice(None), 2), (slice(None), 1, slice(2, 4)), (Ellipsis, slice(3, 5)), (0, Ellipsis, 7), (slice(1, 3), 2, 3, 4),
                                     (slice(None), slice(1, 3), slice(None), slice(None)))),
                           ("scalar", ((), Ellipsis)), ("empty", (slice(None), (slice(None), 1))), ("mask", (slice(2, 5), -1))):
            for key in keys:
                self.assertTrue(torch.equal(f.get_slice(name)[key], self.tensors[name][key]), (name, key))
        for key, error in (((1, 2, 3), IndexError), (64, IndexError), (-65, IndexError), (slice(0, 9, 2), penstock.InvalidError), ("a", TypeError), (None, TypeError),
                           (True, TypeError), ((Ellipsis, Ellipsis), IndexError)):
            with self.assertRaises(error):
                f.get_slice("wq")[key]

    def test_get_of_a_file(self):
        """What comes has the size of the file, not that of the pages that it is in."""
        for n in (0, 1, 5000, 8192):
            b = bytes(i % 251 for i in range(n))
            self.write("f", b)
            r = self.peer.get("f")
            self.assertEqual((r.size, r.nbytes, bytes(r.memory)), (n, n, b))
            self.assertEqual((r.array().tobytes(), r.tensor().tolist()), (b, list(b)))
            self.assertEqual((numpy.asarray(r).tobytes(), torch.from_dlpack(r).tolist()), (b, list(b)))
        r = self.peer.get("f", offset=100, length=7)
        self.assertEqual((r.size, bytes(r.memory)), (7, b[100:107]))

    def test_header_of_many(self):
        """A header that is longer than what is fetched at first."""
        many = {f"layers.{i}.weight": torch.full((2,), float(i)) for i in range(2000)}
        self.write("many.safetensors", file_of(many))
        f = penstock.safetensors.open(self.peer, "many.safetensors", "pt")
        self.assertEqual((len(f), f["layers.1999.weight"].tolist()), (2000, [1999, 1999]))

    def test_four_bits(self):
        self.write("four", file_of({}, x={"dtype": "F4", "shape": [4, 4], "data_offsets": [0, 8]}) + bytes(range(8)))
        f = penstock.safetensors.open(self.peer, "four")
        self.assertEqual(bytes(f.get_slice("x")[1:3].memory), bytes([2, 3, 4, 5]))
        self.assertEqual(bytes(f.get_slice("x")[:, 2:].memory), bytes([1, 3, 5, 7]))
        with self.assertRaisesRegex(penstock.InvalidError, "within a byte"):
            f.get_slice("x")[:, 1:3]

    def test_hostile(self):
        ok = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
        for bad, text in ((b"", "0 bytes"), (b"1234567", "7 bytes"), (b"\xff" * 8 + b"{}", "header"), ((9).to_bytes(8, "little") + b"{}", "header"),
                          ((2).to_bytes(8, "little") + b"[]", "object"), ((2).to_bytes(8, "little") + b"{]", "safetensors"),
                          ((2).to_bytes(8, "little") + b"\xff\xff", "safetensors"), ((200000).to_bytes(8, "little") + b"[" * 200000, "safetensors"),
                          ((28).to_bytes(8, "little") + b'{"__metadata__":1,"x":"y"}  ', "metadata"), ((13).to_bytes(8, "little") + b'{"a":1,"a":2}', "twice")) + tuple(
                              (file_of({}, x={**ok, **change}) + bytes(4), text) for change, text in (
                                  ({"data_offsets": [0, 5]}, "data_offsets"), ({"data_offsets": [-1, 3]}, "number"), ({"data_offsets": [4, 0]}, "data_offsets"),
                                  ({"data_offsets": [0]}, "two"), ({"shape": [5]}, "bytes"), ({"shape": [4, -1]}, "number"), ({"shape": [True, 4]}, "number"),
                                  ({"shape": [1] * 33}, "32"), ({"shape": [1 << 62, 1 << 62]}, "bytes"), ({"dtype": 1}, "dtype"),
                                  ({"shape": [4.0]}, "number"), ({"dtype": "F8_E8M0", "shape": [5]}, "bytes"), ({"dtype": "F6_E2M3"}, "bytes"))):
            e = self.b.export(bad or b"x", "bad") if bad else None
            if e is None:
                self.write("bad", b"")
            with self.assertRaisesRegex(penstock.InvalidError, text):
                penstock.safetensors.open(self.peer, "bad")
            if e is None:
                os.remove(os.path.join(self.dir, "bad"))
                with self.assertRaises(penstock.NotFoundError):
                    self.peer.lookup("bad")
            else:
                e.close()

    def test_opaque(self):
        """A tensor of which only the bytes are known comes as those, and does not hide the others."""
        for change, size in (({"dtype": "F8_E8M0", "shape": [2, 2]}, 4), ({"dtype": "F6_E3M2", "shape": [4]}, 3), ({"dtype": "F31", "shape": [7, 1 << 62]}, 3),
                             ({"dtype": "F32", "shape": [1], "more": {"a": [None]}}, 4)):
            x = {**change, "data_offsets": [0, size]}
            y = {"dtype": "U8", "shape": [2], "data_offsets": [size, size + 2]}
            with self.b.export(file_of({}, __metadata__=None, x=x, y=y) + bytes(range(size + 2)), "new"):
                f = penstock.safetensors.open(self.peer, "new", "np")
                self.assertEqual((list(f), f.metadata(), f.get_slice("x").get_dtype(), f.get_slice("x").get_shape()), (["x", "y"], {}, x["dtype"], x["shape"]))
                self.assertEqual((f["x"].dtype, f["x"].tolist(), f["y"].tolist()), (numpy.uint8, list(range(size)), [size, size + 1]))
                with self.assertRaisesRegex(penstock.InvalidError, x["dtype"]):
                    f.get_slice("x")[:1]

    def test_replaced(self):
        """All tensors are of one content: of a file that has been replaced none comes any more."""
        f = penstock.safetensors.open(self.peer, "llama/model.safetensors", "pt")
        self.write("new", file_of({"wq": torch.zeros(64, 48)}))
        os.replace(os.path.join(self.dir, "new"), os.path.join(self.dir, "llama/model.safetensors"))
        with penstock.safetensors.open(self.peer, "llama/model.safetensors", "pt") as g:
            self.assertEqual((list(g), int(g["wq"].abs().sum())), (["wq"], 0))
        with self.assertRaises(penstock.RevokedError):
            f["wq"]

    def test_share(self):
        self.share.close()
        with self.assertRaises(penstock.NotFoundError):
            self.peer.lookup("llama/model.safetensors")
        with self.b.serve(self.dir, tensors=False):
            self.peer.lookup("llama/model.safetensors")
            with self.assertRaises(penstock.NotFoundError):
                self.peer.lookup("llama/model.safetensors/wq")
            with self.assertRaisesRegex(penstock.Error, "one share"):
                self.b.serve(self.dir)
        with self.assertRaisesRegex(penstock.Error, "nowhere"):
            self.b.serve("/nowhere")
        self.b.serve(os.path.join(self.dir, "llama"))
        self.b.close()  # with what it serves


class Typed(unittest.TestCase):
    def test_export(self):
        """What is exported whole says what it is."""
        with penstock.System(name="b", listen=["tcp://127.0.0.1:0"]) as b, penstock.System(name="a") as a, a.connect(b.addresses[0]) as peer:
            for x, dtype, shape in ((numpy.zeros((2, 3), "f2"), "float16", (2, 3)), (torch.zeros(4, 1, dtype=torch.bfloat16), "bfloat16", (4, 1)),
                                    (numpy.zeros(()), "float64", ()), (penstock.empty((7,), "float8_e5m2"), "float8_e5m2", (7,)),
                                    (b"bytes", None, ()), (penstock.alloc(10), None, ()), (numpy.zeros(3, "M8[s]"), None, ()), (numpy.array(["text"]), None, ()), (memoryview(b"12345678").cast("i"), "int32", (2,))):
                with b.export(x, "x"):
                    remote = peer.lookup("x")
                    self.assertEqual((remote.dtype, remote.shape), (dtype, shape))
                    got = peer.get("x")
                    self.assertEqual((type(got), getattr(got, "shape", ())), (penstock.Tensor if dtype else penstock.Region, shape))
                    self.assertEqual(type(peer.get("x", offset=1)), penstock.Region)
                with b.export(x, "x", offset=0, length=2):
                    self.assertIsNone(peer.lookup("x").dtype)
            x = penstock.empty((10,), "int32")
            x.array()[:] = range(10)
            with b.export(x, "x"):
                self.assertEqual(peer.get("x", offset=8, length=8).array("i4", 2).tolist(), [2, 3])
                into = numpy.zeros(2, "i4")
                peer.get("x", into, offset=4, length=4).wait(30)
                self.assertEqual(into.tolist(), [1, 0])
                for bad in ({"length": 41}, {"offset": 41}, {"length": -1}, {"offset": -1}, {"offset": 40, "length": 1}):
                    with self.assertRaises(penstock.BoundsError):
                        peer.get("x", **bad)


if __name__ == "__main__":
    unittest.main()
