"""Finding problems of one set in another, by their words."""

from collections.abc import Sequence

import pytest

from dojang.data.overlap import Overlap, OverlapIndex, statement_words
from dojang.types import Message, Problem

LONG = "a farmer sells nine crates of pears at the market and keeps every third crate for his two sisters in town"


def problems(*texts: str) -> list[Problem]:
    return [Problem(f"eval/{at}", "made up", (Message("user", text),), "1") for at, text in enumerate(texts)]


def search(text: str, held_out: Sequence[str], n: int = 5) -> Overlap | None:
    return OverlapIndex(problems(*held_out), n).search(text.lower().split())


def test_the_same_text_is_found_whole() -> None:
    assert search(LONG, ["something else entirely", LONG]) == Overlap(1.0, "eval/1")


def test_a_part_is_found_in_part() -> None:
    half = " ".join(LONG.split()[:10])
    found = search(half + " but then the story goes on in quite another way than before", [LONG])
    assert found is not None
    assert found.share == pytest.approx(6 / 17)  # of the seventeen runs of the shorter text


def test_a_text_within_a_longer_one_is_found_whole() -> None:
    assert search(f"once upon a time {LONG} and so on and on and on", [LONG]) == Overlap(1.0, "eval/0")


def test_short_texts_are_found_where_they_stand_whole() -> None:
    assert search("reverse a list", ["reverse a list"], n=13) == Overlap(1.0, "eval/0")
    short = "reverse a list of numbers without another list"
    assert search(f"write a program to {short} please", [short], n=30) == Overlap(1.0, "eval/0")
    assert search(f"write a program to {short} please {LONG}", [short], n=13) == Overlap(1.0, "eval/0")
    assert search(f"reverse a list and {LONG}", ["reverse a list"], n=13) is None, "that may be chance"
    assert search("reverse a string", ["reverse a list"], n=13) is None


def test_nothing_is_found_where_there_is_nothing() -> None:
    assert search(LONG, []) is None
    assert search("", [LONG]) is None
    assert search(LONG, ["", "another question about another matter altogether"]) is None


def test_common_phrases_do_not_count() -> None:
    phrase = "the first line contains a single integer"
    held_out = [f"{phrase} {word} {word} {word} {word} {word}" for word in ("sun", "moon", "star", "sky")]
    assert search(f"{phrase} and something of its own", held_out) is None


def test_instructions_are_removed() -> None:
    texts = [f"Solve this problem: word{at} of many. Answer in one block!" for at in range(12)]
    assert [" ".join(words) for words in statement_words(problems(*texts))][:2] == ["word0", "word1"]
    assert [len(words) for words in statement_words(problems(*texts[:3]))] == [10] * 3, "too few to believe it"
    assert [len(words) for words in statement_words(problems(*["all alike"] * 12))] == [2] * 12
