"""Prefix cache: conversations go on with the keys and values of their earlier turns, and sample the same tokens."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
import torch
from run_engine import prefilled_tokens, run
from transformers import PreTrainedTokenizerBase

from dojang.engine.config import TorchEngineConfig
from dojang.engine.kv_cache import Prefix
from dojang.engine.prefix_cache import PrefixCache
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions
from tiny_models import tiny_model

WARM = Sampling(temperature=1.0, max_tokens=12, seed=3)
PROMPT = tuple(range(10, 22))


class Cache(PrefixCache):
    """With pages of one token."""

    def __init__(self, budget: int) -> None:
        self.in_use: Counter[int] = Counter()
        super().__init__(budget, self.in_use.subtract)


def kept(cache: Cache, *sequences: Sequence[int], conversation: str = "a") -> None:
    for tokens in sequences:
        cache.in_use.update(range(len(tokens)))
        cache.put(conversation, tokens, list(range(len(tokens))))


def found(cache: PrefixCache, tokens: Sequence[int], conversation: str = "a") -> int:
    """Number of tokens that a prompt does not have to prefill."""
    prefix = Prefix(tuple(tokens), conversation)
    cache.fill(prefix)
    return prefix.num_computed_tokens


def test_a_prompt_continues_the_longest_sequence_that_it_begins_with() -> None:
    cache = Cache(1 << 20)
    kept(cache, [1, 2], [1, 2, 3, 4], [1, 2, 3, 5, 6])
    assert found(cache, [1, 2, 3, 4, 9]) == 4
    assert found(cache, [1, 2, 3, 4, 9]) == 2  # the longer one is in use
    assert found(cache, [1, 2, 3, 4, 9]) == 0
    assert len(cache) == 1


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2], [1, 2, 4, 4], [0, 2, 3, 4], [2, 3, 4, 5], [9]])
def test_a_prompt_that_does_not_go_on_behind_a_sequence_finds_nothing(prompt: list[int]) -> None:
    cache = Cache(1 << 20)
    kept(cache, [1, 2, 3])
    assert found(cache, prompt) == 0
    assert len(cache) == 1


def test_a_conversation_with_the_same_tokens_finds_nothing() -> None:
    """Such as a sibling of the group, or an episode of an evaluation."""
    cache = Cache(1 << 20)
    kept(cache, [1, 2], conversation="evaluation")
    assert found(cache, [1, 2, 3], "training") == 0
    kept(cache, [1, 2], conversation="training")
    assert [found(cache, [1, 2, 3], each) for each in ("training", "evaluation", "")] == [2, 2, 0]


def test_the_newest_conversations_stay_within_the_budget() -> None:
    cache = Cache(10)
    kept(cache, [1] * 4, [2] * 4, [3] * 4)
    assert [found(cache, [token] * 5) for token in (1, 2, 3)] == [0, 4, 4]


@pytest.mark.parametrize("seed", range(5))
def test_entries_from_before_do_not_decide_what_is_found(seed: int) -> None:
    """So a batch finds the same after an evaluation as in a run that is resumed with an empty cache."""
    results = []
    for before in (0, 7):
        random, cache = Random(seed), Cache(30)
        for at in range(before):
            kept(cache, [at] * (at + 2), conversation=f"before {at}")
        streams, results_here = [[at] for at in range(5)], list[int]()
        for _ in range(60):
            at = random.randrange(5)
            results_here.append(found(cache, streams[at] + [9], str(at)))
            streams[at] = [at] if len(streams[at]) > 15 else streams[at] + [9] * random.randint(1, 4)
            kept(cache, streams[at], conversation=str(at))
        results.append(results_here)
    assert results[0] == results[1]
    assert 0 in results[0][20:]
    assert max(results[0]) > 0


def test_a_conversation_longer_than_the_budget_leaves_the_others() -> None:
    cache = Cache(10)
    kept(cache, [1] * 4, [4] * 11)
    assert [found(cache, [1] * 5), found(cache, [4] * 12)] == [4, 0]


def test_a_conversation_kept_twice_takes_its_room_once() -> None:
    cache = Cache(8)
    kept(cache, [1] * 4, [2] * 4, [2] * 4, [2] * 4)
    assert [found(cache, [token] * 5) for token in (1, 2)] == [4, 4]


def test_nothing_is_left_after_clearing() -> None:
    cache = Cache(8)
    kept(cache, [1] * 4, [2] * 4)
    cache.clear()
    assert not any(cache.in_use.values())
    assert found(cache, [1] * 5) == 0
    kept(cache, [1] * 4, [2] * 4)
    assert [found(cache, [token] * 5) for token in (1, 2)] == [4, 4]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_is_the_longest_beginning_of_all_that_is_kept(seed: int) -> None:
    random, cache = Random(seed), Cache(1 << 30)
    sequences = {tuple(random.choices(range(2), k=random.randint(1, 9))) for _ in range(60)}
    kept(cache, *sequences)
    kept(cache, *sequences, conversation="b")
    for _ in range(300):
        prompt = tuple(random.choices(range(2), k=random.randint(1, 11)))
        fitting = [each for each in sequences if len(each) < len(prompt) and prompt[: len(each)] == each]
        wanted = max(fitting, key=len, default=())
        assert found(cache, prompt) == len(wanted)
        sequences.discard(wanted)


class Talk:
    """Conversations on an engine: after each reply a few tokens follow. Counts the tokens that are prefilled."""

    def __init__(self, engine: TorchEngine, words: int, turns: int = 3) -> None:
        self.engine, self.words, self.turns = engine, words, turns
        self._counted = prefilled_tokens(engine)

    @property
    def prefilled(self) -> int:
        return sum(self._counted)

    async def one(self, seed: int, between: Callable[[int], Awaitable[None]] | None = None) -> list[Completion]:
        random, replies = Random(seed), list[Completion]()
        tokens = tuple(random.randrange(5, self.words) for _ in range(random.randint(4, 20)))
        for turn in range(self.turns):
            most = random.randint(1, 12)
            sampling = replace(WARM, seed=turn, prompt_index=seed, max_tokens=most, conversation=f"{seed}")
            [reply] = await self.engine.generate(tokens, 1, sampling)
            replies.append(reply)
            following = tuple(random.randrange(5, self.words) for _ in range(random.randint(1, 6)))
            tokens += reply.tokens + following
            if between is not None:
                await between(turn)
        return replies

    async def all(self, count: int) -> list[list[Completion]]:
        return await asyncio.gather(*(self.one(seed) for seed in range(count)))


FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "olmo2", "smollm3", "qwen3_moe"]


def engine_of(
    family: str,
    tokenizer: PreTrainedTokenizerBase,
    gb: float,
    weights: WeightVersions | None = None,
    dtype: torch.dtype = torch.float64,
    **options: int,
) -> TorchEngine:
    weights = weights or WeightVersions(dtype)
    model = tiny_model(family, dtype)
    return TorchEngine(model, tokenizer, weights, prefix_cache_gb=gb, **{"max_num_seqs": 4, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_conversations_sample_the_same_tokens_and_prefill_only_what_is_new(
    family: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """With fewer slots than conversations, prompts shorter and longer than sliding windows, prefilled in chunks."""
    results, prefilled = [], []
    for gb in (0.0, 0.1):
        engine = engine_of(family, tokenizer, gb, prefill_chunk_tokens=16)
        talk = Talk(engine, len(tokenizer))
        results.append(run(engine, lambda _, talk=talk: talk.all(10)))
        prefilled.append(talk.prefilled)
    assert prefilled[1] < 0.6 * prefilled[0]
    for plain, cached in zip(*results, strict=True):
        assert [each.tokens for each in plain] == [each.tokens for each in cached]
        for one, other in zip(plain, cached, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)


def test_a_cache_that_holds_few_conversations_changes_nothing_but_speed(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = engine_of("llama", tokenizer, 0.0)
    few = engine_of("llama", tokenizer, 20 * plain._scheduler._cache.page_bytes / 2**30)
    wanted, talk = run(plain, lambda engine: Talk(engine, len(tokenizer)).all(10)), Talk(few, len(tokenizer))
    found = run(few, lambda _: talk.all(10))
    assert [[each.tokens for each in replies] for replies in found] == [
        [each.tokens for each in replies] for replies in wanted
    ]
    assert 0 < len(few._scheduler._prefix_cache) < 10
    assert few._scheduler._prefix_cache._pages <= 20


def test_new_weights_read_the_conversation_again(tokenizer: PreTrainedTokenizerBase) -> None:
    results = []
    for gb in (0.0, 0.1):
        weights = WeightVersions(torch.float64)
        engine = engine_of("llama", tokenizer, gb, weights)

        async def update(turn: int, engine: TorchEngine = engine, weights: WeightVersions = weights) -> None:
            weights.publish(turn + 1, dict(tiny_model("llama", torch.float64, seed=7 + turn).named_parameters()))
            await engine.load(turn + 1)

        talk = Talk(engine, len(tokenizer))
        results.append(run(engine, lambda _, talk=talk, update=update: talk.one(0, update)))
    plain, cached = results
    assert [each.version for each in cached] == [0, 1, 2]
    assert [each.tokens for each in plain] == [each.tokens for each in cached]
    for one, other in zip(plain, cached, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)


def test_keys_and_values_of_older_weights_are_not_kept(tokenizer: PreTrainedTokenizerBase) -> None:
    weights = WeightVersions(torch.float64)
    weights.publish(1, dict(tiny_model("llama", torch.float64, seed=7).named_parameters()))
    engine = engine_of("llama", tokenizer, 0.1, weights)
    hot = Sampling(temperature=5.0, max_tokens=60, seed=3, conversation="a")

    async def swap(engine: TorchEngine) -> tuple[Completion, int, int]:
        asked = asyncio.create_task(engine.generate(PROMPT, 1, hot))
        while not any(len(seq.tokens) >= 5 for seq in engine._scheduler._running):
            await asyncio.sleep(0.001)
        await engine.load(1)
        [mixed] = await asked
        after_mixed = len(engine._scheduler._prefix_cache)
        await engine.generate(PROMPT, 1, hot)
        return mixed, after_mixed, len(engine._scheduler._prefix_cache)

    mixed, after_mixed, after_pure = run(engine, swap)
    assert [span.version for span in mixed.spans] == [0, 1]
    assert (after_mixed, after_pure) == (0, 1)


def test_an_engine_without_prefix_caching_keeps_nothing(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = engine_of("llama", tokenizer, 0.0)
    run(engine, lambda engine: engine.generate(PROMPT, 2, replace(WARM, conversation="a")))
    assert len(engine._scheduler._prefix_cache) == 0


def test_a_request_of_no_conversation_is_not_kept(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = engine_of("llama", tokenizer, 0.1)
    run(engine, lambda engine: engine.generate(PROMPT, 2, WARM))
    assert len(engine._scheduler._prefix_cache) == 0


def test_every_turn_of_an_episode_prefills_only_what_is_new(tokenizer: PreTrainedTokenizerBase) -> None:
    """The last token of a reply was never computed, and two tokens follow it."""
    engine = engine_of("llama", tokenizer, 0.1)
    counts = prefilled_tokens(engine)

    async def talk(engine: TorchEngine) -> None:
        tokens = PROMPT
        for turn in range(10):
            [reply] = await engine.generate(tokens, 1, replace(WARM, seed=turn, max_tokens=4, conversation="a"))
            tokens += (*reply.tokens, 7, 8)

    run(engine, talk)
    assert counts == [len(PROMPT), *[3] * 9]


def test_training_after_an_evaluation_has_the_bits_of_a_resumed_run(tokenizer: PreTrainedTokenizerBase) -> None:
    """In float32: keys that the evaluation's decoding computed would differ in the last bits. A training episode begins
    with the tokens of an evaluation's; the resumed run has an empty cache."""
    evaluation = replace(WARM, temperature=0.0, seed=2**32, conversation="evaluation")
    reply = run(engine_of("llama", tokenizer, 0.0, dtype=torch.float32), lambda e: e.generate(PROMPT, 1, evaluation))[0]
    later = (*PROMPT, *reply.tokens, *range(30, 45))

    async def train(engine: TorchEngine) -> list[list[Completion]]:
        tokens, replies = later, list[list[Completion]]()
        for turn in range(3):
            samplings = [replace(WARM, seed=turn, prompt_index=at, conversation=f"{at}") for at in range(3)]
            replies.append([(await engine.generate(tokens, 1, each))[0] for each in samplings])
            tokens += (*replies[-1][0].tokens, 7, 8)
        return replies

    async def evaluate_first(engine: TorchEngine) -> list[list[Completion]]:
        assert await engine.generate(PROMPT, 1, evaluation) == [reply]
        return await train(engine)

    resumed, uninterrupted = (
        run(engine_of("llama", tokenizer, 0.1, dtype=torch.float32), each) for each in (train, evaluate_first)
    )
    assert uninterrupted == resumed


def test_siblings_with_the_same_text_share_the_first_prefill_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = engine_of("llama", tokenizer, 0.1)
    counts = prefilled_tokens(engine)
    greedy = replace(WARM, temperature=0.0, max_tokens=4)

    async def talk(engine: TorchEngine) -> list[int]:
        siblings, tokens, kept = [replace(greedy, conversation=each) for each in "abc"], PROMPT, list[int]()
        for _ in range(3):
            (reply,), *others = await asyncio.gather(*(engine.generate(tokens, 1, each) for each in siblings))
            assert all(each.tokens == reply.tokens for (each,) in others)
            tokens += (*reply.tokens, 7, 8)
            kept.append(len(engine._scheduler._prefix_cache))
        await engine.generate(tokens, 1, replace(greedy, conversation="d"))
        return kept

    assert run(engine, talk) == [3, 3, 3]
    assert counts == [len(PROMPT), 9, 9, len(PROMPT) + 3 * 6]


@pytest.mark.parametrize(
    ("settings", "gpu", "several_turns", "wanted"),
    [
        ({}, False, True, 1.0),
        ({}, False, False, 0.0),
        ({}, True, True, 0.0),
        ({"prefix_cache_gb": 0}, False, True, 0.0),
        ({"prefix_cache_gb": 2.5}, True, False, 2.5),
    ],
)
def test_default_size(settings: dict[str, float], gpu: bool, several_turns: bool, wanted: float) -> None:
    assert TorchEngineConfig(**settings).prefix_cache(gpu=gpu, several_turns=several_turns) == wanted
