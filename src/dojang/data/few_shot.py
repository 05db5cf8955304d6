"""Few-shot examples with worked solutions: shipped here, or read from a file.

The shipped ones were written for this project, so they are in no dataset. A prompt uses the first few, so each kind of
answer comes early: plain, with decimals, with a thousands comma, negative.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dojang.core.errors import DataError

__all__ = ["EXEMPLARS", "Exemplar", "read_exemplars"]

_CALCULATOR = re.compile(r"<<.*?>>")
"""GSM8K's annotations of calculations."""
_FINAL = re.compile(r"####\s*(?:The final answer is\s*)?(.+)")


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A word problem and its worked solution."""

    question: str
    solution: str
    """Ends with the line `#### The final answer is N`."""

    @property
    def plain(self) -> str:
        """Steps on one line, then the answer line."""
        *steps, final = self.solution.split("\n")
        return " ".join(f"{step.rstrip('.')}." for step in steps) + f"\n{final}"


def read_exemplars(file: Path) -> tuple[Exemplar, ...]:
    """Reads the exemplars of a file or directory. Rows have `question` and `answer` (GSM8K's: steps, then `#### N`), or
    `question`, `solution` (the steps) and `answer` (N)."""
    from dojang.data.readers import find  # imported late: loads pyarrow

    if not file.exists():
        raise DataError(f"data.exemplars={file} does not exist; give a file of questions and answers, such as GSM8K's")
    found = tuple(
        _exemplar(row, f"{file}, row {number}") for each in find(str(file.resolve())) for number, row in each.rows()
    )
    if not found:
        raise DataError(f"data.exemplars={file} holds no rows")
    return found


def _exemplar(row: Mapping[str, Any], where: str) -> Exemplar:
    question, answer, solution = (str(row.get(key) or "").strip() for key in ("question", "answer", "solution"))
    lines = [_CALCULATOR.sub("", line).strip() for line in (solution or answer).splitlines()]
    steps = [line for line in lines if line and not _FINAL.fullmatch(line)]
    final = _FINAL.fullmatch(lines[-1]) if lines else None
    number = final[1].strip() if final else answer if solution else ""
    if not question or not steps or not number:
        raise DataError(
            f"{where}: an exemplar needs a question and an answer of steps that end with the line '#### N', or a "
            f"question, a solution and an answer; columns: {', '.join(map(str, row)) or 'none'}"
        )
    return Exemplar(question, "\n".join([*steps, f"#### The final answer is {number}"]))


EXEMPLARS = (
    Exemplar(
        "A ferry has room for 36 cars and crosses the strait 7 times a day. On Tuesday, 19 places stayed "
        "empty over the whole day. How many cars did it carry on Tuesday?",
        "With every place taken, the ferry would carry 7 * 36 = 252 cars.\n"
        "19 places stayed empty, so it carried 252 - 19 = 233 cars.\n"
        "#### The final answer is 233",
    ),
    Exemplar(
        "At the till Priya has 3 balls of wool at $4.25 apiece and some knitting needles at $6.50. She hands "
        "over a $20 note. How many dollars are handed back to her?",
        "The wool costs 3 * 4.25 = 12.75 dollars.\n"
        "With the needles that makes 12.75 + 6.50 = 19.25 dollars.\n"
        "She gets back 20 - 19.25 = 0.75 dollars.\n"
        "#### The final answer is 0.75",
    ),
    Exemplar(
        "The lamp of a lighthouse turns 6 times a minute. How many times does it turn in a night of 9 hours?",
        "In an hour the lamp turns 6 * 60 = 360 times.\n"
        "In 9 hours it turns 9 * 360 = 3,240 times.\n"
        "#### The final answer is 3,240",
    ),
    Exemplar(
        "At dusk the thermometer of a mountain hut reads 5 degrees. It drops by 3 degrees an hour for 4 "
        "hours, then climbs by 2 degrees before sunrise. What does it read at sunrise?",
        "Over 4 hours the reading drops by 4 * 3 = 12 degrees.\n"
        "That takes it to 5 - 12 = -7 degrees.\n"
        "At sunrise it reads -7 + 2 = -5 degrees.\n"
        "#### The final answer is -5",
    ),
    Exemplar(
        "Two fifths of a choir's 40 singers are altos and a quarter are basses. All the others are sopranos. "
        "How many sopranos does the choir have?",
        "There are 40 / 5 * 2 = 16 altos.\n"
        "There are 40 / 4 = 10 basses.\n"
        "That leaves 40 - 16 - 10 = 14 sopranos.\n"
        "#### The final answer is 14",
    ),
    Exemplar(
        "A kayak is priced at $640. In October the shop takes 15 percent off, and Tomasz also hands in a "
        "voucher worth $50. How many dollars does the kayak cost him?",
        "15 percent of the price is 640 * 15 / 100 = 96 dollars.\n"
        "The October price is 640 - 96 = 544 dollars.\n"
        "After the voucher he pays 544 - 50 = 494 dollars.\n"
        "#### The final answer is 494",
    ),
    Exemplar(
        "Ines brought home a basket of pears. A third of them went to her neighbour, 8 went into a tart, and "
        "12 are still in the basket. How many pears did she bring home?",
        "After the neighbour had hers, 12 + 8 = 20 pears were left.\n"
        "They are two thirds of the pears, so one third is 20 / 2 = 10 pears.\n"
        "She brought home 3 * 10 = 30 pears.\n"
        "#### The final answer is 30",
    ),
    Exemplar(
        "A tractor sets out along a valley road at 18 kilometres an hour. Half an hour later a moped follows "
        "it at 30 kilometres an hour. How many minutes does the moped need to catch up?",
        "In half an hour the tractor gets 18 / 2 = 9 kilometres ahead.\n"
        "Each hour the moped gains 30 - 18 = 12 kilometres on it.\n"
        "It needs 9 / 12 = 0.75 hours, which is 0.75 * 60 = 45 minutes.\n"
        "#### The final answer is 45",
    ),
)
