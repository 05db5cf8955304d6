"""What a text on some subject must say, and must not: the rules of the keywords task.

    required    terms; a list holds spellings of which one will do
    groups      terms that must stand together, in one sentence if nothing else is said
    ideas       named meanings; each has patterns for the ways in which it may be put, of which one will do
    forbidden   terms whose weight is taken off again

They may be in the recipe, where all problems have them, and in the reference of a problem, under the same names. A
text is worth the weighted share of the rules it meets, less what is forbidden, and never less than nothing.
"""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from dojang.core.section import Section, complaints
from dojang.tasks.phrases import Reading, together
from dojang.tasks.reward_settings import check_pattern

__all__ = ["Checklist", "Found", "Idea", "Rules", "Term", "TermGroup", "rules_in"]


def _listed(key: str) -> BeforeValidator:
    """A text, or a list of them, stands for a section with nothing but that."""

    def read(value: Any) -> Any:
        return {key: value} if isinstance(value, str | list | tuple) else value

    return BeforeValidator(read)


_Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_ONE = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
_Spellings = Annotated[tuple[_Word, ...], Field(min_length=1), _ONE]


class Term(Section):
    """One word or phrase."""

    any_of: _Spellings
    """Spellings, of which one will do."""
    weight: float = Field(default=1.0, gt=0)


class TermGroup(Section):
    """Terms that must stand together."""

    all_of: tuple[_Spellings, ...] = Field(min_length=2)
    """Terms; a list among them holds spellings."""
    within: Literal["text", "sentence"] | Annotated[int, Field(ge=2)] = "sentence"
    """Where: in the text, in one sentence, or among so many words in a row."""
    weight: float = Field(default=1.0, gt=0)


class Idea(Section):
    """A meaning, and the ways to put it."""

    phrasings: Annotated[tuple[Annotated[_Word, AfterValidator(check_pattern)], ...], Field(min_length=1), _ONE]
    """Regular expressions, of which one will do."""
    weight: float = Field(default=1.0, gt=0)


class Rules(Section):
    """What a text is searched for."""

    required: tuple[Annotated[Term, _listed("any_of")], ...] = ()
    """Terms; a list holds spellings of which one will do, and {any_of, weight} is a term that counts more or less."""
    groups: tuple[Annotated[TermGroup, _listed("all_of")], ...] = ()
    """Lists of terms that must stand together, or {all_of, within, weight}; within is text, sentence or a number of
    words."""
    ideas: dict[str, Annotated[Idea, _listed("phrasings")]] = Field(default_factory=dict)
    """Named meanings, each with the patterns that express it, or {phrasings, weight}."""
    forbidden: tuple[Annotated[Term, _listed("any_of")], ...] = ()
    """Terms that must not occur; written as `required`."""

    @model_validator(mode="before")
    @classmethod
    def _without_gaps(cls, tree: Any) -> Any:
        """Tables fill in None where a row has no such key."""
        return {key: value for key, value in tree.items() if value is not None} if isinstance(tree, dict) else tree


def rules_in(reference: object) -> Rules:
    """The rules a problem brings along, none if its reference is something else; ValueError if they cannot be read."""
    if isinstance(reference, list | tuple):
        reference = {"required": reference}
    if isinstance(reference, str) and reference.startswith("{"):
        raise ValueError(f"the reference looks like rules, but is no JSON: {reference[:80]!r}")
    if not isinstance(reference, Mapping):
        return Rules()  # an answer in words, say, that comes with the dataset
    try:
        return Rules.model_validate(dict(reference))
    except ValidationError as error:
        raise ValueError(f"the reference cannot be read: {'; '.join(complaints(error)[:3])}") from None


@dataclass(frozen=True, slots=True)
class Found:
    """A rule, and whether the text keeps it."""

    name: str
    weight: float
    kept: bool
    forbids: bool = False


class Checklist:
    """Rules, ready to be looked for."""

    def __init__(self, rules: Rules, reading: Reading) -> None:
        self._reading = reading
        self._terms = [(each, reading.term(each.any_of)) for each in rules.required]
        self._groups = [(each, [reading.term(spellings) for spellings in each.all_of]) for each in rules.groups]
        self._ideas = rules.ideas
        self._forbidden = [(each, reading.term(each.any_of)) for each in rules.forbidden]

    @property
    def asks(self) -> bool:
        """Whether there is anything to be said."""
        return bool(self._terms or self._groups or self._ideas)

    @property
    def names(self) -> list[str]:
        """Of all rules, in order."""
        return [
            *(_name(each) for each, _ in self._terms),
            *(_group_name(each) for each, _ in self._groups),
            *self._ideas,
            *(f"not {_name(each)}" for each, _ in self._forbidden),
        ]

    def look(self, text: str) -> list[Found]:
        """In a prepared text; TimeoutError if the patterns take too long."""
        kept = [*self._kept(text, time.monotonic() + self._reading.timeout_s)]
        return [Found(name, *rest) for name, rest in zip(self.names, kept, strict=True)]

    def _kept(self, text: str, deadline: float) -> Iterator[tuple[float, bool, bool]]:
        for term, pattern in self._terms:
            yield term.weight, _has(pattern, text), False
        for group, patterns in self._groups:
            yield group.weight, together(text, patterns, group.within), False
        for idea in self._ideas.values():
            yield idea.weight, self._reading.says(text, idea.phrasings, deadline), False
        for term, pattern in self._forbidden:
            yield term.weight, not _has(pattern, text), True


def _has(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(text) is not None


def _name(term: Term) -> str:
    return term.any_of[0]


def _group_name(group: TermGroup) -> str:
    return " + ".join(spellings[0] for spellings in group.all_of)
