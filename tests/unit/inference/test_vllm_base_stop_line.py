"""Stop lines of vLLM engines, over a fake connection that knows stop strings only, as vLLM does."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.inference.vllm_base import ModelInfo, VllmBaseEngine
from dojang.inference.vllm_protocol import VllmOutput
from dojang.tasks.stop_lines import AFTER_ANSWER_LINE, TURN_AFTER_PROGRAM
from dojang.types import Completion, Sampling, Span, StopLine
from dojang.weight_sync.weight_files import WeightFiles

PROMPT = (7, 8, 9)


class Writer:
    """A fake vLLM whose policy writes `text`, then an end token that the tokenizer does not declare."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str, step: int = 1) -> None:
        self.tokens = [*tokenizer.encode(text), 5]
        self.step = step
        """Tokens sampled at once: stop strings are searched for after each step, as with speculative decoding."""
        self.asked: list[Mapping[str, Any]] = []
        self._tokenizer = tokenizer

    async def ready(self) -> ModelInfo:
        return ModelInfo(4000, 300, 0)

    async def generate(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> VllmOutput:
        first = len(prompt) - len(PROMPT)
        assert tuple(prompt) == (*PROMPT, *self.tokens[:first])
        self.asked.append({**wanted, "first": first})
        label = str(len(self.asked))
        for end in range(first + 1, len(self.tokens) + self.step, self.step):
            fresh = self.tokens[first : min(end, first + wanted["max_tokens"], len(self.tokens))]
            written = self._tokenizer.decode(fresh)
            if fresh[-1] == 5 or any(each in written for each in wanted["stop"]):
                return self._output(fresh, "stop", label, first)
            if len(fresh) == wanted["max_tokens"]:
                return self._output(fresh, "length", label, first)
        raise AssertionError

    def _output(self, tokens: Sequence[int], finish: str, label: str, first: int) -> VllmOutput:
        logprobs = tuple(-float(first + at) for at in range(len(tokens)))
        return VllmOutput(tuple(tokens), logprobs, finish, ((label, 0, len(tokens)),))

    async def abort(self) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update(self, info: Mapping[str, Any], label: str) -> None: ...

    async def state(self) -> int | None:
        return 0

    async def close(self) -> None: ...


def write(
    tokenizer: PreTrainedTokenizerBase, text: str, line: StopLine | None, *, limit: int = 500, step: int = 1
) -> tuple[Completion, Writer]:
    connection = Writer(tokenizer, text, step)

    async def sample() -> Completion:
        engine = VllmBaseEngine(connection, WeightFiles(None), tokenizer, None)
        [completion] = await engine.generate(PROMPT, 1, Sampling(1.0, limit, stop=("Question:",), stop_line=line))
        await engine.close()
        return completion

    return asyncio.run(sample()), connection


@pytest.mark.parametrize("step", [1, 4])
def test_the_answer_line_takes_one_more_request(tokenizer: PreTrainedTokenizerBase, step: int) -> None:
    text = "see #### here\n3 + 4 = 7\n#### The final answer is 7\nHuman: What is 1 + 1?"
    found, connection = write(tokenizer, text, AFTER_ANSWER_LINE, step=step)
    assert (found.text, found.finish) == ("see #### here\n3 + 4 = 7\n#### The final answer is 7", "stop")
    count = len(found.tokens)
    assert list(found.tokens) == connection.tokens[:count]
    assert list(found.logprobs) == [-float(at) for at in range(count)]
    assert "Human" not in tokenizer.decode(found.tokens)
    stops = [asked["stop"] for asked in connection.asked]
    if step == 1:
        assert stops == [["Question:", "####"], ["Question:", "\n"]] * 2
    assert len({asked["seed"] for asked in connection.asked}) == len(stops)
    assert all(asked["max_tokens"] == 500 - asked["first"] for asked in connection.asked)
    ends = [*(asked["first"] for asked in connection.asked[1:]), count]
    starts = [0, *ends]
    assert found.spans == tuple(Span(at, *each) for at, each in enumerate(zip(starts, ends, strict=False), 1))


def test_an_end_token_ends_a_sample_that_was_handed_back(tokenizer: PreTrainedTokenizerBase) -> None:
    found, connection = write(tokenizer, "Human: is no turn here: no program", TURN_AFTER_PROGRAM)
    assert (found.text, found.finish) == (tokenizer.decode(connection.tokens, skip_special_tokens=True), "stop")
    assert list(found.tokens) == connection.tokens
    assert len(connection.asked) == 2


@pytest.mark.parametrize("limit", [4, 9, 20])
def test_the_limit_cuts_over_all_requests(tokenizer: PreTrainedTokenizerBase, limit: int) -> None:
    found, connection = write(tokenizer, "a #### b\n#### " + "1" * 60, AFTER_ANSWER_LINE, limit=limit)
    assert (list(found.tokens), found.finish) == (connection.tokens[:limit], "length")


def test_a_plain_stop_string_still_ends_it(tokenizer: PreTrainedTokenizerBase) -> None:
    found, connection = write(tokenizer, "I do not know.\nQuestion: What?\n#### 5\n", AFTER_ANSWER_LINE)
    assert (found.text, found.finish, len(connection.asked)) == ("I do not know.\n", "stop", 1)


def test_without_a_stop_line_there_is_one_request(tokenizer: PreTrainedTokenizerBase) -> None:
    found, connection = write(tokenizer, "#### 5\nHuman: more", None)
    assert [asked["stop"] for asked in connection.asked] == [["Question:"]]
    assert list(found.tokens) == connection.tokens
