import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from dojang.data.exemplars import EXEMPLARS
from dojang.data.gsm8k import INSTRUCTION, STOP, Gsm8kConfig
from dojang.errors import DataError
from dojang.types import Message, Problem

GOOD = {"question": "What is 9 * 2?", "answer": "9 * 2 = <<9*2=18>>18\n#### 18"}
SOURCE = "github.com/openai/grade-school-math; set data.path=DIR"


def write(folder: Path, *lines: str | bytes, name: str = "train.jsonl") -> Gsm8kConfig:
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    (folder / name).write_bytes(b"\n".join(raw))
    return Gsm8kConfig(path=folder)


def row(**changes: object) -> str:
    return json.dumps({**GOOD, **changes}, ensure_ascii=False)


def test_a_problem(tmp_path: Path) -> None:
    assert write(tmp_path, row()).load("train") == [
        Problem(
            id="gsm8k/train/0",
            source="gsm8k",
            messages=(Message("system", INSTRUCTION), Message("user", "Question: What is 9 * 2?")),
            reference="18",
        )
    ]


def test_both_splits_keep_the_order_of_their_file(tmp_path: Path) -> None:
    config = write(tmp_path, *(row(answer=f"#### {n}") for n in range(13)))
    write(tmp_path, row(answer="#### 99"), name="test.jsonl")
    assert [problem.reference for problem in config.load("train")] == [str(n) for n in range(13)]
    assert config.load("train")[12].id == "gsm8k/train/12"
    assert [(problem.id, problem.reference) for problem in config.load("test")] == [("gsm8k/test/0", "99")]


def test_the_instruction_ends_with_the_line_it_asks_for() -> None:
    assert INSTRUCTION.endswith("\n#### The final answer is N")


@pytest.mark.parametrize("shots", [0, 1, 8])
def test_examples_precede_the_question(tmp_path: Path, shots: int) -> None:
    write(tmp_path, row())
    (problem,) = Gsm8kConfig(path=tmp_path, shots=shots).load("train")
    first, *turns, last = problem.messages
    assert first.role == "system"
    assert last == Message("user", "Question: What is 9 * 2?")
    assert [turn.role for turn in turns] == ["user", "assistant"] * shots
    assert [turn.content for turn in turns[::2]] == [f"Question: {e.question}" for e in EXEMPLARS[:shots]]
    assert [turn.content for turn in turns[1::2]] == [e.solution for e in EXEMPLARS[:shots]]


def test_completions_stop_at_the_next_question(tmp_path: Path) -> None:
    (problem,) = write(tmp_path, row()).load("train")
    assert STOP == ("Question:",)
    assert problem.messages[-1].content.startswith(STOP)


@pytest.mark.parametrize("shots", [-1, 9, 1.5, "many"])
def test_impossible_shots(shots: object) -> None:
    with pytest.raises(ValidationError):
        Gsm8kConfig.model_validate({"shots": shots})


@pytest.mark.parametrize("answer", ["1,080", "-7", "2.50", "1,234.5", "0", "+3", "109,200,000"])
def test_the_reference_is_kept_as_written(tmp_path: Path, answer: str) -> None:
    (problem,) = write(tmp_path, row(answer=f"So.\n#### {answer}\n")).load("train")
    assert problem.reference == answer


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r", " \n"])
def test_blank_lines_are_no_problems(tmp_path: Path, end: str) -> None:
    assert len(write(tmp_path, row(), "", row() + end).load("train")) == 2


def test_a_line_ends_at_a_line_feed_only(tmp_path: Path) -> None:
    config = write(tmp_path, row(question="One\u2028two\x85three"), row())
    assert [problem.id for problem in config.load("train")] == ["gsm8k/train/0", "gsm8k/train/1"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON \\(Expecting property name"),
        ("<html>", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "a JSON object was expected, this is a list"),
        ("null", "a JSON object was expected, this is a NoneType"),
        (json.dumps({"answer": "#### 18"}), "the key 'question' is missing"),
        (json.dumps({"question": "What?"}), "the key 'answer' is missing"),
        (row(question=7), "'question' must be text, but is '7'"),
        (row(answer=None), "'answer' must be text, but is 'None'"),
        (row(question=" \n"), "'question' must be text"),
        (row(answer="It is 18."), "does not end with a final answer line '#### N'"),
        (row(answer="It is #### 18"), "does not end with a final answer line '#### N'"),
        (row(answer="#### 18\nDone."), "does not end with a final answer line '#### N'"),
        (row(answer="####"), "does not end with a final answer line|is not a number"),
        (row(answer="#### eighteen"), "the final answer 'eighteen' is not a number"),
        (row(answer="#### 17 or 18"), "the final answer '17 or 18' is not a number"),
        (row(answer="#### 1,08"), "the final answer '1,08' is not a number"),
        (b'{"question": "caf\xe9"}', "byte 18 of the line is not UTF-8"),
    ],
)
def test_an_unreadable_line_is_named(tmp_path: Path, line: str | bytes, said: str) -> None:
    config = write(tmp_path, row(), "", line, "also bad")
    with pytest.raises(DataError, match=said) as caught:
        config.load("train")
    assert str(caught.value).startswith(f"{tmp_path / 'train.jsonl'}:3: ")
    assert SOURCE in str(caught.value)


@pytest.mark.parametrize("lines", [[], [""], ["", " "]])
def test_a_file_without_problems(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(DataError, match=r"train\.jsonl holds no problems"):
        write(tmp_path, *lines).load("train")


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist") as caught:
        Gsm8kConfig(path=tmp_path / "nowhere").load("train")
    assert SOURCE in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    config = write(tmp_path, row())
    with pytest.raises(DataError, match=r"has no test\.jsonl") as caught:
        config.load("test")
    assert SOURCE in str(caught.value)


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    write(tmp_path, row())
    with pytest.raises(DataError, match=r"train\.jsonl is not a directory"):
        Gsm8kConfig(path=tmp_path / "train.jsonl").load("train")


def test_a_file_that_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").mkdir()
    with pytest.raises(DataError, match=r"train\.jsonl cannot be read: Is a directory"):
        Gsm8kConfig(path=tmp_path).load("train")


def test_an_unknown_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gsm8k has no split 'dev'; use 'train' or 'test'"):
        write(tmp_path, row()).load("dev")


def questions(config: Gsm8kConfig, split: str) -> list[str]:
    return [problem.messages[-1].content for problem in config.load(split)]


def test_validation_problems_are_taken_from_the_training_ones(tmp_path: Path) -> None:
    rows = [row(question=f"What is {n}?") for n in range(400)]
    write(tmp_path, *rows)
    write(tmp_path, row(), name="test.jsonl")
    config = Gsm8kConfig(path=tmp_path, validation=0.1)
    train, validation = config.load("train"), config.load("validation")
    assert 20 < len(validation) < 60
    assert {each.id for each in [*train, *validation]} == {f"gsm8k/train/{n}" for n in range(400)}
    assert len(train) + len(validation) == 400
    assert len(config.load("test")) == 1
    more = Gsm8kConfig(path=tmp_path, validation=0.5)
    assert set(questions(config, "validation")) < set(questions(more, "validation"))


def test_which_ones_depends_on_nothing_but_the_question(tmp_path: Path) -> None:
    rows = [row(question=f"What is {n}?") for n in range(400)]
    write(tmp_path, *rows)
    config = Gsm8kConfig(path=tmp_path, validation=0.1)
    first = questions(config, "validation")
    write(tmp_path, *reversed([*rows[:300], row(question="What else?")]))
    assert set(questions(config, "validation")) - {"Question: What else?"} == set(first) & {
        f"Question: What is {n}?" for n in range(300)
    }


@pytest.mark.parametrize(("share", "split"), [(1e-9, "validation"), (1 - 1e-9, "train")])
def test_a_share_that_leaves_nothing_is_told(tmp_path: Path, share: float, split: str) -> None:
    write(tmp_path, row())
    with pytest.raises(DataError, match=f"leaves no {split} problems of the 1 in .*choose another share"):
        Gsm8kConfig(path=tmp_path, validation=share).load(split)


def test_the_real_thing(shared_data: Path) -> None:
    config = Gsm8kConfig(path=shared_data / "gsm8k", shots=8)
    train, test = config.load("train"), config.load("test")
    assert (len(train), len(test)) == (7473, 1319)
    assert len({problem.id for problem in train + test}) == 8792
    references = [str(problem.reference) for problem in train + test]
    assert sum("," in reference for reference in references) == 79 + 14
    assert sum("-" in reference for reference in references) == 3 + 2
    assert not any(STOP[0] in problem.messages[-1].content[len(STOP[0]) :] for problem in train + test)
    aside = Gsm8kConfig(path=shared_data / "gsm8k", validation=0.1)
    assert [len(aside.load(split)) for split in ("train", "validation", "test")] == [6731, 742, 1319]
    assert not set(questions(aside, "validation")) & set(questions(aside, "train"))
