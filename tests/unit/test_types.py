import dataclasses
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from dojang.core.arrays import float_array
from dojang.types import Completion, Group, Message, Outcome, Problem, Sample, Sampling, Span, Verdict


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.JUDGE_ERROR])
def test_every_judged_outcome_needs_a_reward(outcome: Outcome) -> None:
    assert Verdict(outcome, 0.5).reward == 0.5
    with pytest.raises(ValueError, match=f"outcome {outcome} cannot carry reward None"):
        Verdict(outcome, None)


def test_a_judge_error_has_no_reward() -> None:
    assert Verdict(Outcome.JUDGE_ERROR, None, detail="gone").reward is None
    with pytest.raises(ValueError, match="outcome judge_error cannot carry reward 0"):
        Verdict(Outcome.JUDGE_ERROR, 0.0)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_is_a_finite_number(reward: float) -> None:
    with pytest.raises(ValueError, match="is not a finite number"):
        Verdict(Outcome.WRONG, reward)
    with pytest.raises(ValueError, match="a part of the reward is not a finite number: tone"):
        Verdict(Outcome.WRONG, 0.0, parts={"tone": reward})
    with pytest.raises(ValueError, match="a part of the reward is not a finite number: tone"):
        Verdict(Outcome.WRONG, 0.0, terms={"tone": (1.0, reward)})


def test_a_completion_has_a_log_prob_per_token() -> None:
    with pytest.raises(ValueError, match="2 tokens but 1 log-probs"):
        Completion((1, 2), (0.0,), "", "stop", 0)


@pytest.mark.parametrize("stream", ["tokens", "mask", "logprobs"])
def test_the_streams_of_a_sample_are_equally_long(make_sample: Callable[..., Sample], stream: str) -> None:
    sample = make_sample()
    with pytest.raises(ValueError, match="streams differ in length"):
        dataclasses.replace(sample, **{stream: getattr(sample, stream)[:-1]})


@pytest.mark.parametrize("stream", ["old_logprobs", "values", "advantages", "returns"])
def test_later_fields_of_a_sample_have_one_value_per_token(make_sample: Callable[..., Sample], stream: str) -> None:
    sample = make_sample(answer=(4, 5))
    assert getattr(sample, stream).size == 0
    assert getattr(dataclasses.replace(sample, **{stream: (0.0,) * 5}), stream).tolist() == [0.0] * 5
    with pytest.raises(ValueError, match="5 tokens but 2 "):
        dataclasses.replace(sample, **{stream: (0.0, 0.0)})


def test_an_unjudged_sample_has_no_reward_to_train_on(make_sample: Callable[..., Sample]) -> None:
    sample = make_sample(verdict=Verdict(Outcome.JUDGE_ERROR, None))
    with pytest.raises(ValueError, match="must not be trained on"):
        _ = sample.reward


def test_response_length_counts_what_the_model_chose(make_sample: Callable[..., Sample]) -> None:
    assert make_sample(prompt=(1, 2, 3), answer=(4, 5)).response_length == 2
    assert make_sample(1.5).reward == 1.5


def test_outcomes_are_written_as_plain_words() -> None:
    assert str(Outcome.TIME_LIMIT) == "time_limit"
    assert f"{Outcome.ACCEPTED}" == "accepted"
    assert len({str(outcome) for outcome in Outcome}) == 9


@pytest.mark.parametrize(
    "thing",
    [
        Message("user", "hello"),
        Problem("p/1", "p", (), None),
        Sampling(1.0, 5),
        Completion((1,), (0.0,), "", "stop", 0),
        Verdict(Outcome.WRONG, 0.0),
        Group(Problem("p/1", "p", (), None), 0, ()),
    ],
)
def test_nouns_are_replaced_not_mutated(thing: object) -> None:
    name = dataclasses.fields(thing)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(thing, name, None)
    assert not hasattr(thing, "__dict__")


def test_a_group_of_one_role(make_group: Callable[..., Group], make_sample: Callable[..., Sample]) -> None:
    coder, tester = make_sample(1.0, role="coder"), make_sample(0.0, role="tester")
    group = dataclasses.replace(make_group(prompt_index=4), samples=(coder, tester), unjudged=(tester,))
    assert group.of("coder") == dataclasses.replace(group, samples=(coder,), unjudged=())
    assert group.of("tester") == dataclasses.replace(group, samples=(tester,))


def test_a_sample_carries_arrays_of_4_1_and_4_bytes_a_token(make_sample: Callable[..., Sample]) -> None:
    sample = make_sample(prompt=(1, 2), answer=(3, 4), logprobs=(-0.5, -0.25))
    assert (sample.tokens.itemsize, sample.mask.itemsize, sample.logprobs.itemsize) == (4, 1, 4)
    with pytest.raises(ValueError, match="read-only"):
        sample.tokens[0] = 5


def test_numbers_that_float32_cannot_hold_stay_float64() -> None:
    for values in ((0.1,), (1e300, 1.0), (math.pi, 0.0)):
        assert float_array(values).dtype == np.float64
        assert tuple(float_array(values).tolist()) == values
    exact = [float(np.float32(each)) for each in (0.1, -7.3, math.inf, math.nan)]
    assert float_array(exact).dtype == np.float32
    assert repr(float_array(exact).tolist()) == repr(exact)


def test_samples_are_equal_by_their_values(make_sample: Callable[..., Sample]) -> None:
    one, same = make_sample(answer=(4, 5)), make_sample(answer=[4, 5])
    assert one == same == pickle.loads(pickle.dumps(one))
    assert one != make_sample(answer=(4, 6))
    assert one != dataclasses.replace(one, advantages=(0.0,) * 5)
    assert one != dataclasses.replace(one, temperature=0.7)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_sample_keeps_temperature_and_weight_versions() -> None:
    verdict, spans = Verdict(Outcome.WRONG, 0.0), (Span(3, 0, 1), Span(4, 1, 3))
    mixed = Completion((7, 8, 9), (-1.0,) * 3, "", "stop", 3, spans=spans)
    sample = Sample.of((1, 2), mixed, verdict, temperature=0.7)
    assert (sample.temperature, sample.version) == (0.7, 3)
    assert sample.spans == (Span(3, 2, 3), Span(4, 3, 5))
    longer = sample.with_prompt((1, 2, 3, 4))
    assert (longer.spans, tuple(longer.tokens)) == ((Span(3, 4, 5), Span(4, 5, 7)), (1, 2, 3, 4, 7, 8, 9))
    whole = Sample.of((1, 2), dataclasses.replace(mixed, spans=()), verdict)
    assert whole.spans == (Span(3, 2, 5),)


def test_values_of_sampled_tokens_and_back(make_sample: Callable[..., Sample]) -> None:
    sample = make_sample(prompt=(1, 2), answer=(3, 4))
    assert sample.sampled((9.0, 9.0, 0.1, 0.2)) == [0.1, 0.2]
    assert sample.at_mask([0.1, 0.2]).tolist() == [0.0, 0.0, 0.1, 0.2]
