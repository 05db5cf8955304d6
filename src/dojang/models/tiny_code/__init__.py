"""dojang-tiny-code, the pretrained model of the quickstart that writes programs, shipped with the package.

corpus   generates its pretraining corpus
make     pretrains it; the other files are the result
"""
