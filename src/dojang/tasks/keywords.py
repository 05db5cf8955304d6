"""Texts on some subject, graded by what they say: terms, terms that stand together, ideas (keyword_rules.py).

    nothing was said                                        NO_ANSWER, 0
    all rules are kept, or a share of `accept` of them      ACCEPTED
    otherwise, or something forbidden was said              WRONG
    a pattern takes too long                                JUDGE_ERROR: no reward at all

The reward is the share, by weight, of the rules kept, less what was forbidden; or 1 for an accepted text and 0 for
another, if only that is paid. Only the answer is read, not what a model thought aloud before it. `passed` counts rules.

Each rule of the recipe is a part of the verdict. Rules that a problem brings along are one part, `own`, since every
other name would be a figure that few samples have. Not covered: whether what is said is true.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from dojang.core.errors import DataError
from dojang.tasks.extract import answer_in
from dojang.tasks.keyword_rules import Checklist, Found, Rules, rules_in
from dojang.tasks.phrases import Reading
from dojang.tasks.reward_settings import Rewarded, labels
from dojang.tasks.rewards import WeightedRewards, columns_of
from dojang.tasks.splits import problems_of
from dojang.types import Outcome, Problem, Verdict

__all__ = ["KeywordsConfig", "KeywordsTask"]

SHOWN = 5
"""Unusable problems that an error names, and rules that a verdict does."""


class KeywordsConfig(Rules, Rewarded):
    """The answer is a text that must say certain things."""

    own_parts: ClassVar[tuple[str, ...]] = ("own",)
    name: Literal["keywords"] = "keywords"
    case: bool = False
    """Whether capitals matter."""
    whole_words: bool = True
    """Whether terms are whole words; false for languages that put no blanks between words."""
    reward_shape: Literal["fraction", "all_or_nothing"] = "fraction"
    """What is paid: the share of the rules kept, or 1 only if the text is accepted."""
    accept: float = Field(default=1.0, gt=0, le=1)
    """The share from which on a text is accepted, if it says nothing forbidden."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [*self.checklist().names, *labels(self.rewards).values(), *self.own_parts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(map(repr, twice))} would be two rules or rewards of the same name")
        return self

    def part_names(self) -> list[str]:
        """Names of the terms of the reward."""
        own = [*self.checklist().names, *self.own_parts] if self.reward_shape == "fraction" else ["accepted"]
        return [*own, *labels(self.rewards).values()]

    def reading(self) -> Reading:
        """How texts are read with these settings."""
        return Reading(self.case, self.whole_words, self.timeout_s)

    def checklist(self) -> Checklist:
        """The rules that all problems have."""
        return Checklist(self, self.reading())

    def make(self, problems: Mapping[str, Sequence[Problem]]) -> "KeywordsTask":
        """The task with these settings."""
        return KeywordsTask(self, problems)


class KeywordsTask:
    """The Task of this file."""

    def __init__(self, config: KeywordsConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._config, self._problems = config, problems
        self._reading, self._common = config.reading(), config.checklist()
        self._rewards = WeightedRewards(
            config.rewards, timeout_s=config.timeout_s, built_in={}, columns=columns_of(problems)
        )
        wrong = [why for split in problems.values() for problem in split if (why := self._unfit(problem))]
        if wrong:
            more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
            raise DataError("\n  ".join([f"{len(wrong)} problems cannot be judged:", *wrong[:SHOWN], *more]))

    def problems(self, split: str) -> Sequence[Problem]:
        return problems_of(self._problems, split)

    async def check_rewards(self, problem: Problem) -> None:
        """Tries the reward functions on a problem: ConfigError if one cannot be called."""
        await self._rewards.check(problem)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        return await self._rewards.added_to(await self._read(problem, text), problem, text)

    def _own(self, problem: Problem) -> Checklist:
        """The rules of the problem itself; ValueError if there are none at all."""
        own = Checklist(rules_in(problem.reference), self._reading)
        if not (own.asks or self._common.asks):
            raise ValueError(
                f"neither the recipe nor the reference {problem.reference!r:.80} says what a text must say "
                "(required, groups, ideas)"
            )
        return own

    def _unfit(self, problem: Problem) -> str:
        try:
            self._own(problem)
        except ValueError as error:
            return f"{problem.id}: {error}"
        return ""

    async def _read(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            # In a thread, for a pattern may take its time.
            return await asyncio.to_thread(self._verdict, self._own(problem), text, started)
        except ValueError as error:
            why = str(error)
        except TimeoutError:
            why = f"the patterns took longer than timeout_s={self._config.timeout_s:g}"
        seconds = time.perf_counter() - started
        return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {why}", seconds=seconds)

    def _verdict(self, own: Checklist, text: str, started: float) -> Verdict:
        answer = self._reading.prepared(answer_in(text) or "")
        common, brought = self._common.look(answer), own.look(answer)
        found = [*common, *brought]
        said = bool(answer.strip())
        share = _share(found) if said else 0.0
        forbidden = any(each.forbids and not each.kept for each in found)
        accepted = said and not forbidden and share >= self._config.accept - 1e-9
        missed = [each.name for each in found if not each.kept]
        parts = {each.name: float(each.kept and said) for each in common}
        parts |= {"own": _share(brought) if said else 0.0} if brought else {}
        weights = {each.name: each.weight for each in common} | {"own": _asked(brought)}
        terms = {name: (weights[name] / (_asked(found) or 1.0), value) for name, value in parts.items()}
        return Verdict(
            Outcome.ACCEPTED if accepted else Outcome.WRONG if said else Outcome.NO_ANSWER,
            share if self._config.reward_shape == "fraction" else float(accepted),
            passed=sum(each.kept for each in found) if said else 0,
            total=len(found),
            parts=parts,
            terms=terms if self._config.reward_shape == "fraction" else {"accepted": (1.0, float(accepted))},
            detail=_detail(missed) if said else "the text is empty",
            seconds=time.perf_counter() - started,
        )


def _asked(found: Sequence[Found]) -> float:
    """Weight of the rules that ask for something."""
    return sum(each.weight for each in found if not each.forbids)


def _share(found: Sequence[Found]) -> float:
    """Of the rules that ask for something, by weight, those kept; less what is forbidden."""
    asked = _asked(found)
    kept = sum(each.weight for each in found if each.kept and not each.forbids)
    broken = sum(each.weight for each in found if each.forbids and not each.kept)
    if not asked:
        return float(not broken)
    return max(0.0, (kept - broken) / asked)


def _detail(missed: Sequence[str]) -> str:
    more = f" and {len(missed) - SHOWN} more" if len(missed) > SHOWN else ""
    return f"not kept: {', '.join(missed[:SHOWN])}{more}" if missed else ""
