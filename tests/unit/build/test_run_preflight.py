"""Checks before a run: packages, architectures, model files, the run directory."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import tiny_models
from dojang import models
from dojang.build import preflight
from dojang.build.local import check_model, context_length
from dojang.config import recipe as recipes
from dojang.core import section
from dojang.core.error_list import ErrorList, MissingPackage, SeveralErrors
from dojang.core.errors import ConfigError, DojangError, ModelError, RunDirError
from dojang.core.run_dir import RunDir


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "find_spec", lambda name: None)


def missing(*overrides: str) -> list[str]:
    """Names of missing packages, of all settings."""
    errors = ErrorList()
    with errors.collect():
        preflight.check_packages(recipes.load("quickstart", overrides))
    return [str(each).split(" needs ")[1].split(", not installed")[0] for each in errors.errors]


@pytest.mark.usefixtures("nothing_installed")
def test_packages_that_settings_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert missing() == []
    assert missing("train.lora={}") == ["peft"]
    assert missing("train.lora.base_bits=4") == ["peft and bitsandbytes and accelerate"]
    assert missing("train.optimizer=adamw8bit") == ["bitsandbytes"]
    assert missing("rollout.engine=vllm") == ["vllm"]
    assert missing("runtime=ray", "train.lora={}") == ["peft", "ray"]
    assert missing("runtime={name: ray, address: 'head:6379'}", "train.lora={}") == ["ray"]  # nodes have their own
    benchmark = "eval.benchmarks={aime: {data: {name: prepared, path: x}, task: {name: maths}}}"
    assert missing("task.name=maths", benchmark) == ["math_verify"]
    assert missing(benchmark) == ["math_verify"]
    config = recipes.load("quickstart", ["train.lora={}"])
    with pytest.raises(MissingPackage, match=r"train.lora needs peft.*pip install 'dojang\[lora\]'"):
        preflight.check_packages(config)


def model(folder: Path, **config: object) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    return str(folder)


def test_architecture(tmp_path: Path) -> None:
    t5 = model(tmp_path / "t5", model_type="t5", architectures=["T5Model"], is_encoder_decoder=True)
    with pytest.raises(ModelError, match=r"model.name=.*t5.*needs a causal language model"):
        preflight.check_architecture("model.name", t5)
    other = model(tmp_path / "other", model_type="cohere", architectures=["CohereForCausalLM"])
    preflight.check_architecture("model.name", other)
    found = preflight.engine_support(other)
    assert found is not None
    assert found.engine == "generate"
    preflight.check_architecture("model.name", "dojang-tiny")
    falcon = model(tmp_path / "falcon", model_type="falcon", architectures=["FalconForCausalLM"])
    with pytest.raises(ModelError, match=r"falcon' can be sampled from and evaluated, but not trained: transformers"):
        preflight.check_architecture("model.name", falcon)
    (tmp_path / "other" / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config.json cannot be read .*again"):
        preflight.check_architecture("model.name", other)


@pytest.mark.filterwarnings("ignore:The following .* keys did not match")
def test_adapters_on_all_projections_of_a_mixture_of_experts_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    name = model(tmp_path / "moe", **tiny_models.MODELS["qwen3_moe"]().config.to_dict())
    with pytest.raises(ConfigError, match=r"stack of experts.*set train.lora.target_modules=\[q_proj"):
        check_model(recipes.load("quickstart", [f"model.name={name}", "train.lora={}"]))
    check_model(recipes.load("quickstart", [f"model.name={name}", "train.lora.target_modules=[q_proj]"]))


def test_context_of_longrope_depends_on_the_engine() -> None:
    settings = tiny_models.MODELS["phi3 with longrope"]().config  # 64 tokens with the first set of frequencies
    config = recipes.load("quickstart", ["rollout.max_tokens=16"])
    assert context_length(config, settings) == 64
    vllm = recipes.load("quickstart", ["rollout.max_tokens=16", "rollout.engine=vllm"])
    assert context_length(vllm, settings) == settings.max_position_embeddings > 64


def test_weight_files_that_are_missing(tmp_path: Path) -> None:
    name = model(tmp_path / "model", model_type="llama")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks 1 of its weight files, such as model-2.safetensors"):
        models.check(name)


def test_run_directory(tmp_path: Path) -> None:
    preflight.check_usable(RunDir(tmp_path / "new" / "run"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "run", Path("/proc/nowhere/run")):
        with pytest.raises(
            RunDirError, match=r"cannot write to .*choose another run directory \(--run-dir, in Python run_dir\)"
        ):
            preflight.check_usable(RunDir(path))


def test_hub_model_is_noted_if_the_hub_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "why_unreachable", lambda: "HF_HUB_OFFLINE is set")
    assert "org/name-of-nothing is not on this machine, and HF_HUB_OFFLINE" in preflight.check_hub(
        "org/name-of-nothing"
    )
    assert preflight.check_hub("dojang-tiny") == ""


def test_errors_are_raised_together() -> None:
    errors = ErrorList()
    errors.raise_if_any()
    with errors.collect():
        raise ModelError("first")
    with pytest.raises(ModelError, match=r"^first$"):
        errors.raise_if_any()
    with errors.collect():
        raise SeveralErrors([DojangError("second\nline"), ModelError("first")])
    with pytest.raises(SeveralErrors) as caught:
        errors.raise_if_any()
    assert str(caught.value) == "2 problems:\n  - first\n  - second\n    line"
    assert caught.value.exit_code == ModelError.exit_code


def test_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    name = model(folder, model_type="llama")
    header = json.dumps({"a": {"dtype": "BF16", "shape": [100, 50], "data_offsets": [0, 10000]}, "__metadata__": {}})
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(10000))
    checkpoint = 5000 * (4 + 8)

    def check(free: int, *overrides: str) -> None:
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        config = recipes.load("quickstart", [f"model.name={name}", *overrides])
        preflight.check_disk_space(config, RunDir(tmp_path / "new" / "run"))

    def refuse(free: int, *overrides: str) -> None:
        with pytest.raises(RunDirError, match=r"free some space, lower checkpoint.keep, or choose another run dir"):
            check(free, *overrides)

    several = ("steps=100", "checkpoint.every=10")
    refuse(2 * checkpoint - 1, *several)
    check(2 * checkpoint, *several)
    refuse(3 * checkpoint, "checkpoint.keep=3", *several)
    check(checkpoint, "steps=5", "checkpoint.every=10")
    refuse(checkpoint - 1, "steps=5", "checkpoint.every=10")
    eight_bits = ("train.optimizer=adamw8bit", "steps=1")  # two moments of a byte, and a scale for 256 of them
    check(30157, *eight_bits)
    refuse(30156, *eight_bits)
    check(0, "train.lora={}")


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "some.gguf"])
def test_cache_of_a_model_that_is_yet_to_be_made(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=rf"cannot store {name} in .*file: .*is a file; .*DOJANG_CACHE"):
        preflight.check_cache(name)
    preflight.check_cache("dojang-tiny")
    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path / "new" / "cache"))
    preflight.check_cache(name)
    assert not (tmp_path / "new").exists()
