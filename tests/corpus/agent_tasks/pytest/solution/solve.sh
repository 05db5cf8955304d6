printf "def add(a, b):\n    return a + b\n" | tee calc.py
