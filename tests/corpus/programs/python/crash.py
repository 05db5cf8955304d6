# tries: answer, then crash the interpreter
# expect: runtime_error(SIGSEGV)

import faulthandler

a, b = map(int, input().split())
print(a + b, flush=True)
faulthandler._sigsegv()
