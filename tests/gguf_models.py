"""Writes models as llama.cpp's conversion does (its conversion/*.py), with the gguf library: what `convert` undoes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from tokenizers import pre_tokenizers

ARCHITECTURE = {"mistral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
BYTES = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}
"""Where blocks of 256 weights have their scales, in float16."""


def packed(values: np.ndarray, kind: Kind, seed: int = 0) -> np.ndarray:
    """Quantized rows. The library has no quantizer for K-quants: those are blocks of random bits, with small scales."""
    if kind not in BYTES:
        return gguf.quantize(values, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(seed).integers(0, 256, (values.size // block, size), np.uint8)
    for number, start in enumerate(BYTES[kind]):
        scale = {Kind.Q6_K: 1e-4, Kind.Q3_K: 2e-3}.get(kind, 1e-3) * (1 + number)
        blocks[:, start : start + 2] = np.float16([scale]).view(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def quantize_model(model: torch.nn.Module, kind: Kind) -> dict[str, np.ndarray]:
    """Gives the model weights that a kind can hold; returns the packed matrices by name."""
    found = {}
    for number, (name, weight) in enumerate(model.named_parameters()):
        if weight.dim() > 1:
            found[name] = packed(weight.detach().numpy(), kind, number)
            weight.data = torch.tensor(gguf.dequantize(found[name], kind)).reshape(weight.shape)
        weight.data = weight.data.to(torch.bfloat16).float()
        if kind == Kind.F32 and name in found:
            found[name] = weight.detach().numpy()
    return found


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_model(
    path: Path,
    model: Any,
    kind: Kind = Kind.F32,
    tokens: Callable[[GGUFWriter, int], None] | None = None,
    **extra: np.ndarray,
) -> Path:
    """Writes a model of transformers to a GGUF file, and rounds its weights to what the file holds."""
    config, matrices = model.config, quantize_model(model, kind)
    architecture = ARCHITECTURE.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, architecture)
    write_settings(writer, config, architecture)
    (tokens or write_tokens)(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.named_parameters():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values, own = matrices.get(name, weight.detach().numpy()), kind
        if name not in matrices:
            own = Kind.F32
            values = values + (1.0 if architecture.startswith("gemma") and name.endswith("norm.weight") else 0.0)
        part = name.split(".")[-2]
        if architecture in ("llama", "smollm3") and part in heads:
            values = permute(values, heads[part])
        if name.endswith("experts.gate_up_proj"):
            for each, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                stem = name.replace("gate_up_proj", f"{each}_proj")
                writer.add_tensor(f"{names.get_name(stem)}.weight", half, raw_dtype=own)
        else:
            theirs = names.get_name(name, (".weight", ".bias"))
            theirs = f"{names.get_name(name)}.weight" if theirs is None or "experts" in name else theirs
            writer.add_tensor(theirs, np.ascontiguousarray(values), raw_dtype=own)
    for name, values in extra.items():
        writer.add_tensor(name.replace("__", "."), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_settings(writer: GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if getattr(config, "head_dim", None):
        writer.add_key_length(head)
        writer.add_value_length(head)
    if architecture in ("llama", "smollm3"):
        writer.add_rope_dimension_count(head)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    write_family(writer, config, architecture, head, rope)


def write_family(writer: GGUFWriter, config: Any, architecture: str, head: int, rope: dict[str, Any]) -> None:
    if architecture == "phi3":
        writer.add_rope_dimension_count(int(head * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_sliding_window(config.sliding_window or 0)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture.startswith("gemma") or (config.model_type == "mistral" and config.sliding_window):
        writer.add_sliding_window(config.sliding_window)
    if architecture.startswith("gemma"):
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config.layer_types])
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)


def write_tokens(writer: GGUFWriter, size: int) -> None:
    """A byte-level vocabulary with two merges, filled up to the number of rows of the embedding."""
    known = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "ab"]
    tokens = [*known, *(f"[PAD{number}]" for number in range(len(known), size))]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(known) - 3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds + [gguf.TokenType.UNUSED] * (size - len(known)))
    writer.add_token_merges(["1 2", "a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
