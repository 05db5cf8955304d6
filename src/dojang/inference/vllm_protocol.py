"""What dojang and vLLM say to each other: sampling as vLLM's parameters, and what it draws as completions."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from dojang.engine.stop_criteria import Stopper
from dojang.types import Completion, Finish, Sampling, Span

__all__ = ["BROKEN", "FIRST", "Drawn", "completed", "parameters", "version_of"]

FIRST = "default"
"""What vLLM calls the weights it was started with."""
BROKEN = "broken"
"""What it is told to call them during an update, so that others see if nobody was left to end it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What vLLM answers for one sample."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    versions: tuple[tuple[str, int, int], ...] = ()
    """(label of the weights, first token, end): empty if it does not tell."""


def parameters(sampling: Sampling, index: int, done: int, left: int) -> dict[str, Any]:
    """vLLM's sampling parameters for sample `index`, of which there are `done` tokens, to have at most `left` more."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "max_tokens": left,
        "seed": _seed(sampling, index, done),
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_tokens),
        "logit_bias": dict(sampling.bias) or None,
        "logprobs": 0,  # of the token that was drawn, and of no other
        "detokenize": bool(sampling.stop),  # the text is made here; vLLM needs it to find stop strings only
    }


def completed(past: Completion | None, drawn: Drawn, version: int, sampling: Sampling, stopper: Stopper) -> Completion:
    """What was there before and what has been drawn now, as one. `version` holds where nothing else is known."""
    if drawn.finish not in get_args(Finish):
        raise RuntimeError(f"vLLM ended a sample with {drawn.finish!r}")
    before = past.tokens if past else ()
    tokens, finish = before + drawn.tokens, drawn.finish
    if past and (end := _stopped(tokens, len(before), sampling.stop, stopper)) is not None:
        tokens, finish = tokens[:end], "stop"
    spans = _joined(past, drawn, len(tokens))
    return Completion(
        tokens=tokens,
        logprobs=((past.logprobs if past else ()) + drawn.logprobs)[: len(tokens)],
        text=stopper.text(tokens, sampling.stop),
        finish=finish,  # type: ignore[arg-type]  # checked above
        version=spans[0].version if spans else version,
        spans=spans,
    )


def version_of(label: str) -> int:
    """The number of weights as vLLM calls them."""
    if label == FIRST:
        return 0
    if not label.isdecimal():
        raise RuntimeError(f"vLLM holds weights of version {label!r}, which no dojang engine gave it; restart it")
    return int(label)


def _stopped(tokens: tuple[int, ...], done: int, stop: tuple[str, ...], stopper: Stopper) -> int | None:
    """The token after which there is a stop string. vLLM looks for them only in what it has written itself."""

    def stops(end: int) -> bool:
        return stopper.text(tokens[:end], stop) != stopper.text(tokens[:end], ())

    if not stop or not stops(len(tokens)):
        return None
    return bisect_left(range(1, len(tokens) + 1), True, lo=done, key=stops) + 1


def _joined(past: Completion | None, drawn: Drawn, end: int) -> tuple[Span, ...]:
    spans: list[Span] = []
    if past and past.tokens:
        spans = list(past.spans) or [Span(past.version, 0, len(past.tokens))]
    start = len(past.tokens) if past else 0
    for label, first, last in drawn.versions:
        span = Span(version_of(label), start + first, min(start + last, end))
        if spans and spans[-1].version == span.version:
            spans[-1] = replace(spans[-1], end=span.end)
        elif span.start < span.end:
            spans.append(span)
    return tuple(spans)


def _seed(sampling: Sampling, index: int, done: int) -> int:
    """Of the sample alone (see rng.py); what is resumed must not draw its first numbers a second time."""
    counter: Sequence[int] = [0, index, sampling.ordinal, done]
    return int(np.random.Philox(key=[sampling.seed, 1], counter=counter).random_raw() >> 2)  # an int64, never -1
