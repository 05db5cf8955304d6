# tries: compile a source nested very deeply
# expect: runtime_error

eval("(" * 100_000 + ")" * 100_000)
