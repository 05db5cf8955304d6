# tries: the same in setup.cfg
# task: pytest
printf '[tool:pytest]\naddopts = --collect-only\n' > setup.cfg
