"""Puts 1 MiB again and again, for putcost."""
import sys
import time

import numpy

import penstock

SIZE = 1 << 20
BLOCK, BLOCKS = 4 << 10, 1024


def main() -> None:
    with penstock.System(name="a") as a:
        peer = a.connect(sys.argv[1])
        far = {name: peer.lookup(name) for name in ("shm", "tcp")}
        array = numpy.full(SIZE, 7, "u1")
        near = {"shm": penstock.alloc(SIZE), "tcp": penstock.adopt(array)}
        prepared = {}
        for name in far:
            r, at = penstock.alloc(BLOCK * BLOCKS), numpy.arange(BLOCKS) * BLOCK
            blocks = numpy.stack([at, numpy.full(BLOCKS, BLOCK), at[::-1]], axis=1)
            prepared[name] = peer.prepare("put", blocks, r, peer.lookup(name + " blocks"), paths=[name])
        print("ready", flush=True)
        for line in sys.stdin:
            path, how, count = line.split()
            took = []
            for _ in range(int(count)):
                begun = time.perf_counter()
                if how == "blocks":
                    prepared[path].post().wait()
                elif how == "region":
                    peer.put(near[path], far[path]).wait()
                elif how == "array":
                    peer.put(array, far[path]).wait()
                elif how == "name":
                    peer.put(array, path).wait()
                else:
                    peer.put(numpy.full(SIZE, 7, "u1"), far[path]).wait()
                took.append((time.perf_counter() - begun) * 1e6)
            print(sorted(took)[len(took) // 2], flush=True)


main()
