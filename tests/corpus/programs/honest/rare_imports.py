# tries: modules that are hardly ever loaded in advance
# expect: accepted

import argparse
import array
import calendar
import csv
import datetime
import difflib
import graphlib
import html
import io
import json
import shlex
import textwrap
import unittest
import xml.dom.minidom
import zlib

row = next(csv.reader(io.StringIO(input()), delimiter=" "))
numbers = array.array("q", json.loads(json.dumps([int(word) for word in row])))
document = xml.dom.minidom.parseString("<sum>%d</sum>" % sum(numbers))
assert zlib.decompress(zlib.compress(b"x")) == b"x" and shlex.split("a b") and textwrap.wrap("a b")
assert datetime.date(2024, 2, 29).year == 2024 and calendar.isleap(2024) and html.escape("<") == "&lt;"
assert difflib.SequenceMatcher(None, "ab", "ab").ratio() == 1.0 and issubclass(unittest.TestCase, object)
assert list(graphlib.TopologicalSorter({1: [2]}).static_order()) == [2, 1] and argparse.ArgumentParser()
print(document.documentElement.firstChild.data)
