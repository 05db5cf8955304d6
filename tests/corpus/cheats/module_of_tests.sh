# tries: put a cases.py beside the solution
# task: calc
echo 'CASES = []' > cases.py
