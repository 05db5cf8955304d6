# tries: leave a folder inside a folder that nobody may enter; right unless the judge stumbles
# expect: accepted

import os

os.makedirs("outer")
os.mkdir("outer/inner", 0)
print(sum(map(int, input().split())))
