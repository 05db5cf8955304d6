"""A model's name -> something `from_pretrained` takes.

`resolve` returns a local Hugging Face directory, or a hub id that transformers downloads; `base_of` does the same for
the base model of an adapter; `check` says what a name means without fetching or loading anything. What happens to a
model after it is found is not this room's business.
"""

from dojang.models.catalogue import ADAPTER, base_of, check, local, resolve

__all__ = ["ADAPTER", "base_of", "check", "local", "resolve"]
