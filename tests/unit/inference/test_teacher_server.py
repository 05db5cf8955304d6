"""ServerTeacher against a fake vLLM server that fails on request."""

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.inference.teacher_server import ServerTeacher
from dojang.types import Sample

Answer = Callable[[Mapping[str, Any]], "tuple[int, object]"]


def logprob(before: int, token: int) -> float:
    return -((before * 31 + token) % 17) / 4 - 0.25


class FakeVllm:
    """Answers /health, /v1/models and /v1/completions with prompt_logprobs."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer, self.asked = tokenizer, list[Mapping[str, Any]]()
        self.headers = list[str | None]()
        self.answer: Answer = lambda body: (200, self.scored(body))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return None

            def do_GET(self) -> None:
                self.send({"data": [{"id": "the-teacher"}]} if self.path == "/v1/models" else {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.headers.append(self.headers["Authorization"])
                outer.asked.append(body)
                status, answer = outer.answer(body)
                self.send(answer, status)

            def send(self, answer: object, status: int = 200) -> None:
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def scored(self, body: Mapping[str, Any]) -> object:
        tokens = body["prompt"]
        told: list[object] = [None]
        for before, token in pairwise(tokens):
            other = (token + 1) % 300
            told.append(
                {
                    str(token): {"logprob": logprob(before, token), "decoded_token": self.tokenizer.decode([token])},
                    str(other): {"logprob": -0.01, "rank": 1, "decoded_token": self.tokenizer.decode([other])},
                }
            )
        return {"choices": [{"text": "", "prompt_logprobs": told}]}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(tokenizer: PreTrainedTokenizerBase) -> Iterator[FakeVllm]:
    made = FakeVllm(tokenizer)
    yield made
    made.close()


@pytest.fixture
def samples(make_sample: Callable[..., Sample]) -> list[Sample]:
    return [make_sample(prompt=(7, 8, 9), answer=(10 + at, 11), index=at) for at in range(6)]


def ask(
    server: FakeVllm, samples: list[Sample], tokenizer: PreTrainedTokenizerBase | None = None, **settings: object
) -> list[tuple[float, ...] | None]:
    chosen = {"timeout_s": 5.0, "attempts": 3, "concurrency": 4, "first_delay_s": 0.01, **settings}

    async def run() -> list[tuple[float, ...] | None]:
        teacher = ServerTeacher([server.url], tokenizer or server.tokenizer, **chosen)  # type: ignore[arg-type]
        try:
            return await teacher(samples)
        finally:
            await teacher.close()

    return asyncio.run(run())


def expected(sample: Sample) -> tuple[float, ...]:
    return tuple(
        logprob(sample.tokens[at - 1], token) if mine else 0.0
        for at, (token, mine) in enumerate(zip(sample.tokens, sample.mask, strict=True))
    )


def test_logprobs_of_the_sampled_tokens(server: FakeVllm, samples: list[Sample]) -> None:
    assert ask(server, samples, token="secret") == [expected(sample) for sample in samples]
    assert {body["model"] for body in server.asked} == {"the-teacher"}
    assert [list(sample.tokens) for sample in samples] == sorted(body["prompt"] for body in server.asked[1:])
    assert set(server.headers) == {"Bearer secret"}


def test_failed_requests_are_sent_again(server: FakeVllm, samples: list[Sample]) -> None:
    failed = set[tuple[int, ...]]()

    def at_first_not(body: Mapping[str, Any]) -> tuple[int, object]:
        key = tuple(body["prompt"])
        if len(server.asked) > 1 and key not in failed:
            failed.add(key)
            return (500, {}) if key[3] % 2 else (429, {})
        return 200, server.scored(body)

    server.answer = at_first_not
    assert ask(server, samples) == [expected(sample) for sample in samples]


def test_sample_without_logprobs_is_none(server: FakeVllm, samples: list[Sample]) -> None:
    def infinite(body: Mapping[str, Any]) -> object:
        answer: Any = server.scored(body)
        answer["choices"][0]["prompt_logprobs"][-1][str(body["prompt"][-1])]["logprob"] = -math.inf
        return answer

    def partly(body: Mapping[str, Any]) -> tuple[int, object]:
        odd = {10: (500, {}), 11: (400, {"error": "no"}), 12: (200, infinite(body)), 13: (200, {"choices": []})}
        return odd.get(body["prompt"][3] if len(body["prompt"]) == 5 else 0, (200, server.scored(body)))

    server.answer = partly
    found = ask(server, samples)
    assert found[:4] == [None] * 4
    assert found[4:] == [expected(sample) for sample in samples[4:]]
    refused = [body for body in server.asked if body["prompt"] == list(samples[1].tokens)]
    assert len(refused) == 1  # what the server refuses is not asked again


def test_teacher_with_another_tokenizer_is_rejected(server: FakeVllm, samples: list[Sample]) -> None:
    def shifted(body: Mapping[str, Any]) -> tuple[int, object]:
        answer: Any = server.scored(body)
        for choices in answer["choices"][0]["prompt_logprobs"][1:]:
            for choice in choices.values():
                choice["decoded_token"] += "x"
        return 200, answer

    server.answer = shifted
    with pytest.raises(ConfigError, match="another tokenizer than the student"):
        ask(server, samples)


def test_unsuitable_teacher_servers_are_rejected(server: FakeVllm, samples: list[Sample]) -> None:
    with pytest.raises(ConfigError, match=r"'other' is not served.*the-teacher"):
        ask(server, samples, model="other")
    server.answer = lambda body: (200, {"choices": [{"text": ""}]})
    with pytest.raises(ConfigError, match="no prompt_logprobs"):
        ask(server, samples)
    server.answer = lambda body: (404, {"error": "unknown"})
    with pytest.raises(ConfigError, match=r"cannot be reached.*404"):
        ask(server, samples)
