"""Where completions end, and that nothing that counts is cut."""

import pickle
import time
from random import Random

import pytest

from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.answers import answer_line, is_correct
from dojang.tasks.code import CodeConfig
from dojang.tasks.extract import SPELLINGS, extract_code
from dojang.tasks.math_verify_process import last_box
from dojang.tasks.maths import MathsConfig
from dojang.tasks.reasoning_gym import ReasoningGymTaskConfig
from dojang.tasks.reward_settings import PatternReward
from dojang.tasks.section import TaskSection
from dojang.tasks.stop_lines import (
    AFTER_ANSWER_LINE,
    AFTER_FIRST_PROGRAM,
    TURN_AFTER_BOX,
    TURN_AFTER_PROGRAM,
    TURN_AFTER_TAGS,
    or_after_fence,
)
from dojang.types import StopLine

BLOCK = "```python\nprint(1)\n```"
ANSWER_OR_PROGRAM, BOX_OR_PROGRAM, PROGRAM = (
    or_after_fence(each, "python3") for each in (AFTER_ANSWER_LINE, TURN_AFTER_BOX, None)
)
OF_TASKS = [AFTER_ANSWER_LINE, AFTER_FIRST_PROGRAM, TURN_AFTER_BOX, TURN_AFTER_PROGRAM, TURN_AFTER_TAGS]
ALL = [*OF_TASKS, ANSWER_OR_PROGRAM, BOX_OR_PROGRAM, PROGRAM]


def kept(line: StopLine, text: str) -> str | None:
    """The text up to the stop; None if it goes on."""
    end = line.end(text)
    return None if end is None else text[:end]


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("3 + 4\n#### The final answer is 7\nHuman: next", "3 + 4\n#### The final answer is 7"),
        ("#### 7\n", "#### 7"),
        ("#### 7\n#### 8\n", "#### 7"),
        ("  #### 7 \r\n\nmore", "  #### 7 \r"),
        ("##### 7\nx", "##### 7"),
        ("3 + 4\n#### 7", None),  # more digits may follow
        ("as in #### 7\nx", None),
        ("no line\n", None),
        ("Question: x\n#### 7\n", None),  # of an invented question
        ("#### 7 Question:", None),
        ("#### 7 Question: x\n", "#### 7 "),
    ],
)
def test_a_completion_ends_after_its_answer_line(text: str, until: str | None) -> None:
    assert kept(AFTER_ANSWER_LINE, text) == until
    if until is not None:
        assert answer_line(until) == answer_line(text)
        assert is_correct(until, 7)


@pytest.mark.parametrize("turn", ["Human: and now?", "User: hi", "[INST] more", "<|im_start|>user", "<|eot_id|>"])
def test_a_program_ends_before_an_invented_next_turn(turn: str) -> None:
    text = f"So:\n{BLOCK}\nIt prints 1.\n"
    assert kept(TURN_AFTER_PROGRAM, text) is None
    assert kept(TURN_AFTER_PROGRAM, f"{text}{turn}") == text
    assert kept(TURN_AFTER_PROGRAM, f"{text}{turn}\n```python\nprint(2)\n```") == text
    assert kept(TURN_AFTER_PROGRAM, f"I cannot.\n{turn}") is None  # no program yet


@pytest.mark.parametrize(
    "text",
    [
        f'{BLOCK}\n```python\ns = """\nHuman: hi\n',  # in an open block
        f"{BLOCK}\n<code>\nHuman: hi\n",  # which may still be closed
        f"<think>\n{BLOCK}\nHuman: asks\n",  # still thinking
        f"{BLOCK}\nthe Human: asks",
        f"{BLOCK}\nUser name: x",
        f"{BLOCK}\nA first try. Better:\n```python\nprint(2)\n```\n",  # the last block counts
    ],
)
def test_a_program_goes_on_where_the_rest_may_count(text: str) -> None:
    assert kept(TURN_AFTER_PROGRAM, text) is None


def test_the_first_block_ends_a_program_where_that_is_asked_for() -> None:
    assert kept(AFTER_FIRST_PROGRAM, f"So:\n{BLOCK}") is None  # `````` may follow
    assert kept(AFTER_FIRST_PROGRAM, f"So:\n{BLOCK}\nIt prints 1.\n{BLOCK}\n") == f"So:\n{BLOCK}"
    assert kept(AFTER_FIRST_PROGRAM, "<code>\nprint(1)\n</code>\nmore") == "<code>\nprint(1)\n</code>"
    for other in ("```\n1\n```\n", "```python\n\n```\n", "```text\nx\n```\n", f"<think>\n{BLOCK}\n"):
        assert kept(AFTER_FIRST_PROGRAM, other) is None
    assert kept(AFTER_FIRST_PROGRAM, f"<think>\n{BLOCK}\n</think>\n{BLOCK}\n") == f"<think>\n{BLOCK}\n</think>\n{BLOCK}"


@pytest.mark.parametrize(
    ("text", "until"),
    [
        (f"Let me compute.\n{BLOCK}\n#### 7\n", f"Let me compute.\n{BLOCK}"),
        (f"#### 7\n{BLOCK}\n", "#### 7"),
        ("```python\n#### 7\nprint(1)\n```\n#### 8\n", "```python\n#### 7\nprint(1)\n```"),  # a comment
        ("```python\n#### 7\nprint(1)\n", None),
        ("```output\n7\n```\n#### 8\n", "```output\n7\n```\n#### 8"),
        ("```cpp\nint x;\n```\n#### 8\n", "```cpp\nint x;\n```\n#### 8"),  # is not run
        ("```\n#### 7\n```\n#### 8\n", "```\n#### 7"),  # is no code
        ("<code>print</code> says\n#### 8\n", "<code>print</code> says\n#### 8"),
        ("No code", None),
    ],
)
def test_an_environment_that_runs_code_ends_completions_at_a_block_or_the_answer(text: str, until: str | None) -> None:
    assert kept(ANSWER_OR_PROGRAM, text) == until


def test_code_or_a_box_end_a_completion() -> None:
    assert kept(BOX_OR_PROGRAM, f"So:\n{BLOCK}") == f"So:\n{BLOCK}"
    assert kept(BOX_OR_PROGRAM, "So \\boxed{7}\nHuman: x") == "So \\boxed{7}\n"
    assert kept(BOX_OR_PROGRAM, "So \\boxed{7}") is None
    assert kept(PROGRAM, f"So:\n{BLOCK}") is None  # `````` may follow
    assert kept(PROGRAM, f"So:\n{BLOCK}\n7\n") == f"So:\n{BLOCK}"
    for line in ALL:
        assert pickle.loads(pickle.dumps(line)) == line  # engines may be in other processes


def test_boxes_and_tags_end_before_an_invented_next_turn() -> None:
    text = "So \\boxed{\\frac{1}{2}}.\n"
    assert kept(TURN_AFTER_BOX, f"{text}Human: and 2?\n\\boxed{{3}}") == text
    assert kept(TURN_AFTER_BOX, f"{text}so \\boxed{{3}}\n") is None  # the last box counts
    assert kept(TURN_AFTER_BOX, "So \\boxed{1\nHuman: x") is None
    text = "<answer>7</answer>\n"
    assert kept(TURN_AFTER_TAGS, f"{text}User: more") == text
    assert kept(TURN_AFTER_TAGS, "7</answer>\nUser: more") is None


PIECES = [
    *("Human: ", "User: ", "\n", "\n", "\n\n", "#### ", "7", "12", "Question:", "word ", "é", "[INST]", "<|im_end|>"),
    *("```python\n", "```\n", "```", "~~~\n", "<code>", "</code>", "print(1)\n", "x = 2\n", "<think>", "</think>"),
    *("\\boxed{", "}", "<answer>", "</answer>", "    ", "- ", BLOCK, f"\n{BLOCK}\n"),
]


@pytest.mark.parametrize("seed", range(300))
def test_the_end_stays_and_what_counts_is_not_cut(seed: int) -> None:
    random = Random(seed)
    text = "".join(random.choices(PIECES, k=random.randrange(1, 25)))
    for line in ALL:
        ends = [line.end(text[:size]) for size in range(len(text) + 1)]
        first = next((size for size, end in enumerate(ends) if end is not None), None)
        if first is None or "think>" in text[first:]:
            continue
        assert any(string in text[:first] for string in line.begins)
        cut = text[: ends[first]]
        if line is AFTER_ANSWER_LINE:
            assert answer_line(cut) == answer_line(text)
        if line is TURN_AFTER_PROGRAM:
            for language in SPELLINGS:
                assert extract_code(cut, language) == extract_code(text, language)
        if line is TURN_AFTER_BOX:
            assert last_box(cut) is not None


def test_a_long_completion_is_read_fast() -> None:
    text = f"{BLOCK}\n" * 5000
    started = time.process_time()
    for line in ALL:
        line.end(text)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (AnswerLineConfig(), AFTER_ANSWER_LINE),
        (AnswerLineConfig(stop_at="never"), None),
        (CodeConfig(), TURN_AFTER_PROGRAM),
        (CodeConfig(stop_at="answer"), AFTER_FIRST_PROGRAM),
        (CodeConfig(stop_at="never"), None),
        (MathsConfig(), TURN_AFTER_BOX),
        (MathsConfig(stop_at="never"), None),
        (ReasoningGymTaskConfig(), TURN_AFTER_TAGS),
        (ReasoningGymTaskConfig(stop_at="never"), None),
    ],
)
def test_a_task_declares_its_stop_line(config: TaskSection, line: StopLine | None) -> None:
    assert config.stop_line() == line
    assert pickle.loads(pickle.dumps(config.stop_line())) == line  # engines may be in other processes


def test_a_pattern_rewards_completions_that_end_with_their_answer_line() -> None:
    ends = PatternReward(pattern=r"(?m)^####[^\n]*\s*\Z")  # as docs/rewards.md has it
    texts = ("3 + 4\n#### 7", "#### 7\n", "3 + 4\n#### 7\nHuman: x", "seven")
    assert [ends.value(text, 1.0) for text in texts] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("config", "text", "rest"),
    [
        (AnswerLineConfig(), "3\n#### 7\nHuman: x", "\nHuman: x"),
        (AnswerLineConfig(), "3\n#### 7", ""),
        (AnswerLineConfig(), "seven", None),
        (CodeConfig(), f"a\n{BLOCK}\nb\n{BLOCK}\nc", "\nc"),
        (CodeConfig(), "none", None),
        (MathsConfig(), "$\\boxed{1}$ or $\\boxed{2}$.", "$."),
        (MathsConfig(), "\\boxed{1", None),
        (ReasoningGymTaskConfig(), "<answer>1</answer> ok", " ok"),
        (ReasoningGymTaskConfig(), "1", None),
    ],
)
def test_a_task_says_where_the_answer_ends(config: TaskSection, text: str, rest: str | None) -> None:
    end = config.answer_end(text)
    assert (None if end is None else text[end:]) == rest
