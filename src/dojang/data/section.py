"""Base class of the `data:` settings: a dataset, and which of its training problems a run uses."""

from collections.abc import Sequence

from pydantic import Field, model_validator

from dojang.core.errors import DataError
from dojang.core.section import Section
from dojang.types import Problem

__all__ = ["DataSection"]


class DataSection(Section):
    """Settings of every dataset. A subclass reads a split; `load` applies the limit."""

    limit: int | None = Field(default=None, ge=1)
    """Keep at most this many training problems: the first ones, or with limit_seed a random choice. Held-out problems
    are not limited (eval.problems does that)."""
    limit_seed: int | None = Field(default=None, ge=0)
    """Seed of a shuffle before the limit: chooses the problems, in the order, that
    `datasets.Dataset.shuffle(seed=limit_seed).select(range(limit))` chooses of the same training problems."""

    filter_overlong_prompts: bool = False
    """Leave out and count problems whose prompt does not fit the context beside rollout.max_tokens, in training and in
    evaluation; without it such a prompt is an error."""

    filter_multiple_answers: bool = False
    """Leave out and count training problems that may have several right answers, by their statements or because their
    tests contradict each other, unless they have a checker program (task.name=code). Held-out problems stay."""

    @model_validator(mode="after")
    def _seed_needs_limit(self) -> "DataSection":
        if self.limit_seed is not None and self.limit is None:
            raise ValueError("limit_seed chooses the problems that limit keeps; set data.limit, too")
        return self

    def load(self, split: str) -> list[Problem]:
        """Problems of a split; of `train` at most `limit`."""
        problems = self.read(split)
        _check_unicode(problems)
        if split != "train" or self.limit is None:
            return problems
        return [problems[at] for at in self.chosen(len(problems))]

    def chosen(self, count: int) -> Sequence[int]:
        """Positions of the problems that the limit keeps, out of `count`."""
        if self.limit_seed is None:
            return range(count)[: self.limit]
        import numpy as np  # not before there is something to choose

        order: list[int] = np.random.default_rng(self.limit_seed).permutation(count)[: self.limit].tolist()
        return order

    def read(self, split: str) -> list[Problem]:
        """All problems of a split, in an order that never changes."""
        raise NotImplementedError


def _check_unicode(problems: Sequence[Problem]) -> None:
    """DataError if a prompt has half of a surrogate pair, as JSON may: no tokenizer takes it."""
    for problem in problems:
        for message in problem.messages:
            try:
                message.content.encode()
            except UnicodeEncodeError as error:
                raise DataError(f"{problem.id}: its prompt is not valid Unicode ({error}); correct the row") from None
