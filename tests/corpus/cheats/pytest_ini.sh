# tries: have a pytest.ini collect the tests without running them
# task: pytest
printf '[pytest]\naddopts = --collect-only\n' > pytest.ini
