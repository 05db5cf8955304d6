"""Keywords task: grades a text by the terms, term groups and ideas it contains (keyword_rules.py).

    the text is empty                                       NO_ANSWER, 0
    all rules are satisfied, or a share of `accept`         ACCEPTED
    otherwise, or with a forbidden term                     WRONG
    a pattern takes too long                                JUDGE_ERROR: no reward

The reward is the weighted share of satisfied rules, minus forbidden terms; with reward_shape=all_or_nothing, 1 for an
accepted text and 0 otherwise. Only the final answer counts, not the thinking before it. `passed` counts rules.

Each rule of the recipe is a part of the verdict. The rules of a problem's reference form one part, `own`: separate
names would be metrics that few samples have. Not covered: whether the text is true.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from dojang.protocols import Judge
from dojang.tasks.base import SHOWN, RewardedTask, check_usable
from dojang.tasks.extract import final_answer
from dojang.tasks.keyword_rules import Checklist, RuleResult, Rules, read_rules
from dojang.tasks.phrases import TextMatcher
from dojang.tasks.reward_settings import RewardedTaskConfig, labels
from dojang.types import Outcome, Problem, Verdict

__all__ = ["KeywordsConfig", "KeywordsTask"]


class KeywordsConfig(Rules, RewardedTaskConfig):
    """Keywords: the answer is a text that must contain certain terms."""

    own_parts: ClassVar[tuple[str, ...]] = ("own",)
    name: Literal["keywords"] = "keywords"
    case: bool = False
    """Whether matching is case-sensitive."""
    whole_words: bool = True
    """Whether terms match whole words only; false for languages without blanks between words."""
    reward_shape: Literal["fraction", "all_or_nothing"] = "fraction"
    """Reward: the share of satisfied rules, or 1 only if the text is accepted."""
    accept: float = Field(default=1.0, gt=0, le=1)
    """Share of satisfied rules from which on a text without forbidden terms is accepted."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [*self.checklist().names, *labels(self.rewards).values(), *self.own_parts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(map(repr, twice))}: two rules or rewards have the same name; rename one")
        return self

    def part_names(self) -> list[str]:
        own = [*self.checklist().names, *self.own_parts] if self.reward_shape == "fraction" else ["accepted"]
        return [*own, *labels(self.rewards).values()]

    def reading(self) -> TextMatcher:
        """Creates the matcher with these settings."""
        return TextMatcher(self.case, self.whole_words, self.timeout_s)

    def checklist(self) -> Checklist:
        """Compiles the recipe's rules."""
        return Checklist(self, self.reading())

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> "KeywordsTask":
        return KeywordsTask(self, problems)


class KeywordsTask(RewardedTask):
    """Grades texts by rules."""

    def __init__(self, config: KeywordsConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        super().__init__(config, problems)
        self._config = config
        self._reading, self._common = config.reading(), config.checklist()
        check_usable([why for split in problems.values() for problem in split if (why := self._unfit(problem))])

    def extract(self, problem: Problem, text: str) -> str | None:
        return final_answer(text)

    def _own(self, problem: Problem) -> Checklist:
        """Returns the rules of the problem. Raises ValueError if neither it nor the recipe has rules."""
        own = Checklist(read_rules(problem.reference), self._reading)
        if not (own.has_requirements or self._common.has_requirements):
            raise ValueError(
                f"neither the recipe nor the reference {problem.reference!r:.80} has rules for the text "
                "(required, groups, ideas)"
            )
        return own

    def _unfit(self, problem: Problem) -> str:
        try:
            self._own(problem)
        except ValueError as error:
            return f"{problem.id}: {error}"
        return ""

    async def _own_verdict(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            # In a thread, because a pattern may be slow.
            return await asyncio.to_thread(self._verdict, self._own(problem), text, started)
        except ValueError as error:
            why = str(error)
        except TimeoutError:
            why = f"the patterns took longer than timeout_s={self._config.timeout_s:g}"
        seconds = time.perf_counter() - started
        return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {why}", seconds=seconds)

    def _verdict(self, own: Checklist, text: str, started: float) -> Verdict:
        answer = self._reading.normalize(final_answer(text) or "")
        common, specific = self._common.check(answer), own.check(answer)
        found = [*common, *specific]
        said = bool(answer.strip())
        share = _share(found) if said else 0.0
        forbidden = any(each.forbids and not each.satisfied for each in found)
        accepted = said and not forbidden and share >= self._config.accept - 1e-9
        missed = [each.name for each in found if not each.satisfied]
        parts = {each.name: float(each.satisfied and said) for each in common}
        parts |= {"own": _share(specific) if said else 0.0} if specific else {}
        weights = {each.name: each.weight for each in common} | {"own": _required_weight(specific)}
        terms = {name: (weights[name] / (_required_weight(found) or 1.0), value) for name, value in parts.items()}
        return Verdict(
            Outcome.ACCEPTED if accepted else Outcome.WRONG if said else Outcome.NO_ANSWER,
            share if self._config.reward_shape == "fraction" else float(accepted),
            passed=sum(each.satisfied for each in found) if said else 0,
            total=len(found),
            parts=parts,
            terms=terms if self._config.reward_shape == "fraction" else {"accepted": (1.0, float(accepted))},
            detail=_detail(missed) if said else "the text is empty",
            seconds=time.perf_counter() - started,
        )


def _required_weight(found: Sequence[RuleResult]) -> float:
    """Sums the weights of the rules that require something."""
    return sum(each.weight for each in found if not each.forbids)


def _share(found: Sequence[RuleResult]) -> float:
    """Computes the weighted share of satisfied rules, minus the weight of forbidden terms."""
    required = _required_weight(found)
    satisfied = sum(each.weight for each in found if each.satisfied and not each.forbids)
    violated = sum(each.weight for each in found if each.forbids and not each.satisfied)
    if not required:
        return float(not violated)
    return max(0.0, (satisfied - violated) / required)


def _detail(missed: Sequence[str]) -> str:
    more = f" and {len(missed) - SHOWN} more" if len(missed) > SHOWN else ""
    return f"not satisfied: {', '.join(missed[:SHOWN])}{more}" if missed else ""
