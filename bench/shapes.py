"""The models of benchmarks: by name, or shapes with random weights, on which speed does not depend."""

from copy import deepcopy

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
)

from dojang import models

COMMON = {"max_position_embeddings": 2048}
LLAMA_TINY = LlamaConfig(
    vocab_size=320,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    **COMMON,
)
LLAMA_20M = LlamaConfig(
    vocab_size=8192,
    hidden_size=384,
    intermediate_size=1024,
    num_hidden_layers=6,
    num_attention_heads=6,
    num_key_value_heads=2,
    tie_word_embeddings=False,
    **COMMON,
)
SMOLLM2_135M = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
    **COMMON,
)
QWEN25_05B = Qwen2Config(
    vocab_size=151936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    **COMMON,
)
QWEN3_06B = Qwen3Config(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=True,
    **COMMON,
)
RANDOM = {"random-20m": LLAMA_20M, "random-135m": SMOLLM2_135M}


def load(name: str, dtype: torch.dtype, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model that never ends by itself, and a tokenizer it can do with."""
    source = models.resolve("dojang-tiny" if name in RANDOM else name)
    model = random(RANDOM[name], device) if name in RANDOM else AutoModelForCausalLM.from_pretrained(source)
    model = model.to(device, dtype).eval()
    model.generation_config.eos_token_id = None
    return model, AutoTokenizer.from_pretrained(source)


def random(config: PreTrainedConfig, device: str) -> PreTrainedModel:
    """The same weights every time, in single precision."""
    torch.manual_seed(0)
    with torch.device(device):
        own = deepcopy(config)  # a model writes into its own
        model: PreTrainedModel = AutoModelForCausalLM.from_config(own, dtype=torch.float32)
    return model.eval()


def fast_dtype(device: str) -> torch.dtype:
    """Half precision wherever the machine is made for it."""
    fast = device == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast else torch.float32
