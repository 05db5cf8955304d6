"""Routes of the policy server: replies, streams, errors in the form of each API, keys and rewards."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from transformers import PreTrainedTokenizerBase

from dojang.environments.policy_server.session import ClientSampling
from dojang.types import Sampling
from policy_clients import WEATHER, Served, policy_of, served, with_tools
from scripted_engine import ScriptedEngine

QUESTION: list[Any] = [{"role": "user", "content": "what is 3 + 4?"}]
CALL = 'I look. <tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
Test = Callable[[Served], Awaitable[None]]
Serve = Callable[..., None]


@pytest.fixture
def serve(tokenizer: PreTrainedTokenizerBase) -> Serve:
    """Runs a test against a server whose replies are scripted."""
    own = with_tools(tokenizer)

    def run(
        test: Test,
        reply: Callable[[str, int, Sampling], str] = lambda prompt, index, sampling: "the answer is 7",
        *,
        max_turns: int = 100,
        client_sampling: ClientSampling = "refuse",
        **limits: int,
    ) -> None:
        async def play() -> None:
            policy = policy_of(ScriptedEngine(own, reply), own, **limits)
            async with served(policy, max_turns=max_turns, client_sampling=client_sampling) as at:
                await test(at)

        asyncio.run(play())

    return run


def test_a_chat_completion_has_log_probs_and_token_ids(serve: Serve, tokenizer: PreTrainedTokenizerBase) -> None:
    async def test(at: Served) -> None:
        extra = {"return_token_ids": True}
        reply: Any = await at.client.chat.completions.create(
            model="policy", messages=QUESTION, logprobs=True, top_logprobs=0, extra_body=extra
        )
        choice = reply.choices[0]
        assert choice.message.content == "the answer is 7"
        assert choice.finish_reason == "stop"
        assert tokenizer.decode(reply.prompt_token_ids) == "<|user|>\nwhat is 3 + 4?<|end|>\n<|assistant|>\n"
        assert tokenizer.decode(choice.token_ids) == "the answer is 7<|end|>"
        assert [each.token for each in choice.logprobs.content] == [
            tokenizer.decode([each]) for each in choice.token_ids
        ]
        sizes = (len(reply.prompt_token_ids), len(choice.token_ids))
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == sizes
        assert reply.system_fingerprint == "weights-0"

    serve(test)


def test_tool_calls_are_parsed_only_for_clients_with_tools(serve: Serve) -> None:
    async def test(at: Served) -> None:
        create = at.client.chat.completions.create
        reply = await create(model="policy", messages=QUESTION, tools=[WEATHER])  # type: ignore[list-item]
        choice = reply.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Ulm"})
        plain = await create(model="policy", messages=QUESTION)
        assert plain.choices[0].message.content == CALL
        assert not plain.choices[0].message.tool_calls
        unused = await create(model="policy", messages=QUESTION, tools=[WEATHER], tool_choice="none")  # type: ignore[list-item]
        assert unused.choices[0].message.content == CALL

    serve(test, lambda prompt, index, sampling: CALL)


def test_a_malformed_call_stays_text(serve: Serve) -> None:
    async def test(at: Served) -> None:
        reply = await at.client.chat.completions.create(model="policy", messages=QUESTION, tools=[WEATHER])  # type: ignore[list-item]
        assert reply.choices[0].message.content == "<tool_call>{oops}</tool_call>"
        assert reply.choices[0].finish_reason == "stop"

    serve(test, lambda prompt, index, sampling: "<tool_call>{oops}</tool_call>")


def test_streams_have_the_same_text_and_calls(serve: Serve) -> None:
    async def test(at: Served) -> None:
        options = {"include_usage": True}
        chunks: list[Any] = [
            chunk
            async for chunk in await at.client.chat.completions.create(
                model="policy",
                messages=QUESTION,
                tools=[WEATHER],
                stream=True,
                stream_options=options,  # type: ignore
            )
        ]
        deltas = [each.choices[0].delta for each in chunks if each.choices]
        assert "".join(each.content or "" for each in deltas) == "I look."
        calls = [call for each in deltas for call in each.tool_calls or []]
        assert [(each.index, each.function.name) for each in calls] == [(0, "weather")]
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        assert chunks[-1].usage.completion_tokens > 0
        text = [each async for each in await at.client.completions.create(model="policy", prompt="x", stream=True)]
        assert "".join(each.choices[0].text for each in text) == CALL
        assert text[-1].choices[0].finish_reason == "stop"

    serve(test, lambda prompt, index, sampling: CALL)


def test_streams_of_anthropic_have_events(serve: Serve) -> None:
    async def test(at: Served) -> None:
        tool = {"name": "weather", "input_schema": {"type": "object"}}
        body = {"model": "policy", "max_tokens": 99, "messages": QUESTION, "tools": [tool], "stream": True}
        lines = (await at.http.post("/v1/messages", json=body)).text.strip().split("\n\n")
        events = [json.loads(each.split("data: ", 1)[1]) for each in lines]
        assert [each.split("\n")[0] for each in lines] == [f"event: {each['type']}" for each in events]
        deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
        assert "".join(each.get("text", "") for each in deltas) == "I look."
        assert json.loads("".join(each.get("partial_json", "") for each in deltas)) == {"city": "Ulm"}
        assert events[0]["type"] == "message_start"
        assert events[-1]["type"] == "message_stop"
        assert events[-2]["delta"]["stop_reason"] == "tool_use"

    serve(test, lambda prompt, index, sampling: CALL)


def test_stops_and_max_tokens_reach_the_engine(serve: Serve) -> None:
    asked: list[Sampling] = []

    def reply(prompt: str, index: int, sampling: Sampling) -> str:
        asked.append(sampling)
        return "x" * 500

    async def test(at: Served) -> None:
        create = at.client.chat.completions.create
        short = await create(model="policy", messages=QUESTION, max_tokens=5, stop="END")
        assert short.choices[0].finish_reason == "length"
        await create(model="policy", messages=QUESTION, max_completion_tokens=4000, stop=["A", "B"])
        body = {"model": "policy", "max_tokens": 7, "messages": QUESTION, "stop_sequences": ["C"]}
        assert (await at.http.post("/v1/messages", json=body)).json()["stop_reason"] == "max_tokens"

    serve(test, reply)
    assert [(each.max_tokens, each.stop) for each in asked] == [(5, ("END",)), (100, ("A", "B")), (7, ("C",))]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", b"{", "no valid JSON"),
        ("chat/completions", b"[1]", "must be a JSON object"),
        ("chat/completions", {}, "messages must be a list"),
        ("chat/completions", {"messages": []}, "messages is empty"),
        ("chat/completions", {"messages": [{"role": "king", "content": "x"}]}, "needs a role"),
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, "must be text"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text"),
        ("chat/completions", {"messages": [*QUESTION, {"role": "assistant", "content": "so"}]}, "last message"),
        ("chat/completions", {"messages": QUESTION, "temperature": "hot"}, "temperature='hot' must be a number"),
        ("chat/completions", {"messages": QUESTION, "temperature": 0.5}, "temperature=1"),
        ("chat/completions", {"messages": QUESTION, "top_p": 0.9}, "top_p=0.9: rollouts"),
        ("chat/completions", {"messages": QUESTION, "max_tokens": 0}, "max_tokens=0 must be a whole number"),
        ("chat/completions", {"messages": QUESTION, "stop": [""]}, "none of them empty"),
        ("chat/completions", {"messages": QUESTION, "n": 1000}, "n=1000"),
        ("chat/completions", {"messages": QUESTION, "stream": "yes"}, "stream='yes' must be true or false"),
        ("chat/completions", {"messages": QUESTION, "top_logprobs": 5}, "top_logprobs=5 is not supported"),
        ("chat/completions", {"messages": QUESTION, "response_format": {"type": "json_object"}}, "response_format"),
        ("chat/completions", {"messages": QUESTION, "tools": [{"name": "x"}]}, "tools[0] needs"),
        ("chat/completions", {"messages": QUESTION, "tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 2000}]}, "do not fit"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": "\\uD800"}]}', "surrogates"),
        ("completions", {"prompt": ""}, "prompt must be a text"),
        ("completions", {"prompt": []}, "prompt must be a text"),
        ("completions", {"prompt": ["a", ""]}, "prompt must be a text"),
        ("completions", {"prompt": ["a", 5]}, "prompt must be a text"),
        ("completions", {"prompt": ["a", "x" * 2000]}, "do not fit"),
        ("completions", {"prompt": ["a"] * 65, "n": 2}, "n=2 for each of 65 prompts is more than 128"),
        ("completions", {"prompt": "x", "echo": True}, "echo=True is not supported"),
        ("messages", {"messages": QUESTION}, "max_tokens is missing"),
        ("messages", {"messages": QUESTION, "max_tokens": 5, "temperature": 0.3}, "temperature=0.3"),
        ("messages", {"messages": [], "max_tokens": 5}, "last message must be the user's"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 5}, "'image'"),
    ],
)  # fmt: skip
def test_a_malformed_request_has_an_error_in_the_form_of_its_api(
    serve: Serve, path: str, body: Any, message: str
) -> None:
    async def test(at: Served) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body)
        answer = await at.http.post(f"/v1/{path}", content=raw)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert message in error["message"]
        assert error["type"] == "invalid_request_error"
        assert answer.json().get("type") == ("error" if path == "messages" else None)
        assert path == "messages" or error["code"]
        assert at.session.streams == []

    serve(test, context=512)


CHAT = {
    "model": "policy",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
    ],
    "tools": [WEATHER], "tool_choice": "auto", "stop": ["x"], "max_tokens": 5, "temperature": 1, "top_p": 1, "n": 1,
    "logprobs": True, "top_logprobs": 0, "stream": False, "stream_options": {"include_usage": True}, "seed": 1,
}  # fmt: skip
MESSAGES = {
    "model": "policy", "max_tokens": 5, "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "what?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "sunny"}]},
    ],
    "tools": [{"name": "weather", "description": "x", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"}, "stop_sequences": ["x"], "stream": False,
}  # fmt: skip
TEXT = {"prompt": "x", "max_tokens": 5, "logprobs": 1, "n": 1, "stop": "x", "stream": False, "echo": False}
JUNK = [None, True, -1, 0, 1e400, 10**400, "", "x", "\ud800", [], [1], {}, {"type": "text"}, [[]], [{}], {"a": [None]}]


def mutated(value: Any, chance: random.Random) -> Any:
    """Returns a copy of a JSON value in which one place is replaced, removed or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], mutated(value[at], chance), *value[at + chance.randrange(2) :]]
    return chance.choice(JUNK)


@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("messages", MESSAGES), ("completions", TEXT)])
def test_no_request_makes_the_server_fail(serve: Serve, path: str, body: Any) -> None:
    chance = random.Random(path)
    statuses: list[int] = []

    async def test(at: Served) -> None:
        for _ in range(150):
            raw = json.dumps(mutated(body, chance))
            answer = await at.http.post(f"/v1/{path}", content=raw)
            assert answer.status_code in (200, 400), (raw, answer.text)
            statuses.append(answer.status_code)
        assert (await at.http.post(f"/v1/{path}", json=body)).status_code == 200

    serve(test, max_turns=10_000)
    assert {200, 400} == set(statuses)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("path", ["completions", "sessions/SESSION/reward"])
def test_half_a_surrogate_pair_is_refused_in_any_encoding(serve: Serve, path: str, encoding: str) -> None:
    body = '{"prompt": "x", "stop": "\ud800"}' if path == "completions" else '{"reward": 1, "parts": {"\ud800": 1}}'

    async def test(at: Served) -> None:
        url = f"/v1/{path}".replace("SESSION", at.key)
        answer = await at.http.post(url, content=body.encode(encoding, "surrogatepass"))
        assert answer.status_code == 400
        assert "no valid JSON" in answer.json()["error"]["message"]
        assert at.session.result is None

    serve(test)


def test_clients_see_a_full_context_by_its_code(serve: Serve) -> None:
    async def test(at: Served) -> None:
        long: list[Any] = [{"role": "user", "content": "x" * 2000}]
        with pytest.raises(openai.BadRequestError) as caught:
            await at.client.chat.completions.create(model="policy", messages=long)
        assert caught.value.code == "context_length_exceeded"
        assert "do not fit" in at.session.limit

    serve(test, context=512)


@pytest.mark.parametrize(
    ("room", "asked", "given"),
    [(100, 64, 64), (64, 64, 64), (63, 64, None), (100, 4000, 100), (99, 4000, None), (500, None, 100),
     (99, None, 99), (1, None, 1), (0, None, None)],
)  # fmt: skip
def test_max_tokens_of_a_request_is_what_must_fit_the_context(
    serve: Serve, tokenizer: PreTrainedTokenizerBase, room: int, asked: int | None, given: int | None
) -> None:
    """Without it, the reply may use what is left of the context, up to the limit of the server (100)."""
    samplings: list[Sampling] = []
    length = len(tokenizer.encode("<|user|>\nwhat is 3 + 4?<|end|>\n<|assistant|>\n", add_special_tokens=False))

    def reply(prompt: str, index: int, sampling: Sampling) -> str:
        samplings.append(sampling)
        return "7"

    async def test(at: Served) -> None:
        create = at.client.chat.completions.create
        if given is not None:
            await create(model="policy", messages=QUESTION, max_tokens=asked)
            return
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="policy", messages=QUESTION, max_tokens=asked)
        assert caught.value.code == "context_length_exceeded"
        what = "a reply" if asked is None else f"max_tokens={min(asked, 100)}"
        wrong = f"a prompt of {length} tokens and {what} do not fit the context of {length + room} tokens"
        assert at.session.limit == wrong

    serve(test, reply, context=length + room)
    assert [each.max_tokens for each in samplings] == ([] if given is None else [given])


def test_other_sampling_can_be_ignored_and_is_noted(serve: Serve) -> None:
    asked: list[Sampling] = []

    def reply(prompt: str, index: int, sampling: Sampling) -> str:
        asked.append(sampling)
        return "7"

    async def test(at: Served) -> None:
        await at.client.chat.completions.create(model="policy", messages=QUESTION, temperature=0.2, top_p=1, seed=3)
        assert at.session.ignored == {"temperature": 0.2}

    serve(test, reply, client_sampling="ignore")
    assert asked[0].temperature == 1.0
    serve(lambda at: at.client.chat.completions.create(model="m", messages=QUESTION, temperature=1.0), reply)


def test_a_wrong_key_is_refused_and_the_path_may_name_the_session(serve: Serve) -> None:
    async def test(at: Served) -> None:
        wrong = at.client.with_options(api_key="wrong")
        with pytest.raises(openai.AuthenticationError) as caught:
            await wrong.chat.completions.create(model="policy", messages=QUESTION)
        assert caught.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            await wrong.models.list()
        answer = await at.http.post("/v1/messages", json={}, headers={"authorization": "", "x-api-key": "no"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        by_path = wrong.with_options(base_url=f"{at.url}/sessions/{at.key}/v1")
        await by_path.chat.completions.create(model="policy", messages=QUESTION)
        assert [each.id async for each in by_path.models.list()] == ["policy"]
        assert len(at.session.streams) == 1
        assert (await at.http.get("/v1/nothing")).json()["error"]["code"] == "not_found"
        assert (await at.http.get("/v1/chat/completions")).status_code == 405
        assert (await at.http.get("/health", headers={"authorization": ""})).json() == {"status": "ok"}

    serve(test)


def test_a_reward_ends_the_session(serve: Serve) -> None:
    async def test(at: Served) -> None:
        await at.client.chat.completions.create(model="policy", messages=QUESTION)
        place = f"/v1/sessions/{at.key}/reward"
        for wrong in ({}, {"reward": "1"}, {"reward": 1, "solved": 1}, {"reward": 1, "parts": {"a": "x"}}, {"r": 1}):
            assert (await at.http.post(place, json=wrong)).status_code == 400
        assert (await at.http.post(place, content='{"reward": NaN}')).status_code == 400
        assert at.session.result is None
        given = {"reward": 0.5, "solved": True, "parts": {"style": 0.25}}
        assert (await at.http.post(place, json=given)).json() == {"reward": 0.5}
        step = at.session.result
        assert step is not None
        assert (step.reward, step.solved, step.parts) == (0.5, True, {"style": 0.25})
        with pytest.raises(openai.ConflictError):
            await at.client.chat.completions.create(model="policy", messages=QUESTION)
        assert (await at.http.post(place, json={"reward": 1})).status_code == 409
        assert len(at.session.streams) == 1

    serve(test)


def test_a_session_that_is_deleted_has_no_reward(serve: Serve) -> None:
    async def test(at: Served) -> None:
        assert (await at.http.delete(f"/v1/sessions/{at.key}")).status_code == 200
        assert at.session.result is None
        assert "without a reward" in at.session.ended

    serve(test)


def test_an_agent_has_a_number_of_requests(serve: Serve) -> None:
    async def test(at: Served) -> None:
        for _ in range(2):
            await at.client.chat.completions.create(model="policy", messages=QUESTION)
        with pytest.raises(openai.BadRequestError, match="max_turns=2"):
            await at.client.chat.completions.create(model="policy", messages=QUESTION)

    serve(test, max_turns=2)


def test_a_failure_of_the_engine_is_an_error_of_the_server(serve: Serve) -> None:
    def fail(prompt: str, index: int, sampling: Sampling) -> str:
        raise MemoryError("no memory")

    async def test(at: Served) -> None:
        with pytest.raises(openai.InternalServerError):
            await at.client.chat.completions.create(model="policy", messages=QUESTION)
        assert isinstance(at.session.failure, MemoryError)

    serve(test, fail)
