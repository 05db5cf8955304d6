"""JSON of submissions, test suites and judgements, between a judge service and its clients.

Parsing reports all problems at once, each with its path ("test_suite.tests.0.output: Field required"), and never quotes
a program. Writing replaces lone surrogates, which JSON cannot represent, by '?': a program with one cannot be right.
Problem files are in `problem_file.py`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from dojang.programs import Stop, TestSuite

__all__ = ["JudgeRequest", "SchemaError", "dump", "parse", "problem_errors"]

T = TypeVar("T")
Place = tuple[int | str, ...]

MOST_LINES = 20
UNION_MEMBERS = ("IoTest", "CallTest", "Calls")  # pydantic puts these names into an error's path
UNKNOWN_FIELD = ("unexpected_keyword_argument", "extra_forbidden")


class SchemaError(ValueError):
    """JSON that does not match the schema."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """A submission with its test suite, or with the digest of a test suite stored before."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    language: str
    source: str
    stop: Stop = Stop.NEVER
    test_suite: TestSuite | None = None
    test_suite_digest: str | None = None

    def __post_init__(self) -> None:
        if (self.test_suite is None) == (self.test_suite_digest is None):
            raise ValueError("give either test_suite or test_suite_digest")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse(kind: type[T], data: bytes | str) -> T:
    """Parse JSON as a value of this class; raises SchemaError."""
    adapter: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
            raise SchemaError(problem_errors(error)) from None
        # Python's json module writes lone surrogates as escapes that a strict parser rejects.
        problems = problem_errors(error)
    try:
        return adapter.validate_python(_without_surrogates(json.loads(data)))
    except ValidationError as error:
        raise SchemaError(problem_errors(error)) from None
    except (ValueError, RecursionError):
        raise SchemaError(problems) from None


def dump(value: object) -> bytes:
    """Write a value as JSON."""
    adapter = _adapter(type(value))  # type: ignore[arg-type]
    try:
        return adapter.dump_json(value)
    except PydanticSerializationError:
        return json.dumps(_without_surrogates(adapter.dump_python(value))).encode()


def problem_errors(error: ValidationError) -> list[str]:
    """One line per problem: its path and the error."""
    details = _best_union_members(error.errors(include_url=False, include_input=False))
    lines = [_line(each) for each in details]
    return lines if len(lines) <= MOST_LINES else [*lines[:MOST_LINES], f"... and {len(lines) - MOST_LINES} more"]


def _line(detail: ErrorDetails) -> str:
    place = ".".join(str(part) for part in detail["loc"])
    text = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in UNKNOWN_FIELD:
        text = "Unknown field"
    elif detail["type"] == "dataclass_type":
        text = "Input should be an object"
    return f"{place}: {text}" if place else text


def _best_union_members(details: Iterable[ErrorDetails]) -> list[ErrorDetails]:
    """For a value of a union type, keep the problems with the type it most resembles."""
    found: dict[Place, dict[str, list[ErrorDetails]]] = {}
    for detail in details:
        before, member, after = _split(detail["loc"])
        found.setdefault(before if member else detail["loc"], {}).setdefault(member, []).append(
            {**detail, "loc": (*before, *after)}
        )
    return [detail for members in found.values() for detail in min(members.values(), key=_unknown_fields)]


def _split(place: Place) -> tuple[Place, str, Place]:
    for index, part in enumerate(place):
        if part in UNION_MEMBERS:
            return place[:index], str(part), place[index + 1 :]
    return place, "", ()


def _unknown_fields(details: Sequence[ErrorDetails]) -> int:
    """Number of unknown fields: what is written identifies the type better than what is missing."""
    return sum(each["type"] in UNKNOWN_FIELD for each in details)


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
        case list() | tuple():
            return [_without_surrogates(each) for each in value]
    return value
