"""The conversation of coder and tester, with engines that say what they are told."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.programs import CallTest, IoTest, Isolation, Judgement, TestResult, fold
from dojang.types import Group, Message, Outcome, Problem, Sample, Sampling, StopLine, Verdict
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.coder_tester import CoderTester, CoderTesterConfig
from dojang.workflows.section import RolloutPolicy
from scripted_engine import ScriptedEngine

DOUBLE = Problem("double", "toys", (Message("user", "Double a number."),), None)
TOKENS = 400


class Doubling:
    """A ProgramTask: an answer is Python of one variable; right is what doubles 1 to 9."""

    def __init__(self, *, lost: Sequence[str] = (), unrun: Sequence[str] = ()) -> None:
        self.lost, self.unrun = lost, unrun
        """Answers that cannot be judged, and inputs that cannot be run."""
        self.trials: list[str] = []

    def problems(self, split: str) -> Sequence[Problem]:
        return [DOUBLE]

    def function(self, problem: Problem) -> str | None:
        return ""

    async def grade(self, problem: Problem, text: str) -> Verdict:
        if text in self.lost:
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"no verdict on {text}")
        passed = sum(eval(text, {"x": x}) == 2 * x for x in range(1, 10))
        return Verdict(Outcome.ACCEPTED if passed == 9 else Outcome.WRONG, float(passed == 9), passed, 9)

    async def trial(self, problem: Problem, text: str, tests: Sequence[IoTest | CallTest]) -> Judgement:
        self.trials.append(text)
        results = tuple(
            TestResult(at, self._ran(text, test)) for at, test in enumerate(tests) if isinstance(test, IoTest)
        )
        return Judgement(fold(results), results, len(tests), Isolation.LANDLOCK, "said")

    def _ran(self, text: str, test: IoTest) -> Outcome:
        if test.input in self.unrun:
            return Outcome.JUDGE_ERROR
        return Outcome.ACCEPTED if str(eval(text, {"x": int(test.input)})) == test.output else Outcome.WRONG


def cases(*pairs: tuple[str, str]) -> str:
    shown = {"inputs": [given for given, _ in pairs], "outputs": [wanted for _, wanted in pairs]}
    return f"```json\n{json.dumps(shown)}\n```"


GOOD = cases(("2", "4"), ("3", "6"))
"""Right, and tells x+x from x*x."""
WEAK = cases(("0", "0"), ("2", "4"))
"""Right, but x*x passes, too."""
BAD = cases(("2", "5"), ("3", "6"))
"""Nothing right passes them."""


@pytest.fixture
def play(tokenizer: PreTrainedTokenizerBase) -> Callable[..., Group]:
    """Runs the problem with so many first answers, a reply about each, and second answers by first ones."""

    def run(
        firsts: Sequence[str],
        replies: Sequence[str],
        seconds: Sequence[str] = (),
        *,
        task: Doubling | None = None,
        asked: list[tuple[str, Sampling]] | None = None,
        contexts: tuple[int | None, int | None] = (None, None),
        **settings: Any,
    ) -> Group:
        noted = [] if asked is None else asked

        def coder(prompt: str, index: int, sampling: Sampling) -> str:
            noted.append((prompt, sampling))
            return firsts[index] if sampling.seed == 1 else seconds[sampling.prompt_index % len(firsts)]

        def tester(prompt: str, index: int, sampling: Sampling) -> str:
            noted.append((prompt, sampling))
            return replies[sampling.prompt_index % len(firsts)]

        def speaker(script: Any, seed: int, context: int | None) -> RolloutPolicy:
            renderer = ChatRenderer(tokenizer, context=context, max_tokens=TOKENS)
            return RolloutPolicy(ScriptedEngine(tokenizer, script), renderer, Sampling(1.0, TOKENS, seed=seed))

        workflow = CoderTester(
            CoderTesterConfig(**settings),
            task or Doubling(),
            coder=speaker(coder, 1, contexts[0]),
            retry_policy=speaker(coder, 2, contexts[0]),
            tester=speaker(tester, 3, contexts[1]),
            group_size=len(firsts),
        )
        return asyncio.run(workflow.run(DOUBLE, 5))

    return run


def told(group: Group) -> list[tuple[str, int, str, float]]:
    return [(each.role, each.index, each.text, each.reward) for each in group.samples]


def of(group: Group, role: str) -> list[float]:
    return [sample.reward for sample in group.of(role).samples]


def test_a_program_that_is_right_and_approved(play: Callable[..., Group]) -> None:
    assert told(play(["x+x"], [GOOD])) == [("coder", 0, "x+x", 1.0), ("tester", 0, GOOD, 1.0)]


def test_a_program_that_is_refused_gets_another_try(play: Callable[..., Group]) -> None:
    asked: list[tuple[str, Sampling]] = []
    group = play(["x*x"], [GOOD], ["2*x"], asked=asked)
    assert told(group) == [("coder", 0, "x*x", 0.0), ("coder", 1, "2*x", 1.0), ("tester", 0, GOOD, 1.0)]
    again, sampling = asked[-1]
    assert sampling == Sampling(1.0, TOKENS, seed=2, prompt_index=5, conversation=asked[0][1].conversation)
    assert "Double a number." in again
    assert "<|assistant|>x*x<|end|>" in again
    assert "Case 1: PASS\nInput:\n2\nExpected output:\n4" in again
    assert "Case 2: FAIL\nInput:\n3\nExpected output:\n6" in again
    assert group.samples[2].verdict.parts == {"valid": 1.0, "tells": 1.0}
    assert group.samples[2].verdict.outcome is Outcome.ACCEPTED


def test_a_second_attempt_that_is_right_proves_cases(play: Callable[..., Group]) -> None:
    assert of(play(["x*x"], [BAD], ["x+x"]), "tester") == [0.0]
    assert of(play(["x*x"], [GOOD], ["x+x"]), "tester") == [1.0]


def test_approving_a_wrong_program_is_worth_half(play: Callable[..., Group]) -> None:
    group = play(["x*x", "x+x"], [WEAK, GOOD])
    assert told(group) == [
        ("coder", 0, "x*x", 0.0),
        ("coder", 1, "x+x", 1.0),
        ("tester", 0, WEAK, 0.5),
        ("tester", 1, GOOD, 1.0),
    ]
    verdict = group.samples[2].verdict
    assert (verdict.outcome, verdict.passed, verdict.total) == (Outcome.WRONG, 2, 2)
    assert verdict.parts == {"valid": 1.0, "tells": 0.0}
    assert verdict.terms == {"valid": (0.5, 1.0), "tells": (0.5, 0.0)}


def test_refusing_a_right_program_is_worth_nothing_and_has_no_second_attempt(play: Callable[..., Group]) -> None:
    group = play(["x+x"], [BAD], ["never"])
    assert told(group) == [("coder", 0, "x+x", 1.0), ("tester", 0, BAD, 0.0)]
    assert (group.samples[1].verdict.passed, group.samples[1].verdict.total) == (1, 2)


def test_cases_that_are_wrong_are_worth_nothing_though_they_refuse_rightly(play: Callable[..., Group]) -> None:
    assert of(play(["x*x", "x+x"], [BAD, GOOD], ["x*x", "x*x"]), "tester") == [0.0, 1.0]


def test_cases_get_no_reward_if_no_sample_solved_the_problem(play: Callable[..., Group]) -> None:
    group = play(["x*x", "x"], [GOOD, "what?"], ["x*x", "x"])
    assert of(group, "tester") == [0.0, 0.0]
    assert group.of("tester").samples[0].verdict.detail.startswith("no sample solved the problem")


@pytest.mark.parametrize(
    ("reply", "why"),
    [("I like it.", "no finished block"), (cases(("2", "4")), "1 cases where 2 were asked for")],
)
def test_cases_that_cannot_be_read_are_worth_nothing(play: Callable[..., Group], reply: str, why: str) -> None:
    task = Doubling()
    group = play(["x*x", "x+x"], [reply, GOOD], ["never"], task=task)
    assert of(group, "coder") == [0.0, 1.0]
    first, _ = group.of("tester").samples
    assert (first.verdict.outcome, first.reward) == (Outcome.NO_ANSWER, 0.0)
    assert why in first.verdict.detail
    assert "x*x" not in task.trials


def test_without_retries_there_are_none(play: Callable[..., Group]) -> None:
    assert len(play(["x*x"], [GOOD], ["never"], retry=False).of("coder").samples) == 1


@pytest.mark.parametrize("retry", [True, False])
def test_the_coders_turns_of_a_group_are_one_conversation(play: Callable[..., Group], *, retry: bool) -> None:
    """For the prefix cache. The tester has no second turn."""
    groups = []
    for _ in range(2):
        asked: list[tuple[str, Sampling]] = []
        play(["x*x", "x"], [GOOD, GOOD], ["2*x", "x+x"], asked=asked, retry=retry)
        assert {each.conversation for _, each in asked if each.seed == 3} == {""}
        groups.append([each.conversation for _, each in asked if each.seed != 3])
    one, other = groups
    assert (len(one), len(set(one))) == (4 if retry else 2, 1)
    assert (one[0] != "", one[0] != other[0]) == (retry, retry)


def test_an_attempt_without_a_verdict_takes_its_cases_with_it(play: Callable[..., Group]) -> None:
    group = play(["x*x", "x+x"], [GOOD, GOOD], ["never"], task=Doubling(lost=["x*x"]))
    assert told(group) == [("coder", 1, "x+x", 1.0), ("tester", 1, GOOD, 1.0)]
    assert [(each.role, each.index) for each in group.unjudged] == [("coder", 0), ("tester", 0)]
    assert set(group.judge_errors) == {"no verdict on x*x"}


def test_an_unjudged_program_leaves_cases_without_verdict(play: Callable[..., Group]) -> None:
    """So that nobody else is known to be right proves nothing, except of what cannot even be read."""
    group = play(["x*x", "x+x", "x"], [GOOD, GOOD, "?"], ["x", "x", "x"], task=Doubling(lost=["x+x"]))
    assert [(each.role, each.index) for each in group.unjudged] == [("coder", 1), ("tester", 0), ("tester", 1)]
    assert of(group, "tester") == [0.0]


def test_a_second_attempt_without_a_verdict_is_set_aside_alone(play: Callable[..., Group]) -> None:
    group = play(["x*x", "x+x"], [GOOD, GOOD], ["x+0"], task=Doubling(lost=["x+0"]))
    assert told(group)[2:] == [("tester", 0, GOOD, 1.0), ("tester", 1, GOOD, 1.0)]
    assert [(each.role, each.index) for each in group.unjudged] == [("coder", 2)]


def test_cases_that_cannot_be_run_are_set_aside(play: Callable[..., Group]) -> None:
    other = cases(("5", "10"), ("7", "14"))
    group = play(["x*x", "x+x"], [other, GOOD], ["never"], task=Doubling(unrun=["5"]))
    assert told(group) == [("coder", 0, "x*x", 0.0), ("coder", 1, "x+x", 1.0), ("tester", 1, GOOD, 1.0)]
    assert [(each.role, each.index) for each in group.unjudged] == [("tester", 0)]


def test_a_task_that_raises_is_a_judge_that_failed(play: Callable[..., Group]) -> None:
    class Raises(Doubling):
        async def trial(self, problem: Problem, text: str, tests: Sequence[IoTest | CallTest]) -> Judgement:
            raise RuntimeError("out of chalk")

    group = play(["x+x"], [GOOD], task=Raises())
    assert [each.role for each in group.samples] == ["coder"]
    (said,) = group.judge_errors
    assert said.startswith("RuntimeError: out of chalk (")


def test_trained_tokens_are_prompts_and_sampled_tokens(
    play: Callable[..., Group], tokenizer: PreTrainedTokenizerBase
) -> None:
    asked: list[tuple[str, Sampling]] = []
    group = play(["x*x", "x"], [GOOD, GOOD], ["2*x", "x+x"], asked=asked)
    # The first prompt is asked once for both; each of the others is its own, in the order of samples.
    prompts = [asked[0][0], asked[0][0], asked[4][0], asked[5][0], asked[2][0], asked[3][0]]
    for sample, prompt in zip(group.samples, prompts, strict=True):
        answer = (*tokenizer.encode(sample.text), tokenizer.eos_token_id)
        assert tuple(sample.tokens[-len(answer) :]) == answer
        assert tuple(sample.mask) == (False,) * (len(sample.tokens) - len(answer)) + (True,) * len(answer)
        assert tokenizer.decode(sample.tokens[: -len(answer)]) == prompt
    assert "Double a number." in prompts[4]
    assert "x*x" in prompts[4]
    assert "x*x" not in prompts[5]


def test_roles_and_turns_have_separate_random_streams(play: Callable[..., Group]) -> None:
    asked: list[tuple[str, Sampling]] = []
    play(["x*x", "x"], [GOOD, GOOD], ["x", "x"], asked=asked)
    streams = [(sampling.seed, sampling.prompt_index) for _, sampling in asked]
    assert streams == [(1, 5), (1, 5), (3, 10), (3, 11), (2, 10), (2, 11)]


def test_a_conversation_that_does_not_fit_ends_where_it_is(play: Callable[..., Group]) -> None:
    untested = play(["x*x"], [GOOD], ["never"], contexts=(None, TOKENS + 20))
    assert told(untested) == [("coder", 0, "x*x", 0.0)]
    once = play(["x*x"], [GOOD], ["never"], contexts=(TOKENS + 60, None))
    assert [sample.role for sample in once.samples] == ["coder", "tester"]


def test_several_problems_at_a_time_get_what_each_gets_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    def script(prompt: str, index: int, sampling: Sampling) -> str:
        return ["x*x", "x+x"][index] if sampling.seed == 1 else GOOD if sampling.seed == 3 else "2*x"

    def speaker(seed: int) -> RolloutPolicy:
        renderer = ChatRenderer(tokenizer, context=None, max_tokens=TOKENS)
        return RolloutPolicy(ScriptedEngine(tokenizer, script), renderer, Sampling(1.0, TOKENS, seed=seed))

    def workflow() -> CoderTester:
        return CoderTester(
            CoderTesterConfig(), Doubling(), coder=speaker(1), retry_policy=speaker(2), tester=speaker(3), group_size=2
        )

    async def together() -> list[Group]:
        shared = workflow()
        return await asyncio.gather(*(shared.run(DOUBLE, prompt_index) for prompt_index in range(4)))

    def samples(group: Group) -> tuple[Sample, ...]:
        return group.samples

    alone = [asyncio.run(workflow().run(DOUBLE, prompt_index)) for prompt_index in range(4)]
    assert [samples(group) for group in asyncio.run(together())] == [samples(group) for group in alone]


def test_second_turns_and_the_tester_have_separate_seeds_and_the_tester_no_stop_conditions() -> None:
    line = StopLine(("x",), len)
    sampling = Sampling(1.0, TOKENS, seed=7, stop=("end",), stop_line=line)
    policy: Any = RolloutPolicy(None, None, sampling)  # type: ignore[arg-type]
    made = CoderTesterConfig().make(Doubling(), {"coder": policy, "tester": policy}, group_size=2)
    chosen = [each.sampling for each in (made._coder, made._retry_policy, made._tester)]
    assert len({each.seed for each in chosen}) == 3
    assert all(each.seed % 2**32 == 7 for each in chosen)  # apart from evaluation, whose offset is 2**32
    assert 7 + 2**32 not in {each.seed for each in chosen}
    assert [(each.stop, each.stop_line) for each in chosen] == [(("end",), line), (("end",), line), ((), None)]


@pytest.mark.parametrize(("strip_examples", "reward"), [(True, 0.0), (False, 1.0)])
def test_an_assertion_that_the_task_shows_counts_only_with_its_examples(
    play: Callable[..., Group], monkeypatch: pytest.MonkeyPatch, strip_examples: bool, reward: float
) -> None:
    class Calls(Doubling):
        def function(self, problem: Problem) -> str | None:
            return "double"

        async def trial(self, problem: Problem, text: str, tests: Sequence[IoTest | CallTest]) -> Judgement:
            return Judgement(Outcome.ACCEPTED, (TestResult(0, Outcome.ACCEPTED),), 1, Isolation.LANDLOCK)

    shown = "```python\nassert double(2) == 4\n```"
    monkeypatch.setitem(globals(), "DOUBLE", Problem("double", "toys", (Message("user", shown),), None))
    group = play(["x+x"], [shown], task=Calls(), cases=1, strip_examples=strip_examples)
    assert of(group, "tester") == [reward]
