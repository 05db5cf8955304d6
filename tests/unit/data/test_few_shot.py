import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dojang.data.few_shot import EXEMPLARS, Exemplar
from dojang.tasks.answers import answer_line, follows_format, read_number

SHINGLE = 6
"""Words in a row: fewer than this two authors share by chance."""

by_question = pytest.mark.parametrize("exemplar", EXEMPLARS, ids=lambda exemplar: exemplar.question[:30])


def test_there_are_eight_different_ones() -> None:
    assert len({exemplar.question for exemplar in EXEMPLARS}) == 8


@by_question
def test_exemplars_end_with_the_answer_line(exemplar: Exemplar) -> None:
    reasoning, _, number = exemplar.solution.rpartition("\n#### The final answer is ")
    assert reasoning
    assert re.fullmatch(r"-?[0-9][0-9,]*(\.[0-9]+)?", number)
    assert exemplar.solution.count("####") == 1
    assert exemplar.question.endswith("?")
    for text in (exemplar.question, exemplar.solution):
        assert "Question:" not in text
        assert "\n\n" not in text  # a blank line is what separates turns in plain text
        assert text == text.strip()
        assert text.isascii()


@by_question
def test_the_task_would_accept_it(exemplar: Exemplar) -> None:
    assert follows_format(exemplar.solution)
    line = answer_line(exemplar.solution)
    assert line is not None
    assert read_number(line) is not None


@by_question
def test_the_sums_are_right_and_lead_to_the_answer(exemplar: Exemplar) -> None:
    reasoning, _, answer = exemplar.solution.rpartition("\n#### The final answer is ")
    sums = re.findall(r"(-?[0-9][-+*/0-9.,\s]*) = (-?[0-9,.]*[0-9])", reasoning)
    assert len(sums) >= 2
    for left, right in sums:
        assert eval(left.replace(",", "")) == pytest.approx(float(right.replace(",", "")))
    assert sums[-1][1] == answer


def test_the_answers_are_of_every_kind() -> None:
    answers = [exemplar.solution.rpartition(" ")[2] for exemplar in EXEMPLARS]
    for kind in (r"[0-9]+", r"[0-9]+,[0-9]+", r"[0-9]+\.[0-9]+", r"-[0-9]+"):
        assert any(re.fullmatch(kind, answer) for answer in answers[:4]), kind


def shingles(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"[a-z]+", text.lower())
    return zip(*(words[start:] for start in range(SHINGLE)), strict=False)


def test_none_of_the_text_is_gsm8ks(shared_data: Path) -> None:
    ours = {shingle for exemplar in EXEMPLARS for shingle in shingles(f"{exemplar.question} {exemplar.solution}")}
    ours -= set(shingles("The final answer is"))
    shared = set()
    for split in ("train", "test"):
        for line in (shared_data / "gsm8k" / f"{split}.jsonl").read_bytes().split(b"\n"):
            if line:
                row = json.loads(line)
                shared |= ours & set(shingles(f"{row['question']} {row['answer']}"))
    assert not shared
