"""Requests, and one sequence for each of their samples."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dojang.engine.kv_cache import Prefix
from dojang.engine.rng import uniforms
from dojang.types import Completion, Finish, Sampling, Span

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

    def append(self, tokens: list[int], logprobs: list[float], plain_logprobs: list[float], version: int) -> None:
        """Append tokens that weights `version` sampled."""
        self.tokens += tokens
        self.logprobs += logprobs
        self.plain_logprobs += plain_logprobs
        count, end = len(tokens), len(self.tokens)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = Span(version, self.spans[-1].start, end)
        else:
            self.spans.append(Span(version, end - count, end))

    def completion(self, text: str, finish: Finish, version: int) -> Completion:
        """The finished sample; `version` of the weights if it has no token."""
        return Completion(
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            text=text,
            finish=finish,
            version=self.spans[0].version if self.spans else version,
            plain_logprobs=tuple(self.plain_logprobs),
            spans=tuple(self.spans),
        )

    @classmethod
    def of(cls, request: Request, index: int, prefix: Prefix, max_tokens: int) -> "Sequence":
        """Create sample `index` of a request."""
        sampling = request.sampling
        return cls(request, index, prefix, uniforms(sampling.seed, sampling.prompt_index, index, max_tokens))

    def next_uniforms(self, start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Random numbers of `count` tokens, beginning `start` tokens after the last one; zeros past the limit."""
        found, first = np.zeros(count), len(self.tokens) + start
        given = self.uniforms[first : first + count]
        found[: len(given)] = given
        return found
