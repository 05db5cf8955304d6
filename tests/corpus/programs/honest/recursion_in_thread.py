# tries: the idiom for deep recursion: a thread with a large stack
# expect: accepted

import sys
import threading

sys.setrecursionlimit(1 << 25)
threading.stack_size(64 * 1024 * 1024)


def down(n):
    return 0 if n == 0 else down(n - 1)


def main():
    a, b = map(int, input().split())
    print(a + b + down(50_000))


thread = threading.Thread(target=main)
thread.start()
thread.join()
