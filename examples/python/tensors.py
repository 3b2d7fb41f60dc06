import numpy, penstock, torch

with penstock.System(name="b", listen=["tcp://127.0.0.1:0"]) as b, penstock.System(name="a") as a:
    export = b.export(torch.arange(12).reshape(3, 4).to(torch.bfloat16), "wq")
    t = a.connect(b.addresses[0]).get("wq")
    assert (t.dtype, t.shape) == ("bfloat16", (3, 4))
    w = torch.from_dlpack(t)             # or t.tensor(); for numpy numpy.from_dlpack(t), or t.array()
    t.close()                            # w keeps the memory
    assert w[2, 3] == 11

    x = penstock.empty((2, 8), "float32")  # memory that peers on this host can map
    numpy.asarray(x)[:] = 1
