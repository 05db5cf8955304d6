"""`python -m dojang` is `dojang`."""

from dojang.commands import main

main()
