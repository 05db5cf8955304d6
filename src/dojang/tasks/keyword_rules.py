"""Rules of the keywords task: terms that a text must and must not contain.

    required    terms; a list holds alternative spellings
    groups      terms that must occur together, by default in one sentence
    ideas       named meanings, each with alternative patterns
    forbidden   terms whose weight is subtracted

Rules are in the recipe (for all problems) or in the reference of a problem, under the same names. The reward is the
weighted share of satisfied rules, minus the weight of forbidden terms, at least 0.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from dojang.core.section import Section, complaints
from dojang.tasks.phrases import TextMatcher, occur_together
from dojang.tasks.reward_settings import check_pattern

__all__ = ["Checklist", "Idea", "RuleResult", "Rules", "Term", "TermGroup", "read_rules"]


def _listed(key: str) -> BeforeValidator:
    """Reads a string or list as a section with only this key."""

    def read(value: Any) -> Any:
        return {key: value} if isinstance(value, str | list | tuple) else value

    return BeforeValidator(read)


_Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_ONE = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
_Spellings = Annotated[tuple[_Word, ...], Field(min_length=1), _ONE]


class Term(Section):
    """A word or phrase."""

    any_of: _Spellings
    """Alternative spellings."""
    weight: float = Field(default=1.0, gt=0)


class TermGroup(Section):
    """Terms that must occur together."""

    all_of: tuple[_Spellings, ...] = Field(min_length=2)
    """Terms; a list holds alternative spellings."""
    within: Literal["text", "sentence"] | Annotated[int, Field(ge=2)] = "sentence"
    """Range: the text, one sentence, or this number of consecutive words."""
    weight: float = Field(default=1.0, gt=0)


class Idea(Section):
    """A meaning and its alternative phrasings."""

    phrasings: Annotated[tuple[Annotated[_Word, AfterValidator(check_pattern)], ...], Field(min_length=1), _ONE]
    """Alternative regular expressions."""
    weight: float = Field(default=1.0, gt=0)


class Rules(Section):
    """Rules for a text."""

    required: tuple[Annotated[Term, _listed("any_of")], ...] = ()
    """Required terms; a list holds alternative spellings, {any_of, weight} a term with a weight."""
    groups: tuple[Annotated[TermGroup, _listed("all_of")], ...] = ()
    """Lists of terms that must occur together, or {all_of, within, weight}; within is text, sentence or a number of
    words."""
    ideas: dict[str, Annotated[Idea, _listed("phrasings")]] = Field(default_factory=dict)
    """Named meanings, each with alternative patterns, or {phrasings, weight}."""
    forbidden: tuple[Annotated[Term, _listed("any_of")], ...] = ()
    """Terms that must not occur; same format as `required`."""

    @model_validator(mode="before")
    @classmethod
    def _without_gaps(cls, tree: Any) -> Any:
        """Drops None, which tables fill in for missing keys."""
        return {key: value for key, value in tree.items() if value is not None} if isinstance(tree, dict) else tree


def read_rules(reference: object) -> Rules:
    """Returns the rules in a problem's reference; empty if it holds no rules. Raises ValueError if they are invalid."""
    if isinstance(reference, list | tuple):
        reference = {"required": reference}
    if isinstance(reference, str) and reference.startswith("{"):
        raise ValueError(f"the reference looks like rules, but is not JSON: {reference[:80]!r}")
    if not isinstance(reference, Mapping):
        return Rules()  # for example the dataset's answer in words
    try:
        return Rules.model_validate(dict(reference))
    except ValidationError as error:
        raise ValueError(f"the reference cannot be read: {'; '.join(complaints(error)[:3])}") from None


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule, and whether the text satisfies it."""

    name: str
    weight: float
    satisfied: bool
    forbids: bool = False


class Checklist:
    """Compiled rules."""

    def __init__(self, rules: Rules, reading: TextMatcher) -> None:
        self._reading = reading
        self._terms = [(each, reading.term(each.any_of)) for each in rules.required]
        self._groups = [(each, [reading.term(spellings) for spellings in each.all_of]) for each in rules.groups]
        self._ideas = rules.ideas
        self._forbidden = [(each, reading.term(each.any_of)) for each in rules.forbidden]

    @property
    def has_requirements(self) -> bool:
        """Whether any rule requires something."""
        return bool(self._terms or self._groups or self._ideas)

    @property
    def names(self) -> list[str]:
        return [
            *(term.any_of[0] for term, _ in self._terms),
            *(" + ".join(spellings[0] for spellings in group.all_of) for group, _ in self._groups),
            *self._ideas,
            *(f"not {term.any_of[0]}" for term, _ in self._forbidden),
        ]

    def check(self, text: str) -> list[RuleResult]:
        """Checks a normalized text. Raises TimeoutError if the patterns take too long."""
        results = [*self._results(text, time.monotonic() + self._reading.timeout_s)]
        return [RuleResult(name, *rest) for name, rest in zip(self.names, results, strict=True)]

    def _results(self, text: str, deadline: float) -> Iterator[tuple[float, bool, bool]]:
        for term, pattern in self._terms:
            yield term.weight, bool(pattern.search(text)), False
        for group, patterns in self._groups:
            yield group.weight, occur_together(text, patterns, group.within), False
        for idea in self._ideas.values():
            yield idea.weight, self._reading.matches_any(text, idea.phrasings, deadline), False
        for term, pattern in self._forbidden:
            yield term.weight, not pattern.search(text), True
