"""What engines that use vLLM promise, with real vLLM: in this process, and in a server."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dojang.core.checksum import checksum
from dojang.core.errors import ModelError
from dojang.inference.remote import RemoteEngine
from dojang.inference.vllm_base import VllmBaseEngine
from dojang.protocols import Patch
from dojang.types import Completion, Sampling
from vllm_servers import CONTEXT, NEEDS_VLLM, Served, tiny

pytestmark = [*NEEDS_VLLM, pytest.mark.slow]

T = TypeVar("T")
Get = Callable[[], VllmBaseEngine]
WARM = Sampling(temperature=1.0, max_tokens=12, seed=3)
LONG = Sampling(temperature=2.0, max_tokens=1000, seed=3, bias=((1, -100.0),))
"""Without the end token: it takes seconds."""
PROMPT = tuple(range(10, 22))


class TooLateError(Exception):
    """What was to happen under a sample happened after its end. vLLM may take seconds to hear of it where its
    processes wait for each other in a loop and there are not cores enough for all of them."""


def run(get: Get, play: Callable[[VllmBaseEngine], Awaitable[T]]) -> T:
    """With the weights of version 0. A server's client is closed; the engine in this process is kept for others."""

    async def whole() -> T:
        engine = get()
        try:
            await engine.load(0)
            return await asyncio.wait_for(play(engine), 120)
        finally:
            if isinstance(engine, RemoteEngine):
                await engine.close()

    for _ in range(5):
        with suppress(TooLateError):
            return asyncio.run(whole())
    raise TooLateError


def check_in_time(asked: "asyncio.Task[list[Completion]]") -> None:
    if asked.done():
        raise TooLateError


async def under_way(engine: VllmBaseEngine, samples: int) -> None:
    """Until something has been written, which nobody tells before its end."""
    while (await engine.state()).running < samples:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)


def scores(
    tokenizer: PreTrainedTokenizerBase, version: int, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> Tensor:
    """Log-probs of tokens by transformers, with the weights of a version."""
    with torch.no_grad():
        logits = tiny(tokenizer, version)(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    for token, value in sampling.bias:
        logits[:, token] += value
    logits = logits / sampling.temperature
    if sampling.top_k:
        logits[logits < logits.topk(sampling.top_k).values[:, -1:]] = -torch.inf
    if sampling.min_p:
        logits[logits < logits.amax(-1, keepdim=True) + math.log(sampling.min_p)] = -torch.inf
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.mark.parametrize(
    "sampling",
    [
        WARM,
        replace(WARM, temperature=0.7),
        replace(WARM, top_k=5),
        replace(WARM, min_p=0.5),
        replace(WARM, bias=((30, 4.0), (31, -9.0))),
    ],
    ids=["plain", "temperature", "top-k", "min-p", "bias"],
)
def test_log_probs_are_those_of_the_distribution_drawn_from(
    get: Get, tokenizer: PreTrainedTokenizerBase, sampling: Sampling
) -> None:
    for each in run(get, lambda engine: engine.generate(PROMPT, 4, sampling)):
        expected = scores(tokenizer, 0, PROMPT, each.tokens, sampling)
        assert each.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert each.plain_logprobs == ()


def test_greedy_takes_the_likeliest_token_each_time(get: Get, tokenizer: PreTrainedTokenizerBase) -> None:
    [one] = run(get, lambda engine: engine.generate(PROMPT, 1, replace(WARM, temperature=0.0)))
    with torch.no_grad():
        logits = tiny(tokenizer)(input_ids=torch.tensor([[*PROMPT, *one.tokens]])).logits[0, len(PROMPT) - 1 : -1]
    assert one.tokens == tuple(logits.argmax(-1).tolist())
    assert one.logprobs == pytest.approx(logits.log_softmax(-1).amax(-1).tolist(), abs=1e-4)


def test_seeds_tell_samples_apart_and_repeat_them(get: Get) -> None:
    async def play(engine: VllmBaseEngine) -> list[list[Completion]]:
        asks = [WARM, WARM, replace(WARM, prompt_index=1), replace(WARM, seed=4)]
        return [await engine.generate(PROMPT, 4, each) for each in asks]

    first, again, *others = ([each.tokens for each in group] for group in run(get, play))
    assert first == again
    assert len(set(first)) == 4
    for other in others:
        assert not set(first) & set(other)


def test_loading_makes_it_draw_from_the_new_weights(get: Get, tokenizer: PreTrainedTokenizerBase) -> None:
    async def play(engine: VllmBaseEngine) -> list[Completion]:
        await engine.generate(PROMPT, 2, WARM)  # so that something could be left over
        await engine.load(7)
        assert (await engine.state()).version == 7
        return await engine.generate(PROMPT, 2, WARM)

    for each in run(get, play):
        assert each.version == 7
        assert each.logprobs == pytest.approx(scores(tokenizer, 7, PROMPT, each.tokens, WARM).tolist(), abs=1e-4)


def test_a_weight_update_clears_the_prefix_cache(get: Get, tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = tuple(10 + at % 200 for at in range(300))  # long enough to be cached

    async def play(engine: VllmBaseEngine) -> list[Completion]:
        await engine.generate(prompt, 1, WARM)
        await engine.load(5)
        return await engine.generate(prompt, 1, WARM)

    [one] = run(get, play)
    assert one.logprobs == pytest.approx(scores(tokenizer, 5, prompt, one.tokens, WARM).tolist(), abs=1e-3)


def test_tokens_know_the_weights_that_drew_them(get: Get, tokenizer: PreTrainedTokenizerBase) -> None:
    async def play(engine: VllmBaseEngine) -> list[Completion]:
        asked = asyncio.create_task(engine.generate(PROMPT, 2, LONG))
        await under_way(engine, 2)
        await engine.load(7)
        if any(len(each.spans) < 2 for each in await asked):
            raise TooLateError
        return await asked

    for each in run(get, play):
        [old, new] = each.spans
        assert (old.version, old.start, new.version, new.end) == (0, 0, 7, len(each.tokens))
        assert 0 < old.end == new.start
        assert each.version == 0
        before = scores(tokenizer, 0, PROMPT, each.tokens[: old.end], LONG)
        assert each.logprobs[: old.end] == pytest.approx(before.tolist(), abs=1e-4)
        after = scores(tokenizer, 7, PROMPT, each.tokens, LONG)[old.end :].tolist()
        # Keys and values that are kept are not those of the new weights.
        assert each.logprobs[new.start :] != pytest.approx(after, abs=1e-3)


def test_a_stop_string_cuts_the_text_but_keeps_the_tokens(get: Get, tokenizer: PreTrainedTokenizerBase) -> None:
    async def play(engine: VllmBaseEngine) -> tuple[Completion, Completion, str]:
        [free] = await engine.generate(PROMPT, 1, replace(WARM, max_tokens=40))
        text = next(text for token in free.tokens[3:] if (text := tokenizer.decode([token])).isascii() and text)
        [stopped] = await engine.generate(PROMPT, 1, replace(WARM, max_tokens=40, stop=(text,)))
        return free, stopped, text

    free, stopped, stop = run(get, play)
    assert stopped.finish == "stop"
    assert stopped.tokens == free.tokens[: len(stopped.tokens)]
    whole = tokenizer.decode(stopped.tokens, skip_special_tokens=True)
    assert whole.count(stop) == 1
    assert stopped.text == whole[: whole.index(stop)]


def test_a_stop_token_ends_it_and_is_kept(get: Get) -> None:
    async def play(engine: VllmBaseEngine) -> tuple[Completion, Completion]:
        [free] = await engine.generate(PROMPT, 1, WARM)
        [stopped] = await engine.generate(PROMPT, 1, replace(WARM, stop_tokens=(free.tokens[4],)))
        return free, stopped

    free, stopped = run(get, play)
    assert stopped.tokens == free.tokens[: free.tokens.index(free.tokens[4]) + 1]
    assert stopped.finish == "stop"


def test_the_context_ends_a_sample(get: Get) -> None:
    prompt = PROMPT * (CONTEXT // len(PROMPT) - 1)

    async def play(engine: VllmBaseEngine) -> list[Completion]:
        with pytest.raises(ModelError, match=f"leaves no tokens to sample in a context of {CONTEXT}"):
            await engine.generate((5,) * CONTEXT, 1, LONG)
        return await engine.generate(prompt, 1, LONG)

    [one] = run(get, play)
    assert len(prompt) + len(one.tokens) == CONTEXT
    assert one.finish == "length"


def test_invalid_requests_are_refused_and_the_engine_stays_usable(get: Get, tokenizer: PreTrainedTokenizerBase) -> None:
    async def play(engine: VllmBaseEngine) -> list[Completion]:
        with pytest.raises(ValueError, match="at least one token"):
            await engine.generate((), 1, WARM)
        with pytest.raises((ValueError, IndexError)):
            await engine.generate((len(tokenizer) + 5000,), 1, WARM)
        with pytest.raises(IndexError):
            await engine.generate((-1,), 1, WARM)
        return await engine.generate(PROMPT, 1, WARM)

    assert len(run(get, play)) == 1


def test_a_request_that_was_given_up_ends_in_vllm_too(get: Get) -> None:
    async def play(engine: VllmBaseEngine) -> None:
        asked = asyncio.create_task(engine.generate(PROMPT, 16, LONG))
        await under_way(engine, 16)
        check_in_time(asked)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await engine.state()).running == 0
        started = asyncio.get_running_loop().time()
        await engine.generate(PROMPT, 16, replace(WARM, max_tokens=2))
        if asyncio.get_running_loop().time() - started > 5:  # they would take all slots for longer
            raise TooLateError

    run(get, play)


def test_patches_change_single_numbers(get: Get, tokenizer: PreTrainedTokenizerBase, kit: Served) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    index = torch.tensor([0, 70, 400])
    changed = dict(kit.weights.fetch(0))
    changed[name] = changed[name].clone()
    changed[name].view(-1)[index] = 3.0

    async def play(engine: VllmBaseEngine) -> list[Completion]:
        with pytest.raises(ValueError, match="cannot be updated from version 4"):
            await engine.begin(21, base=4)
        update = await engine.begin(21, base=0)
        with pytest.raises(ValueError, match="in progress"):
            await engine.begin(22)
        await update.patch([Patch(name, index, torch.full((3,), 3.0))])
        await update.commit(checksum(changed))
        assert await engine.checksum() == checksum(changed)
        return await engine.generate(PROMPT, 2, WARM)

    model = tiny(tokenizer)
    model.load_state_dict(changed, strict=False)
    for each in run(get, play):
        assert each.version == 21
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*PROMPT, *each.tokens]])).logits[0, len(PROMPT) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(each.tokens)[:, None])[:, 0]
        assert each.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_weights_that_were_changed_on_the_way_leave_it_dirty_until_whole_ones_come(get: Get, kit: Served) -> None:
    async def play(engine: VllmBaseEngine) -> list[Completion]:
        update = await engine.begin(7)
        await update.send(kit.weights.fetch(7))
        asked = asyncio.create_task(engine.generate(PROMPT, 2, LONG))
        await under_way(engine, 2)
        check_in_time(asked)
        with pytest.raises(ValueError, match="not 0123"):
            await update.commit("0123")
        with pytest.raises(RuntimeError, match="until full weights are loaded"):
            await asked
        assert "the update to version 7 failed" in (await engine.state()).dirty
        with pytest.raises(RuntimeError, match="until full weights are loaded"):
            await engine.generate(PROMPT, 1, WARM)
        with pytest.raises(ValueError, match="send full weights"):
            await engine.begin(8, base=0)
        await engine.load(7)
        assert (await engine.state()).dirty == ""
        return await engine.generate(PROMPT, 1, WARM)

    [one] = run(get, play)
    assert one.version == 7


def test_an_update_that_fails_in_vllm_leaves_it_dirty_until_whole_ones_come(
    get: Get, kit: Served, tokenizer: PreTrainedTokenizerBase
) -> None:
    async def play(engine: VllmBaseEngine) -> list[Completion]:
        short = {name: each for name, each in kit.weights.fetch(7).items() if "layers.1.mlp" not in name}
        update = await engine.begin(7)
        update._weights = {}  # type: ignore[assignment]  # as if nobody had noticed that some are missing
        update.tensors = dict(short)
        with pytest.raises(RuntimeError, match="weights were not in the update"):
            await update.commit()
        with pytest.raises(RuntimeError, match="until full weights are loaded"):
            await engine.generate(PROMPT, 1, WARM)
        await engine.load(5)
        return await engine.generate(PROMPT, 1, WARM)

    [one] = run(get, play)
    assert one.logprobs == pytest.approx(scores(tokenizer, 5, PROMPT, one.tokens, WARM).tolist(), abs=1e-4)


def test_an_update_can_be_given_up(get: Get, kit: Served) -> None:
    async def play(engine: VllmBaseEngine) -> list[Completion]:
        update = await engine.begin(7)
        await update.send(kit.weights.fetch(7))
        await update.give_up()
        with pytest.raises(LookupError):
            await engine.load(99)
        return await engine.generate(PROMPT, 1, WARM)

    assert [each.version for each in run(get, play)] == [0]


def test_only_the_newest_weights_are_kept_on_disk(get: Get) -> None:
    async def play(engine: VllmBaseEngine) -> list[Path]:
        for version in (1, 2, 3):
            await engine.load(version)
        assert engine._weight_files._folder is not None
        return list(engine._weight_files._folder.iterdir())

    assert len(run(get, play)) == 1
