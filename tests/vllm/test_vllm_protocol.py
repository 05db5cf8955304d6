"""What vLLM answers, as completions."""

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.engine.stop_criteria import StopCriteria
from dojang.inference.vllm_protocol import VllmOutput, completed, parameters, version_of
from dojang.types import Sampling, Span

SAMPLING = Sampling(
    temperature=0.5, max_tokens=9, seed=3, prompt_index=2, stop_tokens=(8,), bias=((4, 1.0),), top_k=7, min_p=0.02
)


@pytest.fixture
def stop_criteria(tokenizer: PreTrainedTokenizerBase) -> StopCriteria:
    return StopCriteria(tokenizer, frozenset((tokenizer.eos_token_id,)))


def test_parameters_say_what_the_sampling_says() -> None:
    wanted = parameters(SAMPLING, 0, 9)
    assert wanted | {"seed": 0} == {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 7,
        "min_p": 0.02,
        "max_tokens": 9,
        "seed": 0,
        "stop": [],
        "stop_token_ids": [8],
        "logit_bias": {4: 1.0},
        "logprobs": 0,
        "detokenize": False,
    }


def test_awaited_strings_are_stop_strings_of_the_request() -> None:
    wanted = parameters(replace(SAMPLING, stop=("Question:",)), 0, 9, ("####",), 1)
    assert (wanted["stop"], wanted["detokenize"]) == (["Question:", "####"], True)
    assert wanted["seed"] != parameters(SAMPLING, 0, 9)["seed"]


def test_every_sample_has_a_different_seed() -> None:
    others = [replace(SAMPLING, seed=4), replace(SAMPLING, prompt_index=3)]
    seeds = [parameters(SAMPLING, index, 9)["seed"] for index in range(20)]
    seeds += [parameters(other, 0, 9)["seed"] for other in others]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert parameters(SAMPLING, 1, 9)["seed"] == parameters(SAMPLING, 1, 5)["seed"]


def test_spans_of_the_same_version_are_joined(stop_criteria: StopCriteria) -> None:
    drawn = VllmOutput((12, 13, 14), (-3.0, -4.0, -5.0), "length", (("3", 0, 1), ("3", 1, 2), ("4", 2, 3)))
    found = completed(drawn, 9, SAMPLING, stop_criteria)
    assert (found.tokens, found.logprobs, found.finish) == (drawn.tokens, drawn.logprobs, "length")
    assert (found.version, found.spans) == (3, (Span(3, 0, 2), Span(4, 2, 3)))


@pytest.mark.parametrize("finish", ["error", "abort"])
def test_an_unknown_finish_reason_is_an_error(stop_criteria: StopCriteria, finish: str) -> None:
    with pytest.raises(RuntimeError, match=f"ended a sample with '{finish}'"):
        completed(VllmOutput((), (), finish), 0, SAMPLING, stop_criteria)


def test_labels_are_numbers_or_the_first() -> None:
    assert (version_of("default"), version_of("12")) == (0, 12)
    with pytest.raises(RuntimeError, match="restart it"):
        version_of("someone else's")
