"""dojang-tiny-lake, the pretrained model of quickstart-frozen-lake. scripts/make_tiny_lake_model.py makes it."""
