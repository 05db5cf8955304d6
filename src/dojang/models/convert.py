"""Converts a GGUF of SmolLM2 to a Hugging Face directory: weights in bfloat16, configuration, tokenizer.

The weights have the layout of any llama model; the pre-tokenizer is SmolLM2's, since a GGUF only names it. This module
loads torch, so import it only to convert.
"""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from dojang.core.errors import ModelError
from dojang.models.gguf import Floats, Gguf

__all__ = ["convert"]

_TOP = {
    "token_embd": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # GGUF's type for tokens that are not text: <|im_start|> and the like


def convert(gguf: Gguf, directory: Path) -> None:
    """Writes the model into the existing, empty `directory`."""
    config = _config(gguf)
    config.save_pretrained(directory)
    GenerationConfig.from_model_config(config).save_pretrained(directory)
    _tokenizer(gguf).save_pretrained(directory)
    save_file(_weights(gguf), directory / "model.safetensors", metadata={"format": "pt"})
    # safetensors writes files that only their owner can read; several users may share a cache.
    shutil.copymode(directory / "config.json", directory / "model.safetensors")


def _config(gguf: Gguf) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=len(gguf.value("tokenizer.ggml.tokens", list)),
        hidden_size=gguf.value("llama.embedding_length", int),
        intermediate_size=gguf.value("llama.feed_forward_length", int),
        num_hidden_layers=gguf.value("llama.block_count", int),
        num_attention_heads=gguf.value("llama.attention.head_count", int),
        num_key_value_heads=gguf.value("llama.attention.head_count_kv", int),
        max_position_embeddings=gguf.value("llama.context_length", int),
        # Stored as float32: rounding gives back the 1e-05 that was written, not 9.99999974e-06.
        rms_norm_eps=float(f"{gguf.value('llama.attention.layer_norm_rms_epsilon', float):.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": gguf.value("llama.rope.freq_base", float)},
        tie_word_embeddings="output.weight" not in gguf.tensors,
        bos_token_id=gguf.value("tokenizer.ggml.bos_token_id", int),
        eos_token_id=gguf.value("tokenizer.ggml.eos_token_id", int),
        pad_token_id=gguf.value("tokenizer.ggml.padding_token_id", int),
    )


def _weights(gguf: Gguf) -> dict[str, torch.Tensor]:
    heads = {
        "attn_q": gguf.value("llama.attention.head_count", int),
        "attn_k": gguf.value("llama.attention.head_count_kv", int),
    }
    weights = {}
    for name in gguf.tensors:
        part = name.removesuffix(".weight").rpartition(".")[2]
        values = gguf.tensor(name)
        if part in heads:
            values = _unpermute(values, heads[part])
        weights[_hub_name(gguf, name)] = torch.from_numpy(values).to(torch.bfloat16)
    return weights


def _hub_name(gguf: Gguf, name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match name.split("."):
        case [top, "weight"] if top in _TOP:
            return _TOP[top]
        case ["blk", layer, part, "weight"] if part in _LAYER:
            return f"model.layers.{layer}.{_LAYER[part]}.weight"
    raise ModelError(f"{gguf.path}: tensor {name!r} is not part of a llama model, so it cannot be converted")


def _unpermute(values: Floats, heads: int) -> Floats:
    """Reverts llama.cpp's permutation of query and key rows.

    Rotary embedding rotates pairs of rows. llama.cpp stores the rows of a pair next to each other within a head;
    transformers stores all first rows, then all second rows.
    """
    pairs = values.reshape(heads, -1, 2, values.shape[1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _tokenizer(gguf: Gguf) -> PreTrainedTokenizerFast:
    tokens = gguf.value("tokenizer.ggml.tokens", list)
    kinds = gguf.value("tokenizer.ggml.token_type", list)
    merges = [tuple(pair.split(" ", 1)) for pair in gguf.value("tokenizer.ggml.merges", list)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers types this one only in part
        tokenizer_object=tokenizer,
        bos_token=tokens[gguf.value("tokenizer.ggml.bos_token_id", int)],
        eos_token=tokens[gguf.value("tokenizer.ggml.eos_token_id", int)],
        pad_token=tokens[gguf.value("tokenizer.ggml.padding_token_id", int)],
        unk_token=tokens[gguf.value("tokenizer.ggml.unknown_token_id", int)],
        chat_template=gguf.value("tokenizer.chat_template", str),
        model_max_length=gguf.value("llama.context_length", int),
        clean_up_tokenization_spaces=False,
    )
