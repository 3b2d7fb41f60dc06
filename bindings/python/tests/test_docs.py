import os
import re
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
PAGE = os.path.join(ROOT, "docs", "python.md")
FILES = ("transfer", "served_file", "blocks", "tensors", "safetensors_part", "streams", "batches", "nixl_agent", "mooncake_engine")


class Docs(unittest.TestCase):
    def test_programs(self):
        """Each program of the page runs, and is a file of the examples."""
        with open(PAGE) as f:
            programs = re.findall(r"```python\n(.*?)```", f.read(), re.S)
        self.assertEqual(len(programs), len(FILES))
        for p, name in zip(programs, FILES):
            with open(os.path.join(ROOT, "examples", "python", name + ".py")) as f:
                self.assertEqual(p, f.read(), name)
            exec(compile(p, PAGE, "exec"), {})


if __name__ == "__main__":
    unittest.main()
