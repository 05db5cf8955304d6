"""Teacher log-probs from servers with an OpenAI-compatible API and `prompt_logprobs` (vllm serve).

A sample is sent as token ids, prompt and completion together, and the log-prob of each completion token is read from
the response. A failed request is sent again, to the next server if several are given; a sample that still has no
log-probs is reported as failed and is not trained on.
"""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.inference.http_client import RequestRejected, Server, Timeouts
from dojang.types import Sample
from dojang.workflows.token_bytes import PROBE

__all__ = ["ServerTeacher"]

logger = logging.getLogger(__name__)

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_RETRIED = (408, 429)


class ServerTeacher:
    """Teacher log-probs from one or several servers with the same model."""

    def __init__(
        self,
        urls: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        model: str = "",
        token: str | None = None,
        timeout_s: float,
        attempts: int,
        concurrency: int,
        first_delay_s: float = 0.2,
    ) -> None:
        """`model` is the teacher's name on the servers; without it, the first they list. `token` is their API key."""
        timeouts = Timeouts(answer_s=timeout_s, recovery_s=timeout_s, retries=0, first_delay_s=first_delay_s)
        self._servers = [Server(url, token, timeouts, concurrency) for url in urls]
        self._tokenizer, self._model = tokenizer, model
        self._attempts, self._first_delay_s = attempts, first_delay_s
        self._concurrency = asyncio.Semaphore(concurrency)
        self._turn = count()
        self._handshake_lock = asyncio.Lock()
        self._ready = False

    async def __call__(self, samples: Sequence[Sample]) -> list[tuple[float, ...] | None]:
        """Log-probs of each sample's tokens, 0 where the mask is False; None for a sample that could not be scored.
        ConfigError if the servers hold no such model, or one with another tokenizer."""
        async with self._handshake_lock:
            if not self._ready:
                for server in self._servers:
                    await self._handshake(server)
                self._ready = True
        return list(await asyncio.gather(*map(self._score, samples)))

    async def close(self) -> None:
        """Closes the connections."""
        for server in self._servers:
            await server.close()

    async def _score(self, sample: Sample) -> tuple[float, ...] | None:
        async with self._concurrency:
            delay = self._first_delay_s
            for attempt in range(self._attempts):
                server = self._servers[next(self._turn) % len(self._servers)]
                try:
                    return _at_mask(sample, await self._ask(server, sample.tokens.tolist()))
                except RequestRejected as error:
                    reason = str(error)
                    if error.status not in _RETRIED:
                        break
                except (RuntimeError, ValueError, KeyError, TypeError) as error:
                    reason = f"{type(error).__name__}: {error}"
                if attempt + 1 < self._attempts:
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, 10.0)
            logger.warning("no teacher log-probs for a sample of %d tokens: %s", len(sample.tokens), reason)
            return None

    async def _ask(self, server: Server, tokens: Sequence[int]) -> list[float]:
        """Log-prob of each token after the first; 0 for the first."""
        logprobs = await self._prompt_logprobs(server, tokens)
        found = [0.0]
        for token, choices in zip(tokens[1:], logprobs[1:], strict=True):
            value = float(choices[str(token)]["logprob"])
            if not math.isfinite(value):
                raise ValueError(f"log-prob {value} of token {token}")
            found.append(value)
        return found

    async def _prompt_logprobs(self, server: Server, tokens: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        body = {
            "model": self._model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 1,
        }
        answer = await server.ask("POST", "/v1/completions", body)
        [choice] = answer["choices"]
        logprobs = choice.get("prompt_logprobs")
        if logprobs is None:
            raise ConfigError(
                f"{server.url} returns no prompt_logprobs, which a teacher needs; use `vllm serve` or another server "
                "with this option"
            )
        if len(logprobs) != len(tokens):
            raise ValueError(f"{server.url} returned log-probs of {len(logprobs)} tokens for {len(tokens)} sent")
        return logprobs  # type: ignore[no-any-return]

    async def _handshake(self, server: Server) -> None:
        """Raise ConfigError if the server lacks the model, or its tokenizer is not the student's."""
        try:
            listed = [each["id"] for each in (await server.ask("GET", "/v1/models", again=True))["data"]]
            self._model = self._model or listed[0]
            if self._model not in listed:
                raise ConfigError(
                    f"distillation.model={self._model!r} is not served at {server.url}, which has {', '.join(listed)}"
                )
            tokens = self._tokenizer.encode(PROBE, add_special_tokens=False)
            logprobs = await self._prompt_logprobs(server, tokens)
        except (RuntimeError, RequestRejected) as error:
            raise ConfigError(f"distillation.url: the teacher at {server.url} cannot be reached: {error}") from error
        for token, choices in zip(tokens[1:], logprobs[1:], strict=True):
            mine = self._tokenizer.decode([token])
            theirs = choices.get(str(token), {}).get("decoded_token")
            if theirs is not None and _UNKNOWN not in mine + theirs and mine != theirs:
                raise ConfigError(
                    f"distillation.url: the teacher at {server.url} has another tokenizer than the student: token "
                    f"{token} is {theirs!r} there and {mine!r} here; load the teacher here (distillation.teacher), or "
                    "serve one of the same model family"
                )


def _at_mask(sample: Sample, values: Sequence[float]) -> tuple[float, ...]:
    return tuple(value if mine else 0.0 for value, mine in zip(values, sample.mask.tolist(), strict=True))
