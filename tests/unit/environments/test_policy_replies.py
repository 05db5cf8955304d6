"""Replies of the policy server: several prompts, stop sequences and counted tokens."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import openai
import pytest
from transformers import PreTrainedTokenizerBase

from dojang.environments.policy_server.show import find_stop
from dojang.types import Completion, Sampling
from dojang.workflows.chat_renderer import ChatRenderer
from policy_clients import Served, policy_of, served, with_tools
from scripted_engine import ScriptedEngine

QUESTION: list[Any] = [{"role": "user", "content": "what is 3 + 4?"}]
CALL = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
Test = Callable[[Served], Awaitable[None]]


class StoppingEngine(ScriptedEngine):
    """Ends a reply at a stop string, which stays in its tokens, as engines do."""

    def _complete(self, text: str, sampling: Sampling) -> Completion:
        ends = [(text.index(each) + len(each), each) for each in sampling.stop if each in text]
        if not ends:
            return super()._complete(text, sampling)
        end, stop = min(ends)
        tokens = tuple(self._tokenizer.encode(text[:end], add_special_tokens=False))
        return Completion(tokens, (-0.5,) * len(tokens), text[: end - len(stop)], "stop", 0)


@pytest.fixture
def serve(tokenizer: PreTrainedTokenizerBase) -> Callable[..., None]:
    own = with_tools(tokenizer)

    def run(test: Test, reply: Callable[[str, int, Sampling], str]) -> None:
        async def play() -> None:
            async with served(policy_of(StoppingEngine(own, reply), own, max_tokens=10_000)) as at:
                await test(at)

        asyncio.run(play())

    return run


def test_several_prompts_have_choices_in_their_order_and_are_all_recorded(
    serve: Callable[..., None], tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = ["one", "twenty two", "three"]

    async def test(at: Served) -> None:
        create: Any = at.client.completions.create
        reply = await create(model="policy", prompt=prompts, n=2, extra_body={"return_token_ids": True})
        assert [(each.index, each.text) for each in reply.choices] == [
            (2 * number + index, f"{each} {index}") for number, each in enumerate(prompts) for index in range(2)
        ]
        found = [tokenizer.decode(each.prompt_token_ids) for each in reply.choices]
        assert found == [each for each in prompts for _ in range(2)]
        sizes = [len(tokenizer.encode(each)) for each in prompts]
        assert reply.usage.prompt_tokens == sum(sizes)
        assert len(at.session.streams) == 6
        assert [len(each.tokens) - sum(each.mask) for each in at.session.streams] == [
            size for size in sizes for _ in range(2)
        ]
        tokens = [tokenizer.encode(each) for each in prompts]
        chunks = [each async for each in await create(model="policy", prompt=tokens, stream=True)]
        texts = [""] * 3
        for chunk in chunks:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [f"{each} 0" for each in prompts]

    serve(test, lambda prompt, index, sampling: f"{prompt} {index}")


def test_a_prompt_that_cannot_be_sampled_fails_them_all(serve: Callable[..., None]) -> None:
    def reply(prompt: str, index: int, sampling: Sampling) -> str:
        if prompt == "bad":
            raise MemoryError("no memory")
        return "fine"

    async def test(at: Served) -> None:
        answer = await at.http.post("/v1/completions", json={"prompt": ["good", "bad"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")
        assert not at.session.busy

    serve(test, reply)


def test_a_reply_that_cannot_be_shown_leaves_no_trace_of_the_others(
    serve: Callable[..., None], tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(self: ChatRenderer, messages: object, reply: Sequence[int]) -> None:
        if "bad" in str(tokenizer.decode(list(reply))):
            raise RuntimeError("a bug")

    monkeypatch.setattr(ChatRenderer, "parse_reply", parse)

    async def test(at: Served) -> None:
        create: Any = at.client.completions.create
        first = await create(model="policy", prompt=[1, 2, 3], extra_body={"return_token_ids": True})
        (stream,) = at.session.streams
        known = list(stream.tokens)
        prompt = [1, 2, 3, *first.choices[0].token_ids, 5]
        other = tokenizer.encode("bad", add_special_tokens=False)
        with pytest.raises(openai.InternalServerError):
            await create(model="policy", prompt=[prompt, other])
        assert [each.tokens for each in at.session.streams] == [known]
        await create(model="policy", prompt=prompt)
        assert len(at.session.streams) == 1, "the next request continues the conversation"

    serve(test, lambda prompt, index, sampling: "bad" if prompt == "bad" else "fine")


def test_a_stop_sequence_is_named(serve: Callable[..., None]) -> None:
    body = {"model": "policy", "max_tokens": 99, "messages": QUESTION, "stop_sequences": ["é!", "answer"]}

    async def ask(at: Served, **more: Any) -> tuple[Any, Any]:
        """Asks twice, the second time for a stream."""
        whole = (await at.http.post("/v1/messages", json={**body, **more})).json()
        lines = (await at.http.post("/v1/messages", json={**body, **more, "stream": True})).text.strip().split("\n\n")
        events = [json.loads(each.split("data: ", 1)[1]) for each in lines]
        (delta,) = (each["delta"] for each in events if each["type"] == "message_delta")
        (start,) = (each["message"] for each in events if each["type"] == "message_start")
        assert (start["stop_reason"], start["stop_sequence"]) == (None, None)
        assert delta == {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
        return whole["stop_reason"], whole["stop_sequence"]

    async def test(at: Served) -> None:
        assert await ask(at) == ("stop_sequence", "é!")
        assert await ask(at, stop_sequences=["answer"]) == ("end_turn", None)
        assert await ask(at, stop_sequences=[]) == ("end_turn", None)
        assert await ask(at, stop_sequences=[], max_tokens=2) == ("max_tokens", None)

    serve(test, lambda prompt, index, sampling: "日本é! more")


def test_a_reply_with_a_call_ends_for_its_call(serve: Callable[..., None]) -> None:
    async def test(at: Served) -> None:
        body = {"max_tokens": 99, "messages": QUESTION, "stop_sequences": ["END"], "tools": [TOOL]}
        found = (await at.http.post("/v1/messages", json=body)).json()
        assert (found["stop_reason"], found["stop_sequence"]) == ("tool_use", None)

    serve(test, lambda prompt, index, sampling: f"{CALL} END")


@pytest.mark.parametrize(
    ("written", "content"),
    [
        (f"I look. {CALL}<tool_call>{{oops}}</tool_call>", "I look.\n<tool_call>{oops}</tool_call>"),
        (f"<tool_call>{{oops}}</tool_call>\n{CALL}\n<tool_call>[", "<tool_call>{oops}</tool_call>\n<tool_call>["),
        (
            f'{CALL}<tool_call>[7, 8, {{"name": "weather"}}]</tool_call>',
            '<tool_call>[7, 8, {"name": "weather"}]</tool_call>',
        ),
        (f"I look.\n{CALL}", "I look."),
    ],
)
def test_a_malformed_call_beside_a_valid_one_is_text(serve: Callable[..., None], written: str, content: str) -> None:
    async def test(at: Served) -> None:
        chat = (await at.http.post("/v1/chat/completions", json={"messages": QUESTION, "tools": [FUNCTION]})).json()
        message = chat["choices"][0]["message"]
        assert message["content"] == content
        assert {each["function"]["name"] for each in message["tool_calls"]} == {"weather"}
        assert chat["choices"][0]["finish_reason"] == "tool_calls"
        body = {"max_tokens": 999, "messages": QUESTION, "tools": [TOOL]}
        reply = (await at.http.post("/v1/messages", json=body)).json()
        assert reply["content"][0] == {"type": "text", "text": content}
        assert {each["name"] for each in reply["content"][1:]} == {"weather"}
        results = [{"type": "tool_result", "tool_use_id": each["id"], "content": "5"} for each in reply["content"][1:]]
        more = [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": results}]
        await at.http.post("/v1/messages", json={**body, "messages": [*QUESTION, *more]})
        assert len(at.session.streams) == 2, "what the client sends back is known"

    serve(test, lambda prompt, index, sampling: written)


@pytest.mark.parametrize(
    "call",
    [
        r'{"name": "weather", "arguments": {"x": "\ud800"}}',
        r'{"name": "\ud800"}',
        *(f'{{"name": "weather", "arguments": {{"x": {"[" * deep}{"]" * deep}}}}}' for deep in (120, 930, 2000)),
    ],
    ids=len,
)
def test_a_call_that_cannot_be_sent_as_json_stays_text(serve: Callable[..., None], call: str) -> None:
    text = f"<tool_call>{call}</tool_call>"

    async def test(at: Served) -> None:
        chat = await at.http.post("/v1/chat/completions", json={"messages": QUESTION, "tools": [FUNCTION]})
        assert (chat.status_code, chat.json()["choices"][0]["message"]["content"]) == (200, text)
        body = {"max_tokens": 10_000, "messages": QUESTION, "tools": [TOOL]}
        message = await at.http.post("/v1/messages", json=body)
        assert (message.status_code, message.json()["content"]) == (200, [{"type": "text", "text": text}])

    serve(test, lambda prompt, index, sampling: text)


@pytest.mark.parametrize(
    ("text", "whole", "stops", "found"),
    [
        ("a", "abc", ("b", "bc"), "b"),
        ("a", "abc", ("c", "bc"), "c"),
        ("abc", "abc", ("b",), None),
        ("a", "a", (), None),
    ],
)
def test_the_stop_string_that_is_complete_first_counts(
    text: str, whole: str, stops: tuple[str, ...], found: str | None
) -> None:
    assert find_stop(Completion((1,), (-0.5,), text, "stop", 0), whole, stops) == found


def test_tokens_are_counted_as_they_are_sampled_from(serve: Callable[..., None]) -> None:
    async def test(at: Served) -> None:
        body: dict[str, Any] = {"model": "policy", "messages": QUESTION, "system": "Be brief.", "tools": [TOOL]}
        counted = (await at.http.post("/v1/messages/count_tokens", json=body)).json()
        assert at.session.streams == [], "nothing is sampled"
        reply = (await at.http.post("/v1/messages", json={**body, "max_tokens": 9})).json()
        assert counted == {"input_tokens": reply["usage"]["input_tokens"]}
        more = [*QUESTION, {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "and?"}]
        counted = (await at.http.post("/v1/messages/count_tokens", json={**body, "messages": more})).json()
        reply = (await at.http.post("/v1/messages", json={**body, "messages": more, "max_tokens": 9})).json()
        assert counted == {"input_tokens": reply["usage"]["input_tokens"]}
        assert len(at.session.streams) == 1
        wrong = await at.http.post("/v1/messages/count_tokens", json={"messages": 5})
        assert (wrong.status_code, wrong.json()["type"]) == (400, "error")

    serve(test, lambda prompt, index, sampling: "the answer is 7")
