"""Measures prompts, and refuses or drops those that leave no space for a completion in the context."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from dojang import models
from dojang.build.benchmarks import Loaded
from dojang.build.kv_cache_check import check_kv_cache
from dojang.build.local import load_tokenizer, make_renderer
from dojang.build.multiple_answers import leave_out
from dojang.config.run_config import RunConfig
from dojang.core.errors import DataError, TooLong
from dojang.protocols import Task
from dojang.types import Message, Problem
from dojang.workflows.chat_renderer import ChatRenderer

__all__ = [
    "Fitting",
    "Measured",
    "describe_dropped",
    "describe_multiple_answers",
    "fit_benchmarks",
    "held_out",
    "keep_fitting",
    "measure",
]

Renderers = Mapping[str, tuple[PreTrainedTokenizerBase, ChatRenderer]]
"""Tokenizer and prompt renderer of each role."""
Asked = tuple[ChatRenderer, Callable[[Problem], Sequence[Message]]]
"""A model's prompt renderer, and a function from a problem to its messages."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """Problems whose prompts fit, in order, and the number left out."""

    problems: Sequence[Problem]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The problems of a run whose prompts fit."""

    train: Sequence[Problem]
    held_out: Sequence[Problem]
    dropped: Mapping[str, int]
    """Number of problems left out, by split; empty if they are not filtered, or not by all models."""
    renderers: Renderers
    multiple_answers: int = 0
    """Number of training problems left out because they may have several right answers."""

    def as_fields(self) -> dict[str, Any]:
        """Fields by name, for Prepared."""
        return {name: getattr(self, name) for name in ("train", "held_out", "dropped", "renderers", "multiple_answers")}


def measure(config: RunConfig, task: Task, train: Sequence[Problem], *, dry: bool) -> Measured:
    """Keeps the problems whose prompts fit (see `keep_fitting`); drops training problems with several right answers if
    data.filter_multiple_answers is set. A dry run measures prompts only for models that are on this machine."""
    every, train = train, leave_out(config, train)
    renderers: dict[str, tuple[PreTrainedTokenizerBase, ChatRenderer]] = {}
    asked: list[Asked] = []
    sized: list[tuple[RunConfig, PreTrainedTokenizerBase, PreTrainedConfig]] = []
    for role, each in config.roles().items():
        source = models.local(each.model.name) if dry else models.resolve(each.model.name)
        if source is not None:
            tokenizer, settings = load_tokenizer(source)
            key = "tester.max_tokens" if role == "tester" else "rollout.max_tokens"
            renderers[role] = tokenizer, make_renderer(each, tokenizer, settings, key)
            asked.append((renderers[role][1], partial(config.workflow.first_prompt, role, task)))
            sized.append((each, tokenizer, settings))
    fitting = keep_fitting(config, "train", train, asked)
    leading = next(iter(config.roles()))  # the others are only sampled in training
    test = held_out(config, task.problems("test"), renderers[leading][1] if leading in renderers else None)
    prompts = [problem.messages for problem in (*fitting.problems, *test.problems)]
    for each, tokenizer, settings in sized:
        check_kv_cache(each, tokenizer, settings, prompts)
    counted = config.data.filter_overlong_prompts and len(renderers) == len(config.roles())
    dropped = {"train": fitting.dropped, "test": test.dropped} if counted else {}
    return Measured(fitting.problems, test.problems, dropped, renderers, len(every) - len(train))


def held_out(
    config: RunConfig, problems: Sequence[Problem], renderer: ChatRenderer | None, split: str = "test"
) -> Fitting:
    """The first eval.problems problems whose prompts fit; without a renderer they are not measured."""
    most = config.eval.problems
    asked: list[Asked] = [] if renderer is None else [(renderer, lambda problem: problem.messages)]
    some = problems if config.data.filter_overlong_prompts else problems[:most]
    found = keep_fitting(config, split, some, asked)
    return Fitting(found.problems[:most], found.dropped)


def fit_benchmarks(benchmarks: Sequence[Loaded], renderer: ChatRenderer | None) -> tuple[list[Loaded], dict[str, int]]:
    """Keeps the problems of benchmarks as `held_out` does; with the number of problems left out, by benchmark."""
    found = [held_out(each.config, each.problems, renderer, each.name) for each in benchmarks]
    fitting = [replace(each, problems=fit.problems) for each, fit in zip(benchmarks, found, strict=True)]
    return fitting, {each.name: fit.dropped for each, fit in zip(benchmarks, found, strict=True) if fit.dropped}


def keep_fitting(config: RunConfig, split: str, problems: Sequence[Problem], asked: Sequence[Asked]) -> Fitting:
    """Drops problems with an overlong prompt if data.filter_overlong_prompts is set; otherwise raises TooLong.

    Raises DataError if no problem is left. Measures every prompt with each model that receives it.
    """
    wrong: set[int] = set()
    for renderer, messages in asked:
        indices = renderer.overlong([messages(problem) for problem in problems])
        if indices and not config.data.filter_overlong_prompts:
            raise _refusal(split, problems, indices, renderer, messages)
        wrong.update(indices)
    if problems and len(wrong) == len(problems):
        raise DataError(
            f"data.filter_overlong_prompts leaves no problem of the {split} split: all {len(problems):,} prompts are "
            f"too long for the context beside rollout.max_tokens={config.rollout.max_tokens}; lower it or shorten the "
            "prompts"
        )
    return Fitting([each for index, each in enumerate(problems) if index not in wrong], len(wrong))


def describe_dropped(dropped: Sequence[tuple[str, int]]) -> str:
    """Says how many prompts of each split were left out."""
    return ", ".join(f"{count:,} of the {split} split" for split, count in dropped)


def describe_multiple_answers(count: int) -> str:
    """Says how many problems data.filter_multiple_answers left out."""
    return f"problems with several right answers left out: {count:,} of the train split"


def _refusal(
    split: str,
    problems: Sequence[Problem],
    indices: Sequence[int],
    renderer: ChatRenderer,
    messages: Callable[[Problem], Sequence[Message]],
) -> TooLong:
    first = problems[indices[0]]
    try:
        renderer.render(messages(first))
    except TooLong as error:
        count = f"{len(indices):,} of {len(problems):,} problems of the {split} split have overlong prompts"
        return TooLong(f"{count}; the first is {first.id}: {error}")
    raise AssertionError("an overlong prompt was rendered")
