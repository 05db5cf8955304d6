"""Converts a GGUF file to a Hugging Face directory: weights in bfloat16, configuration, tokenizer.

Undoes what llama.cpp's conversion changed: names, the order of rotary rows of queries and keys, norms that include
their offset, experts in one tensor. Weights are decoded in blocks by threads and written shard by shard, so memory
holds one shard, not the model. This module loads torch, so import it only to convert.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from dojang.core.errors import ModelError
from dojang.engine.architectures import FAMILIES, Family
from dojang.models.gguf_config import EMBEDDING, HEAD, config_of, generation_of, is_tied
from dojang.models.gguf_file import GgufFile, GgufTensor, refuse_wrong_metadata
from dojang.models.gguf_tokenizer import tokenizer_of

__all__ = ["convert"]

SHARD_BYTES = 1_000_000_000
"""Largest weight file; a larger tensor is alone in its file."""
_BLOCK = 1 << 20
"""Weights that a thread decodes at once."""
_TOP = {EMBEDDING: "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", HEAD: "lm_head.weight"}
_IN_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_ROTATED = ("llama", "smollm3")
"""Architectures whose rotary rows llama.cpp reorders."""

Progress = Callable[[int, int], None]
"""Called with the number of tensors written, and of all."""


def convert(path: Path, directory: Path, *, tied: bool | None = None, progress: Progress | None = None) -> None:
    """Writes the model of a GGUF file into an existing, empty directory.

    `tied`: whether the model ties its embedding and its output head. A file may hold both for a tied model, in
    different precision: then the more precise one is written. None: tied if the file has one of them, or two that
    are equal within the error of their quantization.
    """
    file = GgufFile(path)
    with refuse_wrong_metadata(path):
        tied = is_tied(file) if tied is None else tied
        config = config_of(file, tied=tied)
        # Without a version, transformers takes the tokenizer for one of an old Mistral, and warns of it.
        version = {"transformers_version": transformers.__version__}
        _write_json(directory / "config.json", config | version)
        _write_json(directory / "generation_config.json", generation_of(file) | version)
        tokenizer_of(file).save_pretrained(directory)
        targets = _targets(file, config, tied=tied)
        _check(file, config, directory, targets)
    _write_weights(file, directory, targets, progress)
    for each in directory.iterdir():  # safetensors writes files that only their owner can read; caches are shared
        shutil.copymode(directory / "config.json", each)


@dataclass(frozen=True, slots=True)
class _Target:
    """A tensor of the Hugging Face directory, and the rows of the file that it is made of."""

    name: str
    source: GgufTensor
    shape: tuple[int, ...]
    first_row: int = 0
    offset: float = 0.0
    """Added to the values of the file."""
    rotary_heads: int = 0
    """Number of heads whose rows llama.cpp reordered; 0: none."""

    @property
    def bytes(self) -> int:
        return 2 * int(np.prod(self.shape))


def _targets(file: GgufFile, config: Mapping[str, Any], *, tied: bool) -> list[_Target]:
    family = FAMILIES[config["model_type"]]
    names = _layer_names(family)
    targets: list[_Target] = []
    for tensor in file.tensors.values():
        if tensor.name in _IN_CONFIG:
            continue
        if tied and tensor.name in (EMBEDDING, HEAD):
            both = [file.tensors[name] for name in (EMBEDDING, HEAD) if name in file.tensors]
            if tensor is max(both, key=lambda each: each.bits):
                targets.append(_Target(_TOP[EMBEDDING], tensor, tensor.shape))
        else:
            targets += _target(file, tensor, names, config)
    return targets


def _layer_names(family: Family) -> dict[str, str]:
    """Names of a layer's modules by llama.cpp's."""
    names = {
        "attn_norm": family.norm_before_attention,
        "post_attention_norm": family.norm_after_attention,
        "ffn_norm": family.norm_before_mlp,
        "post_ffw_norm": family.norm_after_mlp,
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "ffn_gate_inp": "mlp.gate",
        **{f"ffn_{part}_exps": f"mlp.experts.*.{part}_proj" for part in ("gate", "up", "down")},
    }
    if len(family.qkv) == 1:
        names["attn_qkv"] = family.qkv[0]
    if len(family.gate_up) == 1:
        names["ffn_up"] = family.gate_up[0]
    return {theirs: ours for theirs, ours in names.items() if ours is not None}


def _target(
    file: GgufFile, tensor: GgufTensor, names: Mapping[str, str], config: Mapping[str, Any]
) -> Iterator[_Target]:
    """Targets of a tensor: one, or one per expert."""
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", tensor.name)
    part = found[2] if found else ""
    if found is None and tensor.name in _TOP:
        name = _TOP[tensor.name]
    elif found is not None and part in names:
        name = f"model.layers.{found[1]}.{names[part]}.{found[3]}"
    else:
        raise ModelError(
            f"{file.path} has the tensor {tensor.name}, which a {config['model_type']} model does not have; it may "
            "belong to a variant of the architecture that cannot be read"
        )
    offset = -FAMILIES[config["model_type"]].norm_offset if name.endswith("norm.weight") else 0.0
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    rotary = heads.get(part, 0) if file.architecture in _ROTATED else 0
    if "*" not in name:
        yield _Target(name, tensor, tensor.shape, offset=offset, rotary_heads=rotary)
        return
    experts, *shape = tensor.shape
    for expert in range(experts):
        yield _Target(name.replace("*", str(expert)), tensor, tuple(shape), first_row=expert * shape[0])


def _check(file: GgufFile, config: Mapping[str, Any], directory: Path, targets: list[_Target]) -> None:
    """Raises ModelError unless the weights are exactly those of the model that transformers builds."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))  # type: ignore[no-untyped-call]
    wanted: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.state_dict().items():
        wanted |= _unfused(name, tuple(tensor.shape))
    if config["tie_word_embeddings"]:
        wanted.pop("lm_head.weight", None)
    given = {each.name: each.shape for each in targets}
    if missing := sorted(wanted.keys() - given.keys()):
        raise ModelError(f"{file.path} lacks {len(missing)} weights of the model, such as {missing[0]}")
    for name, shape in given.items():
        if shape != wanted.get(name):
            raise ModelError(f"{file.path}: {name} has shape {shape}, but the model wants {wanted.get(name)}")


def _unfused(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Weights on disk of a weight in memory: transformers has the experts of a layer in two tensors."""
    found = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name)
    if found is None:
        return {name: shape}
    experts, rows, columns = shape
    parts = {"gate": rows // 2, "up": rows // 2} if found[2] == "gate_up" else {"down": rows}
    return {
        f"{found[1]}.{expert}.{part}_proj.weight": (size, columns)
        for expert in range(experts)
        for part, size in parts.items()
    }


def _write_weights(file: GgufFile, directory: Path, targets: list[_Target], progress: Progress | None) -> None:
    shards = list(_shards(targets))
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    done = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "dequantize") as pool:
        for name, shard in zip(names, shards, strict=True):
            weights = {}
            for target in shard:
                weights[target.name] = _decode(file, target, pool)
                done += 1
                if progress is not None:
                    progress(done, len(targets))
            save_file(weights, directory / name, metadata={"format": "pt"})
    if len(shards) > 1:
        index = {target.name: name for name, shard in zip(names, shards, strict=True) for target in shard}
        size = sum(target.bytes for target in targets)
        _write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": index})


def _shards(targets: list[_Target]) -> Iterator[list[_Target]]:
    shard: list[_Target] = []
    for target in targets:
        if shard and sum(each.bytes for each in shard) + target.bytes > SHARD_BYTES:
            yield shard
            shard = []
        shard.append(target)
    yield shard


def _decode(file: GgufFile, target: _Target, pool: ThreadPoolExecutor) -> torch.Tensor:
    """Decodes a tensor to bfloat16, in blocks of rows."""
    columns = target.shape[-1]
    rows = int(np.prod(target.shape[:-1]))
    found = torch.empty(rows, columns, dtype=torch.bfloat16)
    step = max(1, _BLOCK // columns)

    def decode(start: int) -> None:
        stop = min(start + step, rows)
        values = file.rows(target.source, target.first_row + start, target.first_row + stop)
        if target.offset:
            values = values + np.float32(target.offset)
        found[start:stop] = torch.tensor(values)

    list(pool.map(decode, range(0, rows, step)))
    return _unpermute(found.reshape(target.shape), target.rotary_heads)


def _unpermute(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Reverts llama.cpp's permutation of query and key rows.

    Rotary embedding rotates pairs of rows. llama.cpp stores the rows of a pair next to each other within a head;
    transformers stores all first rows, then all second rows.
    """
    if not heads:
        return values
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
