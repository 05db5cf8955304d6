"""dojang-tiny, the pretrained model of the quickstart, shipped with the package.

corpus   generates its pretraining corpus
make     pretrains it; the other files are the result
"""
