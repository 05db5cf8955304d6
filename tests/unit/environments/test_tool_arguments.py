"""Arguments of tool calls are checked against the schema that type hints and docstrings give."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from dojang.environments.tool_arguments import wrong_argument
from dojang.environments.tools import schemas_of


def tool(
    number: int,
    share: float = 0.5,
    text: str = "",
    flag: bool = False,
    mode: Literal["fast", "exact"] = "fast",
    drink: str = "tea",
    items: list[int] | None = None,
    table: dict[str, float] | None = None,
    pair: tuple[int, str] | None = None,
    either: int | str = 0,
    mixed: list[int] | bool = False,
    anything: Any = None,
) -> str:
    """
    Does nothing.

    Args:
        number: A number.
        share: A share.
        text: A text.
        flag: A flag.
        mode: A mode.
        drink: A drink (choices: ["tea", "coffee"])
        items: Some numbers.
        table: Numbers by name.
        pair: A number and a text.
        either: A number or a text.
        mixed: Numbers or a flag.
        anything: Anything.
    """
    return ""


@pytest.fixture(scope="module")
def schema() -> Mapping[str, Any]:
    found: Any = schemas_of([tool])[0]["function"]
    return found["parameters"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "arguments",
    [
        {"number": 1, "share": 1, "text": "", "flag": True, "mode": "exact", "drink": "coffee"},
        {"number": 10**40, "share": 0.25, "items": [1, 2], "table": {"a": 1, "b": 0.5}, "pair": [1, "a"]},
        {"items": None, "table": None, "either": "a", "mixed": [1], "anything": {"a": [None]}},
        {"either": 1, "mixed": True, "unknown": object()},
    ],
)
def test_arguments_of_the_right_types_are_taken(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    assert wrong_argument(arguments, schema) == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"number": "10"}, '`number` must be an integer, not "10"'),
        ({"number": 1.5}, "`number` must be an integer, not 1.5"),
        ({"number": True}, "`number` must be an integer, not true"),
        ({"number": None}, "`number` must be an integer, not null"),
        ({"share": "0.5"}, '`share` must be a number, not "0.5"'),
        ({"share": float("nan")}, "`share` must be a number, not NaN"),
        ({"number": 1, "text": 5}, "`text` must be text (a JSON string), not 5"),
        ({"flag": 1}, "`flag` must be a boolean, not 1"),
        ({"mode": "slow"}, '`mode` must be one of "fast", "exact", not "slow"'),
        ({"drink": "milk"}, '`drink` must be one of "tea", "coffee", not "milk"'),
        ({"items": {"a": 1}}, '`items` must be a list, not {"a": 1}'),
        ({"items": [1, "b"]}, '`items[1]` must be an integer, not "b"'),
        ({"table": {"a": "b"}}, '`table.a` must be a number, not "b"'),
        ({"pair": ["a", "b"]}, '`pair[0]` must be an integer, not "a"'),
        ({"pair": [1]}, "`pair` must be a list of 2, not [1]"),
        ({"pair": [1, "a", 2]}, '`pair` must be a list of 2, not [1, "a", 2]'),
        ({"either": []}, "`either` must be an integer or text (a JSON string), not []"),
        ({"mixed": "a"}, '`mixed` must be a list, not "a" or `mixed` must be a boolean, not "a"'),
        ({"text": ["x" * 500]}, "..."),
    ],
)
def test_an_argument_of_another_type_is_named(
    schema: Mapping[str, Any], arguments: Mapping[str, Any], said: str
) -> None:
    found = wrong_argument(arguments, schema)
    assert said in found
    assert len(found) < 200


def test_a_deeply_nested_value_is_no_error(schema: Mapping[str, Any]) -> None:
    """A model could write one to end the episode."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert wrong_argument({"anything": deep}, schema) == ""
    assert wrong_argument({"number": deep}, schema) == "`number` must be an integer, not a list"
