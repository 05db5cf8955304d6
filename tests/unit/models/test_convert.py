"""Tiny models made by transformers, stored the way llama.cpp stores them, and converted back."""

import json
import math
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from dojang.core.errors import ModelError
from dojang.engine.architectures import support
from dojang.models import convert as convert_module
from dojang.models import gguf_config, read_config
from dojang.models.convert import convert
from dojang.models.gguf_file import GgufFile
from gguf_models import TEMPLATE, permute, write_model
from tiny_models import MODELS, SIZES, tiny_model

NOT_IN_GGUF = {
    "llama with llama3 rope",  # below
    "llama with gelu",
    "qwen2 with windows",
    "qwen3_moe without normalised weights",  # llama.cpp normalises
    "phi3 with longrope",  # below
}


def converted(tmp_path, model, *, tied=None, **options):
    """(the directory of a model's converted GGUF file)"""
    directory = tmp_path / "converted"
    directory.mkdir()
    convert(write_model(tmp_path / "model.gguf", model, **options), directory, tied=tied)
    return directory


def assert_same(directory, original):
    """The converted model has the original's logits, also beyond a sliding window."""
    from transformers import AutoModelForCausalLM

    loaded, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype="auto", output_loading_info=True, attn_implementation=original.config._attn_implementation
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert loaded.dtype == torch.bfloat16
    tokens = torch.arange(3, 43)[None]
    with torch.no_grad():
        found, expected = loaded.float()(tokens).logits, original(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def family(name):
    """A tiny model, changed to what llama.cpp's code has for all models of its family."""
    model = tiny_model(name)
    if name == "smollm3":
        from transformers import SmolLM3Config, SmolLM3ForCausalLM

        torch.manual_seed(0)
        model = SmolLM3ForCausalLM(SmolLM3Config(**{**SIZES, "num_hidden_layers": 4})).eval()
    if name == "qwen3_moe":
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        changed = {**model.config.to_dict(), "mlp_only_layers": []}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**changed)).eval()
        model.set_experts_implementation("eager")
    if name.startswith("gemma"):
        model.config.query_pre_attn_scalar = model.config.head_dim
        for layer in model.model.layers:
            layer.self_attn.scaling = model.config.head_dim**-0.5
    return model


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NOT_IN_GGUF])
def test_every_family_computes_the_same(name, tmp_path):
    model = family(name)
    directory = converted(tmp_path, model)
    assert_same(directory, model)
    config = json.loads((directory / "config.json").read_text())
    assert support(config).engine == "torch"
    assert config["tie_word_embeddings"] == model.config.tie_word_embeddings


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q5_0, Kind.Q4_1, Kind.Q4_0])
def test_quantizations(kind, tmp_path):
    model = tiny_model("llama")
    assert_same(converted(tmp_path, model, kind=kind), model)


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_k_quants(name, kind, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    sizes = {**SIZES, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    torch.manual_seed(0)
    config = {"llama": LlamaConfig, "qwen2": Qwen2Config}[name](**sizes, tie_word_embeddings=True)
    model = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM}[name](config).eval()
    assert_same(converted(tmp_path, model, kind=kind), model)


def llama3_factors(head, theta, factor, context):
    """As in llama.cpp."""
    factors = []
    for frequency in theta ** -(np.arange(0, head, 2) / head):
        length = 2 * math.pi / frequency
        smooth = (context / length - 1) / (4 - 1)
        middle = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1 if length < context / 4 else factor if length > context else middle)
    return np.float32(factors)


def test_llama3_scaling_computes_the_same(tmp_path):
    model = tiny_model("llama with llama3 rope")
    assert_same(converted(tmp_path, model, rope_freqs__weight=llama3_factors(8, 5e5, 8, 64)), model)


@pytest.mark.parametrize(("factor", "context"), [(8, 8192), (32, 8192), (4, 1024)])
def test_llama3_scaling_is_found_by_its_factors(factor, context):
    factors = llama3_factors(128, 5e5, factor, context)
    found = gguf_config._llama3(SimpleNamespace(path="m.gguf", values=lambda name: factors), 5e5)
    assert found == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": context,
    }


def test_other_factors_of_frequencies_are_refused(tmp_path):
    path = write_model(tmp_path / "m.gguf", tiny_model("llama"), rope_freqs__weight=np.float32([1, 3, 2, 5]))
    with pytest.raises(ModelError, match="in a way that no Llama 3 does"):
        read_config(str(path))


def test_longrope_factors_are_tensors(tmp_path):
    model = tiny_model("phi3 with longrope")
    rope = model.config.rope_parameters
    factors = {f"rope_factors_{each}__weight": np.float32(rope[f"{each}_factor"]) for each in ("short", "long")}
    directory = converted(tmp_path, model, **factors)
    assert_same(directory, model)


@pytest.mark.parametrize("rope", [{"rope_type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}])
def test_scaled_rotary_embeddings(rope, tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    full = {"rope_theta": 1e4, "original_max_position_embeddings": 64, **rope}
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_parameters=full)).eval()
    assert_same(converted(tmp_path, model), model)


def test_files_and_settings(tmp_path):
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig

    directory = converted(tmp_path, tiny_model("llama tied"))
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in directory.iterdir()} == {*names, "chat_template.jinja"}
    assert len({path.stat().st_mode for path in directory.iterdir()}) == 1  # as readable as each other
    config = LlamaConfig.from_pretrained(directory)
    assert config.rms_norm_eps == 1e-6
    assert config.transformers_version
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert GenerationConfig.from_pretrained(directory).eos_token_id == [2, 0]  # <|im_end|> and <|endoftext|>
    tokenizer = AutoTokenizer.from_pretrained(directory)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("ab12<|im_end|>").input_ids)
    assert pieces == ["ab", "1", "2", "<|im_end|>"]
    assert tokenizer.chat_template == TEMPLATE
    assert len(tokenizer) == 261  # without the tokens that fill the embedding


def test_large_models_are_written_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(convert_module, "SHARD_BYTES", 60_000)
    monkeypatch.setattr(convert_module, "_BLOCK", 1000)
    model, steps = family("qwen3_moe"), []
    path = write_model(tmp_path / "model.gguf", model)
    directory = tmp_path / "converted"
    directory.mkdir()
    convert(path, directory, progress=lambda done, total: steps.append((done, total)))
    shards = sorted(each.name for each in directory.glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(shards)
    assert index["metadata"]["total_size"] == 2 * sum(each.numel() for each in model.parameters())
    assert steps[-1] == (len(index["weight_map"]),) * 2
    assert_same(directory, model)


def test_two_quantizations_of_one_matrix_are_tied(tmp_path):
    """The more precise one is kept."""
    model = tiny_model("llama tied")
    embedding = model.model.embed_tokens.weight.detach().numpy().copy()
    precise = gguf.quantize(embedding, Kind.Q8_0)
    path = tmp_path / "both.gguf"
    write_model(path, model, kind=Kind.Q4_0, output__weight=gguf.dequantize(precise, Kind.Q8_0))
    assert gguf_config.is_tied(GgufFile(path))
    directory = tmp_path / "converted"
    directory.mkdir()
    convert(path, directory)
    from safetensors.torch import load_file

    weights = load_file(directory / "model.safetensors")
    assert "lm_head.weight" not in weights
    expected = torch.tensor(gguf.dequantize(precise, Kind.Q8_0)).to(torch.bfloat16)
    assert torch.equal(weights["model.embed_tokens.weight"], expected)


def test_two_different_matrices_stay_untied(tmp_path):
    model = tiny_model("llama")
    path = write_model(tmp_path / "untied.gguf", model, kind=Kind.Q4_0)
    assert not gguf_config.is_tied(GgufFile(path))
    config = read_config(str(path))
    assert config is not None
    assert config["tie_word_embeddings"] is False


def test_a_known_model_is_tied_whatever_its_file_holds(tmp_path):
    directory = converted(tmp_path, tiny_model("llama"), tied=True)
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is True


def test_an_unknown_architecture_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(ModelError, match=r"has the architecture 'mamba'; those that can be read: llama, qwen2"):
        read_config(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("llama.attention.head_count", 0, "ZeroDivisionError"),
        ("llama.embedding_length", "wide", "TypeError"),
        ("tokenizer.ggml.merges", ["no-such token"], "out of vocabulary"),
    ],
)
def test_metadata_that_describe_no_model_are_refused(key, value, said, tmp_path, monkeypatch):
    path = write_model(tmp_path / "m.gguf", tiny_model("llama"))
    whole = GgufFile._read

    def damaged(file):
        whole(file)
        assert key in file.metadata
        file.metadata[key] = value

    monkeypatch.setattr(GgufFile, "_read", damaged)
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=rf"m\.gguf has metadata that describe no model .*{said}.*; download it again"):
        convert(path, tmp_path / "out")


def test_more_layers_than_tensors_are_refused_before_they_are_built(tmp_path, monkeypatch):
    path = write_model(tmp_path / "m.gguf", tiny_model("llama"))
    whole = GgufFile._read

    def damaged(file):
        whole(file)
        file.metadata["llama.block_count"] = 4278190081

    monkeypatch.setattr(GgufFile, "_read", damaged)
    with pytest.raises(ModelError, match=r"has 4,278,190,081 layers by its metadata, but only \d+ tensors; download"):
        read_config(str(path))


def test_a_file_with_another_tensor_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"has the tensor blk\.0\.ssm_a\.weight, which a llama model does not have"):
        converted(tmp_path, tiny_model("llama"), blk__0__ssm_a__weight=np.zeros(4, np.float32))


def test_missing_weights_are_named(tmp_path, monkeypatch):
    path = write_model(tmp_path / "m.gguf", tiny_model("llama"))
    whole = GgufFile._read

    def without(file):
        whole(file)
        del file.tensors["blk.1.ffn_up.weight"]

    monkeypatch.setattr(GgufFile, "_read", without)
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=r"lacks 1 weights of the model, such as model\.layers\.1\.mlp\.up_proj"):
        convert(path, tmp_path / "out")


def test_permutation_is_that_of_rotary_pairs():
    """Row i and row i + half of a head are a pair: llama.cpp stores them side by side."""
    assert permute(np.arange(8), 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert convert_module._unpermute(torch.tensor([0, 4, 1, 5, 2, 6, 3, 7]), 1).tolist() == list(range(8))
