"""The calls that the connectors of vLLM, LMCache and SGLang make of NIXL and Mooncake: the same ones, in the same order, with arguments of the same
kinds, as their sources have them. Each class names the file and its version. Memory is the host's. What they send each other over sockets of ZeroMQ
is passed by hand here."""
import asyncio
import importlib
import socket
import struct
import sys
import time
import unittest
import uuid

import numpy
import penstock.mooncake
import penstock.nixl
from penstock import _lib


class Connectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for m in (penstock.nixl, penstock.mooncake):
            m.install()
        cls.api = importlib.import_module("nixl._api")
        cls.engine = importlib.import_module("mooncake.engine").TransferEngine

    @classmethod
    def tearDownClass(cls):
        for m in [m for m in sys.modules if m.split(".")[0] in ("nixl", "mooncake")]:
            del sys.modules[m]

    def until(self, f):
        end = time.monotonic() + 30
        while True:
            x = f()
            if x:
                return x
            self.assertLess(time.monotonic(), end)

    def done(self, agent, handle):
        def look():
            state = agent.check_xfer_state(handle)
            self.assertIn(state, ("PROC", "DONE"))
            return state == "DONE"
        self.until(look)


class VLLMNixl(Connectors):
    """vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py of vllm-project/vllm, commit 0016029bf830."""

    LAYERS, BLOCKS, LEN = 4, 32, 2048

    def worker(self, fill):
        """register_kv_caches and register_local_xfer_handler."""
        agent = self.api.nixl_agent(str(uuid.uuid4()), self.api.nixl_agent_config(num_threads=4, capture_telemetry=True))
        caches = [numpy.full((self.BLOCKS, self.LEN), 0, "u1") for _ in range(self.LAYERS)]
        for i, c in enumerate(caches):
            c[:] = (numpy.arange(self.BLOCKS)[:, None] + 50 * i) * fill
        descs = agent.get_reg_descs([(c.ctypes.data, c.nbytes, 0, "") for c in caches], "DRAM")
        agent.register_memory(descs, backends=["UCX"])
        return agent, caches, descs, [c.ctypes.data for c in caches]

    def blocks(self, bases):
        return [(base + i * self.LEN, self.LEN, 0) for base in bases for i in range(self.BLOCKS)]

    def test_read(self):
        p, kept, p_descs, p_bases = self.worker(1)
        d, got, d_descs, d_bases = self.worker(0)
        local = d.prep_xfer_dlist("NIXL_INIT_AGENT", d.get_xfer_descs(self.blocks(d_bases), "DRAM"))
        name = d.add_remote_agent(p.get_agent_metadata())
        for blocks in (self.blocks(p_bases), numpy.array(self.blocks(p_bases))):  # tuples, and since 2026 an array
            remote = d.prep_xfer_dlist(name, d.get_xfer_descs(blocks, "DRAM"))
            mine, theirs = [3, 5, 6], [10, 11, 2]
            ids = [[layer * self.BLOCKS + b for layer in range(self.LAYERS) for b in bs] for bs in (mine, theirs)]
            handle = d.make_prepped_xfer("READ", local, numpy.array(ids[0]), remote, ids[1], notif_msg=b"request:1")
            d.transfer(handle)
            self.done(d, handle)
            t = d.get_xfer_telemetry(handle)
            self.assertEqual((t.totalBytes, t.descCount), (self.LAYERS * 3 * self.LEN, self.LAYERS * 3))
            self.assertTrue(t.xferDuration > 0 and t.postDuration > 0)
            d.release_xfer_handle(handle)
            for x, y in zip(got, kept):
                self.assertTrue((x[mine] == y[theirs]).all())
                x[:] = 0
            self.assertEqual(self.until(p.get_new_notifs), {d.name: [b"request:1"]})
            d.release_dlist_handle(remote)
        d.send_notif(name, notif_msg=b"request:1")  # all blocks were there already
        self.assertEqual(self.until(p.get_new_notifs), {d.name: [b"request:1"]})
        d.release_dlist_handle(local)  # shutdown
        d.remove_remote_agent(name)
        for agent, descs in ((d, d_descs), (p, p_descs)):
            agent.deregister_memory(descs)

    def test_producer_gone(self):
        """_handle_failed_transfer: a state or an exception, and the handle is released."""
        p, _, _, p_bases = self.worker(1)
        d, _, _, d_bases = self.worker(0)
        local = d.prep_xfer_dlist("NIXL_INIT_AGENT", d.get_xfer_descs(self.blocks(d_bases), "DRAM"))
        remote = d.prep_xfer_dlist(d.add_remote_agent(p.get_agent_metadata()), d.get_xfer_descs(self.blocks(p_bases), "DRAM"))
        handle = d.make_prepped_xfer("READ", local, [0], remote, [1], notif_msg=b"request:1")
        p.system.close()
        try:
            d.transfer(handle)
            self.until(lambda: d.check_xfer_state(handle) == "ERR")
        except penstock.nixl.nixlError:
            pass
        d.release_xfer_handle(handle)


class SGLangNixl(Connectors):
    """python/sglang/srt/disaggregation/nixl/conn.py of sgl-project/sglang, commit 007ba532d3be."""

    def manager(self):
        """register_buffer_to_engine."""
        agent = self.api.nixl_agent(str(uuid.uuid4()))
        kv, aux = [numpy.zeros((64, 512), "u1") for _ in range(4)], numpy.zeros((8, 64), "u1")
        kv_descs = agent.register_memory([(x.ctypes.data, x.nbytes, 0, "") for x in kv], "DRAM")  # "VRAM" there
        aux_descs = agent.register_memory([(aux.ctypes.data, aux.nbytes, 0, "")], "DRAM")
        self.assertTrue(kv_descs and aux_descs)
        return agent, kv, aux

    def test_send(self):
        prefill, kv, aux = self.manager()
        decode, kv_there, aux_there = self.manager()
        prefill.add_remote_agent(decode.get_agent_metadata())
        name = decode.name.encode("ascii").decode("ascii")
        for i, x in enumerate(kv):
            x[:] = numpy.arange(64)[:, None] + 60 * i
        aux[2] = 9
        pointers = list(struct.unpack("4Q", b"".join(struct.pack("Q", x.ctypes.data) for x in kv_there)))
        handles = []
        for chunk, (mine, theirs) in enumerate(((numpy.arange(4, 12, dtype="i4"), numpy.arange(30, 38, dtype="i4")), (numpy.arange(20, 23, dtype="i4"), numpy.arange(3, dtype="i4")))):
            src = [(x.ctypes.data + int(mine[0]) * 512, 512 * len(mine), 0) for x in kv]
            dst = [(at + int(theirs[0]) * 512, 512 * len(theirs), 0) for at in pointers]
            h = prefill.initialize_xfer("WRITE", prefill.get_xfer_descs(src, "DRAM"), prefill.get_xfer_descs(dst, "DRAM"), name, f"7_kv_{chunk}_{int(chunk == 1)}".encode("ascii"))
            self.assertTrue(h)
            self.assertNotEqual(prefill.transfer(h), "ERR")
            handles.append(h)
        h = prefill.initialize_xfer("WRITE", prefill.get_xfer_descs([(aux.ctypes.data + 2 * 64, 64, 0)], "DRAM"),
                                    prefill.get_xfer_descs([(aux_there.ctypes.data + 5 * 64, 64, 0)], "DRAM"), name, b"7_aux")
        self.assertNotEqual(prefill.transfer(h), "ERR")
        self.until(lambda: all(prefill.check_xfer_state(x) == "DONE" for x in handles + [h]))
        seen = []

        def update_transfer_status():
            for messages in decode.get_new_notifs().values():
                seen.extend(m.decode("ascii").split("_") for m in messages)
            return len(seen) == 3
        self.until(update_transfer_status)
        self.assertEqual(sorted(seen), [["7", "aux"], ["7", "kv", "0", "0"], ["7", "kv", "1", "1"]])
        for x, y in zip(kv, kv_there):
            self.assertTrue((y[30:38] == x[4:12]).all() and (y[:3] == x[20:23]).all() and not y[3:30].any())
        self.assertTrue((aux_there[5] == 9).all())

    @unittest.skipIf(_lib.cuda() is not None, "the machine has CUDA's driver")
    def test_device_without_driver(self):
        with self.assertRaisesRegex(penstock.nixl.nixlNotSupportedError, "libcuda"):
            self.api.nixl_agent("x").register_memory([(4096, 4096, 0, "")], "VRAM")


class LMCacheNixl(Connectors):
    """lmcache/v1/transfer_channel/nixl_channel.py and lmcache/v1/storage_backend/nixl_storage_backend.py of LMCache/LMCache, commits f5177bdc3c49 and
    016953bb2a64."""

    PAGE, PAGES = 4096, 16

    def wrapper(self):
        """NixlAgentWrapper."""
        agent = self.api.nixl_agent(str(uuid.uuid4()), self.api.nixl_agent_config(backends=["UCX"]))
        buffer = numpy.zeros((self.PAGES, self.PAGE), "u1")
        at = buffer.ctypes.data
        reg = agent.get_reg_descs([(at, buffer.nbytes, 0, "")], mem_type="cpu")
        agent.register_memory(reg)
        xfer = agent.get_xfer_descs([(a, self.PAGE, 0) for a in range(at, at + buffer.nbytes, self.PAGE)], mem_type="cpu")
        return agent, buffer, reg, xfer, agent.prep_xfer_dlist("", xfer, mem_type="cpu")

    def test_channel(self):
        a, mine, a_reg, a_xfer, a_handler = self.wrapper()
        b, theirs, b_reg, b_xfer, b_handler = self.wrapper()
        name_of_a = b.add_remote_agent(a.get_agent_metadata())  # NixlInitRequest, and its answer
        name_of_b = a.add_remote_agent(b.get_agent_metadata())
        to_a = b.prep_xfer_dlist(name_of_a, b.deserialize_descs(a.get_serialized_descs(a_xfer)))  # NixlMemRegRequest
        to_b = a.prep_xfer_dlist(name_of_b, a.deserialize_descs(b.get_serialized_descs(b_xfer)))
        mine[:] = numpy.arange(self.PAGES)[:, None]

        def batched_write():
            h = a.make_prepped_xfer("WRITE", a_handler, [1, 2, 7], to_b, [0, 9, 4])
            a.transfer(h)
            self.done(a, h)
        batched_write()
        self.assertTrue((theirs[[0, 9, 4]] == mine[[1, 2, 7]]).all())

        async def async_batched_read():
            h = b.make_prepped_xfer("READ", b_handler, [11], to_a, [15])
            b.transfer(h)
            while b.check_xfer_state(h) == "PROC":
                await asyncio.sleep(0)
            return b.check_xfer_state(h)
        self.assertEqual(asyncio.run(async_batched_read()), "DONE")
        self.assertTrue((theirs[11] == 15).all())
        for agent, reg, handlers in ((a, a_reg, (a_handler, to_b)), (b, b_reg, (b_handler, to_a))):  # close
            agent.deregister_memory(reg)
            for h in handlers:
                agent.release_dlist_handle(h)

    def test_storage(self):
        """It imports what it needs, registers page by page, and is told that there are no files and objects."""
        from nixl._api import nixlBind, nixl_prepped_dlist_handle, nixl_thread_sync_t, nixl_xfer_handle
        for name in ("nixlRegDList", "nixlXferDList", "nixlBackendError"):
            self.assertTrue(hasattr(nixlBind, name))
        agent = self.api.nixl_agent("NixlAgent_" + str(uuid.uuid4()), self.api.nixl_agent_config(backends=[], enable_prog_thread=True, sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT))
        buffer = numpy.zeros(self.PAGES * self.PAGE, "u1")
        pages = range(buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes, self.PAGE)
        reg = agent.register_memory([(p, self.PAGE, 0, "") for p in pages], mem_type="DRAM")
        handler = agent.prep_xfer_dlist("", agent.get_xfer_descs([(p, self.PAGE, 0) for p in pages], mem_type="DRAM"), mem_type="DRAM")
        self.assertIsInstance(handler, nixl_prepped_dlist_handle)
        self.assertTrue(isinstance(nixl_xfer_handle, type))
        for backend in ("POSIX", "GDS", "OBJ"):
            with self.assertRaisesRegex(penstock.nixl.nixlNotFoundError, backend):
                agent.create_backend(backend, {})
        for kind in ("FILE", "OBJ"):
            with self.assertRaisesRegex(penstock.nixl.nixlNotSupportedError, kind):
                agent.register_memory([(0, self.PAGE, 3, "key")], mem_type=kind)
        with self.assertRaises(penstock.nixl.nixlNotSupportedError):
            agent.query_memory([(0, 0, 0, "key")], "OBJ", mem_type="OBJ")
        agent.release_dlist_handle(handler)
        agent.deregister_memory(reg)


class Mooncake(Connectors):
    def pair(self, host, *sizes):
        """Two engines that name themselves by the host, as "host:port", with memory."""
        out = []
        for _ in range(2):
            e = self.engine()
            self.assertEqual(e.initialize(host, "P2PHANDSHAKE", "rdma", ""), 0)
            buffers = [numpy.zeros(n, "u1") for n in sizes]
            self.assertEqual(e.batch_register_memory([x.ctypes.data for x in buffers], [x.nbytes for x in buffers]), 0)
            bracketed = f"[{host}]" if ":" in host else host
            out.append((e, buffers, f"{bracketed}:{e.get_rpc_port()}"))
        return out

    def test_hosts(self):
        """A machine has many names and addresses."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            try:
                s.connect(("192.0.2.1", 9))  # nothing is sent: it tells the address towards others
                own = s.getsockname()[0]
            except OSError:
                own = "127.0.0.2"
        for host in (own, "localhost", "127.0.0.1", "::1"):
            if host == "::1":
                try:
                    with socket.socket(socket.AF_INET6) as s:
                        s.bind((host, 0))
                except OSError:
                    continue
            (a, x, _), (_, y, session) = self.pair(host, 4096)
            x[0][:] = 5
            self.assertEqual(a.transfer_sync_write(session, x[0].ctypes.data, y[0].ctypes.data, 4096), 0, host)
            self.assertTrue((y[0] == 5).all())

    def test_vllm(self):
        """vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py of vllm-project/vllm, commit 00f4240ee645."""
        (p, kept, _), (d, got, session) = self.pair("127.0.0.1", *[64 * 1024] * 3)
        for i, x in enumerate(kept):
            x[:] = i + 1
        src = [x.ctypes.data + 1024 * b for x in kept for b in (3, 9)]
        dst = [x.ctypes.data + 1024 * b for x in got for b in (0, 1)]
        self.assertEqual(p.batch_transfer_sync_write(session, src, dst, [1024] * 6), 0)
        for i, x in enumerate(got):
            self.assertTrue((x[:2048] == i + 1).all() and not x[2048:].any())
        self.assertNotEqual(p.batch_transfer_sync_write(session, src, [at + (1 << 40) for at in dst], [1024] * 6), 0)

    def test_sglang(self):
        """python/sglang/srt/distributed/device_communicators/mooncake_transfer_engine.py, which disaggregation/mooncake/conn.py calls, of
        sgl-project/sglang, commits 00157bdc625d and 0005973a84f7."""
        (p, kept, _), (d, got, session) = self.pair("127.0.0.1", 8192, 8192)
        extra = numpy.full(4096, 7, "u1")
        self.assertEqual((p.register_memory(extra.ctypes.data, extra.nbytes), p.send_probe(session)), (0, 0))
        kept[0][:] = 3
        blocks = [(kept[0].ctypes.data, got[0].ctypes.data, 8192), (extra.ctypes.data, got[1].ctypes.data, 4096)]
        self.assertEqual(p.batch_transfer_sync_write(session, *(list(x) for x in zip(*blocks))), 0)
        self.assertEqual(p.transfer_sync_write(session, extra.ctypes.data, got[1].ctypes.data + 4096, 4096), 0)
        self.assertTrue((got[0] == 3).all() and (got[1] == 7).all())
        self.assertEqual(p.unregister_memory(extra.ctypes.data), 0)
        self.assertEqual(d.batch_unregister_memory([x.ctypes.data for x in got]), 0)
        self.assertLess(p.transfer_sync_write(session, kept[0].ctypes.data, got[0].ctypes.data, 8192), 0)  # a session that failed
        with self.assertRaises(NotImplementedError):
            p.get_engine()

    def test_lmcache(self):
        """lmcache/v1/transfer_channel/mooncake_channel.py of LMCache/LMCache, commit 3fe79432c3f3."""
        page = 2048
        (a, mine, _), (b, theirs, session) = self.pair("localhost", 16 * page)
        mine[0].reshape(16, page)[:] = numpy.arange(16)[:, None]
        for here, there in zip([2, 3, 11], [15, 0, 1]):  # batched_write, page by page
            self.assertEqual(a.transfer_sync_write(session, mine[0].ctypes.data + here * page, theirs[0].ctypes.data + there * page, page), 0)
        self.assertEqual(theirs[0].reshape(16, page)[[15, 0, 1], 0].tolist(), [2, 3, 11])
        self.assertEqual(a.unregister_memory(mine[0].ctypes.data), 0)


if __name__ == "__main__":
    unittest.main()
