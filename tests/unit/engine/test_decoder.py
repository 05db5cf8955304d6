"""The decoder's logits match transformers, for every family."""

from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, LlamaConfig, PreTrainedModel

from dojang.core.errors import ModelError
from dojang.engine.architectures import FAMILIES
from dojang.engine.attention import PrefillChunk, decode_attention, prefill_attention
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import KvCache, Prefix
from dojang.engine.kv_cache_size import pages_for
from dojang.engine.shape import Shape
from error_bounds import UNIT, rms, rounding_noise
from tiny_models import MODELS as MAKERS
from tiny_models import tiny_model as made

TOLERANCE = 1e-12
"""Tolerance relative to the largest logit, in double precision: a few roundings."""
SINGLE = {"gemma2": 1e-5, "qwen3_moe": 1e-7, "qwen3_moe without normalised weights": 1e-7}
"""The same where transformers computes a softmax in float32."""


def made_cache(decoder: Decoder) -> KvCache:
    cache = KvCache(decoder.shape, decoder.dtype, decoder.device, max_num_seqs=8, budget=1 << 30)
    cache.reserve(decoder.shape.context)
    return cache


def read(
    decoder: Decoder, cache: KvCache, prompts: list[tuple[int, ...]], chunk: int
) -> tuple[list[Prefix], list[Tensor]]:
    """The prompts read in pieces; the scores after every token."""
    prefixes = [Prefix(prompt) for prompt in prompts]
    for prefix in reversed(prefixes):
        prefix.pages = cache.take(pages_for(len(prefix.tokens)))
    scores: list[list[Tensor]] = [[] for _ in prompts]
    for start in range(0, max(map(len, prompts)), chunk):
        going = [at for at, prompt in enumerate(prompts) if start < len(prompt)]
        pieces = [PrefillChunk(prefixes[at], start, min(start + chunk, len(prompts[at]))) for at in going]
        tokens = [token for piece in pieces for token in piece.prefix.tokens[piece.start : piece.end]]
        places = [place for piece in pieces for place in range(piece.start, piece.end)]
        x_NE = decoder.forward(torch.tensor(tokens), torch.tensor(places), prefill_attention(pieces, cache, decoder))
        parts = decoder.logits(x_NE).split([piece.end - piece.start for piece in pieces])
        for at, part in zip(going, parts, strict=True):
            scores[at].append(part)
    return prefixes, [torch.cat(each) for each in scores]


PROMPTS = [tuple(range(7, 7 + length)) for length in (40, 3, 17)]


@torch.no_grad()
def scored(decoder: Decoder) -> list[Tensor]:
    """The scores after every token of the prompts: the first half read in pieces, the second token by token."""
    known = [prompt[: len(prompt) // 2 + 1] for prompt in PROMPTS]
    cache = made_cache(decoder)
    prefixes, scores = read(decoder, cache, known, chunk=12)
    for at, prefix in enumerate(prefixes):
        cache.enter(prefix.pages)
        assert cache.extend([at], [len(PROMPTS[at])])
    decoded: list[list[Tensor]] = [[each] for each in scores]
    length = [len(each) for each in known]
    while any(each < len(prompt) for each, prompt in zip(length, PROMPTS, strict=True)):
        # Those that have ended go on with their last token: their neighbours must not notice.
        token_N = torch.tensor(
            [prompt[min(each, len(prompt) - 1)] for each, prompt in zip(length, PROMPTS, strict=True)]
        )
        position_N = torch.tensor([min(each, len(prompt) - 1) for each, prompt in zip(length, PROMPTS, strict=True)])
        attend = decode_attention(cache, position_N.tolist(), decoder.shape, range(len(position_N)))
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
def test_prefill_and_decode_logits_match_transformers(name: str) -> None:
    model = made(name, torch.float64)
    for mine, theirs in zip(scored(Decoder(model)), scored_by_transformers(model), strict=True):
        assert mine.sub(theirs).abs().max() < SINGLE.get(name, TOLERANCE) * theirs.abs().max()


@cache
def noise(name: str, dtype: torch.dtype) -> float:
    return rounding_noise(
        lambda: made(name, dtype).double(), lambda model: torch.cat(scored_by_transformers(model)), UNIT[dtype]
    )


@pytest.mark.numerical
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_float32_is_as_accurate_as_transformers(name: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors of both are within what float32 explains, in whatever order a processor adds."""
    if not native:
        monkeypatch.setattr("dojang.engine.decoder.compiled_elementwise_for", lambda _: None)
    model = made(name, torch.float32)
    exact = torch.cat(scored_by_transformers(made(name, torch.float64)))
    mine, theirs = torch.cat(scored(Decoder(model))), torch.cat(scored_by_transformers(model))
    bound = noise(name, torch.float32)
    assert rms(theirs.sub(exact)) < bound
    assert rms(mine.sub(exact)) < bound


@pytest.mark.numerical
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # where a processor knows no bfloat16
@pytest.mark.parametrize("name", MAKERS)
def test_bfloat16_logits_are_as_accurate_as_transformers(name: str) -> None:
    """Numbers are rounded to bfloat16 and sums to float32, whether or not a processor knows bfloat16."""
    model = made(name, torch.bfloat16)
    mine, theirs = torch.cat(scored(Decoder(model))), torch.cat(scored_by_transformers(model))
    exact, bound = torch.cat(scored_by_transformers(model.double())), noise(name, torch.bfloat16)
    assert rms(theirs.sub(exact)) < bound
    assert rms(mine.sub(exact)) < bound


@pytest.mark.parametrize("name", MAKERS)
@torch.no_grad()
def test_weight_update_gives_the_logits_of_the_other_model(name: str) -> None:
    decoder, other = Decoder(made(name, torch.float64)), made(name, torch.float64, seed=1)
    for key, weight in decoder.weights.items():
        weight.copy_(other.get_parameter(key))
    decoder.refresh()
    _, scores = read(decoder, made_cache(decoder), PROMPTS, chunk=64)
    for prompt, mine in zip(PROMPTS, scores, strict=True):
        theirs = other(input_ids=torch.tensor([prompt])).logits[0]
        assert mine.sub(theirs).abs().max() < SINGLE.get(name, TOLERANCE) * theirs.abs().max()


@pytest.mark.parametrize("name", MAKERS)
def test_copy_in_another_dtype_matches_a_model_in_that_dtype(name: str) -> None:
    """But for cosines and sines, which a model makes in single precision whatever its own."""
    copy, whole = Decoder(made(name, torch.float64), torch.float32), Decoder(made(name, torch.float64).float())
    assert copy.dtype is torch.float32
    assert all(torch.equal(weight, whole.weights[name]) for name, weight in copy.weights.items())
    for one, other in zip(scored(copy), scored(whole), strict=True):
        assert one.dtype is torch.float32
        torch.testing.assert_close(one, other)


@pytest.mark.numerical
@torch.no_grad()
def test_padding_rows_do_not_change_results() -> None:
    plain, even = Decoder(made("qwen2", torch.float64)), Decoder(made("qwen2", torch.float64))
    even.row_multiple = 16
    for one, other in zip(scored(even), scored(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    tokens, places = torch.arange(7, 24), torch.arange(17)
    for wanted in ([16], [3, 16], []):
        found = []
        for decoder in (plain, even):
            cache, prefix = made_cache(decoder), Prefix(tuple(tokens.tolist()))
            prefix.pages = cache.take(pages_for(17))
            attend = prefill_attention([PrefillChunk(prefix, 0, 17)], cache, decoder)
            found.append(decoder.forward(tokens, places, attend, torch.tensor(wanted, dtype=torch.long)))
        assert len(found[0]) == len(wanted)
        torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_decoder_copies_the_weights() -> None:
    model = made("llama", torch.float64)
    decoder = Decoder(model)
    _, before = read(decoder, made_cache(decoder), PROMPTS, chunk=64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    _, after = read(decoder, made_cache(decoder), PROMPTS, chunk=64)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "config", [GPT2Config(), LlamaConfig(hidden_act="quick_gelu"), LlamaConfig(architectures=["OtherForCausalLM"])]
)
def test_unsupported_models_are_rejected(config: object) -> None:
    with pytest.raises(ModelError, match="the torch engine does not"):
        Shape.of(config)


def test_weights_that_are_not_computed_with_are_rejected() -> None:
    model = made("llama", torch.float32)
    model.model.layers[1].self_attn.sinks = torch.nn.Parameter(torch.zeros(8))
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.sinks"):
        Decoder(model)


@pytest.mark.parametrize("name", ["llama", "llama tied"])
def test_a_float32_head_does_not_round_logits(name: str) -> None:
    model = made(name, torch.float32)
    plain, wide = (Decoder(model, torch.bfloat16, float32_head=each) for each in (False, True))
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    normed = wide._elementwise.add_rms_norm(x.clone(), None, wide._norm)
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


@pytest.mark.parametrize("name", MAKERS)
def test_gpu_kernels_step_aside_for_families_they_do_not_compute(name: str) -> None:
    model = made(name, torch.float32)
    known = name.startswith("llama") or name in ("qwen2", "qwen3", "mistral without windows")
    assert Decoder(model)._fits_triton(FAMILIES[model.config.model_type]) == known
