# tries: a pattern that tries everything
# expect: time_limit
# limits: cpu_s=0.1

import re

print(re.match(r"(a+)+$", "a" * 60 + "b"))
