import numpy, penstock

n, size = 64, 4096
with penstock.System(name="b", listen=["tcp://127.0.0.1:0"]) as b, penstock.System(name="a") as a:
    here, there = penstock.alloc(n * size), penstock.alloc(n * size)
    export = b.export(there, "cache", penstock.WRITE)
    peer = a.connect(b.addresses[0])
    at = numpy.arange(n) * size
    blocks = numpy.stack([at, numpy.full(n, size), at[::-1]], axis=1)
    prepared = peer.prepare("put", blocks, here, peer.lookup("cache"))
    for step in range(3):
        here.array()[:] = step
        prepared.post().wait()
        assert (there.array() == step).all()
