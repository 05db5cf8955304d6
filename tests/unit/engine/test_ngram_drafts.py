"""Speculative decoding: drafts change no token, no log-prob and no frequency; only how many steps it takes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from random import Random

import pytest
import torch
from run_engine import run
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.engine import ngram_drafts
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import Prefix
from dojang.engine.ngram_drafts import NgramDrafts, make_drafts
from dojang.engine.sequence import Request
from dojang.engine.sequence import Sequence as Sample
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions

Ask = tuple[tuple[int, ...], int, Sampling]
Make = Callable[..., TorchEngine]


def samples(prompt: Sequence[int], *texts: Sequence[int]) -> list[Sample]:
    """Samples of one request that have these tokens."""
    request = Request(tuple(prompt), len(texts), Sampling(1.0, 100), lambda done: None)
    found = [Sample.of(request, at, Prefix(tuple(prompt)), 100) for at in range(len(texts))]
    for seq, text in zip(found, texts, strict=True):
        seq.tokens += text
    return found


def drafts_of(running: Sequence[Sample], most: int = 4, rows: int = 32, left: int = 50) -> list[list[int]]:
    drafts = NgramDrafts(most, lambda running: rows)
    for seq in running:
        drafts.learn(seq)
    return drafts.draft(running, [left] * len(running))


def test_what_followed_in_the_prompt_in_a_sample_or_in_another_is_drafted() -> None:
    assert drafts_of(samples([1, 2, 3, 4, 5, 6], [2, 3])) == [[4, 5, 6, 2]]
    assert drafts_of(samples([9], [1, 2, 3, 4, 1, 2])) == [[3, 4, 1, 2]]
    assert drafts_of(samples([9], [1, 2, 3, 4], [5, 1, 2])) == [[], [3, 4]]
    assert drafts_of(samples([9], [1, 2, 3])) == [[]]


def test_the_longest_ngram_decides_and_then_the_commonest_token() -> None:
    (found,) = drafts_of(samples([1, 2, 3, 7, 5, 2, 3, 8, 5, 2, 3, 8], [1, 2, 3]), most=1)
    assert found == [7]
    (found,) = drafts_of(samples([1, 2, 3, 7, 5, 2, 3, 8, 5, 2, 3, 8], [6, 2, 3]), most=1)
    assert found == [8]


def test_drafts_end_before_the_limit_of_a_sample() -> None:
    running = samples([1, 2, 3, 4, 5, 6], [2, 3])
    assert drafts_of(running, most=2) == [[4, 5]]
    assert drafts_of(running, left=2) == [[4]]
    assert drafts_of(running, left=1) == [[]]


def test_rows_are_given_to_the_most_probable_drafts() -> None:
    sure, unsure = [1, 2, 3] * 9, [4, 5, 4, 6, 4, 7, 4]
    assert drafts_of(samples([9], sure, unsure), most=3, rows=4) == [[1, 2], []]
    assert drafts_of(samples([9], sure, unsure), most=3, rows=6) == [[1, 2, 3], [5]]
    assert drafts_of(samples([9], sure, unsure), most=3, rows=2) == [[], []]


def test_counting_ends_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_drafts, "_MOST_COUNTED", 10)
    assert drafts_of(samples([1, 2, 3, 4], [1, 2])) == [[3, 4, 1, 2]]
    assert drafts_of(samples([1, 2, 3, 4], [5, 6, 7, 8, 20, 21, 20])) == [[21]]
    assert drafts_of(samples([1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 20, 21, 20])) == [[]]


def test_only_the_end_of_a_prompt_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation is a new prompt in every turn."""
    monkeypatch.setattr(ngram_drafts, "_MOST_OF_PROMPT", 4)
    assert drafts_of(samples([1, 2, 3, 4, 5, 6, 7, 8], [5])) == [[6, 7, 8, 5]]
    assert drafts_of(samples([1, 2, 3, 4, 5, 6, 7, 8], [1, 2])) == [[]]


def test_drafts_that_can_never_be_made_are_warned_of() -> None:
    with pytest.warns(RuntimeWarning, match="speculative_tokens=4 has no effect"):
        assert make_drafts(4, lambda running: running) is None
    assert make_drafts(0, lambda running: running) is None
    assert isinstance(make_drafts(4, lambda running: 3), NgramDrafts)


def test_tokens_are_counted_once_and_forgotten_with_their_request() -> None:
    drafts = NgramDrafts(4, lambda running: 32)
    first, second = samples([1, 2, 3], [4], [2])
    drafts.learn(first)
    drafts.learn(second)
    assert drafts.draft([second], [50]) == [[3, 4]]
    (counts,) = drafts._counts.values()
    assert counts.total == 5
    first.tokens += [5, 6]
    assert drafts.draft([second], [50]) == [[3, 4, 5, 6]], "also what was sampled since"
    assert counts.total == 7
    drafts.forget(first.request)
    assert not drafts._counts


@pytest.fixture
def make(
    micro_model: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    small_pages: int,
) -> Make:
    monkeypatch.setattr(Decoder, "cheap_rows", lambda self, count: 40)

    def make(tokens: int, *, pages: int | None = None, **options: float) -> TorchEngine:
        page_bytes = 2 * 2 * 2 * 8 * 8 * small_pages
        gb = None if pages is None else (pages + 1) * page_bytes / 2**30
        model = micro_model(torch.float64)
        weights = WeightVersions(torch.float64)
        return TorchEngine(
            model,
            tokenizer,
            weights,
            kv_cache_gb=gb,
            speculative_tokens=tokens,
            **{"max_num_seqs": 12, **options},  # type: ignore[arg-type]
        )

    return make


def count_drafts(engine: TorchEngine) -> Counter[str]:
    """Counts steps, draft tokens and accepted ones from now on."""
    scheduler, found = engine._scheduler, Counter[str]()
    decode = scheduler._runner.decode

    def counting(tokens, positions, inputs):  # type: ignore[no-untyped-def]
        result = decode(tokens, positions, inputs)
        found["steps"] += 1
        if any(inputs.drafts):
            found["drafted"] += sum(map(len, inputs.drafts))
            found["accepted"] += int((result().count_N - 1).sum())
        return result

    scheduler._runner.decode = counting  # type: ignore[method-assign]
    return found


def ragged(seed: int, count: int) -> list[Ask]:
    random = Random(seed)
    return [
        (
            tuple(random.choices(range(5, 25), k=random.choice((1, 3, 9, 40)))),
            random.choice((1, 2, 5)),
            Sampling(
                temperature=random.choice((0.0, 0.0, 0.3, 1.0, 5.0)),
                max_tokens=random.choice((1, 2, 10, 40)),
                seed=1,
                prompt_index=at,
                top_k=random.choice((0, 0, 3)),
                stop=random.choice(((), (), ("e", "the"))),
                conversation=random.choice(("", f"talk {at}")),
            ),
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("options", [{}, {"pages": 20}, {"prefix_cache_gb": 0.01}, {"prefill_chunk_tokens": 3}])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_tokens_and_log_probs_as_without(make: Make, seed: int, options: dict[str, float]) -> None:
    asks = ragged(seed, 25)

    async def turns(engine: TorchEngine) -> list[list[Completion]]:
        first = await asyncio.gather(*(engine.generate(*ask) for ask in asks))
        longer = [(ask[0] + found[0].tokens + (7,), *ask[1:]) for ask, found in zip(asks, first, strict=True)]
        return [*first, *await asyncio.gather(*(engine.generate(*ask) for ask in longer))]

    engine = make(4, **options)
    counts = count_drafts(engine)
    found, expected = run(engine, turns), run(make(0, **options), turns)
    for mine, theirs in zip(found, expected, strict=True):
        for each, other in zip(mine, theirs, strict=True):
            assert (each.tokens, each.text, each.finish) == (other.tokens, other.text, other.finish)
            assert each.logprobs == pytest.approx(other.logprobs, abs=1e-9)
            assert each.plain_logprobs == pytest.approx(other.plain_logprobs, abs=1e-9)
            assert each.spans == other.spans
    assert 0 < counts["accepted"] < counts["drafted"]


def test_greedy_loops_take_fewer_steps(make: Make) -> None:
    asks = [((5, 6, 7), 1, Sampling(0.0, 60, prompt_index=at)) for at in range(3)]

    def steps(tokens: int) -> int:
        engine = make(tokens)
        counts = count_drafts(engine)
        run(engine, lambda engine: asyncio.gather(*(engine.generate(*ask) for ask in asks)))
        return counts["steps"]

    assert steps(4) < 0.6 * steps(0)


class ForcedDrafts:
    """Drafts the same tokens in every step."""

    def __init__(self, draft: Sequence[int]) -> None:
        self._draft = list(draft)

    def has_room(self, running: int) -> bool:
        return True

    def draft(self, running: Sequence[Sample], left: Sequence[int]) -> list[list[int]]:
        return [self._draft[: more - 1] for more in left]

    def learn(self, seq: Sample) -> None:
        pass

    def forget(self, request: Request) -> None:
        pass


@pytest.mark.parametrize("draft", [[], [30], [31, 32], [32, 32]])
def test_frequencies_are_those_of_the_model(
    make: Make, micro_model: Callable[..., PreTrainedModel], draft: Sequence[int]
) -> None:
    """Chi-squared test of all texts of three tokens out of three, against the probabilities of a forward pass."""
    words, prompt, drawn = (30, 31, 32), (5, 9, 14), 3000
    bias = tuple((word, 80.0) for word in words)
    engine = make(2, max_num_seqs=24)
    engine._scheduler._drafts = ForcedDrafts(draft)  # type: ignore[assignment]
    (texts,) = run(
        engine,
        lambda engine: asyncio.gather(engine.generate(prompt, drawn, Sampling(1.0, 3, seed=5, bias=bias))),
    )
    found = Counter(each.tokens for each in texts)
    model, statistic = micro_model(torch.float64), 0.0
    for text in product(words, repeat=3):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
        chances = logits[:, list(words)].softmax(-1)
        chance = float(torch.stack([chances[at, words.index(word)] for at, word in enumerate(text)]).prod())
        statistic += (found[text] - drawn * chance) ** 2 / (drawn * chance)
    assert sum(found[text] for text in product(words, repeat=3)) == drawn
    assert statistic < 54.1, "the 99.9% quantile of chi-squared with 26 degrees of freedom"


def test_new_weights_while_drafts_are_verified(make: Make, micro_model: Callable[..., PreTrainedModel]) -> None:
    engine = make(4)
    weights = WeightVersions(torch.float64)
    weights.publish(1, dict(micro_model(torch.float64, seed=7).named_parameters()))
    engine._weights = weights

    async def play(engine: TorchEngine) -> list[list[Completion]]:
        running = asyncio.gather(
            *(engine.generate((5, 6, at), 2, Sampling(0.3, 300, prompt_index=at)) for at in range(3))
        )
        while not any(len(seq.tokens) >= 5 for seq in engine._scheduler._running):
            await asyncio.sleep(0.001)
        await engine.load(1)
        return await running

    for completions in run(engine, play):
        for each in completions:
            assert [span.end for span in each.spans][-1] == len(each.tokens)
            assert len(each.logprobs) == len(each.tokens)


def test_rows_that_cost_hardly_anything(micro_model: Callable[..., PreTrainedModel]) -> None:
    decoder = Decoder(micro_model(torch.float32))
    decoder.row_multiple = 1
    assert [decoder.cheap_rows(count) for count in (1, 3, 4, 70)] == [3, 3, 4, 70]
    decoder.row_multiple = 16
    assert [decoder.cheap_rows(count) for count in (1, 16, 17)] == [16, 16, 32]
    decoder.row_multiple, decoder.dtype = 1, torch.bfloat16
    assert decoder.cheap_rows(1) == 1
    decoder.row_multiple, decoder._wide = 16, True
    assert decoder.cheap_rows(1) == 1, "the head's product is not padded"
