"""rollout.engine.quantization=fp8 is refused before a run where its engine would refuse it."""

import json
from pathlib import Path

import pytest
import torch

import tiny_models
from dojang.build.fp8_check import check_fp8
from dojang.build.local import numerics
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ModelError


def config(model: Path | str, *overrides: str) -> RunConfig:
    return recipes.load("quickstart", [f"model.name={model}", "rollout.engine.quantization=fp8", *overrides])


def saved(folder: Path, **settings: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU as torch describes it, without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda rank: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))


def test_models_of_the_slow_engine_are_refused(tmp_path: Path) -> None:
    other = saved(tmp_path / "gpt2", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    with pytest.raises(ModelError, match=r"quantization=fp8 is not supported for .*gpt2: .*generate"):
        check_fp8(config(other))
    check_fp8(recipes.load("quickstart", [f"model.name={other}"]))


def test_every_model_and_precision_runs_on_a_cpu(tmp_path: Path) -> None:
    odd = saved(tmp_path / "odd", **{**tiny_models.MODELS["qwen2"]().config.to_dict(), "intermediate_size": 90})
    check_fp8(config(odd, "model.device=cpu", "model.dtype=float32"))


def test_a_gpu_needs_the_products(tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_models.MODELS["qwen2"]().config.to_dict()
    even = saved(tmp_path / "even", **settings)
    assert numerics(config(even)).device.type == "cuda"
    with pytest.raises(ModelError, match=r"A100 has no FP8 products .*set rollout\.engine\.quantization=none"):
        check_fp8(config(even))
    check_fp8(config(even, "model.device=cpu"))
    check_fp8(config(even, "runtime=ray"))  # its nodes may have other GPUs
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    check_fp8(config(even))
    with pytest.raises(ModelError, match=r"FP8 on a GPU is for model\.dtype=bfloat16, not float32"):
        check_fp8(config(even, "model.dtype=float32"))
    with pytest.raises(ModelError, match=r"FP8 on a GPU is for model\.dtype=bfloat16, not float32"):
        check_fp8(config(even, "runtime=ray", "runtime.gpus=1", "model.dtype=float32"))
    check_fp8(config(even, "runtime=ray", "model.dtype=float32"))  # its nodes may have no GPUs
    odd = saved(tmp_path / "odd", **{**settings, "intermediate_size": 90})
    with pytest.raises(ModelError, match=r"multiples of 16, not 90"):
        check_fp8(config(odd))


@pytest.mark.parametrize("family", ["qwen3_moe", "gemma3", "phi3"])
def test_sizes_of_other_families(tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    settings = tiny_models.MODELS[family]().config.to_dict()
    check_fp8(config(saved(tmp_path / "model", **settings)))
