"""Reward functions for TRL and veRL. tests/with_trl uses the real TRL."""

import asyncio
import importlib.util
import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dojang.integrations.reward_functions
from dojang.core.errors import ConfigError, DataError, JudgeError
from dojang.data.rows import to_row
from dojang.integrations.reward_functions import TrlReward, VerlReward, as_trl_reward, as_verl_reward, compute_score
from dojang.protocols import Task
from dojang.types import Message, Outcome, Problem, Verdict

RIGHT = "So:\n#### The final answer is 18"
SUM = {"private": [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"}], "language": "python3"}
ADDS = "```python\nprint(sum(map(int, input().split())))\n```"


class Recorder:
    """A task that records its calls, and fails a given number of times."""

    def __init__(self, failures: int = 0) -> None:
        self.seen: list[tuple[Problem, str]] = []
        self._failures = failures

    def problems(self, split: str) -> list[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Verdict:
        self.seen.append((problem, text))
        if len(self.seen) <= self._failures:
            raise OSError("the service is gone")
        return Verdict(Outcome.ACCEPTED, 1.0, parts={"size": float(len(text))})


@pytest.fixture
def code() -> Iterator[TrlReward]:
    reward = as_trl_reward({"name": "code", "language": "python3"}, reference="tests", judge={"workers": 1})
    yield reward
    reward.close()


# ---- TRL ----------------------------------------------------------------------------------------------------------


def test_completions_may_be_texts_or_conversations() -> None:
    reward = as_trl_reward("answer_line", reference="answer")
    assert reward.__name__ == "answer_line"
    turns = [
        {"role": "assistant", "content": "#### 17"},
        {"role": "tool", "content": "#### 18"},
        {"role": "assistant", "content": [{"type": "text", "text": "#### "}, {"type": "text", "text": "18"}]},
    ]
    given = [RIGHT, [{"role": "assistant", "content": RIGHT}], turns, [{"role": "assistant", "content": None}], []]
    found = reward(prompts=["q"] * 5, completions=given, completion_ids=[[1]] * 5, answer=["18"] * 5)
    assert found == [1.5, 1.5, 1.0, 0.0, 0.0]


def test_prepared_rows_need_no_reference_column() -> None:
    recorder = Recorder()
    problem = Problem("sums/1", "sums", (Message("system", "Be brief."), Message("user", "9 * 2?")), "18", "easy")
    row = to_row(problem, ability="math", split="train", index=0)
    columns = {key: [value] for key, value in row.items() if key != "prompt"}
    assert as_trl_reward(recorder)(prompts=[row["prompt"]], completions=["18"], **columns) == [1.0]
    assert recorder.seen == [(problem, "18")]


@pytest.mark.parametrize(
    ("truth", "reference"),
    [
        ("18", "18"),
        (18, 18),
        ('"18"', "18"),
        (r"\{1, 2\}", r"\{1, 2\}"),
        ("{1, 2}", "{1, 2}"),
        (json.dumps(SUM), SUM),
        (SUM, SUM),
        ({"required": np.array(["dose", "noon"])}, {"required": ["dose", "noon"]}),
        (None, None),
    ],
)
def test_reference_column_formats(truth: object, reference: object) -> None:
    recorder = Recorder()
    reward = as_trl_reward(recorder, reference="solution")
    reward(prompts=["q", "q", "r"], completions=["a", "b", "a"], solution=[truth] * 3, data_source=["d"] * 3)
    problems = [problem for problem, _ in recorder.seen]
    assert [each.reference for each in problems] == [reference] * 3
    assert problems[0].id == problems[1].id != problems[2].id  # the same problem is drawn the same tests
    assert problems[0].source == "d"


def test_missing_column_is_refused() -> None:
    reward = as_trl_reward("answer_line")
    with pytest.raises(ConfigError, match=r"no column 'reward_model'; .*reference='solution'\). Columns: answer, id"):
        reward(prompts=["q"], completions=["a"], answer=["18"], id=["1"])
    with pytest.raises(DataError, match="a ground truth of x cannot be read"):
        as_trl_reward("code", reference="tests")(completions=["a"], tests=[{"private_tests": 1}], data_source=["x"])


def test_unjudged_completion_has_no_reward_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    reward = as_trl_reward("answer_line", reference="answer", name="sums")
    said: dict[str, float] = {}
    with caplog.at_level(logging.WARNING):
        found = reward(completions=[RIGHT, RIGHT], answer=["18", "many"], log_metric=said.__setitem__)
    assert found == [1.5, None]
    assert said == {"sums/accuracy": 1.0, "sums/correct": 1.0, "sums/format": 1.0}
    (record,) = caplog.records
    assert "sums: 1 of 2 completions could not be judged" in record.getMessage()
    assert "'many' is not a number" in record.getMessage()


def test_failure_is_retried() -> None:
    assert as_trl_reward(Recorder(failures=2), reference="x")(completions=["a"], x=["1"]) == [1.0]
    assert as_trl_reward(Recorder(failures=3), reference="x")(completions=["a"], x=["1"]) == [None]


def test_works_in_an_event_loop_and_in_threads() -> None:
    reward = as_trl_reward("answer_line", reference="answer")

    async def inside() -> list[float | None]:
        return reward(completions=[RIGHT], answer=["18"])

    assert asyncio.run(inside()) == [1.5]
    found: list[Any] = []
    ask = lambda: found.extend(reward(completions=[RIGHT, "no"], answer=["18", "18"]))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0.0] * 16 + [1.5] * 16
    reward.close()
    reward.close()
    assert reward(completions=[RIGHT], answer=["18"]) == [1.5]


def test_judge_workers_are_reused(code: TrlReward) -> None:
    first = code(completions=[ADDS, "```python\nprint(3)\n```", "no program"], tests=[SUM] * 3)
    assert first == [1.0, 0.5, -1.0]
    mine = workers()
    assert mine
    assert code(completions=[[{"role": "assistant", "content": ADDS + " "}]], tests=[json.dumps(SUM)]) == [1.0]
    assert workers() == mine
    code.close()
    assert not workers()


def test_fork_starts_its_own_processes(code: TrlReward) -> None:
    assert code(completions=[ADDS], tests=[SUM]) == [1.0]
    again = pickle.loads(pickle.dumps(code))
    assert again.__name__ == "code"
    assert again(completions=[ADDS], tests=[SUM]) == [1.0]
    again.close()
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writing, str(code(completions=[ADDS], tests=[SUM])).encode())
            code.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"[1.0]"


def test_keywords_and_custom_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    words = as_trl_reward({"name": "keywords", "required": ["dose"]}, reference="rules")
    # A table fills in None where a row has no such key.
    rules = [{"required": ["noon"], "forbidden": None}, {"required": None, "forbidden": ["now"]}]
    assert words(completions=["a dose at noon", "a dose now"], rules=rules) == [1.0, 0.0]
    monkeypatch.setattr(
        dojang.integrations.reward_functions, "own_task", lambda problems, **options: Recorder(), raising=False
    )
    own = as_trl_reward({"name": "custom", "make_with": "dojang.integrations.reward_functions:own_task"}, reference="x")
    assert (own.__name__, own(completions=["a"], x=["1"])) == ("custom", [1.0])


@pytest.mark.parametrize(
    ("task", "judge", "said"),
    [
        ("mahts", None, "task.name: 'mahts' is not one of answer_line, .*; did you mean maths?"),
        ({"name": "maths", "boxd": 1}, None, "task.boxd: no such key; did you mean task.boxed?"),
        ({}, None, "task.name: must be given: one of answer_line, "),
        (None, None, "None is not a task: give a task's name"),
        (["maths"], None, "is not a task"),
        (Recorder, None, "is not a task"),
        ("code", {"worker": 1}, "judge.worker: no such key; did you mean judge.workers?"),
        ("code", "http://judge", "judge: input should be a valid dictionary.*, but it is 'http://judge'"),
    ],
)
def test_invalid_task_is_refused(task: Any, judge: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        as_trl_reward(task, judge=judge)


def test_close_fails_pending_calls() -> None:
    begun = threading.Event()
    told: list[Exception] = []

    class Stuck(Recorder):
        async def grade(self, problem: Problem, text: str) -> Verdict:
            if text == "a":
                begun.set()
                await asyncio.sleep(3600)
            return await super().grade(problem, text)

    reward = as_trl_reward(Stuck(), reference="x")

    def ask() -> None:
        try:
            reward(completions=["a"], x=["1"])
        except JudgeError as error:
            told.append(error)

    waits = threading.Thread(target=ask, daemon=True)
    waits.start()
    assert begun.wait(10)
    reward.close()
    waits.join(10)
    assert [str(each) for each in told] == ["the grader was closed before all completions were graded"]
    assert reward(completions=["b"], x=["1"]) == [1.0]  # begins anew
    reward.close()


def test_no_process_outlives_the_program() -> None:
    program = f"""
        import os, subprocess
        from dojang.integrations.reward_functions import as_trl_reward
        reward = as_trl_reward("code", reference="tests", judge={{"workers": 1}})
        print(reward(completions=[{ADDS!r}], tests=[{SUM!r}]))
        listed = lambda parent: subprocess.run(["ps", "-o", "pid=", "--ppid", parent], capture_output=True, text=True)
        below = lambda parent: [x for child in listed(parent).stdout.split() for x in [child, *below(child)]]
        print(*below(str(os.getpid())))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    rewards, below = done.stdout.splitlines()
    assert rewards == "[1.0]"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(map(alive, below.split())):
        time.sleep(0.05)
    assert not any(map(alive, below.split()))


def alive(process: str) -> bool:
    """Returns whether the process runs; zombies do not count."""
    return said(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()[:1] not in ([], ["Z"])


def workers() -> set[str]:
    """Returns the judge processes below this one; verifiers of other tests may still be ending."""
    threads = Path("/proc/self/task").iterdir()
    below = {child for thread in threads for child in said(thread / "children").split()}
    return {child for child in below if "supervisor" in said(Path(f"/proc/{child}/cmdline"))}


def said(file: Path) -> str:
    """Reads /proc status of a process or thread; empty if it has just ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


# ---- veRL ---------------------------------------------------------------------------------------------------------


def loaded_by_path(path: str, name: str, **reward_kwargs: Any) -> Any:
    """Loads the file like veRL: executes it under another module name."""
    spec = importlib.util.spec_from_file_location("custom_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["custom_module"] = module
    spec.loader.exec_module(module)
    function = getattr(module, name)
    return lambda *args, **kwargs: function(*args, **kwargs, **reward_kwargs)


def test_verl_loads_the_file_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "custom_module", raising=False)
    score = loaded_by_path(dojang.integrations.reward_functions.__file__, "compute_score", task={"name": "answer_line"})
    monkeypatch.delitem(sys.modules, "custom_module")
    given = {"data_source": "gsm8k", "solution_str": RIGHT, "ground_truth": "18", "extra_info": {"index": 3}}
    assert score(**given) == {"score": 1.5, "acc": 1.0}
    assert score(**{**given, "ground_truth": '"17"'}) == {"score": 0.5, "acc": 0.0}
    # Newer versions add arguments for reward models.
    assert score(**given, reward_router_address=None, reward_model_tokenizer=None)["acc"] == 1.0


def test_custom_file_may_configure_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "custom_module", raising=False)
    file = tmp_path / "mine.py"
    file.write_text(
        "from dojang.integrations.reward_functions import as_verl_reward\n"
        "compute_score = as_verl_reward({'name': 'keywords', 'required': ['dose']})\n"
    )
    score = loaded_by_path(str(file), "compute_score")
    monkeypatch.delitem(sys.modules, "custom_module")
    assert score("advice", "a dose", None) == {"score": 1.0, "acc": 1.0}


def test_unjudged_completion_is_an_error_in_verl() -> None:
    with pytest.raises(JudgeError, match=r"could not be judged: .*'many' is not a number"):
        compute_score("gsm8k", RIGHT, "many", task="answer_line")
    with pytest.raises(ConfigError, match=r"reward_kwargs\.task"):
        compute_score("gsm8k", RIGHT, "18")


def test_equal_settings_share_processes() -> None:
    settings = {"name": "code", "language": "python3"}
    first = compute_score("sums", ADDS, json.dumps(SUM), task=settings, judge={"workers": 1})
    mine = workers()
    assert first == {"score": 1.0, "acc": 1.0}
    assert compute_score("sums", ADDS, json.dumps(SUM), {}, task=dict(settings), judge={"workers": 1}) == first
    assert workers() == mine
    dojang.integrations.reward_functions._verl(json.dumps(settings), json.dumps({"workers": 1})).close()
    assert not workers()


def test_threads_share_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def slow(problems: object, **options: object) -> Recorder:
        time.sleep(0.05)
        made.append(options)
        return Recorder()

    monkeypatch.setattr(dojang.integrations.reward_functions, "slow_task", slow, raising=False)
    task = {"name": "custom", "make_with": "dojang.integrations.reward_functions:slow_task"}
    threads = [threading.Thread(target=compute_score, args=("x", "a", "1"), kwargs={"task": task}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_public_names() -> None:
    recorder: Task = Recorder()
    assert isinstance(as_verl_reward(recorder), VerlReward)
    assert as_verl_reward(recorder).__name__ == "compute_score"
