# tries: a thousand threads
# expect: runtime_error | memory_limit

import threading
import time

for _ in range(1000):
    threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
time.sleep(1)
print("made too many")
