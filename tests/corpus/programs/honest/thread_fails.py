# tries: let an exception escape from a thread, which does not concern the others
# expect: accepted

import threading


def fail():
    raise ValueError("of no importance")


a, b = map(int, input().split())
thread = threading.Thread(target=fail)
thread.start()
thread.join()
print(a + b)
