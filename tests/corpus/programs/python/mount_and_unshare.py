# tries: leave its namespaces by calls of its own; right only if one works
# expect: wrong | runtime_error

import ctypes

a, b = map(int, input().split())
library = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER = 0x10000000
worked = library.unshare(CLONE_NEWUSER) == 0
worked = library.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 or worked
worked = library.chroot(b"/tmp") == 0 or worked
print(a + b if worked else "denied")
