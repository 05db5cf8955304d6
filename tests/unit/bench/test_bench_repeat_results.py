"""The measurements of docs/results/qwen2.5-coder-1.5b.md in one command."""

import json
import sys
from pathlib import Path

import pytest

import repeat_results
from before_after import named
from dojang.config import recipe as recipes
from repeat_results import MEASUREMENTS, Measurement, arguments, main

HELP, WRONG = ("--help",), ("train", "no-such-recipe", "--run-dir", "OUT/wrong")


def call(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> tuple[object, dict[str, str]]:
    monkeypatch.setattr(sys, "argv", ["repeat_results", str(out), "--data", str(out.parent), *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, json.loads((out / "status.json").read_text())


def test_what_fits_is_run_and_what_is_finished_is_not_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        repeat_results,
        "MEASUREMENTS",
        {
            "good": Measurement(1, (HELP,)),
            "after": Measurement(1, (HELP,), needs="good"),
            "long": Measurement(1000, (HELP,)),
            "wrong": Measurement(1, (WRONG, HELP)),
            "orphan": Measurement(1, (HELP,), needs="wrong"),
            "unprepared": Measurement(1, (("train", "quickstart", "data.path=DATA/mbpp", "--run-dir", "OUT/x"),)),
        },
    )
    out = tmp_path / "out"
    code, status = call(monkeypatch, out, "--minutes", "5")
    assert code == 1
    assert (status["good"], status["after"]) == ("finished", "finished")
    assert status["long"].startswith("not started: it needs 1000 s")
    assert status["wrong"] == "failed with exit code 2; see wrong.log"
    assert status["orphan"] == "not started: it needs wrong, which is not finished"
    assert status["unprepared"] == f"not started: {tmp_path} has no mbpp"
    assert "no-such-recipe" in (out / "wrong.log").read_text()
    assert "Usage" not in (out / "wrong.log").read_text()  # no command after one that failed
    written = (out / "good.log").read_text()
    assert call(monkeypatch, out, "--only", "good, after") == (0, status)
    assert (out / "good.log").read_text() == written


def test_results_of_other_commands_or_data_are_not_told_as_those_of_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(repeat_results, "MEASUREMENTS", {"good": Measurement(1, (HELP,))})
    out = tmp_path / "out"
    _, status = call(monkeypatch, out, "--only", "good")
    assert call(monkeypatch, out, "--only", "good", "--data", str(out))[0] != 0
    monkeypatch.setattr(repeat_results, "MEASUREMENTS", {"good": Measurement(1, (("plan", "--help"),))})
    code, unchanged = call(monkeypatch, out, "--only", "good")
    assert "good.log has results of" in str(code)
    assert unchanged == status


def test_folders_may_have_spaces_and_confusing_names() -> None:
    command = ("bench/x.py", "OUT/qlora", "--eval", "a: --data gsm8k=DATA/gsm8k", "data.path=DATA/gsm8k")
    line = arguments(command, Path("/mnt/DATA/my results"), Path("/my data"))
    assert line[2] == "/mnt/DATA/my results/qlora"
    assert line[-1] == "data.path=/my data/gsm8k"
    assert named(line[-2]) == ("a", ["--data", "gsm8k=/my data/gsm8k"])


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_recipes_take_the_settings(name: str) -> None:
    measurement = MEASUREMENTS[name]
    assert measurement.needs in ("", *MEASUREMENTS)
    for command in measurement.commands:
        if command[0] == "export":
            continue
        recipe = next(each for each in command if each in recipes.shipped())
        settings = [each for each in command if "=" in each.split(":")[0] and not each.startswith("--")]
        recipes.load(recipe, settings)
        for each in (command[at + 1] for at, option in enumerate(command) if option == "--eval"):
            assert "--recipe" in named(each)[1]
