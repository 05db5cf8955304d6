"""Two models: one writes a program, the other writes test cases that tell whether it is right.

    coder    writes a program, n times              judged on the problem's tests        its reward
    tester   sees the task, its examples left out, and the answer; writes N cases        the program is run on them
    coder    if the program failed a case and is wrong: once more, told how each went    judged, its own reward

    the tester's reward     half for cases that are right, half if they also tell right from wrong: the program passes
                            them all exactly if it passes the problem's tests

Whether cases are right is what a right program says. The published original (AstraFlow, code_actor_and_verify) asks a
solution from the dataset; problems here never carry one, so the first program of the group that passes the problem's
own tests stands in for it. Where nobody solved the problem nothing is known of the cases: all get 0, and compared with
each other they teach nothing. Cases that cannot be read get 0 as well (test_cases.py says what can).

Other differences from the recipe's version (v2) are its authors' own corrections (v3): v2 pays the tester for a final
program that is right, which is the coder's merit; and it has the coder try again where there is nothing to tell it, or
where it was right already.

A failure of the judge is never a reward: an attempt it could not judge, cases it could not run, and cases whose answer
had no verdict are set aside. A conversation that no longer fits a model's context ends where it is.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from dojang.core.section import Section
from dojang.programs import Isolation, Judgement
from dojang.protocols import ProgramTask, Renderer, RolloutEngine, TooLong
from dojang.types import Completion, Group, Message, Outcome, Problem, Sample, Sampling, Verdict
from dojang.workflows.batched_turns import Rounds
from dojang.workflows.grade_with_retries import grade_all, group_of, insist
from dojang.workflows.test_cases import Case, Malformed, ask, feedback, read

__all__ = ["TESTER_PARTS", "CoderTester", "CoderTesterConfig", "Speaker", "TesterConfig", "ask_tester"]

TESTER_PARTS = ("valid", "tells")
"""Names of the terms of the tester's reward."""
_RIGHT, _LOST = Outcome.ACCEPTED, Outcome.JUDGE_ERROR


class CoderTesterConfig(Section):
    """A coder writes programs, a tester test cases for them; both learn."""

    name: Literal["coder_tester"] = "coder_tester"
    cases: int = Field(default=2, ge=1)
    """Test cases that the tester must write, no more and no fewer."""
    retry: bool = True
    """Whether the coder tries once more, told of the cases, if its program failed one and is wrong."""
    strip_examples: bool = True
    """Whether the examples are left out of the task that the tester sees, which it could copy."""


class TesterConfig(Section):
    """The second model of workflow.name=coder_tester; what is not here it shares with the first."""

    model: str
    """Its name, as in model.name."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """As model.chat_template_kwargs."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest reply, in tokens; rollout.max_tokens if not given."""
    lr: float | None = Field(default=None, gt=0, le=1000)
    """Peak learning rate; train.lr if not given."""
    url: list[str] = Field(default_factory=list)
    """As rollout.url: servers of its own, for the engine `remote`."""
    engines: int | None = Field(default=None, ge=1)
    """Number of engines of the tester on a Ray cluster; runtime.engines if not given."""
    trainers: int | None = Field(default=None, ge=1)
    """Number of trainers of the tester on a Ray cluster; runtime.trainers if not given."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model to talk with."""

    engine: RolloutEngine
    renderer: Renderer
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class _Said:
    """One answer, and to what."""

    prompt: tuple[int, ...]
    completion: Completion

    @property
    def text(self) -> str:
        return self.completion.text


@dataclass(frozen=True, slots=True)
class _Tested:
    """What the tester wrote about an answer, and what came of it."""

    said: _Said
    cases: tuple[Case, ...]
    complaint: str
    """Why there are no cases."""
    judgement: Judgement
    """Of the program, by the cases."""


def ask_tester(config: CoderTesterConfig, task: ProgramTask, problem: Problem, answer: str) -> tuple[Message, ...]:
    """What the tester is told."""
    function = task.function(problem)
    assert function is not None, "problems whose tests are of no known kind were refused"
    return ask(problem, answer, count=config.cases, function=function, strip=config.strip_examples)


class CoderTester:
    """The Workflow of this file."""

    def __init__(
        self,
        config: CoderTesterConfig,
        task: ProgramTask,
        *,
        coder: Speaker,
        again: Speaker,
        tester: Speaker,
        samples: int,
    ) -> None:
        """`again` is the coder for its second attempts: a random stream of its own."""
        self._config = config
        self._task = task
        self._coder = coder
        self._again = again
        self._tester = tester
        self._samples = samples
        self._rounds = Rounds()

    async def run(self, problem: Problem, ordinal: int) -> Group:
        with self._rounds.present():
            firsts = await self._attempt(problem, ordinal)
            verdicts, replies = await asyncio.gather(
                self._grade(problem, firsts), self._ask_tester(problem, ordinal, firsts)
            )
            tested = await asyncio.gather(
                *(self._test(problem, first, reply) for first, reply in zip(firsts, replies, strict=True))
            )
            retries = await self._try_again(problem, ordinal, firsts, verdicts, tested)
        new = [said for said in retries if said is not None and said.text not in verdicts]
        verdicts = {**verdicts, **await self._grade(problem, new)}
        worth = await self._judge_tester(problem, firsts, verdicts, tested)
        turns = [*((0, said) for said in firsts), *((1, said) for said in retries)]
        coded = [
            Sample.of(said.prompt, said.completion, verdicts[said.text], at, "coder", turn)
            for at, (turn, said) in enumerate(turns)
            if said is not None
        ]
        cases = [
            Sample.of(each.said.prompt, each.said.completion, verdict, at, "tester")
            for at, (each, verdict) in enumerate(zip(tested, worth, strict=True))
            if each is not None and verdict is not None
        ]
        return group_of(problem, ordinal, [*coded, *cases])

    async def _attempt(self, problem: Problem, ordinal: int) -> list[_Said]:
        prompt = self._coder.renderer.render(problem.messages)
        sampling = replace(self._coder.sampling, ordinal=ordinal)
        return [_Said(prompt, each) for each in await self._coder.engine.generate(prompt, self._samples, sampling)]

    async def _grade(self, problem: Problem, attempts: Sequence[_Said]) -> Mapping[str, Verdict]:
        return await grade_all(self._task, problem, (said.text for said in attempts))

    async def _ask_tester(self, problem: Problem, ordinal: int, firsts: Sequence[_Said]) -> list[_Said | None]:
        prompts = [ask_tester(self._config, self._task, problem, said.text) for said in firsts]
        return await self._ask(self._tester, ordinal, prompts)

    async def _test(self, problem: Problem, first: _Said, reply: _Said | None) -> _Tested | None:
        """Read the tester's cases and run the program on them."""
        if reply is None:
            return None
        function = self._task.function(problem) or ""
        try:
            cases = read(reply.text, count=self._config.cases, function=function)
        except Malformed as error:
            return _Tested(reply, (), str(error), Judgement(Outcome.NO_ANSWER, (), 0, Isolation.NONE))
        return _Tested(reply, cases, "", await self._run(problem, first.text, cases))

    async def _run(self, problem: Problem, text: str, cases: Sequence[Case]) -> Judgement:
        def failed(why: str) -> Judgement:
            return Judgement(_LOST, (), len(cases), Isolation.NONE, why)

        return await insist(lambda: self._task.trial(problem, text, [case.test for case in cases]), failed)

    async def _try_again(
        self,
        problem: Problem,
        ordinal: int,
        firsts: Sequence[_Said],
        verdicts: Mapping[str, Verdict],
        tested: Sequence[_Tested | None],
    ) -> list[_Said | None]:
        prompts = [
            (*problem.messages, Message("assistant", first.text), feedback(each.cases, each.judgement))
            if each is not None and self._is_due(verdicts[first.text], each)
            else None
            for first, each in zip(firsts, tested, strict=True)
        ]
        return await self._ask(self._again, ordinal, prompts)

    def _is_due(self, verdict: Verdict, tested: _Tested) -> bool:
        refused = bool(tested.cases) and tested.judgement.outcome not in (_RIGHT, _LOST)
        return self._config.retry and refused and verdict.outcome not in (_RIGHT, _LOST)

    async def _ask(
        self, speaker: Speaker, ordinal: int, prompts: Sequence[Sequence[Message] | None]
    ) -> list[_Said | None]:
        """One answer to each; None where nothing is asked, or the question does not fit."""

        async def answer(at: int, prompt: tuple[int, ...]) -> _Said:
            # Each is a draw of its own: with one name they would all get the same random numbers.
            sampling = replace(speaker.sampling, ordinal=ordinal * self._samples + at)
            (completion,) = await speaker.engine.generate(prompt, 1, sampling)
            return _Said(prompt, completion)

        rendered: dict[int, tuple[int, ...]] = {}
        for at, messages in enumerate(prompts):
            try:
                if messages is not None:
                    rendered[at] = speaker.renderer.render(messages)
            except TooLong:
                continue
        if not rendered:
            return [None] * len(prompts)
        await self._rounds.turn(ordinal)
        answers = await asyncio.gather(*(answer(at, prompt) for at, prompt in rendered.items()))
        found = dict(zip(rendered, answers, strict=True))
        return [found.get(at) for at in range(len(prompts))]

    async def _judge_tester(
        self,
        problem: Problem,
        firsts: Sequence[_Said],
        verdicts: Mapping[str, Verdict],
        tested: Sequence[_Tested | None],
    ) -> list[Verdict | None]:
        right = next((text for text, verdict in verdicts.items() if verdict.outcome is _RIGHT), None)
        lost = next((verdict.detail for verdict in verdicts.values() if verdict.outcome is _LOST), "")

        async def worth(first: _Said, each: _Tested | None) -> Verdict | None:
            if each is None:
                return None
            if not each.cases:
                return _verdict(Outcome.NO_ANSWER, self._config.cases, detail=each.complaint)
            truth = verdicts[first.text]
            if truth.outcome is _LOST or (right is None and lost):  # who could not be judged may have been right
                return Verdict(_LOST, None, detail=truth.detail or lost)
            if right is None:
                return _verdict(Outcome.WRONG, self._config.cases, detail="nobody solved it, so the cases are unproven")
            return _paid(truth, each.judgement, await self._run(problem, right, each.cases))

        return await asyncio.gather(*(worth(first, each) for first, each in zip(firsts, tested, strict=True)))


def _paid(truth: Verdict, tested: Judgement, proof: Judgement) -> Verdict:
    """For cases: what is true of the program, what the cases say of it, and what a right program says of the cases."""
    for judgement in (tested, proof):
        if judgement.outcome is _LOST:
            return Verdict(_LOST, None, detail=judgement.detail)
    valid = proof.outcome is _RIGHT
    tells = valid and (tested.outcome is _RIGHT) == (truth.outcome is _RIGHT)
    said = "" if tells else "the cases do not show what the program is" if valid else "a right program fails the cases"
    return _verdict(
        _RIGHT if tells else Outcome.WRONG,
        proof.total,
        passed=proof.passed,
        valid=valid,
        tells=tells,
        detail=said,
        isolation=proof.isolation,
    )


def _verdict(
    outcome: Outcome,
    total: int,
    *,
    detail: str,
    passed: int = 0,
    valid: bool = False,
    tells: bool = False,
    isolation: str = "",
) -> Verdict:
    parts = dict(zip(TESTER_PARTS, (float(valid), float(tells)), strict=True))
    terms = {name: (1 / len(parts), value) for name, value in parts.items()}
    reward = sum(parts.values()) / len(parts)
    return Verdict(outcome, reward, passed, total, parts, detail, isolation=isolation, terms=terms)
