"""dojang.train and dojang.resume: in a script, in a thread, and where an event loop runs."""

import asyncio
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import dojang
from dojang.core.errors import ConfigError, Interrupted, RunDirError
from dojang.core.in_process import function_name, register_again
from dojang.core.section import load_object

SMALL: dict[str, Any] = {
    "rollout": {"prompts_per_step": 2, "group_size": 2, "max_tokens": 8},
    "eval": {"every": 2, "problems": 2},
    "checkpoint": {"every": 1},
    "progress": False,
}
ROWS = [{"prompt": f"What is {a} + {a}?", "answer": str(2 * a), "even": a % 2 == 0} for a in range(10, 40)]


def says_final(completions: list[str], even: list[bool], **_: Any) -> list[float]:
    """A reward with TRL's signature, and a column of the rows."""
    assert all(isinstance(each, bool) for each in even)
    return [float("final" in each) for each in completions]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dojang.RunResult:
    directory = tmp_path_factory.mktemp("api") / "run"
    return dojang.train(
        model="dojang-tiny", dataset=ROWS, reward_funcs=[says_final], algo="grpo", steps=2, run_dir=directory, **SMALL
    )


def test_a_run_has_metrics_rollouts_models_and_a_chart(result: dojang.RunResult) -> None:
    assert result.status == "finished"
    assert [row["step"] for row in result.metrics if "critic/rewards/mean" in row] == [1, 2]
    assert result.rollouts.num_rows == 2 * 2 * 2
    assert set(result.rollouts["reward"].to_pylist()) <= {0.0, 1.0}
    assert result.eval_rollouts.num_rows == 2 * 2
    assert result.accuracy is not None
    assert result.best_model is not None
    assert (result.best_model / "config.json").is_file()
    assert result.config.task.name == "reward_functions"
    assert len(result.plot().axes) == 2


def test_the_hint_to_resume_functions_of_a_script_is_a_python_call(tmp_path: Path) -> None:
    def local(completions: list[str], **_: Any) -> list[float]:
        return [1.0 for _ in completions]

    run_dir = tmp_path / "run"
    dojang.train(model="dojang-tiny", dataset=ROWS, reward_funcs=[local, "format"], steps=1, run_dir=run_dir, **SMALL)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["resume"] == f"dojang.resume('{run_dir}', reward_funcs=[local])"


def test_torchrun_needs_a_run_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"torchrun started several processes.*give run_dir"):
        dojang.train("quickstart")
    with pytest.raises(ConfigError, match="a Session runs in one process, but torchrun started 2"):
        dojang.Session("quickstart")


def test_a_run_is_resumed_with_its_functions(result: dojang.RunResult) -> None:
    more = dojang.resume(result.run_dir, reward_funcs=[says_final], overrides=["steps=3"], progress=False)
    assert more.run_dir == result.run_dir
    assert max(row["step"] for row in more.metrics) == 3


def test_other_functions_are_refused_on_resume_and_the_same_name_is_taken_anew(result: dojang.RunResult) -> None:
    def other(completions: list[str], **_: Any) -> list[float]:
        return [0.0 for _ in completions]

    with pytest.raises(ConfigError, match="was started with the reward functions says_final, not other"):
        dojang.resume(result.run_dir, reward_funcs=other)


def test_a_function_gets_the_name_it_had_in_the_process_that_started_the_run() -> None:
    def mine(completions: list[str]) -> list[float]:
        return [0.0 for _ in completions]

    names = ["format", "dojang.core.in_process:mine_2", "dojang.core.in_process:mine_too"]
    assert register_again(mine, names) == "dojang.core.in_process:mine_2"  # the second of its name in a notebook
    assert load_object(names[1], "task.rewards") is mine
    assert function_name(names[1]) == "mine"
    assert register_again(mine, names[2:]) == ""


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="holds no run"):
        dojang.RunResult(str(tmp_path))  # type: ignore[arg-type]


def test_train_blocks_where_an_event_loop_runs(tmp_path: Path) -> None:
    async def cell() -> dojang.RunResult:
        return dojang.train("quickstart", steps=1, run_dir=tmp_path / "run", **SMALL)

    assert asyncio.run(cell()).status == "finished"


def test_train_runs_in_a_thread(tmp_path: Path) -> None:
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: found.append(dojang.train("quickstart", steps=1, run_dir=tmp_path / "run", **SMALL).status)
    )
    thread.start()
    thread.join(120)
    assert found == ["finished"]


@pytest.mark.parametrize("in_loop", [False, True])
def test_ctrl_c_saves_a_checkpoint_and_gives_the_handlers_back(tmp_path: Path, in_loop: bool) -> None:
    before = signal.getsignal(signal.SIGINT)
    steps = tmp_path / "run" / "metrics.jsonl"

    def interrupt() -> None:
        while not steps.exists():
            threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    def train() -> None:
        dojang.train("quickstart", steps=10_000, run_dir=tmp_path / "run", **SMALL)

    async def cell() -> None:
        train()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted, match="everything is saved"):
        asyncio.run(cell()) if in_loop else train()
    assert signal.getsignal(signal.SIGINT) is before
    assert dojang.RunResult(tmp_path / "run").status == "interrupted"
    assert (tmp_path / "run" / "checkpoints" / "last").exists()
