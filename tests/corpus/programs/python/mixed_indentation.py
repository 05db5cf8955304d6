# tries: indent with tabs and blanks
# expect: compile_error
# expand: TAB = "\t"

if True:
        a, b = map(int, input().split())
TABprint(a + b)
