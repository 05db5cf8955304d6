"""dojang-tiny, the pretrained model of the quickstart, shipped with the package.

`corpus.py` writes what it has read, `make.py` trains it, and the other files are the result.
"""
