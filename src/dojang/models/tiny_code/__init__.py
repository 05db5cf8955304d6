"""dojang-tiny-code, the pretrained model of the quickstart that writes programs, shipped with the package.

`corpus.py` writes what it has read, `make.py` trains it, and the other files are the result.
"""
