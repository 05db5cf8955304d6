"""What a batch works on: requests, and a row for each of their samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dojang.engine.kv_cache import Prefix
from dojang.engine.rng import uniforms
from dojang.types import Completion, Sampling, Span

__all__ = ["Request", "Row"]


@dataclass(eq=False)
class Request:
    """Samples that somebody waits for together."""

    prompt: tuple[int, ...]
    n: int
    sampling: Sampling
    deliver: Callable[["Request"], None]
    """Called when the last of them has ended."""
    resume: Mapping[int, Completion] = field(default_factory=dict)
    """Samples that there are already. Those that were aborted go on where they were."""
    done: dict[int, Completion] = field(default_factory=dict)

    @property
    def completions(self) -> list[Completion]:
        return [self.done[index] for index in range(self.n)]


@dataclass(eq=False)
class Row:
    """One sequence."""

    request: Request
    index: int
    prefix: Prefix
    draws: np.ndarray[tuple[int], np.dtype[np.float64]]
    """A random number for every token it may have."""
    tokens: list[int]
    logprobs: list[float]
    plain: list[float] | None
    """None if another engine, which does not tell, has drawn the beginning."""
    spans: list[Span]

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)

    @property
    def most(self) -> int:
        return len(self.request.prompt) + self.request.sampling.max_tokens

    def note_version(self, version: int, count: int) -> None:
        """The newest tokens, so many, were drawn by these weights."""
        end = len(self.tokens)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = Span(version, self.spans[-1].start, end)
        else:
            self.spans.append(Span(version, end - count, end))

    @classmethod
    def of(cls, request: Request, index: int, prefix: Prefix, room: int) -> "Row":
        """A sample of a request, with room for so many tokens, that begins where an earlier one was aborted."""
        past = request.resume.get(index)
        sampling = request.sampling
        return cls(
            request=request,
            index=index,
            prefix=prefix,
            draws=uniforms(sampling.seed, sampling.ordinal, index, room),
            tokens=list(past.tokens) if past else [],
            logprobs=list(past.logprobs) if past else [],
            plain=_plain(past),
            spans=_spans(past) if past else [],
        )

    def numbers(self, start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The random numbers for so many tokens, `start` tokens from here; fewer at the end."""
        return self.draws[len(self.tokens) + start : len(self.tokens) + start + count]


def _plain(past: Completion | None) -> list[float] | None:
    if past is None or len(past.plain_logprobs) == len(past.tokens):
        return list(past.plain_logprobs) if past else []
    return None


def _spans(past: Completion) -> list[Span]:
    if past.spans or not past.tokens:
        return list(past.spans)
    return [Span(past.version, 0, len(past.tokens))]
