"""Multi-policy workflow: a coder writes programs, a tester writes test cases that show whether they are right.

    turn             prompt                                          samples                        graded by
    coder, turn 0    the problem                                     group_size                     the problem's tests
    tester           the task without examples, and a completion     one per completion             the reward below
    coder, turn 1    the conversation, and the result of each case   one per wrong program that     the problem's tests
                                                                     failed a case

    tester's reward = 0.5 [cases are valid]
                    + 0.5 [cases are valid, and the program passes them all if and only if it is right]

Cases are valid if a right program passes them. The original (AstraFlow, code_actor_and_verify) uses a solution from the
dataset. Problems here contain none, so the first program of the group that passes the problem's tests is used. If no
sample solved the problem, the validity is unknown: all cases get reward 0, and their advantages within the group are
zero. Cases that cannot be parsed also get 0 (test_cases.py defines the format).

Other differences from the published recipe (v2) follow its authors' corrections (v3): v2 rewards the tester for a right
final program, which depends on the coder; and it has a second turn even without feedback, or after a right program.

A judge error never becomes a reward: programs that could not be judged, cases that could not be run, and cases whose
program has no verdict are excluded from training. A conversation that exceeds a model's context length ends early.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from dojang.core.errors import DataError, TooLong
from dojang.core.section import Section
from dojang.programs import Isolation, Judgement
from dojang.protocols import ProgramTask, Task
from dojang.types import Completion, Group, Message, Outcome, Problem, Sample, Verdict
from dojang.workflows.batched_turns import TurnBarrier
from dojang.workflows.grade_with_retries import grade_all, judge_with_retries, make_group
from dojang.workflows.section import RolloutPolicy, WorkflowSection
from dojang.workflows.test_cases import Case, InvalidCases, feedback, make_tester_prompt, parse_cases, statement

__all__ = ["TESTER_PARTS", "CoderTester", "CoderTesterConfig", "TesterConfig", "ask_tester"]

TESTER_PARTS = ("valid", "tells")
"""Names of the terms of the tester's reward: cases are valid; cases also give the right verdict."""
_TESTER_STREAM, _RETRY_STREAM = 2**33, 2**34
"""Offsets added to the seed, so that the tester and second turns use separate random streams."""
_ACCEPTED, _JUDGE_ERROR = Outcome.ACCEPTED, Outcome.JUDGE_ERROR


class CoderTesterConfig(WorkflowSection):
    """Settings of the coder-tester workflow, in which both models train."""

    own_parts: ClassVar[tuple[str, ...]] = TESTER_PARTS
    name: Literal["coder_tester"] = "coder_tester"
    cases: int = Field(default=2, ge=1)
    """Test cases that the tester must write, no more and no fewer."""
    retry: bool = True
    """Whether the coder tries once more, told of the cases, if its program failed one and is wrong."""
    strip_examples: bool = True
    """Whether the tester may not copy the examples of the task: they are left out of what it sees; assertions that a
    task shows, which say what the function takes, stay there and are refused as cases."""

    def make(
        self, task: Task, policies: Mapping[str, RolloutPolicy], group_size: int, *, batch_turns: bool = True
    ) -> "CoderTester":
        coder, tester = policies["coder"], policies["tester"]
        return CoderTester(
            self,
            _program_task(task),
            coder=coder,
            retry_policy=_on_stream(coder, _RETRY_STREAM),
            # The stop conditions are those of answers to the problems, not of test cases.
            tester=_on_stream(tester, _TESTER_STREAM, stop=(), stop_line=None),
            group_size=group_size,
            batch_turns=batch_turns,
        )

    def first_prompt(self, role: str, task: Task, problem: Problem) -> Sequence[Message]:
        return problem.messages if role == "coder" else ask_tester(self, _program_task(task), problem, "")

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises DataError if a tester cannot write tests of the problems' kind."""
        programs = _program_task(task)
        if unlike := [problem.id for problem in problems if programs.function(problem) is None]:
            raise DataError(
                f"{len(unlike)} problems, such as {unlike[0]}, have tests that are neither input and output text nor "
                "calls of one named function; workflow.name=coder_tester cannot have a tester write more of these"
            )


def _program_task(task: Task) -> ProgramTask:
    assert isinstance(task, ProgramTask), "RunConfig refuses other tasks"
    return task


def _on_stream(policy: RolloutPolicy, offset: int, **changes: Any) -> RolloutPolicy:
    """Copy of a policy with another random stream, and changes of its sampling."""
    return replace(policy, sampling=replace(policy.sampling, seed=policy.sampling.seed + offset, **changes))


class TesterConfig(Section):
    """Settings of the tester of workflow.name=coder_tester; it shares all other settings with the coder."""

    model: str
    """Its name, as in model.name."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """As model.chat_template_kwargs."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest reply, in tokens; rollout.max_tokens if not given."""
    lr: float | None = Field(default=None, gt=0, le=1000)
    """Peak learning rate; train.lr if not given."""
    url: list[str] = Field(default_factory=list)
    """As rollout.engine.url: the tester's servers, for the engine `remote`."""
    engines: int | None = Field(default=None, ge=1)
    """Number of engines of the tester on a Ray cluster; runtime.engines if not given."""
    trainers: int | None = Field(default=None, ge=1)
    """Number of trainers of the tester on a Ray cluster; runtime.trainers if not given."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """A sampled completion and its prompt."""

    prompt: tuple[int, ...]
    completion: Completion
    temperature: float

    @property
    def text(self) -> str:
        return self.completion.text


@dataclass(frozen=True, slots=True)
class _TestedReply:
    """Test cases that the tester wrote for a program, and their results."""

    reply: _Reply
    cases: tuple[Case, ...]
    complaint: str
    """Parse error, if there are no cases."""
    judgement: Judgement
    """Judgement of the program on the cases."""


def ask_tester(config: CoderTesterConfig, task: ProgramTask, problem: Problem, answer: str) -> tuple[Message, ...]:
    function = task.function(problem)
    assert function is not None, "problems whose tests are of no known kind were refused"
    return make_tester_prompt(problem, answer, count=config.cases, function=function, strip=config.strip_examples)


class CoderTester:
    """The coder-tester Workflow."""

    def __init__(
        self,
        config: CoderTesterConfig,
        task: ProgramTask,
        *,
        coder: RolloutPolicy,
        retry_policy: RolloutPolicy,
        tester: RolloutPolicy,
        group_size: int,
        batch_turns: bool = True,
    ) -> None:
        """`retry_policy` samples the second turns: the coder with a separate random stream. `batch_turns`: as in
        WorkflowSection.make."""
        self._config = config
        self._task = task
        self._coder = coder
        self._retry_policy = retry_policy
        self._tester = tester
        self._group_size = group_size
        self._batch_turns = batch_turns
        self._barrier = TurnBarrier()

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        # One id for the group: its first turns are one request, and second turns go on after any of them.
        conversation = secrets.token_hex(8) if self._config.retry else ""
        with self._barrier.active():
            firsts = await self._rollout(problem, prompt_index, conversation)
            verdicts, replies = await asyncio.gather(
                self._grade(problem, firsts), self._ask_tester(problem, prompt_index, firsts)
            )
            tested = await asyncio.gather(
                *(self._test(problem, first, reply) for first, reply in zip(firsts, replies, strict=True))
            )
            retries = await self._try_again(problem, prompt_index, conversation, firsts, verdicts, tested)
        new = [reply for reply in retries if reply is not None and reply.text not in verdicts]
        verdicts = {**verdicts, **await self._grade(problem, new)}
        grade_cases = await self._judge_tester(problem, firsts, verdicts, tested)
        turns = [*((0, reply) for reply in firsts), *((1, reply) for reply in retries)]
        coded = [
            Sample.of(
                reply.prompt, reply.completion, verdicts[reply.text], at, "coder", turn, temperature=reply.temperature
            )
            for at, (turn, reply) in enumerate(turns)
            if reply is not None
        ]
        cases = [
            Sample.of(
                each.reply.prompt, each.reply.completion, verdict, at, "tester", temperature=each.reply.temperature
            )
            for at, (each, verdict) in enumerate(zip(tested, grade_cases, strict=True))
            if each is not None and verdict is not None
        ]
        return make_group(problem, prompt_index, [*coded, *cases])

    async def _rollout(self, problem: Problem, prompt_index: int, conversation: str) -> list[_Reply]:
        prompt = self._coder.renderer.render(problem.messages)
        sampling = replace(self._coder.sampling, prompt_index=prompt_index, conversation=conversation)
        return [
            _Reply(prompt, each, sampling.temperature)
            for each in await self._coder.engine.generate(prompt, self._group_size, sampling)
        ]

    async def _grade(self, problem: Problem, replies: Sequence[_Reply]) -> Mapping[str, Verdict]:
        return await grade_all(self._task, problem, (reply.text for reply in replies))

    async def _ask_tester(self, problem: Problem, prompt_index: int, firsts: Sequence[_Reply]) -> list[_Reply | None]:
        prompts = [ask_tester(self._config, self._task, problem, reply.text) for reply in firsts]
        return await self._ask(self._tester, prompt_index, prompts)

    async def _test(self, problem: Problem, first: _Reply, reply: _Reply | None) -> _TestedReply | None:
        """Parses the tester's cases and runs the program on them."""
        if reply is None:
            return None
        function = self._task.function(problem) or ""
        try:
            shown = statement(problem) if self._config.strip_examples else ""
            cases = parse_cases(reply.text, count=self._config.cases, function=function, shown=shown)
        except InvalidCases as error:
            return _TestedReply(reply, (), str(error), Judgement(Outcome.NO_ANSWER, (), 0, Isolation.NONE))
        return _TestedReply(reply, cases, "", await self._run(problem, first.text, cases))

    async def _run(self, problem: Problem, text: str, cases: Sequence[Case]) -> Judgement:
        def failed(why: str) -> Judgement:
            return Judgement(_JUDGE_ERROR, (), len(cases), Isolation.NONE, why)

        return await judge_with_retries(lambda: self._task.trial(problem, text, [case.test for case in cases]), failed)

    async def _try_again(
        self,
        problem: Problem,
        prompt_index: int,
        conversation: str,
        firsts: Sequence[_Reply],
        verdicts: Mapping[str, Verdict],
        tested: Sequence[_TestedReply | None],
    ) -> list[_Reply | None]:
        prompts = [
            (*problem.messages, Message("assistant", first.text), feedback(each.cases, each.judgement))
            if each is not None and self._needs_retry(verdicts[first.text], each)
            else None
            for first, each in zip(firsts, tested, strict=True)
        ]
        return await self._ask(self._retry_policy, prompt_index, prompts, conversation)

    def _needs_retry(self, verdict: Verdict, tested: _TestedReply) -> bool:
        refused = bool(tested.cases) and tested.judgement.outcome not in (_ACCEPTED, _JUDGE_ERROR)
        return self._config.retry and refused and verdict.outcome not in (_ACCEPTED, _JUDGE_ERROR)

    async def _ask(
        self,
        policy: RolloutPolicy,
        prompt_index: int,
        prompts: Sequence[Sequence[Message] | None],
        conversation: str = "",
    ) -> list[_Reply | None]:
        """Samples one completion per prompt; None for a missing prompt or one that exceeds the context length."""

        async def answer(at: int, prompt: tuple[int, ...]) -> _Reply:
            # A separate random stream per prompt: with the same prompt index all would get the same random numbers.
            place = prompt_index * self._group_size + at
            sampling = replace(policy.sampling, prompt_index=place, conversation=conversation)
            (completion,) = await policy.engine.generate(prompt, 1, sampling)
            return _Reply(prompt, completion, sampling.temperature)

        rendered: dict[int, tuple[int, ...]] = {}
        for at, messages in enumerate(prompts):
            try:
                if messages is not None:
                    rendered[at] = policy.renderer.render(messages)
            except TooLong:
                continue
        if not rendered:
            return [None] * len(prompts)
        if self._batch_turns:
            await self._barrier.wait_turn(prompt_index)
        answers = await asyncio.gather(*(answer(at, prompt) for at, prompt in rendered.items()))
        found = dict(zip(rendered, answers, strict=True))
        return [found.get(at) for at in range(len(prompts))]

    async def _judge_tester(
        self,
        problem: Problem,
        firsts: Sequence[_Reply],
        verdicts: Mapping[str, Verdict],
        tested: Sequence[_TestedReply | None],
    ) -> list[Verdict | None]:
        right = next((text for text, verdict in verdicts.items() if verdict.outcome is _ACCEPTED), None)
        lost = next((verdict.detail for verdict in verdicts.values() if verdict.outcome is _JUDGE_ERROR), "")

        async def grade_cases(first: _Reply, each: _TestedReply | None) -> Verdict | None:
            if each is None:
                return None
            if not each.cases:
                return _verdict(Outcome.NO_ANSWER, self._config.cases, detail=each.complaint)
            truth = verdicts[first.text]
            if truth.outcome is _JUDGE_ERROR or (right is None and lost):  # an unjudged program may have been right
                return Verdict(_JUDGE_ERROR, None, detail=truth.detail or lost)
            if right is None:
                return _verdict(
                    Outcome.WRONG, self._config.cases, detail="no sample solved the problem, so the cases are unproven"
                )
            return _tester_verdict(truth, each.judgement, await self._run(problem, right, each.cases))

        return await asyncio.gather(*(grade_cases(first, each) for first, each in zip(firsts, tested, strict=True)))


def _tester_verdict(truth: Verdict, tested: Judgement, proof: Judgement) -> Verdict:
    """Grades cases, from the verdict of the program (`truth`), its result on the cases (`tested`), and the result of a
    right program on them (`proof`)."""
    for judgement in (tested, proof):
        if judgement.outcome is _JUDGE_ERROR:
            return Verdict(_JUDGE_ERROR, None, detail=judgement.detail)
    valid = proof.outcome is _ACCEPTED
    tells = valid and (tested.outcome is _ACCEPTED) == (truth.outcome is _ACCEPTED)
    reply = "" if tells else "the cases do not show what the program is" if valid else "a right program fails the cases"
    return _verdict(
        _ACCEPTED if tells else Outcome.WRONG,
        proof.total,
        passed=proof.passed,
        valid=valid,
        tells=tells,
        detail=reply,
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
