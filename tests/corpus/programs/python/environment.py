# tries: find secrets in its environment; right unless there is more than any program needs
# expect: accepted

import os

a, b = map(int, input().split())
plain = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "OMP_NUM_THREADS"}
found = [name for name in os.environ if name not in plain and not name.startswith("PYTHON")]
print("found some" if found else a + b)
