# tries: delete all cases of the test
# task: calc
echo 'CASES = []' > "$TESTS/cases.py"
