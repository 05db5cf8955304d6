# tries: raise its own limits, then loop for ever
# expect: time_limit
# limits: cpu_s=0.1

import contextlib
import resource

for which in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
while True:
    pass
