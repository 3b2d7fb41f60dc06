import os
import tempfile
import unittest

import numpy
import penstock

YAML = """penstock:
  memory_regions:
    - {name: packets, kind: host, buf_size: 2KiB, num_bufs: 4096}
    - {name: out, kind: host, buf_size: 2KiB, num_bufs: 1024}
  interfaces:
    - name: loop
      engine: sim
      address: sim://python?loop
      rx: {queues: [{memory_regions: [packets]}]}
      tx: {queues: [{memory_regions: [out]}]}
"""


def frame(i):
    f = numpy.full(64 + i % 3, i % 256, "u1")
    f[:14] = [255] * 6 + [2] * 6 + [0x88, 0xB5]
    return f


# The sequence number is behind the Ethernet header, and four samples of 16 bits behind it.
REORDER = """penstock:
  memory_regions:
    - {name: packets, kind: host, buf_size: 2KiB, num_bufs: 4096}
    - {name: batches, kind: host, buf_size: 8KiB, num_bufs: 64}
  interfaces:
    - name: loop
      engine: sim
      address: sim://python-reorder?loop
      rx:
        queues: [{memory_regions: [packets]}]
        reorder:
          - name: samples
            reorder_type: cpu
            memory_region: batches
            payload_byte_offset: 18
            payload_size: 8
            window: 2
            flow_ids: [0]
            data_types: {input_type: int16, output_type: fp32, endianness: network}
            method: {seq_packets_per_batch: {sequence_number: {bit_offset: 112, bit_width: 32}, packets_per_batch: 128}}
      tx: {queues: [{memory_regions: [packets]}]}
"""


class Stream(unittest.TestCase):
    def test_batches(self):
        per, lost = 128, {5, 64, 127}
        with penstock.System(REORDER) as s, s.rx("loop") as rx:
            head, got, held = bytes([255] * 6 + [2] * 6 + [0x88, 0xB5]), [], None
            numbers = [n for n in range(3 * per) if n not in lost]
            numbers[1], numbers[2] = numbers[2], numbers[1]
            frames = [head + n.to_bytes(4, "big") + numpy.arange(4 * n, 4 * n + 4, dtype=">i2").tobytes() for n in numbers]
            frames += [head + n.to_bytes(4, "big") + bytes(8) for n in (3 * per, 4 * per)]  # which have the others leave
            while frames or len(got) < 3:
                if frames:
                    frames = frames[s.send("loop", frames[:64]):]
                burst = rx.receive(1)
                for k, b in enumerate(burst.batches if burst else []):
                    self.assertEqual(len(burst.packets[k]), b.array().nbytes)
                    got.append((b, b.array().copy(), b.present.copy(), b.has(0)))
                held = burst or held
        first, array, present, begins = got[0]
        self.assertEqual((first.id, first.packets, first.per_batch, first.timed_out, first.dtype, first.shape), (0, per - 3, per, False, "float32", (per, 4)))
        self.assertEqual([i for i in range(per) if not present[i]], sorted(lost))
        self.assertTrue(begins and not first.has(5) and first.has(6))
        want = numpy.arange(4 * per, dtype="f4").reshape(per, 4)
        want[sorted(lost)] = 0
        self.assertTrue(numpy.array_equal(array, want))
        self.assertEqual([(b.id, b.packets) for b, _, _, _ in got[1:3]], [(1, per), (2, per)])
        with self.assertRaises(penstock.InvalidError):
            first.has(per)
        with self.assertRaises(penstock.InvalidError):  # of a burst that was released
            first.array()
        with self.assertRaises(penstock.InvalidError):
            held.batches

    def test_device(self):
        """A batch that the processor does not reach says which memory it would."""
        text = REORDER.replace("penstock:", "penstock:\n  gpu_runtime: host", 1).replace("python-reorder", "python-device").replace("reorder_type: cpu", "reorder_type: gpu")
        frames = [bytes([255] * 6 + [2] * 6 + [0x88, 0xB5]) + n.to_bytes(4, "big") + bytes(8) for n in range(128)]
        for kind in ("device", "host_pinned"):
            with penstock.System(text.replace("{name: batches, kind: host", "{name: batches, kind: " + kind)) as s, s.rx("loop") as rx:
                self.assertEqual(s.send("loop", frames), len(frames))
                batch, = rx.receive(60).batches
                if kind == "device":
                    with self.assertRaisesRegex(penstock.InvalidError, "kind: host_pinned"):
                        batch.array()
                else:
                    self.assertEqual(batch.array().shape, (128, 4))

    def test_tag(self):
        """What names the content of an export is told, and changes with it."""
        with tempfile.TemporaryDirectory() as at, penstock.System(name="tag-a", listen=[f"unix://{at}/s"]) as a, penstock.System(name="tag-b") as b:
            path = os.path.join(at, "f")
            tags = []
            for content in (b"one", b"another"):
                with open(path, "wb") as f:
                    f.write(content)
                with a.serve(path), b.connect(f"unix://{at}/s") as peer, peer.lookup("f") as remote:
                    tags.append(remote.tag)
            with penstock.alloc(4096) as region, a.export(region, "plain"), b.connect(f"unix://{at}/s") as peer, peer.lookup("plain") as remote:
                self.assertIsNone(remote.tag)
        self.assertEqual([len(t) for t in tags], [16, 16])
        self.assertNotEqual(*tags)

    def test_bursts(self):
        n, got = 500, []
        with penstock.System(YAML) as s, s.rx("loop") as rx:
            self.assertIsNone(rx.receive(0))
            sent = s.send("loop", [frame(i) for i in range(n)])
            self.assertGreater(sent, 0)
            for burst in rx:
                self.assertEqual(len(burst.times), len(burst))
                self.assertEqual(burst.flows, [0] * len(burst))
                self.assertEqual(burst.batches, [None] * len(burst))
                self.assertEqual([len(x) for x in burst.segments], [1] * len(burst))
                got += [a.copy() for a in burst.arrays()]  # the views end with the burst
                if len(got) == sent:
                    if sent == n:
                        break
                    sent += s.send("loop", [frame(i) for i in range(sent, n)])
            with self.assertRaises(penstock.Error):
                s.rx("nothing")
            burst.release()
            with self.assertRaises(penstock.InvalidError):
                burst.packets
        for i, a in enumerate(got):
            self.assertTrue(numpy.array_equal(a, frame(i)), i)

    def test_applications(self):
        text = """penstock:
  memory_regions:
    - {name: in, kind: host, buf_size: 2KiB, num_bufs: 512}
    - {name: out, kind: host, buf_size: 2KiB, num_bufs: 512}
  interfaces:
    - {name: near, engine: sim, address: "sim://near?loop", rx: {queues: [{memory_regions: [in]}]}, tx: {queues: [{memory_regions: [out]}]}}
    - {name: far, engine: sim, address: "sim://far?loop", rx: {queues: [{memory_regions: [in]}]}, tx: {queues: [{memory_regions: [out]}]}}
  applications: [{name: forwarder, kind: forward, interface: near, to: far, cpu_core: %d}]
"""
        with self.assertRaisesRegex(penstock.MissingError, "cannot run on core 4094"):
            penstock.System(text % 4094)
        with penstock.System(text % -1) as s, s.rx("far") as rx:
            with self.assertRaisesRegex(penstock.Error, 'the application "forwarder" takes the packets of receive queue 0 of "near"'):
                s.rx("near")
            n, got = 8, []
            self.assertEqual(s.send("near", [frame(i) for i in range(n)]), n)
            for burst in rx:
                got += [a.copy() for a in burst.arrays()]
                if len(got) == n:
                    break
            burst.release()
            (a,) = s.status()["Applications"]
            self.assertEqual([a[k] for k in ("name", "kind", "from", "to")], ["forwarder", "forward", "near/0", "far/0"])
        for i, a in enumerate(got):
            self.assertTrue(numpy.array_equal(a, frame(i)), i)


if __name__ == "__main__":
    unittest.main()
