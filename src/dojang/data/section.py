"""Base class of the `data` section: a dataset, and the selection of its training problems."""

from collections.abc import Sequence

from pydantic import Field, model_validator

from dojang.core.errors import DataError
from dojang.core.section import Section
from dojang.types import Problem

__all__ = ["DataSection"]


class DataSection(Section):
    """Settings of every dataset. A subclass reads a split; `load` applies the limit."""

    limit: int | None = Field(default=None, ge=1)
    """Maximum number of training problems: the first ones, or with limit_seed a random draw. eval.problems limits the
    held-out problems."""
    limit_seed: int | None = Field(default=None, ge=0)
    """Seed of a shuffle before the limit: selects the same problems, in the same order, as
    `datasets.Dataset.shuffle(seed=limit_seed).select(range(limit))`."""

    filter_overlong_prompts: bool = False
    """Whether to drop and count problems whose prompt and rollout.max_tokens exceed the context length, in training and
    evaluation; if false, such a prompt is an error."""

    filter_multiple_answers: bool = False
    """Whether to drop and count training problems that may have several correct answers, by their statements or because
    their tests contradict each other, unless they have a checker program (task.name=code). Keeps held-out problems."""

    @model_validator(mode="after")
    def _seed_needs_limit(self) -> "DataSection":
        if self.limit_seed is not None and self.limit is None:
            raise ValueError("limit_seed draws the problems that limit keeps; set data.limit as well")
        return self

    def load(self, split: str) -> list[Problem]:
        """Returns the problems of a split; of `train` at most `limit`."""
        problems = self.read(split)
        _check_unicode(problems)
        if split != "train" or self.limit is None:
            return problems
        return [problems[at] for at in self.chosen(len(problems))]

    def chosen(self, count: int) -> Sequence[int]:
        """Returns the positions of the problems that the limit keeps, out of `count`."""
        if self.limit_seed is None:
            return range(count)[: self.limit]
        import numpy as np  # imported late

        order: list[int] = np.random.default_rng(self.limit_seed).permutation(count)[: self.limit].tolist()
        return order

    def held_out_split(self) -> str:
        """Name of the split for evaluations during training."""
        return "test"

    def read(self, split: str) -> list[Problem]:
        """Returns all problems of a split, in a fixed order."""
        raise NotImplementedError


def _check_unicode(problems: Sequence[Problem]) -> None:
    """Raises DataError if a prompt has an unpaired surrogate, as JSON may: no tokenizer accepts it."""
    for problem in problems:
        for message in problem.messages:
            try:
                message.content.encode()
            except UnicodeEncodeError as error:
                raise DataError(f"{problem.id}: its prompt is not valid Unicode ({error}); correct the row") from None
