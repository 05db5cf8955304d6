"""The decoder gives transformers' numbers."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dojang.core.errors import ModelError
from dojang.engine.attention import Piece, over_prefixes, over_slots
from dojang.engine.decoder import Decoder, Shape
from dojang.engine.kv_cache import Prefix, Slots
from error_bounds import UNIT, rms, rounding_noise

SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MAKERS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama with stretched rotations": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={**LLAMA3, "original_max_position_embeddings": 64})
    ),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)),
}
TOLERANCE = 1e-12
"""Of the largest score, in double precision: a few roundings."""


def made(name: str, dtype: torch.dtype, seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MAKERS[name]()
        for parameter in model.parameters():  # biases and norms begin as nothing and one, and would hide mistakes
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, 1.0, 0.2)
    return model.to(dtype).eval()


def read(decoder: Decoder, prompts: list[tuple[int, ...]], chunk: int) -> tuple[list[Prefix], list[Tensor]]:
    """The prompts read in pieces; the scores after every token."""
    prefixes = [Prefix(prompt) for prompt in prompts]
    scores: list[list[Tensor]] = [[] for _ in prompts]
    for start in range(0, max(map(len, prompts)), chunk):
        going = [at for at, prompt in enumerate(prompts) if start < len(prompt)]
        pieces = [Piece(prefixes[at], start, min(start + chunk, len(prompts[at]))) for at in going]
        tokens = [token for piece in pieces for token in piece.prefix.tokens[piece.start : piece.end]]
        places = [place for piece in pieces for place in range(piece.start, piece.end)]
        x_NE = decoder.forward(torch.tensor(tokens), torch.tensor(places), over_prefixes(pieces, decoder))
        parts = decoder.logits(x_NE).split([piece.end - piece.start for piece in pieces])
        for at, part in zip(going, parts, strict=True):
            scores[at].append(part)
    return prefixes, [torch.cat(each) for each in scores]


PROMPTS = [tuple(range(7, 7 + length)) for length in (40, 3, 17)]


@torch.no_grad()
def scored(decoder: Decoder) -> list[Tensor]:
    """The scores after every token of the prompts: the first half read in pieces, the second token by token."""
    known = [prompt[: len(prompt) // 2 + 1] for prompt in PROMPTS]
    prefixes, scores = read(decoder, known, chunk=8)
    slots = Slots(decoder.shape, decoder.dtype, decoder.device, most=8, budget=1 << 30)
    for at, prefix in enumerate(prefixes):
        assert slots.make_room(len(PROMPTS[at]), at)
        slots.fill({prefix: [at]})
    decoded: list[list[Tensor]] = [[each] for each in scores]
    length = [len(each) for each in known]
    while any(each < len(prompt) for each, prompt in zip(length, PROMPTS, strict=True)):
        # Those that have ended go on with their last token: their neighbours must not notice.
        token_N = torch.tensor(
            [prompt[min(each, len(prompt) - 1)] for each, prompt in zip(length, PROMPTS, strict=True)]
        )
        position_N = torch.tensor([min(each, len(prompt) - 1) for each, prompt in zip(length, PROMPTS, strict=True)])
        attend = over_slots(slots, position_N.tolist(), decoder.shape)
        logits_NV = decoder.logits(decoder.forward(token_N, position_N, attend))
        for at, prompt in enumerate(PROMPTS):
            if length[at] < len(prompt):
                decoded[at].append(logits_NV[at : at + 1])
                length[at] += 1
    return [torch.cat(each) for each in decoded]


@torch.no_grad()
def scored_by_transformers(model: PreTrainedModel) -> list[Tensor]:
    return [model(input_ids=torch.tensor([prompt])).logits[0] for prompt in PROMPTS]


@pytest.mark.numerical
@pytest.mark.parametrize("name", MAKERS)
def test_reading_and_decoding_give_the_scores_of_transformers(name: str) -> None:
    model = made(name, torch.float64)
    for mine, theirs in zip(scored(Decoder(model)), scored_by_transformers(model), strict=True):
        assert mine.sub(theirs).abs().max() < TOLERANCE * theirs.abs().max()


@cache
def noise(name: str, dtype: torch.dtype) -> float:
    return rounding_noise(
        lambda: made(name, dtype).double(), lambda model: torch.cat(scored_by_transformers(model)), UNIT[dtype]
    )


@pytest.mark.numerical
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_in_single_precision_it_is_as_exact_as_transformers(
    name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors of both are within what float32 explains, in whatever order a processor adds."""
    if not native:
        monkeypatch.setattr("dojang.engine.decoder.between_for", lambda _: None)
    model = made(name, torch.float32)
    exact = torch.cat(scored_by_transformers(made(name, torch.float64)))
    mine, theirs = torch.cat(scored(Decoder(model))), torch.cat(scored_by_transformers(model))
    bound = noise(name, torch.float32)
    assert rms(theirs.sub(exact)) < bound
    assert rms(mine.sub(exact)) < bound


@pytest.mark.numerical
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # where a processor knows no bfloat16
@pytest.mark.parametrize("name", MAKERS)
def test_in_half_precision_the_scores_are_as_near_the_truth_as_those_of_transformers(name: str) -> None:
    """Numbers are rounded to bfloat16 and sums to float32, whether or not a processor knows bfloat16."""
    model = made(name, torch.bfloat16)
    mine, theirs = torch.cat(scored(Decoder(model))), torch.cat(scored_by_transformers(model))
    exact, bound = torch.cat(scored_by_transformers(model.double())), noise(name, torch.bfloat16)
    assert rms(theirs.sub(exact)) < bound
    assert rms(mine.sub(exact)) < bound


@pytest.mark.parametrize("name", MAKERS)
@torch.no_grad()
def test_weights_taken_over_are_those_of_the_other_model(name: str) -> None:
    decoder, other = Decoder(made(name, torch.float64)), made(name, torch.float64, seed=1)
    with torch.no_grad():
        for name, weight in decoder.weights.items():
            weight.copy_(other.get_parameter(name))
    decoder.refresh()
    _, scores = read(decoder, PROMPTS, chunk=64)
    for prompt, mine in zip(PROMPTS, scores, strict=True):
        assert mine.sub(other(input_ids=torch.tensor([prompt])).logits[0]).abs().max() < 1e-10


@pytest.mark.parametrize("name", MAKERS)
def test_a_copy_in_another_precision_is_that_of_a_model_in_it(name: str) -> None:
    """But for cosines and sines, which a model makes in single precision whatever its own."""
    copy, whole = Decoder(made(name, torch.float64), torch.float32), Decoder(made(name, torch.float64).float())
    assert copy.dtype is torch.float32
    assert all(torch.equal(weight, whole.weights[name]) for name, weight in copy.weights.items())
    for one, other in zip(scored(copy), scored(whole), strict=True):
        assert one.dtype is torch.float32
        torch.testing.assert_close(one, other)


@pytest.mark.numerical
@torch.no_grad()
def test_rows_that_only_fill_up_change_nothing() -> None:
    plain, even = Decoder(made("qwen2", torch.float64)), Decoder(made("qwen2", torch.float64))
    even.grain = 16
    for one, other in zip(scored(even), scored(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    tokens, places = torch.arange(7, 24), torch.arange(17)
    for wanted in ([16], [3, 16], []):
        found = []
        for decoder in (plain, even):
            piece = Piece(Prefix(tuple(tokens.tolist())), 0, 17)
            attend = over_prefixes([piece], decoder)
            found.append(decoder.forward(tokens, places, attend, torch.tensor(wanted, dtype=torch.long)))
        assert len(found[0]) == len(wanted)
        torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_the_decoder_has_weights_of_its_own() -> None:
    model = made("llama", torch.float64)
    decoder = Decoder(model)
    _, before = read(decoder, PROMPTS, chunk=64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    _, after = read(decoder, PROMPTS, chunk=64)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_other_families_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="mistral"):
        Shape.of(MistralConfig())


def test_slots_keep_to_their_budget() -> None:
    shape = Decoder(made("llama", torch.float32)).shape
    token = 2 * shape.layers * shape.kv_heads * shape.head * 4
    slots = Slots(shape, torch.float32, torch.device("cpu"), most=100, budget=64 * 10 * token)
    assert slots.make_room(60, 0)
    assert (slots.length, slots.capacity) == (64, 10)
    assert not slots.make_room(60, 10)
    assert not slots.make_room(128, 5)  # only five of that length fit
    assert slots.make_room(128, 4)
    assert (slots.length, slots.capacity) == (128, 5)
    with pytest.raises(ModelError, match="raise rollout"):
        slots.make_room(641, 0)
    slots.release()
    assert (slots.length, slots.keys_LSKTD.numel()) == (0, 0)


@pytest.mark.parametrize("name", ["llama", "llama tied"])
def test_a_float32_head_does_not_round_logits(name: str) -> None:
    model = made(name, torch.float32)
    plain, wide = (Decoder(model, torch.bfloat16, float32_head=each) for each in (False, True))
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    normed = wide._arithmetic.normed_sum(x.clone(), None, wide._norm)
    exact = normed.double() @ wide._head.weight.double().T
    assert (wide.logits(x.clone()) - exact).abs().max() < 1e-4 < 1e-3 < (plain.logits(x.clone()) - exact).abs().mean()
    assert wide.logits(x.clone()).dtype is torch.float32
    for decoder in (plain, wide):  # new weights are used at once
        decoder.weights["model.norm.weight"].zero_()
        decoder.refresh()
        assert not decoder.logits(x.clone()).any()
    wide._head.weight.fill_(1.0)
    wide.weights["model.norm.weight"].fill_(1.0)
    wide.refresh()
    assert wide.logits(x.clone()).any()
    assert wide.logits(x.clone()).std(-1).max() == 0
