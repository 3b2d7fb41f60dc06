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


class Stream(unittest.TestCase):
    def test_bursts(self):
        n, got = 500, []
        with penstock.System(YAML) as s, s.rx("loop") as rx:
            self.assertIsNone(rx.receive(0))
            sent = s.send("loop", [frame(i) for i in range(n)])
            self.assertGreater(sent, 0)
            for burst in rx:
                self.assertEqual(len(burst.times), len(burst))
                self.assertEqual(burst.flows, [0] * len(burst))
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
