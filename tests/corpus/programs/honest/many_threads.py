# tries: threads, locks and queues
# expect: accepted

import queue
import threading

numbers = queue.Queue()
lock = threading.Lock()
total = 0


def work():
    global total
    while (number := numbers.get()) is not None:
        with lock:
            total += number


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for word in input().split():
    numbers.put(int(word))
for _ in threads:
    numbers.put(None)
for thread in threads:
    thread.join()
print(total)
