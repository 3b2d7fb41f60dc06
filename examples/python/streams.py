import numpy, penstock

yaml = """
penstock:
  memory_regions:
    - {name: packets, kind: host, buf_size: 2KiB, num_bufs: 4096}
  interfaces:
    - name: loop
      engine: sim
      address: sim://example?loop
      rx: {queues: [{memory_regions: [packets]}]}
      tx: {queues: [{memory_regions: [packets]}]}
"""
with penstock.System(yaml) as s, s.rx("loop") as rx:
    frame = bytes([255] * 6 + [2] * 6 + [0x88, 0xB5]) + b"payload" * 10
    s.send("loop", [frame] * 8)
    seen = 0
    for burst in rx:
        for packet in burst.arrays():        # numpy, without a copy
            assert packet.tobytes() == frame
            seen += 1
        if seen == 8:
            break
