"""The engine on a GPU: CUDA graphs, Triton kernels, several decode steps between two collections."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions
from tiny_models import tiny_model

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

SIZES = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
MAKERS: dict[str, Callable[[int], PreTrainedModel]] = {
    "llama": lambda words: LlamaForCausalLM(LlamaConfig(vocab_size=words, **SIZES, tie_word_embeddings=True)),
    "qwen2": lambda words: Qwen2ForCausalLM(Qwen2Config(vocab_size=words, **SIZES)),
    "qwen3": lambda words: Qwen3ForCausalLM(Qwen3Config(vocab_size=words, **SIZES, head_dim=64)),
    "odd heads": lambda words: LlamaForCausalLM(LlamaConfig(vocab_size=words, **SIZES, head_dim=24)),
}
FAMILIES = ["mistral", "gemma2", "gemma3", "phi3", "phi3 with partial rotation", "olmo2", "smollm3", "qwen3_moe"]
WARM = Sampling(temperature=1.0, max_tokens=40, seed=3)
BOUND = {torch.float32: (2e-4, 2e-5), torch.bfloat16: (0.6, 0.05)}
"""Largest and mean difference of log-probs from transformers: the weights are large, so bfloat16 is coarse."""


def made(family: str, words: int, dtype: torch.dtype, seed: int = 0) -> PreTrainedModel:
    if family in FAMILIES:
        return tiny_model(family, dtype, seed).to("cuda")
    torch.manual_seed(seed)
    model = MAKERS[family](words)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    return model.to("cuda", dtype).eval()


def run(engine: TorchEngine, asks: list[tuple[tuple[int, ...], int, Sampling]]) -> list[list[Completion]]:
    async def whole() -> list[list[Completion]]:
        try:
            return await asyncio.gather(*(engine.generate(*ask) for ask in asks))
        finally:
            await engine.close()

    return asyncio.run(whole())


def asks(words: int, count: int, sampling: Sampling) -> list[tuple[tuple[int, ...], int, Sampling]]:
    random = Random(count)
    return [
        (
            tuple(random.randrange(5, words) for _ in range(random.randint(1, 90))),
            random.choice([1, 1, 3, 8]),
            replace(sampling, prompt_index=at, max_tokens=random.randint(1, sampling.max_tokens)),
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("family", [*MAKERS, *FAMILIES])
@pytest.mark.parametrize("sampling", [WARM, replace(WARM, temperature=0.6), replace(WARM, temperature=0.0)])
def test_logprobs_match_a_forward_pass(
    tokenizer: PreTrainedTokenizerBase, family: str, dtype: torch.dtype, sampling: Sampling
) -> None:
    words = len(tokenizer)
    model = made(family, words, dtype)
    work = asks(words, 12, sampling)
    engine = TorchEngine(model, tokenizer, WeightVersions(dtype), max_num_seqs=16, prefill_chunk_tokens=64)
    differences = []
    for (prompt, n, _), completions in zip(work, run(engine, work), strict=True):
        assert len(completions) == n
        for each in completions:
            ids = torch.tensor([prompt + each.tokens], device="cuda")
            with torch.no_grad():
                scores = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
            chosen = torch.tensor(each.tokens, device="cuda")[:, None]
            heat = sampling.temperature or 1.0
            for found, wanted in (
                (each.logprobs, (scores / heat).log_softmax(-1)),
                (each.plain_logprobs, scores.log_softmax(-1)),
            ):
                expected = wanted.gather(-1, chosen)[:, 0].cpu()
                differences.append((torch.tensor(found) - expected).abs() * min(heat, 1.0))
    most, mean = BOUND[dtype]
    found_N = torch.cat(differences)
    if (family, dtype) == ("qwen3_moe", torch.bfloat16):  # rounding chooses another expert for some tokens
        assert float(found_N.median()) < mean
    else:
        assert float(found_N.max()) < most
        assert float(found_N.mean()) < mean


def test_samples_do_not_depend_on_other_sequences(tokenizer: PreTrainedTokenizerBase) -> None:
    words = len(tokenizer)
    model = made("llama", words, torch.float32)

    def engine(max_num_seqs: int) -> TorchEngine:
        return TorchEngine(model, tokenizer, WeightVersions(torch.float32), max_num_seqs=max_num_seqs)

    work = asks(words, 30, replace(WARM, stop=("e",)))
    together = run(engine(24), work)
    few = run(engine(3), work)
    assert [[each.tokens for each in group] for group in together] == [[each.tokens for each in group] for group in few]
    for ask, group in list(zip(work, together, strict=True))[::7]:
        [alone] = run(engine(24), [ask])
        assert [each.tokens for each in alone] == [each.tokens for each in group]
        assert [each.finish for each in alone] == [each.finish for each in group]


def test_frequencies_are_those_of_the_model(tokenizer: PreTrainedTokenizerBase) -> None:
    words = len(tokenizer)
    model = made("llama", words, torch.float32)
    count = 20_000
    engine = TorchEngine(model, tokenizer, WeightVersions(torch.float32), max_num_seqs=1024)
    prompt = (7, 8, 9)
    # Two tokens: the first is drawn from the prompt's scores, the second by a recorded step.
    [drawn] = run(engine, [(prompt, count, Sampling(0.8, 2, seed=1))])
    first = max({each.tokens[0] for each in drawn}, key=[each.tokens[0] for each in drawn].count)
    then = [each.tokens[1] for each in drawn if each.tokens[0] == first and len(each.tokens) > 1]
    with torch.no_grad():
        scores = model(input_ids=torch.tensor([[*prompt, first]], device="cuda")).logits[0].float() / 0.8
    for tokens, prob_V in (([each.tokens[0] for each in drawn], scores[-2]), (then, scores[-1])):
        wanted = prob_V.softmax(-1).cpu()
        found = torch.bincount(torch.tensor(tokens), minlength=words) / len(tokens)
        spread = (wanted * (1 - wanted) / len(tokens)).sqrt() * 5 + 2 / len(tokens)
        assert bool(((found - wanted).abs() <= spread).all())


def test_truncation_and_bias_beside_plain_requests(tokenizer: PreTrainedTokenizerBase) -> None:
    words = len(tokenizer)
    model = made("llama", words, torch.float32)
    engine = TorchEngine(model, tokenizer, WeightVersions(torch.float32), max_num_seqs=16)
    work = [
        ((7, 8), 4, replace(WARM, top_k=1)),
        ((7, 8), 4, replace(WARM, bias=((33, 1000.0),), max_tokens=9)),
        ((9,), 4, WARM),
    ]
    limited, biased, _ = run(engine, work)
    [greedy] = run(
        TorchEngine(model, tokenizer, WeightVersions(torch.float32), max_num_seqs=4),
        [((7, 8), 1, replace(WARM, temperature=0.0))],
    )
    assert {each.tokens for each in limited} == {greedy[0].tokens}
    assert {each.tokens for each in biased} == {(33,) * 9}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_conversations_with_prefix_caching(tokenizer: PreTrainedTokenizerBase, family: str) -> None:
    words = len(tokenizer)
    model, random = made(family, words, torch.float32), Random(0)
    opening = [tuple(random.randrange(5, words) for _ in range(random.randint(4, 60))) for _ in range(24)]

    async def talk(engine: TorchEngine, at: int) -> list[Completion]:
        tokens, replies = opening[at], list[Completion]()
        for turn in range(3):
            sampling = replace(WARM, seed=turn, prompt_index=at, conversation=f"{at}")
            replies += await engine.generate(tokens, 1, sampling)
            tokens += replies[-1].tokens + opening[at - 1][:3]
        return replies

    async def whole(prefix_cache_gb: float) -> list[list[Completion]]:
        weights = WeightVersions(torch.float32)
        engine = TorchEngine(model, tokenizer, weights, max_num_seqs=16, prefix_cache_gb=prefix_cache_gb)
        found = await asyncio.gather(*(talk(engine, at) for at in range(len(opening))))
        await engine.close()
        return found

    for plain, cached in zip(asyncio.run(whole(0.0)), asyncio.run(whole(0.5)), strict=True):
        assert [each.tokens for each in plain] == [each.tokens for each in cached]
        for one, other in zip(plain, cached, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=BOUND[torch.float32][0])


def test_weight_update_while_decoding(tokenizer: PreTrainedTokenizerBase) -> None:
    words = len(tokenizer)
    weights = WeightVersions(torch.float32)
    weights.publish(1, dict(made("llama", words, torch.float32, seed=1).named_parameters()))
    engine = TorchEngine(made("llama", words, torch.float32), tokenizer, weights, max_num_seqs=8, kv_cache_gb=0.5)
    hot = Sampling(temperature=5.0, max_tokens=400, seed=2)

    async def play() -> tuple[list[Completion], list[Completion]]:
        asked = asyncio.create_task(engine.generate((7, 8, 9), 8, hot))
        while not (await engine.state()).running:
            await asyncio.sleep(0.001)
        await engine.load(1)
        first = await asked
        second = await engine.generate((7, 8, 9), 2, WARM)
        await engine.close()
        return first, second

    first, second = asyncio.run(play())
    assert {span.version for each in first for span in each.spans} <= {0, 1}
    for each in first:
        assert each.spans[-1].end == len(each.tokens)
    [fresh] = run(
        TorchEngine(
            made("llama", words, torch.float32, seed=1), tokenizer, WeightVersions(torch.float32), max_num_seqs=8
        ),
        [((7, 8, 9), 2, WARM)],
    )
    assert [each.tokens for each in second] == [each.tokens for each in fresh]


def test_full_context_finishes_one_sequence_only(tokenizer: PreTrainedTokenizerBase) -> None:
    words = len(tokenizer)
    model = made("llama", words, torch.float32)
    long = Sampling(temperature=5.0, max_tokens=5000, seed=2)
    work = [((7,) * 500, 3, long), ((8, 9), 3, replace(long, prompt_index=1))]
    together = run(TorchEngine(model, tokenizer, WeightVersions(torch.float32), max_num_seqs=8), work)
    alone = [
        run(TorchEngine(model, tokenizer, WeightVersions(torch.float32), max_num_seqs=8), [ask])[0] for ask in work
    ]
    assert [[each.tokens for each in group] for group in together] == [[each.tokens for each in g] for g in alone]
    assert all(len(each.tokens) == 12 or each.finish == "stop" for each in together[0])
