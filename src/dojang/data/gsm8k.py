"""GSM8K: grade-school word problems with a number for an answer.

Reads the two files as published by their authors (`dojang data prepare gsm8k` writes them from other layouts). Uses
only the question and the final answer; worked solutions reach a prompt only through a file of exemplars.

The prompt is a chat, or plain text that the model continues:

    Question: ...
    Solution: Let's think step by step. ...
    #### The final answer is 12

Both begin with "Question:". A base model tends to continue with an invented question, so completions stop there
(`stop`).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from dojang.core.errors import DataError
from dojang.core.section import LocalPath
from dojang.data.few_shot import EXEMPLARS, Exemplar, read_exemplars
from dojang.data.rows import hash_fraction
from dojang.data.section import DataSection
from dojang.types import Message, Problem

__all__ = ["INSTRUCTION", "LEAD", "STOP", "Gsm8kConfig", "read_row"]

STOP = ("Question:",)

INSTRUCTION = """\
Work out the answer to the question step by step. Then finish with one more line of exactly this form, \
where N is the answer as a number without units:
#### The final answer is N"""

LEAD = "Solution: Let's think step by step."
_FINAL_ANSWER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_REMEDY = "download GSM8K from github.com/openai/grade-school-math and set data.path=DIR to its directory"


class Gsm8kConfig(DataSection):
    """Grade-school word problems."""

    stop: tuple[str, ...] = STOP
    name: Literal["gsm8k"] = "gsm8k"
    path: LocalPath = Path("data/gsm8k")
    """Path to the directory with train.jsonl and test.jsonl."""
    style: Literal["chat", "plain"] = "chat"
    """Prompt format: chat is a conversation in the model's chat template; plain is few-shot text without a template, in
    which the model continues after "Solution: Let's think step by step."."""
    shots: int = Field(default=0, ge=0)
    """Number of few-shot examples before the question: up to 8, or up to the number in data.exemplars."""
    exemplars: LocalPath | None = None
    """File of few-shot examples instead of the shipped ones: rows of question and answer, such as GSM8K's. A prompt has
    the first ones, except the question itself."""
    validation: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training problems to evaluate on instead of training, so that the test problems are left for
    `dojang eval`. 0: the run evaluates on the test problems."""

    @model_validator(mode="after")
    def _enough_exemplars(self) -> "Gsm8kConfig":
        if self.exemplars is None and self.shots > len(EXEMPLARS):
            raise ValueError(
                f"shots={self.shots} is more than the {len(EXEMPLARS)} shipped examples; set exemplars=FILE"
            )
        return self

    def held_out_split(self) -> str:
        # Evaluations during training bias the choice of checkpoints, so the test split is left for the end.
        return "validation" if self.validation else "test"

    def read(self, split: str) -> list[Problem]:
        """Returns the problems of the `train`, `validation` or `test` split, in the order of the file."""
        if split not in ("train", "validation", "test"):
            raise DataError(f"gsm8k has no split {split!r}; use 'train' or 'test', or 'validation'")
        file = "test" if split == "test" else "train"
        exemplars = self._exemplars()
        prompt = _plain if self.style == "plain" else _chat
        rows = list(enumerate(_rows(self.path, f"{file}.jsonl")))
        if not rows:
            raise DataError(f"{self.path / file}.jsonl holds no problems; {_REMEDY}")
        problems = [
            Problem(
                id=f"gsm8k/{file}/{number}",
                source="gsm8k",
                messages=prompt(question, [each for each in exemplars if each.question != question][: self.shots]),
                reference=answer,
                columns={"question": question, "answer": solution, "final_answer": answer},
            )
            for number, (question, answer, solution) in rows
            # By a hash of the question, so that the split depends neither on the order nor on other problems.
            if split == "test" or (hash_fraction(question) < self.validation) == (split == "validation")
        ]
        if not problems:
            raise DataError(
                f"data.validation={self.validation:g} leaves no {split} problems of the {len(rows)} in "
                f"{self.path / file}.jsonl; choose another share"
            )
        return problems

    def _exemplars(self) -> Sequence[Exemplar]:
        if self.exemplars is None or not self.shots:
            return EXEMPLARS
        found = read_exemplars(self.exemplars)
        if self.shots > len(found):
            raise DataError(f"data.shots={self.shots} is more than the {len(found)} exemplars in {self.exemplars}")
        return found


def _chat(question: str, exemplars: Sequence[Exemplar]) -> tuple[Message, ...]:
    """Makes a conversation: instruction, examples, question."""
    turns = [Message("system", INSTRUCTION)]
    for exemplar in exemplars:
        turns += [Message("user", f"Question: {exemplar.question}"), Message("assistant", exemplar.solution)]
    return (*turns, Message("user", f"Question: {question}"))


def _plain(question: str, exemplars: Sequence[Exemplar]) -> tuple[Message, ...]:
    """Makes plain text that ends where the solution begins."""
    shown = [Message("text", f"Question: {each.question}\n{LEAD} {each.plain}\n\n") for each in exemplars]
    return (*shown, Message("text", f"Question: {question}\n{LEAD}"))


def _rows(folder: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Yields question, final answer and worked solution of each line."""
    # Split at line feeds alone: some solutions contain other characters that str.splitlines breaks at.
    for number, line in enumerate(_read(folder, name).split(b"\n"), start=1):
        if line.strip():
            yield _row(line, f"{folder / name}:{number}")


def _read(folder: Path, name: str) -> bytes:
    if not folder.is_dir():
        what = "is not a directory" if folder.exists() else "does not exist"
        raise DataError(f"the gsm8k directory {folder} {what}; {_REMEDY}")
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"the gsm8k directory {folder} has no {name}; {_REMEDY}") from error
    except OSError as error:
        raise DataError(f"{folder / name} cannot be read: {error.strerror}; {_REMEDY}") from error


def _row(line: bytes, where: str) -> tuple[str, str, str]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} of the line is not UTF-8; {_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); {_REMEDY}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON object was expected, this is a {type(row).__name__}; {_REMEDY}")
    return *read_row(row, where), _text(row, "answer", where)


def read_row(row: Mapping[str, object], where: str) -> tuple[str, str]:
    """Returns question and final answer of a published row."""
    return _text(row, "question", where), _final_answer(_text(row, "answer", where), where)


def _text(row: Mapping[str, object], key: str, where: str) -> str:
    if key not in row:
        raise DataError(f"{where}: the key {key!r} is missing; {_REMEDY}")
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {key!r} must be text, but is {str(value)[:40]!r}; {_REMEDY}")
    return value.strip()


def _final_answer(solution: str, where: str) -> str:
    """Returns the text after `####` on the solution's last line."""
    mark, _, answer = solution.rpartition("\n")[2].partition(" ")
    if mark != "####":
        raise DataError(f"{where}: the answer does not end with a final answer line '#### N'; {_REMEDY}")
    if not _FINAL_ANSWER.fullmatch(answer.strip()):
        raise DataError(f"{where}: the final answer {answer[:40]!r} is not a number; {_REMEDY}")
    return answer.strip()
