# tries: raise SystemExit while being imported
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

raise SystemExit(0)
