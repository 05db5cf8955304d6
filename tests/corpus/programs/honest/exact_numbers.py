# tries: decimals, fractions and other numbers
# expect: accepted

import cmath
import math
import statistics
from decimal import Decimal, getcontext
from fractions import Fraction

getcontext().prec = 60
a, b = input().split()
total = Decimal(a) + Decimal(b)
assert Fraction(a) + Fraction(b) == Fraction(total)
assert math.isclose(statistics.fmean([float(a), float(b)]) * 2, float(total), abs_tol=1e-9)
assert cmath.isclose(cmath.exp(1j * math.pi), -1)
print(int(total))
