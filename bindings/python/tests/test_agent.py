import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from penstock import _lib

HERE = os.path.dirname(os.path.abspath(_lib.__file__))
LIBRARY = os.environ.get("PENSTOCK_LIBRARY") or os.path.join(HERE, "libpenstock.so")


def command():
    """The program penstock."""
    places = [os.environ.get("PENSTOCK_COMMAND"), os.path.join(os.path.dirname(LIBRARY), "penstock"), os.path.join(os.path.dirname(sys.executable), "penstock")]
    return next(p for p in places if p and os.access(p, os.X_OK))


class Agent(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def python(self, program, *args, **env):
        env = {**os.environ, **env}
        if env.get("PENSTOCK_AGENT") == "":
            del env["PENSTOCK_AGENT"]
        return subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=60, env=env)

    def test_other_go(self):
        """Where another Go runtime is in the process the agent is chosen by itself."""
        program = ("import ctypes, sys, penstock\n"
                   "if len(sys.argv) > 1: ctypes.CDLL(sys.argv[1])\n"
                   "penstock.alloc(1)\n"
                   "print(penstock._lib._agent, penstock._lib.why_agent())\n")
        other = os.path.join(self.dir, "other.so")
        shutil.copy(LIBRARY, other)
        r = self.python(program, PENSTOCK_AGENT="")
        self.assertEqual(r.stdout, "False None\n", r.stderr)
        r = self.python(program, other, PENSTOCK_AGENT="")
        self.assertRegex(r.stdout, r"^True .*other\.so has a Go runtime", r.stderr)
        r = self.python(program, other, PENSTOCK_AGENT="0")
        self.assertEqual(r.stdout, "False None\n", r.stderr)

    def test_use_agent(self):
        r = self.python("import penstock\npenstock.use_agent()\npenstock.alloc(1)\nprint(penstock._lib._agent)\npenstock.use_agent()", PENSTOCK_AGENT="")
        self.assertEqual((r.stdout, r.returncode), ("True\n", 0), r.stderr)
        r = self.python("import penstock\npenstock.alloc(1)\npenstock.use_agent()", PENSTOCK_AGENT="")
        self.assertIn("before anything else", r.stderr)

    def test_killed(self):
        """An agent that is killed ends what waits for it, also what is awaited, and the next system has another one."""
        script, pid = os.path.join(self.dir, "penstock"), os.path.join(self.dir, "pid")
        with open(script, "w") as f:
            f.write(f'#!/bin/sh\necho $$ > {pid}\nexec {command()} "$@"\n')
        os.chmod(script, 0o755)
        r = self.python("import asyncio, os, signal, sys, threading, penstock\n"
                        "b = penstock.System(name='b', listen=['tcp://127.0.0.1:0'])\n"
                        "a = penstock.System(name='a')\n"
                        "p = a.connect(b.addresses[0])\n"
                        "b.subscribe(5)\n"
                        "sent = [p.notify(bytes(1000), 5) for _ in range(8000)]\n"  # more than are kept there: the last ones wait
                        "async def main():\n"
                        "    threading.Timer(0.2, os.kill, (int(open(sys.argv[1]).read()), signal.SIGKILL)).start()\n"
                        "    await sent[-1]\n"
                        "try:\n"
                        "    asyncio.run(main())\n"
                        "except penstock.PeerLostError as e:\n"
                        "    print(e)\n"
                        "try:\n"
                        "    a.status()\n"
                        "except penstock.PeerLostError as e:\n"
                        "    print(len(penstock.System(name='c').status()) > 0)\n", pid, PENSTOCK_AGENT="1", PENSTOCK_COMMAND=script)
        self.assertRegex(r.stdout, r"the agent .* has ended.*\nTrue\n", r.stderr)

    def test_socket(self):
        """Programs share an agent that listens at a socket; it ends when it is told to."""
        path = os.path.join(self.dir, "agent")
        agent = subprocess.Popen([command(), "agent", "--socket", path], stderr=subprocess.PIPE, text=True)
        self.addCleanup(agent.stderr.close)
        self.addCleanup(agent.wait, 30)
        self.addCleanup(agent.terminate)
        self.assertIn(path, agent.stderr.readline())
        for _ in range(2):
            r = self.python("import numpy, penstock\n"
                            "with penstock.System(name='b', listen=['tcp://127.0.0.1:0']) as b, penstock.System(name='a') as a:\n"
                            "    x, y = numpy.arange(1000), numpy.zeros(1000, int)\n"
                            "    e = b.export(y, 'y', penstock.WRITE)\n"
                            "    t = a.connect(b.addresses[0]).put(x, 'y').wait(30)\n"
                            "    print((x == y).all(), 'memory of process' in t.explain())\n", PENSTOCK_AGENT=path)
            self.assertEqual(r.stdout, "True True\n", r.stderr)
        second = subprocess.run([command(), "agent", "--socket", path], capture_output=True, text=True, timeout=30)
        self.assertIn("listens", second.stderr)
        self.assertNotEqual(second.returncode, 0)


if __name__ == "__main__":
    unittest.main()
