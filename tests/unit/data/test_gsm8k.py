import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from dojang.commands import app
from dojang.core.errors import ConfigError, DataError
from dojang.data.few_shot import EXEMPLARS
from dojang.data.gsm8k import INSTRUCTION, LEAD, STOP, Gsm8kConfig
from dojang.types import Message, Problem, plain_prompt

GOOD = {"question": "What is 9 * 2?", "answer": "9 * 2 = <<9*2=18>>18\n#### 18"}
SOURCE = "github.com/openai/grade-school-math and set data.path=DIR"


def write(folder: Path, *lines: str | bytes, name: str = "train.jsonl") -> Gsm8kConfig:
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    (folder / name).write_bytes(b"\n".join(raw))
    return Gsm8kConfig(path=folder)


def row(**changes: object) -> str:
    return json.dumps({**GOOD, **changes}, ensure_ascii=False)


def test_a_problem_has_instruction_question_and_reference(tmp_path: Path) -> None:
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


def test_validation_split_depends_only_on_the_question(tmp_path: Path) -> None:
    rows = [row(question=f"What is {n}?") for n in range(400)]
    write(tmp_path, *rows)
    config = Gsm8kConfig(path=tmp_path, validation=0.1)
    first = questions(config, "validation")
    write(tmp_path, *reversed([*rows[:300], row(question="What else?")]))
    assert set(questions(config, "validation")) - {"Question: What else?"} == set(first) & {
        f"Question: What is {n}?" for n in range(300)
    }


@pytest.mark.parametrize(("share", "split"), [(1e-9, "validation"), (1 - 1e-9, "train")])
def test_share_that_leaves_no_problems_is_refused(tmp_path: Path, share: float, split: str) -> None:
    write(tmp_path, row())
    with pytest.raises(DataError, match=f"leaves no {split} problems of the 1 in .*choose another share"):
        Gsm8kConfig(path=tmp_path, validation=share).load(split)


def test_published_gsm8k(shared_data: Path) -> None:
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


# ---- plain text ------------------------------------------------------------------------------------------------------

OWN = {"question": "Two and two?", "answer": "2 + 2 = <<2+2=4>>4\nThat is all\n#### 4"}
OWN_PLAIN = (
    "Question: Two and two?\nSolution: Let's think step by step. 2 + 2 = 4. That is all.\n"
    "#### The final answer is 4\n\n"
)


def exemplars(folder: Path, *rows: dict[str, str]) -> Path:
    (folder / "shown.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "shown.jsonl"


def test_a_plain_prompt_is_text_up_to_the_solution(tmp_path: Path) -> None:
    write(tmp_path, row())
    (problem,) = Gsm8kConfig(path=tmp_path, style="plain").load("train")
    assert plain_prompt(problem.messages) == "Question: What is 9 * 2?\nSolution: Let's think step by step."
    assert problem.messages[-1].content.startswith(STOP)


def test_plain_exemplars_come_before_the_question(tmp_path: Path) -> None:
    write(tmp_path, row())
    file = exemplars(tmp_path, OWN)
    (problem,) = Gsm8kConfig(path=tmp_path, style="plain", shots=1, exemplars=file).load("train")
    question = "Question: What is 9 * 2?\nSolution: Let's think step by step."
    assert plain_prompt(problem.messages) == OWN_PLAIN + question
    assert problem.messages[-1].content == question


@pytest.mark.parametrize("shots", [1, 8])
def test_the_shipped_exemplars_in_plain_text(tmp_path: Path, shots: int) -> None:
    write(tmp_path, row())
    (problem,) = Gsm8kConfig(path=tmp_path, style="plain", shots=shots).load("train")
    text = plain_prompt(problem.messages)
    assert text is not None
    assert text.count("Question: ") == text.count(LEAD) == shots + 1
    assert text.count("\n#### The final answer is ") == shots
    assert ".." not in text


def test_exemplars_of_a_file_in_a_chat(tmp_path: Path) -> None:
    write(tmp_path, row())
    (problem,) = Gsm8kConfig(path=tmp_path, shots=1, exemplars=exemplars(tmp_path, OWN)).load("train")
    assert problem.messages[1:3] == (
        Message("user", "Question: Two and two?"),
        Message("assistant", "2 + 2 = 4\nThat is all\n#### The final answer is 4"),
    )


def test_exemplars_in_a_directory(tmp_path: Path) -> None:
    write(tmp_path, row())
    (tmp_path / "channel").mkdir()
    exemplars(tmp_path / "channel", OWN)
    (problem,) = Gsm8kConfig(path=tmp_path, style="plain", shots=1, exemplars=tmp_path / "channel").load("train")
    assert problem.messages[0].content == OWN_PLAIN


def test_a_solution_and_an_answer_apart(tmp_path: Path) -> None:
    write(tmp_path, row())
    file = exemplars(tmp_path, {"question": "Two and two?", "solution": "2 + 2 = 4\nThat is all.", "answer": "4"})
    (problem,) = Gsm8kConfig(path=tmp_path, style="plain", shots=1, exemplars=file).load("train")
    assert problem.messages[0].content == OWN_PLAIN


def test_a_question_is_never_its_own_exemplar(tmp_path: Path) -> None:
    write(tmp_path, row(), row(question="Other?"))
    file = exemplars(tmp_path, GOOD, OWN)
    own, other = Gsm8kConfig(path=tmp_path, style="plain", shots=1, exemplars=file).load("train")
    assert own.messages[0].content == OWN_PLAIN
    assert other.messages[0].content.startswith("Question: What is 9 * 2?")


def test_more_shots_than_shipped_with_a_file(tmp_path: Path) -> None:
    write(tmp_path, row())
    file = exemplars(tmp_path, *({**OWN, "question": f"Number {n}?"} for n in range(12)))
    assert len(Gsm8kConfig(path=tmp_path, style="plain", shots=12, exemplars=file).load("train")[0].messages) == 13
    with pytest.raises(DataError, match=r"data\.shots=13 is more than the 12 exemplars in .*shown\.jsonl"):
        Gsm8kConfig(path=tmp_path, shots=13, exemplars=file).load("train")


@pytest.mark.parametrize(
    "bad", [{"question": "Why?"}, {"question": "", "answer": "a\n#### 1"}, {"question": "Why?", "answer": "Because."}]
)
def test_invalid_exemplar_is_refused(tmp_path: Path, bad: dict[str, str]) -> None:
    write(tmp_path, row())
    config = Gsm8kConfig(path=tmp_path, shots=1, exemplars=exemplars(tmp_path, bad))
    with pytest.raises(DataError, match=r"shown\.jsonl, row 0: an exemplar needs a question and an answer"):
        config.load("train")
    with pytest.raises(DataError, match=r"data\.exemplars=.*nowhere\.jsonl does not exist"):
        Gsm8kConfig(path=tmp_path, shots=1, exemplars=tmp_path / "nowhere.jsonl").load("train")


# ---- dojang data prepare gsm8k ---------------------------------------------------------------------------------------


def typed(where: Path, output: Path, *options: str) -> str:
    arguments = ["data", "prepare", "gsm8k", "--input", str(where), "--output", str(output), *options]
    return " ".join(CliRunner().invoke(app, arguments, catch_exceptions=False).output.split())


def test_the_layout_of_the_hub_is_prepared(tmp_path: Path) -> None:
    for subset, mark in (("main", "18"), ("socratic", "99")):
        (tmp_path / "hub" / subset).mkdir(parents=True)
        for split in ("train", "test"):
            rows = [{"question": f"{split} {n}?", "answer": f"So.\n#### {mark}"} for n in range(3)]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / "hub" / subset / f"{split}-00000-of-00001.parquet")
    told = typed(tmp_path / "hub", tmp_path / "out")
    assert "6 rows read" in told
    assert "train on them with data.name=gsm8k data.path=" in told
    found = Gsm8kConfig(path=tmp_path / "out")
    assert [each.reference for split in ("train", "test") for each in found.load(split)] == ["18"] * 6
    assert found.load("test")[2].messages[-1].content == "Question: test 2?"
    typed(tmp_path / "hub", tmp_path / "other", "--subset", "socratic")
    assert Gsm8kConfig(path=tmp_path / "other").load("test")[0].reference == "99"


def test_published_files_are_prepared_unchanged(shared_data: Path, tmp_path: Path) -> None:
    told = typed(shared_data / "gsm8k", tmp_path / "out")
    assert "7,473 problems in" in told
    assert "2 kept, though they overlap with held-out problems" in told
    published, prepared = Gsm8kConfig(path=shared_data / "gsm8k"), Gsm8kConfig(path=tmp_path / "out")
    assert all(published.load(split) == prepared.load(split) for split in ("train", "test"))


def test_invalid_gsm8k_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(row())
    with pytest.raises(DataError, match=r"rows\.jsonl: its file name has no split; name it train or test"):
        typed(tmp_path / "rows.jsonl", tmp_path / "out")
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(DataError, match=r"train\.jsonl has no rows"):
        typed(tmp_path / "train.jsonl", tmp_path / "out")
    (tmp_path / "train.jsonl").write_text(row(answer="18"))
    with pytest.raises(DataError, match=r"train\.jsonl, row 0: the answer does not end with a final answer line"):
        typed(tmp_path / "train.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="no --held-out"):
        typed(tmp_path / "train.jsonl", tmp_path / "out", "--held-out", "0.1")
