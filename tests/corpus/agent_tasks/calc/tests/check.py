import os
import sys

sys.path.insert(0, os.getcwd())
import unittest

import calc
from cases import CASES


class Test(unittest.TestCase):
    def test_add(self):
        for a, b, expected in CASES:
            self.assertEqual(calc.add(a, b), expected)


unittest.main()
