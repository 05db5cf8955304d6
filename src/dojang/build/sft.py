"""Supervised fine-tuning: checks the training rows, and builds the samples of the evaluation loss."""

from collections.abc import Sequence

from dojang.algos.sft import SftConfig
from dojang.config.run_config import RunConfig
from dojang.core.errors import DataError, TooLong
from dojang.types import Problem, Sample
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.sft_samples import SftWorkflow

__all__ = ["demonstrations", "fit_rows", "held_out_samples"]


def demonstrations(config: RunConfig, renderer: ChatRenderer) -> SftWorkflow | None:
    """Builds the workflow that trains on given completions; None for algorithms that sample."""
    return SftWorkflow(renderer, config.algo.completion) if isinstance(config.algo, SftConfig) else None


def fit_rows(config: RunConfig, problems: Sequence[Problem], renderer: ChatRenderer | None) -> list[Problem]:
    """Renders every training row of an SFT run. Raises DataError if a row has no completion, and TooLong if it does
    not fit the context, unless data.filter_overlong_prompts drops those."""
    made = None if renderer is None else demonstrations(config, renderer)
    if made is None:
        return list(problems)
    found = []
    for problem in problems:
        try:
            made.sample(problem)
        except TooLong as error:
            if not config.data.filter_overlong_prompts:
                raise TooLong(f"{problem.id}: {error}") from None
        else:
            found.append(problem)
    if not found:
        raise DataError(f"none of the {len(problems):,} training rows fits the context with its completion")
    return found


def held_out_samples(config: RunConfig, problems: Sequence[Problem], renderer: ChatRenderer) -> list[Sample]:
    """Held-out samples for the evaluation loss of an SFT run; skips rows without a completion or too long."""
    made, found = demonstrations(config, renderer), list[Sample]()
    for problem in problems if made is not None else ():
        try:
            found.append(made.sample(problem))  # type: ignore[union-attr]
        except (DataError, TooLong):
            continue
    return found
