# tries: leave marks in the interpreter for the next test; right unless there are any
# expect: accepted

import builtins
import json
import os
import sys

found = hasattr(builtins, "mark") or hasattr(json, "mark") or "planted" in sys.modules or "MARK" in os.environ
a, b = map(int, input().split())
print("found a mark" if found else a + b)
sys.stdout.flush()
builtins.mark = json.mark = True
sys.modules["planted"] = json
os.environ["MARK"] = "1"
builtins.print = builtins.input = builtins.int = None
