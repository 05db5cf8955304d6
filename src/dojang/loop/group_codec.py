"""Encodes groups as bytes: for checkpoints, the rollout journal and delivery by rollout workers.

    magic "DJG1" | u32 header size | header (JSON, UTF-8) | data of sample 0 | data of sample 1 | ...

The header holds the numbers of the samples and the sizes of their data: tokens (int32), mask (packed bits), floats
(float32 or float64, as the sample has them), all little-endian, and the text (UTF-8). Decoding trusts nothing:
malformed bytes raise ValueError and nothing else. The problem is not encoded: the prompt index identifies it, and its
id is checked.
"""

import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np

from dojang.types import Finish, Group, Outcome, Problem, Sample, Span, TestResult, Turn, Verdict

__all__ = ["Batches", "decode", "decode_batches", "encode", "encode_batches"]

Batches = tuple[tuple[Group, ...], ...]
"""Groups of several steps, oldest step first."""
_MAGIC = b"DJG1"
_SIZE = struct.Struct("<I")
_FLOATS = ("logprobs", "token_rewards", "old_logprobs", "values", "advantages", "returns")
_INTS = ("version", "index", "turn")
_TEXTS = ("finish", "role")
_NUMBERS = ("advantage", "temperature")
_SAMPLE = {*_INTS, *_TEXTS, *_NUMBERS, "size", "floats", "text", "spans", "turns", "verdict"}
_VERDICT = {"outcome", "reward", "passed", "total", "parts", "detail", "seconds", "isolation", "terms", "tests"}
_LARGEST = 2**63 - 1


def encode(group: Group) -> bytes:
    """Encodes one group. ValueError for numbers that are not finite: they come from a broken engine or trainer."""
    parts: list[bytes] = []
    header = {
        "problem": group.problem.id,
        "prompt_index": int(group.prompt_index),
        "samples": [_sample_row(each, parts) for each in group.samples],
        "unjudged": [_sample_row(each, parts) for each in group.unjudged],
    }
    head = _to_bytes(json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    return b"".join((_MAGIC, _SIZE.pack(len(head)), head, *parts))


def decode(data: bytes, problem: Callable[[int], Problem]) -> Group:
    """Decodes one group; `problem` maps a prompt index to its problem. ValueError if anything is malformed, or if the
    group is of another problem."""
    header, rest = _header(data)
    prompt_index = _integer(header["prompt_index"], "prompt_index")
    samples, unjudged = (
        tuple(_sample(_fields(row, _SAMPLE, "sample"), rest) for row in _items(header[name], name))
        for name in ("samples", "unjudged")
    )
    rest.expect_end()
    if any(each.verdict.outcome is Outcome.JUDGE_ERROR for each in samples):
        raise ValueError(f"group {prompt_index} has a JUDGE_ERROR sample among those to train on")
    found = problem(prompt_index)
    if found.id != header["problem"]:
        raise ValueError(
            f"group {prompt_index} is of problem {header['problem']!r}, but prompt {prompt_index} of this run is "
            f"{found.id!r}: the training data or the seed differ"
        )
    return Group(found, prompt_index, samples, unjudged)


def encode_batches(batches: Batches) -> bytes:
    """Encodes the groups of several steps."""
    parts = [_SIZE.pack(len(batches))]
    for batch in batches:
        parts.append(_SIZE.pack(len(batch)))
        for group in batch:
            payload = encode(group)
            parts += [_SIZE.pack(len(payload)), payload]
    return b"".join(parts)


def decode_batches(data: bytes, problem: Callable[[int], Problem]) -> Batches:
    """Decodes what `encode_batches` wrote."""
    rest = _Bytes(data)
    batches = tuple(
        tuple(decode(rest.take(rest.size()), problem) for _ in range(rest.size())) for _ in range(rest.size())
    )
    rest.expect_end()
    return batches


class _Bytes:
    """Reads bytes from front to back."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = memoryview(data)
        self._at = at

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise ValueError(f"truncated: {count} bytes expected, {len(self._data) - self._at} left")
        found = bytes(self._data[self._at : end])
        self._at = end
        return found

    def text(self, count: int) -> str:
        return self.take(count).decode("utf-8", "surrogatepass")

    def size(self) -> int:
        (found,) = _SIZE.unpack(self.take(_SIZE.size))
        return int(found)

    def array(self, dtype: str, count: int) -> "np.ndarray[Any, Any]":
        """Copy of the bytes as an array, in the native byte order."""
        kind = np.dtype(dtype)
        return np.frombuffer(self.take(count * kind.itemsize), dtype=kind).astype(kind.newbyteorder("="), copy=False)

    def expect_end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes too many")


def _header(data: bytes) -> tuple[dict[str, Any], _Bytes]:
    rest = _Bytes(data)
    if rest.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("no encoded group: the first bytes differ")
    try:
        header = json.loads(rest.text(rest.size()), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    fields = _fields(header, {"problem", "prompt_index", "samples", "unjudged"}, "group")
    return fields, rest


def _sample_row(sample: Sample, parts: list[bytes]) -> dict[str, Any]:
    """Header of a sample; appends its data."""
    _validate(sample)
    floats = {name: getattr(sample, name) for name in _FLOATS if len(getattr(sample, name))}
    parts.append(sample.tokens.astype("<i4", copy=False).tobytes())
    parts.append(np.packbits(sample.mask, bitorder="little").tobytes())
    parts += [found.astype(f"<f{found.itemsize}", copy=False).tobytes() for found in floats.values()]
    text = _to_bytes(sample.text)
    parts.append(text)
    return {
        "size": len(sample.tokens),
        "floats": {name: found.itemsize for name, found in floats.items()},
        "text": len(text),
        **{name: int(getattr(sample, name)) for name in _INTS},
        **{name: str(getattr(sample, name)) for name in _TEXTS},
        **{name: float(getattr(sample, name)) for name in _NUMBERS},
        "spans": [[int(each.version), int(each.start), int(each.end)] for each in sample.spans],
        "turns": [[str(each.role), int(each.start), int(each.end), float(each.reward)] for each in sample.turns],
        "verdict": _verdict_row(sample.verdict),
    }


def _verdict_row(verdict: Verdict) -> dict[str, Any]:
    """Header of a verdict; rewards may be numpy numbers or booleans."""
    return {
        "outcome": verdict.outcome.value,
        "reward": None if verdict.reward is None else float(verdict.reward),
        "passed": int(verdict.passed),
        "total": int(verdict.total),
        "parts": {str(name): float(value) for name, value in verdict.parts.items()},
        "detail": str(verdict.detail),
        "seconds": float(verdict.seconds),
        "isolation": str(verdict.isolation),
        "terms": {str(name): [float(each) for each in term] for name, term in verdict.terms.items()},
        "tests": [_test_row(each) for each in verdict.tests],
    }


def _test_row(result: TestResult) -> list[Any]:
    """A list instead of a mapping: a sample may have a hundred of them."""
    costs = (float(result.cpu_s), float(result.wall_s), float(result.memory_mb))
    texts = (result.signal, result.detail, result.output, result.errors)
    return [int(result.test), result.outcome.value, *costs, result.exit_code, *texts]


def _sample(row: dict[str, Any], rest: _Bytes) -> Sample:
    size = _integer(row["size"], "size")
    tokens = rest.array("<i4", size)
    bits = np.frombuffer(rest.take((size + 7) // 8), dtype=np.uint8)
    floats = {
        name: rest.array(_float_type(width), size)
        for name, width in _fields(row["floats"], set(_FLOATS), "floats", optional=True).items()
    }
    fields: dict[str, Any] = {
        "text": rest.text(_integer(row["text"], "text")),
        **{name: _integer(row[name], name) for name in _INTS},
        **{name: _text(row[name], name) for name in _TEXTS},
        **{name: _number(row[name], name) for name in _NUMBERS},
    }
    sample = Sample(
        tokens=tokens,
        mask=np.unpackbits(bits, count=size, bitorder="little").astype(np.bool_),
        verdict=_verdict(_fields(row["verdict"], _VERDICT, "verdict")),
        spans=tuple(_span(each) for each in _items(row["spans"], "spans")),
        turns=tuple(_turn(each) for each in _items(row["turns"], "turns")),
        **{"logprobs": (), **floats, **fields},
    )
    _validate(sample)
    return sample


def _verdict(row: dict[str, Any]) -> Verdict:
    terms = {
        name: tuple(_number(each, f"term {name}") for each in _items(term, "terms", 2))
        for name, term in _mapping(row["terms"], "terms").items()
    }
    return Verdict(
        outcome=Outcome(_text(row["outcome"], "outcome")),
        reward=None if row["reward"] is None else _number(row["reward"], "reward"),
        passed=_integer(row["passed"], "passed"),
        total=_integer(row["total"], "total"),
        parts={name: _number(value, f"part {name}") for name, value in _mapping(row["parts"], "parts").items()},
        detail=_text(row["detail"], "detail"),
        seconds=_number(row["seconds"], "seconds"),
        isolation=_text(row["isolation"], "isolation"),
        terms=terms,  # type: ignore[arg-type]  # of two numbers each
        tests=tuple(_test(each) for each in _items(row["tests"], "tests")),
    )


def _test(row: object) -> TestResult:
    test, outcome, cpu_s, wall_s, memory_mb, exit_code, signal, *texts = _items(row, "test", 10)
    detail, output, errors = (_text(each, "text of a test") for each in texts)
    return TestResult(
        test=_integer(test, "test"),
        outcome=Outcome(_text(outcome, "outcome of a test")),
        cpu_s=_number(cpu_s, "cpu_s"),
        wall_s=_number(wall_s, "wall_s"),
        memory_mb=_number(memory_mb, "memory_mb"),
        exit_code=None if exit_code is None else _integer(exit_code, "exit_code"),
        signal=None if signal is None else _text(signal, "signal"),
        detail=detail,
        output=output,
        errors=errors,
    )


def _validate(sample: Sample) -> None:
    """Raises ValueError for contents that no engine or trainer in order produces."""
    size = len(sample.tokens)
    if sample.finish not in get_args(Finish):
        raise ValueError(f"finish {sample.finish!r} is none of {', '.join(get_args(Finish))}")
    if size and int(sample.tokens.min()) < 0:
        raise ValueError(f"token {int(sample.tokens.min())} is negative")
    for name in _FLOATS:
        if not np.isfinite(getattr(sample, name)).all():
            raise ValueError(f"the {name} of sample {sample.index} are not all finite")
    if bad := [each for each in sample.spans if each.version < 0 or not 0 <= each.start <= each.end <= size]:
        raise ValueError(f"{bad[0]} is no range of {size} tokens")
    if wrong := [each for each in sample.turns if not 0 <= each.start <= each.end <= size]:
        raise ValueError(f"{wrong[0]} is no range of {size} tokens")


def _span(row: object) -> Span:
    version, start, end = (_integer(each, "span") for each in _items(row, "span", 3))
    return Span(version, start, end)


def _turn(row: object) -> Turn:
    role, start, end, reward = _items(row, "turn", 4)
    return Turn(_text(role, "role"), _integer(start, "turn"), _integer(end, "turn"), _number(reward, "reward"))


def _float_type(width: object) -> str:
    if _integer(width, "size of floats") not in (4, 8):
        raise ValueError(f"floats of {width!r} bytes; 4 or 8 expected")
    return f"<f{width}"


def _fields(row: object, names: set[str], what: str, *, optional: bool = False) -> dict[str, Any]:
    found = _mapping(row, what)
    wrong = set(found) - names if optional else set(found) ^ names
    if wrong:
        raise ValueError(f"fields of a {what} unknown or missing: {', '.join(sorted(map(repr, wrong)))}")
    return found


def _mapping(row: object, what: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"{what} is no mapping but {type(row).__name__}")
    return row


def _items(row: object, what: str, count: int | None = None) -> Sequence[object]:
    if not isinstance(row, list) or count not in (None, len(row)):
        raise ValueError(f"{what} is no list" + (f" of {count}" if count is not None else ""))
    return row


def _integer(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{what} {value!r:.40} is no whole number of 0 or more")
    return value


def _number(value: object, what: str) -> float:
    if not isinstance(value, float) or not math.isfinite(value):  # encode writes floats only, so 1.0 for 1
        raise ValueError(f"{what} {value!r:.40} is no finite number")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} {value!r:.40} is no text")
    return value


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # sampled text may hold half a character


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no finite number")
