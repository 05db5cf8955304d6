"""Program repair with the real judge: feedback, what it hides, and rewards."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.environments.repair import RepairConfig
from dojang.judge.pool import JudgePool
from dojang.programs import CallTest, IoTest
from dojang.protocols import Judge
from dojang.tasks.code import CodeConfig, CodeReference, CodeTask
from dojang.types import Message, Outcome, Problem, Sample, Sampling
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy
from scripted_engine import ScriptedEngine
from scripted_episodes import LastWordTask, play

PUBLIC = (IoTest("1 2\n", "3\n"),)
HIDDEN = (IoTest("31337 1\n", "31338\n"), IoTest("5 -5\n", "0\n"))
RIGHT = "a, b = map(int, input().split())\nprint(a + b)"


def block(program: str) -> str:
    return f"```python\n{program}\n```"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    pool = JudgePool(cache=Path(tmp_path_factory.mktemp("cache")), workers=1)
    yield pool
    asyncio.run(pool.close())


def repair(
    tokenizer: PreTrainedTokenizerBase,
    judge: Judge,
    programs: list[str],
    reference: CodeReference | None = None,
    **settings: object,
) -> Sample:
    reference = reference or CodeReference(private=HIDDEN, public=PUBLIC)
    problem = Problem("sum/1", "sum", (Message("user", "Print the sum of two numbers."),), reference)
    task: CodeTask = CodeConfig().make({"train": [problem]}, judge)
    section = RepairConfig.model_validate(settings)
    section.check_problems(task, [problem])
    return play(tokenizer, section, [block(each) for each in programs], task=task, problem=problem)


def feedback(sample: Sample) -> str:
    return sample.text.partition("[user] ")[2]


def test_feedback_on_a_public_test_leads_to_the_repaired_program(
    tokenizer: PreTrainedTokenizerBase, judge: Judge
) -> None:
    sample = repair(tokenizer, judge, ["print(4)", RIGHT])
    assert (sample.verdict.outcome, sample.verdict.reward, sample.verdict.passed) == (Outcome.ACCEPTED, 1.0, 2)
    for words in ("wrong answer", "fails a public test", "1 2", "Expected output:\n3", "Output of the program:\n4"):
        assert words in feedback(sample)
    assert [each.reward for each in sample.turns if each.role == "assistant"] == [0.0, 1.0]


@pytest.mark.parametrize(
    "program",
    [
        "a, b = map(int, input().split())\nprint(a + b if a == 1 else 9)",
        "import sys\na, b = map(int, input().split())\nif a != 1:\n    raise ValueError(f'{a} {b}')\nprint(a + b)",
        "a, b = map(int, input().split())\nif a != 1:\n    raise type(f'E{a}', (Exception,), {})\nprint(a + b)",
        "import sys\na, b = map(int, input().split())\nif a != 1:\n    sys.exit(str(a))\nprint(a + b)",
    ],
)
def test_nothing_of_hidden_tests_is_told(tokenizer: PreTrainedTokenizerBase, judge: Judge, program: str) -> None:
    sample = repair(tokenizer, judge, [program, RIGHT])
    assert "passes the public tests" in feedback(sample)
    assert "31337" not in feedback(sample)
    assert "31338" not in feedback(sample)


def test_the_line_of_an_exception_is_told(tokenizer: PreTrainedTokenizerBase, judge: Judge) -> None:
    program = "a, b = map(int, input().split())\nif a != 1:\n    1 // 0\nprint(a + b)"
    reference = CodeReference(private=HIDDEN, public=PUBLIC, prefix="import math\nimport re")
    assert "ZeroDivisionError in line 3" in feedback(repair(tokenizer, judge, [program, RIGHT], reference))


def test_hidden_tests_are_shown_if_asked_for(tokenizer: PreTrainedTokenizerBase, judge: Judge) -> None:
    program = "a, b = map(int, input().split())\nprint(a + b if a == 1 else 9)"
    told = feedback(repair(tokenizer, judge, [program, RIGHT], show_tests="all"))
    assert "31337 1" in told
    assert "Expected output:\n31338" in told
    assert "Output of the program:\n9" in told


def test_no_test_is_shown_if_none_may_be(tokenizer: PreTrainedTokenizerBase, judge: Judge) -> None:
    told = feedback(repair(tokenizer, judge, ["print(4)", RIGHT], show_tests="none"))
    assert "wrong answer" in told
    assert "1 2" not in told


def test_messages_of_the_compiler_are_told(tokenizer: PreTrainedTokenizerBase, judge: Judge) -> None:
    sample = repair(tokenizer, judge, ["print(", RIGHT])
    assert "does not compile" in feedback(sample)
    assert "SyntaxError" in feedback(sample)


def test_hidden_assertions_are_not_told(tokenizer: PreTrainedTokenizerBase, judge: Judge) -> None:
    reference = CodeReference(
        private=(CallTest("assert add(31337, 1) == 31338"),), public=(CallTest("assert add(1, 2) == 3"),)
    )
    wrong, half = "def add(a, b):\n    return 4", "def add(a, b):\n    return a + b if a == 1 else a"
    sample = repair(tokenizer, judge, [wrong, half, "def add(a, b):\n    return a + b"], reference)
    assert sample.verdict.outcome is Outcome.ACCEPTED
    assert "assert add(1, 2) == 3" in feedback(sample)
    assert "passes the public tests" in feedback(sample)
    assert "3133" not in feedback(sample)


def test_the_last_program_is_rewarded_with_discount(tokenizer: PreTrainedTokenizerBase, judge: Judge) -> None:
    half = "a, b = map(int, input().split())\nprint(0)"
    sample = repair(tokenizer, judge, ["print(", half, RIGHT], turn_discount=0.5)
    assert sample.verdict.reward == 0.25
    sample = repair(tokenizer, judge, ["print(", half], turn_discount=0.5, max_turns=2)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.WRONG, 0.25)


def test_a_program_counts_if_no_further_reply_fits(tokenizer: PreTrainedTokenizerBase, judge: Judge) -> None:
    half = block("print(0)")
    problem = Problem("sum/2", "sum", (Message("user", "Print the sum."),), CodeReference(HIDDEN, PUBLIC))
    task = CodeConfig().make({"train": [problem]}, judge)
    engine = ScriptedEngine(tokenizer, lambda *_: half)
    policy = RolloutPolicy(
        engine, ChatRenderer(tokenizer, context=120, max_tokens=60), Sampling(temperature=1.0, max_tokens=60)
    )
    group = asyncio.run(RepairConfig().make(task, {"policy": policy}, 1).run(problem, 0))
    (sample,) = group.samples
    assert (sample.finish, sample.verdict.reward, sample.verdict.outcome) == ("length", 0.5, Outcome.WRONG)


def test_other_tasks_are_refused(problem: Problem) -> None:
    with pytest.raises(ConfigError, match=r"task\.name=code"):
        RepairConfig().check_problems(LastWordTask(), [problem])
