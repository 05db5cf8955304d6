"""Checks before a run: data load, prompts fit, and the task accepts known answers.

Rewards are checked as in `dojang data audit`, on a few training problems. A row's own answer must get full marks, and
others must not. Rows of programs have tests but no solutions: a trivial program is judged instead, which shows that the
judge works, not that it accepts a right program.
"""

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dojang import models
from dojang.audit.answers import AnswerAudit
from dojang.audit.findings import Audited
from dojang.audit.options import AuditSettings
from dojang.audit.programs import ProgramAudit
from dojang.config.run_config import RunConfig
from dojang.core.error_list import SeveralErrors
from dojang.core.errors import DojangError, HealthError, JudgeError, ModelError, TooLong
from dojang.data.prepare_rows import KnownAnswers
from dojang.planning.advice import Finding
from dojang.planning.shapes import Shape
from dojang.planning.tokens_per_step import Lengths
from dojang.tasks.section import AuditableSection
from dojang.types import Message

if TYPE_CHECKING:
    from dojang.build.assemble import Prepared

__all__ = ["Checked", "check_data"]

_MEASURED = 200
"""Number of prompts to measure, besides the longest ones."""
_LETTERS = 3.5
"""Characters per token, without a tokenizer."""
_ASSUMED = 512
"""Assumed prompt length in tokens, without data."""
_GRAVE = {
    "unusable": "nothing can be judged by it",
    "refused": "its own answer is refused",
    "accepts_wrong": "a wrong answer is accepted",
    "unjudged": "an answer could not be judged",
    "trivial": "a program that solves nothing passes all tests",
}
_Try = Callable[[Audited], Coroutine[None, None, None]]
_QUICK = AuditSettings(solutions=1, mutants=0, repeats=1)


@dataclass
class Checked:
    """Findings, and lengths of prompts and completions."""

    findings: list[Finding] = field(default_factory=list)
    lengths: dict[str, Lengths] = field(default_factory=dict)
    language: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    config: RunConfig | None = None
    """The configuration with `epochs` resolved to `steps`; None if the data cannot be loaded."""


def check_data(config: RunConfig, shapes: Mapping[str, Shape | None], answer: int | None, tried: int) -> Checked:
    """Loads the data, measures prompts and grades `tried` problems; `answer` is the assumed mean completion length."""
    from dojang.build import assemble  # loads torch
    from dojang.build.prompt_lengths import describe_dropped, describe_multiple_answers

    found = Checked(language=str(getattr(config.task, "language", "") or ""))
    try:
        prepared = assemble.prepare(config, dry=True, measured=False, packages=False)
    except DojangError as error:
        every = error.errors if isinstance(error, SeveralErrors) else [error]
        found.findings += [Finding("failed", "data", str(each), each.exit_code) for each in every]
        found.findings.append(Finding("note", "data", f"estimated with prompts of {_ASSUMED} tokens"))
        found.lengths = _lengths(config, _ASSUMED, _ASSUMED, answer)
        return found
    try:
        prepared = assemble.measure_prompts(config, prepared, dry=True)
    except DojangError as error:
        code = ModelError.exit_code if isinstance(error, TooLong) else error.exit_code
        found.findings.append(Finding("failed", "prompts", str(error), code))
    config = found.config = prepared.config
    dropped = prepared.dropped
    found.sizes = {
        "train": len(prepared.train),
        "test": len(prepared.task.problems("test")) - dropped.get("test", 0),
    }
    if any(dropped.values()):
        said = f"overlong prompts left out: {describe_dropped(list(dropped.items()))}"
        found.findings.append(Finding("note", "prompts", said))
    if config.data.filter_multiple_answers:
        found.findings.append(Finding("note", "data", describe_multiple_answers(prepared.multiple_answers)))
    passes = config.steps * config.rollout.prompts_per_step / len(prepared.train)
    said = f"{found.sizes['train']:,} training and {found.sizes['test']:,} held-out problems; {passes:.2f} passes"
    found.findings.append(Finding("ok", "data", said))
    found.findings += _prompts(config, prepared, shapes, answer, found)
    if not found.language and config.task.runs_programs:
        found.language = next(iter(sorted(getattr(prepared.task, "languages", ()))), "")
    found.findings += asyncio.run(_rewards(config, prepared, tried))
    return found


def _prompts(
    config: RunConfig, prepared: "Prepared", shapes: Mapping[str, Shape | None], answer: int | None, found: Checked
) -> Iterator[Finding]:
    role = next(iter(config.roles()))
    counted, count = _counter(config)
    prompts = prepared.prompts
    every = max(1, len(prompts) // _MEASURED)
    longest = sorted(prompts, key=lambda each: sum(len(turn.content) for turn in each))[-8:]
    sizes, most = [count(each) for each in prompts[::every]], max(map(count, longest))
    found.lengths = _lengths(config, round(statistics.fmean(sizes)), most, answer)
    how = "" if counted else " (from letters: the tokenizer is not on this machine)"
    said = f"{min(sizes)} to {most} tokens, {statistics.fmean(sizes):.0f} on average{how}"
    yield Finding("ok" if counted else "note", "prompts", said)
    shape = shapes[role]
    if shape is None:
        return
    context = min(shape.context, config.rollout.max_model_len or shape.context)
    if most + config.rollout.max_tokens > context:
        room = context - most
        said = (
            f"the longest prompt and rollout.max_tokens={config.rollout.max_tokens} do not fit the context of "
            f"{context} tokens; " + (f"at most {room} can be answered" if room > 0 else "shorten the prompts")
        )
        yield Finding("failed" if counted else "warning", "prompts", said, ModelError.exit_code if counted else 0)


def _counter(config: RunConfig) -> tuple[bool, Callable[[Sequence[Message]], int]]:
    """Whether tokens are counted (not estimated), and a function that counts a prompt's tokens."""
    source = models.local(config.model.name)
    if source is None:
        return False, lambda turns: round(sum(len(turn.content) for turn in turns) / _LETTERS) + 8 * len(turns)
    from dojang.build.local import load_tokenizer
    from dojang.workflows.chat_renderer import ChatRenderer

    tokenizer, _ = load_tokenizer(source)
    renderer = ChatRenderer(tokenizer, context=None, max_tokens=1, variables=config.model.chat_template_kwargs)
    return True, lambda turns: len(renderer.render(turns))


def _lengths(config: RunConfig, prompt: int, longest: int, answer: int | None) -> dict[str, Lengths]:
    """Lengths by role; a tester's prompt also has a program, different for each sample."""
    found = {}
    before = 0
    for role, each in config.roles().items():
        most = each.rollout.max_tokens
        mean = min(answer or most, most)
        found[role] = Lengths(prompt + before, longest + before, mean, most, shared=not before)
        before = mean
    return found


async def _rewards(config: RunConfig, prepared: "Prepared", tried: int) -> list[Finding]:
    try:
        auditor, said = _auditor(config, prepared)
        if auditor is None:
            return [Finding("note", "rewards", said)]
        some = prepared.train[:: max(1, len(prepared.train) // tried)][:tried]
        audited = [Audited(problem, "train") for problem in some]
        for each in audited:
            await auditor(each)
        return list(_judged(audited, said))
    finally:
        await prepared.judge.close()


def _auditor(config: RunConfig, prepared: "Prepared") -> tuple[_Try | None, str]:
    """Function that audits a problem, and a description of its known answers."""
    task = config.task
    if task.runs_programs:
        programs = ProgramAudit(task, prepared.judge, _QUICK)
        said = "the rows have tests but no solutions; a trivial program was judged"
        return lambda each: programs.audit(each, KnownAnswers()), said
    if isinstance(task, AuditableSection):
        answers = AnswerAudit(prepared.task, task, _QUICK)
        return lambda each: answers.audit(each, KnownAnswers()), "their own answers get full marks, others do not"
    return None, f"task.name={task.name} cannot be checked: its answers are unknown here"


def _judged(audited: Sequence[Audited], said: str) -> Iterable[Finding]:
    """Turns audit results into findings."""
    grave = [(each, name) for each in audited for name in _GRAVE if name in each.names]
    for each, name in grave[:3]:
        detail = next(finding.detail for finding in each.findings if finding.name == name)
        code = JudgeError.exit_code if name in ("unusable", "unjudged") else HealthError.exit_code
        level = "warning" if name == "trivial" else "failed"
        words = f"{each.problem.id}: {_GRAVE[name]} ({detail}); `dojang data audit` checks all of them"
        yield Finding(level, "rewards", words, code if level == "failed" else 0)
    if not grave:
        yield Finding("ok", "rewards", f"{len(audited)} problems tried: {said}")
    elif all(name == "trivial" for _, name in grave):
        yield Finding("note", "rewards", f"{len(audited)} problems tried: {said}")
