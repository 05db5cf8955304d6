"""Puzzles that reasoning-gym makes: more than a hundred generators, each with settings of its own.

The library runs in a separate process (reasoning_gym_process.py) with fixed string hashing: some of its generators give
different problems for the same seed otherwise. A generator that never returns can be killed.

A problem's reference is what the library needs to score an answer to it: {generator, settings, entry}.
"""

import json
import os
import subprocess
import sys
from collections.abc import Set
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from dojang.core.errors import ConfigError, DataError
from dojang.core.section import Section
from dojang.data.section import DataSection
from dojang.types import Message, Problem

__all__ = ["Generator", "ReasoningGymConfig"]

_APART = 2**31
"""From the seed of the first training problem to that of the first held-out one. Generators count up from problem to
problem, and some take no seed beyond 32 bits."""


class Generator(Section):
    """One of several."""

    weight: float = Field(default=1.0, gt=0)
    """Relative number of puzzles from this generator."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the generator, by reasoning-gym's names."""

    @field_validator("settings")
    @classmethod
    def _not_ours(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if taken := settings.keys() & {"seed", "size"}:
            raise ValueError(f"{', '.join(sorted(taken))} cannot be set here; use data.seed, train_size and test_size")
        return settings


class ReasoningGymConfig(DataSection):
    """Puzzles of reasoning-gym."""

    stop: ClassVar[tuple[str, ...]] = ()
    name: Literal["reasoning_gym"] = "reasoning_gym"
    generators: dict[str, Generator] = Field(min_length=1)
    """Which, by name, with weights and settings: {maze: {}, chain_sum: {weight: 2, settings: {max_terms: 4}}}."""
    system: str | None = None
    """What the model is told before the question, instead of the library's own words; answers are looked for in
    <answer> tags."""
    train_size: int = Field(default=1024, ge=1)
    """How many training problems are drawn; those that happen to be among the held-out ones are left out."""
    test_size: int = Field(default=128, ge=1)
    """How many problems are held out."""
    seed: int = Field(default=0, ge=0, lt=2**30)
    """Decides which."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds for making the problems of a split."""

    def read(self, split: str) -> list[Problem]:
        """The problems of the `train` or `test` split, in an order that never changes."""
        if split not in ("train", "test"):
            raise DataError(f"reasoning_gym has no split {split!r}; use 'train' or 'test'")
        if find_spec("reasoning_gym") is None:
            raise ConfigError("data.name=reasoning_gym needs reasoning-gym: pip install 'dojang[reasoning-gym]'")
        test = self._made(self.seed + _APART, self.test_size)
        if split == "test":
            return self._problems(test, split)
        held_out = {each["question"] for each in test["problems"]}
        train = self._made(self.seed, self.train_size)
        problems = self._problems(train, split, held_out)
        if not problems:
            raise DataError(
                f"{', '.join(self.generators)}: all {self.train_size} training problems are held out as well: there "
                "are few different ones; ask for more with data.train_size, or for fewer with data.test_size"
            )
        return problems

    def _made(self, seed: int, size: int) -> dict[str, Any]:
        generators = {name: each.model_dump() for name, each in self.generators.items()}
        return _generated(json.dumps({"generators": generators, "seed": seed, "size": size}), self.timeout_s)

    def _problems(self, made: dict[str, Any], split: str, without: Set[str] = frozenset()) -> list[Problem]:
        system = made["system"] if self.system is None else self.system
        return [
            self._problem(each, f"reasoning_gym/{each['generator']}/{split}/{number}", system)
            for number, each in enumerate(made["problems"])
            if each["question"] not in without
        ]

    def _problem(self, made: dict[str, Any], name: str, system: str) -> Problem:
        generator = made["generator"]
        return Problem(
            id=name,
            source="reasoning_gym",
            messages=(*([Message("system", system)] if system else []), Message("user", made["question"])),
            reference={
                "generator": generator,
                "settings": self.generators[generator].settings,
                "entry": made["entry"],
            },
            tier=generator,
        )


@lru_cache(maxsize=2)  # what is held out is asked for by both splits
def _generated(order: str, timeout_s: float) -> dict[str, Any]:
    paths = os.pathsep.join(filter(None, sys.path))
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "dojang.data.reasoning_gym_process"],
            input=order.encode(),
            capture_output=True,
            timeout=timeout_s,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"reasoning-gym took longer than data.timeout_s={timeout_s:g} to make the problems; ask for fewer "
            "(data.train_size, data.test_size) or easier ones (settings of the generators), or allow more time"
        ) from None
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        why = f": {said[-1][:300]}" if said else ""
        raise DataError(f"making problems with reasoning-gym ended with {ended.returncode}{why}")
    made: dict[str, Any] = json.loads(ended.stdout)
    if "error" in made:
        raise DataError(made["error"])
    return made
