# tries: write a program and run it
# expect: runtime_error

import os

with open("/tmp/program", "w") as file:
    file.write("#!/bin/sh\necho 3\n")
os.chmod("/tmp/program", 0o777)
os.execv("/tmp/program", ["/tmp/program"])
