"""bench/before_after.py on the quickstart: figures come from the run and its evaluations."""

import io
import json
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import pytest

import before_after
import commands
import dojang_process

SETTINGS = ("steps=12", "eval.every=12", "eval.problems=16", "checkpoint.every=12")


@dataclass(frozen=True)
class Ended:
    returncode: int
    stderr: str


def run(*arguments: str) -> Ended:
    """Runs the script in this process, and its commands in forks: to start Python for each of them takes seconds."""
    said, code = io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patched, redirect_stderr(said):
        patched.setattr(sys, "argv", ["before_after.py", *arguments])
        patched.setattr(dojang_process.subprocess, "run", commands.run)
        try:
            before_after.main()
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
            said.write(str(ending.code))
    return Ended(code, said.getvalue())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "out"
    ended = run(str(folder), "--recipe", "quickstart", "--eval", "sums: --problems 40 --data arithmetic", *SETTINGS)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_the_result_has_both_evaluations_and_the_run(out: Path) -> None:
    result = json.loads((out / "result.json").read_text())
    evaluation = result["evaluations"]["sums"]
    (before,), (after,) = evaluation["before"], evaluation["after"]
    assert result["train"] == ["dojang", "train", "quickstart", *SETTINGS]
    assert result["summary"]["steps"] == 12
    assert before["accuracy"]["problems"] == after["accuracy"]["problems"] == 40
    assert after["accuracy"]["value"] > before["accuracy"]["value"] + 0.2
    assert evaluation["differences"][-1].startswith("| arithmetic | 40 |")
    assert result["speed"]["timing_s/step"] > 0
    assert {path.name for path in out.iterdir()} == {"work", "result.json", "metrics.jsonl", "reward.png", "sums.png"}


def test_the_trained_model_is_the_last_checkpoint(out: Path) -> None:
    told = json.loads((out / "work" / "after-sums" / "results.json").read_text())
    assert told["model"].endswith("checkpoints/last")
    assert (out / "work" / "run" / "checkpoints" / "last").resolve().name == "step-000012"


def test_what_is_finished_is_not_repeated(out: Path, tmp_path: Path) -> None:
    written = (out / "work" / "run" / "summary.json").stat().st_mtime_ns
    before = (out / "work" / "before-sums" / "results.json").stat().st_mtime_ns
    same = ("--recipe", "quickstart", "--eval", "sums: --problems 40 --data arithmetic")
    assert run(str(out), *same, *SETTINGS).returncode == 0
    assert (out / "work" / "run" / "summary.json").stat().st_mtime_ns == written
    other = run(str(tmp_path / "other"), *same, "--base", str(out), "steps=1", "eval.problems=16")
    assert other.returncode == 0, other.stderr
    assert (tmp_path / "other" / "work" / "before-sums").is_symlink()
    assert (out / "work" / "before-sums" / "results.json").stat().st_mtime_ns == before


def test_results_of_other_settings_are_not_told_as_those_of_this_command(out: Path, tmp_path: Path) -> None:
    written = (out / "result.json").read_text()
    sums = "sums: --problems 40 --data arithmetic"
    for evaluation, settings in ((sums, ("steps=13",)), (sums.replace("40", "41"), SETTINGS)):
        ended = run(str(out), "--recipe", "quickstart", "--eval", evaluation, *settings)
        assert ended.returncode == 1
        assert "choose another directory" in ended.stderr
    assert (out / "result.json").read_text() == written
    for evaluation, words in (
        (sums.replace("40", "41"), "has results of"),
        (f"other_{sums}", "no finished evaluation"),
    ):
        ended = run(
            str(tmp_path / words), "--recipe", "quickstart", "--eval", evaluation, "--base", str(out), "steps=1"
        )
        assert ended.returncode == 1
        assert words in ended.stderr


def test_a_mistake_in_a_setting_is_told_without_a_traceback(tmp_path: Path) -> None:
    ended = run(str(tmp_path / "out"), "--recipe", "quickstart", "--eval", "sums: --data arithmetic", "stepz=1")
    assert ended.returncode == 1
    assert "stepz" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def test_an_evaluation_without_a_name_is_refused(tmp_path: Path) -> None:
    ended = run(str(tmp_path), "--recipe", "quickstart", "--eval", "--data arithmetic")
    assert ended.returncode == 2
    assert "must have the form 'NAME: ARGUMENTS of dojang eval'" in ended.stderr
