"""OpenAI's text completions: POST /v1/completions. A prompt is text, token ids, or a list of either."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from dojang.environments.policy_server.fields import (
    Body,
    check_flags,
    invalid,
    read_flag,
    read_stop,
    read_text,
    read_whole,
    refuse_unsupported,
)
from dojang.environments.policy_server.openai_chat import MOST_CHOICES, NEUTRAL, pieces, read_sampling, usage
from dojang.environments.policy_server.requests import Choice, PolicyReply, PolicyRequest
from dojang.types import Message

__all__ = ["text_chunks", "text_reply", "text_requests"]

_MOST_TOKEN = 2**31


def text_requests(body: Body) -> tuple[PolicyRequest, ...]:
    """Reads a request: one for each prompt."""
    refuse_unsupported(body, {**NEUTRAL, "echo": (False,), "suffix": ("",), "best_of": (1, body.get("n"))})
    check_flags(body, "stream", "return_token_ids", "return_tokens_as_token_ids")
    read_whole(body, "logprobs", 0, 1)  # of the sampled tokens only
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and len(prompt) > 0 and isinstance(prompt[0], str | list)
    prompts = list(prompt) if several and prompt else [prompt]
    n = read_whole(body, "n", 1, MOST_CHOICES) or 1
    if n * len(prompts) > MOST_CHOICES:
        raise invalid(f"n={n} for each of {len(prompts)} prompts is more than {MOST_CHOICES} completions", "prompt")
    request = PolicyRequest(
        n=n,
        max_tokens=read_whole(body, "max_tokens"),
        stop=read_stop(body, "stop"),
        sampling=read_sampling(body),
    )
    return tuple(_with_prompt(request, each) for each in prompts)


def _with_prompt(request: PolicyRequest, prompt: object) -> PolicyRequest:
    if isinstance(prompt, str) and prompt:
        return replace(request, messages=(Message("text", read_text({"prompt": prompt}, "prompt")),))
    if isinstance(prompt, list) and prompt and all(type(each) is int and 0 <= each < _MOST_TOKEN for each in prompt):
        return replace(request, prompt=tuple(prompt))
    raise invalid("prompt must be a text, a list of token ids, or a list of either, none of them empty", "prompt")


def text_reply(body: Body, reply: PolicyReply, model: str) -> dict[str, Any]:
    """Returns the response."""
    choices = [_choice(body, reply, at) for at in range(len(reply.choices))]
    return {**_head(reply, model), "choices": choices, "usage": usage(reply)}


def _head(reply: PolicyReply, model: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{reply.id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"weights-{reply.version}",
    }


def _choice(body: Body, reply: PolicyReply, at: int) -> dict[str, Any]:
    choice = reply.choices[at]
    found: dict[str, Any] = {
        "index": at,
        "text": choice.content,
        "finish_reason": choice.completion.finish,
        "logprobs": None if body.get("logprobs") is None else _logprobs(body, choice),
    }
    if read_flag(body, "return_token_ids"):
        found |= {"prompt_token_ids": list(reply.prompt_of(at)), "token_ids": list(choice.completion.tokens)}
    return found


def _logprobs(body: Body, choice: Choice) -> dict[str, Any]:
    done, texts = choice.completion, choice.token_texts
    by_id = read_flag(body, "return_tokens_as_token_ids")
    return {
        "tokens": [f"token_id:{each}" for each in done.tokens] if by_id else list(texts),
        "token_logprobs": list(done.logprobs),
        "top_logprobs": None,
        "text_offset": list(accumulate(map(len, texts), initial=0))[:-1],
    }


def text_chunks(body: Body, reply: PolicyReply, model: str) -> Iterator[dict[str, Any]]:
    """Yields the chunks of a streamed response."""
    for at, choice in enumerate(reply.choices):
        for piece in pieces(choice.content):
            yield {
                **_head(reply, model),
                "choices": [{"index": at, "text": piece, "logprobs": None, "finish_reason": None}],
            }
        yield {**_head(reply, model), "choices": [{**_choice(body, reply, at), "text": ""}]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**_head(reply, model), "choices": [], "usage": usage(reply)}
