"""Mapping between dojang and vLLM: sampling parameters to vLLM, its outputs to completions."""

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


def parameters(sampling: Sampling, index: int, max_tokens: int) -> dict[str, Any]:
    """vLLM's sampling parameters for sample `index`."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "max_tokens": max_tokens,
        "seed": _seed(sampling, index),
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_tokens),
        "logit_bias": dict(sampling.bias) or None,
        "logprobs": 0,  # only of the sampled token
        "detokenize": bool(sampling.stop),  # text is decoded here; vLLM needs it only for stop strings
    }


def completed(output: VllmOutput, version: int, sampling: Sampling, stop_criteria: StopCriteria) -> Completion:
    """Completion of vLLM's output. `version` is used if vLLM reports none."""
    if output.finish not in get_args(Finish):
        raise RuntimeError(f"vLLM ended a sample with {output.finish!r}")
    spans = _spans(output)
    return Completion(
        tokens=output.tokens,
        logprobs=output.logprobs,
        text=stop_criteria.text(output.tokens, sampling.stop),
        finish=output.finish,  # type: ignore[arg-type]  # checked above
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


def _spans(output: VllmOutput) -> tuple[Span, ...]:
    spans: list[Span] = []
    for label, start, last in output.versions:
        span = Span(version_of(label), start, min(last, len(output.tokens)))
        if spans and spans[-1].version == span.version:
            spans[-1] = replace(spans[-1], end=span.end)
        elif span.start < span.end:
            spans.append(span)
    return tuple(spans)


def _seed(sampling: Sampling, index: int) -> int:
    """Seed of one sample (see rng.py)."""
    counter: Sequence[int] = [0, index, sampling.prompt_index, 0]
    return int(np.random.Philox(key=[sampling.seed, 1], counter=counter).random_raw() >> 2)  # an int64, never -1
