cat > main.py <<"END"
import math, sys
print(math.prod(map(int, sys.stdin)))
END
