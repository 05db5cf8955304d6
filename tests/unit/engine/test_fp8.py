"""FP8: linear layers are computed in 8 bits, with the log-probs of that policy; the weights that updates write stay."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from eight_bits import in_eight_bits
from run_engine import run
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.errors import ModelError
from dojang.engine import fp8
from dojang.engine.config import EngineParts, TorchEngineConfig
from dojang.engine.fp8 import Fp8Weight, quantized, restored
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions
from tiny_models import MODELS, tiny_model

HOT = Sampling(1.0, 40, seed=3)


def test_every_number_keeps_three_bits_beside_the_largest_of_its_row() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 300, dtype=torch.float64) * torch.logspace(-8, 8, 50, dtype=torch.float64)[:, None]
    found = restored(*quantized(x), torch.float64)
    most = x.abs().amax(-1, keepdim=True)
    assert torch.equal(found.isfinite(), torch.ones_like(x, dtype=torch.bool))
    # E4M3: 3 bits behind the leading one; numbers below 2^-6 of the scale of 448 have steps of 2^-9.
    assert ((found - x).abs() <= torch.maximum(x.abs() / 16, most / 448 * 2**-10) * 1.001).all()
    assert torch.allclose(found.abs().amax(-1, keepdim=True), most, rtol=1e-6)
    assert torch.equal(restored(*quantized(torch.zeros(2, 3)), torch.float32), torch.zeros(2, 3))


def test_a_weight_is_filled_where_it_is() -> None:
    torch.manual_seed(0)
    first, second, x = torch.randn(32, 16), torch.randn(32, 16), torch.randn(5, 16)
    weight = Fp8Weight(first)
    address = weight._bytes_FE.data_ptr()
    weight.fill(second)
    assert weight._bytes_FE.data_ptr() == address
    assert torch.equal(weight.product(x, None), Fp8Weight(second).product(x, None))


def test_a_weight_is_quantized_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight = torch.randn(37, 16)
    whole = Fp8Weight(weight)
    monkeypatch.setattr(fp8, "_QUANTIZED_AT_ONCE", 100)
    parts = Fp8Weight(weight)
    assert torch.equal(parts._bytes_FE.view(torch.uint8), whole._bytes_FE.view(torch.uint8))
    assert torch.equal(parts._scale_F, whole._scale_F)


def logprobs(model: PreTrainedModel, prompt: tuple[int, ...], completion: Completion) -> Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion.tokens])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion.tokens)[:, None])[:, 0]


@pytest.mark.parametrize("family", [each for each in MODELS if not each.startswith("qwen3_moe")])
def test_log_probs_are_those_of_the_quantized_policy(family: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """In double precision, so that nothing else rounds; a number between two others may still go to either."""
    prompts = [tuple(range(5, 5 + size)) for size in (1, 9, 40)]

    def differences(reference: PreTrainedModel, quantization: str) -> Tensor:
        model = tiny_model(family, torch.float64)
        engine = TorchEngine(
            model,
            tokenizer,
            WeightVersions(torch.float64),
            max_num_seqs=8,
            quantization=quantization,  # type: ignore[arg-type]
        )

        async def asked(engine: TorchEngine) -> list[list[Completion]]:
            return await asyncio.gather(*(engine.generate(each, 3, HOT) for each in prompts))

        found = run(engine, asked)
        each = [
            (torch.tensor(sample.logprobs) - logprobs(reference, prompt, sample)).abs()
            for prompt, samples in zip(prompts, found, strict=True)
            for sample in samples
        ]
        return torch.cat(each)

    same = differences(in_eight_bits(tiny_model(family, torch.float64)), "fp8")
    others = differences(tiny_model(family, torch.float64), "fp8")
    assert float(same.median()) < 0.05 * float(others.median())
    assert float(differences(tiny_model(family, torch.float64), "none").max()) < 1e-5


def test_updates_are_quantized_and_weights_stay_whole(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    weights = WeightVersions(torch.float32)
    weights.publish(1, dict(micro_model(torch.float32, seed=7).named_parameters()))

    def engine(seed: int) -> TorchEngine:
        model = micro_model(torch.float32, seed=seed)
        return TorchEngine(model, tokenizer, weights, max_num_seqs=4, quantization="fp8")

    async def updated(engine: TorchEngine) -> list[Completion]:
        await engine.generate((5, 6), 1, HOT)
        await engine.load(1)
        return await engine.generate((5, 6, 7), 4, HOT)

    changed = engine(0)
    found = run(changed, updated)
    expected = run(engine(7), lambda engine: engine.generate((5, 6, 7), 4, HOT))
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    for name, tensor in changed._scheduler.weights.items():
        assert torch.equal(tensor, dict(micro_model(torch.float32, seed=7).named_parameters())[name])


def test_models_of_the_slow_engine_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=300))
    given: dict[str, Any] = dict.fromkeys(EngineParts.__dataclass_fields__)
    parts = EngineParts(**{**given, "source": "gpt2", "model": lambda: model, "tokenizer": tokenizer})
    with pytest.raises(ModelError, match=r"rollout\.engine\.quantization is not supported for gpt2"):
        TorchEngineConfig(quantization="fp8").make(parts)
