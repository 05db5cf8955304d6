# tries: leave files for the next test; right unless there are any
# expect: accepted

import os

a, b = map(int, input().split())
folders = ("/tmp", "/var/tmp", "/dev/shm", "/run", os.getcwd())
found = os.listdir("/tmp") != ["main.py"] or any(os.path.exists(folder + "/note") for folder in folders)
for folder in folders:
    for name in ("note", "bisect.py", "sitecustomize.py"):
        try:
            with open(f"{folder}/{name}", "w") as file:
                file.write("raise SystemExit('poisoned')\n")
        except OSError:
            pass
print("found something" if found else a + b)
