"""Prints some elements of a batch of float16 that penstock get has written to a file."""

import struct
import sys

with open(sys.argv[1], "rb") as f:
    batch = f.read()
values = struct.unpack(f"<{len(batch) // 2}e", batch)
print(len(values), "values")
for packet in range(0, len(values) // 512, 16):
    print("packet", packet, values[512 * packet : 512 * packet + 4])
