# tries: import what it must not use, without using it
# expect: accepted

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

a, b = map(int, input().split())
assert ctypes.sizeof(ctypes.c_int64) == 8 and socket.AF_INET and subprocess.PIPE and signal.SIGTERM
assert os.getpid() and multiprocessing.current_process().name and ProcessPoolExecutor and tempfile.gettempprefix()
with ThreadPoolExecutor(2) as pool:
    print(sum(pool.map(int, [a, b])))
