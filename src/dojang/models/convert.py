"""Converts a GGUF of SmolLM2 to a Hugging Face directory: weights in bfloat16, configuration, tokenizer.

The weights have the layout of any llama model; the pre-tokenizer is SmolLM2's, since a GGUF only names it. This module
loads torch, so import it only to convert.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["convert"]

_CONTROL_TOKEN = 3  # GGUF's type for tokens that are not text: <|im_start|> and the like


def convert(path: Path, directory: Path) -> None:
    """Writes the model of the file `path`, whose checksum was verified, into the existing, empty `directory`."""
    gguf = GGUFReader(path)
    values = {key: field.contents() for key, field in gguf.fields.items()}
    config = _config(values, tied=all(tensor.name != "output.weight" for tensor in gguf.tensors))
    config.save_pretrained(directory)
    GenerationConfig.from_model_config(config).save_pretrained(directory)
    _tokenizer(values).save_pretrained(directory)
    save_file(_weights(gguf, config), directory / "model.safetensors", metadata={"format": "pt"})
    # safetensors writes files that only their owner can read; several users may share a cache.
    shutil.copymode(directory / "config.json", directory / "model.safetensors")


def _config(values: dict[str, Any], *, tied: bool) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=len(values["tokenizer.ggml.tokens"]),
        hidden_size=values["llama.embedding_length"],
        intermediate_size=values["llama.feed_forward_length"],
        num_hidden_layers=values["llama.block_count"],
        num_attention_heads=values["llama.attention.head_count"],
        num_key_value_heads=values["llama.attention.head_count_kv"],
        max_position_embeddings=values["llama.context_length"],
        # Stored as float32: rounding gives back the 1e-05 that was written, not 9.99999974e-06.
        rms_norm_eps=float(f"{values['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": values["llama.rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=values["tokenizer.ggml.bos_token_id"],
        eos_token_id=values["tokenizer.ggml.eos_token_id"],
        pad_token_id=values["tokenizer.ggml.padding_token_id"],
    )


def _weights(gguf: GGUFReader, config: LlamaConfig) -> dict[str, torch.Tensor]:
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    ours = {names.get_name(name, (".weight",)): name for name in model.state_dict()}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads or config.num_attention_heads}
    weights = {}
    for tensor in gguf.tensors:
        part = tensor.name.removesuffix(".weight").rpartition(".")[2]
        values = dequantize(tensor.data, tensor.tensor_type)
        if part in heads:
            values = _unpermute(values, heads[part])
        weights[ours[tensor.name]] = torch.tensor(values).to(torch.bfloat16)
    return weights


def _unpermute(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reverts llama.cpp's permutation of query and key rows.

    Rotary embedding rotates pairs of rows. llama.cpp stores the rows of a pair next to each other within a head;
    transformers stores all first rows, then all second rows.
    """
    pairs = values.reshape(heads, -1, 2, values.shape[1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _tokenizer(values: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens = values["tokenizer.ggml.tokens"]
    kinds = values["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ", 1)) for pair in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers types this one only in part
        tokenizer_object=tokenizer,
        bos_token=tokens[values["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[values["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[values["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[values["tokenizer.ggml.unknown_token_id"]],
        chat_template=values["tokenizer.chat_template"],
        model_max_length=values["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
