"""Sends int16 samples by UDP, as an instrument does: a number, and 512 samples behind it."""

import socket
import struct
import sys

host, port, packets = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lost = {int(number) for number in sys.argv[4:]}  # packets that are not sent

out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(packets):
    samples = [number + i for i in range(512)]
    if number not in lost:
        out.sendto(struct.pack("!I512h", number, *samples), (host, port))
print(f"sent {packets - len(lost)} packets")
