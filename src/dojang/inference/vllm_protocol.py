"""Mapping between dojang and vLLM: sampling parameters to vLLM, its outputs to completions."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from dojang.engine.stop_criteria import StopCriteria
from dojang.types import Completion, Finish, Sampling, Span

__all__ = ["BROKEN", "INITIAL", "VllmOutput", "completed", "parameters", "version_of"]

INITIAL = "default"
"""vLLM's label for the weights it was started with."""
BROKEN = "broken"
"""Label during an update, so that a later client can see an update that never finished."""


@dataclass(frozen=True, slots=True)
class VllmOutput:
    """vLLM's output for one sample."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    versions: tuple[tuple[str, int, int], ...] = ()
    """(label of the weights, first token, end); empty if the server does not report it."""


def parameters(sampling: Sampling, index: int, done: int, left: int) -> dict[str, Any]:
    """vLLM's sampling parameters for sample `index`, which has `done` tokens and may get at most `left` more."""
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
        "logprobs": 0,  # only of the sampled token
        "detokenize": bool(sampling.stop),  # text is decoded here; vLLM needs it only for stop strings
    }


def completed(
    past: Completion | None, output: VllmOutput, version: int, sampling: Sampling, stop_criteria: StopCriteria
) -> Completion:
    """Join an earlier completion and the new output. `version` is used if vLLM reports none."""
    if output.finish not in get_args(Finish):
        raise RuntimeError(f"vLLM ended a sample with {output.finish!r}")
    before = past.tokens if past else ()
    tokens, finish = before + output.tokens, output.finish
    if past and (end := _stopped(tokens, len(before), sampling.stop, stop_criteria)) is not None:
        tokens, finish = tokens[:end], "stop"
    spans = _joined(past, output, len(tokens))
    return Completion(
        tokens=tokens,
        logprobs=((past.logprobs if past else ()) + output.logprobs)[: len(tokens)],
        text=stop_criteria.text(tokens, sampling.stop),
        finish=finish,  # type: ignore[arg-type]  # checked above
        version=spans[0].version if spans else version,
        spans=spans,
    )


def version_of(label: str) -> int:
    """Version number of vLLM's label."""
    if label == INITIAL:
        return 0
    if not label.isdecimal():
        raise RuntimeError(f"vLLM holds weights of version {label!r}, a label that dojang did not set; restart it")
    return int(label)


def _stopped(tokens: tuple[int, ...], done: int, stop: tuple[str, ...], stop_criteria: StopCriteria) -> int | None:
    """Number of tokens that complete a stop string; vLLM searches only the tokens it sampled itself."""

    def stops(end: int) -> bool:
        return stop_criteria.text(tokens[:end], stop) != stop_criteria.text(tokens[:end], ())

    if not stop or not stops(len(tokens)):
        return None
    return bisect_left(range(1, len(tokens) + 1), True, lo=done, key=stops) + 1


def _joined(past: Completion | None, output: VllmOutput, end: int) -> tuple[Span, ...]:
    spans: list[Span] = []
    if past and past.tokens:
        spans = list(past.spans) or [Span(past.version, 0, len(past.tokens))]
    start = len(past.tokens) if past else 0
    for label, first, last in output.versions:
        span = Span(version_of(label), start + first, min(start + last, end))
        if spans and spans[-1].version == span.version:
            spans[-1] = replace(spans[-1], end=span.end)
        elif span.start < span.end:
            spans.append(span)
    return tuple(spans)


def _seed(sampling: Sampling, index: int, done: int) -> int:
    """Seed of one sample (see rng.py). A resumed sample gets another one, so that it does not reuse random numbers."""
    counter: Sequence[int] = [0, index, sampling.prompt_index, done]
    return int(np.random.Philox(key=[sampling.seed, 1], counter=counter).random_raw() >> 2)  # an int64, never -1
