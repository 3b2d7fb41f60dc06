import numpy, penstock

yaml = """
penstock:
  gpu_runtime: host                # the processor in a GPU's place; without the line a GPU
  memory_regions:
    - {name: packets, kind: host, buf_size: 2KiB, num_bufs: 4096}
    - {name: batches, kind: host_pinned, buf_size: 8KiB, num_bufs: 8}
  interfaces:
    - name: loop
      engine: sim
      address: sim://batches?loop
      rx:
        queues: [{memory_regions: [packets]}]
        reorder:
          - name: samples
            reorder_type: gpu
            memory_region: batches
            flow_ids: [0]
            payload_byte_offset: 18
            payload_size: 128
            data_types: {input_type: int16, output_type: fp16, endianness: network}
            method:
              seq_packets_per_batch:
                sequence_number: {bit_offset: 112, bit_width: 32}   # behind the header of Ethernet
                packets_per_batch: 64
      tx: {queues: [{memory_regions: [packets]}]}
"""
with penstock.System(yaml) as s, s.rx("loop") as rx:
    head = bytes([255] * 6 + [2] * 6 + [0x88, 0xB5])
    s.send("loop", [head + n.to_bytes(4, "big") + numpy.full(64, n, ">i2").tobytes() for n in range(64)])
    for batch in next(iter(rx)).batches:
        samples = batch.array()              # numpy; batch.tensor() for torch
        assert (batch.packets, samples.dtype, samples.shape) == (64, "float16", (64, 64))
        assert samples[63, 0] == 63
