import os, penstock, penstock.safetensors, tempfile

header = b'{"wq": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}'
with tempfile.TemporaryDirectory() as models:
    with open(os.path.join(models, "model.safetensors"), "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + bytes(16))

    with penstock.System(name="b", listen=["tcp://127.0.0.1:0"]) as b, b.serve(models, tensors=True), penstock.System(name="a") as a:
        peer = a.connect(b.addresses[0])
        assert peer.get("model.safetensors/wq").shape == (2, 2)
        with penstock.safetensors.open(peer, "model.safetensors", framework="pt") as f:
            for name in f.keys():
                whole = f[name]                         # fetched here
                column = f.get_slice(name)[:, 1:]       # of this the second column alone
