"""Settings of reward functions: a weight, or a section.

    rewards:
      correct: 1.0                                  built in, by its name
      mine:politeness: 0.2                          a custom function
      tags: {weight: 0.3, pattern: '</think>'}      a regular expression, with a custom name
      length: {weight: 0.2, at_most: 200}           a number of words, with a custom name

The `regex` library stops a slow pattern at a time limit, in any thread; such a text has no reward.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from dojang.core.section import Section, complaints
from dojang.tasks.reward_signatures import Completions
from dojang.tasks.section import TaskSection

__all__ = [
    "FunctionReward",
    "Kind",
    "LengthReward",
    "PatternReward",
    "RewardedTaskConfig",
    "Weighted",
    "check_names",
    "check_pattern",
    "labels",
    "unknown_parts",
    "weight_of",
]

_FUNCTION = re.compile(r"\w+(?:\.\w+)*:\w+")
_NAME = re.compile(r"\w[\w-]*")


def check_pattern(pattern: str) -> str:
    """Raises ValueError unless the pattern is a regular expression."""
    import regex  # imported late: it takes a while to load

    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


class LengthReward(Section):
    """Length reward: 1 within the bounds; outside it falls linearly to 0."""

    weight: float = 1.0
    unit: Literal["words", "characters"] = "words"
    """Unit of length; words are separated by white space."""
    at_least: int = Field(default=0, ge=0)
    at_most: int | None = Field(default=None, ge=1)
    fade: int | None = Field(default=None, ge=0)
    """Distance beyond a bound at which the reward is 0; null: equal to the bound."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most={self.at_most} is less than at_least={self.at_least}")
        return self

    def value(self, text: str) -> float:
        """Returns the reward, between 0 and 1."""
        count = len(text.split()) if self.unit == "words" else len(text)
        if count < self.at_least:
            bound = self.at_least
        elif self.at_most is not None and count > self.at_most:
            bound = self.at_most
        else:
            return 1.0
        fade = bound if self.fade is None else self.fade
        return max(0.0, 1 - abs(count - bound) / fade) if fade else 0.0


class PatternReward(Section):
    """Pattern reward: 1 if the pattern matches anywhere in the text, else 0."""

    weight: float = 1.0
    pattern: Annotated[str, Field(min_length=1)]
    """Regular expression. With a leading (?s) a dot matches line breaks; \\A and \\Z are the ends of the text."""

    _compiles = field_validator("pattern")(check_pattern)

    def value(self, text: str, timeout_s: float) -> float:
        """Returns 0 or 1. Raises TimeoutError after `timeout_s`."""
        import regex

        return float(regex.search(self.pattern, text, timeout=timeout_s, concurrent=True) is not None)


class FunctionReward(Section):
    """Settings of a package.module:function."""

    weight: float = 1.0
    completions: Completions | None = None
    """Form of completions for a function with TRL's signature: messages or text. null: found by trying both before the
    run starts."""


Kind = float | LengthReward | PatternReward | FunctionReward


_WEIGHT: TypeAdapter[float] = TypeAdapter(FiniteFloat)


def _read(tree: Any) -> Any:
    """Parses the sections by their keys. Raises ValueError with all errors."""
    if not isinstance(tree, Mapping):
        return tree
    read: dict[Any, Any] = {}
    wrong: list[str] = []
    for name, value in tree.items():
        try:
            read[name] = _section(str(name), value)
        except ValidationError as error:
            wrong += [f"{name}: {each}" for each in complaints(error)]
        except ValueError as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        raise ValueError("\n".join(wrong))
    return read


def _section(name: str, value: Any) -> Kind:
    if isinstance(value, LengthReward | PatternReward | FunctionReward):
        return value
    if not isinstance(value, Mapping):
        return _WEIGHT.validate_python(value)
    if ":" in name:
        return FunctionReward.model_validate(value)
    if "pattern" in value:
        return PatternReward.model_validate(value)
    if {"at_least", "at_most"} & set(value):
        return LengthReward.model_validate(value)
    raise ValueError("a section needs a `pattern`, or `at_least` or `at_most`; any other reward is a weight alone")


Weighted = Annotated[dict[str, Kind], BeforeValidator(_read)]
"""Rewards by name."""


def check_names(rewards: Mapping[str, Kind], built_in: Sequence[str] = (), taken: Sequence[str] = ()) -> None:
    """Raises ValueError if a name is unknown, or equals one of the task's own parts."""
    wrong = [problem for name, kind in rewards.items() if (problem := _misnamed(name, kind, built_in))]
    wrong += [
        f"{name!r} has the name of the task's part {label!r}; give it another name"
        for name, label in labels(rewards).items()
        if label in taken
    ]
    if wrong:
        raise ValueError("; ".join(wrong))


class RewardedTaskConfig(TaskSection):
    """Settings of tasks with reward functions, which may add to the task's own reward."""

    built_in: ClassVar[tuple[str, ...]] = ()
    """Built-in reward functions that `rewards` may name."""
    rewards: Weighted = Field(default_factory=dict)
    """Additional reward functions and their weights: a length, a pattern, or a custom package.module:function
    (docs/rewards.md)."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Time limit of a pattern or a package.module:function for one completion, in seconds."""

    @field_validator("rewards")
    @classmethod
    def _known_names(cls, rewards: Weighted) -> Weighted:
        check_names(rewards, cls.built_in, cls.own_parts)
        return rewards

    def part_names(self) -> list[str]:
        return [*self.own_parts, *labels(self.rewards).values()]

    def weights(self) -> dict[str, float]:
        """Weights of the terms of the reward."""
        return {name: weight_of(kind) for name, kind in self.rewards.items()}

    def negative_rewards(self) -> Iterator[str]:
        if negative := [name for name, weight in self.weights().items() if weight < 0]:
            yield f"the weight of {', '.join(negative)} in the task's rewards is negative; make it 0 or more"


def weight_of(kind: Kind) -> float:
    return kind if isinstance(kind, int | float) else kind.weight


def unknown_parts(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Returns the error message for algo.reward_weights with unknown parts."""
    return (
        f"algo.reward_weights has a weight for {', '.join(sorted(unknown))}, but the parts of the task's reward are "
        f"{', '.join(sorted(known)) or 'not named'}; correct the name or remove it"
    )


def labels(names: Mapping[str, object]) -> dict[str, str]:
    """Returns a short name for each reward: the function's name, if unique."""
    short = {name: name.rpartition(":")[2] for name in names}
    times = list(short.values())
    return {name: label if times.count(label) == 1 else name for name, label in short.items()}


def _misnamed(name: str, kind: Kind, built_in: Sequence[str]) -> str | None:
    if isinstance(kind, LengthReward | PatternReward):
        return None if _NAME.fullmatch(name) else f"{name!r} is not a valid name; use letters, digits, _ and -"

    if name in built_in or _FUNCTION.fullmatch(name):
        return None
    near = get_close_matches(name.lower(), built_in, n=1)
    known = f"neither built in ({', '.join(built_in)}) nor" if built_in else "not"
    return f"unknown reward {name!r}: it is {known} of the form package.module:function" + (
        f"; did you mean {near[0]!r}?" if near else ""
    )
