import os
import re
import unittest

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "python.md")


class Docs(unittest.TestCase):
    def test_programs(self):
        """Each program of the page runs."""
        with open(PAGE) as f:
            programs = re.findall(r"```python\n(.*?)```", f.read(), re.S)
        self.assertEqual(len(programs), 7)
        for p in programs:
            exec(compile(p, PAGE, "exec"), {})


if __name__ == "__main__":
    unittest.main()
