"""TorchEngine: weight updates while decoding, cancelled requests, memory."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from lookahead_decode import LookaheadRunner
from run_engine import run
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.errors import ModelError, OutOfMemory
from dojang.engine.decoder import Attend
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling, Span, StopLine
from dojang.weight_sync.versions import WeightVersions

Make = Callable[..., TorchEngine]
HOT = Sampling(temperature=5.0, max_tokens=60, seed=3)
"""Temperature high enough that no sequence stops early."""
PROMPT = tuple(range(10, 22))
STORM = int(os.environ.get("DOJANG_STORM", "150"))
"""Requests in a storm; 10,000 take some ten minutes."""


def end_of_marked_line(text: str) -> int | None:
    """The line break after the first n."""
    end = text.find("\n", text.find("n")) if "n" in text else -1
    return end if end >= 0 else None


LETTER = StopLine(("o",), lambda text: text.find("o") if "o" in text else None)
LINE = StopLine(("n",), end_of_marked_line, whole_line=True)


@pytest.fixture
def weights(micro_model: Callable[..., PreTrainedModel]) -> WeightVersions:
    weights = WeightVersions(torch.float64)
    weights.publish(7, dict(micro_model(torch.float64, seed=7).named_parameters()))
    return weights


@pytest.fixture
def make(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, weights: WeightVersions
) -> Make:
    def one(seed: int = 0, max_num_seqs: int = 8, *, lookahead: bool = False, **options: float) -> TorchEngine:
        model = micro_model(torch.float64, seed=seed)
        engine = TorchEngine(model, tokenizer, weights, max_num_seqs=max_num_seqs, **options)  # type: ignore[arg-type]
        if lookahead:
            engine._scheduler._runner = LookaheadRunner(engine._scheduler, model)
        return engine

    return one


async def under_way(engine: TorchEngine, tokens: int = 5) -> None:
    """Until something has been written."""
    while not any(len(seq.tokens) >= tokens for seq in engine._scheduler._running):
        await asyncio.sleep(0.001)


async def step_ended(engine: TorchEngine) -> None:
    """Until the step that delivered the last completion has ended."""
    await engine._run_in_thread(lambda: None)


def alone(make: Make, prompt: tuple[int, ...], n: int, sampling: Sampling, **options: int) -> list[Completion]:
    return run(make(**options), lambda engine: engine.generate(prompt, n, sampling))


def test_tokens_record_their_weight_version(make: Make, micro_model: Callable[..., PreTrainedModel]) -> None:
    async def swap(engine: TorchEngine) -> list[Completion]:
        asked = asyncio.create_task(engine.generate(PROMPT, 2, HOT))
        await under_way(engine)
        await engine.load(7)
        return await asked

    before = alone(make, PROMPT, 2, HOT)
    for mine, old in zip(run(make(), swap), before, strict=True):
        first, second = mine.spans
        assert (first.version, first.start, second.version, second.end) == (0, 0, 7, len(mine.tokens))
        assert first.end == second.start
        assert mine.version == 0
        assert mine.tokens[: first.end] == old.tokens[: first.end]
        assert mine.tokens != old.tokens


def test_prefixes_of_old_weights_are_prefilled_again(make: Make) -> None:
    """Samples that wait for a slot while the weights change begin with the new ones."""

    async def swap(engine: TorchEngine) -> list[Completion]:
        asked = asyncio.create_task(engine.generate(PROMPT, 4, HOT))
        await under_way(engine)
        await engine.load(7)
        return await asked

    last = run(make(max_num_seqs=1), swap)[-1]
    new = alone(make, PROMPT, 4, HOT, seed=7)[-1]
    assert last.spans == (Span(7, 0, len(last.tokens)),)
    assert last.tokens == new.tokens


@pytest.mark.parametrize("ending", ["done", "one token", "cancelled"])
def test_idle_engine_frees_the_kv_cache(make: Make, ending: str) -> None:
    async def play(engine: TorchEngine) -> None:
        sampling = replace(HOT, max_tokens=1 if ending == "one token" else 400 if ending != "done" else 8)
        asked = asyncio.ensure_future(engine.generate(PROMPT, 2, sampling))
        if ending == "cancelled":
            while not engine._scheduler.running:
                await asyncio.sleep(0)
            asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        for _ in range(500):
            if not engine._scheduler.busy and not engine._scheduler._cache.keys_LPKTD.numel():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{engine._scheduler._cache.keys_LPKTD.numel()} numbers are kept")

    run(make(), play)


def test_more_samples_than_slots(make: Make) -> None:
    assert [each.tokens for each in alone(make, PROMPT, 9, HOT, max_num_seqs=2)] == [
        each.tokens for each in alone(make, PROMPT, 9, HOT, max_num_seqs=64)
    ]


@pytest.mark.parametrize("chunk", [1, 5, 7, 1000])
def test_chunked_prefill(make: Make, chunk: int) -> None:
    long = tuple(range(5, 205))
    pieces, whole = (
        alone(make, long, 2, replace(HOT, max_tokens=5), prefill_chunk_tokens=size) for size in (chunk, 512)
    )
    assert [each.tokens for each in pieces] == [each.tokens for each in whole]


def test_stop_tokens_and_bias(make: Make) -> None:
    [free] = alone(make, PROMPT, 1, HOT)
    stop = free.tokens[4]
    [stopped] = alone(make, PROMPT, 1, replace(HOT, stop_tokens=(stop,)))
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert stopped.finish == "stop"
    [pushed] = alone(make, PROMPT, 1, replace(HOT, bias=((17, 1e4),), max_tokens=4))
    assert pushed.tokens == (17,) * 4
    assert pushed.logprobs == (0.0,) * 4
    assert all(plain < -0.1 for plain in pushed.plain_logprobs)


def test_prompt_as_long_as_the_context_is_rejected(make: Make) -> None:
    with pytest.raises(ModelError, match="512 tokens leaves no tokens to sample in a context of 512"):
        alone(make, (5,) * 512, 1, HOT)
    [full] = alone(make, (5,) * 500, 1, HOT)
    assert len(full.tokens) <= 12


@pytest.mark.parametrize(("max_num_seqs", "lookahead"), [(1, False), (7, False), (7, True), (64, False), (64, True)])
def test_ragged_requests_with_cancels_and_updates_match_single_requests(
    make: Make,
    weights: WeightVersions,
    micro_model: Callable[..., PreTrainedModel],
    max_num_seqs: int,
    *,
    lookahead: bool,
) -> None:
    """Weights are replaced by the same under another name: what is drawn must not notice, but versions must.

    Also with steps decoded ahead before earlier ones are collected, as on a GPU."""
    random = Random(max_num_seqs)
    same = dict(micro_model(torch.float64).named_parameters())
    asks = [
        (
            tuple(random.choices(range(5, 200), k=random.choice((1, 3, 9, 40)))),
            random.choice((1, 2, 5)),
            Sampling(
                temperature=random.choice((0.0, 0.7, 1.0, 5.0)),
                max_tokens=random.choice((1, 2, 10, 40)),
                seed=1,
                prompt_index=at,
                top_k=random.choice((0, 0, 20)),
                top_p=random.choice((1.0, 1.0, 0.9)),
                stop=random.choice(((), (), ("a",), ("e", "the"))),
                stop_line=random.choice((None, None, LETTER, LINE)),
            ),
        )
        for at in range(STORM // 3 if max_num_seqs == 1 else STORM)  # one at a time is slow
    ]

    async def storm(engine: TorchEngine) -> list[list[Completion]]:
        async def ask(at: int) -> list[Completion]:
            await asyncio.sleep(random.random() * 0.003 * len(asks))
            if random.random() < 0.3:
                with suppress(TimeoutError):  # cancelled, and asked again
                    return await asyncio.wait_for(engine.generate(*asks[at]), random.random() * 0.05)
            return await engine.generate(*asks[at])

        async def disturb() -> None:
            for version in range(1, len(asks) // 5):
                await asyncio.sleep(random.random() * 0.02)
                weights.publish(version, same)
                await engine.load(version)

        disturbance = asyncio.create_task(disturb())
        results = await asyncio.gather(*(ask(at) for at in range(len(asks))))
        await disturbance
        await engine.generate(PROMPT, 1, HOT)  # alone: on a busy machine others may always have waited before
        await step_ended(engine)
        assert not engine._scheduler.busy
        assert not engine._pending
        return results

    async def in_turn(engine: TorchEngine) -> list[list[Completion]]:
        return [await engine.generate(*ask) for ask in asks]

    engine = make(max_num_seqs=max_num_seqs, lookahead=lookahead)
    limit_s = 60.0 + STORM
    for mine, expected in zip(run(engine, storm, limit_s), run(make(max_num_seqs=8), in_turn, limit_s), strict=True):
        assert [(each.tokens, each.text, each.finish) for each in mine] == [
            (each.tokens, each.text, each.finish) for each in expected
        ]
        for each in mine:
            assert [span.start for span in each.spans] == [0, *(span.end for span in each.spans[:-1])]
            assert each.spans[-1].end == len(each.tokens)
            assert [span.version for span in each.spans] == sorted({span.version for span in each.spans})
    runner = engine._scheduler._runner
    assert not lookahead or (isinstance(runner, LookaheadRunner) and runner.went_on and not runner.unseen)


@pytest.mark.parametrize("change", ["load", "drop"])
def test_steps_in_flight_are_collected_before_any_change(make: Make, change: str) -> None:
    engine = make(lookahead=True)
    runner = engine._scheduler._runner
    assert isinstance(runner, LookaheadRunner)

    async def disturb(engine: TorchEngine) -> list[Completion]:
        other = asyncio.create_task(engine.generate(PROMPT[:4], 1, HOT))
        asked = asyncio.create_task(engine.generate(PROMPT, 2, HOT))
        await under_way(engine, 10)
        if change == "load":
            await engine.load(7)
        else:
            other.cancel()
        return await asked

    drawn = run(engine, disturb)
    expected = alone(make, PROMPT, 2, HOT)
    for mine, theirs in zip(drawn, expected, strict=True):
        kept = min(len(mine.tokens), len(theirs.tokens)) if change != "load" else mine.spans[0].end
        assert kept >= 10
        assert mine.tokens[:kept] == theirs.tokens[:kept]
    assert not runner.unseen
    assert runner.went_on


def test_nothing_is_in_flight_after_the_last_sequence_stops_early(make: Make) -> None:
    """What was begun for it before its end had been seen is over, too."""
    engine = make(lookahead=True)
    runner, token = engine._scheduler._runner, alone(make, PROMPT, 1, HOT)[0].tokens[9]
    assert isinstance(runner, LookaheadRunner)

    async def play(engine: TorchEngine) -> list[Completion]:
        drawn = await engine.generate(PROMPT, 1, replace(HOT, stop_tokens=(token,)))
        await step_ended(engine)
        assert runner.went_on
        assert not runner.unseen
        return drawn

    (drawn,) = run(engine, play)
    assert (len(drawn.tokens), drawn.finish) == (10, "stop")


def test_out_of_memory_after_all_sequences_finished_is_raised_and_the_engine_continues(make: Make) -> None:
    engine = make(lookahead=True)
    scheduler, token = engine._scheduler, alone(make, PROMPT, 1, HOT)[0].tokens[9]
    collect = scheduler._collect

    def broken(flight: Any) -> None:
        if not scheduler._running:
            scheduler._collect = collect  # type: ignore[method-assign]
            scheduler._runner.unseen = 0  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError("no memory left")
        collect(flight)

    scheduler._collect = broken  # type: ignore[method-assign]

    async def play(engine: TorchEngine) -> list[Completion]:
        await engine.generate(PROMPT, 1, replace(HOT, stop_tokens=(token,)))
        return await engine.generate(PROMPT, 2, HOT)

    assert [each.tokens for each in run(engine, play)] == [each.tokens for each in alone(make, PROMPT, 2, HOT)]


@pytest.mark.parametrize("times", [1, 2])
def test_error_while_collecting_fails_requests_and_the_engine_continues(make: Make, times: int) -> None:
    """Also with steps in flight after those that could not be collected."""
    engine = make(lookahead=True)
    runner, stop_criteria, left = engine._scheduler._runner, engine._scheduler._stop_criteria, [times]
    assert isinstance(runner, LookaheadRunner)
    check = stop_criteria.check

    def broken(written: Sequence[int], *rest: Any) -> Any:
        if len(written) > 8 and left[0]:
            left[0] -= 1
            runner.unseen = 0  # the steps in flight are never collected
            raise ValueError("cannot collect")
        return check(written, *rest)

    stop_criteria.check = broken  # type: ignore[method-assign]

    async def play(engine: TorchEngine) -> list[Completion]:
        for _ in range(times):
            asked = [engine.generate(PROMPT[:size], 2, replace(HOT, prompt_index=size)) for size in (4, 5)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [str(each) for each in answers] == ["cannot collect"] * 2
        return await engine.generate(PROMPT, 2, HOT)

    drawn = run(engine, play)
    assert [each.tokens for each in drawn] == [each.tokens for each in alone(make, PROMPT, 2, HOT)]


@pytest.mark.parametrize("most", [20, 9, 3])
def test_out_of_memory_preempts_and_shrinks_chunks(make: Make, most: int) -> None:
    asks = [(PROMPT[: 3 + at], 4, replace(HOT, prompt_index=at, max_tokens=20)) for at in range(5)]
    engine = make(max_num_seqs=16, prefill_chunk_tokens=512)
    decoder, attempts = engine._scheduler._decoder, list[int]()
    forward = decoder.forward

    def scarce(token_N: torch.Tensor, position_N: torch.Tensor, attend: Attend, *wanted: torch.Tensor) -> torch.Tensor:
        attempts.append(len(token_N))
        if len(token_N) > max(most, 16 if int(position_N.min()) < 3 else 0):  # a prompt comes whole if it is short
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(token_N, position_N, attend, *wanted)

    decoder.forward = scarce  # type: ignore[method-assign]
    drawn = run(engine, lambda engine: asyncio.gather(*(engine.generate(*ask) for ask in asks)))
    for ask, group in zip(asks, drawn, strict=True):
        assert [each.tokens for each in group] == [each.tokens for each in alone(make, *ask)]
    assert max(attempts) > most  # or nothing was tested
    assert not engine._scheduler.busy


def test_out_of_memory_for_one_sequence_is_an_error(make: Make) -> None:
    async def play(engine: TorchEngine) -> None:
        def never(*_: object) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

        engine._scheduler._decoder.forward = never  # type: ignore[method-assign]
        with pytest.raises(OutOfMemory, match=r"for sampling: lower rollout\.engine\.kv_cache_gb"):
            await engine.generate(PROMPT, 3, HOT)

    run(make(), play)


def test_out_of_memory_for_the_kv_cache_is_an_error_and_the_engine_continues(make: Make) -> None:
    engine = make()
    cache = engine._scheduler._cache
    allocate = cache._allocate

    def scarce(pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        if pages:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return allocate(pages)

    async def play(engine: TorchEngine) -> list[Completion]:
        cache._allocate = scarce  # type: ignore[method-assign]
        with pytest.raises(OutOfMemory, match=r"for sampling: lower rollout\.engine\.kv_cache_gb"):
            await engine.generate(PROMPT, 3, HOT)
        cache._allocate = allocate  # type: ignore[method-assign]
        return await engine.generate(PROMPT, 3, HOT)

    assert [each.tokens for each in run(engine, play)] == [each.tokens for each in alone(make, PROMPT, 3, HOT)]


def test_out_of_memory_while_loading_weights_is_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    engine = make()
    monkeypatch.setattr("dojang.engine.torch_engine.apply_update", scarce)

    async def play(engine: TorchEngine) -> None:
        engine._weights.publish(1, {name: each.clone() for name, each in engine._scheduler.weights.items()})
        with pytest.raises(OutOfMemory, match="too little memory for the engine's weights"):
            await engine.load(1)

    run(engine, play)


def test_engine_thread_count_does_not_leak(make: Make) -> None:
    before = torch.get_num_threads()
    seen = list[int]()

    async def play(engine: TorchEngine) -> None:
        step = engine._scheduler.step

        def watched() -> None:
            seen.append(torch.get_num_threads())
            step()

        engine._scheduler.step = watched  # type: ignore[method-assign]
        await engine.generate(PROMPT, 2, HOT)
        seen.append(await asyncio.to_thread(torch.get_num_threads))

    try:
        torch.set_num_threads(3)
        run(make(threads=1), play)
        assert set(seen[:-1]) == {1}
        assert seen[-1] == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
