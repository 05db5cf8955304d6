"""What vLLM answers, as completions."""

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.engine.stop_criteria import StopCriteria
from dojang.inference.vllm_protocol import VllmOutput, completed, parameters, version_of
from dojang.types import Completion, Sampling, Span

SAMPLING = Sampling(
    temperature=0.5, max_tokens=9, seed=3, prompt_index=2, stop_tokens=(8,), bias=((4, 1.0),), top_k=7, min_p=0.02
)


@pytest.fixture
def stop_criteria(tokenizer: PreTrainedTokenizerBase) -> StopCriteria:
    return StopCriteria(tokenizer, frozenset((tokenizer.eos_token_id,)))


def test_parameters_say_what_the_sampling_says() -> None:
    wanted = parameters(SAMPLING, 0, 0, 9)
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


def test_every_sample_has_a_seed_of_its_own() -> None:
    others = [replace(SAMPLING, seed=4), replace(SAMPLING, prompt_index=3)]
    seeds = [parameters(SAMPLING, index, done, 9)["seed"] for index in range(20) for done in range(5)]
    seeds += [parameters(other, 0, 0, 9)["seed"] for other in others]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert parameters(SAMPLING, 1, 0, 9)["seed"] == parameters(SAMPLING, 1, 0, 5)["seed"]


def test_what_goes_on_is_joined_to_what_there_was(stop_criteria: StopCriteria) -> None:
    past = Completion((10, 11), (-1.0, -2.0), "", "abort", 3)
    drawn = VllmOutput((12, 13, 14), (-3.0, -4.0, -5.0), "length", (("3", 0, 1), ("4", 1, 3)))
    joined = completed(past, drawn, 9, SAMPLING, stop_criteria)
    assert joined.tokens == (10, 11, 12, 13, 14)
    assert joined.logprobs == (-1.0, -2.0, -3.0, -4.0, -5.0)
    assert joined.spans == (Span(3, 0, 3), Span(4, 3, 5))
    assert (joined.version, joined.finish) == (3, "length")


def test_a_stop_string_may_begin_before_the_break(
    stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase
) -> None:
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "xyzabcd"]
    past = Completion(tuple(letters[:4]), (-1.0,) * 4, "xyza", "abort", 0)
    drawn = VllmOutput(tuple(letters[4:]), (-1.0,) * 3, "length", (("default", 0, 3),))
    joined = completed(past, drawn, 0, replace(SAMPLING, stop=("zab",)), stop_criteria)
    assert joined.tokens == tuple(letters[:5])
    assert (joined.text, joined.finish, joined.spans) == ("xy", "stop", (Span(0, 0, 5),))


def test_what_ended_otherwise_is_an_error(stop_criteria: StopCriteria) -> None:
    with pytest.raises(RuntimeError, match="ended a sample with 'error'"):
        completed(None, VllmOutput((), (), "error"), 0, SAMPLING, stop_criteria)


def test_labels_are_numbers_or_the_first() -> None:
    assert (version_of("default"), version_of("12")) == (0, 12)
    with pytest.raises(RuntimeError, match="restart it"):
        version_of("someone else's")
