"""Options of `dojang eval` that become settings."""

from dataclasses import dataclass
from typing import Annotated

from typer import Option

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options; None: taken from the recipe or the run."""

    samples: Annotated[int, Option(min=1, help="Number of samples per problem.")] = 1
    temperature: Annotated[
        float | None,
        Option(
            min=0, help="Sampling temperature; 0 is greedy. Default: 0; 1 with several samples.", show_default=False
        ),
    ] = None
    problems: Annotated[
        int, Option(min=1, help="Maximum number of problems of each dataset. Default: all.", show_default=False)
    ] = 10**9
    max_tokens: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum completion length in tokens. Default: the recipe's or the run's, else 256.",
            show_default=False,
        ),
    ] = None
    seed: Annotated[int, Option(min=0, help="Random seed of sampling.")] = 0
    device: Annotated[str, Option(help="Device: auto, cpu or cuda.")] = "auto"
    dtype: Annotated[str, Option(help="Dtype: auto, float32 or bfloat16.")] = "auto"
