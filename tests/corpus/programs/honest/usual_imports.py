# tries: what most solutions import
# expect: accepted

import bisect
import collections
import copy
import functools
import heapq
import itertools
import operator
import random
import re
import string
import time
from collections import Counter, OrderedDict, defaultdict, deque

numbers = deque(map(int, re.findall(r"-?\d+", input())))
heap = list(numbers)
heapq.heapify(heap)
random.seed(time.time())
random.shuffle(heap)
table = defaultdict(int, {key: value for key, value in OrderedDict(enumerate(heap)).items()})
assert Counter(heap) == Counter(copy.copy(numbers)) and bisect.bisect([1, 2], 1) == 1 and string.digits
assert list(itertools.accumulate(heap))[-1] == sum(heap)
print(functools.reduce(operator.add, table.values()), *collections.deque())
