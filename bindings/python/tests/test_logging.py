import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import penstock
from penstock import _log


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.changed, self.all = threading.Condition(), []

    def emit(self, record):
        with self.changed:
            self.all.append(record)
            self.changed.notify_all()

    def find(self, what):
        """The first record whose message begins so."""
        end = time.monotonic() + 30
        with self.changed:
            while True:
                for r in self.all:
                    if r.getMessage().startswith(what):
                        return r
                if not self.changed.wait(end - time.monotonic()):
                    raise AssertionError(f"no record {what!r} in {[r.getMessage() for r in self.all]}")


def run(program, **more):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, **more)


REFUSED = """
import logging, penstock
b = penstock.System('penstock: {transfers: {name: b, listen: ["tcp://127.0.0.1:0"]}, logging: {level: debug}}')
a = penstock.System(name="a")
peer = a.connect(b.addresses[0])
def refused(n=1):
    for _ in range(n):
        try:
            peer.lookup("no such thing")
        except penstock.NotFoundError:
            pass
"""


class Logging(unittest.TestCase):
    def setUp(self):
        self.records, self.logger = Records(), logging.getLogger("penstock")
        self.logger.addHandler(self.records)
        self.logger.propagate = False
        self.addCleanup(self.logger.removeHandler, self.records)
        self.addCleanup(setattr, self.logger, "propagate", True)

    def level(self, n):
        self.logger.setLevel(n)
        self.addCleanup(self.logger.setLevel, logging.NOTSET)

    def ended(self):
        """Waits for the end of the thread, which no system needs any more."""
        t = _log._thread
        if t is not None:
            t.join(30)
            self.assertFalse(t.is_alive())

    def test_records(self):
        self.level(logging.DEBUG)
        before = time.time()
        with penstock.System(name="b", listen=["tcp://127.0.0.1:0"]) as b, penstock.System(name="a") as a, a.connect(b.addresses[0]) as peer:
            with self.assertRaises(penstock.NotFoundError):
                peer.lookup("none\n\x1b[31m")
            refused = self.records.find("request refused")
            t = _log._thread
            self.assertTrue(t.daemon and t.is_alive() and t.name == "penstock-log")
        self.assertEqual((refused.name, refused.levelno, refused.penstock["system"], refused.penstock["peer"], refused.penstock["method"]), ("penstock", logging.DEBUG, "b", "a", "lookup"))
        self.assertIn(" method=lookup ", refused.getMessage())
        self.assertTrue(refused.getMessage().isprintable(), refused.getMessage())  # a peer chose the name
        self.assertTrue(before - 1 <= refused.created <= time.time() and 0 <= refused.msecs < 1000 and abs(refused.relativeCreated) < 1e9)
        self.assertEqual(self.records.find("closed").levelno, logging.INFO)
        t.join(30)
        self.assertFalse(t.is_alive())
        with penstock.System(name="c"):  # again, with a thread of its own
            self.assertIsNot(_log._thread, t)

    def test_levels(self):
        for number, name in ((1, "trace"), (5, "trace"), (10, "debug"), (20, "info"), (21, "warn"), (30, "warn"), (40, "error"), (50, "critical"), (51, "off")):
            self.level(number)
            self.assertEqual(_log.level(), name)
        for number, want in ((-8, 5), (-4, 10), (0, 20), (4, 30), (8, 40), (12, 50)):
            self.logger.setLevel(1)
            self.records.all.clear()
            _log._deliver({"time": 1_500_000_000_123_456_789, "level": number, "msg": "m", "attributes": {"name": "x y", "n": 1, "g": {"a": [1]}}})
            r, = self.records.all
            self.assertEqual((r.levelno, r.getMessage(), r.msecs, int(r.created)), (want, 'm name="x y" n=1 g={"a": [1]}', 123.0, 1_500_000_000))

    def test_configuration(self):
        """The level of a configuration decides what is kept, that of the logger what is delivered; a file gets all."""
        self.level(logging.WARNING)
        with penstock.System("penstock: {logging: {level: info}}"):
            pass
        self.ended()
        self.assertEqual(self.records.all, [])
        self.level(logging.DEBUG)
        with penstock.System("penstock: {logging: {level: error}}"), penstock.System("penstock: {logging: {level: 'off'}}"):
            pass
        with tempfile.TemporaryDirectory() as d:
            at = os.path.join(d, "log")
            with penstock.System("penstock: {logging: {level: info, file: '%s'}}" % at):
                pass
            with open(at) as f:
                self.assertIn("msg=closed", f.read())
        self.ended()
        self.assertEqual(self.records.all, [])
        with self.assertRaises(penstock.InvalidError):
            penstock.System("penstock: {nonsense: 1}")
        self.ended()

    def test_handler_that_fails(self):
        """It is told as package logging tells it, and the next record arrives."""
        r = run("import logging\nclass F(logging.Filter):\n    def filter(self, r): raise KeyError('mine')\nf = F()\nlogging.getLogger('penstock').addFilter(f)\n"
                "logging.getLogger('penstock').setLevel(logging.INFO)\n"
                "import penstock\nfor i in range(2):\n    with penstock.System('penstock: {logging: {level: info}}'): pass\n")
        self.assertEqual((r.returncode, r.stdout, r.stderr.count("KeyError: 'mine'")), (0, "", 4), r.stderr)

    def test_silent_by_default(self):
        """Nothing is printed of what a program does without mistakes, and warnings go to the standard error, as always."""
        r = run("import penstock\nwith penstock.System(name='b', listen=['tcp://127.0.0.1:0']) as b, penstock.System(name='a') as a:\n    a.connect(b.addresses[0])\n")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, "", ""))

    def test_import(self):
        """A program that opens no system has neither the thread nor package logging."""
        r = run("import sys, threading, penstock\npenstock.alloc(1)\nprint('logging' in sys.modules, threading.active_count())")
        self.assertEqual(r.stdout, "False 1\n", r.stderr)

    def test_end_of_python(self):
        """With a system open, and records on their way: the last ones are delivered, and Python ends well."""
        for i in range(3):
            r = run("import logging\nlogging.basicConfig(level=logging.DEBUG)\n" + REFUSED + "refused(50)\nprint('end')\n")
            self.assertEqual((r.returncode, r.stdout, r.stderr.count("request refused")), (0, "end\n", 50), r.stderr)

    def test_end_while_records_come(self):
        r = run("import logging, threading\nlogging.basicConfig(level=logging.DEBUG)\n" + REFUSED +
                "ready = threading.Event()\n"
                "def more():\n    while True:\n        refused()\n        ready.set()\n"
                "threading.Thread(target=more, daemon=True).start()\nready.wait(30)\nprint('end')\n")
        self.assertEqual((r.returncode, r.stdout), (0, "end\n"), r.stderr)
        self.assertNotIn("Traceback", r.stderr)
        self.assertNotIn("Fatal", r.stderr)

    def test_fork(self):
        """The child of a fork ends well, with what it inherited, and logs by itself if it opens the first system."""
        r = run("import logging, os, sys\nlogging.basicConfig(level=logging.DEBUG)\n" + REFUSED +
                "if os.fork() == 0:\n    logging.getLogger('penstock').warning('child')\n    sys.exit(0)\n"
                "assert os.wait()[1] == 0\nrefused()\n")
        self.assertEqual((r.returncode, r.stderr.count("child"), r.stderr.count("request refused")), (0, 1, 1), r.stderr)
        r = run("import logging, os, sys\nlogging.basicConfig(level=logging.DEBUG)\nimport penstock, penstock._log\nif os.fork() == 0:\n    exec(%r)\n    refused()\n    sys.exit(0)\n"
                "assert os.wait()[1] == 0\n" % REFUSED)
        self.assertEqual((r.returncode, r.stderr.count("request refused")), (0, 1), r.stderr)

    def test_dropped(self):
        """Records that nobody takes are bounded, and how many were dropped is said."""
        r = run("import logging, penstock, penstock._log\nlogging.basicConfig(level=logging.INFO)\n"
                "penstock._log._delivery.acquire()\n"  # the program holds the delivery up
                "for i in range(900):\n    with penstock.System('penstock: {logging: {level: info}}'): pass\n"
                "penstock._log._delivery.release()\n")
        self.assertEqual((r.returncode, r.stderr.count("WARNING:penstock:records were dropped")), (0, 1), r.stderr[-2000:])
        said = int(r.stderr.split("in time records=")[1].split()[0])
        self.assertEqual(r.stderr.count("INFO:penstock:") + said, 1800)


if __name__ == "__main__":
    unittest.main()
