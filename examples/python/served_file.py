import numpy, os, penstock, tempfile

with tempfile.TemporaryDirectory() as dir:
    numpy.arange(1000, dtype="f4").tofile(os.path.join(dir, "weights.bin"))

    with penstock.System(name="b", listen=["tcp://127.0.0.1:0"]) as b, b.serve(dir), penstock.System(name="a") as a:
        with a.connect(b.addresses[0]) as peer, peer.get("weights.bin") as r:
            weights = numpy.frombuffer(r.memory, "f4")      # a view without a copy, which keeps the memory
            with open(os.path.join(dir, "copy.bin"), "wb") as f:
                f.write(r.memory)
    assert weights[999] == 999 and os.path.getsize(os.path.join(dir, "copy.bin")) == 4000
