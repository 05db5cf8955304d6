"""`dojang train --dry-run` refuses what a run would refuse, all of it at once."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from dojang.build import preflight
from dojang.core import section
from dojang.core.error_list import SeveralErrors
from dojang.core.errors import ConfigError, DataError, DojangError, RunDirError
from dojang.runs.training import dry_run

TEXT = [{"question": "the sky?", "answer": "blue"}, {"question": "grass?", "answer": "green"}]
NUMBERS = [{"question": "1+1", "answer": "2"}, {"question": "the sky?", "answer": "blue"}]


def refuse(*overrides: str, run_dir: Path | None = None) -> DojangError:
    with pytest.raises(DojangError) as caught:
        dry_run("quickstart", overrides, run_dir)
    return caught.value


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with rows, a reward and a task."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "text.jsonl").write_text("\n".join(map(json.dumps, TEXT)))
    (tmp_path / "numbers.jsonl").write_text("\n".join(map(json.dumps, NUMBERS)))
    (tmp_path / "dry_rewards.py").write_text("def raising(problem, text):\n    raise ValueError('oops')\n")
    return tmp_path


def rows(name: str) -> list[str]:
    return ["data.name=files", f"data.train={name}", f"data.test={name}", "rollout.prompts_per_step=1"]


def test_all_problems_are_reported_together(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "find_spec", lambda name: None)
    (here / "file").touch()
    error = refuse(
        *("train.lora={}", "rollout.engine=vllm", "data.name=files", "data.train=text.jsonl", "data.test=gone.jsonl"),
        *('task.rewards={correct: 1, "nowhere:reward": 1}', "model.name=./gone", "track.custom=nowhere:tracker"),
        run_dir=here / "file" / "run",
    )
    assert isinstance(error, SeveralErrors)
    found = [str(each) for each in error.errors]
    for words in (
        *(
            "cannot write to",
            "train.lora needs peft",
            "rollout.engine.name=vllm needs vllm",
            "gone.jsonl does not exist",
        ),
        *("cannot import 'nowhere'", "'./gone' does not exist", "track.custom"),
    ):
        assert any(words in each for each in found), (words, found)
    assert error.exit_code == RunDirError.exit_code


def test_answers_that_the_task_cannot_grade(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = refuse(*rows("text.jsonl"))
    assert isinstance(error, DataError)
    assert "2 of 2 problems tried of the train split cannot be graded by task.name=answer_line" in str(error)
    assert "exact_match" in str(error)
    dry_run("quickstart", rows("numbers.jsonl"))  # half of the rows can be: health.max_judge_errors
    dry_run("quickstart", [*rows("text.jsonl"), "task.name=exact_match"])
    assert "would run:" in capsys.readouterr().out
    assert [each.name for each in here.iterdir() if each.is_dir() and each.name != "__pycache__"] == []  # wrote nothing


def test_reward_that_always_raises(here: Path) -> None:
    error = refuse('task.rewards={correct: 1, "dry_rewards:raising": 1}')
    assert "reward 'raising' raised ValueError: oops" in str(error)


def test_programs_without_tests(here: Path) -> None:
    (here / "programs.jsonl").write_text(json.dumps({"question": "add", "answer": {"private": []}}) + "\n")
    assert "no tests for task.tests=private" in str(refuse(*rows("programs.jsonl"), "task.name=code"))


def test_directory_of_another_run(here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / "notes.txt").touch()
    assert "is not empty and holds no run" in str(refuse(run_dir=here / "run"))


def test_a_port_in_use_a_small_kv_cache_and_a_full_disk(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = refuse(
            *(f"track.prometheus.port={port}", "rollout.engine.kv_cache_gb=1e-5"),
            *("loop.mode=stream", f"loop.listen=127.0.0.1:{port}"),
            run_dir=here / "run",
        )
    for words in (
        f"loop.listen=127.0.0.1:{port}: cannot listen",
        f"cannot listen on track.prometheus.host=127.0.0.1, port={port}",
        "rollout.engine.kv_cache_gb=1e-05 holds 0 tokens",
        "GB of checkpoints (weights and optimizer state, checkpoint.keep=1 and the last) will not fit",
    ):
        assert words in str(error)
    assert not (here / "run").exists()


def test_print_join_needs_stream(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs mode=stream"):
        dry_run("quickstart", ["loop.mode=overlap"], here / "run", join=True)


def test_the_loop_is_described(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dry_run("quickstart", ["loop.mode=stream", "loop.lag=3", "loop.workers=2"], here / "run", join=True)
    said = capsys.readouterr().out
    by = "this process, 2 rollout workers, those that join at 0.0.0.0:0"
    assert f"loop    stream, loop.lag=3; sampled by {by}" in said


def test_a_rollout_server_that_does_not_answer_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    said = str(refuse(f"rollout.engine={{name: remote, url: [{url}]}}"))
    assert f"rollout.engine.url={url}: GET /health failed" in said
    assert "start the server" in said
