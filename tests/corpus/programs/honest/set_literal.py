# tries: walk through a set that is a constant, in every test the same way
# expect: accepted
# input: "7 15\n"
# output: "7 15\n"
# input: "7 15\n"
# output: "7 15\n"
# input: "7 15\n"
# output: "7 15\n"

input()
print(*[x for x in {7, 15}])
