"""Layout of problems on disk: Parquet rows in veRL's layout.

    data_source     the dataset
    prompt          [{role, content}]
    ability         kind of answer: code, math
    reward_model    {style: rule, ground_truth}
    extra_info      {id, split, index, tier, row}

The ground truth is JSON, so that rows of all datasets have one schema: an answer, or the tests of a program, never a
solution. Rows from elsewhere are read if their ground truth is an answer, or has tests in the format of CodeFu's rows
(as an object or as JSON text); a chat template already applied to a prompt is removed. The tier of such a row follows
from `cf_rating` in its ground truth, and its checker is `contest`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from dojang.core.errors import DataError
from dojang.data.ratings import tier_of
from dojang.types import Message, Problem

__all__ = [
    "CONTEST_CHECKER",
    "from_row",
    "hash_fraction",
    "io_tests",
    "limits",
    "reference_in",
    "statement_of",
    "to_row",
]

_SECONDS = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:s|sec|seconds?)?\s*", re.IGNORECASE)
_TURN = re.compile(r"<\|im_start\|>(system|user|assistant)\n")
CONTEST_CHECKER = {"name": "contest"}
"""Checker of contest problems that name none: the contests' checkers are not published."""
_MEGABYTE = 10**6
"""Codeforces says 256 MB and means 2**20 each; CodeContests took a megabyte for a million bytes."""


def to_row(problem: Problem, *, ability: str, split: str, index: int, row: int | None = None) -> dict[str, Any]:
    """Converts a problem to a row. `row` is its position in the published split, if it has one."""
    place = {} if row is None else {"row": row}
    return {
        "data_source": problem.source,
        "prompt": [{"role": each.role, "content": each.content} for each in problem.messages],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": json.dumps(problem.reference)},
        "extra_info": {"id": problem.id, "split": split, "index": index, "tier": problem.tier, **place},
    }


_OWN = ("data_source", "prompt", "reward_model")
"""Columns of a row that its Problem stores in other fields."""


def from_row(row: Mapping[str, Any], where: str) -> Problem:
    """Converts a row to a problem. Raises DataError, with its position, for an invalid row."""
    try:
        truth, info = row["reward_model"]["ground_truth"], row.get("extra_info") or {}
        value = _decoded(truth)
        told = value if isinstance(value, Mapping) else {}
        return Problem(
            id=str(info.get("id") or told.get("name") or where),
            source=str(row["data_source"]),
            messages=_messages(row["prompt"]),
            reference=reference_in(truth),
            tier=str(info.get("tier") or tier_of(told.get("cf_rating"))),
            columns={key: value for key, value in row.items() if key not in _OWN},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: not a row of data_source, prompt, ability, reward_model and extra_info "
            f"({type(error).__name__}: {error}); `dojang data prepare` makes such rows"
        ) from error


def statement_of(row: Mapping[str, Any]) -> Problem:
    """Converts a prepared row to a problem without its ground truth."""
    info = row["extra_info"]
    return Problem(info["id"], row["data_source"], _messages(row["prompt"]), None, info["tier"] or "")


def hash_fraction(name: str) -> float:
    """Hashes a name to a number in [0, 1), uniformly and deterministically."""
    return int.from_bytes(sha256(name.encode("utf-8", "surrogatepass")).digest()[:6]) / 2**48


def io_tests(tests: object) -> list[dict[str, str]]:
    """Reads input/output tests: {input: [...], output: [...]}, or a list of pairs."""
    if isinstance(tests, Mapping):
        pairs = list(zip(tests["input"] or (), tests["output"] or (), strict=True))
    else:
        pairs = [(each["input"], each["output"]) for each in tests or ()]  # type: ignore[attr-defined]
    return [{"input": given, "output": wanted} for given, wanted in pairs]


def limits(time_limit: object, memory_bytes: float | str | None) -> dict[str, float]:
    """Returns the given time and memory limits. Raises ValueError if one is out of range.

    A time limit is {seconds, nanos}, a number of seconds, or text such as "2.0" or "2 seconds".
    """
    found: dict[str, float] = {}
    seconds = _seconds(time_limit)
    size = None if memory_bytes in (None, "") else float(memory_bytes or 0)
    if (seconds is not None and not 0 < seconds <= 3600) or (size is not None and size < 8 * _MEGABYTE):
        raise ValueError(f"time_limit={time_limit} and memory_limit_bytes={memory_bytes} are not valid limits")
    if seconds is not None:
        found["cpu_s"] = seconds
    if size is not None:
        found["memory_mb"] = int(size // _MEGABYTE)
    return found


def _seconds(limit: object) -> float | None:
    if limit is None or limit == "":
        return None
    if isinstance(limit, Mapping):
        parts = limit.get("seconds"), limit.get("nanos")
        return None if limit and parts == (None, None) else float(parts[0] or 0) + float(parts[1] or 0) / 1e9
    if isinstance(limit, str):
        found = _SECONDS.fullmatch(limit)
        if found is None:
            raise ValueError(f"time_limit={limit!r} is not a number of seconds")
        return float(found[1])
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise TypeError(f"time_limit={limit!r} is neither a number of seconds nor {{seconds, nanos}}")
    return float(limit)


def reference_in(truth: object) -> object:
    """Returns the answer or tests of a ground truth. Raises KeyError, TypeError or ValueError if it is neither."""
    value = _decoded(truth)
    if isinstance(value, Mapping) and "private_tests" in value:
        found = limits(value.get("time_limit"), value.get("memory_limit_bytes"))
        return {
            "private": io_tests(value["private_tests"]),
            "public": io_tests(value.get("public_tests")),
            "checker": value.get("checker") or CONTEST_CHECKER,
            **({"limits": found} if found else {}),
        }
    if isinstance(truth, Mapping) and "private" not in truth:
        raise KeyError("private_tests")
    if isinstance(truth, int | float) and not isinstance(truth, bool) and math.isfinite(truth):
        return str(int(truth) if truth == int(truth) else truth)
    if not isinstance(truth, Mapping | str):
        raise TypeError(f"a ground truth is text, a number or has tests, this is {truth!r:.60}")
    return value


def _decoded(truth: object) -> object:
    """Parses JSON text; any other text is returned as an answer: 12, or \\frac{1}{2}."""
    if isinstance(truth, str) and truth.startswith(('"', "{")):
        with suppress(ValueError):  # a set begins like that, too
            return json.loads(truth)
    return truth


def _messages(prompt: Sequence[Mapping[str, str]]) -> tuple[Message, ...]:
    """Returns the turns; splits a turn with an applied chat template into its turns."""
    turns: list[Message] = []
    if isinstance(prompt, str):
        raise TypeError("the prompt is text, and must be a list of messages {role, content}")
    for each in prompt:
        _, *parts = _TURN.split(each["content"])
        if not parts:
            turns.append(_message(each["role"], each["content"]))
        for role, content in zip(parts[::2], parts[1::2], strict=True):
            content = content.removesuffix("\n").removesuffix("<|im_end|>").strip()
            if content or role != "assistant":  # an empty assistant turn marks the start of the completion
                turns.append(_message(role, content))
    if not turns:
        raise ValueError("the prompt is empty")
    return tuple(turns)


def _message(role: str, content: str) -> Message:
    if role not in ("system", "user", "assistant", "text"):
        raise ValueError(f"unknown role {role!r} of a turn")
    content.encode()  # raises for an unpaired surrogate, which JSON may have
    return Message(role, content)  # type: ignore[arg-type]
