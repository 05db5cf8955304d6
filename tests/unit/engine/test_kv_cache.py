"""Pages of the KV cache: sequences share them, give way where they are short, and sample the same tokens."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from run_engine import prefilled_tokens, run
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.errors import ModelError
from dojang.engine import attention
from dojang.engine.kv_cache import KvCache
from dojang.engine.page_pool import PagePool
from dojang.engine.shape import Shape
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions

HOT = Sampling(5.0, 60, seed=1)
Ask = tuple[tuple[int, ...], int, Sampling]


def test_a_pool_gives_each_page_to_one_holder_and_takes_it_back_from_the_last() -> None:
    random, pool, held = Random(0), PagePool(40), list[list[int]]()
    for _ in range(2000):
        if held and random.random() < 0.5:
            pages = held.pop(random.randrange(len(held)))
            pool.drop(pages)
        elif held and random.random() < 0.3:
            held.append(random.choice(held)[: random.randint(0, 9)])
            pool.share(held[-1])
        elif pool.free:
            before = {page for pages in held for page in pages}
            held.append(pool.take(random.randint(1, min(6, pool.free))))
            assert not before & set(held[-1])
        used = {page for pages in held for page in pages}
        assert 0 not in used
        assert pool.free == 39 - len(used)


def test_rows_are_divided_into_groups_of_similar_length() -> None:
    lengths = [70] * 10 + [300] + [200] * 15
    groups = attention._groups([length - 1 for length in lengths])
    assert groups == [([*range(10, 26)], 300), ([*range(10)], 70)]
    assert attention._groups([63] * 16 + [31] * 15) == [([*range(31)], 64)]
    assert attention._groups([63] * 16 + [31] * 16) == [([*range(16)], 64), ([*range(16, 32)], 32)]


@pytest.fixture
def shape(micro_model: Callable[..., PreTrainedModel]) -> Shape:
    return Shape.of(micro_model().config)


def cache_of(shape: Shape, pages: int, **options: int) -> KvCache:
    token = 2 * shape.layers * shape.kv_heads * shape.head * 4
    budget = pages * attention.PAGE_TOKENS * token
    return KvCache(shape, torch.float32, torch.device("cpu"), max_num_seqs=100, budget=budget, **options)


def test_the_cache_stays_within_its_budget(shape: Shape, small_pages: int) -> None:
    cache = cache_of(shape, 11)
    cache.check(10 * small_pages)
    with pytest.raises(ModelError, match="raise rollout"):
        cache.check(10 * small_pages + 1)
    cache.reserve(60)
    assert cache.keys_LPKTD.nbytes + cache.values_LPKTD.nbytes == 11 * cache.page_bytes
    assert cache.has(10)
    assert not cache.has(11)
    cache.release()
    assert cache.keys_LPKTD.numel() == 0


def test_the_prefix_cache_comes_on_top(shape: Shape) -> None:
    cache = cache_of(shape, 11, prefix_cache=5 * cache_of(shape, 1).page_bytes)
    cache.reserve(8)
    assert cache.keys_LPKTD.shape[1] == 16


def test_less_memory_than_the_budget_is_used_if_there_is_no_more(
    shape: Shape, small_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of(shape, 40)
    allocate = cache._allocate

    def scarce(pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        if pages > 11:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return allocate(pages)

    monkeypatch.setattr(cache, "_allocate", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        cache.reserve(10 * small_pages)  # ten of the pages there would be are too few
    cache.reserve(9 * small_pages)
    assert cache.keys_LPKTD.shape[1] == 10
    with pytest.raises(ModelError, match="raise rollout"):
        cache.check(10 * small_pages)


class Pages:
    """Looks at the pages of an engine in every step."""

    def __init__(self, engine: TorchEngine) -> None:
        scheduler, self.cache = engine._scheduler, engine._scheduler._cache
        self.scheduler = scheduler
        self.most_used = self.most_running = 0
        step, release = scheduler.step, self.cache.release

        def look() -> None:
            step()
            self.most_running = max(self.most_running, scheduler.running)
            if self.cache.allocated:
                self._compare_holders()

        def check_and_release() -> None:
            assert not self.cache.allocated or self.cache._pool.free == self.cache._pages - 1
            release()

        scheduler.step = look  # type: ignore[method-assign]
        self.cache.release = check_and_release  # type: ignore[method-assign]

    def _compare_holders(self) -> None:
        """Every page is held as often as it is used, and no other."""
        used = [page for pages in self.cache._rows for page in pages]
        used += [page for prefix in self.scheduler._waiting._prefixes.values() for page in prefix.pages]
        used += [page for entry in self.scheduler._prefix_cache._entries for page in entry.pages]
        pool = self.cache._pool
        assert sorted(used) == [page for page, holders in enumerate(pool._references) for _ in range(holders)]
        assert pool.free == self.cache._pages - 1 - len(set(used))
        for row, pages in enumerate(self.cache._rows):
            table = self.cache.page_table[row].tolist()
            assert table == pages + [0] * (len(table) - len(pages))
        self.most_used = max(self.most_used, len(set(used)))


MakeEngine = Callable[..., tuple[TorchEngine, Pages]]


@pytest.fixture
def make(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, small_pages: int
) -> MakeEngine:
    def make(
        pages: int | None = None, dtype: torch.dtype = torch.float64, **options: float
    ) -> tuple[TorchEngine, Pages]:
        model = micro_model(dtype)
        page_bytes = 2 * 2 * 2 * 8 * dtype.itemsize * small_pages
        gb = None if pages is None else (pages + 1) * page_bytes / 2**30
        engine = TorchEngine(model, tokenizer, WeightVersions(dtype), kv_cache_gb=gb, **{"max_num_seqs": 48, **options})  # type: ignore[arg-type]
        return engine, Pages(engine)

    return make


def asks(seed: int, count: int, longest: int = 60) -> list[Ask]:
    random = Random(seed)
    return [
        (
            tuple(random.choices(range(5, 200), k=random.choice((1, 7, 8, 9, 16, 30)))),
            random.choice((1, 1, 3, 8)),
            replace(HOT, max_tokens=random.randint(1, longest), prompt_index=at),
        )
        for at in range(count)
    ]


async def together(engine: TorchEngine, work: Sequence[Ask]) -> list[list[Completion]]:
    return await asyncio.gather(*(engine.generate(*ask) for ask in work))


def tokens_of(groups: Sequence[Sequence[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[each.tokens for each in group] for group in groups]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pages", [12, 20, 60])
def test_short_pages_change_nothing_but_speed(make: MakeEngine, pages: int, seed: int) -> None:
    """From one sequence at a time to enough for most."""
    work = asks(seed, 25)
    plenty, _ = make()
    few, seen = make(pages)
    wanted = run(plenty, lambda engine: together(engine, work))
    found = run(few, lambda engine: together(engine, work))
    assert tokens_of(found) == tokens_of(wanted)
    assert plenty._scheduler.preempted == 0
    assert few._scheduler.preempted > 0
    assert seen.most_used <= pages
    for one, other in zip(wanted, found, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-9)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_long_prompts_with_short_pages(make: MakeEngine, chunk: int) -> None:
    random = Random(1)
    work: list[Ask] = [
        (tuple(random.choices(range(5, 200), k=size)), n, replace(HOT, max_tokens=most, prompt_index=at))
        for at, (size, n, most) in enumerate([(88, 8, 8), (81, 3, 15), (95, 2, 1), (5, 8, 60), (90, 1, 6)])
    ]
    found = run(make(12, prefill_chunk_tokens=chunk)[0], lambda engine: together(engine, work))
    assert tokens_of(found) == tokens_of(run(make()[0], lambda engine: together(engine, work)))


def test_decoding_ahead_with_short_pages(
    make: MakeEngine, micro_model: Callable[..., PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: several steps at a time, and the next ones start before the last ones are collected."""
    from lookahead_decode import LookaheadRunner

    work = asks(7, 25)
    wanted = run(make()[0], lambda engine: together(engine, work))
    few, seen = make(20)
    runner = LookaheadRunner(few._scheduler, micro_model(torch.float64))
    monkeypatch.setattr(few._scheduler, "_runner", runner)
    assert tokens_of(run(few, lambda engine: together(engine, work))) == tokens_of(wanted)
    assert runner.went_on
    assert few._scheduler.preempted > 0
    assert seen.most_used <= 20


def test_samples_of_a_group_share_the_pages_of_their_prompt(make: MakeEngine, small_pages: int) -> None:
    """All but the last one, which they write into; the last sample has the prefilled page itself."""
    engine, seen = make()
    prompt = tuple(range(10, 10 + 5 * small_pages + 2))
    run(engine, lambda engine: engine.generate(prompt, 16, replace(HOT, max_tokens=5)))
    assert seen.most_used == 5 + 16


def test_a_group_of_which_not_even_a_second_sample_fits(make: MakeEngine, small_pages: int) -> None:
    prompt = tuple(range(10, 10 + 3 * small_pages + 2))
    engine, seen = make(4)
    found = run(engine, lambda engine: engine.generate(prompt, 3, replace(HOT, max_tokens=4)))
    wanted = run(make()[0], lambda engine: engine.generate(prompt, 3, replace(HOT, max_tokens=4)))
    assert tokens_of([found]) == tokens_of([wanted])
    assert (seen.most_used, seen.most_running) == (4, 1)


def test_many_more_sequences_run_than_could_be_of_full_length(make: MakeEngine, small_pages: int) -> None:
    """A limit far above the usual length costs nothing."""
    pages = 60
    engine, seen = make(pages)
    stop = tuple(range(5, 40))  # so that most samples are short
    found = run(
        engine,
        lambda engine: engine.generate((7, 8, 9), 64, replace(HOT, max_tokens=50 * small_pages, stop_tokens=stop)),
    )
    assert sorted(len(each.tokens) for each in found)[32] < 2 * small_pages
    of_full_length = pages // 51
    assert seen.most_running >= 20 * of_full_length


def test_preempted_samples_of_a_group_keep_the_pages_of_their_prompt(make: MakeEngine) -> None:
    """Dropping them would free nothing while others hold them, and the whole prompt would be prefilled each time."""
    prompt = tuple(range(10, 210))
    engine, seen = make(64)
    counts = prefilled_tokens(engine)
    found = run(engine, lambda engine: engine.generate(prompt, 32, replace(HOT, max_tokens=40)))
    wanted = run(make()[0], lambda engine: engine.generate(prompt, 32, replace(HOT, max_tokens=40)))
    assert tokens_of([found]) == tokens_of([wanted])
    assert engine._scheduler.preempted > 5
    assert seen.most_used <= 64
    assert sum(counts) < 4 * len(prompt)


def test_a_prompt_that_waits_for_pages_is_prefilled_once(make: MakeEngine) -> None:
    """It does not take the pages that running sequences are about to need, chunk by chunk."""
    engine, _ = make(64, prefill_chunk_tokens=16)
    counts = prefilled_tokens(engine)
    work: list[Ask] = [((5 + at,) * 8, 1, replace(HOT, max_tokens=110, prompt_index=at)) for at in range(4)]
    work.append((tuple(range(10, 260)) * 2, 1, replace(HOT, max_tokens=8, prompt_index=9)))
    run(engine, lambda engine: together(engine, work))
    assert sum(counts) == sum(len(prompt) for prompt, _, _ in work)


def test_running_out_of_memory_in_a_chunk_of_several_pages(make: MakeEngine) -> None:
    """The prefix has the pages of the whole chunk, and the next one is shorter."""
    work: list[Ask] = [(tuple(range(10, 210)), 2, HOT), (tuple(range(10, 17)), 3, HOT)]
    engine, _ = make(prefill_chunk_tokens=150)
    decoder, failures = engine._scheduler._decoder, [True] * 3
    forward = decoder.forward

    def scarce(token_N: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(token_N) > 16 and failures and failures.pop():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(token_N, *rest)

    decoder.forward = scarce  # type: ignore[method-assign]
    found = run(engine, lambda engine: together(engine, work))
    assert not failures
    assert tokens_of(found) == tokens_of(run(make()[0], lambda engine: together(engine, work)))


def test_pages_that_cannot_be_cleared_are_given_back(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_of(shape, 11)
    cache.reserve(8)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "keys_LPKTD", None)
        with pytest.raises(TypeError):
            cache.take(3)
    assert cache.has(10)


def test_running_out_of_memory_while_pages_are_copied(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples that were about to run wait again, and the copies are not made later, into pages of others."""
    work = asks(11, 12)
    engine, _ = make()
    cache, failures = engine._scheduler._cache, [True, False, True]
    copy = cache.copy

    def scarce(pairs: Sequence[tuple[int, int]]) -> None:
        if pairs and failures and failures.pop():
            raise torch.OutOfMemoryError("CUDA out of memory")
        copy(pairs)

    monkeypatch.setattr(cache, "copy", scarce)
    found = run(engine, lambda engine: together(engine, work))
    assert not failures
    assert tokens_of(found) == tokens_of(run(make()[0], lambda engine: together(engine, work)))


def test_cancelled_requests_give_their_pages_back(make: MakeEngine) -> None:
    work = asks(3, 40)
    engine, _ = make(20)

    async def play(engine: TorchEngine) -> list[Completion]:
        tasks = [asyncio.ensure_future(engine.generate(*ask)) for ask in work]
        for at in range(0, len(tasks), 2):
            await asyncio.sleep(0.003)
            tasks[at].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await engine.generate(*work[0])

    found = run(engine, play)
    assert tokens_of([found]) == tokens_of([run(make()[0], lambda engine: engine.generate(*work[0]))])
    assert not engine._scheduler._cache.allocated


def test_conversations_with_short_pages(make: MakeEngine, small_pages: int) -> None:
    """Turns that are kept give way to running sequences, the oldest first."""

    async def talk(engine: TorchEngine, at: int) -> list[Completion]:
        random, replies = Random(at), list[Completion]()
        tokens = tuple(random.choices(range(5, 200), k=random.randint(4, 30)))
        for turn in range(4):
            sampling = replace(HOT, seed=turn, prompt_index=at, max_tokens=12, conversation=f"{at}")
            replies += await engine.generate(tokens, 1, sampling)
            tokens += (*replies[-1].tokens, 7, 8)
        return replies

    async def play(engine: TorchEngine) -> list[list[Completion]]:
        return await asyncio.gather(*(talk(engine, at) for at in range(12)))

    page_bytes = small_pages * 2 * 2 * 2 * 8 * 8
    few, seen = make(16, prefix_cache_gb=20 * page_bytes / 2**30)
    assert tokens_of(run(few, play)) == tokens_of(run(make()[0], play))
    assert len(few._scheduler._prefix_cache)
    assert seen.most_used <= 36


def test_new_weights_while_pages_are_short(make: MakeEngine) -> None:
    """What is prefilled again has the new weights; nothing is lost."""
    work, figures = asks(5, 25), list[float]()
    engine, _ = make(20)

    async def play(engine: TorchEngine) -> list[list[Completion]]:
        asked = asyncio.ensure_future(together(engine, work))
        weights = {name: each.clone() for name, each in engine._scheduler.weights.items()}
        for version in range(1, 6):
            engine._weights.publish(version, weights)  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
            figures.append((await engine.load(version))["perf/preempted"])
        answers = await asked
        engine._weights.publish(6, weights)  # type: ignore[attr-defined]
        figures.append((await engine.load(6))["perf/preempted"])
        return answers

    assert tokens_of(run(engine, play)) == tokens_of(run(make()[0], lambda engine: together(engine, work)))
    assert sum(figures) == engine._scheduler.preempted > 0


def test_a_sequence_that_no_longer_fits_is_an_error_and_the_engine_continues(
    make: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be less memory than the budget when the cache is allocated, after longer sequences were accepted."""
    engine, _ = make(40)
    cache = engine._scheduler._cache
    allocate, reserve = cache._allocate, cache.reserve

    def scarce(pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        if pages > 11:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return allocate(pages)

    async def play(engine: TorchEngine) -> list[Completion]:
        monkeypatch.setattr(cache, "_allocate", scarce)
        monkeypatch.setattr(cache, "reserve", lambda length: reserve(8))
        with pytest.raises(ModelError, match=r"raise rollout\.engine\.kv_cache_gb"):
            await engine.generate((7, 8, 9), 2, replace(HOT, max_tokens=200))
        return await engine.generate((7, 8, 9), 2, HOT)

    assert tokens_of([run(engine, play)]) == tokens_of(
        [run(make()[0], lambda engine: engine.generate((7, 8, 9), 2, HOT))]
    )
