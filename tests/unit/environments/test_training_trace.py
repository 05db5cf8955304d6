"""OpenEnv's TrainingTrace: made from sessions, and taken with a reward. Its class is in tests/environments."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.environments.policy_server.records import to_record
from dojang.environments.policy_server.requests import RequestRefused
from dojang.environments.policy_server.training_trace import check_trace, to_training_trace, with_loss_of
from dojang.environments.token_stream import TokenStream
from dojang.types import Completion
from policy_clients import RandomEngine, Served, policy_of, served, talk_openai, with_tools

Test = Callable[[Served, RandomEngine], Awaitable[None]]


@pytest.fixture
def play(tokenizer: PreTrainedTokenizerBase) -> Callable[[Test], None]:
    """Runs a test against a served session, in which an agent has sent two conversations."""
    own = with_tools(tokenizer)

    def run(test: Test) -> None:
        async def go() -> None:
            engine = RandomEngine(own)
            async with served(policy_of(engine, own)) as at:
                await talk_openai(at, 1, turns=3)
                title: list[Any] = [{"role": "user", "content": "a title"}]
                await at.client.chat.completions.create(model="policy", messages=title)
                await test(at, engine)

        asyncio.run(go())

    return run


def trace_of(at: Served) -> Any:
    return to_training_trace(to_record("a", at.session))


def test_a_trace_has_one_turn_per_request(play: Callable[[Test], None]) -> None:
    async def test(at: Served, engine: RandomEngine) -> None:
        trace = (await at.http.get(f"/v1/sessions/{at.key}/training_trace")).json()
        assert trace == trace_of(at)
        assert trace["schema_version"] == 1
        assert [tuple(each["prompt_token_ids"]) for each in trace["turns"]] == engine.prompts
        assert len({each["node_id"] for each in trace["turns"]}) == 4
        for number, turn in enumerate(trace["turns"], 1):
            size = len(turn["completion_token_ids"])
            assert turn["loss_mask"] == [0] * len(turn["prompt_token_ids"]) + [1] * size
            assert len(turn["per_token_logps"]) == size
            assert max(turn["per_token_logps"]) <= 0
            assert turn["metadata"] == {"weight_versions": [number] * size}
        assert check_trace(trace) == trace

    play(test)


def test_only_the_tokens_of_the_trace_have_a_loss(play: Callable[[Test], None]) -> None:
    async def test(at: Served, engine: RandomEngine) -> None:
        conversation, title = at.session.streams
        trace = trace_of(at)
        first, _, third, _ = trace["turns"]
        third["loss_mask"][-1] = 0
        given = {"reward": 0.5, "training_trace": {"schema_version": 1, "turns": [first, third]}}
        assert (await at.http.post(f"/v1/sessions/{at.key}/reward", json=given)).status_code == 200
        (stream,) = at.session.trained_streams(at.session.result)
        replies = [turn for turn in conversation.turns if turn.role == "assistant"]
        wanted = {*range(replies[0].start, replies[0].end), *range(replies[2].start, replies[2].end - 1)}
        assert [place for place, has_loss in enumerate(stream.mask) if has_loss] == sorted(wanted)
        assert all((logprob < 0) == has_loss for logprob, has_loss in zip(stream.logprobs, stream.mask, strict=True))
        assert (stream.tokens, stream.spans) == (conversation.tokens, conversation.spans)
        assert [sum(each.mask) > 0 for each in at.session.streams] == [True, True], "the session is what it was"
        (recorded,) = to_record("a", at.session)["streams"]
        assert recorded["sampled"] == stream.mask
        assert title.tokens != stream.tokens

    play(test)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trace: trace.update(schema_version=2), "schema_version 1"),
        (lambda trace: trace.update(turns=5), "turns must be a list"),
        (lambda trace: trace["turns"].append(5), r"turns[4] must be an object"),
        (lambda trace: trace["turns"][0].pop("loss_mask"), "loss_mask must be a list"),
        (lambda trace: trace["turns"][0]["loss_mask"].pop(), "0 or 1 for each token"),
        (lambda trace: trace["turns"][0]["loss_mask"].insert(0, 1) or trace["turns"][0]["loss_mask"].pop(), "prompt"),
        (lambda trace: trace["turns"][0]["completion_token_ids"].reverse(), "has not sampled"),
        (lambda trace: trace["turns"].append(trace["turns"][0]), "has not sampled"),
        (lambda trace: trace["turns"][1]["prompt_token_ids"].__setitem__(0, "x"), "whole numbers"),
        (lambda trace: trace["turns"].clear(), "no token with a loss"),
    ],
)
def test_the_trace_of_another_session_is_refused(
    play: Callable[[Test], None], change: Callable[[Any], object], message: str
) -> None:
    async def test(at: Served, engine: RandomEngine) -> None:
        trace = trace_of(at)
        change(trace)
        given = {"reward": 0.5, "training_trace": trace}
        answer = await at.http.post(f"/v1/sessions/{at.key}/reward", json=given)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
        assert not at.session.ended

    play(test)


def test_equal_replies_to_equal_prompts_are_told_apart_by_their_number() -> None:
    def stream() -> TokenStream:
        made = TokenStream([1, 2])
        made.add_reply(Completion((3,), (-0.5,), "x", "stop", 0))
        return made

    turn = {"prompt_token_ids": [1, 2], "completion_token_ids": [3], "loss_mask": [0, 0, 1]}
    assert [each.mask for each in with_loss_of({"turns": [turn]}, [stream(), stream()])] == [[False, False, True]]
    assert len(with_loss_of({"turns": [turn, turn]}, [stream(), stream()])) == 2
    with pytest.raises(RequestRefused) as caught:
        with_loss_of({"turns": [turn] * 3}, [stream(), stream()])
    assert "has not sampled" in caught.value.message
