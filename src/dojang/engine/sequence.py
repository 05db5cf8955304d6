"""Requests, and one sequence for each of their samples."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dojang.engine.kv_cache import Prefix
from dojang.engine.rng import uniforms
from dojang.types import Completion, Sampling, Span

__all__ = ["Request", "Sequence"]


@dataclass(eq=False)
class Request:
    """`n` samples of one prompt, delivered together."""

    prompt: tuple[int, ...]
    n: int
    sampling: Sampling
    deliver: Callable[["Request"], None]
    """Called when the last sample has finished."""
    finished: dict[int, Completion] = field(default_factory=dict)

    @property
    def completions(self) -> list[Completion]:
        return [self.finished[index] for index in range(self.n)]


@dataclass(eq=False)
class Sequence:
    """One sample of a request, waiting or being decoded."""

    request: Request
    index: int
    prefix: Prefix
    uniforms: np.ndarray[tuple[int], np.dtype[np.float64]]
    """One uniform random number for every token the sample may have."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    plain_logprobs: list[float] = field(default_factory=list)
    """Log-probs at temperature 1."""
    spans: list[Span] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)

    @property
    def max_length(self) -> int:
        return len(self.request.prompt) + self.request.sampling.max_tokens

    def note_version(self, version: int, count: int) -> None:
        """Record that weights `version` sampled the last `count` tokens."""
        end = len(self.tokens)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = Span(version, self.spans[-1].start, end)
        else:
            self.spans.append(Span(version, end - count, end))

    @classmethod
    def of(cls, request: Request, index: int, prefix: Prefix, max_tokens: int) -> "Sequence":
        """Create sample `index` of a request."""
        sampling = request.sampling
        return cls(request, index, prefix, uniforms(sampling.seed, sampling.prompt_index, index, max_tokens))

    def next_uniforms(self, start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Random numbers of `count` tokens, beginning `start` tokens after the last one; fewer near the limit."""
        return self.uniforms[len(self.tokens) + start : len(self.tokens) + start + count]
