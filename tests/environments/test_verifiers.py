"""Environments of verifiers, as its `vf-init` makes them: played and trained against with its stock harness."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerBase

import dojang
from dojang.core.errors import ConfigError, DataError
from dojang.data.verifiers import VerifiersDataConfig
from dojang.environments.rollout_process import close_rollout_processes
from dojang.environments.verifiers import VerifiersConfig
from dojang.types import Message, Outcome, Problem
from scripted_episodes import LastWordTask, counts, play, tool_call

TASKS = (
    "return [{0}Task({0}Data(prompt=f'Repeat: word{{i}}', name=f'word{{i}}'), self.config.task) "
    "for i in range(self.config.num_tasks)]"
)
REWARD = (
    "if 'broken' in trace.last_reply:\n"
    "            raise RuntimeError('the grader broke')\n"
    "        return 1.0 if self.data.name in trace.last_reply else 0.125 * len(trace.last_reply.strip()[:4])"
)


def scaffold(python: str, folder: Path, name: str, *options: str) -> None:
    """Makes an environment with verifiers' own generator, and fills in what that leaves to the author."""
    command = [str(Path(python).parent / "vf-init"), name, "--path", str(folder), *options]
    subprocess.run(command, check=True, capture_output=True)
    file = folder / name / name / "taskset.py"
    source, prefix = file.read_text(), name.capitalize()
    before, _, rest = source.partition('raise NotImplementedError("Score')
    middle = rest.partition("\n")[2].partition("raise NotImplementedError(")[0]
    file.write_text(f"{before}{REWARD}\n{middle}{TASKS.format(prefix)}\n")


@pytest.fixture(scope="module")
def own_python(verifiers_python: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that also has two environments installed: `parrot`, and `helper` with a tool."""
    folder = tmp_path_factory.mktemp("verifiers")
    scaffold(verifiers_python, folder, "parrot")
    scaffold(verifiers_python, folder, "helper", "--add-tool")
    subprocess.run([verifiers_python, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (packages,) = Path(verifiers_python).parent.parent.glob("lib/python*/site-packages")
    (own,) = (folder / "venv").glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({str(packages)!r})", str(folder / "parrot"), str(folder / "helper")]
    (own / "environments.pth").write_text("\n".join(lines) + "\n")
    (folder / "venv" / "bin" / "uv").symlink_to(Path(verifiers_python).parent / "uv")
    return str(folder / "venv" / "bin" / "python")


@pytest.fixture(scope="module", autouse=True)
def _end_processes() -> Iterator[None]:
    yield
    close_rollout_processes()


def tasks(python: str, taskset: str = "parrot", **settings: Any) -> list[Problem]:
    section = VerifiersDataConfig(python=python, taskset={"id": taskset, "num_tasks": 5}, **settings)
    return section.load("train")


def test_the_tasks_of_a_taskset_are_the_dataset(own_python: str) -> None:
    section = VerifiersDataConfig(python=own_python, taskset={"id": "parrot", "num_tasks": 5})
    train, test = section.load("train"), section.load("test")
    assert (len(train), len(test)) == (4, 1)
    assert {each.id for each in (*train, *test)} == {f"parrot/{number}" for number in range(5)}
    assert all(each.messages[-1].content.startswith("Repeat: word") for each in train)
    more = VerifiersDataConfig(python=own_python, taskset=section.taskset, test_taskset={"num_tasks": 3})
    assert [each.id for each in more.load("test")] == [f"parrot/test/{number}" for number in range(3)]
    assert len(more.load("train")) == 5


def test_a_tool_of_the_taskset_is_called(tokenizer: PreTrainedTokenizerBase, own_python: str) -> None:
    (problem, *_) = tasks(own_python, "helper")
    word = problem.messages[-1].content.split()[-1]

    def replies(asked: str) -> str:
        return f"It said {word}." if "<|tool|>" in asked else tool_call("helper_echo", text=f"echo {word}")

    sample = play(tokenizer, VerifiersConfig(), replies, problem=problem)
    assert counts(sample) == {"assistant": 2, "tool": 1, "user": 0}, sample.verdict
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)
    assert sample.verdict.parts == {"reward": 1.0}
    assert f"echo {word}" in sample.text


def test_failures_are_no_rewards(tokenizer: PreTrainedTokenizerBase, own_python: str) -> None:
    (problem, *_) = tasks(own_python)
    sample = play(tokenizer, VerifiersConfig(), ["broken"], problem=problem)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert "the grader broke" in sample.verdict.detail


def test_problems_of_other_data_become_tasks(tokenizer: PreTrainedTokenizerBase, own_python: str) -> None:
    problem = Problem("own/1", "own", (Message("user", "Say it."),), "hello")
    section = VerifiersConfig(python=own_python, env={"taskset": {"id": "parrot"}}, task_fields={"name": "reference"})
    sample = play(tokenizer, section, ["well, hello"], problem=problem)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0), sample.verdict


def test_a_model_is_trained(own_python: str, tmp_path: Path) -> None:
    result = dojang.train(
        "quickstart",
        steps=2,
        run_dir=tmp_path / "run",
        data={"name": "verifiers", "python": own_python, "taskset": {"id": "parrot", "num_tasks": 5}},
        task={"name": "environment"},
        workflow={"name": "verifiers"},
        rollout={"prompts_per_step": 1, "group_size": 4, "max_tokens": 8, "temperature": 1.5},
        eval={"problems": 1, "every": 10},
        progress=False,
    )
    assert result is not None
    files = sorted((tmp_path / "run" / "rollouts").glob("train-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len(rows) == 2 * 4
    assert not [row["detail"] for row in rows if row["outcome"] == "judge_error"]
    assert all(row["reward"] > 0 for row in rows if row["response"].strip())


def test_what_cannot_be_used_is_refused(own_python: str, tmp_path: Path) -> None:
    (problem, *_) = tasks(own_python)
    task = LastWordTask()
    with pytest.raises(DataError, match="taskset 'nothing' not found"):
        tasks(own_python, "nothing")
    with pytest.raises(DataError, match=r"does not run: .*pip install verifiers==0\.4\.0"):
        tasks(str(tmp_path / "python"))
    with pytest.raises(DataError, match=r"has no verifiers==0\.4\.0"):
        tasks(sys.executable)
    with pytest.raises(ConfigError, match="'nothing' not found"):
        VerifiersConfig(env={"agent": {"harness": {"id": "nothing"}}}).check_problems(task, [problem])
    with pytest.raises(ConfigError, match="taskset"):
        VerifiersConfig().check_problems(task, [Problem("own/1", "own", (Message("user", "?"),), "")])
    with pytest.raises(ConfigError, match="does not run"):
        VerifiersConfig(python=str(tmp_path / "python")).check_problems(task, [problem])
    with pytest.raises(ConfigError, match=r"has no verifiers==0\.4\.0"):
        VerifiersConfig(python=sys.executable).check_problems(task, [problem])
