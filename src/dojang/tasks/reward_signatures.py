"""Adapters for reward functions with the signatures of dojang, TRL and veRL.

    (problem, text)                                          dojang's; a number
    (completions, prompts, solution, ..., **columns)         TRL's; a list with a number for each completion, or None
    (data_source, solution_str, ground_truth, extra_info)    veRL's; a number, or a mapping with `score`

The parameter names tell which one it is; (**kwargs), alone or after names of columns, is TRL's. A TRL function gets one
completion at a time, as messages or as text, and the columns of the problem's row and COLUMNS; the row takes
precedence. Its None means that the reward does not apply to the problem (NOT_APPLICABLE). Functions may be async.

Not covered: arguments that exist only inside those trainers (token ids, the trainer's state, its loggers). A function
that requires one is refused.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

from dojang.core.errors import ConfigError
from dojang.types import Problem, plain_prompt

__all__ = ["COLUMNS", "FORMS", "NOT_APPLICABLE", "Completions", "Reward", "adapt_reward", "sample_completions"]

Reward = Callable[[Problem, str], object]
"""Returns a number, NOT_APPLICABLE, or an awaitable of either."""
Completions = Literal["messages", "text"]
FORMS: tuple[Completions, ...] = ("messages", "text")
"""Forms of completions for a TRL function."""

NOT_APPLICABLE = object()
"""Value of a reward that does not apply to a problem."""

COLUMNS: Mapping[str, Callable[[Problem], object]] = {
    "solution": lambda problem: problem.reference,
    "answer": lambda problem: problem.reference,
    "ground_truth": lambda problem: problem.reference,
    "reference": lambda problem: problem.reference,
    "data_source": lambda problem: problem.source,
    "id": lambda problem: problem.id,
    "tier": lambda problem: problem.tier,
    "reward_model": lambda problem: {"style": "rule", "ground_truth": problem.reference},
    "extra_info": lambda problem: {"id": problem.id, "tier": problem.tier, **_own_info(problem)},
}
"""Columns for TRL functions beside prompts and completions. The answer has several names, as in datasets."""

_OURS = ("problem", "text")
_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")


def sample_completions(problem: Problem) -> tuple[str, ...]:
    """Returns sample completions to try a reward function on: with the correct answer in usual forms, and without."""
    answer = problem.reference if isinstance(problem.reference, str | int | float) else 42
    return (
        f"Let us think step by step.\n#### The final answer is {answer}",
        f"<think>\nLet us think.\n</think>\n<answer>\n{answer}\n</answer>\nThe answer is \\boxed{{{answer}}}.",
        "I do not know.",
    )


def adapt_reward(
    name: str, found: object, columns: Iterable[str] | None = None
) -> Reward | Mapping[Completions, Reward]:
    """Adapts a function to (problem, text); for TRL's or veRL's signature, one function for each possible form of
    completions. Raises ConfigError if the signature is none of the three. `columns` are the problems' columns, None if
    unknown."""
    if not callable(found):
        raise ConfigError(f"reward {name!r} is {type(found).__name__}, not a function of (problem, text)")
    try:
        signature = inspect.signature(found)
    except ValueError:  # some C functions have no signature
        return found
    names = set(signature.parameters)
    trl, verl = "completions" in names or _takes_only_columns(signature, columns), "solution_str" in names
    if trl and verl:
        raise ConfigError(
            f"reward {name!r} takes {signature}: `completions` is how TRL calls a function and `solution_str` how veRL "
            "does; keep one of them"
        )
    if trl:
        known = None if columns is None else ("completions", "prompts", *dict.fromkeys((*COLUMNS, *columns)))
        takes = _accepted(name, signature, known, "TRL")
        return {form: _trl(found, takes, form) for form in FORMS}
    if verl:
        return {"text": _verl(found, _accepted(name, signature, _VERL, "veRL"))}
    _check_ours(name, signature)
    return found


def _takes_only_columns(signature: inspect.Signature, columns: Iterable[str] | None) -> bool:
    """Whether a function takes all keyword arguments and requires none but columns: TRL's call, without a parameter
    `completions`."""
    kinds = inspect.Parameter
    parameters = signature.parameters.values()
    if not any(each.kind is kinds.VAR_KEYWORD for each in parameters):
        return False
    if any(each.kind is kinds.VAR_POSITIONAL or each.name in (*_OURS, "solution_str") for each in parameters):
        return False
    required = {each.name for each in parameters if each.default is each.empty and each.kind is not kinds.VAR_KEYWORD}
    return required <= {"prompts", *COLUMNS, *(columns or ())}


def _check_ours(name: str, signature: inspect.Signature) -> None:
    try:
        signature.bind(*_OURS)
    except TypeError as error:
        raise ConfigError(
            f"reward {name!r} takes {signature}, but is called with (problem, text): {error}; a function may also have "
            "TRL's signature (completions, **columns) or veRL's (data_source, solution_str, ground_truth, extra_info)"
        ) from error


def _accepted(
    name: str, signature: inspect.Signature, offered: tuple[str, ...] | None, library: str
) -> frozenset[str] | None:
    """Returns the argument names that the function takes, None for all. Raises ConfigError if one it requires is not
    `offered`."""
    kinds = inspect.Parameter
    parameters = signature.parameters.values()
    lacking = [
        each.name
        for each in parameters
        if offered is not None
        and each.default is each.empty
        and each.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
        and (each.name not in offered or each.kind is kinds.POSITIONAL_ONLY)
    ]
    if offered is not None and lacking:
        raise ConfigError(
            f"reward {name!r} has {library}'s signature {signature}, but no value is available for "
            f"{', '.join(lacking)}; available: {', '.join(offered)}"
        )
    if any(each.kind is kinds.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters)


def _trl(function: Callable[..., Any], accepted: frozenset[str] | None, completions: Completions) -> Reward:
    def reward(problem: Problem, text: str) -> object:
        given: dict[str, object] = {
            "completions": [[{"role": "assistant", "content": text}] if completions == "messages" else text],
            "prompts": [_prompt(problem, completions)],
        }
        rows = {**problem.columns, "extra_info": COLUMNS["extra_info"](problem)}
        for column in (*COLUMNS, *rows):
            if column not in given:
                given[column] = [rows[column] if column in rows else COLUMNS[column](problem)]
        return _then(function(**_taken(given, accepted)), _only)

    return reward


def _verl(function: Callable[..., Any], accepted: frozenset[str] | None) -> Reward:
    def reward(problem: Problem, text: str) -> object:
        given = {name: COLUMNS[name](problem) for name in _VERL if name in COLUMNS}
        given["solution_str"] = text
        return _then(function(**_taken(given, accepted)), _score)

    return reward


def _taken(given: Mapping[str, object], accepted: frozenset[str] | None) -> dict[str, object]:
    return {key: value for key, value in given.items() if accepted is None or key in accepted}


def _own_info(problem: Problem) -> Mapping[str, object]:
    info = problem.columns.get("extra_info")
    return info if isinstance(info, Mapping) else {}


def _prompt(problem: Problem, completions: Completions) -> object:
    plain = plain_prompt(problem.messages)
    if plain is not None:
        return plain
    if completions == "messages":
        return [{"role": each.role, "content": each.content} for each in problem.messages]
    return "\n\n".join(each.content for each in problem.messages)


def _only(value: Any) -> object:
    """Returns the reward of the only completion."""
    if isinstance(value, str | Mapping) or not hasattr(value, "__len__") or len(value) != 1:
        raise TypeError(f"it was called with one completion and returned {value!r:.200}, not a list of one number")
    return NOT_APPLICABLE if value[0] is None else value[0]


def _score(value: Any) -> object:
    if not isinstance(value, Mapping):
        return value
    if "score" not in value:
        raise TypeError(f"it returned a mapping without `score`: {value!r:.200}")
    return value["score"]


def _then(value: Any, read: Callable[[Any], object]) -> object:
    async def later(promise: Awaitable[Any]) -> object:
        return read(await promise)

    return later(value) if inspect.isawaitable(value) else read(value)
