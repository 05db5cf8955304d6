"""Requests, and one sequence for each of their samples."""

from collections.abc import Callable, Mapping
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
    resume: Mapping[int, Completion] = field(default_factory=dict)
    """Earlier completions by sample index. Aborted ones continue from their last token."""
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
    tokens: list[int]
    logprobs: list[float]
    plain_logprobs: list[float] | None
    """Log-probs at temperature 1; None if the resumed part came from an engine without them."""
    spans: list[Span]

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
        """Create sample `index` of a request, starting from the aborted completion to resume, if any."""
        past = request.resume.get(index)
        sampling = request.sampling
        return cls(
            request=request,
            index=index,
            prefix=prefix,
            uniforms=uniforms(sampling.seed, sampling.prompt_index, index, max_tokens),
            tokens=list(past.tokens) if past else [],
            logprobs=list(past.logprobs) if past else [],
            plain_logprobs=_plain_logprobs(past),
            spans=_spans(past) if past else [],
        )

    def next_uniforms(self, start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Random numbers of `count` tokens, beginning `start` tokens after the last one; fewer near the limit."""
        return self.uniforms[len(self.tokens) + start : len(self.tokens) + start + count]


def _plain_logprobs(past: Completion | None) -> list[float] | None:
    if past is None or len(past.plain_logprobs) == len(past.tokens):
        return list(past.plain_logprobs) if past else []
    return None


def _spans(past: Completion) -> list[Span]:
    if past.spans or not past.tokens:
        return list(past.spans)
    return [Span(past.version, 0, len(past.tokens))]
