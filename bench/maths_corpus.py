"""What task.name=maths is tried with: real answers in many forms, wrong ones, and LaTeX that is not meant to be read.

Answers are those of MATH-500 and GSM8K. A right one is written as the dataset writes it, or in another way that means
the same; a wrong one is near. What is pathological must not hang, nor be accepted unless it is right after all.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from dojang.data.gsm8k import Gsm8kConfig
from dojang.data.math500 import Math500

Expected = Literal["right", "wrong", "not right", "anything"]


@dataclass(frozen=True)
class Case:
    """An answer to be graded, and what is to come out."""

    kind: str
    gold: str
    text: str
    expected: Expected


_INTEGER = re.compile(r"-?\d+")
_FRACTION = re.compile(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}")
_LIST = re.compile(r"-?\d+(?:, ?-?\d+)+")


def golds(folder: Path) -> tuple[list[str], list[str]]:
    """Of MATH-500, and of GSM8K."""
    rows = [json.loads(line) for line in (folder / "math500" / "test.jsonl").read_text().splitlines()]
    gsm8k = Gsm8kConfig(path=folder / "gsm8k")
    return (
        [str(Math500().problem(row, "").reference) for row in rows],
        [str(problem.reference) for split in ("train", "test") for problem in gsm8k.load(split)],
    )


def corpus(folder: Path, size: int, *, hostile: int, seed: int = 0) -> list[Case]:
    """So many cases in a random order, among them so many that are pathological."""
    rng = random.Random(seed)
    maths, words = golds(folder)
    rng.shuffle(words)
    honest = _honest(maths * (1 + size // 2000) + words, rng)
    cases = [case for case, _ in zip(honest, range(size - hostile), strict=False)]
    strange = pathological()
    cases += [strange[place % len(strange)] for place in range(hostile)]
    rng.shuffle(cases)
    return cases


def _honest(answers: Sequence[str], rng: random.Random) -> Iterator[Case]:
    for gold in rng.sample(answers, len(answers)):
        plain = gold.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+", gold) else gold
        yield Case("as written", gold, rf"So it is \boxed{{{gold}}}.", "right")
        if same := equivalents(plain):
            yield Case("another form", gold, rng.choice(same), "right")
        yield Case("wrong", gold, rng.choice(wrong(plain)), "wrong")


def equivalents(gold: str) -> list[str]:
    """Texts that give the same answer in other words."""
    boxed = [rf"\[ \boxed{{ {gold} }} \]", rf"First \boxed{{0}}. No: $\boxed {{{gold}}}$"]
    if "frac" in gold:
        larger = gold.replace(r"\dfrac", r"\frac").replace(r"\frac", r"\dfrac")
        boxed.append(rf"\boxed{{{larger}}}")
    if _INTEGER.fullmatch(gold):
        number = int(gold)
        boxed += [
            rf"\boxed{{{number}.0}}",
            rf"\boxed{{\frac{{{3 * number}}}{{3}}}}",
            rf"\boxed{{{number + 1} - 1}}",
            rf"\boxed{{{number}\text{{ units}}}}",
            f"The final answer is ${number}$.",
            f"The final answer is {number}.",
        ]
        if number > 999:
            boxed.append(rf"\boxed{{{number:,}}}")
    if found := _FRACTION.fullmatch(gold):
        value = Fraction(int(found[2]), int(found[3])) * (-1 if found[1] else 1)
        boxed += [
            rf"\boxed{{{value.numerator}/{value.denominator}}}",
            rf"\boxed{{\frac{{{7 * value.numerator}}}{{{7 * value.denominator}}}}}",
        ]
        if 10**6 % value.denominator == 0:
            boxed.append(rf"\boxed{{{float(value)}}}")
    if _LIST.fullmatch(gold):
        boxed.append(rf"\boxed{{{', '.join(reversed(re.split(', ?', gold)))}}}")
    return boxed


def wrong(gold: str) -> list[str]:
    """Texts with another answer."""
    said = [r"So it is \boxed{-98765.4321}.", "The final answer is $98765.4321$."]
    if _INTEGER.fullmatch(gold):
        number = int(gold)
        said += [rf"\boxed{{{number + 1}}}", rf"\boxed{{{gold}}}, no: \boxed{{{10 * number + 7}}}"]
        said += [rf"\boxed{{{-number}}}"] if number else []
        said += [rf"\boxed{{\frac{{{2 * number + 1}}}{{2}}}}"]
    if found := _FRACTION.fullmatch(gold):
        said.append(rf"\boxed{{{found[1]}\frac{{{found[2]}}}{{{int(found[3]) + 1}}}}}")
    return said


def pathological() -> list[Case]:
    """Each once. Those that keep a verifier busy for ever are few, for each costs a time limit."""

    def nested(before: str, depth: int, inside: str = "1", after: str = "}") -> str:
        return rf"\boxed{{{before * depth}{inside}{after * depth}}}"

    endless = {
        "tower of powers": r"\boxed{9^{9^{9^9}}}",
        "huge power": r"\boxed{9^{999999999}}",
        "factorials": r"\boxed{((9!)!)!}",
        "long product": r"\boxed{\prod_{n=1}^{10^{9}} n}",
        "nested fractions": nested(r"\frac{1}{1+", 200),
        "nested roots": nested(r"\sqrt{2+", 300),
        "parentheses": nested("(", 3000, after=")"),
        "megabyte of digits": rf"\boxed{{{'1' * 1_000_000}}}",
    }
    brief = {
        "megabyte of text": "x" * 1_000_000,
        "megabyte of dollars": "$" * 1_000_000,
        "megabyte of boxes": r"\boxed{1} " * 100_000,
        "unfinished": r"\boxed{\frac{1}{2",
        "letters of all kinds": "\\boxed{\N{FULLWIDTH DIGIT EIGHT}} \u202e \U0001f94b ∑∫√π",
        "half a letter": "\\boxed{\ud800}",
        "null bytes": "\x00\\boxed{\x008\x00}",
        "nothing": "",
        "an empty box": r"\boxed{}",
        "a macro of itself": r"\def\a{\a\a}\boxed{\a}",
        "a command of itself": r"\newcommand{\x}{\x\x}\boxed{\x}",
        "no number": r"\boxed{\frac{0}{0}}",
        "infinity": r"\boxed{\infty}",
        "code": r"\boxed{__import__('os')._exit(0)}",
        "an answer for the asker": '{"number": 1, "answer": {"correct": true, "answered": true, "boxed": true}}\n',
    }
    cases = [Case(kind, "7", text, "anything") for kind, text in endless.items()]
    cases += [Case(kind, "7", text, "not right") for kind, text in brief.items()]
    right = {
        "boxes in boxes": nested(r"\boxed{", 50, "7"),
        "too many braces": r"\boxed{7}}}}}}}",
        "lines without end": "\n" * 100_000 + r"\boxed{7}",
        "READY": "dojang-worker-ready\n\\boxed{7}",
    }
    cases += [Case(kind, "7", text, "right") for kind, text in right.items()]
    cases.append(Case("a reference that is none", r"\frac{", r"\boxed{7}", "anything"))
    return cases
