"""Base class of the `data` section: a dataset, and the selection of its training problems."""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from pydantic import Field, field_validator, model_validator

from dojang.core.errors import DataError
from dojang.core.section import Section
from dojang.types import Problem

__all__ = ["DataSection", "GeneratedSection", "number_of"]


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

    stop: tuple[str, ...] = ()
    """Stop strings: completions end where one appears, and it is not part of the text that is graded. The task has a
    stop condition as well (task.stop_at)."""

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if not all(stop):
            raise ValueError("an empty stop string would end every completion at once; remove it")
        return stop

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

    def task_name(self, split: str) -> str:
        """Name of the task that grades a split, if its rows say so; else empty."""
        return ""

    def read(self, split: str) -> list[Problem]:
        """Returns all problems of a split, in a fixed order."""
        raise NotImplementedError


class GeneratedSection(DataSection):
    """Settings of a generated dataset. A subclass draws problems; their content alone determines the split."""

    train_size: int
    """Number of training problems."""
    test_size: int
    """Number of held-out problems."""

    def read(self, split: str) -> list[Problem]:
        """Returns the problems of the `train` or `test` split, in a fixed order."""
        if split not in ("train", "test"):
            raise DataError(f"generated data has no split {split!r}; use 'train' or 'test'")
        size = self.test_size if split == "test" else self.train_size
        chosen: dict[str, Problem] = {}
        for label, held_out, make in self._draws():
            if held_out == (split == "test") and label not in chosen:
                chosen[label] = make()
                if len(chosen) == size:
                    break
        return list(chosen.values())

    def _draws(self) -> Iterator[tuple[str, bool, Callable[[], Problem]]]:
        """Yields problems endlessly in a fixed order, also repeatedly: id, whether it is held out, and its maker."""
        raise NotImplementedError


def number_of(text: str) -> int:
    """Hashes the text to a number: the same on every platform and Python version, unlike `hash` or `random`."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def _check_unicode(problems: Sequence[Problem]) -> None:
    """Raises DataError if a prompt has an unpaired surrogate, as JSON may: no tokenizer accepts it."""
    for problem in problems:
        for message in problem.messages:
            try:
                message.content.encode()
            except UnicodeEncodeError as error:
                raise DataError(f"{problem.id}: its prompt is not valid Unicode ({error}); correct the row") from None
