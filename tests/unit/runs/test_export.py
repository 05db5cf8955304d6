"""Checkpoints as plain Hugging Face directories: what goes in comes out, or there is a sentence."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import commands
from dojang.core.errors import ConfigError, ModelError, RunDirError
from dojang.core.run_dir import RunDir
from dojang.models import resolve
from dojang.runs import export as exporting
from dojang.runs.export import export
from dojang.trainer import merge_lora

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
ROUNDING = {"float32": 0.0, "bfloat16": 0.03, "float16": 0.003}
"""As a share of the largest score."""


@pytest.fixture
def run(tmp_path: Path, micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> RunDir:
    """A run with three checkpoints that differ, as a trainer writes them."""
    run = RunDir(tmp_path / "run")
    for step in (5, 10, 15):
        with run.new_checkpoint(step) as path:
            micro_model(seed=step).save_pretrained(path)
            tokenizer.save_pretrained(path)
            torch.save({"version": step}, path / "optimizer.pt")
            for name in ("state.json", "pending.groups"):
                (path / name).write_text("{}")
    run.run.write_text("{}")
    run.point("best", 5)
    run.point("last", 15)
    return run


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def write(source: Path, output: Path, precision: str = "bfloat16", which: str | None = None) -> None:
    export(source, output, precision=precision, which=which)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(IDS).logits.double()
    return found


def loaded(path: Path) -> torch.Tensor:
    """Scores in full precision, with the weights as they are."""
    return logits(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))


def same(first: torch.Tensor, second: torch.Tensor, share: float) -> bool:
    return bool((first - second).abs().max() <= share * second.abs().max())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# What comes out


@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("whole_run", [True, False])
def test_a_model_comes_back_up_to_rounding(run: RunDir, out: Path, precision: str, whole_run: bool) -> None:
    best = run.checkpoints / "best"
    write(run.path if whole_run else best, out, precision)
    assert same(loaded(out), loaded(best), ROUNDING[precision])
    weights = load_file(out / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {getattr(torch, precision)}
    assert json.loads((out / "config.json").read_text())["dtype"] == precision
    assert AutoModelForCausalLM.from_pretrained(out).dtype == getattr(torch, precision)  # by itself
    for name, weight in load_file(best / "model.safetensors").items():
        assert torch.equal(weights[name], weight.to(getattr(torch, precision)))  # rounded once, to the nearest


def test_only_model_files_are_exported(run: RunDir, out: Path) -> None:
    write(run.path, out)
    assert names(out) == FILES | {"chat_template.jinja"}
    assert names(out.parent) == {"run", "out"}
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1  # weights are for the same people as the rest


def test_the_tokenizer_is_the_same(run: RunDir, out: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write(run.path, out)
    again = AutoTokenizer.from_pretrained(out)
    text = "the answer is 42, or [<|end|>] not…"
    assert again(text) == tokenizer(text)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.special_tokens_map == tokenizer.special_tokens_map
    turns = [{"role": "user", "content": "what is 1+1?"}]
    assert again.apply_chat_template(turns, add_generation_prompt=True) == tokenizer.apply_chat_template(
        turns, add_generation_prompt=True
    )


@pytest.mark.parametrize(("which", "step"), [(None, 5), ("best", 5), ("last", 15), ("step-000010", 10)])
def test_any_checkpoint_of_a_run_can_be_had(
    run: RunDir, out: Path, which: str | None, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run.path, out, "float32", which)
    assert same(loaded(out), loaded(run.saved()[step]), 0.0)
    size = sum(path.stat().st_size for path in out.iterdir())
    said = capsys.readouterr().out
    assert said.startswith(f"step-{step:06d} is in {out}: {size / 1e6:.1f} MB, float32\n")
    assert f'AutoModelForCausalLM.from_pretrained("{out}")' in said
    assert f"vllm serve {out}" in said


def test_an_empty_directory_is_as_good_as_none(run: RunDir, out: Path) -> None:
    out.mkdir()
    write(run.path, out)
    assert (out / "config.json").is_file()


def test_a_directory_is_made_with_those_above_it(run: RunDir, out: Path) -> None:
    write(run.path, out / "for" / "you")
    assert names(out / "for") == {"you"}


# What is refused


@pytest.mark.parametrize("where", ["file", "full", "full/../full"])
def test_existing_output_is_not_overwritten(run: RunDir, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"OUTPUT .* is (a file|not empty); give an empty or new directory"):
        write(run.path, tmp_path / where)
    assert (tmp_path / "file").read_text() == (tmp_path / "full" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("below", ["step-000020", "best/plain"])
def test_nothing_is_put_among_the_checkpoints(run: RunDir, below: str) -> None:
    with pytest.raises(ConfigError, match="is among the checkpoints of a run"):
        write(run.path, run.checkpoints / below)
    assert sorted(run.saved()) == [5, 10, 15]


def test_a_source_that_is_no_run_is_refused(run: RunDir, tmp_path: Path, out: Path) -> None:
    for source in (tmp_path, tmp_path / "nowhere", run.checkpoints):
        with pytest.raises(RunDirError, match=r"is neither a run directory nor a checkpoint: .*`dojang train` printed"):
            write(source, out)


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, out: Path) -> None:
    run = RunDir(tmp_path / "run")
    (run.checkpoints / ".step-000001.tmp").mkdir(parents=True)
    run.run.write_text("{}")
    with pytest.raises(RunDirError, match="has no checkpoint yet; it saves the first after its first evaluation"):
        write(run.path, out)


def test_an_unknown_checkpoint_is_a_list_of_the_known_ones(run: RunDir, out: Path) -> None:
    words = "choose with --which among best, last, step-000005, step-000010, step-000015$"
    with pytest.raises(ConfigError, match=f"no checkpoint 'step-000011' .*{words}"):
        write(run.path, out, which="step-000011")
    (run.checkpoints / "best").unlink()
    with pytest.raises(ConfigError, match=r"no checkpoint 'best' .*among last, step-000005"):
        write(run.path, out)


def test_a_checkpoint_has_none_to_choose_among(run: RunDir, out: Path) -> None:
    with pytest.raises(ConfigError, match=r"--which=last chooses among the checkpoints of a run, but .* is one model"):
        write(run.checkpoints / "best", out, which="last")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def lose_a_weight(path: Path) -> None:
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", cut),
        ("model.safetensors", Path.unlink),
        ("model.safetensors", lose_a_weight),
        ("config.json", cut),
        ("tokenizer.json", cut),
    ],
)
def test_a_damaged_checkpoint_is_refused(run: RunDir, out: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(run.checkpoints / "best" / name)
    with pytest.raises(RunDirError, match=r"(?s)checkpoint .*step-000005 cannot be read \(.*\); export another one"):
        write(run.path, out)
    assert names(out.parent) == {"run"}


def test_weights_that_overflow_the_dtype_are_refused(run: RunDir, out: Path) -> None:
    path = run.checkpoints / "best" / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][3] = 1e6
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.norm\.weight of .* is not finite in float16; try --dtype=float32"):
        write(run.path, out, "float16")
    write(run.path, out)


# A run that goes on


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_checkpoint_deleted_while_it_is_read_is_refused(
    run: RunDir, out: Path, monkeypatch: pytest.MonkeyPatch, late: bool, again: bool
) -> None:
    load = merge_lora.load_whole

    def interrupted(source: str, wanted: torch.dtype) -> PreTrainedModel:
        model = load(source, wanted) if late else None
        run.point("best", 15)
        run.prune_checkpoints()
        if again:  # another one of the same step
            (run.checkpoints / "step-000015").rename(source)
        return model or load(source, wanted)

    monkeypatch.setattr(merge_lora, "load_whole", interrupted)
    with pytest.raises(
        RunDirError, match=r"deleted or replaced checkpoint .*step-000005 while it was being read.* Try again"
    ):
        write(run.path, out)
    assert names(out.parent) == {"run"}
    monkeypatch.undo()
    if not again:
        write(run.path, out)


# Writing


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failed_export_leaves_nothing(
    run: RunDir, out: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    def fail(path: Path) -> None:
        assert (path / "model.safetensors").is_file()
        raise failure("the cable came off")

    monkeypatch.setattr(exporting, "sync_tree", fail)
    with pytest.raises((RunDirError, KeyboardInterrupt), match="the cable came off"):
        write(run.path, out)
    assert names(out.parent) == {"run"}


def test_two_exports_to_the_same_place_do_not_mix(run: RunDir, out: Path) -> None:
    (out.parent / ".out.tmp").mkdir()
    with pytest.raises(RunDirError, match=r"\.out\.tmp exists: another export .* is running; if one was killed"):
        write(run.path, out)
    assert not out.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mounted)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small file system cannot be mounted here")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def test_a_disk_that_is_too_small_is_refused(run: RunDir, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(72 * 1024))
    with pytest.raises(RunDirError, match=r"needs .* MB, but its disk has .* MB free"):
        write(run.path, small_disk / "out", "float32")
    with pytest.raises(RunDirError, match=r"cannot write to .*; nothing was left there"):
        write(run.path, small_disk / "out")  # the weights would fit, but not the rest
    assert names(small_disk) == {"filler"}


# Adapters


def make_adapter(path: Path, base: str, **settings: Any) -> torch.Tensor:
    """Save an adapter that changes a lot; the scores it leads to."""

    def load() -> PreTrainedModel:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(resolve(base), dtype=torch.float32)
        return model

    adapted = get_peft_model(load(), LoraConfig(r=4, lora_alpha=8, **{"target_modules": "all-linear", **settings}))
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight += torch.randn_like(weight) * 0.1
    adapted.save_pretrained(path)
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": base}))
    return logits(PeftModel.from_pretrained(load(), path))


@pytest.fixture(params=["dojang-tiny", "directory"])
def base(request: pytest.FixtureRequest, run: RunDir) -> str:
    return str(run.checkpoints / "step-000010") if request.param == "directory" else str(request.param)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
        {"modules_to_save": ["lm_head"]},  # no longer the embedding
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_a_merged_adapter_says_what_the_adapter_says(
    tmp_path: Path, out: Path, base: str, settings: dict[str, Any]
) -> None:
    expected = make_adapter(tmp_path / "adapter", base, **settings)
    assert not same(expected, loaded(Path(resolve(base))), 0.05)  # it does something
    write(tmp_path / "adapter", out, "float32")
    assert same(loaded(out), expected, 1e-5)
    assert not any("adapter" in name for name in names(out))
    assert AutoTokenizer.from_pretrained(out).get_vocab() == AutoTokenizer.from_pretrained(resolve(base)).get_vocab()


def test_adapters_are_merged_in_full_precision_and_rounded_once(tmp_path: Path, out: Path) -> None:
    make_adapter(tmp_path / "adapter", "dojang-tiny")
    for precision in ("float32", "bfloat16"):
        write(tmp_path / "adapter", out / precision, precision)
    whole, half = (load_file(out / precision / "model.safetensors") for precision in ("float32", "bfloat16"))
    assert whole.keys() == half.keys()
    for name, weight in whole.items():
        assert torch.equal(half[name], weight.to(torch.bfloat16))
    assert json.loads((out / "bfloat16" / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_adapter_of_a_run_brings_its_own_tokenizer(
    tmp_path: Path, out: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    run = RunDir(tmp_path / "run")
    with run.new_checkpoint(3) as path:
        expected = make_adapter(path, "dojang-tiny")
        tokenizer.save_pretrained(path)
        (path / "state.json").write_text("{}")
    run.point("last", 3)
    write(run.path, out, "float32", "last")
    assert same(loaded(out), expected, 1e-5)
    assert names(out) == FILES | {"chat_template.jinja"}
    assert AutoTokenizer.from_pretrained(out).get_vocab() == tokenizer.get_vocab()


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_an_adapter_that_cannot_be_merged_is_refused(tmp_path: Path, out: Path, target: str) -> None:
    """In dojang-tiny these are one matrix: changing it for one use changes it for the other."""
    make_adapter(tmp_path / "adapter", "dojang-tiny", target_modules=["q_proj", target])
    with pytest.raises(ModelError, match=r"cannot be merged: logits would change by .*%"):
        write(tmp_path / "adapter", out)


def lose_half(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(list(weights.items())[::2])


def of_a_deeper_model(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return weights | {name.replace("layers.1.", "layers.7."): weight.clone() for name, weight in weights.items()}


@pytest.mark.parametrize("damage", [lose_half, of_a_deeper_model])
def test_an_adapter_that_does_not_fit_its_base_is_refused(
    tmp_path: Path, out: Path, damage: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    make_adapter(tmp_path / "adapter", "dojang-tiny")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file(damage(load_file(path)), path)
    with pytest.raises(RunDirError, match=r"cannot be read .*\d+ weights are missing from the adapter or unknown to"):
        write(tmp_path / "adapter", out)


def test_a_missing_base_model_is_refused(tmp_path: Path, out: Path) -> None:
    make_adapter(tmp_path / "adapter", "dojang-tiny")
    path = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "base_model_name_or_path": "./nowhere"}))
    with pytest.raises(ModelError, match=r"base model that .*adapter_config.json names cannot be found: .*'./nowhere'"):
        write(tmp_path / "adapter", out)
    (tmp_path / "empty").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "empty" / name).write_text("{}")
    path.write_text(json.dumps({**config, "base_model_name_or_path": str(tmp_path / "empty")}))
    with pytest.raises(ModelError, match=r"(?s)the base model .*empty of .*adapter cannot be loaded"):
        write(tmp_path / "adapter", out)


def test_without_peft_an_adapter_says_what_to_install(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_adapter(tmp_path / "adapter", "dojang-tiny")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ConfigError, match=r"holds an adapter, and merging it .* needs peft .*pip install 'dojang\[lora\]'"
    ):
        write(tmp_path / "adapter", out)


# The command


@pytest.mark.slow
def test_train_then_export(tmp_path: Path) -> None:
    def dojang(*arguments: str) -> str:
        command = [sys.executable, "-m", "dojang", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        result = commands.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    sizes = ["rollout.prompts_per_step=2", "rollout.group_size=4", "eval.every=1", "eval.problems=4"]
    chosen = ["checkpoint.every=1", "checkpoint.keep=2", "checkpoint.metric=actor/entropy", "checkpoint.mode=min"]
    dojang("train", "quickstart", "steps=3", *sizes, *chosen, "--run-dir=run")
    run = RunDir(tmp_path / "run")
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    entropy = {row["step"]: row["actor/entropy"] for row in rows if "actor/entropy" in row}
    best = sorted(entropy, key=lambda step: entropy[step])[:2]
    assert (run.checkpoints / "best").resolve() == run.saved()[best[0]].resolve()
    assert set(run.saved()) == {*best, 3}
    said = dojang("export", "run", "out", "--dtype=float32")
    assert f"step-{best[0]:06d} is in {tmp_path / 'out'}: " in said
    assert same(loaded(tmp_path / "out"), loaded(run.checkpoints / "best"), 0.0)


def test_of_two_models_the_coder_is_exported_and_the_tester_is_named(
    run: RunDir,
    out: Path,
    tmp_path: Path,
    micro_model: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tester = run.checkpoints.resolve() / "step-000005" / "tester"
    micro_model(seed=99).save_pretrained(tester)
    tokenizer.save_pretrained(tester)
    write(run.path, out, "float32")
    assert same(loaded(out), logits(micro_model(seed=5)), 0.0)
    said = capsys.readouterr().out
    assert f"export the tester with: dojang export {tester} DIR" in said
    write(tester, tmp_path / "other", "float32")
    assert same(loaded(tmp_path / "other"), logits(micro_model(seed=99)), 0.0)
    assert "export the tester" not in capsys.readouterr().out
