"""dojang-tiny-code, the pretrained model of quickstart-code. scripts/make_tiny_code_model.py makes it."""
