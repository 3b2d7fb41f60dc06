import numpy, penstock

with penstock.System(name="b", listen=["tcp://127.0.0.1:0"]) as b, penstock.System(name="a") as a:
    weights = numpy.zeros(1000, "f4")
    export = b.export(weights, "weights", penstock.READ | penstock.WRITE)

    peer = a.connect(b.addresses[0])
    t = peer.put(numpy.arange(1000, dtype="f4"), "weights")
    t.wait(30)                       # in place and verified
    print(t.explain())               # which path, why, how long, how many copies
    assert weights[999] == 999
    assert [(e.name, e.dtype, e.shape) for e in peer.list()] == [("weights", "float32", (1000,))]
