"""Options of `dojang show`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from typer import Option

__all__ = ["ShowOptions", "Sort"]


class Sort(StrEnum):
    """Orders of samples; with a minus, the largest first."""

    REWARD = "reward"
    MOST_REWARD = "-reward"
    LENGTH = "length"
    LONGEST = "-length"
    ADVANTAGE = "advantage"
    MOST_ADVANTAGE = "-advantage"


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """Which samples are shown, and how."""

    step: Annotated[
        int | None, Option(metavar="N", help="Step. Default: the last one with samples.", show_default=False)
    ] = None
    evaluation: Annotated[bool, Option("--eval", help="Samples of evaluations instead of training.")] = False
    benchmark: Annotated[str, Option(metavar="NAME", help="Samples of evaluations on a benchmark.")] = ""
    outcome: Annotated[str, Option(metavar="NAME", help="Only this outcome: accepted, wrong, no_answer, ...")] = ""
    problem: Annotated[str, Option(metavar="ID", help="Only this problem, at the last step that has it.")] = ""
    role: Annotated[str, Option(metavar="NAME", help="Only this role, in runs with two models: coder, tester.")] = ""
    sort: Annotated[
        Sort | None, Option(help="Order, smallest first; with a minus, largest first.", show_default=False)
    ] = None
    limit: Annotated[int, Option(metavar="N", min=1, help="Number of samples.")] = 5
    full: Annotated[bool, Option("--full", help="Do not shorten texts.")] = False
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per line, with whole texts.")] = False
    diff: Annotated[
        tuple[int, int] | None,
        Option(
            metavar="STEP STEP",
            help="Compare the answers to the same problems at two steps; with --eval, at two evaluations.",
            show_default=False,
        ),
    ] = None
