# tries: leave by exit()
# expect: accepted

a, b = map(int, input().split())
if a < 0:
    print(a + b)
    quit()
print(a + b)
exit()
print("never reached")
