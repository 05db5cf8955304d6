"""The environment that `openenv init` makes, in servers of OpenEnv: played and trained against."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerBase

import dojang
from dojang.core.child_process import run_child
from dojang.core.errors import ConfigError
from dojang.data.episodes import EpisodesConfig
from dojang.environments.openenv import OpenEnvConfig
from dojang.environments.rollout_process import close_rollout_processes
from dojang.types import Message, Outcome, Problem
from scripted_episodes import LastWordTask, counts, play

(EPISODE, *_) = EpisodesConfig(train_size=8, test_size=4).read("train")


@pytest.fixture(scope="module")
def folder(openenv_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with OpenEnv's echo environment, and copies that end, fail and hang."""
    made = tmp_path_factory.mktemp("openenv")
    command = str(Path(openenv_python).parent / "openenv")
    run_child([command, "init", "parrot", "--output-dir", str(made)], timeout=300)
    file = made / "parrot" / "server" / "parrot_environment.py"
    special = (
        "        if message == 'end':\n"
        "            return ParrotObservation(echoed_message='over', done=True, reward=0.5)\n"
        "        if message == 'fail':\n            raise ValueError('no such move')\n"
        "        if message == 'hang':\n            import time; time.sleep(600)\n"
    )
    source = file.read_text()
    assert "        length = len(message)\n" in source
    file.write_text(source.replace("        length = len(message)\n", special + "        length = len(message)\n"))
    return made


@pytest.fixture(scope="module", autouse=True)
def _end_processes() -> Iterator[None]:
    yield
    close_rollout_processes()


@pytest.fixture
def settings(openenv_python: str, folder: Path) -> dict[str, Any]:
    return {"python": openenv_python, "app": "parrot.server.app:app", "app_dir": str(folder)}


def test_rewards_are_those_of_the_environment(tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]) -> None:
    section = OpenEnvConfig(**settings, observation="echoed_message", max_turns=3)
    section.check_problems(LastWordTask(), [EPISODE])
    sample = play(tokenizer, section, ["four", "seven77", "end"], problem=EPISODE)
    assert [turn.reward for turn in sample.turns if turn.role == "assistant"] == pytest.approx([0.4, 0.7, 0.5])
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, pytest.approx(1.6))
    assert "ready!" in sample.text or "four" in sample.text
    short = play(
        tokenizer, OpenEnvConfig(**settings, observation="echoed_message", max_turns=1), ["ab"], problem=EPISODE
    )
    assert (short.verdict.outcome, short.verdict.reward) == (Outcome.WRONG, pytest.approx(0.2))


def test_the_model_is_told_of_actions_that_the_server_rejects(
    tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]
) -> None:
    section = OpenEnvConfig(**settings, action="nothing", max_turns=2)
    sample = play(tokenizer, section, ["one", "two"], problem=EPISODE)
    assert counts(sample)["assistant"] == 2
    assert "VALIDATION_ERROR" in sample.text
    assert sample.verdict.outcome is Outcome.WRONG


def test_failures_and_hangs_are_no_rewards(tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]) -> None:
    failed = play(tokenizer, OpenEnvConfig(**settings), ["fail"], problem=EPISODE)
    assert (failed.verdict.outcome, failed.verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert "no such move" in failed.verdict.detail
    hung = play(tokenizer, OpenEnvConfig(**settings, timeout_s=30.0), ["hang"], problem=EPISODE)
    assert (hung.verdict.outcome, hung.verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert "workflow.timeout_s" in hung.verdict.detail
    again = play(tokenizer, OpenEnvConfig(**settings, timeout_s=30.0), ["end"], problem=EPISODE)
    assert again.verdict.reward == 0.5, "the server was started anew"


def test_a_server_by_its_address(tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]) -> None:
    command = [settings["python"], "-m", "uvicorn", settings["app"], "--app-dir", settings["app_dir"], "--fd"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number, url = listener.fileno(), f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = subprocess.Popen([*command, str(number)], pass_fds=[number], stderr=subprocess.DEVNULL)
    try:
        section = OpenEnvConfig(python=settings["python"], urls=(url,))
        sample = play(tokenizer, section, ["abc", "end"], problem=EPISODE)
    finally:
        server.kill()
        server.wait()
    assert sample.verdict.reward == pytest.approx(0.8), sample.verdict
    assert '"echoed_message"' in sample.text


def test_a_model_is_trained(settings: dict[str, Any], tmp_path: Path) -> None:
    dojang.train(
        "quickstart",
        steps=2,
        run_dir=tmp_path / "run",
        data={"name": "episodes", "train_size": 8, "test_size": 2},
        task={"name": "environment"},
        workflow={"name": "openenv", "observation": "echoed_message", "max_turns": 2, "servers": 2, **settings},
        rollout={"prompts_per_step": 2, "group_size": 4, "max_tokens": 8, "temperature": 1.5},
        eval={"problems": 2, "every": 10},
        progress=False,
    )
    files = sorted((tmp_path / "run" / "rollouts").glob("train-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len(rows) == 2 * 2 * 4
    assert not [row["detail"] for row in rows if row["outcome"] == "judge_error"]
    assert {row["reward"] for row in rows} != {0.0}


def test_what_cannot_be_used_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    task = LastWordTask()
    with pytest.raises(ValueError, match="one of"):
        OpenEnvConfig(python=settings["python"])
    with pytest.raises(ConfigError, match=r"nothing:app: .*ended with code.*import"):
        OpenEnvConfig(**{**settings, "app": "nothing:app"}).check_problems(task, [EPISODE])
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9.*refused"):
        OpenEnvConfig(python=settings["python"], urls=("http://127.0.0.1:9",)).check_problems(task, [EPISODE])
    with pytest.raises(ConfigError, match="does not run"):
        OpenEnvConfig(**{**settings, "python": str(tmp_path / "python")}).check_problems(task, [EPISODE])
    with pytest.raises(ConfigError, match=r"pip install openenv==0\.10\.0"):
        OpenEnvConfig(**{**settings, "python": sys.executable}).check_problems(task, [EPISODE])
    with pytest.raises(ConfigError, match=r"data\.name=episodes"):
        OpenEnvConfig(**settings).check_problems(task, [Problem("p", "p", (Message("user", "?"),), "")])
