# tries: leave bytecode of a module of the tests that is never checked against its source
# task: calc
echo 'CASES = []' > evil.py; mkdir -p "$TESTS/__pycache__"
python3 -c 'import py_compile, sys, os; py_compile.compile("evil.py", os.environ["TESTS"] + f"/__pycache__/cases.{sys.implementation.cache_tag}.pyc", invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)'
