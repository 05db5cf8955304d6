"""On-policy distillation against its definition, for each token t with gaps r = log student - log teacher:

A_t = reward_coef A - coef sum_{k>=t} discount^(k-t) r_k
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from dojang.algos.distillation import Distillation, DistillationConfig, token_advantages
from dojang.core.errors import TrainingError
from dojang.types import Group, Problem, Sample


def settings(**chosen: object) -> DistillationConfig:
    return DistillationConfig(teacher="some/model", **chosen)


def oracle(gaps: Sequence[float], advantage: float, config: DistillationConfig) -> list[float]:
    """The sum of the definition, written out token by token."""
    clip = math.inf if config.clip is None else config.clip
    clipped = np.clip(np.array(gaps), -clip, clip)
    return [
        config.reward_coef * advantage
        - config.coef * sum(config.discount ** (k - t) * clipped[k] for k in range(t, len(gaps)))
        for t in range(len(gaps))
    ]


def test_token_advantages_follow_the_definition() -> None:
    rng = np.random.default_rng(0)
    for coef, reward_coef, discount, clip in ((1, 0, 0, None), (0.3, 2.0, 0.9, None), (1.5, 0.5, 1.0, 0.7)):
        config = settings(coef=coef, reward_coef=reward_coef, discount=discount, clip=clip)
        for length in (1, 2, 9):
            gaps = rng.normal(size=length).tolist()
            found = token_advantages(gaps, 0.4, config)
            np.testing.assert_allclose(found, oracle(gaps, 0.4, config), rtol=1e-12, atol=1e-12)


@pytest.fixture
def group(make_sample: Callable[..., Sample], problem: Problem) -> Group:
    made = [
        make_sample(prompt=(1, 2), answer=(3, 4, 5), logprobs=(-1.0, -2.0, -0.5), advantage=1.0, index=0),
        make_sample(prompt=(1, 2), answer=(6,), logprobs=(-3.0,), advantage=-1.0, index=1),
    ]
    return Group(problem, 0, tuple(made))


def answering(*scores: Sequence[float] | None):
    async def ask(samples: Sequence[Sample]) -> list[tuple[float, ...] | None]:
        assert len(samples) == len(scores)
        return [
            None if mine is None else (0.0,) * (len(sample.tokens) - len(mine)) + tuple(mine)
            for sample, mine in zip(samples, scores, strict=True)
        ]

    return ask


def test_reverse_kl_becomes_the_advantage_of_each_sampled_token(group: Group) -> None:
    distillation = Distillation(settings(), answering((-1.5, -1.0, -0.5), (-1.0,)))
    (found,), figures = asyncio.run(distillation.advantages([group]))
    assert found.samples[0].advantages.tolist() == [*(0.0, 0.0, -0.5, 1.0, 0.0)]
    assert found.samples[1].advantages.tolist() == [*(0.0, 0.0, 2.0)]
    assert figures["distillation/reverse_kl"] == pytest.approx((0.5 - 1.0 + 0.0 - 2.0) / 4)
    assert figures["distillation/teacher_errors"] == 0
    assert "distillation/hinted" not in figures


def test_the_reward_is_added_with_its_own_weight(group: Group) -> None:
    distillation = Distillation(settings(coef=0.5, reward_coef=2.0), answering((-1.0, -2.0, -0.5), (-1.0,)))
    (found,), _ = asyncio.run(distillation.advantages([group]))
    assert found.samples[0].advantages.tolist() == [*(0.0, 0.0, 2.0, 2.0, 2.0)]
    assert found.samples[1].advantages.tolist() == [*(0.0, 0.0, -2.0 + 1.0)]


def test_samples_the_teacher_failed_on_are_left_out_and_counted(group: Group) -> None:
    for failed in (None, (-1.0, -math.inf, -1.0), (-1.0, math.nan, -1.0)):
        distillation = Distillation(settings(reward_coef=1.0), answering(failed, (-1.0,)))
        (found,), figures = asyncio.run(distillation.advantages([group]))
        assert [sample.index for sample in found.samples] == [1]
        assert figures["distillation/teacher_errors"] == 1


def test_too_many_failures_stop_the_run(group: Group) -> None:
    with pytest.raises(TrainingError, match=r"2 of 2 samples.*max_errors=0.5"):
        asyncio.run(Distillation(settings(), answering(None, None)).advantages([group]))


def test_an_infinite_behaviour_log_prob_gives_its_token_no_signal(group: Group) -> None:
    odd = replace(group.samples[0], logprobs=(0.0, 0.0, -1.0, -math.inf, -1.0))
    alone = replace(group, samples=(odd,))
    (found,), _ = asyncio.run(Distillation(settings(), answering((-1.5, -1.0, -1.0))).advantages([alone]))
    assert found.samples[0].advantages.tolist() == [*(0.0, 0.0, -0.5, 0.0, 0.0)]


def test_samples_without_a_hint_train_on_the_reward_alone(group: Group) -> None:
    def reprompt(group: Group) -> list[Sample | None]:
        first = group.samples[0]
        longer = replace(first, tokens=(9, *first.tokens), mask=(False, *first.mask), logprobs=(0.0, *first.logprobs))
        return [longer, None]

    for reward_coef, kept in ((0.0, [0]), (1.0, [0, 1])):
        config = settings(reward_coef=reward_coef, hint="It is {reference}.")
        distillation = Distillation(config, answering((-1.5, -1.0, -0.5)), reprompt)
        (found,), figures = asyncio.run(distillation.advantages([group]))
        assert [sample.index for sample in found.samples] == kept
        assert [*found.samples[0].tokens] == [*group.samples[0].tokens]  # the student trains on its own prompt
        expected = (0.0, 0.0, -0.5 + reward_coef, 1.0 + reward_coef, reward_coef)
        assert tuple(found.samples[0].advantages) == expected
        assert figures["distillation/hinted"] == 0.5
        if reward_coef:
            assert found.samples[1].advantages.tolist() == [*(0.0, 0.0, -1.0)]


def test_tokens_without_a_counterpart_get_the_reward_alone_and_are_counted(group: Group) -> None:
    """A teacher with another tokenizer reads other samples, and `compare` says what its log-probs mean."""

    def reprompt(group: Group) -> list[Sample | None]:
        return [replace(sample, index=7 + sample.index) for sample in group.samples]

    def compare(sample: Sample, read: Sample, logprobs: Sequence[float]) -> list[float | None]:
        assert read.index == 7 + sample.index
        return [0.25, 0.25, None] if sample.index == 0 else list(others)

    for reward_coef, others in ((0.0, [-2.0]), (2.0, [None])):
        asked = answering((-1.0, -1.0, -1.0), (-1.0,))
        distillation = Distillation(settings(reward_coef=reward_coef), asked, reprompt, compare=compare)
        (found,), figures = asyncio.run(distillation.advantages([group]))
        first = found.samples[0].advantages.tolist()
        assert first == [0.0, 0.0, reward_coef - 0.25, reward_coef - 0.25, reward_coef]
        assert [sample.index for sample in found.samples] == ([0] if None in others else [0, 1])
        assert figures["distillation/teacher_errors"] == others.count(None)
        assert figures["distillation/reverse_kl"] == pytest.approx(0.25 if None in others else (0.5 - 2.0) / 3)
        assert figures["distillation/unaligned"] == pytest.approx(1 / 3 if None in others else 1 / 4)
        assert "distillation/hinted" not in figures


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({}, "no teacher"),
        ({"teacher": "a/b", "url": ["http://x:1"]}, "two teachers"),
        ({"teacher": "policy"}, "set hint"),
        ({"teacher": "reference"}, "set hint"),
        ({"teacher": "a/b", "model": "c"}, "name on servers"),
        ({"teacher": "a/b", "coef": 0}, "greater than 0"),
        ({"teacher": "a/b", "discount": 1.5}, "less than or equal to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(chosen: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        DistillationConfig(**chosen)


def test_one_hint_may_be_written_without_a_list() -> None:
    assert DistillationConfig(teacher="policy", hint="Answer: {reference}").hint == ("Answer: {reference}",)
