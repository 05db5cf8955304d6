"""Conversations over the APIs of OpenAI and Anthropic: the engine and the trainer see the same tokens."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.types import Completion, Sampling
from policy_clients import RandomEngine, Served, check, policy_of, served, talk_openai, with_tools

Talk = Callable[[Served, int], Any]


async def talk_anthropic(at: Served, seed: int, turns: int = 10) -> None:
    """Ten requests to /v1/messages."""
    tool = {"name": "weather", "description": "Tells the weather.", "input_schema": {"type": "object"}}
    messages: list[Any] = [{"role": "user", "content": "what is 3 + 4?"}]
    for _ in range(turns):
        body = {"model": "policy", "max_tokens": 50, "system": "Be brief.", "messages": messages, "tools": [tool]}
        answer = await at.http.post("/v1/messages", json=body, headers={"x-api-key": at.key})
        reply = answer.json()
        assert answer.status_code == 200, reply
        messages.append({"role": "assistant", "content": reply["content"]})
        uses = [each for each in reply["content"] if each["type"] == "tool_use"]
        assert (reply["stop_reason"] == "tool_use") == bool(uses)
        results = [{"type": "tool_result", "tool_use_id": each["id"], "content": "sunny"} for each in uses]
        messages.append({"role": "user", "content": results or "go on"})


@pytest.mark.parametrize("talk", [talk_openai, talk_anthropic])
@pytest.mark.parametrize("seed", range(3))
def test_ten_turns_with_tools_are_one_stream_of_tokens(
    tokenizer: PreTrainedTokenizerBase, talk: Talk, seed: int
) -> None:
    own = with_tools(tokenizer)
    engine = RandomEngine(own, seed)

    async def run() -> None:
        async with served(policy_of(engine, own)) as at:
            await talk(at, seed)
            check(engine, at.session, streams=1)

    asyncio.run(run())
    assert len(engine.prompts) == 10
    assert [prompt[: len(before)] for before, prompt in zip(engine.prompts, engine.prompts[1:], strict=False)] == (
        engine.prompts[:-1]
    ), "each prompt begins with the one before"
    assert '"name": "weather"' in own.decode(list(engine.prompts[0])), "the model is told of the tools"


def test_a_history_that_the_client_has_changed_starts_a_new_stream(tokenizer: PreTrainedTokenizerBase) -> None:
    own = with_tools(tokenizer)
    engine = RandomEngine(own)
    messages: list[Any] = [{"role": "user", "content": "what is 3 + 4?"}]
    changed = [
        {"role": "assistant", "content": "something else"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": "function", "function": {
            "name": "weather", "arguments": "{}"}}]},
    ]  # fmt: skip

    async def run() -> None:
        async with served(policy_of(engine, own)) as at:
            await at.client.chat.completions.create(model="policy", messages=messages)
            for each in changed:
                more = [*messages, each, {"role": "user", "content": "and now?"}]
                await at.client.chat.completions.create(model="policy", messages=more)  # type: ignore[arg-type]
            check(engine, at.session, streams=3)

    asyncio.run(run())
    assert "something else<|end|>" in own.decode(list(engine.prompts[1]))
    assert '<tool_call>{"name": "weather", "arguments": {}}</tool_call><|end|>' in own.decode(list(engine.prompts[2]))


class SlowEngine(RandomEngine):
    """Answers the later of two requests first."""

    async def generate(self, prompt: Any, n: int, sampling: Sampling) -> list[Completion]:
        await asyncio.sleep(0.2 if not self.prompts else 0.0)
        return await super().generate(prompt, n, sampling)


def test_parallel_requests_of_a_session_are_streams_of_their_own(tokenizer: PreTrainedTokenizerBase) -> None:
    own = with_tools(tokenizer)
    engine = SlowEngine(own, 3)
    start: list[Any] = [{"role": "user", "content": "what is 3 + 4?"}]

    async def run() -> None:
        async with served(policy_of(engine, own)) as at:

            async def ask(messages: list[Any], n: int = 1) -> Any:
                return await at.client.chat.completions.create(model="policy", messages=messages, n=n)

            first = await ask(start)
            said = first.choices[0].message.model_dump(exclude_none=True)
            # Two sub-agents go on from the same place, one starts anew, and one asks for three replies.
            branches = [[*start, said, {"role": "user", "content": text}] for text in ("left", "right")]
            replies = await asyncio.gather(*map(ask, branches), ask([{"role": "user", "content": "other"}]))
            check(engine, at.session, streams=3)
            for branch, reply in zip(branches, replies, strict=False):
                more = reply.choices[0].message.model_dump(exclude_none=True)
                await ask([*branch, more, {"role": "user", "content": "go on"}])
            check(engine, at.session, streams=3)
            await ask(start, n=3)
            streams = at.session.streams
            assert len(streams) == 6
            assert [sum(turn.role == "assistant" for turn in each.turns) for each in streams] == [3, 2, 1, 1, 1, 1]
            tokens = [tuple(each.tokens) for each in streams]
            assert tokens[1][: len(engine.prompts[0])] == engine.prompts[0], "the branch has the sampled tokens"

    asyncio.run(run())
    seeds = [each.seed for each in engine.samplings]
    assert len(set(seeds)) == len(seeds), "every request has its own random numbers"
    assert {each.prompt_index for each in engine.samplings} == {5}
    assert len({each.conversation for each in engine.samplings} - {""}) == 1, "the session is one conversation"


def test_a_request_that_fails_or_is_dropped_leaves_no_trace(tokenizer: PreTrainedTokenizerBase) -> None:
    own = with_tools(tokenizer)
    engine = SlowEngine(own)
    messages: list[Any] = [{"role": "user", "content": "what is 3 + 4?"}]

    async def run() -> None:
        async with served(policy_of(engine, own)) as at:
            asking = asyncio.create_task(at.client.chat.completions.create(model="policy", messages=messages))
            await asyncio.sleep(0.1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await asyncio.sleep(0.05)
            assert not at.session.busy, "the engine was told to stop"
            reply = await at.client.chat.completions.create(model="policy", messages=messages)
            said = reply.choices[0].message.model_dump(exclude_none=True)
            again = [*messages, said, {"role": "user", "content": "go on"}]
            await at.client.chat.completions.create(model="policy", messages=again)
            check(engine, at.session, streams=1)

    asyncio.run(run())


def test_completions_with_token_ids_are_one_stream(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = RandomEngine(tokenizer)

    async def run() -> None:
        async with served(policy_of(engine, tokenizer)) as at:
            tokens = tokenizer.encode("what is 3 + 4?", add_special_tokens=False)
            for _ in range(3):
                extra = {"return_token_ids": True}
                reply = await at.client.completions.create(model="policy", prompt=tokens, extra_body=extra)
                choice: Any = reply.choices[0]
                assert choice.prompt_token_ids == tokens
                tokens = [*tokens, *choice.token_ids, *tokenizer.encode("more", add_special_tokens=False)]
            check(engine, at.session, streams=1)
            await at.client.completions.create(model="policy", prompt="what is text?")
            assert len(at.session.streams) == 2

    asyncio.run(run())
