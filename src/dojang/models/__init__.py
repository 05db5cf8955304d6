"""A model's name -> something `from_pretrained` takes.

`resolve` returns a local Hugging Face directory, or a hub id that transformers downloads; `check` says what a
name means without fetching or loading anything. What happens to a model after it is found is not this room's
business.
"""

from dojang.models.catalogue import check, local, resolve

__all__ = ["check", "local", "resolve"]
