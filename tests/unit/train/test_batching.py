from collections.abc import Callable, Sequence

import pytest
import torch

from dojang.train.batching import MicroBatch, micro_batches
from dojang.types import Sample

CPU = torch.device("cpu")


def split(samples: Sequence[Sample], budget: int) -> list[MicroBatch]:
    return list(micro_batches(samples, budget, CPU))


@pytest.fixture
def samples(make_sample: Callable[..., Sample]) -> list[Sample]:
    """Prompts and answers of mixed lengths; every token is its own so that it can be found again."""
    shapes = [(3, 4), (1, 1), (6, 2), (2, 9), (3, 4), (5, 1)]
    made = []
    start = 1
    for place, (prompt, answer) in enumerate(shapes):
        made.append(
            make_sample(
                prompt=range(start, start + prompt),
                answer=range(start + prompt, start + prompt + answer),
                logprobs=[-(start + prompt + offset) / 100 for offset in range(answer)],
                advantage=float(place),
            )
        )
        start += prompt + answer
    return made


@pytest.mark.parametrize("budget", [11, 16, 24, 1000])
def test_no_micro_batch_exceeds_the_budget(samples: list[Sample], budget: int) -> None:
    batches = split(samples, budget)
    assert all(batch.tokens_BT.numel() <= budget for batch in batches)
    assert sum(len(batch.tokens_BT) for batch in batches) == len(samples)


def test_a_sample_longer_than_the_budget_goes_alone(samples: list[Sample]) -> None:
    batches = split(samples, 1)
    assert [tuple(batch.tokens_BT.shape) for batch in batches] == [(1, 2), (1, 6), (1, 7), (1, 7), (1, 8), (1, 11)]


def test_a_budget_that_fits_exactly_is_used(make_sample: Callable[..., Sample]) -> None:
    assert [len(batch.tokens_BT) for batch in split([make_sample()] * 6, 15)] == [3, 3]  # five tokens each


def test_nothing_gives_nothing() -> None:
    assert split([], 100) == []


@pytest.mark.parametrize("budget", [1, 16, 1000])
def test_every_sample_is_there_once_padded_on_the_right(samples: list[Sample], budget: int) -> None:
    seen = []
    for batch in split(samples, budget):
        for tokens, advantage in zip(batch.tokens_BT.tolist(), batch.advantage_B.tolist(), strict=True):
            sample = samples[int(advantage)]
            length = len(sample.tokens)
            assert tuple(tokens[:length]) == sample.tokens
            assert tokens[length:] == [0] * (len(tokens) - length)
            seen.append(int(advantage))
    assert sorted(seen) == list(range(len(samples)))


@pytest.mark.parametrize("budget", [1, 16, 1000])
def test_mask_and_log_probs_belong_to_the_predicted_token(samples: list[Sample], budget: int) -> None:
    for batch in split(samples, budget):
        target_BT = batch.tokens_BT[:, -batch.kept :]
        assert target_BT.shape == batch.mask_BT.shape == batch.old_logp_BT.shape
        for row, advantage in enumerate(batch.advantage_B.tolist()):
            sample = samples[int(advantage)]
            answer = [token for token, mine in zip(sample.tokens, sample.mask, strict=True) if mine]
            assert target_BT[row][batch.mask_BT[row]].tolist() == answer
            # Each answer's log-probs were made from its tokens.
            assert batch.old_logp_BT[row][batch.mask_BT[row]].tolist() == [-token / 100 for token in answer]
        assert not batch.old_logp_BT[~batch.mask_BT].any()


def test_only_predictions_from_the_earliest_answer_on_are_kept(samples: list[Sample]) -> None:
    [batch] = split(samples, 1000)
    assert batch.kept == 11 - 1  # the longest sample has 11 tokens, the shortest prompt one
    [alone] = split([samples[2]], 1000)
    assert alone.kept == 2
    assert alone.mask_BT.tolist() == [[True, True]]


def test_advantages_and_log_probs_keep_their_precision(make_sample: Callable[..., Sample]) -> None:
    [batch] = split([make_sample(answer=[5], logprobs=[-1 / 3], advantage=1 / 3)], 100)
    assert batch.old_logp_BT.tolist() == [[-1 / 3]]
    assert batch.advantage_B.tolist() == [1 / 3]
