"""Groups as bytes: every field comes back, and malformed bytes raise ValueError only."""

import json
import struct
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from dojang.loop.group_codec import decode, decode_batches, encode, encode_batches
from dojang.types import Group, Message, Outcome, Problem, Sample, Span, TestResult, Verdict

STREAMS = ("token_rewards", "old_logprobs", "values", "advantages", "returns")


def problem(prompt_index: int) -> Problem:
    return Problem(f"sums/{prompt_index % 5}", "sums", (Message("user", "1+1?"),), "2")


def random_test(random: Random, at: int) -> TestResult:
    return TestResult(
        test=at,
        outcome=random.choice(list(Outcome)),
        cpu_s=random.random(),
        wall_s=random.random(),
        memory_mb=random.random(),
        exit_code=random.choice((None, 0, 1, 139)),
        signal=random.choice((None, "SIGSEGV")),
        detail=random.choice(("", "the answer is 4")),
        output=random.choice(("", "\x00 \udc9f\n", "5")),
        errors=random.choice(("", "Traceback")),
    )


def random_sample(random: Random, *, judged: bool = True) -> Sample:
    size = random.choice((0, 1, 7, 8, 9, 40))
    numbers = lambda: [random.gauss(0, 1) for _ in range(size)]  # noqa: E731
    optional = {name: numbers() for name in STREAMS if random.random() < 0.5}
    cut = random.randint(0, size)
    reward = random.choice((1.0, 0.0, -0.5, 0.1))
    verdict = Verdict(
        random.choice(list(Outcome)[:-1]) if judged else Outcome.JUDGE_ERROR,
        reward if judged else None,
        passed=random.randrange(4),
        total=4,
        parts={"format": 0.25, "länge": reward},
        detail=random.choice(("", "line 3: 'x' is not defined\n", "\x00 \u2028 \udc9f")),
        seconds=random.random(),
        isolation=random.choice(("", "namespaces")),
        terms={"format": (0.5, 0.25)} if random.random() < 0.5 else {},
        tests=tuple(random_test(random, at) for at in range(random.randrange(3))),
    )
    return Sample(
        tokens=[random.choice((0, 5, 151_643, 2**31 - 1)) for _ in range(size)],
        mask=[random.random() < 0.5 for _ in range(size)],
        logprobs=np.float32(numbers()) if random.random() < 0.5 else numbers(),
        text=random.choice(("", "4", "четыре \U0001f600", "\ud83d\ude00", '"\\')),
        finish=random.choice(("stop", "length")),
        version=random.randrange(9),
        verdict=verdict,
        index=random.randrange(9),
        role=random.choice(("policy", "coder")),
        turn=random.randrange(3),
        advantage=random.gauss(0, 1),
        temperature=random.choice((0.0, 0.7, 1.0)),
        spans=(Span(3, 0, cut), Span(4, cut, size)) if random.random() < 0.5 else (),
        **optional,
    )


def random_group(seed: int) -> Group:
    random = Random(seed)
    samples = tuple(random_sample(random) for _ in range(random.randrange(5)))
    unjudged = tuple(random_sample(random, judged=False) for _ in range(random.randrange(3)))
    prompt_index = random.randrange(10**12)
    return Group(problem(prompt_index), prompt_index, samples, unjudged)


def bits(group: Group) -> list[object]:
    """Every field of every sample, arrays with their type and bytes."""
    return [
        (value.dtype, value.tobytes()) if isinstance(value, np.ndarray) else value
        for each in (*group.samples, *group.unjudged)
        for value in (getattr(each, field.name) for field in fields(Sample))
    ]


@pytest.mark.parametrize("seed", range(100))
def test_groups_come_back_as_they_were(seed: int) -> None:
    group = random_group(seed)
    found = decode(encode(group), problem)
    assert found == group
    assert bits(found) == bits(group)


def test_decoded_arrays_are_read_only_and_aligned() -> None:
    for each in decode(encode(random_group(3)), problem).samples:
        for array in (each.tokens, each.mask, each.logprobs):
            assert not array.flags.writeable
            assert array.flags.aligned


def test_rewards_may_be_numpy_numbers_or_booleans(make_sample: Callable[..., Sample]) -> None:
    verdicts = [Verdict(Outcome.WRONG, np.float32(0.5)), Verdict(Outcome.ACCEPTED, True, parts={"right": True})]
    group = Group(problem(7), 7, tuple(make_sample(verdict=each) for each in verdicts))
    assert [each.reward for each in decode(encode(group), problem).samples] == [0.5, 1.0]


def test_a_token_takes_about_eight_bytes(make_sample: Callable[..., Sample]) -> None:
    answer = range(4000)
    sample = make_sample(answer=answer, logprobs=np.float32(np.linspace(-9, 0, len(answer))))
    assert len(encode(Group(problem(0), 0, (sample,)))) < 8.3 * len(answer)


def test_a_group_of_another_problem_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of problem 'sums/3', but prompt 3 of this run is 'sums/4'"):
        decode(encode(Group(problem(3), 3, ())), lambda prompt_index: problem(prompt_index + 1))


@pytest.mark.parametrize("name", ["logprobs", *STREAMS])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_numbers_that_are_not_finite_are_not_encoded(
    make_sample: Callable[..., Sample], name: str, value: float
) -> None:
    sample = make_sample(**({"logprobs": (value, 0.0)} if name == "logprobs" else {name: [value] * 5}))
    with pytest.raises(ValueError, match="not all finite"):
        encode(Group(problem(0), 0, (sample,)))


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    (size,) = struct.unpack_from("<I", data, 4)
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return data[:4] + struct.pack("<I", len(text)) + text + data[8 + size :]


def setting(path: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(header: dict[str, Any]) -> None:
        place: Any = header
        *before, last = path.split(".")
        for name in before:
            place = place[int(name) if name.isdecimal() else name]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("prompt_index", -1),
        ("prompt_index", True),
        ("prompt_index", 2**63),
        ("problem", None),
        ("more", 1),
        ("samples", {}),
        ("samples.0.size", 4),
        ("samples.0.size", 6),
        ("samples.0.size", 2**40),
        ("samples.0.floats", {}),
        ("samples.0.floats", {"logprobs": 2}),
        ("samples.0.floats", {"logprobs": 4.0}),
        ("samples.0.floats", {"logprobs": 8}),
        ("samples.0.floats", {"tokens": 4}),
        ("samples.0.finish", "abort"),
        ("samples.0.text", 1),
        ("samples.0.text", "four"),
        ("samples.0.version", 1.5),
        ("samples.0.temperature", float("nan")),
        ("samples.0.temperature", "1"),
        ("samples.0.spans", [[0, 3, 6]]),
        ("samples.0.spans", [[0, 4, 3]]),
        ("samples.0.spans", [[-1, 3, 5]]),
        ("samples.0.spans", [[0, 3]]),
        ("samples.0.verdict.outcome", "perfect"),
        ("samples.0.verdict.outcome", "judge_error"),
        ("samples.0.verdict.reward", None),
        ("samples.0.verdict.reward", float("inf")),
        ("samples.0.verdict.reward", 10**400),
        ("samples.0.verdict.parts", {"a": None}),
        ("samples.0.verdict.terms", {"a": [1.0]}),
        ("samples.0.verdict", []),
    ],
)
def test_a_wrong_header_is_refused(make_group: Callable[..., Group], path: str, value: object) -> None:
    data = encode(replace(make_group([1.0]), problem=problem(0)))
    assert decode(with_header(data, lambda header: None), problem)
    with pytest.raises(ValueError, match=r"."):
        decode(with_header(data, setting(path, value)), problem)


def test_a_sample_without_verdict_is_never_among_those_to_train_on(make_group: Callable[..., Group]) -> None:
    data = encode(replace(make_group(errors=["no judge"]), problem=problem(0)))
    with pytest.raises(ValueError, match="JUDGE_ERROR"):
        decode(with_header(data, lambda header: header.update(samples=header["unjudged"], unjudged=[])), problem)


def test_negative_tokens_and_deep_nesting_are_refused(make_group: Callable[..., Group]) -> None:
    data = encode(replace(make_group([1.0]), problem=problem(0)))
    (size,) = struct.unpack_from("<I", data, 4)
    with pytest.raises(ValueError, match="token -1 is negative"):
        decode(data[: 8 + size] + b"\xff" * 4 + data[12 + size :], problem)
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(b"DJG1" + struct.pack("<I", 10**6) + b"[" * 10**6, problem)


def test_every_truncation_and_every_extra_byte_is_refused() -> None:
    data = encode(random_group(1))
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            decode(data[:size], problem)
    with pytest.raises(ValueError, match="1 bytes too many"):
        decode(data + b"\0", problem)


def mutated(random: Random, data: bytes) -> bytes:
    """A few random edits: overwritten, removed, inserted or copied bytes."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(found) + 1)
        width = random.choice((0, 1, 1, 2, 16))
        source = random.randrange(len(found) + 1)
        found[at : at + width] = random.choice(
            (random.randbytes(width), b"", random.randbytes(1), bytes(found[source : source + width]), b"9e99", b"{[")
        )
    return bytes(found)


def test_mutated_bytes_raise_value_errors_only() -> None:
    random = Random(0)
    sources = [encode(random_group(seed)) for seed in range(20)]
    refused = 0
    for _ in range(2000):
        try:
            decode(mutated(random, random.choice(sources)), problem)
        except ValueError:
            refused += 1
    assert 1000 < refused < 2000  # a changed token is not malformed


def test_batches_come_back_as_they_were() -> None:
    batches = tuple(tuple(random_group(10 * step + at) for at in range(step)) for step in range(4))
    data = encode_batches(batches)
    assert decode_batches(data, problem) == batches
    assert decode_batches(encode_batches(()), problem) == ()
    for size in range(0, len(data), 97):
        with pytest.raises(ValueError, match=r"."):
            decode_batches(data[:size], problem)
    with pytest.raises(ValueError, match="too many"):
        decode_batches(data + b"\0", problem)
