"""Alignment of two tokenizations by bytes, against all pairs of token boundaries tried out."""

import math
import random
from itertools import pairwise

import pytest

from dojang.workflows.token_alignment import align, chunk_gaps


def split(text: bytes, draw: random.Random, empty: float = 0.0) -> list[bytes]:
    """Cuts a text at random; some tokens have no bytes."""
    found, rest = list[bytes](), text
    while rest:
        size = 0 if draw.random() < empty else draw.randint(1, 4)
        found.append(rest[:size])
        rest = rest[size:]
    return found


def synchronised(student: list[bytes], teacher: list[bytes]) -> list[tuple[int, int]]:
    """Numbers of leading tokens that spell the same bytes, the most tokens for each number of bytes."""
    pairs = [
        (i, j)
        for i in range(len(student) + 1)
        for j in range(len(teacher) + 1)
        if b"".join(student[:i]) == b"".join(teacher[:j]) != b""
    ]
    most = {len(b"".join(student[:i])): (i, j) for i, j in sorted(pairs)}
    return [most[size] for size in sorted(most)]


@pytest.mark.parametrize("empty", [0.0, 0.2])
def test_chunks_end_where_both_have_spelled_the_same_bytes(empty: float) -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = bytes(draw.choice(b"ab\xc3\xa4\xff") for _ in range(draw.randint(0, 14)))
        other = text if draw.random() < 0.6 else text[: draw.randint(0, len(text))] + bytes([draw.choice(b"abc")])
        student, teacher = split(text, draw, empty), split(other, draw, empty)
        assert list(map(tuple, align(student, teacher).tolist())) == synchronised(student, teacher)


def test_a_character_split_over_tokens_is_one_chunk_with_its_neighbours() -> None:
    student = ["日".encode()[:1], "日".encode()[1:], "本".encode()]
    teacher = ["日".encode()[:2], "日".encode()[2:] + "本".encode()]
    assert align(student, teacher).tolist() == [[3, 2]]
    assert align(["日".encode(), "本".encode()], student).tolist() == [[1, 2], [2, 3]]


def test_gaps_of_a_completion_sum_to_the_log_ratio_of_its_text() -> None:
    draw = random.Random(1)
    for _ in range(100):
        text = bytes(draw.randrange(256) for _ in range(draw.randint(1, 20)))
        student, teacher = split(text, draw), split(text, draw)
        mine, theirs = ([-draw.expovariate(1) for _ in some] for some in (student, teacher))
        ends = align(student, teacher)
        gaps = chunk_gaps(ends, mine, theirs)
        assert math.fsum(gaps) == pytest.approx(sum(mine) - sum(theirs))
        for (start, their_start), (stop, their_stop) in pairwise([(0, 0), *map(tuple, ends.tolist())]):
            assert len(set(gaps[start:stop])) == 1
            wanted = sum(mine[start:stop]) - sum(theirs[their_start:their_stop])
            assert math.fsum(gaps[start:stop]) == pytest.approx(wanted)


def test_the_same_tokens_get_their_own_log_ratios() -> None:
    pieces = [b"a", b"bc", b"d"]
    gaps = chunk_gaps(align(pieces, pieces), [-1.0, -2.0, -0.5], [-1.5, -1.0, -0.5])
    assert gaps == [0.5, -1.0, 0.0]


def test_tokens_after_the_texts_part_and_infinite_log_probs_give_no_signal() -> None:
    student, teacher = [b"ab", b"c", b"d", b"e"], [b"a", b"b", b"cd", b"x"]
    ends = align(student, teacher)
    assert chunk_gaps(ends, [-1.0] * 4, [-1.0] * 4) == [1.0, -0.5, -0.5, None]
    assert chunk_gaps(ends, [-1.0, -math.inf, -1.0, -1.0], [-1.0] * 4) == [1.0, None, None, None]
    assert chunk_gaps(ends, [-1.0, -math.inf, -1.0, -1.0], [-1.0, -1.0, -math.inf, -1.0]) == [1.0, None, None, None]


@pytest.mark.parametrize(("student", "teacher"), [([], []), ([b"a"], []), ([b"a"], [b"b"]), ([b""], [b"", b""])])
def test_texts_that_begin_differently_have_no_chunk(student: list[bytes], teacher: list[bytes]) -> None:
    ends = align(student, teacher)
    assert ends.shape == (0, 2)
    assert chunk_gaps(ends, [-1.0] * len(student), [-1.0] * len(teacher)) == [None] * len(student)
