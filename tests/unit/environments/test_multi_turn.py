"""Episodes of several turns: one token stream, rewards, failures that are no rewards."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment, Messages, Reply, Step, StepResult
from dojang.environments.episode_start import start_episode
from dojang.environments.multi_turn import EpisodeLimits, MultiTurn
from dojang.environments.retry import RetryConfig
from dojang.types import Group, Message, Outcome, Problem, Sampling, Verdict
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy
from scripted_engine import ScriptedEngine

SAMPLING = Sampling(temperature=1.0, max_tokens=20, seed=1)
Play = Callable[..., Group]


class ExactTask:
    """Accepts the reference."""

    def problems(self, split: str) -> Sequence[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Verdict:
        right = text == problem.reference
        return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, float(right), parts={"exact": float(right)})


@pytest.fixture
def play(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> Play:
    """Plays episodes of an environment with scripted replies, numbered by turn."""

    def run(
        make: Callable[[], Environment],
        replies: Callable[[int, int], str] = lambda place, turn: f"turn {turn}",
        *,
        group_size: int = 2,
        max_turns: int = 5,
        context: int = 512,
        timeout_s: float = 5.0,
        lockstep: bool = True,
        max_tokens: int = 20,
    ) -> Group:
        def script(prompt: str, index: int, sampling: Sampling) -> str:
            return replies(sampling.prompt_index, prompt.count("<|assistant|>") - 1)

        policy = RolloutPolicy(
            ScriptedEngine(tokenizer, script),
            ChatRenderer(tokenizer, context=context, max_tokens=max_tokens),
            replace(SAMPLING, max_tokens=max_tokens),
        )
        limits = EpisodeLimits(max_turns, timeout_s)
        workflow = MultiTurn(make, ExactTask(), policy, limits, group_size=group_size, lockstep=lockstep)
        return asyncio.run(workflow.run(problem, 3))

    return run


class Countdown(Environment):
    """Asks three times, pays 0.25 for each reply and 0.5 at the end."""

    def __init__(self) -> None:
        self.left = 3

    def step(self, reply: Reply) -> StepResult:
        self.left -= 1
        if self.left:
            return Step(f"{self.left} left", reward=0.25, parts={"patience": 0.25})
        return Step(reward=0.5, done=True, detail="all asked")


def test_an_episode_is_one_stream_of_tokens(play: Play, tokenizer: PreTrainedTokenizerBase, problem: Problem) -> None:
    group = play(Countdown)
    assert [each.index for each in group.samples] == [0, 1]
    sample = group.samples[0]
    said = [
        *problem.messages,
        Message("assistant", "turn 0"),
        Message("user", "2 left"),
        Message("assistant", "turn 1"),
        Message("user", "1 left"),
        Message("assistant", "turn 2"),
    ]
    chat = [{"role": each.role, "content": each.content} for each in said]
    assert tokenizer.decode(sample.tokens.tolist()) == tokenizer.apply_chat_template(chat, tokenize=False).strip("\n")
    sampled = tokenizer.decode(sample.tokens[sample.mask].tolist())
    assert sampled == "turn 0<|end|>turn 1<|end|>turn 2<|end|>"
    assert [(each.role, each.reward) for each in sample.turns] == [
        ("assistant", 0.25),
        ("user", 0.0),
        ("assistant", 0.25),
        ("user", 0.0),
        ("assistant", 0.5),
    ]
    ranges = [np.arange(each.start, each.end) for each in sample.turns if each.role == "assistant"]
    assert np.array_equal(np.concatenate(ranges), np.flatnonzero(sample.mask))


def test_rewards_of_turns_add_up(play: Play) -> None:
    verdict = play(Countdown).samples[0].verdict
    assert (verdict.outcome, verdict.reward, verdict.detail) == (Outcome.ACCEPTED, 1.0, "all asked")
    assert verdict.parts == {"patience": 0.5}


def test_every_turn_and_episode_has_its_own_random_numbers(
    tokenizer: PreTrainedTokenizerBase, problem: Problem
) -> None:
    streams = []

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        streams.append((sampling.seed, sampling.prompt_index))
        return "x"

    policy = RolloutPolicy(
        ScriptedEngine(tokenizer, script), ChatRenderer(tokenizer, context=512, max_tokens=20), SAMPLING
    )
    workflow = MultiTurn(Countdown, ExactTask(), policy, EpisodeLimits(5, 5.0), group_size=4, lockstep=True)

    async def batch() -> None:
        await asyncio.gather(*(workflow.run(problem, index) for index in range(3)))

    asyncio.run(batch())
    assert len(streams) == len(set(streams)) == 3 * 4 * 3


def test_every_episode_is_a_conversation(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> None:
    """For the prefix cache: also one that an evaluation, or a group that is sampled again, has at the same place."""
    asked: list[str] = []

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        asked.append(sampling.conversation)
        return "x"

    policy = RolloutPolicy(
        ScriptedEngine(tokenizer, script), ChatRenderer(tokenizer, context=512, max_tokens=20), SAMPLING
    )
    for _ in range(2):
        workflow = MultiTurn(Countdown, ExactTask(), policy, EpisodeLimits(5, 5.0), group_size=4, lockstep=True)
        asyncio.run(workflow.run(problem, 3))
    assert sorted(Counter(asked).values()) == [3] * 8
    assert "" not in asked


def test_the_task_grades_an_answer(play: Play, problem: Problem) -> None:
    class Ask(Environment):
        async def step(self, reply: Reply) -> StepResult:
            return await self.grade(reply.text) if reply.turn else Step("are you sure?", reward=0.1)

    group = play(Ask, lambda place, turn: str(problem.reference) if place % 2 else "no idea")
    outcomes = [(each.verdict.outcome, each.verdict.reward, dict(each.verdict.parts)) for each in group.samples]
    assert outcomes == [(Outcome.WRONG, 0.1, {"exact": 0.0}), (Outcome.ACCEPTED, 1.1, {"exact": 1.0})]


class Failing(Environment):
    def __init__(self, failure: Callable[[], StepResult]) -> None:
        self.failure = failure

    def step(self, reply: Reply) -> StepResult:
        return self.failure() if reply.turn else "go on"


def stop_iteration() -> StepResult:
    raise StopIteration


def leave() -> StepResult:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (stop_iteration, "StopIteration"),
        (leave, "SystemExit"),
        (lambda: time.sleep(0.5) or 1.0, "took longer than workflow.timeout_s=0.1"),
        (lambda: float("nan"), "reward nan"),
        (lambda: None, "returned None"),
        (list, "returned []"),
        (lambda: Step(reward=0.5), "returned a Step without messages; set done=True to end the episode"),
        (lambda: Step(parts={"x": float("inf")}, done=True), "x inf"),
        (lambda: Verdict(Outcome.JUDGE_ERROR, None, detail="no judge"), "no judge"),
        (lambda: np.array([1.0, 2.0]), "not a finite number"),
        (lambda: Step(verdict=0.5), "verdict=0.5"),  # type: ignore[arg-type]
        (lambda: Step(if_last=lambda: 0.5), "if_last returned 0.5"),  # type: ignore[arg-type,return-value]
        (lambda: Message("text", "go on"), "cannot be mixed with the turns of a conversation"),
        (lambda: Message("assistant", "", tool_calls=(("f", "{"),)), "its messages cannot be written"),
    ],
)
def test_a_failure_of_the_environment_is_no_reward(play: Play, failure: Callable[[], StepResult], reason: str) -> None:
    last = 2 if "if_last" in reason else 5
    group = play(lambda: Failing(failure), timeout_s=0.1 if "timeout_s" in reason else 60, max_turns=last)
    assert group.samples == ()
    assert all(reason in error for error in group.judge_errors), group.judge_errors
    assert all(each.mask.any() for each in group.unjudged), "what was sampled is recorded"


def test_an_episode_goes_on_after_text_that_is_no_unicode(play: Play) -> None:
    """A tool may echo `\\ud800` of the model, and a corpus may hold it."""

    class Echo(Environment):
        def reset(self, problem: Problem) -> str:
            return "a\ud800"

        def step(self, reply: Reply) -> StepResult:
            return Message("user", "b\ud800") if reply.turn == 0 else 1.0

    (sample,) = play(Echo, group_size=1).samples
    assert sample.verdict.outcome is Outcome.ACCEPTED
    assert "[user] b\ufffd" in sample.text


def test_a_failed_reset_is_tried_again(play: Play) -> None:
    made = []

    class Flaky(Countdown):
        def reset(self, problem: Problem) -> Messages:
            made.append(self)
            if len(made) < 3:
                raise OSError("the server is down")
            return problem.messages

    assert play(Flaky, group_size=1).samples[0].reward == 1.0

    class Down(Countdown):
        def reset(self, problem: Problem) -> Messages:
            raise OSError("the server is down")

    (sample,) = play(Down, group_size=1).unjudged
    assert "the server is down" in sample.verdict.detail
    assert len(sample.tokens) == 0


def test_a_failed_constructor_is_tried_again(play: Play) -> None:
    made = []

    class Flaky(Countdown):
        def __init__(self) -> None:
            made.append(self)
            if len(made) < 3:
                raise OSError("no free port")
            super().__init__()

    assert play(Flaky, group_size=1).samples[0].reward == 1.0

    class Down(Countdown):
        def __init__(self) -> None:
            raise OSError("no free port")

    (sample,) = play(Down, group_size=1).unjudged
    assert "the constructor raised OSError: no free port" in sample.verdict.detail


@pytest.mark.parametrize("lockstep", [True, False])
def test_slow_constructors_run_at_the_same_time(play: Play, lockstep: bool) -> None:
    class Slow(Countdown):
        def __init__(self) -> None:
            time.sleep(0.3)
            super().__init__()

    started = time.monotonic()
    assert len(play(Slow, group_size=64, lockstep=lockstep, timeout_s=10).samples) == 64
    assert time.monotonic() - started < 64 * 0.3


def test_a_constructor_that_hangs_exceeds_the_time_limit(play: Play) -> None:
    closed = []

    class Late(Countdown):
        def __init__(self) -> None:
            time.sleep(0.3)

        async def close(self) -> None:  # type: ignore[override]
            closed.append(self)

    (error,) = play(Late, group_size=1, timeout_s=0.1).judge_errors
    assert "the constructor took longer than workflow.timeout_s=0.1" in error
    deadline = time.monotonic() + 20
    while len(closed) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(closed) == 3, "those that are made too late are closed"


def test_an_environment_of_a_start_that_is_cancelled_is_closed(
    problem: Problem, tokenizer: PreTrainedTokenizerBase
) -> None:
    closed, started = [], threading.Event()
    renderer = ChatRenderer(tokenizer, context=512, max_tokens=20)

    class Slow(Countdown):
        def reset(self, problem: Problem) -> Messages:
            started.set()
            time.sleep(0.5)
            return "go"

    async def cancel() -> None:
        async def close(environment: Environment) -> None:
            closed.append(environment)

        starting = asyncio.ensure_future(start_episode(Slow, ExactTask(), problem, renderer, timeout_s=20, close=close))
        await asyncio.to_thread(started.wait)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(cancel())
    assert len(closed) == 1


def test_a_plain_text_prompt_is_refused_before_the_run_where_turns_follow(
    problem: Problem, tokenizer: PreTrainedTokenizerBase
) -> None:
    plain = replace(problem, messages=(Message("text", "2+2="),))
    renderer = ChatRenderer(tokenizer, context=512, max_tokens=20)
    check = partial(RetryConfig.check_start, task=ExactTask(), problems=[plain], renderer=renderer)
    with pytest.raises(ConfigError, match=r"is plain text, .* set data.style=chat, or workflow.max_turns=1"):
        asyncio.run(check(RetryConfig()))
    asyncio.run(check(RetryConfig(max_turns=1)))


def test_an_episode_ends_after_max_turns(play: Play) -> None:
    class Endless(Environment):
        def step(self, reply: Reply) -> StepResult:
            return Step("more", reward=0.1)

    (sample,) = play(Endless, group_size=1, max_turns=4).samples
    assert sum(each.role == "assistant" for each in sample.turns) == 4
    assert sample.turns[-1].role == "assistant", "nothing follows the last reply"
    assert sample.verdict.reward == pytest.approx(0.4)
    assert "workflow.max_turns=4" in sample.verdict.detail


def test_an_episode_ends_where_the_context_does(play: Play) -> None:
    class Long(Environment):
        def step(self, reply: Reply) -> StepResult:
            return Step("x" * 40, reward=1.0)

    (sample,) = play(Long, group_size=1, max_turns=50, context=200).samples
    assert len(sample.tokens) <= 200
    assert sample.finish == "length"
    assert sample.turns[-1].role == "assistant"


def test_a_reply_that_is_cut_ends_the_episode(play: Play) -> None:
    seen = []

    class Watch(Environment):
        def step(self, reply: Reply) -> StepResult:
            seen.append(reply.cut)
            return "go on"

    (sample,) = play(Watch, lambda place, turn: "y" * 50, group_size=1).samples
    assert seen == [True]
    assert sample.finish == "length"
    assert sample.verdict.reward == 0.0


def test_environments_are_closed_once_also_after_failures(play: Play) -> None:
    closed = []

    class Closing(Failing):
        def close(self) -> None:
            closed.append(self)
            raise OSError("cannot close")

    play(lambda: Closing(lambda: 1 / 0))
    play(lambda: Closing(lambda: 1.0))
    assert len(closed) == len(set(map(id, closed))) == 4


def test_slow_environments_do_not_wait_for_each_other(play: Play) -> None:
    class Slow(Environment):
        def step(self, reply: Reply) -> StepResult:
            time.sleep(0.2)
            return "go on" if reply.turn < 2 else 1.0

    started = time.monotonic()
    group = play(Slow, group_size=64, lockstep=False)
    assert len(group.samples) == 64
    assert time.monotonic() - started < 64 * 0.2, "they sleep at the same time"


@pytest.mark.parametrize("lockstep", [True, False])
def test_few_episodes_at_a_time(tokenizer: PreTrainedTokenizerBase, problem: Problem, lockstep: bool) -> None:
    playing: set[int] = set()
    most = []

    class Counted(Environment):
        def reset(self, problem: Problem) -> str:
            playing.add(id(self))
            most.append(len(playing))
            return "begin"

        def step(self, reply: Reply) -> StepResult:
            return "go on" if reply.turn < 2 else 1.0

        def close(self) -> None:
            playing.discard(id(self))

    policy = RolloutPolicy(
        ScriptedEngine(tokenizer, lambda *_: "reply"), ChatRenderer(tokenizer, context=512, max_tokens=20), SAMPLING
    )
    limits = EpisodeLimits(5, 60.0, max_concurrent=2)
    workflow = MultiTurn(Counted, ExactTask(), policy, limits, group_size=7, lockstep=lockstep)
    group = asyncio.run(workflow.run(problem, 0))
    assert len(group.samples) == 7
    assert max(most) == 2


def test_replies_of_a_batch_are_sampled_together(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> None:
    order = []

    class Uneven(Environment):
        async def step(self, reply: Reply) -> StepResult:
            await asyncio.sleep(0.01 * (hash(reply.text) % 5))
            return "go on" if reply.turn < 2 else 1.0

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        order.append((prompt.count("<|assistant|>"), sampling.prompt_index))
        return f"reply {sampling.prompt_index}"

    policy = RolloutPolicy(
        ScriptedEngine(tokenizer, script), ChatRenderer(tokenizer, context=512, max_tokens=20), SAMPLING
    )
    workflow = MultiTurn(Uneven, ExactTask(), policy, EpisodeLimits(5, 5.0), group_size=3, lockstep=True)

    async def batch() -> None:
        await asyncio.gather(*(workflow.run(problem, index) for index in range(2)))

    asyncio.run(batch())
    assert order == sorted(order), "turn by turn, in the order of the samples"
