"""Config.json of a GGUF file: llama.cpp's metadata in transformers' keys, for the families of the torch engine.

Loads no torch, so that a plan or a dry run can read the shape of a file that is not converted yet. Settings that
llama.cpp has in its code rather than in the file are here too, with their source.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dojang.core.errors import ModelError
from dojang.engine.architectures import FAMILIES
from dojang.models.gguf_file import GgufFile, refuse_wrong_metadata

__all__ = ["ARCHITECTURES", "EMBEDDING", "HEAD", "config_of", "generation_of", "is_tied", "read_gguf_config"]

ARCHITECTURES: Mapping[str, str] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "smollm3": "smollm3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
"""The model_type of transformers by llama.cpp's architecture. Mistral is a llama there."""
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_CONTROL = 3
"""Type of tokens that are not text."""
_END_TOKENS = {
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<|end|>", "<end_of_turn>", "<eos>", "</s>"),
}
"""Tokens that end an answer by their text: a file names one of them only (llama.cpp's list, for these families)."""
_LLAMA3_LOW, _LLAMA3_HIGH = 1.0, 4.0
"""Frequency factors of all published models with llama3 scaling."""
_WIDE_SCALE = {("gemma2", 46), ("gemma3", 62)}
"""Models of 27B, by their number of layers: attention scores are scaled by the hidden size per head (llama.cpp)."""
_WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6}
"""Every n-th layer has full attention (llama.cpp's default; the file may say otherwise)."""


def read_gguf_config(path: Path) -> dict[str, Any]:
    """Reads the config.json that a GGUF file is converted to."""
    file = GgufFile(path)
    with refuse_wrong_metadata(path):
        return config_of(file, tied=is_tied(file))


def config_of(file: GgufFile, *, tied: bool) -> dict[str, Any]:
    """Makes the config.json. Raises ModelError for an architecture that cannot be converted."""
    kind = _model_type(file)
    family = FAMILIES[kind]
    heads, hidden = _same(file, "attention.head_count"), file.require("embedding_length")
    config: dict[str, Any] = {
        "architectures": [family.causal_lm],
        "model_type": kind,
        "dtype": "bfloat16",
        "vocab_size": _vocabulary(file),
        "hidden_size": hidden,
        "intermediate_size": _same(file, "feed_forward_length"),
        "num_hidden_layers": _layers(file),
        "num_attention_heads": heads,
        "num_key_value_heads": _same(file, "attention.head_count_kv", heads),
        "head_dim": _head_dim(file, hidden // heads),
        "max_position_embeddings": file.require("context_length"),
        "rms_norm_eps": _rounded(file.require("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": tied,
        family.activation_key: family.activation,
        "rope_parameters": _rope(file),
        **{f"{name}_token_id": _token(file, name) for name in ("bos", "eos", "pad")},
    }
    if kind in ("llama", "smollm3"):
        config["attention_bias"] = "blk.0.attn_output.bias" in file.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    return config | _special(file, kind, config)


def is_tied(file: GgufFile) -> bool:
    """Whether embedding and output head are the same weights, possibly in different precision.

    Two quantizations of one matrix differ by a few percent (7% for Q4_K and Q6_K), two different matrices by more than
    100%. The bound is that of the coarser one: about 2.5 times 2 to the power of minus its bits.
    """
    if HEAD not in file.tensors:
        return True
    embedding, head = file.tensors[EMBEDDING], file.tensors[HEAD]
    if embedding.shape != head.shape:
        return False
    stop = min(embedding.rows, 4096)
    first, second = (file.rows(each, 0, stop) for each in (embedding, head))
    difference = float(np.linalg.norm(first - second) / max(float(np.linalg.norm(second)), 1e-30))
    return difference <= 2.5 * 2.0 ** -int(min(embedding.bits, head.bits))


def generation_of(file: GgufFile) -> dict[str, Any]:
    """Makes the generation_config.json: an answer ends with its turn, or with the text."""
    tokens, kinds = (file.metadata.get(f"tokenizer.ggml.{key}", ()) for key in ("tokens", "token_type"))
    ends = [_token(file, name) for name in ("eos", "eot", "eom")]
    both = enumerate(zip(tokens, kinds, strict=False))
    ends += [number for number, (token, kind) in both if kind == _CONTROL and token in _END_TOKENS]
    known = list(dict.fromkeys(each for each in ends if each is not None))
    others = {f"{name}_token_id": _token(file, name) for name in ("bos", "pad")}
    return {**others, "eos_token_id": known[0] if len(known) == 1 else known or None}


def _model_type(file: GgufFile) -> str:
    kind = ARCHITECTURES.get(file.architecture)
    if kind is None:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{file.path} has the architecture {file.architecture!r}; those that can be read: {known}")
    experts, window = file.get("expert_count", 0), file.get("attention.sliding_window", 0)
    if bool(experts) != FAMILIES[kind].experts:
        raise ModelError(
            f"{file.path} has {experts} experts in a model of architecture {file.architecture!r}; mixtures of experts "
            "are read for qwen3moe only"
        )
    if kind == "olmo2" and window:
        raise ModelError(f"{file.path} is an OLMo 3 (olmo2 with sliding windows), which cannot be read")
    return "mistral" if kind == "llama" and window else kind


def _same(file: GgufFile, key: str, default: int | None = None) -> int:
    """Returns a number that the file has once, or once per layer."""
    found = file.require(key) if default is None else file.get(key, default)
    values = set(found) if isinstance(found, list) else {found}
    if len(values) != 1:
        raise ModelError(f"{file.path} has layers of different {key}, which no supported family has")
    return int(values.pop())


def _layers(file: GgufFile) -> int:
    # A damaged number would have transformers build layers until the memory is full.
    layers = int(file.require("block_count"))
    if layers > len(file.tensors):
        raise ModelError(
            f"{file.path} has {layers:,} layers by its metadata, but only {len(file.tensors):,} tensors; download it "
            "again"
        )
    return layers


def _vocabulary(file: GgufFile) -> int:
    """Rows of the embedding: the tokenizer may have fewer tokens."""
    if (tensor := file.tensors.get(EMBEDDING)) is None:
        raise ModelError(f"{file.path} has no {EMBEDDING}: it is no language model, or only a part of one")
    return tensor.shape[0]


def _head_dim(file: GgufFile, default: int) -> int:
    rotated = file.get("rope.dimension_count") if file.architecture == "llama" else None  # old files have this only
    return int(file.get("attention.key_length") or rotated or default)


def _token(file: GgufFile, name: str) -> int | None:
    found = file.metadata.get(f"tokenizer.ggml.{'padding' if name == 'pad' else name}_token_id")
    return None if found is None else int(found)


def _rounded(value: float) -> float:
    """The file has float32: gives back the 1e-05 that was written, not 9.99999974e-06."""
    return float(f"{value:.6g}")


def _rope(file: GgufFile) -> dict[str, Any]:
    theta = _rounded(file.get("rope.freq_base", 10000.0))
    kind = file.get("rope.scaling.type", "none")
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if "rope_freqs.weight" in file.tensors:
        return found | _llama3(file, theta)
    if "rope_factors_long.weight" in file.tensors:
        both = {f"{name}_factor": _numbers(file, f"rope_factors_{name}.weight") for name in ("short", "long")}
        return found | both | {"rope_type": "longrope"}
    if kind in ("none", ""):
        return found
    if kind not in ("linear", "yarn"):
        raise ModelError(f"{file.path} scales its rotary embedding by {kind!r}, but does not say how")
    found |= {"rope_type": kind, "factor": _rounded(file.require("rope.scaling.factor"))}
    if kind == "yarn":
        found["original_max_position_embeddings"] = file.require("rope.scaling.original_context_length")
        names = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow", "attention_factor": "yarn_attn_factor"}
        given = {ours: file.get(f"rope.scaling.{theirs}") for ours, theirs in names.items()}
        found |= {ours: _rounded(value) for ours, value in given.items() if value is not None}
    return found


def _numbers(file: GgufFile, name: str) -> list[float]:
    return [_rounded(value) for value in file.values(name).tolist()]


def _llama3(file: GgufFile, theta: float) -> dict[str, Any]:
    """Settings of llama3 scaling. The file has the factor of each frequency only: tries original context lengths."""
    factors = file.values("rope_freqs.weight").astype(np.float64)
    size = 2 * len(factors)
    wavelengths = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    factor = _rounded(float(factors.max()))
    for context in (8192, *(2**power for power in range(4, 21))):
        smooth = (context / wavelengths - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
        middle = 1 / ((1 - smooth) / factor + smooth)
        tried = np.where(wavelengths < context / _LLAMA3_HIGH, 1.0, middle)
        tried = np.where(wavelengths > context / _LLAMA3_LOW, factor, tried)
        if np.allclose(tried, factors, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LLAMA3_LOW,
                "high_freq_factor": _LLAMA3_HIGH,
                "original_max_position_embeddings": context,
            }
    raise ModelError(f"{file.path} scales its rotary frequencies (rope_freqs.weight) in a way that no Llama 3 does")


def _special(file: GgufFile, kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that only some families have."""
    window = file.get("attention.sliding_window") or None
    match kind:
        case "mistral":
            return {"sliding_window": window}
        case "smollm3":
            return {"no_rope_layer_interval": 4}  # llama.cpp: n_no_rope_layer_step
        case "phi3":
            return {"sliding_window": window, **_phi3(file, config)}
        case "qwen3_moe":
            return _experts(file)
        case "gemma2" | "gemma3_text":
            return _gemma(file, config, window)
        case _:
            return {}


def _phi3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    rotated = file.get("rope.dimension_count", config["head_dim"])
    rope = dict(config["rope_parameters"]) | {"partial_rotary_factor": rotated / config["head_dim"]}
    original = file.get("rope.scaling.original_context_length", config["max_position_embeddings"])
    return {"original_max_position_embeddings": original, "rope_parameters": rope}


def _experts(file: GgufFile) -> dict[str, Any]:
    return {
        "num_experts": file.require("expert_count"),
        "num_experts_per_tok": file.require("expert_used_count"),
        "moe_intermediate_size": file.require("expert_feed_forward_length"),
        "norm_topk_prob": True,  # as llama.cpp computes it
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gemma(file: GgufFile, config: Mapping[str, Any], window: int | None) -> dict[str, Any]:
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    is_wide = (file.architecture, layers) in _WIDE_SCALE
    found = {
        "query_pre_attn_scalar": config["hidden_size"] // heads if is_wide else config["head_dim"],
        "sliding_window": window,
        "layer_types": [
            "sliding_attention" if window and windowed else "full_attention" for windowed in _windows(file, layers)
        ],
        "final_logit_softcapping": file.get("final_logit_softcapping"),
    }
    if file.architecture == "gemma2":
        return found | {"attn_logit_softcapping": file.get("attn_logit_softcapping")}
    local = {"rope_type": "default", "rope_theta": _rounded(file.get("rope.freq_base_swa", 10000.0))}
    return found | {"rope_parameters": {"sliding_attention": local, "full_attention": config["rope_parameters"]}}


def _windows(file: GgufFile, layers: int) -> list[bool]:
    """Whether each layer has a sliding window."""
    pattern = file.get("attention.sliding_window_pattern", _WINDOW_PERIOD[file.architecture])
    if isinstance(pattern, list):
        return [bool(each) for each in pattern[:layers]]
    return [(layer + 1) % pattern != 0 for layer in range(layers)]
