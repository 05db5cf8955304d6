# tries: the same in pyproject.toml
# task: pytest
printf '[tool.pytest.ini_options]\naddopts = "--collect-only"\n' > pyproject.toml
