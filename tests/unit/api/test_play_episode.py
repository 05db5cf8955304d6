"""One episode from Python and by `dojang env`: real models, environments and tasks."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dojang
from dojang.commands.main import app
from dojang.core.errors import ConfigError
from dojang.environments.catalogue import shipped_environments

GUESS = """
import dojang

class Guess(dojang.Environment):
    def __init__(self, most=99):
        self.most = most

    def reset(self, problem):
        return f"Guess a number up to {self.most}."

    def step(self, reply):
        if reply.turn == 1:
            return dojang.Step(reward=0.5, done=True, detail="enough")
        return dojang.Step("Again.\\x1b[31m", reward=0.25)
"""


def test_every_environment_is_listed() -> None:
    found = CliRunner().invoke(app, ["env", "list"])
    assert found.exit_code == 0
    for each in shipped_environments():
        assert f"{each.name} " in found.output
        assert each.description in found.output
        assert each.needs in found.output
    assert {"calculator", "custom", "python_tool", "repair", "search", "textarena"} <= {
        each.name for each in shipped_environments()
    }


def test_a_custom_environment_is_played_turn_by_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guess_once.py").write_text(GUESS)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["env", "try", "custom", "--make-with", "guess_once:Guess", "options={most: 7}", "rollout.max_tokens=8"]
    found = CliRunner().invoke(app, [*arguments, "--seed", "3"])
    assert found.exit_code == 0, found.output
    assert "Guess a number up to 7." in found.output
    assert "reply 1, reward 0.25" in found.output
    assert "reply 2" in found.output or "cut at max_tokens" in found.output
    assert "\x1b" not in found.output


def test_an_environment_that_fails_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guess_down.py").write_text(GUESS.replace("reply.turn == 1", "1 / 0"))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = CliRunner().invoke(app, ["env", "try", "custom", "--make-with", "guess_down:Guess", "rollout.max_tokens=8"])
    assert found.exit_code == 1
    assert "judge_error, no reward" in found.output
    assert "step raised ZeroDivisionError" in found.output


HANGS = """
import time
import dojang

class Close(dojang.Environment):
    def step(self, reply):
        return 1.0

    def close(self):
        time.sleep(600)

class Make(Close):
    def __init__(self):
        time.sleep(600)

class Tools(dojang.ToolEnvironment):
    def reset(self, problem):
        self.found = [self.look]
        return "Look."

    def tools(self):
        return self.found

    def look(self) -> str:
        \"""Looks.\"""
        return "nothing"

    def answer(self, reply):
        return 1.0
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Close", 0, "Close.close took longer than workflow.timeout_s=0.5"),
        ("Make", 1, "the constructor took longer than workflow.timeout_s=0.5"),
        ("Tools", 0, '"name": "look"'),
    ],
)
def test_an_environment_that_hangs_or_makes_its_tools_in_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, said: str
) -> None:
    (tmp_path / "hangs_once.py").write_text(HANGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    limit = f"timeout_s={60 if name == 'Tools' else 0.5}"
    arguments = ["env", "try", "custom", "--make-with", f"hangs_once:{name}", limit, "rollout.max_tokens=8"]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == code, found.output
    assert said in found.output


def test_an_episode_repeats_with_its_seed() -> None:
    first, second, other = (
        dojang.play_episode("calculator", seed=seed, rollout={"max_tokens": 24}) for seed in (5, 5, 6)
    )
    assert isinstance(first, dojang.PlayedEpisode)
    assert (first.turns, first.problem) == (second.turns, second.problem)
    assert first.problem != other.problem
    assert [turn.role for turn in first.turns][:2] == ["prompt", "assistant"]
    assert "calculate" in first.turns[0].text
    assert "training refuses" in first.note
    assert first.verdict.reward is not None
    assert sum(turn.reward or 0.0 for turn in first.turns) == pytest.approx(first.verdict.reward)


def test_programs_are_judged() -> None:
    played = dojang.play_episode({"name": "repair", "max_turns": 2}, model="dojang-tiny-code")
    assert played.verdict.total > 0
    assert played.note == ""
    assert played.problem.source == "functions"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing"], "is not one of agent, calculator"),
        (["calculator", "max_turn=3"], "max_turn"),
        (["custom"], "make_with"),
        (["custom", "--make-with", "os:nothing"], "nothing"),
        (["search", "corpus=[/nonexistent]"], "/nonexistent"),
        (["repair", "data.name=arithmetic"], "task.name=code"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], reason: str) -> None:
    found = CliRunner().invoke(app, ["env", "try", *arguments])
    assert found.exit_code != 0
    assert reason in str(found.exception)
    assert isinstance(found.exception, dojang.DojangError)


def test_the_list_loads_no_torch() -> None:
    code = "import sys; from dojang.commands.cli_env import env_list; env_list(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_seeds_are_checked() -> None:
    with pytest.raises(ConfigError, match="seed"):
        dojang.play_episode("calculator", seed=-1)
