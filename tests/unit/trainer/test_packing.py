"""Micro-batches: every sample is in one, once, and is read as if it were alone."""

from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch
from torch import Tensor
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from dojang.core.errors import ModelError
from dojang.trainer.forward import check_packed, token_logprobs
from dojang.trainer.fused_layers import enable_gradient_checkpointing
from dojang.trainer.packed_attention import NO_MASK, PaddedAttention, Segment, use_packed_attention
from dojang.trainer.packing import MicroBatch, micro_batches
from dojang.types import Sample
from error_bounds import EQUAL, assert_equal, in_double
from tiny_models import MODELS, tiny_model

CPU = torch.device("cpu")
FAMILIES = [name for name in MODELS if not name.startswith("llama")]


def split(samples: Sequence[Sample], budget: int) -> list[MicroBatch]:
    return list(micro_batches(samples, budget, CPU))


@pytest.fixture
def samples(make_sample: Callable[..., Sample]) -> list[Sample]:
    """Three prompts, of which one is shared by four and one by two; answers of mixed lengths."""
    random = Random(1)
    prompts = [tuple(range(start, start + size)) for start, size in ((10, 5), (30, 12), (60, 1))]
    shapes = [(0, 4), (1, 9), (0, 1), (2, 3), (0, 12), (1, 2), (0, 4)]
    return [
        make_sample(
            prompt=prompts[which],
            answer=(answer := [random.randrange(5, 200) for _ in range(size)]),
            logprobs=[-token / 100 for token in answer],
            advantage=float(place),
        )
        for place, (which, size) in enumerate(shapes)
    ]


def answer(sample: Sample) -> list[int]:
    return [token for token, chosen in zip(sample.tokens, sample.mask, strict=True) if chosen]


@pytest.mark.parametrize("budget", [21, 30, 1000])
def test_no_micro_batch_exceeds_the_budget(samples: list[Sample], budget: int) -> None:
    batches = split(samples, budget)
    assert all(len(batch.token_N) <= budget for batch in batches)
    assert sum(len(batch.samples) for batch in batches) == len(samples)


def test_samples_longer_than_the_budget_go_alone(samples: list[Sample]) -> None:
    batches = split(samples, 1)
    assert [len(batch.token_N) for batch in batches] == [8, 5, 16, 8, 20, 13, 3]
    assert all(len(batch.samples) == 1 for batch in batches)


def test_a_shared_prompt_is_read_once_and_last_tokens_never(samples: list[Sample]) -> None:
    (batch,) = split(samples, 1000)
    assert len(batch.token_N) == (5 + 3 + 0 + 11 + 3) + (12 + 8 + 1) + (1 + 2)


def test_no_samples_give_no_batches() -> None:
    assert split([], 100) == []


@pytest.mark.parametrize("budget", [1, 30, 1000])
def test_every_sample_is_there_once_with_its_answer_and_numbers(samples: list[Sample], budget: int) -> None:
    seen = []
    for batch in split(samples, budget):
        assert batch.scatter(batch.target_M)[batch.mask_BT].tolist() == batch.target_M.tolist()
        rows = zip(batch.samples, batch.scatter(batch.target_M), batch.mask_BT, strict=True)
        for place, (sample, target_T, mask_T) in enumerate(rows):
            assert target_T[mask_T].tolist() == answer(sample)
            assert batch.behaviour_logp_BT[place][mask_T].tolist() == [-token / 100 for token in answer(sample)]
            assert batch.advantage_BT[place][mask_T].tolist() == [sample.advantage] * sample.response_length
            seen.append(int(sample.advantage))
        assert not batch.behaviour_logp_BT[~batch.mask_BT].any()
    assert sorted(seen) == list(range(len(samples)))


@pytest.mark.parametrize("budget", [1, 30, 1000])
def test_each_token_is_predicted_from_the_one_before_it(samples: list[Sample], budget: int) -> None:
    for batch in split(samples, budget):
        source = iter(
            zip(batch.token_N[batch.source_M].tolist(), batch.position_N[batch.source_M].tolist(), strict=True)
        )
        for sample in batch.samples:
            for place, chosen in enumerate(sample.mask):
                if chosen:
                    assert next(source) == (sample.tokens[place - 1], place - 1)


def test_old_log_probs_are_the_trainers_if_it_has_any(make_sample: Callable[..., Sample]) -> None:
    one = make_sample(answer=[5, 6], logprobs=[-1 / 3, -2.0], advantage=1 / 3)
    (batch,) = split([one], 100)
    assert batch.old_logp_BT.tolist() == batch.behaviour_logp_BT.tolist() == [[-1 / 3, -2.0]]
    assert batch.advantage_BT.tolist() == [[1 / 3, 1 / 3]]
    other = make_sample(answer=[5, 6], logprobs=[-1.0, -2.0], old_logprobs=(0.0, 0.0, 0.0, -1.5, -2.5))
    (batch,) = split([other], 100)
    assert batch.old_logp_BT.tolist() == [[-1.5, -2.5]]
    assert batch.behaviour_logp_BT.tolist() == [[-1.0, -2.0]]


def test_advantages_are_those_of_tokens_if_they_have_any(make_sample: Callable[..., Sample]) -> None:
    one = make_sample(answer=[5, 6], advantage=9.0, advantages=(0.0, 0.0, 0.0, -1 / 3, 2.5))
    talk = make_sample(
        answer=[5, 6, 7], mask=(False,) * 3 + (True, False, True), advantages=(0.0,) * 3 + (1.0, 8.0, 2.0)
    )
    (batch,) = split([one, talk, make_sample(answer=[4], advantage=7.0)], 100)
    assert batch.advantage_BT.tolist() == [[-1 / 3, 2.5], [1.0, 2.0], [7.0, 0.0]]
    streams = [[float(place) for place in range(len(sample.tokens))] for sample in batch.samples]
    assert batch.chosen(streams).tolist() == [[3.0, 4.0], [3.0, 5.0], [3.0, 0.0]]


def test_an_answer_with_words_of_others_in_between(
    make_sample: Callable[..., Sample], micro_model: Callable[..., PreTrainedModel]
) -> None:
    """As after a turn of a conversation: the model reads them, and does not learn from them."""
    full_tensor = make_sample(prompt=(7, 8), answer=(10, 11, 12, 13, 14))
    mask = (False, False, True, False, False, True, True)
    talk = Sample(**{name: getattr(full_tensor, name) for name in Sample.__slots__} | {"mask": mask})
    model = micro_model(torch.float64)
    use_packed_attention(model)
    (batch,) = split([talk, full_tensor], 100)
    logp_BT, _ = token_logprobs(model, batch, temperature=1.0, compute=torch.float64)
    expected_T = alone(model, full_tensor.tokens)
    torch.testing.assert_close(logp_BT[0][:3], expected_T[[1, 4, 5]])
    torch.testing.assert_close(logp_BT[1], expected_T[1:])
    assert batch.mask_BT.tolist() == [[True] * 3 + [False] * 2, [True] * 5]


def alone(model: PreTrainedModel, tokens: Sequence[int], temperature: float = 1.0) -> Tensor:
    """The log-prob of every token but the first, by transformers."""
    logits_TV = model(input_ids=torch.tensor([[*tokens]])).logits[0, :-1] / temperature
    return logits_TV.log_softmax(-1).gather(-1, torch.tensor(tokens)[1:, None]).squeeze(-1)


@pytest.mark.numerical
@pytest.mark.parametrize("budget", [1, 30, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_gradients_are_those_of_each_sample_alone(
    samples: list[Sample], micro_model: Callable[..., PreTrainedModel], budget: int, temperature: float
) -> None:
    packed, plain = in_double(micro_model(torch.float64)), in_double(micro_model(torch.float64))
    use_packed_attention(packed)
    random = torch.Generator().manual_seed(0)
    weights = {id(sample): torch.randn(64, generator=random, dtype=torch.float64) for sample in samples}
    for batch in split(samples, budget):
        logp_BT, entropy_BT = token_logprobs(packed, batch, temperature=temperature, compute=torch.float64)
        assert not logp_BT[~batch.mask_BT].any()
        assert bool((entropy_BT[batch.mask_BT] > 0).all())
        for sample, row_T, mask_T in zip(batch.samples, logp_BT, batch.mask_BT, strict=True):
            mine_T = row_T[mask_T]
            expected_T = alone(plain, sample.tokens, temperature)[-len(mine_T) :]
            torch.testing.assert_close(mine_T, expected_T, rtol=EQUAL, atol=EQUAL)
            (expected_T * weights[id(sample)][: len(mine_T)]).sum().backward()
        total = torch.stack([weights[id(sample)][: logp_BT.shape[1]] for sample in batch.samples])
        (logp_BT * total).sum().backward()
    found, expected = ([each.grad for each in model.parameters()] for model in (packed, plain))
    assert_equal(found, expected)


def test_recomputing_activations_changes_nothing(
    samples: list[Sample], micro_model: Callable[..., PreTrainedModel]
) -> None:
    gradients = []
    for again in (False, True):
        model = micro_model(torch.float64).train()
        use_packed_attention(model)
        if again:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        (batch,) = split(samples, 1000)
        logp_BT, _ = token_logprobs(model, batch, temperature=1.0, compute=torch.float64)
        logp_BT.sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_without_a_plan_the_model_is_as_before(micro_model: Callable[..., PreTrainedModel]) -> None:
    """Padding and its mask included."""
    changed, plain = micro_model(torch.float64), micro_model(torch.float64)
    use_packed_attention(changed)
    ids = torch.tensor([[0, 0, 7, 8, 9], [5, 6, 7, 8, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    for options in ({}, {"attention_mask": mask}):
        mine, theirs = changed(input_ids=ids, **options).logits, plain(input_ids=ids, **options).logits
        torch.testing.assert_close(mine[:, 2:], theirs[:, 2:])


@pytest.mark.numerical
@pytest.mark.parametrize("name", FAMILIES)
def test_packed_log_probs_of_every_family_are_those_of_each_sample_alone(name: str, samples: list[Sample]) -> None:
    """Windows of 6 tokens are shorter than the samples, and begin in the shared prompt."""
    packed, plain = tiny_model(name), tiny_model(name)
    use_packed_attention(packed)
    check_packed(packed)
    (batch,) = split(samples, 1000)
    mine_BT, _ = token_logprobs(packed, batch, temperature=0.8, compute=torch.float32)
    mine_BT.sum().backward()
    for row, sample in enumerate(batch.samples):
        chosen = torch.tensor(sample.mask).nonzero()[:, 0]
        scores = plain(input_ids=torch.tensor(sample.tokens[None])).logits[0, chosen - 1].float() / 0.8
        theirs = scores.log_softmax(-1).gather(-1, torch.tensor(sample.tokens)[chosen, None])[:, 0]
        theirs.sum().backward()
        torch.testing.assert_close(mine_BT[row, : len(chosen)], theirs, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(packed.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3 * float(theirs.grad.abs().max()))


def test_unsupported_attention_arguments_are_refused(make_sample: Callable[..., Sample]) -> None:
    model = GptOssForCausalLM(GptOssConfig(**SIZES, num_key_value_heads=2, head_dim=8, num_local_experts=2))
    use_packed_attention(model)
    (batch,) = split([make_sample()], 100)
    with pytest.raises(ModelError, match="GptOssAttention needs s_aux, which packed attention does not support"):
        token_logprobs(model, batch, temperature=1.0, compute=torch.float32)


SIZES = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    "model",
    [
        lambda: NemotronForCausalLM(NemotronConfig(**SIZES, num_key_value_heads=2, initializer_range=0.5)),
        lambda: Lfm2ForCausalLM(
            Lfm2Config(**SIZES, num_key_value_heads=2, layer_types=["conv", "full_attention"], initializer_range=0.5)
        ),
    ],
    ids=["packing is not passed on", "convolutions"],
)
def test_models_that_are_more_than_packing_knows_are_refused(model: Callable[[], PreTrainedModel]) -> None:
    torch.manual_seed(0)
    made = model().eval()
    use_packed_attention(made)
    with pytest.raises(ModelError, match="gives packed samples other log-probs than each sample alone"):
        check_packed(made)


def test_the_usual_models_are_not_refused(micro_model: Callable[..., PreTrainedModel]) -> None:
    for dtype in (torch.float64, torch.float32):
        model = micro_model(dtype)
        use_packed_attention(model)
        check_packed(model)


def test_recomputing_leaves_dropout_off(make_sample: Callable[..., Sample]) -> None:
    torch.manual_seed(0)
    model = OPTForCausalLM(OPTConfig(**{**SIZES, "ffn_dim": 16}, word_embed_proj_dim=16, dropout=0.5)).eval()
    use_packed_attention(model)
    enable_gradient_checkpointing(model)
    (batch,) = split([make_sample()], 100)
    first, _ = token_logprobs(model, batch, temperature=1.0, compute=torch.float32)
    second, _ = token_logprobs(model, batch, temperature=1.0, compute=torch.float32)
    assert torch.equal(first, second)


def test_a_sample_needs_a_prompt(make_sample: Callable[..., Sample]) -> None:
    with pytest.raises(ValueError, match="its first token has no context"):
        split([make_sample(prompt=())], 100)


def test_attention_by_hand() -> None:
    """Two segments after the same prefix of one token: each sees the prefix and itself."""
    plan = PaddedAttention([Segment(0, 1, None), Segment(1, 1, 0), Segment(2, 2, 0)], CPU)
    q_NHD = torch.zeros(4, 1, 1, dtype=torch.float64)  # so that all that is seen counts alike
    v_NHD = torch.tensor([1.0, 10.0, 100.0, 1000.0], dtype=torch.float64)[:, None, None]
    seen_N = plan.attend(q_NHD, q_NHD, v_NHD, 1.0).flatten()
    torch.testing.assert_close(seen_N, torch.tensor([1, 11 / 2, 101 / 2, 1101 / 3], dtype=torch.float64))
    assert NO_MASK.dim() == 4
