"""Options of `dojang plan`."""

from dataclasses import dataclass
from typing import Annotated

from typer import Option

__all__ = ["PlanOptions"]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of a plan."""

    instance: Annotated[
        str, Option(metavar="TYPE", help="Instance type, e.g. p4de.24xlarge. Default: this machine.")
    ] = ""
    nodes: Annotated[int, Option(min=1, help="Number of instances.")] = 1
    ranks: Annotated[
        int | None,
        Option(
            min=1,
            help="Number of trainer processes. Default: one per GPU, or per second GPU beside inference servers.",
            show_default=False,
        ),
    ] = None
    length: Annotated[
        int | None,
        Option(min=1, help="Mean completion length in tokens. Default: rollout.max_tokens.", show_default=False),
    ] = None
    zero_variance: Annotated[
        float,
        Option(
            "--zero-variance",
            min=0,
            max=1,
            help="Share of groups whose rewards are all equal (groups/zero_variance of a run): they have no gradient.",
        ),
    ] = 0.0
    price: Annotated[
        float | None,
        Option(min=0, help="Price of an instance in USD per hour. Default: list price.", show_default=False),
    ] = None
    problems: Annotated[int, Option(min=1, help="Number of problems whose known answers are graded as a check.")] = 8
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False
