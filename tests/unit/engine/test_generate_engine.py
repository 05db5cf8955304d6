"""The engine on transformers' generate samples what the torch engine samples, for any causal language model."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dojang.core.errors import ModelError, OutOfMemory
from dojang.engine.config import EngineParts, TorchEngineConfig
from dojang.engine.generate_engine import GenerateEngine
from dojang.engine.torch_engine import TorchEngine
from dojang.protocols import RolloutEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions

WARM = Sampling(temperature=0.8, max_tokens=9, seed=3)
PROMPTS = [tuple(range(10, 10 + length)) for length in (9, 1, 17, 4)]
Ask = tuple[Sequence[int], int, Sampling]


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=2, eos_token_id=1, bos_token_id=1)
    return GPT2LMHeadModel(config).eval()


def mamba() -> PreTrainedModel:
    torch.manual_seed(0)
    return MambaForCausalLM(MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=2, state_size=4)).eval()


def run(engine: RolloutEngine, asks: Sequence[Ask]) -> list[list[Completion]]:
    async def together() -> list[list[Completion]]:
        try:
            return await asyncio.gather(*(engine.generate(*ask) for ask in asks))
        finally:
            await engine.close()

    return asyncio.run(together())


def test_out_of_memory_for_one_sample_is_an_error(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = GenerateEngine(gpt2(), tokenizer, WeightVersions(torch.float32), max_num_seqs=4)

    def scarce(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    engine._model.forward = scarce  # type: ignore[method-assign]
    with pytest.raises(OutOfMemory, match=r"for sampling: lower rollout\.engine\.max_num_seqs"):
        run(engine, [(PROMPTS[0], 3, WARM)])


def test_tokens_and_log_probs_are_those_of_the_torch_engine(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model, weights = micro_model(), WeightVersions(torch.float32)
    samplings = [
        WARM,
        replace(WARM, top_p=0.7, top_k=20),
        replace(WARM, temperature=0.0, bias=((40, 2.0),)),
        replace(WARM, min_p=0.05, stop=("e",), stop_tokens=(44, 45), max_tokens=30),
    ]
    asks = [
        (prompt, 3, replace(each, prompt_index=at))
        for at, (prompt, each) in enumerate(zip(PROMPTS, samplings, strict=True))
    ]
    model.generation_config.repetition_penalty = 5.0  # a checkpoint's defaults do not apply
    mine = run(GenerateEngine(model, tokenizer, weights, max_num_seqs=5), asks)
    theirs = run(TorchEngine(model, tokenizer, weights, max_num_seqs=64), asks)
    for some, others in zip(mine, theirs, strict=True):
        for one, other in zip(some, others, strict=True):
            assert (one.tokens, one.text, one.finish, one.version) == (
                other.tokens,
                other.text,
                other.finish,
                other.version,
            )
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert one.plain_logprobs == pytest.approx(other.plain_logprobs, abs=1e-4)


@pytest.mark.parametrize("make", [gpt2, mamba])
def test_log_probs_of_other_architectures_are_those_of_a_forward_pass(
    make: Callable[[], PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model = make()
    engine = GenerateEngine(model, tokenizer, WeightVersions(torch.float32), max_num_seqs=16)
    asks = [(prompt, 2, replace(WARM, prompt_index=at)) for at, prompt in enumerate(PROMPTS)]
    for (prompt, _, _), completions in zip(asks, run(engine, asks), strict=True):
        for each in completions:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *each.tokens]])).logits[0, len(prompt) - 1 : -1]
            expected = (logits / 0.8).log_softmax(-1).gather(-1, torch.tensor(each.tokens)[:, None])[:, 0]
            assert each.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_without_left_padding_prompts_of_one_length_share_a_batch(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = GenerateEngine(gpt2(), tokenizer, WeightVersions(torch.float32), max_num_seqs=16)
    monkeypatch.setattr(engine, "_takes_padding", lambda: False)
    batches = []
    monkeypatch.setattr(engine, "_run", lambda batch, run=engine._run: (batches.append(batch), run(batch)))
    run(engine, [(prompt, 2, replace(WARM, prompt_index=at)) for at, prompt in enumerate([*PROMPTS, *PROMPTS])])
    assert [len(batch) for batch in batches] == [4, 4, 4, 4]
    assert all(len({len(each.request.prompt) for each in batch}) == 1 for batch in batches)


def test_a_weight_update_changes_the_policy_and_not_the_callers_model(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model, weights = micro_model(), WeightVersions(torch.float32)
    weights.publish(6, {"model.norm.weight": torch.ones(3)})
    engine = GenerateEngine(model, tokenizer, weights, max_num_seqs=4)

    async def update() -> Completion:
        with pytest.raises(ValueError, match="shape"):
            await engine.load(6)
        weights.publish(7, dict(micro_model(seed=7).named_parameters()))
        await engine.load(7)
        [completion] = await engine.generate(PROMPTS[0], 1, WARM)
        await engine.close()
        return completion

    found = asyncio.run(update())
    [[expected]] = run(TorchEngine(micro_model(seed=7), tokenizer, weights, max_num_seqs=4), [(PROMPTS[0], 1, WARM)])
    assert (found.tokens, found.version) == (expected.tokens, 7)
    assert torch.equal(model.model.embed_tokens.weight, micro_model().model.embed_tokens.weight)


def test_a_cancelled_request_and_close_end_the_batch(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    engine = GenerateEngine(micro_model(), tokenizer, WeightVersions(torch.float32), max_num_seqs=4)
    endless = replace(WARM, max_tokens=400, temperature=5.0, bias=((tokenizer.eos_token_id, -1e4),))

    async def scenario() -> None:
        first = asyncio.create_task(engine.generate(PROMPTS[0], 2, endless))
        await asyncio.sleep(0.05)
        first.cancel()
        assert len(await asyncio.wait_for(engine.generate(PROMPTS[1], 1, WARM), 5)) == 1
        second = asyncio.create_task(engine.generate(PROMPTS[0], 2, endless))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(engine.close(), 5)
        with pytest.raises(asyncio.CancelledError):
            await second
        with pytest.raises(RuntimeError, match="closed"):
            await engine.generate(PROMPTS[0], 1, WARM)

    asyncio.run(scenario())


def parts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> EngineParts:
    weights = WeightVersions(torch.float32)
    return EngineParts(
        "some/model",
        lambda: model,
        tokenizer,
        weights,
        torch.float32,
        None,
        float32_head=False,
        alone=False,
        reserved=None,
        threads=None,
    )


def test_the_engine_is_chosen_by_architecture_with_a_warning(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    assert isinstance(TorchEngineConfig().make(parts(micro_model(), tokenizer)), TorchEngine)
    with pytest.warns(RuntimeWarning, match=r"some/model: .*'gpt2'.*SLOW.*Llama, Qwen2"):
        assert isinstance(TorchEngineConfig().make(parts(gpt2(), tokenizer)), GenerateEngine)
    bert = BertLMHeadModel(BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    bert.config.architectures = ["BertForMaskedLM"]
    with pytest.raises(ModelError, match="BertForMaskedLM"):
        TorchEngineConfig().make(parts(bert, tokenizer))
