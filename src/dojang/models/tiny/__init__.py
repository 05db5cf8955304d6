"""dojang-tiny, the pretrained model of the quickstart, in the package. scripts/make_tiny_model.py makes it."""
