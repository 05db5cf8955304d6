"""A toy made by transformers, stored the way llama.cpp stores it, and converted back."""

import pytest
import torch

from dojang.models import smollm2
from dojang.models.convert import convert

TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
TO_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def toy_metadata():
    from tokenizers import pre_tokenizers

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "ab"]
    return {
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.block_count": 2,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 128,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 100000.0,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in specials else 1 for token in tokens],
        "tokenizer.ggml.merges": ["1 2", "a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }


def permuted(weight, heads):
    """Rows in llama.cpp's order: the first of each rotary pair, then its partner half a head away."""
    half = weight.shape[0] // heads // 2
    rows = [head * 2 * half + i + j * half for head in range(heads) for i in range(half) for j in (0, 1)]
    return weight[rows]


@pytest.fixture
def toy(tmp_path, write_gguf, stored):
    """(the original model, the directory its GGUF was converted to)"""
    from transformers import LlamaConfig, LlamaForCausalLM

    metadata = toy_metadata()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    for weight in model.parameters():  # not model.to(bfloat16), which would round the rotary frequencies too
        weight.data = weight.data.to(torch.bfloat16).float()
    tensors = {}
    for name, weight in model.named_parameters():
        layer, part = "", name.removesuffix(".weight")
        if part.startswith("model.layers."):
            _, _, number, part = part.split(".", 3)
            layer = f"blk.{number}."
        values = weight.detach().numpy()
        if heads := {"attn_q": 4, "attn_k": 2}.get(TO_GGUF[part]):
            values = permuted(values, heads)
        tensors[f"{layer}{TO_GGUF[part]}.weight"] = stored(values.shape, 0, values.astype("<f4").tobytes())
    directory = tmp_path / "converted"
    directory.mkdir()
    convert(write_gguf(tmp_path / "toy.gguf", metadata, tensors), directory)
    return model, directory


def test_a_converted_toy_computes_the_same(toy):
    from transformers import AutoModelForCausalLM

    original, directory = toy
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    assert model.dtype == torch.bfloat16
    tokens = torch.arange(20)[None]
    assert torch.equal(model.float()(tokens).logits, original(tokens).logits)


def test_a_converted_toy_has_every_file_and_setting(toy):
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig

    _, directory = toy
    assert {path.name for path in directory.iterdir()} == {*smollm2.FILES, "chat_template.jinja"}
    assert len({path.stat().st_mode for path in directory.iterdir()}) == 1  # as readable as each other
    config = LlamaConfig.from_pretrained(directory)
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"]) == (1e-5, 1e5)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert GenerationConfig.from_pretrained(directory).eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab12<|im_end|>").input_ids) == [
        "ab",
        "1",
        "2",
        "<|im_end|>",
    ]
    assert tokenizer.chat_template == TEMPLATE
