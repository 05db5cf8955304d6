"""Sizes of a model from its config.json alone, without weights or torch.

A table has the models of shipped recipes, for machines without the hub. Decoders like Llama, Qwen2 and Qwen3 are
supported; other shapes are reported as unknown.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dojang import models
from dojang.core.errors import ModelError

__all__ = ["KNOWN", "Shape", "find_shape", "shape_of"]

_FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model that memory and time depend on."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    context: int
    tied: bool = False
    """Whether the output head shares the embedding's weights."""
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def queries(self) -> int:
        """Size of all query heads together."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """Input and output sizes of each projection of a layer: q, k, v, o, gate, up, down."""
        e, a, k, f = self.hidden, self.queries, self.keys, self.mlp
        return (e, a), (e, k), (e, k), (a, e), (e, f), (e, f), (f, e)

    @property
    def projected(self) -> int:
        """Number of weights in the projections of all layers."""
        return self.layers * sum(given * made for given, made in self.projections)

    @property
    def embedded(self) -> int:
        """Number of weights of the embedding, and of an untied head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        biases = self.queries + 2 * self.keys if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head if self.qk_norm else 0)
        return self.embedded + self.projected + self.layers * (biases + norms) + self.hidden

    @property
    def kv_numbers(self) -> int:
        """KV cache numbers of one token."""
        return 2 * self.layers * self.keys


_QWEN25_05B = Shape(896, 24, 14, 2, 64, 4864, 151936, 32768, tied=True, qkv_bias=True)
_DISTILL_7B = Shape(3584, 28, 28, 4, 128, 18944, 152064, 131072, qkv_bias=True)
KNOWN: Mapping[str, Shape] = {
    "smollm2-135m-instruct": Shape(576, 30, 9, 3, 64, 1536, 49152, 8192, tied=True),
    "Qwen/Qwen2.5-0.5B": _QWEN25_05B,
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN25_05B,
    "Qwen/Qwen3-8B": Shape(4096, 36, 32, 8, 128, 12288, 151936, 40960, qk_norm=True),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _DISTILL_7B,
    "models/codefu-7b-stage1": _DISTILL_7B,  # exported from stage 1 for codefu-7b-stage2
}
"""Shapes by the names in recipes."""


def find_shape(name: str) -> tuple[Shape | None, str]:
    """Shape of a model, if known, and its source."""
    try:
        directory = models.local(name)
    except ModelError:
        if name in KNOWN:
            return KNOWN[name], "the table of known shapes"
        raise
    if directory is not None:
        return _read(Path(directory) / "config.json"), "its config.json"
    if name in KNOWN:
        return KNOWN[name], "the table of known shapes"
    cached = _cached(name)
    if cached is not None:
        return _read(cached), "its config.json in the hub's cache"
    return None, "it is neither on this machine nor in the table of known shapes; download it, or give a directory"


def _read(path: Path) -> Shape | None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return shape_of(config)


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """Shape from a config.json; None for an unsupported family."""
    if config.get("model_type") not in _FAMILIES:
        return None
    kind, heads = config["model_type"], config["num_attention_heads"]
    return Shape(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or config["hidden_size"] // heads,
        mlp=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        tied=config.get("tie_word_embeddings", False),
        qkv_bias=kind == "qwen2" or config.get("attention_bias", False),
        qk_norm=kind == "qwen3",
    )


def _cached(name: str) -> Path | None:
    """Path of the model's config.json in the hub's cache, if it is there."""
    from huggingface_hub import try_to_load_from_cache  # takes a while to load

    found = try_to_load_from_cache(name, "config.json")
    return Path(found) if isinstance(found, str) else None
