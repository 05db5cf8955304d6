"""OpenAI's chat completions: POST /v1/chat/completions."""

import time
from collections.abc import Iterator
from typing import Any

from dojang.environments.policy_server.fields import (
    Body,
    check_flags,
    invalid,
    read_flag,
    read_number,
    read_stop,
    read_whole,
    refuse_unsupported,
)
from dojang.environments.policy_server.openai_messages import read_messages, read_tools
from dojang.environments.policy_server.requests import Choice, PolicyReply, PolicyRequest

__all__ = [
    "MOST_CHOICES",
    "NEUTRAL",
    "chat_chunks",
    "chat_reply",
    "chat_request",
    "pieces",
    "read_sampling",
    "usage",
]

NEUTRAL = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "chat_template_kwargs": ({},),
    "modalities": (["text"],),
}
"""Fields that change what is sampled or returned and are not supported, and values that ask for nothing."""
MOST_CHOICES = 128
_PIECE_CHARS = 16
"""Length of a piece of a streamed reply, which is sampled as a whole before."""


def chat_request(body: Body) -> PolicyRequest:
    """Reads a request."""
    refuse_unsupported(body, NEUTRAL)
    check_flags(body, "stream", "logprobs", "return_token_ids", "return_tokens_as_token_ids")
    limits = [read_whole(body, key) for key in ("max_completion_tokens", "max_tokens")]
    return PolicyRequest(
        messages=read_messages(body),
        tools=read_tools(body),
        n=read_whole(body, "n", 1, MOST_CHOICES) or 1,
        max_tokens=next((each for each in limits if each is not None), None),
        stop=read_stop(body, "stop"),
        sampling=read_sampling(body),
    )


def read_sampling(body: Body) -> dict[str, float]:
    """Returns the sampling parameters that the client chose."""
    found = {
        "temperature": read_number(body, "temperature", 0, 100),
        "top_p": read_number(body, "top_p", 0, 1),
        "min_p": read_number(body, "min_p", 0, 1),
        "top_k": read_whole(body, "top_k", -1),
        "seed": read_whole(body, "seed", 0),
    }
    if found["top_k"] == -1:  # vLLM's way to switch it off
        found["top_k"] = 0
    if found["top_p"] == 0:
        raise invalid("top_p=0 leaves no token to sample; for the likeliest one set temperature=0", "top_p")
    return {key: value for key, value in found.items() if value is not None}


def chat_reply(body: Body, reply: PolicyReply, model: str) -> dict[str, Any]:
    """Returns the response."""
    found = {**_head(reply, model, "chat.completion"), "choices": _choices(body, reply), "usage": usage(reply)}
    if read_flag(body, "return_token_ids"):
        found["prompt_token_ids"] = list(reply.prompt_of(0))
    return found


def _head(reply: PolicyReply, model: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"weights-{reply.version}",
    }


def _choices(body: Body, reply: PolicyReply) -> list[dict[str, Any]]:
    return [
        {
            "index": at,
            "message": _message(each),
            "finish_reason": finish_reason(each),
            **_details(body, each),
        }
        for at, each in enumerate(reply.choices)
    ]


def _message(choice: Choice) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": choice.content or (None if choice.calls else "")}
    if choice.calls:
        found["tool_calls"] = [_call(choice, at) for at in range(len(choice.calls))]
    return found


def _call(choice: Choice, at: int) -> dict[str, Any]:
    call = choice.calls[at]
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def finish_reason(choice: Choice) -> str:
    """Returns the reason why the reply ended. One that was cut may have calls, but no client should make them."""
    if choice.completion.finish == "length":
        return "length"
    return "tool_calls" if choice.calls else "stop"


def _details(body: Body, choice: Choice) -> dict[str, Any]:
    """Log-probs and token ids, if asked for."""
    found: dict[str, Any] = {
        "logprobs": {"content": logprob_entries(body, choice)} if read_flag(body, "logprobs") else None
    }
    if read_flag(body, "return_token_ids"):
        found["token_ids"] = list(choice.completion.tokens)
    return found


def logprob_entries(body: Body, choice: Choice) -> list[dict[str, Any]]:
    """Returns one entry per token: log-probs under the distribution that was sampled from."""
    by_id = read_flag(body, "return_tokens_as_token_ids")
    done = choice.completion
    return [
        {
            "token": f"token_id:{token}" if by_id else text,
            "logprob": logprob,
            "bytes": list(text.encode()),
            "top_logprobs": [],
        }
        for token, text, logprob in zip(done.tokens, choice.token_texts, done.logprobs, strict=True)
    ]


def usage(reply: PolicyReply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def pieces(text: str) -> list[str]:
    """Splits the text of a reply that is streamed."""
    return [text[at : at + _PIECE_CHARS] for at in range(0, len(text), _PIECE_CHARS)]


def chat_chunks(body: Body, reply: PolicyReply, model: str) -> Iterator[dict[str, Any]]:
    """Yields the chunks of a streamed response."""
    head = _head(reply, model, "chat.completion.chunk")
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    ids = {"prompt_token_ids": list(reply.prompt_of(0))} if read_flag(body, "return_token_ids") else {}
    for at, choice in enumerate(reply.choices):
        for number, delta in enumerate(_deltas(choice)):
            yield {
                **head,
                **(ids if number == 0 else {}),
                "choices": [{"index": at, "delta": delta, "logprobs": None, "finish_reason": None}],
            }
        last = {"index": at, "delta": {}, "finish_reason": finish_reason(choice), **_details(body, choice)}
        yield {**head, "choices": [last]}
    if with_usage:
        yield {**head, "choices": [], "usage": usage(reply)}


def _deltas(choice: Choice) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in pieces(choice.content):
        yield {"content": piece}
    for at in range(len(choice.calls)):
        yield {"tool_calls": [{"index": at, **_call(choice, at)}]}
