# tries: run another program
# expect: runtime_error

import subprocess

print(subprocess.run(["/bin/echo", "3"], capture_output=True, text=True, check=True).stdout)
