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

    def followed_by(self, other: "VllmOutput") -> "VllmOutput":
        """The output of this request and of the next one, which continued its tokens."""
        offset = len(self.tokens)
        return VllmOutput(
            self.tokens + other.tokens,
            self.logprobs + other.logprobs,
            other.finish,
            (*self.versions, *((label, start + offset, end + offset) for label, start, end in other.versions)),
        )

    def cut(self, count: int, finish: Finish) -> "VllmOutput":
        """The first `count` tokens; spans of weights that go on after them are cut with the completion."""
        return replace(self, tokens=self.tokens[:count], logprobs=self.logprobs[:count], finish=finish)


def parameters(
    sampling: Sampling, index: int, max_tokens: int, awaited: Sequence[str] = (), part: int = 0
) -> dict[str, Any]:
    """vLLM's sampling parameters for sample `index`. `awaited` are further stop strings, at which vLLM hands the sample
    back; `part` numbers the requests that it takes."""
    stop = [*sampling.stop, *awaited]
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "max_tokens": max_tokens,
        "seed": _seed(sampling, index, part),
        "stop": stop,
        "stop_token_ids": list(sampling.stop_tokens),
        "logit_bias": dict(sampling.bias) or None,
        "logprobs": 0,  # only of the sampled token
        "detokenize": bool(stop),  # text is decoded here; vLLM needs it only for stop strings
    }


def completed(output: VllmOutput, version: int, sampling: Sampling, stop_criteria: StopCriteria) -> Completion:
    """Completion of vLLM's output. `version` is used if vLLM reports none."""
    if output.finish not in get_args(Finish):
        raise RuntimeError(f"vLLM ended a sample with {output.finish!r}")
    spans = _spans(output)
    return Completion(
        tokens=output.tokens,
        logprobs=output.logprobs,
        text=stop_criteria.text(output.tokens, sampling),
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


def _seed(sampling: Sampling, index: int, part: int) -> int:
    """Seed of one request of a sample (see rng.py)."""
    counter: Sequence[int] = [part, index, sampling.prompt_index, 0]
    return int(np.random.Philox(key=[sampling.seed, 1], counter=counter).random_raw() >> 2)  # an int64, never -1
