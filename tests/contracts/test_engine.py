"""What every RolloutEngine promises, and what only the one that computes can promise."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.engine.generate_engine import GenerateEngine
from dojang.engine.torch_engine import TorchEngine
from dojang.inference.engine_pool import EnginePool
from dojang.protocols import RolloutEngine
from dojang.trainer.forward import token_logprobs
from dojang.trainer.packed_attention import use_packed_attention
from dojang.trainer.packing import micro_batches
from dojang.types import Completion, Outcome, Sample, Sampling, StopLine, Verdict
from dojang.weight_sync.versions import WeightVersions
from ray_cluster import NEEDS_RAY, alone
from scripted_engine import ScriptedEngine
from tiny_models import MODELS, tiny_model
from vllm_servers import NEEDS_VLLM, DeltaReceiver, served

Ask = tuple[Sequence[int], int, Sampling]
MakeTorch = Callable[..., TorchEngine]

WARM = Sampling(temperature=1.0, max_tokens=12, seed=3)
PROMPTS = [tuple(range(10, 10 + length)) for length in (9, 1, 17, 4)]


def run(engine: RolloutEngine, *asks: Ask) -> list[list[Completion]]:
    """All at once, in a loop of their own; the engine is closed afterwards."""

    async def together() -> list[list[Completion]]:
        try:
            return await asyncio.gather(*(engine.generate(*ask) for ask in asks))
        finally:
            await engine.close()

    return asyncio.run(together())


def tokens_of(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [each.tokens for each in completions]


@pytest.fixture
def torch_engine(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> MakeTorch:
    def make(dtype: torch.dtype = torch.float64, max_num_seqs: int = 64) -> TorchEngine:
        weights = WeightVersions(dtype)
        weights.publish(7, dict(micro_model(dtype, seed=7).named_parameters()))
        return TorchEngine(micro_model(dtype), tokenizer, weights, max_num_seqs=max_num_seqs)

    return make


@pytest.fixture
def generate_engine(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> Callable[[], RolloutEngine]:
    def make() -> GenerateEngine:
        weights = WeightVersions(torch.float64)
        weights.publish(7, dict(micro_model(torch.float64, seed=7).named_parameters()))
        return GenerateEngine(micro_model(torch.float64), tokenizer, weights, max_num_seqs=8)

    return make


@pytest.fixture(scope="module")
def ray_engine(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> Iterator[RolloutEngine]:
    """One for all, since a process that has torch takes a while to begin."""
    from ray import cloudpickle

    from dojang.cluster.ray.engines import RayEngine, Sampler
    from dojang.cluster.ray.object_store import LatestWeights, PublishedWeights, ReceivedWeights, put_weights
    from dojang.cluster.ray.placement import reserve

    class Versions(LatestWeights):
        def find(self, version: int) -> PublishedWeights:
            return PublishedWeights(put_weights(dict(micro_model(torch.float64, seed=version).named_parameters())))

    def sampler() -> Sampler:
        weights = ReceivedWeights()
        return Sampler(TorchEngine(micro_model(torch.float64), tokenizer, weights, max_num_seqs=64), weights)

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # its stop lines are functions of this file
    with alone(1):
        (placement,) = reserve("engine 1", 1, cpus=1, gpus=0, strategy="PACK", timeout_s=120)
        engine = RayEngine(sampler, placement, Versions(), 120.0)
        yield engine
        asyncio.run(engine.close())


@pytest.fixture(
    params=[
        "torch",
        "generate",
        "scripted",
        "pool",
        pytest.param("ray", marks=NEEDS_RAY),
        pytest.param("vllm", marks=NEEDS_VLLM),
        pytest.param("remote", marks=NEEDS_VLLM),
    ]
)
def make_engine(
    request: pytest.FixtureRequest,
    torch_engine: MakeTorch,
    generate_engine: Callable[[], RolloutEngine],
    tokenizer: PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[], RolloutEngine]:
    """Makes engines that all hold the same policy, and have version 7 to load."""

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        return f"{prompt[:3]} {index} {sampling.prompt_index}" * (index % 3)

    makers: dict[str, Callable[[], RolloutEngine]] = {
        "torch": torch_engine,
        "generate": generate_engine,
        "scripted": lambda: ScriptedEngine(tokenizer, script),
        "pool": lambda: EnginePool([torch_engine(max_num_seqs=4), torch_engine()]),
        "ray": lambda: DeltaReceiver(request.getfixturevalue("ray_engine"), close=False),
        **served(request.config, tokenizer, tmp_path_factory).makers(),
    }
    return makers[request.param]


# Every engine


@pytest.mark.parametrize("n", [1, 5])
def test_n_completions_with_a_log_prob_per_token(
    make_engine: Callable[[], RolloutEngine], tokenizer: PreTrainedTokenizerBase, n: int
) -> None:
    [completions] = run(make_engine(), (PROMPTS[0], n, WARM))
    assert len(completions) == n
    for each in completions:
        assert 1 <= len(each.tokens) == len(each.logprobs)
        assert all(0 <= token < len(tokenizer) for token in each.tokens)
        assert all(logprob <= 0 for logprob in each.logprobs)


@pytest.mark.parametrize("limit", [1, 3, 40])
def test_a_completion_ends_with_the_end_token_or_at_the_limit(
    make_engine: Callable[[], RolloutEngine], tokenizer: PreTrainedTokenizerBase, limit: int
) -> None:
    [completions] = run(make_engine(), (PROMPTS[0], 8, replace(WARM, max_tokens=limit)))
    for each in completions:
        assert tokenizer.eos_token_id not in each.tokens[:-1]
        if each.finish == "stop":
            assert each.tokens[-1] == tokenizer.eos_token_id
            assert len(each.tokens) <= limit
        else:
            assert len(each.tokens) == limit


@pytest.mark.parametrize("limit", [2, 40])
def test_the_text_is_what_the_tokens_say(
    make_engine: Callable[[], RolloutEngine], tokenizer: PreTrainedTokenizerBase, limit: int
) -> None:
    [completions] = run(make_engine(), (PROMPTS[0], 4, replace(WARM, max_tokens=limit)))
    for each in completions:
        assert each.text == tokenizer.decode(each.tokens, skip_special_tokens=True)


def test_completions_carry_the_version_that_was_loaded(make_engine: Callable[[], RolloutEngine]) -> None:
    engine = make_engine()

    async def before_and_after() -> tuple[list[Completion], list[Completion]]:
        before = await engine.generate(PROMPTS[0], 2, WARM)
        await engine.load(7)
        after = await engine.generate(PROMPTS[0], 2, WARM)
        await engine.close()
        return before, after

    before, after = asyncio.run(before_and_after())
    assert [each.version for each in before] == [0, 0]
    assert [each.version for each in after] == [7, 7]


def test_requests_made_at_once_are_answered_as_if_made_in_turn(
    make_engine: Callable[[], RolloutEngine], request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["make_engine"] in ("vllm", "remote"):
        pytest.skip("its tokens depend on what else is being decoded")
    asks = [(prompt, 1 + at % 3, replace(WARM, prompt_index=at)) for at, prompt in enumerate(PROMPTS * 3)]
    together = run(make_engine(), *asks)
    for ask, completions in zip(asks, together, strict=True):
        [alone] = run(make_engine(), ask)
        assert tokens_of(completions) == tokens_of(alone)


def test_the_same_sampling_gives_the_same_tokens(make_engine: Callable[[], RolloutEngine]) -> None:
    first, second = (run(make_engine(), (PROMPTS[1], 4, WARM)) for _ in range(2))
    assert first == second


def test_closing_an_idle_engine_twice_is_harmless(make_engine: Callable[[], RolloutEngine]) -> None:
    engine = make_engine()

    async def close_twice() -> int:
        completions = await engine.generate(PROMPTS[0], 2, WARM)
        await engine.close()
        await engine.close()
        return len(completions)

    assert asyncio.run(close_twice()) == 2


def end_of_marked_line(text: str) -> int | None:
    """The line break after the first line that has an e."""
    at = text.find("e")
    end = text.find("\n", at) if at >= 0 else -1
    return end if end >= 0 else None


MARKED = StopLine(("e",), end_of_marked_line, whole_line=True)


def test_a_completion_ends_with_the_stop_line(
    make_engine: Callable[[], RolloutEngine], tokenizer: PreTrainedTokenizerBase, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["make_engine"] == "scripted":
        pytest.skip("its completions end where the script says")
    [e, line_break] = [tokenizer.encode(text)[0] for text in ("e", "\n")]
    sampling = replace(WARM, max_tokens=60, bias=((e, 5.0), (line_break, 5.0)), stop_line=MARKED)
    [completions] = run(make_engine(), (PROMPTS[0], 8, sampling))
    ended = 0
    for each in completions:
        whole = tokenizer.decode(each.tokens, skip_special_tokens=True)
        assert len(each.tokens) == len(each.logprobs) <= 60
        assert end_of_marked_line(tokenizer.decode(each.tokens[:-1], skip_special_tokens=True)) is None
        if (end := end_of_marked_line(whole)) is not None:
            ended += 1
            assert (each.finish, each.text) == ("stop", whole[:end])
    assert ended  # the bias makes such lines likely


# The engine that computes


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_a_plain_forward_pass(
    torch_engine: MakeTorch,
    micro_model: Callable[..., PreTrainedModel],
    temperature: float,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    asks = [(prompt, 2, replace(WARM, temperature=temperature, prompt_index=at)) for at, prompt in enumerate(PROMPTS)]
    model = micro_model(dtype)
    for (prompt, _, _), completions in zip(asks, run(torch_engine(dtype), *asks), strict=True):
        for each in completions:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + each.tokens])).logits[0, len(prompt) - 1 : -1]
            expected = (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(each.tokens)[:, None])[:, 0]
            assert each.logprobs == pytest.approx(expected.tolist(), abs=tolerance)


def test_greedy_takes_the_likeliest_token_each_time(
    torch_engine: MakeTorch, micro_model: Callable[..., PreTrainedModel]
) -> None:
    [[first, second]] = run(torch_engine(), (PROMPTS[0], 2, replace(WARM, temperature=0.0)))
    with torch.no_grad():
        logits = micro_model(torch.float64)(input_ids=torch.tensor([PROMPTS[0] + first.tokens])).logits[0]
    assert first.tokens == tuple(logits[len(PROMPTS[0]) - 1 : -1].argmax(-1).tolist())
    assert second.tokens == first.tokens


def test_ragged_prompts_in_one_batch_do_not_disturb_each_other(torch_engine: MakeTorch) -> None:
    asks = [(prompt, 2, replace(WARM, prompt_index=at, max_tokens=6 + 5 * at)) for at, prompt in enumerate(PROMPTS)]
    together = run(torch_engine(), *asks)
    alone = [run(torch_engine(), ask)[0] for ask in asks]
    for some, same in zip(together, alone, strict=True):
        assert tokens_of(some) == tokens_of(same)
        for one, other in zip(some, same, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-10)


def test_a_sample_does_not_depend_on_how_many_are_drawn(torch_engine: MakeTorch) -> None:
    [many] = run(torch_engine(), (PROMPTS[2], 5, WARM))
    [few] = run(torch_engine(), (PROMPTS[2], 2, WARM))
    assert tokens_of(many)[:2] == tokens_of(few)
    assert len(set(tokens_of(many))) == 5


@pytest.mark.parametrize("other", [replace(WARM, prompt_index=1), replace(WARM, seed=4)])
def test_another_stream_gives_other_tokens(torch_engine: MakeTorch, other: Sampling) -> None:
    mine, others = run(torch_engine(), (PROMPTS[0], 3, WARM), (PROMPTS[0], 3, other))
    assert not set(tokens_of(mine)) & set(tokens_of(others))


def test_loading_changes_the_policy(torch_engine: MakeTorch, micro_model: Callable[..., PreTrainedModel]) -> None:
    engine = torch_engine()

    async def loaded() -> list[Completion]:
        await engine.load(7)
        completions = await engine.generate(PROMPTS[0], 1, WARM)
        await engine.close()
        return completions

    [completion] = asyncio.run(loaded())
    with torch.no_grad():
        logits = micro_model(torch.float64, seed=7)(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1]
    assert completion.logprobs[0] == pytest.approx(float(logits.log_softmax(-1)[completion.tokens[0]]), abs=1e-10)


def test_a_version_that_is_not_held_cannot_be_loaded(torch_engine: MakeTorch) -> None:
    engine = torch_engine()

    async def load_and_go_on() -> list[Completion]:
        with pytest.raises(LookupError, match="version 8 is not held; the store has 7"):
            await engine.load(8)
        completions = await engine.generate(PROMPTS[0], 1, WARM)
        await engine.close()
        return completions

    assert [each.version for each in asyncio.run(load_and_go_on())] == [0]


def test_a_stop_string_cuts_the_text_but_keeps_the_tokens(
    torch_engine: MakeTorch, tokenizer: PreTrainedTokenizerBase
) -> None:
    [[free]] = run(torch_engine(), (PROMPTS[0], 1, WARM))
    stop = next(tokenizer.decode([token]) for token in free.tokens[3:] if tokenizer.decode([token]).isascii())
    [[stopped]] = run(torch_engine(), (PROMPTS[0], 1, replace(WARM, stop=(stop,))))
    assert stopped.finish == "stop"
    assert stopped.tokens == free.tokens[: len(stopped.tokens)]
    whole = tokenizer.decode(stopped.tokens)
    assert whole.count(stop) == 1
    assert stopped.text == whole[: whole.index(stop)]


@pytest.mark.parametrize("max_num_seqs", [2, 64])
def test_a_stop_line_changes_neither_tokens_nor_log_probs_before_it(
    torch_engine: MakeTorch,
    micro_model: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    max_num_seqs: int,
) -> None:
    line = StopLine(
        ("e", "a"), lambda text: min((at for at in (text.find("e"), text.find("a")) if at >= 0), default=None)
    )
    free_sampling = replace(WARM, max_tokens=40)
    asks = [(prompt, 4, replace(free_sampling, prompt_index=at)) for at, prompt in enumerate(PROMPTS)]
    stopping = [(prompt, n, replace(sampling, stop_line=line)) for prompt, n, sampling in asks]
    free, stopped = (run(torch_engine(max_num_seqs=max_num_seqs), *each) for each in (asks, stopping))
    shorter = 0
    for prompt, whole, cut in [
        (prompt, *pair)
        for prompt, *each in zip(PROMPTS, free, stopped, strict=True)
        for pair in zip(*each, strict=True)
    ]:
        count = len(cut.tokens)
        shorter += count < len(whole.tokens)
        assert cut.tokens == whole.tokens[:count]
        assert cut.logprobs == pytest.approx(whole.logprobs[:count], abs=1e-9)
        with torch.no_grad():
            logits_TV = micro_model(torch.float64)(input_ids=torch.tensor([[*prompt, *cut.tokens]])).logits[0]
        logp_T = logits_TV[len(prompt) - 1 : -1].log_softmax(-1)[torch.arange(count), torch.tensor(cut.tokens)]
        assert list(cut.logprobs) == pytest.approx(logp_T.tolist(), abs=1e-9)
        sample = Sample.of(prompt, cut, Verdict(Outcome.WRONG, 0.0))
        assert sample.mask.tolist() == [False] * len(prompt) + [True] * count
    assert shorter > 4


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_more_requests_than_slots(torch_engine: MakeTorch, max_num_seqs: int) -> None:
    asks = [(prompt, 2, replace(WARM, prompt_index=at)) for at, prompt in enumerate(PROMPTS * 2)]
    squeezed, roomy = run(torch_engine(max_num_seqs=max_num_seqs), *asks), run(torch_engine(max_num_seqs=64), *asks)
    assert [tokens_of(each) for each in squeezed] == [tokens_of(each) for each in roomy]


def test_an_answer_is_handed_over_while_others_still_decode(torch_engine: MakeTorch) -> None:
    engine = torch_engine()
    order: list[int] = []

    async def ask(at: int, limit: int) -> None:
        await engine.generate(PROMPTS[0], 1, replace(WARM, max_tokens=limit, prompt_index=at))
        order.append(limit)

    async def together() -> None:
        await asyncio.gather(ask(0, 60), ask(1, 2), ask(2, 20))
        await engine.close()

    asyncio.run(together())
    assert order[0] == 2


def test_closing_with_requests_under_way_fails_them_and_ends_the_thread(torch_engine: MakeTorch) -> None:
    engine = torch_engine(max_num_seqs=8)
    endless = replace(WARM, max_tokens=20_000, temperature=5.0)  # hot enough not to settle on the end token

    async def close_early() -> list[object]:
        asks = [
            asyncio.create_task(engine.generate(PROMPTS[0], 8, replace(endless, prompt_index=at))) for at in range(3)
        ]
        await asyncio.sleep(0.05)
        assert threads()
        await asyncio.wait_for(engine.close(), timeout=10)
        results = await asyncio.wait_for(asyncio.gather(*asks, return_exceptions=True), timeout=10)
        with pytest.raises(RuntimeError, match="the engine is closed"):
            await engine.generate(PROMPTS[0], 1, WARM)
        return list(results)

    results = asyncio.run(close_early())
    assert [type(result) for result in results] == [asyncio.CancelledError] * 3
    assert not threads()


def test_a_failure_while_decoding_reaches_the_caller_and_the_engine_lives_on(
    torch_engine: MakeTorch, tokenizer: PreTrainedTokenizerBase
) -> None:
    engine = torch_engine()

    async def fail_and_go_on() -> list[Completion]:
        with pytest.raises(IndexError):
            await asyncio.wait_for(engine.generate((5, len(tokenizer) + 1), 2, WARM), timeout=10)
        completions = await asyncio.wait_for(engine.generate(PROMPTS[0], 2, WARM), timeout=10)
        await engine.close()
        return completions

    assert len(asyncio.run(fail_and_go_on())) == 2
    assert not threads()


def test_a_request_that_was_given_up_does_not_hold_up_the_next(torch_engine: MakeTorch) -> None:
    engine = torch_engine(max_num_seqs=2)

    async def give_up() -> list[Completion]:
        first = asyncio.create_task(engine.generate(PROMPTS[0], 2, WARM))
        second = asyncio.create_task(engine.generate(PROMPTS[1], 2, replace(WARM, prompt_index=1)))
        await asyncio.sleep(0)
        first.cancel()
        completions = await asyncio.wait_for(second, timeout=10)
        assert first.cancelled()
        await engine.close()
        return completions

    completions = asyncio.run(give_up())
    [alone] = run(torch_engine(), (PROMPTS[1], 2, replace(WARM, prompt_index=1)))
    assert tokens_of(completions) == tokens_of(alone)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rollout")]


@pytest.mark.numerical
@pytest.mark.parametrize("name", [name for name in MODELS if " " not in name])
def test_every_family_samples_with_the_log_probs_of_the_trainer(
    name: str, tokenizer: PreTrainedTokenizerBase, make_sample: Callable[..., Sample]
) -> None:
    """After a weight update, with prompts shorter and longer than the sliding window, prefilled in chunks."""
    trained, weights = tiny_model(name, seed=7), WeightVersions(torch.float32)
    weights.publish(7, dict(trained.named_parameters()))
    engine = TorchEngine(tiny_model(name), tokenizer, weights, max_num_seqs=4, prefill_chunk_tokens=8)
    asks = [(prompt, 2, replace(WARM, temperature=0.7, prompt_index=at)) for at, prompt in enumerate(PROMPTS)]

    async def updated() -> list[list[Completion]]:
        await engine.load(7)
        groups = await asyncio.gather(*(engine.generate(*ask) for ask in asks))
        await engine.close()
        return groups

    completions = [
        (prompt, each) for (prompt, *_), group in zip(asks, asyncio.run(updated()), strict=True) for each in group
    ]
    samples = [make_sample(prompt=prompt, answer=each.tokens, logprobs=each.logprobs) for prompt, each in completions]
    use_packed_attention(trained)
    (batch,) = micro_batches(samples, 10_000, torch.device("cpu"))
    with torch.no_grad():
        logp_BT, _ = token_logprobs(trained, batch, temperature=0.7, compute=torch.float32)
    torch.testing.assert_close(logp_BT, batch.behaviour_logp_BT.to(logp_BT), rtol=0, atol=2e-4)
