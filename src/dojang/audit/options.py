"""Options of `dojang data audit`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

__all__ = ["AuditOptions", "AuditSettings"]


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Effort and thresholds of an audit."""

    solutions: Annotated[int, Option(min=0, help="Number of known-good answers to grade per problem.")] = 3
    mutants: Annotated[int, Option(min=0, help="Number of mutated programs to judge per problem.")] = 3
    repeats: Annotated[int, Option(min=1, help="Number of times to judge each answer.")] = 2
    min_tests: Annotated[int, Option(min=0, help="Report problems with fewer tests than this.")] = 5
    guess: Annotated[
        float, Option(min=0, max=1, help="Report if a trivial program passes at least this fraction of tests.")
    ] = 0.7
    slow: Annotated[
        float, Option(min=0, max=1, help="Report solutions slower than this fraction of the time limit.")
    ] = 0.5


@dataclass(frozen=True, slots=True)
class AuditOptions(AuditSettings):
    """All options of an audit."""

    place: Annotated[
        str, Option("--input", metavar="PATH", help="Published dataset; for prepared rows, the source of solutions.")
    ] = ""
    task: Annotated[str, Option(metavar="NAME", help="Task: code, maths or answer_line. Default: from the data.")] = ""
    split: Annotated[str, Option(metavar="NAME", help="Split: train, validation or test. Default: all.")] = ""
    problems: Annotated[int, Option(min=1, help="Maximum number of problems. Default: all.", show_default=False)] = (
        10**9
    )
    against: Annotated[
        str, Option(metavar="DATA", help="Evaluation set to check for overlap: prepared rows, or NAME=PATH.")
    ] = ""
    ngram: Annotated[int, Option(min=2, help="Length of the compared n-grams in words.")] = 13
    overlap: Annotated[float, Option(min=0, max=1, help="Report an overlap from this fraction of n-grams.")] = 0.3
    output: Annotated[
        Path | None, Option(help="Directory for the report. Default: audits/NAME-N.", show_default=False)
    ] = None
    keep: Annotated[
        Path | None,
        Option(help="Write the problems without findings of --exclude to this directory.", show_default=False),
    ] = None
    exclude: Annotated[
        str,
        Option(
            metavar="FINDING,...", help="Findings that keep a problem out of --keep. Default: listed in docs/data.md."
        ),
    ] = ""
    strict: Annotated[bool, Option("--strict", help="Exit with 1 if verifier and data disagree.")] = False
