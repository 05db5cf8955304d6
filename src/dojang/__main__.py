"""`python -m dojang` is `dojang`."""

from dojang.cli import main

main()
