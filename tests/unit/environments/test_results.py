"""What environments return: read, or refused as a failure of the environment; a run never ends by it."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from dojang.environments.base import Step
from dojang.environments.calls import EnvironmentFailed
from dojang.environments.results import as_messages, as_step, as_verdict
from dojang.types import Message, Outcome, Verdict


class Unreadable:
    """An object that raises wherever it is looked at."""

    def __float__(self) -> float:
        raise RuntimeError("no number today")

    def __repr__(self) -> str:
        raise RuntimeError("no text either")


@pytest.mark.parametrize(
    "found", [True, 1, 1.0, np.float32(1), np.bool_(True), np.array(1.0), Fraction(1), Step(reward=np.int64(1), done=1)]
)
def test_a_number_of_any_kind_ends_the_episode(found: Any) -> None:
    step = as_step(found)
    assert (type(step.reward), step.reward, step.done) == (float, 1.0, True)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (np.array([1.0]), r"`step` returned reward array\(\[1.\]\), which is not a finite number"),
        (np.array([1.0, 2.0]), "which is not a finite number"),
        (np.array(["a"]), "which is not a finite number"),
        (torch.tensor([0.5]), "which is not a finite number"),
        (Step(reward=np.str_("5")), "which is not a number"),
        (10**400, "which is not a finite number"),
        (1e300, "at most 1e\\+30"),
        (float("inf"), "reward inf"),
        (1j, "`step` returned 1j; it may return text, a dojang.Message"),
        (b"text", "it may return"),
        ({"reward": 1}, "it may return"),
        (Step, "it may return"),
        (["a", "b"], "it may return"),
        ((each for each in "ab"), "it may return"),
        (
            ("obs", 1.0, True, False, {}),
            r"Gymnasium's .* dojang.Step\(observation, reward, done=",
        ),
        (Step(reward=None), "reward None, which is not a number"),
        (Step(reward="1"), "reward '1', which is not a number"),
        (Step(reward=np.array([1, 2])), "reward array"),
        (Step(parts=None), "parts None"),
        (Step(parts={"a": None}), "a None, which is not a number"),
        (Step(parts={"a": float("inf")}), "a inf"),
        (Step(parts={1: 1}), "a part named 1"),
        (Step(verdict=0.5), "verdict=0.5"),
        (Step(if_last=1.0), "if_last 1.0"),
        (Step(solved="yes"), "solved 'yes', which is not true or false"),
        (Step(done=np.array([True, False])), "cannot be read: ValueError"),
        (Step(detail=5), "detail 5, which is not text"),
        (Unreadable(), "cannot be read: RuntimeError: no number today"),
        (Step(reward=Unreadable()), "cannot be read: RuntimeError: no number today"),
        (Step(detail=Unreadable()), "detail <Unreadable instance"),
        (Verdict(Outcome.JUDGE_ERROR, None, detail="no judge"), "could not be graded: no judge"),
        (Verdict(Outcome.WRONG, 1e300), "at most 1e\\+30"),
        (Verdict("accepted", 1.0), "where a dojang.Verdict was expected"),
        (Step(if_last=Verdict(Outcome.JUDGE_ERROR, None, detail="no judge")), "no judge"),
    ],
)
def test_a_result_that_cannot_be_used_is_a_failure(found: Any, said: str) -> None:
    with pytest.raises(EnvironmentFailed, match=said):
        as_step(found)


def test_text_of_numpy_is_text() -> None:
    """It can be read as a number."""
    step = as_step(np.str_("5"))
    assert (step.messages, step.reward, step.done) == ((Message("user", "5"),), 0.0, False)


def test_an_agent_is_told_what_agents_may_return() -> None:
    with pytest.raises(EnvironmentFailed, match=r"the agent returned \[1\]; it may return a number, text"):
        as_step([1], "the agent")


@pytest.mark.parametrize(
    ("found", "messages"),
    [
        ("go", [Message("user", "go")]),
        (Message("tool", "4", "add"), [Message("tool", "4", "add")]),
        ({"role": "user", "content": "go"}, [Message("user", "go")]),
        (
            [{"role": "system", "content": "Be brief."}, Message("user", "go")],
            [Message("system", "Be brief."), Message("user", "go")],
        ),
        ([{"role": "tool", "content": "4", "name": "add"}], [Message("tool", "4", "add")]),
    ],
)
def test_messages_may_be_text_or_dicts(found: Any, messages: list[Message]) -> None:
    assert as_messages(found) == tuple(messages)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "`reset` returned None; it may return text"),
        ([], "returned \\[\\]"),
        (("obs", {}), r"for Gymnasium's \(observation, info\), return the observation"),
        (Message("bot", "go"), "role 'bot', which is not one of system, user"),  # type: ignore[arg-type]
        (Message("user", None), "content None, which is not text"),  # type: ignore[arg-type]
        (Message("user", 5), "content 5, which is not text"),  # type: ignore[arg-type]
        ({"role": "user", "content": [{"type": "text", "text": "go"}]}, "which is not text"),
        ({"role": "tool", "content": "4", "tool_call_id": "1"}, "a message with tool_call_id; it may have role"),
    ],
)
def test_messages_of_no_use_are_a_failure(found: Any, said: str) -> None:
    with pytest.raises(EnvironmentFailed, match=said):
        as_messages(found, "reset")


def test_lone_surrogates_are_replaced() -> None:
    """No tokenizer takes them, and a model can write them: as `\\ud800` in the arguments of a tool."""
    assert as_messages("a\ud800b\ud83d\ude00") == (Message("user", "a\ufffdb\U0001f600"),)
    assert as_messages(Message("tool", "\udfff", "\ud800")) == (Message("tool", "\ufffd", "\ufffd"),)
    step = as_step(Step(detail="\ud800", parts={"\ud800": 1}, verdict=Verdict(Outcome.WRONG, 0.0, detail="\ud800")))
    assert (step.detail, dict(step.parts)) == ("\ufffd", {"\ufffd": 1.0})
    assert step.verdict is not None
    assert step.verdict.detail == "\ufffd"


def test_a_verdict_keeps_all_that_it_says() -> None:
    verdict = Verdict(Outcome.WRONG, 0.5, 1, 2, {"a": 0.5}, "half", 0.1, "namespaces", {"a": (1.0, 0.5)})
    assert as_verdict(verdict, "returned ") == verdict
